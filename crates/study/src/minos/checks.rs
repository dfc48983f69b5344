//! The model beside what the paper's text says.

use remora_model::platform::Platform;

use crate::reproduce::{Claim, Figure, Lines, Trend};

/// The rows of the paper that say how its system did, or that its figures hang on.
const ROWS: &str = include_str!("../../../../studies/minos/claims.csv");
/// Models, as series name them.
const MODELS: [&str; 5] = ["synch", "strict", "renf", "event", "scope"];
/// The default share of writes.
const WRITES: u64 = 50;

/// All rows.
pub(super) fn claims(figures: &[Figure], platform: &Platform) -> Vec<Claim> {
    let lines = Lines(figures);
    Claim::all(ROWS, |claim| match claim.id.as_str() {
        "MI-006" => {
            claim.model = shares(&lines);
            claim.remark = "fitted to";
        }
        "MI-046" => {
            claim.model = ratio(&lines).into_iter().collect();
            claim.remark = RATIO;
        }
        "MI-035" => claim.missing = "no machine of that kind here",
        id => claim.model = parameter(id, platform).into_iter().collect(),
    })
}

/// Why MINOS-O gains less here: a write drains into every host twice, which MINOS-B does not have, and holds an entry of
/// the dFIFO for 1.5 us.
const RATIO: &str = "both wait for the same persist, and more clients fill MINOS-B's cores, but MINOS-O's \
                     PCIe and five FIFO entries too (docs/measurements.md)";

/// What goes in, in the row's unit.
fn parameter(id: &str, platform: &Platform) -> Option<f64> {
    let (r, nic) = (platform.replication.as_ref()?, platform.nic.as_ref()?);
    let ns = |ps: u64| ps as f64 / 1e3;
    Some(match id {
        "MI-011" => ns(r.persist),
        "MI-023" => ns(r.host_cas),
        "MI-024" => ns(r.nic_cas),
        "MI-025" => ns(nic.pcie.write_latency),
        "MI-026" => nic.pcie.bandwidth / 1e9,
        "MI-027" => ns(nic.ethernet.latency),
        "MI-028" => nic.ethernet.rate / 1e9,
        "MI-029" => ns(r.vfifo_write),
        "MI-030" => ns(r.dfifo_write),
        "MI-031" => r.fifo_entries as f64,
        "MI-032" => ns(r.send_inv),
        "MI-033" => ns(r.send_ack),
        "MI-034" => ns(r.send_gap),
        _ => return None,
    })
}

/// The shares of communication of the five models' writes, in per cent, in their order.
fn shares_of(lines: &Lines<'_>) -> Option<Vec<f64>> {
    let share = |model: &&str| {
        let all = lines.at("4", model, WRITES)?;
        Some(100.0 * lines.at("4", &format!("{model} communication"), WRITES)? / all)
    };
    MODELS.iter().map(share).collect()
}

/// The least and the largest of them.
fn shares(lines: &Lines<'_>) -> Vec<f64> {
    let Some(shares) = shares_of(lines) else { return Vec::new() };
    vec![shares.iter().copied().fold(f64::MAX, f64::min), shares.iter().copied().fold(0.0, f64::max)]
}

/// The mean over models and workloads of the write latency of MINOS-B over MINOS-O.
fn ratio(lines: &Lines<'_>) -> Option<f64> {
    let mut ratios = Vec::new();
    for model in MODELS {
        let (b, o) = (lines.get("9a", &format!("B {model}"))?, lines.get("9a", &format!("O {model}"))?);
        ratios.extend(b.iter().zip(&o).map(|(b, o)| b.1 / o.1));
    }
    Some(ratios.iter().sum::<f64>() / ratios.len().max(1) as f64)
}

/// What the text says of shapes, and what its Tables II and III add up to: of two figures that differ in one thing the
/// difference is what the tables say that thing takes.
pub(super) fn trends(figures: &[Figure], workers: u64) -> Vec<Trend> {
    let lines = Lines(figures);
    let all = [
        lowest_share(&lines),
        ways(&lines),
        persist_apart(&lines),
        fifos_apart(&lines),
        offload_pays(&lines),
        local_reads(&lines),
        reads_add_up(&lines),
        lines.get("9c", "O synch").and_then(|_| more_throughput(&lines)),
        followers(&lines),
        broadcast(&lines),
        steps(&lines),
        enough_entries(&lines),
        persists(&lines),
        rounds(&lines, workers),
        round_trips(&lines),
        records(&lines),
    ];
    all.into_iter().flatten().collect()
}

/// Microseconds of Tables II and III: a persist, a record into the vFIFO, a traversal of PCIe, between two messages.
const PERSIST: f64 = 1.295;
const VFIFO: f64 = 0.465;
const PCIE: f64 = 0.5;
const GAP: f64 = 0.1;
/// Sending an INV and an ACK; a record of 1 KB with its header over PCIe and over a link; a
/// link's latency.
const SEND_INV: f64 = 0.2;
const SEND_ACK: f64 = 0.1;
const RECORD_PCIE: f64 = 1.064 / 6.25;
const RECORD_WIRE: f64 = 1.064 / 7.0;
const LINK: f64 = 0.15;
/// A dispatch as eRPC has it, which serves 7 to 10 million calls a second with a core (Kalia et al., NSDI 2019); a look-up
/// of one to one and a half misses; a miss of Sandy Bridge, and 1 KB at what three channels of DDR3-1600 give.
const DISPATCH: f64 = 0.125;
const LOOKUP: f64 = 0.125;
const MISS: f64 = 0.09;
const RECORD_DRAM: f64 = 1.024 / 28.0;
/// The longest persist of figure 14a.
const LONGEST: f64 = 100.0;
/// The round trip of VIII-C.
const ROUND_TRIP: f64 = 500.0;

fn lowest_share(lines: &Lines<'_>) -> Option<Trend> {
    let shares = shares_of(lines)?;
    let evidence: Vec<String> =
        MODELS.iter().zip(&shares).map(|(model, share)| format!("{model} {share:.0} %")).collect();
    Some(Trend {
        figures: "4",
        section: "IV",
        what: "the persist in its path gives synch a lower share of communication than event",
        holds: shares[0] < shares[3],
        evidence: evidence.join(", "),
    })
}

/// The way of an INV to the last of four followers and of its ACK back: each crosses PCIe twice and a link once.
fn ways(lines: &Lines<'_>) -> Option<Trend> {
    let invalidation = SEND_INV + 3.0 * GAP + 2.0 * PCIE + RECORD_PCIE + LINK + RECORD_WIRE;
    let by_hand = invalidation + SEND_ACK + 2.0 * PCIE + LINK;
    let renf = lines.at("4", "renf communication", WRITES)?;
    let what = "communication of renf is an INV to the last follower and its ACK, added up of Table III, within 7 %";
    Some(Trend::by_hand(("4", "III-C, Table III", what), (renf, by_hand, 0.07), "us"))
}

/// Where few write, synch takes so much longer than event, give or take a quarter.
fn apart(lines: &Lines<'_>, figure: &str, system: &str, by: f64) -> Option<(bool, String)> {
    let at = |model: &str| lines.at(figure, &format!("{system}{model}"), 20);
    let (synch, event) = (at("synch")?, at("event")?);
    let apart = synch - event;
    let evidence = format!("{synch:.2} and {event:.2} us with 20 % writes: {apart:.2} us");
    Some(((apart / by - 1.0).abs() < 0.25, evidence))
}

fn persist_apart(lines: &Lines<'_>) -> Option<Trend> {
    let (holds, evidence) = apart(lines, "4", "", PERSIST)?;
    Some(Trend {
        figures: "4",
        section: "III-C, Table II",
        what: "synch and event are a persist of 1295 ns apart, give or take a quarter, where few write",
        holds,
        evidence,
    })
}

fn fifos_apart(lines: &Lines<'_>) -> Option<Trend> {
    let (holds, evidence) = apart(lines, "9a", "O ", PERSIST - VFIFO)?;
    Some(Trend {
        figures: "9a",
        section: "V-D, Table III",
        what: "on the NIC they are a write of the dFIFO less one of the vFIFO apart, 830 ns, give or take a quarter",
        holds,
        evidence,
    })
}

/// A line of both systems for each model.
fn both<'a>(lines: &'a Lines<'_>, figure: &'a str) -> impl Iterator<Item = (&'static str, Vec<(f64, f64)>)> + 'a {
    MODELS.into_iter().filter_map(move |model| {
        let (b, o) = (lines.get(figure, &format!("B {model}"))?, lines.get(figure, &format!("O {model}"))?);
        Some((model, b.iter().zip(&o).map(|(b, o)| (b.1, o.1)).collect()))
    })
}

fn offload_pays(lines: &Lines<'_>) -> Option<Trend> {
    let all: Vec<f64> = both(lines, "9a").flat_map(|(_, points)| points).map(|(b, o)| b / o).collect();
    let least = all.iter().copied().reduce(f64::min)?;
    // B crosses PCIe four times for an answer, O twice.
    let (b, o) = (lines.at("9a", "B event", 20)?, lines.at("9a", "O event", 20)?);
    Some(Trend {
        figures: "9a",
        section: "V, Table III",
        what: "MINOS-O is faster with every model and mix; where few write by two traversals of PCIe, give or take half",
        holds: least > 1.0 && ((b - o) / (2.0 * PCIE) - 1.0).abs() < 0.5,
        evidence: format!("at least {least:.2} times; event with 20 % writes {b:.2} and {o:.2} us"),
    })
}

fn local_reads(lines: &Lines<'_>) -> Option<Trend> {
    let alone: Vec<f64> =
        both(lines, "9b").filter_map(|(_, points)| points.first().copied()).flat_map(|(b, o)| [b, o]).collect();
    let (low, high) = (alone.iter().copied().reduce(f64::min)?, alone.iter().copied().reduce(f64::max)?);
    let waits = both(lines, "9b").all(|(_, points)| points.last().zip(points.first()).is_some_and(|(l, f)| l.0 > f.0));
    Some(Trend {
        figures: "9b",
        section: "III-D",
        what: "reads are local and the same in all models and both systems, and wait only where others write",
        holds: high / low < 1.02 && waits,
        evidence: format!("{low:.2} to {high:.2} us where nobody writes"),
    })
}

fn reads_add_up(lines: &Lines<'_>) -> Option<Trend> {
    let by_hand = DISPATCH + LOOKUP + MISS + RECORD_DRAM;
    let read = lines.at("9b", "B event", 0)?;
    let what = "a read is a dispatch of eRPC, a look-up of about one miss and 1 KB of memory, added up, within a tenth";
    Some(Trend::by_hand(("9b", "III-D, VII", what), (read * 1e3, by_hand * 1e3, 0.1), "ns"))
}

fn more_throughput(lines: &Lines<'_>) -> Option<Trend> {
    let least = both(lines, "9c").flat_map(|(_, points)| points).map(|(b, o)| o / b).reduce(f64::min)?;
    Some(Trend {
        figures: "9c",
        section: "V",
        what: "MINOS-O serves more with every model and mix",
        holds: least > 1.0,
        evidence: format!("at least {least:.2} times"),
    })
}

fn followers(lines: &Lines<'_>) -> Option<Trend> {
    let (b, o) = (lines.get("10a", "B")?, lines.get("10a", "O")?);
    let each = |line: &[(f64, f64)]| Some((line.last()?.1 - line.first()?.1) / (line.last()?.0 - line.first()?.0));
    let (b, o) = (each(&b)?, each(&o)?);
    Some(Trend {
        figures: "10a",
        section: "V-B.3, Table III",
        what: "each follower more costs MINOS-B at least the 100 ns between two messages, and MINOS-O, which broadcasts, less",
        holds: b >= GAP && o < b && o > 0.0,
        evidence: format!("{b:.3} and {o:.3} us a node"),
    })
}

fn broadcast(lines: &Lines<'_>) -> Option<Trend> {
    let saved = |model| Some(lines.at("12", model, 1)? - lines.at("12", model, 2)?);
    let (synch, event) = (saved("synch")?, saved("event")?);
    let expected = 3.0 * GAP;
    let near = |saved: f64| saved > 0.5 * expected && saved < 3.0 * expected;
    Some(Trend {
        figures: "12",
        section: "V-B.3, Table III",
        what: "NICs that broadcast save MINOS-B three of the 100 ns between messages, or as many crossings of PCIe",
        holds: near(synch) && near(event),
        evidence: format!("synch {synch:.2} us, event {event:.2} us"),
    })
}

fn steps(lines: &Lines<'_>) -> Option<Trend> {
    let mut evidence = Vec::new();
    let mut holds = true;
    for model in MODELS {
        let steps = lines.get("12", model)?;
        let [b, _, combined, .., batching, o] = steps.iter().map(|dot| dot.1).collect::<Vec<_>>()[..] else {
            return None;
        };
        holds &= combined < b && o <= 1.02 * combined && o <= 1.02 * batching;
        evidence.push(format!("{model} {b:.2}, {combined:.2}, {o:.2}"));
    }
    Some(Trend {
        figures: "12",
        section: "VIII-D",
        what: "the combined step pays, and batching with broadcast beyond it does",
        holds,
        evidence: format!("B, combined and O in us: {}", evidence.join("; ")),
    })
}

fn persists(lines: &Lines<'_>) -> Option<Trend> {
    let (b, o) = (lines.get("14a", "B")?, lines.get("14a", "O")?);
    let rises = |line: &[(f64, f64)]| line.windows(2).all(|pair| pair[1].1 > 0.99 * pair[0].1);
    let (last_b, last_o) = (b.last()?, o.last()?);
    let holds = rises(&b) && rises(&o) && last_b.1 * 1e3 >= last_b.0 && last_o.1 * 1e3 >= last_o.0;
    Some(Trend {
        figures: "14a",
        section: "VIII-E",
        what: "longer persists make longer writes, which are never shorter than one",
        holds,
        evidence: format!("{:.0} and {:.0} us with persists of {:.0} us", last_b.1, last_o.1, last_b.0 / 1e3),
    })
}

/// The writes of five nodes' clients go through five cores of MINOS-B or five entries of MINOS-O: by fives.
fn rounds(lines: &Lines<'_>, workers: u64) -> Option<Trend> {
    let (b, o) = (lines.get("14a", "B")?.last()?.1, lines.get("14a", "O")?.last()?.1);
    let by_fives = |latency: f64| (latency / (workers as f64 * LONGEST) - 1.0).abs() < 0.1;
    Some(Trend {
        figures: "14a",
        section: "VIII-E, Tables II and III",
        what: "persists of 100 us bind: writes take as many as a node has clients, by five cores and by five entries, within a tenth",
        holds: by_fives(b) && by_fives(o),
        evidence: format!("{b:.0} and {o:.0} us with {workers} clients a node"),
    })
}

fn round_trips(lines: &Lines<'_>) -> Option<Trend> {
    let miss = |system: &str| {
        let line = lines.get("11a", &format!("{system} social"))?;
        Some(line.first()?.1 - line.last()?.1)
    };
    let (b, o) = (miss("B")?, miss("O")?);
    let media = lines.at("11a", "B media", 0)?;
    let near = |more: f64| (more / ROUND_TRIP - 1.0).abs() < 0.1;
    Some(Trend {
        figures: "11a",
        section: "VIII-C",
        what: "a Login that misses has one round trip of 500 us more, and one of reads alone has none",
        holds: near(b) && near(o) && media < 0.1 * ROUND_TRIP,
        evidence: format!("{b:.1} and {o:.1} us more; three reads {media:.2} us"),
    })
}

fn records(lines: &Lines<'_>) -> Option<Trend> {
    let few = |system: &str| {
        let line = lines.get("14b", &format!("{system} zipfian 0.99"))?;
        Some(line.first()?.1 / line.last()?.1)
    };
    let (b, o) = (few("B")?, few("O")?);
    Some(Trend {
        figures: "14b",
        section: "VIII-E",
        what: "of ten records several are written at once more often than of 100,000, and writes wait for each other",
        holds: b > 1.0 && o > 1.0,
        evidence: format!("{b:.2} and {o:.2} times as long"),
    })
}

fn enough_entries(lines: &Lines<'_>) -> Option<Trend> {
    let (three, five) = (lines.at("13", "O", 3)?, lines.at("13", "O", 5)?);
    Some(Trend {
        figures: "13",
        section: "VIII-E",
        what: "three to five entries are as good as any number",
        holds: three < 1.05 && five < 1.05,
        evidence: format!("{three:.3} and {five:.3} of the latency without bound"),
    })
}

//! RAMBDA's text beside the model.

use remora_model::platform::Platform;

use crate::reproduce::{Claim, Figure, Lines, Trend};

/// The rows.
const CLAIMS: &str = include_str!("../../../../studies/rambda/claims.csv");

/// Workloads of the store, as figures number them.
const GET_UNIFORM: u64 = 1;
const GET_ZIPFIAN: u64 = 2;

/// The rows with the model's figures.
pub fn claims(figures: &[Figure], platform: &Platform) -> Vec<Claim> {
    let lines = Lines(figures);
    Claim::all(CLAIMS, |claim| {
        match value_of(&claim.id, &lines, platform) {
            Some(model) => claim.model = model,
            None if claim.id == "RB-027" => claim.missing = "what parsing a query costs is published by nobody",
            None => {}
        }
        claim.remark = match claim.id.as_str() {
            "RB-075" => {
                "what a request costs such a core is derived from this row; but at its peak the wire bounds the CPU in the \
                 model, and would have to bind neither"
            }
            "RB-087" => {
                "fitted, and at the end of its range: a fetch from the host would have to take a card's core less than 0.5 us"
            }
            "RB-095" => {
                "stalls of the operating system, an estimate, make the CPU's tail: one request in a thousand delays eight of a \
                 batch, just less than a hundredth of all"
            }
            "RB-096" => {
                "a client has one batch under way, so that its round trip bounds small batches; 12 times would be more than \
                 the wire carries"
            }
            "RB-102" => "follows from the CPU's rate, as RB-104",
            "RB-103" | "RB-107" => "arithmetic on Watts that went in",
            "RB-104" => "the wire is full, which is 147 Kop/W: the paper's CPU would have to be at 89 % of that",
            "RB-113" => "of the six parts of a hop three are estimates that differ between the two",
            "RB-118" => {
                "lines that a core has under way are derived from this row, without what a query costs beside: eight cores do \
                 71 % of what sixteen do, and would need 29 lines each, not 20"
            }
            "RB-119" => {
                "it would take a controller that issues a line in about ten cycles, or a tenth of the link: not what the list's \
                 rate (RB-066) leaves; with one query at a time it would be 39 %"
            }
            _ => "",
        };
    })
}

fn value_of(id: &str, lines: &Lines<'_>, platform: &Platform) -> Option<Vec<f64>> {
    let (power, costs) = (platform.power.as_ref()?, platform.ring_server.as_ref()?);
    let percent = |part: f64| part * 100.0;
    let at = |figure, line, x| lines.at(figure, line, x);
    Some(match id {
        "RB-019" => vec![(at("5", "DDIO off, reads", 1)? + at("5", "DDIO off, writes", 1)?) / 2.0],
        "RB-023" => vec![1.0],
        "RB-024" => vec![3.0],
        "RB-025" => vec![4.0],
        "RB-064" => vec![16.0],
        "RB-065" => vec![(at("7", "CPU 16", 1)? / at("7", "CPU 1", 1)?).ln() / 16f64.ln()],
        "RB-066" => vec![8.0 * at("7", "RAMBDA-polling", 1)? / at("7", "CPU 8", 1)?],
        "RB-075" => vec![10.0 * at("8", "Smart NIC on board", GET_UNIFORM)? / at("8", "CPU", GET_UNIFORM)?],
        "RB-087" => vec![percent(at("8", "Smart NIC", GET_ZIPFIAN)? / at("8", "Smart NIC on board", GET_ZIPFIAN)?)],
        "RB-095" => vec![percent(1.0 - at("9", "RAMBDA p99", GET_UNIFORM)? / at("9", "CPU p99", GET_UNIFORM)?)],
        "RB-096" => {
            let gain = |line| Some(at("10", line, 32)? / at("10", line, 1)?);
            let (cpu, card) = (gain("CPU")?, gain("Smart NIC")?);
            vec![cpu.min(card), cpu.max(card)]
        }
        "RB-099" => vec![power.host_active],
        "RB-100" => vec![power.nic_active],
        "RB-101" => vec![power.accel_active],
        "RB-102" => {
            let watts = power.host_active / power.accel_active;
            vec![watts * at("8", "RAMBDA", GET_UNIFORM)? / at("8", "CPU", GET_UNIFORM)?]
        }
        "RB-103" => vec![power.accel_active / power.nic_active],
        "RB-104" => vec![at("III", "CPU", GET_UNIFORM)?],
        "RB-107" => {
            let core = power.host_active / platform.host.cores as f64;
            let (with, without) = (power.accel_active + core, power.host_active);
            vec![percent(1.0 - (with + costs.rest_power) / (without + costs.rest_power))]
        }
        "RB-108" => vec![costs.forward as f64 / 1e6],
        "RB-113" => vec![percent(at("12", "RAMBDA", 1)? / at("12", "HyperLoop", 1)? - 1.0)],
        "RB-118" => {
            let cpu = lines.get("13b", "CPU MERCI")?;
            let most = cpu.iter().map(|dot| dot.1).fold(0.0, f64::max);
            vec![cpu.iter().find(|dot| dot.1 > 0.9 * most)?.0]
        }
        "RB-119" => {
            let (ours, core) = (lines.get("13a", "RAMBDA")?, lines.get("13a", "CPU 1")?);
            let parts: Vec<f64> = ours.iter().zip(&core).map(|(ours, core)| percent(ours.1 / core.1)).collect();
            vec![parts.iter().copied().fold(f64::MAX, f64::min), parts.iter().copied().fold(0.0, f64::max)]
        }
        "RB-120" => vec![platform.dram.bandwidth / 1e9],
        "RB-121" => vec![platform.accel_ddr.as_ref()?.bandwidth / platform.dram.bandwidth],
        _ => return None,
    })
}

/// The shapes that can be judged with the figures that were run.
pub fn trends(figures: &[Figure]) -> Vec<Trend> {
    let lines = Lines(figures);
    let said = [
        card(&lines),
        hints(&lines),
        cpoll(&lines),
        adaptive(&lines),
        store(&lines),
        batches(&lines),
        chain(&lines),
        rows(&lines),
    ];
    said.into_iter().chain(sums(&lines)).flatten().collect()
}

fn card(lines: &Lines<'_>) -> Option<Trend> {
    let mean = lines.get("1", "mean")?;
    let (first, last) = (mean.first()?, mean.last()?);
    let off = mean.iter().map(|(x, y)| {
        let straight = first.1 + (last.1 - first.1) * (x - first.0) / (last.0 - first.0);
        (y / straight - 1.0).abs()
    });
    let off = off.fold(0.0, f64::max);
    Some(Trend {
        figures: "1",
        section: "II-B",
        what: "the latency rises linearly with the accesses to the host",
        holds: off < 0.02 && last.1 > 5.0 * first.1,
        evidence: format!("{:.1} to {:.1} us, at most {:.1} % off a line", first.1, last.1, off * 100.0),
    })
}

fn hints(lines: &Lines<'_>) -> Option<Trend> {
    let past = lines.at("5", "DDIO off, writes", 1)?;
    let others = [("DDIO off, writes", 2), ("DDIO on, writes", 1), ("DDIO on, writes", 2), ("DDIO on, reads", 1)];
    let most = others.iter().filter_map(|(line, x)| lines.at("5", line, *x)).fold(0.0, f64::max);
    Some(Trend {
        figures: "5",
        section: "III-D",
        what: "only with DDIO and TPH both off do a device's writes take memory bandwidth",
        holds: most < 0.1 * past,
        evidence: format!("{past:.2} GB/s against {most:.2} GB/s at most"),
    })
}

fn cpoll(lines: &Lines<'_>) -> Option<Trend> {
    let (polling, cpoll) = (lines.at("7", "RAMBDA-polling", 1)?, lines.at("7", "RAMBDA", 1)?);
    Some(Trend {
        figures: "7",
        section: "III-B, VI-A",
        what: "polling takes requests of the link that cpoll leaves to the application",
        holds: cpoll > polling,
        evidence: format!("{cpoll:.2} against {polling:.2} M/s"),
    })
}

fn adaptive(lines: &Lines<'_>) -> Option<Trend> {
    let (adaptive, always) = (lines.at("7", "RAMBDA", 2)?, lines.at("7", "RAMBDA-DDIO", 2)?);
    let media = |line| lines.details("7", line, 2)?.get(1);
    Some(Trend {
        figures: "7",
        section: "III-D",
        what: "DDIO that is always on has persistent media write more than they are given, and wastes their bandwidth",
        holds: adaptive > always,
        evidence: format!(
            "media write {} and {} of what they are given; {adaptive:.2} and {always:.2} M/s",
            media("RAMBDA")?,
            media("RAMBDA-DDIO")?
        ),
    })
}

fn store(lines: &Lines<'_>) -> Option<Trend> {
    let (get, half) = (lines.at("8", "CPU", GET_UNIFORM)?, lines.at("8", "CPU", 3)?);
    let (skewed, uniform) = (lines.at("8", "Smart NIC", GET_ZIPFIAN)?, lines.at("8", "Smart NIC", GET_UNIFORM)?);
    let near = (half / get - 1.0).abs() < 0.15;
    Some(Trend {
        figures: "8",
        section: "VI-B",
        what: "half PUTs differ little from GETs alone on the CPU, and skew helps the Smart NIC, whose cache is small",
        holds: near && skewed > 1.3 * uniform,
        evidence: format!("{get:.1} and {half:.1} M/s; {uniform:.1} M/s of uniform, {skewed:.1} M/s of zipfian keys"),
    })
}

fn batches(lines: &Lines<'_>) -> Option<Trend> {
    let ours = lines.get("10", "RAMBDA")?;
    let (one, many) = (ours.first()?.1, ours.last()?.1);
    let rises = ours.windows(2).all(|pair| pair[1].1 > 0.97 * pair[0].1);
    Some(Trend {
        figures: "10",
        section: "VI-B",
        what: "doorbells for many replies raise RAMBDA's throughput",
        holds: rises && many > 2.0 * one,
        evidence: format!("{one:.2} to {many:.2} M/s"),
    })
}

fn chain(lines: &Lines<'_>) -> Option<Trend> {
    let (verbs, ours) = (lines.get("12", "HyperLoop")?, lines.get("12", "RAMBDA")?);
    let saved: Vec<f64> = verbs.iter().zip(&ours).map(|(verbs, ours)| verbs.1 / ours.1).collect();
    let [_, short, _, long] = saved[..] else { return None };
    Some(Trend {
        figures: "12",
        section: "IV-B",
        what: "group verbs take one key after the other, the log all keys in one pass of the chain",
        holds: short > 1.5 && long > 1.5,
        evidence: format!("(4,2): {short:.2} times as fast with 64 B, {long:.2} with 1 KB"),
    })
}

fn rows(lines: &Lines<'_>) -> Option<Trend> {
    let at = |line| Some(lines.get("13a", line)?.first()?.1);
    let (upi, ddr, hbm, eight) = (at("RAMBDA")?, at("RAMBDA-LD")?, at("RAMBDA-LH")?, at("CPU 8")?);
    Some(Trend {
        figures: "13a",
        section: "VI-D",
        what: "memory of its own lifts the accelerator: DDR to about a third of what eight cores do, HBM beyond them",
        holds: ddr > upi && (0.2..0.5).contains(&(ddr / eight)) && hbm > eight,
        evidence: format!("{upi:.2}, {ddr:.2} and {hbm:.2} M/s; eight cores {eight:.2} M/s"),
    })
}

// Sums by hand, of the text's values and of those that platforms.md sets where it has none (table II, section V). Their bounds
// are ours; so is the choice of what is summed up, which was made when it was known which mutants of the model no other
// trend saw.

/// A load of the host's DRAM, of persistent memory, of the card's memory and by the card of the host's, in nanoseconds.
const DRAM: f64 = 85.0;
const NVM: f64 = 305.0;
const CARD: f64 = 145.0;
const CARD_TO_HOST: f64 = 2250.0;
/// One of many such reads, as fitted to RB-087.
const CARD_PIPELINED: f64 = 500.0;
/// What a host core takes to hand out a request, to go on with another one, to hash a key, and to ring a doorbell.
const DISPATCH: f64 = 150.0;
const SWITCH: f64 = 11.0;
const HASH: f64 = 50.0;
const ISSUE: f64 = 150.0;
const POLL: f64 = 40.0;
/// A host core's part of what the card's do, and what these take to hand out a request and to ring a doorbell.
const SPEED: f64 = 0.75;
const CARD_DISPATCH: f64 = 200.0;
const CARD_ISSUE: f64 = 200.0;
/// PCIe: a store to a device, a read by one, a write by one.
const MMIO: f64 = 250.0;
const PCIE_READ: f64 = 850.0;
const PCIE_WRITE: f64 = 325.0;
/// From one NIC to the other: through both, and along the cable.
const NIC: f64 = 200.0;
const CABLE: f64 = 250.0;
/// Bytes of a WRITE beside what it writes, and bits of the wire in a nanosecond.
const HEADERS: f64 = 16.0 + 82.0;
const WIRE: f64 = 25.0;
/// The accelerator: its doorbell, its read of the host's memory, its signal; cycles of its logic and of memory beside it.
const DOORBELL: f64 = 500.0;
const COHERENT: f64 = 350.0;
const SIGNAL: f64 = 125.0;
const CYCLE: f64 = 1e3 / 400.0;
const LOCAL_MHZ: f64 = 275.0;
const STEP: f64 = 8.0 * CYCLE;
/// Bytes in a nanosecond: of UPI after its headers, of CXL, of DDR and HBM beside the accelerator, of persistent memory.
const UPI: f64 = 20.8 * 0.8;
const CXL: f64 = 31.5;
const DDR: f64 = 36.0;
const HBM: f64 = 425.0;
const PERSISTENT: f64 = 39.4;

/// Nanoseconds until a WRITE of so many bytes is in the other machine's NIC.
fn carried(bytes: f64) -> f64 {
    NIC + (bytes + HEADERS) * 8.0 / WIRE + CABLE + NIC
}

fn sums(lines: &Lines<'_>) -> Vec<Option<Trend>> {
    let at = |figure, line, x| lines.at(figure, line, x);
    let hand = Trend::by_hand;
    let card =
        |x, each: f64, what| Some(hand(("1", "II-B", what), (at("1", "mean", x)?, 100.0 * each / 1e3, 0.05), "us"));
    // Sixteen walks of three nodes at once; with DRAM all loads of a round are under way, with persistent memory twelve are.
    let walk = |round: f64| 1e3 / (DISPATCH + SWITCH + 3.0 * round / 16.0);
    let walks = |x, round, what| Some(hand(("7", "VI-A", what), (at("7", "CPU 1", x)?, walk(round), 0.05), "M/s"));
    // Six lines: an entry, three nodes, the reply, and the entry again, which is cleared.
    let link = |line, rate: f64, what| {
        Some(hand(("7", "VI-A", what), (at("7", line, 1)?, rate * 1e3 / (6.0 * 64.0), 0.08), "M/s"))
    };
    let steps = |line, what| Some(hand(("7", "V", what), (at("7", line, 1)?, LOCAL_MHZ / 5.0, 0.05), "M/s"));
    // The request and the pointer.
    let to_server = 1e3 * WIRE / 8.0 / (24.0 + 4.0 + 2.0 * HEADERS);
    let wire = |line, what| {
        // With fewer a doorbell, those that go before their batch is whole bound the rate.
        let all = [("8", 1), ("10", 16), ("10", 32)];
        let rates: Option<Vec<f64>> = all.iter().map(|(figure, x)| at(figure, line, *x)).collect();
        let furthest = |a: &f64, b: &f64| (a - to_server).abs().total_cmp(&(b - to_server).abs());
        let model = rates?.into_iter().max_by(furthest)?;
        Some(hand(("8, 10", "VI-B", what), (model, to_server, 0.05), "M/s"))
    };
    let rung = |line, replies: u64, what| {
        let by_doorbells = 1e3 * replies as f64 / DOORBELL;
        Some(hand(("10", "IV-A", what), (at("10", line, replies)?, by_doorbells, 0.05), "M/s"))
    };
    let post = ISSUE + MMIO + PCIE_READ;
    let seen = PCIE_WRITE + POLL;
    let round_trip = || {
        let there = post + carried(24.0) + seen;
        let served = DISPATCH + HASH + 3.0 * SWITCH + 2.0 * DRAM + 20.0;
        let hand_us = (there + served + post + carried(72.0) + seen) / 1e3;
        let what =
            "ten clients with a GET each under way have as many as its round trip lets them: the parts of a core's";
        Some(hand(("10", "IV-A, VI-B", what), (10.0 / at("10", "CPU", 1)?, hand_us, 0.05), "us"))
    };
    let card_store = || {
        // Of 7 GB 512 MB are on the card; a pair that was fetched for its header is there for its value. The last fetch of a
        // batch is waited for.
        let fetched = 2.0 * (1.0 - 0.512 / 7.0);
        let fetches = fetched * (CARD_PIPELINED + (CARD_TO_HOST - CARD_PIPELINED) / 32.0);
        let each = CARD_DISPATCH + (HASH + 3.0 * SWITCH) / SPEED + fetches + (CARD + CARD_ISSUE) / 32.0;
        // Two of eight cores have two clients, and never wait. The others wait for their client's next batch, of which they
        // take the first request by itself.
        let first = CARD_DISPATCH + fetched * CARD_TO_HOST + CARD_ISSUE;
        let away = post + carried(24.0) + POLL + first + carried(72.0) + 31.0 * (72.0 + HEADERS) * 8.0 / WIRE + seen;
        let hand_rate = 32e3 * (2.0 / (32.0 * each) + 6.0 / (32.0 * each + away));
        let what = "eight of the card's cores fetch 13 of 14 buckets and pairs from the host, one after the other";
        Some(hand(("8", "VI-B", what), (at("8", "Smart NIC", GET_UNIFORM)?, hand_rate, 0.08), "M/s"))
    };
    // Two replicas behind two ports, which the card's cores route between; each message goes there and back.
    let replicated = |each: f64| (post + 2.0 * (2.0 * carried(72.0) + each) + 2500.0 + seen) / 1e3;
    let chain = |line, each, what| Some(hand(("12", "VI-C", what), (at("12", line, 1)?, replicated(each), 0.04), "us"));
    // Rows of four lines, of which a core has twenty lines under way.
    let reduced = || {
        let each = DISPATCH + 2.0 * SWITCH + 45.0 * 4.0 / 20.0 * DRAM;
        let what = "one core sums 45 rows while it waits for them, twenty lines at a time";
        Some(hand(("13b", "VI-D", what), (at("13b", "CPU", 1)?, 1e3 / each, 0.06), "M/s"))
    };
    let bound = || {
        let rate = at("13b", "CPU", 16)? * 45.0 * 256.0 / 1e3;
        Some(Trend {
            figures: "13b",
            section: "VI-D",
            what: "sixteen cores that load rows at random get half of the host's 120 GB/s at least, and no more than it has",
            // Queries differ, so that their mean is not quite what is asked for, and a hundredth of the rows is in the cache.
            holds: (60.0..1.05 * 120.0).contains(&rate),
            evidence: format!("{rate:.1} GB/s"),
        })
    };
    let rows = |line, rate: f64, beside, what| {
        let hand_rate = rate * 1e3 / ((30.0 * 4.0 + beside) * 64.0);
        Some(hand(("13a", "VI-D", what), (at("13a", line, 30)?, hand_rate, 0.08), "M/s"))
    };
    let alone = || {
        // Half an iteration is empty.
        let iterations = 30.0 / 16.0 + 0.5;
        let each = (STEP + COHERENT) + iterations * (STEP + COHERENT) + 30.0 * 256.0 / UPI + STEP;
        let what = "a query alone waits for its entry and for each iteration of 64 lines: a step and a read, and the link's time";
        Some(hand(("13a", "IV-C", what), (at("13a", "RAMBDA, one query at a time", 30)?, 1e3 / each, 0.06), "M/s"))
    };
    let watts = || {
        let watts = at("8", "CPU", GET_UNIFORM)? * 1e3 / at("III", "CPU", GET_UNIFORM)?;
        Some(hand(("8, III", "VI-B", "the CPU's server takes its 90 W and the rest's 35"), (watts, 125.0, 0.05), "W"))
    };
    let group = CARD_DISPATCH + CARD_TO_HOST + 90.0 + CARD_ISSUE;
    let log = PCIE_WRITE + 90.0 + SIGNAL + 2.0 * COHERENT + DOORBELL + PCIE_READ;
    vec![
        card(0, CARD, "a hundred loads by a card's core of its own memory"),
        card(100, CARD_TO_HOST, "a hundred reads by a card's core of the host's memory"),
        walks(
            1,
            16.0 * SWITCH + DRAM,
            "a core hands out sixteen walks, and goes through their nodes while others wait for DRAM",
        ),
        walks(
            2,
            4.0 * SWITCH + 2.0 * NVM,
            "of sixteen walks in persistent memory four wait until the first of twelve has loaded",
        ),
        link("RAMBDA", UPI, "a walk takes six lines of UPI"),
        link("RAMBDA-CXL", CXL, "a walk takes six lines of CXL"),
        media(lines),
        steps("RAMBDA-LD", "with DDR of its own the accelerator takes a walk's five steps, one a cycle"),
        steps("RAMBDA-LH", "with HBM of its own the accelerator takes a walk's five steps, one a cycle"),
        wire("RAMBDA", "the wire to the server is full of requests and pointers"),
        wire("RAMBDA-LD", "with DDR of its own the wire to the server is full of requests and pointers as well"),
        wire("RAMBDA-LH", "with HBM of its own the wire to the server is full of requests and pointers as well"),
        rung("RAMBDA", 1, "a doorbell for each reply bounds the rate"),
        rung("RAMBDA", 2, "a doorbell for two replies bounds the rate"),
        rung("RAMBDA-LD", 2, "with DDR of its own a doorbell for two replies bounds the rate"),
        round_trip(),
        card_store(),
        chain(
            "HyperLoop",
            group,
            "a group verb at two replicas: the card's core, its WRITE and its FLUSH, and what carries it",
        ),
        chain(
            "RAMBDA",
            log,
            "a log at two replicas: landing, signal, pointer, entry and doorbell, and what carries it",
        ),
        reduced(),
        bound(),
        rows("RAMBDA", UPI, 8.0, "thirty rows and eight lines more go over UPI"),
        rows("RAMBDA-LD", DDR, 0.0, "thirty rows come from DDR"),
        rows("RAMBDA-LH", HBM, 0.0, "thirty rows come from HBM"),
        alone(),
        watts(),
    ]
}

fn media(lines: &Lines<'_>) -> Option<Trend> {
    let what = "a walk in persistent memory loads three blocks of 256 B for its three lines";
    let model = lines.at("7", "RAMBDA-CXL", 2)?;
    Some(Trend::by_hand(("7", "III-D", what), (model, PERSISTENT * 1e3 / (3.0 * 256.0), 0.1), "M/s"))
}

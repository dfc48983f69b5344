//! DFabric's text beside the model.

use remora_model::platform::Platform;

use crate::reproduce::{Claim, Figure, Lines, Trend};

/// The rows.
const CLAIMS: &str = include_str!("../../../../studies/dfabric/claims.csv");

/// Figures that more than one check looks at.
const RESNET: &str = "9c";
const WORDS: &str = "9e";

/// The rows with the model's figures.
pub fn claims(figures: &[Figure], platform: &Platform) -> Vec<Claim> {
    let lines = Lines(figures);
    Claim::all(CLAIMS, |claim| {
        match value_of(&claim.id, &lines, platform) {
            Some(value) => claim.model = vec![value],
            None if claim.id == "DF-013" => {
                claim.missing = "arithmetic on links of 2048 and 200 Gb/s, which no figure has";
            }
            None => {}
        }
        claim.remark = match claim.id.as_str() {
            "DF-C2" => {
                "an A53 has three lines under way, 236 Mb/s: it would take six or seven, two cores that copy or a prefetcher"
            }
            "DF-065" => {
                "the model has the link bind: no gain at C, half at C/2 and below; the row's mean asks for less in between"
            }
            "DF-078" => "sizes and what lmbench's process does are not in the text",
            "DF-062" => "as many supersteps are run; each must be seen in the traffic",
            "DF-071" => "the interconnect's bandwidth is derived from this row",
            _ => "",
        };
    })
}

fn value_of(id: &str, lines: &Lines<'_>, platform: &Platform) -> Option<f64> {
    let (costs, accel) = (platform.rack.as_ref()?, platform.accel.as_ref()?);
    let (ethernet, switch) = (&platform.nic.as_ref()?.ethernet, platform.switch.as_ref()?);
    let at = |figure, line, x| lines.at(figure, line, x);
    Some(match id {
        "DF-016" => costs.hop as f64 / 1e3,
        "DF-022" | "DF-024" => lines.get("2", "DFabric")?.last()?.0,
        "DF-028" => accel.in_flight as f64,
        "DF-C2" => at("2", "DFabric, no DRAM cache", 10)? / at("2", "DFabric", 10)?,
        "DF-033" => costs.nodes as f64,
        "DF-039" => accel.read_latency as f64 / 1e6,
        "DF-040" => platform.dram.latency as f64 / 1e3,
        "DF-043" => accel.cache_size as f64 / 1e9,
        "DF-045" => costs.uplinks as f64,
        "DF-046" => switch.buffer as f64 / 1024.0,
        "DF-048" => ethernet.latency as f64 / 1e6,
        "DF-053" => ethernet.mtu as f64 / 1024.0,
        "DF-054" => ethernet.latency as f64 / accel.read_latency as f64,
        "DF-062" => peaks(&lines.get("13", "DFabric between racks")?) as f64,
        "DF-064" => saved(lines, RESNET, 8)?,
        "DF-065" => mean([1, 2, 4, 8].into_iter().map(|theta| saved(lines, RESNET, theta)))?,
        "DF-071" => at(WORDS, "DFabric between racks at the end, Mb/s", 8)?,
        "DF-078" => {
            let sizes = lines.get("11", "DFabric")?;
            mean(sizes.iter().map(|(x, _)| saved(lines, "11", *x as u64)))?
        }
        "DF-082" => at("IV", "between racks, C/2", 8)?,
        _ => return None,
    })
}

/// Per cent by which DFabric is below the baseline.
fn saved(lines: &Lines<'_>, figure: &str, x: u64) -> Option<f64> {
    Some(100.0 * (1.0 - lines.at(figure, "DFabric", x)? / lines.at(figure, "ToR", x)?))
}

fn mean(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let values: Vec<f64> = values.collect::<Option<_>>()?;
    Some(values.iter().sum::<f64>() / values.len().max(1) as f64)
}

/// How often traffic rises above half of its most, with a fall below a tenth in between: a dip amid a peak makes no second one.
fn peaks(traffic: &[(f64, f64)]) -> usize {
    let most = traffic.iter().map(|dot| dot.1).fold(0.0, f64::max);
    let mut count = 0;
    let mut low = true;
    for &(_, rate) in traffic {
        if low && rate > most / 2.0 {
            (count, low) = (count + 1, false);
        }
        low |= rate < most / 10.0;
    }
    count
}

/// What the text says about shapes.
pub fn trends(figures: &[Figure]) -> Vec<Trend> {
    let lines = Lines(figures);
    let all = [
        few_nics,
        pool,
        slow_memory,
        uncached,
        severity,
        training,
        subflows,
        order,
        capacity,
        references,
        kernels,
        trips,
        hops,
        links,
        one_uplink,
        lines_under_way,
        devices,
        small_queues,
        edges,
    ];
    all.into_iter().filter_map(|trend| trend(&lines)).collect()
}

fn few_nics(lines: &Lines<'_>) -> Option<Trend> {
    let [one, two, best] = [("ToR", 1), ("ToR", 2), ("interconnect alone", 1)].map(|(line, x)| lines.at("2", line, x));
    let (one, two, best) = (one?, two?, best?);
    Some(Trend {
        figures: "2",
        section: "2.2",
        what: "adding a NIC to each host leaves an all-reduce far from what the interconnect allows",
        holds: two > 2.0 * best && two < one,
        evidence: format!("{one:.0} ms with one NIC, {two:.0} ms with two, {best:.0} ms by the interconnect alone"),
    })
}

fn pool(lines: &Lines<'_>) -> Option<Trend> {
    let (ours, best) = (lines.at("2", "DFabric", 10)?, lines.at("2", "interconnect alone", 10)?);
    Some(Trend {
        figures: "2",
        section: "2.2",
        what: "with a pool of ten NICs DFabric comes near to the best there can be",
        holds: ours < 1.25 * best,
        evidence: format!("{ours:.0} ms, {:.2} times the interconnect alone", ours / best),
    })
}

fn slow_memory(lines: &Lines<'_>) -> Option<Trend> {
    let at = |line| lines.at("2", line, 10);
    let (fast, three, one) = (at("DFabric")?, at("DFabric, slow memory")?, at("DFabric, one slow device")?);
    Some(Trend {
        figures: "2",
        section: "2.3 (C1)",
        what: "memory with less bandwidth slows the pool down, and several devices of it less than one",
        holds: three > 1.2 * fast && one > 1.5 * three,
        evidence: format!("{fast:.0} ms; {three:.0} ms with three slow devices, {one:.0} ms with one"),
    })
}

fn uncached(lines: &Lines<'_>) -> Option<Trend> {
    let (with, without) = (lines.at("2", "DFabric", 10)?, lines.at("2", "DFabric, no DRAM cache", 10)?);
    Some(Trend {
        figures: "2",
        section: "2.3 (C2)",
        what: "hosts that load packets from far memory line by line take a multiple of the time",
        holds: without > 2.0 * with,
        evidence: format!("{with:.0} ms with the DRAM cache, {without:.0} ms without"),
    })
}

fn severity(lines: &Lines<'_>) -> Option<Trend> {
    let gains: Vec<(f64, f64)> = ["9a", "9b", "9c", "9d", "9e"]
        .iter()
        .map(|figure| Some((saved(lines, figure, 1)?, saved(lines, figure, 8)?)))
        .collect::<Option<_>>()?;
    let text = |(fast, slow): &(f64, f64)| format!("{fast:.0} and {slow:.0} %");
    Some(Trend {
        figures: "9",
        section: "6.2",
        what: "with NICs of an eighth of the interconnect's bandwidth DFabric saves much of every workload's communication",
        holds: gains.iter().all(|gain| gain.1 > 30.0),
        evidence: format!("at C and C/8: {}", gains.iter().map(text).collect::<Vec<_>>().join(", ")),
    })
}

fn training(lines: &Lines<'_>) -> Option<Trend> {
    let by: Vec<f64> = [1, 2, 4, 8].iter().map(|&theta| saved(lines, RESNET, theta)).collect::<Option<_>>()?;
    Some(Trend {
        figures: "9c",
        section: "2.2",
        what: "a ring has one node of a rack use the pool at a time: two NICs save half where NICs bind, and nothing at C",
        holds: by[0].abs() < 10.0 && by[3] > 40.0 && by.windows(2).all(|pair| pair[1] > pair[0]),
        evidence: by.iter().map(|saved| format!("{saved:.0} %")).collect::<Vec<_>>().join(", "),
    })
}

fn subflows(lines: &Lines<'_>) -> Option<Trend> {
    let at = |line| lines.at("10a", line, 4_194_304);
    let (all, one, nic) = (at("DFabric")?, at("DFabric, one subflow")?, at("DFabric, one NIC")?);
    Some(Trend {
        figures: "10a",
        section: "4.4",
        what: "the pool is of use only if there are enough subflows: one of them is as good as one NIC",
        holds: one > 1.5 * all && (one / nic - 1.0).abs() < 0.1,
        evidence: format!("{all:.0} ms, {one:.0} ms with one subflow, {nic:.0} ms with one NIC"),
    })
}

fn order(lines: &Lines<'_>) -> Option<Trend> {
    let part = lines.at("IV", "two streams, C/4, 3 NICs added", 5)?;
    Some(Trend {
        figures: "IV",
        section: "2.3 (C4)",
        what: "subflows that nobody puts together again make TCP slow down for nothing",
        holds: part < 0.99,
        evidence: format!("{part:.2} of the throughput"),
    })
}

fn capacity(lines: &Lines<'_>) -> Option<Trend> {
    let two = lines.get("12", "two streams, C/8")?;
    let each: Vec<f64> = two.iter().map(|(added, rate)| rate / (added + 2.0)).collect();
    let near = each.iter().all(|rate| (rate / each[0] - 1.0).abs() < 0.1);
    let one = lines.get("12", "one stream, C/8")?.last()?.1;
    Some(Trend {
        figures: "12",
        section: "6.1",
        what: "the pool's capacity is that of all its NICs, C/8 x (N + M); one node's is that of its own port",
        holds: near && one < 0.7 * two.last()?.1,
        evidence: format!("{:.0} Mb/s a NIC with none added, {:.0} with twelve", each[0], each.last()?),
    })
}

fn references(lines: &Lines<'_>) -> Option<Trend> {
    let by: Vec<f64> =
        lines.get("11", "DFabric")?.iter().map(|dot| saved(lines, "11", dot.0 as u64)).collect::<Option<_>>()?;
    Some(Trend {
        figures: "11",
        section: "6.3",
        what: "within a rack a reference is there before the packet would be",
        holds: by.iter().all(|saved| *saved > 0.0),
        evidence: by.iter().map(|saved| format!("{saved:.0} %")).collect::<Vec<_>>().join(", "),
    })
}

// Sums by hand, of the text's values and of those that platforms.md sets where it has none (section 5, tables 3 and 4). Their
// bounds are ours; so is the choice of what is summed up, which was made when it was known which mutants of the model no
// other trend saw.

/// What the kernel takes of a message in microseconds: to send, to be interrupted, to receive, to wake who waits.
const KERNEL: [f64; 4] = [8.0, 6.5, 12.0, 4.0];
/// A hop of the baseline, an access of the prototype's pool and one of commercial devices' in microseconds (Table 3, 6.4).
const HOP: f64 = 32.5;
const POOL: f64 = 6.5;
const COMMERCIAL: f64 = 0.25;
/// The interconnect's bandwidth in Mb/s: C (WordCount's row), and bytes of a packet with and without its headers.
const C: f64 = 1000.0;
const PACKET: (f64, f64) = (4096.0, 4096.0 + 82.0);

fn kernels(lines: &Lines<'_>) -> Option<Trend> {
    let one_way = lines.at("11", "DFabric, commercial", 64)? / 2.0;
    let what = "with commercial devices a message within a rack takes what its kernels take, and six short accesses";
    Some(Trend::by_hand(("11", "4.3, 6.4", what), (one_way, KERNEL.iter().sum::<f64>() + 6.0 * COMMERCIAL, 0.06), "us"))
}

fn trips(lines: &Lines<'_>) -> Option<Trend> {
    let [slow, fast] = ["DFabric", "DFabric, commercial"].map(|line| lines.at("11", line, 64));
    let what = "a reference goes over three accesses to the pool: written, looked at, told";
    Some(Trend::by_hand(("11", "3, 6.4", what), ((slow? - fast?) / 2.0, 3.0 * (POOL - COMMERCIAL), 0.15), "us"))
}

fn hops(lines: &Lines<'_>) -> Option<Trend> {
    let one_way = lines.at("11", "ToR between racks", 64)? / 2.0;
    let what = "between racks a message of the baseline takes what its kernels take, and two hops";
    Some(Trend::by_hand(("11", "5, Table 3", what), (one_way, KERNEL.iter().sum::<f64>() + 2.0 * HOP, 0.06), "us"))
}

fn links(lines: &Lines<'_>) -> Option<Trend> {
    let two = lines.at("12", "two streams, C/8", 0)?;
    let what = "a rack's NICs carry what their bandwidth leaves beside headers: two of C/8";
    Some(Trend::by_hand(("12", "5", what), (two, 2.0 * C / 8.0 * PACKET.0 / PACKET.1, 0.05), "Mb/s"))
}

fn one_uplink(lines: &Lines<'_>) -> Option<Trend> {
    let [tor, one] = ["ToR", "DFabric, one NIC"].map(|line| lines.at("10b", line, 65_536));
    let (tor, one) = (tor?, one?);
    Some(Trend {
        figures: "10b",
        section: "5, Table 3",
        what: "a ToR's one uplink is as slow as a pool of one NIC",
        holds: (tor / one - 1.0).abs() < 0.08,
        evidence: format!("{tor:.1} ms by the ToR, {one:.1} by one NIC"),
    })
}

fn lines_under_way(lines: &Lines<'_>) -> Option<Trend> {
    let two = lines.at("12", "two streams, C/8, no DRAM cache", 4)?;
    let what = "hosts without the DRAM cache load three lines of 64 B at a time, each after an access to the pool";
    Some(Trend::by_hand(("12", "2.3 (C2)", what), (two, 2.0 * 3.0 * 64.0 * 8.0 / POOL, 0.15), "Mb/s"))
}

fn devices(lines: &Lines<'_>) -> Option<Trend> {
    let two = lines.at("12", "two streams, C/8, slow memory", 4)?;
    let what = "three memory devices of 250 Mb/s each take every byte twice: as it comes, and as it goes";
    Some(Trend::by_hand(("12", "2.3 (C1)", what), (two, 3.0 * 250.0 / 2.0, 0.1), "Mb/s"))
}

fn small_queues(lines: &Lines<'_>) -> Option<Trend> {
    let part = lines.at("IV", "between racks, C/2", 8)?;
    Some(Trend {
        figures: "IV",
        section: "Table 4",
        what: "with TCP's small queues a stream between racks has half its throughput (the time between completions was fitted so)",
        holds: (part / 0.5 - 1.0).abs() < 0.15,
        evidence: format!("{part:.2} of the throughput"),
    })
}

fn edges(lines: &Lines<'_>) -> Option<Trend> {
    let traffic = lines.get("13", "DFabric between racks")?;
    let first = traffic.iter().find(|dot| dot.1 > 0.0)?.0;
    // LiveJournal's edges, by four nodes, at 40 M a second each.
    let computed = 69.0 / 4.0 / 40.0;
    Some(Trend {
        figures: "13",
        section: "6.2, 6.4",
        what: "before the first peak each node has gone through its quarter of LiveJournal's 69 M edges",
        holds: first - 1.0 <= computed * 10.0 && computed * 10.0 < first,
        evidence: format!("traffic from slice {first:.0} of 100 ms on; by hand {computed:.2} s"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dip_amid_a_peak_makes_no_second_one() {
        let rates = [0.0, 60.0, 100.0, 40.0, 90.0, 5.0, 0.0, 30.0, 80.0, 20.0, 70.0, 0.0];
        let traffic: Vec<(f64, f64)> = (0..).map(f64::from).zip(rates).collect();
        assert_eq!(peaks(&traffic), 2);
    }
}

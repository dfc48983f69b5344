//! The model beside what the paper's text says: its calibration rows, and the shapes that it describes.

mod streams;

use remora_model::platform::Platform;

use crate::reproduce::{Claim, Figure, Lines, Trend};

/// The rows of the paper that say how its system did, or that its figures hang on.
const ROWS: &str = include_str!("../../../../studies/strom/claims.csv");
/// The host's clock, as the paper prints it (7.2).
const CLOCK_GHZ: f64 = 3.6;

/// Growth of a line from its first point to its last, for each unit of x.
fn slope(line: &[(f64, f64)]) -> f64 {
    let (first, last) = (line[0], line[line.len() - 1]);
    (last.1 - first.1) / (last.0 - first.0)
}

fn most(line: &[(f64, f64)]) -> f64 {
    line.iter().map(|&(_, y)| y).fold(0.0, f64::max)
}

fn ratios(a: &[(f64, f64)], b: &[(f64, f64)]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a.1 / b.1).collect()
}

fn ends(values: &[f64]) -> (f64, f64) {
    (values.iter().copied().fold(f64::MAX, f64::min), values.iter().copied().fold(0.0, f64::max))
}

/// Each row with the model's figure.
pub fn claims(figures: &[Figure], platforms: &[Platform]) -> Vec<Claim> {
    let lines = Lines(figures);
    let platform = |name: &str| platforms.iter().find(|platform| platform.name == name);
    Claim::all(ROWS, |claim| {
        let id = claim.id.as_str();
        claim.model = value_of(id, &lines, platform("strom-10g"), platform("strom-100g")).unwrap_or_default();
        if matches!(id, "ST-081" | "ST-082") {
            claim.missing = "logic of an FPGA is not modelled";
        }
        claim.remark = match id {
            "ST-052" => "31 more misses of 80 ns are 2.5 us; the paper's longest list is not in its text",
            "ST-053" | "ST-055" | "ST-085" => "fitted to",
            "ST-054" => "the baseline's parameter",
            "ST-014" => "width times clock, both of which went in",
            "ST-075" => "the cost of a command is derived from this row",
            _ => "",
        };
    })
}

/// The model's figure for a row.
fn value_of(id: &str, lines: &Lines<'_>, slow: Option<&Platform>, fast: Option<&Platform>) -> Option<Vec<f64>> {
    let (slow_nic, fast_nic) = (slow?.nic.as_ref()?, fast?.nic.as_ref()?);
    Some(match id {
        // Width times clock, from the narrowest data path to the widest.
        "ST-014" => {
            let clock = slow_nic.pipeline.clock;
            [slow_nic.pipeline.width, fast_nic.pipeline.width].map(|width| width as f64 * clock * 8.0 / 1e9).to_vec()
        }
        "ST-011" => vec![slow_nic.pipeline.packet_cycles],
        "ST-068" => vec![slow_nic.pcie.bandwidth / slow_nic.ethernet.rate],
        "ST-069" => vec![fast_nic.pcie.bandwidth / fast_nic.ethernet.rate],
        "ST-072" => vec![slow_nic.ethernet.mtu as f64 / slow_nic.pipeline.width as f64],
        "ST-073" => vec![fast_nic.ethernet.mtu as f64 / fast_nic.pipeline.width as f64],
        "ST-047" => vec![slope(&lines.get("7", "StRoM")?)],
        "ST-052" => {
            let tcp = lines.get("7", "TCP RPC")?;
            vec![tcp[tcp.len() - 1].1 / tcp[0].1 - 1.0]
        }
        "ST-053" => vec![lines.get("8", "READ")?[0].1 - lines.get("8", "StRoM")?[0].1],
        "ST-054" => {
            let tcp = lines.get("8", "TCP RPC")?;
            vec![tcp.iter().rev().find(|(_, y)| *y <= tcp[0].1 * 1.01)?.0]
        }
        "ST-055" => {
            let (checked, plain) = (lines.get("9", "READ+SW")?, lines.get("9", "READ")?);
            vec![(checked[checked.len() - 1].1 / plain[plain.len() - 1].1 - 1.0) * 100.0]
        }
        "ST-067" => vec![fast_nic.pipeline.width as f64 / slow_nic.pipeline.width as f64],
        "ST-062" => vec![f64::from(1 << super::streams::PARTITION_BITS)],
        "ST-084" => vec![fast?.host.clock / 1e9],
        "ST-085" => vec![lines.get("13a", "CPU")?.last()?.1],
        // Where the line of the message rate meets that of the throughput.
        "ST-075" => {
            let gbit_per_s = most(&lines.get("12b", "WRITE")?);
            let messages = most(&lines.get("12c", "WRITE")?);
            vec![gbit_per_s * 1e9 / 8.0 / (messages * 1e6) / 1024.0]
        }
        _ => return None,
    })
}

/// The shapes that can be judged with the figures that were run.
pub fn trends(figures: &[Figure]) -> Vec<Trend> {
    let lines = Lines(figures);
    let mut all = Vec::new();
    all.extend(lists(&lines));
    all.extend(gets(&lines));
    all.extend(objects(&lines));
    all.extend(verbs(&lines));
    all.extend(streams::trends(&lines));
    all
}

fn lists(lines: &Lines<'_>) -> Vec<Trend> {
    let Some((read, kernel)) = lines.get("7", "READ").zip(lines.get("7", "StRoM")) else { return Vec::new() };
    let (trip, bus) = (slope(&read), slope(&kernel));
    let faster = ends(&ratios(&read, &kernel));
    let mut trends = vec![
        Trend {
            figures: "7",
            section: "6.2",
            what: "an element costs the kernel a PCIe round trip, and READs a network round trip beside it",
            holds: trip > 3.0 * bus,
            evidence: format!("{trip:.2} us an element by READ, {bus:.2} us by the kernel"),
        },
        Trend {
            figures: "7",
            section: "6.2",
            what: "the kernel on the NIC is faster than READs at every length",
            holds: faster.0 > 1.0,
            evidence: format!("{:.2} to {:.2} times as fast", faster.0, faster.1),
        },
    ];
    trends.push(Trend {
        figures: "7",
        section: "6.2",
        what: "an element costs the kernel a read over PCIe of around 1.5 us, and its own steps little beside it",
        holds: (1.35..1.8).contains(&bus),
        evidence: format!("{bus:.2} us an element"),
    });
    if let Some(tcp) = lines.get("7", "TCP RPC") {
        let element = slope(&tcp) * 1e3;
        trends.push(Trend {
            figures: "7",
            section: "6.2, footnote 7",
            what: "an element costs a call over TCP one miss of a core, roughly 80 ns",
            holds: (60.0..100.0).contains(&element),
            evidence: format!("{element:.0} ns an element"),
        });
        let (first, last) = (tcp[0].1 > kernel[0].1, tcp[tcp.len() - 1].1 < kernel[kernel.len() - 1].1);
        let (call, walk) = (tcp[0].1, kernel[0].1);
        trends.push(Trend {
            figures: "7",
            section: "6.2",
            what: "TCP RPC starts slower than the kernel and hardly grows, since a core's misses are short",
            holds: first && slope(&tcp) < bus / 10.0,
            evidence: format!(
                "{call:.1} against {walk:.1} us at one element; the lines {} by the longest list",
                if last { "cross" } else { "do not cross" }
            ),
        });
    }
    trends
}

fn gets(lines: &Lines<'_>) -> Vec<Trend> {
    let Some((read, kernel)) = lines.get("8", "READ").zip(lines.get("8", "StRoM")) else { return Vec::new() };
    let saved: Vec<f64> = read.iter().zip(&kernel).map(|(read, kernel)| read.1 - kernel.1).collect();
    let (least, largest) = ends(&saved);
    let mut trends = vec![Trend {
        figures: "8",
        section: "6.2",
        what: "one network round trip is saved, whatever the value's size",
        holds: least > 0.0 && largest - least < 0.25 * largest,
        evidence: format!("{least:.2} to {largest:.2} us saved"),
    }];
    if let Some(tcp) = lines.get("8", "TCP RPC") {
        let ratio = ends(&ratios(&tcp, &kernel));
        let growth = |line: &[(f64, f64)]| line[line.len() - 1].1 - line[0].1;
        let (tcp, ours) = (growth(&tcp), growth(&kernel));
        trends.push(Trend {
            figures: "8",
            section: "6.2",
            what: "TCP RPC is slower than the kernel at every size, and suffers more from long values",
            holds: ratio.0 > 1.0 && tcp > ours,
            evidence: format!(
                "{:.2} to {:.2} times the latency; grows {tcp:.1} against {ours:.1} us",
                ratio.0, ratio.1
            ),
        });
    }
    trends
}

fn objects(lines: &Lines<'_>) -> Vec<Trend> {
    let mut trends = Vec::new();
    if let (Some(read), Some(software), Some(kernel)) =
        (lines.get("9", "READ"), lines.get("9", "READ+SW"), lines.get("9", "StRoM"))
    {
        let largest = software.len() - 1;
        let (bytes, more) = (software[largest].0, software[largest].1 - read[largest].1);
        let cycles = more * 1e3 * CLOCK_GHZ / bytes;
        trends.push(Trend {
            figures: "9",
            section: "6.3",
            what: "a CRC by tables of bytes takes a core 3.5 to 4.5 cycles a byte (other literature)",
            holds: (3.4..4.7).contains(&cycles),
            evidence: format!("{cycles:.2} cycles of 3.6 GHz for each byte of the largest object"),
        });
        let overhead = |line: &[(f64, f64)]| ratios(line, &read).iter().map(|r| (r - 1.0) * 100.0).collect::<Vec<_>>();
        let (software, kernel) = (overhead(&software), overhead(&kernel));
        let grows = software.windows(2).all(|pair| pair[1] >= pair[0] - 0.5);
        let (last, ours) = (software[software.len() - 1], kernel[kernel.len() - 1]);
        trends.push(Trend {
            figures: "9",
            section: "6.3",
            what: "the software's checksum costs more the larger the object",
            holds: grows && last > software[0],
            evidence: format!("{:.1} % at the smallest, {last:.1} % at the largest", software[0]),
        });
        trends.push(Trend {
            figures: "9",
            section: "6.3",
            what: "for the largest object the check on the NIC costs less than the one in software",
            holds: ours < last,
            evidence: format!("{ours:.1} % over READ against {last:.1} %"),
        });
    }
    if let Some((software, kernel)) = lines.get("10", "READ+SW").zip(lines.get("10", "StRoM")) {
        let (network, bus) = (software[software.len() - 1].1 - software[0].1, kernel[kernel.len() - 1].1 - kernel[0].1);
        trends.push(Trend {
            figures: "10",
            section: "6.3",
            what: "a failed check costs the kernel a read over PCIe, and the software another network round trip",
            holds: network > 1.5 * bus,
            evidence: format!("{network:.2} us more at the highest rate by software, {bus:.2} us by the kernel"),
        });
    }
    trends
}

fn verbs(lines: &Lines<'_>) -> Vec<Trend> {
    let mut trends = Vec::new();
    // What a full packet's payload is of what it takes on the wire does not hang on the model: preamble and gap, Ethernet,
    // IP, UDP, BTH, ICRC and FCS are 82 B by their standards, and a full packet has 1408 B (StRoM 7.1).
    for (figure, section, gbit_per_s) in [("5b", "6.1", 10.0), ("12b", "7.1", 100.0)] {
        let Some((write, read)) = lines.get(figure, "WRITE").zip(lines.get(figure, "READ")) else { continue };
        let line = gbit_per_s * 1408.0 / (1408.0 + 82.0);
        let (write, read) = (most(&write) / line, most(&read) / line);
        trends.push(Trend {
            figures: if figure == "5b" { "5b" } else { "12b" },
            section,
            what: "long messages go at line rate, both ways, and none faster",
            holds: [write, read].iter().all(|part| (0.95..1.005).contains(part)),
            evidence: format!("WRITE {:.1} %, READ {:.1} % of {line:.1} Gbit/s", write * 100.0, read * 100.0),
        });
    }
    if let Some((write, read)) = lines.get("5a", "WRITE").zip(lines.get("5a", "READ")) {
        let (per_byte, wire) = (slope(&write) * 1e3, 0.8);
        trends.push(Trend {
            figures: "5a",
            section: "4.1, 6.1",
            what: "a byte takes its time on the wire, and as long again on each side, where the ICRC holds a packet until it \
                   is whole; PCIe is six times as fast and adds little",
            holds: (3.0 * wire..4.0 * wire).contains(&per_byte),
            evidence: format!("{per_byte:.2} ns a byte, {:.2} times that on the wire", per_byte / wire),
        });
        let apart = read[0].1 - write[0].1;
        trends.push(Trend {
            figures: "5a",
            section: "6.1, 6.2",
            what: "a READ goes there and back where half of a ping-pong goes there: half a network round trip of around 5 us \
                   lies between them",
            holds: (2.0..3.0).contains(&apart),
            evidence: format!("{apart:.2} us"),
        });
    }
    for series in ["WRITE", "READ"] {
        let Some((slow, fast)) = lines.get("5a", series).zip(lines.get("12a", series)) else { continue };
        let (least, largest) = ends(&ratios(&slow, &fast));
        trends.push(Trend {
            figures: "5a, 12a",
            section: "7",
            what: "a faster clock and a wider data path lower the latency, more so for longer payloads",
            holds: least > 1.0 && slope(&slow) > 3.0 * slope(&fast),
            evidence: format!("{series}: {least:.2} to {largest:.2} times lower"),
        });
    }
    if let Some(rate) = lines.get("12c", "WRITE") {
        let short: Vec<f64> = rate.iter().filter(|(x, _)| *x <= 1024.0).map(|(_, y)| *y).collect();
        let (least, largest) = ends(&short);
        let binding = lines.detail("12c", "WRITE", 64).unwrap_or_default();
        trends.push(Trend {
            figures: "12c",
            section: "4.1, 7.1",
            what: "short messages are limited by the host that issues commands, not by the NIC",
            holds: least > 0.95 * largest && binding.starts_with("client cores"),
            evidence: format!("{least:.2} to {largest:.2} M/s up to 1 KB; busiest: {binding}"),
        });
    }
    trends
}

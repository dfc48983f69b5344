//! What the text says about streams and about checks that fail: figures 9 and 10 with failures, 11 and 13.

use super::{ends, most, ratios};
use crate::reproduce::{Lines, Trend};

pub(super) fn trends(lines: &Lines<'_>) -> Vec<Trend> {
    let mut all = failures(lines);
    all.extend(shuffles(lines));
    all.extend(fast_shuffle(lines));
    all.extend(scattered(lines));
    all.extend(counts(lines));
    all.extend(resident(lines));
    all.extend(counted_writes(lines));
    all
}

fn failures(lines: &Lines<'_>) -> Vec<Trend> {
    let mut trends = Vec::new();
    let line = |name: &str, rate: &str| lines.get("9f", &format!("{name} {rate}"));
    if let [Some(software), Some(more_software), Some(kernel), Some(more_kernel)] =
        [line("READ+SW", "10 %"), line("READ+SW", "50 %"), line("StRoM", "10 %"), line("StRoM", "50 %")]
    {
        let added = |few: &[(f64, f64)], many: &[(f64, f64)]| -> Vec<f64> {
            few.iter().zip(many).map(|(few, many)| many.1 - few.1).collect()
        };
        let (network, bus) = (added(&software, &more_software), added(&kernel, &more_kernel));
        let ratio = ends(&network.iter().zip(&bus).map(|(network, bus)| network / bus).collect::<Vec<_>>());
        trends.push(Trend {
            figures: "9f",
            section: "6.3",
            what: "objects that fail more often cost the software more than the kernel, at every size",
            holds: ratio.0 > 1.0,
            evidence: format!("from 10 to 50 % failing: {:.2} to {:.2} times as much more", ratio.0, ratio.1),
        });
    }
    if let Some(kernel) = lines.get("10", "StRoM") {
        // A look that fails with chance p makes 1 / (1 - p) looks on average.
        let (first, last) = (kernel[0], kernel[kernel.len() - 1]);
        let per_look: Vec<f64> =
            kernel[1..].iter().map(|(x, y)| (y - first.1) / (1.0 / (1.0 - x / 100.0) - 1.0)).collect();
        let (least, largest) = ends(&per_look[per_look.len() / 2..]);
        trends.push(Trend {
            figures: "10",
            section: "6.3",
            what: "latency grows with the mean number of looks, 1 / (1 - p)",
            holds: largest < 1.15 * least,
            evidence: format!("{least:.2} to {largest:.2} us for each look more, up to {:.0} %", last.0),
        });
    }
    trends
}

fn shuffles(lines: &Lines<'_>) -> Vec<Trend> {
    let [Some(kernel), Some(write), Some(sender)] = ["StRoM", "WRITE", "SW + WRITE"].map(|name| lines.get("11", name))
    else {
        return Vec::new();
    };
    let (over_write, over_kernel) = (ends(&ratios(&kernel, &write)), ends(&ratios(&sender, &kernel)));
    let per_mib = |line: &[(f64, f64)]| (line[line.len() - 1].1 - line[0].1) / (line[line.len() - 1].0 - line[0].0);
    // What partitioning adds, by the values that pass.
    let rate = f64::from(1 << 20) / (per_mib(&sender) - per_mib(&write)) / 1e6;
    vec![
        Trend {
            figures: "11",
            section: "6.4",
            what: "one thread of the sender partitions through write-combining buffers at 2 to 3 GB/s (other literature)",
            holds: (1.9..3.1).contains(&rate),
            evidence: format!("{rate:.2} GB/s"),
        },
        Trend {
            figures: "11",
            section: "6.4",
            what: "the kernel partitions what arrives at line rate: it costs what a plain WRITE costs",
            holds: over_write.1 < 1.1,
            evidence: format!("{:.3} to {:.3} times a WRITE", over_write.0, over_write.1),
        },
        Trend {
            figures: "11",
            section: "6.4",
            what: "a sender that partitions before it WRITEs takes longer at every size: the lines do not cross",
            holds: over_kernel.0 > 1.0,
            evidence: format!(
                "{:.2} to {:.2} times the kernel; {:.0} us a MiB against {:.0}",
                over_kernel.0,
                over_kernel.1,
                per_mib(&sender) * 1e3,
                per_mib(&kernel) * 1e3
            ),
        },
    ]
}

/// Gbit/s of PCIe Gen3 x16, and bytes of a packet on it beside its payload (Neugebauer et al., SIGCOMM 2018).
const PCIE: f64 = 126.0;
const TLP: f64 = 24.0;

/// What of PCIe is payload of writes, or of reads' completions, of so many bytes in packets of at most 256.
fn payload_of_pcie(bytes: f64) -> f64 {
    PCIE * bytes / (bytes + TLP * (bytes / 256.0).ceil())
}

fn fast_shuffle(lines: &Lines<'_>) -> Option<Trend> {
    let (kernel, write) = (lines.get("11", "StRoM 100 G")?.pop()?.1, lines.get("11", "WRITE 100 G")?.pop()?.1);
    Some(Trend {
        figures: "11",
        section: "7",
        what: "at 100 Gbit/s the kernel's writes to random places leave too little of PCIe to keep up with the network",
        holds: kernel > 1.1 * write,
        evidence: format!(
            "{:.3} times a WRITE of the same; with their headers alone writes of 128 B find {:.0} Gbit/s on PCIe",
            kernel / write,
            payload_of_pcie(128.0)
        ),
    })
}

fn scattered(lines: &Lines<'_>) -> Vec<Trend> {
    let short = lines.at("11w", "StRoM 100 G", 64).map(|model| {
        let what = "scattered writes of 64 B are bound by PCIe, by their headers";
        Trend::by_hand(("11w", "6.4, 7", what), (model, payload_of_pcie(64.0), 0.05), "Gbit/s")
    });
    let slow = lines.get("11w", "StRoM 10 G").map(|slow| {
        let (least, largest) = ends(&slow.iter().map(|(_, y)| *y).collect::<Vec<_>>());
        Trend {
            figures: "11w",
            section: "6.4, 7",
            what: "at 10 Gbit/s, with PCIe six times as fast as the network, the size of a scattered write does not matter",
            holds: least > 0.97 * largest,
            evidence: format!("{least:.2} to {largest:.2} Gbit/s"),
        }
    });
    short.into_iter().chain(slow).collect()
}

/// One of the NIC's kernels reads 4 KB at a time; more requests than its tags allow wait.
fn resident(lines: &Lines<'_>) -> Vec<Trend> {
    let Some((threads, nic)) = lines.get("13a", "CPU, resident").zip(lines.get("13a", "StRoM, resident")) else {
        return Vec::new();
    };
    let what = "over data in the host's memory the kernel is bound by PCIe alone, by the headers of what it reads";
    let by_hand = Trend::by_hand(("13a", "5.2, 7", what), (most(&nic), payload_of_pcie(512.0), 0.05), "Gbit/s");
    let Some(arriving) = lines.get("13a", "CPU") else { return vec![by_hand] };
    let (least, largest) = ends(&ratios(&threads, &arriving));
    let cores = Trend {
        figures: "13a",
        section: "7.2",
        what: "what threads hash binds them, wherever the data come from",
        holds: least > 0.9 && largest < 1.1,
        evidence: format!("{least:.2} to {largest:.2} times as much of resident data as of arriving ones"),
    };
    vec![by_hand, cores]
}

fn counts(lines: &Lines<'_>) -> Vec<Trend> {
    let Some((threads, nic)) = lines.get("13a", "CPU").zip(lines.get("13a", "StRoM")) else { return Vec::new() };
    let grows = threads.windows(2).all(|pair| pair[1].1 > pair[0].1);
    let (one, all) = (threads[0].1, threads[threads.len() - 1].1);
    let alone = threads.get(3).map_or(0.0, |four| four.1);
    // Cycles of a value of 8 B.
    let cycles = 8.0 * 8.0 * super::CLOCK_GHZ / one;
    vec![
        Trend {
            figures: "13a",
            section: "7.2",
            what: "four cores: four threads do four times what one does, and four more, which share cores, add less than half \
                   of that",
            holds: alone > 3.8 * one && all - alone < alone / 2.0,
            evidence: format!("{one:.1}, {alone:.1} and {all:.1} Gbit/s by one, four and eight threads"),
        },
        Trend {
            figures: "13a",
            section: "7.2",
            what: "hash and register of a value take a core 24 to 72 cycles (other literature)",
            holds: (24.0..72.0).contains(&cycles),
            evidence: format!("{cycles:.0} cycles of 3.6 GHz a value by one thread"),
        },
        Trend {
            figures: "13a",
            section: "7.2",
            what: "the host needs all its eight threads for what it reaches",
            holds: grows,
            evidence: format!("{one:.1} Gbit/s by one thread, {all:.1} by eight"),
        },
        Trend {
            figures: "13a",
            section: "7, 7.2",
            what: "the kernel on the NIC takes what 100 Gbit/s bring, more than all threads of the host",
            holds: most(&nic) > 90.0 && most(&nic) > all,
            evidence: format!("{:.1} Gbit/s, {:.1} times eight threads", most(&nic), most(&nic) / all),
        },
    ]
}

fn counted_writes(lines: &Lines<'_>) -> Vec<Trend> {
    let Some((plain, counted)) = lines.get("13b", "WRITE").zip(lines.get("13b", "WRITE + HLL")) else {
        return Vec::new();
    };
    let (least, largest) = ends(&ratios(&counted, &plain));
    let full = most(&counted);
    let from = counted.iter().find(|(_, y)| *y > 0.95 * full).map_or(0.0, |(x, _)| *x);
    let binding = lines.detail("13b", "WRITE + HLL", 64).unwrap_or_default();
    vec![
        Trend {
            figures: "13b",
            section: "3.2, 7.2",
            what: "a sketch in the way of WRITEs leaves their throughput as it is",
            holds: least > 0.97,
            evidence: format!("{least:.3} to {largest:.3} times that of WRITEs alone"),
        },
        Trend {
            figures: "13b",
            section: "7.1",
            what: "messages shorter than 2 KB are limited by the host that issues commands, longer ones by the wire",
            holds: from == 2048.0 && binding.starts_with("client cores"),
            evidence: format!("{full:.1} Gbit/s at most, 95 % of it from {from} B on; at 64 B busiest: {binding}"),
        },
    ]
}

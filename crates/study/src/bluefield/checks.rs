//! The model beside what the paper's text says: its calibration rows, and the shapes that it describes.

use remora_kernel::btree::{Plan, children};
use remora_model::platform::Platform;

use super::point::shape;
use super::sums;
use crate::reproduce::{Claim, Figure, Lines, Trend};

/// The rows of the paper that say how its systems did, or that its figures hang on.
const ROWS: &str = include_str!("../../../../studies/bluefield/claims.csv");
/// What is over so much more than without misses of translations shows.
const SHOWS: f64 = 1.1;

/// Each row with the model's figure.
pub fn claims(figures: &[Figure], platforms: &[Platform]) -> Vec<Claim> {
    let lines = Lines(figures);
    Claim::all(ROWS, |claim| {
        claim.model = of_platform(&claim.id, platforms).or_else(|| of_figure(&claim.id, &lines)).unwrap_or_default();
        claim.remark = match claim.id.as_str() {
            "AD-049" => "the two PCIe latencies are derived from this row",
            "AD-061" => "children of 4 B in nodes with a header of 32 B; the paper's are 8 B",
            "AD-043" => "from AD-041 and AD-042",
            _ => "",
        };
    })
}

/// The model's figure for a row that a platform has.
fn of_platform(id: &str, platforms: &[Platform]) -> Option<Vec<f64>> {
    let find = |name: &str| platforms.iter().find(|platform| platform.name == name);
    let (one, two) = (find("bluefield1")?, find("bluefield2")?);
    let cards = [one, two].map(|platform| platform.nic_cores.as_ref().zip(platform.card.as_ref()));
    let [(old_cores, old), (cores, new)] = [cards[0]?, cards[1]?];
    Some(vec![match id {
        "AD-001" => old.machine.clock / 1e6,
        "AD-002" => new.machine.clock / 1e9,
        "AD-003" => (old_cores.cores + cores.cores) as f64 / 2.0,
        "AD-006" => (old.private.l1_size + new.private.l1_size) as f64 / 2048.0,
        "AD-007" => (old.private.l2_size + new.private.l2_size) as f64 / 2.0 / f64::from(1 << 20),
        "AD-008" => old_cores.cache_size as f64 / 1e6,
        "AD-009" => cores.cache_size as f64 / 1e6,
        "AD-018" => two.cache.size as f64 / 1e6,
        "AD-024" => two.nic.as_ref()?.ethernet.rate * 8.0 / 1e9,
        "AD-029" => new.machine.clock / old.machine.clock,
        "AD-048" => two.nic.as_ref()?.pipeline.inline as f64,
        _ => return None,
    }])
}

/// The model's figure for a row that a figure shows.
fn of_figure(id: &str, lines: &Lines<'_>) -> Option<Vec<f64>> {
    let calls = || lines.at("2", "BlueField-2, look-ups", 1);
    let local = |keys| lines.at("5", "BlueField-2, look-ups", keys);
    let split = |share| lines.at("4", "1 M, look-ups", share);
    let levels = |node_bytes| Plan::new(shape(node_bytes), KEYS).height() as f64;
    Some(vec![match id {
        "AD-036" => lines.at("3", "BlueField-1", 8)? / lines.at("3", "BlueField-1", 2)?,
        "AD-041" => calls().or_else(|| split(100))?,
        "AD-042" => local(1)?,
        "AD-043" => (1.0 - calls()? / local(1)?) * 100.0,
        "AD-045" => local(256)?,
        "AD-049" => lines.at("7", "host", 32)? - lines.at("7", "BlueField-2", 32)?,
        "AD-056" => {
            let (small, large) = (lines.get("8", "BlueField-2")?, lines.get("8", "BlueField-2, 2 MB")?);
            small.iter().zip(&large).find(|(small, large)| small.1 > SHOWS * large.1)?.0.0 / 1024.0
        }
        "AD-058" => lines.at("9", "2048 B", 0)?,
        "AD-061" => children(512) as f64,
        "AD-062" => levels(512),
        "AD-063" => levels(2048),
        "AD-071" => split(0)? / split(100)?,
        "AD-072" => lines.at("11", "BlueField-2", 16)?,
        _ => return None,
    }])
}

/// Keys of the largest tree.
const KEYS: u64 = 256_000_000;

/// The shapes that can be judged with the figures that were run.
pub fn trends(figures: &[Figure]) -> Vec<Trend> {
    let lines = Lines(figures);
    let all =
        [cards(&lines), threads(&lines), splits(&lines), sends(&lines), memory(&lines), reads(&lines), numbers(&lines)];
    all.into_iter().flatten().flatten().chain(sums::sums(&lines)).collect()
}

fn ends(line: &[(f64, f64)]) -> (f64, f64) {
    (line[0].1, line[line.len() - 1].1)
}

fn cards(lines: &Lines<'_>) -> Option<Vec<Trend>> {
    let (old, new) = (lines.get("2", "BlueField-1, look-ups")?, lines.get("2", "BlueField-2, look-ups")?);
    let ((first, last), mixed) = (ends(&new), lines.at("2", "BlueField-2, mixed", 1)?);
    let (old_1, faster) = (old[0].1, new[0].1 / old[0].1);
    Some(vec![
        Trend {
            figures: "2",
            section: "4.1.1",
            what: "a BlueField-2 answers more than a BlueField-1, by more than its clock is faster",
            holds: faster > 3.0,
            evidence: format!("{faster:.2} times {old_1:.2} M/s of 1 M keys"),
        },
        Trend {
            figures: "2",
            section: "4.1.1",
            what: "larger trees are slower, as reads and writes are more sparse",
            holds: last < first,
            evidence: format!("{first:.2} M/s of 1 M keys, {last:.2} M/s of 256 M"),
        },
        Trend {
            figures: "2",
            section: "4",
            what: "optimistic lock coupling lets look-ups scale: they are not slower than updates among them",
            holds: first >= mixed,
            evidence: format!("{first:.2} M/s, {mixed:.2} M/s with half updates"),
        },
    ])
}

fn threads(lines: &Lines<'_>) -> Option<Vec<Trend>> {
    let new = ends(&lines.get("3", "BlueField-2")?);
    let grows = new.1 / new.0;
    Some(vec![Trend {
        figures: "3",
        section: "4.1.1",
        what: "it is the BlueField-1 alone that does not scale to eight threads",
        holds: grows > 3.5,
        evidence: format!("BlueField-2: {grows:.2} times from 2 to 8 threads"),
    }])
}

fn splits(lines: &Lines<'_>) -> Option<Vec<Trend>> {
    let line = lines.get("4", "1 M, look-ups")?;
    let ((host, card), most) = (ends(&line), line.iter().map(|dot| dot.1).fold(0.0, f64::max));
    Some(vec![Trend {
        figures: "4",
        section: "4.1.2",
        what: "the card alone is slower than the host alone; a split adds its cores to the host's",
        holds: card < host && most > host,
        evidence: format!("{host:.2} M/s on the host, {card:.2} M/s on the card, {most:.2} M/s at the best split"),
    }])
}

fn sends(lines: &Lines<'_>) -> Option<Vec<Trend>> {
    let saved = |inline: &str, bytes| -> Option<f64> {
        Some(lines.at("7", &format!("host{inline}"), bytes)? - lines.at("7", &format!("BlueField-2{inline}"), bytes)?)
    };
    let (inline, fetched) = (saved(", inline", 32)?, saved("", 32)?);
    let longer = saved(", inline", 512)?;
    Some(vec![
        Trend {
            figures: "7",
            section: "4.2.2",
            what: "messages reach the card earlier than the host",
            holds: fetched > 0.0 && inline > 0.0,
            evidence: format!("{inline:.2} us earlier inline, {fetched:.2} us if the NIC fetches 32 B"),
        },
        Trend {
            figures: "7",
            section: "4.2.2",
            what: "what is inline has no payload to be fetched over PCIe, so that less is saved; beyond 236 B all is fetched",
            holds: inline < fetched && (longer - saved("", 512)?).abs() < 0.05,
            evidence: format!("{inline:.2} us inline, {fetched:.2} us not; {longer:.2} us at 512 B"),
        },
    ])
}

fn reads(lines: &Lines<'_>) -> Option<Vec<Trend>> {
    let mut trends = Vec::new();
    if let (Some(small), Some(large)) = (lines.get("9", "512 B"), lines.get("9", "2048 B")) {
        let (host, card) = ends(&large);
        trends.push(Trend {
            figures: "9",
            section: "5.1",
            what: "one-sided READs have the same throughput wherever the tree is",
            holds: (card / host - 1.0).abs() < 0.15,
            evidence: format!("2048 B: {host:.2} M/s on the host, {card:.2} M/s on the card"),
        });
        trends.push(Trend {
            figures: "9",
            section: "5.1",
            what: "nodes of 2048 B have the best throughput",
            holds: host > small[0].1,
            evidence: format!("{host:.2} M/s, {:.2} M/s with 512 B", small[0].1),
        });
    }
    let line = lines.get("10", "BlueField-2, 256 M")?;
    let at = |bytes: f64| line.iter().find(|dot| dot.0 == bytes).map(|dot| dot.1);
    let (small, large) = (at(512.0)?, at(2048.0)?);
    trends.push(Trend {
        figures: "10",
        section: "5.2",
        what: "a READ of 512 B is quicker than one of 2048 B, but not by as much as another level costs",
        holds: large < small,
        evidence: format!("256 M keys on the card: {small:.1} us with 512 B, {large:.1} us with 2048 B"),
    });
    Some(trends)
}

fn numbers(lines: &Lines<'_>) -> Option<Vec<Trend>> {
    let of = |figure| Some((lines.at(figure, "host", LAST)?, lines.at(figure, "BlueField-2", LAST)?));
    let (host, card) = (lines.at("11", "host", 16)?, lines.at("11", "BlueField-2", 16)?);
    let mut trends = vec![Trend {
        figures: "11",
        section: "6.1",
        what: "a word that is nearer to the NIC takes more atomic operations",
        holds: card > host,
        evidence: format!("{host:.2} M/s on the host, {card:.2} M/s on the card"),
    }];
    if let Some((host, card)) = of("12") {
        trends.push(Trend {
            figures: "12",
            section: "6.2",
            what: "by calls the host is ahead: its cores are faster",
            holds: host > card,
            evidence: format!("{host:.2} M/s on the host, {card:.2} M/s on the card"),
        });
    }
    Some(trends)
}

/// Most threads of figure 12.
const LAST: u64 = 8;

fn memory(lines: &Lines<'_>) -> Option<Vec<Trend>> {
    let (host, card) = (lines.get("8", "host")?, lines.get("8", "BlueField-2")?);
    let last = host.len() - 1;
    let at = |line: &[(f64, f64)], kib: f64| line.iter().find(|(x, _)| *x == kib).map(|(_, y)| *y);
    let (host_16, card_16) = (at(&host, 16384.0)?, at(&card, 16384.0)?);
    Some(vec![
        Trend {
            figures: "8",
            section: "4.2.3",
            what: "of a large block the card's cores read later than the host's",
            holds: card[last].1 > host[last].1,
            evidence: format!("{:.0} ns against {:.0} ns at 64 MiB", card[last].1, host[last].1),
        },
        Trend {
            figures: "8",
            section: "4.2.3",
            what: "between the two last levels, 6 MiB and 24 MiB, the card reads memory and the host its cache",
            holds: card_16 > 2.0 * host_16,
            evidence: format!("{card_16:.0} ns against {host_16:.0} ns at 16 MiB"),
        },
    ])
}

//! The model beside what the paper's text says: its calibration rows, and the shapes that it describes.

use remora_model::platform::Platform;

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
    Some(vec![match id {
        "AD-056" => {
            let (small, large) = (lines.get("8", "BlueField-2")?, lines.get("8", "BlueField-2, 2 MB")?);
            small.iter().zip(&large).find(|(small, large)| small.1 > SHOWS * large.1)?.0.0 / 1024.0
        }
        _ => return None,
    }])
}

/// The shapes that can be judged with the figures that were run.
pub fn trends(figures: &[Figure]) -> Vec<Trend> {
    let lines = Lines(figures);
    memory(&lines).unwrap_or_default()
}

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

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
const RATIO: &str = "fitted to; both wait for the same persist, and more clients fill MINOS-B's cores, but MINOS-O's \
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

/// What the text says of shapes.
pub(super) fn trends(figures: &[Figure]) -> Vec<Trend> {
    let lines = Lines(figures);
    [lowest_share(&lines), enough_entries(&lines)].into_iter().flatten().collect()
}

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

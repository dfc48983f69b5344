//! The model beside what the paper's text says.

use remora_model::platform::Platform;

use super::{Figure, Outcome};
use crate::reproduce::{Claim, Trend};

/// The rows of the paper that say how its system did, or that its figures hang on.
const ROWS: &str = include_str!("../../../../studies/minos/claims.csv");
/// Models, as series name them.
const MODELS: [&str; 5] = ["synch", "strict", "renf", "event", "scope"];
/// The default share of writes.
const WRITES: u64 = 50;

fn figure<'a>(figures: &'a [Figure], number: &str) -> Option<&'a Figure> {
    figures.iter().find(|figure| figure.study.figure == number)
}

impl Figure {
    /// A line by its name: x, what is shown, and all that came.
    fn line(&self, name: &str) -> Vec<(u64, f64, &Outcome)> {
        let number = self.study.series.iter().position(|series| series.name == name);
        let dots = number.and_then(|number| self.lines.get(number)).into_iter().flatten();
        self.study.x.values.iter().zip(dots).map(|(&x, (y, outcome))| (x, *y, outcome)).collect()
    }

    fn at(&self, name: &str, x: u64) -> Option<f64> {
        self.line(name).into_iter().find(|dot| dot.0 == x).map(|dot| dot.1)
    }
}

/// All rows.
pub(super) fn claims(figures: &[Figure], platform: &Platform) -> Vec<Claim> {
    ROWS.lines().skip(1).filter_map(|row| claim(row, figures, platform)).collect()
}

fn claim(row: &str, figures: &[Figure], platform: &Platform) -> Option<Claim> {
    let cells: Vec<&str> = row.split(',').collect();
    let &[id, section, about, metric, low, high, unit, kind] = cells.as_slice() else { return None };
    let (mut missing, mut remark) = ("figure not run", "");
    let model = match id {
        "MI-006" => shares(figures),
        "MI-046" => {
            remark = "offload saves two PCIe crossings, but its cores are slower and its FIFOs fill under load";
            ratio(figures).into_iter().collect()
        }
        "MI-035" => {
            missing = "no machine of that kind here";
            Vec::new()
        }
        _ => parameter(id, platform).into_iter().collect(),
    };
    Some(Claim {
        id: id.into(),
        section: section.into(),
        about: about.into(),
        metric: metric.into(),
        unit: unit.into(),
        low: low.parse().ok()?,
        high: high.parse().ok()?,
        result: kind == "result",
        model,
        missing,
        remark,
    })
}

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
        "MI-031" => r.vfifo_entries as f64,
        "MI-032" => ns(r.send_inv),
        "MI-033" => ns(r.send_ack),
        "MI-034" => ns(r.send_gap),
        _ => return None,
    })
}

/// The least and the largest share of communication of the five models' writes, in per cent.
fn shares(figures: &[Figure]) -> Vec<f64> {
    let Some(figure) = figure(figures, "4") else { return Vec::new() };
    let share = |model: &&str| {
        let (_, _, outcome) = figure.line(model).into_iter().find(|dot| dot.0 == WRITES)?;
        Some(100.0 * outcome.communication_ns / outcome.write_ns)
    };
    let shares: Vec<f64> = MODELS.iter().filter_map(share).collect();
    let least = shares.iter().copied().fold(f64::MAX, f64::min);
    if shares.is_empty() { Vec::new() } else { vec![least, shares.iter().copied().fold(0.0, f64::max)] }
}

/// The mean over models and workloads of the write latency of MINOS-B over MINOS-O.
fn ratio(figures: &[Figure]) -> Option<f64> {
    let figure = figure(figures, "9a")?;
    let ratios: Vec<f64> = MODELS
        .iter()
        .flat_map(|model| {
            let (b, o) = (figure.line(&format!("B {model}")), figure.line(&format!("O {model}")));
            b.iter().zip(&o).map(|(b, o)| b.1 / o.1).collect::<Vec<_>>()
        })
        .collect();
    Some(ratios.iter().sum::<f64>() / ratios.len().max(1) as f64)
}

/// What the text says of shapes.
pub(super) fn trends(figures: &[Figure]) -> Vec<Trend> {
    [lowest_share(figures), enough_entries(figures)].into_iter().flatten().collect()
}

fn lowest_share(figures: &[Figure]) -> Option<Trend> {
    let figure = figure(figures, "4")?;
    let share = |model: &str| {
        let all = figure.at(model, WRITES)?;
        Some(figure.at(&format!("{model} communication"), WRITES)? / all)
    };
    let shares: Vec<(f64, &str)> = MODELS.iter().filter_map(|model| Some((share(model)?, *model))).collect();
    let (synch, event) = (share("synch")?, share("event")?);
    Some(Trend {
        figures: "4",
        section: "IV",
        what: "the persist in its path gives synch a lower share of communication than event",
        holds: synch < event,
        evidence: shares
            .iter()
            .map(|(share, model)| format!("{model} {:.0} %", share * 100.0))
            .collect::<Vec<_>>()
            .join(", "),
    })
}

fn enough_entries(figures: &[Figure]) -> Option<Trend> {
    let figure = figure(figures, "13")?;
    let (three, five) = (figure.at("O", 3)?, figure.at("O", 5)?);
    Some(Trend {
        figures: "13",
        section: "VIII-E",
        what: "three to five entries are as good as any number",
        holds: three < 1.05 && five < 1.05,
        evidence: format!("{three:.3} and {five:.3} of the latency without bound"),
    })
}

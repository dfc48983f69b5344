//! Prediction beside measurement.

use serde::Serialize;

use crate::measure::{Link, Operation, Placement, Row};
use crate::verdict::groups;

/// Medians closer than this are level, as in the report.
const LEVEL: f64 = 1.05;

/// One operation, parameter, link and placement: medians over the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// What was done.
    pub operation: Operation,
    /// List elements, or bytes of the value.
    pub parameter: Option<u64>,
    /// The way that packets took.
    pub link: Link,
    /// Where the kernel ran.
    pub placement: Placement,
    /// Median latency with 1 in flight in nanoseconds: predicted, measured.
    pub p50_ns: (f64, f64),
    /// Operations a second with 64 in flight: predicted, measured.
    pub ops_per_s: (f64, f64),
}

impl Cell {
    /// How far the predicted latency lies from the measured one, as a part of it: positive if it is too long.
    pub fn latency_error(&self) -> f64 {
        self.p50_ns.0 / self.p50_ns.1 - 1.0
    }

    /// The same of the rate: positive if it is too high.
    pub fn rate_error(&self) -> f64 {
        self.ops_per_s.0 / self.ops_per_s.1 - 1.0
    }
}

/// Who wins an operation over a link.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Winner {
    /// What was done.
    pub operation: Operation,
    /// List elements, or bytes of the value.
    pub parameter: Option<u64>,
    /// The way that packets took.
    pub link: Link,
    /// The placement that the prediction has first.
    pub predicted: Placement,
    /// The placements that the measurement has first: those within 5 % of the best, the best one first.
    pub measured: Vec<Placement>,
}

impl Winner {
    /// Whether the prediction names one that won.
    pub fn is_right(&self) -> bool {
        self.measured.contains(&self.predicted)
    }
}

/// The whole comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Validation {
    /// All cells, in the comparison's order.
    pub cells: Vec<Cell>,
    /// All winners, in the same order.
    pub winners: Vec<Winner>,
    /// The median of the absolute errors of latency.
    pub median_latency_error: f64,
    /// The median of the absolute errors of rate.
    pub median_rate_error: f64,
}

/// Puts rounds together: one pair of predicted and measured rows each, with the same cells in the same order.
pub fn judge(rounds: &[(Vec<Row>, Vec<Row>)]) -> Validation {
    let Some((first, _)) = rounds.first() else { return empty() };
    let cells: Vec<Cell> = first.iter().filter_map(|row| cell(row, rounds)).collect();
    let rows = |pick: fn((f64, f64)) -> f64| -> Vec<Row> {
        cells
            .iter()
            .map(|cell| {
                let mut row = Row {
                    operation: cell.operation,
                    parameter: cell.parameter,
                    link: cell.link,
                    placement: cell.placement,
                    in_flight_1: Default::default(),
                    in_flight_64: Default::default(),
                };
                row.in_flight_1.p50_ns = pick(cell.p50_ns).round() as u64;
                row
            })
            .collect()
    };
    let (predicted, measured) = (rows(|pair| pair.0), rows(|pair| pair.1));
    let winners = groups(&predicted).into_iter().zip(groups(&measured)).filter_map(|(predicted, measured)| {
        let best = predicted.iter().min_by_key(|row| row.in_flight_1.p50_ns)?;
        let mut ranked = measured.clone();
        ranked.sort_by_key(|row| row.in_flight_1.p50_ns);
        let limit = ranked.first()?.in_flight_1.p50_ns as f64 * LEVEL;
        let level = ranked.iter().filter(|row| row.in_flight_1.p50_ns as f64 <= limit);
        Some(Winner {
            operation: best.operation,
            parameter: best.parameter,
            link: best.link,
            predicted: best.placement,
            measured: level.map(|row| row.placement).collect(),
        })
    });
    let winners = winners.collect();
    let errors = |error: fn(&Cell) -> f64| median(cells.iter().map(|cell| error(cell).abs()).collect());
    let (median_latency_error, median_rate_error) = (errors(Cell::latency_error), errors(Cell::rate_error));
    Validation { cells, winners, median_latency_error, median_rate_error }
}

fn empty() -> Validation {
    Validation { cells: Vec::new(), winners: Vec::new(), median_latency_error: 0.0, median_rate_error: 0.0 }
}

/// The cell of a row; `None` if a round lacks it.
fn cell(like: &Row, rounds: &[(Vec<Row>, Vec<Row>)]) -> Option<Cell> {
    let key = |row: &Row| (row.operation, row.parameter, row.link, row.placement);
    let find = |rows: &[Row]| rows.iter().find(|row| key(row) == key(like)).cloned();
    let pairs: Option<Vec<_>> = rounds.iter().map(|(p, m)| Some((find(p)?, find(m)?))).collect();
    let pairs = pairs?;
    let over = |figure: fn(&Row) -> f64| {
        let (predicted, measured) = pairs.iter().map(|(p, m)| (figure(p), figure(m))).unzip();
        (median(predicted), median(measured))
    };
    Some(Cell {
        operation: like.operation,
        parameter: like.parameter,
        link: like.link,
        placement: like.placement,
        p50_ns: over(|row| row.in_flight_1.p50_ns as f64),
        ops_per_s: over(|row| row.in_flight_64.ops_per_s),
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(p50: [u64; 3]) -> Vec<Row> {
        let row = |(placement, p50_ns): (Placement, u64)| {
            let mut row = Row {
                operation: Operation::List,
                parameter: Some(8),
                link: Link::Udp,
                placement,
                in_flight_1: Default::default(),
                in_flight_64: Default::default(),
            };
            row.in_flight_1.p50_ns = p50_ns;
            row.in_flight_64.ops_per_s = 1e9 / p50_ns as f64;
            row
        };
        Placement::ALL.into_iter().zip(p50).map(row).collect()
    }

    #[test]
    fn rounds_are_joined_by_their_medians() {
        let rounds = [
            (rows([90, 20, 30]), rows([100, 19, 20])),
            (rows([90, 20, 30]), rows([100, 30, 31])),
            (rows([90, 20, 30]), rows([50, 20, 21])),
        ];
        let validation = judge(&rounds);
        assert_eq!(validation.cells.len(), 3);
        assert_eq!(validation.cells[0].p50_ns, (90.0, 100.0));
        assert!((validation.cells[0].latency_error() + 0.1).abs() < 1e-9);
        assert!((validation.median_latency_error - 0.1).abs() < 1e-9, "of 0.1, 0 and 0.43");
        let [winner] = &validation.winners[..] else { panic!("one operation") };
        assert_eq!((winner.predicted, &winner.measured[..]), (Placement::Nic, &[Placement::Nic, Placement::Host][..]));
        assert!(winner.is_right());
        let wrong = judge(&[(rows([90, 30, 20]), rows([100, 19, 30]))]);
        assert!(!wrong.winners[0].is_right());
    }
}

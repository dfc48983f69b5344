//! Prediction beside measurement.

use serde::Serialize;

use crate::measure::{Link, Operation, Placement, Row};
use crate::verdict::groups;

/// How a winner is named, and when a prediction is right.
pub const RULE: &str = "Each round's medians are divided by their geometric mean over the placements, so that what \
    slows all of them in a round does not count. Two placements cannot be told apart if the ranges of their rounds \
    overlap. A prediction is right if it names the placement with the lowest median, or one that cannot be told from \
    it.";

/// One operation, parameter, link and placement: for latency and for rate the round whose measurement is the median.
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
    /// The least and the largest of the rounds' measurements.
    pub p50_range_ns: (f64, f64),
    /// Operations a second with 64 in flight: predicted, measured.
    pub ops_per_s: (f64, f64),
    /// Reads of an object beyond the first with 1 in flight, an operation: predicted, measured.
    pub rereads: (f64, f64),
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

/// Who wins an operation over a link. See [`RULE`].
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
    /// The placement that the measurement has first, and behind it those that cannot be told from it.
    pub measured: Vec<Placement>,
}

impl Winner {
    /// Whether the prediction names one that won.
    pub fn is_right(&self) -> bool {
        self.measured.contains(&self.predicted)
    }

    /// Whether the measurement tells one placement from all others.
    pub fn is_alone(&self) -> bool {
        self.measured.len() == 1
    }

    /// Whether the measurement tells some placement to be slower than the best.
    pub fn rules_out(&self) -> bool {
        self.measured.len() < Placement::ALL.len()
    }
}

/// The whole comparison.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
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

/// A prediction and its measurement.
type Pair<'a> = (&'a Row, &'a Row);

/// Puts rounds together: one pair of predicted and measured rows each. Rows that a round lacks are left out.
pub fn judge(rounds: &[(Vec<Row>, Vec<Row>)]) -> Validation {
    let Some((first, _)) = rounds.first() else { return Validation::default() };
    let (mut cells, mut winners) = (Vec::new(), Vec::new());
    for group in groups(first) {
        let rows: Vec<Vec<Pair<'_>>> = group.iter().filter_map(|row| of_rounds(row, rounds)).collect();
        winners.extend(winner(&rows));
        cells.extend(rows.iter().filter_map(|rounds| cell(rounds)));
    }
    let errors = |error: fn(&Cell) -> f64| median(cells.iter().map(|cell| error(cell).abs()).collect());
    let (median_latency_error, median_rate_error) = (errors(Cell::latency_error), errors(Cell::rate_error));
    Validation { cells, winners, median_latency_error, median_rate_error }
}

/// The rows of all rounds like one; `None` if a round lacks it.
fn of_rounds<'a>(like: &Row, rounds: &'a [(Vec<Row>, Vec<Row>)]) -> Option<Vec<Pair<'a>>> {
    let key = |row: &Row| (row.operation, row.parameter, row.link, row.placement);
    let find = |rows: &'a [Row]| rows.iter().find(|row| key(row) == key(like));
    rounds.iter().map(|(predicted, measured)| Some((find(predicted)?, find(measured)?))).collect()
}

fn cell(rounds: &[Pair<'_>]) -> Option<Cell> {
    let (like, _) = rounds.first()?;
    let latency = |row: &Row| row.in_flight_1.p50_ns as f64;
    let rate = |row: &Row| row.in_flight_64.ops_per_s;
    let middle = |figure: fn(&Row) -> f64| {
        let mut ranked = rounds.to_vec();
        ranked.sort_by(|a, b| figure(a.1).total_cmp(&figure(b.1)));
        ranked[ranked.len() / 2]
    };
    let (one, many) = (middle(latency), middle(rate));
    Some(Cell {
        operation: like.operation,
        parameter: like.parameter,
        link: like.link,
        placement: like.placement,
        p50_ns: (latency(one.0), latency(one.1)),
        p50_range_ns: range(rounds.iter().map(|(_, measured)| latency(measured))),
        ops_per_s: (rate(many.0), rate(many.1)),
        rereads: (one.0.in_flight_1.rereads_per_op, one.1.in_flight_1.rereads_per_op),
    })
}

/// Of the placements of one operation, each with all rounds.
fn winner(rows: &[Vec<Pair<'_>>]) -> Option<Winner> {
    let (like, _) = rows.first()?.first()?;
    let predicted = relative(rows, |(predicted, _)| predicted);
    let (_, best) = ranked(&predicted)?;
    let measured = relative(rows, |(_, measured)| measured);
    let (ranking, first) = ranked(&measured)?;
    let (_, most) = range(measured[first].iter().copied());
    let level = ranking.into_iter().filter(|&row| row == first || range(measured[row].iter().copied()).0 <= most);
    Some(Winner {
        operation: like.operation,
        parameter: like.parameter,
        link: like.link,
        predicted: rows[best][0].0.placement,
        measured: level.map(|row| rows[row][0].0.placement).collect(),
    })
}

/// Median latencies, row by row and round by round, as a part of the round's geometric mean over the rows.
fn relative(rows: &[Vec<Pair<'_>>], pick: for<'a> fn(Pair<'a>) -> &'a Row) -> Vec<Vec<f64>> {
    let logarithm = |pair: Pair<'_>| (pick(pair).in_flight_1.p50_ns.max(1) as f64).ln();
    let mean = |round: usize| rows.iter().map(|row| logarithm(row[round])).sum::<f64>() / rows.len() as f64;
    rows.iter().map(|row| (0..row.len()).map(|round| (logarithm(row[round]) - mean(round)).exp()).collect()).collect()
}

/// The rows from the one with the lowest median on, and that one.
fn ranked(rows: &[Vec<f64>]) -> Option<(Vec<usize>, usize)> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by(|&a, &b| median(rows[a].clone()).total_cmp(&median(rows[b].clone())));
    let first = *order.first()?;
    Some((order, first))
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, 0.0), |(low, high), value| (value.min(low), value.max(high)))
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

    /// The winner of rounds of predicted and measured medians.
    fn named(rounds: &[([u64; 3], [u64; 3])]) -> Winner {
        let rounds: Vec<_> = rounds.iter().map(|&(predicted, measured)| (rows(predicted), rows(measured))).collect();
        let [winner] = &judge(&rounds).winners[..] else { panic!("one operation") };
        winner.clone()
    }

    #[test]
    fn a_cell_is_the_round_with_the_median_measurement() {
        let rounds = [
            (rows([90, 20, 30]), rows([100, 19, 20])),
            (rows([80, 20, 30]), rows([120, 30, 31])),
            (rows([40, 20, 30]), rows([50, 20, 21])),
        ];
        let validation = judge(&rounds);
        assert_eq!(validation.cells.len(), 3);
        assert_eq!((validation.cells[0].p50_ns, validation.cells[0].p50_range_ns), ((90.0, 100.0), (50.0, 120.0)));
        assert!((validation.cells[0].latency_error() + 0.1).abs() < 1e-9);
        assert!((validation.median_latency_error - 0.1).abs() < 1e-9, "of 0.1, 0 and 0.43");
        assert_eq!(judge(&[]), Validation::default());
    }

    #[test]
    fn placements_whose_rounds_overlap_cannot_be_told_apart() {
        use Placement::{Host, Nic};
        let predicted = [90, 20, 30];
        // Nic and host change places from round to round.
        let level = named(&[(predicted, [100, 20, 21]), (predicted, [100, 21, 20]), (predicted, [100, 20, 21])]);
        assert_eq!((level.predicted, &level.measured[..], level.is_right()), (Nic, &[Nic, Host][..], true));
        // Always the same one ahead, by a twentieth.
        let host = named(&[(predicted, [100, 21, 20]), (predicted, [100, 21, 20]), (predicted, [100, 21, 20])]);
        assert_eq!((&host.measured[..], host.is_alone(), host.is_right()), (&[Host][..], true, false));
    }

    #[test]
    fn what_slows_all_placements_in_a_round_does_not_count() {
        let (fast, slow) = ([100, 20, 22], [300, 60, 66]);
        let winner = named(&[(fast, fast), (slow, slow), (fast, fast)]);
        assert_eq!(winner.measured, [Placement::Nic]);
        // Nor does a prediction that is twice too long.
        assert!(named(&[(slow, fast), (slow, fast)]).is_right());
    }
}

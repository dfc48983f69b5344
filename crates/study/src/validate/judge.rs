//! Prediction beside measurement.

use remora_lab::stats::{is_level, is_slower, median, range};
use serde::Serialize;

use crate::measure::Row;
use crate::operations::Operation;
use crate::verdict::groups;
use remora_kernel::Placement;
use remora_real::LinkKind;

/// How a winner is named, and when a prediction is right.
pub const RULE: &str = "The placements of a round are measured by turns, so ratios within rounds are compared. A \
    placement is slower than the best if the median of these ratios is above 1.05 and Wilcoxon's signed-rank test, \
    one-sided at 95 %, finds them above 1; which takes 5 rounds at least. Placements that are not slower are level \
    with the best. A prediction is right if it names the best or one level with it. As the best is chosen by the same \
    rounds, and each pair is tested by itself, the rule rather tells too many placements apart than too few.";

/// One operation, parameter, link and placement: medians over the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// What was done.
    pub operation: Operation,
    /// List elements, or bytes of the value.
    pub parameter: Option<u64>,
    /// The way that packets took.
    pub link: LinkKind,
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

    /// How far the predicted rate lies from the measured one, as a part of it: positive if it is too high.
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
    pub link: LinkKind,
    /// The placement that the prediction has first.
    pub predicted: Placement,
    /// The placement that the measurement has first, and behind it those that are level with it.
    pub measured: Vec<Placement>,
    /// The placement with the lowest median over the rounds, and behind it those within 5 %, whatever the rounds'
    /// spread.
    pub by_medians: Vec<Placement>,
}

impl Winner {
    /// Whether the prediction names one that won.
    pub fn is_right(&self) -> bool {
        self.measured.contains(&self.predicted)
    }

    /// Whether the measurement tells one placement from all others.
    pub fn is_decided(&self) -> bool {
        self.measured.len() == 1
    }

    /// Whether the measurement tells some placement to be slower than the best: else there is no wrong prediction.
    pub fn rules_out(&self) -> bool {
        self.measured.len() < Placement::REAL.len()
    }

    /// Whether the prediction names the lowest median, or one within 5 % of it.
    pub fn is_right_by_medians(&self) -> bool {
        self.by_medians.contains(&self.predicted)
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
    let errors = |error: fn(&Cell) -> f64| median(cells.iter().map(|cell| error(cell).abs()));
    let (median_latency_error, median_rate_error) = (errors(Cell::latency_error), errors(Cell::rate_error));
    Validation { cells, winners, median_latency_error, median_rate_error }
}

/// The rows of all rounds like one; `None` if a round lacks it.
fn of_rounds<'a>(like: &Row, rounds: &'a [(Vec<Row>, Vec<Row>)]) -> Option<Vec<Pair<'a>>> {
    let key = |row: &Row| (row.operation, row.parameter, row.link, row.placement);
    let find = |rows: &'a [Row]| rows.iter().find(|row| key(row) == key(like));
    rounds.iter().map(|(predicted, measured)| Some((find(predicted)?, find(measured)?))).collect()
}

fn latency(row: &Row) -> f64 {
    row.in_flight_1.p50_ns.max(1) as f64
}

fn cell(rounds: &[Pair<'_>]) -> Option<Cell> {
    let (like, _) = rounds.first()?;
    let both = |figure: fn(&Row) -> f64| {
        (median(rounds.iter().map(|pair| figure(pair.0))), median(rounds.iter().map(|pair| figure(pair.1))))
    };
    Some(Cell {
        operation: like.operation,
        parameter: like.parameter,
        link: like.link,
        placement: like.placement,
        p50_ns: both(latency),
        p50_range_ns: range(rounds.iter().map(|pair| latency(pair.1))),
        ops_per_s: both(|row| row.in_flight_64.ops_per_s),
        rereads: both(|row| row.in_flight_1.rereads_per_op),
    })
}

/// Of the placements of one operation, each with all rounds.
fn winner(rows: &[Vec<Pair<'_>>]) -> Option<Winner> {
    let (like, _) = rows.first()?.first()?;
    let [predicted, measured]: [fn(&Pair<'_>) -> f64; 2] = [|pair| latency(pair.0), |pair| latency(pair.1)];
    let times = |row: usize, of: fn(&Pair<'_>) -> f64| rows[row].iter().map(of).collect::<Vec<f64>>();
    let ranked = |of: fn(&Pair<'_>) -> f64| {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by(|&a, &b| median(times(a, of)).total_cmp(&median(times(b, of))));
        order
    };
    let (foreseen, order) = (ranked(predicted), ranked(measured));
    let (best, lowest) = (times(order[0], measured), median(times(order[0], measured)));
    let names = |keep: &dyn Fn(&[f64]) -> bool| {
        let kept = order.iter().filter(|&&row| row == order[0] || keep(&times(row, measured)));
        kept.map(|&row| rows[row][0].0.placement).collect()
    };
    Some(Winner {
        operation: like.operation,
        parameter: like.parameter,
        link: like.link,
        predicted: rows[foreseen[0]][0].0.placement,
        measured: names(&|times| !is_slower(&best, times)),
        by_medians: names(&|times| is_level(lowest, median(times.iter().copied()))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::LIST;
    use Placement::{Client, Host, Nic};
    use rand_chacha::ChaCha8Rng;
    use rand_core::SeedableRng;

    use crate::workload::below;

    fn rows(p50: [u64; 3]) -> Vec<Row> {
        let row = |(placement, p50_ns): (Placement, u64)| {
            let mut row = Row {
                operation: LIST,
                parameter: Some(8),
                link: LinkKind::Udp,
                placement,
                in_flight_1: Default::default(),
                in_flight_64: Default::default(),
                by_ring: None,
            };
            row.in_flight_1.p50_ns = p50_ns;
            row.in_flight_64.ops_per_s = 1e9 / p50_ns as f64;
            row
        };
        Placement::REAL.into_iter().zip(p50).map(row).collect()
    }

    /// The winner of rounds of predicted and measured medians.
    fn named(rounds: &[([u64; 3], [u64; 3])]) -> Winner {
        let rounds: Vec<_> = rounds.iter().map(|&(predicted, measured)| (rows(predicted), rows(measured))).collect();
        let [winner] = &judge(&rounds).winners[..] else { panic!("one operation") };
        winner.clone()
    }

    /// Ten rounds on a machine that is up to three times slower in one round than in another, each placement within
    /// `noise` per cent of its true time.
    fn drifting(seed: u64, truth: [u64; 3], noise: u64) -> Vec<([u64; 3], [u64; 3])> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut round = || {
            let slow = 100 + below(&mut rng, 200);
            truth.map(|time| time * slow / 100 * (1000 - 10 * noise + below(&mut rng, 20 * noise + 1)) / 1000)
        };
        (0..10).map(|_| ([9, 1, 5], round())).collect()
    }

    #[test]
    fn a_cell_has_the_medians_of_its_rounds() {
        let rounds = [
            (rows([90, 20, 30]), rows([100, 19, 20])),
            (rows([80, 20, 30]), rows([120, 30, 31])),
            (rows([40, 20, 30]), rows([50, 20, 21])),
        ];
        let validation = judge(&rounds);
        assert_eq!(validation.cells.len(), 3);
        assert_eq!((validation.cells[0].p50_ns, validation.cells[0].p50_range_ns), ((80.0, 100.0), (50.0, 120.0)));
        assert!((validation.cells[0].latency_error() + 0.2).abs() < 1e-9);
        assert!((validation.median_latency_error - 0.2).abs() < 1e-9, "of 0.2, 0 and 0.43");
        assert_eq!(judge(&[]), Validation::default());
    }

    #[test]
    fn a_clear_winner_is_found_in_five_rounds() {
        let rounds = [([90, 20, 30], [100, 20, 22]); 5];
        let winner = named(&rounds);
        assert_eq!((&winner.measured[..], winner.is_decided(), winner.is_right()), (&[Nic][..], true, true));
        // In four it could be chance.
        assert_eq!(named(&rounds[1..]).measured, [Nic, Host, Client]);
    }

    #[test]
    fn a_steady_advantage_of_8_per_cent_is_found_amid_drift() {
        for seed in 0..100 {
            let winner = named(&drifting(seed, [50_000, 10_800, 10_000], 2));
            assert_eq!((&winner.measured[..], winner.is_right()), (&[Host][..], false), "seed {seed}: {winner:?}");
        }
    }

    #[test]
    fn noise_and_small_advantages_are_level() {
        let told = |truth: [u64; 3], noise: u64| {
            (0..200).filter(|&seed| named(&drifting(seed, truth, noise)).measured.len() < 3).count()
        };
        // Placements that are alike: both of the others are tested, after the best was chosen.
        let of_noise = told([10_000; 3], 20);
        assert!(of_noise < 40, "{of_noise} of 200");
        assert_eq!(told([10_000, 10_300, 10_200], 1), 0, "3 % are told, and are level all the same");
        // One that is now and then twice as slow, as on a core that two threads share, is not slower.
        let rounds: Vec<_> = (0..10u64).map(|n| ([9, 1, 5], [100, if n % 3 == 0 { 40 } else { 20 }, 20])).collect();
        assert_eq!(named(&rounds).measured, [Nic, Host]);
    }

    #[test]
    fn medians_alone_name_the_lowest_and_what_lies_within_5_per_cent() {
        let winner = named(&[([10, 20, 30], [103, 100, 120]); 1]);
        assert_eq!(winner.by_medians, [Nic, Client]);
        assert!(winner.is_right_by_medians() && winner.is_right() && !winner.rules_out());
    }
}

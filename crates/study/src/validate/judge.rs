//! Prediction beside measurement.

use std::fmt;

use remora_lab::stats::{is_level, is_slower, median, range};
use serde::Serialize;

use super::systems::SystemCell;
use crate::measure::{Load, Row};
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

/// Where a kernel runs, and how calls get there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Way {
    /// Where.
    pub placement: Placement,
    /// By rings in memory instead of RPC verbs or SENDs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_ring: bool,
}

impl From<Placement> for Way {
    fn from(placement: Placement) -> Self {
        Self { placement, by_ring: false }
    }
}

impl PartialEq<Placement> for Way {
    fn eq(&self, placement: &Placement) -> bool {
        *self == Self::from(*placement)
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}{}", self.placement, if self.by_ring { " ring" } else { "" }))
    }
}

/// One operation, parameter, link and way: medians over the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// What was done.
    pub operation: Operation,
    /// List elements, or bytes of the value.
    pub parameter: Option<u64>,
    /// The way that packets took.
    pub link: LinkKind,
    /// Where the kernel ran, and how calls got there.
    #[serde(flatten)]
    pub way: Way,
    /// Median latency with 1 in flight in nanoseconds: predicted, measured.
    pub p50_ns: (f64, f64),
    /// The least and the largest of the rounds' measurements.
    pub p50_range_ns: (f64, f64),
    /// The 99th percentile of the latency with 1 in flight: predicted (0 if the probe is an older one), measured.
    pub p99_ns: (f64, f64),
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

    /// How far the predicted 99th percentile lies from the measured one; `None` if there is no prediction.
    pub fn tail_error(&self) -> Option<f64> {
        (self.p99_ns.0 > 0.0).then(|| self.p99_ns.0 / self.p99_ns.1 - 1.0)
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
    /// The way that the prediction has first.
    pub predicted: Way,
    /// The way that the measurement has first, and behind it those that are level with it.
    pub measured: Vec<Way>,
    /// The way with the lowest median over the rounds, and behind it those within 5 %, whatever the rounds' spread.
    pub by_medians: Vec<Way>,
    /// How many ways there are.
    pub of: usize,
}

impl Winner {
    /// Whether the prediction names one that won.
    pub fn is_right(&self) -> bool {
        self.measured.contains(&self.predicted)
    }

    /// Whether the measurement tells one way from all others.
    pub fn is_decided(&self) -> bool {
        self.measured.len() == 1
    }

    /// Whether the measurement tells some way to be slower than the best: else there is no wrong prediction.
    pub fn rules_out(&self) -> bool {
        self.measured.len() < self.of
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
    /// The median of the absolute errors of the 99th percentile. No number of what nothing is predicted of, as all three.
    pub median_tail_error: f64,
    /// The median of the absolute errors of rate.
    pub median_rate_error: f64,
    /// What stands on the NIC, if that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub systems: Vec<SystemCell>,
}

/// A median error in words.
pub fn median_error(error: f64) -> String {
    if error.is_nan() { "of nothing".into() } else { format!("{:.1} %", error * 100.0) }
}

/// A way's prediction and its measurement in a round: one after the other, and 64 at once.
#[derive(Clone, Copy)]
struct Pair<'a> {
    way: Way,
    row: &'a Row,
    predicted: [&'a Load; 2],
    measured: [&'a Load; 2],
}

impl<'a> Pair<'a> {
    /// Those of two rows of one placement: there may be one by rings.
    fn of((predicted, measured): (&'a Row, &'a Row)) -> Vec<Self> {
        let (placement, row) = (predicted.placement, predicted);
        let loads = |row: &'a Row| [&row.in_flight_1, &row.in_flight_64];
        let (foreseen, came) = (loads(predicted), loads(measured));
        let rings = |row: &'a Row| row.by_ring.as_ref().map(|rings| [&rings.in_flight_1, &rings.in_flight_64]);
        let by_ring = rings(predicted).zip(rings(measured)).map(|(predicted, measured)| Self {
            way: Way { placement, by_ring: true },
            row,
            predicted,
            measured,
        });
        [Self { way: placement.into(), row, predicted: foreseen, measured: came }].into_iter().chain(by_ring).collect()
    }
}

/// Puts rounds together: one pair of predicted and measured rows each. Rows that a round lacks are left out.
pub fn judge(rounds: &[(Vec<Row>, Vec<Row>)]) -> Validation {
    let Some((first, _)) = rounds.first() else { return Validation::default() };
    let (mut cells, mut winners) = (Vec::new(), Vec::new());
    for group in groups(first) {
        let rows: Vec<Vec<Pair<'_>>> = group.iter().filter_map(|row| of_rounds(row, rounds)).flatten().collect();
        winners.extend(winner(&rows));
        cells.extend(rows.iter().filter_map(|rounds| cell(rounds)));
    }
    let errors = |error: fn(&Cell) -> Option<f64>| median(cells.iter().filter_map(error).map(f64::abs));
    let median_latency_error = errors(|cell| Some(cell.latency_error()));
    let median_rate_error = errors(|cell| Some(cell.rate_error()));
    let median_tail_error = errors(Cell::tail_error);
    let systems = Vec::new();
    Validation { cells, winners, median_latency_error, median_tail_error, median_rate_error, systems }
}

/// The ways of the rows of all rounds like one; `None` if a round lacks it.
fn of_rounds<'a>(like: &Row, rounds: &'a [(Vec<Row>, Vec<Row>)]) -> Option<Vec<Vec<Pair<'a>>>> {
    let key = |row: &Row| (row.operation, row.parameter, row.link, row.placement);
    let find = |rows: &'a [Row]| rows.iter().find(|row| key(row) == key(like));
    let rounds = rounds.iter().map(|(predicted, measured)| Some(Pair::of((find(predicted)?, find(measured)?))));
    let rounds: Vec<Vec<Pair<'a>>> = rounds.collect::<Option<_>>()?;
    let ways = rounds.iter().map(Vec::len).min().unwrap_or(0);
    Some((0..ways).map(|way| rounds.iter().map(|round| round[way]).collect()).collect())
}

fn latency(loads: [&Load; 2]) -> f64 {
    loads[0].p50_ns.max(1) as f64
}

fn cell(rounds: &[Pair<'_>]) -> Option<Cell> {
    let Pair { way, row: like, .. } = *rounds.first()?;
    let both = |figure: fn([&Load; 2]) -> f64| {
        (
            median(rounds.iter().map(|pair| figure(pair.predicted))),
            median(rounds.iter().map(|pair| figure(pair.measured))),
        )
    };
    Some(Cell {
        operation: like.operation,
        parameter: like.parameter,
        link: like.link,
        way,
        p50_ns: both(latency),
        p50_range_ns: range(rounds.iter().map(|pair| latency(pair.measured))),
        p99_ns: both(|loads| loads[0].p99_ns as f64),
        ops_per_s: both(|loads| loads[1].ops_per_s),
        rereads: both(|loads| loads[0].rereads_per_op),
    })
}

/// Of the ways of one operation, each with all rounds.
fn winner(rows: &[Vec<Pair<'_>>]) -> Option<Winner> {
    let like = rows.first()?.first()?.row;
    let [predicted, measured]: [fn(&Pair<'_>) -> f64; 2] =
        [|pair| latency(pair.predicted), |pair| latency(pair.measured)];
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
        kept.map(|&row| rows[row][0].way).collect()
    };
    Some(Winner {
        operation: like.operation,
        parameter: like.parameter,
        link: like.link,
        predicted: rows[foreseen[0]][0].way,
        measured: names(&|times| !is_slower(&best, times)),
        by_medians: names(&|times| is_level(lowest, median(times.iter().copied()))),
        of: rows.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::RingLoads;
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
    fn rings_are_ways_of_their_own() {
        let with_rings = |p50: [u64; 3], ring: u64| {
            let mut rows = rows(p50);
            let mut loads = RingLoads { in_flight_1: Default::default(), in_flight_64: Default::default() };
            (loads.in_flight_1.p50_ns, loads.in_flight_1.p99_ns, loads.in_flight_64.ops_per_s) = (ring, 2 * ring, 1e6);
            rows[1].by_ring = Some(loads);
            rows
        };
        let rounds = vec![(with_rings([90, 20, 30], 10), with_rings([100, 22, 30], 8)); 5];
        let validation = judge(&rounds);
        let ways: Vec<String> = validation.cells.iter().map(|cell| cell.way.to_string()).collect();
        assert_eq!(ways, ["client", "nic", "nic ring", "host"]);
        let (rpc, ring) = (&validation.cells[1], &validation.cells[2]);
        assert_eq!((rpc.tail_error(), ring.tail_error().map(|error| (error * 100.0).round())), (None, Some(25.0)));
        assert!((validation.median_tail_error - 0.25).abs() < 1e-9, "of the one that is predicted");
        let winner = &validation.winners[0];
        assert_eq!((winner.measured.len(), winner.is_right(), winner.rules_out()), (1, true, true));
        assert!(winner.predicted.by_ring && winner.of == 4);
        // A round without them: nothing is said of rings.
        let mut rounds = rounds;
        rounds[3].1[1].by_ring = None;
        assert_eq!(judge(&rounds).cells.len(), 3);
    }

    #[test]
    fn a_clear_winner_is_found_in_five_rounds() {
        let rounds = [([90, 20, 30], [100, 20, 22]); 5];
        let winner = named(&rounds);
        assert_eq!((&winner.measured[..], winner.is_decided(), winner.is_right()), (&[Nic.into()][..], true, true));
        // In four it could be chance.
        assert_eq!(named(&rounds[1..]).measured, [Nic, Host, Client]);
    }

    #[test]
    fn a_steady_advantage_of_8_per_cent_is_found_amid_drift() {
        for seed in 0..100 {
            let winner = named(&drifting(seed, [50_000, 10_800, 10_000], 2));
            assert_eq!(
                (&winner.measured[..], winner.is_right()),
                (&[Host.into()][..], false),
                "seed {seed}: {winner:?}"
            );
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

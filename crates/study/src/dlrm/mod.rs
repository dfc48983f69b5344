//! A recommender's look-ups (RAMBDA, HPCA 2023, section IV-C): rows of a table reduced by one core, by a core that gets
//! them from another one, and at each place of a node, with sums of groups (MERCI) and without.

mod catalogue;
mod data;
mod local;
mod placed;
mod torch;

use std::path::PathBuf;
use std::time::Duration;

use remora_kernel::Placement;
use remora_kernel::embed::Element;
use remora_lab::bench::{BenchGoal, BenchProgress, BenchRow};
use remora_lab::stats::median;
use remora_store::{Arena, Place};
use serde::Serialize;

use crate::{MeasuredRows, StudyError};
use catalogue::{Catalogue, Rows, learn};
pub use data::Interactions;
use local::Own;
use placed::{Placed, PlacedDone};

/// How often what is compared takes turns.
const ROUNDS: usize = 3;

/// What to measure.
#[derive(Clone, Debug)]
pub struct DlrmPlan {
    /// Bytes of the items' rows, about.
    pub table: u64,
    /// Numbers of a row.
    pub dim: u16,
    /// How they are kept.
    pub element: Element,
    /// A file with who was interested in what.
    pub data: Option<PathBuf>,
    /// How long each figure is measured.
    pub time: Duration,
    /// Seed of every random choice.
    pub seed: u64,
    /// Whether PyTorch is measured too, where it is installed.
    pub peers: bool,
}

/// What it was measured with.
#[derive(Clone, Debug, Serialize)]
pub struct DlrmReport {
    /// Where requests are from.
    pub source: String,
    /// Interactions of the data.
    pub interactions: usize,
    /// Items of the data.
    pub items: u32,
    /// How many times the table has them.
    pub copies: u32,
    /// Numbers of a row.
    pub dim: u16,
    /// How they are kept.
    pub element: &'static str,
    /// Bytes of the table, sums of groups included.
    pub table_bytes: u64,
    /// Sums of groups, as a part of the items' rows.
    pub sums: f64,
    /// Groups of items of which sums are kept.
    pub groups: usize,
    /// Rows of a request on average, if it names items.
    pub rows_of_items: f64,
    /// Rows of a request on average, if it names sums of groups where it can.
    pub rows_with_sums: f64,
    /// The part of a core that reading requests took where another core reduced them, if that was measured.
    pub reading: Option<f64>,
    /// Whether PyTorch was there.
    pub torch: bool,
}

/// Memory whose loading can be seen, and stopped.
struct Watched<'a, A> {
    arena: A,
    progress: &'a mut dyn FnMut(f64) -> bool,
    wanted: u64,
    done: u64,
}

impl<A: Arena<Error = StudyError>> Arena for Watched<'_, A> {
    type Error = StudyError;

    fn alloc(&mut self, len: u64) -> Result<Place, StudyError> {
        self.wanted = len;
        self.arena.alloc(len)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), StudyError> {
        self.done += bytes.len() as u64;
        match (self.progress)(self.done as f64 / self.wanted.max(1) as f64) {
            true => self.arena.write(at, bytes),
            false => Err(StudyError::Interrupted),
        }
    }
}

/// One figure in the unit of a row, beside another.
struct Beside {
    value: f64,
    peer: f64,
    ratio: f64,
}

impl Beside {
    /// The medians of rounds.
    fn of(values: &[f64], peers: &[f64]) -> Self {
        let ratio = median(values.iter().zip(peers).map(|(value, peer)| value / peer));
        Self { value: median(values.iter().copied()), peer: median(peers.iter().copied()), ratio }
    }

    fn row(self, what: String, unit: &'static str, peer: &str, goal: Option<f64>) -> BenchRow {
        let Self { value, peer: peer_value, ratio } = self;
        let goal = goal.map(BenchGoal::RatioAtLeast);
        BenchRow { what, value, unit, peer: peer.into(), peer_value, ratio, goal }
    }
}

/// What rows are reduced.
const PLAIN: &str = "rows of items";
const SUMMED: &str = "sums of groups";

/// Measures everything.
pub fn run(
    plan: &DlrmPlan,
    progress: &mut BenchProgress<'_>,
) -> Result<(DlrmReport, MeasuredRows<BenchRow>), StudyError> {
    let data = match &plan.data {
        Some(path) => Interactions::read(path)?,
        None => Interactions::drawn(plan.seed),
    };
    if !progress("groups of items", 0.0) {
        return Err(StudyError::Interrupted);
    }
    let memo = learn(&data);
    let of_one = u64::from(data.items) * plan.element.row_bytes(plan.dim) as u64;
    let copies = u32::try_from((plan.table / of_one.max(1)).max(1)).ok();
    let copies = copies.filter(|copies| u64::from(*copies) * u64::from(data.items) < 1 << 31);
    let copies = copies.ok_or_else(|| StudyError::Usage("a table of more than 2147483647 items".into()))?;
    let rows = Rows { items: data.items, copies, dim: plan.dim, element: plan.element };
    let python = if plan.peers && plan.element == Element::F32 { torch::python() } else { None };
    let own = {
        let progress = &mut |part| progress("loading a table", 0.1 * part);
        let mut memory = Watched { arena: Own::new(), progress, wanted: 0, done: 0 };
        let catalogue = Catalogue::load(rows, &memo, &data, plan.seed, &mut memory)?;
        (memory.arena, catalogue)
    };
    let requests = &own.1.requests;
    let mean = |which: usize| requests.iter().map(|one| one.rows[which]).sum::<usize>() as f64 / requests.len() as f64;
    let table = own.1.table.table();
    let mut report = DlrmReport {
        source: data.source.clone(),
        interactions: data.interactions(),
        items: data.items,
        copies,
        dim: plan.dim,
        element: plan.element.name(),
        table_bytes: table.bytes(),
        sums: f64::from(memo.rows()) / f64::from(data.items),
        groups: memo.clusters() * copies as usize,
        rows_of_items: mean(0),
        rows_with_sums: mean(1),
        reading: None,
        torch: python.is_some(),
    };
    let wanted = 7 + usize::from(python.is_some());
    let measured = MeasuredRows::by(wanted, |out| {
        let slice = plan.time / ROUNDS as u32;
        let mut next = |what: &str, done: usize, within: f64| match progress(
            what,
            0.1 + 0.9 * (done as f64 + within) / wanted as f64,
        ) {
            true => Ok(()),
            false => Err(StudyError::Interrupted),
        };
        report.reading = on_cores(&own, (slice, python.as_deref()), out, &mut next)?;
        drop(own);
        let mut load = |part: f64| next("loading a node's table", wanted - 4, part * 0.5).is_ok();
        let mut placed = Placed::start(rows, &memo, &data, plan.seed, &mut load)?;
        in_places(&mut placed, slice, out, &mut next)
    });
    Ok((report, measured))
}

/// Says what is next, after so many rows and a part of one, and whether that is still wanted.
type Next<'a> = dyn FnMut(&str, usize, f64) -> Result<(), StudyError> + 'a;

/// What cores of this process do; the part of one that reading requests takes.
fn on_cores(
    (own, catalogue): &(Own, Catalogue),
    (slice, python): (Duration, Option<&std::path::Path>),
    out: &mut Vec<BenchRow>,
    next: &mut Next<'_>,
) -> Result<Option<f64>, StudyError> {
    let [mut read, mut bytes, mut plain, mut summed] = [const { Vec::new() }; 4];
    for round in 0..ROUNDS {
        let within = 2.0 * round as f64 / ROUNDS as f64;
        next("one core, reading", out.len(), within)?;
        read.push(own.read_bandwidth(slice) / 1e9);
        next("one core, rows of items", out.len(), within)?;
        let done = own.reduce(catalogue, false, slice)?;
        bytes.push(done.bytes / 1e9);
        plain.push(done.requests / 1e3);
        next("one core, sums of groups", out.len(), within)?;
        summed.push(own.reduce(catalogue, true, slice)?.requests / 1e3);
    }
    let one = |what: &str| format!("one core: {what}");
    out.push(Beside::of(&bytes, &read).row(one(PLAIN), "GB/s", "the same memory, read in order", Some(0.9)));
    out.push(Beside::of(&summed, &plain).row(one(SUMMED), "k/s", PLAIN, Some(1.4)));
    if let Some(python) = python {
        next("PyTorch's EmbeddingBag", out.len(), 0.0)?;
        let done = out.len();
        let mut going = || next("PyTorch's EmbeddingBag", done, 0.5).is_ok();
        let rates: Vec<f64> = torch::measure(python, catalogue, (slice, ROUNDS), &mut going)?;
        let rates: Vec<f64> = rates.into_iter().map(|rate| rate / 1e3).collect();
        out.push(Beside::of(&plain, &rates).row(one(PLAIN), "k/s", "PyTorch's EmbeddingBag, one thread", None));
    }
    let (mut parsed, mut reading) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        next("two cores, one of which reads requests", out.len(), round as f64 / ROUNDS as f64)?;
        let (rate, part) = own.reduce_parsed(catalogue, slice)?;
        parsed.push(rate / 1e3);
        reading.push(part);
    }
    let row = Beside::of(&parsed, &summed).row("two cores: read, then reduced".into(), "k/s", &one(SUMMED), None);
    out.push(row);
    Ok(Some(median(reading)))
}

/// What places of a node do for a client.
fn in_places(
    placed: &mut Placed,
    slice: Duration,
    out: &mut Vec<BenchRow>,
    next: &mut Next<'_>,
) -> Result<(), StudyError> {
    let mut wire = Vec::new();
    for place in Placement::REAL {
        let (mut plain, mut summed) = ([PlacedDone::default(); ROUNDS], [0.0; ROUNDS]);
        for round in 0..ROUNDS {
            let what = format!("{place}, {} under way", placed::DEPTH);
            next(&what, out.len(), round as f64 / ROUNDS as f64)?;
            plain[round] = placed.reduce(place, false, slice)?;
            summed[round] = placed.reduce(place, true, slice)?.requests / 1e3;
        }
        wire.push(median(plain.map(|done| done.wire_bytes)));
        let row = Beside::of(&summed, &plain.map(|done| done.requests / 1e3));
        out.push(row.row(format!("{place}: {SUMMED}"), "k/s", PLAIN, None));
    }
    if let [client, nic, ..] = wire[..] {
        let row = Beside::of(&[client], &[nic]);
        out.push(row.row("client: bytes of a request".into(), "B", "nic: bytes of a request", Some(20.0)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(element: Element) -> (Own, Catalogue, f64) {
        let data = Interactions::drawn(3);
        let memo = learn(&data);
        let rows = Rows { items: data.items, copies: 2, dim: 64, element };
        let mut own = Own::new();
        let catalogue = Catalogue::load(rows, &memo, &data, 5, &mut own).unwrap();
        (own, catalogue, f64::from(memo.rows()) / f64::from(data.items))
    }

    #[test]
    fn cores_reduce_rightly_with_sums_and_without() {
        let time = Duration::from_millis(20);
        for element in Element::ALL {
            let (own, catalogue, sums) = loaded(element);
            assert!(sums > 0.2 && sums <= 0.25, "{sums}");
            for with_sums in [false, true] {
                let done = own.reduce(&catalogue, with_sums, time).unwrap();
                assert!(done.requests > 0.0 && done.bytes > 0.0, "{done:?}");
            }
            let (rate, part) = own.reduce_parsed(&catalogue, time).unwrap();
            assert!(rate > 0.0 && part > 0.0, "{rate} {part}");
            let mut wrong = catalogue.requests[0].clone();
            assert!(!catalogue.check(&wrong, &[0; 256]));
            wrong.text.clear();
        }
    }

    #[test]
    fn groups_spare_look_ups_of_users_that_nothing_was_learnt_from() {
        let (_, catalogue, _) = loaded(Element::F32);
        let rows = |which: usize| catalogue.requests.iter().map(|request| request.rows[which]).sum::<usize>() as f64;
        assert!(rows(0) > 1.2 * rows(1), "{} rows and {}", rows(0), rows(1));
    }
}

//! An index in two parts, one served by a node's host and one by its NIC, while its border moves and while it does not.

use std::time::{Duration, Instant};

use remora_kernel::btree::{LOCKED, Put, Shape};
use remora_kernel::{Placement, Status};
use remora_lab::stats::Latencies;
use remora_real::{Client, ClientConfig, LinkKind, at_free_loopback, at_local};
use remora_service::{IndexCall, IndexOp, IndexReply, IndexRouter};
use remora_store::btree::load_index;
use remora_store::hash::mix;

use crate::compare::{Progress, Watch};
use crate::nodes::{ClientMemory, NodeProcess};
use crate::workload::{Distribution, Picker};
use crate::{MeasuredRows, StudyError};

/// The tail while the border moves may be so many times as long as while it does not.
pub const GOAL: f64 = 3.0;
/// Part of a node that is filled at first, in percent.
const FILL: u8 = 80;
/// Nodes beside those for twice the pairs.
const SPARE: u64 = 4096;
/// Pairs of a scan.
const SCAN: u32 = 10;
/// The mark of a call of the router's own.
const BORDER: u32 = u32::MAX;
/// Calls before each measurement, which do not count.
const WARM_UP: Duration = Duration::from_millis(20);

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct PartitionBench {
    /// Keys loaded.
    pub keys: u64,
    /// How keys are drawn.
    pub distribution: Distribution,
    /// The border goes to and fro between so many percent of the keys; where it does not move it stands half-way.
    pub percents: [u8; 2],
    /// Rounds, whose latencies count together.
    pub rounds: u32,
    /// How long each measurement of a round runs.
    pub time: Duration,
    /// Bytes of a node of the trees.
    pub node_bytes: usize,
    /// Calls under way at once.
    pub in_flight: usize,
    /// Leaves that one call of the mover moves; it has one call under way.
    pub leaves: u32,
    /// The link of both clients.
    pub link: LinkKind,
    /// Seed of every random choice.
    pub seed: u64,
}

/// What calls do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionWork {
    /// Look a key up.
    Get,
    /// Write a key's value.
    Update,
    /// Read ten pairs in order.
    Scan,
}

impl PartitionWork {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Get, Self::Update, Self::Scan];

    /// As tables spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "look-up",
            Self::Update => "update",
            Self::Scan => "scan of 10",
        }
    }
}

/// Where calls run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionPlace(Option<Placement>);

impl PartitionPlace {
    /// Each at its part's, and all at the client.
    pub const ALL: [Self; 2] = [Self(None), Self(Some(Placement::Client))];

    /// As tables spell it.
    pub fn name(self) -> &'static str {
        self.0.map_or("host and nic", Placement::name)
    }
}

/// A kind of call, while the border stands still and while it moves.
#[derive(Clone, Debug)]
pub struct PartitionRow {
    /// What calls do.
    pub work: PartitionWork,
    /// Where they run.
    pub place: PartitionPlace,
    /// Medians in nanoseconds.
    pub p50: [u64; 2],
    /// The 99th percentiles.
    pub p99: [u64; 2],
    /// Calls a second.
    pub rate: [f64; 2],
    /// Pairs that changed over each second.
    pub moved: f64,
    /// Part of the calls that asked the wrong part first, while it moved.
    pub redirected: f64,
}

impl PartitionRow {
    /// The tail while the border moves over that while it does not.
    pub fn ratio(&self) -> f64 {
        self.p99[1] as f64 / self.p99[0] as f64
    }

    /// Whether that is within the goal.
    pub fn met(&self) -> bool {
        self.ratio() <= GOAL
    }
}

/// What measurements of a row add up to.
#[derive(Default)]
struct Sum {
    latencies: Latencies,
    took: Duration,
    moved: u64,
    redirects: u64,
}

impl PartitionBench {
    /// Measures all rows.
    pub fn run(&self, watch: &dyn Watch) -> MeasuredRows<PartitionRow> {
        let wanted = PartitionWork::ALL.len() * PartitionPlace::ALL.len();
        MeasuredRows::by(wanted, |rows| self.rows(rows, wanted, watch))
    }

    fn border(&self, percent: u8) -> u64 {
        self.keys * u64::from(percent) / 100
    }

    fn rows(&self, rows: &mut Vec<PartitionRow>, wanted: usize, watch: &dyn Watch) -> Result<(), StudyError> {
        let node = at_free_loopback(Ok)?;
        let _child = NodeProcess::start(node)?;
        let config = |local| ClientConfig { link: Some(self.link), ..ClientConfig::new(node, local) };
        let connect = || at_local(node, |local| Client::connect(config(local)));
        let (mut client, mut mover) = (connect()?, connect()?);
        watch.progress(Progress::Part { what: "loading the index", part: 0.0 });
        let half_way = (self.border(self.percents[0]) + self.border(self.percents[1])) / 2;
        let at = {
            let pairs: Vec<(u64, u64)> = (0..self.keys).map(|key| (key, value(key))).collect();
            let shape = Shape { node_bytes: self.node_bytes, fill: FILL };
            let places = [Placement::Host, Placement::Nic];
            load_index(shape, &pairs, half_way, places, (SPARE, 1), &mut ClientMemory(&mut client))?.0
        };
        let mut index = client.open_index((at.va, at.key))?;
        let mut theirs = mover.open_index((at.va, at.key))?;
        for work in PartitionWork::ALL {
            for place in PartitionPlace::ALL {
                let mut sums: [Sum; 2] = Default::default();
                client.run_index_at(&mut index, place.0)?;
                for round in 0..self.rounds {
                    let part = (rows.len() as f64 + f64::from(round) / f64::from(self.rounds)) / wanted as f64;
                    watch.progress(Progress::Part { what: work.name(), part });
                    while theirs.directory().split != half_way {
                        let moved = mover.move_border(&mut theirs, Placement::Host, half_way, 64)?;
                        moved.map_err(|status| failed("a move", status))?;
                    }
                    for (moving, sum) in sums.iter_mut().enumerate() {
                        let mover = (moving == 1).then_some((&mut mover, &mut theirs));
                        let seed = self.seed ^ mix(u64::from(round) << 8 | rows.len() as u64);
                        self.measure((work, seed), &mut client, &mut index, mover, sum, watch)?;
                    }
                }
                let quantile = |part| sums.each_ref().map(|sum| sum.latencies.quantile(part));
                let count = sums.each_ref().map(|sum| sum.latencies.count() as f64);
                let seconds = sums.each_ref().map(|sum| sum.took.as_secs_f64());
                rows.push(PartitionRow {
                    work,
                    place,
                    p50: quantile(0.5),
                    p99: quantile(0.99),
                    rate: [count[0] / seconds[0], count[1] / seconds[1]],
                    moved: sums[1].moved as f64 / seconds[1],
                    redirected: sums[1].redirects as f64 / count[1].max(1.0),
                });
            }
        }
        watch.progress(Progress::Part { what: "done", part: 1.0 });
        Ok(())
    }

    /// Calls of one client, and moves of another, by turns in this thread.
    fn measure(
        &self,
        (work, seed): (PartitionWork, u64),
        client: &mut Client,
        index: &mut IndexRouter,
        mut mover: Option<(&mut Client, &mut IndexRouter)>,
        sum: &mut Sum,
        watch: &dyn Watch,
    ) -> Result<(), StudyError> {
        let mut picker = Picker::new(self.distribution, self.keys, seed);
        let mut slots: Vec<Option<(u64, IndexCall, Instant)>> = vec![None; self.in_flight];
        let (mut params, mut ended) = (Vec::new(), Vec::new());
        let (mut moving, mut target) = (false, self.border(self.percents[0]));
        let (redirects, start) = (index.redirects(), Instant::now());
        let mut begun = None;
        loop {
            let now = Instant::now();
            // A tail of no calls says nothing: it goes on until there is one.
            let is_over = now - start >= WARM_UP + self.time && sum.latencies.count() > 0;
            if begun.is_none() && now - start >= WARM_UP {
                begun = Some(now);
            }
            for (slot, call) in (0..).zip(&mut slots) {
                if call.is_none() && !is_over {
                    let key = picker.pick();
                    let op = match work {
                        PartitionWork::Get => IndexOp::Get(key),
                        PartitionWork::Update => IndexOp::Put(key, value(key), Put::Update),
                        PartitionWork::Scan => IndexOp::Scan(key, SCAN),
                    };
                    let begun = index.begin(op);
                    submit(client, index, &begun, slot, &mut params)?;
                    *call = Some((key, begun, now));
                }
            }
            if let Some((place, op)) = index.poll_border(&mut params) {
                client.submit(place, op, &params, BORDER).map_err(|full| StudyError::Failed(full.to_string()))?;
            }
            client.poll(&mut |tag, status, reply| ended.push((tag, status, reply.to_vec())))?;
            for (tag, status, reply) in ended.drain(..) {
                let Some(slot) = slots.get_mut(tag as usize) else {
                    index.border(status, &reply);
                    continue;
                };
                let Some((key, mut call, since)) = slot.take() else { continue };
                match index.answer(&mut call, status, &reply) {
                    None => {
                        submit(client, index, &call, tag, &mut params)?;
                        *slot = Some((key, call, since));
                    }
                    Some(found) => {
                        self.check(work, key, found)?;
                        if begun.is_some_and(|begun| since >= begun) {
                            sum.latencies.record(since.elapsed());
                        }
                    }
                }
            }
            if let Some((mover, theirs)) = &mut mover {
                if !moving && !is_over {
                    if theirs.directory().split == target {
                        let [low, high] = self.percents.map(|percent| self.border(percent));
                        target = if target == low { high } else { low };
                    }
                    let move_on = theirs.move_params(target, self.leaves).encode();
                    let submitted = mover.submit(Placement::Host, remora_kernel::op::TREE_MOVE, &move_on, 0);
                    submitted.map_err(|full| StudyError::Failed(full.to_string()))?;
                    moving = true;
                }
                let mut moved = Ok(0);
                mover.poll(&mut |_, status, reply| {
                    moving = false;
                    moved = match theirs.border(status, reply) {
                        Some(pairs) => Ok(pairs),
                        None if status == LOCKED => Ok(0),
                        None => Err(failed("a move", status)),
                    };
                })?;
                sum.moved += moved? * u64::from(begun.is_some());
            }
            if watch.stop() {
                return Err(StudyError::Interrupted);
            }
            if is_over && !moving && client.in_flight() == 0 {
                sum.took += begun.map_or(self.time, |begun| now - begun);
                sum.redirects += index.redirects() - redirects;
                return Ok(());
            }
        }
    }

    /// Each key has its own value, and nothing between two keys of a scan is missing.
    fn check(&self, work: PartitionWork, key: u64, found: Result<IndexReply, Status>) -> Result<(), StudyError> {
        let expected = match work {
            PartitionWork::Scan => {
                let pairs = (key..self.keys.min(key + u64::from(SCAN))).map(|key| (key, value(key)));
                IndexReply::Pairs(pairs.collect())
            }
            _ => IndexReply::Value(Some(value(key))),
        };
        match found {
            Ok(found) if found == expected => Ok(()),
            Ok(found) => Err(StudyError::Failed(format!("{} of key {key} brought {found:?}", work.name()))),
            Err(status) => Err(failed(work.name(), status)),
        }
    }
}

fn submit(
    client: &mut Client,
    index: &IndexRouter,
    call: &IndexCall,
    tag: u32,
    params: &mut Vec<u8>,
) -> Result<(), StudyError> {
    let (place, op) = index.ask(call, params);
    client.submit(place, op, params, tag).map_err(|full| StudyError::Failed(full.to_string()))
}

fn failed(what: &str, status: Status) -> StudyError {
    StudyError::Failed(format!("{what} ended with {status:?}"))
}

/// What a key has for a value.
fn value(key: u64) -> u64 {
    mix(key)
}

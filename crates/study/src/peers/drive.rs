//! One thread that keeps a number of requests under way at a store, and checks every answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use remora_lab::stats::Latencies;

use super::value::{Read, Values, Write};
use super::{Answer, Ask, AtNode, PeerError, Store};
use crate::ycsb::{Generator, Mix, Operation, Popularity};

/// After how long without any answer a store counts as stuck.
const STUCK: Duration = Duration::from_secs(20);
/// The part of a run before its latencies and rates count: 1 / this.
const WARM_UP: u32 = 10;

/// What to do to a store.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The operations. A scan is its reads one after another, a read-modify-write a read and then a write.
    pub mix: Mix,
    /// How records are chosen.
    pub popularity: Popularity,
    /// Clients, each with one request under way.
    pub clients: usize,
    /// How long it runs.
    pub time: Duration,
    /// Seeds the operations.
    pub seed: u64,
}

/// What came of a load.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Writes.
    pub writes: Side,
    /// Reads.
    pub reads: Side,
    /// Requests whose outcome is not known. They count nowhere else; what such a write wrote may be read from then on.
    pub unknown: u64,
}

/// Of writes or of reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Side {
    /// How many were answered. Every value that was read was checked.
    pub count: u64,
    /// Of them a second.
    pub rate: f64,
    /// The median latency.
    pub p50_ns: u64,
    /// The 99th percentile of latency.
    pub p99_ns: u64,
    /// The mean latency and its two parts, if the store's nodes tell.
    pub split: Option<Split>,
}

/// A mean latency (figure 4 of the MINOS paper).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// While messages were under way: between the nodes, and between client and node.
    pub communication_ns: f64,
    /// All else: the nodes' work, waiting for locks, making durable.
    pub computation_ns: f64,
}

/// A store with records, and all that is known of them.
pub struct Loaded<'a> {
    store: &'a mut dyn Store,
    values: Values,
    records: u64,
    stop: &'a AtomicBool,
}

impl<'a> Loaded<'a> {
    /// Writes `records` records of `bytes` each.
    pub fn new(
        store: &'a mut dyn Store,
        records: u64,
        bytes: usize,
        clients: usize,
        stop: &'a AtomicBool,
    ) -> Result<Self, PeerError> {
        let mut loaded = Self { store, values: Values::new(bytes), records, stop };
        let mut run = Run::new(clients, Source::Records(0..records));
        run.run(&mut loaded, None)?;
        Ok(loaded)
    }

    /// Runs a load.
    pub fn drive(&mut self, load: &Load) -> Result<Outcome, PeerError> {
        // Room in the key space for what is inserted; how much makes no difference to the records that are chosen.
        let expected = 1_000_000;
        let generator = Generator::with(load.mix, load.popularity, self.records, expected, load.seed);
        let mut run = Run::new(load.clients, Source::Operations(Box::new(generator)));
        let elapsed = run.run(self, Some(load.time))?;
        if let Source::Operations(generator) = &run.source {
            self.records = generator.records();
        }
        let [writes, reads] = run.tallies.each_ref().map(|tally| tally.side(elapsed));
        Ok(Outcome { writes, reads, unknown: run.unknown })
    }
}

/// Of writes (0) or reads (1).
#[derive(Default)]
struct Tally {
    latencies: Latencies,
    /// Sums over those whose node tells.
    told: u64,
    told_ns: u64,
    communication_ns: u64,
}

impl Tally {
    fn add(&mut self, latency: Duration, at_node: Option<AtNode>) {
        self.latencies.record(latency);
        if let Some(AtNode { total_ns, communication_ns }) = at_node {
            let ns = latency.as_nanos() as u64;
            self.told += 1;
            self.told_ns += ns;
            // What it was not at the node it was under way.
            self.communication_ns += (ns.saturating_sub(total_ns) + communication_ns).min(ns);
        }
    }

    fn side(&self, elapsed: Duration) -> Side {
        let count = self.latencies.count();
        let part = |ns: u64| ns as f64 / self.told.max(1) as f64;
        let (communication_ns, all_ns) = (part(self.communication_ns), part(self.told_ns));
        Side {
            count,
            rate: count as f64 / elapsed.as_secs_f64().max(1e-9),
            p50_ns: self.latencies.quantile(0.5),
            p99_ns: self.latencies.quantile(0.99),
            split: (self.told > 0).then_some(Split { communication_ns, computation_ns: all_ns - communication_ns }),
        }
    }
}

/// Where operations come from.
enum Source {
    /// Each of these is written once.
    Records(std::ops::Range<u64>),
    /// A workload.
    Operations(Box<Generator>),
}

impl Source {
    fn next(&mut self) -> Option<Operation> {
        match self {
            Self::Records(records) => records.next().map(Operation::Insert),
            Self::Operations(generator) => Some(generator.draw()),
        }
    }
}

/// A client: what it does, and what it does after that.
#[derive(Default)]
struct Client {
    pending: Option<(Pending, Instant)>,
    then: Then,
}

enum Pending {
    Read(Read),
    Write(Write),
}

#[derive(Clone, Copy, Default)]
enum Then {
    #[default]
    Draw,
    Write(u64),
    /// Reads of this record on, so many.
    Read(u64, u64),
}

struct Run {
    source: Source,
    clients: Vec<Client>,
    /// Clients whose request has ended.
    free: Vec<usize>,
    tallies: [Tally; 2],
    value: Vec<u8>,
    measuring: bool,
    under_way: usize,
    unknown: u64,
}

impl Run {
    fn new(clients: usize, source: Source) -> Self {
        let clients: Vec<Client> = (0..clients).map(|_| Client::default()).collect();
        let free = (0..clients.len()).rev().collect();
        Self {
            source,
            clients,
            free,
            tallies: Default::default(),
            value: Vec::new(),
            measuring: false,
            under_way: 0,
            unknown: 0,
        }
    }

    /// Keeps all clients busy for this time, or until the source ends, and then waits for what is under way. The time
    /// that was measured.
    fn run(&mut self, on: &mut Loaded<'_>, time: Option<Duration>) -> Result<Duration, PeerError> {
        let begin = Instant::now();
        let (mut measured_from, mut elapsed, mut heard) = (begin, Duration::ZERO, begin);
        loop {
            let now = Instant::now();
            let running = time.is_none_or(|time| now - begin < time);
            if !self.measuring && time.is_some_and(|time| now - begin >= time / WARM_UP) {
                (self.measuring, measured_from) = (true, now);
            }
            if self.measuring && !running && elapsed.is_zero() {
                elapsed = now - measured_from;
                // What ends later is checked, and no longer counts.
                self.measuring = false;
            }
            while running && let Some(slot) = self.free.pop() {
                if !self.submit(on, slot)? {
                    break;
                }
            }
            if self.under_way == 0 {
                return Ok(elapsed);
            }
            let before = self.free.len();
            self.wait(on)?;
            if self.free.len() > before {
                heard = now;
            } else if now - heard > STUCK {
                return Err(PeerError::Stuck { after: STUCK });
            }
            if on.stop.load(Ordering::Relaxed) {
                return Err(PeerError::Interrupted);
            }
        }
    }

    /// The next request of a client; false if there are no more.
    fn submit(&mut self, on: &mut Loaded<'_>, slot: usize) -> Result<bool, PeerError> {
        let client = &mut self.clients[slot];
        let (record, writes, then) = match std::mem::take(&mut client.then) {
            Then::Write(record) => (record, true, Then::Draw),
            Then::Read(record, more) => (record, false, reads_on(record + 1, more - 1)),
            Then::Draw => match self.source.next() {
                None => return Ok(false),
                Some(Operation::Read(record)) => (record, false, Then::Draw),
                Some(Operation::Update(record) | Operation::Insert(record)) => (record, true, Then::Draw),
                Some(Operation::ReadModifyWrite(record)) => (record, false, Then::Write(record)),
                Some(Operation::Scan { start, count }) => {
                    (start, false, reads_on(start + 1, (count - 1).min(on.records.saturating_sub(start + 1))))
                }
            },
        };
        client.then = then;
        let pending = if writes {
            Pending::Write(on.values.write(record, &mut self.value))
        } else {
            Pending::Read(on.values.read(record))
        };
        let ask = if writes { Ask::Put(record, &self.value) } else { Ask::Get(record) };
        client.pending = Some((pending, Instant::now()));
        self.under_way += 1;
        on.store.submit(slot, ask)?;
        Ok(true)
    }

    fn wait(&mut self, on: &mut Loaded<'_>) -> Result<(), PeerError> {
        let Self { clients, free, tallies, measuring, under_way, unknown, .. } = self;
        let (values, mut wrong) = (&mut on.values, None);
        on.store.wait(&mut |slot, answer, at_node| {
            let now = Instant::now();
            let checked = match (clients.get_mut(slot).and_then(|client| client.pending.take()), answer) {
                (Some((Pending::Read(read), since)), Answer::Value(value)) => {
                    values.check(read, value).map(|()| Some((1, since)))
                }
                (Some((Pending::Write(write), since)), Answer::Written) => {
                    values.written(write);
                    Ok(Some((0, since)))
                }
                (Some(_), Answer::Unknown) => {
                    *unknown += 1;
                    Ok(None)
                }
                _ => Err(PeerError::Answer { what: "the store", why: "an answer that nobody waits for".into() }),
            };
            match checked {
                Ok(Some((side, since))) if *measuring => tallies[side].add(now - since, at_node),
                Ok(_) => {}
                Err(error) => wrong = Some(error),
            }
            free.push(slot);
            *under_way = under_way.saturating_sub(1);
        })?;
        wrong.map_or(Ok(()), Err)
    }
}

fn reads_on(record: u64, count: u64) -> Then {
    if count == 0 { Then::Draw } else { Then::Read(record, count) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::Done;
    use crate::ycsb::Workload;

    /// Records in this process; answers come in the order of the requests, a few at a time.
    #[derive(Default)]
    struct Map {
        records: std::collections::BTreeMap<u64, Vec<u8>>,
        asked: std::collections::VecDeque<(usize, Option<u64>)>,
        most: usize,
        /// The outcome of every so manieth request is not known.
        unsure: Option<usize>,
        answered: usize,
    }

    impl Store for Map {
        fn submit(&mut self, slot: usize, ask: Ask<'_>) -> Result<(), PeerError> {
            let read = match ask {
                Ask::Get(record) => Some(record),
                Ask::Put(record, value) => {
                    self.records.insert(record, value.to_vec());
                    None
                }
            };
            self.asked.push_back((slot, read));
            self.most = self.most.max(self.asked.len());
            Ok(())
        }

        fn wait(&mut self, done: Done<'_>) -> Result<(), PeerError> {
            for (slot, read) in self.asked.drain(..self.asked.len().min(3)) {
                self.answered += 1;
                if self.unsure.is_some_and(|unsure| self.answered.is_multiple_of(unsure)) {
                    done(slot, Answer::Unknown, None);
                    continue;
                }
                let value = |record| self.records.get(&record).map(|value| &value[..]);
                done(slot, read.map_or(Answer::Written, |record| Answer::Value(value(record))), None);
            }
            Ok(())
        }
    }

    fn load(mix: Mix, popularity: Popularity, clients: usize) -> Load {
        Load { mix, popularity, clients, time: Duration::from_millis(20), seed: 5 }
    }

    #[test]
    fn every_workload_runs_with_as_many_clients_as_asked_for() {
        for workload in Workload::ALL {
            let (mut map, stop) = (Map::default(), AtomicBool::new(false));
            let mut loaded = Loaded::new(&mut map, 50, 100, 4, &stop).unwrap();
            let mut load = load(workload.mix(), workload.popularity(), 4);
            let mut outcome = loaded.drive(&load).unwrap();
            // A busy machine does little in a time; too little may happen to be without the few writes of a mix.
            while outcome.reads.count + outcome.writes.count < 2000 {
                load.time *= 2;
                outcome = loaded.drive(&load).unwrap();
            }
            let Mix { update, insert, modify, .. } = workload.mix();
            assert!(outcome.reads.count > 0 && outcome.reads.rate > 0.0, "{workload:?}");
            assert_eq!(outcome.writes.count > 0, update + insert + modify > 0, "{workload:?}");
            assert!(outcome.reads.p50_ns <= outcome.reads.p99_ns);
            assert_eq!(outcome.reads.split, None, "it does not tell");
            assert!(map.asked.is_empty() && map.most == 4, "{workload:?}: {}", map.most);
        }
    }

    #[test]
    fn a_store_that_forgets_or_changes_is_found_out() {
        let stop = AtomicBool::new(false);
        let drive = |spoil: fn(&mut Map)| {
            let mut map = Map::default();
            let values = Loaded::new(&mut map, 1, 100, 1, &stop).unwrap().values;
            spoil(&mut map);
            let mut loaded = Loaded { store: &mut map, values, records: 1, stop: &stop };
            loaded.drive(&load(Mix::writes(0), Popularity::Uniform, 1)).map_err(|error| error.to_string())
        };
        assert!(drive(|_| ()).is_ok());
        assert!(drive(|map| map.records.clear()).unwrap_err().contains("no value"));
        assert!(
            drive(|map| map.records.values_mut().for_each(|value| value[50] ^= 1)).unwrap_err().contains("changed")
        );
    }

    #[test]
    fn writes_of_unknown_outcome_may_be_read_and_are_counted() {
        let (mut map, stop) = (Map { unsure: Some(3), ..Map::default() }, AtomicBool::new(false));
        let mut loaded = Loaded::new(&mut map, 2, 100, 4, &stop).unwrap();
        let outcome = loaded.drive(&load(Mix::writes(50), Popularity::Uniform, 4)).unwrap();
        assert!(outcome.unknown > 0 && outcome.writes.count > 0 && outcome.reads.count > 0);
    }

    #[test]
    fn who_wants_no_more_is_heard() {
        let (mut map, stop) = (Map::default(), AtomicBool::new(true));
        assert!(matches!(Loaded::new(&mut map, 100, 100, 1, &stop), Err(PeerError::Interrupted)));
    }

    #[test]
    fn latency_falls_into_two_parts() {
        let (mut tally, at_node) = (Tally::default(), AtNode { total_ns: 6_000, communication_ns: 2_000 });
        (0..10).for_each(|_| tally.add(Duration::from_micros(10), Some(at_node)));
        let side = tally.side(Duration::from_secs(1));
        assert_eq!(side.split, Some(Split { communication_ns: 6_000.0, computation_ns: 4_000.0 }));
        assert_eq!((side.count, side.rate), (10, 10.0));
        let mut silent = Tally::default();
        silent.add(Duration::from_micros(10), None);
        assert_eq!(silent.side(Duration::from_secs(1)).split, None);
    }
}

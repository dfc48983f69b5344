//! Requests kept under way at a store by one thread, and every answer checked.

use std::time::Duration;

use remora_lab::stats::Latencies;
use remora_model::time::Ps;

use super::value::{Read, Values, Write};
use super::{Answer, Ask, AtNode, PeerError, PeerStore};
use crate::load::{self, Arrivals, Begun, CallEnd, Trouble, Until, system_time};
use crate::ycsb::{Generator, Mix, Popularity, YcsbOperation};

/// After how long without any answer a store counts as stuck.
const STUCK: Duration = Duration::from_secs(20);
/// The part of a run before its latencies and rates count: 1 / this.
const WARM_UP: u64 = 10;

/// What to do to a store.
#[derive(Clone, Copy, Debug)]
pub struct StoreLoad {
    /// The operations. A scan is its reads one after another, a read-modify-write a read and then a write.
    pub mix: Mix,
    /// Instead, transactions of so many reads and writes of different records.
    pub transaction: Option<(u8, u8)>,
    /// How records are chosen.
    pub popularity: Popularity,
    /// Clients, each with one request under way.
    pub clients: usize,
    /// Operations a second that arrive whatever the store answers, and wait for a client that is free; `None`: each client
    /// asks as soon as it has its answer.
    pub arrivals_per_s: Option<f64>,
    /// How long it runs.
    pub time: Duration,
    /// Seeds the operations.
    pub seed: u64,
}

/// What came of a load.
#[derive(Clone, Copy, Debug, Default)]
pub struct Driven {
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
    store: &'a mut dyn PeerStore,
    values: Values,
    records: u64,
    stop: &'a dyn Fn() -> bool,
}

impl<'a> Loaded<'a> {
    /// Writes `records` records of `bytes` each.
    pub fn new(
        store: &'a mut dyn PeerStore,
        records: u64,
        bytes: usize,
        clients: usize,
        stop: &'a dyn Fn() -> bool,
    ) -> Result<Self, PeerError> {
        let mut loaded = Self { store, values: Values::new(bytes), records, stop };
        let mut driving = Driving::new(&mut loaded, clients, Source::Records(0..records));
        load::closed(&mut driving, clients as u32, Until::Over, &mut |_, _, _| {}, stop)?;
        Ok(loaded)
    }

    /// Runs a load.
    pub fn drive(&mut self, load: &StoreLoad) -> Result<Driven, PeerError> {
        // Room in the key space for what is inserted; how much makes no difference to the records that are chosen.
        let expected = 1_000_000;
        let generator = Generator::with(load.mix, load.popularity, self.records, expected, load.seed);
        let (stop, time, start) = (self.stop, load::ps(load.time), system_time());
        let source = match load.transaction {
            Some((reads, writes)) => Source::Transactions(Box::new(generator), reads.into(), writes.into()),
            None => Source::Operations(Box::new(generator)),
        };
        let mut driving = Driving::new(self, load.clients, source);
        let (from, end) = (start + Ps(time.0 / WARM_UP), start + time);
        let mut sides = [SideTally::default(), SideTally::default()];
        let mut tally = |told: Option<(usize, Option<AtNode>)>, since, at| {
            // What ends before and after is checked, and does not count.
            if let Some((side, at_node)) = told.filter(|_| (from..end).contains(&at)) {
                sides[side].add(load::duration(at - since), at_node);
            }
        };
        let (clients, until) = (load.clients as u32, Until::Time(time));
        match load.arrivals_per_s {
            None => load::closed(&mut driving, clients, until, &mut tally, stop)?,
            Some(per_s) => {
                let mut arrivals = Arrivals::poisson(per_s, load.seed);
                load::open(&mut driving, &mut arrivals, clients, until, &mut tally, stop)?
            }
        };
        let Driving { source, unknown, .. } = driving;
        if let Source::Operations(generator) = source {
            self.records = generator.records();
        }
        let [writes, reads] = sides.each_ref().map(|side| side.sum(load::duration(end - from)));
        Ok(Driven { writes, reads, unknown })
    }
}

/// Of writes (0) or reads (1).
#[derive(Default)]
struct SideTally {
    latencies: Latencies,
    /// Sums over those whose node tells.
    told: u64,
    told_ns: u64,
    communication_ns: u64,
}

impl SideTally {
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

    fn sum(&self, elapsed: Duration) -> Side {
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
    /// Transactions of so many reads and writes.
    Transactions(Box<Generator>, usize, usize),
}

impl Source {
    fn next(&mut self) -> Option<YcsbOperation> {
        match self {
            Self::Records(records) => records.next().map(YcsbOperation::Insert),
            Self::Operations(generator) | Self::Transactions(generator, ..) => Some(generator.draw()),
        }
    }

    /// Records of a transaction, all different, those that are read first, and how many these are; `None` if it is an operation
    /// that comes next.
    fn transaction(&mut self) -> Option<(Vec<u64>, usize)> {
        let Self::Transactions(generator, reads, writes) = self else { return None };
        let mut records = Vec::with_capacity(*reads + *writes);
        while records.len() < *reads + *writes {
            if let YcsbOperation::Read(record) = generator.draw()
                && !records.contains(&record)
            {
                records.push(record);
            }
        }
        Some((records, *reads))
    }
}

/// A client: what it has under way, and what it does after that.
#[derive(Default)]
struct Client {
    pending: Option<Pending>,
    then: Then,
}

enum Pending {
    Read(Read),
    Write(Write),
    Transaction(Vec<Read>, Vec<Write>),
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Then {
    #[default]
    Draw,
    Write(u64),
    /// Reads of this record on, so many.
    Read(u64, u64),
}

/// The clients of a store, as a loop drives them.
struct Driving<'a, 'b> {
    on: &'a mut Loaded<'b>,
    source: Source,
    clients: Vec<Client>,
    value: Vec<u8>,
    unknown: u64,
}

impl<'a, 'b> Driving<'a, 'b> {
    fn new(on: &'a mut Loaded<'b>, clients: usize, source: Source) -> Self {
        let clients = (0..clients).map(|_| Client::default()).collect();
        Self { on, source, clients, value: Vec::new(), unknown: 0 }
    }
}

impl load::Target for Driving<'_, '_> {
    /// Of a write (0) or a read (1), with what its node tells; `None` if the outcome is not known.
    type Told = Option<(usize, Option<AtNode>)>;
    type Error = PeerError;

    fn patience(&self) -> Duration {
        STUCK
    }

    fn now(&self) -> Ps {
        system_time()
    }

    fn begin(&mut self, slot: u32, _: Ps) -> Result<Begun, PeerError> {
        let Self { on, source, clients, value, .. } = self;
        let client = &mut clients[slot as usize];
        if let Some((records, reads)) = source.transaction() {
            let (read, written) = records.split_at(reads);
            let mut values = Vec::with_capacity(written.len());
            let mut write = |&record: &u64| {
                let write = on.values.write(record, value);
                values.push((record, value.clone()));
                write
            };
            let writes = written.iter().map(&mut write).collect();
            let reads = read.iter().map(|&record| on.values.read(record)).collect();
            client.pending = Some(Pending::Transaction(reads, writes));
            on.store.submit(slot as usize, Ask::Transact(read, &values))?;
            return Ok(Begun::Yes);
        }
        let (record, writes, then) = match std::mem::take(&mut client.then) {
            Then::Write(record) => (record, true, Then::Draw),
            Then::Read(record, more) => (record, false, reads_on(record + 1, more - 1)),
            Then::Draw => match source.next() {
                None => return Ok(Begun::Over),
                Some(YcsbOperation::Read(record)) => (record, false, Then::Draw),
                Some(YcsbOperation::Update(record) | YcsbOperation::Insert(record)) => (record, true, Then::Draw),
                Some(YcsbOperation::ReadModifyWrite(record)) => (record, false, Then::Write(record)),
                Some(YcsbOperation::Scan { start, count }) => {
                    (start, false, reads_on(start + 1, (count - 1).min(on.records.saturating_sub(start + 1))))
                }
            },
        };
        client.then = then;
        let (pending, ask) = if writes {
            (Pending::Write(on.values.write(record, value)), Ask::Put(record, value))
        } else {
            (Pending::Read(on.values.read(record)), Ask::Get(record))
        };
        client.pending = Some(pending);
        on.store.submit(slot as usize, ask)?;
        Ok(Begun::Yes)
    }

    fn again(&mut self, _: u32) -> Result<(), PeerError> {
        // None ends so: stores make requests again by themselves.
        Ok(())
    }

    fn poll(&mut self, _: Ps, ended: &mut impl FnMut(u32, Ps, CallEnd<Self::Told>)) -> Result<bool, PeerError> {
        let Self { on, clients, unknown, .. } = self;
        let (values, mut wrong) = (&mut on.values, None);
        on.store.wait(&mut |slot, answer, at_node| {
            let at = system_time();
            let client = clients.get_mut(slot);
            let more = client.as_ref().is_some_and(|client| client.then != Then::Draw);
            let checked = match (client.and_then(|client| client.pending.take()), answer) {
                (Some(Pending::Read(read)), Answer::Value(value)) => {
                    values.check(read, value).map(|()| Some((1, at_node)))
                }
                (Some(Pending::Write(write)), Answer::Written) => {
                    values.written(write);
                    Ok(Some((0, at_node)))
                }
                (Some(Pending::Transaction(reads, writes)), Answer::Transacted(read)) if reads.len() == read.len() => {
                    let side = usize::from(writes.is_empty());
                    writes.into_iter().for_each(|write| values.written(write));
                    let checked = reads.into_iter().zip(read).try_for_each(|(read, value)| values.check(read, *value));
                    checked.map(|()| Some((side, at_node)))
                }
                (Some(_), Answer::Unknown) => {
                    *unknown += 1;
                    Ok(None)
                }
                _ => Err(PeerError::Answer { what: "the store", why: "an answer that nobody waits for".into() }),
            };
            match checked {
                Ok(told) => ended(slot as u32, at, if more { CallEnd::More(told) } else { CallEnd::Right(told) }),
                Err(error) => wrong = Some(error),
            }
        })?;
        wrong.map_or(Ok(true), Err)
    }

    fn trouble(&self, trouble: Trouble) -> PeerError {
        match trouble {
            Trouble::Interrupted => PeerError::Interrupted,
            Trouble::Stuck(after) => PeerError::Stuck { after },
            Trouble::Wrong(why) => PeerError::Answer { what: "the store", why },
            Trouble::Still(_) => PeerError::Stuck { after: Duration::ZERO },
        }
    }
}

fn reads_on(record: u64, count: u64) -> Then {
    if count == 0 { Then::Draw } else { Then::Read(record, count) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::Done;
    use crate::workload::THETA;
    use crate::ycsb::WORKLOADS;

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

    impl PeerStore for Map {
        fn submit(&mut self, slot: usize, ask: Ask<'_>) -> Result<(), PeerError> {
            let read = match ask {
                Ask::Get(record) => Some(record),
                Ask::Put(record, value) => {
                    self.records.insert(record, value.to_vec());
                    None
                }
                Ask::Transact(..) => return Err(PeerError::Interrupted),
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

    fn load(mix: Mix, popularity: Popularity, clients: usize) -> StoreLoad {
        StoreLoad {
            mix,
            transaction: None,
            popularity,
            clients,
            arrivals_per_s: None,
            time: Duration::from_millis(20),
            seed: 5,
        }
    }

    #[test]
    fn every_workload_runs_with_as_many_clients_as_asked_for() {
        for workload in &WORKLOADS[2..] {
            let (mut map, stop) = (Map::default(), || false);
            let mut loaded = Loaded::new(&mut map, 50, 100, 4, &stop).unwrap();
            let mut load = load(workload.mix, workload.popularity(THETA), 4);
            let mut outcome = loaded.drive(&load).unwrap();
            // A busy machine does little in a time; too little may happen to be without the few writes of a mix.
            while outcome.reads.count + outcome.writes.count < 2000 {
                load.time *= 2;
                outcome = loaded.drive(&load).unwrap();
            }
            let Mix { update, insert, modify, .. } = workload.mix;
            assert!(outcome.reads.count > 0 && outcome.reads.rate > 0.0, "{workload:?}");
            assert_eq!(outcome.writes.count > 0, update + insert + modify > 0, "{workload:?}");
            assert!(outcome.reads.p50_ns <= outcome.reads.p99_ns);
            assert_eq!(outcome.reads.split, None, "it does not tell");
            assert!(map.asked.is_empty() && map.most == 4, "{workload:?}: {}", map.most);
        }
    }

    #[test]
    fn a_store_that_forgets_or_changes_is_found_out() {
        let stop = || false;
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
        let (mut map, stop) = (Map { unsure: Some(3), ..Map::default() }, || false);
        let mut loaded = Loaded::new(&mut map, 2, 100, 4, &stop).unwrap();
        let outcome = loaded.drive(&load(Mix::writes(50), Popularity::Uniform, 4)).unwrap();
        assert!(outcome.unknown > 0 && outcome.writes.count > 0 && outcome.reads.count > 0);
    }

    #[test]
    fn who_wants_no_more_is_heard() {
        let (mut map, stop) = (Map::default(), || true);
        assert!(matches!(Loaded::new(&mut map, 100, 100, 1, &stop), Err(PeerError::Interrupted)));
    }

    #[test]
    fn latency_falls_into_two_parts() {
        let (mut tally, at_node) = (SideTally::default(), AtNode { total_ns: 6_000, communication_ns: 2_000 });
        (0..10).for_each(|_| tally.add(Duration::from_micros(10), Some(at_node)));
        let side = tally.sum(Duration::from_secs(1));
        assert_eq!(side.split, Some(Split { communication_ns: 6_000.0, computation_ns: 4_000.0 }));
        assert_eq!((side.count, side.rate), (10, 10.0));
        let mut silent = SideTally::default();
        silent.add(Duration::from_micros(10), None);
        assert_eq!(silent.sum(Duration::from_secs(1)).split, None);
    }
}

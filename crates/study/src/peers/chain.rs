//! Remora's own chain: transactions at the head, and reads at any member. Or the same chain by group verbs, after HyperLoop
//! (SIGCOMM 2018), which take one key after the other: a WRITE with its FLUSH is a pass along the chain that writes one key, durable at
//! all nodes when it is answered, and a CAS one that expects what it replaces.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use remora_cluster::{
    ChainClient, ChainOutcome, ChainRefusal, ClusterClientConfig, ConnectedClient, Extent, Transaction, Tuple, Value,
};

use super::{Answer, Ask, Done, PeerError, PeerStore};

const WHAT: &str = "chain";
/// How long one [`PeerStore::wait`] sleeps at most.
const SHORT: Duration = Duration::from_millis(100);
/// How long it polls, letting others have the core, before it sleeps: longer than a durable transaction takes.
const POLLED: Duration = Duration::from_micros(800);
/// Records begin at a multiple of this (bytes), as keys do.
const CELL: u64 = 64;

/// Bytes of a lock.
const LOCK: usize = 8;

/// How a transaction is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// As one, in one pass along the chain.
    Whole,
    /// By group verbs: a READ for each key that is read, then for each that is written a WRITE with its FLUSH. Nothing keeps
    /// other clients apart.
    Verbs,
    /// The same, and before it a CAS for the lock of each key that is written, in their order, and a WRITE after it that lets
    /// go of each.
    LockedVerbs,
}

/// Clients of a chain.
pub struct ChainPeer {
    manner: Manner,
    /// Where locks are, behind the records.
    locks: u64,
    /// One at each node.
    clients: Vec<ChainClient>,
    /// Bytes of a record, and from one to the next.
    bytes: u64,
    stride: u64,
    slots: Vec<Slot>,
    /// Whose a transaction is, by node and ticket.
    whose: HashMap<(usize, u64), usize>,
    /// Transactions that a node had no room for.
    again: Vec<usize>,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Kind {
    #[default]
    Get,
    Put,
    Both,
}

#[derive(Clone, Default)]
struct Slot {
    kind: Kind,
    /// What is under way, and what follows it.
    transaction: Transaction,
    steps: VecDeque<Transaction>,
    /// What the steps before have read.
    read: Vec<Value>,
}

impl ChainPeer {
    /// Bytes of a chain for so many records of `bytes` each, and their locks.
    pub fn room(records: u64, bytes: u64) -> u64 {
        (records * (bytes.next_multiple_of(CELL) + CELL)).max(4096)
    }

    /// Connects for so many clients, to so many records of `bytes` each.
    pub fn connect(
        config: &ClusterClientConfig,
        manner: Manner,
        (records, bytes): (u64, u64),
        clients: usize,
    ) -> Result<Self, PeerError> {
        let connect = |node| ChainClient::connect(ClusterClientConfig { node, ..config.clone() });
        let connected = (0..config.nodes.len()).map(connect).collect::<Result<Vec<_>, _>>();
        let failed = |error: remora_real::Error| PeerError::Answer { what: WHAT, why: error.to_string() };
        let (stride, slots) = (bytes.next_multiple_of(CELL), vec![Slot::default(); clients]);
        let clients = connected.map_err(failed)?;
        let locks = records * stride;
        Ok(Self { manner, locks, clients, bytes, stride, slots, whose: HashMap::new(), again: Vec::new() })
    }

    /// Sends what a client has under way: what writes to the head, reads to the nodes in turn.
    fn send(&mut self, slot: usize) {
        let transaction = self.slots[slot].transaction.clone();
        let node = if transaction.writes.is_empty() { slot % self.clients.len() } else { 0 };
        let ticket = self.clients[node].start(transaction);
        self.whose.insert((node, ticket.0), slot);
    }
}

impl PeerStore for ChainPeer {
    fn submit(&mut self, slot: usize, ask: Ask<'_>) -> Result<(), PeerError> {
        let extent = |record: u64| Extent { offset: record * self.stride, length: self.bytes as u32 };
        let tuple = |record: u64, value: &[u8]| Tuple { offset: record * self.stride, data: value.into() };
        let mut transaction = Transaction::default();
        let kind = match ask {
            Ask::Get(record) => {
                transaction.reads.push(extent(record));
                Kind::Get
            }
            Ask::Put(record, value) => {
                transaction.writes.push(tuple(record, value));
                Kind::Put
            }
            Ask::Transact(reads, writes) => {
                transaction.reads.extend(reads.iter().copied().map(extent));
                transaction.writes.extend(writes.iter().map(|(record, value)| tuple(*record, value)));
                Kind::Both
            }
        };
        let mut steps = steps(self.manner, (self.locks, self.stride), slot, transaction);
        let transaction = steps.pop_front().unwrap_or_default();
        self.slots[slot] = Slot { kind, transaction, steps, read: Vec::new() };
        self.send(slot);
        Ok(())
    }

    fn wait(&mut self, done: Done<'_>) -> Result<(), PeerError> {
        let mut ended = Vec::new();
        for slot in std::mem::take(&mut self.again) {
            self.send(slot);
        }
        let begin = Instant::now();
        while ended.is_empty() && begin.elapsed() < SHORT {
            ConnectedClient::poll_any(&mut self.clients, &mut |node, done| ended.push((node, done)));
            if ended.is_empty() && begin.elapsed() > POLLED {
                ConnectedClient::wait_any(&mut self.clients, SHORT);
            }
        }
        for (node, ended) in ended {
            let Some(slot) = self.whose.remove(&(node, ended.ticket.0)) else { continue };
            let (mut outcome, locks) = (ended.outcome, !self.slots[slot].transaction.expects.is_empty());
            let ours = (slot as u64 + 1).to_le_bytes();
            match &outcome {
                // It was taken after all, by an attempt of which nobody heard.
                ChainOutcome::Unequal(read) if locks && read.iter().any(|held| held[..] == ours[..LOCK]) => {
                    outcome = ChainOutcome::Done(Vec::new());
                }
                // Verbs do the same again.
                ChainOutcome::Unknown if self.manner != Manner::Whole => {
                    self.again.push(slot);
                    continue;
                }
                _ => {}
            }
            if let ChainOutcome::Done(read) = &mut outcome {
                let of = &mut self.slots[slot];
                if !locks {
                    of.read.append(read);
                }
                if let Some(next) = of.steps.pop_front() {
                    of.transaction = next;
                    self.send(slot);
                    continue;
                }
                *read = std::mem::take(&mut of.read);
            }
            match (outcome, self.slots[slot].kind) {
                (ChainOutcome::Done(read), Kind::Both) => {
                    let read: Vec<Option<&[u8]>> = read.iter().map(|value| Some(&**value)).collect();
                    done(slot, Answer::Transacted(&read), None);
                }
                (ChainOutcome::Done(read), Kind::Get) => done(slot, Answer::Value(read.first().map(|it| &**it)), None),
                (ChainOutcome::Done(_), Kind::Put) => done(slot, Answer::Written, None),
                // Another client has the lock.
                (ChainOutcome::Unequal(_) | ChainOutcome::Refused(ChainRefusal::Busy), _) => self.again.push(slot),
                (ChainOutcome::Unknown, _) => done(slot, Answer::Unknown, None),
                (other, _) => {
                    return Err(PeerError::Answer { what: WHAT, why: format!("node {node} answers {other:?}") });
                }
            }
        }
        Ok(())
    }
}

/// What a client's transaction is made of, one after the other, on records that lie `stride` bytes apart and whose locks begin at
/// `locks`.
fn steps(manner: Manner, (locks, stride): (u64, u64), client: usize, whole: Transaction) -> VecDeque<Transaction> {
    if manner == Manner::Whole {
        return VecDeque::from([whole]);
    }
    let Transaction { reads, mut writes, .. } = whole;
    writes.sort_by_key(|tuple| tuple.offset);
    // A cell each, as keys have.
    let lock = |tuple: &Tuple, held: u64| Tuple {
        offset: locks + tuple.offset / stride * CELL,
        data: held.to_le_bytes()[..LOCK].into(),
    };
    let locked = manner == Manner::LockedVerbs;
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for tuple in writes.iter().filter(|_| locked) {
        let (free, ours) = (lock(tuple, 0), lock(tuple, client as u64 + 1));
        // Whose it is if it is not free.
        before.push(Transaction { reads: vec![free.extent()], expects: vec![free.clone()], writes: vec![ours] });
        after.push(Transaction { writes: vec![free], ..Transaction::default() });
    }
    let reads = reads.into_iter().map(|extent| Transaction { reads: vec![extent], ..Transaction::default() });
    let writes = writes.into_iter().map(|tuple| Transaction { writes: vec![tuple], ..Transaction::default() });
    before.into_iter().chain(reads).chain(writes).chain(after).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_take_one_key_after_the_other() {
        let tuple = |offset, byte: u8| Tuple { offset, data: vec![byte; 64].into() };
        let read = |offset| Extent { offset, length: 64 };
        let whole = Transaction {
            reads: vec![read(0), read(640)],
            writes: vec![tuple(320, 3), tuple(64, 1)],
            ..Default::default()
        };
        let of = |manner| Vec::from(steps(manner, (6400, 64), 4, whole.clone()));
        assert_eq!(of(Manner::Whole), *std::slice::from_ref(&whole));
        let verbs = of(Manner::Verbs);
        assert!(verbs.iter().all(|step| step.extents().count() == 1 && step.expects.is_empty()), "{verbs:?}");
        assert_eq!(
            verbs.iter().map(|step| step.extents().next().unwrap().offset).collect::<Vec<_>>(),
            [0, 640, 64, 320]
        );
        // Locks in the order of keys, so that nobody waits for who waits for him; all held until all is written.
        let locked = of(Manner::LockedVerbs);
        assert_eq!(locked[2..6], verbs[..]);
        for (step, key) in locked[..2].iter().zip([1u64, 5]) {
            let at = 6400 + key * 64;
            assert_eq!(step.expects, [Tuple { offset: at, data: vec![0; 8].into() }]);
            assert_eq!(step.writes, [Tuple { offset: at, data: vec![5, 0, 0, 0, 0, 0, 0, 0].into() }]);
        }
        let freed: Vec<&Tuple> = locked[6..].iter().flat_map(|step| &step.writes).collect();
        assert_eq!(freed, locked[..2].iter().flat_map(|step| &step.expects).collect::<Vec<_>>());
    }
}

//! Remora's own chain: transactions at the head, and reads at any member, or by one-sided READ of the head's window. Or the same chain by group verbs, after HyperLoop
//! (SIGCOMM 2018), which take one key after the other. Each verb for the whole group is a pass along the chain, by the NICs' threads
//! alone: a WRITE with its FLUSH writes one key, durable at all nodes when it is answered; a CAS expects what it replaces. A READ is
//! one-sided, of the head.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use remora_cluster::{
    ChainClient, ChainOutcome, ChainReader, ChainRefusal, ClusterClientConfig, ConnectedClient, Extent, Guard, ReadEnd,
    Transaction, Tuple, Value,
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
    /// The same, but what only reads by one-sided READs of the head's window. It is asked of the chain where these come to nothing.
    OneSided,
    /// By group verbs: a READ for each key that is read, then for each that is written a WRITE with its FLUSH. Nothing keeps
    /// other clients apart.
    Verbs,
    /// The same, and before it a CAS for the lock of each key that is written, in their order, and another one after it that
    /// lets go of each. As all passes they are durable, which locks need not be.
    LockedVerbs,
}

/// Clients of a chain.
pub struct ChainPeer {
    manner: Manner,
    /// Where locks are, behind the records.
    locks: u64,
    /// One at each node.
    clients: Vec<ChainClient>,
    /// Who READs, and whose a read is, by its ticket.
    reader: Option<ChainReader>,
    readers: HashMap<u64, usize>,
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
        // What is sealed is shown to no READ: then it is asked for.
        let seals = Guard::of(config.secret.is_some(), config.link) == Guard::Sealed;
        let reader = (manner != Manner::Whole && !seals).then(|| ChainReader::connect(config.clone()));
        let reader = reader.transpose().map_err(failed)?;
        let (locks, whose, again) = (records * stride, HashMap::new(), Vec::new());
        Ok(Self { manner, locks, clients, reader, readers: HashMap::new(), bytes, stride, slots, whose, again })
    }

    /// Begins what a client has under way.
    fn begin(&mut self, slot: usize) {
        let transaction = &self.slots[slot].transaction;
        match &mut self.reader {
            Some(reader) if transaction.writes.is_empty() => {
                let ticket = reader.start(&transaction.reads);
                self.readers.insert(ticket.0, slot);
            }
            _ => self.send(slot),
        }
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
        self.begin(slot);
        Ok(())
    }

    fn wait(&mut self, mut done: Done<'_>) -> Result<(), PeerError> {
        let (mut asked, mut looked) = (Vec::new(), Vec::new());
        for slot in std::mem::take(&mut self.again) {
            self.begin(slot);
        }
        let begin = Instant::now();
        while asked.is_empty() && looked.is_empty() && begin.elapsed() < SHORT {
            if let Some(reader) = &mut self.reader {
                reader.poll(&mut |end| looked.push(end));
            }
            // Who READs is not kept by connections that have nothing under way.
            if !self.whose.is_empty() || self.readers.is_empty() {
                ConnectedClient::poll_any(&mut self.clients, &mut |node, done| asked.push((node, done)));
            }
            if asked.is_empty() && looked.is_empty() && begin.elapsed() > POLLED {
                match &mut self.reader {
                    Some(reader) if !self.readers.is_empty() => reader.wait(SHORT),
                    _ => ConnectedClient::wait_any(&mut self.clients, SHORT),
                }
            }
        }
        for ReadEnd { ticket, values } in looked {
            let Some(slot) = self.readers.remove(&ticket.0) else { continue };
            match values {
                Some(values) => self.ended(slot, ChainOutcome::Done(values), &mut done)?,
                None => self.send(slot),
            }
        }
        for (node, ended) in asked {
            let Some(slot) = self.whose.remove(&(node, ended.ticket.0)) else { continue };
            self.ended(slot, ended.outcome, &mut done)?;
        }
        Ok(())
    }
}

impl ChainPeer {
    /// What a client had under way has ended: its next step begins, or the client is told.
    fn ended(&mut self, slot: usize, mut outcome: ChainOutcome, done: &mut Done<'_>) -> Result<(), PeerError> {
        let verbs = matches!(self.manner, Manner::Verbs | Manner::LockedVerbs);
        let of = &mut self.slots[slot];
        let locks = !of.transaction.expects.is_empty();
        match &outcome {
            ChainOutcome::Unequal(read) if locks && has_held(&of.transaction, read) => {
                outcome = ChainOutcome::Done(Vec::new());
            }
            // Verbs do the same again.
            ChainOutcome::Unknown if verbs => {
                self.again.push(slot);
                return Ok(());
            }
            _ => {}
        }
        if let ChainOutcome::Done(read) = &mut outcome {
            if !locks {
                of.read.append(read);
            }
            if let Some(next) = of.steps.pop_front() {
                of.transaction = next;
                self.begin(slot);
                return Ok(());
            }
            *read = std::mem::take(&mut of.read);
        }
        match (outcome, of.kind) {
            (ChainOutcome::Done(read), Kind::Both) => {
                let read: Vec<Option<&[u8]>> = read.iter().map(|value| Some(&**value)).collect();
                done(slot, Answer::Transacted(&read), None);
            }
            (ChainOutcome::Done(read), Kind::Get) => done(slot, Answer::Value(read.first().map(|it| &**it)), None),
            (ChainOutcome::Done(_), Kind::Put) => done(slot, Answer::Written, None),
            // Another client has the lock.
            (ChainOutcome::Unequal(_) | ChainOutcome::Refused(ChainRefusal::Busy), _) => self.again.push(slot),
            (ChainOutcome::Unknown, _) => done(slot, Answer::Unknown, None),
            (other, _) => return Err(PeerError::Answer { what: WHAT, why: format!("a node answers {other:?}") }),
        }
        Ok(())
    }
}

/// Whether a CAS that found this was done all the same, by an attempt of which nobody heard: what it puts there is there, or it was to
/// let go, which only its client does.
fn has_held(cas: &Transaction, found: &[Value]) -> bool {
    let (put, lets_go) = (&cas.writes[0].data, cas.writes[0].data.iter().all(|&byte| byte == 0));
    lets_go || found.first() == Some(put)
}

/// What a client's transaction is made of, one after the other, on records that lie `stride` bytes apart and whose locks begin at
/// `locks`.
fn steps(manner: Manner, (locks, stride): (u64, u64), client: usize, whole: Transaction) -> VecDeque<Transaction> {
    if matches!(manner, Manner::Whole | Manner::OneSided) {
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
    // It brings what was there.
    let cas = |from: &Tuple, to: &Tuple| Transaction {
        reads: vec![from.extent()],
        expects: vec![from.clone()],
        writes: vec![to.clone()],
    };
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for tuple in writes.iter().filter(|_| locked) {
        let (free, ours) = (lock(tuple, 0), lock(tuple, client as u64 + 1));
        before.push(cas(&free, &ours));
        after.push(cas(&ours, &free));
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
        for (took, freed) in locked[..2].iter().zip(&locked[6..]) {
            assert_eq!((&took.expects, &took.writes), (&freed.writes, &freed.expects));
            // Asked again, each knows whether it was done before.
            let [free, ours] = [&took.expects, &took.writes].map(|tuples| tuples[0].data.clone());
            let others: Value = 9u64.to_le_bytes()[..].into();
            let held = |step, found: &Value| has_held(step, std::slice::from_ref(found));
            assert_eq!([&free, &ours, &others].map(|found| held(took, found)), [false, true, false]);
            assert_eq!([&free, &others].map(|found| held(freed, found)), [true, true]);
        }
    }
}

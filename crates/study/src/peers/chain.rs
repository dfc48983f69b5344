//! Remora's own chain: transactions at the head, and reads at any member.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use remora_cluster::{
    ChainClient, ChainOutcome, ChainRefusal, ClusterClientConfig, ConnectedClient, Extent, Transaction, Tuple,
};

use super::{Answer, Ask, Done, PeerError, PeerStore};

const WHAT: &str = "chain";
/// How long one [`PeerStore::wait`] sleeps at most.
const SHORT: Duration = Duration::from_millis(100);
/// How long it polls, letting others have the core, before it sleeps: longer than a durable transaction takes.
const POLLED: Duration = Duration::from_micros(800);
/// Records begin at a multiple of this (bytes), as keys do.
const CELL: u64 = 64;

/// Clients of a chain.
pub struct ChainPeer {
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
    transaction: Transaction,
}

impl ChainPeer {
    /// Bytes of a chain for so many records of `bytes` each.
    pub fn room(records: u64, bytes: u64) -> u64 {
        (records * bytes.next_multiple_of(CELL)).max(4096)
    }

    /// Connects for so many clients, whose records have `bytes` each.
    pub fn connect(config: &ClusterClientConfig, bytes: u64, clients: usize) -> Result<Self, PeerError> {
        let connect = |node| ChainClient::connect(ClusterClientConfig { node, ..config.clone() });
        let connected = (0..config.nodes.len()).map(connect).collect::<Result<Vec<_>, _>>();
        let failed = |error: remora_real::Error| PeerError::Answer { what: WHAT, why: error.to_string() };
        let (stride, slots) = (bytes.next_multiple_of(CELL), vec![Slot::default(); clients]);
        let clients = connected.map_err(failed)?;
        Ok(Self { clients, bytes, stride, slots, whose: HashMap::new(), again: Vec::new() })
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
        self.slots[slot] = Slot { kind, transaction };
        self.send(slot);
        Ok(())
    }

    fn wait(&mut self, done: Done<'_>) -> Result<(), PeerError> {
        let mut ended = Vec::new();
        let begin = Instant::now();
        while ended.is_empty() && begin.elapsed() < SHORT {
            ConnectedClient::poll_any(&mut self.clients, &mut |node, done| ended.push((node, done)));
            if ended.is_empty() && begin.elapsed() > POLLED {
                ConnectedClient::wait_any(&mut self.clients, SHORT);
            }
        }
        for slot in std::mem::take(&mut self.again) {
            self.send(slot);
        }
        for (node, ended) in ended {
            let Some(slot) = self.whose.remove(&(node, ended.ticket.0)) else { continue };
            match (ended.outcome, self.slots[slot].kind) {
                (ChainOutcome::Done(read), Kind::Both) => {
                    let read: Vec<Option<&[u8]>> = read.iter().map(|value| Some(&**value)).collect();
                    done(slot, Answer::Transacted(&read), None);
                }
                (ChainOutcome::Done(read), Kind::Get) => done(slot, Answer::Value(read.first().map(|it| &**it)), None),
                (ChainOutcome::Done(_), Kind::Put) => done(slot, Answer::Written, None),
                (ChainOutcome::Refused(ChainRefusal::Busy), _) => self.again.push(slot),
                (ChainOutcome::Unknown, _) => done(slot, Answer::Unknown, None),
                (other, _) => {
                    return Err(PeerError::Answer { what: WHAT, why: format!("node {node} answers {other:?}") });
                }
            }
        }
        Ok(())
    }
}

//! Requests under way at a node, and where the time of writes goes.
//!
//! Communication is from when a write's INVs leave until the last acknowledgement that its answer waits for, without the
//! time for which the sender of that had worked on it: it says so, and this node says it of others' writes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use remora_nic::{Qpn, Time};
use remora_replica::ddp::{AckKind, Body};
use remora_replica::types::{Key, Timestamp};

/// Writes of others whose arrival is remembered.
const HELD: usize = 1 << 16;

/// Requests of all clients at one time.
const REQUESTS: usize = 1 << 16;
/// Bytes of their frames: they wait in the engine, a write for a node that does not answer.
const BYTES: usize = 256 << 20;
/// The same of one client: four of the longest.
const CLIENT_BYTES: usize = 16 << 20;

/// See the module.
#[derive(Default)]
pub(super) struct UnderWay {
    /// A tag is an index, and above it a count that makes it unique.
    pending: Vec<Option<Pending>>,
    free: Vec<u32>,
    tags: u64,
    /// Bytes of their frames, all together and of each client that has some.
    bytes: usize,
    of_clients: BTreeMap<u64, usize>,
    /// Which request a write of this node answers.
    rounds: BTreeMap<(Key, Timestamp), u64>,
    /// When writes of others came that are not acknowledged yet.
    held: BTreeMap<(Key, Timestamp), Time>,
}

/// A client's request.
pub(super) struct Pending {
    tag: u64,
    /// Who asks, by what connection, and under which tag.
    pub client: u64,
    pub qpn: Qpn,
    pub theirs: u64,
    pub writes: bool,
    bytes: usize,
    pub since: Time,
    round: Option<Round>,
}

/// A write's round to the other nodes.
struct Round {
    write: (Key, Timestamp),
    /// When the INVs left.
    sent: Time,
    /// So far.
    communication: Time,
}

impl UnderWay {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.pending.len() - self.free.len()
    }

    /// Whether there is room for a client's frame of so many bytes, beside those under way.
    pub fn has_room(&self, client: u64, bytes: usize) -> bool {
        let theirs = self.of_clients.get(&client).copied().unwrap_or(0);
        self.len() < REQUESTS && theirs + bytes <= CLIENT_BYTES && self.bytes + bytes <= BYTES
    }

    /// One more, of so many bytes. Returns its tag.
    pub fn begin(&mut self, (client, qpn, theirs): (u64, Qpn, u64), bytes: usize, writes: bool, since: Time) -> u64 {
        self.bytes += bytes;
        *self.of_clients.entry(client).or_default() += bytes;
        let index = self.free.pop().unwrap_or(self.pending.len() as u32);
        self.tags += 1;
        let tag = self.tags << 32 | u64::from(index);
        let pending = Pending { tag, client, qpn, theirs, writes, bytes, since, round: None };
        match self.pending.get_mut(index as usize) {
            Some(place) => *place = Some(pending),
            None => self.pending.push(Some(pending)),
        }
        tag
    }

    /// The engine has answered. If it was a write that went to others, also how long communication took.
    pub fn end(&mut self, tag: u64) -> Option<(Pending, Option<Time>)> {
        let mut pending = self.pending.get_mut(tag as u32 as usize)?.take_if(|pending| pending.tag == tag)?;
        self.free.push(tag as u32);
        self.bytes -= pending.bytes;
        if let Entry::Occupied(mut theirs) = self.of_clients.entry(pending.client) {
            *theirs.get_mut() -= pending.bytes;
            if *theirs.get() == 0 {
                theirs.remove();
            }
        }
        let round = pending.round.take();
        if let Some(round) = &round {
            self.rounds.remove(&round.write);
        }
        Some((pending, round.map(|round| round.communication)))
    }

    /// Another node has said this, and has held what it answers for `held`.
    pub fn hears(&mut self, now: Time, body: &Body, held: Time) {
        match body {
            Body::Inv(writes) if self.held.len() < HELD => {
                self.held.extend(writes.iter().map(|write| ((write.key, write.ts), now)));
            }
            Body::Inv(_) => self.held.clear(),
            Body::Ack(key, ts, _) => self.acknowledged(now, (*key, *ts), held),
            _ => {}
        }
    }

    /// The last acknowledgement is the one that the answer waits for.
    fn acknowledged(&mut self, now: Time, write: (Key, Timestamp), held: Time) {
        let Some(&tag) = self.rounds.get(&write) else { return };
        if let Some(Some(pending)) = self.pending.get_mut(tag as u32 as usize)
            && pending.tag == tag
            && let Some(round) = &mut pending.round
        {
            round.communication = now.saturating_sub(round.sent).saturating_sub(held);
        }
    }

    /// This node says something, working on the request `asked`: for how long it has held what that answers. `acks_twice`
    /// says that ACK_P follows ACK_C.
    pub fn says(&mut self, now: Time, body: &Body, asked: Option<u64>, acks_twice: bool) -> Time {
        match body {
            Body::Inv(writes) => self.begin_round(now, asked, writes.first().map(|write| (write.key, write.ts))),
            Body::Ack(key, ts, kind) => {
                let write = (*key, *ts);
                let held = self.held.get(&write).map_or(0, |since| now.saturating_sub(*since));
                if !acks_twice || *kind != AckKind::Consistency {
                    self.held.remove(&write);
                }
                return held;
            }
            Body::Refuse(key, ts) => drop(self.held.remove(&(*key, *ts))),
            Body::Val(key, ts, _) => drop(self.rounds.remove(&(*key, *ts))),
            _ => {}
        }
        0
    }

    fn begin_round(&mut self, now: Time, asked: Option<u64>, write: Option<(Key, Timestamp)>) {
        let (Some(tag), Some(write)) = (asked, write) else { return };
        if let Some(Some(pending)) = self.pending.get_mut(tag as u32 as usize)
            && pending.tag == tag
            && pending.round.is_none()
        {
            pending.round = Some(Round { write, sent: now, communication: 0 });
            self.rounds.insert(write, tag);
        }
    }
}

//! Sequences of what clients and the network may do to a cluster, from any bytes: for fuzzing, and in short for a property
//! test.
//!
//! Three nodes exchange what they say; on the first one any number of clients' connections carry well-formed requests, cut
//! anywhere, and garbage. Time passes, logs become durable or not, disks fill up, messages come twice or never, nodes crash.

use std::collections::{BTreeMap, BTreeSet};

use remora_nic::Now;

use crate::Time;
use crate::bounds::Bounds;
use crate::ddp::{Config, Model, Op, Outcome, Request, Session};
use crate::frames::{Answered, Asked, decode_packet, encode_packet, encode_request, within};
use crate::node::{Change, NodeOutput, ReplicaNode};
use crate::stream::{Inbound, put_frame};
use crate::types::{NodeId, NodeSet, Value};

const NODES: usize = 3;
/// Longest frame that is taken here; and what may be queued.
const FRAME: usize = 2000;
const QUEUED: usize = 500;

/// Bytes to draw from; zeros behind their end.
struct Source<'a>(&'a [u8]);

impl<'a> Source<'a> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let count = count.min(self.0.len());
        self.0.split_off(..count).unwrap_or(&[])
    }
}

/// A node with its log, which may be behind what it wants durable.
struct Place {
    node: ReplicaNode,
    durable: Vec<u8>,
    log: Vec<(u64, Change)>,
    room: Option<usize>,
}

/// All of them, and who waits.
struct World {
    config: Config,
    now: Time,
    places: Vec<Place>,
    /// Packets on their way, in bytes, with sender and receiver.
    network: Vec<(usize, usize, Vec<u8>)>,
    /// What clients have sent and is not a whole frame yet.
    inbound: BTreeMap<usize, Vec<u8>>,
    /// Tags of requests without an answer.
    open: BTreeSet<u64>,
    tags: u64,
}

/// Runs the sequence that these bytes say.
///
/// # Panics
///
/// If a node answers what nobody asked, says what does not come back from its bytes, or has more appended than its disk has
/// room for.
#[doc(hidden)]
pub fn run(bytes: &[u8]) {
    let mut source = Source(bytes);
    let model = Model::ALL[source.below(Model::ALL.len())];
    let config = Config { max_value: 600, ..Config::new(NodeId(0), NodeSet::first(NODES as u8), model) };
    let places = (0..NODES).map(|node| Place::new(&config, node, 0, Vec::new())).collect();
    let (network, inbound, open) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
    let mut world = World { config, now: 0, places, network, inbound, open, tags: 0 };
    while !source.0.is_empty() {
        world.step(&mut source);
        (0..NODES).for_each(|node| world.outputs(node));
    }
}

impl Place {
    fn new(config: &Config, node: usize, now: Time, durable: Vec<u8>) -> Self {
        let config = Config { id: NodeId(node as u8), ..config.clone() };
        Self { node: ReplicaNode::new(config, now, &durable), durable, log: Vec::new(), room: None }
    }
}

impl World {
    fn step(&mut self, source: &mut Source<'_>) {
        let node = source.below(NODES);
        match source.below(12) {
            0..=2 => self.request(source),
            3 => {
                let (client, count) = (source.below(3), source.below(40));
                let bytes = source.bytes(count);
                self.inbound.entry(client).or_default().extend_from_slice(bytes);
                self.frames(client);
            }
            4..=7 => self.deliver(source),
            8 => {
                self.now += 1 << (10 + source.below(18));
                (0..NODES).for_each(|node| self.places[node].node.timeout(&Now::simulated(self.now)));
            }
            9 => self.sync(node),
            10 => {
                let room = match source.below(3) {
                    0 => None,
                    _ => Some((256 << 10) + 8 * source.below(256)),
                };
                self.places[node].room = room;
                self.places[node].node.set_room(&Now::simulated(self.now), room);
            }
            _ => {
                // What was not durable is lost, and who waited for this node waits in vain.
                let durable = std::mem::take(&mut self.places[node].durable);
                self.places[node] = Place::new(&self.config, node, self.now, durable);
                if node == 0 {
                    self.open.clear();
                    self.inbound.clear();
                }
            }
        }
    }

    /// A client's request, of which the last bytes may come later, or never.
    fn request(&mut self, source: &mut Source<'_>) {
        let (client, kind, key) = (source.below(3), source.below(8), source.below(3) as u64);
        let value = |source: &mut Source<'_>| Value::from(vec![source.byte(); 3 * source.below(256)]);
        let op = match kind {
            0 => Op::Get(key),
            1 => Op::Put(key, value(source)),
            2 => Op::Delete(key),
            3 => Op::CompareSwap { key, expected: None, new: Some(value(source)) },
            4 => Op::FetchAdd(key, 1),
            5 => Op::Batch(vec![Op::Get(key), Op::Put(key + 1, value(source))]),
            6 => Op::Batch(vec![Op::Persist; 8 * source.below(256)]),
            _ => Op::Persist,
        };
        let drawn = source.byte();
        let session = (drawn & 1 == 1).then_some(Session {
            client: u64::from(drawn >> 1 & 1),
            sequence: u64::from(drawn >> 2 & 3),
            attempt: u32::from(drawn >> 4 & 1),
        });
        self.tags += 1;
        let request = Request { tag: self.tags, session, scope: (drawn & 0x20 != 0).then_some(key), op };
        let mut bytes = Vec::new();
        put_frame(&mut bytes, |out| encode_request(&request, out));
        let sent = if drawn >> 6 == 3 { source.below(bytes.len()) } else { bytes.len() };
        self.inbound.entry(client).or_default().extend_from_slice(&bytes[..sent]);
        self.frames(client);
    }

    /// Takes a client's whole frames, as a node does.
    fn frames(&mut self, client: usize) {
        let bytes = self.inbound.remove(&client).unwrap_or_default();
        let mut inbound = Inbound::new(bytes, FRAME);
        loop {
            let frame = match inbound.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                // The connection is over.
                Err(_) => return,
            };
            match Asked::decode(inbound.bytes(frame), Bounds::SHIPPED.batch) {
                Some(Asked::Request(request)) => {
                    // The node gives requests tags of its own.
                    self.tags += 1;
                    self.open.insert(self.tags);
                    self.places[0].node.submit(&Now::simulated(self.now), Request { tag: self.tags, ..request });
                    self.outputs(0);
                }
                Some(Asked::TooMany(_) | Asked::Status) => {}
                None => return,
            }
        }
        self.inbound.insert(client, inbound.rest());
    }

    /// A packet arrives, or twice, or never; any one of those under way.
    fn deliver(&mut self, source: &mut Source<'_>) {
        if self.network.is_empty() {
            return;
        }
        let (from, to, bytes) = self.network.remove(source.below(self.network.len()));
        let times = [1, 1, 1, 1, 1, 1, 0, 2][source.below(8)];
        for _ in 0..times {
            let (packet, held) = decode_packet(&bytes).unwrap_or_else(|| panic!("a packet that does not come back"));
            let mut again = Vec::new();
            encode_packet(&packet, held, &mut again);
            assert!(again == bytes, "a packet is written in two ways");
            self.places[to].node.handle(&Now::simulated(self.now), NodeId(from as u8), packet);
        }
    }

    /// All that a node wants durable is.
    fn sync(&mut self, node: usize) {
        let place = &mut self.places[node];
        let Some(&(last, _)) = place.log.last() else { return };
        for (_, change) in place.log.drain(..) {
            match change {
                Change::Append(bytes) => place.durable.extend_from_slice(&bytes),
                Change::Replace(bytes) => place.durable = bytes,
                Change::Compact(snapshot) => place.durable = snapshot.encode(),
            }
        }
        place.node.persisted(&Now::simulated(self.now), last);
    }

    fn outputs(&mut self, node: usize) {
        while let Some(output) = self.places[node].node.poll() {
            match output {
                NodeOutput::Send(to, packet) => {
                    let mut bytes = Vec::new();
                    encode_packet(&packet, 0, &mut bytes);
                    let others = to.iter().map(|to| usize::from(to.0)).filter(|&to| to < NODES && to != node);
                    others.for_each(|to| self.network.push((node, to, bytes.clone())));
                    let over = self.network.len().saturating_sub(QUEUED);
                    self.network.drain(..over);
                }
                NodeOutput::Log(token, change) => {
                    let place = &mut self.places[node];
                    if let (Some(room), Change::Append(bytes)) = (&mut place.room, &change) {
                        let rest = room.checked_sub(bytes.len());
                        *room = rest.unwrap_or_else(|| panic!("{} bytes where there is room for {room}", bytes.len()));
                    }
                    place.log.push((token, change));
                }
                NodeOutput::Reply(reply) => {
                    assert!(node != 0 || self.open.remove(&reply.tag), "{reply:?} to nobody");
                    answer(reply.outcome);
                }
                NodeOutput::Job(job) => self.places[node].node.done(&Now::simulated(self.now), job.id()),
                NodeOutput::Step(_) => {}
            }
        }
    }
}

/// An answer goes into its bounds, and comes back from its bytes.
fn answer(outcome: Outcome) {
    let outcome = within(outcome, &mut (FRAME / 2));
    let answered = Answered::Reply(crate::ddp::Reply { tag: 1, outcome }, Default::default());
    let mut bytes = Vec::new();
    answered.encode(&mut bytes);
    assert_eq!(Answered::decode(&bytes, Bounds::SHIPPED.batch), Some(answered));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_sequence_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            super::run(&bytes);
        }
    }
}

//! What clients and nodes of a cluster say to each other in frames, and how what is long is cut.
//!
//! Frames go over [`crate::stream::Streams`]. A frame's length is checked before it is kept, and how many parts it has
//! before they are made of it: a byte that is a whole operation takes many in memory.

use crate::Time;
use crate::chain::{ChainReply, ChainRequest};
use crate::client::Split;
use crate::ddp::{Body, Message, Outcome, Refusal, Reply, Request, Write};
use crate::node::Packet;
use crate::status::NodeStatus;

/// A request, or the answer to one.
pub trait Framed: Sized {
    /// Appends its bytes.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads one with at most `batch` operations; all of `bytes` must be it.
    fn read(bytes: &[u8], batch: usize) -> Result<Self, BadRequest>;
}

macro_rules! framed {
    ($($name:ident: $read:expr),* $(,)?) => {$(
        impl Framed for $name {
            fn put(&self, out: &mut Vec<u8>) {
                self.encode(out);
            }

            fn read(bytes: &[u8], batch: usize) -> Result<Self, BadRequest> {
                let read: fn(&[u8], usize) -> Result<Self, BadRequest> = $read;
                read(bytes, batch)
            }
        }
    )*};
}

framed! {
    Request: Self::decode,
    Reply: |bytes, batch| Self::decode(bytes, batch).map_err(|_| BadRequest::Malformed),
    // How many parts a transaction has is bounded by what it is.
    ChainRequest: |bytes, _| Self::decode(bytes).map_err(|_| BadRequest::Malformed),
    ChainReply: |bytes, _| Self::decode(bytes).map_err(|_| BadRequest::Malformed),
}

/// From a client to a node.
#[derive(Clone, PartialEq, Debug)]
pub enum Asked<R = Request> {
    /// To do something.
    Request(R),
    /// To do something, with more operations than are taken at once. It is known by its tag and not looked at further.
    TooMany(u64),
    /// How the node is.
    Status,
}

/// From a node to a client.
#[derive(Clone, PartialEq, Debug)]
pub enum Answered<P = Reply> {
    /// How a request ended, and where its time went.
    Reply(P, Split),
    /// How the node is.
    Status(Box<NodeStatus>),
}

/// Why bytes are not a request to be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadRequest {
    /// They are none.
    #[error("not a request")]
    Malformed,
    /// It has this tag, and a batch of more operations than there may be; what they are was not looked at.
    #[error("a batch of too many operations")]
    TooMany(u64),
}

/// A request's frame.
pub fn encode_request(request: &impl Framed, out: &mut Vec<u8>) {
    out.push(1);
    request.put(out);
}

impl<R: Framed> Asked<R> {
    /// Appends its bytes. One that was too long has none.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Request(request) => encode_request(request, out),
            Self::TooMany(_) => {}
            Self::Status => out.push(2),
        }
    }

    /// Reads one with at most `batch` operations.
    pub fn decode(bytes: &[u8], batch: usize) -> Option<Self> {
        match bytes.split_first()? {
            (1, rest) => match R::read(rest, batch) {
                Ok(request) => Some(Self::Request(request)),
                Err(BadRequest::TooMany(tag)) => Some(Self::TooMany(tag)),
                Err(BadRequest::Malformed) => None,
            },
            (2, []) => Some(Self::Status),
            _ => None,
        }
    }
}

impl<P: Framed> Answered<P> {
    /// Appends its bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Reply(reply, split) => {
                out.push(1);
                out.extend_from_slice(&split.total_ns.to_le_bytes());
                out.extend_from_slice(&split.communication_ns.to_le_bytes());
                reply.put(out);
            }
            Self::Status(status) => {
                out.push(2);
                status.encode(out);
            }
        }
    }

    /// Reads one about at most `batch` operations.
    pub fn decode(bytes: &[u8], batch: usize) -> Option<Self> {
        match bytes.split_first()? {
            (1, rest) => {
                let total_ns = u64::from_le_bytes(*rest.first_chunk()?);
                let communication_ns = u64::from_le_bytes(*rest.get(8..)?.first_chunk()?);
                let reply = P::read(rest.get(16..)?, batch).ok()?;
                Some(Self::Reply(reply, Split { total_ns, communication_ns }))
            }
            (2, rest) => NodeStatus::decode(rest).map(|status| Self::Status(Box::new(status))),
            _ => None,
        }
    }
}

/// A packet of another node, behind the time (ns) for which the node has held what it answers.
pub fn encode_packet(packet: &Packet, held: Time, out: &mut Vec<u8>) {
    out.extend_from_slice(&held.to_le_bytes());
    packet.encode(out);
}

/// Reads what [`encode_packet`] writes.
pub fn decode_packet(bytes: &[u8]) -> Option<(Packet, Time)> {
    let held = u64::from_le_bytes(*bytes.first_chunk()?);
    Some((Packet::decode(&bytes[8..]).ok()?, held))
}

/// A batch's INVs in packets of at most `most` bytes, or with one write each.
pub fn split(packet: Packet, most: usize, mut send: impl FnMut(Packet)) {
    let length = |write: &Write| 96 + 32 * write.stamps.len() + write.bytes();
    let Packet::Replica(Message { epoch, body: Body::Inv(mut writes) }) = packet else { return send(packet) };
    while !writes.is_empty() {
        let mut room = most;
        let fits = |write: &&Write| {
            let fits = length(write) <= room;
            room = room.saturating_sub(length(write));
            fits
        };
        let count = writes.iter().take_while(fits).count().max(1);
        let rest = writes.split_off(count);
        let body = Body::Inv(std::mem::replace(&mut writes, rest));
        send(Packet::Replica(Message { epoch, body }));
    }
}

/// An answer without the contents for which there is no room, in bytes; a client that wants them asks for them one by
/// one.
pub fn within(outcome: Outcome, room: &mut usize) -> Outcome {
    let bytes = match &outcome {
        Outcome::Value(Some(value)) | Outcome::NotSwapped(Some(value)) => 16 + value.len(),
        Outcome::Batch(_) => 0,
        _ => 16,
    };
    match outcome {
        Outcome::Batch(outcomes) => Outcome::Batch(outcomes.into_iter().map(|outcome| within(outcome, room)).collect()),
        // Neither has changed anything.
        Outcome::Value(_) | Outcome::NotSwapped(_) if bytes > *room => Outcome::Refused(Refusal::TooLong),
        other => {
            *room = room.saturating_sub(bytes);
            other
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::{Bounds, PERSIST_RECORD, SCOPE_OVER};
    use crate::ddp::Op;
    use crate::types::{Key, NodeId, Timestamp};

    const BATCH: usize = Bounds::SHIPPED.batch;

    #[test]
    fn what_is_asked_and_answered_comes_back() {
        let asked = [Asked::Request(Request::new(7, Op::Get(1))), Asked::Status];
        for asked in asked {
            let mut bytes = Vec::new();
            asked.encode(&mut bytes);
            assert_eq!(Asked::decode(&bytes, BATCH), Some(asked));
        }
        let split = Split { total_ns: 5, communication_ns: 3 };
        let reply = Reply { tag: 1, outcome: Outcome::Written };
        for answered in [Answered::<Reply>::Reply(reply, split), Answered::Status(Box::default())] {
            let mut bytes = Vec::new();
            answered.encode(&mut bytes);
            assert_eq!(Answered::decode(&bytes, BATCH), Some(answered));
        }
    }

    #[test]
    fn a_batch_of_too_many_operations_is_known_by_its_tag_however_they_lie() {
        let asked = |op| {
            let mut bytes = Vec::new();
            encode_request(&Request::new(7, op), &mut bytes);
            Asked::<Request>::decode(&bytes, BATCH)
        };
        let gets = |count: usize| Op::Batch(vec![Op::Get(1); count]);
        assert!(matches!(asked(gets(BATCH)), Some(Asked::Request(_))));
        assert_eq!(asked(gets(BATCH + 1)), Some(Asked::TooMany(7)));
        assert_eq!(asked(Op::Batch(vec![gets(BATCH / 2); 3])), Some(Asked::TooMany(7)));
        // Four million operations of a byte each.
        let mut bytes = Vec::new();
        encode_request(&Request::new(9, Op::Batch(Vec::new())), &mut bytes);
        let length = bytes.len() - 4;
        bytes.truncate(length);
        bytes.extend_from_slice(&(4u32 << 20).to_le_bytes());
        bytes.resize(bytes.len() + (4 << 20), 6);
        assert_eq!(Asked::<Request>::decode(&bytes, BATCH), Some(Asked::TooMany(9)));
        let mut bytes = Vec::new();
        let outcome = Outcome::Batch(vec![Outcome::Written; BATCH + 1]);
        Answered::Reply(Reply { tag: 1, outcome }, Split::default()).encode(&mut bytes);
        assert_eq!(Answered::<Reply>::decode(&bytes, BATCH), None);
    }

    #[test]
    fn what_an_answer_has_no_room_for_is_refused_and_the_rest_is_answered() {
        let value = || Outcome::Value(Some(vec![7; 100].into()));
        let batch = Outcome::Batch(vec![value(), Outcome::Written, value(), Outcome::Value(None)]);
        let refused = Outcome::Refused(Refusal::TooLong);
        let expected = vec![value(), Outcome::Written, refused, Outcome::Value(None)];
        assert_eq!(within(batch.clone(), &mut 240), Outcome::Batch(expected));
        assert_eq!(within(batch.clone(), &mut 1000), batch);
    }

    #[test]
    fn a_persist_of_all_that_a_scope_may_write_is_a_frame_that_is_taken() {
        let length = |records: u64| {
            let ts = Timestamp { version: u64::MAX, node: NodeId(63) };
            let body = Body::Persist(u64::MAX, u64::MAX, (0..records).map(|key| (key, ts)).collect());
            let mut bytes = Vec::new();
            encode_packet(&Packet::Replica(Message { epoch: u64::MAX, body }), u64::MAX, &mut bytes);
            bytes.len()
        };
        assert_eq!(length(1000) - length(0), 1000 * PERSIST_RECORD);
        let most = SCOPE_OVER * Bounds::SHIPPED.scope_keys;
        assert!(length(0) + most * PERSIST_RECORD <= Bounds::SHIPPED.peer_frame);
    }

    #[test]
    fn long_batches_leave_in_several_packets() {
        let ts = Timestamp { version: 2, node: NodeId(0) };
        let write = |key: Key, bytes: usize| Write {
            key,
            ts,
            value: Some(vec![0; bytes].into()),
            rmw: false,
            scope: None,
            stamps: Vec::new(),
        };
        let sizes = [10, 900, 2000, 10, 10, 10];
        let writes: Vec<Write> = (0..).zip(sizes).map(|(key, bytes)| write(key, bytes)).collect();
        let mut parts = Vec::new();
        let packet = Packet::Replica(Message { epoch: 3, body: Body::Inv(writes.clone()) });
        split(packet, 1000, |packet| match packet {
            Packet::Replica(Message { epoch: 3, body: Body::Inv(part) }) => parts.push(part),
            other => panic!("{other:?}"),
        });
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1, 3]);
        assert_eq!(parts.concat(), writes);
    }
}

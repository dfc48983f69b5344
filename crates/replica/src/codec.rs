//! Values to and from bytes: numbers little-endian, lists and texts with a length of four bytes, choices with a byte.

use std::sync::Arc;

use crate::ddp::{AckKind, Body, Entry, Message, Op, Outcome, Refusal, Reply, Request, Session, Stamp, View, Write};
use crate::frames::BadRequest;
use crate::log::Record;
use crate::member::{Ballot, Durable, Notice, Standing};
use crate::node::{BadPacket, Packet};
use crate::types::{NodeId, NodeSet, Timestamp};

/// Bytes still to be read. Nothing read from it panics.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    depth: usize,
    /// Items of lists of operations and outcomes that may still be read.
    items: usize,
    too_many: bool,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self::bounded(bytes, usize::MAX)
    }

    /// All lists of operations, and of outcomes, have so many items together at most.
    fn bounded(bytes: &'a [u8], items: usize) -> Self {
        Self { bytes, depth: 0, items, too_many: false }
    }

    /// Reads a list that counts, to a bounded depth. One that is too long is not looked at further.
    fn batch<T: Wire>(&mut self) -> Option<Vec<T>> {
        let length = self.coming()?;
        let Some(left) = self.items.checked_sub(length) else {
            self.too_many = true;
            return None;
        };
        self.items = left;
        self.nested(Wire::get)
    }

    /// Reads what may hold more of its kind, to a bounded depth.
    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth == MAX_NESTING {
            return None;
        }
        self.depth += 1;
        let read = read(self);
        self.depth -= 1;
        read
    }

    /// How many items the list that begins here has, as it says itself.
    pub fn coming(&self) -> Option<usize> {
        Some(u32::from_le_bytes(*self.bytes.first_chunk()?) as usize)
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        Some(head)
    }
}

/// What has a form in bytes.
pub(crate) trait Wire: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn get(reader: &mut Reader<'_>) -> Option<Self>;
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Wire for $number {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn get(reader: &mut Reader<'_>) -> Option<Self> {
                reader.take(size_of::<Self>())?.try_into().ok().map(Self::from_le_bytes)
            }
        }
    )*};
}

numbers!(u8, u32, u64);

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        u8::from(*self).put(out);
    }

    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        match u8::get(reader)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        Some(if bool::get(reader)? { Some(T::get(reader)?) } else { None })
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        Some((A::get(reader)?, B::get(reader)?))
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        self.iter().for_each(|item| item.put(out));
    }

    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        let length = u32::get(reader)? as usize;
        // Every item takes at least a byte: a length that promises more than there is reserves nothing.
        let mut items = Self::with_capacity(length.min(reader.bytes.len() / size_of::<T>().max(1)));
        for _ in 0..length {
            items.push(T::get(reader)?);
        }
        Some(items)
    }
}

impl Wire for Arc<[u8]> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        out.extend_from_slice(self);
    }

    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        let length = u32::get(reader)? as usize;
        reader.take(length).map(Self::from)
    }
}

impl Wire for NodeId {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        u8::get(reader).filter(|&node| node < 64).map(Self)
    }
}

macro_rules! structs {
    ($($name:ident { $($field:tt),* })*) => {$(
        impl Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }

            fn get(reader: &mut Reader<'_>) -> Option<Self> {
                Some(Self { $($field: Wire::get(reader)?),* })
            }
        }
    )*};
}

structs! {
    NodeSet { 0 }
    Timestamp { version, node }
    Stamp { client, sequence, attempt, done }
    Session { client, sequence, attempt }
    Request { tag, session, scope, op }
    Reply { tag, outcome }
    Write { key, ts, value, rmw, scope, stamps }
    Entry { write, glb_volatile_ts, glb_durable_ts }
    View { epoch, members, learners, recovery }
    Ballot { round, node }
    Durable { view, promised, accepted }
    Message { epoch, body }
}

/// Enums by a first byte; fields in order.
macro_rules! enums {
    ($($name:ident { $($tag:literal => $variant:ident $(($($field:ident),*))?),* $(,)? })*) => {$(
        impl Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $(($($field),*))? => {
                        out.push($tag);
                        $($($field.put(out);)*)?
                    })*
                }
            }

            fn get(reader: &mut Reader<'_>) -> Option<Self> {
                Some(match u8::get(reader)? {
                    $($tag => {
                        $($(let $field = Wire::get(reader)?;)*)?
                        Self::$variant $(($($field),*))?
                    })*
                    _ => return None,
                })
            }
        }
    )*};
}

enums! {
    AckKind { 0 => Both, 1 => Consistency, 2 => Persistency }
    Standing {
        0 => Joining, 1 => Damaged, 2 => Learning, 3 => Ready, 4 => Merging, 5 => Serving, 6 => New, 7 => Starting,
    }
    Record { 1 => Write(write), 2 => Scope(scope), 3 => Member(durable), 4 => Reset, 5 => Damaged, 6 => Bytes(at, bytes) }
    Packet { 1 => Replica(message), 2 => Member(notice) }
    Refusal {
        0 => NotServing, 1 => Busy, 2 => NotANumber, 3 => NoScope, 4 => UnknownScope, 5 => TooLong, 6 => Nested,
        7 => Full,
    }
    Body {
        1 => Inv(writes),
        2 => Ack(key, ts, kind),
        3 => Refuse(key, ts),
        4 => Busy(key, ts),
        5 => Val(key, ts, kind),
        6 => Persist(scope, number, writes),
        7 => PersistAck(scope, number),
        8 => PersistVal(scope, number),
        9 => State(number, entries, last),
        10 => StateAck(number),
        11 => Merged(asks),
    }
    Notice {
        1 => Beat(sent, epoch, status, full),
        2 => Grant(sent),
        3 => Prepare(base, ballot, out_of_it),
        4 => Promise(epoch, ballot, accepted),
        5 => Reject(epoch, ballot),
        6 => Accept(ballot, view),
        7 => Accepted(ballot, view),
        8 => Decided(view),
        9 => Newest(sent, epoch, status),
    }
}

pub(crate) use {enums, structs};

macro_rules! in_bytes {
    ($($name:ident),*) => {$(
        impl $name {
            /// Appends its bytes.
            pub fn encode(&self, out: &mut Vec<u8>) {
                self.put(out);
            }

        }
    )*};
}

in_bytes!(Packet, Request, Reply);

/// Reads one; all of the reader's bytes must be it.
pub(crate) fn whole<T: Wire>(reader: &mut Reader<'_>) -> Option<T> {
    T::get(reader).filter(|_| reader.is_empty())
}

impl Packet {
    /// Reads one; all of `bytes` must be it.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadPacket> {
        whole(&mut Reader::new(bytes)).ok_or(BadPacket)
    }
}

impl Reply {
    /// Reads one with at most `batch` outcomes in a batch; all of `bytes` must be it.
    pub fn decode(bytes: &[u8], batch: usize) -> Result<Self, BadPacket> {
        whole(&mut Reader::bounded(bytes, batch)).ok_or(BadPacket)
    }
}

impl Request {
    /// Reads one with at most `batch` operations in a batch, those of batches in it counted; all of `bytes` must be it.
    pub fn decode(bytes: &[u8], batch: usize) -> Result<Self, BadRequest> {
        let mut reader = Reader::bounded(bytes, batch);
        match whole(&mut reader) {
            Some(request) => Ok(request),
            // The tag stands first.
            None => Err(match u64::get(&mut Reader::new(bytes)) {
                Some(tag) if reader.too_many => BadRequest::TooMany(tag),
                _ => BadRequest::Malformed,
            }),
        }
    }
}

/// How deep batches may lie in each other: a batch in a batch is refused by the engine, not by the codec.
const MAX_NESTING: usize = 4;

impl Wire for Op {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Get(key) => (0u8, *key).put(out),
            Self::Put(key, value) => ((1u8, *key), value.clone()).put(out),
            Self::Delete(key) => (2u8, *key).put(out),
            Self::CompareSwap { key, expected, new } => ((3u8, *key), (expected.clone(), new.clone())).put(out),
            Self::FetchAdd(key, delta) => (4u8, (*key, *delta)).put(out),
            Self::Batch(ops) => {
                out.push(5);
                ops.put(out);
            }
            Self::Persist => out.push(6),
        }
    }

    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        Some(match u8::get(reader)? {
            0 => Self::Get(Wire::get(reader)?),
            1 => Self::Put(Wire::get(reader)?, Wire::get(reader)?),
            2 => Self::Delete(Wire::get(reader)?),
            3 => Self::CompareSwap { key: Wire::get(reader)?, expected: Wire::get(reader)?, new: Wire::get(reader)? },
            4 => Self::FetchAdd(Wire::get(reader)?, Wire::get(reader)?),
            5 => Self::Batch(reader.batch()?),
            6 => Self::Persist,
            _ => return None,
        })
    }
}

impl Wire for Outcome {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Value(value) => (0u8, value.clone()).put(out),
            Self::Written => out.push(1),
            Self::Swapped => out.push(2),
            Self::NotSwapped(value) => (3u8, value.clone()).put(out),
            Self::Added(number) => (4u8, *number).put(out),
            Self::Persisted => out.push(5),
            Self::Batch(outcomes) => {
                out.push(6);
                outcomes.put(out);
            }
            Self::Refused(refusal) => {
                out.push(7);
                refusal.put(out);
            }
            Self::Unknown => out.push(8),
        }
    }

    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        Some(match u8::get(reader)? {
            0 => Self::Value(Wire::get(reader)?),
            1 => Self::Written,
            2 => Self::Swapped,
            3 => Self::NotSwapped(Wire::get(reader)?),
            4 => Self::Added(Wire::get(reader)?),
            5 => Self::Persisted,
            6 => Self::Batch(reader.batch()?),
            7 => Self::Refused(Wire::get(reader)?),
            8 => Self::Unknown,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packets() -> Vec<Packet> {
        let ts = Timestamp { version: 7, node: NodeId(2) };
        let stamps = vec![Stamp { client: 1, sequence: 2, attempt: 1, done: Some(3) }];
        let value = Some(vec![1, 2, 3].into());
        let write = Write { key: 9, ts, value, rmw: true, scope: Some(4), stamps };
        let entry = Entry { write: write.clone(), glb_volatile_ts: ts, glb_durable_ts: Timestamp::ZERO };
        let view = View { recovery: true, ..View::first(NodeSet::first(5)) };
        let ballot = Ballot { round: 3, node: NodeId(1) };
        let bodies = [
            Body::Inv(vec![write]),
            Body::Ack(1, ts, AckKind::Persistency),
            Body::Refuse(1, ts),
            Body::Busy(1, ts),
            Body::Val(1, ts, AckKind::Both),
            Body::Persist(5, 9, vec![(1, ts)]),
            Body::PersistAck(5, 9),
            Body::PersistVal(5, 9),
            Body::State(2, vec![entry], true),
            Body::StateAck(2),
            Body::Merged(true),
        ];
        let notices = [
            Notice::Beat(1, 2, Standing::Ready, true),
            Notice::Grant(1),
            Notice::Prepare(view, ballot, NodeSet::first(2)),
            Notice::Promise(2, ballot, Some((ballot, view))),
            Notice::Reject(2, ballot),
            Notice::Accept(ballot, view),
            Notice::Accepted(ballot, view),
            Notice::Decided(view),
            Notice::Newest(1, 2, Standing::New),
        ];
        let replica = bodies.map(|body| Packet::Replica(Message { epoch: 6, body }));
        replica.into_iter().chain(notices.map(Packet::Member)).collect()
    }

    #[test]
    fn requests_and_replies_come_back_and_their_parts_do_not() {
        let value = || Some(vec![1, 2, 3].into());
        let all = [
            Op::Get(1),
            Op::Put(2, vec![4; 9].into()),
            Op::Delete(3),
            Op::CompareSwap { key: 4, expected: None, new: value() },
            Op::FetchAdd(5, 6),
        ];
        let session = Some(Session { client: 7, sequence: 8, attempt: 9 });
        for op in all.clone().into_iter().chain([Op::Batch(all.to_vec()), Op::Persist]) {
            let request = Request { tag: 1, session, scope: Some(2), op };
            check(&request, |bytes| Request::decode(bytes, usize::MAX));
        }
        let all = [
            Outcome::Value(value()),
            Outcome::Written,
            Outcome::Swapped,
            Outcome::NotSwapped(None),
            Outcome::Added(1),
            Outcome::Persisted,
            Outcome::Refused(Refusal::TooLong),
            Outcome::Unknown,
        ];
        for outcome in all.clone().into_iter().chain([Outcome::Batch(all.to_vec())]) {
            check(&Reply { tag: 3, outcome }, |bytes| Reply::decode(bytes, usize::MAX));
        }
        // As deep as there are bytes: no stack is used up.
        assert!(Request::decode(&[[0; 10].as_slice(), &[5, 1, 0, 0, 0].repeat(100_000)].concat(), usize::MAX).is_err());
    }

    fn check<T: Wire + PartialEq + std::fmt::Debug, E: PartialEq + std::fmt::Debug>(
        it: &T,
        decode: impl Fn(&[u8]) -> Result<T, E>,
    ) {
        let mut bytes = Vec::new();
        it.put(&mut bytes);
        assert_eq!(decode(&bytes).as_ref(), Ok(it));
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut]).is_err(), "{it:?} cut at {cut}");
        }
    }

    #[test]
    fn packets_come_back_and_their_parts_do_not() {
        for packet in packets() {
            let mut bytes = Vec::new();
            packet.encode(&mut bytes);
            assert_eq!(Packet::decode(&bytes).as_ref(), Ok(&packet));
            for cut in 0..bytes.len() {
                assert!(Packet::decode(&bytes[..cut]).is_err(), "{packet:?} cut at {cut}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..100), first in 1u8..3, second in 1u8..12) {
            let _ = Packet::decode(&[&[first], bytes.as_slice()].concat());
            let mut one = vec![1; 10];
            one[9] = second;
            if let Ok(packet) = Packet::decode(&[one, bytes].concat()) {
                let mut again = Vec::new();
                packet.encode(&mut again);
                prop_assert_eq!(Packet::decode(&again), Ok(packet));
            }
        }
    }
}

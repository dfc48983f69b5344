//! What clients and nodes of a chain say to each other, in bytes (see [`crate::codec`]).
//!
//! How many parts a transaction or an entry has is checked before any of them is made: more than an entry's frame can hold
//! are refused.

use std::sync::Arc;

use super::layout::MAX_TUPLES;
use super::node::ChainPacket;
use super::types::{
    ChainMessage, ChainOutcome, ChainRefusal, ChainReply, ChainRequest, Entry, Extent, Transaction, Tuple,
};
use crate::codec::{Reader, Wire, enums, structs, whole};
use crate::node::BadPacket;

/// A list of parts: no longer than there may be.
fn few<T: Wire>(reader: &mut Reader<'_>) -> Option<Vec<T>> {
    (reader.coming()? <= MAX_TUPLES).then(|| Wire::get(reader)).flatten()
}

structs! {
    Extent { offset, length }
    Tuple { offset, data }
    ChainRequest { tag, session, transaction }
    ChainReply { tag, outcome }
}

impl Wire for Transaction {
    fn put(&self, out: &mut Vec<u8>) {
        self.reads.put(out);
        self.expects.put(out);
        self.writes.put(out);
    }

    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self { reads: few(reader)?, expects: few(reader)?, writes: few(reader)? })
    }
}

impl Wire for Arc<[Tuple]> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        self.iter().for_each(|tuple| tuple.put(out));
    }

    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        few(reader).map(Self::from)
    }
}

structs! {
    Entry { seq, epoch, writes }
}

enums! {
    ChainRefusal { 0 => NotServing, 1 => NotHead(node), 2 => Invalid, 3 => Busy, 4 => Full }
    ChainMessage {
        1 => Forward(entries),
        2 => Ack(seq, freed, applied),
        3 => State(view, applied, entries),
        4 => Sync(applied, at, entries),
        5 => Want(piece),
        6 => Piece(piece, applied, data, last),
        7 => Commit(seq),
    }
    ChainPacket { 1 => Chain(epoch, message), 2 => Member(notice) }
}

impl Wire for ChainOutcome {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Done(read) => (0u8, read.clone()).put(out),
            Self::Unequal(read) => (1u8, read.clone()).put(out),
            Self::Refused(refusal) => {
                out.push(2);
                refusal.put(out);
            }
            Self::Unknown => out.push(3),
            Self::Before => out.push(4),
        }
    }

    fn get(reader: &mut Reader<'_>) -> Option<Self> {
        Some(match u8::get(reader)? {
            0 => Self::Done(few(reader)?),
            1 => Self::Unequal(few(reader)?),
            2 => Self::Refused(Wire::get(reader)?),
            3 => Self::Unknown,
            4 => Self::Before,
            _ => return None,
        })
    }
}

macro_rules! in_bytes {
    ($($name:ident),*) => {$(
        impl $name {
            /// Appends its bytes.
            pub fn encode(&self, out: &mut Vec<u8>) {
                self.put(out);
            }

            /// Reads one; all of `bytes` must be it.
            pub fn decode(bytes: &[u8]) -> Result<Self, BadPacket> {
                whole(&mut Reader::new(bytes)).ok_or(BadPacket)
            }
        }
    )*};
}

in_bytes!(ChainPacket, ChainRequest, ChainReply);

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::ddp::Session;
    use crate::member::{Notice, Standing};
    use crate::types::{NodeId, Value};

    fn values() -> impl Strategy<Value = Value> {
        vec(any::<u8>(), 0..20).prop_map(Value::from)
    }

    fn tuples() -> impl Strategy<Value = Vec<Tuple>> {
        vec((any::<u64>(), values()).prop_map(|(offset, data)| Tuple { offset, data }), 0..4)
    }

    fn entries() -> impl Strategy<Value = Vec<Entry>> {
        let entry = (any::<u64>(), any::<u64>(), tuples());
        vec(entry.prop_map(|(seq, epoch, writes)| Entry { seq, epoch, writes: writes.into() }), 0..3)
    }

    fn packets() -> impl Strategy<Value = ChainPacket> {
        let message = prop_oneof![
            entries().prop_map(ChainMessage::Forward),
            any::<(u64, u64, u64)>().prop_map(|(seq, freed, applied)| ChainMessage::Ack(seq, freed, applied)),
            any::<u64>().prop_map(ChainMessage::Commit),
            (any::<(u64, u64)>(), entries()).prop_map(|((a, b), entries)| ChainMessage::State(a, b, entries)),
            (any::<(u64, u64)>(), entries()).prop_map(|((a, b), entries)| ChainMessage::Sync(a, b, entries)),
            any::<u64>().prop_map(ChainMessage::Want),
            (any::<(u64, u64)>(), values(), any::<bool>())
                .prop_map(|((a, b), data, last)| ChainMessage::Piece(a, b, data, last)),
        ];
        prop_oneof![
            (any::<u64>(), message).prop_map(|(epoch, message)| ChainPacket::Chain(epoch, message)),
            any::<(u64, u64)>().prop_map(|(a, b)| ChainPacket::Member(Notice::Beat(a, b, Standing::Ready, true))),
        ]
    }

    fn requests() -> impl Strategy<Value = ChainRequest> {
        let extent = any::<(u64, u32)>().prop_map(|(offset, length)| Extent { offset, length });
        let session = prop::option::of(any::<(u64, u64, u32)>());
        let session =
            session.prop_map(|it| it.map(|(client, sequence, attempt)| Session { client, sequence, attempt }));
        let parts = (any::<u64>(), session, vec(extent, 0..4), tuples(), tuples());
        parts.prop_map(|(tag, session, reads, expects, writes)| ChainRequest {
            tag,
            session,
            transaction: Transaction { reads, expects, writes },
        })
    }

    fn replies() -> impl Strategy<Value = ChainReply> {
        let refusals =
            [ChainRefusal::NotServing, ChainRefusal::NotHead(NodeId(3)), ChainRefusal::Busy, ChainRefusal::Full];
        let outcome = prop_oneof![
            vec(values(), 0..4).prop_map(ChainOutcome::Done),
            vec(values(), 0..4).prop_map(ChainOutcome::Unequal),
            prop::sample::select(refusals.to_vec()).prop_map(ChainOutcome::Refused),
            Just(ChainOutcome::Unknown),
            Just(ChainOutcome::Before),
        ];
        (any::<u64>(), outcome).prop_map(|(tag, outcome)| ChainReply { tag, outcome })
    }

    /// It comes back from its bytes, and from no part of them.
    fn comes_back<T: Wire + PartialEq + std::fmt::Debug>(
        it: &T,
        decode: impl Fn(&[u8]) -> Result<T, BadPacket>,
    ) -> Result<(), TestCaseError> {
        let mut bytes = Vec::new();
        it.put(&mut bytes);
        let whole = decode(&bytes);
        prop_assert_eq!(whole.as_ref(), Ok(it));
        for cut in 0..bytes.len() {
            prop_assert!(decode(&bytes[..cut]).is_err(), "{it:?} cut at {cut}");
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn all_come_back_and_their_parts_do_not(packet in packets(), request in requests(), reply in replies()) {
            comes_back(&packet, ChainPacket::decode)?;
            comes_back(&request, ChainRequest::decode)?;
            comes_back(&reply, ChainReply::decode)?;
        }

        #[test]
        fn any_bytes_are_read(bytes in vec(any::<u8>(), 0..100), first in 1u8..3, kind in 1u8..8) {
            let mut one = vec![first, 0, 0, 0, 0, 0, 0, 0, 0, kind];
            one.extend_from_slice(&bytes);
            if let Ok(packet) = ChainPacket::decode(&one) {
                let mut again = Vec::new();
                packet.encode(&mut again);
                prop_assert_eq!(again, one);
            }
            let _ = (ChainRequest::decode(&bytes), ChainReply::decode(&bytes));
        }
    }

    #[test]
    fn more_parts_than_an_entry_has_are_refused_before_they_are_made() {
        let extent = Extent { offset: 0, length: 1 };
        let with = |reads: usize| {
            let transaction = Transaction { reads: vec![extent; reads], ..Transaction::default() };
            let mut bytes = Vec::new();
            ChainRequest { tag: 1, session: None, transaction }.encode(&mut bytes);
            ChainRequest::decode(&bytes)
        };
        assert!(with(MAX_TUPLES).is_ok() && with(MAX_TUPLES + 1).is_err());
        // A length alone makes nothing.
        let promised = [1u64.to_le_bytes().as_slice(), &[0], &[255; 4]].concat();
        assert!(ChainRequest::decode(&promised).is_err());
    }
}

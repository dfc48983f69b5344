//! Calls of the built-in kernels.

use std::borrow::Cow;

use remora_kernel::filter::{FilterOutput, FilterParams, Group, Source};
use remora_kernel::hll::HllParams;
use remora_kernel::shuffle::{Partition, ShuffleParams};
use remora_kernel::{ConsistencyParams, GetParams, Status, TraversalParams, op};
use remora_store::hash::Table;
use remora_store::list::List;
use remora_store::{checked, text};

use crate::{CheckedObject, FromReply, RemoteRegion, TypedCall};

/// Reads of a changing object before the kernel gives up: a writer that was interrupted half-way needs a core to go on.
const MAX_TRIES: u32 = 256;
/// Partitions whose places are parameters; those of others go in front of the payload, as a packet has no room for all.
const INLINE_PARTITIONS: usize = 16;

/// Looks a key up in a hash table. The reply is the value, if there is one.
#[derive(Clone, Copy, Debug)]
pub struct Get<'k> {
    params: GetParams,
    key: &'k [u8],
}

impl<'k> Get<'k> {
    /// Of a table that [`Client::load_table`](crate::Client::load_table) has loaded.
    pub fn new<K: AsRef<[u8]> + ?Sized>(table: &Table, key: &'k K) -> Self {
        let key = key.as_ref();
        Self { params: text::get_params(table, key), key }
    }
}

impl TypedCall for Get<'_> {
    type Reply = Option<Vec<u8>>;

    fn op(&self) -> u64 {
        op::GET
    }

    fn encode(&self, params: &mut Vec<u8>) {
        params.extend(self.params.encode());
    }

    fn decode(&self, status: Status, reply: &[u8]) -> Option<Self::Reply> {
        match status {
            // Another key with the same hash is not this one.
            Status::Ok => Some(text::value(reply, self.key).map(<[u8]>::to_vec)),
            Status::NotFound => Some(None),
            _ => None,
        }
    }
}

/// Looks a key up in a linked structure of any kind that [`TraversalParams`] describe. The reply is the value, if there
/// is one.
#[derive(Clone, Copy, Debug)]
pub struct Traverse(pub TraversalParams);

impl Traverse {
    /// Of a list that [`Client::load_list`](crate::Client::load_list) has loaded.
    pub fn new(list: &List, key: u64) -> Self {
        Self(list.traversal_params(key))
    }
}

impl TypedCall for Traverse {
    type Reply = Option<Vec<u8>>;

    fn op(&self) -> u64 {
        op::TRAVERSAL
    }

    fn encode(&self, params: &mut Vec<u8>) {
        params.extend(self.0.encode());
    }

    fn decode(&self, status: Status, reply: &[u8]) -> Option<Self::Reply> {
        match status {
            Status::Ok => Some(Some(reply.to_vec())),
            Status::NotFound => Some(None),
            _ => None,
        }
    }
}

/// Reads an object until its checksum holds.
#[derive(Clone, Copy, Debug)]
pub struct ReadConsistent(pub ConsistencyParams);

impl ReadConsistent {
    /// Of an object that [`Client::load_object`](crate::Client::load_object) has loaded, with up to 256 tries.
    pub fn new(object: &CheckedObject) -> Self {
        Self(object.params(MAX_TRIES))
    }
}

/// The reply to [`ReadConsistent`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Consistent {
    /// What the object holds.
    pub payload: Vec<u8>,
    /// Reads that it took.
    pub tries: u32,
}

impl TypedCall for ReadConsistent {
    type Reply = Consistent;

    fn op(&self) -> u64 {
        op::CONSISTENCY
    }

    fn encode(&self, params: &mut Vec<u8>) {
        params.extend(self.0.encode());
    }

    fn decode(&self, status: Status, reply: &[u8]) -> Option<Consistent> {
        let (payload, tries) = checked::split_reply(reply).filter(|_| status == Status::Ok)?;
        Some(Consistent { payload: payload.to_vec(), tries })
    }
}

/// Computes the checksum of a payload stream.
#[derive(Clone, Copy, Debug)]
pub struct Checksum<'a>(pub &'a [u8]);

/// The reply to [`Checksum`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summed {
    /// Bytes of the stream.
    pub len: u64,
    /// Their CRC-64/XZ.
    pub crc: u64,
}

impl TypedCall for Checksum<'_> {
    type Reply = Summed;

    fn op(&self) -> u64 {
        op::CHECKSUM
    }

    fn encode(&self, _: &mut Vec<u8>) {}

    fn payload(&self) -> Option<Cow<'_, [u8]>> {
        Some(self.0.into())
    }

    fn decode(&self, status: Status, reply: &[u8]) -> Option<Summed> {
        let (len, crc) = <(u64, u64)>::from_reply(reply).filter(|_| status == Status::Ok)?;
        Some(Summed { len, crc })
    }
}

/// Counts the distinct values of a payload stream by HyperLogLog.
#[derive(Clone, Copy, Debug)]
pub struct Distinct<'a> {
    /// Values of 8 bytes, little-endian.
    pub values: &'a [u8],
    /// Log2 of the number of registers, 4 to 18: the error is about 1.04 / 2^(`lg_k` / 2).
    pub lg_k: u8,
}

/// The reply to [`Distinct`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Estimate {
    /// Distinct values, about.
    pub distinct: f64,
    /// Values in all.
    pub values: u64,
}

impl TypedCall for Distinct<'_> {
    type Reply = Estimate;

    fn op(&self) -> u64 {
        op::HYPERLOGLOG
    }

    fn encode(&self, params: &mut Vec<u8>) {
        let hll = HllParams { lg_k: self.lg_k, want_image: false, payload_is_image: false, registers: None };
        params.extend(hll.encode());
    }

    fn payload(&self) -> Option<Cow<'_, [u8]>> {
        Some(self.values.into())
    }

    fn decode(&self, status: Status, reply: &[u8]) -> Option<Estimate> {
        let (distinct, values) = <(f64, u64)>::from_reply(reply).filter(|_| status == Status::Ok)?;
        Some(Estimate { distinct, values })
    }
}

/// Filters and aggregates rows of a table in the node's memory, or of a payload stream.
#[derive(Clone, Copy, Debug)]
pub struct Filter<'a> {
    /// Which rows match, and what becomes of them.
    pub params: FilterParams,
    /// The rows, if [`FilterParams::source`] says that they come as payload.
    pub rows: Option<&'a [u8]>,
}

/// The reply to [`Filter`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Filtered {
    /// The rows that match, one after the other.
    Rows(Vec<u8>),
    /// They were written to memory.
    Written {
        /// Rows that matched.
        matched: u64,
        /// Rows that there were.
        seen: u64,
    },
    /// Count, sum, least and greatest value of each group, in ascending order.
    Groups(Vec<Group>),
}

impl TypedCall for Filter<'_> {
    type Reply = Filtered;

    fn op(&self) -> u64 {
        op::FILTER
    }

    fn encode(&self, params: &mut Vec<u8>) {
        params.extend(self.params.encode());
    }

    fn payload(&self) -> Option<Cow<'_, [u8]>> {
        (self.params.source == Source::Payload).then(|| self.rows.unwrap_or_default().into())
    }

    fn decode(&self, status: Status, reply: &[u8]) -> Option<Filtered> {
        if status != Status::Ok {
            return None;
        }
        Some(match self.params.output {
            FilterOutput::Reply => Filtered::Rows(reply.to_vec()),
            FilterOutput::Memory { .. } => {
                let (matched, seen) = <(u64, u64)>::from_reply(reply)?;
                Filtered::Written { matched, seen }
            }
            FilterOutput::Aggregate { .. } => Filtered::Groups(Group::decode_all(reply).collect()),
        })
    }
}

/// Partitions a payload stream of 8-byte values into the node's memory. The reply is how many there were.
#[derive(Clone, Copy, Debug)]
pub struct Shuffle<'a> {
    /// The region that all partitions lie in.
    pub region: &'a RemoteRegion,
    /// Where each partition goes: a power of two of them, up to 1024.
    pub partitions: &'a [Partition],
    /// The low bits of a value's hash ([`shuffle::hash`](remora_kernel::shuffle::hash)) name its partition, instead of
    /// its own.
    pub hashed: bool,
    /// The values, little-endian.
    pub values: &'a [u8],
}

impl Shuffle<'_> {
    /// Parameters, and what goes in front of the payload.
    fn params(&self) -> (Vec<u8>, Vec<u8>) {
        // The kernel refuses what is no power of two.
        let bits = if self.partitions.len().is_power_of_two() { self.partitions.len().ilog2() as u8 } else { u8::MAX };
        let params = ShuffleParams { bits, hashed: self.hashed, key: self.region.key };
        let mut bytes = params.encode(self.partitions);
        let inline = ShuffleParams::LEN + ShuffleParams::PARTITION_LEN * INLINE_PARTITIONS;
        let rest = bytes.split_off(inline.min(bytes.len()));
        (bytes, rest)
    }
}

impl TypedCall for Shuffle<'_> {
    type Reply = u64;

    fn op(&self) -> u64 {
        op::SHUFFLE
    }

    fn encode(&self, params: &mut Vec<u8>) {
        params.extend(self.params().0);
    }

    fn payload(&self) -> Option<Cow<'_, [u8]>> {
        let mut front = self.params().1;
        Some(if front.is_empty() {
            self.values.into()
        } else {
            front.extend_from_slice(self.values);
            front.into()
        })
    }

    fn decode(&self, status: Status, reply: &[u8]) -> Option<u64> {
        u64::from_reply(reply).filter(|_| status == Status::Ok)
    }
}

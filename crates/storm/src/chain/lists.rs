//! Keys that hold lists: their bytes, and what transactions of them have read.

use remora_replica::chain::{Extent, Tuple};
use remora_replica::types::Value;

use super::{ChainEnd, ChainOp, ChainTxn};

/// Bytes of a list: how many numbers there are, and the numbers.
pub const LIST: u64 = 128;
/// Numbers in a list at most.
pub const MOST: usize = LIST as usize / 4 - 1;

/// Where a key's list is.
pub fn extent(key: u64) -> Extent {
    Extent { offset: key * LIST, length: LIST as u32 }
}

/// A key's list, to be written or expected.
pub fn tuple(key: u64, list: &[u32]) -> Tuple {
    Tuple { offset: key * LIST, data: encode(list) }
}

fn encode(list: &[u32]) -> Value {
    let mut bytes = vec![0; LIST as usize];
    for (place, number) in bytes.chunks_exact_mut(4).zip([list.len() as u32].iter().chain(list)) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    bytes.into()
}

/// A list; one that was never written by a client is told by what is not zero behind its end.
fn decode(bytes: &[u8]) -> Vec<u32> {
    let mut numbers = bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    let count = numbers.next().unwrap_or(0) as usize;
    let list: Vec<u32> = numbers.collect();
    let torn = list.iter().skip(count).any(|&number| number != 0) || count > MOST;
    // As numbers that nobody has appended.
    if torn { vec![u32::MAX; count.min(MOST)] } else { list[..count].to_vec() }
}

impl ChainOp {
    /// Its key.
    pub fn key(&self) -> u64 {
        let (Self::Read(key, _) | Self::Append(key, _)) = self;
        *key
    }

    /// Does it read?
    pub fn is_read(&self) -> bool {
        matches!(self, Self::Read(..))
    }

    pub(super) fn forget(&mut self) {
        if let Self::Read(_, list) = self {
            list.clear();
        }
    }
}

impl ChainTxn {
    /// Takes what it has read, in the order of its parts.
    pub fn fill(&mut self, read: &[Value]) {
        let lists = self.ops.iter_mut().filter_map(|op| match op {
            ChainOp::Read(_, list) => Some(list),
            ChainOp::Append(..) => None,
        });
        lists.zip(read).for_each(|(list, bytes)| *list = decode(bytes));
    }

    /// Keys that it has read, with their lists.
    pub fn reads(&self) -> Vec<(u64, Vec<u32>)> {
        let read = |op: &ChainOp| match op {
            ChainOp::Read(key, list) => Some((*key, list.clone())),
            ChainOp::Append(..) => None,
        };
        self.ops.iter().filter_map(read).collect()
    }

    /// What the client had read before this transaction, of the same keys.
    pub(super) fn expected(&self, history: &[ChainTxn], client: usize) -> Vec<(u64, Vec<u32>)> {
        let keys: Vec<u64> = self.reads().into_iter().map(|(key, _)| key).collect();
        let before = history.iter().rev().find(|txn| {
            txn.client == client
                && txn.end == ChainEnd::Done
                && txn.reads().iter().map(|(key, _)| *key).eq(keys.iter().copied())
        });
        before.map(ChainTxn::reads).unwrap_or_default()
    }
}

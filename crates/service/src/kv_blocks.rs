//! Blocks of key-value stores that clients have reserved, to write long pairs there by themselves: whose they are, and which
//! are to be given back because their clients are gone.

use std::collections::{HashMap, VecDeque};

use remora_kernel::kv::{KvParams, KvValue};
use remora_kernel::{Call, Status, op};
use remora_nic::Qpn;

/// Blocks that one connection has reserved at once, at most.
pub const RESERVED_BLOCKS: usize = 1024;

/// A block: the key of its region, the store's address, the block's offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvBlock(u32, u64, u64);

/// The reserved blocks of all stores of a node. It hears of every call that [concerns](Self::concerns) it, wherever it runs.
#[derive(Debug, Default)]
pub struct KvBlocks {
    held: HashMap<KvBlock, Held>,
    /// Blocks of each client that is connected.
    connected: HashMap<Qpn, usize>,
    /// Blocks that nobody has any more.
    left: VecDeque<(KvBlock, Vec<u8>)>,
}

#[derive(Debug)]
struct Held {
    by: Qpn,
    /// Of the call that gives it back.
    release: Vec<u8>,
    /// Calls under way that name it: it may be a pair's when they have ended.
    named: u32,
}

impl KvBlocks {
    /// Whether a call reserves a block, or gives one another owner.
    #[inline]
    pub fn concerns(call: &Call) -> bool {
        match call.op {
            op::KV_RESERVE => true,
            op::KV_RELEASE | op::KV_PUT | op::KV_UPDATE => KvParams::are_of_block(&call.params),
            _ => false,
        }
    }

    /// A client has connected.
    pub fn came(&mut self, by: Qpn) {
        self.connected.insert(by, 0);
    }

    /// A call begins. Returns the block that it names, for [`ended`](Self::ended), if somebody has reserved it.
    pub fn began(&mut self, call: &Call) -> Option<KvBlock> {
        let params = KvParams::decode(&call.params, false).ok().filter(|_| call.op != op::KV_RESERVE)?;
        let KvValue::Block(block, _) = params.value else { return None };
        let block = KvBlock(params.store.key, params.store.base, block);
        self.held.get_mut(&block)?.named += 1;
        Some(block)
    }

    /// A call has ended that named this block.
    pub fn ended(&mut self, block: KvBlock, status: Status) {
        let Some(held) = self.held.get_mut(&block) else { return };
        held.named = held.named.saturating_sub(1);
        let (by, is_named) = (held.by, held.named > 0);
        match status {
            Status::Ok => {
                self.held.remove(&block);
                self.has_less(by);
            }
            // Its client has gone meanwhile.
            _ if !is_named && !self.connected.contains_key(&by) => {
                self.left.extend(self.held.remove(&block).map(|held| (block, held.release)))
            }
            _ => {}
        }
    }

    /// A reservation has ended rightly, and is not answered yet. Returns how it ends: one too many with [`Status::Busy`].
    pub fn reserved(&mut self, call: &Call) -> Status {
        let params = KvParams::decode(&call.params, false).ok();
        let Some((params, block)) = params.zip(call.reply.first_chunk()) else { return Status::Ok };
        let block = u64::from_le_bytes(*block);
        let (by, mut release) = (Qpn(call.qpn), Vec::new());
        KvParams { value: KvValue::Block(block, 0), ..params }.encode(&mut release);
        let block = KvBlock(params.store.key, params.store.base, block);
        match self.connected.get_mut(&by) {
            Some(count) if *count < RESERVED_BLOCKS => {
                *count += 1;
                // A store that somebody has spoiled hands a block out twice.
                if let Some(before) = self.held.insert(block, Held { by, release, named: 0 }) {
                    self.has_less(before.by);
                }
                Status::Ok
            }
            Some(_) => {
                self.left.push_back((block, release));
                Status::Busy
            }
            // Its client went away meanwhile.
            None => {
                self.left.push_back((block, release));
                Status::Ok
            }
        }
    }

    /// A connection has a block less. One that has ended may have had the same number, and a block of its own still.
    fn has_less(&mut self, by: Qpn) {
        self.connected.entry(by).and_modify(|count| *count = count.saturating_sub(1));
    }

    /// A connection has ended, so that nothing of it arrives any more.
    pub fn gone(&mut self, by: Qpn) {
        if self.connected.remove(&by).is_some() {
            let left = self.held.extract_if(|_, held| held.by == by && held.named == 0);
            self.left.extend(left.map(|(block, held)| (block, held.release)));
        }
    }

    /// A region is gone, and the stores in it.
    pub fn released(&mut self, key: u32) {
        let of_it: Vec<Qpn> = self.held.extract_if(|block, _| block.0 == key).map(|(_, held)| held.by).collect();
        of_it.into_iter().for_each(|by| self.has_less(by));
        self.left.retain(|(block, _)| block.0 != key);
    }

    /// Whether a [`KV_RELEASE`](remora_kernel::op) is due.
    pub fn has_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// Parameters of the next [`KV_RELEASE`](remora_kernel::op) that is due.
    pub fn poll_left(&mut self) -> Option<Vec<u8>> {
        self.left.pop_front().map(|(_, release)| release)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use remora_kernel::kv::KvRef;

    const STORE: KvRef = KvRef::new(64, 7, 2);

    fn call(op: u64, by: u32, block: u64) -> Call {
        let (mut bytes, params) = (Vec::new(), KvParams { value_len: 900, ..KvParams::of_key(STORE, 5, b"key") });
        let value = if op == op::KV_RESERVE { params.value } else { KvValue::Block(block, 0) };
        KvParams { value, ..params }.encode(&mut bytes);
        let mut call = Call::new(op, &bytes, 64);
        call.qpn = by;
        if op == op::KV_RESERVE {
            call.reply.extend_from_slice(&block.to_le_bytes());
        }
        assert!(KvBlocks::concerns(&call));
        call
    }

    fn left(blocks: &mut KvBlocks) -> Vec<u64> {
        let left = std::iter::from_fn(|| blocks.poll_left());
        let block = |params: Vec<u8>| match KvParams::decode(&params, false).unwrap() {
            KvParams { value: KvValue::Block(block, 0), key: b"key", value_len: 900, store: STORE, .. } => block,
            other => panic!("{other:?}"),
        };
        let mut left: Vec<u64> = left.map(block).collect();
        left.sort_unstable();
        left
    }

    #[test]
    fn what_a_client_neither_put_nor_gave_back_is_left_when_it_is_gone() {
        let mut blocks = KvBlocks::default();
        [1, 2].into_iter().for_each(|by| blocks.came(Qpn(by)));
        for (by, block) in [(1, 64), (1, 96), (1, 128), (2, 160), (1, 192), (1, 224), (1, 256)] {
            assert_eq!(blocks.reserved(&call(op::KV_RESERVE, by, block)), Status::Ok);
        }
        let mut does = |op, block, status| {
            let named = blocks.began(&call(op, 1, block)).expect("a block that is reserved");
            blocks.ended(named, status);
        };
        does(op::KV_PUT, 64, Status::Ok);
        does(op::KV_RELEASE, 96, Status::Ok);
        // It has the block still.
        does(op::KV_UPDATE, 128, Status::NotFound);
        assert_eq!(left(&mut blocks), []);
        // What is under way when it goes decides.
        let [put, refused] = [224, 256].map(|block| blocks.began(&call(op::KV_PUT, 1, block)).expect("reserved"));
        blocks.gone(Qpn(1));
        assert_eq!(left(&mut blocks), [128, 192]);
        blocks.ended(put, Status::Ok);
        blocks.ended(refused, Status::Inconsistent);
        assert_eq!(left(&mut blocks), [256]);
        blocks.reserved(&call(op::KV_RESERVE, 1, 288));
        assert_eq!(left(&mut blocks), [288]);
        assert_eq!(blocks.began(&call(op::KV_PUT, 2, 64)), None, "a pair's by now");
        blocks.released(STORE.key);
        blocks.gone(Qpn(2));
        assert_eq!(left(&mut blocks), []);
    }

    /// Whoever may write to a store may have it hand a block out twice, or name another's block where none is given.
    #[test]
    fn a_spoiled_store_costs_nobody_reservations_of_another() {
        let mut blocks = KvBlocks::default();
        [1, 2].into_iter().for_each(|by| blocks.came(Qpn(by)));
        for _ in 0..2 * RESERVED_BLOCKS {
            assert_eq!(blocks.reserved(&call(op::KV_RESERVE, 1, 64)), Status::Ok);
        }
        assert_eq!(blocks.reserved(&call(op::KV_RESERVE, 2, 64)), Status::Ok);
        assert_eq!(blocks.connected, [(Qpn(1), 0), (Qpn(2), 1)].into());
        let mut naming = call(op::KV_PUT, 1, 64);
        naming.op = op::KV_RESERVE;
        assert_eq!(blocks.began(&naming), None);
        blocks.gone(Qpn(2));
        assert_eq!(left(&mut blocks), [64]);
    }

    #[test]
    fn nobody_reserves_without_end() {
        let mut blocks = KvBlocks::default();
        blocks.came(Qpn(1));
        for n in 1..=RESERVED_BLOCKS as u64 {
            assert_eq!(blocks.reserved(&call(op::KV_RESERVE, 1, 32 * n)), Status::Ok);
        }
        assert_eq!(blocks.reserved(&call(op::KV_RESERVE, 1, 1 << 20)), Status::Busy);
        assert_eq!(left(&mut blocks), [1 << 20]);
    }
}

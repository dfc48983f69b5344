//! Blocks of key-value stores that clients have reserved, to write long pairs there by themselves: whose they are, and which
//! are to be given back because their clients are gone.

use std::collections::{HashMap, VecDeque};

use remora_kernel::kv::{KvParams, KvValue, LONGEST_VALUE, class_bytes, class_of, item_len};
use remora_kernel::{Call, Status, op};
use remora_nic::Qpn;

/// Blocks that one connection has reserved at once, at most.
pub const RESERVED_BLOCKS: usize = 1024;

/// A block: the key of its region, the store's address, the block's offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvBlock(u32, u64, u64);

/// What a call under way has to do with blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvUse {
    /// It names this one, which somebody has reserved.
    Names(KvBlock),
    /// It reserves one for this connection.
    Reserves(Qpn),
}

/// The reserved blocks of all stores of a node. It hears of every call that [concerns](Self::concerns) it, wherever it runs.
#[derive(Debug, Default)]
pub struct KvBlocks {
    held: HashMap<KvBlock, Held>,
    /// Blocks of each client that is connected, those included that it is about to have.
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

    /// A call begins. Returns what it has to do with blocks, for [`ended`](Self::ended), if it has; or how it ends at once: a
    /// reservation too many with [`Status::Busy`], before there is a block that would have to be given back.
    pub fn began(&mut self, call: &Call) -> Result<Option<KvUse>, Status> {
        if call.op == op::KV_RESERVE {
            let by = Qpn(call.qpn);
            return match self.connected.get_mut(&by) {
                Some(RESERVED_BLOCKS..) => Err(Status::Busy),
                Some(count) => {
                    *count += 1;
                    Ok(Some(KvUse::Reserves(by)))
                }
                // Its client went away meanwhile.
                None => Ok(Some(KvUse::Reserves(by))),
            };
        }
        let Ok(KvParams { store, value: KvValue::Block(block, _), .. }) = KvParams::decode(&call.params, false) else {
            return Ok(None);
        };
        let block = KvBlock(store.key, store.base, block);
        let held = self.held.get_mut(&block);
        Ok(held.map(|held| {
            held.named += 1;
            KvUse::Names(block)
        }))
    }

    /// A call has ended, and is not answered yet.
    pub fn ended(&mut self, of: KvUse, call: &Call, status: Status) {
        match of {
            KvUse::Names(block) => self.named(block, status),
            KvUse::Reserves(by) if status == Status::Ok => self.reserved(by, call),
            KvUse::Reserves(by) => self.has_less(by),
        }
    }

    fn named(&mut self, block: KvBlock, status: Status) {
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

    fn reserved(&mut self, by: Qpn, call: &Call) {
        let params = KvParams::decode(&call.params, false).ok();
        let Some((params, block)) = params.zip(call.reply.first_chunk()) else { return self.has_less(by) };
        let block = u64::from_le_bytes(*block);
        // The key is of no account, and may be long: what counts is the block's class.
        let class = class_of(item_len(params.key.len(), params.value_len as usize)).map_or(0, class_bytes);
        let value_len = class.saturating_sub(item_len(0, 0) as u64).min(LONGEST_VALUE as u64) as u32;
        let mut release = Vec::new();
        KvParams { key: &[], value_len, value: KvValue::Block(block, 0), ..params }.encode(&mut release);
        let block = KvBlock(params.store.key, params.store.base, block);
        if !self.connected.contains_key(&by) {
            // Its client went away meanwhile.
            return self.left.push_back((block, release));
        }
        // A store that somebody has spoiled hands a block out twice.
        if let Some(before) = self.held.insert(block, Held { by, release, named: 0 }) {
            self.has_less(before.by);
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

    /// A reservation that ends rightly, if it is not refused.
    fn reserve(blocks: &mut KvBlocks, by: u32, block: u64) -> Status {
        let call = call(op::KV_RESERVE, by, block);
        match blocks.began(&call) {
            Ok(of) => blocks.ended(of.expect("a reservation"), &call, Status::Ok),
            Err(status) => return status,
        }
        Status::Ok
    }

    fn left(blocks: &mut KvBlocks) -> Vec<u64> {
        let left = std::iter::from_fn(|| blocks.poll_left());
        let block = |params: Vec<u8>| match KvParams::decode(&params, false).unwrap() {
            KvParams { value: KvValue::Block(block, 0), key: b"", value_len, store: STORE, .. } => {
                assert_eq!(class_of(item_len(0, value_len as usize)), class_of(item_len(3, 900)));
                block
            }
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
            assert_eq!(reserve(&mut blocks, by, block), Status::Ok);
        }
        let mut does = |op, block, status| {
            let call = call(op, 1, block);
            let named = blocks.began(&call).expect("it may").expect("a block that is reserved");
            blocks.ended(named, &call, status);
        };
        does(op::KV_PUT, 64, Status::Ok);
        does(op::KV_RELEASE, 96, Status::Ok);
        // It has the block still.
        does(op::KV_UPDATE, 128, Status::NotFound);
        assert_eq!(left(&mut blocks), []);
        // What is under way when it goes decides.
        let puts = [224, 256].map(|block| call(op::KV_PUT, 1, block));
        let late = call(op::KV_RESERVE, 1, 288);
        let [put, refused, reserves] =
            [&puts[0], &puts[1], &late].map(|call| blocks.began(call).expect("it may").expect("a block"));
        blocks.gone(Qpn(1));
        assert_eq!(left(&mut blocks), [128, 192]);
        blocks.ended(put, &puts[0], Status::Ok);
        blocks.ended(refused, &puts[1], Status::Inconsistent);
        assert_eq!(left(&mut blocks), [256]);
        blocks.ended(reserves, &late, Status::Ok);
        assert_eq!(left(&mut blocks), [288]);
        assert_eq!(blocks.began(&call(op::KV_PUT, 2, 64)), Ok(None), "a pair's by now");
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
            assert_eq!(reserve(&mut blocks, 1, 64), Status::Ok);
        }
        assert_eq!(reserve(&mut blocks, 2, 64), Status::Ok);
        assert_eq!(blocks.connected, [(Qpn(1), 0), (Qpn(2), 1)].into());
        let mut naming = call(op::KV_PUT, 1, 64);
        naming.op = op::KV_RESERVE;
        assert_eq!(blocks.began(&naming), Ok(Some(KvUse::Reserves(Qpn(1)))));
        blocks.ended(KvUse::Reserves(Qpn(1)), &naming, Status::BadParams);
        blocks.gone(Qpn(2));
        assert_eq!(left(&mut blocks), [64]);
    }

    /// What is one too many is not reserved first: giving it back could take longer than asking for the next.
    #[test]
    fn nobody_reserves_without_end_nor_leaves_blocks_without_end() {
        let mut blocks = KvBlocks::default();
        blocks.came(Qpn(1));
        for n in 1..=RESERVED_BLOCKS as u64 {
            assert_eq!(reserve(&mut blocks, 1, 32 * n), Status::Ok);
        }
        for n in 0..10_000 {
            assert_eq!(reserve(&mut blocks, 1, (1 << 20) + 32 * n), Status::Busy);
        }
        assert!(!blocks.has_left());
        // One that comes to nothing, and one block that is given back.
        let put = call(op::KV_PUT, 1, 32);
        let named = blocks.began(&put).unwrap().expect("a block that is reserved");
        blocks.ended(named, &put, Status::Ok);
        let full = call(op::KV_RESERVE, 1, 0);
        let of = blocks.began(&full).unwrap().expect("a reservation");
        assert_eq!(reserve(&mut blocks, 1, 32), Status::Busy, "it is on its way");
        blocks.ended(of, &full, remora_kernel::kv::NO_ROOM);
        assert_eq!([32, 64].map(|block| reserve(&mut blocks, 1, block)), [Status::Ok, Status::Busy]);
    }
}

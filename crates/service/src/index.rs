//! A client's calls on an index in two parts, by its own copy of the directory.
//!
//! Whoever is asked for a key and has it no more says so, and the other part is asked; beside that the border is asked for
//! anew, so that later calls know. A call is an [`IndexCall`]: [`IndexRouter::ask`] says what to submit for it, and
//! [`IndexRouter::answer`] whether that was all. Any number may be under way.

use remora_kernel::btree::{Directory, LOCKED, MOVED, MoveParams, Put, TreeParams, part_of};
use remora_kernel::{Placement, Status, op};

use crate::MAX_REPLY;

/// Answers that send on or put off, before a call ends with [`LOCKED`].
const TRIES: u32 = 1 << 12;
/// Pairs that one call brings: a reply has room for them, and for where the next ones are.
const PAIRS: usize = (MAX_REPLY - 8) / 16;

/// What to do with an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexOp {
    /// Look a key up.
    Get(u64),
    /// Write a key's value.
    Put(u64, u64, Put),
    /// Take a key out.
    Delete(u64),
    /// Read so many pairs from a key on.
    Scan(u64, u32),
}

/// An operation under way.
#[derive(Clone, Debug)]
pub struct IndexCall {
    op: IndexOp,
    part: usize,
    tries: u32,
    pairs: Vec<(u64, u64)>,
}

/// What an operation brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexReply {
    /// The value that the key has or, after a write, had.
    Value(Option<u64>),
    /// Pairs, in order.
    Pairs(Vec<(u64, u64)>),
}

/// A client's view of an index.
#[derive(Clone, Debug)]
pub struct IndexRouter {
    /// Where the directory is: address, and key of the region.
    at: (u64, u32),
    directory: Directory,
    /// Where calls run; without a choice each at the place of its part.
    place: Option<Placement>,
    asking: bool,
    redirects: u64,
}

impl IndexRouter {
    /// Of the index whose directory lies there, and was this.
    pub fn new(at: (u64, u32), directory: Directory) -> Self {
        Self { at, directory, place: None, asking: false, redirects: 0 }
    }

    /// Where the directory is: address, and key of the region. Who knows it can open the index.
    pub fn place(&self) -> (u64, u32) {
        self.at
    }

    /// The directory as this client knows it.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Has all calls run at a place, or each at that of its part. Where a client writes by itself
    /// ([`Placement::Client`]) its trees have owners.
    pub fn run_at(&mut self, place: Option<Placement>, owners: [u16; 2]) {
        self.place = place;
        for (part, owner) in self.directory.parts.iter_mut().zip(owners) {
            part.tree.owner = owner;
        }
    }

    /// Where all calls run, if not each at the place of its part.
    pub fn runs_at(&self) -> Option<Placement> {
        self.place
    }

    /// Calls that asked the wrong part first.
    pub fn redirects(&self) -> u64 {
        self.redirects
    }

    /// Begins an operation.
    pub fn begin(&self, op: IndexOp) -> IndexCall {
        let (IndexOp::Get(key) | IndexOp::Put(key, ..) | IndexOp::Delete(key) | IndexOp::Scan(key, _)) = op;
        IndexCall { op, part: part_of(self.directory.split, key), tries: 0, pairs: Vec::new() }
    }

    /// What to submit next for it: the place and the kernel; parameters go to `params`.
    pub fn ask(&self, call: &IndexCall, params: &mut Vec<u8>) -> (Placement, u64) {
        let part = &self.directory.parts[call.part];
        let (op, key, value, how) = match call.op {
            IndexOp::Get(key) => (op::TREE_GET, key, 0, Put::Upsert),
            IndexOp::Put(key, value, how) => (op::TREE_PUT, key, value, how),
            IndexOp::Delete(key) => (op::TREE_DELETE, key, 0, Put::Upsert),
            IndexOp::Scan(from, count) => {
                (op::TREE_SCAN, from, (count as usize - call.pairs.len()).min(PAIRS) as u64, Put::Upsert)
            }
        };
        params.clear();
        params.extend(TreeParams { how, ..TreeParams::new(part.tree, key, value) }.encode());
        (self.place.unwrap_or(part.place), op)
    }

    /// Takes an answer. Without a result the call is to be [asked](Self::ask) again. A key that is not there, or is and
    /// should not be, is an error as the kernel gives it.
    pub fn answer(&mut self, call: &mut IndexCall, status: Status, reply: &[u8]) -> Option<Result<IndexReply, Status>> {
        let again = match status {
            MOVED => {
                call.part = 1 - call.part;
                (self.asking, self.redirects) = (true, self.redirects + 1);
                true
            }
            LOCKED => true,
            Status::Ok => false,
            status => return Some(Err(status)),
        };
        if again {
            call.tries += 1;
            return (call.tries >= TRIES).then_some(Err(LOCKED));
        }
        let IndexOp::Scan(from, count) = &mut call.op else {
            return Some(Ok(IndexReply::Value(reply.first_chunk().map(|word| u64::from_le_bytes(*word)))));
        };
        let (pairs, next) = reply.as_chunks::<16>();
        call.pairs.extend(pairs.iter().map(|pair| {
            let pair = u128::from_le_bytes(*pair);
            (pair as u64, (pair >> 64) as u64)
        }));
        if call.pairs.len() < *count as usize {
            if let Some(next) = next.first_chunk() {
                // The other part goes on there.
                let next = u64::from_le_bytes(*next);
                self.redirects += u64::from(pairs.is_empty() && next == *from && call.tries == 0);
                (*from, call.part, call.tries) = (next, 1 - call.part, call.tries + 1);
                return (call.tries >= TRIES).then_some(Err(LOCKED));
            }
            if let (PAIRS.., Some(next)) = (pairs.len(), call.pairs.last().and_then(|(last, _)| last.checked_add(1))) {
                *from = next;
                return None;
            }
        }
        Some(Ok(IndexReply::Pairs(std::mem::take(&mut call.pairs))))
    }

    /// A call that asks for the border, if one is due: the place and the kernel; its answer goes to
    /// [`border`](Self::border).
    pub fn poll_border(&mut self, params: &mut Vec<u8>) -> Option<(Placement, u64)> {
        if !std::mem::take(&mut self.asking) {
            return None;
        }
        params.clear();
        params.extend(self.move_params(0, 0).encode());
        Some((Placement::Client, op::TREE_MOVE))
    }

    /// Parameters of a move of the border, by so many leaves at most.
    pub fn move_params(&self, target: u64, leaves: u32) -> MoveParams {
        MoveParams { directory: self.at.0, key: self.at.1, leaves, target }
    }

    /// The answer to a call that asked for the border or moved it: how many pairs it has moved, if it is one.
    pub fn border(&mut self, status: Status, reply: &[u8]) -> Option<u64> {
        let (split, pairs) = reply.split_first_chunk().filter(|_| status == Status::Ok)?;
        self.directory.split = u64::from_le_bytes(*split);
        Some(u64::from_le_bytes(*pairs.first_chunk()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use remora_kernel::btree::{Part, TreeRef};

    fn router() -> IndexRouter {
        let tree = |key| TreeRef { base: 64, key, slots: 100, node_bytes: 256, owners: 2, owner: 0 };
        let part = |key, place| Part { tree: tree(key), place };
        IndexRouter::new((64, 9), Directory { split: 100, parts: [part(7, Placement::Host), part(8, Placement::Nic)] })
    }

    fn asked(router: &IndexRouter, call: &IndexCall) -> (Placement, u64, TreeParams) {
        let mut params = Vec::new();
        let (place, op) = router.ask(call, &mut params);
        (place, op, TreeParams::decode(&params).unwrap())
    }

    #[test]
    fn a_key_that_has_moved_is_asked_for_elsewhere_and_the_border_anew_once() {
        let mut router = router();
        let mut params = Vec::new();
        let mut call = router.begin(IndexOp::Get(150));
        let (place, op, get) = asked(&router, &call);
        assert_eq!((place, op, get.tree.key, get.key), (Placement::Nic, op::TREE_GET, 8, 150));
        assert_eq!(router.poll_border(&mut params), None);
        assert_eq!(router.answer(&mut call, MOVED, &[]), None);
        assert_eq!(asked(&router, &call).0, Placement::Host);
        assert_eq!(router.answer(&mut call, LOCKED, &[]), None, "tried again there");
        assert_eq!(asked(&router, &call).0, Placement::Host);
        let found = router.answer(&mut call, Status::Ok, &7u64.to_le_bytes());
        assert_eq!(found, Some(Ok(IndexReply::Value(Some(7)))));
        assert_eq!(router.poll_border(&mut params), Some((Placement::Client, op::TREE_MOVE)));
        assert_eq!(MoveParams::decode(&params), Ok(MoveParams { directory: 64, key: 9, leaves: 0, target: 0 }));
        assert_eq!(router.poll_border(&mut params), None);
        let border = [200u64.to_le_bytes(), [0; 8]].concat();
        assert_eq!(router.border(Status::Ok, &border), Some(0));
        assert_eq!(asked(&router, &router.begin(IndexOp::Delete(150))).0, Placement::Host);
        router.run_at(Some(Placement::Client), [1, 2]);
        let (place, _, put) = asked(&router, &router.begin(IndexOp::Put(250, 1, Put::Insert)));
        assert_eq!((place, put.tree.owner, put.how), (Placement::Client, 2, Put::Insert));
    }

    #[test]
    fn a_scan_goes_on_over_borders_and_full_replies() {
        let mut router = router();
        let mut call = router.begin(IndexOp::Scan(90, 2 * PAIRS as u32));
        let pairs = |range: std::ops::Range<u64>| -> Vec<u8> {
            range.flat_map(|key| [key.to_le_bytes(), (2 * key).to_le_bytes()].concat()).collect()
        };
        let (_, _, first) = asked(&router, &call);
        assert_eq!((first.tree.key, first.key, first.value), (7, 90, PAIRS as u64));
        let reply = [pairs(90..95), 100u64.to_le_bytes().to_vec()].concat();
        assert_eq!(router.answer(&mut call, Status::Ok, &reply), None);
        let (_, _, second) = asked(&router, &call);
        assert_eq!((second.tree.key, second.key, second.value), (8, 100, PAIRS as u64));
        let (from, full) = (100, 100 + PAIRS as u64);
        assert_eq!(router.answer(&mut call, Status::Ok, &pairs(from..full)), None);
        let (_, _, third) = asked(&router, &call);
        assert_eq!((third.key, third.value), (full, PAIRS as u64 - 5));
        let Some(Ok(IndexReply::Pairs(found))) = router.answer(&mut call, Status::Ok, &pairs(full..full + 3)) else {
            panic!("the keys' end");
        };
        let keys = (90..95).chain(100..full + 3);
        assert_eq!(found, keys.map(|key| (key, 2 * key)).collect::<Vec<_>>());
    }

    #[test]
    fn a_call_that_nobody_answers_ends() {
        let mut router = router();
        let mut call = router.begin(IndexOp::Get(1));
        let end = std::iter::repeat_with(|| router.answer(&mut call, MOVED, &[])).take(1 << 13).flatten().next();
        assert_eq!(end, Some(Err(LOCKED)));
        let mut call = router.begin(IndexOp::Get(1));
        assert_eq!(router.answer(&mut call, Status::NotFound, &[]), Some(Err(Status::NotFound)));
    }
}

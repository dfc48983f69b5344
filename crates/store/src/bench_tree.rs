//! How many look-ups, scans and writes of a B-tree a second one core reaches.

use crate::Place;
use crate::hash::mix;
use remora_kernel::btree::{BuildError, ByteParams, KEY_BYTES, LOCKED, Put, Shape, TreeParams, TreeRef};
use remora_kernel::{Call, Limits, Status, host_runner, op};
use remora_memory::{Access, Buffer, PageKind, Pd, Region, Registry};
use std::io;
use std::sync::Arc;

/// Which keys a tree of so many holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// 0, 1, 2 and so on.
    Dense,
    /// As far apart as fits, each moved a little.
    Sparse,
}

impl Keys {
    /// The key with a number, of so many; they ascend.
    #[inline]
    pub fn key(self, number: u64, of: u64) -> u64 {
        match self {
            Keys::Dense => number,
            Keys::Sparse => {
                let gap = u64::MAX / of.max(1);
                number * gap + mix(number) % (gap / 2).max(1)
            }
        }
    }
}

/// A tree in this process. Each key is its own value.
pub struct TreeBench {
    registry: Arc<Registry>,
    pd: Pd,
    tree: TreeRef,
    pages: PageKind,
    /// Bytes of a key, if keys are bytes.
    key_bytes: Option<usize>,
}

/// The key of so many bytes that stands for a number: they are in the same order. The number is at the end, as in
/// `user000...`, so that keys begin alike.
pub fn byte_key(number: u64, out: &mut [u8]) {
    let at = out.len().saturating_sub(8);
    for (place, byte) in out[..at].iter_mut().enumerate() {
        *byte = b"user0"[place.min(4)];
    }
    let digits = number.to_be_bytes();
    let len = out.len() - at;
    out[at..].copy_from_slice(&digits[8 - len..]);
}

/// What a core does in a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Looks keys up.
    Get,
    /// Reads so many keys in order.
    Scan(u32),
    /// Writes new values to keys.
    Update,
    /// Writes keys that are not there.
    Insert,
}

impl TreeBench {
    /// A tree with these keys, and room for so many `more`.
    pub fn new(shape: Shape, keys: Keys, count: u64, more: u64, key_bytes: Option<usize>) -> io::Result<TreeBench> {
        let registry = Arc::new(Registry::new([0; 32]));
        let pd = registry.alloc_pd();
        let pairs = (0..count).map(|number| keys.key(number, count)).map(|key| (key, key));
        let bytes_of = |len: usize| {
            pairs.clone().map(move |(key, value)| {
                let mut bytes = vec![0; len];
                byte_key(key, &mut bytes);
                (bytes, value)
            })
        };
        // The first keys that come to a full node leave two behind that are half full.
        let slots = match key_bytes {
            None => 2 * (shape.slots(count as usize) + shape.slots(more as usize)) + 64,
            Some(len) => {
                let loaded = shape.byte_slots(bytes_of(len)).map_err(io::Error::other)?;
                2 * (loaded + loaded * more / count.max(1) + more / 4) + 64
            }
        };
        let slots = u32::try_from(slots).map_err(io::Error::other)?;
        let buffer = Buffer::anonymous(slots as usize * shape.node_bytes)?;
        let region = registry.register(pd, &buffer, 0, buffer.len(), None, Access::all()).map_err(io::Error::other)?;
        let write = |at: u64, node: &[u8]| {
            // The region holds all slots.
            let _ = region.write(region.va() + at, node);
            Ok::<_, BuildError>(())
        };
        let built = match key_bytes {
            None => shape.build(pairs, count as usize, slots, write),
            Some(len) => shape.build_bytes(bytes_of(len), slots, write),
        };
        built.map_err(io::Error::other)?;
        let place = |region: &Region| Place { va: region.va(), key: region.key() };
        let Place { va: base, key } = place(&region);
        let tree = TreeRef { base, key, slots, node_bytes: shape.node_bytes as u16, owners: 0, owner: 0 };
        Ok(TreeBench { registry, pd, tree, pages: buffer.page_kind(), key_bytes })
    }

    /// The pages under the tree.
    pub fn page_kind(&self) -> PageKind {
        self.pages
    }

    /// Does the work to these keys, as a node does it: calls of the kernels in a runner, so many in flight.
    ///
    /// # Panics
    /// If an answer is wrong.
    pub fn run(&self, work: Work, in_flight: usize, keys: &[u64]) {
        let mut keys = keys.iter().copied();
        let mut runner = host_runner(self.registry.clone(), true, in_flight, Limits::default());
        let mut calls: Vec<Call> = (0..in_flight).map(|_| Call::default()).collect();
        let (op, value) = match work {
            Work::Get => (op::TREE_GET, 0),
            Work::Scan(count) => (op::TREE_SCAN, u64::from(count)),
            Work::Update | Work::Insert => (op::TREE_PUT, 0),
        };
        let (mut more, mut again) = (true, Vec::new());
        while more || !again.is_empty() || runner.in_flight() > 0 {
            while let Some(mut call) = calls.pop() {
                let Some(key) = again.pop().or_else(|| keys.next()) else {
                    more = false;
                    calls.push(call);
                    break;
                };
                call.recycle(op, 1 << 16);
                (call.pd, call.tag) = (Some(self.pd), key);
                let value = if matches!(work, Work::Update | Work::Insert) { key } else { value };
                let how = if work == Work::Insert { Put::Insert } else { Put::Upsert };
                match self.key_bytes {
                    None => {
                        let params = TreeParams { how, ..TreeParams::new(self.tree, key, value) };
                        call.params.extend_from_slice(&params.encode());
                    }
                    Some(len) => {
                        let mut room = [0; KEY_BYTES];
                        byte_key(key, &mut room[..len]);
                        let params = ByteParams::new(self.tree, &room[..len], value);
                        ByteParams { how, ..params }.encode(&mut call.params);
                    }
                }
                let accepted = runner.start(call);
                assert!(accepted.is_ok(), "a runner has room for as many calls as its capacity");
            }
            runner.poll(&mut |call, status| {
                if status == LOCKED {
                    // Another core was stopped while it held a lock.
                    again.push(call.tag);
                    return calls.push(call);
                }
                let right = match work {
                    Work::Insert => call.reply.is_empty(),
                    _ => {
                        // In front of a pair's value is its key; if that is bytes, behind its length.
                        let at = match (work, self.key_bytes) {
                            (Work::Scan(_), Some(len)) => 2 + len,
                            _ => 0,
                        };
                        call.reply.get(at..at + 8) == Some(&call.tag.to_le_bytes())
                    }
                };
                assert!(status == Status::Ok && right, "{work:?}: {status:?} for key {:#x}", call.tag);
                calls.push(call);
            });
        }
    }
}

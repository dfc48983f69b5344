//! The small cases that are explored.

use remora_kernel::btree::Put;

/// One operation of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeOp {
    /// Looks a key up.
    Get(u64),
    /// Writes a key.
    Put(u64, u64, Put),
    /// Takes a key out.
    Delete(u64),
    /// Reads so many keys from one on.
    Scan(u64, u32),
    /// Moves the border between two parts to a key, by so many leaves at most.
    Move(u64, u32),
}

/// A tree with nodes of 256 bytes, and what tasks do to it at once.
#[derive(Clone, Copy, Debug)]
pub struct TreeCase {
    /// Its name.
    pub name: &'static str,
    /// What happens.
    pub about: &'static str,
    /// Keys that are loaded: 10, 20, and so on; each is its own value.
    pub loaded: u64,
    /// Keys that are taken out before.
    pub deleted: &'static [u64],
    /// The keys lie in two trees, with this border between them: an index in two parts.
    pub border: Option<u64>,
    /// Keys are the digits of their numbers, as bytes.
    pub bytes: bool,
    /// Operations of each task, one after the other.
    pub tasks: &'static [&'static [TreeOp]],
}

use TreeOp::{Delete, Get, Move, Put as Write, Scan};

/// More leaves than a case has.
const ALL: u32 = 9;

/// All cases. A leaf has room for 13 keys, and is merged below 3; if they are bytes for 9, or for 8 with a fence.
pub const TREE_CASES: &[TreeCase] = &[
    TreeCase {
        name: "split-root",
        about: "the root, a full leaf, is split; another writer and a reader are in its upper half",
        loaded: 13,
        deleted: &[],
        border: None,
        bytes: false,
        tasks: &[&[Write(65, 1, Put::Insert)], &[Write(120, 2, Put::Upsert)], &[Get(120), Get(65)]],
    },
    TreeCase {
        name: "split-leaf",
        about: "a full leaf is split by two writers; a reader scans both halves",
        loaded: 26,
        deleted: &[],
        border: None,
        bytes: false,
        tasks: &[&[Write(65, 1, Put::Insert)], &[Write(125, 2, Put::Insert)], &[Scan(60, 8)]],
    },
    TreeCase {
        name: "merge",
        about: "two leaves are merged and the root becomes a leaf; another writer and a reader are in the right one",
        loaded: 14,
        deleted: &[10, 20, 30, 40, 80, 90, 100, 110],
        border: None,
        bytes: false,
        tasks: &[&[Delete(50)], &[Write(130, 2, Put::Upsert)], &[Get(130)]],
    },
    TreeCase {
        name: "merge-scan",
        about: "two leaves are merged while a reader scans both",
        loaded: 14,
        deleted: &[10, 20, 30, 40, 80, 90, 100, 110],
        border: None,
        bytes: false,
        tasks: &[&[Delete(50)], &[Delete(130)], &[Scan(60, 4)]],
    },
    TreeCase {
        name: "reuse",
        about: "a merge frees a node, and a split elsewhere takes it; a reader has an old pointer to it",
        loaded: 39,
        deleted: &[10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 140, 150, 160, 170, 180, 190, 200, 210, 220, 230],
        border: None,
        bytes: false,
        tasks: &[&[Delete(110)], &[Write(385, 2, Put::Insert)], &[Get(240)]],
    },
    TreeCase {
        name: "torn",
        about: "one leaf: keys are moved while a reader reads them piece by piece; fine enough for that",
        loaded: 3,
        deleted: &[],
        border: None,
        bytes: false,
        tasks: &[&[Write(5, 1, Put::Insert)], &[Scan(10, 2)]],
    },
    TreeCase {
        name: "same-leaf",
        about: "two inserts into one leaf, and a reader",
        loaded: 3,
        deleted: &[],
        border: None,
        bytes: false,
        tasks: &[&[Write(15, 1, Put::Insert)], &[Write(25, 2, Put::Insert)], &[Get(15)]],
    },
    TreeCase {
        name: "same-key",
        about: "an insert, a delete and an update of one key",
        loaded: 3,
        deleted: &[],
        border: None,
        bytes: false,
        tasks: &[&[Write(15, 1, Put::Insert), Get(15)], &[Delete(15)], &[Write(15, 3, Put::Update), Get(15)]],
    },
    TreeCase {
        name: "move-write",
        about: "all keys come to the lower part while one of them is changed",
        loaded: 6,
        deleted: &[],
        border: Some(35),
        bytes: false,
        tasks: &[&[Write(50, 2, Put::Update)], &[Move(u64::MAX, ALL)]],
    },
    TreeCase {
        name: "move-read",
        about: "a scan goes over the border while it moves, and the leaves on both sides of it are split",
        loaded: 6,
        deleted: &[],
        border: Some(55),
        bytes: false,
        tasks: &[&[Scan(20, 9)], &[Move(40, ALL)]],
    },
    TreeCase {
        name: "move-down",
        about: "the upper keys of the only leaf go to the other tree; a writer and a reader are among them",
        loaded: 6,
        deleted: &[],
        border: Some(u64::MAX),
        bytes: false,
        tasks: &[&[Write(45, 1, Put::Insert)], &[Get(45)], &[Move(40, ALL)]],
    },
    TreeCase {
        name: "move-up",
        about: "all keys come to the lower part; one is deleted meanwhile, another changed",
        loaded: 6,
        deleted: &[],
        border: Some(35),
        bytes: false,
        tasks: &[&[Delete(40)], &[Write(50, 2, Put::Update)], &[Move(u64::MAX, ALL)]],
    },
    TreeCase {
        name: "move-scan",
        about: "a scan goes over the border while it moves down and a key is inserted",
        loaded: 6,
        deleted: &[],
        border: Some(55),
        bytes: false,
        tasks: &[&[Write(45, 1, Put::Insert)], &[Scan(20, 9)], &[Move(40, ALL)]],
    },
    TreeCase {
        name: "move-scan-up",
        about: "a scan goes over the border while it moves up and a key is deleted",
        loaded: 6,
        deleted: &[],
        border: Some(35),
        bytes: false,
        tasks: &[&[Delete(50)], &[Scan(20, 9)], &[Move(55, ALL)]],
    },
    TreeCase {
        name: "movers",
        about: "two move the border by a leaf, one up and one down; each then reads a key that the other may move",
        loaded: 6,
        deleted: &[],
        border: Some(35),
        bytes: false,
        tasks: &[&[Move(55, 1), Get(20)], &[Move(15, 1), Get(40)]],
    },
    TreeCase {
        name: "bytes-split-root",
        about: "keys that are bytes: the root, a full leaf, is split; another writer and a reader are in its upper half",
        loaded: 9,
        deleted: &[],
        border: None,
        bytes: true,
        tasks: &[&[Write(45, 1, Put::Insert)], &[Write(80, 2, Put::Upsert)], &[Get(80), Get(45)]],
    },
    TreeCase {
        name: "bytes-split-leaf",
        about: "keys that are bytes: the second of two inserts splits their leaf, whose fences and heap change; a reader scans it",
        loaded: 10,
        deleted: &[],
        border: None,
        bytes: true,
        tasks: &[&[Write(65, 1, Put::Insert)], &[Write(35, 2, Put::Insert)], &[Scan(30, 4)]],
    },
    TreeCase {
        name: "bytes-merge",
        about: "keys that are bytes: two leaves are merged and the root becomes a leaf; another writer and a reader are in the right one",
        loaded: 10,
        deleted: &[10, 20, 30, 40],
        border: None,
        bytes: true,
        tasks: &[&[Delete(50)], &[Write(90, 2, Put::Upsert)], &[Get(90)]],
    },
    TreeCase {
        name: "bytes-torn",
        about: "keys that are bytes, in one leaf: slots are moved and the heap grows while a reader reads them piece by piece",
        loaded: 3,
        deleted: &[],
        border: None,
        bytes: true,
        tasks: &[&[Write(5, 1, Put::Insert)], &[Scan(10, 2)]],
    },
];

impl TreeCase {
    /// The case of this name.
    pub fn named(name: &str) -> Option<&'static TreeCase> {
        TREE_CASES.iter().find(|case| case.name == name)
    }
}

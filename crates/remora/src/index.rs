//! Ordered indexes in a node's memory, in two parts: one that its host serves, one that its NIC serves.

use std::time::Instant;

use remora_kernel::btree::{EXISTS, FULL, LOCKED, NOT_OWNER, Put, Shape};
use remora_kernel::{Placement, Status};
use remora_real::Error;
use remora_service::{BorderClimber, BorderKeeper, IndexOp, IndexReply, IndexRouter};
use remora_store::btree::load_index;

use crate::{Client, Result};

/// Bytes of a node of the trees.
const NODE_BYTES: usize = 512;
/// Part of a node that is filled at first, in percent.
const FILL: u8 = 80;
/// Nodes for inserts, beside those for twice the pairs that are loaded.
const SPARE: u64 = 4096;
/// Clients that write by themselves at once.
const OWNERS: u16 = 16;
/// Leaves that one call moves: the host serves others between two.
const LEAVES: u32 = 4;

/// An ordered index of 64-bit keys and values, as one client knows it: a B-tree for the keys below its border, served by the
/// node's host, and one for all others, served by its NIC. [`Client::load_index`] makes one, [`Client::open_index`] opens it
/// for another client.
///
/// Any number of clients may read, write and scan it at once, while one of them moves the border.
///
/// ```
/// # use remora::{Client, Node, Placement};
/// # fn main() -> remora::Result<()> {
/// # let node = Node::local()?;
/// let mut client = Client::connect(node.address())?;
/// let mut index = client.load_index((0..1000).map(|key| (key, key * key)), 50)?;
/// assert_eq!(index.border(), 500);
/// assert_eq!(index.get(&mut client, 30)?, Some(900));
/// assert_eq!(index.put(&mut client, 30, 7)?, Some(900));
/// assert_eq!(index.insert(&mut client, 2000, 1)?, true);
/// assert_eq!(index.remove(&mut client, 999)?, Some(998_001));
/// assert_eq!(index.scan(&mut client, 998, 10)?, [(998, 996_004), (2000, 1)]);
///
/// // Another client, which does all by one-sided READs, compare-and-swap and WRITEs.
/// let mut other = Client::connect(node.address())?;
/// let mut theirs = other.open_index(index.place())?;
/// theirs.run_at(&mut other, Some(Placement::Client))?;
/// assert_eq!(theirs.get(&mut other, 30)?, Some(7));
///
/// // All to the NIC; who does not know is sent on.
/// assert_eq!(index.move_border(&mut client, 0)?, 500);
/// assert_eq!(theirs.get(&mut other, 30)?, Some(7));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Index {
    router: IndexRouter,
    /// Who says where the border should be, if this client keeps it.
    keeper: Option<Box<BorderKeeper>>,
}

impl Index {
    /// Where its directory is: address, and key of the region. Whoever knows it can open the index, for as long as the client
    /// that loaded it is connected.
    pub fn place(&self) -> (u64, u32) {
        self.router.place()
    }

    /// The first key that the NIC serves, as this client knows it: after a move by another it may be an old one, which
    /// costs the first calls a round trip more. `u64::MAX` if it serves none.
    pub fn border(&self) -> u64 {
        self.router.directory().split
    }

    /// Has this client's calls run at one place, or each where its part is. At [`Placement::Client`] the client uses
    /// one-sided verbs alone, and no other client writes it by this view. At one place no border is
    /// [kept](Self::keep_balanced) any more.
    pub fn run_at(&mut self, client: &mut Client, place: Option<Placement>) -> Result<()> {
        if place.is_some() {
            self.keeper = None;
        }
        client.idle()?.run_index_at(&mut self.router, place)
    }

    /// The value of a key.
    pub fn get(&mut self, client: &mut Client, key: u64) -> Result<Option<u64>> {
        self.value(client, IndexOp::Get(key))
    }

    /// Writes a key's value, and returns the one that it had.
    pub fn put(&mut self, client: &mut Client, key: u64, value: u64) -> Result<Option<u64>> {
        self.value(client, IndexOp::Put(key, value, Put::Upsert))
    }

    /// Writes a key that is not there. False if it is.
    pub fn insert(&mut self, client: &mut Client, key: u64, value: u64) -> Result<bool> {
        match self.run(client, IndexOp::Put(key, value, Put::Insert))? {
            Err(EXISTS) => Ok(false),
            result => result.map(|_| true).map_err(refused),
        }
    }

    /// Takes a key out, and returns its value.
    pub fn remove(&mut self, client: &mut Client, key: u64) -> Result<Option<u64>> {
        self.value(client, IndexOp::Delete(key))
    }

    /// At most `count` pairs of key and value from a key on, in order. What others write meanwhile may be among them or not; a
    /// key that is there all the while is, once.
    pub fn scan(&mut self, client: &mut Client, from: u64, count: u32) -> Result<Vec<(u64, u64)>> {
        match self.run(client, IndexOp::Scan(from, count))? {
            Ok(IndexReply::Pairs(pairs)) => Ok(pairs),
            Ok(IndexReply::Value(_)) => Ok(Vec::new()),
            Err(status) => Err(refused(status)),
        }
    }

    /// Moves the border to a key, a few leaves with each call to the host, while all clients go on. With 0 the NIC serves all
    /// keys then, with `u64::MAX` the host. Returns how many pairs have changed over. If two clients move it at once, it
    /// goes to and fro until one of them is done.
    pub fn move_border(&mut self, client: &mut Client, border: u64) -> Result<u64> {
        let mut moved = 0;
        loop {
            moved += self.step(client, border, LEAVES)?;
            if self.border() == border {
                return Ok(moved);
            }
        }
    }

    /// Moves the border to where most calls end, in up to about thirty steps. `rate` makes calls, or waits while others do, and
    /// says how many end a second; `keys` are some of the index's, in order, by which the border's steps are told.
    pub fn balance(
        &mut self,
        client: &mut Client,
        keys: &[u64],
        mut rate: impl FnMut(&mut Client, &mut Index) -> Result<f64>,
    ) -> Result<()> {
        let below = keys.partition_point(|key| *key < self.border());
        let mut climber = BorderClimber::new((100 * below / keys.len().max(1)) as u8);
        while !climber.is_settled() {
            let reached = rate(client, self)?;
            let border = match climber.measured(reached) {
                0 => 0,
                share => keys.get(keys.len() * usize::from(share) / 100).copied().unwrap_or(u64::MAX),
            };
            self.move_border(client, border)?;
        }
        Ok(())
    }

    /// Keeps the border where this client's look-ups and writes are answered soonest from now on, as long as each runs where its
    /// part is: it moves away from the part at which calls take longer, as far as they do, but for 1 % of them. If other clients
    /// keep the host or the NIC busy, or other keys are asked for, the border follows. Calls are timed, and after one in sixteen
    /// at most a few leaves change over, until the border is where it is to be: that call takes as much longer. One client of an
    /// index does this; scans are not timed. While all calls [run at one place](Self::run_at) it has no effect: what they take
    /// says nothing of a border.
    ///
    /// ```
    /// # use remora::{Client, Node};
    /// # fn main() -> remora::Result<()> {
    /// # let node = Node::local()?;
    /// # let mut client = Client::connect(node.address())?;
    /// let mut index = client.load_index((0..1000).map(|key| (key, key * key)), 50)?;
    /// index.keep_balanced(true);
    /// for key in 0..1000 {
    ///     assert_eq!(index.get(&mut client, key)?, Some(key * key));
    /// }
    /// println!("the NIC serves keys from {} on", index.border());
    /// index.keep_balanced(false);
    /// # Ok(())
    /// # }
    /// ```
    pub fn keep_balanced(&mut self, keep: bool) {
        self.keeper = (keep && self.router.runs_at().is_none()).then(Box::default);
    }

    /// A part of [`move_border`](Self::move_border): at most so many leaves, by one call. [`border`](Self::border) says how
    /// far it came.
    pub fn step(&mut self, client: &mut Client, border: u64, leaves: u32) -> Result<u64> {
        match client.idle()?.move_border(&mut self.router, Placement::Host, border, leaves)? {
            Ok(moved) => Ok(moved),
            Err(LOCKED) => Ok(0),
            Err(status) => Err(refused(status)),
        }
    }

    fn value(&mut self, client: &mut Client, op: IndexOp) -> Result<Option<u64>> {
        match self.run(client, op)? {
            Ok(IndexReply::Value(value)) => Ok(value),
            Ok(IndexReply::Pairs(_)) | Err(Status::NotFound) => Ok(None),
            Err(status) => Err(refused(status)),
        }
    }

    fn run(&mut self, client: &mut Client, op: IndexOp) -> Result<std::result::Result<IndexReply, Status>> {
        let (IndexOp::Get(key) | IndexOp::Put(key, ..) | IndexOp::Delete(key)) = op else {
            return client.idle()?.index(&mut self.router, op);
        };
        let begun = self.keeper.is_some().then(Instant::now);
        let result = client.idle()?.index(&mut self.router, op)?;
        if let Some((keeper, begun)) = self.keeper.as_mut().zip(begun)
            && let Some(target) = keeper.ended(key, begun.elapsed().as_nanos() as u64, self.router.directory().split)
            && self.step(client, target, LEAVES).is_err()
            && let Some(keeper) = &mut self.keeper
        {
            // The call has its result all the same; a connection that is lost says so with the next.
            keeper.stay();
        }
        Ok(result)
    }
}

pub(crate) fn refused(status: Status) -> Error {
    let why = match status {
        FULL => "its memory for nodes is used up: load it into a larger one".into(),
        LOCKED => {
            "a client that stands still has locked a part of it: end that client, and the node gives its locks back"
                .into()
        }
        NOT_OWNER => "at this client it is written only once `run_at` was called with this client".into(),
        status => format!("{status:?}"),
    };
    Error::Node { what: "work on a tree", why }
}

impl Client {
    /// Loads an index of pairs, in any order, each key once; the first so many percent of the keys are served by the node's
    /// host, the others by its NIC.
    pub fn load_index(&mut self, pairs: impl IntoIterator<Item = (u64, u64)>, percent: u8) -> Result<Index> {
        let mut pairs: Vec<(u64, u64)> = pairs.into_iter().collect();
        pairs.sort_unstable();
        let below = pairs.len() * usize::from(percent.min(100)) / 100;
        let split = match percent {
            0 => 0,
            100.. => u64::MAX,
            _ => pairs.get(below).map_or(u64::MAX, |(key, _)| *key),
        };
        let shape = Shape { node_bytes: NODE_BYTES, fill: FILL };
        let places = [Placement::Host, Placement::Nic];
        let (at, directory) = load_index(shape, &pairs, split, places, (SPARE, OWNERS), self)?;
        Ok(Index { router: IndexRouter::new((at.va, at.key), directory), keeper: None })
    }

    /// Opens an index that another client has loaded: [`Index::place`] says where.
    pub fn open_index(&mut self, place: (u64, u32)) -> Result<Index> {
        Ok(Index { router: self.idle()?.open_index(place)?, keeper: None })
    }
}

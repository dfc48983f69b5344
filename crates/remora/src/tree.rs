//! An ordered map of byte keys in a node's memory.

use std::time::{Duration, Instant};

use remora_kernel::btree::{BytePairs, ByteParams, EXISTS, LOCKED, Put, Shape, TreeRef};
use remora_kernel::{Placement, Status, op};
use remora_real::Error;
use remora_service::CallKind;
use remora_store::btree::load_bytes;

use crate::index::refused;
use crate::{Client, MAX_REPLY, Result};

/// Bytes of a node: keys of up to 256 bytes fit.
const NODE_BYTES: usize = 2048;
/// For how long another client may stand still with a node locked, before a call gives up.
const STOPPED: Duration = Duration::from_secs(10);
/// Part of a node that is filled at first, in percent.
const FILL: u8 = 80;
/// Nodes for inserts, beside those for twice the pairs that are loaded.
const SPARE: u64 = 1024;
/// Clients that write by themselves at once.
const OWNERS: u16 = 16;
/// Pairs that one reply holds, however long their keys are, beside the last one of the reply before.
const PAIRS: usize = MAX_REPLY / (2 + 256 + 8) - 1;

/// An ordered map of keys of up to 256 bytes to 64-bit values, in the memory of a node: a B-tree.
/// [`Client::load_tree`] makes one, [`Tree::open`] opens it for another client.
///
/// Any number of clients may read, write and scan it at once, each at a place of its choice.
///
/// ```
/// # use remora::{Client, Node, Placement, Tree};
/// # fn main() -> remora::Result<()> {
/// # let node = Node::local()?;
/// let mut client = Client::connect(node.address())?;
/// let mut tree = client.load_tree([("pear", 3), ("apple", 1), ("fig", 2)])?;
/// assert_eq!(tree.get(&mut client, "fig")?, Some(2));
/// assert_eq!(tree.put(&mut client, "fig", 7)?, Some(2));
/// assert_eq!(tree.insert(&mut client, "plum", 4)?, true);
/// assert_eq!(tree.remove(&mut client, "apple")?, Some(1));
///
/// // Another client, by one-sided READs, compare-and-swap and WRITEs.
/// let mut other = Client::connect(node.address())?;
/// let mut theirs = Tree::open(tree.place());
/// theirs.run_at(&mut other, Placement::Client)?;
/// theirs.put(&mut other, "quince", 5)?;
/// let pairs = tree.scan(&mut client, "pear", 2)?;
/// assert_eq!(pairs, [(b"pear".to_vec(), 3), (b"plum".to_vec(), 4)]);
///
/// // Each call where it is answered quickest.
/// tree.run_auto();
/// for _ in 0..1000 {
///     assert_eq!(tree.get(&mut client, "quince")?, Some(5));
/// }
/// tree.put(&mut client, "quince", 6)?; // on the node
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Tree {
    at: TreeRef,
    /// Without one it is chosen for each call.
    place: Option<Placement>,
}

impl Tree {
    /// Opens a tree that another client has loaded.
    pub fn open(place: TreeRef) -> Self {
        Self { at: TreeRef { owner: 0, ..place }, place: Some(Placement::Host) }
    }

    /// Where it is. It stays for as long as the client that loaded it is connected.
    pub fn place(&self) -> TreeRef {
        TreeRef { owner: 0, ..self.at }
    }

    /// Has this client's calls run at a place; at first it is [`Placement::Host`]. At [`Placement::Client`] the client uses
    /// one-sided verbs alone, and becomes an owner of the tree: if it goes away in the middle of a write, the node ends that write.
    /// No other client then writes by this view, be it one that has connected in its place.
    pub fn run_at(&mut self, client: &mut Client, place: Placement) -> Result<()> {
        if place == Placement::Client {
            self.at = client.idle()?.own_tree(self.place())?;
        }
        self.place = Some(place);
        Ok(())
    }

    /// Has each of this client's calls run where it is answered quickest, as [`Client::auto`] finds out: look-ups and scans at
    /// the client, the NIC or the host, writes at one of the latter two.
    pub fn run_auto(&mut self) {
        self.place = None;
    }

    /// The value of a key.
    pub fn get(&self, client: &mut Client, key: impl AsRef<[u8]>) -> Result<Option<u64>> {
        self.value(client, op::TREE_GET, key.as_ref(), 0, Put::Upsert)
    }

    /// Writes a key's value, and returns the one that it had.
    pub fn put(&self, client: &mut Client, key: impl AsRef<[u8]>, value: u64) -> Result<Option<u64>> {
        self.value(client, op::TREE_PUT, key.as_ref(), value, Put::Upsert)
    }

    /// Writes a key that is not there. False if it is.
    pub fn insert(&self, client: &mut Client, key: impl AsRef<[u8]>, value: u64) -> Result<bool> {
        match self.call(client, op::TREE_PUT, key.as_ref(), value, Put::Insert)? {
            (Status::Ok, _) => Ok(true),
            (EXISTS, _) => Ok(false),
            (status, _) => Err(refused(status)),
        }
    }

    /// Writes a key that is there. Returns the value that it had; none if it is not.
    pub fn update(&self, client: &mut Client, key: impl AsRef<[u8]>, value: u64) -> Result<Option<u64>> {
        self.value(client, op::TREE_PUT, key.as_ref(), value, Put::Update)
    }

    /// Takes a key out, and returns its value.
    pub fn remove(&self, client: &mut Client, key: impl AsRef<[u8]>) -> Result<Option<u64>> {
        self.value(client, op::TREE_DELETE, key.as_ref(), 0, Put::Upsert)
    }

    /// At most `count` pairs of key and value from a key on, in order. What others write meanwhile may be among them or not; a
    /// key that is there all the while is, once.
    pub fn scan(&self, client: &mut Client, from: impl AsRef<[u8]>, count: usize) -> Result<Vec<(Vec<u8>, u64)>> {
        let (mut pairs, mut from) = (Vec::new(), from.as_ref().to_vec());
        while pairs.len() < count {
            let wanted = (count - pairs.len()).min(PAIRS);
            // Of what comes in pieces each begins where the last one has ended, with that key once more.
            let again = usize::from(!pairs.is_empty());
            let reply = match self.call(client, op::TREE_SCAN, &from, (wanted + again) as u64, Put::Upsert)? {
                (Status::Ok, reply) => reply,
                (status, _) => return Err(refused(status)),
            };
            let mut found: Vec<_> = BytePairs(&reply).map(|(key, value)| (key.to_vec(), value)).collect();
            let all = found.len() < wanted + again;
            if again == 1 && found.first().is_some_and(|(key, _)| *key == from) {
                found.remove(0);
            }
            found.truncate(count - pairs.len());
            pairs.extend(found);
            match pairs.last() {
                Some((last, _)) if !all => from.clone_from(last),
                _ => break,
            }
        }
        Ok(pairs)
    }

    fn value(&self, client: &mut Client, op: u64, key: &[u8], value: u64, how: Put) -> Result<Option<u64>> {
        match self.call(client, op, key, value, how)? {
            (Status::Ok, reply) => Ok(reply.first_chunk().map(|value| u64::from_le_bytes(*value))),
            (Status::NotFound, _) => Ok(None),
            (status, _) => Err(refused(status)),
        }
    }

    fn call(&self, client: &mut Client, op: u64, key: &[u8], value: u64, how: Put) -> Result<(Status, Vec<u8>)> {
        let most = remora_kernel::btree::key_bytes(self.at.node_bytes.into());
        if key.len() > most {
            return Err(Error::Argument(format!("a key of {} bytes: the most is {most}", key.len())));
        }
        let mut params = Vec::new();
        let at = client.idle()?.as_owner(self.at);
        ByteParams { how, ..ByteParams::new(at, key, value) }.encode(&mut params);
        let kind = CallKind::of(op, &params);
        let begin = Instant::now();
        loop {
            let client = client.idle()?;
            let answer = match self.place {
                Some(place) => client.call(place, op, &params),
                None => client.call_auto(kind, &params),
            };
            match answer? {
                // Somebody was stopped while he had a lock.
                (LOCKED, _) if begin.elapsed() < STOPPED => {}
                answer => return Ok(answer),
            }
        }
    }
}

impl Client {
    /// Loads an ordered map of pairs, in any order, each key once.
    pub fn load_tree<K: AsRef<[u8]>>(&mut self, pairs: impl IntoIterator<Item = (K, u64)>) -> Result<Tree> {
        let mut pairs: Vec<(K, u64)> = pairs.into_iter().collect();
        pairs.sort_unstable_by(|(a, _), (b, _)| a.as_ref().cmp(b.as_ref()));
        let shape = Shape { node_bytes: NODE_BYTES, fill: FILL };
        let at = load_bytes(shape, pairs.iter().map(|(key, value)| (key, *value)), SPARE, OWNERS, self)?;
        Ok(Tree::open(at))
    }
}

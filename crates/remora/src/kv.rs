//! A key-value store of byte keys in a node's memory.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use remora_kernel::kv::{KvParams, KvValue, NO_ROOM, key_in, locate, pair, value_in};
use remora_kernel::{Placement, Status, op};
use remora_real::Error;
use remora_service::SHORT_RING_MESSAGE;
use remora_store::kv::{Kv, KvError, KvShape};

use crate::{Client, RemoteRegion, Result, TypedCall};

/// How often a call is made again while others write the same pair: one of them may wait for a core.
const TRIES: u32 = 1000;
/// Buckets that a client reads by itself for one key, at most: as many as a call may.
const LONGEST_WALK: u32 = 4096;
/// Calls after which a client looks whether a store has more buckets by now.
const LOOK: u32 = 1024;
/// Bytes of a call's parameters that are neither key nor value, at most.
const FRONT: usize = KvParams::LEN + 16;

/// How long parameters of calls to a place may be. What is longer goes straight to its block, and holds up nobody at the node.
fn room(client: &remora_real::Client, place: Placement) -> usize {
    client.most_params(place, true).min(SHORT_RING_MESSAGE)
}

/// A key-value store in the memory of a node: keys of up to 4 KB, values of up to 1 MB. [`Client::create_store`] makes one,
/// [`KvStore::open`] opens it for another client. Writes of keys that are longer than 4,016 bytes go by
/// [rings](Client::open_rings) alone.
///
/// It grows while it serves, in buckets and in memory, as long as the node has memory for the client that made it. A
/// store looks for more buckets itself, now and then; who only [submits](crate::At::submit) [`KvGet`]s and [`KvWrite`]s
/// has it [look](KvStore::look).
///
/// Any number of clients may read and write it at once. Reads run where the client chooses, at [`Placement::Client`] by
/// one-sided READs alone; writes run at the node. What is in memory of a client that made it lasts as long as that client is connected.
///
/// ```
/// # use remora::{Client, KvGet, KvShape, KvStore, KvWrite, Node, Placement};
/// # fn main() -> remora::Result<()> {
/// # let node = Node::local()?;
/// let mut client = Client::connect(node.address())?;
/// let fruit = client.create_store(&KvShape { pairs: 1000, key_bytes: 16, value_bytes: 64 })?;
/// fruit.put(&mut client, "pear", "green")?;
/// assert_eq!(fruit.get(&mut client, "pear")?.as_deref(), Some(&b"green"[..]));
/// assert!(fruit.update(&mut client, "pear", "yellow")?);
/// assert!(!fruit.update(&mut client, "plum", "blue")?, "there is none");
/// fruit.put(&mut client, "basket", vec![7; 1 << 20])?;
///
/// // Another client, of another process perhaps: it reads by one-sided READs, and has its writes go by a ring in the node's memory.
/// let told = fruit.place().to_string();
/// let mut other = Client::connect(node.address())?;
/// other.open_rings(Placement::Nic)?;
/// let mut theirs = KvStore::open(told.parse().expect("where it is"));
/// theirs.run_at(Placement::Client);
/// assert_eq!(theirs.get(&mut other, "basket")?, Some(vec![7; 1 << 20]));
/// assert!(theirs.remove(&mut other, "basket")?);
///
/// // Calls that are under way together, each at a place of its own.
/// let puts = ["fig", "lime"].map(|key| KvWrite::put(&fruit, key, "sweet"));
/// let [fig, lime] = puts.map(|put| put.map(|put| other.at(Placement::Nic).submit(put)));
/// assert!(other.wait(fig?)? && other.wait(lime?)?);
/// assert_eq!(other.at(Placement::Host).call(KvGet::new(&fruit, "lime")?)?.as_deref(), Some(&b"sweet"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct KvStore {
    known: Arc<Known>,
    place: Placement,
}

/// What is known of a store, by all of its clones.
#[derive(Debug)]
struct Known {
    at: Mutex<Kv>,
    /// Calls until the next look at its buckets.
    until_look: AtomicU32,
}

impl KvStore {
    /// Opens a store that another client has made.
    pub fn open(place: Kv) -> Self {
        // It may have grown since its place was told.
        Self::known(place, 0)
    }

    fn known(place: Kv, until_look: u32) -> Self {
        let known = Known { at: Mutex::new(place), until_look: AtomicU32::new(until_look) };
        Self { known: Arc::new(known), place: Placement::Host }
    }

    /// Where it is, and its seed, to be told to others as a string too: who knows both can open it, and who knows the seed can
    /// choose keys that make it slow.
    pub fn place(&self) -> Kv {
        *self.known.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks which buckets it has by now, by a READ: each eightfold of them that calls do not know of costs them an
    /// access. Once in 1,024 calls by this type's functions does so by itself. As every READ where nothing is, one of a
    /// store whose maker has disconnected costs this client its connection.
    pub fn look(&self, client: &mut Client) -> Result<()> {
        let mut first_bytes = [0; 16];
        client.read(&self.region(), 0, &mut first_bytes)?;
        let seen = self.place().seen(&first_bytes);
        if let Some(seen) = seen {
            *self.known.at.lock().unwrap_or_else(PoisonError::into_inner) = seen;
        }
        self.known.until_look.store(LOOK, Ordering::Relaxed);
        Ok(())
    }

    /// The store has answered, so that it is there to be looked at.
    fn count(&self, client: &mut Client) {
        // Clones that count at once may look once too often.
        match self.known.until_look.load(Ordering::Relaxed).checked_sub(1) {
            Some(left) => self.known.until_look.store(left, Ordering::Relaxed),
            // What fails now fails the next call too, and says why.
            None => _ = self.look(client),
        }
    }

    /// Has this client's calls run at a place; at first it is [`Placement::Host`]. At [`Placement::Client`] that holds for
    /// reads, and writes run at the node's NIC: a client that goes away in the middle of one would leave a lock behind. What
    /// has too long a key for a call there is read by one-sided READs, and written at the host.
    pub fn run_at(&mut self, place: Placement) {
        self.place = place;
    }

    /// The value of a key.
    pub fn get(&self, client: &mut Client, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let KvGet(params) = KvGet::new(self, key.as_ref())?;
        if self.place != Placement::Client && FRONT + params.key.len() > room(client.real()?, self.place) {
            return self.read(client, params.key);
        }
        match self.call(client, self.place, Answered(op::KV_GET, params))? {
            (Status::Ok, value) => Ok(Some(value)),
            (Status::NotFound, _) => Ok(None),
            (Status::ReplyTooLong, _) => self.read(client, key.as_ref()),
            (status, _) => Err(refused(status)),
        }
    }

    /// Writes a pair, whether its key is there or not. A value of another length may need a block of another length, and a shorter
    /// one that of a longer: if there is none left, and the node has no more memory for it, that is an error, and the
    /// pair stays as it was.
    pub fn put(&self, client: &mut Client, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.write(client, KvWrite::put(self, key.as_ref(), value.as_ref())?).map(drop)
    }

    /// Writes the value of a key that is there. False if it is not.
    pub fn update(&self, client: &mut Client, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        self.write(client, KvWrite::update(self, key.as_ref(), value.as_ref())?)
    }

    /// Takes a pair out. False if there is none.
    pub fn remove(&self, client: &mut Client, key: impl AsRef<[u8]>) -> Result<bool> {
        self.write(client, KvWrite::remove(self, key.as_ref())?)
    }

    /// A write at the node. What is too long for a call goes into a block of the store by one-sided WRITEs first.
    fn write(&self, client: &mut Client, KvWrite { op, params }: KvWrite<'_>) -> Result<bool> {
        let wanted = if self.place == Placement::Client { Placement::Nic } else { self.place };
        let KvValue::Bytes(value) = params.value else { return Err(refused(Status::BadParams)) };
        let real = client.real()?;
        let has_room = |place: &Placement| FRONT + params.key.len() <= room(real, *place);
        let Some(place) = [wanted, Placement::Host].into_iter().find(has_room) else {
            let (key, most) = (params.key.len(), room(real, Placement::Host) - FRONT);
            return Err(Error::Argument(format!(
                "a write of a key of {key} bytes without rings: the most is {most}; open rings to the {wanted} or the host"
            )));
        };
        let room = room(real, place);
        let ended;
        if KvParams::LEN + params.key.len() + value.len() <= room {
            (ended, _) = self.call(client, place, Answered(op, params))?;
        } else {
            let reserve = KvParams { value: KvValue::Bytes(&[]), ..params };
            let block = match self.call(client, place, Answered(op::KV_RESERVE, reserve))? {
                (Status::Ok, block) => block.try_into().map_or(0, u64::from_le_bytes),
                (status, _) => return Err(refused(status)),
            };
            let (bytes, sum) = pair(params.key, value);
            client.write(&self.region(), block, &bytes)?;
            let named = KvParams { value: KvValue::Block(block, sum), ..params };
            (ended, _) = self.call(client, place, Answered(op, named))?;
            if ended != Status::Ok {
                // The block is this client's still.
                self.call(client, place, Answered(op::KV_RELEASE, named))?;
            }
        }
        done(ended).ok_or_else(|| refused(ended))
    }

    /// Reads a value that is longer than a reply, by one-sided READs.
    fn read(&self, client: &mut Client, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let (place, region) = (self.place(), self.region());
        let (store, hash) = (place.at(), place.hash(key));
        'again: for tries in 0..TRIES {
            if tries > 0 {
                std::thread::yield_now();
            }
            let (mut first, mut bucket) = ((0, [0; 64]), (0, [0; 64]));
            let (mut blocks, mut next) = locate(store, hash, None);
            for _ in 0..LONGEST_WALK {
                for (at, len) in blocks {
                    let mut block = vec![0; len as usize];
                    client.read(&region, at, &mut block)?;
                    if let Ok(value) = value_in(&block, key) {
                        return Ok(Some(block[value].to_vec()));
                    }
                    // Somebody writes the pair, or it went away and any other came here.
                    if !key_in(&block).is_some_and(|found| found != key && place.hash(found) >> 48 == hash >> 48) {
                        continue 'again;
                    }
                    // Another lies there since its entry was read, or since the chain was moved, or did so before.
                    for (at, was) in [bucket, first] {
                        let mut now = [0; 64];
                        client.read(&region, at, &mut now)?;
                        if now != was {
                            continue 'again;
                        }
                    }
                }
                let Some((at, depth)) = next else { return Ok(None) };
                bucket.0 = at;
                client.read(&region, at, &mut bucket.1)?;
                if depth == 0 {
                    first = bucket;
                }
                (blocks, next) = locate(store, hash, Some((&bucket.1, depth)));
            }
            return Err(refused(Status::StepLimit));
        }
        Err(refused(Status::Inconsistent))
    }

    fn call(&self, client: &mut Client, place: Placement, call: Answered<'_>) -> Result<(Status, Vec<u8>)> {
        let mut tries = 0..TRIES;
        loop {
            match client.at(place).call(call)? {
                (Status::Inconsistent, _) if tries.next().is_some() => std::thread::yield_now(),
                (Status::LOST, _) => return Err(Error::Kernel { op: call.0, placement: place, status: Status::LOST }),
                answer => {
                    if matches!(answer.0, Status::Ok | Status::NotFound) {
                        self.count(client);
                    }
                    return Ok(answer);
                }
            }
        }
    }

    fn region(&self) -> RemoteRegion {
        // However long it is by now: the node knows.
        let place = self.place().place();
        RemoteRegion { va: place.va, key: place.key, len: (u64::MAX - place.va).min(1 << 47) }
    }
}

/// The value of a key: what [`KvStore::get`] calls, to be [submitted](crate::At::submit) or called at a place. Key and value are
/// as long as a call and its reply may be; [`KvStore::get`] takes longer ones.
#[derive(Clone, Copy, Debug)]
pub struct KvGet<'k>(KvParams<'k>);

impl<'k> KvGet<'k> {
    /// Of a store.
    pub fn new<K: AsRef<[u8]> + ?Sized>(store: &KvStore, key: &'k K) -> Result<Self> {
        store.place().key(key.as_ref()).map(Self).map_err(argument)
    }
}

impl TypedCall for KvGet<'_> {
    type Reply = Option<Vec<u8>>;

    fn op(&self) -> u64 {
        op::KV_GET
    }

    fn encode(&self, params: &mut Vec<u8>) {
        self.0.encode(params);
    }

    fn decode(&self, status: Status, reply: &[u8]) -> Option<Self::Reply> {
        match status {
            Status::Ok => Some(Some(reply.to_vec())),
            Status::NotFound => Some(None),
            _ => None,
        }
    }
}

/// A write to a [`KvStore`], whose reply is whether it was done: a PUT always is, an update or removal if the key is there. It is
/// for the node's NIC or host, and as long as a call may be; [`KvStore::put`] takes longer ones.
#[derive(Clone, Copy, Debug)]
pub struct KvWrite<'k> {
    op: u64,
    params: KvParams<'k>,
}

impl<'k> KvWrite<'k> {
    /// Writes a pair, whether its key is there or not.
    pub fn put<K, V>(store: &KvStore, key: &'k K, value: &'k V) -> Result<Self>
    where
        K: AsRef<[u8]> + ?Sized,
        V: AsRef<[u8]> + ?Sized,
    {
        Self::new(store, op::KV_PUT, key.as_ref(), value.as_ref())
    }

    /// Writes the value of a key that is there.
    pub fn update<K, V>(store: &KvStore, key: &'k K, value: &'k V) -> Result<Self>
    where
        K: AsRef<[u8]> + ?Sized,
        V: AsRef<[u8]> + ?Sized,
    {
        Self::new(store, op::KV_UPDATE, key.as_ref(), value.as_ref())
    }

    /// Takes a pair out.
    pub fn remove<K: AsRef<[u8]> + ?Sized>(store: &KvStore, key: &'k K) -> Result<Self> {
        Self::new(store, op::KV_DELETE, key.as_ref(), &[])
    }

    fn new(store: &KvStore, op: u64, key: &'k [u8], value: &'k [u8]) -> Result<Self> {
        let params = store.place().pair(key, value).map_err(argument)?;
        Ok(Self { op, params })
    }
}

impl TypedCall for KvWrite<'_> {
    type Reply = bool;

    fn op(&self) -> u64 {
        self.op
    }

    fn encode(&self, params: &mut Vec<u8>) {
        self.params.encode(params);
    }

    fn decode(&self, status: Status, _: &[u8]) -> Option<bool> {
        done(status)
    }
}

/// A call whose answer is taken as it comes.
#[derive(Clone, Copy)]
struct Answered<'k>(u64, KvParams<'k>);

impl TypedCall for Answered<'_> {
    type Reply = (Status, Vec<u8>);

    fn op(&self) -> u64 {
        self.0
    }

    fn encode(&self, params: &mut Vec<u8>) {
        self.1.encode(params);
    }

    fn decode(&self, status: Status, reply: &[u8]) -> Option<Self::Reply> {
        Some((status, reply.to_vec()))
    }
}

/// Whether a write was done, if it has ended rightly.
fn done(status: Status) -> Option<bool> {
    match status {
        Status::Ok => Some(true),
        Status::NotFound => Some(false),
        _ => None,
    }
}

fn argument(error: KvError) -> Error {
    Error::Argument(error.to_string())
}

fn refused(status: Status) -> Error {
    let why = match status {
        NO_ROOM => {
            "its memory is used up, and the node has no more for the client that made it: start the node with a larger --memory".into()
        }
        Status::Inconsistent => "others write the same pair all the time: ask again".into(),
        Status::StepLimit => "its buckets lead nowhere, as somebody has written over it: make another".into(),
        Status::AccessDenied => "its memory is gone, as the client is that made it".into(),
        status => format!("{status:?}"),
    };
    Error::Node { what: "work on a key-value store", why }
}

impl Client {
    /// Makes an empty key-value store in memory of the node, with room for pairs of about these lengths.
    pub fn create_store(&mut self, shape: &KvShape) -> Result<KvStore> {
        // Nobody who does not know it can choose keys that come together; a state is unlike any other, and not to be guessed.
        let seed = RandomState::new().build_hasher().finish();
        Kv::create(shape, seed, self)?.map(|at| KvStore::known(at, LOOK)).map_err(argument)
    }
}

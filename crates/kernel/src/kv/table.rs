//! Buckets and chains, and the kernels on them.

use super::NOT_HERE;
use super::item::{self, Checksum, Front, LOCKED, Whole, encode, front_of, item_len, word_at};
use super::params::{KvParams, KvRef, KvValue, Table};
use super::slab::{BUMP, CLASSES, class_bytes, class_of};
use crate::call::{Call, CallFields, Status};
use crate::memory::{Limits, Memory, PIECE};

/// Bytes of a bucket: a line.
pub const BUCKET_BYTES: usize = 64;
/// Entries of a bucket. The word behind them is the offset of [`BRANCHES`] overflow buckets, of which the hash says which one
/// goes on; in a chain's first bucket its highest bit is the chain's lock.
pub const ENTRIES: usize = 7;
/// Buckets that a full one leads to: however many pairs there are beyond those that there are buckets for, a chain is
/// as long as a number with so many digits.
pub const BRANCHES: u64 = 8;
/// Bytes in front of the buckets.
pub const HEADER_BYTES: u64 = 4096;
/// An entry that was used.
pub const TOMB: u64 = 1;
/// Marks a store.
const MAGIC: u64 = u64::from_le_bytes(*b"rem-kv/2");
/// Where the header says which table has all pairs, and behind that: the seed of hashes, the table that pairs are moved
/// to (the same if that is done), how far that is, and how many buckets overflow.
pub(super) const ROOT: u64 = 8;
const SEED: u64 = ROOT + 8;
/// A chain is locked.
pub(super) const LOCK: u64 = 1 << 63;
/// A chain is no more: what else the word says is the table where its pairs are.
pub(super) const MOVED: u64 = 1 << 62;
/// An entry stays what it is: its chain is about to be no more.
pub(super) const FROZEN: u64 = 1 << 47;
/// Bytes of room that a call keeps.
const KEPT: usize = 64 << 10;
/// How often something that changes is looked at again.
const TRIES: u32 = 64;
/// What a call may do that writes, between two looks at a chain and while it holds something, in place of its caller's
/// limits: one that was cut off there would leave a lock behind.
const LIMITS: Limits = Limits { steps: 4096, bytes: 16 << 20 };

/// What the first bytes of a store are, in `len` bytes of zeros: the rest is as it should be. All who ask it hash with
/// `seed`. `None` if so many buckets leave no room for a pair.
pub fn header(lg_buckets: u8, len: u64, seed: u64) -> Option<[u8; 80]> {
    let table = Table::first(lg_buckets);
    let slabs = HEADER_BYTES.checked_add(Table::from_word(table.word())?.bytes())?;
    if len < slabs + 64 {
        return None;
    }
    let (mut out, root) = ([0; 80], ROOT as usize);
    let words = [(0, MAGIC), (root, table.word()), (root + 8, seed), (root + 16, table.word())];
    for (at, word) in words.into_iter().chain([(BUMP as usize, slabs), (BUMP as usize + 8, len)]) {
        out[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    Some(out)
}

/// The table that all pairs of a store are found by, as the first 16 bytes of the store say it: for who asks it often
/// and may know of an old one.
pub fn table_of(header: &[u8]) -> Option<Table> {
    let (magic, rest) = header.split_first_chunk()?;
    let table = Table::from_word(u64::from_le_bytes(*rest.first_chunk()?));
    table.filter(|_| u64::from_le_bytes(*magic) == MAGIC)
}

/// For who reads a store by himself: the offsets and lengths of blocks that a bucket names for this hash, and the offset
/// of the next bucket, if there is one, with how many are in front of it, which it is to come with. The first is at
/// `None`. While one reads, pairs may be moved: who has not found a key in a bucket that is in front of none may have
/// to look at that again, as whoever comes from there does.
#[allow(clippy::type_complexity, reason = "blocks, and a bucket")]
pub fn locate(
    store: KvRef,
    hash: u64,
    bucket: Option<(&[u8; BUCKET_BYTES], u32)>,
) -> (Vec<(u64, u64)>, Option<(u64, u32)>) {
    let Some((bucket, depth)) = bucket else { return (Vec::new(), Some((store.table.bucket(hash), 0))) };
    let words = words(bucket);
    if let (0, Some(table)) = (depth, moved_to(words[ENTRIES])) {
        return (Vec::new(), Some((table.bucket(hash), 0)));
    }
    let found = words[..ENTRIES].iter().filter(|&&entry| matches(entry, hash)).map(|&entry| {
        let (block, class) = place(entry);
        (block, class_bytes(class))
    });
    (found.collect(), next_bucket(words[ENTRIES], hash, depth).map(|next| (next, depth + 1)))
}

/// The value of the pair with this key that a block holds: a range of it. `Err` if it is being written, or is another's.
pub fn value_in(block: &[u8], key: &[u8]) -> Result<std::ops::Range<usize>, bool> {
    Whole::of(block, key).map(|pair| pair.value)
}

/// The key of the pair that a block holds.
pub fn key_in(block: &[u8]) -> Option<&[u8]> {
    let (front, rest) = block.split_first_chunk()?;
    rest.get(..u64::from_le_bytes(*front) as u32 as usize)
}

/// The table where a chain's pairs are, if its first bucket ends with this word and they are elsewhere.
fn moved_to(word: u64) -> Option<Table> {
    (word & MOVED != 0).then(|| Table::from_word(word & !(MOVED | LOCK))).flatten()
}

/// The bucket behind one that so many are in front of, if there is one. Three bits of what an entry has of the hash, others
/// each time, say which of [`BRANCHES`] it is; when they are used up it is the first.
pub(super) fn next_bucket(word: u64, hash: u64, depth: u32) -> Option<u64> {
    let branches = word & !LOCK;
    (branches != 0).then(|| branches.wrapping_add(branch(hash, depth) * BUCKET_BYTES as u64))
}

pub(super) fn branch(hash: u64, depth: u32) -> u64 {
    let bits = 48 + depth.saturating_mul(BRANCHES.ilog2());
    if bits + BRANCHES.ilog2() <= u64::BITS { hash >> bits & (BRANCHES - 1) } else { 0 }
}

/// The class of [`BRANCHES`] buckets.
pub(super) fn branches_class() -> Option<u8> {
    class_of(BRANCHES as usize * BUCKET_BYTES)
}

pub(super) fn words(bucket: &[u8; BUCKET_BYTES]) -> [u64; 8] {
    let (words, _) = bucket.as_chunks::<8>();
    std::array::from_fn(|at| u64::from_le_bytes(words[at]))
}

/// An entry: 16 bits of the hash, whether it is [`FROZEN`], the block's class, its offset in units of 32 bytes.
fn entry(hash: u64, class: u8, block: u64) -> u64 {
    (hash >> 48 << 48) | (u64::from(class) << 42) | (block / 32)
}

/// Block and class of an entry.
pub(super) fn place(entry: u64) -> (u64, u8) {
    ((entry & ((1 << 42) - 1)) * 32, ((entry >> 42) & 31) as u8)
}

/// Whether an entry may be that of a key with this hash.
#[inline]
pub(super) fn matches(entry: u64, hash: u64) -> bool {
    entry > TOMB && entry >> 48 == hash >> 48 && place(entry).1 < CLASSES
}

/// A store as a kernel reaches it.
pub(super) struct Store<'a, M> {
    memory: &'a M,
    pub(super) at: KvRef,
}

// Where accesses never wait, all are made so but the reads of `walk`: who holds a lock, or a block without an entry, is
// never suspended there, and so never cancelled.
impl<'a, M: Memory> Store<'a, M> {
    /// The store, for a call that writes.
    fn to_write(memory: &'a M, at: KvRef) -> Result<Self, Status> {
        if !memory.outlives_caller() {
            return Err(NOT_HERE);
        }
        let store = Store { memory, at };
        store.renew();
        Ok(store)
    }

    /// From here on the call may do as much as at first: what it has begun must not be cut off by what it did before.
    pub(super) fn renew(&self) {
        self.memory.set_limits(LIMITS);
    }

    /// Whether the region has all bytes in front of this offset, as it grows to.
    pub(super) fn grow_region(&self, end: u64) -> bool {
        self.memory.grow(self.at.key, self.va(end))
    }

    fn va(&self, offset: u64) -> u64 {
        self.at.base.wrapping_add(offset)
    }

    /// Reads. Who `holds` something is not suspended.
    pub(super) async fn read(&self, offset: u64, out: &mut [u8], holds: bool) -> Result<(), Status> {
        if holds && let Some(now) = self.memory.immediate() {
            return Ok(now.read_now(self.at.key, self.va(offset), out)?);
        }
        Ok(self.memory.read(self.at.key, self.va(offset), out).await?)
    }

    pub(super) async fn write(&self, offset: u64, data: &[u8]) -> Result<(), Status> {
        if let Some(now) = self.memory.immediate() {
            return Ok(now.write_now(self.at.key, self.va(offset), data)?);
        }
        Ok(self.memory.write(self.at.key, self.va(offset), data).await?)
    }

    pub(super) async fn word(&self, offset: u64) -> Result<u64, Status> {
        let mut word = [0; 8];
        self.read(offset, &mut word, true).await?;
        Ok(u64::from_le_bytes(word))
    }

    pub(super) async fn add(&self, offset: u64, n: u64) -> Result<u64, Status> {
        if let Some(now) = self.memory.immediate() {
            return Ok(now.fetch_add_now(self.at.key, self.va(offset), n)?);
        }
        Ok(self.memory.fetch_add(self.at.key, self.va(offset), n).await?)
    }

    /// Whether the word was what it was expected to be, and so is the new one now.
    pub(super) async fn swap(&self, offset: u64, expect: u64, new: u64) -> Result<bool, Status> {
        let va = self.va(offset);
        if let Some(now) = self.memory.immediate() {
            return Ok(now.compare_swap_now(self.at.key, va, expect, new)? == expect);
        }
        Ok(self.memory.compare_swap(self.at.key, va, expect, new).await? == expect)
    }
}

/// A pair that was found: its entry and where that is, and what of its block is where.
#[derive(Clone, Copy)]
struct Found {
    entry: u64,
    entry_at: u64,
    sum: u64,
    sum_at: usize,
    value_at: usize,
    value_len: usize,
    met: Met,
}

/// A chain without the key: where a pair may be added.
#[derive(Clone, Copy)]
struct Missed {
    /// The first entry that is 0, and the first tomb.
    zero: Option<u64>,
    tomb: Option<u64>,
    /// The word behind the first bucket's entries with its place, and that of the last, and the buckets in front of
    /// that.
    first: (u64, u64),
    last: (u64, u64),
    depth: u32,
    met: Met,
}

/// Tables that a chain may have been moved to, one after the other: each has eight times as many buckets.
const TABLES: u32 = 13;

impl<M: Memory> Store<'_, M> {
    /// Walks the key's chain. `block` then holds the pair, if it was to be looked at so, or anything.
    #[inline]
    async fn walk(
        &self,
        (hash, key): (u64, &[u8]),
        look: Look,
        block: &mut Vec<u8>,
    ) -> Result<Result<Found, Missed>, Status> {
        let holds = matches!(look, Look::Key);
        let (mut table, mut tries, mut tables) = (self.at.table, 0, 0);
        'again: while tries < TRIES && tables < TABLES {
            let mut at = table.bucket(hash);
            let met = if tables == 0 { Met::Room } else { Met::Crowd { appended: false } };
            let mut missed = Missed { zero: None, tomb: None, first: (0, 0), last: (0, 0), depth: 0, met };
            loop {
                let mut bucket = [0; BUCKET_BYTES];
                self.read(at, &mut bucket, holds).await?;
                let words = words(&bucket);
                if missed.depth == 0 {
                    missed.first = (at + ENTRIES as u64 * 8, words[ENTRIES]);
                    if let Some(moved) = moved_to(words[ENTRIES]) {
                        (table, tables) = (moved, tables + 1);
                        continue 'again;
                    }
                }
                for (n, &entry) in (0..).zip(&words[..ENTRIES]) {
                    let entry_at = at + n * 8;
                    match entry {
                        0 if missed.zero.is_none() => missed.zero = Some(entry_at),
                        TOMB if missed.tomb.is_none() => missed.tomb = Some(entry_at),
                        _ => {}
                    }
                    if !matches(entry, hash) {
                        continue;
                    }
                    match self.look_at(entry, key, look, block).await? {
                        Item::Whole { sum, sum_at, value_at, value_len } => {
                            return Ok(Ok(Found { entry, entry_at, sum, sum_at, value_at, value_len, met }));
                        }
                        // Another key with the same bits; or the block went to another key since.
                        Item::Other
                            if self.is_still(entry_at, entry, missed.first.0).await?
                                && self.is_of_another(entry, key).await? => {}
                        Item::Torn | Item::Other => {
                            tries += 1;
                            continue 'again;
                        }
                    }
                }
                missed.last = (at + ENTRIES as u64 * 8, words[ENTRIES]);
                match next_bucket(words[ENTRIES], hash, missed.depth) {
                    None => return Ok(Err(missed)),
                    Some(next) => (at, missed.depth) = (next, missed.depth + 1),
                }
            }
        }
        Err(Status::Inconsistent)
    }

    /// Whether an entry is what it was, in a chain that begins with the bucket with this last word.
    async fn is_still(&self, entry_at: u64, entry: u64, first: u64) -> Result<bool, Status> {
        Ok(self.word(entry_at).await? == entry && (entry & FROZEN == 0 || self.word(first).await? & MOVED == 0))
    }

    /// Whether an entry is one that another key has too. It may have been this key's when it was read, then led to a pair of
    /// any other that had come to its block, and be this key's again.
    async fn is_of_another(&self, entry: u64, key: &[u8]) -> Result<bool, Status> {
        let (found, seed) = (self.key_of(entry).await?, self.word(SEED).await?);
        Ok(found != key && item::hash(&found, seed) >> 48 == entry >> 48)
    }

    /// Looks at an entry's block for the pair with this key. The key that a block has stays as long as the entry does, so
    /// that one which is another's needs no checksum.
    #[inline]
    async fn look_at(&self, entry: u64, key: &[u8], look: Look, block: &mut Vec<u8>) -> Result<Item, Status> {
        let (at, class) = place(entry);
        let (len, front) = (class_bytes(class) as usize, 8 + key.len());
        let (most, holds) = match look {
            Look::Key => (front, true),
            Look::Pair(most) if len as u64 > most => (front, false),
            Look::Pair(_) | Look::Sum => (PIECE, false),
        };
        block.resize(len.min(most), 0);
        self.read(at, block, holds).await?;
        let (value_at, value_len, sum_at) = match front_of(block, key) {
            Front::Its { value_at, value_len, sum_at } if sum_at + 8 <= len => (value_at, value_len, sum_at),
            Front::Other => return Ok(Item::Other),
            _ => return Ok(Item::Torn),
        };
        match look {
            Look::Key => return Ok(Item::Whole { sum: LOCKED, sum_at, value_at, value_len }),
            Look::Pair(most) if len as u64 > most => return Err(Status::ReplyTooLong),
            Look::Pair(_) | Look::Sum => {}
        }
        // What is in front of the bytes in `block`, if it is not kept; and where in these the last piece begins.
        let (mut sum, mut before, mut from) = (Checksum::new(sum_at), 0, 0);
        loop {
            sum.add(&block[from..(sum_at - before).clamp(from, block.len())]);
            if block.len() - from >= PIECE / 16 {
                self.memory.spend((block.len() - from) as u64 / 4);
            }
            if before + block.len() >= sum_at + 8 {
                break;
            }
            // What is long comes in pieces, between which others run.
            if let Look::Sum = look {
                before += block.len();
                block.clear();
            }
            from = block.len();
            block.resize((sum_at + 8 - before).min(from + PIECE), 0);
            self.read(at + (before + from) as u64, &mut block[from..], false).await?;
        }
        Ok(match word_at(block, sum_at - before) {
            Some(found) if found == sum.end() => Item::Whole { sum: found, sum_at, value_at, value_len },
            _ => Item::Torn,
        })
    }
}

/// What a walk looks at of the blocks that may have its key.
#[derive(Clone, Copy)]
enum Look {
    /// All of the pair, unless its block is of more bytes than that: then it is too long for the caller.
    Pair(u64),
    /// All of the pair too, of which nothing is kept but the checksum.
    Sum,
    /// The key alone: the caller holds the chain, and is not suspended.
    Key,
}

/// What bytes of a block are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item {
    /// A pair with this key: its checksum, where that is, and where the value is.
    Whole { sum: u64, sum_at: usize, value_at: usize, value_len: usize },
    /// A pair with another key.
    Other,
    /// No pair, or one that is being written.
    Torn,
}

/// Bytes of the longest block that a pair of so many is left in, where it was a longer one before: it is half full.
pub(super) fn longest_block(pair: u64) -> u64 {
    2 * pair.max(class_bytes(0))
}

/// The value of a key.
#[inline]
pub(crate) async fn get<M: Memory>(memory: &M, call: &mut Call) -> Result<(), Status> {
    let CallFields { params, reply, reply_limit, .. } = &mut **call;
    let KvParams { store, hash, key, .. } = KvParams::decode(params, false)?;
    let store = Store { memory, at: store };
    // A value that there is room for lies in no longer block.
    let most = longest_block(key.len() as u64 + u64::from(*reply_limit) + 24);
    let Ok(found) = store.walk((hash, key), Look::Pair(most), reply).await? else {
        reply.clear();
        return Err(Status::NotFound);
    };
    if found.value_len > *reply_limit as usize {
        return Err(Status::ReplyTooLong);
    }
    reply.copy_within(found.value_at..found.value_at + found.value_len, 0);
    reply.truncate(found.value_len);
    Ok(())
}

/// Writes a pair, whether the key is there or not.
pub(crate) async fn put<M: Memory>(memory: &M, call: &mut Call) -> Result<(), Status> {
    write(memory, call, true).await
}

/// Writes the value of a key that is there.
pub(crate) async fn update<M: Memory>(memory: &M, call: &mut Call) -> Result<(), Status> {
    write(memory, call, false).await
}

async fn write<M: Memory>(memory: &M, call: &mut Call, adds: bool) -> Result<(), Status> {
    let CallFields { params, reply, .. } = &mut **call;
    let params = KvParams::decode(params, true)?;
    let store = Store::to_write(memory, params.store)?;
    let len = item_len(params.key.len(), params.value_len as usize);
    let class = class_of(len).ok_or(Status::BadParams)?;
    let block = match params.value {
        KvValue::Block(block, _) if !block.is_multiple_of(32) || block < HEADER_BYTES => return Err(Status::BadParams),
        KvValue::Block(block, sum) => Some(Laid { block, sum: Some(sum.to_le_bytes()) }),
        KvValue::Bytes(_) => None,
    };
    let written = store.write_pair(&Pair { params, class, len, laid: block }, adds, reply).await;
    empty(reply);
    if let Met::Crowd { appended } = written? {
        // The pair is written, whatever comes of this.
        let _ = store.grow(appended).await;
    }
    Ok(())
}

/// What a write has met on its way.
#[derive(Clone, Copy)]
enum Met {
    /// Room.
    Room,
    /// A chain that was moved, or one that it has appended buckets to.
    Crowd { appended: bool },
}

/// Empties a call's reply that blocks were looked at in: a call serves others after it, and is not to keep the room of the
/// longest pair for them.
fn empty(reply: &mut Vec<u8>) {
    reply.clear();
    reply.shrink_to(KEPT);
}

/// A pair on its way into a store.
struct Pair<'a> {
    params: KvParams<'a>,
    class: u8,
    /// Bytes of it.
    len: usize,
    /// Where it lies already, if its caller wrote it: the block is the caller's until it has an entry.
    laid: Option<Laid>,
}

/// A pair in a block that no entry names yet.
#[derive(Clone, Copy)]
struct Laid {
    block: u64,
    /// Its checksum, if that is still to be written: who looks at the block by an old entry must not find what nobody has
    /// put yet.
    sum: Option<[u8; 8]>,
}

impl<M: Memory> Store<'_, M> {
    async fn write_pair(&self, pair: &Pair<'_>, adds: bool, buffer: &mut Vec<u8>) -> Result<Met, Status> {
        let KvParams { hash, key, value, .. } = pair.params;
        for _ in 0..TRIES {
            let walked = self.walk((hash, key), Look::Sum, buffer).await?;
            self.renew();
            match walked {
                Ok(found) => {
                    let (old, old_class) = place(found.entry);
                    let sum_at = old + found.sum_at as u64;
                    let room = pair.len as u64..=longest_block(pair.len as u64);
                    if let (KvValue::Bytes(value), true) = (value, room.contains(&class_bytes(old_class))) {
                        if !self.swap(sum_at, found.sum, LOCKED).await? {
                            continue;
                        }
                        encode(key, value, buffer);
                        self.write(old, buffer).await?;
                        return Ok(found.met);
                    }
                    if found.entry & FROZEN != 0 {
                        continue;
                    }
                    let laid = self.lay_down(pair, buffer).await?;
                    if !self.unhook(&found, entry(hash, pair.class, laid.block)).await? {
                        self.take_up(pair, laid).await?;
                        continue;
                    }
                    self.show(pair, laid).await?;
                    self.free(old, old_class).await?;
                    return Ok(found.met);
                }
                Err(_) if !adds => return Err(Status::NotFound),
                Err(missed) => {
                    let laid = self.lay_down(pair, buffer).await?;
                    let new = entry(hash, pair.class, laid.block);
                    // A bucket is looked at in one moment, a chain of several is not: the first entry that is 0 may be another
                    // than for somebody else who adds the same key.
                    let added = match missed.zero {
                        Some(zero) if missed.depth == 0 => {
                            self.swap(zero, 0, new).await.map(|is| is.then_some(missed.met))
                        }
                        _ => self.add_locked(pair, new, missed, buffer).await,
                    };
                    if let Ok(Some(met)) = added {
                        self.show(pair, laid).await?;
                        return Ok(met);
                    }
                    self.take_up(pair, laid).await?;
                    added?;
                }
            }
        }
        Err(Status::Inconsistent)
    }

    /// Takes a pair's entry for another pair, or [`TOMB`], and leaves the block to the caller. False if the pair has changed,
    /// or is somewhere else by now.
    async fn unhook(&self, found: &Found, new: u64) -> Result<bool, Status> {
        let sum_at = place(found.entry).0 + found.sum_at as u64;
        if !self.swap(sum_at, found.sum, LOCKED).await? {
            return Ok(false);
        }
        // While the pair is locked nobody else changes the entry that leads to it. That is another one if the pair was taken
        // away and put anew, of which neither its block nor its checksum need tell.
        let is_its = self.swap(found.entry_at, found.entry, new).await?;
        if !is_its {
            self.write(sum_at, &found.sum.to_le_bytes()).await?;
        }
        // Else it stays locked for good: who looks at the block by an old entry finds no pair.
        Ok(is_its)
    }

    /// Writes a pair to a block, where it does not lie in one.
    async fn lay_down(&self, pair: &Pair<'_>, buffer: &mut Vec<u8>) -> Result<Laid, Status> {
        if let Some(laid) = pair.laid {
            return Ok(laid);
        }
        let KvValue::Bytes(value) = pair.params.value else { return Err(Status::BadParams) };
        let (block, was_one) = self.alloc(pair.class).await?;
        encode(pair.params.key, value, buffer);
        let mut sum = None;
        if was_one {
            sum = Some(item::lock(buffer));
        }
        self.write(block, buffer).await?;
        Ok(Laid { block, sum })
    }

    /// Ends the writing of a pair that has its entry.
    async fn show(&self, pair: &Pair<'_>, laid: Laid) -> Result<(), Status> {
        match laid.sum {
            Some(sum) => self.write(laid.block + pair.len as u64 - 8, &sum).await,
            None => Ok(()),
        }
    }

    /// Gives the block back of a pair that has got no entry, unless it is the caller's.
    async fn take_up(&self, pair: &Pair<'_>, laid: Laid) -> Result<(), Status> {
        if pair.laid.is_some() { Ok(()) } else { self.free(laid.block, pair.class).await }
    }

    /// Adds an entry to a chain, if the key is not there still and nobody else has the chain locked: in place of the first
    /// that is 0, or else of a tomb, or in one of new buckets behind the others.
    async fn add_locked(
        &self,
        pair: &Pair<'_>,
        new: u64,
        missed: Missed,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<Met>, Status> {
        let (lock_at, first) = missed.first;
        if first & LOCK != 0 || !self.swap(lock_at, first, first | LOCK).await? {
            return Ok(None);
        }
        let added = self.add_to_locked(pair, new, buffer).await;
        self.renew();
        // The highest bit goes, whatever the others are now.
        self.add(lock_at, LOCK).await?;
        added
    }

    async fn add_to_locked(&self, pair: &Pair<'_>, new: u64, buffer: &mut Vec<u8>) -> Result<Option<Met>, Status> {
        let KvParams { hash, key, .. } = pair.params;
        let Err(missed) = self.walk((hash, key), Look::Key, buffer).await? else { return Ok(None) };
        let (is_added, appended) = match (missed.zero, missed.tomb) {
            (Some(zero), _) => (self.swap(zero, 0, new).await?, false),
            (None, Some(tomb)) => (self.swap(tomb, TOMB, new).await?, false),
            (None, None) => {
                let (buckets, _) = self.alloc(branches_class().ok_or(Status::BadParams)?).await?;
                let mut bytes = [0; BRANCHES as usize * BUCKET_BYTES];
                let first = branch(hash, missed.depth) as usize * BUCKET_BYTES;
                bytes[first..first + 8].copy_from_slice(&new.to_le_bytes());
                self.write(buckets, &bytes).await?;
                // Nobody else appends while the chain is locked.
                let (at, word) = missed.last;
                (self.swap(at, word, word | buckets).await?, true)
            }
        };
        Ok(is_added.then_some(if appended { Met::Crowd { appended } } else { missed.met }))
    }
}

/// Takes a pair away.
pub(crate) async fn delete<M: Memory>(memory: &M, call: &mut Call) -> Result<(), Status> {
    let CallFields { params, reply, .. } = &mut **call;
    let KvParams { store, hash, key, .. } = KvParams::decode(params, false)?;
    let store = Store::to_write(memory, store)?;
    for _ in 0..TRIES {
        let walked = store.walk((hash, key), Look::Sum, reply).await;
        empty(reply);
        store.renew();
        let Ok(found) = walked? else { return Err(Status::NotFound) };
        if found.entry & FROZEN == 0 && store.unhook(&found, TOMB).await? {
            let (block, class) = place(found.entry);
            return store.free(block, class).await;
        }
    }
    Err(Status::Inconsistent)
}

/// Takes a block for a pair that the caller writes by himself, and then puts or [releases](release): its offset.
pub(crate) async fn reserve<M: Memory>(memory: &M, call: &mut Call) -> Result<(), Status> {
    let KvParams { store, key, value_len, .. } = KvParams::decode(&call.params, false)?;
    let class = class_of(item_len(key.len(), value_len as usize)).ok_or(Status::BadParams)?;
    // Room first: a block that nobody hears of is lost.
    call.grow_reply(8)?;
    let (block, _) = Store::to_write(memory, store)?.alloc(class).await?;
    call.reply.clear();
    call.reply.extend_from_slice(&block.to_le_bytes());
    Ok(())
}

/// Gives a block back that was reserved, and not put.
pub(crate) async fn release<M: Memory>(memory: &M, call: &mut Call) -> Result<(), Status> {
    let KvParams { store, key, value_len, value, .. } = KvParams::decode(&call.params, false)?;
    let class = class_of(item_len(key.len(), value_len as usize)).ok_or(Status::BadParams)?;
    match value {
        KvValue::Block(block, _) if block.is_multiple_of(32) && block >= HEADER_BYTES => {
            Store::to_write(memory, store)?.free(block, class).await
        }
        _ => Err(Status::BadParams),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::hash;
    use crate::kv::tests::{Stepped, params, run, store};
    use crate::op;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn drive<F: Future>(future: F) -> F::Output {
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return output;
            }
        }
    }

    /// A call of a few bytes takes no more room than it needs, however long the pair is that it writes over or takes away.
    #[test]
    fn a_pair_that_is_summed_up_takes_the_room_of_a_piece() {
        let (memory, at) = (Stepped::growing(2, 8 << 20, 8 << 20), store(2));
        let key = b"key";
        let near = |len: usize| (0..6).map(move |n| len - 8 * n);
        let lengths = [100, 1 << 20].into_iter().chain(near(PIECE)).chain(near(2 * PIECE));
        for len in lengths {
            let value = Vec::from_iter((0..len).map(|at| (at / 3) as u8));
            assert_eq!(run(&memory, op::KV_PUT, &params(at, key, &value)).0, Status::Ok);
            let (store, of) = (Store { memory: &memory, at }, (hash(key, 7), &key[..]));
            let (mut summed, mut whole) = (Vec::new(), Vec::new());
            let [Ok(Ok(a)), Ok(Ok(b))] = [
                drive(store.walk(of, Look::Sum, &mut summed)),
                drive(store.walk(of, Look::Pair(u64::MAX), &mut whole)),
            ] else {
                panic!("{len} bytes are not found")
            };
            assert_eq!((a.sum, a.sum_at, a.value_len), (b.sum, b.sum_at, len));
            assert!(whole[b.value_at..b.value_at + len] == value);
            assert!(summed.capacity() <= PIECE, "{} bytes for {len}", summed.capacity());
            // One byte is another: nobody has put that.
            let wrong = place(a.entry).0 + a.value_at as u64 + len as u64 - 1;
            let byte = memory.memory.get(wrong, 1)[0];
            memory.memory.put(wrong, &[byte ^ 1]);
            assert!(drive(store.walk(of, Look::Sum, &mut summed)).is_err());
            memory.memory.put(wrong, &[byte]);
        }
    }
}

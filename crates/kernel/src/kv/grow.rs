//! More buckets, while the store serves.
//!
//! When a sixteenth of a table's buckets overflow, whoever appends the next one makes a table of eight times as many,
//! and from then on writes that append buckets to a chain, or meet one that was moved, move some of the others. Where a
//! chain is moved is one moment, the swap of the word at the end of its first bucket:
//!
//! - The chain is locked, so that none of its buckets is appended to and no tomb reused, and each of its entries is
//!   [`FROZEN`], what is 0 a [`TOMB`]. So all of its entries stay what they are. Pairs can be read, and changed where
//!   they lie; who wants another entry than there is tries again.
//! - The entries are written to the eight buckets that take its place, which lie side by side and are nobody's yet.
//!   Which one an entry goes to is said by the hash of its key, which lies in its block and cannot change before the
//!   entry does.
//! - The word says [`MOVED`], and which table to look in.
//!
//! Who still has an old bucket in hand finds a pair by it if it is there; where it is not, as its block is another's,
//! he looks at the word again, as its entry says that it is frozen. A chain's old buckets stay as they are for good.
//! They are the way for callers who know of an old table only, and an eighth of the new ones.
//!
//! Once all chains are moved the header names the new table for those who begin there. Nobody waits for anybody in all
//! this: a chain that is locked is left to the next, and where there is no room the chains get longer.

use super::item::{LONGEST_KEY, hash, word_at};
use super::params::Table;
use super::table::{BRANCHES, BUCKET_BYTES, ENTRIES, FROZEN, HEADER_BYTES, LOCK, MOVED, ROOT, Store, TOMB};
use super::table::{branch, branches_class, place, words};
use crate::call::Status;
use crate::memory::Memory;

/// Offsets of the header's words.
const NEXT: u64 = ROOT + 16;
const CURSOR: u64 = ROOT + 24;
const OVERFLOWS: u64 = ROOT + 32;
/// The next table is being made: set in its word.
const BUSY: u64 = 1 << 63;
/// Of how many buckets one may overflow, and how many overflow at least before a table gets larger.
const FEW: u64 = 16;
const LEAST: u64 = 4;
/// Chains that a write moves at most: fewer once they were together as long as one may be.
const MOVES: u64 = 8;
/// Buckets of a chain at most, every [`LONG`] bytes of a key counting as one: what is longer, or without an end, is not moved.
/// Nobody else runs meanwhile, and how long a chain is is up to who may write to the store; of hashes that nobody has chosen, and
/// with room for a larger table now and then, none is so long.
const LONGEST_CHAIN: usize = 128;
const LONG: usize = 2048;
/// Bytes of a block that are looked at for its key at first: as many as the shortest has.
const FRONT: usize = 64;

/// Where the cursor keeps the table's size: one that is late does not take an old table's for that of a new one.
const INDEX_BITS: u32 = 48;

impl<M: Memory> Store<'_, M> {
    /// A part of what makes the table larger, for who has written where it is crowded.
    pub(super) async fn grow(&self, appended: bool) -> Result<(), Status> {
        self.renew();
        let mut header = [0; 40];
        self.read(ROOT, &mut header, true).await?;
        let word = |at: u64| word_at(&header, (at - ROOT) as usize).unwrap_or(0);
        let (root, seed, next) = (Table::from_word(word(ROOT)), word(ROOT + 8), Table::from_word(word(NEXT)));
        match (root, next) {
            (Some(root), Some(next)) if root != next => self.move_chains(root, next, seed).await,
            (Some(root), Some(_)) if appended => self.enlarge(root).await,
            _ => Ok(()),
        }
    }

    /// One more bucket overflows: makes the next table, if these are many.
    async fn enlarge(&self, root: Table) -> Result<(), Status> {
        let (overflows, lg_buckets) =
            (self.add(OVERFLOWS, 1).await?.saturating_add(1), root.lg_buckets + BRANCHES.ilog2() as u8);
        let many = overflows >= LEAST.max((1 << root.lg_buckets) / FEW) && lg_buckets <= Table::MOST;
        if !many || !self.swap(NEXT, root.word(), root.word() | BUSY).await? {
            return Ok(());
        }
        let bytes = Table { lg_buckets, ..root }.bytes();
        let place = self.take(bytes, HEADER_BYTES).await?.and_then(|at| u32::try_from(at / HEADER_BYTES).ok());
        let next = place.map_or(root, |place| Table { lg_buckets, place });
        self.write(CURSOR, &(u64::from(lg_buckets) << INDEX_BITS).to_le_bytes()).await?;
        // If there was no room there may be later.
        self.write(OVERFLOWS, &[0; 8]).await?;
        self.write(NEXT, &next.word().to_le_bytes()).await
    }

    /// Moves some chains to the next table.
    async fn move_chains(&self, root: Table, next: Table, seed: u64) -> Result<(), Status> {
        let cursor = self.word(CURSOR).await?;
        let (lg_buckets, first) = (cursor >> INDEX_BITS, cursor & ((1 << INDEX_BITS) - 1));
        if lg_buckets != next.lg_buckets.into() {
            return Ok(());
        }
        let (mut index, chains, mut length, mut moved) = (first, 1 << root.lg_buckets, 0, Ok(true));
        while index < chains.min(first + MOVES) && length < LONGEST_CHAIN && matches!(moved, Ok(true)) {
            moved = self.move_chain((root, next), index, seed, &mut length).await;
            index += u64::from(matches!(moved, Ok(true)));
        }
        // Somebody else may have moved some of them too, and said so.
        self.swap(CURSOR, cursor, cursor + (index - first)).await?;
        if index >= chains {
            self.swap(ROOT, root.word(), next.word()).await?;
        }
        moved.map(drop)
    }

    /// Moves a chain: whether it has moved. Adds how long it is.
    async fn move_chain(
        &self,
        (root, next): (Table, Table),
        index: u64,
        seed: u64,
        length: &mut usize,
    ) -> Result<bool, Status> {
        self.renew();
        let first = root.at(index);
        let lock_at = first + ENTRIES as u64 * 8;
        let word = self.word(lock_at).await?;
        if word & MOVED != 0 {
            return Ok(true);
        }
        if word & LOCK != 0 || !self.swap(lock_at, word, word | LOCK).await? {
            return Ok(false);
        }
        let mut entries = Vec::new();
        let copied = match self.freeze(first, seed, next, (&mut entries, length)).await {
            Ok(moved) => self.lay_out(next.at(index * BRANCHES), moved).await,
            Err(error) => Err(error),
        };
        self.renew();
        if copied.is_ok() && self.swap(lock_at, word | LOCK, MOVED | next.word()).await? {
            return Ok(true);
        }
        for (at, entry) in entries {
            self.renew();
            self.swap(at, entry | FROZEN, entry).await?;
        }
        self.add(lock_at, LOCK).await?;
        copied.map(|()| false)
    }

    async fn bucket(&self, at: u64) -> Result<[u64; 8], Status> {
        let mut bytes = [0; BUCKET_BYTES];
        self.read(at, &mut bytes, true).await?;
        Ok(words(&bytes))
    }

    /// Freezes all entries of a locked chain, which it adds to `frozen` with their places. Returns those of each bucket
    /// that takes its first one's place. Adds how long it is to `length`.
    async fn freeze(
        &self,
        first: u64,
        seed: u64,
        next: Table,
        (frozen, length): (&mut Vec<(u64, u64)>, &mut usize),
    ) -> Result<[Vec<u64>; BRANCHES as usize], Status> {
        let (mut moved, mut buckets) = (<[Vec<u64>; BRANCHES as usize]>::default(), vec![first]);
        let most = *length + LONGEST_CHAIN;
        while let Some(bucket) = buckets.pop() {
            *length += 1;
            if *length > most {
                return Err(Status::Inconsistent);
            }
            self.renew();
            // Not before the chain was locked: what was a tomb then may be an entry by now.
            let words = self.bucket(bucket).await?;
            for (at, mut entry) in (bucket..).step_by(8).zip(words[..ENTRIES].iter().copied()) {
                // Others may take pairs away, or put them elsewhere, until their entries are frozen.
                let kept = loop {
                    let kept = match entry {
                        TOMB => break TOMB,
                        // Behind the first bucket nothing is added without the lock.
                        0 if bucket != first => break TOMB,
                        0 => TOMB,
                        entry => entry | FROZEN,
                    };
                    if self.swap(at, entry, kept).await? {
                        break kept;
                    }
                    entry = self.word(at).await?;
                };
                if kept != TOMB {
                    frozen.push((at, entry));
                    // The key of what is frozen stays.
                    let key = self.key_of(entry).await?;
                    *length += key.len() / LONG;
                    let hash = hash(&key, seed);
                    moved[(next.index(hash) % BRANCHES) as usize].push(entry);
                }
            }
            let branches = words[ENTRIES] & !LOCK;
            if branches != 0 {
                buckets.extend((0..BRANCHES).map(|n| branches + n * BUCKET_BYTES as u64));
            }
        }
        Ok(moved)
    }

    /// The key in the block that an entry leads to.
    pub(super) async fn key_of(&self, entry: u64) -> Result<Vec<u8>, Status> {
        let (block, mut bytes) = (place(entry).0, vec![0; FRONT]);
        self.read(block, &mut bytes, true).await?;
        let len = word_at(&bytes, 0).map_or(0, |front| front as u32 as usize);
        if len > LONGEST_KEY {
            return Err(Status::Inconsistent);
        }
        if 8 + len > bytes.len() {
            bytes.resize(8 + len, 0);
            self.read(block, &mut bytes, true).await?;
        }
        bytes.truncate(8 + len);
        Ok(bytes.split_off(8))
    }

    /// Writes eight buckets that nobody looks at yet, with these entries in their chains.
    async fn lay_out(&self, at: u64, entries: [Vec<u64>; BRANCHES as usize]) -> Result<(), Status> {
        let class = branches_class().ok_or(Status::BadParams)?;
        let (mut todo, mut taken) = (vec![(at, 0, entries)], Vec::new());
        while let Some((at, depth, entries)) = todo.pop() {
            let mut bytes = [0; BRANCHES as usize * BUCKET_BYTES];
            for (bucket, entries) in bytes.as_chunks_mut::<BUCKET_BYTES>().0.iter_mut().zip(entries) {
                let (here, further) = entries.split_at(entries.len().min(ENTRIES));
                let mut branches = 0;
                if !further.is_empty() {
                    branches = match self.alloc(class).await {
                        Ok((branches, _)) => branches,
                        Err(error) => {
                            for branches in taken {
                                self.free(branches, class).await?;
                            }
                            return Err(error);
                        }
                    };
                    taken.push(branches);
                    let mut parts = <[Vec<u64>; BRANCHES as usize]>::default();
                    // Of the hash an entry has what says where it goes.
                    further.iter().for_each(|&entry| parts[branch(entry, depth) as usize].push(entry));
                    todo.push((branches, depth + 1, parts));
                }
                let words = here.iter().copied().chain(std::iter::repeat(0)).take(ENTRIES).chain([branches]);
                for (word, value) in bucket.as_chunks_mut().0.iter_mut().zip(words) {
                    *word = value.to_le_bytes();
                }
            }
            self.renew();
            self.write(at, &bytes).await?;
        }
        Ok(())
    }
}

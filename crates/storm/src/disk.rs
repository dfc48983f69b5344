//! The simulated disk: one log file, in sectors, behind a page cache.
//!
//! A write is in the page cache at once and durable when a sync that began later has ended. Syncs run one after another,
//! as group commit does. A crash keeps a seeded subset of the unsynced *sectors*: so writes are lost, torn, or leave
//! holes. Replacing the file (write anew, sync, rename) is atomic; compacting it is not: the new file takes some syncs, in
//! which the old one goes on, and is what a crash leaves. A latent sector error is found when the file is read:
//! the sector then holds noise, as a device gives that miscorrects.

use std::collections::{BTreeSet, VecDeque};

use crate::rng::Rng;

/// Bytes of a sector: what a device writes whole or not at all.
pub const SECTOR: usize = 512;
/// In how many syncs at most a new file is written.
const LONGEST: u64 = 8;

/// A change of the log file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskWrite {
    /// Bytes at the end of the file.
    Append(Vec<u8>),
    /// A new file in place of the old one, atomically.
    Replace(Vec<u8>),
    /// A new file in place of the old one when it is written, some time after what came before is durable. Until then what
    /// is appended goes to both.
    Compact(Vec<u8>),
}

/// What happened to a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Syncs that ended well.
    pub syncs: u64,
    /// Writes of which a crash lost everything.
    pub lost_writes: u64,
    /// Writes of which a crash kept some sectors and lost others.
    pub torn_writes: u64,
    /// Latent sector errors that a restart read.
    pub sector_errors: u64,
    /// Compactions that came to their end.
    pub compacted: u64,
    /// Compactions that a failure of process or machine came before.
    pub uncompacted: u64,
}

impl DiskCounts {
    /// Adds another disk's.
    pub fn add(&mut self, other: Self) {
        self.syncs += other.syncs;
        self.lost_writes += other.lost_writes;
        self.torn_writes += other.torn_writes;
        self.sector_errors += other.sector_errors;
        self.compacted += other.compacted;
        self.uncompacted += other.uncompacted;
    }
}

/// A disk with one file.
#[derive(Debug, Default)]
pub struct Disk {
    durable: Vec<u8>,
    cached: VecDeque<(u64, DiskWrite)>,
    /// How many of `cached` the running sync covers.
    syncing: usize,
    bad: BTreeSet<usize>,
    /// The file's length after each of the last three syncs.
    settled: [usize; 3],
    /// A new file that is being written, and how many syncs more that takes.
    copying: Option<(Vec<u8>, u64)>,
    /// What happened so far.
    pub counts: DiskCounts,
}

impl Disk {
    /// Writes to the page cache. The token comes back from [`Disk::end_sync`].
    pub fn write(&mut self, token: u64, write: DiskWrite) {
        self.cached.push_back((token, write));
    }

    /// Starts a sync if there is something to sync and none runs. The caller ends it later.
    pub fn begin_sync(&mut self) -> bool {
        let starts = self.syncing == 0 && !self.cached.is_empty();
        if starts {
            self.syncing = self.cached.len();
        }
        starts
    }

    /// The running sync has ended: gives the tokens that are durable now.
    pub fn end_sync(&mut self) -> Vec<u64> {
        self.counts.syncs += 1;
        self.copy();
        let synced: Vec<_> = self.cached.drain(..std::mem::take(&mut self.syncing)).collect();
        let mut tokens = Vec::with_capacity(synced.len());
        for (token, write) in synced {
            tokens.push(token);
            match write {
                DiskWrite::Append(bytes) => {
                    let start = self.durable.len();
                    self.durable.extend_from_slice(&bytes);
                    self.rewritten(start);
                    if let Some((file, _)) = &mut self.copying {
                        file.extend_from_slice(&bytes);
                    }
                }
                DiskWrite::Replace(bytes) => self.replace(bytes),
                // One that is being written is superseded.
                DiskWrite::Compact(bytes) => self.copying = Some((bytes, self.counts.syncs % LONGEST)),
            }
        }
        self.settled = [self.settled[1], self.settled[2], self.durable.len()];
        tokens
    }

    /// The new file goes on, and takes the old one's place when it is written.
    fn copy(&mut self) {
        if let Some((file, left)) = self.copying.take() {
            match left {
                0 => {
                    self.counts.compacted += 1;
                    self.replace(file);
                }
                _ => self.copying = Some((file, left - 1)),
            }
        }
    }

    /// Nobody writes a new file any more.
    fn stop_copying(&mut self) {
        self.counts.uncompacted += u64::from(self.copying.take().is_some());
    }

    /// The machine fails. Each unsynced sector is on the disk with a probability of `keep` in a million.
    pub fn crash(&mut self, rng: &mut Rng, keep: u32) {
        self.syncing = 0;
        self.stop_copying();
        let mut lost_file = false;
        // The file as the page cache has it.
        let mut file = self.durable.clone();
        for (_, write) in std::mem::take(&mut self.cached) {
            // What was written to a new file that did not get its name is gone with it.
            match write {
                DiskWrite::Append(bytes) if !lost_file => self.tear(&mut file, &bytes, rng, keep),
                DiskWrite::Replace(bytes) if !lost_file && rng.chance(keep) => {
                    file.clone_from(&bytes);
                    self.replace(bytes);
                }
                // It was to come some time.
                DiskWrite::Compact(_) if !lost_file => {}
                _ => {
                    lost_file = true;
                    self.counts.lost_writes += 1;
                }
            }
        }
    }

    /// The machine comes back with another disk.
    pub fn wipe(&mut self) {
        *self = Self { counts: self.counts, ..Self::default() };
    }

    /// The process fails but not the machine: the page cache reaches the disk.
    pub fn kill(&mut self) {
        self.syncing = self.cached.len();
        self.end_sync();
        self.stop_copying();
    }

    /// Makes `count` sectors at random bad. Says how many. Spares what the last two syncs wrote: nothing written after
    /// them says yet that it was durable, so that damage there cannot be told from a torn tail.
    pub fn spoil(&mut self, rng: &mut Rng, count: u64) -> usize {
        let sectors = (self.settled[0] / SECTOR) as u64;
        (0..count.min(sectors)).filter(|_| self.bad.insert(rng.below(sectors) as usize)).count()
    }

    /// The file as a starting node reads it.
    pub fn read(&mut self) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        for &sector in &self.bad {
            self.counts.sector_errors += 1;
            for (offset, byte) in bytes.iter_mut().enumerate().skip(sector * SECTOR).take(SECTOR) {
                *byte = crate::rng::mix(offset as u64) as u8;
            }
        }
        bytes
    }

    /// Bytes of the durable file.
    pub fn len(&self) -> usize {
        self.durable.len()
    }

    /// Whether the durable file is empty.
    pub fn is_empty(&self) -> bool {
        self.durable.is_empty()
    }

    fn replace(&mut self, bytes: Vec<u8>) {
        self.copying = None;
        self.durable = bytes;
        self.settled = [0; 3];
        self.bad.clear();
    }

    /// Sectors from `start` on have been written anew in full. (The one that `start` lies in was only added to: a real
    /// device would have to read it first, and keeps it bad.)
    fn rewritten(&mut self, start: usize) {
        let _ = self.bad.split_off(&start.div_ceil(SECTOR));
    }

    /// Appends to `file`, and writes some of its sectors, where they belong, as they are by then; the others keep what was
    /// there, or zeros behind the old end.
    fn tear(&mut self, file: &mut Vec<u8>, bytes: &[u8], rng: &mut Rng, keep: u32) {
        let mut at = file.len();
        file.extend_from_slice(bytes);
        let (mut kept, mut lost) = (0, 0);
        while at < file.len() {
            let sector = at / SECTOR * SECTOR;
            let next = (sector + SECTOR).min(file.len());
            if rng.chance(keep) {
                self.durable.resize(self.durable.len().max(next), 0);
                self.durable[sector..next].copy_from_slice(&file[sector..next]);
                kept += 1;
            } else {
                lost += 1;
            }
            at = next;
        }
        // The length is metadata of its own: it may have grown although the sectors were lost.
        if lost > 0 && rng.chance(keep / 2) {
            self.durable.resize(file.len(), 0);
        }
        self.counts.torn_writes += u64::from(kept > 0 && lost > 0);
        self.counts.lost_writes += u64::from(kept == 0 && lost > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Purpose;

    fn append(byte: u8, len: usize) -> DiskWrite {
        DiskWrite::Append(vec![byte; len])
    }

    impl Disk {
        fn end_sync_of_all(&mut self) -> Vec<u64> {
            self.begin_sync();
            self.end_sync()
        }
    }

    #[test]
    fn what_is_synced_survives_and_syncs_cover_what_came_before() {
        let mut disk = Disk::default();
        disk.write(1, append(1, 10));
        assert!(disk.begin_sync() && !disk.begin_sync());
        disk.write(2, append(2, 10));
        assert_eq!(disk.end_sync(), [1]);
        disk.crash(&mut Rng::new(1, Purpose::Fault), 0);
        assert_eq!(disk.read(), [1; 10]);
        assert_eq!(disk.counts.lost_writes, 1);
    }

    #[test]
    fn a_crash_tears_at_sectors_and_may_leave_holes() {
        let (mut torn, mut holes) = (0, 0);
        for seed in 0..100 {
            let mut disk = Disk::default();
            disk.write(1, append(1, 100));
            disk.begin_sync();
            disk.end_sync();
            disk.write(2, append(2, 4 * SECTOR));
            disk.crash(&mut Rng::new(seed, Purpose::Fault), 500_000);
            let file = disk.read();
            assert!(file[..100].iter().all(|&byte| byte == 1), "synced bytes stay");
            for (at, pair) in file.windows(2).enumerate().skip(100) {
                assert!(pair[0] == pair[1] || (at + 1) % SECTOR == 0, "torn inside a sector at {at}");
            }
            torn += disk.counts.torn_writes;
            holes += u64::from(file.windows(2).any(|pair| pair == [0, 2]));
        }
        assert!(torn > 50 && holes > 20, "{torn} {holes}");
    }

    #[test]
    fn what_a_crash_keeps_stays_where_it_was_written() {
        let (mut holes, mut both) = (0, 0);
        for seed in 0..100 {
            let mut disk = Disk::default();
            // The third ends in the sector in which the fourth begins.
            let lengths = [SECTOR, 2 * SECTOR, SECTOR / 2, SECTOR];
            let bytes = |number: u8, length: usize| vec![number; length];
            (1..)
                .zip(lengths)
                .for_each(|(number, length)| disk.write(number.into(), DiskWrite::Append(bytes(number, length))));
            let written: Vec<u8> = (1..).zip(lengths).flat_map(|(number, length)| bytes(number, length)).collect();
            disk.crash(&mut Rng::new(seed, Purpose::Fault), 500_000);
            let file = disk.read();
            for (at, &byte) in file.iter().enumerate() {
                assert!(byte == 0 || byte == written[at], "seed {seed}: {byte} at {at}");
            }
            holes += u64::from(file.starts_with(&[0]) && file.iter().any(|&byte| byte != 0));
            // A sector that was kept for the fourth write has what the third put there.
            let shared = file.get(3 * SECTOR..4 * SECTOR).filter(|sector| sector.ends_with(&[4]));
            assert!(shared.is_none_or(|sector| sector[0] == 3), "seed {seed}");
            both += u64::from(shared.is_some());
        }
        assert!(holes > 20 && both > 20, "{holes} {both}");
    }

    #[test]
    fn replacing_is_atomic() {
        for seed in 0..50 {
            let mut disk = Disk::default();
            disk.write(1, append(1, 2000));
            disk.kill();
            disk.write(2, DiskWrite::Replace(vec![2; 1500]));
            disk.write(3, append(3, 10));
            disk.crash(&mut Rng::new(seed, Purpose::Fault), 500_000);
            let file = disk.read();
            assert!(file == [1; 2000] || file[..1500] == [2; 1500], "{}", file.len());
        }
    }

    #[test]
    fn compacting_takes_time_and_a_failure_leaves_the_old_file() {
        for syncs in 0..20 {
            let mut disk = Disk::default();
            disk.write(0, append(1, 2000));
            (0..=syncs).for_each(|_| drop(disk.end_sync_of_all()));
            disk.write(1, DiskWrite::Compact(vec![2; 100]));
            let mut appended = 0;
            while disk.counts.compacted == 0 {
                disk.write(2, append(3, 10));
                disk.end_sync_of_all();
                appended += 10;
                assert!(
                    disk.counts.compacted == 1 || disk.read()[..2000] == [1; 2000] && disk.len() == 2000 + appended
                );
            }
            assert!(disk.read() == [vec![2; 100], vec![3; appended]].concat(), "after {syncs} syncs");
            disk.write(3, DiskWrite::Compact(vec![4; 100]));
            disk.kill();
            assert_eq!((disk.len(), disk.counts.uncompacted), (100 + appended, 1));
        }
    }

    #[test]
    fn bad_sectors_give_noise_until_they_are_written_anew() {
        let mut disk = Disk::default();
        disk.write(1, append(7, 3 * SECTOR));
        disk.kill();
        assert_eq!(disk.spoil(&mut Rng::new(1, Purpose::Fault), 1), 0, "what was written last is spared");
        (0..2).for_each(|_| disk.kill());
        assert_eq!(disk.spoil(&mut Rng::new(1, Purpose::Fault), 1), 1);
        assert_ne!(disk.read(), [7; 3 * SECTOR]);
        disk.write(2, DiskWrite::Replace(vec![7; 3 * SECTOR]));
        disk.kill();
        assert_eq!(disk.read(), [7; 3 * SECTOR]);
    }
}

//! What lies where in a replica's persistent memory: two superblocks, the ring, the data.
//!
//! A superblock is written to its two places in turn, so that a torn one leaves the one before. An entry in the ring is its
//! length (4 bytes), the CRC-32 of all else (4), its number (8) and epoch (8), and the content: the number of tuples (1 byte),
//! and offset (8), length (4) and data of each; filled up to whole words. It lies anywhere and may go on at the ring's begin. An
//! entry that was not written whole has a wrong checksum; one of an earlier lap has another number; and one of an earlier
//! life, which the rest of the chain never took, is told by its epoch (see [`scan`]).

use std::sync::Arc;

use super::types::{ChainMessage, Entry, Tuple};
use crate::codec::{Reader, Wire};
use crate::member::Durable;

/// Bytes of a superblock's place.
const SUPER: usize = 512;
/// Bytes before an entry's content.
const HEAD: usize = 24;
/// No log has so many entries or bytes.
const NEVER: u64 = 1 << 62;
/// Tuples of an entry: their number is a byte.
pub(super) const MAX_TUPLES: usize = 255;

/// Sizes of ring and data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Bytes of the ring.
    pub ring: usize,
    /// Bytes of data.
    pub data: usize,
}

/// What must be known of a ring and cannot be seen in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Super {
    pub count: u64,
    pub member: Durable,
    /// What is here does not count: the node has forgotten something.
    pub damaged: bool,
    /// The last view in which the log was everybody's, and the last entry that it had then.
    pub synced: u64,
    pub floor: u64,
    /// The data has all up to this entry, which ends at this place of the ring.
    pub applied: u64,
    pub at: u64,
}

impl Layout {
    /// Bytes of persistent memory, all together.
    pub fn bytes(&self) -> usize {
        self.data_at() + self.data
    }

    /// Where the data begins.
    pub fn data_at(&self) -> usize {
        2 * SUPER + self.ring
    }

    /// Whether so many bytes at this place are a superblock.
    pub(super) fn is_superblock(&self, at: u64, bytes: usize) -> bool {
        at < 2 * SUPER as u64 && bytes <= SUPER
    }

    /// Whether a tuple lies within the data.
    fn holds(&self, tuple: &Tuple) -> bool {
        tuple.offset.checked_add(tuple.data.len() as u64).is_some_and(|end| end <= self.data as u64)
    }

    /// Whether ring and data can take what a message brings, and its numbers can be: nothing of it is done before.
    pub(super) fn takes(&self, message: &ChainMessage) -> bool {
        let (numbers, entries) = match message {
            ChainMessage::Forward(entries) => ([0, 0], &entries[..]),
            ChainMessage::State(_, applied, entries) => ([*applied, 0], &entries[..]),
            ChainMessage::Sync(applied, at, entries) => ([*applied, *at], &entries[..]),
            ChainMessage::Commit(seq) => ([*seq, 0], &[][..]),
            ChainMessage::Ack(..) | ChainMessage::Want(_) | ChainMessage::Piece(..) => return true,
        };
        let fits = |entry: &Entry| {
            (1..NEVER).contains(&entry.seq)
                && entry.writes.len() <= MAX_TUPLES
                && entry.length() <= self.ring / 4
                && entry.writes.iter().all(|tuple| self.holds(tuple))
        };
        numbers.iter().all(|&number| number < NEVER) && entries.iter().all(fits)
    }

    /// The bytes of a frame at a place of the ring, in one or two pieces with their offsets.
    pub(super) fn place(&self, at: u64, bytes: Vec<u8>) -> impl Iterator<Item = (u64, Vec<u8>)> {
        let from = (at % self.ring as u64) as usize;
        let mut first = bytes;
        let second = first.split_off(first.len().min(self.ring - from));
        let base = 2 * SUPER as u64;
        let second = (!second.is_empty()).then_some((base, second));
        [(base + from as u64, first)].into_iter().chain(second)
    }

    fn ring_bytes(&self, image: &[u8], at: u64, length: usize) -> Vec<u8> {
        let ring = &image[2 * SUPER..2 * SUPER + self.ring];
        let from = (at % self.ring as u64) as usize;
        let first = length.min(self.ring - from);
        [&ring[from..from + first], &ring[..length - first]].concat()
    }
}

impl Super {
    /// Where it goes, and its bytes.
    pub fn encode(&self) -> (u64, Vec<u8>) {
        let mut content = Vec::new();
        (self.count, (self.member, self.damaged)).put(&mut content);
        ((self.synced, self.floor), (self.applied, self.at)).put(&mut content);
        let mut bytes = crc32fast::hash(&content).to_le_bytes().to_vec();
        bytes.extend_from_slice(&(content.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&content);
        (self.count % 2 * SUPER as u64, bytes)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let crc = u32::from_le_bytes(*bytes.first_chunk()?);
        let length = u32::from_le_bytes(*bytes.get(4..)?.first_chunk()?) as usize;
        let content = bytes.get(8..8usize.checked_add(length)?)?;
        if length == 0 || crc32fast::hash(content) != crc {
            return None;
        }
        let mut reader = Reader::new(content);
        let (count, (member, damaged)) = Wire::get(&mut reader)?;
        let ((synced, floor), (applied, at)) = Wire::get(&mut reader)?;
        reader.is_empty().then_some(Self { count, member, damaged, synced, floor, applied, at })
    }

    /// The newer one that is whole; `None` in memory that nobody has used.
    pub fn find(image: &[u8]) -> Option<Self> {
        let places = image.get(..2 * SUPER)?.chunks(SUPER);
        places.filter_map(Self::decode).max_by_key(|found| found.count)
    }
}

impl Entry {
    /// Bytes that it takes in the ring.
    pub(super) fn length(&self) -> usize {
        frame_length(&self.writes)
    }

    /// Its bytes in the ring.
    pub(super) fn frame(&self) -> Vec<u8> {
        let length = self.length();
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(&(length as u32).to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.seq.to_le_bytes());
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.push(self.writes.len() as u8);
        for Tuple { offset, data } in self.writes.iter() {
            bytes.extend_from_slice(&offset.to_le_bytes());
            bytes.extend_from_slice(&(data.len() as u32).to_le_bytes());
            bytes.extend_from_slice(data);
        }
        bytes.resize(length, 0);
        let crc = checksum(&bytes);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn read(frame: &[u8]) -> Option<Self> {
        let number = |at: usize| frame.get(at..)?.first_chunk().copied().map(u64::from_le_bytes);
        let (seq, epoch) = (number(8)?, number(16)?);
        let (&count, mut rest) = frame.get(HEAD..)?.split_first()?;
        let mut writes = Vec::with_capacity(count.into());
        for _ in 0..count {
            let (offset, more) = rest.split_first_chunk()?;
            let (length, more) = more.split_first_chunk()?;
            let (data, more) = more.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            writes.push(Tuple { offset: u64::from_le_bytes(*offset), data: data.into() });
            rest = more;
        }
        Some(Self { seq, epoch, writes: writes.into() })
    }
}

/// Bytes that an entry of these writes takes in the ring.
pub(super) fn frame_length(writes: &[Tuple]) -> usize {
    frame_length_of(writes.iter().map(|tuple| tuple.data.len()))
}

/// The same for tuples of so many bytes each.
pub(super) fn frame_length_of(tuples: impl Iterator<Item = usize>) -> usize {
    let content: usize = tuples.map(|bytes| 12 + bytes).sum();
    (HEAD + 1 + content).next_multiple_of(8)
}

fn checksum(frame: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&frame[..4]);
    hasher.update(&frame[8..]);
    hasher.finalize()
}

/// The entries that a ring holds behind what its data has, in the order of their numbers, up to the first that is not whole
/// or not of this log: one behind the last view's begin (`floor`) must be of that view or a later one. The flag says
/// whether something torn follows. With `trust` checksums are not looked at; for checks only.
pub(super) fn entries(layout: &Layout, image: &[u8], found: &Super, trust: bool) -> (Vec<Entry>, bool) {
    let (mut entries, mut at, mut epoch): (Vec<Entry>, _, _) = (Vec::new(), found.at, 0);
    loop {
        let head = layout.ring_bytes(image, at, HEAD);
        let length = head.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)) as usize;
        let seq = head[8..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let next = found.applied + 1 + entries.len() as u64;
        if length <= HEAD || !length.is_multiple_of(8) || length > layout.ring / 4 || seq != next {
            return (entries, false);
        }
        let frame = layout.ring_bytes(image, at, length);
        let crc = frame[4..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        if crc != Some(checksum(&frame)) && !trust {
            return (entries, true);
        }
        let Some(entry) = Entry::read(&frame) else { return (entries, true) };
        let of_this_log = entry.epoch >= epoch && (seq <= found.floor || entry.epoch >= found.synced);
        if !of_this_log || !entry.writes.iter().all(|tuple| layout.holds(tuple)) {
            return (entries, false);
        }
        (at, epoch) = (at + length as u64, entry.epoch);
        entries.push(entry);
    }
}

/// What a replica's persistent memory holds: the last view in which its log was everybody's, the number of the last entry
/// that its data has, and the entries behind it. `None` in memory that nobody has used.
pub fn scan(layout: &Layout, image: &[u8]) -> Option<(u64, u64, Vec<Entry>)> {
    let found = Super::find(image)?;
    Some((found.synced, found.applied, entries(layout, image, &found, false).0))
}

/// An entry of these writes.
pub(super) fn entry(seq: u64, epoch: u64, writes: Vec<Tuple>) -> Entry {
    Entry { seq, epoch, writes: Arc::from(writes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LAYOUT: Layout = Layout { ring: 512, data: 64 };

    fn image_of(found: &Super, list: &[Entry]) -> Vec<u8> {
        let mut image = vec![0; LAYOUT.bytes()];
        let mut put = |at: u64, bytes: &[u8]| image[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        let (at, bytes) = found.encode();
        put(at, &bytes);
        let mut end = found.at;
        for entry in list {
            LAYOUT.place(end, entry.frame()).for_each(|(at, bytes)| put(at, &bytes));
            end += entry.length() as u64;
        }
        image
    }

    fn of(seq: u64, epoch: u64, bytes: usize) -> Entry {
        entry(seq, epoch, vec![Tuple { offset: seq % 8, data: vec![seq as u8; bytes].into() }])
    }

    #[test]
    fn entries_come_back_across_the_rings_end_and_a_torn_one_ends_them() {
        let found = Super { count: 3, synced: 2, applied: 4, at: 3 * 512 - 72, ..Super::default() };
        let list = [of(5, 2, 10), of(6, 2, 40), of(7, 3, 1)];
        let image = image_of(&found, &list);
        assert_eq!(Super::find(&image), Some(found));
        assert_eq!(entries(&LAYOUT, &image, &found, false), (list.to_vec(), false));
        let second = (found.at as usize + list[0].length()) % 512;
        for byte in 24..60 {
            let mut torn = image.clone();
            torn[2 * SUPER + (second + byte) % 512] ^= 1;
            let (left, is_torn) = entries(&LAYOUT, &torn, &found, false);
            assert_eq!((left.as_slice(), is_torn), (&list[..1], true), "byte {byte}");
        }
    }

    #[test]
    fn what_an_earlier_life_left_behind_the_floor_is_not_of_this_log() {
        let (old, new) = (of(5, 2, 8), of(5, 4, 8));
        let found = Super { count: 1, synced: 4, floor: 4, applied: 4, ..Super::default() };
        assert_eq!(entries(&LAYOUT, &image_of(&found, std::slice::from_ref(&old)), &found, false).0, []);
        assert_eq!(entries(&LAYOUT, &image_of(&found, std::slice::from_ref(&new)), &found, false).0, [new]);
        let found = Super { floor: 5, ..found };
        assert_eq!(entries(&LAYOUT, &image_of(&found, std::slice::from_ref(&old)), &found, false).0, [old]);
    }

    #[test]
    fn a_torn_superblock_leaves_the_one_before() {
        let (one, two) = (Super { count: 1, ..Super::default() }, Super { count: 2, floor: 9, ..Super::default() });
        let mut image = vec![0; LAYOUT.bytes()];
        for found in [one, two] {
            let (at, bytes) = found.encode();
            image[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
        }
        assert_eq!(Super::find(&image), Some(two));
        image[30] ^= 4;
        assert_eq!(Super::find(&image), Some(one));
        assert_eq!(Super::find(&vec![0; LAYOUT.bytes()]), None);
    }

    proptest! {
        #[test]
        fn any_image_is_read(seed in proptest::collection::vec(any::<u8>(), 600), at in 0u64..2000) {
            let image: Vec<u8> = seed.iter().cycle().take(LAYOUT.bytes()).copied().collect();
            let found = Super { at, ..Super::default() };
            prop_assert!(entries(&LAYOUT, &image, &found, true).0.len() < 600);
            let _ = scan(&LAYOUT, &image);
        }
    }
}

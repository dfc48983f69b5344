//! The log: what survives a crash. Records with checksums, one after the other.
//!
//! A record is its length (4 bytes), the CRC-32 of all else (4), what of the log was durable when it was written (8,
//! [`Known`]), and the content; numbers are little-endian. Reading tells a torn tail, which a crash while writing leaves,
//! from damage to what had been durable: a whole record says that it was (as in Alagappan et al., "Protocol-Aware
//! Recovery for Consensus-Based Storage", FAST 2018, section 3.3). That something whole follows would not do: of several
//! records in one sync any part may reach the disk.

use crate::codec::{Reader, Wire};
use crate::ddp::Write;
use crate::member::Durable;
use crate::types::{ScopeId, Value};

/// Bytes before a record's content.
const HEAD: usize = 16;

/// An entry of the log.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Record {
    /// A version of a record. Versions may come out of order: the newest counts.
    Write(Write),
    /// A scope is complete.
    Scope(ScopeId),
    /// What was promised, accepted and decided about membership. The last counts.
    Member(Durable),
    /// Writes before this do not count: the node began anew as a learner.
    Reset,
    /// What went before was damaged: the node must catch up before it counts as one with a log.
    Damaged,
    /// These bytes at this place of the persistent memory for which the log stands ([`crate::chain::LoggedChain`]).
    Bytes(u64, Value),
}

/// What of the log that a record stands in was known to be durable when the record was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// Its first so many bytes. A snapshot's records say so, of all of it; until [`Known::AllBut`] came, all records did.
    First(usize),
    /// All that stands before the record, but for so many bytes right before it. That is as true in one file as in another:
    /// while a log is compacted, what is appended goes to the old file and to the new one, to another place in each, and
    /// either may be the one that is found after a crash.
    AllBut(usize),
}

/// In a record's head: the number counts back from the record.
const BACK: u64 = 1 << 63;

impl Known {
    fn to_bits(self) -> u64 {
        match self {
            Self::First(bytes) => bytes as u64 & !BACK,
            Self::AllBut(bytes) => bytes as u64 | BACK,
        }
    }

    /// How much of a log a record at this offset says to be durable.
    fn durable(bits: u64, at: usize) -> u64 {
        if bits & BACK == 0 { bits } else { (at as u64).saturating_sub(bits & !BACK) }
    }
}

/// Appends a record's bytes to `out`.
pub fn encode(record: &Record, known: Known, out: &mut Vec<u8>) {
    let start = out.len();
    match record {
        Record::Write(write) => out.reserve(HEAD + 96 + write.bytes()),
        Record::Bytes(_, bytes) => out.reserve(HEAD + 16 + bytes.len()),
        _ => {}
    }
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&known.to_bits().to_le_bytes());
    record.put(out);
    let length = (out.len() - start - HEAD) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    let crc = checksum(&out[start..start + 4], &out[start + 8..]);
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
}

/// How many bytes a record takes. The value counts without being copied.
pub fn length(record: &Record) -> usize {
    let mut bytes = Vec::new();
    let content = match record {
        Record::Write(write) => {
            let value = write.value.as_ref().map(|_| [].into());
            Record::Write(Write { value, ..write.clone() }).put(&mut bytes);
            write.bytes()
        }
        Record::Bytes(at, content) => {
            Record::Bytes(*at, [].into()).put(&mut bytes);
            content.len()
        }
        Record::Scope(_) | Record::Member(_) | Record::Reset | Record::Damaged => {
            record.put(&mut bytes);
            0
        }
    };
    HEAD + bytes.len() + content
}

fn checksum(length: &[u8], rest: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(length);
    hasher.update(rest);
    hasher.finalize()
}

/// How a log ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogEnd {
    /// With a whole record.
    Whole,
    /// With a record that was not written whole; nothing after it counts.
    Torn,
    /// With a bad record at this offset that had been durable.
    Damaged(usize),
}

/// A log as read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decoded {
    /// All whole records before the end.
    pub records: Vec<Record>,
    /// Bytes that they take; the log is to be cut there.
    pub length: usize,
    /// How it ended.
    pub end: LogEnd,
}

/// Reads a log.
pub fn decode(bytes: &[u8]) -> Decoded {
    let mut records = Vec::new();
    let (mut at, mut durable) = (0, 0);
    while let Some((record, length, known)) = record_at(bytes, at) {
        records.push(record);
        at += length;
        durable = durable.max(known);
    }
    let end = if at == bytes.len() {
        LogEnd::Whole
    } else if durable > at as u64 || was_durable(bytes, at) {
        LogEnd::Damaged(at)
    } else {
        LogEnd::Torn
    };
    Decoded { records, length: at, end }
}

/// Does something whole behind this offset say that it had been durable? A record may begin anywhere and claim any
/// length, so checksums of pieces are made of those of the log's beginnings ([`Sums`]): reading each piece would take
/// minutes for a bad log of a few megabytes.
fn was_durable(bytes: &[u8], at: usize) -> bool {
    let sums = Sums::new(bytes, at);
    (at + 1..bytes.len())
        .any(|from| head_at(bytes, from).is_some_and(|head| head.durable > at as u64 && sums.is_right(from, &head)))
}

/// CRC-32s of a log's beginnings, from some offset on, one for each block.
struct Sums<'a> {
    bytes: &'a [u8],
    from: usize,
    blocks: Vec<u32>,
}

impl<'a> Sums<'a> {
    const BLOCK: usize = 512;

    fn new(bytes: &'a [u8], from: usize) -> Self {
        let bytes = &bytes[from..];
        let mut hasher = crc32fast::Hasher::new();
        let add = |block| {
            let before = hasher.clone().finalize();
            hasher.update(block);
            before
        };
        Self { blocks: bytes.chunks(Self::BLOCK).map(add).collect(), bytes, from }
    }

    /// The CRC of what comes before an offset.
    fn before(&self, at: usize) -> u32 {
        let at = at - self.from;
        let block = at / Self::BLOCK;
        // Without a block at the very end, the last one goes on.
        let block = block.min(self.blocks.len().saturating_sub(1));
        let Some(&sum) = self.blocks.get(block) else { return 0 };
        let mut hasher = crc32fast::Hasher::new_with_initial(sum);
        hasher.update(&self.bytes[block * Self::BLOCK..at]);
        hasher.finalize()
    }

    /// Is this the checksum of the record at an offset? CRCs are linear: that of a beginning is that of a shorter one,
    /// moved by as many bytes as came after, and that of these bytes, added.
    fn is_right(&self, at: usize, head: &Head) -> bool {
        let length = checksum(&head.length.to_le_bytes(), &[]);
        let mut whole = crc32fast::Hasher::new_with_initial_len(self.before(at + 8) ^ length, 0);
        whole.combine(&crc32fast::Hasher::new_with_initial_len(head.crc, (HEAD - 8 + head.length as usize) as u64));
        whole.finalize() == self.before(at + HEAD + head.length as usize)
    }
}

/// A log without the zeros that a file may have been filled up with behind the last whole record. Zeros where something
/// had been durable stay: they are damage.
pub fn without_room(mut bytes: Vec<u8>) -> Vec<u8> {
    let (mut at, mut durable) = (0, 0);
    while let Some((length, known)) = frame_at(&bytes, at) {
        at += length;
        durable = durable.max(known);
    }
    if durable <= at as u64 && bytes[at..].iter().all(|&byte| byte == 0) {
        bytes.truncate(at);
    }
    bytes
}

/// The whole record at an offset, if there is one, its length, and how much of the log it knows to be durable.
fn record_at(bytes: &[u8], at: usize) -> Option<(Record, usize, u64)> {
    let (length, durable) = frame_at(bytes, at)?;
    let mut reader = Reader::new(&bytes[at + HEAD..at + length]);
    let record = Record::get(&mut reader)?;
    reader.is_empty().then_some((record, length, durable))
}

/// The length with head of what is whole at an offset, and how much of the log it knows to be durable.
fn frame_at(bytes: &[u8], at: usize) -> Option<(usize, u64)> {
    let head = head_at(bytes, at)?;
    let length = HEAD + head.length as usize;
    let bytes = &bytes[at..at + length];
    (checksum(&bytes[..4], &bytes[8..]) == head.crc).then_some((length, head.durable))
}

/// What comes before a record's content, with how much of the log it says to be durable.
struct Head {
    length: u32,
    crc: u32,
    durable: u64,
}

/// What may be the head of a record: there is room for so much content. The shortest has one byte; a run of zeros is
/// none.
fn head_at(bytes: &[u8], at: usize) -> Option<Head> {
    let (head, content) = bytes.get(at..)?.split_first_chunk::<HEAD>()?;
    let (length, rest) = head.split_first_chunk()?;
    let (crc, durable) = rest.split_first_chunk()?;
    let length = u32::from_le_bytes(*length);
    let durable = Known::durable(u64::from_le_bytes(*durable.first_chunk()?), at);
    let fits = length > 0 && content.len() >= length as usize;
    fits.then_some(Head { length, crc: u32::from_le_bytes(*crc), durable })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{NodeId, Timestamp};
    use proptest::prelude::*;

    fn write(key: u64, length: usize) -> Record {
        let ts = Timestamp { version: key + 2, node: NodeId(1) };
        let value = Some(vec![key as u8; length].into());
        Record::Write(Write { key, ts, value, rmw: false, scope: Some(3), stamps: Vec::new() })
    }

    fn log(records: &[Record]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for record in records {
            encode(record, Known::AllBut(0), &mut bytes);
        }
        bytes
    }

    #[test]
    fn a_hole_in_what_one_sync_wrote_is_a_torn_tail() {
        let mut bytes = log(&[write(1, 10)]);
        let durable = bytes.len();
        (2..5).for_each(|key| encode(&write(key, 10), Known::AllBut(bytes.len() - durable), &mut bytes));
        bytes[durable + 20] ^= 1;
        assert_eq!((decode(&bytes).end, decode(&bytes).length), (LogEnd::Torn, durable));
        bytes[durable - 1] ^= 1;
        assert_eq!(decode(&bytes).end, LogEnd::Damaged(0));
    }

    #[test]
    fn a_torn_tail_is_no_damage_and_damage_no_torn_tail() {
        let records = [write(1, 10), Record::Scope(3), write(2, 700), Record::Reset, write(3, 0)];
        let bytes = log(&records);
        assert_eq!(decode(&bytes), Decoded { records: records.to_vec(), length: bytes.len(), end: LogEnd::Whole });
        let last = log(&records[..4]).len();
        for cut in last + 1..bytes.len() {
            let decoded = decode(&bytes[..cut]);
            assert_eq!((decoded.end, decoded.length, decoded.records.len()), (LogEnd::Torn, last, 4), "cut at {cut}");
        }
        let first = log(&records[..1]).len();
        for at in first..log(&records[..2]).len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x40;
            let decoded = decode(&bad);
            assert_eq!((decoded.end, decoded.records.len()), (LogEnd::Damaged(first), 1), "damage at {at}");
        }
    }

    /// Versions of this before records counted back from themselves left logs that say it so.
    #[test]
    fn logs_that_count_from_their_begin_are_read() {
        let mut bytes = Vec::new();
        for key in 1..4 {
            let durable = bytes.len();
            encode(&write(key, 10), Known::First(durable), &mut bytes);
        }
        assert_eq!(decode(&bytes).end, LogEnd::Whole);
        let (second, third) = (bytes.len() / 3, bytes.len() / 3 * 2);
        for (bad, end) in [(second, LogEnd::Damaged(second)), (third, LogEnd::Torn)] {
            let mut bytes = bytes.clone();
            bytes[bad + 20] ^= 1;
            assert_eq!(decode(&bytes).end, end);
        }
    }

    #[test]
    fn room_behind_the_log_is_not_part_of_it_but_zeros_over_it_are() {
        let bytes = log(&[write(1, 10), write(2, 0)]);
        let mut filled = [bytes.as_slice(), &[0; 100]].concat();
        assert_eq!(without_room(filled.clone()), bytes);
        assert_eq!(without_room(vec![0; 30]), Vec::new());
        // A snapshot says that all of it is durable.
        let mut snapshot = Vec::new();
        (1..3).for_each(|key| encode(&write(key, 10), Known::First(2 * log(&[write(1, 10)]).len()), &mut snapshot));
        let half = snapshot.len() / 2;
        snapshot[half..].fill(0);
        assert_eq!(decode(&without_room(snapshot)).end, LogEnd::Damaged(half));
        filled[bytes.len()] = 1;
        assert_eq!(without_room(filled.clone()), filled);
    }

    #[test]
    fn a_bad_log_full_of_what_looks_like_records_is_read_at_once() {
        // After a bad record, heads of which each claims nearly all the rest.
        let (count, mut bytes) = (1 << 16, vec![1; HEAD]);
        for number in 0..count {
            bytes.extend_from_slice(&((count - number) * HEAD as u32 / 2).to_le_bytes());
            bytes.extend_from_slice(&[7, 7, 7, 7]);
            bytes.extend_from_slice(&u64::from(number + 1).to_le_bytes());
        }
        assert_eq!(decode(&bytes).end, LogEnd::Torn);
        // One of them is right.
        let at = 9 * HEAD;
        let length = u32::from_le_bytes(*bytes[at..].first_chunk().expect("a head")) as usize;
        let crc = checksum(&bytes[at..at + 4], &bytes[at + 8..at + HEAD + length]);
        bytes[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(decode(&bytes).end, LogEnd::Damaged(0));
    }

    proptest! {
        #[test]
        fn pieces_have_the_checksums_of_their_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 32..2000), from in 0..9_usize, at in 0..2000_usize,
        ) {
            let at = from + at % (bytes.len() - HEAD - from);
            let room = bytes.len() - at - HEAD;
            let length = (1.max(room / 2).min(room)) as u32;
            let crc = checksum(&length.to_le_bytes(), &bytes[at + 8..at + HEAD + length as usize]);
            let sums = Sums::new(&bytes, from);
            let (right, wrong) = (Head { length, crc, durable: 0 }, Head { length, crc: crc ^ 1, durable: 0 });
            prop_assert!(sums.is_right(at, &right) && !sums.is_right(at, &wrong));
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let decoded = decode(&bytes);
            prop_assert!(decoded.length <= bytes.len());
        }
    }
}

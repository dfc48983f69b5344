//! The log: what survives a crash. Records with checksums, one after the other.
//!
//! A record is its length (4 bytes), the CRC-32 of length and content (4), and the content; numbers are little-endian.
//! Reading tells a torn tail, which a crash while writing leaves, from damage to what had been written whole: behind a
//! torn tail nothing follows, behind damage a whole record does (Alagappan et al., "Protocol-Aware Recovery for
//! Consensus-Based Storage", FAST 2018, section 3.3).

use crate::codec::{Reader, Wire};
use crate::ddp::Write;
use crate::member::Durable;
use crate::types::ScopeId;

/// Bytes before a record's content.
const HEAD: usize = 8;

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
}

/// Appends a record's bytes.
pub fn encode(record: &Record, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD]);
    record.put(out);
    let length = (out.len() - start - HEAD) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    let crc = checksum(&out[start..start + 4], &out[start + HEAD..]);
    out[start + 4..start + HEAD].copy_from_slice(&crc.to_le_bytes());
}

fn checksum(length: &[u8], content: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(length);
    hasher.update(content);
    hasher.finalize()
}

/// How a log ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// With a whole record.
    Whole,
    /// With a record that was not written whole; nothing after it counts.
    Torn,
    /// A whole record follows the bad one at this offset: what was durable has been damaged.
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
    pub end: End,
}

/// Reads a log.
pub fn decode(bytes: &[u8]) -> Decoded {
    let mut records = Vec::new();
    let mut at = 0;
    while let Some((record, length)) = record_at(bytes, at) {
        records.push(record);
        at += length;
    }
    let end = if at == bytes.len() {
        End::Whole
    } else if (at + 1..bytes.len()).any(|from| record_at(bytes, from).is_some()) {
        End::Damaged(at)
    } else {
        End::Torn
    };
    Decoded { records, length: at, end }
}

/// The whole record at an offset, if there is one, and its length.
fn record_at(bytes: &[u8], at: usize) -> Option<(Record, usize)> {
    let bytes = bytes.get(at..)?;
    let length = u32::from_le_bytes(*bytes.first_chunk()?) as usize;
    let crc = u32::from_le_bytes(*bytes.get(4..)?.first_chunk()?);
    // The shortest record has one byte: a run of zeros is none.
    let content = bytes.get(HEAD..HEAD.checked_add(length)?).filter(|content| !content.is_empty())?;
    if checksum(&bytes[..4], content) != crc {
        return None;
    }
    let mut reader = Reader::new(content);
    let record = Record::get(&mut reader)?;
    reader.is_empty().then_some((record, HEAD + length))
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
        records.iter().for_each(|record| encode(record, &mut bytes));
        bytes
    }

    #[test]
    fn a_torn_tail_is_no_damage_and_damage_no_torn_tail() {
        let records = [write(1, 10), Record::Scope(3), write(2, 700), Record::Reset, write(3, 0)];
        let bytes = log(&records);
        assert_eq!(decode(&bytes), Decoded { records: records.to_vec(), length: bytes.len(), end: End::Whole });
        let last = log(&records[..4]).len();
        for cut in last + 1..bytes.len() {
            let decoded = decode(&bytes[..cut]);
            assert_eq!((decoded.end, decoded.length, decoded.records.len()), (End::Torn, last, 4), "cut at {cut}");
        }
        let first = log(&records[..1]).len();
        for at in first..log(&records[..2]).len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x40;
            let decoded = decode(&bad);
            assert_eq!((decoded.end, decoded.records.len()), (End::Damaged(first), 1), "damage at {at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let decoded = decode(&bytes);
            prop_assert!(decoded.length <= bytes.len());
        }
    }
}

//! Values that tell who wrote them, and what may be read when.

use super::PeerError;

/// Bytes at the front of each value: record and number of the write.
pub const HEADER: usize = 16;

/// The values of all writes of a run, and which of them a read may bring.
///
/// Every write has a number. Whoever reads must find a value as it was written, and none that had been replaced before
/// the read began: a write that had ended when another began that ended before the read began. That is not all that
/// linearizability asks for, but what a store that serves old values fails.
pub struct Values {
    bytes: usize,
    /// Counts beginnings and ends.
    clock: u64,
    /// When each write ended; `u64::MAX` while it is under way.
    ends: Vec<u64>,
    /// For each record the latest beginning of a write that has ended; 0 if there is none.
    floors: Vec<u64>,
}

/// A write under way.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    record: u64,
    number: u64,
    begun: u64,
}

/// A read under way.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    record: u64,
    /// What the record's floor was.
    floor: u64,
}

impl Values {
    /// Of values of `bytes`, at least [`HEADER`].
    pub fn new(bytes: usize) -> Self {
        Self { bytes: bytes.max(HEADER), clock: 0, ends: Vec::new(), floors: Vec::new() }
    }

    /// A write begins; its value goes to `value`.
    pub fn write(&mut self, record: u64, value: &mut Vec<u8>) -> Write {
        self.clock += 1;
        let number = self.ends.len() as u64;
        self.ends.push(u64::MAX);
        value.clear();
        fill(value, record, number, self.bytes);
        Write { record, number, begun: self.clock }
    }

    /// It has ended.
    pub fn written(&mut self, write: Write) {
        self.clock += 1;
        let record = write.record as usize;
        if self.floors.len() <= record {
            self.floors.resize(record + 1, 0);
        }
        self.floors[record] = self.floors[record].max(write.begun);
        self.ends[write.number as usize] = self.clock;
    }

    /// A read begins.
    pub fn read(&self, record: u64) -> Read {
        Read { record, floor: self.floors.get(record as usize).copied().unwrap_or(0) }
    }

    /// It has brought this.
    pub fn check(&self, read: Read, value: Option<&[u8]>) -> Result<(), PeerError> {
        let wrong = |why: String| Err(PeerError::Wrong { record: read.record, why });
        let Some(value) = value else {
            return if read.floor == 0 { Ok(()) } else { wrong("there is no value".into()) };
        };
        let field =
            |at: usize| value.get(at..at + 8).and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
        let (Some(record), Some(number)) = (field(0), field(8)) else {
            return wrong(format!("a value of {} bytes", value.len()));
        };
        let Some(&end) = self.ends.get(number as usize).filter(|_| record == read.record) else {
            return wrong(format!("the value of write {number} to record {record}"));
        };
        if value.len() != self.bytes || !filled(value, record, number) {
            return wrong(format!("write {number} came back changed"));
        }
        if end < read.floor {
            return wrong(format!("write {number} had been replaced before the read began"));
        }
        Ok(())
    }
}

/// The word at this place of a value's filling.
fn word(record: u64, number: u64, place: u64) -> u64 {
    let x = (record ^ number.rotate_left(32)).wrapping_add(place).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn fill(value: &mut Vec<u8>, record: u64, number: u64, bytes: usize) {
    value.extend_from_slice(&record.to_le_bytes());
    value.extend_from_slice(&number.to_le_bytes());
    for place in 0..(bytes - HEADER).div_ceil(8) as u64 {
        value.extend_from_slice(&word(record, number, place).to_le_bytes());
    }
    value.truncate(bytes);
}

fn filled(value: &[u8], record: u64, number: u64) -> bool {
    let mut words = value[HEADER..].chunks(8).zip(0..);
    words.all(|(chunk, place)| *chunk == word(record, number, place).to_le_bytes()[..chunk.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_as_they_were_written() {
        for bytes in [16, 17, 24, 100, 1000] {
            let (mut values, mut value) = (Values::new(bytes), Vec::new());
            let write = values.write(3, &mut value);
            assert_eq!(value.len(), bytes);
            values.written(write);
            let read = values.read(3);
            assert!(values.check(read, Some(&value)).is_ok());
            assert!(values.check(read, None).is_err(), "it is there");
            assert!(values.check(values.read(4), Some(&value)).is_err(), "another record's");
            for at in [0, 8, bytes - 1] {
                let mut changed = value.clone();
                changed[at] ^= 1;
                assert!(values.check(read, Some(&changed)).is_err(), "changed at {at} of {bytes}");
            }
            assert!(values.check(read, Some(&value[..bytes - 1])).is_err(), "cut");
        }
    }

    #[test]
    fn what_was_replaced_before_the_read_may_not_be_read() {
        let (mut values, mut old, mut new) = (Values::new(32), Vec::new(), Vec::new());
        let early = values.read(0);
        assert!(values.check(early, None).is_ok(), "nothing was written yet");
        let first = values.write(0, &mut old);
        values.written(first);
        let second = values.write(0, &mut new);
        let during = values.read(0);
        values.written(second);
        let after = values.read(0);
        assert!(values.check(during, Some(&old)).is_ok() && values.check(during, Some(&new)).is_ok());
        assert!(values.check(after, Some(&new)).is_ok());
        assert!(values.check(after, Some(&old)).unwrap_err().to_string().contains("replaced before"));
    }

    #[test]
    fn of_two_writes_at_once_either_may_stay() {
        let (mut values, mut one, mut two) = (Values::new(32), Vec::new(), Vec::new());
        let first = values.write(0, &mut one);
        let second = values.write(0, &mut two);
        values.written(second);
        values.written(first);
        let read = values.read(0);
        assert!(values.check(read, Some(&one)).is_ok() && values.check(read, Some(&two)).is_ok());
    }
}

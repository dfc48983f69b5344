//! How long a ring is, and where what lies in its memory.

/// How many entries a ring has, and how long each is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingShape {
    entries: u32,
    entry: u32,
}

/// No ring has this shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a ring of {entries} entries of {entry} bytes: both are powers of two, 2 to {} entries of {} to {} bytes",
    RingShape::MOST_ENTRIES,
    RingShape::LEAST_ENTRY,
    RingShape::MOST_ENTRY
)]
pub struct ShapeError {
    /// Entries asked for.
    pub entries: u32,
    /// Bytes of an entry asked for.
    pub entry: u32,
}

impl Default for RingShape {
    /// 1,024 entries, as RAMBDA's prototype has (section V), of 128 bytes: a call with parameters of 64 bytes is one.
    fn default() -> Self {
        Self { entries: 1024, entry: 128 }
    }
}

impl RingShape {
    /// Entries that a ring may have.
    pub const MOST_ENTRIES: u32 = 1 << 16;
    /// Bytes that an entry has at least: a cache line.
    pub const LEAST_ENTRY: u32 = 64;
    /// Bytes that an entry has at most.
    pub const MOST_ENTRY: u32 = 4096;
    /// Bytes behind the entries: the line of the pointer word.
    const TRAILER: usize = 64;

    /// So many entries of so many bytes.
    pub fn new(entries: u32, entry: u32) -> Result<Self, ShapeError> {
        let fits = (2..=Self::MOST_ENTRIES).contains(&entries) && entries.is_power_of_two();
        let fits = fits && (Self::LEAST_ENTRY..=Self::MOST_ENTRY).contains(&entry) && entry.is_power_of_two();
        if fits { Ok(Self { entries, entry }) } else { Err(ShapeError { entries, entry }) }
    }

    /// How many entries.
    pub const fn entries(self) -> u32 {
        self.entries
    }

    /// Bytes of an entry.
    pub const fn entry(self) -> u32 {
        self.entry
    }

    /// Bytes of all entries.
    pub const fn bytes(self) -> usize {
        self.entries as usize * self.entry as usize
    }

    /// Bytes of memory that a ring takes at the side that reads it: the entries, and the line with the pointer word.
    pub const fn memory(self) -> usize {
        self.bytes() + Self::TRAILER
    }

    /// Where the pointer word is.
    pub const fn pointer(self) -> usize {
        self.bytes()
    }

    /// The longest message.
    pub const fn longest(self) -> usize {
        self.bytes() - crate::frame::AROUND
    }

    /// Where the entry with this number begins, counted from the first that was ever written.
    #[inline]
    pub(crate) const fn offset(self, number: u64) -> usize {
        (number & (self.entries as u64 - 1)) as usize * self.entry as usize
    }

    /// Entries that a message of so many bytes takes.
    pub(crate) const fn entries_of_message(self, len: usize) -> u64 {
        self.entries_of(crate::frame::frame_len(len))
    }

    /// Entries that a frame of so many bytes takes.
    #[inline]
    pub(crate) const fn entries_of(self, frame: usize) -> u64 {
        frame.div_ceil(self.entry as usize) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_powers_of_two_within_bounds() {
        for (entries, entry) in [(1, 64), (3, 64), (1 << 17, 64), (1024, 32), (1024, 96), (1024, 8192), (0, 0)] {
            let error = RingShape::new(entries, entry).unwrap_err();
            assert_eq!(error, ShapeError { entries, entry });
            assert!(error.to_string().contains("2 to 65536 entries of 64 to 4096 bytes"), "{error}");
        }
        let shape = RingShape::default();
        assert_eq!(RingShape::new(shape.entries(), shape.entry()), Ok(shape));
        assert_eq!((shape.bytes(), shape.pointer(), shape.memory()), (128 << 10, 128 << 10, (128 << 10) + 64));
        assert_eq!((shape.offset(1023), shape.offset(1024 + 5)), (1023 * 128, 5 * 128));
        assert_eq!((shape.entries_of(128), shape.entries_of(129)), (1, 2));
    }
}

//! Reads by one-sided READ, in which no processor of the node takes part.
//!
//! A node shows its data to peers' READs in a *window*: memory in which each key's bytes stand behind the number of the last
//! entry that was applied to them, its version. A key and its version make a *line* ([`Lines`]). The window is open at the
//! head alone, and as long as its lease lasts ([`Chain::window`](super::Chain::window)): the head applies an entry before
//! anybody hears that it is committed, so what is there is what has happened, and nothing that is under way can be seen. The NIC
//! refuses READs once the lease is over, whatever the node does, and with each view the window has another key.
//!
//! A client reads as many lines at a time as one packet holds, which a NIC takes from memory at once ([`WindowRead`]). If it needs more
//! than one READ, it reads the versions once more when it has all: if none has changed, all of it was there at the same time, between
//! the last READ of the first round and the first of the second.

use super::replica::Chain;
use super::types::{ChainMutation, Extent};
use crate::Time;
use crate::types::Value;

/// Bytes of a version.
const VERSION: u64 = 8;

/// How a window is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Lines {
    data: u64,
    cell: u64,
}

impl Lines {
    /// Bytes of data, and of a key of it. `None` if a key has none, or there are too many.
    pub fn new(data: u64, cell: u64) -> Option<Self> {
        let fits = cell > 0 && cell <= u32::MAX.into() && data < 1 << 62;
        fits.then_some(Self { data, cell })
    }

    /// Bytes of data.
    pub fn data(&self) -> u64 {
        self.data
    }

    /// Bytes of a key.
    pub fn cell(&self) -> u64 {
        self.cell
    }

    /// Bytes of a line.
    fn line(&self) -> u64 {
        VERSION + self.cell
    }

    /// Bytes of the window.
    pub fn bytes(&self) -> u64 {
        self.data.div_ceil(self.cell) * self.line()
    }

    /// What is to be put where in the window as these bytes were written to the data, and the last entry that was applied has this
    /// number. What lies behind the data is not shown.
    pub fn write(&self, version: u64, offset: u64, bytes: &[u8], mut put: impl FnMut(u64, &[u8])) {
        let room = self.data.saturating_sub(offset).min(bytes.len() as u64);
        let (mut offset, mut bytes) = (offset, &bytes[..room as usize]);
        while !bytes.is_empty() {
            let (cell, from) = (offset / self.cell, offset % self.cell);
            let (now, later) = bytes.split_at(bytes.len().min((self.cell - from) as usize));
            let line = cell * self.line();
            put(line, &version.to_le_bytes());
            put(line + VERSION + from, now);
            (offset, bytes) = (offset + now.len() as u64, later);
        }
    }

    /// The same for all of the data, in a window that is all zeros: of what is zero nothing is put.
    pub fn fill(&self, version: u64, data: &[u8], mut put: impl FnMut(u64, &[u8])) {
        for (cell, bytes) in (0..).zip(data.chunks(self.cell as usize)) {
            if bytes.iter().any(|&byte| byte != 0) {
                self.write(version, cell * self.cell, bytes, &mut put);
            }
        }
    }
}

impl Chain {
    /// Until when peers may READ its data in a window ([`Lines`]), if they may. They may at the head: it applies an
    /// entry first of all, and in the turn in which its client is answered. What was answered before it was the head may
    /// be in its log alone when the view begins; so not before it has applied that.
    pub fn window(&self) -> Option<Time> {
        let has_begun = self.applied >= self.wanted.floor || self.mutant(ChainMutation::EarlyWindow);
        let open = self.synced && has_begun && self.is_head() && self.view.members.has(self.config.id);
        open.then_some(if self.mutant(ChainMutation::NoFence) { Time::MAX } else { self.lease })
    }

    /// How its data lies in a window.
    pub fn lines(&self) -> Option<Lines> {
        Lines::new(self.config.data as u64, self.config.cell)
    }

    /// Where in the data a write to this place of persistent memory begins, if it is one of data.
    pub fn data_offset(&self, at: u64) -> Option<u64> {
        at.checked_sub(self.layout().data_at() as u64)
    }
}

/// Lines that one READ reads.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Part {
    first: u64,
    count: u64,
    /// What the first round found.
    found: Vec<u8>,
}

/// How a read ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WindowEnd {
    /// This was there, all at the same time.
    Read(Vec<Value>),
    /// Something was written meanwhile: what was found may never have been there together.
    Changed,
}

/// A client's read of some ranges.
///
/// [`WindowRead::next_read`] says what to READ; [`WindowRead::found`] takes what was there. A READ that is refused ends it: the
/// window is closed, and the chain is to be asked.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct WindowRead {
    lines: Lines,
    extents: Vec<Extent>,
    parts: Vec<Part>,
    /// READs of this round that were asked for, and that have come.
    asked: usize,
    come: usize,
    /// It is the second round.
    again: bool,
    changed: bool,
}

impl WindowRead {
    /// READs of a read at most: who wants more asks the chain.
    const PARTS: usize = 64;

    /// A read by READs of at most `most` bytes: what a packet holds. `None` if it is empty or reaches beyond the data, if a line is
    /// longer than that, or if it would take many READs.
    pub fn new(lines: Lines, extents: &[Extent], most: u32) -> Option<Self> {
        let lines_at_once = u64::from(most) / lines.line();
        let mut parts = Vec::new();
        for extent in extents {
            let end = extent.offset.checked_add(extent.length.into()).filter(|&end| end <= lines.data)?;
            if extent.length == 0 || lines_at_once == 0 {
                return None;
            }
            let (mut first, last) = (extent.offset / lines.cell, (end - 1) / lines.cell);
            while first <= last {
                if parts.len() == Self::PARTS {
                    return None;
                }
                let count = (last - first + 1).min(lines_at_once);
                parts.push(Part { first, count, found: Vec::new() });
                first += count;
            }
        }
        let extents = extents.to_vec();
        (!parts.is_empty()).then_some(Self { lines, extents, parts, asked: 0, come: 0, again: false, changed: false })
    }

    /// Bytes of a READ. In the second round a version is enough, where there is one.
    fn length(&self, part: &Part) -> u64 {
        if self.again && part.count == 1 { VERSION } else { part.count * self.lines.line() }
    }

    /// The next READ, if one is due: its number, where in the window, and how many bytes. Those of a round may be under way
    /// at the same time.
    pub fn next_read(&mut self) -> Option<(usize, u64, u32)> {
        let number = self.asked;
        let part = self.parts.get(number)?;
        self.asked += 1;
        Some((number, part.first * self.lines.line(), self.length(part) as u32))
    }

    /// What the READ of this number found. Says how the read ended, when it has.
    pub fn found(&mut self, number: usize, bytes: &[u8]) -> Option<WindowEnd> {
        let wanted = self.length(self.parts.get(number)?);
        let again = self.again;
        let part = &mut self.parts[number];
        match again {
            // It was something else: no answer to this.
            _ if bytes.len() as u64 != wanted => self.changed = true,
            false => part.found = bytes.to_vec(),
            true => self.changed |= !part.found.starts_with(bytes),
        }
        self.come += 1;
        if self.come < self.parts.len() {
            return None;
        }
        if self.changed {
            return Some(WindowEnd::Changed);
        }
        if self.again || self.parts.len() == 1 {
            return Some(WindowEnd::Read(self.values()));
        }
        (self.asked, self.come, self.again) = (0, 0, true);
        None
    }

    /// The bytes of the ranges, out of the lines that they lie in.
    fn values(&self) -> Vec<Value> {
        let line = self.lines.line() as usize;
        let mut parts = self.parts.iter();
        let value = |extent: &Extent| {
            let first = extent.offset / self.lines.cell;
            let lines = (extent.offset + u64::from(extent.length) - 1) / self.lines.cell - first + 1;
            let mut bytes = Vec::new();
            while (bytes.len() as u64) < lines * self.lines.cell {
                let Some(part) = parts.next() else { break };
                part.found.chunks(line).for_each(|line| bytes.extend_from_slice(&line[VERSION as usize..]));
            }
            let from = (extent.offset - first * self.lines.cell) as usize;
            Value::from(&bytes[from..from + extent.length as usize])
        };
        self.extents.iter().map(value).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const DATA: u64 = 1000;

    struct Shown(Lines, Vec<u8>);

    impl Shown {
        fn new(cell: u64, data: &[u8]) -> Self {
            let lines = Lines::new(DATA, cell).expect("a layout");
            let mut this = Self(lines, vec![0; lines.bytes() as usize]);
            let Self(lines, window) = &mut this;
            lines.fill(0, data, |at, bytes| window[at as usize..][..bytes.len()].copy_from_slice(bytes));
            this
        }

        fn write(&mut self, version: u64, offset: u64, bytes: &[u8]) {
            let Self(lines, window) = self;
            let put = |at: u64, bytes: &[u8]| window[at as usize..][..bytes.len()].copy_from_slice(bytes);
            lines.write(version, offset, bytes, put);
        }

        /// Reads, with `between` before READ `when`, counted from 0.
        fn read(&mut self, extents: &[Extent], most: u32, when: usize, between: &[(u64, u8)]) -> (WindowEnd, usize) {
            let mut read = WindowRead::new(self.0, extents, most).expect("a read");
            let mut reads = 0;
            loop {
                let (number, at, length) = read.next_read().expect("a READ is due");
                if reads == when {
                    for (version, &(offset, byte)) in (1..).zip(between) {
                        self.write(version, offset, &[byte]);
                    }
                }
                reads += 1;
                assert!(length <= most);
                if let Some(end) = read.found(number, &self.1[at as usize..][..length as usize]) {
                    return (end, reads);
                }
            }
        }
    }

    fn at(offset: u64, length: u32) -> Extent {
        Extent { offset, length }
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_was_there_at_one_time(
            data in vec(0u8..3, DATA as usize),
            cell in prop::sample::select(vec![1u64, 8, 64, 999]),
            places in vec((0u64..900, 1u32..100), 1..4),
            between in vec((0u64..DATA, any::<u8>()), 0..6),
            when in 0usize..12,
        ) {
            let extents: Vec<Extent> = places.iter().map(|&(offset, length)| at(offset, length)).collect();
            // So few READs that `when` is among them often.
            let Some(_) = WindowRead::new(Lines::new(DATA, cell).unwrap(), &extents, 1024) else { return Ok(()) };
            let mut shown = Shown::new(cell, &data);
            let (end, reads) = shown.read(&extents, 1024, when, &between);
            let values = |data: &[u8]| -> Vec<Value> {
                extents.iter().map(|it| data[it.offset as usize..][..it.length as usize].into()).collect()
            };
            let mut after = data.clone();
            between.iter().for_each(|&(offset, byte)| after[offset as usize] = byte);
            match end {
                WindowEnd::Read(read) if when < reads => {
                    prop_assert!(read == values(&data) || read == values(&after), "{read:?}");
                }
                WindowEnd::Read(read) => prop_assert_eq!(read, values(&data)),
                WindowEnd::Changed => prop_assert!(when > 0 && when < reads && !between.is_empty()),
            }
        }
    }

    #[test]
    fn one_packet_is_read_once_and_several_are_looked_at_again() {
        let mut shown = Shown::new(64, &[7; DATA as usize]);
        assert_eq!(shown.read(&[at(0, 64)], 1024, 9, &[]), (WindowEnd::Read(vec![[7; 64][..].into()]), 1));
        assert_eq!(shown.read(&[at(0, 1), at(999, 1)], 1024, 9, &[]).1, 4);
        // Between the two rounds, what another READ has read before.
        assert_eq!(shown.read(&[at(0, 1), at(999, 1)], 1024, 2, &[(0, 9)]).0, WindowEnd::Changed);
        // The same bytes, but written.
        assert_eq!(shown.read(&[at(0, 1), at(999, 1)], 1024, 3, &[(999, 8), (999, 7)]).0, WindowEnd::Changed);
        // Not what was read.
        let end = shown.read(&[at(0, 1), at(999, 1)], 1024, 3, &[(300, 1)]).0;
        assert_eq!(end, WindowEnd::Read(vec![[9][..].into(), [7][..].into()]));
    }

    #[test]
    fn what_cannot_be_read_is_not_begun() {
        let lines = Lines::new(DATA, 64).unwrap();
        let begins = |extents: &[Extent], most| WindowRead::new(lines, extents, most).is_some();
        assert!(begins(&[at(0, DATA as u32)], 1024) && begins(&[at(999, 1)], 72));
        assert!(!begins(&[], 1024) && !begins(&[at(0, 0)], 1024) && !begins(&[at(999, 2)], 1024));
        assert!(!begins(&[at(u64::MAX, 2)], 1024) && !begins(&[at(0, 1)], 71));
        assert!(!begins(&vec![at(0, 1); 65], 1024));
        assert!(Lines::new(DATA, 0).is_none() && Lines::new(u64::MAX, 64).is_none());
        // What is behind the data is not shown, and a strange answer is none.
        lines.write(1, DATA - 1, &[1, 2], |at, bytes| assert!(at + bytes.len() as u64 <= lines.bytes()));
        lines.write(1, DATA + 5, &[1, 2], |_, _| panic!("behind the data"));
        let mut read = WindowRead::new(lines, &[at(0, 1)], 1024).unwrap();
        assert_eq!(read.found(7, &[]), None);
        assert_eq!(read.found(0, &[1, 2]), Some(WindowEnd::Changed));
    }
}

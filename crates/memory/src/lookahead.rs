//! Asking for what will be read next while something else is worked on.

use crate::buffer::Buffer;
use crate::copy;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that a core will read soon, such as packets in a ring: whoever works on earlier ones asks for their lines
/// meanwhile, as many bytes as it has worked through. Asked for all at once, they would hold up that work; asked for only
/// when they are read, they would hold up the reader.
///
/// Hints only: nothing that anyone puts here has an effect on what is read. One thread uses it at a time; the values
/// are atomic so that it may go to another.
#[derive(Debug, Default)]
pub struct Lookahead {
    /// Addresses of the next byte to ask for and of the end.
    next: AtomicUsize,
    end: AtomicUsize,
}

impl Lookahead {
    /// These bytes of a buffer come next, the first `soon` of them so early that they are asked for now. Those that
    /// were asked for already are not asked for again. A range outside the buffer is ignored.
    #[inline]
    pub fn expect(&self, buffer: &Buffer, range: Range<usize>, soon: usize) {
        let Ok(start) = buffer.at(range.start, range.end.saturating_sub(range.start)) else { return };
        let (start, end) = (start.addr(), start.addr() + range.len());
        let next = self.next.load(Ordering::Relaxed);
        let next = if (start..=end).contains(&next) { next } else { start };
        self.next.store(next, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.ask((start + soon).saturating_sub(next));
    }

    /// Asks for the next `bytes` of them, as far as they go.
    #[inline]
    fn ask(&self, bytes: usize) {
        let (at, lines) = self.take(bytes);
        copy::prefetch_near(at, lines);
    }

    /// The first of the next `lines`, which the caller asks for, if there are as many.
    #[inline]
    pub(crate) fn take_lines(&self, lines: usize) -> Option<*const u8> {
        let (at, there) = self.take(64 * lines);
        (there == lines && lines > 0).then_some(at)
    }

    /// Where the next `bytes` of them begin, as far as they go, and how many lines they have. They count as asked for.
    #[inline]
    fn take(&self, bytes: usize) -> (*const u8, usize) {
        let next = self.next.load(Ordering::Relaxed);
        let end = self.end.load(Ordering::Relaxed);
        let bytes = bytes.min(end.saturating_sub(next));
        self.next.store(next + bytes, Ordering::Relaxed);
        (std::ptr::without_provenance(next), bytes.div_ceil(64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_asked_for_once_and_no_further_than_they_go() {
        let buffer = Buffer::anonymous(8192).unwrap();
        let start = buffer.at(0, 1).unwrap().addr();
        let lookahead = Lookahead::default();
        assert_eq!(lookahead.take_lines(1), None, "nothing is known");
        lookahead.expect(&buffer, 64..1024, 128);
        assert_eq!(
            lookahead.take(256),
            (std::ptr::without_provenance(start + 192), 4),
            "behind those asked for at once"
        );
        lookahead.expect(&buffer, 256..1500, 100);
        assert_eq!(lookahead.take_lines(16).map(<*const u8>::addr), Some(start + 448));
        assert_eq!(lookahead.take_lines(2), None, "28 bytes are left");
        lookahead.expect(&buffer, 4096..4160, 0);
        assert_eq!(lookahead.take_lines(1).map(<*const u8>::addr), Some(start + 4096), "somewhere else");
        lookahead.expect(&buffer, 8000..8200, 100);
        assert_eq!(lookahead.take(64).1, 0, "outside the buffer");
    }
}

//! A message as it lies in a ring: a word, the bytes, zeros to the end of a word, and the mark as the last byte.
//!
//! The word is the length plus one in its lower half, so that it is never 0, and in its upper half how far the sender has
//! read the ring of the other way. All of it is whole words, which are written and read quickest.

/// The last byte of a whole frame.
pub(crate) const MARK: u8 = 0xa5;
/// Bytes of a frame beside the message, at least: the word and the mark.
pub(crate) const AROUND: usize = 9;
/// Bytes of the word in front.
pub(crate) const FRONT: usize = 8;

/// Bytes of the frame of so long a message.
#[inline]
pub(crate) const fn frame_len(message: usize) -> usize {
    (message + AROUND).next_multiple_of(8)
}

/// The word in front of a message of `len` bytes.
#[inline]
pub(crate) const fn front(len: u32, credit: u32) -> u64 {
    (len as u64 + 1) | (credit as u64) << 32
}

/// Length and credit of a word that is not 0; `None` if its lower half is.
#[inline]
pub(crate) const fn parse_front(word: u64) -> Option<(u32, u32)> {
    match (word as u32).checked_sub(1) {
        Some(len) => Some((len, (word >> 32) as u32)),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_room_for_word_and_mark() {
        assert_eq!([0, 6, 7, 8, 64].map(frame_len), [16, 16, 16, 24, 80]);
        assert_eq!(parse_front(front(0, 0)), Some((0, 0)));
        assert_eq!(parse_front(front(70_000, u32::MAX)), Some((70_000, u32::MAX)));
        assert_eq!((parse_front(0), parse_front(7 << 32)), (None, None));
    }
}

//! Sending and receiving on a connection that has rings.
//!
//! Results are the kernel's: bytes, or a negative errno.

mod begin;
mod bells;
mod look;
mod recv;
mod send;
mod sleep;

use std::ffi::c_int;

use crate::link::{Link, Word};

pub use begin::{begin, fits, keeps_to_kernel, low_mark, progress, set_inline, set_resets, take_low_mark, tick};
pub use bells::{drained, silence, take_bells, take_error, wake};
pub use look::{
    has_room, has_urgent, is_at_mark, is_out_of_hearing, look_for_end, readiness, troubles, unread, unread_before,
    urgent_is_in_ring,
};
pub use recv::{recv, recv_urgent};
pub use send::{room_to_send, send};

const AGAIN: isize = -(libc::EAGAIN as isize);
const INVALID: isize = -(libc::EINVAL as isize);
const NO_BUFFERS: isize = -(libc::ENOBUFS as isize);
const RESET: isize = -(libc::ECONNRESET as isize);
const PIPE: isize = -(libc::EPIPE as isize);
/// Another thread has closed all descriptors.
const CLOSED: isize = -(libc::EBADF as isize);

/// A program's memory, part by part.
pub struct Parts<'a>(pub &'a [libc::iovec]);

impl Parts<'_> {
    pub fn len(&self) -> usize {
        self.0.iter().map(|part| part.iov_len).sum()
    }

    /// The bytes from `skip` on, up to the end of the part that they are in.
    fn at(&self, mut skip: usize) -> Option<(*mut u8, usize)> {
        for part in self.0 {
            if skip < part.iov_len {
                return Some((part.iov_base.cast::<u8>().wrapping_add(skip), part.iov_len - skip));
            }
            skip -= part.iov_len;
        }
        None
    }

    /// Parts of the first `len` bytes.
    fn first(&self, mut len: usize) -> Vec<libc::iovec> {
        let mut first = Vec::new();
        for part in self.0 {
            let iov_len = part.iov_len.min(len);
            first.push(libc::iovec { iov_base: part.iov_base, iov_len });
            len -= iov_len;
        }
        first
    }
}

fn non_blocking(link: &Link, flags: c_int) -> bool {
    flags & libc::MSG_DONTWAIT != 0 || link.own(Word::NonBlocking) != 0
}

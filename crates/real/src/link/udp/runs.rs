//! Several segmented sends in one system call.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use socket2::SockAddr;

/// Runs in one call at most.
pub(super) const MOST: usize = 16;

/// Packets that the kernel cuts out of one send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    /// How many.
    pub packets: usize,
    /// Their bytes, back to back.
    pub bytes: usize,
    /// The bytes of each but the last, which may be shorter.
    pub segment: u16,
}

/// A control message with a segment size: header and value, in words so that it is aligned.
type Control = [u64; 3];
const CONTROL_BYTES: usize = size_of::<libc::cmsghdr>() + size_of::<u16>();
const _: () = assert!(CONTROL_BYTES <= size_of::<Control>() && align_of::<libc::cmsghdr>() <= align_of::<u64>());

/// Sends runs that lie back to back in `bytes`, at most [`MOST`]. Returns how many were taken.
///
/// # Errors
///
/// What sendmmsg(2) says of the first run.
pub(super) fn send(socket: &UdpSocket, to: &SockAddr, bytes: &[u8], runs: &[Run]) -> io::Result<usize> {
    let runs = &runs[..runs.len().min(MOST)];
    let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MOST];
    let mut controls: [Control; MOST] = [[0; 3]; MOST];
    // SAFETY: message headers are plain pointers and integers, for which zero is valid.
    let mut messages: [libc::mmsghdr; MOST] = unsafe { std::mem::zeroed() };
    let mut rest = bytes;
    for (n, run) in runs.iter().enumerate() {
        let (front, after) = rest
            .split_at_checked(run.bytes)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "runs of more bytes than there are"))?;
        rest = after;
        vectors[n] = libc::iovec { iov_base: front.as_ptr().cast_mut().cast(), iov_len: front.len() };
        let message = &mut messages[n].msg_hdr;
        (message.msg_name, message.msg_namelen) = (to.as_ptr().cast_mut().cast(), to.len());
        (message.msg_iov, message.msg_iovlen) = (&raw mut vectors[n], 1);
        if run.packets > 1 {
            controls[n] = segment_size(run.segment);
            // C libraries differ in the length's type.
            (message.msg_control, message.msg_controllen) = (controls[n].as_mut_ptr().cast(), CONTROL_BYTES as _);
        }
    }
    // SAFETY: the first `runs.len()` messages point to an address, a vector, bytes and a control message that live until
    // the call is over and are as long as they say; the kernel writes to nothing but the messages' lengths.
    let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), runs.len() as u32, 0) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// `UDP_SEGMENT` as a control message.
fn segment_size(bytes: u16) -> Control {
    let header = [libc::SOL_UDP, libc::UDP_SEGMENT];
    let [level, kind] = header.map(|int| u64::from(int as u32));
    // A header is a length of a word, then two ints; the value follows.
    let pair = if cfg!(target_endian = "little") { level | kind << 32 } else { level << 32 | kind };
    let mut value = [0; 8];
    value[..2].copy_from_slice(&bytes.to_ne_bytes());
    [CONTROL_BYTES as u64, pair, u64::from_ne_bytes(value)]
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::*;

    #[test]
    fn a_control_message_is_laid_out_as_the_system_has_it() {
        let mut control = segment_size(1234);
        let header = libc::cmsghdr { cmsg_len: CONTROL_BYTES, cmsg_level: libc::SOL_UDP, cmsg_type: libc::UDP_SEGMENT };
        let bytes = control.map(u64::to_ne_bytes).concat();
        assert_eq!(bytes[..8], header.cmsg_len.to_ne_bytes());
        assert_eq!(bytes[8..12], header.cmsg_level.to_ne_bytes());
        assert_eq!(bytes[12..16], header.cmsg_type.to_ne_bytes());
        assert_eq!(bytes[16..18], 1234u16.to_ne_bytes());
        // SAFETY: the message lies within `control`, whose address it is given.
        let data = unsafe { libc::CMSG_DATA(control.as_mut_ptr().cast()) };
        assert_eq!(data.addr() - control.as_mut_ptr().addr(), 16);
    }
}

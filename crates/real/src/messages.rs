//! Messages between processes of one host, over sockets that keep them whole, with a file beside them or none.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// Sends a message with a file, without waiting for room.
pub(crate) fn say_with(socket: impl AsFd, parts: &[IoSlice<'_>], file: impl AsFd) -> Result<(), Errno> {
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(socket, parts, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop)
}

/// Takes a message: how long it is, 0 at the end, and the first file that came with it. Others are closed.
pub(crate) fn hear_with(
    socket: impl AsFd,
    bytes: &mut [u8],
    flags: RecvFlags,
) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags | RecvFlags::CMSG_CLOEXEC)?;
    let mut files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Ok((received.bytes, files.next()))
}

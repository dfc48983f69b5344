//! The sockets beside the rings: who is there, where the rings are, and the doorbell.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

use remora_memory::Buffer;
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use rustix::process::Uid;

use super::ring::RING_BYTES;

/// Doorbell bytes read from one peer at a look; a peer that rings more is heard at the next.
const MAX_RINGS: usize = 16;

/// What the connecting end sends with the memory file: the protocol's name and version, and its IP address.
const HELLO: [u8; 8] = *b"remora\0\x01";
const HELLO_BYTES: usize = HELLO.len() + 16;

/// A socket whose messages stay whole.
pub fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// The name under which the process with an address listens.
pub fn name_of(ip: IpAddr) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(format!("remora/{ip}").as_bytes())?)
}

/// Tells who connects, and passes the memory file over.
pub fn say_hello(socket: &OwnedFd, file: &OwnedFd, ip: IpAddr) -> Result<(), Errno> {
    let address = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let parts = [IoSlice::new(&HELLO), IoSlice::new(&address)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&files));
    net::sendmsg(socket, &parts, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(|_| ())
}

/// The address and rings of a peer that has connected, once it has said so.
pub fn hear_hello(socket: &OwnedFd, user: Uid) -> io::Result<Option<(IpAddr, Buffer)>> {
    let mut hello = [0; HELLO_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = match net::recvmsg(socket, &mut [IoSliceMut::new(&mut hello)], &mut control, flags) {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let mut files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let (Some(file), true) = (files.next(), received.bytes == HELLO_BYTES && hello.starts_with(&HELLO)) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no hello, or of another version"));
    };
    if sockopt::socket_peercred(socket)?.uid != user {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut address = [0; 16];
    address.copy_from_slice(&hello[HELLO.len()..HELLO_BYTES]);
    let shared = Buffer::map_fd(file, 2 * RING_BYTES)?;
    Ok(Some((Ipv6Addr::from(address).to_canonical(), shared)))
}

/// What a doorbell said.
pub struct Heard {
    /// There is something in the ring.
    pub rung: bool,
    /// The peer is.
    pub gone: bool,
}

/// Takes the doorbell's bytes.
pub fn hear_rings(socket: &OwnedFd) -> Heard {
    let mut rung = false;
    for _ in 0..MAX_RINGS {
        match net::recv(socket, &mut [0u8; 1], RecvFlags::DONTWAIT) {
            Ok((_, 1..)) => rung = true,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Heard { rung, gone: false },
            Ok(_) | Err(_) => return Heard { rung, gone: true },
        }
    }
    Heard { rung, gone: false }
}

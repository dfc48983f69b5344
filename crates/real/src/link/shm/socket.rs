//! The sockets beside the rings: who is there, where the rings are, and the doorbell.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{BorrowedFd, OwnedFd};

use remora_memory::{Buffer, MAX_LOANS};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::process::Uid;

use super::ring::RING_BYTES;
use crate::messages::{hear_with, say_with};

/// What is heard of one peer at a look; a peer that says more is heard at the next.
const MAX_RINGS: usize = 16;

/// What the connecting end sends with the memory file: the protocol's name and version, and its IP address.
const HELLO: [u8; 8] = *b"remora\0\x03";
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
    say_with(socket, &parts, file)
}

/// The address and rings of a peer that has connected, once it has said so.
pub fn hear_hello(socket: &OwnedFd, user: Uid) -> io::Result<Option<(IpAddr, Buffer)>> {
    let mut hello = [0; HELLO_BYTES + 1];
    let (len, file) = match hear_with(socket, &mut hello, RecvFlags::DONTWAIT) {
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        heard => heard?,
    };
    let (Some(file), true) = (file, len == HELLO_BYTES && hello.starts_with(&HELLO)) else {
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

/// What comes over a socket beside the greeting, by its first byte: a doorbell; a loan, with its slot, its length and its file;
/// and that a loan is over.
const RING: u8 = 1;
const LOAN: u8 = 2;
const OVER: u8 = 3;
const LOAN_BYTES: usize = 10;

/// Rings. Fails if the peer is gone, which a look finds, or has more rings than it hears, which will do.
pub fn ring(socket: &OwnedFd) -> Result<(), Errno> {
    say(socket, &[RING])
}

/// Says that the loan in a slot is over.
pub fn say_over(socket: &OwnedFd, slot: usize) -> Result<(), Errno> {
    say(socket, &[OVER, slot as u8])
}

fn say(socket: &OwnedFd, message: &[u8]) -> Result<(), Errno> {
    net::send(socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(|_| ())
}

/// Lends a buffer of `len` bytes, which lie in `file`.
pub fn say_loan(socket: &OwnedFd, slot: usize, len: usize, file: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut message = [0; LOAN_BYTES];
    (message[0], message[1]) = (LOAN, slot as u8);
    message[2..].copy_from_slice(&(len as u64).to_ne_bytes());
    say_with(socket, &[IoSlice::new(&message)], file)
}

/// What a peer said.
pub enum Said {
    /// There is something in the ring.
    Ring,
    /// In this slot there is a loan of so many bytes of a file, which may be anything.
    Loan(usize, u64, OwnedFd),
    /// The loan in this slot is over.
    Over(usize),
    /// Nothing more for now, or nothing that is heard at this look.
    Nothing,
    /// The peer is gone, or says what none does.
    Gone,
}

/// Hears the next of what a peer says, at most [`MAX_RINGS`] of it at one look.
pub fn hear(socket: &OwnedFd, heard: &mut usize) -> Said {
    while *heard < MAX_RINGS {
        *heard += 1;
        let mut message = [0; LOAN_BYTES + 1];
        let (len, file) = match hear_with(socket, &mut message, RecvFlags::DONTWAIT) {
            Ok(heard) => heard,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => return Said::Nothing,
            Err(_) => return Said::Gone,
        };
        return match (message[0], len, file, usize::from(message[1])) {
            (RING, 1, None, _) => Said::Ring,
            (LOAN, LOAN_BYTES, Some(file), slot) if slot < MAX_LOANS => {
                let len = message[2..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
                Said::Loan(slot, len, file)
            }
            (OVER, 2, None, slot) if slot < MAX_LOANS => Said::Over(slot),
            _ => Said::Gone,
        };
    }
    Said::Nothing
}

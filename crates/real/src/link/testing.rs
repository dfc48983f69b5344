//! What the tests of the links share.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::process::Command;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use super::Link;

/// 127.0.0.n, a local address that needs no configuration.
pub fn ip(n: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, n))
}

/// Packets of these lengths back to back, each different, with room for an ICRC in their last four bytes.
pub fn packets(lens: &[u16]) -> (Vec<u8>, Vec<u16>) {
    let mut bytes = Vec::new();
    for (n, &len) in lens.iter().enumerate() {
        bytes.extend((0..len).map(|i| (usize::from(i) * 7 + n * 13) as u8));
    }
    (bytes, lens.to_vec())
}

/// Polls until `count` packets have come; panics where they do not come within [`remora_testing::PATIENCE`].
pub fn collect(link: &mut dyn Link, count: usize) -> Vec<(IpAddr, Vec<u8>)> {
    let mut got = Vec::new();
    let deadline = Instant::now() + remora_testing::PATIENCE;
    while got.len() < count {
        link.recv(&mut |from, packet| got.push((from, packet.to_vec()))).unwrap();
        assert!(Instant::now() < deadline, "{} of {count} packets came", got.len());
    }
    got
}

/// Whether a device that sleeps on the link's descriptors would wake now.
pub fn readable(link: &dyn Link) -> bool {
    let mut fds = Vec::new();
    link.wait_fds(&mut fds);
    // SAFETY: the link owns the descriptors and outlives this function.
    let mut fds: Vec<_> = fds.iter().map(|&fd| unsafe { BorrowedFd::borrow_raw(fd) }).collect();
    let mut fds: Vec<_> = fds.iter_mut().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

/// Runs `test` on a thread in a network namespace of its own, with `lo` up. Without the right to one it is skipped.
pub fn in_namespace(test: impl FnOnce() + Send + 'static) {
    std::thread::spawn(|| {
        if let Err(e) = enter_namespace() {
            return remora_testing::skip(format!("no new network namespace ({e})"), "Run it as root, with iproute2");
        }
        test();
    })
    .join()
    .unwrap();
}

/// Moves the calling thread, and the commands it starts, into a new network namespace with `lo` up.
pub fn enter_namespace() -> io::Result<()> {
    // SAFETY: only the calling thread leaves its network namespace, and its sockets stay where they were made.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET)? };
    ip_command("link set lo up")
}

/// Runs ip(8) in the calling thread's network namespace.
pub fn ip_command(arguments: &str) -> io::Result<()> {
    let status = Command::new("ip").args(arguments.split_whitespace()).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("ip {arguments}: {status}"))) }
}

/// Runs `test` in a network namespace joined to another by a veth pair, each end with its address in a /24. Skipped as
/// [`in_namespace`] is.
pub fn in_veth_pair(ours: Ipv4Addr, theirs: Ipv4Addr, test: impl FnOnce(&OtherNamespace) + Send + 'static) {
    in_namespace(move || {
        let here = own_namespace();
        enter_namespace().unwrap();
        let there = OtherNamespace(own_namespace());
        let here_path = format!("/proc/{}/fd/{}", std::process::id(), here.as_raw_fd());
        ip_command(&format!("link add theirs type veth peer name ours netns {here_path}")).unwrap();
        let configure = |name, address| {
            ip_command(&format!("address add {address}/24 dev {name}")).unwrap();
            ip_command(&format!("link set {name} up")).unwrap();
        };
        configure("theirs", theirs);
        move_into_link_name_space(here.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        configure("ours", ours);
        test(&there);
    });
}

/// The network namespace at the other end of a veth pair.
pub struct OtherNamespace(File);

impl OtherNamespace {
    /// Runs `make` there. Sockets that it makes stay there.
    pub fn run<R: Send>(&self, make: impl FnOnce() -> R + Send) -> R {
        let make = || {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            make()
        };
        std::thread::scope(|scope| scope.spawn(make).join().unwrap())
    }
}

fn own_namespace() -> File {
    File::open("/proc/thread-self/ns/net").unwrap()
}

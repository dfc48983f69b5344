//! Who of this user has a device on this host: a directory for each process, in memory, for as long as it lives.
//!
//! ```text
//! /dev/shm/remora-UID/PID.N/lock      locked while the process, or a child of it, lives
//!                           device    the device's address, and the process's command line
//!                           state     a socket: each connection is told how the device is doing
//! ```
//!
//! Other files in it are its owner's affair. What processes leave that were killed goes when the next one looks.

use std::fmt;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use remora_nic::Counters;

use crate::device::{Device, DeviceGuard};
use crate::link::{LinkKind, LinkStats};
use crate::sys::start_thread;

/// Where the directories of all of a user's processes are, without the user's ID: the first that can be.
const HOMES: [&str; 2] = ["/dev/shm/remora-", "/tmp/remora-"];

/// How long a process may take to say how its device is doing.
const ANSWER: Duration = Duration::from_secs(1);

/// The directory of this process.
#[derive(Debug)]
pub struct Presence {
    dir: PathBuf,
    _lock: File,
}

/// A process that has a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// Its process ID.
    pub process: u32,
    /// The device's address.
    pub address: IpAddr,
    /// The command line, its words separated by blanks.
    pub command: String,
    dir: PathBuf,
}

/// The directory of all of this user's processes, made if it is not there.
///
/// # Errors
///
/// What the system says; `PermissionDenied` if somebody else has taken the name.
fn home() -> io::Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let base = HOMES.iter().find(|home| Path::new(home).parent().is_some_and(Path::is_dir)).unwrap_or(&HOMES[0]);
    let home = PathBuf::from(format!("{base}{user}"));
    match DirBuilder::new().mode(0o700).create(&home) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let found = fs::symlink_metadata(&home)?;
    if !found.is_dir() || found.uid() != user || found.permissions().mode() & 0o077 != 0 {
        let message = format!("{} is not a directory of this user alone", home.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    home.canonicalize()
}

/// How a device is doing. All counts only grow, from 0 when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceState {
    /// Queue pairs that it has now.
    pub queue_pairs: u32,
    /// Packets sent again.
    pub retransmits: u64,
    /// What each of its links has carried.
    pub links: Vec<LinkState>,
}

/// What a link of a device has carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// What kind of link.
    pub kind: LinkKind,
    /// Messages sent: SENDs, WRITEs, READs and atomics.
    pub tx_messages: u64,
    /// Bytes of all packets sent, as IP packets.
    pub tx_bytes: u64,
    /// Messages of peers.
    pub rx_messages: u64,
    /// Bytes of all packets received, as IP packets.
    pub rx_bytes: u64,
}

/// What devices of one address have counted.
#[derive(Default)]
struct Summed {
    queue_pairs: u32,
    counters: Counters,
    links: Vec<(LinkKind, LinkStats)>,
}

impl Summed {
    fn add(&mut self, guard: &mut DeviceGuard<'_>) {
        self.queue_pairs += guard.nic().qp_count();
        self.counters.add(&guard.nic().counters());
        LinkStats::add_by_kind(&mut self.links, guard.link_stats());
    }

    fn state(self) -> DeviceState {
        let Self { queue_pairs, counters, links } = self;
        let count = |all: [u64; remora_nic::LINKS], link: usize| all.get(link).copied().unwrap_or(0);
        let links = links.into_iter().enumerate().map(|(link, (kind, stats))| LinkState {
            kind,
            tx_messages: count(counters.tx_messages, link),
            tx_bytes: stats.tx_bytes,
            rx_messages: count(counters.rx_messages, link),
            rx_bytes: stats.rx_bytes,
        });
        DeviceState { queue_pairs, retransmits: counters.retransmits, links: links.collect() }
    }
}

impl DeviceState {
    /// Of this device, now.
    pub fn of(guard: &mut DeviceGuard<'_>) -> Self {
        let mut sum = Summed::default();
        sum.add(guard);
        sum.state()
    }

    /// Of several devices of one address, which have the same links, together.
    pub fn of_all(devices: &[Device]) -> Self {
        let mut sum = Summed::default();
        devices.iter().for_each(|device| sum.add(&mut device.lock()));
        sum.state()
    }

    /// Whether any link has carried anything.
    pub fn is_used(&self) -> bool {
        self.links.iter().any(LinkState::is_used)
    }

    /// As processes tell it each other.
    fn to_text(&self) -> String {
        let links = self.links.iter().map(|link| {
            let LinkState { kind, tx_messages, tx_bytes, rx_messages, rx_bytes } = link;
            format!("{kind} {tx_messages} {tx_bytes} {rx_messages} {rx_bytes}\n")
        });
        format!("{} {}\n{}", self.queue_pairs, self.retransmits, links.collect::<String>())
    }

    fn from_text(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let (queue_pairs, retransmits) = lines.next()?.split_once(' ')?;
        let links = lines.map(|line| {
            let (kind, counts) = line.split_once(' ')?;
            let counts: Vec<u64> = counts.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
            let [tx_messages, tx_bytes, rx_messages, rx_bytes] = counts[..] else { return None };
            Some(LinkState { kind: kind.parse().ok()?, tx_messages, tx_bytes, rx_messages, rx_bytes })
        });
        Some(Self {
            queue_pairs: queue_pairs.parse().ok()?,
            retransmits: retransmits.parse().ok()?,
            links: links.collect::<Option<_>>()?,
        })
    }
}

impl LinkState {
    fn is_used(&self) -> bool {
        self.tx_bytes + self.rx_bytes > 0
    }
}

/// In words: which links carried what, and how often a packet was sent again.
impl fmt::Display for DeviceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used: Vec<&LinkState> = self.links.iter().filter(|link| link.is_used()).collect();
        if used.is_empty() {
            return f.write_str("no link carried anything");
        }
        for LinkState { kind, tx_messages, tx_bytes, rx_messages, rx_bytes } in used {
            let (sent, received) = (bytes(*tx_bytes), bytes(*rx_bytes));
            write!(f, "{kind} sent {tx_messages} messages ({sent}), received {rx_messages} ({received}); ")?;
        }
        write!(f, "{} packets sent again", self.retransmits)
    }
}

/// A number of bytes with a unit: `12 B`, `3.4 MB`.
pub fn bytes(count: u64) -> String {
    let units = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match units.into_iter().find(|(unit, _)| count >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", count as f64 / unit as f64),
        None => format!("{count} B"),
    }
}

/// Why a device cannot have an address, when a link there could not be bound.
pub fn refusal(address: IpAddr, error: &io::Error) -> String {
    let holder = holder(address).filter(|_| error.kind() == io::ErrorKind::AddrInUse);
    let keeper = holder.as_ref().map_or(0, Present::keeper);
    let why = match error.kind() {
        io::ErrorKind::AddrInUse => match holder {
            Some(Present { process, command, .. }) if process == keeper => {
                &format!("process {process} has it ({command})")
            }
            Some(Present { process, command, .. }) => {
                &format!("process {keeper} has it, a child of process {process} ({command}), which has ended")
            }
            None => "another device has it: give each process its own address",
        },
        io::ErrorKind::AddrNotAvailable => "no interface of this machine has it",
        _ => "it cannot be bound",
    };
    format!("device address {address}: {why} ({error})")
}

impl Presence {
    /// Makes the directory, and removes those of processes that are gone.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn enter() -> io::Result<Self> {
        let home = home()?;
        for stale in entries(&home)?.into_iter().filter(|dir| !lives(dir)) {
            let _ = fs::remove_dir_all(stale);
        }
        let process = std::process::id();
        for number in 0u32.. {
            // Made under a name that nobody looks for: without its lock it would be taken for a dead process's.
            let (dir, new) = (home.join(format!("{process}.{number}")), home.join(format!("new-{process}.{number}")));
            if dir.exists() {
                continue;
            }
            match fs::create_dir(&new) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            let lock = File::create_new(new.join("lock"))?;
            lock.try_lock().map_err(io::Error::from)?;
            fs::rename(&new, &dir)?;
            return Ok(Self { dir, _lock: lock });
        }
        unreachable!("there are fewer directories than numbers")
    }

    /// Where it is. No part of the path is a symbolic link.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Says that this process has a device at `address`. Each who asks is told its state, by a thread of its own.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn announce(
        &self,
        address: IpAddr,
        state: impl Fn() -> Option<DeviceState> + Send + 'static,
    ) -> io::Result<()> {
        let socket = UnixListener::bind(self.dir.join("state"))?;
        let new = self.dir.join("device.new");
        fs::write(&new, format!("{address}\n{}\n", command()))?;
        fs::rename(&new, self.dir.join("device"))?;
        let answer = move || {
            for mut caller in socket.incoming().flatten() {
                let _ = caller.set_write_timeout(Some(ANSWER));
                let _ = caller.write_all(state().unwrap_or_default().to_text().as_bytes());
            }
        };
        start_thread("remora-state", answer).map(drop)
    }

    /// Removes the directory: the process ends.
    pub fn leave(&self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The processes of this user on this host that have a device, in order of their IDs.
///
/// # Errors
///
/// What the system says.
pub fn present() -> io::Result<Vec<Present>> {
    let mut all: Vec<Present> =
        entries(&home()?)?.into_iter().filter(|dir| lives(dir)).filter_map(Present::read).collect();
    all.sort_by_key(|one| (one.process, one.address));
    Ok(all)
}

/// Who of this user has the device at `address`.
pub fn holder(address: IpAddr) -> Option<Present> {
    present().ok()?.into_iter().find(|one| one.address == address)
}

/// How much of a path is that of a process's directory; 0 if it does not lie in one.
pub fn root_len(path: &[u8]) -> usize {
    let Some(home) = HOMES.iter().find(|home| path.starts_with(home.as_bytes())) else { return 0 };
    let mut slashes = path.iter().enumerate().skip(home.len()).filter(|&(_, &b)| b == b'/').map(|(at, _)| at);
    let (_user, end) = (slashes.next(), slashes.next());
    end.unwrap_or(path.len())
}

/// Whether a path, of which the end may be cut off, may lie in a process's directory.
pub fn may_be_root(path: &[u8]) -> bool {
    HOMES.iter().any(|home| path.iter().zip(home.as_bytes()).all(|(a, b)| a == b))
}

impl Present {
    fn read(dir: PathBuf) -> Option<Self> {
        let process = dir.file_name()?.to_str()?.split('.').next()?.parse().ok()?;
        let text = fs::read_to_string(dir.join("device")).ok()?;
        let (address, command) = text.split_once('\n')?;
        Some(Self { process, address: address.parse().ok()?, command: command.trim_end().into(), dir })
    }

    /// The process that has its sockets now: where it has ended, a child that it left.
    pub fn keeper(&self) -> u32 {
        let lock = self.dir.join("lock");
        let keeps = |process: &u32| {
            let open = fs::read_dir(format!("/proc/{process}/fd")).ok();
            open.is_some_and(|open| open.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|path| path == lock)))
        };
        let others = fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut others = others.filter_map(|one| one.file_name().to_str()?.parse().ok());
        if keeps(&self.process) { self.process } else { others.find(keeps).unwrap_or(self.process) }
    }

    /// What it says of its device now.
    ///
    /// # Errors
    ///
    /// What the system says; a timeout if the process is stopped; `InvalidData` if it is of another version of Remora.
    pub fn state(&self) -> io::Result<DeviceState> {
        let mut socket = UnixStream::connect(self.dir.join("state"))?;
        socket.set_read_timeout(Some(ANSWER))?;
        let mut text = String::new();
        socket.read_to_string(&mut text)?;
        DeviceState::from_text(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

fn entries(home: &Path) -> io::Result<Vec<PathBuf>> {
    let is_process = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().first().is_some_and(u8::is_ascii_digit))
    };
    Ok(fs::read_dir(home)?.flatten().map(|entry| entry.path()).filter(is_process).collect())
}

/// Whether somebody holds the directory's lock.
fn lives(dir: &Path) -> bool {
    let lock = File::open(dir.join("lock"));
    lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
}

fn command() -> String {
    let words = fs::read("/proc/self/cmdline").unwrap_or_default();
    String::from_utf8_lossy(&words).trim_end_matches('\0').replace(['\0', '\n'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_device_is_found_and_answers() {
        let address: IpAddr = "127.88.0.1".parse().unwrap();
        let here = Presence::enter().unwrap();
        assert_eq!(holder(address), None, "nothing is announced yet");
        let link = LinkState { kind: LinkKind::Udp, tx_messages: 1, tx_bytes: 2_000, rx_messages: 3, rx_bytes: 4 };
        let state = DeviceState { queue_pairs: 3, retransmits: 5, links: vec![link] };
        let told = state.clone();
        here.announce(address, move || Some(told.clone())).unwrap();
        let found = holder(address).unwrap();
        assert_eq!(found.process, std::process::id());
        assert!(found.command.contains("remora"), "{}", found.command);
        assert_eq!(found.state().unwrap(), state);
        let in_use = io::Error::from(io::ErrorKind::AddrInUse);
        assert!(refusal(address, &in_use).contains(&format!("process {} has it", std::process::id())));
        assert_eq!(state.to_string(), "udp sent 1 messages (2.0 kB), received 3 (4 B); 5 packets sent again");
        here.leave();
        assert_eq!(holder(address), None);
    }

    #[test]
    fn paths_in_a_directory() {
        let cases = [("/dev/shm/remora-0/12.0/sys/class", 22), ("/tmp/remora-0/1.2", 17), ("/tmp/x/y/z", 0)];
        for (path, len) in cases {
            assert_eq!(root_len(path.as_bytes()), len, "{path}");
        }
    }

    #[test]
    fn sizes_have_units() {
        let said = [0, 999, 1_000, 3_440_000, 5_000_000_000].map(bytes);
        assert_eq!(said, ["0 B", "999 B", "1.0 kB", "3.4 MB", "5.0 GB"]);
    }

    #[test]
    fn what_the_dead_leave_goes() {
        let dead = Presence::enter().unwrap();
        let dir = dead.dir().to_path_buf();
        drop(dead);
        // Who looks at a directory has its lock for a moment, and others take it for alive.
        remora_testing::eventually("the directory is gone", || {
            Presence::enter().unwrap().leave();
            (!dir.exists()).then_some(())
        });
    }
}

//! A pair of rings between two processes of one host, by plain stores.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use remora_memory::Buffer;
use remora_real::Error;
use remora_ring::{PushError, RingError, RingShape, SharedEnd};

use crate::Result;

/// One end of a pair of rings between two processes of one user on one host: messages of any bytes, as long as a ring
/// is, in both directions. They are the rings that calls go by, in memory that both processes map: a message is a few
/// stores, and no system call.
///
/// One process [creates](Self::create) it and tells the other its [name](Self::name), which [opens](Self::open) it.
/// Nobody is woken: both look when they like. An end that is gone, in whatever way, is one that no longer reads or
/// writes; whoever has to know of that finds a way beside the ring. What the other writes is checked before it is
/// believed.
///
/// ```
/// # use remora::{HostRing, RingShape};
/// # fn main() -> remora::Result<()> {
/// let mut ours = HostRing::create(RingShape::default())?;
/// // In another process, which was told the name.
/// let mut theirs = HostRing::open(ours.name())?;
/// assert!(theirs.send(b"any bytes")?, "there is room");
///
/// let mut message = Vec::new();
/// while !ours.receive(&mut message)? {
///     std::hint::spin_loop();
/// }
/// assert_eq!(message, b"any bytes");
/// assert!(!ours.receive(&mut message)?, "no more");
/// # Ok(())
/// # }
/// ```
pub struct HostRing {
    end: SharedEnd,
    name: String,
    /// What the name names.
    _files: [OwnedFd; 2],
}

impl HostRing {
    /// A pair of rings of this shape. It is open to one other end for as long as this one lives.
    pub fn create(shape: RingShape) -> Result<Self> {
        let ring = || Buffer::shared(Self::bytes(shape)).map_err(system);
        let ((ours, our_file), (theirs, their_file)) = (ring()?, ring()?);
        let (pid, entries, entry) = (std::process::id(), shape.entries(), shape.entry());
        let name = format!("{pid}-{}-{}-{entries}-{entry}", our_file.as_raw_fd(), their_file.as_raw_fd());
        Ok(Self { end: SharedEnd::new(shape, &theirs, &ours), name, _files: [our_file, their_file] })
    }

    /// The other end of a pair that a process of this user has made.
    pub fn open(name: &str) -> Result<Self> {
        let wrong =
            || Error::Argument(format!("{name:?} is no name of a ring, which are five numbers with `-` between them"));
        let numbers: Vec<u32> =
            name.split('-').map(str::parse).collect::<std::result::Result<_, _>>().map_err(|_| wrong())?;
        let [pid, theirs, ours, entries, entry] = numbers[..] else { return Err(wrong()) };
        let shape = RingShape::new(entries, entry).map_err(|e| Error::Argument(e.to_string()))?;
        let file = |fd: u32| OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/fd/{fd}"));
        let map = |file: &File| Buffer::map_fd(file.as_fd(), Self::bytes(shape));
        let gone = |e: io::Error| {
            let has = format!("is process {pid} one of this user's and this host's, and has it the other end still?");
            Error::Argument(format!("the ring {name} cannot be opened: {e}: {has}"))
        };
        let (our_file, their_file) = (file(ours).map_err(gone)?, file(theirs).map_err(gone)?);
        let (ours, theirs) = (map(&our_file).map_err(gone)?, map(&their_file).map_err(gone)?);
        // The word behind the ring of who made it says whether somebody has opened it.
        if theirs.compare_swap(shape.memory(), 0, 1) != Ok(0) {
            return Err(Error::Argument(format!("the ring {name} has both of its ends already")));
        }
        let _files = [our_file.into(), their_file.into()];
        Ok(Self { end: SharedEnd::new(shape, &theirs, &ours), name: name.into(), _files })
    }

    /// Of a ring's memory file.
    fn bytes(shape: RingShape) -> usize {
        shape.memory() + 8
    }

    /// What another process opens it by: a line of text.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of the longest message.
    pub fn longest(&self) -> usize {
        self.end.shape().longest()
    }

    /// Sends a message. False if there is no room for it until the other end has read some.
    pub fn send(&mut self, message: &[u8]) -> Result<bool> {
        let pushed = self.end.push(&[message]).map_err(broken)?;
        self.end.tell();
        match pushed {
            Ok(()) => Ok(true),
            Err(PushError::Full) => Ok(false),
            Err(too_long) => Err(Error::Argument(too_long.to_string())),
        }
    }

    /// Takes the next message, which replaces what `message` held. False if there is none.
    pub fn receive(&mut self, message: &mut Vec<u8>) -> Result<bool> {
        let is_one = self.end.poll(message).map_err(broken)?;
        if is_one {
            self.end.tell();
        }
        Ok(is_one)
    }
}

fn system(source: io::Error) -> Error {
    Error::System { what: "sharing a ring with another process", source }
}

fn broken(error: RingError) -> Error {
    Error::System { what: "reading a ring that another process fills", source: io::Error::other(error) }
}

impl std::fmt::Debug for HostRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostRing({}, {:?})", self.name, self.end.shape())
    }
}

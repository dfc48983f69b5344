//! The low-power unit's daemon: processes of a user tell it of their connections, and it gives both ends of each a buffer.
//!
//! [`Meeting`] decides; here are the sockets and the memory. A section is a memory file, passed to the two processes whose
//! connections lie in it and to nobody else, and sealed so that neither can cut it short under the other. The daemon touches
//! no byte of it. When it ends, connections that have their buffer go on; others stay the kernel's.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use remora_memory::Buffer;
use remora_rack::frame::{LONGEST, Reply, Request, name};
use remora_rack::layout::{HALF_BYTES, LINK_BYTES, WORDS_BYTES};
use remora_rack::{FabricAddress, Introduction, Meeting, MeetingConfig, NodeId, SECTION_BYTES, Section};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::net::{
    self, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, sockopt,
};
use rustix::process::Uid;

use crate::link::unix_socket;
use crate::sys::Sleeper;

/// Messages taken from a process before the next has its turn.
const BATCH: usize = 64;

/// How large a rack is.
#[derive(Clone, Copy, Debug)]
pub struct RackConfig {
    /// Bytes of memory for connections, all together.
    pub memory: u64,
}

/// What the daemon has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RackFigures {
    /// Processes that are here now.
    pub processes: usize,
    /// Connections that have a buffer now.
    pub connections: usize,
    /// Connections that have had one.
    pub met: u64,
    /// Sections that are free.
    pub free_sections: usize,
}

struct Process {
    socket: OwnedFd,
    /// It has said hello.
    known: bool,
}

/// The daemon of one user in one network namespace.
pub struct RackDaemon {
    listener: OwnedFd,
    user: Uid,
    meeting: Meeting,
    processes: BTreeMap<NodeId, Process>,
    sections: BTreeMap<Section, OwnedFd>,
    next: u32,
    met: u64,
    sleeper: Sleeper,
}

impl RackDaemon {
    /// Begins to listen.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if the user has one already.
    pub fn bind(config: RackConfig) -> io::Result<Self> {
        let user = rustix::process::geteuid();
        let listener = unix_socket()?;
        net::bind(&listener, &SocketAddrUnix::new_abstract_name(name(user.as_raw()).as_bytes())?)?;
        net::listen(&listener, 1024)?;
        let sections = u32::try_from(config.memory / SECTION_BYTES).unwrap_or(u32::MAX);
        let meeting = MeetingConfig { sections, buffer_bytes: LINK_BYTES as u64, waiting: 1 << 16 };
        let meeting = Meeting::new(meeting).map_err(io::Error::other)?;
        let (processes, sections) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { listener, user, meeting, processes, sections, next: 1, met: 0, sleeper: Sleeper::new() })
    }

    /// Whether a daemon of this user listens here.
    pub fn is_there() -> bool {
        let user = rustix::process::geteuid();
        let there = || {
            let socket = unix_socket()?;
            net::connect(&socket, &SocketAddrUnix::new_abstract_name(name(user.as_raw()).as_bytes())?)?;
            io::Result::Ok(sockopt::socket_peercred(&socket)?.uid == user)
        };
        there().unwrap_or(false)
    }

    /// What there is.
    pub fn figures(&self) -> RackFigures {
        RackFigures {
            processes: self.processes.values().filter(|process| process.known).count(),
            connections: self.meeting.connections(),
            met: self.met,
            free_sections: self.meeting.pool().free_sections(),
        }
    }

    /// Whether nobody is connected.
    pub fn is_alone(&self) -> bool {
        self.processes.is_empty()
    }

    /// Does what there is to do, after sleeping until there is something or `timeout` has passed.
    ///
    /// # Errors
    ///
    /// What the kernel says when it has no descriptors left.
    pub fn turn(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let sockets = self.processes.values().map(|process| process.socket.as_raw_fd());
        let listener = self.listener.as_raw_fd();
        self.sleeper.add(|fds| fds.extend(sockets.chain([listener])));
        self.sleeper.sleep(timeout);
        self.sleeper.clear();
        self.accept()?;
        let nodes: Vec<NodeId> = self.processes.keys().copied().collect();
        for node in nodes {
            if !self.serve(node) {
                self.processes.remove(&node);
                let freed = self.meeting.node_died(node);
                self.let_go(&freed);
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            match net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    if sockopt::socket_peercred(&socket)?.uid == self.user {
                        self.processes.insert(NodeId(self.next), Process { socket, known: false });
                        self.next = self.next.wrapping_add(1);
                    }
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Hears a process. False if it is gone, or says what nobody says.
    fn serve(&mut self, node: NodeId) -> bool {
        for _ in 0..BATCH {
            let Some(process) = self.processes.get_mut(&node) else { return false };
            let mut bytes = [0; LONGEST + 1];
            let request = match net::recv(&process.socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((len, _)) if len > 0 => Request::parse(&bytes[..len.min(bytes.len())]),
                Err(Errno::AGAIN | Errno::INTR) => return true,
                Ok(_) | Err(_) => return false,
            };
            match (process.known, request) {
                (false, Ok(Request::Hello { .. })) => process.known = true,
                (true, Ok(Request::Attach(key, end))) => {
                    if let Some(told) = self.meeting.attach(node, key, end)
                        && self.prepare(told[0].buffer)
                    {
                        self.met += 1;
                        told.iter().for_each(|told| self.tell(told));
                    }
                }
                (true, Ok(Request::Detach(key, end, reusable))) => {
                    let freed = self.meeting.detach(node, key, end, reusable);
                    self.let_go(&freed);
                }
                _ => return false,
            }
        }
        true
    }

    /// Sees to it that a buffer has memory, and that both ends find its words zero. False if there is no memory.
    fn prepare(&mut self, buffer: FabricAddress) -> bool {
        let section = buffer.section();
        if let Some(file) = self.sections.get(&section) {
            // An earlier connection of the same two processes may have had it.
            let starts = [0, HALF_BYTES as u64].map(|half| buffer.offset() + half);
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            return starts.iter().all(|start| rustix::fs::fallocate(file, flags, *start, WORDS_BYTES as u64).is_ok());
        }
        let Ok((_, file)) = Buffer::shared(SECTION_BYTES as usize) else { return false };
        self.sections.insert(section, file);
        true
    }

    /// Passes a buffer's section to a process. One that does not listen stays with the kernel.
    fn tell(&self, told: &Introduction) {
        let section = told.buffer.section();
        let (Some(file), Some(process)) = (self.sections.get(&section), self.processes.get(&told.node)) else { return };
        let offset = told.buffer.offset() as u32;
        let bytes = Reply::Matched { key: told.key, end: told.end, section: section.0, offset }.emit();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&files));
        let parts = [io::IoSlice::new(bytes.as_slice())];
        let _ = net::sendmsg(&process.socket, &parts, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// A section that is free has no memory: the next who takes it gets a new file.
    fn let_go(&mut self, freed: &[Section]) {
        freed.iter().for_each(|section| {
            self.sections.remove(section);
        });
    }
}

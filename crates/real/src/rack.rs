//! The low-power unit's daemon: processes of a user tell it of their connections, and it gives both ends of each a buffer.
//!
//! [`Meeting`] decides; here are the sockets and the memory. A section is a memory file, passed to the two processes whose
//! connections lie in it and to nobody else, and sealed so that neither can cut it short under the other. The daemon touches
//! no byte of it. When it ends, connections that have their buffer go on; others stay the kernel's.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use remora_memory::Buffer;
use remora_rack::frame::{LONGEST, Reply, Request, name};
use remora_rack::layout::{HALF_BYTES, LINK_BYTES, WORDS_BYTES};
use remora_rack::{FabricAddress, Introduction, Meeting, MeetingConfig, NodeId, SECTION_BYTES, Section};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SocketAddrUnix, SocketFlags, sockopt};
use rustix::process::Uid;

use crate::link::unix_socket;
use crate::messages::say_with;
use crate::sys::Sleeper;

/// Messages taken from a process before the next has its turn, and connections before those that are there have theirs.
const BATCH: usize = 64;
/// How long nobody is let in once there is no descriptor left for one.
const FULL: Duration = Duration::from_millis(100);

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
    /// What there was no room for when it was to be told.
    unsaid: VecDeque<Introduction>,
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
    /// Nobody is let in before.
    full_until: Option<Instant>,
}

impl RackDaemon {
    /// Begins to listen.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if the user has one already.
    pub fn bind(config: RackConfig) -> io::Result<Self> {
        let user = rustix::process::geteuid();
        Self::under(&name(user.as_raw()), user, config)
    }

    fn under(name: &str, user: Uid, config: RackConfig) -> io::Result<Self> {
        let listener = unix_socket()?;
        net::bind(&listener, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        net::listen(&listener, 1024)?;
        let sections = u32::try_from(config.memory / SECTION_BYTES).unwrap_or(u32::MAX);
        let meeting = MeetingConfig { sections, buffer_bytes: LINK_BYTES as u64, waiting: 1 << 16 };
        let meeting = Meeting::new(meeting).map_err(io::Error::other)?;
        let (processes, sections) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self {
            listener,
            user,
            meeting,
            processes,
            sections,
            next: 1,
            met: 0,
            sleeper: Sleeper::new(),
            full_until: None,
        })
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

    /// Does what there is to do, after sleeping until there is something or `timeout` has passed. While there are no descriptors
    /// left nobody is let in, and those who are here are served.
    ///
    /// # Errors
    ///
    /// What the kernel says of the daemon's own socket.
    pub fn turn(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let sockets = self.processes.values().map(|process| process.socket.as_raw_fd());
        let now = Instant::now();
        self.full_until = self.full_until.filter(|until| *until > now);
        // Who waits there would wake it for nothing.
        let listener = self.full_until.is_none().then(|| self.listener.as_raw_fd());
        self.sleeper.add(|fds| fds.extend(sockets.chain(listener)));
        let deaf = self.processes.values().filter(|process| !process.unsaid.is_empty());
        deaf.for_each(|process| self.sleeper.add_full(process.socket.as_raw_fd()));
        let full = self.full_until.map(|until| until - now);
        self.sleeper.sleep([timeout, full].into_iter().flatten().min());
        self.sleeper.clear();
        if self.full_until.is_none() {
            self.accept()?;
        }
        let nodes: Vec<NodeId> = self.processes.keys().copied().collect();
        for node in nodes {
            self.tell_rest(node);
            if !self.serve(node) {
                self.processes.remove(&node);
                let freed = self.meeting.node_died(node);
                self.let_go(&freed);
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..BATCH {
            match net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    if sockopt::socket_peercred(&socket).is_ok_and(|peer| peer.uid == self.user) {
                        self.processes
                            .insert(NodeId(self.next), Process { socket, known: false, unsaid: VecDeque::new() });
                        self.next = self.next.wrapping_add(1);
                    }
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(()),
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    if !self.make_room(true) {
                        self.full_until = Some(Instant::now() + FULL);
                        return Ok(());
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Lets the first one go that has never said a word, and has been here for nothing. False if there is none. What one has just
    /// said may not have been heard yet: unless others are served amid this, it has to come again.
    fn make_room(&mut self, serves: bool) -> bool {
        let silent: Vec<NodeId> =
            self.processes.iter().filter(|(_, process)| !process.known).map(|(node, _)| *node).collect();
        let found = silent.into_iter().find(|node| !serves || !self.serve(*node) || !self.processes[node].known);
        if let Some(node) = found {
            self.processes.remove(&node);
            let freed = self.meeting.node_died(node);
            self.let_go(&freed);
        }
        found.is_some()
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
                (true, Ok(Request::Attach(endpoint))) => {
                    let (freed, told) = self.meeting.attach(node, endpoint);
                    self.let_go(&freed);
                    if let Some(told) = told
                        && self.prepare(told[0].buffer)
                    {
                        self.met += 1;
                        told.iter().for_each(|told| self.tell(told));
                    }
                }
                (true, Ok(Request::Detach(endpoint, reusable))) => {
                    let freed = self.meeting.detach(node, endpoint, reusable);
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
        let file = loop {
            match Buffer::shared(SECTION_BYTES as usize) {
                Ok((_, file)) => break file,
                // What else is said might end the connection that this is for.
                Err(_) if self.make_room(false) => {}
                Err(_) => return false,
            }
        };
        self.sections.insert(section, file);
        true
    }

    /// Passes a buffer's section to a process: at once, or when it has heard what it was told before.
    fn tell(&mut self, told: &Introduction) {
        let Some(process) = self.processes.get(&told.node) else { return };
        if process.unsaid.is_empty() && self.say(process, told) {
            return;
        }
        let Some(process) = self.processes.get_mut(&told.node) else { return };
        // Of what it says there is an end, too: there are no more of these than it has connections.
        if process.unsaid.len() >= BATCH && process.unsaid.len().is_power_of_two() {
            process.unsaid.retain(|told| self.meeting.is_current(told));
        }
        process.unsaid.push_back(*told);
    }

    fn tell_rest(&mut self, node: NodeId) {
        while let Some(process) = self.processes.get(&node)
            && let Some(told) = process.unsaid.front()
            // It may be over by now, and somebody else have its section.
            && (!self.meeting.is_current(told) || self.say(process, told))
        {
            self.processes.get_mut(&node).and_then(|process| process.unsaid.pop_front());
        }
    }

    /// False if there is no room for it now.
    fn say(&self, process: &Process, told: &Introduction) -> bool {
        let section = told.buffer.section();
        let Some(file) = self.sections.get(&section) else { return true };
        let offset = told.buffer.offset() as u32;
        let bytes = Reply::Matched { endpoint: told.endpoint, section: section.0, offset }.emit();
        !matches!(
            say_with(&process.socket, &[io::IoSlice::new(bytes.as_slice())], file),
            Err(Errno::AGAIN | Errno::INTR)
        )
    }

    /// A section that is free has no memory: the next who takes it gets a new file.
    fn let_go(&mut self, freed: &[Section]) {
        freed.iter().for_each(|section| {
            self.sections.remove(section);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use remora_rack::{Endpoint, Key};
    use rustix::net::SendFlags;

    /// Answers that a process does not hear at once wait for it, until what they tell of is over.
    #[test]
    fn who_hears_late_hears_all_that_still_counts() {
        let name = format!("remora/test/{}", std::process::id());
        let user = rustix::process::geteuid();
        let mut daemon = RackDaemon::under(&name, user, RackConfig { memory: 1 << 30 }).unwrap();
        let socket = unix_socket().unwrap();
        net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        let say = |daemon: &mut RackDaemon, request: Request| {
            net::send(&socket, request.emit().as_slice(), SendFlags::empty()).unwrap();
            daemon.turn(Some(Duration::ZERO)).unwrap();
        };
        let ends = |port: u16| {
            let (own, peer) = (([127, 0, 0, 1], port).into(), ([127, 0, 0, 1], 80).into());
            [(own, peer), (peer, own)].map(|(own, peer)| {
                let (key, end) = Key::new(1, own, peer);
                Endpoint { key, end, cookie: 7 }
            })
        };
        say(&mut daemon, Request::Hello { process: 1 });
        let ports = 1000..2000;
        for port in ports.clone() {
            ends(port).into_iter().for_each(|end| say(&mut daemon, Request::Attach(end)));
            if port % 2 == 1 {
                ends(port).into_iter().for_each(|end| say(&mut daemon, Request::Detach(end, true)));
            }
        }
        assert!(!daemon.processes[&NodeId(1)].unsaid.is_empty(), "it was told more than it has room for");
        let mut heard = BTreeMap::new();
        let mut bytes = [0; LONGEST];
        for _ in 0..10_000 {
            daemon.turn(Some(Duration::ZERO)).unwrap();
            while let Ok((len, _)) = net::recv(&socket, &mut bytes, RecvFlags::DONTWAIT) {
                let Reply::Matched { endpoint, .. } = Reply::parse(&bytes[..len]).unwrap();
                *heard.entry(endpoint.key).or_insert(0) += 1;
            }
        }
        let open: Vec<Key> = ports.filter(|port| port % 2 == 0).map(|port| ends(port)[0].key).collect();
        assert!(open.iter().all(|key| heard.get(key) == Some(&2)), "both ends of all that are open");
        assert!(heard.len() < 1000 && daemon.processes[&NodeId(1)].unsaid.is_empty(), "little of what is over");
        assert_eq!(
            daemon.figures(),
            RackFigures { processes: 1, connections: 500, met: 1000, free_sections: 512 - 250 }
        );
    }
}

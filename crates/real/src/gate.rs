//! The gate between two racks: programs' connections to the other one go by every NIC there is (DFabric, section 4.4).
//!
//! A gate is itself a program of its rack. One that is to connect to an address of the other rack asks the gate first, which
//! asks the other one; there, a connection is made to whom it is meant for. Both programs then talk to the gate of their own
//! rack, as to any other program of it, and the gates pass the bytes on in the streams of a [`Trunk`]. What closes or resets
//! one end does so at the other.
//!
//! Where the kernel has a way of its own there, a connection begins as the kernel's between the two programs. It comes to the
//! gates if it turns out to have much to carry (`going_on`).

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use remora_rack::frame::{GATE_SOURCE, GateAnswer, LONGEST, Question, gate_name};
use remora_rack::{FlowId, Refusal, StreamEvent};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, sockopt};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::Error;
use crate::link::unix_socket;
use crate::messages::hear_with;
use crate::trunk::{Trunk, TrunkConfig, TrunkSleeper};

use going_on::{Before, Wanted, Ways};

mod going_on;

/// How long a connection may take to be made, in the other rack and from the own program.
const MAKING: Duration = Duration::from_secs(5);
/// Connections that programs ask for at a time.
const ASKERS: usize = 64;
/// Bytes that are read or written at once.
const PIECE: usize = 128 << 10;
/// What has no more bytes goes on by the thread that has them at hand: another one would have to wake first, which takes longer.
/// More are moved beside the others.
const SHORT: usize = 16 << 10;
/// The stack of a thread that moves bytes.
const STACK: usize = 128 << 10;

/// What a gate has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GateFigures {
    /// NICs that are connected to the other rack.
    pub nics_up: usize,
    /// Connections now.
    pub connections: usize,
    /// Connections that there have been.
    pub made: u64,
    /// Bytes that each NIC has brought over, in the order of the ways.
    pub carried: Vec<u64>,
}

/// One end of the way to another rack.
pub struct Gate {
    shared: Arc<Shared>,
    sleeper: TrunkSleeper,
}

struct Shared {
    inside: Mutex<Inside>,
    waker: TrunkSleeper,
    ways: Ways,
    /// Whether this rack is the one that calls: it also says which connections of the kernel's go on here.
    calls: bool,
    askers: AtomicUsize,
    made: AtomicU64,
}

struct Inside {
    trunk: Trunk,
    /// Connections by their streams.
    passages: HashMap<FlowId, Passage>,
    answers: HashMap<FlowId, Result<(), Refusal>>,
    /// Who is behind this gate's connections to programs of the own rack, by their addresses here.
    origins: HashMap<SocketAddr, SocketAddr>,
    /// Connections of the kernel's that have much to carry, by their own address and the peer's.
    wanted: HashMap<(SocketAddr, SocketAddr), Wanted>,
    /// When those of which nobody asks again were forgotten last.
    forgot_at: Instant,
}

/// A connection that passes.
#[derive(Default)]
struct Passage {
    /// Who waits for its answer, its bytes or its end.
    told: Arc<Condvar>,
    /// Who waits for room for the program's bytes.
    room: Arc<Condvar>,
    /// Who waits for the end of both directions.
    over: Arc<Condvar>,
    /// The program's connection, once there is one.
    stream: Option<Arc<TcpStream>>,
    /// The thread that writes to it waits for bytes: others may write.
    idle: bool,
    /// All was written to it, and nobody waits.
    ended: bool,
    /// The kernel's connection that it has begun as.
    before: Option<Before>,
}

/// What a question of a program has led to: its connection, and what it has begun as.
type Made = (FlowId, TcpStream, Option<Before>);

impl Gate {
    /// Opens it: programs can ask from now on.
    ///
    /// # Errors
    ///
    /// An address that is not this host's or has a NIC already, no memory, or a gate of this user that is there already
    /// (`AddrInUse`).
    pub fn new(config: TrunkConfig) -> Result<Self, Error> {
        let (ways, calls) = (Ways::new(&config.ways), config.calls);
        let user = rustix::process::geteuid();
        let listening = || {
            let listener = unix_socket()?;
            net::bind(&listener, &SocketAddrUnix::new_abstract_name(gate_name(user.as_raw()).as_bytes())?)?;
            net::listen(&listener, 256)?;
            rustix::io::ioctl_fionbio(&listener, false)?;
            io::Result::Ok(listener)
        };
        let listener = listening().map_err(|source| Error::System { what: "the gate's socket", source })?;
        let trunk = Trunk::new(config)?;
        let (sleeper, waker) = (trunk.sleeper(), trunk.sleeper());
        let (passages, answers, origins) = (HashMap::new(), HashMap::new(), HashMap::new());
        let inside =
            Mutex::new(Inside { trunk, passages, answers, origins, wanted: HashMap::new(), forgot_at: Instant::now() });
        let (askers, made) = (AtomicUsize::new(0), AtomicU64::new(0));
        let shared = Arc::new(Shared { inside, waker, ways, calls, askers, made });
        let asked = shared.clone();
        spawn("gate", move || asked.listen(&listener)).map_err(|source| Error::System { what: "a thread", source })?;
        Ok(Self { shared, sleeper })
    }

    /// What there is.
    pub fn figures(&self) -> GateFigures {
        let inside = self.shared.inside.lock();
        GateFigures {
            nics_up: inside.trunk.nics_connected(),
            connections: inside.passages.len(),
            made: self.shared.made.load(Ordering::Relaxed),
            carried: inside.trunk.carried(),
        }
    }

    /// Does what there is to do; if there has been nothing for a while, sleeps until there is or `timeout` has passed.
    ///
    /// # Errors
    ///
    /// What a device refuses.
    pub fn turn(&mut self, timeout: Duration) -> Result<(), Error> {
        let mut inside = self.shared.inside.lock();
        let driven = inside.trunk.drive()?;
        while let Some(event) = inside.trunk.poll_event() {
            match event {
                StreamEvent::Asked { flow, to, from, goes_on: false } => self.shared.asked(&mut inside, flow, to, from),
                StreamEvent::Asked { flow, to, from, goes_on: true } => inside.asked_to_go_on(flow, to, from),
                StreamEvent::Answered { flow, answer } => {
                    if !inside.answered_to_go_on(flow, answer) {
                        inside.answers.insert(flow, answer);
                        inside.notify(flow);
                    }
                }
                StreamEvent::Changed(flow) => inside.changed(flow),
                StreamEvent::Reset(flow) => {
                    inside.lost_before(flow);
                    inside.notify(flow);
                    // Who passes bytes on there passes on what came before, and tells the program then.
                    let ended = inside.passages.get(&flow).filter(|passage| passage.ended);
                    if let Some(stream) = ended.and_then(|passage| passage.stream.as_ref()) {
                        reset(stream);
                    }
                }
                StreamEvent::Gone(flow) => inside.notify(flow),
            }
        }
        inside.forget_wanted();
        let pause = inside.trunk.pause(timeout);
        MutexGuard::unlock_fair(inside);
        self.sleeper.rest(driven, pause);
        Ok(())
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // Threads may still have the rest.
        self.shared.inside.lock().trunk.hang_up();
    }
}

fn spawn(name: &str, what: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).stack_size(STACK).spawn(what).map(drop)
}

impl Inside {
    fn notify(&self, flow: FlowId) {
        if let Some(Passage { told, room, over, .. }) = self.passages.get(&flow) {
            told.notify_all();
            room.notify_all();
            over.notify_all();
        }
    }

    /// A stream has bytes, room, or an end. Few bytes go to the program at once, if it takes them.
    fn changed(&mut self, flow: FlowId) {
        self.hear_before(flow);
        let Some(Passage { told, room, stream, idle, .. }) = self.passages.get(&flow) else { return };
        room.notify_all();
        if let Some(stream) = stream.as_ref().filter(|_| *idle) {
            let mut failed = false;
            let send = |bytes: &[u8]| {
                let sent = SockRef::from(stream).send_with_flags(bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
                failed |= sent
                    .as_ref()
                    .is_err_and(|e| !matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted));
                sent.unwrap_or(0)
            };
            let left = self.trunk.pass(flow, SHORT, send);
            if failed {
                // It is told of once: who reads there would take it for an end.
                self.trunk.close(flow);
            } else if left == 0 && !self.trunk.is_lost(flow) && !self.trunk.is_finished(flow) {
                return;
            }
        }
        told.notify_all();
    }

    /// Waits at one of a stream's two.
    fn wait(
        inside: &mut MutexGuard<'_, Self>,
        flow: FlowId,
        at: impl FnOnce(&Passage) -> &Arc<Condvar>,
        end: Option<Instant>,
    ) {
        let Some(waiting) = inside.passages.get(&flow).map(|passage| at(passage).clone()) else { return };
        // It may have been lost in the moment before, of which nobody tells again.
        let soon = Instant::now() + Duration::from_secs(1);
        waiting.wait_until(inside, end.map_or(soon, |end| end.min(soon)));
    }
}

impl Shared {
    /// The other rack wants a connection to a program of this one.
    fn asked(self: &Arc<Self>, inside: &mut Inside, flow: FlowId, to: SocketAddr, from: SocketAddr) {
        if !self.ways.lead_from(to.ip()) {
            return inside.trunk.answer(flow, Err(Refusal::NoWay));
        }
        inside.passages.insert(flow, Passage::default());
        let shared = self.clone();
        let connecting = spawn("gate in", move || {
            let stream = shared.connect(flow, to, from);
            let answer = stream.as_ref().map(|_| ()).map_err(|e| match e.kind() {
                io::ErrorKind::ConnectionRefused => Refusal::Refused,
                io::ErrorKind::TimedOut => Refusal::TimedOut,
                // What this rack lacks says nothing of the server.
                _ => Refusal::TooMany,
            });
            shared.inside.lock().trunk.answer(flow, answer);
            shared.waker.wake();
            match stream {
                Ok((stream, own)) => shared.carry((flow, stream, None), Some(own)),
                Err(_) => drop(shared.inside.lock().passages.remove(&flow)),
            }
        });
        if connecting.is_err() {
            inside.passages.remove(&flow);
            inside.trunk.answer(flow, Err(Refusal::TooMany));
        }
    }

    /// Connects to a program of this rack. Returns the own address, too.
    fn connect(&self, flow: FlowId, to: SocketAddr, from: SocketAddr) -> io::Result<(TcpStream, SocketAddr)> {
        let source = match to {
            SocketAddr::V4(_) => IpAddr::V4(GATE_SOURCE),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        };
        let socket = Socket::new(Domain::for_address(to), Type::STREAM.cloexec(), Some(Protocol::TCP))?;
        ends_by_reset(&socket);
        socket.bind(&SocketAddr::new(source, 0).into())?;
        let own = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
        self.inside.lock().origins.insert(own, from);
        match socket.connect_timeout(&to.into(), MAKING / 2) {
            Ok(()) => Ok((socket.into(), own)),
            Err(e) => {
                let mut inside = self.inside.lock();
                inside.origins.remove(&own);
                inside.passages.remove(&flow);
                Err(e)
            }
        }
    }

    /// Processes that ask.
    fn listen(self: &Arc<Self>, listener: &OwnedFd) {
        let user = rustix::process::geteuid();
        loop {
            match net::accept_with(listener, SocketFlags::CLOEXEC) {
                Ok(asker) => {
                    if sockopt::socket_peercred(&asker).is_ok_and(|peer| peer.uid == user) {
                        let shared = self.clone();
                        // Who gets no answer goes by the kernel.
                        let _ = spawn("gate out", move || {
                            let made = shared.hear(&asker);
                            drop(asker);
                            if let Some(made) = made {
                                shared.carry(made, None);
                            }
                        });
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                // No descriptors, mostly: there may be some soon.
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Hears a question and answers it. Returns the connection that came of it.
    fn hear(&self, asker: &OwnedFd) -> Option<Made> {
        let _ = sockopt::set_socket_timeout(asker, sockopt::Timeout::Recv, Some(MAKING));
        let (question, file) = heard(asker)?;
        let say = |answer: GateAnswer| {
            net::send(asker, answer.emit().as_slice(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok()
        };
        let (to, bound) = match question {
            Question::Reach { to, own } => (to, own),
            Question::Whither { to } => {
                let is_direct = |way| self.inside.lock().trunk.is_up(way) && self.ways.are_kernels(way);
                say(match self.ways.lead_to(to) {
                    Some((way, _)) if is_direct(way) => GateAnswer::Direct,
                    Some(_) => GateAnswer::Leads,
                    None => GateAnswer::No,
                });
                return None;
            }
            Question::Whence { peer } => {
                let from = self.inside.lock().origins.get(&peer).copied();
                say(from.map_or(GateAnswer::No, |from| GateAnswer::Origin { from }));
                return None;
            }
            Question::Much => return self.much(asker, file?.into(), say),
            Question::Moved { .. } => return None,
        };
        let Some((_, own)) = self.ways.lead_to(to.ip()) else {
            say(GateAnswer::No);
            return None;
        };
        // Others are told meanwhile who it is that comes.
        let few = self.askers.fetch_add(1, Ordering::Relaxed) < ASKERS;
        let made = if few { self.lead(to, own, bound, say) } else { None };
        self.askers.fetch_sub(1, Ordering::Relaxed);
        made.map(|(flow, stream)| (flow, stream, None))
    }

    /// Leads a program that is bound to an address to the other rack, by `own` if it is bound to any. Returns its connection.
    fn lead(
        &self,
        to: SocketAddr,
        own: IpAddr,
        bound: SocketAddr,
        say: impl Fn(GateAnswer) -> bool,
    ) -> Option<(FlowId, TcpStream)> {
        let loopback = match to {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        };
        let bound_to = |any| SocketAddr::new(if bound.ip().is_unspecified() { any } else { bound.ip() }, bound.port());
        let (own, comes) = (bound_to(own), bound_to(loopback));
        // First, so that nobody is asked in vain.
        let listener = TcpListener::bind((loopback, 0)).and_then(|at| Ok((at.local_addr()?, at)));
        let made = listener.map_err(|_| Refusal::NoWay).and_then(|at| Ok((self.reach(to, own)?, at)));
        let (flow, (at, listener)) = match made {
            Ok(made) => made,
            Err(why) => {
                say(if why == Refusal::NoWay { GateAnswer::No } else { GateAnswer::Refused(why) });
                return None;
            }
        };
        // Who has not waited for it has gone by the kernel meanwhile.
        let stream = if say(GateAnswer::Way { at, own }) { accept(&listener, comes) } else { None };
        if stream.is_none() {
            self.forget(flow);
        }
        Some((flow, stream?))
    }

    /// Asks the other rack for a connection.
    fn reach(&self, to: SocketAddr, own: SocketAddr) -> Result<FlowId, Refusal> {
        let end = Instant::now() + MAKING;
        let mut inside = self.inside.lock();
        if inside.trunk.nics_connected() == 0 {
            return Err(Refusal::NoWay);
        }
        let flow = inside.trunk.open(to, own, false).ok_or(Refusal::NoWay)?;
        inside.passages.insert(flow, Passage::default());
        self.waker.wake();
        loop {
            if let Some(answer) = inside.answers.remove(&flow) {
                if answer.is_err() {
                    inside.passages.remove(&flow);
                }
                return answer.map(|()| flow);
            }
            let lost = inside.trunk.nics_connected() == 0;
            if lost || Instant::now() >= end {
                drop(inside);
                self.forget(flow);
                return Err(if lost { Refusal::NoWay } else { Refusal::TimedOut });
            }
            Inside::wait(&mut inside, flow, |passage| &passage.told, Some(end));
        }
    }

    /// A stream is of no use any more.
    fn forget(&self, flow: FlowId) {
        let mut inside = self.inside.lock();
        inside.trunk.close(flow);
        inside.answers.remove(&flow);
        inside.passages.remove(&flow);
        drop(inside);
        self.waker.wake();
    }

    /// Carries a connection's bytes both ways, until both have ended or it is given up. `own` is its address, if others know
    /// it by that.
    fn carry(self: &Arc<Self>, (flow, stream, before): Made, own: Option<SocketAddr>) {
        self.made.fetch_add(1, Ordering::Relaxed);
        let _ = stream.set_nodelay(true);
        let stream = Arc::new(stream);
        match before {
            None => {
                let mut inside = self.inside.lock();
                inside.passages.entry(flow).and_modify(|passage| passage.stream = Some(stream.clone()));
            }
            Some(before) => self.go_on(flow, stream.clone(), before),
        }
        let (shared, up) = (self.clone(), stream.clone());
        let (done, wait) = std::sync::mpsc::channel();
        let other = spawn("gate up", move || {
            let ended = shared.up(flow, &up);
            if !ended {
                shared.give_up(flow, &up);
            }
            let _ = done.send(ended);
        });
        match other {
            Ok(()) => {
                let ended = self.down(flow, &stream);
                if !ended {
                    self.give_up(flow, &stream);
                }
                if wait.recv().is_ok_and(|both| both) && ended {
                    let _ = SockRef::from(&*stream).set_linger(None);
                    self.end_before(flow);
                }
            }
            Err(_) => self.give_up(flow, &stream),
        }
        if let Some(own) = own {
            self.inside.lock().origins.remove(&own);
        }
        self.forget(flow);
    }

    /// From the program to the other rack. False if either of them has given up.
    fn up(&self, flow: FlowId, mut stream: &TcpStream) -> bool {
        let mut bytes = vec![0; PIECE];
        loop {
            let mut rest = match stream.read(&mut bytes) {
                Ok(0) => {
                    if let Some(before) = self.by_kernel(flow) {
                        let _ = before.shutdown(Shutdown::Write);
                    }
                    self.inside.lock().trunk.end(flow);
                    self.waker.wake();
                    return self.stays_whole(flow, stream);
                }
                Ok(len) => &bytes[..len],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return false,
            };
            if let Some(before) = self.by_kernel(flow) {
                if (&*before).write_all(rest).is_err() {
                    return false;
                }
                self.sent_before(flow, rest.len());
                continue;
            }
            while !rest.is_empty() {
                let mut inside = self.inside.lock();
                if inside.trunk.is_deaf(flow) {
                    return false;
                }
                let taken = inside.trunk.write(flow, rest);
                if taken == 0 {
                    Inside::wait(&mut inside, flow, |passage| &passage.room, None);
                    continue;
                }
                if taken <= SHORT {
                    inside.trunk.push();
                    drop(inside);
                } else {
                    drop(inside);
                    self.waker.wake();
                }
                rest = &rest[taken..];
            }
        }
    }

    /// Waits until all was written to the program, too, or the stream is given up. False if its connection is reset before: after its end
    /// nobody reads there, who would hear of it.
    fn stays_whole(&self, flow: FlowId, stream: &TcpStream) -> bool {
        let mut inside = self.inside.lock();
        loop {
            if inside.trunk.is_lost(flow) || inside.passages.get(&flow).is_none_or(|passage| passage.ended) {
                return true;
            }
            if matches!(stream.take_error(), Ok(Some(_))) {
                return false;
            }
            Inside::wait(&mut inside, flow, |passage| &passage.over, None);
        }
    }

    /// From the other rack to the program. False if either of them has given up.
    fn down(&self, flow: FlowId, mut stream: &TcpStream) -> bool {
        let mut bytes = vec![0; PIECE];
        if let Some(ended) = self.down_before(flow, stream, &mut bytes) {
            return ended;
        }
        loop {
            let mut inside = self.inside.lock();
            let len = inside.trunk.read(flow, &mut bytes);
            if len == 0 {
                if inside.trunk.is_lost(flow) {
                    return false;
                }
                if inside.trunk.is_finished(flow) {
                    ended(inside, flow, stream);
                    return true;
                }
                inside.passages.entry(flow).and_modify(|passage| passage.idle = true);
                Inside::wait(&mut inside, flow, |passage| &passage.told, None);
                inside.passages.entry(flow).and_modify(|passage| passage.idle = false);
                continue;
            }
            drop(inside);
            // The other rack may hear that there is room.
            self.waker.wake();
            if stream.write_all(&bytes[..len]).is_err() {
                return false;
            }
        }
    }

    /// Ends a connection at both ends without delivering what is under way.
    fn give_up(&self, flow: FlowId, stream: &TcpStream) {
        let mut inside = self.inside.lock();
        inside.trunk.close(flow);
        inside.notify(flow);
        let before = inside.passages.get(&flow).and_then(Passage::kernels);
        drop(inside);
        self.waker.wake();
        before.into_iter().for_each(|before| reset(&before));
        reset(stream);
    }
}

/// All has come that ever comes, and the program hears so.
fn ended(mut inside: MutexGuard<'_, Inside>, flow: FlowId, stream: &TcpStream) {
    inside.passages.entry(flow).and_modify(|passage| passage.ended = true);
    inside.notify(flow);
    drop(inside);
    // A program that has closed its end already is told nothing.
    let _ = stream.shutdown(Shutdown::Write);
}

/// What a program says, and what comes with it.
fn heard(asker: &OwnedFd) -> Option<(Question, Option<OwnedFd>)> {
    let mut bytes = [0; LONGEST + 1];
    let (len, file) = hear_with(asker, &mut bytes, RecvFlags::empty()).ok()?;
    Some((Question::parse(&bytes[..len]).ok()?, file))
}

/// The program hears of a reset, as it would if the other end were its peer, and so do threads that read or write here. To shut
/// down says that all has been sent, whatever is done afterwards.
fn reset(stream: &TcpStream) {
    // For who has rings, too: its end is no reset otherwise.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
    // Some kernels refuse that while a thread waits there (Linux 6.4 to 6.6).
    if net::connect_unspec(stream).is_err() {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Should this process end, or never have what goes by a connection, that is not to look like the end of its bytes. What has come to
/// its end is told otherwise.
fn ends_by_reset(stream: impl AsFd) {
    let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
}

/// Takes the connection that comes from this address.
fn accept(listener: &TcpListener, from: SocketAddr) -> Option<TcpStream> {
    let end = Instant::now() + MAKING;
    listener.set_nonblocking(true).ok()?;
    loop {
        match listener.accept() {
            Ok((stream, peer)) if peer == from => {
                ends_by_reset(&stream);
                stream.set_nonblocking(false).ok()?;
                return Some(stream);
            }
            Ok(_) if Instant::now() < end => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                let mut fds = [rustix::event::PollFd::new(listener, rustix::event::PollFlags::IN)];
                let _ = rustix::event::poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 }));
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Others on this host can bind the same port of another address.
    #[test]
    fn nobody_takes_the_place_of_who_asked() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let from = |last, port| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.bind(&SocketAddr::from(([127, 0, 0, last], port)).into()).unwrap();
            socket
        };
        let asker = from(3, 0);
        let own = asker.local_addr().unwrap().as_socket().unwrap();
        let other = from(4, own.port());
        let at = listener.local_addr().unwrap().into();
        [&other, &asker].into_iter().for_each(|socket| socket.connect(&at).unwrap());
        assert_eq!(accept(&listener, own).unwrap().peer_addr().unwrap(), own);
    }

    #[test]
    fn a_reset_is_no_end_and_wakes_who_waits() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let program = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        thread::scope(|scope| {
            let reader = scope.spawn(|| (&ours).read(&mut [0]).is_err());
            let writer = scope.spawn(|| (&ours).write_all(&vec![0; 32 << 20]).is_err());
            thread::sleep(Duration::from_millis(100));
            reset(&ours);
            assert!(reader.join().unwrap() && writer.join().unwrap());
        });
        let heard = (&program).read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(heard.kind(), io::ErrorKind::ConnectionReset);
    }
}

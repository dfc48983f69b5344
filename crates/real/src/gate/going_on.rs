//! Connections of the kernel's to the other rack that go on in a stream, once they have proved to have much to carry.
//!
//! Each program tells its gate of its end, and shows it. When both have, a stream is opened, and each program's socket becomes
//! one that is connected to its gate, which has the kernel's connection from then on. No end waits for the other: as long as
//! only one of them has come, its gate passes on by the kernel what the program says.
//!
//! A gate says in the stream that it has its end (a byte). The other one then sends no more by the kernel: it says how many
//! bytes it and its program have sent so (a word), and all that follows goes by the stream. Who receives takes so many from
//! the kernel before it looks at the stream's. So nothing is lost, comes twice, or overtakes anything, whatever is under way.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use remora_rack::frame::{GateAnswer, Question};
use remora_rack::{FlowId, Refusal};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{self, SocketFlags, SocketType, sockopt};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::{Inside, Made, PIECE, Passage, Shared, accept, ended, ends_by_reset, heard, reset};
use crate::messages::say_with;
use crate::trunk::PORT;

/// How long one end is remembered for which nobody asks again.
const REMEMBERED: Duration = Duration::from_secs(20);
const FORGOTTEN_EVERY: Duration = Duration::from_secs(1);
/// How long a host may take to say that nothing listens there, and for how long its answer is believed.
const ANSWER: Duration = Duration::from_millis(200);
const BELIEVED: Duration = Duration::from_secs(5);
/// The first byte of a stream that something goes on in.
const HERE: u8 = 1;
/// Bytes before the program's: that, and where they begin.
const HEAD: usize = 9;

/// The ways to the other rack, and whether the kernel has them too.
pub(super) struct Ways {
    /// Addresses of this rack, each with the one of the other.
    ways: Vec<(IpAddr, IpAddr)>,
    known: Vec<Mutex<Option<(Instant, bool)>>>,
}

impl Ways {
    pub(super) fn new(ways: &[(IpAddr, IpAddr)]) -> Self {
        Self { ways: ways.to_vec(), known: ways.iter().map(|_| Mutex::new(None)).collect() }
    }

    /// Whether an address of this rack's is one of them.
    pub(super) fn lead_from(&self, own: IpAddr) -> bool {
        self.ways.iter().any(|(known, _)| *known == own)
    }

    /// The way to an address of the other rack's: its place, and the own address.
    pub(super) fn lead_to(&self, other: IpAddr) -> Option<(usize, IpAddr)> {
        let index = self.ways.iter().position(|(_, known)| *known == other)?;
        Some((index, self.ways[index].0))
    }

    /// Whether TCP gets there: somebody answers, if only that nothing listens.
    pub(super) fn are_kernels(&self, index: usize) -> bool {
        let mut known = self.known[index].lock();
        let fresh = known.filter(|(at, _)| at.elapsed() < BELIEVED);
        let is = fresh.map_or_else(|| answers(SocketAddr::new(self.ways[index].1, PORT)), |(_, is)| is);
        if fresh.is_none() {
            *known = Some((Instant::now(), is));
        }
        is
    }
}

/// By the kernel itself: this process's own library would ask the gate.
fn answers(at: SocketAddr) -> bool {
    let family = if at.is_ipv4() { net::AddressFamily::INET } else { net::AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok(socket) = net::socket_with(family, SocketType::STREAM, flags, None) else { return false };
    let result = match net::connect(&socket, &at) {
        Err(Errno::INPROGRESS) => {
            let limit = rustix::time::Timespec { tv_sec: 0, tv_nsec: ANSWER.as_nanos() as _ };
            let answered = rustix::event::poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&limit));
            if answered != Ok(1) {
                return false;
            }
            sockopt::socket_error(&socket).unwrap_or(Err(Errno::IO))
        }
        result => result,
    };
    matches!(result, Ok(()) | Err(Errno::CONNREFUSED))
}

/// A connection of the kernel's whose program has told of it.
pub(super) struct Wanted {
    /// The stream that it is to go on in, and whether the other rack knows its other end.
    flow: Option<FlowId>,
    agreed: bool,
    /// Its program has been told so, and is about to let go of it.
    leaving: bool,
    since: Instant,
}

/// The kernel's connection that a passage has begun as.
pub(super) struct Before {
    stream: Arc<TcpStream>,
    /// Bytes that have gone by it, and that have come: the program's and the gate's.
    sent: u64,
    taken: u64,
    /// What the other gate has said at the stream's beginning.
    heard: Vec<u8>,
    /// What the program says goes by the stream by now, or never will.
    left: bool,
    stays: bool,
}

impl Before {
    /// Whether the other gate has the other end.
    fn is_joined(&self) -> bool {
        !self.heard.is_empty()
    }

    /// How many bytes come by the kernel, once that is known.
    fn until(&self) -> Option<u64> {
        self.heard.get(1..HEAD).and_then(|word| word.try_into().ok()).map(u64::from_le_bytes)
    }
}

impl Passage {
    /// The kernel's connection that it has begun as.
    pub(super) fn kernels(&self) -> Option<Arc<TcpStream>> {
        self.before.as_ref().map(|before| before.stream.clone())
    }
}

impl Inside {
    fn wanted_by(&mut self, flow: FlowId) -> Option<&mut Wanted> {
        self.wanted.values_mut().find(|wanted| wanted.flow == Some(flow))
    }

    /// The other rack has the other end of the kernel's connection between these.
    pub(super) fn asked_to_go_on(&mut self, flow: FlowId, to: SocketAddr, from: SocketAddr) {
        let wanted = self.wanted.get_mut(&(to, from)).filter(|wanted| wanted.flow.is_none());
        let Some(wanted) = wanted else { return self.trunk.answer(flow, Err(Refusal::NoWay)) };
        self.trunk.answer(flow, Ok(()));
        // There may be no memory for it.
        if !self.trunk.is_deaf(flow) {
            (wanted.flow, wanted.agreed) = (Some(flow), true);
        }
    }

    /// Whether that was asked for here.
    pub(super) fn answered_to_go_on(&mut self, flow: FlowId, answer: Result<(), Refusal>) -> bool {
        let Some(wanted) = self.wanted_by(flow) else { return false };
        wanted.agreed = true;
        if answer.is_err() {
            // Its program asks again.
            self.wanted.retain(|_, wanted| wanted.flow != Some(flow));
        }
        true
    }

    /// Those of which nobody has asked for long, now and then.
    pub(super) fn forget_wanted(&mut self) {
        if self.wanted.is_empty() || self.forgot_at.elapsed() < FORGOTTEN_EVERY {
            return;
        }
        self.forgot_at = Instant::now();
        let trunk = &mut self.trunk;
        self.wanted.retain(|_, wanted| {
            let stays = wanted.leaving || wanted.since.elapsed() < REMEMBERED;
            if let Some(flow) = wanted.flow.filter(|_| !stays) {
                trunk.close(flow);
            }
            stays
        });
    }

    /// The other rack has given up a stream. What still goes by the kernel does so for good.
    pub(super) fn lost_before(&mut self, flow: FlowId) {
        let passage = self.passages.get(&flow);
        if passage.is_none() && self.wanted_by(flow).is_some_and(|wanted| !wanted.leaving) {
            self.wanted.retain(|_, wanted| wanted.flow != Some(flow));
            return self.trunk.close(flow);
        }
        let before = self.passages.get(&flow).and_then(|passage| passage.before.as_ref());
        if let Some(before) = before.filter(|before| before.left || before.until().is_some()) {
            // Somebody may wait for its bytes.
            reset(&before.stream);
        }
    }

    /// Hears what the other gate says at the stream's beginning.
    pub(super) fn hear_before(&mut self, flow: FlowId) {
        let Some(passage) = self.passages.get_mut(&flow) else {
            // It waits for what became of a program that has not come here, and so never will.
            if self.trunk.has_end(flow) && self.wanted_by(flow).is_some_and(|wanted| !wanted.leaving) {
                self.wanted.retain(|_, wanted| wanted.flow != Some(flow));
                self.trunk.close(flow);
            }
            return;
        };
        let Some(before) = passage.before.as_mut().filter(|before| before.heard.len() < HEAD) else { return };
        let mut head = [0; HEAD];
        let len = self.trunk.read(flow, &mut head[before.heard.len()..]);
        before.heard.extend(&head[before.heard.len()..][..len]);
        if before.until().is_some_and(|until| until <= before.taken) {
            // Who waits for more waits in vain.
            let _ = before.stream.shutdown(Shutdown::Read);
        }
    }
}

impl Shared {
    /// A program has a connection of the kernel's that has much to carry. If it is to go on here, and the program has let go of
    /// it, returns what it has instead.
    pub(super) fn much(&self, asker: &OwnedFd, held: TcpStream, say: impl Fn(GateAnswer) -> bool) -> Option<Made> {
        let Some(key) = ends(asker, &held).filter(|(_, peer)| self.ways.lead_to(peer.ip()).is_some()) else {
            say(GateAnswer::No);
            return None;
        };
        let Some(flow) = self.agreed(key) else {
            say(GateAnswer::Later);
            return None;
        };
        let made = let_go(asker, &held);
        let mut inside = self.inside.lock();
        match made {
            Some((stream, sent, taken)) => {
                inside.wanted.remove(&key);
                let stream_before = Arc::new(held);
                let (heard, left, stays) = (Vec::new(), false, false);
                Some((flow, stream, Some(Before { stream: stream_before, sent, taken, heard, left, stays })))
            }
            None => {
                inside.wanted.entry(key).and_modify(|wanted| wanted.leaving = false);
                // Of which nobody was told meanwhile.
                inside.hear_before(flow);
                None
            }
        }
    }

    /// The stream that a connection is to go on in, if both ends are known: the caller sees to it that it does. Else they may be soon.
    fn agreed(&self, key: (SocketAddr, SocketAddr)) -> Option<FlowId> {
        let mut inside = self.inside.lock();
        let Inside { wanted, trunk, .. } = &mut *inside;
        let since = Instant::now();
        if let Some(wanted) = wanted.get_mut(&key) {
            wanted.since = since;
            let flow = wanted.flow.filter(|flow| wanted.agreed && !wanted.leaving && !trunk.is_deaf(*flow))?;
            wanted.leaving = true;
            return Some(flow);
        }
        if trunk.nics_connected() == 0 {
            return None;
        }
        let flow = if self.calls { Some(trunk.open(key.1, key.0, true)?) } else { None };
        wanted.insert(key, Wanted { flow, agreed: false, leaving: false, since });
        drop(inside);
        self.waker.wake();
        None
    }

    /// A program's connection goes on.
    pub(super) fn go_on(&self, flow: FlowId, stream: Arc<TcpStream>, before: Before) {
        // As the gate wants it, whatever the program did.
        let kernels = SockRef::from(&*before.stream);
        let _ = kernels.set_nonblocking(false);
        let _ = kernels.set_read_timeout(None);
        let _ = kernels.set_write_timeout(None);
        ends_by_reset(&*before.stream);
        let passage = Passage { stream: Some(stream), before: Some(before), ..Passage::default() };
        let mut inside = self.inside.lock();
        inside.passages.insert(flow, passage);
        inside.trunk.write(flow, &[HERE]);
        inside.trunk.push();
        inside.hear_before(flow);
    }

    /// The kernel's connection, if what a program says goes by that still.
    pub(super) fn by_kernel(&self, flow: FlowId) -> Option<Arc<TcpStream>> {
        let mut inside = self.inside.lock();
        let Inside { passages, trunk, .. } = &mut *inside;
        let before = passages.get_mut(&flow)?.before.as_mut()?;
        if !before.left && !before.stays && before.is_joined() && !trunk.is_deaf(flow) {
            before.left = true;
            // There is room: nothing but a byte was said before.
            trunk.write(flow, &before.sent.to_le_bytes());
        }
        (!before.left).then(|| before.stream.clone())
    }

    /// So much more has gone by the kernel.
    pub(super) fn sent_before(&self, flow: FlowId, len: usize) {
        let mut inside = self.inside.lock();
        let before = inside.passages.get_mut(&flow).and_then(|passage| passage.before.as_mut());
        before.into_iter().for_each(|before| before.sent += len as u64);
    }

    /// All has been sent and has come: what the kernel still has to send it sends.
    pub(super) fn end_before(&self, flow: FlowId) {
        let before = self.inside.lock().passages.get(&flow).and_then(Passage::kernels);
        before.into_iter().for_each(|before| drop(SockRef::from(&*before).set_linger(None)));
    }

    /// Passes on what comes by the kernel. None when the stream's turn has come, else whether all has come that ever comes.
    pub(super) fn down_before(&self, flow: FlowId, mut stream: &TcpStream, bytes: &mut [u8]) -> Option<bool> {
        loop {
            let mut inside = self.inside.lock();
            inside.hear_before(flow);
            let before = inside.passages.get_mut(&flow)?.before.as_mut()?;
            let left = match before.until().map(|until| until.checked_sub(before.taken)) {
                Some(Some(0)) => return None,
                // It is not the other end of this connection.
                Some(None) => return Some(false),
                Some(Some(left)) => left.min(PIECE as u64) as usize,
                None => PIECE,
            };
            let kernels = before.stream.clone();
            drop(inside);
            match (&*kernels).read(&mut bytes[..left]) {
                Ok(0) => return self.end_of_before(flow, stream),
                Ok(len) => {
                    let mut inside = self.inside.lock();
                    inside.passages.get_mut(&flow)?.before.as_mut()?.taken += len as u64;
                    drop(inside);
                    if stream.write_all(&bytes[..len]).is_err() {
                        return Some(false);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Some(false),
            }
        }
    }

    /// Nothing more comes by the kernel. That is the other program's own end, or the other gate's, which then says so in the
    /// stream; a gate that has no end of it is asked, by saying that nothing more is said here, and gives the stream up.
    fn end_of_before(&self, flow: FlowId, stream: &TcpStream) -> Option<bool> {
        let mut inside = self.inside.lock();
        loop {
            inside.hear_before(flow);
            let Inside { passages, trunk, .. } = &mut *inside;
            let before = passages.get_mut(&flow)?.before.as_mut()?;
            let is_all = match before.until() {
                Some(until) if until == before.taken => return None,
                Some(_) => return Some(false),
                None if before.is_joined() => trunk.is_finished(flow),
                None => trunk.is_deaf(flow),
            };
            if is_all {
                ended(inside, flow, stream);
                return Some(true);
            }
            if trunk.is_deaf(flow) {
                return Some(false);
            }
            if !before.is_joined() && !before.stays {
                before.stays = true;
                trunk.end(flow);
                self.waker.wake();
            }
            Inside::wait(&mut inside, flow, |passage| &passage.told, None);
        }
    }
}

/// The addresses of a connection that is shown, as the kernel knows it by: nobody has another one's. Others than those of TCP, and of other
/// network namespaces than the one that its program is asked in, may have the same.
fn ends(asker: &OwnedFd, held: &TcpStream) -> Option<(SocketAddr, SocketAddr)> {
    let plain = |at: SocketAddr| SocketAddr::new(at.ip().to_canonical(), at.port());
    let is_tcp = SockRef::from(held).protocol().ok()? == Some(Protocol::TCP);
    let is_here = namespace(asker) == namespace(held);
    (is_tcp && is_here).then_some((plain(held.local_addr().ok()?), plain(held.peer_addr().ok()?)))
}

/// The kernel's number of a socket's network namespace, if it has one (Linux 5.14).
fn namespace(socket: impl AsFd) -> Option<u64> {
    const NUMBER: i32 = 71;
    let (mut value, mut len) = (0u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: a descriptor that is open, and room for the number.
    let done = unsafe {
        let place = (&raw mut value).cast();
        libc::getsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, NUMBER, place, &raw mut len)
    };
    (done == 0).then_some(value)
}

/// Gives a program a connection to this gate instead of the kernel's one that it holds. Returns this end, once the program has let
/// go of the other, and how many bytes it has sent and taken by that.
fn let_go(asker: &OwnedFd, held: &TcpStream) -> Option<(TcpStream, u64, u64)> {
    let (stream, theirs) = pair(held.local_addr().ok()?.is_ipv6()).ok()??;
    say_with(asker, &[io::IoSlice::new(GateAnswer::Yours.emit().as_slice())], theirs).ok()?;
    match heard(asker)? {
        (Question::Moved { sent, taken }, _) => Some((stream, sent, taken)),
        _ => None,
    }
}

/// Both ends of a connection on this host: this gate's, and one for a program whose socket is of IPv6 or not.
fn pair(six: bool) -> io::Result<Option<(TcpStream, Socket)>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let theirs = Socket::new(if six { Domain::IPV6 } else { Domain::IPV4 }, Type::STREAM, Some(Protocol::TCP))?;
    let mut at = listener.local_addr()?;
    if six {
        theirs.set_only_v6(false)?;
        at.set_ip(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into());
    }
    theirs.connect(&at.into())?;
    let own = theirs.local_addr()?.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let ours = accept(&listener, SocketAddr::new(own.ip().to_canonical(), own.port()));
    Ok(ours.map(|ours| (ours, theirs)))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use rustix::net::RecvFlags;

    use super::*;
    use crate::link::testing::{enter_namespace, in_namespace};
    use crate::messages::hear_with;

    fn asking() -> (OwnedFd, OwnedFd) {
        let (family, kind) = (net::AddressFamily::UNIX, SocketType::SEQPACKET);
        net::socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn connected(at: SocketAddr) -> [TcpStream; 2] {
        let listener = TcpListener::bind(at).unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [one, listener.accept().unwrap().0]
    }

    /// Sockets of other kinds, and of other networks, have the same addresses as another's connection.
    #[test]
    fn nobody_shows_anothers_connection() {
        in_namespace(|| {
            let (asker, _program) = asking();
            let [one, other] = connected(SocketAddr::from((Ipv4Addr::LOCALHOST, 5000)));
            let (own, peer) = (one.local_addr().unwrap(), one.peer_addr().unwrap());
            assert_eq!(ends(&asker, &one), Some((own, peer)));
            assert_eq!(ends(&asker, &other), Some((peer, own)));
            let datagrams = UdpSocket::bind(own).unwrap();
            datagrams.connect(peer).unwrap();
            assert_eq!(ends(&asker, &TcpStream::from(OwnedFd::from(datagrams))), None);
            let elsewhere = std::thread::spawn(move || {
                enter_namespace().unwrap();
                let listener = TcpListener::bind(peer).unwrap();
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                socket.bind(&own.into()).unwrap();
                socket.connect(&peer.into()).unwrap();
                (listener, TcpStream::from(socket))
            });
            let (_listener, claimed) = elsewhere.join().unwrap();
            assert_eq!((claimed.local_addr().unwrap(), claimed.peer_addr().unwrap()), (own, peer));
            assert_eq!(ends(&asker, &claimed), None);
        });
    }

    /// The gate may die, or give a program up, after that one has a connection to it.
    #[test]
    fn a_connection_that_a_gate_never_has_is_no_end() {
        let (asker, program) = asking();
        let [held, _other] = connected(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let gate = std::thread::spawn(move || let_go(&asker, &held).is_none());
        let (_, file) = hear_with(&program, &mut [0; 128], RecvFlags::empty()).unwrap();
        drop(program);
        assert!(gate.join().unwrap());
        let heard = TcpStream::from(file.unwrap()).read(&mut [0]).unwrap_err();
        assert_eq!(heard.kind(), io::ErrorKind::ConnectionReset);
    }
}

//! Packets between processes of one host, over rings in shared memory.
//!
//! A link listens on an abstract unix socket named after its IP address. Such names belong to the network namespace, so
//! whoever answers there is whom the address means here. The one that connects makes a memory file with two rings, one
//! each way, seals it against shrinking and passes it over. Both ends ask the kernel who the other is: only processes
//! of the same user get together, as any other could pose as an address that is not its own. The socket stays: a byte
//! on it wakes a sleeping peer, its end tells that the peer died.
//!
//! There is no ICRC on this link: packets pass through memory, not over a wire, and the four bytes for it go unused.
//! Long payload of memory that is [lendable](remora_memory::Buffer::lendable) does not pass through the rings: a peer is lent the
//! memory file over the socket, read-only, and packets refer to bytes there. Which loans it has mapped it says in the ring's first
//! page; until then, and where it cannot, payload goes by the ring. A loan is over when the last region over the
//! buffer is deregistered.
//!
//! A peer may still write anything into the rings at any time: each length is checked, and what is believed of a packet is
//! copied out once. Payload that nobody looks at lies in the ring alone between its region and the peer's.

mod barrier;
mod ports;
mod ring;
mod socket;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use remora_memory::{Buffer, Lent, Loans, Lookahead, MAX_LOANS, Reference, View};
use remora_nic::{Packet, Room};
use remora_wire::ICRC_LEN;
use rustix::io::Errno;
use rustix::net::{self, SocketFlags, sockopt};
use rustix::process::Uid;

use super::{Link, LinkKind, LinkStats, MAX_PACKET, check_lens};
use ports::Newcomer;
pub use ports::ShmPort;
use ring::{Broken, Consumer, LOAN_MAPPED, LOAN_NONE, LOAN_REFUSED, Producer, RING_BYTES, Record};
pub(crate) use socket::unix_socket;
use socket::{Said, hear, hear_hello, name_of, ring, say_hello, say_loan, say_over};

/// Polls and packets between looks at the sockets. An empty poll takes ten nanoseconds or, beside a UDP socket, some
/// hundreds, and so does a packet: a new peer waits a millisecond at most, and the looks cost next to nothing.
const WORK_PER_LOOK: usize = 4096;

/// Packets up to so many bytes are copied out before they are handed over; longer ones are handed over where they stand.
const SHORT: usize = 1024;

/// Packets taken from one peer before the next one has its turn, and before what was acknowledged leaves: a peer that has many
/// under way sends the next ones while this side is busy with those that it has sent.
const RX_BATCH: usize = 16;

/// Connections accepted that have not said hello yet; the oldest go when there are more.
const MAX_STRANGERS: usize = 16;

/// One end for all the peers on this host.
pub struct ShmLink {
    port: ShmPort,
    user: Uid,
    strangers: Vec<OwnedFd>,
    peers: Vec<Peer>,
    /// Which peer has the first turn.
    turn: usize,
    /// Polls and packets since the last look.
    work: usize,
    armed: bool,
    /// Where a packet is copied to, out of its sender's reach.
    packet: Box<[u8]>,
    /// And a short one.
    short: Box<[u8; SHORT]>,
    lookahead: Arc<Lookahead>,
    stats: LinkStats,
}

struct Peer {
    ip: IpAddr,
    /// It came by itself.
    came: bool,
    socket: OwnedFd,
    tx: Producer,
    rx: Consumer,
    /// What this side has lent it.
    loans: Arc<Loans>,
    lent: Vec<Loan>,
    /// The peer has not said yet whether it has mapped one of them.
    unsure: bool,
    /// What it has lent this side, by slot.
    views: [Option<View>; MAX_LOANS],
    /// The socket has ended: nothing is sent any more, and what the ring still holds is delivered.
    gone: bool,
    /// Nothing more comes: to be removed.
    spent: bool,
}

/// A buffer that a peer has been lent.
struct Loan {
    slot: usize,
    what: Lent,
    state: LoanState,
}

#[derive(PartialEq)]
enum LoanState {
    /// The peer has not said yet whether it can map it.
    Offered,
    Mapped,
    Refused,
    /// The peer was told that it is over, and has not said yet that it has heard.
    Over,
}

impl ShmLink {
    /// Listens for peers under the address `ip`.
    ///
    /// # Errors
    ///
    /// As [`ShmPort::bind`].
    pub fn bind(ip: IpAddr) -> io::Result<ShmLink> {
        Ok(ShmLink::at(ShmPort::bind(ip, 1)?.remove(0)))
    }

    /// Talks to the peers that one of the engines of an address gets.
    pub fn at(port: ShmPort) -> ShmLink {
        ShmLink {
            port,
            user: rustix::process::geteuid(),
            strangers: Vec::with_capacity(MAX_STRANGERS + 1),
            peers: Vec::new(),
            turn: 0,
            work: 0,
            armed: false,
            packet: vec![0; MAX_PACKET].into(),
            short: Box::new([0; SHORT]),
            lookahead: Arc::default(),
            stats: LinkStats::default(),
        }
    }

    /// Joins up with `peer`, without waiting for it to notice. True if that worked, or had before; false if no process
    /// of this user listens under that address here.
    ///
    /// # Errors
    ///
    /// What the kernel says when it has no memory or descriptors left.
    pub fn connect(&mut self, peer: IpAddr) -> io::Result<bool> {
        if self.has_peer(peer) {
            return Ok(true);
        }
        let socket = unix_socket()?;
        match net::connect(&socket, &name_of(peer)?) {
            Ok(()) => {}
            // Nobody there, not allowed by a security module, or too busy to accept.
            Err(Errno::CONNREFUSED | Errno::NOENT | Errno::ACCESS | Errno::PERM | Errno::AGAIN) => {
                return Ok(false);
            }
            Err(e) => return Err(e.into()),
        }
        if sockopt::socket_peercred(&socket)?.uid != self.user {
            return Ok(false);
        }
        let (shared, file) = Buffer::shared(2 * RING_BYTES)?;
        // Takes the pages now, not one by one under the first packets.
        shared.fill(0, 2 * RING_BYTES, 0).map_err(io::Error::other)?;
        if let Err(e) = say_hello(&socket, &file, self.port.ip()) {
            return if e == Errno::PIPE { Ok(false) } else { Err(e.into()) };
        }
        self.peers.push(Peer::new(peer, socket, shared, 0, RING_BYTES, false));
        Ok(true)
    }

    /// Whether packets to `ip` would go over this link.
    pub fn has_peer(&self, ip: IpAddr) -> bool {
        self.peers.iter().any(|peer| peer.ip == ip && !peer.gone)
    }

    /// Looks at the sockets: new peers, wake-ups and ends of peers.
    fn look(&mut self) {
        // Who sleeps by the link waits for the sockets that there were: what is new is left for it, and wakes it.
        if !self.armed {
            self.welcome();
        }
        let mut again = false;
        for peer in &mut self.peers {
            let rung = peer.hear(&mut self.stats);
            peer.end_loans(&mut self.stats);
            if rung && self.armed {
                // Whoever sleeps may not have woken yet, and now will not: the next packet must ring again. Those that
                // are there already are seen by the caller, who is awake.
                peer.rx.set_sleeping(true);
                again = true;
            }
        }
        if again {
            barrier::before_sleep();
        }
    }

    /// Takes in who wants to be a peer.
    fn welcome(&mut self) {
        let Some(listener) = self.port.listener() else {
            self.stats.syscalls += 1;
            return self.port.take().into_iter().for_each(|newcomer| self.peers.push(Peer::of(newcomer)));
        };
        for _ in 0..MAX_STRANGERS {
            self.stats.syscalls += 1;
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = net::accept_with(listener, flags) else {
                break;
            };
            if self.strangers.len() == MAX_STRANGERS {
                self.strangers.remove(0);
            }
            self.strangers.push(socket);
        }
        let mut at = 0;
        while at < self.strangers.len() {
            self.stats.syscalls += 1;
            match hear_hello(&self.strangers[at], self.user) {
                Ok(None) => at += 1,
                Ok(Some((ip, shared))) => {
                    let socket = self.strangers.remove(at);
                    self.peers.extend(self.port.share_out((ip, socket, shared)).map(Peer::of));
                }
                Err(_) => {
                    self.strangers.remove(at);
                    self.stats.malformed += 1;
                }
            }
        }
    }

    /// Hands over what came, of each peer a batch at most. Returns how many packets that were.
    #[inline(never)]
    fn take(&mut self, sink: &mut dyn FnMut(IpAddr, Packet<'_>)) -> usize {
        let before = self.stats.rx_packets;
        let count = self.peers.len();
        let mut leaving = false;
        for step in 0..count {
            // As far as the first one's turn has come, and around.
            let at = self.turn + step;
            let peer = &mut self.peers[if at < count { at } else { at - count }];
            if !peer.rx.waiting() {
                peer.spent = peer.gone;
                leaving |= peer.spent;
                continue;
            }
            for _ in 0..RX_BATCH {
                match peer.rx.peek(&self.lookahead) {
                    Ok(Some(Record { at: offset, len, refers })) => {
                        self.stats.received(peer.ip, len);
                        let buffer = peer.rx.shared();
                        if refers {
                            match referred(buffer, (offset, len), &mut self.short[..], &peer.views) {
                                Some(packet) => sink(peer.ip, packet),
                                None => self.stats.dropped += 1,
                            }
                        } else if len > SHORT {
                            sink(peer.ip, Packet::Shared { buffer, offset, len });
                        } else if buffer.take(offset, &mut self.short[..len]).is_ok() {
                            sink(peer.ip, Packet::Private(&self.short[..len]));
                        }
                        peer.rx.pass(len);
                        continue;
                    }
                    Ok(None) => peer.spent = peer.gone,
                    Err(Broken) => {
                        self.stats.malformed += 1;
                        peer.spent = true;
                    }
                }
                break;
            }
            peer.rx.release();
            leaving |= peer.spent;
        }
        if leaving {
            let leave = self.peers.extract_if(.., |peer| peer.spent);
            self.port.lost(leave.filter(|peer| peer.came).count());
        }
        self.turn = if self.turn + 1 < self.peers.len() { self.turn + 1 } else { 0 };
        let packets = (self.stats.rx_packets - before) as usize;
        self.work += packets;
        packets
    }
}

impl Peer {
    /// One that came by itself.
    fn of((ip, socket, shared): Newcomer) -> Peer {
        Peer::new(ip, socket, shared, RING_BYTES, 0, true)
    }

    fn new(ip: IpAddr, socket: OwnedFd, shared: Buffer, tx: usize, rx: usize, came: bool) -> Peer {
        let (tx, rx) = (Producer::new(shared.clone(), tx), Consumer::new(shared, rx));
        let views = [const { None }; MAX_LOANS];
        let (loans, lent) = (Arc::default(), Vec::with_capacity(MAX_LOANS));
        Peer { ip, came, socket, tx, rx, loans, lent, unsure: false, views, gone: false, spent: false }
    }

    /// Hears what the peer has said. True if that woke whoever slept.
    fn hear(&mut self, stats: &mut LinkStats) -> bool {
        let (mut heard, mut woken) = (0, false);
        loop {
            stats.syscalls += 1;
            match hear(&self.socket, &mut heard) {
                Said::Ring => {}
                Said::Loan(slot, len, file) => {
                    let view = usize::try_from(len).ok().and_then(|len| View::map(file, len).ok());
                    self.rx.say_loan(slot, if view.is_some() { LOAN_MAPPED } else { LOAN_REFUSED });
                    self.views[slot] = view;
                }
                Said::Over(slot) => {
                    self.views[slot] = None;
                    self.rx.say_loan(slot, LOAN_NONE);
                }
                Said::Nothing => return woken,
                Said::Gone => {
                    self.gone = true;
                    return woken;
                }
            }
            woken = true;
        }
    }

    /// Lends the buffer that a packet wished for.
    fn lend_wanted(&mut self, stats: &mut LinkStats) {
        let Some((slot, buffer)) = self.loans.next_wanted() else { return };
        let Some(file) = buffer.file() else { return };
        stats.syscalls += 1;
        match say_loan(&self.socket, slot, buffer.len(), file) {
            Ok(()) => {
                self.lent.push(Loan { slot, what: Lent::of(&buffer), state: LoanState::Offered });
                self.unsure = true;
            }
            // It hears nothing for now; another packet will wish for it.
            Err(_) => self.loans.free(slot),
        }
    }

    /// What the peer has said of loans since.
    fn follow_loans(&mut self) {
        self.unsure = false;
        let Self { loans, lent, tx, unsure, .. } = self;
        lent.retain_mut(|loan| {
            match (&loan.state, tx.loan(loan.slot)) {
                (LoanState::Offered, LOAN_MAPPED) => {
                    loans.lend(loan.slot);
                    loan.state = LoanState::Mapped;
                }
                (LoanState::Offered, LOAN_REFUSED) => loan.state = LoanState::Refused,
                (LoanState::Offered, _) => *unsure = true,
                (LoanState::Over, LOAN_NONE) => {
                    loans.free(loan.slot);
                    return false;
                }
                (LoanState::Over, _) => *unsure = true,
                _ => {}
            }
            true
        });
    }

    /// Ends loans of what is registered no longer.
    fn end_loans(&mut self, stats: &mut LinkStats) {
        for loan in &mut self.lent {
            let ends = matches!(loan.state, LoanState::Mapped | LoanState::Refused) && !loan.what.is_registered();
            if ends {
                stats.syscalls += 1;
                if say_over(&self.socket, loan.slot).is_ok() {
                    self.loans.recall(loan.slot);
                    (loan.state, self.unsure) = (LoanState::Over, true);
                }
            }
        }
    }

    /// Lets the peer see what was pushed, and wakes it if it sleeps.
    fn publish(&mut self, stats: &mut LinkStats) {
        self.tx.publish();
        if self.tx.take_wake() {
            stats.syscalls += 1;
            let _ = ring(&self.socket);
        }
    }
}

/// The packet of a record that refers to its payload, its headers copied to `private`. `None` if the loan is over, or never was.
fn referred<'a>(
    buffer: &Buffer,
    (offset, len): (usize, usize),
    private: &'a mut [u8],
    views: &'a [Option<View>],
) -> Option<Packet<'a>> {
    let record = private.get_mut(..len)?;
    buffer.take(offset, record).ok()?;
    let (reference, headers) = Reference::parse(record)?;
    let view = views.get(reference.slot as usize)?.as_ref()?;
    Some(Packet::Referred { headers, view, reference })
}

impl Link for ShmLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Shm
    }

    fn max_mtu(&self) -> usize {
        4096
    }

    fn reach(&mut self, peer: IpAddr) -> io::Result<bool> {
        self.connect(peer)
    }

    fn send(&mut self, to: IpAddr, bytes: &mut [u8], lens: &[u16]) -> io::Result<usize> {
        check_lens(bytes, lens)?;
        // The newest, as a peer that restarted may stand here twice for a moment.
        let Some(peer) = self.peers.iter_mut().rfind(|peer| peer.ip == to && !peer.gone) else {
            return Err(io::Error::new(io::ErrorKind::NotConnected, format!("no shared memory with {to}")));
        };
        let (mut taken, mut at) = (0, 0);
        for &len in lens {
            let end = at + usize::from(len);
            if !peer.tx.push(&bytes[at..end]) {
                break;
            }
            (taken, at) = (taken + 1, end);
        }
        peer.publish(&mut self.stats);
        self.stats.sent(to, taken, at);
        self.stats.full += u64::from(taken < lens.len());
        Ok(taken)
    }

    fn lend(&mut self, to: IpAddr) -> Option<Room> {
        let peer = self.peers.iter_mut().rfind(|peer| peer.ip == to && !peer.gone)?;
        if peer.unsure {
            peer.follow_loans();
        }
        let room = peer.tx.lend()?;
        Some(Room { loans: Some(peer.loans.clone()), ..room })
    }

    fn send_lent(&mut self, to: IpAddr, lens: &[u16], referred: u64) {
        let Some(peer) = self.peers.iter_mut().rfind(|peer| peer.ip == to && !peer.gone) else { return };
        peer.tx.push_lent(lens, referred);
        peer.publish(&mut self.stats);
        peer.lend_wanted(&mut self.stats);
        self.stats.sent(to, lens.len(), lens.iter().map(|&len| usize::from(len)).sum());
    }

    fn recv(&mut self, sink: &mut dyn FnMut(IpAddr, &[u8])) -> io::Result<usize> {
        let mut packet = std::mem::take(&mut self.packet);
        let result = self.recv_in_place(&mut |from, arrived| match arrived {
            Packet::Private(bytes) => sink(from, bytes),
            Packet::Shared { buffer, offset, len } => {
                if let Some(out) = packet.get_mut(..len)
                    && buffer.take(offset, out).is_ok()
                {
                    sink(from, out);
                }
            }
            Packet::Referred { headers, view, reference } => {
                let (payload, at) = (reference.len as usize, headers.len());
                // Pad and ICRC are whatever stands there.
                let len = (at + payload).next_multiple_of(4) + ICRC_LEN;
                if let Some(out) = packet.get_mut(..len)
                    && view.read(reference.offset as usize, &mut out[at..at + payload]).is_ok()
                    && view.term() == reference.term
                {
                    out[..at].copy_from_slice(headers);
                    sink(from, out);
                }
            }
        });
        self.packet = packet;
        result
    }

    #[inline]
    fn recv_in_place(&mut self, sink: &mut dyn FnMut(IpAddr, Packet<'_>)) -> io::Result<usize> {
        self.work += 1;
        if self.work >= WORK_PER_LOOK {
            self.work = 0;
            self.look();
        } else if !self.peers.iter().any(|peer| peer.gone || peer.rx.waiting()) {
            // As most polls are.
            return Ok(0);
        }
        Ok(self.take(sink))
    }

    fn look_ahead(&mut self, lookahead: &Arc<Lookahead>) {
        self.lookahead = lookahead.clone();
    }

    fn wait_fds(&self, out: &mut Vec<RawFd>) {
        let sockets = self.strangers.iter().chain(self.peers.iter().map(|peer| &peer.socket));
        out.push(self.port.wait_fd());
        out.extend(sockets.map(AsRawFd::as_raw_fd));
    }

    fn arm(&mut self) -> bool {
        self.look();
        for peer in &mut self.peers {
            peer.rx.set_sleeping(true);
        }
        barrier::before_sleep();
        self.armed = true;
        let busy = self.peers.iter().any(|peer| peer.gone || peer.rx.waiting());
        if busy {
            self.disarm();
        }
        !busy
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            for peer in &mut self.peers {
                peer.rx.set_sleeping(false);
            }
            // What woke us may have been a socket.
            self.work = WORK_PER_LOOK;
        }
    }

    fn stats(&self) -> LinkStats {
        self.stats
    }
}

#[cfg(test)]
mod tests;

//! A client that READs a chain's data where the head shows it: no thread of a node that serves transactions hears of it.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use remora_memory::{Access, Buffer, Pd, Region};
use remora_nic::cm::{CmEvent, ConnId};
use remora_nic::{CqId, Data, Event, NicError, QpInit, QpType, Qpn, SendOp, SendWr, Sge, Time, WcStatus};
use remora_real::{Device, Error, Seat, Sleeper};
use remora_replica::chain::{ChainOutcome, Extent, Lines, Transaction, WindowEnd, WindowRead};
use remora_replica::client::Ticket;
use remora_replica::types::Value;

use super::caller::{Caller, Refusal, call, device, is_there, refusal};
use super::client::{ChainClient, ClusterClientConfig};
use super::hello::{ClientHello, Guard, WindowHello};
use super::wire::WINDOW_PORT;

/// READs under way at once; others wait.
const SLOTS: u32 = 128;
/// Bytes of one at most: no more than a packet has room for wherever nodes of a cluster are.
const SLOT: u32 = 1024;
/// How often a read begins again that has met writes, before it is left to the chain.
const TRIES: u32 = 3;
/// How long a call may take, and after how long the next one is made, in nanoseconds.
const CALL: Time = 200_000_000;
const PAUSE: Time = 5_000_000;

/// A read that has ended.
#[derive(Clone, Debug)]
pub struct ReadEnd {
    /// Which.
    pub ticket: Ticket,
    /// What was there, all at the same time: after the read began, and before it ended. `None`: it is to be asked of the chain, as the
    /// window is closed, the read is too long for it, or it met writes again and again.
    pub values: Option<Vec<Value>>,
}

/// A connection to the window of a chain's head. Not for sharing between threads: each takes its own.
///
/// Clients of a cluster that seals what it sends have none: a READ brings what is in memory, and nobody seals it.
pub struct ChainReader {
    device: Device,
    config: ClusterClientConfig,
    pd: Pd,
    cq: CqId,
    landing: (Buffer, Arc<Region>),
    state: State,
    /// Whom it calls next, and when.
    node: usize,
    call_at: Time,
    /// Bytes of a READ at most.
    most: u32,
    reads: BTreeMap<u64, Reading>,
    next_ticket: u64,
    /// Places of the landing that are free; and who has the others: which read, and which part of it.
    free: Vec<u32>,
    slots: Vec<(u64, usize, u32)>,
    /// Reads that may have READs to post.
    due: VecDeque<u64>,
    ended: VecDeque<ReadEnd>,
    /// Why the last node would not have it.
    refused: Option<Refusal>,
    sleeper: Sleeper,
}

struct Reading {
    extents: Vec<Extent>,
    read: WindowRead,
    tries: u32,
}

#[derive(Clone, Copy)]
enum State {
    Apart,
    Calling { qpn: Qpn, conn: ConnId, said: ClientHello, until: Time },
    Open { qpn: Qpn, conn: ConnId, lines: Lines, va: u64, key: u32 },
}

impl ChainReader {
    /// Connects to the head's window.
    pub fn connect(config: ClusterClientConfig) -> Result<Self, Error> {
        if Guard::of(config.secret.is_some(), config.link) == Guard::Sealed {
            let why = "a cluster that seals what it sends shows no data to READs: ask it for transactions";
            return Err(Error::Argument(why.into()));
        }
        let device = device(&config)?;
        let (pd, cq, landing, most);
        {
            let mut guard = device.lock();
            let seat = &mut guard.seat();
            let mtu = seat.links.first().map_or(SLOT, |link| link.max_mtu() as u32);
            most = SLOT.min(mtu);
            pd = seat.nic.registry().alloc_pd();
            cq = seat.nic.create_cq(2 * SLOTS)?;
            let bytes = (SLOTS * SLOT) as usize;
            let mapped = Buffer::anonymous(bytes);
            let buffer = mapped.map_err(|source| Error::System { what: "mapping memory", source })?;
            let region = seat.nic.registry().register(pd, &buffer, 0, bytes, None, Access::LOCAL_WRITE)?;
            landing = (buffer, region);
        }
        let timeout = config.timeout;
        let this = Self {
            device,
            node: config.node,
            config,
            pd,
            cq,
            landing,
            state: State::Apart,
            call_at: 0,
            most,
            reads: BTreeMap::new(),
            next_ticket: 0,
            free: (0..SLOTS).collect(),
            slots: vec![(0, 0, 0); SLOTS as usize],
            due: VecDeque::new(),
            ended: VecDeque::new(),
            refused: None,
            sleeper: Sleeper::new(),
        };
        this.up_within(timeout)
    }

    /// Whether a head shows its data, as far as is known. [`ChainReader::poll`] looks for one.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    /// Reads under way.
    pub fn under_way(&self) -> usize {
        self.reads.len()
    }

    /// Begins to read. The next [`ChainReader::poll`] posts its READs, together with others.
    pub fn start(&mut self, extents: &[Extent]) -> Ticket {
        let number = self.next_ticket;
        self.next_ticket += 1;
        let read = match self.state {
            State::Open { lines, .. } => WindowRead::new(lines, extents, self.most),
            _ => None,
        };
        match read {
            Some(read) => {
                self.reads.insert(number, Reading { extents: extents.to_vec(), read, tries: 1 });
                self.due.push_back(number);
            }
            None => self.ended.push_back(ReadEnd { ticket: Ticket(number), values: None }),
        }
        Ticket(number)
    }

    /// Posts READs, takes what they found, keeps the connection. `done` gets each read that has ended. Returns how many have.
    pub fn poll(&mut self, done: &mut dyn FnMut(ReadEnd)) -> usize {
        self.drive_or_yield();
        let mut count = 0;
        while let Some(ended) = self.ended.pop_front() {
            count += 1;
            done(ended);
        }
        count
    }

    /// Sleeps until a READ ends, or something else to be polled for, but no longer than `timeout`.
    pub fn wait(&mut self, timeout: Duration) {
        let patience = Duration::from_millis(if self.is_open() { 5 } else { 1 });
        self.device.sleep(self.cq, timeout.min(patience), &mut self.sleeper);
    }

    /// One read from start to end. Nothing else may be under way. `None`: see [`ReadEnd::values`].
    pub fn read(&mut self, extents: &[Extent]) -> Option<Vec<Value>> {
        let ticket = self.start(extents);
        self.finish_by(|this| {
            let mut ended = None;
            this.poll(&mut |end| ended = (end.ticket == ticket).then_some(end.values));
            ended
        })
    }

    /// One transaction that only reads, from start to end: by READs, or asked of the chain where these come to nothing. Nothing else
    /// may be under way with either.
    pub fn read_or_ask(&mut self, client: &mut ChainClient, reads: Vec<Extent>) -> ChainOutcome {
        match self.read(&reads) {
            Some(values) => ChainOutcome::Done(values),
            None => client.transact(Transaction { reads, ..Transaction::default() }),
        }
    }

    fn event(&mut self, seat: &mut Seat<'_>, event: Event) {
        let (State::Calling { qpn, conn, .. } | State::Open { qpn, conn, .. }) = self.state else { return };
        match event {
            Event::Cm(CmEvent::Established { conn: c, private_data, .. }) if c == conn => {
                self.established(seat, &private_data);
            }
            Event::Cm(CmEvent::Rejected { conn: c, reason, private_data }) if c == conn => {
                self.refused = Some(refusal(reason, &private_data));
                self.hang_up(seat);
            }
            Event::Cm(CmEvent::Unreachable { conn: c } | CmEvent::Disconnected { conn: c }) if c == conn => {
                self.hang_up(seat);
            }
            Event::QpFatal(fatal, _) if fatal == qpn => self.hang_up(seat),
            _ => {}
        }
    }

    fn established(&mut self, seat: &mut Seat<'_>, answer: &[u8]) {
        let State::Calling { qpn, conn, said, .. } = self.state else { return };
        let window = WindowHello::answered(self.config.secret.as_ref(), said.encode(), answer);
        let open = window.and_then(|WindowHello { va, key, data, cell }| Some((Lines::new(data, cell)?, va, key)));
        let Some((lines, va, key)) = open else {
            self.refused =
                Some(("it does not say where its window is, or does not know the clients' secret".into(), 0));
            return self.hang_up(seat);
        };
        self.refused = None;
        self.state = State::Open { qpn, conn, lines, va, key };
    }

    /// Calls the next node.
    fn call(&mut self, seat: &mut Seat<'_>) {
        let node = self.address();
        if !self.dial(seat, node) {
            self.hang_up(seat);
        }
    }

    fn dial(&mut self, seat: &mut Seat<'_>, node: IpAddr) -> bool {
        let guard = Guard::of(self.config.secret.is_some(), self.config.link);
        let (true, Ok(said)) = (is_there(seat, node), ClientHello::new(guard, true)) else { return false };
        let init = QpInit { max_send_wr: SLOTS, max_rpc: 0, ..QpInit::new(QpType::Rc, self.pd, self.cq, self.cq) };
        let Ok(qpn) = seat.nic.create_qp(init) else { return false };
        let ready = seat.nic.to_init(qpn, Access::empty(), 0).is_ok();
        let conn = call(seat, qpn, (node, WINDOW_PORT), &said, self.config.secret.as_ref()).filter(|_| ready);
        let Some(conn) = conn else {
            let _ = seat.nic.destroy_qp(qpn);
            return false;
        };
        self.state = State::Calling { qpn, conn, said, until: seat.now.time() + CALL };
        true
    }

    /// There is no connection, or none that is good for anything. Another node is called after a while.
    fn hang_up(&mut self, seat: &mut Seat<'_>) {
        let before = std::mem::replace(&mut self.state, State::Apart);
        if let State::Calling { qpn, conn, .. } | State::Open { qpn, conn, .. } = before {
            let _ = seat.nic.disconnect(seat.now.time(), conn);
            let _ = seat.nic.destroy_qp(qpn);
        }
        // What was flushed is of reads that end here.
        while seat.nic.poll_cq(self.cq).is_some() {}
        self.free = (0..SLOTS).collect();
        self.due.clear();
        let ended = std::mem::take(&mut self.reads).into_keys();
        self.ended.extend(ended.map(|number| ReadEnd { ticket: Ticket(number), values: None }));
        self.node = (self.node + 1) % self.config.nodes.len();
        self.call_at = seat.now.time() + PAUSE;
    }

    /// The READ that lands there has ended.
    fn came(&mut self, slot: u32) {
        let Some(&(number, part, length)) = self.slots.get(slot as usize) else { return };
        self.free.push(slot);
        let Some(Reading { read, extents, tries }) = self.reads.get_mut(&number) else { return };
        let mut bytes = [0; SLOT as usize];
        let bytes = &mut bytes[..length as usize];
        // Within the landing, as each of its places is.
        let _ = self.landing.0.read((slot * SLOT) as usize, bytes);
        let values = match read.found(part, bytes) {
            None => return self.due.push_back(number),
            Some(WindowEnd::Read(values)) => Some(values),
            Some(WindowEnd::Changed) => {
                let State::Open { lines, .. } = self.state else { return };
                let again = WindowRead::new(lines, extents, self.most).filter(|_| *tries < TRIES);
                if let Some(again) = again {
                    (*read, *tries) = (again, *tries + 1);
                    return self.due.push_back(number);
                }
                None
            }
        };
        self.reads.remove(&number);
        self.ended.push_back(ReadEnd { ticket: Ticket(number), values });
    }

    /// Posts what is due, as far as there is room. Returns how many READs.
    fn post(&mut self, seat: &mut Seat<'_>) -> usize {
        let State::Open { qpn, va, key, .. } = self.state else { return 0 };
        let (mut posted, region) = (0, self.landing.1.clone());
        while let Some(&number) = self.due.front()
            && let Some(&slot) = self.free.last()
        {
            let next = self.reads.get_mut(&number).and_then(|reading| reading.read.next_read());
            let Some((part, at, length)) = next else {
                self.due.pop_front();
                continue;
            };
            let sge = Sge { va: region.va() + u64::from(slot * SLOT), len: length, lkey: region.key() };
            let op = SendOp::Read { va: va.wrapping_add(at), rkey: key };
            let sent: Result<(), NicError> = seat.nic.post_send(qpn, &SendWr::new(slot.into(), op, Data::List(&[sge])));
            if sent.is_err() {
                self.hang_up(seat);
                return posted;
            }
            self.free.pop();
            self.slots[slot as usize] = (number, part, length);
            posted += 1;
        }
        posted
    }
}

impl Caller for ChainReader {
    fn device(&self) -> &Device {
        &self.device
    }

    fn address(&self) -> IpAddr {
        self.config.nodes[self.node % self.config.nodes.len()]
    }

    fn is_up(&self) -> bool {
        self.is_open()
    }

    fn refused(&mut self) -> Option<Refusal> {
        self.refused.take()
    }

    fn sleep(&mut self, timeout: Duration) {
        self.wait(timeout);
    }

    fn turn(&mut self, seat: &mut Seat<'_>) -> usize {
        let mut work = 0;
        for event in std::mem::take(seat.events) {
            work += 1;
            self.event(seat, event);
        }
        while let Some(wc) = seat.nic.poll_cq(self.cq) {
            work += 1;
            if wc.status == WcStatus::Success {
                self.came(wc.wr_id as u32);
            } else {
                // The window has closed, or the node is gone: all that is under way ends with it.
                self.hang_up(seat);
            }
        }
        if matches!(self.state, State::Calling { until, .. } if seat.now.time() >= until) {
            self.hang_up(seat);
        }
        if matches!(self.state, State::Apart) && seat.now.time() >= self.call_at {
            work += 1;
            self.call(seat);
        }
        work + self.post(seat)
    }
}

impl Drop for ChainReader {
    fn drop(&mut self) {
        if let State::Open { conn, .. } = self.state {
            let mut guard = self.device.lock();
            let now = guard.now();
            if guard.nic().disconnect(now, conn).is_ok() {
                guard.progress();
            }
        }
    }
}

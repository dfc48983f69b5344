//! The measurements behind `remora bench ring`: calls by rings in memory, beside WRITEs and RPC verbs over the same link.
//!
//! One client core and one server core. The kernel answers with its parameters, 64 bytes, and every reply is looked at.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use remora_kernel::{Call, Placement, SequencerParams, Status, op, runner};
use remora_memory::{Access, Buffer, Registry};
use remora_nic::{ALL_REMOTE, QpInit, QpType, Qpn, WcStatus};
use remora_real::{
    Client, ClientConfig, DeviceGuard, Error, Kernels, LinkKind, Node, NodeConfig, RingConfig, RingMemory, RingPort,
    SharedClient, at_free_loopback, at_local,
};
use remora_ring::{Notify, RingShape};
use remora_service::{CallSlots, MAX_CALLS, RingCall, WorkId};

use super::pair::{BenchPair, End, serve};
use super::{BenchError, BenchGoal, BenchProgress, BenchRow, ROUNDS, SMALL, TIME, beside, next};
use crate::MeasuredRows;
use crate::stats::median;

/// Calls under way at once by the measurements of rates.
const DEPTH: usize = 64;
/// Calls that share a WRITE, by those.
const BATCH: usize = 16;
/// Clients that talk, by the measurement of many.
const TALKING: usize = 10;
/// Threads that call at once, by the measurement of those.
const THREADS: usize = 8;
/// The op-code of the kernel.
const ECHO: u64 = 0x900;

/// Kernels of which there is one, that answers with its parameters.
fn echo(_: &Arc<Registry>) -> Kernels {
    let task = |mut call: Call| async move {
        let params = std::mem::take(&mut call.params);
        call.reply.extend_from_slice(&params);
        call.params = params;
        (call, Status::Ok)
    };
    Kernels::new(runner(task, remora_real::POOL), vec![ECHO])
}

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct RingPlan {
    /// Calls per latency figure.
    pub rounds: usize,
    /// How long one measurement of a rate runs.
    pub time: Duration,
    /// Clients that are connected while ten talk.
    pub connected: usize,
}

impl Default for RingPlan {
    fn default() -> Self {
        Self { rounds: ROUNDS, time: TIME, connected: 1000 }
    }
}

/// Rows over one link.
const ROWS: usize = 6;

/// Measures everything.
pub fn ring(plan: RingPlan, progress: &mut BenchProgress<'_>) -> MeasuredRows<BenchRow, BenchError> {
    MeasuredRows::by(2 * ROWS, |rows| {
        for (link, at, per_s) in [(LinkKind::Shm, 0.0, 4.0), (LinkKind::Udp, 0.5, 1.5)] {
            over(plan, link, per_s, rows, &mut |what, part| progress(&format!("{what} over {link}"), at + part))?;
        }
        progress("done", 1.0);
        Ok(())
    })
}

/// Measures over one link, where so many million calls a second are the goal.
fn over(
    RingPlan { rounds, time, connected }: RingPlan,
    link: LinkKind,
    per_s: f64,
    rows: &mut Vec<BenchRow>,
    progress: &mut BenchProgress<'_>,
) -> Result<(), BenchError> {
    let bench = RingBench::at(link, 1)?;
    for (notify, goal) in [(Notify::Ring, Some(BenchGoal::RatioAtMost(1.15))), (Notify::Pointer, None)] {
        next(progress, "one call at a time", if notify == Notify::Ring { 0.0 } else { 0.1 })?;
        let mut port = bench.open(bench.pair.b.qp, notify)?;
        let ping_pong = || bench.pair.write_ping_pong(SMALL, rounds);
        let figures = beside(|| bench.latency(&mut port, rounds), ping_pong)?;
        let what = format!("{link}: call by ring{}", told(notify));
        rows.push(BenchRow::new(what, "ns", "64 B WRITE ping-pong", figures, goal));
    }
    for (notify, goal) in [(Notify::Ring, Some(BenchGoal::ValueAtLeast(per_s))), (Notify::Pointer, None)] {
        next(progress, "64 calls at a time", if notify == Notify::Ring { 0.2 } else { 0.3 })?;
        let mut ports = [(bench.pair.a.qp, bench.open(bench.pair.b.qp, notify)?)];
        let figures = beside(|| Ok(bench.rate(&mut ports, time)? / 1e6), || Ok(bench.verb_rate(time)? / 1e6))?;
        let what = format!("{link}: {DEPTH} calls by ring{}", told(notify));
        rows.push(BenchRow::new(what, "M/s", "by RPC verbs, as many at once", figures, goal));
    }
    next(progress, "many clients", 0.4)?;
    let mut few = bench.connect(TALKING)?;
    // A device of its own: the few are to be without the others.
    let crowd = RingBench::at(link, 3)?;
    let mut all = crowd.connect(connected.max(TALKING))?;
    let figures =
        beside(|| Ok(crowd.rate(&mut all[..TALKING], time)? / 1e6), || Ok(bench.rate(&mut few, time)? / 1e6))?;
    let what = format!("{link}: {TALKING} of {connected} clients call");
    let peer = format!("{TALKING} clients, and no others");
    rows.push(BenchRow::new(what, "M/s", &peer, figures, Some(BenchGoal::RatioAtLeast(0.9))));
    next(progress, "threads", 0.47)?;
    let threads = Threads::start(link)?;
    let figures = beside(|| Ok(threads.sharing(time) / 1e6), || Ok(threads.apart(time) / 1e6))?;
    let what = format!("{link}: {THREADS} threads by one pair of rings");
    rows.push(BenchRow::new(what, "M/s", &format!("{THREADS} threads, a pair each"), figures, None));
    Ok(())
}

/// Threads that call a node at once, each one call after the other: by one client, and by one each.
struct Threads {
    shared: SharedClient,
    clients: Vec<Mutex<Client>>,
    params: Vec<u8>,
    _node: Node,
}

impl Threads {
    fn start(link: LinkKind) -> Result<Self, Error> {
        let node = at_free_loopback(|address| Node::start(NodeConfig::new(address)))?;
        let connect = || {
            let config = |local| ClientConfig { link: Some(link), ..ClientConfig::new(node.address(), local) };
            at_local(node.address(), |local| Client::connect(config(local)))
        };
        let mut first = connect()?;
        let region = first.alloc(64)?;
        let params = SequencerParams { address: region.va, key: region.key, count: 1 }.encode().to_vec();
        let shared = SharedClient::new(first, Placement::Nic, RingConfig::default())?;
        let clients = (0..THREADS).map(|_| {
            let mut client = connect()?;
            client.open_rings(Placement::Nic, RingConfig::default())?;
            Ok::<_, Error>(Mutex::new(client))
        });
        let clients = clients.collect::<Result<_, _>>()?;
        Ok(Self { shared, clients, params, _node: node })
    }

    /// Calls a second by one client.
    fn sharing(&self, time: Duration) -> f64 {
        let call = |_: usize| self.shared.call(op::SEQUENCER, &self.params).0 == Status::Ok;
        per_second(time, call)
    }

    /// Calls a second by a client each.
    fn apart(&self, time: Duration) -> f64 {
        let call = |thread: usize| {
            let mut client = self.clients[thread].lock().unwrap_or_else(PoisonError::into_inner);
            let mut ended = None;
            let mut is_right = client.submit_by_ring(Placement::Nic, op::SEQUENCER, &self.params, 0).is_ok();
            while is_right && ended.is_none() {
                is_right = client.poll(&mut |_, status, _| ended = Some(status == Status::Ok)).is_ok();
            }
            ended == Some(true)
        };
        per_second(time, call)
    }
}

/// Calls a second of all threads together; who fails makes no more.
fn per_second(time: Duration, call: impl Fn(usize) -> bool + Sync) -> f64 {
    let start = Instant::now();
    let done: u64 = std::thread::scope(|scope| {
        let call = &call;
        let work = |thread: usize| (0u64..).take_while(|_| start.elapsed() < time && call(thread)).count() as u64;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_default()).sum()
    });
    done as f64 / start.elapsed().as_secs_f64()
}

fn told(notify: Notify) -> &'static str {
    match notify {
        Notify::Ring => "",
        Notify::Pointer => " and pointer",
    }
}

/// A caller and who serves it.
struct RingBench {
    pair: BenchPair,
}

impl RingBench {
    /// On addresses from this one on.
    fn at(link: LinkKind, first: u8) -> Result<Self, Error> {
        Ok(Self { pair: BenchPair::with_kernels(link, first, echo)? })
    }

    /// Opens a pair of rings between two queue pairs.
    fn open(&self, server: Qpn, notify: Notify) -> Result<RingPort, Error> {
        let config = RingConfig { shape: RingShape::default(), notify };
        let BenchPair { a, b } = &self.pair;
        let (ours, theirs) = (memory(a, config.shape)?, memory(b, config.shape)?);
        let responses = (ours.ring.1.va(), ours.ring.1.key());
        let requests = (theirs.ring.1.va(), theirs.ring.1.key());
        b.device.lock().open_rings(server, &theirs, config, responses)?;
        RingPort::new(ours, config, requests)
    }

    /// So many clients, each with a queue pair and rings of its own.
    fn connect(&self, clients: usize) -> Result<Vec<(Qpn, RingPort)>, Error> {
        let BenchPair { a, b } = &self.pair;
        let client = |_| {
            let (ours, theirs) = (queue_pair(a)?, queue_pair(b)?);
            a.join_as(ours, b, theirs)?;
            b.join_as(theirs, a, ours)?;
            Ok((ours, self.open(theirs, Notify::Ring)?))
        };
        (0..clients).map(client).collect()
    }

    /// What one call takes with nothing else under way, in nanoseconds: median of `rounds`.
    fn latency(&self, port: &mut RingPort, rounds: usize) -> Result<f64, Error> {
        let end = &self.pair.a;
        self.pair.with_peer(
            |stop| serve(&self.pair.b, stop),
            || {
                let mut times = Vec::with_capacity(rounds);
                for round in 0..rounds + 100 {
                    let start = Instant::now();
                    let params = params(round as u64);
                    push(port, 0, &params)?;
                    let mut guard = end.device.lock();
                    port.post(guard.nic(), end.qp);
                    guard.progress();
                    drop(guard);
                    let mut answered = false;
                    while !answered {
                        port.poll(&mut |_, status, reply| answered = status == Status::Ok && reply == params)
                            .map_err(wrong)?;
                        let mut guard = end.device.lock();
                        guard.progress();
                        alive(end, &mut guard)?;
                    }
                    if round >= 100 {
                        times.push(start.elapsed().as_nanos() as f64);
                    }
                }
                Ok(median(times))
            },
        )
    }

    /// Calls a second with [`DEPTH`] under way, by several clients in turn.
    fn rate(&self, ports: &mut [(Qpn, RingPort)], time: Duration) -> Result<f64, Error> {
        let end = &self.pair.a;
        let each = DEPTH.div_ceil(ports.len());
        self.pair.with_peer(
            |stop| serve(&self.pair.b, stop),
            || {
                let (mut next, mut done) = (0u64, 0u64);
                let mut under_way = vec![0; ports.len()];
                let start = Instant::now();
                let (mut more, mut turns) = (true, 0);
                while more || done < next {
                    let mut guard = end.device.lock();
                    for (at, (qp, port)) in (0..).zip(ports.iter_mut()) {
                        // Few at a time, so that the server works on some while others are made.
                        let mut batch = 0;
                        while more && under_way[at] < each && batch < BATCH {
                            push(port, next as u32, &params(u64::from(next as u32)))?;
                            (next, under_way[at], batch) = (next + 1, under_way[at] + 1, batch + 1);
                        }
                        port.post(guard.nic(), *qp);
                    }
                    guard.progress();
                    for (at, (_, port)) in (0..).zip(ports.iter_mut()) {
                        let mut bad = false;
                        let polled = port.poll(&mut |tag, status, reply| {
                            bad |= status != Status::Ok || reply != params(u64::from(tag));
                            (done, under_way[at]) = (done + 1, under_way[at] - 1);
                        });
                        polled.map_err(wrong)?;
                        if bad {
                            return Err(wrong("a reply is not what was asked for"));
                        }
                    }
                    alive(end, &mut guard)?;
                    drop(guard);
                    turns += 1u32;
                    more = more && (!turns.is_multiple_of(16) || start.elapsed() < time);
                }
                Ok(done as f64 / start.elapsed().as_secs_f64())
            },
        )
    }

    /// The same calls by RPC verbs.
    fn verb_rate(&self, time: Duration) -> Result<f64, Error> {
        let end = &self.pair.a;
        let (buffer, region) = lend(end, CallSlots::<u64>::REPLY_BYTES)?;
        let mut slots = CallSlots::new(buffer, region);
        self.pair.with_peer(
            |stop| serve(&self.pair.b, stop),
            || {
                let (mut next, mut done) = (0u64, 0u64);
                let start = Instant::now();
                let (mut more, mut spent) = (true, DEPTH);
                while more || done < next {
                    let mut guard = end.device.lock();
                    for _ in 0..spent {
                        // Those of an earlier measurement may still be there.
                        let _ = guard.nic().post_recv(end.qp, 0, &[]);
                    }
                    spent = 0;
                    while more && slots.len() < DEPTH.min(MAX_CALLS) {
                        let (slot, header) = slots.open(next).map_err(wrong)?;
                        let id = WorkId::Call(slot).encode();
                        guard.nic().post_rpc(end.qp, id, ECHO, &header, &params(next))?;
                        next += 1;
                    }
                    guard.progress();
                    while let Some(wc) = guard.nic().poll_cq(end.cq) {
                        if wc.status != WcStatus::Success {
                            return Err(Error::Lost { address: self.pair.b.device.local(), status: wc.status });
                        }
                        if wc.imm.is_none() {
                            continue;
                        }
                        spent += 1;
                        let Some(reply) = slots.take_reply(wc.imm, wc.byte_len) else { continue };
                        if reply.status != Status::Ok || reply.bytes != params(reply.mark) {
                            return Err(wrong("a reply is not what was asked for"));
                        }
                        done += 1;
                    }
                    drop(guard);
                    more = start.elapsed() < time;
                }
                Ok(done as f64 / start.elapsed().as_secs_f64())
            },
        )
    }
}

/// Takes completions: of pointers, or of what ends it all.
#[inline]
fn alive(end: &End, guard: &mut DeviceGuard<'_>) -> Result<(), Error> {
    while let Some(wc) = guard.nic().poll_cq(end.cq) {
        if wc.status != WcStatus::Success {
            return Err(Error::Lost { address: end.device.local(), status: wc.status });
        }
    }
    Ok(())
}

fn params(number: u64) -> [u8; SMALL] {
    let mut params = [number as u8; SMALL];
    params[..8].copy_from_slice(&number.to_le_bytes());
    params
}

fn push(port: &mut RingPort, tag: u32, params: &[u8]) -> Result<(), Error> {
    let call = RingCall { op: ECHO, tag, room: SMALL as u32 };
    port.push(&call, params).map_err(wrong)?.map_err(wrong)
}

fn wrong(what: impl ToString) -> Error {
    Error::Node { what: "answer calls by rings", why: what.to_string() }
}

fn lend(end: &End, len: usize) -> Result<(Buffer, Arc<remora_memory::Region>), Error> {
    let buffer = remora_real::map_memory(len)?;
    let registry = end.device.lock().nic().registry().clone();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let region = registry.register(end.region.pd(), &buffer, 0, len, None, access)?;
    Ok((buffer, region))
}

fn memory(end: &End, shape: RingShape) -> Result<RingMemory, Error> {
    Ok(RingMemory { ring: lend(end, shape.memory())?, copy: lend(end, shape.bytes())? })
}

fn queue_pair(end: &End) -> Result<Qpn, Error> {
    let mut guard = end.device.lock();
    let nic = guard.nic();
    let init = QpInit { max_send_sge: 1, ..QpInit::new(QpType::Rc, end.region.pd(), end.cq, end.cq) };
    let qp = nic.create_qp(init)?;
    nic.to_init(qp, ALL_REMOTE, 0)?;
    Ok(qp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_measured_and_its_replies_are_right() {
        let plan = RingPlan { rounds: 20, time: Duration::from_millis(3), connected: 30 };
        let mut rows = Vec::new();
        over(plan, LinkKind::Shm, 4.0, &mut rows, &mut |_, _| true).expect("measured");
        assert_eq!(rows.len(), ROWS);
        assert!(rows.iter().all(|row| row.value > 0.0 && row.peer_value > 0.0), "{rows:?}");
    }
}

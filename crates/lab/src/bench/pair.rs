//! Two ends on two cores of this machine, joined by a real link.
//!
//! Both run in this process, one thread and one device each, pinned to two cores where the system allows.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use remora_kernel::Limits;
use remora_memory::{Access, Buffer, Region, Registry};
use remora_nic::{ALL_REMOTE, CqId, Data, QpInit, QpType, Qpn, Route, RtrAttr, RtsAttr, SendOp, SendWr, Sge, WcStatus};
use remora_real::link::Link;
use remora_real::{Device, Error, Kernels, LinkKind, on_core};

use crate::stats::median;

/// Bytes registered on each end.
pub(super) const REGION: usize = 64 << 20;
/// READs and WRITEs kept under way by the throughput measurements.
const DEPTH: usize = 64;

/// One end: a device with kernels, one queue pair and one region.
pub(super) struct End {
    pub(super) device: Device,
    pub(super) cq: CqId,
    pub(super) qp: Qpn,
    pub(super) buffer: Buffer,
    pub(super) region: Arc<Region>,
    mtu: u32,
}

impl End {
    fn new(
        ip: IpAddr,
        link: Box<dyn Link>,
        kernels: fn(&Arc<Registry>) -> Kernels,
        memory: Memory,
    ) -> Result<Self, Error> {
        let mtu = link.max_mtu() as u32;
        let registry = Arc::new(Registry::new(remora_real::entropy()?));
        let kernels = kernels(&registry);
        let device = Device::with_registry(ip, vec![link], registry, Some(kernels))?;
        let buffer = memory(REGION).map_err(|source| Error::System { what: "mapping memory", source })?;
        let mut guard = device.lock();
        let nic = guard.nic();
        let pd = nic.registry().alloc_pd();
        let access = Access::LOCAL_WRITE | ALL_REMOTE;
        let region = nic.registry().register(pd, &buffer, 0, REGION, None, access)?;
        let cq = nic.create_cq(1024)?;
        let init = QpInit { max_send_wr: 2048, max_send_sge: 1, ..QpInit::new(QpType::Rc, pd, cq, cq) };
        let qp = nic.create_qp(init)?;
        nic.to_init(qp, ALL_REMOTE, 0)?;
        drop(guard);
        Ok(Self { device, cq, qp, buffer, region, mtu })
    }

    fn join(&self, peer: &End) -> Result<(), Error> {
        self.join_as(self.qp, peer, peer.qp)
    }

    /// Joins a queue pair to one of the other end.
    pub(super) fn join_as(&self, qp: Qpn, peer: &End, peer_qp: Qpn) -> Result<(), Error> {
        let mut guard = self.device.lock();
        let route = Route { local: self.device.local(), remote: peer.device.local(), link: 0 };
        let psn = remora_wire::Psn::new(1);
        let rtr = RtrAttr {
            route,
            dest_qp: peer_qp.0,
            rq_psn: psn,
            path_mtu: self.mtu.min(peer.mtu),
            max_dest_rd_atomic: 64,
            min_rnr_timer: 1,
        };
        guard.nic().to_rtr(qp, rtr)?;
        guard.nic().to_rts(qp, RtsAttr { sq_psn: psn, max_rd_atomic: 64, ..RtsAttr::default() })?;
        Ok(())
    }

    pub(super) fn sge(&self, offset: usize, len: usize) -> [Sge; 1] {
        [Sge { va: self.region.va() + offset as u64, len: len as u32, lkey: self.region.key() }]
    }

    /// Where the other end's operations on this one go.
    pub(super) fn target(&self) -> Target {
        Target { va: self.region.va(), key: self.region.key() }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) va: u64,
    pub(super) key: u32,
}

/// Where the ends' memory comes from: [`Buffer::lendable`] as Remora's own does, or [`Buffer::anonymous`] as that of a program, which
/// no peer can map.
type Memory = fn(usize) -> std::io::Result<Buffer>;

/// Two ends joined by a link on loopback addresses.
pub(super) struct BenchPair {
    pub(super) a: End,
    pub(super) b: End,
}

impl BenchPair {
    /// Makes the two ends, with the built-in kernels.
    pub fn new(link: LinkKind) -> Result<Self, Error> {
        Self::with(link, 1, |registry| Kernels::builtins(registry, Limits::default()), Buffer::lendable)
    }

    /// As [`new`](Self::new), at other addresses, with memory of a program's own.
    pub fn with_a_programs_memory(link: LinkKind) -> Result<Self, Error> {
        Self::with(link, 5, |registry| Kernels::builtins(registry, Limits::default()), Buffer::anonymous)
    }

    /// Makes the two ends, at 127.0.1.`first` and the next address.
    pub fn with_kernels(link: LinkKind, first: u8, kernels: fn(&Arc<Registry>) -> Kernels) -> Result<Self, Error> {
        Self::with(link, first, kernels, Buffer::lendable)
    }

    fn with(link: LinkKind, first: u8, kernels: fn(&Arc<Registry>) -> Kernels, memory: Memory) -> Result<Self, Error> {
        let [a, b] = [first, first + 1].map(|last| IpAddr::V4(Ipv4Addr::new(127, 0, 1, last)));
        let at = |address| Error::link(link, address);
        let (mut la, lb) = (link.bind(a).map_err(at(a))?, link.bind(b).map_err(at(b))?);
        la.reach(b).map_err(at(b))?;
        let (a, b) = (End::new(a, la, kernels, memory)?, End::new(b, lb, kernels, memory)?);
        a.join(&b)?;
        b.join(&a)?;
        Ok(Self { a, b })
    }

    /// Round-trip time of a ping-pong of WRITEs, each side polling its memory, in nanoseconds: median of `rounds`.
    pub fn write_ping_pong(&self, len: usize, rounds: usize) -> Result<f64, Error> {
        let rtt = self.with_peer(
            |stop| echo(&self.b, &self.a.target(), len, stop),
            || -> Result<f64, Error> {
                let mut times = Vec::with_capacity(rounds);
                for round in 0..rounds as u64 + 100 {
                    let start = Instant::now();
                    self.bump(&self.a, &self.b.target(), len, round + 1)?;
                    wait_for(&self.a, len, round + 1);
                    if round >= 100 {
                        times.push(start.elapsed().as_nanos() as f64);
                    }
                }
                Ok(median(times))
            },
        )?;
        self.reset()?;
        Ok(rtt)
    }

    /// Time of one READ of `len` bytes with nothing else under way, in nanoseconds: median of `rounds`.
    pub fn read_latency(&self, len: usize, rounds: usize) -> Result<f64, Error> {
        let target = self.b.target();
        self.with_peer(
            |stop| serve(&self.b, stop),
            || {
                let mut times = Vec::with_capacity(rounds);
                let sge = self.a.sge(0, len);
                let wr = SendWr::new(0, SendOp::Read { va: target.va, rkey: target.key }, Data::List(&sge));
                for round in 0..rounds + 100 {
                    let start = Instant::now();
                    self.a.device.lock().nic().post_send(self.a.qp, &wr)?;
                    self.await_completions(&self.a, 1)?;
                    if round >= 100 {
                        times.push(start.elapsed().as_nanos() as f64);
                    }
                }
                Ok(median(times))
            },
        )
    }

    /// WRITEs of `len` bytes a second with `DEPTH` under way, over `span` bytes of memory on both sides.
    pub fn write_rate(&self, len: usize, span: usize, time: Duration) -> Result<f64, Error> {
        self.rate(|va, rkey| SendOp::Write { va, rkey }, len, span, time)
    }

    /// As [`write_rate`](Self::write_rate), of READs.
    pub fn read_rate(&self, len: usize, span: usize, time: Duration) -> Result<f64, Error> {
        self.rate(|va, rkey| SendOp::Read { va, rkey }, len, span, time)
    }

    fn rate(&self, op: impl Fn(u64, u32) -> SendOp, len: usize, span: usize, time: Duration) -> Result<f64, Error> {
        let target = self.b.target();
        let slots = (span / len).max(1);
        self.with_peer(
            |stop| serve(&self.b, stop),
            || {
                let (mut posted, mut done) = (0usize, 0usize);
                let start = Instant::now();
                let mut wcs = 0;
                while start.elapsed() < time || done < posted {
                    let more = start.elapsed() < time;
                    let mut guard = self.a.device.lock();
                    for _ in 0..16 {
                        while more && posted - done < DEPTH {
                            let at = (posted % slots) * len;
                            let sge = self.a.sge(at, len);
                            let op = op(target.va + at as u64, target.key);
                            guard.nic().post_send(self.a.qp, &SendWr::new(0, op, Data::List(&sge)))?;
                            posted += 1;
                        }
                        guard.progress();
                        while let Some(wc) = guard.nic().poll_cq(self.a.cq) {
                            wcs += usize::from(wc.status != WcStatus::Success);
                            done += 1;
                        }
                    }
                }
                match wcs {
                    0 => Ok(done as f64 / start.elapsed().as_secs_f64()),
                    _ => Err(Error::Lost { address: self.b.device.local(), status: WcStatus::RetryExceeded }),
                }
            },
        )
    }

    fn bump(&self, end: &End, target: &Target, len: usize, value: u64) -> Result<(), Error> {
        // The sequence number is the last word: it lands last.
        let _ = end.buffer.store_u64(len - 8 + HALF, value);
        let op = SendOp::Write { va: target.va, rkey: target.key };
        let sge = end.sge(HALF, len);
        let wr = SendWr::new(0, op, Data::List(&sge)).unsignaled();
        let mut guard = end.device.lock();
        guard.nic().post_send(end.qp, &wr)?;
        guard.progress();
        Ok(())
    }

    fn await_completions(&self, end: &End, count: usize) -> Result<(), Error> {
        let mut seen = 0;
        while seen < count {
            let mut guard = end.device.lock();
            guard.progress();
            while let Some(wc) = guard.nic().poll_cq(end.cq) {
                if wc.status != WcStatus::Success {
                    return Err(Error::Lost { address: self.b.device.local(), status: wc.status });
                }
                seen += 1;
            }
        }
        Ok(())
    }

    /// Makes both sequence numbers zero again.
    fn reset(&self) -> Result<(), Error> {
        for end in [&self.a, &self.b] {
            let _ = end.buffer.fill(0, 4096, 0);
        }
        Ok(())
    }

    /// Runs `main` on this thread's core while `peer` runs on another.
    pub(super) fn with_peer<R, E>(
        &self,
        peer: impl FnOnce(&AtomicBool) + Send,
        main: impl FnOnce() -> Result<R, E>,
    ) -> Result<R, E> {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| on_core(1, || peer(&stop)));
            let result = on_core(0, main);
            stop.store(true, Ordering::Relaxed);
            result
        })
    }
}

impl Drop for BenchPair {
    fn drop(&mut self) {
        self.a.device.stop();
        self.b.device.stop();
    }
}

/// Sources of ping-pong WRITEs lie here, targets at 0.
const HALF: usize = REGION / 2;

/// Answers each WRITE of the ping-pong with one of its own.
fn echo(end: &End, target: &Target, len: usize, stop: &AtomicBool) {
    let mut expected = 1;
    let op = SendOp::Write { va: target.va, rkey: target.key };
    let sge = end.sge(HALF, len);
    let wr = SendWr::new(0, op, Data::List(&sge)).unsignaled();
    while !stop.load(Ordering::Relaxed) {
        let mut guard = end.device.lock();
        guard.progress();
        if end.buffer.load_u64(len - 8).is_ok_and(|v| v == expected) {
            let _ = end.buffer.store_u64(len - 8 + HALF, expected);
            if guard.nic().post_send(end.qp, &wr).is_err() {
                return;
            }
            expected += 1;
        }
    }
}

fn wait_for(end: &End, len: usize, value: u64) {
    while end.buffer.load_u64(len - 8).is_ok_and(|v| v != value) {
        end.device.lock().progress();
    }
}

/// Drives the engine of a passive end.
pub(super) fn serve(end: &End, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let mut guard = end.device.lock();
        for _ in 0..16 {
            guard.progress();
        }
    }
}

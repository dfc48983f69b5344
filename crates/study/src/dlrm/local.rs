//! One core of this process that reduces, beside what the same memory gives who only reads it; and two, of which one reads
//! requests as people write them and hands them over by a ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use remora_kernel::{Call, Limits, Runner, Status, host_runner, op};
use remora_memory::{Access, Buffer, Pd, Region, Registry};
use remora_real::on_core;
use remora_ring::{RingShape, SharedEnd};
use remora_store::embedding::parse_items;
use remora_store::memo::Rewriter;
use remora_store::{Arena, Place};

use super::catalogue::Catalogue;
use crate::StudyError;

/// Calls under way on a core.
pub const DEPTH: usize = 4;
/// Bytes that are read at a time where memory is only read: they stay in the nearest cache.
const BLOCK: usize = 16 << 10;
/// Requests under way between two cores.
const UNDER_WAY: usize = 64;

/// Memory of this process, in one region.
pub struct Own {
    registry: Arc<Registry>,
    pd: Pd,
    memory: Option<(Buffer, Arc<Region>)>,
}

fn failed(error: impl std::fmt::Display) -> StudyError {
    StudyError::Failed(format!("a table in memory: {error}"))
}

impl Arena for Own {
    type Error = StudyError;

    fn alloc(&mut self, len: u64) -> Result<Place, StudyError> {
        let buffer = Buffer::anonymous(len as usize).map_err(failed)?;
        let region = self.registry.register(self.pd, &buffer, 0, len as usize, None, Access::REMOTE_READ);
        let region = region.map_err(failed)?;
        let place = Place { va: region.va(), key: region.key() };
        self.memory = Some((buffer, region));
        Ok(place)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), StudyError> {
        match &self.memory {
            Some((_, region)) => region.write(at.va, bytes).map_err(failed),
            None => Err(failed("none was allocated")),
        }
    }
}

/// What a core did in a while.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Requests a second.
    pub requests: f64,
    /// Bytes of rows a second.
    pub bytes: f64,
}

impl Own {
    /// None yet.
    pub fn new() -> Self {
        let registry = Arc::new(Registry::new([9; 32]));
        Self { pd: registry.alloc_pd(), registry, memory: None }
    }

    /// Bytes a second that one core reads of the table, one after the other: the better of two ways.
    pub fn read_bandwidth(&self, time: Duration) -> f64 {
        let Some((buffer, _)) = &self.memory else { return 0.0 };
        on_core(0, || {
            let rate = |read: &dyn Fn(usize, &mut [u8])| {
                let (mut out, mut at, mut bytes, start) = (vec![0; BLOCK], 0, 0usize, Instant::now());
                loop {
                    for _ in 0..64 {
                        let len = BLOCK.min(buffer.len() - at);
                        read(at, &mut out[..len]);
                        std::hint::black_box(&mut out);
                        bytes += len;
                        at = if at + len < buffer.len() { at + len } else { 0 };
                    }
                    if start.elapsed() >= time / 2 {
                        return bytes as f64 / start.elapsed().as_secs_f64();
                    }
                }
            };
            let copied = rate(&|at, out| _ = buffer.read(at, out));
            copied.max(rate(&|at, out| _ = buffer.take(at, out)))
        })
    }

    fn runner(&self) -> Box<dyn Runner + Send> {
        host_runner(self.registry.clone(), true, DEPTH, Limits::default())
    }

    /// One core reduces: requests that name items, or sums of groups.
    pub fn reduce(&self, catalogue: &Catalogue, with_sums: bool, time: Duration) -> Result<Done, StudyError> {
        on_core(0, || {
            let mut runner = self.runner();
            let mut calls: Vec<Call> = (0..DEPTH).map(|_| Call::default()).collect();
            let (mut next, mut ended, mut rows, mut right) = (0, 0u64, 0u64, true);
            let (requests, which) = (&catalogue.requests, usize::from(with_sums));
            let start = Instant::now();
            let mut more = true;
            while more || runner.in_flight() > 0 {
                while more && let Some(mut call) = calls.pop() {
                    let request = &requests[next];
                    call.recycle(op::EMBED, 4 << 10);
                    (call.pd, call.tag) = (Some(self.pd), next as u64);
                    call.params.extend_from_slice(&request.params[which]);
                    if let Err(call) = runner.start(call) {
                        calls.push(call);
                        break;
                    }
                    next = if next + 1 < requests.len() { next + 1 } else { 0 };
                }
                runner.poll(&mut |call, status| {
                    let request = &requests[call.tag as usize];
                    right &= status == Status::Ok && catalogue.check(request, &call.reply);
                    (ended, rows) = (ended + 1, rows + request.rows[which] as u64);
                    calls.push(call);
                });
                more = more && (!ended.is_multiple_of(16) || start.elapsed() < time);
            }
            if !right {
                return Err(StudyError::Failed("a reduction is wrong".into()));
            }
            let seconds = start.elapsed().as_secs_f64();
            let bytes = rows as f64 * catalogue.table.table().row_bytes() as f64;
            Ok(Done { requests: ended as f64 / seconds, bytes: bytes / seconds })
        })
    }

    /// One core reads requests as people write them, and another one reduces: requests a second, and the part of the first
    /// one's time that reading takes, if it has nothing else to do.
    pub fn reduce_parsed(&self, catalogue: &Catalogue, time: Duration) -> Result<(f64, f64), StudyError> {
        let shape = RingShape::default();
        let memory = || Buffer::anonymous(shape.memory()).map_err(failed);
        let (asks, answers) = (memory()?, memory()?);
        let mut parser = End(SharedEnd::new(shape, &asks, &answers));
        let mut reducer = End(SharedEnd::new(shape, &answers, &asks));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let served = scope.spawn(|| {
                let served = on_core(1, || self.serve(&mut reducer, &stop));
                // Who waits for answers is to hear of it.
                stop.store(true, Ordering::Relaxed);
                served
            });
            let asked = on_core(0, || ask(&mut parser, catalogue, time, &stop));
            stop.store(true, Ordering::Relaxed);
            match served.join() {
                Ok(served) => served.and(asked),
                Err(_) => Err(StudyError::Failed("the core that reduces has ended".into())),
            }
        })
    }

    /// Takes calls from a ring until it is told to stop.
    fn serve(&self, ring: &mut End, stop: &AtomicBool) -> Result<(), StudyError> {
        let mut runner = self.runner();
        let mut calls: Vec<Call> = (0..DEPTH).map(|_| Call::default()).collect();
        let mut ended: Vec<(Call, Status)> = Vec::with_capacity(DEPTH);
        while !stop.load(Ordering::Relaxed) {
            while let Some(mut call) = calls.pop() {
                call.recycle(op::EMBED, 4 << 10);
                let Some(tag) = ring.poll(&mut call.params)? else {
                    calls.push(call);
                    break;
                };
                (call.pd, call.tag) = (Some(self.pd), tag.into());
                if runner.start(call).is_err() {
                    return Err(failed("a pool with room takes no call"));
                }
            }
            runner.poll(&mut |call, status| ended.push((call, status)));
            while let Some((call, status)) = ended.pop() {
                let reply: &[u8] = if status == Status::Ok { &call.reply } else { &[] };
                if !ring.push(call.tag as u32, reply)? {
                    ended.push((call, status));
                    break;
                }
                calls.push(call);
            }
            ring.0.tell();
        }
        Ok(())
    }
}

/// Reads requests, hands them over, and checks what comes back.
fn ask(ring: &mut End, catalogue: &Catalogue, time: Duration, stop: &AtomicBool) -> Result<(f64, f64), StudyError> {
    let requests = &catalogue.requests;
    let (mut items, mut params, mut rewriter) = (Vec::new(), Vec::new(), Rewriter::default());
    let mut read = |at: usize, params: &mut Vec<u8>| {
        params.clear();
        parse_items(requests[at].text.as_bytes(), &mut items).map_err(failed)?;
        catalogue.table.params(remora_kernel::embed::Reduction::Sum, &items, &[], &mut rewriter, params).map_err(failed)
    };
    let (mut next, mut under_way, mut ended, mut waiting, mut reply) = (0, 0, 0u64, false, Vec::new());
    let start = Instant::now();
    let mut more = true;
    while more || under_way > 0 {
        if more && under_way < UNDER_WAY {
            if !std::mem::replace(&mut waiting, true) {
                read(next, &mut params)?;
            }
            if ring.push(next as u32, &params)? {
                (waiting, under_way) = (false, under_way + 1);
                next = if next + 1 < requests.len() { next + 1 } else { 0 };
            }
        }
        while let Some(tag) = ring.poll(&mut reply)? {
            if !requests.get(tag as usize).is_some_and(|request| catalogue.check(request, &reply)) {
                return Err(failed("a reduction by a ring is wrong"));
            }
            (under_way, ended) = (under_way - 1, ended + 1);
        }
        ring.0.tell();
        if stop.load(Ordering::Relaxed) {
            return Err(failed("nobody reduces any more"));
        }
        more = more && start.elapsed() < time;
    }
    let rate = ended as f64 / start.elapsed().as_secs_f64();
    let (start, mut count) = (Instant::now(), 0u64);
    while start.elapsed() < time / 4 {
        read(count as usize % requests.len(), &mut params)?;
        std::hint::black_box(&params);
        count += 1;
    }
    Ok((rate, rate * start.elapsed().as_secs_f64() / count as f64))
}

/// One side of a pair of rings, whose messages have tags.
struct End(SharedEnd);

impl End {
    /// Takes the next message: its tag, and the rest of it in `out`.
    fn poll(&mut self, out: &mut Vec<u8>) -> Result<Option<u32>, StudyError> {
        let mut tag = [0; 4];
        let mut front = &mut tag[..];
        let came = self.0.poll_split(&mut front, out).map_err(failed)?;
        Ok(came.then_some(u32::from_le_bytes(tag)))
    }

    /// Puts a message in; false if there is no room yet.
    fn push(&mut self, tag: u32, bytes: &[u8]) -> Result<bool, StudyError> {
        Ok(self.0.push(&[&tag.to_le_bytes(), bytes]).map_err(failed)?.is_ok())
    }
}

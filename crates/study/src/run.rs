//! The measuring loop: calls back to back, a fixed number of them in flight, every reply checked.

use std::time::{Duration, Instant};

use remora_kernel::Status;

use crate::Error;
use crate::measure::{Placement, Tally};
use crate::target::Target;

/// A stream of calls and what their replies must be.
pub trait Calls {
    /// The kernel's op-code.
    fn op(&self) -> u64;

    /// Puts the next call's parameters into `params`. Returns a number by which [`Calls::check`] knows the call.
    fn next(&mut self, params: &mut Vec<u8>) -> u64;

    /// Whether the reply to call `id` is what it must be. Returns how often the kernel read an object again.
    fn check(&self, id: u64, status: Status, reply: &[u8]) -> Result<u64, String>;
}

/// How long to measure what.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    /// Where the kernel runs.
    pub placement: Placement,
    /// Calls under way at once.
    pub in_flight: u32,
    /// How long to keep starting calls.
    pub time: Duration,
}

/// No reply for so long is a failure of the node.
const PATIENCE: Duration = Duration::from_secs(10);

/// Before the time given, this part of it goes by without being measured.
const WARM_UP: u32 = 6;

/// Runs calls for the time given, after a warm-up, and adds what they took to `tally`. `stop` is asked now and then;
/// when it says so the run ends with [`Error::Interrupted`].
pub fn run(
    target: &mut dyn Target,
    calls: &mut dyn Calls,
    slice: Slice,
    tally: &mut Tally,
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let mut window = Window::new(slice.in_flight);
    let warm_up = Slice { time: slice.time / WARM_UP, ..slice };
    window.drive(target, calls, &warm_up, &mut Tally::default(), stop)?;

    // What asking the node costs lies outside what is counted.
    let node_before = target.node_cpu_ns()?;
    let (counts_before, cpu_before, start) = (target.counts(), remora_real::process_cpu_ns(), Instant::now());
    window.drive(target, calls, &slice, tally, stop)?;
    let (elapsed, cpu, counts) = (start.elapsed(), remora_real::process_cpu_ns() - cpu_before, target.counts());
    let node = target.node_cpu_ns()?.saturating_sub(node_before);
    tally.add(elapsed, counts.since(counts_before), cpu, node);
    Ok(())
}

/// Calls under way, by tag.
struct Window {
    started: Vec<(Instant, u64)>,
    free: Vec<u32>,
    params: Vec<u8>,
}

impl Window {
    fn new(in_flight: u32) -> Self {
        Self {
            started: vec![(Instant::now(), 0); in_flight as usize],
            free: (0..in_flight).rev().collect(),
            params: Vec::with_capacity(256),
        }
    }

    /// Keeps the window full until the time is over, then lets it drain. At least one call is made.
    fn drive(
        &mut self,
        target: &mut dyn Target,
        calls: &mut dyn Calls,
        slice: &Slice,
        tally: &mut Tally,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        let start = Instant::now();
        let mut progress = start;
        let mut starting = true;
        while starting || self.free.len() < self.started.len() {
            while starting && let Some(tag) = self.free.pop() {
                self.params.clear();
                let id = calls.next(&mut self.params);
                self.started[tag as usize] = (Instant::now(), id);
                if target.submit(slice.placement, calls.op(), &self.params, tag).is_err() {
                    return Err(Error::Refused { placement: slice.placement, link: target.link() });
                }
            }
            let finished = self.poll(target, calls, slice.placement, tally)?;
            let now = Instant::now();
            if finished > 0 {
                progress = now;
                starting = starting && now - start < slice.time;
            } else if now - progress > PATIENCE {
                return Err(Error::Silent { link: target.link(), after: PATIENCE });
            }
            if stop() {
                return Err(Error::Interrupted);
            }
        }
        Ok(())
    }

    fn poll(
        &mut self,
        target: &mut dyn Target,
        calls: &dyn Calls,
        placement: Placement,
        tally: &mut Tally,
    ) -> Result<usize, Error> {
        let Self { started, free, .. } = self;
        let Tally { latencies, rereads, .. } = tally;
        let mut wrong = None;
        let finished = target.poll(&mut |tag, status, reply| {
            let now = Instant::now();
            let Some(&(since, id)) = started.get(tag as usize) else { return };
            latencies.record(now - since);
            free.push(tag);
            match calls.check(id, status, reply) {
                Ok(more) => *rereads += more,
                Err(what) => wrong = Some(what),
            }
        })?;
        match wrong {
            None => Ok(finished),
            Some(what) => Err(Error::Wrong { placement, link: target.link(), what }),
        }
    }
}

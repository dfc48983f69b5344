//! The measuring loop: calls back to back, a fixed number of them in flight, every reply checked.

use std::time::{Duration, Instant};

use remora_kernel::Status;

use crate::Error;
use crate::measure::Tally;
use crate::target::Target;
use remora_kernel::Placement;

/// A stream of calls and what their replies must be.
pub trait Calls {
    /// The kernel's op-code.
    fn op(&self) -> u64;

    /// Chooses the next call: a number by which the other methods know it.
    fn next(&mut self) -> u64;

    /// Puts the parameters of call `id` into `params`.
    fn params(&self, id: u64, params: &mut Vec<u8>);

    /// Whether the reply to call `id` is what it must be; if not, what is wrong.
    fn check(&self, id: u64, status: Status, reply: &[u8]) -> Result<Outcome, String>;
}

/// How a call ended that did nothing wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With the right result.
    Verified {
        /// Reads of an object beyond the first.
        rereads: u64,
    },
    /// Without one, because the object changed during every try. The call is made again; its latency goes on.
    GaveUp,
}

impl Outcome {
    /// The right result at the first try.
    pub const RIGHT: Self = Self::Verified { rereads: 0 };
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
    /// Calls to make again.
    again: Vec<u32>,
    params: Vec<u8>,
}

impl Window {
    fn new(in_flight: u32) -> Self {
        Self {
            started: vec![(Instant::now(), 0); in_flight as usize],
            free: (0..in_flight).rev().collect(),
            again: Vec::with_capacity(in_flight as usize),
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
                self.started[tag as usize] = (Instant::now(), calls.next());
                self.submit(target, calls, slice.placement, tag)?;
            }
            while let Some(tag) = self.again.pop() {
                self.submit(target, calls, slice.placement, tag)?;
            }
            let finished = self.poll(target, calls, slice.placement, tally)?;
            let now = Instant::now();
            if finished {
                progress = now;
                starting = starting && now - start < slice.time;
            } else if now - progress > PATIENCE {
                return Err(Error::Stuck { placement: slice.placement, link: target.link(), after: PATIENCE });
            }
            if stop() {
                return Err(Error::Interrupted);
            }
        }
        Ok(())
    }

    fn submit(
        &mut self,
        target: &mut dyn Target,
        calls: &dyn Calls,
        placement: Placement,
        tag: u32,
    ) -> Result<(), Error> {
        self.params.clear();
        calls.params(self.started[tag as usize].1, &mut self.params);
        let submitted = target.submit(placement, calls.op(), &self.params, tag);
        submitted.map_err(|_| Error::Refused { placement, link: target.link() })
    }

    /// Takes finished calls. Whether there were any with a result.
    fn poll(
        &mut self,
        target: &mut dyn Target,
        calls: &dyn Calls,
        placement: Placement,
        tally: &mut Tally,
    ) -> Result<bool, Error> {
        let Self { started, free, again, .. } = self;
        let mut finished = false;
        let mut wrong = None;
        target.poll(&mut |tag, status, reply| {
            let now = Instant::now();
            let Some(&(since, id)) = started.get(tag as usize) else { return };
            match calls.check(id, status, reply) {
                Ok(Outcome::Verified { rereads }) => {
                    tally.latencies.record(now - since);
                    tally.rereads += rereads;
                    free.push(tag);
                    finished = true;
                }
                Ok(Outcome::GaveUp) => {
                    tally.repeated += 1;
                    again.push(tag);
                }
                Err(what) => wrong = Some(what),
            }
        })?;
        match wrong {
            None => Ok(finished),
            Some(what) => Err(Error::Wrong { placement, link: target.link(), what }),
        }
    }
}

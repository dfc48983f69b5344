//! Calls of kernels in the closed loop, every reply checked.

use std::time::Duration;

use remora_kernel::{Placement, Places, Status};
use remora_lab::stats::Latencies;
use remora_model::time::Ps;

use crate::StudyError;
use crate::connection::{Caller, Connection};
use crate::load::{self, Begun, CallEnd, Trouble, Until};
use crate::measure::Tally;

/// A stream of calls and what their replies must be.
pub trait Calls {
    /// The kernel's op-code.
    fn op(&self) -> u64;

    /// The op-code of call `id`, where they differ.
    fn op_of(&self, _id: u64) -> u64 {
        self.op()
    }

    /// The op-codes that calls have.
    fn ops(&self) -> Vec<u64> {
        vec![self.op()]
    }

    /// Whether all of them may run at a place, if their places are chosen.
    fn may_run(&self, place: Placement) -> bool {
        self.ops().into_iter().all(|op| Places::of(op).has(place))
    }

    /// The calls to come run there.
    fn place(&mut self, _placement: Placement) {}

    /// Chooses the next call: a number by which the other methods know it.
    fn next(&mut self) -> u64;

    /// Puts the parameters of call `id` into `params`.
    fn params(&self, id: u64, params: &mut Vec<u8>);

    /// Whether the reply to call `id` is what it must be; if not, what is wrong.
    fn check(&self, id: u64, status: Status, reply: &[u8]) -> Result<Checked, String>;
}

/// How a call ended that did nothing wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// With the right result.
    Verified {
        /// Reads of an object beyond the first.
        rereads: u64,
    },
    /// Without one, because the object changed during every try. The call is made again; its latency goes on.
    GaveUp,
}

impl Checked {
    /// The right result at the first try.
    pub const RIGHT: Self = Self::Verified { rereads: 0 };
}

/// How long to measure what.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    /// Where the kernel runs.
    pub placement: Placement,
    /// Whether calls go by rings in memory.
    pub by_ring: bool,
    /// If the place is chosen for each call, what class calls are of.
    pub auto: Option<u64>,
    /// Calls under way at once.
    pub in_flight: u32,
    /// How long to keep starting calls.
    pub time: Duration,
}

/// Before the time given, this part of it goes by without being measured.
const WARM_UP: u32 = 6;

/// Runs calls for the time given, after a warm-up, and adds what they took to `tally`. `stop` is asked now and then;
/// when it says so the run ends with [`StudyError::Interrupted`].
pub fn run(
    connection: &mut dyn Connection,
    calls: &mut dyn Calls,
    slice: Slice,
    tally: &mut Tally,
    stop: &dyn Fn() -> bool,
) -> Result<(), StudyError> {
    let Slice { placement, by_ring, auto, in_flight, time } = slice;
    Calling::new(&mut *connection, calls, placement).by_ring(by_ring).auto(auto).run(
        in_flight,
        Until::time(time / WARM_UP),
        &mut |_, _, _| {},
        stop,
    )?;

    // What asking the node costs lies outside what is counted.
    let node_before = connection.node_cpu_ns()?;
    let (counts_before, cpu_before) = (connection.counts(), remora_real::process_cpu_ns());
    let mut latencies = Latencies::new();
    let mut add = |rereads, since: Ps, at: Ps| {
        let latency = load::duration(at - since);
        latencies.record(latency);
        if let Some(samples) = &mut tally.samples_ns {
            samples.push(latency.as_nanos() as u64);
        }
        tally.rereads += rereads;
    };
    let calling = Calling::new(&mut *connection, calls, placement).by_ring(by_ring).auto(auto);
    let ran = calling.run(in_flight, Until::time(time), &mut add, stop)?;
    let (cpu, counts) = (remora_real::process_cpu_ns() - cpu_before, connection.counts());
    let node = connection.node_cpu_ns()?.saturating_sub(node_before);
    tally.repeated += ran.repeated;
    tally.add(&latencies, load::duration(ran.elapsed), counts.since(counts_before), cpu, node);
    Ok(())
}

/// Calls of one kernel in one placement, as a loop drives them.
pub struct Calling<'a, C: Caller + ?Sized> {
    caller: &'a mut C,
    calls: &'a mut dyn Calls,
    placement: Placement,
    /// Whether calls go by rings in memory.
    by_ring: bool,
    /// If the place is chosen for each call, what class calls are of.
    auto: Option<u64>,
    /// The present, if the clock is read once a turn.
    turn: Option<Ps>,
    /// The call of each tag.
    ids: Vec<u64>,
    params: Vec<u8>,
}

impl<'a, C: Caller + ?Sized> Calling<'a, C> {
    /// Calls that are timed one by one.
    pub fn new(caller: &'a mut C, calls: &'a mut dyn Calls, placement: Placement) -> Self {
        calls.place(placement);
        let (ids, params) = (Vec::new(), Vec::with_capacity(256));
        Self { caller, calls, placement, by_ring: false, auto: None, turn: None, ids, params }
    }

    /// Calls go by rings in memory, if so.
    pub fn by_ring(mut self, by_ring: bool) -> Self {
        self.by_ring = by_ring;
        self
    }

    /// The place is chosen for each call, if so; calls are of this class.
    pub fn auto(mut self, class: Option<u64>) -> Self {
        self.auto = class;
        self
    }

    /// With one look at the clock each turn, for rates alone: it takes a part of a short call.
    pub fn untimed(mut self) -> Self {
        self.turn = Some(self.caller.now());
        self
    }

    /// Who makes them.
    pub fn caller(&mut self) -> &mut C {
        self.caller
    }

    /// Makes the calls turn by turn, with so many of them under way.
    pub fn turns(mut self, in_flight: u32, until: Until) -> (Self, load::Closed) {
        self.ids.resize(in_flight as usize, 0);
        let turns = load::Closed::new(&self, in_flight, until);
        (self, turns)
    }

    /// Keeps `in_flight` calls under way; see [`load::closed`]. What is told of each is how often its object was read again.
    pub fn run(
        mut self,
        in_flight: u32,
        until: Until,
        tally: &mut impl FnMut(u64, Ps, Ps),
        stop: &dyn Fn() -> bool,
    ) -> Result<load::Ran, C::Error> {
        self.ids.resize(in_flight as usize, 0);
        load::closed(&mut self, in_flight, until, tally, stop)
    }

    /// Makes calls as they arrive, with at most `slots` of them under way; see [`load::open`].
    pub fn run_open(
        mut self,
        arrivals: &mut load::Arrivals,
        slots: u32,
        until: Until,
        tally: &mut impl FnMut(u64, Ps, Ps),
        stop: &dyn Fn() -> bool,
    ) -> Result<load::Ran, C::Error> {
        self.ids.resize(slots as usize, 0);
        load::open(&mut self, arrivals, slots, until, tally, stop)
    }

    fn submit(&mut self, tag: u32) -> Result<Begun, C::Error> {
        let Self { caller, calls, placement, by_ring, auto, ids, params, .. } = self;
        params.clear();
        calls.params(ids[tag as usize], params);
        let op = calls.op_of(ids[tag as usize]);
        let submitted = match (*auto, *by_ring) {
            (Some(class), _) => caller.submit_auto((op, class), params, tag).map(drop),
            (None, true) => caller.submit_by_ring(*placement, op, params, tag),
            (None, false) => caller.submit(*placement, op, params, tag),
        };
        submitted.map_err(|_| caller.refused(*placement)).map(|()| Begun::Yes)
    }
}

impl<C: Caller + ?Sized> load::Target for Calling<'_, C> {
    type Told = u64;
    type Error = C::Error;

    fn patience(&self) -> Duration {
        self.caller.patience()
    }

    fn now(&self) -> Ps {
        self.turn.unwrap_or_else(|| self.caller.now())
    }

    fn begin(&mut self, slot: u32, _: Ps) -> Result<Begun, C::Error> {
        self.ids[slot as usize] = self.calls.next();
        self.submit(slot)
    }

    fn again(&mut self, slot: u32) -> Result<(), C::Error> {
        self.submit(slot).map(drop)
    }

    fn poll(&mut self, until: Ps, ended: &mut impl FnMut(u32, Ps, CallEnd<u64>)) -> Result<bool, C::Error> {
        let Self { caller, calls, turn, ids, .. } = self;
        let went_on = caller.poll_until(until, &mut |answer| {
            let at = turn.unwrap_or_else(|| answer.ended());
            let Some(&id) = ids.get(answer.tag as usize) else { return };
            let end = match calls.check(id, answer.status, answer.reply) {
                Ok(Checked::Verified { rereads }) => CallEnd::Right(rereads),
                Ok(Checked::GaveUp) => CallEnd::Again,
                Err(what) => CallEnd::Wrong(what),
            };
            ended(answer.tag, at, end);
        })?;
        *turn = turn.map(|_| caller.now());
        Ok(went_on)
    }

    fn trouble(&self, trouble: Trouble) -> C::Error {
        self.caller.trouble(self.placement, trouble)
    }
}

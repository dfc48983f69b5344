//! What the loops of the benchmark drive.

use std::cell::Cell;
use std::time::{Duration, Instant};

use remora_kernel::{Call, Placement, Runner, Status};
use remora_memory::Pd;
use remora_model::time::Ps;
use remora_real::Client;
use remora_service::Full;

use super::{Gets, HOSTILE, IN_FLIGHT, VALUE};
use crate::StudyError;
use crate::calling::{Calling, Calls, Checked};
use crate::compare::Watch;
use crate::connection::{CallAnswer, Caller};
use crate::load::{self, Begun, CallEnd, Closed, Trouble, Until, system_time};

/// GETs of the table, of one kernel.
pub struct GetCalls<'a> {
    op: u64,
    gets: &'a Gets,
    next: u64,
}

impl<'a> GetCalls<'a> {
    pub fn new(op: u64, gets: &'a Gets) -> Self {
        Self { op, gets, next: 0 }
    }
}

impl Calls for GetCalls<'_> {
    fn op(&self) -> u64 {
        self.op
    }

    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn params(&self, id: u64, params: &mut Vec<u8>) {
        params.extend_from_slice(&self.gets.params(id).1);
    }

    fn check(&self, id: u64, status: Status, reply: &[u8]) -> Result<Checked, String> {
        if status == Status::Ok && reply.get(..8) == Some(&self.gets.key(id).to_le_bytes()[..]) {
            return Ok(Checked::RIGHT);
        }
        Err(format!("a GET of op-code {:#x} brought a wrong value", self.op))
    }
}

/// Calls whose answers nobody looks at but for the status of the last one.
pub struct Anything<'a> {
    pub op: u64,
    pub params: [u8; 28],
    pub status: &'a Cell<Option<Status>>,
}

impl Calls for Anything<'_> {
    fn op(&self) -> u64 {
        self.op
    }

    fn next(&mut self) -> u64 {
        0
    }

    fn params(&self, _: u64, params: &mut Vec<u8>) {
        params.extend_from_slice(&self.params);
    }

    fn check(&self, _: u64, status: Status, _: &[u8]) -> Result<Checked, String> {
        self.status.set(Some(status));
        Ok(Checked::RIGHT)
    }
}

/// Another client, which keeps [`HOSTILE`] calls under way.
pub struct Other<'a> {
    calling: Calling<'a, Client>,
    turns: Closed,
    /// Calls that have ended.
    pub ended: u64,
}

impl<'a> Other<'a> {
    pub fn new(client: &'a mut Client, calls: &'a mut dyn Calls, place: Placement) -> Self {
        let (calling, turns) = Calling::new(client, calls, place).turns(HOSTILE, Until::Over);
        Self { calling, turns, ended: 0 }
    }

    fn turn(&mut self) -> Result<bool, StudyError> {
        let ended = &mut self.ended;
        self.turns.turn(&mut self.calling, &mut |_, _, _| *ended += 1, &|| false)
    }

    /// Waits for what is under way.
    pub fn finish(&mut self) -> Result<(), StudyError> {
        self.turns.finish();
        while self.turn()? {}
        Ok(())
    }
}

/// A client that gives another one a turn after each of its own.
pub struct Beside<'a, 'b> {
    pub client: &'a mut Client,
    pub other: Option<&'a mut Other<'b>>,
}

impl Caller for Beside<'_, '_> {
    type Error = StudyError;

    fn now(&self) -> Ps {
        self.client.now()
    }

    fn patience(&self) -> Duration {
        self.client.patience()
    }

    fn submit(&mut self, placement: Placement, op: u64, params: &[u8], tag: u32) -> Result<(), Full> {
        Caller::submit(self.client, placement, op, params, tag)
    }

    fn poll(&mut self, done: &mut dyn FnMut(CallAnswer<'_>)) -> Result<bool, StudyError> {
        Caller::poll(self.client, done)?;
        match &mut self.other {
            Some(other) => other.turn(),
            None => Ok(true),
        }
    }

    fn refused(&self, placement: Placement) -> StudyError {
        self.client.refused(placement)
    }

    fn trouble(&self, placement: Placement, trouble: Trouble) -> StudyError {
        self.client.trouble(placement, trouble)
    }
}

/// Calls of a runner in this process. The clock is read now and then: a call takes tens of nanoseconds.
struct Runs<'a> {
    runner: &'a mut dyn Runner,
    pd: Pd,
    op: u64,
    gets: Option<&'a Gets>,
    /// Calls that are not under way: a new one would allocate.
    spare: Vec<Call>,
    keys: [u64; IN_FLIGHT as usize],
    begun: u64,
    now: Ps,
}

/// Nanoseconds a call of a runner, with [`IN_FLIGHT`] at once.
pub fn run(
    runner: &mut dyn Runner,
    (pd, op): (Pd, u64),
    time: Duration,
    gets: Option<&Gets>,
    watch: &dyn Watch,
) -> Result<f64, StudyError> {
    let spare = (0..IN_FLIGHT).map(|_| Call::default()).collect();
    let begin = Instant::now();
    let mut runs = Runs { runner, pd, op, gets, spare, keys: Default::default(), begun: 0, now: system_time() };
    let ran = load::closed(&mut runs, IN_FLIGHT, Until::time(time), &mut |(), _, _| {}, &|| watch.stop())?;
    Ok(begin.elapsed().as_nanos() as f64 / ran.ended as f64)
}

impl load::Target for Runs<'_> {
    type Told = ();
    type Error = StudyError;

    fn now(&self) -> Ps {
        self.now
    }

    fn begin(&mut self, slot: u32, _: Ps) -> Result<Begun, StudyError> {
        let mut call = self.spare.pop().unwrap_or_default();
        call.recycle(self.op, VALUE as u32);
        (call.pd, call.tag) = (Some(self.pd), slot.into());
        if let Some(gets) = self.gets {
            let (key, params) = gets.params(self.begun);
            self.keys[slot as usize] = key;
            call.params.extend_from_slice(&params);
        }
        self.begun += 1;
        if self.begun.is_multiple_of(4096) {
            self.now = system_time();
        }
        match self.runner.start(call) {
            Ok(()) => Ok(Begun::Yes),
            Err(call) => {
                self.spare.push(call);
                Ok(Begun::Later)
            }
        }
    }

    fn again(&mut self, _: u32) -> Result<(), StudyError> {
        // None ends so.
        Ok(())
    }

    fn poll(&mut self, _: Ps, ended: &mut impl FnMut(u32, Ps, CallEnd<()>)) -> Result<bool, StudyError> {
        let Self { runner, op, gets, spare, keys, now, .. } = self;
        runner.poll(&mut |call, status| {
            let slot = call.tag as usize;
            let found = || call.reply.get(..8) == Some(&keys[slot].to_le_bytes()[..]);
            let right = status == Status::Ok && (gets.is_none() || found());
            let end = match right {
                true => CallEnd::Right(()),
                false => CallEnd::Wrong(format!("a call of op-code {op:#x} went wrong: {status:?}")),
            };
            spare.push(call);
            ended(slot as u32, *now, end);
        });
        Ok(true)
    }

    fn trouble(&self, trouble: Trouble) -> StudyError {
        match trouble {
            Trouble::Wrong(what) => StudyError::Failed(what),
            Trouble::Interrupted => StudyError::Interrupted,
            other => StudyError::Failed(format!("calls in this process: {other:?}")),
        }
    }
}

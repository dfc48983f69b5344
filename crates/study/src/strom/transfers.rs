//! Verbs and streams of a modelled pair, kept under way by the closed loop.

use std::time::Duration;

use remora_kernel::Placement;
use remora_kernel::Status;
use remora_model::time::Ps;
use remora_model::world::Pair;
use remora_service::{Full, MAX_CALLS};

use crate::load::{self, Begun, CallEnd, Trouble, Until};
use crate::modelled::ModelError;

/// Transfers between the two machines of a pair, some of which come before the measurement.
pub struct Transfers<'a> {
    pair: &'a mut Pair,
    placement: Placement,
    /// Begins the transfer of this number, by this tag.
    submit: &'a mut dyn FnMut(&mut Pair, u64, u32) -> Result<(), Full>,
    /// What is wrong with an answer, if anything is.
    wrong: &'a dyn Fn(Status, &[u8]) -> Option<String>,
    begun: u64,
    ended: u64,
    /// So many are not measured.
    warm_up: u64,
    /// When those had ended, and how many events that took.
    since: (Ps, u64),
}

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Transferred {
    /// Transfers that were begun, the warm-up with them.
    pub begun: u64,
    /// Transfers that ended after the warm-up.
    pub measured: u64,
    /// When the warm-up was over.
    pub since: Ps,
    /// Events by then.
    pub events: u64,
}

impl<'a> Transfers<'a> {
    /// Transfers whose answers must be good.
    pub fn new(
        pair: &'a mut Pair,
        placement: Placement,
        submit: &'a mut dyn FnMut(&mut Pair, u64, u32) -> Result<(), Full>,
    ) -> Self {
        let wrong = &|status, _: &[u8]| (status != Status::Ok).then(|| format!("a transfer ended with {status:?}"));
        let since = (pair.now(), 0);
        Self { pair, placement, submit, wrong, begun: 0, ended: 0, warm_up: 0, since }
    }

    /// With a check of its own.
    pub fn checked(self, wrong: &'a dyn Fn(Status, &[u8]) -> Option<String>) -> Self {
        Self { wrong, ..self }
    }

    /// After so many more, which are not measured.
    pub fn after(self, warm_up: u64) -> Self {
        Self { warm_up, ..self }
    }

    /// Keeps `in_flight` under way. `latency` hears of each that is measured.
    pub fn run(mut self, in_flight: u64, until: Until, latency: &mut dyn FnMut(Ps)) -> Result<Transferred, ModelError> {
        let (warm_up, mut number) = (self.warm_up, 0);
        let mut tally = |(), since: Ps, at: Ps| {
            number += 1;
            if number > warm_up {
                latency(at - since);
            }
        };
        load::closed(&mut self, in_flight.min(MAX_CALLS as u64) as u32, until, &mut tally, &|| false)?;
        let Self { begun, ended, since: (since, events), .. } = self;
        Ok(Transferred { begun, measured: ended - warm_up, since, events })
    }
}

impl load::Target for Transfers<'_> {
    type Told = ();
    type Error = ModelError;

    fn patience(&self) -> Duration {
        Duration::MAX
    }

    fn now(&self) -> Ps {
        self.pair.now()
    }

    fn begin(&mut self, slot: u32, _: Ps) -> Result<Begun, ModelError> {
        // No more are under way than a pair takes.
        let full = |_| ModelError::Still(MAX_CALLS as u32);
        (self.submit)(self.pair, self.begun, slot).map_err(full)?;
        self.begun += 1;
        Ok(Begun::Yes)
    }

    fn again(&mut self, _: u32) -> Result<(), ModelError> {
        // None ends so.
        Ok(())
    }

    fn poll(&mut self, _: Ps, ended: &mut impl FnMut(u32, Ps, CallEnd<()>)) -> Result<bool, ModelError> {
        let (before, wrong) = (self.ended, self.wrong);
        let count = &mut self.ended;
        let went_on = self.pair.poll(&mut |done| {
            *count += 1;
            ended(done.tag, done.at, wrong(done.status, done.reply).map_or(CallEnd::Right(()), CallEnd::Wrong));
        })?;
        if before < self.warm_up && self.ended >= self.warm_up {
            self.pair.reset_usage();
            self.since = (self.pair.now(), self.pair.events());
        }
        Ok(went_on)
    }

    fn trouble(&self, trouble: Trouble) -> ModelError {
        ModelError::of(self.placement, trouble)
    }
}

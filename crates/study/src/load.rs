//! Loads: requests kept under way, by a closed loop or an open one.
//!
//! A [`Target`] begins requests, each in a slot, tells which have ended and whether rightly, and has the clock: the
//! system's, or a modelled one. The loops decide when the next request begins and when enough have. A *closed* loop begins
//! one as soon as another ends, so that slow answers make it ask less. An *open* loop begins them when they arrive, at a
//! rate of its own; who arrives while all slots are taken waits, and his latency counts from his arrival (the "coordinated
//! omission" that a closed loop hides; Schroeder et al., "Open versus closed: a cautionary tale", NSDI 2006).

use std::collections::VecDeque;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remora_model::time::Ps;

/// The clock is read, and the user's wish to stop asked for, after so many turns that brought nothing.
const QUIET_TURNS: u32 = 16;

/// What a loop keeps busy.
pub trait Target {
    /// What is told of a request that ended rightly, beside its time.
    type Told;
    /// Why a loop ends early.
    type Error;

    /// No answer for so long, though requests are under way, is a failure.
    fn patience(&self) -> Duration {
        Duration::from_secs(10)
    }

    /// The present. It never goes back.
    fn now(&self) -> Ps;

    /// Begins the next request, in a free slot. `since` is when its latency begins to count.
    fn begin(&mut self, slot: u32, since: Ps) -> Result<Begun, Self::Error>;

    /// Makes the request of a slot once more, because it ended with [`CallEnd::Again`].
    fn again(&mut self, slot: u32) -> Result<(), Self::Error>;

    /// Drives everything for a turn; in modelled time until something has ended, or until `until`. `ended` hears of each
    /// request that has ended: its slot, when, and how. False if nothing is left to happen.
    fn poll(&mut self, until: Ps, ended: &mut impl FnMut(u32, Ps, CallEnd<Self::Told>)) -> Result<bool, Self::Error>;

    /// The error that this trouble is.
    fn trouble(&self, trouble: Trouble) -> Self::Error;
}

/// Whether a request has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It has.
    Yes,
    /// Not in this turn: there is no room, or its client pauses.
    Later,
    /// There are no more.
    Over,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallEnd<T> {
    /// With the right answer.
    Right(T),
    /// With the right answer, and its client asks for more at once, in the same slot, whatever the loop.
    More(T),
    /// Without one, and nobody is to blame. It is made again; its latency goes on.
    Again,
    /// With a wrong one: what is wrong.
    Wrong(String),
}

/// Why a loop ends early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// An answer was wrong.
    Wrong(String),
    /// No answer came for so long.
    Stuck(Duration),
    /// Nothing is left to happen, with so many requests under way.
    Still(u32),
    /// The user wants no more.
    Interrupted,
}

/// How long a loop goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Requests begin for so long, one at least; all end.
    Time(Ps),
    /// So many requests begin; all end.
    Begun(u64),
    /// So many have ended; what is still under way is left to itself.
    Ended(u64),
    /// All requests that the target has.
    Over,
}

impl Until {
    /// Requests begin for this time of the system's clock.
    pub fn time(time: Duration) -> Self {
        Self::Time(ps(time))
    }
}

/// What a loop did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// From its beginning to its end.
    pub elapsed: Ps,
    /// Requests that ended rightly.
    pub ended: u64,
    /// Requests made again.
    pub repeated: u64,
}

/// Keeps `in_flight` requests under way. `tally` hears of each that ended rightly: what is told, since when it counts, and
/// when it ended. `stop` is asked at every turn that brings something, and at many others; it ends the loop with [`Trouble::Interrupted`].
pub fn closed<T: Target>(
    target: &mut T,
    in_flight: u32,
    until: Until,
    tally: &mut impl FnMut(T::Told, Ps, Ps),
    stop: &dyn Fn() -> bool,
) -> Result<Ran, T::Error> {
    let mut run = Closed::new(target, in_flight, until);
    while run.turn(target, tally, stop)? {}
    Ok(run.0.ran())
}

/// A closed loop turn by turn, for who drives other things in between.
pub struct Closed(Loop, Until);

impl Closed {
    /// With `in_flight` requests under way, from the first turn on.
    pub fn new<T: Target>(target: &T, in_flight: u32, until: Until) -> Self {
        Self(Loop::new(target, in_flight), until)
    }

    /// Begins what can begin, and drives the target for a turn. False when all is done.
    pub fn turn<T: Target>(
        &mut self,
        target: &mut T,
        tally: &mut impl FnMut(T::Told, Ps, Ps),
        stop: &dyn Fn() -> bool,
    ) -> Result<bool, T::Error> {
        let Self(run, until) = self;
        if matches!(until, Until::Ended(count) if run.ended >= *count) {
            return Ok(false);
        }
        run.repeat(target)?;
        run.over |= matches!(until, Until::Time(time) if run.ended > 0 && run.now - run.start >= *time);
        while !run.over
            && let Some(slot) = run.free.pop()
        {
            let now = target.now();
            run.begin(target, slot, now)?;
            run.over |= matches!(until, Until::Begun(count) if run.begun >= *count);
        }
        run.free.append(&mut run.paused);
        if run.is_done() {
            return Ok(false);
        }
        run.poll(target, Ps::MAX, tally, stop)?;
        Ok(true)
    }

    /// Lets what is under way end, and nothing begin any more.
    pub fn finish(&mut self) {
        self.0.over = true;
    }
}

/// Begins requests as they arrive, with at most `slots` of them under way; latencies count from the arrivals. Times are
/// those of the arrivals: with [`Until::Time`] no request arrives later. See [`closed`] for the rest.
pub fn open<T: Target>(
    target: &mut T,
    arrivals: &mut Arrivals,
    slots: u32,
    until: Until,
    tally: &mut impl FnMut(T::Told, Ps, Ps),
    stop: &dyn Fn() -> bool,
) -> Result<Ran, T::Error> {
    let mut run = Loop::new(target, slots);
    let (start, mut waiting, mut arrived) = (run.start, VecDeque::new(), 0);
    let mut next = start + arrivals.gap();
    let more = |next: Ps, arrived: u64| match until {
        Until::Time(time) => next - start < time,
        Until::Begun(count) => arrived < count,
        Until::Ended(_) | Until::Over => true,
    };
    while !matches!(until, Until::Ended(count) if run.ended >= count) {
        let now = target.now();
        while more(next, arrived) && next <= now {
            waiting.push_back(next);
            (next, arrived) = (next + arrivals.gap(), arrived + 1);
        }
        run.repeat(target)?;
        while !run.over
            && let Some(&since) = waiting.front()
            && let Some(slot) = run.free.pop()
        {
            if !run.begin(target, slot, since)? {
                break;
            }
            waiting.pop_front();
        }
        run.free.append(&mut run.paused);
        let last = !more(next, arrived);
        run.over |= last && waiting.is_empty();
        if run.is_done() {
            break;
        }
        run.poll(target, if last { Ps::MAX } else { next }, tally, stop)?;
    }
    Ok(run.ran())
}

/// When requests arrive. The same seed gives the same times.
#[derive(Clone, Debug)]
pub struct Arrivals {
    /// The mean time between two in picoseconds.
    mean: f64,
    rng: Option<ChaCha8Rng>,
}

impl Arrivals {
    /// Independently of each other, so many a second on average (a Poisson process).
    pub fn poisson(per_s: f64, seed: u64) -> Self {
        Self { mean: 1e12 / per_s, rng: Some(ChaCha8Rng::seed_from_u64(seed)) }
    }

    /// At even distances, so many a second.
    pub fn even(per_s: f64) -> Self {
        Self { mean: 1e12 / per_s, rng: None }
    }

    /// The time from one to the next.
    fn gap(&mut self) -> Ps {
        // Uniform in 0..1 with 53 bits, and not 1.
        let uniform = |rng: &mut ChaCha8Rng| (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let spread = self.rng.as_mut().map_or(1.0, |rng| -(1.0 - uniform(rng)).ln());
        Ps((self.mean * spread).round() as u64)
    }
}

/// The system's clock, since this was first asked.
pub fn system_time() -> Ps {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    ps(START.elapsed())
}

/// A latency, to the nearest nanosecond.
pub fn duration(span: Ps) -> Duration {
    Duration::from_nanos((span.0 + 500) / 1000)
}

/// A span of the system's clock.
pub fn ps(time: Duration) -> Ps {
    Ps::from_ns(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// The slots of a loop, and how far it is.
struct Loop {
    start: Ps,
    /// The present, as it was after the last turn.
    now: Ps,
    /// Since when the request of each slot counts.
    since: Vec<Ps>,
    free: Vec<u32>,
    /// Slots that did not begin in this turn.
    paused: Vec<u32>,
    again: Vec<u32>,
    more: Vec<u32>,
    begun: u64,
    under_way: u32,
    /// Nothing begins any more.
    over: bool,
    /// Turns that brought nothing since the clock was read.
    stale: u32,
    /// When the last answer came.
    heard: Ps,
    ended: u64,
    repeated: u64,
}

impl Loop {
    fn new<T: Target>(target: &T, slots: u32) -> Self {
        let start = target.now();
        Self {
            start,
            now: start,
            since: vec![start; slots as usize],
            free: (0..slots).rev().collect(),
            paused: Vec::with_capacity(slots as usize),
            again: Vec::with_capacity(slots as usize),
            more: Vec::with_capacity(slots as usize),
            begun: 0,
            under_way: 0,
            over: false,
            stale: 0,
            heard: start,
            ended: 0,
            repeated: 0,
        }
    }

    /// Begins a request. False if it does not begin now.
    fn begin<T: Target>(&mut self, target: &mut T, slot: u32, since: Ps) -> Result<bool, T::Error> {
        self.since[slot as usize] = since;
        let begun = target.begin(slot, since)?;
        if begun == Begun::Yes {
            if self.under_way == 0 {
                self.heard = self.now.max(since);
            }
            (self.begun, self.under_way) = (self.begun + 1, self.under_way + 1);
            return Ok(true);
        }
        self.over |= begun == Begun::Over;
        self.paused.push(slot);
        Ok(false)
    }

    /// Makes requests again that brought nothing, and those that follow from others.
    fn repeat<T: Target>(&mut self, target: &mut T) -> Result<(), T::Error> {
        while let Some(slot) = self.more.pop() {
            let now = target.now();
            self.begin(target, slot, now)?;
        }
        while let Some(slot) = self.again.pop() {
            target.again(slot)?;
            self.under_way += 1;
        }
        Ok(())
    }

    /// Whether all have ended.
    fn is_done(&self) -> bool {
        self.over && self.under_way == 0
    }

    fn poll<T: Target>(
        &mut self,
        target: &mut T,
        until: Ps,
        tally: &mut impl FnMut(T::Told, Ps, Ps),
        stop: &dyn Fn() -> bool,
    ) -> Result<(), T::Error> {
        let before = self.under_way;
        let Self { since, free, again, more, under_way, heard, ended, repeated, .. } = self;
        let mut wrong = None;
        let went_on = target.poll(until, &mut |slot, at, end| {
            *under_way = under_way.saturating_sub(1);
            let next = if matches!(end, CallEnd::More(_)) { &mut *more } else { &mut *free };
            match end {
                CallEnd::Right(told) | CallEnd::More(told) => {
                    tally(told, since[slot as usize], at);
                    (*ended, *heard) = (*ended + 1, at);
                    next.push(slot);
                }
                CallEnd::Again => {
                    *repeated += 1;
                    again.push(slot);
                }
                CallEnd::Wrong(what) => wrong = Some(what),
            }
        })?;
        if let Some(what) = wrong {
            return Err(target.trouble(Trouble::Wrong(what)));
        }
        if !went_on && *under_way > 0 {
            return Err(target.trouble(Trouble::Still(*under_way)));
        }
        // A turn that brings nothing may take less time than the clock.
        if self.under_way == before && self.stale < QUIET_TURNS {
            self.stale += 1;
            return Ok(());
        }
        (self.now, self.stale) = (target.now(), 0);
        if self.under_way > 0 && self.now - self.heard > ps(target.patience()) {
            return Err(target.trouble(Trouble::Stuck(target.patience())));
        }
        if stop() {
            return Err(target.trouble(Trouble::Interrupted));
        }
        Ok(())
    }

    fn ran(&self) -> Ran {
        Ran { elapsed: self.now - self.start, ended: self.ended, repeated: self.repeated }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use remora_lab::stats::Latencies;

    /// Servers that take requests in their order, each for the same time, in modelled time.
    struct Station {
        now: Ps,
        service: Ps,
        /// When each server is free again.
        free: Vec<Ps>,
        under_way: VecDeque<(u32, Ps)>,
        most: usize,
        begun: u64,
        /// The number of the request that ends wrongly, and of those that are made again.
        wrong: Option<u64>,
        again: Vec<u64>,
        /// Numbers of requests that others follow.
        more: Vec<u64>,
        /// Nothing is served from here on.
        stands_at: Option<Ps>,
        left: u64,
    }

    impl Station {
        fn new(servers: usize, service: Ps) -> Self {
            let (free, now) = (vec![Ps::ZERO; servers], Ps::ZERO);
            let (under_way, again, more) = (VecDeque::new(), Vec::new(), Vec::new());
            Self {
                now,
                service,
                free,
                under_way,
                most: 0,
                begun: 0,
                wrong: None,
                again,
                more,
                stands_at: None,
                left: u64::MAX,
            }
        }

        fn serve(&mut self, slot: u32) {
            let server = self.free.iter_mut().min().unwrap();
            *server = self.now.max(*server) + self.service;
            self.under_way.push_back((slot, *server));
            self.most = self.most.max(self.under_way.len());
        }
    }

    impl Target for Station {
        type Told = u64;
        type Error = Trouble;

        fn now(&self) -> Ps {
            self.now
        }

        fn begin(&mut self, slot: u32, _: Ps) -> Result<Begun, Trouble> {
            if self.begun == self.left {
                return Ok(Begun::Over);
            }
            self.begun += 1;
            self.serve(slot);
            Ok(Begun::Yes)
        }

        fn again(&mut self, slot: u32) -> Result<(), Trouble> {
            self.serve(slot);
            Ok(())
        }

        fn poll(&mut self, until: Ps, ended: &mut impl FnMut(u32, Ps, CallEnd<u64>)) -> Result<bool, Trouble> {
            let next = self.under_way.front().map(|&(_, at)| at);
            if let (Some(at), Some(stands)) = (next, self.stands_at)
                && at > stands
            {
                self.now += Ps::from_secs(1.0);
                return Ok(true);
            }
            match next {
                Some(at) if at <= until => {
                    let (slot, _) = self.under_way.pop_front().unwrap();
                    self.now = at;
                    let number = self.begun - self.under_way.len() as u64;
                    let end = match number {
                        n if self.wrong == Some(n) => CallEnd::Wrong("wrong".into()),
                        n if self.again.contains(&n) => {
                            self.again.retain(|other| *other != n);
                            CallEnd::Again
                        }
                        n if self.more.contains(&n) => CallEnd::More(n),
                        n => CallEnd::Right(n),
                    };
                    ended(slot, at, end);
                    Ok(true)
                }
                _ if until == Ps::MAX => Ok(false),
                _ => {
                    self.now = until;
                    Ok(true)
                }
            }
        }

        fn trouble(&self, trouble: Trouble) -> Trouble {
            trouble
        }
    }

    const US: Ps = Ps::from_us(1);

    fn never() -> bool {
        false
    }

    #[test]
    fn a_closed_loop_keeps_its_window_full_and_its_latency_is_that_of_the_window() {
        // Two servers of 1 us and eight requests: two a microsecond, each of which waits for six others.
        let (mut station, mut latencies) = (Station::new(2, US), Vec::new());
        let mut tally = |_, since: Ps, at: Ps| latencies.push(at - since);
        let ran = closed(&mut station, 8, Until::Begun(1000), &mut tally, &never).unwrap();
        assert_eq!((ran.ended, ran.elapsed, ran.repeated), (1000, US * 500, 0));
        assert_eq!((station.most, station.under_way.len()), (8, 0), "all have ended");
        assert!(latencies[8..].iter().all(|&latency| latency == US * 4), "{latencies:?}");
    }

    #[test]
    fn a_loop_ends_by_time_by_count_or_when_there_is_no_more() {
        let ran = |until, left| {
            let mut station = Station { left, ..Station::new(1, US) };
            let ran = closed(&mut station, 4, until, &mut |_, _, _| {}, &never).unwrap();
            (ran.ended, station.begun, station.under_way.len())
        };
        assert_eq!(ran(Until::Time(US * 10), u64::MAX), (13, 13, 0), "those under way end");
        assert_eq!(ran(Until::Time(Ps::ZERO), u64::MAX), (4, 4, 0), "one turn at least");
        assert_eq!(ran(Until::Ended(10), u64::MAX), (10, 13, 3), "three are left");
        assert_eq!(ran(Until::Over, 7), (7, 7, 0));
        assert_eq!(ran(Until::Begun(3), u64::MAX), (3, 3, 0), "fewer than the window");
    }

    #[test]
    fn what_is_made_again_counts_from_its_first_time() {
        let mut station = Station { again: vec![3], ..Station::new(1, US) };
        let mut latencies = Vec::new();
        let mut tally = |_, since: Ps, at: Ps| latencies.push((at - since).as_ns());
        let ran = closed(&mut station, 1, Until::Begun(5), &mut tally, &never).unwrap();
        assert_eq!((ran.ended, ran.repeated), (5, 1));
        assert_eq!(latencies, [1e3, 1e3, 2e3, 1e3, 1e3]);
    }

    #[test]
    fn what_follows_begins_at_once_even_when_nothing_arrives() {
        let mut station = Station { more: vec![1, 2], ..Station::new(1, US) };
        let mut times = Vec::new();
        let mut tally = |number, since: Ps, at: Ps| times.push((number, since, at));
        let until = Until::Begun(2);
        open(&mut station, &mut Arrivals::even(1e4), 2, until, &mut tally, &never).unwrap();
        let at = |us| US * us;
        assert_eq!(times, [(1, at(100), at(101)), (2, at(101), at(102)), (3, at(102), at(103)), (4, at(200), at(201))]);
    }

    #[test]
    fn troubles_end_a_loop() {
        let ends = |station: Station, stop: &dyn Fn() -> bool| {
            closed(&mut { station }, 2, Until::Begun(100), &mut |_, _, _| {}, stop).unwrap_err()
        };
        let station = || Station::new(1, US);
        assert_eq!(ends(Station { wrong: Some(9), ..station() }, &never), Trouble::Wrong("wrong".into()));
        let stands_at = Some(US * 20);
        assert_eq!(ends(Station { stands_at, ..station() }, &never), Trouble::Stuck(Duration::from_secs(10)));
        assert_eq!(ends(station(), &|| true), Trouble::Interrupted);
    }

    #[test]
    fn an_open_loop_counts_from_the_arrival() {
        // Arrivals each microsecond, a server that takes 2 us: the n-th waits for n microseconds (Lindley's recursion).
        let (mut station, mut waits) = (Station::new(1, US * 2), Vec::new());
        let mut tally = |_, since: Ps, at: Ps| waits.push(at - since);
        let ran = open(&mut station, &mut Arrivals::even(1e6), 4, Until::Begun(100), &mut tally, &never).unwrap();
        assert_eq!((ran.ended, station.most), (100, 4));
        assert!((0..100).all(|n| waits[n as usize] == US * (n + 2)), "{waits:?}");
        // A closed loop of as many slots sees a latency of four services at most.
        let mut longest = Ps::ZERO;
        let mut tally = |_, since: Ps, at: Ps| longest = longest.max(at - since);
        closed(&mut Station::new(1, US * 2), 4, Until::Begun(100), &mut tally, &never).unwrap();
        assert_eq!(longest, US * 8);
    }

    #[test]
    fn an_open_loop_waits_as_queueing_theory_says() {
        // M/D/1 at a load of 0.8: the mean wait is 0.8 / (2 x 0.2) services (Pollaczek and Khinchine).
        let (mut station, mut sum, mut latencies) = (Station::new(1, US), 0.0, Latencies::new());
        let mut tally = |_, since: Ps, at: Ps| {
            sum += (at - since).as_ns();
            latencies.record(Duration::from_nanos((at - since).as_ns() as u64));
        };
        let count = 200_000;
        let mut arrivals = Arrivals::poisson(0.8e6, 7);
        let ran = open(&mut station, &mut arrivals, 1000, Until::Begun(count), &mut tally, &never).unwrap();
        let mean = sum / count as f64;
        assert!((mean / 3000.0 - 1.0).abs() < 0.03, "{mean} ns instead of 3000");
        let rate = ran.ended as f64 / ran.elapsed.as_secs();
        assert!((rate / 0.8e6 - 1.0).abs() < 0.01, "{rate} a second");
        assert!(latencies.quantile(0.0) >= 1000 && latencies.count() == count);
    }

    #[test]
    fn arrivals_come_by_their_seed_and_within_the_time() {
        let times = |seed| {
            let mut arrivals = Arrivals::poisson(1e6, seed);
            (0..20).map(|_| arrivals.gap()).collect::<Vec<_>>()
        };
        assert_eq!(times(1), times(1));
        assert_ne!(times(1), times(2));
        let mut station = Station::new(1, Ps(1000));
        let until = Until::Time(US * 100);
        let ran = open(&mut station, &mut Arrivals::even(1e6), 4, until, &mut |_, _, _| {}, &never).unwrap();
        assert_eq!((ran.ended, ran.elapsed), (99, US * 99 + Ps(1000)));
    }
}

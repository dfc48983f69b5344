//! Calls that are alike, under one load: their home, and what other places would take.

use remora_kernel::{Placement, Places};

use super::cost::{Recent, Sum};
use super::reason::{Reason, Why};
use super::{CallKind, Choice, PLACES, PlacerCounts, Time, index};

const US: Time = 1_000;
const MS: Time = 1_000_000;

/// The part of calls that may run elsewhere.
const SHARE: f64 = 0.018;
/// Calls that may run elsewhere beyond that, by load: what tells places apart to begin with, and after a change.
const ALLOWANCE: [f64; 5] = [200.0, 400.0, 800.0, 2000.0, 4000.0];
/// Of so many calls one probes another place that is as fast.
const PROBE_EVERY: f64 = 200.0;
/// Trials of a place that is as fast take this part of calls.
const TRIALS: f64 = 0.01;
/// Timed calls of a window, and how long it lasts at least: shorter ones tell of the scheduler.
const WINDOW: u32 = 16;
const WINDOW_TIME: Time = 200 * US;
/// Timing a call costs about a hundredth of this; quicker ones are timed more seldom.
const TIMED_EVERY_NS: f32 = 4_000.0;
/// Calls to a place before it is timed are at most so many times those under way.
const FILL: u32 = 4;
/// Windows between two trials at least.
const REST: u32 = 2;
/// A home's cost has changed if it is so many times as high, or low, in so many windows and for so long.
const CHANGED: f32 = 1.25;
const CHANGED_WINDOWS: usize = 3;
const CHANGED_TIME: Time = MS;
/// Nobody looks around again for so long after a change; twice as long each time that a small one follows.
const QUIET: [Time; 2] = [10 * MS, 80 * MS];
/// A probe that takes so many times what calls at home take needs no trial.
const HOPELESS: f32 = 8.0;
/// Another place must be better by this part, by so many times what the home's figures vary, and at most by this.
const MARGIN: f32 = 0.03;
const SPREADS: f32 = 1.5;
const MOST_MARGIN: f32 = 0.2;
/// A move makes others harder; half of that is over after this time.
const UNREST_HALF: f32 = 5e8;
/// A place is silent if it answers nothing for so many times as long as its calls take, within these bounds.
const PATIENCE: f32 = 30.0;
const PATIENCE_RANGE: [Time; 2] = [50 * MS, 1_000 * MS];
/// How long a place is left alone that failed: twice as long each time.
const AVOID: [Time; 2] = [100 * MS, 10_000 * MS];

/// What all classes share.
#[derive(Clone, Debug)]
pub(super) struct Env {
    pub there: [bool; PLACES],
    pub seed: u64,
    pub counts: PlacerCounts,
    /// The kind of the calls that moved last.
    pub moved: Option<CallKind>,
    /// When answers were looked for last, if not just now.
    pub looked: Option<Time>,
}

/// A call that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    class: u16,
    generation: u32,
    epoch: u32,
    place: u8,
    role: Role,
    begun: Time,
}

impl Ticket {
    pub(super) fn class(&self) -> usize {
        self.class.into()
    }
}

/// What a timed call tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Home,
    Probe,
    /// The last one at home before a trial.
    Last,
    Trial,
}

/// What is being learned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Steady,
    /// A call is under way to a place, which a trial follows, or not.
    Probe { place: usize, trial: bool },
    /// The next call is the last one at home.
    Leave { place: usize },
    /// Calls go to a place until all that are under way are there: so many at least, and that many at most.
    Fill { place: usize, least: u32, most: u32 },
    /// Calls to a place are timed.
    Count { place: usize, left: u32 },
    /// They have been sent.
    Await { place: usize },
}

/// What is known of a place.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    there: bool,
    /// What the model says in nanoseconds; 0 if it says nothing.
    prior: f32,
    /// Trials since the last change.
    trials: Recent<3>,
    /// What it took when it was last known.
    known: Option<f32>,
    /// A trial is wanted as soon as there may be one.
    wanted: bool,
    probes: Recent<3>,
    /// What probes used to take.
    usual: f32,
    /// The last probe took so long that a trial seems vain; the first call after a while may only have woken the place.
    doubted: bool,
    /// The numbers of the calls from which on a probe and a trial are due.
    next_probe: u64,
    next_trial: u64,
    /// Timed calls under way, and when it last gave a sign of life.
    waiting: u32,
    active: Time,
    avoid_until: Time,
    backoff: Time,
}

impl Place {
    fn cost(&self) -> Option<f32> {
        self.trials.median().or(self.known).or((self.prior > 0.0).then_some(self.prior))
    }
}

/// Calls that are alike, under one load.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Class {
    pub kind: Option<CallKind>,
    load: u8,
    /// Which class it is that this is in the place of.
    pub generation: u32,
    /// The number of its last call.
    pub used: u64,
    home: usize,
    why: Option<Why>,
    places: [Place; PLACES],
    phase: Phase,
    /// What was timed before a move or trial counts no more.
    epoch: u32,
    calls: u64,
    /// Calls until one is timed, and from one to the next.
    skip: u32,
    stride: u32,
    /// Calls that may run elsewhere, when there had been so many calls.
    tokens: f64,
    counted: u64,
    trial: Sum,
    sent: u32,
    window: Sum,
    recent: Recent<9>,
    /// Windows since the last trial.
    rest: u32,
    /// What calls at home used to take.
    reference: f32,
    /// Windows that differ from that, one after the other, and since when.
    off: Recent<{ CHANGED_WINDOWS }>,
    off_since: Time,
    /// The last change: when it was noticed, how large it was, and how long it stays quiet.
    changed: Option<(Time, f32)>,
    quiet: Time,
    unrest: f32,
    moved: Time,
    peak: u32,
}

impl Class {
    /// In the place of another: with what that has left to explore, so that kinds that come and go explore no more than those
    /// that stay.
    pub fn new(
        env: &Env,
        (kind, load): (CallKind, u8),
        prior: [f32; PLACES],
        pin: Option<Placement>,
        before: &Self,
    ) -> Self {
        let (generation, tokens) = (before.generation.wrapping_add(1), before.tokens);
        let mut class = Self { kind: Some(kind), load, generation, tokens, stride: 1, ..Self::nobody() };
        let may = Places::of(kind.op);
        for (n, place) in class.places.iter_mut().enumerate() {
            let there = env.there[n] && may.has(Placement::ALL[n]);
            (place.there, place.prior) = (pin.map_or(there, |pin| index(pin) == n), prior[n]);
        }
        let there = || (0..PLACES).filter(|&n| class.places[n].there);
        // Where there is no prior: the NIC is never the worst by far.
        let first = |&n: &usize| (Placement::ALL[n] != Placement::Nic, n);
        let modelled = there().filter(|&n| prior[n] > 0.0).min_by(|&a, &b| prior[a].total_cmp(&prior[b]));
        let home = modelled.or_else(|| there().min_by_key(first)).unwrap_or(0);
        let alone = there().count() == 1;
        class.home = home;
        class.why = Some(match (pin, modelled) {
            (Some(_), _) => Why::Pinned,
            _ if alone => Why::Only,
            (None, Some(_)) => Why::Model,
            (None, None) => Why::First,
        });
        for place in &mut class.places {
            let hopeless = prior[home] > 0.0 && place.prior > 4.0 * prior[home];
            (place.wanted, place.next_trial) = (!hopeless, if hopeless { 10_000 } else { 0 });
        }
        class.skip = if alone { u32::MAX } else { 0 };
        class
    }

    /// Of no calls yet.
    pub fn nobody() -> Self {
        Self { tokens: f64::INFINITY, quiet: QUIET[0], ..Self::default() }
    }

    /// Nothing is known of any calls; tickets from before are not taken for those to come.
    pub fn forget(&mut self) {
        *self = Self { generation: self.generation, tokens: self.tokens, ..Self::nobody() };
    }

    pub fn is(&self, kind: CallKind, load: u8) -> bool {
        self.load == load && self.kind == Some(kind)
    }

    /// Where the next call runs.
    #[inline]
    pub fn choose(&mut self, env: &mut Env, number: usize, peak: u32, now: impl FnOnce() -> Time) -> Choice {
        self.calls += 1;
        if self.skip > 0 {
            self.skip -= 1;
            env.counts.calls[self.home] += 1;
            return Choice { placement: Placement::ALL[self.home], ticket: None };
        }
        self.peak = peak;
        self.step(env, number, now())
    }

    fn step(&mut self, env: &mut Env, number: usize, now: Time) -> Choice {
        let most = ALLOWANCE[usize::from(self.load)];
        self.tokens = (self.tokens + SHARE * (self.calls - self.counted) as f64).min(most);
        self.counted = self.calls;
        self.listen(env, now);
        if self.phase == Phase::Steady
            && let Some((place, trial)) = self.wants(now)
        {
            self.phase = Phase::Probe { place, trial };
            return self.elsewhere(env, number, place, Some(Role::Probe), now);
        }
        match self.phase {
            Phase::Leave { place } => {
                self.phase = Phase::Fill { place, least: self.peak - 1, most: FILL * self.peak };
                env.counts.calls[self.home] += 1;
                let ticket = Some(self.ticket(number, self.home, Role::Last, now));
                Choice { placement: Placement::ALL[self.home], ticket }
            }
            Phase::Fill { place, least, most } => {
                self.phase = match (least, most) {
                    (_, 0 | 1) => Phase::Count { place, left: self.timed() },
                    _ => Phase::Fill { place, least: least.saturating_sub(1), most: most - 1 },
                };
                self.elsewhere(env, number, place, None, now)
            }
            Phase::Count { place, left } => {
                self.sent += 1;
                self.phase = match left {
                    0 | 1 => Phase::Await { place },
                    _ => Phase::Count { place, left: left - 1 },
                };
                if left <= 1 {
                    self.skip = self.peak;
                }
                self.elsewhere(env, number, place, Some(Role::Trial), now)
            }
            Phase::Steady | Phase::Probe { .. } | Phase::Await { .. } => {
                env.seed ^= env.seed << 13;
                env.seed ^= env.seed >> 7;
                env.seed ^= env.seed << 17;
                self.skip = self.stride - 1 + (env.seed as u32 & u32::from(self.stride > 1));
                env.counts.calls[self.home] += 1;
                let ticket = Some(self.ticket(number, self.home, Role::Home, now));
                Choice { placement: Placement::ALL[self.home], ticket }
            }
        }
    }

    fn ticket(&mut self, number: usize, place: usize, role: Role, now: Time) -> Ticket {
        let known = &mut self.places[place];
        if known.waiting == 0 {
            known.active = now;
        }
        known.waiting += 1;
        let (class, place) = (number as u16, place as u8);
        Ticket { class, generation: self.generation, epoch: self.epoch, place, role, begun: now }
    }

    /// A call that runs elsewhere, timed if it has a role.
    fn elsewhere(&mut self, env: &mut Env, number: usize, place: usize, role: Option<Role>, now: Time) -> Choice {
        self.tokens -= 1.0;
        env.counts.explored += 1;
        env.counts.calls[place] += 1;
        let ticket = role.map(|role| self.ticket(number, place, role, now));
        Choice { placement: Placement::ALL[place], ticket }
    }

    /// Calls of a trial that are timed: as many as are under way, and for some time.
    fn timed(&self) -> u32 {
        let gap = self.recent.low().unwrap_or(f32::MAX) / self.peak as f32;
        let most = (4 * self.peak + 28).min(256);
        ((WINDOW_TIME as f32 / gap.max(1.0)) as u32).clamp(self.peak.clamp(8, most), most)
    }

    /// Which place to look at now, and whether in a trial.
    fn wants(&self, now: Time) -> Option<(usize, bool)> {
        // What calls take at home must be known first.
        if self.recent.len() < 2 {
            return None;
        }
        // A hiccup of the machine does not meet two trials that are apart.
        let rested = self.rest >= REST;
        let trial = f64::from(2 * self.peak + self.timed());
        let first = self.calls as usize;
        let others = (0..PLACES).map(|n| (first + n) % PLACES).filter(|&n| n != self.home);
        let others = others.filter(|&n| self.places[n].there && now >= self.places[n].avoid_until);
        let is_due = |n: &usize| self.places[*n].wanted || self.calls >= self.places[*n].next_trial;
        if let Some(place) = others.clone().filter(is_due).min_by_key(|&n| self.places[n].trials.len())
            && self.tokens >= trial
            && rested
        {
            return Some((place, true));
        }
        let place = others.clone().find(|&n| self.calls >= self.places[n].next_probe)?;
        (self.tokens >= 1.0).then_some((place, false))
    }

    /// When a place is looked at again: one that is k times as slow k times as seldom.
    fn schedule(&mut self, place: usize, after_trial: bool) {
        let others = (self.places.iter().filter(|place| place.there).count() - 1).max(1) as f64;
        let home = self.recent.low().unwrap_or(1.0);
        let ratio = self.places[place].cost().map_or(1.0, |cost| f64::from(cost / home));
        let ratio = if ratio.is_finite() { ratio.clamp(1.0, 200.0) } else { 200.0 };
        let trial = f64::from(2 * self.peak + self.timed());
        let known = &mut self.places[place];
        known.next_probe = self.calls + (PROBE_EVERY * others * ratio) as u64;
        if after_trial {
            known.wanted = false;
            known.next_trial = self.calls + (trial / TRIALS * others * ratio) as u64;
        }
    }

    /// A timed call has ended.
    pub fn ended(&mut self, env: &mut Env, ticket: Ticket, now: Time, is_ok: bool) {
        if ticket.generation != self.generation {
            return;
        }
        let (place, ns) = (usize::from(ticket.place), now.saturating_sub(ticket.begun));
        let known = &mut self.places[place];
        known.waiting = known.waiting.saturating_sub(1);
        known.active = now;
        match ticket.role {
            Role::Probe => {
                if let Phase::Probe { place: probed, trial } = self.phase
                    && probed == place
                    && ticket.epoch == self.epoch
                {
                    self.probed(place, trial, (ns, is_ok), now);
                }
            }
            Role::Last => {
                if let Phase::Fill { place, least, .. } = self.phase
                    && ticket.epoch == self.epoch
                {
                    // Those that have begun since are all at the other place.
                    self.phase = Phase::Fill { place, least, most: least };
                    if least == 0 {
                        self.phase = Phase::Count { place, left: self.timed() };
                    }
                }
            }
            Role::Home if ticket.epoch == self.epoch => {
                self.window.add(ns, is_ok, now);
                if self.window.calls >= WINDOW && now.saturating_sub(self.window.since) >= WINDOW_TIME {
                    self.close(now);
                }
            }
            Role::Trial if ticket.epoch == self.epoch => {
                self.trial.add(ns, is_ok, now);
                let cost = self.trial.cost();
                // It is far behind: no more of it.
                let hopeless = self.trial.calls >= 8 && self.recent.low().is_some_and(|home| cost > 3.0 * home);
                let whole = matches!(self.phase, Phase::Await { .. }) && self.trial.calls >= self.sent;
                if hopeless || whole {
                    self.conclude(env, place, cost, now);
                }
            }
            Role::Home | Role::Trial => {}
        }
    }

    /// A timed call was not made after all.
    pub fn cancelled(&mut self, ticket: Ticket) {
        if ticket.generation != self.generation {
            return;
        }
        let known = &mut self.places[usize::from(ticket.place)];
        known.waiting = known.waiting.saturating_sub(1);
        if ticket.epoch == self.epoch && matches!(ticket.role, Role::Probe | Role::Last | Role::Trial) {
            // What was being learned is learned another time.
            (self.phase, self.epoch) = (Phase::Steady, self.epoch + 1);
        }
    }

    /// A probe has ended.
    fn probed(&mut self, place: usize, trial: bool, (ns, is_ok): (u64, bool), now: Time) {
        self.phase = Phase::Steady;
        if !is_ok {
            return self.avoid(place, now);
        }
        let (took, home) = (ns as f32, self.recent.low().unwrap_or(f32::INFINITY));
        let known = &mut self.places[place];
        known.probes.add(took);
        if let Some(probes) = known.probes.median().filter(|_| known.probes.len() == 3) {
            if probes < known.usual / CHANGED / CHANGED {
                (known.wanted, known.usual) = (true, probes);
                known.trials.clear();
            }
            known.usual = if known.usual == 0.0 { probes } else { known.usual + 0.1 * (probes - known.usual) };
        }
        if !trial {
            return self.schedule(place, false);
        }
        let hopeless = took > HOPELESS * home;
        if hopeless && !std::mem::replace(&mut known.doubted, true) {
            // It is probed once more at once.
            return;
        }
        known.doubted = false;
        if hopeless {
            known.trials.add(took);
            known.known = Some(took);
            return self.schedule(place, true);
        }
        self.epoch += 1;
        (self.trial, self.sent, self.window, self.skip) = (Sum::default(), 0, Sum::default(), 0);
        self.phase = match self.peak {
            0 | 1 => Phase::Count { place, left: self.timed() },
            _ => Phase::Leave { place },
        };
    }

    /// A trial has ended.
    fn conclude(&mut self, env: &mut Env, place: usize, cost: f32, now: Time) {
        self.phase = Phase::Steady;
        self.epoch += 1;
        (self.skip, self.rest, self.window) = (self.peak, 0, Sum::default());
        if cost.is_infinite() {
            self.places[place].known = Some(cost);
            return self.avoid(place, now);
        }
        let known = &mut self.places[place];
        (known.backoff, known.known) = (0, Some(cost));
        known.trials.add(cost);
        self.schedule(place, true);
        self.decide(env, now);
    }

    /// Calls move to the place that trials find best, if it is better than home.
    fn decide(&mut self, env: &mut Env, now: Time) {
        let others = || (0..PLACES).filter(|&n| n != self.home && self.places[n].there);
        let untried = |n: usize| {
            let place = &self.places[n];
            place.wanted && place.trials.len() == 0 && now >= place.avoid_until
        };
        let found = others().filter_map(|n| Some((self.places[n].trials.median()?, n)));
        let best = found.min_by(|a, b| a.0.total_cmp(&b.0));
        let (Some(home), Some((cost, place))) = (self.recent.low(), best) else { return };
        let times = home / cost;
        // What is close must be seen more often.
        let needed = if times > 1.15 { 2 } else { 3 };
        if times <= self.margin(now) || others().any(untried) {
            return;
        }
        if self.places[place].trials.len() < needed {
            self.places[place].wanted = true;
            return;
        }
        let than = Placement::ALL[self.home];
        let why = match self.changed {
            _ if home.is_infinite() => Why::Failed { than },
            Some((at, times)) if now.saturating_sub(at) < 100 * MS => Why::Changed { than, times },
            _ => Why::Faster { than, times },
        };
        self.go(env, place, why, now);
    }

    /// How many times as much calls at home must take for them to move.
    fn margin(&self, now: Time) -> f32 {
        let margin = MARGIN.max(SPREADS * self.recent.spread()) * (1.0 + self.unrest(now));
        1.0 + margin.min(MOST_MARGIN)
    }

    fn unrest(&self, now: Time) -> f32 {
        self.unrest * (-(now.saturating_sub(self.moved) as f32) / UNREST_HALF).exp2()
    }

    /// Calls have another home.
    fn go(&mut self, env: &mut Env, to: usize, why: Why, now: Time) {
        let from = std::mem::replace(&mut self.home, to);
        if let Some(cost) = self.recent.low() {
            let left = &mut self.places[from];
            left.trials.clear();
            // Twice, as it is known better than by a trial.
            left.trials.add(cost);
            left.trials.add(cost);
            left.known = Some(cost);
        }
        self.schedule(from, true);
        (self.unrest, self.moved) = (self.unrest(now) + 1.0, now);
        (self.why, self.phase, self.skip) = (Some(why), Phase::Steady, 2 * self.peak);
        self.epoch += 1;
        self.recent.clear();
        self.window = Sum::default();
        self.off.clear();
        self.reference = self.places[to].trials.median().filter(|cost| cost.is_finite()).unwrap_or(0.0);
        env.counts.moves += 1;
        env.moved = self.kind;
    }

    /// A window of calls at home is over.
    fn close(&mut self, now: Time) {
        let cost = self.window.cost();
        self.window = Sum::default();
        self.rest += 1;
        self.recent.add(cost);
        let Some(median) = self.recent.low() else { return };
        self.places[self.home].known = Some(median);
        self.stride = (TIMED_EVERY_NS * self.peak as f32 / median.max(1.0)).ceil().clamp(1.0, 13.0) as u32;
        if self.reference == 0.0 {
            self.reference = if self.recent.len() >= 2 && median.is_finite() { median } else { 0.0 };
        } else if (self.reference / CHANGED..self.reference * CHANGED).contains(&cost) {
            self.off.clear();
            self.reference += 0.1 * (cost - self.reference);
        } else {
            if self.off.len() == 0 {
                self.off_since = now;
            }
            self.off.add(cost);
            let is_sure = self.off.len() >= CHANGED_WINDOWS && now.saturating_sub(self.off_since) >= CHANGED_TIME;
            let is_quiet = self.changed.is_none_or(|(at, _)| now.saturating_sub(at) >= self.quiet);
            if cost.is_infinite() || (is_sure && is_quiet) {
                self.look_around(now);
            }
        }
        // A place that was better in its last trials is tried again.
        let margin = self.margin(now);
        for n in (0..PLACES).filter(|&n| n != self.home) {
            let known = &mut self.places[n];
            known.wanted |= known.there && known.trials.median().is_some_and(|cost| cost * margin < median);
        }
    }

    /// Calls at home take something else than they did.
    fn look_around(&mut self, now: Time) {
        let Some(cost) = self.off.median() else { return };
        let times = cost / self.reference;
        self.quiet = match self.changed {
            Some((at, _)) if now.saturating_sub(at) < 1_000 * MS && (0.5..2.0).contains(&times) => {
                (self.quiet * 2).min(QUIET[1])
            }
            _ => QUIET[0],
        };
        self.changed = Some((now, times));
        self.reference = if cost.is_finite() { cost } else { 0.0 };
        // What it took before does not count any more.
        self.recent.clear();
        (0..CHANGED_WINDOWS).for_each(|_| self.recent.add(cost));
        self.off.clear();
        for n in (0..PLACES).filter(|&n| n != self.home) {
            self.places[n].trials.clear();
            self.places[n].wanted = true;
        }
    }

    /// Leaves a place alone that fails.
    fn avoid(&mut self, place: usize, now: Time) {
        self.schedule(place, true);
        let known = &mut self.places[place];
        known.backoff = (known.backoff * 2).clamp(AVOID[0], AVOID[1]);
        (known.avoid_until, known.waiting, known.wanted) = (now + known.backoff, 0, true);
        known.trials.clear();
    }

    /// Whether the places that have calls answer.
    fn listen(&mut self, env: &mut Env, now: Time) {
        let looked = env.looked.unwrap_or(now);
        let silent = |place: &Place| {
            let [least, most] = PATIENCE_RANGE;
            let patience = place.cost().map_or(most / 4, |cost| (cost * PATIENCE) as Time).clamp(least, most);
            place.waiting > 0 && looked.saturating_sub(place.active) > patience
        };
        match self.phase {
            Phase::Probe { place, .. }
            | Phase::Leave { place }
            | Phase::Fill { place, .. }
            | Phase::Count { place, .. }
            | Phase::Await { place }
                if silent(&self.places[place]) =>
            {
                (self.phase, self.epoch, self.skip) = (Phase::Steady, self.epoch + 1, 0);
                self.avoid(place, now);
            }
            _ => {}
        }
        if silent(&self.places[self.home]) {
            let there = |n: &usize| *n != self.home && self.places[*n].there && now >= self.places[*n].avoid_until;
            let cost = |n: usize| self.places[n].cost().unwrap_or(f32::MAX);
            let best = (0..PLACES).filter(there).min_by(|&a, &b| cost(a).total_cmp(&cost(b)));
            let home = self.home;
            self.avoid(home, now);
            if let Some(best) = best {
                self.go(env, best, Why::Silent { than: Placement::ALL[home] }, now);
                (self.places[home].trials, self.skip) = (Recent::default(), 0);
                self.places[home].wanted = true;
            }
        }
    }

    pub fn reason(&self) -> Reason {
        let cost = |n: usize| match n {
            n if n == self.home => self.recent.low().or(self.places[n].known),
            n => self.places[n].known,
        };
        let costs = std::array::from_fn(|n| cost(n).filter(|_| self.places[n].there));
        Reason { placement: Placement::ALL[self.home], why: self.why.unwrap_or(Why::First), costs }
    }
}

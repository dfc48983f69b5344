//! Where calls run when nobody says: at the place that answers them quickest under the load that there is.
//!
//! Calls that are alike ([`CallKind`]), with about as many under way, have a *home*: the place where they run. Some calls
//! at home are timed, so that a change of the home's own shows. Others are tried in two ways. A *probe* is one call that
//! runs elsewhere; it shows when another place changes. In a *trial* as many calls as are under way at once run elsewhere,
//! and those that follow them are timed: what is timed then is the place under the caller's whole load, since
//! by Little's law the place with the lowest mean latency at a given number under way has the highest throughput. A
//! trial begins with a probe, so that a place that does not answer holds one call and not all.
//!
//! Probes and trials take less than 2 % of calls, but for those that first tell places apart; a place that is k times as
//! slow is tried k times as seldom, so that they take about as little of the time. Calls move when a place was better in
//! more than one trial, by more than the home's figures vary; each move makes the next one harder for a while.
//!
//! A kernel is tried at none but the places where it [may run](remora_kernel::Places).

mod border;
mod class;
mod cost;
mod keeper;
mod node;
mod reason;
#[cfg(test)]
mod tests;

use std::fmt;

use remora_kernel::btree::{LOCKED, NOT_OWNER, TreeRef, pairs_of_scan};
use remora_kernel::kv::{KvParams, NOT_HERE};
use remora_kernel::{ConsistencyParams, GetParams, Placement, Status, TraversalParams, op};

use crate::control::u64_at;

pub use border::BorderClimber;
pub use class::Ticket;
use class::{Class, Env};
pub use keeper::BorderKeeper;
pub use node::{NodePlacer, Placing, PlacingError};
pub use reason::{Reason, Why};

/// Nanoseconds of a world's clock.
type Time = u64;

/// Places that there are.
const PLACES: usize = Placement::ALL.len();
/// Kinds of calls that are known at once, with each load: `SETS` times `WAYS`.
const SETS: usize = 16;
const WAYS: usize = 8;
/// Calls over which the number under way is watched, at least.
const WATCHED: u32 = 16;

/// Calls that are alike: those for which one place is best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallKind {
    /// The kernel.
    pub op: u64,
    /// What else tells calls apart: their size, or the structure that they go to.
    pub class: u64,
}

impl CallKind {
    /// The kind of a call by its parameters. Calls on different structures are of different kinds, and reads of objects,
    /// scans, and pairs to put, of different size; other calls are told apart by how long their parameters are.
    pub fn of(op: u64, params: &[u8]) -> Self {
        let class = match op {
            op::GET => GetParams::decode(params).ok().map(|p| u64::from(p.entries_key)),
            op::TRAVERSAL => {
                let decoded = TraversalParams::decode(params).ok();
                decoded.map(|p| u64::from(p.element_key) | size(p.value_size as usize) << 32)
            }
            op::CONSISTENCY => {
                let decoded = ConsistencyParams::decode(params).ok();
                decoded.map(|p| u64::from(p.key) | size(p.len as usize) << 32)
            }
            op::KV_GET | op::KV_PUT | op::KV_UPDATE | op::KV_DELETE => {
                let decoded = KvParams::decode(params, false).ok();
                decoded.map(|p| u64::from(p.store.key) | size(params.len()) << 32)
            }
            op::TREE_GET | op::TREE_PUT | op::TREE_DELETE => TreeRef::of(params).map(|tree| tree.key.into()),
            op::TREE_SCAN => {
                pairs_of_scan(params).map(|(tree, pairs)| u64::from(tree.key) | size(pairs as usize) << 32)
            }
            _ => None,
        };
        Self { op, class: class.unwrap_or_else(|| size(params.len())) }
    }

    /// As a node is asked about it.
    pub fn encode(self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.op.to_le_bytes());
        out[8..].copy_from_slice(&self.class.to_le_bytes());
        out
    }

    /// What [`encode`](Self::encode) made; `None` if it is cut short.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self { op: u64_at(bytes, 0)?, class: u64_at(bytes, 8)? })
    }
}

/// Sizes that are told apart: each twice the one before.
fn size(bytes: usize) -> u64 {
    bytes.next_power_of_two().trailing_zeros().into()
}

/// Where a call is to run.
#[derive(Clone, Copy, Debug)]
#[must_use = "the call is to run there"]
pub struct Choice {
    /// The place.
    pub placement: Placement,
    /// For [`Placer::ended`], if this call is timed.
    pub ticket: Option<Ticket>,
}

/// What has been decided so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacerCounts {
    /// Calls at each place, in the order of [`Placement::ALL`].
    pub calls: [u64; PLACES],
    /// Those that ran elsewhere than at their home, to learn.
    pub explored: u64,
    /// How often a home moved.
    pub moves: u64,
}

impl PlacerCounts {
    /// Adds those of another.
    pub fn add(&mut self, other: Self) {
        self.calls.iter_mut().zip(other.calls).for_each(|(mine, others)| *mine += others);
        (self.explored, self.moves) = (self.explored + other.explored, self.moves + other.moves);
    }
}

/// Decides where calls run. See the [module](self).
pub struct Placer {
    env: Env,
    classes: Vec<Class>,
    /// The class of the last call.
    last: usize,
    /// Calls so far.
    calls: u64,
    /// Most calls under way in this and in the last stretch, and calls left of this one.
    peak: [u32; 2],
    watched: u32,
    pinned: Option<Placement>,
    pins: Vec<(u64, Placement)>,
    priors: Vec<(CallKind, [Option<Prior>; PLACES])>,
}

/// What a model says of a kind of call at a place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prior {
    /// Nanoseconds from call to reply, one alone.
    pub alone: f64,
    /// Nanoseconds from one reply to the next, with many under way.
    pub each: f64,
}

impl Prior {
    /// What a call takes under a load: it is never quicker than alone, nor than those that it shares the place with.
    fn under(self, load: u8) -> f32 {
        self.alone.max(self.each * UNDER_WAY[usize::from(load)]) as f32
    }
}

impl Placer {
    /// Among these places. The seed spreads what is timed.
    pub fn new(places: &[Placement], seed: u64) -> Self {
        let mut there = [false; PLACES];
        places.iter().for_each(|&place| there[index(place)] = true);
        let classes = vec![Class::nobody(); SETS * WAYS];
        let env = Env { there, seed: seed | 1, counts: PlacerCounts::default(), moved: None, looked: None };
        let (pins, priors) = (Vec::new(), Vec::new());
        Self { env, classes, last: 0, calls: 0, peak: [0; 2], watched: WATCHED, pinned: None, pins, priors }
    }

    /// What a model says that a kind of call takes at a place. It decides where calls begin, and whether a place is worth
    /// an early trial; what is measured counts for more.
    pub fn set_prior(&mut self, kind: CallKind, place: Placement, prior: Prior) {
        let at = self.priors.iter().position(|&(other, _)| other == kind).unwrap_or_else(|| {
            self.priors.push((kind, [None; PLACES]));
            self.priors.len() - 1
        });
        self.priors[at].1[index(place)] = Some(prior);
        self.classes.iter_mut().filter(|class| class.kind == Some(kind)).for_each(Class::forget);
    }

    /// Runs all calls at one place, or no longer.
    pub fn pin(&mut self, place: Option<Placement>) {
        self.pinned = place;
    }

    /// Runs the calls of one kernel at one place, or no longer.
    pub fn pin_op(&mut self, op: u64, place: Option<Placement>) {
        self.pins.retain(|&(other, _)| other != op);
        self.pins.extend(place.map(|place| (op, place)));
        self.forget();
    }

    /// Whether the calls of a kernel run where somebody has said.
    pub fn is_pinned(&self, op: u64) -> bool {
        self.pinned.is_some() || self.pins.iter().any(|&(other, _)| other == op)
    }

    fn forget(&mut self) {
        self.classes.iter_mut().for_each(Class::forget);
    }

    /// Where the next call runs. `under_way` is how many others of this caller's are; the time is asked for if it is needed.
    #[inline]
    pub fn choose(&mut self, kind: CallKind, under_way: usize, now: impl FnOnce() -> Time) -> Choice {
        self.calls += 1;
        if let Some(placement) = self.pinned {
            self.env.counts.calls[index(placement)] += 1;
            return Choice { placement, ticket: None };
        }
        self.watch(under_way as u32 + 1);
        let peak = self.peak[0].max(self.peak[1]);
        let load = load(peak);
        if !self.classes[self.last].is(kind, load) {
            self.last = self.find(kind, load);
        }
        let class = &mut self.classes[self.last];
        class.used = self.calls;
        class.choose(&mut self.env, self.last, peak, now)
    }

    /// When the caller has looked for answers last: what has come since is no silence. Who never says so looks all the time.
    #[inline]
    pub fn looked(&mut self, at: Time) {
        self.env.looked = Some(at);
    }

    /// A timed call has ended. `is_ok` is false if the place is to blame that it has no result.
    pub fn ended(&mut self, ticket: Ticket, now: Time, is_ok: bool) {
        if let Some(class) = self.classes.get_mut(ticket.class()) {
            class.ended(&mut self.env, ticket, now, is_ok);
        }
    }

    /// A timed call was not made after all.
    pub fn cancelled(&mut self, ticket: Ticket) {
        if let Some(class) = self.classes.get_mut(ticket.class()) {
            class.cancelled(ticket);
        }
    }

    /// What has been decided so far.
    pub fn counts(&self) -> PlacerCounts {
        self.env.counts
    }

    /// Why calls of this kind run where they run; `None` if there were none lately.
    pub fn reason(&self, kind: CallKind) -> Option<Reason> {
        if let Some(placement) = self.pinned {
            return Some(Reason::pinned(placement));
        }
        let found = self.classes.iter().filter(|class| class.kind == Some(kind)).max_by_key(|class| class.used);
        found.map(Class::reason)
    }

    /// The last calls that were moved since this was asked for, and why.
    pub fn poll_move(&mut self) -> Option<(CallKind, Reason)> {
        let kind = self.env.moved.take()?;
        Some((kind, self.reason(kind)?))
    }

    /// Remembers how many are under way. A loop may end many calls at once and start them one by one: what counts is the
    /// most of some time.
    #[inline]
    fn watch(&mut self, under_way: u32) {
        self.peak[0] = self.peak[0].max(under_way);
        self.watched -= 1;
        if self.watched == 0 {
            self.watched = WATCHED.max(4 * self.peak[0]);
            self.peak = [0, self.peak[0]];
        }
    }

    /// The class of a kind and load: a new one in the place of that which was used least lately, if need be.
    #[cold]
    fn find(&mut self, kind: CallKind, load: u8) -> usize {
        let mixed = (kind.op ^ kind.class.rotate_left(32) ^ u64::from(load) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let first = (mixed >> 60) as usize % SETS * WAYS;
        let set = first..first + WAYS;
        if let Some(at) = set.clone().find(|&at| self.classes[at].is(kind, load)) {
            return at;
        }
        let at = set.min_by_key(|&at| self.classes[at].used).unwrap_or(first);
        let known = self.priors.iter().find(|(other, _)| *other == kind);
        let prior =
            known.map_or([0.0; PLACES], |(_, priors)| priors.map(|prior| prior.map_or(0.0, |prior| prior.under(load))));
        let pin = self.pins.iter().find(|(op, _)| *op == kind.op).map(|&(_, place)| place);
        self.classes[at] = Class::new(&self.env, (kind, load), prior, pin, &self.classes[at]);
        at
    }
}

impl fmt::Debug for Placer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Placer").field("counts", &self.env.counts).finish_non_exhaustive()
    }
}

/// Whether a status is a result, wherever the kernel ran: of no result the place may be the cause.
pub fn is_result(status: Status) -> bool {
    match status {
        Status::Ok | Status::NotFound | Status::ReplyTooLong | Status::AccessDenied => true,
        // Said at once, and elsewhere or later the call might be carried out: quick as that is, it is not what was asked for.
        Status::LOST | LOCKED | NOT_OWNER | NOT_HERE => false,
        Status::Other(_) => true,
        Status::UnknownOp
        | Status::BadParams
        | Status::StepLimit
        | Status::ByteLimit
        | Status::Inconsistent
        | Status::Trapped
        | Status::Busy
        | Status::Overdue => false,
    }
}

/// The number of a place in [`Placement::ALL`].
fn index(place: Placement) -> usize {
    place as usize
}

/// Calls under way with each load, about.
const UNDER_WAY: [f64; 5] = [1.0, 4.0, 16.0, 64.0, 256.0];

/// Loads that are told apart: 1, to 8, to 32, to 128, and more under way.
fn load(under_way: u32) -> u8 {
    match under_way {
        0..=1 => 0,
        2..=8 => 1,
        9..=32 => 2,
        33..=128 => 3,
        _ => 4,
    }
}

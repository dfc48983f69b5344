//! Operations that walk their way one event after the other: queues form where they form, caches hit or miss.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remora_model::event::WheelQueue;
use remora_model::resource::Server;
use remora_model::time::Ps;
use serde::Serialize;

use super::operation::Load;
use super::path::{Path, Until, Visit};
use remora_kernel::Placement;

/// What the simulation of a placement gave.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Simulated {
    /// The placement.
    pub place: Placement,
    /// Median latency in nanoseconds.
    pub p50_ns: f64,
    /// The 99th percentile in nanoseconds.
    pub p99_ns: f64,
    /// Operations a second.
    pub ops_per_s: f64,
    /// Events that it took.
    pub events: u64,
}

/// The most events of one simulation: operations with very many accesses get fewer turns.
const MOST_EVENTS: u64 = 4_000_000;

/// An operation under way: when it began, which visit is next, and until when those last that go on beside others.
#[derive(Clone, Copy, Debug)]
struct Turn {
    since: Ps,
    visit: u32,
    until: Ps,
}

/// Runs `operations` operations, a sixth of them as a warm-up. The same seed gives the same result. None if none ends after
/// the warm-up within as many events as are worth waiting for.
pub fn run(place: Placement, path: &Path, load: Load, operations: u32, seed: u64) -> Option<Simulated> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut servers: Vec<Server> = path.servers.iter().map(|&servers| Server::new(servers.max(1.0) as usize)).collect();
    let most = MOST_EVENTS / path.visits.iter().map(held_by).sum::<u64>().max(1);
    let operations = u64::from(operations).min(most.max(200));
    let mut queue: WheelQueue<Turn> = WheelQueue::new();
    let mut arrivals = 0;
    let begin = |at: Ps| Turn { since: at, visit: 0, until: at };
    match load {
        Load::Closed(under_way) => {
            for n in 0..u64::from(under_way) {
                // Not all in the same instant: the first ones spread out over the time of one.
                let at = Ps((path.alone() * 1000.0) as u64 * n / u64::from(under_way));
                queue.push(at, begin(at));
            }
        }
        Load::Open(_) => queue.push(Ps::ZERO, begin(Ps::ZERO)),
    }
    let warm = operations / 6;
    let mut times = Vec::with_capacity(operations as usize);
    let (mut done, mut events, mut held_more, mut warmed_at, mut now) = (0, 0, 0, Ps::ZERO, Ps::ZERO);
    while let Some((at, turn)) = queue.pop() {
        (now, events) = (at, events + 1);
        if events + held_more > 2 * MOST_EVENTS {
            break;
        }
        if let (Load::Open(rate), 0) = (load, turn.visit) {
            arrivals += 1;
            if arrivals < operations + warm {
                let next = at + Ps((exponential(&mut rng) * 1e12 / rate) as u64);
                queue.push(next, begin(next));
            }
        }
        let visit = path.visits.get(turn.visit as usize);
        if turn.until > at && visit.is_none_or(|visit| !visit.wake) {
            queue.push(turn.until, turn);
            continue;
        }
        let Some(visit) = visit else {
            done += 1;
            if done <= warm {
                warmed_at = at;
            } else {
                times.push((at - turn.since).as_ns());
            }
            if done >= operations + warm {
                break;
            }
            if matches!(load, Load::Closed(_)) {
                queue.push(at, begin(at));
            }
            continue;
        };
        held_more += held_by(visit) - 1;
        let next = step((visit, path.merging.ahead), at, &mut servers, &mut rng);
        match visit.wake {
            true => queue.push(at, Turn { visit: turn.visit + 1, until: turn.until.max(next), ..turn }),
            false => queue.push(next, Turn { visit: turn.visit + 1, ..turn }),
        }
    }
    times.sort_unstable_by(f64::total_cmp);
    let last = *times.last()?;
    let quantile = |q: f64| times.get((times.len() as f64 * q) as usize).copied().unwrap_or(last);
    let span = (now - warmed_at).as_secs().max(1e-12);
    let (p50_ns, p99_ns) = (quantile(0.5), quantile(0.99));
    Some(Simulated { place, p50_ns, p99_ns, ops_per_s: times.len() as f64 / span, events })
}

/// When the visit that begins at `at` is over.
fn step((visit, ahead): (&Visit, f64), at: Ps, servers: &mut [Server], rng: &mut ChaCha8Rng) -> Ps {
    if visit.chance < 1.0 && uniform(rng) >= visit.chance {
        return at;
    }
    let hit = visit.hit > 0.0 && uniform(rng) < visit.hit;
    let saved = if hit { visit.saved } else { 0.0 };
    let after = (visit.after - saved).max(0.0);
    let service = (visit.service - (saved - visit.after).max(0.0)).max(0.0);
    let ps = |ns: f64| Ps((ns * 1000.0).round() as u64);
    let (start, end) = match visit.station {
        // It goes with a later one.
        Some(station)
            if visit.waits == Until::Merged && servers[station as usize].start(at, ps(service)) > at + ps(ahead) =>
        {
            (at, at)
        }
        Some(station) => held(&mut servers[station as usize], at, ps(service), visit.servers),
        None => (at, at + ps(service)),
    };
    let goes_on = match visit.waits {
        Until::Served => end,
        // The last of those beside each other is waited for.
        Until::Turn if visit.wake => end,
        Until::Turn => start,
        Until::Nothing | Until::Merged => at,
    };
    goes_on + ps(after)
}

/// The most servers that are held one by one.
const MOST_HELD: f64 = 1024.0;

/// Servers that a visit holds one by one, each of which is as much to do as an event.
fn held_by(visit: &Visit) -> u64 {
    visit.servers.clamp(1.0, MOST_HELD) as u64
}

/// Holds so many servers at once: when the last of them begins and ends. Of very many each stands for several.
fn held(server: &mut Server, at: Ps, service: Ps, servers: f64) -> (Ps, Ps) {
    let turns = servers.clamp(1.0, MOST_HELD).floor();
    let each = if servers > MOST_HELD { Ps((service.0 as f64 * servers / turns) as u64) } else { service };
    (0..turns as u64).map(|_| server.serve(at, each)).max().unwrap_or((at, at))
}

/// From 0 to 1.
pub(super) fn uniform(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

fn exponential(rng: &mut ChaCha8Rng) -> f64 {
    -(1.0 - uniform(rng)).ln()
}

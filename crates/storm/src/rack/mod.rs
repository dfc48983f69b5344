//! Storms over a rack: flows to another rack by NICs that are cut, slow down, stall and come back, and buffers that nodes pass
//! and die with.
//!
//! Each flow's bytes are counted one by one at their receiver: none may be kept twice, or come from memory that the sender
//! has given away. Once the faults are over all must arrive.

#[cfg(test)]
mod tests;
mod world;

use remora_rack::{FlowPolicy, Mapping};

use crate::check::rack::{BufferOptions, RackSeeded, pass_buffers};
use crate::events::{MS, SECOND, Time, US};
use crate::rng::{Purpose, Rng};
use world::World;

/// One storm: all that is needed to have it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RackCase {
    /// The seed.
    pub seed: u64,
    /// A seeded fault of the engine.
    pub seeded: Option<RackSeeded>,
}

impl RackCase {
    /// The command that runs it again.
    pub fn command(&self) -> String {
        format!("remora storm rack --storms 1 --seed {}", self.seed)
    }
}

/// A way between two racks.
#[derive(Clone, Copy, Debug)]
pub struct RackLink {
    /// Bits a second.
    pub rate: u64,
    /// One way.
    pub latency: Time,
    /// Packets of 4 KB that are lost, in a million; the NIC sends them again.
    pub lost: u32,
}

/// What happens to a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinkFault {
    /// Nothing more arrives. The sender hears of that so much later.
    Cut(Time),
    /// It works again, if the sender has heard of the cut.
    Return,
    /// It is so many times slower.
    Slow(u64),
    /// Nothing moves for so long.
    Stall(Time),
}

/// What faults are called, in the order of [`RackStormReport::faults`].
pub const RACK_FAULTS: [&str; 4] = ["a link was cut", "a link came back", "a link slowed down", "a link stalled"];

/// What happened in a storm.
#[derive(Clone, Debug, Default)]
pub struct RackStormReport {
    /// Simulated time, ns.
    pub simulated: Time,
    /// Bytes that flows brought.
    pub bytes: u64,
    /// Segments that NICs took.
    pub segments: u64,
    /// Of these, so many brought nothing new.
    pub twice: u64,
    /// Faults, by kind.
    pub faults: [u64; RACK_FAULTS.len()],
    /// How often a NIC counted as silent.
    pub silent: u64,
    /// What failed, if anything did.
    pub failure: Option<String>,
}

/// Nodes' steps of a storm.
const STEPS: usize = 100;
/// Until when there are faults.
const CALM: Time = SECOND;

/// Runs a storm.
pub fn run(case: &RackCase) -> RackStormReport {
    let mut rng = Rng::new(case.seed, Purpose::Shape);
    let (buffers, flow) = match case.seeded {
        Some(RackSeeded::Buffers(mutation)) => (Some(mutation), None),
        Some(RackSeeded::Flow(mutation)) => (None, Some(mutation)),
        None => (None, None),
    };
    let between = |rng: &mut Rng, low, high| rng.between(low, high) as u8;
    let options = BufferOptions {
        nodes: between(&mut rng, 2, 6),
        buffers: between(&mut rng, 1, 8),
        allocations: between(&mut rng, 10, 200),
        deaths: between(&mut rng, 0, 5),
        mutation: buffers,
    };
    let mut steps = Rng::new(case.seed, Purpose::Client(0));
    let passed = pass_buffers(options, STEPS, |count| steps.below(count as u64) as usize);
    if let Err((reason, story)) = passed {
        return RackStormReport { failure: Some(format!("{reason}\n{story}")), ..RackStormReport::default() };
    }
    let segment = 1 << rng.between(12, 16);
    let policy = FlowPolicy {
        mapping: *rng.pick(&Mapping::ALL),
        subflows: rng.between(1, 16) as u16,
        segment,
        depth: rng.between(1, 16) * u64::from(segment),
        entries: rng.between(1, 64) as u32,
        window: rng.between(4, 64) * u64::from(segment),
        patience: rng.between(5 * MS, 50 * MS),
        mutation: flow,
    };
    let count = rng.between(1, 6);
    let links: Vec<RackLink> = (0..count)
        .map(|_| RackLink {
            rate: rng.between(1_000_000, 50_000_000),
            latency: rng.between(5 * US, 3 * MS),
            lost: if rng.chance(500_000) { rng.between(100, 50_000) as u32 } else { 0 },
        })
        .collect();
    let mut world = World::new(case.seed, policy, &links);
    for _ in 0..rng.between(1, 3) {
        world.flow(rng.between(1, 500_000));
    }
    let mut faults = Rng::new(case.seed, Purpose::Nemesis);
    let mut at = 0;
    loop {
        at += faults.between(MS, 100 * MS);
        if at >= CALM {
            break;
        }
        let fault = match faults.weighted(&[3, 3, 2, 2]) {
            0 => LinkFault::Cut(faults.between(MS, 100 * MS)),
            1 => LinkFault::Return,
            2 => LinkFault::Slow(faults.between(2, 200)),
            _ => LinkFault::Stall(faults.between(MS, 400 * MS)),
        };
        world.fault(at, faults.below(count) as u16, fault);
    }
    world.run(CALM)
}

/// Bits a second that one flow gets over these links, from the first time on until the second, and what became of it. At a
/// time of its own a link may be cut.
///
/// # Panics
///
/// If the flow breaks.
pub fn goodput(policy: FlowPolicy, links: &[RackLink], [from, until]: [Time; 2], cut: Option<(Time, u16)>) -> f64 {
    let mut world = World::new(1, policy, links);
    // More than they can bring.
    let all: u64 = links.iter().map(|link| link.rate / 8).sum();
    world.endless((u128::from(all) * u128::from(2 * until) / u128::from(SECOND)) as u64);
    if let Some((at, nic)) = cut {
        world.fault(at, nic, LinkFault::Cut(100 * MS));
    }
    let before = world.until(from);
    let after = world.until(until);
    8.0 * (after - before) as f64 * SECOND as f64 / (until - from) as f64
}

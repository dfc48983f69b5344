//! The schedule of faults: a list of events, each complete in itself, so that a failing run can be shrunk by leaving
//! some out.

use std::fmt;

use crate::events::{MS, SECOND, Time, US};
use crate::net::Weather;
use crate::rng::{Purpose, Rng};

/// What goes wrong. Nodes in sets are bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StormFault {
    /// Machines fail at once. Of what their disks had not synced, each sector is kept with a chance of `keep` ppm.
    Crash {
        /// Which.
        nodes: u64,
        /// For how long they stay down.
        down: Time,
        /// Unsynced sectors kept, in a million.
        keep: u32,
    },
    /// Processes end, but the machines live on: what was written stays.
    Kill {
        /// Which.
        nodes: u64,
        /// For how long they stay down.
        down: Time,
    },
    /// A node stands still, and then goes on as if nothing had happened.
    Pause {
        /// Which.
        node: usize,
        /// For how long.
        lasts: Time,
    },
    /// A node stands still in the midst of its next turn: behind its first half, which takes input and reads the clock,
    /// and before the second, which answers.
    PauseInTurn {
        /// Which.
        node: usize,
        /// Until so long after now.
        lasts: Time,
    },
    /// Messages from some nodes to others are lost.
    Partition {
        /// Senders.
        from: u64,
        /// Receivers.
        to: u64,
        /// Also the other way.
        both: bool,
        /// For how long.
        lasts: Time,
    },
    /// All links drop, duplicate and reorder.
    Weather {
        /// How much.
        weather: Weather,
        /// For how long.
        lasts: Time,
    },
    /// Links from one node are slow.
    SlowLink {
        /// Sender.
        from: usize,
        /// Receivers.
        to: u64,
        /// By how much, ns.
        extra: Time,
        /// For how long.
        lasts: Time,
    },
    /// Syncs take long.
    SlowDisk {
        /// Whose.
        node: usize,
        /// By how much, ns.
        extra: Time,
        /// For how long.
        lasts: Time,
    },
    /// The next sync fails. The node ends: nothing is known of its page cache any more.
    FailSync {
        /// Whose.
        node: usize,
        /// For how long the node stays down.
        down: Time,
    },
    /// Sectors go bad and the machine fails, so that its next start reads them.
    BadSectors {
        /// Whose.
        node: usize,
        /// How many.
        count: u64,
        /// For how long the node stays down.
        down: Time,
    },
    /// A machine fails, and comes back with an empty disk.
    Wipe {
        /// Which.
        node: usize,
        /// For how long it stays down.
        down: Time,
    },
    /// There is no more room on a disk but for a little.
    FullDisk {
        /// Whose.
        node: usize,
        /// For so many bytes of log there is room all the same.
        left: usize,
        /// For how long.
        lasts: Time,
    },
    /// A clock runs fast or slow.
    Skew {
        /// Whose.
        node: usize,
        /// By how much, in a million.
        ppm: i32,
        /// For how long.
        lasts: Time,
    },
}

/// Names of the kinds of faults, in the order of [`StormFault::kind`].
pub const KINDS: [&str; 16] = [
    "crash of one",
    "crash of some",
    "crash of all",
    "process killed",
    "pause",
    "partition",
    "one-way partition",
    "drop, duplicate, reorder",
    "slow link",
    "slow disk",
    "failed sync",
    "bad sectors",
    "clock skew",
    "pause within a turn",
    "disk wiped",
    "full disk",
];

impl StormFault {
    /// Index of its kind in [`KINDS`], for a cluster of `nodes`.
    pub fn kind(&self, nodes: usize) -> usize {
        match *self {
            Self::Crash { nodes: down, .. } => match down.count_ones() as usize {
                0 | 1 => 0,
                count if count < nodes => 1,
                _ => 2,
            },
            Self::Kill { .. } => 3,
            Self::Pause { .. } => 4,
            Self::Partition { both, .. } => 6 - usize::from(both),
            Self::Weather { .. } => 7,
            Self::SlowLink { .. } => 8,
            Self::SlowDisk { .. } => 9,
            Self::FailSync { .. } => 10,
            Self::BadSectors { .. } => 11,
            Self::Skew { .. } => 12,
            Self::PauseInTurn { .. } => 13,
            Self::Wipe { .. } => 14,
            Self::FullDisk { .. } => 15,
        }
    }

    /// How long it lasts, if it ends by itself.
    pub fn lasts(&self) -> Option<Time> {
        match *self {
            Self::Pause { lasts, .. }
            | Self::PauseInTurn { lasts, .. }
            | Self::Partition { lasts, .. }
            | Self::Weather { lasts, .. }
            | Self::SlowLink { lasts, .. }
            | Self::SlowDisk { lasts, .. }
            | Self::FullDisk { lasts, .. }
            | Self::Skew { lasts, .. } => Some(lasts),
            Self::Crash { .. }
            | Self::Kill { .. }
            | Self::FailSync { .. }
            | Self::BadSectors { .. }
            | Self::Wipe { .. } => None,
        }
    }
}

/// A fault and when it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduledFault {
    /// When.
    pub at: Time,
    /// What.
    pub fault: StormFault,
    /// The seed of its details.
    pub seed: u64,
}

/// What a full disk has left for membership, in bytes, if nothing else.
const LEFT: usize = 256 << 10;
/// How many different kinds [`schedule`] draws from.
const DRAWN: usize = 10;

/// Draws faults from 0 to `until`.
///
/// Each storm leaves out some kinds and favours others (swarm testing: Groce et al., ISSTA 2012), since one kind may
/// hide what another would find: a cluster that is always partitioned never gets to a view change.
pub fn schedule(seed: u64, nodes: usize, until: Time) -> Vec<ScheduledFault> {
    let mut rng = Rng::new(seed, Purpose::Nemesis);
    let weights: [u32; DRAWN] = std::array::from_fn(|_| *rng.pick(&[0, 1, 1, 2, 4]));
    let mut events = later(seed, nodes, until);
    events.extend(full_disks(seed, nodes, until));
    if weights.iter().all(|&weight| weight == 0) {
        return events;
    }
    let mean = rng.between(300 * MS, 4 * SECOND);
    let mut at = SECOND + rng.below(mean);
    while at < until {
        let fault = draw(&mut rng, nodes, &weights);
        events.push(ScheduledFault { at, fault, seed: rng.draw() });
        // Now and then two at once.
        at += if rng.chance(150_000) { rng.below(5 * MS) } else { rng.below(2 * mean) };
    }
    events.sort_by_key(|event| event.at);
    events
}

/// Faults of kinds that came later, of a stream of their own.
fn later(seed: u64, nodes: usize, until: Time) -> Vec<ScheduledFault> {
    let mut rng = Rng::new(seed, Purpose::LaterNemesis);
    let weights: [u32; 2] = std::array::from_fn(|_| *rng.pick(&[0, 1, 1, 2, 4]));
    let mean = rng.between(SECOND, 6 * SECOND);
    let (mut events, mut at) = (Vec::new(), SECOND + rng.below(mean));
    while at < until && weights != [0; 2] {
        let node = rng.below(nodes as u64) as usize;
        let fault = match rng.weighted(&weights) {
            0 => StormFault::PauseInTurn { node, lasts: rng.between(20 * MS, 3 * SECOND) },
            _ => StormFault::Wipe { node, down: rng.between(20 * MS, 3 * SECOND) },
        };
        events.push(ScheduledFault { at, fault, seed: rng.draw() });
        at += rng.below(2 * mean);
    }
    events
}

/// In every third storm disks are full now and then: of a stream of their own, as these came later, and what a seed had before
/// stays as it was.
fn full_disks(seed: u64, nodes: usize, until: Time) -> Vec<ScheduledFault> {
    let mut rng = Rng::new(seed, Purpose::FullDisks);
    let mut events = Vec::new();
    if !rng.chance(333_333) {
        return events;
    }
    let mean = rng.between(SECOND, 6 * SECOND);
    let mut at = SECOND + rng.below(mean);
    while at < until {
        let (node, left) = (rng.below(nodes as u64) as usize, LEFT + *rng.pick(&[0, 500, 20_000]));
        let fault = StormFault::FullDisk { node, left, lasts: rng.between(20 * MS, 3 * SECOND) };
        events.push(ScheduledFault { at, fault, seed: rng.draw() });
        at += rng.below(2 * mean);
    }
    events
}

fn draw(rng: &mut Rng, nodes: usize, weights: &[u32; DRAWN]) -> StormFault {
    let node = rng.below(nodes as u64) as usize;
    let all = (1 << nodes) - 1;
    let down = rng.between(20 * MS, 3 * SECOND);
    let lasts = rng.between(20 * MS, 3 * SECOND);
    match rng.weighted(weights) {
        0 => {
            let keep = *rng.pick(&[0, 300_000, 900_000, 1_000_000]);
            let some = 1 << node | rng.below(1 << nodes);
            let nodes = *rng.pick(&[1 << node, 1 << node, some, all]);
            StormFault::Crash { nodes, down, keep }
        }
        1 => StormFault::Kill { nodes: 1 << node, down },
        2 => StormFault::Pause { node, lasts },
        3 => {
            let side = rng.between(1, (all - 1).max(1));
            let both = rng.chance(500_000);
            StormFault::Partition { from: side, to: all & !side, both, lasts }
        }
        4 => {
            let drop = *rng.pick(&[0, 20_000, 200_000]);
            let duplicate = *rng.pick(&[0, 50_000, 300_000]);
            let jitter = *rng.pick(&[500 * US, 5 * MS, 50 * MS]);
            StormFault::Weather { weather: Weather { drop, duplicate, jitter }, lasts }
        }
        5 => StormFault::SlowLink { from: node, to: rng.between(1, all), extra: rng.between(MS, 300 * MS), lasts },
        6 => StormFault::SlowDisk { node, extra: rng.between(MS, 500 * MS), lasts },
        7 => StormFault::FailSync { node, down },
        8 => StormFault::BadSectors { node, count: rng.between(1, 4), down },
        _ => {
            let ppm = rng.between(100, 5_000) as i32;
            StormFault::Skew { node, ppm: if rng.chance(500_000) { ppm } else { -ppm }, lasts: 4 * lasts }
        }
    }
}

/// Nodes of a set, as `0,2`.
struct Set(u64);

impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<String> = (0..64).filter(|node| self.0 >> node & 1 == 1).map(|node| node.to_string()).collect();
        f.write_str(&nodes.join(","))
    }
}

/// Milliseconds.
struct Ms(Time);

impl fmt::Display for Ms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} ms", self.0 as f64 / MS as f64)
    }
}

impl fmt::Display for StormFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Crash { nodes, down, keep } => {
                write!(f, "crash of {} for {}, {} % of unsynced sectors kept", Set(nodes), Ms(down), keep / 10_000)
            }
            Self::Kill { nodes, down } => write!(f, "process of {} killed, down for {}", Set(nodes), Ms(down)),
            Self::Pause { node, lasts } => write!(f, "{node} stands still for {}", Ms(lasts)),
            Self::PauseInTurn { node, lasts } => {
                write!(f, "{node} stands still in the midst of its next turn, until {} from now", Ms(lasts))
            }
            Self::Wipe { node, down } => write!(f, "crash of {node} for {}, its disk is empty then", Ms(down)),
            Self::Partition { from, to, both, lasts } => {
                let arrow = if both { "<->" } else { "->" };
                write!(f, "messages {} {arrow} {} are lost for {}", Set(from), Set(to), Ms(lasts))
            }
            Self::Weather { weather: Weather { drop, duplicate, jitter }, lasts } => write!(
                f,
                "for {} all links drop {} %, duplicate {} %, delay up to {}",
                Ms(lasts),
                drop / 10_000,
                duplicate / 10_000,
                Ms(jitter)
            ),
            Self::SlowLink { from, to, extra, lasts } => {
                write!(f, "links {from} -> {} are slower by {} for {}", Set(to), Ms(extra), Ms(lasts))
            }
            Self::SlowDisk { node, extra, lasts } => {
                write!(f, "syncs of {node} take {} longer for {}", Ms(extra), Ms(lasts))
            }
            Self::FailSync { node, down } => write!(f, "the next sync of {node} fails, down for {}", Ms(down)),
            Self::BadSectors { node, count, down } => {
                write!(f, "{count} sectors of {node} go bad, crash for {}", Ms(down))
            }
            Self::FullDisk { node, left, lasts } => {
                write!(f, "the disk of {node} is full but for {left} bytes, for {}", Ms(lasts))
            }
            Self::Skew { node, ppm, lasts } => write!(f, "the clock of {node} is off by {ppm} ppm for {}", Ms(lasts)),
        }
    }
}

/// Whether the protocols survive that one of so many nodes loses what it has: not the only copy that a view has, or `alone`
/// may have, nor one of two, as without its vote there is no majority. Sets have a bit for each node.
pub(crate) fn is_spare(node: usize, nodes: usize, members: u64, alone: u64) -> bool {
    members & !(1 << node) != 0 && alone >> node & 1 == 0 && nodes - 1 > nodes / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_repeat_and_together_reach_every_kind() {
        assert_eq!(schedule(3, 5, 60 * SECOND), schedule(3, 5, 60 * SECOND));
        let mut kinds = [0; KINDS.len()];
        for seed in 0..100 {
            let events = schedule(seed, 5, 60 * SECOND);
            assert!(events.is_sorted_by_key(|event| event.at) && events.iter().all(|event| event.at < 60 * SECOND));
            events.iter().for_each(|event| kinds[event.fault.kind(5)] += 1);
        }
        assert!(kinds.iter().all(|&count| count > 20), "{kinds:?}");
    }

    #[test]
    fn small_clusters_have_schedules_too() {
        for nodes in 1..=3 {
            for event in (0..50).flat_map(|seed| schedule(seed, nodes, 20 * SECOND)) {
                if let StormFault::Crash { nodes: down, .. } | StormFault::Kill { nodes: down, .. } = event.fault {
                    assert!(down != 0 && down < 1 << nodes, "{event:?}");
                }
            }
        }
    }
}

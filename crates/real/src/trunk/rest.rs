//! How who drives a trunk waits.

use std::time::Duration;

use remora_nic::CqId;
use remora_rack::Patience;

use super::Way;
use crate::Sleeper;
use crate::device::Device;

/// How long a driver looks for more before it sleeps, where that is not in vain (ns): as an answer takes whose way leads through
/// sleeping threads, of which each takes tens of microseconds to wake.
const LOOK: u64 = 300_000;

/// What there was to do in a turn of a trunk.
#[derive(Clone, Copy, Debug)]
pub struct Driven {
    /// Packets and the like, which may be anybody's.
    pub packets: usize,
    /// What was sent, and what came of what the other rack sent.
    pub work: usize,
}

/// Sleeps until a trunk may have something to do: for who holds a lock around the trunk and not around its sleep.
pub struct TrunkSleeper {
    ways: Vec<(Device, CqId)>,
    sleeper: Sleeper,
    looks: Looks,
}

impl TrunkSleeper {
    pub(super) fn new(ways: &[Way]) -> Self {
        let ways = ways.iter().map(|way| (way.device.clone(), way.cq)).collect();
        Self { ways, sleeper: Sleeper::new(), looks: Looks::default() }
    }

    /// For who has driven the trunk: if there has been nothing to do for a while, sleeps until there may be something, or `timeout` has
    /// passed. Before that it offers its core, if there was nothing just now.
    pub fn rest(&mut self, driven: Driven, timeout: Duration) {
        let Some((device, _)) = self.ways.first() else { return };
        match self.looks.next(driven, device.now()) {
            Next::Drive => {}
            Next::Look { idle } => device.relax(idle),
            Next::Sleep => {
                let ways = self.ways.iter().map(|(device, cq)| (device, *cq));
                Device::sleep_any(ways, timeout, &mut self.sleeper);
            }
        }
    }

    /// Wakes who sleeps so, or is about to: a stream has bytes, or room.
    pub fn wake(&self) {
        if let Some((device, _)) = self.ways.first() {
            device.nudge();
        }
    }
}

/// What a driver does next.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Drive,
    /// There has been nothing for so long (ns), and there may be something soon.
    Look {
        idle: u64,
    },
    Sleep,
}

/// When a driver sleeps: some time after there was work, ever less where none comes within it.
#[derive(Default)]
struct Looks {
    patience: Patience,
    /// When there was work last, and whether it has looked for more since.
    busy_at: u64,
    looks: bool,
}

impl Looks {
    fn next(&mut self, Driven { packets, work }: Driven, now: u64) -> Next {
        let idle = now.saturating_sub(self.busy_at);
        if work > 0 {
            if std::mem::take(&mut self.looks) {
                self.patience = Patience::NEW;
            }
            self.busy_at = now;
            Next::Drive
        } else if packets > 0 {
            // More may be on their way; they are no reason to stay awake afterwards.
            Next::Drive
        } else if idle < self.patience.of(LOOK) {
            self.looks = true;
            Next::Look { idle }
        } else {
            if std::mem::take(&mut self.looks) {
                self.patience.in_vain();
            }
            Next::Sleep
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Driven = Driven { packets: 0, work: 1 };
    const NOTHING: Driven = Driven { packets: 0, work: 0 };

    /// How long one looks who has work at `now`, and then again after `wait`.
    fn looked(looks: &mut Looks, now: &mut u64, wait: u64) -> u64 {
        assert_eq!(looks.next(WORK, *now), Next::Drive);
        let begun = *now;
        while *now < begun + wait {
            if looks.next(NOTHING, *now) == Next::Sleep {
                let looked = *now - begun;
                *now = begun + wait;
                return looked;
            }
            *now += 100;
        }
        wait
    }

    #[test]
    fn a_driver_looks_ever_shorter_in_vain_and_as_long_as_at_first_once_it_was_not() {
        let (mut looks, mut now) = (Looks::default(), 1_000_000);
        assert_eq!(looked(&mut looks, &mut now, LOOK / 2), LOOK / 2, "not asleep yet");
        let mut shortest = LOOK;
        for _ in 0..100 {
            let took = looked(&mut looks, &mut now, 10 * LOOK);
            assert!(took <= shortest);
            shortest = took;
        }
        assert!(shortest < LOOK / 32, "{shortest}");
        looked(&mut looks, &mut now, 1000);
        assert_eq!(looked(&mut looks, &mut now, 10 * LOOK), LOOK);
    }

    /// Anybody may send some.
    #[test]
    fn packets_of_which_nothing_comes_keep_nobody_awake() {
        let (mut looks, mut now) = (Looks::default(), 1_000_000);
        looks.next(WORK, now);
        now += LOOK;
        for _ in 0..10 {
            assert_eq!(looks.next(Driven { packets: 1, work: 0 }, now), Next::Drive);
            assert_eq!(looks.next(NOTHING, now + 100), Next::Sleep);
            now += LOOK / 2;
        }
    }
}

//! How a device sleeps: its NIC thread when nobody drives it, or a user's thread in the NIC thread's place.

use std::sync::atomic::Ordering;
use std::time::Duration;

use remora_nic::{CqId, Time};

use super::{Core, Device, Reading, Shared, polite};
use crate::sys::{Sleeper, prepare_to_wait};

/// How long after the last poll of a user the NIC thread stays away.
const USER_QUIET: u64 = 100_000;
/// How long the NIC thread naps while a user polls.
const NAP: Duration = Duration::from_millis(1);

impl Device {
    /// Sleeps in the NIC thread's place, for one who drives the device: until there may be something to drive or to take
    /// from `cq`, or `timeout` has passed. A packet wakes this thread and no other.
    pub fn sleep(&self, cq: CqId, timeout: Duration, sleeper: &mut Sleeper) {
        Self::sleep_any(std::iter::once((self, cq)), timeout, sleeper);
    }

    /// Sleeps as [`sleep`](Self::sleep) does, for one who drives several devices.
    pub fn sleep_any<'a>(
        all: impl Iterator<Item = (&'a Self, CqId)> + Clone,
        timeout: Duration,
        sleeper: &mut Sleeper,
    ) {
        let (mut held, mut quiet, mut timeout) = (0, true, timeout);
        for (device, cq) in all.clone() {
            held += 1;
            let now = device.now();
            let mut core = device.shared.core.lock();
            core.held = true;
            let nothing = core.nic.cq_len(cq) == 0 && core.events.taken.is_empty() && !core.outbox.has_unsent();
            match nothing.then(|| device.shared.lie_down(&mut core, now, timeout, sleeper)).flatten() {
                Some(until) => timeout = timeout.min(until.unwrap_or(Duration::MAX)),
                None => {
                    quiet = false;
                    break;
                }
            }
        }
        if quiet {
            sleeper.sleep(Some(timeout));
        }
        sleeper.clear();
        all.take(held).for_each(|(device, _)| device.rise());
    }

    /// The user drives again, or leaves it to the NIC thread in a moment.
    fn rise(&self) {
        let mut core = self.shared.core.lock();
        core.held = false;
        core.reading.stale = true;
        self.shared.turns.user_at.store(self.now(), Ordering::Relaxed);
        self.shared.get_up(&mut core);
        drop(core);
        if self.shared.turns.parked.swap(false, Ordering::SeqCst) {
            self.driver.unpark();
        }
    }
}

impl Shared {
    /// The NIC thread.
    pub(super) fn run(&self) {
        prepare_to_wait();
        let mut busy_at = self.now();
        let mut sleeper = Sleeper::new();
        while !self.turns.stop.load(Ordering::Relaxed) {
            if self.turns.kept.load(Ordering::Relaxed) {
                std::thread::park();
                busy_at = self.now();
                continue;
            }
            let now = self.now();
            let user_at = self.turns.user_at.load(Ordering::Relaxed);
            if user_at != 0 && now.saturating_sub(user_at) < USER_QUIET {
                std::thread::park_timeout(NAP);
                busy_at = self.now();
                continue;
            }
            // Somebody else has the engine: a user, who may wait for this very core.
            let Some(mut core) = self.core.try_lock() else {
                std::thread::park_timeout(NAP);
                continue;
            };
            if core.held {
                self.turns.parked.store(true, Ordering::SeqCst);
                drop(core);
                std::thread::park();
                busy_at = self.now();
                continue;
            }
            core.reading = Reading { now, polls: core.reading.polls.wrapping_add(1), stale: true, ..core.reading };
            let writes = core.nic.counters().writes;
            let work = core.progress(now, self.clock, self.local);
            if core.nic.counters().writes > writes {
                self.watch.missed();
            }
            let busy = work > 0 || core.outbox.has_unsent();
            let stays = core.resident.as_mut().is_some_and(|resident| resident.idle(busy) > 0);
            if busy {
                busy_at = now;
            } else if stays {
                busy_at = self.now();
            } else if now.saturating_sub(busy_at) > self.turns.spin.load(Ordering::Relaxed)
                && let Some(until) = self.lie_down(&mut core, now, Duration::MAX, &mut sleeper)
            {
                drop(core);
                sleeper.sleep(until);
                sleeper.clear();
                let mut core = self.core.lock();
                // A user who has gone to sleep since then counts on what wakes both.
                if !core.held {
                    self.get_up(&mut core);
                }
                continue;
            }
            drop(core);
            if !busy {
                polite::relax(now.saturating_sub(busy_at), || self.now());
            }
        }
    }

    /// Asks to be woken for all there will be within `most`, by what it adds to `sleeper`. For how long to sleep at most, or nothing
    /// if there is something already.
    fn lie_down(&self, core: &mut Core, now: Time, most: Duration, sleeper: &mut Sleeper) -> Option<Option<Duration>> {
        if core.nic.owes() {
            core.acknowledge(now);
            if core.outbox.has_unsent() {
                return None;
            }
        }
        if !core.links.iter_mut().all(|link| link.arm()) {
            core.links.iter_mut().for_each(|link| link.disarm());
            return None;
        }
        let resident = core.resident.as_ref().map(|resident| resident.next_timeout());
        let deadline = core.nic.poll_timeout().into_iter().chain(resident).min();
        let awake = now.saturating_add(Time::try_from(most.as_nanos()).unwrap_or(Time::MAX));
        if !self.alarm.set(deadline.map_or(awake, |deadline| deadline.min(awake))) {
            self.get_up(core);
            return None;
        }
        sleeper.add(|fds| {
            fds.push(self.alarm.fd());
            core.links.iter().for_each(|link| link.wait_fds(fds));
        });
        Some(deadline.map(|deadline| Duration::from_nanos(deadline.saturating_sub(now))))
    }

    fn get_up(&self, core: &mut Core) {
        self.alarm.clear();
        core.links.iter_mut().for_each(|link| link.disarm());
        core.inbox.ask_all();
    }
}

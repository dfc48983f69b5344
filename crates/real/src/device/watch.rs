//! Programs that watch their memory for a peer's WRITE, and so do not poll.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::{Device, DeviceGuard};

/// How long a poll that has found completions goes on for a program that then watches its memory.
const LINGER: u64 = 50_000;
/// What a WRITE that came to the NIC thread counts, and the most that is remembered: so many polls that went on in vain
/// make up for it.
const WATCHED: u32 = 8;
const WATCHED_MOST: u32 = 64;

/// Whether users seem to do so.
#[derive(Default)]
pub(super) struct Watch {
    /// Above 0 while users seem to watch their memory instead of polling: after a poll, WRITEs came to the NIC thread.
    watched: AtomicU32,
    /// A user has found completions since a WRITE came to the NIC thread.
    polled: AtomicBool,
}

impl Watch {
    /// WRITEs came to the NIC thread.
    pub fn missed(&self) {
        if self.polled.swap(false, Ordering::Relaxed) {
            self.learn(|n| (n + WATCHED).min(WATCHED_MOST));
        }
    }

    fn learn(&self, watched: impl Fn(u32) -> u32) {
        let _ = self.watched.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(watched(n)));
    }
}

impl Device {
    /// Goes on driving for a moment, after a poll that found completions, if the program seems to watch its memory: such
    /// a one polls no more until a peer has written there, and the NIC thread would have to step in. It ends when a
    /// WRITE has come since the last post.
    #[inline]
    pub fn linger<'a>(&'a self, guard: DeviceGuard<'a>) {
        self.shared.watch.polled.store(true, Ordering::Relaxed);
        if self.shared.watch.watched.load(Ordering::Relaxed) > 0 {
            self.await_write(guard);
        }
    }

    fn await_write<'a>(&'a self, mut guard: DeviceGuard<'a>) {
        let start = self.now();
        while self.now().saturating_sub(start) < LINGER {
            for _ in 0..16 {
                if guard.core.nic.counters().writes != guard.core.writes_at_post {
                    return;
                }
                guard.progress();
            }
            drop(guard);
            self.relax(self.now().saturating_sub(start));
            guard = self.lock();
        }
        self.shared.watch.learn(|n| n.saturating_sub(1));
    }
}

//! Somebody on the node who changes objects while others read them.
//!
//! It needs no events: what it has done by a given time follows from its rate, so memory is brought up to date when a
//! reader looks.

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remora_memory::Region;

use crate::time::Ps;

/// Writes version `.1` of object `.0` into the bytes of one object.
pub type Fill = fn(u64, u64, &mut [u8]);

/// Objects that change, back to back from a region's start.
pub struct Writer {
    region: Arc<Region>,
    object: usize,
    objects: u64,
    fill: Fill,
    pace: Pace,
    bytes: Vec<u8>,
}

/// How the objects change.
enum Pace {
    /// One after the other, each in `spread`, one every `every`.
    Steady { every: Ps, spread: Ps, start: Ps, seen: u64 },
    /// A reader finds the object half-written with a chance of `torn` in 2^32.
    Chance { torn: u64, rng: Box<ChaCha8Rng> },
}

impl Writer {
    /// Rewrites `objects` objects of `object` bytes in turn, one every `every`, which takes `spread` from the first byte
    /// to the last.
    pub fn steady(
        region: Arc<Region>,
        (object, objects): (usize, u64),
        fill: Fill,
        (every, spread): (Ps, Ps),
        start: Ps,
    ) -> Self {
        let pace = Pace::Steady { every, spread: Ps(spread.0.min(every.0)), start, seen: 0 };
        Self { region, object, objects: objects.max(1), fill, pace, bytes: vec![0; object] }
    }

    /// Every look at the one object finds it half-written with probability `torn`, drawn from `seed`.
    pub fn chance(region: Arc<Region>, object: usize, fill: Fill, torn: f64, seed: u64) -> Self {
        let torn = (torn.clamp(0.0, 1.0) * (1u64 << 32) as f64) as u64;
        let pace = Pace::Chance { torn, rng: Box::new(ChaCha8Rng::seed_from_u64(seed)) };
        Self { region, object, objects: 1, fill, pace, bytes: vec![0; object] }
    }

    /// Brings the objects to where they are at `now`. `look` says that a reader begins to read.
    pub fn catch_up(&mut self, now: Ps, look: bool) {
        match &mut self.pace {
            Pace::Chance { torn, rng } => {
                if look {
                    let version = u64::from(rng.next_u32()) < *torn;
                    self.put(0, 0, self.object);
                    if version {
                        self.put(0, 1, self.object / 2);
                    }
                }
            }
            Pace::Steady { every, spread, start, seen } => {
                let (every, spread) = (every.0.max(1), spread.0.max(1));
                let passed = now.0.saturating_sub(start.0);
                // Versions count from 1: the objects' first contents are version 0.
                let (current, into) = (passed / every + 1, passed % every);
                let written = (self.object as u64 * into.min(spread) / spread) as usize & !7;
                let first = (*seen).max(current.saturating_sub(self.objects)).max(1);
                *seen = current;
                for version in first..current {
                    self.put((version - 1) % self.objects, version, self.object);
                }
                self.put((current - 1) % self.objects, current, written);
            }
        }
    }

    /// The first `written` bytes of a version.
    fn put(&mut self, object: u64, version: u64, written: usize) {
        (self.fill)(object, version, &mut self.bytes);
        let va = self.region.va() + object * self.object as u64;
        // A region that is gone has no readers either.
        let _ = self.region.write(va, &self.bytes[..written]);
    }
}

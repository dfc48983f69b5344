//! Random reads of a block of memory by one thread, each of which hangs on the one before (figure 8).

use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;
use remora_model::component::cache::CacheAccess;
use remora_model::component::hierarchy::Hierarchy;
use remora_model::time::Ps;

use super::{Ground, Outcome};
use crate::bluefield::study::{At, Setup};
use crate::workload::below;

/// Reads that are measured. All lines in their order come before.
const READS: u64 = 20_000;
const LINE: u64 = 64;

pub(super) fn run(ground: &Ground, setup: &Setup) -> Outcome {
    let Some(mut params) = ground.machine(setup.place.unwrap_or(At::Host)).threads.clone() else {
        return Outcome::default();
    };
    if setup.page_kib > 0 {
        params.page_bytes = setup.page_kib << 10;
    }
    let mut caches = Hierarchy::new(&params);
    let (lines, mut rng) = ((setup.block_kib << 10) / LINE, ChaCha8Rng::seed_from_u64(ground.seed));
    let warm = (0..lines).fold(Ps::ZERO, |at, line| caches.access(0, at, line * LINE, CacheAccess::Load));
    let mut read = |at| caches.access(0, at, below(&mut rng, lines) * LINE, CacheAccess::Load);
    let end = (0..READS).fold(warm, |at, _| read(at));
    let mean_ns = (end - warm).as_ns() / READS as f64;
    Outcome { mean_ns, detail: "one thread".into(), events: lines + READS, ..Outcome::default() }
}

//! Ways over Remora's software NIC on a probed machine. Its parts share the same few cores in a way that no single
//! resource stands for, so a way is put together from what the probe measured of whole calls, accesses and replies:
//!
//! ```text
//! alone = value(reply) + (accesses - 2) x step + accesses x (load(state) - load(cache)) + compute
//! each  = the same of the times with 64 under way; loads overlap as far as the core keeps misses under way
//! ```

use remora_model::platform::{Platform, Software, on_curve};

use super::Place;
use super::operation::Operation;
use super::path::{Path, Station};
use crate::measure::Link;

/// What an operation takes, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftwareTimes {
    /// From call to reply, one alone.
    pub alone: f64,
    /// From one reply to the next, 64 under way.
    pub each: f64,
}

/// The size that the probe's lists have: all of it in the first-level cache.
const CACHED: f64 = 16384.0;

/// What an operation takes over a link in a placement; `None` if the platform's NIC is not software.
pub fn times(platform: &Platform, operation: &Operation, place: Place, link: Link) -> Option<SoftwareTimes> {
    let software = platform.software.as_ref()?;
    let links = if link == Link::Shm { &software.shm } else { &software.udp };
    let costs = match place {
        Place::Client => &links.client,
        Place::Nic => &links.nic,
        Place::Host => &links.host,
        Place::Accel => return None,
    };
    let count = operation.count();
    let load = (load(software, operation) - on_curve(&software.curve, CACHED, true)).max(0.0) / 1000.0;
    let clock = if place == Place::Client { platform.client.clock } else { platform.host.clock };
    let compute = operation.cycles / clock * 1e9;
    let alone = body(&costs.value, (costs.call, costs.step), operation) + count * load + compute;
    // At the client an access is a packet to the node's engine, which waits for memory; elsewhere loads overlap.
    let overlap = if place == Place::Client { 1.0 } else { platform.host.misses as f64 };
    let each =
        body(&costs.value_each, (costs.call_each, costs.step_each), operation) + count * load / overlap + compute;
    Some(SoftwareTimes { alone, each })
}

/// Calls, accesses and reply, with everything in cache.
fn body(value: &[(u64, u64)], (call, step): (u64, u64), operation: &Operation) -> f64 {
    let (call, step, count) = (call as f64 / 1000.0, step as f64 / 1000.0, operation.count());
    if operation.reply < 1.0 || count < 1.0 {
        return call + count * step;
    }
    // A value's call has two accesses. With one alone, the object itself is read.
    (on_curve(value, operation.reply, false) / 1000.0 + (count - 2.0) * step).max(call)
}

/// Mean time of a load in picoseconds. A uniform one is what the probe's chase measured over as many bytes; of a
/// zipfian, the item of rank `r` is found where the `r` items before it leave it.
fn load(software: &Software, operation: &Operation) -> f64 {
    if operation.skew <= 0.0 {
        return on_curve(&software.curve, operation.state, true);
    }
    const SLICES: u32 = 64;
    let at = |slice: u32| {
        let part = (f64::from(slice) + 0.5) / f64::from(SLICES);
        // The bytes of the most popular items that get this part of all accesses.
        let (mut low, mut high) = (0.0f64, operation.state);
        for _ in 0..40 {
            let middle = (low + high) / 2.0;
            if operation.hit_ratio(middle) < part { low = middle } else { high = middle }
        }
        on_curve(&software.curve, high.max(operation.item), true)
    };
    (0..SLICES).map(at).sum::<f64>() / f64::from(SLICES)
}

/// The way of an operation: the software is held for `each`, the rest of `alone` passes behind it.
pub fn path(platform: &Platform, operation: &Operation, place: Place, link: Link) -> Option<Path> {
    let SoftwareTimes { alone, each } = times(platform, operation, place, link)?;
    let mut path = Path::default();
    path.hold("software NIC", Station::Software, each.min(alone), (alone - each).max(0.0));
    Some(path)
}

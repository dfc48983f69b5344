//! Ways over Remora's software NIC on a probed machine. Its parts share the same few cores in a way that no single
//! resource stands for, so a way is put together from what the probe measured of whole calls, accesses and replies,
//! all in cache, and of what memory adds:
//!
//! ```text
//! alone = reply(bytes) + (accesses - 2) x step + accesses x exposed load + what a long call takes more
//! each  = the same of the times with 64 under way; there, loads overlap as far as a core keeps misses under way
//! ```

use remora_model::platform::{Platform, Software, SoftwarePlace, on_curve};

use super::operation::Operation;
use super::path::{Path, Station};
use remora_kernel::Placement;
use remora_real::LinkKind;

/// What an operation takes, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftwareTimes {
    /// From call to reply, one alone.
    pub alone: f64,
    /// From one reply to the next, 64 under way.
    pub each: f64,
}

/// The size that the probe's lists have: all of it in the first-level cache.
pub(crate) const CACHED: f64 = 16384.0;

/// Steps that a call makes between two looks at the links: only the last of them hides the load it begins.
const ROUNDS: f64 = 4.0;

/// What an operation takes over a link in a placement; `None` if the platform's NIC is not software.
pub fn times(platform: &Platform, operation: &Operation, place: Placement, link: LinkKind) -> Option<SoftwareTimes> {
    let (software, costs) = (platform.software.as_ref()?, costs(platform, place, link)?);
    let (load, stream) = memory(software, operation);
    let clock = if place == Placement::Client { platform.client.clock } else { platform.host.clock };
    let compute = operation.cycles / clock * 1e9;
    Some(SoftwareTimes {
        alone: alone(costs, operation, place, load) + stream + compute,
        each: each(costs, operation, place, load / platform.host.misses as f64) + stream + compute,
    })
}

/// What the probe measured of a placement over a link.
pub fn costs(platform: &Platform, place: Placement, link: LinkKind) -> Option<&SoftwarePlace> {
    let software = platform.software.as_ref()?;
    let links = if link == LinkKind::Shm { &software.shm } else { &software.udp };
    match place {
        Placement::Client => Some(&links.client),
        Placement::Nic => Some(&links.nic),
        Placement::Host => Some(&links.host),
        Placement::Accelerator => None,
    }
}

/// What a call with a reply of so many bytes takes more, or less, if it goes by rings in memory; `None` if the probe has
/// not measured that.
pub fn ring_difference(costs: &SoftwarePlace, reply: f64) -> Option<SoftwareTimes> {
    let ns = |curve: &[(u64, u64)]| on_curve(curve, reply.max(64.0), false) / 1000.0;
    let measured = !costs.ring.is_empty() && !costs.ring_each.is_empty();
    measured.then(|| SoftwareTimes {
        alone: ns(&costs.ring) - ns(&costs.reply),
        each: ns(&costs.ring_each) - ns(&costs.reply_each),
    })
}

fn alone(costs: &SoftwarePlace, operation: &Operation, place: Placement, load: f64) -> f64 {
    let step = costs.step as f64 / 1000.0;
    let exposed = match place {
        // The node's engine waits for memory when it answers a read.
        Placement::Client => load,
        _ => ((ROUNDS - 1.0) * load + (load - ROUNDS * step).max(0.0)) / ROUNDS,
    };
    let long = if lasts(operation, place) { costs.long as f64 / 1000.0 } else { 0.0 };
    body(&costs.reply, (costs.call, step), operation) + operation.count() * exposed + long
}

fn each(costs: &SoftwarePlace, operation: &Operation, place: Placement, overlapped: f64) -> f64 {
    let step = costs.step_each as f64 / 1000.0;
    // Other calls' steps pass while a load is under way, unless the core can have no more misses.
    let missing = if place == Placement::Client { 0.0 } else { (overlapped - step).max(0.0) };
    let value = if operation.uneven { &costs.uneven_each } else { &costs.reply_each };
    let long = if lasts(operation, place) { costs.long_each as f64 / 1000.0 } else { 0.0 };
    body(value, (costs.call_each, step), operation) + operation.count() * missing + long
}

/// Whether a call is not over before the node looks at its links again.
fn lasts(operation: &Operation, place: Placement) -> bool {
    place != Placement::Client && operation.count() > ROUNDS
}

/// Call, accesses and reply, with everything in cache.
fn body(value: &[(u64, u64)], (call, step): (u64, f64), operation: &Operation) -> f64 {
    let (call, count) = (call as f64 / 1000.0, operation.count());
    if operation.reply < 1.0 || count < 1.0 {
        return call + count * step;
    }
    // A value's call has two accesses.
    (on_curve(value, operation.reply, false) / 1000.0 + (count - 2.0) * step).max(call)
}

/// What memory adds to an access, and to the bytes of the reply behind its first line: both against data in cache, in
/// nanoseconds.
fn memory(software: &Software, operation: &Operation) -> (f64, f64) {
    let curve = &software.curve;
    let cached = on_curve(curve, CACHED, true);
    let load = (latency(curve, operation) - cached).max(0.0);
    let missing = load / (on_curve(curve, f64::MAX, true) - cached).max(1.0);
    let stream = (operation.reply - 64.0).max(0.0) / software.system.read * 1e9;
    (load / 1000.0, stream * missing.min(1.0))
}

/// Mean time of a load in picoseconds. A uniform one is what the probe's chase measured over as many bytes; of a
/// zipfian, an item is found where the more popular ones leave it.
fn latency(curve: &[(u64, u64)], operation: &Operation) -> f64 {
    if operation.skew <= 0.0 {
        return on_curve(curve, operation.state, true);
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
        on_curve(curve, high.max(operation.item), true)
    };
    (0..SLICES).map(at).sum::<f64>() / f64::from(SLICES)
}

/// The way of an operation: the software is held for `each`, the rest of `alone` passes behind it. Each engine of a node is
/// one such, as engines and their clients share no more than memory (`remora bench cores`); what an operation brings from there
/// is in its times already, and keeps the memory of all busy beside.
pub fn path(
    platform: &Platform,
    operation: &Operation,
    place: Placement,
    (link, engines): (LinkKind, u16),
) -> Option<Path> {
    let SoftwareTimes { alone, each } = times(platform, operation, place, link)?;
    let mut path = Path::default();
    path.hold("software NIC", Station::Software, each.min(alone), (alone - each).max(0.0));
    path.servers[Station::Software as usize] = f64::from(engines.max(1));
    if let Some(read_all) = platform.software.as_ref()?.system.read_all
        && engines > 1
    {
        path.pass("memory", Station::HostDram, brought(platform.software.as_ref()?, operation) / read_all * 1e9, 0.0);
    }
    Some(path)
}

/// Bytes that an operation brings from memory, by whole lines.
fn brought(software: &Software, operation: &Operation) -> f64 {
    const LINE: f64 = 64.0;
    let (load, _) = memory(software, operation);
    let curve = &software.curve;
    let most = (on_curve(curve, f64::MAX, true) - on_curve(curve, CACHED, true)).max(1.0) / 1000.0;
    let lines: f64 = operation.accesses.iter().map(|access| access.count * (access.bytes / LINE).ceil()).sum();
    lines * LINE * (load / most).min(1.0)
}

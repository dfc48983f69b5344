//! The analytical screen: what a way through the hardware gives under a load.
//!
//! Closed loops by mean value analysis (Reiser and Lavenberg, J. ACM 27(2), 1980) with Schweitzer's approximation, so
//! that the time does not depend on how many operations are under way; stations with several servers as one fast server
//! and a delay (Seidmann et al., 1987). Open loads by the wait of an M/D/1 queue at each station.

use remora_model::platform::{Platform, Power};
use serde::Serialize;

use super::operation::{Clients, Load, Operation};
use super::path::{Demand, Path, Station};
use remora_kernel::Placement;

/// What a placement gives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// The placement.
    pub place: Placement,
    /// Latency of an operation that has everything for itself, in nanoseconds.
    pub alone_ns: f64,
    /// Median latency under the load, in nanoseconds; infinite if the load is more than can be served.
    pub p50_ns: f64,
    /// The 99th percentile: every access misses, and a wait that only one in a hundred exceeds.
    pub p99_ns: f64,
    /// Operations a second under the load.
    pub ops_per_s: f64,
    /// Operations a second at most.
    pub saturation_per_s: f64,
    /// What limits that.
    pub binding: &'static str,
    /// The binding station's use under the load, from 0 to 1.
    pub utilisation: f64,
    /// Operations per joule under the load, of all machines, if the platform's power is known.
    pub ops_per_joule: Option<f64>,
    /// What the latency alone is made of, in nanoseconds.
    pub parts: Vec<(&'static str, f64)>,
}

/// How often the fixed point is improved at most.
const ITERATIONS: usize = 200;

/// Evaluates a way of an operation under its load.
pub fn evaluate(platform: &Platform, place: Placement, path: &Path, operation: &Operation) -> Candidate {
    let load = operation.load;
    let (demands, alone) = (path.demands(), path.alone());
    let busy = |station: usize| demands[station].needed;
    let binding = (0..Station::COUNT).max_by(|&a, &b| busy(a).total_cmp(&busy(b))).unwrap_or(0);
    let saturation = 1e9 / busy(binding).max(1e-9);
    let (rate, wait, parts) = match load {
        Load::Closed(under_way) => closed((path, &demands), alone, f64::from(under_way)),
        Load::Open(rate) => {
            let (wait, parts) = open((path, &demands), rate);
            (rate.min(saturation), wait, parts)
        }
    };
    let missing = path.alone_missing().max(alone);
    let per_ns = rate / 1e9;
    let used = |station: usize| (per_ns * demands[station].with(parts[back(station)])).min(1.0);
    Candidate {
        place,
        alone_ns: alone,
        // The median and the 99th percentile of an exponential wait. In a closed loop at saturation all wait alike.
        p50_ns: alone + wait * if matches!(load, Load::Closed(_)) { 1.0 } else { std::f64::consts::LN_2 },
        p99_ns: missing + wait * if matches!(load, Load::Closed(_)) { 1.5 } else { 100f64.ln() },
        ops_per_s: rate,
        saturation_per_s: saturation,
        binding: name(path, binding),
        utilisation: used(binding),
        ops_per_joule: platform
            .power
            .as_ref()
            .map(|power| rate / watts((platform, power), place, &operation.clients, |station| used(station as usize))),
        parts: path.parts(),
    }
}

fn name(path: &Path, station: usize) -> &'static str {
    let station = path.visits.iter().filter_map(|visit| visit.station).find(|found| *found as usize == station);
    station.map_or("nothing", Station::name)
}

/// A way, and what it needs of each station.
type Needs<'a> = (&'a Path, &'a [Demand; Station::COUNT]);

/// The wires from client to node and back, and which of them acknowledgements pass that a station sends or receives.
const WIRES: [Station; 2] = [Station::WireOut, Station::WireBack];

fn back(station: usize) -> usize {
    let back = [Station::NodeNicOut, Station::WireBack, Station::ClientNicIn];
    usize::from(back.into_iter().any(|back| back as usize == station))
}

/// Operations a second, the wait of each in nanoseconds, and the part of acknowledgements that are sent on each wire.
fn closed((path, demands): Needs<'_>, alone: f64, under_way: f64) -> (f64, f64, [f64; 2]) {
    let stations: Vec<usize> = (0..Station::COUNT).filter(|station| demands[*station].with(1.0) > 0.0).collect();
    let mut queues = vec![under_way / stations.len().max(1) as f64; stations.len()];
    let others = (under_way - 1.0) / under_way;
    let (mut response, mut parts) = (alone, [1.0; 2]);
    for _ in 0..ITERATIONS {
        let per_ns = under_way / response;
        // Services of a station are alike: of the one under way half is left, not all of it as of an exponential one.
        let ahead = |each: f64, queue: f64| queue - (per_ns * each).min(1.0) / 2.0;
        let each: Vec<f64> = stations.iter().map(|&at| demands[at].with(parts[back(at)])).collect();
        let time = |(&each, &queue): (&f64, &f64)| each * (1.0 + ahead(each, queue).max(0.0) * others);
        let times: Vec<f64> = each.iter().zip(&queues).map(time).collect();
        // What passes without a queue: waits, and the other servers' share of a service; less than nothing where more than
        // one thing of an operation is served at a time.
        let delay = alone - each.iter().sum::<f64>();
        let next = delay + times.iter().sum::<f64>();
        let rate = under_way / next;
        for (queue, time) in queues.iter_mut().zip(&times) {
            *queue = rate * time;
        }
        for (part, wire) in parts.iter_mut().zip(WIRES) {
            if let Some(at) = stations.iter().position(|at| *at == wire as usize) {
                // Half of the way: less waits the less is sent.
                *part = (*part + path.merging.part(times[at] - each[at], rate)) / 2.0;
            }
        }
        let moved = (next - response).abs();
        response = next;
        if moved < 1e-6 * response {
            break;
        }
    }
    // Never more than the fullest station serves.
    let fullest = stations.iter().map(|&at| demands[at].with(parts[back(at)])).fold(0.0, f64::max);
    let response = response.max(alone).max(under_way * fullest);
    (under_way / response * 1e9, response - alone, parts)
}

/// The wait in nanoseconds at so many operations a second, and the part of acknowledgements that are sent on each wire.
fn open((path, demands): Needs<'_>, rate: f64) -> (f64, [f64; 2]) {
    let per_ns = rate / 1e9;
    let wait = |each: f64| match per_ns * each {
        busy if busy >= 1.0 => f64::INFINITY,
        busy => busy / (2.0 * (1.0 - busy)) * each,
    };
    let parts = WIRES.map(|wire| {
        let part = |sent: f64| path.merging.part(wait(demands[wire as usize].with(sent)), per_ns);
        // The more are sent the longer is the wait, and the fewer would be.
        let (mut few, mut many) = (0.0, 1.0);
        for _ in 0..40 {
            let sent = (few + many) / 2.0;
            if part(sent) > sent { few = sent } else { many = sent }
        }
        few
    });
    ((0..Station::COUNT).map(|at| wait(demands[at].with(parts[back(at)]))).sum(), parts)
}

/// What all the machines take: clients, a node and their NICs, and the node's accelerator. A processor's power is that of
/// all its cores; who polls keeps a core busy, as all threads of clients do.
fn watts(
    (platform, power): (&Platform, &Power),
    place: Placement,
    clients: &Clients,
    used: impl Fn(Station) -> f64,
) -> f64 {
    let mix = |idle: f64, active: f64, part: f64| idle + (active - idle) * part;
    let part = |busy: u64, cores: u64| busy.min(cores) as f64 / cores.max(1) as f64;
    let client = mix(power.host_idle, power.host_active, part(clients.threads.into(), platform.client.cores));
    let host = match place {
        Placement::Host => used(Station::HostCores).max(part(1, platform.host.cores)),
        _ => used(Station::HostCores),
    };
    let host = mix(power.host_idle, power.host_active, host);
    let nic = |part| mix(power.nic_idle, power.nic_active, part);
    let [client_nic, node_nic] =
        [(Station::ClientNicOut, Station::ClientNicIn), (Station::NodeNicOut, Station::NodeNicIn)]
            .map(|(out, back)| used(out).max(used(back)));
    let clients = (client + nic(client_nic)) * f64::from(clients.machines);
    let node_nic = nic(node_nic.max(used(Station::NicCores)));
    let accel = match platform.accel {
        Some(_) => mix(power.accel_idle, power.accel_active, used(Station::AccelIssue).max(used(Station::AccelLink))),
        None => 0.0,
    };
    (clients + host + node_nic + accel).max(1e-3)
}

//! How many NICs two racks should pool for what their nodes do, and how fast the pool's memory has to be: the engine runs it
//! without a pool, and with pools of one NIC, of two and so on.

mod workload;

use std::sync::atomic::{AtomicBool, Ordering};

use remora_model::platform::Platform;
use remora_model::rack_world::{
    FabricSpec, MEMORY_DEVICE, RackFigures, RackSystem, RackWorldError, RackWorldSpec, run,
};
use remora_model::time::Ps;
use serde::{Deserialize, Serialize};

pub use workload::{Pattern, RACK_TEMPLATES, Workload};

use crate::dfabric::loads::Programs;
use crate::format::{plural, rate};
use crate::reproduce::{Point, Ran, ReproduceError, ReproduceOptions, run_all};

/// How to answer.
#[derive(Clone, Copy, Debug)]
pub struct RackOptions {
    /// NICs of a rack's pool at most.
    pub nics: u16,
    /// The part by which one more NIC has to be faster to be worth it.
    pub gain: f64,
    /// Memory devices of a pool; as many as the platform says if nothing is said.
    pub devices: Option<u16>,
    /// Bytes a second of each; what the platform says if nothing is said.
    pub device_bandwidth: Option<f64>,
    /// Threads.
    pub jobs: usize,
    /// Seed of every random choice: PageRank's graph.
    pub seed: u64,
}

impl Default for RackOptions {
    fn default() -> Self {
        Self { nics: 8, gain: 0.05, devices: None, device_bandwidth: None, jobs: 1, seed: 42 }
    }
}

/// What a number of NICs comes to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RackRow {
    /// NICs of each rack's pool; 0: there is none, and each node has a NIC of its own behind a ToR switch.
    pub nics: u16,
    /// Until all nodes were done.
    pub seconds: f64,
    /// Bytes a second that programs received.
    pub bytes_per_s: f64,
    /// How many times as fast as without a pool.
    pub speedup: f64,
    /// What was busiest.
    pub binding: String,
    /// How busy that was, from 0 to 1.
    pub utilisation: f64,
    /// Of each kind of thing how busy the busiest was, by falling use.
    pub busy: Vec<(String, f64)>,
    /// The pool's memory is what is busiest where all of its devices together have fewer bytes a second than this.
    pub memory_binds_below: Option<f64>,
    /// Packets that switches dropped.
    pub dropped: u64,
    /// Timeouts of TCP.
    pub timeouts: u64,
    /// Events of the run.
    pub events: u64,
}

/// How many NICs to pool, and why.
#[derive(Clone, Debug, Serialize)]
pub struct RackAnswer {
    /// Nodes of each rack.
    pub nodes: u64,
    /// Bytes a second of a NIC.
    pub nic_bytes_per_s: f64,
    /// Bytes a second of the interconnect within a rack.
    pub interconnect_bytes_per_s: f64,
    /// Memory devices of each rack's pool.
    pub devices: u64,
    /// Bytes a second of each of them.
    pub device_bytes_per_s: f64,
    /// Without a pool, then with one NIC and so on.
    pub rows: Vec<RackRow>,
    /// Up to so many NICs each one more brings what is asked for.
    pub knee: Option<u16>,
    /// Whether so does the last one that was tried.
    pub more: bool,
    /// How many NICs, in a sentence.
    pub line: String,
    /// When the pool's memory binds, in a sentence.
    pub memory_line: String,
    /// Whether it was ended early: rows are missing, and the last ones may lack when their memory binds.
    pub cut: bool,
}

/// What a platform says too little for, or what would go on for too long, if there is such a thing.
pub fn missing(platform: &Platform, workload: &Workload, options: &RackOptions) -> Option<String> {
    let adapted = on(platform, workload, options).ok();
    workload.missing(adapted.as_ref().unwrap_or(platform), options.seed)
}

/// Answers. `progress` hears how many numbers of NICs are done of how many; `stop` ends it.
pub fn pool(
    platform: &Platform,
    workload: &Workload,
    options: &RackOptions,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<RackAnswer, ReproduceError> {
    let platform = &on(platform, workload, options)?;
    let lacks = |what| RackWorldError::Lacks(platform.name.clone(), what);
    let costs = platform.rack.as_ref().ok_or_else(|| lacks("racks that share memory and NICs"))?;
    let accel = platform.accel.as_ref().ok_or_else(|| lacks("CXL link"))?;
    let nic = platform.nic.as_ref().ok_or_else(|| lacks("NIC"))?.ethernet.rate;
    let programs = &workload.programs(platform, options.seed);
    let memory = costs.device_bandwidth * costs.devices as f64;
    let work: Vec<_> = (0..=options.nics).map(|nics| Work { platform, programs, nics, nic, memory, stop }).collect();
    let threads = ReproduceOptions { figure: None, jobs: options.jobs, cache: None, seed: options.seed };
    let Ran { outcomes, .. } = run_all(&work, &threads, &mut |told| {
        progress(told.done, told.total);
        !stop.load(Ordering::Relaxed)
    })?;
    // A number of NICs says something beside those below it.
    let mut rows: Vec<RackRow> = outcomes.into_iter().map_while(|row| row).collect();
    let alone = rows.first().ok_or(ReproduceError::Interrupted)?.seconds;
    rows.iter_mut().for_each(|row| row.speedup = alone / row.seconds.max(1e-12));
    let (knee, more) = knee(&rows, options.gain);
    let mut answer = RackAnswer {
        nodes: costs.nodes,
        nic_bytes_per_s: nic,
        interconnect_bytes_per_s: accel.bandwidth,
        devices: costs.devices,
        device_bytes_per_s: costs.device_bandwidth,
        knee,
        more,
        line: String::new(),
        memory_line: String::new(),
        cut: stop.load(Ordering::Relaxed),
        rows,
    };
    answer.line = answer.line(options.gain);
    answer.memory_line = answer.memory_line();
    Ok(answer)
}

/// The platform with what the workload and the options say of it.
fn on(platform: &Platform, workload: &Workload, options: &RackOptions) -> Result<Platform, ReproduceError> {
    let platform = workload.on(platform)?;
    let mut values = Vec::new();
    values.extend(options.devices.map(|devices| ("rack.devices", f64::from(devices))));
    values.extend(options.device_bandwidth.map(|bandwidth| ("rack.device_bandwidth", bandwidth)));
    Ok(if values.is_empty() || platform.rack.is_none() { platform } else { platform.with(&values)? })
}

/// The number of NICs up to which each one more is faster by more than this part, and whether so is the last that was tried.
fn knee(rows: &[RackRow], gain: f64) -> (Option<u16>, bool) {
    let pools = rows.get(1..).unwrap_or_default();
    let worth = |pair: &[RackRow]| pair[0].seconds > pair[1].seconds * (1.0 + gain);
    let steps = pools.windows(2).take_while(|pair| worth(pair)).count();
    (pools.get(steps).map(|row| row.nics), steps > 0 && steps + 1 == pools.len())
}

impl RackAnswer {
    /// The row of the knee.
    pub fn chosen(&self) -> Option<&RackRow> {
        self.rows.iter().find(|row| self.knee == Some(row.nics))
    }

    fn line(&self, gain: f64) -> String {
        let Some(row) = self.chosen() else { return "no pool was run to its end".into() };
        let (nics, percent) = (plural(f64::from(row.nics), "NIC"), gain * 100.0);
        let most = self.rows.iter().map(|row| row.nics).max().unwrap_or(0);
        let fastest = self.rows.iter().skip(1).map(|row| row.speedup).fold(0.0, f64::max);
        if row.speedup <= 1.0 {
            return format!(
                "pool nothing: a pool of {nics} a rack is {:.2} x as fast as a NIC for each node, and with up to {most} \
                 NICs it becomes {fastest:.2} x",
                row.speedup
            );
        }
        let why = match self.more {
            true => format!("each up to there brings over {percent} %, and so may more (--nics)"),
            false if most == row.nics => "no more were tried (--nics)".into(),
            false => format!("the next one brings no {percent} %"),
        };
        let RackRow { speedup, binding, utilisation, .. } = row;
        format!(
            "pool {nics} a rack: {speedup:.2} x as fast as without a pool, limited by {binding} ({:.0} % used); {why}",
            utilisation * 100.0
        )
    }

    fn memory_line(&self) -> String {
        let Some(row) = self.chosen() else { return String::new() };
        let all = self.device_bytes_per_s * self.devices as f64;
        let nics = plural(f64::from(row.nics), "NIC");
        let Some(least) = row.memory_binds_below else {
            return format!("with {nics} the pool's memory does not bind");
        };
        let (least, each, all) = (rate(least), rate(least / self.devices as f64), (rate(all), least > all));
        let devices = plural(self.devices as f64, "device");
        match all {
            (all, true) => format!(
                "with {nics} the pool's memory binds: it has {all}B/s and would need {least}B/s, {each}B/s for each of \
                 {devices}"
            ),
            (all, false) => format!(
                "with {nics} the pool's memory binds below {least}B/s, {each}B/s for each of {devices}; it has {all}B/s"
            ),
        }
    }
}

/// A number of NICs to run.
struct Work<'a> {
    platform: &'a Platform,
    programs: &'a Programs,
    nics: u16,
    /// Bytes a second of a NIC, and of all of the pool's memory.
    nic: f64,
    memory: f64,
    stop: &'a AtomicBool,
}

/// The search for the memory's bandwidth ends where two runs are so near to each other.
const NEAR: f64 = 1.02;
/// It begins with so much on both sides of what a run says, and ends in vain so far away from it.
const ASIDE: f64 = 1.1;
const FAR: f64 = 1000.0;

impl Work<'_> {
    /// Runs it, with memory of so many times the platform's bandwidth.
    fn world(&self, memory: f64) -> Result<RackFigures, RackWorldError> {
        let pool = FabricSpec { device_share: memory, ..FabricSpec::whole(self.nics.into()) };
        let system = if self.nics == 0 { RackSystem::Baseline { nics: 1 } } else { RackSystem::Fabric(pool) };
        let spec = RackWorldSpec {
            system,
            nic_bytes_per_s: self.nic,
            programs: self.programs.clone(),
            receive_copied: true,
            // The kernel of nodes without a pool is as it is everywhere.
            small_queues: self.nics == 0,
            slice: Ps(100_000_000_000),
        };
        run(self.platform, &spec)
    }

    /// Bytes a second of the pool's memory below which nothing is as busy as it, between two runs that are near to each other;
    /// `None` if it is never in use, or if there is no such point.
    fn memory_binds_below(&self, figures: &RackFigures) -> Result<Option<f64>, RackWorldError> {
        let memory = figures.busy.get(MEMORY_DEVICE).copied().unwrap_or(0.0);
        let others = figures.busy.iter().filter(|(name, _)| **name != MEMORY_DEVICE);
        let other = others.map(|(_, busy)| *busy).fold(0.0, f64::max);
        if memory <= 0.0 || other <= 0.0 {
            return Ok(None);
        }
        let guess = memory / other;
        let binds = |share| Ok::<_, RackWorldError>(self.world(share)?.binding.0 == MEMORY_DEVICE);
        let (mut low, mut high) = (guess / ASIDE, guess * ASIDE);
        while !binds(low)? {
            (low, high) = (low / 2.0, low);
            if low < guess / FAR || self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
        }
        while binds(high)? {
            (low, high) = (high, high * 2.0);
            if high > guess * FAR || self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
        }
        while high > low * NEAR {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let middle = (low * high).sqrt();
            *(if binds(middle)? { &mut low } else { &mut high }) = middle;
        }
        Ok(Some((low * high).sqrt() * self.memory))
    }
}

impl Point for Work<'_> {
    type Outcome = RackRow;

    fn key(&self) -> String {
        format!("pool of {}", self.nics)
    }

    fn run(&self) -> Result<RackRow, ReproduceError> {
        let figures = self.world(1.0)?;
        let memory_binds_below = self.memory_binds_below(&figures)?;
        let seconds = figures.end.as_secs();
        let mut busy: Vec<_> = figures.busy.iter().map(|(name, busy)| (name.to_string(), *busy)).collect();
        busy.sort_by(|a, b| b.1.total_cmp(&a.1));
        let (binding, utilisation) = figures.binding;
        Ok(RackRow {
            nics: self.nics,
            seconds,
            bytes_per_s: figures.delivered as f64 / seconds.max(1e-12),
            speedup: 1.0,
            binding,
            utilisation,
            busy,
            memory_binds_below,
            dropped: figures.dropped,
            timeouts: figures.timeouts,
            events: figures.events,
        })
    }

    fn events(outcome: &RackRow) -> u64 {
        outcome.events
    }
}

#[cfg(test)]
mod tests;

//! Memory, caches, cores and the system.

use std::path::PathBuf;
use std::time::Duration;

use remora_lab::probe::memory::{self, Chase};
use remora_lab::probe::{Probe, system};

use super::{Figures, ROUNDS};
use crate::StudyError;

/// Working sets of the latency curve: powers of 4 of a kilobyte, from the first-level cache to memory.
const CURVE: [(usize, &str); 8] = [
    (16 << 10, "16KiB"),
    (64 << 10, "64KiB"),
    (256 << 10, "256KiB"),
    (1 << 20, "1MiB"),
    (4 << 20, "4MiB"),
    (16 << 20, "16MiB"),
    (64 << 20, "64MiB"),
    (256 << 20, "256MiB"),
];

/// Chains that the search for parallel misses tries.
const CHAINS: [usize; 5] = [4, 8, 16, 24, 32];

/// Bytes that bandwidths are measured over: more than caches hold.
const LARGE: usize = 64 << 20;

/// The probes of memory and system.
pub struct Hardware {
    /// How long each measurement runs.
    pub time: Duration,
    /// Where the file to be synced lies.
    pub directory: PathBuf,
}

impl Hardware {
    /// Measures everything. `progress` hears what is next and how much of the way is done, from 0 to 1.
    ///
    /// # Errors
    ///
    /// What the system says; [`StudyError::Interrupted`] if `stop` says so.
    pub fn measure(
        &self,
        figures: &mut Figures,
        progress: &dyn Fn(&str, f64),
        stop: &dyn Fn() -> bool,
    ) -> Result<(), StudyError> {
        let chases: Result<Vec<_>, _> =
            CURVE.iter().map(|&(size, name)| Chase::new(size).map(|chase| (name, chase))).collect();
        let mut chases = chases.map_err(system_error("mapping memory"))?;
        for round in 0..ROUNDS {
            let part = |n: usize| (round as f64 + n as f64 / 3.0) / ROUNDS as f64;
            if stop() {
                return Err(StudyError::Interrupted);
            }
            progress("memory latency", part(0));
            self.latencies(figures, &mut chases);
            progress("memory bandwidth", part(1));
            self.bandwidths(figures);
            progress("the system", part(2));
            self.shared(figures)?;
            self.system(figures)?;
        }
        described(figures);
        Ok(())
    }

    fn latencies(&self, figures: &mut Figures, chases: &mut [(&str, Chase)]) {
        let how = "dependent loads over a working set, in random order";
        for (name, chase) in chases.iter_mut() {
            let ns = chase.ns_per_load(1, self.time);
            figures.add(format!("host.curve.{name}"), "ns", how, ns);
        }
        let Some((_, large)) = chases.last_mut() else { return };
        let alone = large.ns_per_load(1, self.time);
        figures.add("host.dram.latency", "ns", "dependent loads over 256 MiB", alone);
        let best = CHAINS.iter().map(|&chains| large.ns_per_load(chains, self.time)).fold(alone, f64::min);
        let how = "dependent loads of one chain over those of the best number of chains";
        figures.add("host.core.misses", "count", how, (alone / best).round().max(1.0));
        if let Some((_, cached)) = chases.iter_mut().find(|(name, _)| *name == "4MiB") {
            figures.add("host.cache.latency", "ns", "dependent loads over 4 MiB", cached.ns_per_load(1, self.time));
        }
    }

    fn bandwidths(&self, figures: &mut Figures) {
        let (time, probe) = (self.time, Probe { time: self.time });
        let giga = |rate: f64| rate / 1e9;
        let read = giga(memory::read_bytes_per_s(LARGE, time));
        figures.add("host.dram.bandwidth", "GB/s", "one core sums up 64 MiB", read);
        figures.add("system.read", "GB/s", "one core sums up 64 MiB", read);
        let all = giga(memory::read_all_bytes_per_s(LARGE, time));
        figures.add("system.read_all", "GB/s", "all cores sum up 64 MiB each", all);
        figures.add("system.write", "GB/s", "one core fills 64 MiB", giga(memory::write_bytes_per_s(LARGE, time)));
        let copy = giga(probe.memcpy_bytes_per_s(LARGE));
        figures.add("system.copy", "GB/s", "one core copies within 64 MiB", copy);
        figures.add("system.crc64", "GB/s", "objects of 4 KB in cache", giga(memory::crc64_bytes_per_s(4096, time)));
        figures.add("system.icrc", "GB/s", "packets of 4 KB in cache", giga(memory::icrc_bytes_per_s(4112, time)));
    }

    fn shared(&self, figures: &mut Figures) -> Result<(), StudyError> {
        let (write, read) = memory::shared_bytes_per_s(4096, self.time).map_err(system_error("mapping memory"))?;
        figures.add("system.shared_write", "GB/s", "a core rewrites 4 KB that another has read", write / 1e9);
        figures.add("system.shared_read", "GB/s", "a core reads 4 KB that another has written", read / 1e9);
        Ok(())
    }

    fn system(&self, figures: &mut Figures) -> Result<(), StudyError> {
        let (time, probe) = (self.time, Probe { time: self.time });
        figures.add("system.syscall", "ns", "getppid, back to back", system::syscall_ns(time));
        let wake = |core| system::wake_ns(core, time).map_err(system_error("a pipe"));
        figures.add("system.context_switch", "ns", "a byte through pipes between two threads of a core", wake(0)?);
        figures.add("system.wake", "ns", "a byte through pipes between threads of two cores", wake(1)?);
        let line = probe.cache_line_ns();
        figures.add("system.core_to_core", "ns", "a word from core to core and back", line);
        figures.add("system.ring_round_trip", "ns", "a line of data over a ring and one back", probe.ring_ns());
        let udp = probe.udp_ns(64).map_err(system_error("a datagram over loopback"))?;
        figures.add("system.udp_round_trip", "ns", "64 B over loopback and back, both ends polling", udp);
        let sync = system::sync_ns(&self.directory, time).map_err(system_error("syncing a file"))?;
        figures.add("system.file_sync", "ns", "4 KB written to a file and synced", sync);
        for core in ["client.core", "host.core"] {
            figures.add(format!("{core}.poll"), "ns", "one way of a cache line between cores", line / 2.0);
        }
        Ok(())
    }
}

/// What is not measured but told by the system.
fn described(figures: &mut Figures) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let megahertz = cpuinfo.lines().find(|line| line.starts_with("cpu MHz")).and_then(|line| line.split(':').nth(1));
    let clock = megahertz.and_then(|text| text.trim().parse::<f64>().ok()).unwrap_or(2000.0) / 1000.0;
    for core in ["client.core", "host.core"] {
        figures.add(format!("{core}.cores"), "count", "cores that this process may use", cores as f64);
        figures.add(format!("{core}.clock"), "GHz", "as the system tells", clock);
    }
    let cache = |file| std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index3/{file}"));
    let kilobytes = cache("size").ok().and_then(|text| text.trim().trim_end_matches('K').parse::<f64>().ok());
    figures.add("host.cache.size", "KiB", "as the system tells", kilobytes.unwrap_or(8192.0));
    let ways = cache("ways_of_associativity").ok().and_then(|text| text.trim().parse().ok());
    figures.add("host.cache.ways", "ways", "as the system tells", ways.unwrap_or(16.0));
}

fn system_error(what: &'static str) -> impl Fn(std::io::Error) -> StudyError {
    move |source| StudyError::Target(remora_real::Error::System { what, source })
}

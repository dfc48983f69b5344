//! The machine that a measurement ran on.

use std::fs;

use serde::{Deserialize, Serialize};

/// What a reader needs to know of the machine to judge the figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The kernel's name and release.
    pub kernel: String,
    /// Whether the system gives transparent huge pages: `always`, `madvise`, `never`.
    pub huge_pages: String,
    /// Processes that wanted a core in the last minute before the run, on average. Much more than 0 means that the
    /// figures are those of a machine shared with others.
    pub load_average: f64,
    /// Round trip of a cache line between two cores in nanoseconds, measured just before the run. On shared machines
    /// it varies tenfold, and everything else with it.
    pub core_to_core_before_ns: f64,
    /// That round trip just after the run.
    pub core_to_core_after_ns: f64,
    /// Round trip of a raw 64-byte datagram over loopback between two polling sockets in nanoseconds, measured just
    /// before the run; `None` if it could not be.
    pub raw_udp_ns: Option<f64>,
}

impl Machine {
    /// Reads what the system tells; what it does not tell is "unknown". The probes' figures are left at 0.
    pub fn describe() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let pages = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            cpu: field(&cpuinfo, "model name").unwrap_or("unknown").into(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: field(&meminfo, "MemTotal").and_then(kilobytes).unwrap_or(0),
            kernel: format!("Linux {}", release.trim()),
            huge_pages: chosen(&pages).unwrap_or("unknown").into(),
            load_average: load.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0),
            core_to_core_before_ns: 0.0,
            core_to_core_after_ns: 0.0,
            raw_udp_ns: None,
        }
    }
}

impl Machine {
    /// What it is, in a line: processor, cores, kernel.
    pub fn title(&self) -> String {
        format!("{} with {} cores, {}", self.cpu, self.cores, self.kernel)
    }

    /// A remark on what else ran, if it was much.
    pub fn remark(&self) -> Option<String> {
        let (load, cores) = (self.load_average, self.cores);
        (load > 0.5 * cores as f64).then(|| {
            format!(
                "The machine was busy before the run ({load:.1} processes on {cores} cores): figures may be far off."
            )
        })
    }
}

/// The value in the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim())
}

fn kilobytes(value: &str) -> Option<u64> {
    let number: u64 = value.strip_suffix("kB")?.trim().parse().ok()?;
    number.checked_mul(1024)
}

/// The word in brackets.
fn chosen(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_files_are_understood() {
        assert_eq!(field("processor\t: 0\nmodel name\t: A CPU @ 2 GHz\n", "model name"), Some("A CPU @ 2 GHz"));
        assert_eq!(field("", "model name"), None);
        assert_eq!(kilobytes("24 kB"), Some(24 * 1024));
        assert_eq!(kilobytes("much"), None);
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert!(Machine::describe().cores > 0);
    }
}

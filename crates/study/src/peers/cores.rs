//! Cores for threads that poll.
//!
//! The system's scheduler spreads threads over cores when they wake up. Threads that poll do not sleep while there is
//! load: with fewer cores than such threads all nodes of a cluster may share one core for seconds, while their client
//! alone polls on the other.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// This thread's cores as they were, until this value goes.
pub struct Spread {
    before: Option<CpuSet>,
}

impl Spread {
    /// If there are fewer cores than processes and this thread, gives each process one, in turn, and then this thread.
    /// It is best effort: who may not choose keeps what the scheduler gives.
    pub fn over(processes: impl IntoIterator<Item = u32>) -> Self {
        let processes: Vec<u32> = processes.into_iter().collect();
        let Ok(before) = sched_getaffinity(None) else { return Self { before: None } };
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| before.is_set(core)).collect();
        if cores.is_empty() || cores.len() > processes.len() {
            return Self { before: None };
        }
        let only = |number: usize| {
            let mut set = CpuSet::new();
            set.set(cores[number % cores.len()]);
            set
        };
        for (number, &process) in processes.iter().enumerate() {
            keep_to(process, &only(number));
        }
        let _ = sched_setaffinity(None, &only(processes.len()));
        Self { before: Some(before) }
    }

    /// This thread has the first core for itself, the process all others, which it keeps; nothing where there is one core.
    /// Best effort.
    pub fn beside(process: u32) -> Self {
        let before = sched_getaffinity(None).ok().filter(|before| before.count() > 1);
        if let Some(mut others) = before
            && let Some(core) = (0..CpuSet::MAX_CPU).find(|&core| others.is_set(core))
        {
            let mut first = CpuSet::new();
            first.set(core);
            others.unset(core);
            keep_to(process, &others);
            let _ = sched_setaffinity(None, &first);
        }
        Self { before }
    }
}

/// Keeps all threads of a process to these cores.
fn keep_to(process: u32, cores: &CpuSet) {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    for thread in threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok()) {
        let _ = sched_setaffinity(Pid::from_raw(thread), cores);
    }
}

impl Drop for Spread {
    fn drop(&mut self) {
        give_back(self.before.as_ref());
    }
}

fn give_back(before: Option<&CpuSet>) {
    if let Some(before) = before {
        let _ = sched_setaffinity(None, before);
    }
}

/// This thread and all that it starts keep off the last core, until this value goes. Best effort, and nothing where there
/// is one core.
pub struct Apart {
    before: Option<CpuSet>,
    last: CpuSet,
}

impl Apart {
    /// From now on.
    pub fn begin() -> Self {
        let (before, mut last) = (sched_getaffinity(None).ok(), CpuSet::new());
        let before = before.filter(|before| before.count() > 1);
        if let Some(mut others) = before
            && let Some(core) = (0..CpuSet::MAX_CPU).rev().find(|&core| others.is_set(core))
        {
            last.set(core);
            others.unset(core);
            let _ = sched_setaffinity(None, &others);
        }
        Self { before, last }
    }

    /// What moves a thread to the last core when it is called there.
    pub fn last_core(&self) -> impl FnOnce() + Send + use<> {
        let last = self.last;
        move || {
            let _ = sched_setaffinity(None, &last);
        }
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        give_back(self.before.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_its_cores_back() {
        let before = sched_getaffinity(None).unwrap();
        // More than there are cores; of this process no thread but this one is touched, as there is none of number 0.
        drop(Spread::over([0; CpuSet::MAX_CPU]));
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        let spread = Spread::over([0; CpuSet::MAX_CPU]);
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        drop(spread);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        drop(Spread::over([]));
        let spread = Spread::beside(0);
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        drop(spread);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        let apart = Apart::begin();
        std::thread::spawn(apart.last_core()).join().unwrap();
        assert!(before.count() == 1 || sched_getaffinity(None).unwrap().count() == before.count() - 1);
        drop(apart);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}

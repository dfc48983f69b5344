//! Pauses under load: nodes of a cluster stand still (SIGSTOP) at any instant, for a moment or for so long that the others
//! go on without them, and go on themselves (SIGCONT) as if nothing had happened. Everything that clients saw is checked.

use std::path::Path;
use std::thread;
use std::time::Duration;

use super::clients::Shared;
use super::transactions::Lists;
use super::{Crowd, Load, RETURN, Random, Seen};
use crate::StudyError;
use crate::compare::{Progress, Watch};
use crate::nodes::{ClusterProcesses, ClusterSettings, ask};

/// What to do to a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    /// Pauses of one node.
    pub pauses: u32,
    /// Threads of clients, each with several requests under way.
    pub clients: u8,
    /// Seed of every random choice.
    pub seed: u64,
}

/// What came of it.
pub struct PauseReport {
    /// Pauses after which the others had gone on without the node.
    pub left_out: usize,
    /// Pauses that were shorter than that.
    pub short: usize,
    /// Reads that a node was asked for while it stood still, and answered when it went on.
    pub read_late: usize,
    /// What clients saw.
    pub seen: Seen,
}

/// A pause: from when to when, and whether the others had a view without the node then.
struct Pause {
    from: u64,
    to: u64,
    left_out: bool,
}

impl Pauses {
    /// Starts the cluster in `dir`, has its nodes stand still under load, and checks what clients saw.
    ///
    /// # Errors
    ///
    /// What the system says, and answers that no node may give. What the check finds is in the report. Where `watch` stops
    /// it, what was seen until then is checked.
    pub fn run(&self, dir: &Path, settings: ClusterSettings, watch: &dyn Watch) -> Result<PauseReport, StudyError> {
        match settings.chain {
            Some(bytes) => self.pause(dir, settings.clone(), Lists::new(settings, bytes, self.seed)?, watch),
            None => self.pause(dir, settings.clone(), Shared::new(settings, self.seed), watch),
        }
    }

    fn pause<C: Crowd>(
        &self,
        dir: &Path,
        settings: ClusterSettings,
        crowd: C,
        watch: &dyn Watch,
    ) -> Result<PauseReport, StudyError> {
        let load = Load { clients: self.clients, watchers: true, seed: self.seed };
        let (crowd, pauses) =
            load.run(dir, settings, watch, crowd, |cluster, crowd| self.pause_all_the_time(cluster, crowd, watch))?;
        let read_late = pauses.iter().map(|pause| crowd.read_late(pause.from, pause.to)).sum();
        Ok(PauseReport {
            left_out: pauses.iter().filter(|pause| pause.left_out).count(),
            short: pauses.iter().filter(|pause| !pause.left_out).count(),
            read_late,
            seen: crowd.seen().0,
        })
    }

    fn pause_all_the_time(
        &self,
        cluster: &mut ClusterProcesses,
        crowd: &impl Crowd,
        watch: &dyn Watch,
    ) -> Result<Vec<Pause>, StudyError> {
        let mut random = Random(self.seed);
        let mut pauses = Vec::new();
        for number in 1..=self.pauses {
            thread::sleep(Duration::from_micros(random.below(50_000)));
            let node = random.below(cluster.len() as u64) as usize;
            let node = if crowd.in_turn() { (number as usize - 1) % cluster.len() } else { node };
            pauses.push(pause(cluster, crowd, &mut random, node)?);
            watch.progress(Progress::Part { what: "pauses", part: f64::from(number) / f64::from(self.pauses) });
            if watch.stop() || crowd.wrong().is_some() {
                break;
            }
        }
        thread::sleep(Duration::from_millis(300));
        Ok(pauses)
    }
}

/// Every other pause is so long that the others suspect the node, and then as much longer as a lease lasts and more.
fn pause(
    cluster: &mut ClusterProcesses,
    crowd: &impl Crowd,
    random: &mut Random,
    node: usize,
) -> Result<Pause, StudyError> {
    let suspect = cluster.settings().suspect;
    let long = random.below(2) == 0;
    let part = Duration::from_nanos(suspect.as_nanos() as u64 * random.below(1000) / 1000);
    cluster.stop(node);
    let from = crowd.now();
    crowd.killed(from, false);
    thread::sleep(if long { suspect * 2 + 2 * part } else { part });
    let other = (node + 1) % cluster.len();
    let status = long.then(|| ask(cluster.settings(), other, Duration::from_millis(500))).flatten();
    let left_out = status.is_some_and(|status| status.members >> node & 1 == 0);
    let to = crowd.now();
    cluster.go_on(node);
    if long {
        cluster.await_service(RETURN, &|| false)?;
    }
    Ok(Pause { from, to, left_out })
}

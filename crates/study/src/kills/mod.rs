//! Kills under load: nodes of a cluster end by SIGKILL while clients read and write, and everything that clients saw is
//! checked.
//!
//! A node chosen at random is killed, started again after a moment, and waited for until it is a member; then the next
//! one. Now and then all nodes are killed at once. In the end every record is read at every node.

mod check;
mod clients;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use remora_storm::durability::Finding;
use remora_storm::history::History;

pub use check::verdict;

use crate::StudyError;
use crate::compare::{Progress, Watch};
use crate::nodes::{ClusterProcesses, ClusterSettings};
use clients::Shared;

/// How long a node may take to be a member again.
const RETURN: Duration = Duration::from_secs(60);

/// What to do to a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Kills {
    /// Kills of one node.
    pub kills: u32,
    /// Kills of all nodes at once come after so many kills of one.
    pub all_after: u32,
    /// Threads of clients, each with several requests under way.
    pub clients: u8,
    /// Seed of every random choice.
    pub seed: u64,
}

/// What came of it.
pub struct KillReport {
    /// After kills of one node: until the first write was answered that was asked for after it.
    pub resumed: Vec<Duration>,
    /// After kills of one node: until the cluster was whole again.
    pub whole: Vec<Duration>,
    /// After kills of all nodes: until the first write was answered.
    pub resumed_after_all: Vec<Duration>,
    /// Writes that were answered.
    pub answered: usize,
    /// Requests whose outcome is not known.
    pub unknown: usize,
    /// The records that are too hard to check, or what cannot be explained.
    pub checked: Result<Vec<u32>, Finding>,
    /// All that clients saw.
    pub history: History,
}

/// A kill: when it had happened, of which node (`None`: all), and how long until the cluster was whole again.
struct Kill {
    at: u64,
    node: Option<usize>,
    whole: Duration,
}

impl Kills {
    /// Starts the cluster in `dir`, kills its nodes under load, and checks what clients saw.
    ///
    /// # Errors
    ///
    /// What the system says, and answers that no node may give. What the check finds is in the report.
    pub fn run(&self, dir: &Path, settings: ClusterSettings, watch: &dyn Watch) -> Result<KillReport, StudyError> {
        let mut cluster = ClusterProcesses::start(dir, settings.clone())?;
        cluster.await_service(RETURN)?;
        let shared = Arc::new(Shared::new(settings, self.seed));
        let threads: Vec<_> = (0..self.clients)
            .map(|index| {
                let shared = shared.clone();
                thread::spawn(move || shared.run(index))
            })
            .collect();
        let killed = self.kill_all_the_time(&mut cluster, &shared, watch);
        shared.stop.store(true, Ordering::Relaxed);
        for thread in threads {
            let panicked = |_| StudyError::Failed("a client panicked: its message is above".into());
            thread.join().map_err(panicked)??;
        }
        let kills = killed?;
        watch.progress(Progress::Said("reading every record at every node"));
        for node in 0..cluster.len() {
            shared.read_all(node)?;
        }
        drop(cluster);
        watch.progress(Progress::Said("checking what clients saw"));
        shared.wrong().map_or(Ok(()), |why| Err(StudyError::Failed(format!("{why}; seed {}", self.seed))))?;
        Ok(shared.report(&kills))
    }

    fn kill_all_the_time(
        &self,
        cluster: &mut ClusterProcesses,
        shared: &Shared,
        watch: &dyn Watch,
    ) -> Result<Vec<Kill>, StudyError> {
        let mut random = Random(self.seed);
        let mut kills = Vec::new();
        for number in 1..=self.kills {
            thread::sleep(Duration::from_millis(100 + random.below(400)));
            kills.push(kill(cluster, shared, &mut random, false)?);
            if number % self.all_after == 0 {
                thread::sleep(Duration::from_millis(100 + random.below(400)));
                kills.push(kill(cluster, shared, &mut random, true)?);
            }
            watch.progress(Progress::Part { what: "kills", part: f64::from(number) / f64::from(self.kills) });
            if watch.stop() {
                return Err(StudyError::Interrupted);
            }
            if shared.wrong().is_some() {
                break;
            }
        }
        thread::sleep(Duration::from_millis(300));
        Ok(kills)
    }
}

fn kill(cluster: &mut ClusterProcesses, shared: &Shared, random: &mut Random, all: bool) -> Result<Kill, StudyError> {
    let victim = random.below(cluster.len() as u64) as usize;
    let victims: Vec<usize> = if all { (0..cluster.len()).collect() } else { vec![victim] };
    victims.iter().for_each(|&node| cluster.kill(node));
    let (at, since) = (shared.now(), Instant::now());
    if all {
        shared.history().blackouts.push(at);
    }
    shared.round.fetch_add(1, Ordering::Relaxed);
    thread::sleep(Duration::from_millis(if all { 0 } else { 300 + random.below(500) }));
    for &node in &victims {
        cluster.spawn_node(node)?;
    }
    cluster.await_service(RETURN)?;
    Ok(Kill { at, node: (!all).then_some(victim), whole: since.elapsed() })
}

/// SplitMix64 (Steele et al., "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % bound
    }
}

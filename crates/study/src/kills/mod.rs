//! Kills under load: nodes of a cluster end by SIGKILL while clients read and write, and everything that clients saw is
//! checked.
//!
//! A node chosen at random is killed, started again after a moment, and waited for until it is a member; then the next
//! one. Now and then all nodes are killed at once. In the end every record is read at every node. Clients of a chain do
//! transactions of several lists instead.

mod check;
mod clients;
mod pauses;
mod transactions;
mod watchers;

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

pub use check::Seen;
pub use pauses::{PauseReport, Pauses};

use crate::StudyError;
use crate::compare::{Progress, Watch};
use crate::nodes::{ClusterProcesses, ClusterSettings};
use clients::Shared;
use transactions::Lists;

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
    /// What clients saw.
    pub seen: Seen,
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
    /// What the system says, and answers that no node may give. What the check finds is in the report. Where `watch` stops
    /// it, what was seen until then is checked.
    pub fn run(&self, dir: &Path, settings: ClusterSettings, watch: &dyn Watch) -> Result<KillReport, StudyError> {
        match settings.chain {
            Some(bytes) => self.kill(dir, settings.clone(), Lists::new(settings, bytes, self.seed)?, watch),
            None => self.kill(dir, settings.clone(), Shared::new(settings, self.seed), watch),
        }
    }

    fn kill<C: Crowd>(
        &self,
        dir: &Path,
        settings: ClusterSettings,
        crowd: C,
        watch: &dyn Watch,
    ) -> Result<KillReport, StudyError> {
        let load = Load { clients: self.clients, watchers: false, seed: self.seed };
        let (crowd, kills) =
            load.run(dir, settings, watch, crowd, |cluster, crowd| self.kill_all_the_time(cluster, crowd, watch))?;
        let (seen, writes) = crowd.seen();
        let of = |one: bool| kills.iter().filter(move |kill: &&Kill| kill.node.is_some() == one);
        let resumed = |one| of(one).filter_map(|kill| check::resumed(&writes, kill.at)).collect();
        Ok(KillReport {
            resumed: resumed(true),
            whole: of(true).map(|kill| kill.whole).collect(),
            resumed_after_all: resumed(false),
            seen,
        })
    }

    fn kill_all_the_time(
        &self,
        cluster: &mut ClusterProcesses,
        crowd: &impl Crowd,
        watch: &dyn Watch,
    ) -> Result<Vec<Kill>, StudyError> {
        let mut random = Random(self.seed);
        let mut kills = Vec::new();
        for number in 1..=self.kills {
            thread::sleep(Duration::from_millis(100 + random.below(400)));
            let victim = random.below(cluster.len() as u64) as usize;
            // In turn, where each has a place of its own.
            let victim = if crowd.in_turn() { (number as usize - 1) % cluster.len() } else { victim };
            kills.push(kill(cluster, crowd, &mut random, Some(victim))?);
            if number % self.all_after == 0 {
                thread::sleep(Duration::from_millis(100 + random.below(400)));
                kills.push(kill(cluster, crowd, &mut random, None)?);
            }
            watch.progress(Progress::Part { what: "kills", part: f64::from(number) / f64::from(self.kills) });
            if watch.stop() || crowd.wrong().is_some() {
                break;
            }
        }
        thread::sleep(Duration::from_millis(300));
        Ok(kills)
    }
}

/// The clients of a cluster that is in trouble, all together.
trait Crowd: Send + Sync + 'static {
    /// One client thread, until it is to stop.
    fn run(&self, index: u8) -> Result<(), StudyError>;
    /// Somebody who reads at one node all the time, until he is to stop.
    fn watch(&self, node: usize) -> Result<(), StudyError>;
    /// All threads are to stop.
    fn stop(&self);
    /// Reads everything at one node.
    fn read_all(&self, node: usize) -> Result<(), StudyError>;
    /// Nanoseconds since the beginning, as histories have them.
    fn now(&self) -> u64;
    /// Nodes were killed at this time, all or one, or one began to stand still.
    fn killed(&self, at: u64, all: bool);
    /// Whether nodes are killed one after the other.
    fn in_turn(&self) -> bool;
    /// An answer that no node may give, if there was one.
    fn wrong(&self) -> Option<String>;
    /// Reads that were asked for between these times, while a node stood still, and answered behind them.
    fn read_late(&self, from: u64, to: u64) -> usize;
    /// Checks what was seen; nobody adds to it any more. And when writes were asked for and answered.
    fn seen(&self) -> (Seen, Vec<(u64, u64)>);
}

/// What clients do meanwhile.
struct Load {
    /// Threads of clients, each with several requests under way.
    clients: u8,
    /// Does somebody read at each node all the time?
    watchers: bool,
    seed: u64,
}

impl Load {
    /// Starts the cluster in `dir`, has `trouble` done to it under load, and reads every record in the end.
    fn run<C: Crowd, T>(
        &self,
        dir: &Path,
        settings: ClusterSettings,
        watch: &dyn Watch,
        crowd: C,
        trouble: impl FnOnce(&mut ClusterProcesses, &C) -> Result<T, StudyError>,
    ) -> Result<(Arc<C>, T), StudyError> {
        let mut cluster = ClusterProcesses::start(dir, settings, &|| false)?;
        cluster.await_service(RETURN, &|| false)?;
        let shared = Arc::new(crowd);
        let mut threads: Vec<_> = (0..self.clients)
            .map(|index| {
                let shared = shared.clone();
                thread::spawn(move || shared.run(index))
            })
            .collect();
        threads.extend((0..cluster.len()).filter(|_| self.watchers).map(|node| {
            let shared = shared.clone();
            thread::spawn(move || shared.watch(node))
        }));
        let done = trouble(&mut cluster, &shared);
        shared.stop();
        for thread in threads {
            let panicked = |_| StudyError::Failed("a client panicked: its message is above".into());
            thread.join().map_err(panicked)??;
        }
        let done = done?;
        watch.progress(Progress::Said("reading every record at every node"));
        for node in 0..cluster.len() {
            shared.read_all(node)?;
        }
        drop(cluster);
        watch.progress(Progress::Said("checking what clients saw"));
        shared.wrong().map_or(Ok(()), |why| Err(StudyError::Failed(format!("{why}; seed {}", self.seed))))?;
        Ok((shared, done))
    }
}

/// Of one node, or of all.
fn kill(
    cluster: &mut ClusterProcesses,
    crowd: &impl Crowd,
    random: &mut Random,
    node: Option<usize>,
) -> Result<Kill, StudyError> {
    let all = node.is_none();
    let victims: Vec<usize> = node.map_or_else(|| (0..cluster.len()).collect(), |node| vec![node]);
    victims.iter().for_each(|&node| cluster.kill(node));
    let (at, since) = (crowd.now(), Instant::now());
    crowd.killed(at, all);
    thread::sleep(Duration::from_millis(if all { 0 } else { 300 + random.below(500) }));
    for &node in &victims {
        cluster.spawn_node(node)?;
    }
    cluster.await_service(RETURN, &|| false)?;
    Ok(Kill { at, node, whole: since.elapsed() })
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

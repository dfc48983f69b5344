//! The nodes of a cluster as child processes.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use remora_cluster::{ChainClient, ClusterClient, ClusterClientConfig, NEW_LOG, NodeStatus};

use super::process::{Process, beside};
use super::settings::ClusterSettings;
use crate::StudyError;
use crate::format::bytes;

/// What a cluster's node's first line says when it can be reached; its address follows.
pub const CLUSTER_READY: &str = "remora cluster node ready at ";
/// How long a node may take to be up: it reads its log first.
const START: Duration = Duration::from_secs(60);
/// How much longer everything may take for each node of the cluster: they share cores and a disk.
const EACH: Duration = Duration::from_secs(5);

/// The nodes of a cluster as child processes. They end with this value.
pub struct ClusterProcesses {
    dir: PathBuf,
    settings: ClusterSettings,
    nodes: Vec<Option<Process>>,
    /// Files beside this one get the nodes' packets.
    pcap: Option<PathBuf>,
    /// How often each node was started.
    runs: Vec<u32>,
}

impl ClusterProcesses {
    /// Starts all nodes and waits until each can be reached, as long as nobody says to stop.
    pub fn start(dir: &Path, settings: ClusterSettings, stop: &dyn Fn() -> bool) -> Result<Self, StudyError> {
        Self::start_captured(dir, settings, None, stop)
    }

    /// Starts nodes that write their packets into files beside `pcap`, if there is that: with the node's number in their
    /// names, and from its second start on the start's.
    pub fn start_captured(
        dir: &Path,
        settings: ClusterSettings,
        pcap: Option<&Path>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Self, StudyError> {
        let (nodes, runs) = (settings.addresses.iter().map(|_| None).collect(), vec![0; settings.addresses.len()]);
        let mut this = Self { dir: dir.to_path_buf(), settings, nodes, pcap: pcap.map(Path::to_path_buf), runs };
        this.check_room()?;
        for node in 0..this.len() {
            this.spawn_node(node)?;
        }
        for node in this.nodes.iter().flatten() {
            node.await_up(this.patience(START), stop)?;
        }
        Ok(this)
    }

    /// Whether logs that are not there yet have room: on a disk that is full from the start no view is ever agreed on.
    fn check_room(&self) -> Result<(), StudyError> {
        let new = (0..self.len()).filter(|node| !self.dir.join(format!("node-{node}")).join("log").exists()).count();
        let needed = new as u64 * NEW_LOG;
        match free(&self.dir) {
            Some(free) if free < needed => Err(StudyError::Failed(format!(
                "the logs of {new} new nodes take {} in {}, and its disk has {} left: name another --dir, or make room",
                bytes(needed),
                self.dir.display(),
                bytes(free)
            ))),
            _ => Ok(()),
        }
    }

    /// How many nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// What the nodes share.
    pub fn settings(&self) -> &ClusterSettings {
        &self.settings
    }

    /// Where the cluster is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A node's process, if it runs.
    pub fn process(&self, node: usize) -> Option<u32> {
        self.nodes[node].as_ref().map(Process::id)
    }

    /// Starts a node that does not run, without waiting for it.
    pub fn spawn_node(&mut self, node: usize) -> Result<(), StudyError> {
        let id = node.to_string();
        let mut args = ["cluster", "node", "--id", &id, "--dir"].map(OsStr::new).to_vec();
        args.push(self.dir.as_os_str());
        self.runs[node] += 1;
        let name = match self.runs[node] {
            1 => id.clone(),
            run => format!("{node}-{run}"),
        };
        let pcap = self.pcap.as_ref().map(|pcap| beside(pcap, &name));
        if let Some(pcap) = &pcap {
            args.extend([OsStr::new("--pcap"), pcap.as_os_str()]);
        }
        self.nodes[node] = Some(Process::start(format!("node {node}"), &args, CLUSTER_READY)?);
        Ok(())
    }

    /// Ends a node as a power failure of its machine would, but for the disk.
    pub fn kill(&mut self, node: usize) {
        if let Some(mut process) = self.nodes[node].take() {
            process.kill();
        }
    }

    /// Has a node stand still (SIGSTOP), if it runs.
    pub fn stop(&self, node: usize) {
        self.nodes[node].iter().for_each(Process::stop);
    }

    /// Has a node that stands still go on (SIGCONT).
    pub fn go_on(&self, node: usize) {
        self.nodes[node].iter().for_each(Process::go_on);
    }

    /// Whether a node was killed since this was last asked, and how. One that ended by itself is an error: it has said
    /// why.
    pub fn ended(&mut self, node: usize) -> Result<Option<String>, StudyError> {
        let Some(process) = self.nodes[node].as_mut() else { return Ok(None) };
        let ended = process.ended()?;
        if ended.is_some() {
            self.nodes[node] = None;
        }
        Ok(ended)
    }

    /// How long to wait for all, if one node alone may take so long.
    fn patience(&self, one: Duration) -> Duration {
        one + EACH * self.len() as u32
    }

    /// Waits until every node that runs serves as a member of a view of all of them: `patience`, and more with many; as long as nobody
    /// says to stop.
    pub fn await_service(&self, patience: Duration, stop: &dyn Fn() -> bool) -> Result<(), StudyError> {
        let patience = self.patience(patience);
        let end = Instant::now() + patience;
        let wanted = (0..self.len()).filter(|&node| self.nodes[node].is_some()).fold(0, |set, node| set | 1u64 << node);
        for node in (0..self.len()).filter(|&node| self.nodes[node].is_some()) {
            loop {
                let status = ask(&self.settings, node, Duration::from_millis(500));
                if status.is_some_and(|status| status.serves == 1 && status.members & wanted == wanted) {
                    break;
                }
                if stop() {
                    return Err(StudyError::Interrupted);
                }
                if Instant::now() > end {
                    let (why, after) = (self.why_not(status), patience.as_secs());
                    return Err(StudyError::Failed(format!("node {node} does not serve after {after} s: {why}")));
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }
}

impl ClusterProcesses {
    /// Why a node does not serve, by what it says of itself.
    fn why_not(&self, status: Option<NodeStatus>) -> String {
        let list =
            |set: u64| (0..64).filter(|n| set >> n & 1 == 1).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
        let full = free(&self.dir).is_some_and(|free| free < NEW_LOG);
        match status {
            None => "it does not answer".into(),
            Some(status) if status.full != 0 => {
                format!("the disk of node {} is full ({}): make room", list(status.full), self.dir.display())
            }
            Some(_) if full => format!("the disk of {} is full: make room", self.dir.display()),
            Some(NodeStatus { epoch, members, .. }) => {
                let (dir, all) = (self.dir.display(), self.len());
                let members = list(members);
                format!("in epoch {epoch} the members are {members} of {all}: see `remora cluster status --dir {dir}`")
            }
        }
    }
}

/// Bytes that are left on a directory's disk, if that is known.
fn free(dir: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(dir).ok()?;
    // One without a bound says that it has nothing at all.
    (disk.f_blocks > 0).then_some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

impl Drop for ClusterProcesses {
    fn drop(&mut self) {
        // All at once; then each is waited for.
        self.nodes.iter_mut().flatten().for_each(Process::hang_up);
    }
}

/// What one node says of itself; `None` if it cannot be reached.
pub fn ask(settings: &ClusterSettings, node: usize, patience: Duration) -> Option<NodeStatus> {
    let nodes = vec![settings.addresses[node]];
    let config = ClusterClientConfig { nodes, timeout: patience, ..settings.client() };
    let said = match settings.chain {
        Some(_) => ChainClient::connect(config).and_then(|mut client| client.status()),
        None => ClusterClient::connect(config).and_then(|mut client| client.status()),
    };
    said.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::ClusterShape;

    /// A cluster whose nodes do not run.
    fn processes(dir: &Path, nodes: u8) -> ClusterProcesses {
        let (dir, shape) =
            (dir.join(nodes.to_string()), ClusterShape { nodes: Some(nodes), ..ClusterShape::default() });
        let settings = ClusterSettings::open(&dir, &shape).expect("settings");
        let (nodes, runs) = ((0..nodes).map(|_| None).collect(), Vec::new());
        ClusterProcesses { dir, settings, nodes, pcap: None, runs }
    }

    #[test]
    fn why_a_node_does_not_serve_is_said_in_words() {
        let dir = tempfile::tempdir().expect("a directory");
        let cluster = processes(dir.path(), 3);
        let why = |status| cluster.why_not(status);
        assert_eq!(why(None), "it does not answer");
        let full = why(Some(NodeStatus { full: 0b101, ..NodeStatus::default() }));
        assert!(full.starts_with("the disk of node 0, 2 is full (") && full.ends_with("): make room"), "{full}");
        // Where the tests' own disk is not full.
        let alone = why(Some(NodeStatus { epoch: 2, members: 0b11, ..NodeStatus::default() }));
        assert!(
            alone.starts_with("in epoch 2 the members are 0, 1 of 3: see `") || alone.contains(" is full"),
            "{alone}"
        );
    }

    #[test]
    fn patience_grows_with_the_nodes() {
        let dir = tempfile::tempdir().expect("a directory");
        let [few, many] = [3, 16].map(|nodes| processes(dir.path(), nodes).patience(START));
        assert!(few > START && many >= few + 13 * EACH);
    }
}

//! A cluster's directory, and its nodes as child processes.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use remora_cluster::{ClusterNodeConfig, LogKind, Model, Secret, placement};
use remora_kernel::Placement;
use remora_real::LinkKind;
use serde_json::{Value, json};

use crate::Failure;
use crate::capture::beside;
use crate::cluster::{Shape, ask};

/// What a node's first line says when it can be reached; its address follows.
pub const READY: &str = "remora cluster node ready at ";
/// How long a node may take to be up: it reads its log first.
const START: Duration = Duration::from_secs(60);
/// How much longer everything may take for each node of the cluster: they share cores and a disk.
const EACH: Duration = Duration::from_secs(5);
/// How long a node may take to end.
const END: Duration = Duration::from_secs(4);

/// What all nodes of a cluster share, as its directory has it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The nodes' addresses, in the order of their numbers.
    pub addresses: Vec<IpAddr>,
    /// When writes are durable.
    pub persistency: Model,
    /// Where the protocol runs.
    pub deployment: Placement,
    /// How nodes and clients reach each other.
    pub link: LinkKind,
    /// How logs become durable.
    pub log: LogKind,
    /// After so much silence a node is taken to have failed.
    pub suspect: Duration,
    secret: Secret,
}

/// Makes the directory this process's, for as long as the file is open: two that start its nodes would change each
/// other's settings.
pub fn lock(dir: &Path) -> Result<fs::File, Failure> {
    let failed = |e: std::io::Error| Failure::Failed(format!("locking the cluster in {}: {e}", dir.display()));
    fs::create_dir_all(dir).map_err(failed)?;
    let path = dir.join("lock");
    let file =
        fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::Error(e)) => Err(failed(e)),
        Err(fs::TryLockError::WouldBlock) => Err(Failure::Failed(format!(
            "the cluster in {} runs already: name another --dir, or ask it with `remora cluster status`",
            dir.display()
        ))),
    }
}

impl Settings {
    /// What the directory has; a new cluster's are made as `shape` says. What `shape` says of an old one must agree.
    pub fn open(dir: &Path, shape: &Shape) -> Result<Self, Failure> {
        if !dir.join("cluster.json").exists() {
            let settings = Self::new(shape)?;
            settings.write(dir)?;
            return Ok(settings);
        }
        let mut settings = Self::read(dir)?;
        let (nodes, model) = (settings.addresses.len(), settings.persistency);
        let other = |what: &str, has: String| {
            Err(Failure::Usage(format!(
                "the cluster in {} has {what} {has}: leave the option out, or name another --dir",
                dir.display()
            )))
        };
        if shape.nodes.is_some_and(|wanted| usize::from(wanted) != nodes) {
            return other("--nodes", nodes.to_string());
        }
        if shape.persistency.is_some_and(|wanted| wanted != model) {
            return other("--persistency", model.to_string());
        }
        // The rest may change from start to start.
        settings.deployment = shape.deployment.unwrap_or(settings.deployment);
        settings.link = shape.link.unwrap_or(settings.link);
        settings.log = shape.log.unwrap_or(settings.log);
        settings.suspect = shape.suspect.map_or(settings.suspect, Duration::from_millis);
        settings.write(dir)?;
        Ok(settings)
    }

    fn new(shape: &Shape) -> Result<Self, Failure> {
        Ok(Self {
            addresses: remora_real::free_loopbacks(shape.nodes.unwrap_or(3).into())?,
            persistency: shape.persistency.unwrap_or(Model::Synch),
            deployment: shape.deployment.unwrap_or(Placement::Nic),
            link: shape.link.unwrap_or(LinkKind::Shm),
            log: shape.log.unwrap_or_default(),
            suspect: Duration::from_millis(shape.suspect.unwrap_or(200)),
            secret: remora_real::entropy()?,
        })
    }

    fn write(&self, dir: &Path) -> Result<(), Failure> {
        let failed = |e: std::io::Error| Failure::Failed(format!("making the cluster in {}: {e}", dir.display()));
        fs::create_dir_all(dir).map_err(failed)?;
        for node in 0..self.addresses.len() {
            fs::create_dir_all(dir.join(format!("node-{node}"))).map_err(failed)?;
        }
        let addresses: Vec<String> = self.addresses.iter().map(IpAddr::to_string).collect();
        let secret: String = self.secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = json!({
            "version": 1,
            "addresses": addresses,
            "persistency": self.persistency.to_string(),
            "deployment": self.deployment.to_string(),
            "link": self.link,
            "log": self.log.to_string(),
            "suspect_ms": self.suspect.as_millis() as u64,
            "secret": secret,
        });
        let new = dir.join("cluster.json.new");
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&new);
        let written = file.and_then(|mut file| {
            file.write_all(format!("{text:#}\n").as_bytes())?;
            file.sync_all()
        });
        written.and_then(|()| fs::rename(&new, dir.join("cluster.json"))).map_err(failed)
    }

    /// What the directory has.
    pub fn read(dir: &Path) -> Result<Self, Failure> {
        let path = dir.join("cluster.json");
        let text = fs::read_to_string(&path).map_err(|e| match e.kind() {
            ErrorKind::NotFound => Failure::Usage(format!("there is no cluster in {}", dir.display())),
            _ => Failure::Failed(format!("reading {}: {e}", path.display())),
        })?;
        let value: Value = serde_json::from_str(&text)
            .map_err(|e| Failure::Failed(format!("{} is no cluster's: {e}", path.display())))?;
        Self::parse(&value)
            .ok_or_else(|| Failure::Failed(format!("{} is no cluster's of this version", path.display())))
    }

    fn parse(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get(name)?.as_str();
        if value.get("version")?.as_u64()? != 1 {
            return None;
        }
        let mut secret = Secret::default();
        let digits = text("secret")?;
        if digits.len() != 64 || !digits.is_ascii() {
            return None;
        }
        for (index, byte) in secret.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).ok()?;
        }
        let addresses = value.get("addresses")?.as_array()?;
        let suspect = value.get("suspect_ms")?.as_u64()?;
        if !(1..=64).contains(&addresses.len()) || !(1..=600_000).contains(&suspect) {
            return None;
        }
        Some(Self {
            addresses: addresses.iter().map(|address| address.as_str()?.parse().ok()).collect::<Option<Vec<_>>>()?,
            persistency: text("persistency")?.parse().ok()?,
            deployment: placement(text("deployment")?).ok()?,
            link: text("link")?.parse().ok()?,
            log: text("log")?.parse().ok()?,
            suspect: Duration::from_millis(suspect),
            secret,
        })
    }

    /// One node's configuration.
    pub fn node(&self, dir: &Path, id: u8) -> Result<ClusterNodeConfig, Failure> {
        if usize::from(id) >= self.addresses.len() {
            let last = self.addresses.len() - 1;
            return Err(Failure::Usage(format!("there is no node {id}: the cluster has nodes 0 to {last}")));
        }
        let mut config =
            ClusterNodeConfig::new(id, self.addresses.clone(), dir.join(format!("node-{id}")), self.secret);
        (config.model, config.placement, config.link) = (self.persistency, self.deployment, self.link);
        (config.log, config.suspect) = (self.log, self.suspect);
        Ok(config)
    }
}

/// The nodes of a cluster as child processes. They end with this value.
pub struct Children {
    dir: PathBuf,
    settings: Settings,
    nodes: Vec<Option<Child>>,
    /// Files beside this one get the nodes' packets.
    pcap: Option<PathBuf>,
    /// How often each node was started.
    runs: Vec<u32>,
}

impl Children {
    /// Starts all nodes and waits until each can be reached.
    pub fn start(dir: &Path, settings: Settings) -> Result<Self, Failure> {
        Self::start_captured(dir, settings, None)
    }

    /// Starts nodes that write their packets into files beside `pcap`, if there is that: with the node's number in their
    /// names, and from its second start on the start's.
    pub fn start_captured(dir: &Path, settings: Settings, pcap: Option<&Path>) -> Result<Self, Failure> {
        let (nodes, runs) = (settings.addresses.iter().map(|_| None).collect(), vec![0; settings.addresses.len()]);
        let mut this = Self { dir: dir.to_path_buf(), settings, nodes, pcap: pcap.map(Path::to_path_buf), runs };
        let mut up = Vec::new();
        for node in 0..this.len() {
            up.push(this.spawn(node)?);
        }
        for (node, up) in up.into_iter().enumerate() {
            this.await_node(node, &up)?;
        }
        Ok(this)
    }

    /// How many nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// What the nodes share.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Where the cluster is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A node's process, if it runs.
    pub fn process(&self, node: usize) -> Option<u32> {
        self.nodes[node].as_ref().map(Child::id)
    }

    /// Starts a node that does not run, without waiting for it.
    pub fn spawn_node(&mut self, node: usize) -> Result<(), Failure> {
        self.spawn(node).map(drop)
    }

    fn spawn(&mut self, node: usize) -> Result<mpsc::Receiver<()>, Failure> {
        let failed = |e| Failure::Failed(format!("cannot start node {node} as a child process: {e}"));
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(program);
        command.args(["cluster", "node", "--id", &node.to_string(), "--dir"]).arg(&self.dir);
        self.runs[node] += 1;
        if let Some(pcap) = &self.pcap {
            let what = match self.runs[node] {
                1 => node.to_string(),
                run => format!("{node}-{run}"),
            };
            command.arg("--pcap").arg(beside(pcap, &what));
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for the parent, which ends the nodes in order.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let output = child.stdout.take();
        self.nodes[node] = Some(child);
        let (up, is_up) = mpsc::channel();
        thread::spawn(move || {
            let lines = output.map(|output| BufReader::new(output).lines()).into_iter().flatten();
            for line in lines.map_while(Result::ok) {
                let _ = line.starts_with(READY).then(|| up.send(()));
            }
        });
        Ok(is_up)
    }

    fn await_node(&mut self, node: usize, up: &mpsc::Receiver<()>) -> Result<(), Failure> {
        let patience = self.patience(START);
        match up.recv_timeout(patience) {
            Ok(()) => Ok(()),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(Failure::Failed(format!("node {node} did not start: its message is above")))
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(Failure::Failed(format!("node {node} is not up after {} s", patience.as_secs())))
            }
        }
    }

    /// Ends a node as a power failure of its machine would, but for the disk.
    pub fn kill(&mut self, node: usize) {
        if let Some(mut child) = self.nodes[node].take() {
            // If it is gone by now, all the better.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Whether a node was killed since this was last asked, and how. One that ended by itself is an error: it has said
    /// why.
    pub fn ended(&mut self, node: usize) -> Result<Option<String>, Failure> {
        let status = self.nodes[node].as_mut().and_then(|child| child.try_wait().ok().flatten());
        let Some(status) = status else { return Ok(None) };
        self.nodes[node] = None;
        match status.signal() {
            Some(signal) => Ok(Some(format!("was ended by signal {signal}"))),
            None => Err(Failure::Failed(format!("node {node} ended: its message is above"))),
        }
    }

    /// How long to wait for all, if one node alone may take so long.
    fn patience(&self, one: Duration) -> Duration {
        one + EACH * self.len() as u32
    }

    /// Waits until every node that runs serves as a member of a view of all of them: `patience`, and more with many.
    pub fn await_service(&self, patience: Duration) -> Result<(), Failure> {
        let patience = self.patience(patience);
        let end = Instant::now() + patience;
        let wanted = (0..self.len()).filter(|&node| self.nodes[node].is_some()).fold(0, |set, node| set | 1u64 << node);
        for node in (0..self.len()).filter(|&node| self.nodes[node].is_some()) {
            loop {
                let status = ask(&self.settings, node, Duration::from_millis(500));
                if status.is_some_and(|status| status.serves == 1 && status.members & wanted == wanted) {
                    break;
                }
                if Instant::now() > end {
                    let said = status.map_or("it does not answer".into(), |status| format!("{status:?}"));
                    let after = patience.as_secs();
                    return Err(Failure::Failed(format!("node {node} does not serve after {after} s: {said}")));
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        // The end of its input ends a node.
        for child in self.nodes.iter_mut().flatten() {
            drop(child.stdin.take());
        }
        let end = Instant::now() + END;
        for child in self.nodes.iter_mut().flatten() {
            while matches!(child.try_wait(), Ok(None)) {
                if Instant::now() > end {
                    let _ = child.kill();
                    let _ = child.wait();
                    break;
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_grows_with_the_nodes() {
        let children = |nodes| {
            let settings = Settings::new(&shape(Some(nodes), None)).expect("settings");
            let runs = vec![0; nodes.into()];
            Children { dir: PathBuf::new(), settings, nodes: (0..nodes).map(|_| None).collect(), pcap: None, runs }
        };
        let [few, many] = [3, 16].map(|nodes| children(nodes).patience(START));
        assert!(few > START && many >= few + 13 * EACH);
    }

    fn shape(nodes: Option<u8>, persistency: Option<Model>) -> Shape {
        Shape { nodes, persistency, deployment: None, link: None, log: None, suspect: None }
    }

    #[test]
    fn a_directory_keeps_what_its_cluster_is() {
        let dir = tempfile::tempdir().expect("directory");
        assert!(matches!(Settings::read(dir.path()), Err(Failure::Usage(_))));
        let made = Settings::open(dir.path(), &shape(Some(5), Some(Model::Scope))).expect("settings");
        let found = Settings::open(dir.path(), &shape(None, None)).expect("settings");
        assert_eq!((made.addresses, made.secret, made.persistency), (found.addresses, found.secret, Model::Scope));
        assert!(Settings::open(dir.path(), &shape(Some(3), None)).is_err());
        assert!(Settings::open(dir.path(), &shape(None, Some(Model::Event))).is_err());
        assert!(found.secret != [0; 32]);
        fs::write(dir.path().join("cluster.json"), "{\"version\": 2}").expect("written");
        assert!(matches!(Settings::read(dir.path()), Err(Failure::Failed(_))));
    }
}

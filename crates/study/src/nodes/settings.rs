//! A cluster's directory: what its nodes share.

use std::fs;
use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use remora_cluster::{ClusterClientConfig, ClusterNodeConfig, Guard, LogKind, Model, Secret, client_secret, placement};
use remora_kernel::Placement;
use remora_real::LinkKind;
use serde_json::{Value, json};

use crate::StudyError;

/// What a cluster is to be like. What is not said is as it was, or for a new cluster the default.
#[derive(Clone, Debug, Default)]
pub struct ClusterShape {
    /// Nodes; 3 by default.
    pub nodes: Option<u8>,
    /// When writes are durable; synch by default.
    pub persistency: Option<Model>,
    /// Not records, but so many bytes in a chain, for transactions.
    pub chain: Option<u64>,
    /// Where the protocol runs.
    pub deployment: Option<Placement>,
    /// How nodes and clients reach each other; shared memory by default.
    pub link: Option<LinkKind>,
    /// How logs become durable.
    pub log: Option<LogKind>,
    /// After so much silence a node is taken to have failed; 200 ms by default.
    pub suspect: Option<Duration>,
    /// Whether what nodes and clients send is sealed where it leaves the host; it is by default.
    pub sealed: Option<bool>,
}

/// What all nodes of a cluster share, as its directory has it.
#[derive(Clone, Debug)]
pub struct ClusterSettings {
    /// The nodes' addresses, in the order of their numbers.
    pub addresses: Vec<IpAddr>,
    /// When writes are durable.
    pub persistency: Model,
    /// Not records, but so many bytes in a chain, for transactions.
    pub chain: Option<u64>,
    /// Where the protocol runs.
    pub deployment: Placement,
    /// How nodes and clients reach each other.
    pub link: LinkKind,
    /// How logs become durable.
    pub log: LogKind,
    /// After so much silence a node is taken to have failed.
    pub suspect: Duration,
    /// Whether what nodes and clients send is sealed where it leaves the host.
    pub sealed: bool,
    secret: Secret,
}

/// Makes the directory this process's, for as long as the file is open: two that start its nodes would change each
/// other's settings.
pub fn lock(dir: &Path) -> Result<fs::File, StudyError> {
    let failed = |e: std::io::Error| StudyError::Failed(format!("locking the cluster in {}: {e}", dir.display()));
    fs::create_dir_all(dir).map_err(failed)?;
    let path = dir.join("lock");
    let file =
        fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::Error(e)) => Err(failed(e)),
        Err(fs::TryLockError::WouldBlock) => Err(StudyError::Failed(format!(
            "the cluster in {} runs already: name another --dir, or ask it with `remora cluster status`",
            dir.display()
        ))),
    }
}

impl ClusterSettings {
    /// What the directory has; a new cluster's are made as `shape` says. What `shape` says of an old one must agree.
    pub fn open(dir: &Path, shape: &ClusterShape) -> Result<Self, StudyError> {
        if !dir.join("cluster.json").exists() {
            let log = (0..64).map(|node| dir.join(format!("node-{node}/log"))).find(|log| log.exists());
            if let Some(log) = log {
                return Err(StudyError::Failed(format!(
                    "{} is missing, but {} is there: put the file back, as a new one would have another secret and \
                     other settings than the cluster whose logs these are; or name another --dir",
                    dir.join("cluster.json").display(),
                    log.display()
                )));
            }
            let settings = Self::new(shape)?;
            settings.write(dir)?;
            return Ok(settings);
        }
        let mut settings = Self::read(dir)?;
        let (nodes, model) = (settings.addresses.len(), settings.persistency);
        let other = |what: &str, has: String| {
            Err(StudyError::Usage(format!(
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
        if shape.chain.is_some() && shape.chain != settings.chain {
            return match settings.chain {
                Some(bytes) => other("--chain", bytes.to_string()),
                None => other("no --chain", format!("but records of --persistency {model}")),
            };
        }
        if settings.chain.is_some() && shape.persistency.is_some() {
            return other("--chain", "and no --persistency".into());
        }
        // The rest may change from start to start.
        settings.deployment = shape.deployment.unwrap_or(settings.deployment);
        settings.link = shape.link.unwrap_or(settings.link);
        settings.log = shape.log.unwrap_or(settings.log);
        settings.suspect = shape.suspect.unwrap_or(settings.suspect);
        settings.sealed = shape.sealed.unwrap_or(settings.sealed);
        settings.write(dir)?;
        Ok(settings)
    }

    fn new(shape: &ClusterShape) -> Result<Self, StudyError> {
        Ok(Self {
            addresses: remora_real::free_loopbacks(shape.nodes.unwrap_or(3).into())?,
            persistency: shape.persistency.unwrap_or(Model::Synch),
            chain: shape.chain,
            deployment: shape.deployment.unwrap_or(Placement::Nic),
            link: shape.link.unwrap_or(LinkKind::Shm),
            log: shape.log.unwrap_or_default(),
            suspect: shape.suspect.unwrap_or(Duration::from_millis(200)),
            sealed: shape.sealed.unwrap_or(true),
            secret: remora_real::entropy()?,
        })
    }

    fn write(&self, dir: &Path) -> Result<(), StudyError> {
        let failed = |path: &Path, e: std::io::Error| {
            StudyError::Failed(format!(
                "starting the cluster in {}: cannot write {}: {e}",
                dir.display(),
                path.display()
            ))
        };
        for node in 0..self.addresses.len() {
            let node = dir.join(format!("node-{node}"));
            fs::create_dir_all(&node).map_err(|e| failed(&node, e))?;
        }
        let addresses: Vec<String> = self.addresses.iter().map(IpAddr::to_string).collect();
        let text = json!({
            "version": 1,
            "addresses": addresses,
            "persistency": self.persistency.to_string(),
            "chain_bytes": self.chain,
            "deployment": self.deployment.to_string(),
            "link": self.link,
            "log": self.log.to_string(),
            "suspect_ms": self.suspect.as_millis() as u64,
            "sealed": self.sealed,
            "secret": hex(&self.secret),
        });
        // For clients in other programs: who has it is no node.
        let clients = format!("{}\n", hex(&client_secret(&self.secret)));
        for (name, text) in [(CLIENT_SECRET, clients), ("cluster.json", format!("{text:#}\n"))] {
            let path = dir.join(name);
            put(&path, &text).map_err(|e| failed(&path, e))?;
        }
        sync_names(dir).map_err(|e| failed(dir, e))
    }

    /// What the directory has.
    pub fn read(dir: &Path) -> Result<Self, StudyError> {
        let path = dir.join("cluster.json");
        let text = fs::read_to_string(&path).map_err(|e| match e.kind() {
            ErrorKind::NotFound => StudyError::Usage(format!("there is no cluster in {}", dir.display())),
            _ => StudyError::Failed(format!("reading {}: {e}", path.display())),
        })?;
        let value: Value = serde_json::from_str(&text)
            .map_err(|e| StudyError::Failed(format!("{} is no cluster's: {e}", path.display())))?;
        Self::parse(&value)
            .ok_or_else(|| StudyError::Failed(format!("{} is no cluster's of this version", path.display())))
    }

    fn parse(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get(name)?.as_str();
        if value.get("version")?.as_u64()? != 1 {
            return None;
        }
        let secret: Secret = remora_cluster::parse_secret(text("secret")?)?;
        let addresses = value.get("addresses")?.as_array()?;
        let suspect = value.get("suspect_ms")?.as_u64()?;
        if !(1..=64).contains(&addresses.len()) || !(1..=600_000).contains(&suspect) {
            return None;
        }
        Some(Self {
            addresses: addresses.iter().map(|address| address.as_str()?.parse().ok()).collect::<Option<Vec<_>>>()?,
            persistency: text("persistency")?.parse().ok()?,
            // Clusters of before had none.
            chain: value.get("chain_bytes").and_then(Value::as_u64),
            deployment: placement(text("deployment")?).ok()?,
            link: text("link")?.parse().ok()?,
            log: text("log")?.parse().ok()?,
            suspect: Duration::from_millis(suspect),
            // Clusters of before sealed nothing, and now do.
            sealed: value.get("sealed").is_none_or(|sealed| sealed != &Value::Bool(false)),
            secret,
        })
    }

    /// One node's configuration.
    pub fn node(&self, dir: &Path, id: u8) -> Result<ClusterNodeConfig, StudyError> {
        if usize::from(id) >= self.addresses.len() {
            let last = self.addresses.len() - 1;
            return Err(StudyError::Usage(format!("there is no node {id}: the cluster has nodes 0 to {last}")));
        }
        let mut config =
            ClusterNodeConfig::new(id, self.addresses.clone(), dir.join(format!("node-{id}")), self.secret);
        (config.model, config.placement, config.link) = (self.persistency, self.deployment, self.link);
        config.chain = self.chain.map(|bytes| bytes as usize);
        (config.log, config.suspect, config.sealed) = (self.log, self.suspect, self.sealed);
        Ok(config)
    }

    /// What it keeps: records of a persistency model, by its name, or a chain.
    pub fn kept(&self) -> String {
        self.chain.map_or_else(|| self.persistency.to_string(), |_| "chain".into())
    }

    /// What keeps strangers from what nodes and clients say.
    pub fn guard(&self) -> Guard {
        Guard::of(self.sealed, self.link)
    }

    /// How a client connects.
    pub fn client(&self) -> ClusterClientConfig {
        let secret = self.sealed.then(|| client_secret(&self.secret));
        ClusterClientConfig { link: self.link, secret, ..ClusterClientConfig::new(self.addresses.clone()) }
    }
}

/// The file with the secret of a cluster's clients, in its directory.
const CLIENT_SECRET: &str = "clients.secret";

fn hex(secret: &Secret) -> String {
    secret.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Puts a file in the place of the one of that name, if there is one that says something else: on a disk that is full what
/// is there already is enough. It is for the owner alone.
fn put(path: &Path, text: &str) -> std::io::Result<()> {
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    let mut name = path.as_os_str().to_os_string();
    name.push(".new");
    let written = || {
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&name)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&name, path)
    };
    written().inspect_err(|_| {
        let _ = fs::remove_file(&name);
    })
}

/// What has been made in a directory, and the directory itself, is there after a crash too: a log without its cluster's secret
/// would be of no use.
fn sync_names(dir: &Path) -> std::io::Result<()> {
    let dir = dir.canonicalize()?;
    fs::File::open(&dir)?.sync_all()?;
    // Of one that this user may not list nothing can be said.
    let parent = dir.parent().and_then(|parent| fs::File::open(parent).ok());
    parent.map_or(Ok(()), |parent| parent.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(nodes: Option<u8>, persistency: Option<Model>) -> ClusterShape {
        ClusterShape { nodes, persistency, ..ClusterShape::default() }
    }

    #[test]
    fn a_directory_keeps_what_its_cluster_is() {
        let dir = tempfile::tempdir().expect("directory");
        assert!(matches!(ClusterSettings::read(dir.path()), Err(StudyError::Usage(_))));
        let made = ClusterSettings::open(dir.path(), &shape(Some(5), Some(Model::Scope))).expect("settings");
        let found = ClusterSettings::open(dir.path(), &shape(None, None)).expect("settings");
        let known = (found.addresses.clone(), found.secret, Model::Scope);
        assert_eq!((made.addresses, made.secret, made.persistency), known);
        assert!(ClusterSettings::open(dir.path(), &shape(Some(3), None)).is_err());
        assert!(ClusterSettings::open(dir.path(), &shape(None, Some(Model::Event))).is_err());
        assert!(found.secret != [0; 32]);
        // What says the same already is not written again, which a disk that is full would refuse.
        let number =
            |name: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(dir.path().join(name)).expect("there"));
        let before = ["cluster.json", CLIENT_SECRET].map(number);
        ClusterSettings::open(dir.path(), &shape(None, None)).expect("settings");
        assert_eq!(before, ["cluster.json", CLIENT_SECRET].map(number));
        let clients = fs::read_to_string(dir.path().join(CLIENT_SECRET)).expect("the clients' secret");
        assert_eq!(remora_cluster::parse_secret(clients.trim()), found.client().secret);
        let chain = ClusterShape { chain: Some(4096), ..ClusterShape::default() };
        assert!(ClusterSettings::open(dir.path(), &chain).is_err(), "it keeps records");
        let other = dir.path().join("chain");
        assert_eq!(ClusterSettings::open(&other, &chain).expect("settings").kept(), "chain");
        let found = ClusterSettings::open(&other, &shape(None, None)).expect("settings");
        assert_eq!((found.chain, found.node(&other, 0).expect("a node").chain), (Some(4096), Some(4096)));
        assert!(ClusterSettings::open(&other, &shape(None, Some(Model::Synch))).is_err());
        let open = ClusterShape { sealed: Some(false), ..ClusterShape::default() };
        let open = ClusterSettings::open(dir.path(), &open).expect("settings");
        assert!(!open.sealed && open.client().secret.is_none());
        assert!(!ClusterSettings::read(dir.path()).expect("settings").sealed);
        fs::write(dir.path().join("node-1/log"), "a log").expect("written");
        fs::rename(dir.path().join("cluster.json"), dir.path().join("kept")).expect("moved");
        let lost = ClusterSettings::open(dir.path(), &shape(None, None)).map(drop).map_err(|error| error.to_string());
        assert!(lost.is_err_and(|error| error.contains("node-1/log")) && !dir.path().join("cluster.json").exists());
        fs::write(dir.path().join("cluster.json"), "{\"version\": 2}").expect("written");
        assert!(matches!(ClusterSettings::read(dir.path()), Err(StudyError::Failed(_))));
    }
}

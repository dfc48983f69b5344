//! The replicated store: records on several nodes, linearizable, with a choice of how durable writes are.
//!
//! ```
//! use remora::store::{LocalCluster, Model};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path();
//! let cluster = LocalCluster::start(3, Model::Synch, dir)?; // or, for programs of their own: remora cluster
//! let mut store = cluster.client().connect()?;
//! store.put(7, b"hello")?;
//! assert_eq!(store.get(7)?.as_deref(), Some(&b"hello"[..]));
//! assert_eq!(store.fetch_add(1, 5)?, 0);
//! # Ok(())
//! # }
//! ```

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use remora_cluster::{ClusterClientConfig, Op, Outcome, client_secret, parse_secret};
use remora_real::{Error, LinkKind, free_loopbacks};

pub use remora_cluster::{ClusterNode, ClusterNodeConfig, Key, MAX_VALUE, Model, Refusal, ScopeId, Secret, Value};

/// `Ok`, or a [`StoreError`].
pub type Result<T> = std::result::Result<T, StoreError>;

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// It was not done, and will not be.
    #[error("not done: {0}")]
    Refused(#[from] Refusal),
    /// It may have been done, or may still be.
    #[error(
        "no answer came in time, so it may have been done or not: read the record, or let the store ask again \
         (StoreBuilder::retry)"
    )]
    Unknown,
    /// The answer is to something else.
    #[error("a node answered what was not asked ({0}): are all nodes and this client of one version?")]
    Unexpected(String),
    /// There is no connection.
    #[error(transparent)]
    Connection(#[from] Error),
}

/// What a compare-and-swap came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "it may not have swapped"]
pub enum Swap {
    /// The record was what was expected, and is the new value now.
    Done,
    /// The record is this; nothing changed.
    Differs(Option<Value>),
}

/// A connection to a replicated store: to one of its nodes, and to the next one when that fails.
pub struct Store(remora_cluster::ClusterClient);

/// How to connect: see [`Store::builder`].
#[must_use = "a builder does nothing until it connects"]
#[derive(Clone, Debug)]
pub struct StoreBuilder(ClusterClientConfig);

impl StoreBuilder {
    /// Shared memory or UDP, as the nodes have it; by default shared memory.
    pub fn link(mut self, link: LinkKind) -> Self {
        self.0.link = link;
        self
    }

    /// How long an answer may take, and a connection; by default five seconds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.0.timeout = timeout;
        self
    }

    /// Sends a request whose outcome is unknown again, to another node, until its time is over. It is done once.
    pub fn retry(mut self, retry: bool) -> Self {
        self.0.retry = retry;
        self
    }

    /// The number of the node to begin with; by default the first.
    pub fn node(mut self, node: usize) -> Self {
        self.0.node = node;
        self
    }

    /// The clients' secret, as the file `clients.secret` in a cluster's directory has it in hexadecimal digits: what is said
    /// is sealed. Without it only clusters that do not seal can be reached.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.0.secret = Some(secret);
        self
    }

    /// The clients' secret from a file: see [`StoreBuilder::secret`].
    pub fn secret_file(self, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let read = std::fs::read_to_string(path);
        let text = read.map_err(|e| Error::Argument(format!("the clients' secret {}: {e}", path.display())))?;
        let secret = parse_secret(text.trim());
        let secret = secret.ok_or_else(|| Error::Argument(format!("{} has no secret of 64 digits", path.display())))?;
        Ok(self.secret(secret))
    }

    /// Connects.
    pub fn connect(self) -> Result<Store> {
        Ok(Store(remora_cluster::ClusterClient::connect(self.0)?))
    }
}

impl Store {
    /// To connect to one of these nodes, which are all nodes of a store in the order of their numbers.
    pub fn builder(nodes: &[IpAddr]) -> StoreBuilder {
        StoreBuilder(ClusterClientConfig::new(nodes.to_vec()))
    }

    /// The client underneath, which keeps many requests under way.
    pub fn client(&mut self) -> &mut remora_cluster::ClusterClient {
        &mut self.0
    }

    /// Reads a record; `None` if there is none.
    pub fn get(&mut self, key: Key) -> Result<Option<Value>> {
        match self.0.call(Op::Get(key)) {
            Outcome::Value(value) => Ok(value),
            other => Err(failure(other)),
        }
    }

    /// Writes a record. How durable it is by then is up to the store's [`Model`].
    pub fn put(&mut self, key: Key, value: &[u8]) -> Result<()> {
        written(self.0.call(Op::Put(key, value.into())))
    }

    /// Removes a record.
    pub fn delete(&mut self, key: Key) -> Result<()> {
        written(self.0.call(Op::Delete(key)))
    }

    /// Sets a record to `new` if it is `expected`; `None` is absence.
    pub fn compare_swap(&mut self, key: Key, expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<Swap> {
        match self.0.compare_swap(key, expected, new) {
            Outcome::Swapped => Ok(Swap::Done),
            Outcome::NotSwapped(found) => Ok(Swap::Differs(found)),
            other => Err(failure(other)),
        }
    }

    /// Adds to a record of eight bytes, little-endian; an absent one is 0. Returns what it was.
    pub fn fetch_add(&mut self, key: Key, add: u64) -> Result<u64> {
        match self.0.call(Op::FetchAdd(key, add)) {
            Outcome::Added(old) => Ok(old),
            other => Err(failure(other)),
        }
    }

    /// Writes that become durable together, in a store of [`Model::Scope`]. `scope` is a number that nobody else uses.
    pub fn scope(&mut self, scope: ScopeId) -> Scope<'_> {
        Scope { store: self, scope }
    }
}

/// A scope: nothing of it is sure to be durable until [`persist`](Self::persist) has returned.
#[must_use = "nothing is durable until the scope is persisted"]
pub struct Scope<'s> {
    store: &'s mut Store,
    scope: ScopeId,
}

impl Scope<'_> {
    /// Writes a record.
    pub fn put(&mut self, key: Key, value: &[u8]) -> Result<()> {
        written(self.store.0.call_in(Some(self.scope), Op::Put(key, value.into())))
    }

    /// Removes a record.
    pub fn delete(&mut self, key: Key) -> Result<()> {
        written(self.store.0.call_in(Some(self.scope), Op::Delete(key)))
    }

    /// Makes all its writes durable everywhere.
    pub fn persist(self) -> Result<()> {
        match self.store.0.persist(self.scope) {
            Outcome::Persisted => Ok(()),
            other => Err(failure(other)),
        }
    }
}

fn written(outcome: Outcome) -> Result<()> {
    match outcome {
        Outcome::Written => Ok(()),
        other => Err(failure(other)),
    }
}

fn failure(outcome: Outcome) -> StoreError {
    match outcome {
        Outcome::Refused(refusal) => refusal.into(),
        Outcome::Unknown => StoreError::Unknown,
        other => StoreError::Unexpected(format!("{other:?}")),
    }
}

/// All nodes of a store as threads of this process, at addresses of 127.0.0.0/8 that nobody uses: to try things out, and
/// for tests. Each has its log in a directory of its own, and goes on with what it finds there.
#[must_use = "the nodes serve for as long as this is kept"]
pub struct LocalCluster {
    config: ClusterNodeConfig,
    nodes: Vec<Option<ClusterNode>>,
}

impl LocalCluster {
    /// Starts `count` nodes, 1 to 64, that keep their logs below `dir`.
    pub fn start(count: u8, model: Model, dir: impl Into<PathBuf>) -> Result<Self> {
        if count == 0 {
            return Err(Error::Argument("a cluster has at least one node".into()).into());
        }
        let addresses = free_loopbacks(count.into())?;
        let config =
            ClusterNodeConfig { model, ..ClusterNodeConfig::new(0, addresses, dir.into(), remora_real::entropy()?) };
        let nodes = (0..count).map(|_| None).collect();
        let mut cluster = Self { config, nodes };
        (0..count).try_for_each(|node| cluster.restart(node))?;
        Ok(cluster)
    }

    /// Its nodes' addresses, in the order of their numbers.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.config.addresses
    }

    /// To connect to it.
    pub fn client(&self) -> StoreBuilder {
        Store::builder(self.addresses()).secret(client_secret(&self.config.secret))
    }

    /// Stops a node, as if its process had ended.
    pub fn stop(&mut self, node: u8) {
        if let Some(node) = self.nodes.get_mut(usize::from(node)) {
            *node = None;
        }
    }

    /// Starts a node again. It catches up with the others before it serves.
    pub fn restart(&mut self, node: u8) -> Result<()> {
        self.stop(node);
        let dir = self.dir(node);
        let made = std::fs::create_dir_all(&dir);
        made.map_err(|source| Error::System { what: "making a directory for a node's log", source })?;
        let config = ClusterNodeConfig { id: node, dir, ..self.config.clone() };
        let started = ClusterNode::start(config)?;
        if let Some(node) = self.nodes.get_mut(usize::from(node)) {
            *node = Some(started);
        }
        Ok(())
    }

    fn dir(&self, node: u8) -> PathBuf {
        Path::new(&self.config.dir).join(node.to_string())
    }
}

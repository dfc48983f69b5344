//! A memory node in this process.

use std::net::IpAddr;
use std::path::PathBuf;

use remora_kernel::Limits;
use remora_real::link::Layers;
use remora_real::{Deployers, NodeConfig, at_free_loopback};
use remora_service::Placing;

use crate::{Result, ToAddress};

/// A memory node: it serves clients from threads of its own until it is dropped.
///
/// ```
/// # fn main() -> remora::Result<()> {
/// let node = remora::Node::local()?;
/// println!("remora compare --node {}", node.address());
/// node.shutdown();
/// # Ok(())
/// # }
/// ```
#[must_use = "a node serves for as long as it is kept"]
pub struct Node(remora_real::Node);

impl Node {
    /// A node that listens at `address`, as [`NodeBuilder`] describes it.
    pub fn bind(address: impl ToAddress) -> Result<Self> {
        Self::builder().bind(address)
    }

    /// A node at an address of 127.0.0.0/8 that nobody uses: for programs that have node and clients on one machine.
    pub fn local() -> Result<Self> {
        Self::builder().bind_local()
    }

    /// To choose what a node is like.
    pub fn builder() -> NodeBuilder {
        NodeBuilder::default()
    }

    /// The address that clients connect to.
    pub fn address(&self) -> IpAddr {
        self.0.address()
    }

    /// Whether its threads run. False only if one of them panicked: then end the process.
    pub fn is_serving(&self) -> bool {
        self.0.is_serving()
    }

    /// Takes no more calls, finishes those under way, takes leave of clients, stops: within about two seconds.
    pub fn shutdown(self) {
        self.0.shutdown();
    }
}

/// What a [`Node`] is like: 16 GB for clients, [`Limits::default`] for a kernel's call, UDP and shared memory.
///
/// ```
/// # fn main() -> remora::Result<()> {
/// let node = remora::Node::builder().memory_limit(1 << 30).bind_local()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until it binds"]
#[derive(Clone, Debug)]
pub struct NodeBuilder {
    config: NodeConfig,
}

impl Default for NodeBuilder {
    fn default() -> Self {
        Self { config: NodeConfig::new(std::net::Ipv4Addr::LOCALHOST.into()) }
    }
}

impl NodeBuilder {
    /// Bytes that clients may allocate, all together.
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.config.memory_limit = bytes;
        self
    }

    /// Engines that serve, each with two threads of its own and with the clients that it is given: at least one, at most 256.
    /// Memory and kernels are one for all.
    pub fn engines(mut self, engines: u16) -> Self {
        self.config.engines = engines;
        self
    }

    /// Cores that engines are kept on, of those that this thread may use, by number from 0, in turn; after the last core comes
    /// the first.
    pub fn cores(mut self, cores: impl Into<Vec<usize>>) -> Self {
        self.config.cores = cores.into();
        self
    }

    /// What one call of a built-in kernel may do.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.config.limits = limits;
        self
    }

    /// A directory where modules that clients want kept are kept, and found again at the next start.
    pub fn kernels(mut self, dir: impl Into<PathBuf>) -> Self {
        self.config.kernels = Some(dir.into());
        self
    }

    /// Who may deploy kernels. By default clients on the node's own host.
    pub fn deployers(mut self, deployers: Deployers) -> Self {
        self.config.deployers = deployers;
        self
    }

    /// Who chooses where kernels run whose callers leave it open, with [`Client::auto`](crate::Client::auto): each client for
    /// itself, or the node for all of them, by what the calls of all take it.
    ///
    /// ```
    /// # use remora::{Client, Node, Placing};
    /// # fn main() -> remora::Result<()> {
    /// let node = Node::builder().placing(Placing::Auto).bind_local()?;
    /// let mut client = Client::connect(node.address())?;
    /// let table = client.load_table([("apple", "red"), ("pear", "green")])?;
    /// assert_eq!(client.auto().get(&table, "pear")?.as_deref(), Some(&b"green"[..]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn placing(mut self, placing: Placing) -> Self {
        self.config.placing = placing;
        self
    }

    /// Packet and raw sockets instead of a UDP socket: needs `CAP_NET_RAW`.
    pub fn packet(mut self, packet: bool) -> Self {
        self.config.packet = packet;
        self
    }

    /// What lies between the node and its links: a trace, a packet capture, faults, as `remora_real::link` has them. By default
    /// nothing.
    pub fn layers(mut self, layers: Layers) -> Self {
        self.config.layers = layers;
        self
    }

    /// Starts the node at an address of this machine.
    pub fn bind(self, address: impl ToAddress) -> Result<Node> {
        let config = NodeConfig { listen: address.to_address()?, ..self.config };
        remora_real::Node::start(config).map(Node)
    }

    /// Starts the node at an address of 127.0.0.0/8 that nobody uses.
    pub fn bind_local(self) -> Result<Node> {
        at_free_loopback(|address| self.clone().bind(address))
    }
}

//! A memory node: memory and kernels that clients reach over RoCE v2.
//!
//! One-sided verbs and kernels on the NIC need only the device and its NIC thread. The host thread takes connections
//! and runs calls to the host; while it has some, it drives the engine itself. It also looks after clients: one that
//! died without a word, or takes no replies, is disconnected, and its memory is given back.

mod control;
mod host;
mod kept;
mod modules;
mod owners;
mod peers;
mod rings;
#[doc(hidden)]
pub mod sequences;
mod sketches;
mod watch;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use remora_kernel::Limits;
use remora_memory::Registry;
use remora_service::control::Extension;
use remora_service::{CONNECTIONS, DEADLINE, Ledger};
use remora_wasm::KernelSet;

use crate::device::Device;
use crate::kernels::Kernels;
use crate::link::Layers;
use crate::{Deployers, Error, links};
use host::Host;
pub(crate) use modules::MAX_MODULE;
use watch::HostFigures;
pub use watch::{NodeEvent, NodeFigures};

/// What a node is like.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The address to listen at.
    pub listen: IpAddr,
    /// Memory that clients may allocate, in bytes, all together; one alone gets half.
    pub memory_limit: u64,
    /// Use a packet socket instead of a UDP socket: needs `CAP_NET_RAW`.
    pub packet: bool,
    /// What lies between the node's device and its links.
    pub layers: Layers,
    /// The largest path MTU of a client, in bytes, if it is to be less than the client's link and the node's carry.
    pub mtu: Option<u32>,
    /// What one kernel call may do.
    pub limits: Limits,
    /// How long a call may take, beside a microsecond for each byte of payload that has come: one that takes longer ends
    /// with [`Status::Overdue`](remora_kernel::Status::Overdue).
    pub deadline: Duration,
    /// Connections that one address may have.
    pub connections: u32,
    /// Where modules that clients want kept are kept, and found again at the next start.
    pub kernels: Option<PathBuf>,
    /// Who may deploy modules.
    pub deployers: Deployers,
    /// Who is told of connections, deployments and refusals. Nobody is waited for: what does not fit is left out.
    pub events: Option<SyncSender<NodeEvent>>,
    /// Count calls by op-code and time, for [`Node::figures`].
    pub count_calls: bool,
}

impl NodeConfig {
    /// At `listen`, up to 16 GB, 10 s for a call, 64 connections for an address.
    pub fn new(listen: IpAddr) -> Self {
        Self {
            listen,
            memory_limit: 16 << 30,
            packet: false,
            layers: Layers::default(),
            mtu: None,
            limits: Limits::default(),
            deadline: Duration::from_nanos(DEADLINE),
            connections: CONNECTIONS,
            kernels: None,
            deployers: Deployers::default(),
            events: None,
            count_calls: false,
        }
    }
}

/// A running memory node. It keeps what a client allocated until the client leaves or is found to be gone, which
/// takes a few seconds: its queue pair failed, or did not answer from one probe to the next.
pub struct Node {
    device: Device,
    stop: Arc<AtomicBool>,
    host: Option<JoinHandle<()>>,
    left_out: Vec<String>,
    figures: Arc<Mutex<HostFigures>>,
    memory_limit: u64,
}

impl Node {
    /// Starts serving.
    pub fn start(config: NodeConfig) -> Result<Self, Error> {
        Self::start_with(config, Vec::new())
    }

    /// Starts serving, with calls to the host that are not the node's own.
    pub fn start_with(config: NodeConfig, extensions: Vec<Box<dyn Extension>>) -> Result<Self, Error> {
        let links = links::node_links(config.listen, config.packet, &config.layers)?;
        let registry = Arc::new(Registry::new(crate::device::entropy()?));
        let ledger = Ledger::new(registry.clone(), registry.alloc_pd(), config.memory_limit);
        let set = KernelSet::default();
        let left_out = config.kernels.as_ref().map(|dir| kept::restore(&set, dir)).unwrap_or_default();
        let kernels = Kernels::of(&set, &registry, config.limits).with_deadline(config.deadline.as_nanos() as u64);
        let blocks = Arc::default();
        let kernels = kernels.counting(config.count_calls).noting(Arc::clone(&blocks));
        let device = Device::with_registry(config.listen, links, registry.clone(), Some(kernels))?;
        let stop = Arc::new(AtomicBool::new(false));
        let host = Host::new(device.clone(), (ledger, blocks), set, &config, extensions, stop.clone())?;
        let (figures, memory_limit) = (host.figures(), config.memory_limit);
        let host = std::thread::Builder::new()
            .name("remora-host".into())
            .spawn(move || host.run())
            .map_err(|e| Error::System { what: "starting the host thread", source: e })?;
        Ok(Self { device, stop, host: Some(host), left_out, figures, memory_limit })
    }

    /// The address that clients connect to.
    pub fn address(&self) -> IpAddr {
        self.device.local()
    }

    /// Kept modules that were not deployed: a line for each, with its file and the reason.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Its figures. What the host thread knows of clients and its calls is of the last second or so.
    pub fn figures(&self) -> NodeFigures {
        let HostFigures { calls, clients, lent } = self.figures.lock().clone();
        let mut guard = self.device.lock();
        let (links, nic_calls, nic) = (guard.link_stats(), guard.call_stats(), guard.nic());
        NodeFigures {
            address: self.address(),
            queue_pairs: nic.qp_count(),
            nic: nic.counters(),
            links,
            nic_calls,
            host_calls: calls,
            clients,
            memory_limit: self.memory_limit,
            memory_lent: lent,
            cpu_ns: crate::sys::process_cpu_ns(),
        }
    }

    /// The node's device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether its threads run. False only if one of them panicked: then end the process.
    pub fn is_serving(&self) -> bool {
        self.device.is_running() && self.host.as_ref().is_some_and(|host| !host.is_finished())
    }

    /// Takes no more calls, finishes those under way, takes leave of clients, stops. Within about two seconds.
    pub fn shutdown(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(host) = self.host.take() {
            host.thread().unpark();
            // A host thread that panicked has said so on stderr already.
            let _ = host.join();
        }
        self.device.stop();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end();
    }
}

//! A memory node: memory and kernels that clients reach over RoCE v2.
//!
//! One-sided verbs and kernels on the NIC need only the device and its NIC thread. The host thread takes connections
//! and runs calls to the host; while it has some, it drives the engine itself. It also looks after clients: one that
//! died without a word, or takes no replies, is disconnected, and its memory is given back.

mod control;
mod host;
mod modules;
mod peers;
mod sketches;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use remora_kernel::Limits;
use remora_memory::Registry;
use remora_service::Ledger;
use remora_service::control::Extension;
use remora_wasm::KernelSet;

use crate::device::Device;
use crate::kernels::Kernels;
use crate::link::Layers;
use crate::{Error, links};
use host::Host;
pub(crate) use modules::MAX_MODULE;

/// What a node is like.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The address to listen at.
    pub listen: IpAddr,
    /// Memory that clients may allocate, in bytes, all together.
    pub memory_limit: u64,
    /// Use a packet socket instead of a UDP socket: needs `CAP_NET_RAW`.
    pub packet: bool,
    /// What lies between the node's device and its links.
    pub layers: Layers,
    /// What one kernel call may do.
    pub limits: Limits,
    /// Where modules that clients want kept are kept, and found again at the next start.
    pub kernels: Option<PathBuf>,
}

impl NodeConfig {
    /// At `listen`, up to 16 GB.
    pub fn new(listen: IpAddr) -> Self {
        Self {
            listen,
            memory_limit: 16 << 30,
            packet: false,
            layers: Layers::default(),
            limits: Limits::default(),
            kernels: None,
        }
    }
}

/// A running memory node. It keeps what a client allocated until the client leaves or is found to be gone, which
/// takes a few seconds: its queue pair failed, or did not answer from one probe to the next.
pub struct Node {
    device: Device,
    stop: Arc<AtomicBool>,
    host: Option<JoinHandle<()>>,
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
        if let Some(dir) = &config.kernels {
            modules::restore(&set, dir)?;
        }
        let kernels = Kernels::of(&set, &registry, config.limits);
        let device = Device::with_registry(config.listen, links, registry.clone(), Some(kernels))?;
        let stop = Arc::new(AtomicBool::new(false));
        let host = Host::new(device.clone(), ledger, set, &config, extensions, stop.clone())?;
        let host = std::thread::Builder::new()
            .name("remora-host".into())
            .spawn(move || host.run())
            .map_err(|e| Error::System { what: "starting the host thread", source: e })?;
        Ok(Self { device, stop, host: Some(host) })
    }

    /// The address that clients connect to.
    pub fn address(&self) -> IpAddr {
        self.device.local()
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

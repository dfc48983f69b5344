//! A memory node: memory and kernels that clients reach over RoCE v2.
//!
//! One-sided verbs and kernels on the NIC need only the device and its NIC thread. The host thread takes connections
//! and runs calls to the host; while it has some, it drives the engine itself. It also looks after clients: one that
//! died without a word, or takes no replies, is disconnected, and its memory is given back.
//!
//! A node may have several engines, each with these threads and with clients of its own; what is one for all is in its
//! `office`.

mod control;
mod host;
mod kept;
mod modules;
mod office;
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
use remora_nic::Counters;
use remora_service::control::Extension;
use remora_service::{CONNECTIONS, CallStats, Clients, DEADLINE, Ledger, PlacerCounts, Placing};
use remora_wasm::KernelSet;

use crate::device::{Device, Numbers};
use crate::kernels::Kernels;
use crate::link::Layers;
use crate::links::{Links, node_links};
use crate::sys::start_thread;
use crate::{Deployers, Error};
use control::Control;
use host::Host;
pub(crate) use modules::MAX_MODULE;
use modules::Modules;
use office::Office;
use watch::{HostFigures, Told};
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
    /// How many engines serve, each with links, kernels and two threads of its own, and with the clients that it has been
    /// given: at least one, at most 256. They share memory and modules, and no lock on the way of a packet or a call.
    pub engines: u16,
    /// Which cores they are kept on, of those that this thread may use, by number from 0, where after the last core comes the
    /// first ([`pin`](crate::pin)): the first engine on the first of these, and so on in turn. Empty leaves that to the system.
    pub cores: Vec<usize>,
    /// The largest path MTU of a client, in bytes, if it is to be less than the client's link and the node's carry.
    pub mtu: Option<u32>,
    /// What one kernel call may do.
    pub limits: Limits,
    /// How long a call may take, beside a microsecond for each byte of payload that has come: one that takes longer ends
    /// with [`Status::Overdue`](remora_kernel::Status::Overdue).
    pub deadline: Duration,
    /// Connections that one address may have.
    pub connections: u32,
    /// Clients, by address, whose calls get so many times the share of others' where all want some; 1 for who is not named.
    pub weights: Vec<(IpAddr, u32)>,
    /// Where modules that clients want kept are kept, and found again at the next start.
    pub kernels: Option<PathBuf>,
    /// Who may deploy modules.
    pub deployers: Deployers,
    /// Who says where calls run whose callers leave it open.
    pub placing: Placing,
    /// Who is told of connections, deployments and refusals. Nobody is waited for: what does not fit is left out.
    pub events: Option<SyncSender<NodeEvent>>,
    /// Count calls by op-code and time, for [`Node::figures`].
    pub count_calls: bool,
}

impl NodeConfig {
    /// At `listen`, one engine, up to 16 GB, 10 s for a call, 64 connections for an address.
    pub fn new(listen: IpAddr) -> Self {
        Self {
            listen,
            memory_limit: 16 << 30,
            packet: false,
            layers: Layers::default(),
            engines: 1,
            cores: Vec::new(),
            mtu: None,
            limits: Limits::default(),
            deadline: Duration::from_nanos(DEADLINE),
            connections: CONNECTIONS,
            weights: Vec::new(),
            kernels: None,
            deployers: Deployers::default(),
            placing: Placing::default(),
            events: None,
            count_calls: false,
        }
    }

    /// Does something that starts threads of an engine.
    fn on_core<R>(&self, engine: usize, work: impl FnOnce() -> R) -> R {
        match engine.checked_rem(self.cores.len()) {
            Some(at) => crate::on_core(self.cores[at], work),
            None => work(),
        }
    }
}

/// A running memory node. It keeps what a client allocated until the client leaves or is found to be gone, which
/// takes a few seconds: its queue pair failed, or did not answer from one probe to the next.
pub struct Node {
    devices: Vec<Device>,
    stop: Arc<AtomicBool>,
    hosts: Vec<JoinHandle<()>>,
    left_out: Vec<String>,
    /// Of each engine's host thread.
    figures: Vec<Arc<Mutex<HostFigures>>>,
    memory_limit: u64,
}

impl Node {
    /// Starts serving.
    pub fn start(config: NodeConfig) -> Result<Self, Error> {
        Self::start_with(config, Vec::new())
    }

    /// Starts serving, with calls to the host that are not the node's own.
    pub fn start_with(config: NodeConfig, extensions: Vec<Box<dyn Extension>>) -> Result<Self, Error> {
        let lanes = node_links(config.listen, config.packet, &config.layers, config.engines)?;
        let registry = Arc::new(Registry::new(crate::device::entropy()?));
        let ledger = Ledger::new(registry.clone(), registry.alloc_pd(), config.memory_limit);
        let set = KernelSet::default();
        let left_out = config.kernels.as_ref().map(|dir| kept::restore(&set, dir)).unwrap_or_default();
        let left_out = left_out.iter().map(|line| watch::in_a_line(line)).collect();
        let blocks = Arc::default();
        let start = |(numbers, links): (Numbers, Links)| {
            let kernels = Kernels::of(&set, &registry, config.limits).with_deadline(config.deadline.as_nanos() as u64);
            let kernels = kernels.counting(config.count_calls).noting(Arc::clone(&blocks));
            let device = || Device::in_lane(config.listen, links, registry.clone(), Some(kernels), numbers);
            config.on_core(numbers.lane.index().into(), device)
        };
        let devices: Vec<Device> = lanes.into_iter().map(start).collect::<Result<_, _>>()?;
        let control = Control::new(
            devices.clone(),
            (ledger, Arc::clone(&blocks)),
            Modules::new(set.clone(), config.kernels.clone()),
            config.deployers.clone(),
            extensions,
            Told(config.events.clone()),
        );
        let office = Arc::new(Office::new(control, devices.len()));
        let (clients, stop) =
            (Arc::new(Mutex::new(Clients::new(config.connections))), Arc::new(AtomicBool::new(false)));
        let host = |engine: (usize, Device)| {
            let shared = (office.clone(), clients.clone());
            Host::new(engine, shared, Arc::clone(&blocks), set.clone(), &config, stop.clone())
        };
        let hosts: Vec<Host> = devices.iter().cloned().enumerate().map(host).collect::<Result<_, _>>()?;
        let figures = hosts.iter().map(Host::figures).collect();
        let mut node = Self { devices, stop, hosts: Vec::new(), left_out, figures, memory_limit: config.memory_limit };
        for (engine, host) in hosts.into_iter().enumerate() {
            let thread = config.on_core(engine, || start_thread("remora-host", move || host.run()));
            node.hosts.push(thread.map_err(|e| Error::System { what: "starting the host thread", source: e })?);
        }
        Ok(node)
    }

    /// The address that clients connect to.
    pub fn address(&self) -> IpAddr {
        self.devices[0].local()
    }

    /// Kept modules that were not deployed: a line for each, with its file and the reason.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Its figures. What the host thread knows of clients and its calls is of the last second or so.
    pub fn figures(&self) -> NodeFigures {
        let mut all = NodeFigures {
            address: self.address(),
            queue_pairs: 0,
            nic: Counters::default(),
            links: Vec::new(),
            nic_calls: CallStats::default(),
            host_calls: CallStats::default(),
            placed: PlacerCounts::default(),
            clients: Vec::new(),
            memory_limit: self.memory_limit,
            memory_lent: 0,
            cpu_ns: crate::sys::process_cpu_ns(),
        };
        for (device, figures) in self.devices.iter().zip(&self.figures) {
            all.add(&mut device.lock(), &figures.lock());
        }
        all
    }

    /// The devices of the node's engines.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Whether its threads run. False only if one of them panicked: then end the process.
    pub fn is_serving(&self) -> bool {
        self.devices.iter().all(Device::is_running) && !self.hosts.iter().any(JoinHandle::is_finished)
    }

    /// Takes no more calls, finishes those under way, takes leave of clients, stops. Within about two seconds.
    pub fn shutdown(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.hosts.iter().for_each(|host| host.thread().unpark());
        for host in self.hosts.drain(..) {
            // A host thread that panicked has said so on stderr already.
            let _ = host.join();
        }
        self.devices.iter().for_each(Device::stop);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end();
    }
}

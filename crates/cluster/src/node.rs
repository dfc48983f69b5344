//! One node of a cluster as threads of this process.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use remora_kernel::Placement;
use remora_memory::Registry;
use remora_nic::cm::CmConfig;
use remora_nic::{Nic, NicConfig};
use remora_replica::bounds::Bounds;
use remora_replica::chain::{ChainConfig, LoggedChain};
use remora_replica::ddp::{self, Model, Offload};
use remora_replica::log::LogEnd;
use remora_replica::node::ReplicaNode;
use remora_replica::stream::Sizes;
use remora_replica::types::{NodeId, NodeSet};

use super::hello::Guard;
use super::journal::Journal;
use super::logfile::LogKind;
use super::server::{Server, Told};
use super::service::Service;
use super::wire::Secret;
use super::{check_placement, link_at, streams};
use remora_real::link::Layers;
use remora_real::{Device, Error, LinkKind, Resident, Sleeper, entropy, prepare_to_wait, start_thread};

/// How long the protocol's thread polls without work before it sleeps, letting others have the core: about as long as a
/// sync, so that a write, whose messages follow each other, wakes nobody on its way.
const SPIN: u64 = 100_000;
/// A log is compacted when it is so many bytes longer than twice what it holds.
const SLACK: usize = 64 << 20;

/// What a node is like.
#[derive(Clone, Debug)]
pub struct ClusterNodeConfig {
    /// Its number: the place of its address.
    pub id: u8,
    /// All nodes' addresses.
    pub addresses: Vec<IpAddr>,
    /// When writes are durable. All nodes need the same.
    pub model: Model,
    /// Not records, but so many bytes in a chain, for transactions. All nodes need the same.
    pub chain: Option<usize>,
    /// Where the protocol runs.
    pub placement: Placement,
    /// How nodes and clients reach each other. All need the same.
    pub link: LinkKind,
    /// What lies between the node's device and its link.
    pub layers: Layers,
    /// How the log becomes durable.
    pub log: LogKind,
    /// Where the log is.
    pub dir: PathBuf,
    /// Who has it belongs to the cluster.
    pub secret: Secret,
    /// Whether clients prove that they know the secret, and what leaves the host is sealed by keys that follow from it. All
    /// need the same.
    pub sealed: bool,
    /// A node that was silent for so long is suspected to have failed. All nodes need the same.
    pub suspect: Duration,
}

impl ClusterNodeConfig {
    /// Synch on the NIC, over shared memory, sealed, with fdatasync.
    pub fn new(id: u8, addresses: Vec<IpAddr>, dir: PathBuf, secret: Secret) -> Self {
        Self {
            id,
            addresses,
            model: Model::Synch,
            chain: None,
            placement: Placement::Nic,
            link: LinkKind::Shm,
            layers: Layers::default(),
            log: LogKind::default(),
            dir,
            secret,
            sealed: true,
            suspect: Duration::from_millis(200),
        }
    }

    /// What guards its connections.
    pub(super) fn guard(&self) -> Guard {
        Guard::of(self.sealed, self.link)
    }

    pub(super) fn engine(&self) -> ddp::Config {
        let Bounds { max_value, stamps, max_scopes, scope_keys, write_back, .. } = Bounds::SHIPPED;
        let suspect = self.suspect.as_nanos() as u64;
        let nodes = NodeSet::first(self.addresses.len() as u8);
        let fifos = Some(Bounds::SHIPPED.fifo);
        let deployment = match self.placement == Placement::Host {
            true => ddp::Deployment::Baseline,
            false => ddp::Deployment::Offload(Offload { fifos, ..Offload::FULL }),
        };
        ddp::Config {
            deployment,
            suspect,
            lease: suspect / 2,
            // Connections are reliable: only what a broken one lost is sent again.
            retry: suspect / 2,
            max_value,
            stamps,
            max_scopes,
            scope_keys,
            write_back,
            ..ddp::Config::new(NodeId(self.id), nodes, self.model)
        }
    }
}

/// Bytes of a chain's ring: what follows the data that is known to be durable.
const RING: usize = 4 << 20;

impl ClusterNodeConfig {
    fn chain(&self, data: usize) -> ChainConfig {
        let suspect = self.suspect.as_nanos() as u64;
        let nodes = NodeSet::first(self.addresses.len() as u8);
        ChainConfig {
            ring: RING,
            suspect,
            lease: suspect / 2,
            retry: suspect / 2,
            ..ChainConfig::new(NodeId(self.id), nodes, data)
        }
    }
}

/// A node that runs.
pub struct ClusterNode {
    device: Device,
    host: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    told: Told,
    found: LogEnd,
}

impl ClusterNode {
    /// Starts a node, with its log as it finds it.
    pub fn start(config: ClusterNodeConfig) -> Result<Self, Error> {
        check_placement(config.placement).map_err(|error| Error::Argument(error.to_string()))?;
        let count = config.addresses.len();
        let local = *config.addresses.get(usize::from(config.id)).filter(|_| count <= 64).ok_or_else(|| {
            Error::Argument(format!("node {} of {count}: numbers begin at 0, and there are at most 64", config.id))
        })?;
        // First the log: a second process for the same node ends here.
        let woken: Arc<OnceLock<Device>> = Arc::default();
        let wake = woken.clone();
        let (journal, bytes) = Journal::open(&config.dir, config.log, move || {
            if let Some(device) = wake.get() {
                device.nudge();
            }
        })?;
        let link = link_at(local, config.link, &config.layers)?;
        let cm = CmConfig {
            response_timeout: 50_000_000,
            max_retries: 3,
            timewait: 50_000_000,
            peer_timeout: 3_000_000_000,
            ..CmConfig::default()
        };
        let registry = Arc::new(Registry::new(entropy()?));
        let nic = Nic::new(&NicConfig { cm, ..NicConfig::new(entropy()?) }, registry);
        let device = Device::with_events(local, vec![link], nic, None, Box::new(Some))?;
        device.set_spin(SPIN);
        let told = Told::default();
        let found;
        let server = {
            let mut guard = device.lock();
            let mut seat = guard.seat();
            let sizes =
                Sizes { receives: 1024, sends: 2048, favoured: count as u32 - 1, frame: Bounds::SHIPPED.client_frame };
            let streams = streams(seat.nic, sizes)?;
            let (config, now, told) = (config.clone(), seat.now.time(), told.clone());
            let server: Box<dyn Runs> = match config.chain {
                Some(data) => {
                    let node = LoggedChain::new(config.chain(data), now, &bytes, SLACK);
                    found = node.found();
                    Box::new(Server::new(&mut seat, config, node, journal, streams, told)?)
                }
                None => {
                    let node = ReplicaNode::with_slack(config.engine(), now, &bytes, SLACK);
                    found = node.found();
                    Box::new(Server::new(&mut seat, config, node, journal, streams, told)?)
                }
            };
            server
        };
        // Set once: nobody else has it.
        let _ = woken.set(device.clone());
        let stop = Arc::new(AtomicBool::new(false));
        let host = server.run(config.placement, device.clone(), stop.clone())?;
        Ok(Self { device, host, stop, told, found })
    }

    /// The address that clients connect to.
    pub fn address(&self) -> IpAddr {
        self.device.local()
    }

    /// Where its log was damaged, if it was. What was lost comes from the other nodes.
    pub fn damage(&self) -> Option<usize> {
        match self.found {
            LogEnd::Damaged(at) => Some(at),
            LogEnd::Whole | LogEnd::Torn => None,
        }
    }

    /// Whether the other nodes know of things that its log must have held, and does not, though it looks whole: the disk came
    /// back empty, or without the log's end. What was lost comes from them.
    pub fn has_lost_its_log(&self) -> bool {
        self.told.lost.load(Ordering::Relaxed)
    }

    /// How the first node that was refused for this is configured differently, if one was.
    pub fn differs(&self) -> Option<&str> {
        self.told.differs.get().map(String::as_str)
    }

    /// Why it does not run any more, if so: its log failed, or a thread panicked. Then end the process.
    pub fn failure(&self) -> Option<String> {
        let host = self.host.as_ref().is_none_or(|host| !host.is_finished());
        let panicked = || (!host || !self.device.is_running()).then(|| "a thread panicked".into());
        self.told.failed.get().cloned().or_else(panicked)
    }
}

impl Drop for ClusterNode {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(host) = self.host.take() {
            self.device.nudge();
            // One that panicked has said so on stderr already.
            let _ = host.join();
        }
        self.device.stop();
        self.device.settle(None);
    }
}

/// A server of whatever it serves.
trait Runs {
    /// Has it run where the protocol is to be: on the NIC thread, or on a thread of its own, which is given back.
    fn run(
        self: Box<Self>,
        placement: Placement,
        device: Device,
        stop: Arc<AtomicBool>,
    ) -> Result<Option<JoinHandle<()>>, Error>;
}

impl<S: Service> Runs for Server<S> {
    fn run(
        self: Box<Self>,
        placement: Placement,
        device: Device,
        stop: Arc<AtomicBool>,
    ) -> Result<Option<JoinHandle<()>>, Error> {
        if placement != Placement::Host {
            device.settle(Some(self));
            return Ok(None);
        }
        let worker = Worker { device, server: *self, stop };
        let thread = start_thread("remora-host", move || worker.run());
        thread.map(Some).map_err(|source| Error::System { what: "starting the host thread", source })
    }
}

/// The host thread. It drives the NIC too, asleep and awake: a node has one thread that polls.
struct Worker<S> {
    device: Device,
    server: Server<S>,
    stop: Arc<AtomicBool>,
}

impl<S: Service> Worker<S> {
    fn run(mut self) {
        prepare_to_wait();
        self.device.keep(true);
        let mut sleeper = Sleeper::new();
        let mut busy_at = self.device.now();
        while !self.stop.load(Ordering::Relaxed) {
            let work = self.turn();
            let stays = self.server.idle(work > 0) > 0;
            let now = self.device.now();
            if work > 0 {
                busy_at = now;
            } else if stays || now.saturating_sub(busy_at) <= SPIN {
                // There may be fewer cores than pollers.
                std::thread::yield_now();
            } else {
                let timeout = Duration::from_nanos(self.server.next_timeout().saturating_sub(now));
                self.device.sleep(self.server.cq(), timeout, &mut sleeper);
            }
        }
        self.device.keep(false);
    }

    /// Takes what the NIC has, and gives it what the server has for it.
    fn turn(&mut self) -> usize {
        let mut guard = self.device.lock();
        let moved = guard.progress();
        let done = self.server.progress(&mut guard.seat());
        if done > 0 {
            guard.transmit();
        }
        moved + done
    }
}

//! What forged packets do to a node, a cluster and a program on the verbs library: whether a connection ends, a byte
//! changes, and what is left of the throughput.
//!
//! A flood has the last core for itself, and all else the others: what would be on another host takes no time here. The
//! throughput beside the same flood to a socket that nobody reads shows what is left of that, and is what counts. The two
//! take turns, as a cluster's threads on one core may fall into step with each other for a while, or out of it.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use remora_cluster::{
    ClusterClient, ClusterClientConfig, ClusterNode, ClusterNodeConfig, Outcome, Secret, client_secret,
};
use remora_lab::bench::BenchProgress;
use remora_lab::bound;
use remora_lab::stranger::{Flood, Forgery, Victim, flood};
use remora_real::{Client, ClientConfig, LinkKind, Node, NodeConfig, RemoteRegion};

use crate::peers::cores::Apart;
use crate::{MeasuredRows, StudyError};

/// Whom packets are forged against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A node that a client writes to and reads from.
    Node,
    /// Three nodes of a cluster and a client of theirs.
    Cluster,
    /// Two programs on the verbs library: rping, which checks what it gets.
    Program,
}

impl Target {
    /// All, with their names.
    pub const ALL: [(Target, &str); 3] =
        [(Target::Node, "node"), (Target::Cluster, "cluster"), (Target::Program, "program")];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(target, _)| *target == self).map_or("", |(_, name)| name)
    }
}

/// What is run.
#[derive(Clone, Debug)]
pub struct ForgeStudy {
    /// Forged packets of each kind against each target.
    pub packets: u64,
    /// At most so many a second; 0 is as fast as one core can.
    pub rate: u64,
    /// Against whom.
    pub targets: Vec<Target>,
    /// The `remora` command, which programs run under.
    pub remora: PathBuf,
    /// Seed of what is forged.
    pub seed: u64,
    /// Set when the user wants no more.
    pub stop: Arc<AtomicBool>,
}

/// What one kind of packets did to one target.
#[derive(Clone, Copy, Debug)]
pub struct ForgeRow {
    /// To whom.
    pub target: Target,
    /// Which packets.
    pub forgery: Forgery,
    /// How many, and in which time.
    pub flood: Flood,
    /// Connections that ended.
    pub ended: u64,
    /// Bytes that were not what was written.
    pub wrong: u64,
    /// Operations a second without a flood.
    pub alone: f64,
    /// The same beside such a flood to a socket that nobody reads.
    pub beside: f64,
    /// The same under the flood.
    pub under: f64,
}

impl ForgeRow {
    /// Throughput under the flood, of that beside one for somebody else.
    pub fn ratio(&self) -> f64 {
        self.under / self.beside
    }

    /// Whether nothing has ended and no byte changed.
    pub fn is_sound(&self) -> bool {
        (self.ended, self.wrong) == (0, 0)
    }
}

/// What came of some work.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    operations: u64,
    ended: u64,
    wrong: u64,
    time: Duration,
}

impl Done {
    fn rate(&self) -> f64 {
        self.operations as f64 / self.time.as_secs_f64().max(1e-9)
    }

    fn add(&mut self, more: Self) {
        self.operations += more.operations;
        self.ended += more.ended;
        self.wrong += more.wrong;
        self.time += more.time;
    }
}

/// Works until the flag is set.
trait Worker {
    fn work(&mut self, stop: &AtomicBool) -> Result<Done, StudyError>;

    /// Who is deceived, and as whom.
    fn victims(&self) -> Vec<Victim<'_>>;
}

impl ForgeStudy {
    /// Runs all. Also says why a target was left out.
    pub fn run(&self, progress: &mut BenchProgress<'_>) -> (MeasuredRows<ForgeRow>, Option<&'static str>) {
        let apart = Apart::begin();
        let (mut targets, mut left_out) = (self.targets.clone(), None);
        if targets.contains(&Target::Program) && !is_rping_here() {
            targets.retain(|&target| target != Target::Program);
            left_out = Some("program: rping is not installed (Debian: rdmacm-utils)");
        }
        let all = targets.len() * Forgery::ALL.len();
        let measured = MeasuredRows::by(all, |rows| {
            for target in targets {
                let mut worker: Box<dyn Worker> = match target {
                    Target::Node => Box::new(NodeWorker::start()?),
                    Target::Cluster => Box::new(ClusterWorker::start()?),
                    Target::Program => Box::new(Programs::start(&self.remora)?),
                };
                // Its first work is slower than all that follows, and none of the flood's.
                work_for(&mut *worker, WARM_UP)?;
                for (forgery, name) in Forgery::ALL {
                    if !progress(&format!("{}: {name}", target.name()), rows.len() as f64 / all as f64) {
                        return Err(StudyError::Interrupted);
                    }
                    rows.push(self.row(&mut *worker, &apart, (target, forgery))?);
                }
            }
            Ok(())
        });
        (measured, left_out)
    }

    fn row(
        &self,
        worker: &mut dyn Worker,
        apart: &Apart,
        (target, forgery): (Target, Forgery),
    ) -> Result<ForgeRow, StudyError> {
        let nobody = Ipv4Addr::new(127, 98, 0, 1 + target as u8);
        let (mut under, mut beside, mut flood) = (Done::default(), Done::default(), Flood::default());
        for turn in 0..TURNS {
            let (done, sent) = self.during(worker, apart, (forgery, turn, None))?;
            under.add(done);
            flood = Flood { packets: flood.packets + sent.packets, time: flood.time + sent.time };
            let unread = UdpSocket::bind((nobody, UDP_PORT)).map_err(|e| failed("an unread socket", &e))?;
            beside.add(self.during(worker, apart, (forgery, turn, Some(nobody)))?.0);
            drop(unread);
        }
        let alone = work_for(worker, flood.time.max(Duration::from_millis(200)))?;
        Ok(ForgeRow {
            target,
            forgery,
            flood,
            ended: under.ended,
            wrong: under.wrong,
            alone: alone.rate(),
            beside: beside.rate(),
            under: under.rate(),
        })
    }

    /// Works for as long as one turn of a flood takes: against the worker, or instead of that for somebody else.
    fn during(
        &self,
        worker: &mut dyn Worker,
        apart: &Apart,
        (forgery, turn, instead): (Forgery, u64, Option<Ipv4Addr>),
    ) -> Result<(Done, Flood), StudyError> {
        let victims: Vec<(Victim<'_>, Vec<u8>)> =
            worker.victims().iter().map(|victim| (Victim { hello: &[], ..*victim }, victim.hello.to_vec())).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let (study, ended, over) = (self.clone(), stop.clone(), Arc::new(AtomicBool::new(false)));
        let cut_short = over.clone();
        let to_last_core = apart.last_core();
        let flooder = thread::spawn(move || {
            to_last_core();
            let mut sum = Flood::default();
            let share = study.packets.div_ceil(TURNS * victims.len() as u64);
            for (victim, hello) in &victims {
                let address = instead.unwrap_or(victim.address);
                let victim = Victim { address, hello, ..*victim };
                let stops = [&*cut_short, &*study.stop];
                let sent = flood(forgery, &victim, (share, study.rate), study.seed ^ turn, stops);
                match sent {
                    Ok(sent) => sum = Flood { packets: sum.packets + sent.packets, time: sum.time + sent.time },
                    Err(e) => {
                        ended.store(true, Ordering::Relaxed);
                        return Err(e);
                    }
                }
            }
            ended.store(true, Ordering::Relaxed);
            Ok(sum)
        });
        let done = worker.work(&stop);
        over.store(true, Ordering::Relaxed);
        let flood = flooder.join().map_err(|_| StudyError::Failed("the flood's thread panicked".into()))?;
        if self.stop.load(Ordering::Relaxed) {
            return Err(StudyError::Interrupted);
        }
        Ok((done?, flood.map_err(|e| failed("sending forged packets", &e))?))
    }
}

/// Works for so long, without a flood.
fn work_for(worker: &mut dyn Worker, time: Duration) -> Result<Done, StudyError> {
    let stop = Arc::new(AtomicBool::new(false));
    let timer = stop.clone();
    let waiter = thread::spawn(move || {
        thread::sleep(time);
        timer.store(true, Ordering::Relaxed);
    });
    let done = worker.work(&stop)?;
    let _ = waiter.join();
    Ok(done)
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> StudyError {
    StudyError::Failed(format!("{what}: {error}"))
}

/// Turns of a flood and of the one for somebody else.
const TURNS: u64 = 5;

/// How long a target works before the first flood.
const WARM_UP: Duration = Duration::from_millis(500);

/// Where RoCE v2 packets go.
const UDP_PORT: u16 = 4791;

/// The service of a port in `rdma_cm`'s TCP port space.
fn service_id(port: u16) -> u64 {
    0x0106_0000 | u64::from(port)
}

/// Bytes of one operation on a node.
const BLOCK: usize = 16 << 10;

/// A node and its client, over UDP.
struct NodeWorker {
    node: Node,
    client: Client,
    /// The client's address: another one each time, as the one before still has its.
    local: Ipv4Addr,
    region: RemoteRegion,
    round: u64,
}

impl NodeWorker {
    const NODE: Ipv4Addr = Ipv4Addr::new(127, 98, 1, 1);

    fn start() -> Result<Self, StudyError> {
        let node = Node::start(NodeConfig::new(Self::NODE.into()))?;
        let local = Ipv4Addr::new(127, 98, 1, 2);
        let mut client = Self::connect(local)?;
        let region = client.alloc(1 << 20)?;
        Ok(Self { node, client, local, region, round: 0 })
    }

    fn connect(local: Ipv4Addr) -> Result<Client, StudyError> {
        let config = ClientConfig::new(Self::NODE.into(), local.into());
        Ok(Client::connect(ClientConfig { link: Some(LinkKind::Udp), timeout: Duration::from_secs(30), ..config })?)
    }
}

impl Worker for NodeWorker {
    fn work(&mut self, stop: &AtomicBool) -> Result<Done, StudyError> {
        let (start, mut done) = (Instant::now(), Done::default());
        let (mut written, mut read) = (vec![0; BLOCK], vec![0; BLOCK]);
        while !stop.load(Ordering::Relaxed) && self.node.is_serving() {
            self.round += 1;
            written.fill(self.round as u8);
            let at = self.round % 64 * BLOCK as u64;
            let client = &mut self.client;
            let moved =
                client.write(&self.region, at, &written).and_then(|()| client.read(&self.region, at, &mut read));
            if moved.is_err() {
                done.ended += 1;
                let [.., last] = self.local.octets();
                self.local = Ipv4Addr::new(127, 98, 1, 2 + (last - 1) % 250);
                self.client = Self::connect(self.local)?;
                self.region = self.client.alloc(1 << 20)?;
                continue;
            }
            done.wrong += written.iter().zip(&read).filter(|(a, b)| a != b).count() as u64;
            done.operations += 2;
        }
        done.time = start.elapsed();
        Ok(done)
    }

    fn victims(&self) -> Vec<Victim<'_>> {
        let service = service_id(remora_service::control::PORT);
        vec![
            Victim { address: Self::NODE, peer: self.local, service, hello: &[] },
            Victim { address: self.local, peer: Self::NODE, service, hello: &[] },
        ]
    }
}

/// The cluster's secret, which the stranger does not have.
const SECRET: Secret = [7; 32];

/// Three nodes and a client, over UDP.
struct ClusterWorker {
    _nodes: Vec<ClusterNode>,
    client: ClusterClient,
    observer: ClusterClient,
    _dir: tempfile::TempDir,
    addresses: Vec<Ipv4Addr>,
    hello: Vec<u8>,
    service: u64,
    round: u64,
}

impl ClusterWorker {
    fn start() -> Result<Self, StudyError> {
        let dir = tempfile::tempdir().map_err(|e| failed("a directory", &e))?;
        let addresses: Vec<Ipv4Addr> = (1..=3).map(|host| Ipv4Addr::new(127, 98, 2, host)).collect();
        let ips: Vec<IpAddr> = addresses.iter().map(|ip| IpAddr::V4(*ip)).collect();
        let mut nodes = Vec::new();
        for id in 0..3u8 {
            let dir = dir.path().join(id.to_string());
            std::fs::create_dir_all(&dir).map_err(|e| failed("a directory", &e))?;
            let mut config = ClusterNodeConfig::new(id, ips.clone(), dir, SECRET);
            // A flood may keep a node from its core for long; whether it is heard again is not what is asked here.
            (config.link, config.suspect) = (LinkKind::Udp, Duration::from_secs(5));
            nodes.push(ClusterNode::start(config)?);
        }
        let client = |node, last| {
            let config = ClusterClientConfig::new(ips.clone());
            let local = Some(Ipv4Addr::new(127, 98, 2, last).into());
            let secret = Some(client_secret(&SECRET));
            ClusterClient::connect(ClusterClientConfig { node, local, link: LinkKind::Udp, secret, ..config })
        };
        let (client, observer) = (client(0, 101)?, client(1, 102)?);
        let (service, hello) = remora_cluster::public_hello(1);
        Ok(Self { _nodes: nodes, client, observer, _dir: dir, addresses, hello, service, round: 0 })
    }
}

impl Worker for ClusterWorker {
    fn work(&mut self, stop: &AtomicBool) -> Result<Done, StudyError> {
        let before = self.observer.status()?.reconnects;
        let (start, mut done) = (Instant::now(), Done::default());
        while !stop.load(Ordering::Relaxed) {
            self.round += 1;
            let (key, value) = (self.round % 100, [self.round as u8; 1000]);
            let put = self.client.put(key, &value);
            match (put, self.client.get(key)) {
                (Outcome::Written, Outcome::Value(Some(read))) => {
                    done.wrong += u64::from(read[..] != value[..]) * value.len() as u64;
                    done.operations += 2;
                }
                _ => done.ended += u64::from(!self.client.is_connected()),
            }
        }
        done.time = start.elapsed();
        done.ended += self.observer.status()?.reconnects - before;
        Ok(done)
    }

    fn victims(&self) -> Vec<Victim<'_>> {
        // The second node is who is deceived: about a node that it calls, about one that calls it, and about the client.
        let (service, hello) = (self.service, &self.hello[..]);
        vec![
            Victim { address: self.addresses[1], peer: self.addresses[0], service, hello },
            Victim { address: self.addresses[0], peer: self.addresses[1], service, hello },
            Victim { address: self.addresses[0], peer: Ipv4Addr::new(127, 98, 2, 101), service, hello },
        ]
    }
}

/// rping at both ends: it sends a pattern, has it fetched and sent back, compares, and says so in a line. Its server goes
/// on serving others, as one that anybody may call has to.
struct Programs {
    remora: PathBuf,
    server: Child,
    client: Child,
    lines: Arc<AtomicU64>,
}

/// Whether there is rping, without which there are no programs to forge against.
pub fn is_rping_here() -> bool {
    Command::new("rping").arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

impl Programs {
    const SERVER: Ipv4Addr = Ipv4Addr::new(127, 98, 3, 1);
    const CLIENT: Ipv4Addr = Ipv4Addr::new(127, 98, 3, 2);
    const PORT: u16 = 7174;

    fn start(remora: &Path) -> Result<Self, StudyError> {
        let server = rping(remora, Self::SERVER, &["-s", "-P"])?;
        let (client, lines) = Self::call(remora)?;
        Ok(Self { remora: remora.to_path_buf(), server, client, lines })
    }

    /// A client that has had its first answers.
    fn call(remora: &Path) -> Result<(Child, Arc<AtomicU64>), StudyError> {
        let (address, end) = (Self::SERVER.to_string(), Instant::now() + Duration::from_secs(30));
        loop {
            let mut client = rping(remora, Self::CLIENT, &["-c", "-v", "-a", &address])?;
            let lines = Arc::new(AtomicU64::new(0));
            if let Some(output) = client.stdout.take() {
                let count = lines.clone();
                thread::spawn(move || {
                    for line in BufReader::new(output).lines() {
                        count.fetch_add(u64::from(line.is_ok()), Ordering::Relaxed);
                    }
                });
            }
            while client.try_wait().map_err(|e| failed("waiting for rping", &e))?.is_none() {
                if lines.load(Ordering::Relaxed) > 0 {
                    return Ok((client, lines));
                }
                if Instant::now() > end {
                    let _ = client.kill();
                    let _ = client.wait();
                    break;
                }
                thread::sleep(Duration::from_millis(10));
            }
            if Instant::now() > end {
                return Err(StudyError::Failed("rping makes no connection within 30 s".into()));
            }
        }
    }
}

fn rping(remora: &Path, device: Ipv4Addr, args: &[&str]) -> Result<Child, StudyError> {
    bound(remora)
        .args(["exec", "--link", "udp", "--device-address", &device.to_string(), "--", "rping"])
        .args(args)
        .args(["-p", &Programs::PORT.to_string(), "-S", "1024", "-V"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| failed("starting remora exec -- rping", &e))
}

impl Worker for Programs {
    fn work(&mut self, stop: &AtomicBool) -> Result<Done, StudyError> {
        let (start, mut done) = (Instant::now(), Done::default());
        let mut before = self.lines.load(Ordering::Relaxed);
        while !stop.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(5));
            if self.client.try_wait().map_err(|e| failed("waiting for rping", &e))?.is_some() {
                // Its connection ended, or it got something else than it sent.
                done.ended += 1;
                done.operations += self.lines.load(Ordering::Relaxed) - before;
                (self.client, self.lines) = Self::call(&self.remora)?;
                before = 0;
            }
        }
        done.operations += self.lines.load(Ordering::Relaxed) - before;
        done.time = start.elapsed();
        Ok(done)
    }

    fn victims(&self) -> Vec<Victim<'_>> {
        // Beside the port that it listens at: what it does with strangers' calls is its own, and rping exits at the first
        // that nobody goes on with.
        let service = service_id(Self::PORT + 1);
        vec![
            Victim { address: Self::SERVER, peer: Self::CLIENT, service, hello: &[] },
            Victim { address: Self::CLIENT, peer: Self::SERVER, service, hello: &[] },
        ]
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        for program in [&mut self.client, &mut self.server] {
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}

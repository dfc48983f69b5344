//! `remora cluster`: replicated records, or a chain for transactions, on several processes of this machine.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use remora_cluster::{
    ClusterClient, ClusterClientConfig, ClusterNode, ConnectedClient, LogKind, Model, NodeStatus, Outcome, Spoken,
};
use remora_kernel::Placement;
use remora_real::LinkKind;
use remora_study::nodes::{CLUSTER_READY, ClusterProcesses, ClusterSettings, ClusterShape, ask, lock};
use serde_json::{Value, json};

use crate::capture::Capture;
use crate::output::{Json, print, to_stdout};
use crate::progress::stop_flag;
use crate::quantity::{milliseconds, up_to};
use crate::{Failure, cluster_kills, cluster_pauses, cluster_transact, quantity};

/// A directory for a cluster that nobody has named.
pub const DIR: &str = "remora-cluster";
/// How long a cluster may take until it serves.
const START: Duration = Duration::from_secs(20);
/// How long a node that was killed stays away before it is started again.
const RESTART: Duration = Duration::from_millis(500);

pub const EXAMPLES: &str = "\
Each node is a process with a log of its own in a directory of the cluster's. A cluster that was started before goes \
on with what is in its directory. Ctrl-C or SIGTERM ends it; a node that is killed is started again.

Examples:
  remora cluster --nodes 5 --persistency synch       five nodes in ./remora-cluster, until Ctrl-C
  remora cluster --scratch --persistency event       three nodes in a directory that goes with them
  remora cluster --dir kv --deployment host --link udp
  remora cluster status                              what its nodes say of themselves
  remora cluster get 7 ; remora cluster put 7 hello  one request from the command line
  remora cluster --dir bank --chain 64M              a chain of three nodes, for transactions on 64 MB
  remora cluster transact --dir bank --expect 0=5 --write 0=4 --write 4096=6 --read 64:8
  remora cluster kills --kills 50                    kill -9 under load, again and again, and check every answer
  remora cluster pauses --pauses 100                 nodes that stand still and go on, and check every answer
  remora bench minos                                 measure it";

const STATUS_EXAMPLES: &str = "\
Examples:
  remora cluster status
  remora cluster status --dir kv --json     the same for programs";

const GET_EXAMPLES: &str = "\
Examples:
  remora cluster get 7
  remora cluster get 7 --dir kv > seven     the record's bytes and a line break";

const PUT_EXAMPLES: &str = "\
Examples:
  remora cluster put 7 hello
  remora cluster put 7 hello --dir kv";

/// Options of `remora cluster`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ClusterArgs {
    #[command(subcommand)]
    what: Option<ClusterCommand>,
    #[command(flatten)]
    start: Start,
}

#[derive(Debug, clap::Subcommand)]
enum ClusterCommand {
    /// What the nodes of a running cluster say of themselves
    #[command(after_help = STATUS_EXAMPLES)]
    Status(AtDir),
    /// Read a record of a running cluster
    #[command(after_help = GET_EXAMPLES)]
    Get(Get),
    /// Write a record of a running cluster
    #[command(after_help = PUT_EXAMPLES)]
    Put(Put),
    /// Read, expect and write several places of a running chain, all at once or not at all
    #[command(after_help = cluster_transact::EXAMPLES)]
    Transact(cluster_transact::TransactArgs),
    /// Kill nodes with SIGKILL under load, start them again, and check everything that clients saw
    #[command(after_help = cluster_kills::EXAMPLES)]
    Kills(cluster_kills::KillArgs),
    /// Stop nodes with SIGSTOP under load, have them go on, and check everything that clients saw
    #[command(after_help = cluster_pauses::EXAMPLES)]
    Pauses(cluster_pauses::PauseArgs),
    /// One node of a cluster, as `remora cluster` starts it
    #[command(hide = true)]
    Node(ClusterNodeArgs),
}

/// What a new cluster is like.
#[derive(Debug, Clone, clap::Args)]
pub struct Shape {
    /// Nodes [default: 3]
    #[arg(long, value_name = "N", value_parser = up_to::<u8>(1..=16))]
    pub nodes: Option<u8>,
    /// When writes are durable: synch, strict, renf, event or scope [default: synch]
    #[arg(long, value_name = "MODEL")]
    pub persistency: Option<Model>,
    /// Not records, but so many bytes in a chain of the nodes, for transactions of any number of keys that are durable at all
    /// of them
    #[arg(long, value_name = "BYTES", value_parser = chain_bytes, conflicts_with = "persistency")]
    pub chain: Option<u64>,
    /// Where the protocol runs: host (a thread that takes messages from the NIC) or nic (its own thread) [default: what the directory has; nic for a new one]
    #[arg(long, value_name = "PLACE", value_parser = remora_cluster::placement)]
    pub deployment: Option<Placement>,
    /// How nodes and clients reach each other: shm or udp [default: what the directory has; shm for a
    /// new one]
    #[arg(long, value_name = "LINK", value_parser = crate::bench_minos::link(), hide_possible_values = true)]
    pub link: Option<LinkKind>,
    /// How logs become durable: fdatasync, or pmem (write-back of a mapped file; only a DAX file system keeps that
    /// through a power failure) [default: what the directory has; fdatasync for a new one]
    #[arg(long, value_name = "KIND")]
    pub log: Option<LogKind>,
    /// A node that is silent for so many milliseconds is taken to have failed [default: what the directory has; 200 for a new one]
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    pub suspect: Option<Duration>,
    /// Whether nodes and clients prove that they know the secret, and what leaves the host is sealed, so that who listens on the
    /// network learns and changes nothing; over shared memory nothing leaves it [default: what the directory has; true for a new one]
    #[arg(long, value_name = "BOOL")]
    pub sealed: Option<bool>,
}

impl From<Shape> for ClusterShape {
    fn from(shape: Shape) -> Self {
        let Shape { nodes, persistency, chain, deployment, link, log, suspect, sealed } = shape;
        Self { nodes, persistency, chain, deployment, link, log, suspect, sealed }
    }
}

#[derive(Debug, clap::Args)]
struct Start {
    #[command(flatten)]
    shape: Shape,
    /// Where the cluster's secret and logs are
    #[arg(long, value_name = "DIR", default_value = DIR)]
    dir: PathBuf,
    /// In a temporary directory that is removed at the end
    #[arg(long, conflicts_with = "dir")]
    scratch: bool,
    /// Write all packets of each node into a file for Wireshark or tshark: all.pcap becomes all-0.pcap, all-1.pcap and so
    /// on, and all-1-2.pcap when node 1 is started a second time
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Figures for programs.
    #[command(flatten)]
    json: Json,
}

#[derive(Debug, clap::Args)]
struct AtDir {
    /// The cluster's directory
    #[arg(long, value_name = "DIR", default_value = DIR)]
    dir: PathBuf,
    /// Figures for programs.
    #[command(flatten)]
    json: Json,
}

#[derive(Debug, clap::Args)]
struct Get {
    /// The record's number
    #[arg(value_parser = quantity::count)]
    key: u64,
    /// The cluster's directory
    #[arg(long, value_name = "DIR", default_value = DIR)]
    dir: PathBuf,
}

#[derive(Debug, clap::Args)]
struct Put {
    /// The record's number
    #[arg(value_parser = quantity::count)]
    key: u64,
    /// Its new content
    value: String,
    /// The cluster's directory
    #[arg(long, value_name = "DIR", default_value = DIR)]
    dir: PathBuf,
}

#[derive(Debug, clap::Args)]
struct ClusterNodeArgs {
    /// The cluster's directory
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The node's number
    #[arg(long, value_name = "N")]
    id: u8,
    /// Where its packets go
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &ClusterArgs) -> Result<(), Failure> {
    match &args.what {
        None => start(&args.start),
        Some(ClusterCommand::Status(args)) => status(args),
        Some(ClusterCommand::Get(args)) => get(args),
        Some(ClusterCommand::Put(args)) => put(args),
        Some(ClusterCommand::Transact(args)) => cluster_transact::run(args),
        Some(ClusterCommand::Kills(args)) => cluster_kills::run(args),
        Some(ClusterCommand::Pauses(args)) => cluster_pauses::run(args),
        Some(ClusterCommand::Node(args)) => node(args),
    }
}

/// A cluster until a signal comes.
fn start(args: &Start) -> Result<(), Failure> {
    let stop = stop_flag();
    let scratch = if args.scratch { Some(scratch()?) } else { None };
    let dir = scratch.as_ref().map_or(args.dir.as_path(), |dir| dir.path());
    let _lock = lock(dir)?;
    let settings = ClusterSettings::open(dir, &args.shape.clone().into())?;
    let stopped = || stop.load(Ordering::Relaxed);
    let mut children = ClusterProcesses::start_captured(dir, settings, args.pcap.as_deref(), &stopped)?;
    children.await_service(START, &stopped)?;
    greet(args, &children)?;
    let mut down: Vec<Option<Instant>> = vec![None; children.len()];
    while !stopped() {
        for (node, since) in down.iter_mut().enumerate() {
            if let Some(ended) = children.ended(node)? {
                let _ = writeln!(io::stderr(), "remora: node {node} {ended}; it is started again");
                *since = Some(Instant::now());
            }
            if since.is_some_and(|since| since.elapsed() >= RESTART) {
                *since = None;
                children.spawn_node(node)?;
            }
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A directory that goes with its value.
pub fn scratch() -> Result<tempfile::TempDir, Failure> {
    tempfile::tempdir().map_err(|e| Failure::Failed(format!("making a temporary directory: {e}")))
}

/// Where the cluster is. Whoever reads may have gone away.
fn greet(args: &Start, children: &ClusterProcesses) -> Result<(), Failure> {
    let settings = children.settings();
    let started = || {
        let nodes: Vec<Value> = (0..children.len())
            .map(|node| {
                let address = settings.addresses[node].to_string();
                json!({"node": node, "address": address, "process": children.process(node)})
            })
            .collect();
        json!({"format": "remora-cluster/1", "serves": true, "dir": children.dir(), "nodes": nodes})
    };
    if args.json.on_stdout() {
        // In one line: a program that waits for it reads no further.
        print(&format!("{}\n", started()))
    } else {
        args.json.write(started)?;
        let mut text = format!(
            "{} nodes, {}, {} deployment, {} log, over {}, {}, in {}\n\nnode  address          process\n",
            children.len(),
            settings.kept(),
            settings.deployment,
            settings.log,
            settings.link,
            settings.guard(),
            children.dir().display()
        );
        for (node, address) in settings.addresses.iter().enumerate() {
            text += &format!("{node:<4}  {:<15}  {}\n", address.to_string(), children.process(node).unwrap_or(0));
        }
        print(&(text + "\nIt serves. SIGINT (Ctrl-C) or SIGTERM ends it.\n"))
    }
}

/// One node, until its input ends.
fn node(args: &ClusterNodeArgs) -> Result<(), Failure> {
    let mut config = ClusterSettings::read(&args.dir)?.node(&args.dir, args.id)?;
    let capture = Capture::open(args.pcap.as_deref())?;
    config.layers = capture.layers();
    let node = ClusterNode::start(config)?;
    if let Some(at) = node.damage() {
        let id = args.id;
        let _ =
            writeln!(io::stderr(), "remora: the log of node {id} is damaged at byte {at}; others replace what is lost");
    }
    let _ = writeln!(io::stdout(), "{CLUSTER_READY}{}", node.address());
    let _ = io::stdout().flush();
    let (end, ended) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = end.send(());
    });
    let (mut differs, mut lost) = (false, false);
    loop {
        match ended.recv_timeout(Duration::from_millis(200)) {
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
            _ => return Ok(()),
        }
        if !differs && let Some(how) = node.differs() {
            differs = true;
            let _ = writeln!(io::stderr(), "remora: {how}: all nodes of a cluster need the same; it is refused");
        }
        if !lost && node.has_lost_its_log() {
            lost = true;
            let id = args.id;
            let _ = writeln!(io::stderr(), "remora: the log of node {id} is lost, as on a new disk; others replace it");
        }
        if let Some(why) = node.failure() {
            // At once: with a log that failed nothing may be done any more.
            let _ = writeln!(io::stderr(), "remora: node {} ends: {why}", args.id);
            std::process::exit(1);
        }
    }
}

/// Bytes of a chain: what its nodes keep in memory, twice.
fn chain_bytes(text: &str) -> Result<u64, String> {
    let bytes = quantity::size(text)?;
    match bytes {
        4096..=0x4_0000_0000 => Ok(bytes),
        _ => Err("give 4K to 16G".into()),
    }
}

fn client_of(dir: &std::path::Path, node: usize) -> Result<ClusterClient, Failure> {
    connect(dir, node)
}

/// A client of the cluster in a directory, which begins with this node.
pub fn connect<X: Spoken>(dir: &std::path::Path, node: usize) -> Result<ConnectedClient<X>, Failure> {
    let config = ClusterSettings::read(dir)?.client();
    let nodes = config.nodes.len();
    if node >= nodes {
        return Err(Failure::Usage(format!(
            "there is no node {node}: the cluster in {} has 0 to {}",
            dir.display(),
            nodes - 1
        )));
    }
    ConnectedClient::connect(ClusterClientConfig { node, retry: true, ..config }).map_err(|e| match e {
        remora_real::Error::Unreachable(_) => {
            let dir = dir.display();
            Failure::Failed(format!(
                "no node of the cluster in {dir} answers: start it with `remora cluster --dir {dir}`"
            ))
        }
        other => other.into(),
    })
}

fn why(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Refused(refusal) => refusal.to_string(),
        other => format!("the answer is {other:?}"),
    }
}

fn get(args: &Get) -> Result<(), Failure> {
    match client_of(&args.dir, 0)?.get(args.key) {
        Outcome::Value(Some(value)) => to_stdout(&[&value[..], b"\n"].concat()),
        Outcome::Value(None) => Err(Failure::Failed(format!("there is no record {}", args.key))),
        other => Err(Failure::Failed(format!("record {} was not read: {}", args.key, why(&other)))),
    }
}

fn put(args: &Put) -> Result<(), Failure> {
    match client_of(&args.dir, 0)?.put(args.key, args.value.as_bytes()) {
        Outcome::Written => Ok(()),
        Outcome::Unknown => Err(Failure::Failed(format!("whether record {} was written is not known", args.key))),
        other => Err(Failure::Failed(format!("record {} was not written: {}", args.key, why(&other)))),
    }
}

fn status(args: &AtDir) -> Result<(), Failure> {
    let settings = ClusterSettings::read(&args.dir)?;
    let all: Vec<Option<NodeStatus>> =
        (0..settings.addresses.len()).map(|node| ask(&settings, node, Duration::from_millis(500))).collect();
    args.json.show(&table(&settings, &all), || {
        let nodes: Vec<Value> = all.iter().map(|status| status.map_or(Value::Null, figures)).collect();
        let persistency = settings.kept();
        json!({ "format": "remora-cluster-status/1", "persistency": persistency, "nodes": nodes })
    })?;
    if all.iter().all(Option::is_none) {
        return Err(Failure::Failed(format!("no node of the cluster in {} runs", args.dir.display())));
    }
    Ok(())
}

fn figures(status: NodeStatus) -> Value {
    let figure = |(name, figure): (&str, u64)| {
        let value = match name {
            "members" | "learners" => json!((0..64).filter(|n| figure >> n & 1 == 1).collect::<Vec<u64>>()),
            _ => json!(figure),
        };
        (name.to_string(), value)
    };
    Value::Object(status.iter().map(figure).collect())
}

fn table(settings: &ClusterSettings, all: &[Option<NodeStatus>]) -> String {
    let set = |bits: u64| (0..64).filter(|n| bits >> n & 1 == 1).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
    let mut text = format!("persistency {}, deployment {}\n\n", settings.kept(), settings.deployment);
    text += "node  address          serves  epoch  members         learns\n";
    for (node, (status, address)) in all.iter().zip(&settings.addresses).enumerate() {
        let Some(status) = status else {
            text += &format!("{node:<4}  {:<15}  down\n", address.to_string());
            continue;
        };
        let line = format!(
            "{node:<4}  {:<15}  {:<6}  {:<5}  {:<14}  {}",
            address.to_string(),
            if status.serves == 1 { "yes" } else { "no" },
            status.epoch,
            set(status.members),
            set(status.learners),
        );
        text += &format!("{}\n", line.trim_end());
    }
    if all.iter().any(Option::is_some) {
        text += "\nnode       reads      writes      log MB       syncs  inline     CPU s\n";
    }
    for (node, status) in all.iter().enumerate().filter_map(|(node, status)| Some((node, status.as_ref()?))) {
        text += &format!(
            "{node:<4} {:>11} {:>11} {:>11.1} {:>11} {:>6.0}% {:>9.1}\n",
            status.reads,
            status.writes,
            status.log_bytes as f64 / 1e6,
            status.log_syncs,
            status.log_syncs_inline as f64 * 100.0 / status.log_syncs.max(1) as f64,
            status.cpu_ns as f64 / 1e9,
        );
    }
    let full = all.iter().flatten().fold(0, |full, status| full | status.full);
    if full != 0 {
        let nodes = set(full);
        text += &format!("\nThe disk is full at node {nodes}: reads go on, and writes again when there is room.\n");
    }
    text
}

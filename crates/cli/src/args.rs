//! What the command line may say.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand, ValueEnum};
use remora_kernel::{Placement, UnknownPlacement};
use remora_real::{DeployToken, Deployers, LinkKind, Placing};
use remora_study::operations::{GROUPS, OPERATIONS, Operation};

use crate::output::Json;
use crate::quantity::{count, megabytes, seconds, up_to};

/// Smart remote memory: a software RoCE v2 NIC, and kernels that run at the client, on the NIC or on the host.
///
/// Without a command it compares: see `remora compare --help`.
#[derive(Debug, Parser)]
#[command(name = "remora", version = env!("REMORA_VERSION"), after_help = EXAMPLES)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Say nothing of progress and events on standard error, only what fails
    #[arg(long, short, global = true, display_order = 998)]
    pub quiet: bool,
    /// Say more on standard error: which addresses, links and packets are used
    #[arg(long, short, global = true, conflicts_with = "quiet", display_order = 998)]
    pub verbose: bool,
}

const EXAMPLES: &str = "\
Examples:
  remora                            compare the three places on this machine
  remora compare --load kv.tsv      the same with your own records
  remora node --listen 10.0.0.1     expose memory to other machines
  remora compare --node 10.0.0.1    compare the places against that node
  remora compare --placements auto  beside them, a client that chooses itself
  remora bench nic                  the NIC beside raw sockets and rings";

/// A command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run look-ups at the client, on the node's NIC and on its host cores, and tell which place wins and why
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare(Box<Compare>),
    /// Expose memory of this machine over RoCE v2 until SIGINT or SIGTERM
    Node(NodeArgs),
    /// Show what nodes and clusters do, once a second, in the terminal
    Top(crate::top::Top),
    /// Write manual pages and completions for shells
    #[cfg(feature = "pages")]
    #[command(hide = true)]
    Pages {
        /// Where to.
        directory: PathBuf,
    },
    /// Replicated records on several processes of this machine, with a choice of how durable writes are
    #[command(after_help = crate::cluster::EXAMPLES)]
    Cluster(Box<crate::cluster::ClusterArgs>),
    /// Kernels of your own: build, deploy, list, call and remove WebAssembly modules
    Kernel {
        /// What to do.
        #[command(subcommand)]
        what: crate::kernel::Kernel,
    },
    /// Run an RDMA program of the system, such as ib_write_lat, on Remora's verbs library
    Exec(crate::exec::Exec),
    /// Run programs whose TCP connections to each other pass through shared memory, and the daemon that sees to it
    Rack(crate::rack::Rack),
    /// List the RDMA devices of this user on this host: their processes, addresses, queue pairs and rates
    Ps(crate::ps::Ps),
    /// Measure this machine and write its platform file
    Probe(crate::probe::ProbeArgs),
    /// Probe this machine, predict its comparison, run it, and print prediction, measurement and error
    Validate(crate::validate::Validate),
    /// Tell where an operation should run on a platform, and what would have to change for another place to win
    Where(crate::where_::Where),
    /// Show the hardware descriptions
    Platform {
        /// What to show.
        #[command(subcommand)]
        what: crate::platform::PlatformCommand,
    },
    /// Run a paper's experiments on the hardware that it describes, and compare with what it says
    Reproduce {
        /// Which paper.
        #[command(subcommand)]
        what: crate::reproduce::Reproduce,
    },
    /// Run clusters of the replicated store through seeded faults and check what clients saw
    Storm {
        /// What to storm.
        #[command(subcommand)]
        what: crate::storm::StormCommand,
    },
    /// Check an engine in every interleaving of a small case
    Check {
        /// What to check.
        #[command(subcommand)]
        what: crate::check::CheckCommand,
    },
    /// Measure Remora's parts beside what the machine gives without it
    Bench {
        /// Which part.
        #[command(subcommand)]
        what: Bench,
    },
}

impl Default for Command {
    fn default() -> Self {
        let Some(command) = Args::parse_from(["remora", "compare"]).command else {
            unreachable!("the command line names a command")
        };
        command
    }
}

const COMPARE_EXAMPLES: &str = "\
Examples:
  remora compare                                 a child process is the node; 1 M records
  remora compare --records 10000 --seconds 0.02  a quick look
  remora compare --load kv.tsv --trace keys.txt  key<TAB>value lines; one key on each line
  remora compare --node 10.0.0.1 --json r.json   against `remora node --listen 10.0.0.1`
  remora compare --json a.json; remora compare --baseline a.json   what has changed, and a status for CI
  remora compare --kernel kernels/topk.wasm --data rows.bin --args key,u32:10,va,u64:1000
  remora compare --kernel kernels/topk.wasm --on strom-10g --data rows.bin --args key,u32:10,va,u64:1000
  remora compare --operations btree,sequencer    a B-tree and a sequencer instead
  remora compare --on rambda                     on modelled hardware, with its accelerator
  remora compare --on strom-10g --both           the same, beside the run on this machine";

/// Options of `remora compare`.
#[derive(Debug, clap::Args)]
pub struct Compare {
    /// The node to use, by address or name, started with `remora node` [default: a child process on this machine]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub node: Option<IpAddr>,
    /// Our own address towards the node [default: what routing chooses]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub local: Option<IpAddr>,
    /// Links to use, of udp, shm and packet [default: udp and, if it reaches the node, shm]
    #[arg(long, value_name = "LINKS", value_delimiter = ',', value_parser = link())]
    pub links: Vec<LinkKind>,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: what both links and the way between them carry]
    #[arg(long, value_name = "BYTES", value_parser = mtu)]
    pub mtu: Option<u32>,
    /// Places to run kernels at; with `auto`, a client that chooses the place of each call is measured beside them
    /// [default: all that there are]
    #[arg(long, alias = "placement", value_name = "PLACES", value_delimiter = ',', value_parser = place())]
    pub placements: Vec<Place>,
    /// What to measure, by the names that the table shows; btree is all that a B-tree does [default: what needs no name:
    /// all but btree, sequencer and embed]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = operations, conflicts_with = "kernel")]
    pub operations: Vec<Vec<Operation>>,
    /// Where `auto` begins: what the model says of this machine, by the platform file that `remora probe` has written
    #[arg(long, value_name = "FILE", conflicts_with_all = ["on", "kernel"])]
    pub prior: Option<String>,
    /// Measure calls to the NIC and the host by rings in memory too, beside RPC verbs and SENDs; not with --kernel, whose
    /// table has one row for each place
    #[arg(long, conflicts_with = "kernel")]
    pub rings: bool,
    /// Records from a file: key, tab and value on each line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["records", "value_bytes"])]
    pub load: Option<PathBuf>,
    /// GET the keys of a file, one on each line, in its order, as get-trace; unknown keys must be missed
    #[arg(long, value_name = "FILE", conflicts_with = "distribution")]
    pub trace: Option<PathBuf>,
    /// Records to generate
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = up_to::<u32>(1..=100_000_000))]
    pub records: u32,
    /// Bytes of each generated value
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = up_to::<u32>(0..=61_440))]
    pub value_bytes: u32,
    /// How keys are drawn
    #[arg(long, value_enum, default_value = "zipfian")]
    pub distribution: Distribution,
    /// Seed of every random choice
    #[arg(long, value_name = "N", default_value = "42", value_parser = count)]
    pub seed: u64,
    /// Time for each figure: an operation, parameter, place, link and number in flight
    #[arg(long, value_name = "S", default_value = "0.12", value_parser = seconds, allow_negative_numbers = true)]
    pub seconds: Duration,
    /// Updates a second that the node's writer makes while consistent GETs run; 0 is as fast as it can
    #[arg(long, value_name = "N", default_value = "50000", value_parser = up_to::<u32>(0..=100_000_000))]
    pub writer_rate: u32,
    /// Run the operations on modelled hardware: a platform's name (see `remora platform list`) or its file
    #[arg(long, value_name = "PLATFORM")]
    pub on: Option<String>,
    /// Run them for real as well, and report both
    #[arg(long, requires = "on")]
    pub both: bool,
    /// Compare a kernel of your own instead: a WebAssembly module, or its source (see `remora kernel`)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["load", "trace", "records", "value_bytes", "distribution", "writer_rate"])]
    pub kernel: Option<PathBuf>,
    /// The kernel's parameters, such as key,u32:10,va,u64:1000 (see `remora kernel call --help`)
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub args: Vec<crate::kernel_params::Piece>,
    /// A file that is put into the node's memory for the kernel
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// What the kernel may use up.
    #[command(flatten)]
    pub bounds: crate::kernel::Bounds,
    /// Figures for programs.
    #[command(flatten)]
    pub json: Json,
    /// Write all packets of the client into this file, for Wireshark or tshark, and those of a node that is started
    /// into another: all.pcap and all-node.pcap
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Tell what has changed since an earlier run, from its JSON; fail if anything is worse. Of several runs of the same,
    /// given one by one, the interval knows how far runs differ
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kernel", "on"])]
    pub baseline: Vec<PathBuf>,
    /// A change within so many percent is none
    #[arg(long, value_name = "PERCENT", default_value = "5", value_parser = tolerance)]
    pub tolerance: f64,
    /// Keep the histogram of each figure's latencies in the JSON, as HdrHistogram's tools read it
    #[arg(long, requires = "json", conflicts_with = "kernel")]
    pub histograms: bool,
    /// Keep the latency of each operation in the JSON; a minute's run has millions
    #[arg(long, requires = "json", conflicts_with = "kernel")]
    pub samples: bool,
    /// Where to write the HTML report
    #[arg(long, value_name = "FILE", default_value = "remora-report.html")]
    pub html: PathBuf,
    /// Write no HTML report, for example where the directory is read-only
    #[arg(long, conflicts_with = "html")]
    pub no_html: bool,
}

const NODE_EXAMPLES: &str = "\
Examples:
  remora node --listen 127.0.0.2                  for programs on this machine
  remora node --listen 10.0.0.1 --memory 64G      for other machines, by one of this one's addresses
  remora node --listen 10.0.0.1 --metrics 127.0.0.1:9100     figures for Prometheus and `remora top`
  remora node --listen 10.0.0.1 --deployers 10.0.0.7,10.0.0.8 --kernels kept";

/// Options of `remora node`.
#[derive(Debug, clap::Args)]
#[command(after_help = NODE_EXAMPLES)]
pub struct NodeArgs {
    /// The address to listen at, as clients reach it; on one machine each node takes its own of 127.0.0.0/8
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub listen: IpAddr,
    /// Memory that clients may allocate, all together, such as 512M or 16G; one alone gets half [default: 16G, or what
    /// the machine has]
    #[arg(long, value_name = "SIZE", value_parser = megabytes)]
    pub memory: Option<u64>,
    /// Engines that serve, each with two threads of its own: as many as cores are to be had. Connections are shared out
    /// among them
    #[arg(long, value_name = "N", default_value = "1", value_parser = up_to::<u16>(1..=256))]
    pub engines: u16,
    /// Cores that engines are kept on, in turn: by number from 0, of those that this process may use [default: the
    /// system's choice]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub cores: Vec<usize>,
    /// The largest path MTU to agree on: 256, 512, 1024, 2048 or 4096 [default: what the link carries]
    #[arg(long, value_name = "BYTES", value_parser = mtu)]
    pub mtu: Option<u32>,
    /// How long a call may take, beside a microsecond for each byte of its payload
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = seconds)]
    pub deadline: Duration,
    /// Connections that one address may have
    #[arg(long, value_name = "N", default_value = "64", value_parser = up_to::<u32>(1..=65_536))]
    pub connections: u32,
    /// Give calls of a client, by its address, so many times the share of others' where all want some (ADDR=N, from 1 to
    /// 100): of turns of rings and of kernels' time
    #[arg(long = "weight", value_name = "ADDR=N", value_parser = weight)]
    pub weights: Vec<(IpAddr, u32)>,
    /// Keep kernels that clients want kept in this directory, and deploy them at the next start
    #[arg(long, value_name = "DIR", value_parser = crate::output::directory())]
    pub kernels: Option<PathBuf>,
    /// Who may deploy kernels: host (clients on this host), any, addresses (ADDR,ADDR,...) or token:FILE (who has the
    /// same file, of 16 random bytes or more)
    #[arg(long, value_name = "WHO", default_value = "host", value_parser = deployers)]
    pub deployers: Deployers,
    /// Who chooses where kernels run whose callers leave it open (`auto`): clients (each for itself), auto (the node, for
    /// all of them, its NIC or its host), or always its nic or host
    #[arg(long, value_name = "WHO", default_value = "clients")]
    pub place: Placing,
    /// Use packet and raw sockets, which see and check whole IPv4 packets, and need CAP_NET_RAW
    #[arg(long)]
    pub packet: bool,
    /// Write all packets into this file, for Wireshark or tshark
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Serve figures at this address and port, for Prometheus and `remora top`: http://ADDR/metrics. Whoever reaches it
    /// reads them
    #[arg(long, value_name = "ADDR", value_parser = address_and_port)]
    pub metrics: Option<SocketAddr>,
    /// End when standard input ends: for a node that is a child process
    #[arg(long, hide = true)]
    pub stop_with_stdin: bool,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// The NIC's verbs over UDP and shared memory beside raw probes of the same paths
    Nic(BenchNic),
    /// A B-tree by kernels of one core and of two, beside other ordered maps in the same run
    Btree(crate::bench_btree::BenchBtree),
    /// An index in two parts, served by host and NIC, while the border between them moves
    Partition(crate::bench_partition::BenchPartition),
    /// GETs a second of one core by the number in flight, beside a plain loop
    Kernel(BenchKernel),
    /// Kernels as WebAssembly beside native ones, and what a hostile one costs its neighbours
    Wasm(crate::bench_wasm::BenchWasm),
    /// What a client notices of another one that takes all it may of something
    Neighbours(crate::bench_neighbours::BenchNeighbours),
    /// The event core of the modelled world beside a binary heap and SimGrid
    Model(crate::bench_model::BenchModel),
    /// Shuffling, sketches, checksums and compression of streams beside plain WRITEs of the same data
    Stream(crate::bench_stream::BenchStream),
    /// A client and an engine on each core beside one such pair: what several engines of a node give
    Cores(crate::bench_cores::BenchCores),
    /// Calls by rings in memory beside WRITEs and RPC verbs
    Ring(crate::bench_ring::BenchRing),
    /// TCP connections of programs in a rack beside the kernel's on loopback
    Rack(crate::bench_rack::BenchRack),
    /// The key-value store beside memcached and Redis
    Kv(crate::bench_kv::BenchKv),
    /// A recommender's look-ups: rows of an embedding table reduced by a core, and at each place of a node
    Dlrm(crate::bench_dlrm::BenchDlrm),
    /// Forged packets against a node, a cluster and a program: whether anything ends or changes
    Forge(crate::bench_forge::BenchForge),
    /// The replicated store beside etcd and Redis
    Minos(Box<crate::bench_minos::BenchMinos>),
    /// Transactions on a chain of three nodes beside etcd and Redis
    Chain(Box<crate::bench_chain::BenchChain>),
}

/// Options of `remora bench nic`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: remora bench nic --json nic.json")]
pub struct BenchNic {
    /// Figures for programs.
    #[command(flatten)]
    pub json: Json,
}

const BENCH_KERNEL_EXAMPLES: &str = "\
Examples:
  remora bench kernel                            a table of 1 GB, far beyond caches
  remora bench kernel --table 2M --rounds 20     one within them";

/// Options of `remora bench kernel`.
#[derive(Debug, clap::Args)]
#[command(after_help = BENCH_KERNEL_EXAMPLES)]
pub struct BenchKernel {
    /// Size of the hash table
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = megabytes)]
    pub table: u64,
    /// Rounds, of which the best counts: other work on the machine only ever slows one down
    #[arg(long, value_name = "N", default_value = "8", value_parser = up_to::<u32>(1..=1000))]
    pub rounds: u32,
    /// Seed of the table and of the keys
    #[arg(long, value_name = "N", default_value = "42", value_parser = count)]
    pub seed: u64,
    /// Figures for programs.
    #[command(flatten)]
    pub json: Json,
}

/// A link by which a node is reached, by its name.
pub(crate) fn link() -> impl TypedValueParser<Value = LinkKind> {
    one_of(LinkKind::ALL.map(|kind| (kind.name(), kind.about())))
}

/// Operations by the name of one or of a group.
pub(crate) fn operations(name: &str) -> Result<Vec<Operation>, String> {
    Operation::all_named(name).ok_or_else(|| {
        let names = GROUPS.iter().map(|(name, _)| *name).chain(OPERATIONS.iter().map(|operation| operation.name()));
        format!("there is no operation {name:?}: use {}", names.collect::<Vec<_>>().join(", "))
    })
}

/// A place, or one that is chosen for each call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// This one.
    At(Placement),
    /// A client chooses.
    Auto,
}

impl FromStr for Place {
    type Err = UnknownPlacement;

    fn from_str(text: &str) -> Result<Self, UnknownPlacement> {
        match text {
            "auto" => Ok(Self::Auto),
            text => text.parse().map(Self::At),
        }
    }
}

impl Compare {
    /// The places that were named, in the order of reports, each once; all of these if none was.
    pub fn places(&self, all: &[Placement]) -> Vec<Placement> {
        let named: Vec<_> = all.iter().copied().filter(|&place| self.placements.contains(&Place::At(place))).collect();
        if named.is_empty() { all.to_vec() } else { named }
    }

    /// Whether one of these places was named.
    pub fn names_one_of(&self, places: &[Placement]) -> bool {
        places.iter().any(|&place| self.placements.contains(&Place::At(place)))
    }

    /// A place that was named and is not among these.
    pub fn strange(&self, all: &[Placement]) -> Option<Placement> {
        Placement::ALL.into_iter().find(|&place| self.placements.contains(&Place::At(place)) && !all.contains(&place))
    }

    /// Whether a client that chooses is measured too.
    pub fn auto(&self) -> bool {
        self.placements.contains(&Place::Auto)
    }
}

/// A place by its name, or `auto`.
fn place() -> impl TypedValueParser<Value = Place> {
    one_of([
        (Placement::Client.name(), "Here, with one-sided verbs"),
        (Placement::Nic.name(), "On the node's NIC"),
        (Placement::Host.name(), "On the node's host cores"),
        (Placement::Accelerator.name(), "On the accelerator of a platform that has one"),
        ("auto", "Where a call is answered quickest, beside all places named, or all"),
    ])
}

/// A placement that the real world has, by its name.
pub(crate) fn placement() -> impl TypedValueParser<Value = Placement> {
    one_of([
        (Placement::Client.name(), "Here, with one-sided verbs"),
        (Placement::Nic.name(), "On the node's NIC"),
        (Placement::Host.name(), "On the node's host cores"),
    ])
}

/// One of some things by its name, each with a line of help.
pub(crate) fn one_of<T, const N: usize>(names: [(&'static str, &'static str); N]) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static> + Clone + Send + Sync + 'static,
{
    let values = names.map(|(name, about)| PossibleValue::new(name).help(about));
    PossibleValuesParser::new(values).try_map(|name| name.parse::<T>())
}

/// How keys are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Distribution {
    /// YCSB's scrambled zipfian with constant 0.99.
    Zipfian,
    /// Every record alike.
    Uniform,
}

/// Who may deploy kernels.
fn deployers(text: &str) -> Result<Deployers, String> {
    match (text, text.strip_prefix("token:")) {
        ("host", _) => Ok(Deployers::ThisHost),
        ("any", _) => Ok(Deployers::Anyone),
        (_, Some(file)) => token(file).map(Deployers::Token),
        _ => {
            let addresses = text.split(',').map(address).collect::<Result<_, _>>();
            addresses.map(Deployers::Addresses).map_err(|e| format!("give host, any, token:FILE or addresses: {e}"))
        }
    }
}

fn weight(text: &str) -> Result<(IpAddr, u32), String> {
    let (client, weight) = text.split_once('=').ok_or("a client and its weight are ADDR=N, such as 10.0.0.5=4")?;
    let number = weight.parse().ok().filter(|weight| (1..=100).contains(weight));
    Ok((address(client)?, number.ok_or_else(|| format!("a weight is from 1 to 100, not {weight:?}"))?))
}

/// The token in a file.
pub fn token(file: &str) -> Result<DeployToken, String> {
    DeployToken::read(file.as_ref()).map_err(|e| e.to_string())
}

/// An address that one node has, or the name of a host that has one.
pub fn address(text: &str) -> Result<IpAddr, String> {
    if text.parse::<SocketAddr>().is_ok() || text.split_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
        return Err("give the address without a port: RoCE v2 always has port 4791".into());
    }
    let address = text.parse().or_else(|_| resolve(text))?;
    if address.is_unspecified() || address.is_multicast() {
        return Err("give the address of one interface, by which the other side reaches it".into());
    }
    Ok(address)
}

/// The address of a host by its name: IPv4 first, of whose loopback addresses there are enough for several processes.
fn resolve(name: &str) -> Result<IpAddr, String> {
    let failed = |why: &dyn std::fmt::Display| format!("neither an address such as 127.0.0.2 nor a host's name: {why}");
    if name.is_empty() {
        return Err(failed(&"it is empty"));
    }
    let found: Vec<IpAddr> = (name, 0).to_socket_addrs().map_err(|e| failed(&e))?.map(|at| at.ip()).collect();
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| failed(&"it has no address"))
}

/// An address, or the name of a host, and a port.
pub fn address_and_port(text: &str) -> Result<SocketAddr, String> {
    let wanted = "give an address and a port, such as 127.0.0.1:9100";
    if let Ok(at) = text.parse() {
        return Ok(at);
    }
    let (host, port) = text.rsplit_once(':').ok_or(wanted)?;
    let port = port.parse().map_err(|_| wanted)?;
    Ok(SocketAddr::new(resolve(host)?, port))
}

/// Percent.
fn tolerance(text: &str) -> Result<f64, String> {
    let value = text.trim_end_matches('%').trim_end().parse().ok();
    value.filter(|percent| (0.0..=1000.0).contains(percent)).ok_or_else(|| "give a percentage, such as 5".into())
}

/// A path MTU.
pub fn mtu(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(mtu @ (256 | 512 | 1024 | 2048 | 4096)) => Ok(mtu),
        _ => Err("use 256, 512, 1024, 2048 or 4096".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
        assert!(matches!(Command::default(), Command::Compare(args) if args.records == 1_000_000 && args.seed == 42));
    }

    #[test]
    fn values_are_checked() {
        assert_eq!(address("127.0.0.2"), Ok([127, 0, 0, 2].into()));
        assert_eq!(address("localhost"), Ok([127, 0, 0, 1].into()));
        assert!(address("localhost:4791").unwrap_err().contains("without a port"));
        assert_eq!((mtu("1024"), mtu("1500").is_err()), (Ok(1024), true));
        assert!(address("127.0.0.2:4791").unwrap_err().contains("without a port"));
        assert_eq!(address_and_port("localhost:9100"), Ok(([127, 0, 0, 1], 9100).into()));
        assert_eq!(address_and_port("[::1]:9100"), "[::1]:9100".parse().map_err(|_| String::new()));
        assert!(["localhost", "9100", "localhost:http", ":9100"].iter().all(|bad| address_and_port(bad).is_err()));
        assert!(["0.0.0.0", "224.0.0.1", "no.such.host.invalid", ""].iter().all(|bad| address(bad).is_err()));
    }
}

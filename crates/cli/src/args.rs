//! What the command line may say.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand, ValueEnum};
use remora_kernel::Placement;
use remora_real::LinkKind;

/// Smart remote memory: a software RoCE v2 NIC, and kernels that run at the client, on the NIC or on the host.
///
/// Without a command it compares: see `remora compare --help`.
#[derive(Debug, Parser)]
#[command(name = "remora", version, after_help = EXAMPLES)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Option<Command>,
}

const EXAMPLES: &str = "\
Examples:
  remora                                compare placements on this machine, within a minute
  remora compare --load kv.tsv          the same with your own records
  remora node --listen 10.0.0.1         expose memory to other machines
  remora compare --node 10.0.0.1        compare placements against that node
  remora bench nic                      the NIC beside raw sockets and rings";

/// A command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run look-ups at the client, on the node's NIC and on its host cores, and tell which place wins and why
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare(Box<Compare>),
    /// Expose memory of this machine over RoCE v2 until SIGINT or SIGTERM
    Node(NodeArgs),
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
  remora compare --kernel kernels/topk.wasm --data rows.bin --args key,u32:10,va,u64:1000
  remora compare --kernel kernels/topk.wasm --on strom-10g --data rows.bin --args key,u32:10,va,u64:1000
  remora compare --on rambda                     on modelled hardware, with its accelerator
  remora compare --on strom-10g --both           the same, beside the run on this machine";

/// Options of `remora compare`.
#[derive(Debug, clap::Args)]
pub struct Compare {
    /// The node to use, started with `remora node` [default: a child process on this machine]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub node: Option<IpAddr>,
    /// Our own address towards the node [default: what routing chooses]
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub local: Option<IpAddr>,
    /// Links to use, of udp, shm and packet [default: udp and, if it reaches the node, shm]
    #[arg(long, value_name = "LINKS", value_delimiter = ',', value_parser = link())]
    pub links: Vec<LinkKind>,
    /// Places to run kernels at
    #[arg(long, value_name = "PLACES", value_delimiter = ',', default_value = "client,nic,host", value_parser = placement())]
    pub placements: Vec<Placement>,
    /// Records from a file of key<TAB>value lines
    #[arg(long, value_name = "FILE", conflicts_with_all = ["records", "value_bytes"])]
    pub load: Option<PathBuf>,
    /// GET the keys of a file, one on each line, in its order; unknown keys must be missed
    #[arg(long, value_name = "FILE", conflicts_with = "distribution")]
    pub trace: Option<PathBuf>,
    /// Records to generate
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = up_to(1..=100_000_000))]
    pub records: u32,
    /// Bytes of each generated value
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = up_to(0..=61_440))]
    pub value_bytes: u32,
    /// How keys are drawn
    #[arg(long, value_enum, default_value = "zipfian")]
    pub distribution: Distribution,
    /// Seed of every random choice
    #[arg(long, value_name = "N", default_value = "42")]
    pub seed: u64,
    /// Time for each figure: an operation, parameter, place, link and number in flight
    #[arg(long, value_name = "S", default_value = "0.12", value_parser = seconds, allow_negative_numbers = true)]
    pub seconds: Duration,
    /// Updates a second that the node's writer makes while consistent GETs run; 0 is as fast as it can
    #[arg(long, value_name = "N", default_value = "50000", value_parser = up_to(0..=100_000_000))]
    pub writer_rate: u32,
    /// Run the operations on modelled hardware: a platform's name (see `remora platform list`) or its file
    #[arg(long, value_name = "PLATFORM")]
    pub on: Option<String>,
    /// Run them for real as well, and report both
    #[arg(long, requires = "on")]
    pub both: bool,
    /// Compare a kernel of your own instead: a WebAssembly module, or its source (see `remora kernel`)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["load", "trace"])]
    pub kernel: Option<PathBuf>,
    /// The kernel's parameters, such as key,u32:10,va,u64:1000 (see `remora kernel call --help`)
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "kernel")]
    pub args: Vec<crate::kernel_params::Piece>,
    /// A file that is put into the node's memory for the kernel
    #[arg(long, value_name = "FILE", requires = "kernel")]
    pub data: Option<PathBuf>,
    /// What the kernel may use up.
    #[command(flatten)]
    pub bounds: crate::kernel::Bounds,
    /// Also write all figures as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write all packets of the client into this file, for Wireshark or tshark, and those of a node that is started
    /// into another: all.pcap and all-node.pcap
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Where to write the HTML report
    #[arg(long, value_name = "FILE", default_value = "remora-report.html")]
    pub html: PathBuf,
    /// Write no HTML report
    #[arg(long, conflicts_with = "html")]
    pub no_html: bool,
}

/// Options of `remora node`.
#[derive(Debug, clap::Args)]
pub struct NodeArgs {
    /// The address to listen at, as clients reach it; on one machine each node takes its own of 127.0.0.0/8
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub listen: IpAddr,
    /// Memory that clients may allocate, all together, such as 512M or 16G
    #[arg(long, value_name = "SIZE", default_value = "16G", value_parser = size)]
    pub memory: u64,
    /// Keep kernels that clients want kept in this directory, and deploy them at the next start
    #[arg(long, value_name = "DIR")]
    pub kernels: Option<PathBuf>,
    /// Use packet and raw sockets, which see and check whole IPv4 packets, and need CAP_NET_RAW
    #[arg(long)]
    pub packet: bool,
    /// Write all packets into this file, for Wireshark or tshark
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// End when standard input ends: for a node that is a child process
    #[arg(long, hide = true)]
    pub stop_with_stdin: bool,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// The NIC's verbs over UDP and shared memory beside raw probes of the same paths
    Nic(BenchNic),
    /// GETs a second of one core by the number in flight, beside a plain loop
    Kernel(BenchKernel),
    /// Kernels as WebAssembly beside native ones, and what a hostile one costs its neighbours
    Wasm(crate::bench_wasm::BenchWasm),
    /// The event core of the modelled world beside a binary heap and SimGrid
    Model(crate::bench_model::BenchModel),
    /// Shuffling, sketches, checksums and compression of streams beside plain WRITEs of the same data
    Stream(crate::bench_stream::BenchStream),
    /// The replicated store beside etcd and Redis
    Minos(Box<crate::bench_minos::BenchMinos>),
}

/// Options of `remora bench nic`.
#[derive(Debug, clap::Args)]
pub struct BenchNic {
    /// Also write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Options of `remora bench kernel`.
#[derive(Debug, clap::Args)]
pub struct BenchKernel {
    /// Size of the hash table
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    pub table: u64,
    /// Rounds, of which the best counts: other work on the machine only ever slows one down
    #[arg(long, value_name = "N", default_value = "8", value_parser = up_to(1..=1000))]
    pub rounds: u32,
    /// Seed of the table and of the keys
    #[arg(long, value_name = "N", default_value = "42")]
    pub seed: u64,
    /// Also write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// A link by which a node is reached, by its name.
pub(crate) fn link() -> impl TypedValueParser<Value = LinkKind> {
    one_of(LinkKind::ALL.map(|kind| (kind.name(), kind.about())))
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

/// A number in a range.
pub(crate) fn up_to(range: std::ops::RangeInclusive<i64>) -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(range)
}

/// An address that one node has.
pub fn address(text: &str) -> Result<IpAddr, String> {
    if text.parse::<std::net::SocketAddr>().is_ok() {
        return Err("give the address without a port: RoCE v2 always has port 4791".into());
    }
    let address: IpAddr = text.parse().map_err(|_| "that is no IP address, such as 127.0.0.2".to_string())?;
    if address.is_unspecified() || address.is_multicast() {
        return Err("give the address of one interface, by which the other side reaches it".into());
    }
    Ok(address)
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let what = "give seconds from 0.001 to 60";
    let seconds: f64 = text.parse().map_err(|_| what.to_string())?;
    if (0.001..=60.0).contains(&seconds) { Ok(Duration::from_secs_f64(seconds)) } else { Err(what.into()) }
}

/// Bytes, with K, M, G or T for powers of 1024.
pub fn size(text: &str) -> Result<u64, String> {
    let what = "give bytes, or a number with K, M, G or T, such as 512M";
    let digits = text.trim_end_matches(['K', 'M', 'G', 'T']);
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(what.into()),
    };
    let number: u64 = digits.parse().map_err(|_| what.to_string())?;
    let bytes = number.checked_mul(1 << shift).filter(|&bytes| bytes < 1 << 47);
    bytes.filter(|&bytes| bytes >= 1 << 20).ok_or_else(|| "give at least 1M and less than 128T".into())
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
        assert_eq!(size("512M"), Ok(512 << 20));
        assert_eq!(size("2097152"), Ok(2 << 20));
        for bad in ["", "M", "12Q", "1KK", "9999999T", "12K", "-1"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert_eq!(seconds("0.14"), Ok(Duration::from_millis(140)));
        assert!(["0", "nan", "inf", "-1", "61", "x"].iter().all(|bad| seconds(bad).is_err()));
        assert_eq!(address("127.0.0.2"), Ok([127, 0, 0, 2].into()));
        assert!(address("127.0.0.2:4791").unwrap_err().contains("without a port"));
        assert!(["0.0.0.0", "224.0.0.1", "localhost", ""].iter().all(|bad| address(bad).is_err()));
    }
}

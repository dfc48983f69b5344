//! `remora rack`: the daemon of a rack, programs whose connections pass through its memory, and the gate to another rack.

use std::env;
use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use remora_real::{Gate, GateFigures, RackConfig, RackDaemon, TrunkConfig};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::exec::program::{self, CLibrary};
use crate::output::print;
use crate::progress::{detail, is_quiet, stop_flag};
use crate::quantity::{megabytes, up_to};
use crate::{Failure, preload};

/// Options of `remora rack`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Rack {
    /// What to do [default: run the rack's daemon until SIGINT or SIGTERM]
    #[command(subcommand)]
    pub what: Option<What>,
    /// Memory for connections, all together; each has 1 MB
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = megabytes)]
    pub memory: u64,
    /// End when no program has been connected for this many seconds
    #[arg(long, value_name = "S", hide = true)]
    pub while_used: Option<u64>,
    #[command(flatten)]
    pub other: OtherRack,
}

/// The way to another rack.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct OtherRack {
    /// Another rack, by every NIC: an address of this host and the one of the other that it reaches, in the same order there
    #[arg(long, value_name = "OWN=OTHER,...", value_delimiter = ',', value_parser = way, requires = "secret")]
    pub to: Vec<(IpAddr, IpAddr)>,
    /// A file that both racks have and nobody else: 16 bytes at least that nobody can guess
    #[arg(long, value_name = "FILE", requires = "to")]
    pub secret: Option<PathBuf>,
}

/// A command of `remora rack`.
#[derive(Debug, clap::Subcommand)]
pub enum What {
    /// Run a program whose TCP connections to other programs of the rack pass through shared memory
    #[command(after_help = EXEC_EXAMPLES)]
    Exec(Exec),
    /// The gate to another rack, as `remora rack --to` starts it
    #[command(hide = true)]
    Gate(OtherRack),
}

/// Options of `remora rack exec`.
#[derive(Debug, clap::Args)]
pub struct Exec {
    /// How long a thread looks for what is about to come before it sleeps, in microseconds; 0 never looks [default: 50]
    #[arg(long, value_name = "US", value_parser = up_to::<u32>(0..=1_000_000_000))]
    pub spin: Option<u32>,
    /// Calls on a connection after which it is brought into the rack [default: 8]
    #[arg(long, value_name = "N", value_parser = up_to::<u32>(0..=i64::from(u32::MAX)))]
    pub after: Option<u32>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  remora rack exec -- redis-server               in one terminal, and in another
  remora rack exec -- redis-cli                  the two talk through shared memory
  remora rack --memory 16G                       run the daemon by hand, with more memory

Two hosts, each with two NICs, whose connections are to go by both of them:
  head -c 32 /dev/urandom >rack.secret; chmod 600 rack.secret         and a copy on the other host
  remora rack --to 10.1.0.1=10.1.0.2,10.2.0.1=10.2.0.2 --secret rack.secret          on the first
  remora rack --to 10.1.0.2=10.1.0.1,10.2.0.2=10.2.0.1 --secret rack.secret          on the second
Programs run by `remora rack exec` on one host then reach those on the other at any of its addresses.";

const EXEC_EXAMPLES: &str = "\
Examples:
  remora rack exec -- redis-server               in one terminal, and in another
  remora rack exec -- redis-benchmark -t get -n 100000
  remora rack exec -- iperf3 -s
  remora rack exec --spin 0 -- python3 train.py  never spin: where there are more busy processes than cores

A rack is the processes of one user in one network namespace that are run so; the first starts its daemon, which ends
by itself. Connections to others are the kernel's, as are all that are quiet.";

/// Seconds that a daemon stays that was started for a program, once nobody is there.
const LINGER: u64 = 10;
/// How long to wait for a daemon that was just started.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs the daemon, or a program.
pub fn run(rack: &Rack) -> Result<(), Failure> {
    match &rack.what {
        Some(What::Exec(exec)) => become_program(exec),
        Some(What::Gate(other)) => gate(other),
        None => serve(rack),
    }
}

fn way(text: &str) -> Result<(IpAddr, IpAddr), String> {
    let address = |text: &str| text.parse::<IpAddr>().map_err(|_| format!("`{text}` is no IP address"));
    let (own, other) = text.split_once('=').ok_or("it is OWN=OTHER, two IP addresses")?;
    let (own, other) = (address(own)?, address(other)?);
    match own == other || own.is_ipv4() != other.is_ipv4() {
        true => Err("two different addresses of one kind are wanted".into()),
        false => Ok((own, other)),
    }
}

/// Bytes of a secret at least.
const SECRET: usize = 16;

impl OtherRack {
    fn config(&self) -> Result<TrunkConfig, Failure> {
        let path = self.secret.as_ref().ok_or_else(|| Failure::Usage("--to needs --secret".into()))?;
        let shown = path.display();
        let wrong = |why: String| Failure::Failed(format!("{shown}: {why}"));
        let open = std::fs::metadata(path).map_err(|e| wrong(e.to_string()))?.permissions().mode() & 0o077 != 0;
        if open {
            return Err(wrong(format!("others may read it, who are not to know it: chmod 600 {shown}")));
        }
        let bytes = std::fs::read(path).map_err(|e| wrong(e.to_string()))?;
        if bytes.len() < SECRET {
            let have = bytes.len();
            return Err(wrong(format!("{have} bytes are no secret: head -c 32 /dev/urandom >{shown}, on one host")));
        }
        let mut addresses: Vec<IpAddr> = self.to.iter().flat_map(|(own, other)| [*own, *other]).collect();
        addresses.sort_unstable();
        if addresses.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Failure::Usage("--to names an address twice".into()));
        }
        // Both ends see the same two addresses: the lower one calls.
        let calls = self.to.first().is_some_and(|(own, other)| own < other);
        Ok(TrunkConfig::new(self.to.clone(), calls, &bytes))
    }
}

/// The gate, until SIGINT or SIGTERM, or until the daemon ends that has started it.
fn gate(other: &OtherRack) -> Result<(), Failure> {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    let failed = |e: &dyn std::fmt::Display| Failure::Failed(format!("the gate to the other rack: {e}"));
    let mut gate = Gate::new(other.config()?).map_err(|e| failed(&e))?;
    let stop = stop_flag();
    let mut said = GateFigures::default();
    while !stop.load(Ordering::Relaxed) {
        gate.turn(Duration::from_millis(100)).map_err(|e| failed(&e))?;
        let figures = gate.figures();
        if figures.nics_up != said.nics_up && !is_quiet() {
            print(&format!("{} of {} NICs reach the other rack\n", figures.nics_up, other.to.len()))?;
        }
        if (figures.connections, figures.made) != (said.connections, said.made) {
            detail(|| format!("{} connections to the other rack, {} so far", figures.connections, figures.made));
        }
        said = figures;
    }
    if !is_quiet() && said.made > 0 {
        let mut lines = format!("{} connections went by the gate. Brought over:\n", said.made);
        for ((own, to), bytes) in other.to.iter().zip(&said.carried) {
            lines += &format!("  {own} to {to}  {:.1} MB\n", *bytes as f64 / 1e6);
        }
        print(&lines)?;
    }
    Ok(())
}

/// The gate in a process of its own, which is a program of this rack.
fn start_gate(other: &OtherRack) -> Result<Child, Failure> {
    let cannot = |e: io::Error| Failure::Failed(format!("cannot start the gate to the other rack: {e}"));
    let library = preload::SOCKETS.find(None)?;
    let mut command = Command::new(env::current_exe().map_err(cannot)?);
    if is_quiet() {
        command.arg("--quiet");
    }
    let ways: Vec<String> = other.to.iter().map(|(own, to)| format!("{own}={to}")).collect();
    command.args(["rack", "gate", "--to", &ways.join(",")]).arg("--secret").args(&other.secret);
    command.env("LD_PRELOAD", preload::list(library.as_os_str(), env::var_os("LD_PRELOAD")));
    command.stdin(Stdio::null()).spawn().map_err(cannot)
}

/// As many descriptors as this process may have: each process of the rack takes one, and each pair of them.
fn take_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // With fewer there is less room, and no more wrong.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

fn serve(rack: &Rack) -> Result<(), Failure> {
    take_descriptors();
    let config = RackConfig { memory: rack.memory };
    let mut daemon = RackDaemon::bind(config).map_err(|e| match e.kind() {
        io::ErrorKind::AddrInUse => Failure::Failed("this user's rack has its daemon already".into()),
        _ => Failure::Failed(format!("the rack's daemon cannot listen: {e}")),
    })?;
    let stop = stop_flag();
    let mut gate = match rack.other.to.is_empty() {
        true => None,
        false => {
            // Said here, where it is to be read, rather than by a child.
            rack.other.config()?;
            Some(Running(start_gate(&rack.other)?))
        }
    };
    if rack.while_used.is_none() && !is_quiet() {
        print("The rack is open. Run programs in it: remora rack exec -- COMMAND\n")?;
    }
    let mut alone = Instant::now();
    let mut said = daemon.figures();
    while !stop.load(Ordering::Relaxed) {
        daemon
            .turn(Some(Duration::from_millis(500)))
            .map_err(|e| Failure::Failed(format!("the rack's daemon: {e}")))?;
        let figures = daemon.figures();
        if figures != said {
            said = figures;
            detail(|| {
                format!(
                    "{} processes, {} connections in shared memory, {} so far",
                    figures.processes, figures.connections, figures.met
                )
            });
        }
        if !daemon.is_alone() {
            alone = Instant::now();
        }
        if let Some(gate) = &mut gate
            && gate.0.try_wait().is_ok_and(|ended| ended.is_some())
        {
            return Err(Failure::Failed("the gate to the other rack has ended; what it said stands above".into()));
        }
        if rack.while_used.is_some_and(|seconds| alone.elapsed() > Duration::from_secs(seconds)) {
            break;
        }
    }
    Ok(())
}

/// A process that ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(id) = rustix::process::Pid::from_raw(self.0.id() as i32) {
            // So that it can say what it has done.
            let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

fn become_program(exec: &Exec) -> Result<(), Failure> {
    let library = preload::SOCKETS.find(None)?;
    let (name, rest) = exec.command.split_first().ok_or_else(|| Failure::Usage("no command is given".into()))?;
    // What takes no library runs all the same, with the kernel's connections: only what is not there cannot.
    let of = program::check(&exec.command).or_else(|why| match program::is_missing(&why) {
        true => Err(Failure::Failed(why)),
        false => {
            detail(|| why);
            Ok(None)
        }
    })?;
    start_daemon();
    let mut command = Command::new(name);
    command.args(rest);
    if of == Some(CLibrary::Musl) {
        detail(|| format!("the C library of {} is musl, that of the sockets library glibc", name.to_string_lossy()));
    } else {
        command.env("LD_PRELOAD", preload::list(library.as_os_str(), env::var_os("LD_PRELOAD")));
    }
    if let Some(spin) = exec.spin {
        command.env("REMORA_RACK_SPIN", spin.to_string());
    }
    if let Some(after) = exec.after {
        command.env("REMORA_RACK_AFTER", after.to_string());
    }
    let error = command.exec();
    Err(Failure::Failed(format!("cannot run {}: {error}", name.to_string_lossy())))
}

/// Sees to it that there is a daemon. Without one the program runs on the kernel's connections.
fn start_daemon() {
    if RackDaemon::is_there() {
        return;
    }
    let Ok(exe) = env::current_exe() else { return };
    let mut command = Command::new(exe);
    command.args(["--quiet", "rack", "--while-used", &LINGER.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/").process_group(0);
    command.env_remove("LD_PRELOAD");
    if command.spawn().is_err() {
        return;
    }
    let start = Instant::now();
    while !RackDaemon::is_there() && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(2));
    }
}

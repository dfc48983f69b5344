//! `remora rack`: the daemon of a rack, and programs whose connections pass through its memory.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use remora_real::{RackConfig, RackDaemon};

use crate::exec::program::{self, CLibrary};
use crate::output::print;
use crate::progress::{detail, is_quiet, stop_flag};
use crate::quantity::megabytes;
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
}

/// A command of `remora rack`.
#[derive(Debug, clap::Subcommand)]
pub enum What {
    /// Run a program whose TCP connections to other programs of the rack pass through shared memory
    #[command(after_help = EXEC_EXAMPLES)]
    Exec(Exec),
}

/// Options of `remora rack exec`.
#[derive(Debug, clap::Args)]
pub struct Exec {
    /// How long a thread looks for what is about to come before it sleeps, in microseconds; 0 never looks [default: 50]
    #[arg(long, value_name = "US")]
    pub spin: Option<u32>,
    /// Calls on a connection after which it is brought into the rack [default: 8]
    #[arg(long, value_name = "N")]
    pub after: Option<u32>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  remora rack exec -- redis-server               in one terminal, and in another
  remora rack exec -- redis-cli                  the two talk through shared memory
  remora rack --memory 16G                       run the daemon by hand, with more memory";

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
        None => serve(rack),
    }
}

fn serve(rack: &Rack) -> Result<(), Failure> {
    let config = RackConfig { memory: rack.memory };
    let mut daemon = RackDaemon::bind(config).map_err(|e| match e.kind() {
        io::ErrorKind::AddrInUse => Failure::Failed("this user's rack has its daemon already".into()),
        _ => Failure::Failed(format!("the rack's daemon cannot listen: {e}")),
    })?;
    let stop = stop_flag();
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
        if rack.while_used.is_some_and(|seconds| alone.elapsed() > Duration::from_secs(seconds)) {
            break;
        }
    }
    Ok(())
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

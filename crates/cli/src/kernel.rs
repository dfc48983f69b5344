//! `remora kernel`: kernels that users bring.

use std::fmt::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use remora_kernel::{Limits, Placement, Status};
use remora_real::{Client, ClientConfig, DeployToken, RemoteRegion, at_local};
use remora_study::format::{bytes as size, count};
use remora_study::kernel_calls::KernelData;
use remora_wasm::{DeployedModule, Isolation, ModuleLimits};

use crate::Failure;
use crate::args;
use crate::kernel_build::{self, Build};
use crate::kernel_params::{self, HELP, Piece};
use crate::output::{Json, print, to_stdout};
use crate::quantity::{self, up_to};

const BUILD_EXAMPLES: &str = "\
Examples:
  remora kernel build --template c > sum.c && remora kernel build sum.c
  remora kernel build kernels/khop.wat -o /tmp/khop.wasm";

const DEPLOY_EXAMPLES: &str = "\
Examples:
  remora kernel deploy kernels/topk.wasm --node 127.0.0.9
  remora kernel deploy sum.c --name sum --node 10.0.0.1 --fuel 20000 --keep";

const LIST_EXAMPLES: &str = "\
Examples:
  remora kernel list --node 127.0.0.9
  remora kernel list --node 10.0.0.1 --json";

const CALL_EXAMPLES: &str = "\
Examples:
  remora kernel call sum --node 127.0.0.9 --data words.bin --args key,u32:512,va
  remora kernel call sum --place client --file sum.c --node 127.0.0.9 --data words.bin --args key,u32:512,va
  remora kernel call topk --node 10.0.0.1 --place host --args hex:00ff,u64:7 --raw > reply.bin";

const REMOVE_EXAMPLES: &str = "\
Examples:
  remora kernel remove sum --node 127.0.0.9";

/// What to do with kernels.
#[derive(Debug, Subcommand)]
pub enum Kernel {
    /// Make a module from a source in Rust, C or WebAssembly text
    #[command(after_help = BUILD_EXAMPLES)]
    Build(Build),
    /// Deploy a module at a node, or replace the one of that name; calls under way go on with the old one
    #[command(after_help = DEPLOY_EXAMPLES)]
    Deploy(Deploy),
    /// List the modules that are deployed at a node
    #[command(after_help = LIST_EXAMPLES)]
    List(List),
    /// Run a module here, once, and tell what it does: every access, what it logs, the fuel used, and where it failed
    #[command(after_help = format!("{HELP}\n\n{}", crate::kernel_run::EXAMPLES))]
    Run(crate::kernel_run::KernelRun),
    /// Call a module and print its reply
    #[command(after_help = format!("{HELP}\n\n{CALL_EXAMPLES}"))]
    Call(CallArgs),
    /// Remove a module from a node
    #[command(after_help = REMOVE_EXAMPLES)]
    Remove(Remove),
}

/// The node.
#[derive(Debug, clap::Args)]
pub struct At {
    /// The node, started with `remora node`
    #[arg(long, value_name = "ADDR", value_parser = args::address)]
    pub node: IpAddr,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: what both links and the way between them carry]
    #[arg(long, value_name = "BYTES", value_parser = args::mtu)]
    pub mtu: Option<u32>,
}

/// What a call may use up.
#[derive(Debug, clap::Args)]
pub struct Bounds {
    /// WebAssembly instructions of one call, about
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = quantity::count)]
    pub fuel: u64,
    /// The module's own memory, such as 256K or 4M
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = quantity::size)]
    pub module_memory: u64,
    /// Accesses of the node's memory by one call
    #[arg(long, value_name = "N", default_value = "4096", value_parser = up_to::<u32>(0..=1_000_000))]
    pub accesses: u32,
    /// Bytes that one call may move
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = quantity::size)]
    pub traffic: u64,
    /// Start each call with fresh memory, so that no call sees anything of another
    #[arg(long)]
    pub fresh: bool,
}

impl Bounds {
    /// As the node takes them.
    pub fn limits(&self) -> ModuleLimits {
        let access = Limits { steps: self.accesses, bytes: self.traffic };
        ModuleLimits { fuel: self.fuel, memory: usize::try_from(self.module_memory).unwrap_or(usize::MAX), access }
    }

    /// As the node takes it.
    pub fn isolation(&self) -> Isolation {
        if self.fresh { Isolation::Fresh } else { Isolation::Reused }
    }
}

/// Options of `remora kernel deploy`.
#[derive(Debug, clap::Args)]
pub struct Deploy {
    /// The module, or its source
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Its name [default: the file's, without the ending]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Deploy it again when the node starts again: the node must have been started with --kernels
    #[arg(long)]
    pub keep: bool,
    #[command(flatten)]
    pub deployer: Deployer,
    #[command(flatten)]
    pub bounds: Bounds,
    #[command(flatten)]
    pub at: At,
}

/// Options of `remora kernel list`.
#[derive(Debug, clap::Args)]
pub struct List {
    #[command(flatten)]
    pub at: At,
    /// Figures for programs.
    #[command(flatten)]
    pub json: Json,
}

/// Options of `remora kernel call`.
#[derive(Debug, clap::Args)]
pub struct CallArgs {
    /// The kernel's name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Its parameters: see below
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub args: Vec<Piece>,
    /// The kernel's module or source, for --place client: a node does not give it out
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// A file that is put into the node's memory for the call
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// A file that is sent behind the parameters as the call's payload; then the kernel runs on the NIC
    #[arg(long, value_name = "FILE")]
    pub payload: Option<PathBuf>,
    /// Where it runs: on the node, or here with one-sided verbs, within the limits that it was deployed with
    #[arg(long, value_name = "PLACE", default_value = "nic", value_parser = args::placement())]
    pub place: Placement,
    /// Print the reply as it is, and not as hexadecimal words
    #[arg(long)]
    pub raw: bool,
    #[command(flatten)]
    pub at: At,
}

/// Options of `remora kernel remove`.
#[derive(Debug, clap::Args)]
pub struct Remove {
    /// The kernel's name
    #[arg(value_name = "NAME")]
    pub name: String,
    #[command(flatten)]
    pub deployer: Deployer,
    #[command(flatten)]
    pub at: At,
}

/// Who deploys or removes a kernel.
#[derive(Debug, clap::Args)]
pub struct Deployer {
    /// The token of a node that was started with --deployers token:FILE
    #[arg(long, value_name = "FILE", value_parser = args::token)]
    pub token: Option<DeployToken>,
}

/// Does it.
pub fn run(what: &Kernel) -> Result<(), Failure> {
    match what {
        Kernel::Build(args) => kernel_build::run(args),
        Kernel::Deploy(args) => deploy(args),
        Kernel::List(args) => list(args),
        Kernel::Run(args) => crate::kernel_run::run(args),
        Kernel::Call(args) => call(args),
        Kernel::Remove(args) => {
            connect_with(&args.at, &args.deployer)?.remove_kernel(&args.name)?;
            Ok(())
        }
    }
}

/// A connection over the best link.
fn connect(at: &At) -> Result<Client, Failure> {
    connect_with(at, &Deployer { token: None })
}

fn connect_with(&At { node, mtu }: &At, deployer: &Deployer) -> Result<Client, Failure> {
    let deploy_token = deployer.token.clone();
    let config = |local| ClientConfig { deploy_token: deploy_token.clone(), mtu, ..ClientConfig::new(node, local) };
    Ok(at_local(node, |local| Client::connect(config(local)))?)
}

/// The name that a file's kernel has if none is given.
pub fn name_of(file: &Path) -> String {
    file.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn deploy(args: &Deploy) -> Result<(), Failure> {
    let module = kernel_build::load(&args.file)?;
    let name = args.name.clone().unwrap_or_else(|| name_of(&args.file));
    let mut client = connect_with(&args.at, &args.deployer)?;
    let entry = client.deploy_kernel(&name, &module, args.bounds.limits(), args.bounds.isolation(), args.keep)?;
    let line = format!("{name}: op-code {:#x}, version {}, {} bytes\n", entry.op, entry.version, entry.bytes);
    print(&line)?;
    Ok(())
}

fn list(args: &List) -> Result<(), Failure> {
    let entries = connect(&args.at)?.list_kernels()?;
    args.json.show(&table(&entries), || json(&entries))
}

fn table(entries: &[DeployedModule]) -> String {
    if entries.is_empty() {
        return "no kernels are deployed\n".into();
    }
    let mut text = format!(
        "{:<18} {:>6} {:>4} {:>7} {:>10} {:>7} {:>8} {:>7} {}\n",
        "name", "op", "no.", "size", "fuel", "memory", "accesses", "traffic", "state"
    );
    for DeployedModule { op, name, version, bytes, limits, isolation } in entries {
        let state = if *isolation == Isolation::Fresh { "fresh" } else { "stays" };
        // A long name has a line of its own.
        let name = if name.chars().count() > 18 { format!("{name}\n{:<18}", "") } else { name.clone() };
        let ModuleLimits { fuel, memory, access } = limits;
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{name:<18} {op:>#6x} {version:>4} {:>7} {:>10} {:>7} {:>8} {:>7} {state}",
            size(*bytes as u64),
            count(*fuel),
            size(*memory as u64),
            count(access.steps.into()),
            size(access.bytes)
        );
    }
    text
}

fn json(entries: &[DeployedModule]) -> serde_json::Value {
    let entries: Vec<serde_json::Value> = entries
        .iter()
        .map(|entry| {
            serde_json::json!({
                "name": entry.name, "op": entry.op, "version": entry.version, "bytes": entry.bytes,
                "fuel": entry.limits.fuel, "memory": entry.limits.memory, "accesses": entry.limits.access.steps,
                "traffic": entry.limits.access.bytes, "fresh": entry.isolation == Isolation::Fresh,
            })
        })
        .collect();
    serde_json::json!({ "format": "remora-kernel-list/1", "kernels": entries })
}

fn call(args: &CallArgs) -> Result<(), Failure> {
    if args.payload.is_some() && args.place == Placement::Host {
        return Err(Failure::Usage("a payload goes to the node's NIC: leave out --place host, or --payload".into()));
    }
    let data = args.data.as_deref().map(kernel_build::read).transpose()?;
    let payload = args.payload.as_deref().map(kernel_build::read).transpose()?;
    let mut client = connect(&args.at)?;
    let entry = client.list_kernels()?.into_iter().find(|entry| entry.name == args.name);
    let entry = entry
        .ok_or_else(|| Failure::Failed(format!("the node has no kernel {:?}: see `remora kernel list`", args.name)))?;
    if args.place == Placement::Client {
        let file = args.file.as_deref().ok_or_else(|| {
            Failure::Usage("a kernel that runs at the client must be there: name its module or source by --file".into())
        })?;
        let (module, limits, isolation) = (kernel_build::load(file)?, entry.limits, entry.isolation);
        let local = client.local_kernels().deploy_at(Some(entry.op), &entry.name, &module, limits, isolation);
        local.map_err(|e| Failure::Failed(format!("{}: {e}", file.display())))?;
    }
    let place = put(&mut client, data.as_deref())?;
    let mut params = Vec::new();
    kernel_params::encode(&args.args, place, 0, &mut params);
    let (status, reply) = match (&payload, args.place) {
        (Some(_), Placement::Client) => {
            return Err(Failure::Usage("a payload goes to the node: leave out --place client, or --payload".into()));
        }
        (Some(payload), _) => client.call_stream(entry.op, &params, payload)?,
        (None, place) => client.call(place, entry.op, &params)?,
    };
    if status != Status::Ok {
        return Err(Failure::Failed(format!("the kernel ended with {}", explain(status, &args.args))));
    }
    if args.raw {
        return to_stdout(&reply);
    }
    let text = words(&reply);
    print(&text)?;
    Ok(())
}

/// Puts the data into memory of the node, which has it until the client leaves.
pub fn put(client: &mut Client, data: Option<&[u8]>) -> Result<KernelData, Failure> {
    let Some(data) = data else { return Ok(KernelData::default()) };
    let region: RemoteRegion = client.alloc((data.len() as u64).max(8))?;
    client.write(&region, 0, data)?;
    Ok(KernelData { key: region.key, va: region.va, len: data.len() as u64 })
}

/// A status as users read it, of a call with these parameters, and where to look further.
pub fn explain(status: Status, args: &[Piece]) -> String {
    let hint = match status {
        Status::Trapped | Status::AccessDenied => "; `remora kernel run FILE --trace` says where",
        _ => "",
    };
    reason(status, args) + hint
}

/// A status as users read it, of a call with these parameters.
pub fn reason(status: Status, args: &[Piece]) -> String {
    match status {
        Status::Other(code) => format!("its own status {code}"),
        Status::BadParams => {
            let given = if args.is_empty() { "none were given: --args" } else { "--args" };
            format!("BadParams: it does not understand its parameters ({given})")
        }
        Status::StepLimit => "StepLimit: it ran out of fuel or accesses (--fuel, --accesses)".into(),
        Status::ByteLimit => "ByteLimit: it moved as many bytes as it may (--traffic)".into(),
        Status::Trapped => "Trapped: it failed".into(),
        Status::Overdue => "Overdue: it took longer than the node lets a call take (remora node --deadline)".into(),
        Status::AccessDenied => "AccessDenied: it touched memory that its caller may not".into(),
        other => format!("{other:?}"),
    }
}

/// Words of 8 bytes, little-endian, in hexadecimal and decimal; the rest as bytes.
pub fn words(reply: &[u8]) -> String {
    let (words, rest) = reply.as_chunks::<8>();
    let mut text = String::new();
    for word in words {
        let word = u64::from_le_bytes(*word);
        let _ = writeln!(text, "{word:#018x} {word}");
    }
    if !rest.is_empty() {
        let bytes: Vec<String> = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        let _ = writeln!(text, "{}", bytes.join(" "));
    }
    text
}

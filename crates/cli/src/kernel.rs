//! `remora kernel`: kernels that users bring.

use std::fmt::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use remora_kernel::{Limits, Placement, Status};
use remora_real::{Client, ClientConfig, RemoteRegion, at_local};
use remora_study::kernel_calls::KernelData;
use remora_wasm::{DeployedModule, Isolation, ModuleLimits};

use crate::args;

use crate::kernel_build::{self, Build};
use crate::kernel_params::{self, HELP, Piece};
use crate::{Failure, print};

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
}

/// What a call may use up.
#[derive(Debug, clap::Args)]
pub struct Bounds {
    /// WebAssembly instructions of one call, about
    #[arg(long, value_name = "N", default_value = "1000000")]
    pub fuel: u64,
    /// The module's own memory, such as 256K or 4M
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = args::size)]
    pub module_memory: u64,
    /// Accesses of the node's memory by one call
    #[arg(long, value_name = "N", default_value = "4096")]
    pub accesses: u32,
    /// Bytes that one call may move
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = args::size)]
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
    pub bounds: Bounds,
    #[command(flatten)]
    pub at: At,
}

/// Options of `remora kernel list`.
#[derive(Debug, clap::Args)]
pub struct List {
    #[command(flatten)]
    pub at: At,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
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
    /// A file that is put into the node's memory for the call
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// A file that is sent behind the parameters as the call's payload; then the kernel runs on the NIC
    #[arg(long, value_name = "FILE")]
    pub payload: Option<PathBuf>,
    /// Where it runs on the node
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
    pub at: At,
}

/// Does it.
pub fn run(what: &Kernel) -> Result<(), Failure> {
    match what {
        Kernel::Build(args) => kernel_build::run(args),
        Kernel::Deploy(args) => deploy(args),
        Kernel::List(args) => list(args),
        Kernel::Call(args) => call(args),
        Kernel::Remove(args) => {
            connect(args.at.node)?.remove_kernel(&args.name)?;
            Ok(())
        }
    }
}

/// A connection over the best link.
pub fn connect(node: IpAddr) -> Result<Client, Failure> {
    Ok(at_local(node, |local| Client::connect(ClientConfig::new(node, local)))?)
}

/// The name that a file's kernel has if none is given.
pub fn name_of(file: &Path) -> String {
    file.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn deploy(args: &Deploy) -> Result<(), Failure> {
    let module = kernel_build::load(&args.file)?;
    let name = args.name.clone().unwrap_or_else(|| name_of(&args.file));
    let mut client = connect(args.at.node)?;
    let entry = client.deploy_kernel(&name, &module, args.bounds.limits(), args.bounds.isolation(), args.keep)?;
    let line = format!("{name}: op-code {:#x}, version {}, {} bytes\n", entry.op, entry.version, entry.bytes);
    print(&line, &line);
    Ok(())
}

fn list(args: &List) -> Result<(), Failure> {
    let entries = connect(args.at.node)?.list_kernels()?;
    let text = if args.json { json(&entries) } else { table(&entries) };
    print(&text, &text);
    Ok(())
}

fn table(entries: &[DeployedModule]) -> String {
    if entries.is_empty() {
        return "no kernels are deployed\n".into();
    }
    let mut text = format!(
        "{:<24} {:>7} {:>7} {:>9} {:>11} {:>9} {:>9} {:>10}  {}\n",
        "name", "op-code", "version", "bytes", "fuel", "memory", "accesses", "traffic", "memory is"
    );
    for DeployedModule { op, name, version, bytes, limits, isolation } in entries {
        let kept = if *isolation == Isolation::Fresh { "fresh" } else { "reused" };
        let ModuleLimits { fuel, memory, access } = limits;
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{name:<24} {op:>#7x} {version:>7} {bytes:>9} {fuel:>11} {memory:>9} {:>9} {:>10}  {kept}",
            access.steps, access.bytes
        );
    }
    text
}

fn json(entries: &[DeployedModule]) -> String {
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
    format!("{:#}\n", serde_json::Value::from(entries))
}

fn call(args: &CallArgs) -> Result<(), Failure> {
    let read = |path: &PathBuf| {
        std::fs::read(path).map_err(|e| Failure::Failed(format!("cannot read {}: {e}", path.display())))
    };
    let data = args.data.as_ref().map(read).transpose()?;
    let payload = args.payload.as_ref().map(read).transpose()?;
    let mut client = connect(args.at.node)?;
    let entry = client.list_kernels()?.into_iter().find(|entry| entry.name == args.name);
    let entry = entry
        .ok_or_else(|| Failure::Failed(format!("the node has no kernel {:?}: see `remora kernel list`", args.name)))?;
    let place = put(&mut client, data.as_deref())?;
    let mut params = Vec::new();
    kernel_params::encode(&args.args, place, 0, &mut params);
    let (status, reply) = match (&payload, args.place) {
        (_, Placement::Client) => {
            return Err(Failure::Usage(
                "a call by name runs on the node: --place nic or host; see `remora compare --kernel` for the client"
                    .into(),
            ));
        }
        (Some(payload), _) => client.call_stream(entry.op, &params, payload)?,
        (None, place) => client.call(place, entry.op, &params)?,
    };
    if status != Status::Ok {
        return Err(Failure::Failed(format!("the kernel ended with {}", explain(status))));
    }
    if args.raw {
        use std::io::Write;
        let _ = std::io::stdout().write_all(&reply);
        return Ok(());
    }
    let text = words(&reply);
    print(&text, &text);
    Ok(())
}

/// Puts the data into memory of the node, which has it until the client leaves.
pub fn put(client: &mut Client, data: Option<&[u8]>) -> Result<KernelData, Failure> {
    let Some(data) = data else { return Ok(KernelData::default()) };
    let region: RemoteRegion = client.alloc((data.len() as u64).max(8))?;
    client.write(&region, 0, data)?;
    Ok(KernelData { key: region.key, va: region.va, len: data.len() as u64 })
}

/// A status as users read it.
pub fn explain(status: Status) -> String {
    match status {
        Status::Other(code) => format!("its own status {code}"),
        Status::StepLimit => "StepLimit: it ran out of fuel or accesses (--fuel, --accesses)".into(),
        Status::ByteLimit => "ByteLimit: it moved as many bytes as it may (--traffic)".into(),
        Status::Trapped => "Trapped: it failed".into(),
        other => format!("{other:?}"),
    }
}

/// Words of 8 bytes, little-endian, in hexadecimal and decimal; the rest as bytes.
fn words(reply: &[u8]) -> String {
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

//! `remora kernel run`: a call of a module here, and what it does.

use std::fmt::Write;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;

use remora_kernel::{Call, HostMemory, Limits, Status};
use remora_memory::{Access, Registry};
use remora_study::format::count;
use remora_study::kernel_calls::KernelData;
use remora_wasm::ModuleLimits;
use remora_wasm::trace::{Asked, Site, TraceStep, Traced, Tracer};

use crate::Failure;
use crate::kernel::{Bounds, explain, reason, words};
use crate::kernel_build;
use crate::kernel_params::{Piece, encode};
use crate::output::{print, to_stdout};
use crate::quantity;

pub const EXAMPLES: &str = "\
Examples:
  remora kernel run sum.c --data words.bin --args key,u32:512,va
  remora kernel run sum.c --data words.bin --args key,u32:512,va --trace    every access, and where the fuel went";

/// Bytes that a reply may have.
const REPLY: u32 = 64 << 10;
/// Calls by which it is told what one uses up.
const CALLS: u64 = 8;

/// Options of `remora kernel run`.
#[derive(Debug, clap::Args)]
pub struct KernelRun {
    /// The module, or its source, which is then built with what debuggers need
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Its parameters: see below
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub args: Vec<Piece>,
    /// A file that is the memory which the kernel reaches
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// A file that is the call's payload
    #[arg(long, value_name = "FILE")]
    pub payload: Option<PathBuf>,
    /// The number of the call, by which random parameters are drawn
    #[arg(long, value_name = "N", default_value = "0", value_parser = quantity::count)]
    pub call: u64,
    /// Tell each access and text, with the place in the module, and by place how much fuel was used on the way there
    #[arg(long)]
    pub trace: bool,
    /// Print the reply as it is, and all else to standard error
    #[arg(long)]
    pub raw: bool,
    #[command(flatten)]
    pub bounds: Bounds,
}

/// What calls use up at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Calls that were looked at.
    pub calls: u64,
    /// Fuel of one.
    pub fuel: u64,
    /// Accesses of one.
    pub accesses: u64,
    /// Bytes that one moved.
    pub bytes: u64,
}

impl Profile {
    /// The bound that a call wanted to go beyond, if it did: what it did then is not what it would do.
    pub fn beyond(&self, limits: &ModuleLimits) -> Option<String> {
        let Limits { steps, bytes } = limits.access;
        let accesses = self.accesses > steps.into();
        (accesses || self.bytes > bytes).then(|| match accesses {
            true => format!("accesses beyond {} were refused (--accesses)", count(steps.into())),
            false => format!("accesses beyond {} bytes were refused (--traffic)", count(bytes)),
        })
    }
}

/// What the first calls use up; `None` if they cannot be run here.
pub fn profile(module: &[u8], limits: ModuleLimits, args: &[Piece], data: Option<&[u8]>) -> Option<Profile> {
    let tracer = Tracer::new(module, limits).ok()?;
    let mut most = Profile { calls: CALLS, ..Profile::default() };
    for call in 0..CALLS {
        let traced = one(&tracer, args, data, &[], (call, false)).ok()?;
        most.fuel = most.fuel.max(traced.fuel);
        most.accesses = most.accesses.max(traced.accesses);
        most.bytes = most.bytes.max(traced.bytes);
    }
    Some(most)
}

/// Runs the call of a number, over memory of its own.
fn one(
    tracer: &Tracer,
    args: &[Piece],
    data: Option<&[u8]>,
    payload: &[u8],
    (number, sites): (u64, bool),
) -> Result<Traced, Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure::Failed(format!("memory for the kernel: {e}"));
    let registry = Arc::new(Registry::new(remora_real::entropy()?));
    let pd = registry.alloc_pd();
    let buffer = remora_memory::Buffer::from_boxed(data.unwrap_or_default().to_vec().into());
    let mut place = KernelData::default();
    if let Some(data) = data {
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let region = registry.register(pd, &buffer, 0, data.len(), None, access).map_err(|e| failed(&e))?;
        place = KernelData { key: region.key(), va: region.va(), len: data.len() as u64 };
    }
    let mut call = Call::new(0, &[], REPLY);
    encode(args, place, number, &mut call.params);
    let memory = HostMemory::new(registry, pd, false, Limits::default());
    tracer.run(memory, &mut call, payload, sites).map_err(|e| Failure::Failed(e.to_string()))
}

/// Runs and tells.
pub fn run(args: &KernelRun) -> Result<(), Failure> {
    let module = kernel_build::load_for_debugging(&args.file)?;
    let data = args.data.as_deref().map(kernel_build::read).transpose()?;
    let payload = args.payload.as_deref().map(kernel_build::read).transpose()?.unwrap_or_default();
    let named = |e: &dyn std::fmt::Display| Failure::Failed(format!("{}: {e}", args.file.display()));
    let tracer = Tracer::new(&module, args.bounds.limits()).map_err(|e| named(&e))?;
    let traced = one(&tracer, &args.args, data.as_deref(), &payload, (args.call, args.trace))?;
    let mut text = String::new();
    if args.trace {
        steps(&mut text, &traced);
    } else {
        for TraceStep { asked, .. } in &traced.steps {
            if let Asked::Log(said) = asked {
                let _ = writeln!(text, "log: {said}");
            }
        }
    }
    summary(&mut text, &traced, args.bounds.fuel);
    if args.raw {
        // Nobody need read it.
        let _ = io::stderr().write_all(text.as_bytes());
        to_stdout(&traced.reply)?;
    } else {
        print(&(text + &words(&traced.reply)))?;
    }
    match (traced.status, &traced.trap) {
        (Status::Ok, _) => Ok(()),
        (_, Some((what, sites))) => {
            let at = sites.first().map(|site| format!(" in {}", show(site))).unwrap_or_default();
            Err(Failure::Failed(format!("the kernel failed{at}: {what}")))
        }
        // The trace is where one would look further.
        (status, None) => {
            let why = if args.trace { reason } else { explain };
            Err(Failure::Failed(format!("the kernel ended with {}", why(status, &args.args))))
        }
    }
}

/// A place, as people look for it.
fn show(Site { function, offset, line }: &Site) -> String {
    let line = line.as_ref().map(|line| format!(" ({line})")).unwrap_or_default();
    format!("{function} at {offset:#x}{line}")
}

/// Each step in a line, then where the fuel went.
fn steps(text: &mut String, traced: &Traced) {
    let _ = writeln!(text, "{:>9}  {:<44} what", "fuel", "where");
    for TraceStep { fuel, site, asked, answer } in &traced.steps {
        let what = match asked {
            Asked::Read(key, va, len) => format!("read {len} bytes of {key:#x} at {va:#x}"),
            Asked::Write(key, va, len) => format!("write {len} bytes to {key:#x} at {va:#x}"),
            Asked::CompareSwap(key, va, expect, new) => {
                format!("compare_swap {expect:#x} by {new:#x} in {key:#x} at {va:#x}")
            }
            Asked::FetchAdd(key, va, n) => format!("fetch_add {n} in {key:#x} at {va:#x}"),
            Asked::NextChunk(len) => format!("next_chunk, up to {len} bytes"),
            Asked::Log(said) => format!("log: {said}"),
        };
        let answer = match answer {
            0 => String::new(),
            -1 => " -> -1: access denied".into(),
            -2 => " -> -2: not a multiple of 8".into(),
            -3 => " -> -3: as many accesses as it may (--accesses)".into(),
            -4 => " -> -4: as many bytes as it may (--traffic)".into(),
            n => format!(" -> {n}"),
        };
        let at = site.as_ref().map(show).unwrap_or_default();
        let _ = writeln!(text, "{fuel:>9}  {at:<44} {what}{answer}");
    }
    if traced.left_out > 0 {
        let _ = writeln!(text, "{} more steps are not shown", count(traced.left_out));
    }
    let mut went: Vec<(String, u64, u64)> = Vec::new();
    let mut before = 0;
    let ends = traced.steps.iter().filter_map(|step| Some((show(step.site.as_ref()?), step.fuel)));
    for (at, fuel) in ends.chain([("the end".to_string(), traced.fuel)]) {
        let used = fuel.saturating_sub(std::mem::replace(&mut before, fuel));
        match went.iter_mut().find(|(name, ..)| *name == at) {
            Some((_, sum, times)) => (*sum, *times) = (*sum + used, *times + 1),
            None => went.push((at, used, 1)),
        }
    }
    went.sort_by_key(|&(_, used, _)| std::cmp::Reverse(used));
    let _ = writeln!(text, "\n{:>9} {:>7}  on the way from the step before to", "fuel", "times");
    for (at, used, times) in went {
        let _ = writeln!(text, "{used:>9} {times:>7}  {at}");
    }
    text.push('\n');
}

fn summary(text: &mut String, traced: &Traced, all: u64) {
    let Traced { status, reply, fuel, accesses, bytes, trap, .. } = traced;
    let status = match status {
        Status::Other(code) => format!("status {code}"),
        known => format!("{known:?}"),
    };
    let _ = writeln!(
        text,
        "{status}: fuel {} of {}, {} accesses of {} bytes in all, a reply of {} bytes",
        count(*fuel),
        count(all),
        count(*accesses),
        count(*bytes),
        reply.len()
    );
    if let Some((what, sites)) = trap {
        let _ = writeln!(text, "{what}");
        for site in sites {
            let _ = writeln!(text, "  in {}", show(site));
        }
    }
}

//! Compiling modules: in a process of its own, `remora-compiler`, so that a module that takes for ever, or all memory,
//! or finds a fault of the compiler, harms nobody else; and so that who only runs modules carries no compiler.
//!
//! The module goes to the process's standard input, what is made of it comes from its standard output. What is wrong
//! with a module comes from standard error, with a status that is not 0.

use std::borrow::Cow;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use crate::limits::ModuleError;

/// Processor time that one compilation may take.
pub const MAX_CPU: Duration = Duration::from_secs(10);
/// Bytes of memory that one compilation may take.
pub const MAX_MEMORY: u64 = 512 << 20;
/// Bytes of a module or its text.
pub const MAX_SOURCE: usize = 32 << 20;
/// Bytes of what is made of it.
pub const MAX_MADE: usize = 256 << 20;
/// Bytes that are told of what is wrong with it.
const MAX_SAID: usize = 2000;
/// Where the compiler is, if not beside the program that runs and not on the path.
const PLACE: &str = "REMORA_COMPILER";

/// What the compiler is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Machine code for instances of a pool.
    Module,
    /// Machine code for instances that take the memory that they need, and reserve none.
    PlainModule,
    /// The binary module of a text; of a binary module itself.
    Text,
    /// The source lines of places in a binary module, if it says: a line for each, empty for what it does not.
    Lines,
}

impl Job {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Module, Self::PlainModule, Self::Text, Self::Lines];

    /// Its name on the compiler's command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Module => "module",
            Self::PlainModule => "plain-module",
            Self::Text => "text",
            Self::Lines => "lines",
        }
    }
}

/// The binary module that a text in WebAssembly's text format describes; a binary module is left as it is.
pub fn module_of_text(text: &[u8]) -> Result<Cow<'_, [u8]>, ModuleError> {
    match text.starts_with(b"\0asm") {
        true => Ok(text.into()),
        false => make(Job::Text, text).map(Cow::from),
    }
}

/// Where the instructions at these offsets of a binary module come from, `file:line`, as far as its DWARF tells.
pub fn source_lines(module: &[u8], offsets: &[u64]) -> Result<Vec<Option<String>>, ModuleError> {
    let args: Vec<String> = offsets.iter().map(u64::to_string).collect();
    let lines = make_with(Job::Lines, &args, module)?;
    let lines = String::from_utf8_lossy(&lines);
    let line = |line: &str| (!line.is_empty()).then(|| line.to_string());
    Ok(lines.lines().map(line).chain(std::iter::repeat(None)).take(offsets.len()).collect())
}

/// What decides what machine code looks like, which the compiler and who runs it must agree on.
#[cfg(feature = "modules")]
pub fn configure(config: &mut wasmtime::Config, job: Job) {
    config.consume_fuel(true).wasm_relaxed_simd(false).wasm_multi_memory(false);
    match job {
        Job::Module => config.memory_reservation(crate::ModuleLimits::MAX.memory as u64),
        _ => config.memory_reservation(0).memory_reservation_for_growth(1 << 20).memory_guard_size(0),
    };
}

/// Has the compiler make something of `source`.
pub(crate) fn make(job: Job, source: &[u8]) -> Result<Vec<u8>, ModuleError> {
    make_with(job, &[], source)
}

fn make_with(job: Job, args: &[String], source: &[u8]) -> Result<Vec<u8>, ModuleError> {
    let compiler = find()?;
    let failed = |what: &str, e: std::io::Error| ModuleError::Compiler(format!("{what} {}: {e}", compiler.display()));
    let mut child = Command::new(&compiler)
        .arg(job.name())
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| failed("cannot start", e))?;
    // It reads all before it writes anything. One that ends early leaves a broken pipe, and says itself why.
    drop(child.stdin.take().map(|mut stdin| stdin.write_all(source)));
    // Both at once: what is wrong with a module may be longer than a pipe holds, as names in it are.
    let Output { status, stdout, stderr } = child.wait_with_output().map_err(|e| failed("reading from", e))?;
    match status.success() {
        true => Ok(stdout),
        false => Err(why(job, status, String::from_utf8_lossy(&stderr[..stderr.len().min(MAX_SAID)]).trim())),
    }
}

/// Why the compiler made nothing.
fn why(job: Job, status: ExitStatus, said: &str) -> ModuleError {
    use rustix::process::Signal;
    let ended_by = |signal: Signal| status.signal() == Some(signal.as_raw());
    if ended_by(Signal::XCPU) || ended_by(Signal::KILL) {
        return ModuleError::Costly(format!("{} s of a core", MAX_CPU.as_secs()));
    }
    if ended_by(Signal::ABORT) {
        return ModuleError::Costly(format!("{} MB of memory", MAX_MEMORY >> 20));
    }
    match (status.code(), job) {
        (Some(1), Job::Text) => ModuleError::Text(said.into()),
        (Some(1), _) => ModuleError::Invalid(said.split_whitespace().collect::<Vec<_>>().join(" ")),
        _ => ModuleError::Compiler(format!("it ended with {status}: {said}")),
    }
}

/// The compiler: named by the environment, or beside this program, or on the path.
fn find() -> Result<PathBuf, ModuleError> {
    const NAME: &str = "remora-compiler";
    if let Some(place) = std::env::var_os(PLACE) {
        return Ok(place.into());
    }
    let program = std::env::current_exe().unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = beside(&program).into_iter().chain(std::env::split_paths(&path));
    let found = places.map(|dir| dir.join(NAME)).find(|file| file.is_file());
    found.ok_or_else(|| {
        ModuleError::Compiler(format!(
            "{NAME} is neither beside this program, nor in ../lib/remora, nor on the path: build it (cargo build --release -p {NAME}), \
             or say where it is in {PLACE}"
        ))
    })
}

/// Where a program's compiler lies. Not just anywhere above it: there may be a directory in which others write.
fn beside(program: &Path) -> Vec<PathBuf> {
    let Some(dir) = program.parent() else { return Vec::new() };
    // Tests and examples are built a directory below.
    let below = dir.file_name().is_some_and(|name| name == "deps" || name == "examples");
    let above = dir.parent().filter(|_| below).map(Path::to_path_buf);
    // Installed, it lies where programs lie that only others start.
    [dir.into()].into_iter().chain(above).chain([dir.join("../lib/remora")]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiler_lies_beside_its_program() {
        let at =
            |program: &str| beside(Path::new(program)).iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>();
        assert_eq!(at("/tmp/remora-1/remora"), ["/tmp/remora-1", "/tmp/remora-1/../lib/remora"]);
        assert_eq!(at("target/debug/deps/t")[..2], ["target/debug/deps", "target/debug"]);
        assert!(at("").is_empty());
    }
}

//! `remora kernel build`: sources in C, Rust and WebAssembly text become modules.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use remora_wasm::{Engine, Isolation, Module, ModuleLimits};

use crate::Failure;
use crate::output::{print, write};

/// A language with a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// Rust, for the target wasm32-unknown-unknown.
    Rust,
    /// C, with clang and lld.
    C,
    /// WebAssembly text: needs no other tool.
    Wat,
}

/// Options of `remora kernel build`.
#[derive(Debug, clap::Args)]
pub struct Build {
    /// The source: a file that ends in .rs, .c or .wat
    #[arg(value_name = "SOURCE", required_unless_present = "template")]
    pub source: Option<PathBuf>,
    /// Where the module goes [default: beside the source, ending in .wasm]
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print a kernel to start from, and build nothing
    #[arg(long, value_enum, value_name = "LANGUAGE", conflicts_with_all = ["source", "out"])]
    pub template: Option<Language>,
}

/// Builds, or prints a template.
pub fn run(args: &Build) -> Result<(), Failure> {
    let template = match args.template {
        Some(Language::Rust) => include_str!("../../../kernels/template.rs"),
        Some(Language::C) => include_str!("../../../kernels/template.c"),
        Some(Language::Wat) => include_str!("../../../kernels/template.wat"),
        None => "",
    };
    if args.template.is_some() {
        print(template)?;
    }
    let Some(source) = &args.source else { return Ok(()) };
    let out = args.out.clone().unwrap_or_else(|| source.with_extension("wasm"));
    let module = build(source, false)?;
    check(source, &module)?;
    write(&out, &module)?;
    let line = format!("{}: {} bytes\n", out.display(), module.len());
    print(&line)?;
    Ok(())
}

/// The binary module of a file: a module already, or a source to be built.
pub fn load(path: &Path) -> Result<Vec<u8>, Failure> {
    load_as(path, false)
}

/// The same; what is built has names and lines.
pub fn load_for_debugging(path: &Path) -> Result<Vec<u8>, Failure> {
    load_as(path, true)
}

fn load_as(path: &Path, debugging: bool) -> Result<Vec<u8>, Failure> {
    match path.extension().and_then(OsStr::to_str) {
        Some("wasm") => match read(path)? {
            module if module.starts_with(b"\0asm") => Ok(module),
            _ => {
                let why = "its first bytes are not those of a WebAssembly module: is it a source (.rs, .c, .wat)?";
                Err(Failure::Failed(format!("{}: {why}", path.display())))
            }
        },
        _ => build(path, debugging),
    }
}

/// The bytes of a file that a flag names.
pub fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    remora_study::records::read(path).map_err(|e| Failure::Failed(format!("cannot read {}: {e}", path.display())))
}

/// Whether the module is a kernel, with more than the default limits: those are for the deployment to set.
fn check(path: &Path, module: &[u8]) -> Result<(), Failure> {
    let limits = ModuleLimits { memory: 64 << 20, ..ModuleLimits::default() };
    let checked = Engine::shared().and_then(|engine| Module::new(&engine, module, limits, Isolation::Fresh));
    checked.map(drop).map_err(|e| Failure::Failed(format!("{}: {e}", path.display())))
}

fn build(source: &Path, debugging: bool) -> Result<Vec<u8>, Failure> {
    match source.extension().and_then(OsStr::to_str) {
        Some("wasm") => {
            Err(Failure::Usage(format!("{} is a module already: there is nothing to build", source.display())))
        }
        Some("wat") => {
            let text = read(source)?;
            let module = remora_wasm::compiler::module_of_text(&text).map(Cow::into_owned);
            module.map_err(|e| Failure::Failed(format!("{}: {e}", source.display())))
        }
        Some("c") => compile(
            source,
            "clang",
            "install clang and lld, for example apt-get install clang lld",
            &[
                "--target=wasm32",
                "-O2",
                if debugging { "-g" } else { "-g0" },
                "-nostdlib",
                "-Wall",
                "-Wl,--no-entry,--export=run,--export=params",
                "-o",
            ],
        ),
        Some("rs") => compile(
            source,
            "rustc",
            "install Rust and its target: rustup target add wasm32-unknown-unknown",
            &[
                "--target=wasm32-unknown-unknown",
                "--crate-type=cdylib",
                "--edition=2024",
                "-Copt-level=3",
                "-Cpanic=abort",
                if debugging { "-Cdebuginfo=1" } else { "-Cstrip=symbols" },
                "-o",
            ],
        ),
        _ => Err(Failure::Usage(format!("{}: a kernel's file ends in .rs, .c, .wat or .wasm", source.display()))),
    }
}

/// Runs a compiler, whose own messages go to stderr.
fn compile(source: &Path, program: &str, hint: &str, options: &[&str]) -> Result<Vec<u8>, Failure> {
    if let Err(e) = std::fs::metadata(source) {
        return Err(Failure::Failed(format!("cannot read {}: {e}", source.display())));
    }
    // A directory of our own: other users cannot put anything in our way.
    let failed = |e: std::io::Error| Failure::Failed(format!("a directory for the module: {e}"));
    let dir = tempfile::tempdir().map_err(failed)?;
    let out = dir.path().join("kernel.wasm");
    let status = Command::new(program).args(options).arg(&out).arg(source).status();
    match status {
        Ok(status) if status.success() => read(&out),
        Ok(_) => Err(Failure::Failed(format!(
            "{program} does not build {}; if it lacks the target, {hint}",
            source.display()
        ))),
        Err(e) => Err(Failure::Failed(format!("cannot run {program}: {e}; {hint}"))),
    }
}

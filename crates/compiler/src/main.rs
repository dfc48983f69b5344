//! `remora-compiler`: makes machine code of a WebAssembly module, or a module of its text, from standard input to
//! standard output.
//!
//! Modules come from whoever may deploy them, and a small one may take minutes and gigabytes to compile. So this is a
//! process of its own: it bounds itself before it reads the first byte, opens nothing, and whoever started it may end it.
//! `remora_wasm::compiler` starts it, and says what goes in and out.

use std::io::{Read, Write};
use std::process::ExitCode;

use remora_wasm::compiler::{Job, MAX_CPU, MAX_MADE, MAX_MEMORY, MAX_SOURCE};
use rustix::process::{Resource, Rlimit, setrlimit};

const USAGE: &str = "remora-compiler makes machine code of kernels for remora, which starts it\n\n\
                     Usage: remora-compiler module|plain-module|text|lines OFFSET... < MODULE > RESULT\n";

fn main() -> ExitCode {
    let job = std::env::args().nth(1).unwrap_or_default();
    if job == "--help" || job == "-h" {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let Some(job) = Job::ALL.into_iter().find(|known| known.name() == job) else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    match bound().and_then(|()| read()).and_then(|source| make(job, &source)).and_then(|made| write(&made)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // Some of what is said of modules comes in several lines.
            eprintln!("{}", why.split_whitespace().collect::<Vec<_>>().join(" "));
            ExitCode::FAILURE
        }
    }
}

/// Bounds what this process may use up, and takes from it what it does not need.
fn bound() -> Result<(), String> {
    let limits = [
        (Resource::Cpu, MAX_CPU.as_secs()),
        (Resource::Data, MAX_MEMORY),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Nofile, 3),
        (Resource::Nproc, 0),
    ];
    for (resource, limit) in limits {
        let both = Rlimit { current: Some(limit), maximum: Some(limit) };
        setrlimit(resource, both).map_err(|e| format!("cannot bound {resource:?}: {e}"))?;
    }
    Ok(())
}

fn read() -> Result<Vec<u8>, String> {
    let mut source = Vec::new();
    let most = MAX_SOURCE as u64;
    std::io::stdin().take(most + 1).read_to_end(&mut source).map_err(|e| format!("reading the module: {e}"))?;
    match source.len() as u64 > most {
        true => Err(format!("a module of over {most} bytes")),
        false => Ok(source),
    }
}

fn make(job: Job, source: &[u8]) -> Result<Vec<u8>, String> {
    if job == Job::Lines {
        return Ok(lines(source, std::env::args().skip(2).filter_map(|offset| offset.parse().ok())));
    }
    if job == Job::Text {
        return wat::parse_bytes(source).map(|module| module.into_owned()).map_err(|e| in_a_line(&e.to_string()));
    }
    let mut config = wasmtime::Config::new();
    remora_wasm::compiler::configure(&mut config, job);
    config.cranelift_opt_level(wasmtime::OptLevel::Speed);
    let engine = wasmtime::Engine::new(&config).map_err(|e| format!("{e:#}"))?;
    engine.precompile_module(source).map_err(|e| format!("{e:#}"))
}

/// What is wrong with a text, and where. What the parser draws of the text is left out.
fn in_a_line(error: &str) -> String {
    let what = error.lines().next().unwrap_or_default();
    let place = error.split_once("--> <anon>:").and_then(|(_, rest)| rest.lines().next()?.split_once(':'));
    match place {
        Some((line, column)) => format!("line {line}, column {}: {what}", column.trim()),
        None => what.into(),
    }
}

/// For each offset in a module `file:line` of its source, and a line's end. DWARF counts from the start of the code.
fn lines(module: &[u8], offsets: impl Iterator<Item = u64>) -> Vec<u8> {
    use addr2line::gimli::{Dwarf, EndianSlice, LittleEndian};
    let (mut sections, mut code) = (std::collections::HashMap::new(), 0);
    // What makes no sense was refused when the module was compiled, and has no lines here.
    for payload in wasmparser::Parser::new(0).parse_all(module).map_while(Result::ok) {
        match payload {
            wasmparser::Payload::CodeSectionStart { range, .. } => code = range.start as u64,
            wasmparser::Payload::CustomSection(section) => drop(sections.insert(section.name(), section.data())),
            _ => {}
        }
    }
    let section = |id: addr2line::gimli::SectionId| {
        let bytes = sections.get(id.name()).copied().unwrap_or_default();
        Ok::<_, addr2line::gimli::Error>(EndianSlice::new(bytes, LittleEndian))
    };
    let context = Dwarf::load(section).and_then(addr2line::Context::from_dwarf).ok();
    let line = |offset: u64| {
        let found = context.as_ref()?.find_location(offset.checked_sub(code)?).ok()??;
        // The file's name: its directory is that of whoever built it.
        let file = found.file?.rsplit('/').next()?;
        Some(format!("{file}:{}", found.line?))
    };
    offsets.map(|offset| line(offset).unwrap_or_default() + "\n").collect::<String>().into_bytes()
}

fn write(made: &[u8]) -> Result<(), String> {
    if made.len() > MAX_MADE {
        return Err(format!("{} bytes of machine code: at most {MAX_MADE}", made.len()));
    }
    let mut out = std::io::stdout();
    out.write_all(made).and_then(|()| out.flush()).map_err(|e| format!("writing the result: {e}"))
}

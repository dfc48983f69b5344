//! `remora probe`.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use remora_model::platform::Platform;
use remora_real::{Client, ClientConfig, LinkKind, at_free_loopback, at_local};
use remora_study::compare::Watch;
use remora_study::connection::Connection;
use remora_study::machine::Machine;
use remora_study::probe::{Figure, Figures, Hardware, ROUNDS, Software, platform_file};

use crate::child::ChildNode;
use crate::progress::{Display, stop_flag};
use crate::{Failure, print};

const EXAMPLES: &str = "\
Examples:
  remora probe                    measure and show, 15 s
  remora probe --out here.toml    also write the platform file
  remora where studies/where/get.toml --on here.toml";

/// Options of `remora probe`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Probe {
    /// Write the platform file of this machine
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Where the file lies whose sync is measured [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Also write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// How long one measurement of memory and system runs, and how long one of the software NIC.
const HARDWARE: Duration = Duration::from_millis(20);
const SOFTWARE: Duration = Duration::from_millis(25);
/// How long a slice of calls beside a writer is, unless a comparison says otherwise.
const SLICE: Duration = Duration::from_millis(10);

/// Measures, prints the table, writes the files.
pub fn run(args: &Probe) -> Result<(), Failure> {
    let display = Display::new(stop_flag());
    let directory = args.directory.clone().unwrap_or_else(std::env::temp_dir);
    let (_child, mut clients) = local_node()?;
    let figures = measure(&directory, &mut clients, SLICE, &display);
    display.clear();
    let figures = figures?;
    let machine = Machine::describe();
    let title = format!("{} with {} cores, {}", machine.cpu, machine.cores, machine.kernel);
    let text = platform_file("probed", &title, &figures);
    // What is written can be read.
    Platform::parse("the probe's platform file", &text).map_err(|e| Failure::Failed(e.to_string()))?;
    let mut shown = table(&title, &machine, &figures);
    if let Some(path) = &args.out {
        write(path, &text)?;
        let _ = writeln!(shown, "Platform file: {}", path.display());
    }
    if let Some(path) = &args.json {
        write(path, &format!("{:#}\n", json(&machine, &figures)))?;
    }
    print(&shown, &shown);
    Ok(())
}

/// A node as a child process, and clients of it over UDP and shared memory.
pub fn local_node() -> Result<(ChildNode, Vec<Client>), Failure> {
    let node = at_free_loopback(Ok)?;
    let child = ChildNode::start(node)?;
    let mut clients = Vec::new();
    for link in [LinkKind::Udp, LinkKind::Shm] {
        let connect = |local| Client::connect(ClientConfig { link: Some(link), ..ClientConfig::new(node, local) });
        clients.push(at_local(node, connect)?);
    }
    Ok((child, clients))
}

/// Everything, in rounds. Calls beside a writer come in slices of the length given.
pub fn measure(
    directory: &Path,
    clients: &mut [Client],
    slice: Duration,
    display: &Display,
) -> Result<Vec<Figure>, Failure> {
    let mut figures = Figures::default();
    let hardware = Hardware { time: HARDWARE, directory: directory.into() };
    hardware.measure(&mut figures, &|what, part| display.part(what, part * 0.4), &|| display.stop())?;
    let probes: Result<Vec<_>, _> = clients.iter_mut().map(|client| Software::new(client)).collect();
    let probes = probes?;
    software(clients, &probes, &mut figures, display)?;
    let mut targets: Vec<&mut dyn Connection> =
        clients.iter_mut().map(|client| client as &mut dyn Connection).collect();
    if let Some(probe) = probes.last() {
        let progress = |part| display.part("the software NIC beside a writer", 0.8 + part * 0.2);
        probe.measure_beside(&mut targets, slice, &mut figures, &progress, &|| display.stop())?;
    }
    Ok(figures.finish())
}

fn software(
    clients: &mut [Client],
    probes: &[Software],
    figures: &mut Figures,
    display: &Display,
) -> Result<(), Failure> {
    let steps = (ROUNDS * clients.len()) as f64;
    for round in 0..ROUNDS {
        for (n, (client, probe)) in clients.iter_mut().zip(probes).enumerate() {
            let done = (round * probes.len() + n) as f64 / steps;
            display.part(&format!("the software NIC over {}", client.link()), 0.4 + done * 0.4);
            probe.measure(client, SOFTWARE, figures, &|| display.stop())?;
        }
        Software::name_cores(figures);
    }
    Ok(())
}

fn table(title: &str, machine: &Machine, figures: &[Figure]) -> String {
    let mut out = format!("{title}\n\n{:<34} {:>12} {:>25}  how\n", "", "median", "rounds");
    for Figure { path, unit, how, value, range: (low, high) } in figures {
        let spread = format!("{} to {}", digits(*low), digits(*high));
        let _ = writeln!(out, "{path:<34} {:>7} {unit:<4} {spread:>25}  {how}", digits(*value));
    }
    if let Some(remark) = machine.remark() {
        let _ = writeln!(out, "\n{remark}");
    }
    out
}

fn json(machine: &Machine, figures: &[Figure]) -> serde_json::Value {
    let figure = |figure: &Figure| {
        let Figure { path, unit, how, value, range } = figure;
        serde_json::json!({ "path": path, "unit": unit, "how": how, "value": value, "range": range })
    };
    serde_json::json!({
        "format": "remora-probe/1",
        "version": env!("CARGO_PKG_VERSION"),
        "machine": machine,
        "figures": figures.iter().map(figure).collect::<Vec<_>>(),
    })
}

/// Four digits at most.
pub fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 || v == v.trunc() => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|e| Failure::Failed(format!("cannot write {}: {e}", path.display())))
}

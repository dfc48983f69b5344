//! `remora probe`.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use remora_model::platform::Platform;
use remora_real::LinkKind;
use remora_study::format::wrap;
use remora_study::machine::Machine;
use remora_study::nodes::NodeProcess;
use remora_study::probe::{self, Figure, platform_file};

use crate::Failure;
use crate::output::{self, Json};
use crate::progress::{Display, stop_flag};

const EXAMPLES: &str = "\
Examples:
  remora probe                    measure and show, 15 s
  remora probe --out here.toml    also write the platform file
  remora where studies/where/get.toml --on here.toml";

/// Options of `remora probe`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ProbeArgs {
    /// Write the platform file of this machine
    #[arg(long, value_name = "FILE", value_parser = crate::output::file())]
    pub out: Option<PathBuf>,
    /// Where the file lies whose sync is measured [default: the directory for temporary files]
    #[arg(long, value_name = "DIR", value_parser = crate::output::directory_there())]
    pub directory: Option<PathBuf>,
    /// Figures for programs.
    #[command(flatten)]
    pub json: Json,
}

/// How long a slice of calls beside a writer is, unless a comparison says otherwise.
const SLICE: Duration = Duration::from_millis(10);

/// Measures, prints the table, writes the files.
pub fn run(args: &ProbeArgs) -> Result<(), Failure> {
    let display = Display::new(stop_flag());
    let directory = args.directory.clone().unwrap_or_else(std::env::temp_dir);
    let (node, mut clients) = NodeProcess::with_clients(&[LinkKind::Udp, LinkKind::Shm])?;
    let (figures, cut) = probe::measure(&directory, (&node, &mut clients), SLICE, &display);
    display.clear();
    let machine = Machine::describe();
    if let Some(error) = cut {
        if !figures.is_empty() {
            let missing = format!("{error}; figures are missing or of fewer rounds, and there is no platform file");
            let text = output::not_complete(Some(&missing)) + &table("This machine", &machine, &figures);
            args.json.show(&text, || json(&machine, &figures, Some(&missing)))?;
        }
        return Err(error.into());
    }
    let title = machine.title();
    let text = platform_file("probed", &title, Some(output::now_unix_s()), &figures);
    // What is written can be read.
    Platform::parse("the probe's platform file", &text).map_err(|e| Failure::Failed(e.to_string()))?;
    args.json.print(&table(&title, &machine, &figures))?;
    if let Some(path) = &args.out {
        output::write(path, text.as_bytes())?;
        args.json.print(&format!("Platform file: {}\n", path.display()))?;
    }
    args.json.write(|| json(&machine, &figures, None))
}

fn table(title: &str, machine: &Machine, figures: &[Figure]) -> String {
    let mut out = format!("{title}\n\n{:<40} {:>12} {:>26}\n", "", "median", "rounds");
    for Figure { path, unit, how, value, range: (low, high) } in figures {
        let spread = format!("{} to {}", digits(*low), digits(*high));
        let _ = writeln!(out, "{path:<40} {:>7} {unit:<4} {spread:>26}", digits(*value));
        wrap(&mut out, 4, "", how);
    }
    if let Some(remark) = machine.remark() {
        let _ = writeln!(out, "\n{remark}");
    }
    out
}

fn json(machine: &Machine, figures: &[Figure], incomplete: Option<&str>) -> serde_json::Value {
    let figure = |figure: &Figure| {
        let Figure { path, unit, how, value, range } = figure;
        serde_json::json!({ "path": path, "unit": unit, "how": how, "value": value, "range": range })
    };
    serde_json::json!({
        "format": "remora-probe/1",
        "version": env!("REMORA_VERSION"),
        "machine": machine,
        "figures": figures.iter().map(figure).collect::<Vec<_>>(),
        "incomplete": incomplete,
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

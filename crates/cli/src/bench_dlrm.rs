//! `remora bench dlrm`.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::TypedValueParser;
use remora_kernel::embed::Element;
use remora_lab::bench::BenchRow;
use remora_study::dlrm::{DlrmPlan, DlrmReport, run as measure};
use remora_study::machine::Machine;
use serde_json::json;

use crate::Failure;
use crate::args::one_of;
use crate::bench::{rows_json, rows_table};
use crate::output::Json;
use crate::progress::{Display, stop_flag};
use crate::quantity;

const EXAMPLES: &str = "\
Examples:
  remora bench dlrm                             a table of 1 GB, beside PyTorch where it is installed
  remora bench dlrm --data ml-100k.inter        who was interested in what, as RecBole ships it
  remora bench dlrm --element int8 --dim 128    rows of 128 bytes and a scale
  remora bench dlrm --table 64M --json d.json   a smaller table; figures for programs";

/// Options of `remora bench dlrm`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchDlrm {
    /// Size of the table, without sums of groups
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = quantity::megabytes)]
    pub table: u64,
    /// Numbers of a row: a multiple of 8 from 16 to 256
    #[arg(long, value_name = "N", default_value = "64", value_parser = dim)]
    pub dim: u16,
    /// How the numbers are kept
    #[arg(long, value_name = "KIND", default_value = "f32", value_parser = element())]
    pub element: Element,
    /// Who was interested in what: a line for each, of a user and an item (RecBole's .inter, or CSV)
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// Time for each figure
    #[arg(long, value_name = "S", default_value = "1.5", value_parser = quantity::seconds)]
    pub seconds: Duration,
    /// Seed of every random choice
    #[arg(long, value_name = "N", default_value = "42", value_parser = quantity::count)]
    pub seed: u64,
    /// Measure nothing beside it
    #[arg(long)]
    pub alone: bool,
    /// Figures for programs.
    #[command(flatten)]
    pub json: Json,
}

fn element() -> impl TypedValueParser<Value = Element> {
    one_of([
        (Element::F32.name(), "4 bytes"),
        (Element::F16.name(), "2 bytes"),
        (Element::I8.name(), "1 byte, and a scale for each row"),
    ])
}

fn dim(text: &str) -> Result<u16, String> {
    let dim = text.parse().ok().filter(|dim: &u16| (16..=256).contains(dim) && dim.is_multiple_of(8));
    dim.ok_or_else(|| "a multiple of 8 from 16 to 256".into())
}

/// A recommender's look-ups.
pub fn run(args: &BenchDlrm) -> Result<(), Failure> {
    // Sums of groups are up to a quarter of the items.
    quantity::in_memory("--table", args.table / 4 * 5)?;
    let display = Display::new(stop_flag());
    let plan = DlrmPlan {
        table: args.table,
        dim: args.dim,
        element: args.element,
        data: args.data.clone(),
        time: args.seconds,
        seed: args.seed,
        peers: !args.alone,
    };
    let outcome = measure(&plan, &mut display.going());
    display.clear();
    let (report, measured) = outcome?;
    args.json.show_measured(
        measured,
        "rows",
        |rows| table(&report, rows, args.alone),
        |rows| {
            json!({
                "format": "remora-bench-dlrm/1",
                "version": env!("REMORA_VERSION"),
                "machine": Machine::describe(),
                "seed": args.seed,
                "seconds": args.seconds.as_secs_f64(),
                "report": report,
                "rows": rows_json(rows),
            })
        },
    )
}

fn table(report: &DlrmReport, rows: &[BenchRow], alone: bool) -> String {
    let DlrmReport { interactions, items, copies, dim, element, .. } = report;
    let source: String = report.source.chars().take(60).collect();
    let mut out = format!("Requests: {source}\n");
    let _ = writeln!(out, "{interactions} interactions, {items} items, {copies} times in the table");
    let megabytes = report.table_bytes >> 20;
    let _ =
        writeln!(out, "Rows of {dim} {element}, {megabytes} MB; sums of groups are {:.2} of the items", report.sums);
    let (plain, summed) = (report.rows_of_items, report.rows_with_sums);
    let _ = writeln!(
        out,
        "{plain:.1} rows a request; with sums of groups {summed:.1}, {:.2} times fewer\n",
        plain / summed
    );
    out.push_str(&rows_table(rows));
    out.push('\n');
    if let Some(part) = report.reading {
        let _ = writeln!(out, "Reading and rewriting requests takes {:.0} % of the first of two cores.", part * 100.0);
    }
    let _ = writeln!(out, "Every answer was verified.");
    if !report.torch && !alone && *element == Element::F32.name() {
        let _ = writeln!(out, "With PyTorch installed (Debian: python3-torch) its figures stand here too.");
    }
    out
}

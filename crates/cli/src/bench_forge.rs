//! `remora bench forge`.

use std::fmt::Write;

use remora_study::forge::{ForgeRow, ForgeStudy, Target, is_rping_here};
use remora_study::format::rate;
use remora_study::machine::Machine;
use serde_json::{Value, json};

use crate::output::Json;
use crate::progress::{Display, stop_flag};
use crate::{Failure, preload, quantity};

const EXAMPLES: &str = "\
Examples:
  remora bench forge                              a million packets of each kind, against all three
  remora bench forge --against node --packets 100k
  remora bench forge --rate 50k                   not faster than 50,000 a second
  remora bench forge --json forge.json            the same for programs

Packets claim to come from the peer's address, as anyone can send them who sees nothing of what passes between the two.
It ends with status 1 if a connection ended or a byte changed. Addresses are of 127.98.0.0/16 and 127.99.0.0/16.";

/// Options of `remora bench forge`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchForge {
    /// Forged packets of each kind
    #[arg(long, value_name = "N", default_value = "1M", value_parser = some)]
    pub packets: u64,
    /// Packets a second; 0 is as fast as one core can
    #[arg(long, value_name = "N", default_value = "0", value_parser = count)]
    pub rate: u64,
    /// Against whom: node, cluster, program (rping under `remora exec`) [default: all]
    #[arg(long, value_name = "TARGET", value_delimiter = ',', value_parser = target)]
    pub against: Vec<Target>,
    /// Seed of what is forged
    #[arg(long, value_name = "N", default_value = "42", value_parser = quantity::count)]
    pub seed: u64,
    /// Figures for programs.
    #[command(flatten)]
    pub json: Json,
}

fn target(text: &str) -> Result<Target, String> {
    let found = Target::ALL.into_iter().find(|(_, name)| *name == text).map(|(target, _)| target);
    found.ok_or_else(|| "use node, cluster or program".into())
}

/// A number, maybe in thousands or millions.
fn count(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1000),
        None => text.strip_suffix('M').map_or((text, 1), |digits| (digits, 1_000_000)),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    number.ok_or_else(|| format!("{text:?} is no number like 200, 50k or 1M"))
}

/// As [`count`], and not none: a flood of nothing would show nothing.
fn some(text: &str) -> Result<u64, String> {
    count(text).and_then(|number| if number > 0 { Ok(number) } else { Err("give 1 at least".into()) })
}

/// Forged packets, and what they do.
pub fn run(args: &BenchForge) -> Result<(), Failure> {
    let stop = stop_flag();
    let display = Display::new(stop.clone());
    let remora = std::env::current_exe().map_err(|e| Failure::Failed(format!("finding this program: {e}")))?;
    let targets = match args.against.is_empty() {
        true => Target::ALL.map(|(target, _)| target).to_vec(),
        false => args.against.clone(),
    };
    if targets.contains(&Target::Program) && is_rping_here() {
        preload::VERBS.find(None)?;
    }
    let study = ForgeStudy { packets: args.packets, rate: args.rate, targets, remora, seed: args.seed, stop };
    let (measured, left_out) = study.run(&mut display.going());
    display.clear();
    if let (0, Some(why)) = (measured.wanted, left_out) {
        return Err(Failure::Failed(format!("nothing was measured: {why}")));
    }
    let sound = measured.rows.iter().all(ForgeRow::is_sound);
    let text = |rows: &[ForgeRow]| {
        let mut text = table(rows);
        if let Some(why) = left_out {
            let _ = writeln!(text, "left out: {why}");
        }
        text
    };
    let shown = args.json.show_measured(measured, "rows", text, |rows| to_json(rows, left_out));
    match sound {
        true => shown,
        false => Err(Failure::Failed("forged packets ended a connection or changed a byte".into())),
    }
}

fn table(rows: &[ForgeRow]) -> String {
    let mut out = format!(
        "{:<7} {:<15} {:>8} {:>5} {:>5} {:>5} {:>7} {:>7} {:>7} {:>5}\n",
        "against", "forged", "packets", "M/s", "ended", "wrong", "alone", "beside", "under", "ratio"
    );
    for row in rows {
        let _ = writeln!(
            out,
            "{:<7} {:<15} {:>8} {:>5.2} {:>5} {:>5} {:>7} {:>7} {:>7} {:>5.2}",
            row.target.name(),
            row.forgery.name(),
            row.flood.packets,
            row.flood.rate() / 1e6,
            row.ended,
            row.wrong,
            rate(row.alone),
            rate(row.beside),
            rate(row.under),
            row.ratio()
        );
    }
    out.push_str(
        "\nOperations a second: alone, beside the same flood to a socket that nobody reads, and under the flood.\n\
         The flood takes a core in both; the ratio is of the latter two. Ended: connections; wrong: bytes.\n",
    );
    out
}

fn to_json(rows: &[ForgeRow], left_out: Option<&str>) -> Value {
    let row = |row: &ForgeRow| {
        json!({
            "against": row.target.name(),
            "forged": row.forgery.name(),
            "packets": row.flood.packets,
            "packets_per_s": row.flood.rate(),
            "connections_ended": row.ended,
            "bytes_wrong": row.wrong,
            "ops_per_s_alone": row.alone,
            "ops_per_s_beside": row.beside,
            "ops_per_s_under": row.under,
            "ratio": row.ratio(),
        })
    };
    json!({
        "format": "remora-bench-forge/1",
        "version": env!("REMORA_VERSION"),
        "machine": Machine::describe(),
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
        "left_out": left_out.into_iter().collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_as_people_write_them() {
        assert_eq!([count("200"), count("50k"), count("1M")], [Ok(200), Ok(50_000), Ok(1_000_000)]);
        assert!(some("0").is_err() && some("1") == Ok(1));
        assert!(count("1G").is_err() && count("").is_err() && count("99999999999999999M").is_err());
        assert_eq!(target("cluster"), Ok(Target::Cluster));
        assert!(target("moon").is_err());
    }
}

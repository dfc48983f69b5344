//! `remora ps`: who of this user has a device here, and what it does.

use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

use remora_real::presence::{self, DeviceState, Present, bytes};
use remora_study::format::WIDTH;

use crate::Failure;
use crate::output::to_stdout;
use crate::progress::is_quiet;

const EXAMPLES: &str = "\
Examples:
  remora ps
  remora ps --interval 0     at once, without rates";

/// Options of `remora ps`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Ps {
    /// How long to measure rates, in seconds; 0 leaves them out
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub interval: f64,
}

/// A line for each link of each device, after a heading.
pub fn run(ps: &Ps) -> Result<(), Failure> {
    let failed = |e: io::Error| Failure::Failed(format!("who has devices cannot be found out: {e}"));
    let ask = |all: &[Present]| all.iter().map(|one| one.state().ok()).collect::<Vec<_>>();
    let all = presence::present().map_err(failed)?;
    if all.is_empty() && !is_quiet() {
        let _ = writeln!(io::stderr(), "remora: no program of this user has a device on this host");
    }
    let (start, mut before) = (Instant::now(), ask(&all));
    let mut after = before.clone();
    let mut seconds = 0.0;
    if ps.interval > 0.0 && !all.is_empty() {
        thread::sleep(Duration::from_secs_f64(ps.interval));
        after = ask(&all);
        seconds = start.elapsed().as_secs_f64();
    } else {
        before.iter_mut().for_each(|state| *state = None);
    }
    let mut out = Vec::new();
    write_table(&mut out, &all, &before, &after, seconds).map_err(failed)?;
    to_stdout(&out)
}

fn write_table(
    out: &mut dyn Write,
    all: &[Present],
    before: &[Option<DeviceState>],
    after: &[Option<DeviceState>],
    seconds: f64,
) -> io::Result<()> {
    let row = |out: &mut dyn Write, cells: [&str; 9]| {
        let [process, address, pairs, link, sent, received, rate_out, rate_in, command] = cells;
        writeln!(
            out,
            "{process:>8} {address:<15} {pairs:>5} {link:<4} {sent:>8} {received:>8} {rate_out:>10} {rate_in:>10}"
        )?;
        if command.is_empty() {
            return Ok(());
        }
        // A line of its own: it is longer than what is left of the first.
        let shown: String = command.chars().take(WIDTH - 10).collect();
        writeln!(out, "{:>8} {shown}", "")
    };
    row(out, ["PROCESS", "ADDRESS", "PAIRS", "LINK", "SENT", "RECEIVED", "OUT", "IN", "COMMAND"])?;
    for ((one, before), after) in all.iter().zip(before).zip(after) {
        let (process, address) = (one.keeper().to_string(), one.address.to_string());
        let Some(state) = after else {
            // It may have ended meanwhile, or be stopped.
            row(out, [&process, &address, "-", "-", "-", "-", "-", "-", &one.command])?;
            continue;
        };
        for (index, link) in state.links.iter().enumerate() {
            let old = before.as_ref().and_then(|before| before.links.get(index));
            let rate = |now: u64, old: Option<u64>| match old {
                Some(old) => format!("{}/s", bytes((now.saturating_sub(old) as f64 / seconds) as u64)),
                None => "-".into(),
            };
            let rates =
                [rate(link.tx_bytes, old.map(|old| old.tx_bytes)), rate(link.rx_bytes, old.map(|old| old.rx_bytes))];
            let (pairs, kind) = (state.queue_pairs.to_string(), link.kind.to_string());
            let (sent, received) = (bytes(link.tx_bytes), bytes(link.rx_bytes));
            let command = if index == 0 { &one.command } else { "" };
            row(out, [&process, &address, &pairs, &kind, &sent, &received, &rates[0], &rates[1], command])?;
        }
    }
    Ok(())
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("give seconds, from 0 to 3600".into()),
    }
}

//! `remora top`: what nodes and clusters do, live.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use remora_study::format::rate;
use remora_study::nodes::{ClusterSettings, ask as ask_cluster};

use crate::Failure;
use crate::args::address_and_port;
use crate::metrics;
use crate::output::to_reader;
use crate::progress::stop_flag;
use crate::quantity;

const EXAMPLES: &str = "\
Examples:
  remora node --listen 127.0.0.2 --metrics 127.0.0.1:9100 &
  remora top 127.0.0.1:9100                   until Ctrl-C
  remora top 10.0.0.1:9100 10.0.0.2:9100 --once
  remora top --cluster remora-cluster         the nodes of a cluster on this machine";

/// Options of `remora top`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Top {
    /// Where nodes serve their figures: the ADDR of `remora node --metrics ADDR`
    #[arg(value_name = "ADDR", required_unless_present = "cluster", value_parser = address_and_port)]
    pub nodes: Vec<SocketAddr>,
    /// The directory of a cluster
    #[arg(long, value_name = "DIR")]
    pub cluster: Vec<PathBuf>,
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = quantity::seconds)]
    pub every: Duration,
    /// Look twice, print once and end
    #[arg(long)]
    pub once: bool,
}

/// Counts of one look, by name.
type Look = BTreeMap<String, f64>;

/// Shows until a signal.
pub fn run(args: &Top) -> Result<(), Failure> {
    let stop = stop_flag();
    let (mut before, mut at) = (looks(args), Instant::now());
    loop {
        let end = Instant::now() + args.every;
        while Instant::now() < end && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20).min(args.every));
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (now, elapsed) = (looks(args), at.elapsed().as_secs_f64());
        at = Instant::now();
        let (text, reached) = show(args, &before, &now, elapsed);
        // The screen is cleared only where there is one.
        let clear = if std::io::stdout().is_terminal() && !args.once { "\x1b[H\x1b[2J" } else { "" };
        if !to_reader(format!("{clear}{text}").as_bytes())? {
            return Ok(());
        }
        if args.once {
            let why = "none of them could be asked: its message is in the table".to_string();
            return if reached { Ok(()) } else { Err(Failure::Failed(why)) };
        }
        before = now;
    }
}

/// One look at each node, in order.
fn looks(args: &Top) -> Vec<Result<Look, String>> {
    args.nodes.iter().map(|&at| metrics::ask(at).map(|figures| figures.into_iter().collect())).collect()
}

/// The table, and whether any node of it could be asked.
fn show(args: &Top, before: &[Result<Look, String>], now: &[Result<Look, String>], s: f64) -> (String, bool) {
    let (mut text, mut reached) = (String::new(), now.iter().any(Result::is_ok));
    if !args.nodes.is_empty() {
        let _ = writeln!(
            text,
            "{:<21} {:>5} {:>8} {:>8} {:>8} {:>6} {:>6} {:>9}",
            "node", "conns", "calls/s", "MB/s in", "MB/s out", "resent", "CPU %", "memory MB"
        );
    }
    for ((at, before), now) in args.nodes.iter().zip(before).zip(now) {
        let look = match now {
            Ok(look) => look,
            Err(why) => {
                let _ = writeln!(text, "{:<21} {why}", at.to_string());
                continue;
            }
        };
        // What was counted before a node could be asked for the first time was not counted in this second.
        let before = before.as_ref().unwrap_or(look);
        let sum = |look: &Look, name: &str| -> f64 {
            let of = look.iter().filter(|(known, _)| known.split('{').next() == Some(name));
            // `sum` of nothing is -0.
            of.fold(0.0, |sum, (_, value)| sum + value)
        };
        let per_s = |name: &str| (sum(look, name) - sum(before, name)).max(0.0) / s.max(1e-9);
        let _ = writeln!(
            text,
            "{:<21} {:>5} {:>8} {:>8.1} {:>8.1} {:>6.0} {:>6.1} {:>9.1}",
            at.to_string(),
            sum(look, "remora_client_connections"),
            rate(per_s("remora_call_seconds_count")),
            per_s("remora_nic_bytes_received_total") / 1e6,
            per_s("remora_nic_bytes_sent_total") / 1e6,
            per_s("remora_nic_retransmissions_total"),
            per_s("remora_cpu_seconds_total") * 100.0,
            sum(look, "remora_memory_lent_bytes") / 1e6,
        );
        for (name, calls) in look.iter().filter(|(name, _)| name.starts_with("remora_call_seconds_count{")) {
            let labels = name.trim_start_matches("remora_call_seconds_count{").trim_end_matches('}');
            let rate_of = (calls - before.get(name).unwrap_or(&0.0)).max(0.0) / s.max(1e-9);
            if rate_of > 0.0 {
                let failed = look.get(&format!("remora_calls_failed_total{{{labels}}}")).unwrap_or(&0.0);
                let labels = labels.replace('"', "").replace(',', " ");
                let _ = writeln!(text, "  {labels:<24} {:>8} calls/s, {failed} failed so far", rate(rate_of));
            }
        }
    }
    for dir in &args.cluster {
        let settings = match ClusterSettings::read(dir) {
            Ok(settings) => settings,
            Err(error) => {
                let _ = writeln!(text, "{}: {error}", dir.display());
                continue;
            }
        };
        let _ = writeln!(
            text,
            "\ncluster {}: {}, {}\n{:<5} {:<16} {:>6} {:>6} {:>10} {:>10} {:>9} {:>7}",
            dir.display(),
            settings.kept(),
            settings.deployment,
            "node",
            "address",
            "serves",
            "epoch",
            "reads",
            "writes",
            "log MB",
            "CPU s"
        );
        for (node, address) in settings.addresses.iter().enumerate() {
            let Some(status) = ask_cluster(&settings, node, Duration::from_millis(500)) else {
                let _ = writeln!(text, "{node:<5} {:<16} down", address.to_string());
                continue;
            };
            reached = true;
            let _ = writeln!(
                text,
                "{node:<5} {:<16} {:>6} {:>6} {:>10} {:>10} {:>9.1} {:>7.1}",
                address.to_string(),
                if status.serves == 1 { "yes" } else { "no" },
                status.epoch,
                status.reads,
                status.writes,
                status.log_bytes as f64 / 1e6,
                status.cpu_ns as f64 / 1e9,
            );
        }
    }
    (text, reached)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_before_a_node_could_be_asked_is_no_rate() {
        let nodes = vec!["127.0.0.1:9100".parse().expect("an address")];
        let args = Top { nodes, cluster: Vec::new(), every: Duration::from_secs(1), once: true };
        let look =
            |calls: f64| -> Result<Look, String> { Ok([("remora_call_seconds_count{op=\"7\"}".into(), calls)].into()) };
        let shown = |before| show(&args, &[before], &[look(9e6)], 1.0).0;
        assert!(!shown(Err("refused".into())).contains("9.00 M"));
        assert!(shown(look(0.0)).contains("9.00 M"));
    }
}

//! What `remora bench minos` and `bench chain` found: for people, and for programs.

use std::fmt::Write;

use remora_lab::stats::{median, range};
use remora_study::format::{digits, rate};
use remora_study::machine::Machine;
use remora_study::peers::bench::{StoreBench, StoreNotes, StoreRow};
use remora_study::peers::cluster::SCOPE;
use remora_study::peers::drive::Side;
use serde_json::{Value, json};

use crate::bench::{rows_json, rows_table};

/// All of it.
pub fn table(bench: &StoreBench, rows: &[StoreRow], notes: &StoreNotes) -> String {
    let appends = || notes.appends_ns.iter().map(|(_, ns)| *ns as f64 / 1e3);
    let (least, most) = range(appends());
    let who = match &bench.at {
        Some(dir) => format!("The cluster in {}, and three nodes of each other store,", dir.display()),
        None => "Three nodes of each".into(),
    };
    let mut out = format!(
        "{who} on this machine, {} records of {} B, {} s a row, seed {}\n\
         One append of {} B, room made ahead, and its fdatasync: {} us, {} to {} in this run\n\
         Latencies in us; comm and comp are the parts of the mean while messages were under way, and all else\n",
        bench.records,
        bench.value_bytes,
        bench.time.as_secs_f64(),
        bench.seed,
        bench.value_bytes,
        digits(median(appends())),
        digits(least),
        digits(most),
    );
    let arriving =
        bench.arrivals_per_s.map_or(String::new(), |per_s| format!(" at most, {} arriving a second", rate(per_s)));
    // Writing to a string does not fail.
    for (workload, skew, clients) in bench.loads() {
        let _ = writeln!(out, "\n{}, zipfian {skew}, {clients} at once{arriving}", workload.title);
        let _ = writeln!(out, "{:<14} {:<6} {}", "", "", head("a second"));
        let rows = rows.iter().filter(|row| (row.workload, row.skew, row.clients) == (workload, skew, clients));
        for row in rows {
            let sides = [("writes", &row.outcome.writes), ("reads", &row.outcome.reads)];
            for (n, (what, figures)) in sides.into_iter().filter(|(_, side)| side.count > 0).enumerate() {
                let store = if n == 0 { &row.store } else { "" };
                let _ = writeln!(out, "{store:<14} {what:<6} {}", side(figures));
            }
        }
        for (store, why) in &notes.absent {
            let _ = writeln!(out, "{store:<14} {why}");
        }
    }
    let _ = writeln!(out);
    for line in remarks(bench, rows) {
        let _ = writeln!(out, "{line}");
    }
    let goals = bench.goals(rows, notes);
    if !goals.is_empty() {
        let _ = write!(out, "\n{}", rows_table(&goals));
    }
    out
}

/// What a reader must know of those that were measured.
fn remarks(bench: &StoreBench, rows: &[StoreRow]) -> Vec<String> {
    let transactions = bench.workloads.iter().any(|workload| workload.transaction.is_some());
    let (etcd, redis) = match transactions {
        true => ("one Txn", "MULTI, GET, SET, EXEC at the primary, WAIT 2"),
        false => ("put and linearizable get", "SET, WAIT 2; GET at the primary"),
    };
    let remarks = [
        ("scope", format!("scope: every {SCOPE}th write of a client ends a scope and waits for its PERSIST")),
        (
            "chain",
            "chain: at the head, reads alone at any member; in each node's log, by fdatasync, before it answers".into(),
        ),
        ("etcd", format!("etcd: {} at the leader; durable at two of three, by fdatasync, before it answers", etcd)),
        ("redis", format!("redis: {redis}; replicas have it in memory; appendonly {}", bench.append_only.name())),
    ];
    let unknown = rows.iter().filter(|row| row.outcome.unknown > 0).map(|row| {
        let StoreRow { store, workload, clients, outcome, .. } = row;
        let requests = format!("{} requests of unknown outcome", outcome.unknown);
        format!("{store}, {}, {clients} at once: {requests}, as a node was taken to have failed", workload.name)
    });
    let measured = |store: &str| rows.iter().any(|row| row.store.starts_with(store));
    let remarks = remarks.into_iter().filter(|(store, _)| measured(store)).map(|(_, note)| note);
    remarks.chain(unknown).collect()
}

fn head(rate: &str) -> String {
    format!("{rate:>10} {:>8} {:>8} {:>7} {:>7}", "p50", "p99", "comm", "comp")
}

fn side(side: &Side) -> String {
    let part = |part: Option<f64>| part.map_or_else(|| "-".into(), |ns| digits(ns / 1e3));
    format!(
        "{:>10} {:>8} {:>8} {:>7} {:>7}",
        rate(side.rate),
        micros(side.p50_ns),
        micros(side.p99_ns),
        part(side.split.map(|split| split.communication_ns)),
        part(side.split.map(|split| split.computation_ns))
    )
}

fn micros(ns: u64) -> String {
    digits(ns as f64 / 1e3)
}

/// A line for each store and load.
pub fn csv(rows: &[StoreRow]) -> String {
    let columns = |side: &str| {
        ["count", "per_s", "p50_ns", "p99_ns", "communication_ns", "computation_ns"]
            .map(|column| format!("{side}_{column}"))
            .join(",")
    };
    let mut out = format!("store,workload,skew,clients,{},{}\n", columns("writes"), columns("reads"));
    for row in rows {
        let cells = |side: &Side| {
            let part = |part: Option<f64>| part.map_or_else(String::new, |ns| format!("{ns:.0}"));
            let communication = part(side.split.map(|split| split.communication_ns));
            let computation = part(side.split.map(|split| split.computation_ns));
            let Side { count, rate, p50_ns, p99_ns, .. } = side;
            format!("{count},{rate:.1},{p50_ns},{p99_ns},{communication},{computation}")
        };
        let StoreRow { store, workload, skew, clients, outcome } = row;
        let (writes, reads) = (cells(&outcome.writes), cells(&outcome.reads));
        let _ = writeln!(out, "{store},{},{skew},{clients},{writes},{reads}", workload.name);
    }
    out
}

/// All of it, for programs.
pub fn json(format: &str, bench: &StoreBench, rows: &[StoreRow], notes: &StoreNotes) -> Value {
    let side = |side: &Side| {
        json!({
            "count": side.count, "per_s": side.rate, "p50_ns": side.p50_ns, "p99_ns": side.p99_ns,
            "communication_ns": side.split.map(|split| split.communication_ns),
            "computation_ns": side.split.map(|split| split.computation_ns),
        })
    };
    let row = |row: &StoreRow| {
        json!({
            "store": row.store, "workload": row.workload.name, "skew": row.skew, "clients": row.clients,
            "writes": side(&row.outcome.writes), "reads": side(&row.outcome.reads), "unknown": row.outcome.unknown,
        })
    };
    let append = |(store, ns): &(String, u64)| json!({ "before": store, "ns": ns });
    json!({
        "format": format,
        "version": env!("REMORA_VERSION"),
        "machine": Machine::describe(),
        "records": bench.records,
        "value_bytes": bench.value_bytes,
        "seconds": bench.time.as_secs_f64(),
        "seed": bench.seed,
        "arrivals_per_s": bench.arrivals_per_s,
        "redis_appendonly": bench.append_only.name(),
        "appends_ns": notes.appends_ns.iter().map(append).collect::<Vec<_>>(),
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
        "absent": notes.absent.iter().map(|(store, why)| json!({ "store": store, "why": why })).collect::<Vec<_>>(),
        "goals": rows_json(&bench.goals(rows, notes)),
    })
}

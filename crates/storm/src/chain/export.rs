//! Histories of lists as Elle reads them: list-append, as EDN or JSON.
//!
//! Of each transaction there is an `invoke`, and an `ok`, `fail` or `info`, in the order of time (simulated nanoseconds):
//!
//! ```edn
//! {:index 0, :time 10, :type :invoke, :process 0, :f :txn, :value [[:r 1 nil] [:append 1 5]]}
//! {:index 1, :time 40, :type :ok, :process 0, :f :txn, :value [[:r 1 [3]] [:append 1 5]]}
//! ```
//!
//! In Clojure `(elle.list-append/check {:consistency-models [:strict-serializable]} (jepsen.history/history ops))` reads the
//! maps, of which a file has one in each line. As JSON it is a list of objects with the same names. A client whose
//! transaction's end is unknown goes on as another process.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::{Value as Json, json};

use super::{ChainEnd, ChainOp, ChainTxn};

struct Line<'a> {
    time: u64,
    kind: &'static str,
    process: usize,
    txn: &'a ChainTxn,
}

fn lines(history: &[ChainTxn]) -> Vec<Line<'_>> {
    let clients = history.iter().map(|txn| txn.client + 1).max().unwrap_or(0);
    let mut processes: Vec<usize> = (0..clients).collect();
    let (mut lines, mut used) = (Vec::new(), clients);
    for txn in history {
        let process = processes[txn.client];
        lines.push(Line { time: txn.called, kind: "invoke", process, txn });
        let kind = match txn.end {
            ChainEnd::Done => "ok",
            ChainEnd::Failed => "fail",
            ChainEnd::Unknown => "info",
        };
        lines.push(Line { time: txn.returned, kind, process, txn });
        if txn.end == ChainEnd::Unknown {
            processes[txn.client] = used;
            used += 1;
        }
    }
    // What begins at the instant at which something else ends is not after it. But for the same client, whose end comes first.
    let ended: BTreeSet<(u64, usize)> = history.iter().map(|txn| (txn.returned, txn.client)).collect();
    let begun: BTreeSet<(u64, usize)> = history.iter().map(|txn| (txn.called, txn.client)).collect();
    lines.sort_by_key(|Line { time, kind, txn, .. }| {
        let at = (*time, txn.client);
        let (begins, goes_on) = (*kind == "invoke", ended.contains(&at) && begun.contains(&at));
        (*time, if begins && !goes_on { 0 } else { 1 + u8::from(!goes_on) })
    });
    lines
}

/// One map for each event.
pub fn to_edn(history: &[ChainTxn]) -> String {
    let mut text = String::new();
    for (index, Line { time, kind, process, txn }) in lines(history).iter().enumerate() {
        let part = |op: &ChainOp| match op {
            ChainOp::Read(key, list) if *kind == "ok" => {
                format!("[:r {key} [{}]]", list.iter().map(u32::to_string).collect::<Vec<_>>().join(" "))
            }
            ChainOp::Read(key, _) => format!("[:r {key} nil]"),
            ChainOp::Append(key, value) => format!("[:append {key} {value}]"),
        };
        let value = txn.ops.iter().map(part).collect::<Vec<_>>().join(" ");
        let _ = writeln!(
            text,
            "{{:index {index}, :time {time}, :type :{kind}, :process {process}, :f :txn, :value [{value}]}}"
        );
    }
    text
}

/// A list of events.
pub fn to_json(history: &[ChainTxn]) -> Json {
    let event = |(index, line): (usize, &Line<'_>)| {
        let part = |op: &ChainOp| match op {
            ChainOp::Read(key, list) if line.kind == "ok" => json!(["r", key, list]),
            ChainOp::Read(key, _) => json!(["r", key, null]),
            ChainOp::Append(key, value) => json!(["append", key, value]),
        };
        let value: Vec<Json> = line.txn.ops.iter().map(part).collect();
        json!({
            "index": index, "time": line.time, "type": line.kind, "process": line.process, "f": "txn", "value": value,
        })
    };
    lines(history).iter().enumerate().map(event).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_begins_as_another_ends_is_not_after_it() {
        let txn =
            |client, called, returned| ChainTxn { client, called, returned, end: ChainEnd::Done, ops: Vec::new() };
        // The second begins as the first and the third end; the third goes on at once.
        let history = [txn(0, 0, 30), txn(2, 5, 30), txn(2, 30, 50), txn(1, 30, 40)];
        let events = to_json(&history);
        let order: Vec<_> = events.as_array().unwrap().iter().map(|line| (&line["process"], &line["type"])).collect();
        let expected =
            [(0, "invoke"), (2, "invoke"), (1, "invoke"), (2, "ok"), (2, "invoke"), (0, "ok"), (1, "ok"), (2, "ok")];
        let expected = expected.map(|(process, kind)| (json!(process), json!(kind)));
        assert_eq!(order, expected.iter().map(|(process, kind)| (process, kind)).collect::<Vec<_>>());
    }

    #[test]
    fn events_are_in_order_and_an_unknown_end_takes_a_process() {
        let txn = |called, returned, end| ChainTxn {
            client: 0,
            called,
            returned,
            end,
            ops: vec![ChainOp::Read(1, vec![2, 3]), ChainOp::Append(1, 5)],
        };
        let history = [txn(0, 30, ChainEnd::Unknown), txn(40, 50, ChainEnd::Done)];
        let text = to_edn(&history);
        let last = "{:index 3, :time 50, :type :ok, :process 1, :f :txn, :value [[:r 1 [2 3]] [:append 1 5]]}";
        assert_eq!(text.lines().last(), Some(last));
        assert!(
            text.lines().nth(1).is_some_and(|line| line.contains(":info, :process 0") && line.contains("[:r 1 nil]"))
        );
        assert_eq!(to_json(&history)[3]["value"], json!([["r", 1, [2, 3]], ["append", 1, 5]]));
    }
}

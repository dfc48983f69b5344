//! Histories as JSON, for other checkers.
//!
//! The file is an object. `operations` has the fields of Porcupine's `Operation` (github.com/anishathalye/porcupine), so
//! that Go's `encoding/json` reads it into `[]porcupine.Operation`, with maps for `Input` and `Output`:
//!
//! ```json
//! { "model": "synch", "seed": 7, "blackouts": [ 1200000 ],
//!   "operations": [
//!     { "ClientId": 0, "Input": { "op": "put", "key": 1, "value": 5 }, "Call": 10, "Output": {}, "Return": 40 },
//!     { "ClientId": 1, "Input": { "op": "get", "key": 1 }, "Call": 50, "Output": { "found": 5 }, "Return": 60 } ] }
//! ```
//!
//! - `op` is `get`, `put` (`value`), `delete`, `swap` (`expected`, `value`: writes `value` if it finds `expected`) or
//!   `add` (`value`: adds it to the number found, or to 0).
//! - `found` is the number that the operation found, or null for no record. `Output` is empty for `put` and `delete`,
//!   and `{ "unknown": true }` for an operation of unknown outcome, whose `Return` is the greatest 64-bit integer: a
//!   model's `Step` must accept it whatever the state is. It may also never have happened; a model sees that as an
//!   operation at the end of time.
//! - Times are simulated nanoseconds. A client may have several operations under way, and goes on after an unknown
//!   outcome. Numbers above 2^53 do not occur.
//! - A `blackout` is a time at which all memory was lost. For synch it means nothing to a checker: its histories are
//!   linearizable as they are. Under other models a key may go back there.

use remora_replica::ddp::Model;
use serde_json::{Value as Json, json};

use crate::engine::{Action, End};
use crate::history::{History, Record};

/// The history as JSON. Operations that were refused did not happen and are left out.
pub fn to_json(history: &History, model: Model, seed: u64) -> Json {
    let mut sessions: Vec<u64> = history.records.iter().map(|record| record.client).collect();
    sessions.sort_unstable();
    sessions.dedup();
    let client = |record: &Record| sessions.partition_point(|&session| session < record.client);
    let happened = history.records.iter().filter(|record| record.end != End::Refused);
    let operations: Vec<Json> = happened.map(|record| operation(record, client(record))).collect();
    json!({ "model": model.to_string(), "seed": seed, "blackouts": history.blackouts, "operations": operations })
}

fn operation(record: &Record, client: usize) -> Json {
    let key = record.key;
    let input = match record.action {
        Action::Get => json!({ "op": "get", "key": key }),
        Action::Put(value) => json!({ "op": "put", "key": key, "value": value }),
        Action::Delete => json!({ "op": "delete", "key": key }),
        Action::CompareSwap { expected, new } => {
            json!({ "op": "swap", "key": key, "expected": expected, "value": new })
        }
        Action::FetchAdd(delta) => json!({ "op": "add", "key": key, "value": delta }),
    };
    let output = match (record.end, record.action) {
        (End::Done(_), Action::Put(_) | Action::Delete) => json!({}),
        (End::Done(found), _) => json!({ "found": found }),
        (End::Unknown | End::Refused, _) => json!({ "unknown": true }),
    };
    let returned = if record.end == End::Unknown { i64::MAX as u64 } else { record.returned };
    json!({ "ClientId": client, "Input": input, "Call": record.called, "Output": output, "Return": returned })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_porcupines_fields() {
        let mut history = History::default();
        let record = |action, end| Record {
            client: 7 << 32 | 1,
            number: 1,
            key: 2,
            action,
            scope: 0,
            called: 10,
            returned: 20,
            end,
        };
        history.call(record(Action::Put(5), End::Done(None)));
        history.call(record(Action::Get, End::Done(Some(5))));
        history.call(record(Action::CompareSwap { expected: None, new: 6 }, End::Unknown));
        history.call(record(Action::Delete, End::Refused));
        let json = to_json(&history, Model::Synch, 3);
        assert_eq!(
            json["operations"],
            json!([
                { "ClientId": 0, "Input": { "op": "put", "key": 2, "value": 5 }, "Call": 10, "Output": {}, "Return": 20 },
                { "ClientId": 0, "Input": { "op": "get", "key": 2 }, "Call": 10, "Output": { "found": 5 }, "Return": 20 },
                { "ClientId": 0, "Input": { "op": "swap", "key": 2, "expected": null, "value": 6 }, "Call": 10,
                  "Output": { "unknown": true }, "Return": i64::MAX },
            ])
        );
    }
}

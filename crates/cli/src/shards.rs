//! Results of shards, put together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use remora_storm::shard::Shard;
use serde_json::{Map, Value, json};

use crate::Failure;

/// A shard's result, as its file has it: what ran with which parameters, and how it ended.
pub fn result(
    kind: &str,
    shard: Shard,
    parameters: Value,
    failure: Option<&str>,
    complete: bool,
    figures: Value,
) -> Value {
    let shard = json!({ "index": shard.index, "of": shard.of });
    json!({
        "format": "remora-shard/1", "kind": kind, "shard": shard, "parameters": parameters, "failure": failure, "complete": complete, "figures": figures,
    })
}

/// Writes a file whole or not at all, so that a shard that is ended meanwhile leaves no half of one.
pub fn write_file(path: &Path, json: &Value) -> Result<(), Failure> {
    crate::output::write(path, format!("{json}\n").as_bytes())
}

/// Missing shards that are told one by one.
const TOLD: usize = 20;

/// Results of one run's shards, and what is wrong with them.
#[derive(Debug, Default)]
pub struct Gathered {
    /// What the shards' figures are, each shard once.
    pub figures: Vec<Value>,
    /// What all ran with.
    pub parameters: Value,
    /// Shards that are missing, failed, were ended or are there twice; files that are of no use.
    pub problems: Vec<String>,
}

impl Gathered {
    /// Reads the files of one run's shards.
    pub fn read(kind: &str, files: &[PathBuf]) -> Self {
        let mut gathered = Self::default();
        let mut of = None;
        let mut seen: BTreeMap<u64, &Path> = BTreeMap::new();
        for file in files {
            let name = file.display();
            let (shard, result) = match parsed(kind, file) {
                Ok(parsed) => parsed,
                Err(why) => {
                    gathered.problems.push(format!("{name} is of no use: {why}"));
                    continue;
                }
            };
            if of.is_none() {
                of = Some(shard.of);
                gathered.parameters = result["parameters"].clone();
            }
            if of != Some(shard.of) || gathered.parameters != result["parameters"] {
                gathered.problems.push(format!("{name} is of another run than the first file"));
                continue;
            }
            if let Some(first) = seen.insert(shard.index, file) {
                gathered.problems.push(format!("shard {shard} is there twice: {} and {name}", first.display()));
                continue;
            }
            if let Some(failure) = result["failure"].as_str() {
                gathered.problems.push(format!("shard {shard} failed ({name}): {failure}"));
            } else if result["complete"] != true {
                gathered.problems.push(format!("shard {shard} was ended before it was done ({name})"));
            }
            gathered.figures.push(result["figures"].clone());
        }
        let of = of.unwrap_or(0);
        let mut missing = (0..of).filter(|index| !seen.contains_key(index));
        gathered.problems.extend(missing.by_ref().take(TOLD).map(|index| format!("shard {index}/{of} is missing")));
        match missing.count() {
            0 => {}
            more => gathered.problems.push(format!("and {more} more are missing")),
        }
        gathered
    }

    /// Fails if anything is wrong.
    pub fn verdict(&self) -> Result<(), Failure> {
        match &self.problems[..] {
            [] if self.figures.is_empty() => Err(Failure::Failed("there are no results".into())),
            [] => Ok(()),
            problems => Err(Failure::Failed(problems.join("; "))),
        }
    }
}

fn parsed(kind: &str, file: &Path) -> Result<(Shard, Value), String> {
    let text = remora_study::records::read_text(file).map_err(|e| e.to_string())?;
    let result: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    if result["kind"] != kind {
        let how = if kind == "check" { "--save" } else { "--json" };
        return Err(format!("it is no shard of a {kind}: `remora {kind} minos --shard I/N {how} FILE` writes one"));
    }
    if result["figures"]["rows"].as_array().is_some_and(|rows| !rows.iter().all(Value::is_object)) {
        return Err("its rows are no rows".into());
    }
    let number = |what: &str| result["shard"][what].as_u64();
    let shard = number("index").zip(number("of")).and_then(|(index, of)| Shard::new(index, of));
    let shard = shard.ok_or("it names no shard")?;
    Ok((shard, result))
}

/// The sum of two results: numbers are added, and objects by their fields. What is neither must be the same.
pub fn add(sum: &mut Value, other: &Value) {
    match (sum, other) {
        (Value::Object(sum), Value::Object(other)) => {
            for (name, value) in other {
                add(sum.entry(name.clone()).or_insert_with(|| zero(value)), value);
            }
        }
        (Value::Number(sum), Value::Number(other)) => {
            let whole = sum.as_u64().zip(other.as_u64()).map(|(a, b)| (a + b).into());
            let parts = sum.as_f64().zip(other.as_f64()).and_then(|(a, b)| serde_json::Number::from_f64(a + b));
            if let Some(number) = whole.or(parts) {
                *sum = number;
            }
        }
        _ => {}
    }
}

fn zero(like: &Value) -> Value {
    match like {
        Value::Object(_) => Value::Object(Map::new()),
        Value::Number(_) => json!(0),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_that_are_missing_failed_or_there_twice_are_told() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |name: &str, index, of, parameters: Value, failure: Option<&str>, complete| {
            let path = directory.path().join(name);
            let figures = json!({ "storms": 2, "faults": { "crash": 1.5 } });
            let result = result("storm", Shard { index, of }, parameters, failure, complete, figures);
            write_file(&path, &result).expect("written");
            path
        };
        let good: Vec<_> = (0..3).map(|index| file(&format!("{index}"), index, 3, json!(7), None, true)).collect();
        let whole = Gathered::read("storm", &good);
        assert!(whole.verdict().is_ok() && whole.figures.len() == 3, "{whole:?}");
        let mut sum = json!({});
        whole.figures.iter().for_each(|figures| add(&mut sum, figures));
        assert_eq!(sum, json!({ "storms": 6, "faults": { "crash": 4.5 } }));

        let told = |files: &[PathBuf], parts: &[&str]| {
            let problems = Gathered::read("storm", files).problems.join("; ");
            assert!(parts.iter().all(|part| problems.contains(part)), "{problems}");
        };
        told(&good[..2], &["shard 2/3 is missing"]);
        let failed = file("failed", 1, 3, json!(7), Some("seed 9 fails"), true);
        told(&[good[0].clone(), failed], &["shard 1/3 failed", "seed 9 fails", "shard 2/3 is missing"]);
        let ended = file("ended", 2, 3, json!(7), None, false);
        told(&[&good[..2], &[ended]].concat(), &["shard 2/3 was ended"]);
        told(&[&good[..], &good[1..2]].concat(), &["shard 1/3 is there twice"]);
        let other = file("other", 2, 3, json!(8), None, true);
        told(&[&good[..2], &[other]].concat(), &["is of another run", "shard 2/3 is missing"]);
        let torn = directory.path().join("torn");
        std::fs::write(&torn, "{\"kind\": \"sto").expect("written");
        told(&[&good[..2], std::slice::from_ref(&torn)].concat(), &["is of no use", "shard 2/3 is missing"]);
        let crafted = |text: &str| {
            std::fs::write(&torn, text).expect("written");
            std::slice::from_ref(&torn)
        };
        // More than anyone counts to, and what is no row.
        let many = r#"{"kind": "storm", "shard": {"index": 0, "of": 18446744073709551615}, "complete": true}"#;
        told(crafted(many), &["it names no shard"]);
        let many = r#"{"kind": "storm", "shard": {"index": 0, "of": 65536}, "complete": true}"#;
        told(crafted(many), &["shard 20/65536 is missing", "and 65515 more are missing"]);
        let rows = r#"{"kind": "storm", "shard": {"index": 0, "of": 1}, "complete": true, "figures": {"rows": [1]}}"#;
        told(crafted(rows), &["its rows are no rows"]);
        assert!(Gathered::read("check", &good).verdict().is_err());
        assert!(Gathered::read("storm", &[]).verdict().is_err());
    }
}

//! What `--json` writes, against the schemas in docs/schemas: every format has one, and the real output fits.
//!
//! After a change, `REMORA_SCHEMAS=write cargo test -p remora-cli --test schemas -- --include-ignored --test-threads 1`
//! widens the schemas by what commands write now, and leaves descriptions as they are. A field that readers could trip over
//! wants a new number in the format's name, and so a new file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use remora_testing::{Running, eventually, schema};
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn file_of(format: &str) -> PathBuf {
    root().join("docs/schemas").join(format!("{}.json", format.replace('/', "-")))
}

fn is_written() -> bool {
    std::env::var_os("REMORA_SCHEMAS").is_some_and(|how| how == "write")
}

/// Checks a value against the schema of its format, or widens that.
fn check(value: &Value) {
    let format = value["format"].as_str().unwrap_or_else(|| panic!("no format: {value}"));
    let file = file_of(format);
    let text = std::fs::read_to_string(&file);
    if is_written() {
        let new = || {
            json!({
                "$schema": "https://json-schema.org/draft/2020-12/schema", "title": format,
                "properties": { "format": { "const": format } },
            })
        };
        let mut schema = text.map_or_else(|_| new(), |text| serde_json::from_str(&text).expect("a schema"));
        // What every value of a format has is learnt from the first one.
        let fresh = schema.get("type").is_none();
        if fresh {
            schema["required"] = json!(value.as_object().expect("an object").keys().collect::<Vec<_>>());
        }
        schema::learn(&mut schema, value);
        std::fs::write(&file, format!("{schema:#}\n")).expect("written");
        return;
    }
    let text = text.unwrap_or_else(|e| panic!("{format} has no schema at {}: {e}", file.display()));
    let schema: Value = serde_json::from_str(&text).expect("a schema is JSON");
    let misfits = schema::misfits(&schema, value);
    assert!(misfits.is_empty(), "{format} has changed (see the top of this file):\n{}", misfits.join("\n"));
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
    command.args(args).stdin(Stdio::null()).current_dir(root());
    command
}

/// Checks what a command writes to standard output. Whether it succeeds is not asked: figures that miss a goal are figures.
fn checks(args: &[&str]) -> Value {
    let output = command(args).output().expect("the command runs");
    let value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{args:?}: {e}: {}", String::from_utf8_lossy(&output.stderr)));
    check(&value);
    value
}

const QUICK: [&str; 6] = ["--records", "2e3", "--seconds", "2ms", "--no-html", "--json"];

#[test]
fn comparisons() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("a.json");
    let name = file.to_str().expect("a name");
    let first = checks(
        &[&["compare", "--operations", "list,get-hit", "--rings", "--histograms", "--samples"], &QUICK[..]].concat(),
    );
    std::fs::write(&file, first.to_string()).expect("written");
    let again = checks(&[&["compare", "--operations", "get-hit", "--baseline", name], &QUICK[..]].concat());
    assert!(!again["since"]["changes"].as_array().expect("changes").is_empty());
    checks(&[&["compare", "--on", "strom-10g", "--operations", "list,get-hit"], &QUICK[..]].concat());
    checks(&[&["compare", "--operations", "get-hit", "--rings"], &QUICK[..]].concat());
    let one = ["compare", "--placement", "auto", "--operations", "get-hit"];
    checks(&[&one[..], &QUICK[..]].concat());
    checks(&[&one[..], &["--on", "bluefield2"], &QUICK[..]].concat());
    let auto = ["compare", "--placement", "auto", "--operations", "list,consistent-get"];
    let chosen = checks(&[&auto[..], &QUICK[..]].concat());
    assert!(!chosen["auto"].as_array().expect("rows").is_empty(), "{chosen}");
    assert_eq!(chosen["auto_traces"][0]["rows"].as_array().expect("rows").len(), 4, "three places and auto");
    checks(&[&auto[..], &["--on", "strom-10g"], &QUICK[..]].concat());
}

#[test]
fn kernels() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("words");
    std::fs::write(&data, [0; 4096]).expect("written");
    let call = ["--data", data.to_str().expect("a name"), "--args", "key,u32:10,va,u64:10"];
    let file = ["compare", "--kernel", "kernels/topk.wasm"];
    let quick = ["--seconds", "2ms", "--no-html", "--json"];
    checks(&[&file[..], &call, &quick].concat());
    checks(&[&file[..], &["--on", "strom-10g"], &call, &quick].concat());
}

#[test]
fn nodes() {
    // An address that nobody else uses.
    let [.., a, b] = std::process::id().to_be_bytes();
    let address = format!("127.{a}.{b}.77");
    let node = Running(command(&["node", "--listen", &address]).stdout(Stdio::null()).spawn().expect("it runs"));
    eventually("the node's answer", || {
        let listed = command(&["kernel", "list", "--node", &address]).output().expect("it runs");
        listed.status.success().then_some(())
    });
    let deploy = command(&["kernel", "deploy", "kernels/topk.wasm", "--node", &address]).output().expect("it runs");
    assert!(deploy.status.success(), "{}", String::from_utf8_lossy(&deploy.stderr));
    let listed = checks(&["kernel", "list", "--node", &address, "--json"]);
    assert_eq!(listed["kernels"].as_array().map(Vec::len), Some(1));
    drop(node);
}

#[test]
fn clusters() {
    let directory = tempfile::tempdir().expect("a directory");
    let dir = directory.path().join("c");
    let dir = dir.to_str().expect("a name");
    let log = directory.path().join("log");
    let to = std::fs::File::create(&log).expect("a file");
    let cluster = command(&["cluster", "--json", "--dir", dir]).stdout(to).spawn().expect("it runs");
    let cluster = Running(cluster);
    let line: Value = eventually("the cluster's line", || serde_json::from_slice(&std::fs::read(&log).ok()?).ok());
    check(&line);
    checks(&["cluster", "status", "--dir", dir, "--json"]);
    drop(cluster);
}

#[test]
fn placement_and_reproduction() {
    checks(&["where", "btree", "--on", "bluefield2", "--points", "4", "--simulate", "200", "--json"]);
    checks(&["where", "studies/where/embedding.toml", "--on", "rambda", "--points", "4", "--simulate", "0", "--json"]);
    // More than a place carries: it waits for ever there.
    let directory = tempfile::tempdir().expect("a directory");
    let offered = directory.path().join("offered.toml");
    let list = std::fs::read_to_string(root().join("studies/where/list.toml")).expect("readable");
    let list: String = list
        .lines()
        .map(|line| if line.starts_with("concurrency") { "offered = \"2 M/s\"" } else { line }.to_owned() + "\n")
        .collect();
    std::fs::write(&offered, list).expect("written");
    let offered = offered.to_str().expect("a name");
    checks(&["where", offered, "--on", "bluefield2", "--points", "4", "--simulate", "0", "--json"]);
    checks(&["platform", "list", "--json"]);
    checks(&["reproduce", "strom", "--figure", "5a", "--no-cache", "--json"]);
    checks(&["reproduce", "strom", "--figure", "5a", "--mutate", "--no-cache", "--json"]);
    checks(&["where", "--audit", "8", "--json"]);
    let racks =
        ["where", "rack", "stream", "--on", "dfabric", "--ratio", "8", "--nics", "2", "--size", "256K", "--json"];
    let pooled = checks(&racks);
    assert_eq!(pooled["answers"][0]["answer"]["rows"].as_array().map(Vec::len), Some(3));
    checks(&[&racks[..], &["--message", "4K", "--on", "dfabric"]].concat());
    checks(&["where", "rack", "page-rank", "--on", "dfabric", "--nics", "1", "--json"]);
    let many = ["--load", "--clients", "4", "--threads", "2", "--connections", "20000", "--loss", "0.0001"];
    checks(
        &[&["where", "list", "--on", "rambda", "--points", "4", "--simulate", "2000", "--json"], &many[..]].concat(),
    );
    checks(&["reproduce", "minos", "--figure", "13", "--requests", "40", "--readings", "--no-cache", "--json"]);
}

#[test]
fn checks_and_shards() {
    checks(&["check", "minos", "--writes", "1", "--model", "synch", "--json"]);
    checks(&["check", "membership", "--proposals", "1", "--crashes", "0", "--json"]);
    checks(&["check", "tree", "--case", "same-leaf", "--json"]);
    checks(&["check", "rack", "--nodes", "2", "--segments", "2", "--json"]);
    checks(&["check", "chain", "--nodes", "2", "--writes", "1", "--json"]);
    checks(&["storm", "chain", "--seed", "1", "--storms", "1", "--json"]);
    checks(&["storm", "rack", "--seed", "1", "--storms", "1", "--json"]);
    checks(&["storm", "minos", "--seed", "1", "--storms", "1", "--hours", "0.01", "--json"]);
    checks(&["storm", "minos", "--seed", "1", "--storms", "1", "--json"]);
    for end in [["--hours", "0.001"], ["--seconds", "0.01"]] {
        checks(&[&["storm", "minos", "--seed", "1", "--shard", "1/2"], &end[..], &["--json"]].concat());
    }
    let directory = tempfile::tempdir().expect("a directory");
    let saved = directory.path().join("shard.json");
    let args = ["check", "minos", "--writes", "1", "--model", "synch", "--shard", "0/2", "--save"];
    let output = command(&args).arg(&saved).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    check(&serde_json::from_slice(&std::fs::read(&saved).expect("a result")).expect("JSON"));
}

#[test]
#[ignore = "minutes long: run with --ignored --test-threads 1"]
fn probes() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("here.toml");
    let file = file.to_str().expect("a name");
    checks(&["probe", "--out", file, "--json"]);
    let quick = ["validate", "--rounds", "1", "--records", "2e3", "--seconds", "2ms"];
    let earlier = checks(&[&quick[..], &["--probe", file, "--json"]].concat());
    assert!(earlier["probe"]["age_s"].as_u64().is_some_and(|age| age < 86_400), "{}", earlier["probe"]);
    let all = ["--rings", "--systems", "rack,store"];
    checks(&[&quick[..], &all, &["--json"]].concat());
    checks(&["cluster", "kills", "--kills", "2", "--all-after", "1", "--json"]);
    checks(&["cluster", "pauses", "--pauses", "2", "--json"]);
    checks(&["bench", "nic", "--json"]);
}

#[test]
#[ignore = "minutes long: run with --ignored --test-threads 1"]
fn benches() {
    checks(&["bench", "btree", "--keys", "1e6", "--rounds", "1", "--json"]);
    checks(&["bench", "partition", "--keys", "20k", "--rounds", "1", "--seconds", "20ms", "--json"]);
    checks(&["bench", "kernel", "--table", "2M", "--rounds", "1", "--json"]);
    checks(&["bench", "wasm", "--table", "1M", "--rounds", "1", "--seconds", "10ms", "--json"]);
    checks(&["bench", "neighbours", "--rounds", "1", "--seconds", "10ms", "--json"]);
    checks(&["bench", "model", "--rounds", "1", "--json"]);
    checks(&["bench", "stream", "--rounds", "1", "--json"]);
    checks(&["bench", "ring", "--connected", "20", "--json"]);
    checks(&["bench", "cores", "--json"]);
    checks(&["bench", "rack", "--seconds", "10ms", "--json"]);
    checks(&["bench", "kv", "--pairs", "10k", "--batches", "8", "--seconds", "20ms", "--json"]);
    checks(&["bench", "dlrm", "--table", "2M", "--seconds", "30ms", "--json"]);
    checks(&["bench", "forge", "--packets", "1k", "--against", "node", "--json"]);
    checks(&["bench", "chain", "--records", "100", "--clients", "1", "--seconds", "20ms", "--json"]);
    checks(&[
        "bench",
        "minos",
        "--models",
        "synch",
        "--workloads",
        "a",
        "--clients",
        "1",
        "--seconds",
        "20ms",
        "--json",
    ]);
}

/// The formats that sources name.
fn formats() -> BTreeSet<String> {
    let mut formats = BTreeSet::new();
    let mut folders: Vec<_> = ["cli", "study", "storm"].map(|name| root().join("crates").join(name).join("src")).into();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            match entry.path() {
                path if path.is_dir() => folders.push(path),
                path => {
                    let text = std::fs::read_to_string(path).expect("a source");
                    let quoted = text.split('"').skip(1).step_by(1).filter(|part| part.len() < 60);
                    formats.extend(quoted.filter(|part| is_format(part)).map(String::from));
                }
            }
        }
    }
    formats
}

/// `remora-NAME/NUMBER`.
fn is_format(text: &str) -> bool {
    let Some((name, number)) = text.strip_prefix("remora-").and_then(|text| text.split_once('/')) else { return false };
    name.chars().all(|c| c.is_ascii_lowercase() || c == '-') && number.parse::<u8>().is_ok()
}

#[test]
fn every_format_has_a_schema_and_a_line_in_the_documents() {
    let formats = formats();
    assert!(formats.contains("remora-compare/1") && formats.len() > 20, "{formats:?}");
    let document = std::fs::read_to_string(root().join("docs/formats.md")).expect("the document");
    for format in &formats {
        assert!(file_of(format).exists(), "{format} has no schema: see the top of this file");
        assert!(
            document.contains(&format!(
                "({}.json)",
                file_of(format)
                    .file_stem()
                    .and_then(|stem| stem.to_str())
                    .map(|stem| format!("schemas/{stem}"))
                    .unwrap_or_default()
            )),
            "docs/formats.md does not name {format}"
        );
    }
    for entry in std::fs::read_dir(root().join("docs/schemas")).expect("schemas").flatten() {
        let text = std::fs::read_to_string(entry.path()).expect("a schema");
        let schema: Value = serde_json::from_str(&text).expect("a schema is JSON");
        let title = schema["title"].as_str().expect("a title");
        // A past number stays for those who have files of it.
        assert!(is_format(title) && file_of(title).file_name() == entry.path().file_name(), "{title}");
    }
}

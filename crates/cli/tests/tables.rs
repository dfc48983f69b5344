//! Tables fit a terminal of 80 columns.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use remora_testing::{Running, eventually, own_address};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
    command.args(args).env("COLUMNS", "80").stdin(Stdio::null()).current_dir(root());
    command
}

/// Runs a command, whose every line must fit; none for one that fails.
fn fitting(args: &[&str]) -> Option<String> {
    let output = command(args).stderr(Stdio::null()).output().expect("it runs");
    let shown = String::from_utf8(output.stdout).expect("text");
    if !output.status.success() {
        return None;
    }
    let long: Vec<&str> = shown.lines().filter(|line| line.chars().count() > 80).collect();
    assert!(long.is_empty() && !shown.is_empty(), "{args:?}: {}", long.join("\n"));
    Some(shown)
}

const QUICK: [&str; 5] = ["--records", "2e3", "--seconds", "2ms", "--no-html"];

fn all_fit(commands: &[&[&str]]) {
    for args in commands {
        assert!(fitting(args).is_some(), "{args:?} fails");
    }
}

#[test]
fn of_what_is_modelled() {
    for platform in ["bluefield1", "bluefield2", "rambda", "strom-10g"] {
        all_fit(&[&["where", "btree", "--on", platform, "--points", "4", "--simulate", "200", "--explain"]]);
    }
    for workload in ["all-to-all", "stream"] {
        all_fit(&[&["where", "rack", workload, "--on", "dfabric", "--size", "256K", "--ratio", "8", "--nics", "2"]]);
    }
    all_fit(&[
        &["platform", "list"],
        &["platform", "show", "rambda"],
        &["platform", "diff", "rambda", "strom-10g"],
        &["check", "tree", "--case", "same-leaf"],
        &["check", "rack", "--nodes", "2", "--segments", "2"],
        &["check", "minos", "--writes", "1", "--model", "synch"],
        &["check", "chain", "--nodes", "2", "--writes", "1"],
        &["storm", "chain", "--seed", "1", "--storms", "1"],
        &["storm", "rack", "--seed", "1", "--storms", "1"],
        &["check", "membership", "--proposals", "1", "--crashes", "0"],
        &[&["compare", "--on", "rambda", "--operations", "list,get-hit"], &QUICK[..]].concat(),
    ]);
}

#[test]
fn of_what_is_measured() {
    let kernel = ["compare", "--kernel", "kernels/topk.wasm", "--data", "README.md", "--args", "key,u32:10,va,u64:10"];
    all_fit(&[
        &[&["compare", "--operations", "get-hit", "--rings"], &QUICK[..]].concat(),
        &[&kernel[..], &["--seconds", "2ms", "--no-html"]].concat(),
        &[&kernel[..], &["--seconds", "2ms", "--no-html", "--on", "rambda"]].concat(),
        &["bench", "wasm", "--rounds", "1", "--seconds", "10ms"],
        &["bench", "btree", "--keys", "2k", "--rounds", "1"],
        &["bench", "btree", "--keys", "2k", "--rounds", "1", "--key-bytes", "32"],
        &["bench", "kv", "--pairs", "10k", "--batches", "8", "--seconds", "20ms"],
        &["bench", "dlrm", "--table", "2M", "--seconds", "30ms", "--alone"],
    ]);
}

#[test]
fn of_what_runs() {
    let [address, figures] = [own_address(), format!("127.0.0.1:{}", remora_testing::free_port())];
    let start = |args: &[&str]| Running(command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it"));
    let _node = start(&["node", "--listen", &address, "--metrics", &figures]);
    eventually("the node's answer", || fitting(&["kernel", "list", "--node", &address]));
    all_fit(&[&["kernel", "deploy", "kernels/topk.wasm", "--node", &address], &["ps", "--interval", "0"]]);
    let kernels = fitting(&["kernel", "list", "--node", &address]).expect("a list");
    assert_eq!(kernels.lines().count(), 2, "a heading and a kernel, each in a line: {kernels}");
    let directory = tempfile::tempdir().expect("a directory");
    let dir = directory.path().join("c");
    let dir = dir.to_str().expect("a name");
    let _cluster = start(&["cluster", "--nodes", "5", "--dir", dir]);
    eventually("the cluster's answer", || fitting(&["cluster", "status", "--dir", dir]));
    all_fit(&[
        &["top", &figures, "--cluster", dir, "--once", "--every", "10ms"],
        &["top", "--cluster", dir, "--once", "--every", "10ms"],
    ]);
}

#[test]
#[ignore = "minutes long: run with --ignored --test-threads 1"]
fn of_long_measurements() {
    all_fit(&[
        &["probe"],
        &["reproduce", "strom", "--no-cache"],
        &["reproduce", "minos", "--no-cache", "--requests", "50", "--workers", "2"],
        &["reproduce", "bluefield", "--no-cache", "--figure", "2"],
        &["reproduce", "rambda", "--no-cache", "--figure", "7"],
        &["reproduce", "dfabric", "--no-cache", "--figure", "2"],
        &["bench", "forge", "--packets", "1k"],
        &["bench", "stream", "--rounds", "1"],
        &["bench", "ring", "--connected", "20"],
        &["bench", "cores"],
        &["bench", "rack", "--seconds", "10ms"],
        &["bench", "model", "--rounds", "1"],
        &["bench", "partition", "--keys", "20k", "--rounds", "1", "--seconds", "20ms"],
        &["bench", "neighbours", "--rounds", "1", "--seconds", "10ms"],
        &["bench", "minos", "--models", "synch", "--clients", "1", "--seconds", "20ms"],
        &["bench", "chain", "--records", "100", "--clients", "1", "--seconds", "20ms"],
        &["cluster", "kills", "--chain", "1M", "--kills", "2", "--all-after", "1"],
        &["bench", "nic"],
    ]);
}

//! Ctrl-C in the middle: a command shows what it has, says what is missing, and ends with status 130.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// Runs a command, interrupts it when it says `when` on standard error, and gives what it printed.
fn interrupted(args: &[&str], when: &str) -> String {
    let (shown, rest) = stopped(args, when);
    assert!(rest.ends_with("remora: interrupted"), "{args:?}: {rest}");
    assert!(shown.contains("Not complete: interrupted; "), "{args:?}: {shown}");
    shown
}

/// Runs a command, interrupts it when it says `when` on standard error, and gives what it printed, and what it said then.
fn stopped(args: &[&str], when: &str) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let mut lines = BufReader::new(child.stderr.take().expect("standard error")).lines().map_while(Result::ok);
    let mut said = String::new();
    let heard = lines.by_ref().any(|line| {
        said += &format!("{line}\n");
        line.contains(when)
    });
    assert!(heard, "{args:?} did not say {when:?}: {said}");
    kill_process(Pid::from_child(&child), Signal::INT).expect("a signal");
    let mut shown = String::new();
    // What it says meanwhile must not fill its pipe.
    let rest = std::thread::spawn(move || lines.collect::<Vec<_>>().join("\n"));
    child.stdout.take().expect("standard output").read_to_string(&mut shown).expect("text");
    let rest = rest.join().expect("what it says");
    assert_eq!(child.wait().expect("its end").code(), Some(130), "{args:?}: {shown}{rest}");
    (shown, rest)
}

/// A command line, what it says once the first of its figures are there, and what it shows of those.
type Case = (&'static [&'static str], &'static str, &'static str);

const CASES: &[Case] = &[
    (
        &[
            "compare",
            "--kernel",
            "../../kernels/topk.wasm",
            "--args",
            "key,u32:10,va,u64:10",
            "--data",
            "Cargo.toml",
            "--no-html",
        ],
        " 16 %",
        "of 6 figures",
    ),
    (&["reproduce", "strom", "--no-cache", "--jobs", "1"], " %  ", "points were run"),
    (&["storm", "minos", "--hours", "1e6", "--seed", "7"], " 1 storms", "of what was asked for"),
    (&["bench", "kernel", "--table", "2M", "--rounds", "20"], " 1", "of 20 rounds"),
    (&["bench", "wasm", "--rounds", "1", "--seconds", "0.2"], "GETs over shared memory", "of 14 rows"),
    (&["bench", "model", "--rounds", "1"], " 20 %", "of 5 rows"),
    (&["bench", "neighbours", "--rounds", "1", "--seconds", "50ms"], " 14 %", "of 7 rows"),
    (
        &["bench", "kv", "--pairs", "10k", "--batches", "1,8", "--seconds", "0.4", "--alone"],
        "zipfian 0.9, 8",
        "of 12 rows",
    ),
    (&["bench", "dlrm", "--table", "1M", "--seconds", "0.9", "--alone"], "two cores", "of 7 rows"),
    (&["bench", "btree", "--keys", "20k", "--rounds", "3"], "scan of 100, 1 core", "of 24 rows"),
    (&["bench", "forge", "--packets", "1k", "--against", "node"], " 16 %", "of 6 rows"),
    (&["bench", "partition", "--keys", "20k", "--rounds", "20", "--seconds", "50ms"], "update", "of 6 rows"),
    (
        &["bench", "chain", "--peers", "none", "--records", "100", "--clients", "1", "--seconds", "0.2"],
        ": 0,1, 1 at once",
        "of 18 rows",
    ),
    (
        &["bench", "minos", "--peers", "none", "--models", "synch,event", "--deployments", "host", "--clients", "1"],
        ": reads, 1 at once",
        "of 6 rows",
    ),
];

/// Those whose first figures take long.
const SLOW: &[Case] = &[
    (
        &["compare", "--records", "2e3", "--seconds", "50ms", "--operations", "list,get-hit", "--no-html"],
        "get-hit",
        "of 42 figures",
    ),
    (&["compare", "--on", "strom-10g", "--records", "2e3", "--no-html"], "get-size of 512", "figures were measured"),
    (&["probe"], " 5", "figures are missing"),
    (&["validate", "--rounds", "20", "--seconds", "2ms", "--records", "2e3"], "round 2 of 20", "1 of 20 rounds"),
    (&["cluster", "kills", "--kills", "50"], "kill", "of 50 kills were done"),
    (&["cluster", "pauses", "--pauses", "50"], "pause", "of 50 pauses were done"),
    (&["bench", "nic"], "64 KB WRITEs over UDP", "rows were measured"),
    (&["bench", "stream", "--rounds", "1"], " 15 %", "of 22 rows"),
    (&["bench", "ring", "--connected", "20"], " 20 %", "of 12 rows"),
    (&["bench", "cores"], " 24 %", "of 8 rows"),
    (&["bench", "rack", "--seconds", "50ms"], " 20 %", "of 10 rows"),
];

fn show_what_they_have(cases: &[Case]) {
    for (args, when, part) in cases {
        let shown = interrupted(args, when);
        assert!(shown.contains(part), "{args:?}: {shown}");
    }
}

#[test]
fn commands_that_measure_show_what_they_have() {
    show_what_they_have(CASES);
}

#[test]
#[ignore = "minutes long: run with --ignored --test-threads 1"]
fn slow_commands_show_what_they_have() {
    show_what_they_have(SLOW);
}

#[test]
fn who_has_no_figures_yet_says_that_their_file_is_what_it_was() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("old.json");
    let name = file.to_str().expect("a name");
    for (args, when) in [
        (&["compare", "--records", "1e6", "--no-html"][..], "probing the machine"),
        (&["bench", "kv", "--pairs", "5M", "--alone"], " %"),
        (&["bench", "wasm", "--seconds", "60"], "calls in this process"),
    ] {
        std::fs::write(&file, "old").expect("written");
        let (shown, rest) = stopped(&[args, &["--json", name]].concat(), when);
        let said = format!("remora: interrupted before there were figures: {name} was not written");
        assert!(rest.ends_with(&said) && shown.is_empty(), "{args:?}: {rest}");
        assert_eq!(std::fs::read_to_string(&file).expect("readable"), "old");
    }
}

#[test]
fn no_bench_is_forgotten() {
    let help = Command::new(env!("CARGO_BIN_EXE_remora")).args(["bench", "--help"]).output().expect("it runs");
    let help = String::from_utf8(help.stdout).expect("text");
    let commands = help.split_once("Commands:").expect("commands").1.split_once("\n\n").expect("an end").0;
    // A description may go on in the next line, further to the right.
    let heads = commands.lines().filter(|line| !line.starts_with("   "));
    for name in heads.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help") {
        let is_it = |(args, ..): &Case| args.starts_with(&["bench", name]);
        assert!(CASES.iter().chain(SLOW).any(is_it), "bench {name} is not interrupted here");
    }
}

#[test]
fn where_shows_the_pools_that_were_run() {
    let args = ["where", "rack", "stream", "--on", "dfabric", "--nics", "64", "--size", "8M", "--ratio", "8"];
    let shown = interrupted(&args, " %  ");
    assert!(shown.contains(" of 65 runs are here") && shown.contains("a NIC of the pool"), "{shown}");
}

#[test]
fn where_shows_the_platforms_that_are_done() {
    let on: Vec<&str> = (0..100).flat_map(|_| ["--on", "strom-10g"]).collect();
    let args = [&["where", "btree", "--points", "2001", "--simulate", "0"], &on[..]].concat();
    let shown = interrupted(&args, " 10 %");
    assert!(shown.contains(" of 100 platforms") && shown.contains("B-tree"), "{shown}");
}

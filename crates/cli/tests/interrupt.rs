//! Ctrl-C in the middle: a command shows what it has, says what is missing, and ends with status 130.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// Runs a command, interrupts it when it says `when` on standard error, and gives what it printed.
fn interrupted(args: &[&str], when: &str) -> String {
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
    assert!(rest.ends_with("remora: interrupted"), "{args:?}: {rest}");
    assert!(shown.contains("Not complete: interrupted; "), "{args:?}: {shown}");
    shown
}

#[test]
fn a_reproduction_shows_the_lines_that_are_whole() {
    let shown = interrupted(&["reproduce", "strom", "--no-cache", "--jobs", "1"], " %  ");
    assert!(shown.contains("points were run"), "{shown}");
}

#[test]
fn where_shows_the_platforms_that_are_done() {
    let on: Vec<&str> = (0..100).flat_map(|_| ["--on", "strom-10g"]).collect();
    let args = [&["where", "btree", "--points", "2001", "--simulate", "0"], &on[..]].concat();
    let shown = interrupted(&args, " 10 %");
    assert!(shown.contains(" of 100 platforms") && shown.contains("B-tree"), "{shown}");
}

#[test]
fn bench_minos_shows_the_rows_that_are_measured() {
    let args =
        ["bench", "minos", "--peers", "none", "--models", "synch,event", "--deployments", "host", "--clients", "1"];
    let args = [&args[..], &["--workloads", "a,b", "--seconds", "1"]].concat();
    let shown = interrupted(&args, ": b, 1 at once");
    assert!(shown.contains("of 4 rows were measured"), "{shown}");
}

#[test]
#[ignore = "a round takes a quarter of a minute"]
fn validate_shows_the_rounds_that_are_done() {
    let shown = interrupted(&["validate", "--rounds", "20", "--seconds", "2ms", "--records", "2e3"], "round 2 of 20");
    assert!(shown.contains("1 of 20 rounds were run"), "{shown}");
}

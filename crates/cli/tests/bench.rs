//! `remora bench` as a user meets it: what it starts, what it counts, what it refuses, and how it ends.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use remora_testing::{eventually, skip};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

const REMORA: &str = env!("CARGO_BIN_EXE_remora");

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(REMORA);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn remora(args: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command(args).output().expect("the command runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

/// A command in a process group of its own, as a shell's job, that has said this by now on standard error.
fn started(args: &[&str], when: &str) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut child = command(args).process_group(0).spawn().expect("it runs");
    let mut said = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
    assert!(said.any(|line| line.contains(when)), "{args:?} never said {when:?}");
    (child, said)
}

/// What it prints until its end, and its status.
fn rest(mut child: Child, said: impl Iterator<Item = String> + Send + 'static) -> (Option<i32>, String, String) {
    let said = std::thread::spawn(move || said.collect::<Vec<_>>().join("\n"));
    let mut shown = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut shown).expect("text");
    (child.wait().expect("its end").code(), shown, said.join().expect("what it says"))
}

/// Whoever kills a bench leaves none of the servers behind that it has started.
#[test]
fn what_a_bench_has_started_does_not_outlive_it() {
    let stores = &["bench", "kv", "--pairs", "2M", "--batches", "1", "--seconds", "60"][..];
    let rack = &["bench", "rack", "--seconds", "20"][..];
    for (args, when, who) in
        [(stores, "filling", ["redis-server", "memcached"]), (rack, "round trip", ["remora", "remora"])]
    {
        if !who.iter().any(|who| Path::new("/usr/bin").join(who).exists() || args == rack) {
            skip("neither Redis nor memcached is installed", "Install redis-server and memcached");
            continue;
        }
        if args == rack && !Path::new(REMORA).with_file_name("libremora_sockets.so").exists() {
            skip("libremora_sockets.so is not beside remora", "Run cargo build -p remora-sockets");
            continue;
        }
        let (mut child, _said) = started(args, when);
        let children = || {
            let of = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap_or_default();
            let name = |id: &str| std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
            let of: Vec<String> = of.split_whitespace().map(str::to_string).collect();
            of.iter().any(|id| who.contains(&name(id).trim())).then_some(of)
        };
        let children = eventually("a server", children);
        child.kill().expect("running");
        child.wait().expect("ended");
        for id in children {
            // A zombie is nobody's any more, and waits for init.
            let is_there =
                || std::fs::read_to_string(format!("/proc/{id}/status")).is_ok_and(|it| !it.contains("zombie"));
            eventually(format!("the end of {id}, which {args:?} has started"), || (!is_there()).then_some(()));
        }
    }
}

#[test]
fn what_a_neighbour_does_before_the_measurement_is_not_counted() {
    // The first row alone; the rest would take long.
    let rate = |seconds: &str| {
        let (child, said) =
            started(&["bench", "neighbours", "--rounds", "1", "--seconds", seconds, "--json"], "streams");
        kill_process(Pid::from_child(&child), Signal::INT).expect("running");
        let (code, shown, said) = rest(child, said);
        assert_eq!(code, Some(130), "{said}");
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        shown["rows"][0]["honest"]["ended_per_s"].as_f64().expect("a rate")
    };
    // Others have the cores now and then; what came before would be many times what comes in 5 ms, always.
    let short = [rate("5ms"), rate("5ms"), rate("5ms")].into_iter().fold(f64::INFINITY, f64::min);
    let long = rate("400ms").max(rate("400ms"));
    assert!(short < 8.0 * long, "{short} calls a second in 5 ms, {long} in 400");
}

#[test]
fn a_flood_of_nothing_shows_nothing() {
    let (code, _, said) = remora(&["bench", "forge", "--packets", "0"]);
    assert!(code == Some(2) && said.contains("give 1 at least"), "{said}");
    let (code, shown, said) = remora(&["bench", "forge", "--packets", "1", "--against", "node", "--json"]);
    assert_eq!(code, Some(0), "{said}");
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert!(shown["rows"].as_array().expect("rows").iter().all(|row| row["packets"].as_u64() > Some(0)), "{shown}");
    // Who was to be measured is not there.
    let nowhere = tempfile::tempdir().expect("a directory");
    let output =
        command(&["bench", "forge", "--against", "program"]).env("PATH", nowhere.path()).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("nothing was measured: program: rping"), "{said}");
    // Its library is not there: said at once, not tried for ever.
    let copy = nowhere.path().join("remora");
    std::fs::copy(REMORA, &copy).expect("copied");
    std::fs::write(nowhere.path().join("rping"), "#!/bin/sh\nexit 0\n").expect("written");
    std::fs::set_permissions(nowhere.path().join("rping"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("ours");
    let output =
        Command::new(copy).args(["bench", "forge", "--against", "program"]).env("PATH", nowhere.path()).output();
    let output = output.expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("verbs library"), "{said}");
}

#[test]
fn a_slow_flood_ends_when_it_is_told_to() {
    let (child, said) = started(&["bench", "forge", "--against", "node", "--rate", "1"], " 0 %");
    kill_process(Pid::from_child(&child), Signal::INT).expect("running");
    let (code, _, said) = rest(child, said);
    assert!(code == Some(130) && said.ends_with("remora: interrupted"), "{code:?} {said}");
}

/// Ctrl-C in a terminal is for all processes of the job.
#[test]
fn programs_that_are_interrupted_with_the_bench_are_no_victims_of_forged_packets() {
    let library = Path::new(REMORA).with_file_name("libibverbs.so").exists();
    if !Path::new("/usr/bin/rping").exists() || !library {
        return skip(
            "rping or the verbs library is not there",
            "Install rdmacm-utils, run cargo build -p remora-verbs",
        );
    }
    let (child, said) = started(&["bench", "forge", "--against", "program", "--rate", "1k"], " 0 %");
    // Both ends have begun when the first row is under way; it lasts for minutes.
    std::thread::sleep(std::time::Duration::from_secs(1));
    kill_process_group(Pid::from_child(&child), Signal::INT).expect("running");
    let (code, _, said) = rest(child, said);
    assert!(code == Some(130) && said.ends_with("remora: interrupted"), "{code:?} {said}");
}

#[test]
fn a_bench_of_stores_tells_how_far_it_is_and_names_none_that_nobody_wants() {
    let args = ["bench", "kv", "--pairs", "200k", "--batches", "1,8", "--seconds", "30ms"];
    let (code, _, said) = remora(&args);
    assert_eq!(code, Some(0), "{said}");
    let parts: Vec<u32> = said.lines().filter_map(|line| line.split_once(" %")?.0.trim().parse().ok()).collect();
    assert!(parts.len() > 5 && parts.is_sorted(), "{said}");
    let (code, shown, said) = remora(&[&args[..], &["--alone"]].concat());
    assert!(code == Some(0) && !shown.contains("installed"), "{shown}{said}");
}

#[test]
fn what_this_machine_cannot_hold_or_nobody_can_serve_is_refused_in_a_line() {
    for (args, what) in [
        (&["wasm", "--table", "100T"][..], "--table asks for"),
        (&["minos", "--records", "10M", "--value-bytes", "1M"], "--records asks for"),
        (&["chain", "--records", "10M", "--value-bytes", "60k"], "--records asks for"),
        (
            &["btree", "--keys", "1k", "--cores", "64", "--rounds", "1000"],
            "--keys 1000, with those that 1000 rounds insert,",
        ),
        (&["minos", "--rate", "1e15"], "from 0.001 to 10000000"),
        (&["minos", "--rate", "1e-300"], "from 0.001 to 10000000"),
    ] {
        let (code, shown, said) = remora(&[&["bench"], args].concat());
        assert!(code == Some(2) && shown.is_empty() && said.contains(what), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    }
}

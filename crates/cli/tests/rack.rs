//! Stock programs under `remora rack exec`: every byte of every connection is what it was, and the rest is as the kernel has it.
//!
//! Skipped, with the reason printed, where a program or the sockets library (`cargo build -p remora-sockets`) is missing; a
//! failure there where `CI=true`.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use remora_testing::{Running, eventually, skip};

const REMORA: &str = env!("CARGO_BIN_EXE_remora");

/// Whether the tests can run; says why not.
fn ready(program: &str, package: &str) -> bool {
    let installed = Path::new("/usr/bin").join(program).exists();
    let library = Path::new(REMORA).with_file_name("libremora_sockets.so").exists();
    if !installed {
        skip(format!("{program} is not installed"), &format!("Install the package {package}"));
    } else if !library {
        skip("libremora_sockets.so is not beside remora", "Run cargo build -p remora-sockets");
    }
    installed && library
}

/// A program in the rack, by its path: others of the name may be found first.
fn start(options: &[&str], program: &str, words: &[&str]) -> Child {
    let mut command = Command::new(REMORA);
    command.args(["rack", "exec"]).args(options).arg("--").arg(Path::new("/usr/bin").join(program)).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("remora starts")
}

fn end(child: Child, what: &str) -> Output {
    let output = child.wait_with_output().expect("output");
    assert!(output.status.success(), "{what}: {output:?}");
    output
}

/// Connections change over after this many calls: now, amid the first bytes, and as they do by themselves.
#[test]
fn connections_are_what_they_were() {
    if !ready("python3", "python3") {
        return;
    }
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/rack.py");
    for (after, seed) in [("1", "1"), ("5", "2")] {
        println!("rack.py all {seed}, after {after} calls");
        let words = ["600", "/usr/bin/python3", program.to_str().expect("a path"), "all", seed];
        let output = end(start(&["--after", after], "timeout", &words), "rack.py");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said.lines().count(), 34, "{said}");
    }
}

#[test]
fn redis_answers_over_shared_memory() {
    if !ready("redis-server", "redis-server") {
        return;
    }
    let port = remora_testing::free_port().to_string();
    let server = Running(start(&[], "redis-server", &["--port", &port, "--save", "", "--appendonly", "no"]));
    let ping = || {
        let output = end(start(&[], "timeout", &["600", "redis-cli", "-p", &port, "-r", "20", "ping"]), "redis-cli");
        String::from_utf8_lossy(&output.stdout).matches("PONG").count()
    };
    eventually("redis answers", || {
        let output = start(&[], "redis-cli", &["-p", &port, "ping"]).wait_with_output().expect("output");
        output.status.success().then_some(())
    });
    assert_eq!(ping(), 20);
    let words =
        ["600", "redis-benchmark", "-p", &port, "-c", "10", "-n", "3000", "-d", "5000", "-t", "set,get,lpush", "--csv"];
    let said = String::from_utf8_lossy(&end(start(&[], "timeout", &words), "redis-benchmark").stdout).into_owned();
    assert_eq!(said.lines().filter(|line| line.starts_with('"')).count(), 4, "{said}");
    drop(server);
}

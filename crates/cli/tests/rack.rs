//! Stock programs under `remora rack exec`: every byte of every connection is what it was, and the rest is as the kernel has it.
//!
//! Skipped, with the reason printed, where a program or the sockets library (`cargo build -p remora-sockets`) is missing; a
//! failure there where `CI=true`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use remora_testing::{Namespaces, Running, eventually, skip};

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
        assert_eq!(said.lines().count(), 55, "{said}");
    }
    // What the kernel's TCP does not do is not asked of the rack.
    let names = [
        "beside",
        "broken_pipes",
        "c_library",
        "calls",
        "children_that_leave",
        "connected_again",
        "counted",
        "deaf_ends",
        "end_amid_waits",
        "endings",
        "exec_closes",
        "fork_in_vain",
        "handlers",
        "low_mark",
        "options",
        "polls_late",
        "select_beyond",
        "signals_of_input",
        "urgent",
        "zero_copy",
    ];
    let list = names.map(|name| format!("check_{name}")).join(",");
    let output = Command::new("timeout").args(["600", "/usr/bin/python3"]).arg(&program).arg(list).output();
    let output = output.expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.lines().count() == names.len(), "{output:?}");
}

/// What programs do amid calls on connections, over the kernel's TCP and in a rack: each part ends as it does there.
#[test]
fn what_comes_amid_calls_does_no_harm() {
    if !ready("cc", "gcc") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (source, program) =
        (concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/hostile.c"), dir.path().join("hostile"));
    let compiled = Command::new("cc").args(["-pthread", source, "-o"]).arg(&program).status().expect("cc runs");
    assert!(compiled.success(), "it is compiled");
    let program = program.to_str().expect("a path");
    // A signal that is kept from it would not end it.
    let limit = ["--signal=KILL", "300", program];
    let by_kernel = Command::new("timeout").args(limit).output().expect("it runs");
    assert!(by_kernel.status.success(), "over TCP: {by_kernel:?}");
    for options in [&["--after", "1"][..], &[]] {
        let in_rack = end(start(options, "timeout", &limit), "in a rack");
        assert_eq!(String::from_utf8_lossy(&in_rack.stdout), String::from_utf8_lossy(&by_kernel.stdout));
    }
}

/// What goes by a ring of the kernel's is not seen: libuv, which watches sockets with one, is told that there is none, and who else
/// asks for one gets what the kernel gives.
#[cfg(target_arch = "x86_64")]
#[test]
fn libuv_is_told_of_no_ring() {
    if !ready("cc", "gcc") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/ring.c");
    for (name, options) in [("libuv", &["-DWITH_LIBUV", "-rdynamic"][..]), ("other", &[])] {
        let program = dir.path().join(name);
        let compiled = Command::new("cc").args(options).args([source, "-o"]).arg(&program).status().expect("cc runs");
        assert!(compiled.success(), "{name} is compiled");
        let by_kernel = String::from_utf8(Command::new(&program).output().expect("it runs").stdout).expect("text");
        let in_rack = end(start(&[], program.to_str().expect("a path"), &[]), name);
        let expected = if name == "libuv" { "no such call\n" } else { &by_kernel };
        assert_eq!(String::from_utf8_lossy(&in_rack.stdout), expected, "{name}");
    }
}

/// A daemon that has next to no descriptors goes on, sleeps while there is nothing to do, and serves whom it has room for.
#[test]
fn a_daemon_without_descriptors_goes_on() {
    if !ready("python3", "python3") {
        return;
    }
    let Some(namespaces) = Namespaces::new(1, 1500) else { return };
    let mut daemon = namespaces.command(0, "sh");
    daemon.args(["-c", "ip link set lo up; ulimit -n 24; exec \"$0\" rack", REMORA]).stdin(Stdio::null());
    let mut daemon = Running(daemon.stdout(Stdio::piped()).spawn().expect("it starts"));
    let mut line = String::new();
    BufReader::new(daemon.0.stdout.as_mut().expect("its output")).read_line(&mut line).expect("a line");
    assert!(line.contains("open"), "{line}");
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/rack.py");
    let mut command = namespaces.command(0, REMORA);
    command.args(["rack", "exec", "--after", "1", "--", "timeout", "60", "/usr/bin/python3"]).arg(program);
    let output = command.arg("check_crowd").env("REMORA_TEST_DAEMON", daemon.0.id().to_string()).output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{output:?}");
    assert!(daemon.0.try_wait().expect("its state").is_none(), "it goes on");
}

/// A program that is linked statically keeps the kernel's TCP, and nobody says a word of it.
#[test]
fn a_static_program_is_as_it_was() {
    if !ready("python3", "python3") || !ready("cc", "gcc") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (source, program) = (concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/echo.c"), dir.path().join("echo"));
    let compiled = Command::new("cc").args(["-static", source, "-o"]).arg(&program).status().expect("cc runs");
    assert!(compiled.success(), "it is compiled");
    let mut server = start(&[], program.to_str().expect("a path"), &[]);
    let mut port = String::new();
    BufReader::new(server.stdout.as_mut().expect("its output")).read_line(&mut port).expect("its port");
    let client = "
import socket, sys
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
for n in range(500):
    data = b'%04d' % n * (1 + n * 7)
    s.sendall(data)
    assert s.recv(len(data), socket.MSG_WAITALL) == data
";
    let output = end(start(&[], "timeout", &["60", "/usr/bin/python3", "-c", client, port.trim()]), "the client");
    assert!(output.stderr.is_empty(), "{output:?}");
    let output = end(server, "the static server");
    assert!(output.stderr.is_empty(), "{output:?}");
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

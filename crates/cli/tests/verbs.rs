//! Stock verbs programs through `remora exec`, on two devices of this machine, and what each call refuses.
//!
//! Skipped, with the reason printed, where a program, the C compiler or the verbs library (`cargo build -p
//! remora-verbs`) is missing; a failure there where `CI=true`.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use remora_testing::{eventually, skip};

const REMORA: &str = env!("CARGO_BIN_EXE_remora");

/// Whether the tests can run; says why not.
fn ready(program: &str, package: &str) -> bool {
    let installed = Path::new("/usr/bin").join(program).exists();
    let library = Path::new(REMORA).with_file_name("libibverbs.so").exists();
    if !installed {
        skip(format!("{program} is not installed"), &format!("Install the package {package}"));
    } else if !library {
        skip("libibverbs.so is not beside remora", "Run cargo build -p remora-verbs");
    }
    installed && library
}

fn start(options: &[&str], words: &[&str]) -> Child {
    let mut command = Command::new(REMORA);
    command.arg("exec").args(options).arg("--").args(words).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("remora starts")
}

/// What a program said until its end, which must be a good one.
fn end(child: Child, words: &[&str]) -> Output {
    let output = any_end(child, words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    output
}

/// What a program said until its end.
fn any_end(mut child: Child, words: &[&str]) -> Output {
    let start = Instant::now();
    while child.try_wait().expect("a child can be waited for").is_none() {
        if start.elapsed() > Duration::from_secs(60) {
            let _ = child.kill();
            panic!("{words:?} hangs: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("output")
}

/// Whether somebody listens on the TCP port. A try to connect would be taken for the client, one to bind gets in the
/// server's way.
fn listens(port: u16) -> bool {
    let (port, listening) = (format!(":{port:04X}"), "0A");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().filter_map(|table| std::fs::read_to_string(table).ok()).any(|table| {
        let mut sockets = table.lines().map(|line| line.split_whitespace().skip(1).step_by(2));
        sockets.any(|mut socket| {
            socket.next().is_some_and(|local| local.ends_with(&port)) && socket.next() == Some(listening)
        })
    })
}

/// Runs a server, and a client with the same words and the server's host. Both end well.
fn meet(options: &[&str], words: &[&str]) {
    for output in ends_of(options, words) {
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
}

/// How client and server end.
fn ends_of(options: &[&str], words: &[&str]) -> [Output; 2] {
    // Freed again, and hardly anybody else's in the next moment.
    let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|l| l.local_addr()).expect("a port").port().to_string();
    let words = [words, &["-p", &port]].concat();
    let server = start(options, &words);
    let number = port.parse().expect("a number");
    eventually(format!("{words:?} listens"), || listens(number).then_some(()));
    let words = [&words[..], &["127.0.0.1"]].concat();
    [any_end(start(options, &words), &words), any_end(server, &words)]
}

#[test]
fn the_device_shows_itself() {
    if ready("ibv_devinfo", "ibverbs-utils") {
        let words = ["ibv_devinfo", "-v"];
        let said = end(start(&["--device-address", "127.0.99.9", "--mtu", "1024"], &words), &words).stdout;
        let said = String::from_utf8_lossy(&said);
        for line in ["remora0", "PORT_ACTIVE", "active_mtu:\t\t1024", "::ffff:127.0.99.9, RoCE v2", "Ethernet"] {
            assert!(said.contains(line), "{line} in {said}");
        }
    }
}

#[test]
fn pingpong_programs_verify_their_data() {
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_srq_pingpong", "ibv_ud_pingpong"] {
        if ready(program, "ibverbs-utils") {
            let check: &[&str] = if program == "ibv_ud_pingpong" { &[] } else { &["-c"] };
            meet(&[], &[&[program, "-g", "1", "-n", "50"], check].concat());
            meet(&["--link", "udp"], &[&[program, "-g", "0", "-n", "50", "-e"], check].concat());
        }
    }
}

/// Runs with loss, and how many of them end well at both sides at least. With 5 % loss 15 to 30 % lose their last
/// acknowledgement on any stack (docs/interop.md); at 30 % fewer than three of ten end well in one of 600 such tests.
const LOSSY_RUNS: u32 = 10;
const LOSSY_GOOD: u32 = 3;

#[test]
fn data_survive_loss() {
    if ready("ibv_rc_pingpong", "ibverbs-utils") {
        let words = ["ibv_rc_pingpong", "-g", "1", "-n", "10", "-s", "20000", "-c"];
        // Who is done ends; if its last acknowledgement is lost, nobody is left to repeat it (docs/interop.md).
        let alone = |end: &Output| String::from_utf8_lossy(&end.stderr).contains("transport retry counter exceeded");
        let good = (42..42 + LOSSY_RUNS).filter(|seed| {
            let ends = ends_of(&["--link", "udp", "--loss", &format!("5:{seed}")], &words);
            let failed: Vec<&Output> = ends.iter().filter(|end| !end.status.success()).collect();
            assert!(failed.is_empty() || failed.len() == 1 && alone(failed[0]), "seed {seed}: {failed:?}");
            failed.is_empty()
        });
        let good = good.count() as u32;
        println!("{good} of {LOSSY_RUNS} runs with 5 % loss ended well at both sides");
        assert!(good >= LOSSY_GOOD, "only {good} of {LOSSY_RUNS} runs ended well at both sides");
    }
}

#[test]
fn perftest_measures() {
    for program in ["ib_write_lat", "ib_read_lat", "ib_send_lat", "ib_atomic_lat"] {
        if ready(program, "perftest") {
            meet(&[], &[program, "-F", "-n", "50"]);
        }
    }
    for program in ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_atomic_bw"] {
        if ready(program, "perftest") {
            meet(&["--link", "udp"], &[program, "-F", "-n", "50", "-t", "16"]);
        }
    }
}

#[test]
fn calls_refuse_what_a_driver_refuses() {
    if !ready("cc", "gcc") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("errnos");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/errnos.c");
    let built = Command::new("cc").arg(source).arg("-o").arg(&program).arg("-libverbs").output().expect("cc runs");
    if !built.status.success() {
        return skip("a program cannot be compiled against libibverbs", "Install the package libibverbs-dev");
    }
    let words = [program.to_str().expect("a path")];
    end(start(&[], &words), &words);
}

#[test]
fn errors_are_one_line() {
    if ready("cc", "gcc") {
        let output = start(&[], &["/nonexistent"]).wait_with_output().expect("output");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.contains("cannot run /nonexistent"), "{said}");
    }
}

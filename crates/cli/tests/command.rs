//! The real command, as a user runs it.

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

fn remora(directory: &Path, args: &[&str]) -> Output {
    command(directory, args).output().expect("the command runs")
}

fn command(directory: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
    command.args(args).current_dir(directory).stdin(Stdio::null());
    command
}

/// An address that no other test, and hopefully nobody else, uses.
fn address() -> String {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., a, b] = std::process::id().to_be_bytes();
    loop {
        let address = format!("127.{a}.{b}.{}", 100 + NEXT.fetch_add(1, Ordering::Relaxed));
        if UdpSocket::bind((address.as_str(), 4791)).is_ok() {
            return address;
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// A run that must succeed: what it printed.
fn succeeds(directory: &Path, args: &[&str]) -> String {
    let output = remora(directory, args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// A run that must fail with this status, and say why in one line that contains all of `parts`.
fn fails(directory: &Path, args: &[&str], status: i32, parts: &[&str]) {
    let output = remora(directory, args);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {message}");
    assert_eq!(message.lines().count(), 1, "{args:?}: {message}");
    assert!(message.starts_with("remora: ") && parts.iter().all(|part| message.contains(part)), "{args:?}: {message}");
    assert_eq!(text(&output.stdout), "", "{args:?}");
}

/// A node in the background, ended with the test.
struct Node {
    child: Child,
    lines: Vec<String>,
}

impl Node {
    fn start(address: &str) -> Self {
        let mut child = command(Path::new("."), &["node", "--listen", address])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command runs");
        let output = BufReader::new(child.stdout.take().unwrap());
        let lines = output.lines().map_while(Result::ok).take(4).collect();
        Self { child, lines }
    }

    fn end(mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(10) {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the node goes on after {signal:?}");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Nodes and clients poll: two pairs on two cores would only get in each other's way.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const QUICK: [&str; 4] = ["--records", "2000", "--seconds", "0.002"];

#[test]
fn compare_starts_a_node_measures_and_reports() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let args = [&["compare", "--json", "r.json", "--html", "r.html", "--seed", "7"], &QUICK[..]].concat();
    let table = succeeds(directory.path(), &args);
    for part in
        ["Linked-list traversal", "key absent", "every result verified", "In short", "list over udp: ", "r.html"]
    {
        assert!(table.contains(part), "{part} is missing:\n{table}");
    }
    assert!(table.lines().all(|line| line.chars().count() <= 120), "{table}");

    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(directory.path().join("r.json")).unwrap()).unwrap();
    assert_eq!((&json["setup"]["seed"], &json["setup"]["records"]), (&7.into(), &2000.into()));
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 22 * 2 * 3);
    for row in rows {
        for load in [&row["in_flight_1"], &row["in_flight_64"]] {
            assert!(load["verified"].as_u64().unwrap() > 0 && load["p50_ns"].as_u64().unwrap() > 0, "{row}");
        }
    }
    let trips = |operation: &str, parameter: u64, placement: &str, link: &str| {
        let row = rows.iter().find(|row| {
            row["operation"] == operation
                && row["parameter"] == parameter
                && row["placement"] == placement
                && row["link"] == link
        });
        row.unwrap()["in_flight_1"]["round_trips_per_op"].as_f64().unwrap()
    };
    for link in ["udp", "shm"] {
        assert_eq!(trips("list", 32, "client", link), 33.0, "elements, then the value");
        assert_eq!(trips("list", 32, "nic", link), 1.0);
        assert_eq!(trips("list", 32, "host", link), 1.0);
        assert!(trips("get-size", 64, "client", link) >= 2.0, "entry, then the value");
    }
    let page = std::fs::read_to_string(directory.path().join("r.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n") && page.contains("--seed 7"));
    assert!(!page.contains("://"), "the page needs nothing from elsewhere");
}

#[test]
fn compare_takes_the_users_records_and_trace() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| std::fs::write(directory.path().join(name), content).unwrap();
    write("kv.tsv", "apple\tred\npear\tgreen\tor yellow\nplum\t\n");
    write("keys.txt", "pear\npear\nfig\nplum\n");
    let args =
        ["compare", "--load", "kv.tsv", "--trace", "keys.txt", "--seconds", "0.002", "--json", "r.json", "--no-html"];
    let table = succeeds(directory.path(), &args);
    assert!(table.contains("3 records of kv.tsv"), "{table}");
    assert!(table.contains("Trace keys.txt: 4 GETs, 1 of keys that are not in the store"), "{table}");
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(directory.path().join("r.json")).unwrap()).unwrap();
    assert_eq!(json["setup"]["trace_gets"], 4);
    assert_eq!(json["setup"]["trace_expected_misses"], 1);
    let measured = |operation: &str| json["rows"].as_array().unwrap().iter().any(|row| row["operation"] == operation);
    assert!(measured("get-trace") && measured("get-miss") && !measured("get-hit"));
    assert!(!directory.path().join("remora-report.html").exists());
}

#[test]
fn a_node_serves_others_until_told_to_end() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    for signal in [Signal::INT, Signal::TERM] {
        let address = address();
        let node = Node::start(&address);
        assert_eq!(node.lines[0], format!("remora node ready at {address}"));
        assert!(node.lines[2].contains(&format!("remora compare --node {address}")), "{:?}", node.lines);
        let args = [&["compare", "--node", &address, "--links", "udp", "--placements", "nic", "--no-html"], &QUICK[..]]
            .concat();
        let table = succeeds(directory.path(), &args);
        assert!(table.contains("nic is the only place measured over udp"), "{table}");
        assert_eq!(node.end(signal), Some(0), "{signal:?}");
    }
}

#[test]
fn an_interrupted_compare_ends_its_node() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let mut child = command(directory.path(), &["compare", "--records", "1000", "--seconds", "10", "--no-html"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let measuring = lines.by_ref().any(|line| line.contains("list of 1 elements"));
    assert!(measuring, "it never began to measure");
    let nodes = || {
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()));
        children.unwrap_or_default().split_whitespace().map(str::to_string).collect::<Vec<_>>()
    };
    let node = nodes();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let mut rest = String::new();
    lines.for_each(|line| rest += &line);
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest}");
    assert!(rest.ends_with("remora: interrupted"), "{rest}");
    for node in node {
        assert!(!Path::new(&format!("/proc/{node}")).exists(), "node {node} is still there");
    }
}

#[test]
fn a_node_that_dies_is_an_error_in_one_line() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let address = address();
    let mut node = Node::start(&address);
    let args = ["compare", "--node", &address, "--records", "1000", "--seconds", "10", "--no-html"];
    let mut child = command(directory.path(), &args).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.by_ref().any(|line| line.contains("list of 1 elements")), "it never began to measure");
    node.child.kill().unwrap();
    node.child.wait().unwrap();
    let last = lines.last().unwrap_or_default();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{last}");
    assert!(last.starts_with("remora: ") && last.contains(&address), "{last}");
}

#[test]
fn mistakes_are_told_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    std::fs::write(path.join("bad.tsv"), "a\tb\nno tab here\n").unwrap();
    std::fs::write(path.join("dup.tsv"), "a\t1\nb\t2\na\t3\n").unwrap();
    std::fs::write(path.join("empty"), "").unwrap();
    fails(path, &["--nonsense"], 2, &["--nonsense", "--help"]);
    fails(path, &["node"], 2, &["--listen"]);
    fails(path, &["node", "--listen", "127.0.0.1:4791"], 2, &["without a port"]);
    fails(path, &["compare", "--records", "0"], 2, &["--records"]);
    fails(path, &["compare", "--seconds", "-1"], 2, &["--seconds", "0.001 to 60"]);
    fails(path, &["compare", "--placements", "moon"], 2, &["moon", "client"]);
    fails(path, &["compare", "--load", "x", "--records", "5"], 2, &["--load", "--records"]);
    fails(path, &["compare", "--load", "bad.tsv"], 2, &["bad.tsv, line 2", "no tab"]);
    fails(path, &["compare", "--load", "dup.tsv"], 2, &["dup.tsv, line 3", "line 1"]);
    fails(path, &["compare", "--load", "empty"], 2, &["empty holds nothing"]);
    fails(path, &["compare", "--load", "missing.tsv"], 1, &["cannot read missing.tsv"]);
    fails(path, &["compare", "--json", "no/such/dir.json"], 1, &["cannot write no/such/dir.json"]);
    fails(path, &["bench", "kernel", "--table", "12Q"], 2, &["--table", "512M"]);
    assert!(!path.join("remora-report.html").exists(), "nothing is left behind");
    let nobody = address();
    let args = ["compare", "--node", &nobody, "--records", "10", "--links", "udp", "--no-html"];
    let output = remora(path, &args);
    let last = text(&output.stderr).lines().last().unwrap_or_default().to_string();
    assert_eq!(output.status.code(), Some(1), "{last}");
    assert!(last.contains(&nobody) && last.contains("remora node --listen"), "{last}");
}

#[test]
fn help_shows_examples() {
    let directory = tempfile::tempdir().unwrap();
    assert!(succeeds(directory.path(), &["--help"]).contains("remora node --listen 10.0.0.1"));
    assert!(succeeds(directory.path(), &["compare", "--help"]).contains("--load kv.tsv --trace keys.txt"));
    assert!(succeeds(directory.path(), &["--version"]).starts_with("remora 0."));
}

#[test]
fn bench_kernel_prints_and_writes_its_figures() {
    let directory = tempfile::tempdir().unwrap();
    let table = succeeds(directory.path(), &["bench", "kernel", "--table", "2M", "--rounds", "1", "--json", "k.json"]);
    assert!(table.contains("plain loop"), "{table}");
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(directory.path().join("k.json")).unwrap()).unwrap();
    assert_eq!(json["rows"].as_array().unwrap().len(), 6);
}

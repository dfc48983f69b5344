//! The real command, as a user runs it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use remora_testing::{eventually, own_address};
use rustix::process::{Pid, Signal, kill_process};

fn remora(directory: &Path, args: &[&str]) -> Output {
    command(directory, args).output().expect("the command runs")
}

fn command(directory: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
    command.args(args).current_dir(directory).stdin(Stdio::null());
    command
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
        eventually(format!("the node's end after {signal:?}"), || self.child.try_wait().unwrap()).code()
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
    let args = [&["compare", "--rings", "--json", "r.json", "--html", "r.html", "--seed", "7"], &QUICK[..]].concat();
    let table = succeeds(directory.path(), &args);
    for part in
        ["Linked-list traversal", "key absent", "every result verified", "In short", "list over udp: ", "r.html"]
    {
        assert!(table.contains(part), "{part} is missing:\n{table}");
    }
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");

    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(directory.path().join("r.json")).unwrap()).unwrap();
    assert_eq!((&json["setup"]["seed"], &json["setup"]["records"]), (&7.into(), &2000.into()));
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 22 * 2 * 3);
    for row in rows {
        for load in [&row["in_flight_1"], &row["in_flight_64"]] {
            assert!(load["verified"].as_u64().unwrap() > 0 && load["p50_ns"].as_u64().unwrap() > 0, "{row}");
        }
        let rings = &row["by_ring"];
        assert_eq!(rings.is_object(), row["placement"] != "client", "{row}");
        if rings.is_object() {
            // Objects that changed meanwhile are asked for again.
            assert!(rings["in_flight_1"]["round_trips_per_op"].as_f64().unwrap() >= 1.0, "{row}");
            assert!(rings["in_flight_64"]["verified"].as_u64().unwrap() > 0);
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
fn what_was_measured_is_shown_though_a_file_cannot_be_written() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let args = [&["compare", "--html", "/dev/full", "--records", "2e3", "--seconds", "2ms"], &["--json"][..]].concat();
    let output = remora(directory.path(), &args);
    let (json, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("In short") && said.lines().last().unwrap().contains("cannot write /dev/full"), "{said}");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON and nothing else");
    assert_eq!((&json["format"], &json["setup"]["path_mtu"]["udp"]), (&"remora-compare/1".into(), &4096.into()));
}

#[test]
fn a_file_that_cannot_be_written_whole_stays_what_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let baseline = directory.path().join("platforms.json");
    std::fs::write(&baseline, "good figures").unwrap();
    // No file may grow beyond so much, as on a disk that is full.
    let limited = |blocks: u32| {
        let line = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" platform list --json platforms.json");
        let remora = env!("CARGO_BIN_EXE_remora");
        Command::new("sh").args(["-c", &line, remora]).current_dir(directory.path()).output().expect("sh runs")
    };
    for blocks in [0, 1] {
        let output = limited(blocks);
        let message = text(&output.stderr);
        assert!(output.status.code() == Some(1) && message.contains("cannot write platforms.json"), "{message}");
        assert_eq!(std::fs::read_to_string(&baseline).unwrap(), "good figures");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
    }
    assert!(limited(4096).status.success());
    assert!(std::fs::read_to_string(&baseline).unwrap().contains("remora-platform-list/1"));
}

#[test]
fn a_full_standard_output_is_a_failure_and_one_that_nobody_reads_is_none() {
    let run = |out: Stdio| {
        let list = command(Path::new("."), &["platform", "list"]).stdout(out).stderr(Stdio::piped()).output().unwrap();
        (list.status.code(), text(&list.stderr))
    };
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (code, said) = run(full.into());
    assert!(code == Some(1) && said.contains("cannot write to standard output"), "{said}");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(run(writer.into()), (Some(0), String::new()));
    // Nobody need read what is said on standard error.
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("sum.wat"), include_str!("../../../kernels/template.wat")).unwrap();
    for (args, status) in [(&["kernel", "run", "sum.wat", "--raw"][..], 1), (&["ps", "--interval", "0"], 0)] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let run = command(place.path(), args).stdout(Stdio::null()).stderr(full).status().unwrap();
        assert_eq!(run.code(), Some(status), "{args:?}");
    }
    // What goes on for as long as somebody looks ends when nobody does.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let top = command(Path::new("."), &["top", "127.0.0.1:1", "--every", "10ms"]).stdout(writer).output().unwrap();
    assert_eq!((top.status.code(), text(&top.stderr)), (Some(0), String::new()));
}

#[test]
fn compare_chooses_places_for_an_index_and_a_sequencer_and_says_which_calls_stay_on_the_node() {
    let directory = tempfile::tempdir().unwrap();
    let args = ["compare", "--operations", "tree-get,tree-write,sequencer", "--placement", "auto", "--no-html"];
    let said = succeeds(directory.path(), &[&args, &QUICK[..]].concat());
    assert!(said.starts_with("tree-write: auto writes on the node"), "{said}");
    let chosen = &said[said.find("Places chosen").expect("a table")..];
    for row in ["tree-get ", "tree-write 0 ", "tree-write 100 ", "sequencer 16 "] {
        assert!(chosen.lines().any(|line| line.starts_with(row)), "{row}: {chosen}");
    }
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
    // Keys of the records instead, if they are asked for.
    let hits = ["--operations", "get-hit", "--links", "shm"];
    let table = succeeds(directory.path(), &[&args[..7], &["--no-html"], &hits].concat());
    assert!(table.contains("get-hit") || table.contains("Hash-table GET"), "{table}");
    assert!(table.contains("keys.txt: not replayed"), "{table}");
}

#[test]
fn a_node_serves_others_until_told_to_end() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    for signal in [Signal::INT, Signal::TERM] {
        let address = own_address();
        let node = Node::start(&address);
        assert_eq!(node.lines[0], format!("remora node ready at {address}"));
        assert!(node.lines[2].contains(&format!("remora compare --node {address}")), "{:?}", node.lines);
        // A second one there is told by whom the address is used.
        let holder = format!("process {} has it (", node.child.id());
        fails(directory.path(), &["node", "--listen", &address], 1, &[&holder, "node --listen"]);
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
fn an_interrupted_check_shows_what_it_has_and_says_that_it_is_not_whole() {
    let directory = tempfile::tempdir().expect("a directory");
    for check in [
        &["minos", "--model", "strict", "--crashes", "1", "--restarts", "1", "--save", "part.json"][..],
        &["membership", "--first-start", "--proposals", "3", "--wipes", "1"],
        &["tree", "--case", "split-leaf", "--crash", "--fine"],
    ] {
        let args = [&["check"], check].concat();
        let child = command(directory.path(), &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("starts");
        let mut said = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
        assert!(
            said.any(|line| line.ends_with(" distinct states") && !line.contains("at most")),
            "{check:?}: it searches"
        );
        kill_process(Pid::from_child(&child), Signal::INT).expect("running");
        let output = child.wait_with_output().expect("ends");
        // A row that is wider than a page goes on in the next line.
        let told = text(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(told.contains("Not complete: holds so far, interrupted"), "{check:?}: {told}");
        assert_eq!(output.status.code(), Some(130), "{check:?}: {told}");
    }
    let saved = std::fs::read_to_string(directory.path().join("part.json")).expect("a shard's result");
    assert!(saved.contains(r#""complete":false"#) && saved.contains(r#""stopped":"interrupted""#), "{saved}");
}

#[test]
fn a_node_that_dies_is_an_error_in_one_line() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let address = own_address();
    let kernel = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/topk.wasm");
    let own = [
        "--kernel",
        kernel,
        "--data",
        kernel,
        "--args",
        "key,u32:1,va,u64:1",
        "--links",
        "shm",
        "--placements",
        "host",
    ];
    for (of, when) in [(&["--records", "1000"][..], "list of 1 elements"), (&own, "topk at the host")] {
        let mut node = Node::start(&address);
        let args = [&["compare", "--node", &address, "--seconds", "10", "--no-html"], of].concat();
        let mut child = command(directory.path(), &args).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.by_ref().any(|line| line.contains(when)), "it never began to measure");
        node.child.kill().unwrap();
        node.child.wait().unwrap();
        let last = lines.last().unwrap_or_default();
        assert_eq!(child.wait().unwrap().code(), Some(1), "{last}");
        assert!(
            last.starts_with("remora: ") && (last.contains(&address) || last.contains("the node has stopped")),
            "{last}"
        );
        assert!(!last.contains("writer"), "{last}");
    }
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
    fails(path, &["compare", "--html", "no/such/dir.html"], 1, &["cannot write no/such/dir.html", "--no-html"]);
    fails(path, &["kernel", "list", "--node", "::1"], 1, &["both at ::1", "127.0.0.2"]);
    fails(path, &["node", "--listen", "127.0.0.1", "--memory", "100T"], 2, &["--memory", "this machine has"]);
    fails(path, &["compare", "--json", "no/such/dir.json"], 2, &["no/such/dir.json", "its directory does not exist"]);
    fails(path, &["probe", "--out", "no/such/dir.toml"], 2, &["no/such/dir.toml", "its directory does not exist"]);
    fails(path, &["validate", "--probe", "strom-10g"], 2, &["strom-10g is no probe", "remora probe --out"]);
    fails(path, &["validate", "--probe", "gone.toml"], 2, &["gone.toml", "remora probe --out"]);
    let auto = ["compare", "--placements", "auto", "--prior"];
    fails(path, &[&auto[..], &["gone.toml"]].concat(), 2, &["gone.toml", "remora probe --out"]);
    fails(path, &["compare", "--prior", "gone.toml"], 2, &["--prior", "--placements auto"]);
    for args in [&["check", "minos", "--mutant", "skip-ack"][..], &["check", "rack", "--mutant", "all"]] {
        fails(path, &[args, &["--json", "m.json"]].concat(), 2, &["--mutant", "--json"]);
    }
    fails(path, &["storm", "chain", "--mutant", "all", "--export", "h.edn"], 2, &["--mutant", "--export"]);
    fails(path, &["cluster", "--dir", "c", "--link", "packet"], 2, &["packet", "shm"]);
    assert!(!path.join("c").exists(), "what cannot be is not begun");
    fails(path, &["where", "btree", "--on", "rambda", "--link", "shm"], 2, &["--link", "remora probe"]);
    fails(path, &["where", "btree", "--on", "rambda", "--points", "0"], 2, &["--points", "from 1"]);
    assert!(succeeds(path, &["where", "get", "--on", "rambda", "--threads", "1e0", "--flips", "0"]).contains("rambda"));
    fails(path, &["probe", "--directory", "no/such"], 2, &["--directory", "it is no directory"]);
    fails(path, &["reproduce", "strom", "--cache", "empty"], 2, &["--cache", "it is no directory"]);
    fails(path, &["node", "--listen", "127.0.0.1", "--deployers", "nobody here"], 2, &["token:FILE", "any"]);
    std::fs::write(path.join("junk.wasm"), "junk").unwrap();
    fails(path, &["kernel", "run", "junk.wasm"], 1, &["junk.wasm", "WebAssembly", ".wat"]);
    fails(path, &["kernel", "build", "junk.wasm"], 2, &["junk.wasm is a module already"]);
    fails(path, &["kernel", "run", "gone.c"], 1, &["cannot read gone.c"]);
    std::fs::write(path.join("s.json"), "{}").unwrap();
    fails(path, &["check", "merge", "s.json"], 1, &["s.json", "--shard I/N --save"]);
    fails(path, &["reproduce", "strom", "--mutate=luck"], 2, &["luck", "order"]);
    fails(path, &["reproduce"], 2, &["a subcommand is missing: strom, minos, bluefield, rambda, dfabric"]);
    fails(path, &["bench", "kernel", "--table", "12Q"], 2, &["--table", "512M"]);
    for bench in ["kernel", "dlrm"] {
        fails(path, &["bench", bench, "--table", "100T"], 2, &["--table asks for", "this machine has"]);
    }
    fails(path, &["bench", "dlrm", "--data", "gone"], 1, &["cannot read gone"]);
    fails(path, &["compare", "--operations", "get-trace"], 2, &["get-trace needs --trace"]);
    fails(path, &["check", "membership", "--nodes", "1"], 2, &["from 2 to 5"]);
    fails(path, &["node", "--listen", "127.0.0.1", "--cores", "4096"], 2, &["--cores 4096", "numbered from 0"]);
    fails(path, &["node", "--listen", "127.0.0.1", "--kernels", "empty"], 2, &["--kernels", "it is no directory"]);
    fails(path, &["compare", "--json", "--html", "-"], 2, &["both go to standard output"]);
    for args in [
        &["compare", "--json", "a.out", "--html", "a.out"][..],
        &["compare", "--no-html", "--json", "a.out", "--pcap", "a.out"],
        &["where", "get", "--on", "rambda", "--json", "a.out", "--csv", "a.out"],
        &["reproduce", "strom", "--json", "a.out", "--report", "a.out"],
    ] {
        fails(path, args, 2, &["both go to a.out"]);
    }
    fails(path, &["compare", "--no-html", "--records", "100M", "--value-bytes", "60k"], 2, &["--records asks for"]);
    std::fs::write(path.join("sum.wat"), include_str!("../../../kernels/template.wat")).unwrap();
    for args in [
        &["where", "get", "--on", "/dev/zero"][..],
        &["kernel", "run", "sum.wat", "--data", "/dev/zero"],
        &["compare", "--no-html", "--load", "/dev/zero"],
    ] {
        let says = if args[0] == "where" { "more than a megabyte" } else { "it is a device" };
        fails(path, args, 1, &["/dev/zero", says]);
    }
    std::fs::write(path.join("token"), vec![b'x'; 65_537]).unwrap();
    let long = ["kernel", "remove", "x", "--node", "127.0.0.1", "--token", "token"];
    fails(path, &long, 2, &["more than 65536 bytes are no token"]);
    // What would do nothing is refused, with what it would do something beside.
    for (flag, value) in
        [("--links", "udp"), ("--mtu", "1024"), ("--node", "127.0.0.2"), ("--local", "127.0.0.2"), ("--pcap", "a.pcap")]
    {
        fails(path, &["compare", "--on", "strom-10g", flag, value], 2, &[flag, "add --both"]);
    }
    fails(path, &["compare", "--on", "strom-10g", "--rings"], 2, &["--rings", "add --both"]);
    for (flag, value) in
        [("--args", "key"), ("--data", "x"), ("--fuel", "1k"), ("--accesses", "5"), ("--traffic", "1M")]
    {
        for on in [&["--on", "strom-10g"][..], &["--operations", "list"], &[]] {
            fails(path, &[&["compare", flag, value], on].concat(), 2, &[flag, "add --kernel"]);
        }
    }
    fails(path, &["compare", "--operations", "list", "--fresh"], 2, &["--fresh", "add --kernel"]);
    for on in [&["--on", "strom-10g"][..], &[]] {
        fails(path, &[&["compare", "--tolerance", "3"], on].concat(), 2, &["--tolerance", "add --baseline"]);
    }
    for (flag, value) in
        [("--records", "5"), ("--value-bytes", "5"), ("--distribution", "uniform"), ("--writer-rate", "5")]
    {
        fails(path, &["compare", "--kernel", "x.wat", flag, value], 2, &["--kernel", flag]);
    }
    fails(path, &["compare", "--kernel", "x.wat", "--placements", "auto"], 2, &["auto", "leave out --kernel"]);
    fails(path, &["compare", "--placements", "accel"], 2, &["this machine has no place accel", "--on"]);
    let both = ["compare", "--on", "rambda", "--both", "--placements", "accel"];
    fails(path, &both, 2, &["this machine has no place accel", "leave out --both"]);
    let on = ["compare", "--records", "10", "--operations", "list", "--on"];
    fails(
        path,
        &[&on[..], &["strom-10g", "-q", "--placements", "accel"]].concat(),
        2,
        &["takes client, nic, host there"],
    );
    fails(path, &[&on[..], &["rambda", "-q", "--placements", "accel,auto"]].concat(), 2, &["name client, nic or host"]);
    let odd: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff\xfe");
    for args in [&[odd][..], &["where".as_ref(), "get".as_ref(), "--on".as_ref(), odd]] {
        let output = command(path, &[]).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert_eq!(text(&output.stderr).lines().count(), 1, "{output:?}");
    }
    assert!(!path.join("remora-report.html").exists(), "nothing is left behind");
    let nobody = own_address();
    let args = ["compare", "--node", &nobody, "--records", "10", "--links", "udp", "--no-html"];
    let output = remora(path, &args);
    let last = text(&output.stderr).lines().last().unwrap_or_default().to_string();
    assert_eq!(output.status.code(), Some(1), "{last}");
    assert!(last.contains(&nobody) && last.contains("remora node --listen"), "{last}");
    // A file for figures of which there are none is what it was, and that is said.
    std::fs::write(path.join("old.json"), "old").unwrap();
    let output = remora(path, &[&args[..], &["--json", "old.json"]].concat());
    let last = text(&output.stderr).lines().last().unwrap_or_default().to_string();
    assert!(last.ends_with("; old.json was not written"), "{last}");
    assert_eq!(std::fs::read_to_string(path.join("old.json")).unwrap(), "old");
}

#[test]
fn modelled_places_are_those_that_were_named() {
    let directory = tempfile::tempdir().unwrap();
    let on = [
        "compare",
        "-q",
        "--no-html",
        "--seconds",
        "1ms",
        "--records",
        "100",
        "--operations",
        "get-hit",
        "--on",
        "rambda",
    ];
    for (named, left_out) in [("nic", "accel"), ("accel", "nic  ")] {
        let told = succeeds(directory.path(), &[&on[..], &["--placements", named]].concat());
        assert!(told.contains(&format!("  {named}*")) && !told.contains(&format!("\n  {left_out}")), "{told}");
        assert!(!told.contains("; ;"), "{told}");
    }
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
    assert!(table.contains("plain loop") && table.contains("by hand"), "{table}");
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(directory.path().join("k.json")).unwrap()).unwrap();
    assert_eq!(json["rows"].as_array().unwrap().len(), 8);
}

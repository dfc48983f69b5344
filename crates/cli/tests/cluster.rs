//! `remora cluster` as a user runs it.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use remora_testing::{eventually, skip};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn command(directory: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
    command.args(args).current_dir(directory).stdin(Stdio::null());
    command
}

fn remora(directory: &Path, args: &[&str]) -> (bool, String, String) {
    let Output { status, stdout, stderr } = command(directory, args).output().expect("the command runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.success(), text(stdout), text(stderr))
}

/// A cluster in the background.
struct Running(Child);

impl Running {
    fn start(directory: &Path, args: &[&str]) -> Self {
        let args = [&["cluster", "--json"][..], args].concat();
        let mut child =
            command(directory, &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("a line");
        let said: Result<Value, _> = serde_json::from_str(&line);
        assert!(said.is_ok_and(|said| said["serves"] == true), "{line}");
        Self(child)
    }

    /// Ends it in order, and gives what it said on stderr.
    fn stop(mut self) -> String {
        kill_process(Pid::from_child(&self.0), Signal::TERM).expect("running");
        let mut said = String::new();
        self.0.stderr.as_mut().expect("piped").read_to_string(&mut said).expect("text");
        assert!(self.0.wait().expect("ended").success(), "{said}");
        said
    }
}

#[test]
fn where_a_cluster_is_can_be_written_to_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let args = ["cluster", "--dir", "kv", "--json", "where.json"];
    let child = command(directory.path(), &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut running = Running(child);
    let lines = BufReader::new(running.0.stdout.as_mut().expect("piped")).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.starts_with("It serves.")));
    let written = std::fs::read_to_string(directory.path().join("where.json")).unwrap();
    let found: Value = serde_json::from_str(&written).unwrap();
    assert_eq!(
        (found["format"].as_str(), found["nodes"].as_array().map(Vec::len)),
        (Some("remora-cluster/1"), Some(3))
    );
    running.stop();
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn records_outlive_the_cluster_and_damage_to_a_log() {
    let directory = tempfile::tempdir().expect("directory");
    let at = directory.path();
    let cluster = Running::start(at, &["--nodes", "3", "--persistency", "synch"]);
    for key in 0..20 {
        let (key, value) = (key.to_string(), format!("value {key}"));
        assert_eq!(remora(at, &["cluster", "put", &key, &value]), (true, String::new(), String::new()));
    }
    // A node that waited for a core too long is left out for a while.
    eventually("three members at all nodes", || {
        let (ok, status, said) = remora(at, &["cluster", "status", "--json"]);
        assert!(ok, "{said}");
        let status: Value = serde_json::from_str(&status).expect("JSON");
        (0..3).all(|node| status["nodes"][node]["members"] == serde_json::json!([0, 1, 2])).then_some(())
    });
    assert_eq!(cluster.stop(), "");

    let (ok, _, said) = remora(at, &["cluster", "get", "1"]);
    assert!(!ok && said.lines().count() == 1, "{said}");
    let log = OpenOptions::new().write(true).open(at.join("remora-cluster/node-1/log")).expect("log");
    log.write_all_at(b"damage", 20).expect("written");
    let cluster = Running::start(at, &[]);
    for key in 0..20 {
        assert_eq!(remora(at, &["cluster", "get", &key.to_string()]).1, format!("value {key}\n"));
    }
    assert!(remora(at, &["cluster", "--link", "udp"]).2.contains("runs already"));
    let said = cluster.stop();
    assert!(said.contains("the log of node 1 is damaged at byte 0"), "{said}");
    assert!(remora(at, &["cluster", "--nodes", "5"]).2.contains("has --nodes 3"));
    // Repaired for good.
    assert_eq!(Running::start(at, &[]).stop(), "");
}

#[test]
fn what_was_read_and_cannot_be_written_is_a_failure() {
    let directory = tempfile::tempdir().expect("directory");
    let at = directory.path();
    let full = || OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    for (start, write, read) in [
        (&["--dir", "kv"][..], &["put", "7", "hello", "--dir", "kv"][..], &["get", "7", "--dir", "kv"][..]),
        (
            &["--dir", "bank", "--chain", "1M"],
            &["transact", "--dir", "bank", "--write", "0=5"],
            &["transact", "--dir", "bank", "--read", "0:1"],
        ),
    ] {
        let cluster = Running::start(at, start);
        assert_eq!(remora(at, &[&["cluster"], write].concat()), (true, String::new(), String::new()));
        let output = command(at, &[&["cluster"], read].concat()).stdout(full()).output().expect("runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains("cannot write to standard output"), "{said}");
        cluster.stop();
    }
}

#[test]
fn a_cluster_that_does_not_come_up_ends_when_it_is_told_to() {
    let directory = tempfile::tempdir().expect("directory");
    let mut child = command(directory.path(), &["cluster", "--dir", "c"]);
    let mut running = Running(child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts"));
    let nodes = eventually("a node", || {
        let of = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", running.0.id())).unwrap_or_default();
        // Before it has become one, its parent waits for it.
        let is_one = |id: &&str| {
            std::fs::read_to_string(format!("/proc/{id}/cmdline")).is_ok_and(|words| words.contains("\0node\0"))
        };
        let of: Vec<_> =
            of.split_whitespace().filter(is_one).filter_map(|id| Pid::from_raw(id.parse().ok()?)).collect();
        (!of.is_empty()).then_some(of)
    });
    // Long before it has made its log.
    nodes.iter().for_each(|&node| kill_process(node, Signal::STOP).expect("running"));
    kill_process(Pid::from_child(&running.0), Signal::INT).expect("running");
    let mut said = String::new();
    running.0.stderr.as_mut().expect("piped").read_to_string(&mut said).expect("text");
    assert!(running.0.wait().expect("ended").code() == Some(130) && said.ends_with("remora: interrupted\n"), "{said}");
}

#[test]
fn a_cluster_whose_terminal_goes_away_leaves_nothing_behind_unless_it_is_to_stay() {
    let directory = tempfile::tempdir().expect("directory");
    let start = |before: &str| {
        let line = format!("{before} exec \"$0\" cluster --scratch --json");
        let mut shell = Command::new("sh");
        shell.args(["-c", &line, env!("CARGO_BIN_EXE_remora")]).env("TMPDIR", directory.path());
        let mut child =
            shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("a line");
        assert!(line.contains("\"serves\":true"), "{line}");
        kill_process(Pid::from_child(&child), Signal::HUP).expect("running");
        Running(child)
    };
    let mut gone = start("");
    assert!(gone.0.wait().expect("its end").success());
    assert_eq!(std::fs::read_dir(directory.path()).expect("readable").count(), 0, "its directory is gone");
    // As `nohup` starts it.
    let mut stays = start("trap '' HUP;");
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(matches!(stays.0.try_wait(), Ok(None)));
    stays.stop();
}

#[test]
fn trouble_without_a_load_is_no_verdict() {
    let directory = tempfile::tempdir().expect("directory");
    let (ok, told, said) = remora(directory.path(), &["cluster", "kills", "--chain", "4K", "--kills", "50"]);
    assert!(!ok && !told.contains("strictly serializable"), "{told}");
    assert!(said.lines().last().is_some_and(|last| last.contains("give a larger --chain")), "{said}");
}

#[test]
fn transactions_of_several_places_outlive_their_chain() {
    let directory = tempfile::tempdir().expect("directory");
    let at = directory.path();
    let transact = |args: &[&str]| remora(at, &[&["cluster", "transact", "--dir", "bank"], args].concat());
    let chain = Running::start(at, &["--dir", "bank", "--chain", "1M", "--suspect", "2000"]);
    assert_eq!(transact(&["--write", "0=five", "--write", "4096=six"]), (true, String::new(), String::new()));
    let both = ["--read", "0:4", "--read", "4096:3"];
    assert_eq!(transact(&[&both[..], &["--node", "2"]].concat()).1, "five\nsix\n");
    let (ok, told, said) = transact(&[&both[..], &["--expect", "0=nine", "--write", "4096=ten"]].concat());
    assert!(!ok && told == "five\nsix\n" && said.contains("nothing was written"), "{told}{said}");
    let (ok, _, said) = transact(&[&both[..], &["--node", "3"]].concat());
    assert!(!ok && said.contains("no node 3: the cluster in bank has 0 to 2"), "{said}");
    let (ok, _, said) = remora(at, &["cluster", "get", "1", "--dir", "bank"]);
    assert!(!ok && said.contains("keeps a chain"), "{said}");
    assert!(remora(at, &["cluster", "status", "--dir", "bank"]).1.contains("chain"), "it says what it is");
    assert_eq!(chain.stop(), "");
    let chain = Running::start(at, &["--dir", "bank"]);
    assert_eq!(transact(&both).1, "five\nsix\n");
    assert_eq!(chain.stop(), "");
    assert!(remora(at, &["cluster", "--dir", "bank", "--chain", "2M"]).2.contains("has --chain 1048576"));
}

/// Three processes, each of which is killed in turn, and then all; the long form has more kills.
#[test]
fn transactions_of_many_clients_are_strictly_serializable_whoever_is_killed() {
    let directory = tempfile::tempdir().expect("directory");
    for (deployment, seed) in [("nic", "1"), ("host", "2")] {
        let args = ["cluster", "kills", "--chain", "16M", "--kills", "3", "--all-after", "3", "--within", "60000"];
        let more = ["--json", "kills.json", "--deployment", deployment, "--seed", seed];
        let (ok, told, said) = remora(directory.path(), &[&args[..], &more].concat());
        assert!(ok && told.contains("strictly serializable"), "{told}{said}");
        let figures = std::fs::read_to_string(directory.path().join("kills.json")).expect("figures");
        let figures: Value = serde_json::from_str(&figures).expect("JSON");
        assert!(figures["acknowledged_writes"].as_u64() > Some(100) && figures["violations"] == 0, "{figures}");
        assert!(figures["one_sided_reads"].as_u64() > Some(10), "{figures}");
        assert_eq!(figures["persistency"], "chain");
    }
}

/// The long form is `remora cluster kills`.
#[test]
fn killed_nodes_lose_nothing_and_hold_nobody_up_for_long() {
    let directory = tempfile::tempdir().expect("directory");
    for (args, seed) in [
        (["--persistency", "synch", "--deployment", "nic"], "1"),
        (["--persistency", "event", "--deployment", "host"], "2"),
    ] {
        // A machine that is busy with other tests may take longer than a second.
        let fixed =
            ["cluster", "kills", "--kills", "2", "--all-after", "2", "--within", "60000", "--json", "kills.json"];
        let (ok, told, said) = remora(directory.path(), &[&fixed[..], &["--seed", seed], &args].concat());
        assert!(ok, "{told}{said}");
        let figures = std::fs::read_to_string(directory.path().join("kills.json")).expect("figures");
        let figures: Value = serde_json::from_str(&figures).expect("JSON");
        assert!(figures["acknowledged_writes"].as_u64() > Some(100) && figures["violations"] == 0, "{figures}");
    }
}

#[test]
fn what_was_seen_before_an_interruption_is_checked() {
    let directory = tempfile::tempdir().expect("directory");
    for what in ["pauses", "kills"] {
        let args = ["cluster", what, &format!("--{what}"), "100000"];
        let mut child =
            command(directory.path(), &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        assert!(lines.next().is_some_and(|line| line.contains("seed")), "it begins");
        kill_process(Pid::from_child(&child), Signal::INT).expect("running");
        let told: Vec<String> = lines.collect();
        assert!(told.iter().any(|line| line.starts_with("Not complete: interrupted")), "{told:?}");
        assert!(told.iter().any(|line| line.contains("every record is linearizable")), "{told:?}");
        assert_eq!(child.wait().expect("ended").code(), Some(130), "{told:?}");
    }
}

/// The long form is `remora cluster pauses --pauses 1000`.
#[test]
fn nodes_that_stand_still_at_any_instant_answer_nothing_old() {
    let directory = tempfile::tempdir().expect("directory");
    for (deployment, seed) in [("nic", "1"), ("host", "2")] {
        let args =
            ["cluster", "pauses", "--pauses", "6", "--json", "pauses.json", "--deployment", deployment, "--seed", seed];
        let (ok, told, said) = remora(directory.path(), &args);
        assert!(ok, "{told}{said}");
        let figures = std::fs::read_to_string(directory.path().join("pauses.json")).expect("figures");
        let figures: Value = serde_json::from_str(&figures).expect("JSON");
        assert!(figures["read_late"].as_u64() > Some(0) && figures["violations"] == 0, "{figures}");
        assert!(figures["left_out"].as_u64() > Some(0), "the others went on: {figures}");
    }
    // A chain's, in turn: each of them, the head too.
    let args = ["cluster", "pauses", "--chain", "16M", "--pauses", "6", "--json", "pauses.json", "--seed", "3"];
    let (ok, told, said) = remora(directory.path(), &args);
    assert!(ok && told.contains("strictly serializable"), "{told}{said}");
    let figures = std::fs::read_to_string(directory.path().join("pauses.json")).expect("figures");
    let figures: Value = serde_json::from_str(&figures).expect("JSON");
    assert!(figures["one_sided_reads"].as_u64() > Some(10) && figures["violations"] == 0, "{figures}");
}

/// What a script says in a file system of so many MB; `$remora` is the command, `$log` a file elsewhere. None where there can
/// be no such file system.
fn on_a_disk_of(megabytes: u32, script: &str) -> Option<String> {
    let (disk, elsewhere) =
        (tempfile::tempdir().expect("a directory"), tempfile::NamedTempFile::new().expect("a file"));
    let mount = format!("mount -t tmpfs -o size={megabytes}m none \"$1\" || exit 77; cd \"$1\"; remora=$0; log=$2");
    let ran = Command::new("unshare")
        .args(["--mount", "sh", "-c", &format!("{mount}\n{script}"), env!("CARGO_BIN_EXE_remora")])
        .args([disk.path(), elsewhere.path()])
        .stdin(Stdio::null())
        .output();
    let remedy = "Run it as root, with util-linux";
    match ran {
        Err(error) => skip(format!("no unshare ({error})"), remedy),
        Ok(ran) if String::from_utf8_lossy(&ran.stderr).contains("unshare failed") || ran.status.code() == Some(77) => {
            skip("no file system of its own", remedy);
        }
        Ok(ran) => return Some(String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned()),
    }
    None
}

#[test]
fn a_disk_without_room_for_logs_is_told_before_nodes_start() {
    let Some(said) = on_a_disk_of(60, "\"$remora\" cluster --dir c; echo \"status $?\"") else { return };
    for part in ["the logs of 3 new nodes take 144 MiB in c", "name another --dir, or make room", "status 1"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("ready") && !said.contains("NodeStatus"), "{said}");
}

#[test]
fn a_cluster_starts_again_on_a_disk_that_is_full_and_serves_reads() {
    const SCRIPT: &str = r#"
        serve() {
            "$remora" cluster --dir c > "$log" 2>&1 & cluster=$!
            for n in $(seq 600); do
                if grep -q "It serves" "$log" || ! kill -0 $cluster 2> /dev/null; then return; fi
                sleep 0.1
            done
        }
        stop() { kill $cluster; wait $cluster; }
        serve; "$remora" cluster put 7 hello --dir c; stop
        dd if=/dev/zero of=fill bs=4k 2> /dev/null
        serve; "$remora" cluster get 7 --dir c; cat "$log"; stop"#;
    let Some(said) = on_a_disk_of(250, SCRIPT) else { return };
    assert!(said.starts_with("hello\n"), "{said}");
}

//! `remora bench minos` in a tiny form, with the peers that are installed.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn remora(directory: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
    command.args(["bench", "minos"]).args(args);
    command.current_dir(directory).stdin(Stdio::null()).output().expect("the command runs")
}

fn installed(program: &str) -> bool {
    ["/usr/bin", "/usr/sbin", "/usr/local/bin"].iter().any(|directory| Path::new(directory).join(program).is_file())
}

#[test]
fn peers_are_measured_or_named_as_missing() {
    let directory = tempfile::tempdir().unwrap();
    let args = "--models synch,scope --workloads writes,reads,e --clients 1,3 --records 20 --value-bytes 100 --seconds 0.05 \
                --directory . --json out.json --csv out.csv";
    let output = remora(directory.path(), &args.split_whitespace().collect::<Vec<_>>());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    let json: Value = serde_json::from_str(&read("out.json")).unwrap();
    assert!(json["appends_ns"].as_array().unwrap().iter().all(|append| append["ns"].as_u64().unwrap() > 0));
    for store in ["synch host", "synch nic", "scope host", "scope nic"] {
        assert_eq!(read("out.csv").lines().filter(|line| line.starts_with(store)).count(), 6);
    }
    assert!(text.contains("waits for its PERSIST"), "{text}");
    for (program, store) in [("etcd", "etcd"), ("redis-server", "redis WAIT 2")] {
        let rows: Vec<&Value> = json["rows"].as_array().unwrap().iter().filter(|row| row["store"] == store).collect();
        if !installed(program) {
            assert!(rows.is_empty() && text.contains("not installed: apt-get install"), "{text}");
            continue;
        }
        assert_eq!(rows.len(), 6, "three workloads, two numbers of clients");
        // In so short a time a busy machine may do nothing of a row.
        let mut all = 0;
        for row in rows {
            let [writes, reads] = ["writes", "reads"].map(|side| row[side]["count"].as_u64().unwrap());
            all += writes + reads;
            match row["workload"].as_str().unwrap() {
                "writes" => assert_eq!(reads, 0, "{row}"),
                "reads" => assert_eq!(writes, 0, "{row}"),
                _ => {}
            }
        }
        assert!(all > 0, "{text}");
        assert_eq!(read("out.csv").lines().filter(|line| line.starts_with(store)).count(), 6);
    }
    let left: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "the stores' data is gone: {left:?}");
}

#[test]
fn what_makes_no_sense_is_refused_in_a_line() {
    let directory = tempfile::tempdir().unwrap();
    let cases: [(&[&str], i32, &str); 7] = [
        (&["--skew", "1"], 2, "between 0 and 1"),
        (&["--clients", "0"], 2, "--clients"),
        (&["--workloads", "g"], 2, "--workloads"),
        (&["--peers", "oracle"], 2, "--peers"),
        (&["--at", "."], 2, "say --overwrite too"),
        (&["--at", ".", "--overwrite"], 2, "no cluster"),
        (&["--directory", "nowhere"], 1, "nowhere"),
    ];
    for (args, status, what) in cases {
        let output = remora(directory.path(), args);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{args:?}: {message}");
        assert!(message.lines().count() == 1 && message.contains(what), "{args:?}: {message}");
    }
}

//! `remora bench chain` in a tiny form, with the peers that are installed.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

fn installed(program: &str) -> bool {
    ["/usr/bin", "/usr/sbin", "/usr/local/bin"].iter().any(|directory| Path::new(directory).join(program).is_file())
}

#[test]
fn transactions_are_measured_at_each_store_that_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let args = "--clients 1,5 --records 100 --seconds 0.1 --directory . --json out.json --csv out.csv";
    let output = Command::new(env!("CARGO_BIN_EXE_remora"))
        .args(["bench", "chain"])
        .args(args.split_whitespace())
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .output()
        .expect("the command runs");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
    let json: Value = serde_json::from_str(&read("out.json")).unwrap();
    assert_eq!(json["format"], "remora-bench-chain/1");
    let mut stores = vec!["chain host", "chain nic", "one-sided host", "one-sided nic", "group verbs", "group + locks"];
    for (program, store) in [("etcd", "etcd"), ("redis-server", "redis WAIT 2")] {
        match installed(program) {
            true => stores.push(store),
            false => assert!(text.contains("not installed: apt-get install"), "{text}"),
        }
    }
    for store in stores {
        let rows: Vec<&Value> = json["rows"].as_array().unwrap().iter().filter(|row| row["store"] == store).collect();
        assert_eq!(rows.len(), 6, "three kinds of transactions, two numbers of clients: {store}");
        // In so short a time a busy machine may do nothing of a row.
        let counts = |side: &str| rows.iter().map(|row| row[side]["count"].as_u64().unwrap()).sum::<u64>();
        assert!(counts("writes") > 0 && counts("reads") > 0, "{text}");
        let reading = rows.iter().filter(|row| row["workload"] == "4,0");
        assert!(reading.map(|row| row["writes"]["count"].as_u64().unwrap()).sum::<u64>() == 0);
        assert_eq!(read("out.csv").lines().filter(|line| line.starts_with(store)).count(), 6);
    }
}

//! Runs that are split among processes, and what deploy/ starts them with.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use yaml_rust2::YamlLoader;

fn remora(directory: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_remora")).args(args).current_dir(directory).output().expect("the command runs")
}

fn succeeds(directory: &Path, args: &[&str]) -> String {
    let output = remora(directory, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// A run that must fail, and say all of `parts`.
fn fails(directory: &Path, args: &[&str], parts: &[&str]) {
    let output = remora(directory, args);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {message}");
    assert!(parts.iter().all(|part| message.contains(part)), "{args:?}: {message}");
}

fn deploy(file: &str) -> String {
    format!("{}/../../deploy/{file}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn storms_in_shards_are_the_storms_of_one_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let storms =
        ["storm", "minos", "--seed", "5", "--storms", "3", "--nodes", "3", "--deployment", "b", "--carriage", "plain"];
    let whole = succeeds(directory, &storms);
    for shard in ["0/2", "1/2"] {
        succeeds(directory, &[&storms[..], &["--shard", shard, "--json", &format!("{}.json", &shard[..1])]].concat());
    }
    let merged = succeeds(directory, &["storm", "merge", "0.json", "1.json"]);
    let sums = |text: &str| text.lines().skip(1).map(str::to_string).collect::<Vec<_>>();
    assert_eq!(sums(&merged), sums(&whole));
    assert!(merged.starts_with("3 storms of 2 shards from seed 5"), "{merged}");
    fails(directory, &["storm", "merge", "1.json"], &["shard 0/2 is missing"]);
    fails(directory, &["storm", "merge", "0.json", "1.json", "1.json"], &["shard 1/2 is there twice"]);
    fails(directory, &["check", "merge", "0.json"], &["it is no shard of a check", "--save FILE"]);
}

#[test]
fn what_cannot_be_written_does_not_hide_what_was_found() {
    let directory = tempfile::tempdir().expect("a directory");
    for (args, found) in [
        (&["check", "minos", "--model", "synch", "--writes", "1", "--save"][..], "holds in all states"),
        (&["storm", "chain", "--seed", "1", "--storms", "1", "--export"], "transactions done"),
        (&["storm", "minos", "--seed", "1", "--storms", "1", "--nodes", "3", "--export"], "operations"),
    ] {
        let output = remora(directory.path(), &[args, &["/dev/full"]].concat());
        let (told, message) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(1), "{args:?}: {message}");
        assert!(told.contains(found) && message.contains("cannot write /dev/full"), "{args:?}: {told}{message}");
    }
}

#[test]
fn a_check_in_shards_holds_as_one_run_does() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let check = ["check", "minos", "--model", "synch", "--writes", "1", "--crashes", "1", "--restarts", "1"];
    let states = |name: &str| {
        let text = std::fs::read_to_string(directory.join(name)).expect("a result");
        let result: Value = serde_json::from_str(&text).expect("JSON");
        result["figures"]["rows"][0]["distinct_states"].as_u64().expect("a number")
    };
    succeeds(directory, &[&check[..], &["--save", "whole.json"]].concat());
    for index in ["0", "1", "2"] {
        let (shard, file) = (format!("{index}/3"), format!("{index}.json"));
        succeeds(directory, &[&check[..], &["--shard", &shard, "--save", &file]].concat());
    }
    let merged = succeeds(directory, &["check", "merge", "0.json", "1.json", "2.json"]);
    assert!(merged.contains("holds in all states"), "{merged}");
    assert!(merged.lines().all(|line| line.chars().count() <= 80), "{merged}");
    let (whole, parts) = (states("whole.json"), ["0.json", "1.json", "2.json"].map(states));
    assert!(parts.iter().sum::<u64>() >= whole && parts.iter().all(|&part| part < whole), "{whole} {parts:?}");
    fails(directory, &["check", "merge", "0.json", "2.json"], &["shard 1/3 is missing"]);
    // One that a bound ended.
    let short = [&check[..], &["--shard", "1/3", "--max-states", "10", "--save", "1.json"]].concat();
    fails(directory, &short, &["not all states"]);
    fails(directory, &["check", "merge", "0.json", "1.json", "2.json"], &["shard 1/3 was ended"]);
}

#[test]
fn the_slurm_array_runs_shards() {
    let directory = tempfile::tempdir().expect("a directory");
    let task = |index: &str, count: &str| {
        let results = directory.path().join("results");
        let mut task = Command::new("bash");
        task.arg(deploy("slurm.sh")).args([
            "check",
            &results.display().to_string(),
            "--model",
            "event",
            "--writes",
            "1",
        ]);
        task.args(["--crashes", "1"]).env("REMORA", env!("CARGO_BIN_EXE_remora")).current_dir(directory.path());
        task.env("SLURM_ARRAY_TASK_ID", index).env("SLURM_ARRAY_TASK_COUNT", count).env("SLURM_ARRAY_TASK_MIN", "0");
        task.output().expect("bash runs")
    };
    assert!(task("0", "2").status.success());
    fails(directory.path(), &["check", "merge", "results/check-0.json"], &["shard 1/2 is missing"]);
    let second = task("1", "2");
    assert!(second.status.success(), "{}", String::from_utf8_lossy(&second.stderr));
    let merged = succeeds(directory.path(), &["check", "merge", "results/check-0.json", "results/check-1.json"]);
    assert!(merged.contains("holds in all states"), "{merged}");
    // What is whole is not run again, nor what failed; what was interrupted is.
    let file = directory.path().join("results/check-1.json");
    let whole = std::fs::read_to_string(&file).expect("a result");
    let failed = whole.replace("\"complete\":true,\"failure\":null", "\"complete\":false,\"failure\":\"it breaks\"");
    let ended = whole.replace("\"complete\":true,\"failure\":null", "\"complete\":false,\"failure\":null");
    assert!(failed != whole && ended != whole, "{whole}");
    let run_again = |there: &str| {
        std::fs::write(&file, there).expect("written");
        assert!(task("1", "2").status.success());
        std::fs::read_to_string(&file).expect("a result") != there
    };
    assert_eq!([&whole, &failed, &ended].map(|there| run_again(there)), [false, false, true]);
}

#[test]
fn the_kubernetes_job_is_well_formed_and_its_command_runs() {
    let text = std::fs::read_to_string(deploy("kubernetes.yaml")).expect("the file");
    let documents = YamlLoader::load_from_str(&text).expect("YAML");
    let job = documents.iter().find(|document| document["kind"].as_str() == Some("Job")).expect("a job");
    let spec = &job["spec"];
    assert_eq!(spec["completionMode"].as_str(), Some("Indexed"));
    let shards = spec["completions"].as_i64().expect("a number");
    let pod = &spec["template"]["spec"];
    let container = &pod["containers"][0];
    // What is mounted is there, and a claim of its name is made.
    assert_eq!(container["volumeMounts"][0]["name"], pod["volumes"][0]["name"]);
    let claim = pod["volumes"][0]["persistentVolumeClaim"]["claimName"].as_str();
    assert!(documents.iter().any(|document| document["metadata"]["name"].as_str() == claim && claim.is_some()));
    let args: Vec<String> = container["args"]
        .as_vec()
        .expect("a list")
        .iter()
        .map(|arg| arg.as_str().expect("text").replace("$(JOB_COMPLETION_INDEX)", "7"))
        .collect();
    assert!(args.contains(&format!("--shard=7/{shards}")), "{args:?}");
    // The same with less time, into a directory of its own.
    let directory = tempfile::tempdir().expect("a directory");
    let args: Vec<String> =
        args.iter().map(|arg| arg.replace("--seconds=86400", "--seconds=0.01").replace("/results/", "")).collect();
    succeeds(directory.path(), &args.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(directory.path().join("storm-7.json").exists());
}

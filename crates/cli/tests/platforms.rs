//! Platforms from the command line: what is described, what is probed, and what is told of it.

use std::path::Path;
use std::process::{Command, Output};

fn remora(directory: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_remora")).current_dir(directory).args(args).output().expect("the command runs")
}

fn succeeds(directory: &Path, args: &[&str]) -> String {
    let output = remora(directory, args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The one line that a failure says.
fn fails(directory: &Path, args: &[&str]) -> String {
    let output = remora(directory, args);
    assert!(!output.status.success() && output.stdout.is_empty(), "{args:?}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(errors.lines().count(), 1, "{errors}");
    errors
}

const OPERATION: &str = "title = \"a walk\"\nrequest = \"36 B\"\nreply = \"64 B\"\nstate = \"64 MiB\"\n\
                         [[access]]\ncount = 5\nsize = \"64 B\"\n";

#[test]
fn platforms_are_listed_and_shown() {
    let here = Path::new(".");
    let list = succeeds(here, &["platform", "list"]);
    for name in ["strom-10g", "strom-100g", "rambda", "bluefield1", "bluefield2", "minos", "dfabric"] {
        assert!(list.contains(name), "{list}");
    }
    let strom = succeeds(here, &["platform", "show", "strom-10g"]);
    assert!(strom.contains("host.pcie.read_latency") && strom.contains("StRoM 6.2"), "{strom}");
    assert!(fails(here, &["platform", "show", "nothing"]).contains("give one of strom-10g"));
}

#[test]
fn where_answers_and_names_mistakes() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("op.toml"), OPERATION).unwrap();
    std::fs::write(path("bad.toml"), OPERATION.replace("64 MiB", "64 Mb")).unwrap();
    let quick = ["--points", "8", "--simulate", "100", "--json", "w.json"];
    let args = [&["where", "op.toml", "--on", "strom-10g"], &quick[..]].concat();
    let answer = succeeds(directory.path(), &args);
    for part in ["on strom-10g", "simulated way", "What would have to change", "values: "] {
        assert!(answer.contains(part), "{part} is missing:\n{answer}");
    }
    let json = std::fs::read_to_string(path("w.json")).unwrap();
    assert!(json.contains("\"remora-where/1\"") && json.contains("\"ranking\""), "{json}");
    let with_csv = ["where", "op.toml", "--on", "strom-10g", "--on", "rambda", "--simulate", "0", "--csv", "w.csv"];
    succeeds(directory.path(), &with_csv);
    let csv = std::fs::read_to_string(path("w.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 3 + 4, "{csv}");
    assert!(
        csv.starts_with("operation,platform,place,alone_ns,") && csv.contains("\n\"a walk\",\"rambda\",accel,"),
        "{csv}"
    );
    let message = fails(directory.path(), &["where", "bad.toml", "--on", "strom-10g"]);
    assert!(message.contains("bad.toml, line 4: \"64 Mb\" is not a size"), "{message}");
    let message = fails(directory.path(), &["where", "none.toml", "--on", "strom-10g"]);
    assert!(message.contains("there is no operation \"none.toml\"") && message.contains("btree"), "{message}");
}

/// A workload of two senders on slow memory.
const RACKS: &str = "title = \"two streams\"\npattern = \"stream\"\nsize = \"2 MiB\"\nratio = 8.0\n";

#[test]
fn where_says_how_many_nics_to_pool_and_names_mistakes() {
    let directory = tempfile::tempdir().unwrap();
    let (here, path) = (directory.path(), |name: &str| directory.path().join(name));
    std::fs::write(path("racks.toml"), RACKS).unwrap();
    std::fs::write(path("bad.toml"), RACKS.replace("2 MiB", "2 Mb")).unwrap();
    let rack = |more: &[&'static str]| [&["where", "rack", "racks.toml", "--nics", "4"], more].concat();
    let on = |more: &[&'static str]| rack(&[&["--on", "dfabric"], more].concat());
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let fast = one_line(&succeeds(here, &on(&["--json", "w.json"])));
    for part in ["two streams of 2 MiB on dfabric", "pool 4 NICs a rack: ", "limited by a NIC of the pool", "none "] {
        assert!(fast.contains(part), "{part} is missing:\n{fast}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path("w.json")).unwrap()).expect("JSON");
    assert_eq!((&json["format"], &json["answers"][0]["answer"]["knee"]), (&"remora-where-rack/1".into(), &4.into()));
    // Half of what two such NICs bring is stored and fetched.
    let slow = one_line(&succeeds(here, &on(&["--devices", "1", "--device-bandwidth", "31.25 MB/s"])));
    assert!(slow.contains("pool 1 NIC a rack") && slow.contains("a memory device"), "{slow}");
    let few = one_line(&succeeds(here, &on(&["--gain", "90"])));
    assert!(few.contains("pool 2 NICs a rack") && few.contains("the next one brings no 90 %"), "{few}");
    let bad: [(Vec<&str>, &str); 9] = [
        (rack(&["--on", "strom-10g"]), "strom-10g has no section [rack]: what nodes of a rack share is not known"),
        (vec!["where", "rack", "bad.toml", "--on", "dfabric"], "bad.toml, line 3: \"2 Mb\" is not a size"),
        (
            vec!["where", "rack", "none", "--on", "dfabric"],
            "there is no workload of racks \"none\": give one of all-reduce",
        ),
        (vec!["where", "rack", "page-rank", "--size", "1M", "--on", "dfabric"], "--size is what the graph says"),
        (vec!["where", "all-reduce", "--on", "dfabric"], "`remora where rack all-reduce`"),
        (on(&["--ratio", "0"]), "--ratio is the bandwidth within a rack over a NIC's, from 0.1 to 1000"),
        (on(&["--device-bandwidth", "250"]), "give a bandwidth with its unit"),
        (on(&["--load"]), "--load"),
        (on(&["--size", "1G"]), "make size, rounds or nodes smaller"),
    ];
    for (args, said) in bad {
        let message = fails(here, &args);
        assert!(message.contains(said), "{message}");
    }
}

#[test]
fn clients_have_limits_and_what_is_ignored_of_them_is_said() {
    let here = Path::new(".");
    let asked = |platform: &'static str, more: &[&'static str]| {
        [&["where", "get", "--on", platform, "--points", "2", "--simulate", "0"], more].concat()
    };
    for (wrong, said) in [
        (&["--clients", "0"][..], "--clients are from 1 to 1024"),
        (&["--threads", "2000"], "--threads are from 1 to 1024"),
        (&["--client-skew", "3.5"], "--client-skew is the exponent of a zipfian, from 0 to 3"),
        (&["--loss", "0.5"], "--loss is the part of packets that are lost, from 0 to 0.1"),
        (&["--connections", "99999999999"], "--connections are from 1, one for each thread, to 10000000"),
        (&["--clients", "8", "--connections", "7"], "--connections are from 8"),
    ] {
        let message = fails(here, &asked("bluefield2", wrong));
        assert!(message.contains(said), "{message}");
    }
    assert!(fails(here, &["where", "--audit", "5", "--clients", "3"]).contains("--clients"));
    let ignored = "queue pairs, as the platform says nothing of what its NIC keeps of them";
    for (platform, said) in [("bluefield2", false), ("strom-10g", true)] {
        let answer = succeeds(here, &asked(platform, &["--clients", "4", "--connections", "10k"]));
        assert_eq!(answer.split_whitespace().collect::<Vec<_>>().join(" ").contains(ignored), said, "{answer}");
    }
}

#[test]
fn templates_are_operations() {
    let templates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies/where");
    let mut count = 0;
    for entry in std::fs::read_dir(&templates).unwrap() {
        let name = entry.unwrap().path();
        let args = ["where", name.to_str().unwrap(), "--on", "bluefield2", "--points", "2", "--simulate", "0"];
        assert!(succeeds(&templates, &args).contains("bluefield2"), "{}", name.display());
        count += 1;
    }
    assert!(count >= 6);
}

#[test]
fn a_platform_is_exported_changed_and_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let text = succeeds(directory.path(), &["platform", "export", "strom-10g", "--name", "mine"]);
    assert!(text.contains("name = \"mine\""), "{text}");
    std::fs::write(directory.path().join("mine.toml"), &text).unwrap();
    let same = succeeds(directory.path(), &["platform", "diff", "strom-10g", "mine.toml"]);
    assert_eq!(same.lines().count(), 1, "{same}");
    // A copy has the same name inside: what tells the two apart is the file.
    let copy = text.replace("value = 4, unit = \"count\"", "value = 3, unit = \"count\"").replace("[4, 4]", "[3, 4]");
    std::fs::write(directory.path().join("copy.toml"), copy).unwrap();
    let copy = succeeds(directory.path(), &["platform", "diff", "mine.toml", "copy.toml"]);
    let head = copy.lines().next().unwrap_or_default();
    assert!(head.contains(" mine.toml ") && head.ends_with(" copy.toml"), "{copy}");
    let other = succeeds(directory.path(), &["platform", "diff", "strom-10g", "strom-100g"]);
    assert!(other.lines().count() > 1 && other.contains("nic."), "{other}");
    // An operation that comes with the program, by its name.
    let quick = ["where", "btree", "--on", "mine.toml", "--points", "2", "--simulate", "0"];
    assert!(succeeds(directory.path(), &quick).contains("on mine"));
    assert!(fails(directory.path(), &["platform", "export", "nothing"]).contains("strom-10g"));
}

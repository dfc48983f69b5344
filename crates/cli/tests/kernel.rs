//! `remora kernel` and `remora compare --kernel`, by the real command.

mod node;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use node::Node;

fn remora(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_remora")).args(args).output().expect("the command runs")
}

fn text(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    out.into_owned()
}

fn failure(output: &Output) -> String {
    assert!(!output.status.success());
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(err.trim_end().lines().count(), 1, "one line: {err}");
    err
}

fn kernels(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels").join(name).to_string_lossy().into_owned()
}

/// Eight words: 0 to 7.
fn words(dir: &Path) -> PathBuf {
    let path = dir.join("words.bin");
    let bytes: Vec<u8> = (0..8u64).flat_map(u64::to_le_bytes).collect();
    std::fs::File::create(&path).and_then(|mut file| file.write_all(&bytes)).expect("a file");
    path
}

#[test]
fn a_kernel_is_built_deployed_called_kept_and_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    let keep = dir.path().join("kept").to_string_lossy().into_owned();
    let source = dir.path().join("sum.wat");
    std::fs::write(&source, text(&remora(&["kernel", "build", "--template", "wat"]))).expect("a file");
    let source = source.to_string_lossy().into_owned();
    assert!(text(&remora(&["kernel", "build", &source])).contains("sum.wasm"));

    let address = "127.15.1.1";
    let node = Node::start(address, &["--kernels", &keep]);
    let deployed = text(&remora(&["kernel", "deploy", &source, "--node", address, "--keep", "--fuel", "5000"]));
    assert!(deployed.contains("sum: op-code 0x100, version 1"), "{deployed}");
    let data = words(dir.path()).to_string_lossy().into_owned();
    let call = |place| {
        let call =
            ["kernel", "call", "sum", "--node", address, "--data", &data, "--args", "key,u32:8,va", "--place", place];
        call.map(str::to_string).to_vec()
    };
    for (place, more) in [("nic", &[][..]), ("host", &[]), ("client", &["--file", &source])] {
        let args = call(place);
        let args: Vec<&str> = args.iter().map(String::as_str).chain(more.iter().copied()).collect();
        assert_eq!(text(&remora(&args)), "0x000000000000001c 28\n", "at the {place}");
    }
    let over = ["kernel", "call", "sum", "--node", address, "--data", &data, "--args", "key,u32:9,va"];
    assert!(failure(&remora(&over)).contains("AccessDenied"), "one word more than there is");
    drop(node);

    let node = Node::start(address, &["--kernels", &keep]);
    let listed = text(&remora(&["kernel", "list", "--node", address, "--json"]));
    assert!(listed.contains("\"sum\"") && listed.contains("5000"), "{listed}");
    text(&remora(&["kernel", "remove", "sum", "--node", address]));
    assert!(text(&remora(&["kernel", "list", "--node", address])).contains("no kernels"));
    assert!(failure(&remora(&["kernel", "call", "sum", "--node", address])).contains("no kernel"));
    drop(node);
}

#[test]
fn what_cannot_be_kept_changes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let (deeper, outside) = (dir.path().join("deeper"), dir.path().join("outside.wasm"));
    let [keep, kernel] = [deeper.join("kept").to_string_lossy().into_owned(), kernels("topk.wasm")];
    let address = "127.15.1.2";
    let _node = Node::start(address, &["--kernels", &keep]);
    let deploy =
        |name| remora(&["kernel", "deploy", &kernel, "--name", name, "--node", address, "--keep", "--fuel", "5000"]);
    let list = || text(&remora(&["kernel", "list", "--node", address, "--json"]));
    text(&deploy("mine"));
    let before = list();

    // Names that lead elsewhere.
    for name in ["../../outside", "/outside", "a/b", ""] {
        let why = failure(&deploy(name));
        assert!(why.contains("name"), "{name:?}: {why}");
    }
    assert!(!outside.exists());

    // The directory is gone, and a file is where it was.
    std::fs::remove_dir_all(&keep).and_then(|()| std::fs::write(&keep, "a file")).expect("a file");
    let why = failure(&deploy("mine"));
    assert!(why.contains(&keep), "{why}");
    assert_eq!(list(), before, "what runs stays as it was");
}

#[test]
fn a_kernel_is_compared_in_all_places() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = words(dir.path()).to_string_lossy().into_owned();
    let json = dir.path().join("report.json").to_string_lossy().into_owned();
    let kernel = kernels("template.wat");
    let compare = [
        "compare",
        "--no-html",
        "--kernel",
        &kernel,
        "--data",
        &data,
        "--args",
        "key,u32:8,va",
        "--seconds",
        "0.02",
        "--json",
        &json,
    ];
    let report = text(&remora(&compare));
    for word in ["udp", "shm", "client", "nic", "host", "quickest"] {
        assert!(report.contains(word), "{word} in {report}");
    }
    let rows: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).expect("a report")).expect("JSON");
    assert_eq!(rows["rows"].as_array().map(Vec::len), Some(6));
    assert!(report.contains("fuel") && rows["per_call_at_most"]["accesses"].as_u64() > Some(0), "{report}{rows}");
}

/// Adds up words, logs each, and divides by zero at the end of its data.
const FAILS: &str = r#"(module
    (import "remora" "read" (func $read (param i32 i64 i32 i32) (result i32)))
    (import "remora" "log" (func $log (param i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 64) "hello")
    (global (export "params") i32 (i32.const 4096))
    (func $divide (param i32) (result i32) (i32.div_u (i32.const 1) (local.get 0)))
    (func (export "run") (param i32) (result i32)
      (drop (call $log (i32.const 64) (i32.const 5)))
      (drop (call $read (i32.load (i32.const 4096)) (i64.load (i32.const 4100)) (i32.const 0) (i32.const 8)))
      (call $divide (i32.load (i32.const 0)))))"#;

#[test]
fn a_kernel_that_fails_says_where_and_wins_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = words(dir.path()).to_string_lossy().into_owned();
    let file = dir.path().join("fails.wat");
    std::fs::write(&file, FAILS).expect("a file");
    let file = file.to_string_lossy().into_owned();
    let args = ["--data", &data, "--args", "key,va"];
    let run = [&["kernel", "run", &file, "--trace"][..], &args].concat();
    let output = remora(&run);
    let (told, said) = (String::from_utf8_lossy(&output.stdout), failure(&output));
    for part in ["log: hello", "read 8 bytes of 0x", "Trapped: fuel ", "integer divide by zero", "in divide at 0x"] {
        assert!(told.contains(part), "{part} in {told}");
    }
    assert!(said.contains("divide at 0x") && said.contains("integer divide by zero"), "{said}");

    let compare =
        [&["compare", "--no-html", "--kernel", &file, "--seconds", "0.01", "--links", "shm"][..], &args].concat();
    let output = remora(&compare);
    let (told, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{told}{said}");
    let figures = ["quickest", "p50", "--fuel", " ns"].iter().any(|part| told.contains(part));
    assert!(told.contains("shm          nic     Trapped") && !figures, "{told}");
    assert!(said.contains("Trapped") && said.contains("kernel run"), "{said}");
    // Further than its memory it is told so, here and where a denied access costs the connection.
    let beyond = ["--data", &data, "--args", "key,va+64"];
    let output = remora(&[&["kernel", "run", &file][..], &beyond].concat());
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("AccessDenied: fuel"),
        "as at a node, whatever it did then"
    );
    let compare =
        [&["compare", "-q", "--no-html", "--kernel", &file, "--seconds", "0.01", "--links", "shm"][..], &beyond]
            .concat();
    let said = failure(&remora(&compare));
    assert!(said.contains("at the client over shm, with AccessDenied") && said.contains("kernel run"), "{said}");
    // Nothing of it stays at a node that goes on, and programs are told too.
    let address = "127.15.1.2";
    let _node = Node::start(address, &[]);
    let report = dir.path().join("report.json").to_string_lossy().into_owned();
    for places in ["client", "nic,host"] {
        let more = ["--node", address, "--placements", places, "--json", &report];
        let said = failure(&remora(&[&compare[..], &more].concat()));
        assert!(said.contains("AccessDenied"), "at {places}: {said}");
        let figures: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&report).expect("a report")).expect("JSON");
        assert_eq!(figures["rows"][0]["failed"], remora_kernel::Status::AccessDenied.code(), "{figures}");
        assert!(text(&remora(&["kernel", "list", "--node", address])).contains("no kernels"), "at {places}");
    }
    // One word further it divides by one.
    let right = ["kernel", "run", &file, "--data", &data, "--args", "key,va+8"];
    let output = remora(&right);
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.starts_with("log: hello\nNotFound: fuel"), "{told}");
}

#[test]
fn a_kernel_that_does_not_get_what_it_wants_has_no_figures() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = words(dir.path()).to_string_lossy().into_owned();
    let kernel = kernels("template.wat");
    let given = ["--data", &data, "--args", "key,u32:8,va"];
    let compare = |more: &[&str]| {
        let args = ["compare", "-q", "--no-html", "--kernel", &kernel, "--seconds", "0.01"];
        let output = remora(&[&args, more].concat());
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(1), "{more:?}: {told}");
        let figures = ["quickest", "p50", "--fuel", " ns"].iter().any(|part| told.contains(part));
        assert!(!figures, "{more:?}: {told}");
        (told, failure(&output))
    };
    let (told, said) = compare(&[&given[..], &["--links", "shm", "--accesses", "7"]].concat());
    assert!(
        told.contains("host    Other(16)") && said.contains("accesses beyond 7 were refused (--accesses)"),
        "{told}{said}"
    );
    for on in [&["--links", "shm"][..], &["--on", "strom-10g"]] {
        let (told, said) = compare(&[&["--data", &data], on].concat());
        assert!(told.contains("host    BadParams") && said.contains("(none were given: --args)"), "{told}{said}");
    }
    // No data: a wild key and address, which at the client is a verb that is refused.
    let (told, said) = compare(&["--on", "strom-10g", "--args", "key,u32:8,va"]);
    assert!(told.is_empty() && said.contains("touched memory that its caller may not"), "{told}{said}");
    // What it ends with by itself stands above the figures.
    let never = dir.path().join("never.wat").to_string_lossy().into_owned();
    let module = r#"(module (memory (export "memory") 1) (global (export "params") i32 (i32.const 0))
        (func (export "run") (param i32) (result i32) (i32.const 77)))"#;
    std::fs::write(&never, module).expect("a file");
    for on in [&["--links", "shm"][..], &["--on", "strom-10g"]] {
        let args = ["compare", "-q", "--no-html", "--seconds", "0.01", "--kernel", &never];
        let told = text(&remora(&[&args, on].concat())).split_whitespace().collect::<Vec<_>>().join(" ");
        let status = told.find("its own status 77; what that means the kernel alone says").expect("the status");
        assert!(status < told.find("p50").expect("figures"), "{told}");
    }
}

#[test]
fn a_call_that_fails_says_what_it_was_not_given_and_a_trace_does_not_advise_itself() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = words(dir.path()).to_string_lossy().into_owned();
    let kernel = kernels("template.wat");
    let address = "127.15.1.3";
    let _node = Node::start(address, &[]);
    text(&remora(&["kernel", "deploy", &kernel, "--node", address]));
    let said = failure(&remora(&["kernel", "call", "template", "--node", address]));
    assert!(said.contains("BadParams") && said.contains("(none were given: --args)"), "{said}");
    let run = ["kernel", "run", &kernel, "--data", &data, "--args", "key,u32:8,va+8"];
    assert!(failure(&remora(&run)).contains("`remora kernel run FILE --trace` says where"));
    let said = failure(&remora(&[&run[..], &["--trace"]].concat()));
    assert!(said.contains("AccessDenied") && !said.contains("--trace"), "{said}");
    let said = failure(&remora(&["kernel", "run", &kernel, "--args", "bogus"]));
    assert!(said.contains("give key, len, va, va+N, or one of u8:"), "{said}");
}

#[test]
fn a_trap_names_the_line_of_its_source() {
    if !has_clang() {
        eprintln!("nothing is built: clang or lld is not there");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("trap.c");
    let source = "char params[4096];\nint run(int len) {\n  __builtin_trap();\n}\n";
    std::fs::write(&file, source).expect("a file");
    let output = remora(&["kernel", "run", &file.to_string_lossy(), "--module-memory", "1M"]);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        told.contains("in run at 0x") && told.contains("(trap.c:3)"),
        "{told}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn webassembly_is_measured_beside_native_kernels_and_hostile_ones_beside_neighbours() {
    let dir = tempfile::tempdir().expect("a directory");
    let json = dir.path().join("wasm.json").to_string_lossy().into_owned();
    let bench = ["bench", "wasm", "--rounds", "1", "--seconds", "0.02", "--table", "1M", "--json", &json];
    let report = text(&remora(&bench));
    for word in ["empty", "GET", "spins", "recurses", "traps", "nic", "host"] {
        assert!(report.contains(word), "{word} in {report}");
    }
    let figures: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).expect("figures")).expect("JSON");
    assert!(figures["pairs"].as_array().is_some_and(|pairs| pairs.len() == 4), "{figures}");
    let neighbours = figures["neighbours"].as_array().expect("neighbours");
    assert_eq!(neighbours.len(), 10);
    for row in neighbours.iter().filter(|row| row["beside"] == "spins to its fuel's end") {
        // None may have ended yet in so short a time.
        assert!(row["other_status"].is_null() || row["other_status"] == "StepLimit", "{row}");
    }
}

#[test]
fn mistakes_are_named_in_one_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let bad = dir.path().join("bad.wat");
    std::fs::write(&bad, "(module (memory 1))").expect("a file");
    let bad = bad.to_string_lossy().into_owned();
    assert!(failure(&remora(&["kernel", "build", &bad])).contains("no export memory"));
    assert!(failure(&remora(&["kernel", "build", "no.such"])).contains("ends in"));
    assert!(failure(&remora(&["kernel", "build", "no.wat"])).contains("no.wat"));
    let call = ["kernel", "call", "x", "--node", "127.15.2.1", "--args", "what:1"];
    assert!(failure(&remora(&call)).contains("what:1"));
}

fn has_clang() -> bool {
    let found = |tool: &str| Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    found("clang") && found("wasm-ld")
}

fn has_rust_target() -> bool {
    let target = ["--print", "target-libdir", "--target", "wasm32-unknown-unknown"];
    Command::new("rustc").args(target).output().is_ok_and(|output| {
        output.status.success() && Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir()
    })
}

/// Built again where their compiler is there, modules do what those do that are shipped.
#[test]
fn sources_behave_as_the_modules_that_are_shipped() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = words(dir.path()).to_string_lossy().into_owned();
    let address = "127.15.3.1";
    let _node = Node::start(address, &[]);
    let bounded = ["key,u32:0,va+56,i64:3,i64:0", "key,u32:0,va+56,i64:3,i64:5", "key,u32:0,va,i64:-1,i64:0"];
    let topk = ["key,u32:2,va,u64:4", "key,u32:0,va,u64:4", "key,u32:2,va,u64:1000000"];
    let sum = ["key,u32:8,va", "key,u32:9,va", "key"];
    for (source, shipped, there, calls) in [
        ("bounded.c", "bounded.wasm", has_clang(), bounded),
        ("template.c", "template.wat", has_clang(), sum),
        ("topk.rs", "topk.wasm", has_rust_target(), topk),
        ("template.rs", "template.wat", has_rust_target(), sum),
    ] {
        if !there {
            eprintln!("{source} is not built: its compiler or target is not there");
            continue;
        }
        let built = dir.path().join(source).with_extension("wasm").to_string_lossy().into_owned();
        text(&remora(&["kernel", "build", &kernels(source), "-o", &built]));
        text(&remora(&["kernel", "deploy", &built, "--name", "built", "--node", address]));
        text(&remora(&["kernel", "deploy", &kernels(shipped), "--name", "shipped", "--node", address]));
        for args in calls {
            let outcome = |name: &str| {
                let call = ["kernel", "call", name, "--node", address, "--data", &data, "--args", args];
                let output = remora(&call);
                (output.status.code(), output.stdout, output.stderr)
            };
            assert_eq!(outcome("built"), outcome("shipped"), "{source} with {args}");
        }
    }
}

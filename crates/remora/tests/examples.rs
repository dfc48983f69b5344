//! The examples run, each as a program of its own, and say what they are to say.

use std::process::{Command, Stdio};

/// Runs an example that `cargo test` has built, and returns what it said.
fn run(name: &str) -> String {
    let exe = std::env::current_exe().expect("this program");
    let program = exe.ancestors().nth(2).expect("a directory").join("examples").join(name);
    let output = Command::new(&program).stdin(Stdio::null()).output().unwrap_or_else(|e| {
        panic!("{}: {e}; `cargo test` builds examples unless told which targets to take", program.display())
    });
    assert!(output.status.success(), "{name}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn one_sided() {
    assert!(run("one_sided").contains("3 clients counted to 3000"));
}

#[test]
fn own_kernel() {
    // How long they take is the machine's affair.
    assert!(run("own_kernel").contains("on the node the whole search costs one"));
}

#[test]
fn replicated_store() {
    assert!(run("replicated_store").contains("300 additions were each done once"));
}

#[test]
fn modelled_study() {
    let said = run("modelled_study");
    assert_eq!(said, run("modelled_study"), "modelled time is the same each time");
    assert!(said.contains("rambda") && said.contains("accel"), "{said}");
}

/// Skips by itself where the program is missing, and fails there with `CI=true`.
#[test]
fn rdma_under_exec() {
    let said = run("rdma_under_exec");
    assert!(said.contains("usec/iter") || said.starts_with("skipped"), "{said}");
    if said.starts_with("skipped") {
        eprint!("{said}");
    }
}

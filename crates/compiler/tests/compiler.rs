//! The compiler as programs start it.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use remora_wasm::compiler::{Job, MAX_SOURCE};

const KERNEL: &str = r#"(module (memory (export "memory") 1) (global (export "params") i32 (i32.const 1024))
  (func (export "run") (param i32) (result i32) (i32.const 0)))"#;

fn run(argument: &str, source: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_remora-compiler"))
        .arg(argument)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    // One that refuses its argument does not read.
    let _ = child.stdin.take().expect("piped").write_all(source);
    child.wait_with_output().expect("it ends")
}

#[test]
fn a_text_becomes_a_module_and_a_module_code() {
    let module = run(Job::Text.name(), KERNEL.as_bytes());
    assert!(module.status.success() && module.stdout.starts_with(b"\0asm"), "{module:?}");
    assert_eq!(run(Job::Text.name(), &module.stdout).stdout, module.stdout, "a module stays what it is");
    let code = [Job::Module, Job::PlainModule].map(|job| run(job.name(), &module.stdout));
    assert!(code.iter().all(|code| code.status.success() && code.stdout.starts_with(b"\x7fELF")));
}

#[test]
fn what_cannot_be_compiled_is_refused_with_a_line() {
    let refused = |job: Job, source: &[u8], why: &str| {
        let output = run(job.name(), source);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(why) && said.lines().count() == 1 && output.stdout.is_empty(), "{said}");
    };
    refused(Job::Text, b"(module\n(func (export", "line 2, column 8: ");
    refused(Job::Module, b"no module", "magic");
    refused(Job::Module, &vec![0; MAX_SOURCE + 1], "a module of over");
    let output = run("everything", b"");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("Usage"));
    assert!(String::from_utf8_lossy(&run("--help", b"").stdout).contains("Usage"));
}

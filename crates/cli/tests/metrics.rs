//! What a node tells of itself: lines, figures for Prometheus, `remora top`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use remora_testing::{Running, eventually};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

const NODE: &str = "127.15.4.1";

fn remora(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_remora")).args(args).output().expect("the command runs");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{args:?}: {out}{err}");
    out.into_owned()
}

fn page(at: &str) -> String {
    let mut stream = TcpStream::connect(at).expect("the figures' port");
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("a request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

#[test]
fn a_node_says_who_comes_and_serves_its_figures() {
    let at = format!("127.0.0.1:{}", remora_testing::free_port());
    let mut node = Command::new(env!("CARGO_BIN_EXE_remora"))
        .args(["node", "--listen", NODE, "--memory", "64M", "--metrics", &at])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a node");
    let said = BufReader::new(node.stderr.take().expect("its errors"));
    let ready = BufReader::new(node.stdout.take().expect("its output"));
    let _ended = Running(node);
    let mut ready = ready.lines().map_while(Result::ok);
    assert_eq!(ready.next(), Some(format!("remora node ready at {NODE}")));

    remora(&["kernel", "list", "--node", NODE]);
    let mut said = said.lines().map_while(Result::ok);
    let [came, went] = [said.next(), said.next()].map(Option::unwrap_or_default);
    assert!(came.contains("connected over shm") && came.contains("path MTU 4096"), "{came}");
    assert!(went.contains("is gone"), "{went}");
    // The list is a call to the host; its figures are there within a second.
    let text = eventually("the call in the figures", || {
        let text = page(&at);
        text.contains("remora_call_seconds_count{place=\"host\",op=\"0x1007\"} 1").then_some(text)
    });
    for part in ["HTTP/1.1 200 OK", "# TYPE remora_call_seconds histogram", "remora_memory_limit_bytes 67108864"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let top = remora(&["top", &at, "--once", "--every", "10ms"]);
    assert!(top.contains(&at) && top.contains("calls/s"), "{top}");
    assert!(top.lines().all(|line| line.chars().count() <= 80), "{top}");
}

/// A node that has no descriptors left for a while serves its figures again when it has.
#[test]
fn figures_come_back_after_a_want_of_descriptors() {
    let at = format!("127.0.0.1:{}", remora_testing::free_port());
    let mut node = Command::new(env!("CARGO_BIN_EXE_remora"))
        .args(["node", "--listen", "127.15.4.2", "--memory", "64M", "--metrics", &at])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a node");
    let ready = BufReader::new(node.stdout.take().expect("its output")).lines().next();
    assert!(ready.is_some_and(|line| line.is_ok_and(|line| line.contains("ready"))));
    let id = Pid::from_child(&node);
    let _ended = Running(node);
    assert!(page(&at).contains("200 OK"));
    let maximum = getrlimit(Resource::Nofile).maximum;
    let may_have = |current| prlimit(Some(id), Resource::Nofile, Rlimit { current, maximum });
    // Fewer than it has open.
    let before = may_have(Some(3)).expect("a limit");
    let mut waits = TcpStream::connect(&at).expect("the kernel takes it");
    waits.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("a request");
    std::thread::sleep(std::time::Duration::from_millis(300));
    may_have(before.current).expect("a limit");
    let mut text = String::new();
    waits.read_to_string(&mut text).expect("an answer");
    assert!(text.contains("200 OK"), "{text}");
}

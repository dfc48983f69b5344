//! A node process, for tests that are its clients.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A node that ends with this value.
pub struct Node(Child);

impl Node {
    /// One with 64 MB at this address, once it is ready.
    pub fn start(address: &str, more: &[&str]) -> Node {
        let mut child = Command::new(env!("CARGO_BIN_EXE_remora"))
            .args(["node", "--listen", address, "--memory", "64M", "--stop-with-stdin"])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a node");
        let mut line = String::new();
        let output = child.stdout.take().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("its first line");
        assert!(line.contains("ready"), "{line}");
        Node(child)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

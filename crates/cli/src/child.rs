//! A node as a child process.

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::capture::beside;
use crate::node::READY;

/// How long a node may take to be up.
const START: Duration = Duration::from_secs(20);
/// How long a node may take to end.
const END: Duration = Duration::from_secs(4);

/// A node that ends with this value.
pub struct ChildNode {
    child: Child,
}

impl ChildNode {
    /// Starts a node at `address` and waits until it can be reached.
    pub fn start(address: IpAddr) -> Result<Self, Failure> {
        Self::start_captured(address, None)
    }

    /// Starts one that writes its packets into a file beside `pcap`, if there is that.
    pub fn start_captured(address: IpAddr, pcap: Option<&Path>) -> Result<Self, Failure> {
        let failed = |e| Failure::Failed(format!("cannot start a node as a child process: {e}"));
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(program);
        // It serves this user's own data: only the machine limits it.
        command.args(["node", "--listen", &address.to_string(), "--memory", "64T", "--stop-with-stdin"]);
        if let Some(pcap) = pcap {
            command.arg("--pcap").arg(beside(pcap, "node"));
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for the parent, which ends the node in order.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let output = child.stdout.take();
        let node = Self { child };
        let (up, is_up) = mpsc::channel();
        thread::spawn(move || {
            let lines = output.map(|output| BufReader::new(output).lines()).into_iter().flatten();
            // Reads on to the end, so that the node never waits for its reader.
            for line in lines.map_while(Result::ok) {
                let _ = line.starts_with(READY).then(|| up.send(()));
            }
        });
        match is_up.recv_timeout(START) {
            Ok(()) => Ok(node),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(Failure::Failed(format!("the node at {address} did not start: its message is above")))
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(Failure::Failed(format!("the node at {address} is not up after {} s", START.as_secs())))
            }
        }
    }
}

impl Drop for ChildNode {
    fn drop(&mut self) {
        // The end of its input ends the node.
        drop(self.child.stdin.take());
        let end = Instant::now() + END;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > end {
                // If it is gone by now, all the better.
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

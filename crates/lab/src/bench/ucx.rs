//! `ucx_perftest`, where it is installed, as the named peer: put latency and bandwidth between two processes.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{bound, installed};

/// What `ucx_perftest` says of one transport.
#[derive(Clone, Debug)]
pub struct UcxRow {
    /// Its way: "tcp"; "posix", by shared memory that both have mapped; "cma", with the kernel's cross-memory copy too, which it has no use
    /// for as long as it makes the memory itself, mapped by both; or "heap", the same with memory as a program has it.
    pub transport: &'static str,
    /// 64 B put, one way, in nanoseconds.
    pub latency_ns: f64,
    /// 64 KB puts, in GB/s.
    pub gb_per_s: f64,
}

/// Port of the first test; each takes the next.
const PORT: u16 = 13_400;
/// A test that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Runs it over TCP on loopback, over shared memory, and with the kernel's cross-memory copy, of memory of its own making and of a
/// program's. Empty if it is not installed or fails; `going` says whether to go on.
pub fn ucx(going: &mut dyn FnMut() -> bool) -> Vec<UcxRow> {
    let mut port = PORT;
    let mut test = |transport, kind, size: &str, rounds: &str| {
        port += 1;
        going().then(|| measure(transport, kind, size, rounds, port)).flatten()
    };
    ["tcp", "posix", "cma", "heap"]
        .into_iter()
        .filter_map(|transport| {
            let latency = test(transport, "ucp_put_lat", "64", "20000")?;
            let bandwidth = test(transport, "ucp_put_bw", "65536", "20000")?;
            // Latency in microseconds (median) is the second column of the last line, bandwidth in MB/s the fifth.
            let (latency_ns, gb_per_s) = (latency.first()? * 1e3, bandwidth.get(3)? * 1024.0 * 1024.0 / 1e9);
            Some(UcxRow { transport, latency_ns, gb_per_s })
        })
        .collect()
}

/// One test: a server and a client process. The client's last line of numbers, after the count of rounds.
fn measure(transport: &str, kind: &str, size: &str, rounds: &str, port: u16) -> Option<Vec<f64>> {
    let program = installed("ucx_perftest")?;
    let mut server = command(bound(&program), transport, port);
    let mut server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    std::thread::sleep(Duration::from_millis(300));
    let client = command(Command::new(program), transport, port)
        .args(["127.0.0.1", "-t", kind, "-s", size, "-n", rounds, "-w", "1000", "-f"])
        // Ctrl-C is for this process, which waits for the figure.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let output = client.ok().and_then(finish);
    // It has ended by itself if all went well.
    let _ = server.kill();
    let _ = server.wait();
    let text = String::from_utf8(output?).ok()?;
    let last = text.lines().rev().find(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()))?;
    let numbers: Vec<f64> = last.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    numbers.get(1..).map(<[f64]>::to_vec)
}

fn command(mut command: Command, transport: &str, port: u16) -> Command {
    let tls = match transport {
        "tcp" => "tcp",
        // It needs one that says where memory is.
        "cma" | "heap" => "cma,self,shm",
        _ => "posix,self",
    };
    if transport == "heap" {
        command.env("UCX_ALLOC_PRIO", "heap");
    }
    command.env("UCX_TLS", tls).env("UCX_NET_DEVICES", if transport == "tcp" { "lo" } else { "all" });
    command.env("UCX_WARN_UNUSED_ENV_VARS", "n").arg("-p").arg(port.to_string());
    command
}

fn finish(mut child: Child) -> Option<Vec<u8>> {
    let start = Instant::now();
    while child.try_wait().ok()?.is_none() {
        if start.elapsed() > TIMEOUT {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().ok()?;
    output.status.success().then_some(output.stdout)
}

//! An RDMA program of the system, unmodified, on Remora: a server and a client of `ibv_rc_pingpong` under `remora exec`.
//!
//! ```sh
//! sudo apt-get install ibverbs-utils
//! cargo build -p remora-cli -p remora-verbs
//! cargo run -p remora --example rdma_under_exec
//! ```
//!
//! Where the program or the command is missing it says so and ends well; with `CI=true` that is a failure.

use std::error::Error;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Each message goes there and back, and every byte is checked.
const PROGRAM: &[&str] = &["ibv_rc_pingpong", "-g", "1", "-n", "1000", "-s", "4096", "-c"];
/// How long all this may take.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    let remora = match (installed(PROGRAM[0]), beside("remora"), beside("libibverbs.so")) {
        (None, ..) => return missing("ibv_rc_pingpong is not installed: apt-get install ibverbs-utils"),
        (_, None, _) | (.., None) => {
            return missing("remora and its verbs library are not built: cargo build -p remora-cli -p remora-verbs");
        }
        (_, Some(remora), _) => remora,
    };
    // The programs exchange their queue pair numbers over TCP. Freed again, the port is nobody else's in a moment.
    let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port().to_string();
    let start = |host: Option<&str>| {
        let mut command = Command::new(&remora);
        command.args(["exec", "--"]).args(PROGRAM).args(["-p", &port]).args(host);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    };
    println!("remora exec -- {} &", PROGRAM.join(" "));
    let mut server = start(None)?;
    println!("remora exec -- {} localhost", PROGRAM.join(" "));
    let begun = Instant::now();
    let said = loop {
        let client = start(Some("127.0.0.1"))?;
        match finish(client, begun) {
            Ok(said) => break said,
            // Nothing listens yet.
            Err(_) if server.try_wait()?.is_none() && begun.elapsed() < PATIENCE => {}
            Err(e) => {
                let _ = server.kill();
                return Err(e);
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    finish(server, begun)?;
    for line in said.lines().filter(|line| line.contains("usec/iter") || line.contains("Mbit/sec")) {
        println!("  {line}");
    }
    Ok(())
}

/// What a program says until its end, which must be a good one.
fn finish(mut child: Child, begun: Instant) -> Result<String, Box<dyn Error>> {
    while child.try_wait()?.is_none() {
        if begun.elapsed() > PATIENCE {
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// A program on the path.
fn installed(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// What cargo has built into the directory above this program's.
fn beside(name: &str) -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?;
    exe.ancestors().skip(1).take(2).map(|dir| dir.join(name)).find(|path| path.is_file())
}

fn missing(what: &str) -> Result<(), Box<dyn Error>> {
    if std::env::var_os("CI").is_some_and(|ci| ci == "true") {
        return Err(what.into());
    }
    println!("skipped: {what}");
    Ok(())
}

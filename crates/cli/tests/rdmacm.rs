//! rdma-core's own librdmacm and its programs through `remora exec`, on two devices of this machine.
//!
//! Skipped, with the reason printed, where Debian's rdmacm-utils or the verbs library (`cargo build -p remora-verbs`) is
//! missing; a failure there where `CI=true`.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use remora_testing::{eventually, skip};

const REMORA: &str = env!("CARGO_BIN_EXE_remora");

/// What a client says whose server does not listen yet.
const EARLY: [&str; 3] = ["REJECTED, error 8", "error: 8", "Connection refused"];

/// Whether the tests can run; says why not.
fn ready(program: &str) -> bool {
    let installed = Path::new("/usr/bin").join(program).exists();
    let library = Path::new(REMORA).with_file_name("libibverbs.so").exists();
    if !installed {
        skip(format!("{program} is not installed"), "Install the package rdmacm-utils");
    } else if !library {
        skip("libibverbs.so is not beside remora", "Run cargo build -p remora-verbs");
    }
    installed && library
}

/// How a program ended.
struct End {
    /// `None` if it took too long.
    status: Option<ExitStatus>,
    said: String,
    complaints: String,
}

impl End {
    fn is_good(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}

/// A program on a device; killed when dropped.
struct Program {
    child: Child,
}

impl Program {
    fn start(address: &str, link: &str, words: &[&str]) -> Self {
        let child = Command::new(REMORA)
            .args(["exec", "--device-address", address, "--link", link, "--"])
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("remora starts");
        Self { child }
    }

    /// Waits for the end, for so long.
    fn end(&mut self, within: Duration) -> End {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("a child can be waited for") {
                Some(status) => break Some(status),
                None if start.elapsed() > within => break None,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let _ = self.child.kill();
        let (mut said, mut complaints) = (String::new(), String::new());
        let _ = self.child.stdout.as_mut().expect("piped").read_to_string(&mut said);
        let _ = self.child.stderr.as_mut().expect("piped").read_to_string(&mut complaints);
        eprint!("{complaints}");
        End { status, said, complaints }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Addresses for a server and a client that nobody else uses.
fn addresses() -> (String, String) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (pid, next) = (std::process::id(), NEXT.fetch_add(2, Ordering::Relaxed));
    let address = |n: u32| format!("127.{}.{}.{}", 64 + pid % 64, pid / 64 % 256, 2 + n);
    (address(next), address(next + 1))
}

/// What a server says that failed when all was done. Who is done ends, and if its last acknowledgement is lost, nobody is
/// left to repeat it (docs/interop.md); and rping's thread may ask for one more event of a channel that its other thread
/// has closed.
const DONE: [&str; 2] = ["cq completion failed status 12", "rdma_get_cm_event: Bad file descriptor"];

/// So many runs of at most so many end well at both sides. Of a pair whose end fails in one of ten runs, three of five
/// fail in one of a hundred tests; such ends are far rarer than that.
const GOOD: u32 = 3;
const RUNS: u32 = 5;

/// Runs a server and a client, `SRV` standing for the server's address, until it is decided that enough runs end well. All
/// that may fail in the others is the end.
fn meet(link: &str, server: &[&str], client: &[&str], server_ends: bool) {
    let (mut runs, mut good) = (0, 0);
    while good < GOOD && runs < RUNS {
        runs += 1;
        match run(link, server, client, server_ends) {
            None => good += 1,
            Some(end) => {
                let done = end.status.is_some() && DONE.iter().any(|word| end.complaints.contains(word));
                assert!(done, "{server:?} ended with {:?}: {}", end.status, end.said);
            }
        }
    }
    println!("{server:?} over {link}: {good} of {runs} runs ended well");
    assert!(good >= GOOD, "{server:?} ended well in only {good} of {runs} runs");
}

/// Runs them once. A client that came before its server listened is started again: servers do not say when they do, and
/// only a client can ask. Returns how the server failed, if it did.
fn run(link: &str, server: &[&str], client: &[&str], server_ends: bool) -> Option<End> {
    let (here, there) = addresses();
    let mut first = Program::start(&here, link, server);
    let client: Vec<&str> = client.iter().map(|word| if *word == "SRV" { &here } else { *word }).collect();
    eventually(format!("{client:?} meets its server"), || {
        let End { status, said, .. } = Program::start(&there, link, &client).end(Duration::from_secs(60));
        let good = status.is_some_and(|status| status.success());
        let early = status.is_some() && (said.is_empty() || EARLY.iter().any(|word| said.contains(word)));
        assert!(good || early, "{client:?} ended with {status:?}: {said}");
        good.then_some(())
    });
    server_ends.then(|| first.end(Duration::from_secs(60))).filter(|end| !end.is_good())
}

#[test]
fn rping_verifies_its_data() {
    if ready("rping") {
        for link in ["shm", "udp"] {
            let words = ["rping", "-V", "-C", "10", "-S", "5000"];
            meet(link, &[&words[..], &["-s"]].concat(), &[&words[..], &["-c", "-a", "SRV"]].concat(), true);
        }
    }
}

#[test]
fn connections_and_datagrams() {
    if ready("ucmatose") {
        meet("auto", &["ucmatose", "-c", "5"], &["ucmatose", "-c", "5", "-s", "SRV"], true);
        meet("auto", &["udaddy", "-c", "3"], &["udaddy", "-c", "3", "-s", "SRV"], true);
        meet("auto", &["rdma_server"], &["rdma_client", "-s", "SRV"], true);
    }
}

#[test]
fn a_hundred_connections_at_once() {
    if ready("cmtime") {
        meet("auto", &["cmtime"], &["cmtime", "-c", "100", "-s", "SRV"], false);
    }
}

#[test]
fn rsockets_stream() {
    if ready("rstream") {
        let words = ["rstream", "-T", "v", "-C", "20"];
        meet("auto", &words, &[&words[..], &["-s", "SRV"]].concat(), true);
        // Polled sockets at the server: a client that polls takes the server's hanging up for an error.
        let polled = [&words[..], &["-T", "a"]].concat();
        meet("udp", &polled, &[&words[..], &["-T", "b", "-s", "SRV"]].concat(), true);
    }
}

#[test]
fn the_peer_of_a_killed_process_hears_of_it() {
    if !ready("rping") {
        return;
    }
    let (here, there) = addresses();
    let mut server = Program::start(&here, "udp", &["rping", "-s"]);
    // It goes on without end, and says what it has heard, once it has met its server.
    let client = eventually("a client meets its server", || {
        let mut client = Program::start(&there, "udp", &["rping", "-c", "-v", "-a", &here]);
        let mut said = BufReader::new(client.child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        said.any(|line| line.contains("ping data")).then_some(client)
    });
    drop(client);
    assert!(server.end(Duration::from_secs(60)).status.is_some(), "the server still waits for a peer that is no more");
}

//! Programs of two racks, which are network namespaces joined by several links: their connections go by all of them, and are
//! what TCP's are.
//!
//! Skipped, with the reason printed, where namespaces or the sockets library cannot be had; a failure there where `CI=true`.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use remora_testing::{Namespaces, Running, eventually, skip};
use rustix::process::{Pid, Signal, kill_process};

const REMORA: &str = env!("CARGO_BIN_EXE_remora");
const LINKS: usize = 3;
const PORT: &str = "5555";

/// Lines of a program, in the order in which it says them.
struct Said(BufReader<ChildStdout>);

impl Said {
    fn by(child: &mut Child) -> Self {
        Self(BufReader::new(child.stdout.take().expect("its output")))
    }

    /// Waits until it says so.
    fn until(&mut self, what: &str) {
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).expect("its output") > 0, "it ended before it said {what}");
            print!("{line}");
            if line.contains(what) {
                return;
            }
        }
    }

    fn rest(mut self) -> String {
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).expect("its output");
        rest
    }
}

struct Racks {
    /// Before the namespaces: they end first.
    daemons: Vec<(Running, Said)>,
    namespaces: Namespaces,
    dir: tempfile::TempDir,
}

fn program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/racks.py")
}

impl Racks {
    fn new() -> Option<Self> {
        Self::with_links(|_| ())
    }

    /// It looks as if TCP did not get from one to the other: all goes by the gates from the first byte on, if it can.
    fn by_gates() -> Option<Self> {
        Self::with_links(|namespaces| {
            let rule = "rule add unreachable ipproto tcp dport 7471 pref 100";
            (0..2).for_each(|side| namespaces.ip(side, rule).expect("a rule"));
        })
    }

    fn with_links(change: impl Fn(&Namespaces)) -> Option<Self> {
        if !Path::new(REMORA).with_file_name("libremora_sockets.so").exists() {
            skip("libremora_sockets.so is not beside remora", "Run cargo build -p remora-sockets");
            return None;
        }
        let namespaces = Namespaces::new(LINKS, 9000)?;
        namespaces.shape(200);
        change(&namespaces);
        let dir = tempfile::tempdir().expect("a directory");
        let secret = dir.path().join("secret");
        std::fs::write(&secret, [7; 32]).expect("a secret");
        std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("its mode");
        let mut racks = Self { daemons: Vec::new(), namespaces, dir };
        racks.daemons = (0..2).map(|side| racks.daemon(side)).collect();
        racks.until_joined();
        Some(racks)
    }

    fn daemon(&self, side: usize) -> (Running, Said) {
        let way = |link| format!("{}={}", Namespaces::address(side, link), Namespaces::address(1 - side, link));
        let ways: Vec<String> = (0..LINKS).map(way).collect();
        let mut command = self.namespaces.command(side, REMORA);
        command.args(["rack", "--to", &ways.join(","), "--secret"]).arg(self.dir.path().join("secret"));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
        let said = Said::by(&mut child);
        (Running(child), said)
    }

    fn until_joined(&mut self) {
        for (_, said) in &mut self.daemons {
            said.until(&format!("{LINKS} of {LINKS} NICs"));
        }
    }

    /// A side's gate, which is its daemon's child.
    fn gate(&self, side: usize) -> Pid {
        let daemon = self.daemons[side].0.0.id();
        eventually("a gate", || {
            let children = std::fs::read_to_string(format!("/proc/{daemon}/task/{daemon}/children")).ok()?;
            Pid::from_raw(children.split_whitespace().next()?.parse().ok()?)
        })
    }

    /// A program on a side, in its rack.
    fn run(&self, side: usize, words: &[&str]) -> (Running, Said) {
        let mut command = self.namespaces.command(side, REMORA);
        command.args(["rack", "exec", "--", "/usr/bin/timeout", "300"]).args(words);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
        let said = Said::by(&mut child);
        (Running(child), said)
    }

    fn python(&self, side: usize, words: &[&str]) -> (Running, Said) {
        let program = program();
        self.run(side, &[&["/usr/bin/python3", program.to_str().expect("a path")][..], words].concat())
    }

    /// A server on a side, once it is there: until it is dropped.
    fn serving(&self, side: usize, words: &[&str]) -> (Running, Said) {
        let (server, mut said) = self.python(side, words);
        said.until("ready");
        (server, said)
    }
}

/// A program ends well, and says no more than this.
fn ends_with((mut program, said): (Running, Said), last: &str) {
    assert_eq!(said.rest().trim(), last);
    assert!(program.0.wait().expect("its end").success());
}

#[test]
fn connections_between_racks_are_what_they_were() {
    all_is_as_it_was(Racks::new());
}

#[test]
fn connections_that_go_by_the_gates_at_once_are_what_they_were() {
    all_is_as_it_was(Racks::by_gates());
}

fn all_is_as_it_was(racks: Option<Racks>) {
    let Some(mut racks) = racks else { return };
    let _server = racks.serving(1, &["serve", PORT]);
    let [server, own, other] = [(1, 1), (0, 1), (0, 2)].map(|(side, link)| Namespaces::address(side, link));
    let (mut client, said) = racks.python(0, &["all", &server, PORT, &own, &other]);
    let lines = said.rest();
    assert!(client.0.wait().expect("its end").success(), "{lines}");
    assert_eq!(lines.lines().count(), 15, "{lines}");

    // A link is cut amid the bytes, and nobody notices.
    let (mut client, mut said) = racks.python(0, &["push", &server, PORT, "20000000"]);
    said.until("half");
    racks.namespaces.ip(1, "link set v2 down").expect("cut");
    said.until("whole");
    assert!(client.0.wait().expect("its end").success());
    racks.namespaces.ip(1, "link set v2 up").expect("joined");

    // The gate says at its end by which NICs bytes went.
    let (daemon, said) = racks.daemons.remove(0);
    kill_process(Pid::from_raw(daemon.0.id() as i32).expect("a process"), Signal::TERM).expect("it ends");
    let lines = said.rest();
    let brought: Vec<&str> = lines.lines().filter(|line| line.contains(" MB")).collect();
    assert_eq!(brought.len(), LINKS, "{lines}");
    assert!(brought.iter().all(|line| !line.ends_with(" 0.0 MB")), "{lines}");
    let went = lines.lines().find_map(|line| line.strip_suffix(" connections went by the gate. Brought over:"));
    assert!(went.is_some_and(|count| count.parse::<usize>().is_ok_and(|count| count > 10)), "{lines}");
}

/// Small messages have the kernel's way, which wakes nobody in between.
#[test]
fn what_is_small_takes_the_kernels_way() {
    let Some(mut racks) = Racks::new() else { return };
    let _server = racks.serving(1, &["serve", PORT]);
    ends_with(racks.python(0, &["short", &Namespaces::address(1, 0), PORT, "20"]), "done");
    let (daemon, said) = racks.daemons.remove(0);
    kill_process(Pid::from_raw(daemon.0.id() as i32).expect("a process"), Signal::TERM).expect("it ends");
    assert!(!said.rest().contains("went by the gate"));
}

#[test]
fn without_the_other_rack_connections_are_the_kernels() {
    let Some(mut racks) = Racks::new() else { return };
    let _server = racks.serving(1, &["serve", PORT]);
    // The other rack's gate is gone: what is connected is lost, and what comes goes by the kernel.
    drop(racks.daemons.remove(1));
    let [server, own, other] = [(1, 0), (0, 0), (0, 2)].map(|(side, link)| Namespaces::address(side, link));
    racks.daemons[0].1.until("0 of");
    let (mut client, said) = racks.python(0, &["all", &server, PORT, &own, &other]);
    let lines = said.rest();
    assert!(client.0.wait().expect("its end").success(), "{lines}");
}

/// Whoever passes bytes on and dies amid them has not brought their end.
#[test]
fn a_gate_that_dies_resets_its_connections_and_the_next_one_leads_on() {
    let Some(mut racks) = Racks::new() else { return };
    let _server = racks.serving(1, &["serve", PORT]);
    let server = Namespaces::address(1, 0);
    for side in [0, 1] {
        let (mut client, mut said) = racks.python(0, &["pull", &server, PORT]);
        said.until("begun");
        // The daemon's end is its gate's, and whoever sees to it that there is one starts the next at once.
        kill_process(racks.gate(side), Signal::KILL).expect("it ends");
        let mut daemon = racks.daemons.remove(side);
        daemon.0.0.wait().expect("its end");
        racks.daemons.insert(side, racks.daemon(side));
        assert_eq!(said.rest().trim(), "reset", "the gate of side {side}");
        client.0.wait().expect("its end");
        racks.until_joined();
    }
    ends_with(racks.python(0, &["short", &server, PORT, "20"]), "done");
}

/// What a server's rack cannot do is no refusal of the server's.
#[test]
fn who_has_no_ports_left_refuses_nothing() {
    let Some(racks) = Racks::by_gates() else { return };
    let _server = racks.serving(1, &["serve", PORT]);
    let mut few = racks.namespaces.command(1, "sysctl");
    assert!(few.args(["-q", "net.ipv4.ip_local_port_range=40000 40007"]).status().expect("sysctl").success());
    ends_with(racks.python(0, &["crowd", &Namespaces::address(1, 0), PORT, "30"]), "done");
}

/// A server that takes its connections late has clients that wait, as long as they would anywhere, or said.
#[test]
fn who_waits_for_a_busy_server_waits_as_long_as_it_takes() {
    let Some(racks) = Racks::by_gates() else { return };
    let _server = racks.serving(1, &["wait", PORT, "4"]);
    let server = Namespaces::address(1, 0);
    let crowd = racks.python(0, &["crowd", &server, PORT, "6"]);
    std::thread::sleep(std::time::Duration::from_secs(1));
    let (mut hasty, _) = racks.python(0, &["hasty", &server, PORT]);
    assert!(hasty.0.wait().expect("its end").success());
    ends_with(crowd, "done");
}

/// Who waits for another rack's server keeps nobody from hearing who it is that comes.
#[test]
fn names_are_told_while_many_wait() {
    let Some(racks) = Racks::by_gates() else { return };
    let _server = racks.serving(1, &["serve", PORT]);
    let _busy = racks.serving(0, &["wait", PORT, "3"]);
    let crowd = racks.python(1, &["crowd", &Namespaces::address(0, 0), PORT, "80"]);
    std::thread::sleep(std::time::Duration::from_secs(1));
    for _ in 0..5 {
        let words = ["names", &Namespaces::address(1, 1), PORT, &Namespaces::address(0, 1)];
        let (mut client, said) = racks.python(0, &words);
        assert!(client.0.wait().expect("its end").success(), "{}", said.rest());
    }
    ends_with(crowd, "done");
}

/// What a process has: descriptors, threads, and mappings.
fn held(process: Pid) -> [usize; 3] {
    let of = |what: &str| format!("/proc/{}/{what}", process.as_raw_nonzero());
    let count = |what| std::fs::read_dir(of(what)).expect("a folder").count();
    let maps = std::fs::read_to_string(of("maps")).expect("its mappings");
    [count("fd"), count("task"), maps.lines().count()]
}

#[test]
fn short_connections_leave_nothing_behind() {
    let Some(racks) = Racks::by_gates() else { return };
    let _server = racks.serving(1, &["serve", PORT]);
    let server = Namespaces::address(1, 0);
    let run = |count: &str| {
        let (mut client, said) = racks.python(0, &["short", &server, PORT, count]);
        assert_eq!(said.rest().trim(), "done");
        assert!(client.0.wait().expect("its end").success());
    };
    run("20");
    let gates = [racks.gate(0), racks.gate(1)];
    let before = gates.map(held);
    run("600");
    for (gate, before) in gates.into_iter().zip(before) {
        // NICs know the regions that they met last, some dozens each.
        eventually("all is let go", || {
            held(gate).iter().zip(before).all(|(now, before)| *now < before + 300).then_some(())
        });
    }
}

/// All links are cut for a while: what goes by the racks waits.
#[test]
fn a_connection_outlives_a_cut_of_all_links() {
    let Some(racks) = Racks::new() else { return };
    let _server = racks.serving(1, &["serve", PORT]);
    let (mut client, mut said) = racks.python(0, &["push", &Namespaces::address(1, 1), PORT, "40000000"]);
    said.until("half");
    for change in ["down", "up"] {
        (0..LINKS).for_each(|link| racks.namespaces.ip(1, &format!("link set v{link} {change}")).expect(change));
        std::thread::sleep(std::time::Duration::from_secs(3));
    }
    said.until("whole");
    assert!(client.0.wait().expect("its end").success());
}

#[test]
fn a_wrong_way_or_secret_is_said_before_anything_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, bytes: &[u8], mode: u32| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("its mode");
        path.to_str().expect("a path").to_owned()
    };
    let (good, open, short) =
        (file("good", &[1; 32], 0o600), file("open", &[1; 32], 0o644), file("short", b"hello", 0o600));
    let cases: [(&[&str], &str); 7] = [
        (&["--to", "127.0.0.1=127.0.0.2"], "--secret"),
        (&["--to", "127.0.0.1", "--secret", &good], "OWN=OTHER"),
        (&["--to", "127.0.0.1=here", "--secret", &good], "`here` is no IP address"),
        (&["--to", "127.0.0.1=::1", "--secret", &good], "of one kind"),
        (&["--to", "127.0.0.1=127.0.0.2,127.0.0.1=127.0.0.3", "--secret", &good], "twice"),
        (&["--to", "127.0.0.1=127.0.0.2", "--secret", &open], "chmod 600"),
        (&["--to", "127.0.0.1=127.0.0.2", "--secret", &short], "5 bytes are no secret"),
    ];
    for (words, expected) in cases {
        // In a namespace of its own there is no other daemon of this user's.
        let output = Command::new(REMORA).args(["rack", "gate"]).args(words).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{words:?}: {said}");
    }
}

//! `--pcap`: what the command's captures hold, read here and by tshark.
//!
//! Skipped, with the reason printed, where tshark, a program or the verbs library (`cargo build -p remora-verbs`) is
//! missing; where CI=true that fails.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use remora_testing::{eventually, own_address, skip};
use remora_wire::icrc::verify_ip;
use remora_wire::ip::Ipv4;
use rustix::process::{Pid, Signal, kill_process};

fn command(directory: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
    command.args(words).current_dir(directory).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A run that must succeed: what it said on standard error.
fn succeeds(directory: &Path, words: &[&str]) -> String {
    let output = command(directory, words).output().expect("the command runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words:?}: {said}");
    said
}

/// Ends a process in order.
fn end(mut child: Child, signal: Option<Signal>) {
    if let Some(signal) = signal {
        kill_process(Pid::from_child(&child), signal).expect("it runs");
    }
    let status = eventually("the end of a process", || child.try_wait().expect("a child can be waited for"));
    assert!(status.success(), "{status:?}");
}

/// The packets of a capture by their op-codes. Each is a whole IP packet with a good ICRC, by this project's own reading.
fn packets(path: &Path) -> BTreeMap<u8, usize> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    assert_eq!((word(0), word(4), word(20)), (0xa1b2_3c4d, 0x0004_0002, 101), "nanoseconds, version 2.4, bare IP");
    let (mut at, mut opcodes) = (24, BTreeMap::new());
    while at < bytes.len() {
        let (kept, length) = (word(at + 8) as usize, word(at + 12) as usize);
        let packet = &bytes[at + 16..at + 16 + kept];
        assert_eq!((kept, verify_ip(packet)), (length, Ok(true)), "the packet at byte {at} of {}", path.display());
        assert!(Ipv4::parse(packet).is_ok_and(|ip| ip.src.is_loopback() && ip.dst.is_loopback()));
        *opcodes.entry(packet[28]).or_default() += 1;
        at += 16 + kept;
    }
    opcodes
}

/// Has tshark decode a capture: as many packets as there are, all of them RoCE and none malformed.
fn decoded(path: &Path) -> BTreeMap<u8, usize> {
    let opcodes = packets(path);
    let fields = ["-T", "fields", "-e", "frame.protocols", "-e", "_ws.malformed", "-e", "infiniband.bth.opcode"];
    let output = Command::new("tshark").args(["-n", "-r"]).arg(path).args(fields).output().expect("tshark runs");
    let mut seen = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let mut fields = line.split('\t');
        let mut field = || fields.next().unwrap_or_default();
        let (protocols, malformed, opcode) = (field(), field(), field());
        assert!(protocols.starts_with("raw:ip:udp:infiniband"), "{}: {line}", path.display());
        // What follows is a guess at what the payload may be (`--disable-heuristic eth_over_ib` ends most of those).
        let roce = matches!(protocols, "raw:ip:udp:infiniband" | "raw:ip:udp:infiniband:data");
        assert!(!roce || malformed.is_empty(), "{}: {line}", path.display());
        *seen.entry(opcode.parse().expect("an op-code")).or_default() += 1;
    }
    assert_eq!(seen, opcodes, "{}: {}", path.display(), String::from_utf8_lossy(&output.stderr));
    opcodes
}

/// Whether there is a program; says so and how to get it if not.
fn has(program: &str, remedy: &str) -> bool {
    let found = Path::new("/usr/bin").join(program).exists();
    if !found {
        skip(format!("{program} is not installed"), remedy);
    }
    found
}

fn has_tshark() -> bool {
    has("tshark", "apt-get install tshark")
}

/// A comparison of few packets: kernels that run at the client send most.
const QUICK: &str = "compare --no-html --records 100 --value-bytes 32 --seconds 0.001 --placements nic";
/// Of such a comparison: SEND ONLY, WRITE ONLY without and with immediate, ACKNOWLEDGE, CM datagrams and RPC parameters.
const EVERY_CALL: [u8; 6] = [0x04, 0x0a, 0x0b, 0x11, 0x64, 0xd8];

fn compares(directory: &Path, options: &[&str]) -> String {
    let words: Vec<&str> = QUICK.split(' ').chain(options.iter().copied()).collect();
    succeeds(directory, &words)
}

#[test]
fn node_and_client_write_what_each_link_carried() {
    if !has_tshark() {
        return;
    }
    for link in ["udp", "shm"] {
        let directory = tempfile::tempdir().expect("directory");
        let address = own_address();
        let words = ["node", "--listen", &address, "--pcap", "node.pcap"];
        let mut node = command(directory.path(), &words).spawn().expect("the command runs");
        let mut lines = BufReader::new(node.stdout.take().expect("piped")).lines();
        assert!(lines.next().is_some_and(|line| line.is_ok_and(|line| line.contains(&address))), "the node is up");
        let said = compares(directory.path(), &["--links", link, "--node", &address, "--pcap", "client.pcap"]);
        assert!(said.contains("packets are in client.pcap"), "{said}");
        end(node, Some(Signal::INT));
        let [client, node] = ["client.pcap", "node.pcap"].map(|name| decoded(&directory.path().join(name)));
        for opcode in EVERY_CALL {
            assert!(
                client.contains_key(&opcode) && node.contains_key(&opcode),
                "{opcode:#04x} over {link}: {client:?}"
            );
        }
    }
}

#[test]
fn compare_writes_its_childs_packets_too() {
    let directory = tempfile::tempdir().expect("directory");
    compares(directory.path(), &["--links", "shm", "--pcap", "all.pcap"]);
    let [client, node] = ["all.pcap", "all-node.pcap"].map(|name| packets(&directory.path().join(name)));
    // How it ends, and probes of a connection that was still for long, may be in one capture alone: a process ends first.
    let carried = |packets: BTreeMap<u8, usize>| packets.into_iter().filter(|(op, _)| ![0x0a, 0x11, 0x64].contains(op));
    assert!(carried(client).eq(carried(node)), "nothing is lost in shared memory");
}

#[test]
fn each_node_of_a_cluster_writes_a_file() {
    if !has_tshark() {
        return;
    }
    let directory = tempfile::tempdir().expect("directory");
    let words = ["cluster", "--dir", "kv", "--json", "--pcap", "all.pcap"];
    let mut cluster = command(directory.path(), &words).spawn().expect("the command runs");
    let mut lines = BufReader::new(cluster.stdout.take().expect("piped")).lines();
    assert!(lines.next().is_some_and(|line| line.is_ok_and(|line| line.contains("serves"))), "the cluster is up");
    succeeds(directory.path(), &["cluster", "put", "7", "hello", "--dir", "kv"]);
    end(cluster, Some(Signal::INT));
    for name in ["all-0.pcap", "all-1.pcap", "all-2.pcap"] {
        let opcodes = decoded(&directory.path().join(name));
        assert!([0x04, 0x11, 0x64].iter().all(|opcode| opcodes.contains_key(opcode)), "{name}: {opcodes:?}");
    }
}

#[test]
fn verbs_programs_write_theirs() {
    let library = Path::new(env!("CARGO_BIN_EXE_remora")).with_file_name("libibverbs.so").exists();
    if !library {
        skip("libibverbs.so is not beside remora", "cargo build -p remora-verbs");
    }
    if !has_tshark() || !has("ibv_rc_pingpong", "apt-get install ibverbs-utils") || !library {
        return;
    }
    for link in ["udp", "shm"] {
        let directory = tempfile::tempdir().expect("directory");
        let port = remora_testing::free_port().to_string();
        let program = ["ibv_rc_pingpong", "-g", "0", "-n", "50", "-s", "10000", "-p", &port];
        let options = ["exec", "--link", link, "--trace", "--pcap"];
        let server = [&options[..], &["%p.pcap", "--"], &program].concat();
        let server = command(directory.path(), &server).stderr(Stdio::null()).spawn().expect("it starts");
        let of_server = directory.path().join(format!("{}.pcap", server.id()));
        let client = [&options[..], &["client.pcap", "--"], &program, &["127.0.0.1"]].concat();
        // The server may not listen yet.
        let said = eventually("a client that finds its server", || {
            let output = command(directory.path(), &client).output().expect("it runs");
            output.status.success().then(|| String::from_utf8_lossy(&output.stderr).into_owned())
        });
        end(server, None);
        assert!(said.contains(&format!("remora: {link} > 127.")) && said.contains(" RcSendFirst qp 0x"), "{said}");
        let [client, server] = [directory.path().join("client.pcap"), of_server].map(|path| decoded(&path));
        // 50 messages each way, of which each has three packets.
        for opcode in [0x00, 0x01, 0x02] {
            assert!(client[&opcode] >= 100 && server[&opcode] >= 100, "{link}: {client:?} {server:?}");
        }
    }
}

#[test]
fn a_file_that_cannot_be_written_is_one_line() {
    let directory = tempfile::tempdir().expect("directory");
    let address = own_address();
    for words in [
        &["node", "--listen", &address, "--pcap", "/nowhere/a.pcap"][..],
        &["compare", "--node", &address, "--pcap", "/nowhere/a.pcap"],
    ] {
        let output = command(directory.path(), words).output().expect("the command runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.starts_with("remora: cannot write /nowhere/a.pcap: No such file"), "{said}");
    }
}

//! A node and a client on two machines, or what comes closest: two network namespaces joined by a veth pair.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use remora_testing::{Running, skip};

const NODE: &str = "10.213.7.1";
const CLIENT: &str = "10.213.7.2";

/// Two namespaces, gone with the value.
struct Namespaces {
    node: String,
    client: String,
}

impl Namespaces {
    /// `None`, with the reason printed, where the system does not allow it; a failure where `CI=true`.
    fn new() -> Option<Self> {
        // Tests of one process run beside each other.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let id = format!("{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let (node, client) = (format!("remora-node-{id}"), format!("remora-client-{id}"));
        let this = Self { node, client };
        let (node, client) = (&this.node, &this.client);
        let commands = [
            format!("netns add {node}"),
            format!("netns add {client}"),
            format!("link add veth0 netns {node} type veth peer name veth0 netns {client}"),
            format!("-n {node} addr add {NODE}/24 dev veth0"),
            format!("-n {client} addr add {CLIENT}/24 dev veth0"),
            format!("-n {node} link set veth0 up"),
            format!("-n {client} link set veth0 up"),
        ];
        for command in commands {
            let result = Command::new("ip").args(command.split(' ')).output();
            let reason = match result {
                Ok(output) if output.status.success() => continue,
                Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
                Err(e) => e.to_string(),
            };
            skip(format!("`ip {command}` says {reason}"), "Install the package iproute2, and run as root");
            return None;
        }
        Some(this)
    }

    fn remora(namespace: &str, args: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, env!("CARGO_BIN_EXE_remora")]).args(args).stdin(Stdio::null());
        command
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for namespace in [&self.node, &self.client] {
            let _ = Command::new("ip").args(["netns", "del", namespace]).stderr(Stdio::null()).status();
        }
    }
}

/// A node whose link carries less than the client's, and one whose link comes to carry less than it says.
#[test]
fn a_path_mtu_is_agreed_on_and_found_out() {
    let Some(namespaces) = Namespaces::new() else { return };
    let mtu = |namespace: &str, mtu: &str| {
        let args = ["-n", namespace, "link", "set", "veth0", "mtu", mtu];
        assert!(Command::new("ip").args(args).status().is_ok_and(|status| status.success()));
    };
    for (at_start, later) in [("1500", "1500"), ("9000", "1500")] {
        mtu(&namespaces.client, "9000");
        mtu(&namespaces.node, at_start);
        let mut node = Namespaces::remora(&namespaces.node, &["node", "--listen", NODE]);
        let mut node = node.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(node.stdout.take().unwrap());
        let _ended = Running(node);
        assert_eq!(output.lines().map_while(Result::ok).next(), Some(format!("remora node ready at {NODE}")));
        mtu(&namespaces.node, later);
        let args =
            ["compare", "--node", NODE, "--no-html", "--links", "udp", "--records", "2000", "--seconds", "0.002"];
        let output = Namespaces::remora(&namespaces.client, &args).output().unwrap();
        let (table, message) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{at_start}, then {later}: {message}");
        assert!(table.contains("path MTU 1024 over udp"), "{table}");
    }
}

#[test]
fn compare_runs_between_two_namespaces() {
    let Some(namespaces) = Namespaces::new() else { return };
    for links in [&[][..], &["--links", "packet"]] {
        let packet = links.contains(&"packet");
        let args = [&["node", "--listen", NODE][..], if packet { &["--packet"][..] } else { &[] }].concat();
        let mut node = Namespaces::remora(&namespaces.node, &args).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(node.stdout.take().unwrap());
        // `ip netns exec` becomes the command, so this ends the node itself.
        let _ended = Running(node);
        let ready = output.lines().map_while(Result::ok).next();
        assert_eq!(ready, Some(format!("remora node ready at {NODE}")));

        let args = ["compare", "--node", NODE, "--no-html", "--records", "2000", "--seconds", "0.002"];
        let output = Namespaces::remora(&namespaces.client, &[&args[..], links].concat()).output().unwrap();
        let (table, message) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{links:?}: {message}");
        let link = if packet { "packet" } else { "udp" };
        assert!(table.contains(&format!("list over {link}: ")) && table.contains("every result verified"), "{table}");
        assert!(!table.contains(" over shm"), "no shared memory between two machines");
        // Left to itself the command tries shared memory, and says that there is none.
        assert_eq!(message.contains("without shared memory"), links.is_empty(), "{message}");
    }
}

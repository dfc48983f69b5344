//! A node and a client on two machines, or what comes closest: two network namespaces joined by a veth pair.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use remora_testing::{Namespaces, Running};

const NODE: &str = "10.214.0.1";

/// `remora` on a side: the node's is 0.
fn remora(namespaces: &Namespaces, side: usize, args: &[&str]) -> Command {
    let mut command = namespaces.command(side, env!("CARGO_BIN_EXE_remora"));
    command.args(args).stdin(Stdio::null());
    command
}

/// A node whose link carries less than the client's, and one whose link comes to carry less than it says.
#[test]
fn a_path_mtu_is_agreed_on_and_found_out() {
    let Some(namespaces) = Namespaces::new(1, 1500) else { return };
    let mtu = |side, mtu: &str| namespaces.ip(side, &format!("link set v0 mtu {mtu}")).expect("an MTU");
    for (at_start, later) in [("1500", "1500"), ("9000", "1500")] {
        mtu(1, "9000");
        mtu(0, at_start);
        let mut node = remora(&namespaces, 0, &["node", "--listen", NODE]);
        let mut node = node.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(node.stdout.take().unwrap());
        let _ended = Running(node);
        assert_eq!(output.lines().map_while(Result::ok).next(), Some(format!("remora node ready at {NODE}")));
        mtu(0, later);
        let args =
            ["compare", "--node", NODE, "--no-html", "--links", "udp", "--records", "2000", "--seconds", "0.002"];
        let output = remora(&namespaces, 1, &args).output().unwrap();
        let (table, message) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{at_start}, then {later}: {message}");
        assert!(table.contains("path MTU 1024 over udp"), "{table}");
    }
}

#[test]
fn compare_runs_between_two_namespaces() {
    let Some(namespaces) = Namespaces::new(1, 1500) else { return };
    for links in [&[][..], &["--links", "packet"]] {
        let packet = links.contains(&"packet");
        let args = [&["node", "--listen", NODE][..], if packet { &["--packet"][..] } else { &[] }].concat();
        let mut node = remora(&namespaces, 0, &args).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(node.stdout.take().unwrap());
        let _ended = Running(node);
        let ready = output.lines().map_while(Result::ok).next();
        assert_eq!(ready, Some(format!("remora node ready at {NODE}")));

        let args = ["compare", "--node", NODE, "--no-html", "--records", "2000", "--seconds", "0.002"];
        let output = remora(&namespaces, 1, &[&args[..], links].concat()).output().unwrap();
        let (table, message) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{links:?}: {message}");
        let link = if packet { "packet" } else { "udp" };
        assert!(table.contains(&format!("list over {link}: ")) && table.contains("every result verified"), "{table}");
        assert!(!table.contains(" over shm"), "no shared memory between two machines");
        // Left to itself the command tries shared memory, and says that there is none.
        assert_eq!(message.contains("without shared memory"), links.is_empty(), "{message}");
    }
}

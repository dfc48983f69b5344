//! `remora node --place`, with clients of other processes.

mod node;

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::Command;

use node::Node;

use remora_kernel::{ConsistencyParams, Placement, Status, crc64, op};
use remora_real::{Client, ClientConfig};
use remora_service::CallKind;

/// One client's calls, sixteen at once, and what it is told of where they ran. Returns those that were left to the node.
fn work(node: IpAddr, local: IpAddr, calls: u32) -> (u64, String) {
    let mut client = Client::connect(ClientConfig::new(node, local)).expect("connection");
    let region = client.alloc(512).expect("memory");
    let mut object = [local_byte(local); 512];
    let checksum = crc64(&object[..504]).to_le_bytes();
    object[504..].copy_from_slice(&checksum);
    client.write(&region, 0, &object).expect("a write");
    let params = ConsistencyParams { address: region.va, key: region.key, len: 512, max_tries: 8 }.encode();
    let kind = CallKind::of(op::CONSISTENCY, &params);
    let (mut started, mut ended, mut left) = (0, 0, 0);
    while ended < calls {
        while started < calls && started < ended + 16 {
            left += u64::from(client.submit_auto(kind, &params, false, started).expect("room") == Placement::Nic);
            started += 1;
        }
        let polled = client.poll(&mut |_, status, reply| {
            assert_eq!((status, &reply[..504]), (Status::Ok, &object[..504]));
        });
        ended += polled.expect("a connection") as u32;
    }
    (left, client.node_reason(kind).expect("a reason"))
}

fn local_byte(local: IpAddr) -> u8 {
    match local {
        IpAddr::V4(v4) => v4.octets()[3],
        IpAddr::V6(_) => 0,
    }
}

/// The figure with this name, of what a node tells Prometheus.
fn figure(page: &str, name: &str) -> u64 {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} in {page}"))
}

fn page(metrics: &str) -> String {
    let mut stream = TcpStream::connect(metrics).expect("the node's figures");
    write!(stream, "GET /metrics HTTP/1.0\r\n\r\n").expect("a request");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("an answer");
    page
}

#[test]
fn a_node_places_the_calls_of_all_its_clients_and_says_where() {
    for (last, word) in [(1, "auto"), (2, "host"), (3, "nic")] {
        let address = format!("127.15.9.{last}");
        // A port that is free.
        let metrics =
            TcpListener::bind((address.as_str(), 0)).and_then(|at| at.local_addr()).expect("a port").to_string();
        let _node = Node::start(&address, &["--place", word, "--metrics", &metrics]);
        let at: IpAddr = address.parse().expect("an address");
        let clients: Vec<(u64, String)> = std::thread::scope(|scope| {
            let client = |n: u8| scope.spawn(move || work(at, [127, 15, 9, 100 + 10 * last + n].into(), 5000));
            [client(0), client(1)].map(|client| client.join().expect("a client")).into()
        });
        let page = page(&metrics);
        let [nic, host] =
            ["nic", "host"].map(|place| figure(&page, &format!("remora_calls_placed_total{{place=\"{place}\"}}")));
        assert_eq!(nic + host, clients.iter().map(|(left, _)| left).sum::<u64>(), "{word}");
        for (_, reason) in clients {
            match word {
                "auto" => assert!(reason.starts_with("nic: ") || reason.starts_with("host: "), "{reason}"),
                _ => assert_eq!(reason, format!("{word}: pinned")),
            }
        }
        match word {
            "host" => assert_eq!(nic, 0),
            "nic" => assert_eq!(host, 0),
            _ => {}
        }
    }
    let refused = Command::new(env!("CARGO_BIN_EXE_remora"))
        .args(["node", "--listen", "127.15.9.9", "--place", "fpga"])
        .output()
        .expect("the command runs");
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && told.contains("clients, auto, nic and host"), "{told}");
}

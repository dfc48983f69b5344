//! An idle node sleeps, and wakes for whoever calls. Alone in its process: it measures the process's CPU time.

mod common;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use common::fill_object;
use remora_kernel::{ConsistencyParams, Placement, Status, op};
use remora_real::{Client, ClientConfig, LinkKind, Node, NodeConfig, process_cpu_ns};
use remora_testing::until_asleep;

#[test]
fn an_idle_node_uses_under_one_percent_of_a_core_and_still_answers() {
    let ip = |last| IpAddr::V4(Ipv4Addr::new(127, 11, 0, last));
    let node = Node::start(NodeConfig::new(ip(1))).expect("node");
    until_asleep("a node without clients", Duration::from_secs(1), 0.01, process_cpu_ns);

    for (last, link) in [(2, LinkKind::Udp), (3, LinkKind::Shm)] {
        let mut client = Client::connect(ClientConfig { link: Some(link), ..ClientConfig::new(ip(1), ip(last)) })
            .expect("connection");
        let region = client.alloc(4096).expect("memory");
        let mut object = vec![0; 256];
        fill_object(1, 1, &mut object);
        client.write(&region, 0, &object).expect("write");
        let params = ConsistencyParams { address: region.va, key: region.key, len: 256, max_tries: 1 }.encode();
        for placement in [Placement::Client, Placement::Nic, Placement::Host] {
            // Everything is asleep again when the call comes: the client's and the node's threads.
            let what = format!("a node and its client over {link:?}");
            until_asleep(what, Duration::from_millis(500), 0.02, process_cpu_ns);
            let (status, reply) = client.call(placement, op::CONSISTENCY, &params).expect("call");
            assert_eq!((status, &reply[..248]), (Status::Ok, &object[..248]), "{placement:?} over {link:?}");
        }
    }
    node.shutdown();
}

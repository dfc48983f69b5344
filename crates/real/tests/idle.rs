//! An idle node sleeps, and wakes for whoever calls. Alone in its process: it measures the process's CPU time.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use remora_kernel::{ConsistencyParams, Placement, Status, op};
use remora_real::{Client, ClientConfig, LinkKind, Node, NodeConfig, fill_object, process_cpu_ns};

/// CPU time of this process over `wall`, as a share of one core.
fn load(wall: Duration) -> f64 {
    let before = process_cpu_ns();
    std::thread::sleep(wall);
    (process_cpu_ns() - before) as f64 / wall.as_nanos() as f64
}

#[test]
fn an_idle_node_uses_under_one_percent_of_a_core_and_still_answers() {
    let ip = |last| IpAddr::V4(Ipv4Addr::new(127, 11, 0, last));
    let node = Node::start(NodeConfig::new(ip(1))).expect("node");
    std::thread::sleep(Duration::from_millis(300));
    let alone = load(Duration::from_secs(1));
    assert!(alone < 0.01, "idle without clients: {:.2} % of a core", alone * 100.0);

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
            std::thread::sleep(Duration::from_millis(400));
            let idle = load(Duration::from_millis(500));
            assert!(idle < 0.02, "node and client idle over {link:?}: {:.2} % of a core", idle * 100.0);
            let (status, reply) = client.call(placement, op::CONSISTENCY, &params).expect("call");
            assert_eq!((status, &reply[..248]), (Status::Ok, &object[..248]), "{placement:?} over {link:?}");
        }
    }
    node.shutdown();
}

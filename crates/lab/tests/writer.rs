//! The writer of changing values, at a node that clients share.

use std::net::{IpAddr, Ipv4Addr};

use remora_lab::writer::{WriterConfig, Writers, start_writer, stop_writer};
use remora_real::{Client, ClientConfig, LinkKind, Node, NodeConfig};

#[test]
fn a_writer_stays_in_the_memory_of_whoever_started_it() {
    let ip = |last| IpAddr::V4(Ipv4Addr::new(127, 18, 0, last));
    let config = NodeConfig { memory_limit: 1 << 20, ..NodeConfig::new(ip(1)) };
    let node = Node::start_with(config, vec![Box::new(Writers::default())]).expect("node");
    let client = |last| {
        Client::connect(ClientConfig { link: Some(LinkKind::Udp), ..ClientConfig::new(ip(1), ip(last)) })
            .expect("connection")
    };
    let (mut one, mut two) = (client(2), client(3));
    let region = one.alloc(4096).expect("memory");
    let config = WriterConfig { object_size: 64, objects: 64, updates_per_s: 1 };
    assert!(start_writer(&mut two, &region, &config).is_err(), "another's memory");
    let too_many = [(64, 65), (u32::MAX - 7, u32::MAX), (8, 1), (65, 1), (64, 0)];
    for (object_size, objects) in too_many {
        assert!(start_writer(&mut one, &region, &WriterConfig { object_size, objects, ..config }).is_err());
    }
    start_writer(&mut one, &region, &config).expect("writer");
    let own = two.alloc(4096).expect("memory");
    assert!(start_writer(&mut two, &own, &config).is_err(), "one runs already");
    assert_eq!(stop_writer(&mut two).expect("call"), 0, "not its own");
    let mut word = [0; 8];
    while word == [0; 8] {
        one.read(&region, 0, &mut word).expect("read");
    }
    assert!(stop_writer(&mut one).expect("call") > 0);
    start_writer(&mut two, &own, &config).expect("writer");
    node.shutdown();
}

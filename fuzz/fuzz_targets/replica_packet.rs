//! Any bytes as a packet of the replication protocol and as a log; what is read is written back the same, and a node
//! takes it without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remora_replica::ddp::{Config, Model};
use remora_replica::log;
use remora_replica::node::{Node, Packet};
use remora_replica::types::{NodeId, NodeSet};

fuzz_target!(|bytes: &[u8]| {
    let decoded = log::decode(bytes);
    assert!(decoded.length <= bytes.len());
    let mut node = Node::new(Config::new(NodeId(0), NodeSet::first(3), Model::Strict), 0, &[]);
    // Packets one after the other, each behind a byte with its length.
    let mut rest = bytes;
    while let Some((&length, after)) = rest.split_first() {
        let Some((packet, after)) = after.split_at_checked(length.into()) else { break };
        rest = after;
        if let Ok(packet) = Packet::decode(packet) {
            let mut again = Vec::new();
            packet.encode(&mut again);
            assert_eq!(Packet::decode(&again).as_ref(), Ok(&packet));
            node.handle(1, NodeId(1), packet);
            while node.poll().is_some() {}
        }
    }
});

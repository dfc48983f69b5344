//! Any bytes as a packet of the replication protocol and as a log: what is read is written back the same, and a node
//! takes it without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remora_nic::Now;
use remora_replica::ddp::{Config, Model, Op, Request};
use remora_replica::log;
use remora_replica::node::{NodeOutput, Packet, ReplicaNode};
use remora_replica::types::{NodeId, NodeSet};

fuzz_target!(|bytes: &[u8]| {
    let decoded = log::decode(bytes);
    assert!(decoded.length <= bytes.len());
    let config = |model| Config::new(NodeId(0), NodeSet::first(3), model);
    drain(&mut ReplicaNode::new(config(Model::Strict), 0, bytes), 0);
    let Some((&first, mut rest)) = bytes.split_first() else { return };
    let mut node = ReplicaNode::new(config(Model::ALL[usize::from(first) % 5]), 0, &[]);
    node.submit(&Now::simulated(0), Request::new(1, Op::FetchAdd(0, 1)));
    // Packets one after the other, each behind a byte with its length and one with its sender and the time.
    while let Some((&[length, from], after)) = rest.split_first_chunk() {
        let Some((packet, after)) = after.split_at_checked(length.into()) else { break };
        rest = after;
        let now = u64::from(from >> 2) << 24;
        if let Ok(packet) = Packet::decode(packet) {
            let mut again = Vec::new();
            packet.encode(&mut again);
            assert_eq!(Packet::decode(&again).as_ref(), Ok(&packet));
            node.handle(&Now::simulated(now), NodeId(from & 3), packet);
            node.timeout(&Now::simulated(now));
            drain(&mut node, now);
        }
    }
});

/// Does what the node asks for: what it logs is durable at once.
fn drain(node: &mut ReplicaNode, now: u64) {
    while let Some(output) = node.poll() {
        if let NodeOutput::Log(token, _) = output {
            node.persisted(&Now::simulated(now), token);
        }
    }
}

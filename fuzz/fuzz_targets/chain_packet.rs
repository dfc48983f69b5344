//! Any bytes as packets and requests of a chain of transactions, and as its persistent memory: what is read is written back
//! the same, and a node takes it without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remora_nic::Now;
use remora_replica::chain::{ChainConfig, ChainNode, ChainNodeOutput, ChainPacket, ChainReply, ChainRequest};
use remora_replica::types::{NodeId, NodeSet};

fuzz_target!(|bytes: &[u8]| {
    let config = || ChainConfig { ring: 4096, ..ChainConfig::new(NodeId(0), NodeSet::first(3), 1024) };
    let layout = config().layout();
    let mut image = bytes.to_vec();
    image.resize(layout.bytes(), 0);
    drain(&mut ChainNode::new(config(), 0, &image), 0);
    let _ = ChainReply::decode(bytes);
    let mut node = ChainNode::new(config(), 0, &vec![0; layout.bytes()]);
    // One after the other, each behind a byte with its length and one with its sender and the time.
    let mut rest = bytes;
    while let Some((&[length, from], after)) = rest.split_first_chunk() {
        let Some((piece, after)) = after.split_at_checked(length.into()) else { break };
        rest = after;
        let now = u64::from(from >> 2) << 24;
        if let Ok(packet) = ChainPacket::decode(piece) {
            let mut again = Vec::new();
            packet.encode(&mut again);
            assert_eq!(again, piece);
            node.handle(&Now::simulated(now), NodeId(from & 3), packet);
        } else if let Ok(request) = ChainRequest::decode(piece) {
            node.submit(&Now::simulated(now), request);
        }
        node.timeout(&Now::simulated(now));
        drain(&mut node, now);
    }
});

/// Does what the node asks for: what it writes is durable at once.
fn drain(node: &mut ChainNode, now: u64) {
    while let Some(output) = node.poll() {
        if let ChainNodeOutput::Write(token, ..) = output {
            node.persisted(&Now::simulated(now), token);
        }
    }
}

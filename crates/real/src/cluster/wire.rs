//! What clients and nodes of a cluster say to each other in frames, and to whom they open.

use remora_replica::ddp::{Reply, Request};
use remora_replica::node::Packet;
use remora_replica::types::NodeId;

use super::Split;
use super::status::Status;

/// Ports in `rdma_cm`'s TCP port space: clients call one, the other nodes the other.
pub(super) const CLIENT_PORT: u16 = 7421;
/// See [`CLIENT_PORT`].
pub(super) const PEER_PORT: u16 = 7422;

/// Longest value that a cluster takes, in bytes.
pub const MAX_VALUE: usize = 1 << 20;
/// Longest frame of a client: a few values, as in a compare-and-swap or a small batch.
pub(super) const CLIENT_FRAME: usize = 4 * MAX_VALUE;
/// Longest frame of another node: what a batch makes of a client's frame.
pub(super) const PEER_FRAME: usize = 64 << 20;

/// The cluster's secret: who has it belongs to it.
pub type Secret = [u8; 32];

const MAGIC: [u8; 4] = *b"rmc\x01";

/// What a node says when it calls another, and when it answers one: the protocol's version, the secret, its number.
pub(super) fn hello(secret: &Secret, node: NodeId) -> [u8; 37] {
    let mut out = [0; 37];
    out[..4].copy_from_slice(&MAGIC);
    out[4..36].copy_from_slice(secret);
    out[36] = node.0;
    out
}

/// Which node says this, if it knows the secret. What follows is padding.
pub(super) fn check_hello(secret: &Secret, bytes: &[u8]) -> Option<NodeId> {
    let (given, node) = (bytes.get(4..36)?, *bytes.get(36)?);
    // All of it is compared, so that time tells nothing.
    let differ = given.iter().zip(secret).fold(0, |differ, (a, b)| differ | (a ^ b));
    (bytes.starts_with(&MAGIC) && differ == 0).then_some(NodeId(node))
}

/// What a client says when it calls.
pub(super) fn client_hello() -> [u8; 4] {
    MAGIC
}

/// Whether a client says it.
pub(super) fn check_client_hello(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// From a client to a node.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Asked {
    Request(Request),
    /// How the node is.
    Status,
}

/// From a node to a client.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Answered {
    Reply(Reply, Split),
    Status(Box<Status>),
}

impl Asked {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Request(request) => {
                out.push(1);
                request.encode(out);
            }
            Self::Status => out.push(2),
        }
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first()? {
            (1, rest) => Request::decode(rest).ok().map(Self::Request),
            (2, []) => Some(Self::Status),
            _ => None,
        }
    }
}

impl Answered {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Reply(reply, split) => {
                out.push(1);
                out.extend_from_slice(&split.total_ns.to_le_bytes());
                out.extend_from_slice(&split.communication_ns.to_le_bytes());
                reply.encode(out);
            }
            Self::Status(status) => {
                out.push(2);
                status.encode(out);
            }
        }
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first()? {
            (1, rest) => {
                let total_ns = u64::from_le_bytes(*rest.first_chunk()?);
                let communication_ns = u64::from_le_bytes(*rest.get(8..)?.first_chunk()?);
                let reply = Reply::decode(rest.get(16..)?).ok()?;
                Some(Self::Reply(reply, Split { total_ns, communication_ns }))
            }
            (2, rest) => Status::decode(rest).map(|status| Self::Status(Box::new(status))),
            _ => None,
        }
    }
}

/// A packet of another node, behind the time (ns) for which the node has held what it answers.
pub(super) fn encode_packet(packet: &Packet, held: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&held.to_le_bytes());
    packet.encode(out);
}

pub(super) fn decode_packet(bytes: &[u8]) -> Option<(Packet, u64)> {
    let held = u64::from_le_bytes(*bytes.first_chunk()?);
    Some((Packet::decode(&bytes[8..]).ok()?, held))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use remora_replica::ddp::{Op, Outcome};

    #[test]
    fn only_who_has_the_secret_is_believed() {
        let hello = hello(&[7; 32], NodeId(3));
        let padded = [hello.as_slice(), &[0; 19]].concat();
        assert_eq!(check_hello(&[7; 32], &padded), Some(NodeId(3)));
        assert_eq!(check_hello(&[8; 32], &padded), None);
        assert_eq!(check_hello(&[7; 32], &padded[..36]), None);
        assert_eq!(check_hello(&[7; 32], &[&[0], &padded[1..]].concat()), None);
    }

    #[test]
    fn what_is_asked_and_answered_comes_back() {
        let asked = [Asked::Request(Request::new(7, Op::Get(1))), Asked::Status];
        for asked in asked {
            let mut bytes = Vec::new();
            asked.encode(&mut bytes);
            assert_eq!(Asked::decode(&bytes), Some(asked));
        }
        let split = Split { total_ns: 5, communication_ns: 3 };
        let reply = Reply { tag: 1, outcome: Outcome::Written };
        for answered in [Answered::Reply(reply, split), Answered::Status(Box::default())] {
            let mut bytes = Vec::new();
            answered.encode(&mut bytes);
            assert_eq!(Answered::decode(&bytes), Some(answered));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = (Asked::decode(&bytes), Answered::decode(&bytes), decode_packet(&bytes));
        }
    }
}

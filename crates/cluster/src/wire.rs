//! What clients and nodes of a cluster say to each other in frames, and to whom they open.

use remora_replica::ddp::{Reply, Request};
use remora_replica::node::Packet;

use super::Split;
use super::hello::Hello;
use super::status::NodeStatus;
use super::stream::Inbound;

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

const MAGIC: [u8; 4] = *b"rmc\x02";

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
    Status(Box<NodeStatus>),
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
            (2, rest) => NodeStatus::decode(rest).map(|status| Self::Status(Box::new(status))),
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

/// Reads bytes as nodes and clients read what they are sent, frame by frame; for fuzzing.
///
/// # Panics
///
/// If something that was understood, written again, is not understood as the same.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    fn again<T: PartialEq>(read: Option<&T>, write: impl Fn(&T, &mut Vec<u8>), decode: impl Fn(&[u8]) -> Option<T>) {
        let Some(read) = read else { return };
        let mut written = Vec::new();
        write(read, &mut written);
        assert!(decode(&written).as_ref() == Some(read), "read as something else the second time");
    }
    let hello = Hello::decode(bytes);
    again(hello.as_ref(), |hello, out| out.extend_from_slice(&hello.encode()), Hello::decode);
    let mut inbound = Inbound::new(bytes.to_vec(), CLIENT_FRAME);
    while let Ok(Some(frame)) = inbound.next_frame() {
        let frame = inbound.bytes(frame);
        again(Asked::decode(frame).as_ref(), Asked::encode, Asked::decode);
        again(Answered::decode(frame).as_ref(), Answered::encode, Answered::decode);
        let packet = decode_packet(frame);
        again(packet.as_ref(), |(packet, held), out| encode_packet(packet, *held, out), decode_packet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use remora_replica::ddp::{Op, Outcome};

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
            let framed = [(bytes.len() as u32).to_le_bytes().as_slice(), &bytes].concat();
            fuzz(&framed);
            fuzz(&bytes);
        }
    }
}

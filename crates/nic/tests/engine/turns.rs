//! Queue pairs have their turns, whoever their peers are.

use std::net::{IpAddr, Ipv4Addr};

use crate::common::bare::bytes_of;
use crate::common::{A, B, Setup, Side};
use remora_nic::*;
use remora_wire::packet::Packet;
use remora_wire::{Bth, Opcode, Psn, Reth};

const C: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3));
/// Bytes of a READ: 64 packets, twice what a queue pair sends in a turn.
const LEN: u32 = 64 << 10;

/// A queue pair to a peer's `remote`.
fn join(node: &mut Side, peer: IpAddr, remote: u32, setup: Setup) {
    node.qp = node.nic.create_qp(QpInit::new(QpType::Rc, node.pd, node.cq, node.cq)).expect("queue pair");
    node.bring_up(peer, Qpn(remote), (setup.psn_b, setup.psn_a), setup);
}

/// A READ of so many bytes.
fn read(node: &Side, qp: Qpn, psn: u32, len: u32) -> Vec<u8> {
    let bth = Bth::new(Opcode::RcReadRequest, qp.0, Psn::new(psn));
    bytes_of(&Packet { reth: Some(Reth { va: node.va(0), rkey: node.key(), len }), ..Packet::new(bth, &[]) })
}

#[test]
fn a_peer_that_always_has_more_to_be_answered_leaves_others_their_turns() {
    let setup = Setup::default();
    let mut node = Side::new(B, 2);
    let mut reads = Vec::new();
    for peer in [A, C] {
        join(&mut node, peer, 0x77, setup);
        reads.extend((0..8).map(|n| (peer, read(&node, node.qp, setup.psn_a + n * LEN / setup.mtu, LEN))));
    }
    reads.iter().for_each(|(peer, read)| node.nic.handle_packet(0, 0, *peer, B, read));
    let mut sent = Vec::new();
    while sent.len() < 16 && node.nic.poll_transmit(0, &mut node.batch) {
        sent.push((node.batch.route().expect("a peer").remote, node.batch.len()));
    }
    let turns: Vec<_> = (0..16).map(|turn| ([A, C][turn % 2], 32)).collect();
    assert_eq!(sent, turns);
}

/// Each of a peer's many queue pairs asks for little, and again as soon as it is answered.
#[test]
fn a_peer_of_many_queue_pairs_leaves_others_their_turns() {
    const PACKETS: u32 = 10;
    let setup = Setup::default();
    let mut node = Side::new(B, 2);
    let mut pairs = Vec::new();
    for (number, peer) in [A, A, A, C, A, A, A, A, A].into_iter().enumerate() {
        join(&mut node, peer, number as u32, setup);
        pairs.push((peer, node.qp, setup.psn_a));
    }
    let mut asks: Vec<usize> = (0..pairs.len()).collect();
    let mut answered = vec![0; pairs.len()];
    for _ in 0..200 {
        for number in asks.drain(..) {
            let (peer, qp, psn) = &mut pairs[number];
            let packet = read(&node, *qp, *psn, PACKETS * setup.mtu);
            *psn += PACKETS;
            node.nic.handle_packet(0, 0, *peer, B, &packet);
        }
        assert!(node.nic.poll_transmit(0, &mut node.batch));
        for packet in node.batch.packets() {
            let bth = Bth::parse(packet).unwrap();
            if bth.opcode == Opcode::RcReadResponseLast {
                answered[bth.dest_qp as usize] += 1;
                asks.push(bth.dest_qp as usize);
            }
        }
    }
    let (least, most) = (answered.iter().min().unwrap(), answered.iter().max().unwrap());
    assert!(2 * least > *most, "{answered:?}");
}

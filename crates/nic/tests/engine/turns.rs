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

#[test]
fn a_peer_that_always_has_more_to_be_answered_leaves_others_their_turns() {
    let setup = Setup::default();
    let mut node = Side::new(B, 2);
    let mut reads = Vec::new();
    for peer in [A, C] {
        let init = QpInit::new(QpType::Rc, node.pd, node.cq, node.cq);
        node.qp = node.nic.create_qp(init).expect("queue pair");
        node.bring_up(peer, Qpn(0x77), (setup.psn_b, setup.psn_a), setup);
        for n in 0..8 {
            let bth = Bth::new(Opcode::RcReadRequest, node.qp.0, Psn::new(setup.psn_a + n * LEN / setup.mtu));
            let reth = Some(Reth { va: node.va(0), rkey: node.key(), len: LEN });
            reads.push((peer, bytes_of(&Packet { reth, ..Packet::new(bth, &[]) })));
        }
    }
    reads.iter().for_each(|(peer, read)| node.nic.handle_packet(0, 0, *peer, B, read));
    let mut sent = Vec::new();
    while sent.len() < 16 && node.nic.poll_transmit(0, &mut node.batch) {
        sent.push((node.batch.route().expect("a peer").remote, node.batch.len()));
    }
    let turns: Vec<_> = (0..16).map(|turn| ([A, C][turn % 2], 32)).collect();
    assert_eq!(sent, turns);
}

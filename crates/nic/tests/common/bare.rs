//! One engine, and a peer made of bare packets: what the peer says and what it is told can be written as a table.

use remora_nic::*;
use remora_wire::packet::Packet;
use remora_wire::{Aeth, AtomicEth, Bth, NakCode, Opcode, Psn, Reth, Syndrome};

use super::{A, B, REGION, Setup, Side};

/// The bare peer's queue pair number.
pub const PEER_QP: u32 = 0x77;

/// An engine connected to the bare peer.
pub struct Bare {
    pub side: Side,
    pub now: u64,
}

/// A packet of the engine's, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    pub opcode: Opcode,
    pub psn: u32,
    pub aeth: Option<Aeth>,
    pub original: Option<u64>,
    pub reth: Option<Reth>,
    pub ack_req: bool,
    pub payload: Vec<u8>,
}

impl Said {
    /// Op-code, PSN and syndrome: what most tables compare.
    pub fn brief(&self) -> (Opcode, u32, Option<u8>) {
        (self.opcode, self.psn, self.aeth.map(|a| a.syndrome.as_u8()))
    }
}

/// An ACK in a table.
pub fn ack(psn: u32) -> (Opcode, u32, Option<u8>) {
    (Opcode::RcAck, psn, Some(0x1f))
}

/// A NAK in a table.
pub fn nak(psn: u32, code: NakCode) -> (Opcode, u32, Option<u8>) {
    (Opcode::RcAck, psn, Some(Syndrome::Nak(code).as_u8()))
}

impl Bare {
    /// The engine is side B: it sends from `setup.psn_b` on and expects `setup.psn_a`.
    pub fn new(setup: Setup) -> Self {
        Self::sized(setup, REGION)
    }

    /// With `len` bytes of memory.
    pub fn sized(setup: Setup, len: usize) -> Self {
        let mut side = Side::sized(B, 2, len);
        side.bring_up(A, Qpn(PEER_QP), (setup.psn_b, setup.psn_a), setup);
        Self { side, now: 0 }
    }

    /// A packet of the peer's without extension headers, that asks for an ACK.
    pub fn packet<'a>(&self, opcode: Opcode, psn: u32, payload: &'a [u8]) -> Packet<'a> {
        let bth = Bth { ack_req: true, ..Bth::new(opcode, self.side.qp.0, Psn::new(psn)) };
        Packet::new(bth, payload)
    }

    /// A packet with a RETH.
    pub fn with_reth<'a>(
        &self,
        opcode: Opcode,
        psn: u32,
        (va, rkey, len): (u64, u32, u32),
        data: &'a [u8],
    ) -> Packet<'a> {
        Packet { reth: Some(Reth { va, rkey, len }), ..self.packet(opcode, psn, data) }
    }

    /// A FETCH_ADD of 1.
    pub fn fetch_add(&self, psn: u32, va: u64, rkey: u32) -> Packet<'static> {
        let atomic_eth = Some(AtomicEth { va, rkey, swap_or_add: 1, compare: 0 });
        Packet { atomic_eth, ..self.packet(Opcode::RcFetchAdd, psn, &[]) }
    }

    /// An acknowledgement of the peer's.
    pub fn aeth(&self, psn: u32, syndrome: Syndrome) -> Packet<'static> {
        Packet { aeth: Some(Aeth { syndrome, msn: 0 }), ..self.packet(Opcode::RcAck, psn, &[]) }
    }

    /// Gives the engine a packet; answers wait.
    pub fn give(&mut self, packet: &Packet<'_>) {
        self.give_bytes(&bytes_of(packet));
    }

    pub fn give_bytes(&mut self, packet: &[u8]) {
        self.side.nic.handle_packet(self.now, 0, A, B, packet);
    }

    /// What the engine has to say.
    pub fn said(&mut self) -> Vec<Said> {
        let mut said = Vec::new();
        while self.side.nic.poll_transmit(self.now, &mut self.side.batch) {
            for bytes in self.side.batch.packets() {
                let packet = Packet::parse(bytes).expect("the engine emits whole packets");
                said.push(Said {
                    opcode: packet.bth.opcode,
                    psn: packet.bth.psn.get(),
                    aeth: packet.aeth,
                    original: packet.atomic_ack_eth.map(|a| a.original),
                    reth: packet.reth,
                    ack_req: packet.bth.ack_req,
                    payload: packet.payload.to_vec(),
                });
            }
        }
        assert!(!self.side.nic.wants_transmit(), "poll_transmit said that all is sent");
        said
    }

    /// What the engine has to say, in brief.
    pub fn brief(&mut self) -> Vec<(Opcode, u32, Option<u8>)> {
        self.said().iter().map(Said::brief).collect()
    }

    /// A packet and its answers in brief.
    pub fn exchange(&mut self, packet: &Packet<'_>) -> Vec<(Opcode, u32, Option<u8>)> {
        self.give(packet);
        self.brief()
    }

    /// Lets time pass, to the engine's next timer.
    pub fn next_timer(&mut self) -> bool {
        let Some(at) = self.side.nic.poll_timeout() else { return false };
        self.now = self.now.max(at);
        self.side.nic.handle_timeout(self.now);
        true
    }
}

/// A packet as bytes.
pub fn bytes_of(packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = vec![0; packet.len()];
    packet.emit(&mut bytes);
    bytes
}

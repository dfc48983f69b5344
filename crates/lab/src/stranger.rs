//! A stranger on the network who forges: he sends from any address, and sees nothing that is sent to it.
//!
//! He knows what everybody may: who talks to whom, services, ports and formats. What he cannot know he draws, or counts
//! through. On a host of its own every address of 127.0.0.0/8 is his, so that he needs no privilege.

use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use remora_wire::cm::{CmMessage, Drep, Dreq, Mad, RdmaCmHeader, Rej, Rep, Req, SidrRep};
use remora_wire::icrc::IcrcFlow;
use remora_wire::packet::Packet;
use remora_wire::{Aeth, Bth, Deth, ICRC_LEN, NakCode, Opcode, Psn, Reth, Syndrome, UDP_PORT};

/// What he sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgery {
    /// Calls from the peer's address, with one queue pair number after the other: as if the peer had started anew.
    Restarts,
    /// Answers to a question whether the peer lives, each by another process.
    SignsOfLife,
    /// Calls from 256 addresses, which nobody goes on with.
    HalfOpen,
    /// Refusals, ends and answers to calls, from the peer's address.
    Ends,
    /// WRITEs from the peer's address.
    Writes,
    /// Acknowledgements of both kinds from the peer's address.
    Acks,
}

impl Forgery {
    /// All, with their names.
    pub const ALL: [(Forgery, &str); 6] = [
        (Forgery::Restarts, "restarts"),
        (Forgery::SignsOfLife, "signs of life"),
        (Forgery::HalfOpen, "half-open calls"),
        (Forgery::Ends, "ends"),
        (Forgery::Writes, "writes"),
        (Forgery::Acks, "acks"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(forgery, _)| *forgery == self).map_or("", |(_, name)| name)
    }
}

/// Whom he deceives, and as whom.
#[derive(Clone, Copy, Debug)]
pub struct Victim<'a> {
    /// Who gets the packets.
    pub address: Ipv4Addr,
    /// Who seems to send them.
    pub peer: Ipv4Addr,
    /// The service that forged calls are for.
    pub service: u64,
    /// What the caller says to it, at most 56 bytes.
    pub hello: &'a [u8],
}

/// How much came of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flood {
    /// Packets sent.
    pub packets: u64,
    /// That took so long.
    pub time: Duration,
}

impl Flood {
    /// Packets a second.
    pub fn rate(&self) -> f64 {
        self.packets as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// Packets between two looks at the clock.
const RUN: u64 = 64;

/// Sends `packets` forged packets as fast as one thread can, or at `rate` a second if that is not 0, until one of `stops` is set.
pub fn flood(
    forgery: Forgery,
    victim: &Victim<'_>,
    (packets, rate): (u64, u64),
    seed: u64,
    stops: [&AtomicBool; 2],
) -> io::Result<Flood> {
    let stopped = || stops.iter().any(|stop| stop.load(Ordering::Relaxed));
    let [_, _, c, _] = victim.peer.octets();
    let sources: Vec<Ipv4Addr> = match forgery {
        Forgery::HalfOpen => (0..=255).map(|host| Ipv4Addr::new(127, 99, c, host)).collect(),
        _ => vec![victim.peer],
    };
    let ends = sources.into_iter().map(|source| End::bind(source, victim.address)).collect::<io::Result<Vec<_>>>()?;
    let mut draw = Draw(seed);
    let (mut bytes, mut sent) = (vec![0; 2048], 0);
    let start = Instant::now();
    while sent < packets && !stopped() {
        for _ in 0..RUN.min(packets - sent) {
            let end = &ends[(sent % ends.len() as u64) as usize];
            let len = forge(forgery, victim, end.source, sent, &mut draw, &mut bytes);
            end.flow.fill(0, &mut bytes[..len]);
            // A full socket loses it, as the network does.
            let _ = end.socket.send_to(&bytes[..len], (victim.address, UDP_PORT));
            sent += 1;
        }
        if rate > 0 {
            let due = Duration::from_secs_f64(sent as f64 / rate as f64);
            while start.elapsed() < due && !stopped() {
                std::thread::yield_now();
            }
        }
    }
    Ok(Flood { packets: sent, time: start.elapsed() })
}

/// A socket of one address, on a port of the system's choice: the victim believes the address alone.
struct End {
    socket: UdpSocket,
    source: Ipv4Addr,
    flow: IcrcFlow,
}

impl End {
    fn bind(source: Ipv4Addr, to: Ipv4Addr) -> io::Result<Self> {
        let socket = UdpSocket::bind((source, 0))?;
        let flow = IcrcFlow::v4(source, to, socket.local_addr()?.port(), UDP_PORT);
        Ok(Self { socket, source, flow })
    }
}

/// Numbers that he draws (splitmix64).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn word(&mut self) -> u32 {
        self.next() as u32
    }

    fn qpn(&mut self) -> u32 {
        self.word() >> 8
    }
}

/// The `n`th packet, up to where its ICRC goes. Returns its length with that.
fn forge(forgery: Forgery, to: &Victim<'_>, from: Ipv4Addr, n: u64, draw: &mut Draw, out: &mut [u8]) -> usize {
    let message = match forgery {
        Forgery::Restarts => req(to, from, (draw.word(), n as u32 & 0xff_ffff)),
        Forgery::HalfOpen => req(to, from, (draw.word(), draw.qpn())),
        Forgery::SignsOfLife => {
            let mut private_data = [0; 136];
            private_data[..8].copy_from_slice(&draw.next().to_be_bytes());
            CmMessage::SidrRep(SidrRep { request_id: draw.word(), status: 1, private_data, ..SidrRep::default() })
        }
        Forgery::Ends => {
            let (local_comm_id, remote_comm_id) = (draw.word(), draw.word());
            match n % 4 {
                0 => CmMessage::Rej(Rej { local_comm_id, remote_comm_id, reason: 4, ..Rej::default() }),
                1 => CmMessage::Dreq(Dreq { local_comm_id, remote_comm_id, remote_qpn: draw.qpn(), ..Dreq::default() }),
                2 => CmMessage::Drep(Drep { local_comm_id, remote_comm_id, ..Drep::default() }),
                _ => CmMessage::Rep(Rep { local_comm_id, remote_comm_id, local_qpn: draw.qpn(), ..Rep::default() }),
            }
        }
        Forgery::Writes => {
            let bth = bth(Opcode::RcWriteOnly, draw.qpn(), draw.word());
            let reth = Reth { va: draw.next() >> 1, rkey: draw.word(), len: 64 };
            return emit(&Packet { reth: Some(reth), ..Packet::new(bth, &[0x66; 64]) }, out);
        }
        Forgery::Acks => {
            let bth = bth(Opcode::RcAck, draw.qpn(), draw.word());
            let syndrome = match n % 2 {
                0 => Syndrome::Ack { credits: 31 },
                _ => Syndrome::Nak(NakCode::RemoteAccess),
            };
            return emit(&Packet { aeth: Some(Aeth { syndrome, msn: 0 }), ..Packet::new(bth, &[]) }, out);
        }
    };
    let mut mad = [0; Mad::LEN];
    Mad { status: 0, transaction_id: draw.next(), message }.emit(&mut mad);
    let deth = Deth { qkey: 0x8001_0000, reserved: 0, src_qp: 1 };
    emit(&Packet { deth: Some(deth), ..Packet::new(bth(Opcode::UdSendOnly, 1, n as u32), &mad) }, out)
}

fn bth(opcode: Opcode, dest_qp: u32, psn: u32) -> Bth {
    Bth { ack_req: true, ..Bth::new(opcode, dest_qp, Psn::new(psn)) }
}

fn emit(packet: &Packet<'_>, out: &mut [u8]) -> usize {
    let len = packet.emit(out);
    debug_assert!(len > ICRC_LEN, "the ICRC is part of the packet");
    len
}

/// A call that lacks nothing.
fn req(to: &Victim<'_>, from: Ipv4Addr, (id, qpn): (u32, u32)) -> CmMessage {
    let mut private_data = [0; 92];
    let (src, dst) = (IpAddr::V4(from), IpAddr::V4(to.address));
    RdmaCmHeader { src_port: 40_000, src, dst }.emit(&mut private_data);
    let said = to.hello.len().min(92 - RdmaCmHeader::LEN);
    private_data[RdmaCmHeader::LEN..][..said].copy_from_slice(&to.hello[..said]);
    CmMessage::Req(Req {
        local_comm_id: id | 1,
        service_id: to.service,
        local_qpn: qpn.max(2),
        responder_resources: 1,
        initiator_depth: 1,
        remote_cm_timeout: 20,
        local_cm_timeout: 20,
        retry_count: 7,
        pkey: 0xffff,
        path_mtu: 3,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        local_gid: from.to_ipv6_mapped().octets(),
        remote_gid: to.address.to_ipv6_mapped().octets(),
        hop_limit: 64,
        local_ack_timeout: 14,
        private_data,
        ..Req::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use remora_wire::icrc::IcrcVerdict;

    #[test]
    fn what_he_sends_is_right_in_all_but_what_he_cannot_know() {
        let [from, address] = [2, 1].map(|last| Ipv4Addr::new(127, 0, 0, last));
        let victim = Victim { address, peer: from, service: 7, hello: b"hi" };
        let flow = IcrcFlow::v4(from, address, 1000, UDP_PORT);
        for (forgery, name) in Forgery::ALL {
            let (mut draw, mut bytes) = (Draw(1), vec![0; 2048]);
            for n in 0..8 {
                let len = forge(forgery, &victim, from, n, &mut draw, &mut bytes);
                flow.fill(0, &mut bytes[..len]);
                assert_ne!(flow.verify(0, &bytes[..len]), IcrcVerdict::Bad, "{name}");
                let packet = Packet::parse(&bytes[..len]).unwrap_or_else(|e| panic!("{name}: {e}"));
                if packet.bth.dest_qp == 1 {
                    Mad::parse(packet.payload).unwrap_or_else(|e| panic!("{name}: {e}"));
                }
            }
        }
    }
}

//! Captures of real traffic, replayed: the engine in the responder's place gives the answers that Linux' software NIC
//! gave.

use std::net::Ipv4Addr;
use std::path::Path;

use crate::common::{A, B, REGION, Setup, Side};
use remora_nic::*;
use remora_wire::packet::Packet;
use remora_wire::{Opcode, Service, UDP_PORT};

/// Capture, whether the end with the higher address asks, connection, answers in the capture, of which NAKs.
const REPLAYS: [(&str, bool, usize, usize, usize); 27] = [
    ("ib_write_lat", true, 0, 103, 0),
    ("ib_write_lat", false, 0, 101, 0),
    ("ib_write_bw_8k", true, 0, 20, 0),
    ("ib_read_lat", true, 0, 100, 0),
    ("ib_read_bw_8k", true, 0, 160, 0),
    ("ib_send_lat", false, 0, 106, 0),
    ("ib_send_lat", true, 0, 103, 0),
    ("ib_atomic_lat", true, 0, 100, 0),
    ("ib_atomic_cas_lat", true, 0, 100, 0),
    ("ibv_rc_pingpong", false, 0, 50, 0),
    ("ibv_rc_pingpong", true, 0, 78, 0),
    ("mtu4096_write", true, 0, 6, 0),
    ("rping", false, 0, 120, 0),
    ("rping", true, 0, 40, 0),
    ("loss5_write", true, 0, 50, 10),
    ("loss5_read", true, 0, 161, 1),
    ("loss5_send", true, 0, 51, 8),
    ("host_ib_read_lat_64", false, 0, 200, 0),
    ("host_ib_read_lat_64k", false, 0, 640, 0),
    ("host_rc_pingpong", false, 0, 30, 0),
    ("host_rc_pingpong", true, 0, 30, 0),
    ("host_rc_pingpong_64", false, 0, 200, 0),
    ("host_rc_pingpong_64", true, 0, 201, 0),
    ("ib_write_lat_rdmacm", false, 0, 10, 0),
    ("ib_write_lat_rdmacm", false, 1, 20, 0),
    ("ib_write_lat_rdmacm", true, 0, 10, 0),
    ("ib_write_lat_rdmacm", true, 1, 20, 0),
];

#[test]
fn answers_are_those_of_the_captured_responder() {
    for (name, high, connection, count, naks) in REPLAYS {
        let what = format!("{name}, higher end asks: {high}, connection {connection}");
        let captured = load(name);
        let all: Vec<_> = captured.iter().map(|c| (c.from, Packet::parse(&c.bytes).expect("parsed before"))).collect();
        let (requests, theirs) = direction(&all, high, connection);
        let mtu = if name.starts_with("mtu4096") { 4096 } else { 1024 };
        let (ours, side) = replay(&requests, mtu);
        assert_eq!(side.state(), QpState::Rts, "{what}: nothing was refused");
        assert_eq!(ours, theirs, "{what}");
        let refusals = ours.iter().filter(|a| a.2.is_some_and(|s| s >= 0x20)).count();
        assert_eq!((ours.len(), refusals), (count, naks), "{what}");
    }
}

/// A packet of a capture: who sent it, and the bytes from BTH to ICRC.
struct Captured {
    from: Ipv4Addr,
    bytes: Vec<u8>,
}

/// Op-code, PSN, syndrome and MSN of an answer.
type Answer = (Opcode, u32, Option<u8>, Option<u32>);

fn answer(packet: &Packet<'_>) -> Answer {
    let aeth = packet.aeth;
    (packet.bth.opcode, packet.bth.psn.get(), aeth.map(|a| a.syndrome.as_u8()), aeth.map(|a| a.msn))
}

fn is_answer(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(
        opcode,
        RcAck | RcAtomicAck | RcReadResponseFirst | RcReadResponseMiddle | RcReadResponseLast | RcReadResponseOnly
    )
}

/// The RC packets of a capture.
#[expect(clippy::disallowed_methods, reason = "the rule is for the engine; a test reads its vectors")]
fn load(name: &str) -> Vec<Captured> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../wire/tests/vectors/{name}.pcap.zst"));
    let file = std::fs::File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut pcap = Vec::new();
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(file).expect("a zstd file");
    std::io::Read::read_to_end(&mut decoder, &mut pcap).expect("a whole zstd file");
    let mut packets = Vec::new();
    let mut rest = &pcap[24..];
    while let Some((header, after)) = rest.split_at_checked(16) {
        let len = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
        let (frame, next) = after.split_at(len);
        rest = next;
        // Ethernet 14 B, IPv4 20 B, UDP 8 B.
        if frame.len() < 42 || frame[12..14] != [8, 0] || frame[23] != 17 || frame[36..38] != UDP_PORT.to_be_bytes() {
            continue;
        }
        let end = 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
        let bytes = frame[42..end].to_vec();
        if Packet::parse(&bytes).is_ok_and(|p| p.bth.opcode.service() == Service::Rc) {
            packets.push(Captured { from: Ipv4Addr::new(frame[26], frame[27], frame[28], frame[29]), bytes });
        }
    }
    packets
}

/// The `n`th queue pair number that these packets are for.
fn nth_dest<'a>(packets: impl Iterator<Item = &'a Packet<'a>>, n: usize) -> u32 {
    let mut seen = Vec::new();
    for packet in packets {
        if !seen.contains(&packet.bth.dest_qp) {
            seen.push(packet.bth.dest_qp);
        }
    }
    seen[n]
}

/// The requests and answers of one direction of the capture's `n`th connection: the requester is the end with the lower
/// address, or with the higher.
fn direction<'a>(all: &'a [(Ipv4Addr, Packet<'a>)], high: bool, n: usize) -> (Vec<&'a Packet<'a>>, Vec<Answer>) {
    let ends = all.iter().map(|(from, _)| *from);
    let requester = if high { ends.max() } else { ends.min() }.expect("packets");
    let asks = |(from, p): &&(Ipv4Addr, Packet<'_>)| *from == requester && !is_answer(p.bth.opcode);
    let answers = |(from, p): &&(Ipv4Addr, Packet<'_>)| *from != requester && is_answer(p.bth.opcode);
    let (to, back) =
        (nth_dest(all.iter().filter(asks).map(|a| &a.1), n), nth_dest(all.iter().filter(answers).map(|a| &a.1), n));
    let requests = all.iter().filter(asks).map(|a| &a.1).filter(|p| p.bth.dest_qp == to).collect();
    let answers = all.iter().filter(answers).map(|a| &a.1).filter(|p| p.bth.dest_qp == back).map(answer).collect();
    (requests, answers)
}

/// Gives the requests to an engine, in order, and collects its answers and the payload bytes in them.
fn replay(requests: &[&Packet<'_>], mtu: u32) -> (Vec<Answer>, Side) {
    let mut side = Side::new(B, 2);
    side.bring_up(A, Qpn(0x11), (0, requests[0].bth.psn.get()), Setup { mtu, ..Setup::default() });
    let lowest = requests.iter().filter_map(|p| address(p)).min().unwrap_or(0);
    let mut ours = Vec::new();
    for (n, packet) in requests.iter().enumerate() {
        let list = [side.sge(0, REGION / 2)];
        let _ = side.nic.post_recv(side.qp, n as u64, &list); // as many as there is room for
        side.nic.handle_packet(0, 0, A, B, &readdressed(packet, lowest, &side));
        while side.nic.poll_transmit(0, &mut side.batch) {
            ours.extend(side.batch.packets().map(|bytes| answer(&Packet::parse(bytes).expect("whole packets"))));
        }
        side.collect();
    }
    (ours, side)
}

/// The remote address that a request names.
fn address(packet: &Packet<'_>) -> Option<u64> {
    packet.reth.map(|r| r.va).or(packet.atomic_eth.map(|a| a.va))
}

/// The packet as it would be if the responder were `side`.
fn readdressed(packet: &Packet<'_>, lowest: u64, side: &Side) -> Vec<u8> {
    let mut packet = *packet;
    packet.bth.dest_qp = side.qp.0;
    let map = |va: u64| side.va((va - lowest) as usize);
    packet.reth = packet.reth.map(|r| remora_wire::Reth { va: map(r.va), rkey: side.key(), ..r });
    packet.atomic_eth = packet.atomic_eth.map(|a| remora_wire::AtomicEth { va: map(a.va), rkey: side.key(), ..a });
    crate::common::bare::bytes_of(&packet)
}

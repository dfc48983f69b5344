//! Ethernet, IP and UDP headers: what parses is emitted to the same bytes; any bytes may be asked for their ICRC.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remora_wire::icrc;
use remora_wire::ip::{Ethernet, Ipv4, Ipv6, PseudoHeader, Udp};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(ethernet) = Ethernet::parse(bytes) {
        let mut again = [0; Ethernet::LEN];
        ethernet.emit(&mut again);
        assert_eq!(again, bytes[..Ethernet::LEN]);
        ip(&bytes[Ethernet::LEN..]);
    }
    ip(bytes);
});

fn ip(bytes: &[u8]) {
    let _ = icrc::verify_ip(bytes);
    if let Ok(ip) = Ipv4::parse(bytes) {
        let mut again = [0; Ipv4::LEN];
        ip.emit(&mut again);
        assert_eq!(again, bytes[..Ipv4::LEN]);
        let addresses = PseudoHeader { src: ip.src.into(), dst: ip.dst.into() };
        udp(addresses, &bytes[Ipv4::LEN..ip.total_len.into()]);
    }
    if let Ok(ip) = Ipv6::parse(bytes) {
        let mut again = [0; Ipv6::LEN];
        ip.emit(&mut again);
        assert_eq!(again, bytes[..Ipv6::LEN]);
        let addresses = PseudoHeader { src: ip.src.into(), dst: ip.dst.into() };
        udp(addresses, &bytes[Ipv6::LEN..][..ip.payload_len.into()]);
    }
}

fn udp(addresses: PseudoHeader, datagram: &[u8]) {
    assert_ne!(addresses.checksum(datagram), 0);
    if let Ok(udp) = Udp::parse(datagram) {
        let mut again = [0; Udp::LEN];
        udp.emit(&mut again);
        assert_eq!(again, datagram[..Udp::LEN]);
    }
}

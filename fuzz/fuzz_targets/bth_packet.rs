//! A packet parses or is refused; what parses is emitted to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remora_wire::packet::Packet;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(packet) = Packet::parse(bytes) {
        assert_eq!(usize::from(packet.bth.pad), packet.padding.len());
        let mut again = vec![0; packet.len()];
        assert_eq!(packet.emit(&mut again), bytes.len());
        assert_eq!(again, bytes);
    }
});

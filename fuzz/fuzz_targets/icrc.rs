//! The ICRC: the first two bytes are the IP identification and the next two the expected one, the rest is a packet.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remora_wire::icrc::{IcrcFlow, IcrcVerdict};
use remora_wire::{Bth, ICRC_LEN, UDP_PORT};

fuzz_target!(|bytes: &[u8]| {
    let Some(([a, b, c, d], packet)) = bytes.split_first_chunk() else { return };
    let (id, hint) = (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]));
    let v4 = IcrcFlow::v4([10, 77, 0, 11].into(), [10, 77, 0, 12].into(), 0xd872, UDP_PORT);
    let v6 = IcrcFlow::v6(1.into(), 2.into(), 0xd872, UDP_PORT);
    if let IcrcVerdict::GoodWithId(other) = v4.verify(hint, packet) {
        assert_ne!(other, hint);
        assert_eq!(v4.verify(other, packet), IcrcVerdict::Good);
    }
    assert!(!matches!(v6.verify(hint, packet), IcrcVerdict::GoodWithId(_)));
    if packet.len() < Bth::LEN + ICRC_LEN {
        assert_eq!(v4.verify(id, packet), IcrcVerdict::Bad);
        return;
    }
    let mut packet = packet.to_vec();
    v4.fill(id, &mut packet);
    let expected = if id == hint { IcrcVerdict::Good } else { IcrcVerdict::GoodWithId(id) };
    assert_eq!(v4.verify(hint, &packet), expected);
    v6.fill(id, &mut packet);
    assert_eq!(v6.verify(hint, &packet), IcrcVerdict::Good);
});

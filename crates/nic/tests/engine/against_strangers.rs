//! Random sequences of what a stranger may forge. A failure prints the bytes that made it; `drive` repeats it.

#[path = "../common/strangers.rs"]
mod strangers;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn honest_connections_never_end(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
        strangers::drive(&bytes);
    }
}

/// As fast as one can forge: places, and replies, run out.
#[test]
fn nor_do_they_in_a_flood_of_one_kind() {
    for kind in 0..=255 {
        let bytes: Vec<u8> =
            (0..6000u32).map(|n| if n % 3 == 0 { 5 + kind % 11 } else { (n * 7 + u32::from(kind)) as u8 }).collect();
        strangers::drive(&bytes);
    }
}

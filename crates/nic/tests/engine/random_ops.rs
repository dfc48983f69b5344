//! Random sequences of operations and faults. A failure prints the bytes that made it; `drive` repeats it.

#[path = "../common/ops.rs"]
mod ops;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn engines_keep_their_promises(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
        ops::drive(&bytes);
    }
}

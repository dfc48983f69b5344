//! Calls to the host and the parameters of the node's own calls: what parses is written to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remora_service::HostCall;
use remora_service::control::SketchParams;

fuzz_target!(|bytes: &[u8]| {
    let Ok(call) = HostCall::parse(bytes) else { return };
    let mut again = Vec::new();
    call.encode(&mut again).expect("no longer than it was");
    assert_eq!(again, bytes);
    if let Some(params) = SketchParams::decode(call.params) {
        let encoded = params.encode();
        assert_eq!(encoded[..], call.params[..encoded.len()]);
    }
});

//! What processes and a rack's daemon say to each other: what parses is emitted to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remora_rack::frame::{Reply, Request};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = Request::parse(bytes) {
        assert_eq!(request.emit().as_slice(), bytes);
    }
    if let Ok(reply) = Reply::parse(bytes) {
        assert_eq!(reply.emit().as_slice(), bytes);
    }
});

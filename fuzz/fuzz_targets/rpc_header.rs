//! The RPC header: what parses is emitted to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remora_wire::rpc::{RpcHeader, parse_reply_imm, reply_imm};

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = RpcHeader::parse(bytes) else { return };
    let mut again = [0; RpcHeader::LEN];
    header.emit(&mut again);
    assert_eq!(again, bytes[..RpcHeader::LEN]);
    let status = bytes.get(RpcHeader::LEN).copied().unwrap_or(0);
    assert_eq!(parse_reply_imm(reply_imm(header.tag, status)), (header.tag, status));
});

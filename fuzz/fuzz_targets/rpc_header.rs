//! The RPC header: what parses is emitted to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remora_wire::rpc::{RpcHeader, RpcStatus, parse_reply_imm, reply_imm};

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = RpcHeader::parse(bytes) else { return };
    let mut again = [0; RpcHeader::LEN];
    header.emit(&mut again);
    assert_eq!(again, bytes[..RpcHeader::LEN]);
    let status = bytes.get(RpcHeader::LEN).map_or(RpcStatus::Ok, |byte| RpcStatus::from(*byte));
    let imm = reply_imm(header.tag, status.into());
    let (tag, byte) = parse_reply_imm(imm);
    assert_eq!((tag, RpcStatus::from(byte)), (header.tag, status));
});

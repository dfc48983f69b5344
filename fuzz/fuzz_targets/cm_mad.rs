//! A message of connection management parses or is refused; what parses means the same once emitted, and all that
//! emission loses is reserved bits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remora_wire::cm::{CmMessage, Mad, RdmaCmHeader};

fuzz_target!(|bytes: &[u8]| {
    let Ok(mad) = Mad::parse(bytes) else { return };
    let mut again = [0xee; Mad::LEN];
    mad.emit(&mut again);
    assert_eq!(Mad::parse(&again), Ok(mad));
    assert!(again.iter().zip(bytes).all(|(after, before)| after & !before == 0));
    if let CmMessage::Req(req) = mad.message
        && let Ok(header) = RdmaCmHeader::parse(&req.private_data)
    {
        let mut again = [0xee; RdmaCmHeader::LEN];
        header.emit(&mut again);
        let parsed = RdmaCmHeader::parse(&again).expect("what is emitted parses");
        assert_eq!(parsed, header);
    }
});

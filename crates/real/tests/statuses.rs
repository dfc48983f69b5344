//! A kernel's status and the status on the wire are two names for one byte.

use remora_kernel::Status;
use remora_wire::rpc::RpcStatus;

#[test]
fn kernels_and_the_wire_agree_on_every_status() {
    for byte in 0..=255 {
        let (kernel, wire) = (Status::from_code(byte), RpcStatus::from(byte));
        assert_eq!((kernel.code(), u8::from(wire)), (byte, byte));
        assert_eq!(format!("{kernel:?}"), format!("{wire:?}"), "the names of {byte}");
    }
}

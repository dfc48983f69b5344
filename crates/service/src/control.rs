//! The node's own calls: to the host, like those of its kernels, with op-codes above all of theirs.
//!
//! Numbers in parameters and answers are little-endian. A call that is refused ends with
//! [`Status::BadParams`](remora_kernel::Status) and the reason as text.

use remora_kernel::Call;
use remora_nic::Qpn;

use crate::ledger::Ledger;

/// Calls to a node that are not its own: a benchmark's, a probe's. They have op-codes in the range of the node's, and
/// run on its host thread, so that none may take long.
pub trait Extension: Send {
    /// The op-codes that it answers to. The node's own go first.
    fn ops(&self) -> &[u64];

    /// Answers a call: fills the reply in, or says why not.
    fn call(&mut self, caller: Qpn, memory: &Ledger, call: &mut Call) -> Result<(), String>;

    /// A region is gone.
    fn region_released(&mut self, key: u32) {
        let _ = key;
    }

    /// A client is gone; of each of its regions it is said before.
    fn client_gone(&mut self, client: Qpn) {
        let _ = client;
    }
}

/// The node's port in `rdma_cm`'s TCP port space.
pub const PORT: u16 = 7411;

/// Op-codes of the node's own calls.
pub mod op {
    /// The first of them; kernels' op-codes are below.
    pub const FIRST: u64 = ALLOC;
    /// Registers memory: length u64 -> address u64, key u32.
    pub const ALLOC: u64 = 0x1001;
    /// Gives it back: key u32.
    pub const FREE: u64 = 0x1002;
    /// CPU time that the node process has used: -> nanoseconds u64.
    pub const CPU: u64 = 0x1003;
    // 0x1004 and 0x1005 are those of an extension.

    /// Deploys a module that lies in a region: -> op-code u64, version u32.
    pub const KERNEL_DEPLOY: u64 = 0x1006;
    /// Lists the modules.
    pub const KERNEL_LIST: u64 = 0x1007;
    /// Removes a module: its name.
    pub const KERNEL_REMOVE: u64 = 0x1008;
    /// Sketches what is written into a region from now on: see [`super::SketchParams`].
    pub const SKETCH_START: u64 = 0x1009;
    /// Does so no more: key u32.
    pub const SKETCH_STOP: u64 = 0x100A;
}

/// Parameters of [`op::SKETCH_START`]: a sketch of the WRITEs that name a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SketchParams {
    /// The key.
    pub key: u32,
    /// Log2 of the number of registers.
    pub lg_k: u8,
    /// Where these lie: key, address.
    pub registers: (u32, u64),
}

impl SketchParams {
    /// The parameters.
    pub fn encode(&self) -> [u8; 17] {
        let mut out = [0; 17];
        out[..4].copy_from_slice(&self.key.to_le_bytes());
        out[4..8].copy_from_slice(&self.registers.0.to_le_bytes());
        out[8..16].copy_from_slice(&self.registers.1.to_le_bytes());
        out[16] = self.lg_k;
        out
    }

    /// What parameters say; `None` if they are cut short.
    pub fn decode(params: &[u8]) -> Option<Self> {
        let registers = (u32_at(params, 4)?, u64_at(params, 8)?);
        Some(SketchParams { key: u32_at(params, 0)?, lg_k: *params.get(16)?, registers })
    }
}

/// The little-endian number at `at`, if the bytes go that far.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The little-endian number at `at`, if the bytes go that far.
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use remora_kernel::Status;
    use remora_wire::rpc::status;

    #[test]
    fn parameters_are_read_as_written_and_not_when_cut() {
        let sketching = SketchParams { key: 7, lg_k: 12, registers: (8, 1 << 40) };
        let bytes = sketching.encode();
        assert_eq!(SketchParams::decode(&bytes), Some(sketching));
        assert!((0..bytes.len()).all(|len| SketchParams::decode(&bytes[..len]).is_none()));
        assert_eq!((u32_at(&bytes, usize::MAX), u64_at(&bytes, 10)), (None, None));
    }

    #[test]
    fn the_transport_and_kernels_agree_on_the_statuses_that_it_gives_by_itself() {
        for (code, name) in [
            (status::OK, Status::Ok),
            (status::UNKNOWN_OP, Status::UnknownOp),
            (status::REPLY_TOO_LONG, Status::ReplyTooLong),
        ] {
            assert_eq!(Status::from_code(code), name);
        }
    }
}

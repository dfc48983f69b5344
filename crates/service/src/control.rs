//! The node's own calls: to the host, like those of its kernels, with op-codes above all of theirs.
//!
//! Numbers in parameters and answers are little-endian. A call that is refused ends with
//! [`Status::BadParams`](remora_kernel::Status) and the reason as text.

use remora_kernel::{Call, Placement};
use remora_nic::Qpn;
use remora_ring::{Notify, RingShape, ShapeError};

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

    /// A client is gone; of each of its regions it is said later.
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
    /// The last that there is, but for extensions.
    pub const LAST: u64 = PLACE;
    /// Registers memory: length u64, and whether it may grow u8 (if it is there) -> address u64, key u32.
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
    /// Answers with as many zero bytes as it is told, up to a reply's length: length u32, any bytes. Whether packets of a
    /// size get through, there and back.
    pub const PATH: u64 = 0x100B;
    /// Opens a pair of rings: [`super::RingParams`] -> [`super::RingPlace`]. It ends with the client, and when the region
    /// that it lies in is given back.
    pub const RING_OPEN: u64 = 0x100C;
    /// Makes the caller an owner of a B-tree, until its connection ends: the tree as in parameters of its kernels -> owner
    /// u16.
    pub const TREE_OWN: u64 = 0x100D;
    /// Why calls of a kind run where they do that are left to the node: a
    /// [`CallKind`](crate::CallKind) -> a line of text.
    pub const PLACE: u64 = 0x100E;
}

/// What a node says of itself when it takes a connection: the first byte of its answer's private data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// It says where calls run that are [left to it](remora_wire::rpc::FLAG_ANYWHERE).
    pub places: bool,
}

impl Offer {
    /// The private data.
    pub fn encode(self) -> [u8; 1] {
        [u8::from(self.places)]
    }

    /// What private data says: of bits that are not known, nothing.
    pub fn decode(private_data: &[u8]) -> Self {
        Self { places: private_data.first().is_some_and(|first| first & 1 != 0) }
    }
}

/// Parameters of [`op::SKETCH_START`]: a sketch of the WRITEs that name a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SketchParams {
    /// The region: key, address. The key alone could be guessed.
    pub region: (u32, u64),
    /// Log2 of the number of registers.
    pub lg_k: u8,
    /// Where these lie: key, address.
    pub registers: (u32, u64),
}

impl SketchParams {
    /// The parameters.
    pub fn encode(&self) -> [u8; 25] {
        let mut out = [0; 25];
        for (at, (key, va)) in [(0, self.region), (12, self.registers)] {
            out[at..at + 4].copy_from_slice(&key.to_le_bytes());
            out[at + 4..at + 12].copy_from_slice(&va.to_le_bytes());
        }
        out[24] = self.lg_k;
        out
    }

    /// What parameters say; `None` if they are cut short.
    pub fn decode(params: &[u8]) -> Option<Self> {
        let place = |at| Some((u32_at(params, at)?, u64_at(params, at + 4)?));
        Some(SketchParams { region: place(0)?, lg_k: *params.get(24)?, registers: place(12)? })
    }
}

/// Parameters of [`op::RING_OPEN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingParams {
    /// Where the requests' kernels run: at the NIC or the host.
    pub placement: Placement,
    /// Of both rings.
    pub shape: Result<RingShape, ShapeError>,
    /// How the node is told of requests.
    pub notify: Notify,
    /// The response ring, in the client's memory: address, key.
    pub responses: (u64, u32),
}

impl RingParams {
    /// The parameters; those of no shape are of none.
    pub fn encode(&self) -> [u8; 22] {
        let mut out = [0; 22];
        out[0] = Placement::ALL.iter().position(|&placement| placement == self.placement).unwrap_or(0) as u8;
        out[1] = u8::from(self.notify == Notify::Pointer);
        let (entries, entry) = match self.shape {
            Ok(shape) => (shape.entries(), shape.entry()),
            Err(ShapeError { entries, entry }) => (entries, entry),
        };
        out[2..6].copy_from_slice(&entries.to_le_bytes());
        out[6..10].copy_from_slice(&entry.to_le_bytes());
        out[10..18].copy_from_slice(&self.responses.0.to_le_bytes());
        out[18..].copy_from_slice(&self.responses.1.to_le_bytes());
        out
    }

    /// What parameters say; `None` if they are cut short or name no place.
    pub fn decode(params: &[u8]) -> Option<Self> {
        Some(Self {
            placement: *Placement::ALL.get(usize::from(*params.first()?))?,
            shape: RingShape::new(u32_at(params, 2)?, u32_at(params, 6)?),
            notify: if *params.get(1)? == 0 { Notify::Ring } else { Notify::Pointer },
            responses: (u64_at(params, 10)?, u32_at(params, 18)?),
        })
    }
}

/// Where the request ring is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlace {
    /// Its address.
    pub va: u64,
    /// Its key.
    pub key: u32,
}

impl RingPlace {
    /// The answer.
    pub fn encode(&self) -> [u8; 12] {
        let mut out = [0; 12];
        out[..8].copy_from_slice(&self.va.to_le_bytes());
        out[8..].copy_from_slice(&self.key.to_le_bytes());
        out
    }

    /// What an answer says; `None` if it is cut short.
    pub fn decode(reply: &[u8]) -> Option<Self> {
        Some(Self { va: u64_at(reply, 0)?, key: u32_at(reply, 8)? })
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
        let sketching = SketchParams { region: (7, 1 << 50), lg_k: 12, registers: (8, 1 << 40) };
        let bytes = sketching.encode();
        assert_eq!(SketchParams::decode(&bytes), Some(sketching));
        assert!((0..bytes.len()).all(|len| SketchParams::decode(&bytes[..len]).is_none()));
        let pair = RingParams {
            placement: Placement::Host,
            shape: RingShape::new(64, 256),
            notify: Notify::Pointer,
            responses: (1 << 50, 7),
        };
        let params = pair.encode();
        assert_eq!(RingParams::decode(&params), Some(pair));
        assert!((0..params.len()).all(|len| RingParams::decode(&params[..len]).is_none()));
        let place = RingPlace { va: 1 << 60, key: 9 };
        assert_eq!((RingPlace::decode(&place.encode()), RingPlace::decode(&[0; 11])), (Some(place), None));
        assert_eq!((u32_at(&bytes, usize::MAX), u64_at(&bytes, 18)), (None, None));
    }

    #[test]
    fn the_transport_and_kernels_agree_on_the_statuses_that_it_gives_by_itself() {
        for (code, name) in [
            (status::OK, Status::Ok),
            (status::UNKNOWN_OP, Status::UnknownOp),
            (status::ACCESS_DENIED, Status::AccessDenied),
            (status::REPLY_TOO_LONG, Status::ReplyTooLong),
        ] {
            assert_eq!(Status::from_code(code), name);
        }
    }
}

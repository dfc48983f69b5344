//! RoCE v2 on the wire: headers to and from bytes, with no state.
//!
//! Every header is a plain value with three items: `LEN`, its bytes on the wire; `parse`, which reads the first `LEN`
//! bytes of a slice and never panics; and `emit`, which writes `LEN` bytes at the front of a slice and panics, as slice
//! indexing does, if the slice is shorter. All fields are big-endian on the wire.
//!
//! A hot path reads a [`Bth`], asks its [`Opcode`] which extension headers follow, and parses those. [`packet::Packet`]
//! does the same for a whole packet where convenience matters more than the last nanosecond.
//!
//! Sources: InfiniBand Architecture Specification volume 1 (chapters 5 and 9 for headers, 12 for connection
//! management), annex A17 (RoCE v2), annex A19 (FLUSH, ATOMIC WRITE).

mod aeth;
mod atomic_ack_eth;
mod atomic_eth;
mod bth;
pub mod cm;
mod crc;
mod deth;
mod error;
mod feth;
mod field;
pub mod icrc;
mod ieth;
mod imm_dt;
pub mod ip;
mod opcode;
pub mod packet;
mod psn;
mod reth;
pub mod rpc;

pub use aeth::{Aeth, NakCode, Syndrome, rnr_timer_ns};
pub use atomic_ack_eth::AtomicAckEth;
pub use atomic_eth::AtomicEth;
pub use bth::Bth;
pub use deth::Deth;
pub use error::ParseError;
pub use feth::Feth;
pub use ieth::Ieth;
pub use imm_dt::ImmDt;
pub use opcode::{Opcode, Service};
pub use psn::Psn;
pub use reth::Reth;

/// UDP destination port of RoCE v2 (annex A17).
pub const UDP_PORT: u16 = 4791;

/// Bytes of the invariant CRC at the end of every packet.
pub const ICRC_LEN: usize = 4;

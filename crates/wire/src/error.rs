//! Why bytes are not what they should be.

/// Why a parser refused its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ParseError {
    /// Fewer bytes than the header takes.
    #[error("{header} takes {need} bytes and only {got} are left: drop the packet, it was cut short")]
    Truncated {
        /// The header that does not fit.
        header: &'static str,
        /// Bytes that it takes.
        need: usize,
        /// Bytes that are there.
        got: usize,
    },
    /// A field has a value that the header does not allow.
    #[error("{header}: {field} is {value:#x}, not {expected}")]
    Field {
        /// The header with the field in it.
        header: &'static str,
        /// The field, as its specification calls it.
        field: &'static str,
        /// What it holds.
        value: u64,
        /// What it may hold.
        expected: &'static str,
    },
    /// The base transport header starts with a byte that [`Opcode`](crate::Opcode) does not list.
    #[error("BTH: op-code {0:#04x} is reserved or belongs to a transport not carried here (RD, XRC)")]
    UnknownOpcode(u8),
    /// The pad count says more than the packet holds after its headers.
    #[error("BTH: pad count {pad} but only {got} bytes between headers and ICRC")]
    Pad {
        /// Pad count of the base transport header.
        pad: u8,
        /// Bytes after the headers, without the ICRC.
        got: usize,
    },
    /// A checksum over the header disagrees with its bytes.
    #[error("{header}: checksum is {got:#06x}, its bytes say {computed:#06x}: damaged on the way")]
    Checksum {
        /// The header that was damaged.
        header: &'static str,
        /// Checksum in the packet.
        got: u16,
        /// Checksum of the bytes.
        computed: u16,
    },
}

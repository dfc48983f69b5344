//! Op-codes: the first byte of every packet says what the packet is and which extension headers it has.

/// What kind of queue pair a packet is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification, for no service.
    Cnp,
    /// StRoM's RPC verbs, carried on a reliable connection.
    Rpc,
}

/// Declares the op-codes: name, byte, service, position in the message, extension headers.
macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $service:ident, $position:ident $(, $header:ident)*;)*) => {
        /// What a packet is: InfiniBand specification volume 1, section 9.2.1, annexes A17.9.3 and A19.
        ///
        /// StRoM (section 5.1) takes 0x18 to 0x1c for its RPC verbs, of which the specification has since given 0x1c to
        /// FLUSH. Remora's have the same low five bits in the manufacturer's space, 0xd8 to 0xdc.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Opcode {
            $($(#[$doc])* $name = $code,)*
        }

        impl Opcode {
            /// Every op-code, in the order of their bytes.
            pub const ALL: &[Opcode] = &[$(Opcode::$name),*];
        }

        const FROM_U8: [Option<Opcode>; 256] = {
            let mut table = [None; 256];
            $(table[$code] = Some(Opcode::$name);)*
            table
        };

        const INFO: [Info; 256] = {
            let mut table = [Info { service: Service::Cnp, bits: 0, header_len: 0 }; 256];
            $(table[$code] = Info::new(Service::$service, $position $(| $header)*);)*
            table
        };
    };
}

opcodes! {
    /// RC SEND first.
    RcSendFirst = 0x00, Rc, FIRST;
    /// RC SEND middle.
    RcSendMiddle = 0x01, Rc, MIDDLE;
    /// RC SEND last.
    RcSendLast = 0x02, Rc, LAST;
    /// RC SEND last with immediate.
    RcSendLastImm = 0x03, Rc, LAST, IMM;
    /// RC SEND only.
    RcSendOnly = 0x04, Rc, ONLY;
    /// RC SEND only with immediate.
    RcSendOnlyImm = 0x05, Rc, ONLY, IMM;
    /// RC RDMA WRITE first.
    RcWriteFirst = 0x06, Rc, FIRST, RETH;
    /// RC RDMA WRITE middle.
    RcWriteMiddle = 0x07, Rc, MIDDLE;
    /// RC RDMA WRITE last.
    RcWriteLast = 0x08, Rc, LAST;
    /// RC RDMA WRITE last with immediate.
    RcWriteLastImm = 0x09, Rc, LAST, IMM;
    /// RC RDMA WRITE only.
    RcWriteOnly = 0x0a, Rc, ONLY, RETH;
    /// RC RDMA WRITE only with immediate.
    RcWriteOnlyImm = 0x0b, Rc, ONLY, RETH, IMM;
    /// RC RDMA READ request.
    RcReadRequest = 0x0c, Rc, ONLY, RETH;
    /// RC RDMA READ response first.
    RcReadResponseFirst = 0x0d, Rc, FIRST, AETH;
    /// RC RDMA READ response middle.
    RcReadResponseMiddle = 0x0e, Rc, MIDDLE;
    /// RC RDMA READ response last.
    RcReadResponseLast = 0x0f, Rc, LAST, AETH;
    /// RC RDMA READ response only.
    RcReadResponseOnly = 0x10, Rc, ONLY, AETH;
    /// RC acknowledge.
    RcAck = 0x11, Rc, ONLY, AETH;
    /// RC ATOMIC acknowledge.
    RcAtomicAck = 0x12, Rc, ONLY, AETH, ATOMIC_ACK_ETH;
    /// RC CMP_SWAP.
    RcCompareSwap = 0x13, Rc, ONLY, ATOMIC_ETH;
    /// RC FETCH_ADD.
    RcFetchAdd = 0x14, Rc, ONLY, ATOMIC_ETH;
    /// RC SEND last with invalidate.
    RcSendLastInv = 0x16, Rc, LAST, IETH;
    /// RC SEND only with invalidate.
    RcSendOnlyInv = 0x17, Rc, ONLY, IETH;
    /// RC FLUSH.
    RcFlush = 0x1c, Rc, ONLY, FETH, RETH;
    /// RC ATOMIC WRITE; its payload is the eight bytes to write.
    RcAtomicWrite = 0x1d, Rc, ONLY, RETH;
    /// UC SEND first.
    UcSendFirst = 0x20, Uc, FIRST;
    /// UC SEND middle.
    UcSendMiddle = 0x21, Uc, MIDDLE;
    /// UC SEND last.
    UcSendLast = 0x22, Uc, LAST;
    /// UC SEND last with immediate.
    UcSendLastImm = 0x23, Uc, LAST, IMM;
    /// UC SEND only.
    UcSendOnly = 0x24, Uc, ONLY;
    /// UC SEND only with immediate.
    UcSendOnlyImm = 0x25, Uc, ONLY, IMM;
    /// UC RDMA WRITE first.
    UcWriteFirst = 0x26, Uc, FIRST, RETH;
    /// UC RDMA WRITE middle.
    UcWriteMiddle = 0x27, Uc, MIDDLE;
    /// UC RDMA WRITE last.
    UcWriteLast = 0x28, Uc, LAST;
    /// UC RDMA WRITE last with immediate.
    UcWriteLastImm = 0x29, Uc, LAST, IMM;
    /// UC RDMA WRITE only.
    UcWriteOnly = 0x2a, Uc, ONLY, RETH;
    /// UC RDMA WRITE only with immediate.
    UcWriteOnlyImm = 0x2b, Uc, ONLY, RETH, IMM;
    /// UD SEND only.
    UdSendOnly = 0x64, Ud, ONLY, DETH;
    /// UD SEND only with immediate.
    UdSendOnlyImm = 0x65, Ud, ONLY, DETH, IMM;
    /// Congestion notification as the prefix alone, which is how Linux and Wireshark number it. Take it, send [`Cnp`].
    ///
    /// [`Cnp`]: Opcode::Cnp
    CnpPrefix = 0x80, Cnp, ONLY;
    /// Congestion notification as annex A17.9.3 prints it and as hardware sends it; 16 reserved bytes follow the BTH.
    Cnp = 0x81, Cnp, ONLY;
    /// RPC parameters: the RETH address is the kernel's op-code, the length that of the message.
    RpcParams = 0xd8, Rpc, ONLY, RETH;
    /// RPC WRITE first.
    RpcWriteFirst = 0xd9, Rpc, FIRST, RETH;
    /// RPC WRITE middle.
    RpcWriteMiddle = 0xda, Rpc, MIDDLE;
    /// RPC WRITE last.
    RpcWriteLast = 0xdb, Rpc, LAST;
    /// RPC WRITE only.
    RpcWriteOnly = 0xdc, Rpc, ONLY, RETH;
}

const FIRST: u16 = 1;
const MIDDLE: u16 = 1 << 1;
const LAST: u16 = 1 << 2;
const ONLY: u16 = 1 << 3;
const RETH: u16 = 1 << 4;
const AETH: u16 = 1 << 5;
const IMM: u16 = 1 << 6;
const IETH: u16 = 1 << 7;
const ATOMIC_ETH: u16 = 1 << 8;
const ATOMIC_ACK_ETH: u16 = 1 << 9;
const DETH: u16 = 1 << 10;
const FETH: u16 = 1 << 11;

/// Bytes of each extension header.
const HEADERS: [(u16, usize); 8] = [
    (RETH, crate::Reth::LEN),
    (AETH, crate::Aeth::LEN),
    (IMM, crate::ImmDt::LEN),
    (IETH, crate::Ieth::LEN),
    (ATOMIC_ETH, crate::AtomicEth::LEN),
    (ATOMIC_ACK_ETH, crate::AtomicAckEth::LEN),
    (DETH, crate::Deth::LEN),
    (FETH, crate::Feth::LEN),
];

#[derive(Clone, Copy)]
struct Info {
    service: Service,
    bits: u16,
    header_len: u8,
}

impl Info {
    const fn new(service: Service, bits: u16) -> Self {
        let mut len = crate::Bth::LEN;
        let mut i = 0;
        while i < HEADERS.len() {
            if bits & HEADERS[i].0 != 0 {
                len += HEADERS[i].1;
            }
            i += 1;
        }
        Self { service, bits, header_len: len as u8 }
    }
}

impl Opcode {
    /// The op-code of a byte, `None` if it is reserved or of a transport that is not here (RD, XRC).
    #[inline]
    pub const fn from_u8(byte: u8) -> Option<Opcode> {
        FROM_U8[byte as usize]
    }

    /// The byte on the wire.
    #[inline]
    pub const fn as_u8(self) -> u8 {
        self as u8
    }

    /// The service that the packet is for.
    #[inline]
    pub const fn service(self) -> Service {
        INFO[self as usize].service
    }

    /// Bytes of the base transport header and the extension headers.
    #[inline]
    pub const fn header_len(self) -> usize {
        INFO[self as usize].header_len as usize
    }

    #[inline]
    const fn has(self, bit: u16) -> bool {
        INFO[self as usize].bits & bit != 0
    }

    /// First of several packets of a message.
    #[inline]
    pub const fn is_first(self) -> bool {
        self.has(FIRST)
    }

    /// Neither first nor last.
    #[inline]
    pub const fn is_middle(self) -> bool {
        self.has(MIDDLE)
    }

    /// Last of several packets of a message.
    #[inline]
    pub const fn is_last(self) -> bool {
        self.has(LAST)
    }

    /// A message of one packet; so are requests without payload and acknowledgements.
    #[inline]
    pub const fn is_only(self) -> bool {
        self.has(ONLY)
    }

    /// Has a [`Reth`](crate::Reth).
    #[inline]
    pub const fn has_reth(self) -> bool {
        self.has(RETH)
    }

    /// Has an [`Aeth`](crate::Aeth).
    #[inline]
    pub const fn has_aeth(self) -> bool {
        self.has(AETH)
    }

    /// Has an [`ImmDt`](crate::ImmDt).
    #[inline]
    pub const fn has_imm(self) -> bool {
        self.has(IMM)
    }

    /// Has an [`Ieth`](crate::Ieth).
    #[inline]
    pub const fn has_ieth(self) -> bool {
        self.has(IETH)
    }

    /// Has an [`AtomicEth`](crate::AtomicEth).
    #[inline]
    pub const fn has_atomic_eth(self) -> bool {
        self.has(ATOMIC_ETH)
    }

    /// Has an [`AtomicAckEth`](crate::AtomicAckEth).
    #[inline]
    pub const fn has_atomic_ack_eth(self) -> bool {
        self.has(ATOMIC_ACK_ETH)
    }

    /// Has a [`Deth`](crate::Deth).
    #[inline]
    pub const fn has_deth(self) -> bool {
        self.has(DETH)
    }

    /// Has a [`Feth`](crate::Feth).
    #[inline]
    pub const fn has_feth(self) -> bool {
        self.has(FETH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_op_codes_agree() {
        let known = (0..=255).filter_map(Opcode::from_u8).collect::<Vec<_>>();
        assert_eq!(known, Opcode::ALL);
        for op in known {
            assert_eq!(Opcode::from_u8(op.as_u8()), Some(op));
        }
        for byte in [0x15, 0x18, 0x1b, 0x1e, 0x2c, 0x40, 0x66, 0x82, 0xa0, 0xd7, 0xdd] {
            assert_eq!(Opcode::from_u8(byte), None, "{byte:#x}");
        }
    }

    #[test]
    fn positions_exclude_each_other() {
        for op in Opcode::ALL {
            let positions = [op.is_first(), op.is_middle(), op.is_last(), op.is_only()];
            assert_eq!(positions.iter().filter(|is| **is).count(), 1, "{op:?}");
        }
    }

    #[test]
    fn header_lengths() {
        for (op, service, len) in [
            (Opcode::RcSendMiddle, Service::Rc, 12),
            (Opcode::RcWriteOnly, Service::Rc, 28),
            (Opcode::RcWriteOnlyImm, Service::Rc, 32),
            (Opcode::RcAck, Service::Rc, 16),
            (Opcode::RcAtomicAck, Service::Rc, 24),
            (Opcode::RcFetchAdd, Service::Rc, 40),
            (Opcode::RcSendOnlyInv, Service::Rc, 16),
            (Opcode::RcFlush, Service::Rc, 32),
            (Opcode::UcWriteFirst, Service::Uc, 28),
            (Opcode::UdSendOnlyImm, Service::Ud, 24),
            (Opcode::Cnp, Service::Cnp, 12),
            (Opcode::RpcParams, Service::Rpc, 28),
            (Opcode::RpcWriteLast, Service::Rpc, 12),
        ] {
            assert_eq!((op.service(), op.header_len()), (service, len), "{op:?}");
        }
    }
}

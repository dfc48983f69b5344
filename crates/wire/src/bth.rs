//! Base transport header.

use crate::field::{be16, front, front_mut, low24, put};
use crate::{Opcode, ParseError, Psn};

/// Base transport header (section 9.2): the front of every packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// SE: the receiver should raise a solicited event.
    pub solicited: bool,
    /// MigReq: the path is in the state "migrated"; set where there is one path.
    pub mig_req: bool,
    /// Bytes of padding after the payload, 0 to 3.
    pub pad: u8,
    /// TVer, transport header version, 4 bits; 0.
    pub version: u8,
    /// Partition key; 0xffff is the default partition, full member.
    pub pkey: u16,
    /// FECN: the packet met congestion.
    pub fecn: bool,
    /// BECN: packets the other way met congestion.
    pub becn: bool,
    /// Reserved, 6 bits; not covered by the ICRC, nor are FECN and BECN.
    pub reserved6: u8,
    /// Destination queue pair, 24 bits.
    pub dest_qp: u32,
    /// AckReq: the responder should acknowledge.
    pub ack_req: bool,
    /// Reserved, 7 bits.
    pub reserved7: u8,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// The header of a packet that asks for nothing special: default partition, no flags but MigReq.
    pub const fn new(opcode: Opcode, dest_qp: u32, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            mig_req: true,
            pad: 0,
            version: 0,
            pkey: 0xffff,
            fecn: false,
            becn: false,
            reserved6: 0,
            dest_qp,
            ack_req: false,
            reserved7: 0,
            psn,
        }
    }

    /// Reads the first [`LEN`](Self::LEN) bytes. Fails if there are fewer or if the op-code is unknown.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let b = front::<{ Self::LEN }>("BTH", bytes)?;
        Ok(Self {
            opcode: Opcode::from_u8(b[0]).ok_or(ParseError::UnknownOpcode(b[0]))?,
            solicited: b[1] & 0x80 != 0,
            mig_req: b[1] & 0x40 != 0,
            pad: b[1] >> 4 & 3,
            version: b[1] & 0xf,
            pkey: be16(b, 2),
            fecn: b[4] & 0x80 != 0,
            becn: b[4] & 0x40 != 0,
            reserved6: b[4] & 0x3f,
            dest_qp: low24(b, 4),
            ack_req: b[8] & 0x80 != 0,
            reserved7: b[8] & 0x7f,
            psn: Psn::new(low24(b, 8)),
        })
    }

    /// Writes [`LEN`](Self::LEN) bytes; panics if `out` is shorter. Of each field only its bits are taken.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) {
        let out = front_mut::<{ Self::LEN }>(out);
        out[0] = self.opcode.as_u8();
        out[1] = u8::from(self.solicited) << 7 | u8::from(self.mig_req) << 6 | (self.pad & 3) << 4 | self.version & 0xf;
        put(out, 2, self.pkey.to_be_bytes());
        put(out, 4, (self.dest_qp & 0xff_ffff).to_be_bytes());
        out[4] = u8::from(self.fecn) << 7 | u8::from(self.becn) << 6 | self.reserved6 & 0x3f;
        put(out, 8, self.psn.get().to_be_bytes());
        out[8] = u8::from(self.ack_req) << 7 | self.reserved7 & 0x7f;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A congestion notification as a hardware NIC sends it, and a packet with every flag of a request.
    #[test]
    fn known_packets() {
        let cnp = Bth { mig_req: false, becn: true, ..Bth::new(Opcode::Cnp, 0xd2, Psn::new(0)) };
        assert_eq!(Bth::parse(&[0x81, 0, 0xff, 0xff, 0x40, 0, 0, 0xd2, 0, 0, 0, 0]), Ok(cnp));

        let write = Bth {
            opcode: Opcode::RcWriteLast,
            solicited: true,
            mig_req: true,
            pad: 3,
            becn: false,
            dest_qp: 0x11,
            ack_req: true,
            psn: Psn::new(0x3a_bd4e),
            ..cnp
        };
        assert_eq!(Bth::parse(&[0x08, 0xf0, 0xff, 0xff, 0, 0, 0, 0x11, 0x80, 0x3a, 0xbd, 0x4e]), Ok(write));
    }

    #[test]
    fn other_transports_are_refused() {
        let mut bytes = [0; Bth::LEN];
        bytes[0] = 0x44; // RD SEND only
        assert_eq!(Bth::parse(&bytes), Err(ParseError::UnknownOpcode(0x44)));
        let error = Bth::parse(&bytes[..11]).unwrap_err();
        assert_eq!(error.to_string(), "BTH takes 12 bytes and only 11 are left: drop the packet, it was cut short");
    }
}

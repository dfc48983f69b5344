//! Connection management: the messages that queue pair 1 exchanges to connect others (volume 1, chapter 12).
//!
//! Each is one management datagram (MAD) of 256 bytes: a header of 24 and a body of 232. Reserved bits are written as
//! zero and ignored when read.

mod drep;
mod dreq;
mod lap;
mod mra;
mod private_data;
mod rej;
mod rep;
mod req;
mod rtu;
mod sidr;

pub use drep::Drep;
pub use dreq::Dreq;
pub use lap::{Apr, Lap};
pub use mra::Mra;
pub use private_data::RdmaCmHeader;
pub use rej::Rej;
pub use rep::Rep;
pub use req::Req;
pub use rtu::Rtu;
pub use sidr::{SidrRep, SidrReq};

use crate::ParseError;
use crate::field::{be16, be32, be64, front, put};

/// Bytes of the body of a message.
const BODY: usize = Mad::LEN - HEADER;
const HEADER: usize = 24;
/// Base version 1, class 7 (communication management), class version 2, method Send.
const SEND: u32 = 0x01_07_02_03;

/// A management datagram with a message of the connection manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mad {
    /// Status; 0 in a Send.
    pub status: u16,
    /// Names an exchange: an answer has that of the request.
    pub transaction_id: u64,
    /// The body.
    pub message: CmMessage,
}

/// A message of the connection manager (section 12.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CmMessage {
    /// Request for communication.
    Req(Req),
    /// Message receipt acknowledgement: wait longer.
    Mra(Mra),
    /// Reject.
    Rej(Rej),
    /// Reply to a request.
    Rep(Rep),
    /// Ready to use.
    Rtu(Rtu),
    /// Request for disconnection.
    Dreq(Dreq),
    /// Reply to a request for disconnection.
    Drep(Drep),
    /// Service id resolution request.
    SidrReq(SidrReq),
    /// Service id resolution response.
    SidrRep(SidrRep),
    /// Load alternate path.
    Lap(Lap),
    /// Alternate path response.
    Apr(Apr),
}

impl Mad {
    /// Bytes on the wire.
    pub const LEN: usize = 256;

    /// Reads the first [`LEN`](Self::LEN) bytes. Fails if there are fewer, if they are not a Send of communication
    /// management, or if the attribute is none of [`CmMessage`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let bytes = front::<{ Self::LEN }>("MAD", bytes)?;
        let wrong = |field, value: u32, expected| {
            Err(ParseError::Field { header: "MAD", field, value: value.into(), expected })
        };
        if be32(bytes, 0) != SEND {
            let expected = "0x01070203 (a Send of communication management, version 2)";
            return wrong("version, class and method", be32(bytes, 0), expected);
        }
        let (_, body) = bytes.split_last_chunk::<BODY>().expect("256 bytes hold 232");
        let message = match be16(bytes, 16) {
            0x10 => CmMessage::Req(Req::parse(body)),
            0x11 => CmMessage::Mra(Mra::parse(body)),
            0x12 => CmMessage::Rej(Rej::parse(body)),
            0x13 => CmMessage::Rep(Rep::parse(body)),
            0x14 => CmMessage::Rtu(Rtu::parse(body)),
            0x15 => CmMessage::Dreq(Dreq::parse(body)),
            0x16 => CmMessage::Drep(Drep::parse(body)),
            0x17 => CmMessage::SidrReq(SidrReq::parse(body)),
            0x18 => CmMessage::SidrRep(SidrRep::parse(body)),
            0x19 => CmMessage::Lap(Lap::parse(body)),
            0x1a => CmMessage::Apr(Apr::parse(body)),
            other => return wrong("attribute", other.into(), "0x10 to 0x1a (REQ to APR)"),
        };
        Ok(Self { status: be16(bytes, 4), transaction_id: be64(bytes, 8), message })
    }

    /// Writes the datagram. Of each field only its bits are taken.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        out.fill(0);
        put(out, 0, SEND.to_be_bytes());
        put(out, 4, self.status.to_be_bytes());
        put(out, 8, self.transaction_id.to_be_bytes());
        let body = out.last_chunk_mut::<BODY>().expect("256 bytes hold 232");
        let attribute: u16 = match &self.message {
            CmMessage::Req(message) => message.emit(body),
            CmMessage::Mra(message) => message.emit(body),
            CmMessage::Rej(message) => message.emit(body),
            CmMessage::Rep(message) => message.emit(body),
            CmMessage::Rtu(message) => message.emit(body),
            CmMessage::Dreq(message) => message.emit(body),
            CmMessage::Drep(message) => message.emit(body),
            CmMessage::SidrReq(message) => message.emit(body),
            CmMessage::SidrRep(message) => message.emit(body),
            CmMessage::Lap(message) => message.emit(body),
            CmMessage::Apr(message) => message.emit(body),
        };
        put(out, 16, attribute.to_be_bytes());
    }
}

//! A whole RoCE v2 packet: the UDP payload, from the base transport header to the ICRC.

use crate::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, ICRC_LEN, Ieth, ImmDt, ParseError, Reth};

/// Every header of a packet, with its payload.
///
/// A parsed packet has exactly the extension headers of its op-code. One that is built has those that the caller puts
/// in; [`emit`](Packet::emit) writes what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Base transport header.
    pub bth: Bth,
    /// Datagram extended transport header.
    pub deth: Option<Deth>,
    /// Flush extended transport header.
    pub feth: Option<Feth>,
    /// RDMA extended transport header.
    pub reth: Option<Reth>,
    /// Atomic extended transport header.
    pub atomic_eth: Option<AtomicEth>,
    /// ACK extended transport header.
    pub aeth: Option<Aeth>,
    /// Atomic ACK extended transport header.
    pub atomic_ack_eth: Option<AtomicAckEth>,
    /// Immediate data.
    pub imm: Option<ImmDt>,
    /// Invalidate extended transport header.
    pub ieth: Option<Ieth>,
    /// Payload without padding.
    pub payload: &'a [u8],
    /// Padding, `bth.pad` bytes of any value: the ICRC covers them, so they are kept.
    pub padding: &'a [u8],
    /// ICRC as a little-endian number, which is how [`IcrcFlow::compute`](crate::icrc::IcrcFlow::compute) gives it.
    pub icrc: u32,
}

impl<'a> Packet<'a> {
    /// A packet without extension headers and with an ICRC of 0. Sets the pad count that the payload needs.
    pub fn new(bth: Bth, payload: &'a [u8]) -> Self {
        let pad = payload.len().wrapping_neg() & 3;
        Self {
            bth: Bth { pad: pad as u8, ..bth },
            deth: None,
            feth: None,
            reth: None,
            atomic_eth: None,
            aeth: None,
            atomic_ack_eth: None,
            imm: None,
            ieth: None,
            payload,
            padding: &[0; 3][..pad],
            icrc: 0,
        }
    }

    /// Reads a UDP payload. Fails if the op-code is unknown, if headers or ICRC are cut short, or if the pad count is
    /// more than what follows the headers. Whether the ICRC is right is for [`crate::icrc`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let bth = Bth::parse(bytes)?;
        let op = bth.opcode;
        let (body, icrc) = bytes
            .split_last_chunk::<ICRC_LEN>()
            .filter(|(body, _)| body.len() >= op.header_len())
            .ok_or(ParseError::Truncated {
                header: "packet with this op-code",
                need: op.header_len() + ICRC_LEN,
                got: bytes.len(),
            })?;
        let (_, rest) = body.split_at(Bth::LEN);
        let mut rest = Rest(rest);
        let deth = rest.header(op.has_deth(), Deth::LEN, Deth::parse)?;
        let feth = rest.header(op.has_feth(), Feth::LEN, Feth::parse)?;
        let reth = rest.header(op.has_reth(), Reth::LEN, Reth::parse)?;
        let atomic_eth = rest.header(op.has_atomic_eth(), AtomicEth::LEN, AtomicEth::parse)?;
        let aeth = rest.header(op.has_aeth(), Aeth::LEN, Aeth::parse)?;
        let atomic_ack_eth = rest.header(op.has_atomic_ack_eth(), AtomicAckEth::LEN, AtomicAckEth::parse)?;
        let imm = rest.header(op.has_imm(), ImmDt::LEN, ImmDt::parse)?;
        let ieth = rest.header(op.has_ieth(), Ieth::LEN, Ieth::parse)?;
        let got = rest.0.len();
        let end = got.checked_sub(bth.pad.into()).ok_or(ParseError::Pad { pad: bth.pad, got })?;
        let (payload, padding) = rest.0.split_at(end);
        let icrc = u32::from_le_bytes(*icrc);
        Ok(Self { bth, deth, feth, reth, atomic_eth, aeth, atomic_ack_eth, imm, ieth, payload, padding, icrc })
    }

    /// Bytes that [`emit`](Self::emit) writes.
    #[allow(clippy::len_without_is_empty)] // A packet always has a header.
    pub fn len(&self) -> usize {
        let lens = [
            self.deth.map_or(0, |_| Deth::LEN),
            self.feth.map_or(0, |_| Feth::LEN),
            self.reth.map_or(0, |_| Reth::LEN),
            self.atomic_eth.map_or(0, |_| AtomicEth::LEN),
            self.aeth.map_or(0, |_| Aeth::LEN),
            self.atomic_ack_eth.map_or(0, |_| AtomicAckEth::LEN),
            self.imm.map_or(0, |_| ImmDt::LEN),
            self.ieth.map_or(0, |_| Ieth::LEN),
        ];
        Bth::LEN + lens.iter().sum::<usize>() + self.payload.len() + self.padding.len() + ICRC_LEN
    }

    /// Writes the packet, the ICRC as it stands, and returns its length. Panics if `out` is shorter than
    /// [`len`](Self::len).
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let len = self.len();
        assert!(out.len() >= len, "the packet takes {len} bytes and the buffer has {}", out.len());
        self.bth.emit(out);
        let mut at = Bth::LEN;
        let mut next = |len| {
            at += len;
            at - len..at
        };
        self.deth.inspect(|h| h.emit(&mut out[next(Deth::LEN)]));
        self.feth.inspect(|h| h.emit(&mut out[next(Feth::LEN)]));
        self.reth.inspect(|h| h.emit(&mut out[next(Reth::LEN)]));
        self.atomic_eth.inspect(|h| h.emit(&mut out[next(AtomicEth::LEN)]));
        self.aeth.inspect(|h| h.emit(&mut out[next(Aeth::LEN)]));
        self.atomic_ack_eth.inspect(|h| h.emit(&mut out[next(AtomicAckEth::LEN)]));
        self.imm.inspect(|h| h.emit(&mut out[next(ImmDt::LEN)]));
        self.ieth.inspect(|h| h.emit(&mut out[next(Ieth::LEN)]));
        out[next(self.payload.len())].copy_from_slice(self.payload);
        out[next(self.padding.len())].copy_from_slice(self.padding);
        out[next(ICRC_LEN)].copy_from_slice(&self.icrc.to_le_bytes());
        len
    }
}

/// Bytes not read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    /// Reads a header of `len` bytes if there is one.
    fn header<T>(
        &mut self,
        present: bool,
        len: usize,
        parse: impl Fn(&'a [u8]) -> Result<T, ParseError>,
    ) -> Result<Option<T>, ParseError> {
        if !present {
            return Ok(None);
        }
        let header = parse(self.0)?;
        self.0 = &self.0[len..];
        Ok(Some(header))
    }
}
/// The source port of packets to a queue pair: one of the 16,384 that RoCE v2 uses for entropy (annex A17.9.2).
#[inline]
pub fn source_port(packet: &[u8]) -> u16 {
    let dest_qp =
        packet.get(4..8).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_be_bytes(*bytes) & 0xff_ffff);
    // Fibonacci hashing: numbers in a row lie far apart.
    0xc000 | (dest_qp.wrapping_mul(0x9e37_79b1) >> 18) as u16
}

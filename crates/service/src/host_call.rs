//! A call to the host as it goes into a SEND: an [`RpcHeader`], the op-code (8 bytes, little-endian), the parameters.

use remora_wire::rpc::RpcHeader;

use crate::MAX_REQUEST;

/// Bytes in front of the parameters.
const FRONT: usize = RpcHeader::LEN + 8;

/// A call to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCall<'a> {
    /// Where the reply goes.
    pub header: RpcHeader,
    /// Which kernel, or which of the node's own calls.
    pub op: u64,
    /// Its parameters.
    pub params: &'a [u8],
}

/// Why bytes are no call to the host, or a call makes no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostCallError {
    /// More than [`MAX_REQUEST`] bytes.
    #[error("a call to the host of {len} bytes: at most {MAX_REQUEST} with its header")]
    TooLong {
        /// Bytes of the message.
        len: usize,
    },
    /// Less than what is in front of the parameters.
    #[error("a call to the host of {len} bytes: its header and op-code alone have {FRONT}")]
    TooShort {
        /// Bytes of the message.
        len: usize,
    },
    /// No header.
    #[error(transparent)]
    Header(#[from] remora_wire::ParseError),
}

impl<'a> HostCall<'a> {
    /// Bytes in front of the parameters.
    pub const FRONT: usize = FRONT;

    /// Replaces what is in `out` by the message. Fails, and leaves `out` empty, if it is too long.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), HostCallError> {
        out.clear();
        let len = FRONT + self.params.len();
        if len > MAX_REQUEST {
            return Err(HostCallError::TooLong { len });
        }
        out.resize(RpcHeader::LEN, 0);
        self.header.emit(out);
        out.extend_from_slice(&self.op.to_le_bytes());
        out.extend_from_slice(self.params);
        Ok(())
    }

    /// Reads a message.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, HostCallError> {
        if bytes.len() > MAX_REQUEST {
            return Err(HostCallError::TooLong { len: bytes.len() });
        }
        let Some((front, params)) = bytes.split_first_chunk() else {
            return Err(HostCallError::TooShort { len: bytes.len() });
        };
        let (header, op) = Self::parse_front(front)?;
        Ok(Self { header, op, params })
    }

    /// Reads what is in front of the parameters: header and op-code.
    #[inline]
    pub fn parse_front(front: &[u8; FRONT]) -> Result<(RpcHeader, u64), HostCallError> {
        let header = RpcHeader::parse(front)?;
        let op = front.last_chunk().copied().unwrap_or_default();
        Ok((header, u64::from_le_bytes(op)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lengths_are_checked_at_both_ends() {
        let header = RpcHeader { tag: 7, ..RpcHeader::default() };
        let mut out = Vec::new();
        let params = [0xab; MAX_REQUEST];
        let most = MAX_REQUEST - HostCall::FRONT;
        let call = HostCall { header, op: 9, params: &params[..most] };
        assert_eq!(call.encode(&mut out), Ok(()));
        assert_eq!((out.len(), HostCall::parse(&out)), (MAX_REQUEST, Ok(call)));
        out.push(0);
        assert_eq!(HostCall::parse(&out), Err(HostCallError::TooLong { len: MAX_REQUEST + 1 }));
        let call = HostCall { params: &params[..most + 1], ..call };
        assert_eq!(call.encode(&mut out), Err(HostCallError::TooLong { len: MAX_REQUEST + 1 }));
        assert!(out.is_empty());
        for len in 0..HostCall::FRONT {
            assert_eq!(HostCall::parse(&params[..len]), Err(HostCallError::TooShort { len }));
        }
    }

    proptest! {
        #[test]
        fn what_parses_is_encoded_to_the_bytes_it_came_from(bytes in prop::collection::vec(any::<u8>(), 0..200), known in any::<bool>()) {
            let mut bytes = bytes;
            // Tag and flags are zero in most bits; else nearly nothing would parse.
            if known && bytes.len() >= RpcHeader::LEN {
                bytes[16] = 0;
                bytes[20..24].fill(0);
            }
            if let Ok(call) = HostCall::parse(&bytes) {
                let mut again = Vec::new();
                prop_assert_eq!(call.encode(&mut again), Ok(()));
                prop_assert_eq!(again, bytes);
            }
        }
    }
}

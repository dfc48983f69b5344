//! A packet that has arrived: private bytes, or headers of which there is a private copy and payload that still stands in
//! memory which its sender may write.

use remora_memory::{AccessError, Buffer, Region};
use remora_wire::Opcode;

/// A packet as a link hands it over: BTH to ICRC.
#[derive(Clone, Copy, Debug)]
pub enum Packet<'a> {
    /// Nobody else changes these bytes.
    Private(&'a [u8]),
    /// Its sender may change it at any time: it is copied once, and then believed.
    Shared {
        /// The memory that it stands in.
        buffer: &'a Buffer,
        /// Where it begins.
        offset: usize,
        /// Its bytes.
        len: usize,
    },
}

/// Bytes of which there is always a private copy: headers fit.
pub(crate) const HEAD: usize = 96;

/// Whether a packet's payload is copied to where it goes and looked at by nobody else. Of all others there is a private copy.
pub(crate) fn is_moved_alone(op: Opcode) -> bool {
    use Opcode::*;
    matches!(
        op,
        RcReadResponseFirst
            | RcReadResponseMiddle
            | RcReadResponseLast
            | RcReadResponseOnly
            | RcSendFirst
            | RcSendMiddle
            | RcSendLast
            | RcSendLastImm
            | RcSendLastInv
            | RcSendOnly
            | RcSendOnlyImm
            | RcSendOnlyInv
            | RcWriteFirst
            | RcWriteMiddle
            | RcWriteLast
            | RcWriteLastImm
            | RcWriteOnly
            | RcWriteOnlyImm
    )
}

/// What follows a packet's BTH, without pad and ICRC: headers, then payload.
#[derive(Clone, Copy)]
pub(crate) struct Body<'a> {
    /// Its first bytes, headers among them; all bytes unless it is shared.
    head: &'a [u8],
    /// Where it stands, and its bytes.
    shared: Option<(&'a Buffer, usize, usize)>,
}

impl<'a> From<&'a [u8]> for Body<'a> {
    fn from(head: &'a [u8]) -> Self {
        Self { head, shared: None }
    }
}

impl<'a> Body<'a> {
    /// Of `len` bytes at `offset`, of which `head` are the first.
    pub fn shared(head: &'a [u8], buffer: &'a Buffer, offset: usize, len: usize) -> Self {
        let head = head.get(..len).unwrap_or(head);
        Self { head, shared: Some((buffer, offset, len)) }
    }

    pub fn len(&self) -> usize {
        self.shared.map_or(self.head.len(), |(_, _, len)| len)
    }

    /// The headers, and whatever of the payload is private.
    pub fn headers(&self) -> &'a [u8] {
        self.head
    }

    /// All bytes, if they are private.
    pub fn private(&self) -> Option<&'a [u8]> {
        self.shared.is_none().then_some(self.head)
    }

    /// Its first `n` bytes.
    pub fn first(self, n: usize) -> Option<Self> {
        if n > self.len() {
            return None;
        }
        let head = self.head.get(..n).unwrap_or(self.head);
        Some(Self { head, shared: self.shared.map(|(buffer, at, _)| (buffer, at, n)) })
    }

    /// Without the first `n` bytes, of at least as many.
    pub fn skip(self, n: usize) -> Self {
        let head = self.head.get(n..).unwrap_or_default();
        Self { head, shared: self.shared.map(|(buffer, at, len)| (buffer, at + n, len.saturating_sub(n))) }
    }

    /// The first `n` bytes, of at least as many, land at `va` of a region.
    pub fn land(&self, region: &Region, va: u64, n: usize) -> Result<(), AccessError> {
        match self.shared {
            None => region.write(va, &self.head[..n]),
            Some((buffer, at, _)) => region.land(va, buffer, at, n),
        }
    }

    /// Copies all bytes, to where nobody changes them.
    pub fn copy<'b>(&self, private: &'b mut [u8]) -> Option<&'b [u8]>
    where
        'a: 'b,
    {
        match self.shared {
            None => Some(self.head),
            Some((buffer, at, len)) => {
                let out = private.get_mut(..len)?;
                buffer.take(at, out).ok()?;
                Some(out)
            }
        }
    }
}

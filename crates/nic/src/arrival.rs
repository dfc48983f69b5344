//! A packet that has arrived: private bytes, or headers of which there is a private copy and payload that still stands in
//! memory which its sender may write.

use remora_memory::{AccessError, Buffer, Reference, Region, View};
use remora_wire::{ICRC_LEN, Opcode};

use crate::packet::pad_of;

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
    /// Its payload is where it always was: in memory that its sender has lent. It may stand for many packets of one message in
    /// a row, which lie back to back there.
    Referred {
        /// The headers, which nobody else changes.
        headers: &'a [u8],
        /// The memory.
        view: &'a View,
        /// Which of its bytes, in which term.
        reference: Reference,
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
    /// Where it stands, and its bytes. What is referred to stands as if its headers came right before it.
    shared: Option<(Source<'a>, usize, usize)>,
}

/// Memory in which a payload stands.
#[derive(Clone, Copy)]
enum Source<'a> {
    Ring(&'a Buffer),
    /// Lent, in this term.
    Lent(&'a View, u64),
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
        Self { head, shared: Some((Source::Ring(buffer), offset, len)) }
    }

    /// With the payload that is referred to, and as many bytes behind it as there would be of pad and ICRC.
    pub fn referred(head: &'a [u8], view: &'a View, reference: Reference) -> Self {
        let payload = reference.len as usize;
        let len = head.len().saturating_add(payload).saturating_add(pad_of(payload).into()).saturating_add(ICRC_LEN);
        let offset = (reference.offset as usize).wrapping_sub(head.len());
        Self { head, shared: Some((Source::Lent(view, reference.term), offset, len)) }
    }

    /// Whether its payload stands in lent memory: it may then be that of many packets in a row.
    pub fn is_referred(&self) -> bool {
        matches!(self.shared, Some((Source::Lent(..), ..)))
    }

    /// Whether its sender has taken back since what it referred to: what was copied of it may be anything.
    pub fn is_stale(&self) -> bool {
        matches!(self.shared, Some((Source::Lent(view, term), ..)) if view.term() != term)
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
        Some(Self { head, shared: self.shared.map(|(source, at, _)| (source, at, n)) })
    }

    /// Without the first `n` bytes, of at least as many.
    pub fn skip(self, n: usize) -> Self {
        let head = self.head.get(n..).unwrap_or_default();
        Self { head, shared: self.shared.map(|(source, at, len)| (source, at.wrapping_add(n), len.saturating_sub(n))) }
    }

    /// The first `n` bytes, of at least as many, land at `va` of a region.
    pub fn land(&self, region: &Region, va: u64, n: usize) -> Result<(), AccessError> {
        match self.shared {
            None => region.write(va, &self.head[..n]),
            Some((Source::Ring(buffer), at, _)) => region.land(va, buffer, at, n),
            Some((Source::Lent(view, _), at, _)) => region.fetch(va, view, at, n),
        }
    }

    /// Copies all bytes, to where nobody changes them.
    pub fn copy<'b>(&self, private: &'b mut [u8]) -> Option<&'b [u8]>
    where
        'a: 'b,
    {
        match self.shared {
            None => Some(self.head),
            Some((source, at, len)) => {
                let out = private.get_mut(..len)?;
                match source {
                    Source::Ring(buffer) => buffer.take(at, out).ok()?,
                    Source::Lent(view, _) => view.read(at, out).ok()?,
                }
                Some(out)
            }
        }
    }
}

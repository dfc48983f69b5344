//! Where the bytes of a trunk are: those of its streams, the headers of segments, and what comes.

use std::sync::Arc;

use remora_memory::{Access, Buffer, Region, Registry};
use remora_nic::Sge;
use remora_rack::{FlowId, FlowPolicy};

use crate::{Error, map_memory};

/// Bytes before a segment's: which message this is, its length, its stream, and its place in it.
pub(super) const HEADER: usize = 24;
/// Messages that are no segments, under way by one NIC.
pub(super) const NOTES: u32 = 16;

/// A stream's bytes: what is to be sent, in memory that NICs read, and what has come.
pub(super) struct Window {
    out: Buffer,
    pub region: Arc<Region>,
    pub into: Box<[u8]>,
    registry: Arc<Registry>,
}

impl Window {
    pub fn new(registry: &Arc<Registry>, like: &Region, len: usize) -> Result<Self, Error> {
        let out = map_memory(len)?;
        let region = registry.register(like.pd(), &out, 0, len, None, Access::empty())?;
        Ok(Self { out, region, into: vec![0; len].into(), registry: registry.clone() })
    }

    /// The parts of the window where these bytes lie: a place, and how many from there on.
    pub fn parts(&self, at: u64, len: usize) -> impl Iterator<Item = (usize, usize)> {
        let window = self.into.len();
        let start = (at % window as u64) as usize;
        let first = len.min(window - start);
        [(start, first), (0, len - first)].into_iter().filter(|(_, len)| *len > 0)
    }

    pub fn put(&self, at: u64, data: &[u8]) {
        let mut rest = data;
        for (place, len) in self.parts(at, data.len()) {
            let written = self.out.write(place, &rest[..len]);
            debug_assert!(written.is_ok(), "places lie within the window");
            rest = &rest[len..];
        }
    }

    pub fn get(&self, at: u64, out: &mut [u8]) {
        let mut done = 0;
        for (place, len) in self.parts(at, out.len()) {
            out[done..done + len].copy_from_slice(&self.into[place..place + len]);
            done += len;
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // Else the registry has the memory, and its file, for as long as the trunk lives.
        let gone = self.registry.deregister(self.region.key());
        debug_assert!(gone.is_ok(), "no memory window is bound to it");
    }
}

/// How the memory of a trunk is divided: for each way headers, and buffers for what comes.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub segment: usize,
    entries: usize,
}

impl Layout {
    pub fn new(policy: &FlowPolicy) -> Self {
        Self { segment: policy.segment as usize, entries: policy.entries as usize }
    }

    pub fn receives(self) -> usize {
        self.entries + 2 * NOTES as usize
    }

    pub fn way(self, way: usize) -> usize {
        way * (self.entries * HEADER + self.receives() * (HEADER + self.segment))
    }

    pub fn header(self, way: usize, slot: u32) -> usize {
        self.way(way) + slot as usize * HEADER
    }

    pub fn receive(self, way: usize, slot: u64) -> usize {
        self.way(way) + self.entries * HEADER + slot as usize * (HEADER + self.segment)
    }
}

/// The header of a message.
pub(super) fn header(kind: u32, len: u32, flow: FlowId, place: u64) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[4..8].copy_from_slice(&len.to_le_bytes());
    bytes[8..16].copy_from_slice(&flow.0.to_le_bytes());
    bytes[16..].copy_from_slice(&place.to_le_bytes());
    bytes
}

/// These bytes of a region.
pub(super) fn sge(region: &Region, at: usize, len: usize) -> Sge {
    Sge { va: region.va() + at as u64, len: len as u32, lkey: region.key() }
}

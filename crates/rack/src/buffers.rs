//! A node's daemon (section 4.2): takes sections in advance and cuts each into buffers of one size class.

use std::collections::BTreeMap;

use crate::address::{FabricAddress, Location, NodeId, SECTION_BYTES, Section};
use crate::pool::{Pool, PoolError};

/// Bytes of the smallest buffer: a page.
pub const SMALLEST_BUFFER: u64 = 4096;
/// Bytes of the largest: a section.
pub const LARGEST_BUFFER: u64 = SECTION_BYTES;
/// Slots of a section of the smallest class.
const MOST_SLOTS: usize = (LARGEST_BUFFER / SMALLEST_BUFFER) as usize;

/// The size class of a length: the next power of two from [`SMALLEST_BUFFER`] on. None if no buffer is so long.
pub fn class_bytes(len: u64) -> Option<u64> {
    (len <= LARGEST_BUFFER).then(|| len.max(SMALLEST_BUFFER).next_power_of_two())
}

/// Why there is no buffer, or why one cannot be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BufferError {
    /// Longer than a section.
    #[error("a buffer has {LARGEST_BUFFER} bytes at most, not {0}")]
    TooLong(u64),
    /// No section is to be had.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// No buffer begins there, or it is free.
    #[error("no buffer in use begins at {0:?}")]
    NotInUse(FabricAddress),
}

/// A section that is cut up.
#[derive(Clone, Debug, Hash)]
struct Slab {
    location: Location,
    class: u64,
    /// A bit for each buffer in use.
    used: [u64; MOST_SLOTS / 64],
    count: usize,
}

impl Slab {
    fn slots(&self) -> usize {
        (SECTION_BYTES / self.class) as usize
    }

    fn take(&mut self) -> Option<usize> {
        let slot = (0..self.slots()).find(|slot| self.used[slot / 64] & 1 << (slot % 64) == 0)?;
        self.used[slot / 64] |= 1 << (slot % 64);
        self.count += 1;
        Some(slot)
    }

    fn free(&mut self, offset: u64) -> bool {
        let slot = (offset / self.class) as usize;
        let bit = 1 << (slot % 64);
        if !offset.is_multiple_of(self.class) || self.used[slot / 64] & bit == 0 {
            return false;
        }
        self.used[slot / 64] &= !bit;
        self.count -= 1;
        true
    }
}

/// The buffers of one node.
#[derive(Clone, Debug, Hash)]
pub struct BufferDaemon {
    node: NodeId,
    /// Sections held without a buffer in them.
    reserve: Vec<Section>,
    /// How many of these are kept when buffers are freed.
    keep: usize,
    slabs: BTreeMap<Section, Slab>,
}

impl BufferDaemon {
    /// For a node; `keep` sections stay in reserve.
    pub fn new(node: NodeId, keep: usize) -> Self {
        Self { node, reserve: Vec::new(), keep, slabs: BTreeMap::new() }
    }

    /// Takes sections in advance, as far as there are any.
    pub fn prepare(&mut self, pool: &mut Pool, prefer: Location) {
        while self.reserve.len() < self.keep {
            let Ok(section) = pool.take(self.node, prefer) else { return };
            self.reserve.push(section);
        }
    }

    /// A buffer of at least `len` bytes, at the preferred location if the pool has room there.
    ///
    /// # Errors
    ///
    /// [`BufferError::TooLong`], or what the pool says.
    pub fn alloc(&mut self, pool: &mut Pool, len: u64, prefer: Location) -> Result<FabricAddress, BufferError> {
        let class = class_bytes(len).ok_or(BufferError::TooLong(len))?;
        let fits = |slab: &Slab| slab.class == class && slab.count < slab.slots();
        let open = self.slabs.iter_mut().filter(|(_, slab)| fits(slab));
        let best = open.max_by_key(|(_, slab)| slab.location == prefer);
        if let Some((section, slab)) = best.filter(|(_, slab)| slab.location == prefer || pool.free_sections() == 0)
            && let Some(slot) = slab.take()
        {
            return Ok(FabricAddress(section.start().0 + slot as u64 * class));
        }
        let at_hand = self.reserve.iter().position(|section| pool.location(*section) == Some(prefer));
        let section = match at_hand {
            Some(index) => self.reserve.swap_remove(index),
            None => match pool.take(self.node, prefer) {
                Ok(section) => section,
                Err(e) => self.reserve.pop().ok_or(e)?,
            },
        };
        let location = pool.location(section).unwrap_or(prefer);
        let mut slab = Slab { location, class, used: [0; MOST_SLOTS / 64], count: 0 };
        slab.take();
        self.slabs.insert(section, slab);
        Ok(section.start())
    }

    /// Frees a buffer by the address it begins at. Returns the section if that went back to the pool.
    ///
    /// # Errors
    ///
    /// [`BufferError::NotInUse`].
    pub fn free(&mut self, pool: &mut Pool, at: FabricAddress) -> Result<Option<Section>, BufferError> {
        let section = at.section();
        let slab = self.slabs.get_mut(&section).ok_or(BufferError::NotInUse(at))?;
        if !slab.free(at.offset()) {
            return Err(BufferError::NotInUse(at));
        }
        if slab.count > 0 {
            return Ok(None);
        }
        self.slabs.remove(&section);
        if self.reserve.len() < self.keep && pool.owns(self.node, section) {
            self.reserve.push(section);
            return Ok(None);
        }
        // The owner may be dead: then the pool has forgotten it, and takes the section when all have let go.
        let _ = pool.give_back(self.node, section);
        Ok(Some(section))
    }

    /// The size of a buffer in use that begins at an address.
    pub fn size(&self, at: FabricAddress) -> Option<u64> {
        let slab = self.slabs.get(&at.section())?;
        let slot = (at.offset() / slab.class) as usize;
        let used = at.offset().is_multiple_of(slab.class) && slab.used[slot / 64] & 1 << (slot % 64) != 0;
        used.then_some(slab.class)
    }

    /// How many buffers are in use.
    pub fn in_use(&self) -> usize {
        self.slabs.values().map(|slab| slab.count).sum()
    }

    /// How many buffers of a section are in use.
    pub fn in_use_of(&self, section: Section) -> usize {
        self.slabs.get(&section).map_or(0, |slab| slab.count)
    }

    /// Sections that have buffers in use, or are kept for them.
    pub fn sections(&self) -> impl Iterator<Item = Section> + '_ {
        self.slabs.keys().chain(&self.reserve).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Device;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const NODE: NodeId = NodeId(7);
    const NEAR: Location = Location(0);

    fn pool(sections: u32) -> Pool {
        Pool::bootstrap(&[Device { location: NEAR, sections }, Device { location: Location(1), sections }]).unwrap()
    }

    #[test]
    fn classes_are_powers_of_two() {
        for (len, class) in [(0, 4096), (1, 4096), (4097, 8192), (1 << 20, 1 << 20), (SECTION_BYTES, SECTION_BYTES)] {
            assert_eq!(class_bytes(len), Some(class));
        }
        assert_eq!(class_bytes(SECTION_BYTES + 1), None);
    }

    #[test]
    fn sections_are_taken_in_advance_and_given_back() {
        let (mut pool, mut daemon) = (pool(2), BufferDaemon::new(NODE, 1));
        daemon.prepare(&mut pool, NEAR);
        assert_eq!(pool.free_sections(), 3);
        let first = daemon.alloc(&mut pool, 100, NEAR).unwrap();
        assert_eq!((pool.free_sections(), daemon.size(first)), (3, Some(4096)), "from the reserve");
        let second = daemon.alloc(&mut pool, SECTION_BYTES, NEAR).unwrap();
        assert_eq!(daemon.free(&mut pool, first), Ok(None), "kept");
        assert_eq!(daemon.free(&mut pool, second), Ok(Some(second.section())));
        assert_eq!(daemon.free(&mut pool, second), Err(BufferError::NotInUse(second)));
        assert_eq!(pool.free_sections(), 3);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// No two buffers overlap, none leaves its section, and all comes back in the end.
        #[test]
        fn buffers_never_overlap(steps in prop::collection::vec((any::<bool>(), 1..=SECTION_BYTES, 0..2u16, any::<prop::sample::Index>()), 1..300)) {
            let (mut pool, mut daemon) = (pool(3), BufferDaemon::new(NODE, 2));
            let mut live: BTreeMap<u64, u64> = BTreeMap::new();
            for (alloc, len, location, index) in steps {
                // Short ones are asked for more often.
                let len = if len % 3 == 0 { len } else { len % 20_000 + 1 };
                if alloc || live.is_empty() {
                    match daemon.alloc(&mut pool, len, Location(location)) {
                        Ok(at) => {
                            let size = daemon.size(at).unwrap();
                            prop_assert!(size >= len && at.offset() + size <= SECTION_BYTES);
                            let before = live.range(..=at.0).next_back().map(|(start, size)| start + size);
                            let after = live.range(at.0..).next().map(|(start, _)| *start);
                            prop_assert!(before.is_none_or(|end| end <= at.0) && after.is_none_or(|start| start >= at.0 + size));
                            live.insert(at.0, size);
                        }
                        Err(e) => prop_assert_eq!(e, BufferError::Pool(PoolError::Exhausted(6))),
                    }
                } else {
                    let at = *live.keys().nth(index.index(live.len())).unwrap();
                    live.remove(&at);
                    daemon.free(&mut pool, FabricAddress(at)).unwrap();
                }
                prop_assert_eq!(daemon.in_use(), live.len());
            }
            for at in live.into_keys() {
                daemon.free(&mut pool, FabricAddress(at)).unwrap();
            }
            prop_assert!(pool.free_sections() >= 4, "all but the reserve");
        }
    }
}

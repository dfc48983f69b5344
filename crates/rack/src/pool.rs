//! The low-power unit's pool (section 4.2): sections of memory devices, their owners, and who else may see them.
//!
//! A node takes sections and gives them back. Their owner grants others rights; these make the mapping table, which says
//! for each node what it reaches. A section that its owner gave back, or that outlives its owner, is free again when the
//! last node that was granted rights has let go of it: until then it might still be read.

use std::collections::{BTreeMap, BTreeSet};

use crate::address::{FabricAddress, Location, NodeId, REGION_SECTIONS, SECTION_BYTES, Section};

/// What a node may do with a section of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rights {
    /// Load.
    Read,
    /// Load and store.
    Write,
}

/// A memory device, as the bootstrap finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Where it is.
    pub location: Location,
    /// How many sections it has.
    pub sections: u32,
}

/// Why the pool refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// No section is free anywhere.
    #[error("no section is free: all {0} are held")]
    Exhausted(u32),
    /// The node does not hold that section.
    #[error("{1:?} is not held by {0:?}")]
    NotHeld(NodeId, Section),
    /// The node may not reach these bytes.
    #[error("{0:?} has no right to {2} bytes at {1:?}")]
    NoRight(NodeId, FabricAddress, u64),
    /// The devices do not fit into the address space.
    #[error("more sections than the address space has room for")]
    TooLarge,
}

#[derive(Clone, Debug, Hash)]
struct Held {
    location: Location,
    /// None once the owner gave it back or died, while others may still see it.
    owner: Option<NodeId>,
    granted: BTreeMap<NodeId, Rights>,
}

/// All sections of a rack.
#[derive(Clone, Debug, Hash)]
pub struct Pool {
    /// By location, so that a preferred one is served first.
    free: BTreeMap<Location, BTreeSet<Section>>,
    held: BTreeMap<Section, Held>,
    total: u32,
}

impl Pool {
    /// Enumerates devices: each begins at a region of its own.
    ///
    /// # Errors
    ///
    /// [`PoolError::TooLarge`].
    pub fn bootstrap(devices: &[Device]) -> Result<Self, PoolError> {
        let (mut next, mut ranges) = (0u32, Vec::new());
        for device in devices {
            let end = next.checked_add(device.sections).ok_or(PoolError::TooLarge)?;
            ranges.push((device.location, next..end));
            next = end.checked_next_multiple_of(REGION_SECTIONS).ok_or(PoolError::TooLarge)?;
        }
        let mut free: BTreeMap<Location, BTreeSet<Section>> = BTreeMap::new();
        let total = ranges.iter().map(|(_, range)| range.end - range.start).sum();
        for (location, range) in ranges {
            free.entry(location).or_default().extend(range.map(Section));
        }
        Ok(Self { free, held: BTreeMap::new(), total })
    }

    /// How many sections nobody holds.
    pub fn free_sections(&self) -> usize {
        self.free.values().map(BTreeSet::len).sum()
    }

    /// How many sections there are.
    pub fn sections(&self) -> u32 {
        self.total
    }

    /// Where a held section lies.
    pub fn location(&self, section: Section) -> Option<Location> {
        self.held.get(&section).map(|held| held.location)
    }

    /// Takes a section, at the preferred location if one is free there.
    ///
    /// # Errors
    ///
    /// [`PoolError::Exhausted`].
    pub fn take(&mut self, node: NodeId, prefer: Location) -> Result<Section, PoolError> {
        let preferred = self.free.get(&prefer).is_some_and(|free| !free.is_empty()).then_some(prefer);
        // The fullest device is the one that most others leave alone.
        let fullest = || self.free.iter().max_by_key(|(_, free)| free.len()).map(|(location, _)| *location);
        let location = preferred.or_else(fullest).ok_or(PoolError::Exhausted(self.total))?;
        let free = self.free.get_mut(&location).ok_or(PoolError::Exhausted(self.total))?;
        let section = free.pop_first().ok_or(PoolError::Exhausted(self.total))?;
        self.held.insert(section, Held { location, owner: Some(node), granted: BTreeMap::new() });
        Ok(section)
    }

    /// Gives `to` rights to a section of `owner`; later ones replace earlier ones.
    ///
    /// # Errors
    ///
    /// [`PoolError::NotHeld`].
    pub fn grant(&mut self, owner: NodeId, section: Section, to: NodeId, rights: Rights) -> Result<(), PoolError> {
        self.owned(owner, section)?.granted.insert(to, rights);
        Ok(())
    }

    /// [`Pool::grant`], and for sections that have outlived their owner too: who holds part of one may pass it on.
    pub(crate) fn pass_on(&mut self, owner: Option<NodeId>, section: Section, to: NodeId, rights: Rights) {
        if let Some(held) = self.held.get_mut(&section).filter(|held| held.owner == owner) {
            held.granted.insert(to, rights);
        }
    }

    /// `node` needs a section no more: the owner gives it back, others let go of it. True if it is free now.
    ///
    /// # Errors
    ///
    /// [`PoolError::NotHeld`].
    pub fn give_back(&mut self, node: NodeId, section: Section) -> Result<bool, PoolError> {
        let held = self.held.get_mut(&section).ok_or(PoolError::NotHeld(node, section))?;
        if held.owner == Some(node) {
            held.owner = None;
        } else if held.granted.remove(&node).is_none() {
            return Err(PoolError::NotHeld(node, section));
        }
        Ok(self.free_if_unseen(section))
    }

    /// Takes back what a dead node owned and saw. Returns the sections that are free now.
    pub fn node_died(&mut self, node: NodeId) -> Vec<Section> {
        let mut touched = Vec::new();
        for (section, held) in &mut self.held {
            let owned = held.owner == Some(node);
            if owned {
                held.owner = None;
            }
            if held.granted.remove(&node).is_some() || owned {
                touched.push(*section);
            }
        }
        touched.retain(|section| self.free_if_unseen(*section));
        touched
    }

    /// Checks an access against the mapping table. It may not leave its section.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoRight`].
    pub fn check(&self, node: NodeId, at: FabricAddress, len: u64, rights: Rights) -> Result<(), PoolError> {
        let refused = PoolError::NoRight(node, at, len);
        let held = self.held.get(&at.section()).ok_or(refused)?;
        let granted = held.owner == Some(node) || held.granted.get(&node).is_some_and(|has| *has >= rights);
        let inside = at.offset().checked_add(len).is_some_and(|end| end <= SECTION_BYTES);
        if granted && inside { Ok(()) } else { Err(refused) }
    }

    /// Whether `node` owns a section.
    pub fn owns(&self, node: NodeId, section: Section) -> bool {
        self.held.get(&section).is_some_and(|held| held.owner == Some(node))
    }

    fn owned(&mut self, node: NodeId, section: Section) -> Result<&mut Held, PoolError> {
        let held = self.held.get_mut(&section).filter(|held| held.owner == Some(node));
        held.ok_or(PoolError::NotHeld(node, section))
    }

    fn free_if_unseen(&mut self, section: Section) -> bool {
        let unseen = |held: &Held| held.owner.is_none() && held.granted.is_empty();
        if !self.held.get(&section).is_some_and(unseen) {
            return false;
        }
        if let Some(held) = self.held.remove(&section) {
            self.free.entry(held.location).or_default().insert(section);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const NEAR: Location = Location(0);
    const FAR: Location = Location(1);

    fn pool() -> Pool {
        let device = |location| Device { location, sections: 2 };
        Pool::bootstrap(&[device(NEAR), device(FAR)]).unwrap()
    }

    #[test]
    fn devices_begin_at_regions_and_the_preferred_one_is_served_first() {
        let mut pool = pool();
        assert_eq!(pool.take(A, FAR), Ok(Section(REGION_SECTIONS)));
        assert_eq!(pool.take(A, FAR), Ok(Section(REGION_SECTIONS + 1)));
        let elsewhere = pool.take(A, FAR).unwrap();
        assert_eq!(pool.location(elsewhere), Some(NEAR));
        pool.take(A, NEAR).unwrap();
        assert_eq!(pool.take(B, NEAR), Err(PoolError::Exhausted(4)));
        let vast = Device { location: NEAR, sections: u32::MAX };
        assert_eq!(Pool::bootstrap(&[vast]).unwrap_err(), PoolError::TooLarge);
    }

    #[test]
    fn rights_say_who_reaches_what() {
        let mut pool = pool();
        let section = pool.take(A, NEAR).unwrap();
        let at = section.start();
        assert_eq!(pool.check(A, at, SECTION_BYTES, Rights::Write), Ok(()));
        assert!(pool.check(A, at, SECTION_BYTES + 1, Rights::Read).is_err());
        assert!(pool.check(B, at, 1, Rights::Read).is_err());
        pool.grant(A, section, B, Rights::Read).unwrap();
        assert_eq!(pool.check(B, at, 1, Rights::Read), Ok(()));
        assert!(pool.check(B, at, 1, Rights::Write).is_err());
        assert_eq!(pool.grant(B, section, B, Rights::Write), Err(PoolError::NotHeld(B, section)));
    }

    #[test]
    fn a_section_is_free_when_its_last_reader_lets_go() {
        let mut pool = pool();
        let section = pool.take(A, NEAR).unwrap();
        pool.grant(A, section, B, Rights::Read).unwrap();
        assert_eq!(pool.give_back(A, section), Ok(false));
        assert_eq!(pool.give_back(A, section), Err(PoolError::NotHeld(A, section)));
        assert_eq!(pool.free_sections(), 3);
        assert_eq!(pool.give_back(B, section), Ok(true));
        assert_eq!(pool.free_sections(), 4);
    }

    #[test]
    fn what_the_dead_held_comes_back() {
        let mut pool = pool();
        let (read, unread) = (pool.take(A, NEAR).unwrap(), pool.take(A, NEAR).unwrap());
        pool.grant(A, read, B, Rights::Write).unwrap();
        assert_eq!(pool.node_died(A), [unread]);
        assert_eq!(pool.check(B, read.start(), 8, Rights::Write), Ok(()), "still read");
        assert_eq!(pool.node_died(B), [read]);
        assert_eq!(pool.free_sections(), 4);
    }
}

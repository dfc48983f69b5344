//! Virtual queues (section 4.3): rings of descriptors in the pool, one pair or more for each node.

use std::collections::VecDeque;

use crate::address::{FabricAddress, NodeId};

/// What a queue's entry says: who passes which bytes to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// Who posted it.
    pub source: NodeId,
    /// Whom it is for.
    pub destination: NodeId,
    /// Where the bytes begin.
    pub reference: FabricAddress,
    /// How many there are.
    pub length: u64,
}

/// A bounded queue of descriptors, first in, first out.
#[derive(Clone, Debug, Hash)]
pub struct VirtualQueue {
    entries: VecDeque<Descriptor>,
    capacity: usize,
}

impl VirtualQueue {
    /// With room for `capacity` descriptors.
    pub fn new(capacity: usize) -> Self {
        Self { entries: VecDeque::with_capacity(capacity), capacity }
    }

    /// Puts one in; gives it back if there is no room.
    ///
    /// # Errors
    ///
    /// The descriptor itself.
    pub fn push(&mut self, descriptor: Descriptor) -> Result<(), Descriptor> {
        if self.is_full() {
            return Err(descriptor);
        }
        self.entries.push_back(descriptor);
        Ok(())
    }

    /// The oldest, which stays.
    pub fn peek(&self) -> Option<&Descriptor> {
        self.entries.front()
    }

    /// Takes the oldest.
    pub fn pop(&mut self) -> Option<Descriptor> {
        self.entries.pop_front()
    }

    /// Takes all.
    pub fn drain(&mut self) -> impl Iterator<Item = Descriptor> + '_ {
        self.entries.drain(..)
    }

    /// All, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Descriptor> {
        self.entries.iter()
    }

    /// How many wait: the queue's depth.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether there is no room.
    pub fn is_full(&self) -> bool {
        self.entries.len() >= self.capacity
    }
}

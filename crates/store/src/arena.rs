//! Loading: structures get their addresses from the memory that they are to lie in, and are written there.

use crate::hash::{Layout, Table};
use crate::list::{self, List};
use crate::{CACHE_LINE, Place};

/// Memory that structures can be loaded into: a node's, by the connection of some world.
pub trait Arena {
    /// Why it cannot take them.
    type Error;

    /// Zeroed memory, of `len` bytes at least.
    fn alloc(&mut self, len: u64) -> Result<Place, Self::Error>;

    /// As [`alloc`](Self::alloc), of memory that kernels have grow as they need it, where there is such.
    fn alloc_growing(&mut self, len: u64) -> Result<Place, Self::Error> {
        self.alloc(len)
    }

    /// Writes bytes to memory that was allocated.
    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Self::Error>;
}

impl Layout {
    /// The table, written to memory that it allocates: a region for the entries, and one for the values.
    pub fn load<A: Arena + ?Sized>(self, arena: &mut A) -> Result<Table, A::Error> {
        let entries = arena.alloc(self.entries_bytes() as u64)?;
        let values = arena.alloc(self.values_bytes() as u64)?;
        let (table, image) = self.place(entries, values);
        arena.write(entries, &image.entries)?;
        arena.write(values, &image.values)?;
        Ok(table)
    }
}

impl List {
    /// A list of `records`, as [`list::build`] makes it, written to memory that it allocates.
    pub fn load<A: Arena + ?Sized>(records: &[(u64, &[u8])], value_size: u32, arena: &mut A) -> Result<List, A::Error> {
        let count = records.len() as u64;
        let elements = arena.alloc(count.max(1) * CACHE_LINE as u64)?;
        let values = arena.alloc((count * u64::from(value_size)).max(1))?;
        let (list, image) = list::build(records.iter().copied(), value_size, elements, values);
        arena.write(elements, &image.elements)?;
        arena.write(values, &image.values)?;
        Ok(list)
    }
}

//! Values straight into partitions that this machine's cores can store to.

use super::{HASHED, OVERFLOW, Partition, hash};
use crate::call::Status;
use crate::memory::{Fault, Memory};
use crate::vectored::vectored;
use remora_memory::{Lookahead, Scatter};
use std::sync::Arc;

/// Partitions values as they come, by stores of this core.
pub struct Spreader {
    scatter: Scatter,
    /// Hashes of some values, if those name the partitions.
    names: Option<Box<[u64; HASHED]>>,
}

impl Spreader {
    /// Through places of that many partitions; `hashed` as in [`ShuffleParams`](super::ShuffleParams).
    pub fn new(hashed: bool, scatter: Scatter) -> Spreader {
        Spreader { scatter, names: hashed.then(|| Box::new([0; HASHED])) }
    }

    /// Over the partitions of `memory`, if it has a way to store to all of them from here.
    pub(super) fn over<M: Memory>(memory: &M, key: u32, hashed: bool, partitions: &[Partition]) -> Option<Spreader> {
        let places: Vec<(u64, u32)> = partitions.iter().map(|p| (p.va, p.values)).collect();
        Some(Spreader::new(hashed, memory.scatter(key, &places)?))
    }

    /// Asks for what comes next while it takes values: as many bytes as it takes.
    pub fn look_ahead(&mut self, lookahead: Arc<Lookahead>) {
        self.scatter.look_ahead(lookahead);
    }

    /// Takes values, 8 bytes each; a tail of less is left out.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Status> {
        let (values, _) = bytes.as_chunks::<8>();
        let Some(names) = &mut self.names else {
            return whole(self.scatter.put(values));
        };
        for values in values.chunks(HASHED) {
            let names = &mut names[..values.len()];
            hashes(values, names);
            whole(self.scatter.put_named(values, names))?;
        }
        Ok(())
    }

    /// Stores what still waits. Whoever hears of the end then sees all values.
    pub fn finish(self) -> Result<(), Status> {
        whole(self.scatter.finish())
    }
}

fn whole(stored: Result<bool, remora_memory::AccessError>) -> Result<(), Status> {
    match stored {
        Ok(true) => Ok(()),
        Ok(false) => Err(OVERFLOW),
        Err(_) => Err(Fault::Access.into()),
    }
}

vectored! {
    /// The hashes of as many values.
    pub(super) fn hashes(values: &[[u8; 8]], out: &mut [u64]) {
        out.iter_mut().zip(values).for_each(|(out, value)| *out = hash(u64::from_le_bytes(*value)));
    }
}

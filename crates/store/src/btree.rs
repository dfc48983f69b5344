//! A B-tree of keys and values of 8 bytes, loaded into remote memory; the kernels do everything else.

use remora_kernel::btree::{BuildError, LOG_SLOTS, Shape, TreeRef};

use crate::{Arena, Place};

/// Bytes that are handed over at a time.
const PIECE: usize = 4 << 20;

/// Loads a tree of `len` pairs, sorted by key, each key once, into memory that it allocates: with room for as many nodes
/// again and `spare` ones, and logs for so many owners.
///
/// The tree's `owner` is 0, as for calls that run on the node; each client that writes by itself needs a number of its
/// own from 1 to `owners`.
pub fn load<A: Arena + ?Sized>(
    shape: Shape,
    pairs: impl IntoIterator<Item = (u64, u64)>,
    len: usize,
    spare: u64,
    owners: u16,
    arena: &mut A,
) -> Result<TreeRef, A::Error>
where
    A::Error: From<BuildError>,
{
    let bytes = shape.node_bytes as u64;
    let nodes = shape.slots(len).saturating_mul(2).saturating_add(spare);
    let slots = nodes.saturating_add(u64::from(LOG_SLOTS) * u64::from(owners));
    let slots = u32::try_from(slots).unwrap_or(u32::MAX);
    let place = arena.alloc(u64::from(slots) * bytes)?;
    let (mut piece, mut from) = (Vec::with_capacity(PIECE), 0);
    let mut write = |at: u64, node: &[u8]| -> Result<(), A::Error> {
        if at != from + piece.len() as u64 || piece.len() >= PIECE {
            arena.write(Place { va: place.va + from, ..place }, &piece)?;
            piece.clear();
            from = at;
        }
        piece.extend_from_slice(node);
        Ok(())
    };
    shape.build(pairs, len, nodes.min(u64::from(u32::MAX)) as u32, &mut write)?;
    arena.write(Place { va: place.va + from, ..place }, &piece)?;
    Ok(TreeRef { base: place.va, key: place.key, slots, node_bytes: shape.node_bytes as u16, owners, owner: 0 })
}

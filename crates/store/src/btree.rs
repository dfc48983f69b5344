//! A B-tree of values of 8 bytes whose keys are numbers or bytes, or an index in two of numbers, loaded into remote memory; the kernels do everything
//! else.

use std::ops::RangeInclusive;

use remora_kernel::Placement;
use remora_kernel::btree::{BuildError, Directory, LOG_SLOTS, Part, Shape, TreeRef};

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
    let room = shape.slots(len).saturating_mul(2).saturating_add(spare);
    load_part(shape, Some(0..=u64::MAX), pairs, len, room, owners, arena)
}

/// As [`load`], of keys that are bytes, as many in a node as fit. `spare` nodes come on top of twice those that the pairs take.
pub fn load_bytes<K: AsRef<[u8]>, A: Arena + ?Sized>(
    shape: Shape,
    pairs: impl IntoIterator<Item = (K, u64)> + Clone,
    spare: u64,
    owners: u16,
    arena: &mut A,
) -> Result<TreeRef, A::Error>
where
    A::Error: From<BuildError>,
{
    let nodes = shape.byte_slots(pairs.clone())?.saturating_mul(2).saturating_add(spare);
    place_tree(shape, nodes, owners, arena, |nodes, write| shape.build_bytes(pairs, nodes, write))
}

/// Loads an index of pairs, sorted by key, each key once, into memory that it allocates: a tree for the keys below `split`,
/// served by the first place, one for all others, served by the second, and the [`Directory`]. Each has room for all of the
/// pairs twice and `spare` nodes, so that the border may go anywhere, and logs for so many owners. A `split` of `u64::MAX`
/// leaves none to the second.
///
/// Returns where the directory is.
pub fn load_index<A: Arena + ?Sized>(
    shape: Shape,
    pairs: &[(u64, u64)],
    split: u64,
    places: [Placement; 2],
    (spare, owners): (u64, u16),
    arena: &mut A,
) -> Result<(Place, Directory), A::Error>
where
    A::Error: From<BuildError>,
{
    let below = if split == u64::MAX { pairs.len() } else { pairs.partition_point(|(key, _)| *key < split) };
    let room = shape.slots(pairs.len()).saturating_mul(2).saturating_add(spare);
    let here = match split {
        0 => [None, Some(0..=u64::MAX)],
        u64::MAX => [Some(0..=u64::MAX), None],
        split => [Some(0..=split - 1), Some(split..=u64::MAX)],
    };
    let [low, high] = [&pairs[..below], &pairs[below..]];
    let [first, second] = here;
    let mut part = |place, here, pairs: &[(u64, u64)]| -> Result<Part, A::Error> {
        let tree = load_part(shape, here, pairs.iter().copied(), pairs.len(), room, owners, arena)?;
        Ok(Part { tree, place })
    };
    let parts = [part(places[0], first, low)?, part(places[1], second, high)?];
    let directory = Directory { split, parts };
    let place = arena.alloc(Directory::LEN as u64)?;
    arena.write(place, &directory.encode())?;
    Ok((place, directory))
}

fn load_part<A: Arena + ?Sized>(
    shape: Shape,
    here: Option<RangeInclusive<u64>>,
    pairs: impl IntoIterator<Item = (u64, u64)>,
    len: usize,
    nodes: u64,
    owners: u16,
    arena: &mut A,
) -> Result<TreeRef, A::Error>
where
    A::Error: From<BuildError>,
{
    place_tree(shape, nodes, owners, arena, |nodes, write| shape.build_part(here, pairs, len, nodes, write))
}

/// Takes memory for so many nodes, and writes what `build` hands over.
fn place_tree<A: Arena + ?Sized>(
    shape: Shape,
    nodes: u64,
    owners: u16,
    arena: &mut A,
    build: impl FnOnce(u32, &mut dyn FnMut(u64, &[u8]) -> Result<(), A::Error>) -> Result<(), A::Error>,
) -> Result<TreeRef, A::Error>
where
    A::Error: From<BuildError>,
{
    let bytes = shape.node_bytes as u64;
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
    build(nodes.min(u64::from(u32::MAX)) as u32, &mut write)?;
    arena.write(Place { va: place.va + from, ..place }, &piece)?;
    Ok(TreeRef { base: place.va, key: place.key, slots, node_bytes: shape.node_bytes as u16, owners, owner: 0 })
}

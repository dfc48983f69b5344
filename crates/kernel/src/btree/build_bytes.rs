//! Bulk loading of trees whose keys are bytes: nodes are filled one after the other, as far as they are to be.

use super::build::{BuildError, Shape, first_slot};
use super::bytes::{capacity, item, key_bytes, padded, same, separator};
use super::keys::TreeKey;
use super::{NodeView, ROOT};

impl Shape {
    /// Slots that these pairs take, the first slot included.
    pub fn byte_slots<K: AsRef<[u8]>>(self, pairs: impl IntoIterator<Item = (K, u64)>) -> Result<u64, BuildError> {
        self.lay(pairs, |_, _| Ok::<_, BuildError>(()))
    }

    /// Lays a tree of pairs, sorted by key, each key once, out in zeroed memory of `slots` slots, as [`build`](Self::build)
    /// does.
    pub fn build_bytes<K: AsRef<[u8]>, P: IntoIterator<Item = (K, u64)> + Clone, E: From<BuildError>>(
        self,
        pairs: P,
        slots: u32,
        write: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let needed = self.byte_slots(pairs.clone())?;
        if needed > u64::from(slots) {
            return Err(BuildError::TooManyPairs { pairs: pairs.into_iter().count(), needed, slots }.into());
        }
        self.lay(pairs, write).map(drop)
    }

    /// Hands over node after node, and says how many slots they take.
    fn lay<K: AsRef<[u8]>, E: From<BuildError>>(
        self,
        pairs: impl IntoIterator<Item = (K, u64)>,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<u64, E> {
        self.check()?;
        let mut level = Level { shape: self, level: 0, image: vec![0; self.node_bytes], next: u64::from(ROOT) + 1 };
        let mut above = level.lay(pairs, &mut write)?;
        while above.len() > 1 {
            level.level += 1;
            above = level.lay(above, &mut write)?;
        }
        let next = level.next;
        first_slot(u32::try_from(next).unwrap_or(u32::MAX), &mut level.image);
        write(0, &level.image)?;
        Ok(next)
    }
}

/// A level that is being laid.
struct Level {
    shape: Shape,
    level: u8,
    image: Vec<u8>,
    /// The first slot that is not used yet.
    next: u64,
}

impl Level {
    /// Lays nodes of these keys, with their values or children. Returns the low fence and the slot of each.
    fn lay<K: AsRef<[u8]>, E: From<BuildError>>(
        &mut self,
        pairs: impl IntoIterator<Item = (K, u64)>,
        write: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<Vec<(Vec<u8>, u64)>, E> {
        let (bytes, most) = (self.shape.node_bytes, key_bytes(self.shape.node_bytes));
        // The fence at the end may be as long as a key.
        let (room, part) = (capacity(bytes) - most, usize::from(self.shape.fill.clamp(1, 100)));
        let mut pairs = pairs.into_iter().peekable();
        let mut node: Vec<(K, u64)> = Vec::new();
        let mut above: Vec<(Vec<u8>, u64)> = Vec::new();
        // What all keys begin with, and what the pairs take so.
        let (mut low, mut used, mut at) = (Vec::new(), (0, 0), 0);
        loop {
            let pair = pairs.next();
            if let Some((key, _)) = &pair {
                let (key, last) = (key.as_ref(), node.last().map(|(last, _)| last.as_ref()));
                if key.len() > most {
                    return Err(BuildError::LongKey { at, len: key.len(), most }.into());
                }
                if last.is_some_and(|last| last >= key) {
                    return Err(BuildError::UnsortedBytes(at).into());
                }
            }
            // If the node ends behind this pair, all its keys begin as both fences do.
            let common = pairs.peek().map_or(0, |(key, _)| same(&low, key.as_ref()));
            let takes = |(key, _): &(K, u64)| item(key.as_ref().len().saturating_sub(common));
            let fits = |pair: &(K, u64)| {
                let others = if used.0 == common { used.1 } else { node.iter().map(takes).sum() };
                let all = others + takes(pair);
                // Two pairs at least, which fit into any.
                (node.len() < 2 || padded(&low) + all <= room * part / 100).then_some(all)
            };
            match pair.as_ref().and_then(fits) {
                Some(all) => {
                    used = (common, all);
                    node.extend(pair);
                }
                None => {
                    let last = node.last().map_or(&[][..], |(key, _)| key.as_ref());
                    let fence = pair.as_ref().map(|(key, _)| match self.level {
                        0 => separator(last, key.as_ref()),
                        _ => key.as_ref(),
                    });
                    let alone = above.is_empty() && fence.is_none();
                    let slot = if alone { ROOT.into() } else { self.next };
                    let right = fence.map_or(0, |_| (self.next as u32).wrapping_add(1));
                    <[u8]>::clear(&mut self.image, self.level, (&low, fence), right);
                    for (place, (key, what)) in node.drain(..).enumerate() {
                        <[u8]>::insert(&mut self.image, place, key.as_ref(), what);
                    }
                    debug_assert!(<[u8]>::next(NodeView(&self.image)).as_deref() == fence);
                    write(slot * bytes as u64, &self.image)?;
                    self.next += u64::from(!alone);
                    let fence = fence.map(<[u8]>::to_vec);
                    above.push((std::mem::take(&mut low), slot));
                    match (fence, pair) {
                        (Some(fence), Some((key, what))) => {
                            (low, used) = (fence, (usize::MAX, 0));
                            node.push((key, what));
                        }
                        _ => return Ok(above),
                    }
                }
            }
            at += 1;
        }
    }
}

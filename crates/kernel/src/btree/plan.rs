//! A loaded tree whose nodes are made one by one, when somebody wants them: what [`Shape::build`] would write, without
//! its memory. For trees too large to hold.

use super::ROOT;
use super::build::{Shape, first_slot};
use super::node::{NodeMut, children, leaf_keys};

/// Where the nodes of a tree of so many pairs lie, level by level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    shape: Shape,
    /// From the leaves up: the first slot, nodes, and what lies below: pairs or nodes.
    levels: Vec<(u64, u64, u64)>,
}

impl Plan {
    /// Of the tree that [`Shape::build`] makes of so many pairs.
    pub fn new(shape: Shape, pairs: u64) -> Self {
        let (mut levels, mut items, mut next) = (Vec::new(), pairs, u64::from(ROOT) + 1);
        loop {
            let room = if levels.is_empty() { leaf_keys(shape.node_bytes) } else { children(shape.node_bytes) } as u64;
            if items <= room {
                levels.push((ROOT.into(), 1, items));
                return Self { shape, levels };
            }
            let nodes = items.div_ceil(shape.share(room as usize) as u64);
            levels.push((next, nodes, items));
            (items, next) = (nodes, next + nodes);
        }
    }

    /// Levels, that of the leaves included.
    pub fn height(&self) -> usize {
        self.levels.len()
    }

    /// Slots that it takes, the first one included.
    pub fn slots(&self) -> u64 {
        2 + self.levels.iter().filter(|level| level.1 > 1).map(|level| level.1).sum::<u64>()
    }

    /// The slots from the root down to the leaf that holds a pair, counted from 0.
    pub fn path(&self, pair: u64) -> impl Iterator<Item = u32> + use<> {
        let mut item = pair;
        let mut slots = Vec::with_capacity(self.levels.len());
        for &(first, nodes, items) in &self.levels {
            // The node that has the item: the only one whose share ends behind it and begins at it or before.
            item = ((item + 1) * nodes).div_ceil(items.max(1)) - 1;
            slots.push((first + item) as u32);
        }
        slots.into_iter().rev()
    }

    /// Writes what stands in a slot to `image`, which has the size of a node; `pair` says which key and value the pairs have,
    /// counted from 0, in ascending order.
    pub fn node(&self, slot: u32, pair: impl Fn(u64) -> (u64, u64), image: &mut [u8]) {
        if slot == 0 {
            first_slot(self.slots() as u32, image);
            return;
        }
        image.fill(0);
        let slot = u64::from(slot);
        let has = |&(first, nodes, _): &(u64, u64, u64)| (first..first + nodes).contains(&slot);
        let Some(level) = self.levels.iter().position(has) else { return };
        let (first, nodes, _) = self.levels[level];
        let number = slot - first;
        // The lowest key of what a node of a level holds; that of the first one is below all.
        let low = |level: usize, number: u64| if number == 0 { 0 } else { pair(self.first_pair(level, number)).0 };
        let last = number + 1 == nodes;
        let (high, right) = if last { (u64::MAX, 0) } else { (low(level, number + 1) - 1, slot as u32 + 1) };
        let mut node = NodeMut(image);
        node.clear(level as u8, (low(level, number), high), right);
        for item in self.share(level, number) {
            let (key, what) = match level {
                0 => pair(item),
                _ => (low(level - 1, item), self.levels[level - 1].0 + item),
            };
            node.push(key, what);
        }
    }

    /// Pairs or nodes below a node of a level.
    fn share(&self, level: usize, number: u64) -> std::ops::Range<u64> {
        let (_, nodes, items) = self.levels[level];
        items * number / nodes..items * (number + 1) / nodes
    }

    /// The first pair below a node of a level.
    fn first_pair(&self, level: usize, number: u64) -> u64 {
        (0..=level).rev().fold(number, |number, level| self.share(level, number).start)
    }
}

#[cfg(test)]
mod tests {
    use super::super::NodeView;
    use super::*;

    fn pair(n: u64) -> (u64, u64) {
        (n * 7 + n % 5, n ^ 0x55)
    }

    #[test]
    fn nodes_are_those_of_the_tree_that_is_built() {
        for (node_bytes, fill) in [(256, 100), (256, 60), (512, 75)] {
            for pairs in [0, 1, 13, 14, 200, 3_000, 20_000] {
                let shape = Shape { node_bytes, fill };
                let plan = Plan::new(shape, pairs);
                assert_eq!(plan.slots(), shape.slots(pairs as usize));
                let (mut made, mut built) = (vec![0; node_bytes], 0);
                let check = |offset: u64, image: &[u8]| -> Result<(), super::super::BuildError> {
                    let slot = (offset / node_bytes as u64) as u32;
                    plan.node(slot, pair, &mut made);
                    assert!(made == image, "slot {slot} of {pairs} pairs, {shape:?}");
                    built += 1;
                    Ok(())
                };
                shape.build((0..pairs).map(pair), pairs as usize, plan.slots() as u32, check).unwrap();
                assert_eq!(built, plan.slots());
            }
        }
    }

    #[test]
    fn paths_lead_to_the_leaf_that_has_the_pair() {
        let plan = Plan::new(Shape { node_bytes: 256, fill: 70 }, 5_000);
        let mut image = vec![0; 256];
        for n in (0..5_000).step_by(37) {
            let path: Vec<u32> = plan.path(n).collect();
            assert_eq!((path.len(), path[0]), (plan.height(), ROOT));
            for (slot, next) in path.iter().zip(path.iter().skip(1).map(Some).chain([None])) {
                plan.node(*slot, pair, &mut image);
                let node = NodeView(&image);
                assert!(node.covers(pair(n).0));
                match next {
                    Some(next) => assert_eq!(node.child(node.place(pair(n).0).unwrap()), *next),
                    None => assert_eq!(node.search(pair(n).0).map(|at| node.value(at)), Ok(pair(n).1)),
                }
            }
        }
        // 256 M pairs in nodes of 512 B: six levels, and of 2 KB five, as ADMS 5.2 says.
        let height = |node_bytes| Plan::new(Shape { node_bytes, fill: 70 }, 256_000_000).height();
        assert_eq!((height(512), height(2048)), (6, 5));
    }
}

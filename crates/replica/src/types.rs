//! Words that every engine here shares: nodes, sets of them, timestamps, keys, values.

use std::fmt;
use std::sync::Arc;

/// A record's name.
pub type Key = u64;

/// A record's content, of any size. Cheap to clone; equal by content.
pub type Value = Arc<[u8]>;

/// Names a scope; the client that opens it chooses a number that nobody else uses.
pub type ScopeId = u64;

/// A node of the cluster, 0 to 63.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NodeId(pub u8);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// A set of nodes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NodeSet(pub u64);

impl NodeSet {
    /// Nobody.
    pub const EMPTY: Self = Self(0);

    /// The nodes 0 to `count` - 1.
    pub const fn first(count: u8) -> Self {
        Self(if count >= 64 { u64::MAX } else { (1 << count) - 1 })
    }

    /// Just `node`.
    pub const fn one(node: NodeId) -> Self {
        Self(1 << (node.0 & 63))
    }

    /// Is `node` in it?
    pub const fn has(self, node: NodeId) -> bool {
        node.0 < 64 && self.0 >> node.0 & 1 == 1
    }

    /// With `node`.
    #[must_use]
    pub const fn with(self, node: NodeId) -> Self {
        Self(self.0 | Self::one(node).0)
    }

    /// Without `node`.
    #[must_use]
    pub const fn without(self, node: NodeId) -> Self {
        Self(self.0 & !Self::one(node).0)
    }

    /// All of both.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What is in both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// What is in `self` and not in `other`.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Is all of `other` in it?
    pub const fn covers(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// Nobody in it?
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many.
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// In order.
    pub fn iter(self) -> impl Iterator<Item = NodeId> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let first = left.trailing_zeros() as u8;
            left &= left.checked_sub(1)?;
            Some(NodeId(first))
        })
    }
}

impl fmt::Display for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.iter().map(|node| node.to_string()).collect();
        write!(f, "{{{}}}", names.join(" "))
    }
}

/// A write's logical timestamp (figure 1b): ordered by version, then by node. (0, n0) is before every write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp {
    /// The record's version.
    pub version: u64,
    /// The node that coordinates the write.
    pub node: NodeId,
}

impl Timestamp {
    /// Before every write.
    pub const ZERO: Self = Self { version: 0, node: NodeId(0) };
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.version, self.node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_set_names_its_nodes_in_order(bits: u64) {
            let has: Vec<NodeId> = (0..64).map(NodeId).filter(|&node| NodeSet(bits).has(node)).collect();
            prop_assert_eq!(NodeSet(bits).iter().collect::<Vec<_>>(), has);
        }
    }
}

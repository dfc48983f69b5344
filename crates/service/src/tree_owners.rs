//! Which client writes which B-tree by itself: as which of the tree's owners, and what is to be recovered when it is gone.
//!
//! A client is an owner from when it asks until its connection has ended, after which nothing of it arrives any more.
//! Then its owner is recovered (by [`TREE_RECOVER`](remora_kernel::op)), and afterwards another client may have it.

use std::collections::VecDeque;

use remora_kernel::btree::TreeRef;
use remora_nic::Qpn;

/// Trees that one connection writes by itself, at most.
pub const OWNED_TREES: usize = 64;

/// The owners of all trees of a node.
#[derive(Debug, Default)]
pub struct TreeOwners {
    held: Vec<Held>,
    /// Owners whose clients are gone.
    left: VecDeque<TreeRef>,
}

#[derive(Debug)]
struct Held {
    tree: TreeRef,
    /// `None` once its client is gone.
    by: Option<Qpn>,
}

impl TreeOwners {
    /// Gives a client an owner of a tree: a number that nobody else has. It keeps one that it has.
    pub fn take(&mut self, by: Qpn, tree: TreeRef) -> Result<u16, String> {
        let is_this = |held: &&Held| is_same(&held.tree, &tree);
        if let Some(held) = self.held.iter().filter(is_this).find(|held| held.by == Some(by)) {
            return Ok(held.tree.owner);
        }
        if self.held.iter().filter(|held| held.by == Some(by)).count() >= OWNED_TREES {
            return Err(format!("a connection writes at most {OWNED_TREES} trees by itself: make another connection"));
        }
        let is_free = |owner: &u16| !self.held.iter().filter(is_this).any(|held| held.tree.owner == *owner);
        let owner = (1..=tree.owners).find(is_free).ok_or_else(|| {
            format!(
                "all of the tree's {} owners are taken: load it with more, or write by calls to the node",
                tree.owners
            )
        })?;
        self.held.push(Held { tree: TreeRef { owner, ..tree }, by: Some(by) });
        Ok(owner)
    }

    /// A connection has ended, so that nothing of it arrives any more.
    pub fn gone(&mut self, by: Qpn) {
        for held in self.held.iter_mut().filter(|held| held.by == Some(by)) {
            held.by = None;
            self.left.push_back(held.tree);
        }
    }

    /// A region is gone, and the trees in it.
    pub fn released(&mut self, key: u32) {
        self.held.retain(|held| held.tree.key != key);
        self.left.retain(|tree| tree.key != key);
    }

    /// The next owner, in a tree, that is to be recovered.
    pub fn poll_left(&mut self) -> Option<TreeRef> {
        self.left.pop_front()
    }

    /// An owner is recovered: another client may have it.
    pub fn recovered(&mut self, tree: TreeRef) {
        self.held.retain(|held| held.by.is_some() || held.tree.owner != tree.owner || !is_same(&held.tree, &tree));
    }
}

/// Whether two are the same tree, whoever its owner.
fn is_same(one: &TreeRef, other: &TreeRef) -> bool {
    TreeRef { owner: 0, ..*one } == TreeRef { owner: 0, ..*other }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: TreeRef = TreeRef { base: 64, key: 7, slots: 100, node_bytes: 256, owners: 2, owner: 0 };

    #[test]
    fn an_owner_is_given_again_once_its_client_is_gone_and_it_is_recovered() {
        let mut owners = TreeOwners::default();
        let other = TreeRef { key: 8, ..TREE };
        assert_eq!([1, 1, 2].map(|by| owners.take(Qpn(by), TREE)), [Ok(1), Ok(1), Ok(2)]);
        assert_eq!(owners.take(Qpn(1), other), Ok(1));
        assert!(owners.take(Qpn(3), TREE).unwrap_err().contains("all of the tree's 2 owners"));
        owners.gone(Qpn(1));
        let left = TreeRef { owner: 1, ..TREE };
        assert_eq!(owners.poll_left(), Some(left));
        assert!(owners.take(Qpn(3), TREE).is_err(), "it is not recovered yet");
        owners.released(other.key);
        assert_eq!(owners.poll_left(), None, "that tree is gone");
        owners.recovered(left);
        assert_eq!(owners.take(Qpn(3), TREE), Ok(1));
        owners.recovered(left);
        assert!(owners.take(Qpn(4), TREE).is_err(), "who lives keeps his");
    }

    #[test]
    fn a_connection_has_so_many_at_most() {
        let mut owners = TreeOwners::default();
        let tree = |key| TreeRef { key, ..TREE };
        assert!((0..OWNED_TREES as u32).all(|key| owners.take(Qpn(1), tree(key)) == Ok(1)));
        assert!(owners.take(Qpn(1), tree(999)).is_err());
        assert_eq!(owners.take(Qpn(2), tree(999)), Ok(1));
    }
}

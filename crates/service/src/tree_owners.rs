//! Which client writes which B-tree by itself: as which of the tree's owners, and what is to be recovered when it is gone.
//!
//! A client is an owner from when it asks until its connection has ended, after which nothing of it arrives any more.
//! Then its owner is recovered (by [`TREE_RECOVER`](remora_kernel::op)), and afterwards another client may have it.
//!
//! How long that takes is up to who made the tree: every node of it is looked at. So clients take turns, one recovery of
//! each at a time, and what a client's connections have left counts against it until it is recovered.

use std::collections::BTreeSet;

use remora_kernel::btree::TreeRef;
use remora_nic::Qpn;

use crate::turns::Turns;

/// Trees that one connection writes by itself, at most, those included that its client has left and that are not recovered.
pub const OWNED_TREES: usize = 64;

/// The owners of all trees of a node.
#[derive(Debug, Default)]
pub struct TreeOwners {
    held: Vec<Held>,
    /// Owners whose connections are gone.
    left: Turns<TreeRef>,
    /// Clients of which one is being recovered.
    under_way: BTreeSet<u32>,
}

#[derive(Debug)]
struct Held {
    tree: TreeRef,
    /// The number of the client, which has as many connections as it likes.
    client: u32,
    /// `None` once the connection is gone.
    by: Option<Qpn>,
}

impl TreeOwners {
    /// Gives a connection of a client an owner of a tree: a number that nobody else has. It keeps one that it has.
    pub fn take(&mut self, by: Qpn, client: u32, tree: TreeRef) -> Result<u16, String> {
        let is_this = |held: &&Held| is_same(&held.tree, &tree);
        if let Some(held) = self.held.iter().filter(is_this).find(|held| held.by == Some(by)) {
            return Ok(held.tree.owner);
        }
        let (own, left) = self.held.iter().fold((0, 0), |(own, left), held| match held.by {
            Some(other) => (own + usize::from(other == by), left),
            None => (own, left + usize::from(held.client == client)),
        });
        if own + left >= OWNED_TREES {
            return Err(match left {
                0 => format!("a connection writes at most {OWNED_TREES} trees by itself: make another connection"),
                _ => format!(
                    "a connection writes at most {OWNED_TREES} trees by itself, and {left} that this client's former \
                     connections wrote are still to be recovered: try again later"
                ),
            });
        }
        let is_free = |owner: &u16| !self.held.iter().filter(is_this).any(|held| held.tree.owner == *owner);
        let owner = (1..=tree.owners).find(is_free).ok_or_else(|| {
            format!(
                "all of the tree's {} owners are taken: load it with more, or write by calls to the node",
                tree.owners
            )
        })?;
        self.held.push(Held { tree: TreeRef { owner, ..tree }, client, by: Some(by) });
        Ok(owner)
    }

    /// A connection has ended, so that nothing of it arrives any more.
    pub fn gone(&mut self, by: Qpn) {
        for held in self.held.iter_mut().filter(|held| held.by == Some(by)) {
            held.by = None;
            self.left.push(held.client, held.tree);
        }
    }

    /// A region is gone, and the trees in it.
    pub fn released(&mut self, key: u32) {
        for held in self.held.extract_if(.., |held| held.tree.key == key) {
            self.left.retain(held.client, |tree| tree.key != key);
        }
    }

    /// The next owner, in a tree, that is to be recovered, and whose it was: of a client that has none under way.
    pub fn poll_left(&mut self) -> Option<(u32, TreeRef)> {
        let (client, tree) = self.left.pop(|client| !self.under_way.contains(&client))?;
        self.under_way.insert(client);
        Some((client, tree))
    }

    /// Whether any are still to be recovered.
    pub fn has_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// Recoveries under way.
    pub fn recovering(&self) -> usize {
        self.under_way.len()
    }

    /// A client's owner is recovered, or cannot be: another one may have it.
    pub fn recovered(&mut self, client: u32, tree: TreeRef) {
        self.under_way.remove(&client);
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
        assert_eq!([1, 1, 2].map(|by| owners.take(Qpn(by), by, TREE)), [Ok(1), Ok(1), Ok(2)]);
        assert_eq!(owners.take(Qpn(1), 1, other), Ok(1));
        assert!(owners.take(Qpn(3), 3, TREE).unwrap_err().contains("all of the tree's 2 owners"));
        owners.gone(Qpn(1));
        let left = TreeRef { owner: 1, ..TREE };
        assert_eq!(owners.poll_left(), Some((1, left)));
        assert!(owners.take(Qpn(3), 3, TREE).is_err(), "it is not recovered yet");
        owners.released(other.key);
        owners.recovered(1, left);
        assert_eq!(owners.poll_left(), None, "that tree is gone");
        assert_eq!(owners.take(Qpn(3), 3, TREE), Ok(1));
        owners.recovered(1, left);
        assert!(owners.take(Qpn(4), 4, TREE).is_err(), "who lives keeps his");
    }

    fn tree(key: u32) -> TreeRef {
        TreeRef { key, ..TREE }
    }

    #[test]
    fn a_connection_has_so_many_at_most() {
        let mut owners = TreeOwners::default();
        assert!((0..OWNED_TREES as u32).all(|key| owners.take(Qpn(1), 5, tree(key)) == Ok(1)));
        assert!(owners.take(Qpn(1), 5, tree(999)).is_err());
        assert_eq!(owners.take(Qpn(2), 5, tree(999)), Ok(1));
    }

    #[test]
    fn clients_take_turns_to_be_recovered_and_have_one_at_a_time() {
        let mut owners = TreeOwners::default();
        for (by, client, key) in [(1, 5, 10), (1, 5, 11), (2, 5, 12), (3, 6, 13)] {
            assert_eq!(owners.take(Qpn(by), client, tree(key)), Ok(1));
        }
        (1..=3).for_each(|by| owners.gone(Qpn(by)));
        let owned = |key| TreeRef { owner: 1, ..tree(key) };
        assert_eq!([(); 3].map(|()| owners.poll_left()), [Some((5, owned(10))), Some((6, owned(13))), None]);
        assert_eq!(owners.recovering(), 2);
        owners.recovered(5, owned(10));
        assert_eq!([(); 2].map(|()| owners.poll_left()), [Some((5, owned(11))), None]);
        // One whose tree went away under its recovery has its turn all the same.
        owners.released(11);
        owners.recovered(5, owned(11));
        assert_eq!(owners.poll_left(), Some((5, owned(12))));
    }

    #[test]
    fn what_a_client_has_left_counts_against_it_until_it_is_recovered() {
        let mut owners = TreeOwners::default();
        assert!((0..OWNED_TREES as u32).all(|key| owners.take(Qpn(1), 5, tree(key)) == Ok(1)));
        owners.gone(Qpn(1));
        assert!(owners.take(Qpn(2), 5, tree(999)).unwrap_err().contains("64 that this client's former connections"));
        assert_eq!(owners.take(Qpn(3), 6, tree(999)), Ok(1), "another client's");
        let (client, left) = owners.poll_left().unwrap();
        assert!(owners.take(Qpn(2), 5, tree(998)).is_err());
        owners.recovered(client, left);
        assert_eq!(owners.take(Qpn(2), 5, tree(998)), Ok(1));
        assert!(owners.take(Qpn(2), 5, tree(997)).is_err());
    }
}

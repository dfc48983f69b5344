//! A client's part of B-trees that it writes by itself.

use remora_kernel::btree::{TreeParams, TreeRef};
use remora_service::control::op;

use super::Client;
use crate::error::Error;

impl Client {
    /// Makes this client an owner of a tree, and returns the tree as such: its writes may then run at this client
    /// ([`Placement::Client`](remora_kernel::Placement)). It stays one until its connection ends. If it goes away in the
    /// middle of a write, the node ends that write, or undoes it, once it has noticed; until then others may find a node
    /// [locked](remora_kernel::btree::LOCKED), and try again.
    pub fn own_tree(&mut self, tree: TreeRef) -> Result<TreeRef, Error> {
        let what = "make this client an owner of a tree";
        let reply = self.node_call(what, op::TREE_OWN, &TreeParams::new(tree, 0, 0).encode())?;
        match reply.first_chunk() {
            Some(owner) => Ok(TreeRef { owner: u16::from_le_bytes(*owner), ..tree }),
            None => Err(Error::Node { what, why: "its answer is too short".into() }),
        }
    }
}

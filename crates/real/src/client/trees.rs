//! A client's part of B-trees that it writes by itself, and of indexes in two parts.

use remora_kernel::btree::{Directory, NOT_OWNER, TreeParams, TreeRef};
use remora_kernel::{Placement, Status, op as kernels};
use remora_service::control::op;
use remora_service::{IndexOp, IndexReply, IndexRouter};

use super::{Client, RemoteRegion};
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
            Some(owner) => {
                let tree = TreeRef { owner: u16::from_le_bytes(*owner), ..tree };
                if !self.owned.contains(&tree) {
                    self.owned.push(tree);
                }
                Ok(tree)
            }
            None => Err(Error::Node { what, why: "its answer is too short".into() }),
        }
    }

    /// A tree as this connection calls it: as nobody's, where the reference is that of an owner who is somebody else. Of an
    /// earlier connection the node has given the number away, and two that write as one owner undo each other's work.
    pub fn as_owner(&self, tree: TreeRef) -> TreeRef {
        if self.owned.contains(&tree) { tree } else { TreeRef { owner: 0, ..tree } }
    }

    /// Opens the index whose directory lies at an address of a region: reads the directory.
    pub fn open_index(&mut self, (va, key): (u64, u32)) -> Result<IndexRouter, Error> {
        let mut bytes = [0; Directory::LEN];
        self.read(&RemoteRegion { va, key, len: Directory::LEN as u64 }, 0, &mut bytes)?;
        let directory = Directory::decode(&bytes)
            .map_err(|_| Error::Argument(format!("there is no directory of an index at {va:#x} of region {key:#x}")))?;
        Ok(IndexRouter::new((va, key), directory))
    }

    /// Has the calls of this view of an index run at one place, or each at that of its part. At
    /// [`Placement::Client`] this client becomes an owner of both trees.
    pub fn run_index_at(&mut self, index: &mut IndexRouter, place: Option<Placement>) -> Result<(), Error> {
        let owners = match place {
            Some(Placement::Client) => {
                let [low, high] = index.directory().parts.map(|part| TreeRef { owner: 0, ..part.tree });
                [self.own_tree(low)?.owner, self.own_tree(high)?.owner]
            }
            _ => [0; 2],
        };
        index.run_at(place, owners);
        Ok(())
    }

    /// Runs one operation on an index from start to end. How it ended is the kernel's status, as it is of a tree.
    pub fn index(&mut self, index: &mut IndexRouter, op: IndexOp) -> Result<Result<IndexReply, Status>, Error> {
        let (mut call, mut params) = (index.begin(op), Vec::new());
        loop {
            if let Some((place, kernel)) = index.poll_border(&mut params) {
                let (status, reply) = self.call(place, kernel, &params)?;
                index.border(status, &reply);
            }
            let (place, kernel) = index.ask(&call, &mut params);
            let writes = matches!(kernel, kernels::TREE_PUT | kernels::TREE_DELETE);
            if place == Placement::Client
                && writes
                && TreeRef::of(&params).is_some_and(|tree| self.as_owner(tree) != tree)
            {
                return Ok(Err(NOT_OWNER));
            }
            let (status, reply) = self.call(place, kernel, &params)?;
            if let Some(result) = index.answer(&mut call, status, &reply) {
                return Ok(result);
            }
        }
    }

    /// Moves the border of an index towards a key by so many leaves at most, at a place of the node, while others go on.
    /// Returns how many pairs have changed over; the border is then in the index's directory.
    pub fn move_border(
        &mut self,
        index: &mut IndexRouter,
        place: Placement,
        target: u64,
        leaves: u32,
    ) -> Result<Result<u64, Status>, Error> {
        let params = index.move_params(target, leaves).encode();
        let (status, reply) = self.call(place, kernels::TREE_MOVE, &params)?;
        Ok(index.border(status, &reply).ok_or(status))
    }
}

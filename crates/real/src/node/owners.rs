//! Clients that write B-trees, or pairs of key-value stores, by themselves, and the kernels that end what they leave half done.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remora_kernel::btree::{TreeParams, TreeRef};
use remora_kernel::{Call, Limits, Runner, host_runner, op};
use remora_memory::{Pd, Registry};
use remora_nic::Qpn;
use remora_service::{KvBlocks, TreeOwners};

use super::control::{Denial, reach};

/// Kernels that run at once, of which so many recover trees: one takes as long as the tree's maker likes, and is to hold up
/// neither others' nor blocks.
const AT_ONCE: usize = 32;
const RECOVERIES: usize = AT_ONCE / 2;

/// The owners of the node's trees, and of blocks of its stores.
pub(super) struct Owners {
    owners: TreeOwners,
    blocks: Arc<Mutex<KvBlocks>>,
    registry: Arc<Registry>,
    pd: Pd,
    kernels: Box<dyn Runner + Send>,
}

impl Owners {
    pub fn new(registry: Arc<Registry>, pd: Pd, blocks: Arc<Mutex<KvBlocks>>) -> Self {
        let kernels = host_runner(registry.clone(), true, AT_ONCE, Limits::default());
        Self { owners: TreeOwners::default(), blocks, registry, pd, kernels }
    }

    fn blocks(&self) -> MutexGuard<'_, KvBlocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the caller an owner of a tree.
    pub fn take(&mut self, call: &mut Call) -> Result<(), Denial> {
        let tree = TreeParams::decode(&call.params).map_err(|_| "these are no parameters of a tree")?.tree;
        let len = u64::from(tree.slots) * u64::from(tree.node_bytes);
        reach(&self.registry, self.pd, (tree.key, tree.base), len)?;
        let owner = self.owners.take(Qpn(call.qpn), call.client, TreeRef { owner: 0, ..tree })?;
        call.reply.extend_from_slice(&owner.to_le_bytes());
        Ok(())
    }

    /// The queue pair of a client is no more.
    pub fn gone(&mut self, client: Qpn) {
        self.owners.gone(client);
    }

    /// A region is gone.
    pub fn released(&mut self, key: u32) {
        self.owners.released(key);
        self.blocks().released(key);
    }

    /// Recovers what clients have left, a step of each. Returns whether there is more.
    pub fn poll(&mut self) -> bool {
        let Self { owners, kernels, .. } = self;
        while kernels.in_flight() < AT_ONCE
            && owners.recovering() < RECOVERIES
            && let Some((client, tree)) = owners.poll_left()
        {
            let params = TreeParams::new(TreeRef { owner: 0, ..tree }, tree.owner.into(), 0).encode();
            let mut call = Call::new(op::TREE_RECOVER, &params, 64);
            (call.pd, call.client) = (Some(self.pd), client);
            // There is room. A tree that cannot be reached any more needs no recovery.
            let _ = kernels.start(call);
        }
        while kernels.in_flight() < AT_ONCE
            && let Some(release) = self.blocks.lock().unwrap_or_else(PoisonError::into_inner).poll_left()
        {
            let mut call = Call::new(op::KV_RELEASE, &release, 0);
            call.pd = Some(self.pd);
            let _ = kernels.start(call);
        }
        if kernels.in_flight() > 0 {
            kernels.poll(&mut |call: Call, _| {
                if let (op::TREE_RECOVER, Ok(params)) = (call.op, TreeParams::decode(&call.params)) {
                    owners.recovered(call.client, TreeRef { owner: params.key as u16, ..params.tree });
                }
            });
        }
        kernels.in_flight() > 0 || owners.has_left() || self.blocks().has_left()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use remora_kernel::btree::FIRST;
    use remora_memory::{Access, Buffer};

    /// A region that is a tree of so many slots, all in use as far as it says.
    fn tree(registry: &Registry, pd: Pd, slots: u32, owners: u16) -> TreeRef {
        let buffer = Buffer::anonymous(slots as usize * 256).unwrap();
        buffer.write(FIRST.next, &u64::from(slots).to_le_bytes()).unwrap();
        let region = registry.register(pd, &buffer, 0, buffer.len(), Some(0), Access::all()).unwrap();
        TreeRef { base: 0, key: region.key(), slots, node_bytes: 256, owners, owner: 0 }
    }

    fn take(owners: &mut Owners, qpn: u32, client: u32, tree: TreeRef) -> bool {
        let mut call = Call::new(op::TREE_RECOVER, &TreeParams::new(tree, 0, 0).encode(), 64);
        (call.qpn, call.client) = (qpn, client);
        owners.take(&mut call).is_ok()
    }

    #[test]
    fn who_leaves_trees_that_take_long_holds_up_nobody_else() {
        const LEFT: u32 = 20;
        let registry = Arc::new(Registry::new([5; 32]));
        let pd = registry.alloc_pd();
        let mut owners = Owners::new(registry.clone(), pd, Arc::default());
        let (large, small) = (tree(&registry, pd, 30_000, LEFT as u16), tree(&registry, pd, 100, 1));
        assert!((1..=LEFT).all(|qpn| take(&mut owners, qpn, 5, large)));
        assert!(take(&mut owners, 100, 6, small));
        (1..=LEFT).chain([100]).for_each(|qpn| owners.gone(Qpn(qpn)));
        assert!(!take(&mut owners, 101, 6, small) && !take(&mut owners, 102, 7, large));
        while !take(&mut owners, 101, 6, small) {
            assert!(owners.poll(), "it is recovered some time");
        }
        assert!(!take(&mut owners, 102, 7, large), "none of the long ones is over");
        while owners.poll() {}
        assert!((200..200 + LEFT).all(|qpn| take(&mut owners, qpn, 7, large)));
    }
}

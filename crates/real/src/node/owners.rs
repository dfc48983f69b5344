//! Clients that write B-trees, or pairs of key-value stores, by themselves, and the kernels that end what they leave half done.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remora_kernel::btree::{TreeParams, TreeRef};
use remora_kernel::{Call, Limits, Runner, host_runner, op};
use remora_memory::{Pd, Registry};
use remora_nic::Qpn;
use remora_service::{KvBlocks, TreeOwners};

use super::control::{Denial, reach};

/// Kernels that run at once.
const AT_ONCE: usize = 4;

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

    /// A client has connected.
    pub fn came(&self, client: Qpn) {
        self.blocks().came(client);
    }

    /// Makes the caller an owner of a tree.
    pub fn take(&mut self, call: &mut Call) -> Result<(), Denial> {
        let tree = TreeParams::decode(&call.params).map_err(|_| "these are no parameters of a tree")?.tree;
        let len = u64::from(tree.slots) * u64::from(tree.node_bytes);
        reach(&self.registry, self.pd, (tree.key, tree.base), len)?;
        let owner = self.owners.take(Qpn(call.qpn), TreeRef { owner: 0, ..tree })?;
        call.reply.extend_from_slice(&owner.to_le_bytes());
        Ok(())
    }

    /// The queue pair of a client is no more.
    pub fn gone(&mut self, client: Qpn) {
        self.owners.gone(client);
        self.blocks().gone(client);
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
            && let Some(tree) = owners.poll_left()
        {
            let params = TreeParams::new(TreeRef { owner: 0, ..tree }, tree.owner.into(), 0).encode();
            let mut call = Call::new(op::TREE_RECOVER, &params, 64);
            call.pd = Some(self.pd);
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
                    owners.recovered(TreeRef { owner: params.key as u16, ..params.tree });
                }
            });
        }
        kernels.in_flight() > 0
    }
}

//! A client's part of kernels that users bring: deploy them at the node, and run them here as well.

use remora_wasm::{DeployedModule, Isolation, KernelSet, ModuleLimits};

use remora_service::control::{op, u32_at, u64_at};

use crate::module_calls::{self, DeployParams, RemoveParams};
use crate::{Client, Error};

impl Client {
    /// Deploys a module at the node under a name; an older one of that name is replaced. With `keep` it is there again
    /// after a restart of the node. Every client of the node may call it; who may deploy is the node's to say
    /// ([`Deployers`](crate::Deployers)).
    pub fn deploy_kernel(
        &mut self,
        name: &str,
        module: &[u8],
        limits: ModuleLimits,
        isolation: Isolation,
        keep: bool,
    ) -> Result<DeployedModule, Error> {
        let len = u32::try_from(module.len()).ok().filter(|&len| len <= crate::node::MAX_MODULE && len > 0);
        let len = len.ok_or_else(|| {
            Error::Argument(format!("a module of {} bytes: 1 to {}", module.len(), crate::node::MAX_MODULE))
        })?;
        let region = self.alloc(len.into())?;
        let outcome = self.write(&region, 0, module).and_then(|()| {
            let (key, va, name) = (region.key, region.va, name.into());
            let mut deploy = DeployParams { key, va, len, limits, isolation, keep, proof: None, name };
            deploy.proof =
                self.deploy_token.as_ref().map(|token| token.prove(&deploy.proven(&deploy.limits(), module)));
            self.node_call("deploy the kernel", op::KERNEL_DEPLOY, &deploy.encode())
        });
        self.free(&region)?;
        let reply = outcome?;
        match (u64_at(&reply, 0), u32_at(&reply, 8)) {
            (Some(op), Some(version)) => {
                Ok(DeployedModule { op, name: name.into(), version, bytes: module.len(), limits, isolation })
            }
            _ => Err(Error::Node { what: "deploy the kernel", why: "its answer is too short".into() }),
        }
    }

    /// The modules that are deployed at the node.
    pub fn list_kernels(&mut self) -> Result<Vec<DeployedModule>, Error> {
        let reply = self.node_call("list its kernels", op::KERNEL_LIST, &[])?;
        module_calls::decode_entries(&reply)
            .ok_or(Error::Node { what: "list its kernels", why: "its answer is cut short".into() })
    }

    /// Removes a module from the node.
    pub fn remove_kernel(&mut self, name: &str) -> Result<(), Error> {
        let mut remove = RemoveParams { proof: None, name: name.into() };
        remove.proof = self.deploy_token.as_ref().map(|token| token.prove(&remove.proven()));
        self.node_call("remove the kernel", op::KERNEL_REMOVE, &remove.encode()).map(drop)
    }

    /// The kernels that run at this client: deploy here what is called with [`Placement::Client`](remora_kernel::Placement).
    pub fn local_kernels(&self) -> &KernelSet {
        &self.kernels.set
    }
}

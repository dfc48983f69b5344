//! Kernels of one's own, as WebAssembly modules.

use std::borrow::Cow;
use std::marker::PhantomData;

use remora_kernel::Status;
use remora_real::Error;
use remora_wasm::{DeployedModule, Isolation, ModuleLimits};

use crate::{Client, FromReply, Result, ToParams, TypedCall};

/// How a module is deployed: by default with [`ModuleLimits::default`], with memory that stays from one call to the
/// next, and until the node ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModuleOptions {
    /// What one call may use up.
    pub limits: ModuleLimits,
    /// What becomes of the module's own memory between calls.
    pub isolation: Isolation,
    /// Whether a node that has a directory for kernels deploys it again when it starts again.
    pub keep: bool,
}

impl ModuleOptions {
    /// With other limits.
    #[must_use]
    pub fn limits(self, limits: ModuleLimits) -> Self {
        Self { limits, ..self }
    }

    /// Each call starts with fresh memory, so that no call sees anything of another.
    #[must_use]
    pub fn fresh(self) -> Self {
        Self { isolation: Isolation::Fresh, ..self }
    }

    /// It is there again after a restart of the node.
    #[must_use]
    pub fn keep(self) -> Self {
        Self { keep: true, ..self }
    }
}

impl From<ModuleLimits> for ModuleOptions {
    fn from(limits: ModuleLimits) -> Self {
        Self { limits, ..Self::default() }
    }
}

/// A kernel at a node that takes `P` and replies `R`: what [`Client::deploy`] and [`Client::kernel`] give. Any client of
/// the node may use it.
#[derive(Clone, Debug)]
pub struct Deployed<P: ?Sized, R> {
    module: DeployedModule,
    types: PhantomData<fn(&P) -> R>,
}

impl<P: ToParams + ?Sized, R: FromReply> Deployed<P, R> {
    pub(crate) fn new(module: DeployedModule) -> Self {
        Self { module, types: PhantomData }
    }

    /// What the node knows of it.
    pub fn module(&self) -> &DeployedModule {
        &self.module
    }

    /// A call of it, for [`At::call`](crate::At::call).
    pub fn with<'a>(&self, params: &'a P) -> DeployedCall<'a, P, R> {
        DeployedCall { op: self.module.op, params, payload: None, reply: PhantomData }
    }
}

/// A call of a [`Deployed`] kernel.
#[derive(Clone, Copy, Debug)]
pub struct DeployedCall<'a, P: ?Sized, R> {
    op: u64,
    params: &'a P,
    payload: Option<&'a [u8]>,
    reply: PhantomData<fn() -> R>,
}

impl<'a, P: ?Sized, R> DeployedCall<'a, P, R> {
    /// With a payload stream, for a kernel that reads one. It then runs on the NIC.
    #[must_use]
    pub fn payload(self, payload: &'a [u8]) -> Self {
        Self { payload: Some(payload), ..self }
    }
}

impl<P: ToParams + ?Sized, R: FromReply> TypedCall for DeployedCall<'_, P, R> {
    type Reply = R;

    fn op(&self) -> u64 {
        self.op
    }

    fn encode(&self, params: &mut Vec<u8>) {
        self.params.put(params);
    }

    fn payload(&self) -> Option<Cow<'_, [u8]>> {
        self.payload.map(Cow::from)
    }

    fn decode(&self, status: Status, reply: &[u8]) -> Option<R> {
        match status {
            Status::Ok => R::from_reply(reply),
            Status::NotFound => R::not_found(),
            _ => None,
        }
    }
}

/// The binary form of a module.
pub(crate) fn binary<'m>(name: &str, module: &'m [u8]) -> Result<Cow<'m, [u8]>> {
    remora_wasm::compiler::module_of_text(module).map_err(|e| Error::Argument(format!("kernel {name}: {e}")))
}

impl Client {
    /// Deploys a WebAssembly module, binary or text, at the node and at this client: from then on it runs in every
    /// place. A module of the same name is replaced between two calls. Its parameters are a `P` and its reply an `R`.
    ///
    /// ```
    /// use remora::{Client, ModuleLimits, Node, Placement};
    ///
    /// # const SUM: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/template.wat"));
    /// # fn main() -> remora::Result<()> {
    /// let node = Node::local()?;
    /// let mut client = Client::connect(node.address())?;
    ///
    /// // SUM is `kernels/template.wat`: it adds words. Parameters: key u32, count u32, address u64; reply: u64.
    /// let sum = client.deploy::<(u32, u32, u64), u64>("sum", SUM, ModuleLimits::default())?;
    ///
    /// let words = client.alloc(24)?;
    /// client.write(&words, 0, &[1u64, 2, 39].map(u64::to_le_bytes).concat())?;
    /// for place in Placement::REAL {
    ///     assert_eq!(client.at(place).call(sum.with(&(words.key, 3, words.va)))?, 42);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn deploy<P: ToParams + ?Sized, R: FromReply>(
        &mut self,
        name: &str,
        module: impl AsRef<[u8]>,
        options: impl Into<ModuleOptions>,
    ) -> Result<Deployed<P, R>> {
        let ModuleOptions { limits, isolation, keep } = options.into();
        let bytes = binary(name, module.as_ref())?;
        let client = self.idle()?;
        let deployed = client.deploy_kernel(name, &bytes, limits, isolation, keep)?;
        // Here it has the op-code that it has there; whoever had that one before is there no more.
        let here = client.local_kernels();
        for stale in here.list().into_iter().filter(|stale| stale.op == deployed.op || stale.name == name) {
            let _ = here.remove(&stale.name);
        }
        here.deploy_at(Some(deployed.op), name, &bytes, limits, isolation)
            .map_err(|e| Error::Argument(format!("kernel {name} at the client: {e}")))?;
        Ok(Deployed::new(deployed))
    }

    /// A kernel that somebody has deployed at the node. It runs there; to run it at this client too, deploy it.
    pub fn kernel<P: ToParams + ?Sized, R: FromReply>(&mut self, name: &str) -> Result<Deployed<P, R>> {
        let found = self.kernels()?.into_iter().find(|module| module.name == name);
        found.map(Deployed::new).ok_or_else(|| {
            Error::Argument(format!("the node has no kernel {name:?}: deploy it, or look at `remora kernel list`"))
        })
    }

    /// The modules that are deployed at the node.
    pub fn kernels(&mut self) -> Result<Vec<DeployedModule>> {
        self.idle()?.list_kernels()
    }

    /// Removes a module from the node, and from this client. Calls that run go on.
    pub fn remove_kernel(&mut self, name: &str) -> Result<()> {
        let client = self.idle()?;
        client.remove_kernel(name)?;
        // It may not have been deployed here.
        let _ = client.local_kernels().remove(name);
        Ok(())
    }
}

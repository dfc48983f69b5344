//! The node's own calls: memory, modules, sketches, and what extensions add.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use remora_kernel::{Call, Status};
use remora_memory::{Pd, Region, Registry};
use remora_nic::{ALL_REMOTE, Qpn};
use remora_service::control::{Extension, op, u32_at, u64_at};
use remora_service::{KvBlocks, Ledger, Reclaimed};
use remora_wasm::DeployedModule;

use super::modules::{self, Modules};
use super::owners::Owners;
use super::sketches::Sketches;
use super::watch::{NodeEvent, Told};
use crate::Deployers;
use crate::device::Device;
use crate::module_calls::{self, DeployParams, RemoveParams};

/// Answers the node's own calls.
pub(super) struct Control {
    engines: Vec<Device>,
    ledger: Ledger,
    /// Calls that are answered when the region with their key is gone.
    frees: HashMap<u32, Call>,
    /// What clients brought; a call waits while its module is compiled.
    modules: Modules<(Call, IpAddr)>,
    deployers: Deployers,
    /// Sketches that clients attached to regions.
    sketches: Sketches,
    owners: Owners,
    extensions: Vec<Box<dyn Extension>>,
    told: Told,
    /// The keys of regions that are gone, for who has something in them.
    released: Vec<u32>,
}

/// Why a call is refused.
pub(super) enum Denial {
    /// It names memory that its caller may not reach: all that is wrong with a key or an address is this, and it counts
    /// against the caller's connection.
    Access,
    /// The reason as text.
    Why(String),
}

impl From<String> for Denial {
    fn from(why: String) -> Self {
        Denial::Why(why)
    }
}

impl From<&str> for Denial {
    fn from(why: &str) -> Self {
        Denial::Why(why.into())
    }
}

/// The region in which a call names `len` bytes, at least one, by key and address.
pub(super) fn reach(registry: &Registry, pd: Pd, (key, va): (u32, u64), len: u64) -> Result<Arc<Region>, Denial> {
    let region = registry.lookup(key).filter(|region| len > 0 && region.check(pd, va, len, ALL_REMOTE).is_ok());
    region.ok_or(Denial::Access)
}

/// A call that is answered.
pub(super) struct Answered {
    pub call: Call,
    /// How it ended, or why it is refused.
    pub outcome: Result<Status, String>,
}

impl Control {
    pub fn new(
        engines: Vec<Device>,
        (ledger, blocks): (Ledger, Arc<Mutex<KvBlocks>>),
        modules: Modules<(Call, IpAddr)>,
        deployers: Deployers,
        extensions: Vec<Box<dyn Extension>>,
        told: Told,
    ) -> Self {
        let (frees, sketches) = (HashMap::new(), Sketches::default());
        let owners = Owners::new(ledger.registry().clone(), ledger.pd(), blocks);
        Self { engines, ledger, frees, modules, deployers, sketches, owners, extensions, told, released: Vec::new() }
    }

    /// The client with this number has connected.
    pub fn client_came(&mut self, connection: Qpn, client: u32) {
        self.ledger.open(connection, client);
    }

    /// A client is gone, and nothing of it arrives any more: its memory goes too, by and by.
    pub fn client_gone(&mut self, client: Qpn) {
        self.sketches.forget(&self.engines, client);
        self.ledger.close(client);
        self.extensions.iter_mut().for_each(|extension| extension.client_gone(client));
        self.owners.gone(client);
    }

    /// Ends what clients that are gone left half done, a step at a time. Returns whether there is more.
    pub fn recover(&mut self) -> bool {
        self.owners.poll()
    }

    fn region_released(&mut self, key: u32) {
        self.owners.released(key);
        self.sketches.released(&self.engines, key);
        self.extensions.iter_mut().for_each(|extension| extension.region_released(key));
        self.released.push(key);
    }

    /// Takes memory back of which a client needs none without what it gave back already.
    pub fn give_back(&mut self, client: Qpn, key: u32) {
        if self.ledger.free(client, key).is_ok() {
            self.region_released(key);
        }
    }

    /// Gives a piece of memory back to the system. `None` if there is none; else the call that waited for it, if one did
    /// and this was the last piece.
    pub fn reclaim(&mut self) -> Option<Option<Answered>> {
        let Reclaimed { key, revoked, gone } = self.ledger.reclaim()?;
        if revoked {
            self.region_released(key);
        }
        let call = if gone { self.frees.remove(&key) } else { None };
        Some(call.map(|call| Answered { call, outcome: Ok(Status::Ok) }))
    }

    /// The keys of regions that are gone since the last time: kernels are to forget them, and rings in them end.
    pub fn take_released(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.released)
    }

    /// The account of what clients have.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The account, to lend from.
    pub fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// Whether a module is being compiled.
    pub fn is_busy(&self) -> bool {
        self.modules.is_busy()
    }

    /// The node stops: nothing of it goes on by itself.
    pub fn stop(&mut self) {
        self.extensions.clear();
    }

    /// Answers a call of the client at `address`. `None` for one that is answered later, by [`poll`](Self::poll).
    pub fn call(&mut self, address: IpAddr, mut call: Call) -> Option<Answered> {
        let client = Qpn(call.qpn);
        let op = call.op;
        let result = match call.op {
            op::ALLOC => self.alloc(client, &mut call).map_err(Denial::Why),
            op::FREE => return self.free(client, call),
            op::CPU => {
                call.reply.extend_from_slice(&crate::sys::process_cpu_ns().to_le_bytes());
                Ok(())
            }
            op::PATH => {
                let len = u32_at(&call.params, 0).unwrap_or(0).min(call.reply_limit);
                call.reply.resize(len as usize, 0);
                Ok(())
            }
            op::KERNEL_DEPLOY => return self.deploy(address, call),
            op::KERNEL_LIST => {
                let list = self.modules.kernels().list();
                list.iter().for_each(|entry| module_calls::encode_entry(&mut call.reply, entry));
                Ok(())
            }
            op::KERNEL_REMOVE => self.remove(address, &call).map_err(Denial::Why),
            op::SKETCH_START if self.ledger.is_open(client) => {
                let memory = (&**self.ledger.registry(), self.ledger.pd());
                self.sketches.start(&self.engines, memory, client, &call.params)
            }
            op::TREE_OWN if self.ledger.is_open(client) => self.owners.take(&mut call),
            op::SKETCH_STOP => self.sketches.stop(&self.engines, client, &call.params).map_err(Denial::Why),
            other => match self.extensions.iter_mut().find(|extension| extension.ops().contains(&other)) {
                Some(extension) => extension.call(client, &self.ledger, &mut call).map_err(Denial::Why),
                None => return Some(Answered { call, outcome: Ok(Status::UnknownOp) }),
            },
        };
        let outcome = match result {
            Ok(()) => Ok(Status::Ok),
            Err(Denial::Access) => Ok(Status::AccessDenied),
            Err(Denial::Why(why)) => Err(why),
        };
        match (op, &outcome) {
            (op::ALLOC, Err(why)) => self.refused(address, "have the memory", why),
            (op::KERNEL_REMOVE, Err(why)) => self.refused(address, "remove the kernel", why),
            _ => {}
        }
        Some(Answered { call, outcome })
    }

    fn refused(&self, client: IpAddr, what: &'static str, why: &str) {
        self.told.tell(|| NodeEvent::Refused { client, what, why: why.into() });
    }

    /// The call that waited for its module, once that is compiled.
    pub fn poll(&mut self) -> Option<Answered> {
        let ((mut call, client), outcome) = self.modules.poll()?;
        match &outcome {
            Ok(DeployedModule { name, op, version, .. }) => {
                let (name, op, version) = (name.clone(), *op, *version);
                self.told.tell(|| NodeEvent::Deployed { client, name, op, version });
            }
            Err(why) => self.refused(client, "deploy the kernel", why),
        }
        let outcome = outcome.map(|DeployedModule { op, version, .. }| {
            self.engines.iter().for_each(|engine| engine.lock().nic().deploy(op));
            call.reply.extend_from_slice(&op.to_le_bytes());
            call.reply.extend_from_slice(&version.to_le_bytes());
            Status::Ok
        });
        Some(Answered { call, outcome })
    }

    /// Starts to compile a module.
    fn deploy(&mut self, address: IpAddr, call: Call) -> Option<Answered> {
        let refused = match self.fetch(address, &call) {
            Ok((params, bytes)) => {
                let same = |(a, _): &(Call, IpAddr), (b, _): &(Call, IpAddr)| a.client == b.client;
                self.modules.deploy(params, bytes, (call, address), same).err().map(|((call, _), why)| (call, why))
            }
            Err(Denial::Access) => return Some(Answered { call, outcome: Ok(Status::AccessDenied) }),
            Err(Denial::Why(why)) => Some((call, why)),
        };
        refused.map(|(call, why)| {
            self.refused(address, "deploy a kernel", &why);
            Answered { call, outcome: Err(why) }
        })
    }

    /// The module that a call is to deploy, if its client may.
    fn fetch(&self, address: IpAddr, call: &Call) -> Result<(DeployParams, Vec<u8>), Denial> {
        let params = DeployParams::decode(&call.params).ok_or("the parameters are cut short")?;
        reach(self.ledger.registry(), self.ledger.pd(), (params.key, params.va), params.len.into())?;
        let bytes = modules::fetch(self.ledger.registry(), self.ledger.pd(), &params)?;
        let proof = params.proof.as_ref().map(|proof| &proof[..]);
        self.deployers.check(address, &params.proven(&params.limits(), &bytes), proof)?;
        Ok((params, bytes))
    }

    fn remove(&mut self, address: IpAddr, call: &Call) -> Result<(), String> {
        let params = RemoveParams::decode(&call.params).ok_or("the parameters are cut short")?;
        self.deployers.check(address, &params.proven(), params.proof.as_ref().map(|proof| &proof[..]))?;
        let op = self.modules.remove(&params.name)?;
        self.engines.iter().for_each(|engine| engine.lock().nic().undeploy(op));
        self.told.tell(|| NodeEvent::Removed { client: address, name: params.name });
        Ok(())
    }

    fn alloc(&mut self, client: Qpn, call: &mut Call) -> Result<(), String> {
        let len = u64_at(&call.params, 0).ok_or("the length is missing")?;
        let region = match call.params.get(8) {
            Some(1) => self.ledger.alloc_growing(client, len),
            _ => self.ledger.alloc(client, len),
        };
        let region = region.map_err(|e| e.to_string())?;
        call.reply.extend_from_slice(&region.va().to_le_bytes());
        call.reply.extend_from_slice(&region.key().to_le_bytes());
        Ok(())
    }

    /// Takes memory back; the answer waits until the system has it.
    fn free(&mut self, client: Qpn, call: Call) -> Option<Answered> {
        let key = u32_at(&call.params, 0).ok_or_else(|| "the key is missing".to_string());
        let freed = key.and_then(|key| self.ledger.free(client, key).map(|()| key).map_err(|e| e.to_string()));
        match freed {
            Ok(key) => {
                self.region_released(key);
                self.frees.insert(key, call);
                None
            }
            Err(why) => Some(Answered { call, outcome: Err(why) }),
        }
    }
}

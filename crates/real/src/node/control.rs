//! The node's own calls: memory, modules, sketches, and what extensions add.

use remora_kernel::{Call, Status};
use remora_nic::{Nic, Qpn};
use remora_service::Ledger;
use remora_service::control::{Extension, op, u32_at, u64_at};
use remora_wasm::DeployedModule;

use super::modules::Modules;
use super::sketches::Sketches;
use crate::device::Device;
use crate::module_calls::{self, DeployParams};

/// Answers the node's own calls.
pub(super) struct Control {
    ledger: Ledger,
    /// What clients brought; a call waits while its module is compiled.
    modules: Modules<Call>,
    /// Sketches that clients attached to regions.
    sketches: Sketches,
    extensions: Vec<Box<dyn Extension>>,
    /// Memory was given back since this was last asked.
    released: bool,
}

/// A call that is answered.
pub(super) struct Answered {
    pub call: Call,
    /// How it ended, or why it is refused.
    pub outcome: Result<Status, String>,
}

impl Control {
    pub fn new(ledger: Ledger, modules: Modules<Call>, extensions: Vec<Box<dyn Extension>>) -> Self {
        Self { ledger, modules, sketches: Sketches::default(), extensions, released: false }
    }

    /// A client has connected.
    pub fn client_came(&mut self, client: Qpn) {
        self.ledger.open(client);
    }

    /// A client is gone: its memory goes too.
    pub fn client_gone(&mut self, nic: &mut Nic, client: Qpn) {
        self.sketches.forget(nic, client);
        for key in self.ledger.close(client) {
            self.region_released(nic, key);
        }
        self.extensions.iter_mut().for_each(|extension| extension.client_gone(client));
    }

    fn region_released(&mut self, nic: &mut Nic, key: u32) {
        self.sketches.released(nic, key);
        self.extensions.iter_mut().for_each(|extension| extension.region_released(key));
        self.released = true;
    }

    /// Whether memory was given back since the last time: kernels are to forget it.
    pub fn take_released(&mut self) -> bool {
        std::mem::take(&mut self.released)
    }

    /// Whether a module is being compiled.
    pub fn is_busy(&self) -> bool {
        self.modules.is_busy()
    }

    /// The node stops: nothing of it goes on by itself.
    pub fn stop(&mut self) {
        self.extensions.clear();
    }

    /// Answers a call. `None` for one that is answered later, by [`poll`](Self::poll).
    pub fn call(&mut self, device: &Device, mut call: Call) -> Option<Answered> {
        let client = Qpn(call.qpn);
        let result = match call.op {
            op::ALLOC => self.alloc(client, &mut call),
            op::FREE => self.free(device, client, &call),
            op::CPU => {
                call.reply.extend_from_slice(&crate::sys::process_cpu_ns().to_le_bytes());
                Ok(())
            }
            op::KERNEL_DEPLOY => return self.deploy(call),
            op::KERNEL_LIST => {
                let list = self.modules.kernels().list();
                list.iter().for_each(|entry| module_calls::encode_entry(&mut call.reply, entry));
                Ok(())
            }
            op::KERNEL_REMOVE => self.remove(device, &call),
            op::SKETCH_START if self.ledger.is_open(client) => {
                let memory = (&**self.ledger.registry(), self.ledger.pd());
                self.sketches.start(device.lock().nic(), memory, client, &call.params)
            }
            op::SKETCH_STOP => self.sketches.stop(device.lock().nic(), client, &call.params),
            other => match self.extensions.iter_mut().find(|extension| extension.ops().contains(&other)) {
                Some(extension) => extension.call(client, &self.ledger, &mut call),
                None => return Some(Answered { call, outcome: Ok(Status::UnknownOp) }),
            },
        };
        Some(Answered { call, outcome: result.map(|()| Status::Ok) })
    }

    /// The call that waited for its module, once that is compiled.
    pub fn poll(&mut self, nic: &mut Nic) -> Option<Answered> {
        let (mut call, outcome) = self.modules.poll()?;
        let outcome = outcome.map(|DeployedModule { op, version, .. }| {
            nic.deploy(op);
            call.reply.extend_from_slice(&op.to_le_bytes());
            call.reply.extend_from_slice(&version.to_le_bytes());
            Status::Ok
        });
        Some(Answered { call, outcome })
    }

    /// Starts to compile a module.
    fn deploy(&mut self, call: Call) -> Option<Answered> {
        let refused = match DeployParams::decode(&call.params) {
            Some(params) => {
                let (registry, pd) = (self.ledger.registry(), self.ledger.pd());
                self.modules.deploy(registry, pd, params, call).err()
            }
            None => Some((call, "the parameters are cut short".into())),
        };
        refused.map(|(call, why)| Answered { call, outcome: Err(why) })
    }

    fn remove(&mut self, device: &Device, call: &Call) -> Result<(), String> {
        let op = self.modules.remove(&String::from_utf8_lossy(&call.params))?;
        device.lock().nic().undeploy(op);
        Ok(())
    }

    fn alloc(&mut self, client: Qpn, call: &mut Call) -> Result<(), String> {
        let len = u64_at(&call.params, 0).ok_or("the length is missing")?;
        let region = self.ledger.alloc(client, len).map_err(|e| e.to_string())?;
        call.reply.extend_from_slice(&region.va().to_le_bytes());
        call.reply.extend_from_slice(&region.key().to_le_bytes());
        Ok(())
    }

    fn free(&mut self, device: &Device, client: Qpn, call: &Call) -> Result<(), String> {
        let key = u32_at(&call.params, 0).ok_or("the key is missing")?;
        self.ledger.free(client, key).map_err(|e| e.to_string())?;
        self.region_released(device.lock().nic(), key);
        Ok(())
    }
}

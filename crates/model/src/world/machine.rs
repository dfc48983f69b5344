//! One machine of a fabric: its hardware, and the memory that its NICs have registered.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use remora_memory::{Access, Buffer, Pd, Region, Registry};

use super::hardware::Hardware;
use super::{MachineSpec, WorldError};

/// A machine.
pub struct Machine {
    /// Which one of its fabric.
    pub index: u16,
    /// What everything takes its time in.
    pub hardware: Rc<RefCell<Hardware>>,
    /// Its memory: a region has one key at all its NICs.
    pub registry: Arc<Registry>,
    /// The protection domain of all its queue pairs.
    pub pd: Pd,
    /// Its NICs, by their numbers in the fabric.
    pub nics: std::ops::Range<u16>,
    /// Addresses of regions to be.
    next_va: u64,
}

impl Machine {
    /// An idle machine whose first NIC has this number. The seed makes its keys.
    pub fn new(index: u16, first_nic: u16, spec: &MachineSpec, seed: u64) -> Self {
        let registry = Arc::new(Registry::new(self::seed(index, seed)));
        Self {
            index,
            hardware: Rc::new(RefCell::new(Hardware::new(spec))),
            pd: registry.alloc_pd(),
            registry,
            nics: first_nic..first_nic + spec.nics() as u16,
            next_va: 1 << 32,
        }
    }

    /// Zeroed memory, registered with all rights, at the same address in every run.
    pub fn alloc(&mut self, len: usize) -> Result<(Buffer, Arc<Region>), WorldError> {
        self.place(Buffer::anonymous(len.max(8))?, len)
    }

    /// The same, of which only pages that are written take memory.
    pub fn alloc_sparse(&mut self, len: usize) -> Result<(Buffer, Arc<Region>), WorldError> {
        self.place(Buffer::shared(len.max(8))?.0, len)
    }

    fn place(&mut self, buffer: Buffer, len: usize) -> Result<(Buffer, Arc<Region>), WorldError> {
        let va = self.next_va;
        self.next_va += (len as u64).next_multiple_of(remora_memory::PAGE_BYTES as u64);
        let region = self.register(&buffer, va, len)?;
        Ok((buffer, region))
    }

    /// Memory at an address of the caller's.
    pub fn register(&mut self, buffer: &Buffer, va: u64, len: usize) -> Result<Arc<Region>, WorldError> {
        let access = Access::LOCAL_WRITE | remora_nic::ALL_REMOTE;
        let region = self.registry.register(self.pd, buffer, 0, len, Some(va), access)?;
        self.hardware.borrow_mut().board.register(va, len as u64);
        Ok(region)
    }
}

/// A seed for the machine or NIC of this number.
pub(super) fn seed(index: u16, seed: u64) -> [u8; 32] {
    let [high, low] = index.to_be_bytes();
    let mut bytes = [low.wrapping_add(1); 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[31] = bytes[31].wrapping_add(high);
    bytes
}

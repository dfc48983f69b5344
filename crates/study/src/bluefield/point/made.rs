//! Trees whose nodes are made when somebody reaches for them, and the kernels that work on them.
//!
//! A tree of 256 M keys takes gigabytes. Of those a run reaches some thousand nodes, so that only these are written into the
//! node's memory, as they would have been loaded, just before the access. All else is as ever: the very kernels and verbs
//! work on them, and what is written stays.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use remora_kernel::btree::{Plan, Shape, TreeRef};
use remora_kernel::{Builtins, Call, Fault, Kernel, Limits, Memory, Status};
use remora_memory::Region;
use remora_model::world::{Fabric, WorldError};
use remora_store::hash::mix;

/// Part of a node that is filled, in percent: random inserts leave 67 to 75.
const FILL: u8 = 70;
/// The op-code of a kernel that does nothing.
pub const NOTHING: u64 = 200;
/// Bits between the keys of two pairs.
const STEP: u32 = 8;

/// A pair of a tree: its key and its value, made from a seed.
pub fn pair(number: u64, seed: u64) -> (u64, u64) {
    let key = number << STEP | (mix(number ^ seed) & 0xff);
    (key, mix(key ^ seed))
}

/// The shape of trees with nodes of so many bytes.
pub fn shape(node_bytes: u64) -> Shape {
    Shape { node_bytes: node_bytes as usize, fill: FILL }
}

/// A tree in the memory of a machine.
pub struct MadeTree {
    /// Where it is.
    pub at: TreeRef,
    /// Its nodes.
    pub plan: Plan,
    region: Arc<Region>,
    /// The first of its pairs, and the seed of all.
    first: u64,
    seed: u64,
    /// A bit for each slot that has been made.
    made: Vec<u64>,
    image: Vec<u8>,
}

impl MadeTree {
    /// The pairs from `first` on, so many, in a machine's memory.
    pub fn new(
        fabric: &mut Fabric,
        machine: u16,
        (first, pairs): (u64, u64),
        (node_bytes, seed): (u64, u64),
    ) -> Result<Self, WorldError> {
        let plan = Plan::new(shape(node_bytes), pairs);
        // Updates make no nodes.
        let slots = plan.slots();
        let region = fabric.alloc_sparse(machine, slots * node_bytes)?;
        let at = TreeRef {
            base: region.va(),
            key: region.key(),
            slots: slots as u32,
            node_bytes: node_bytes as u16,
            owners: 0,
            owner: 0,
        };
        let (made, image) = (vec![0; slots.div_ceil(64) as usize], vec![0; node_bytes as usize]);
        Ok(Self { at, plan, region, first, seed, made, image })
    }

    /// The address of a slot.
    pub fn va(&self, slot: u32) -> u64 {
        self.at.base + u64::from(slot) * u64::from(self.at.node_bytes)
    }

    /// Makes the nodes that lie in these bytes, unless they have been made.
    fn want(&mut self, va: u64, len: usize) {
        let Some(offset) = va.checked_sub(self.at.base) else { return };
        let bytes = u64::from(self.at.node_bytes);
        for slot in offset / bytes..=(offset + len.max(1) as u64 - 1) / bytes {
            let Some(word) = self.made.get_mut((slot / 64) as usize) else { return };
            if slot >= u64::from(self.at.slots) || *word & 1 << (slot % 64) != 0 {
                continue;
            }
            *word |= 1 << (slot % 64);
            let (first, seed) = (self.first, self.seed);
            self.plan.node(slot as u32, |number| pair(first + number, seed), &mut self.image);
            // In bounds: the tree has this slot.
            let _ = self.region.write(self.at.base + slot * bytes, &self.image);
        }
    }
}

/// All trees of a run.
pub type Made = Rc<RefCell<Vec<MadeTree>>>;

/// The built-in kernels over such trees, and one that does nothing.
#[derive(Clone, Default)]
pub struct MadeKernels(pub Made);

impl Kernel for MadeKernels {
    async fn run<M: Memory>(&self, memory: &M, call: &mut Call) -> Status {
        match call.op {
            NOTHING => Status::Ok,
            _ => Builtins.run(&MadeMemory { memory, made: &self.0 }, call).await,
        }
    }
}

/// Memory in which nodes are made. Clients keep no copies there: the paper's read each node anew.
struct MadeMemory<'a, M> {
    memory: &'a M,
    made: &'a Made,
}

impl<M> MadeMemory<'_, M> {
    fn want(&self, key: u32, va: u64, len: usize) {
        let mut trees = self.made.borrow_mut();
        if let Some(tree) = trees.iter_mut().find(|tree| tree.at.key == key && tree.at.base <= va) {
            tree.want(va, len);
        }
    }
}

impl<M: Memory> Memory for MadeMemory<'_, M> {
    async fn read(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.want(key, va, out.len());
        self.memory.read(key, va, out).await
    }

    async fn write(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        self.want(key, va, data.len());
        self.memory.write(key, va, data).await
    }

    async fn write_in_order(&self, key: u32, pieces: &[(u64, &[u8])]) -> Result<(), Fault> {
        pieces.iter().for_each(|(va, data)| self.want(key, *va, data.len()));
        self.memory.write_in_order(key, pieces).await
    }

    async fn compare_swap(&self, key: u32, va: u64, expect: u64, new: u64) -> Result<u64, Fault> {
        self.want(key, va, 8);
        self.memory.compare_swap(key, va, expect, new).await
    }

    async fn fetch_add(&self, key: u32, va: u64, n: u64) -> Result<u64, Fault> {
        self.want(key, va, 8);
        self.memory.fetch_add(key, va, n).await
    }

    fn set_limits(&self, limits: Limits) {
        self.memory.set_limits(limits);
    }

    fn outlives_caller(&self) -> bool {
        self.memory.outlives_caller()
    }
}

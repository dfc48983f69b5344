//! Accesses of memory that requests to Remora's key-value store make: counted in this process, as its writers run at a node
//! and nowhere else.

use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use remora_kernel::{Builtins, Call, Fault, HostMemory, Kernel, Limits, Memory, Status};
use remora_memory::{Access, Buffer, Pd, Region, Registry};
use remora_store::{Arena, Place};
use serde::Serialize;

use super::KvAsk;
use super::ring::{encode, make};
use crate::StudyError;

/// Pairs by which accesses are counted.
const COUNTED: u64 = 2000;

/// Accesses of memory for each request, on average: each a round trip for kernels that are far from it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Accesses {
    /// Of a GET.
    pub get: f64,
    /// Of a PUT that adds a key.
    pub add: f64,
    /// Of a PUT that changes a value.
    pub change: f64,
}

/// Memory of this process.
struct Own {
    registry: Arc<Registry>,
    pd: Pd,
    regions: Vec<Arc<Region>>,
}

fn no_memory(error: impl std::fmt::Display) -> StudyError {
    StudyError::Failed(format!("no memory for a store: {error}"))
}

impl Arena for Own {
    type Error = StudyError;

    fn alloc(&mut self, len: u64) -> Result<Place, StudyError> {
        let buffer = Buffer::anonymous(len as usize).map_err(no_memory)?;
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::LOCAL_WRITE;
        let region = self.registry.register(self.pd, &buffer, 0, len as usize, None, access).map_err(no_memory)?;
        let place = Place { va: region.va(), key: region.key() };
        self.regions.push(region);
        Ok(place)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), StudyError> {
        match self.regions.iter().find(|region| region.key() == at.key) {
            Some(region) => region.write(at.va, bytes).map_err(no_memory),
            None => Err(no_memory("it was not allocated")),
        }
    }
}

/// Memory that counts what is done to it.
struct CountedMemory {
    memory: HostMemory,
    accesses: Cell<u64>,
}

impl CountedMemory {
    fn count(&self) -> &HostMemory {
        self.accesses.set(self.accesses.get() + 1);
        &self.memory
    }
}

impl Memory for CountedMemory {
    async fn read(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.count().read(key, va, out).await
    }

    async fn write(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        self.count().write(key, va, data).await
    }

    async fn compare_swap(&self, key: u32, va: u64, expect: u64, new: u64) -> Result<u64, Fault> {
        self.count().compare_swap(key, va, expect, new).await
    }

    async fn fetch_add(&self, key: u32, va: u64, n: u64) -> Result<u64, Fault> {
        self.count().fetch_add(key, va, n).await
    }
}

impl Accesses {
    /// Counts them in a store of its own.
    pub fn count(seed: u64) -> Result<Self, StudyError> {
        let registry = Arc::new(Registry::new([7; 32]));
        let pd = registry.alloc_pd();
        let mut own = Own { registry: registry.clone(), pd, regions: Vec::new() };
        let mut kv = make(&mut own, COUNTED, seed)?;
        let memory = HostMemory::new(registry, pd, false, Limits::default());
        let memory = CountedMemory { memory, accesses: Cell::new(0) };
        let mut params = Vec::new();
        let mut count = |version: Option<u32>| -> Result<f64, StudyError> {
            let before = memory.accesses.get();
            for number in 0..COUNTED {
                let op = encode(&mut kv, KvAsk { number, version }, &mut params)?;
                memory.memory.set_limits(Limits::default());
                let mut call = Call::new(op, &params, 1 << 16);
                let mut run = pin!(Builtins.run(&memory, &mut call));
                let status = loop {
                    if let Poll::Ready(status) = run.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                        break status;
                    }
                };
                if status != Status::Ok {
                    return Err(StudyError::Failed(format!("a request ends with {status:?}")));
                }
            }
            Ok((memory.accesses.get() - before) as f64 / COUNTED as f64)
        };
        let (add, change, get) = (count(Some(0))?, count(Some(1))?, count(None)?);
        Ok(Self { get, add, change })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_take_the_accesses_that_the_layout_says() {
        let Accesses { get, add, change } = Accesses::count(1).expect("counted");
        // A bucket and a pair; a few buckets overflow, or hold what only looks alike.
        assert!((2.0..2.5).contains(&get), "{get}");
        assert!(add > get && change > get && add < 16.0 && change < 16.0, "{add} {change}");
    }
}

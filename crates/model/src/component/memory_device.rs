//! Memory without a machine, which several machines reach over a coherent link each, as a CXL memory pool.
//!
//! Addresses say which device memory belongs to: the devices of a world share a part of the address space in which no
//! machine has memory of its own.

use super::memory::{MemoryChannels, MemoryParams};
use crate::resource::{Channel, Usage};
use crate::time::Ps;

/// What a device is like.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryDeviceParams {
    /// What its links add to a load, both ways together.
    pub link_ps: u64,
    /// Bytes a second of each link, each way.
    pub link_bytes_per_s: f64,
    /// The memory behind them, which all share.
    pub memory: MemoryParams,
    /// Links, one for each machine that reaches it.
    pub links: usize,
}

/// A device.
#[derive(Clone, Debug)]
pub struct MemoryDevice {
    /// Data towards a machine, and away from it.
    links: Vec<(Channel, Channel)>,
    latency: Ps,
    memory: MemoryChannels,
}

/// Where the devices' memory begins, and the bytes that each has room for.
const BASE: u64 = 1 << 46;
const ROOM: u64 = 1 << 40;

/// Where the memory of a device begins.
pub fn device_base(device: usize) -> u64 {
    BASE + device as u64 * ROOM
}

/// The number of the device that has this address, if one has.
#[inline]
pub fn device_of(va: u64) -> Option<usize> {
    va.checked_sub(BASE).map(|offset| (offset / ROOM) as usize)
}

impl MemoryDevice {
    /// An idle device.
    pub fn new(params: &MemoryDeviceParams) -> Self {
        let link = Channel::new(params.link_bytes_per_s);
        Self {
            links: vec![(link.clone(), link); params.links],
            latency: Ps(params.link_ps),
            memory: MemoryChannels::new(&params.memory),
        }
    }

    /// Reads bytes over a link: when the first line and the last are at the machine.
    pub fn read(&mut self, link: usize, at: Ps, address: u64, bytes: u64) -> (Ps, Ps) {
        let there = self.memory.read(at, address, bytes);
        let (first, last) = self.links[link].0.pass(there, bytes);
        (first + self.latency, last + self.latency)
    }

    /// Writes bytes over a link: when that has taken them. Nobody waits for the memory.
    pub fn write(&mut self, link: usize, at: Ps, address: u64, bytes: u64) -> Ps {
        let (_, taken) = self.links[link].1.serve(at, bytes);
        self.memory.write(taken, address, bytes);
        taken
    }

    /// How busy the memory and each link were over `span`, towards the machine and away from it.
    pub fn usage(&self, span: Ps) -> Vec<Usage> {
        let mut all = vec![self.memory.usage("memory device", span)];
        for (inwards, outwards) in &self.links {
            all.push(inwards.usage("link from memory device", span));
            all.push(outwards.usage("link to memory device", span));
        }
        all
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        self.memory.reset();
        for (inwards, outwards) in &mut self.links {
            inwards.reset();
            outwards.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 400 ns and 8 GB/s for each of two machines, in front of memory of 100 ns and 12 GB/s.
    fn device() -> MemoryDevice {
        MemoryDevice::new(&MemoryDeviceParams {
            link_ps: 400_000,
            link_bytes_per_s: 8e9,
            memory: MemoryParams::dram(100_000, 12e9, 1),
            links: 2,
        })
    }

    #[test]
    fn a_load_takes_the_link_and_the_memory() {
        // The line's 64 B cross the link behind the memory: cut through, 8 ns.
        let (first, last) = device().read(1, Ps::ZERO, device_base(0), 64);
        assert!(first <= last && (last.as_ns() - (400.0 + 100.0 + 8.0)).abs() < 6.0, "{first} {last}");
    }

    #[test]
    fn one_machine_is_bound_by_its_link_and_two_by_the_memory() {
        let end = |machines: usize| {
            let mut device = device();
            let mut end = Ps::ZERO;
            for _ in 0..1000 {
                (0..machines).for_each(|link| end = end.max(device.read(link, Ps::ZERO, device_base(0), 4096).1));
            }
            1000.0 * 4096.0 / end.as_ns()
        };
        let (one, two) = (end(1), end(2));
        assert!((one / 8.0 - 1.0).abs() < 0.01, "{one} B/ns each");
        assert!((two / 6.0 - 1.0).abs() < 0.01, "{two} B/ns each");
    }

    #[test]
    fn addresses_tell_devices() {
        assert_eq!((device_of(1 << 32), device_of(device_base(3) + 5)), (None, Some(3)));
    }
}

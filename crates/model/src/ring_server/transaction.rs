//! Replicated transactions on two machines with persistent memory: a log in rings served by accelerators against group
//! verbs of NICs, which take one key after the other (RAMBDA, section VI-C; HyperLoop, SIGCOMM 2018).
//!
//! As in the paper's figure 11 both replicas are in one server, behind its two ports, and a core of the client's NIC passes
//! messages on from one to the other. One transaction is under way at a time.

use super::network::{Port, carry};
use super::{POINTERS, RINGS, SEND_QUEUES};
use crate::component::controller::{CoherenceController, ControllerParams};
use crate::component::device_writes::LineMemory;
use crate::component::nvm::Nvm;
use crate::platform::Platform;
use crate::time::Ps;

/// Who replicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replicator {
    /// The NICs, by verbs for the whole group that change one key; cores of the cards stand for their firmware.
    GroupVerbs,
    /// Accelerators, by a log in the rings: all keys in one pass.
    Accelerators,
}

/// A transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Keys that it reads.
    pub reads: u64,
    /// Keys that it writes.
    pub writes: u64,
    /// Bytes of a value.
    pub bytes: u64,
}

/// Bytes of a tuple beside its data, and of the name of a key that is read.
const TUPLE: u64 = 8;
/// Bytes of a line, and of a pointer.
const LINE: u64 = 64;
const POINTER: u64 = 4;
/// Replicas.
const REPLICAS: u64 = 2;

/// Machines in which one transaction after the other runs.
struct Chain<'a> {
    platform: &'a Platform,
    client: Port,
    server: Port,
    controller: CoherenceController,
    nvm: Nvm,
    persist: Ps,
    forward: Ps,
}

/// From a client's first post to its last reply; `None` if the platform lacks what it takes.
pub fn latency(platform: &Platform, by: Replicator, transaction: Transaction) -> Option<Ps> {
    let (nic, nvm, costs) = (platform.nic.as_ref()?, platform.nvm.as_ref()?, platform.ring_server.as_ref()?);
    let params = ControllerParams::new(platform.accel.as_ref()?, platform.coherence_controller.as_ref()?);
    let mut chain = Chain {
        platform,
        client: Port::new(nic),
        server: Port::new(nic),
        controller: CoherenceController::new(&params),
        nvm: Nvm::new(&nvm.into()),
        persist: Ps(nvm.persist),
        forward: Ps(costs.forward),
    };
    // The first finds no translation.
    let mut run = |at: Ps| match by {
        Replicator::GroupVerbs => chain.by_verbs(at, transaction),
        Replicator::Accelerators => chain.by_accelerators(at, transaction),
    };
    run(Ps::ZERO)?;
    let at = Ps::from_us(10_000);
    Some(run(at)? - at)
}

impl Chain<'_> {
    /// The client's core posts a message: when its NIC has it whole.
    fn post(&mut self, at: Ps, bytes: u64) -> Ps {
        let issued = at + Ps(self.platform.client.issue);
        let seen = self.client.path.ring(issued, 1, bytes, &mut self.client.pcie);
        self.client.begin(seen, bytes)
    }

    /// A reply has reached the client's NIC: when its core has seen it.
    fn seen(&mut self, at: Ps, bytes: u64) -> Ps {
        self.client.pcie.write(at, bytes).1 + Ps(self.platform.client.poll)
    }

    /// One verb after the other: a READ for each key that is read, then a group verb for each that is written.
    fn by_verbs(&mut self, at: Ps, Transaction { reads, writes, bytes }: Transaction) -> Option<Ps> {
        let mut at = at;
        for _ in 0..reads {
            let begun = self.post(at, 0);
            let there = carry(&mut self.client, &mut self.server, begun, 0);
            let loaded = self.nvm.read_line(there, there.0 / LINE) - there - Ps(self.platform.dram.latency);
            let read = self.server.pcie.read(there, bytes).1 + loaded;
            let back = carry(&mut self.server, &mut self.client, read, bytes);
            at = self.seen(back, bytes);
        }
        let card = self.platform.nic_cores.as_ref()?;
        for _ in 0..writes {
            let mut begun = self.post(at, bytes + TUPLE);
            for replica in 1..=REPLICAS {
                let there = carry(&mut self.client, &mut self.server, begun, bytes + TUPLE);
                // The core takes the message, WRITEs and FLUSHes the host's memory, and posts what goes on.
                let durable = there + Ps(card.dispatch) + Ps(card.host_read) + self.persist;
                let on = durable + Ps(card.issue);
                let back = carry(&mut self.server, &mut self.client, on, bytes + TUPLE);
                begun = if replica < REPLICAS { back + self.forward } else { back };
            }
            at = self.seen(begun, TUPLE);
        }
        Some(at)
    }

    /// All keys in one message.
    fn by_accelerators(&mut self, at: Ps, transaction: Transaction) -> Option<Ps> {
        let accel = self.platform.accel.as_ref()?;
        let Transaction { reads, writes, bytes } = transaction;
        let message = writes * (bytes + TUPLE) + reads * TUPLE;
        let mut begun = self.post(at, message);
        let mut carried = message;
        for replica in 1..=REPLICAS {
            // The entry is the log: it goes past the cache, and the pointer behind it.
            let there = carry(&mut self.client, &mut self.server, begun, carried);
            let pointer = carry(&mut self.client, &mut self.server, begun, POINTER);
            let landed = self.server.pcie.write(there, carried).1 + self.persist;
            let heard = landed.max(self.server.pcie.write(pointer, POINTER).1) + Ps(accel.signal);
            let looked = self.controller.fetch(heard, POINTERS, POINTER);
            let entry = self.controller.fetch(looked, RINGS, carried);
            // Reads are carried out once, at the head, all at once.
            let read = match replica {
                1 => (0..reads).map(|key| self.read(entry, key * bytes, bytes)).max().unwrap_or(entry),
                _ => entry,
            };
            if replica == 1 {
                carried += reads * bytes;
            }
            let written = self.controller.write(read, SEND_QUEUES, LINE + carried);
            let on = self.server.begin(written + Ps(accel.doorbell), carried);
            let back = carry(&mut self.server, &mut self.client, on, carried);
            begun = if replica < REPLICAS { back + self.forward } else { back };
        }
        Some(self.seen(begun, carried))
    }

    /// The accelerator reads a value of persistent memory.
    fn read(&mut self, at: Ps, address: u64, bytes: u64) -> Ps {
        let here = self.controller.fetch(at, address, bytes);
        let media = self.nvm.read_line(at, address / LINE) - at;
        here + (media - Ps(self.platform.dram.latency))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(by: Replicator, reads: u64, writes: u64, bytes: u64) -> f64 {
        let platform = Platform::load("rambda").unwrap();
        latency(&platform, by, Transaction { reads, writes, bytes }).unwrap().as_ns() / 1e3
    }

    #[test]
    fn accelerators_take_many_keys_in_about_the_time_of_one_and_group_verbs_one_after_the_other() {
        // A message of 6 KB takes its time on four wires.
        for (bytes, most) in [(64, 1.5), (1024, 2.0)] {
            let (one, six) = (us(Replicator::Accelerators, 0, 1, bytes), us(Replicator::Accelerators, 4, 2, bytes));
            assert!(six < most * one && six < 0.6 * us(Replicator::GroupVerbs, 4, 2, bytes), "{one} and {six} us");
            let (write, both) = (us(Replicator::GroupVerbs, 0, 1, bytes), us(Replicator::GroupVerbs, 0, 2, bytes));
            assert!((both / write - 2.0).abs() < 0.01, "{write} and {both} us");
        }
    }

    #[test]
    fn a_platform_without_persistent_memory_has_none() {
        let platform = Platform::load("strom-10g").unwrap();
        let transaction = Transaction { reads: 0, writes: 1, bytes: 64 };
        assert_eq!(latency(&platform, Replicator::Accelerators, transaction), None);
    }
}

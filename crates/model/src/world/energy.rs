//! Energy: what machines take while they work and while they wait.

use super::fabric::Fabric;
use super::pair::Pair;
use crate::energy::PartPower;

/// Joules of one measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Energy {
    /// Of the clients' processors and NICs.
    pub client: f64,
    /// Of the node's processor, NIC and accelerator.
    pub node: f64,
}

impl Fabric {
    /// Joules of a machine since usage was last forgotten, if it is known what power its parts take: from idle to active
    /// power in proportion to how busy the busiest part of each is. A processor's power is that of all its cores, of which so
    /// many poll and are busy whatever they do.
    pub fn energy(&self, machine: u16, polling: u64) -> Option<f64> {
        let spec = self.spec().machines.get(usize::from(machine))?;
        let (power, hardware) = (spec.power.as_ref()?, self.hardware(machine)?);
        let (usage, span) = (hardware.usage(self.now(), std::iter::empty()), self.now() - hardware.since());
        let busiest = |names: &[&str]| {
            usage.iter().filter(|part| names.contains(&part.name)).map(|part| part.busy).fold(0.0, f64::max)
        };
        let joules = |idle_w: f64, active_w: f64, busy: f64| PartPower { idle_w, active_w }.joules(span, busy);
        let cores = (busiest(&["cores"]) * spec.core.cores as f64).max(polling as f64) / spec.package.max(1) as f64;
        let host = joules(power.host_idle, power.host_active, cores);
        let parts = ["NIC transmit", "NIC receive", "NIC kernels", "NIC cores"];
        let nic = joules(power.nic_idle, power.nic_active, busiest(&parts));
        let parts = ["accelerator", "requests to the coherent link"];
        let accel =
            if spec.accel.is_some() { joules(power.accel_idle, power.accel_active, busiest(&parts)) } else { 0.0 };
        Some(host + nic + accel)
    }
}

impl Pair {
    /// Energy since usage was last forgotten, if the platform says what power its parts take. All threads of clients poll,
    /// and so many cores of the node.
    pub fn energy(&self, polling: u64) -> Option<Energy> {
        let threads = self.spec().client.core.cores;
        let client = (0..self.node()).map(|client| self.fabric.energy(client, threads)).sum::<Option<f64>>()?;
        Some(Energy { client, node: self.fabric.energy(self.node(), polling)? })
    }
}

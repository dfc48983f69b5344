//! Energy: what machines take while they work and while they wait.

use super::pair::Pair;
use crate::platform::Power;
use crate::resource::Usage;

/// Joules of one measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Energy {
    /// Of the client's processor and NIC.
    pub client: f64,
    /// Of the node's processor, NIC and accelerator.
    pub node: f64,
}

impl Pair {
    /// Energy since usage was last reset, if the platform says what power its parts take: from idle to active power in
    /// proportion to how busy the busiest part of each is.
    pub fn energy(&self) -> Option<Energy> {
        let now = self.now();
        let [client, node] = self.hardware();
        let of = |hardware: &super::Hardware, power: &Power, accel: bool| {
            let seconds = (now - hardware.since()).0 as f64 / 1e12;
            let usage = hardware.usage(now);
            let watts = |names: &[&str], idle: f64, active: f64| {
                idle + (active - idle) * names.iter().map(|name| busy(&usage, name)).fold(0.0, f64::max).min(1.0)
            };
            let host = watts(&["host cores"], power.host_idle, power.host_active);
            let nic = &["NIC transmit", "NIC receive", "NIC kernels", "card cores"];
            let nic = watts(nic, power.nic_idle, power.nic_active);
            let accel = if accel {
                watts(&["accelerator", "accelerator requests"], power.accel_idle, power.accel_active)
            } else {
                0.0
            };
            (host + nic + accel) * seconds
        };
        let spec = self.spec();
        let client = of(&client, spec.client.power.as_ref()?, false);
        Some(Energy { client, node: of(&node, spec.node.power.as_ref()?, spec.node.accel.is_some()) })
    }
}

fn busy(usage: &[Usage], name: &str) -> f64 {
    usage.iter().find(|usage| usage.name == name).map_or(0.0, |usage| usage.busy)
}

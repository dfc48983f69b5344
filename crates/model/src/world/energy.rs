//! Energy: what machines take while they work and while they wait.

use super::hardware::Hardware;
use super::pair::Pair;
use crate::energy::Power;
use crate::platform;

/// Joules of one measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Energy {
    /// Of the client's processor and NIC.
    pub client: f64,
    /// Of the node's processor, NIC and accelerator.
    pub node: f64,
}

impl Pair {
    /// Energy since usage was last forgotten, if the platform says what power its parts take: from idle to active power
    /// in proportion to how busy the busiest part of each is.
    pub fn energy(&self) -> Option<Energy> {
        let now = self.now();
        let of = |hardware: &Hardware, power: &platform::Power, accel: bool| {
            let (usage, span) = (hardware.usage(now), now - hardware.since());
            let busiest = |names: &[&str]| {
                usage.iter().filter(|part| names.contains(&part.name)).map(|part| part.busy).fold(0.0, f64::max)
            };
            let joules =
                |idle_w: f64, active_w: f64, names: &[&str]| Power { idle_w, active_w }.joules(span, busiest(names));
            let host = joules(power.host_idle, power.host_active, &["cores"]);
            let parts = ["NIC transmit", "NIC receive", "NIC kernels", "NIC cores"];
            let nic = joules(power.nic_idle, power.nic_active, &parts);
            let parts = ["accelerator", "requests to the coherent link"];
            let accel = if accel { joules(power.accel_idle, power.accel_active, &parts) } else { 0.0 };
            host + nic + accel
        };
        let ([client, node], spec) = (self.hardware(), self.spec());
        let client = of(&client, spec.client.power.as_ref()?, false);
        Some(Energy { client, node: of(&node, spec.node.power.as_ref()?, spec.node.accel.is_some()) })
    }
}

//! Sketches of what is written into a node's regions, taken as it passes the NIC: StRoM's bump in the wire (section 7.2).

use remora_kernel::hll::Tap;
use remora_memory::{Pd, Registry};
use remora_nic::{Qpn, WriteTap};
use remora_service::control::{self, SketchParams};

use super::control::{Denial, reach};
use crate::device::Device;

/// Sketches that a node may have at once: each is looked at in turn when a region or a client goes.
const SKETCHES: usize = 64;

/// A tap that sketches.
struct SketchTap(Tap);

impl WriteTap for SketchTap {
    fn saw(&mut self, offset: u64, data: &[u8]) {
        self.0.saw(offset, data);
    }

    fn ended(&mut self) {
        self.0.settle();
    }
}

/// The sketches that a node's clients asked for. Each engine has a tap for each, as WRITEs may come by any.
#[derive(Default)]
pub(crate) struct Sketches(Vec<(Qpn, SketchParams)>);

impl Sketches {
    /// Attaches a sketch for a client, who reaches both places. It ends with either region and the client.
    pub fn start(
        &mut self,
        engines: &[Device],
        (registry, pd): (&Registry, Pd),
        owner: Qpn,
        params: &[u8],
    ) -> Result<(), Denial> {
        let wanted = SketchParams::decode(params).ok_or("the parameters are cut short")?;
        let len = 1u64.checked_shl(wanted.lg_k.into()).unwrap_or(u64::MAX);
        reach(registry, pd, wanted.region, 1)?;
        let (va, registers) = (wanted.registers.1, reach(registry, pd, wanted.registers, len)?);
        let key = wanted.region.0;
        let at = self.0.iter().position(|(_, there)| there.region.0 == key);
        match at {
            Some(at) if self.0[at].0 != owner => return Err(Denial::from("another client sketches that region")),
            None if self.0.len() == SKETCHES => return Err(format!("a node has {SKETCHES} sketches at most").into()),
            _ => {}
        }
        let tap = |_| Tap::new(registers.clone(), va, wanted.lg_k);
        let taps: Vec<_> = engines.iter().map(tap).collect::<Result<_, _>>().map_err(|e| e.to_string())?;
        if let Some(at) = at {
            self.0.swap_remove(at);
        }
        for (engine, tap) in engines.iter().zip(taps) {
            let attached = engine.lock().nic().attach_tap(key, Box::new(SketchTap(tap)));
            if let Err(e) = attached {
                detach(engines, key);
                return Err(e.to_string().into());
            }
        }
        self.0.push((owner, wanted));
        Ok(())
    }

    /// Detaches a client's sketch.
    pub fn stop(&mut self, engines: &[Device], owner: Qpn, params: &[u8]) -> Result<(), String> {
        let key = control::u32_at(params, 0).ok_or("the key is missing")?;
        let before = self.0.len();
        self.end(engines, |(who, there)| *who == owner && there.region.0 == key);
        if self.0.len() < before { Ok(()) } else { Err("this client sketches no region with that key".into()) }
    }

    /// A client is gone.
    pub fn forget(&mut self, engines: &[Device], owner: Qpn) {
        self.end(engines, |(who, _)| *who == owner);
    }

    /// A region is gone: a sketch of it, or in it, would keep its memory mapped.
    pub fn released(&mut self, engines: &[Device], key: u32) {
        self.end(engines, |(_, there)| there.region.0 == key || there.registers.0 == key);
    }

    fn end(&mut self, engines: &[Device], ends: impl Fn(&(Qpn, SketchParams)) -> bool) {
        self.0.retain(|entry| {
            let ends = ends(entry);
            if ends {
                detach(engines, entry.1.region.0);
            }
            !ends
        });
    }
}

fn detach(engines: &[Device], key: u32) {
    for engine in engines {
        // It may take its time to end.
        let tap = engine.lock().nic().detach_tap(key);
        drop(tap);
    }
}

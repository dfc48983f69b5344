//! Sketches of what is written into a node's regions, taken as it passes the NIC: StRoM's bump in the wire (section 7.2).

use remora_kernel::hll::Tap;
use remora_memory::{Pd, Registry};
use remora_nic::{ALL_REMOTE, MAX_TAPS, Nic, Qpn, WriteTap};
use remora_service::control::{self, SketchParams};

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

/// The sketches that a node's clients asked for.
#[derive(Default)]
pub(crate) struct Sketches(Vec<(Qpn, SketchParams)>);

impl Sketches {
    /// Attaches a sketch for a client, who knows the keys of both regions. It ends with either region and the client.
    pub fn start(
        &mut self,
        nic: &mut Nic,
        (registry, pd): (&Registry, Pd),
        owner: Qpn,
        params: &[u8],
    ) -> Result<(), String> {
        let wanted = SketchParams::decode(params).ok_or("the parameters are cut short")?;
        let (key, va) = wanted.registers;
        let find = |key| registry.lookup(key).filter(|region| region.pd() == pd).ok_or("no region has that key");
        find(wanted.key)?;
        let registers = find(key)?;
        let len = 1u64.checked_shl(wanted.lg_k.into()).unwrap_or(u64::MAX);
        registers.check(pd, va, len, ALL_REMOTE).map_err(|e| format!("the registers: {e}"))?;
        let at = self.0.iter().position(|(_, there)| there.key == wanted.key);
        match at {
            Some(at) if self.0[at].0 != owner => return Err("another client sketches that region".into()),
            None if self.0.len() == MAX_TAPS => return Err(format!("a node has {MAX_TAPS} sketches at most")),
            _ => {}
        }
        let tap = Tap::new(registers, va, wanted.lg_k).map_err(|e| e.to_string())?;
        nic.attach_tap(wanted.key, Box::new(SketchTap(tap))).map_err(|e| e.to_string())?;
        if let Some(at) = at {
            self.0.swap_remove(at);
        }
        self.0.push((owner, wanted));
        Ok(())
    }

    /// Detaches a client's sketch.
    pub fn stop(&mut self, nic: &mut Nic, owner: Qpn, params: &[u8]) -> Result<(), String> {
        let key = control::u32_at(params, 0).ok_or("the key is missing")?;
        let before = self.0.len();
        self.end(nic, |(who, there)| *who == owner && there.key == key);
        if self.0.len() < before { Ok(()) } else { Err("this client sketches no region with that key".into()) }
    }

    /// A client is gone.
    pub fn forget(&mut self, nic: &mut Nic, owner: Qpn) {
        self.end(nic, |(who, _)| *who == owner);
    }

    /// A region is gone: a sketch of it, or in it, would keep its memory mapped.
    pub fn released(&mut self, nic: &mut Nic, key: u32) {
        self.end(nic, |(_, there)| there.key == key || there.registers.0 == key);
    }

    fn end(&mut self, nic: &mut Nic, ends: impl Fn(&(Qpn, SketchParams)) -> bool) {
        self.0.retain(|entry| {
            let ends = ends(entry);
            if ends {
                nic.detach_tap(entry.1.key);
            }
            !ends
        });
    }
}

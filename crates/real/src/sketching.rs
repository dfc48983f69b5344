//! Sketches of what is written into a node's regions, taken as it passes the NIC: StRoM's bump in the wire (section 7.2).

use remora_kernel::hll::{HllParams, Tap};
use remora_kernel::{Placement, Status, op as kernels};
use remora_memory::{Pd, Registry};
use remora_nic::{ALL_REMOTE, MAX_TAPS, Nic, Qpn, WriteTap};
use remora_service::control::{self, Sketching, op};

use crate::client::{Client, RemoteRegion};
use crate::error::Error;

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
pub(crate) struct Sketches(Vec<(Qpn, Sketching)>);

impl Sketches {
    /// Attaches a sketch for a client, who knows the keys of both regions. It ends with either region and the client.
    pub fn start(
        &mut self,
        nic: &mut Nic,
        (registry, pd): (&Registry, Pd),
        owner: Qpn,
        params: &[u8],
    ) -> Result<(), String> {
        let wanted = Sketching::decode(params).ok_or("the parameters are cut short")?;
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

    fn end(&mut self, nic: &mut Nic, ends: impl Fn(&(Qpn, Sketching)) -> bool) {
        self.0.retain(|entry| {
            let ends = ends(entry);
            if ends {
                nic.detach_tap(entry.1.key);
            }
            !ends
        });
    }
}

impl Client {
    /// Sketches from now on what anyone WRITEs into `region`: its aligned 8-byte words, into 2^`lg_k` registers of a byte
    /// each that lie at the start of `registers`. Zeros there are an empty sketch; what they hold already counts. Ends
    /// with this client and with either region. A word that several packets bring in parts is not seen; there are none
    /// if writes begin at multiples of 8 and have whole words, as every path MTU has. The registers rise as each WRITE
    /// ends, before it is acknowledged.
    pub fn attach_sketch(&mut self, region: &RemoteRegion, registers: &RemoteRegion, lg_k: u8) -> Result<(), Error> {
        let params = Sketching { key: region.key, lg_k, registers: (registers.key, registers.va) };
        self.node_call("sketch a region", op::SKETCH_START, &params.encode()).map(drop)
    }

    /// Sketches `region` no more. The registers stay as they are.
    pub fn detach_sketch(&mut self, region: &RemoteRegion) -> Result<(), Error> {
        self.node_call("stop sketching a region", op::SKETCH_STOP, &region.key.to_le_bytes()).map(drop)
    }

    /// About how many distinct values went into the registers at the start of a region. The registers themselves may be
    /// read as any memory, and another sketch's image merged into them by the HyperLogLog kernel.
    pub fn estimate(&mut self, registers: &RemoteRegion, lg_k: u8) -> Result<f64, Error> {
        let kept = Some((registers.key, registers.va));
        let params = HllParams { lg_k, want_image: false, payload_is_image: false, registers: kept };
        match self.call(Placement::Nic, kernels::HYPERLOGLOG, &params.encode())? {
            (Status::Ok, reply) => {
                let bytes = reply.first_chunk().copied().unwrap_or_default();
                Ok(f64::from_le_bytes(bytes))
            }
            (status, _) => Err(Error::Node { what: "estimate a sketch", why: format!("{status:?}") }),
        }
    }
}

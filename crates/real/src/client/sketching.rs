//! A client's part of sketches of what is written into regions.

use remora_kernel::hll::HllParams;
use remora_kernel::{Placement, Status, op as kernels};
use remora_service::control::{SketchParams, op};

use super::{Client, RemoteRegion};
use crate::error::Error;

impl Client {
    /// Sketches from now on what anyone WRITEs into `region`: its aligned 8-byte words, into 2^`lg_k` registers of a byte
    /// each that lie at the start of `registers`. Zeros there are an empty sketch; what they hold already counts. Ends
    /// with this client and with either region. A word that several packets bring in parts is not seen; there are none
    /// if writes begin at multiples of 8 and have whole words, as every path MTU has. The registers rise as each WRITE
    /// ends, before it is acknowledged.
    pub fn attach_sketch(&mut self, region: &RemoteRegion, registers: &RemoteRegion, lg_k: u8) -> Result<(), Error> {
        let params = SketchParams { region: (region.key, region.va), lg_k, registers: (registers.key, registers.va) };
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

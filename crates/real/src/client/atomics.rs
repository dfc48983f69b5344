//! One-sided atomics, and waiting without polling.

use std::time::Duration;

use remora_nic::SendOp;
use remora_service::Full;

use crate::{Client, Error, RemoteRegion};

/// Bytes of what atomics work on.
const WORD: usize = 8;

impl Client {
    /// Sets the word of 8 bytes at `offset`, a multiple of 8, to `new` if it is `expected`. Returns what it was. A
    /// word is a number in the byte order of the node's machine.
    pub fn compare_swap(&mut self, region: &RemoteRegion, offset: u64, expected: u64, new: u64) -> Result<u64, Error> {
        self.atomic(region, offset, |va, rkey| SendOp::CompareSwap { va, rkey, compare: expected, swap: new })
    }

    /// Adds to the word of 8 bytes at `offset`, a multiple of 8. Returns what it was.
    pub fn fetch_add(&mut self, region: &RemoteRegion, offset: u64, add: u64) -> Result<u64, Error> {
        self.atomic(region, offset, |va, rkey| SendOp::FetchAdd { va, rkey, add })
    }

    fn atomic(
        &mut self,
        region: &RemoteRegion,
        offset: u64,
        op: impl FnOnce(u64, u32) -> SendOp,
    ) -> Result<u64, Error> {
        self.check_range(region, offset, WORD)?;
        let va = region.va + offset;
        if !va.is_multiple_of(WORD as u64) {
            return Err(Error::Argument(format!("an atomic at {va:#x}: its address has to be a multiple of 8")));
        }
        let staging = self.connection.staging.clone();
        // All slots are free.
        let slot = staging.take_slot().ok_or_else(|| Error::Argument(Full.to_string()))?;
        staging.post(slot, op(va, region.key), WORD).inspect_err(|_| staging.free_slot(slot))?;
        while staging.outcome(slot).is_none() {
            self.drive()?;
        }
        let mut old = [0; WORD];
        staging.drain(slot, &mut old);
        staging.free_slot(slot);
        Ok(u64::from_ne_bytes(old))
    }

    /// Sleeps until a call to the node may have ended, `timeout` has passed, or somebody unparks this thread. Then
    /// [`poll`](Self::poll). Returns at once while kernels run here: they go on in polls.
    pub fn wait(&mut self, timeout: Duration) {
        if self.kernels.in_flight() == 0 {
            self.connection.wait(timeout);
        }
    }
}

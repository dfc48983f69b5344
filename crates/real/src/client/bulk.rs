//! Copies into and out of regions, with many verbs in flight.

use remora_nic::{NicError, SendOp};
use remora_service::SLOT;

use super::connection::SLOTS;
use super::{Client, RemoteRegion};
use crate::Error;

/// Verbs of a bulk READ in flight.
const WINDOW: usize = 16;

impl Client {
    /// Copies `data` into a region, with many WRITEs in flight.
    pub fn write(&mut self, region: &RemoteRegion, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.check_range(region, offset, data.len())?;
        let mut pieces = data.chunks(SLOT).enumerate();
        let mut next = pieces.next();
        let mut busy: Vec<u32> = Vec::with_capacity(SLOTS);
        while next.is_some() || !busy.is_empty() {
            while let Some((n, piece)) = next
                && let Some(slot) = self.connection.staging.take_slot()
            {
                self.connection.staging.fill(slot, piece);
                let va = region.va + offset + (n * SLOT) as u64;
                match self.connection.staging.post(slot, SendOp::Write { va, rkey: region.key }, piece.len()) {
                    Ok(()) => busy.push(slot),
                    Err(NicError::Full) => {
                        self.connection.staging.free_slot(slot);
                        break;
                    }
                    Err(e) => {
                        self.connection.staging.free_slot(slot);
                        return Err(e.into());
                    }
                }
                next = pieces.next();
            }
            self.drive()?;
            self.release_done(&mut busy);
        }
        Ok(())
    }

    /// Copies a part of a region into `out`, with many READs in flight.
    pub fn read(&mut self, region: &RemoteRegion, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        self.check_range(region, offset, out.len())?;
        for (n, window) in out.chunks_mut(SLOT * WINDOW).enumerate() {
            let base = region.va + offset + (n * SLOT * WINDOW) as u64;
            let mut slots = [None; WINDOW];
            for (m, piece) in window.chunks(SLOT).enumerate() {
                // All slots are free.
                let Some(slot) = self.connection.staging.take_slot() else { break };
                let op = SendOp::Read { va: base + (m * SLOT) as u64, rkey: region.key };
                self.connection
                    .staging
                    .post(slot, op, piece.len())
                    .inspect_err(|_| self.connection.staging.free_slot(slot))?;
                slots[m] = Some(slot);
            }
            while slots.iter().flatten().any(|&s| self.connection.staging.outcome(s).is_none()) {
                self.drive()?;
            }
            for (slot, piece) in slots.into_iter().flatten().zip(window.chunks_mut(SLOT)) {
                self.connection.staging.drain(slot, piece);
                self.connection.staging.free_slot(slot);
            }
        }
        Ok(())
    }

    fn release_done(&self, busy: &mut Vec<u32>) {
        busy.retain(|&slot| {
            let done = self.connection.staging.outcome(slot).is_some();
            if done {
                self.connection.staging.free_slot(slot);
            }
            !done
        });
    }

    /// Fails as [`Self::read`] of these bytes would, before there is memory for them.
    pub fn check_range(&self, region: &RemoteRegion, offset: u64, len: usize) -> Result<(), Error> {
        self.connection.alive()?;
        let fits = offset.checked_add(len as u64).is_some_and(|end| end <= region.len);
        if !fits {
            let of = region.len;
            return Err(Error::Argument(format!("bytes {offset} to {offset} + {len} of a region of {of} bytes")));
        }
        if !self.connection.staging.is_idle() {
            return Err(Error::Argument("a bulk copy while calls are under way: finish those first".into()));
        }
        Ok(())
    }
}

//! Taps: what sees the payload of WRITEs on its way into memory (StRoM's bump in the wire, sections 3.4 and 7.2).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::nic::Nic;
use crate::types::NicError;

/// Sees the payload of incoming WRITEs as it passes; the data is written as ever.
pub trait WriteTap: Send {
    /// `data` was written, `offset` bytes from the region's start on. Called with all of each packet once, in order
    /// within a queue pair, also for packets of messages that never become whole. A packet may come in pieces, which
    /// meet at multiples of 8 of `offset`. It must neither wait nor allocate.
    fn saw(&mut self, offset: u64, data: &[u8]);

    /// A message that it saw packets of has come to its end, and is acknowledged after this.
    fn ended(&mut self) {}
}

/// Keys that may have a tap at once.
pub const MAX_TAPS: usize = 1 << 16;

/// The taps of one engine, by key.
#[derive(Default)]
pub(crate) struct Taps(HashMap<u32, Box<dyn WriteTap>, BuildHasherDefault<KeyHasher>>);

/// Keys are random already, and peers choose none: a multiplication spreads their bits.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(self.0 as u32 ^ u32::from(byte)));
    }

    #[inline]
    fn write_u32(&mut self, key: u32) {
        self.0 = u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Taps {
    /// The key's tap, if it has one.
    #[inline]
    pub fn find(&mut self, key: u32) -> Option<&mut dyn WriteTap> {
        // One branch where there are none.
        if self.0.is_empty() {
            return None;
        }
        self.0.get_mut(&key).map(|tap| &mut **tap as &mut dyn WriteTap)
    }
}

impl Nic {
    /// From now on `tap` sees the payload of WRITEs that name `key`, of a region or of a window. A tap on a region does
    /// not see WRITEs that name its windows. It takes the place of the key's former tap. There may be [`MAX_TAPS`].
    pub fn attach_tap(&mut self, key: u32, tap: Box<dyn WriteTap>) -> Result<(), NicError> {
        let taps = &mut self.ctx.taps.0;
        if taps.len() >= MAX_TAPS && !taps.contains_key(&key) {
            return Err(NicError::Full);
        }
        taps.insert(key, tap);
        Ok(())
    }

    /// Keys that have a tap.
    pub fn tap_count(&self) -> usize {
        self.ctx.taps.0.len()
    }

    /// Takes the tap of this key away; `None` if it has none.
    pub fn detach_tap(&mut self, key: u32) -> Option<Box<dyn WriteTap>> {
        self.ctx.taps.0.remove(&key)
    }
}

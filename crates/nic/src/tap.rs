//! Taps: what sees the payload of WRITEs on its way into memory (StRoM's bump in the wire, sections 3.4 and 7.2).

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
pub const MAX_TAPS: usize = 64;

/// The taps of one engine.
#[derive(Default)]
pub(crate) struct Taps(Vec<(u32, Box<dyn WriteTap>)>);

impl Taps {
    /// The key's tap, if it has one.
    #[inline]
    pub fn find(&mut self, key: u32) -> Option<&mut dyn WriteTap> {
        let (_, tap) = self.0.iter_mut().find(|(tapped, _)| *tapped == key)?;
        Some(&mut **tap)
    }
}

impl Nic {
    /// From now on `tap` sees the payload of WRITEs that name `key`, of a region or of a window. A tap on a region does
    /// not see WRITEs that name its windows. It takes the place of the key's former tap. There may be [`MAX_TAPS`].
    pub fn attach_tap(&mut self, key: u32, tap: Box<dyn WriteTap>) -> Result<(), NicError> {
        let taps = &mut self.ctx.taps.0;
        match taps.iter().position(|(tapped, _)| *tapped == key) {
            Some(at) => taps[at].1 = tap,
            None if taps.len() == MAX_TAPS => return Err(NicError::Full),
            None => taps.push((key, tap)),
        }
        Ok(())
    }

    /// Takes the tap of this key away; `None` if it has none.
    pub fn detach_tap(&mut self, key: u32) -> Option<Box<dyn WriteTap>> {
        let taps = &mut self.ctx.taps.0;
        let at = taps.iter().position(|(tapped, _)| *tapped == key)?;
        Some(taps.swap_remove(at).1)
    }
}

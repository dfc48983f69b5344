//! A sketch of what passes by on its way into memory.

use super::dense::Dense;
use super::{MAX_LG_K, MIN_LG_K, SketchError};
use remora_memory::Region;
use std::sync::Arc;

/// Sketches the aligned 8-byte words of payloads into registers that lie in memory, one byte each, as the kernel keeps
/// them: it reads their estimate and merges others into them.
///
/// Registers in memory rise when a message has ended ([`settle`](Self::settle)), which costs an access for each that
/// rose meanwhile, and with the tap's end. Bytes that are no whole word within one packet are left out: writes to
/// multiples of 8, of multiples of 8 bytes, and path MTUs, which all are such, leave none.
pub struct Tap {
    region: Arc<Region>,
    va: u64,
    /// What the registers were raised to from here.
    known: Dense,
    /// Those that rose and did not in memory, so many of them; if all have places, any may have.
    rose: [u32; ROSE],
    risen: usize,
}

/// Registers that rose and are remembered one by one, and one more place.
const ROSE: usize = 64;

impl Tap {
    /// A tap with 2^`lg_k` registers at `va`, a multiple of 8, of `region`.
    pub fn new(region: Arc<Region>, va: u64, lg_k: u8) -> Result<Tap, SketchError> {
        if !(MIN_LG_K..=MAX_LG_K).contains(&lg_k) {
            return Err(SketchError::Precision(lg_k));
        }
        let mut known = vec![0; 1 << lg_k];
        if !va.is_multiple_of(8) || region.read(va, &mut known).is_err() {
            return Err(SketchError::Place);
        }
        Ok(Tap { region, va, known: Dense::new(known), rose: [0; ROSE], risen: 0 })
    }

    /// Sketches a payload that stands `offset` bytes from the start of its region.
    #[inline]
    pub fn saw(&mut self, offset: u64, data: &[u8]) {
        let Tap { known, rose, risen, .. } = self;
        let before_word = (offset.wrapping_neg() % 8) as usize;
        let words = data.get(before_word..).unwrap_or_default().as_chunks::<8>().0;
        if *risen == ROSE - 1 {
            // Any may have risen already.
            return known.raise_all(words, |_, _| ());
        }
        known.raise_all(words, note(rose, risen));
    }

    /// Raises the registers in memory to what was seen.
    #[inline]
    pub fn settle(&mut self) {
        let Tap { known, rose, risen, .. } = self;
        known.settle(note(rose, risen));
        if self.risen > 0 {
            self.settle_risen();
        }
    }

    fn settle_risen(&mut self) {
        let Tap { region, va, known, rose, risen } = self;
        let (words, _) = known.bytes().as_chunks::<8>();
        let settle = |at: usize| raise(region, *va + 8 * at as u64, &words[at]);
        match std::mem::take(risen) {
            some if some < ROSE - 1 => rose[..some].iter().for_each(|at| settle(*at as usize / 8)),
            _ => (0..words.len()).for_each(settle),
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.settle();
    }
}

/// Notes which registers rise.
#[inline]
fn note(rose: &mut [u32; ROSE], risen: &mut usize) -> impl FnMut(usize, bool) {
    // Without a branch, as they are raised.
    move |at, higher| {
        rose[*risen] = at as u32;
        *risen = (*risen + usize::from(higher)).min(ROSE - 1);
    }
}

/// Raises the registers of a word in memory, beside which others may do the same. Those that are gone are let go.
fn raise(region: &Region, va: u64, registers: &[u8; 8]) {
    let mut old = [0; 8];
    if region.read(va, &mut old).is_err() {
        return;
    }
    while old.iter().zip(registers).any(|(old, new)| old < new) {
        let new = std::array::from_fn(|i| old[i].max(registers[i]));
        match region.compare_swap(va, u64::from_ne_bytes(old), u64::from_ne_bytes(new)) {
            Ok(was) if was == u64::from_ne_bytes(old) => return,
            Ok(was) => old = was.to_ne_bytes(),
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hll::Sketch;
    use proptest::prelude::*;
    use remora_memory::{Access, Buffer, Registry};

    fn region(len: usize) -> Arc<Region> {
        let registry = Registry::new([4; 32]);
        let buffer = Buffer::from_boxed(vec![0; len].into());
        registry.register(registry.alloc_pd(), &buffer, 0, len, Some(0), Access::all()).unwrap()
    }

    fn registers(region: &Region, at: u64) -> Vec<u8> {
        let mut bytes = vec![0; 256];
        region.read(at, &mut bytes).unwrap();
        bytes
    }

    proptest! {
        /// Packets of any lengths at any places leave the sketch of the whole words that they brought.
        #[test]
        fn whole_words_are_sketched(
            packets in proptest::collection::vec((0u64..100, proptest::collection::vec(any::<u8>(), 0..200)), 0..40),
        ) {
            let memory = region(8 + 256);
            let mut tap = Tap::new(memory.clone(), 8, 8).unwrap();
            let mut sketch = Sketch::from_registers(vec![0; 256]).unwrap();
            for (offset, data) in &packets {
                tap.saw(*offset, data);
                if data.len().is_multiple_of(3) {
                    tap.settle();
                }
                let first = offset.next_multiple_of(8);
                for at in (first..offset + data.len() as u64).step_by(8) {
                    if let Some(word) = data[(at - offset) as usize..].first_chunk::<8>() {
                        sketch.insert(u64::from_le_bytes(*word));
                    }
                }
            }
            tap.settle();
            prop_assert_eq!(&registers(&memory, 8)[..], sketch.registers());
            prop_assert_eq!(registers(&memory, 0)[..8].to_vec(), [0; 8]);
        }
    }

    #[test]
    fn registers_rise_with_the_end_of_a_message_and_of_the_tap() {
        let memory = region(256);
        let mut tap = Tap::new(memory.clone(), 0, 8).unwrap();
        tap.saw(0, &[7; 64]);
        assert_eq!(registers(&memory, 0), [0; 256]);
        tap.settle();
        assert!(registers(&memory, 0).iter().filter(|value| **value > 0).count() == 1);
        let many: Vec<u8> = (0..500u64).flat_map(u64::to_le_bytes).collect();
        tap.saw(0, &many);
        drop(tap);
        assert!(registers(&memory, 0).iter().filter(|value| **value > 0).count() > 128);
    }

    #[test]
    fn registers_that_were_there_stay_and_a_region_that_is_gone_is_let_go() {
        let memory = region(256);
        memory.write(0, &[60; 256]).unwrap();
        let mut tap = Tap::new(memory.clone(), 0, 8).unwrap();
        tap.saw(0, &[7; 4096]);
        tap.settle();
        assert_eq!(registers(&memory, 0), [60; 256]);
        assert!(Tap::new(memory.clone(), 4, 4).is_err(), "misaligned");
        assert!(Tap::new(memory.clone(), 8, 8).is_err(), "beyond the end");
        assert!(Tap::new(memory, 0, 3).is_err());
    }
}

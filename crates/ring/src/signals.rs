//! What the landing of a WRITE sets: the cpoll checker's memory (RAMBDA, section III-B).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Which rings were written to since somebody looked, and their pointers: 4 bytes for each ring, one behind the other.
///
/// One thread sets what others take, all at once. Signals of a ring come together as one until they are taken. What was
/// written before a signal was set is there for who takes it.
pub struct Signals {
    pointers: Box<[AtomicU32]>,
    /// A bit for each ring.
    rings: Box<[AtomicU64]>,
    /// A bit for each word of `rings` that is not 0.
    words: Box<[AtomicU64]>,
}

impl Signals {
    /// For so many rings.
    pub fn new(rings: u32) -> Self {
        let words = rings.div_ceil(64);
        let zeros = |n: u32| (0..n).map(|_| AtomicU64::new(0)).collect();
        let pointers = (0..rings).map(|_| AtomicU32::new(0)).collect();
        Self { pointers, rings: zeros(words), words: zeros(words.div_ceil(64)) }
    }

    /// For how many rings.
    pub fn len(&self) -> u32 {
        self.pointers.len() as u32
    }

    /// Whether it is for no ring at all.
    pub fn is_empty(&self) -> bool {
        self.pointers.is_empty()
    }

    /// Something was written to a ring. Nothing if there is no such ring.
    #[inline]
    pub fn set(&self, ring: u32) {
        let (word, bit) = (ring as usize / 64, 1 << (ring % 64));
        let Some(bits) = self.rings.get(word) else { return };
        // All of these are full barriers: who takes the bit sees what was written before, or finds it set once more.
        if bits.fetch_or(bit, Ordering::SeqCst) == 0
            && let Some(words) = self.words.get(word / 64)
        {
            words.fetch_or(1 << (word % 64), Ordering::SeqCst);
        }
    }

    /// The pointer of a ring was written, and so was the ring before.
    #[inline]
    pub fn set_pointer(&self, ring: u32, pointer: u32) {
        if let Some(entry) = self.pointers.get(ring as usize) {
            entry.store(pointer, Ordering::Release);
            self.set(ring);
        }
    }

    /// The pointer of a ring; 0 for one that is not there.
    #[inline]
    pub fn pointer(&self, ring: u32) -> u32 {
        self.pointers.get(ring as usize).map_or(0, |pointer| pointer.load(Ordering::Acquire))
    }

    /// Whether a signal waits.
    #[inline]
    pub fn any(&self) -> bool {
        self.words.iter().any(|word| word.load(Ordering::Acquire) != 0)
    }

    /// Takes all signals: `woken` is told of each ring that has one.
    #[inline]
    pub fn take(&self, mut woken: impl FnMut(u32)) {
        for (n, words) in self.words.iter().enumerate() {
            if words.load(Ordering::Acquire) == 0 {
                continue;
            }
            // Cleared before the bits below it are: a bit that is set in between is looked at twice, and never missed.
            for word in Bits(words.swap(0, Ordering::SeqCst)) {
                let word = n * 64 + word as usize;
                let Some(bits) = self.rings.get(word) else { continue };
                Bits(bits.swap(0, Ordering::SeqCst)).for_each(|bit| woken(word as u32 * 64 + bit));
            }
        }
    }

    /// A ring begins anew: nothing was written to it.
    pub fn clear(&self, ring: u32) {
        if let Some(pointer) = self.pointers.get(ring as usize) {
            pointer.store(0, Ordering::Release);
        }
    }
}

/// The places of the bits that are set.
struct Bits(u64);

impl Iterator for Bits {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        let bit = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1);
        (bit < 64).then_some(bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// One thread writes and signals, and another takes: whatever was written before the last signal is seen.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "the property is about two threads")]
    fn no_signal_is_missed_between_threads() {
        const RINGS: u32 = if cfg!(miri) { 70 } else { 130 };
        let count = if cfg!(miri) { 140 } else { 200_000 };
        let signals = Signals::new(RINGS);
        let written: Vec<AtomicU32> = (0..RINGS).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for n in 0..count {
                    let ring = n * 67 % RINGS;
                    written[ring as usize].store(n + 1, Ordering::Relaxed);
                    match n % 2 {
                        0 => signals.set(ring),
                        _ => signals.set_pointer(ring, n + 1),
                    }
                }
            });
            let mut writer = Some(writer);
            let mut seen = vec![0; RINGS as usize];
            let last = |ring: u32| (0..count).rev().find(|n| n * 67 % RINGS == ring).map_or(0, |n| n + 1);
            let mut missing: BTreeSet<u32> = (0..RINGS).filter(|&ring| last(ring) > 0).collect();
            while !missing.is_empty() {
                if let Some(writer) = writer.take_if(|writer| writer.is_finished()) {
                    writer.join().unwrap();
                }
                signals.take(|ring| {
                    // Looked at first: what was written before a pointer is there.
                    let pointer = signals.pointer(ring);
                    let value = written[ring as usize].load(Ordering::Relaxed);
                    assert!(value >= seen[ring as usize] && pointer <= value, "older than before");
                    seen[ring as usize] = value;
                    if value == last(ring) {
                        missing.remove(&ring);
                    }
                });
                assert!(writer.is_some() || missing.is_empty(), "{missing:?} are never told");
                std::thread::yield_now();
            }
        });
    }

    proptest! {
        #[test]
        fn signals_come_together_and_none_is_missed(
            rings in 1..9000u32,
            steps in prop::collection::vec(prop_oneof![9 => any::<u32>().prop_map(Some), 1 => Just(None)], 0..200),
        ) {
            let signals = Signals::new(rings);
            let mut set = BTreeSet::new();
            for step in steps.into_iter().chain([None]) {
                match step {
                    Some(ring) => {
                        signals.set_pointer(ring % (rings + 1), ring);
                        if ring % (rings + 1) < rings {
                            set.insert(ring % (rings + 1));
                            prop_assert_eq!(signals.pointer(ring % (rings + 1)), ring);
                        }
                    }
                    None => {
                        prop_assert_eq!(signals.any(), !set.is_empty());
                        let mut taken = Vec::new();
                        signals.take(|ring| taken.push(ring));
                        prop_assert_eq!(taken, std::mem::take(&mut set).into_iter().collect::<Vec<_>>());
                        prop_assert!(!signals.any());
                    }
                }
            }
        }
    }
}

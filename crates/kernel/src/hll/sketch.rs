//! The HyperLogLog sketch: distinct 8-byte values, in registers of which each is a byte.
//!
//! Hash, coupons and registers are those of Apache DataSketches' HLL sketch, so that its libraries read what
//! [`Sketch::to_image`](super::Sketch::to_image) writes. A small sketch is a set of coupons and is almost exact.

use super::SketchError;
use super::coupon::{ADDRESS_BITS, MAX_VALUE, coupon};
use super::dense::Dense;

/// Smallest precision: 2^4 registers.
pub const MIN_LG_K: u8 = 4;
/// Largest precision: 2^18 registers.
pub const MAX_LG_K: u8 = 18;

/// Coupons that make a list; more make a hash set.
pub(super) const LIST_LEN: usize = 8;
const LG_FIRST_SET: u8 = 5;

/// A sketch of a multiset of 64-bit values: how many distinct ones are there?
///
/// The standard error of the estimate is about 1.04 / sqrt(2^lg_k) (Flajolet et al., AofA 2007); at most 8 values, or
/// for `lg_k` from 8 on up to 3/32 of 2^lg_k, are counted as good as exactly.
#[derive(Clone, Debug)]
pub struct Sketch {
    lg_k: u8,
    registers: Registers,
}

/// How the sketch keeps what it saw.
#[derive(Clone, Debug)]
enum Registers {
    /// Distinct coupons in a hash set of 2^n slots, where zero is no coupon.
    Sparse { slots: Vec<u32>, len: usize },
    /// One byte for each register.
    Dense(Dense),
}

impl PartialEq for Sketch {
    /// Whether both saw values of the same coupons, as far as they know.
    fn eq(&self, other: &Self) -> bool {
        let sorted = |sketch: &Sketch| {
            let mut coupons: Vec<u32> = sketch.coupons().collect();
            coupons.sort_unstable();
            coupons
        };
        self.lg_k == other.lg_k
            && match (&self.registers, &other.registers) {
                (Registers::Dense(a), Registers::Dense(b)) => a == b,
                (Registers::Sparse { .. }, Registers::Sparse { .. }) => sorted(self) == sorted(other),
                _ => false,
            }
    }
}

impl Sketch {
    /// An empty sketch of 2^`lg_k` registers, from 4 to 18.
    pub fn new(lg_k: u8) -> Result<Sketch, SketchError> {
        if !(MIN_LG_K..=MAX_LG_K).contains(&lg_k) {
            return Err(SketchError::Precision(lg_k));
        }
        Ok(Sketch { lg_k, registers: Registers::Sparse { slots: Vec::new(), len: 0 } })
    }

    /// A sketch of these registers, one byte each; their number must be a power of two from 2^4 to 2^18.
    pub fn from_registers(registers: Vec<u8>) -> Result<Sketch, SketchError> {
        let lg_k = registers.len().checked_ilog2().unwrap_or(0) as u8;
        if registers.len() != 1 << lg_k || !(MIN_LG_K..=MAX_LG_K).contains(&lg_k) {
            return Err(SketchError::Registers(registers.len()));
        }
        if registers.iter().any(|&value| value > MAX_VALUE) {
            return Err(SketchError::Value);
        }
        Ok(Sketch { lg_k, registers: Registers::Dense(Dense::new(registers)) })
    }

    /// Log2 of the number of registers.
    pub fn lg_k(&self) -> u8 {
        self.lg_k
    }

    /// Adds one value.
    #[inline]
    pub fn insert(&mut self, value: u64) {
        self.insert_coupon(coupon(value));
    }

    /// Adds a run of values, little-endian, back to back; a tail of less than 8 bytes is left out.
    pub fn insert_all(&mut self, bytes: &[u8]) {
        let mut values = bytes.as_chunks::<8>().0.iter();
        self.make_room(values.len());
        while let Registers::Sparse { .. } = self.registers {
            match values.next() {
                Some(value) => self.insert(u64::from_le_bytes(*value)),
                None => return,
            }
        }
        if let Registers::Dense(registers) = &mut self.registers {
            registers.raise_all(values.as_slice(), |_, _| ());
            registers.settle(|_, _| ());
        }
    }

    /// Takes in everything that `other` saw. The result has the lower of the two precisions.
    pub fn merge(&mut self, other: &Sketch) {
        if other.lg_k < self.lg_k {
            self.fold(other.lg_k);
        }
        match &other.registers {
            Registers::Sparse { .. } => other.coupons().for_each(|coupon| self.insert_coupon(coupon)),
            Registers::Dense(theirs) => {
                let ours = self.dense();
                theirs.bytes().iter().enumerate().for_each(|(at, &value)| ours.raise(at, value));
            }
        }
    }

    /// About how many distinct values there were.
    ///
    /// Dense sketches use Ertl's improved raw estimator (arXiv:1702.01284, section 4), which needs no tables and no
    /// thresholds between ranges.
    pub fn estimate(&self) -> f64 {
        match &self.registers {
            Registers::Sparse { len, .. } => {
                // Two values share a coupon with a chance of 2^-26 / 3.
                let n = *len as f64;
                n + n * n / (6.0 * f64::from(1 << ADDRESS_BITS))
            }
            Registers::Dense(registers) => registers.estimate(),
        }
    }

    /// The registers, one byte each; makes the sketch dense.
    pub fn registers(&mut self) -> &[u8] {
        self.dense().bytes()
    }

    /// The dense registers, if it is dense.
    pub(super) fn as_dense(&self) -> Option<&[u8]> {
        match &self.registers {
            Registers::Dense(registers) => Some(registers.bytes()),
            Registers::Sparse { .. } => None,
        }
    }

    /// The coupons of a sparse sketch, in no order; none of a dense one.
    pub(super) fn coupons(&self) -> impl Iterator<Item = u32> {
        let slots = match &self.registers {
            Registers::Sparse { slots, .. } => &slots[..],
            Registers::Dense(_) => &[],
        };
        slots.iter().copied().filter(|&coupon| coupon != 0)
    }

    /// Adds what hashed to this coupon.
    #[inline]
    pub(super) fn insert_coupon(&mut self, coupon: u32) {
        match &mut self.registers {
            Registers::Dense(registers) => registers.raise_by(coupon),
            Registers::Sparse { slots, len } => {
                if slots.is_empty() {
                    slots.resize(1 << LG_FIRST_SET, 0);
                }
                if !add(slots, coupon) {
                    return;
                }
                *len += 1;
                // Where DataSketches changes from a list to a set, and from a set to registers.
                let full = 4 * *len > 3 * slots.len();
                if self.lg_k < 8 && *len == LIST_LEN || full && slots.len() == 1 << (self.lg_k - 3) {
                    self.dense();
                } else if full {
                    grow(slots, 2 * slots.len());
                }
            }
        }
    }

    /// Has a sparse sketch grow at once, and not step by step, to what so many more distinct values need.
    fn make_room(&mut self, values: usize) {
        if let Registers::Sparse { slots, len } = &mut self.registers
            && self.lg_k >= 8
        {
            let wanted = (2 * (*len + values)).next_power_of_two().clamp(1 << LG_FIRST_SET, 1 << (self.lg_k - 3));
            if wanted > slots.len() {
                grow(slots, wanted);
            }
        }
    }

    fn dense(&mut self) -> &mut Dense {
        if let Registers::Sparse { slots, .. } = &self.registers {
            let mut registers = Dense::new(vec![0; 1 << self.lg_k]);
            slots.iter().filter(|&&coupon| coupon != 0).for_each(|&coupon| registers.raise_by(coupon));
            self.registers = Registers::Dense(registers);
        }
        match &mut self.registers {
            Registers::Dense(registers) => registers,
            Registers::Sparse { .. } => unreachable!("made dense above"),
        }
    }

    /// Lowers the precision.
    fn fold(&mut self, lg_k: u8) {
        let mut folded = Sketch { lg_k, registers: Registers::Sparse { slots: Vec::new(), len: 0 } };
        folded.merge(self);
        *self = folded;
    }
}

/// Moves coupons to a hash set of more slots.
fn grow(slots: &mut Vec<u32>, len: usize) {
    let old = std::mem::replace(slots, vec![0; len]);
    old.into_iter().filter(|&coupon| coupon != 0).for_each(|coupon| _ = add(slots, coupon));
}

/// Puts a coupon into a hash set that has room; false if it is there already.
fn add(slots: &mut [u32], coupon: u32) -> bool {
    let mask = slots.len() - 1;
    let mut at = coupon as usize & mask;
    loop {
        match slots[at] {
            0 => {
                slots[at] = coupon;
                return true;
            }
            there if there == coupon => return false,
            _ => at = (at + 1) & mask,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hll::coupon::mix;
    use proptest::prelude::*;

    /// Values that do not repeat: a bijection of the numbers below `n`.
    fn values(seed: u64, n: u64) -> impl Iterator<Item = u64> {
        (0..n).map(move |i| mix(i.wrapping_add(seed << 40)))
    }

    #[test]
    fn errors_are_within_theory() {
        for lg_k in [4, 8, 11, 14, 18] {
            for n in [100, 10_000, 1_000_000] {
                let runs: u64 = if n == 1_000_000 { 4 } else { 16 };
                let mut square = 0.0;
                for seed in 0..runs {
                    let mut sketch = Sketch::new(lg_k).unwrap();
                    values(seed, n).for_each(|value| sketch.insert(value));
                    square += (sketch.estimate() / n as f64 - 1.0).powi(2);
                }
                let (rms, theory) = ((square / runs as f64).sqrt(), 1.04 / f64::from(1 << lg_k).sqrt());
                // The mean of few squares scatters: twice the theory is over four deviations away.
                assert!(rms <= 2.0 * theory, "lg_k {lg_k}, {n} values: {rms} against {theory}");
            }
        }
    }

    #[test]
    fn small_sets_are_counted_exactly() {
        let mut sketch = Sketch::new(12).unwrap();
        assert_eq!(sketch.estimate(), 0.0);
        for (i, value) in values(1, 384).enumerate() {
            sketch.insert(value);
            sketch.insert(value);
            assert_eq!(sketch.estimate().round() as usize, i + 1);
        }
        assert!(sketch.as_dense().is_none());
        values(2, 2).for_each(|value| sketch.insert(value));
        assert!(sketch.as_dense().is_some(), "384 of 512 slots is as full as a set gets");
    }

    #[test]
    fn bad_precisions_and_registers_are_refused() {
        assert!(Sketch::new(3).is_err() && Sketch::new(19).is_err());
        assert!(Sketch::from_registers(vec![0; 17]).is_err());
        assert!(Sketch::from_registers(vec![]).is_err());
        assert!(Sketch::from_registers(vec![64; 16]).is_err());
        assert_eq!(Sketch::from_registers(vec![63; 16]).unwrap().lg_k(), 4);
    }

    proptest! {
        #[test]
        fn a_merge_saw_what_both_saw(
            a in proptest::collection::vec(any::<u64>(), 0..400),
            b in proptest::collection::vec(any::<u64>(), 0..400),
            lg_a in 4u8..11,
            lg_b in 4u8..11,
        ) {
            let of = |lg_k, values: &mut dyn Iterator<Item = &u64>| {
                let mut sketch = Sketch::new(lg_k).unwrap();
                values.for_each(|&value| sketch.insert(value));
                sketch
            };
            let mut merged = of(lg_a, &mut a.iter());
            merged.merge(&of(lg_b, &mut b.iter()));
            let mut whole = of(lg_a.min(lg_b), &mut a.iter().chain(&b));
            prop_assert_eq!(merged.lg_k(), lg_a.min(lg_b));
            prop_assert_eq!(merged.registers(), whole.registers());
        }

        #[test]
        fn runs_are_their_values(values in proptest::collection::vec(any::<u64>(), 0..600), lg_k in 4u8..10) {
            let mut one = Sketch::new(lg_k).unwrap();
            values.iter().for_each(|&value| one.insert(value));
            let mut run = Sketch::new(lg_k).unwrap();
            let mut bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            bytes.extend([1, 2, 3]);
            run.insert_all(&bytes);
            prop_assert_eq!(one, run);
        }
    }
}

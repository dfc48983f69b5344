//! Sketches as bytes: Apache DataSketches' serialized HLL sketch, compact, with 8-bit registers.
//!
//! ```text
//!  0  words of 4 bytes before the data: 2 list, 3 set, 10 registers
//!  1  version 1        2  family 7        3  lg_k        4  lg of the set's slots
//!  5  flags: 4 empty, 8 compact, 16 out of order        6  coupons of a list; else 0
//!  7  mode: 0 list, 1 set, 2 registers; plus 8: registers of 8 bits
//!  8  set: number of coupons u32, then coupons u32
//!  8  registers: accumulator f64; sums of 2^-register below 32 and from 32 on, f64 each;
//!     empty registers u32, 0 u32; then the registers
//! ```
//!
//! Facts from the preamble's description in that project's documentation; numbers are little-endian. The accumulator
//! belongs to an estimator that needs the order in which values came: it is marked as out of use.

use super::SketchError;
use super::sketch::{LIST_LEN, MAX_LG_K, MIN_LG_K, Sketch};

const VERSION: u8 = 1;
const FAMILY: u8 = 7;
const EMPTY: u8 = 4;
const COMPACT: u8 = 8;
const OUT_OF_ORDER: u8 = 16;
const LIST: u8 = 0;
const SET: u8 = 1;
const REGISTERS: u8 = 2;
const EIGHT_BITS: u8 = 2 << 2;
/// Bytes before the registers of a dense image.
const DENSE_HEADER: usize = 40;

impl Sketch {
    /// The sketch as an image that DataSketches' libraries read.
    pub fn to_image(&self) -> Vec<u8> {
        let header = |words, lg_slots, flags, len, mode| {
            vec![words, VERSION, FAMILY, self.lg_k(), lg_slots, COMPACT | flags, len, mode | EIGHT_BITS]
        };
        if let Some(registers) = self.as_dense() {
            let (mut low, mut high, mut empty) = (0.0, 0.0, 0u32);
            for &value in registers {
                *if value < 32 { &mut low } else { &mut high } += (-f64::from(value)).exp2();
                empty += u32::from(value == 0);
            }
            let mut image = header(10, 0, OUT_OF_ORDER, 0, REGISTERS);
            image.extend([self.estimate(), low, high].into_iter().flat_map(f64::to_le_bytes));
            image.extend([empty, 0].into_iter().flat_map(u32::to_le_bytes));
            image.extend(registers);
            return image;
        }
        let mut coupons: Vec<u32> = self.coupons().collect();
        coupons.sort_unstable();
        let mut image = if coupons.len() < LIST_LEN {
            let flags = if coupons.is_empty() { EMPTY } else { 0 };
            header(2, LIST_LEN.ilog2() as u8, flags, coupons.len() as u8, LIST)
        } else {
            let lg_slots = (4 * coupons.len()).div_ceil(3).next_power_of_two().ilog2().max(5) as u8;
            let mut image = header(3, lg_slots, 0, 0, SET);
            image.extend((coupons.len() as u32).to_le_bytes());
            image
        };
        image.extend(coupons.into_iter().flat_map(u32::to_le_bytes));
        image
    }

    /// Reads a compact image with 8-bit registers, of this crate or of DataSketches.
    pub fn from_image(image: &[u8]) -> Result<Sketch, SketchError> {
        let &[words, version, family, lg_k, _, flags, len, mode] =
            image.first_chunk().ok_or(SketchError::Image("too short"))?;
        if (version, family) != (VERSION, FAMILY) {
            return Err(SketchError::Image("not an HLL sketch of DataSketches' version 1"));
        }
        if !(MIN_LG_K..=MAX_LG_K).contains(&lg_k) {
            return Err(SketchError::Precision(lg_k));
        }
        if mode & !3 != EIGHT_BITS {
            return Err(SketchError::Image("registers of other than 8 bits: convert it to HLL_8"));
        }
        if flags & COMPACT == 0 && mode & 3 != REGISTERS {
            return Err(SketchError::Image("not compact"));
        }
        match (mode & 3, words) {
            (LIST, 2) => with_coupons(lg_k, len.into(), &image[8..]),
            (SET, 3) => {
                let (len, coupons) = image[8..].split_first_chunk().ok_or(SketchError::Image("too short"))?;
                with_coupons(lg_k, u32::from_le_bytes(*len) as usize, coupons)
            }
            (REGISTERS, 10) => match image.get(DENSE_HEADER..) {
                Some(registers) if registers.len() == 1 << lg_k => Sketch::from_registers(registers.to_vec()),
                _ => Err(SketchError::Image("not as long as its registers")),
            },
            _ => Err(SketchError::Image("unknown mode")),
        }
    }
}

fn with_coupons(lg_k: u8, len: usize, bytes: &[u8]) -> Result<Sketch, SketchError> {
    if bytes.len() != len.saturating_mul(4) {
        return Err(SketchError::Image("not as long as its coupons"));
    }
    let mut sketch = Sketch::new(lg_k)?;
    for coupon in bytes.chunks_exact(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap_or_default())) {
        if coupon >> 26 == 0 {
            return Err(SketchError::Value);
        }
        sketch.insert_coupon(coupon);
    }
    Ok(sketch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn images_that_are_none_are_refused() {
        let good = Sketch::new(10).unwrap().to_image();
        assert_eq!(Sketch::from_image(&good).unwrap(), Sketch::new(10).unwrap());
        for (at, value) in [(0, 9), (1, 2), (2, 3), (3, 30), (6, 1), (7, 0), (7, 11)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(Sketch::from_image(&bad).is_err(), "byte {at} is {value}");
        }
        assert!(Sketch::from_image(&good[..7]).is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(n in 0u64..3000, lg_k in 4u8..13) {
            let mut sketch = Sketch::new(lg_k).unwrap();
            (0..n).for_each(|value| sketch.insert(value));
            prop_assert_eq!(Sketch::from_image(&sketch.to_image()).unwrap(), sketch);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            _ = Sketch::from_image(&bytes);
        }
    }
}

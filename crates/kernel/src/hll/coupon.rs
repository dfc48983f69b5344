//! Coupons: what a sketch keeps of a value's hash, MurmurHash3 x64 128 with DataSketches' seed.

/// Low bits of a coupon: which register, if there were 2^26 of them. Above are leading zeros plus one, 1 to 63.
pub(super) const ADDRESS_BITS: u32 = 26;
const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;
/// Largest value of a register.
pub(super) const MAX_VALUE: u8 = 63;
/// Values whose coupons are found at a time.
pub(super) const BLOCK: usize = 512;
/// Coupons that are stored at a time, of which some may not count.
const LANES: usize = 8;

const SEED: u64 = 9001;
/// The hash's factors for its input and for its finalizer.
const INPUT: [u64; 2] = [0x87c3_7b91_1142_53d5, 0x4cf5_ad43_2745_937f];
const FINAL: [u64; 2] = [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53];
/// What its halves start from: the seed, and the length of what is hashed.
const START: u64 = SEED ^ 8;

/// Room for the coupons of some blocks, and for values that may have some.
#[derive(Clone, Debug)]
pub(super) struct Room {
    coupons: [u32; 2 * BLOCK + LANES],
    /// Values that wait for their coupons to be asked for: so many.
    kept: usize,
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    sifted: wide::Sifted,
}

impl Default for Room {
    fn default() -> Self {
        Room {
            coupons: [0; 2 * BLOCK + LANES],
            kept: 0,
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            sifted: wide::NOTHING,
        }
    }
}

impl Room {
    /// Whether it keeps none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.kept == 0
    }

    /// Keeps those of up to [`BLOCK`] values that may raise a register which is at `least` or above. False, and nothing
    /// is kept, where [`coupons_above`] is quicker.
    ///
    /// Their coupons are found later: a core that reads what it has just stored, in other pieces than it stored it, waits
    /// until that is in its cache.
    #[inline]
    pub fn keep(&mut self, least: u8, values: &[[u8; 8]]) -> bool {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if least >= SIFTED_FROM && crate::vectored::is_wide() {
            let (steps, rest) = values.as_chunks();
            // SAFETY: the processor has what the function is compiled for.
            self.kept = unsafe { wide::sift(limit(least), steps, &mut self.sifted, self.kept) };
            let place = &mut self.sifted.as_flattened_mut()[self.kept..];
            place[..rest.len()].copy_from_slice(rest);
            self.kept += rest.len();
            return true;
        }
        let _ = (least, values);
        false
    }

    /// Whether there may be no room for another block.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.kept > BLOCK
    }

    /// The coupons of what was kept, as [`coupons_above`] gives them.
    #[inline]
    pub fn take_kept(&mut self, least: u8) -> &[u32] {
        let kept = std::mem::take(&mut self.kept);
        let mut len = 0;
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if kept > 0 {
            // SAFETY: only with what the function is compiled for anything is kept.
            len = unsafe { wide::coupons_above(limit(least), &self.sifted, kept, &mut self.coupons) };
        }
        let _ = (least, kept, &mut len);
        &self.coupons[..len]
    }
}

/// The coupon of a value.
#[inline]
pub(super) fn coupon(value: u64) -> u32 {
    coupon_of(hash(value))
}

/// The coupons, of up to [`BLOCK`] values, that can raise a register which is at `least` or above: those of larger
/// values.
#[inline]
pub(super) fn coupons_above<'a>(least: u8, values: &[[u8; 8]], room: &'a mut Room) -> &'a [u32] {
    let (done, mut len) = hash_wide(least, values, room);
    let out = &mut room.coupons;
    for value in &values[done..] {
        let hash = hash(u64::from_le_bytes(*value));
        out[len] = coupon_of(hash);
        len += usize::from(hash.1 <= limit(least));
    }
    &out[..len]
}

/// The largest hash with so many leading zeros: one more than a register's value that it raises.
#[inline(always)]
fn limit(least: u8) -> u64 {
    u64::MAX >> least.min(MAX_VALUE)
}

#[inline(always)]
fn coupon_of((h1, h2): (u64, u64)) -> u32 {
    let value = h2.leading_zeros().min(u32::from(MAX_VALUE) - 1) + 1;
    value << ADDRESS_BITS | (h1 & ADDRESS_MASK) as u32
}

#[inline(always)]
fn hash(value: u64) -> (u64, u64) {
    let k1 = value.wrapping_mul(INPUT[0]).rotate_left(31).wrapping_mul(INPUT[1]);
    let h1 = (START ^ k1).wrapping_add(START);
    let h2 = h1.wrapping_add(START);
    let (h1, h2) = (mix(h1), mix(h2));
    let h1 = h1.wrapping_add(h2);
    (h1, h2.wrapping_add(h1))
}

/// MurmurHash3's finalizer.
#[inline(always)]
pub(super) fn mix(mut h: u64) -> u64 {
    h = (h ^ (h >> 33)).wrapping_mul(FINAL[0]);
    h = (h ^ (h >> 33)).wrapping_mul(FINAL[1]);
    h ^ (h >> 33)
}

/// Finds the coupons of the first values, if the processor has vectors of eight. Returns how many values those were,
/// and how many coupons it has stored.
#[inline]
fn hash_wide(least: u8, values: &[[u8; 8]], room: &mut Room) -> (usize, usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if crate::vectored::is_wide() {
        let steps = values.as_chunks().0;
        let done = steps.as_flattened().len();
        // SAFETY: the processor has what the function is compiled for.
        let len = unsafe { wide::coupons_above(limit(least), steps, done, &mut room.coupons) };
        return (done, len);
    }
    let _ = (least, values, room);
    (0, 0)
}

/// The value of registers from which on values are sifted before they are hashed to the end: a quarter or less remain.
/// Few are left once all registers have risen, so that most values cost no more than a part of their hash.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const SIFTED_FROM: u8 = 2;

/// Hashing with AVX-512, which has 64-bit products and leading zeros of eight values at a time. Older instruction sets
/// have nothing like it.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod wide {
    use super::{ADDRESS_BITS, ADDRESS_MASK, BLOCK, FINAL, INPUT, LANES, MAX_VALUE, START};
    use std::arch::asm;
    use std::arch::x86_64::*;

    /// Vectors that are hashed side by side: one has to wait for each of its products.
    const SIDE: usize = 4;
    type Vectors = [__m512i; SIDE];
    type Values = [[u8; 8]; LANES * SIDE];
    /// Values that were sifted: a block that was kept, another one, and room for those that are not in the end.
    pub type Sifted = [Values; 2 * BLOCK / (LANES * SIDE) + 1];
    pub const NOTHING: Sifted = [[[0; 8]; LANES * SIDE]; 2 * BLOCK / (LANES * SIDE) + 1];

    /// Of the first `count` values, stores the coupons of those whose hash is up to `limit`. Returns how many coupons that
    /// are; what stands behind them means nothing.
    #[target_feature(enable = "avx512f,avx512dq,avx512cd,avx512bw,avx512vl,popcnt")]
    pub fn coupons_above(limit: u64, values: &[Values], count: usize, out: &mut [u32; 2 * BLOCK + LANES]) -> usize {
        let limit = _mm512_set1_epi64(limit as i64);
        let (mut len, mut left) = (0, count);
        for values in &values[..count.div_ceil(LANES * SIDE)] {
            let (h1, h2) = hash(values);
            for (h1, h2) in h1.into_iter().zip(h2) {
                let Some(place) = out[len..].first_chunk_mut::<LANES>() else { return len };
                let counted = !(u32::MAX << left.min(LANES)) as u8;
                left = left.saturating_sub(LANES);
                let some = _mm512_mask_cmple_epu64_mask(counted, h2, limit);
                // SAFETY: there is place for all lanes.
                unsafe { _mm256_storeu_epi32(place.as_mut_ptr().cast(), compress(some, coupons(h1, h2))) };
                len += some.count_ones() as usize;
            }
        }
        len
    }

    /// Stores values behind the `len` that are there: all whose hash is up to `limit`, and a few others. The limit is at
    /// most a quarter of all hashes. Returns how many values are there then; what stands behind them means nothing.
    ///
    /// The hash ends with m1 + 2 m2, where m = p ^ p >> 33 differs from p by less than 2^31 and each p is a product
    /// with the same factor. So one product tells it up to 3 * 2^31.
    #[target_feature(enable = "avx512f,avx512dq,avx512cd,avx512bw,avx512vl,popcnt")]
    pub fn sift(limit: u64, values: &[Values], out: &mut Sifted, mut len: usize) -> usize {
        const SLACK: u64 = 3 << 31;
        let (slack, limit) = (_mm512_set1_epi64(SLACK as i64), _mm512_set1_epi64((limit + 2 * SLACK) as i64));
        let out = out.as_flattened_mut();
        for values in values {
            let (mut h1, h2) = mixed_once(values);
            for (h1, h2) in h1.iter_mut().zip(h2) {
                *h1 = _mm512_add_epi64(*h1, _mm512_add_epi64(h2, h2));
            }
            multiply(&mut h1, FINAL[1]);
            for (hash, values) in h1.into_iter().zip(load(values)) {
                let Some(place) = out[len..].first_chunk_mut::<LANES>() else { return len };
                let some = _mm512_cmple_epu64_mask(_mm512_add_epi64(hash, slack), limit);
                // SAFETY: there is place for all lanes.
                unsafe { _mm512_storeu_epi64(place.as_mut_ptr().cast(), _mm512_maskz_compress_epi64(some, values)) };
                len += some.count_ones() as usize;
            }
        }
        len
    }

    /// In registers: to memory it is slow.
    #[target_feature(enable = "avx512f,avx512vl")]
    fn compress(some: u8, coupons: __m512i) -> __m256i {
        _mm256_maskz_compress_epi32(some, _mm512_cvtepi64_epi32(coupons))
    }

    #[target_feature(enable = "avx512f,avx512cd")]
    fn coupons(h1: __m512i, h2: __m512i) -> __m512i {
        let zeros = _mm512_min_epu64(_mm512_lzcnt_epi64(h2), _mm512_set1_epi64(i64::from(MAX_VALUE) - 1));
        let value = _mm512_add_epi64(zeros, _mm512_set1_epi64(1));
        let address = _mm512_and_si512(h1, _mm512_set1_epi64(ADDRESS_MASK as i64));
        _mm512_or_si512(_mm512_slli_epi64::<ADDRESS_BITS>(value), address)
    }

    #[target_feature(enable = "avx512f,avx512dq")]
    fn hash(values: &Values) -> (Vectors, Vectors) {
        let (mut h1, mut h2) = mixed_once(values);
        for h in [&mut h1, &mut h2] {
            multiply(h, FINAL[1]);
            fold(h);
        }
        for (h1, h2) in h1.iter_mut().zip(&mut h2) {
            *h1 = _mm512_add_epi64(*h1, *h2);
            *h2 = _mm512_add_epi64(*h2, *h1);
        }
        (h1, h2)
    }

    /// The hash's halves but for their last product.
    #[target_feature(enable = "avx512f,avx512dq")]
    fn mixed_once(values: &Values) -> (Vectors, Vectors) {
        let start = _mm512_set1_epi64(START as i64);
        let (mut h1, mut h2) = (load(values), [start; SIDE]);
        multiply(&mut h1, INPUT[0]);
        h1.iter_mut().for_each(|h| *h = _mm512_rol_epi64::<31>(*h));
        multiply(&mut h1, INPUT[1]);
        for (h1, h2) in h1.iter_mut().zip(&mut h2) {
            *h1 = _mm512_add_epi64(_mm512_xor_si512(*h1, start), start);
            *h2 = _mm512_add_epi64(*h1, start);
        }
        for h in [&mut h1, &mut h2] {
            fold(h);
            multiply(h, FINAL[0]);
            fold(h);
        }
        (h1, h2)
    }

    #[target_feature(enable = "avx512f")]
    fn load(values: &Values) -> Vectors {
        let (vectors, _) = values.as_chunks::<LANES>();
        // SAFETY: eight values are a vector.
        std::array::from_fn(|at| unsafe { _mm512_loadu_epi64(vectors[at].as_ptr().cast()) })
    }

    #[target_feature(enable = "avx512f")]
    fn fold(h: &mut Vectors) {
        h.iter_mut().for_each(|h| *h = _mm512_xor_si512(*h, _mm512_srli_epi64::<33>(*h)));
    }

    #[target_feature(enable = "avx512f,avx512dq")]
    fn multiply(h: &mut Vectors, factor: u64) {
        h.iter_mut().for_each(|h| *h = _mm512_mullo_epi64(*h, _mm512_set1_epi64(factor as i64)));
        keep_abreast(h);
    }

    /// Has the compiler finish this step of all before the next one of any. It likes to end one vector before it begins
    /// the next, and a core does not look far enough ahead to find other work beside each product then.
    #[target_feature(enable = "avx512f")]
    fn keep_abreast([a, b, c, d]: &mut Vectors) {
        // SAFETY: not an instruction.
        unsafe {
            asm!(
                "/* {} {} {} {} */",
                inout(zmm_reg) * a,
                inout(zmm_reg) * b,
                inout(zmm_reg) * c,
                inout(zmm_reg) * d,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Every path finds the same coupons, in the same order.
        #[test]
        fn those_above_a_register_are_found(
            values in proptest::collection::vec(any::<u64>(), 0..=BLOCK), least in 0u8..12, split: prop::sample::Index,
        ) {
            let all = values.iter().map(|&value| coupon(value));
            let expect: Vec<u32> = all.filter(|coupon| coupon >> ADDRESS_BITS > u32::from(least)).collect();
            let bytes: Vec<[u8; 8]> = values.iter().map(|value| value.to_le_bytes()).collect();
            let mut room = Room::default();
            prop_assert_eq!(coupons_above(least, &bytes, &mut room), &expect[..]);
            // Several at a time, as long as there is room.
            let (first, second) = bytes.split_at(split.index(bytes.len() + 1));
            if room.keep(least, first) && room.keep(least, second) {
                prop_assert!(!room.is_full());
                prop_assert_eq!(room.take_kept(least), &expect[..]);
            }
            prop_assert!(room.is_empty());
        }
    }

    /// The values of the smallest of many hashes, which lie on both sides of the limits: none that counts is sifted
    /// out.
    #[test]
    fn the_smallest_hashes_are_found() {
        let mut values: Vec<u64> = (0..1u64 << 18).map(mix).collect();
        values.sort_unstable_by_key(|&value| hash(value).1);
        values.truncate(BLOCK);
        let bytes: Vec<[u8; 8]> = values.iter().map(|value| value.to_le_bytes()).collect();
        let mut room = Room::default();
        for least in 0..20 {
            let count = values.iter().filter(|&&value| hash(value).1.leading_zeros() >= least).count();
            assert_eq!(coupons_above(least as u8, &bytes, &mut room).len(), count);
            if room.keep(least as u8, &bytes) {
                assert_eq!(room.take_kept(least as u8).len(), count);
            }
        }
    }
}

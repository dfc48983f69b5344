//! Numbers that look as if they were drawn, and are the same in every run: the n-th of a sequence is a function of n.

/// The number after so many (SplitMix64, Steele et al., OOPSLA 2014).
pub(crate) fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// An exponentially distributed one with this mean.
pub(crate) fn exponential(number: u64, mean: f64) -> f64 {
    // In 0..1 with 53 bits, and not 1.
    let uniform = (mixed(number) >> 11) as f64 / (1u64 << 53) as f64;
    -(1.0 - uniform).ln() * mean
}

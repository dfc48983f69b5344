//! Loops over many values that the compiler turns into vector instructions where the processor has them.

/// Runs `work`, a loop of integer arithmetic in a closure, with AVX-512 if this processor has it: 64-bit products and
/// leading zeros of eight values at a time, for which older instruction sets have nothing.
#[inline]
pub(crate) fn run<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if wide::is_there() {
        // SAFETY: the processor has what the function is compiled for.
        return unsafe { wide::run(work) };
    }
    work()
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod wide {
    #[inline]
    pub fn is_there() -> bool {
        std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("avx512dq")
            && std::is_x86_feature_detected!("avx512cd")
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("avx512vl")
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512cd,avx512bw,avx512vl")]
    pub fn run<R>(work: impl FnOnce() -> R) -> R {
        work()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_work_is_done_and_its_result_returned() {
        let values: Vec<u64> = (0..1000u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let mix = |v: &u64| (v ^ (v >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd).leading_zeros();
        let wide: Vec<u32> = super::run(|| values.iter().map(mix).collect());
        assert_eq!(wide, values.iter().map(mix).collect::<Vec<_>>());
    }
}

//! Loops over many values that the compiler turns into vector instructions where the processor has them.

/// Compiles a function twice, of arithmetic in a loop: as it stands, and with AVX-512, which has 64-bit products and
/// leading zeros of eight values at a time, for which older instruction sets have nothing, and sixteen `f32`. Calls of it
/// take the one that this processor has. Results are the same to the last bit.
macro_rules! vectored {
    ($(#[$attribute:meta])* $visibility:vis fn $name:ident($($arg:ident: $type:ty),*) $body:block) => {
        $(#[$attribute])*
        #[inline]
        $visibility fn $name($($arg: $type),*) {
            #[inline(always)]
            fn plain($($arg: $type),*) $body

            #[cfg(all(target_arch = "x86_64", not(miri)))]
            if crate::vectored::is_wide() {
                #[target_feature(enable = "avx512f,avx512dq,avx512cd,avx512bw,avx512vl")]
                fn wide($($arg: $type),*) {
                    plain($($arg),*)
                }
                // SAFETY: the processor has what the function is compiled for.
                return unsafe { wide($($arg),*) };
            }
            plain($($arg),*)
        }
    };
}
pub(crate) use vectored;

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub(crate) fn is_wide() -> bool {
    std::is_x86_feature_detected!("avx512f")
        && std::is_x86_feature_detected!("avx512dq")
        && std::is_x86_feature_detected!("avx512cd")
        && std::is_x86_feature_detected!("avx512bw")
        && std::is_x86_feature_detected!("avx512vl")
}

#[cfg(test)]
mod tests {
    vectored! {
        fn mix(values: &mut [u64]) {
            values.iter_mut().for_each(|v| *v = u64::from((*v ^ (*v >> 33)).wrapping_mul(77).leading_zeros()));
        }
    }

    #[test]
    fn the_work_is_done() {
        let values: Vec<u64> = (0..1000u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let mut mixed = values.clone();
        mix(&mut mixed);
        let expect = |v: &u64| u64::from((v ^ (v >> 33)).wrapping_mul(77).leading_zeros());
        assert_eq!(mixed, values.iter().map(expect).collect::<Vec<_>>());
    }
}

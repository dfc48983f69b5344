//! CRC-32, and moving its state over bytes that are not there.
//!
//! States here are the plain shift register, reflected: bit 31 is the coefficient of x^0. CRC-32 as commonly printed
//! starts from all ones and is complemented at the end.

/// The generator polynomial, reflected.
const POLY: u32 = 0xedb8_8320;

/// `BACK[0][n]` and `BACK[1][n]`: x to the power of -8n and of -8 * 256n.
static BACK: [[u32; 256]; 2] = back();

/// The state after `bytes`.
#[inline]
pub(crate) fn update(state: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(!state);
    hasher.update(bytes);
    !hasher.finalize()
}

/// The state `bytes` bytes before `state`, if they were zero. `None` past 65535.
#[inline]
pub(crate) fn rewind(state: u32, bytes: usize) -> Option<u32> {
    let [low, high] = u16::try_from(bytes).ok()?.to_le_bytes().map(usize::from);
    Some(times(times(BACK[0][low], BACK[1][high]), state))
}

/// What each byte of a big-endian 16-bit field adds to the state at the end of a header, for a field that begins
/// `distance` bytes before that end.
pub(crate) const fn field(distance: usize) -> [[u32; 256]; 2] {
    let mut tables = [[0; 256]; 2];
    let mut byte = 0;
    while byte < 256 {
        let mut i = 0;
        while i < 2 {
            let mut state = byte as u32;
            let mut left = distance - i;
            while left > 0 {
                state = step(state);
                left -= 1;
            }
            tables[i][byte] = state;
            i += 1;
        }
        byte += 1;
    }
    tables
}

/// The state one zero byte later: multiplied by x^8.
const fn step(mut state: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        state = times_x(state);
        bit += 1;
    }
    state
}

const fn times_x(a: u32) -> u32 {
    a >> 1 ^ if a & 1 == 1 { POLY } else { 0 }
}

/// Undoes [`times_x`], which sets the top bit exactly when it subtracts the polynomial.
const fn over_x(a: u32) -> u32 {
    if a >> 31 == 1 { (a ^ POLY) << 1 | 1 } else { a << 1 }
}

/// Product of two polynomials modulo the generator.
const fn times(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 0;
    while bit < 32 {
        product ^= b & ((a << bit) as i32 >> 31) as u32;
        b = times_x(b);
        bit += 1;
    }
    product
}

const fn back() -> [[u32; 256]; 2] {
    let mut tables = [[0; 256]; 2];
    let mut power = 1 << 31;
    let mut n = 0;
    while n < 256 {
        tables[0][n] = power;
        let mut bit = 0;
        while bit < 8 {
            power = over_x(power);
            bit += 1;
        }
        n += 1;
    }
    // x to the power of -8 * 256 is left in `power`.
    tables[1][0] = 1 << 31;
    let mut n = 1;
    while n < 256 {
        tables[1][n] = times(tables[1][n - 1], power);
        n += 1;
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn check_value() {
        assert_eq!(!update(!0, b"123456789"), 0xcbf4_3926);
    }

    proptest! {
        #[test]
        fn rewind_undoes_zeros(state: u32, len in 0usize..65536) {
            prop_assert_eq!(rewind(update(state, &vec![0; len]), len), Some(state));
        }

        #[test]
        fn fields_add_what_their_bytes_do(value: u16, after in 0usize..60) {
            let mut header = vec![0; 2 + after];
            header[..2].copy_from_slice(&value.to_be_bytes());
            let table = field(2 + after);
            let [high, low] = value.to_be_bytes().map(usize::from);
            prop_assert_eq!(table[0][high] ^ table[1][low], update(0, &header));
        }
    }
}

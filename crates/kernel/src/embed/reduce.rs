//! The arithmetic: rows, as bytes, into numbers of the reply. In the order of the rows, so that every place has the same
//! result to the last bit.

use super::params::{Element, EmbedParams, Reduction};
use crate::vectored::vectored;

/// What is done with rows.
#[derive(Clone, Copy)]
pub struct How<'a> {
    element: Element,
    reduction: Reduction,
    row_bytes: usize,
    numbers: &'a [u8],
}

impl<'a> How<'a> {
    pub fn new(params: &EmbedParams<'a>) -> Self {
        let EmbedParams { table, reduction, numbers, .. } = *params;
        Self { element: table.element, reduction, row_bytes: table.row_bytes(), numbers }
    }
}

/// The number of 16 bits. Without a branch: an exponent that is too small by 112 is mended by a multiplication, which is
/// exact for subnormal numbers too.
#[inline(always)]
pub fn f16_to_f32(half: u16) -> f32 {
    let bits = u32::from(half & 0x7fff) << 13;
    let finite = (f32::from_bits(bits) * f32::from_bits((127 + 112) << 23)).to_bits();
    // Infinities, and what is no number, keep all bits of the exponent.
    let bits = if half & 0x7c00 == 0x7c00 { bits | 0x7f80_0000 } else { finite };
    f32::from_bits(bits | u32::from(half & 0x8000) << 16)
}

#[inline(always)]
fn number(bytes: &[u8], at: usize) -> f32 {
    bytes.get(4 * at..).and_then(|bytes| bytes.first_chunk()).map_or(0.0, |bytes| f32::from_le_bytes(*bytes))
}

/// Puts each number of a row to the one in its place.
#[inline(always)]
fn each<const N: usize>(into: &mut [u8], row: &[u8], widen: impl Fn([u8; N]) -> f32, put: impl Fn(f32, f32) -> f32) {
    for (to, from) in into.as_chunks_mut::<4>().0.iter_mut().zip(row.as_chunks::<N>().0) {
        *to = put(f32::from_le_bytes(*to), widen(*from)).to_le_bytes();
    }
}

/// The inner product with a vector: eight sums, one for each eighth column.
#[inline(always)]
fn inner_product<const N: usize>(vector: &[u8], row: &[u8], widen: impl Fn([u8; N]) -> f32) -> f32 {
    let mut sums = [0.0f32; 8];
    let (vector, row) = (vector.as_chunks::<4>().0.as_chunks::<8>().0, row.as_chunks::<N>().0.as_chunks::<8>().0);
    for (ours, theirs) in vector.iter().zip(row) {
        for at in 0..8 {
            sums[at] += f32::from_le_bytes(ours[at]) * widen(theirs[at]);
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (b + f)) + ((c + g) + (d + h))
}

#[inline(always)]
fn rows<const N: usize>(
    into: &mut [u8],
    batch: &[u8],
    first: usize,
    how: &How<'_>,
    widen: impl Fn([u8; N]) -> f32 + Copy,
) {
    for (at, row) in (first..).zip(batch.chunks_exact(how.row_bytes)) {
        let (scale, row) = match how.element {
            Element::I8 => (number(row, 0), &row[Element::SCALE..]),
            Element::F32 | Element::F16 => (1.0, row),
        };
        // By 1 nothing changes but that it takes time.
        let scaled = move |bytes| if N == 1 { widen(bytes) * scale } else { widen(bytes) };
        match how.reduction {
            Reduction::Sum | Reduction::Mean => each(into, row, scaled, |sum, x| sum + x),
            Reduction::Max => each(into, row, scaled, |most, x| if x > most { x } else { most }),
            Reduction::Weighted => {
                let weight = number(how.numbers, at);
                each(into, row, scaled, |sum, x| sum + weight * x);
            }
            Reduction::InnerProduct => {
                let product = inner_product(how.numbers, row, scaled);
                into[4 * at..4 * at + 4].copy_from_slice(&product.to_le_bytes());
            }
        }
    }
}

vectored! {
    /// Reduces a batch of whole rows, the first of which is number `first` of the call's.
    pub fn reduce(into: &mut [u8], batch: &[u8], first: usize, how: &How<'_>) {
        match how.element {
            Element::F32 => rows(into, batch, first, how, f32::from_le_bytes),
            Element::F16 => rows(into, batch, first, how, |bytes| f16_to_f32(u16::from_le_bytes(bytes))),
            Element::I8 => rows(into, batch, first, how, |[byte]: [u8; 1]| f32::from(byte as i8)),
        }
    }
}

/// What stands there before the first row.
pub fn begin(into: &mut [u8], params: &EmbedParams<'_>) {
    let first = if params.reduction == Reduction::Max && params.count() > 0 { f32::NEG_INFINITY } else { 0.0 };
    into.as_chunks_mut::<4>().0.fill(first.to_le_bytes());
}

/// What is left to do after the last row.
pub fn end(into: &mut [u8], params: &EmbedParams<'_>) {
    if params.reduction == Reduction::Mean && params.items > 0 {
        let items = params.items as f32;
        into.as_chunks_mut::<4>().0.iter_mut().for_each(|sum| *sum = (f32::from_le_bytes(*sum) / items).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_is_the_number_that_it_says() {
        for half in 0..=u16::MAX {
            let (sign, exponent, fraction) = (half >> 15, i32::from(half >> 10 & 31), f64::from(half & 1023) / 1024.0);
            let size = match exponent {
                0 => fraction * 2f64.powi(-14),
                31 if fraction == 0.0 => f64::INFINITY,
                31 => f64::NAN,
                _ => (1.0 + fraction) * 2f64.powi(exponent - 15),
            };
            let expected = if sign == 1 { -size } else { size } as f32;
            let found = f16_to_f32(half);
            assert!(found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()), "{half:#06x}");
        }
    }
}

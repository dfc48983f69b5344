//! Dense registers, a byte each.

use crate::vectored::vectored;

use super::coupon::{ADDRESS_BITS, BLOCK, Room, coupons_above};

/// A power of two of registers.
#[derive(Clone, Debug)]
pub(super) struct Dense {
    bytes: Vec<u8>,
    /// None is below: the least of them when they were last looked at.
    least: u8,
    /// Values until the next look.
    until_look: usize,
    /// Kept: clearing it for each run would cost as much as some values.
    room: Box<Room>,
}

impl PartialEq for Dense {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Dense {
    /// Over registers of which there are a power of two.
    pub fn new(bytes: Vec<u8>) -> Dense {
        assert!(bytes.len().is_power_of_two(), "a mask names registers");
        Dense { bytes, least: 0, until_look: 0, room: Box::default() }
    }

    /// The registers, of which none may wait to rise.
    pub fn bytes(&self) -> &[u8] {
        debug_assert!(self.room.is_empty(), "registers settle before they are read");
        &self.bytes
    }

    /// Raises a register to a value, if it is lower. Addresses wrap around.
    #[inline]
    pub fn raise(&mut self, at: usize, value: u8) {
        let mask = self.bytes.len() - 1;
        let register = &mut self.bytes[at & mask];
        *register = (*register).max(value);
    }

    /// Raises the register that a coupon names.
    #[inline]
    pub fn raise_by(&mut self, coupon: u32) {
        self.raise(coupon as usize, (coupon >> ADDRESS_BITS) as u8);
    }

    /// Adds little-endian values. `saw` gets registers that were looked at, and whether each rose: all that rise are among
    /// them. Some rise only with [`settle`](Self::settle).
    #[inline]
    pub fn raise_all(&mut self, values: &[[u8; 8]], mut saw: impl FnMut(usize, bool)) {
        for values in values.chunks(BLOCK) {
            let least = self.least_before(values.len());
            if !self.room.keep(least, values) {
                raise(&mut self.bytes, coupons_above(least, values, &mut self.room), &mut saw);
            } else if self.room.is_full() {
                self.settle(&mut saw);
            }
        }
    }

    /// Raises the registers that wait for it.
    #[inline]
    pub fn settle(&mut self, mut saw: impl FnMut(usize, bool)) {
        raise(&mut self.bytes, self.room.take_kept(self.least), &mut saw);
    }

    /// A value that no register is below, before so many values are added. It is looked for once in as many values as
    /// there are registers. That costs little, and is often enough: the least register rises by one while the values
    /// double.
    #[inline]
    fn least_before(&mut self, values: usize) -> u8 {
        match self.until_look.checked_sub(values) {
            Some(left) => self.until_look = left,
            None => {
                self.least = u8::MAX;
                lower(&self.bytes, &mut self.least);
                self.until_look = self.bytes.len();
            }
        }
        self.least
    }

    /// About how many distinct values there were, by Ertl's improved raw estimator.
    pub fn estimate(&self) -> f64 {
        let registers = self.bytes();
        let mut histogram = [0u64; 64];
        for &value in registers {
            histogram[value as usize & 63] += 1;
        }
        let m = registers.len() as f64;
        let mut z = m * tau(1.0 - histogram[63] as f64 / m);
        for &count in histogram[1..63].iter().rev() {
            z = 0.5 * (z + count as f64);
        }
        z += m * sigma(histogram[0] as f64 / m);
        m * m / (2.0 * std::f64::consts::LN_2) / z
    }
}

vectored! {
    /// Lowers `least` to the least of the registers.
    fn lower(registers: &[u8], least: &mut u8) {
        *least = registers.iter().fold(*least, |least, register| least.min(*register));
    }
}

/// Raises registers by coupons, without a branch: a core foresees badly which ones rise.
#[inline]
fn raise(registers: &mut [u8], coupons: &[u32], saw: &mut impl FnMut(usize, bool)) {
    let mask = registers.len() - 1;
    let registers = &mut registers[..=mask];
    for &coupon in coupons {
        let (at, value) = (coupon as usize & mask, (coupon >> ADDRESS_BITS) as u8);
        let was = registers[at];
        registers[at] = was.max(value);
        saw(at, was < value);
    }
}

/// Ertl's sigma: what empty registers say.
fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z == before {
            return z;
        }
    }
}

/// Ertl's tau: what full registers say.
fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x).powi(2) * y;
        if z == before {
            return z / 3.0;
        }
    }
}

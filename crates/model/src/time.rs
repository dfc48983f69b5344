//! Modelled time: whole picoseconds.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub};

/// A time since the run began, or a span of time, in picoseconds: up to 213 days.
///
/// Sums stop at the end of time instead of wrapping, differences at zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ps(pub u64);

impl Ps {
    /// The beginning, or no time at all.
    pub const ZERO: Self = Self(0);
    /// The end of time.
    pub const MAX: Self = Self(u64::MAX);

    /// Whole nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns.saturating_mul(1_000))
    }

    /// Whole microseconds.
    pub const fn from_us(us: u64) -> Self {
        Self(us.saturating_mul(1_000_000))
    }

    /// Seconds, to the nearest picosecond. What is negative or no number becomes zero.
    pub fn from_secs(seconds: f64) -> Self {
        Self(nearest(seconds * 1e12) as u64)
    }

    /// `cycles` periods of a clock, to the nearest picosecond.
    pub fn cycles(cycles: f64, clock_hz: f64) -> Self {
        Self::from_secs(cycles / clock_hz)
    }

    /// What `bytes` take at a bandwidth, rounded up: a server never beats its bandwidth.
    pub fn transfer(bytes: u64, bytes_per_s: f64) -> Self {
        Self(up(bytes as f64 * 1e12 / bytes_per_s) as u64)
    }

    /// In nanoseconds.
    pub fn as_ns(self) -> f64 {
        self.0 as f64 / 1e3
    }

    /// In seconds.
    pub fn as_secs(self) -> f64 {
        self.0 as f64 / 1e12
    }
}

/// The whole number at or above one that is not negative: [`f64::ceil`] without a call, which it is on processors without
/// an instruction for it. What has no fraction, being too large for one, is itself.
#[inline]
pub(crate) fn up(x: f64) -> f64 {
    let whole = x as i64 as f64;
    if whole < x && x < WHOLE { whole + 1.0 } else { x.max(whole) }
}

/// The whole number nearest to one that is not negative, half-way the one above: [`f64::round`] without a call.
#[inline]
pub(crate) fn nearest(x: f64) -> f64 {
    let whole = x as i64 as f64;
    if x >= WHOLE {
        x
    } else if x - whole >= 0.5 {
        whole + 1.0
    } else {
        whole
    }
}

/// From here on all numbers are whole.
const WHOLE: f64 = (1u64 << 53) as f64;

impl Add for Ps {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Ps {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Ps {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Mul<u64> for Ps {
    type Output = Self;
    fn mul(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }
}

impl Sum for Ps {
    fn sum<I: Iterator<Item = Self>>(spans: I) -> Self {
        spans.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Ps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..1_000 => write!(f, "{} ps", self.0),
            1_000..1_000_000 => write!(f, "{:.3} ns", self.0 as f64 / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.3} us", self.0 as f64 / 1e6),
            1_000_000_000..1_000_000_000_000 => write!(f, "{:.3} ms", self.0 as f64 / 1e9),
            _ => write!(f, "{:.3} s", self.0 as f64 / 1e12),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_rounding() {
        assert_eq!(Ps::from_ns(5) + Ps::from_us(1), Ps(1_005_000));
        // StRoM's clock of 156.25 MHz has periods of 6.4 ns.
        assert_eq!(Ps::cycles(5.0, 156.25e6), Ps(32_000));
        // 64 B at 10 Gb/s: 51.2 ns; 1 B at 3 B/s: a third of a second, rounded up.
        assert_eq!(Ps::transfer(64, 1.25e9), Ps(51_200));
        assert_eq!(Ps::transfer(1, 3.0), Ps(333_333_333_334));
        assert_eq!(Ps(2_500_000).to_string(), "2.500 us");
    }

    #[test]
    fn whole_numbers_are_those_of_floating_point() {
        let edges =
            [0.0, 0.25, 0.5, 0.499_999_999_999_999_94, 1.5, 2.5, 1e9 + 0.5, 4.5e15, 9.1e15, 1e300, f64::INFINITY];
        let more = (0..10_000).map(|n| f64::from(n) * 0.1237);
        for x in edges.into_iter().chain(more) {
            assert_eq!((up(x), nearest(x)), (x.ceil(), x.round()), "{x}");
        }
    }

    #[test]
    fn time_neither_wraps_nor_turns_back() {
        assert_eq!(Ps::MAX + Ps(1), Ps::MAX);
        assert_eq!(Ps(1) - Ps(2), Ps::ZERO);
        assert_eq!(Ps::from_secs(-1.0), Ps::ZERO);
        assert_eq!(Ps::transfer(1, 0.0), Ps::MAX);
    }
}

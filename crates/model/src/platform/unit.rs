//! Units of platform files: what a number counts, and how many base units one of it is.

use std::fmt;

/// What a value measures. The base units are picoseconds, bytes, bytes a second, hertz, cycles, watts and bare numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dimension {
    /// A span of time, in picoseconds.
    Time,
    /// An amount of memory or data, in bytes.
    Size,
    /// A flow of data, in bytes a second.
    Bandwidth,
    /// A clock, or events a second, in hertz.
    Rate,
    /// Clock periods of the component.
    Cycles,
    /// Power, in watts.
    Power,
    /// Things that one counts.
    Count,
    /// A part of a whole or a factor, without a unit.
    Ratio,
}

impl Dimension {
    /// The least and the largest value that hardware can have, in base units.
    pub fn bounds(self) -> (f64, f64) {
        match self {
            // From nothing to an hour.
            Self::Time => (0.0, 3.6e15),
            // Up to 2^53, beyond which whole numbers are not exact.
            Self::Size => (0.0, 9.0e15),
            // One bit a second to an exabyte.
            Self::Bandwidth => (0.125, 1e18),
            Self::Rate => (1e-3, 1e15),
            Self::Cycles => (0.0, 1e12),
            Self::Power => (0.0, 1e6),
            // A model has one of each.
            Self::Count => (0.0, 1e6),
            Self::Ratio => (0.0, 1e6),
        }
    }

    /// The units that one may write, in the order of messages.
    pub fn units(self) -> impl Iterator<Item = &'static str> {
        UNITS.iter().filter(move |unit| unit.1 == self).map(|unit| unit.0)
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Time => "a time",
            Self::Size => "a size",
            Self::Bandwidth => "a bandwidth",
            Self::Rate => "a frequency",
            Self::Cycles => "a number of cycles",
            Self::Power => "a power",
            Self::Count => "a count",
            Self::Ratio => "a ratio",
        })
    }
}

/// Decimal prefixes are powers of 1000, those with an i powers of 1024, as IEC 80000-13 has them. `b` is a bit.
const UNITS: [(&str, Dimension, f64); 34] = [
    ("ps", Dimension::Time, 1.0),
    ("ns", Dimension::Time, 1e3),
    ("us", Dimension::Time, 1e6),
    ("ms", Dimension::Time, 1e9),
    ("s", Dimension::Time, 1e12),
    ("B", Dimension::Size, 1.0),
    ("KiB", Dimension::Size, 1024.0),
    ("MiB", Dimension::Size, 1048576.0),
    ("GiB", Dimension::Size, 1073741824.0),
    ("kB", Dimension::Size, 1e3),
    ("KB", Dimension::Size, 1e3),
    ("MB", Dimension::Size, 1e6),
    ("GB", Dimension::Size, 1e9),
    ("TB", Dimension::Size, 1e12),
    ("B/s", Dimension::Bandwidth, 1.0),
    ("kB/s", Dimension::Bandwidth, 1e3),
    ("MB/s", Dimension::Bandwidth, 1e6),
    ("GB/s", Dimension::Bandwidth, 1e9),
    ("Mb/s", Dimension::Bandwidth, 1.25e5),
    ("Gb/s", Dimension::Bandwidth, 1.25e8),
    ("Hz", Dimension::Rate, 1.0),
    ("kHz", Dimension::Rate, 1e3),
    ("MHz", Dimension::Rate, 1e6),
    ("GHz", Dimension::Rate, 1e9),
    ("1/s", Dimension::Rate, 1.0),
    ("k/s", Dimension::Rate, 1e3),
    ("M/s", Dimension::Rate, 1e6),
    ("cycles", Dimension::Cycles, 1.0),
    ("W", Dimension::Power, 1.0),
    ("mW", Dimension::Power, 1e-3),
    ("count", Dimension::Count, 1.0),
    ("ways", Dimension::Count, 1.0),
    ("ratio", Dimension::Ratio, 1.0),
    ("%", Dimension::Ratio, 0.01),
];

/// What a unit measures and how many base units it is; `None` if there is no such unit.
pub fn lookup(unit: &str) -> Option<(Dimension, f64)> {
    UNITS.iter().find(|known| known.0 == unit).map(|&(_, dimension, factor)| (dimension, factor))
}

/// Reads a number with its unit, such as `1.5 us` or `800KB`: what it measures and how many base units it is.
pub fn quantity(text: &str) -> Option<(Dimension, f64)> {
    let text = text.trim();
    // A blank parts them, or else the unit begins where the number can go on no more.
    let number = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
    let (number, unit) = text.split_once(' ').or_else(|| text.split_at_checked(text.find(|c| !number(c))?))?;
    let (dimension, factor) = lookup(unit.trim())?;
    let value = number.trim().parse::<f64>().ok()? * factor;
    let (least, most) = dimension.bounds();
    (least..=most).contains(&value).then_some((dimension, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_what_they_say() {
        assert_eq!(lookup("us"), Some((Dimension::Time, 1e6)));
        assert_eq!(lookup("Gb/s"), Some((Dimension::Bandwidth, 1e9 / 8.0)));
        assert_eq!(lookup("MiB"), Some((Dimension::Size, f64::from(1 << 20))));
        assert_eq!(lookup("parsec"), None);
        assert_eq!(quantity("1.5 us"), Some((Dimension::Time, 1.5e6)));
        assert_eq!(quantity("800KB"), Some((Dimension::Size, 8e5)));
        assert_eq!(quantity("1e3 1/s"), Some((Dimension::Rate, 1e3)));
        assert!(["1.5", "us", "-1 us", "1e99 B", "x us", "nan us"].iter().all(|bad| quantity(bad).is_none()));
        for (unit, dimension, factor) in UNITS {
            assert_eq!(lookup(unit), Some((dimension, factor)), "{unit} stands there once");
            assert!(dimension.units().any(|name| name == unit));
        }
    }
}

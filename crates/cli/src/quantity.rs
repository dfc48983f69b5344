//! Numbers as people write them: 1e6, 1_000_000, 512M, 512 MB, 50 ms.

use std::time::Duration;

use remora_model::platform::Dimension;
use remora_study::machine::Machine;

use crate::Failure;

/// Whether this machine has so much memory: asked for more it would end this process in the midst of filling it.
pub fn in_memory(flag: &str, bytes: u64) -> Result<(), Failure> {
    match Machine::describe().memory_bytes {
        all if bytes > all && all > 0 => {
            Err(Failure::Usage(format!("{flag} asks for {} MB, and this machine has {}", bytes >> 20, all >> 20)))
        }
        _ => Ok(()),
    }
}

/// A number and what stands behind it.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    // An exponent belongs to the number, a unit does not: 1e6, but 2 EB.
    let is_number = |at: usize, c: char| {
        c.is_ascii_digit()
            || c == '.'
            || c == '_' && at > 0
            || (c == 'e' || c == 'E') && text[at + 1..].starts_with(|c: char| c.is_ascii_digit())
    };
    let end = text.char_indices().find(|&(at, c)| !is_number(at, c)).map_or(text.len(), |(at, _)| at);
    let number: f64 = text[..end].replace('_', "").parse().ok()?;
    Some((number, text[end..].trim_start()))
}

/// A whole number below 2^53; `None` for one with a part behind the point.
fn whole(value: f64) -> Option<u64> {
    (value >= 0.0 && value < (1u64 << 53) as f64 && value == value.trunc()).then_some(value as u64)
}

/// A whole number: digits, `_` between them, an exponent, k, M or G for powers of 1000.
pub fn count(text: &str) -> Result<u64, String> {
    // All 64 bits of what is only digits.
    if let Ok(number) = text.replace('_', "").parse() {
        return Ok(number);
    }
    let value = split(text).and_then(|(number, unit)| {
        let factor = match unit {
            "" => 1.0,
            "k" | "K" => 1e3,
            "M" => 1e6,
            "G" => 1e9,
            _ => return None,
        };
        whole(number * factor)
    });
    value.ok_or_else(|| "give a whole number, such as 20000, 2e4 or 20k".into())
}

/// Bytes. K, M, G and T, also as KiB and so on, are powers of 1024; kB, MB, GB and TB powers of 1000.
pub fn size(text: &str) -> Result<u64, String> {
    let value = split(text).and_then(|(number, unit)| {
        let factor = match unit {
            "" | "B" => 1.0,
            "k" | "K" | "KiB" => 1024.0,
            "M" | "MiB" => f64::from(1 << 20),
            "G" | "GiB" => f64::from(1 << 30),
            "T" | "TiB" => (1u64 << 40) as f64,
            "kB" | "KB" => 1e3,
            "MB" => 1e6,
            "GB" => 1e9,
            "TB" => 1e12,
            _ => return None,
        };
        // Half a byte is none.
        whole((number * factor).trunc()).filter(|&bytes| bytes < 1 << 47)
    });
    value.ok_or_else(|| "give bytes below 128T, such as 65536, 512M, 512 MB or 1.5GiB".into())
}

/// Bytes a second, with the units of platforms' files.
pub fn bandwidth(text: &str) -> Result<f64, String> {
    match remora_model::platform::quantity(text) {
        Some((Dimension::Bandwidth, bytes)) => Ok(bytes),
        _ => Err("give a bandwidth with its unit, such as 250Mb/s or 1GB/s".into()),
    }
}

/// A size of a megabyte at least: what hardware or a table has.
pub fn megabytes(text: &str) -> Result<u64, String> {
    size(text).and_then(|bytes| match bytes >= 1 << 20 {
        true => Ok(bytes),
        false => Err("give at least 1M".into()),
    })
}

/// A time from a millisecond to a minute: seconds, or a number with ms, s or min.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = split(text).and_then(|(number, unit)| {
        let factor = match unit {
            "" | "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "min" | "m" => 60.0,
            _ => return None,
        };
        Some(number * factor).filter(|seconds| (0.001..=60.0).contains(seconds))
    });
    let seconds = seconds.ok_or("give seconds from 0.001 to 60, such as 0.5 or 500ms")?;
    Ok(Duration::from_secs_f64(seconds))
}

/// A number within bounds, written as [`count`] takes it.
pub fn up_to<T: TryFrom<i64>>(
    range: std::ops::RangeInclusive<i64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync {
    move |text| {
        let wanted = || format!("give a number from {} to {}", range.start(), range.end());
        let number = count(text).map_err(|_| wanted())?;
        let number = i64::try_from(number).ok().filter(|number| range.contains(number)).ok_or_else(wanted)?;
        T::try_from(number).map_err(|_| wanted())
    }
}

/// Bytes of a B-tree's node.
pub fn node_bytes(text: &str) -> Result<usize, String> {
    let bytes = size(text).ok().filter(|bytes| (256..=4096).contains(bytes) && bytes.is_power_of_two());
    bytes.map(|bytes| bytes as usize).ok_or_else(|| "give 256, 512, 1024, 2048 or 4096".into())
}

/// A time from 20 milliseconds to a minute: milliseconds, or a number with ms, s or min.
pub fn milliseconds(text: &str) -> Result<Duration, String> {
    let time = match count(text) {
        Ok(number) => Some(Duration::from_millis(number)),
        Err(_) => seconds(text).ok(),
    };
    let bounds = Duration::from_millis(20)..=Duration::from_mins(1);
    time.filter(|time| bounds.contains(time))
        .ok_or_else(|| "give milliseconds from 20 to 60000, or such as 0.5s".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_what_people_mean() {
        for (text, number) in [("1e6", 1_000_000), ("1_000_000", 1_000_000), ("20k", 20_000), ("2.5e3", 2500), ("7", 7)]
        {
            assert_eq!(count(text), Ok(number), "{text}");
        }
        assert_eq!(count("18446744073709551615"), Ok(u64::MAX));
        for bad in ["", "x", "-1", "1.5", "1e", "e6", "1e99", "12Q", "_"] {
            assert!(count(bad).is_err(), "{bad}");
        }
        assert_eq!(up_to::<u32>(0..=100_000_000)("1e6"), Ok(1_000_000));
        assert!(["0", "101", "x"].iter().all(|bad| up_to::<u32>(1..=100)(bad).is_err()));
        assert_eq!((up_to::<u8>(1..=200)("2e2"), up_to::<u8>(1..=1000)("256").is_err()), (Ok(200), true));
    }

    #[test]
    fn sizes_have_the_units_of_memory_and_of_disks() {
        for (text, bytes) in [
            ("512M", 512 << 20),
            ("512 MiB", 512 << 20),
            ("512 MB", 512_000_000),
            ("800 KB", 800_000),
            ("256K", 256 << 10),
            ("1.5G", 3 << 29),
            ("2097152", 2 << 20),
            ("1e9", 1_000_000_000),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "M", "12Q", "1KK", "9999999T", "-1", "512 M B"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert!(megabytes("12K").is_err() && megabytes("1M").is_ok());
    }

    #[test]
    fn bandwidths_have_units() {
        assert_eq!((bandwidth("250 Mb/s"), bandwidth("1GB/s")), (Ok(31_250_000.0), Ok(1e9)));
        assert!(["250", "1 GB", "0 B/s", "-1 GB/s", "x"].iter().all(|bad| bandwidth(bad).is_err()));
    }

    #[test]
    fn times_are_seconds_unless_they_say_otherwise() {
        assert_eq!(seconds("0.14"), Ok(Duration::from_millis(140)));
        assert_eq!(seconds("50ms"), Ok(Duration::from_millis(50)));
        assert_eq!(seconds("2 s"), Ok(Duration::from_secs(2)));
        assert!(["0", "nan", "inf", "-1", "61", "x", "2min"].iter().all(|bad| seconds(bad).is_err()));
    }
}

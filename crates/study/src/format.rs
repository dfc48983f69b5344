//! Numbers and text as people read them.

use std::fmt::Write;

/// Columns that every line of a table fits in.
pub const WIDTH: usize = 80;

/// Three digits and a unit of time.
pub fn time(ns: f64) -> String {
    match ns {
        _ if !ns.is_finite() => "-".into(),
        ns if ns < 999.5 => format!("{ns:.0} ns"),
        ns if ns < 999_500.0 => format!("{} µs", digits(ns / 1e3)),
        ns if ns < 999_500_000.0 => format!("{} ms", digits(ns / 1e6)),
        ns => format!("{} s", digits(ns / 1e9)),
    }
}

/// Microseconds with three digits, without the unit.
pub fn micros(ns: u64) -> String {
    digits(ns as f64 / 1e3)
}

/// Operations a second: `1.24 M`, `830 k`, `12.0`.
pub fn rate(per_s: f64) -> String {
    match per_s {
        _ if !per_s.is_finite() => "-".into(),
        r if r >= 999_500.0 => format!("{} M", digits(r / 1e6)),
        r if r >= 999.5 => format!("{} k", digits(r / 1e3)),
        r => digits(r),
    }
}

/// A whole number with commas.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count per operation: whole numbers plain, others with two digits.
pub fn per_op(n: f64) -> String {
    if (n - n.round()).abs() < 0.005 { format!("{n:.0}") } else { format!("{n:.2}") }
}

/// `1 round trip`, `9 round trips`, `1.04 round trips`.
pub fn plural(n: f64, what: &str) -> String {
    let text = per_op(n);
    if text == "1" { format!("1 {what}") } else { format!("{text} {what}s") }
}

/// A power of two as `1`, `512`, `4 Ki`.
pub fn power_of_two(n: u64) -> String {
    if n >= 1024 && n.is_multiple_of(1024) { format!("{} Ki", n / 1024) } else { n.to_string() }
}

/// Three digits: `0.123`, `1.23`, `12.3`, `123`, `1,234`.
pub fn digits(x: f64) -> String {
    match x {
        x if x >= 999.5 => count(x.round() as u64),
        x if x >= 99.95 => format!("{x:.0}"),
        x if x >= 9.995 => format!("{x:.1}"),
        x if x >= 0.9995 => format!("{x:.2}"),
        x => format!("{x:.3}"),
    }
}

/// Bytes: `64 B`, `4 KiB`, `1.5 GiB`.
pub fn bytes(n: u64) -> String {
    let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(size, _)| n >= *size) {
        None => format!("{n} B"),
        Some((size, unit)) if n.is_multiple_of(size) => format!("{} {unit}", n / size),
        Some((size, unit)) => format!("{:.1} {unit}", n as f64 / size as f64),
    }
}

/// A date and time of day in UTC: `2026-11-21 12:00`.
pub fn date(unix_s: u64) -> String {
    // Days to a civil date, by counting in eras of 400 years from 1 March of year 0.
    let days = unix_s / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * from_march + 2) / 5 + 1, (from_march + 2) % 12 + 1);
    let year = year + era * 400 + u64::from(month <= 2);
    let minutes = unix_s / 60;
    format!("{year}-{month:02}-{day:02} {:02}:{:02}", minutes / 60 % 24, minutes % 60)
}

/// When that was: seconds since 1970 of what [`date`] has written; `None` of anything else.
pub fn unix_s(text: &str) -> Option<u64> {
    let numbers: Vec<u64> =
        text.split(['-', ' ', ':']).map(|part| part.parse().ok().filter(|n| *n < 10_000)).collect::<Option<_>>()?;
    let [year, month, day, hour, minute] = numbers[..] else { return None };
    let (year, from_march) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let days =
        (365 * year + year / 4 - year / 100 + year / 400 + (153 * from_march + 2) / 5 + day).checked_sub(719_469)?;
    let unix_s = days * 86_400 + hour * 3_600 + minute * 60;
    (date(unix_s) == text).then_some(unix_s)
}

/// How long so many seconds are, roughly: `7 days`.
pub fn span(seconds: u64) -> String {
    match seconds {
        s if s < 2 * 3_600 => format!("{} min", s / 60),
        s if s < 2 * 86_400 => format!("{} h", s / 3_600),
        s => format!("{} days", s / 86_400),
    }
}

/// A name and text after it, indented, in lines of at most [`WIDTH`]; those after the first two columns further in.
pub fn wrap(out: &mut String, indent: usize, name: &str, text: &str) {
    let mut column = indent + name.chars().count();
    let _ = write!(out, "{:indent$}{name}", "");
    for (n, word) in text.split_whitespace().enumerate() {
        let len = word.chars().count();
        if n > 0 && column + 1 + len > WIDTH {
            column = indent + 2;
            let _ = write!(out, "\n{:column$}", "");
        } else if n > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += len;
    }
    out.push('\n');
}

/// Text whose lines all fit: longer ones are cut between words, and go on two columns further in. What a line has before the
/// cut stays as it is, so that a row of a table keeps its columns.
pub fn folded(text: &str) -> String {
    let mut out = String::new();
    for line in text.split_inclusive('\n') {
        let bare = line.trim_end();
        let further = bare.chars().count() - bare.trim_start().chars().count() + 2;
        let (mut rest, mut indent) = (bare, 0);
        while let Some(cut) = cut(rest, WIDTH.saturating_sub(indent)) {
            let _ = writeln!(out, "{:indent$}{}", "", rest[..cut].trim_end());
            (rest, indent) = (rest[cut..].trim_start(), further);
        }
        let end = if line.ends_with('\n') { "\n" } else { "" };
        let _ = write!(out, "{:indent$}{rest}{end}", "");
    }
    out
}

/// Where a line is cut that is longer than so many columns: behind the last word that fits, or the first if none does.
fn cut(line: &str, columns: usize) -> Option<usize> {
    let (over, _) = line.char_indices().nth(columns)?;
    let start = line.len() - line.trim_start().len();
    let fits = line[start..over].rfind(' ').map(|at| start + at).filter(|at| *at > start);
    // The word that ends just there fits too.
    let fits = if line[over..].starts_with(' ') { Some(over) } else { fits };
    fits.or_else(|| line[over..].find(' ').map(|at| over + at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_folded_and_others_stay() {
        let table = "a     b\n  1     2\n";
        assert_eq!(folded(table), table);
        let row = folded(&format!("  a{:>40}  {}\n", "b", "why ".repeat(12)));
        assert!(row.starts_with(&format!("  a{:>40}  why why", "b")), "its columns stay: {row}");
        assert!(row.lines().skip(1).all(|line| line.starts_with("    why")) && row.lines().count() == 2, "{row}");
        let word = "x".repeat(WIDTH + 5);
        assert_eq!(folded(&format!("{word} y\n")), format!("{word}\n  y\n"), "a word is not cut");
        let full = format!("{} b", "a".repeat(WIDTH));
        assert_eq!(folded(&full), format!("{}\n  b", "a".repeat(WIDTH)));
        let words = ["word"; 30].join(" ");
        let text = format!("{table}  {words}\n\n{words}");
        let shown = folded(&text);
        assert!(shown.lines().all(|line| line.chars().count() <= WIDTH) && shown.starts_with(table), "{shown}");
        assert!(shown.contains("\n  word word") && shown.contains("\n    word") && shown.ends_with("word"), "{shown}");
        assert_eq!(shown.split_whitespace().count(), text.split_whitespace().count());
    }

    #[test]
    fn numbers_read_well() {
        let times = [0.0, 64.4, 999.4, 999.6, 7_123.0, 51_960.0, 230_400.0, 1_234_000.0, 2.5e9, 4e12];
        assert_eq!(
            times.map(time),
            ["0 ns", "64 ns", "999 ns", "1.00 µs", "7.12 µs", "52.0 µs", "230 µs", "1.23 ms", "2.50 s", "4,000 s"]
        );
        assert_eq!([830, 7_123, 51_960, 2_304_000].map(micros), ["0.830", "7.12", "52.0", "2,304"]);
        assert_eq!([0.0, 12.0, 4_321.0, 830_123.0, 1.24e6].map(rate), ["0.000", "12.0", "4.32 k", "830 k", "1.24 M"]);
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([1.0, 9.0, 1.04, 2.999].map(per_op), ["1", "9", "1.04", "3"]);
        assert_eq!(plural(1.0, "round trip") + ", " + &plural(1.5, "round trip"), "1 round trip, 1.50 round trips");
        assert_eq!([64, 4096, 3 << 29, 16 << 20].map(bytes), ["64 B", "4 KiB", "1.5 GiB", "16 MiB"]);
        assert_eq!([1, 512, 1024, 4096, 1500].map(power_of_two), ["1", "512", "1 Ki", "4 Ki", "1500"]);
    }
    #[test]
    fn dates_are_civil_and_read_again() {
        let dates = [
            (0, "1970-01-01 00:00"),
            (951_782_400, "2000-02-29 00:00"),
            (1_795_262_400, "2026-11-21 12:00"),
            (1_798_761_540, "2026-12-31 23:59"),
            (4_107_542_400, "2100-03-01 00:00"),
        ];
        for (seconds, text) in dates {
            assert_eq!((date(seconds).as_str(), unix_s(text)), (text, Some(seconds)));
        }
        assert_eq!(date(1_798_761_599), "2026-12-31 23:59");
        for wrong in [
            "",
            "yesterday",
            "2026-11-21",
            "2026-11-21 12:00:00",
            "2026-02-30 12:00",
            "2026-13-01 00:00",
            "1969-12-31 23:59",
        ] {
            assert_eq!(unix_s(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn spans_are_rough() {
        assert_eq!([119, 7_200, 172_800, 604_799].map(span), ["1 min", "2 h", "2 days", "6 days"]);
    }
}

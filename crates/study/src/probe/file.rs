//! Figures as a platform file.

use std::fmt::Write;

use super::Figure;
use crate::format::date;

/// The text of a platform file with the software NIC as its NIC, and when it was probed, in seconds since 1970, if that is to
/// stand there. Figures stand in their sections, sections in the order of their first figure.
pub fn platform_file(name: &str, title: &str, probed_unix_s: Option<u64>, figures: &[Figure]) -> String {
    let quoted = |text: &str| text.replace(['"', '\\', '\n'], " ");
    let mut out =
        String::from("# Measured by `remora probe`: a value is the median of its rounds, a range their spread.\n");
    let _ = writeln!(out, "\nname = \"{}\"\ntitle = \"{}\"", quoted(name), quoted(title));
    if let Some(probed) = probed_unix_s {
        let _ = writeln!(out, "probed = \"{}\"", date(probed));
    }
    out += "\n[placements]\nclient = \"core\"\nhost = \"core\"\nnic = \"software\"\n";
    let mut sections: Vec<&str> = Vec::new();
    for figure in figures {
        let section = section(&figure.path);
        if !sections.contains(&section) {
            sections.push(section);
        }
    }
    for name in sections {
        let _ = writeln!(out, "\n[{name}]");
        for figure in figures.iter().filter(|figure| section(&figure.path) == name) {
            let key = &figure.path[name.len() + 1..];
            let Figure { unit, how, value, range: (low, high), .. } = figure;
            let (value, low, high) = (rounded(*value), rounded(*low), rounded(*high));
            let _ = writeln!(
                out,
                "{key} = {{ value = {value}, unit = \"{unit}\", status = \"measured\", range = [{low}, {high}], \
                 source = \"{how}\" }}"
            );
        }
    }
    out
}

fn section(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(section, _)| section)
}

/// Four digits: what varies by parts in a hundred needs no more. Rounding is monotone, so the range holds the value.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_in_their_sections() {
        let figure = |path: &str, value: f64| Figure {
            path: path.into(),
            unit: "ns",
            how: "a loop",
            value,
            range: (value / 2.0, value * 2.0),
        };
        let figures = [figure("a.b.c", 1.23456), figure("d.e", 2.0), figure("a.b.f", 3e5)];
        let text = platform_file("here", "a \"machine\"", Some(0), &figures);
        let lines: Vec<&str> = text.split("nic = \"software\"\n").nth(1).unwrap().lines().collect();
        assert!(text.contains("title = \"a  machine \"\nprobed = \"1970-01-01 00:00\"\n"), "{text}");
        let rest = "status = \"measured\"";
        assert_eq!(lines[..2], ["", "[a.b]"]);
        assert_eq!(
            lines[2],
            format!("c = {{ value = 1.235, unit = \"ns\", {rest}, range = [0.6173, 2.469], source = \"a loop\" }}")
        );
        assert!(lines[3].starts_with("f = { value = 300000, ") && lines[5] == "[d]" && lines[6].starts_with("e = "));
    }
}

//! Parts of platforms: a device's values, written once and included wherever the device is.
//!
//! `part = "NAME"` in a section stands for the lines of `platforms/parts/NAME.toml`, or of a file of that name beside the
//! platform's, whose sections are then sections of this one. What a part says a platform cannot say again: TOML has no
//! key twice.

use std::path::Path;

use super::error::{PlatformError, Problem};

/// The parts that come with the program: name and file.
const PARTS: [(&str, &str); 12] = [
    ("bluefield2-cores", include_str!("../../../../platforms/parts/bluefield2-cores.toml")),
    ("bluefield2-path", include_str!("../../../../platforms/parts/bluefield2-path.toml")),
    ("bluefield2-port", include_str!("../../../../platforms/parts/bluefield2-port.toml")),
    ("connectx-state", include_str!("../../../../platforms/parts/connectx-state.toml")),
    ("core-i7-7700", include_str!("../../../../platforms/parts/core-i7-7700.toml")),
    ("core-i7-7700-host", include_str!("../../../../platforms/parts/core-i7-7700-host.toml")),
    ("gold-5220", include_str!("../../../../platforms/parts/gold-5220.toml")),
    ("gold-6326", include_str!("../../../../platforms/parts/gold-6326.toml")),
    ("linux-jitter", include_str!("../../../../platforms/parts/linux-jitter.toml")),
    ("strom-host", include_str!("../../../../platforms/parts/strom-host.toml")),
    ("strom-stack", include_str!("../../../../platforms/parts/strom-stack.toml")),
    ("two-sockets", include_str!("../../../../platforms/parts/two-sockets.toml")),
];

/// A platform's text with its parts, and where each line comes from.
pub(super) struct Whole {
    /// The text.
    pub text: String,
    /// For each of its lines the file, and the line there.
    pub origins: Vec<(String, usize)>,
}

/// Puts parts in where they are asked for.
pub(super) fn whole(file: &str, text: &str) -> Result<Whole, PlatformError> {
    let mut whole = Whole { text: String::with_capacity(text.len()), origins: Vec::new() };
    let mut section = String::new();
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(name) = header(line) {
            section = name.into();
        }
        let Some(part) = asked_for(line) else {
            whole.push(line, file, number);
            continue;
        };
        let (name, lines) = found(file, part).ok_or_else(|| PlatformError::At {
            file: file.into(),
            line: number,
            key: if section.is_empty() { "part".into() } else { format!("{section}.part") },
            problem: Problem::NoPart { part: part.into(), known: PARTS.map(|(name, _)| name).join(", ") },
        })?;
        for (number, line) in (1..).zip(lines.lines()).skip_while(|(_, line)| line.starts_with('#') || line.is_empty())
        {
            match header(line).filter(|_| !section.is_empty()) {
                Some(inner) => whole.push(&format!("[{section}.{inner}]"), &name, number),
                None => whole.push(line, &name, number),
            }
        }
    }
    Ok(whole)
}

impl Whole {
    fn push(&mut self, line: &str, file: &str, number: usize) {
        self.text.push_str(line);
        self.text.push('\n');
        self.origins.push((file.into(), number));
    }
}

fn header(line: &str) -> Option<&str> {
    line.trim().strip_prefix('[')?.split_once(']').map(|(name, _)| name.trim())
}

fn asked_for(line: &str) -> Option<&str> {
    let rest = line.trim().strip_prefix("part")?.trim_start().strip_prefix('=')?.trim_start().strip_prefix('"')?;
    rest.split_once('"').map(|(name, _)| name)
}

/// The part's file and text: one that comes with the program, or one beside the platform's file.
fn found(file: &str, part: &str) -> Option<(String, String)> {
    if let Some((name, text)) = PARTS.iter().find(|(name, _)| *name == part) {
        return Some((format!("platforms/parts/{name}.toml"), (*text).into()));
    }
    // A name and no way: a platform reads nothing from elsewhere.
    let is_name = part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    let path = Path::new(file).parent()?.join(format!("{part}.toml"));
    let text = is_name.then(|| super::read(&path).ok())??;
    Some((path.display().to_string(), text))
}

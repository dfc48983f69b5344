//! Tables of a platform file, as they stand there, made into values and words.

use std::ops::Range;
use std::sync::OnceLock;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::super::error::{PlatformError, Problem};
use super::super::unit;
use super::{Param, SourceStatus, Word, origin};

/// What every value has.
const FIELDS: [&str; 5] = ["value", "unit", "source", "status", "range"];

/// What reads a file's tables into values and words.
pub(super) struct Parser<'a> {
    pub file: &'a str,
    pub lines: Lines,
    pub origins: &'a [(String, usize)],
    pub params: Vec<Param>,
    pub words: Vec<Word>,
}

impl Parser<'_> {
    pub fn table(&mut self, path: &str, table: &DeTable<'_>) -> Result<(), PlatformError> {
        for (key, value) in table.iter() {
            let path = if path.is_empty() { key.get_ref().to_string() } else { format!("{path}.{}", key.get_ref()) };
            let line = self.lines.of(&key.span());
            match value.get_ref() {
                DeValue::String(text) => {
                    self.words.push(Word { path, text: text.to_string(), line, used: OnceLock::new() });
                }
                DeValue::Table(inner) if FIELDS.iter().any(|&field| inner.contains_key(field)) => {
                    let param = self.param(path, line, inner)?;
                    self.params.push(param);
                }
                DeValue::Table(inner) => self.table(&path, inner)?,
                _ => return Err(self.error(line, &path, Problem::NoTable)),
            }
        }
        Ok(())
    }

    fn param(&self, path: String, line: usize, table: &DeTable<'_>) -> Result<Param, PlatformError> {
        if let Some(key) = table.keys().find(|key| !FIELDS.contains(&key.get_ref().as_ref())) {
            let problem = Problem::UnknownField(key.get_ref().to_string());
            return Err(self.error(self.lines.of(&key.span()), &path, problem));
        }
        let field =
            |name: &'static str| table.get(name).ok_or_else(|| self.error(line, &path, Problem::MissingField(name)));
        let text = |name: &'static str| match field(name)?.get_ref() {
            DeValue::String(text) if !text.trim().is_empty() => Ok(text.to_string()),
            _ => Err(self.error(line, &path, Problem::NoText(name))),
        };
        let number = |name: &'static str, value: &Spanned<DeValue<'_>>| match number(value.get_ref()) {
            Some(number) => Ok(number),
            None => Err(self.error(self.lines.of(&value.span()), &path, Problem::NoNumber(name))),
        };
        let value = number("value", field("value")?)?;
        let unit = text("unit")?;
        let (dimension, factor) =
            unit::lookup(&unit).ok_or_else(|| self.error(line, &path, Problem::UnknownUnit(unit.clone())))?;
        let status = text("status")?;
        let status = SourceStatus::ALL.iter().find(|(_, name)| *name == status).map(|(status, _)| *status);
        let status = status.ok_or_else(|| self.error(line, &path, Problem::UnknownStatus))?;
        let range = match field("range")?.get_ref() {
            DeValue::Array(ends) if ends.len() == 2 => (number("range", &ends[0])?, number("range", &ends[1])?),
            _ => return Err(self.error(line, &path, Problem::NoRange)),
        };
        if !(range.0 <= value && value <= range.1) {
            return Err(self.error(line, &path, Problem::OutOfRange { value, range, unit }));
        }
        let (least, most) = dimension.bounds();
        let (value, range) = (value * factor, (range.0 * factor, range.1 * factor));
        if range.0 < least || range.1 > most {
            return Err(self.error(line, &path, Problem::Impossible(dimension)));
        }
        let source = text("source")?;
        Ok(Param { path, value, range, unit, dimension, source, status, line, used: OnceLock::new() })
    }

    fn error(&self, line: usize, key: &str, problem: Problem) -> PlatformError {
        let (file, line) = origin(self.origins, self.file, line);
        PlatformError::At { file, line, key: key.into(), problem }
    }
}

/// A finite number.
fn number(value: &DeValue<'_>) -> Option<f64> {
    let number = match value {
        DeValue::Integer(integer) => i64::from_str_radix(integer.as_str(), integer.radix()).ok()? as f64,
        DeValue::Float(float) => float.as_str().parse().ok()?,
        _ => return None,
    };
    f64::is_finite(number).then_some(number)
}

/// Turns byte offsets into line numbers, from 1.
pub(super) struct Lines(Vec<usize>);

impl Lines {
    pub fn new(text: &str) -> Self {
        Self(text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect())
    }

    pub fn of(&self, span: &Range<usize>) -> usize {
        self.0.partition_point(|&end| end < span.start) + 1
    }
}

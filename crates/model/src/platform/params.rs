//! A platform file's values: parsed, checked for form, each with its source; not yet given a meaning.
//!
//! A value is a table `{ value = 1.5, unit = "us", source = "..", status = "printed", range = [1.4, 1.6] }` under a
//! dotted path such as `host.dram.latency`. All five fields are required: a number without a source or a range is not
//! one that a prediction may rest on.

mod parser;

use std::fmt;
use std::sync::OnceLock;

use serde::Serialize;
use toml::de::DeTable;

use super::error::{PlatformError, Problem};
use super::parts::{self, Whole};
use super::typed::CommandPath;
use super::unit::{self, Dimension};
use crate::resource::Order;
use parser::{Lines, Parser};

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceStatus {
    /// Printed in the paper or data sheet that the source names.
    Printed,
    /// Arithmetic on printed values, shown in the source.
    Derived,
    /// From other literature about the same kind of hardware.
    Literature,
    /// Published by nobody: reasoned in the source.
    Estimate,
    /// Measured on the machine itself.
    Measured,
}

impl SourceStatus {
    /// All, from the firmest to the weakest, as files spell them.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Measured, "measured"),
        (Self::Printed, "printed"),
        (Self::Derived, "derived"),
        (Self::Literature, "literature"),
        (Self::Estimate, "estimate"),
    ];

    /// As files spell it.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(status, _)| *status == self).map_or("", |(_, name)| name)
    }
}

impl fmt::Display for SourceStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One value of a platform, in base units of its dimension.
#[derive(Clone, Debug)]
pub struct Param {
    /// Its dotted path, such as `host.dram.latency`.
    pub path: String,
    /// The value in base units.
    pub value: f64,
    /// What it may be, in base units; holds the value.
    pub range: (f64, f64),
    /// The unit as written.
    pub unit: String,
    /// What it measures.
    pub dimension: Dimension,
    /// Who says so.
    pub source: String,
    /// How firm it is.
    pub status: SourceStatus,
    /// The line of the file with its parts.
    pub line: usize,
    used: OnceLock<()>,
}

impl Param {
    /// A value in base units in the unit that the file has.
    pub fn in_unit(&self, base: f64) -> f64 {
        let factor = unit::lookup(&self.unit).map_or(1.0, |(_, factor)| factor);
        // Twelve digits: what a conversion adds is not worth showing.
        format!("{:.12e}", base / factor).parse::<f64>().unwrap_or(base / factor)
    }

    /// The value as the file writes it: `1.5 us`.
    pub fn text(&self, base: f64) -> String {
        format!("{} {}", self.in_unit(base), self.unit)
    }

    /// Whether its range leaves room.
    pub fn is_open(&self) -> bool {
        self.range.0 < self.range.1
    }
}

/// A word of a platform, such as the device of a placement.
#[derive(Clone, Debug)]
pub struct Word {
    /// Its dotted path.
    pub path: String,
    /// The word.
    pub text: String,
    /// The line of the file with its parts.
    pub line: usize,
    used: OnceLock<()>,
}

/// All values and words of a platform file, in its order.
#[derive(Clone, Debug)]
pub struct Params {
    /// The file, for messages.
    pub file: String,
    params: Vec<Param>,
    words: Vec<Word>,
    /// For each line the file that it comes from, and the line there.
    origins: Vec<(String, usize)>,
    /// The section whose queues are served out of turn, if one's are.
    out_of_turn: Option<OutOfTurn>,
}

/// A section whose queues are served out of turn.
#[derive(Clone, Debug)]
struct OutOfTurn {
    section: String,
    /// Set when something with a queue is made of that section.
    used: OnceLock<()>,
}

impl Params {
    /// Parses a file's text. Fails on the first thing that is not of the right form.
    pub fn parse(file: &str, text: &str) -> Result<Self, PlatformError> {
        let Whole { text, origins } = parts::whole(file, text)?;
        let lines = Lines::new(&text);
        let document = DeTable::parse(&text).map_err(|e| {
            let (file, line) = origin(&origins, file, lines.of(&e.span().unwrap_or(0..0)));
            PlatformError::Syntax { file, line, message: e.message().trim_end().replace('\n', " ") }
        })?;
        let mut parser = Parser { file, lines, origins: &origins, params: Vec::new(), words: Vec::new() };
        parser.table("", document.get_ref())?;
        let Parser { mut params, mut words, .. } = parser;
        params.sort_by_key(|param| param.line);
        words.sort_by_key(|word| word.line);
        Ok(Self { file: file.into(), params, words, origins, out_of_turn: None })
    }

    /// All values, in the file's order.
    pub fn iter(&self) -> impl Iterator<Item = &Param> {
        self.params.iter()
    }

    /// The value at a path.
    pub fn get(&self, path: &str) -> Option<&Param> {
        self.params.iter().find(|param| param.path == path)
    }

    /// Puts another value at `path`, in base units. The range is left as it is and need not hold it: that is how one
    /// asks what would be beyond.
    pub fn set(&mut self, path: &str, value: f64) {
        if let Some(param) = self.params.iter_mut().find(|param| param.path == path) {
            param.value = value;
        }
    }

    /// Has the queues of what a section describes served out of turn: a wrong model, to see who notices. Files cannot say so.
    pub(crate) fn set_out_of_turn(&mut self, section: &str) {
        self.out_of_turn = Some(OutOfTurn { section: section.into(), used: OnceLock::new() });
    }

    /// The section whose queues are served out of turn, if one's are, and something read it as one that has queues.
    pub fn out_of_turn(&self) -> Option<&str> {
        let wrong = self.out_of_turn.as_ref()?;
        wrong.used.get().map(|()| wrong.section.as_str())
    }

    /// Whether anything stands under a section.
    pub fn has(&self, section: &str) -> bool {
        let inside = |path: &str| path.strip_prefix(section).is_some_and(|rest| rest.starts_with('.'));
        self.params.iter().any(|param| inside(&param.path)) || self.words.iter().any(|word| inside(&word.path))
    }

    /// Reads the values of a section.
    pub fn section<'a>(&'a self, name: &'a str) -> Section<'a> {
        Section { params: self, name }
    }

    /// Fails if a value or word was never read: nobody knows what it means.
    pub fn all_used(&self) -> Result<(), PlatformError> {
        let values =
            self.params.iter().filter(|param| param.used.get().is_none()).map(|param| (param.line, &param.path));
        let words = self.words.iter().filter(|word| word.used.get().is_none()).map(|word| (word.line, &word.path));
        match values.chain(words).min() {
            None => Ok(()),
            Some((line, path)) => Err(self.error(line, path, Problem::Unused)),
        }
    }

    /// Fails if something stands under `path`: a value there, or a section.
    pub(crate) fn nothing_at(&self, path: &str, why: &'static str) -> Result<(), PlatformError> {
        let inside =
            |param: &&Param| param.path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        match self.params.iter().find(inside) {
            Some(param) => Err(self.error(param.line, &param.path, Problem::Idle(why))),
            None => Ok(()),
        }
    }

    /// A section beside this one that nothing has read so far and that has nearly its name, and the line of its first value.
    pub(crate) fn unread_like(&self, name: &str) -> Option<(String, usize)> {
        let unread = self.params.iter().filter(|param| param.used.get().is_none());
        let sections = unread.filter_map(|param| Some((param.path.rsplit_once('.')?.0, param.line)));
        let (section, line) = sections.into_iter().find(|(section, _)| edits(section, name) <= 2)?;
        Some((section.into(), origin(&self.origins, &self.file, line).1))
    }

    /// The line of a word.
    pub(crate) fn word_line(&self, path: &str) -> Option<usize> {
        self.words.iter().find(|word| word.path == path).map(|word| word.line)
    }

    pub(crate) fn error(&self, line: usize, key: &str, problem: Problem) -> PlatformError {
        let (file, line) = origin(&self.origins, &self.file, line);
        PlatformError::At { file, line, key: key.into(), problem }
    }
}

/// How many letters have to be changed, added or left out to make one name of the other (Levenshtein's distance).
fn edits(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (n, letter) in one.bytes().enumerate() {
        let mut before = std::mem::replace(&mut row[0], n + 1);
        for (m, wanted) in other.bytes().enumerate() {
            let best = (before + usize::from(letter != wanted)).min(row[m] + 1).min(row[m + 1] + 1);
            before = std::mem::replace(&mut row[m + 1], best);
        }
    }
    row[other.len()]
}

/// The file that a line comes from, and the line there.
fn origin(origins: &[(String, usize)], file: &str, line: usize) -> (String, usize) {
    line.checked_sub(1).and_then(|line| origins.get(line).cloned()).unwrap_or((file.into(), line))
}

/// The values under one section; reading marks them as used.
#[derive(Clone, Copy)]
pub struct Section<'a> {
    params: &'a Params,
    name: &'a str,
}

impl<'a> Section<'a> {
    fn path(&self, key: &str) -> String {
        if self.name.is_empty() { key.into() } else { format!("{}.{key}", self.name) }
    }

    fn find(&self, key: &str) -> Option<&'a Param> {
        let param = self.params.get(&self.path(key))?;
        param.used.get_or_init(|| ());
        Some(param)
    }

    /// A value in base units, if it stands there.
    pub fn optional(&self, key: &str, dimension: Dimension) -> Result<Option<f64>, PlatformError> {
        let Some(param) = self.find(key) else { return Ok(None) };
        let fails = |problem| Err(self.params.error(param.line, &param.path, problem));
        if param.dimension != dimension {
            return fails(Problem::WrongUnit { unit: param.unit.clone(), wanted: dimension });
        }
        let whole = dimension == Dimension::Count || (dimension == Dimension::Size && param.value < 1e15);
        if whole && (param.value - param.value.round()).abs() > 1e-6 {
            return fails(Problem::NotWhole(param.value));
        }
        Ok(Some(param.value))
    }

    /// A value in base units.
    pub fn value(&self, key: &str, dimension: Dimension) -> Result<f64, PlatformError> {
        match self.optional(key, dimension)? {
            Some(value) => Ok(value),
            None => Err(self.missing(key, Problem::Missing(dimension))),
        }
    }

    /// A time in picoseconds.
    pub fn time(&self, key: &str) -> Result<u64, PlatformError> {
        Ok(self.value(key, Dimension::Time)?.round() as u64)
    }

    /// A time, 0 if it is not given.
    pub fn time_or_none(&self, key: &str) -> Result<u64, PlatformError> {
        Ok(self.optional(key, Dimension::Time)?.unwrap_or(0.0).round() as u64)
    }

    /// A size in bytes, 0 if it is not given.
    pub fn size_or_none(&self, key: &str) -> Result<u64, PlatformError> {
        Ok(self.optional(key, Dimension::Size)?.unwrap_or(0.0).round() as u64)
    }

    /// A count of at least `least`.
    pub fn count(&self, key: &str, least: u64) -> Result<u64, PlatformError> {
        let value = self.value(key, Dimension::Count)?.round() as u64;
        self.at_least(key, value, least)
    }

    /// A size in bytes, of at least `least`.
    pub fn size(&self, key: &str, least: u64) -> Result<u64, PlatformError> {
        let value = self.value(key, Dimension::Size)?.round() as u64;
        self.at_least(key, value, least)
    }

    /// A bandwidth in bytes a second.
    pub fn bandwidth(&self, key: &str) -> Result<f64, PlatformError> {
        self.value(key, Dimension::Bandwidth)
    }

    /// A bandwidth in bytes a second, if it stands there.
    pub fn bandwidth_if_told(&self, key: &str) -> Result<Option<f64>, PlatformError> {
        self.optional(key, Dimension::Bandwidth)
    }

    /// A clock or a rate in hertz.
    pub fn rate(&self, key: &str) -> Result<f64, PlatformError> {
        self.value(key, Dimension::Rate)
    }

    /// Clock periods.
    pub fn cycles(&self, key: &str) -> Result<f64, PlatformError> {
        self.value(key, Dimension::Cycles)
    }

    /// Clock periods, 0 if they are not given.
    pub fn cycles_or_none(&self, key: &str) -> Result<f64, PlatformError> {
        Ok(self.optional(key, Dimension::Cycles)?.unwrap_or(0.0))
    }

    /// A power in watts.
    pub fn watts(&self, key: &str) -> Result<f64, PlatformError> {
        self.value(key, Dimension::Power)
    }

    /// A power in watts, 0 if it is not given.
    pub fn watts_or_none(&self, key: &str) -> Result<f64, PlatformError> {
        Ok(self.optional(key, Dimension::Power)?.unwrap_or(0.0))
    }

    /// A ratio above 0.
    pub fn factor(&self, key: &str) -> Result<f64, PlatformError> {
        let value = self.value(key, Dimension::Ratio)?;
        match self.params.get(&self.path(key)) {
            Some(param) if value <= 0.0 => Err(self.params.error(param.line, &param.path, Problem::NotPositive)),
            _ => Ok(value),
        }
    }

    /// How queues are served. No key of a file says so.
    pub fn order(&self) -> Order {
        let Some(wrong) = self.params.out_of_turn.as_ref().filter(|wrong| wrong.section == self.name) else {
            return Order::InTurn;
        };
        wrong.used.get_or_init(|| ());
        Order::OutOfTurn
    }

    /// How commands reach the NIC.
    pub fn command(&self, key: &str) -> Result<CommandPath, PlatformError> {
        match self.word(key, &["store", "fetch"])? {
            Some("store") => Ok(CommandPath::Store),
            Some(_) => Ok(CommandPath::Fetch),
            None => Err(self.missing(key, Problem::MissingText)),
        }
    }

    /// Times under keys that are sizes such as `64KiB`: bytes and picoseconds, in rising order.
    pub fn curve(&self) -> Result<Vec<(u64, u64)>, PlatformError> {
        let prefix = format!("{}.", self.name);
        let mut points = Vec::new();
        for param in self.params.iter() {
            let Some(key) = param.path.strip_prefix(&prefix) else { continue };
            let digits = key.trim_end_matches(char::is_alphabetic);
            let unit = unit::lookup(&key[digits.len()..]).filter(|unit| unit.0 == Dimension::Size);
            let size = unit.zip(digits.parse::<u32>().ok()).map(|(unit, number)| unit.1 * f64::from(number));
            let Some(size) = size else {
                return Err(self.params.error(param.line, &param.path, Problem::NoSize));
            };
            points.push((size as u64, self.time(key)?));
        }
        points.sort_unstable();
        Ok(points)
    }

    /// The curve in the section `key` below this one.
    pub fn subcurve(&self, key: &str) -> Result<Vec<(u64, u64)>, PlatformError> {
        let name = self.path(key);
        if !self.params.has(&name) {
            return Err(self.missing(key, Problem::Missing(Dimension::Time)));
        }
        self.params.section(&name).curve()
    }

    /// The curve in the section `key` below this one, empty if there is none.
    pub fn subcurve_or_none(&self, key: &str) -> Result<Vec<(u64, u64)>, PlatformError> {
        if self.params.has(&self.path(key)) { self.subcurve(key) } else { Ok(Vec::new()) }
    }

    /// A part of a whole, above 0 and up to 1.
    pub fn part(&self, key: &str) -> Result<f64, PlatformError> {
        let value = self.factor(key)?;
        match self.params.get(&self.path(key)) {
            Some(param) if value > 1.0 => {
                Err(self.params.error(param.line, &param.path, Problem::TooMuch { value, most: 1.0 }))
            }
            _ => Ok(value),
        }
    }

    /// One of a few words, if one stands there.
    pub fn word(&self, key: &str, known: &[&'static str]) -> Result<Option<&'static str>, PlatformError> {
        let path = self.path(key);
        let Some(word) = self.params.words.iter().find(|word| word.path == path) else { return Ok(None) };
        word.used.get_or_init(|| ());
        match known.iter().find(|known| **known == word.text) {
            Some(known) => Ok(Some(known)),
            None => {
                let problem = Problem::UnknownWord { word: word.text.clone(), known: known.join(", ") };
                Err(self.params.error(word.line, &path, problem))
            }
        }
    }

    /// Free text.
    pub fn text(&self, key: &str) -> Result<String, PlatformError> {
        self.text_or_none(key).ok_or_else(|| self.missing(key, Problem::MissingText))
    }

    /// Free text, if any stands there.
    pub fn text_or_none(&self, key: &str) -> Option<String> {
        let path = self.path(key);
        let word = self.params.words.iter().find(|word| word.path == path)?;
        word.used.get_or_init(|| ());
        Some(word.text.clone())
    }

    fn at_least(&self, key: &str, value: u64, least: u64) -> Result<u64, PlatformError> {
        match self.params.get(&self.path(key)) {
            Some(param) if value < least => {
                Err(self.params.error(param.line, &param.path, Problem::TooLittle { value, least }))
            }
            _ => Ok(value),
        }
    }

    /// Names the section's first line, where the value should have stood.
    fn missing(&self, key: &str, problem: Problem) -> PlatformError {
        let prefix = format!("{}.", self.name);
        let inside = |path: &str| !self.name.is_empty() && path.starts_with(&prefix);
        let first = self.params.iter().find(|param| inside(&param.path)).map_or(1, |param| param.line);
        self.params.error(first, &self.path(key), problem)
    }
}

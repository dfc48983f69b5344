//! What can be wrong with a platform file: every message names the file, the line and the key.

use super::unit::Dimension;

/// Why there is no platform.
#[derive(Debug, thiserror::Error)]
pub enum PlatformError {
    /// No built-in platform of that name and no such file.
    #[error("there is no platform {name:?}: give one of {known}, or the path of a platform file")]
    NotFound {
        /// What was asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A file for `remora where`.
    #[error("{file} is an operation, no platform: ask `remora where {file} --on PLATFORM`")]
    Operation {
        /// The file.
        file: String,
    },
    /// The file cannot be read.
    #[error("cannot read {file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// Why.
        source: std::io::Error,
    },
    /// It is not TOML.
    #[error("{file}, line {line}: {message}")]
    Syntax {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What the TOML parser says.
        message: String,
    },
    /// A value is bad.
    #[error("{file}, line {line}, {key}: {problem}")]
    At {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The value's dotted path.
        key: String,
        /// What is wrong with it.
        problem: Problem,
    },
}

/// What may have been misspelt.
fn meant((like, line): &(String, usize)) -> String {
    format!(": is it [{like}], with a value in line {line}, that should be it?")
}

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Problem {
    /// A bare value.
    #[error("write {{ value = .., unit = \"..\", source = \"..\", status = \"..\", range = [low, high] }}")]
    NoTable,
    /// A field that values do not have.
    #[error("a value has no field {0:?}: it has value, unit, source, status and range")]
    UnknownField(String),
    /// A field is not there.
    #[error("{0} is missing")]
    MissingField(&'static str),
    /// A field that should be text.
    #[error("{0} must be text, and not empty")]
    NoText(&'static str),
    /// A field that should be a number.
    #[error("{0} must be a finite number")]
    NoNumber(&'static str),
    /// A range that is none.
    #[error("range must be [low, high]")]
    NoRange,
    /// Nobody knows the unit.
    #[error(
        "there is no unit {0:?}: units are ps to s, B, KiB to GiB, kB to GB, the same /s, Mb/s, Gb/s, Hz to GHz, \
             1/s to M/s, cycles, W, mW, count, ways, ratio, %"
    )]
    UnknownUnit(String),
    /// The unit measures something else.
    #[error("{unit} is not the unit of {wanted}: write {}", wanted.units().collect::<Vec<_>>().join(", "))]
    WrongUnit {
        /// As written.
        unit: String,
        /// What is needed.
        wanted: Dimension,
    },
    /// No such status.
    #[error("status must be printed, derived, literature, estimate or measured")]
    UnknownStatus,
    /// The value lies outside its own range.
    #[error("the value {value} {unit} lies outside its range from {} to {}", range.0, range.1)]
    OutOfRange {
        /// As written.
        value: f64,
        /// As written.
        range: (f64, f64),
        /// As written.
        unit: String,
    },
    /// No hardware has this.
    #[error("no hardware has {0} like that: check value and range")]
    Impossible(Dimension),
    /// A part of a thing.
    #[error("{0} must be a whole number")]
    NotWhole(f64),
    /// Too small.
    #[error("{value} is too little: at least {least}")]
    TooLittle {
        /// The value in base units.
        value: u64,
        /// The least allowed.
        least: u64,
    },
    /// Too large.
    #[error("{value} is too much: at most {most}")]
    TooMuch {
        /// The value in base units.
        value: f64,
        /// The most allowed.
        most: f64,
    },
    /// A factor of nothing or less.
    #[error("it must be above 0")]
    NotPositive,
    /// A key that should be a size.
    #[error("the key must be a size, such as 64KiB")]
    NoSize,
    /// Nobody reads it.
    #[error("nothing reads this key: check its spelling and its section, or remove it")]
    Unused,
    /// It is read, but nothing of this platform hangs on it.
    #[error("nothing hangs on this key: {0}")]
    Idle(&'static str),
    /// The value is needed.
    #[error("the value is missing: give {0}")]
    Missing(Dimension),
    /// The text is needed.
    #[error("the text is missing")]
    MissingText,
    /// A word that is not known.
    #[error("{word:?} is not known: write one of {known}")]
    UnknownWord {
        /// As written.
        word: String,
        /// What may stand there.
        known: String,
    },
    /// A part that is not there.
    #[error("there is no part {part:?} beside this file, and none of that name comes with the program: {known}")]
    NoPart {
        /// As written.
        part: String,
        /// Those that come with the program.
        known: String,
    },
    /// A placement without its device's section.
    #[error("the placement needs a section [{name}]{}", like.as_ref().map_or(String::new(), meant))]
    NoDevice {
        /// The section that it needs.
        name: &'static str,
        /// One with nearly this name that nothing has read, and its first line.
        like: Option<(String, usize)>,
    },
}

//! The records of a store: generated from a seed, or read from a file of `key<TAB>value` lines.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::workload;

/// Longest key, in bytes.
pub const MAX_KEY: usize = 1024;

/// Longest value, in bytes: a record with the longest key and its header still fits into one reply.
pub const MAX_VALUE: usize = 60 << 10;

/// A file's bytes. A device has none that end, and would fill the memory.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    match std::fs::metadata(path)?.file_type().is_char_device() {
        true => Err(io::Error::other("it is a device: give a file or a pipe")),
        false => std::fs::read(path),
    }
}

/// The same of a text.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|_| io::Error::other("it is no text in UTF-8"))
}

/// Records, each a key and a value, in one piece of memory.
#[derive(Clone, Debug, Default)]
pub struct Records {
    bytes: Vec<u8>,
    spans: Vec<Span>,
}

/// Where a record lies.
#[derive(Clone, Debug)]
struct Span {
    key: Range<usize>,
    value: Range<usize>,
}

impl Records {
    /// `count` records with YCSB's keys and values of `value_bytes` random bytes. The same seed gives the same bytes.
    pub fn generate(count: u64, value_bytes: usize, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut records = Self::default();
        let mut value = vec![0; value_bytes];
        for number in 0..count {
            rng.fill_bytes(&mut value);
            records.push(workload::key(number).as_bytes(), &value);
        }
        records
    }

    fn push(&mut self, key: &[u8], value: &[u8]) {
        let (start, middle) = (self.bytes.len(), self.bytes.len() + key.len());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.spans.push(Span { key: start..middle, value: middle..self.bytes.len() });
    }

    /// Reads a file: a line is a key, a tab and a value, which is everything up to the line's end and may hold further
    /// tabs. Lines end with LF or CR LF. Text is UTF-8; a byte order mark at the start is skipped.
    pub fn load(path: &Path) -> Result<Self, InputError> {
        let bytes = read(path).map_err(|source| InputError::Read { path: path.into(), source })?;
        let mut spans = Vec::new();
        let mut lines = HashMap::new();
        for (number, line) in (1..).zip(lines_of(&bytes)) {
            let at = |problem| InputError::Line { path: path.into(), line: number, problem };
            let text = check_text(&bytes[line.clone()]).map_err(at)?;
            let tab = text.find('\t').ok_or_else(|| at(Problem::NoTab))?;
            let span = Span { key: line.start..line.start + tab, value: line.start + tab + 1..line.end };
            let key = check_key(&bytes[span.key.clone()]).map_err(at)?;
            if span.value.len() > MAX_VALUE {
                return Err(at(Problem::LongValue(span.value.len())));
            }
            match lines.entry(key) {
                Entry::Occupied(first) => {
                    return Err(at(Problem::Duplicate { key: quote(key), first: *first.get() }));
                }
                Entry::Vacant(vacant) => vacant.insert(number),
            };
            spans.push(span);
        }
        drop(lines);
        if spans.is_empty() {
            return Err(InputError::Empty { path: path.into(), what: "key<TAB>value" });
        }
        Ok(Self { bytes, spans })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The key of a record; empty beyond the last.
    pub fn key(&self, record: usize) -> &[u8] {
        self.spans.get(record).map_or(&[], |span| &self.bytes[span.key.clone()])
    }

    /// The value of a record; empty beyond the last.
    pub fn value(&self, record: usize) -> &[u8] {
        self.spans.get(record).map_or(&[], |span| &self.bytes[span.value.clone()])
    }

    /// Keys and values, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.spans.iter().map(|span| (&self.bytes[span.key.clone()], &self.bytes[span.value.clone()]))
    }

    /// The longest value, in bytes.
    pub fn longest_value(&self) -> usize {
        self.spans.iter().map(|span| span.value.len()).max().unwrap_or(0)
    }

    /// Bytes of key and value together, on average.
    pub fn mean_record(&self) -> usize {
        self.bytes.len() / self.spans.len().max(1)
    }

    /// Finds records by key.
    pub fn index(&self) -> Index<'_> {
        Index(self.iter().zip(0..).map(|((key, _), record)| (key, record)).collect())
    }
}

/// Record numbers by key.
pub struct Index<'a>(HashMap<&'a [u8], u32>);

impl Index<'_> {
    /// The record with this key.
    pub fn find(&self, key: &[u8]) -> Option<u32> {
        self.0.get(key).copied()
    }
}

/// What is wrong with a file of the user.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not what is wanted.
    #[error("{}: {why}", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// Why not, and what to do.
        why: String,
    },
    /// It holds no line.
    #[error("{} holds nothing: put one {what} on each line", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What a line should be.
        what: &'static str,
    },
    /// A line is bad.
    #[error("{}, line {line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1.
        line: u64,
        /// What is wrong with it.
        problem: Problem,
    },
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// No tab.
    #[error("there is no tab between key and value: write key<TAB>value")]
    NoTab,
    /// No key.
    #[error("the key is empty: give it at least one character, or remove the line")]
    EmptyKey,
    /// The key came before.
    #[error("the key {key} was on line {first} already: keep one of the two")]
    Duplicate {
        /// The key, quoted.
        key: String,
        /// The line that has it too.
        first: u64,
    },
    /// Bytes that are no text.
    #[error("byte {0} of the line is not UTF-8: convert the file to UTF-8")]
    NotUtf8(usize),
    /// The key is too long.
    #[error("the key has {0} bytes, the longest allowed is {MAX_KEY}: shorten it")]
    LongKey(usize),
    /// The value is too long.
    #[error("the value has {0} bytes, the longest allowed is {MAX_VALUE}: split it over several keys")]
    LongValue(usize),
}

/// The lines of a file, without their ends.
pub(crate) fn lines_of(bytes: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut at = if bytes.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    std::iter::from_fn(move || {
        let rest = bytes.get(at..).filter(|rest| !rest.is_empty())?;
        let len = rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
        let line = at..at + len - usize::from(len < rest.len() && rest[..len].ends_with(b"\r"));
        at += len + 1;
        Some(line)
    })
}

pub(crate) fn check_text(line: &[u8]) -> Result<&str, Problem> {
    std::str::from_utf8(line).map_err(|e| Problem::NotUtf8(e.valid_up_to() + 1))
}

pub(crate) fn check_key(key: &[u8]) -> Result<&[u8], Problem> {
    match key.len() {
        0 => Err(Problem::EmptyKey),
        1..=MAX_KEY => Ok(key),
        len => Err(Problem::LongKey(len)),
    }
}

/// A key as a message shows it: the start is enough to find it.
pub(crate) fn quote(key: &[u8]) -> String {
    let text = String::from_utf8_lossy(key);
    let start: String = text.chars().take(40).collect();
    let more = if start.len() < text.len() { "..." } else { "" };
    format!("{start:?}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn load(content: &[u8]) -> Result<Records, InputError> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content).unwrap();
        Records::load(file.path())
    }

    fn pairs(records: &Records) -> Vec<(&str, &str)> {
        records.iter().map(|(k, v)| (std::str::from_utf8(k).unwrap(), std::str::from_utf8(v).unwrap())).collect()
    }

    #[test]
    fn lines_become_records() {
        let records = load("a\t1\nbéta\t\r\nc\td\te\n".as_bytes()).unwrap();
        assert_eq!(pairs(&records), [("a", "1"), ("béta", ""), ("c", "d\te")]);
        assert_eq!((records.len(), records.longest_value()), (3, 3));
        assert_eq!(records.index().find("béta".as_bytes()), Some(1));
        assert_eq!(records.index().find(b"b"), None);
        let records = load(b"\xef\xbb\xbfkey\tno end of line").unwrap();
        assert_eq!(pairs(&records), [("key", "no end of line")]);
    }

    #[test]
    fn bad_lines_are_named() {
        let long = |n: usize| "x".repeat(n);
        let cases: [(&[u8], u64, Problem); 8] = [
            (b"a\tb\nno tab\n", 2, Problem::NoTab),
            (b"a\tb\n\nc\td\n", 2, Problem::NoTab),
            (b"\tvalue\n", 1, Problem::EmptyKey),
            (b"a\t1\nb\t2\na\t3\n", 3, Problem::Duplicate { key: "\"a\"".into(), first: 1 }),
            (b"a\t1\nb\t\xff\n", 2, Problem::NotUtf8(3)),
            (b"\xc3\t1\n", 1, Problem::NotUtf8(1)),
            (format!("{}\tv\n", long(MAX_KEY + 1)).leak().as_bytes(), 1, Problem::LongKey(MAX_KEY + 1)),
            (format!("k\t{}\n", long(MAX_VALUE + 1)).leak().as_bytes(), 1, Problem::LongValue(MAX_VALUE + 1)),
        ];
        for (content, number, expected) in cases {
            match load(content) {
                Err(InputError::Line { line, problem, .. }) => assert_eq!((line, problem), (number, expected)),
                other => panic!("{expected:?} expected, got {other:?}"),
            }
        }
        assert!(matches!(load(b""), Err(InputError::Empty { .. })));
        let missing = Records::load(Path::new("no/such/file.tsv")).unwrap_err().to_string();
        assert!(missing.starts_with("cannot read no/such/file.tsv: "), "{missing}");
        let endless = Records::load(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(endless.contains("cannot read /dev/zero: it is a device"), "{endless}");
        let message = load(b"a\tb\nx\n").unwrap_err().to_string();
        assert!(message.ends_with("line 2: there is no tab between key and value: write key<TAB>value"), "{message}");
    }

    #[test]
    fn generated_records_follow_the_seed() {
        let records = Records::generate(1000, 64, 5);
        assert_eq!(records.len(), 1000);
        assert_eq!(records.key(0), b"user6284781860667377211");
        assert!(records.iter().all(|(_, value)| value.len() == 64));
        assert_eq!(records.index().find(records.key(999)), Some(999));
        assert_eq!(records.value(7), Records::generate(10, 64, 5).value(7));
        assert_ne!(records.value(7), Records::generate(10, 64, 6).value(7));
        assert_eq!(records.key(1000), b"");
    }

    proptest! {
        #[test]
        fn any_bytes_load_or_are_refused(content in proptest::collection::vec(0u8..=255, 0..200)) {
            let _ = load(&content);
        }

        #[test]
        fn what_is_written_comes_back(
            pairs in proptest::collection::btree_map("[^\t\r\n\u{feff}]{1,20}", "[^\r\n]{0,30}", 1..20),
        ) {
            let content: String = pairs.iter().map(|(k, v)| format!("{k}\t{v}\n")).collect();
            let records = load(content.as_bytes()).unwrap();
            let back: Vec<_> = records.iter().collect();
            let expected: Vec<_> = pairs.iter().map(|(k, v)| (k.as_bytes(), v.as_bytes())).collect();
            prop_assert_eq!(back, expected);
        }
    }
}

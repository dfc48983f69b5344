//! The sequence of keys that GETs ask for: generated, or read from a file.

use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::records::{Index, InputError, Problem, Records, check_key, check_text, lines_of, read};
use crate::workload::{self, Distribution, Picker};

/// One GET of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// Of this record.
    Record(u32),
    /// Of a key that the store does not have: a number for [`Trace::missing_key`].
    Missing(u32),
}

/// Keys in the order in which they are asked for.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    picks: Vec<Pick>,
    missing: Vec<Box<[u8]>>,
    /// GETs of keys that the store does not have.
    misses: usize,
}

impl Trace {
    /// `len` GETs of records that exist.
    pub fn hits(distribution: Distribution, records: &Records, len: usize, seed: u64) -> Self {
        let mut picker = Picker::new(distribution, records.len() as u64, seed);
        Self { picks: (0..len).map(|_| Pick::Record(picker.pick() as u32)).collect(), ..Self::default() }
    }

    /// GETs of `len` different keys that do not exist.
    pub fn misses(index: &Index<'_>, len: usize, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut missing = Vec::with_capacity(len);
        while missing.len() < len {
            // As YCSB's keys, of numbers far beyond those loaded.
            let key = workload::key(rng.next_u64() | 1 << 63);
            if index.find(key.as_bytes()).is_none() {
                missing.push(key.into_bytes().into_boxed_slice());
            }
        }
        Self { picks: (0..len as u32).map(Pick::Missing).collect(), missing, misses: len }
    }

    /// Reads a file of one key on each line. A key that the store does not have is a GET that must find nothing.
    pub fn load(path: &Path, index: &Index<'_>) -> Result<Self, InputError> {
        let bytes = read(path).map_err(|source| InputError::Read { path: path.into(), source })?;
        let mut trace = Self::default();
        let mut numbers = std::collections::HashMap::new();
        for (number, line) in (1..).zip(lines_of(&bytes)) {
            let at = |problem: Problem| InputError::Line { path: path.into(), line: number, problem };
            let key = &bytes[line];
            check_text(key).and_then(|text| check_key(text.as_bytes())).map_err(at)?;
            let pick = match index.find(key) {
                Some(record) => Pick::Record(record),
                None => {
                    trace.misses += 1;
                    Pick::Missing(*numbers.entry(key).or_insert_with(|| {
                        trace.missing.push(key.into());
                        trace.missing.len() as u32 - 1
                    }))
                }
            };
            trace.picks.push(pick);
        }
        if trace.picks.is_empty() {
            return Err(InputError::Empty { path: path.into(), what: "key" });
        }
        Ok(trace)
    }

    /// How many GETs it has.
    pub fn len(&self) -> usize {
        self.picks.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.picks.is_empty()
    }

    /// How many of its GETs must find nothing.
    pub fn expected_misses(&self) -> usize {
        self.misses
    }

    /// The `n`th GET. After the last the trace starts again.
    pub fn pick(&self, n: usize) -> Pick {
        self.picks[n % self.picks.len()]
    }

    /// A key that the store does not have.
    pub fn missing_key(&self, number: u32) -> &[u8] {
        &self.missing[number as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn load(content: &[u8], records: &Records) -> Result<Trace, InputError> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content).unwrap();
        Trace::load(file.path(), &records.index())
    }

    #[test]
    fn a_trace_replays_its_keys_and_counts_the_unknown() {
        let records = Records::generate(10, 8, 1);
        let [a, b] = [3, 7].map(|n| String::from_utf8(records.key(n).to_vec()).unwrap());
        let trace = load(format!("{a}\nwho\n{b}\r\nwho\n{a}\nnobody").as_bytes(), &records).unwrap();
        let picks: Vec<Pick> = (0..8).map(|n| trace.pick(n)).collect();
        let (a, b, who) = (Pick::Record(3), Pick::Record(7), Pick::Missing(0));
        assert_eq!(picks, [a, who, b, who, a, Pick::Missing(1), a, who]);
        assert_eq!((trace.len(), trace.expected_misses()), (6, 3));
        assert_eq!((trace.missing_key(0), trace.missing_key(1)), (&b"who"[..], &b"nobody"[..]));
    }

    #[test]
    fn bad_lines_are_named() {
        let records = Records::generate(10, 8, 1);
        for (content, number, expected) in [
            (&b"a\n\nb\n"[..], 2, Problem::EmptyKey),
            (b"a\nb\xff\n", 2, Problem::NotUtf8(2)),
            (&[b'x'; 2000], 1, Problem::LongKey(2000)),
        ] {
            match load(content, &records) {
                Err(InputError::Line { line, problem, .. }) => assert_eq!((line, problem), (number, expected)),
                other => panic!("{expected:?} expected, got {other:?}"),
            }
        }
        assert!(matches!(load(b"", &records), Err(InputError::Empty { .. })));
    }

    #[test]
    fn generated_traces_hit_or_miss() {
        let records = Records::generate(1000, 8, 1);
        let index = records.index();
        let hits = Trace::hits(Distribution::Zipfian, &records, 500, 3);
        assert!((0..500).all(|n| matches!(hits.pick(n), Pick::Record(r) if r < 1000)));
        assert_eq!(hits.expected_misses(), 0);
        let misses = Trace::misses(&index, 100, 3);
        assert_eq!(misses.expected_misses(), 100);
        for n in 0..100 {
            let Pick::Missing(number) = misses.pick(n) else { panic!("a hit among misses") };
            assert!(index.find(misses.missing_key(number)).is_none());
        }
    }
}

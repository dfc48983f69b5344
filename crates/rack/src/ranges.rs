//! Which bytes of a stream there are: all before a position, and some behind it.

use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of a stream, each of which is there once, however often it comes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ranges {
    whole: u64,
    /// Behind it, by their first byte: ranges that neither overlap nor touch.
    beyond: BTreeMap<u64, u64>,
}

impl Ranges {
    /// All bytes before this one are there.
    pub fn whole(&self) -> u64 {
        self.whole
    }

    /// Where the last byte that is there ends.
    pub fn last(&self) -> u64 {
        self.beyond.last_key_value().map_or(self.whole, |(_, end)| *end)
    }

    /// Gaps before bytes that are there.
    pub fn gaps(&self) -> usize {
        self.beyond.len()
    }

    /// Whether all of these bytes are there.
    pub fn has(&self, range: &Range<u64>) -> bool {
        let start = range.start.max(self.whole);
        start >= range.end || self.beyond.range(..=start).next_back().is_some_and(|(_, end)| *end >= range.end)
    }

    /// These bytes come. `fresh` is told of those that were not there, in ascending order.
    pub fn add(&mut self, range: Range<u64>, mut fresh: impl FnMut(Range<u64>)) {
        let (mut start, mut end) = (range.start.max(self.whole), range.end);
        if start >= end {
            return;
        }
        let mut new = start;
        // What begins before it may reach into it, or up to it.
        if let Some((first, last)) = self.beyond.range(..=start).next_back().map(|(first, last)| (*first, *last))
            && last >= start
        {
            new = last;
            start = first;
            self.beyond.remove(&first);
        }
        while let Some((first, last)) = self.beyond.range(start..=end).next().map(|(first, last)| (*first, *last)) {
            self.beyond.remove(&first);
            if new < first {
                fresh(new..first);
            }
            new = new.max(last);
            end = end.max(last);
        }
        if new < range.end {
            fresh(new..range.end);
        }
        end = end.max(new);
        if start <= self.whole {
            self.whole = end;
        } else {
            self.beyond.insert(start, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        /// As a set of single bytes has it.
        #[test]
        fn ranges_are_sets_of_bytes(steps in prop::collection::vec((0..40u64, 0..12u64), 1..40)) {
            let (mut ranges, mut set) = (Ranges::default(), [false; 64]);
            for (start, len) in steps {
                let mut told = Vec::new();
                ranges.add(start..start + len, |fresh| told.extend(fresh));
                let fresh: Vec<u64> = (start..start + len).filter(|at| !set[*at as usize]).collect();
                prop_assert_eq!(told, fresh);
                (start..start + len).for_each(|at| set[at as usize] = true);
                prop_assert_eq!(ranges.whole(), set.iter().take_while(|has| **has).count() as u64);
                for (from, to) in (0..60).flat_map(|from| [(from, from + 1), (from, from + 4)]) {
                    prop_assert_eq!(ranges.has(&(from..to)), (from..to).all(|at| set[at as usize]), "{}..{}", from, to);
                }
                let mut ends: Vec<u64> = ranges.beyond.iter().flat_map(|(from, to)| [*from, *to]).collect();
                ends.insert(0, ranges.whole());
                prop_assert!(ends.is_sorted_by(|a, b| a < b), "{:?}", ranges);
            }
        }
    }
}

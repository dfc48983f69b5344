//! A replica's records.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::ops::RangeBounds;

use super::record::Record;
use crate::types::Key;

/// Records in order of their keys. None is ever removed alone.
///
/// What one message does asks for its record a dozen times, and each search of the tree is some mispredicted branches. So
/// the place of the one that was changed last is remembered: it is found without a search.
#[derive(Clone, Debug, Default)]
pub(crate) struct Records {
    places: BTreeMap<Key, usize>,
    #[allow(
        clippy::vec_box,
        reason = "room for more records moves little memory: a node that stands still loses its lease"
    )]
    all: Vec<Box<Record>>,
    last: Option<(Key, usize)>,
}

impl Records {
    fn place(&self, key: Key) -> Option<usize> {
        match self.last {
            Some((last, place)) if last == key => Some(place),
            _ => self.places.get(&key).copied(),
        }
    }

    /// The record, if there is one.
    pub fn get(&self, key: Key) -> Option<&Record> {
        self.place(key).map(|place| &*self.all[place])
    }

    /// The record, to be changed, if there is one.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut Record> {
        let place = self.place(key)?;
        self.last = Some((key, place));
        Some(&mut self.all[place])
    }

    /// The record, made if there is none.
    pub fn make(&mut self, key: Key) -> &mut Record {
        let place = self.place(key).unwrap_or_else(|| {
            self.all.push(Box::default());
            self.places.insert(key, self.all.len() - 1);
            self.all.len() - 1
        });
        self.last = Some((key, place));
        &mut self.all[place]
    }

    /// All.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &Record)> {
        self.range(..)
    }

    /// Those with these keys.
    pub fn range(&self, keys: impl RangeBounds<Key>) -> impl Iterator<Item = (Key, &Record)> {
        self.places.range(keys).map(|(&key, &place)| (key, &*self.all[place]))
    }

    /// All, in no order that means anything.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Record> {
        self.all.iter_mut().map(|record| &mut **record)
    }
}

/// Equal by keys and records: in which order they came makes no difference.
impl PartialEq for Records {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Records {}

impl Hash for Records {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.all.len().hash(state);
        self.iter().for_each(|record| record.hash(state));
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

    use super::*;

    fn made(keys: &[Key]) -> Records {
        let mut records = Records::default();
        keys.iter().for_each(|&key| records.make(key).reserved = key);
        records
    }

    #[test]
    fn records_are_found_in_order_and_one_after_the_other() {
        let mut records = made(&[7, 3, 9]);
        assert_eq!(
            records.iter().map(|(key, record)| (key, record.reserved)).collect::<Vec<_>>(),
            [(3, 3), (7, 7), (9, 9)]
        );
        assert_eq!(records.range(4..).map(|(key, _)| key).collect::<Vec<_>>(), [7, 9]);
        for key in [9, 9, 3, 7, 3] {
            assert_eq!(records.get(key).map(|record| record.reserved), Some(key));
            records.get_mut(key).unwrap().rmw = true;
            assert!(records.get(key).is_some_and(|record| record.rmw));
            assert_eq!(records.make(key).reserved, key);
        }
        assert!(records.get(4).is_none() && records.get_mut(4).is_none());
        records.values_mut().for_each(|record| record.rmw = false);
        assert_eq!(records, made(&[3, 7, 9]));
    }

    #[test]
    fn neither_the_order_of_arrival_nor_the_last_search_makes_a_difference() {
        let hash = |records: &Records| BuildHasherDefault::<DefaultHasher>::default().hash_one(records);
        let (mut one, other) = (made(&[1, 2, 3]), made(&[3, 1, 2]));
        one.get_mut(2);
        assert_eq!((&one, hash(&one)), (&other, hash(&other)));
        one.make(2).reserved = 0;
        assert_ne!(one, other);
        assert_ne!(made(&[1, 2]), other);
    }
}

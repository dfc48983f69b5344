//! Requests that clients send again: each is done at most once.
//!
//! Behind the data lies a table of marks, one for each session that wrote lately: the session, the number of its last request,
//! whether that was done, and the entry that says so. A mark is a tuple of the very entry that it is about: so it is there if
//! and only if that is, at every replica, after every crash, and at a new tail too. A request holds its session like a key,
//! so that a second attempt waits for the first.
//!
//! An attempt after the first that finds other contents than it expects leaves its mark too, which says that nothing was
//! done; so the first one comes to nothing if it is only on its way.

use std::collections::BTreeMap;

use super::replica::Chain;
use super::types::{ChainMutation, ChainOutcome, Tuple};
use crate::ddp::Session;

/// Bytes of a mark: session, twice the request's number and one if it was done, entry.
pub(super) const MARK: usize = 24;
/// The highest number of a request: a mark has a bit less for it.
pub(super) const LAST: u64 = u64::MAX >> 1;
/// Keys from here on are sessions.
const KEYS: u64 = 1 << 63;

/// What is known of sessions: at a head, with marks whose entries are under way.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Sessions {
    /// By session.
    marks: BTreeMap<u64, Mark>,
    /// Sessions by the entry that has their mark: the first is the one to be forgotten.
    by_use: BTreeMap<u64, u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Mark {
    place: u64,
    number: u64,
    done: bool,
    entry: u64,
}

/// What the table says of a request.
enum Known {
    /// It was not done, and an attempt that is still on its way will not be either, but for this one.
    New,
    Done,
    NotDone,
    /// The session has gone on, or is not known any more: nobody can tell.
    Nothing,
}

impl Sessions {
    fn read(table: &[u8]) -> Self {
        let mut this = Self::default();
        for (place, bytes) in (0..).zip(table.chunks_exact(MARK)) {
            let word = |at: usize| bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            let (session, number, entry) = (word(0), word(8), word(16));
            if entry > 0 {
                this.marks.insert(session, Mark { place, number: number >> 1, done: number & 1 == 1, entry });
                this.by_use.insert(entry, session);
            }
        }
        this
    }

    fn knows(&self, session: &Session, places: u64) -> Known {
        match self.marks.get(&session.client) {
            Some(mark) if mark.number > session.sequence => Known::Nothing,
            Some(mark) if mark.number == session.sequence && mark.done => Known::Done,
            Some(mark) if mark.number == session.sequence => Known::NotDone,
            Some(_) => Known::New,
            // As long as there is a free place none was forgotten.
            None if session.attempt == 0 || (self.marks.len() as u64) < places => Known::New,
            None => Known::Nothing,
        }
    }

    /// The place for a session's next mark, which this entry has.
    fn place(&mut self, session: &Session, done: bool, entry: u64, places: u64) -> u64 {
        let known = self.marks.get(&session.client).copied();
        let place = match known {
            Some(mark) => {
                self.by_use.remove(&mark.entry);
                mark.place
            }
            None if (self.marks.len() as u64) < places => self.marks.len() as u64,
            None => {
                let oldest = self.by_use.pop_first().and_then(|(_, session)| self.marks.remove(&session));
                oldest.map_or(0, |mark| mark.place)
            }
        };
        self.marks.insert(session.client, Mark { place, number: session.sequence, done, entry });
        self.by_use.insert(entry, session.client);
        place
    }
}

/// The key that a session is.
pub(super) fn key(session: &Session) -> u64 {
    KEYS | session.client
}

impl Chain {
    fn sessions(&mut self) -> &mut Sessions {
        let table = &self.data[self.config.data..];
        // All that the view began with is applied when the first transaction in it is executed.
        self.sessions.get_or_insert_with(|| Sessions::read(table))
    }

    /// How a request has ended before, as far as that can be told. What was read just now is for one that is known to have
    /// found other contents than it expected.
    pub(super) fn ended_before(&mut self, session: &Session, found: &[crate::types::Value]) -> Option<ChainOutcome> {
        if self.mutant(ChainMutation::ForgetsSessions) {
            return None;
        }
        let places = u64::from(self.config.sessions);
        let outcome = match self.sessions().knows(session, places) {
            Known::New => return None,
            Known::Done => ChainOutcome::Before,
            Known::NotDone => ChainOutcome::Unequal(found.to_vec()),
            Known::Nothing => ChainOutcome::Unknown,
        };
        self.marks.repeated += 1;
        Some(outcome)
    }

    /// The mark of a request, for the entry of this number.
    pub(super) fn mark(&mut self, session: &Session, done: bool, entry: u64) -> Tuple {
        let places = u64::from(self.config.sessions);
        let place = self.sessions().place(session, done, entry, places);
        let words = [session.client, session.sequence << 1 | u64::from(done), entry];
        let data: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        Tuple { offset: self.config.data as u64 + place * MARK as u64, data: data.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(client: u64, sequence: u64, attempt: u32) -> Session {
        Session { client, sequence, attempt }
    }

    #[test]
    fn who_wrote_longest_ago_is_forgotten_and_nobody_takes_him_for_new() {
        let mut table = vec![0; 2 * MARK];
        let mut sessions = Sessions::read(&table);
        for (entry, client) in [(5, 70), (6, 71), (7, 70), (8, 72)] {
            let place = sessions.place(&session(client, entry, 0), entry != 8, entry, 2) as usize * MARK;
            let words = [client, entry << 1 | u64::from(entry != 8), entry];
            let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
            table[place..place + MARK].copy_from_slice(&bytes);
        }
        assert_eq!(Sessions::read(&table), sessions);
        let knows = |client, sequence, attempt| sessions.knows(&session(client, sequence, attempt), 2);
        assert!(matches!(knows(70, 7, 1), Known::Done) && matches!(knows(70, 8, 1), Known::New));
        assert!(matches!(knows(70, 6, 1), Known::Nothing), "it has gone on");
        assert!(matches!(knows(72, 8, 3), Known::NotDone));
        assert!(matches!(knows(71, 6, 1), Known::Nothing), "it was forgotten");
        assert!(matches!(knows(71, 9, 0), Known::New), "nobody has tried");
    }
}

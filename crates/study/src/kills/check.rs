//! Whether what clients saw can be explained, and how long they waited.

use std::sync::Arc;
use std::time::Duration;

use remora_cluster::Outcome;
use remora_storm::durability::{Finding, check_history};
use remora_storm::engine::{Action, End};
use remora_storm::history::{History, Record};

use super::clients::Shared;

/// What clients saw, and whether it can be explained.
pub struct Seen {
    /// What was asked for.
    pub operations: usize,
    /// Writes that were answered.
    pub answered: usize,
    /// Requests whose outcome is not known.
    pub unknown: usize,
    /// Of a chain's transactions, those that read by one-sided READ.
    pub one_sided: usize,
    /// Records that are too hard to check.
    pub too_hard: usize,
    /// What cannot be explained, and what clients saw of it.
    pub wrong: Option<(String, Vec<String>)>,
    /// What is said if all is well.
    pub(super) well: &'static str,
}

impl Seen {
    /// What came of the check, in words; an error unless everything was found as it must be.
    ///
    /// # Errors
    ///
    /// How many records are too hard to check, or what cannot be explained.
    pub fn verdict(&self) -> Result<String, String> {
        match (&self.wrong, self.too_hard) {
            (Some((why, _)), _) => Err(why.clone()),
            (None, 0) => Ok(self.well.into()),
            (None, hard) => Err(format!("{hard} records are too hard to check; the others are linearizable")),
        }
    }

    fn of(history: &History, checked: Result<Vec<u32>, Finding>) -> Self {
        let writes = |record: &&Record| record.action != Action::Get;
        let acknowledged = |record: &&Record| matches!(record.end, End::Done(_));
        let line = |&index: &usize| format!("{:?}", history.records[index]);
        Self {
            operations: history.records.len(),
            answered: history.records.iter().filter(acknowledged).filter(writes).count(),
            unknown: history.records.iter().filter(|record| record.end == End::Unknown).count(),
            one_sided: 0,
            too_hard: checked.as_ref().map_or(0, Vec::len),
            wrong: checked.err().map(|finding| {
                let seen = finding.records.iter().take(20).map(line).collect();
                (format!("record {} cannot be explained", finding.key), seen)
            }),
            well: "every record is linearizable, and nothing is lost",
        }
    }
}

impl Shared {
    /// Checks the history; nobody adds to it any more.
    pub(super) fn checked(&self) -> (Seen, History) {
        let history = std::mem::take(&mut *self.history());
        let checked = check_history(&history, self.settings.persistency);
        (Seen::of(&history, checked), history)
    }
}

/// How long after a kill the first of these writes, when each was asked for and answered, was answered that was asked for
/// after it.
pub(super) fn resumed(writes: &[(u64, u64)], at: u64) -> Option<Duration> {
    let after = writes.iter().filter(|(called, _)| *called >= at);
    after.map(|(_, returned)| Duration::from_nanos(returned - at)).min()
}

/// When writes that were answered were asked for and answered.
pub(super) fn answered(history: &History) -> Vec<(u64, u64)> {
    let done = |record: &&Record| matches!(record.end, End::Done(_)) && record.action != Action::Get;
    history.records.iter().filter(done).map(|record| (record.called, record.returned)).collect()
}

/// A number as a record's content: of many lengths, and such that no other content has it. Counters are plain numbers.
pub(super) fn content(key: u64, number: u64) -> Arc<[u8]> {
    let padding = if key.is_multiple_of(4) { 0 } else { number.wrapping_mul(0x9e37_79b9) % 1000 };
    let rest = (0..padding).map(|at| (number ^ at) as u8);
    number.to_le_bytes().into_iter().chain(rest).collect()
}

/// The operation's end for the checker; an answer that no node may give is an error.
pub(super) fn end_of(key: u64, action: Action, outcome: &Outcome) -> Result<End, String> {
    let number = |value: &Option<Arc<[u8]>>| -> Result<Option<u64>, String> {
        let Some(bytes) = value else { return Ok(None) };
        let number = bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let sound = number.filter(|&number| *content(key, number) == **bytes);
        sound.map(Some).ok_or_else(|| format!("record {key} holds {} bytes that nobody wrote", bytes.len()))
    };
    Ok(match (action, outcome) {
        (_, Outcome::Unknown) => End::Unknown,
        (_, Outcome::Refused(_)) => End::Refused,
        (Action::Get, Outcome::Value(value)) => End::Done(number(value)?),
        (Action::Put(_) | Action::Delete, Outcome::Written) => End::Done(None),
        (Action::CompareSwap { expected, .. }, Outcome::Swapped) => End::Done(expected),
        (Action::CompareSwap { .. }, Outcome::NotSwapped(value)) => End::Done(number(value)?),
        (Action::FetchAdd(_), Outcome::Added(found)) => End::Done((*found != 0).then_some(*found)),
        _ => return Err(format!("{outcome:?} answers {action:?} of record {key}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_history_that_was_checked_whole_is_good() {
        let verdict = |checked| Seen::of(&History::default(), checked).verdict();
        assert!(verdict(Ok(Vec::new())).is_ok());
        assert!(verdict(Ok(vec![3])).is_err_and(|why| why.starts_with("1 records are too hard")));
        assert!(verdict(Err(Finding { key: 5, records: Vec::new() })).is_err());
    }
}

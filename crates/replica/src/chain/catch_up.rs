//! A learner pulls the data, piece by piece, from the head.
//!
//! It logs and applies entries meanwhile, as the chain's end. A piece may be older than what it has applied; so it applies
//! what follows the piece again. The head has applied no less when it sends the next piece, so that this is in the ring. A piece
//! may be newer too: what the learner has yet to apply then writes once more what the piece has, up to its end.

use super::replica::{Chain, Then};
use super::types::{ChainMessage, ChainMutation, Entry};
use crate::types::NodeId;

/// Writes that are not durable yet, from which on a learner asks for no more: what it has not written waits in its memory.
const UNDER_WAY: u64 = 64;

/// How far a learner is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Learning {
    next: u64,
    /// The entry that the last piece had at least.
    pub piece_has: u64,
    done: bool,
    /// It has not asked for the next piece yet.
    holds: bool,
}

impl Chain {
    pub(super) fn ask_for_piece(&mut self) {
        if let (Some(learning), Some(head), true) = (self.learning, self.head(), self.synced)
            && !learning.done
            && !learning.holds
            && (!self.full || self.mutant(ChainMutation::FillsDisk))
        {
            self.send(head, ChainMessage::Want(learning.next));
        }
    }

    /// A learner wants a piece.
    pub(super) fn wanted_piece(&mut self, from: NodeId, number: u64) {
        let piece = self.config.piece;
        let begin = usize::try_from(number).ok().and_then(|number| number.checked_mul(piece));
        let Some(begin) = begin.filter(|&begin| begin < self.data.len() && self.synced) else { return };
        let end = self.data.len().min(begin + piece);
        let (data, last) = (self.data[begin..end].into(), end == self.data.len());
        self.send(from, ChainMessage::Piece(number, self.applied, data, last));
    }

    /// A piece has come.
    pub(super) fn piece(&mut self, number: u64, applied: u64, data: &[u8], last: bool) {
        let begin = number.saturating_mul(self.config.piece as u64);
        let fits = begin.checked_add(data.len() as u64).is_some_and(|end| end <= self.data.len() as u64);
        let synced = self.synced;
        let Some(learning) = self.learning.as_mut().filter(|it| synced && it.next == number && !it.done && fits) else {
            return;
        };
        learning.next += 1;
        learning.piece_has = applied;
        learning.done = last;
        learning.holds = true;
        let base = self.layout().data_at() as u64;
        self.put_data(base, begin, data);
        let newest = if self.mutant(ChainMutation::SkipRedo) { 0 } else { self.applied };
        let again: Vec<Entry> = self.entries_after(applied).take_while(|entry| entry.seq <= newest).cloned().collect();
        for entry in again {
            self.marks.reapplied += 1;
            self.apply(&entry);
        }
        if last || self.mutant(ChainMutation::EarlyReady) {
            self.when_durable(Then::CaughtUp(self.view.epoch));
        }
        if last {
            self.learning = None;
        } else {
            self.go_on_learning();
        }
    }

    /// Asks for the next piece if it was not asked for, and the disk has come along so far.
    pub(super) fn go_on_learning(&mut self) {
        let may = self.under_way() < UNDER_WAY;
        if let Some(learning) = self.learning.as_mut().filter(|learning| learning.holds && may) {
            learning.holds = false;
            self.ask_for_piece();
        }
    }
}

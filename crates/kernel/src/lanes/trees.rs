//! Visits of a tree's leaves, side by side.

use super::{Reads, polls, take_turns};
use crate::btree::{LOOKS, LookIn, More, PutInPlace, Range, Visit, are_bytes, cost_of_look};
use crate::builtins::op;
use crate::call::Call;
use crate::pool::POLL;
use crate::steps::Stop;

/// Calls of a tree's kernels that have begun, by kernel and kind of key.
#[derive(Default)]
pub(super) struct Trees {
    /// How many there are.
    len: usize,
    gets: Visits<LookIn<u64>>,
    scans: Visits<Range<u64>>,
    puts: Visits<PutInPlace<u64>>,
    byte_gets: Visits<LookIn<[u8]>>,
    byte_scans: Visits<Range<[u8]>>,
    byte_puts: Visits<PutInPlace<[u8]>>,
}

/// Calls of one kernel.
struct Visits<V> {
    going: Vec<(Option<Call>, V)>,
    /// Those that ended when they began.
    ended: Vec<(Call, Result<(), Stop>)>,
    /// Which of those that go on wait for nothing: empty between turns.
    near: Vec<usize>,
}

impl<V> Default for Visits<V> {
    fn default() -> Self {
        Visits { going: Vec::new(), ended: Vec::new(), near: Vec::new() }
    }
}

impl Trees {
    pub fn begin(&mut self, call: Call) {
        self.len += 1;
        match (call.op, are_bytes(&call.params)) {
            (op::TREE_GET, false) => self.gets.begin(call),
            (op::TREE_GET, true) => self.byte_gets.begin(call),
            (op::TREE_SCAN, false) => self.scans.begin(call),
            (op::TREE_SCAN, true) => self.byte_scans.begin(call),
            // Without room for the reply the future says so, before it writes anything.
            _ if call.reply_room() < 8 => self.puts.ended.push((call, Err(Stop::Apart))),
            (_, false) => self.puts.begin(call),
            (_, true) => self.byte_puts.begin(call),
        }
    }

    /// Lets calls go on, each once, until `balance` is spent. Returns how many have ended.
    #[inline(always)]
    pub fn poll(
        &mut self,
        reads: &mut Reads<'_>,
        balance: &mut i64,
        ended: &mut impl FnMut(Call, Result<(), Stop>),
    ) -> usize {
        if self.len == 0 {
            return 0;
        }
        let count = self.gets.poll(reads, balance, ended)
            + self.scans.poll(reads, balance, ended)
            + self.puts.poll(reads, balance, ended)
            + self.byte_gets.poll(reads, balance, ended)
            + self.byte_scans.poll(reads, balance, ended)
            + self.byte_puts.poll(reads, balance, ended);
        self.len -= count;
        count
    }

    pub fn cancel(&mut self, tag: u64) -> bool {
        let found = self.gets.cancel(tag)
            || self.scans.cancel(tag)
            || self.puts.cancel(tag)
            || self.byte_gets.cancel(tag)
            || self.byte_scans.cancel(tag)
            || self.byte_puts.cancel(tag);
        self.len -= usize::from(found);
        found
    }
}

impl<V: Visit> Visits<V> {
    #[inline(always)]
    fn begin(&mut self, call: Call) {
        match V::begin(&call.params) {
            // Its first nodes are in the caches.
            Ok(visit) => self.going.push((Some(call), visit)),
            Err(status) => self.ended.push((call, Err(status.into()))),
        }
    }

    #[inline(always)]
    fn poll(
        &mut self,
        reads: &mut Reads<'_>,
        balance: &mut i64,
        ended: &mut impl FnMut(Call, Result<(), Stop>),
    ) -> usize {
        let mut count = self.ended.len().min(polls(*balance));
        if count > 0 {
            *balance -= count as i64 * POLL;
            self.ended.drain(..count).for_each(|(call, result)| ended(call, result));
        }
        if !self.going.is_empty() {
            count += self.go_on(reads, balance, ended);
        }
        count
    }

    #[inline(never)]
    fn go_on(
        &mut self,
        reads: &mut Reads<'_>,
        balance: &mut i64,
        ended: &mut impl FnMut(Call, Result<(), Stop>),
    ) -> usize {
        let Self { going, near, .. } = self;
        let most = going.len().min(polls(*balance));
        let (mut polled, mut count) = (0, 0);
        let mut step = |(call, visit): &mut (Option<Call>, V), reads: &mut Reads<'_>| {
            let Some(there) = call else { return false };
            match visit.go_on(reads, there) {
                Ok(Some(More::Step)) => return true,
                Ok(Some(More::Bring(_, words))) => {
                    if reads.memory.prefetches() {
                        words.prefetch(0, words.bytes());
                    }
                    return false;
                }
                result => {
                    let Some(call) = call.take() else { return false };
                    count += 1;
                    let result = match result {
                        // Such as a leaf that is to be split.
                        Ok(None) => Err(Stop::Apart),
                        Ok(_) => Ok(()),
                        Err(status) => Err(status.into()),
                    };
                    ended(call, result);
                }
            }
            false
        };
        for (at, visit) in going[..most].iter_mut().enumerate() {
            // Long visits leave each one step.
            if polled > 0 && reads.work >= *balance {
                break;
            }
            (polled, *balance) = (polled + 1, *balance - POLL);
            if step(visit, reads) {
                near.push(at);
            }
        }
        // One node of each by turns: of one alone each node has to wait for what the one above says.
        for look in 2..=LOOKS {
            let cost = cost_of_look(look) as i64;
            reads.work += near.len() as i64 * cost;
            if near.is_empty() || cost > 0 && reads.work >= *balance {
                break;
            }
            near.retain(|at| step(&mut going[*at], reads));
        }
        near.clear();
        take_turns(going, polled, polled - count, |(call, _)| call.is_some());
        count
    }

    fn cancel(&mut self, tag: u64) -> bool {
        let going = self.going.iter().position(|(call, _)| call.as_ref().is_some_and(|call| call.tag == tag));
        let ended = self.ended.iter().position(|(call, _)| call.tag == tag);
        going.map(|at| self.going.remove(at)).is_some() || ended.map(|at| self.ended.remove(at)).is_some()
    }
}

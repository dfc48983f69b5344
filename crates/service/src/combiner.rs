//! Calls of many that go by one connection: whoever has it posts those of all who wait (Flock, SOSP 2021).

use std::collections::VecDeque;

use crate::call_slots::Full;

/// A call that somebody wants made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Combined<W> {
    /// The kernel's op-code.
    pub op: u64,
    /// Its parameters.
    pub params: Vec<u8>,
    /// Who waits for the answer.
    pub who: W,
}

/// What waits to be posted, in the order in which it came, and who waits for which answer. Whoever has it puts the calls of all
/// others in, [posts](Self::post) them together, and says of each tag that [ended](Self::ended).
#[derive(Debug)]
pub struct Combiner<W> {
    waiting: VecDeque<Combined<W>>,
    /// By tag.
    under_way: Vec<Option<W>>,
    free: Vec<u32>,
}

impl<W> Combiner<W> {
    /// With at most so many calls under way.
    pub fn new(most: u32) -> Self {
        let under_way = (0..most).map(|_| None).collect();
        Self { waiting: VecDeque::new(), under_way, free: (0..most).rev().collect() }
    }

    /// Calls that wait to be posted.
    pub fn waiting(&mut self) -> &mut VecDeque<Combined<W>> {
        &mut self.waiting
    }

    /// Posts as many as there is room for, by `submit`, which gets op-code, parameters and tag. Returns how many.
    pub fn post(&mut self, mut submit: impl FnMut(u64, &[u8], u32) -> Result<(), Full>) -> usize {
        let mut posted = 0;
        while let (Some(call), Some(&tag)) = (self.waiting.front(), self.free.last()) {
            if submit(call.op, &call.params, tag).is_err() {
                break;
            }
            self.free.pop();
            self.under_way[tag as usize] = self.waiting.pop_front().map(|call| call.who);
            posted += 1;
        }
        posted
    }

    /// The call with this tag has ended: who waits for it.
    pub fn ended(&mut self, tag: u32) -> Option<W> {
        let who = self.under_way.get_mut(tag as usize)?.take()?;
        self.free.push(tag);
        Some(who)
    }

    /// Whether nobody waits.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.free.len() == self.under_way.len()
    }

    /// Any of those who wait.
    pub fn anyone(&self) -> Option<&W> {
        let under_way = || self.under_way.iter().find_map(Option::as_ref);
        self.waiting.front().map(|call| &call.who).or_else(under_way)
    }

    /// All of those who wait, none of whom gets an answer any more.
    pub fn lose_all(&mut self) -> impl Iterator<Item = W> {
        self.free = (0..self.under_way.len() as u32).rev().collect();
        let under_way = self.under_way.iter_mut().filter_map(Option::take);
        self.waiting.drain(..).map(|call| call.who).chain(under_way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Come(u8),
        /// Posts while there is room for so many.
        Post(usize),
        /// One of those under way ends.
        End(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![(1u8..5).prop_map(Step::Come), (0usize..6).prop_map(Step::Post), (0usize..9).prop_map(Step::End)]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn each_call_is_posted_in_its_turn_and_answered_once(
            steps in prop::collection::vec(step(), 1..200),
            most in 1u32..6,
        ) {
            let mut combiner = Combiner::new(most);
            let (mut came, mut posted, mut ended) = (0u64, Vec::new(), Vec::new());
            let mut tags: Vec<(u32, u64)> = Vec::new();
            for step in steps {
                match step {
                    Step::Come(count) => for _ in 0..count {
                        combiner.waiting().push_back(Combined { op: came, params: came.to_le_bytes().to_vec(), who: came });
                        came += 1;
                    },
                    Step::Post(mut room) => {
                        let count = combiner.post(|op, params, tag| {
                            if room == 0 {
                                return Err(Full);
                            }
                            room -= 1;
                            assert_eq!(params, op.to_le_bytes());
                            assert!(tags.iter().all(|(other, _)| *other != tag), "a tag in use");
                            tags.push((tag, op));
                            posted.push(op);
                            Ok(())
                        });
                        prop_assert!(count <= most as usize && tags.len() <= most as usize);
                    }
                    Step::End(which) if !tags.is_empty() => {
                        let (tag, op) = tags.swap_remove(which % tags.len());
                        prop_assert_eq!(combiner.ended(tag), Some(op));
                        prop_assert_eq!(combiner.ended(tag), None);
                        ended.push(op);
                    }
                    Step::End(_) => prop_assert_eq!(combiner.ended(0), None),
                }
                prop_assert_eq!(combiner.anyone().is_none(), ended.len() as u64 == came);
            }
            prop_assert_eq!(&posted, &(0..posted.len() as u64).collect::<Vec<_>>());
            ended.extend(combiner.lose_all());
            ended.sort_unstable();
            prop_assert_eq!(ended, (0..came).collect::<Vec<_>>());
            prop_assert!(combiner.anyone().is_none());
        }
    }
}

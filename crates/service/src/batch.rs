//! Numbers of a sequencer for many callers by few additions: one of n for n that wait.
//!
//! An addition that is under way takes nobody in any more; who asks meanwhile waits, and the next addition is for all of
//! them. So there are never more under way than are worth it, and the more callers there are the more each addition serves.
//!
//! No number is given twice, whatever fails: an addition's numbers go only to those that it was made for, each its own, and
//! only once its answer is there. An addition whose answer is lost may have been made or not. Its numbers are nobody's, and
//! its callers wait for another. A caller that goes away leaves its numbers unused.

use std::collections::{BTreeMap, VecDeque};

/// Callers that want numbers, and additions for them. `C` names a caller; it asks for one number at a time.
#[derive(Clone, Debug)]
pub struct NumberBatches<C> {
    waiting: VecDeque<C>,
    /// Additions under way, by number, and whom they are for: nobody in place of a caller that has gone.
    under_way: BTreeMap<u64, Vec<Option<C>>>,
    /// Additions that may be under way at once.
    most: usize,
    next: u64,
}

/// An addition to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addition {
    /// Its number, which says which one has ended.
    pub number: u64,
    /// What to add.
    pub count: u32,
}

impl<C: Copy + PartialEq> NumberBatches<C> {
    /// With so many additions under way at most, at least one.
    pub fn new(most: usize) -> Self {
        Self { waiting: VecDeque::new(), under_way: BTreeMap::new(), most: most.max(1), next: 0 }
    }

    /// A caller wants a number.
    pub fn ask(&mut self, caller: C) {
        self.waiting.push_back(caller);
    }

    /// The next addition to make, if somebody waits and no more than may be are under way.
    pub fn next_addition(&mut self) -> Option<Addition> {
        if self.waiting.is_empty() || self.under_way.len() >= self.most {
            return None;
        }
        let callers: Vec<_> = self.waiting.drain(..).map(Some).collect();
        let addition = Addition { number: self.next, count: callers.len() as u32 };
        self.under_way.insert(self.next, callers);
        self.next += 1;
        Some(addition)
    }

    /// The answer to an addition: the word was `first`. `give` hears each caller's number. One that is not under way, or
    /// has been answered, gives nothing.
    pub fn answered(&mut self, number: u64, first: u64, mut give: impl FnMut(C, u64)) {
        let callers = self.under_way.remove(&number).unwrap_or_default();
        for (caller, at) in callers.into_iter().zip(0..) {
            if let Some(caller) = caller {
                give(caller, first.wrapping_add(at));
            }
        }
    }

    /// No answer to an addition will come: its callers wait again, before all others.
    pub fn lost(&mut self, number: u64) {
        for caller in self.under_way.remove(&number).unwrap_or_default().into_iter().rev().flatten() {
            self.waiting.push_front(caller);
        }
    }

    /// A caller has gone. A number that is on its way to it is nobody's.
    pub fn gone(&mut self, caller: C) {
        self.waiting.retain(|waiting| *waiting != caller);
        for place in self.under_way.values_mut().flatten().filter(|place| **place == Some(caller)) {
            *place = None;
        }
    }

    /// All callers have gone.
    pub fn all_gone(&mut self) {
        self.waiting.clear();
        self.under_way.values_mut().flatten().for_each(|place| *place = None);
    }

    /// Callers that wait for an addition to be made.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn one_addition_serves_all_that_wait_and_those_that_come_later_the_next() {
        let mut batches = NumberBatches::new(1);
        (0..3).for_each(|caller| batches.ask(caller));
        let first = batches.next_addition().unwrap();
        assert_eq!(first.count, 3);
        (3..10).for_each(|caller| batches.ask(caller));
        assert_eq!((batches.next_addition(), batches.waiting()), (None, 7));
        let mut given = Vec::new();
        batches.gone(1);
        batches.answered(first.number, 100, |caller, number| given.push((caller, number)));
        // Who has gone leaves its number to nobody.
        assert_eq!(given, [(0, 100), (2, 102)]);
        batches.answered(first.number, 100, |_, _| panic!("twice"));
        let second = batches.next_addition().unwrap();
        assert_eq!(second.count, 7);
        // Who waited first is first again.
        batches.ask(10);
        batches.lost(second.number);
        let third = batches.next_addition().unwrap();
        batches.answered(third.number, 200, |caller, number| given.push((caller, number)));
        assert_eq!(given[2..], [(3, 200), (4, 201), (5, 202), (6, 203), (7, 204), (8, 205), (9, 206), (10, 207)]);
    }

    #[test]
    fn where_all_have_gone_nobody_is_given_a_number_and_none_is_asked_for() {
        let mut batches = NumberBatches::new(2);
        (0..3).for_each(|caller| batches.ask(caller));
        let additions = [0, 1].map(|_| {
            batches.ask(4);
            batches.next_addition().unwrap()
        });
        batches.ask(5);
        batches.all_gone();
        batches.answered(additions[0].number, 7, |caller, _| panic!("{caller}"));
        batches.lost(additions[1].number);
        assert_eq!((batches.waiting(), batches.next_addition()), (0, None));
        batches.ask(6);
        assert_eq!(batches.next_addition().map(|addition| addition.count), Some(1));
    }

    /// A node may say anything.
    #[test]
    fn an_answer_of_any_number_is_taken() {
        let mut batches = NumberBatches::new(1);
        (0..3).for_each(|caller| batches.ask(caller));
        let addition = batches.next_addition().unwrap();
        let mut given = Vec::new();
        batches.answered(addition.number, u64::MAX - 1, |caller, number| given.push((caller, number)));
        assert_eq!(given, [(0, u64::MAX - 1), (1, u64::MAX), (2, 0)]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Ask(u8),
        Add,
        /// The addition of this place among those under way is made, and its answer comes or is lost.
        Make(usize, bool),
        /// It is lost before it is made, though it may be made later.
        Lose(usize),
        Gone(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..20u8).prop_map(Step::Ask),
            3 => Just(Step::Add),
            3 => (0..4usize, any::<bool>()).prop_map(|(at, comes)| Step::Make(at, comes)),
            1 => (0..4usize).prop_map(Step::Lose),
            1 => (0..20u8).prop_map(Step::Gone),
        ]
    }

    proptest! {
        /// Several clients on one word, each with callers of its own: additions are made in any order, answers and requests
        /// get lost, callers and whole clients go. No number comes twice, none to who has gone, and each caller has at most
        /// as many as it asked for.
        #[test]
        fn no_number_is_given_twice(steps in prop::collection::vec((0..2usize, step()), 0..200), most in 1..4usize) {
            let mut word = 0u64;
            let mut clients = [NumberBatches::new(most), NumberBatches::new(most)];
            let mut under_way: [Vec<Addition>; 2] = Default::default();
            let (mut given, mut asked) = (BTreeSet::new(), std::collections::BTreeMap::<(usize, u8), i32>::new());
            for (client, step) in steps {
                let batches = &mut clients[client];
                match step {
                    Step::Ask(caller) => {
                        batches.ask(caller);
                        *asked.entry((client, caller)).or_default() += 1;
                    }
                    Step::Add => under_way[client].extend(batches.next_addition()),
                    Step::Make(at, comes) if at < under_way[client].len() => {
                        let addition = under_way[client].remove(at);
                        let first = word;
                        word += u64::from(addition.count);
                        match comes {
                            false => batches.lost(addition.number),
                            true => {
                                let mut fault = None;
                                batches.answered(addition.number, first, |caller, number| {
                                    let left = asked.entry((client, caller)).or_default();
                                    *left -= 1;
                                    if !given.insert(number) || number >= word || *left < 0 {
                                        fault = Some((caller, number));
                                    }
                                });
                                prop_assert_eq!(fault, None);
                            }
                        }
                    }
                    Step::Lose(at) if at < under_way[client].len() => {
                        let addition = under_way[client].remove(at);
                        batches.lost(addition.number);
                        // It was made after all.
                        word += u64::from(addition.count);
                    }
                    Step::Gone(caller) => {
                        batches.gone(caller);
                        asked.insert((client, caller), 0);
                    }
                    Step::Make(..) | Step::Lose(_) => {}
                }
            }
            // All that still wait have their numbers in the end.
            for (client, batches) in clients.iter_mut().enumerate() {
                for addition in under_way[client].drain(..) {
                    batches.lost(addition.number);
                }
                if let Some(addition) = batches.next_addition() {
                    batches.answered(addition.number, word, |caller, number| {
                        *asked.entry((client, caller)).or_default() -= 1;
                        assert!(given.insert(number));
                    });
                    word += u64::from(addition.count);
                }
            }
            prop_assert!(asked.values().all(|left| *left == 0), "{asked:?}");
        }
    }
}

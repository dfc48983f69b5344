//! In which order those are served that wait.
//!
//! What a model says of means hardly hangs on that, and of who waits longest a lot. So the order is one of the things that a
//! mutant of a model has otherwise (`remora reproduce PAPER --mutate`).

use std::collections::VecDeque;

use crate::time::Ps;

/// An order of service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// First come, first served.
    #[default]
    InTurn,
    /// A wrong one. Where tasks wait in a queue, the last one comes first. Where a place in time is given to each request as it
    /// comes, neighbours change places: of those that wait behind others, each second lets the next one by. It has its time
    /// before that one is there, so if none comes, or none that is short enough, its place stays idle.
    OutOfTurn,
}

impl Order {
    /// Takes who is next from a queue to whose back all come.
    pub fn take<T>(self, queue: &mut VecDeque<T>) -> Option<T> {
        match self {
            Self::InTurn => queue.pop_front(),
            Self::OutOfTurn => queue.pop_back(),
        }
    }
}

/// Who lets another by, as an [`Order`] has it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turns {
    order: Order,
    /// The latest start of a request so far: beyond the present somebody waits.
    latest: Ps,
    /// Whether the request before has let the next one by, and nobody came.
    open: bool,
}

impl From<Order> for Turns {
    fn from(order: Order) -> Self {
        Self { order, ..Self::default() }
    }
}

impl Turns {
    /// Whether a request that arrives at `at` and could start at `start` lets the next one by. `between` says that it would
    /// start in an idle time between others.
    #[inline]
    pub(super) fn lets_by(&mut self, at: Ps, start: Ps, between: bool) -> bool {
        self.order == Order::OutOfTurn && self.decide(at, start, between)
    }

    #[cold]
    fn decide(&mut self, at: Ps, start: Ps, between: bool) -> bool {
        let others_wait = self.latest > at;
        self.latest = self.latest.max(start);
        self.open = !between && start > at && others_wait && !self.open;
        self.open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{Channel, Pool, Server};

    const NS: Ps = Ps(1_000);

    #[test]
    fn neighbours_that_wait_change_places_and_no_time_is_lost() {
        let mut server = Server::new(1).ordered(Order::OutOfTurn);
        // Who finds it idle is served, and who is the first to wait; then pairs are swapped.
        let starts: Vec<_> = (0..6).map(|at| server.serve(NS * at, NS * 10).0).collect();
        assert_eq!(starts, [0, 10, 30, 20, 50, 40].map(|start| NS * start));
        assert_eq!(server.end(), NS * 60);
    }

    #[test]
    fn who_does_not_wait_behind_others_is_served_as_ever() {
        let (mut swapped, mut straight) = (Server::new(1).ordered(Order::OutOfTurn), Server::new(1));
        for at in [0, 5, 40, 47, 90, 200] {
            assert_eq!(swapped.serve(NS * at, NS * 10), straight.serve(NS * at, NS * 10));
        }
    }

    #[test]
    fn a_place_that_the_next_is_too_long_for_stays_idle() {
        let mut channel = Channel::new(1e9).ordered(Order::OutOfTurn);
        let mut serve = |bytes| channel.serve(Ps::ZERO, bytes).0;
        // The third lets a place of its own length free; the fourth is longer, the fifth fits.
        assert_eq!([10, 10, 10, 20, 10].map(&mut serve), [0, 10, 30, 40, 20].map(|start| NS * start));
    }

    #[test]
    fn tokens_go_to_the_next_one_first() {
        let mut tokens = Pool::new(2).ordered(Order::OutOfTurn);
        let mut hold = |at: u64| {
            let start = tokens.acquire(NS * at);
            tokens.release(start, start + NS * 10);
            start
        };
        // Of the third and fourth nobody waits before the first; the fourth lets the fifth by.
        assert_eq!([0, 5, 6, 7, 8].map(&mut hold), [0, 5, 10, 20, 15].map(|start| NS * start));
    }

    #[test]
    fn a_queue_of_tasks_gives_its_last_one() {
        let mut queue = VecDeque::from([1, 2, 3]);
        assert_eq!((Order::OutOfTurn.take(&mut queue), Order::InTurn.take(&mut queue)), (Some(3), Some(1)));
        assert_eq!(Order::OutOfTurn.take(&mut VecDeque::<u8>::new()), None);
    }
}

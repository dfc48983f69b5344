//! A bounded pool of tasks, after RAMBDA's table of outstanding requests (HPCA 2023), whose turns clients share.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

/// What a turn of a pool may cost, in half nanoseconds of a core or so: about 1 us.
pub const TURN: u64 = 2_000;
/// What a poll costs, beside what its task says that it did.
pub(crate) const POLL: i64 = 8;

/// Up to a fixed number of futures of one type, polled in turn. Allocates when made, and for the first task of a client.
///
/// Its tasks wait for memory or for a network that the same thread drives, so there is nobody to wake them: polls go
/// round. Clients share them by deficit round robin (Shreedhar and Varghese, IEEE/ACM Transactions on Networking 4(3),
/// 1996): each gets [`TURN`] once a round and pays for what its tasks do, so that many tasks, or long ones, take
/// time from their own client alone. Who has taken more sits out until it is paid back, or nobody else wants the time.
///
/// Beside futures it counts tasks of a second kind, [`Beside`], of which each client has its own store, if it was made
/// [`with_beside`](Self::with_beside) such.
pub struct TaskPool<F: Future, B: Beside = ()> {
    slots: Vec<Pin<Box<Option<F>>>>,
    /// What is known of each slot.
    links: Vec<Link>,
    free: Vec<u32>,
    /// What ended when it began, and the slots that it still has.
    early: Vec<(u32, F::Output)>,
    /// By client.
    lines: Vec<Line<B>>,
    /// Tasks in their clients' stores.
    beside: usize,
    /// Clients with tasks, each once, in the order of their turns.
    ready: VecDeque<u32>,
    /// Rounds so far, in each of which all clients with tasks have their turn, and turns left in this one.
    round: u64,
    left_in_round: usize,
    /// What tasks did in the last turn, and what those that began since did, beside being polled.
    worked: i64,
    begun: i64,
}

/// A client's tasks that are polled together.
pub trait Beside: Default {
    /// How many there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops the task with this tag. False if there is none.
    fn cancel(&mut self, tag: u64) -> bool;
}

impl Beside for () {
    fn len(&self) -> usize {
        0
    }

    fn cancel(&mut self, _: u64) -> bool {
        false
    }
}

/// Takes what tasks have come to.
pub(crate) trait Ends<O, B: Beside> {
    /// A future's output.
    fn future(&mut self, output: O);

    /// Polls a client's tasks, each once, until the balance is spent. Returns what is left of it, and what of it was not for
    /// polls.
    fn beside(&mut self, tasks: &mut B, balance: i64) -> (i64, i64);
}

impl<O, D: FnMut(O)> Ends<O, ()> for D {
    #[inline]
    fn future(&mut self, output: O) {
        self(output);
    }

    fn beside(&mut self, (): &mut (), balance: i64) -> (i64, i64) {
        (balance, 0)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    client: u32,
    tag: u64,
}

/// The tasks of one client.
#[derive(Debug)]
struct Line<B> {
    /// Their slots, the one polled longest ago in front: what it waits for has had the most time to come, and tasks that
    /// began together stay together, so that a core guesses right what each does next.
    slots: Vec<u32>,
    beside: B,
    /// Whether those beside are polled first: each kind in every other turn.
    beside_first: bool,
    /// What may be spent, as of `round`. Below zero it is a debt.
    balance: i64,
    round: u64,
    /// What it gets in a round, in [`TURN`]s.
    weight: u32,
}

/// What tasks have done beside being polled. Atomic only so that a pool may move between threads: one thread uses it.
#[derive(Debug, Default)]
pub struct Meter(AtomicU64);

impl Meter {
    /// Notes work of so many half nanoseconds.
    #[inline]
    pub fn add(&self, cost: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).saturating_add(cost), Ordering::Relaxed);
    }

    #[inline]
    fn take(&self) -> i64 {
        let cost = self.0.load(Ordering::Relaxed);
        if cost > 0 {
            self.0.store(0, Ordering::Relaxed);
        }
        // A debt that is paid back in a day is long enough.
        cost.min(1 << 40) as i64
    }
}

impl<B: Default> Default for Line<B> {
    fn default() -> Self {
        let (slots, beside) = (Vec::new(), B::default());
        Self { slots, beside, beside_first: true, balance: TURN as i64, round: 0, weight: 1 }
    }
}

impl<B: Beside> Line<B> {
    #[inline]
    fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.beside.is_empty()
    }

    /// What may be spent in this round.
    #[inline]
    fn balance_at(&self, round: u64) -> i64 {
        if self.round == round {
            return self.balance;
        }
        let share = TURN * u64::from(self.weight);
        let earned = (round - self.round).saturating_mul(share).min(1 << 41) as i64;
        (self.balance + earned).min(share as i64)
    }
}

impl<F: Future> TaskPool<F> {
    /// Default number of tasks in flight.
    pub const DEFAULT_CAPACITY: usize = 256;

    /// A pool of `capacity` slots.
    pub fn new(capacity: usize) -> Self {
        Self::with_beside(capacity)
    }

    /// One turn: polls tasks, each about once, for as long as [`TURN`] lasts, and hands the results of those that are
    /// done to `done`. `meter` is where tasks note what they do. Returns how many were done.
    #[inline]
    pub fn poll(&mut self, meter: &Meter, done: impl FnMut(F::Output)) -> usize {
        self.poll_into(meter, done)
    }
}

impl<F: Future, B: Beside> TaskPool<F, B> {
    /// A pool of `capacity` slots, for tasks of two kinds.
    pub(crate) fn with_beside(capacity: usize) -> Self {
        TaskPool {
            slots: (0..capacity).map(|_| Box::pin(None)).collect(),
            links: vec![Link::default(); capacity],
            free: (0..capacity as u32).rev().collect(),
            early: Vec::with_capacity(capacity),
            lines: vec![Line::default()],
            beside: 0,
            ready: VecDeque::with_capacity(capacity),
            round: 0,
            left_in_round: 0,
            worked: 0,
            begun: 0,
        }
    }

    /// A client gets so many times what others get in a round from now on, at least once as much.
    pub fn set_weight(&mut self, client: u32, weight: u32) {
        self.line(client).weight = weight.max(1);
    }

    /// Takes a client's `task` in, or gives it back if the pool is full.
    #[inline]
    pub fn try_spawn(&mut self, client: u32, meter: &Meter, task: F) -> Result<(), F> {
        if self.is_full() {
            return Err(task);
        }
        self.spawn_with(client, 0, meter, || task);
        Ok(())
    }

    /// Takes in what `task` makes, without moving it once more; does nothing if the pool is full. Whose client is not in
    /// debt is polled at once, so that what it waits for is under way.
    #[inline]
    pub(crate) fn spawn_with(&mut self, client: u32, tag: u64, meter: &Meter, task: impl FnOnce() -> F) {
        let Some(slot) = self.take_slot() else { return };
        self.slots[slot as usize].set(Some(task()));
        self.begin(slot, (client, tag), meter);
    }

    #[inline]
    fn take_slot(&mut self) -> Option<u32> {
        if self.is_full() { None } else { self.free.pop() }
    }

    /// Gives what is in a slot its first turn.
    #[inline]
    fn begin(&mut self, slot: u32, (client, tag): (u32, u64), meter: &Meter) {
        let link = &mut self.links[slot as usize];
        (link.client, link.tag) = (client, tag);
        self.line(client);
        let line = &mut self.lines[client as usize];
        let balance = line.balance_at(self.round);
        if balance > 0 {
            let poll = poll_future(self.slots[slot as usize].as_mut());
            let work = meter.take();
            (line.balance, line.round) = (balance - POLL - work, self.round);
            self.begun += work;
            if let Poll::Ready(output) = poll {
                self.early.push((slot, output));
                return;
            }
        }
        if line.is_empty() {
            self.ready.push_back(client);
        }
        if line.slots.capacity() == 0 {
            line.slots.reserve_exact(self.links.len());
        }
        line.slots.push(slot);
    }

    #[inline]
    fn line(&mut self, client: u32) -> &mut Line<B> {
        if client as usize >= self.lines.len() {
            self.lines.resize_with(client as usize + 1, Line::default);
        }
        &mut self.lines[client as usize]
    }

    /// A client's store of tasks. Who puts one into it, which a full pool has no room for, says [`began`](Self::began).
    #[inline]
    pub(crate) fn beside(&mut self, client: u32) -> &mut B {
        &mut self.line(client).beside
    }

    /// A task was put into its client's store, and has cost so much.
    #[inline]
    pub(crate) fn began(&mut self, client: u32, work: i64) {
        let line = &mut self.lines[client as usize];
        (line.balance, line.round) = (line.balance_at(self.round) - POLL - work, self.round);
        (self.begun, self.beside) = (self.begun + work, self.beside + 1);
        if line.beside.len() == 1 && line.slots.is_empty() {
            self.ready.push_back(client);
        }
    }

    /// One turn: see [`poll`](Self::poll).
    #[inline]
    pub(crate) fn poll_into(&mut self, meter: &Meter, mut done: impl Ends<F::Output, B>) -> usize {
        let before = self.len();
        self.worked = std::mem::take(&mut self.begun);
        if !self.early.is_empty() {
            for (slot, output) in self.early.drain(..) {
                self.free.push(slot);
                done.future(output);
            }
        }
        if self.ready.len() > 1 {
            self.poll_clients(meter, &mut done);
        } else if let Some(&client) = self.ready.front() {
            // Alone it is owed nothing and owes nobody.
            let balance = self.poll_client(client, TURN as i64 - self.worked, meter, &mut done);
            self.settle(client, balance);
        }
        before - self.len()
    }

    /// A turn that clients share.
    #[inline(never)]
    fn poll_clients(&mut self, meter: &Meter, done: &mut impl Ends<F::Output, B>) {
        let (mut left, mut least_debt, mut in_credit) = (TURN as i64 - self.worked, i64::MIN, false);
        for _ in 0..self.ready.len() {
            if self.left_in_round == 0 {
                self.round += 1;
                self.left_in_round = self.ready.len();
            }
            self.left_in_round -= 1;
            let Some(&client) = self.ready.front() else { break };
            let before = self.lines[client as usize].balance_at(self.round);
            let balance = self.poll_client(client, before, meter, done);
            left -= before - balance;
            if self.settle(client, balance) {
                match balance {
                    ..=0 => least_debt = least_debt.max(balance),
                    _ => in_credit = true,
                }
            }
            if left <= 0 {
                return;
            }
        }
        if !in_credit && least_debt > i64::MIN {
            // Nobody else wants the time: the rounds until the first has paid are skipped. What is done leaves before a
            // debtor's next poll, which may be long, and who asks anew meanwhile goes before it.
            self.round += least_debt.unsigned_abs() / TURN;
            self.worked = self.worked.max(TURN as i64);
        }
    }

    /// Polls the client's tasks, each about once, until its balance is spent. Returns what is left of it.
    #[inline(always)]
    fn poll_client(&mut self, client: u32, mut balance: i64, meter: &Meter, done: &mut impl Ends<F::Output, B>) -> i64 {
        let line = &mut self.lines[client as usize];
        let first = line.beside_first;
        if balance > 0 {
            line.beside_first = !first;
        }
        if first || line.slots.is_empty() {
            balance = self.poll_beside(client, balance, done);
        }
        if !self.lines[client as usize].slots.is_empty() {
            balance = self.poll_slots(client, balance, meter, done);
            if !first {
                balance = self.poll_beside(client, balance, done);
            }
        }
        balance
    }

    #[inline(always)]
    fn poll_beside(&mut self, client: u32, balance: i64, done: &mut impl Ends<F::Output, B>) -> i64 {
        let beside = &mut self.lines[client as usize].beside;
        let before = beside.len();
        if before == 0 || balance <= 0 {
            return balance;
        }
        let (balance, work) = done.beside(beside, balance);
        self.worked += work;
        self.beside -= before - beside.len();
        balance
    }

    #[inline(always)]
    fn poll_slots(&mut self, client: u32, mut balance: i64, meter: &Meter, done: &mut impl Ends<F::Output, B>) -> i64 {
        let TaskPool { slots, free, lines, worked, .. } = self;
        let live = &mut lines[client as usize].slots;
        // Those polled so far, and how many of them stay: in front, in their order.
        let (mut polled, mut stay) = (0, 0);
        while polled < live.len() && balance > 0 {
            let slot = live[polled];
            polled += 1;
            match poll_future(slots[slot as usize].as_mut()) {
                Poll::Pending => {
                    live[stay] = slot;
                    stay += 1;
                }
                Poll::Ready(output) => {
                    done.future(output);
                    free.push(slot);
                }
            }
            let work = meter.take();
            *worked += work;
            balance -= POLL + work;
        }
        if polled == live.len() {
            live.truncate(stay);
        } else {
            live.drain(stay..polled);
            live.rotate_left(stay);
        }
        balance
    }

    /// Ends the turn of the client that is first. Returns whether it has tasks left.
    #[inline]
    fn settle(&mut self, client: u32, balance: i64) -> bool {
        let line = &mut self.lines[client as usize];
        (line.balance, line.round) = (balance, self.round);
        if line.is_empty() {
            self.ready.pop_front();
            return false;
        }
        if self.ready.len() > 1 {
            self.ready.rotate_left(1);
        }
        true
    }

    /// Whether the last turn's tasks did as much, beside being polled, as a turn is for: look at the network before the
    /// next.
    pub fn is_spent(&self) -> bool {
        self.worked >= TURN as i64
    }

    /// Drops the task with this tag. False if there is none.
    pub(crate) fn cancel(&mut self, tag: u64) -> bool {
        if let Some(at) = self.early.iter().position(|&(slot, _)| self.links[slot as usize].tag == tag) {
            let (slot, _) = self.early.remove(at);
            self.free.push(slot);
            return true;
        }
        let lines = &mut self.lines;
        if let Some(at) = self.ready.iter().position(|&client| lines[client as usize].beside.cancel(tag)) {
            self.beside -= 1;
            if lines[self.ready[at] as usize].is_empty() {
                self.ready.remove(at);
            }
            return true;
        }
        let mut used = self.ready.iter().flat_map(|&client| self.lines[client as usize].slots.iter().copied());
        let Some(found) = used.find(|&slot| self.links[slot as usize].tag == tag) else { return false };
        let client = self.links[found as usize].client;
        let line = &mut self.lines[client as usize];
        line.slots.retain(|&slot| slot != found);
        if line.is_empty() {
            self.ready.retain(|&other| other != client);
        }
        self.slots[found as usize].set(None);
        self.free.push(found);
        true
    }

    /// Tasks in flight.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len() + self.beside
    }

    /// Whether no task is in flight.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there is no room for another.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.free.len() <= self.beside
    }

    /// Number of slots.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }
}

/// Polls the future in a slot, and drops it when it is done.
#[inline(always)]
fn poll_future<F: Future>(mut place: Pin<&mut Option<F>>) -> Poll<F::Output> {
    let mut cx = Context::from_waker(Waker::noop());
    let poll = match place.as_mut().as_pin_mut() {
        Some(task) => task.poll(&mut cx),
        None => Poll::Pending,
    };
    if poll.is_ready() {
        place.set(None);
    }
    poll
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::{Cell, RefCell};
    use std::future::poll_fn;
    use std::rc::Rc;
    use std::sync::Arc;

    /// Is pending `n` times, noting `id` at each poll.
    fn task(id: u32, mut n: u32, seen: &RefCell<Vec<u32>>) -> impl Future<Output = u32> {
        poll_fn(move |_| {
            seen.borrow_mut().push(id);
            if n == 0 {
                return Poll::Ready(id);
            }
            n -= 1;
            Poll::Pending
        })
    }

    #[test]
    fn every_task_begins_at_once_and_gets_one_turn_a_poll() {
        let (seen, meter) = (RefCell::new(Vec::new()), Meter::default());
        let mut pool = TaskPool::new(3);
        for (id, n) in [(0, 2), (1, 1), (2, 2)] {
            assert!(pool.try_spawn(0, &meter, task(id, n, &seen)).is_ok());
        }
        assert!(pool.is_full());
        let refused = pool.try_spawn(0, &meter, task(3, 0, &seen));
        assert!(refused.is_err(), "full: given back");
        assert_eq!(seen.take(), vec![0, 1, 2]);

        let mut done = Vec::new();
        assert_eq!(pool.poll(&meter, |id| done.push(id)), 1);
        assert_eq!((seen.take(), std::mem::take(&mut done)), (vec![0, 1, 2], vec![1]));
        assert!(pool.try_spawn(0, &meter, refused.unwrap_err()).is_ok());
        assert_eq!(pool.poll(&meter, |id| done.push(id)), 3);
        done.sort_unstable();
        assert_eq!((done, pool.len(), pool.is_empty()), (vec![0, 2, 3], 0, true));
        assert_eq!(seen.take().len(), 3);
    }

    #[test]
    fn dropping_the_pool_drops_its_tasks_and_so_does_cancelling() {
        let token = Arc::new(());
        let mut pool = TaskPool::new(4);
        let task = |ends: bool| {
            let held = token.clone();
            poll_fn(move |_| if ends && Arc::strong_count(&held) > 0 { Poll::Ready(()) } else { Poll::Pending })
        };
        let meter = Meter::default();
        for (client, tag) in [(1, 7), (1, 8), (0, 9), (1, 10)] {
            pool.spawn_with(client, tag, &meter, || task(false));
        }
        assert_eq!(pool.poll(&meter, |()| ()), 0);
        assert!(pool.cancel(8) && !pool.cancel(8) && pool.cancel(9));
        assert_eq!((pool.len(), Arc::strong_count(&token)), (2, 3));
        assert_eq!(pool.poll(&meter, |()| ()), 0);
        assert!(pool.cancel(7) && pool.cancel(10) && pool.is_empty());
        pool.spawn_with(1, 7, &meter, || task(true));
        assert_eq!((pool.len(), pool.poll(&meter, |()| ())), (1, 1));
        pool.spawn_with(1, 7, &meter, || task(true));
        assert!(pool.cancel(7) && !pool.cancel(7) && pool.poll(&meter, |()| ()) == 0, "done, but not handed over");
        drop(pool);
        assert_eq!(Arc::strong_count(&token), 1);
    }

    /// A task that never ends, whose polls cost so much; counts them.
    fn spin(meter: Rc<Meter>, cost: u64, polls: Rc<Cell<u64>>) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(poll_fn(move |_| {
            meter.add(cost);
            polls.set(polls.get() + 1);
            Poll::Pending
        }))
    }

    #[test]
    fn a_short_task_is_done_within_two_turns_a_poll_however_many_others_spin() {
        for cost in [0, TURN / 3, TURN, 100 * TURN] {
            let (meter, polls) = (Rc::new(Meter::default()), Rc::new(Cell::new(0)));
            let mut pool = TaskPool::new(512);
            for _ in 0..500 {
                assert!(pool.try_spawn(1, &meter, spin(meter.clone(), cost, polls.clone())).is_ok());
            }
            for needs in [1, 3, 10] {
                let done = Rc::new(Cell::new(false));
                let (ended, mut polled) = (done.clone(), 0);
                let short = poll_fn(move |_| {
                    polled += 1;
                    ended.set(polled == needs);
                    if polled < needs { Poll::Pending } else { Poll::Ready(()) }
                });
                assert!(pool.try_spawn(2, &meter, Box::pin(short)).is_ok());
                let mut turns = 0;
                while !done.get() {
                    pool.poll(&meter, |()| ());
                    turns += 1;
                }
                assert!(turns <= 2 * needs, "{turns} turns for {needs} polls, beside polls of {cost}");
            }
        }
    }

    #[test]
    fn who_waits_for_memory_is_not_overtaken_by_a_debtor() {
        for cost in [2 * TURN, 50 * TURN] {
            let (meter, polls) = (Rc::new(Meter::default()), Rc::new(Cell::new(0)));
            let mut pool = TaskPool::new(8);
            assert!(pool.try_spawn(1, &meter, spin(meter.clone(), cost, polls.clone())).is_ok());
            pool.poll(&meter, |()| ());
            let (before, mut polled) = (polls.get(), 0);
            let waits = poll_fn(move |_| {
                polled += 1;
                if polled < 4 { Poll::Pending } else { Poll::Ready(()) }
            });
            assert!(pool.try_spawn(2, &meter, Box::pin(waits)).is_ok());
            while pool.poll(&meter, |()| ()) == 0 {}
            assert!(polls.get() <= before + 4 * TURN / cost + 1, "{} polls of {cost}", polls.get() - before);
            assert!(pool.is_spent(), "what is done leaves before the next long poll");
        }
    }

    #[test]
    fn who_has_more_weight_gets_more_and_leaves_what_it_does_not_want() {
        let meter = Rc::new(Meter::default());
        let mut pool = TaskPool::new(512);
        let polls = [0, 1].map(|_| Rc::new(Cell::new(0)));
        pool.set_weight(1, 3);
        pool.set_weight(0, 0);
        for task in 0..80 {
            let client = task % 2;
            let task = spin(meter.clone(), TURN / 3, polls[client].clone());
            assert!(pool.try_spawn(client as u32, &meter, task).is_ok());
        }
        let turns = |pool: &mut TaskPool<_>| {
            polls.iter().for_each(|polls| polls.set(0));
            for _ in 0..3000 {
                pool.poll(&meter, |()| ());
            }
            polls[1].get() as f64 / polls[0].get() as f64
        };
        let ratio = turns(&mut pool);
        assert!((2.8..3.2).contains(&ratio), "{ratio}");
        // Of its tasks one is left, which cannot take three times as much as many.
        let cheap = spin(meter.clone(), 0, polls[1].clone());
        let mut pool = TaskPool::new(64);
        pool.set_weight(1, 3);
        assert!(pool.try_spawn(1, &meter, cheap).is_ok());
        for _ in 0..40 {
            assert!(pool.try_spawn(0, &meter, spin(meter.clone(), TURN / 3, polls[0].clone())).is_ok());
        }
        turns(&mut pool);
        assert!(polls[0].get() > 2 * 3000, "{} polls of who wants more", polls[0].get());
        pool.set_weight(1, 1);
    }

    proptest! {
        /// Whatever tasks cost, and however many a client has: clients that always have work get the same, but for what
        /// one task takes at a time.
        #[test]
        fn clients_get_equal_shares(clients in prop::collection::vec((1..60usize, 0..5 * TURN), 2..6)) {
            let meter = Rc::new(Meter::default());
            let mut pool = TaskPool::new(512);
            let polls: Vec<_> = clients.iter().map(|_| Rc::new(Cell::new(0))).collect();
            for ((client, &(tasks, cost)), polls) in (0..).zip(&clients).zip(&polls) {
                for _ in 0..tasks {
                    prop_assert!(pool.try_spawn(client, &meter, spin(meter.clone(), cost, polls.clone())).is_ok());
                }
            }
            let turns = 3000;
            for _ in 0..turns {
                pool.poll(&meter, |()| ());
            }
            let spent = |at: usize| polls[at].get() * (clients[at].1 + POLL as u64);
            // A client that has too little to do for its share takes all that it can.
            let wants = |at: usize| turns * clients[at].0 as u64 * (clients[at].1 + POLL as u64);
            let most = (0..clients.len()).map(spent).max().unwrap_or(0);
            for (at, &(_, cost)) in clients.iter().enumerate() {
                let fair = most.min(wants(at) / clients.len() as u64);
                prop_assert!(spent(at) + cost + 2 * TURN >= fair * 9 / 10, "{}: {} of {fair}", at, spent(at));
            }
        }
    }
}

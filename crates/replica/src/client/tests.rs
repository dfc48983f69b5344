//! Any order of answers, losses and time-outs, against what a client must hold whatever happens.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::store::refuses_for_now;
use super::*;
use crate::ddp::{Op, Outcome, Refusal, Reply, Request};

const MS: Time = 1_000_000;

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    /// A request: how many operations, 0 for a read and 9 for PERSIST.
    Submit(u8),
    /// Time passes, in tenths of a second.
    Pass(u8),
    /// The call, or the connection, fails.
    Lose,
    /// The call succeeds.
    Connect,
    /// One of the requests on the connection is answered.
    Answer(u8, Answer),
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Done,
    /// For want of service, of room, or for a reason that is the same everywhere.
    Refused(Refusal),
    /// The last operation of a batch is refused.
    Part(Refusal),
    Unknown,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let refusal = prop_oneof![
        4 => Just(Refusal::NotServing),
        4 => Just(Refusal::Busy),
        1 => Just(Refusal::NotANumber),
        1 => Just(Refusal::UnknownScope),
    ];
    let answer = prop_oneof![
        4 => Just(Answer::Done),
        2 => refusal.clone().prop_map(Answer::Refused),
        1 => refusal.prop_map(Answer::Part),
        1 => Just(Answer::Unknown),
    ];
    let step = prop_oneof![
        4 => (0u8..10).prop_map(Step::Submit),
        1 => (1u8..15).prop_map(Step::Pass),
        1 => Just(Step::Lose),
        4 => Just(Step::Connect),
        6 => (any::<u8>(), answer).prop_map(|(which, answer)| Step::Answer(which, answer)),
    ];
    proptest::collection::vec(step, 0..120)
}

/// Whether it is a matter of consequence that a node may have taken it.
fn changes(request: &Request) -> bool {
    !matches!(request.op, Op::Get(_))
}

/// What the cluster knows of a request under way.
#[derive(Default)]
struct Known {
    /// Operations of a batch.
    batch: Option<usize>,
    /// An attempt may have been taken; the last one that was sent may.
    taken: bool,
    last_taken: bool,
    last: Option<Session>,
}

impl Known {
    fn take(&mut self, request: &Request) {
        let taken = changes(request);
        (self.taken, self.last_taken) = (self.taken | taken, taken);
    }
}

/// A cluster that says what it is told to say, and what the client may make of it.
struct World {
    client: ReplicaClient,
    now: Time,
    calling: bool,
    connected: bool,
    /// On the connection, without an answer.
    sent: Vec<Request>,
    under_way: BTreeMap<u64, Known>,
    /// The newest request of each name.
    names: BTreeMap<u64, u64>,
    submitted: u64,
    ended: u64,
}

impl World {
    fn new(retry: bool) -> Self {
        let config = ClientConfig { retry, silence: 400 * MS, ..ClientConfig::new(3, 7 << 20) };
        Self {
            client: ReplicaClient::new(config),
            now: 5,
            calling: false,
            connected: false,
            sent: Vec::new(),
            under_way: BTreeMap::new(),
            names: BTreeMap::new(),
            submitted: 0,
            ended: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        self.now += MS;
        match *step {
            Step::Submit(kind) => self.submit(kind),
            Step::Pass(tenths) => self.now += u64::from(tenths) * 100 * MS,
            Step::Lose if self.calling || self.connected => {
                self.apart();
                self.client.lost(self.now);
            }
            Step::Connect if self.calling => {
                (self.calling, self.connected) = (false, true);
                self.client.connected(self.now);
            }
            Step::Answer(which, answer) if !self.sent.is_empty() => {
                let request = self.sent.swap_remove(usize::from(which) % self.sent.len());
                self.answer(&request, answer);
            }
            _ => {}
        }
        self.pump();
    }

    fn submit(&mut self, kind: u8) {
        let op = match kind {
            0 => Op::Get(1),
            9 => Op::Persist,
            1 => Op::FetchAdd(1, 1),
            count => Op::Batch((0..u64::from(count)).map(|key| Op::FetchAdd(key, 1)).collect()),
        };
        let known = Known { batch: matches!(op, Op::Batch(_)).then_some(kind.into()), ..Known::default() };
        let ticket = self.client.submit(self.now, Some(1), op);
        assert!(self.under_way.insert(ticket.0, known).is_none(), "a ticket of its own");
        self.submitted += 1;
    }

    fn answer(&mut self, request: &Request, answer: Answer) {
        let done = match &request.op {
            Op::Batch(ops) => Outcome::Batch(ops.iter().filter_map(Op::key).map(Outcome::Added).collect()),
            Op::Get(_) => Outcome::Value(None),
            Op::Persist => Outcome::Persisted,
            _ => Outcome::Added(0),
        };
        let outcome = match (answer, done) {
            (Answer::Refused(refusal), _) => Outcome::Refused(refusal),
            (Answer::Unknown, _) => Outcome::Unknown,
            (Answer::Part(refusal), Outcome::Batch(mut parts)) => {
                parts.pop();
                parts.push(Outcome::Refused(refusal));
                Outcome::Batch(parts)
            }
            (_, done) => done,
        };
        // A first attempt that is refused has done nothing; a later one that is makes one more.
        let later = request.session.is_some_and(|session| session.attempt > 0);
        let taken = match &outcome {
            Outcome::Unknown | Outcome::Batch(_) => true,
            Outcome::Refused(Refusal::Busy) => later,
            _ => false,
        };
        if let Some(known) = self.under_way.get_mut(&request.tag).filter(|_| taken) {
            known.take(request);
        }
        self.client.handle_reply(self.now, Reply { tag: request.tag, outcome }, Split::default());
    }

    /// Whatever was on the connection may have been taken.
    fn apart(&mut self) {
        (self.calling, self.connected) = (false, false);
        for request in std::mem::take(&mut self.sent) {
            if let Some(known) = self.under_way.get_mut(&request.tag) {
                known.take(&request);
            }
        }
    }

    fn pump(&mut self) {
        self.client.handle_timeout(self.now);
        while let Some(order) = self.client.poll_order(self.now) {
            match order {
                Order::HangUp => self.apart(),
                Order::Call(node) => {
                    assert!(node < 3 && !self.calling && !self.connected, "one connection at a time");
                    self.calling = true;
                }
            }
        }
        while let Some(request) = self.client.poll_transmit() {
            let request = request.clone();
            assert!(self.connected, "sent on a connection that stands");
            self.attempt(&request);
            assert!(self.sent.iter().all(|other| other.tag != request.tag), "once on each connection");
            self.sent.push(request);
        }
        while let Some(ended) = self.client.poll_ended() {
            self.ended(&ended);
        }
        let names: Vec<u64> = self.client.requests().filter_map(|it| it.session).map(|it| it.client).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "a name for one request at a time");
        assert_eq!(self.client.under_way() as u64, self.submitted - self.ended);
    }

    fn attempt(&mut self, request: &Request) {
        let known = self.under_way.get_mut(&request.tag).expect("under way");
        assert!(!known.taken || request.session.is_some(), "a write that may have been taken has a name");
        if let Some(session) = request.session {
            assert!(session.client >> 20 == 7, "of its own names");
            let newest = self.names.entry(session.client).or_default();
            assert!(*newest <= session.sequence, "numbers of a name ascend");
            *newest = session.sequence;
            let attempt = known.last.map_or(0, |last| last.attempt + u32::from(known.last_taken));
            assert_eq!(session.attempt, attempt, "attempts that may have been taken count");
        }
        (known.last, known.last_taken) = (request.session, false);
    }

    fn ended(&mut self, ended: &Ended) {
        let known = self.under_way.remove(&ended.ticket.0).expect("ends once");
        self.ended += 1;
        let refused = match &ended.outcome {
            Outcome::Refused(_) => known.taken && refuses_for_now(&ended.outcome),
            parts => refuses_for_now(parts) && known.last.is_some_and(|last| last.attempt > 0),
        };
        assert!(!refused, "refused, though an earlier attempt may have been taken");
        if let (Some(batch), Outcome::Batch(parts)) = (known.batch, &ended.outcome) {
            let own = |(key, part): (u64, &Outcome)| !matches!(part, Outcome::Added(of) if *of != key);
            assert!(parts.len() == batch && (0..).zip(parts).all(own), "each operation's own outcome: {parts:?}");
        }
        self.sent.retain(|request| request.tag != ended.ticket.0);
    }
}

proptest! {
    #[test]
    fn a_request_ends_once_and_never_as_refused_if_it_may_be_done(retry: bool, steps in steps()) {
        let mut world = World::new(retry);
        steps.iter().for_each(|step| world.step(step));
        // Nobody answers any more: all ends in time.
        (0..200).for_each(|_| world.step(&Step::Pass(1)));
        prop_assert_eq!(world.ended, world.submitted);
    }
}

/// A client that is connected, with what it sends.
fn connected(retry: bool) -> ReplicaClient {
    let mut client = ReplicaClient::new(ClientConfig { retry, ..ClientConfig::new(2, 0) });
    assert_eq!(client.poll_order(0), Some(Order::Call(0)));
    client.connected(0);
    client
}

fn reply(client: &mut ReplicaClient, tag: u64, outcome: Outcome) {
    client.handle_reply(1, Reply { tag, outcome }, Split::default());
}

/// The connection breaks, and the next node answers.
fn fail_over(client: &mut ReplicaClient, node: usize) {
    client.lost(1);
    let call = (0..3).find_map(|turn| client.poll_order(1 + turn * client.config.pause));
    assert_eq!(call, Some(Order::Call(node)));
    client.connected(2);
}

#[test]
fn a_write_whose_connection_broke_is_asked_for_again_as_the_next_attempt() {
    let mut client = connected(true);
    client.submit(0, None, Op::Put(1, [1].as_slice().into()));
    let first = client.poll_transmit().and_then(|request| request.session).unwrap();
    fail_over(&mut client, 1);
    let second = client.poll_transmit().and_then(|request| request.session).unwrap();
    assert_eq!(second, Session { attempt: 1, ..first });
    reply(&mut client, 0, Outcome::Written);
    assert_eq!(client.poll_ended().map(|ended| ended.outcome), Some(Outcome::Written));
    // Its name is free again, for a request with a higher number.
    client.submit(2, None, Op::Delete(1));
    let next = client.poll_transmit().and_then(|request| request.session).unwrap();
    assert!(next.client == first.client && next.sequence > first.sequence && next.attempt == 0);
}

#[test]
fn a_part_that_a_later_attempt_is_refused_is_not_the_last_word() {
    let mut client = connected(true);
    client.submit(0, None, Op::Batch(vec![Op::FetchAdd(1, 1), Op::FetchAdd(2, 1)]));
    let partly = || Outcome::Batch(vec![Outcome::Added(0), Outcome::Refused(Refusal::Busy)]);
    client.poll_transmit().unwrap();
    fail_over(&mut client, 1);
    assert_eq!(client.poll_transmit().and_then(|request| request.session).map(|session| session.attempt), Some(1));
    reply(&mut client, 0, partly());
    assert_eq!(client.poll_ended(), None, "the first attempt may still do what this one refused");
    // Of the first attempt at another it is.
    client.submit(2, None, Op::Batch(vec![Op::FetchAdd(1, 1), Op::FetchAdd(2, 1)]));
    while client.poll_transmit().is_some() {}
    reply(&mut client, 1, partly());
    assert_eq!(client.poll_ended().map(|ended| ended.outcome), Some(partly()));
}

/// Swaps that come to nothing leave marks when they are sent again, which take room as writes do.
#[test]
fn a_batch_larger_than_the_room_of_a_node_ends() {
    let mut client = connected(true);
    let swap = |key| Op::CompareSwap { key, expected: None, new: None };
    client.submit(0, None, Op::Batch((0..4).map(swap).collect()));
    client.poll_transmit().unwrap();
    fail_over(&mut client, 1);
    let found = |key: u64| Outcome::NotSwapped(Some(key.to_le_bytes().as_slice().into()));
    // A node with room for one write at a time.
    for attempt in 1..=4 {
        let request = client.poll_transmit().expect("asked again on the same connection").clone();
        assert_eq!(request.session.map(|session| session.attempt), Some(attempt));
        let Op::Batch(ops) = request.op else { panic!("{request:?}") };
        let mut outcomes = vec![Outcome::Refused(Refusal::Busy); ops.len()];
        outcomes[0] = found(ops[0].key().unwrap());
        client.handle_reply(2, Reply { tag: 0, outcome: Outcome::Batch(outcomes) }, Split::default());
        assert_eq!(client.poll_order(2), None);
        client.handle_timeout(2);
        client.handle_timeout(2 + client.config.pause);
    }
    assert_eq!(client.poll_ended().map(|ended| ended.outcome), Some(Outcome::Batch((0..4).map(found).collect())));
}

#[test]
fn a_busy_node_is_asked_again_after_a_pause_and_what_keeps_it_busy_goes_on() {
    let mut client = connected(true);
    client.submit(0, None, Op::FetchAdd(1, 1));
    client.submit(0, None, Op::FetchAdd(2, 1));
    while client.poll_transmit().is_some() {}
    fail_over(&mut client, 1);
    while client.poll_transmit().is_some() {}
    reply(&mut client, 1, Outcome::Refused(Refusal::Busy));
    assert_eq!((client.poll_order(1), client.poll_transmit()), (None, None), "the other request is under way there");
    client.handle_timeout(2);
    let due = client.next_timeout();
    assert_eq!(due, 1 + client.config.pause);
    client.handle_timeout(due);
    let again = client.poll_transmit().and_then(|request| request.session).map(|session| session.attempt);
    assert_eq!((again, client.poll_transmit()), (Some(2), None));
    for tag in [0, 1] {
        reply(&mut client, tag, Outcome::Added(0));
        assert_eq!(client.poll_ended().map(|ended| ended.outcome), Some(Outcome::Added(0)));
    }
}

#[test]
fn a_persist_that_may_have_been_taken_or_is_of_no_known_scope_is_asked_for_nowhere_else() {
    let mut client = connected(true);
    client.submit(0, Some(1), Op::Persist);
    assert_eq!(client.poll_transmit().map(|request| request.session), Some(None));
    reply(&mut client, 0, Outcome::Refused(Refusal::UnknownScope));
    assert_eq!(client.poll_ended().map(|ended| ended.outcome), Some(Outcome::Refused(Refusal::UnknownScope)));
    client.submit(0, Some(1), Op::Persist);
    client.poll_transmit().unwrap();
    client.lost(1);
    assert_eq!(client.poll_ended().map(|ended| ended.outcome), Some(Outcome::Unknown));
}

#[test]
fn a_silent_node_is_left_and_the_clock_alone_tells() {
    let mut client = connected(false);
    client.submit(0, None, Op::Get(1));
    client.poll_transmit().unwrap();
    let mut order_at = || {
        let now = client.next_timeout();
        client.handle_timeout(now);
        client.poll_order(now).map(|order| (now, order))
    };
    let mut orders = (0..9).filter_map(|_| order_at());
    let ClientConfig { silence, dial, .. } = ClientConfig::new(2, 0);
    assert_eq!(orders.next(), Some((silence + 1, Order::HangUp)));
    assert_eq!(orders.next(), Some((silence + 1, Order::Call(1))));
    assert_eq!(orders.next(), Some((silence + 1 + dial, Order::HangUp)), "a call that nobody answers");
}

#[test]
fn what_no_node_would_take_is_refused_here() {
    let longest = Bounds::SHIPPED.max_value;
    let put = |bytes: usize| Op::Put(7, vec![0; bytes].into());
    let swap = Op::CompareSwap { key: 7, expected: None, new: Some(vec![0; longest + 1].into()) };
    let wide = Op::Batch(vec![put(longest), put(longest), put(longest), put(longest)]);
    for (op, is_taken) in
        [(put(longest), true), (put(longest + 1), false), (swap, false), (wide, false), (Op::Batch(vec![put(5)]), true)]
    {
        let mut client = ReplicaClient::new(ClientConfig::new(2, 0));
        let ticket = client.submit(0, None, op);
        let ended = client.poll_ended().map(|ended| (ended.ticket, ended.outcome));
        assert_eq!(ended, (!is_taken).then_some((ticket, Outcome::Refused(Refusal::TooLong))));
        assert_eq!(client.under_way(), usize::from(is_taken));
    }
}

//! A few replicas whose messages arrive at once and whose writes are durable at once. What may happen else is the business of
//! `remora check chain` and `remora storm chain`.

use std::collections::VecDeque;

use super::layout::MAX_TUPLES;
use super::*;
use crate::ddp::{Session, View};
use crate::member::{Durable, Standing};
use crate::types::{NodeId, NodeSet};

const DATA: usize = 4096;

struct Nodes {
    chains: Vec<Chain>,
    images: Vec<Vec<u8>>,
    /// Nodes that hear nothing, and whose writes are not durable yet.
    deaf: NodeSet,
    /// What does not arrive.
    lost: fn(&ChainMessage) -> bool,
    /// A node whose writes become durable when the test says so: their tokens.
    slow: Option<(NodeId, Vec<u64>)>,
    view: View,
    now: crate::Time,
    replies: VecDeque<(NodeId, ChainReply)>,
}

impl Nodes {
    fn new(count: u8, ring: usize) -> Self {
        Self::with(count, |config| ChainConfig { ring, ..config })
    }

    fn with(count: u8, change: impl Fn(ChainConfig) -> ChainConfig) -> Self {
        let nodes = NodeSet::first(count);
        let config = |id| change(ChainConfig { piece: 1000, ..ChainConfig::new(id, nodes, DATA) });
        let images = vec![vec![0; config(NodeId(0)).layout().bytes()]; count.into()];
        let chains = nodes.iter().map(|id| Chain::new(config(id), 0, &images[0])).collect();
        let (deaf, view, replies) = (NodeSet::EMPTY, View::first(nodes), VecDeque::new());
        let mut it = Self { chains, images, deaf, lost: |_| false, slow: None, view, now: 0, replies };
        it.chains
            .iter_mut()
            .for_each(|chain| chain.keep(0, Durable { view: View::first(nodes), ..Durable::default() }));
        it.enter(View::first(nodes));
        it
    }

    fn enter(&mut self, view: View) {
        self.view = view;
        for chain in &mut self.chains {
            chain.set_lease(0, u64::MAX);
            chain.install(0, view);
        }
        self.run();
    }

    fn run(&mut self) {
        let mut under_way = VecDeque::new();
        loop {
            for (chain, image) in self.chains.iter_mut().zip(&mut self.images) {
                let from = chain_id(chain);
                while let Some(output) = chain.poll() {
                    match output {
                        ChainOutput::Send(to, epoch, message) => under_way.push_back((from, to, epoch, message)),
                        ChainOutput::Write(..) if self.deaf.has(from) => {}
                        ChainOutput::Write(token, at, bytes) => {
                            image[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
                            match &mut self.slow {
                                Some((slow, late)) if *slow == from => late.push(token),
                                _ => chain.persisted(0, token),
                            }
                        }
                        ChainOutput::Reply(reply) => self.replies.push_back((from, reply)),
                        ChainOutput::Kept(_) => {}
                    }
                }
            }
            let Some((from, to, epoch, message)) = under_way.pop_front() else { return };
            if !self.deaf.has(to) && !(self.lost)(&message) {
                self.chains[usize::from(to.0)].handle(0, from, epoch, message);
            }
        }
    }

    /// Time has passed: what was not answered is sent again.
    fn wake(&mut self) {
        self.now += 1_000_000_000;
        self.chains.iter_mut().for_each(|chain| chain.timeout(self.now));
        self.run();
    }

    fn ask(&mut self, node: u8, tag: u64, transaction: Transaction) -> Option<ChainOutcome> {
        self.ask_in(None, node, tag, transaction)
    }

    fn ask_in(
        &mut self,
        session: Option<Session>,
        node: u8,
        tag: u64,
        transaction: Transaction,
    ) -> Option<ChainOutcome> {
        self.chains[usize::from(node)].submit(0, ChainRequest { tag, session, transaction });
        self.run();
        self.replies.pop_front().map(|(from, reply)| {
            assert_eq!((from, reply.tag), (NodeId(node), tag));
            reply.outcome
        })
    }

    fn crash(&mut self, node: u8) {
        let config = self.chains[usize::from(node)].config.clone();
        self.chains[usize::from(node)] = Chain::new(config, 0, &self.images[usize::from(node)]);
    }
}

fn chain_id(chain: &Chain) -> NodeId {
    chain.config.id
}

fn put(offset: u64, data: &[u8]) -> Tuple {
    Tuple { offset, data: data.into() }
}

fn at(offset: u64, length: u32) -> Extent {
    Extent { offset, length }
}

#[test]
fn a_transaction_is_done_everywhere_and_read_at_any_member() {
    let mut nodes = Nodes::new(3, 1 << 12);
    let write =
        Transaction { reads: vec![at(0, 2)], writes: vec![put(0, b"ab"), put(100, b"cd")], ..Transaction::default() };
    assert_eq!(nodes.ask(0, 1, write.clone()), Some(ChainOutcome::Done(vec![[0, 0][..].into()])));
    assert_eq!(nodes.ask(1, 2, write), Some(ChainOutcome::Refused(ChainRefusal::NotHead(NodeId(0)))));
    let read = Transaction { reads: vec![at(0, 2), at(101, 1)], ..Transaction::default() };
    for node in 0..3 {
        let expected = ChainOutcome::Done(vec![b"ab"[..].into(), b"d"[..].into()]);
        assert_eq!(nodes.ask(node, 3, read.clone()), Some(expected));
    }
    let swap = |from: &[u8], to: &[u8]| Transaction {
        reads: vec![at(0, 1)],
        expects: vec![put(0, from)],
        writes: vec![put(0, to)],
    };
    assert_eq!(nodes.ask(0, 4, swap(b"x", b"y")), Some(ChainOutcome::Unequal(vec![b"a"[..].into()])));
    assert_eq!(nodes.ask(0, 5, swap(b"a", b"y")), Some(ChainOutcome::Done(vec![b"a"[..].into()])));
    assert!(nodes.chains.iter().all(|chain| chain.data().starts_with(b"yb")));
}

#[test]
fn the_head_shows_what_was_answered_while_its_lease_lasts() {
    let mut nodes = Nodes::new(3, 1 << 12);
    let windows = |nodes: &Nodes| [0, 1, 2].map(|node: usize| nodes.chains[node].window());
    nodes.chains[0].set_lease(0, 7);
    assert_eq!(windows(&nodes), [Some(7), None, None]);
    let write = Transaction { writes: vec![put(60, b"over the border")], ..Transaction::default() };
    assert_eq!(nodes.ask(0, 1, write), Some(ChainOutcome::Done(Vec::new())));
    let lines = nodes.chains[0].lines().expect("keys have bytes");
    let mut window = vec![0; lines.bytes() as usize];
    lines.fill(1, &nodes.chains[0].data()[..DATA], |at, bytes| {
        window[at as usize..][..bytes.len()].copy_from_slice(bytes)
    });
    let mut read = WindowRead::new(lines, &[at(60, 15)], 1024).expect("a read");
    let (part, from, length) = read.next_read().expect("a READ");
    let end = read.found(part, &window[from as usize..][..length as usize]);
    assert_eq!(end, Some(WindowEnd::Read(vec![b"over the border"[..].into()])));
    // Who is the head next has applied all of it before it shows anything.
    nodes.enter(View { epoch: 2, members: NodeSet::first(3).without(NodeId(0)), ..nodes.view });
    assert_eq!(windows(&nodes)[1..], [Some(u64::MAX), None]);
    assert!(nodes.chains[1].data()[60..].starts_with(b"over the border"));
}

#[test]
fn what_cannot_be_done_is_refused() {
    let mut nodes = Nodes::new(2, 1 << 12);
    let refused = Some(ChainOutcome::Refused(ChainRefusal::Invalid));
    for (reads, writes) in [
        (vec![at(DATA as u64, 1)], Vec::new()),
        (vec![at(u64::MAX, 2)], Vec::new()),
        (vec![at(0, 0)], Vec::new()),
        (Vec::new(), vec![put(DATA as u64 - 1, b"ab")]),
        (Vec::new(), vec![put(0, b"ab"), put(1, b"a")]),
        (Vec::new(), vec![put(u64::MAX - 1, b"ab"), put(u64::MAX, b"a")]),
        (Vec::new(), vec![put(0, &[1; 1024])]),
        (Vec::new(), (0..256).map(|offset| put(offset, b"a")).collect()),
    ] {
        assert_eq!(nodes.ask(0, 1, Transaction { reads, expects: Vec::new(), writes }), refused);
    }
    nodes.chains[0].set_lease(0, 0);
    let read = Transaction { reads: vec![at(0, 1)], ..Transaction::default() };
    assert_eq!(nodes.ask(0, 2, read), Some(ChainOutcome::Refused(ChainRefusal::NotServing)));
}

#[test]
fn a_ring_goes_round_and_who_finds_it_full_waits() {
    let mut nodes = Nodes::new(3, 1 << 10);
    let write = |number: u64| Transaction {
        writes: vec![put(64 * (number % 16), &[number as u8; 64])],
        ..Transaction::default()
    };
    for number in 0..100 {
        assert_eq!(nodes.ask(0, number, write(number)), Some(ChainOutcome::Done(Vec::new())));
    }
    nodes.deaf = NodeSet::one(NodeId(2));
    for number in 0..20 {
        assert_eq!(nodes.ask(0, 100 + number, write(number)), None);
    }
    assert!(nodes.chains[0].marks().full > 0 && nodes.chains[0].marks().queued > 0);
    // The tail is gone: what waited is done without it.
    nodes.enter(View { epoch: 2, members: NodeSet::first(2), ..View::default() });
    let done: Vec<u64> = nodes.replies.drain(..).map(|(_, reply)| reply.tag).collect();
    assert_eq!(done.len(), 20);
    assert_eq!(nodes.chains[0].data(), nodes.chains[1].data());
    assert_eq!(nodes.chains[0].data()[0], 16);
}

/// A connection breaks with an entry in it, and more come over the next one than are kept.
#[test]
fn an_entry_that_was_lost_is_taken_however_many_came_behind_it() {
    let mut nodes = Nodes::with(2, |config| ChainConfig { at_once: 4, ..config });
    let write =
        |byte: u8| Transaction { writes: vec![put(64 * u64::from(byte), &[byte + 1])], ..Transaction::default() };
    nodes.deaf = NodeSet::one(NodeId(1));
    assert_eq!(nodes.ask(0, 0, write(0)), None);
    nodes.deaf = NodeSet::EMPTY;
    for number in 1..40 {
        assert_eq!(nodes.ask(0, number.into(), write(number)), None);
    }
    for _ in 0..20 {
        nodes.wake();
    }
    assert_eq!(nodes.replies.drain(..).count(), 40);
    assert!(nodes.chains.iter().all(|chain| (0..40).all(|byte| chain.data()[64 * byte] == byte as u8 + 1)));
}

#[test]
fn a_node_that_comes_back_is_the_chains_end_and_catches_up() {
    let mut nodes = Nodes::new(3, 1 << 12);
    let write =
        |byte: u8| Transaction { writes: vec![put(2000 + u64::from(byte), &[byte; 500])], ..Transaction::default() };
    assert!(nodes.ask(0, 1, write(1)).is_some());
    nodes.crash(0);
    let two = NodeSet::first(3).without(NodeId(0));
    nodes.enter(View { epoch: 2, members: two, ..View::default() });
    assert!(nodes.ask(1, 2, write(2)).is_some());
    nodes.enter(View { epoch: 3, members: two, learners: NodeSet::one(NodeId(0)), ..View::default() });
    assert_eq!(nodes.chains[0].status(), Some(Standing::Ready));
    assert!(nodes.ask(1, 3, write(3)).is_some());
    nodes.enter(View { epoch: 4, members: NodeSet::first(3), ..View::default() });
    assert!(nodes.ask(0, 4, write(4)).is_some(), "it is the head again");
    assert!(nodes.chains.windows(2).all(|pair| pair[0].data() == pair[1].data()));
}

/// A disk that takes nothing for a while: what has come waits in memory, and no more comes.
#[test]
fn a_learner_asks_for_no_more_than_its_disk_takes() {
    let mut nodes = Nodes::with(2, |config| ChainConfig { piece: 16, ..config });
    let write = Transaction { writes: vec![put(4000, b"end")], ..Transaction::default() };
    assert!(nodes.ask(0, 1, write).is_some());
    nodes.crash(1);
    nodes.enter(View { epoch: 2, members: NodeSet::one(NodeId(0)), ..View::default() });
    nodes.slow = Some((NodeId(1), Vec::new()));
    nodes.enter(View {
        epoch: 3,
        members: NodeSet::one(NodeId(0)),
        learners: NodeSet::one(NodeId(1)),
        ..View::default()
    });
    let mut writes = 0;
    for _ in 0..100 {
        nodes.wake();
        let (_, late) = nodes.slow.as_mut().expect("it is slow");
        let now = std::mem::take(late);
        assert!(now.len() <= 66, "{} writes at once", now.len());
        writes += now.len();
        now.into_iter().for_each(|token| nodes.chains[1].persisted(0, token));
        nodes.run();
    }
    assert!(writes > DATA / 16, "{writes}");
    assert_eq!(nodes.chains[1].status(), Some(Standing::Ready));
    assert!(nodes.chains[1].data()[4000..].starts_with(b"end"));
}

#[test]
fn all_crash_and_what_is_in_a_ring_is_done() {
    let mut nodes = Nodes::new(3, 1 << 12);
    let write = |byte: u8| Transaction { writes: vec![put(u64::from(byte), &[byte])], ..Transaction::default() };
    assert!(nodes.ask(0, 1, write(1)).is_some());
    nodes.deaf = NodeSet::one(NodeId(1));
    assert_eq!(nodes.ask(0, 2, write(2)), None);
    nodes.deaf = NodeSet::EMPTY;
    (0..3).for_each(|node| nodes.crash(node));
    nodes.enter(View { epoch: 2, members: NodeSet::first(3), learners: NodeSet::EMPTY, recovery: true });
    for chain in &nodes.chains {
        assert_eq!((&chain.data()[..4], chain.status()), (&[0, 1, 2, 0][..], Some(Standing::Serving)));
    }
}

#[test]
fn what_neither_ring_nor_data_can_take_is_not_taken() {
    let mut nodes = Nodes::new(3, 4096);
    let tuple = |offset, bytes: usize| Tuple { offset, data: vec![7; bytes].into() };
    let entry = |seq, writes: Vec<Tuple>| Entry { seq, epoch: 1, writes: writes.into() };
    let bad = [
        entry(1, vec![tuple(nodes.chains[0].config.layout().data as u64, 1)]),
        entry(1, vec![tuple(u64::MAX, 8)]),
        entry(1, vec![tuple(0, 2000)]),
        entry(1, vec![tuple(0, 1); 256]),
        entry(u64::MAX, vec![tuple(0, 1)]),
        entry(0, vec![tuple(0, 1)]),
    ];
    for entry in bad {
        let messages = [
            ChainMessage::Forward(vec![entry.clone()]),
            ChainMessage::State(1, 0, vec![entry.clone()]),
            ChainMessage::Sync(0, 0, vec![entry]),
            ChainMessage::Sync(u64::MAX, u64::MAX, Vec::new()),
            ChainMessage::Commit(u64::MAX),
        ];
        for message in messages {
            for node in 0..3 {
                (0..3).for_each(|from| nodes.chains[node].handle(0, NodeId(from), 1, message.clone()));
            }
            nodes.run();
        }
    }
    let write = Transaction { writes: vec![tuple(8, 8)], ..Transaction::default() };
    assert_eq!(nodes.ask(0, 1, write), Some(ChainOutcome::Done(Vec::new())));
    assert!(nodes.chains.iter().all(|chain| chain.data()[8..16] == [7; 8] && chain.log_ends() == (1, 1)));
}

#[test]
fn a_request_that_is_sent_again_is_done_once_whoever_is_the_head() {
    let mut nodes = Nodes::new(3, 1 << 12);
    let write =
        |byte: u8| Transaction { reads: vec![at(0, 1)], writes: vec![put(0, &[byte])], ..Transaction::default() };
    let attempt = |attempt| Some(Session { client: 7, sequence: 5, attempt });
    let done = |byte: u8| Some(ChainOutcome::Done(vec![[byte][..].into()]));
    assert_eq!(nodes.ask_in(attempt(0), 0, 1, write(1)), done(0));
    assert_eq!(nodes.ask(0, 2, write(2)), done(1));
    assert_eq!(nodes.ask_in(attempt(1), 0, 3, write(1)), Some(ChainOutcome::Before));
    // The head is gone, and its answer with it.
    nodes.crash(0);
    nodes.enter(View { epoch: 2, members: NodeSet::first(3).without(NodeId(0)), ..View::default() });
    assert_eq!(nodes.ask_in(attempt(2), 1, 4, write(1)), Some(ChainOutcome::Before));
    assert_eq!(nodes.ask(1, 5, write(3)), done(2));
    // After a crash of all it is still known, and an earlier request of the session never does anything.
    (1..3).for_each(|node| nodes.crash(node));
    let members = NodeSet::first(3).without(NodeId(0));
    nodes.enter(View { epoch: 3, members, learners: NodeSet::EMPTY, recovery: true });
    assert_eq!(nodes.ask_in(attempt(3), 1, 6, write(1)), Some(ChainOutcome::Before));
    let late = Some(Session { client: 7, sequence: 4, attempt: 0 });
    assert_eq!(nodes.ask_in(late, 1, 7, write(1)), Some(ChainOutcome::Unknown));
    assert_eq!(nodes.chains[1].marks().repeated, 2);
    assert_eq!(nodes.chains[1].data()[0], 3);
}

/// A mark has a bit less for it: cut off, it would be an earlier request's, and a second attempt be done again.
#[test]
fn a_number_that_no_mark_holds_is_refused() {
    let mut nodes = Nodes::new(3, 1 << 12);
    let write = |byte: u8| Transaction { writes: vec![put(0, &[byte])], ..Transaction::default() };
    let attempt = |sequence, attempt| Some(Session { client: 7, sequence, attempt });
    let refused = Some(ChainOutcome::Refused(ChainRefusal::Invalid));
    let longest = u64::MAX >> 1;
    for sequence in [longest + 1, u64::MAX] {
        assert_eq!(nodes.ask_in(attempt(sequence, 0), 0, 1, write(1)), refused);
    }
    assert_eq!(nodes.ask_in(attempt(longest, 0), 0, 2, write(2)), Some(ChainOutcome::Done(Vec::new())));
    nodes.crash(0);
    nodes.enter(View { epoch: 2, members: NodeSet::first(3).without(NodeId(0)), ..View::default() });
    assert_eq!(nodes.ask_in(attempt(longest, 1), 1, 3, write(3)), Some(ChainOutcome::Before));
}

#[test]
fn an_attempt_that_found_something_else_keeps_an_earlier_one_from_being_done() {
    let mut nodes = Nodes::new(2, 1 << 12);
    let swap = Transaction { reads: vec![at(0, 1)], expects: vec![put(0, b"x")], writes: vec![put(1, b"y")] };
    let attempt = |attempt| Some(Session { client: 9, sequence: 1, attempt });
    let unequal = |byte: u8| Some(ChainOutcome::Unequal(vec![[byte][..].into()]));
    assert_eq!(nodes.ask_in(attempt(1), 0, 1, swap.clone()), unequal(0));
    let write = Transaction { writes: vec![put(0, b"x")], ..Transaction::default() };
    assert!(nodes.ask(0, 2, write).is_some());
    assert_eq!(nodes.ask_in(attempt(0), 0, 3, swap), unequal(b'x'), "it was only on its way");
    assert_eq!(&nodes.chains[1].data()[..2], b"x\0");
}

/// Each asks for two megabytes, and all of them for as much memory as there is.
#[test]
fn answers_are_made_as_far_as_there_is_room_for_them() {
    const LONG: u32 = 2 << 20;
    // So many at once, and some turns each time.
    const FEW: usize = 8;
    const ALL: u64 = 12;
    let data = ALL as usize * LONG as usize;
    let mut nodes = Nodes::with(2, |config| ChainConfig { ring: 1 << 16, data, cell: 1 << 16, ..config });
    let place = |number: u64| number * u64::from(LONG);
    let read = |number| vec![at(place(number), LONG)];
    let write = |number| Transaction { writes: vec![put(place(number), b"a")], ..Transaction::default() };
    let only = |node: u8, nodes: &mut Nodes| nodes.deaf = NodeSet::first(2).without(NodeId(node));
    let answered = |nodes: &mut Nodes| nodes.replies.drain(..).count();
    let come_in_parts = |nodes: &mut Nodes, mut rest: usize| {
        nodes.deaf = NodeSet::EMPTY;
        while rest > 0 {
            nodes.wake();
            let now = answered(nodes);
            assert!((1..=4 * FEW).contains(&now), "{now}");
            rest -= now;
        }
    };

    // Reads that wait for one write.
    only(0, &mut nodes);
    assert_eq!(nodes.ask(0, 0, write(0)), None);
    for tag in 1..=100 {
        assert_eq!(nodes.ask(0, tag, Transaction { reads: read(0), ..Transaction::default() }), None);
    }
    come_in_parts(&mut nodes, 101);

    // What they have read waits with those that write too.
    only(0, &mut nodes);
    for tag in 0..ALL {
        assert_eq!(nodes.ask(0, tag, Transaction { reads: read(tag), ..write(tag) }), None);
    }
    assert_eq!(nodes.chains[0].held, FEW * LONG as usize);
    nodes.deaf = NodeSet::EMPTY;
    (0..3).for_each(|_| nodes.wake());
    assert_eq!((answered(&mut nodes), nodes.chains[0].held), (ALL as usize, 0));

    // And those that find something else than expected are answered at once.
    only(0, &mut nodes);
    assert_eq!(nodes.ask(0, 0, write(0)), None);
    for tag in 1..=100 {
        let other = Transaction { expects: vec![put(place(0), b"b")], reads: read(0), ..write(0) };
        assert_eq!(nodes.ask(0, tag, other), None);
    }
    come_in_parts(&mut nodes, 101);
}

/// What writes and reads much holds many keys, each of which the head's thread takes and gives back.
#[test]
fn keys_are_wanted_as_far_as_there_is_room_for_them() {
    let mut nodes = Nodes::with(2, |config| ChainConfig { keys: 40, ..config });
    let read = |cells: u32| Transaction {
        reads: vec![at(0, 64 * cells)],
        writes: vec![put(64, b"a")],
        ..Transaction::default()
    };
    assert_eq!(nodes.ask(0, 0, read(39)), Some(ChainOutcome::Refused(ChainRefusal::Invalid)), "with what it writes");
    nodes.deaf = NodeSet::one(NodeId(1));
    assert_eq!(nodes.ask(0, 1, read(18)), None);
    assert_eq!(nodes.ask(0, 2, read(18)), None);
    assert_eq!(nodes.ask(0, 3, read(18)), Some(ChainOutcome::Refused(ChainRefusal::Busy)));
    // Who only reads wants none.
    assert_eq!(nodes.ask(0, 4, Transaction { reads: vec![at(0, 64 * 50)], ..Transaction::default() }), None);
    nodes.deaf = NodeSet::EMPTY;
    (0..3).for_each(|_| nodes.wake());
    assert_eq!((nodes.replies.drain(..).count(), nodes.chains[0].table.wanted()), (3, 0));
    assert!(matches!(nodes.ask(0, 5, read(38)), Some(ChainOutcome::Done(_))));
}

/// One that falls behind what it was: what its memory says of the life before is still on its way there when it begins anew.
#[test]
fn what_a_learners_log_does_not_know_to_be_durable_stays_in_its_ring() {
    let mut nodes = Nodes::new(3, 1 << 10);
    let write = |number: u64| Transaction {
        writes: vec![put(64 * (number % 16), &[number as u8; 64])],
        ..Transaction::default()
    };
    let (all, two) = (NodeSet::first(3), NodeSet::first(3).without(NodeId(0)));
    let mut number = 0;
    let mut done = |nodes: &mut Nodes, head: u8, count: u64| {
        for _ in 0..count {
            number += 1;
            let outcome = nodes.ask(head, number, write(number));
            assert_eq!(outcome, Some(ChainOutcome::Done(Vec::new())), "{number}");
        }
    };
    // The head has gone far ahead of what the others know to be committed.
    nodes.lost = |message| matches!(message, ChainMessage::Commit(_));
    done(&mut nodes, 0, 9);
    assert!(nodes.chains[0].kept_at > 768 && nodes.chains[1].log_ends() == (9, 0));
    // It is left out before they know more, and is the next view's end.
    nodes.deaf = NodeSet::one(NodeId(2));
    nodes.enter(View { epoch: 2, members: two, ..View::default() });
    nodes.chains[0].keep(1, Durable::default());
    nodes.slow = Some((NodeId(0), Vec::new()));
    nodes.deaf = NodeSet::EMPTY;
    nodes.enter(View { epoch: 3, members: two, learners: NodeSet::one(NodeId(0)), ..View::default() });
    let (_, late) = nodes.slow.take().expect("it is slow");
    late.into_iter().for_each(|token| nodes.chains[0].persisted(0, token));
    nodes.lost = |_| false;
    (0..3).for_each(|_| nodes.wake());
    assert_eq!(nodes.chains[0].status(), Some(Standing::Ready));
    done(&mut nodes, 1, 2);
    nodes.enter(View { epoch: 4, members: all, ..View::default() });
    // All crash: each has all that was answered.
    (0..3).for_each(|node| nodes.crash(node));
    let ends: Vec<u64> = nodes.chains.iter().map(|chain| chain.log_ends().0).collect();
    assert_eq!(ends, [11; 3]);
    nodes.enter(View { epoch: 5, members: all, learners: NodeSet::EMPTY, recovery: true });
    done(&mut nodes, 0, 3);
    assert!(nodes.chains.windows(2).all(|pair| pair[0].data() == pair[1].data()));
}

/// Its memory looks whole, but is an old one; and so old that no ring has what it lacks.
#[test]
fn a_log_that_ends_before_what_others_have_applied_does_not_count() {
    for old in [0, 1, 2] {
        let mut nodes = Nodes::new(3, 1 << 10);
        let write = |number: u64| Transaction {
            writes: vec![put(64 * (number % 16), &[number as u8; 64])],
            ..Transaction::default()
        };
        assert!(nodes.ask(0, 1, write(1)).is_some());
        let image = nodes.images[old].clone();
        for number in 2..40 {
            assert_eq!(nodes.ask(0, number, write(number)), Some(ChainOutcome::Done(Vec::new())));
        }
        nodes.images[old] = image;
        (0..3).for_each(|node| nodes.crash(node));
        let (all, none) = (NodeSet::first(3), NodeSet::EMPTY);
        let (without, one) = (all.without(NodeId(old as u8)), NodeSet::one(NodeId(old as u8)));
        nodes.enter(View { epoch: 2, members: all, learners: none, recovery: true });
        let fallen = &nodes.chains[old];
        assert!(fallen.is_damaged() && fallen.status().is_none(), "node {old}");
        // The others go on with what they have, and it comes back by them.
        nodes.enter(View { epoch: 3, members: without, learners: none, recovery: true });
        nodes.enter(View { epoch: 4, members: without, learners: one, ..View::default() });
        (0..3).for_each(|_| nodes.wake());
        assert_eq!(nodes.chains[old].status(), Some(Standing::Ready));
        nodes.enter(View { epoch: 5, members: all, ..View::default() });
        assert_eq!(nodes.ask(0, 40, write(40)), Some(ChainOutcome::Done(Vec::new())));
        assert!(nodes.chains.iter().all(|chain| chain.log_ends() == (40, 40)), "node {old}");
        assert!(nodes.chains.windows(2).all(|pair| pair[0].data() == pair[1].data()), "node {old}");
    }
}

/// Each has as many parts as there may be, and so have the entries under way: all with all would be minutes for a few reads.
#[test]
fn reads_of_many_parts_beside_many_entries_are_answered_at_once() {
    const TUPLES: u64 = MAX_TUPLES as u64;
    let mut nodes = Nodes::with(2, |config| ChainConfig { ring: 4 << 20, data: 1 << 20, ..config });
    nodes.deaf = NodeSet::one(NodeId(1));
    let mut tag = 0;
    let first = TUPLES * 512;
    while nodes.chains[0].marks().full == 0 && tag < 1500 {
        let writes = (0..TUPLES).map(|part| put(first + tag * 512 + part * 2, b"a")).collect();
        nodes.chains[0].submit(
            0,
            ChainRequest { tag, session: None, transaction: Transaction { writes, ..Transaction::default() } },
        );
        tag += 1;
    }
    assert!(tag > 1000, "{tag}");
    let part = |part: u64| part * 512;
    let reads = (0..TUPLES).map(|number| at(part(number), 1)).collect();
    let expects = (0..TUPLES).map(|number| put(part(number), &[0])).collect();
    let transaction = Transaction { reads, expects, writes: Vec::new() };
    for tag in 0..60 {
        nodes.chains[0].submit(0, ChainRequest { tag, session: None, transaction: transaction.clone() });
    }
    nodes.run();
    assert!(nodes.replies.iter().all(|(_, reply)| matches!(reply.outcome, ChainOutcome::Done(_))));
    assert_eq!(nodes.replies.len(), 60, "none waits for what it does not read");
}

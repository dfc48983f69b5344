//! Two ends and a carrier between them that is as bad as a reliable connection may be: WRITEs land in order, packet by
//! packet and as late as it likes, and signals of them come together and in any order.

use std::collections::VecDeque;

use proptest::prelude::*;
use remora_memory::Buffer;
use remora_ring::{Notify, PushError, Receiver, RingEnd, RingError, RingShape, RingWrite, Sender, Signals};

/// Bytes of a packet.
const MTU: usize = 64;

/// An end, the memory that its peer writes to, and the memory that its own WRITEs are taken from.
struct Side {
    end: RingEnd,
    ring: Buffer,
    copy: Buffer,
    /// What is on its way to the peer: offset and bytes, taken when the packet leaves.
    flight: VecDeque<(usize, Vec<u8>)>,
    writes: usize,
}

impl Side {
    fn new(shape: RingShape, notify: Notify) -> Self {
        let (ring, copy) = (memory(shape.memory()), memory(shape.bytes()));
        let end = RingEnd::new(Sender::new(shape, copy.clone()), Receiver::new(shape, ring.clone()), notify);
        Self { end, ring, copy, flight: VecDeque::new(), writes: 0 }
    }

    /// Posts what there is to write.
    fn post(&mut self) {
        while let Some(write) = self.end.poll_write() {
            self.writes += 1;
            match write {
                RingWrite::Frames(range) => {
                    for at in range.clone().step_by(MTU) {
                        let mut bytes = vec![0; MTU.min(range.end - at)];
                        self.copy.read(at, &mut bytes).unwrap();
                        self.flight.push_back((at, bytes));
                    }
                }
                RingWrite::Pointer { offset, word } => self.flight.push_back((offset, word.to_le_bytes().to_vec())),
            }
        }
    }

    /// Lets so many packets land at the peer. Whether any did.
    fn land(&mut self, peer: &Side, packets: usize) -> bool {
        let landed = packets.min(self.flight.len());
        for (at, bytes) in self.flight.drain(..landed) {
            peer.ring.write(at, &bytes).unwrap();
        }
        landed > 0
    }
}

fn memory(len: usize) -> Buffer {
    Buffer::from_boxed(vec![0; len].into())
}

fn pair(shape: RingShape, notify: Notify) -> (Side, Side) {
    let (client, mut server) = (Side::new(shape, notify), Side::new(shape, notify));
    server.end.expect(0);
    (client, server)
}

fn message(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (number * 31 + at * 7 + 1) as u8).collect()
}

#[derive(Clone, Debug)]
enum Step {
    /// The client asks, so many bytes, and so many to come back.
    Ask(usize, usize),
    Post(bool),
    Land(bool, usize),
    /// The server is told of what has landed, and answers so many requests of those that it has taken.
    Serve(usize),
    Read,
}

fn step(longest: usize) -> impl Strategy<Value = Step> {
    let len = prop_oneof![6 => 0..=longest.min(200), 2 => 0..=longest, 1 => Just(longest)];
    prop_oneof![
        3 => (len.clone(), len).prop_map(|(request, reply)| Step::Ask(request, reply)),
        2 => any::<bool>().prop_map(Step::Post),
        4 => (any::<bool>(), 1..40usize).prop_map(|(who, packets)| Step::Land(who, packets)),
        2 => (0..4usize).prop_map(Step::Serve),
        1 => Just(Step::Read),
    ]
}

fn shapes() -> impl Strategy<Value = RingShape> {
    (1..6u32, 6..9u32).prop_map(|(entries, entry)| RingShape::new(1 << entries, 1 << entry).unwrap())
}

/// Requests and replies under way between two ends.
struct World {
    client: Side,
    server: Side,
    signals: Signals,
    /// Asked and not answered, in order: lengths of request and reply.
    asked: VecDeque<(usize, usize, usize)>,
    next: usize,
    /// Requests that the server has taken: those are answered in any order by kernels; here in theirs.
    taken: VecDeque<(usize, usize)>,
    /// It was told of requests that it has not seen the end of.
    woken: bool,
    replies: VecDeque<(usize, usize)>,
    buffer: Vec<u8>,
    /// The server takes requests and lays down replies in pieces of so many bytes. Its client does not say what it expects then.
    piece: Option<usize>,
    /// Of the reply that is being laid down.
    laid: usize,
}

impl World {
    fn new(shape: RingShape, notify: Notify, piece: Option<usize>) -> Self {
        let (mut client, server) = match piece {
            None => pair(shape, notify),
            // Replies are found in the ring.
            Some(_) => (Side::new(shape, notify), pair(shape, Notify::Ring).1),
        };
        if piece.is_some() {
            client.end.expect(0);
        }
        Self {
            client,
            server,
            signals: Signals::new(1),
            asked: VecDeque::new(),
            next: 0,
            taken: VecDeque::new(),
            woken: false,
            replies: VecDeque::new(),
            buffer: Vec::new(),
            piece,
            laid: 0,
        }
    }

    fn ask(&mut self, request: usize, reply: usize) -> Result<(), RingError> {
        match self.client.end.push(&[&message(self.next, request)])? {
            Ok(()) => {
                self.asked.push_back((self.next, request, reply));
                self.replies.push_back((self.next, reply));
                self.next += 1;
                if self.piece.is_none() {
                    let longest = self.replies.iter().map(|(_, len)| *len).max().unwrap_or(0);
                    self.client.end.expect(longest.max(1));
                }
            }
            Err(PushError::Full) => assert!(self.client.end.sender().unread() > 0, "an empty ring is not full"),
            Err(e) => panic!("{e}"),
        }
        Ok(())
    }

    /// Whether anything moved.
    fn land(&mut self, to_server: bool, packets: usize) -> bool {
        let Self { client, server, .. } = self;
        let moved = if to_server { client.land(server, packets) } else { server.land(client, packets) };
        if moved && to_server {
            self.signals.set_pointer(0, self.server.end.receiver().pointer().0);
        }
        moved
    }

    fn serve(&mut self, answers: usize) -> Result<bool, RingError> {
        let mut moved = false;
        let Self { signals, woken, .. } = self;
        signals.take(|_| *woken = true);
        // Who cannot answer takes no more: credits are found where they wait.
        while self.woken && self.taken.len() < 3 {
            if !self.take()? {
                self.woken = false;
                break;
            }
            let (number, request, reply) = self.asked.pop_front().expect("a request that was made");
            assert_eq!(self.buffer, message(number, request));
            self.taken.push_back((number, reply));
            moved = true;
        }
        for _ in 0..answers {
            let Some(&(number, reply)) = self.taken.front() else { break };
            let (reply, laid) = (message(number + 1, reply), &mut self.laid);
            let (front, rest) = reply.split_at(reply.len().min(8));
            let pushed = match self.piece {
                None => self.server.end.push(&[front, rest])?.map(|()| true),
                Some(piece) => self.server.end.push_part(&[front, rest], laid, piece)?,
            };
            match pushed {
                Ok(true) => {
                    self.taken.pop_front();
                    self.laid = 0;
                }
                Ok(false) => {}
                Err(e) => {
                    assert_eq!(e, PushError::Full);
                    break;
                }
            }
            moved = true;
        }
        Ok(moved)
    }

    /// The next request, which is then in the buffer, if there is one.
    fn take(&mut self) -> Result<bool, RingError> {
        let Some(piece) = self.piece else { return self.server.end.poll(&mut self.buffer) };
        let mut front = [0; 8];
        let Some(len) = self.server.end.peek(&mut front)? else { return Ok(false) };
        self.buffer.clear();
        self.buffer.extend_from_slice(&front[..len.min(8)]);
        let mut left = len.saturating_sub(8);
        while !self.server.end.poll_part(8, &mut self.buffer, piece)? {
            assert!(left > piece && self.server.end.receiver().has_begun());
            assert_eq!(self.server.end.peek(&mut front), Ok(Some(len)), "however much of it is taken");
            left -= piece;
        }
        assert!(left <= piece);
        Ok(true)
    }

    fn read(&mut self) -> Result<bool, RingError> {
        let mut moved = false;
        while self.client.end.poll(&mut self.buffer)? {
            let (number, reply) = self.replies.pop_front().expect("a reply to a request");
            assert_eq!(self.buffer, message(number + 1, reply));
            moved = true;
        }
        Ok(moved)
    }

    /// Everything goes on until nothing does.
    fn settle(&mut self) -> Result<(), RingError> {
        loop {
            self.client.post();
            self.server.post();
            let mut moved = self.land(true, usize::MAX) | self.land(false, usize::MAX);
            moved |= self.serve(usize::MAX)? | self.read()?;
            if !moved && !self.client.end.wants_write() && !self.server.end.wants_write() {
                return Ok(());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_message_arrives_once_in_order_and_nothing_is_stuck(
        (shape, notify, steps) in (shapes(), any::<bool>()).prop_flat_map(|(shape, pointer)| {
            let notify = if pointer { Notify::Pointer } else { Notify::Ring };
            (Just(shape), Just(notify), prop::collection::vec(step(shape.longest()), 0..250))
        }),
        piece in prop_oneof![Just(None), (1..200usize).prop_map(Some)],
    ) {
        let mut world = World::new(shape, notify, piece);
        for step in steps {
            match step {
                Step::Ask(request, reply) => world.ask(request, reply).unwrap(),
                Step::Post(true) => world.client.post(),
                Step::Post(false) => world.server.post(),
                Step::Land(to_server, packets) => drop(world.land(to_server, packets)),
                Step::Serve(answers) => drop(world.serve(answers).unwrap()),
                Step::Read => drop(world.read().unwrap()),
            }
        }
        world.settle().unwrap();
        prop_assert!(world.replies.is_empty(), "every request is answered in the end");
        prop_assert!(world.asked.is_empty() && world.taken.is_empty());
        let mut left = vec![0; shape.bytes()];
        for side in [&world.client, &world.server] {
            side.ring.read(0, &mut left).unwrap();
            prop_assert!(left.iter().all(|&byte| byte == 0), "entries that were read are 0");
        }
        // A ring that was emptied has room for the longest message once more.
        world.ask(shape.longest(), shape.longest()).unwrap();
        world.settle().unwrap();
        prop_assert!(world.replies.is_empty());
    }

    /// A peer writes what it likes where it likes: there is an error or a message, and never more than the ring's bytes.
    #[test]
    fn a_lying_peer_harms_nobody(
        shape in shapes(),
        writes in prop::collection::vec((any::<prop::sample::Index>(), any::<[u32; 2]>(), any::<bool>(), any::<u8>()), 1..60),
        in_pieces in any::<bool>(),
    ) {
        let (_, mut server) = pair(shape, Notify::Ring);
        let mut out = Vec::new();
        for (at, words, small, pushes) in writes {
            let at = at.index(shape.memory() / 8) * 8;
            let words = if small { words.map(|word| word % 300) } else { words };
            server.ring.store_u64(at, u64::from(words[0]) | u64::from(words[1]) << 32).unwrap();
            for _ in 0..pushes % 4 {
                let _ = server.end.push(&[&[1; 30]]);
            }
            while let Some(write) = server.end.poll_write() {
                if let RingWrite::Frames(range) = write {
                    prop_assert!(range.start < range.end && range.end <= shape.bytes());
                }
            }
            let _ = server.end.receiver().arrived(words[0]);
            // Frames that end a lie with zeros end at some time: each one takes an entry's word away.
            for _ in 0..=shape.entries() {
                let polled = match in_pieces {
                    false => server.end.poll(&mut out),
                    true => server.end.peek(&mut [0; 8]).and_then(|len| match len {
                        None => Ok(false),
                        Some(_) => {
                            out.clear();
                            while !server.end.poll_part(8, &mut out, 40)? {
                                server.ring.store_u64(at, u64::MAX / 3).unwrap();
                            }
                            Ok(true)
                        }
                    }),
                };
                match polled {
                    Ok(true) => prop_assert!(out.len() <= shape.longest()),
                    Ok(false) => break,
                    Err(_) => return Ok(()),
                }
            }
        }
    }
}

#[test]
fn many_messages_are_one_write_and_a_pointer_is_another() {
    let shape = RingShape::default();
    for (notify, writes) in [(Notify::Ring, 1), (Notify::Pointer, 2)] {
        let (mut client, server) = pair(shape, notify);
        for _ in 0..20 {
            client.end.push(&[b"op", &[7; 64]]).unwrap().unwrap();
        }
        assert!(client.end.wants_write());
        client.post();
        assert_eq!((client.writes, client.end.wants_write()), (writes, false));
        client.land(&server, usize::MAX);
        let arrived = server.end.receiver().arrived(server.end.receiver().pointer().0);
        assert_eq!(arrived, Ok(if notify == Notify::Pointer { 20 } else { 0 }));
    }
}

#[test]
fn a_message_counts_when_its_last_byte_is_there() {
    let (mut client, mut server) = pair(RingShape::new(8, 64).unwrap(), Notify::Ring);
    client.end.push(&[&[3; 300]]).unwrap().unwrap();
    client.post();
    let mut out = Vec::new();
    while client.flight.len() > 1 {
        client.land(&server, 1);
        assert_eq!(server.end.poll(&mut out), Ok(false));
        assert!(server.end.receiver().has_begun());
    }
    client.land(&server, 1);
    assert_eq!(server.end.poll(&mut out), Ok(true));
    assert_eq!(out, [3; 300]);
    assert!(!server.end.receiver().has_begun());
}

#[test]
fn what_no_honest_peer_writes_is_told_apart() {
    let shape = RingShape::new(8, 64).unwrap();
    let word = |len: u64, credit: u64| (len + 1) | credit << 32;
    let mut out = Vec::new();
    let mut poll = |words: &[(usize, u64)]| {
        let (_, mut server) = pair(shape, Notify::Ring);
        words.iter().for_each(|&(at, word)| server.ring.store_u64(at, word).unwrap());
        server.end.poll(&mut out)
    };
    assert_eq!(poll(&[(0, word(504, 0))]), Err(RingError::Length { entry: 0, len: 504, most: 503 }));
    assert_eq!(poll(&[(0, word(8, 0)), (16, 7 << 56)]), Err(RingError::Mark { entry: 0, found: 7 }));
    let credit = poll(&[(0, word(0, 1)), (8, 0xa5 << 56)]);
    assert_eq!(credit, Err(RingError::Credit { credit: 1, head: 0, tail: 0 }));
    assert_eq!(poll(&[(0, word(0, 0)), (8, 0xa5 << 56)]), Ok(true));
    let (_, server) = pair(shape, Notify::Pointer);
    assert_eq!(server.end.receiver().arrived(9), Err(RingError::Pointer { tail: 9, head: 0, entries: 8 }));
    assert_eq!(server.end.receiver().arrived(u32::MAX), Ok(0), "late");
}

/// A reply that takes all of the ring, to who has read all and tells of it by requests alone.
#[test]
fn who_needs_room_that_its_peer_has_not_told_of_asks_for_it() {
    let shape = RingShape::new(16, 64).unwrap();
    let (mut client, mut server) = pair(shape, Notify::Ring);
    client.end.expect(0);
    let mut out = Vec::new();
    for (len, asks) in [(64 * 13 - 9, false), (64 * 13, true), (shape.longest(), true)] {
        // Three that it has not told of yet.
        for _ in 0..43 {
            server.end.push(&[b"a reply"]).unwrap().unwrap();
            server.post();
            server.land(&client, usize::MAX);
            assert!(client.end.poll(&mut out).unwrap());
            client.post();
            client.land(&server, usize::MAX);
        }
        let before = server.writes;
        while server.end.push(&[&message(1, len)]).unwrap().is_err() {
            server.post();
            assert!(server.end.push(&[&message(1, len)]).unwrap().is_err() && !server.end.wants_write(), "asks once");
            server.land(&client, usize::MAX);
            assert!(!client.end.poll(&mut out).unwrap() && client.end.wants_write());
            client.post();
            assert!(client.land(&server, usize::MAX) && !client.end.wants_write(), "tells once");
        }
        assert_eq!(server.writes - before, usize::from(asks), "{len} bytes");
        server.post();
        server.land(&client, usize::MAX);
        assert!(client.end.poll(&mut out).unwrap() && out == message(1, len));
        client.post();
        client.land(&server, usize::MAX);
    }
}

/// Whatever stands in its pointer word, a peer costs no more than a WRITE for each of its messages.
#[test]
fn who_asks_for_room_without_end_is_told_once_a_message() {
    let shape = RingShape::new(16, 64).unwrap();
    let (mut client, mut server) = pair(shape, Notify::Ring);
    let mut out = Vec::new();
    for n in 0..200_u64 {
        client.end.push(&[b"a request"]).unwrap().unwrap();
        client.post();
        client.land(&server, usize::MAX);
        let asks = |more: u64| server.ring.store_u64(shape.pointer(), n.wrapping_add(more) & 0xffff_ffff).unwrap();
        asks(17 + n % 16);
        assert!(server.end.poll(&mut out).unwrap());
        assert!(matches!(server.end.poll_write(), Some(RingWrite::Pointer { .. })), "it has read one more");
        for more in [17, 33, 0, u64::MAX] {
            asks(more);
            assert!(!server.end.wants_write() && server.end.poll_write().is_none());
        }
        // It hears of it.
        client.ring.store_u64(shape.pointer(), (n + 1) << 32).unwrap();
    }
}

/// Both ends in one memory: stores instead of WRITEs, between two threads.
#[test]
#[allow(clippy::disallowed_methods, reason = "this test is a world")]
fn two_threads_talk_by_plain_stores() {
    let shape = RingShape::new(16, 64).unwrap();
    let (requests, responses) = (memory(shape.memory()), memory(shape.memory()));
    let end = |fills: &Buffer, reads: &Buffer| {
        RingEnd::new(Sender::new(shape, fills.clone()), Receiver::new(shape, reads.clone()), Notify::Ring)
    };
    let settle = |end: &mut RingEnd, peer: &Buffer| {
        while let Some(write) = end.poll_write() {
            if let RingWrite::Pointer { offset, word } = write {
                peer.store_u64(offset, word).unwrap();
            }
        }
    };
    const MESSAGES: usize = 2000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut server, mut out) = (end(&responses, &requests), Vec::new());
            server.expect(0);
            for _ in 0..MESSAGES {
                while !server.poll(&mut out).unwrap() {
                    std::thread::yield_now();
                }
                out.reverse();
                while server.push(&[&out]).unwrap().is_err() {
                    settle(&mut server, &responses);
                    std::thread::yield_now();
                }
                settle(&mut server, &responses);
            }
        });
        let (mut client, mut out) = (end(&requests, &responses), Vec::new());
        let (mut asked, mut answered) = (0, 0);
        while answered < MESSAGES {
            let len = |number: usize| number % 150;
            while asked < MESSAGES && client.push(&[&message(asked, len(asked))]).unwrap().is_ok() {
                asked += 1;
            }
            settle(&mut client, &requests);
            while client.poll(&mut out).unwrap() {
                out.reverse();
                assert_eq!(out, message(answered, len(answered)));
                answered += 1;
            }
            settle(&mut client, &requests);
            std::thread::yield_now();
        }
    });
}

/// Credits in messages overtake that of the pointer word, which may not be written for as long as they do.
#[test]
fn a_pointer_word_that_was_overtaken_long_ago_is_no_lie() {
    let (mut client, mut server) = pair(RingShape::new(16, 64).unwrap(), Notify::Ring);
    let mut buffer = Vec::new();
    for _ in 0..270_000 {
        client.end.push(&[b"a request"]).unwrap().unwrap();
        client.post();
        client.land(&server, usize::MAX);
        assert!(server.end.poll(&mut buffer).unwrap());
        server.end.push(&[b"a reply"]).unwrap().unwrap();
        server.post();
        server.land(&client, usize::MAX);
        assert!(client.end.poll(&mut buffer).unwrap());
    }
    let more = (0..20).take_while(|_| server.end.push(&[b"a reply"]).unwrap().is_ok()).count();
    assert!((15..=16).contains(&more), "the ring is full: {more}");
    assert_eq!(server.end.push(&[b"a reply"]), Ok(Err(PushError::Full)));
}

#[test]
fn credits_that_wait_are_walked_over_once() {
    let (mut client, mut server) = pair(RingShape::new(16, 64).unwrap(), Notify::Ring);
    let waiting = |server: &mut Side, client: &mut Side| {
        client.end.push(&[b"a request"]).unwrap().unwrap();
        client.post();
        client.land(server, usize::MAX);
        let mut receiver = Receiver::new(server.end.shape(), server.ring.clone());
        (receiver.newest_credit(), receiver.newest_credit())
    };
    assert_eq!(waiting(&mut server, &mut client), (Some(0), None));
}

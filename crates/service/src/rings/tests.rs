use super::*;
use crate::CallTable;
use remora_memory::{Buffer, Registry};
use remora_ring::{Receiver, RingShape, Sender};

/// A client's end, and the memory of both sides.
struct Caller {
    qpn: Qpn,
    end: RingEnd,
    requests: Buffer,
    copy: Buffer,
    /// Where the node lays responses down, and where they land.
    responses: [Buffer; 2],
}

fn open(rings: &mut Rings, client: u32) -> (Caller, u32) {
    open_of(rings, client, RingShape::new(512, 64).unwrap())
}

fn open_of(rings: &mut Rings, client: u32, shape: RingShape) -> (Caller, u32) {
    let memory = |len: usize| Buffer::anonymous(len).unwrap();
    let [requests, copy, laid, landed] = [0; 4].map(|_| memory(shape.memory()));
    let end = |copy: &Buffer, ring: &Buffer| {
        RingEnd::new(Sender::new(shape, copy.clone()), Receiver::new(shape, ring.clone()), Notify::Ring)
    };
    let pd = Registry::new([1; 32]).alloc_pd();
    let pair = RingPair {
        qpn: Qpn(client),
        pd,
        end: end(&laid, &requests),
        notify: Notify::Ring,
        copy: (0, 0),
        responses: (0, 0),
    };
    let ring = rings.open(client, pair).unwrap();
    let mut end = end(&copy, &landed);
    end.expect(0);
    (Caller { qpn: Qpn(client), end, requests, copy, responses: [laid, landed] }, ring)
}

impl Caller {
    /// Makes so many calls with room for so much, which land.
    fn call(&mut self, rings: &Rings, ring: u32, calls: u32, room: u32) {
        for tag in 0..calls {
            let call = RingCall { op: 7, tag, room };
            self.end.push(&[&call.encode()]).unwrap().unwrap();
        }
        self.post(rings, ring);
    }

    /// What it writes lands.
    fn post(&mut self, rings: &Rings, ring: u32) {
        while let Some(write) = self.end.poll_write() {
            match write {
                RingWrite::Frames(range) => {
                    let mut bytes = vec![0; range.len()];
                    self.copy.read(range.start, &mut bytes).unwrap();
                    self.requests.write(range.start, &bytes).unwrap();
                }
                RingWrite::Pointer { offset, word } => self.requests.store_u64(offset, word).unwrap(),
            }
            rings.signals().set(ring);
        }
    }

    /// What the node writes lands; tag, status and reply of each answer.
    fn answers(&mut self, rings: &mut Rings) -> Vec<(u32, Status, Vec<u8>)> {
        let [laid, landed] = &self.responses;
        let (mut answers, mut front) = (Vec::new(), [0; RingReply::LEN]);
        loop {
            rings.begin_turn(0);
            while let Some(RingPost { op: SendOp::Write { va, .. }, data, .. }) =
                rings.next_write(|qpn| qpn == self.qpn)
            {
                match data {
                    RingData::Frames(sge) => {
                        let mut bytes = vec![0; sge.len as usize];
                        laid.read(va as usize, &mut bytes).unwrap();
                        landed.write(va as usize, &bytes).unwrap();
                    }
                    RingData::Pointer(word) => landed.store_u64(va as usize, u64::from_le_bytes(word)).unwrap(),
                }
            }
            if rings.retries.is_empty() {
                break;
            }
        }
        let mut reply = Vec::new();
        while self.end.poll_split(&mut &mut front[..], &mut reply).unwrap() {
            let RingReply { tag, status } = RingReply::decode(&front);
            answers.push((tag, status, reply.clone()));
        }
        answers
    }
}

#[test]
fn clients_have_shares_of_what_is_under_way_and_rings_take_turns() {
    let (mut rings, mut table) = (Rings::default(), CallTable::new(2048));
    let (mut one, first) = open(&mut rings, 1);
    let (mut two, second) = open(&mut rings, 2);
    one.call(&rings, first, 300, 8);
    two.call(&rings, second, 300, 8);
    let mut calls: Vec<Call> = std::iter::from_fn(|| table.take(0, &mut rings)).collect();
    assert_eq!(calls.len(), 2 * RING_CALLS.div_ceil(3), "a third each, and a third for who comes next");
    assert!(calls.chunks(2).all(|pair| pair[0].client != pair[1].client), "round robin");
    for _ in 0..10 {
        let call = calls.pop().unwrap();
        table.finish(&mut rings, call, Status::Ok);
    }
    assert_eq!(std::iter::from_fn(|| table.take(0, &mut rings)).count(), 10);
    assert!(rings.wants_write());
    assert!(rings.next_write(|_| false).is_none(), "no room in the queue pair");
    assert!(matches!(rings.next_write(|_| true), Some(RingPost { data: RingData::Frames(_), .. })));

    // What came by a pair that is closed is not answered, and counts no more when it ends.
    rings.close(first);
    rings.close(second);
    assert!(rings.is_empty() && !rings.wants_write());
    calls.into_iter().for_each(|call| table.finish(&mut rings, call, Status::Ok));
    assert_eq!(rings.shares.under_way(1) + rings.shares.under_way(2), 10, "those that were taken last still run");
    assert!(rings.poll_fault().is_none() && rings.next_write(|_| true).is_none());
}

#[test]
fn who_does_not_read_its_answers_holds_up_nobody_and_is_cut_off() {
    let (mut rings, mut table) = (Rings::default(), CallTable::new(512));
    let (mut lazy, first) = open(&mut rings, 1);
    let (mut other, second) = open(&mut rings, 2);
    lazy.call(&rings, first, 256, 16_000);
    let calls: Vec<Call> = std::iter::from_fn(|| table.take(0, &mut rings)).collect();
    assert_eq!(calls.len(), Shares::most(RING_CALLS));
    for mut call in calls {
        call.reply.resize(16_000, 7);
        table.finish(&mut rings, call, Status::Ok);
    }
    assert!(rings.next_write(|_| true).is_some() && rings.next_write(|_| true).is_none());
    assert!(!rings.wants_write(), "nothing is tried again as long as it writes nothing");
    other.call(&rings, second, 10, 8);
    assert_eq!(std::iter::from_fn(|| table.take(0, &mut rings)).count(), 10);

    // It has read those that there was room for, two.
    let end = &rings.rings[first as usize].as_ref().unwrap().pair.end;
    let (pointer, entries) = (end.shape().pointer(), end.sender().unread());
    lazy.requests.write(pointer, &(entries << 32).to_le_bytes()).unwrap();
    rings.signals().set(first);
    rings.begin_turn(0);
    assert!(rings.next_write(|_| true).is_some());
    assert_eq!(std::iter::from_fn(|| rings.poll_released()).count(), 2);
    for now in [0, ANSWERS_WAIT, ANSWERS_WAIT + 1] {
        assert_eq!(rings.poll_fault(), None);
        (0..2).for_each(|_| rings.begin_turn(now));
    }
    let error = RingError::Unread { answers: 252 };
    assert_eq!(rings.poll_fault(), Some(RingFault { qpn: Qpn(1), error }));
    rings.close(first);
    assert_eq!(std::iter::from_fn(|| rings.poll_released()).count(), 252);
    assert_eq!((rings.shares.under_way(1), rings.holding), (0, 0));
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn long_calls_are_as_long_as_the_ring_and_others_have_their_turns_between_their_pieces() {
    let (mut rings, mut table) = (Rings::default(), CallTable::new(512));
    let shape = RingShape::new(1024, 4096).unwrap();
    let (mut long, first) = open_of(&mut rings, 1, shape);
    let (mut short, second) = open(&mut rings, 2);
    // One after the other, so that each begins elsewhere in the ring and goes round its end.
    for len in [100_000, 3_000_000, crate::most_params(shape), 200_000, 0] {
        let params = bytes(len);
        let call = RingCall { op: 9, tag: len as u32, room: u32::MAX };
        while long.end.push(&[&call.encode(), &params]).unwrap().is_err() {
            assert!(long.answers(&mut rings).is_empty());
            long.post(&rings, first);
        }
        long.post(&rings, first);
        let (mut turns, mut others) = (0_usize, 0);
        let mut call = loop {
            short.call(&rings, second, 1, 8);
            turns += 1;
            let mut taken = Vec::from_iter(std::iter::from_fn(|| table.take(0, &mut rings)));
            let call = taken.iter().position(|call| call.op == 9).map(|at| taken.remove(at));
            others += taken.len();
            taken.into_iter().for_each(|call| table.finish(&mut rings, call, Status::Ok));
            short.answers(&mut rings);
            if let Some(call) = call {
                break call;
            }
            assert!(rings.is_copying() && !rings.is_still());
        };
        let pieces = if len > SHORT_RING_MESSAGE { len.div_ceil(PIECE) } else { 1 };
        assert!(turns.abs_diff(pieces) <= 1 && others + 1 >= turns, "{len}: {turns} turns, {others} others");
        assert!(call.params == params && call.reply_limit as usize == most_reply(shape));

        // As long a reply comes back.
        let reply = bytes(len.min(most_reply(shape)));
        call.reply.extend_from_slice(&reply);
        table.finish(&mut rings, call, Status::Ok);
        let mut answers = long.answers(&mut rings);
        while answers.is_empty() {
            // It was asked for room.
            assert!(long.end.wants_write());
            long.post(&rings, first);
            answers = long.answers(&mut rings);
        }
        assert!(answers == [(len as u32, Status::Ok, reply)], "{len}");
        while let Some(number) = rings.poll_released() {
            table.release(number);
        }
        assert_eq!((table.under_way(), rings.bytes.under_way(1), rings.is_copying()), (0, 0, false));
    }
    assert!(rings.poll_fault().is_none());

    // One that ends in the middle holds nothing.
    long.end.push(&[&[0; RingCall::LEN], &bytes(1 << 20)]).unwrap().unwrap();
    long.post(&rings, first);
    assert!(table.take(0, &mut rings).is_none() && rings.is_copying());
    assert!(rings.bytes.under_way(1) as usize * UNIT >= 1 << 20);
    rings.close(first);
    rings.begin_turn(0);
    assert_eq!((rings.bytes.under_way(1), rings.is_copying()), (0, false));
}

/// A client is an address: those are as many processes.
#[test]
fn a_client_whose_bytes_are_used_up_by_calls_that_come_waits_for_none_of_its_own() {
    let (mut rings, mut table) = (Rings::default(), CallTable::new(1024));
    let shape = RingShape::new(1 << 12, 4096).unwrap();
    let mut callers: Vec<_> = (0..20).map(|_| open_of(&mut rings, 1, shape)).collect();
    for (caller, ring) in &mut callers {
        let call = RingCall { op: 9, tag: 0, room: u32::MAX };
        caller.end.push(&[&call.encode(), &bytes(200_000)]).unwrap().unwrap();
        caller.post(&rings, *ring);
    }
    let (mut short, ring) = open(&mut rings, 1);
    let (mut ended, mut others) = (0, 0);
    for _ in 0..400 {
        rings.begin_turn(0);
        short.call(&rings, ring, 1, 8);
        while let Some(call) = table.take(0, &mut rings) {
            *(if call.op == 9 { &mut ended } else { &mut others }) += 1;
            table.finish(&mut rings, call, Status::Ok);
        }
    }
    assert_eq!((ended, others, rings.is_copying(), rings.bytes.under_way(1)), (20, 400, false, 0));
}

/// However many rings it has.
#[test]
fn a_client_with_many_long_answers_leaves_others_their_turns() {
    let (mut rings, mut table) = (Rings::default(), CallTable::new(512));
    let shape = RingShape::new(512, 4096).unwrap();
    let mut callers = Vec::from_iter((0..21).map(|n| open_of(&mut rings, if n < 20 { 1 } else { 2 }, shape)));
    callers.iter_mut().for_each(|(caller, ring)| caller.call(&rings, *ring, 1, u32::MAX));
    for mut call in Vec::from_iter(std::iter::from_fn(|| table.take(0, &mut rings))) {
        call.reply.resize(1 << 20, 7);
        table.finish(&mut rings, call, Status::Ok);
    }
    assert_eq!(rings.holding, 21);
    let last = callers[20].1 as usize;
    let holds = |rings: &Rings| !rings.rings[last].as_ref().unwrap().held.is_empty();
    let turns = std::iter::from_fn(|| holds(&rings).then(|| rings.begin_turn(0))).count();
    let pieces = (1 << 20) / PIECE + 1;
    assert!(turns <= 2 * pieces + 1, "{turns} turns for {pieces} pieces");
}

#[test]
fn a_turn_takes_as_many_calls_as_bring_a_piece() {
    let (mut rings, mut table) = (Rings::default(), CallTable::new(512));
    let (mut caller, ring) = open_of(&mut rings, 1, RingShape::new(1 << 12, 4096).unwrap());
    for tag in 0..100 {
        let call = RingCall { op: 9, tag, room: 8 };
        caller.end.push(&[&call.encode(), &bytes(SHORT_RING_MESSAGE)]).unwrap().unwrap();
    }
    caller.post(&rings, ring);
    for _ in 0..100 {
        let taken = Vec::from_iter(std::iter::from_fn(|| table.take(0, &mut rings)));
        assert_eq!(taken.len(), 1);
        rings.begin_turn(0);
    }
    caller.call(&rings, ring, 100, 8);
    assert_eq!(std::iter::from_fn(|| table.take(0, &mut rings)).count(), 100, "short ones together");
}

#[test]
fn answers_that_had_no_room_are_laid_down_a_piece_at_a_time() {
    let (mut rings, mut table) = (Rings::default(), CallTable::new(512));
    let shape = RingShape::new(512, 4096).unwrap();
    let (mut lazy, ring) = open_of(&mut rings, 1, shape);
    lazy.call(&rings, ring, 250, 16_000);
    for mut call in Vec::from_iter(std::iter::from_fn(|| table.take(0, &mut rings))) {
        call.reply.resize(16_000, 7);
        table.finish(&mut rings, call, Status::Ok);
    }
    let mut answers = lazy.answers(&mut rings).len();
    assert!(answers < 130 && rings.holding == 1, "{answers} had room");
    // It has read them all, and says so.
    lazy.post(&rings, ring);
    let filled = |rings: &Rings| rings.rings[ring as usize].as_ref().unwrap().pair.end.sender().tail();
    while answers < 250 {
        let before = filled(&rings);
        rings.begin_turn(0);
        assert!((filled(&rings) - before) as usize * 4096 <= PIECE + 16_384, "{answers} answers");
        answers += lazy.answers(&mut rings).len();
        lazy.post(&rings, ring);
    }
    assert_eq!((rings.holding, rings.is_copying()), (0, false));
}

#[test]
fn a_call_longer_than_any_is_a_lie() {
    let (mut rings, mut table) = (Rings::default(), CallTable::new(8));
    let (mut caller, ring) = open_of(&mut rings, 1, RingShape::new(1 << 13, 4096).unwrap());
    caller.end.push(&[&[0; RingCall::LEN], &vec![0; MAX_RING_MESSAGE + 1]]).unwrap().unwrap();
    caller.post(&rings, ring);
    assert!(table.take(0, &mut rings).is_none());
    let most = (RingCall::LEN + MAX_RING_MESSAGE) as u32;
    let error = RingError::Length { entry: 0, len: most + 1, most };
    assert_eq!(rings.poll_fault(), Some(RingFault { qpn: Qpn(1), error }));
}

/// All make calls that are as long as any may be; what is under way is counted.
#[test]
fn long_calls_of_many_clients_hold_no_more_than_is_stated_and_others_go_on() {
    let (mut rings, mut table) = (Rings::default(), CallTable::new(1024));
    let shape = RingShape::new(1 << 12, 4096).unwrap();
    let long = |len: usize| if len > SHORT_RING_MESSAGE { len } else { 0 };
    let mut callers: Vec<_> = (1..9).map(|client| open_of(&mut rings, client, shape)).collect();
    let params = bytes(200_000);
    for (caller, ring) in &mut callers {
        for tag in 0..40 {
            let call = RingCall { op: 9, tag, room: u32::MAX };
            caller.end.push(&[&call.encode(), &params]).unwrap().unwrap();
        }
        caller.post(&rings, *ring);
    }
    let turn = |rings: &mut Rings, table: &mut CallTable<RingAsker>| -> Vec<Call> {
        // As many turns as pieces.
        let turn = |_| {
            rings.begin_turn(0);
            Vec::from_iter(std::iter::from_fn(|| table.take(0, rings)))
        };
        (0..2000).flat_map(turn).collect()
    };
    let (mut other, ring) = open(&mut rings, 100);
    let (mut under_way, mut ended, mut most, mut alone) = (VecDeque::new(), 0, 0, 0);
    while ended < 320 {
        under_way.extend(turn(&mut rings, &mut table));
        let held = under_way.iter().map(|call: &Call| long(call.params.len()) + long(call.reply_limit as usize));
        most = most.max(held.sum());
        alone = alone.max(under_way.iter().filter(|call| call.client == 1).count());
        // Who makes short calls has as many as ever.
        other.call(&rings, ring, 100, 8);
        let short: Vec<Call> = std::iter::from_fn(|| table.take(0, &mut rings)).collect();
        assert_eq!(short.len(), 100, "beside {} long ones", under_way.len());
        short.into_iter().for_each(|call| table.finish(&mut rings, call, Status::Ok));
        other.answers(&mut rings);
        other.post(&rings, ring);
        let call = under_way.pop_front().unwrap();
        assert!(call.params == params);
        table.finish(&mut rings, call, Status::Ok);
        ended += 1;
    }
    let one = long(params.len()) + long(most_reply(shape));
    assert!((RING_BYTES - 4 * one..=RING_BYTES + one).contains(&most), "{most} bytes");
    assert!((1..=RING_BYTES / 2 / one + 1).contains(&alone), "{alone} calls of one client");
    assert_eq!((table.under_way(), (1..9).map(|client| rings.bytes.under_way(client)).sum::<u32>()), (0, 0));
}

#[test]
fn a_pointer_further_on_than_its_ring_is_long_is_a_lie() {
    for (notify, tail, lies) in [
        (Notify::Pointer, 3, false),
        (Notify::Pointer, 512, false),
        (Notify::Pointer, 513, true),
        (Notify::Pointer, u32::MAX, false),
        // Who tells by the ring itself writes its pointer seldom: an old one says nothing.
        (Notify::Ring, 1 << 30, false),
    ] {
        let (mut rings, mut table) = (Rings::default(), CallTable::new(8));
        let (_caller, ring) = open(&mut rings, 1);
        rings.rings[ring as usize].as_mut().unwrap().pair.notify = notify;
        rings.signals().set_pointer(ring, tail);
        assert!(table.take(0, &mut rings).is_none());
        let lie = RingFault { qpn: Qpn(1), error: RingError::Pointer { tail, head: 0, entries: 512 } };
        assert_eq!(rings.poll_fault(), lies.then_some(lie), "{notify:?} {tail}");
    }
}

#[test]
fn one_client_does_not_take_all_pairs() {
    let mut rings = Rings::default();
    let shape = RingShape::new(2, 64).unwrap();
    let pair = |client| {
        let memory = |len: usize| Buffer::from_boxed(vec![0; len].into());
        let (sender, receiver) =
            (Sender::new(shape, memory(shape.bytes())), Receiver::new(shape, memory(shape.memory())));
        let end = RingEnd::new(sender, receiver, Notify::Ring);
        let pd = Registry::new([1; 32]).alloc_pd();
        RingPair { qpn: Qpn(client), pd, end, notify: Notify::Ring, copy: (0, 0), responses: (0, 0) }
    };
    let opened = (0..RINGS).take_while(|_| rings.open(1, pair(1)).is_ok()).count();
    assert_eq!(opened, RINGS as usize / 2);
    assert!(rings.open(2, pair(2)).is_ok());
}

//! A ring of packets in shared memory: one producer, one consumer, neither of which trusts the other.
//!
//! A record is a word with the packet's length and then the packet, padded to words. The length is stored last, so that
//! it says both that the packet is there and how long it is: a short packet crosses between cores in one cache line, or
//! a few that move together. The word after the last record is 0. Before that end of the ring where a record would not
//! fit, the word is [`WRAP`] and the next record stands at the start.
//!
//! Everything read from the ring may have been scribbled by the peer: it is checked, copied once, and then believed.
//! [`Buffer`] checks every access against its bounds.

use remora_memory::{Buffer, Lookahead, MAX_LOANS};
use remora_nic::Room;

use super::barrier;
use crate::link::{MAX_PACKET, MIN_PACKET};

/// Bytes of packets and their lengths in one ring. A few dozen packets of 4 KB, and small enough to stay in a cache.
pub(super) const DATA_BYTES: usize = 512 << 10;

/// Bytes of a ring: a page for the consumer's words, then the data.
pub(super) const RING_BYTES: usize = DATA_OFFSET + DATA_BYTES;

/// Where the consumer says how far it has read, in bytes since the start, counting on over the wraps.
const HEAD_OFFSET: usize = 0;
/// Where the consumer says 1 if it wants to be woken; on a cache line of its own.
const SLEEPING_OFFSET: usize = 64;
/// Where the consumer says 1 if it has all producers make a [barrier] when it goes to sleep; on the same line.
const BARRIER_OFFSET: usize = 72;
/// Where the producer says how far it has written, on a line of its own, when that is more than a [`FEW`] bytes at once. A hint, to
/// ask for lines early by: that a packet is there only its length says.
const TAIL_OFFSET: usize = 128;
/// Where the consumer says of each loan whether it has it: a word for each slot, from here on.
const LOANS_OFFSET: usize = 256;
const DATA_OFFSET: usize = 4096;

const WORD: usize = 8;
/// In place of a length: the next record stands at the start of the ring.
const WRAP: u64 = u64::MAX;

/// In a record's first word beside the length: its packet is a [`Reference`](remora_memory::Reference), and then headers.
const REFERS: u64 = 1 << 32;

/// What the consumer says of a loan: nothing yet or any more, that it is mapped, that it cannot be.
pub(super) const LOAN_NONE: u64 = 0;
pub(super) const LOAN_MAPPED: u64 = 1;
pub(super) const LOAN_REFUSED: u64 = 2;

/// Bytes of the room that is lent at once.
const LENT: usize = 32 << 10;

/// Bytes of packets from which on it pays to ask for the next one's lines early.
const LONG: usize = 1024;

/// Bytes up to which the producer does not say how far it has written: of so few no line need be asked for early.
const FEW: u64 = 256;

/// Bytes behind a short packet that are asked for with it.
const AHEAD: i64 = 512;

/// Bytes of the ring that the producer has to itself before it writes them, and bytes of a line.
const CLAIMED: u64 = 1024;
const LINE: u64 = 64;

/// The consumer looks again how far the producer is when less than this is left of what it knows of.
const LOOK_AHEAD: i64 = 16 << 10;

/// The end that writes.
pub(super) struct Producer {
    shared: Buffer,
    base: usize,
    /// Bytes written since the start, and those of them that the consumer may see.
    tail: u64,
    shown: u64,
    /// How far lines were asked for.
    claimed: u64,
    /// The consumer's head when last looked at.
    head: u64,
    /// The first unpublished record: its offset in the data and the word that publishes it and all after it.
    unpublished: Option<(usize, u64)>,
    /// Bytes at the ring's end that the room lent last leaves out.
    skipped: usize,
    /// This process makes a barrier when a consumer has it made.
    shares_barriers: bool,
}

impl Producer {
    /// Over the ring at `base`, which must be zeroed.
    pub fn new(shared: Buffer, base: usize) -> Producer {
        let shares_barriers = barrier::shared();
        Producer {
            shared,
            base,
            tail: 0,
            shown: 0,
            claimed: 0,
            head: 0,
            unpublished: None,
            skipped: 0,
            shares_barriers,
        }
    }

    /// Writes a packet, which the consumer sees after [`publish`](Producer::publish). False if there is no room.
    #[inline]
    pub fn push(&mut self, packet: &[u8]) -> bool {
        let record = WORD + packet.len().next_multiple_of(WORD);
        let mut at = offset(self.tail);
        let skip = if at + record > DATA_BYTES { DATA_BYTES - at } else { 0 };
        // The word after the record must be free too.
        if !self.has_room(skip + record + WORD) {
            return false;
        }
        if skip > 0 {
            self.head_record(at, WRAP);
            at = 0;
        }
        // The last word is stored whole, as it is nobody else's.
        let whole = packet.len() & !(WORD - 1);
        let data = self.base + DATA_OFFSET + at + WORD;
        let copied = self.shared.put(data, &packet[..whole]).is_ok();
        debug_assert!(copied, "a record lies within the ring");
        if whole < packet.len() {
            let mut last = [0; WORD];
            last[..packet.len() - whole].copy_from_slice(&packet[whole..]);
            store(&self.shared, data + whole, u64::from_ne_bytes(last));
        }
        self.head_record(at, packet.len() as u64);
        self.tail += (skip + record) as u64;
        self.claim_ahead();
        true
    }

    /// Asks for lines that are to be written soon, and that the consumer is done with, one after the other each would hold up those
    /// behind it for as long as it takes from the other core. Not for the one that the consumer looks at.
    #[inline]
    fn claim_ahead(&mut self) {
        let end = self.tail + CLAIMED;
        let from = self.claimed.max((self.tail | (LINE - 1)) + 1);
        if end < from + CLAIMED / 2 || end.wrapping_sub(self.head) > DATA_BYTES as u64 {
            return;
        }
        let at = offset(from);
        self.shared.claim(self.base + DATA_OFFSET + at, ((end - from) as usize).min(DATA_BYTES - at));
        self.claimed = end;
    }

    /// Room for packets that are put together in the ring; `None` if there is not room for the longest.
    #[inline]
    pub fn lend(&mut self) -> Option<Room> {
        let at = offset(self.tail);
        let longest = Room::taken(MAX_PACKET);
        // The word after the last record must be free too.
        let skip = if at + longest > DATA_BYTES { DATA_BYTES - at } else { 0 };
        let most = DATA_BYTES - if skip > 0 { 0 } else { at };
        // Little at a time, so that the consumer has something to do meanwhile.
        let wanted = LENT.min(most);
        let free = match self.has_room(skip + wanted + WORD) {
            true => wanted,
            false => {
                let free = DATA_BYTES as u64 - self.tail.wrapping_sub(self.head).min(DATA_BYTES as u64);
                (free as usize).saturating_sub(skip + WORD).min(wanted) & !(WORD - 1)
            }
        };
        if free < longest {
            return None;
        }
        self.skipped = skip;
        let start = self.base + DATA_OFFSET + if skip > 0 { 0 } else { at };
        Some(Room { buffer: self.shared.clone(), start, end: start + free, loans: None })
    }

    /// What the consumer says of the loan in this slot.
    pub fn loan(&self, slot: usize) -> u64 {
        load(&self.shared, self.base + LOANS_OFFSET + WORD * slot)
    }

    /// The packets of these lengths stand in the room lent last; bit by bit, those that refer to their payload. The consumer sees
    /// them after [`publish`](Producer::publish).
    pub fn push_lent(&mut self, lens: &[u16], referred: u64) {
        let skip = std::mem::take(&mut self.skipped);
        if skip > 0 && !lens.is_empty() {
            self.head_record(offset(self.tail), WRAP);
            self.tail += skip as u64;
        }
        for (at, &len) in lens.iter().enumerate() {
            let refers = if referred >> at & 1 == 1 { REFERS } else { 0 };
            self.head_record(offset(self.tail), u64::from(len) | refers);
            self.tail += Room::taken(len.into()) as u64;
        }
    }

    /// Lets the consumer see all packets pushed.
    #[inline]
    pub fn publish(&mut self) {
        if let Some((at, word)) = self.unpublished.take() {
            store(&self.shared, self.base + DATA_OFFSET + offset(self.tail), 0);
            store(&self.shared, self.base + DATA_OFFSET + at, word);
            if self.tail.wrapping_sub(self.shown) > FEW {
                store(&self.shared, self.base + TAIL_OFFSET, self.tail);
            }
            self.shown = self.tail;
        }
    }

    /// Whether the consumer wants to be woken, after [`publish`](Producer::publish); asking takes its wish back. Either this sees the
    /// wish or the consumer sees the packets.
    #[inline]
    pub fn take_wake(&mut self) -> bool {
        barrier::after_publish(self.shares_barriers && load(&self.shared, self.base + BARRIER_OFFSET) == 1);
        let sleeping = load(&self.shared, self.base + SLEEPING_OFFSET) != 0;
        if sleeping {
            // Before the wake-up is sent: were it after, it could undo a wish made in between.
            store(&self.shared, self.base + SLEEPING_OFFSET, 0);
        }
        sleeping
    }

    #[inline]
    fn has_room(&mut self, bytes: usize) -> bool {
        let fits = |head: u64| {
            // A head that no honest consumer writes leaves no room.
            let used = self.tail.wrapping_sub(head);
            used <= DATA_BYTES as u64 && used + bytes as u64 <= DATA_BYTES as u64
        };
        if fits(self.head) {
            return true;
        }
        let head = load(&self.shared, self.base + HEAD_OFFSET);
        if self.tail.wrapping_sub(head) <= DATA_BYTES as u64 {
            self.head = head;
        }
        fits(head)
    }

    /// Stores the first word of a record, unless it is the one to publish the batch by.
    #[inline]
    fn head_record(&mut self, at: usize, word: u64) {
        match self.unpublished {
            None => self.unpublished = Some((at, word)),
            Some(_) => store(&self.shared, self.base + DATA_OFFSET + at, word),
        }
    }
}

/// The end that reads.
pub(super) struct Consumer {
    shared: Buffer,
    base: usize,
    /// Bytes read since the start.
    head: u64,
    /// What the producer was told of it.
    published: u64,
    /// The producer's tail when last looked at.
    tail: u64,
    /// How far lines were asked for.
    asked: u64,
}

/// A packet in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Where it stands in the ring's memory.
    pub at: usize,
    /// Its bytes there.
    pub len: usize,
    /// They are a reference and headers.
    pub refers: bool,
}

/// The producer wrote what no honest one writes; nothing after it can be found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken;

impl Consumer {
    /// Over the ring at `base`, which must be zeroed.
    pub fn new(shared: Buffer, base: usize) -> Consumer {
        let mut consumer = Consumer { shared, base, head: 0, published: 0, tail: 0, asked: 0 };
        consumer.say_barrier(barrier::shared().into());
        consumer
    }

    /// Says whether this side has all producers make a barrier before it sleeps.
    pub fn say_barrier(&mut self, says: u64) {
        store(&self.shared, self.base + BARRIER_OFFSET, says);
    }

    /// The next packet, which stands in [`shared`](Consumer::shared). Says in `lookahead` where those after it lie. It stays there
    /// until [`pass`](Consumer::pass).
    #[inline]
    pub fn peek(&mut self, lookahead: &Lookahead) -> Result<Option<Record>, Broken> {
        let mut at = offset(self.head);
        let mut word = self.data(at);
        if word == 0 {
            return Ok(None);
        }
        if word == WRAP {
            self.head += (DATA_BYTES - at) as u64;
            at = 0;
            word = self.data(at);
        }
        let refers = word & REFERS != 0;
        let len = usize::try_from(word & !REFERS).unwrap_or(usize::MAX);
        if !(MIN_PACKET..=MAX_PACKET).contains(&len) || at + WORD + len > DATA_BYTES {
            return Err(Broken);
        }
        let data = self.base + DATA_OFFSET + at + WORD;
        let next = self.head + (WORD + len.next_multiple_of(WORD)) as u64;
        // All lines are on their way from the other core before the copy waits for the first.
        if self.asked < next {
            self.shared.prefetch(data, len);
        }
        match len >= LONG {
            true => self.look_ahead(at + WORD + len.next_multiple_of(WORD), lookahead),
            false => self.ask_ahead(next),
        }
        Ok(Some(Record { at: data, len, refers }))
    }

    /// Says what becomes of the loan in this slot.
    pub fn say_loan(&mut self, slot: usize, what: u64) {
        store(&self.shared, self.base + LOANS_OFFSET + WORD * slot, what);
    }

    /// The memory of the ring.
    pub fn shared(&self) -> &Buffer {
        &self.shared
    }

    /// The packet seen last, of `len` bytes, has been taken.
    #[inline]
    pub fn pass(&mut self, len: usize) {
        self.head += (WORD + len.next_multiple_of(WORD)) as u64;
        if self.head - self.published >= DATA_BYTES as u64 / 16 {
            self.release();
        }
    }

    /// Has the lines of the next packet come while the caller is busy with this one, and says how many more could. Only
    /// what is there: lines that the producer still writes are better left to it.
    #[inline]
    fn look_ahead(&mut self, at: usize, lookahead: &Lookahead) {
        if at + WORD > DATA_BYTES {
            return;
        }
        let len = usize::try_from(self.data(at)).unwrap_or(usize::MAX);
        if !(LONG..=MAX_PACKET).contains(&len) {
            return;
        }
        let known = |tail: u64| tail.wrapping_sub(self.head) as i64;
        if known(self.tail) < LOOK_AHEAD {
            self.tail = load(&self.shared, self.base + TAIL_OFFSET);
        }
        // Nobody need believe the peer's word: it only says what is asked for, within the ring.
        let (next, most) = ((WORD + len).min(DATA_BYTES - at), DATA_BYTES - at);
        let there = usize::try_from(known(self.tail)).unwrap_or(0).clamp(next, most);
        let start = self.base + DATA_OFFSET + at;
        lookahead.expect(&self.shared, start..start + there, next);
    }

    /// Has the lines of the short packets from `next` on come, as far as there are some: one after the other each would take as
    /// long as a packet's work.
    #[inline]
    fn ask_ahead(&mut self, next: u64) {
        let known = |tail: u64| tail.wrapping_sub(next) as i64;
        if known(self.tail) < AHEAD {
            self.tail = load(&self.shared, self.base + TAIL_OFFSET);
        }
        let end = next + known(self.tail).clamp(0, AHEAD) as u64;
        let from = self.asked.clamp(next, end);
        if from < end {
            let at = offset(from);
            let len = ((end - from) as usize).min(DATA_BYTES - at);
            self.shared.prefetch(self.base + DATA_OFFSET + at, len);
            self.asked = end;
        }
    }

    /// Tells the producer what has been read.
    #[inline]
    pub fn release(&mut self) {
        if self.head != self.published {
            self.published = self.head;
            store(&self.shared, self.base + HEAD_OFFSET, self.head);
        }
    }

    /// Whether a packet waits.
    #[inline]
    pub fn waiting(&self) -> bool {
        self.data(offset(self.head)) != 0
    }

    /// Asks the producer for a wake-up, or takes that back. To be followed by a [barrier] and a look at
    /// [`waiting`](Consumer::waiting).
    pub fn set_sleeping(&mut self, sleeping: bool) {
        store(&self.shared, self.base + SLEEPING_OFFSET, u64::from(sleeping));
    }

    #[inline]
    fn data(&self, at: usize) -> u64 {
        load(&self.shared, self.base + DATA_OFFSET + at)
    }
}

#[inline]
fn offset(position: u64) -> usize {
    position as usize & (DATA_BYTES - 1)
}

#[inline]
fn load(shared: &Buffer, offset: usize) -> u64 {
    let word = shared.load_u64(offset);
    debug_assert!(word.is_ok(), "offsets are aligned and within the rings");
    word.unwrap_or(0)
}

#[inline]
fn store(shared: &Buffer, offset: usize, word: u64) {
    let stored = shared.store_u64(offset, word);
    debug_assert!(stored.is_ok(), "offsets are aligned and within the rings");
}

const _: () = assert!(LOANS_OFFSET + WORD * MAX_LOANS <= DATA_OFFSET);
const _: () = assert!(DATA_BYTES.is_power_of_two() && DATA_BYTES >= 16 * MAX_PACKET && DATA_OFFSET.is_multiple_of(64));

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    fn ring() -> (Producer, Consumer, Buffer) {
        let shared = Buffer::anonymous(RING_BYTES).unwrap();
        (Producer::new(shared.clone(), 0), Consumer::new(shared.clone(), 0), shared)
    }

    fn pop(consumer: &mut Consumer, out: &mut [u8]) -> Result<Option<usize>, Broken> {
        let Some(Record { at, len, .. }) = consumer.peek(&Lookahead::default())? else { return Ok(None) };
        consumer.shared().take(at, &mut out[..len]).unwrap();
        consumer.pass(len);
        Ok(Some(len))
    }

    /// Puts packets together in the ring itself. Returns how many there was room for.
    fn push_lent(producer: &mut Producer, packets: &[Vec<u8>]) -> usize {
        let Some(mut room) = producer.lend() else { return 0 };
        let mut lens = Vec::new();
        for packet in packets {
            if room.end - room.start < Room::taken(MAX_PACKET) {
                break;
            }
            room.buffer.write(room.start + Room::GAP, packet).unwrap();
            room.start += Room::taken(packet.len());
            lens.push(packet.len() as u16);
        }
        producer.push_lent(&lens, 0);
        lens.len()
    }

    #[test]
    fn packets_show_when_published_and_not_before() {
        let (mut producer, mut consumer, _) = ring();
        let mut out = [0; MAX_PACKET];
        assert!(producer.push(&[1; 20]) && producer.push(&[2; 33]));
        assert_eq!(pop(&mut consumer, &mut out), Ok(None));
        producer.publish();
        assert!(consumer.waiting());
        assert_eq!(pop(&mut consumer, &mut out), Ok(Some(20)));
        assert_eq!(out[..20], [1; 20]);
        assert_eq!(pop(&mut consumer, &mut out), Ok(Some(33)));
        assert_eq!(out[..33], [2; 33]);
        assert_eq!(pop(&mut consumer, &mut out), Ok(None));
    }

    #[test]
    fn a_full_ring_refuses_until_it_is_read_and_released() {
        let (mut producer, mut consumer, _) = ring();
        let mut out = [0; MAX_PACKET];
        let mut pushed = 0;
        while producer.push(&[9; 4000]) {
            pushed += 1;
        }
        assert_eq!(pushed, DATA_BYTES / 4008);
        producer.publish();
        assert_eq!(pop(&mut consumer, &mut out), Ok(Some(4000)));
        assert!(!producer.push(&[9; 4000]), "read but not released");
        consumer.release();
        assert!(!producer.push(&[9; 4000]), "the released record is at the start, and the end too short to skip");
        assert_eq!(pop(&mut consumer, &mut out), Ok(Some(4000)));
        consumer.release();
        assert!(producer.push(&[9; 4000]));
    }

    /// Waits for a packet as a device does, with a call to sleep where nothing comes.
    fn sleep_until_waiting(consumer: &mut Consumer) {
        let (since, most) = (Instant::now(), Duration::from_secs(20));
        loop {
            // Anew each time: who took the last wish back may do so late, and wakes it after that.
            consumer.set_sleeping(true);
            barrier::before_sleep();
            if consumer.waiting() {
                break;
            }
            std::thread::park_timeout(most);
            assert!(since.elapsed() < most, "nobody woke it");
        }
        consumer.set_sleeping(false);
    }

    /// The two ends on two threads: what comes is what was sent, in its order, over the ring's end too.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "the property is about two threads")]
    fn packets_cross_threads_whole_and_in_order() {
        let (mut producer, mut consumer, _) = ring();
        let count = if cfg!(miri) { 20 } else { 100_000 };
        // From this place on the ring's end is near.
        let start = (DATA_BYTES - 1024) as u64;
        (producer.tail, producer.shown, producer.head) = (start, start, start);
        (producer.claimed, consumer.head, consumer.published) = (start, start, start);
        let len_of = |n: usize| if n % 50 == 7 { 2000 } else { MIN_PACKET + n * 7 % 230 };
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let (mut n, mut out) = (0, vec![0; MAX_PACKET]);
                while n < count {
                    let Some(len) = pop(&mut consumer, &mut out).unwrap() else {
                        consumer.release();
                        sleep_until_waiting(&mut consumer);
                        continue;
                    };
                    assert_eq!((len, &out[..len]), (len_of(n), &vec![n as u8; len][..]), "packet {n}");
                    n += 1;
                }
            });
            let mut n = 0;
            while n < count {
                let mut pushed = 0;
                while pushed < 1 + n % 3 && n < count && producer.push(&vec![n as u8; len_of(n)]) {
                    (n, pushed) = (n + 1, pushed + 1);
                }
                producer.publish();
                if producer.take_wake() {
                    reader.thread().unpark();
                }
                if pushed == 0 {
                    assert!(!reader.is_finished(), "the reader has given up");
                    std::thread::yield_now();
                }
            }
            reader.join().unwrap();
        });
    }

    /// A packet that comes as its consumer falls asleep: one of the two sees the other. Miri lets either's store be late.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "the property is about two threads")]
    fn who_falls_asleep_as_a_packet_comes_is_woken() {
        let (mut producer, mut consumer, _) = ring();
        let count = if cfg!(miri) { 20 } else { 100_000 };
        let taken = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut out = [0; MIN_PACKET];
                for n in 0..count {
                    sleep_until_waiting(&mut consumer);
                    assert_eq!(pop(&mut consumer, &mut out), Ok(Some(MIN_PACKET)));
                    consumer.release();
                    taken.store(n + 1, Ordering::Release);
                }
            });
            for n in 0..count {
                assert!(producer.push(&[1; MIN_PACKET]));
                producer.publish();
                if producer.take_wake() {
                    reader.thread().unpark();
                }
                let since = Instant::now();
                while taken.load(Ordering::Acquire) <= n {
                    std::thread::yield_now();
                    assert!(since.elapsed() < Duration::from_secs(30), "packet {n} is never taken");
                }
            }
            reader.join().unwrap();
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_ring_is_a_queue(
            steps in prop::collection::vec((MIN_PACKET..=MAX_PACKET, 0..6usize, any::<bool>(), 0..4usize), 1..800),
        ) {
            let (mut producer, mut consumer, _) = ring();
            let (mut unpublished, mut queue) = (VecDeque::new(), VecDeque::new());
            let mut out = [0; MAX_PACKET];
            for (n, (len, pops, publish, lent)) in steps.into_iter().enumerate() {
                let packet = vec![n as u8; len];
                if lent > 0 {
                    let packets = vec![packet; lent];
                    let pushed = push_lent(&mut producer, &packets);
                    unpublished.extend(packets.into_iter().take(pushed));
                } else if producer.push(&packet) {
                    unpublished.push_back(packet);
                } else {
                    let held: usize = queue.iter().chain(&unpublished).map(Vec::len).sum();
                    prop_assert!(held + 3 * MAX_PACKET > DATA_BYTES / 2, "full with {held} bytes");
                }
                if publish {
                    producer.publish();
                    queue.append(&mut unpublished);
                }
                for _ in 0..pops {
                    match pop(&mut consumer, &mut out).unwrap() {
                        Some(len) => prop_assert_eq!(Some(out[..len].to_vec()), queue.pop_front()),
                        None => prop_assert!(queue.is_empty()),
                    }
                }
                consumer.release();
            }
        }

        /// Whatever stands in the ring, the ends neither panic nor loop, and what comes out is within bounds.
        #[test]
        fn scribbles_are_survived(
            words in prop::collection::vec((0..RING_BYTES / WORD, prop_oneof![
                any::<u64>(), Just(WRAP), Just(0), 0..5000u64
            ]), 1..200),
            start in 0..DATA_BYTES / WORD,
        ) {
            let (mut producer, mut consumer, shared) = ring();
            let start = (start * WORD) as u64;
            (producer.tail, producer.head, consumer.head, consumer.published) = (start, start, start, start);
            let mut out = [0; MAX_PACKET];
            for (word, value) in words {
                shared.store_u64(word * WORD, value).unwrap();
                let near = offset(consumer.head);
                shared.store_u64(DATA_OFFSET + near, value).unwrap();
                shared.store_u64(HEAD_OFFSET, value).unwrap();
                shared.store_u64(TAIL_OFFSET, value).unwrap();
                producer.push(&[1; 100]);
                push_lent(&mut producer, &[vec![2; 600], vec![3; 90]]);
                producer.publish();
                producer.take_wake();
                if let Ok(Some(len)) = pop(&mut consumer, &mut out) {
                    prop_assert!((MIN_PACKET..=MAX_PACKET).contains(&len));
                }
                consumer.release();
            }
        }
    }
}

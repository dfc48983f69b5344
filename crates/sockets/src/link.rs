//! A connection's buffer: a ring of bytes each way, and what both ends tell each other beside them.
//!
//! The kernel's TCP connection stays. It carries the first bytes, as ends find each other only when a connection turns
//! out to be worth it; after that it carries bells, bytes that say nothing but "look", and its end says that a peer
//! died. A direction changes over at a position in its stream that its sender writes down ([`Word::Switched`]): what lies
//! before came by the kernel, what lies behind comes by the ring. So no byte is lost or overtaken.
//!
//! | who        | writes                                                                                     |
//! |------------|--------------------------------------------------------------------------------------------|
//! | producer   | `Tail`, `HeadSeen`, `Switched`, `Fin`, `Bells`, `Urgent`, `TxLock`                         |
//! | consumer   | `Head`, `TailSeen`, `Ready`, `Taken`, `Gone`, `Drained`, `BellsTaken`, `UrgentTaken`, `RxLock` |
//! | the end that sends here | `Holders`, `Processes`, `NonBlocking`, `Eof`, `Forked`, `LowMark`, `Inline`, `Options`, `Resets`, for all processes that share it |
//! | both       | `Armed`: the end that sends here wants a bell; the other one takes the wish and rings      |
//!
//! Each end looks at the other's position only when the one that it saw last does not do: a line that is left to the other
//! core need not come back from it, and who is behind takes all that he has seen before he looks again.
//!
//! A peer may write anything there at any time: positions are checked before they are believed.

use std::sync::atomic::{Ordering, fence};

use remora_memory::Buffer;
use remora_rack::ConnectionEnd;
pub use remora_rack::layout::LINK_BYTES;
pub use remora_rack::layout::RING_BYTES as RING;
use remora_rack::layout::{HALF_BYTES as HALF, WORDS_BYTES as DATA_OFFSET};

use crate::sys;

/// A sender is told of room when there is this much; so long it counts as not writable.
pub const WRITABLE: usize = RING / 4;
/// Bytes that are copied before the peer is shown them.
const PIECE: usize = 64 << 10;

/// Wishes in `Armed`.
pub const WANT_DATA: u64 = 1;
/// The other one.
pub const WANT_ROOM: u64 = 2;
/// The same wishes, so many bits further up, of who sleeps on the word itself: no bell is needed for these.
const DOZING: u32 = 2;
/// A wish for a bell whenever there are data, so many bits up from the one that is taken: of who is told of them by signals.
const ALWAYS: u32 = 4;
/// So long does anybody sleep on the word: only the kernel's connection tells of a peer's death.
const DOZE: u64 = 5_000_000;

/// A word of a direction's page; those of one writer that change together share lines.
#[derive(Clone, Copy, Debug)]
pub enum Word {
    Tail = 0,
    HeadSeen = 8,
    Head = 128,
    TailSeen = 136,
    Switched = 256,
    Fin = 264,
    Bells = 272,
    /// The position behind the urgent byte that was sent last; 0 if there was none.
    Urgent = 280,
    Ready = 384,
    Gone = 392,
    Drained = 400,
    BellsTaken = 408,
    Taken = 416,
    /// The one that was received apart.
    UrgentTaken = 424,
    TxLock = 512,
    RxLock = 640,
    Armed = 768,
    Holders = 896,
    NonBlocking = 904,
    Eof = 912,
    Forked = 920,
    /// `SO_RCVLOWAT`; 0 is as 1.
    LowMark = 928,
    /// `SO_OOBINLINE`.
    Inline = 936,
    /// What the program has set of [`OPTIONS`]: bells are sent at once all the same.
    Options = 944,
    /// Whether the kernel is to reset the connection at its end, whatever was read: `SO_LINGER` of no time.
    Resets = 952,
    /// The first of [`PROCESSES`]: which processes hold it, as of [`sys::process`].
    Processes = 1024,
}

/// `TCP_NODELAY` and `TCP_CORK`, by their bits in [`Word::Options`].
pub const OPTIONS: [std::ffi::c_int; 2] = [libc::TCP_NODELAY, libc::TCP_CORK];

/// As many processes that hold an end are known.
const PROCESSES: usize = 32;

/// A peer wrote what no honest one writes.
#[derive(Debug, PartialEq, Eq)]
pub struct Broken;

/// One end's view of the buffer.
pub struct Link {
    shared: Buffer,
    base: usize,
    end: ConnectionEnd,
}

impl Link {
    /// The buffer at `base` of a section.
    pub fn new(shared: Buffer, base: usize, end: ConnectionEnd) -> Option<Self> {
        (base.is_multiple_of(4096) && base + LINK_BYTES <= shared.len()).then_some(Self { shared, base, end })
    }

    /// Leaves nothing of the section within reach but this buffer: the others that are there, now or later, are none of a
    /// child's.
    pub fn leave_the_rest(&self) {
        for (from, to) in [(0, self.base), (self.base + LINK_BYTES, self.shared.len())] {
            let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            if from < to {
                let at = self.shared.addr() + from as u64;
                sys::call!(SYS_mmap, at, to - from, libc::PROT_NONE, flags, -1, 0);
            }
        }
    }

    /// A word of the direction that this end sends in.
    #[inline]
    pub fn own(&self, word: Word) -> u64 {
        self.load(self.half(self.end) + word as usize)
    }

    /// A word of the direction that this end receives from.
    #[inline]
    pub fn peer(&self, word: Word) -> u64 {
        self.load(self.half(self.end.other()) + word as usize)
    }

    #[inline]
    pub fn set_own(&self, word: Word, value: u64) {
        self.store(self.half(self.end) + word as usize, value);
    }

    #[inline]
    pub fn set_peer(&self, word: Word, value: u64) {
        self.store(self.half(self.end.other()) + word as usize, value);
    }

    /// Adds to a word of this end, and returns what it was.
    pub fn add_own(&self, word: Word, n: u64) -> u64 {
        self.shared.fetch_add(self.half(self.end) + word as usize, n).unwrap_or(0)
    }

    fn processes(&self) -> impl Iterator<Item = usize> {
        let first = self.half(self.end) + Word::Processes as usize;
        (0..PROCESSES).map(move |index| first + index * size_of::<u64>())
    }

    /// A process holds this end, which `Holders` counts.
    pub fn join(&self, process: u64) {
        let _ = self.processes().find(|at| self.swap_if(*at, 0, process));
    }

    /// It does no more. How many did before.
    pub fn part(&self, process: u64) -> u64 {
        let _ = self.processes().find(|at| self.swap_if(*at, process, 0));
        self.add_own(Word::Holders, u64::MAX)
    }

    /// Whether other processes hold this end, too. Those that have died do not.
    pub fn is_shared(&self) -> bool {
        if self.own(Word::Holders) <= 1 {
            return false;
        }
        for at in self.processes() {
            let process = self.load(at);
            if process != 0 && sys::is_dead(process) && self.swap_if(at, process, 0) {
                self.add_own(Word::Holders, u64::MAX);
            }
        }
        self.own(Word::Holders) > 1
    }

    fn swap_if(&self, at: usize, expect: u64, new: u64) -> bool {
        self.shared.compare_swap(at, expect, new) == Ok(expect)
    }

    /// Bytes to read, and how far reading has come.
    #[inline]
    pub fn readable(&self) -> Result<usize, Broken> {
        let used = self.peer(Word::Tail).wrapping_sub(self.peer(Word::Head));
        if used <= RING as u64 { Ok(used as usize) } else { Err(Broken) }
    }

    /// Bytes that may be written.
    #[inline]
    pub fn room(&self) -> Result<usize, Broken> {
        let used = self.own(Word::Tail).wrapping_sub(self.own(Word::Head));
        if used <= RING as u64 { Ok(RING - used as usize) } else { Err(Broken) }
    }

    /// How far a ring is filled, from the position of the other end that was seen last if that is `enough`, else from where it
    /// is now.
    #[inline]
    fn used(
        &self,
        half: usize,
        seen: Word,
        other: Word,
        of: impl Fn(u64) -> u64,
        enough: impl Fn(usize) -> bool,
    ) -> Result<usize, Broken> {
        let used = of(self.load(half + seen as usize));
        if used <= RING as u64 && enough(used as usize) {
            return Ok(used as usize);
        }
        let now = self.load(half + other as usize);
        self.store(half + seen as usize, now);
        let used = of(now);
        if used <= RING as u64 { Ok(used as usize) } else { Err(Broken) }
    }

    /// Writes as much as there is room for, under the lock; the peer sees it. Returns how much.
    pub fn write(&self, data: &[u8]) -> Result<usize, Broken> {
        let half = self.half(self.end);
        let mut tail = self.load(half + Word::Tail as usize);
        let behind = |head: u64| tail.wrapping_sub(head);
        let used = self.used(half, Word::HeadSeen, Word::Head, behind, |used| RING - used >= data.len())?;
        let most = (RING - used).min(data.len());
        let mut written = 0;
        while written < most {
            let at = (tail % RING as u64) as usize;
            let piece = (most - written).min(PIECE).min(RING - at);
            let bytes = &data[written..written + piece];
            let copied = self.shared.write(half + DATA_OFFSET + at, bytes);
            debug_assert!(copied.is_ok(), "positions lie within the ring");
            tail = tail.wrapping_add(piece as u64);
            written += piece;
            self.advance(half + Word::Tail as usize, piece);
        }
        Ok(most)
    }

    /// Reads as much as is there, under the lock, from `skip` bytes behind the head. Takes nothing away.
    pub fn peek(&self, skip: usize, out: &mut [u8]) -> Result<usize, Broken> {
        let half = self.half(self.end.other());
        let head = self.load(half + Word::Head as usize);
        let ahead = |tail: u64| tail.wrapping_sub(head);
        let used = self.used(half, Word::TailSeen, Word::Tail, ahead, |used| used >= skip + out.len())?;
        let most = used.saturating_sub(skip).min(out.len());
        let mut head = head.wrapping_add(skip as u64);
        let mut read = 0;
        while read < most {
            let at = (head % RING as u64) as usize;
            let piece = (most - read).min(RING - at);
            self.shared.take(half + DATA_OFFSET + at, &mut out[read..read + piece]).map_err(|_| Broken)?;
            head = head.wrapping_add(piece as u64);
            read += piece;
        }
        Ok(most)
    }

    /// Takes bytes away that were read, under the lock.
    #[inline]
    pub fn consume(&self, len: usize) {
        self.advance(self.half(self.end.other()) + Word::Head as usize, len);
    }

    /// Wishes for bells. Returns what was wished before.
    pub fn arm(&self, wishes: u64) -> u64 {
        let at = self.half(self.end) + Word::Armed as usize;
        loop {
            let before = self.load(at);
            if before & wishes == wishes || self.swap_if(at, before, before | wishes) {
                fence(Ordering::SeqCst);
                return before;
            }
        }
    }

    /// Wishes for a bell whenever there are data, whoever takes the other wishes, or does so no more.
    pub fn wish_always(&self, is: bool) {
        let at = self.half(self.end) + Word::Armed as usize;
        let (bit, set) = (WANT_DATA << ALWAYS, u64::from(is) * (WANT_DATA << ALWAYS));
        let mut before = self.load(at);
        while !self.swap_if(at, before, before & !bit | set) {
            before = self.load(at);
        }
    }

    /// Whether it does.
    pub fn wishes_always(&self) -> bool {
        self.own(Word::Armed) & WANT_DATA << ALWAYS != 0
    }

    /// Whether the peer wants a bell for one of these, or sleeps until one would come: after this end's position has moved.
    #[inline]
    pub fn is_wished(&self, wishes: u64) -> bool {
        let armed = self.shared.load_ordered(self.half(self.end.other()) + Word::Armed as usize);
        armed.unwrap_or(0) & all(wishes) != 0
    }

    /// Whether the peer wants a bell for one of these; if so, its wishes are taken, and the caller rings. Who sleeps on the
    /// word is woken here.
    #[inline]
    pub fn take_wish(&self, wishes: u64) -> bool {
        fence(Ordering::SeqCst);
        let at = self.half(self.end.other()) + Word::Armed as usize;
        loop {
            let before = self.load(at);
            if before & all(wishes) == 0 {
                return false;
            }
            if self.swap_if(at, before, before & WANT_DATA << ALWAYS) {
                if before & (WANT_DATA | WANT_ROOM) << DOZING != 0 {
                    sys::futex_wake(self.shared.addr() + at as u64);
                }
                return before & (WANT_DATA | WANT_ROOM | wishes << ALWAYS) != 0;
            }
        }
    }

    /// Sleeps for a while until the peer takes these wishes, unless `come` says that there is no need: a call of the kernel's
    /// on either side instead of a bell's way through TCP. 0, or a negative errno: ETIMEDOUT if nothing came, or what the
    /// kernel says. `again`: after a signal as well, where the program wants it so.
    pub fn doze(&self, wishes: u64, deadline: Option<u64>, again: bool, come: impl FnOnce() -> bool) -> isize {
        let wishes = wishes << DOZING;
        let armed = self.arm(wishes) | wishes;
        if come() {
            return 0;
        }
        let end = sys::now() + DOZE;
        let at = self.shared.addr() + (self.half(self.end) + Word::Armed as usize) as u64;
        sys::futex_wait(at, armed as u32, deadline.map_or(end, |deadline| deadline.min(end)), again)
    }

    /// Locks this end's sending or receiving side, against other threads and processes that share it.
    pub fn lock(&self, side: Side) -> Locked<'_> {
        let at = match side {
            Side::Tx => self.half(self.end) + Word::TxLock as usize,
            Side::Rx => self.half(self.end.other()) + Word::RxLock as usize,
        };
        let own = sys::thread_id();
        let mut tries = 0u32;
        while !self.swap_if(at, 0, own) {
            tries += 1;
            if tries.is_multiple_of(1024) {
                let holder = self.load(at);
                // Positions change last: what a dead holder left half done is not to be seen.
                if holder != 0 && !sys::thread_lives(holder) && self.swap_if(at, holder, own) {
                    break;
                }
            }
            if tries > 64 { sys::give_way() } else { std::hint::spin_loop() }
        }
        Locked { link: self, at }
    }

    #[inline]
    fn half(&self, sender: ConnectionEnd) -> usize {
        self.base + sender as usize * HALF
    }

    /// Moves a position of this end's, of which there is one writer at a time. In one order with looks at wishes: on a
    /// processor that would rather look before it is known to have moved, this is an eighth of a fence.
    #[inline]
    fn advance(&self, at: usize, len: usize) {
        let _ = self.shared.fetch_add(at, len as u64);
    }

    #[inline]
    fn load(&self, at: usize) -> u64 {
        self.shared.load_u64(at).unwrap_or(0)
    }

    #[inline]
    fn store(&self, at: usize, value: u64) {
        let _ = self.shared.store_u64(at, value);
    }
}

/// Whatever stands for these wishes in `Armed`.
const fn all(wishes: u64) -> u64 {
    wishes | wishes << DOZING | (wishes & WANT_DATA) << ALWAYS
}

/// What is locked.
#[derive(Clone, Copy, Debug)]
pub enum Side {
    Tx,
    Rx,
}

/// Held lock.
pub struct Locked<'a> {
    link: &'a Link,
    at: usize,
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.link.store(self.at, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Link, Link) {
        let shared = Buffer::anonymous(LINK_BYTES).unwrap();
        (Link::new(shared.clone(), 0, ConnectionEnd::Low).unwrap(), Link::new(shared, 0, ConnectionEnd::High).unwrap())
    }

    #[test]
    fn bytes_cross_both_ways_and_around_the_end() {
        let (low, high) = pair();
        let data: Vec<u8> = (0..100_003u32).map(|n| (n * 7 + n / 251) as u8).collect();
        for (from, to) in [(&low, &high), (&high, &low)] {
            let (mut sent, mut got) = (0usize, 0usize);
            let mut out = vec![0; 33_333];
            while got < 20 * data.len() {
                let n = from.write(&data[sent % data.len()..]).unwrap();
                sent += n;
                let n = to.peek(0, &mut out).unwrap();
                (0..n).for_each(|i| assert_eq!(out[i], data[(got + i) % data.len()]));
                to.consume(n);
                got += n;
            }
            assert_eq!(to.readable(), Ok(sent - got));
        }
    }

    #[test]
    fn a_full_ring_takes_no_more() {
        let (low, high) = pair();
        assert_eq!(low.write(&vec![1; RING + 5]), Ok(RING));
        assert_eq!((low.write(&[1]), high.readable()), (Ok(0), Ok(RING)));
        high.consume(3);
        assert_eq!(low.write(&[2; 10]), Ok(3));
    }

    #[test]
    fn wishes_are_taken_once() {
        let (low, high) = pair();
        assert!(!high.take_wish(WANT_DATA | WANT_ROOM));
        assert_eq!(low.arm(WANT_DATA), 0);
        assert!(!high.take_wish(WANT_ROOM));
        assert!(high.take_wish(WANT_DATA) && !high.take_wish(WANT_DATA));
    }

    #[test]
    fn a_wish_for_ever_is_not_taken() {
        let (low, high) = pair();
        low.wish_always(true);
        for _ in 0..2 {
            assert!(high.is_wished(WANT_DATA) && high.take_wish(WANT_DATA) && high.take_wish(WANT_DATA | WANT_ROOM));
            assert!(!high.is_wished(WANT_ROOM) && !high.take_wish(WANT_ROOM));
            low.arm(WANT_ROOM);
            assert!(high.take_wish(WANT_ROOM) && !high.take_wish(WANT_ROOM));
        }
        low.wish_always(false);
        assert!(!high.is_wished(WANT_DATA) && !high.take_wish(WANT_DATA));
    }

    #[test]
    fn who_dozes_needs_no_bell() {
        let (low, high) = pair();
        let soon = Some(sys::now() + 1_000_000);
        assert_eq!(low.doze(WANT_DATA, soon, true, || false), -(libc::ETIMEDOUT as isize));
        assert_eq!(low.doze(WANT_DATA, None, true, || true), 0);
        let woken = std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                // It may time out again and again until the other one comes.
                while low.doze(WANT_DATA, None, true, || low.readable() != Ok(0)) != 0 {}
                low.readable()
            });
            assert_eq!(high.write(&[1]), Ok(1));
            assert!(!high.take_wish(WANT_DATA), "no bell");
            sleeper.join().unwrap()
        });
        assert_eq!(woken, Ok(1));
        assert_eq!(low.arm(WANT_DATA | WANT_DATA << DOZING) & WANT_DATA, 0);
        assert!(high.take_wish(WANT_DATA), "for who sleeps elsewhere");
    }

    #[test]
    fn nonsense_in_the_words_is_noticed() {
        let (low, high) = pair();
        low.set_own(Word::Head, 5);
        assert_eq!(low.room(), Err(Broken));
        high.set_peer(Word::Head, 0);
        low.set_own(Word::Tail, u64::MAX);
        assert_eq!(high.readable(), Err(Broken));
        assert!(Link::new(Buffer::anonymous(LINK_BYTES).unwrap(), 4096, ConnectionEnd::Low).is_none());
    }

    #[test]
    fn what_else_is_in_a_section_can_be_left() {
        use std::os::unix::fs::FileExt;
        let section = Buffer::anonymous(2 * LINK_BYTES).unwrap();
        let at = section.addr();
        let link = Link::new(section, LINK_BYTES, ConnectionEnd::Low).unwrap();
        // This file shows what a process may not read, too: there are other pages then.
        let memory = std::fs::File::options().read(true).write(true).open("/proc/self/mem").unwrap();
        let places = [0, LINK_BYTES - 8, 2 * LINK_BYTES - 8].map(|offset| at + offset as u64);
        places.iter().for_each(|at| memory.write_all_at(&[7; 8], *at).unwrap());
        link.add_own(Word::Holders, 3);
        link.leave_the_rest();
        let now = places.map(|at| {
            let mut bytes = [0; 8];
            memory.read_exact_at(&mut bytes, at).is_ok() && bytes == [7; 8]
        });
        assert_eq!(now, [false, false, true]);
        assert_eq!(link.own(Word::Holders), 3);
    }

    #[test]
    fn processes_that_have_died_hold_nothing() {
        let (low, high) = pair();
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let process = |id: u32| sys::process() & !u64::from(u32::MAX) | u64::from(id);
        low.add_own(Word::Holders, 2);
        low.join(sys::process());
        low.join(process(child.id()));
        // It has ended, and nobody has been told.
        while low.is_shared() {
            std::thread::yield_now();
        }
        assert!(child.wait().unwrap().success() && !high.is_shared());
        assert_eq!((low.own(Word::Holders), low.part(sys::process()), low.own(Word::Holders)), (1, 1, 0));
    }

    #[test]
    fn a_lock_of_the_dead_is_taken_over() {
        let (low, _) = pair();
        let dead = std::thread::spawn(sys::thread_id).join().unwrap();
        low.set_own(Word::TxLock, dead);
        drop(low.lock(Side::Tx));
        assert_eq!(low.own(Word::TxLock), 0);
    }

    /// The peer may write there what it likes.
    #[test]
    fn a_lock_of_a_thread_that_is_none_of_ours_is_taken_over() {
        let (low, high) = pair();
        low.set_own(Word::TxLock, 1);
        high.set_own(Word::RxLock, u64::MAX);
        drop(low.lock(Side::Tx));
        drop(low.lock(Side::Rx));
        assert_eq!((low.own(Word::TxLock), low.peer(Word::RxLock)), (0, 0));
        // Our own threads' stay.
        low.set_own(Word::TxLock, sys::thread_id());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| drop(low.lock(Side::Tx)));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!other.is_finished());
            low.set_own(Word::TxLock, 0);
        });
    }
}

//! Raw probes: what the machine gives without Remora, to hold Remora's figures against in the same run.
//!
//! Each runs for [`Probe::time`], with two threads at most, pinned to the first two cores that the caller may use. A
//! latency is the median of short batches of round trips, so that what a neighbour disturbed for a moment does not
//! count. A rate is all that was moved over all the time it took.

pub mod memory;
pub mod system;

use std::cell::RefCell;
use std::hint::black_box;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use remora_real::link::{set_buffers, set_int_option};
use remora_real::{on_core, pin};

use crate::stats::median;

/// Round trips in a batch: few, yet more than a look at the clock costs.
const ROUND_TRIPS: u32 = 16;

/// Bytes of one copy.
const BLOCK: usize = 64 << 10;
/// Bytes of a page, by whose low bits of an address cores tell whether a load may wait for a store.
const PAGE: usize = 4096;

/// Slots in a ring of the ring probe, and in one that is to be filled while the other core empties it.
const SHORT: usize = 64;
const LONG: usize = 1024;
/// Lines one way that count as one: many more than may be under way.
const LINES: u64 = 4 * LONG as u64;

/// The longest UDP payload over IPv4, and the most segments that one send is split into.
const MAX_PAYLOAD: usize = 65507;
const MAX_SEGMENTS: usize = 64;

/// Bytes of a stream under way at most: more would leave the caches, much less would let a core wait.
const MAX_WINDOW: u64 = 1 << 20;

/// How to measure.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// How long each probe runs.
    pub time: Duration,
}

impl Default for Probe {
    /// 250 ms a probe.
    fn default() -> Probe {
        Probe { time: Duration::from_millis(250) }
    }
}

/// What [`Probe::udp_stream`] moved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamRate {
    /// UDP payload in bytes a second.
    pub bytes_per_s: f64,
    /// Datagrams a second, as they would count on a wire.
    pub packets_per_s: f64,
}

impl Probe {
    /// One word passed from core to core and back: nanoseconds a round trip.
    pub fn cache_line_ns(&self) -> f64 {
        let line = Line::default();
        let turn = &line.0[0];
        let mut pings = 0;
        let ping = || {
            turn.store(pings + 1, Ordering::Release);
            let mut spin = Spin::default();
            while turn.load(Ordering::Acquire) != pings + 2 {
                spin.once();
            }
            pings += 2;
        };
        let pong = || {
            let seen = turn.load(Ordering::Acquire);
            let mine = seen % 2 == 1;
            if mine {
                turn.store(seen + 1, Ordering::Release);
            }
            mine
        };
        self.round_trip_ns(ping, pong)
    }

    /// A line of 64 bytes, 56 of them data, written to a ring and copied out on the other core, and one back the same
    /// way: nanoseconds a round trip.
    pub fn ring_ns(&self) -> f64 {
        let (there, back) = (Ring::default(), Ring::default());
        let (mut pings, mut pongs) = (0, 0);
        let ping = || {
            there.put(pings, &[pings; 7]);
            let mut spin = Spin::default();
            while back.get(pings).is_none() {
                spin.once();
            }
            pings += 1;
        };
        let pong = || {
            let Some(data) = there.get(pongs) else { return false };
            back.put(pongs, &data);
            pongs += 1;
            true
        };
        self.round_trip_ns(ping, pong)
    }

    /// Two threads that wake each other, one of them always asleep: nanoseconds a round trip.
    pub fn wake_ns(&self) -> f64 {
        let (stop, turns) = (AtomicBool::new(false), AtomicU64::new(0));
        let caller = thread::current();
        thread::scope(|scope| {
            let other = scope.spawn(|| {
                pin(1);
                while !stop.load(Ordering::Acquire) {
                    // Odd: it is this one's turn.
                    if turns.load(Ordering::Acquire) % 2 == 1 {
                        turns.fetch_add(1, Ordering::Release);
                        caller.unpark();
                    }
                    thread::park();
                }
            });
            let time = on_core(0, || {
                let (start, mut count) = (Instant::now(), 0u32);
                while start.elapsed() < self.time || count == 0 {
                    for _ in 0..ROUND_TRIPS {
                        turns.fetch_add(1, Ordering::Release);
                        other.thread().unpark();
                        while turns.load(Ordering::Acquire) % 2 == 1 {
                            thread::park();
                        }
                    }
                    count += ROUND_TRIPS;
                }
                start.elapsed().as_nanos() as f64 / f64::from(count)
            });
            stop.store(true, Ordering::Release);
            other.thread().unpark();
            time
        })
    }

    /// Such lines one way, each shown to the other core by itself and copied out there: lines a second.
    pub fn ring_per_s(&self) -> f64 {
        let (ring, taken) = (Box::<LongRing>::default(), Line::default());
        let (mut put, mut got, mut room) = (0, 0, 0);
        let ping = || {
            for _ in 0..LINES {
                let mut spin = Spin::default();
                while put - room >= ring.len() {
                    room = taken.0[0].load(Ordering::Acquire);
                    spin.once();
                }
                ring.put(put, &[put; 7]);
                put += 1;
            }
        };
        let pong = || {
            let Some(data) = ring.get(got) else { return false };
            std::hint::black_box(data);
            got += 1;
            // Who writes need not look each time.
            if got % (ring.len() / 8) == 0 {
                taken.0[0].store(got, Ordering::Release);
            }
            true
        };
        LINES as f64 * 1e9 / self.round_trip_ns(ping, pong)
    }

    /// A datagram of `payload` bytes over the loopback interface and back, both ends polling unconnected sockets:
    /// nanoseconds a round trip.
    ///
    /// # Errors
    ///
    /// What the sockets say; `TimedOut` if no answer comes.
    pub fn udp_ns(&self, payload: usize) -> io::Result<f64> {
        let (a, b) = (socket()?, socket()?);
        let (to_a, to_b) = (a.local_addr()?, b.local_addr()?);
        let message = vec![0x55; payload];
        let mut answer = vec![0; payload];
        let failure = RefCell::new(None);
        let ping = || {
            if failure.borrow().is_some() {
                return;
            }
            let mut attempt = a.send_to(&message, to_b);
            let mut spin = Spin::default();
            while attempt.is_ok() {
                match a.recv_from(&mut answer) {
                    Ok(_) => return,
                    Err(e) if e.kind() != io::ErrorKind::WouldBlock => attempt = Err(e),
                    Err(_) if spin.is_hopeless() => attempt = Err(io::ErrorKind::TimedOut.into()),
                    Err(_) => spin.once(),
                }
            }
            *failure.borrow_mut() = attempt.err();
        };
        let mut echo = vec![0; payload];
        let pong = || {
            let Ok((len, _)) = b.recv_from(&mut echo) else { return false };
            // An answer that is lost shows at the other end.
            b.send_to(&echo[..len], to_a).is_ok()
        };
        let ns = self.round_trip_ns(ping, pong);
        failure.into_inner().map_or(Ok(ns), Err)
    }

    /// Datagrams of `datagram` bytes over the loopback interface, received coalesced, as fast as one sending and one
    /// receiving core go. One send has as many as fit into `message` bytes and as the kernel segments.
    ///
    /// # Errors
    ///
    /// What the sockets say; `InvalidInput` if a send could not hold one datagram or `datagram` is 0.
    pub fn udp_stream(&self, datagram: usize, message: usize) -> io::Result<StreamRate> {
        if !(1..=MAX_PAYLOAD).contains(&datagram) || datagram > message {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "datagrams of 1 to 65507 bytes, within a message"));
        }
        let (sender, receiver) = (socket()?, socket()?);
        set_int_option(&sender, libc::SOL_UDP, libc::UDP_SEGMENT, datagram as i32)?;
        set_int_option(&receiver, libc::SOL_UDP, libc::UDP_GRO, 1)?;
        let window = (rustix::net::sockopt::socket_recv_buffer_size(&receiver)? as u64 / 4).min(MAX_WINDOW);
        let to = receiver.local_addr()?;
        let message = vec![0x55; (message.min(MAX_PAYLOAD) / datagram).min(MAX_SEGMENTS) * datagram];
        let (received, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let rate = thread::scope(|scope| {
            let sending = scope.spawn(|| {
                pin(1);
                let result = send_stream(&sender, to, &message, window, &received, &stop);
                stop.store(true, Ordering::Relaxed);
                result
            });
            let rate = on_core(0, || self.receive_stream(&receiver, &received, &stop));
            stop.store(true, Ordering::Relaxed);
            sending.join().unwrap_or_else(|_| Err(io::Error::other("the sending thread panicked")))?;
            rate
        })?;
        Ok(StreamRate { bytes_per_s: rate, packets_per_s: rate / datagram as f64 })
    }

    /// Copies of 64 KB by one core, from one half of `working_set` bytes to the other: bytes a second. The working set
    /// is at least two blocks, which stay in the cache.
    pub fn memcpy_bytes_per_s(&self, working_set: usize) -> f64 {
        let blocks = (working_set / 2 / BLOCK).max(1);
        let len = blocks * BLOCK;
        let mut room = vec![1u8; 2 * len + 2 * PAGE];
        // Where it is quickest: from a page's beginning to another's middle. With both at nearly the same place of their pages some
        // cores take a load for one of what was just stored, and copy at a tenth of the rate.
        let first = room.as_ptr().align_offset(PAGE);
        let (from, to) = room[first..].split_at_mut(len + PAGE / 2);
        on_core(0, || {
            let (start, mut copied, mut at) = (Instant::now(), 0, 0);
            while copied == 0 || start.elapsed() < self.time {
                // A megabyte between looks at the clock.
                for _ in 0..16 {
                    let range = at * BLOCK..(at + 1) * BLOCK;
                    black_box(&mut to[range.clone()]).copy_from_slice(black_box(&from[range]));
                    at = (at + 1) % blocks;
                    copied += BLOCK;
                }
            }
            copied as f64 / start.elapsed().as_secs_f64()
        })
    }

    /// The median time of a round trip. `ping` does a whole one; `pong`, on another core, answers if there is something
    /// to answer and says whether there was.
    fn round_trip_ns(&self, mut ping: impl FnMut(), mut pong: impl FnMut() -> bool + Send) -> f64 {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                pin(1);
                let mut spin = Spin::default();
                while !stop.load(Ordering::Relaxed) {
                    if pong() {
                        spin = Spin::default();
                    }
                    spin.once();
                }
            });
            let mut times = Vec::new();
            on_core(0, || {
                let start = Instant::now();
                // The first round trip waits for the other thread.
                ping();
                while times.is_empty() || start.elapsed() < self.time {
                    let before = Instant::now();
                    (0..ROUND_TRIPS).for_each(|_| ping());
                    times.push(before.elapsed().as_nanos() as f64 / f64::from(ROUND_TRIPS));
                }
            });
            stop.store(true, Ordering::Relaxed);
            median(times)
        })
    }

    /// Bytes a second, from the first datagram on.
    fn receive_stream(&self, socket: &UdpSocket, received: &AtomicU64, stop: &AtomicBool) -> io::Result<f64> {
        let mut buffer = vec![0; 1 << 16];
        let (mut first, mut total) = (None, 0);
        while !stop.load(Ordering::Relaxed) {
            match socket.recv_from(&mut buffer) {
                Ok((len, _)) => total += len as u64,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                Err(e) => return Err(e),
            }
            received.store(total, Ordering::Relaxed);
            let (start, before) = *first.get_or_insert((Instant::now(), total));
            if total > before && start.elapsed() >= self.time {
                return Ok((total - before) as f64 / start.elapsed().as_secs_f64());
            }
        }
        Err(io::Error::other("the sender stopped"))
    }
}

/// Sends `message` again and again until `stop`, with at most `window` bytes not yet received before each.
fn send_stream(
    socket: &UdpSocket,
    to: SocketAddr,
    message: &[u8],
    window: u64,
    received: &AtomicU64,
    stop: &AtomicBool,
) -> io::Result<()> {
    // Bytes sent, less those given up as lost when nothing was received for long.
    let mut sent = 0;
    let mut spin = Spin::default();
    while !stop.load(Ordering::Relaxed) {
        let got = received.load(Ordering::Relaxed);
        if sent > got + window {
            spin.once();
            if spin.is_hopeless() {
                sent = got;
            }
            continue;
        }
        spin = Spin::default();
        match socket.send_to(message, to) {
            Ok(len) => sent += len as u64,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// An unconnected, non-blocking socket on loopback with all the buffer that the system allows, up to 4 MB.
fn socket() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_nonblocking(true)?;
    set_buffers(&socket)?;
    Ok(socket)
}

#[derive(Default)]
#[repr(align(64))]
struct Line([AtomicU64; 8]);

/// Slots of one line each: seven words of data, then the number of the message, from 1.
struct SlotRing<const SLOTS: usize>([Line; SLOTS]);
type Ring = SlotRing<SHORT>;
type LongRing = SlotRing<LONG>;

impl<const SLOTS: usize> Default for SlotRing<SLOTS> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Line::default()))
    }
}

impl<const SLOTS: usize> SlotRing<SLOTS> {
    fn len(&self) -> u64 {
        SLOTS as u64
    }

    fn put(&self, n: u64, data: &[u64; 7]) {
        let Line([words @ .., number]) = &self.0[n as usize % SLOTS];
        for (word, value) in words.iter().zip(data) {
            word.store(*value, Ordering::Relaxed);
        }
        number.store(n + 1, Ordering::Release);
    }

    fn get(&self, n: u64) -> Option<[u64; 7]> {
        let Line([words @ .., number]) = &self.0[n as usize % SLOTS];
        (number.load(Ordering::Acquire) == n + 1).then(|| std::array::from_fn(|i| words[i].load(Ordering::Relaxed)))
    }
}

/// Waiting without sleep, unless it takes so long that the other thread probably has no core.
#[derive(Default)]
struct Spin(u32);

impl Spin {
    #[inline]
    fn once(&mut self) {
        self.0 = self.0.saturating_add(1);
        if self.0 > 100_000 {
            thread::yield_now();
        }
    }

    fn is_hopeless(&self) -> bool {
        self.0 > 1_000_000
    }
}

/// Runs `work` on so many threads at once, each on a core; it is told which, and waits for the others when it is ready.
pub fn on_cores<R: Send>(threads: usize, work: impl Fn(usize, &Barrier) -> R + Sync) -> Vec<R> {
    let (work, together) = (&work, &Barrier::new(threads));
    thread::scope(|scope| {
        let start = |n: usize| scope.spawn(move || on_core(n, || work(n, together)));
        let threads: Vec<_> = (0..threads).map(start).collect();
        // One that panicked is to be heard of.
        threads.into_iter().map(|t| t.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::sched_getaffinity;

    #[test]
    fn every_probe_gives_a_figure() {
        let probe = Probe { time: Duration::from_millis(2) };
        let before = sched_getaffinity(None).unwrap();
        let stream = probe.udp_stream(4112, 64 << 10).unwrap();
        let figures = [
            probe.cache_line_ns(),
            probe.ring_ns(),
            probe.ring_per_s(),
            probe.wake_ns(),
            probe.udp_ns(64).unwrap(),
            probe.memcpy_bytes_per_s(0),
            probe.memcpy_bytes_per_s(1 << 22),
            stream.bytes_per_s,
            probe.udp_stream(96, 6144).unwrap().packets_per_s,
        ];
        for figure in figures {
            assert!(figure.is_finite() && figure > 0.0, "{figures:?}");
        }
        assert!((stream.bytes_per_s / stream.packets_per_s - 4112.0).abs() < 1e-6);
        assert_eq!(sched_getaffinity(None).unwrap(), before, "the caller's affinity is given back");
        assert!(probe.udp_stream(0, 100).is_err() && probe.udp_stream(200, 100).is_err());
    }
}

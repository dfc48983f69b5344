//! What memory gives: latency by working set, misses that overlap, and rates of reads, writes and checksums.

use std::hint::black_box;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use remora_memory::Buffer;
use remora_real::{on_core, pin};
use remora_wire::icrc::IcrcFlow;

use super::{Spin, on_cores};
use crate::stats::median;

/// Bytes between two words of a chase.
const LINE: usize = 64;

/// Loads between looks at the clock: the median of such short pieces is that of a core that nobody took away.
const LOADS: usize = 512;

/// Bytes between looks at the clock.
const PIECE: usize = 64 << 10;

/// A chain of lines in random order through a buffer: each word is the offset of the next one.
pub struct Chase {
    buffer: Buffer,
    at: Vec<usize>,
}

impl Chase {
    /// A cycle through all lines of `working_set` bytes, on the kind of pages that regions have.
    ///
    /// # Errors
    ///
    /// What mapping memory says.
    pub fn new(working_set: usize) -> io::Result<Chase> {
        let lines = (working_set / LINE).max(2);
        let buffer = Buffer::anonymous(lines * LINE)?;
        // Sattolo's algorithm makes one cycle of all lines; a multiplicative generator is random enough.
        let mut next: Vec<u32> = (0..lines as u32).collect();
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        for i in (1..lines).rev() {
            state = state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
            next.swap(i, ((u128::from(state) * i as u128) >> 64) as usize);
        }
        for (line, next) in next.iter().enumerate() {
            let _ = buffer.store_u64(line * LINE, u64::from(*next) * LINE as u64);
        }
        Ok(Chase { buffer, at: Vec::new() })
    }

    /// Time of a load with `chains` dependent chains under way at once, for about `time`: nanoseconds a load.
    pub fn ns_per_load(&mut self, chains: usize, time: Duration) -> f64 {
        let lines = self.buffer.len() / LINE;
        self.at.clear();
        self.at.extend((0..chains).map(|chain| chain * lines / chains * LINE));
        let Self { buffer, at } = self;
        on_core(0, || {
            // What fits into a cache is there after one round.
            walk(buffer, at, lines.min(1 << 16).div_ceil(chains));
            let (start, mut times) = (Instant::now(), Vec::new());
            while times.is_empty() || start.elapsed() < time {
                let before = Instant::now();
                let loads = walk(buffer, at, LOADS.div_ceil(chains));
                times.push(before.elapsed().as_nanos() as f64 / loads as f64);
            }
            median(times)
        })
    }
}

/// Moves every chain on by `steps`. Returns how many loads that were.
fn walk(buffer: &Buffer, at: &mut [usize], steps: usize) -> usize {
    // A single chain lives in a register.
    if let [one] = at {
        for _ in 0..steps {
            *one = load(buffer, *one);
        }
    } else {
        for _ in 0..steps {
            for one in at.iter_mut() {
                *one = load(buffer, *one);
            }
        }
    }
    steps * black_box(at).len()
}

#[inline]
fn load(buffer: &Buffer, at: usize) -> usize {
    buffer.load_u64(at).unwrap_or(0) as usize
}

/// Bytes a second that one core sums up from a working set.
pub fn read_bytes_per_s(working_set: usize, time: Duration) -> f64 {
    rate(PIECE, time, summing(working_set))
}

/// Bytes a second that all cores together sum up, each from a working set of its own, at the same time.
pub fn read_all_bytes_per_s(working_set: usize, time: Duration) -> f64 {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let each = on_cores(cores, |_, together| {
        let work = summing(working_set);
        together.wait();
        // On the first core that it may use: its own.
        rate(PIECE, time, work)
    });
    each.into_iter().sum()
}

/// Sums up a piece of a working set, and another one with each call.
fn summing(working_set: usize) -> impl FnMut() {
    let words = vec![1u64; working_set.max(PIECE) / 8];
    let mut at = 0;
    move || {
        let piece = &words[at..at + PIECE / 8];
        black_box(piece.iter().fold(0u64, |sum, word| sum.wrapping_add(*word)));
        at = if at + PIECE / 4 <= words.len() { at + PIECE / 8 } else { 0 };
    }
}

/// Bytes a second that one core fills a working set with.
pub fn write_bytes_per_s(working_set: usize, time: Duration) -> f64 {
    let mut bytes = vec![1u8; working_set.max(PIECE) / PIECE * PIECE];
    let mut at = 0;
    rate(PIECE, time, || {
        black_box(&mut bytes[at..at + PIECE]).fill(at as u8);
        at = (at + PIECE) % bytes.len();
    })
}

/// Bytes a second of the CRC-64 of checked objects, over objects of `len` bytes in cache.
pub fn crc64_bytes_per_s(len: usize, time: Duration) -> f64 {
    let object = vec![7u8; len];
    rate(len, time, || {
        black_box(remora_kernel::crc64(black_box(&object)));
    })
}

/// Bytes a second at which one core rewrites `len` bytes that another has read, and at which that one then reads them
/// again, with the copies that regions are written and read with.
///
/// # Errors
///
/// What mapping memory says.
pub fn shared_bytes_per_s(len: usize, time: Duration) -> io::Result<(f64, f64)> {
    let (buffer, turn, stop) = (Buffer::anonymous(len)?, AtomicU64::new(0), AtomicBool::new(false));
    let wait_for = |turns: u64| {
        let mut spin = Spin::default();
        while turn.load(Ordering::Acquire) != turns && !stop.load(Ordering::Relaxed) {
            spin.once();
        }
    };
    let timed = |times: &mut Vec<f64>, copy: &mut dyn FnMut()| {
        let before = Instant::now();
        copy();
        times.push(before.elapsed().as_secs_f64());
    };
    let (writes, reads) = thread::scope(|scope| {
        let reading = scope.spawn(|| {
            pin(1);
            let (mut bytes, mut times, mut turns) = (vec![0; len], Vec::new(), 1);
            // Once at least: the writer may be done before this core is there.
            while times.is_empty() || !stop.load(Ordering::Relaxed) {
                wait_for(turns);
                // As long as the buffer: in bounds.
                timed(&mut times, &mut || _ = buffer.read(0, black_box(&mut bytes)));
                turn.store(turns + 1, Ordering::Release);
                turns += 2;
            }
            times
        });
        let writes = on_core(0, || {
            let (mut bytes, mut times, start) = (vec![0; len], Vec::new(), Instant::now());
            while times.is_empty() || start.elapsed() < time {
                let turns = 2 * times.len() as u64;
                wait_for(turns);
                bytes.fill(turns as u8);
                timed(&mut times, &mut || _ = buffer.write(0, black_box(&bytes)));
                turn.store(turns + 1, Ordering::Release);
            }
            stop.store(true, Ordering::Relaxed);
            times
        });
        // A reader that panicked leaves no figure.
        (writes, reading.join().unwrap_or_default())
    });
    Ok((len as f64 / median(writes), len as f64 / median(reads)))
}

/// Bytes a second of the ICRC over packets of `len` bytes in cache.
pub fn icrc_bytes_per_s(len: usize, time: Duration) -> f64 {
    let packet = vec![7u8; len];
    let icrc = IcrcFlow::v4([127, 0, 0, 1].into(), [127, 0, 0, 2].into(), 49152, 4791);
    rate(len, time, || {
        black_box(icrc.compute(black_box(1), black_box(&packet)));
    })
}

/// Bytes a second of `work`, which does `bytes` each time and is done in the median of short pieces.
fn rate(bytes: usize, time: Duration, mut work: impl FnMut()) -> f64 {
    on_core(0, || {
        let runs = (PIECE / bytes).max(1);
        work();
        let (start, mut times) = (Instant::now(), Vec::new());
        while times.is_empty() || start.elapsed() < time {
            let before = Instant::now();
            (0..runs).for_each(|_| work());
            times.push(before.elapsed().as_secs_f64());
        }
        (runs * bytes) as f64 / median(times)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chase_visits_every_line_once() {
        let chase = Chase::new(64 << 10).unwrap();
        let (mut at, mut seen) = (0, vec![false; 1024]);
        for _ in 0..1024 {
            assert!(!std::mem::replace(&mut seen[at / LINE], true));
            at = load(&chase.buffer, at);
        }
        assert_eq!(at, 0);
    }

    #[test]
    fn figures_are_positive() {
        let time = Duration::from_millis(1);
        let mut chase = Chase::new(1 << 16).unwrap();
        let (write, read) = shared_bytes_per_s(4096, time).unwrap();
        let figures = [
            write,
            read,
            chase.ns_per_load(1, time),
            chase.ns_per_load(8, time),
            read_bytes_per_s(1 << 16, time),
            write_bytes_per_s(1 << 16, time),
            crc64_bytes_per_s(4096, time),
            icrc_bytes_per_s(4112, time),
        ];
        assert!(figures.iter().all(|figure| figure.is_finite() && *figure > 0.0), "{figures:?}");
    }
}

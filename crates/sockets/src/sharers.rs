//! Which processes have a socket that has no rings yet: such a one stays the kernel's while there are several.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::sys;

/// How many sockets may be so shared at a time, and of how many processes it is known which they are.
const CELLS: usize = 16384;
const PROCESSES: usize = 7;
/// Looks at a shared socket between two at whether all who have it live.
const RARELY: u32 = 64;
/// How long none is looked for once all are taken, nanoseconds.
const PAUSE: u64 = 1_000_000_000;

/// The processes that have a socket, in memory that they share.
#[repr(C)]
pub struct Sharers {
    count: AtomicU32,
    looks: AtomicU32,
    /// Those that are known, as of [`sys::process`].
    processes: [AtomicU64; PROCESSES],
}

static CELL: AtomicPtr<Sharers> = AtomicPtr::new(null_mut());
static NOT_BEFORE: AtomicU64 = AtomicU64::new(0);

/// A program begins: what its children are to share has its place.
pub fn begin() {
    // SAFETY: memory of our own, shared with children.
    let page = unsafe {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        libc::mmap(null_mut(), CELLS * size_of::<Sharers>(), prot, flags, -1, 0)
    };
    if page != libc::MAP_FAILED {
        CELL.store(page.cast(), Ordering::Release);
    }
}

/// All of them.
fn cells() -> impl Iterator<Item = &'static Sharers> {
    let first = CELL.load(Ordering::Acquire);
    let count = if first.is_null() { 0 } else { CELLS };
    // SAFETY: within the page, which is never unmapped; zeros are a cell, and all of it is atomic.
    (0..count).map(move |index| unsafe { &*first.wrapping_add(index) })
}

/// One that nobody has, of this process alone.
pub fn alone() -> *mut Sharers {
    take().inspect(|cell| cell.join()).map_or(null_mut(), |cell| std::ptr::from_ref(cell).cast_mut())
}

/// A word that children share, for other things; 0 gives it back.
pub fn word() -> Option<&'static AtomicU32> {
    take().map(|cell| &cell.count)
}

fn take() -> Option<&'static Sharers> {
    let take = || cells().find(|cell| cell.count.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok());
    take().or_else(|| {
        // Some are left of processes that have ended without closing what they had.
        let now = sys::now();
        let not_yet = NOT_BEFORE.load(Ordering::Relaxed) > now;
        if not_yet {
            return None;
        }
        cells().for_each(Sharers::reap);
        let found = take();
        if found.is_none() {
            NOT_BEFORE.store(now + PAUSE, Ordering::Relaxed);
        }
        found
    })
}

impl Sharers {
    /// One process more is to have it.
    pub fn expect(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// It does not come to be.
    pub fn expect_not(&self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }

    /// This process is the one that was expected.
    pub fn join(&self) {
        let own = sys::process();
        let take = |process: &&AtomicU64| process.compare_exchange(0, own, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let _ = self.processes.iter().find(take);
    }

    /// This process has it no more.
    pub fn part(&self) {
        let own = sys::process();
        let leave =
            |process: &&AtomicU64| process.compare_exchange(own, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let _ = self.processes.iter().find(leave);
        self.count.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether other processes have it, too.
    pub fn are_several(&self) -> bool {
        if self.count.load(Ordering::Acquire) <= 1 {
            return false;
        }
        if self.looks.fetch_add(1, Ordering::Relaxed).is_multiple_of(RARELY) {
            self.reap();
        }
        self.count.load(Ordering::Acquire) > 1
    }

    /// Those that have ended have it no more.
    fn reap(&self) {
        for place in &self.processes {
            let process = place.load(Ordering::Acquire);
            if process != 0
                && sys::is_dead(process)
                && place.compare_exchange(process, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                self.count.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
}

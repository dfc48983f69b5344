//! Caches, translations and memory as cores reach them that wait for their loads: small caches of each core, one that few
//! share, one that all share, and memory behind. What one core has written, another has to fetch from it.
//!
//! Lines and translations are real ones: which level an access finds its line at follows from the accesses before it. A
//! page whose translation is not held costs a walk: the entry of its directory and then its own, through the caches that
//! data go through, so that many pages push each other's entries out.

use std::collections::HashMap;

use super::cache::{Cache, CacheAccess, CacheParams};
use super::memory::{MemoryChannels, MemoryParams};
use crate::platform;
use crate::resource::{Order, Pool, Usage};
use crate::time::Ps;

/// What such a hierarchy is like. A time is that of a load which ends there, what it takes before included.
#[derive(Clone, Debug, PartialEq)]
pub struct HierarchyParams {
    /// Cores.
    pub cores: usize,
    /// The first level, of each core.
    pub first: CacheParams,
    /// The second level.
    pub second: CacheParams,
    /// Cores that share one of those.
    pub sharing: usize,
    /// The last level, of all.
    pub last: CacheParams,
    /// Memory.
    pub memory: MemoryParams,
    /// Misses that one core has under way.
    pub misses: usize,
    /// Pages whose translations a core holds.
    pub translations: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// A line that another core has changed.
    pub transfer_ps: u64,
    /// One comparison of a search: the branch that goes the other way half of the time.
    pub compare_ps: u64,
    /// How its queues are served.
    pub order: Order,
}

impl HierarchyParams {
    /// Of cores like these with private caches in front of what a platform has.
    pub fn new(
        caches: &platform::PrivateCaches,
        core: &platform::Core,
        last: CacheParams,
        memory: MemoryParams,
    ) -> Self {
        let level = |size_bytes, hit_ps, ways| CacheParams { size_bytes, line_bytes: LINE, ways, hit_ps };
        Self {
            cores: core.cores as usize,
            first: level(caches.l1_size, Ps::cycles(caches.l1_cycles, core.clock).0, 4),
            second: level(caches.l2_size, Ps::cycles(caches.l2_cycles, core.clock).0, 16),
            sharing: caches.l2_cores as usize,
            last,
            memory,
            misses: core.misses as usize,
            translations: caches.translations,
            page_bytes: caches.page,
            transfer_ps: caches.transfer,
            compare_ps: Ps::cycles(caches.compare_cycles, core.clock).0,
            order: core.order,
        }
    }
}

/// Bytes of a line.
const LINE: u64 = 64;
/// Bytes of a translation, and how many a directory has.
const ENTRY: u64 = 8;
const DIRECTORY: u64 = 512;
/// Where page tables lie: addresses that nothing else has.
const TABLES: u64 = 1 << 60;
const DIRECTORIES: u64 = 3 << 60;

/// Who has a line that was written.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    /// Cores that have it as it is, by bits.
    holders: u64,
    /// When it has reached the one that asked for it last.
    free: Ps,
}

/// A hierarchy.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    params: HierarchyParams,
    first: Vec<Cache>,
    second: Vec<Cache>,
    last: Cache,
    memory: MemoryChannels,
    misses: Vec<Pool>,
    pages: Vec<Cache>,
    /// Lines that somebody has written.
    written: HashMap<u64, Written>,
    /// A state of random bits for the way that a search takes.
    ways: u64,
    transfers: u64,
    /// Caches fill, and nothing takes time.
    warming: bool,
}

impl Hierarchy {
    /// With nothing in it.
    pub fn new(params: &HierarchyParams) -> Self {
        let cores = params.cores.max(1);
        let page_bytes = params.page_bytes.max(1);
        let pages = CacheParams {
            size_bytes: params.translations.saturating_mul(page_bytes),
            line_bytes: page_bytes,
            ways: 4,
            hit_ps: 0,
        };
        Self {
            first: vec![Cache::new(&params.first); cores],
            second: vec![Cache::new(&params.second); cores.div_ceil(params.sharing.max(1))],
            last: Cache::new(&params.last),
            memory: MemoryChannels::new(&params.memory),
            misses: vec![Pool::new(params.misses).ordered(params.order); cores],
            pages: vec![Cache::new(&pages); cores],
            written: HashMap::new(),
            ways: 1,
            transfers: 0,
            warming: false,
            params: params.clone(),
        }
    }

    /// A core accesses one line, at any address in it: when the line is there.
    pub fn access(&mut self, core: usize, at: Ps, address: u64, access: CacheAccess) -> Ps {
        let at = self.translate(core, at, address);
        let line = address / LINE;
        let here = self.find(core, at, line, access);
        self.agree(core, (at, here), line, access)
    }

    /// A core accesses bytes whose lines do not hang on each other: when the first and the last of them are there.
    pub fn access_all(&mut self, core: usize, at: Ps, address: u64, bytes: u64, access: CacheAccess) -> (Ps, Ps) {
        let (mut first, mut last) = (None, at);
        for line in address / LINE..=address.saturating_add(bytes.max(1) - 1) / LINE {
            let here = self.access(core, at, line * LINE, access);
            first = first.or(Some(here));
            last = last.max(here);
        }
        (first.unwrap_or(last), last)
    }

    /// A core searches a sorted node of so many bytes, the first half of them keys: each line that it looks at hangs on
    /// the one before, and the last is the value's. The way that it takes is a random one.
    pub fn search(&mut self, core: usize, at: Ps, address: u64, bytes: u64) -> Ps {
        let compare = Ps(self.params.compare_ps);
        let mut at = self.access(core, at, address, CacheAccess::Load);
        let (mut low, mut high) = (0, bytes / 16);
        let mut bits = self.draw();
        while low < high {
            let middle = (low + high) / 2;
            at = self.access(core, at, address + middle * 8, CacheAccess::Load) + compare;
            if bits & 1 == 0 {
                low = middle + 1
            } else {
                high = middle
            }
            bits >>= 1;
        }
        self.access(core, at, address + bytes / 2 + low.min((bytes / 16).saturating_sub(1)) * 8, CacheAccess::Load)
    }

    /// As [`search`](Self::search), before anything is measured: caches are then as they are after a while.
    pub fn warm(&mut self, core: usize, address: u64, bytes: u64) {
        self.warming = true;
        self.search(core, Ps::ZERO, address, bytes);
        self.warming = false;
    }

    fn draw(&mut self) -> u64 {
        // xorshift64: the same in every run.
        self.ways ^= self.ways << 13;
        self.ways ^= self.ways >> 7;
        self.ways ^= self.ways << 17;
        self.ways >> 20
    }

    /// When a core has the translation of an address.
    fn translate(&mut self, core: usize, at: Ps, address: u64) -> Ps {
        let page = address / self.params.page_bytes.max(1);
        if self.pages[core].access(page, CacheAccess::Load).hit {
            return at;
        }
        let at = self.beyond_first(core, at, (DIRECTORIES + page / DIRECTORY * ENTRY) / LINE);
        self.beyond_first(core, at, (TABLES + page * ENTRY) / LINE)
    }

    fn find(&mut self, core: usize, at: Ps, line: u64, access: CacheAccess) -> Ps {
        if self.first[core].access(line, access).hit {
            return at + self.first[core].hit_time();
        }
        self.beyond_first(core, at, line)
    }

    fn beyond_first(&mut self, core: usize, at: Ps, line: u64) -> Ps {
        let second = &mut self.second[core / self.params.sharing.max(1)];
        if second.access(line, CacheAccess::Load).hit {
            return at + second.hit_time();
        }
        if self.last.access(line, CacheAccess::Load).hit {
            return at + self.last.hit_time();
        }
        if self.warming {
            return at;
        }
        let start = self.misses[core].acquire(at);
        let done = self.memory.read(start, line * LINE, LINE).1;
        self.misses[core].release(start, done);
        done
    }

    /// Lets cores agree on a line that one of them writes: what another has changed is fetched from it, one after the
    /// other.
    fn agree(&mut self, core: usize, (at, here): (Ps, Ps), line: u64, access: CacheAccess) -> Ps {
        let (bit, writes) = (1u64 << (core % 64), access == CacheAccess::Store);
        let transfer = Ps(self.params.transfer_ps);
        let known = match writes {
            true => self.written.entry(line).or_insert(Written { holders: bit, free: Ps::ZERO }),
            false => match self.written.get_mut(&line) {
                Some(known) => known,
                None => return here,
            },
        };
        let has_it = if writes { known.holders == bit } else { known.holders & bit != 0 };
        let done = match has_it {
            true => here.max(known.free),
            false => {
                self.transfers += 1;
                at.max(known.free) + transfer
            }
        };
        match writes {
            true => *known = Written { holders: bit, free: done },
            false => known.holders |= bit,
        }
        done
    }

    /// Lines that went from core to core since the last reset.
    pub fn transfers(&self) -> u64 {
        self.transfers
    }

    /// How busy misses and memory were over `span`.
    pub fn usage(&self, span: Ps) -> Usage {
        self.memory.usage("memory", span)
    }

    /// Starts counting anew; lines stay.
    pub fn reset(&mut self) {
        self.memory.reset();
        self.transfers = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An A72 pair: 32 KB and 1 MB, 6 MB for all, 1024 translations of 4 KB.
    fn params() -> HierarchyParams {
        let level = |size_bytes, hit_ps, ways| CacheParams { size_bytes, line_bytes: 64, ways, hit_ps };
        HierarchyParams {
            cores: 4,
            first: level(32 << 10, 2_000, 4),
            second: level(1 << 20, 8_000, 16),
            sharing: 2,
            last: level(6 << 20, 35_000, 16),
            memory: MemoryParams::dram(145_000, 18.5e9, 1),
            misses: 6,
            translations: 1024,
            page_bytes: 4096,
            transfer_ps: 100_000,
            compare_ps: 4_000,
            order: Order::InTurn,
        }
    }

    /// The mean time of a random load among `bytes`, once the caches are warm.
    fn random(params: &HierarchyParams, bytes: u64) -> f64 {
        let mut all = Hierarchy::new(params);
        let (mut state, mut at) = (7u64, Ps::ZERO);
        let mut load = |all: &mut Hierarchy, at| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            all.access(0, at, (state >> 20) % (bytes / 64) * 64, CacheAccess::Load)
        };
        (0..bytes / 64).for_each(|line| _ = all.access(0, Ps::ZERO, line * 64, CacheAccess::Load));
        (0..bytes / 64).for_each(|_| at = load(&mut all, at));
        let start = at;
        (0..2000).for_each(|_| at = load(&mut all, at));
        (at - start).as_ns() / 2000.0
    }

    #[test]
    fn a_load_ends_at_the_level_that_holds_its_line() {
        let huge = HierarchyParams { page_bytes: 2 << 20, ..params() };
        let near = |bytes: u64, ns: f64| {
            let mean = random(&huge, bytes);
            assert!((mean / ns - 1.0).abs() < 0.12, "{bytes} B: {mean} ns, by hand {ns}");
        };
        near(16 << 10, 2.0);
        // A sixteenth is in the first level too.
        near(512 << 10, 8.0 - 6.0 / 16.0);
        // The second level holds a quarter of 4 MB.
        near(4 << 20, 0.25 * 8.0 + 0.75 * 35.0);
        // The last level holds a quarter of 24 MB.
        near(24 << 20, 0.25 * 35.0 + 0.75 * 145.0);
    }

    #[test]
    fn pages_beyond_the_translations_cost_a_walk_whose_entries_are_cached_like_data() {
        // 4 MB are 1024 pages; of 8 MB half are held. The walk's two entries are in the second level: 16 ns.
        let huge = HierarchyParams { page_bytes: 2 << 20, ..params() };
        let extra = |bytes| random(&params(), bytes) - random(&huge, bytes);
        let (near, half) = (extra(1 << 20), extra(8 << 20));
        assert!(near.abs() < 0.3 && (half - 8.0).abs() < 2.0, "{near} ns, {half} ns");
    }

    #[test]
    fn a_line_that_cores_write_goes_from_one_to_the_other() {
        let mut all = Hierarchy::new(&params());
        // All have the page.
        (0..4).for_each(|core| _ = all.access(core, Ps::ZERO, 0, CacheAccess::Load));
        let at = all.access(0, Ps::from_us(1), 640, CacheAccess::Store);
        // Whose it is has it at once; four others wait for each other.
        let mine = all.access(0, at, 640, CacheAccess::Store);
        assert_eq!(mine - at, Ps(2_000));
        let others = [1, 2, 3].map(|core| all.access(core, mine, 640, CacheAccess::Store));
        assert_eq!(others.map(|there| there - mine), [100_000, 200_000, 300_000].map(Ps));
        assert_eq!(all.transfers(), 3);
        // A reader fetches it once; then the writer has to again.
        let later = Ps::from_us(5);
        let read = all.access(0, later, 640, CacheAccess::Load);
        assert_eq!(read - later, Ps(100_000));
        assert_eq!(all.access(0, read, 640, CacheAccess::Load) - read, Ps(2_000));
        assert_eq!(all.access(3, read, 640, CacheAccess::Store) - read, Ps(100_000));
    }

    #[test]
    fn a_search_looks_at_lines_one_after_the_other() {
        // 512 B: the first line, two or three of the four with keys, the value's; five comparisons of 4 ns.
        let huge = HierarchyParams { page_bytes: 2 << 20, ..params() };
        let mut all = Hierarchy::new(&huge);
        let (mut at, mut sum) = (Ps::from_us(1), 0.0);
        all.access(0, Ps::ZERO, 0, CacheAccess::Load);
        for node in 1..200u64 {
            let done = all.search(0, at, node * 512, 512);
            sum += (done - at).as_ns();
            at = done;
        }
        let mean = sum / 199.0;
        assert!((3.5 * 145.0..4.7 * 145.0 + 40.0).contains(&mean), "{mean} ns");
    }
}

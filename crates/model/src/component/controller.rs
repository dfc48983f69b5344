//! The coherence controller of an accelerator: its clock, its translations, its cache with pinned lines, and the coherent
//! link behind it.

use super::cache::{Cache, CacheAccess, CacheParams};
use super::coherent::{Coherent, CoherentParams};
use crate::platform;
use crate::resource::{Order, Server, Usage};
use crate::time::Ps;

/// What a controller is like.
#[derive(Clone, Debug, PartialEq)]
pub struct ControllerParams {
    /// The link, and how fast requests are issued to it.
    pub link: CoherentParams,
    /// The cache.
    pub cache: CacheParams,
    /// Pages whose translation it holds.
    pub tlb_entries: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// A walk of the page table. There is one walker.
    pub tlb_miss_ps: u64,
    /// How its queues are served.
    pub order: Order,
}

impl ControllerParams {
    /// An accelerator's.
    pub fn new(accel: &platform::Accel, controller: &platform::CoherenceController) -> Self {
        let cache = CacheParams {
            size_bytes: accel.cache_size,
            line_bytes: LINE,
            ways: CACHE_WAYS,
            hit_ps: accel.cache_latency,
        };
        Self {
            link: accel.into(),
            cache,
            tlb_entries: controller.tlb_entries,
            page_bytes: controller.page,
            tlb_miss_ps: controller.tlb_miss,
            order: controller.order,
        }
    }
}

const LINE: u64 = 64;
/// Ways of the cache, which is direct-mapped in Intel's CCI-P blocks, and those of the translations.
const CACHE_WAYS: usize = 1;
const TLB_WAYS: u64 = 4;

/// Lines that are to stay in a cache of so many bytes do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} bytes are to be pinned in a cache of {size}")]
pub struct DoesNotFit {
    /// Bytes to be pinned, all regions together.
    pub wanted: u64,
    /// Bytes of the cache.
    pub size: u64,
}

/// A controller.
#[derive(Clone, Debug)]
pub struct CoherenceController {
    params: ControllerParams,
    link: Coherent,
    cache: Cache,
    /// Lines, from and to, that never leave the cache.
    pinned: Vec<(u64, u64)>,
    tlb: Cache,
    walker: Server,
}

impl CoherenceController {
    /// Idle, with nothing in its cache.
    pub fn new(params: &ControllerParams) -> Self {
        let page = params.page_bytes.max(1);
        let tlb = CacheParams {
            size_bytes: params.tlb_entries.saturating_mul(page),
            line_bytes: page,
            ways: TLB_WAYS.min(params.tlb_entries) as usize,
            hit_ps: 0,
        };
        Self {
            link: Coherent::new(&params.link),
            cache: Cache::new(&params.cache),
            pinned: Vec::new(),
            tlb: Cache::new(&tlb),
            walker: Server::new(1).ordered(params.order),
            params: params.clone(),
        }
    }

    /// Pins the lines of a region. What is left of the cache is for all others.
    pub fn pin(&mut self, address: u64, bytes: u64) -> Result<(), DoesNotFit> {
        let (from, to) = (address / LINE, (address + bytes).div_ceil(LINE));
        let before: u64 = self.pinned.iter().map(|(from, to)| (to - from) * LINE).sum();
        let (wanted, size) = (before + (to - from) * LINE, self.params.cache.size_bytes);
        if wanted > size {
            return Err(DoesNotFit { wanted, size });
        }
        self.pinned.push((from, to));
        self.cache = Cache::new(&CacheParams { size_bytes: size - wanted, ..self.params.cache.clone() });
        Ok(())
    }

    /// Reads: when the last byte is here. What the cache has does not go over the link.
    pub fn read(&mut self, at: Ps, address: u64, bytes: u64) -> Ps {
        let at = self.translate(at, address, bytes);
        let mut last = at;
        for line in self.cache.lines(address, bytes) {
            let done = match self.is_pinned(line) || self.cache.access(line, CacheAccess::Load).hit {
                true => at + self.cache.hit_time(),
                false => self.link.read(at, line * LINE, LINE).1,
            };
            last = last.max(done);
        }
        last
    }

    /// Reads past the cache, whatever that has: when the last byte is here. So does one who polls, and so comes a pinned
    /// line back that another has written.
    pub fn fetch(&mut self, at: Ps, address: u64, bytes: u64) -> Ps {
        let at = self.translate(at, address, bytes);
        self.link.read(at, address, bytes).1
    }

    /// Writes, past the cache: when the link has taken the last byte.
    pub fn write(&mut self, at: Ps, address: u64, bytes: u64) -> Ps {
        let at = self.translate(at, address, bytes);
        self.link.write(at, address, bytes)
    }

    /// The physical addresses of an access: when they are known.
    fn translate(&mut self, at: Ps, address: u64, bytes: u64) -> Ps {
        let miss = Ps(self.params.tlb_miss_ps);
        self.tlb.lines(address, bytes).fold(at, |at, page| match self.tlb.access(page, CacheAccess::Load).hit {
            true => at,
            false => self.walker.serve(at, miss).1,
        })
    }

    fn is_pinned(&self, line: u64) -> bool {
        self.pinned.iter().any(|&(from, to)| (from..to).contains(&line))
    }

    /// How busy all parts were over `span`.
    pub fn usage(&self, span: Ps) -> [Usage; 5] {
        let [issue, in_flight, inwards, outwards] = self.link.usage(span);
        [issue, in_flight, inwards, outwards, self.walker.usage("page walks", span)]
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        self.link.reset();
        self.cache.reset();
        self.tlb.reset();
        self.walker.reset();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// RAMBDA's: 64 KiB at 67 ns, 350 ns over UPI at 16 GB/s, a request each 7.5 ns; four pages of 2 MiB.
    pub(crate) fn params() -> ControllerParams {
        ControllerParams {
            link: CoherentParams {
                read_ps: 350_000,
                bandwidth_bytes_per_s: 16e9,
                issue_ps: 7_500,
                in_flight: 256,
                order: Order::InTurn,
            },
            cache: CacheParams { size_bytes: 64 << 10, line_bytes: 64, ways: 1, hit_ps: 67_000 },
            tlb_entries: 4,
            page_bytes: 2 << 20,
            tlb_miss_ps: 400_000,
            order: Order::InTurn,
        }
    }

    /// A page's first access walks; later ones do not.
    fn warm() -> CoherenceController {
        let mut controller = CoherenceController::new(&params());
        controller.read(Ps::ZERO, 4096, 64);
        controller
    }

    #[test]
    fn a_line_is_walked_for_once_read_once_and_then_in_the_cache() {
        let mut controller = CoherenceController::new(&params());
        assert_eq!(controller.read(Ps::ZERO, 64, 64), Ps(750_000));
        let at = Ps(1_000_000);
        assert_eq!(controller.read(at, 64, 64), at + Ps(67_000));
        assert_eq!(controller.read(at, 128, 64), at + Ps(350_000));
        // Past the cache it takes the link's time although it is there.
        assert_eq!(controller.fetch(at + at, 64, 64), at + at + Ps(350_000));
    }

    #[test]
    fn walks_come_one_after_the_other() {
        let mut controller = CoherenceController::new(&params());
        let last = (0..4).map(|page| controller.read(Ps::ZERO, page << 21, 64)).max();
        assert_eq!(last, Some(Ps(4 * 400_000 + 350_000)));
        assert_eq!(controller.usage(Ps(1_600_000))[4].busy, 1.0);
    }

    #[test]
    fn pinned_lines_stay_whatever_else_is_read_and_bound_what_fits() {
        let mut controller = warm();
        controller.pin(0, 4096).unwrap();
        let mut at = Ps(10_000_000);
        for n in 0..4096 {
            at = controller.read(at, 8192 + n * 64, 64);
        }
        assert_eq!(controller.read(at, 0, 64), at + Ps(67_000));
        let more = controller.pin(1 << 20, 61 << 10);
        assert_eq!(more, Err(DoesNotFit { wanted: 65 << 10, size: 64 << 10 }));
        // 16 K pointers of 4 B fill the cache (section III-B).
        assert!(CoherenceController::new(&params()).pin(0, 4 * 16_384).is_ok());
    }

    #[test]
    fn the_clock_bounds_requests_below_what_the_link_carries() {
        let mut controller = warm();
        let at = Ps(10_000_000);
        // 1000 lines, 7.5 ns apart, and the latency of the last.
        let last = (1000..2000).map(|n| controller.fetch(at, n * 64, 64)).max().unwrap();
        assert_eq!(last - at, Ps(999 * 7_500 + 350_000));
    }
}

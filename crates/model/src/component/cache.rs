//! A set-associative cache with least-recently-used replacement.
//!
//! It holds the tags of real lines rather than a rate of hits: so skew and working sets near the size come out of the
//! accesses themselves. Real caches hash addresses to sets; so does this one. What device writes push out is not
//! modelled: they pass by. It stands as well for another memory of what was used last: translations.

use crate::platform;
use crate::time::Ps;

/// What a cache is like.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheParams {
    /// Size.
    pub size_bytes: u64,
    /// Bytes of a line.
    pub line_bytes: u64,
    /// Ways of a set.
    pub ways: usize,
    /// A hit.
    pub hit_ps: u64,
}

impl From<&platform::Cache> for CacheParams {
    fn from(cache: &platform::Cache) -> Self {
        Self { size_bytes: cache.size, line_bytes: 64, ways: cache.ways as usize, hit_ps: cache.latency }
    }
}

/// Who accesses a line, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheAccess {
    /// A core reads: a miss fills any way.
    Load,
    /// A core writes: the same, and the line is dirty.
    Store,
}

/// What an access found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// Whether the line was there.
    pub hit: bool,
    /// The number of a dirty line that had to leave for it: memory takes a write.
    pub written_back: Option<u64>,
}

/// A cache.
#[derive(Clone, Debug)]
pub struct Cache {
    sets: u64,
    ways: usize,
    hit: Ps,
    line_bytes: u64,
    /// Sets of ways.
    lines: Vec<Line>,
    clock: u64,
    /// Hits and misses since the last reset.
    counts: (u64, u64),
}

/// Number of the line, plus 1, or 0 if there is none; and when it was used last, in accesses, whose lowest bit says whether it
/// is dirty. An array of zeros takes no memory before it is used: a cache may be larger than what is kept in it.
type Line = [u64; 2];
const TAG: usize = 0;
const USED: usize = 1;

/// More lines than a run can use, of which there are bytes to address them.
const MOST_LINES: u64 = 1 << 28;

impl Cache {
    /// An empty cache; of at least one line. Takes 16 bytes of memory a line that is used.
    pub fn new(params: &CacheParams) -> Self {
        let ways = params.ways.max(1);
        let line_bytes = params.line_bytes.max(1);
        let sets = (params.size_bytes / line_bytes).min(MOST_LINES) / ways as u64;
        let sets = sets.max(1);
        Self {
            sets,
            ways,
            hit: Ps(params.hit_ps),
            line_bytes,
            lines: vec![[0; 2]; sets as usize * ways],
            clock: 0,
            counts: (0, 0),
        }
    }

    /// What a hit takes.
    pub fn hit_time(&self) -> Ps {
        self.hit
    }

    /// Bytes of a line.
    pub fn line_bytes(&self) -> u64 {
        self.line_bytes
    }

    /// The numbers of the lines that an access touches.
    pub fn lines(&self, address: u64, bytes: u64) -> std::ops::RangeInclusive<u64> {
        address / self.line_bytes..=address.saturating_add(bytes.max(1) - 1) / self.line_bytes
    }

    /// Accesses a line by its number.
    pub fn access(&mut self, line: u64, access: CacheAccess) -> Lookup {
        self.clock += 1;
        let now = self.clock << 1;
        let set = self.set(line);
        let set = &mut self.lines[set];
        let writes = u64::from(access == CacheAccess::Store);
        if let Some(found) = set.iter_mut().find(|way| way[TAG] == line.wrapping_add(1)) {
            found[USED] = now | (found[USED] & 1) | writes;
            self.counts.0 += 1;
            return Lookup { hit: true, written_back: None };
        }
        self.counts.1 += 1;
        let mut written_back = None;
        if let Some(oldest) = set.iter_mut().min_by_key(|way| way[USED]) {
            written_back = (oldest[USED] & 1 == 1).then(|| oldest[TAG].wrapping_sub(1));
            *oldest = [line.wrapping_add(1), now | writes];
        }
        Lookup { hit: false, written_back }
    }

    /// A line leaves, whatever it holds.
    pub fn forget(&mut self, line: u64) {
        let set = self.set(line);
        if let Some(way) = self.lines[set].iter_mut().find(|way| way[TAG] == line.wrapping_add(1)) {
            *way = [0; 2];
        }
    }

    /// Where the ways of a line's set are.
    fn set(&self, line: u64) -> std::ops::Range<usize> {
        // The top bits of a multiplicative hash are uniform.
        let hash = line.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let set = ((u128::from(hash) * u128::from(self.sets)) >> 64) as usize * self.ways;
        set..set + self.ways
    }

    /// Hits as a part of all accesses since the last reset; `None` if there were none.
    pub fn hit_ratio(&self) -> Option<f64> {
        let (hits, misses) = self.counts;
        (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64)
    }

    /// Starts counting anew; lines stay.
    pub fn reset(&mut self) {
        self.counts = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 4096 lines in 512 sets of 8 ways.
    fn small() -> Cache {
        Cache::new(&CacheParams { size_bytes: 256 << 10, line_bytes: 64, ways: 8, hit_ps: 20_000 })
    }

    fn hits(cache: &mut Cache, lines: impl Iterator<Item = u64>, access: CacheAccess) -> f64 {
        cache.reset();
        for line in lines {
            cache.access(line, access);
        }
        cache.hit_ratio().unwrap_or_default()
    }

    #[test]
    fn what_was_used_last_is_there() {
        let mut cache = small();
        assert_eq!(cache.lines(100, 64), 1..=2);
        assert!(!cache.access(7, CacheAccess::Load).hit);
        assert!(cache.access(7, CacheAccess::Load).hit);
        // A quarter of the lines all stay, but for sets that got more than 8 of their mean of 2.
        hits(&mut cache, 0..1024, CacheAccess::Load);
        assert!(hits(&mut cache, 0..1024, CacheAccess::Load) > 0.99);
        // Cycling over four times the lines, everything leaves before it comes again.
        hits(&mut cache, 0..16384, CacheAccess::Load);
        assert!(hits(&mut cache, 0..16384, CacheAccess::Load) < 0.01);
    }

    #[test]
    fn uniform_accesses_hit_as_often_as_lines_fit() {
        // 4096 lines of 16384: a quarter.
        let mut state = 1u64;
        let mut random = move |_: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 50
        };
        let mut cache = small();
        hits(&mut cache, (0..50_000).map(&mut random), CacheAccess::Load);
        let ratio = hits(&mut cache, (0..50_000).map(&mut random), CacheAccess::Load);
        assert!((ratio - 0.25).abs() < 0.01, "{ratio}");
    }

    #[test]
    fn dirty_lines_are_written_back() {
        let mut cache = Cache::new(&CacheParams { size_bytes: 64, line_bytes: 64, ways: 1, hit_ps: 1 });
        cache.access(1, CacheAccess::Store);
        assert_eq!(cache.access(2, CacheAccess::Load), Lookup { hit: false, written_back: Some(1) });
        assert_eq!(cache.access(3, CacheAccess::Load), Lookup { hit: false, written_back: None });
        assert!(cache.access(3, CacheAccess::Load).hit);
    }
}

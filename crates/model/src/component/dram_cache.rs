//! A DRAM cache in front of a CXL port (DFabric, section 4.6): whole buffers, which the first access has fetched by DMA,
//! and which leave when they are freed.

use std::collections::BTreeMap;

use super::cache::{Cache, CacheAccess, CacheParams};
use crate::time::Ps;

/// What a cache is like.
#[derive(Clone, Debug, PartialEq)]
pub struct DramCacheParams {
    /// Size.
    pub size_bytes: u64,
    /// Bytes that are kept as one: a buffer.
    pub granule_bytes: u64,
    /// Ways of a set.
    pub ways: usize,
    /// A hit.
    pub hit_ps: u64,
}

/// A cache.
#[derive(Clone, Debug)]
pub struct DramCache {
    tags: Cache,
    hit: Ps,
    /// What is on its way: first and last byte.
    filling: BTreeMap<u64, (Ps, Ps)>,
}

impl DramCache {
    /// An empty cache.
    pub fn new(params: &DramCacheParams) -> Self {
        let tags = CacheParams {
            size_bytes: params.size_bytes,
            line_bytes: params.granule_bytes,
            ways: params.ways,
            hit_ps: params.hit_ps,
        };
        Self { tags: Cache::new(&tags), hit: Ps(params.hit_ps), filling: BTreeMap::new() }
    }

    /// Accesses a buffer by its number: when its first byte and its last can be read. One that is not here is fetched: `fetch`
    /// says when that brings its first byte and its last.
    pub fn access(&mut self, at: Ps, buffer: u64, fetch: impl FnOnce(Ps) -> (Ps, Ps)) -> (Ps, Ps) {
        if self.tags.access(buffer, CacheAccess::Load).hit {
            let (first, last) = self.filling.get(&buffer).copied().unwrap_or_default();
            return (first.max(at) + self.hit, last.max(at) + self.hit);
        }
        let came = fetch(at);
        self.filling.insert(buffer, came);
        (came.0 + self.hit, came.1 + self.hit)
    }

    /// A buffer is free: what is here of it is of no more use.
    pub fn free(&mut self, buffer: u64) {
        self.tags.forget(buffer);
        self.filling.remove(&buffer);
    }

    /// Hits as a part of all accesses.
    pub fn hit_ratio(&self) -> Option<f64> {
        self.tags.hit_ratio()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(size_bytes: u64, ways: usize) -> DramCache {
        DramCache::new(&DramCacheParams { size_bytes, granule_bytes: 4096, ways, hit_ps: 650_000 })
    }

    /// 39 us for a buffer, of which 6.5 us until the first byte.
    fn far(at: Ps) -> (Ps, Ps) {
        (at + Ps(6_500_000), at + Ps(39_000_000))
    }

    #[test]
    fn the_first_access_fetches_and_later_ones_wait_for_that_or_hit() {
        let mut cache = cache(1 << 20, 8);
        let near = |_| -> (Ps, Ps) { panic!("it is here") };
        assert_eq!(cache.access(Ps::ZERO, 7, far), (Ps(7_150_000), Ps(39_650_000)));
        assert_eq!(cache.access(Ps(10_000_000), 7, near), (Ps(10_650_000), Ps(39_650_000)));
        assert_eq!(cache.access(Ps(50_000_000), 7, near), (Ps(50_650_000), Ps(50_650_000)));
    }

    #[test]
    fn a_buffer_that_was_freed_is_fetched_again() {
        let mut cache = cache(1 << 20, 8);
        cache.access(Ps::ZERO, 7, far);
        cache.free(7);
        assert_eq!(cache.access(Ps(50_000_000), 7, far).1, Ps(89_650_000));
    }

    #[test]
    fn between_header_and_payload_more_ways_lose_less() {
        // 200 buffers have had their headers read before the payload of the first is: 256 fit.
        let lost = |ways| {
            let mut cache = cache(256 * 4096, ways);
            (0..200).for_each(|buffer| _ = cache.access(Ps::ZERO, buffer, far));
            let mut again = 0;
            (0..200).for_each(|buffer| {
                _ = cache.access(Ps(1 << 40), buffer, |at| {
                    again += 1;
                    far(at)
                });
            });
            again
        };
        assert!(lost(8) < lost(1) / 2, "{} with 8 ways, {} with 1", lost(8), lost(1));
    }
}

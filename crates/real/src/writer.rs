//! A thread that keeps rewriting checked objects in place, as an application on the node would.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use remora_memory::{Access, Pd, Region};

use crate::control::WriterConfig;

/// A running writer. Dropping it stops it.
pub(crate) struct Writer {
    key: u32,
    stop: Arc<AtomicBool>,
    updates: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// The largest object, so that stopping takes no longer than rewriting it.
const MAX_OBJECT: usize = 1 << 20;
/// Bytes stored at a time; a reader may see an object between any two stores.
const PIECE: usize = 64;

impl Writer {
    /// Starts rewriting the objects from `va` on. Refuses what does not lie in the region.
    pub fn start(region: Arc<Region>, pd: Pd, va: u64, config: WriterConfig) -> Result<Self, String> {
        let (size, objects) = (config.object_size as usize, config.objects as usize);
        if !(16..=MAX_OBJECT).contains(&size) || size % 8 != 0 || objects == 0 {
            return Err(format!(
                "{objects} objects of {size} bytes: a size is a multiple of 8 from 16 to {MAX_OBJECT}"
            ));
        }
        // Two 32-bit numbers: their product does not overflow.
        let bytes = (size * objects) as u64;
        region.check(pd, va, bytes, Access::REMOTE_WRITE).map_err(|e| e.to_string())?;
        let (stop, updates) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let key = region.key();
        let (s, u) = (stop.clone(), updates.clone());
        let thread = std::thread::Builder::new()
            .name("remora-writer".into())
            .spawn(move || write_on(&region, va, config, &s, &u))
            .map_err(|e| e.to_string())?;
        Ok(Self { key, stop, updates, thread: Some(thread) })
    }

    /// The region's key.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Stops it; how many updates it made.
    pub fn stop(self) -> u64 {
        let updates = self.updates.clone();
        drop(self);
        updates.load(Ordering::Relaxed)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A writer that panicked has said so on stderr already.
            let _ = thread.join();
        }
    }
}

/// Version `version` of object `index`, with its checksum: what the writer stores. Each 8-byte word of the payload
/// holds the version in its low half and a mix of the object's and the word's number in its high half.
pub fn fill_object(index: u64, version: u64, out: &mut [u8]) {
    let Some(payload) = out.len().checked_sub(8) else { return };
    for (n, word) in out[..payload].chunks_mut(8).enumerate() {
        let mix = (index << 16 ^ n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) & !0xffff_ffff;
        let bytes = (mix | version & 0xffff_ffff).to_le_bytes();
        word.copy_from_slice(&bytes[..word.len()]);
    }
    remora_store::checked::seal(out);
}

/// Rewrites one object after the other until told to stop, or until the region is taken away.
fn write_on(region: &Region, va: u64, config: WriterConfig, stop: &AtomicBool, updates: &AtomicU64) {
    let size = config.object_size as usize;
    let start = Instant::now();
    let mut version = 0;
    let mut bytes = vec![0; size];
    while !stop.load(Ordering::Relaxed) && region.is_valid() {
        let object = version % u64::from(config.objects);
        version += 1;
        fill_object(object, version, &mut bytes);
        let base = va + object * size as u64;
        for (n, piece) in bytes.chunks(PIECE).enumerate() {
            if region.write(base + (n * PIECE) as u64, piece).is_err() {
                return;
            }
        }
        updates.store(version, Ordering::Relaxed);
        if config.updates_per_s > 0 {
            let due = Duration::from_secs_f64(version as f64 / f64::from(config.updates_per_s));
            while !stop.load(Ordering::Relaxed)
                && let Some(early) = due.checked_sub(start.elapsed())
            {
                std::thread::park_timeout(early);
            }
        }
    }
}

//! A thread on a node that keeps rewriting checked objects in place, as an application there would: what it takes at the
//! node ([`Writers`], an extension of it), and how a client starts and stops it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use remora_kernel::Call;
use remora_memory::{Access, Pd, Region};
use remora_nic::Qpn;
use remora_real::{Client, Error, RemoteRegion};
use remora_service::Ledger;
use remora_service::control::{Extension, u32_at, u64_at};

/// Op-code that starts the writer: key u32, address u64, then [`WriterConfig`]'s three numbers.
const START: u64 = 0x1004;
/// Op-code that stops it: -> updates made u64.
const STOP: u64 = 0x1005;

/// What the writer does: objects (payload, then its CRC64) are rewritten in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterConfig {
    /// Bytes of one object with its checksum.
    pub object_size: u32,
    /// Objects, one after the other from the region's start.
    pub objects: u32,
    /// Updates a second, over all objects; 0 is as fast as it can.
    pub updates_per_s: u32,
}

/// Starts the node's writer thread on a region of this client's. A node that has no [`Writers`] refuses.
pub fn start_writer(client: &mut Client, region: &RemoteRegion, config: &WriterConfig) -> Result<(), Error> {
    client.node_call("start its writer", START, &encode(region.key, region.va, config)).map(drop)
}

/// Stops the node's writer thread. Returns how many updates it made.
pub fn stop_writer(client: &mut Client) -> Result<u64, Error> {
    let reply = client.node_call("stop its writer", STOP, &[])?;
    Ok(u64_at(&reply, 0).unwrap_or(0))
}

/// The writer of a node, one at a time: start a node with it to have clients use [`start_writer`].
#[derive(Default)]
pub struct Writers {
    /// The one that runs, and the client that started it.
    running: Option<(Qpn, Writer)>,
}

impl Extension for Writers {
    fn ops(&self) -> &[u64] {
        &[START, STOP]
    }

    fn call(&mut self, caller: Qpn, memory: &Ledger, call: &mut Call) -> Result<(), String> {
        if call.op == STOP {
            let writer = self.running.take_if(|(owner, _)| *owner == caller);
            let updates = writer.map_or(0, |(_, writer)| writer.stop());
            call.reply.extend_from_slice(&updates.to_le_bytes());
            return Ok(());
        }
        let (key, va, config) = decode(&call.params).ok_or("the parameters are cut short")?;
        let region = memory.region(caller, key).map_err(|e| e.to_string())?;
        if self.running.as_ref().is_some_and(|(owner, _)| *owner != caller) {
            return Err("another client's writer runs, and a node has one".into());
        }
        self.running = Some((caller, Writer::start(region, memory.pd(), va, config)?));
        Ok(())
    }

    fn region_released(&mut self, key: u32) {
        self.running.take_if(|(_, writer)| writer.key == key);
    }
}

/// Parameters of [`START`].
fn encode(key: u32, va: u64, config: &WriterConfig) -> [u8; 24] {
    let mut out = [0; 24];
    out[..4].copy_from_slice(&key.to_le_bytes());
    out[4..12].copy_from_slice(&va.to_le_bytes());
    out[12..16].copy_from_slice(&config.object_size.to_le_bytes());
    out[16..20].copy_from_slice(&config.objects.to_le_bytes());
    out[20..24].copy_from_slice(&config.updates_per_s.to_le_bytes());
    out
}

/// Key, address and settings of [`START`]; `None` if they are cut short.
fn decode(params: &[u8]) -> Option<(u32, u64, WriterConfig)> {
    let config = WriterConfig {
        object_size: u32_at(params, 12)?,
        objects: u32_at(params, 16)?,
        updates_per_s: u32_at(params, 20)?,
    };
    Some((u32_at(params, 0)?, u64_at(params, 4)?, config))
}

/// A running writer. Dropping it stops it.
struct Writer {
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
    fn start(region: Arc<Region>, pd: Pd, va: u64, config: WriterConfig) -> Result<Self, String> {
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

    /// Stops it; how many updates it made.
    fn stop(self) -> u64 {
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
    let word = |n: usize| {
        let mix = (index << 16 ^ n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) & !0xffff_ffff;
        (mix | version & 0xffff_ffff).to_le_bytes()
    };
    let (words, rest) = out[..payload].as_chunks_mut();
    rest.copy_from_slice(&word(words.len())[..rest.len()]);
    for (n, bytes) in words.iter_mut().enumerate() {
        *bytes = word(n);
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

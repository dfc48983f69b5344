//! Streams of bytes to another rack, by every NIC there is (DFabric, section 4.4).
//!
//! Each NIC is an address of this rack with one of the other: a device of its own, with a reliable connection. [`Streams`]
//! decides what goes by which NIC next and makes streams of what comes. A segment is one SEND; the bytes stay in the sender's
//! memory until it is known to have arrived, so that another NIC can send them again. A connection that breaks is made anew
//! by the rack that calls, for as long as the trunk lives.
//!
//! Both ends prove when they connect that they know the trunk's secret, and say which life of theirs it is: with another life
//! of the other end no stream goes on.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use remora_memory::{Access, Buffer, Region, Registry};
use remora_nic::CqId;
use remora_nic::cm::{ListenerId, service_id};
use remora_rack::{CONTROL, FlowId, FlowPolicy, NicId, NicState, Streams, StreamsConfig};

use crate::device::{Device, entropy};
use crate::{Error, LinkKind, map_memory};

use lines::Line;
use memory::{Layout, NOTES, Window};
use messages::Limits;
pub use rest::{Driven, TrunkSleeper};

mod greeting;
mod lines;
mod memory;
mod messages;
mod rest;
mod streams;
#[cfg(test)]
mod tests;

/// The port of racks' trunks.
pub(crate) const PORT: u16 = 7_471;
/// Between two calls of a NIC that is not connected, and how long a call may take, nanoseconds.
const REDIAL: u64 = 50_000_000;
const DIAL: u64 = 3_000_000_000;
/// See [`TrunkConfig::away`].
const AWAY: Duration = Duration::from_secs(60);
/// For so long after something was [pushed](Trunk::push) the driver wakes in time to find out that a NIC is silent, nanoseconds.
const PUSHED: u64 = 1_000_000_000;
/// What there is to do at once is much from so much on; so long after the last of that, nanoseconds, whoever drives does it alone.
const MUCH: usize = 16;
const CALM: u64 = 10_000_000;
/// Completions that are taken from a NIC before the next has its turn.
const BATCH: usize = 64;

/// Both ends of a trunk.
#[derive(Clone)]
pub struct TrunkConfig {
    /// Addresses of this rack, each with the one of the other rack that it talks to. In the same order at both ends.
    pub ways: Vec<(IpAddr, IpAddr)>,
    /// Whether this end calls; the other one waits for calls.
    pub calls: bool,
    /// The same at both ends.
    pub policy: FlowPolicy,
    /// What both ends know and nobody else.
    pub secret: [u8; 32],
    /// Streams at a time.
    pub most: usize,
    /// How long the other rack may be away, by all NICs, before its streams count as lost.
    pub away: Duration,
}

impl TrunkConfig {
    /// With these ways, and the policy that suits most.
    pub fn new(ways: Vec<(IpAddr, IpAddr)>, calls: bool, secret: &[u8]) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, secret);
        let mut secret = [0; 32];
        secret.copy_from_slice(digest.as_ref());
        Self { ways, calls, policy: FlowPolicy::default(), secret, most: 256, away: AWAY }
    }
}

struct Way {
    device: Device,
    local: IpAddr,
    remote: IpAddr,
    mtu: u32,
    cq: CqId,
    listener: Option<ListenerId>,
    line: Option<Line>,
    dial_at: u64,
    /// Headers that no segment has.
    free: Vec<u32>,
    /// By a segment's tag, its header.
    headers: HashMap<u64, u32>,
    notes: u32,
    /// When it was last given something to send.
    spoke: u64,
    carried: u64,
}

/// One end of the streams to another rack.
pub struct Trunk {
    config: TrunkConfig,
    ways: Vec<Way>,
    streams: Streams,
    windows: HashMap<FlowId, Window>,
    registry: Arc<Registry>,
    /// Headers, and buffers for what comes.
    memory: Buffer,
    region: Arc<Region>,
    limits: Limits,
    /// This life of this end, and the other end's as far as it is known.
    life: [u8; 8],
    peer: Option<[u8; 8]>,
    start: Instant,
    sleeper: TrunkSleeper,
    /// The other end has broken the protocol.
    broken: bool,
    /// When a NIC was connected last, and when something was pushed.
    met_at: u64,
    pushed_at: u64,
    /// When there was much to do, and whether NIC threads stay away, as there is not: they would only wake beside the driver.
    much_at: u64,
    kept: bool,
    /// What a device refused while somebody else pushed.
    refused: Option<Error>,
}

impl Trunk {
    /// An end with these ways; its connections come up as it is driven.
    ///
    /// # Errors
    ///
    /// An address that is not this host's, or no memory.
    pub fn new(config: TrunkConfig) -> Result<Self, Error> {
        if config.ways.is_empty() || config.ways.len() > 64 {
            return Err(Error::Argument("a trunk has from 1 to 64 NICs".into()));
        }
        let policy = config.policy;
        let layout = Layout::new(&policy);
        let seed = entropy()?;
        let life = std::array::from_fn(|index| seed[index]);
        let first = u64::from_le_bytes(std::array::from_fn(|index| seed[8 + index]));
        let registry = Arc::new(Registry::new(entropy()?));
        let memory = map_memory(layout.way(config.ways.len()))?;
        let pd = registry.alloc_pd();
        let region = registry.register(pd, &memory, 0, memory.len(), None, Access::LOCAL_WRITE)?;
        let mut ways = Vec::new();
        for &(local, remote) in &config.ways {
            let link = LinkKind::Udp.bind(local).map_err(Error::link(LinkKind::Udp, local))?;
            let mtu = link.max_mtu() as u32;
            let device = Device::with_registry(local, vec![link], registry.clone(), None)?;
            let mut guard = device.lock();
            let cq = guard.nic().create_cq(4 * (policy.entries + NOTES + layout.receives() as u32))?;
            let listener = if config.calls { None } else { Some(guard.nic().listen(service_id(PORT))?) };
            drop(guard);
            ways.push(Way {
                device,
                local,
                remote,
                mtu,
                cq,
                listener,
                line: None,
                dial_at: 0,
                free: (0..policy.entries).collect(),
                headers: HashMap::new(),
                notes: 0,
                spoke: 0,
                carried: 0,
            });
        }
        let nics = ways.len() as u16;
        let streams = Streams::new(StreamsConfig { policy, nics, calls: config.calls, most: config.most, first }, 0);
        let windows = HashMap::from([(CONTROL, Window::new(&registry, &region, policy.window as usize)?)]);
        let limit = streams.control_limit();
        Ok(Self {
            sleeper: TrunkSleeper::new(&ways),
            ways,
            streams,
            windows,
            registry,
            memory,
            region,
            limits: Limits { told: limit, known: limit, ..Limits::default() },
            life,
            peer: None,
            start: Instant::now(),
            broken: false,
            met_at: 0,
            pushed_at: 0,
            much_at: 0,
            kept: false,
            refused: None,
            config,
        })
    }

    /// NICs that are connected and not given up as silent.
    pub fn nics_up(&self) -> usize {
        (0..self.ways.len()).filter(|way| self.is_up(*way)).count()
    }

    /// Whether the NIC of a way, by its place among them, is connected and not given up as silent.
    pub fn is_up(&self, way: usize) -> bool {
        self.streams.nic_state(NicId(way as u16)) == Some(NicState::Up)
    }

    /// NICs that are connected, silent ones too.
    pub fn nics_connected(&self) -> usize {
        self.ways.iter().filter(|way| way.line.as_ref().is_some_and(|line| line.up)).count()
    }

    /// Bytes that each NIC has brought over, in the order of the ways.
    pub fn carried(&self) -> Vec<u64> {
        self.ways.iter().map(|way| way.carried).collect()
    }

    /// For who sleeps without holding the trunk, and for who wakes them.
    pub fn sleeper(&self) -> TrunkSleeper {
        TrunkSleeper::new(&self.ways)
    }

    /// Does what there is to do; if there has been nothing for a while, sleeps until there is or `timeout` has passed.
    ///
    /// # Errors
    ///
    /// What a device refuses.
    pub fn turn(&mut self, timeout: Duration) -> Result<(), Error> {
        let driven = self.drive()?;
        let pause = self.pause(timeout);
        self.sleeper.rest(driven, pause);
        Ok(())
    }

    /// Does what there is to do.
    ///
    /// # Errors
    ///
    /// What a device refuses.
    pub fn drive(&mut self) -> Result<Driven, Error> {
        if let Some(error) = self.refused.take() {
            return Err(error);
        }
        let (mut packets, mut work) = (0, 0);
        for way in 0..self.ways.len() {
            let (came, done) = self.drive_way(way)?;
            (packets, work) = (packets + came, work + done);
        }
        if std::mem::take(&mut self.broken) {
            self.breach();
        }
        let now = self.now();
        if packets + work >= MUCH {
            self.much_at = now;
        }
        let kept = now - self.much_at > CALM;
        if std::mem::replace(&mut self.kept, kept) != kept {
            self.ways.iter().for_each(|way| way.device.keep(kept));
        }
        if self.nics_connected() > 0 {
            self.met_at = now;
        } else if self.streams.count() > 0 && u128::from(now - self.met_at) > self.config.away.as_nanos() {
            self.met_at = now;
            self.breach();
        }
        self.streams.tick(now);
        if let Some(window) = self.windows.get(&CONTROL) {
            while let Some((at, bytes)) = self.streams.poll_control() {
                window.put(at, &bytes);
            }
        }
        work += self.send()?;
        self.tell_limit(now)?;
        Ok(Driven { packets, work })
    }

    /// How long there is nothing to do that no packet brings, `timeout` at most.
    pub fn pause(&self, timeout: Duration) -> Duration {
        let now = self.now();
        let soon = self.streams.next_timeout().map_or(timeout, |at| Duration::from_nanos(at.saturating_sub(now)));
        let most = if now - self.pushed_at < PUSHED { REDIAL.min(self.config.policy.patience) } else { REDIAL };
        timeout.min(soon).min(Duration::from_nanos(most))
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// One NIC's turn. Returns packets and the like, and what came of them.
    fn drive_way(&mut self, index: usize) -> Result<(usize, usize), Error> {
        let device = self.ways[index].device.clone();
        let mut guard = device.lock();
        let (mut packets, mut work) = (guard.progress(), 0);
        // What comes before the other end's proof was looked at waits for it.
        let proven = self.ways[index].line.as_ref().is_none_or(|line| self.is_proven(line));
        for _ in 0..if proven { BATCH } else { 0 } {
            let Some(wc) = guard.nic().poll_cq(self.ways[index].cq) else { break };
            self.complete(&mut guard, index, &wc)?;
            work += 1;
        }
        let events = guard.take_events();
        drop(guard);
        for event in events {
            self.event(index, event)?;
            packets += 1;
        }
        let mut guard = device.lock();
        let (now, way) = (self.now(), &self.ways[index]);
        let late = way.line.as_ref().is_some_and(|line| !line.up && now > line.since + DIAL);
        if late {
            self.lose(&mut guard, index);
        }
        if self.config.calls && self.ways[index].line.is_none() && now >= self.ways[index].dial_at {
            self.dial(&mut guard, index)?;
        }
        Ok((packets, work))
    }
}

impl Drop for Trunk {
    fn drop(&mut self) {
        self.hang_up();
    }
}

//! Modelled time: the calls of a [`Client`](crate::Client), on hardware that a platform file describes.
//!
//! The packets, the engine and the kernels are those of the real world, over real bytes; the model says when.
//!
//! ```
//! use remora::Placement;
//! use remora::model::{ModelledClient, Platform};
//!
//! # fn main() -> Result<(), remora::model::ModelledError> {
//! let mut client = ModelledClient::new(&Platform::load("strom-10g")?)?;
//! let table = client.load_table([("apple", "red"), ("pear", "green")])?;
//! let here = client.at(Placement::Client).get(&table, "pear")?;
//! let at_the_nic = client.at(Placement::Nic).get(&table, "pear")?;
//! assert_eq!(here.reply, at_the_nic.reply);
//! assert!(at_the_nic.latency < here.latency, "one round trip instead of two");
//! # Ok(())
//! # }
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use remora_kernel::{Placement, Status, op};
use remora_memory::Region;
use remora_model::platform::PlatformError;
use remora_model::world::{Pair, PairSpec, WorldError};
use remora_real::Error;
use remora_service::{CallKind, Choice, MAX_CALLS, Placer};
use remora_store::hash::Table;
use remora_store::list::List;
use remora_store::{Arena, Place};
use remora_wasm::{KernelSet, USER_OPS};

use crate::at::{Caller, sealed};
use crate::deployed::binary;
use crate::pending::finish;
use crate::{At, Deployed, FromReply, ModuleOptions, ToParams, TypedCall, data};

pub use remora_model::platform::Platform;
pub use remora_model::world::placements;

/// `Ok`, or a [`ModelledError`].
pub type Result<T> = std::result::Result<T, ModelledError>;

/// Why a modelled call has no reply.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelledError {
    /// The platform's description cannot be used.
    #[error(transparent)]
    Platform(#[from] PlatformError),
    /// The modelled world cannot go on.
    #[error(transparent)]
    World(#[from] WorldError),
    /// The call itself failed, as it would in the real world.
    #[error(transparent)]
    Call(#[from] Error),
    /// The platform does not say what computing takes.
    #[error("platform {platform} does not say what an instruction takes: add [{section}] with `instruction` in cycles")]
    Instruction {
        /// Its name.
        platform: String,
        /// The section that it lacks.
        section: &'static str,
    },
    /// Nothing is left to happen, though calls are under way.
    #[error("the model stands still with {0} calls under way: a packet was lost, or a kernel waits for nothing")]
    Still(usize),
}

/// A reply, and how long it took.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timed<R> {
    /// The reply.
    pub reply: R,
    /// From the start of the call's submission until the reply was seen, in modelled time, to the nanosecond.
    pub latency: Duration,
}

/// A client and a node of modelled hardware.
pub struct ModelledClient {
    platform: String,
    pair: Pair,
    kernels: KernelSet,
    regions: HashMap<u32, Arc<Region>>,
    placer: Placer,
}

impl ModelledClient {
    /// A client and a node of a platform. The same calls take the same time each time.
    pub fn new(platform: &Platform) -> Result<Self> {
        let (kernels, spec) = (KernelSet::default(), PairSpec::new(platform, 0, SEED)?);
        let ops: Vec<u64> = op::BUILTINS.into_iter().chain(USER_OPS).collect();
        let pair = Pair::with_kernels(&spec, kernels.clone(), &ops)?;
        let placer = Placer::new(&placements(platform), SEED);
        Ok(Self { platform: platform.name.clone(), pair, kernels, regions: HashMap::new(), placer })
    }

    /// Kernels at one place, the accelerator included if the platform has one.
    pub fn at(&mut self, placement: Placement) -> At<&mut Self> {
        At::new(self, Some(placement))
    }

    /// Kernels where they are answered quickest: what [`Client::auto`](crate::Client::auto) does, in modelled time.
    pub fn auto(&mut self) -> At<&mut Self> {
        At::new(self, None)
    }

    /// Modelled time since the beginning.
    pub fn now(&self) -> Duration {
        duration(self.pair.now())
    }

    /// Loads a hash table into the node's memory, in no time: see [`Client::load_table`](crate::Client::load_table).
    pub fn load_table<K, V>(&mut self, records: impl IntoIterator<Item = (K, V)>) -> Result<Table>
    where
        K: AsRef<[u8]>,
        V: AsRef<[u8]>,
    {
        data::layout(records)?.load(self)
    }

    /// Loads a linked list into the node's memory, in no time: see [`Client::load_list`](crate::Client::load_list).
    pub fn load_list<V: AsRef<[u8]>>(&mut self, records: impl IntoIterator<Item = (u64, V)>) -> Result<List> {
        data::load_list(self, records)
    }

    /// Deploys a WebAssembly module, binary or text, in every place, in no time: see
    /// [`Client::deploy`](crate::Client::deploy). Its accesses and its instructions take their time.
    ///
    /// ```
    /// # use remora::{ModuleLimits, Placement, model::{ModelledClient, Platform}};
    /// # const SUM: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/template.wat"));
    /// # fn main() -> remora::model::Result<()> {
    /// let mut client = ModelledClient::new(&Platform::load("rambda")?)?;
    /// let sum = client.deploy::<(u32, u32, u64), u64>("sum", SUM, ModuleLimits::default())?;
    /// let words = client.load(&[1u64, 2, 39].map(u64::to_le_bytes).concat())?;
    /// for place in Placement::ALL {
    ///     let total = client.at(place).call(sum.with(&(words.key, 3, words.va)))?;
    ///     assert_eq!(total.reply, 42);
    ///     println!("at the {place}: {:?}", total.latency);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn deploy<P: ToParams + ?Sized, R: FromReply>(
        &mut self,
        name: &str,
        module: impl AsRef<[u8]>,
        options: impl Into<ModuleOptions>,
    ) -> Result<Deployed<P, R>> {
        let ModuleOptions { limits, isolation, .. } = options.into();
        let module = self.kernels.deploy(name, &binary(name, module.as_ref())?, limits, isolation);
        Ok(Deployed::new(module.map_err(|e| Error::Argument(format!("kernel {name}: {e}")))?))
    }

    /// Zeroed memory of the node, which holds these bytes; its place.
    pub fn load(&mut self, bytes: &[u8]) -> Result<Place> {
        let place = self.alloc(bytes.len() as u64)?;
        self.write(place, bytes)?;
        Ok(place)
    }

    /// Runs calls with up to `in_flight` of them under way: as soon as one ends, the next one begins. Their replies come
    /// in the order in which they end.
    ///
    /// ```
    /// # use remora::{Get, Placement, model::{ModelledClient, Platform}};
    /// # fn main() -> remora::model::Result<()> {
    /// # let mut client = ModelledClient::new(&Platform::load("strom-10g")?)?;
    /// let table = client.load_table((0..64u8).map(|n| ([n], [n])))?;
    /// let keys: Vec<[u8; 1]> = (0..64).map(|n| [n]).collect();
    /// let calls = keys.iter().map(|key| Get::new(&table, key));
    /// let replies = client.run(Placement::Nic, calls, 16)?;
    /// assert_eq!(replies.len(), 64);
    /// println!("64 look-ups on the NIC took {:?}", client.now());
    /// # Ok(())
    /// # }
    /// ```
    pub fn run<C: TypedCall>(
        &mut self,
        placement: Placement,
        calls: impl IntoIterator<Item = C>,
        in_flight: usize,
    ) -> Result<Vec<Timed<C::Reply>>> {
        self.pair.serve(placement)?;
        let in_flight = in_flight.clamp(1, MAX_CALLS);
        let (mut calls, mut under_way) = (calls.into_iter(), HashMap::new());
        let (mut free, mut params, mut replies) = ((0..in_flight as u32).collect::<Vec<_>>(), Vec::new(), Vec::new());
        loop {
            while let Some(tag) = free.pop() {
                let Some(call) = calls.next() else {
                    free.push(tag);
                    break;
                };
                params.clear();
                call.encode(&mut params);
                self.submit(placement, &call, &params, tag)?;
                under_way.insert(tag, call);
            }
            if under_way.is_empty() {
                return Ok(replies);
            }
            let mut ended: Vec<(u32, Status, Vec<u8>, Duration)> = Vec::new();
            let went_on = self.pair.poll(&mut |done| {
                ended.push((done.tag, done.status, done.reply.to_vec(), duration(done.latency)));
            })?;
            if !went_on {
                return Err(ModelledError::Still(under_way.len()));
            }
            for (tag, status, reply, latency) in ended {
                let Some(call) = under_way.remove(&tag) else { continue };
                free.push(tag);
                replies.push(Timed { reply: finish(&call, Ok((placement, status, reply)))?, latency });
            }
        }
    }

    fn submit<C: TypedCall>(&mut self, placement: Placement, call: &C, params: &[u8], tag: u32) -> Result<()> {
        if USER_OPS.contains(&call.op()) {
            let lacks = |section| ModelledError::Instruction { platform: self.platform.clone(), section };
            self.pair.spec().node.instruction(placement).map_err(lacks)?;
        }
        let full = match call.payload() {
            None => self.pair.submit(placement, call.op(), params, tag),
            Some(payload) => {
                let memory = self.pair.client_memory(payload.len().max(8) as u64)?;
                // In bounds: the memory was made for it.
                let _ = memory.write(memory.va(), &payload);
                self.pair.submit_stream(call.op(), params, (&memory, memory.va(), payload.len() as u32), tag)
            }
        };
        full.map_err(|full| Error::Argument(full.to_string()).into())
    }
}

impl Arena for ModelledClient {
    type Error = ModelledError;

    fn alloc(&mut self, len: u64) -> Result<Place> {
        let region = self.pair.alloc(len.max(8))?;
        let place = Place { va: region.va(), key: region.key() };
        self.regions.insert(place.key, region);
        Ok(place)
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<()> {
        let region = self.regions.get(&at.key).ok_or_else(|| Error::Argument("no region has that key".into()))?;
        region.write(at.va, bytes).map_err(|e| Error::Argument(e.to_string()).into())
    }
}

impl sealed::Sealed for &mut ModelledClient {}

impl Caller for &mut ModelledClient {
    type Outcome<C: TypedCall> = Result<Timed<C::Reply>>;

    fn call_at<C: TypedCall>(self, placement: impl Into<Option<Placement>>, call: C) -> Self::Outcome<C> {
        let reply = match placement.into() {
            Some(placement) => self.run(placement, [call], 1)?.pop(),
            None => {
                let mut params = Vec::new();
                call.encode(&mut params);
                let (kind, begun) = (CallKind::of(call.op(), &params), self.now());
                let Choice { placement, ticket } = self.placer.choose(kind, 0, || begun.as_nanos() as u64);
                let ran = self.run(placement, [call], 1);
                if let Some(ticket) = ticket {
                    self.placer.ended(ticket, self.now().as_nanos() as u64, ran.is_ok());
                }
                ran?.pop()
            }
        };
        reply.ok_or(ModelledError::Still(1))
    }
}

/// Of the model's keys and numbers.
const SEED: u64 = 42;

fn duration(time: remora_model::time::Ps) -> Duration {
    Duration::from_nanos((time.0 + 500) / 1000)
}

//! A target without a network, for tests: the real kernels over memory of this process.

use std::sync::Arc;
use std::time::Duration;

use remora_kernel::{Call, Limits, Placement, Runner, Status, host_runner};
use remora_lab::writer::{WriterConfig, fill_object};
use remora_memory::{Access, Buffer, Pd, Region, Registry};
use remora_model::time::Ps;
use remora_real::{LinkKind, RemoteRegion};
use remora_service::{Full, MAX_REPLY};

use crate::StudyError;
use crate::connection::{CallAnswer, Caller, Connection, Storage};
use crate::load::Trouble;
use crate::measure::Counts;

/// A node and its client in one.
pub struct Local {
    registry: Arc<Registry>,
    pd: Pd,
    runner: Box<dyn Runner + Send>,
    regions: Vec<Arc<Region>>,
    round_trips: u64,
    calls: u64,
    turns: u64,
    /// The writer's region and settings, and the version it is at: it moves on whenever the target is polled.
    writer: Option<(Arc<Region>, WriterConfig, u64)>,
    /// What it does wrong.
    pub fault: LocalFault,
}

/// What a target does wrong.
#[derive(Clone, Copy)]
pub enum LocalFault {
    None,
    /// Damages the byte with this number of every reply.
    Byte(usize),
    /// Ends every call with this status.
    Status(Status),
    /// Ends every second call with this status.
    Sometimes(Status),
}

impl Local {
    pub fn new() -> Self {
        let registry = Arc::new(Registry::new([1; 32]));
        let pd = registry.alloc_pd();
        let runner = host_runner(registry.clone(), true, 256, Limits::default());
        Self {
            registry,
            pd,
            runner,
            regions: Vec::new(),
            round_trips: 0,
            calls: 0,
            turns: 0,
            writer: None,
            fault: LocalFault::None,
        }
    }

    fn region(&self, region: &RemoteRegion) -> Arc<Region> {
        self.registry.lookup(region.key).expect("a region of this target")
    }
}

impl Caller for Local {
    type Error = StudyError;

    /// A microsecond for each turn.
    fn now(&self) -> Ps {
        Ps::from_us(self.turns)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn submit(&mut self, placement: Placement, op: u64, params: &[u8], tag: u32) -> Result<(), Full> {
        let mut call = Call::default();
        call.recycle(op, MAX_REPLY as u32);
        (call.pd, call.tag) = (Some(self.pd), tag.into());
        call.params.extend_from_slice(params);
        self.round_trips += if placement == Placement::Client { 2 } else { 1 };
        self.runner.start(call).map_err(|_| Full)
    }

    fn poll(&mut self, done: &mut dyn FnMut(CallAnswer<'_>)) -> Result<bool, StudyError> {
        self.turns += 1;
        if let Some((region, config, version)) = &mut self.writer {
            *version += 1;
            let (size, object) = (config.object_size as usize, *version % u64::from(config.objects));
            let mut bytes = vec![0; size];
            fill_object(object, *version, &mut bytes);
            region.write(region.va() + object * size as u64, &bytes).expect("in bounds");
        }
        let (fault, calls, at) = (self.fault, &mut self.calls, Some(Ps::from_us(self.turns)));
        self.runner.poll(&mut |mut call, mut status| {
            *calls += 1;
            match fault {
                LocalFault::Status(other) => status = other,
                LocalFault::Sometimes(other) if *calls % 2 == 1 => status = other,
                LocalFault::Byte(at) => call.reply.get_mut(at).into_iter().for_each(|byte| *byte ^= 1),
                _ => {}
            }
            done(CallAnswer { tag: call.tag as u32, status, reply: &call.reply, at });
        });
        Ok(true)
    }

    fn refused(&self, placement: Placement) -> StudyError {
        StudyError::Refused { placement, link: LinkKind::Shm }
    }

    fn trouble(&self, placement: Placement, trouble: Trouble) -> StudyError {
        StudyError::of(placement, LinkKind::Shm, trouble)
    }
}

impl Storage for Local {
    fn link(&self) -> LinkKind {
        LinkKind::Shm
    }

    fn alloc(&mut self, len: u64) -> Result<RemoteRegion, StudyError> {
        let buffer = Buffer::anonymous(len as usize).expect("memory");
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let region = self.registry.register(self.pd, &buffer, 0, len as usize, None, access).expect("room");
        self.regions.push(region.clone());
        Ok(RemoteRegion { va: region.va(), key: region.key(), len })
    }

    fn write(&mut self, region: &RemoteRegion, offset: u64, data: &[u8]) -> Result<(), StudyError> {
        self.region(region).write(region.va + offset, data).expect("in bounds");
        Ok(())
    }

    fn start_writer(&mut self, region: &RemoteRegion, config: &WriterConfig) -> Result<(), StudyError> {
        assert!(self.writer.is_none(), "the last writer was not stopped");
        self.writer = Some((self.region(region), *config, 0));
        Ok(())
    }

    fn stop_writer(&mut self) -> Result<u64, StudyError> {
        Ok(self.writer.take().expect("a writer").2)
    }
}

impl Connection for Local {
    fn counts(&self) -> Counts {
        Counts { round_trips: self.round_trips, wire_bytes: self.round_trips * 100, retransmits: 0 }
    }

    fn node_cpu_ns(&mut self) -> Result<u64, StudyError> {
        Ok(Duration::from_millis(self.round_trips).as_nanos() as u64)
    }
}

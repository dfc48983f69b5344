//! What calls and stores go to: a node reached over one link, or a modelled one.

use std::time::Duration;

use remora_kernel::{Placement, Status};
use remora_lab::writer::{self, WriterConfig};
use remora_model::time::Ps;
use remora_real::{Client, LinkKind, RemoteRegion, RingConfig};
use remora_service::{CallKind, Full, Placer};

use crate::StudyError;
use crate::load::{Trouble, system_time};
use crate::measure::Counts;

/// Takes calls of kernels, and has the clock that they are timed by.
pub trait Caller {
    /// Why calls end early.
    type Error;

    /// The present.
    fn now(&self) -> Ps;

    /// No answer for so long is a failure.
    fn patience(&self) -> Duration;

    /// Starts the kernel `op` in a placement. `tag` comes back with the answer.
    fn submit(&mut self, placement: Placement, op: u64, params: &[u8], tag: u32) -> Result<(), Full>;

    /// As [`submit`](Self::submit), by rings in memory; in the same way where there are none.
    fn submit_by_ring(&mut self, placement: Placement, op: u64, params: &[u8], tag: u32) -> Result<(), Full> {
        self.submit(placement, op, params, tag)
    }

    /// Starts a kernel at a place that the caller chooses; `class` tells calls apart. Returns the place. Callers that do not
    /// choose have the NIC.
    fn submit_auto(&mut self, (op, _class): (u64, u64), params: &[u8], tag: u32) -> Result<Placement, Full> {
        self.submit(Placement::Nic, op, params, tag).map(|()| Placement::Nic)
    }

    /// Who chooses places, if somebody does.
    fn placer(&mut self) -> Option<&mut Placer> {
        None
    }

    /// Drives everything for a turn; `done` gets each answer. False if nothing is left to happen.
    fn poll(&mut self, done: &mut dyn FnMut(CallAnswer<'_>)) -> Result<bool, Self::Error>;

    /// As [`poll`](Self::poll); in modelled time no further than `until`.
    fn poll_until(&mut self, _until: Ps, done: &mut dyn FnMut(CallAnswer<'_>)) -> Result<bool, Self::Error> {
        self.poll(done)
    }

    /// The error that no call is taken, though few are under way.
    fn refused(&self, placement: Placement) -> Self::Error;

    /// The error that this trouble of a loop is.
    fn trouble(&self, placement: Placement, trouble: Trouble) -> Self::Error;
}

/// How a call ended.
#[derive(Clone, Copy, Debug)]
pub struct CallAnswer<'a> {
    /// The caller's mark.
    pub tag: u32,
    /// Its outcome.
    pub status: Status,
    /// Its reply.
    pub reply: &'a [u8],
    /// When it ended, by a modelled clock; else it has just ended.
    pub at: Option<Ps>,
}

impl CallAnswer<'_> {
    /// When it ended.
    pub fn ended(&self) -> Ps {
        self.at.unwrap_or_else(system_time)
    }
}

/// Memory of a node that a store is laid out in.
pub trait Storage {
    /// The way that packets take.
    fn link(&self) -> LinkKind;

    /// Registers zeroed memory on the node, which any connection may use by its key while this one lasts.
    fn alloc(&mut self, len: u64) -> Result<RemoteRegion, StudyError>;

    /// Copies bytes into a region. Nothing may be under way.
    fn write(&mut self, region: &RemoteRegion, offset: u64, data: &[u8]) -> Result<(), StudyError>;

    /// Starts the node's writer on a region. There is one writer at a time.
    fn start_writer(&mut self, region: &RemoteRegion, config: &WriterConfig) -> Result<(), StudyError>;

    /// Stops the writer. Returns how many updates it made.
    fn stop_writer(&mut self) -> Result<u64, StudyError>;
}

/// A connection to a node. [`Client`] is one; tests bring their own.
pub trait Connection: Caller<Error = StudyError> + Storage {
    /// What the link has carried so far.
    fn counts(&self) -> Counts;

    /// CPU time that the node has used so far, in nanoseconds. Asks the node, so nothing may be under way.
    fn node_cpu_ns(&mut self) -> Result<u64, StudyError>;
}

/// Opens rings in memory to the NIC and the host of each client's node.
pub fn open_rings(clients: &mut [Client]) -> Result<(), StudyError> {
    for client in clients {
        for placement in [Placement::Nic, Placement::Host] {
            client.open_rings(placement, RingConfig::default())?;
        }
    }
    Ok(())
}

impl Caller for Client {
    type Error = StudyError;

    fn now(&self) -> Ps {
        system_time()
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn submit(&mut self, placement: Placement, op: u64, params: &[u8], tag: u32) -> Result<(), Full> {
        Client::submit(self, placement, op, params, tag)
    }

    fn submit_by_ring(&mut self, placement: Placement, op: u64, params: &[u8], tag: u32) -> Result<(), Full> {
        Client::submit_by_ring(self, placement, op, params, tag)
    }

    fn submit_auto(&mut self, (op, class): (u64, u64), params: &[u8], tag: u32) -> Result<Placement, Full> {
        Client::submit_auto(self, CallKind { op, class }, params, false, tag)
    }

    fn placer(&mut self) -> Option<&mut Placer> {
        Some(Client::placer(self))
    }

    fn poll(&mut self, done: &mut dyn FnMut(CallAnswer<'_>)) -> Result<bool, StudyError> {
        Client::poll(self, &mut |tag, status, reply| done(CallAnswer { tag, status, reply, at: None }))?;
        Ok(true)
    }

    fn refused(&self, placement: Placement) -> StudyError {
        StudyError::Refused { placement, link: self.link() }
    }

    fn trouble(&self, placement: Placement, trouble: Trouble) -> StudyError {
        StudyError::of(placement, Client::link(self), trouble)
    }
}

impl Storage for Client {
    fn link(&self) -> LinkKind {
        Client::link(self)
    }

    fn alloc(&mut self, len: u64) -> Result<RemoteRegion, StudyError> {
        Ok(Client::alloc(self, len)?)
    }

    fn write(&mut self, region: &RemoteRegion, offset: u64, data: &[u8]) -> Result<(), StudyError> {
        Ok(Client::write(self, region, offset, data)?)
    }

    fn start_writer(&mut self, region: &RemoteRegion, config: &WriterConfig) -> Result<(), StudyError> {
        Ok(writer::start_writer(self, region, config)?)
    }

    fn stop_writer(&mut self) -> Result<u64, StudyError> {
        Ok(writer::stop_writer(self)?)
    }
}

impl Connection for Client {
    fn counts(&self) -> Counts {
        let counters = self.counters();
        Counts { round_trips: counters.round_trips, wire_bytes: counters.wire_bytes, retransmits: counters.retransmits }
    }

    fn node_cpu_ns(&mut self) -> Result<u64, StudyError> {
        Ok(Client::node_cpu_ns(self)?)
    }
}

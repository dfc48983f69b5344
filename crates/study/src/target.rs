//! What a study runs against: a node, reached over one link.

use remora_kernel::Status;
use remora_real::{Client, Error, RemoteRegion, WriterConfig};
use remora_service::Full;

use crate::measure::Counts;
use remora_kernel::Placement;
use remora_real::LinkKind;

/// A connection to a node. [`Client`] is one; tests bring their own.
pub trait Target {
    /// The way that packets take.
    fn link(&self) -> LinkKind;

    /// Starts the kernel `op` in a placement. `tag` comes back with the result.
    fn submit(&mut self, placement: Placement, op: u64, params: &[u8], tag: u32) -> Result<(), Full>;

    /// Drives everything; `done` gets each finished call's tag, status and reply. Returns how many finished.
    fn poll(&mut self, done: &mut dyn FnMut(u32, Status, &[u8])) -> Result<usize, Error>;

    /// What the link has carried so far.
    fn counts(&self) -> Counts;

    /// CPU time that the node has used so far, in nanoseconds. Asks the node, so nothing may be under way.
    fn node_cpu_ns(&mut self) -> Result<u64, Error>;

    /// Registers zeroed memory on the node, which any connection may use by its key while this one lasts.
    fn alloc(&mut self, len: u64) -> Result<RemoteRegion, Error>;

    /// Copies bytes into a region. Nothing may be under way.
    fn write(&mut self, region: &RemoteRegion, offset: u64, data: &[u8]) -> Result<(), Error>;

    /// Starts the node's writer on a region. There is one writer at a time.
    fn start_writer(&mut self, region: &RemoteRegion, config: &WriterConfig) -> Result<(), Error>;

    /// Stops the writer. Returns how many updates it made.
    fn stop_writer(&mut self) -> Result<u64, Error>;
}

impl Target for Client {
    fn link(&self) -> LinkKind {
        Client::link(self)
    }

    fn submit(&mut self, placement: Placement, op: u64, params: &[u8], tag: u32) -> Result<(), Full> {
        Client::submit(self, placement, op, params, tag)
    }

    fn poll(&mut self, done: &mut dyn FnMut(u32, Status, &[u8])) -> Result<usize, Error> {
        Client::poll(self, done)
    }

    fn counts(&self) -> Counts {
        let counters = self.counters();
        Counts { round_trips: counters.round_trips, wire_bytes: counters.wire_bytes, retransmits: counters.retransmits }
    }

    fn node_cpu_ns(&mut self) -> Result<u64, Error> {
        Client::node_cpu_ns(self)
    }

    fn alloc(&mut self, len: u64) -> Result<RemoteRegion, Error> {
        Client::alloc(self, len)
    }

    fn write(&mut self, region: &RemoteRegion, offset: u64, data: &[u8]) -> Result<(), Error> {
        Client::write(self, region, offset, data)
    }

    fn start_writer(&mut self, region: &RemoteRegion, config: &WriterConfig) -> Result<(), Error> {
        Client::start_writer(self, region, config)
    }

    fn stop_writer(&mut self) -> Result<u64, Error> {
        Client::stop_writer(self)
    }
}

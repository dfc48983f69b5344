//! A client and a node: a fabric of two machines and one connection; or clients, with a connection each.

use std::sync::Arc;

use remora_kernel::hll::Sketch;
use remora_kernel::{Builtins, Kernel, Placement, op};
use remora_memory::Region;
use remora_service::{Full, Placing};

use super::client::{ConnectionId, Done, RawVerb};
use super::fabric::{Counts, Fabric, FabricSpec};
use super::network::{Cable, NetworkSpec};
use super::writer::Writer;
use super::{PairSpec, TraceEntry, WorldError};
use crate::resource::Usage;
use crate::time::Ps;

/// The first client's machine. The node's is behind all clients'.
const CLIENT: u16 = 0;

/// A client, or some that are alike, and a node.
pub struct Pair {
    pub(super) fabric: Fabric,
    /// One of each client.
    connections: Vec<ConnectionId>,
    /// Up to which part of all calls each client and those before it have, if they are not all alike.
    shares: Vec<f64>,
    spec: PairSpec,
}

impl Pair {
    /// A connected pair of this hardware, with the built-in kernels.
    pub fn new(spec: &PairSpec) -> Result<Self, WorldError> {
        Self::with_kernels(spec, Builtins, &op::BUILTINS)
    }

    /// A connected pair of this hardware with these kernels; the NIC answers to `ops`.
    pub fn with_kernels<K>(spec: &PairSpec, kernels: K, ops: &[u64]) -> Result<Self, WorldError>
    where
        K: Kernel + Clone + 'static,
    {
        let PairSpec { mtu, loss, seed, rpc_place, .. } = *spec;
        let clients = spec.clients.max(1);
        let network = match spec.switched() {
            None => NetworkSpec { switches: Vec::new(), cables: vec![Cable::Direct(0, 1)] },
            Some(switch) => NetworkSpec::star(switch, clients + 1),
        };
        let all = std::iter::repeat_n(spec.client.clone(), clients.into());
        let machines = all.chain([spec.node.clone()]).collect();
        let mut fabric = Fabric::with_kernels(
            &FabricSpec { machines, network, devices: Vec::new(), mtu, loss, seed, rpc_place },
            kernels,
            ops,
        )?;
        let connections = (0..clients)
            .map(|client| fabric.connect_by(client, clients, spec.queue_pairs))
            .collect::<Result<_, _>>()?;
        let sum = |sum: &mut f64, share: f64| {
            *sum += share;
            Some(*sum)
        };
        let shares =
            if spec.client_skew > 0.0 { spec.shares().into_iter().scan(0.0, sum).collect() } else { Vec::new() };
        Ok(Self { fabric, connections, shares, spec: spec.clone() })
    }

    /// The node's machine.
    pub(super) fn node(&self) -> u16 {
        self.connections.len() as u16
    }

    /// The connection of a call: clients take turns, or have their parts of all tags.
    fn of(&self, tag: u32) -> ConnectionId {
        let turn = tag as usize % self.connections.len();
        if self.shares.is_empty() {
            return self.connections[turn];
        }
        // The golden ratio's multiples fill the parts evenly.
        let place = (f64::from(tag) + 0.5) * 0.618_033_988_749_895 % 1.0;
        let client = self.shares.partition_point(|share| *share <= place);
        self.connections.get(client).copied().unwrap_or(self.connections[turn])
    }

    /// The present.
    pub fn now(&self) -> Ps {
        self.fabric.now()
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.fabric.events()
    }

    /// Keeps a trace from now on, or hands over the one kept so far.
    pub fn trace(&mut self) -> Vec<TraceEntry> {
        self.fabric.trace()
    }

    /// What the pair was made of.
    pub fn spec(&self) -> &PairSpec {
        &self.spec
    }

    /// How busy everything of client and node was since usage was last forgotten.
    pub fn usage(&self) -> [Vec<Usage>; 2] {
        [CLIENT, self.node()].map(|machine| self.fabric.usage(machine))
    }

    /// Counts since the pair was made.
    pub fn counts(&self) -> Counts {
        self.fabric.counts()
    }

    /// Lets the NIC or the accelerator serve RPC verbs from now on, as the placement says; none may be under way.
    pub fn serve(&mut self, placement: Placement) -> Result<(), WorldError> {
        self.spec = self.spec.clone().serving(placement);
        self.fabric.serve(self.node(), self.spec.rpc_place)
    }

    /// Forgets how busy everything was.
    pub fn reset_usage(&mut self) {
        self.fabric.reset_usage();
    }

    /// Zeroed memory on the node.
    pub fn alloc(&mut self, len: u64) -> Result<Arc<Region>, WorldError> {
        self.fabric.alloc(self.node(), len)
    }

    /// Gives the client `len` bytes of memory, which [`submit_stream`](Self::submit_stream) and
    /// [`submit_write`](Self::submit_write) send from.
    pub fn client_memory(&mut self, len: u64) -> Result<Arc<Region>, WorldError> {
        self.fabric.alloc(CLIENT, len)
    }

    /// From now on the links have this part of their rates, 1 for all of it.
    pub fn cap_links(&mut self, part: f64) {
        self.fabric.cap_links(part);
    }

    /// Lets somebody change the node's memory, or nobody.
    pub fn set_writer(&mut self, writer: Option<Writer>) {
        self.fabric.set_writer(self.node(), writer);
    }

    /// From now on the values of all incoming WRITEs go through a sketch on the node's NIC, or no more.
    pub fn set_tap(&mut self, sketch: Option<Sketch>) {
        self.fabric.set_tap(self.node(), sketch);
    }

    /// The sketch.
    pub fn tap(&self) -> Option<&Sketch> {
        self.fabric.tap(self.node())
    }

    /// The client's core does what kernel `op` does with `bytes` of data. What is submitted next waits for the core.
    pub fn client_work(&mut self, op: u64, bytes: usize) {
        self.fabric.work(CLIENT, op, bytes);
    }

    /// Starts the kernel `op` in a placement, now. `tag` comes back with the result.
    pub fn submit(&mut self, placement: Placement, op: u64, params: &[u8], tag: u32) -> Result<(), Full> {
        self.fabric.submit(self.of(tag), placement, op, params, tag)
    }

    /// Says who places calls that are [left](Self::submit_anywhere) to the node; none may be under way.
    pub fn place_calls(&mut self, placing: Placing) {
        self.fabric.place_calls(self.node(), placing);
    }

    /// Starts the kernel `op` at the node's NIC, or its host if the node [places](Self::place_calls) it there, now.
    pub fn submit_anywhere(&mut self, op: u64, params: &[u8], tag: u32) -> Result<(), Full> {
        self.fabric.submit_anywhere(self.of(tag), op, params, tag)
    }

    /// A verb on `len` bytes at the start of a region of the node.
    pub fn submit_raw(&mut self, verb: RawVerb, region: &Arc<Region>, len: u32, tag: u32) -> Result<(), Full> {
        self.fabric.submit_raw(self.of(0), verb, region, len, tag)
    }

    /// Calls a kernel with a payload stream: `len` bytes from `va` on of the client's memory.
    pub fn submit_stream(
        &mut self,
        op: u64,
        params: &[u8],
        from: (&Arc<Region>, u64, u32),
        tag: u32,
    ) -> Result<(), Full> {
        self.fabric.submit_stream(self.of(0), op, params, from, tag)
    }

    /// WRITEs `len` bytes from `va` on of the client's memory to `to.1` in a region of the node; done when acknowledged.
    pub fn submit_write(
        &mut self,
        from: (&Arc<Region>, u64, u32),
        to: (&Arc<Region>, u64),
        tag: u32,
    ) -> Result<(), Full> {
        self.fabric.submit_write(self.of(0), from, to, tag)
    }

    /// Goes on until a call has ended, and hands it over. False if nothing is left to happen.
    pub fn poll(&mut self, done: &mut dyn FnMut(Done<'_>)) -> Result<bool, WorldError> {
        self.fabric.poll(done)
    }

    /// As [`poll`](Self::poll), but no further than `until`: then it is that time, and nothing has ended.
    pub fn poll_until(&mut self, until: Ps, done: &mut dyn FnMut(Done<'_>)) -> Result<bool, WorldError> {
        self.fabric.poll_until(until, done)
    }
}

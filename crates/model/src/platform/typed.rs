//! The typed form of a platform file: one struct for each section, a field for each key.
//!
//! Times are picoseconds, sizes bytes, bandwidths bytes a second, clocks and rates hertz, powers watts.

use super::error::{PlatformError, Problem};
use super::params::{Params, Section};
use crate::resource::Order;

type Result<T> = std::result::Result<T, PlatformError>;

/// Declares a section: its keys are the names of the fields, read by the method of [`Section`] that stands behind. What it
/// describes may have queues.
macro_rules! section {
    (
        $(#[$doc:meta])*
        $name:ident {
            $($(#[$field_doc:meta])* $field:ident: $kind:ty = $read:ident($($least:expr)?),)*
        }
        $(queued as $order:ident)?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $kind,)*
            $(
                /// How its queues are served.
                pub $order: Order,
            )?
        }

        impl $name {
            pub(super) fn read(section: &Section<'_>) -> Result<Self> {
                Ok(Self {
                    $($field: section.$read(stringify!($field) $(, $least)?)?,)*
                    $($order: section.order(),)?
                })
            }
        }
    };
}

/// What runs kernels on the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicDevice {
    /// The NIC's own data path, as in StRoM: section `nic.pipeline`.
    Pipeline,
    /// Cores on the card, as on BlueField: section `nic.cores`.
    Cores,
    /// Remora's software NIC on this machine: section `software`.
    Software,
}

/// What runs kernels on an accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccelDevice {
    /// One that reaches the host's memory by a coherent link, as in RAMBDA.
    Coherent,
    /// One with memory of its own that holds the state.
    Local,
}

/// Which placements exist, and on what device. The client and the host run kernels on their cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placements {
    /// Kernels at the client: one-sided verbs.
    pub client: bool,
    /// Kernels on the node's cores.
    pub host: bool,
    /// Kernels on the node's NIC.
    pub nic: Option<NicDevice>,
    /// Kernels on an accelerator.
    pub accel: Option<AccelDevice>,
}

/// How a command reaches the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandPath {
    /// In the core's own store.
    Store,
    /// The NIC fetches it over PCIe after a doorbell.
    Fetch,
}

section! {
    /// Processor cores: `host.core`.
    Core {
        /// Cores.
        cores: u64 = count(1),
        /// Clock.
        clock: f64 = rate(),
        /// Cache misses that one core has under way.
        misses: u64 = count(1),
        /// One look of a polling loop.
        poll: u64 = time(),
        /// From a message seen to its kernel's first step, time of the core.
        dispatch: u64 = time(),
        /// Handing one command to the NIC, time of the core.
        issue: u64 = time(),
        /// Turning from one kernel to another.
        switch: u64 = time(),
        /// Taking a completion off its queue, time of the core.
        complete: u64 = time_or_none(),
    }
    queued as order
}

section! {
    /// Cores of a client, where kernels wait for verbs rather than for memory: `client.core`.
    ClientCore {
        /// Cores.
        cores: u64 = count(1),
        /// Clock.
        clock: f64 = rate(),
        /// One look of a polling loop.
        poll: u64 = time(),
        /// Handing one command to the NIC, time of the core.
        issue: u64 = time(),
        /// Turning from one kernel to another.
        switch: u64 = time(),
        /// Taking a completion off its queue, time of the core.
        complete: u64 = time_or_none(),
    }
    queued as order
}

impl From<ClientCore> for Core {
    fn from(core: ClientCore) -> Self {
        let ClientCore { cores, clock, poll, issue, switch, complete, order } = core;
        Self { cores, clock, misses: 1, poll, dispatch: 0, issue, switch, complete, order }
    }
}

section! {
    /// Work on bytes that a kernel looks at one by one: `checksum`.
    Checksum {
        /// Bytes a second of CRC-64 by one host core.
        crc64: f64 = bandwidth(),
    }
}

section! {
    /// Work of one core on a stream of values of 8 bytes: `stream`.
    Stream {
        /// Bytes a second that one thread spreads over partitions, cache lines gathered for each.
        partition: f64 = bandwidth(),
        /// Bytes a second that one thread, alone on its core, puts into a HyperLogLog sketch.
        hyperloglog: f64 = bandwidth(),
        /// What two threads of one core do together, as a part of what one does alone.
        pair: f64 = factor(),
    }
}

section! {
    /// Instructions of users' kernels, as the WebAssembly runtime counts them: `module.core` for every kind of core,
    /// `module.logic` for the data path of a NIC and an accelerator.
    Module {
        /// Cycles of an instruction.
        instruction: f64 = cycles(),
    }
}

section! {
    /// Remote procedure calls over kernel TCP, as a baseline: `tcp`.
    Tcp {
        /// A call whose reply is small.
        rpc: u64 = time(),
        /// Bytes of the reply that cost nothing more.
        free: u64 = size(0),
        /// Bytes a second of what the reply has beyond.
        stream: f64 = bandwidth(),
    }
}

section! {
    /// The last-level cache: `host.cache`.
    Cache {
        /// Bytes.
        size: u64 = size(1),
        /// A hit.
        latency: u64 = time(),
        /// Ways.
        ways: u64 = count(1),
    }
}

section! {
    /// Memory of the host: `host.dram`.
    Dram {
        /// An idle load that misses all caches.
        latency: u64 = time(),
        /// Bytes a second, as used.
        bandwidth: f64 = bandwidth(),
    }
    queued as order
}

section! {
    /// The link between the host's two sockets, if it has two: `host.sockets`.
    Sockets {
        /// What a load of the other socket's memory takes beyond one of its own, both ways.
        hop: u64 = time(),
        /// Bytes a second each way.
        bandwidth: f64 = bandwidth(),
    }
    queued as order
}

section! {
    /// PCIe between NIC and host: `host.pcie`.
    Pcie {
        /// A DMA read of 64 B, there and back.
        read_latency: u64 = time(),
        /// A posted DMA write until a core can see it.
        write_latency: u64 = time(),
        /// A core's store until the device sees it.
        mmio_latency: u64 = time(),
        /// Bytes a second in each direction, headers of TLPs included.
        bandwidth: f64 = bandwidth(),
        /// Bytes that a TLP has beside its payload.
        tlp_overhead: u64 = size(0),
        /// Payload of a TLP at most.
        max_payload: u64 = size(64),
        /// Bytes that one read asks for at most.
        max_request: u64 = size(64),
        /// Reads under way at most.
        tags: u64 = count(1),
    }
    queued as order
}

section! {
    /// The NIC's data path: `nic.pipeline`.
    Pipeline {
        /// Whether the command itself comes with the core's store; if not, the NIC fetches it over PCIe.
        command: CommandPath = command(),
        /// Bytes a cycle.
        width: u64 = size(1),
        /// Clock.
        clock: f64 = rate(),
        /// Cycles between two packets at least.
        packet_cycles: f64 = cycles(),
        /// Cycles from in to out when sending.
        tx_depth: f64 = cycles(),
        /// Cycles from in to out when receiving.
        rx_depth: f64 = cycles(),
        /// How often on each side a packet is held until it is whole.
        store_and_forward: u64 = count(0),
        /// Cycles of a kernel for each access, memory apart; 0 if kernels do not run there.
        kernel_cycles: f64 = cycles_or_none(),
        /// Messages a second at most.
        message_rate: f64 = rate(),
        /// Entries of the address translation.
        tlb_entries: u64 = count(1),
        /// Bytes of a page.
        page: u64 = size(4096),
        /// A miss of the translation.
        tlb_miss: u64 = time(),
        /// Bytes of payload that a command may hold itself.
        inline: u64 = size(0),
        /// Bytes of a command.
        wqe: u64 = size(1),
    }
    queued as order
}

section! {
    /// What the NIC keeps of queue pairs and regions: `nic.state`.
    NicState {
        /// Bytes of the cache for it.
        cache: u64 = size(64),
        /// Bytes of a queue pair's context.
        queue_pair: u64 = size(1),
        /// Bytes of a region's entry, and what of its translation an access needs.
        region: u64 = size(1),
    }
}

section! {
    /// What takes cores away from who polls on them: `host.jitter`, of hosts and clients.
    Jitter {
        /// The mean time between two interrupts of a core.
        interrupt_every: u64 = time(),
        /// What one takes.
        interrupt: u64 = time(),
        /// The mean time between two turns of somebody else on a core.
        preempted_every: u64 = time(),
        /// How long that takes.
        preempted: u64 = time(),
    }
}

section! {
    /// Cores on the NIC: `nic.cores`.
    NicCores {
        /// Cores.
        cores: u64 = count(1),
        /// Cache misses that one core has under way.
        misses: u64 = count(1),
        /// Work done in a time, as a part of what a host core does.
        speed: f64 = factor(),
        /// From a message seen to its kernel's first step, time of the core.
        dispatch: u64 = time(),
        /// Handing one command to the data path, time of the core.
        issue: u64 = time(),
        /// Bytes of the last-level cache.
        cache_size: u64 = size(1),
        /// A hit there.
        cache_latency: u64 = time(),
        /// Bytes of memory on the card.
        dram_size: u64 = size(1),
        /// A load from it.
        dram_latency: u64 = time(),
        /// Bytes a second of it.
        dram_bandwidth: f64 = bandwidth(),
        /// One access to host memory, 64 B, alone.
        host_read: u64 = time(),
        /// One of many accesses to host memory under way: time of the core.
        host_pipelined: u64 = time(),
    }
    queued as order
}

section! {
    /// What each core has in front of the last level, for cores that wait for their loads: `host.private`,
    /// `nic.cores.private`.
    PrivateCaches {
        /// Bytes of the first level.
        l1_size: u64 = size(64),
        /// A hit there.
        l1_cycles: f64 = cycles(),
        /// Bytes of the second level.
        l2_size: u64 = size(64),
        /// A hit there.
        l2_cycles: f64 = cycles(),
        /// Cores that share a second level.
        l2_cores: u64 = count(1),
        /// Pages whose translations a core holds.
        translations: u64 = count(1),
        /// Bytes of a page.
        page: u64 = size(4096),
        /// A line that another core has changed.
        transfer: u64 = time(),
        /// One comparison of a search.
        compare_cycles: f64 = cycles(),
    }
}

section! {
    /// Cores on the NIC as a machine of their own on the network: `nic.cores.machine`.
    CardMachine {
        /// Their clock.
        clock: f64 = rate(),
        /// One look of a polling loop.
        poll: u64 = time(),
        /// What all cores together do for each message, one after the other.
        shared: u64 = time_or_none(),
    }
}

section! {
    /// An accelerator: `accel`.
    Accel {
        /// Clock.
        clock: f64 = rate(),
        /// Requests to memory under way at most.
        in_flight: u64 = count(1),
        /// Cycles between two requests.
        issue_cycles: f64 = cycles(),
        /// A read over the link, alone.
        read_latency: u64 = time(),
        /// Bytes a second of the link.
        bandwidth: f64 = bandwidth(),
        /// Part of the bandwidth that reads of 64 B get.
        efficiency: f64 = part(),
        /// From a request written to memory until the accelerator knows.
        signal: u64 = time(),
        /// Handing one command to the NIC.
        doorbell: u64 = time(),
        /// Bytes of its own cache.
        cache_size: u64 = size(0),
        /// A hit there.
        cache_latency: u64 = time(),
        /// Serial work done in a time, as a part of what a host core does.
        compute: f64 = factor(),
    }
    queued as order
}

section! {
    /// The coherence controller of an accelerator: `accel.controller`.
    CoherenceController {
        /// Pages whose translation it holds.
        tlb_entries: u64 = count(1),
        /// Bytes of a page.
        page: u64 = size(4096),
        /// A walk of the page table.
        tlb_miss: u64 = time(),
        /// Cycles between two looks where it polls.
        poll_cycles: f64 = cycles(),
        /// Cycles of a step of a request, memory apart.
        step_cycles: f64 = cycles(),
    }
    queued as order
}

section! {
    /// Memory of an accelerator's own, with the clock that it has then: `accel.ddr`, `accel.hbm`.
    LocalMemory {
        /// An idle load.
        latency: u64 = time(),
        /// Bytes a second, as used.
        bandwidth: f64 = bandwidth(),
        /// Channels.
        channels: u64 = count(1),
        /// Consecutive bytes on one channel.
        interleave: u64 = size(64),
        /// Clock of the accelerator.
        clock: f64 = rate(),
    }
    queued as order
}

section! {
    /// CXL instead of the accelerator's link: `accel.cxl`.
    CxlLink {
        /// A read over the link, alone.
        read_latency: u64 = time(),
        /// Bytes a second that reads of 64 B get.
        bandwidth: f64 = bandwidth(),
        /// Clock of the controller.
        clock: f64 = rate(),
        /// Cycles between two requests.
        issue_cycles: f64 = cycles(),
    }
    queued as order
}

section! {
    /// Persistent memory of the host: `nvm`.
    Nvm {
        /// An idle load.
        latency: u64 = time(),
        /// Bytes a second that the media read.
        read: f64 = bandwidth(),
        /// Bytes a second that the media write.
        write: f64 = bandwidth(),
        /// Bytes that the media write at once.
        block: u64 = size(64),
        /// Blocks in which lines meet before they are written.
        buffer: u64 = count(1),
        /// From a line written until it is durable.
        persist: u64 = time(),
    }
    queued as order
}

section! {
    /// What servers of rings need beyond the machine: `ring_server`.
    RingServer {
        /// A store until a core of the other socket sees it.
        remote: u64 = time(),
        /// Ways of the cache that devices fill.
        ddio_ways: u64 = count(1),
        /// One completion for so many replies of the accelerator.
        signalled: u64 = count(1),
        /// What a core computes for a request of the store: its hash and its reply.
        hash: u64 = time(),
        /// How often for a request the operating system takes a thread away.
        stalls: f64 = part(),
        /// For how long.
        stall: u64 = time(),
        /// Bytes of the card's memory that keep what was used last.
        card_cache: u64 = size(64),
        /// Lines that a core has under way when it reads rows of several.
        row_lines: u64 = count(1),
        /// Passing a message on by a core of a NIC that does nothing else with it.
        forward: u64 = time(),
        /// Power of the server beside the processors, NIC and accelerator.
        rest_power: f64 = watts(),
    }
}

section! {
    /// What racks of nodes that share memory and NICs need beyond the machine: `rack`.
    RackCosts {
        /// Nodes of a rack.
        nodes: u64 = count(1),
        /// Memory devices of the pool.
        devices: u64 = count(1),
        /// Bytes a second of each of them.
        device_bandwidth: f64 = bandwidth(),
        /// Links between the racks that a ToR switch of the baseline has.
        uplinks: u64 = count(1),
        /// Each switch beyond the first.
        hop: u64 = time(),
        /// A read of the pool's memory with commercial parts.
        commercial: u64 = time(),
        /// Ways of the DRAM cache.
        cache_ways: u64 = count(1),
        /// Subflows of a flow.
        subflows: u64 = count(1),
        /// Handing on one descriptor.
        forward: u64 = time(),
        /// The kernel sends a packet.
        send: u64 = time(),
        /// The kernel receives a packet.
        receive: u64 = time(),
        /// The kernel sends or receives an acknowledgement.
        ack: u64 = time(),
        /// An interrupt, until the kernel looks at what came.
        interrupt: u64 = time(),
        /// A thread that waits for data goes on.
        wake: u64 = time(),
        /// Bytes a second that a core copies.
        copy: f64 = bandwidth(),
        /// Bytes a second that a core adds to others.
        reduce: f64 = bandwidth(),
        /// Edges a second that all cores of a node go through.
        edges: f64 = rate(),
        /// Segments that TCP begins with.
        initial_window: u64 = count(1),
        /// TCP's shortest retransmission timeout.
        min_rto: u64 = time(),
        /// So long at most an acknowledgement waits for another segment.
        delayed_ack: u64 = time(),
        /// Bytes that a receiver has room for.
        window: u64 = size(4096),
        /// Bytes of a socket that may wait below TCP: small queues.
        small_queue: u64 = size(4096),
        /// From a buffer that is sent until TCP knows.
        completion: u64 = time(),
    }
    queued as order
}

section! {
    /// The wire: `ethernet`.
    Ethernet {
        /// Bytes a second.
        rate: f64 = bandwidth(),
        /// MAC, PHY of both sides and cable, one way.
        latency: u64 = time(),
        /// Bytes on the wire that a packet has beside its payload and RETH or AETH.
        overhead: u64 = size(0),
        /// Bytes of payload in a packet at most.
        mtu: u64 = size(64),
    }
    queued as order
}

section! {
    /// A switch between the NICs: `switch`.
    Switch {
        /// Port to port.
        latency: u64 = time(),
        /// Bytes of buffer for each port.
        buffer: u64 = size(64),
        /// Bytes that wait at a port from which on it marks packets (ECN); 0: it does not.
        mark: u64 = size_or_none(),
    }
    queued as order
}

section! {
    /// Power: `power`.
    Power {
        /// The host's or client's processor when all cores are busy.
        host_active: f64 = watts(),
        /// The host's or client's processor when idle.
        host_idle: f64 = watts(),
        /// The NIC when busy.
        nic_active: f64 = watts(),
        /// The NIC when idle.
        nic_idle: f64 = watts(),
        /// The accelerator when busy; 0 if there is none.
        accel_active: f64 = watts_or_none(),
        /// The accelerator when idle.
        accel_idle: f64 = watts_or_none(),
    }
}

section! {
    /// What the protocols of replicated records need beyond the machine: `replication`.
    Replication {
        /// Clients of each node, with one request under way each.
        workers: u64 = count(1),
        /// A compare-and-swap that a host's cores contend for.
        host_cas: u64 = time(),
        /// A compare-and-swap on the NIC.
        nic_cas: u64 = time(),
        /// Sending one INV.
        send_inv: u64 = time(),
        /// Sending one ACK.
        send_ack: u64 = time(),
        /// Between two messages to different peers.
        send_gap: u64 = time(),
        /// Bytes of a record.
        record: u64 = size(1),
        /// Bytes that a message has beside the record.
        header: u64 = size(0),
        /// Bringing a record to persistent memory.
        persist: u64 = time(),
        /// Writing a record to the volatile FIFO on the NIC.
        vfifo_write: u64 = time(),
        /// Writing a record to the durable FIFO on the NIC.
        dfifo_write: u64 = time(),
        /// Entries of the volatile FIFO, and of the durable one.
        fifo_entries: u64 = count(1),
        /// Writing a record and its timestamps to the host's cache.
        cache_write: u64 = time(),
        /// Finding a record.
        lookup: u64 = time(),
        /// Reading a line of metadata that the other side wrote last.
        coherence: u64 = time(),
        /// The broadcast engine, for each further destination.
        broadcast_gap: u64 = time(),
        /// Taking a batch of messages apart, for each destination.
        batch_unpack: u64 = time(),
    }
}

section! {
    /// What the operating system takes on this machine: `system`. All of it is measured.
    System {
        /// The cheapest system call.
        syscall: u64 = time(),
        /// From one thread to another on the same core, by a pipe.
        context_switch: u64 = time(),
        /// Until a thread asleep on another core goes on.
        wake: u64 = time(),
        /// 4 KB written to a file and brought to the disk.
        file_sync: u64 = time(),
        /// A cache line from one core to another and back.
        core_to_core: u64 = time(),
        /// A line of data over a ring in shared memory and one back.
        ring_round_trip: u64 = time(),
        /// A datagram of 64 B over loopback and one back, both ends polling.
        udp_round_trip: u64 = time(),
        /// Bytes a second that a core reads from memory.
        read: f64 = bandwidth(),
        /// Bytes a second that all cores together read from memory, if that was measured.
        read_all: Option<f64> = bandwidth_if_told(),
        /// Bytes a second that a core writes to memory.
        write: f64 = bandwidth(),
        /// Bytes a second that a core copies in memory.
        copy: f64 = bandwidth(),
        /// Bytes a second at which a core rewrites what another core has read.
        shared_write: f64 = bandwidth(),
        /// Bytes a second at which a core reads what another core has written.
        shared_read: f64 = bandwidth(),
        /// Bytes a second of the checksum of objects, CRC-64, in cache.
        crc64: f64 = bandwidth(),
        /// Bytes a second of the checksum of packets, ICRC, in cache.
        icrc: f64 = bandwidth(),
    }
}

section! {
    /// Kernels in one place over one link of Remora's software NIC, such as `software.udp.nic`. All of it is measured.
    ///
    /// What ends in `_each` is the time from one end to the next with 64 under way; everything else is for one alone.
    SoftwarePlace {
        /// A call that touches no memory; at the client, what one takes beyond its accesses.
        call: u64 = time(),
        /// One of 64 such calls.
        call_each: u64 = time(),
        /// An access of 64 B that is in the node's cache: at the client a one-sided read.
        step: u64 = time(),
        /// An access of 64 B in the node's cache, one of 64.
        step_each: u64 = time(),
        /// What a call takes more that is not over before the node looks at its links again: the acknowledgement of its
        /// request then leaves before the reply.
        long: u64 = time(),
        /// What a call takes more that is not over by then, one of 64.
        long_each: u64 = time(),
        /// A call that reads an element of 64 B and a value of so many bytes, which is the reply: sizes in a section.
        reply: Vec<(u64, u64)> = subcurve(),
        /// A call with such a reply, one of 64.
        reply_each: Vec<(u64, u64)> = subcurve(),
        /// A call with such a reply, one of 64, when one value in ten is a byte shorter and one call in thirty has an access
        /// more, so that packets form shorter runs of equal length.
        uneven_each: Vec<(u64, u64)> = subcurve(),
        /// What a call of one access takes more while a thread of the node writes elsewhere now and then.
        beside: u64 = time(),
        /// What a call takes more beside such a thread, one of 64.
        beside_each: u64 = time(),
        /// What the 99th percentile of a call takes more than the median.
        tail: u64 = time_or_none(),
        /// The same beside a thread of the node that writes objects elsewhere now and then, by their size.
        tail_beside: Vec<(u64, u64)> = subcurve_or_none(),
        /// As `reply`, by rings in memory instead of RPC verbs or SENDs; none at the client.
        ring: Vec<(u64, u64)> = subcurve_or_none(),
        /// As `ring`, one of 64.
        ring_each: Vec<(u64, u64)> = subcurve_or_none(),
    }
}

impl Placements {
    pub(super) fn read(params: &Params) -> Result<Self> {
        let s = params.section("placements");
        Ok(Self {
            client: s.word("client", &["core"])?.is_some(),
            host: s.word("host", &["core"])?.is_some(),
            nic: s.word("nic", &["pipeline", "cores", "software"])?.map(|word| match word {
                "pipeline" => NicDevice::Pipeline,
                "cores" => NicDevice::Cores,
                _ => NicDevice::Software,
            }),
            accel: s.word("accel", &["coherent", "local"])?.map(|word| match word {
                "coherent" => AccelDevice::Coherent,
                _ => AccelDevice::Local,
            }),
        })
    }
}

/// Reads a section if it is there.
pub(super) fn optional<T>(
    params: &Params,
    name: &str,
    read: impl FnOnce(&Section<'_>) -> Result<T>,
) -> Result<Option<T>> {
    params.has(name).then(|| read(&params.section(name))).transpose()
}

/// Reads a section that a placement needs.
pub(super) fn needed<T>(
    params: &Params,
    (placement, name): (&str, &'static str),
    read: impl FnOnce(&Section<'_>) -> Result<T>,
) -> Result<T> {
    match optional(params, name, read)? {
        Some(section) => Ok(section),
        None => {
            let line = params.word_line(placement).unwrap_or(1);
            Err(params.error(line, placement, Problem::NoDevice { name, like: params.unread_like(name) }))
        }
    }
}

//! What everything takes in a cluster.

use remora_replica::ddp::Where;

use crate::platform::Platform;
use crate::resource::Order;
use crate::time::Ps;

/// Shortest write of persistent memory: a cache line.
const LINE: u64 = 64;

/// Times in picoseconds, sizes in bytes, bandwidths in bytes a second; from a platform with a section `replication`.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// Cores of a host.
    pub host_cores: u64,
    /// Cores of a NIC.
    pub nic_cores: u64,
    /// One message taken, on a core of the host.
    pub host_dispatch: u64,
    /// One message taken, on a core of the NIC.
    pub nic_dispatch: u64,
    /// A record found, on the host.
    pub host_lookup: u64,
    /// A record found, on the NIC.
    pub nic_lookup: u64,
    /// A compare-and-swap on the host.
    pub host_cas: u64,
    /// A compare-and-swap on the NIC.
    pub nic_cas: u64,
    /// A record's metadata read or written in the host's cache.
    pub host_meta: u64,
    /// A record's metadata read or written in the NIC's cache.
    pub nic_meta: u64,
    /// A record's metadata read or written when the other side had it last.
    pub coherence: u64,
    /// Handing over an INV to be sent.
    pub send_inv: u64,
    /// Handing over a message without a record to be sent.
    pub send_ack: u64,
    /// Handing a message over for one more receiver.
    pub send_gap: u64,
    /// A broadcast engine's time for another receiver.
    pub broadcast_gap: u64,
    /// Taking a batched message apart, for each receiver.
    pub unpack: u64,
    /// Reading a record out of memory.
    pub record_read: u64,
    /// Writing a record into the host's cache.
    pub cache_write: u64,
    /// Making a record durable.
    pub persist: u64,
    /// Writing a record into the vFIFO.
    pub vfifo: u64,
    /// Writing a record into the dFIFO.
    pub dfifo: u64,
    /// Bytes of a record.
    pub record: u64,
    /// Bytes of a message without a record.
    pub header: u64,
    /// PCIe, one way.
    pub pcie_latency: u64,
    /// PCIe, each way.
    pub pcie_bandwidth: f64,
    /// Between two NICs, one way.
    pub wire_latency: u64,
    /// A port, each way.
    pub wire_bandwidth: f64,
    /// Bytes on the wire beside a message's.
    pub wire_overhead: u64,
    /// How tasks wait for cores of a host, and for those of a NIC.
    pub core_orders: (Order, Order),
    /// How PCIe's queues and those of the network are served.
    pub link_orders: (Order, Order),
}

impl Costs {
    /// Of a platform; `None` if it does not describe replication on SmartNICs with cores.
    pub fn new(platform: &Platform) -> Option<Self> {
        let r = platform.replication.as_ref()?;
        let (nic, cores) = (platform.nic.as_ref()?, platform.nic_cores.as_ref()?);
        Some(Self {
            host_cores: platform.host.cores,
            nic_cores: cores.cores,
            host_dispatch: platform.host.dispatch,
            nic_dispatch: cores.dispatch,
            host_lookup: r.lookup,
            nic_lookup: (r.lookup as f64 / cores.speed) as u64,
            host_cas: r.host_cas,
            nic_cas: r.nic_cas,
            host_meta: platform.cache.latency,
            nic_meta: cores.cache_latency,
            coherence: r.coherence,
            send_inv: r.send_inv,
            send_ack: r.send_ack,
            send_gap: r.send_gap,
            broadcast_gap: r.broadcast_gap,
            unpack: r.batch_unpack,
            record_read: platform.dram.latency + Ps::transfer(r.record, platform.dram.bandwidth).0,
            cache_write: r.cache_write,
            persist: r.persist,
            vfifo: r.vfifo_write,
            dfifo: r.dfifo_write,
            record: r.record,
            header: r.header,
            pcie_latency: nic.pcie.write_latency,
            pcie_bandwidth: nic.pcie.bandwidth,
            wire_latency: nic.ethernet.latency,
            wire_bandwidth: nic.ethernet.rate,
            wire_overhead: nic.ethernet.overhead,
            core_orders: (platform.host.order, cores.order),
            link_orders: (nic.pcie.order, nic.ethernet.order),
        })
    }

    /// Cores there.
    pub(super) fn cores(&self, on: Where) -> u64 {
        self.of(on, self.host_cores, self.nic_cores)
    }

    /// The host's or the NIC's.
    pub(super) fn of(&self, on: Where, host: u64, nic: u64) -> u64 {
        match on {
            Where::Host => host,
            Where::Nic => nic,
        }
    }

    /// A time that is given for a whole record, for so many bytes.
    pub(super) fn share(&self, whole: u64, bytes: usize) -> Ps {
        let bytes = (bytes as u64).max(LINE);
        Ps((u128::from(whole) * u128::from(bytes) / u128::from(self.record)) as u64)
    }
}

//! What the ways are made of: commands, messages and what lands, as the engine charges them.

use remora_model::component::pcie::DOORBELL;
use remora_model::platform::{CommandPath, Core};
use remora_wire::rpc::RpcHeader;
use remora_wire::{Aeth, Bth, ICRC_LEN, ImmDt, Reth};

use super::super::operation::{Access, Kind};
use super::super::path::{Path, Station};
use super::{LINE, Machines, Side, Way, ns};

/// Bytes of a completion in its queue.
const COMPLETION: f64 = 64.0;
/// Bytes of each packet that the engine counts beside its payload.
const FRONT: f64 = (Bth::LEN + ICRC_LEN) as f64;
/// The shortest frame with its gap.
const LEAST: f64 = 84.0;

/// A message's payload, the header that its packets have beyond [`FRONT`], and whether the NIC fetches the payload as it
/// sends it.
#[derive(Clone, Copy)]
pub(super) struct Message {
    pub bytes: f64,
    pub header: usize,
    pub fetched: bool,
}

impl Way<'_> {
    /// A core turns to a kernel's next step.
    pub(super) fn turn(&mut self, side: Side) {
        let (station, core) = self.core(side);
        let switch = ns(core.switch);
        self.path.hold("kernel", station, switch, 0.0);
    }

    pub(super) fn core(&self, side: Side) -> (Station, &Core) {
        match side {
            Side::Client => (Station::ClientCores, &self.machines.client.core),
            Side::Node => (Station::HostCores, &self.machines.node.core),
        }
    }

    /// A core hands its NIC a call of the other NIC: the command has the parameters in it.
    pub(super) fn call(&mut self) {
        let bytes = self.operation.request;
        // Its header is made by the NIC.
        self.issue(Side::Client, bytes.min(self.machines.nic.inline_bytes as f64));
        let message = Message { bytes: bytes + RpcHeader::LEN as f64, header: Reth::LEN, fetched: false };
        self.message(Side::Client, message);
        self.acknowledge(Side::Node);
    }

    /// The answer of a call: a WRITE with immediate into the client's memory, where its core polls.
    pub(super) fn reply(&mut self, fetched: bool) {
        let bytes = self.operation.reply;
        self.message(Side::Node, Message { bytes, header: Reth::LEN + ImmDt::LEN, fetched });
        self.acknowledge(Side::Client);
        self.landing(Side::Client, bytes);
        self.notice(Side::Client, "polling");
    }

    /// A core hands its NIC a command with so many bytes of payload: the store or the doorbell begins with the core's
    /// work, and the NIC has the command when it came or was fetched. Returns whether the payload is yet to be fetched.
    pub(super) fn issue(&mut self, side: Side, bytes: f64) -> bool {
        let (station, core) = self.core(side);
        let issue = ns(core.issue);
        let Machines { nic, pcie, .. } = self.machines;
        self.path.pass("command", station, issue, 0.0);
        let inline = if bytes <= nic.inline_bytes as f64 { bytes } else { 0.0 };
        let command = nic.wqe_bytes as f64 + inline;
        let (down, commands) = match side {
            Side::Client => (Station::ClientPcieDown, Station::ClientCommands),
            Side::Node => (Station::PcieReads, Station::NodeCommands),
        };
        let stored = if nic.command == CommandPath::Fetch { DOORBELL as f64 } else { command };
        let after = ns(pcie.mmio_ps) - self.on_bus(DOORBELL as f64);
        let on_bus = self.on_bus(stored);
        self.path.hold("command", down, on_bus, after);
        if nic.command == CommandPath::Fetch {
            self.dma_read(side, "command fetch", command);
        }
        self.path.pass("command", commands, 1e9 / self.machines.nic.message_rate_hz, 0.0);
        self.known(side);
        bytes > inline
    }

    /// A message from one NIC to the other, which has all of it in the end. Its packets follow each other through what they
    /// pass: the slowest of that is waited for.
    pub(super) fn message(&mut self, from: Side, message: Message) {
        let Machines { nic, wire: link, switch, mtu, pcie, .. } = self.machines;
        let Message { bytes, header, fetched } = message;
        let (out, wire, inward, tags) = match from {
            Side::Client => (Station::ClientNicOut, Station::WireOut, Station::NodeNicIn, Station::ClientTags),
            Side::Node => (Station::NodeNicOut, Station::WireBack, Station::ClientNicIn, Station::PcieTags),
        };
        let (up, down) = pcie_of(from);
        let cycle = 1e9 / nic.clock_hz;
        let packets = (bytes / mtu).ceil().max(1.0);
        // Of the first packet or all alike, and of the last.
        let first = bytes.min(*mtu);
        let last = bytes - (packets - 1.0) * mtu;
        let held = |payload: f64| nic.occupied(payload + FRONT + header as f64) * cycle;
        let on_wire = |payload: f64| {
            let frame = payload + header as f64 + link.overhead_bytes as f64;
            frame.max(LEAST) / link.rate_bytes_per_s * 1e9
        };
        let whole = |payload: f64| nic.held(payload + FRONT + header as f64) * cycle;
        let all = |each: &dyn Fn(f64) -> f64| (packets - 1.0) * each(*mtu) + each(last);
        if fetched {
            let requests = pcie.requests(first) * (packets - 1.0) + pcie.requests(last);
            self.path.tags("payload fetch", tags, ns(pcie.read_ps) - self.on_bus(LINE), requests);
            let all = all(&|payload| self.on_bus(payload));
            self.path.pass("payload fetch", down, all, self.on_bus(first));
            self.path.aside("payload fetch", up, requests * self.on_link(pcie.tlp_overhead_bytes as f64));
        }
        self.path.pass("NIC", out, all(&held), nic.tx_cycles * cycle + whole(first));
        // What comes behind the first packet comes as fast as the slowest lets it.
        let slowest = |payload: f64| {
            let fetch = if fetched { self.on_bus(payload) } else { 0.0 };
            held(payload).max(on_wire(payload)).max(fetch)
        };
        let streamed = on_wire(first) + if packets > 1.0 { all(&slowest) - slowest(*mtu) } else { 0.0 };
        self.path.pass("wire", wire, all(&on_wire), streamed + ns(link.latency_ps) + ns(*switch));
        self.path.pass("NIC", inward, all(&held), nic.rx_cycles * cycle + whole(last));
        self.known(if from == Side::Client { Side::Node } else { Side::Client });
    }

    /// A NIC looks up what it keeps of a message's queue pair and region, and reads what is not there.
    pub(super) fn known(&mut self, side: Side) {
        let Some((bytes, missing)) = self.machines.state else { return };
        let chance = missing[usize::from(side == Side::Node)];
        if chance > 0.0 {
            let from = self.path.visits.len();
            self.dma_read(side, "queue pair state", bytes);
            self.path.sometimes(from, chance);
        }
    }

    /// A NIC acknowledges what it received; nobody waits for that, and one goes for several messages that wait.
    pub(super) fn acknowledge(&mut self, from: Side) {
        let Machines { nic, wire: link, .. } = self.machines;
        let (out, wire, inward) = match from {
            Side::Client => (Station::ClientNicOut, Station::WireOut, Station::NodeNicIn),
            Side::Node => (Station::NodeNicOut, Station::WireBack, Station::ClientNicIn),
        };
        let held = nic.occupied(FRONT + Aeth::LEN as f64) * 1e9 / nic.clock_hz;
        let frame = (Aeth::LEN as f64 + link.overhead_bytes as f64).max(LEAST);
        self.path.merged("acknowledgement", out, held);
        self.path.merged("acknowledgement", wire, frame / link.rate_bytes_per_s * 1e9);
        self.path.merged("acknowledgement", inward, held);
    }

    /// A message's payload goes to memory, packet by packet as they come: the last one's way there is waited for.
    pub(super) fn landing(&mut self, side: Side, bytes: f64) {
        if bytes <= 0.0 {
            return;
        }
        let (mtu, (up, _)) = (self.machines.mtu, pcie_of(side));
        let packets = (bytes / mtu).ceil().max(1.0);
        let last = self.on_bus(bytes - (packets - 1.0) * mtu);
        let all = (packets - 1.0) * self.on_bus(mtu) + last;
        self.path.pass("arrival", up, all, last);
    }

    /// Software sees what has landed: the completion of a NIC that fetches commands follows the data.
    pub(super) fn notice(&mut self, side: Side, what: &'static str) {
        let (pcie, (up, _)) = (&self.machines.pcie, pcie_of(side));
        if self.machines.nic.command == CommandPath::Fetch {
            self.path.hold("arrival", up, self.on_bus(COMPLETION), 0.0);
        }
        self.path.wait("arrival", ns(pcie.write_ps) - self.on_bus(LINE));
        let (station, core) = self.core(side);
        let (poll, complete) = (ns(core.poll), ns(core.complete));
        self.path.wait(what, poll / 2.0);
        self.path.hold("completion", station, complete, 0.0);
    }

    pub(super) fn dma_read(&mut self, side: Side, what: &'static str, bytes: f64) {
        let pcie = &self.machines.pcie;
        let (up, down) = pcie_of(side);
        let tags = if side == Side::Client { Station::ClientTags } else { Station::PcieTags };
        // Its requests go out together: each holds a tag for the round trip, which is waited for once.
        let requests = pcie.requests(bytes);
        self.path.tags(what, tags, ns(pcie.read_ps) - self.on_bus(LINE), requests);
        self.path.hold(what, down, self.on_bus(bytes), 0.0);
        self.path.aside(what, up, requests * self.on_link(pcie.tlp_overhead_bytes as f64));
    }

    pub(super) fn dma_write(&mut self, bytes: f64) {
        let (held, after) = self.dma_write_time(bytes);
        self.path.hold("PCIe write", Station::PcieWrites, held, after);
    }

    /// What a DMA write holds PCIe for, and what it takes after that until a core can see it.
    pub(super) fn dma_write_time(&self, bytes: f64) -> (f64, f64) {
        (self.on_bus(bytes), ns(self.machines.pcie.write_ps) - self.on_bus(LINE))
    }

    /// What PCIe takes for bytes with the headers of their TLPs.
    pub(super) fn on_bus(&self, bytes: f64) -> f64 {
        self.on_link(self.machines.pcie.on_bus(bytes))
    }

    pub(super) fn on_link(&self, bytes: f64) -> f64 {
        bytes / self.machines.pcie.bandwidth_bytes_per_s * 1e9
    }

    /// A READ of so many bytes, all of it, from command to polled answer.
    pub(super) fn round_trip(&self, bytes: f64) -> f64 {
        let mut way = Way { path: Path::default(), ..*self };
        way.one_sided(&Access { count: 1.0, bytes, kind: Kind::Read, dependent: true });
        way.path.alone()
    }
}

/// PCIe of a machine, up to memory and down to the NIC.
fn pcie_of(side: Side) -> (Station, Station) {
    match side {
        Side::Client => (Station::ClientPcieUp, Station::ClientPcieDown),
        Side::Node => (Station::PcieWrites, Station::PcieReads),
    }
}

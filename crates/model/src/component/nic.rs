//! The data path of a NIC: how commands reach it, the pipelines that packets pass, its address translation.

use super::cache::{Cache, CacheAccess, CacheParams};
use super::pcie::{DOORBELL, Pcie};
use crate::platform::{self, CommandPath};
use crate::resource::{Order, Server, Usage};
use crate::time::{Ps, up};

/// What a data path is like.
#[derive(Clone, Debug, PartialEq)]
pub struct DataPathParams {
    /// Whether a core's store brings the command itself; if not, it is a doorbell, and the NIC fetches the command.
    pub command: CommandPath,
    /// Bytes of a command, what it holds inline apart.
    pub wqe_bytes: u64,
    /// Payload that a command may hold at most.
    pub inline_bytes: u64,
    /// Commands a second at most.
    pub message_rate_hz: f64,
    /// Bytes of a word of the data path: it takes one a cycle.
    pub width_bytes: u64,
    /// Clock.
    pub clock_hz: f64,
    /// Cycles between two packets at least.
    pub packet_cycles: f64,
    /// Cycles from a packet's first word in to its first word out when sending.
    pub tx_cycles: f64,
    /// Cycles from a packet's first word in to its first word out when receiving.
    pub rx_cycles: f64,
    /// How often on each side a packet is held until it is whole, as for a checksum in front of it.
    pub store_and_forward: u64,
    /// Pages whose translation it holds.
    pub tlb_entries: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Fetching a translation.
    pub tlb_miss_ps: u64,
    /// How its queues are served.
    pub order: Order,
}

impl From<&platform::Pipeline> for DataPathParams {
    fn from(pipeline: &platform::Pipeline) -> Self {
        Self {
            command: pipeline.command,
            wqe_bytes: pipeline.wqe,
            inline_bytes: pipeline.inline,
            message_rate_hz: pipeline.message_rate,
            width_bytes: pipeline.width,
            clock_hz: pipeline.clock,
            packet_cycles: pipeline.packet_cycles,
            tx_cycles: pipeline.tx_depth,
            rx_cycles: pipeline.rx_depth,
            store_and_forward: pipeline.store_and_forward,
            tlb_entries: pipeline.tlb_entries,
            page_bytes: pipeline.page,
            tlb_miss_ps: pipeline.tlb_miss,
            order: pipeline.order,
        }
    }
}

impl DataPathParams {
    /// Words of so many bytes.
    pub fn words(&self, bytes: f64) -> f64 {
        up(bytes / self.width_bytes as f64)
    }

    /// Cycles for which packets of so many bytes in all hold a data path that is held for `packets` at least.
    pub fn occupied(&self, bytes: f64) -> f64 {
        self.words(bytes).max(self.packet_cycles)
    }

    /// Cycles for which a packet of so many bytes is held on each side until it is whole.
    pub fn held(&self, bytes: f64) -> f64 {
        self.store_and_forward as f64 * self.words(bytes)
    }
}

/// A data path.
#[derive(Clone, Debug)]
pub struct DataPath {
    params: DataPathParams,
    commands: Server,
    tx: Server,
    rx: Server,
    tlb: Cache,
}

/// Ways of the address translation.
const TLB_WAYS: u64 = 8;

impl DataPath {
    /// An idle data path that knows no translation.
    pub fn new(params: &DataPathParams) -> Self {
        let page = params.page_bytes.max(1);
        let tlb = Cache::new(&CacheParams {
            size_bytes: params.tlb_entries.saturating_mul(page),
            line_bytes: page,
            ways: TLB_WAYS.min(params.tlb_entries) as usize,
            hit_ps: 0,
        });
        let one = Server::new(1).ordered(params.order);
        Self { commands: one.clone(), tx: one.clone(), rx: one, tlb, params: params.clone() }
    }

    /// A core hands over `count` commands at once at `at`, each with `inline` bytes of payload in it: when the NIC sees its
    /// last store. Commands in stores come one after the other; one doorbell is enough for all that the NIC fetches
    /// (Kalia et al., ATC 2016).
    pub fn ring(&self, at: Ps, count: u64, inline: u64, pcie: &mut Pcie) -> Ps {
        match self.params.command {
            CommandPath::Fetch => pcie.mmio_write(at, DOORBELL),
            CommandPath::Store => (0..count.max(1)).fold(at, |_, _| pcie.mmio_write(at, self.command_bytes(inline))),
        }
    }

    /// The NIC has seen at `at` that there are `count` commands: when it begins with the first and with the last.
    pub fn take(&mut self, at: Ps, count: u64, inline: u64, pcie: &mut Pcie) -> (Ps, Ps) {
        let count = count.max(1);
        let (here, all) = match self.params.command {
            CommandPath::Store => (at, at),
            CommandPath::Fetch => {
                let (first, last) = pcie.read(at, count * self.command_bytes(inline));
                // Of one command alone all must be there.
                (if count == 1 { last } else { first }, last)
            }
        };
        let gap = Ps::cycles(1.0, self.params.message_rate_hz);
        let first = self.commands.serve(here, gap).0;
        let last = (1..count).fold(first, |_, _| self.commands.serve(here, gap).0);
        (first, last.max(all))
    }

    /// Sends a packet of so many bytes that are there at `at`: when its first word is out, and its last.
    pub fn send(&mut self, at: Ps, bytes: u64) -> (Ps, Ps) {
        let latency = self.latency(self.params.tx_cycles, bytes);
        let (start, end) = self.tx.serve(at, self.occupied(bytes));
        (start + latency, end + latency)
    }

    /// Receives a packet whose first word comes in at `at`: when its first word is through, and its last.
    pub fn receive(&mut self, at: Ps, bytes: u64) -> (Ps, Ps) {
        let latency = self.latency(self.params.rx_cycles, bytes);
        let (start, end) = self.rx.serve(at, self.occupied(bytes));
        (start + latency, end + latency)
    }

    /// Translates the pages of an access: when the NIC has the physical addresses.
    pub fn translate(&mut self, at: Ps, address: u64, bytes: u64) -> Ps {
        let missed = self.tlb.lines(address, bytes).filter(|page| !self.tlb.access(*page, CacheAccess::Load).hit);
        at + Ps(self.params.tlb_miss_ps) * missed.count() as u64
    }

    /// Whether payload of this length may stand in a command.
    pub fn inlines(&self, bytes: u64) -> bool {
        bytes <= self.params.inline_bytes
    }

    fn command_bytes(&self, inline: u64) -> u64 {
        self.params.wqe_bytes + inline.min(self.params.inline_bytes)
    }

    /// What a packet keeps the pipeline busy for.
    fn occupied(&self, bytes: u64) -> Ps {
        Ps::cycles(self.params.occupied(bytes as f64), self.params.clock_hz)
    }

    fn latency(&self, depth: f64, bytes: u64) -> Ps {
        Ps::cycles(depth + self.params.held(bytes as f64), self.params.clock_hz)
    }

    /// How busy all parts were over `span`.
    pub fn usage(&self, span: Ps) -> [Usage; 3] {
        [
            self.commands.usage("NIC commands", span),
            self.tx.usage("NIC transmit", span),
            self.rx.usage("NIC receive", span),
        ]
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        self.commands.reset();
        self.tx.reset();
        self.rx.reset();
        self.tlb.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::super::pcie::PcieParams;
    use super::*;

    /// StRoM at 10 Gb/s: 8 B at 156.25 MHz (6.4 ns), a packet each 5 cycles, held whole once for the ICRC.
    fn strom() -> DataPathParams {
        DataPathParams {
            command: CommandPath::Store,
            wqe_bytes: 32,
            inline_bytes: 0,
            message_rate_hz: 31.25e6,
            width_bytes: 8,
            clock_hz: 156.25e6,
            packet_cycles: 5.0,
            tx_cycles: 125.0,
            rx_cycles: 125.0,
            store_and_forward: 1,
            tlb_entries: 1024,
            page_bytes: 2 << 20,
            tlb_miss_ps: 1_500_000,
            order: Order::InTurn,
        }
    }

    /// 8 GB/s, 125 ps a byte.
    fn pcie() -> Pcie {
        Pcie::new(&PcieParams { read_ps: 850_000, write_ps: 325_000, ..PcieParams::example() })
    }

    #[test]
    fn a_packet_takes_the_depth_its_words_and_is_held_once() {
        // 1408 B are 176 words: 1126.4 ns held, 125 cycles or 800 ns of depth, and 1126.4 ns until the last word.
        let mut nic = DataPath::new(&strom());
        assert_eq!(nic.send(Ps::ZERO, 1408), (Ps(1_926_400), Ps(3_052_800)));
        // The next begins when all words of the first are in.
        assert_eq!(nic.send(Ps::ZERO, 1408).0, Ps(1_126_400 + 1_926_400));
        // 64 B: 8 words, 51.2 ns, as the paper's table has it.
        assert_eq!(nic.receive(Ps::ZERO, 64).0, Ps(51_200 + 800_000));
    }

    #[test]
    fn halving_the_clock_doubles_all_of_it() {
        let mut slow = DataPath::new(&DataPathParams { clock_hz: 78.125e6, ..strom() });
        assert_eq!(slow.send(Ps::ZERO, 1408), (Ps(2 * 1_926_400), Ps(2 * 3_052_800)));
    }

    #[test]
    fn small_packets_pass_at_the_packet_rate_and_large_ones_at_the_width() {
        // 5 cycles of 6.4 ns are 32 ns a packet: 31.25 M a second. 8 B x 156.25 MHz are 10 Gb/s.
        let rate = |bytes: u64| {
            let mut nic = DataPath::new(&strom());
            let first = nic.receive(Ps::ZERO, bytes).0;
            ((1..=100).map(|_| nic.receive(Ps::ZERO, bytes).0).max().unwrap_or_default() - first).0 / 100
        };
        assert_eq!((rate(16), rate(1408)), (32_000, 1_126_400));
    }

    /// Commands from the core's store to the NIC's begin with the first and the last.
    fn command(params: &DataPathParams, count: u64, inline: u64, pcie: &mut Pcie) -> (Ps, Ps) {
        let mut nic = DataPath::new(params);
        let seen = nic.ring(Ps::ZERO, count, inline, pcie);
        nic.take(seen, count, inline, pcie)
    }

    #[test]
    fn a_stored_command_saves_the_fetch() {
        // The store of 32 B is 24 B or 3 ns longer than a doorbell: 253 ns. The doorbell, then a read of 64 B: 1100 ns.
        assert_eq!(command(&strom(), 1, 0, &mut pcie()), (Ps(253_000), Ps(253_000)));
        let fetch = DataPathParams { command: CommandPath::Fetch, wqe_bytes: 64, inline_bytes: 236, ..strom() };
        assert_eq!(command(&fetch, 1, 0, &mut pcie()).0, Ps(1_100_000));
        // 64 B of payload inline come with it: 8 ns more instead of a round trip more.
        assert_eq!(command(&fetch, 1, 64, &mut pcie()).0, Ps(1_108_000));
        assert!(DataPath::new(&fetch).inlines(236) && !DataPath::new(&fetch).inlines(237));
    }

    #[test]
    fn one_doorbell_fetches_many_commands() {
        // 32 commands are 2 KB in 4 reads; alone they would be 32 doorbells and 32 reads. They start 1/100 M/s apart.
        let params = DataPathParams { command: CommandPath::Fetch, wqe_bytes: 64, message_rate_hz: 100e6, ..strom() };
        let mut link = pcie();
        let (first, last) = command(&params, 32, 0, &mut link);
        assert_eq!((first, last - first), (Ps(1_100_000), Ps(31 * 10_000)));
        let [up, down, tags] = link.usage(Ps(1));
        assert_eq!((up.served, down.served, tags.served), (4, 5, 4));
    }

    #[test]
    fn a_nic_begins_with_no_command_that_is_still_being_fetched() {
        // 32 commands of 128 B are 4 KB in 8 reads: with 16 headers 4480 B or 560 ns, of which 11 ns bring the first line. The NIC
        // could begin with all of them within 207 ns.
        let params = DataPathParams {
            command: CommandPath::Fetch,
            wqe_bytes: 64,
            inline_bytes: 64,
            message_rate_hz: 150e6,
            ..strom()
        };
        let (first, last) = command(&params, 32, 64, &mut pcie());
        assert_eq!(last - first, Ps(560_000 - 11_000));
    }

    #[test]
    fn pages_beyond_the_translation_miss() {
        let mut nic = DataPath::new(&strom());
        assert_eq!(nic.translate(Ps::ZERO, 0, 8), Ps(1_500_000));
        assert_eq!(nic.translate(Ps::ZERO, 64, 8), Ps::ZERO);
        // Across the end of the page only the second is missing.
        assert_eq!(nic.translate(Ps::ZERO, (2 << 20) - 8, 16), Ps(1_500_000));
    }
}

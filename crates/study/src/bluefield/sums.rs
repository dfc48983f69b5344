//! Sums by hand, of the text's values and of those that the platforms set where it has none, beside the model's figures.
//! Their bounds are ours.

use crate::reproduce::{Lines, Trend};

/// What a machine's memory takes.
struct Caches {
    /// Its line in figure 8.
    line: &'static str,
    /// Nanoseconds of a load from each level and from memory.
    loads: [f64; 4],
    /// KiB of the levels, and of what their translations reach.
    sizes: [f64; 3],
    reach: f64,
}

const HOST: Caches = Caches {
    line: "host",
    loads: [5.0 / 2.9, 14.0 / 2.9, 22.0, 90.0],
    sizes: [48.0, 1280.0, 24e6 / 1024.0],
    reach: 2048.0 * 4.0,
};
/// Memory as fitted to AD-045.
const CARD: Caches = Caches {
    line: "BlueField-2",
    loads: [4.0 / 2.5, 21.0 / 2.5, 35.0, 160.0],
    sizes: [32.0, 1024.0, 6e6 / 1024.0],
    reach: 1024.0 * 4.0,
};
const OLD_CARD: Caches = Caches {
    line: "BlueField-1",
    loads: [4.0 / 0.8, 21.0 / 0.8, 35.0, 190.0],
    sizes: [32.0, 1024.0, 12e6 / 1024.0],
    reach: 1024.0 * 4.0,
};

impl Caches {
    /// The mean of loads at random from a block of so many KiB, of which each level holds as much as it is large, and the part
    /// whose page has to be looked up.
    fn of_block(&self, kib: f64) -> (f64, f64) {
        let [mut below, mut mean] = [0.0; 2];
        for (load, size) in self.loads.iter().zip(self.sizes.into_iter().chain([f64::MAX])) {
            let within = (size / kib).min(1.0);
            mean += load * (within - below);
            below = within;
        }
        (mean, (1.0 - self.reach / kib).max(0.0))
    }

    /// To look a page of 4 KB up: three levels of the page table are in the first cache. The last one is in the second, as what is
    /// read passes through the first, or, if it is larger than that, in the one behind it as often as not.
    fn walk(&self, kib: f64) -> f64 {
        let last = match kib * 8.0 / 4096.0 <= self.sizes[0] {
            true => self.loads[1],
            false => (self.loads[1] + self.loads[2]) / 2.0,
        };
        3.0 * self.loads[0] + last
    }
}

/// A core's part of a call: to hand it out, and to post its reply. As fitted to AD-041 and AD-071, but for the BlueField-1's.
const HOST_CALL: f64 = 100.0 + 150.0;
const CARD_CALL: f64 = 700.0 + 200.0;
const OLD_CARD_CALL: f64 = 2780.0 + 200.0;
/// What its threads take turns at.
const OLD_CARD_SHARED: f64 = 1064.0;
/// To have a line that another core has written.
const HOST_LINE: f64 = 70.0;
const CARD_LINE: f64 = 105.0;

/// A machine's way to the NIC: a store to it, a read by it, a write by it, and a look whether something has come.
struct Way {
    mmio: f64,
    read: f64,
    write: f64,
    poll: f64,
}

/// The compute node's is as the host's.
const TO_HOST: Way = Way { mmio: 300.0, read: 1000.0, write: 400.0, poll: 40.0 };
const TO_CARD: Way = Way { mmio: 120.0, read: 300.0, write: 150.0, poll: 60.0 };
/// From NIC to NIC: through both, and along the cable.
const BETWEEN: f64 = 200.0 + 250.0 + 200.0;
/// Nanoseconds of a byte on the wire, and bytes there beside a packet's payload.
const BYTE: f64 = 8.0 / 50.0;
const HEADERS: f64 = 82.0;
/// Bytes of a READ's or WRITE's address, and of an acknowledgement's or response's.
const RETH: f64 = 16.0;
const AETH: f64 = 4.0;
/// Of PCIe to the host.
const PCIE_BYTE: f64 = 1.0 / 15.75;
/// Bytes of a look-up's parameters, and of its reply, with what goes before them.
const PARAMS: f64 = 48.0;
/// Bytes of a packet's payload.
const MTU: f64 = 1024.0;

/// Until a message that stands in its command has come to a core: the NIC is told of it and fetches it.
fn message(from: &Way, to: &Way, bytes: f64) -> f64 {
    from.mmio + from.read + BETWEEN + (bytes + HEADERS) * BYTE + to.write + to.poll
}

/// A one-sided READ of so many bytes by the compute node, and how long the wire carries its response.
fn read(from: &Way, bytes: f64) -> (f64, f64) {
    let carried = (bytes + (bytes / MTU).ceil() * (HEADERS + AETH)) * BYTE;
    let asked = TO_HOST.mmio + TO_HOST.read + BETWEEN + (RETH + HEADERS) * BYTE;
    let last = bytes.min(MTU);
    (asked + from.read + BETWEEN + carried + TO_HOST.write + 2.0 * last * PCIE_BYTE + TO_HOST.poll, carried)
}

/// The sums that can be made with the figures that were run.
pub(super) fn sums(lines: &Lines<'_>) -> Vec<Trend> {
    let all = [memory(lines), calls(lines), messages(lines), trees(lines), numbers(lines)];
    all.into_iter().flatten().flatten().collect()
}

fn memory(lines: &Lines<'_>) -> Vec<Option<Trend>> {
    let load = |of: &Caches, kib: u64, bound, what| {
        let (mean, walks) = of.of_block(kib as f64);
        let model = lines.at("8", of.line, kib)?;
        Some(Trend::by_hand(("8", "4.2.3", what), (model, mean + walks * of.walk(kib as f64), bound), "ns"))
    };
    let huge = |kib: u64, what| {
        let model = lines.at("8", "BlueField-2, 2 MB", kib)?;
        Some(Trend::by_hand(("8", "4.2.3", what), (model, CARD.of_block(kib as f64).0, 0.04), "ns"))
    };
    vec![
        load(&HOST, 16, 0.02, "16 KiB are in the host's first cache"),
        load(&CARD, 16, 0.02, "16 KiB are in the card's first cache"),
        load(&OLD_CARD, 16, 0.02, "16 KiB are in the older card's first cache"),
        load(&HOST, 64, 0.04, "of 64 KiB the host's first cache has three quarters, the second one the rest"),
        load(&CARD, 64, 0.04, "of 64 KiB the card's first cache has half, the second one the rest"),
        load(&OLD_CARD, 64, 0.04, "of 64 KiB the older card's first cache has half, the second one the rest"),
        load(&HOST, 1024, 0.04, "1 MiB is in the host's second cache"),
        load(&CARD, 256, 0.04, "of 256 KiB the card's first cache has an eighth, the second one the rest"),
        load(&OLD_CARD, 1024, 0.04, "1 MiB is in the older card's second cache"),
        load(&HOST, 4096, 0.04, "of 4 MiB the host's second cache has a third, the last one the rest"),
        load(&CARD, 4096, 0.04, "of 4 MiB the card's second cache has a quarter, the last one the rest"),
        load(&CARD, 8192, 0.05, "of 8 MiB the card's last cache has 6 MB, and half of the pages are looked up"),
        load(&HOST, 16384, 0.06, "16 MiB are in the host's last cache, and half of the pages are looked up"),
        load(&HOST, 65536, 0.08, "of 64 MiB the host's last cache has 24 MB"),
        load(&CARD, 65536, 0.05, "of 64 MiB the card's last cache has 6 MB"),
        load(&OLD_CARD, 16384, 0.1, "of 16 MiB the older card's last cache has 12 MB"),
        huge(8192, "no page of 2 MB is looked up twice: of 8 MiB the card's last cache has 6 MB"),
        huge(65536, "no page of 2 MB is looked up twice: of 64 MiB the card's last cache has 6 MB"),
    ]
}

fn calls(lines: &Lines<'_>) -> Vec<Option<Trend>> {
    let at = |figure: &str, line: &str, x: u64| lines.at(figure, line, x);
    let hand = Trend::by_hand;
    let empty = |line, threads: u64, each: f64, what| {
        let rate = threads as f64 * 1e3 / each;
        Some(hand(("3", "4.1.1", what), (at("3", line, threads)?, rate, 0.03), "M/s"))
    };
    let turns = |figure, line, x, what| {
        Some(hand((figure, "4.1.1", what), (at(figure, line, x)?, 1e3 / OLD_CARD_SHARED, 0.03), "M/s"))
    };
    // What a thread takes is what it takes on the spot and a call's part.
    let called = |(figure, line, x), (spot, keys), call: f64, what| {
        let each = 8e3 / at("5", spot, keys)? + call;
        Some(hand((figure, "4.1.3", what), (at(figure, line, x)?, 8e3 / each, 0.03), "M/s"))
    };
    let alone = |share, way: &Way, (spot, dispatch): (&str, f64), what| {
        let search = 8e3 / at("5", spot, 1)?;
        let there_and_back = message(&TO_HOST, way, PARAMS) + message(way, &TO_HOST, PARAMS);
        let hand_us = (there_and_back + dispatch + search) / 1e3;
        Some(hand(("6", "4.2.1", what), (at("6", "1 M", share)?, hand_us, 0.04), "us"))
    };
    let (host, card) = ("host, look-ups", "BlueField-2, look-ups");
    vec![
        empty(
            "BlueField-1",
            2,
            OLD_CARD_CALL + OLD_CARD_SHARED,
            "two threads of the older card have a call each, and take turns",
        ),
        turns("3", "BlueField-1", 8, "eight threads of the older card do nothing but wait for their turns"),
        turns("2", "BlueField-1, look-ups", 1, "with a tree the older card's threads wait for their turns as well"),
        empty("BlueField-2", 8, CARD_CALL, "eight threads of the card have a call each"),
        called(("2", card, 1), (card, 1), CARD_CALL, "a look-up by a call to the card is one on the spot and a call"),
        called(
            ("2", card, 256),
            (card, 256),
            CARD_CALL,
            "a look-up by a call to the card is one on the spot and a call, of 256 M keys too",
        ),
        called(
            ("4", "1 M, look-ups", 0),
            (host, 1),
            HOST_CALL,
            "a look-up by a call to the host is one on the spot and a call",
        ),
        called(
            ("4", "256 M, look-ups", 0),
            (host, 256),
            HOST_CALL,
            "a look-up by a call to the host is one on the spot and a call, of 256 M keys too",
        ),
        alone(0, &TO_HOST, (host, 100.0), "a call alone is a message to the host, a search and a message back"),
        alone(100, &TO_CARD, (card, 700.0), "a call alone is a message to the card, a search and a message back"),
    ]
}

fn messages(lines: &Lines<'_>) -> Vec<Option<Trend>> {
    let both = |to: &Way, bytes| (message(&TO_HOST, to, bytes) + message(to, &TO_HOST, bytes)) / 2.0;
    let fetched = |to: &Way| (TO_HOST.read + to.read) / 2.0;
    let sum = |line, bytes, ns: f64, what| {
        Some(Trend::by_hand(("7", "4.2.2", what), (lines.at("7", line, bytes)?, ns / 1e3, 0.02), "us"))
    };
    // Four packets of 1 KB each behind the other on the wire, one on PCIe before and one behind it.
    let long = message(&TO_HOST, &TO_HOST, 4.0 * MTU + 3.0 * HEADERS) + 2.0 * MTU * PCIE_BYTE + fetched(&TO_HOST);
    vec![
        sum(
            "host, inline",
            32,
            both(&TO_HOST, 32.0),
            "a message that its command holds: a store, a read, the wire, a write",
        ),
        sum("BlueField-2, inline", 32, both(&TO_CARD, 32.0), "a message that its command holds, to the card and back"),
        sum(
            "host",
            32,
            both(&TO_HOST, 32.0) + fetched(&TO_HOST),
            "a message that its command does not hold takes another read over PCIe",
        ),
        sum(
            "BlueField-2",
            32,
            both(&TO_CARD, 32.0) + fetched(&TO_CARD),
            "a message that its command does not hold, to the card and back",
        ),
        sum("host", 4096, long, "a message of four packets: they go one behind the other"),
    ]
}

fn trees(lines: &Lines<'_>) -> Vec<Option<Trend>> {
    let alone = |line, node: u64, levels: f64, from: &Way, what| {
        let us = levels * read(from, node as f64).0 / 1e3;
        Some(Trend::by_hand(("10", "5.2", what), (lines.at("10", line, node)?, us, 0.03), "us"))
    };
    let threads = |line, (share, node): (u64, f64), levels: f64, from: &Way, what| {
        let (each, carried) = read(from, node);
        let rate = (16e3 / (levels * each)).min(1e3 / (levels * carried));
        Some(Trend::by_hand(("9", "5.1", what), (lines.at("9", line, share)?, rate, 0.03), "M/s"))
    };
    vec![
        alone("host, 1 M", 512, 5.0, &TO_HOST, "five READs of 512 B find one of 1 M keys"),
        alone("host, 256 M", 512, 6.0, &TO_HOST, "six READs of 512 B find one of 256 M keys"),
        alone("host, 1 M", 2048, 3.0, &TO_HOST, "three READs of 2 KB find one of 1 M keys"),
        alone(
            "BlueField-2, 1 M",
            512,
            5.0,
            &TO_CARD,
            "five READs of 512 B from the card are nearer by a read over PCIe each",
        ),
        threads("512 B", (0, 512.0), 5.0, &TO_HOST, "sixteen threads have a READ of 512 B each"),
        threads("512 B", (100, 512.0), 5.0, &TO_CARD, "sixteen threads have a READ of 512 B of the card's memory each"),
        threads("2048 B", (0, 2048.0), 3.0, &TO_HOST, "READs of 2 KB by sixteen threads fill the wire"),
    ]
}

fn numbers(lines: &Lines<'_>) -> Vec<Option<Trend>> {
    let hand = Trend::by_hand;
    let sum = |figure, section, line, x, ns: f64, what| {
        Some(hand((figure, section, what), (lines.at(figure, line, x)?, 1e3 / ns, 0.03), "M/s"))
    };
    let one = |to: &Way| {
        let asked = TO_HOST.mmio + TO_HOST.read + BETWEEN + (28.0 + HEADERS) * BYTE;
        asked + to.read + BETWEEN + (AETH + 8.0 + HEADERS) * BYTE + TO_HOST.write + TO_HOST.poll
    };
    let verb = |line, x, ns, what| sum("11", "6.1", line, x, ns, what);
    let call = |line, x: u64, ns, what| sum("12", "6.2", line, x, ns, what);
    vec![
        verb("host", 1, one(&TO_HOST), "one FETCH_ADD at a time: there, a read over PCIe, and back"),
        verb("BlueField-2", 1, one(&TO_CARD), "one FETCH_ADD at a time to the card: there, a read over PCIe, and back"),
        verb(
            "host",
            16,
            TO_HOST.read + TO_HOST.write,
            "of many FETCH_ADDs each reads and writes the host's word before the next one does",
        ),
        verb(
            "BlueField-2",
            16,
            TO_CARD.read + TO_CARD.write,
            "of many FETCH_ADDs each reads and writes the card's word before the next one does",
        ),
        call("host", 1, HOST_CALL, "one thread of the host has nothing but calls"),
        call("BlueField-2", 1, CARD_CALL, "one thread of the card has nothing but calls"),
        call("host", 8, HOST_LINE, "eight threads of the host take turns at the word's line"),
        call(
            "BlueField-2",
            8,
            (CARD_CALL + CARD_LINE) / 8.0,
            "eight threads of the card fetch the word's line for each call",
        ),
    ]
}

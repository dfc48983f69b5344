//! What each operation of the comparison is, and what the probe's figures say it takes.

use remora_model::platform::{Platform, on_curve};

use crate::compare::Plan;
use crate::measure::{Load, RingLoads, Row};
use crate::operations::{OBJECTS, Operation};
use crate::records::Records;
use crate::where_::{self, Access, CACHED, Kind, Memory, SoftwareTimes};
use crate::workload::{Distribution, THETA};
use remora_kernel::Placement;
use remora_real::LinkKind;

/// The data that the comparison runs on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Data {
    /// Records of the large table.
    pub records: f64,
    /// Bytes of key and value, on average.
    pub record_bytes: f64,
    /// How keys are drawn.
    pub distribution: Distribution,
    /// Updates a second of the writer, over all objects.
    pub updates_per_s: f64,
}

impl Data {
    /// Of the comparison's records and plan.
    pub fn new(records: &Records, plan: &Plan) -> Self {
        let (count, record_bytes) = (records.len() as f64, records.mean_record() as f64);
        let updates_per_s = plan.writer_updates_per_s.into();
        Self { records: count, record_bytes, distribution: plan.distribution, updates_per_s }
    }
}

/// Part of the keys that lie in an overflow entry.
const OVERFLOW: f64 = 1.0 / 30.0;
/// Bytes that the checksum adds to an object.
const CHECKSUM: f64 = 8.0;
/// Loads that the workload itself makes for a GET: where its record lies, its key, and the value to compare with.
const WORKLOAD_LOADS: f64 = 3.0;
/// Bytes that it keeps of a record beside key and value.
const SPAN: f64 = 32.0;
/// YCSB scrambles zipfian ranks of ten billion. This part of the draws has a rank beyond a million, and so falls on
/// all records alike: 1 - H(10^6) / H(10^10), with the harmonic numbers at 0.99.
const SPREAD_DRAWS: f64 = 0.42;

/// Predicts the rows of a comparison of these operations, by rings too where `rings` says so and the probe has measured
/// that: of each only median and 99th percentile of the latency with 1 in flight, the rate with 64 and the re-reads are
/// filled. Rows of which the probe says nothing are left out. `None` if the platform's NIC is not software.
pub fn predict(
    platform: &Platform,
    data: &Data,
    operations: &[Operation],
    links: &[LinkKind],
    (placements, rings): (&[Placement], bool),
) -> Option<Vec<Row>> {
    platform.software.as_ref()?;
    let mut rows = Vec::new();
    for (operation, parameter) in operations.iter().copied().flat_map(Operation::cells) {
        for &link in links {
            for &placement in placements {
                let of = |by_ring| {
                    let prediction = Prediction { platform, data, placement, link, by_ring };
                    let predicted = operation.predict(&prediction, parameter.unwrap_or(0) as f64);
                    let beside = operation.changes().then_some(parameter.unwrap_or(0) as f64 + CHECKSUM);
                    predicted.map(|times| prediction.loads(times, beside))
                };
                let Some([in_flight_1, in_flight_64]) = of(false) else { continue };
                let by_ring = if rings { of(true) } else { None };
                let by_ring = by_ring.map(|[in_flight_1, in_flight_64]| RingLoads { in_flight_1, in_flight_64 });
                rows.push(Row { operation, parameter, link, placement, in_flight_1, in_flight_64, by_ring });
            }
        }
    }
    Some(rows)
}

/// What the probe's figures say of calls in one placement over one link.
pub struct Prediction<'a> {
    platform: &'a Platform,
    /// What is asked.
    pub data: &'a Data,
    placement: Placement,
    link: LinkKind,
    by_ring: bool,
}

impl Prediction<'_> {
    fn of(&self, operation: &where_::Operation) -> Option<SoftwareTimes> {
        let times = where_::times(self.platform, operation, self.placement, self.link)?;
        let more = self.ring_difference(operation.reply)?;
        Some(SoftwareTimes { alone: times.alone + more.alone, each: times.each + more.each })
    }

    /// What a call takes more by rings in memory, if it goes that way; `None` if nothing is known of that.
    fn ring_difference(&self, reply: f64) -> Option<SoftwareTimes> {
        if !self.by_ring {
            return Some(SoftwareTimes { alone: 0.0, each: 0.0 });
        }
        where_::ring_difference(where_::costs(self.platform, self.placement, self.link)?, reply)
    }

    /// One after the other, and 64 at once; beside a thread that writes objects of so many bytes, if one does.
    fn loads(&self, (times, rereads_per_op): (SoftwareTimes, f64), beside: Option<f64>) -> [Load; 2] {
        let costs = where_::costs(self.platform, self.placement, self.link);
        let tail = costs.map_or(0.0, |costs| match beside {
            Some(bytes) => on_curve(&costs.tail_beside, bytes, false) / 1000.0,
            None => costs.tail as f64 / 1000.0,
        });
        let p99_ns = if tail > 0.0 { (times.alone + tail) as u64 } else { 0 };
        let (p50_ns, ops_per_s) = (times.alone as u64, 1e9 / times.alone);
        let in_flight_1 = Load { p50_ns, p99_ns, ops_per_s, rereads_per_op, ..Load::default() };
        [in_flight_1, Load { ops_per_s: 1e9 / times.each, rereads_per_op, ..Load::default() }]
    }

    /// A chain of so many dependent accesses of so many bytes, whose reply has so many, over so many bytes of data.
    pub fn chain(&self, accesses: (f64, f64), reply: f64, state: f64) -> Option<SoftwareTimes> {
        self.of(&described(accesses, reply, state))
    }

    /// A way down a tree of so many nodes of so many bytes a level, leaves first, which each take so many cycles to search,
    /// and along some more leaves. Which levels lie in the caches is the levels' sizes. A client has kept the inner nodes.
    pub fn tree(
        &self,
        levels: &[u64],
        node_bytes: f64,
        cycles: f64,
        (leaves, reply): (f64, f64),
    ) -> Option<SoftwareTimes> {
        let reached = if self.placement == Placement::Client { 1 } else { levels.len() };
        let nodes = reached as f64 + leaves;
        let searched = levels.len() as f64 + leaves;
        let way = |count: f64, state: f64, cycles: f64| {
            self.of(&where_::Operation { cycles, ..described((count, 64.0), reply, state) })
        };
        let (all, one) = (way(nodes, CACHED, searched * cycles)?, way(1.0, CACHED, 0.0)?);
        let mut times = all;
        for (level, &count) in levels.iter().enumerate().take(reached) {
            let reached = way(1.0, count as f64 * node_bytes, 0.0)?;
            let times_there = if level == 0 { 1.0 + leaves } else { 1.0 };
            times.alone += times_there * (reached.alone - one.alone);
            times.each += times_there * (reached.each - one.each);
        }
        Some(times)
    }

    /// A write into a tree's leaf of so many bytes, behind the way down, so many of a hundred calls; the others look up. A
    /// client locks the leaf and writes it back with one access each; on the node the line is there, and half of the leaf's
    /// pairs move.
    pub fn tree_writes(&self, look_up: SoftwareTimes, node_bytes: f64, percent: f64) -> Option<SoftwareTimes> {
        let costs = where_::costs(self.platform, self.placement, self.link)?;
        let system = &self.platform.software.as_ref()?.system;
        let (alone, each) = match self.placement {
            Placement::Client => (2.0 * costs.step as f64 / 1000.0, 2.0 * costs.step_each as f64 / 1000.0),
            _ => {
                let moved = node_bytes / 2.0 / system.copy * 1e9;
                (moved, moved)
            }
        };
        let part = percent / 100.0;
        Some(SoftwareTimes { alone: look_up.alone + part * alone, each: look_up.each + part * each })
    }

    /// A GET of a key that so many records do not have.
    pub fn miss(&self, records: f64) -> Option<SoftwareTimes> {
        self.chain((1.0 + OVERFLOW, 64.0), 0.0, records * 43.0)
    }

    /// A consistent GET beside the writer: a call that reads a value, without the element that leads the probe there; what
    /// the writer costs calls that have nothing to do with what it writes; and what the kernel does more: lines that the
    /// writer has rewritten come from its core, a checksum, and reads made again.
    pub fn consistent(&self, size: f64) -> Option<SoftwareTimes> {
        let Self { platform, data, placement, link, .. } = *self;
        let (software, costs) = (platform.software.as_ref()?, where_::costs(platform, placement, link)?);
        let (system, bytes, ns) = (&software.system, size + CHECKSUM, |ps: u64| ps as f64 / 1000.0);
        let call = |reply: &[(u64, u64)], step: u64, beside: u64| {
            (on_curve(reply, bytes, false) / 1000.0 - ns(step)).max(0.0) + ns(beside)
        };
        let alone = call(&costs.reply, costs.step, costs.beside);
        let each = call(&costs.reply_each, costs.step_each, costs.beside_each);
        let (checksum, moving) = (bytes / system.crc64 * 1e9, bytes / system.shared_read * 1e9);
        // The chance that an object was rewritten since it was read last, so many of them by turns.
        let moved = |call: f64| moving * (1.0 - (-data.updates_per_s * call * 1e-9).exp());
        let again = |call: f64| checksum + if placement == Placement::Client { call } else { moving };
        // With many under way the client makes the object that it expects while others wait.
        let expected = checksum + bytes / system.write * 1e9;
        let ((mean, median), more) = (self.rereads(size)?, self.ring_difference(bytes)?);
        let (alone, each) = (alone + more.alone, each + more.each);
        Some(SoftwareTimes {
            alone: alone + checksum + moved(alone) + median * again(alone),
            each: each + checksum + moved(each) + mean * again(each) + expected,
        })
    }

    /// How often a reader reads again: on average, and in the median. A read is in vain if its own copying overlaps the
    /// writer's of the same object, at a rate and for times that do not depend on each other.
    pub fn rereads(&self, size: f64) -> Option<(f64, f64)> {
        let system = &self.platform.software.as_ref()?.system;
        let copying = (size + CHECKSUM) / system.shared_write + (size + CHECKSUM) / system.shared_read;
        let torn = 1.0 - (-self.data.updates_per_s / f64::from(OBJECTS) * copying).exp();
        let median = (0.5f64.ln() / torn.max(f64::MIN_POSITIVE).ln()).ceil() - 1.0;
        Some((torn / (1.0 - torn), median.max(0.0)))
    }

    /// A GET of records of so many bytes with their keys: the mixture of a zipfian over them and of draws that fall on all
    /// alike, and the loads that the workload makes in its own copy of them.
    pub fn get(&self, records: f64, bytes: f64) -> Option<SoftwareTimes> {
        let Self { platform, data: Data { distribution, .. }, .. } = *self;
        let rounded = (bytes / 64.0).ceil() * 64.0;
        let item = 43.0 + rounded;
        let described = described((2.0 + OVERFLOW, 64.0), bytes, records * item);
        let uniform = where_::Operation { uneven: true, ..described };
        let zipfian = where_::Operation { skew: THETA, item, ..uniform.clone() };
        let spread = if *distribution == Distribution::Uniform { 1.0 } else { SPREAD_DRAWS };
        let (zipfian, uniform) = (self.of(&zipfian)?, self.of(&uniform)?);
        let own = {
            let curve = &platform.software.as_ref()?.curve;
            let load = |bytes: f64| (on_curve(curve, bytes, true) - on_curve(curve, CACHED, true)).max(0.0) / 1000.0;
            // Popular records lie in the caches: half of the way, by the logarithm, to all of them.
            let all = records * (SPAN + bytes);
            WORKLOAD_LOADS * (spread * load(all) + (1.0 - spread) * load((all * CACHED).sqrt()))
        };
        let mix = |zipfian: f64, uniform: f64| (1.0 - spread) * zipfian + spread * uniform + own;
        Some(SoftwareTimes { alone: mix(zipfian.alone, uniform.alone), each: mix(zipfian.each, uniform.each) })
    }
}

fn described((count, bytes): (f64, f64), reply: f64, state: f64) -> where_::Operation {
    where_::Operation {
        title: String::new(),
        accesses: vec![Access { count, bytes, kind: Kind::Read, dependent: true }],
        request: 36.0,
        reply,
        uneven: false,
        cycles: 0.0,
        pipeline_cycles: 0.0,
        state,
        item: 64.0,
        skew: 0.0,
        writes: 0.0,
        memory: Memory::Host,
        load: where_::Load::Closed(1),
        clients: where_::Clients::default(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::operations::{CONSISTENT_GET, GET_MISS, LIST, OPERATIONS, SEQUENCER, TREE_GET, TREE_WRITE};
    use crate::probe::{Figure, platform_file};

    /// A machine with round figures: loads of 1 ns up to 16 KiB and of 101 ns from 256 MiB on.
    pub fn machine() -> Platform {
        machine_with(&[])
    }

    /// The same with other figures, by path and in the file's unit.
    pub fn machine_with(values: &[(&str, f64)]) -> Platform {
        let mut figures = figures();
        for &(path, value) in values {
            let figure = figures.iter_mut().find(|figure| figure.path == path).unwrap();
            (figure.value, figure.range) = (value, (value, value));
        }
        Platform::parse("x.toml", &platform_file("x", "x", None, &figures)).unwrap()
    }

    /// What its probe has written.
    fn figures() -> Vec<Figure> {
        let mut figures = Vec::new();
        let mut add = |path: &str, unit, value: f64| {
            figures.push(Figure { path: path.into(), unit, how: "set", value, range: (value, value) });
        };
        for core in ["client.core", "host.core"] {
            for (key, unit, value) in [("cores", "count", 2.0), ("clock", "GHz", 2.0)] {
                add(&format!("{core}.{key}"), unit, value);
            }
            for key in ["poll", "issue", "switch"] {
                add(&format!("{core}.{key}"), "ns", 10.0);
            }
        }
        add("host.core.misses", "count", 10.0);
        add("host.core.dispatch", "ns", 10.0);
        for (key, unit) in [("size", "KiB"), ("latency", "ns"), ("ways", "ways")] {
            add(&format!("host.cache.{key}"), unit, 16.0);
        }
        add("host.dram.latency", "ns", 101.0);
        add("host.dram.bandwidth", "GB/s", 10.0);
        add("host.curve.16KiB", "ns", 1.0);
        add("host.curve.256MiB", "ns", 101.0);
        for key in ["syscall", "context_switch", "wake", "file_sync", "ring_round_trip", "udp_round_trip"] {
            add(&format!("system.{key}"), "ns", 100.0);
        }
        add("system.core_to_core", "ns", 100.0);
        add("system.read_all", "GB/s", 20.0);
        for key in ["read", "write", "copy", "shared_write", "shared_read", "crc64", "icrc"] {
            add(&format!("system.{key}"), "GB/s", 10.0);
        }
        for place in ["client", "nic", "host"] {
            for link in ["udp", "shm"] {
                let path = |key: &str| format!("software.{link}.{place}.{key}");
                for (key, value) in [
                    ("call", 5000.0),
                    ("call_each", 500.0),
                    ("step", 50.0),
                    ("step_each", 20.0),
                    ("long", 700.0),
                    ("long_each", 70.0),
                    ("beside", 400.0),
                    ("beside_each", 30.0),
                    ("tail", 3000.0),
                    ("tail_beside.72B", 9000.0),
                    ("tail_beside.4104B", 9000.0),
                ] {
                    add(&path(key), "ns", value);
                }
                let rings = if place == "client" { &[][..] } else { &[("ring", 4200.0), ("ring_each", 500.0)] };
                let calls = [("reply", 5200.0), ("reply_each", 560.0), ("uneven_each", 900.0)];
                for (curve, value) in calls.iter().chain(rings) {
                    add(&path(&format!("{curve}.64B")), "ns", *value);
                    add(&path(&format!("{curve}.4200B")), "ns", value + 1000.0);
                }
            }
        }
        figures
    }

    #[test]
    fn predictions_are_what_a_hand_calculation_gives() {
        let data =
            Data { records: 1e6, record_bytes: 87.0, distribution: Distribution::Zipfian, updates_per_s: 50_000.0 };
        let machine = machine();
        let usual: Vec<_> = OPERATIONS.into_iter().filter(|operation| operation.is_measured(false)).collect();
        let rows = predict(&machine, &data, &usual, &[LinkKind::Udp], (&Placement::REAL, false)).unwrap();
        assert_eq!(rows.len(), (6 + 2 + 7 + 7) * 3);
        let row = |operation, parameter, placement| {
            let of = |row: &&Row| (row.operation, row.parameter, row.placement) == (operation, parameter, placement);
            rows.iter().find(of).map(|row| (row.in_flight_1.p50_ns as f64, 1e9 / row.in_flight_64.ops_per_s)).unwrap()
        };
        // Lists lie in 8 MiB: 2^9 of 2^14 from 16 KiB to 256 MiB, so a load takes 100 ns x 9 / 14 more than in cache.
        let load = 100.0 * 9.0 / 14.0;
        let (client, _) = row(LIST, Some(4), Placement::Client);
        assert!(
            (client - (5200.0 + 3.0 * 50.0 + 5.0 * load)).abs() < 2.0,
            "{client}: reply, three more reads, five loads"
        );
        let (nic, each) = row(LIST, Some(4), Placement::Nic);
        let expected = 5350.0 + 5.0 * 0.75 * load + 700.0;
        assert!(
            (nic - expected).abs() < 2.0,
            "{nic}: every fourth load hides behind the links, which are looked at once"
        );
        assert!(
            (each - (560.0 + 3.0 * 20.0 + 70.0)).abs() < 1.0,
            "{each}: ten misses at once keep up with 20 ns a step"
        );
        let (miss, _) = row(GET_MISS, None, Placement::Client);
        assert!((5050.0..5200.0).contains(&miss), "{miss}: a call, an access, its load");
        // A value of 72 bytes, less the element before it, and 400 ns more beside a writer. A checksum over 72 bytes at
        // 10 GB/s, and as long for the lines to come from the writer's core, if it wrote since: 50,000 times a second.
        let more = |bytes: f64| (bytes - 64.0) / 4136.0 * 1000.0;
        let expected = |call: f64| call + 7.2 + 7.2 * (1.0 - (-50e-6 * call).exp());
        let (client, _) = row(CONSISTENT_GET, Some(64), Placement::Client);
        assert!((client - expected(5200.0 + more(72.0) - 50.0 + 400.0)).abs() < 1.0, "{client}");
        // 4104 bytes are copied twice in 410 ns each: of 25,000 updates a second one in fifty falls into that.
        let (_, each) = row(CONSISTENT_GET, Some(4096), Placement::Host);
        let (torn, copy) = (1.0 - (-25_000.0 * 820.8e-9f64).exp(), 410.4);
        let call = 560.0 + more(4104.0) - 20.0 + 30.0;
        let moved = copy * (1.0 - (-50e-6 * call).exp());
        let expected = call + copy + moved + torn / (1.0 - torn) * 2.0 * copy + 2.0 * copy;
        assert!((each - expected).abs() < 1.0, "{each} instead of {expected}");
    }

    #[test]
    fn trees_and_sequencers_are_chains_of_what_the_probe_measured() {
        let data = Data { records: 1e6, record_bytes: 87.0, distribution: Distribution::Uniform, updates_per_s: 0.0 };
        let operations = [TREE_GET, TREE_WRITE, SEQUENCER];
        let rows = predict(&machine(), &data, &operations, &[LinkKind::Udp], (&Placement::REAL, false)).unwrap();
        // A look-up, writes among three parts of the calls; three batches of a sequencer.
        assert_eq!(rows.len(), (1 + 3 + 3) * 3);
        let of = |operation, placement| {
            rows.iter().filter(move |row| (row.operation, row.placement) == (operation, placement))
        };
        let p50 = |operation, placement| of(operation, placement).next().unwrap().in_flight_1.p50_ns as f64;
        // A client locks a leaf and writes it back: two accesses more. On the node 256 bytes move, at 10 GB/s.
        for (placement, more) in [(Placement::Client, 100.0), (Placement::Nic, 25.6)] {
            let times: Vec<f64> =
                of(TREE_WRITE, placement).map(|row| row.in_flight_1.p50_ns as f64 - p50(TREE_GET, placement)).collect();
            let expected = [0.0, more / 2.0, more];
            assert!(times.iter().zip(expected).all(|(time, expected)| (time - expected).abs() <= 1.0), "{times:?}");
        }
        // 23 pairs a leaf and 31 children of a node at 80 %. Of what is above the leaves two levels are larger than 16 KiB.
        let levels = [43_479, 1403, 46, 2, 1];
        let load = |nodes: u64| 100.0 * ((nodes * 512) as f64 / 16384.0).log2().max(0.0) / 14.0;
        let searches = 5.0 * 50.0 / 2.0;
        let expected = 5150.0 + load(levels[0]) + searches;
        let client = p50(TREE_GET, Placement::Client);
        assert!((client / expected - 1.0).abs() < 0.01, "{client}, by hand {expected}: the leaf alone is read");
        // Four of five accesses more; every fourth load hides behind the links, and the call lasts.
        let loads: f64 = levels.iter().map(|nodes| load(*nodes)).sum();
        let expected = 5150.0 + 4.0 * 50.0 + 0.75 * loads + searches + 700.0;
        let nic = p50(TREE_GET, Placement::Nic);
        assert!((nic / expected - 1.0).abs() < 0.02, "{nic}, by hand {expected}");
        // One access: a value's call without the element before it.
        assert!((p50(SEQUENCER, Placement::Client) - 5150.0).abs() < 60.0, "{}", p50(SEQUENCER, Placement::Client));
    }

    #[test]
    fn rings_and_tails_are_what_the_probe_measured_of_them() {
        let data = Data { records: 1e6, record_bytes: 87.0, distribution: Distribution::Uniform, updates_per_s: 0.0 };
        let with =
            |rings| predict(&machine(), &data, &[LIST, CONSISTENT_GET], &[LinkKind::Udp], (&Placement::REAL, rings));
        let rows = with(true).unwrap();
        assert!(with(false).unwrap().iter().all(|row| row.by_ring.is_none()));
        for row in &rows {
            let load = &row.in_flight_1;
            let tail = if row.operation == LIST { 3000 } else { 9000 };
            assert!((load.p99_ns - load.p50_ns).abs_diff(tail) <= 1, "{row:?}");
            // Whatever its value's size, a call by rings takes 1000 ns less, and one of many 60 ns less.
            let Some(rings) = &row.by_ring else {
                assert_eq!(row.placement, Placement::Client);
                continue;
            };
            assert!((load.p50_ns - rings.in_flight_1.p50_ns).abs_diff(1000) <= 1, "{row:?}");
            let [each, by_ring] = [&row.in_flight_64, &rings.in_flight_64].map(|load| 1e9 / load.ops_per_s);
            assert!((each - by_ring - 60.0).abs() < 1.0, "{each} {by_ring}");
        }
    }

    #[test]
    fn a_file_of_an_older_probe_says_nothing_of_rings_and_tails() {
        let older: Vec<Figure> = figures()
            .into_iter()
            .filter(|figure| {
                let new = [".tail", ".ring"].iter().any(|key| figure.path.contains(key));
                !(figure.path.starts_with("software.") && new)
            })
            .collect();
        let machine = Platform::parse("x.toml", &platform_file("x", "x", None, &older)).unwrap();
        let data = Data { records: 1e6, record_bytes: 87.0, distribution: Distribution::Uniform, updates_per_s: 0.0 };
        let rows =
            predict(&machine, &data, &[LIST, CONSISTENT_GET], &[LinkKind::Shm], (&Placement::REAL, true)).unwrap();
        assert!(
            rows.iter().all(|row| row.in_flight_1.p50_ns > 0 && row.in_flight_1.p99_ns == 0 && row.by_ring.is_none())
        );
    }

    #[test]
    fn readers_read_again_when_the_writer_is_always_there() {
        let of = |updates_per_s| {
            let data = Data { records: 1e6, record_bytes: 87.0, distribution: Distribution::Zipfian, updates_per_s };
            let (placement, link) = (Placement::Nic, LinkKind::Udp);
            Prediction { platform: &machine(), data: &data, placement, link, by_ring: false }.rereads(4096.0).unwrap()
        };
        assert_eq!(of(0.0), (0.0, 0.0));
        // Twice 820.8 ns in each period of an object: a chance of 1 - 1 / e^2, so that the median is at the fifth read.
        let (mean, median) = of(2.0 * 2.0 / 820.8e-9);
        assert!((mean - (2f64.exp() - 1.0)).abs() < 1e-9, "{mean}");
        assert_eq!(median, 4.0);
    }

    #[test]
    fn hardware_has_no_such_prediction() {
        let data =
            Data { records: 1e6, record_bytes: 87.0, distribution: Distribution::Uniform, updates_per_s: 50_000.0 };
        let platform = Platform::load("strom-10g").unwrap();
        assert!(predict(&platform, &data, &[LIST], &[LinkKind::Udp], (&Placement::REAL, false)).is_none());
    }
}

//! Points over streams of values: shuffling (StRoM, section 6.4) and HyperLogLog (section 7.2).

use std::sync::Arc;

use remora_kernel::Placement;
use remora_kernel::hll::{HllParams, Sketch};
use remora_kernel::shuffle::{Partition, Partitioner, ShuffleParams};
use remora_kernel::{Call, Kernel, Memory, Status, op};
use remora_memory::Region;
use remora_model::time::Ps;
use remora_model::world::{Pair, PairSpec};
use remora_service::{Full, MAX_CALLS};
use remora_store::hash;

use super::point::{Ground, Outcomes, window};
use super::transfers::{Transferred, Transfers};
use crate::load::Until;
use crate::modelled::{ModelError, usage};

/// Log2 of the partitions: as many as StRoM's kernel has at most.
pub(super) const PARTITION_BITS: u8 = 10;
/// Log2 of the sketch's registers, and how far its estimate may be off: six times its standard error.
const LG_K: u8 = 14;
const ESTIMATE_ERROR: f64 = 6.0 * 1.04 / 128.0;
/// Bytes of one stream that is counted, streams that each thread has under way, and streams of a thread that count.
const COUNTED: u64 = 128 << 10;
const AHEAD: u64 = 2;
const ROUNDS: u64 = 6;
/// MiB of values that are shuffled where the size of each write varies.
pub(super) const SHUFFLED: u64 = 16;
/// Bytes of resident values that one call reads at a time, and calls at least under way: as many reads hide PCIe's latency.
const READ: usize = 4096;
const READERS: u64 = 8;
/// Distinct values that WRITEs carry, over and over.
const VALUES: u64 = 1 << 17;

fn values(count: u64, seed: u64) -> Vec<u8> {
    // A permutation of 64 bits of distinct numbers: all distinct.
    (0..count).flat_map(|n| hash::mix(n ^ seed << 40).to_le_bytes()).collect()
}

/// The client's memory with these bytes in it.
fn source(pair: &mut Pair, bytes: &[u8]) -> Result<Arc<Region>, ModelError> {
    let region = pair.client_memory(bytes.len() as u64)?;
    // In bounds: the region was made for them.
    let _ = region.write(region.va(), bytes);
    Ok(region)
}

fn wrong(placement: Placement, what: String) -> ModelError {
    ModelError::Wrong { placement, what }
}

/// What one long operation came to.
fn whole(pair: &Pair, bytes: u64, span: Ps) -> Outcomes {
    let busiest = usage(pair).into_iter().max_by(|a, b| a.busy.total_cmp(&b.busy));
    let ns = span.as_ns();
    Outcomes {
        median_ns: ns,
        mean_ns: ns,
        p1_ns: ns,
        p99_ns: ns,
        ops_per_s: 1.0 / span.as_secs().max(1e-12),
        bytes,
        binding: busiest.as_ref().map(|b| b.name.clone()).unwrap_or_default(),
        binding_busy: busiest.map_or(0.0, |b| b.busy),
        joules_per_op: pair.energy(0).map(|e| e.client + e.node),
        events: pair.events(),
    }
}

/// One transfer after another, `count` of them, as many under way as a pair takes.
fn transfer(
    pair: &mut Pair,
    placement: Placement,
    count: u64,
    submit: &mut dyn FnMut(&mut Pair, u64, u32) -> Result<(), Full>,
) -> Result<(), ModelError> {
    let transfers = Transfers::new(pair, placement, submit);
    transfers.run(MAX_CALLS as u64, Until::Begun(count), &mut |_| {}).map(drop)
}

/// One WRITE of `mib` MiB.
pub(super) fn write_values(ground: &Ground, mib: u64) -> Result<Outcomes, ModelError> {
    let (mut pair, bytes) = (Pair::new(&ground.spec)?, mib << 20);
    let (from, to) = (pair.client_memory(bytes)?, pair.alloc(bytes)?);
    let start = pair.now();
    transfer(&mut pair, Placement::Nic, 1, &mut |pair, _, tag| {
        pair.submit_write((&from, from.va(), bytes as u32), (&to, to.va()), tag)
    })?;
    Ok(whole(&pair, bytes, pair.now() - start))
}

/// Values, and where each partition of them goes on the node.
struct Shuffling {
    values: Vec<u8>,
    to: Arc<Region>,
    partitions: Vec<Partition>,
}

impl Shuffling {
    fn new(pair: &mut Pair, mib: u64, seed: u64) -> Result<Self, ModelError> {
        let values = values((mib << 20) / 8, seed);
        let mut sizes = vec![0u32; 1 << PARTITION_BITS];
        values.chunks_exact(8).for_each(|value| sizes[partition_of(value)] += 1);
        // Whole cache lines, so that no two partitions share one.
        let room = |size: u32| u64::from(size).next_multiple_of(16) * 8;
        let to = pair.alloc(sizes.iter().map(|&size| room(size)).sum())?;
        let mut va = to.va();
        let place = |size: &u32| {
            let partition = Partition { va, values: *size };
            va += room(*size);
            partition
        };
        let partitions = sizes.iter().map(place).collect();
        Ok(Self { values, to, partitions })
    }

    /// The values, partition by partition at the addresses of `to`, by the code of the shuffling kernel.
    fn partitioned(&self) -> Result<Vec<u8>, ModelError> {
        let mut image = vec![0; self.to.len() as usize];
        let refused = |status: Status| wrong(Placement::Client, format!("partitioning ended with {status:?}"));
        let mut partitioner = Partitioner::new(false, self.partitions.clone()).map_err(refused)?;
        let mut put = |partitioner: &Partitioner, at: usize| -> Result<(), ModelError> {
            if let Some(run) = partitioner.run(at).map_err(refused)? {
                let start = (run.va - self.to.va()) as usize;
                image[start..start + run.bytes.len()].copy_from_slice(run.bytes);
            }
            Ok(())
        };
        let mut rest = &self.values[..];
        while let Some(at) = partitioner.push(&mut rest) {
            put(&partitioner, at)?;
        }
        for at in partitioner.rest().collect::<Vec<_>>() {
            put(&partitioner, at)?;
        }
        Ok(image)
    }

    /// Whether the node has every value where it belongs.
    fn check(&self, image: &[u8], placement: Placement) -> Result<(), ModelError> {
        let mut there = vec![0; image.len()];
        // In bounds: as long as the region.
        let _ = self.to.read(self.to.va(), &mut there);
        if there == image { Ok(()) } else { Err(wrong(placement, "values are not in their partitions".into())) }
    }
}

fn partition_of(value: &[u8]) -> usize {
    usize::from(value[0]) | usize::from(value[1] & 3) << 8
}

/// The client partitions in its own memory, then WRITEs each partition (Barthels et al.).
pub(super) fn partition_and_write(ground: &Ground, mib: u64) -> Result<Outcomes, ModelError> {
    let mut pair = Pair::new(&ground.spec)?;
    let data = Shuffling::new(&mut pair, mib, ground.seed)?;
    let image = data.partitioned()?;
    let from = source(&mut pair, &image)?;
    let start = pair.now();
    pair.client_work(op::SHUFFLE, data.values.len());
    let partitions: Vec<&Partition> = data.partitions.iter().filter(|partition| partition.values > 0).collect();
    transfer(&mut pair, Placement::Nic, partitions.len() as u64, &mut |pair, number, tag| {
        let partition = partitions[number as usize];
        let va = from.va() + (partition.va - data.to.va());
        pair.submit_write((&from, va, 8 * partition.values), (&data.to, partition.va), tag)
    })?;
    data.check(&image, Placement::Client)?;
    Ok(whole(&pair, data.values.len() as u64, pair.now() - start))
}

/// The shuffling kernel on the NIC.
pub(super) fn shuffle(ground: &Ground, mib: u64) -> Result<Outcomes, ModelError> {
    shuffle_on(&ground.spec, mib, ground.seed)
}

/// The same on [`SHUFFLED`] MiB, where a partition gathers `bytes` for each write.
pub(super) fn shuffle_runs(ground: &Ground, bytes: u64) -> Result<Outcomes, ModelError> {
    let mut spec = ground.spec.clone();
    spec.node.gathered = bytes as usize;
    shuffle_on(&spec, SHUFFLED, ground.seed)
}

/// The histogram and then the values come as one payload stream.
fn shuffle_on(spec: &PairSpec, mib: u64, seed: u64) -> Result<Outcomes, ModelError> {
    let mut pair = Pair::new(spec)?;
    let data = Shuffling::new(&mut pair, mib, seed)?;
    let params = ShuffleParams { bits: PARTITION_BITS, hashed: false, key: data.to.key() }.encode(&data.partitions);
    let (params, histogram) = params.split_at(ShuffleParams::LEN);
    let payload = [histogram, &data.values].concat();
    let from = source(&mut pair, &payload)?;
    let start = pair.now();
    transfer(&mut pair, Placement::Nic, 1, &mut |pair, _, tag| {
        pair.submit_stream(op::SHUFFLE, params, (&from, from.va(), payload.len() as u32), tag)
    })?;
    data.check(&data.partitioned()?, Placement::Nic)?;
    Ok(whole(&pair, data.values.len() as u64, pair.now() - start))
}

/// What came of `count` operations of `bytes` each.
fn many(pair: &Pair, bytes: u64, Transferred { measured: count, since, events, .. }: Transferred) -> Outcomes {
    let span = pair.now() - since;
    let all = whole(pair, bytes, span);
    let per_op = |value: f64| value / count as f64;
    let ns = per_op(all.mean_ns);
    let (median_ns, mean_ns, p1_ns, p99_ns) = (ns, ns, ns, ns);
    let (ops_per_s, joules_per_op) = (all.ops_per_s * count as f64, all.joules_per_op.map(per_op));
    Outcomes { median_ns, mean_ns, p1_ns, p99_ns, ops_per_s, joules_per_op, events: pair.events() - events, ..all }
}

/// HyperLogLog over payload streams, on the NIC or by so many threads of the host.
pub(super) fn count_streams(ground: &Ground, placement: Placement, threads: u64) -> Result<Outcomes, ModelError> {
    let mut pair = Pair::new(&counting(ground, placement, threads))?;
    let from = source(&mut pair, &values(COUNTED / 8, ground.seed))?;
    let params = HllParams { lg_k: LG_K, want_image: false, payload_is_image: false, registers: None }.encode();
    let in_flight = AHEAD * threads.max(4);
    let (warm_up, count) = (in_flight, ROUNDS * in_flight / AHEAD);
    let mut submit =
        |pair: &mut Pair, _, tag| pair.submit_stream(op::HYPERLOGLOG, &params, (&from, from.va(), COUNTED as u32), tag);
    let transfers = Transfers::new(&mut pair, placement, &mut submit).checked(&miscounted).after(warm_up);
    let done = transfers.run(in_flight, Until::Ended(warm_up + count), &mut |_| {})?;
    Ok(many(&pair, COUNTED, done))
}

/// A pair whose node counts on its NIC or by so many threads of the host.
fn counting(ground: &Ground, placement: Placement, threads: u64) -> PairSpec {
    let mut spec = ground.spec.clone();
    if placement == Placement::Host {
        spec.rpc_place = Placement::Host;
        // Threads beyond the cores share them: each is then a slower core of its own.
        let (cores, threads) = (spec.node.core.cores as f64, threads as f64);
        let shared = (threads - cores).clamp(0.0, cores);
        let pair = ground.stream.as_ref().map_or(1.0, |stream| stream.pair);
        let work = (threads.min(cores) - shared + shared * pair) / threads.min(2.0 * cores);
        spec.node.work.hyperloglog = spec.node.work.hyperloglog.map(|rate| rate * work);
        spec.node.core.cores = threads as u64;
    }
    spec
}

/// HyperLogLog over values that lie in memory: parameters are address and key.
#[derive(Clone)]
struct Resident;

impl Kernel for Resident {
    async fn run<M: Memory>(&self, memory: &M, call: &mut Call) -> Status {
        let number = |at: usize| call.params.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let Some((va, key)) = number(0).zip(number(8)) else { return Status::BadParams };
        let Ok(mut sketch) = Sketch::new(LG_K) else { return Status::BadParams };
        let mut values = [0; READ];
        for at in (0..COUNTED).step_by(READ) {
            if memory.read(key as u32, va + at, &mut values).await.is_err() {
                return Status::AccessDenied;
            }
            sketch.insert_all(&values);
        }
        let Ok(reply) = call.grow_reply(16) else { return Status::BadParams };
        reply[..8].copy_from_slice(&sketch.estimate().to_le_bytes());
        reply[8..].copy_from_slice(&(COUNTED / 8).to_le_bytes());
        Status::Ok
    }
}

/// HyperLogLog over values in the node's memory, which the NIC reads over PCIe, or by so many threads of the host.
pub(super) fn count_resident(ground: &Ground, placement: Placement, threads: u64) -> Result<Outcomes, ModelError> {
    let spec = counting(ground, placement, threads);
    let mut pair = Pair::with_kernels(&spec, Resident, &[op::HYPERLOGLOG])?;
    let region = pair.alloc(COUNTED)?;
    // In bounds: the region was made for them.
    let _ = region.write(region.va(), &values(COUNTED / 8, ground.seed));
    let params = [region.va().to_le_bytes(), u64::from(region.key()).to_le_bytes()].concat();
    let in_flight = READERS.max(AHEAD * threads);
    let mut submit = |pair: &mut Pair, _, tag| pair.submit(placement, op::HYPERLOGLOG, &params, tag);
    let transfers = Transfers::new(&mut pair, placement, &mut submit).checked(&miscounted).after(in_flight);
    let done = transfers.run(in_flight, Until::Ended(in_flight * (1 + ROUNDS)), &mut |_| {})?;
    Ok(many(&pair, COUNTED, done))
}

/// What is wrong with the answer to a stream of distinct values.
fn miscounted(status: Status, reply: &[u8]) -> Option<String> {
    let number = |at: usize| reply.get(at..at + 8)?.try_into().ok();
    let (estimate, count) = (number(0).map_or(0.0, f64::from_le_bytes), number(8).map_or(0, u64::from_le_bytes));
    let right = status == Status::Ok && count == COUNTED / 8 && is_near(estimate, count);
    (!right).then(|| format!("{status:?}: {estimate} distinct values of {count}, and there were {}", COUNTED / 8))
}

fn is_near(estimate: f64, distinct: u64) -> bool {
    (estimate / distinct as f64 - 1.0).abs() < ESTIMATE_ERROR
}

/// WRITEs of `bytes`, many at a time, that go through a sketch on the NIC.
pub(super) fn count_writes(ground: &Ground, bytes: u64) -> Result<Outcomes, ModelError> {
    let mut pair = Pair::new(&ground.spec)?;
    let (from, to) = (source(&mut pair, &values(VALUES, ground.seed))?, pair.alloc(bytes)?);
    pair.set_tap(Sketch::new(LG_K).ok());
    let (in_flight, count) = window(bytes);
    let warm_up = (count / 4).max(in_flight);
    let mut submit = |pair: &mut Pair, number, tag| {
        // One piece of the values after the other.
        let at = number * bytes % (8 * VALUES);
        pair.submit_write((&from, from.va() + at, bytes as u32), (&to, to.va()), tag)
    };
    let transfers = Transfers::new(&mut pair, Placement::Nic, &mut submit).after(warm_up);
    let done = transfers.run(in_flight, Until::Begun(warm_up + count), &mut |_| {})?;
    let (sent, estimate) = ((done.begun * bytes / 8).min(VALUES), pair.tap().map_or(0.0, Sketch::estimate));
    match is_near(estimate, sent) {
        true => Ok(many(&pair, bytes, done)),
        false => Err(wrong(Placement::Nic, format!("{estimate} distinct values, and there were {sent}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use remora_model::platform::Platform;

    fn ground(name: &str, values: &[(&str, f64)]) -> Ground {
        Ground::new(&Platform::load(name).unwrap().with(values).unwrap(), 42).unwrap()
    }

    fn gbit_per_s(outcome: &Outcomes) -> f64 {
        outcome.ops_per_s * outcome.bytes as f64 * 8.0 / 1e9
    }

    #[test]
    fn shuffling_on_the_nic_costs_a_write_and_at_the_sender_the_partitioning_beside() {
        let base = ground("strom-10g", &[]);
        let times = |ground: &Ground| {
            let all = [write_values, shuffle, partition_and_write].map(|run| run(ground, 1).unwrap());
            all.map(|outcome| outcome.mean_ns)
        };
        let [plain, nic, sender] = times(&base);
        // 1 MiB in packets of 1408 B with 82 B more, at 1.25 GB/s, and what a message takes at least.
        let wire = 1_048_576.0 / 1408.0 * 1490.0 / 1.25;
        assert!((plain - wire).abs() < 0.02 * wire, "{plain} ns, the wire {wire} ns");
        assert!(nic >= plain && nic < 1.05 * plain, "{nic} ns, a WRITE {plain} ns");
        // 2.5 GB/s by one thread; WRITEs of partitions go while others are issued.
        let work = 1_048_576.0 / 2.5;
        assert!(sender - plain - work > 0.0 && sender - plain - work < 0.15 * plain, "{sender} ns");
        // A core twice as fast at it: half of that part, and of no other.
        let [plain2, nic2, sender2] = times(&ground("strom-10g", &[("stream.partition", 5e9)]));
        assert_eq!((plain2, nic2), (plain, nic));
        assert!((sender - sender2 - work / 2.0).abs() < 0.01 * work, "{sender} ns, {sender2} ns");
        // Half the link: twice the time, where it binds.
        let [plain3, nic3, _] = times(&ground("strom-10g", &[("ethernet.rate", 0.625e9)]));
        assert!((plain3 / plain - 2.0).abs() < 0.03 && (nic3 / nic - 2.0).abs() < 0.03, "{plain3} {nic3}");
    }

    #[test]
    fn scattered_writes_cost_pcie_their_headers() {
        // Half a gigabyte a second, less than the wire brings.
        let base = ground("strom-10g", &[("host.pcie.bandwidth", 0.5e9)]);
        let [line, two, four] = [64, 128, 256].map(|gathered| {
            let mut spec = base.spec.clone();
            spec.node.gathered = gathered;
            shuffle_on(&spec, 2, 42).unwrap().mean_ns
        });
        // With 24 B for each packet. What is gathered first waits for what comes, and what is left goes at the end.
        for (time, bytes) in [(line, 64.0), (four, 256.0)] {
            let by_hand = (bytes + 24.0) / bytes / (152.0 / 128.0);
            assert!((time / two / by_hand - 1.0).abs() < 0.06, "{line} {two} {four}");
        }
    }

    #[test]
    fn resident_values_are_counted_as_fast_as_pcie_brings_them_or_threads_hash_them() {
        let base = ground("strom-100g", &[]);
        let rate =
            |ground: &Ground, placement, threads| gbit_per_s(&count_resident(ground, placement, threads).unwrap());
        // 15.75 GB/s, in packets of 256 B with 24 B more.
        let nic = rate(&base, Placement::Nic, 1);
        assert!((nic / (126.0 * 256.0 / 280.0) - 1.0).abs() < 0.04, "{nic} Gbit/s");
        let narrow = ground("strom-100g", &[("host.pcie.bandwidth", 11.5e9)]);
        let slow = rate(&narrow, Placement::Nic, 1);
        assert!((nic / slow / (15.75 / 11.5) - 1.0).abs() < 0.03, "{slow} Gbit/s");
        let (one, eight) = (rate(&base, Placement::Host, 1), rate(&base, Placement::Host, 8));
        assert!((one / 5.0 - 1.0).abs() < 0.1 && (eight / 25.0 - 1.0).abs() < 0.1, "{one} and {eight} Gbit/s");
    }

    #[test]
    fn threads_count_what_they_can_and_the_nic_what_comes() {
        let base = ground("strom-100g", &[]);
        let host = |ground: &Ground, threads| gbit_per_s(&count_streams(ground, Placement::Host, threads).unwrap());
        // 0.625 GB/s a core; eight threads are four cores of 1.25 times that.
        let [one, two, eight] = [1, 2, 8].map(|threads| host(&base, threads));
        for (rate, by_hand) in [(one, 5.0), (two, 10.0), (eight, 25.0)] {
            assert!((rate / by_hand - 1.0).abs() < 0.05, "{rate} Gbit/s, by hand {by_hand}");
        }
        let nic = gbit_per_s(&count_streams(&base, Placement::Nic, 1).unwrap());
        assert!(nic > 85.0, "{nic} Gbit/s");
        // A thread at half its rate is half as fast; the NIC does not care.
        let slow = ground("strom-100g", &[("stream.hyperloglog", 0.3125e9)]);
        assert!((host(&slow, 2) / two - 0.5).abs() < 0.02);
        assert_eq!(gbit_per_s(&count_streams(&slow, Placement::Nic, 1).unwrap()), nic);
    }

    #[test]
    fn a_sketch_in_the_way_of_writes_keeps_up_with_the_host_and_the_wire() {
        let base = ground("strom-100g", &[]);
        let short = count_writes(&base, 64).unwrap();
        assert!((short.ops_per_s * 173e-9 - 1.0).abs() < 0.02, "{} a second", short.ops_per_s);
        let long = gbit_per_s(&count_writes(&base, 65536).unwrap());
        assert!(long > 92.0, "{long} Gbit/s");
        // A host that issues commands in half the time.
        let quick = ground("strom-100g", &[("client.core.issue", 86_500.0)]);
        let ratio = count_writes(&quick, 64).unwrap().ops_per_s / short.ops_per_s;
        assert!((ratio - 2.0).abs() < 0.05, "{ratio}");
    }
}

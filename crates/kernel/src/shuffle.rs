//! The shuffling kernel: partitions a payload stream of 8-byte values as it arrives (StRoM, section 6.4).
//!
//! Each value goes to the partition that its low bits, or those of its hash, name. A partition gathers 16 values before
//! they are written, as in the paper's on-chip buffers, or as many as the place likes to write at once
//! ([`Memory::streamed_run`]). Where a core can store to all partitions itself, it does ([`Spreader`]).

mod gather;
mod spread;

use crate::call::{Call, Status};
use crate::memory::Memory;
use gather::Gathered;
pub use spread::Spreader;
use spread::hashes;

/// Partitions that there may be: 2^10.
pub const MAX_BITS: u8 = 10;
/// A partition had no room for all of its values. What came before may be written, and nothing is outside of it.
pub const OVERFLOW: Status = Status::Other(11);
/// Values that a partition gathers before they are written, unless told otherwise.
pub const GATHER: usize = 16;
/// The largest number of values that a partition may gather.
const MAX_GATHER: usize = 64;
/// Values of a cache line.
const LINE: usize = 8;
/// Values that are hashed at a time.
const HASHED: usize = 256;

/// Where the values of one partition go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Address of the first value, a multiple of 8.
    pub va: u64,
    /// Values that fit, below 2^32 - 128.
    pub values: u32,
}

/// Parameters of the shuffling kernel: 8 bytes and the histogram, 12 bytes for each partition, little-endian.
///
/// The histogram may go on in front of the payload: 1024 partitions are more than one packet holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShuffleParams {
    /// Log2 of the number of partitions, up to 10.
    pub bits: u8,
    /// Take the low bits of the value's hash ([`hash`]) instead of its own.
    pub hashed: bool,
    /// Key of the region that all partitions lie in.
    pub key: u32,
}

impl ShuffleParams {
    /// Bytes in front of the histogram.
    pub const LEN: usize = 8;
    /// Bytes of the histogram for each partition.
    pub const PARTITION_LEN: usize = 12;

    /// `bits` u8, hashed u8, 2 zeros, key u32; then for each partition address u64 and values u32.
    pub fn encode(&self, partitions: &[Partition]) -> Vec<u8> {
        let mut bytes = vec![self.bits, self.hashed.into(), 0, 0];
        bytes.extend(self.key.to_le_bytes());
        for partition in partitions {
            bytes.extend(partition.va.to_le_bytes());
            bytes.extend(partition.values.to_le_bytes());
        }
        bytes
    }

    /// Reads the first [`LEN`](Self::LEN) bytes of what [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, Status> {
        let Some(&[bits @ 0..=MAX_BITS, hashed @ 0..=1, 0, 0, k0, k1, k2, k3]) = bytes.first_chunk::<8>() else {
            return Err(Status::BadParams);
        };
        Ok(ShuffleParams { bits, hashed: hashed == 1, key: u32::from_le_bytes([k0, k1, k2, k3]) })
    }
}

/// The hash whose low bits name the partition: the finalizer of MurmurHash3.
#[inline(always)]
pub fn hash(mut value: u64) -> u64 {
    value = (value ^ (value >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    value = (value ^ (value >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    value ^ (value >> 33)
}

/// Spreads values over partitions, and says when one has gathered enough to be written.
pub struct Partitioner {
    gathered: Gathered,
    places: Vec<Place>,
    /// Values of a run.
    run: u32,
    /// Hashes of the values to come, if those name the partitions.
    names: Option<Box<Names>>,
}

/// Where a partition's present run goes.
#[derive(Clone, Copy)]
struct Place {
    /// Address of the run's first value.
    va: u64,
    /// That value's place within the run: of the first run, so that all that follow are whole lines.
    skip: u32,
    /// Values that fit from there on.
    room: u32,
}

/// Hashes of values, found many at a time: `at..len` are those of the values that were not taken yet.
struct Names {
    hashes: [u64; HASHED],
    at: usize,
    len: usize,
}

/// Gathered values of one partition that have an address.
#[derive(Debug, PartialEq, Eq)]
pub struct Run<'a> {
    /// Address of the first byte.
    pub va: u64,
    /// The values, little-endian.
    pub bytes: &'a [u8],
}

impl Partitioner {
    /// For these partitions, of which there must be a power of two, up to 1024, at addresses that are multiples of 8.
    pub fn new(hashed: bool, partitions: Vec<Partition>) -> Result<Self, Status> {
        Self::with_runs(hashed, &partitions, GATHER)
    }

    /// As [`new`](Self::new), with runs of `gather` values: a power of two, made at least 8 and at most 64.
    pub fn with_runs(hashed: bool, partitions: &[Partition], gather: usize) -> Result<Self, Status> {
        let count = partitions.len();
        let fits = |p: &Partition| {
            p.va.is_multiple_of(8) && p.values < u32::MAX - 127 && p.va.checked_add(8 * u64::from(p.values)).is_some()
        };
        if !count.is_power_of_two() || count > 1 << MAX_BITS || !partitions.iter().all(fits) {
            return Err(Status::BadParams);
        }
        let run = gather.next_power_of_two().clamp(LINE, MAX_GATHER);
        let place = |p: &Partition| Place { va: p.va, skip: (p.va / 8 % LINE as u64) as u32, room: p.values };
        let places: Vec<Place> = partitions.iter().map(place).collect();
        Ok(Partitioner {
            gathered: Gathered::new(run, places.iter().map(|place| place.skip)),
            places,
            run: run as u32,
            names: hashed.then(|| Box::new(Names { hashes: [0; HASHED], at: 0, len: 0 })),
        })
    }

    /// Takes values, 8 bytes each, off the front of `bytes` until a partition has a run to be written; returns which.
    /// To be called until it has taken all, before it is given others.
    #[inline]
    pub fn push(&mut self, bytes: &mut &[u8]) -> Option<usize> {
        if let Some(at) = self.gathered.begin_anew() {
            self.places[at].advance(self.run);
        }
        let (values, _) = bytes.as_chunks::<8>();
        let (full, left) = match self.names.take() {
            None => self.gathered.spread(values.iter().map(|value| (u64::from_le_bytes(*value), value))),
            Some(mut names) => {
                let ended = self.push_hashed(values, &mut names);
                self.names = Some(names);
                ended
            }
        };
        *bytes = &bytes[8 * (values.len() - left)..];
        full
    }

    fn push_hashed(&mut self, mut values: &[[u8; 8]], names: &mut Names) -> (Option<usize>, usize) {
        while !values.is_empty() {
            let hashes = names.of(values);
            let (full, left) = self.gathered.spread(hashes.iter().copied().zip(values));
            let taken = hashes.len() - left;
            names.at += taken;
            values = &values[taken..];
            if full.is_some() {
                return (full, values.len());
            }
        }
        (None, 0)
    }

    /// The values of partition `at` that are to be written now, if any are; each of them once.
    #[inline]
    pub fn run(&self, at: usize) -> Result<Option<Run<'_>>, Status> {
        let Place { va, skip, room } = self.places[at];
        let values = self.gathered.from(at, skip);
        match values.len() {
            0 => Ok(None),
            n if n > room as usize => Err(OVERFLOW),
            _ => Ok(Some(Run { va, bytes: values.as_flattened() })),
        }
    }

    /// Partitions that hold values which [`push`](Self::push) has not reported: to be asked for at the end.
    pub fn rest(&self) -> impl Iterator<Item = usize> {
        let holds = |at: &usize| !self.gathered.from(*at, self.places[*at].skip).is_empty();
        let reported = self.gathered.full();
        (0..self.places.len()).filter(move |at| holds(at) && reported != Some(*at))
    }
}

impl Place {
    /// The run was written: what follows goes behind it.
    #[inline]
    fn advance(&mut self, run: u32) {
        let count = run - self.skip;
        // Beyond the end of the address space there is no room either.
        self.va = self.va.wrapping_add(8 * u64::from(count));
        self.room = self.room.saturating_sub(count);
        self.skip = 0;
    }
}

impl Names {
    /// The hashes of the first of these values, of which some may be known already.
    #[inline]
    fn of(&mut self, values: &[[u8; 8]]) -> &[u64] {
        if self.at == self.len {
            (self.at, self.len) = (0, values.len().min(HASHED));
            hashes(&values[..self.len], &mut self.hashes[..self.len]);
        }
        &self.hashes[self.at..self.len]
    }
}

/// Replies with the number of values, `u64`.
pub(crate) async fn run<M: Memory>(memory: &M, call: &mut Call) -> Result<(), Status> {
    let params = ShuffleParams::decode(&call.params)?;
    let mut histogram = call.params[ShuffleParams::LEN..].to_vec();
    let missing =
        (ShuffleParams::PARTITION_LEN << params.bits).checked_sub(histogram.len()).ok_or(Status::BadParams)?;
    memory.earn(missing);
    histogram.extend_from_slice(call.stream().next_exact(missing).await?.ok_or(Status::BadParams)?);
    let partitions = partitions(&histogram);
    let values = match Spreader::over(memory, params.key, params.hashed, &partitions) {
        Some(spreader) => spread(memory, spreader, call).await?,
        None => gather(memory, params, &partitions, call).await?,
    };
    if call.stream().unread() > 0 {
        return Err(Status::BadParams);
    }
    call.grow_reply(8)?.copy_from_slice(&values.to_le_bytes());
    Ok(())
}

/// Has this core store the values. Returns how many came. They need not be earned: no more is written than came.
async fn spread<M: Memory>(memory: &M, mut spreader: Spreader, call: &mut Call) -> Result<u64, Status> {
    spreader.look_ahead(call.stream().lookahead());
    let mut values = 0;
    while let Some(chunk) = call.stream().next_whole(8).await? {
        values += chunk.len() as u64 / 8;
        memory.spend(chunk.len() as u64 / 2);
        spreader.push(chunk)?;
    }
    spreader.finish()?;
    Ok(values)
}

/// Gathers values and writes runs of them. Returns how many came.
async fn gather<M: Memory>(
    memory: &M,
    params: ShuffleParams,
    partitions: &[Partition],
    call: &mut Call,
) -> Result<u64, Status> {
    let mut partitioner = Partitioner::with_runs(params.hashed, partitions, memory.streamed_run() / 8)?;
    let mut values = 0;
    while let Some(mut chunk) = call.stream().next_whole(8).await? {
        memory.earn(chunk.len());
        memory.spend(chunk.len() as u64 / 2);
        values += chunk.len() as u64 / 8;
        while let Some(at) = partitioner.push(&mut chunk) {
            write(memory, params.key, &partitioner, at).await?;
        }
    }
    if call.stream().unread() == 0 {
        for at in partitioner.rest() {
            write(memory, params.key, &partitioner, at).await?;
        }
    }
    Ok(values)
}

#[inline]
async fn write<M: Memory>(memory: &M, key: u32, partitioner: &Partitioner, at: usize) -> Result<(), Status> {
    if let Some(run) = partitioner.run(at)? {
        memory.write_streamed(key, run.va, run.bytes).await?;
    }
    Ok(())
}

fn partitions(histogram: &[u8]) -> Vec<Partition> {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte));
    let entries = histogram.chunks_exact(ShuffleParams::PARTITION_LEN);
    entries.map(|entry| Partition { va: number(&entry[..8]), values: number(&entry[8..]) as u32 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Counted, run_stream};
    use crate::{HostMemory, Limits, op};
    use proptest::prelude::*;
    use remora_memory::{Access, Buffer, Registry};

    /// Partitions with room for `room` values each, with a gap of 8 bytes between them.
    fn layout(bits: u8, room: u32, start: u64) -> Vec<Partition> {
        (0..1 << bits).map(|i| Partition { va: start + i * (8 * u64::from(room) + 8), values: room }).collect()
    }

    fn shuffle(
        memory: &Counted,
        params: ShuffleParams,
        to: &[Partition],
        values: &[u64],
        piece: usize,
        inline: usize,
    ) -> Status {
        let params = params.encode(to);
        let (params, histogram) = params.split_at(params.len().min(8 + 12 * inline));
        let mut payload = histogram.to_vec();
        payload.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let (status, reply) =
            run_stream(memory, op::SHUFFLE, params, &payload, piece, Limits { steps: 70, bytes: 1 << 13 });
        if status == Status::Ok {
            assert_eq!(reply, (values.len() as u64).to_le_bytes());
        }
        status
    }

    fn read(memory: &Counted, va: u64, len: usize) -> Vec<u64> {
        let bytes = memory.get(va, 8 * len);
        bytes.chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect()
    }

    proptest! {
        #[test]
        fn every_value_is_in_its_partition_in_order(
            values in proptest::collection::vec(any::<u64>(), 0..700),
            bits in 0u8..6, hashed: bool, start in 0u64..20, piece in 1usize..3000, inline in 0usize..33,
        ) {
            let to = layout(bits, 700, 8 * start);
            let memory = Counted::new(64 * 5700);
            let params = ShuffleParams { bits, hashed, key: 1 };
            prop_assert_eq!(shuffle(&memory, params, &to, &values, piece, inline), Status::Ok);
            for (at, partition) in to.iter().enumerate() {
                let name = |value: &&u64| if hashed { hash(**value) } else { **value };
                let expect: Vec<u64> =
                    values.iter().filter(|value| name(value) & (to.len() as u64 - 1) == at as u64).copied().collect();
                prop_assert_eq!(read(&memory, partition.va, expect.len()), &expect[..]);
                let behind = partition.va + 8 * expect.len() as u64;
                prop_assert_eq!(read(&memory, behind, 1), [0], "nothing more was written");
            }
        }

        #[test]
        fn a_partition_that_is_full_ends_the_call_and_nothing_else_is_touched(
            room in 0u32..40, more in 1u32..40, start in 0u64..20,
        ) {
            let to = layout(1, room, 8 * start);
            let memory = Counted::new(4096);
            let values: Vec<u64> = (0..room + more).map(|i| 2 * u64::from(i) + 2).collect();
            let params = ShuffleParams { bits: 1, hashed: false, key: 1 };
            prop_assert_eq!(shuffle(&memory, params, &to, &values, 100, 2), OVERFLOW);
            let end = to[0].va + 8 * u64::from(room);
            prop_assert_eq!(read(&memory, end, 16), [0; 16]);
        }
    }

    /// Stored to memory that a core can reach, or written by runs, the values lie alike.
    #[test]
    fn values_stored_at_once_lie_as_those_of_runs() {
        let registry = std::sync::Arc::new(Registry::new([8; 32]));
        let pd = registry.alloc_pd();
        for (bits, hashed, room, start) in
            [(0, false, 3000, 0), (5, true, 120, 24), (10, false, 10, 64), (3, true, 20, 8)]
        {
            let (to, len) = (layout(bits, room, start), 128 << 10);
            let buffer = Buffer::from_boxed(vec![0; len].into());
            let region = registry.register(pd, &buffer, 0, len, Some(0), Access::all()).unwrap();
            let direct = HostMemory::new(registry.clone(), pd, false, Limits { steps: 0, bytes: 0 });
            let values: Vec<u8> = (0..2003u64).flat_map(|i| hash(i).to_le_bytes()).collect();
            let params = ShuffleParams { bits, hashed, key: region.key() }.encode(&to);
            let (params, histogram) = params.split_at(ShuffleParams::LEN);
            let payload = [histogram, &values].concat();
            let counted = Counted::new(len);
            let by_runs = run_stream(&counted, op::SHUFFLE, params, &payload, 1000, Limits::default());
            assert_eq!(run_stream(&direct, op::SHUFFLE, params, &payload, 1000, Limits::default()), by_runs);
            let mut seen = vec![0; len];
            buffer.read(0, &mut seen).unwrap();
            match by_runs.0 {
                Status::Ok => assert!(seen == counted.get(0, len), "{bits} bits"),
                status => assert_eq!((status, bits, &seen[..8]), (OVERFLOW, 3, &[0; 8][..])),
            }
        }
    }

    #[test]
    fn bad_parameters_end_in_a_status() {
        let memory = Counted::new(4096);
        let run =
            |params: &[u8], payload: &[u8]| run_stream(&memory, op::SHUFFLE, params, payload, 100, Limits::default()).0;
        let params = ShuffleParams { bits: 1, hashed: false, key: 1 };
        let good = params.encode(&layout(1, 10, 0));
        assert_eq!(run(&good, &[0; 8]), Status::Ok);
        assert_eq!(run(&good, &[0; 9]), Status::BadParams, "half a value");
        assert_eq!(run(&good[..7], &[]), Status::BadParams);
        assert_eq!(run(&good[..8], &[0; 20]), Status::BadParams, "half a histogram");
        assert_eq!(run(&[&good[..], &[0; 8]].concat(), &[]), Status::BadParams, "more than the histogram");
        assert_eq!(run(&ShuffleParams { bits: 11, ..params }.encode(&[]), &[]), Status::BadParams);
        assert_eq!(run(&params.encode(&layout(1, 10, 4)), &[0; 8]), Status::BadParams, "misaligned");
        assert_eq!(run(&ShuffleParams { key: 0, ..params }.encode(&layout(1, 10, 0)), &[0; 8]), Status::AccessDenied);
        let far = [Partition { va: u64::MAX - 7, values: 2 }; 2];
        assert_eq!(run(&params.encode(&far), &[0; 8]), Status::BadParams);
    }
}

//! The measurements behind `remora bench stream`: kernels on payload streams beside plain WRITEs of the same data.
//!
//! Two ends on two cores, one message at a time. Shuffle stands beside a plain WRITE and beside partitioning at the sender
//! with a WRITE for each partition (Barthels et al., as StRoM's figure 11 has it), all in every round.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use remora_kernel::hll::{HllParams, Sketch, Tap};
use remora_kernel::shuffle::{Partition, ShuffleParams, Spreader};
use remora_kernel::{Status, op};
use remora_memory::{Region, Scatter};
use remora_nic::{Data, SendOp, SendWr, WcOpcode, WcStatus, WriteTap};
use remora_real::{Error, LinkKind, on_core};
use remora_wire::rpc::{RpcHeader, parse_reply_imm};

use super::pair::{BenchPair, REGION, serve};
use super::{BenchError, BenchGoal, BenchProgress, BenchRow, Figures, next};
use crate::MeasuredRows;
use crate::probe::Probe;
use crate::stats;

/// Bytes of one message: three of them fit into a region, with room to spare.
const MESSAGE: usize = 20 << 20;
/// Where what the sender has partitioned lies in its region, and replies before it.
const STAGED: usize = REGION / 2;
const REPLY: usize = STAGED - (1 << 16);
/// Where the tap's registers lie in the receiver's region.
const REGISTERS: usize = REGION - (1 << 18);
/// Precision of the sketches.
const LG_K: u8 = 14;
/// Bytes of objects that are read and checked, and how many are a round.
const OBJECT: usize = 4096;
const READS: usize = 2000;
/// Bytes at a time of loops on one core.
const PIECE: usize = 64 << 10;

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub struct StreamBench {
    /// Rounds, whose medians count.
    pub rounds: usize,
    /// Log2 of the number of partitions, up to 10.
    pub bits: u8,
    /// Seed of the values.
    pub seed: u64,
}

/// Rows of one core, and over one link.
const ONE_CORE: usize = 6;
const OVER: usize = 7;

/// Hears how far a part is, from 0 to 1.
pub(super) type Part<'a> = dyn FnMut(f64) -> Result<(), BenchError> + 'a;

/// What one round gives, in seconds.
#[derive(Clone, Copy, Default)]
struct Round {
    write: f64,
    shuffle: f64,
    shuffle_hashed: f64,
    partition_then_write: f64,
    sketch: f64,
    tap: f64,
    checksum: f64,
    read: f64,
    checked_read: f64,
}

impl StreamBench {
    /// Measures everything.
    pub fn run(&self, progress: &mut BenchProgress<'_>) -> MeasuredRows<BenchRow, BenchError> {
        let data = Values::new(self.seed, self.bits);
        MeasuredRows::by(ONE_CORE + 2 * OVER + super::compress::ROWS, |rows| {
            self.one_core(&data, rows, &mut |part| next(progress, "one core", 0.3 * part))?;
            for (link, at) in [(LinkKind::Shm, 0.3), (LinkKind::Udp, 0.6)] {
                let what = format!("streams over {link}");
                self.over(link, &data, rows, &mut |part| next(progress, &what, at + 0.3 * part))?;
            }
            let what = "compressed WRITEs over udp";
            super::compress::rows(self.rounds, rows, &mut |part| next(progress, what, 0.9 + 0.1 * part))
        })
    }

    /// Loops of one core over values in memory, beside a copy and what the paper says.
    fn one_core(&self, data: &Values, rows: &mut Vec<BenchRow>, part: &mut Part<'_>) -> Result<(), BenchError> {
        let bench = BenchPair::new(LinkKind::Shm)?;
        let region = &bench.b.region;
        let probe = Probe::default();
        let gb_per_s = |seconds: f64| MESSAGE as f64 / seconds / 1e9;
        let mut copies = Copies::new();
        let partitions = data.partitions(region.va(), false);
        let hashed = data.partitions(region.va(), true);
        let count = 1 << self.bits;
        for (name, partitions, is_hashed, goal) in
            [("low bits", &partitions, false, Some(BenchGoal::RatioAtLeast(0.7))), ("hash", &hashed, true, None)]
        {
            let rate = || partition(data, partitions, is_hashed, region).map(gb_per_s);
            part(rows.len() as f64 / ONE_CORE as f64)?;
            let figures = self.beside(rate, || Ok(gb_per_s(copies.one())))?;
            let what = format!("one core: {count} partitions by {name}");
            rows.push(BenchRow::new(what, "GB/s", "memcpy of as much, in memory", figures, goal));
        }
        let rate = || partition(data, &partitions, false, region).map(gb_per_s);
        part(rows.len() as f64 / ONE_CORE as f64)?;
        let figures = self.beside(rate, || Ok(probe.memcpy_bytes_per_s(2 * MESSAGE) / 1e9))?;
        let what = format!("one core: {count} partitions by low bits");
        rows.push(BenchRow::new(what, "GB/s", "memcpy in 40 MB, partly cached", figures, None));
        let mut sketch = sketch_of(LG_K)?;
        let rate = || Ok(gb_per_s(timed(|| data.bytes.chunks(PIECE).for_each(|piece| sketch.insert_all(piece)))));
        part(rows.len() as f64 / ONE_CORE as f64)?;
        let figures = self.beside(rate, || Ok(25.0 / 8.0))?;
        rows.push(BenchRow::new("one core: sketching", "GB/s", "StRoM's 8 threads: 25 Gbit/s", figures, None));
        let rate = || Ok(gb_per_s(timed(|| checksum(&data.bytes))));
        part(rows.len() as f64 / ONE_CORE as f64)?;
        let figures = self.beside(rate, || Ok(100.0 / 8.0))?;
        rows.push(BenchRow::new("one core: CRC-64", "GB/s", "StRoM's fastest line: 100 Gbit/s", figures, None));
        let table = crc_table();
        let rate = || Ok(gb_per_s(timed(|| checksum(&data.bytes))));
        let bytewise = || Ok(gb_per_s(timed(|| drop_value(crc_by_table(&table, &data.bytes)))));
        part(rows.len() as f64 / ONE_CORE as f64)?;
        let figures = self.beside(rate, bytewise)?;
        rows.push(BenchRow::new("one core: CRC-64", "GB/s", "a table look-up for each byte", figures, None));
        Ok(())
    }

    /// Both in turn; medians of the figures and of their ratios.
    fn beside(
        &self,
        mut value: impl FnMut() -> Result<f64, Error>,
        mut peer: impl FnMut() -> Result<f64, Error>,
    ) -> Result<Figures, Error> {
        let pairs: Result<Vec<(f64, f64)>, Error> =
            on_core(0, || (0..self.rounds).map(|_| Ok((value()?, peer()?))).collect());
        Ok(figures(&pairs?))
    }

    fn over(
        &self,
        link: LinkKind,
        data: &Values,
        rows: &mut Vec<BenchRow>,
        part: &mut Part<'_>,
    ) -> Result<(), BenchError> {
        let bench = BenchPair::new(link)?;
        let streams = Streams { bench: &bench, data, bits: self.bits };
        let rounds = bench.with_peer(
            |stop| serve(&bench.b, stop),
            || {
                let round = |n: usize| {
                    part(n as f64 / (self.rounds + 1) as f64)?;
                    Ok(streams.round()?)
                };
                (0..self.rounds + 1).map(round).collect::<Result<Vec<Round>, BenchError>>()
            },
        )?;
        // The first round pays for page faults.
        let rounds = &rounds[1..];
        let mut row = |what: &str, value: fn(&Round) -> f64, peer: &str, of: fn(&Round) -> f64, goal| {
            let pairs: Vec<_> = rounds.iter().map(|r| (value(r) * 1e3, of(r) * 1e3)).collect();
            rows.push(BenchRow::new(format!("{link}: {what}"), "ms", peer, figures(&pairs), goal));
        };
        let (plain, only_shm) = ("plain WRITE of 20 MB", link == LinkKind::Shm);
        let at_most = |limit| only_shm.then_some(BenchGoal::RatioAtMost(limit));
        row("shuffle", |r| r.shuffle, plain, |r| r.write, at_most(1.25));
        row("shuffle by hash", |r| r.shuffle_hashed, plain, |r| r.write, None);
        row("shuffle", |r| r.shuffle, "partitioned by the sender", |r| r.partition_then_write, None);
        row("HyperLogLog of a stream", |r| r.sketch, plain, |r| r.write, at_most(1.15));
        row("WRITE past a sketch", |r| r.tap, plain, |r| r.write, at_most(1.15));
        row("checksum of a stream", |r| r.checksum, plain, |r| r.write, None);
        let reads: Vec<_> = rounds.iter().map(|r| (r.checked_read * 1e6, r.read * 1e6)).collect();
        let what = format!("{link}: READ of 4 KB, CRC-64 checked");
        rows.push(BenchRow::new(what, "us", "plain READ (StRoM: up to 1.4 x)", figures(&reads), None));
        Ok(())
    }
}

/// The values and their partitions.
struct Values {
    bytes: Vec<u8>,
    distinct: f64,
    /// How many each partition has: by the low bits, by the hash.
    sizes: [Vec<u32>; 2],
}

impl Values {
    fn new(seed: u64, bits: u8) -> Self {
        // A Weyl sequence through the hash, a bijection: all values are distinct.
        let value = |i: u64| remora_kernel::shuffle::hash(seed.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let values = (0..MESSAGE as u64 / 8).map(value);
        let mut sizes = [vec![0; 1 << bits], vec![0; 1 << bits]];
        let mask = (1 << bits) - 1;
        for value in values.clone() {
            sizes[0][(value & mask) as usize] += 1;
            sizes[1][(remora_kernel::shuffle::hash(value) & mask) as usize] += 1;
        }
        let bytes: Vec<u8> = values.flat_map(u64::to_le_bytes).collect();
        Self { distinct: (MESSAGE / 8) as f64, bytes, sizes }
    }

    /// One behind the other from `va` on, each on lines of its own.
    fn partitions(&self, mut va: u64, hashed: bool) -> Vec<Partition> {
        let place = |&values: &u32| {
            let at = va;
            va += (8 * u64::from(values)).next_multiple_of(64);
            Partition { va: at, values }
        };
        self.sizes[usize::from(hashed)].iter().map(place).collect()
    }
}

/// Partitions all values into a region on this core. Returns the seconds that it took.
fn partition(data: &Values, to: &[Partition], hashed: bool, region: &Arc<Region>) -> Result<f64, Error> {
    let wrong = |what: String| Error::Argument(format!("partitioning: {what}"));
    let start = Instant::now();
    let places: Vec<(u64, u32)> = to.iter().map(|partition| (partition.va, partition.values)).collect();
    let scatter = Scatter::new(region.clone(), &places).ok_or_else(|| wrong("no such places".into()))?;
    let mut spreader = Spreader::new(hashed, scatter);
    for piece in data.bytes.chunks(PIECE) {
        spreader.push(piece).map_err(|status| wrong(format!("{status:?}")))?;
    }
    spreader.finish().map_err(|status| wrong(format!("{status:?}")))?;
    Ok(start.elapsed().as_secs_f64())
}

/// Copies from memory to memory: STREAM's rule is arrays of four times the last cache.
struct Copies {
    from: Vec<u8>,
    to: Vec<u8>,
    next: usize,
}

impl Copies {
    /// Messages that each side has room for: 160 MB.
    const ROOM: usize = 8;

    fn new() -> Self {
        Self { from: vec![1; Self::ROOM * MESSAGE], to: vec![2; Self::ROOM * MESSAGE], next: 0 }
    }

    /// Copies as much as a message to where the caches have long forgotten. Returns the seconds that it took.
    fn one(&mut self) -> f64 {
        let part = self.next * MESSAGE..(self.next + 1) * MESSAGE;
        self.next = (self.next + 1) % Self::ROOM;
        let (from, to) = (&self.from[part.clone()], &mut self.to[part]);
        timed(|| {
            let pieces = to.chunks_mut(PIECE).zip(from.chunks(PIECE));
            pieces.for_each(|(to, from)| black_box(to).copy_from_slice(black_box(from)));
        })
    }
}

/// One end sends, the other takes.
struct Streams<'a> {
    bench: &'a BenchPair,
    data: &'a Values,
    bits: u8,
}

impl Streams<'_> {
    fn round(&self) -> Result<Round, Error> {
        let a = &self.bench.a;
        let laid_down = || a.buffer.write(0, &self.data.bytes).map_err(|e| Error::Argument(e.to_string()));
        laid_down()?;
        let write = self.write(&[(0, self.target(0), MESSAGE)])?;
        self.check_copy()?;
        let (read, checked_read) = (self.reads(false)?, self.reads(true)?);
        let partition_then_write = self.partition_then_write()?;
        self.check_partitions(false)?;
        laid_down()?;
        let tap = self.tapped()?;
        let shuffle = self.shuffle(false)?;
        let shuffle_hashed = self.shuffle(true)?;
        let sketch = self.sketch()?;
        let (checksum, reply) = self.call(op::CHECKSUM, &[], MESSAGE)?;
        let expect = [(MESSAGE as u64).to_le_bytes(), remora_kernel::crc64(&self.data.bytes).to_le_bytes()].concat();
        same(&reply, &expect, "the checksum")?;
        Ok(Round { write, shuffle, shuffle_hashed, partition_then_write, sketch, tap, checksum, read, checked_read })
    }

    fn target(&self, offset: usize) -> u64 {
        self.bench.b.target().va + offset as u64
    }

    /// WRITEs parts of this end's region: from where, to which address, how long. Returns the seconds that they took.
    fn write(&self, parts: &[(usize, u64, usize)]) -> Result<f64, Error> {
        let a = &self.bench.a;
        let rkey = self.bench.b.target().key;
        let start = Instant::now();
        {
            let mut guard = a.device.lock();
            for &(from, va, len) in parts {
                let sge = a.sge(from, len);
                guard.nic().post_send(a.qp, &SendWr::new(0, SendOp::Write { va, rkey }, Data::List(&sge)))?;
            }
        }
        let mut left = parts.len();
        while left > 0 {
            left -= self.completions()?.0;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// READs objects from the start of the other end's region one at a time, and has this core check their CRC-64 if
    /// `checked`, as clients do without a kernel for it. Returns the seconds of one, the median.
    fn reads(&self, checked: bool) -> Result<f64, Error> {
        let (a, b) = (&self.bench.a, self.bench.b.target());
        let expect = remora_kernel::crc64(&self.data.bytes[..OBJECT]);
        let (sge, mut object, mut times) = (a.sge(STAGED, OBJECT), [0; OBJECT], [0.0; READS]);
        for time in &mut times {
            let start = Instant::now();
            let op = SendOp::Read { va: b.va, rkey: b.key };
            a.device.lock().nic().post_send(a.qp, &SendWr::new(0, op, Data::List(&sge)))?;
            while self.completions()?.0 == 0 {}
            if checked {
                a.buffer.read(STAGED, &mut object).map_err(|e| Error::Argument(e.to_string()))?;
                same(&remora_kernel::crc64(&object).to_le_bytes(), &expect.to_le_bytes(), "an object")?;
            }
            *time = start.elapsed().as_secs_f64();
        }
        times.sort_unstable_by(f64::total_cmp);
        Ok(times[READS / 2])
    }

    /// Drives this end. Returns how many sends completed, and the reply that came.
    fn completions(&self) -> Result<(usize, Option<(u8, u32)>), Error> {
        let a = &self.bench.a;
        let (mut sends, mut reply) = (0, None);
        let mut guard = a.device.lock();
        guard.progress();
        while let Some(wc) = guard.nic().poll_cq(a.cq) {
            if wc.status != WcStatus::Success {
                return Err(Error::Lost { address: self.bench.b.device.local(), status: wc.status });
            }
            match wc.opcode {
                WcOpcode::RecvWriteImm => reply = Some((parse_reply_imm(wc.imm.unwrap_or(0)).1, wc.byte_len)),
                _ => sends += 1,
            }
        }
        Ok((sends, reply))
    }

    /// Calls a kernel of the other end with the first `len` bytes of this end's region. Returns seconds and reply.
    fn call(&self, op: u64, params: &[u8], len: usize) -> Result<(f64, Vec<u8>), Error> {
        let a = &self.bench.a;
        let header = RpcHeader {
            reply_va: a.target().va + REPLY as u64,
            reply_rkey: a.target().key,
            reply_capacity: 1 << 15,
            tag: 1,
            flags: 0,
        };
        let start = Instant::now();
        {
            let mut guard = a.device.lock();
            guard.nic().post_recv(a.qp, 0, &[])?;
            guard.nic().post_rpc_write(a.qp, 0, op, &header, params, &a.sge(0, len))?;
        }
        let (mut sent, mut reply) = (0, None);
        while reply.is_none() || sent < 1 {
            let (sends, came) = self.completions()?;
            sent += sends;
            reply = reply.or(came);
        }
        let took = start.elapsed().as_secs_f64();
        let (status, len) = reply.unwrap_or_default();
        match Status::from_code(status) {
            Status::Ok => {
                let mut bytes = vec![0; len as usize];
                a.buffer.read(REPLY, &mut bytes).map_err(|e| Error::Argument(e.to_string()))?;
                Ok((took, bytes))
            }
            status => Err(Error::Argument(format!("kernel {op} ended with {status:?}"))),
        }
    }

    fn shuffle(&self, hashed: bool) -> Result<f64, Error> {
        let (a, b) = (&self.bench.a, self.bench.b.target());
        let params = ShuffleParams { bits: self.bits, hashed, key: b.key };
        let params = params.encode(&self.data.partitions(b.va, hashed));
        let (params, histogram) = params.split_at(ShuffleParams::LEN);
        // The histogram goes in front of the values.
        let payload = [histogram, &self.data.bytes[..]].concat();
        a.buffer.write(0, &payload).map_err(|e| Error::Argument(e.to_string()))?;
        self.clear()?;
        let (took, reply) = self.call(op::SHUFFLE, params, payload.len())?;
        a.buffer.write(0, &self.data.bytes).map_err(|e| Error::Argument(e.to_string()))?;
        same(&reply, &(MESSAGE as u64 / 8).to_le_bytes(), "the number of values")?;
        self.check_partitions(hashed)?;
        Ok(took)
    }

    fn partition_then_write(&self) -> Result<f64, Error> {
        self.clear()?;
        let a = &self.bench.a;
        let staged = self.data.partitions(a.target().va + STAGED as u64, false);
        let there = self.data.partitions(self.bench.b.target().va, false);
        let partitioning = partition(self.data, &staged, false, &a.region)?;
        let part = |(from, to): (&Partition, &Partition)| {
            ((from.va - a.target().va) as usize, to.va, 8 * from.values as usize)
        };
        let parts: Vec<_> = staged.iter().zip(&there).map(part).filter(|part| part.2 > 0).collect();
        Ok(partitioning + self.write(&parts)?)
    }

    fn sketch(&self) -> Result<f64, Error> {
        let params = HllParams { lg_k: LG_K, want_image: false, payload_is_image: false, registers: None };
        let (took, reply) = self.call(op::HYPERLOGLOG, &params.encode(), MESSAGE)?;
        self.check_estimate(reply.first_chunk().map_or(f64::NAN, |bytes| f64::from_le_bytes(*bytes)))?;
        Ok(took)
    }

    /// A plain WRITE while a sketch is attached to the region.
    fn tapped(&self) -> Result<f64, Error> {
        struct Sketching(Tap);
        impl WriteTap for Sketching {
            fn saw(&mut self, offset: u64, data: &[u8]) {
                self.0.saw(offset, data);
            }

            fn ended(&mut self) {
                self.0.settle();
            }
        }
        let b = &self.bench.b;
        let bad = |e: String| Error::Argument(e);
        b.buffer.fill(REGISTERS, 1 << LG_K, 0).map_err(|e| bad(e.to_string()))?;
        let tap = Tap::new(b.region.clone(), self.target(REGISTERS), LG_K).map_err(|e| bad(e.to_string()))?;
        b.device.lock().nic().attach_tap(b.region.key(), Box::new(Sketching(tap)))?;
        let took = self.write(&[(0, self.target(0), MESSAGE)]);
        b.device.lock().nic().detach_tap(b.region.key());
        let mut registers = vec![0; 1 << LG_K];
        b.buffer.read(REGISTERS, &mut registers).map_err(|e| bad(e.to_string()))?;
        self.check_estimate(Sketch::from_registers(registers).map_err(|e| bad(e.to_string()))?.estimate())?;
        took
    }

    /// Four standard errors.
    fn check_estimate(&self, estimate: f64) -> Result<(), Error> {
        let error = (estimate / self.data.distinct - 1.0).abs();
        if error <= 4.0 * 1.04 / f64::from(1u32 << LG_K).sqrt() {
            return Ok(());
        }
        Err(Error::Argument(format!("{estimate} distinct values estimated of {}", self.data.distinct)))
    }

    fn clear(&self) -> Result<(), Error> {
        self.bench.b.buffer.fill(0, STAGED, 0).map_err(|e| Error::Argument(e.to_string()))
    }

    fn check_copy(&self) -> Result<(), Error> {
        let mut bytes = vec![0; MESSAGE];
        self.bench.b.buffer.read(0, &mut bytes).map_err(|e| Error::Argument(e.to_string()))?;
        same(&bytes, &self.data.bytes, "the data")
    }

    /// Whether each partition has its values, in the order in which they were sent.
    fn check_partitions(&self, hashed: bool) -> Result<(), Error> {
        let mut there = vec![0; STAGED];
        self.bench.b.buffer.read(0, &mut there).map_err(|e| Error::Argument(e.to_string()))?;
        let mut next: Vec<usize> = self.data.partitions(0, hashed).iter().map(|p| p.va as usize).collect();
        for value in self.data.bytes.as_chunks::<8>().0 {
            let number = u64::from_le_bytes(*value);
            let name = if hashed { remora_kernel::shuffle::hash(number) } else { number };
            let at = &mut next[name as usize & ((1 << self.bits) - 1)];
            same(&there[*at..*at + 8], value, "a value in its partition")?;
            *at += 8;
        }
        Ok(())
    }
}

fn same(seen: &[u8], expect: &[u8], what: &str) -> Result<(), Error> {
    if seen == expect { Ok(()) } else { Err(Error::Argument(format!("{what} came out wrong"))) }
}

fn sketch_of(lg_k: u8) -> Result<Sketch, Error> {
    Sketch::new(lg_k).map_err(|e| Error::Argument(e.to_string()))
}

fn timed(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().max(Duration::from_nanos(1)).as_secs_f64()
}

fn checksum(bytes: &[u8]) {
    drop_value(remora_kernel::crc64(bytes));
}

fn drop_value(value: u64) {
    std::hint::black_box(value);
}

/// CRC-64/XZ of each byte.
fn crc_table() -> [u64; 256] {
    let step = |crc: u64, _| if crc & 1 == 1 { crc >> 1 ^ 0xc96c_5795_d787_0f42 } else { crc >> 1 };
    std::array::from_fn(|byte| (0..8).fold(byte as u64, step))
}

fn crc_by_table(table: &[u64; 256], bytes: &[u8]) -> u64 {
    !bytes.iter().fold(!0, |crc, byte| table[usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}

/// Medians of the figures and of their ratios.
pub(super) fn figures(pairs: &[(f64, f64)]) -> Figures {
    let median = |of: fn(&(f64, f64)) -> f64| stats::median(pairs.iter().map(of));
    Figures { value: median(|p| p.0), peer_value: median(|p| p.1), ratio: median(|p| p.0 / p.1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_computes_the_same_checksum() {
        assert_eq!(crc_by_table(&crc_table(), b"123456789"), 0x995d_c9bb_df19_39fa);
        assert_eq!(remora_kernel::crc64(b"123456789"), 0x995d_c9bb_df19_39fa);
    }
}

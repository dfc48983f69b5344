//! Bulk data: payload streams that kernels work on as they come, and a sketch in the way of incoming WRITEs.

use std::collections::VecDeque;

use remora_kernel::{Placement, op};
use remora_wire::Opcode;

use super::bus::Event;
use super::fabric::Fabric;
use super::node::Place;
use crate::time::Ps;

/// Bytes of payload streams that a NIC or an accelerator holds for its kernels; more wait in the NIC's engine, which
/// sends its peer RNR NAKs in the end. A host has all its memory for them.
const STREAM_BUFFER: usize = 256 << 10;
/// Room of a kernel's own queue: chunks are handed over one by one, so that it is as good as empty.
pub(super) const FEED_ROOM: usize = 8 << 10;

/// The payload stream of a call.
pub(super) struct Stream {
    /// The NIC that receives it, and the call's id in its engine.
    nic: u16,
    id: u64,
    place: usize,
    task: u32,
    op: u64,
    /// Chunks that its place sees from the given times on, and whether they are the last.
    waiting: VecDeque<(Ps, Vec<u8>, bool)>,
    /// Whether the place works on the first of them.
    busy: bool,
    /// When the kernel takes the next chunk: not before what it wrote of the last but one is on its way.
    ready: Ps,
    /// When what it wrote last is.
    sent: Ps,
}

impl Stream {
    pub(super) fn new((nic, id, op): (u16, u64, u64), (place, task): (usize, u32), ready: Ps) -> Self {
        Self { nic, id, place, task, op, waiting: VecDeque::new(), busy: false, ready, sent: ready }
    }
}

impl Fabric {
    /// A packet's payload goes through the sketch: when it has. A WRITE's packets hold whole values.
    pub(super) fn tap_packet(&mut self, nic: u16, number: u32) -> Ps {
        let machine = usize::from(self.adapters[usize::from(nic)].machine);
        let bytes = &self.bus.packet(number).bytes;
        let opcode = bytes.first().and_then(|&code| Opcode::from_u8(code));
        let Some((sketch, opcode)) = self.software[machine].tap.as_mut().zip(opcode) else { return self.now };
        use Opcode::{RcWriteFirst, RcWriteLast, RcWriteMiddle, RcWriteOnly};
        if !matches!(opcode, RcWriteFirst | RcWriteMiddle | RcWriteLast | RcWriteOnly) {
            return self.now;
        }
        let end = bytes.len().saturating_sub(remora_wire::ICRC_LEN);
        let payload = bytes.get(opcode.header_len()..end).unwrap_or_default();
        sketch.insert_all(&payload[..payload.len() / 8 * 8]);
        let kind = self.spec.machines[machine].processor(Placement::Nic);
        let adapter = &self.adapters[usize::from(nic)];
        let mut hardware = adapter.hardware.borrow_mut();
        let Some(processor) = hardware.find(kind, adapter.slot) else { return self.now };
        let (processor, board) = hardware.processor(processor);
        processor.compute(board, self.now, op::HYPERLOGLOG, payload.len())
    }

    /// Takes payload that has arrived to the places of its kernels, as far as there is room.
    pub(super) fn feed_streams(&mut self, nic: u16) {
        let Some(place) = self.rpc_place(nic) else { return };
        let adapter = usize::from(nic);
        loop {
            let waiting = self.streams.iter().filter(|stream| stream.nic == nic).flat_map(|stream| &stream.waiting);
            let held: usize = waiting.map(|(_, data, _)| data.len()).sum();
            if held > STREAM_BUFFER && !self.has_host_memory(place) {
                return;
            }
            let Some(chunk) = self.adapters[adapter].nic.poll_stream() else { return };
            let is_it = |stream: &Stream| (stream.nic, stream.id) == (nic, chunk.id);
            let Some(at) = self.streams.iter().position(is_it) else {
                self.adapters[adapter].nic.recycle(chunk.data);
                continue;
            };
            let seen = {
                let mut hardware = self.adapters[adapter].hardware.borrow_mut();
                let (processor, board) = hardware.processor(self.places[self.streams[at].place].processor);
                processor.deliver(board, self.adapters[adapter].slot, self.now, chunk.data.len())
            };
            self.streams[at].waiting.push_back((seen, chunk.data, chunk.last));
            self.begin_chunk(at);
        }
    }

    fn has_host_memory(&self, place: usize) -> bool {
        let Place { site, processor, .. } = &self.places[place];
        site.hardware().borrow_mut().processor(*processor).0.has_host_memory()
    }

    /// A place begins with a stream's next chunk, if there is one and nothing is in hand.
    fn begin_chunk(&mut self, at: usize) {
        let (nic, id) = (self.streams[at].nic, self.streams[at].id);
        let is_read = self.is_read(nic, id);
        let stream = &mut self.streams[at];
        let Some((seen, data, _)) = stream.waiting.front().filter(|_| !stream.busy) else { return };
        let start = (*seen).max(stream.ready).max(self.now);
        let done = match is_read {
            true => {
                let Place { site, processor, .. } = &self.places[stream.place];
                let mut hardware = site.hardware().borrow_mut();
                let (processor, board) = hardware.processor(*processor);
                processor.compute(board, start, stream.op, data.len())
            }
            false => start,
        };
        stream.busy = true;
        self.bus.queue.push(done, Event::Chunk { nic: stream.nic, call: stream.id as u32 });
    }

    /// A place is done with a chunk: its kernel may have it.
    pub(super) fn chunk_done(&mut self, nic: u16, call: u32) {
        let is_it = |stream: &Stream| (stream.nic, stream.id as u32) == (nic, call);
        let Some(at) = self.streams.iter().position(is_it) else { return };
        let stream = &mut self.streams[at];
        stream.busy = false;
        let Some((_, mut data, last)) = stream.waiting.pop_front() else { return };
        let (place, task, id) = (stream.place, stream.task, stream.id);
        let is_read = self.is_read(nic, id);
        if let Some(front) = &mut self.fronts[usize::from(nic)] {
            // A kernel takes all there is whenever it runs; one that waits for something else has the room.
            let _ = front.rpcs.streams_mut().offer(id, &mut data, last, false);
        }
        if is_read {
            self.run(place, task);
        }
        self.adapters[usize::from(nic)].nic.recycle(data);
        if last {
            self.streams.retain(|stream| !is_it(stream));
        } else if let Some(at) = self.streams.iter().position(is_it) {
            let stream = &mut self.streams[at];
            stream.ready = stream.sent;
            stream.sent = self.places[place].site.sent();
            self.begin_chunk(at);
        }
        self.feed_streams(nic);
    }

    /// Whether somebody reads a stream that has not come to its end.
    fn is_read(&self, nic: u16, id: u64) -> bool {
        self.fronts[usize::from(nic)].as_ref().is_some_and(|front| front.rpcs.streams().is_open(id))
    }

    /// Whether a kernel still has payload to come.
    pub(super) fn has_stream(&self, place: usize, task: u32) -> bool {
        self.streams.iter().any(|s| s.place == place && s.task == task && self.is_read(s.nic, s.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::Platform;
    use crate::world::{Pair, PairSpec};
    use remora_kernel::hll::Sketch;
    use remora_kernel::shuffle::{OVERFLOW, Partition, ShuffleParams};
    use remora_kernel::{Call, Kernel, Memory, Status, crc64};

    fn platform(name: &str, values: &[(&str, f64)]) -> Platform {
        let polls = [("client.core.poll", 0.0), ("host.core.poll", 0.0)];
        Platform::load(name).unwrap().with(&polls).unwrap().with(values).unwrap()
    }

    fn pair(platform: &Platform, place: Placement) -> Pair {
        Pair::new(&PairSpec { rpc_place: place, ..PairSpec::new(platform, 0, 7).unwrap() }).unwrap()
    }

    /// Runs a call with a payload stream: its outcome, its reply, and how long it took.
    fn stream(pair: &mut Pair, op: u64, params: &[u8], payload: &[u8]) -> (Status, Vec<u8>, Ps) {
        let from = pair.client_memory(payload.len() as u64).unwrap();
        from.write(from.va(), payload).unwrap();
        pair.submit_stream(op, params, (&from, from.va(), payload.len() as u32), 0).unwrap();
        let mut came = None;
        assert!(pair.poll(&mut |done| came = Some((done.status, done.reply.to_vec(), done.latency))).unwrap());
        came.unwrap()
    }

    /// Shuffles `count` values into 16 partitions of `room` values: the outcome and the time.
    fn shuffle(platform: &Platform, count: u64, room: u32) -> (Status, Ps) {
        let mut pair = pair(platform, Placement::Nic);
        let to = pair.alloc(16 * 8 * u64::from(room)).unwrap();
        let partition = |n: u64| Partition { va: to.va() + n * 8 * u64::from(room), values: room };
        let params = ShuffleParams { bits: 4, hashed: false, key: to.key() };
        let params = params.encode(&(0..16).map(partition).collect::<Vec<_>>());
        let values: Vec<u8> = (0..count).flat_map(u64::to_le_bytes).collect();
        let (status, reply, time) = stream(&mut pair, op::SHUFFLE, &params, &values);
        if status == Status::Ok {
            assert_eq!(reply, count.to_le_bytes());
            let mut first = vec![0; 16];
            to.read(partition(5).va, &mut first).unwrap();
            let second = if count > 21 { 21u64 } else { 0 };
            assert_eq!(first, [5u64.to_le_bytes(), second.to_le_bytes()].concat());
        }
        // Whatever came of it, the next call is answered.
        assert_eq!(stream(&mut pair, op::CHECKSUM, &[], &values).0, Status::Ok);
        (status, time)
    }

    #[test]
    fn a_shuffle_takes_what_binds_it() {
        let time = |values: &[(&str, f64)]| {
            let (status, time) = shuffle(&platform("strom-10g", values), 65_536, 4096);
            assert_eq!(status, Status::Ok);
            time.as_ns()
        };
        let near = |ns: f64, by_hand: f64| assert!((ns / by_hand - 1.0).abs() < 0.02, "{ns} ns, by hand {by_hand} ns");
        // 512 KB in 373 packets of at most 1408 B, with 82 B more each, at 1.25 and at 0.625 GB/s.
        let wire = (524_288.0 + 373.0 * 82.0) / 1.25;
        let base = time(&[]);
        near(time(&[("ethernet.rate", 0.625e9)]) - base, wire);
        // A link and data path twice as fast: half of it, less what a call takes at least.
        let empty = shuffle(&platform("strom-10g", &[]), 16, 4096).1.as_ns();
        let clock = Platform::load("strom-10g").unwrap().params.get("nic.pipeline.clock").unwrap().value;
        let fast = [("ethernet.rate", 2.5e9), ("nic.pipeline.clock", 2.0 * clock)];
        let fast_empty = shuffle(&platform("strom-10g", &fast), 16, 4096).1.as_ns();
        near(time(&fast) - fast_empty, (base - empty) / 2.0);
        // PCIe at a fifth of the link: 4096 runs of 128 B with headers of 24 B bind.
        let slow = time(&[("host.pcie.bandwidth", 0.25e9)]);
        near(slow - empty, 4096.0 * 152.0 / 0.25);
    }

    #[test]
    fn a_partition_that_is_full_ends_a_shuffle() {
        assert_eq!(shuffle(&platform("strom-10g", &[]), 65_536, 4000).0, OVERFLOW);
    }

    #[test]
    fn the_host_works_on_streams_at_its_own_rate() {
        let payload: Vec<u8> = (0..200_000u64).map(|n| ((n * n) >> 3) as u8).collect();
        let expected = [200_000u64.to_le_bytes(), crc64(&payload).to_le_bytes()].concat();
        let time = |rate: f64| {
            let platform = platform("strom-10g", &[("checksum.crc64", rate)]);
            let (status, reply, time) = stream(&mut pair(&platform, Placement::Host), op::CHECKSUM, &[], &payload);
            assert_eq!((status, &reply), (Status::Ok, &expected));
            time.as_ns()
        };
        // 200 KB at half a gigabyte a second, slower than the link, and at a quarter.
        let (slow, slower) = (time(0.5e9), time(0.25e9));
        assert!((slower - slow - 400_000.0).abs() < 500.0, "{slow} ns, {slower} ns");
        assert!((slow - 400_000.0).abs() < 20_000.0, "{slow} ns");
    }

    #[test]
    fn a_sketch_in_the_way_counts_and_costs_nothing_that_shows() {
        let platform = platform("strom-100g", &[]);
        let write = |tap: bool| {
            let mut pair = pair(&platform, Placement::Nic);
            pair.set_tap(tap.then(|| Sketch::new(12).unwrap()));
            let (from, to) = (pair.client_memory(80_000).unwrap(), pair.alloc(80_000).unwrap());
            let values: Vec<u8> = (0..10_000u64).flat_map(|n| (n / 2).to_le_bytes()).collect();
            from.write(from.va(), &values).unwrap();
            pair.submit_write((&from, from.va(), 80_000), (&to, to.va()), 0).unwrap();
            let mut time = Ps::ZERO;
            assert!(pair.poll(&mut |done| time = done.latency).unwrap());
            let mut there = vec![0; 80_000];
            to.read(to.va(), &mut there).unwrap();
            assert!(there == values);
            (time.as_ns(), pair.tap().map(Sketch::estimate))
        };
        let ((plain, _), (counted, estimate)) = (write(false), write(true));
        assert!((estimate.unwrap() / 5000.0 - 1.0).abs() < 0.1, "{estimate:?}");
        // 22 words of 64 B of the last packet, a cycle of 3.1 ns each, and nothing for those that overlap.
        assert!((0.0..70.0).contains(&(counted - plain)), "{plain} ns, {counted} ns");
    }

    /// Computes as many instructions as its parameters say, and may give way before.
    #[derive(Clone)]
    struct Spin(bool);

    impl Kernel for Spin {
        async fn run<M: Memory>(&self, memory: &M, call: &mut Call) -> Status {
            if self.0 {
                let mut gave = false;
                std::future::poll_fn(|cx| {
                    cx.waker().wake_by_ref();
                    if std::mem::replace(&mut gave, true) {
                        std::task::Poll::Ready(())
                    } else {
                        std::task::Poll::Pending
                    }
                })
                .await;
            }
            memory.compute(call.params.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte))).await;
            Status::Ok
        }
    }

    #[test]
    fn instructions_take_their_cycles_in_every_place() {
        for (name, placement, place) in [
            ("strom-10g", Placement::Client, ("module.core.instruction", "client.core.clock")),
            ("strom-10g", Placement::Nic, ("module.logic.instruction", "nic.pipeline.clock")),
            ("strom-10g", Placement::Host, ("module.core.instruction", "host.core.clock")),
            ("rambda", Placement::Accelerator, ("module.logic.instruction", "accel.clock")),
        ] {
            let time = |platform: &Platform, count: u64, gives_way: bool| {
                let spec = PairSpec::new(platform, 0, 7).unwrap().serving(placement);
                let mut pair = Pair::with_kernels(&spec, Spin(gives_way), &[0x100]).unwrap();
                pair.submit(placement, 0x100, &count.to_le_bytes(), 0).unwrap();
                let mut time = Ps::ZERO;
                assert!(pair.poll(&mut |done| time = done.latency).unwrap());
                time.as_ns()
            };
            let base = platform(name, &[]);
            let value = |path: &str| base.params.get(path).unwrap().value;
            let (cycles, clock) = (value(place.0), value(place.1));
            let by_hand = 10_000.0 * cycles / clock * 1e9;
            let took = time(&base, 12_000, false) - time(&base, 2_000, false);
            assert!((took - by_hand).abs() < 0.1, "{name} {placement:?}: {took} ns, by hand {by_hand} ns");
            assert!(time(&base, 1000, true) >= time(&base, 1000, false), "one that gives way goes on");
            // Half the clock: twice the time.
            let slow = base.with(&[(place.1, clock / 2.0)]).unwrap();
            let took = time(&slow, 12_000, false) - time(&slow, 2_000, false);
            assert!((took - 2.0 * by_hand).abs() < 0.1, "{name} {placement:?}: {took} ns");
        }
    }
}

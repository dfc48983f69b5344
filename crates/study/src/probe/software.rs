//! The software NIC over one link: what a call, an access and a reply take in each place, by small loops.
//!
//! The loops are calls of the traversal kernel on lists of the probe's own, all in cache: without an element (a call
//! that touches no memory), along many elements (accesses), and to a value of some size (replies, by rings in memory too).
//! Each runs alone and with 64 under way. Some are made again while a thread of the node keeps writing.

use std::time::Duration;

use remora_kernel::{Status, TraversalParams, op};
use remora_lab::writer::WriterConfig;
use remora_real::{Client, RemoteRegion};

use super::Figures;
use crate::StudyError;
use crate::calling::{Calls, Checked, Slice, run};
use crate::compare::WRITER_RATE;
use crate::connection::Connection;
use crate::measure::{IN_FLIGHT, Tally};
use remora_kernel::Placement;
use remora_real::LinkKind;

/// Bytes of an element.
const LINE: u64 = 64;
/// Elements of the list.
const ELEMENTS: u64 = 64;
/// Accesses are timed by the difference between walks of so many elements; at the client each is a round trip. On the
/// node both walks take more steps than a call makes between two looks at the links.
const ELEMENTS_WALKED: [u64; 2] = [8, ELEMENTS];
const ELEMENTS_AT_CLIENT: [u64; 2] = [1, 8];
/// Sizes of values: one line, two, and as much as fits into one packet and more than fits.
const VALUES: [(u64, &str); 4] = [(64, "64B"), (128, "128B"), (2048, "2048B"), (4200, "4200B")];
/// Where the value lies, behind the list.
const VALUE_AT: u64 = ELEMENTS * LINE;
/// Room for values.
const ROOM: u64 = 8192;
/// What the writer rewrites by turns: objects of these sizes, so that it has little and much to do each time.
const OBJECT_SIZES: [u32; 2] = [72, 4104];
const OBJECTS: u32 = 2;
/// Turns of calls without a writer and with one.
const TURNS: usize = 8;

/// The probe of one link: a list and values in the node's memory.
pub struct Software {
    region: RemoteRegion,
    /// What the node's writer rewrites.
    changing: RemoteRegion,
}

impl Software {
    /// Puts the list and the values on the node.
    pub fn new(target: &mut dyn Connection) -> Result<Self, StudyError> {
        let (region, changing) = (target.alloc(VALUE_AT + ROOM)?, target.alloc(u64::from(OBJECTS) * ROOM)?);
        let mut image = vec![0; VALUE_AT as usize];
        for n in 0..ELEMENTS {
            let next = if n + 1 < ELEMENTS { region.va + (n + 1) * LINE } else { 0 };
            let fields = [n + 1, next, region.va + VALUE_AT];
            for (word, field) in image[(n * LINE) as usize..].chunks_exact_mut(8).zip(fields) {
                word.copy_from_slice(&field.to_le_bytes());
            }
        }
        target.write(&region, 0, &image)?;
        Ok(Self { region, changing })
    }

    /// Gives its memory on the node back.
    pub fn free(self, client: &mut Client) -> Result<(), StudyError> {
        client.free(&self.region)?;
        Ok(client.free(&self.changing)?)
    }

    /// One round of all figures of all places.
    pub fn measure(
        &self,
        target: &mut dyn Connection,
        time: Duration,
        figures: &mut Figures,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), StudyError> {
        let mut probe = Running { target, time, figures, stop };
        // In the comparison's order: places take turns, so that a disturbance hits all alike.
        let turns = || Placement::REAL.into_iter().flat_map(|place| IN_FLIGHT.map(|in_flight| (place, in_flight)));
        for at in turns() {
            let [few, many] = if at.0 == Placement::Client { ELEMENTS_AT_CLIENT } else { ELEMENTS_WALKED };
            let empty = probe.ns(at, self.walk(0))?;
            let short = probe.ns(at, self.walk(few))?;
            let step = (probe.ns(at, self.walk(many))? - short) / (many - few) as f64;
            // At a client such a call uses no link: what one takes beyond its accesses is what a short walk says.
            let call = if at.0 == Placement::Client { short - few as f64 * step } else { empty };
            probe.figure(at, "call", "", "a call that touches no memory, or what one takes beyond that", call);
            probe.figure(at, "step", "", "a walk along a list in cache, an element", step);
            let how =
                "what a walk takes beyond its call and elements, if it is not over before the links are looked at";
            probe.figure(at, "long", "", how, short - call - few as f64 * step);
        }
        for (bytes, name) in VALUES {
            for at in turns() {
                let tally = probe.run(at, self.value(bytes), false)?;
                let how = "a call that reads an element and the value it points to";
                probe.figure(at, "reply", name, how, taken(at.1, &tally));
                if (at.1, bytes) == (1, LINE) {
                    probe.figure(at, "tail", "", "what the 99th percentile of those calls takes more", tail(&tally));
                }
            }
            for at in turns().filter(|&(place, _)| place != Placement::Client) {
                let tally = probe.run(at, self.value(bytes), true)?;
                probe.figure(at, "ring", name, "the same by rings in memory", taken(at.1, &tally));
            }
            for at in turns().filter(|&(_, in_flight)| in_flight > 1) {
                let how = "the same, one value in ten a byte shorter, one call in thirty an access longer";
                let value = probe.ns(at, Walk { uneven: true, ..self.value(bytes) })?;
                probe.figure(at, "uneven", name, how, value);
            }
        }
        Ok(())
    }

    /// What a call takes more beside a thread of the node that writes now and then, though it has nothing to do with
    /// what that one writes. Node and writer share the cores that the client has not: the writer interrupts whoever runs
    /// where it wakes, and a call then waits until they give way to each other. How often that is, and so the median,
    /// differs between placements, as other threads poll and sleep in each. So calls here come in the comparison's order, in slices of the length of its own, and the slices of all
    /// turns make one distribution; its median is compared with that of the same slices without the writer.
    pub fn measure_beside(
        &self,
        targets: &mut [&mut dyn Connection],
        slice: Duration,
        figures: &mut Figures,
        progress: &dyn Fn(f64),
        stop: &dyn Fn() -> bool,
    ) -> Result<(), StudyError> {
        let links = targets.len();
        let places = Placement::REAL.into_iter().flat_map(|place| IN_FLIGHT.map(|in_flight| (place, in_flight)));
        let at: Vec<_> = (0..links).flat_map(|link| places.clone().map(move |at| (link, at))).collect();
        // Without the writer, and beside one of each size.
        let mut tallies: Vec<[Tally; 3]> = at.iter().map(|_| Default::default()).collect();
        for turn in 0..TURNS {
            progress(turn as f64 / TURNS as f64);
            let size = turn % OBJECT_SIZES.len();
            for writing in [false, true] {
                let object_size = OBJECT_SIZES[size];
                let writer = WriterConfig { object_size, objects: OBJECTS, updates_per_s: WRITER_RATE };
                if let (true, Some(owner)) = (writing, targets.last_mut()) {
                    owner.start_writer(&self.changing, &writer)?;
                }
                for (&(link, (placement, in_flight)), tallies) in at.iter().zip(&mut tallies) {
                    let slice = Slice { placement, by_ring: false, auto: None, in_flight, time: slice };
                    let tally = &mut tallies[if writing { 1 + size } else { 0 }];
                    run(targets[link], &mut self.walk(1), slice, tally, stop)?;
                }
                if let (true, Some(owner)) = (writing, targets.last_mut()) {
                    owner.stop_writer()?;
                }
            }
        }
        let how = "what a call of one access takes more while a thread of the node writes";
        for (&(link, at), [quiet, beside @ ..]) in at.iter().zip(&tallies) {
            let link = targets[link].link();
            let mut both = Tally::default();
            for tally in beside {
                both.add(&tally.latencies, tally.elapsed, tally.counts, 0, 0);
            }
            figures.add(path(link, at, "beside", ""), "ns", how, taken(at.1, &both) - taken(at.1, quiet));
            for (tally, bytes) in beside.iter().zip(OBJECT_SIZES).filter(|_| at.1 == 1) {
                let how =
                    "what the 99th percentile takes more than the median while a thread writes objects of this size";
                figures.add(path(link, at, "tail_beside", &format!("{bytes}B")), "ns", how, tail(tally));
            }
        }
        Ok(())
    }

    /// What the cores of a software NIC take to hand over a command, to start a call and to turn to another one:
    /// figures of [`Software::measure`] over shared memory, under the names that all platforms have.
    pub fn name_cores(figures: &mut Figures) {
        let of = |path| figures.last(path).unwrap_or(f64::NAN);
        let (call, access, turn) =
            (of("software.shm.host.call_each"), of("software.shm.client.step_each"), of("software.shm.host.step_each"));
        figures.add("host.core.dispatch", "ns", "a call over shared memory, 64 under way", call);
        for core in ["client.core", "host.core"] {
            figures.add(format!("{core}.issue"), "ns", "a one-sided read over shared memory, 64 under way", access);
            figures.add(format!("{core}.switch"), "ns", "an access of a kernel, 64 under way", turn);
        }
    }

    /// Walks the last `elements` of the list in vain.
    fn walk(&self, elements: u64) -> Walk {
        let head = if elements == 0 { 0 } else { self.region.va + (ELEMENTS - elements) * LINE };
        let RemoteRegion { key, .. } = self.region;
        Walk::new(TraversalParams::list(head, u64::MAX, 8, key, key), Status::NotFound)
    }

    /// Reads the value that the list's first element points to.
    fn value(&self, bytes: u64) -> Walk {
        let RemoteRegion { va, key, .. } = self.region;
        Walk::new(TraversalParams::list(va, 1, bytes as u32, key, key), Status::Ok)
    }
}

/// A round of one link.
struct Running<'a> {
    target: &'a mut dyn Connection,
    time: Duration,
    figures: &'a mut Figures,
    stop: &'a dyn Fn() -> bool,
}

impl Running<'_> {
    /// A slice of such calls, by rings in memory if so.
    fn run(&mut self, at: (Placement, u32), mut calls: Walk, by_ring: bool) -> Result<Tally, StudyError> {
        let (mut tally, (placement, in_flight)) = (Tally::default(), at);
        let slice = Slice { placement, by_ring, auto: None, in_flight, time: self.time };
        run(self.target, &mut calls, slice, &mut tally, self.stop)?;
        Ok(tally)
    }

    /// What [`taken`] says of such calls.
    fn ns(&mut self, at: (Placement, u32), calls: Walk) -> Result<f64, StudyError> {
        Ok(taken(at.1, &self.run(at, calls, false)?))
    }

    fn figure(
        &mut self,
        (placement, in_flight): (Placement, u32),
        key: &str,
        size: &str,
        how: &'static str,
        value: f64,
    ) {
        self.figures.add(path(self.target.link(), (placement, in_flight), key, size), "ns", how, value);
    }
}

/// The median latency of one call alone; of many under way, the time from one end to the next.
fn taken(in_flight: u32, tally: &Tally) -> f64 {
    let load = tally.load();
    if in_flight == 1 { load.p50_ns as f64 } else { 1e9 / load.ops_per_s }
}

/// How far the 99th percentile lies from the median.
fn tail(tally: &Tally) -> f64 {
    let load = tally.load();
    load.p99_ns.saturating_sub(load.p50_ns) as f64
}

/// Where a figure stands in the platform file: `size` is its key in a curve over sizes, or empty.
fn path(link: LinkKind, (placement, in_flight): (Placement, u32), key: &str, size: &str) -> String {
    let (each, dot) = (if in_flight == 1 { "" } else { "_each" }, if size.is_empty() { "" } else { "." });
    format!("software.{link}.{placement}.{key}{each}{dot}{size}")
}

struct Walk {
    params: TraversalParams,
    expected: Status,
    /// Whether every tenth value is a byte shorter, and every thirtieth lies an element further.
    uneven: bool,
    calls: u64,
}

impl Walk {
    fn new(params: TraversalParams, expected: Status) -> Self {
        Self { params, expected, uneven: false, calls: 0 }
    }
}

impl Calls for Walk {
    fn op(&self) -> u64 {
        op::TRAVERSAL
    }

    fn next(&mut self) -> u64 {
        self.calls += 1;
        self.calls
    }

    fn params(&self, id: u64, params: &mut Vec<u8>) {
        let every = |n| self.uneven && id.is_multiple_of(n);
        let value_size = self.params.value_size - u32::from(every(10));
        let key = self.params.key + u64::from(every(30));
        let walk = TraversalParams { value_size, key, ..self.params };
        params.extend_from_slice(&walk.encode());
    }

    fn check(&self, _: u64, status: Status, _: &[u8]) -> Result<Checked, String> {
        if status == self.expected {
            return Ok(Checked::RIGHT);
        }
        Err(format!("a probe's walk ended with {status:?} instead of {:?}", self.expected))
    }
}

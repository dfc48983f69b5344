//! The software NIC over one link: what a call, an access and a reply take in each place, by small loops.
//!
//! The loops are calls of the traversal kernel on lists of the probe's own, all in cache: without an element (a call
//! that touches no memory), along many elements (accesses), and to a value of some size (replies). Each runs alone and
//! with 64 under way.

use std::time::Duration;

use remora_kernel::{Status, TraversalParams, op};
use remora_real::RemoteRegion;

use super::Figures;
use crate::Error;
use crate::measure::{IN_FLIGHT, Placement, Tally};
use crate::run::{Calls, Outcome, Slice, run};
use crate::target::Target;

/// Bytes of an element.
const LINE: u64 = 64;
/// Elements of the list that accesses are timed on, in the NIC and on the host; at the client each is a round trip.
const ELEMENTS: u64 = 64;
const ELEMENTS_AT_CLIENT: u64 = 8;
/// Sizes of values: one line, two, and as much as fits into one packet and more than fits.
const VALUES: [(u64, &str); 4] = [(64, "64B"), (128, "128B"), (2048, "2048B"), (4200, "4200B")];
/// Where the value lies, behind the list.
const VALUE_AT: u64 = (ELEMENTS + 1) * LINE;

/// The probe of one link: a list and a value in the node's memory.
pub struct Software {
    region: RemoteRegion,
}

impl Software {
    /// Puts the list and the value on the node.
    pub fn new(target: &mut dyn Target) -> Result<Self, Error> {
        let region = target.alloc(VALUE_AT + 8192)?;
        let mut image = vec![0; VALUE_AT as usize];
        for n in 0..ELEMENTS {
            let next = if n + 1 < ELEMENTS { region.va + (n + 1) * LINE } else { 0 };
            let fields = [n + 1, next, region.va + VALUE_AT];
            for (word, field) in image[(n * LINE) as usize..].chunks_exact_mut(8).zip(fields) {
                word.copy_from_slice(&field.to_le_bytes());
            }
        }
        target.write(&region, 0, &image)?;
        Ok(Self { region })
    }

    /// One round of all figures of all places.
    pub fn measure(
        &self,
        target: &mut dyn Target,
        time: Duration,
        figures: &mut Figures,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        let link = target.link();
        for placement in Placement::ALL {
            let elements = if placement == Placement::Client { ELEMENTS_AT_CLIENT } else { ELEMENTS };
            for (in_flight, each) in IN_FLIGHT.into_iter().zip(["", "_each"]) {
                let mut ns = |calls: Walk| {
                    let slice = Slice { placement, in_flight, time };
                    let mut tally = Tally::default();
                    run(target, &mut { calls }, slice, &mut tally, stop)?;
                    let load = tally.load();
                    Ok::<_, Error>(if in_flight == 1 { load.p50_ns as f64 } else { 1e9 / load.ops_per_s })
                };
                let place = format!("software.{link}.{placement}");
                let call = ns(self.walk(0))?;
                figures.add(format!("{place}.call{each}"), "ns", "a call that touches no memory", call);
                let step = (ns(self.walk(elements))? - call) / elements as f64;
                figures.add(format!("{place}.step{each}"), "ns", "the same along a list in cache, an element", step);
                for (bytes, name) in VALUES {
                    let how = "a call that reads an element and the value it points to";
                    figures.add(format!("{place}.reply{each}.{name}"), "ns", how, ns(self.value(bytes))?);
                    if in_flight > 1 {
                        let how = "the same, one value in ten a byte shorter";
                        let uneven = Walk { uneven: true, ..self.value(bytes) };
                        figures.add(format!("{place}.uneven{each}.{name}"), "ns", how, ns(uneven)?);
                    }
                }
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
        for core in ["client.core", "host.core"] {
            figures.add(format!("{core}.dispatch"), "ns", "a call over shared memory, 64 under way", call);
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

struct Walk {
    params: TraversalParams,
    expected: Status,
    /// Whether every tenth value is a byte shorter.
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
        let shorter = u32::from(self.uneven && id.is_multiple_of(10));
        let walk = TraversalParams { value_size: self.params.value_size - shorter, ..self.params };
        params.extend_from_slice(&walk.encode());
    }

    fn check(&self, _: u64, status: Status, _: &[u8]) -> Result<Outcome, String> {
        if status == self.expected {
            return Ok(Outcome::RIGHT);
        }
        Err(format!("a probe's walk ended with {status:?} instead of {:?}", self.expected))
    }
}

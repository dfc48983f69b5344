//! The operation as a kernel call in the modelled world: the real NIC engine and the real traversal kernel, on the
//! platform's hardware, over real bytes.
//!
//! A dependent chain of reads is a list: its elements are the accesses but the last, which is the value. That stands
//! for operations that read lines one after the other and then a record; others are simulated by their way only.

use remora_kernel::{Placement, Status, TraversalParams, op};
use remora_model::platform::Platform;
use remora_model::world::{self, PairSpec};
use serde::Serialize;

use super::Goal;
use super::operation::{Kind, Load, Operation};
use crate::calling::Calls;
use crate::calling::Checked;
use crate::connection::Storage;
use crate::modelled::{ModelError, Modelled};
use crate::operations::Lists;
use remora_store::Place as Stored;

/// What the world gave.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorldRun {
    /// The placement.
    pub place: Placement,
    /// Median latency in nanoseconds.
    pub p50_ns: u64,
    /// The 99th percentile in nanoseconds.
    pub p99_ns: u64,
    /// Operations a second.
    pub ops_per_s: f64,
    /// What was busiest.
    pub binding: String,
    /// Joules of client and node for each operation, if the platform's power is known.
    pub joules_per_op: Option<f64>,
    /// Events that it took.
    pub events: u64,
}

impl WorldRun {
    /// What is to be as small as can be; `None` if the run does not say: a rate at saturation needs as many under way.
    pub fn cost(&self, goal: Goal) -> Option<f64> {
        match goal {
            Goal::Latency => Some(self.p50_ns as f64),
            Goal::Energy => self.joules_per_op,
            Goal::Rate => None,
        }
    }
}

/// Bytes of the traversal kernel's elements.
const LINE: f64 = 64.0;
/// The most elements that the lists have together. Modelled memory is real memory; which loads hit is decided by the
/// state that the operation says it has.
const MOST_ELEMENTS: u64 = 1 << 14;
/// The longest list and the longest value.
const LONGEST: u64 = 256;
const LONGEST_VALUE: f64 = 61_440.0;
/// The most calls under way that a modelled pair takes.
const MOST_UNDER_WAY: u32 = 128;

/// The elements before the value, and the value's bytes, if the operation is such a chain.
fn chain(operation: &Operation) -> Option<(u64, u32)> {
    let chained = operation.accesses.iter().all(|access| access.kind == Kind::Read && access.dependent);
    let (last, before) = operation.accesses.split_last()?;
    let plain = chained && operation.writes == 0.0 && operation.reply > 0.0;
    if !plain || last.bytes > LONGEST_VALUE || before.iter().any(|access| access.bytes > LINE) {
        return None;
    }
    // The last group's accesses but one are elements too, if they are lines.
    let (count, elements) = (last.count.round(), before.iter().map(|access| access.count).sum::<f64>().round());
    if count < 1.0 || (count > 1.0 && last.bytes > LINE) {
        return None;
    }
    let elements = (elements + count - 1.0) as u64;
    (1..=LONGEST).contains(&elements).then_some((elements, last.bytes.max(8.0) as u32))
}

/// Whether the world runs all of the operation's load.
pub fn is_whole(operation: &Operation) -> bool {
    matches!(operation.load, Load::Closed(under_way) if under_way <= MOST_UNDER_WAY)
}

/// Runs the operation in the modelled world; `None` if it is no chain of reads, or its load none that calls make by
/// themselves, or the platform's NIC is software.
pub fn run(
    platform: &Platform,
    operation: &Operation,
    place: Placement,
    (count, seed): (u64, u64),
) -> Option<Result<WorldRun, ModelError>> {
    let (elements, value) = chain(operation)?;
    let Load::Closed(under_way) = operation.load else { return None };
    platform.nic.as_ref()?;
    let under_way = under_way.min(MOST_UNDER_WAY);
    Some(measure(platform, operation, place, ((elements, value), under_way, count, seed)))
}

fn measure(
    platform: &Platform,
    operation: &Operation,
    place: Placement,
    ((elements, value), under_way, count, seed): ((u64, u32), u32, u64, u64),
) -> Result<WorldRun, ModelError> {
    let mut spec = PairSpec::new(platform, operation.state as u64, seed)?;
    // As many threads of the client as the screen takes: all its cores, not the one of a comparison.
    spec.client.core = platform.client.clone();
    let mut modelled = Modelled::new(&spec, place)?;
    let wanted = (operation.state / LINE / elements as f64) as u64;
    let lists = wanted.clamp(64, (MOST_ELEMENTS / elements).max(64));
    let failed = |_| ModelError::World(world::WorldError::Missing { platform: platform.name.clone(), what: "memory" });
    let bytes = Lists::bytes(lists, elements);
    let (first, second) =
        (modelled.alloc(bytes).map_err(failed)?, modelled.alloc(bytes + u64::from(value)).map_err(failed)?);
    let stored = |region: &remora_real::RemoteRegion| Stored { va: region.va, key: region.key };
    let layout = Lists::new(stored(&first), stored(&second), lists, elements, seed);
    let (element_image, value_image) = layout.images();
    modelled.write(&first, 0, &element_image).map_err(failed)?;
    modelled.write(&second, 0, &value_image).map_err(failed)?;
    let mut chain = Chain { walks: Box::new(layout.walks(elements, seed)), value };
    let measured = modelled.measure(&mut chain, under_way, count, &|| false)?;
    Ok(WorldRun {
        place,
        p50_ns: measured.p50_ns,
        p99_ns: measured.p99_ns,
        ops_per_s: measured.ops_per_s,
        binding: measured.binding,
        joules_per_op: measured.joules_per_op,
        events: measured.events,
    })
}

/// Walks of the comparison's lists, with a value of another size.
struct Chain<'a> {
    walks: Box<dyn Calls + 'a>,
    value: u32,
}

impl Calls for Chain<'_> {
    fn op(&self) -> u64 {
        op::TRAVERSAL
    }

    fn next(&mut self) -> u64 {
        self.walks.next()
    }

    fn params(&self, id: u64, params: &mut Vec<u8>) {
        let start = params.len();
        self.walks.params(id, params);
        if let Ok(walk) = TraversalParams::decode(&params[start..]) {
            params.truncate(start);
            params.extend_from_slice(&TraversalParams { value_size: self.value, ..walk }.encode());
        }
    }

    /// The value's first line is what the list's image holds; what is longer runs on into the next one.
    fn check(&self, id: u64, status: Status, reply: &[u8]) -> Result<Checked, String> {
        let line = LINE as usize;
        if reply.len() != self.value as usize {
            return Err(format!("{} bytes came instead of {} ({status:?})", reply.len(), self.value));
        }
        match reply.get(..line) {
            Some(first) => self.walks.check(id, status, first),
            None if status == Status::Ok => Ok(Checked::RIGHT),
            None => Err(format!("the walk ended with {status:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_told_from_other_operations() {
        let parse = |text: &str| {
            let head = "title = \"x\"\nrequest = \"36 B\"\nreply = \"64 B\"\nstate = \"1 MiB\"\n";
            Operation::parse("x.toml", &format!("{head}{text}")).unwrap()
        };
        let access = |count: &str, rest: &str| format!("[[access]]\ncount = {count}\n{rest}\n");
        assert_eq!(chain(&parse(&(access("8", "size = \"64 B\"") + &access("1", "size = \"64 B\"")))), Some((8, 64)));
        assert_eq!(
            chain(&parse(&(access("1.03", "size = \"64 B\"") + &access("1", "size = \"128 B\"")))),
            Some((1, 128))
        );
        assert_eq!(chain(&parse(&access("9", "size = \"64 B\""))), Some((8, 64)));
        assert_eq!(chain(&parse(&access("6", "size = \"512 B\""))), None, "nodes longer than a line");
        assert_eq!(chain(&parse(&access("9", "size = \"64 B\"\ndependent = false"))), None);
        assert_eq!(chain(&parse(&access("2", "size = \"8 B\"\nkind = \"atomic\""))), None);
    }
}

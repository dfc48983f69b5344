//! What nodes do: programs of the paper's workloads.

use remora_model::platform::{Platform, RackCosts};
use remora_model::rack_world::RackStep;
use remora_model::time::Ps;

use super::graph::{Superstep, supersteps};

/// Parameters of ResNet18 and of the language model (section 6.2), of four bytes each, and bytes of a bucket of gradients
/// (PyTorch's default).
const RESNET: u64 = 11_000_000 * 4;
const LANGUAGE_MODEL: u64 = 1_000_000 * 4;
const BUCKET: u64 = 25 << 20;
/// Supersteps of PageRank (section 6.2).
const SUPERSTEPS: usize = 12;
/// Bytes with which a vertex is told: its number and its rank, or its number and its parent's.
const RANK: u64 = 12;
const PARENT: u64 = 8;
/// Bytes that each mapper sends, which the text does not say.
const MAPPED: u64 = 24 << 20;
/// Rounds of the key-value client, requests to each server in a round, their bytes, and those of a reply beside its value.
const ROUNDS: u64 = 40;
const REQUESTS: u64 = 16;
const REQUEST: u64 = 64;
const REPLY: u64 = 8;
/// What a server computes for a request on such a core, which the text does not say.
const SERVED: Ps = Ps(20_000_000);
/// Round trips of a ping-pong.
const PINGS: u64 = 20;

/// Programs of all nodes.
pub type Programs = Vec<Vec<RackStep>>;

fn none(nodes: usize) -> Programs {
    vec![Vec::new(); nodes]
}

/// A ring all-reduce as Gloo has it: every node's bytes in as many parts as there are nodes, which go round twice, first to
/// be summed up and then to be told. Each part goes in two halves, so that one is added while the other is on its way.
fn ring(programs: &mut Programs, bytes: u64) {
    let nodes = programs.len();
    let half = bytes.div_ceil(2 * nodes as u64).max(1);
    for (node, program) in programs.iter_mut().enumerate() {
        let (to, from) = ((node + 1) % nodes, (node + nodes - 1) % nodes);
        let send = RackStep::Send { to, bytes: half };
        program.extend([send; 2]);
        for step in 0..2 * (nodes - 1) {
            for _ in 0..2 {
                program.push(RackStep::Receive { from, bytes: half });
                if step < nodes - 1 {
                    program.push(RackStep::Reduce(half));
                }
                if step + 1 < 2 * (nodes - 1) {
                    program.push(send);
                }
            }
        }
    }
}

/// One ring all-reduce.
pub fn all_reduce(nodes: usize, bytes: u64) -> Programs {
    let mut programs = none(nodes);
    ring(&mut programs, bytes);
    programs
}

/// The gradients of one iteration, bucket by bucket.
fn gradients(nodes: usize, bytes: u64) -> Programs {
    let mut programs = none(nodes);
    let mut left = bytes;
    while left > 0 {
        let bucket = left.min(BUCKET);
        ring(&mut programs, bucket);
        left -= bucket;
    }
    programs
}

/// Those of ResNet18.
pub fn resnet(nodes: usize) -> Programs {
    gradients(nodes, RESNET)
}

/// Those of the language model.
pub fn language_model(nodes: usize) -> Programs {
    gradients(nodes, LANGUAGE_MODEL)
}

/// Everybody tells everybody.
fn exchange(programs: &mut Programs, bytes: impl Fn(usize, usize) -> u64) {
    let nodes = programs.len();
    for (node, program) in programs.iter_mut().enumerate() {
        let others = || (1..nodes).map(|away| (node + away) % nodes);
        program.extend(others().map(|to| RackStep::Send { to, bytes: bytes(node, to) }));
        program.extend(others().map(|from| RackStep::Receive { from, bytes: bytes(from, node) }));
    }
}

/// Bytes from each node to each other.
pub fn all_to_all(nodes: usize, bytes: u64) -> Programs {
    let mut programs = none(nodes);
    exchange(&mut programs, |_, _| bytes);
    programs
}

fn superstep(programs: &mut Programs, step: &Superstep, each: u64, costs: &RackCosts) {
    for (program, &edges) in programs.iter_mut().zip(&step.edges) {
        program.push(RackStep::Compute(Ps::from_secs(edges as f64 / costs.edges)));
    }
    // A word more says how many there are, and that nothing else comes.
    exchange(programs, |from, to| step.told[from][to] * each + 8);
    programs.iter_mut().for_each(|program| program.push(RackStep::Mark));
}

/// PageRank on a drawn graph.
pub fn page_rank(nodes: usize, costs: &RackCosts, seed: u64) -> Programs {
    let once = rank_once(nodes, costs, seed);
    once.into_iter().map(|program| program.repeat(SUPERSTEPS)).collect()
}

/// One superstep of it: all are alike.
pub fn rank_once(nodes: usize, costs: &RackCosts, seed: u64) -> Programs {
    let mut programs = none(nodes);
    superstep(&mut programs, &supersteps(seed, nodes).page_rank, RANK, costs);
    programs
}

/// A breadth-first search on a drawn graph.
pub fn search(nodes: usize, costs: &RackCosts, seed: u64) -> Programs {
    let (mut programs, all) = (none(nodes), supersteps(seed, nodes));
    all.search.iter().for_each(|step| superstep(&mut programs, step, PARENT, costs));
    programs
}

/// All nodes but the first map, and it reduces: it takes what they have sent in parts, from each in turn.
pub fn word_count(nodes: usize) -> Programs {
    const PART: u64 = 64 << 10;
    let mut programs = none(nodes);
    for program in &mut programs[1..] {
        program.push(RackStep::Send { to: 0, bytes: MAPPED });
    }
    // Its own rack's is done first where that is faster: it is taken first, as a thread of its own would.
    let near = nodes / 2;
    for from in 1..near {
        programs[0].push(RackStep::Receive { from, bytes: MAPPED });
    }
    for _ in 0..MAPPED / PART {
        programs[0].extend((near..nodes).map(|from| RackStep::Receive { from, bytes: PART }));
    }
    programs
}

/// The first node asks all others for values of so many bytes.
pub fn key_value(nodes: usize, bytes: u64) -> Programs {
    let mut programs = none(nodes);
    for _ in 0..ROUNDS {
        for server in 1..nodes {
            programs[0].push(RackStep::Send { to: server, bytes: REQUESTS * REQUEST });
            programs[server].push(RackStep::Receive { from: 0, bytes: REQUESTS * REQUEST });
            programs[server].push(RackStep::Compute(SERVED * REQUESTS));
            programs[server].push(RackStep::Send { to: 0, bytes: REQUESTS * (bytes + REPLY) });
        }
        let replies = (1..nodes).map(|from| RackStep::Receive { from, bytes: REQUESTS * (bytes + REPLY) });
        programs[0].extend(replies);
        programs[0].push(RackStep::Mark);
    }
    programs
}

/// Requests that the key-value client makes.
pub fn requests(nodes: usize) -> u64 {
    ROUNDS * REQUESTS * (nodes as u64 - 1)
}

/// Bytes to another node and back.
pub fn ping_pong(nodes: usize, to: usize, bytes: u64) -> Programs {
    let mut programs = none(nodes);
    for _ in 0..PINGS {
        programs[0].extend([RackStep::Mark, RackStep::Send { to, bytes }, RackStep::Receive { from: to, bytes }]);
        programs[to].extend([RackStep::Receive { from: 0, bytes }, RackStep::Send { to: 0, bytes }]);
    }
    programs[0].push(RackStep::Mark);
    programs
}

/// Streams from nodes of the first rack to those that stand for them in the other, or to another one of their own.
pub fn streams(nodes: usize, count: usize, within: bool, bytes: u64) -> Programs {
    let mut programs = none(nodes);
    let away = if within { 1 } else { nodes / 2 };
    for from in 0..count.min(nodes / 2) {
        let to = (from + away) % nodes;
        programs[from].push(RackStep::Send { to, bytes });
        programs[to].push(RackStep::Receive { from, bytes });
    }
    programs
}

/// So many nodes of the second rack send bytes to the first node of the other, which takes a part from each in turn.
pub fn incast(nodes: usize, senders: usize, (bytes, part): (u64, u64)) -> Programs {
    let mut programs = none(nodes);
    let senders = nodes / 2..(nodes / 2 + senders).min(nodes);
    for from in senders.clone() {
        programs[from].push(RackStep::Send { to: 0, bytes });
    }
    for taken in (0..bytes).step_by(part.max(1) as usize) {
        let bytes = part.min(bytes - taken);
        programs[0].extend(senders.clone().map(|from| RackStep::Receive { from, bytes }));
    }
    programs
}

/// Nodes of both racks.
pub fn nodes(platform: &Platform) -> usize {
    platform.rack.as_ref().map_or(4, |costs| 2 * costs.nodes as usize)
}

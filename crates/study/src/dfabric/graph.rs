//! A graph of skewed degrees, cut into parts, and what its parts tell each other in a superstep.
//!
//! R-MAT (Chakrabarti, Zhan and Faloutsos, SDM 2004) with the usual probabilities. Parts are runs of vertices with as many
//! edges each, and a vertex is told once to each other part that has neighbours of it, as in Gemini (OSDI 2016).

use std::sync::{Arc, Mutex};

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// Vertices as a power of two, and edges of each: as many for each vertex as LiveJournal has, which is the paper's graph.
const SCALE: u32 = 17;
const DEGREE: usize = 14;
/// Edges of LiveJournal (SNAP, soc-LiveJournal1): what the drawn graph's parts do counts so many times that it has as many.
const EDGES: u64 = 68_993_773;
/// Of 256, how often an edge goes to the first quarter of the matrix, the first two, the first three: 0.57, 0.19, 0.19.
const QUARTERS: [u8; 3] = [146, 195, 243];

/// What the parts do in a superstep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superstep {
    /// Edges that each part goes through.
    pub edges: Vec<u64>,
    /// Vertices that each part tells each.
    pub told: Vec<Vec<u64>>,
}

/// A graph and the parts that its vertices belong to.
pub struct Graph {
    /// Of each vertex where its neighbours begin.
    starts: Vec<u32>,
    neighbours: Vec<u32>,
    /// The first vertex of each part, and the end.
    bounds: Vec<u32>,
}

impl Graph {
    /// Draws a graph; the same seed draws the same.
    fn draw(seed: u64, parts: usize) -> Self {
        let (mut rng, vertices) = (ChaCha8Rng::seed_from_u64(seed), 1usize << SCALE);
        let mut edges: Vec<(u32, u32)> = (0..vertices * DEGREE).map(|_| edge(&mut rng)).collect();
        edges.sort_unstable();
        edges.dedup();
        let mut starts = vec![0u32; vertices + 1];
        edges.iter().for_each(|&(from, _)| starts[from as usize + 1] += 1);
        for vertex in 0..vertices {
            starts[vertex + 1] += starts[vertex];
        }
        let each = edges.len().div_ceil(parts) as u32;
        let inner = (1..parts as u32).map(|part| starts.partition_point(|&start| start < part * each) as u32);
        let bounds = [0].into_iter().chain(inner).chain([vertices as u32]).collect();
        Self { starts, neighbours: edges.into_iter().map(|(_, to)| to).collect(), bounds }
    }

    fn of(&self, vertex: u32) -> &[u32] {
        &self.neighbours[self.starts[vertex as usize] as usize..self.starts[vertex as usize + 1] as usize]
    }

    fn part(&self, vertex: u32) -> usize {
        self.bounds.partition_point(|&first| first <= vertex) - 1
    }

    /// So much of the drawn graph is so much of LiveJournal.
    fn whole(&self, part: u64) -> u64 {
        part * EDGES / self.neighbours.len() as u64
    }

    /// What happens when these vertices tell their neighbours.
    fn step(&self, active: impl Iterator<Item = u32>) -> Superstep {
        let parts = self.bounds.len() - 1;
        let mut step = Superstep { edges: vec![0; parts], told: vec![vec![0; parts]; parts] };
        let mut seen = vec![false; parts];
        for vertex in active {
            let (own, neighbours) = (self.part(vertex), self.of(vertex));
            step.edges[own] += neighbours.len() as u64;
            seen.fill(false);
            neighbours.iter().for_each(|&to| seen[self.part(to)] = true);
            seen.iter().enumerate().filter(|(part, seen)| **seen && *part != own).for_each(|(part, _)| {
                step.told[own][part] += 1;
            });
        }
        let all = step.edges.iter_mut().chain(step.told.iter_mut().flatten());
        all.for_each(|count| *count = self.whole(*count));
        step
    }
}

fn edge(rng: &mut ChaCha8Rng) -> (u32, u32) {
    let (mut from, mut to, mut bytes) = (0, 0, [0; 8]);
    for level in 0..SCALE as usize {
        if level % 8 == 0 {
            bytes = rng.next_u64().to_le_bytes();
        }
        let quarter = QUARTERS.iter().filter(|below| bytes[level % 8] >= **below).count() as u32;
        (from, to) = (from << 1 | quarter >> 1, to << 1 | quarter & 1);
    }
    (from, to)
}

/// The supersteps of PageRank (any of them: all are alike) and of a breadth-first search from the vertex with the most
/// neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Supersteps {
    /// Of PageRank.
    pub page_rank: Superstep,
    /// Of the search, one a level.
    pub search: Vec<Superstep>,
}

/// What was drawn last, and of which seed and how many parts: points of a figure share a graph.
static KEPT: Mutex<Option<Kept>> = Mutex::new(None);
type Kept = ((u64, usize), Arc<Supersteps>);

/// Those of a graph in so many parts.
pub fn supersteps(seed: u64, parts: usize) -> Arc<Supersteps> {
    let mut kept = KEPT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some((_, found)) = kept.as_ref().filter(|(of, _)| *of == (seed, parts)) {
        return Arc::clone(found);
    }
    let graph = Graph::draw(seed, parts);
    let vertices = 1u32 << SCALE;
    let page_rank = graph.step(0..vertices);
    let root = (0..vertices).max_by_key(|vertex| graph.of(*vertex).len()).unwrap_or(0);
    let (mut seen, mut search, mut level) = (vec![false; vertices as usize], Vec::new(), vec![root]);
    seen[root as usize] = true;
    while !level.is_empty() {
        search.push(graph.step(level.iter().copied()));
        let mut next = Vec::new();
        for &vertex in level.iter().flat_map(|vertex| graph.of(*vertex)) {
            if !std::mem::replace(&mut seen[vertex as usize], true) {
                next.push(vertex);
            }
        }
        level = next;
    }
    let made = Arc::new(Supersteps { page_rank, search });
    *kept = Some(((seed, parts), Arc::clone(&made)));
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_is_skewed_cut_evenly_and_the_same_again() {
        let (graph, vertices) = (Graph::draw(7, 4), 1u32 << SCALE);
        let most = (0..vertices).map(|vertex| graph.of(vertex).len()).max().unwrap();
        assert!(most > 50 * DEGREE, "{most}");
        let all = supersteps(7, 4);
        let (least, most) = (all.page_rank.edges.iter().min().unwrap(), all.page_rank.edges.iter().max().unwrap());
        assert!(*most < least + least / 20, "{:?}", all.page_rank.edges);
        assert_eq!(all.page_rank, graph.step(0..vertices));
        assert!((4..12).contains(&all.search.len()), "{} levels", all.search.len());
        // Nobody tells more than it has, and a search goes along each edge at most once.
        for (own, told) in all.page_rank.told.iter().enumerate() {
            let vertices = u64::from(graph.bounds[own + 1] - graph.bounds[own]);
            assert!(told[own] == 0 && told.iter().all(|told| *told <= graph.whole(vertices)));
        }
        let gone: u64 = all.search.iter().flat_map(|step| &step.edges).sum();
        assert!(gone <= EDGES && gone > EDGES / 2);
    }
}

//! A kernel of one's own: the vertices within some hops of another one, found next to the graph.
//!
//! ```sh
//! cargo run -p remora --example own_kernel
//! ```
//!
//! `kernels/khop.wat` is the kernel, in WebAssembly text; `remora kernel build --template c` and `rust` start others.

use std::time::Instant;

use remora::{Client, Deployed, Limits, ModuleLimits, Node, Placement};

/// Vertices of the graph, and edges of each.
const VERTICES: u32 = 4096;
const DEGREE: u64 = 4;

/// Key of the graph's region, start, addresses of offsets and edges, vertices, hops.
type Params = (u32, u32, u64, u64, u32, u32);

fn main() -> remora::Result<()> {
    let node = Node::local()?;
    let mut client = Client::connect(node.address())?;

    // The graph in compressed sparse rows: where each vertex' edges begin, then all edges.
    let edges: Vec<u32> = (0..VERTICES).flat_map(neighbours).collect();
    let offsets = (0..=u64::from(VERTICES)).flat_map(|vertex| (DEGREE * vertex).to_le_bytes());
    let mut graph: Vec<u8> = offsets.collect();
    let edges_at = graph.len() as u64;
    graph.extend(edges.iter().flat_map(|vertex| vertex.to_le_bytes()));
    let region = client.alloc(graph.len() as u64)?;
    client.write(&region, 0, &graph)?;

    // What a call may use up: two accesses of memory for each vertex that is reached.
    let limits =
        ModuleLimits { fuel: 10_000_000, access: Limits { steps: 10_000, bytes: 1 << 20 }, ..Default::default() };
    let within: Deployed<Params, Vec<u32>> = client.deploy("khop", include_str!("../kernels/khop.wat"), limits)?;

    println!("vertices within some hops of vertex 0, of {VERTICES}:\n");
    println!("{:>5} {:>9}{}", "hops", "vertices", Placement::REAL.map(|place| format!("{place:>12}")).concat());
    for hops in 1..=4 {
        let params = (region.key, 0, region.va, region.va + edges_at, VERTICES, hops);
        let expected = search(&edges, hops);
        let mut row = format!("{hops:>5} {:>9}", expected.len());
        for place in Placement::REAL {
            let start = Instant::now();
            let found = client.at(place).call(within.with(&params))?;
            row += &format!("{:>12}", format!("{:.1?}", start.elapsed()));
            assert_eq!(found, expected, "at the {place}");
        }
        println!("{row}");
    }
    println!("\nat the client each vertex costs two round trips; on the node the whole search costs one");
    Ok(())
}

/// The ends of a vertex' edges.
fn neighbours(vertex: u32) -> [u32; DEGREE as usize] {
    [1, 7, 301, 1009].map(|step| (vertex * 3 + step) % VERTICES)
}

/// The same search in this process.
fn search(edges: &[u32], hops: u32) -> Vec<u32> {
    let mut reached = vec![0];
    let mut level = 0..1;
    for _ in 0..hops {
        for at in level.clone() {
            let first = reached[at] as usize * DEGREE as usize;
            for &vertex in &edges[first..first + DEGREE as usize] {
                if !reached.contains(&vertex) {
                    reached.push(vertex);
                }
            }
        }
        level = level.end..reached.len();
    }
    reached
}

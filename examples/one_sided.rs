//! One-sided verbs: a node's memory, read, written and counted in without its processors.
//!
//! ```sh
//! cargo run -p remora --example one_sided              # with a node of its own
//! cargo run -p remora --example one_sided 10.0.0.1     # with one that `remora node --listen 10.0.0.1` started
//! ```

use std::time::Instant;

use remora::{Client, Node};

fn main() -> remora::Result<()> {
    let (node, _own) = match std::env::args().nth(1) {
        Some(address) => (address, None),
        None => {
            let node = Node::local()?;
            (node.address().to_string(), Some(node))
        }
    };
    let mut client = Client::connect(&node)?;
    println!("connected to {node} over {}", client.link());

    // 4 MB of the node's memory, which is ours until we disconnect.
    let region = client.alloc(4 << 20)?;
    let data: Vec<u8> = (0..4u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let start = Instant::now();
    client.write(&region, 0, &data)?;
    let written = start.elapsed();
    let mut back = vec![0; data.len()];
    client.read(&region, 0, &mut back)?;
    assert!(back == data, "what was written is read");
    println!("4 MB: WRITE {written:.1?}, READ {:.1?}", start.elapsed() - written);

    // A word that many clients may count in at once.
    let counter = client.alloc(8)?;
    let mut others = (0..3).map(|_| Client::connect(&node)).collect::<remora::Result<Vec<_>>>()?;
    for round in 0..1000 {
        for (n, other) in (0..).zip(&mut others) {
            assert_eq!(other.fetch_add(&counter, 0, 1)?, 3 * round + n);
        }
    }
    let start = Instant::now();
    // Nobody else counts now: the value is what it was, so it is swapped.
    assert_eq!(client.compare_swap(&counter, 0, 3000, 0)?, 3000);
    println!("3 clients counted to 3000 in one word; a compare-and-swap takes {:.1?}", start.elapsed());
    Ok(())
}

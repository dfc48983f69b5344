//! A replicated store: three nodes, one of which goes and comes back while a client counts.
//!
//! ```sh
//! cargo run -p remora --example replicated_store
//! ```
//!
//! The nodes are threads of this process here. `remora cluster` makes them processes.

use std::time::{Duration, Instant};

use remora::store::{LocalCluster, Model, Store, Swap};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    // A write returns when it is durable on all nodes.
    let mut cluster = LocalCluster::start(3, Model::Synch, dir.path())?;
    let mut store = cluster.client().retry(true).timeout(Duration::from_secs(20)).connect()?;

    store.put(1, b"draft")?;
    let swapped = store.compare_swap(1, Some(b"draft"), Some(b"final"))?;
    assert_eq!(swapped, Swap::Done);
    println!("record 1 is {:?}", String::from_utf8_lossy(&store.get(1)?.unwrap_or_default()));

    let count = |store: &mut Store, what: &str| {
        let (start, mut longest) = (Instant::now(), Duration::ZERO);
        for _ in 0..100 {
            let begun = Instant::now();
            store.fetch_add(2, 1)?;
            longest = longest.max(begun.elapsed());
        }
        println!("{what}: 100 additions in {:.0?}, the longest took {longest:.0?}", start.elapsed());
        remora::store::Result::Ok(())
    };
    count(&mut store, "three nodes      ")?;
    cluster.stop(0);
    count(&mut store, "node 0 is stopped")?;
    cluster.restart(0)?;
    count(&mut store, "node 0 is back   ")?;

    // Another client, at the node that was away: everything is there, and was done once.
    let mut other = cluster.client().node(0).timeout(Duration::from_secs(20)).connect()?;
    let total = loop {
        match other.get(2) {
            Ok(total) => break total.unwrap_or_default(),
            // It serves when it has caught up.
            Err(remora::store::StoreError::Refused(_)) => std::thread::sleep(Duration::from_millis(10)),
            Err(e) => return Err(e.into()),
        }
    };
    assert_eq!(total[..], 300u64.to_le_bytes());
    println!("300 additions were each done once");
    Ok(())
}

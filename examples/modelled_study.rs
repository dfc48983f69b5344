//! A study in modelled time: the same look-ups in every place of hardware that is not here.
//!
//! ```sh
//! cargo run -p remora --example modelled_study                     # on the platforms below
//! cargo run -p remora --example modelled_study platforms/mine.toml
//! ```

use std::time::Duration;

use remora::model::{ModelledClient, Platform, Timed};
use remora::{Get, Placement, Traverse, TypedCall};

/// Look-ups of each kind.
const CALLS: u64 = 200;
/// How many are under way at once.
const IN_FLIGHT: usize = 16;

fn main() -> remora::model::Result<()> {
    let mut names: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    if names.is_empty() {
        names = ["strom-10g", "bluefield2", "rambda"].map(String::from).into();
    }
    for name in names {
        let platform = Platform::load(&name)?;
        println!("{}: {}", platform.name, platform.title);
        println!("  {:<8}{:>12}{:>12}{:>16}", "place", "GET", "list of 16", "16 GETs at once");
        for place in remora::model::placements(&platform) {
            // Hardware of its own for each, so that none finds its caches warm.
            let mut client = ModelledClient::new(&platform)?;
            let table = client.load_table((0..1000u64).map(|n| (n.to_le_bytes(), [n as u8; 64])))?;
            let list = client.load_list((0..16).map(|n| (n, [n as u8; 64])))?;
            let keys: Vec<_> = (0..CALLS).map(|n| (n * 7919 % 1000).to_le_bytes()).collect();
            let gets = || keys.iter().map(|key| Get::new(&table, key));

            let get = median(&mut client, place, gets(), 1)?;
            let walk = median(&mut client, place, (0..CALLS).map(|_| Traverse::new(&list, 15)), 1)?;
            let start = client.now();
            let found = client.run(place, gets(), IN_FLIGHT)?;
            let rate = CALLS as f64 / (client.now() - start).as_secs_f64();
            assert!(found.iter().all(|found| found.reply.is_some()));
            let column = |time: Duration| format!("{time:.2?}");
            println!("  {place:<8}{:>12}{:>12}{:>14.2} M/s", column(get), column(walk), rate / 1e6);
        }
        println!();
    }
    Ok(())
}

/// The median time of calls that all find something.
fn median<C: TypedCall<Reply = Option<Vec<u8>>>>(
    client: &mut ModelledClient,
    place: Placement,
    calls: impl IntoIterator<Item = C>,
    in_flight: usize,
) -> remora::model::Result<Duration> {
    let mut replies = client.run(place, calls, in_flight)?;
    assert!(replies.iter().all(|found| found.reply.is_some()));
    replies.sort_by_key(|Timed { latency, .. }| *latency);
    Ok(replies[replies.len() / 2].latency)
}

//! The measurements behind `remora bench cores`: as many pairs of a client and an engine as there are cores, each pair on a
//! core of its own, beside one of them.
//!
//! All engines are one node's. Nothing that a pair does on a call's way is another's affair, so that two pairs ought to do
//! twice what one does. What the machine itself gives is measured beside: a core that shares execution units, caches or power with
//! another is not two.

use std::hint::black_box;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use remora_kernel::{ConsistencyParams, Placement, Status, crc64, op};
use remora_real::{
    Client, ClientConfig, Error, LinkKind, Node, NodeConfig, RingConfig, UdpPort, at_free_loopback, at_local, on_core,
};

use super::{BenchError, BenchGoal, BenchProgress, BenchRow, SMALL, TIME, beside, next};
use crate::MeasuredRows;
use crate::probe::on_cores;

/// Calls under way for each client.
const DEPTH: u32 = 64;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct CoresPlan {
    /// Pairs, each on a core.
    pub pairs: u16,
    /// How long one measurement runs.
    pub time: Duration,
}

impl CoresPlan {
    /// So many pairs.
    pub fn new(pairs: u16) -> Self {
        Self { pairs, time: TIME }
    }
}

/// How a client reaches an object of its own on the node, whose checksum is checked.
const WAYS: [(Way, &str); 3] = [
    (Way::Place(Placement::Client), "READs, checked by the client"),
    (Way::Place(Placement::Nic), "calls by RPC verbs"),
    (Way::Ring, "calls by rings"),
];

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Place(Placement),
    Ring,
}

/// Measures everything.
pub fn cores(plan: CoresPlan, progress: &mut BenchProgress<'_>) -> MeasuredRows<BenchRow, BenchError> {
    let CoresPlan { pairs, time } = plan;
    // Of the rate of one; a tenth is what caches and memory that all share may cost.
    let goal = Some(BenchGoal::RatioAtLeast(0.9 * f64::from(pairs)));
    let links = [LinkKind::Shm, LinkKind::Udp];
    MeasuredRows::by(2 + links.len() * WAYS.len(), |rows| {
        // Before and after, as what runs on a shared machine's other threads changes.
        let machine = |when: &str| {
            let figures = beside(|| Ok(alone(pairs, time)), || Ok(alone(1, time)))?;
            Ok::<_, Error>(BenchRow::new(
                format!("the machine {when}: {pairs} loops"),
                "M/s",
                "one loop",
                figures,
                None,
            ))
        };
        next(progress, "a loop of its own", 0.0)?;
        rows.push(machine("before")?);
        for (at, link) in links.into_iter().enumerate() {
            let pairs_of = Pairs::start(link, pairs)?;
            for (n, (way, what)) in WAYS.into_iter().enumerate() {
                let part = (at * WAYS.len() + n) as f64 / (links.len() * WAYS.len()) as f64;
                next(progress, &format!("{what} over {link}"), 0.1 + 0.85 * part)?;
                let figures = beside(|| pairs_of.rate(pairs, way, time), || pairs_of.rate(1, way, time))?;
                let peer = "one pair";
                rows.push(BenchRow::new(format!("{link}: {pairs} pairs, {what}"), "M/s", peer, figures, goal));
            }
        }
        next(progress, "a loop of its own", 0.99)?;
        rows.push(machine("after")?);
        progress("done", 1.0);
        Ok(())
    })
}

/// Turns a second, in millions, of as many loops that compute checksums in their own caches, each on a core.
fn alone(loops: u16, time: Duration) -> f64 {
    let turns = on_cores(loops.into(), |_, together| {
        together.wait();
        let (bytes, start, mut turns) = ([7u8; SMALL], Instant::now(), 0u64);
        while start.elapsed() < time {
            for _ in 0..1000 {
                black_box(crc64(black_box(&bytes)));
            }
            turns += 1000;
        }
        turns as f64 / start.elapsed().as_secs_f64() / 1e6
    });
    turns.into_iter().sum()
}

/// A node of several engines, and a client for each, on its core.
struct Pairs {
    callers: Vec<Mutex<Caller>>,
    _node: Node,
}

struct Caller {
    client: Client,
    params: Vec<u8>,
}

impl Pairs {
    fn start(link: LinkKind, pairs: u16) -> Result<Self, Error> {
        let node = |listen| {
            let usual = NodeConfig::new(listen);
            // All clients are at one address.
            let connections = usual.connections.max(pairs.into());
            NodeConfig { engines: pairs, cores: (0..pairs.into()).collect(), connections, ..usual }
        };
        let node = at_free_loopback(|address| Node::start(node(address)))?;
        let callers: Vec<Caller> = match link {
            // As many ports as engines lead to one each; over shared memory the next client gets the next engine.
            LinkKind::Udp => at_local(node.address(), |local| {
                let ports = UdpPort::bind(local, pairs).map_err(Error::link(link, local))?;
                let config = |port| ClientConfig { port: Some(port), ..ClientConfig::new(node.address(), local) };
                ports.into_iter().enumerate().map(|(n, port)| Caller::new(n, config(port))).collect()
            })?,
            _ => {
                let config = |local| ClientConfig { link: Some(link), ..ClientConfig::new(node.address(), local) };
                let caller = |n: u16| at_local(node.address(), |local: IpAddr| Caller::new(n.into(), config(local)));
                (0..pairs).map(caller).collect::<Result<_, Error>>()?
            }
        };
        let each: Vec<u32> = node.devices().iter().map(|engine| engine.lock().nic().qp_count()).collect();
        if each.iter().any(|&clients| clients != 1) {
            return Err(Error::Argument(format!("engines have {each:?} clients instead of one each")));
        }
        Ok(Self { callers: callers.into_iter().map(Mutex::new).collect(), _node: node })
    }

    /// Calls a second, in millions, of the first so many pairs together.
    fn rate(&self, pairs: u16, way: Way, time: Duration) -> Result<f64, Error> {
        let rates = on_cores(pairs.into(), |n, together| {
            let mut caller = self.callers[n].lock().unwrap_or_else(PoisonError::into_inner);
            together.wait();
            caller.rate(way, time)
        });
        rates.into_iter().try_fold(0.0, |sum, rate| Ok(sum + rate? / 1e6))
    }
}

impl Caller {
    /// Connects from the core that it will call from, and lays down its object.
    fn new(core: usize, config: ClientConfig) -> Result<Self, Error> {
        on_core(core, || {
            let mut client = Client::connect(config)?;
            client.open_rings(Placement::Nic, RingConfig::default())?;
            let (len, region) = (SMALL + 8, client.alloc(4096)?);
            let mut object = vec![7; len];
            let checksum = crc64(&object[..SMALL]);
            object[SMALL..].copy_from_slice(&checksum.to_le_bytes());
            client.write(&region, 0, &object)?;
            let params = ConsistencyParams { address: region.va, key: region.key, len: len as u32, max_tries: 1 };
            Ok(Self { client, params: params.encode().to_vec() })
        })
    }

    /// Calls a second, with [`DEPTH`] under way, each answer looked at.
    fn rate(&mut self, way: Way, time: Duration) -> Result<f64, Error> {
        let Self { client, params } = self;
        let (start, mut under_way, mut done, mut wrong) = (Instant::now(), 0, 0u64, 0u64);
        let mut more = true;
        while more || under_way > 0 {
            while more && under_way < DEPTH {
                let taken = match way {
                    Way::Place(place) => client.submit(place, op::CONSISTENCY, params, 0),
                    Way::Ring => client.submit_by_ring(Placement::Nic, op::CONSISTENCY, params, 0),
                };
                if taken.is_err() {
                    break;
                }
                under_way += 1;
            }
            client.poll(&mut |_, status, reply| {
                (under_way, done) = (under_way - 1, done + 1);
                wrong += u64::from(status != Status::Ok || reply[..SMALL] != [7; SMALL]);
            })?;
            more = start.elapsed() < time;
        }
        match wrong {
            0 => Ok(done as f64 / start.elapsed().as_secs_f64()),
            _ => Err(Error::Argument(format!("{wrong} of {done} answers were wrong"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_comes() {
        let measured = cores(CoresPlan { pairs: 2, time: Duration::from_millis(5) }, &mut |_, _| true);
        let rows = measured.rows;
        assert_eq!(rows.len(), 8);
        assert!(rows.iter().all(|row| row.value > 0.0 && row.peer_value > 0.0), "{rows:?}");
    }
}

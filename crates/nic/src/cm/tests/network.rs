//! Two connection managers in virtual time, over a network that loses, duplicates and reorders.

use std::collections::BTreeMap;

use super::*;

/// Chances in percent, and the spread of delays.
#[derive(Debug, Clone, Copy)]
struct Network {
    loss: u32,
    duplication: u32,
    jitter: u64,
}

/// What happened to a connection at one end, in order.
type Outcomes = BTreeMap<ConnId, Vec<&'static str>>;

struct World {
    seed: u64,
    network: Network,
    rng: ChaCha8Rng,
    now: u64,
    nodes: [Cm; 2],
    outcomes: [Outcomes; 2],
    /// By time of arrival and a serial number: the receiver and the MAD.
    flying: BTreeMap<(u64, u64), (usize, Bytes)>,
    serial: u64,
    /// Passive connection to the queue pair number that the active one called with.
    callers: BTreeMap<ConnId, u32>,
    next_qpn: u32,
}

const IPS: [IpAddr; 2] = [HERE, PEER];

impl World {
    fn new(seed: u64, network: Network) -> World {
        let config = || CmConfig { max_connections: 64, max_half_open: 64, max_retries: 15, ..config() };
        let mut nodes = [Cm::new(seed, config()), Cm::new(seed + 1, config())];
        for node in &mut nodes {
            node.listen(service_id(PORT)).unwrap();
        }
        World {
            seed,
            network,
            rng: ChaCha8Rng::seed_from_u64(seed),
            now: 0,
            nodes,
            outcomes: Default::default(),
            flying: BTreeMap::new(),
            serial: 0,
            callers: BTreeMap::new(),
            next_qpn: 0x100,
        }
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.next_u32() % 100 < percent
    }

    fn transmit(&mut self, node: usize) {
        let mut out = [0; 256];
        while let Some(route) = self.nodes[node].poll_transmit(&mut out) {
            assert_eq!((route.from, route.to), (IPS[node], IPS[1 - node]));
            let copies = 1 + u32::from(self.chance(self.network.duplication));
            for _ in 0..copies {
                if !self.chance(self.network.loss) {
                    let delay = MS + self.rng.next_u64() % (self.network.jitter + 1);
                    self.serial += 1;
                    self.flying.insert((self.now + delay, self.serial), (1 - node, out));
                }
            }
        }
    }

    fn events(&mut self, node: usize) {
        while let Some(event) = self.nodes[node].poll_event() {
            if let CmEvent::ConnectRequest { conn, remote, .. } = &event {
                self.callers.insert(*conn, remote.qpn);
                self.answer(node, *conn);
            }
            let (conn, outcome) = kind_of(&event);
            self.outcomes[node].entry(conn).or_default().push(outcome);
        }
    }

    fn answer(&mut self, node: usize, conn: ConnId) {
        let cm = &mut self.nodes[node];
        self.next_qpn += 1;
        match self.rng.next_u32() % 8 {
            0 => cm.reject(self.now, conn, reason::CONSUMER, b"").unwrap(),
            1 => {
                cm.delay(self.now, conn, 200 * MS).unwrap();
                cm.accept(self.now, conn, params(self.next_qpn), b"").unwrap();
            }
            _ => cm.accept(self.now, conn, params(self.next_qpn), b"").unwrap(),
        }
    }

    /// Runs until nothing flies and no timer is armed.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            for node in 0..2 {
                self.events(node);
                self.transmit(node);
            }
            let arrival = self.flying.first_key_value().map(|(key, _)| key.0);
            let timer = self.nodes.iter().filter_map(Cm::poll_timeout).min();
            let Some(next) = arrival.into_iter().chain(timer).min() else {
                return;
            };
            assert!(next >= self.now, "time goes forward");
            self.now = next;
            while let Some(entry) = self.flying.first_entry().filter(|entry| entry.key().0 <= next) {
                let (to, mad) = entry.remove();
                self.nodes[to].handle_mad(next, 0, IPS[1 - to], IPS[to], &mad);
            }
            for node in &mut self.nodes {
                node.handle_timeout(next);
            }
        }
        panic!("seed {} {:?}: never settles", self.seed, self.network);
    }
}

/// Each end's outcome of every attempt to connect, then of closing.
fn run(seed: u64, network: Network) -> usize {
    let mut world = World::new(seed, network);
    let mut active = Vec::new();
    for i in 0..16 {
        let (node, qpn) = (i % 2, 0x1000 + i as u32);
        let (from, to) = (IPS[node], IPS[1 - node]);
        let conn = world.nodes[node].connect(0, from, to, service_id(PORT), params(qpn), b"").unwrap();
        active.push((node, qpn, conn));
    }
    world.settle();
    let context = format!("seed {seed} {network:?}");
    let mut established = 0;
    for (node, qpn, conn) in &active {
        let mine = &world.outcomes[*node][conn];
        let ends = ["Established", "Rejected", "Unreachable"];
        assert!(ends.contains(&mine[0]), "{context}: {mine:?}");
        // All passive connections that this attempt made: more than one if the first was forgotten meanwhile.
        let theirs: Vec<_> = world.outcomes[1 - node]
            .iter()
            .filter(|(passive, _)| world.callers.get(passive) == Some(qpn))
            .filter(|(_, outcomes)| outcomes.last() == Some(&"Established"))
            .collect();
        // Exact but for the two generals: if all RTUs and REJs are lost, one end cannot know.
        let both = usize::from(mine.last() == Some(&"Established"));
        if network.loss <= 40 {
            assert_eq!(theirs.len(), both, "{context}: active {mine:?}, passive {theirs:?}");
        }
        established += both;
    }
    close(&mut world, &context);
    established
}

fn close(world: &mut World, context: &str) {
    for node in 0..2 {
        for (conn, outcomes) in world.outcomes[node].clone() {
            if outcomes.last() == Some(&"Established") && world.chance(75) {
                world.nodes[node].disconnect(world.now, conn).unwrap();
            }
        }
    }
    world.settle();
    for node in 0..2 {
        for (conn, outcomes) in world.outcomes[node].clone() {
            if outcomes.last() == Some(&"Established") {
                world.nodes[node].disconnect(world.now, conn).unwrap();
            }
        }
    }
    world.settle();
    for node in 0..2 {
        for (conn, outcomes) in &world.outcomes[node] {
            let ends = ["Rejected", "Unreachable", "Disconnected"];
            let terminal = outcomes.iter().filter(|outcome| ends.contains(outcome)).count();
            let refused = outcomes.as_slice() == ["ConnectRequest"];
            assert!(
                terminal == 1 && ends.contains(outcomes.last().unwrap()) || refused,
                "{context} {conn:?}: {outcomes:?}"
            );
        }
        assert!(world.nodes[node].table.is_empty(), "{context}: connections left over");
    }
}

#[test]
fn every_attempt_ends_over_any_network() {
    let mut established = BTreeMap::new();
    for loss in [0, 5, 20, 40, 70, 100] {
        for duplication in [0, 30] {
            for jitter in [0, 50 * MS, 300 * MS] {
                for seed in 0..20 {
                    let network = Network { loss, duplication, jitter };
                    *established.entry(loss).or_insert(0) += run(1000 * u64::from(loss) + seed, network);
                }
            }
        }
    }
    // 1920 attempts at each loss, one in eight refused.
    assert!((1600..1760).contains(&established[&0]), "{established:?}");
    assert!((1600..1760).contains(&established[&20]), "{established:?}");
    assert_eq!(established[&100], 0);
}

//! The simulated network: every pair of nodes has a link in each direction that delays, drops and duplicates.
//!
//! A message takes `base` plus a random part of `jitter`; so messages overtake each other now and then, and often while
//! a fault makes the jitter large. Cuts are counted, since faults may overlap.

use crate::events::{Time, US};
use crate::rng::Rng;

/// What the network does to messages besides the least delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    /// Messages lost, in a million.
    pub drop: u32,
    /// Messages that arrive twice, in a million.
    pub duplicate: u32,
    /// The largest random delay, ns.
    pub jitter: Time,
}

/// What happened to messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetCounts {
    /// Messages sent.
    pub sent: u64,
    /// Lost at random.
    pub dropped: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Lost in a partition.
    pub cut: u64,
    /// Connections between nodes that broke, where messages travel over some.
    pub broken: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// Partitions that cut it.
    cuts: u32,
    /// Extra delay of slow links, ns.
    slow: Time,
}

/// The network between `nodes` nodes.
#[derive(Debug)]
pub struct Network {
    nodes: usize,
    links: Vec<Link>,
    base: Time,
    calm: Weather,
    weather: Weather,
    rng: Rng,
    /// What happened so far.
    pub counts: NetCounts,
}

impl Network {
    /// A calm network: `base` ns of delay and as much again at random.
    pub fn new(nodes: usize, base: Time, rng: Rng) -> Self {
        let calm = Weather { jitter: base.max(US), ..Weather::default() };
        let links = vec![Link::default(); nodes * nodes];
        Self { nodes, links, base, calm, weather: calm, rng, counts: NetCounts::default() }
    }

    /// When a message sent `now` arrives: not at all, once or twice.
    pub fn send(&mut self, now: Time, from: usize, to: usize) -> impl Iterator<Item = Time> + use<> {
        self.counts.sent += 1;
        let link = self.links[from * self.nodes + to];
        let cut = link.cuts > 0;
        let dropped = !cut && self.rng.chance(self.weather.drop);
        self.counts.cut += u64::from(cut);
        self.counts.dropped += u64::from(dropped);
        let arrives = !cut && !dropped;
        let twice = arrives && self.rng.chance(self.weather.duplicate);
        self.counts.duplicated += u64::from(twice);
        let first = arrives.then(|| now + link.slow + self.delay());
        let second = twice.then(|| now + link.slow + self.delay());
        first.into_iter().chain(second)
    }

    /// The delay of a message between a client and a node, if it arrives. Partitions and slow links do not touch it.
    pub fn client_delay(&mut self) -> Option<Time> {
        (!self.rng.chance(self.weather.drop)).then(|| self.delay())
    }

    /// Changes drops, duplicates and jitter of all links.
    pub fn set_weather(&mut self, weather: Weather) {
        self.weather = weather;
    }

    /// Back to a calm network.
    pub fn calm(&mut self) {
        self.weather = self.calm;
    }

    /// Cuts the links from each node of `from` to each of `to` (bit masks), or takes one such cut back.
    pub fn cut(&mut self, from: u64, to: u64, on: bool) {
        self.each(from, to, |link| link.cuts = if on { link.cuts + 1 } else { link.cuts.saturating_sub(1) });
    }

    /// Sets the extra delay of links.
    pub fn slow(&mut self, from: u64, to: u64, extra: Time) {
        self.each(from, to, |link| link.slow = extra);
    }

    /// No faults any more.
    pub fn heal(&mut self) {
        self.links.fill(Link::default());
        self.calm();
    }

    fn delay(&mut self) -> Time {
        self.base + self.rng.below(self.weather.jitter)
    }

    fn each(&mut self, from: u64, to: u64, mut change: impl FnMut(&mut Link)) {
        for a in (0..self.nodes).filter(|a| from >> a & 1 == 1) {
            for b in (0..self.nodes).filter(|b| *b != a && to >> b & 1 == 1) {
                change(&mut self.links[a * self.nodes + b]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Purpose;

    fn network() -> Network {
        Network::new(3, 100, Rng::new(1, Purpose::Network))
    }

    #[test]
    fn a_calm_network_delivers_each_message_once() {
        let mut net = network();
        for _ in 0..1000 {
            let arrivals: Vec<_> = net.send(5000, 0, 1).collect();
            assert!(arrivals.len() == 1 && (5100..6200).contains(&arrivals[0]), "{arrivals:?}");
        }
    }

    #[test]
    fn partitions_may_be_one_way_and_overlap() {
        let mut net = network();
        net.cut(0b001, 0b010, true);
        net.cut(0b001, 0b110, true);
        net.cut(0b001, 0b110, false);
        assert_eq!(net.send(0, 0, 1).count(), 0, "the first cut is still there");
        assert_eq!(net.send(0, 0, 2).count(), 1);
        assert_eq!(net.send(0, 1, 0).count(), 1, "the other way is open");
        net.heal();
        assert_eq!(net.send(0, 0, 1).count(), 1);
    }

    #[test]
    fn weather_drops_duplicates_and_reorders() {
        let mut net = network();
        net.set_weather(Weather { drop: 200_000, duplicate: 200_000, jitter: 1000 * US });
        let arrivals: Vec<_> = (0..1000).flat_map(|now| net.send(now, 0, 1).collect::<Vec<_>>()).collect();
        let counts = net.counts;
        assert!((150..250).contains(&counts.dropped) && (100..220).contains(&counts.duplicated), "{counts:?}");
        assert_eq!(arrivals.len() as u64, 1000 - counts.dropped + counts.duplicated);
        assert!(arrivals.windows(2).any(|pair| pair[0] > pair[1]));
    }
}

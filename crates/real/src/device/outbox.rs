//! Packets on their way from the engine to the links.

use remora_nic::{Nic, Route, Time, TxBatch};

use crate::link::Link;

/// Batches handed to links in one turn.
const BATCHES: usize = 4;

/// How long a link may take none of a peer's packets before they count as lost, until it takes some again: a peer that
/// waits for a core is not to lose what nobody sends again, and one that stands still holds up the others only once.
const STUCK: u64 = 200_000_000;

/// The batch that is being sent.
pub(super) struct Outbox {
    batch: TxBatch,
    /// Packets of it that the link has taken.
    sent: usize,
    /// The peer whose packets a link did not take, and since when.
    stuck: Option<(Route, Time)>,
    /// Peers that stand still: what their links do not take at once is lost.
    still: Vec<Route>,
}

impl Outbox {
    pub fn new() -> Self {
        Self { batch: TxBatch::new(), sent: 0, stuck: None, still: Vec::new() }
    }

    /// The links have not taken all yet.
    pub fn has_unsent(&self) -> bool {
        self.sent < self.batch.len()
    }

    /// Hands packets to the links. Returns how many they took.
    #[inline]
    pub fn transmit(&mut self, now: Time, nic: &mut Nic, links: &mut [Box<dyn Link>]) -> usize {
        match self.batch.is_empty() && !nic.wants_transmit() {
            true => 0,
            false => self.hand_over(now, nic, links),
        }
    }

    fn hand_over(&mut self, now: Time, nic: &mut Nic, links: &mut [Box<dyn Link>]) -> usize {
        let mut packets = 0;
        for _ in 0..BATCHES {
            if self.sent == self.batch.len() {
                self.sent = 0;
                if !nic.wants_transmit() {
                    self.batch.clear();
                    break;
                }
                let in_place = self.put_in_place(now, nic, links);
                if in_place > 0 {
                    packets += in_place;
                    continue;
                }
                if !nic.poll_transmit(now, &mut self.batch) {
                    self.batch.clear();
                    break;
                }
            }
            let Some(route) = self.batch.route() else { break };
            if route.remote == route.local {
                packets += self.loop_back(now, route, nic);
                continue;
            }
            let Some(link) = links.get_mut(usize::from(route.link)) else {
                self.give_up();
                continue;
            };
            let (bytes, lens) = self.batch.parts_mut();
            let skip: usize = lens[..self.sent].iter().map(|&l| usize::from(l)).sum();
            match link.send(route.remote, &mut bytes[skip..], &lens[self.sent..]) {
                Ok(0) => {
                    let since = self.stuck.filter(|(peer, _)| *peer == route).map_or(now, |(_, since)| since);
                    self.stuck = Some((route, since));
                    if !self.still.contains(&route) {
                        if now.saturating_sub(since) < STUCK {
                            break;
                        }
                        self.still.push(route);
                    }
                    self.give_up();
                }
                Ok(n) => {
                    self.stuck = None;
                    if !self.still.is_empty() {
                        self.still.retain(|peer| *peer != route);
                    }
                    packets += n;
                    self.sent += n;
                    if self.has_unsent() {
                        break;
                    }
                }
                Err(_) => self.give_up(),
            }
        }
        packets
    }

    /// Has the next packets put together in memory that a link shares with their peer. Returns how many were sent so.
    fn put_in_place(&mut self, now: Time, nic: &mut Nic, links: &mut [Box<dyn Link>]) -> usize {
        let Some(route) = nic.next_long().filter(|route| route.remote != route.local) else { return 0 };
        let Some(link) = links.get_mut(usize::from(route.link)) else { return 0 };
        let Some(room) = link.lend(route.remote) else { return 0 };
        let sent = match nic.poll_transmit_into(now, route, room, &mut self.batch) {
            true => self.batch.len(),
            false => 0,
        };
        if sent > 0 {
            link.send_lent(route.remote, self.batch.lens(), self.batch.referred());
            self.stuck = None;
            if !self.still.is_empty() {
                self.still.retain(|peer| *peer != route);
            }
        }
        self.batch.clear();
        sent
    }

    /// What the device sends to itself needs no link.
    fn loop_back(&mut self, now: Time, route: Route, nic: &mut Nic) -> usize {
        for packet in self.batch.packets().skip(self.sent) {
            nic.handle_packet(now, route.link, route.remote, route.local, packet);
        }
        self.batch.len() - std::mem::replace(&mut self.sent, self.batch.len())
    }

    /// The network does not take the packets: they are lost like any others, and sent again in time.
    fn give_up(&mut self) {
        self.sent = self.batch.len();
    }
}

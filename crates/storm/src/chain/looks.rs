//! Clients that read a head's window by one-sided READs, each of which takes its own time.

use remora_replica::chain::{ChainOutcome, ChainRefusal, ChainReply, WindowEnd, WindowRead};

use super::world::{Event, World};

/// Of a million reads, so many are one-sided.
const LOOKS: u32 = 500_000;
/// Bytes of a READ at most. A list takes two lines.
const PACKET: u32 = 256;

/// A READ on its way to a node.
pub(super) struct Sent {
    client: usize,
    tag: u64,
    /// Which view's key it has.
    epoch: u64,
    part: usize,
    range: (u64, u32),
}

/// What it found, or that it was refused.
pub(super) struct Back {
    client: usize,
    tag: u64,
    part: usize,
    found: Option<Vec<u8>>,
}

impl World {
    /// A client that is to read does so by READs, with the key of a node that shows its data now, or did.
    pub fn begins_to_look(&mut self, client: usize) -> bool {
        let it = &mut self.clients[client];
        let reads = it.request.writes.is_empty() && it.last_reads.is_empty();
        if !self.looking || !reads || !it.rng.chance(LOOKS) {
            return false;
        }
        let shows = |node: &usize| self.places[*node].engine().is_some_and(|it| it.chain().window().is_some());
        let nodes: Vec<usize> = (0..self.places.len()).filter(shows).collect();
        if nodes.is_empty() {
            return false;
        }
        let node = *it.rng.pick(&nodes);
        let place = &self.places[node];
        let (Some(engine), Some(shown)) = (place.engine(), &place.shown) else { return false };
        let Some(read) = WindowRead::new(shown.lines(), &it.request.reads, PACKET) else { return false };
        (it.node, it.look) = (node, Some((read, engine.chain().view().epoch)));
        it.tag += 1;
        let tag = it.tag;
        self.send_looks(client);
        self.queue.push(self.now + self.timeout, Event::GivesUp { client, tag });
        true
    }

    /// All READs of the round.
    fn send_looks(&mut self, client: usize) {
        let it = &mut self.clients[client];
        let (node, tag) = (it.node, it.tag);
        let life = self.places[node].life;
        let Some((read, epoch)) = &mut it.look else { return };
        while let Some((part, at, length)) = read.next_read() {
            let sent = Sent { client, tag, epoch: *epoch, part, range: (at, length) };
            if let Some(delay) = self.net.client_delay() {
                self.queue.push(self.now + delay, Event::Look { node, life, sent });
            }
        }
    }

    /// One comes to a node, whose NIC answers it or does not.
    pub fn looks(&mut self, node: usize, Sent { client, tag, epoch, part, range }: Sent) {
        let place = &self.places[node];
        let (Some(engine), Some(shown)) = (place.engine(), &place.shown) else { return };
        let found = shown.read(engine.chain(), place.clock.local(self.now), epoch, range).map(<[u8]>::to_vec);
        if let Some(delay) = self.net.client_delay() {
            self.queue.push(self.now + delay, Event::Looked(Back { client, tag, part, found }));
        }
    }

    /// Its answer comes to the client.
    pub fn looked(&mut self, Back { client, tag, part, found }: Back) {
        let it = &mut self.clients[client];
        let Some((read, _)) = it.look.as_mut().filter(|_| it.tag == tag && it.asked.is_some()) else { return };
        let (ended, outcome) = match found.map(|bytes| read.found(part, &bytes)) {
            Some(None) => return self.send_looks(client),
            Some(Some(WindowEnd::Read(values))) => (0, ChainOutcome::Done(values)),
            Some(Some(WindowEnd::Changed)) => (1, ChainOutcome::Refused(ChainRefusal::Busy)),
            None => (2, ChainOutcome::Refused(ChainRefusal::NotServing)),
        };
        it.look = None;
        self.look_ends[ended] += 1;
        self.replied(client, ChainReply { tag, outcome });
    }
}

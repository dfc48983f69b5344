//! Clients behind a network, and the ways of requests and replies.

use super::memory::Host;
use super::{Event, Flight};
use crate::component::ethernet::Ethernet;
use crate::component::nic::DataPath;
use crate::component::pcie::Pcie;
use crate::event::WheelQueue;
use crate::platform::{HardwareNic, Platform};
use crate::resource::{Server, Usage};
use crate::time::Ps;

/// Clients behind the network.
#[derive(Clone, Copy, Debug)]
pub struct NetworkSpec {
    /// Clients, with one ring each.
    pub clients: usize,
    /// Requests that each has under way.
    pub window: u32,
    /// Whether a client waits for all replies before it asks again.
    pub together: bool,
}

/// Bytes of RETH, which each WRITE has beside what every packet has.
const RETH: u64 = 16;
/// Bytes of the word that tells how far a ring is filled.
const POINTER: u64 = 4;
/// Bytes of a completion.
const COMPLETION: u64 = 64;

/// One machine's NIC.
pub(super) struct Port {
    pub path: DataPath,
    pub pcie: Pcie,
    /// What it sends.
    wire: Ethernet,
}

impl Port {
    /// Idle; of a NIC of hardware.
    pub fn new(nic: &HardwareNic) -> Self {
        Self {
            path: DataPath::new(&(&nic.pipeline).into()),
            pcie: Pcie::new(&(&nic.pcie).into()),
            wire: Ethernet::new(&(&nic.ethernet).into()),
        }
    }

    /// The NIC begins with a command that it sees at `at`: when it has its payload.
    pub fn begin(&mut self, at: Ps, bytes: u64) -> Ps {
        let inlines = self.path.inlines(bytes);
        let (taken, _) = self.path.take(at, 1, if inlines { bytes } else { 0 }, &mut self.pcie);
        if inlines { taken } else { self.pcie.read(taken, bytes).0 }
    }
}

/// The network.
pub struct Network {
    client: Port,
    server: Port,
    /// A client's thread that posts.
    posting: Vec<Server>,
    issue: Ps,
    poll: Ps,
    /// Whether each request has a second WRITE, of the ring's pointer.
    pointers: bool,
    /// Whether requests end on the card and replies begin there.
    at_card: bool,
}

impl Network {
    /// An idle network; `None` if the platform's NIC is none of hardware.
    pub fn new(platform: &Platform, spec: &NetworkSpec, pointers: bool, at_card: bool) -> Option<Self> {
        let nic = platform.nic.as_ref()?;
        Some(Self {
            client: Port::new(nic),
            server: Port::new(nic),
            posting: vec![Server::new(1).ordered(platform.client.order); spec.clients],
            issue: Ps(platform.client.issue),
            poll: Ps(platform.client.poll),
            pointers,
            at_card,
        })
    }

    /// A client posts requests, with one doorbell for all.
    pub fn request(&mut self, at: Ps, requests: &[u32], flights: &[Flight], queue: &mut WheelQueue<Event>) {
        let Some(&first) = requests.first() else { return };
        let ring = flights[first as usize].ring;
        let (_, posted) = self.posting[ring].serve(at, self.issue);
        let inline = flights[first as usize].what.request;
        let each = if self.pointers { 2 } else { 1 };
        let Port { path, pcie, .. } = &mut self.client;
        let seen = path.ring(posted, requests.len() as u64 * each, inline, pcie);
        let (taken, last) = path.take(seen, requests.len() as u64 * each, inline, pcie);
        let step = Ps((last - taken).0 / requests.len() as u64);
        requests.iter().zip(0..).for_each(|(&number, n)| queue.push(taken + step * n, Event::Sent(number)));
    }

    /// A client's NIC sends a request.
    pub fn sent(&mut self, at: Ps, number: u32, flight: &mut Flight, host: &mut Host, queue: &mut WheelQueue<Event>) {
        let Self { client, server, pointers, at_card, .. } = self;
        let bytes = flight.what.request;
        flight.entry = host.entry(flight.ring, bytes);
        let mut there = carry(client, server, at, bytes);
        if !*at_card {
            let visible = server.pcie.write(there, bytes).1;
            there = host.land(visible, flight.entry, bytes);
        }
        if *pointers {
            let here = carry(client, server, at, POINTER);
            there = there.max(server.pcie.write(here, POINTER).1);
        }
        queue.push(there, Event::Arrive(number));
    }

    /// The host rings the doorbell for replies: when the NIC sees it.
    pub fn ring(&mut self, at: Ps, replies: &[u32], flights: &[Flight]) -> Ps {
        let Self { server, .. } = self;
        let inline = replies.first().map_or(0, |&first| flights[first as usize].what.reply);
        server.path.ring(at, replies.len() as u64, inline, &mut server.pcie)
    }

    /// The server's NIC sees replies at `at`.
    pub fn reply(
        &mut self,
        at: Ps,
        replies: &[u32],
        signalled: u32,
        flights: &[Flight],
        queue: &mut WheelQueue<Event>,
    ) {
        let Some(&first) = replies.first() else { return };
        let Self { server, at_card, .. } = self;
        let count = replies.len() as u64;
        let inline = flights[first as usize].what.reply;
        // The card's cores hand commands to a data path beside them.
        let (taken, last) = if *at_card { (at, at) } else { server.path.take(at, count, inline, &mut server.pcie) };
        let step = Ps((last - taken).0 / count);
        replies.iter().zip(0..).for_each(|(&number, n)| queue.push(taken + step * n, Event::Replied(number)));
        for _ in 0..signalled {
            server.pcie.write(last, COMPLETION);
        }
    }

    /// The server's NIC sends a reply.
    pub fn replied(&mut self, at: Ps, number: u32, flight: &Flight, queue: &mut WheelQueue<Event>) {
        let bytes = flight.what.reply;
        let here = carry(&mut self.server, &mut self.client, at, bytes);
        queue.push(self.client.pcie.write(here, bytes).1 + self.poll, Event::Done(number));
    }

    /// How busy all parts were over `span`.
    pub fn usage(&self, span: Ps) -> Vec<Usage> {
        let named = |name, usage: Usage| Usage { name, ..usage };
        let mut all = vec![
            named("wire to server", self.client.wire.usage(span)),
            named("wire to clients", self.server.wire.usage(span)),
        ];
        all.extend(self.server.path.usage(span));
        all.extend(self.server.pcie.usage(span));
        all
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        for port in [&mut self.client, &mut self.server] {
            port.path.reset();
            port.pcie.reset();
            port.wire.reset();
        }
    }
}

/// A WRITE goes from one NIC to another: when the other has all of it.
pub(super) fn carry(from: &mut Port, to: &mut Port, at: Ps, bytes: u64) -> Ps {
    let out = from.path.send(at, bytes + RETH);
    let (first, last) = from.wire.pass(out, bytes + RETH);
    to.path.receive(first, bytes + RETH).1.max(last)
}

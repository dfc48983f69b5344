//! Messages between nodes as products carry them: frames over [`Streams`] over the queue pairs of a [`Nic`], whose packets
//! the storm's network loses, doubles, delays and cuts off.
//!
//! The node with the higher number calls. Connections are sealed. One that breaks is made anew; what it lost the protocol
//! sends again.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::sync::Arc;

use remora_memory::{Buffer, Registry};
use remora_nic::cm::{CmConfig, CmEvent, ConnId, ListenerId, service_id};
use remora_nic::{ConnectAttr, Event, Nic, NicConfig, Qpn, Route, TxBatch};
use remora_replica::bounds::Bounds;
use remora_replica::seal::{End, Seal};
use remora_replica::stream::{Arrival, Sizes, Streams};

use crate::cluster::{Cluster, Event as StormEvent};
use crate::engine::Engine;
use crate::events::{MS, SECOND, Time};
use crate::rng::mix;

/// How messages travel between nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carriage {
    /// Each by itself: lost, doubled and overtaken one by one.
    #[default]
    Plain,
    /// As frames over the software NIC's connections.
    Nic,
}

impl fmt::Display for Carriage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Nic => "nic",
        })
    }
}

impl FromStr for Carriage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = [Self::Plain, Self::Nic].into_iter().find(|carriage| carriage.to_string() == text);
        named.ok_or_else(|| format!("no carriage {text:?}: plain or nic"))
    }
}

/// Where nodes listen.
const PORT: u16 = 1;
/// How long a call may take, and how often nodes that are not connected are called, ns.
const DIAL: Time = 200 * MS;
const REDIAL: Time = 20 * MS;
/// What all nodes know.
const SECRET: [u8; 32] = [7; 32];
/// Bytes that may wait for a peer. What is above that is lost.
const BACKLOG: usize = 1 << 20;

/// One node's NIC, and its connections with the others.
pub(crate) struct Station {
    me: usize,
    nic: Nic,
    streams: Streams,
    listener: ListenerId,
    peers: Vec<Peer>,
    batch: TxBatch,
    redial_at: Time,
    /// Calls made and taken: no two connections begin with the same words.
    calls: u64,
    /// Connections that broke since this was last taken.
    broken: u64,
    /// When the earliest of its timer events comes.
    pub armed: Option<Time>,
}

/// What there is of a connection with another node: a queue pair that stands, and a call.
#[derive(Clone, Copy, Default)]
struct Peer {
    connected: Option<(Qpn, ConnId)>,
    calling: Option<(Qpn, ConnId, Time)>,
    /// What this node said when it called.
    said: [u8; 8],
}

fn address(node: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, node as u8 + 1).into()
}

impl Station {
    /// A NIC without connections. All that it draws at random follows from `seed`.
    pub fn new(me: usize, nodes: usize, seed: u64) -> Self {
        let key = |salt: u64| -> [u8; 32] { std::array::from_fn(|at| mix(seed ^ salt << 32 ^ at as u64) as u8) };
        let cm = CmConfig {
            response_timeout: 50 * MS,
            max_retries: 3,
            timewait: 50 * MS,
            peer_timeout: 3 * SECOND,
            ..CmConfig::default()
        };
        let mut nic = Nic::new(&NicConfig { cm, ..NicConfig::new(key(1)) }, Arc::new(Registry::new(key(2))));
        let favoured = nodes as u32 - 1;
        let sizes = Sizes { receives: 64, sends: 16, favoured, frame: Bounds::SHIPPED.peer_frame };
        let memory = |bytes: usize| Buffer::from_boxed(vec![0; bytes].into());
        let streams = Streams::new(&mut nic, sizes, memory(sizes.receive_bytes()), memory(sizes.send_bytes()));
        let streams = streams.unwrap_or_else(|error| panic!("a new NIC has no room: {error}"));
        let listener =
            nic.listen(service_id(PORT)).unwrap_or_else(|error| panic!("a new NIC does not listen: {error}"));
        let peers = vec![Peer::default(); nodes];
        Self {
            me,
            nic,
            streams,
            listener,
            peers,
            batch: TxBatch::new(),
            redial_at: 0,
            calls: seed,
            broken: 0,
            armed: None,
        }
    }

    /// Queues a message for another node, if there is a connection and room.
    pub fn send(&mut self, to: usize, write: impl FnOnce(&mut Vec<u8>)) {
        if let Some((qpn, _)) = self.peers[to].connected.filter(|&(qpn, _)| self.streams.backlog(qpn) < BACKLOG) {
            self.streams.frame(qpn, write);
        }
    }

    /// A packet has arrived.
    pub fn handle(&mut self, now: Time, from: usize, packet: &[u8]) {
        self.nic.handle_packet(now, 0, address(from), address(self.me), packet);
    }

    /// Does what is to be done, and hands over the frames that have come whole, with their senders.
    pub fn turn(&mut self, now: Time, mut take: impl FnMut(usize, &[u8])) {
        if self.nic.poll_timeout().is_some_and(|due| due <= now) {
            self.nic.handle_timeout(now);
        }
        while let Some(event) = self.nic.poll_event() {
            self.event(now, event);
        }
        while let Some(arrival) = self.streams.poll(&mut self.nic, now) {
            match arrival {
                Arrival::Bytes(qpn) => self.bytes(now, qpn, &mut take),
                Arrival::Broken(qpn) => self.cut_off(now, qpn),
            }
        }
        if now >= self.redial_at {
            self.redial(now);
        }
    }

    /// Hands over the packets that leave, with their receivers.
    pub fn transmit(&mut self, now: Time, mut send: impl FnMut(usize, &[u8])) {
        self.streams.flush(&mut self.nic, now);
        while self.nic.poll_transmit(now, &mut self.batch) {
            let Some(Route { remote: IpAddr::V4(remote), .. }) = self.batch.route() else { continue };
            let to = usize::from(remote.octets()[3]) - 1;
            self.batch.packets().for_each(|packet| send(to, packet));
        }
    }

    /// When [`Station::turn`] is due.
    pub fn next_timeout(&self) -> Time {
        self.nic.poll_timeout().unwrap_or(Time::MAX).min(self.redial_at)
    }

    fn bytes(&mut self, now: Time, qpn: Qpn, take: &mut impl FnMut(usize, &[u8])) {
        let is = |peer: &Peer| peer.connected.is_some_and(|(connected, _)| connected == qpn);
        let Some(from) = self.peers.iter().position(is) else { return };
        let mut inbound = self.streams.take(qpn);
        let sound = loop {
            match inbound.next_frame() {
                Ok(Some(frame)) => take(from, inbound.bytes(frame)),
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        self.streams.give_back(qpn, inbound);
        if !sound {
            self.cut_off(now, qpn);
        }
    }

    fn event(&mut self, now: Time, event: Event) {
        match event {
            Event::Cm(CmEvent::ConnectRequest { conn, listener, remote_ip, private_data, .. })
                if listener == self.listener =>
            {
                self.accept(now, conn, remote_ip, &private_data);
            }
            Event::Cm(CmEvent::Established { conn, private_data, .. }) => {
                let called = self.peers.iter().position(|peer| peer.calling.is_some_and(|call| call.1 == conn));
                if let Some((qpn, conn, _)) = called.and_then(|index| self.peers[index].calling.take())
                    && let Some(index) = called
                {
                    let (said, answer) = (self.peers[index].said, private_data.get(..8).unwrap_or(&[]));
                    self.streams.seal(qpn, Some(Seal::new(&SECRET, End::Caller, &said, answer)));
                    self.connect(now, index, qpn, conn);
                }
            }
            Event::Cm(
                CmEvent::Disconnected { conn } | CmEvent::Unreachable { conn } | CmEvent::Rejected { conn, .. },
            ) => {
                let all =
                    self.peers.iter().flat_map(|peer| [peer.connected, peer.calling.map(|call| (call.0, call.1))]);
                if let Some((qpn, _)) = all.flatten().find(|&(_, its)| its == conn) {
                    self.cut_off(now, qpn);
                }
            }
            Event::QpFatal(qpn, _) => self.cut_off(now, qpn),
            _ => {}
        }
    }

    fn accept(&mut self, now: Time, conn: ConnId, from: IpAddr, said: &[u8]) {
        let Some(peer) = (0..self.peers.len()).find(|&node| address(node) == from) else { return };
        let Ok(qpn) = self.streams.open(&mut self.nic) else { return };
        let attr = ConnectAttr { min_rnr_timer: 1, ..ConnectAttr::default() };
        let answer = self.words();
        match self.nic.accept(now, conn, qpn, attr, &answer) {
            Ok(()) => {
                let said = said.get(..8).unwrap_or(&[]);
                self.streams.seal(qpn, Some(Seal::new(&SECRET, End::Answerer, said, &answer)));
                self.connect(now, peer, qpn, conn);
            }
            Err(_) => self.streams.close(&mut self.nic, qpn),
        }
    }

    /// Words that this node has not said before in this life.
    fn words(&mut self) -> [u8; 8] {
        self.calls += 1;
        self.calls.to_le_bytes()
    }

    /// In place of the connection before, if there was one: the peer may have begun anew.
    fn connect(&mut self, now: Time, peer: usize, qpn: Qpn, conn: ConnId) {
        if let Some((former, _)) = self.peers[peer].connected {
            self.cut_off(now, former);
        }
        self.streams.favour(qpn, Bounds::SHIPPED.peer_frame);
        self.peers[peer].connected = Some((qpn, conn));
    }

    fn cut_off(&mut self, now: Time, qpn: Qpn) {
        for peer in &mut self.peers {
            let connected = peer.connected.take_if(|(its, _)| *its == qpn);
            self.broken += u64::from(connected.is_some());
            let calling = peer.calling.take_if(|(its, ..)| *its == qpn).map(|(qpn, conn, _)| (qpn, conn));
            for (qpn, conn) in connected.into_iter().chain(calling) {
                // It may be closing already.
                let _ = self.nic.disconnect(now, conn);
                self.streams.close(&mut self.nic, qpn);
            }
        }
    }

    fn redial(&mut self, now: Time) {
        self.redial_at = now + REDIAL;
        for index in 0..self.me {
            match self.peers[index] {
                Peer { calling: Some((qpn, _, until)), .. } if now >= until => self.cut_off(now, qpn),
                Peer { calling: None, connected: None, .. } => self.peers[index].calling = self.dial(now, index),
                _ => {}
            }
        }
    }

    fn dial(&mut self, now: Time, node: usize) -> Option<(Qpn, ConnId, Time)> {
        let attr = ConnectAttr { path_mtu: 4096, min_rnr_timer: 1, ack_timeout: 12, ..ConnectAttr::default() };
        let route = Route { local: address(self.me), remote: address(node), link: 0 };
        let qpn = self.streams.open(&mut self.nic).ok()?;
        let said = self.words();
        self.peers[node].said = said;
        match self.nic.connect(now, qpn, route, service_id(PORT), attr, &said) {
            Ok(conn) => Some((qpn, conn, now + DIAL)),
            Err(_) => {
                self.streams.close(&mut self.nic, qpn);
                None
            }
        }
    }
}

impl<E: Engine> Cluster<'_, E> {
    /// A packet reaches a node.
    pub(crate) fn packet(&mut self, from: usize, to: usize, packet: &[u8]) {
        if let Some(station) = &mut self.nodes[to].station {
            station.handle(self.now, from, packet);
            self.station_turn(to);
        }
    }

    pub(crate) fn nic_timer(&mut self, node: usize) {
        let paused = self.nodes[node].pauses.until > self.now;
        let Some(station) = &mut self.nodes[node].station else { return };
        if station.armed == Some(self.now) {
            station.armed = None;
            if !paused {
                self.station_turn(node);
            }
        }
    }

    /// A node's NIC does what is to be done, and its engine takes the messages that have come.
    pub(crate) fn station_turn(&mut self, node: usize) {
        let local = self.local(node);
        let Some(mut station) = self.nodes[node].station.take() else { return };
        let Self { nodes, story, now, failure, .. } = self;
        let engine = nodes[node].engine.as_deref_mut();
        if let Some(engine) = engine {
            station.turn(*now, |from, frame| match E::decode(frame) {
                Some(message) => {
                    story.message::<E>(*now, from, node, &message);
                    engine.handle(local, from, message);
                }
                None => {
                    *failure = Some(crate::cluster::Failure::Broken(format!("a frame of {from} that is no message")))
                }
            });
        }
        self.nodes[node].station = Some(station);
        self.pump(node);
    }

    /// What a node's NIC has to send goes to the network.
    pub(crate) fn transmit(&mut self, node: usize) {
        let Self { nodes, net, queue, now, .. } = self;
        let place = &mut nodes[node];
        let Some(station) = &mut place.station else { return };
        station.transmit(*now, |to, packet| {
            for arrival in net.send(*now, node, to) {
                queue.push(arrival, StormEvent::Packet { from: node, to, packet: packet.to_vec() });
            }
        });
        net.counts.broken += std::mem::take(&mut station.broken);
        let due = station.next_timeout().max(*now + 1);
        if due < Time::MAX && station.armed.is_none_or(|armed| due < armed) {
            station.armed = Some(due);
            queue.push(due, StormEvent::NicTimer { node, start: place.life });
        }
    }
}

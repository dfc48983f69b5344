//! How a node's connections come and go.

use std::net::IpAddr;

use remora_nic::cm::{CmEvent, ConnId, reason, service_id};
use remora_nic::{ConnectAttr, Event, Qpn, Route};
use remora_replica::bounds::Bounds;
use remora_replica::seal::End;
use remora_replica::types::NodeId;

use super::{Call, Role, Server, Whom};
use crate::hello::{self, ClientHello, Guard, Hello, PROOF, Words, client_secret};
use crate::no_room;
use crate::service::Service;
use crate::wire::{PEER_PORT, Secret};
use remora_real::Error;
use remora_real::Seat;

/// How often a node that is not connected is called, in nanoseconds.
const REDIAL: u64 = 20_000_000;
/// How long a call may take.
const DIAL: u64 = 200_000_000;
/// Connections of clients at one time. Those of one address, which is a machine or a program of one, are as many at most as are
/// left to all (Choudhury and Hahne's dynamic threshold, as in `remora_service::Shares`): one address has half of them, and
/// whoever comes from another finds some.
const CLIENTS: usize = 1000;
/// Callers under one node's address that have proved nothing yet.
const UNPROVEN: usize = 4;

impl<S: Service> Server<S> {
    pub(super) fn event(&mut self, seat: &mut Seat<'_>, event: Event) {
        match event {
            Event::Cm(CmEvent::ConnectRequest { conn, listener, remote_ip, private_data, .. }) => {
                let taken = if listener == self.listeners[0] {
                    self.take_client(seat, conn, remote_ip, &private_data)
                } else {
                    self.take_peer(seat, conn, remote_ip, &private_data)
                };
                if let Err(error) = taken {
                    Self::reject(seat, conn, &error);
                }
            }
            Event::Cm(CmEvent::Established { conn, private_data, .. }) => self.established(seat, conn, &private_data),
            Event::Cm(
                CmEvent::Disconnected { conn } | CmEvent::Unreachable { conn } | CmEvent::Rejected { conn, .. },
            ) => {
                if let Some(qpn) = self.roles.iter().find(|(_, role)| role.conn() == conn).map(|(&qpn, _)| qpn) {
                    self.cut_off(seat, qpn);
                }
            }
            Event::QpFatal(qpn, _) => self.cut_off(seat, qpn),
            _ => {}
        }
    }

    pub(super) fn reject(seat: &mut Seat<'_>, conn: ConnId, error: &Error) {
        let text = error.to_string();
        let text = &text.as_bytes()[..text.len().min(100)];
        let _ = seat.nic.reject(seat.now.time(), conn, reason::CONSUMER, text);
    }

    /// What one says of itself who calls as a client, if there is a place for it here.
    pub(super) fn admit(&self, from: IpAddr, said: &[u8]) -> Result<ClientHello, Error> {
        let refused = |why: &str| Err(Error::Argument(why.into()));
        let Some(caller) = ClientHello::decode(said) else { return refused("not a client of this version") };
        if caller.chain != self.config.chain.is_some() {
            return refused(match self.config.chain {
                Some(_) => "this cluster keeps a chain: ask it for transactions",
                None => "this cluster keeps records and no chain",
            });
        }
        let open = self.config.guard() == Guard::Open;
        if caller.guard != self.config.guard() {
            return refused(match open {
                true => "this cluster does not seal connections: connect without a secret",
                false => "this cluster seals connections: the client needs the clients' secret",
            });
        }
        if !open && !hello::is_marked(&self.secret_of(Whom::Client(from)), &caller.encode(), self.address(), said) {
            return refused("the client does not know the clients' secret");
        }
        let readers = self.window.iter().flat_map(|window| window.readers());
        if !has_place(self.roles.values().filter_map(Role::client).chain(readers), from) {
            return refused("the node has no room for one more connection from this address");
        }
        Ok(caller)
    }

    /// Unless connections are open, a client proves that it knows the clients' secret: see [`Self::proves`].
    fn take_client(&mut self, seat: &mut Seat<'_>, conn: ConnId, from: IpAddr, said: &[u8]) -> Result<(), Error> {
        let caller = self.admit(from, said)?;
        if self.config.guard() == Guard::Open {
            let qpn = self.accept(seat, conn, &[])?;
            self.client(qpn, conn, from);
            return Ok(());
        }
        let words = Words { caller: caller.encode(), answerer: Hello::new(&self.config)?.encode() };
        self.answer(seat, conn, Whom::Client(from), words)
    }

    /// From now on it is a client.
    fn client(&mut self, qpn: Qpn, conn: ConnId, from: IpAddr) {
        self.next_client += 1;
        self.clients += 1;
        self.streams.set_frame(qpn, Bounds::SHIPPED.client_frame);
        self.roles.insert(qpn, Role::Client(self.next_client, conn, from));
    }

    /// Whoever calls as a node says who it is, and then proves it: see [`Self::proves`].
    fn take_peer(&mut self, seat: &mut Seat<'_>, conn: ConnId, from: IpAddr, said: &[u8]) -> Result<(), Error> {
        let stranger = || Error::Argument("not a node of this cluster and version".into());
        let caller = Hello::decode(said).ok_or_else(stranger)?;
        let node = caller.node;
        if node == self.id() || self.config.addresses.get(usize::from(node.0)) != Some(&from) {
            return Err(stranger());
        }
        if !hello::is_marked(&self.config.secret, &caller.encode(), self.address(), said) {
            return Err(stranger());
        }
        if let Some(differs) = caller.differs(&self.config) {
            // Once is enough: it calls again and again.
            let _ = self.told.differs.set(differs.clone());
            return Err(Error::Argument(differs));
        }
        if self.peers[usize::from(node.0)].calling.is_some() && self.id() > node {
            // Both call at once: the call of the node with the higher number counts.
            return Err(Error::Argument("a call to you is under way".into()));
        }
        self.forget_unproven(seat, node);
        let words = Words { caller: caller.encode(), answerer: Hello::new(&self.config)?.encode() };
        self.answer(seat, conn, Whom::Node(node), words)
    }

    /// Makes room for another call under a node's name: the oldest that has proved nothing goes. It knew the secret, or
    /// somebody repeats what it said; so the latest is the likeliest to be the node.
    fn forget_unproven(&mut self, seat: &mut Seat<'_>, node: NodeId) {
        let unproven = |(&qpn, role): (&Qpn, &Role)| match role {
            Role::Caller(whom, _, _, until) if *whom == Whom::Node(node) => Some((*until, qpn)),
            _ => None,
        };
        let mut all: Vec<(u64, Qpn)> = self.roles.iter().filter_map(unproven).collect();
        all.sort_unstable();
        let too_many = (all.len() + 1).saturating_sub(UNPROVEN);
        all.into_iter().take(too_many).for_each(|(_, qpn)| self.cut_off(seat, qpn));
    }

    /// Takes a call, proves that it has come to a node of this cluster, and waits for the caller's proof.
    fn answer(&mut self, seat: &mut Seat<'_>, conn: ConnId, whom: Whom, words: Words) -> Result<(), Error> {
        let secret = self.secret_of(whom);
        let proof = words.prove(&secret, End::Answerer);
        let qpn = self.accept(seat, conn, &[&*words.answerer, &proof].concat())?;
        self.streams.set_frame(qpn, PROOF);
        self.streams.seal(qpn, self.config.guard().seal(&words, &secret, End::Answerer));
        self.roles.insert(qpn, Role::Caller(whom, words, conn, seat.now.time() + DIAL));
        Ok(())
    }

    pub(super) fn secret_of(&self, whom: Whom) -> Secret {
        match whom {
            Whom::Node(_) => self.config.secret,
            Whom::Client(_) => client_secret(&self.config.secret),
        }
    }

    /// The first frame of a caller. From then on it is a node, or a client.
    pub(super) fn proves(&mut self, seat: &mut Seat<'_>, qpn: Qpn, frame: &[u8]) -> bool {
        let Some(&Role::Caller(whom, words, conn, _)) = self.roles.get(&qpn) else { return false };
        let proven = words.check(&self.secret_of(whom), End::Caller, frame);
        match whom {
            _ if !proven => {}
            Whom::Node(node) => self.connected(seat, node, qpn, conn),
            Whom::Client(from) => self.client(qpn, conn, from),
        }
        proven
    }

    fn accept(&mut self, seat: &mut Seat<'_>, conn: ConnId, say: &[u8]) -> Result<Qpn, Error> {
        let qpn = self.streams.open(seat.nic).map_err(no_room)?;
        let attr = ConnectAttr { min_rnr_timer: 1, ..ConnectAttr::default() };
        if let Err(e) = seat.nic.accept(seat.now.time(), conn, qpn, attr, say) {
            self.streams.close(seat.nic, qpn);
            return Err(e.into());
        }
        Ok(qpn)
    }

    /// A node called, or answered a call. It may have been connected before, in a former life.
    fn connected(&mut self, seat: &mut Seat<'_>, node: NodeId, qpn: Qpn, conn: ConnId) {
        let peer = &mut self.peers[usize::from(node.0)];
        let calling = peer.calling.take().filter(|call| call.qpn != qpn);
        let former = peer.connected.replace(qpn);
        self.streams.favour(qpn, Bounds::SHIPPED.peer_frame);
        self.roles.insert(qpn, Role::Peer(node, conn));
        if let Some(call) = calling {
            let _ = seat.nic.disconnect(seat.now.time(), call.conn);
            self.streams.close(seat.nic, call.qpn);
            self.roles.remove(&call.qpn);
        }
        if let Some(former) = former {
            self.status.reconnects += 1;
            self.cut_off(seat, former);
        }
    }

    /// A node has answered a call, and proves that it is one. The first frame proves the same of this one.
    fn established(&mut self, seat: &mut Seat<'_>, conn: ConnId, said: &[u8]) {
        let called = self.peers.iter().position(|peer| peer.calling.is_some_and(|call| call.conn == conn));
        let Some(index) = called else { return };
        let Some(Call { qpn, said: caller, .. }) = self.peers[index].calling else { return };
        let secret = &self.config.secret;
        let answered = Words::answered(secret, caller.encode(), said).filter(|(_, node)| usize::from(node.0) == index);
        let Some((words, node)) = answered else { return self.cut_off(seat, qpn) };
        let proof = words.prove(secret, End::Caller);
        self.streams.seal(qpn, self.config.guard().seal(&words, secret, End::Caller));
        self.streams.frame(qpn, |out| out.extend_from_slice(&proof));
        self.connected(seat, node, qpn, conn);
    }

    /// Ends a connection.
    pub(super) fn cut_off(&mut self, seat: &mut Seat<'_>, qpn: Qpn) {
        if let Some(role) = self.forget(qpn) {
            self.close(seat, qpn, role.conn());
        }
    }

    pub(super) fn close(&mut self, seat: &mut Seat<'_>, qpn: Qpn, conn: ConnId) {
        // It may be closing already.
        let _ = seat.nic.disconnect(seat.now.time(), conn);
        self.streams.close(seat.nic, qpn);
    }

    /// A connection leads to nobody any more. Whom it led to.
    pub(super) fn forget(&mut self, qpn: Qpn) -> Option<Role> {
        let role = self.roles.remove(&qpn)?;
        match role {
            Role::Client(..) => self.clients -= 1,
            Role::Caller(..) => {}
            Role::Peer(node, _) => {
                let peer = &mut self.peers[usize::from(node.0)];
                // A call that failed is repeated when the time has come.
                peer.calling = peer.calling.filter(|call| call.qpn != qpn);
                if peer.connected == Some(qpn) {
                    peer.connected = None;
                    self.status.reconnects += 1;
                    self.redial_at = 0;
                }
            }
        }
        Some(role)
    }

    /// Calls the nodes that are not connected.
    pub(super) fn redial(&mut self, seat: &mut Seat<'_>) {
        self.redial_at = seat.now.time() + REDIAL;
        let late = |role: &Role| matches!(role, Role::Caller(.., until) if seat.now.time() >= *until);
        let late: Vec<Qpn> = self.roles.iter().filter(|(_, role)| late(role)).map(|(&qpn, _)| qpn).collect();
        late.into_iter().for_each(|qpn| self.cut_off(seat, qpn));
        for index in 0..self.peers.len() {
            let node = NodeId(index as u8);
            if let Some(Call { qpn, until, .. }) = self.peers[index].calling
                && seat.now.time() >= until
            {
                self.cut_off(seat, qpn);
            }
            let peer = &self.peers[index];
            if node != self.id() && peer.connected.is_none() && peer.calling.is_none() {
                self.peers[index].calling = self.dial(seat, node);
            }
        }
    }

    fn dial(&mut self, seat: &mut Seat<'_>, node: NodeId) -> Option<Call> {
        let remote = self.config.addresses[usize::from(node.0)];
        let link = seat.links.first_mut()?;
        if !link.reach(remote).unwrap_or(false) {
            return None;
        }
        // Retries as often as may be, but soon: a node that does not answer for some 0.1 s is called anew.
        let path_mtu = link.max_mtu() as u32;
        let attr = ConnectAttr { path_mtu, min_rnr_timer: 1, ack_timeout: 12, ..ConnectAttr::default() };
        let route = Route { local: seat.local, remote, link: 0 };
        let qpn = self.streams.open(seat.nic).ok()?;
        let (said, secret) = (Hello::new(&self.config).ok(), &self.config.secret);
        let call = |said: Hello| {
            seat.nic
                .connect(
                    seat.now.time(),
                    qpn,
                    route,
                    service_id(PEER_PORT),
                    attr,
                    &hello::mark(secret, &said.encode(), remote),
                )
                .ok()
                .map(|conn| (said, conn))
        };
        match said.and_then(call) {
            Some((said, conn)) => {
                self.roles.insert(qpn, Role::Peer(node, conn));
                Some(Call { qpn, conn, until: seat.now.time() + DIAL, said })
            }
            None => {
                self.streams.close(seat.nic, qpn);
                None
            }
        }
    }
}

/// Whether one more client may come from an address, beside those who are there, by theirs.
fn has_place(clients: impl Iterator<Item = IpAddr>, from: IpAddr) -> bool {
    let (all, theirs) = clients.fold((0, 0), |(all, theirs), of| (all + 1, theirs + usize::from(of == from)));
    theirs < CLIENTS.saturating_sub(all)
}

#[cfg(test)]
mod tests;

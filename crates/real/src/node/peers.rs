//! The clients of a node: who is connected, and who has stopped answering.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use remora_memory::Pd;
use remora_nic::cm::ConnId;
use remora_nic::{ALL_REMOTE, ConnectAttr, CqId, Data, Nic, QpInit, QpType, Qpn, SendOp, SendWr, SrqId};
use remora_service::control::Offer;
use remora_service::{Clients, Placing, Shares, WorkId};

use super::host::CALLS;
use crate::Error;
use crate::link::LinkKind;
use crate::rings::RING_SENDS;

/// What the queue pairs of clients have in common.
pub(super) struct Peers {
    peers: HashMap<Qpn, Peer>,
    clients: Arc<Mutex<Clients>>,
    pd: Pd,
    cq: CqId,
    srq: SrqId,
    /// What it tells clients of itself.
    offer: Offer,
}

/// How a client is reached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub link: LinkKind,
    /// The path MTU in bytes.
    pub mtu: u32,
}

/// One client.
struct Peer {
    conn: ConnId,
    address: IpAddr,
    way: Way,
    /// The number of its client.
    client: u32,
    /// The connection stands.
    stands: bool,
    /// A probe is under way.
    probed: bool,
}

impl Peers {
    /// Nobody yet. `clients` are those of all engines; queue pairs are in `pd`, complete on `cq` and receive from `srq`.
    /// They are told whether the node places calls.
    pub fn new(clients: Arc<Mutex<Clients>>, pd: Pd, cq: CqId, srq: SrqId, placing: Placing) -> Self {
        let offer = Offer { places: placing != Placing::Clients };
        Self { peers: HashMap::new(), clients, pd, cq, srq, offer }
    }

    /// Takes a connection from an address. Returns its queue pair, and whose it is.
    pub fn accept(
        &mut self,
        nic: &mut Nic,
        now: u64,
        (conn, address, way): (ConnId, IpAddr, Way),
    ) -> Result<(Qpn, u32), Error> {
        let client = self.clients.lock().open(address).map_err(|e| Error::Argument(e.to_string()))?;
        let accepted = self.bring_up(nic, now, conn);
        match accepted {
            Ok(qp) => drop(self.peers.insert(qp, Peer { conn, address, way, client, stands: false, probed: false })),
            Err(_) => self.clients.lock().close(address, false),
        }
        accepted.map(|qp| (qp, client))
    }

    fn bring_up(&self, nic: &mut Nic, now: u64, conn: ConnId) -> Result<Qpn, Error> {
        let init = QpInit {
            srq: Some(self.srq),
            // All replies that one client may have under way, a probe, and what rings post beside them: posting one never
            // fails for want of room.
            max_send_wr: Shares::most(CALLS) as u32 + 1 + RING_SENDS,
            // A ring's pointer word.
            max_inline: 8,
            max_rpc: 512,
            max_send_sge: 1,
            ..QpInit::new(QpType::Rc, self.pd, self.cq, self.cq)
        };
        let qp = nic.create_qp(init)?;
        let attr = ConnectAttr { min_rnr_timer: 1, ..ConnectAttr::default() };
        let accepted = nic
            .to_init(qp, ALL_REMOTE, 0)
            .map_err(Error::from)
            .and_then(|()| Ok(nic.accept(now, conn, qp, attr, &self.offer.encode())?));
        if let Err(e) = accepted {
            nic.destroy_qp(qp)?;
            return Err(e);
        }
        Ok(qp)
    }

    /// Where a client is.
    pub fn address(&self, qpn: Qpn) -> Option<IpAddr> {
        self.peers.get(&qpn).map(|peer| peer.address)
    }

    /// Whether the connection of this queue pair stands.
    pub fn stands(&self, qpn: Qpn) -> bool {
        self.peers.get(&qpn).is_some_and(|peer| peer.stands)
    }

    /// The queue pair of a connection, whose it is, and how it is reached.
    pub fn way(&self, conn: ConnId) -> Option<(Qpn, IpAddr, Way)> {
        let (qpn, peer) = self.peers.iter().find(|(_, peer)| peer.conn == conn)?;
        Some((*qpn, peer.address, peer.way))
    }

    /// By address: the client's number, and how many connections it has.
    pub fn clients(&self) -> Vec<(IpAddr, u32, u32)> {
        let mut clients = std::collections::BTreeMap::new();
        for peer in self.peers.values().filter(|peer| peer.stands) {
            clients.entry((peer.address, peer.client)).and_modify(|n| *n += 1).or_insert(1);
        }
        clients.into_iter().map(|((address, client), n)| (address, client, n)).collect()
    }

    /// A connection stands. Its queue pair, if its address has more than it may.
    pub fn established(&mut self, conn: ConnId) -> Option<Qpn> {
        let qpn = self.find(conn)?;
        let peer = self.peers.get_mut(&qpn)?;
        if std::mem::replace(&mut peer.stands, true) {
            return None;
        }
        self.clients.lock().establish(peer.address).is_err().then_some(qpn)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// The queue pair of a connection.
    pub fn find(&self, conn: ConnId) -> Option<Qpn> {
        self.peers.iter().find(|(_, peer)| peer.conn == conn).map(|(qpn, _)| *qpn)
    }

    /// Takes leave of a client. False if it is none.
    pub fn disconnect(&self, nic: &mut Nic, now: u64, qpn: Qpn) -> bool {
        let peer = self.peers.get(&qpn);
        if let Some(peer) = peer {
            // It may be closing already.
            let _ = nic.disconnect(now, peer.conn);
        }
        peer.is_some()
    }

    /// Forgets a client's connection. The client's number; none if there was no such connection.
    pub fn remove(&mut self, qpn: Qpn) -> Option<u32> {
        let Peer { address, client, stands, .. } = self.peers.remove(&qpn)?;
        self.clients.lock().close(address, stands);
        Some(client)
    }

    /// A client has answered its probe.
    pub fn answered(&mut self, qpn: Qpn) {
        if let Some(peer) = self.peers.get_mut(&qpn) {
            peer.probed = false;
        }
    }

    /// Clients that have not answered the last probe.
    pub fn silent(&self) -> Vec<Qpn> {
        self.peers.iter().filter(|(_, peer)| peer.probed).map(|(qpn, _)| *qpn).collect()
    }

    /// Sends each client an empty WRITE, which needs no key. Sends complete in order, so that it also tells whether the
    /// client takes its replies.
    pub fn probe(&mut self, nic: &mut Nic) {
        let probe = SendWr::new(WorkId::Unnamed.encode(), SendOp::Write { va: 0, rkey: 0 }, Data::List(&[]));
        for (qpn, peer) in &mut self.peers {
            peer.probed = nic.post_send(*qpn, &probe).is_ok();
        }
    }

    /// Takes leave of all. Returns how many there are.
    pub fn disconnect_all(&self, nic: &mut Nic, now: u64) -> usize {
        for peer in self.peers.values() {
            let _ = nic.disconnect(now, peer.conn);
        }
        self.peers.len()
    }
}

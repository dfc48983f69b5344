//! The clients of a node: who is connected, and who has stopped answering.

use std::collections::HashMap;

use remora_memory::Pd;
use remora_nic::cm::ConnId;
use remora_nic::{ALL_REMOTE, ConnectAttr, CqId, Data, Nic, QpInit, QpType, Qpn, SendOp, SendWr, SrqId};
use remora_service::{Shares, WorkId};

use super::host::CALLS;
use crate::Error;

/// What the queue pairs of clients have in common.
pub(super) struct Peers {
    peers: HashMap<Qpn, Peer>,
    pd: Pd,
    cq: CqId,
    srq: SrqId,
}

/// One client.
struct Peer {
    conn: ConnId,
    /// A probe is under way.
    probed: bool,
}

impl Peers {
    /// Nobody yet. Queue pairs are in `pd`, complete on `cq` and receive from `srq`.
    pub fn new(pd: Pd, cq: CqId, srq: SrqId) -> Self {
        Self { peers: HashMap::new(), pd, cq, srq }
    }

    /// Takes a connection. Returns its queue pair.
    pub fn accept(&mut self, nic: &mut Nic, now: u64, conn: ConnId) -> Result<Qpn, Error> {
        let init = QpInit {
            srq: Some(self.srq),
            // All replies that one client may have under way and a probe: posting one never fails for want of room.
            max_send_wr: Shares::most(CALLS) as u32 + 1,
            max_inline: 0,
            max_rpc: 512,
            max_send_sge: 1,
            ..QpInit::new(QpType::Rc, self.pd, self.cq, self.cq)
        };
        let qp = nic.create_qp(init)?;
        let attr = ConnectAttr { min_rnr_timer: 1, ..ConnectAttr::default() };
        let accepted = nic
            .to_init(qp, ALL_REMOTE, 0)
            .map_err(Error::from)
            .and_then(|()| Ok(nic.accept(now, conn, qp, attr, &[])?));
        if let Err(e) = accepted {
            nic.destroy_qp(qp)?;
            return Err(e);
        }
        self.peers.insert(qp, Peer { conn, probed: false });
        Ok(qp)
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

    /// Forgets a client. False if it is none.
    pub fn remove(&mut self, qpn: Qpn) -> bool {
        self.peers.remove(&qpn).is_some()
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

//! Connections as `rdma_cm` makes them: the connection manager's messages on QP1, and the queue pair's way to RTS.

use std::collections::HashMap;
use std::net::IpAddr;

use remora_wire::{Bth, Deth, Opcode, Psn};

use crate::cm::{Cm, CmConfig, CmError, CmEvent, ConnId, ListenerId, QpParams};
use crate::nic::Nic;
use crate::packet::{Writer, request_bth};
use crate::queue::TxBatch;
use crate::types::*;

/// The management queue pair, and its well-known queue key.
pub(crate) const QP1: u32 = 1;
const QP1_QKEY: u32 = 0x8001_0000;
/// Peers whose link is remembered. More than this many at once talk by link 0 until they are heard again.
const MAX_PEERS: usize = 32_768;

/// The connection manager with what it needs to know of the engine.
pub(crate) struct Management {
    pub cm: Cm,
    conns: HashMap<ConnId, Conn>,
    /// Calls of peers that nobody has answered.
    calls: HashMap<ConnId, Caller>,
    /// The link that each peer was last heard on, or called by.
    links: HashMap<IpAddr, u8>,
    psn: Psn,
}

/// Who calls.
struct Caller {
    local: IpAddr,
    remote: IpAddr,
    params: QpParams,
}

struct Conn {
    qpn: Qpn,
    route: Route,
    attr: ConnectAttr,
    rq_psn: Psn,
}

/// What one end brings to a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectAttr {
    /// Path MTU in bytes. The side that calls decides.
    pub path_mtu: u32,
    /// READs and atomics answered at one time.
    pub responder_resources: u8,
    /// READs and atomics in flight at one time.
    pub initiator_depth: u8,
    /// Retries after timeouts and sequence NAKs (0-7). The side that calls decides.
    pub retry_count: u8,
    /// Retries of the peer after RNR NAKs (0-7; 7 is for ever).
    pub rnr_retry: u8,
    /// ACK timeout code: 4.096 us x 2^n. The side that calls decides.
    pub ack_timeout: u8,
    /// RNR timer code in RNR NAKs sent.
    pub min_rnr_timer: u8,
}

impl Default for ConnectAttr {
    fn default() -> Self {
        Self {
            path_mtu: 1024,
            responder_resources: 16,
            initiator_depth: 16,
            retry_count: 7,
            rnr_retry: 7,
            ack_timeout: 14,
            min_rnr_timer: 12,
        }
    }
}

/// Why a connection call was refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The connection manager refused.
    #[error(transparent)]
    Cm(#[from] CmError),
    /// The queue pair refused.
    #[error(transparent)]
    Nic(#[from] NicError),
}

impl Management {
    pub fn new(seed: u64, psn: Psn, config: CmConfig) -> Self {
        Self { cm: Cm::new(seed, config), conns: HashMap::new(), calls: HashMap::new(), links: HashMap::new(), psn }
    }

    fn remember(&mut self, peer: IpAddr, link: u8) {
        if self.links.len() >= MAX_PEERS && !self.links.contains_key(&peer) {
            self.links.clear();
        }
        self.links.insert(peer, link);
    }

    /// A datagram for QP1; `rest` follows its BTH. False if it is none.
    pub fn handle(&mut self, now: Time, link: u8, (src, dst): (IpAddr, IpAddr), bth: &Bth, rest: &[u8]) -> bool {
        let Ok(deth) = Deth::parse(rest) else { return false };
        if bth.opcode != Opcode::UdSendOnly || deth.qkey != QP1_QKEY {
            return false;
        }
        self.remember(src, link);
        self.cm.handle_mad(now, src, dst, &rest[Deth::LEN..]);
        true
    }

    /// Puts messages for one peer into an empty batch.
    pub fn emit(&mut self, batch: &mut TxBatch) {
        if !self.cm.wants_transmit() {
            return;
        }
        let mut mad = [0; 256];
        let Some(to) = self.cm.poll_transmit(&mut mad) else { return };
        let link = self.links.get(&to.to).copied().unwrap_or(0);
        let bth = request_bth(Opcode::UdSendOnly, QP1, self.psn);
        self.psn = self.psn + 1;
        let mut writer = Writer::new(batch.space(), &bth);
        writer.deth(Deth { qkey: QP1_QKEY, reserved: 0, src_qp: QP1 });
        writer.payload(mad.len()).copy_from_slice(&mad);
        let total = writer.finish(mad.len());
        batch.commit(Route { local: to.from, remote: to.to, link }, total);
    }
}

impl Nic {
    /// Takes calls for a service. [`crate::cm::service_id`] gives the service of a TCP-like port.
    pub fn listen(&mut self, service: u64) -> Result<ListenerId, CmError> {
        self.management.cm.listen(service)
    }

    /// Takes no more calls.
    pub fn unlisten(&mut self, listener: ListenerId) -> Result<(), CmError> {
        self.management.cm.unlisten(listener)
    }

    /// Calls `service` at the route's remote end with a queue pair in INIT. When [`CmEvent::Established`] comes,
    /// the queue pair is in RTS. `private` (56 bytes) reaches the other side with the call.
    pub fn connect(
        &mut self,
        now: Time,
        qpn: Qpn,
        route: Route,
        service: u64,
        attr: ConnectAttr,
        private: &[u8],
    ) -> Result<ConnId, ConnectError> {
        let state = self.qp_state(qpn)?;
        if state != QpState::Init {
            return Err(NicError::State(state).into());
        }
        let (params, rq_psn) = self.params(qpn, attr)?;
        let conn = self.management.cm.connect(now, route.local, route.remote, service, params, private)?;
        self.management.remember(route.remote, route.link);
        self.management.conns.insert(conn, Conn { qpn, route, attr, rq_psn });
        Ok(conn)
    }

    /// Answers a call ([`CmEvent::ConnectRequest`]) with a queue pair in INIT, which goes to RTS.
    /// The path MTU, the retry count and the timeout are the caller's.
    pub fn accept(
        &mut self,
        now: Time,
        conn: ConnId,
        qpn: Qpn,
        attr: ConnectAttr,
        private: &[u8],
    ) -> Result<(), ConnectError> {
        let caller = self.management.calls.get(&conn).ok_or(CmError::UnknownConn(conn))?;
        let (remote, params) = (caller.remote, caller.params);
        let link = self.peer_link(remote).unwrap_or(0);
        let route = Route { local: caller.local, remote, link };
        let attr = ConnectAttr {
            path_mtu: mtu_bytes(params.path_mtu),
            retry_count: params.retry_count,
            ack_timeout: params.ack_timeout,
            ..attr
        };
        let (ours, rq_psn) = self.params(qpn, attr)?;
        let entry = Conn { qpn, route, attr, rq_psn };
        self.raise(&entry, &params)?;
        self.management.cm.accept(now, conn, ours, private)?;
        self.management.calls.remove(&conn);
        self.management.conns.insert(conn, entry);
        Ok(())
    }

    /// Refuses a call. `reason` 28 is "the consumer said no"; `private` holds up to 148 bytes.
    pub fn reject(&mut self, now: Time, conn: ConnId, reason: u16, private: &[u8]) -> Result<(), CmError> {
        self.management.calls.remove(&conn);
        self.management.cm.reject(now, conn, reason, private)
    }

    /// Ends a connection. Its queue pair goes to the error state when [`CmEvent::Disconnected`] comes.
    pub fn disconnect(&mut self, now: Time, conn: ConnId) -> Result<(), CmError> {
        self.management.cm.disconnect(now, conn)
    }

    /// The connection manager itself, for those who bring their queue pairs up on their own. Connections made here do
    /// not touch queue pairs.
    pub fn cm(&mut self) -> &mut Cm {
        &mut self.management.cm
    }

    /// Messages of the connection manager to a peer take this link, until the peer is heard on another.
    pub fn set_peer_link(&mut self, peer: IpAddr, link: u8) {
        self.management.remember(peer, link);
    }

    /// The link on which a peer was last heard.
    pub fn peer_link(&self, peer: IpAddr) -> Option<u8> {
        self.management.links.get(&peer).copied()
    }

    /// The queue pair of a connection.
    pub fn conn_qp(&self, conn: ConnId) -> Option<Qpn> {
        self.management.conns.get(&conn).map(|c| c.qpn)
    }

    fn params(&mut self, qpn: Qpn, attr: ConnectAttr) -> Result<(QpParams, Psn), NicError> {
        let srq = self.qp_init(qpn)?.srq.is_some();
        let rq_psn = self.random_psn();
        let params = QpParams {
            qpn: qpn.0,
            starting_psn: rq_psn,
            path_mtu: mtu_code(attr.path_mtu),
            responder_resources: attr.responder_resources,
            initiator_depth: attr.initiator_depth,
            retry_count: attr.retry_count,
            rnr_retry: attr.rnr_retry,
            ack_timeout: attr.ack_timeout,
            srq,
        };
        Ok((params, rq_psn))
    }

    /// INIT to RTS with what the peer said.
    fn raise(&mut self, conn: &Conn, remote: &QpParams) -> Result<(), NicError> {
        self.to_rtr(
            conn.qpn,
            RtrAttr {
                route: conn.route,
                dest_qp: remote.qpn,
                rq_psn: conn.rq_psn,
                path_mtu: conn.attr.path_mtu,
                max_dest_rd_atomic: conn.attr.responder_resources.max(remote.initiator_depth),
                min_rnr_timer: conn.attr.min_rnr_timer,
            },
        )?;
        self.to_rts(
            conn.qpn,
            RtsAttr {
                sq_psn: remote.starting_psn,
                timeout: conn.attr.ack_timeout,
                retry_count: conn.attr.retry_count,
                rnr_retry: remote.rnr_retry,
                max_rd_atomic: conn.attr.initiator_depth.min(remote.responder_resources),
            },
        )
    }

    /// Follows up on what the connection manager says, and passes it on.
    pub(crate) fn pump_cm(&mut self) {
        while let Some(event) = self.management.cm.poll_event() {
            match &event {
                CmEvent::Established { conn, remote, .. } => {
                    // Without an entry the user connects with [`Nic::cm`] and sees to the queue pair.
                    if let Some(entry) = self.management.conns.remove(conn) {
                        // The passive side is in RTS already; a queue pair that its owner moved stays where it is.
                        if self.qp_state(entry.qpn) == Ok(QpState::Init) {
                            let _ = self.raise(&entry, remote);
                        }
                        self.management.conns.insert(*conn, entry);
                    }
                }
                CmEvent::Rejected { conn, .. } | CmEvent::Unreachable { conn } | CmEvent::Disconnected { conn } => {
                    self.management.calls.remove(conn);
                    if let Some(entry) = self.management.conns.remove(conn) {
                        // It may be destroyed by now.
                        let _ = self.to_error(entry.qpn);
                    }
                }
                CmEvent::ConnectRequest { conn, remote, local_ip, remote_ip, .. } => {
                    let caller = Caller { local: *local_ip, remote: *remote_ip, params: *remote };
                    self.management.calls.insert(*conn, caller);
                }
                CmEvent::TimewaitExit { conn } => drop(self.management.calls.remove(conn)),
                CmEvent::Response { .. } | CmEvent::ServiceRequest { .. } | CmEvent::ServiceResolved { .. } => {}
            }
            self.ctx.events.push_back(Event::Cm(event));
        }
    }
}

/// Path MTU code (1-5) to bytes.
fn mtu_bytes(code: u8) -> u32 {
    128 << code.clamp(1, 5)
}

/// Path MTU in bytes to its code.
fn mtu_code(bytes: u32) -> u8 {
    (bytes.max(256) / 128).ilog2().min(5) as u8
}

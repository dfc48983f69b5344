//! Connections as `rdma_cm` makes them: the connection manager's messages on QP1, and the queue pair's way to RTS.

use std::collections::HashMap;
use std::net::IpAddr;

use remora_wire::{Bth, Deth, Opcode, Psn};

use crate::cm::{Cm, CmConfig, CmError, CmEvent, ConnId, ListenerId, QpParams};
use crate::nic::Nic;
use crate::packet::Writer;
use crate::queue::TxBatch;
use crate::types::*;

/// The management queue pair, and its well-known queue key.
pub(crate) const QP1: u32 = 1;
const QP1_QKEY: u32 = 0x8001_0000;

/// The connection manager with what it needs to know of the engine.
pub(crate) struct Management {
    pub cm: Cm,
    conns: HashMap<ConnId, Conn>,
    /// Calls of peers that nobody has answered.
    calls: HashMap<ConnId, Caller>,
    psn: Psn,
    intake: Intake,
    /// The last packet that left was its own.
    pub spoke: bool,
}

/// Messages of connection management that may come at once. Of more callers some call again.
const MESSAGES: u64 = 1024;
/// And for as long as one likes: one in so many nanoseconds, 2,000 a second. Nothing that connections do otherwise
/// comes near that, and it leaves a core to those that stand when a stranger sends as fast as he can.
const MESSAGE_EVERY: Time = 500_000;

/// Which messages are looked at (a leaky bucket as a virtual schedule, ITU-T I.371).
#[derive(Default)]
struct Intake {
    /// When the next one is due if they came evenly.
    due: Time,
    taken: u64,
    shed: u64,
}

impl Intake {
    /// Whether one more is looked at.
    fn admits(&mut self, now: Time) -> bool {
        let due = self.due.max(now);
        let admits = due - now < MESSAGES * MESSAGE_EVERY;
        if admits {
            (self.due, self.taken) = (due + MESSAGE_EVERY, self.taken + 1);
        } else {
            self.shed += 1;
        }
        admits
    }
}

/// Who calls.
struct Caller {
    route: Route,
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

/// READs and atomics in flight on a connection unless its ends say otherwise: all that a queue pair can have. Hardware is
/// content with 16, as it has state for each; here one takes 48 bytes, and look-ups with a hundred in flight wait for none.
const MAX_RD_ATOMIC: u8 = 128;

impl Default for ConnectAttr {
    fn default() -> Self {
        Self {
            path_mtu: 1024,
            responder_resources: MAX_RD_ATOMIC,
            initiator_depth: MAX_RD_ATOMIC,
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
        Self {
            cm: Cm::new(seed, config),
            conns: HashMap::new(),
            calls: HashMap::new(),
            psn,
            intake: Intake::default(),
            spoke: false,
        }
    }

    /// A datagram for QP1; `rest` follows its BTH. False if it is none.
    pub fn handle(&mut self, now: Time, link: u8, (src, dst): (IpAddr, IpAddr), bth: &Bth, rest: &[u8]) -> bool {
        let Ok(deth) = Deth::parse(rest) else { return false };
        if bth.opcode != Opcode::UdSendOnly || deth.qkey != QP1_QKEY {
            return false;
        }
        let admitted = self.intake.admits(now);
        if admitted {
            self.cm.handle_mad(now, link, src, dst, &rest[Deth::LEN..]);
        }
        admitted
    }

    /// Messages that were looked at, and those that were not because too many came.
    pub fn intake(&self) -> (u64, u64) {
        (self.intake.taken, self.intake.shed)
    }

    /// Puts a message into an empty batch. False if there is none.
    pub fn emit(&mut self, batch: &mut TxBatch) -> bool {
        if !self.cm.wants_transmit() {
            return false;
        }
        let mut mad = [0; 256];
        let Some(to) = self.cm.poll_transmit(&mut mad) else { return false };
        let bth = Bth::new(Opcode::UdSendOnly, QP1, self.psn);
        self.psn = self.psn + 1;
        let mut writer = Writer::new(batch.space(), &bth);
        writer.deth(Deth { qkey: QP1_QKEY, reserved: 0, src_qp: QP1 });
        writer.payload(mad.len()).copy_from_slice(&mad);
        let total = writer.finish(mad.len());
        batch.commit(Route { local: to.from, remote: to.to, link: to.link }, total);
        self.spoke = true;
        true
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
        self.management.cm.set_link(route.remote, route.link);
        let conn = self.management.cm.connect(now, route.local, route.remote, service, params, private)?;
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
        let (route, params) = (caller.route, caller.params);
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
    #[inline]
    pub(crate) fn pump_cm(&mut self) {
        while let Some(event) = self.management.cm.poll_event() {
            self.follow(event);
        }
    }

    #[cold]
    fn follow(&mut self, event: CmEvent) {
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
            CmEvent::ConnectRequest { conn, remote, local_ip, remote_ip, link, .. } => {
                let route = Route { local: *local_ip, remote: *remote_ip, link: *link };
                let caller = Caller { route, params: *remote };
                self.management.calls.insert(*conn, caller);
            }
            CmEvent::TimewaitExit { conn } => drop(self.management.calls.remove(conn)),
            CmEvent::Response { .. } | CmEvent::ServiceRequest { .. } | CmEvent::ServiceResolved { .. } => {}
        }
        self.ctx.events.push_back(Event::Cm(event));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_may_call_at_once_and_in_a_flood_a_few() {
        let (mut intake, start) = (Intake::default(), 7);
        let come = |intake: &mut Intake, now, count: u64| (0..count).filter(|_| intake.admits(now)).count() as u64;
        assert_eq!(come(&mut intake, start, 10 * MESSAGES), MESSAGES);
        assert_eq!((intake.taken, intake.shed), (MESSAGES, 9 * MESSAGES));
        let second = (1..=1000).map(|ms| come(&mut intake, start + ms * 1_000_000, 100)).sum::<u64>();
        assert_eq!(second, 2000);
        let quiet = start + 3_000_000_000;
        assert_eq!(come(&mut intake, quiet, 2 * MESSAGES), MESSAGES, "and at once again when it is over");
    }
}

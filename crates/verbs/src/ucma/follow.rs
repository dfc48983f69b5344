//! What the connection manager's events mean to programs.

use std::net::{IpAddr, SocketAddr};

use remora_nic::cm::{CmEvent, ConnId, ListenerId, QpParams, sidr_status};

use super::abi::{ConnParam, UcmaEvent, UcmaParam, event};
use super::state::{Id, Session, Stage, State, Told};

/// Who called whom, of a request.
struct Caller {
    listener: ListenerId,
    conn: ConnId,
    local: IpAddr,
    remote: SocketAddr,
}

impl State {
    /// Notes an event of the connection manager for the program. `psn` is an unpredictable number of 24 bits.
    pub fn follow(&mut self, event: CmEvent, psn: u32) {
        match event {
            CmEvent::ConnectRequest {
                conn, listener, remote, local_ip, remote_ip, source_port, private_data, ..
            } => {
                let caller = Caller { listener, conn, local: local_ip, remote: (remote_ip, source_port).into() };
                let param = UcmaParam::Conn(conn_param(&remote, private_data));
                self.request(&caller, Some(remote), psn, param);
            }
            CmEvent::ServiceRequest { conn, listener, local_ip, remote_ip, source_port, private_data } => {
                let caller = Caller { listener, conn, local: local_ip, remote: (remote_ip, source_port).into() };
                let param = UcmaParam::Ud { qpn: 0, qkey: 0, address_vector: [0; 32], private_data };
                self.request(&caller, None, psn, param);
            }
            CmEvent::Response { conn, remote, private_data } => {
                let Some((number, session)) = self.session(conn) else { return };
                session.remote = remote;
                // What the two ends agree on (12.7.29, 12.7.30).
                session.initiator_depth = remote.responder_resources;
                session.responder_resources = remote.initiator_depth;
                self.tell(number, event::CONNECT_RESPONSE, 0, UcmaParam::Conn(conn_param(&remote, private_data)));
            }
            CmEvent::Established { conn, .. } => {
                // The active side knows since it said so itself.
                if let Some((number, Session { active: false, .. })) = self.session(conn) {
                    self.tell(number, event::ESTABLISHED, 0, UcmaParam::None);
                }
            }
            CmEvent::Rejected { conn, reason, private_data } => {
                let param = UcmaParam::Conn(ConnParam { private_data, ..ConnParam::default() });
                self.tell_conn(conn, event::REJECTED, reason.into(), param);
            }
            CmEvent::Unreachable { conn } => {
                self.tell_conn(conn, event::UNREACHABLE, -libc::ETIMEDOUT, UcmaParam::None);
            }
            CmEvent::Disconnected { conn } => self.tell_conn(conn, event::DISCONNECTED, 0, UcmaParam::None),
            CmEvent::TimewaitExit { conn } => self.tell_conn(conn, event::TIMEWAIT_EXIT, 0, UcmaParam::None),
            CmEvent::ServiceResolved { conn, status, qpn, qkey, private_data } => {
                let Some(&number) = self.by_conn.get(&conn) else { return };
                let vector = self.ids.get(&number).and_then(Id::address_vector).unwrap_or([0; 32]);
                let param = UcmaParam::Ud { qpn, qkey, address_vector: vector, private_data };
                match status {
                    sidr_status::VALID => self.tell(number, event::ESTABLISHED, 0, param),
                    refused => self.tell(number, event::UNREACHABLE, refused.into(), UcmaParam::None),
                }
            }
        }
    }

    fn session(&mut self, conn: ConnId) -> Option<(u32, &mut Session)> {
        let number = *self.by_conn.get(&conn)?;
        let session = self.ids.get_mut(&number)?.session.as_mut()?;
        Some((number, session))
    }

    fn tell_conn(&mut self, conn: ConnId, kind: u32, status: i32, param: UcmaParam) {
        if let Some(&number) = self.by_conn.get(&conn) {
            self.tell(number, kind, status, param);
        }
    }

    /// A new identifier for who calls, told to the listener.
    fn request(&mut self, caller: &Caller, remote: Option<QpParams>, psn: u32, param: UcmaParam) {
        let Some(&listening) = self.by_listener.get(&caller.listener) else { return };
        // Nobody answers then, and the caller asks again.
        let Ok(number) = self.fresh() else { return };
        let Some(listener) = self.ids.get(&listening) else { return };
        let mut id = Id::new(0, listener.channel, listener.ps, listener.datagrams);
        let port = listener.source.map_or(0, |source| source.port());
        id.source = Some((caller.local, port).into());
        id.destination = Some(caller.remote);
        id.on_device = true;
        id.stage = Stage::Connecting;
        id.tos = listener.tos;
        let remote = remote.unwrap_or_else(|| id.params(0, 0, &ConnParam::default()));
        id.session = Some(Session {
            conn: caller.conn,
            active: false,
            psn,
            remote,
            responder_resources: remote.initiator_depth,
            initiator_depth: remote.responder_resources,
        });
        let (channel, uid) = (listener.channel, listener.uid);
        let bytes = UcmaEvent { kind: event::CONNECT_REQUEST, status: 0, param }.encode(uid, number);
        self.ids.insert(number, id);
        self.by_conn.insert(caller.conn, number);
        self.told.push(Told { channel, id: listening, new: Some(number), bytes });
    }
}

/// A peer's queue pair in the own side's words: what it can answer is what this side may ask.
fn conn_param(remote: &QpParams, private_data: Vec<u8>) -> ConnParam {
    ConnParam {
        qpn: remote.qpn,
        qkey: 0,
        private_data,
        srq: remote.srq,
        responder_resources: remote.initiator_depth,
        initiator_depth: remote.responder_resources,
        flow_control: 0,
        retry_count: remote.retry_count,
        rnr_retry: remote.rnr_retry,
        valid: true,
    }
}

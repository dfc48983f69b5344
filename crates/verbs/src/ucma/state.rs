//! The identifiers of `rdma_cm`, and what commands do to them.
//!
//! Nothing here waits, and nothing knows of descriptors but as names of channels: commands and the connection manager's
//! events come in, answers and events for channels go out.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use remora_nic::cm::{Cm, CmError, ConnId, ConnectCall, ListenerId, QpParams, port_service_id, reason, sidr_status};

use super::abi::{
    self, Address, ConnParam, UcmaCommand, UcmaEvent, UcmaParam, UcmaPath, UcmaQpAttr, UcmaRoute, event, ps,
};

/// Key of queue pairs for datagrams, where the program gives none (`RDMA_UDP_QKEY`).
const UDP_QKEY: u32 = 0x0123_4567;
const MULTICAST_QPN: u32 = 0xff_ffff;
/// Local ACK timeout code, unless the program sets one: 67 ms, twice what the path's life time says.
const ACK_TIMEOUT: u8 = 14;
/// RNR timer code: 0.64 ms. Linux leaves it at zero, which is the longest, 655 ms.
const MIN_RNR_TIMER: u8 = 12;
/// The ports that are given to those who do not care.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32_768..=60_999;
/// Identifiers and multicast groups at one time.
const MAX_IDS: usize = 65_536;

/// The device as commands see it.
pub struct Host<'a> {
    pub cm: &'a mut Cm,
    /// Nanoseconds, as the connection manager has it.
    pub now: u64,
    pub address: IpAddr,
    pub guid: [u8; 8],
    /// Code of the port's MTU.
    pub mtu: u8,
    /// There is a way to the destination of this command.
    pub reachable: bool,
    /// An unpredictable number of 24 bits.
    pub random: u32,
}

/// A channel's name: its descriptor.
pub type ChannelId = i32;

/// An event on its way to a channel.
pub struct Told {
    pub channel: ChannelId,
    /// Whom it is counted for.
    pub id: u32,
    /// The new identifier of a connection request.
    pub new: Option<u32>,
    pub bytes: [u8; abi::EVENT],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Idle,
    Bound,
    AddressResolved,
    RouteResolved,
    Connecting,
    Listening,
}

/// What is known of a peer's queue pair and of how to reach it.
#[derive(Clone, Copy)]
pub(super) struct Session {
    pub(super) conn: ConnId,
    /// The own side called.
    pub(super) active: bool,
    /// The first PSN that this side expects.
    pub(super) psn: u32,
    pub(super) remote: QpParams,
    /// Answered at one time, and in flight at one time: the own view.
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
}

pub(super) struct Id {
    /// The program's number; zero until it has accepted a connection request.
    pub(super) uid: u64,
    pub(super) channel: ChannelId,
    pub(super) ps: u16,
    pub(super) datagrams: bool,
    pub(super) stage: Stage,
    pub(super) source: Option<SocketAddr>,
    pub(super) destination: Option<SocketAddr>,
    /// It is bound to the device, not to a wildcard.
    pub(super) on_device: bool,
    pub(super) listener: Option<ListenerId>,
    pub(super) session: Option<Session>,
    pub(super) qkey: u32,
    pub(super) reuse: bool,
    pub(super) ack_timeout: u8,
    pub(super) tos: u8,
    /// Events that the program has taken.
    pub(super) taken: u32,
}

/// A multicast group that an identifier joined.
pub(super) struct Group {
    id: u32,
    taken: u32,
}

/// All identifiers of the process.
#[derive(Default)]
pub struct State {
    pub(super) ids: BTreeMap<u32, Id>,
    pub(super) groups: BTreeMap<u32, Group>,
    pub(super) next: u32,
    pub(super) by_conn: HashMap<ConnId, u32>,
    pub(super) by_listener: HashMap<ListenerId, u32>,
    /// Events to be put into channels.
    pub(super) told: Vec<Told>,
    /// Identifiers whose waiting events are to be taken back.
    pub(super) retracted: Vec<u32>,
}

/// The errno of a refused call of the connection manager's.
fn errno(error: CmError) -> i32 {
    match error {
        CmError::ServiceInUse(_) => libc::EADDRINUSE,
        CmError::TableFull(_) => libc::ENOMEM,
        CmError::QpInUse(_) => libc::EBUSY,
        _ => libc::EINVAL,
    }
}

impl State {
    /// Events since the last call, for their channels.
    pub fn take_told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.told)
    }

    /// Identifiers destroyed since the last call: their events that still wait are taken back.
    pub fn take_retracted(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.retracted)
    }

    /// Carries out a command that arrived on a channel; `Ok` is its answer.
    pub fn command(&mut self, host: &mut Host<'_>, channel: ChannelId, command: UcmaCommand) -> Result<Vec<u8>, i32> {
        match command {
            UcmaCommand::CreateId { uid, ps, qp_type } => self.create(channel, uid, ps, qp_type),
            UcmaCommand::DestroyId { id } => self.destroy(host, id),
            UcmaCommand::Bind { id, address } => self.bind(host, id, address).map(none),
            UcmaCommand::ResolveAddr { id, source, destination } => {
                self.resolve_addr(host, id, source, destination).map(none)
            }
            UcmaCommand::ResolveRoute { id } => self.resolve_route(id).map(none),
            UcmaCommand::QueryRoute { id } => Ok(self.route(host, id)?.route()),
            UcmaCommand::QueryAddr { id } => Ok(self.route(host, id)?.addresses()),
            UcmaCommand::QueryPath { id } => Ok(self.route(host, id)?.paths()),
            UcmaCommand::QueryGid { id } => Ok(self.route(host, id)?.gid_addresses()),
            UcmaCommand::Connect { id, param } => self.connect(host, id, &param).map(none),
            UcmaCommand::Listen { id } => self.listen(host, id).map(none),
            UcmaCommand::Accept { id, uid, param } => self.accept(host, id, uid, &param).map(none),
            UcmaCommand::Reject { id, reason, private_data } => self.reject(host, id, reason, &private_data).map(none),
            UcmaCommand::Disconnect { id } => self.disconnect(host, id).map(none),
            UcmaCommand::InitQpAttr { id, state } => self.init_qp_attr(host, id, state),
            UcmaCommand::Notify { id, event } => self.notify(host, id, event).map(none),
            UcmaCommand::JoinMulticast { id, uid, address } => self.join(id, uid, address),
            UcmaCommand::LeaveMulticast { id } => self.leave(id),
            // Seen to by those who know channels, and the program's memory.
            UcmaCommand::GetEvent | UcmaCommand::SetOption { .. } | UcmaCommand::MigrateId { .. } => Err(libc::ENOSYS),
        }
    }

    fn get(&mut self, id: u32) -> Result<&mut Id, i32> {
        self.ids.get_mut(&id).ok_or(libc::ENOENT)
    }

    pub(super) fn fresh(&mut self) -> Result<u32, i32> {
        if self.ids.len() + self.groups.len() >= MAX_IDS {
            return Err(libc::ENOMEM);
        }
        // librdmacm keeps them in a table of this size.
        loop {
            self.next = (self.next + 1) % MAX_IDS as u32;
            if !self.ids.contains_key(&self.next) && !self.groups.contains_key(&self.next) {
                return Ok(self.next);
            }
        }
    }

    fn create(&mut self, channel: ChannelId, uid: u64, ps: u16, qp_type: u8) -> Result<Vec<u8>, i32> {
        const QPT_RC: u8 = 2;
        const QPT_UD: u8 = 4;
        let datagrams = match (ps, qp_type) {
            (ps::TCP, _) => false,
            (ps::UDP | ps::IPOIB, _) => true,
            (ps::IB, QPT_RC) => false,
            (ps::IB, QPT_UD) => true,
            // Extended reliable connections.
            (ps::IB, _) => return Err(libc::EOPNOTSUPP),
            _ => return Err(libc::EINVAL),
        };
        let id = self.fresh()?;
        self.ids.insert(id, Id::new(uid, channel, ps, datagrams));
        Ok(abi::number(id))
    }

    fn destroy(&mut self, host: &mut Host<'_>, number: u32) -> Result<Vec<u8>, i32> {
        let id = self.ids.remove(&number).ok_or(libc::ENOENT)?;
        self.retracted.push(number);
        let gone = self.groups.extract_if(.., |_, group| group.id == number);
        self.retracted.extend(gone.map(|(group, _)| group));
        if let Some(listener) = id.listener {
            self.by_listener.remove(&listener);
            let _ = host.cm.unlisten(listener);
        }
        if let Some(session) = id.session {
            self.by_conn.remove(&session.conn);
            if id.datagrams {
                host.cm.forget_service(host.now, session.conn);
            } else {
                let _ = host.cm.disconnect(host.now, session.conn);
            }
        }
        Ok(abi::number(id.taken))
    }

    /// Destroys the identifiers of a channel that is closed.
    pub fn close(&mut self, host: &mut Host<'_>, channel: ChannelId) {
        for id in self.on_channel(channel) {
            let _ = self.destroy(host, id);
        }
    }

    /// In a child of the process that made them: its identifiers stand for nothing on the device that the child may have, where
    /// the numbers of listeners and connections are others'.
    pub fn orphan(&mut self) {
        for id in self.ids.values_mut() {
            (id.listener, id.session) = (None, None);
        }
        self.by_conn.clear();
        self.by_listener.clear();
    }

    fn on_channel(&self, channel: ChannelId) -> Vec<u32> {
        self.ids.iter().filter(|(_, id)| id.channel == channel).map(|(number, _)| *number).collect()
    }

    fn bind(&mut self, host: &mut Host<'_>, number: u32, address: Address) -> Result<(), i32> {
        let id = self.get(number)?;
        if id.stage != Stage::Idle {
            return Err(libc::EINVAL);
        }
        let Address::Ip(mut address) = address else {
            // Enough for librdmacm to see that the kernel is a recent one.
            id.stage = Stage::Bound;
            return Ok(());
        };
        let ip = address.ip().to_canonical();
        let is_device = ip == host.address || ip.is_loopback() && host.address.is_loopback();
        // Linux takes a loopback address that no device has for a wildcard, and libfabric binds 127.0.0.1 so.
        let is_any = ip.is_unspecified() || ip.is_loopback();
        if !is_device && !is_any {
            return Err(if ip.is_ipv4() == host.address.is_ipv4() { libc::EADDRNOTAVAIL } else { libc::ENODEV });
        }
        let (space, reuse) = (id.ps, id.reuse);
        let port = self.claim_port(host, number, space, address.port(), reuse)?;
        address.set_port(port);
        let id = self.get(number)?;
        id.on_device = is_device;
        if id.on_device {
            address.set_ip(host.address);
        }
        id.source = Some(address);
        id.stage = Stage::Bound;
        Ok(())
    }

    /// The port, or a free one for zero.
    fn claim_port(&self, host: &mut Host<'_>, for_id: u32, space: u16, port: u16, reuse: bool) -> Result<u16, i32> {
        let taken = |port: u16, reuse: bool| {
            self.ids.iter().any(|(number, id)| {
                // The identifiers of accepted connections share their listener's port.
                let owns = *number != for_id && id.ps == space && id.session.is_none_or(|session| session.active);
                owns && id.source.is_some_and(|source| source.port() == port) && !(reuse && id.reuse)
            })
        };
        if port != 0 {
            return if taken(port, reuse) { Err(libc::EADDRINUSE) } else { Ok(port) };
        }
        let count = EPHEMERAL.len() as u32;
        let start = host.random % count;
        let mut candidates = (0..count).map(|i| EPHEMERAL.start() + ((start + i) % count) as u16);
        candidates.find(|port| !taken(*port, false)).ok_or(libc::EADDRNOTAVAIL)
    }

    fn resolve_addr(
        &mut self,
        host: &mut Host<'_>,
        number: u32,
        source: Option<Address>,
        destination: Address,
    ) -> Result<(), i32> {
        let Address::Ip(mut destination) = destination else { return Err(libc::EOPNOTSUPP) };
        if self.get(number)?.stage == Stage::Idle {
            let any = Address::Ip((Ipv4Addr::UNSPECIFIED, 0).into());
            self.bind(host, number, source.unwrap_or(any))?;
        }
        let address = host.address;
        let id = self.get(number)?;
        if id.stage != Stage::Bound {
            return Err(libc::EINVAL);
        }
        let ip = destination.ip().to_canonical();
        if ip.is_unspecified() {
            destination.set_ip(address);
        } else if ip.is_ipv4() != address.is_ipv4() {
            return Err(libc::ENETUNREACH);
        } else {
            destination.set_ip(ip);
        }
        id.destination = Some(destination);
        id.source = Some((address, id.source.map_or(0, |source| source.port())).into());
        id.on_device = true;
        if ip.is_multicast() || host.reachable {
            id.stage = Stage::AddressResolved;
            self.tell(number, event::ADDR_RESOLVED, 0, UcmaParam::None);
        } else {
            self.tell(number, event::ADDR_ERROR, -libc::EHOSTUNREACH, UcmaParam::None);
        }
        Ok(())
    }

    fn resolve_route(&mut self, number: u32) -> Result<(), i32> {
        let id = self.get(number)?;
        if id.stage != Stage::AddressResolved {
            return Err(libc::EINVAL);
        }
        id.stage = Stage::RouteResolved;
        self.tell(number, event::ROUTE_RESOLVED, 0, UcmaParam::None);
        Ok(())
    }

    fn route(&mut self, host: &Host<'_>, number: u32) -> Result<UcmaRoute, i32> {
        let id = self.get(number)?;
        let path = id.path(host).filter(|_| matches!(id.stage, Stage::RouteResolved | Stage::Connecting));
        let guid = id.on_device.then_some(host.guid);
        Ok(UcmaRoute { guid, source: id.source, destination: id.destination, path })
    }

    fn listen(&mut self, host: &mut Host<'_>, number: u32) -> Result<(), i32> {
        if self.get(number)?.stage == Stage::Idle {
            self.bind(host, number, Address::Ip((Ipv4Addr::UNSPECIFIED, 0).into()))?;
        }
        let id = self.get(number)?;
        let (Stage::Bound, Some(source)) = (id.stage, id.source) else { return Err(libc::EINVAL) };
        let listener = host.cm.listen(port_service_id(id.ps, source.port())).map_err(errno)?;
        id.listener = Some(listener);
        id.stage = Stage::Listening;
        self.by_listener.insert(listener, number);
        Ok(())
    }

    fn connect(&mut self, host: &mut Host<'_>, number: u32, param: &ConnParam) -> Result<(), i32> {
        let id = self.ids.get_mut(&number).ok_or(libc::ENOENT)?;
        let (true, Some(source), Some(destination)) =
            (id.stage == Stage::RouteResolved && param.valid, id.source, id.destination)
        else {
            return Err(libc::EINVAL);
        };
        let call = ConnectCall {
            local: source.ip(),
            remote: destination.ip(),
            service_id: port_service_id(id.ps, destination.port()),
            source_port: source.port(),
            private_data: &param.private_data,
        };
        let psn = host.random & 0xff_ffff;
        let ours = id.params(host.mtu, psn, param);
        let conn = match id.datagrams {
            true => host.cm.resolve_service(host.now, call),
            false => host.cm.call(host.now, call, ours),
        };
        let conn = conn.map_err(errno)?;
        let (responder_resources, initiator_depth) = (param.responder_resources, param.initiator_depth);
        let session = Session { conn, active: true, psn, remote: ours, responder_resources, initiator_depth };
        id.session = Some(session);
        id.stage = Stage::Connecting;
        self.by_conn.insert(conn, number);
        Ok(())
    }

    fn accept(&mut self, host: &mut Host<'_>, number: u32, uid: u64, param: &ConnParam) -> Result<(), i32> {
        let id = self.get(number)?;
        let Some(session) = &mut id.session else { return Err(libc::EINVAL) };
        let conn = session.conn;
        if session.active {
            return host.cm.ready(host.now, conn).map_err(errno);
        }
        if !param.valid {
            return Err(libc::EINVAL);
        }
        if id.datagrams {
            let qkey = if param.qkey != 0 { param.qkey } else { id.qkey };
            let queue_pair = (param.qpn, qkey);
            let answer = host.cm.answer_service(host.now, conn, sidr_status::VALID, queue_pair, &param.private_data);
            answer.map_err(errno)?;
        } else {
            session.responder_resources = param.responder_resources;
            session.initiator_depth = param.initiator_depth;
            let (psn, mtu) = (session.psn, session.remote.path_mtu);
            let ours = id.params(mtu, psn, param);
            host.cm.accept(host.now, conn, ours, &param.private_data).map_err(errno)?;
        }
        id.uid = uid;
        Ok(())
    }

    fn reject(&mut self, host: &mut Host<'_>, number: u32, reason: u8, private_data: &[u8]) -> Result<(), i32> {
        let id = self.get(number)?;
        let Some(session) = id.session else { return Err(libc::EINVAL) };
        if id.datagrams {
            let status = sidr_status::REJECTED;
            return host.cm.answer_service(host.now, session.conn, status, (0, 0), private_data).map_err(errno);
        }
        let reason = if reason == 0 { reason::CONSUMER } else { reason.into() };
        host.cm.reject(host.now, session.conn, reason, private_data).map_err(errno)
    }

    fn disconnect(&mut self, host: &mut Host<'_>, number: u32) -> Result<(), i32> {
        let Some(session) = self.get(number)?.session else { return Err(libc::EINVAL) };
        // The peer may have been faster.
        let _ = host.cm.disconnect(host.now, session.conn);
        Ok(())
    }

    fn notify(&mut self, host: &mut Host<'_>, number: u32, event: u32) -> Result<(), i32> {
        const COMM_EST: u32 = 4;
        let Some(session) = self.get(number)?.session else { return Err(libc::EINVAL) };
        if event != COMM_EST {
            return Err(libc::EINVAL);
        }
        host.cm.establish(host.now, session.conn).map_err(errno)
    }

    fn init_qp_attr(&mut self, host: &Host<'_>, number: u32, state: u32) -> Result<Vec<u8>, i32> {
        let id = self.get(number)?;
        if id.datagrams {
            let ready = state == abi::QPS_INIT && id.on_device;
            return if ready { Ok(UcmaQpAttr::InitUd { qkey: id.qkey }.encode()) } else { Err(libc::EINVAL) };
        }
        let attr = match (state, id.session) {
            (abi::QPS_INIT, None) if id.on_device => UcmaQpAttr::Init { reads: false },
            (abi::QPS_INIT, Some(session)) => UcmaQpAttr::Init { reads: session.responder_resources > 0 },
            (abi::QPS_RTR, Some(session)) => UcmaQpAttr::Rtr {
                path: id.path(host).ok_or(libc::EINVAL)?,
                dest_qpn: session.remote.qpn,
                rq_psn: session.psn,
                max_dest_rd_atomic: session.responder_resources,
                min_rnr_timer: MIN_RNR_TIMER,
            },
            (abi::QPS_RTS, Some(session)) => UcmaQpAttr::Rts {
                sq_psn: session.remote.starting_psn.get(),
                timeout: session.remote.ack_timeout,
                retry_count: session.remote.retry_count,
                rnr_retry: session.remote.rnr_retry,
                max_rd_atomic: session.initiator_depth,
            },
            _ => return Err(libc::EINVAL),
        };
        Ok(attr.encode())
    }

    /// Sets an option, as far as there is anything to set.
    pub fn set_option(&mut self, number: u32, level: u32, name: u32, value: &[u8]) -> Result<(), i32> {
        const LEVEL_ID: u32 = 0;
        let id = self.get(number)?;
        match (level, name, value) {
            (LEVEL_ID, 0, [tos]) => id.tos = *tos,
            (LEVEL_ID, 1, [_, _, _, _]) => id.reuse = value != [0; 4],
            // Only one family: an IPv6 wildcard takes what the device's address takes.
            (LEVEL_ID, 2, [_, _, _, _]) => {}
            (LEVEL_ID, 3, [timeout @ 0..=31]) => id.ack_timeout = *timeout,
            (LEVEL_ID, 0..=3, _) => return Err(libc::EINVAL),
            _ => return Err(libc::ENOSYS),
        }
        Ok(())
    }

    /// Moves an identifier to another channel; its waiting events are moved by the caller. `Ok` is the answer.
    pub fn migrate(&mut self, number: u32, to: ChannelId) -> Result<(ChannelId, Vec<u8>), i32> {
        let id = self.get(number)?;
        let from = std::mem::replace(&mut id.channel, to);
        Ok((from, abi::number(id.taken)))
    }

    /// The program has taken an event that is counted for `number`, an identifier or a group.
    pub fn took(&mut self, number: u32) {
        let id = match self.groups.get_mut(&number) {
            Some(group) => {
                group.taken += 1;
                group.id
            }
            None => number,
        };
        if let Some(id) = self.ids.get_mut(&id) {
            id.taken += 1;
        }
    }

    fn join(&mut self, number: u32, uid: u64, address: Address) -> Result<Vec<u8>, i32> {
        let Address::Ip(address) = address else { return Err(libc::EOPNOTSUPP) };
        let id = self.get(number)?;
        let joins = id.datagrams && id.on_device && address.ip().is_multicast();
        if !joins {
            return Err(libc::EINVAL);
        }
        let (channel, qkey, tos) = (id.channel, id.qkey, id.tos);
        let address_vector = abi::address_vector(crate::port::gid_of(address.ip()).raw, tos).0;
        let group = self.fresh()?;
        self.groups.insert(group, Group { id: number, taken: 0 });
        let param = UcmaParam::Ud { qpn: MULTICAST_QPN, qkey, address_vector, private_data: Vec::new() };
        let bytes = UcmaEvent { kind: event::MULTICAST_JOIN, status: 0, param }.encode(uid, group);
        self.told.push(Told { channel, id: group, new: None, bytes });
        Ok(abi::number(group))
    }

    fn leave(&mut self, number: u32) -> Result<Vec<u8>, i32> {
        let group = self.groups.remove(&number).ok_or(libc::ENOENT)?;
        self.retracted.push(number);
        Ok(abi::number(group.taken))
    }

    /// Notes an event for an identifier's channel.
    pub(super) fn tell(&mut self, number: u32, kind: u32, status: i32, param: UcmaParam) {
        // Before the program has accepted it, it does not know the identifier.
        if let Some(id) = self.ids.get(&number).filter(|id| id.uid != 0) {
            let bytes = UcmaEvent { kind, status, param }.encode(id.uid, number);
            self.told.push(Told { channel: id.channel, id: number, new: None, bytes });
        }
    }
}

fn none((): ()) -> Vec<u8> {
    Vec::new()
}

impl Id {
    pub(super) fn new(uid: u64, channel: ChannelId, ps: u16, datagrams: bool) -> Self {
        Self {
            uid,
            channel,
            ps,
            datagrams,
            stage: Stage::Idle,
            source: None,
            destination: None,
            on_device: false,
            listener: None,
            session: None,
            qkey: UDP_QKEY,
            reuse: false,
            ack_timeout: ACK_TIMEOUT,
            tos: 0,
            taken: 0,
        }
    }

    fn path(&self, host: &Host<'_>) -> Option<UcmaPath> {
        let mtu = match self.session {
            Some(session) if !self.datagrams => session.remote.path_mtu,
            _ => host.mtu,
        };
        Some(UcmaPath {
            source: self.source?.ip(),
            destination: self.destination?.ip(),
            mtu,
            traffic_class: self.tos,
            packet_life_time: self.ack_timeout.saturating_sub(1),
        })
    }

    /// How to address the peer with datagrams.
    pub(super) fn address_vector(&self) -> Option<[u8; 32]> {
        Some(abi::address_vector(crate::port::gid_of(self.destination?.ip()).raw, self.tos).0)
    }

    pub(super) fn params(&self, mtu: u8, psn: u32, param: &ConnParam) -> QpParams {
        QpParams {
            qpn: param.qpn,
            starting_psn: remora_wire::Psn::new(psn),
            path_mtu: mtu,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            retry_count: param.retry_count.min(7),
            rnr_retry: param.rnr_retry.min(7),
            ack_timeout: self.ack_timeout,
            srq: param.srq,
        }
    }
}

//! The commands and answers of the kernel's `rdma_user_cm.h`, version 4, as bytes.
//!
//! A command is a header (number, bytes in, bytes out) and a body; most name an address for their answer. Everything is
//! in the machine's byte order but addresses, ports and keys of the wire.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::port::gid_of;

/// Bytes of private data in a command or event.
pub const PRIVATE_DATA: usize = 256;
/// Bytes of an event.
pub const EVENT: usize = 336;
const HEADER: usize = 8;

const AF_INET: u16 = libc::AF_INET as u16;
const AF_INET6: u16 = libc::AF_INET6 as u16;
/// Addresses that are GIDs.
const AF_IB: u16 = 27;
/// Lengths of socket addresses: `sockaddr_in`, `sockaddr_in6`, `sockaddr_ib`.
const IN: usize = 16;
const IN6: usize = 28;
const IB: usize = 48;

/// Port spaces (annex A11): bytes 4 and 5 of a service id.
pub mod ps {
    pub const IPOIB: u16 = 0x0002;
    pub const TCP: u16 = 0x0106;
    pub const UDP: u16 = 0x0111;
    pub const IB: u16 = 0x013f;
}

/// Numbers of events.
pub mod event {
    pub const ADDR_RESOLVED: u32 = 0;
    pub const ADDR_ERROR: u32 = 1;
    pub const ROUTE_RESOLVED: u32 = 2;
    pub const CONNECT_REQUEST: u32 = 4;
    pub const CONNECT_RESPONSE: u32 = 5;
    pub const UNREACHABLE: u32 = 7;
    pub const REJECTED: u32 = 8;
    pub const ESTABLISHED: u32 = 9;
    pub const DISCONNECTED: u32 = 10;
    pub const MULTICAST_JOIN: u32 = 12;
    pub const TIMEWAIT_EXIT: u32 = 15;
}

/// An address of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    Ip(SocketAddr),
    /// A wildcard of the family of GIDs: librdmacm tries whether the kernel knows it.
    AnyIb,
}

/// What both ends of a connection say about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnParam {
    pub qpn: u32,
    pub qkey: u32,
    pub private_data: Vec<u8>,
    pub srq: bool,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
    /// The rest means something.
    pub valid: bool,
}

/// A command; `id` is the number that the answer to `CreateId` gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UcmaCommand {
    CreateId {
        uid: u64,
        ps: u16,
        qp_type: u8,
    },
    DestroyId {
        id: u32,
    },
    Bind {
        id: u32,
        address: Address,
    },
    ResolveAddr {
        id: u32,
        source: Option<Address>,
        destination: Address,
    },
    ResolveRoute {
        id: u32,
    },
    QueryRoute {
        id: u32,
    },
    QueryAddr {
        id: u32,
    },
    QueryPath {
        id: u32,
    },
    QueryGid {
        id: u32,
    },
    Connect {
        id: u32,
        param: ConnParam,
    },
    Listen {
        id: u32,
    },
    Accept {
        id: u32,
        uid: u64,
        param: ConnParam,
    },
    Reject {
        id: u32,
        reason: u8,
        private_data: Vec<u8>,
    },
    Disconnect {
        id: u32,
    },
    InitQpAttr {
        id: u32,
        state: u32,
    },
    GetEvent,
    /// The option's value lies at an address, of a length.
    SetOption {
        id: u32,
        level: u32,
        name: u32,
        value: (u64, u32),
    },
    Notify {
        id: u32,
        event: u32,
    },
    JoinMulticast {
        id: u32,
        uid: u64,
        address: Address,
    },
    LeaveMulticast {
        id: u32,
    },
    /// To the channel written to, from that of the descriptor.
    MigrateId {
        id: u32,
        from: i32,
    },
}

/// A command and where its answer goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UcmaRequest {
    pub command: UcmaCommand,
    /// Address in the program's memory; 0 if there is no answer.
    pub response: u64,
    /// Bytes that may be written there.
    pub room: usize,
}

/// Reads a command; `Err` is the errno that the kernel gives.
pub fn parse(bytes: &[u8]) -> Result<UcmaRequest, i32> {
    let header = Body(bytes.get(..HEADER).ok_or(libc::EINVAL)?);
    let (number, len, room) = (header.u32(0)?, header.u16(4)?, header.u16(6)?);
    if HEADER + usize::from(len) > bytes.len() {
        return Err(libc::EINVAL);
    }
    let body = Body(&bytes[HEADER..HEADER + usize::from(len)]);
    let at_front = |command| body.u64(0).map(|response| (command, response));
    let (command, response) = match number {
        0 => (UcmaCommand::CreateId { uid: body.u64(0)?, ps: body.u16(16)?, qp_type: body.u8(18)? }, body.u64(8)?),
        1 => at_front(UcmaCommand::DestroyId { id: body.u32(8)? })?,
        2 => (UcmaCommand::Bind { id: body.u32(36)?, address: body.address(8, IN6)? }, 0),
        3 => {
            let source = if body.u16(0)? == 0 { None } else { Some(body.address(0, IN6)?) };
            (UcmaCommand::ResolveAddr { id: body.u32(56)?, source, destination: body.address(28, IN6)? }, 0)
        }
        4 => (UcmaCommand::ResolveRoute { id: body.u32(0)? }, 0),
        5 => at_front(UcmaCommand::QueryRoute { id: body.u32(8)? })?,
        6 => (UcmaCommand::Connect { id: body.u32(272)?, param: body.conn_param(0)? }, 0),
        7 => (UcmaCommand::Listen { id: body.u32(0)? }, 0),
        8 => (UcmaCommand::Accept { id: body.u32(280)?, uid: body.u64(0)?, param: body.conn_param(8)? }, 0),
        9 => {
            let len = usize::from(body.u8(4)?);
            let private_data = body.bytes(8, len)?.to_vec();
            (UcmaCommand::Reject { id: body.u32(0)?, reason: body.u8(5)?, private_data }, 0)
        }
        10 => (UcmaCommand::Disconnect { id: body.u32(0)? }, 0),
        11 => at_front(UcmaCommand::InitQpAttr { id: body.u32(8)?, state: body.u32(12)? })?,
        12 => at_front(UcmaCommand::GetEvent)?,
        14 => {
            let value = (body.u64(0)?, body.u32(20)?);
            (UcmaCommand::SetOption { id: body.u32(8)?, level: body.u32(12)?, name: body.u32(16)?, value }, 0)
        }
        15 => (UcmaCommand::Notify { id: body.u32(0)?, event: body.u32(4)? }, 0),
        16 => {
            let (id, uid, address) = (body.u32(44)?, body.u64(8)?, body.address(16, IN6)?);
            at_front(UcmaCommand::JoinMulticast { id, uid, address })?
        }
        17 => at_front(UcmaCommand::LeaveMulticast { id: body.u32(8)? })?,
        18 => at_front(UcmaCommand::MigrateId { id: body.u32(8)?, from: body.u32(12)? as i32 })?,
        19 => at_front(match (body.u32(8)?, body.u32(12)?) {
            (id, 0) => UcmaCommand::QueryAddr { id },
            (id, 1) => UcmaCommand::QueryPath { id },
            (id, 2) => UcmaCommand::QueryGid { id },
            _ => return Err(libc::ENOSYS),
        })?,
        20 => (UcmaCommand::Bind { id: body.u32(0)?, address: body.address(8, body.u16(4)?.into())? }, 0),
        21 => {
            let (source, destination) = (usize::from(body.u16(8)?), usize::from(body.u16(10)?));
            let source = if source == 0 { None } else { Some(body.address(16, source)?) };
            (UcmaCommand::ResolveAddr { id: body.u32(0)?, source, destination: body.address(144, destination)? }, 0)
        }
        22 => {
            let (id, uid, address) = (body.u32(16)?, body.u64(8)?, body.address(24, body.u16(20)?.into())?);
            at_front(UcmaCommand::JoinMulticast { id, uid, address })?
        }
        // GET_OPTION never did anything.
        13 => return Err(libc::ENOSYS),
        _ => return Err(libc::EINVAL),
    };
    Ok(UcmaRequest { command, response, room: room.into() })
}

struct Body<'a>(&'a [u8]);

impl Body<'_> {
    fn bytes(&self, at: usize, len: usize) -> Result<&[u8], i32> {
        self.0.get(at..at + len).ok_or(libc::EINVAL)
    }

    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], i32> {
        self.bytes(at, N).map(|bytes| bytes.try_into().unwrap_or([0; N]))
    }

    fn u8(&self, at: usize) -> Result<u8, i32> {
        self.array::<1>(at).map(|[byte]| byte)
    }

    fn u16(&self, at: usize) -> Result<u16, i32> {
        self.array(at).map(u16::from_ne_bytes)
    }

    fn u32(&self, at: usize) -> Result<u32, i32> {
        self.array(at).map(u32::from_ne_bytes)
    }

    fn u64(&self, at: usize) -> Result<u64, i32> {
        self.array(at).map(u64::from_ne_bytes)
    }

    /// A socket address in a field of `len` bytes.
    fn address(&self, at: usize, len: usize) -> Result<Address, i32> {
        let port = || self.array(at + 2).map(u16::from_be_bytes);
        match self.u16(at)? {
            AF_INET if len >= IN => Ok(Address::Ip((Ipv4Addr::from(self.array::<4>(at + 4)?), port()?).into())),
            AF_INET6 if len >= IN6 => Ok(Address::Ip((Ipv6Addr::from(self.array::<16>(at + 8)?), port()?).into())),
            AF_IB if len >= IB => match self.bytes(at + 8, 16)?.iter().all(|&byte| byte == 0) {
                true => Ok(Address::AnyIb),
                false => Err(libc::EOPNOTSUPP),
            },
            _ => Err(libc::EINVAL),
        }
    }

    fn conn_param(&self, at: usize) -> Result<ConnParam, i32> {
        let len = usize::from(self.u8(at + 264)?);
        Ok(ConnParam {
            qpn: self.u32(at)?,
            qkey: self.u32(at + 4)?,
            private_data: self.bytes(at + 8, len)?.to_vec(),
            srq: self.u8(at + 265)? != 0,
            responder_resources: self.u8(at + 266)?,
            initiator_depth: self.u8(at + 267)?,
            flow_control: self.u8(at + 268)?,
            retry_count: self.u8(at + 269)?,
            rnr_retry: self.u8(at + 270)?,
            valid: self.u8(at + 271)? != 0,
        })
    }
}

/// Bytes of a fixed length, written field by field.
#[derive(Clone, Copy)]
pub struct Out<const N: usize>(pub [u8; N]);

impl<const N: usize> Out<N> {
    pub fn new() -> Self {
        Self([0; N])
    }

    /// Puts a field's bytes at an offset.
    pub fn put(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn u32(self, at: usize, value: u32) -> Self {
        self.put(at, &value.to_ne_bytes())
    }

    fn u16(self, at: usize, value: u16) -> Self {
        self.put(at, &value.to_ne_bytes())
    }
}

/// A number alone: an id, or how many events were taken.
pub fn number(value: u32) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

/// A socket address and its length.
fn socket_address(address: SocketAddr) -> (Out<IN6>, u16) {
    let port = address.port().to_be_bytes();
    match address.ip() {
        IpAddr::V4(ip) => (Out::new().u16(0, AF_INET).put(2, &port).put(4, &ip.octets()), IN as u16),
        IpAddr::V6(ip) => (Out::new().u16(0, AF_INET6).put(2, &port).put(8, &ip.octets()), IN6 as u16),
    }
}

/// The path between two ports, as far as RoCE has one.
#[derive(Clone, Copy, Debug)]
pub struct UcmaPath {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// Code of the MTU, 1 to 5.
    pub mtu: u8,
    pub traffic_class: u8,
    /// Code of the longest that a packet takes, 4.096 us x 2^n.
    pub packet_life_time: u8,
}

/// 25 Gbit/s, which is what the port says of itself.
const RATE: u8 = 15;
const HOP_LIMIT: u8 = 64;
const PKEY: [u8; 2] = [0xff; 2];
/// Index of the device's own address in its GID table.
const GID_INDEX: u8 = 1;
const PORT: u8 = 1;
/// "Exactly", for MTU, rate and life time.
const EXACTLY: u8 = 2;

impl UcmaPath {
    /// `struct ib_user_path_rec`.
    fn record(&self) -> Out<64> {
        Out::new()
            .put(0, &gid_of(self.destination).raw)
            .put(16, &gid_of(self.source).raw)
            .u32(44, 1)
            .u32(48, self.mtu.into())
            .put(52, &PKEY)
            .put(54, &[HOP_LIMIT, self.traffic_class, 1, 0, EXACTLY, EXACTLY, RATE, EXACTLY, self.packet_life_time])
    }

    /// `struct ib_path_rec_data`: flags and a path record of the wire.
    fn data(&self) -> Out<72> {
        const GMP_PRIMARY_BIDIRECTIONAL: u32 = 1 | 2 | 8 | 32;
        Out::new()
            .u32(0, GMP_PRIMARY_BIDIRECTIONAL)
            .put(16, &gid_of(self.destination).raw)
            .put(32, &gid_of(self.source).raw)
            .put(52, &u32::from(HOP_LIMIT).to_be_bytes())
            .put(56, &[self.traffic_class, 0x81])
            .put(58, &PKEY)
            .put(62, &[EXACTLY << 6 | self.mtu, EXACTLY << 6 | RATE, EXACTLY << 6 | self.packet_life_time])
    }

    /// `struct ib_uverbs_ah_attr`: how to address the destination.
    pub fn address_vector(&self) -> Out<32> {
        address_vector(gid_of(self.destination).raw, self.traffic_class)
    }
}

/// The address vector to a GID.
pub fn address_vector(gid: [u8; 16], traffic_class: u8) -> Out<32> {
    const IS_GLOBAL: u8 = 1;
    Out::new().put(0, &gid).put(20, &[GID_INDEX, HOP_LIMIT, traffic_class]).put(29, &[IS_GLOBAL, PORT])
}

/// Answers to queries end before the number by which the kernel knows a device, as those of kernels do that have no such
/// numbers: librdmacm of rdma-core 39 would look for a device of that number, later ones for one of that GUID.
const QUERY_ADDR: usize = 272;
const QUERY_ROUTE: usize = 200;

/// What the queries tell of an id.
#[derive(Clone, Copy, Debug, Default)]
pub struct UcmaRoute {
    /// GUID of the device, if the id has one.
    pub guid: Option<[u8; 8]>,
    pub source: Option<SocketAddr>,
    pub destination: Option<SocketAddr>,
    pub path: Option<UcmaPath>,
}

impl UcmaRoute {
    /// The GIDs of source and destination, zero where there is none.
    fn gids(&self) -> [[u8; 16]; 2] {
        let gid = |address: Option<SocketAddr>| match (address, self.guid) {
            (Some(address), Some(_)) => gid_of(address.ip()).raw,
            _ => [0; 16],
        };
        [gid(self.source), gid(self.destination)]
    }

    /// The answer to `QueryAddr`.
    pub fn addresses(&self) -> Vec<u8> {
        let mut out = Out::<QUERY_ADDR>::new().put(0, &self.guid.unwrap_or_default());
        if self.guid.is_some() {
            out = out.put(8, &[PORT]).put(10, &PKEY);
        }
        for (address, len_at, at) in [(self.source, 12, 16), (self.destination, 14, 144)] {
            if let Some(address) = address {
                let (bytes, len) = socket_address(address);
                out = out.u16(len_at, len).put(at, &bytes.0);
            }
        }
        out.0.to_vec()
    }

    /// The answer to `QueryGid`.
    pub fn gid_addresses(&self) -> Vec<u8> {
        let ib = |gid: [u8; 16]| Out::<IB>::new().u16(0, AF_IB).put(2, &PKEY).put(8, &gid);
        let [source, destination] = self.gids();
        let mut out = Out::<QUERY_ADDR>::new().put(0, &self.guid.unwrap_or_default());
        out = out.put(8, &[PORT]).put(10, &PKEY).u16(12, IB as u16).u16(14, IB as u16);
        out.put(16, &ib(source).0).put(144, &ib(destination).0).0.to_vec()
    }

    /// The answer to `QueryPath`.
    pub fn paths(&self) -> Vec<u8> {
        match self.path {
            Some(path) => Out::<80>::new().u32(0, 1).put(8, &path.data().0).0.to_vec(),
            None => vec![0; 8],
        }
    }

    /// The answer to `QueryRoute`.
    pub fn route(&self) -> Vec<u8> {
        let [source, destination] = self.gids();
        let record = match self.path {
            Some(path) => path.record(),
            None => Out::new().put(0, &destination).put(16, &source).put(52, &PKEY),
        };
        let mut out = Out::<QUERY_ROUTE>::new().put(0, &self.guid.unwrap_or_default()).put(8, &record.0);
        for (address, at) in [(self.source, 136), (self.destination, 164)] {
            if let Some(address) = address {
                out = out.put(at, &socket_address(address).0.0);
            }
        }
        out.u32(192, self.path.is_some().into()).put(196, &[PORT]).0.to_vec()
    }
}

/// An event without its id.
pub struct UcmaEvent {
    pub kind: u32,
    pub status: i32,
    pub param: UcmaParam,
}

/// What an event carries.
pub enum UcmaParam {
    None,
    Conn(ConnParam),
    /// Queue pair, key and address vector of a peer that takes datagrams, and its private data.
    Ud {
        qpn: u32,
        qkey: u32,
        address_vector: [u8; 32],
        private_data: Vec<u8>,
    },
}

impl UcmaEvent {
    /// `struct rdma_ucm_event_resp`. `uid` is the program's number of the id that the event is told to.
    pub fn encode(&self, uid: u64, id: u32) -> [u8; EVENT] {
        let out = Out::<EVENT>::new().put(0, &uid.to_ne_bytes()).u32(8, id).u32(12, self.kind);
        let out = out.put(16, &self.status.to_ne_bytes());
        match &self.param {
            UcmaParam::None => out.0,
            UcmaParam::Conn(conn) => {
                let len = conn.private_data.len().min(PRIVATE_DATA - 1);
                let resources = [conn.responder_resources, conn.initiator_depth];
                let counts = [conn.flow_control, conn.retry_count, conn.rnr_retry];
                let out = out.u32(20, conn.qpn).u32(24, conn.qkey).put(28, &conn.private_data[..len]);
                out.put(284, &[len as u8, conn.srq.into()]).put(286, &resources).put(288, &counts).0
            }
            UcmaParam::Ud { qpn, qkey, address_vector, private_data } => {
                let len = private_data.len().min(PRIVATE_DATA - 1);
                let out = out.u32(20, *qpn).u32(24, *qkey).put(28, address_vector);
                out.put(60, &private_data[..len]).put(316, &[len as u8]).0
            }
        }
    }
}

/// Masks of `ibv_modify_qp`.
mod mask {
    pub const STATE: u32 = 1;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const DEST_QPN: u32 = 1 << 20;
}

/// The next state of a queue pair, for `ibv_modify_qp`.
pub enum UcmaQpAttr {
    /// INIT of a connected one: what peers may do.
    Init {
        reads: bool,
    },
    /// INIT of one for datagrams.
    InitUd {
        qkey: u32,
    },
    Rtr {
        path: UcmaPath,
        dest_qpn: u32,
        rq_psn: u32,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
    },
    Rts {
        sq_psn: u32,
        timeout: u8,
        retry_count: u8,
        rnr_retry: u8,
        max_rd_atomic: u8,
    },
}

/// States of a queue pair.
pub const QPS_INIT: u32 = 1;
pub const QPS_RTR: u32 = 2;
pub const QPS_RTS: u32 = 3;

impl UcmaQpAttr {
    /// `struct ib_uverbs_qp_attr`.
    pub fn encode(&self) -> Vec<u8> {
        const REMOTE_WRITE: u32 = 2;
        const REMOTE_READ_AND_ATOMIC: u32 = 4 | 8;
        let out = Out::<144>::new();
        let init = |more| out.u32(0, mask::STATE | mask::PKEY_INDEX | mask::PORT | more).u32(4, QPS_INIT);
        let out = match *self {
            Self::Init { reads } => {
                let rights = if reads { REMOTE_WRITE | REMOTE_READ_AND_ATOMIC } else { REMOTE_WRITE };
                init(mask::ACCESS_FLAGS).u32(36, rights).put(133, &[PORT])
            }
            Self::InitUd { qkey } => init(mask::QKEY).u32(20, qkey).put(133, &[PORT]),
            Self::Rtr { path, dest_qpn, rq_psn, max_dest_rd_atomic, min_rnr_timer } => {
                let given = mask::STATE | mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
                out.u32(0, given | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER)
                    .u32(4, QPS_RTR)
                    .u32(12, path.mtu.into())
                    .u32(24, rq_psn)
                    .u32(32, dest_qpn)
                    .put(40, &path.address_vector().0)
                    .put(131, &[max_dest_rd_atomic, min_rnr_timer])
            }
            Self::Rts { sq_psn, timeout, retry_count, rnr_retry, max_rd_atomic } => {
                let given = mask::STATE | mask::SQ_PSN | mask::TIMEOUT | mask::RETRY_CNT;
                out.u32(0, given | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC)
                    .u32(4, QPS_RTS)
                    .u32(28, sq_psn)
                    .put(130, &[max_rd_atomic])
                    .put(134, &[timeout, retry_count, rnr_retry])
            }
        };
        out.0.to_vec()
    }
}

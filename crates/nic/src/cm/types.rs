//! What the user gives the connection manager and gets from it.

use std::net::IpAddr;

use remora_wire::Psn;

#[cfg(doc)]
use super::Cm;
use crate::lane::Lane;

/// Private data a user may put into [`Cm::connect`], bytes: what the RDMA CM header leaves of the
/// REQ's 92.
pub const REQ_PRIVATE_DATA: usize = 56;
/// Private data a user may put into [`Cm::accept`], bytes.
pub const REP_PRIVATE_DATA: usize = 196;
/// Private data a user may put into [`Cm::reject`], bytes.
pub const REJ_PRIVATE_DATA: usize = 148;

/// Private data a user may put into [`Cm::resolve_service`], bytes: what the RDMA CM header leaves of the SIDR REQ's
/// 216.
pub const SIDR_REQ_PRIVATE_DATA: usize = 180;
/// Private data a user may put into [`Cm::answer_service`], bytes.
pub const SIDR_REP_PRIVATE_DATA: usize = 136;

/// The service id of a port in `rdma_cm`'s TCP port space (annex A11).
pub const fn service_id(port: u16) -> u64 {
    port_service_id(0x0106, port)
}

/// The service id of a port in any of `rdma_cm`'s port spaces (annex A11): 0x0106 TCP, 0x0111 UDP, 0x0002 IPoIB.
pub const fn port_service_id(space: u16, port: u16) -> u64 {
    (space as u64) << 16 | port as u64
}

/// Reasons of a REJ (IBTA volume 1, 12.6.7.2), as far as this connection manager sends them.
pub mod reason {
    /// The table of connections, or of half-open ones, is full. With a cookie in the additional information: call again
    /// with it as transaction id, to show that this was heard.
    pub const NO_RESOURCES: u16 = 3;
    /// The sender gave up waiting for an answer.
    pub const TIMEOUT: u16 = 4;
    /// The REQ asks for what this node does not do, such as another RDMA CM header.
    pub const UNSUPPORTED: u16 = 5;
    /// The message names a connection that its receiver does not know.
    pub const INVALID_COMM_ID: u16 = 6;
    /// Nobody listens.
    pub const INVALID_SERVICE_ID: u16 = 8;
    /// Not the reliable connected service.
    pub const INVALID_TRANSPORT: u16 = 9;
    /// The peer's queue pair is still in a connection here; it must wait until that one has gone.
    pub const STALE_CONNECTION: u16 = 10;
    /// The GIDs in the REQ are not the addresses that it travelled between.
    pub const INVALID_GID: u16 = 12;
    /// The path MTU is no MTU, or more than this node takes.
    pub const INVALID_PATH_MTU: u16 = 26;
    /// The REP wants more READs and atomics in flight than the REQ offered.
    pub const RESPONDER_RESOURCES: u16 = 27;
    /// The user said no.
    pub const CONSUMER: u16 = 28;
}

/// Statuses of a SIDR REP (IBTA volume 1, 12.11.2.3).
pub mod sidr_status {
    /// The queue pair takes datagrams.
    pub const VALID: u8 = 0;
    /// Nobody listens.
    pub const UNSUPPORTED: u8 = 1;
    /// The user said no.
    pub const REJECTED: u8 = 2;
}

/// Limits and times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CmConfig {
    /// How long to wait for an answer before sending again, nanoseconds. On the wire it is rounded
    /// up to
    /// 4.096 us x 2^n. `rdma_cm` uses n = 20, 4.3 s.
    pub response_timeout: u64,
    /// How often to send again, at most 15.
    pub max_retries: u8,
    /// How long a closed connection is remembered, nanoseconds: the longest that a packet may live
    /// in the network.
    pub timewait: u64,
    /// The longest that a peer's MRA may put off a retry, nanoseconds.
    pub max_delay: u64,
    /// Largest path MTU taken in a REQ, as its code 1-5 (256-4096 B).
    pub max_path_mtu: u8,
    /// Connections at one time, those in time wait included.
    pub max_connections: usize,
    /// Of these, the passive ones that were never established. A caller who has not shown that he hears what is sent to
    /// his address may have half of them, and one address half of that: what forged REQs can occupy.
    pub max_half_open: usize,
    /// What communication ids begin with. Where several engines are at this address that is this one's lane, as messages
    /// find it by that; otherwise it is for the peer, if that is several: calls whose ids differ there spread over them.
    pub ids: Lane,
    /// What tells peers this process from one before it at the same address: engines of one process say the same. Drawn
    /// if there is none.
    pub instance: Option<u64>,
    /// This channel adapter's GUID, told to peers.
    pub ca_guid: u64,
    /// Answer every REQ with an MRA of this many nanoseconds, as Linux does for its users' programs: they may take
    /// their time. Zero sends none.
    pub request_delay: u64,
    /// A peer with established connections is asked for a sign of life each second, and more often while it owes one. If
    /// it is silent for this long, it is taken for gone and its connections end. Zero asks nobody.
    pub peer_timeout: u64,
    /// How long a REQ waits for a service whose listener has gone no longer ago than this. A program that closes one
    /// listener and opens the next is slower than a near peer, which would take a refusal for the last word. Zero refuses
    /// at once.
    pub listen_grace: u64,
    /// How long a call that is refused because nobody listens is repeated: the other side of `listen_grace`, for peers
    /// that know no such thing. Zero takes the first refusal.
    pub call_grace: u64,
    /// How long a peer's DREQ waits for the user, who has been told, to [disconnect](super::Cm::disconnect) too,
    /// nanoseconds: so the peer hears of the end when this side is done with it, as programs of `rdma_cm` expect. Zero
    /// answers at once.
    pub farewell: u64,
    /// Report [`CmEvent::TimewaitExit`].
    pub timewait_events: bool,
}

impl Default for CmConfig {
    /// 537 ms (n = 17) and 15 retries: a dead peer is noticed after 8.6 s, not after `rdma_cm`'s 69
    /// s.
    fn default() -> CmConfig {
        CmConfig {
            response_timeout: 4096 << 17,
            max_retries: 15,
            timewait: 1_000_000_000,
            max_delay: 60_000_000_000,
            max_path_mtu: 5,
            max_connections: 32_768,
            max_half_open: 1024,
            ids: Lane::ONLY,
            instance: None,
            ca_guid: 0,
            request_delay: 0,
            peer_timeout: 0,
            listen_grace: 0,
            call_grace: 0,
            farewell: 0,
            timewait_events: false,
        }
    }
}

/// A connection: its local communication id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u32);

/// A listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u32);

/// What the two ends tell each other about their queue pairs.
///
/// A REP carries no `path_mtu`, `retry_count` and `ack_timeout`: in [`CmEvent::Established`] on the
/// active side these are
/// the values of the own REQ, which hold for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpParams {
    /// Queue pair number, 2 to 2^24 - 2.
    pub qpn: u32,
    /// PSN of the first request that this queue pair expects: its peer starts to send there, as Linux does.
    pub starting_psn: Psn,
    /// Path MTU code, 1-5 for 256-4096 B.
    pub path_mtu: u8,
    /// READs and atomics that this queue pair answers at one time.
    pub responder_resources: u8,
    /// READs and atomics that this queue pair has in flight at one time.
    pub initiator_depth: u8,
    /// Retries that the receiver of a REQ shall make, 0-7.
    pub retry_count: u8,
    /// Retries after an RNR NAK that the receiver shall make, 0-7; 7 is without end.
    pub rnr_retry: u8,
    /// Time to an acknowledgement, 4.096 us x 2^n, n to 31.
    pub ack_timeout: u8,
    /// Whether the queue pair has a shared receive queue, and so counts no end-to-end credits.
    pub srq: bool,
}

/// Whom to call, see [`Cm::call`].
#[derive(Debug, Clone, Copy)]
pub struct ConnectCall<'a> {
    /// The own address.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
    /// What is asked for, see [`service_id`].
    pub service_id: u64,
    /// The own port, which the peer's user is told. It names nothing here.
    pub source_port: u16,
    /// At most [`REQ_PRIVATE_DATA`] bytes, or [`SIDR_REQ_PRIVATE_DATA`].
    pub private_data: &'a [u8],
}

/// What happened to a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CmEvent {
    /// A peer wants to connect: call [`Cm::accept`] or [`Cm::reject`], and [`Cm::delay`] first if
    /// that takes long.
    ConnectRequest {
        /// The new connection.
        conn: ConnId,
        /// Who was called.
        listener: ListenerId,
        /// The peer's queue pair.
        remote: QpParams,
        /// The own address that the peer called.
        local_ip: IpAddr,
        /// The peer's address.
        remote_ip: IpAddr,
        /// The link that the call came by.
        link: u8,
        /// The peer's port, by its own account.
        source_port: u16,
        /// 56 bytes, zero-padded.
        private_data: Vec<u8>,
    },
    /// The peer agreed to a [`Cm::call`]: bring the queue pair to RTR at least and call [`Cm::ready`], or
    /// [`Cm::disconnect`].
    Response {
        /// The connection.
        conn: ConnId,
        /// The peer's queue pair.
        remote: QpParams,
        /// 196 bytes, zero-padded.
        private_data: Vec<u8>,
    },
    /// The connection stands. On the active side, bring the queue pair to RTS before the next
    /// [`Cm::poll_transmit`].
    Established {
        /// The connection.
        conn: ConnId,
        /// The peer's queue pair.
        remote: QpParams,
        /// That of the REP (196 B) or RTU (224 B), zero-padded; empty after
        /// [`Cm::mark_established`].
        private_data: Vec<u8>,
    },
    /// The peer said no, or gave up.
    Rejected {
        /// The connection, gone.
        conn: ConnId,
        /// See [`reason`]; others are in IBTA volume 1, 12.6.7.2.
        reason: u16,
        /// 148 bytes, zero-padded.
        private_data: Vec<u8>,
    },
    /// The peer does not answer, or the user never answered a [`CmEvent::ConnectRequest`] or [`CmEvent::Response`].
    Unreachable {
        /// The connection, gone.
        conn: ConnId,
    },
    /// Closed by either side. May come without [`CmEvent::Established`], if the peer's RTU was lost
    /// before its DREQ.
    Disconnected {
        /// The connection, gone.
        conn: ConnId,
    },
    /// The time wait of a connection is over that was established or nearly so; see [`CmConfig::timewait_events`].
    TimewaitExit {
        /// The connection, forgotten.
        conn: ConnId,
    },
    /// A peer asks for the queue pair of a datagram service: call [`Cm::answer_service`].
    ServiceRequest {
        /// The request.
        conn: ConnId,
        /// Who was asked.
        listener: ListenerId,
        /// The own address that the peer asked.
        local_ip: IpAddr,
        /// The peer's address.
        remote_ip: IpAddr,
        /// The peer's port, by its own account.
        source_port: u16,
        /// 180 bytes, zero-padded.
        private_data: Vec<u8>,
    },
    /// The answer to [`Cm::resolve_service`].
    ServiceResolved {
        /// The request, gone.
        conn: ConnId,
        /// See [`sidr_status`]; without [`sidr_status::VALID`] there is no queue pair.
        status: u8,
        /// The peer's queue pair.
        qpn: u32,
        /// Its key.
        qkey: u32,
        /// 136 bytes, zero-padded.
        private_data: Vec<u8>,
    },
}

/// Where to send the MAD of [`Cm::poll_transmit`]: from and to QP1, as one UD SEND ONLY.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CmTransmit {
    /// The peer.
    pub to: IpAddr,
    /// The own address.
    pub from: IpAddr,
    /// The link: for an answer that of the question.
    pub link: u8,
}

/// What was not acted on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CmCounters {
    /// MADs that did not parse.
    pub malformed: u64,
    /// MADs that answer nothing that was asked, name a connection with another peer, or make no sense in its state.
    pub unexpected: u64,
    /// Peers asked whether they still know a connection, as somebody called from their end of it.
    pub challenges: u64,
    /// REQs refused without asking the user.
    pub refused: u64,
    /// Answers to unknown connections, dropped because too many waited to be sent.
    pub dropped: u64,
}

/// Why a call was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CmError {
    /// See the message.
    #[error("service id {0:#018x} already has a listener: unlisten first or choose another port")]
    ServiceInUse(u64),
    /// See the message.
    #[error("listener {0:?} does not exist")]
    UnknownListener(ListenerId),
    /// See the message.
    #[error("connection {0:?} does not exist (any more)")]
    UnknownConn(ConnId),
    /// See the message.
    #[error("connection {0:?} is not in a state for this call: see the event it last gave")]
    WrongState(ConnId),
    /// See the message.
    #[error("all {0} connections are in use: close some, or raise CmConfig::max_connections")]
    TableFull(usize),
    /// See the message.
    #[error("queue pair {0} is already in a connection")]
    QpInUse(u32),
    /// See the message.
    #[error("private data of {len} bytes exceeds the {max} that the message holds")]
    PrivateData {
        /// Bytes given.
        len: usize,
        /// Bytes that fit.
        max: usize,
    },
    /// See the message.
    #[error("QpParams::{0} is out of range: see its documentation")]
    Params(&'static str),
    /// See the message.
    #[error("path MTU code {ours} differs from the {theirs} of the request: use the requester's")]
    PathMtu {
        /// Code given to accept.
        ours: u8,
        /// Code in the REQ.
        theirs: u8,
    },
    /// See the message.
    #[error("{0} and {1} are not of one IP version")]
    IpVersion(IpAddr, IpAddr),
}

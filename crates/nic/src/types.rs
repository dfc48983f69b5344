//! The words of the verbs interface: identifiers, work requests, completions and their errors.
//!
//! Names follow the InfiniBand specification, volume 1, chapters 10 and 11.

use std::net::IpAddr;

use remora_memory::{Access, Binding, Pd};
use remora_wire::Psn;

/// Nanoseconds since an epoch that the world chooses. The engine only compares and adds.
pub type Time = u64;

/// Elements that a scatter-gather list may have.
pub(crate) const MAX_SGE: u32 = 32;

/// How many of each an engine may have, and of what size ([`crate::Nic::limits`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicLimits {
    /// Queue pairs.
    pub qp: u32,
    /// Completion queues.
    pub cq: u32,
    /// Shared receive queues.
    pub srq: u32,
    /// Memory regions and windows.
    pub regions: u32,
    /// Completions in a completion queue.
    pub cqe: u32,
    /// Work requests in a send, receive or shared receive queue.
    pub qp_wr: u32,
    /// Elements of a scatter-gather list.
    pub sge: u32,
    /// Bytes of inline data in a send.
    pub inline: u32,
    /// READs and atomics outstanding each way of a queue pair.
    pub rd_atomic: u8,
    /// Bytes in a message.
    pub message: u32,
    /// Multicast groups.
    pub groups: u32,
    /// Queue pairs attached to one multicast group.
    pub group_members: u32,
    /// The largest path MTU, and that of datagrams.
    pub port_mtu: u32,
}

impl Default for NicLimits {
    fn default() -> Self {
        Self {
            qp: 16_384,
            cq: 1 << 16,
            srq: 1 << 16,
            regions: remora_memory::MAX_REGIONS,
            cqe: 1 << 20,
            qp_wr: 1 << 16,
            sge: MAX_SGE,
            inline: 4096,
            // As many as the kernel's software NIC: programs take each side's limit for the other's.
            rd_atomic: 128,
            message: crate::responder::MAX_MESSAGE,
            groups: 8192,
            group_members: 1024,
            port_mtu: 4096,
        }
    }
}

/// What is known of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Its protection domain.
    pub pd: Pd,
    /// Receives that may be posted.
    pub capacity: u32,
    /// Scatter-gather elements per receive.
    pub max_sge: u32,
    /// An event is due when fewer are left; 0 is disarmed.
    pub limit: u32,
}

/// A queue pair's number: 24 bits, unique among live queue pairs of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Qpn(pub u32);

/// A completion queue of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqId(pub u32);

/// A shared receive queue of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqId(pub u32);

/// Where packets go and where they must come from: the address vector of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// The address of this NIC that the peer knows.
    pub local: IpAddr,
    /// The peer's address; packets for the queue pair from elsewhere are dropped.
    pub remote: IpAddr,
    /// The world's number for the link that carries the packets.
    pub link: u8,
}

impl Route {
    /// Whether packets from `remote` to `local` by this link come along it.
    #[inline]
    pub(crate) fn is(&self, link: u8, remote: IpAddr, local: IpAddr) -> bool {
        self.link == link && self.remote == remote && self.local == local
    }
}

/// The service a queue pair gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection: SEND and WRITE that nobody acknowledges; a message that loses a packet is lost.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// Queue pair states (specification, section 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    /// Just created; nothing may be posted.
    Reset,
    /// Receives may be posted; packets are dropped.
    Init,
    /// Ready to receive: incoming packets are processed.
    Rtr,
    /// Ready to send: everything works.
    Rts,
    /// Send queue draining: started work finishes, no new work starts.
    Sqd,
    /// Send queue error (unreliable service only): the receive side goes on.
    Sqe,
    /// Error: everything posted completes as flushed.
    Err,
}

/// One element of a scatter-gather list: `len` bytes at `va` of the region `lkey`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Address within the region.
    pub va: u64,
    /// Bytes.
    pub len: u32,
    /// The region's key.
    pub lkey: u32,
}

/// What a send work request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// Into the peer's next receive.
    Send,
    /// Into the peer's next receive, with four bytes of immediate data.
    SendImm(u32),
    /// Into the peer's next receive; the peer's NIC then invalidates this rkey.
    SendInvalidate(u32),
    /// Into the peer's memory.
    Write {
        /// Remote address.
        va: u64,
        /// Remote key.
        rkey: u32,
    },
    /// Into the peer's memory; then consumes a receive and completes it with the immediate data.
    WriteImm {
        /// Remote address.
        va: u64,
        /// Remote key.
        rkey: u32,
        /// Immediate data.
        imm: u32,
    },
    /// From the peer's memory into the scatter list.
    Read {
        /// Remote address.
        va: u64,
        /// Remote key.
        rkey: u32,
    },
    /// Replaces an aligned 8-byte word if it equals `compare`; its old value lands in the scatter list.
    CompareSwap {
        /// Remote address, a multiple of 8.
        va: u64,
        /// Remote key.
        rkey: u32,
        /// What the word must equal.
        compare: u64,
        /// What it becomes.
        swap: u64,
    },
    /// Adds to an aligned 8-byte word; its old value lands in the scatter list.
    FetchAdd {
        /// Remote address, a multiple of 8.
        va: u64,
        /// Remote key.
        rkey: u32,
        /// What to add, wrapping.
        add: u64,
    },
    /// Takes a key of this side away: that of a window of type 2 which this queue pair has bound, or of a region with
    /// [`Access::INVALIDATE`]. It moves no bytes, and runs when all work requests before it are complete.
    LocalInvalidate(u32),
    /// Binds a memory window of this side; see [`remora_memory::Registry::bind_window`]. It moves no bytes, and runs
    /// when all work requests before it are complete.
    Bind(Binding),
    /// RPC parameters (StRoM section 5.1): at most one MTU, starting with an [`remora_wire::rpc::RpcHeader`].
    Rpc {
        /// Op-code of the kernel.
        op: u64,
    },
    /// The payload stream of the RPC posted just before on the same queue pair.
    RpcWrite {
        /// Op-code of the kernel.
        op: u64,
    },
}

/// Where the bytes of a send come from (or, for READ and atomics, go to).
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Registered memory.
    List(&'a [Sge]),
    /// Copied when posted; the caller's buffer is free at once. Not for READ and atomics.
    Inline(&'a [u8]),
}

/// Whom a datagram goes to (UD only).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdDest {
    /// Address vector.
    pub route: Route,
    /// Destination queue pair.
    pub qpn: u32,
    /// Must equal the destination's queue key.
    pub qkey: u32,
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// The local bytes.
    pub data: Data<'a>,
    /// Ask for a completion even on success.
    pub signaled: bool,
    /// Wait until all earlier READs and atomics are complete.
    pub fence: bool,
    /// Raise a solicited event at the receiver.
    pub solicited: bool,
    /// Destination, for UD.
    pub dest: Option<UdDest>,
}

impl<'a> SendWr<'a> {
    /// A signalled work request with no flags.
    pub fn new(wr_id: u64, op: SendOp, data: Data<'a>) -> Self {
        Self { wr_id, op, data, signaled: true, fence: false, solicited: false, dest: None }
    }

    /// Has no completion if it succeeds.
    pub fn unsignaled(mut self) -> Self {
        self.signaled = false;
        self
    }

    /// Waits until earlier READs and atomics are complete.
    pub fn fenced(mut self) -> Self {
        self.fence = true;
        self
    }

    /// Raises a solicited event at the receiver.
    pub fn solicited(mut self) -> Self {
        self.solicited = true;
        self
    }

    /// Goes to `dest`, as a datagram.
    pub fn to(mut self, dest: UdDest) -> Self {
        self.dest = Some(dest);
        self
    }
}

/// Completion status (specification, section 11.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WcStatus {
    /// Done.
    Success,
    /// The receive's buffers are too short for the message, or a message is over 2 GB.
    LocalLength,
    /// The queue pair met a state that its own rules exclude.
    LocalQpOperation,
    /// A scatter-gather element names memory that the queue pair may not use so.
    LocalProtection,
    /// The queue pair is in the error state: the request was not carried out, or not to its end.
    Flushed,
    /// A memory window cannot be bound so.
    MwBind,
    /// The peer refused the request's form: op-code, length or alignment.
    RemoteInvalidRequest,
    /// The peer refused the key, the address range or the right.
    RemoteAccess,
    /// The peer failed to carry it out.
    RemoteOperation,
    /// No answer after all retries.
    RetryExceeded,
    /// The peer had no receive posted after all retries.
    RnrRetryExceeded,
    /// The peer's response made no sense.
    BadResponse,
}

/// Which kind of work completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WcOpcode {
    /// SEND in any form.
    Send,
    /// WRITE in any form.
    Write,
    /// READ.
    Read,
    /// CMP_SWAP.
    CompareSwap,
    /// FETCH_ADD.
    FetchAdd,
    /// LOCAL_INV.
    LocalInvalidate,
    /// A memory window was bound.
    Bind,
    /// RPC or RPC WRITE was delivered to the peer's NIC (its reply comes as a `RecvWriteImm`).
    Rpc,
    /// A kernel posted to the local NIC has finished.
    LocalRpc,
    /// A receive took a SEND.
    Recv,
    /// A receive was consumed by a WRITE with immediate.
    RecvWriteImm,
}

/// A work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// From the work request.
    pub wr_id: u64,
    /// How it ended. Of the other fields only `wr_id` and `qpn` mean anything after an error.
    pub status: WcStatus,
    /// What ended.
    pub opcode: WcOpcode,
    /// Bytes that arrived (receives, READ, atomics). UD counts the 40 bytes of the GRH.
    pub byte_len: u32,
    /// Immediate data, where the sender gave some.
    pub imm: Option<u32>,
    /// The rkey that a SEND with invalidate took away.
    pub invalidated: Option<u32>,
    /// The local queue pair.
    pub qpn: Qpn,
    /// The sending queue pair (UD receives).
    pub src_qp: u32,
    /// The sender's address (UD receives).
    pub src: Option<IpAddr>,
}

impl WorkCompletion {
    /// A number that says more than the status: for errors that the peer reported, the syndrome of its NAK
    /// (specification, section 9.7.5.2.8); for this side's own, 0x80 and up. 0 is success.
    pub fn vendor_err(&self) -> u32 {
        match self.status {
            WcStatus::Success => 0,
            WcStatus::RemoteInvalidRequest => 0x61,
            WcStatus::RemoteAccess => 0x62,
            WcStatus::RemoteOperation => 0x63,
            WcStatus::RnrRetryExceeded => 0x20,
            WcStatus::RetryExceeded => 0x81,
            WcStatus::BadResponse => 0x82,
            WcStatus::LocalLength => 0x83,
            WcStatus::LocalQpOperation => 0x84,
            WcStatus::LocalProtection => 0x85,
            WcStatus::MwBind => 0x86,
            WcStatus::Flushed => 0x87,
        }
    }
}

/// What a new queue pair needs.
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Service.
    pub kind: QpType,
    /// Its protection domain.
    pub pd: Pd,
    /// Where sends complete.
    pub send_cq: CqId,
    /// Where receives complete.
    pub recv_cq: CqId,
    /// Take receives from here instead of a queue of its own.
    pub srq: Option<SrqId>,
    /// Send work requests that may be outstanding.
    pub max_send_wr: u32,
    /// Receive work requests that may be outstanding (without SRQ).
    pub max_recv_wr: u32,
    /// Scatter-gather elements per send.
    pub max_send_sge: u32,
    /// Scatter-gather elements per receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data per send.
    pub max_inline: u32,
    /// Kernel calls of the peer that may wait or run; more are answered with RNR NAK.
    pub max_rpc: u32,
    /// Signal every send, whatever its flag says.
    pub sq_sig_all: bool,
}

impl QpInit {
    /// Sizes that suit most: 128 sends, 128 receives, 4 elements, 256 inline bytes, 128 kernel calls.
    pub fn new(kind: QpType, pd: Pd, send_cq: CqId, recv_cq: CqId) -> Self {
        Self {
            kind,
            pd,
            send_cq,
            recv_cq,
            srq: None,
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 256,
            max_rpc: 128,
            sq_sig_all: false,
        }
    }
}

/// INIT to RTR: what the responder side needs to know.
#[derive(Clone, Copy, Debug)]
pub struct RtrAttr {
    /// Address vector.
    pub route: Route,
    /// The peer's queue pair.
    pub dest_qp: u32,
    /// The first PSN that the peer will send.
    pub rq_psn: Psn,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096; or 1408, which StRoM's NIC uses (section 7.1: 176 words of
    /// 8 bytes) and for which the specification, and so the connection manager, has no code.
    pub path_mtu: u32,
    /// READs and atomics that the peer may have outstanding here.
    pub max_dest_rd_atomic: u8,
    /// RNR timer code sent in RNR NAKs (0-31; 12 is 640 us).
    pub min_rnr_timer: u8,
}

/// RTR to RTS: what the requester side needs to know.
#[derive(Clone, Copy, Debug)]
pub struct RtsAttr {
    /// The first PSN to send.
    pub sq_psn: Psn,
    /// Local ACK timeout code: 4.096 us x 2^n; 0 waits for ever.
    pub timeout: u8,
    /// Retries after a timeout or sequence NAK (0-7).
    pub retry_count: u8,
    /// Retries after RNR NAK (0-7; 7 is for ever).
    pub rnr_retry: u8,
    /// READs and atomics that may be outstanding to the peer.
    pub max_rd_atomic: u8,
}

impl Default for RtsAttr {
    /// perftest's choices: timeout 14 (67 ms), 7 retries, RNR for ever, 16 READs.
    fn default() -> Self {
        Self { sq_psn: Psn::new(0), timeout: 14, retry_count: 7, rnr_retry: 7, max_rd_atomic: 16 }
    }
}

/// The rights that a peer has through one queue pair, on top of each region's own.
pub const ALL_REMOTE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// Why a call to the engine was refused. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NicError {
    /// The number belongs to no live object, or to one that was destroyed.
    #[error("no such {0}: it was never created or is destroyed already")]
    NoSuch(&'static str),
    /// The object is used by another.
    #[error("{0} is still in use: destroy what uses it first")]
    InUse(&'static str),
    /// The state diagram has no such arrow.
    #[error("a queue pair cannot go from {from:?} to {to:?}")]
    Transition {
        /// Where it is.
        from: QpState,
        /// Where it was to go.
        to: QpState,
    },
    /// Attributes are missing, or do not belong to this arrow of the state diagram.
    #[error("from {from:?} to {to:?} a queue pair needs {missing:?} too, and cannot take {excess:?}")]
    Mask {
        /// Where it is.
        from: QpState,
        /// Where it was to go.
        to: QpState,
        /// Not given.
        missing: crate::QpMask,
        /// Given too much.
        excess: crate::QpMask,
    },
    /// Posting is not allowed in this state.
    #[error("the queue pair is in state {0:?}, in which this cannot be posted")]
    State(QpState),
    /// The queue is full: poll completions and try again.
    #[error("the queue is full: poll completions and try again")]
    Full,
    /// More scatter-gather elements or inline bytes than the queue was created for.
    #[error("{what}: {given} given, at most {limit} allowed")]
    TooLarge {
        /// Of what.
        what: &'static str,
        /// How many.
        given: u64,
        /// The limit.
        limit: u64,
    },
    /// An attribute is outside its range.
    #[error("{what} cannot be {value}: {allowed}")]
    Attribute {
        /// Which one.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What would be right.
        allowed: &'static str,
    },
    /// The operation does not exist on this service, or lacks its destination.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The engine has as many of these as it was configured for.
    #[error("the NIC has no room for another {0}")]
    Exhausted(&'static str),
}

/// Something that happened which no completion tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An armed completion queue has a new completion.
    Completion(CqId),
    /// A completion queue overflowed; a queue pair goes to the error state when it has a completion for it.
    CqOverrun(CqId),
    /// A queue pair went to the error state by itself, and why. To the verbs specification this is an asynchronous
    /// error only if the reason is [`WcStatus::LocalQpOperation`]: others show in a completion or as the next two
    /// events.
    QpFatal(Qpn, WcStatus),
    /// The peer asked for an access that it does not have; [`Event::QpFatal`] follows.
    QpAccessError(Qpn),
    /// The peer sent a request that breaks the protocol's rules; [`Event::QpFatal`] follows.
    QpRequestError(Qpn),
    /// A queue pair with a shared receive queue went to the error state and takes no more receives from it.
    LastWqe(Qpn),
    /// The last started send of a queue pair in SQD has completed, and it was asked to tell.
    SqDrained(Qpn),
    /// A shared receive queue fell under its limit; the limit is disarmed.
    SrqLimit(SrqId),
    /// The first packet has arrived on a queue pair in RTR.
    Established(Qpn),
    /// The connection manager has something to say.
    Cm(crate::cm::CmEvent),
}

/// Counts since the engine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets handed to links.
    pub tx_packets: u64,
    /// Bytes of those packets, BTH to ICRC.
    pub tx_bytes: u64,
    /// Those of them that referred to their payload, in memory that the peer has been lent.
    pub tx_referred: u64,
    /// Packets taken from links.
    pub rx_packets: u64,
    /// Bytes of those packets.
    pub rx_bytes: u64,
    /// Request packets sent again.
    pub retransmits: u64,
    /// Retransmission timers that ran out.
    pub timeouts: u64,
    /// NAKs sent for a gap in the PSNs.
    pub sequence_naks: u64,
    /// RNR NAKs sent.
    pub rnr_naks: u64,
    /// Duplicate requests answered again.
    pub duplicates: u64,
    /// Packets that no live queue pair wants: wrong number, state, address, service or form.
    pub dropped: u64,
    /// Congestion notifications received.
    pub cnps: u64,
    /// Congestion notifications sent.
    pub cnps_sent: u64,
    /// WRITEs of peers that came to their ends here.
    pub writes: u64,
    /// Messages whose last packet left for the first time, by the number of their link; READs and atomics are one each.
    pub tx_messages: [u64; LINKS],
    /// Messages of peers that came to their ends here, by the number of their link.
    pub rx_messages: [u64; LINKS],
}

/// Links that messages are counted for; those with higher numbers count as the last.
pub const LINKS: usize = 4;

impl Counters {
    /// The sum of two engines'.
    pub fn add(&mut self, other: &Self) {
        // All of them, or this does not compile.
        let Self {
            tx_packets,
            tx_bytes,
            tx_referred,
            rx_packets,
            rx_bytes,
            retransmits,
            timeouts,
            sequence_naks,
            rnr_naks,
            duplicates,
            dropped,
            cnps,
            cnps_sent,
            writes,
            tx_messages,
            rx_messages,
        } = *other;
        self.tx_packets += tx_packets;
        self.tx_bytes += tx_bytes;
        self.tx_referred += tx_referred;
        self.rx_packets += rx_packets;
        self.rx_bytes += rx_bytes;
        self.retransmits += retransmits;
        self.timeouts += timeouts;
        self.sequence_naks += sequence_naks;
        self.rnr_naks += rnr_naks;
        self.duplicates += duplicates;
        self.dropped += dropped;
        self.cnps += cnps;
        self.cnps_sent += cnps_sent;
        self.writes += writes;
        self.tx_messages.iter_mut().zip(tx_messages).for_each(|(sum, n)| *sum += n);
        self.rx_messages.iter_mut().zip(rx_messages).for_each(|(sum, n)| *sum += n);
    }

    pub(crate) fn sent(&mut self, link: u8) {
        self.tx_messages[usize::from(link).min(LINKS - 1)] += 1;
    }

    /// So many messages of one packet each, of so many bytes together.
    pub(crate) fn sent_all(&mut self, link: u8, messages: usize, bytes: usize) {
        self.tx_packets += messages as u64;
        self.tx_bytes += bytes as u64;
        self.tx_messages[usize::from(link).min(LINKS - 1)] += messages as u64;
    }

    pub(crate) fn received(&mut self, link: u8) {
        self.rx_messages[usize::from(link).min(LINKS - 1)] += 1;
    }
}

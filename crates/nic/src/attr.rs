//! Queue pair attributes and the state diagram: which attribute must or may be given on which arrow.
//!
//! InfiniBand specification, volume 1, sections 10.3.1 and 11.2.5.2 (table 91), without raw and reliable-datagram
//! service.

use remora_memory::Access;
use remora_wire::Psn;

use crate::nic::Nic;
use crate::post::check_limit;
use crate::qp::QueuePair;
use crate::types::*;

bitflags::bitflags! {
    /// Which attributes are given. The bits are those of libibverbs' `ibv_qp_attr_mask`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct QpMask: u32 {
        /// `state`.
        const STATE = 1;
        /// `cur_state`.
        const CUR_STATE = 1 << 1;
        /// `notify_drained`.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `access`.
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        const PKEY_INDEX = 1 << 4;
        /// `port`.
        const PORT = 1 << 5;
        /// `qkey`.
        const QKEY = 1 << 6;
        /// `av`.
        const AV = 1 << 7;
        /// `path_mtu`.
        const PATH_MTU = 1 << 8;
        /// `timeout`.
        const TIMEOUT = 1 << 9;
        /// `retry_count`.
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// An alternate path, which RoCE does not have: refused.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// The path migration state: taken, and without effect.
        const PATH_MIG_STATE = 1 << 18;
        /// Sizes of the queues: fixed when they are created, so refused.
        const CAP = 1 << 19;
        /// `dest_qp`.
        const DEST_QPN = 1 << 20;
    }
}

/// Where a queue pair's packets go, and how. Links decide on the hop limit and the traffic class: the values given here
/// are kept for queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// The two addresses, and the link.
    pub route: Route,
    /// The port's GID that stands for the local address.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Service level.
    pub sl: u8,
}

impl AddressVector {
    /// A route with the usual rest.
    pub fn new(route: Route) -> Self {
        Self { route, sgid_index: 0, hop_limit: 64, traffic_class: 0, flow_label: 0, sl: 0 }
    }
}

/// The attributes of a queue pair: what [`Nic::modify_qp`] takes and [`Nic::qp_attr`] gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// The state: to go to, or present.
    pub state: QpState,
    /// The state that the caller takes to be the present one.
    pub cur_state: QpState,
    /// Raise [`Event::SqDrained`] when the send queue is drained.
    pub notify_drained: bool,
    /// Rights of the peer through this queue pair.
    pub access: Access,
    /// Index of the partition key: 0, there is one.
    pub pkey_index: u16,
    /// The port: 1, there is one.
    pub port: u8,
    /// Queue key (UD).
    pub qkey: u32,
    /// Address vector.
    pub av: Option<AddressVector>,
    /// Path MTU in bytes.
    pub path_mtu: u32,
    /// Local ACK timeout code: 4.096 us x 2^n; 0 waits for ever.
    pub timeout: u8,
    /// Retries after a timeout or sequence NAK (0-7).
    pub retry_count: u8,
    /// Retries after RNR NAK (0-7; 7 is for ever).
    pub rnr_retry: u8,
    /// The PSN that is expected next.
    pub rq_psn: Psn,
    /// The PSN that is sent next.
    pub sq_psn: Psn,
    /// READs and atomics that may be outstanding to the peer.
    pub max_rd_atomic: u8,
    /// READs and atomics that the peer may have outstanding here.
    pub max_dest_rd_atomic: u8,
    /// RNR timer code sent in RNR NAKs.
    pub min_rnr_timer: u8,
    /// The peer's queue pair.
    pub dest_qp: u32,
    /// In SQD: sends that had started are not all complete (queries only).
    pub sq_draining: bool,
}

impl Default for QpAttr {
    /// A queue pair as it is created.
    fn default() -> Self {
        Self {
            state: QpState::Reset,
            cur_state: QpState::Reset,
            notify_drained: false,
            access: Access::empty(),
            pkey_index: 0,
            port: 0,
            qkey: 0,
            av: None,
            path_mtu: 1024,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            dest_qp: 0,
            sq_draining: false,
        }
    }
}

/// The attributes that must be given on an arrow of the state diagram, and those that may be. `None` if there is no
/// such arrow. `STATE` goes with all of them.
pub fn qp_masks(kind: QpType, from: QpState, to: QpState) -> Option<(QpMask, QpMask)> {
    use QpState::*;
    let none = QpMask::empty();
    let pick = |rc, uc, ud| match kind {
        QpType::Rc => rc,
        QpType::Uc => uc,
        QpType::Ud => ud,
    };
    let (pkey, qkey, access, cur) = (QpMask::PKEY_INDEX, QpMask::QKEY, QpMask::ACCESS_FLAGS, QpMask::CUR_STATE);
    let path = QpMask::ALT_PATH | QpMask::PATH_MIG_STATE;
    let rnr = QpMask::MIN_RNR_TIMER;
    let to_connected = QpMask::AV | QpMask::PATH_MTU | QpMask::DEST_QPN | QpMask::RQ_PSN;
    let requester = QpMask::TIMEOUT | QpMask::RETRY_CNT | QpMask::RNR_RETRY | QpMask::MAX_QP_RD_ATOMIC;
    // What may change whenever the queue pair works.
    let working = pick(cur | access | path | rnr, cur | access | path, cur | qkey);
    Some(match (from, to) {
        (_, Reset) => (none, none),
        (Init | Rtr | Rts | Sqd | Sqe | Err, Err) => (none, none),
        (Reset, Init) => (pkey | QpMask::PORT | pick(access, access, qkey), none),
        (Init, Init) => (none, pkey | QpMask::PORT | pick(access, access, qkey)),
        (Init, Rtr) => (
            pick(to_connected | rnr | QpMask::MAX_DEST_RD_ATOMIC, to_connected, none),
            pkey | pick(QpMask::ALT_PATH | access, QpMask::ALT_PATH | access, qkey),
        ),
        (Rtr, Rts) => (QpMask::SQ_PSN | pick(requester, none, none), working),
        (Rts | Sqd, Rts) => (none, working),
        (Sqe, Rts) if kind != QpType::Rc => (none, pick(none, cur | access, cur | qkey)),
        (Rts, Sqd) => (none, QpMask::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => {
            let (uc, ud) = (QpMask::AV | path | access | pkey, pkey | qkey);
            (none, pick(uc | rnr | requester | QpMask::MAX_DEST_RD_ATOMIC | QpMask::PORT, uc, ud))
        }
        _ => return None,
    })
}

impl Nic {
    /// The attributes of a queue pair; the PSNs are the present ones.
    pub fn qp_attr(&self, qpn: Qpn) -> Result<QpAttr, NicError> {
        let qp = self.qp(qpn)?;
        let sq_draining = qp.state == QpState::Sqd && !qp.req.is_drained();
        let (sq_psn, rq_psn) = (qp.req.next_psn(), qp.resp.expected_psn());
        Ok(QpAttr { state: qp.state, cur_state: qp.state, sq_draining, sq_psn, rq_psn, ..qp.attr })
    }

    /// Changes the attributes that `mask` names, and the state if it is among them (InfiniBand specification, section
    /// 11.2.5.2). On an error nothing has changed.
    pub fn modify_qp(&mut self, qpn: Qpn, attr: &QpAttr, mask: QpMask) -> Result<(), NicError> {
        for (bit, what, value) in [
            (QpMask::MAX_QP_RD_ATOMIC, "READs and atomics", attr.max_rd_atomic),
            (QpMask::MAX_DEST_RD_ATOMIC, "READs and atomics of the peer", attr.max_dest_rd_atomic),
        ] {
            if mask.contains(bit) {
                check_limit(what, value.into(), self.limits().rd_atomic.into())?;
            }
        }
        self.change(qpn, attr, mask)
    }

    /// As [`modify_qp`](Self::modify_qp), but allows as many READs and atomics as a connection manager's message can
    /// name.
    fn change(&mut self, qpn: Qpn, attr: &QpAttr, mask: QpMask) -> Result<(), NicError> {
        let qp = self.qp(qpn)?;
        let (kind, from) = (qp.init.kind, qp.state);
        let to = if mask.contains(QpMask::STATE) { attr.state } else { from };
        if mask.contains(QpMask::CUR_STATE) && attr.cur_state != from {
            return Err(NicError::State(from));
        }
        let (required, optional) = qp_masks(kind, from, to).ok_or(NicError::Transition { from, to })?;
        let (missing, excess) = (required - mask, mask - required - optional - QpMask::STATE);
        if !missing.is_empty() || !excess.is_empty() {
            return Err(NicError::Mask { from, to, missing, excess });
        }
        self.check_values(attr, mask)?;
        match to {
            QpState::Reset => self.to_reset(qpn),
            QpState::Err => self.to_error(qpn),
            _ => self.apply(qpn, to, attr, mask),
        }
    }

    fn check_values(&self, attr: &QpAttr, mask: QpMask) -> Result<(), NicError> {
        let limits = self.limits();
        let wrong = |what, value: u64, allowed| Err(NicError::Attribute { what, value, allowed });
        if mask.contains(QpMask::ALT_PATH) {
            return Err(NicError::Unsupported("there is no alternate path"));
        }
        if mask.contains(QpMask::PKEY_INDEX) && attr.pkey_index != 0 {
            return wrong("the partition key's index", attr.pkey_index.into(), "there is one key: use 0");
        }
        if mask.contains(QpMask::PORT) && attr.port != 1 {
            return wrong("the port", attr.port.into(), "there is one: use 1");
        }
        if mask.contains(QpMask::AV) && attr.av.is_none() {
            return wrong("the address vector", 0, "give one");
        }
        if mask.contains(QpMask::PATH_MTU) {
            let (value, allowed) = (attr.path_mtu.into(), "use 256, 512, 1024, 2048 or 4096 (or StRoM's 1408)");
            if !matches!(attr.path_mtu, 256 | 512 | 1024 | 1408 | 2048 | 4096) {
                return wrong("the path MTU", value, allowed);
            }
            check_limit("bytes of path MTU", value, limits.port_mtu.into())?;
        }
        for (bit, what, value, limit) in [
            (QpMask::MIN_RNR_TIMER, "the RNR timer code", attr.min_rnr_timer, 31u8),
            (QpMask::TIMEOUT, "the ACK timeout code", attr.timeout, 31),
            (QpMask::RETRY_CNT, "the retry count", attr.retry_count, 7),
            (QpMask::RNR_RETRY, "the retry count", attr.rnr_retry, 7),
        ] {
            if mask.contains(bit) {
                check_limit(what, value.into(), limit.into())?;
            }
        }
        Ok(())
    }

    fn apply(&mut self, qpn: Qpn, to: QpState, attr: &QpAttr, mask: QpMask) -> Result<(), NicError> {
        self.with_qp(qpn, |qp, ctx| {
            let from = std::mem::replace(&mut qp.state, to);
            qp.attr.take(attr, mask);
            qp.route = qp.attr.av.map(|av| av.route);
            if mask.contains(QpMask::PATH_MTU) {
                qp.mtu = attr.path_mtu;
            }
            if to == QpState::Rtr {
                qp.resp.start(attr.rq_psn);
            }
            qp.resp.set_resources(qp.attr.max_dest_rd_atomic);
            match (from, to) {
                (QpState::Rtr, QpState::Rts) => qp.req.start(&qp.attr, attr.sq_psn),
                (QpState::Sqe, QpState::Rts) => qp.req.skip_to(qp.sq.head),
                _ => qp.req.adopt(&qp.attr),
            }
            if (from, to) == (QpState::Rts, QpState::Sqd) {
                qp.attr.notify_drained &= mask.contains(QpMask::EN_SQD_ASYNC_NOTIFY);
                qp.req.set_draining();
                qp.after_completion(ctx);
            }
        })
    }

    /// RESET to INIT, with the rights that the peer has through this queue pair and, for UD, the queue key.
    pub fn to_init(&mut self, qpn: Qpn, access: Access, qkey: u32) -> Result<(), NicError> {
        let attr = QpAttr { state: QpState::Init, access, qkey, port: 1, ..QpAttr::default() };
        let given = QpMask::ACCESS_FLAGS | QpMask::QKEY | QpMask::PKEY_INDEX | QpMask::PORT;
        self.go(qpn, &attr, given)
    }

    /// INIT to RTR. A datagram queue pair takes the MTU from here.
    pub fn to_rtr(&mut self, qpn: Qpn, attr: RtrAttr) -> Result<(), NicError> {
        let RtrAttr { route, dest_qp, rq_psn, path_mtu, max_dest_rd_atomic, min_rnr_timer } = attr;
        let av = Some(AddressVector::new(route));
        let attr = QpAttr { state: QpState::Rtr, av, dest_qp, rq_psn, path_mtu, ..QpAttr::default() };
        let attr = QpAttr { max_dest_rd_atomic, min_rnr_timer, ..attr };
        self.check_values(&attr, QpMask::PATH_MTU | QpMask::MIN_RNR_TIMER)?;
        let given = QpMask::AV | QpMask::DEST_QPN | QpMask::RQ_PSN | QpMask::PATH_MTU;
        self.go(qpn, &attr, given | QpMask::MAX_DEST_RD_ATOMIC | QpMask::MIN_RNR_TIMER)?;
        self.with_qp(qpn, |qp, _| qp.mtu = path_mtu)
    }

    /// RTR to RTS; or SQD or SQE back to RTS, for which the attributes are ignored.
    pub fn to_rts(&mut self, qpn: Qpn, attr: RtsAttr) -> Result<(), NicError> {
        let RtsAttr { sq_psn, timeout, retry_count, rnr_retry, max_rd_atomic } = attr;
        let attr = QpAttr { state: QpState::Rts, sq_psn, timeout, retry_count, rnr_retry, ..QpAttr::default() };
        let attr = QpAttr { max_rd_atomic, ..attr };
        let given = QpMask::TIMEOUT | QpMask::RETRY_CNT | QpMask::RNR_RETRY | QpMask::MAX_QP_RD_ATOMIC;
        self.go(qpn, &attr, given | QpMask::SQ_PSN)
    }

    /// RTS to SQD: started sends finish, then [`Event::SqDrained`].
    pub fn to_sqd(&mut self, qpn: Qpn) -> Result<(), NicError> {
        let attr = QpAttr { state: QpState::Sqd, notify_drained: true, ..QpAttr::default() };
        self.go(qpn, &attr, QpMask::EN_SQD_ASYNC_NOTIFY)
    }

    /// Along an arrow to another state, with those of the attributes given that belong to it.
    fn go(&mut self, qpn: Qpn, attr: &QpAttr, given: QpMask) -> Result<(), NicError> {
        let qp = self.qp(qpn)?;
        let (from, to) = (qp.state, attr.state);
        let masks = qp_masks(qp.init.kind, from, to).filter(|_| from != to || to == QpState::Init);
        let (required, optional) = masks.ok_or(NicError::Transition { from, to })?;
        self.change(qpn, attr, given & (required | optional) | QpMask::STATE)
    }

    /// Any state to ERR: everything posted completes as flushed.
    pub fn to_error(&mut self, qpn: Qpn) -> Result<(), NicError> {
        self.with_qp(qpn, |qp, ctx| qp.enter_error(ctx))
    }

    /// Any state to RESET: everything posted vanishes, completions that nobody has taken too, and windows of type 2
    /// that it has bound are unbound.
    pub fn to_reset(&mut self, qpn: Qpn) -> Result<(), NicError> {
        let qp = self.qp(qpn)?;
        let (QpInit { max_rpc, send_cq, recv_cq, .. }, has_windows) = (qp.init, qp.has_windows);
        for cq in [send_cq, recv_cq] {
            self.cq(cq)?.forget(qpn);
        }
        if has_windows {
            self.ctx.regions.registry().unbind_windows(qpn.0);
        }
        if let Some(qp) = self.qps.get_mut(qpn.0) {
            qp.forget_early(&mut self.ctx);
            qp.take_all_back(&self.ctx);
            let (active, entry) = (qp.active, qp.timer_entry);
            **qp = QueuePair::new(qpn, qp.init, self.port_mtu);
            (qp.active, qp.timer_entry) = (active, entry);
        }
        while self.ctx.rpc.drop_waiting(qpn.0).is_some() {}
        // Replies to calls from before go nowhere.
        self.ctx.rpc.open(qpn.0, max_rpc);
        Ok(())
    }
}

impl QpAttr {
    /// Takes over what the mask names.
    fn take(&mut self, from: &QpAttr, mask: QpMask) {
        macro_rules! take {
            ($($bit:ident: $field:ident),*) => { $(if mask.contains(QpMask::$bit) { self.$field = from.$field; })* };
        }
        take!(
            EN_SQD_ASYNC_NOTIFY: notify_drained, ACCESS_FLAGS: access, PKEY_INDEX: pkey_index, PORT: port,
            QKEY: qkey, AV: av, PATH_MTU: path_mtu, TIMEOUT: timeout, RETRY_CNT: retry_count, RNR_RETRY: rnr_retry,
            MAX_QP_RD_ATOMIC: max_rd_atomic, MAX_DEST_RD_ATOMIC: max_dest_rd_atomic, MIN_RNR_TIMER: min_rnr_timer,
            DEST_QPN: dest_qp
        );
        self.dest_qp &= 0xff_ffff;
    }
}

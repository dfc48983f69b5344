//! Posting work requests: their form is checked here, their keys when they are carried out.

use remora_wire::rpc::RpcHeader;

use crate::ctx::Ctx;
use crate::qp::QueuePair;
use crate::queue::{RecvQueue, Source};
use crate::requester::MOST_OUTSTANDING;
use crate::responder::MAX_MESSAGE;
use crate::types::*;

impl QueuePair {
    /// Posts a kernel call without a payload stream.
    pub(crate) fn post_rpc(
        &mut self,
        ctx: &mut Ctx,
        wr_id: u64,
        op: u64,
        header: &RpcHeader,
        params: &[u8],
    ) -> Result<(), NicError> {
        let header = RpcHeader { flags: header.flags & !remora_wire::rpc::FLAG_STREAM, ..*header };
        self.post_rpc_wr(ctx, wr_id, op, &header, params, false)
    }

    /// Posts the parameters' packet. They are copied into a buffer of the NIC's.
    pub(crate) fn post_rpc_wr(
        &mut self,
        ctx: &mut Ctx,
        wr_id: u64,
        op: u64,
        header: &RpcHeader,
        params: &[u8],
        has_stream: bool,
    ) -> Result<(), NicError> {
        let len = RpcHeader::LEN + params.len();
        check_limit("bytes of RPC parameters with their header", len as u64, self.mtu.into())?;
        let mut wr = SendWr::new(wr_id, SendOp::Rpc { op }, Data::Inline(&[]));
        wr.signaled = !has_stream;
        let mut bytes = [0; RpcHeader::LEN + 256];
        if params.len() <= 256 && len <= self.init.max_inline as usize {
            header.emit(&mut bytes);
            bytes[RpcHeader::LEN..len].copy_from_slice(params);
            wr.data = Data::Inline(&bytes[..len]);
            return self.post_element(ctx, &wr, has_stream);
        }
        let mut buffer = ctx.rpc.buffer();
        buffer.resize(RpcHeader::LEN, 0);
        header.emit(&mut buffer);
        buffer.extend_from_slice(params);
        let at = self.sq.tail;
        if let Err(e) = self.post_element(ctx, &wr, has_stream) {
            ctx.rpc.recycle(buffer);
            return Err(e);
        }
        if self.sq.head > at {
            ctx.rpc.recycle(buffer);
        } else {
            let wqe = self.sq.get_mut(at);
            (wqe.len, wqe.source, wqe.buffer) = (len as u32, Source::Buffer, buffer);
        }
        Ok(())
    }

    /// Whether a send may be posted, as far as its form goes.
    #[inline]
    pub(crate) fn check_post(&self, wr: &SendWr<'_>) -> Result<u32, NicError> {
        // As most are.
        if let (SendOp::Write { .. } | SendOp::Send, Data::List([sge])) = (wr.op, wr.data)
            && self.state == QpState::Rts
            && self.init.kind == QpType::Rc
            && self.init.max_send_sge > 0
            && sge.len <= MAX_MESSAGE
        {
            return Ok(sge.len);
        }
        self.check_any_post(wr)
    }

    fn check_any_post(&self, wr: &SendWr<'_>) -> Result<u32, NicError> {
        if matches!(self.state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(NicError::State(self.state));
        }
        check_service(self.init.kind, &wr.op)?;
        let len = match wr.data {
            Data::List(sges) => {
                check_limit("scatter-gather elements", sges.len() as u64, self.init.max_send_sge.into())?;
                sges.iter().map(|s| u64::from(s.len)).sum()
            }
            Data::Inline(bytes) => {
                check_limit("inline bytes", bytes.len() as u64, self.init.max_inline.into())?;
                bytes.len() as u64
            }
        };
        check_limit("bytes in a message", len, MAX_MESSAGE.into())?;
        match wr.op {
            SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
                if matches!(wr.data, Data::Inline(_)) =>
            {
                return Err(NicError::Unsupported("READ and atomics need a scatter list, not inline data"));
            }
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } if len != 8 => {
                return Err(NicError::Attribute { what: "an atomic's length", value: len, allowed: "it is 8 bytes" });
            }
            SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } if self.never_answered() => {
                return Err(NicError::Unsupported("max_rd_atomic is 0: no READ or atomic may be outstanding"));
            }
            SendOp::Read { .. } => {
                let most = u64::from(MOST_OUTSTANDING) * u64::from(self.mtu);
                check_limit("bytes of a READ by packets of this path MTU", len, most)?;
            }
            SendOp::LocalInvalidate(_) | SendOp::Bind(_) if len != 0 => {
                return Err(NicError::Attribute { what: "the length of local work", value: len, allowed: "it is 0" });
            }
            SendOp::Rpc { .. } => check_limit("bytes of RPC parameters", len, self.mtu.into())?,
            _ => {}
        }
        if self.init.kind == QpType::Ud {
            if wr.dest.is_none() {
                return Err(NicError::Unsupported("a datagram needs a destination"));
            }
            check_limit("bytes in a datagram", len, self.mtu.into())?;
        }
        Ok(len as u32)
    }

    /// Posts a send.
    #[inline]
    pub(crate) fn post_send(&mut self, ctx: &mut Ctx, wr: &SendWr<'_>) -> Result<(), NicError> {
        self.post_element(ctx, wr, false)
    }

    #[inline]
    fn post_element(&mut self, ctx: &mut Ctx, wr: &SendWr<'_>, has_stream: bool) -> Result<(), NicError> {
        let len = self.check_post(wr)?;
        if self.sq.user == self.sq.max_user {
            return Err(NicError::Full);
        }
        let at = self.sq.tail;
        let (wqe, sges, inline) = self.sq.parts_mut(at);
        wqe.wr_id = wr.wr_id;
        wqe.op = wr.op;
        wqe.signaled = wr.signaled;
        wqe.fence = wr.fence;
        wqe.solicited = wr.solicited;
        wqe.dest = wr.dest;
        wqe.has_stream = has_stream;
        wqe.len = len;
        wqe.answered = 0;
        match wr.data {
            Data::List(list) => {
                match list {
                    [sge] => sges[0] = *sge,
                    list => sges[..list.len()].copy_from_slice(list),
                }
                wqe.source = Source::List(list.len() as u32);
            }
            Data::Inline(bytes) => {
                inline[..bytes.len()].copy_from_slice(bytes);
                wqe.source = Source::Inline;
            }
        }
        self.sq.tail += 1;
        self.sq.user += 1;
        if matches!(self.state, QpState::Err | QpState::Sqe) {
            self.flush_sends(ctx);
        }
        Ok(())
    }
}

/// The operations of each service (section 11.4.1.1).
fn check_service(kind: QpType, op: &SendOp) -> Result<(), NicError> {
    use SendOp::*;
    match (kind, op) {
        (QpType::Rc, _) | (_, Send | SendImm(_)) => Ok(()),
        (QpType::Uc, Write { .. } | WriteImm { .. } | LocalInvalidate(_) | Bind(_)) => Ok(()),
        (QpType::Uc, _) => {
            Err(NicError::Unsupported("unreliable connections know only SEND, WRITE and work on this side"))
        }
        (QpType::Ud, _) => Err(NicError::Unsupported("datagram queue pairs know only SEND")),
    }
}

pub(crate) fn push_recv(queue: &mut RecvQueue, wr_id: u64, sges: &[Sge]) -> Result<(), NicError> {
    check_limit("scatter-gather elements", sges.len() as u64, queue.max_sge().into())?;
    if queue.len() == queue.capacity() {
        return Err(NicError::Full);
    }
    queue.push(wr_id, sges);
    Ok(())
}

pub(crate) fn check_limit(what: &'static str, given: u64, limit: u64) -> Result<(), NicError> {
    if given > limit { Err(NicError::TooLarge { what, given, limit }) } else { Ok(()) }
}

//! Calls that come as RPC verbs: the NIC's engine holds them until there is room, and sends the replies.

use remora_kernel::{Call, Status};
use remora_nic::{Nic, RpcRequest};

use crate::MAX_REPLY;
use crate::ingress::{Ingress, Release, TakenCall};
use crate::share::Shares;

/// The RPC verbs that a NIC has received.
pub struct RpcVerbs<'a> {
    nic: &'a mut Nic,
}

impl<'a> RpcVerbs<'a> {
    /// Of this NIC.
    #[inline]
    pub fn new(nic: &'a mut Nic) -> Self {
        Self { nic }
    }
}

impl Ingress for RpcVerbs<'_> {
    type Asker = RpcRequest;

    #[inline]
    fn is_waiting(&self) -> bool {
        self.nic.wants_rpc()
    }

    #[inline]
    fn poll(&mut self, shares: &Shares, call: &mut Call) -> Option<TakenCall<RpcRequest>> {
        let mut request = self.nic.poll_rpc_of(|qpn| shares.may_start(shares.client_of(qpn)))?;
        // A kernel makes room for as much as it may reply before it reads: what a peer says is its own affair up to the
        // longest reply that there is. This host's own calls have room here, and are believed.
        let room = if request.local { u32::MAX } else { MAX_REPLY as u32 };
        call.recycle(request.op, request.reply_capacity().min(room));
        (call.qpn, call.anywhere) = (request.qpn, request.anywhere);
        call.pd = self.nic.qp_init(request.qp()).ok().map(|init| init.pd);
        std::mem::swap(&mut call.params, &mut request.params);
        std::mem::swap(&mut call.reply, &mut request.reply);
        let client = shares.client_of(request.qp());
        Some(TakenCall { client, stream: request.stream.then_some(request.id), asker: request })
    }

    #[inline]
    fn reply(&mut self, _: u32, mut request: RpcRequest, status: Status, call: &mut Call) -> Release {
        std::mem::swap(&mut call.params, &mut request.params);
        std::mem::swap(&mut call.reply, &mut request.reply);
        self.nic.rpc_reply(request, status.code());
        Release::Now
    }
}

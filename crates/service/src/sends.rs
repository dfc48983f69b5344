//! Calls that come as SENDs into receive buffers of the host, and are answered by a WRITE with immediate from a reply
//! buffer: that with the call's number.
//!
//! The world posts what [`next_recv`](Sends::next_recv) and [`next_send`](Sends::next_send) say, and tells of receives
//! that completed; when the WRITE of an answer has completed, or could not be posted, it releases the answer's number.

use std::collections::VecDeque;
use std::sync::Arc;

use remora_kernel::{Call, Status};
use remora_memory::{Buffer, Region};
use remora_nic::{Qpn, SendOp, Sge};
use remora_wire::rpc::{RpcHeader, reply_imm};

use crate::host_call::HostCall;
use crate::ingress::{Ingress, Release, TakenCall};
use crate::share::Shares;
use crate::turns::Turns;
use crate::{MAX_REPLY, MAX_REQUEST};

/// The host's ingress.
pub struct Sends {
    requests: (Buffer, Arc<Region>),
    replies: (Buffer, Arc<Region>),
    /// Messages that wait for room.
    waiting: Turns<Message>,
    /// Messages that one client may have waiting.
    most: usize,
    /// Receive buffers to post.
    spent: Vec<u32>,
    outgoing: VecDeque<ReplyWrite>,
}

/// A message in a receive buffer.
#[derive(Clone, Copy)]
struct Message {
    slot: u32,
    qpn: u32,
    len: u32,
}

/// Whom a call to the host answers.
#[derive(Clone, Copy, Debug)]
pub struct HostAsker {
    qpn: Qpn,
    header: RpcHeader,
}

/// An answer that is to be sent.
#[derive(Clone, Copy, Debug)]
pub struct ReplyWrite {
    /// By this queue pair.
    pub qpn: Qpn,
    /// The call's number.
    pub number: u32,
    /// How it ended.
    pub status: Status,
    /// The WRITE with immediate.
    pub op: SendOp,
    /// Its bytes.
    pub sge: Sge,
}

/// A client has more messages waiting than any that keeps to [`MAX_CALLS`](crate::MAX_CALLS) can have. End its
/// connection: it holds receive buffers that others wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a client has over {most} calls to the host waiting")]
pub struct Flood {
    /// How many it may have.
    pub most: usize,
}

impl Sends {
    /// Over receive buffers of [`MAX_REQUEST`] bytes each and reply buffers of [`MAX_REPLY`], of which there are as many
    /// as the call table has room for calls. Regions are all of their buffers.
    pub fn new(requests: (Buffer, Arc<Region>), replies: (Buffer, Arc<Region>)) -> Self {
        let recvs = requests.0.len() / MAX_REQUEST;
        Self {
            requests,
            replies,
            waiting: Turns::default(),
            most: recvs.div_ceil(2),
            spent: (0..recvs as u32).rev().collect(),
            outgoing: VecDeque::with_capacity(recvs),
        }
    }

    /// A receive to post: its work request id and its buffer.
    #[inline]
    pub fn next_recv(&mut self) -> Option<(u64, Sge)> {
        let slot = self.spent.pop()?;
        let region = &self.requests.1;
        let va = region.va() + u64::from(slot) * MAX_REQUEST as u64;
        Some((slot.into(), Sge { va, len: MAX_REQUEST as u32, lkey: region.key() }))
    }

    /// A receive has brought a message of `len` bytes, of the client with this [number](Shares::client_of).
    pub fn received(&mut self, wr_id: u64, qpn: Qpn, client: u32, len: u32) -> Result<(), Flood> {
        let slot = wr_id as u32;
        self.waiting.push(client, Message { slot, qpn: qpn.0, len });
        if self.waiting.of(client) > self.most { Err(Flood { most: self.most }) } else { Ok(()) }
    }

    /// A receive has completed without a message.
    pub fn give_back(&mut self, wr_id: u64) {
        self.spent.push(wr_id as u32);
    }

    /// A queue pair of a client is gone, and the calls by it that wait go too.
    pub fn forget(&mut self, qpn: Qpn, client: u32) {
        let spent = &mut self.spent;
        self.waiting.retain(client, |message| {
            if message.qpn == qpn.0 {
                spent.push(message.slot);
            }
            message.qpn != qpn.0
        });
    }

    /// An answer to send.
    #[inline]
    pub fn next_send(&mut self) -> Option<ReplyWrite> {
        self.outgoing.pop_front()
    }

    /// Reads a call out of its receive buffer. `None` if it is no call: such a message cannot be answered.
    fn parse(&self, message: Message, call: &mut Call) -> Option<RpcHeader> {
        let (buffer, region) = &self.requests;
        let at = message.slot as usize * MAX_REQUEST;
        let len = (message.len as usize).min(MAX_REQUEST).checked_sub(HostCall::FRONT)?;
        let mut front = [0; HostCall::FRONT];
        buffer.read(at, &mut front).ok()?;
        let (header, op) = HostCall::parse_front(&front).ok()?;
        call.recycle(op, header.reply_capacity.min(MAX_REPLY as u32));
        (call.qpn, call.pd) = (message.qpn, Some(region.pd()));
        call.params.resize(len, 0);
        buffer.read(at + HostCall::FRONT, &mut call.params).ok()?;
        Some(header)
    }
}

impl Ingress for Sends {
    type Asker = HostAsker;

    #[inline]
    fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn poll(&mut self, shares: &Shares, call: &mut Call) -> Option<TakenCall<HostAsker>> {
        loop {
            let (client, message) = self.waiting.pop(|client| shares.may_start(client))?;
            let header = self.parse(message, call);
            self.spent.push(message.slot);
            if let Some(header) = header {
                let asker = HostAsker { qpn: Qpn(message.qpn), header };
                return Some(TakenCall { client, stream: None, asker });
            }
        }
    }

    fn reply(&mut self, number: u32, HostAsker { qpn, header }: HostAsker, status: Status, call: &mut Call) -> Release {
        let (buffer, region) = &self.replies;
        let room = header.reply_capacity.min(MAX_REPLY as u32) as usize;
        let (status, reply) = match call.reply.len() <= room {
            true => (status, &call.reply[..]),
            false => (Status::ReplyTooLong, &[][..]),
        };
        let at = number as usize * MAX_REPLY;
        // In bounds: there are as many buffers as numbers, and none is longer than MAX_REPLY.
        let _ = buffer.write(at, reply);
        let sge = Sge { va: region.va() + at as u64, len: reply.len() as u32, lkey: region.key() };
        let imm = reply_imm(header.tag, status.code());
        let op = SendOp::WriteImm { va: header.reply_va, rkey: header.reply_rkey, imm };
        self.outgoing.push_back(ReplyWrite { qpn, number, status, op, sge });
        Release::Later
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call_table::CallTable;
    use proptest::prelude::*;
    use remora_memory::{Access, Registry};

    const RECVS: usize = 8;
    const CALLS: usize = 4;

    fn sends() -> Sends {
        let registry = Registry::new([1; 32]);
        let pd = registry.alloc_pd();
        let memory = |len| {
            let buffer = Buffer::anonymous(len).unwrap();
            let region = registry.register(pd, &buffer, 0, len, None, Access::LOCAL_WRITE).unwrap();
            (buffer, region)
        };
        Sends::new(memory(RECVS * MAX_REQUEST), memory(CALLS * MAX_REPLY))
    }

    /// A message of a client arrives in the next receive; its number.
    fn arrive(sends: &mut Sends, client: u32, message: &[u8]) -> Result<(), Flood> {
        let (id, sge) = sends.next_recv().expect("a receive");
        sends.requests.1.write(sge.va, message).unwrap();
        sends.received(id, Qpn(client), client, message.len() as u32)
    }

    fn message(tag: u32, op: u64, capacity: u32) -> Vec<u8> {
        let header = RpcHeader { reply_va: 1 << 40, reply_rkey: 9, reply_capacity: capacity, tag, flags: 0 };
        let mut out = Vec::new();
        HostCall { header, op, params: &[1, 2] }.encode(&mut out).unwrap();
        out
    }

    #[test]
    fn calls_are_read_answered_and_their_buffers_given_back() {
        let (mut sends, mut table) = (sends(), CallTable::new(CALLS));
        arrive(&mut sends, 5, &message(77, 3, 4)).unwrap();
        let mut call = table.take(0, &mut sends).unwrap();
        assert_eq!((call.op, call.qpn, &call.params[..], call.reply_limit), (3, 5, &[1, 2][..], 4));
        assert_eq!(call.pd, Some(sends.requests.1.pd()));
        call.reply.extend_from_slice(b"abcd");
        table.finish(&mut sends, call, Status::Ok);
        let write = sends.next_send().unwrap();
        assert_eq!((write.qpn, write.sge.len), (Qpn(5), 4));
        let imm = reply_imm(77, 0);
        assert_eq!(write.op, SendOp::WriteImm { va: 1 << 40, rkey: 9, imm });
        let mut reply = [0; 4];
        sends.replies.1.read(write.sge.va, &mut reply).unwrap();
        assert_eq!((&reply, table.under_way()), (b"abcd", 1));
        table.release(write.number);
        assert_eq!(table.under_way(), 0);
        assert_eq!(std::iter::from_fn(|| sends.next_recv()).count(), RECVS);
    }

    #[test]
    fn an_answer_that_its_caller_has_no_room_for_is_refused() {
        let (mut sends, mut table) = (sends(), CallTable::new(CALLS));
        arrive(&mut sends, 5, &message(1, 3, 4)).unwrap();
        let mut call = table.take(0, &mut sends).unwrap();
        call.reply.extend_from_slice(b"abcde");
        table.finish(&mut sends, call, Status::Ok);
        let write = sends.next_send().unwrap();
        let imm = reply_imm(1, Status::ReplyTooLong.code());
        assert_eq!((write.sge.len, write.op), (0, SendOp::WriteImm { va: 1 << 40, rkey: 9, imm }));
        table.release(write.number);
        // A reason is cut to fit instead.
        arrive(&mut sends, 5, &message(2, 3, 4)).unwrap();
        let call = table.take(0, &mut sends).unwrap();
        table.refuse(&mut sends, call, "no such thing");
        let write = sends.next_send().unwrap();
        let imm = reply_imm(2, Status::BadParams.code());
        assert_eq!((write.sge.len, write.op), (4, SendOp::WriteImm { va: 1 << 40, rkey: 9, imm }));
    }

    #[test]
    fn clients_take_turns_and_one_that_floods_is_told_of() {
        let (mut sends, mut table) = (sends(), CallTable::new(CALLS));
        for n in 0..4 {
            assert_eq!(arrive(&mut sends, 1, &message(n, 10, 0)), Ok(()));
        }
        assert_eq!(arrive(&mut sends, 2, &message(0, 20, 0)), Ok(()));
        let ops: Vec<_> = std::iter::from_fn(|| table.take(0, &mut sends)).map(|call| call.op).collect();
        // Of room for four the first may have two; the other's one is not behind all of its.
        assert_eq!(ops, [10, 20, 10]);
        for n in 0..2 {
            assert_eq!(arrive(&mut sends, 1, &message(n, 10, 0)), Ok(()));
        }
        assert_eq!(arrive(&mut sends, 1, &message(0, 10, 0)), Err(Flood { most: 4 }));
        sends.forget(Qpn(2), 1);
        assert!(sends.is_waiting(), "another queue pair of the same client");
        sends.forget(Qpn(1), 1);
        assert!(!sends.is_waiting());
        assert_eq!(std::iter::from_fn(|| sends.next_recv()).count(), RECVS);
    }

    proptest! {
        #[test]
        fn any_message_is_a_call_or_dropped_and_no_receive_is_lost(
            messages in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..80), any::<u32>(), any::<bool>()), 0..40),
        ) {
            let (mut sends, mut table) = (sends(), CallTable::new(CALLS));
            for (bytes, claimed, known) in messages {
                let mut bytes = bytes;
                if known && bytes.len() >= RpcHeader::LEN {
                    bytes[16] = 0;
                    bytes[20..24].fill(0);
                }
                let (id, sge) = sends.next_recv().expect("all came back");
                sends.requests.1.write(sge.va, &bytes).unwrap();
                // A length that is not the message's must not lead out of its buffer either.
                let _ = sends.received(id, Qpn(claimed % 5), claimed % 3, if known { bytes.len() as u32 } else { claimed });
                if let Some(call) = table.take(0, &mut sends) {
                    prop_assert!(call.params.len() + HostCall::FRONT <= MAX_REQUEST);
                    table.finish(&mut sends, call, Status::UnknownOp);
                    let write = sends.next_send().expect("an answer");
                    table.release(write.number);
                }
                prop_assert_eq!(table.under_way(), 0);
            }
            prop_assert_eq!(std::iter::from_fn(|| sends.next_recv()).count(), RECVS);
        }
    }
}

//! One call of a kernel: what goes in, what comes out, and how it ended.

use crate::memory::Fault;
use crate::stream::{Feed, Stream};
use remora_memory::Pd;
use std::ops::{Deref, DerefMut};

/// How a call ended. The codes are those of the RPC reply on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The reply is whole.
    Ok,
    /// The structure does not hold what was asked for.
    NotFound,
    /// No kernel has this op-code.
    UnknownOp,
    /// The parameters do not make sense to the kernel.
    BadParams,
    /// The kernel touched memory that its caller may not.
    AccessDenied,
    /// The kernel made as many memory accesses as it may; a cycle in the data does this.
    StepLimit,
    /// The kernel moved as many bytes as it may.
    ByteLimit,
    /// The reply is longer than the room that the caller has for it.
    ReplyTooLong,
    /// The object changed during every try to read it.
    Inconsistent,
    /// The kernel failed.
    Trapped,
    /// The place is full; try again.
    Busy,
    /// The call took longer than the place lets one take: it computed for too long, or its payload did not come.
    Overdue,
    /// A status of the kernel's own, from 11 on.
    Other(u8),
}

impl Status {
    /// The connection went away during the call.
    pub const LOST: Status = Status::Other(255);

    /// The code on the wire.
    pub fn code(self) -> u8 {
        match self {
            Status::Ok => 0,
            Status::NotFound => 1,
            Status::UnknownOp => 2,
            Status::BadParams => 3,
            Status::AccessDenied => 4,
            Status::StepLimit => 5,
            Status::ByteLimit => 6,
            Status::ReplyTooLong => 7,
            Status::Inconsistent => 8,
            Status::Trapped => 9,
            Status::Busy => 10,
            Status::Overdue => 15,
            Status::Other(code) => code,
        }
    }

    /// The status with this code.
    pub fn from_code(code: u8) -> Status {
        match code {
            0 => Status::Ok,
            1 => Status::NotFound,
            2 => Status::UnknownOp,
            3 => Status::BadParams,
            4 => Status::AccessDenied,
            5 => Status::StepLimit,
            6 => Status::ByteLimit,
            7 => Status::ReplyTooLong,
            8 => Status::Inconsistent,
            9 => Status::Trapped,
            10 => Status::Busy,
            15 => Status::Overdue,
            _ => Status::Other(code),
        }
    }
}

impl From<Fault> for Status {
    fn from(fault: Fault) -> Status {
        match fault {
            Fault::Access => Status::AccessDenied,
            Fault::Misaligned => Status::BadParams,
            Fault::StepLimit => Status::StepLimit,
            Fault::ByteLimit => Status::ByteLimit,
            Fault::Lost => Status::LOST,
        }
    }
}

/// One call of a kernel: a pointer, since calls pass through many hands. Keep it after the call and
/// [`recycle`](Call::recycle) it: its buffers then serve the next call without allocating.
#[derive(Debug, Default)]
pub struct Call(Box<CallFields>);

/// The fields of a [`Call`].
#[derive(Debug, Default)]
pub struct CallFields {
    /// Which kernel.
    pub op: u64,
    /// The caller's own mark, which nothing here looks at.
    pub tag: u64,
    /// The queue pair it came by.
    pub qpn: u32,
    /// Whose share of the place's turns it takes: a small number.
    pub client: u32,
    /// The caller leaves it to the node whether its NIC or its host runs it.
    pub anywhere: bool,
    /// Bytes that the caller has room for.
    pub reply_limit: u32,
    /// The caller's protection domain: at the host, a kernel reaches nothing outside of it.
    pub pd: Option<Pd>,
    /// The kernel's parameters, which it leaves as they are.
    pub params: Vec<u8>,
    /// The answer; of use only with [`Status::Ok`].
    pub reply: Vec<u8>,
    stream: Stream,
}

impl Call {
    /// A call of kernel `op`.
    pub fn new(op: u64, params: &[u8], reply_limit: u32) -> Call {
        let mut call = Call::default();
        (call.op, call.reply_limit) = (op, reply_limit);
        call.params.extend_from_slice(params);
        call
    }

    /// Makes this a call of kernel `op` with no parameters, no reply and no stream, as if new.
    pub fn recycle(&mut self, op: u64, reply_limit: u32) {
        (self.op, self.reply_limit) = (op, reply_limit);
        (self.tag, self.qpn, self.client, self.pd, self.anywhere) = (0, 0, 0, None, false);
        self.params.clear();
        self.reply.clear();
        self.stream.close();
    }

    /// Gives memory back that parameters or reply took, if that is more than `most` bytes.
    pub fn shrink(&mut self, most: usize) {
        let CallFields { params, reply, .. } = &mut *self.0;
        [params, reply]
            .into_iter()
            .filter(|bytes| bytes.capacity() > most)
            .for_each(|bytes| drop(std::mem::take(bytes)));
    }

    /// Gives the call an input stream that holds at most `capacity` bytes not yet read.
    pub fn open_stream(&mut self, capacity: usize) -> Feed {
        self.stream.open(capacity)
    }

    /// The input stream, which is at its end from the start unless one was opened.
    pub fn stream(&mut self) -> &mut Stream {
        &mut self.stream
    }

    /// Bytes by which the reply may grow.
    #[inline]
    pub(crate) fn reply_room(&self) -> usize {
        (self.reply_limit as usize).saturating_sub(self.reply.len())
    }

    /// Appends `len` bytes to the reply and returns them, to be filled in.
    #[inline]
    pub fn grow_reply(&mut self, len: usize) -> Result<&mut [u8], Status> {
        if len > self.reply_room() {
            return Err(Status::ReplyTooLong);
        }
        let start = self.reply.len();
        self.reply.resize(start + len, 0);
        Ok(&mut self.reply[start..])
    }
}

impl Deref for Call {
    type Target = CallFields;

    #[inline]
    fn deref(&self) -> &CallFields {
        &self.0
    }
}

impl DerefMut for Call {
    #[inline]
    fn deref_mut(&mut self) -> &mut CallFields {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_its_status() {
        for code in 0..=255 {
            assert_eq!(Status::from_code(code).code(), code);
        }
    }

    #[test]
    fn replies_stay_within_their_limit() {
        let mut call = Call::new(1, &[], 10);
        call.grow_reply(6).unwrap().fill(1);
        assert_eq!(call.grow_reply(5), Err(Status::ReplyTooLong));
        assert_eq!(call.grow_reply(usize::MAX), Err(Status::ReplyTooLong));
        call.grow_reply(4).unwrap().fill(2);
        assert_eq!(call.reply, [1, 1, 1, 1, 1, 1, 2, 2, 2, 2]);
    }
}

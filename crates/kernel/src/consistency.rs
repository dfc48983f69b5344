//! The consistency kernel: reads an object until its checksum holds (StRoM section 6.3).
//!
//! An object is a payload of any length and the CRC-64/XZ of that payload, little-endian. Its
//! writer changes it in place with no lock, so a read may catch it half-written.

use crate::call::{Call, Status};
use crate::memory::{Memory, PIECE};

/// Bytes of the count of tries at the end of the reply.
pub const TRIES_BYTES: usize = 4;
const CRC_BYTES: usize = 8;

/// The CRC-64/XZ of `bytes`.
pub fn crc64(bytes: &[u8]) -> u64 {
    let mut digest = crc64fast::Digest::new();
    digest.write(bytes);
    digest.sum64()
}

/// Parameters. The reply is the payload and, as a `u32`, the number of reads that it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsistencyParams {
    /// Address of the object.
    pub address: u64,
    /// Key of the region that it lies in.
    pub key: u32,
    /// Bytes of the object, checksum included.
    pub len: u32,
    /// Reads before the kernel gives up with [`Status::Inconsistent`]; at least 1.
    pub max_tries: u32,
}

impl ConsistencyParams {
    /// Bytes on the wire.
    pub const LEN: usize = 20;

    /// To bytes: the fields in order, little-endian.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.key.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16..].copy_from_slice(&self.max_tries.to_le_bytes());
        bytes
    }

    /// From bytes, if they make sense.
    pub fn decode(bytes: &[u8]) -> Result<Self, Status> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().map_err(|_| Status::BadParams)?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let params = ConsistencyParams {
            address: u64::from(word(0)) | u64::from(word(4)) << 32,
            key: word(8),
            len: word(12),
            max_tries: word(16),
        };
        if (params.len as usize) < CRC_BYTES || params.max_tries == 0 {
            return Err(Status::BadParams);
        }
        Ok(params)
    }
}

pub(crate) async fn run<M: Memory>(memory: &M, call: &mut Call) -> Result<(), Status> {
    let params = ConsistencyParams::decode(&call.params)?;
    let payload = params.len as usize - CRC_BYTES;
    if payload + TRIES_BYTES > call.reply_limit as usize {
        return Err(Status::ReplyTooLong);
    }
    let (len, reply) = (params.len as usize, &mut call.reply);
    // The room is made before the reads that pay, and its length is the caller's word.
    memory.afford(len)?;
    reply.reserve_exact(len);
    for tries in 1..=params.max_tries {
        let mut digest = crc64fast::Digest::new();
        for from in (0..len).step_by(PIECE) {
            let to = len.min(from + PIECE);
            reply.resize(reply.len().max(to), 0);
            let piece = &mut reply[from..to];
            memory.read(params.key, params.address.wrapping_add(from as u64), piece).await?;
            digest.write(&piece[..payload.saturating_sub(from).min(to - from)]);
            if to - from >= PIECE / 16 {
                memory.spend((to - from) as u64 / 4);
            }
        }
        if digest.sum64().to_le_bytes() == reply[payload..] {
            reply.truncate(payload);
            reply.extend_from_slice(&tries.to_le_bytes());
            return Ok(());
        }
    }
    Err(Status::Inconsistent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Counted, run_on};
    use crate::{Limited, Limits, op};
    use std::task::{Context, Poll, Waker};

    const PARAMS: ConsistencyParams = ConsistencyParams { address: 64, key: 7, len: 108, max_tries: 5 };

    fn object(payload: &[u8]) -> Vec<u8> {
        [payload, &crc64(payload).to_le_bytes()].concat()
    }

    #[test]
    fn a_whole_object_takes_one_read() {
        let memory = Counted::new(4096);
        memory.put(64, &object(&[3; 100]));
        let (status, reply) = run_on(&memory, op::CONSISTENCY, &PARAMS.encode());
        assert_eq!((status, memory.reads.get()), (Status::Ok, 1));
        assert_eq!(reply, [&[3; 100][..], &1u32.to_le_bytes()].concat());
    }

    #[test]
    fn a_torn_object_is_read_again_until_it_is_whole() {
        let memory = Counted::new(4096);
        let (old, new) = (object(&[3; 100]), object(&[4; 100]));
        for (mends_after, expect) in [(1, Status::Ok), (4, Status::Ok), (5, Status::Inconsistent)] {
            memory.reads.set(0);
            memory.put(64, &[&old[..50], &new[50..]].concat());
            memory.after(mends_after, 64, new.clone());
            let (status, reply) = run_on(&memory, op::CONSISTENCY, &PARAMS.encode());
            assert_eq!(status, expect);
            if status == Status::Ok {
                let tries = mends_after + 1;
                assert_eq!(reply, [&[4; 100][..], &tries.to_le_bytes()].concat());
                assert_eq!(memory.reads.get(), tries);
            }
        }
    }

    #[test]
    fn no_room_is_made_for_an_object_that_is_not_paid_for() {
        const MOST: usize = 1 << 16;
        let memory = Counted::new(4096);
        for limits in [Limits { bytes: MOST as u64, ..Limits::default() }, Limits { steps: 0, ..Limits::default() }] {
            let params = ConsistencyParams { len: u32::MAX / 2, ..PARAMS };
            let mut call = Call::new(op::CONSISTENCY, &params.encode(), u32::MAX);
            let limited = Limited::new(&memory, limits);
            let ended = Box::pin(run(&limited, &mut call)).as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let expected = if limits.steps == 0 { Status::StepLimit } else { Status::ByteLimit };
            assert_eq!(ended, Poll::Ready(Err(expected)));
            assert!(call.reply.capacity() < MOST, "room for {} bytes", call.reply.capacity());
        }
    }

    #[test]
    fn empty_payloads_and_bad_parameters() {
        let memory = Counted::new(4096);
        memory.put(64, &object(&[]));
        let run = |params: ConsistencyParams| run_on(&memory, op::CONSISTENCY, &params.encode());
        assert_eq!(run(ConsistencyParams { len: 8, ..PARAMS }), (Status::Ok, vec![1, 0, 0, 0]));
        assert_eq!(run(ConsistencyParams { len: 7, ..PARAMS }).0, Status::BadParams);
        assert_eq!(run(ConsistencyParams { max_tries: 0, ..PARAMS }).0, Status::BadParams);
        assert_eq!(run(ConsistencyParams { address: 4000, ..PARAMS }).0, Status::AccessDenied);
        assert_eq!(run(ConsistencyParams { len: u32::MAX, ..PARAMS }).0, Status::ReplyTooLong);
        assert_eq!(run_on(&memory, op::CONSISTENCY, &[0; 19]).0, Status::BadParams);
    }
}

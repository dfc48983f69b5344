//! The sequencer: a word from which every caller takes numbers that nobody else gets.

use crate::call::{Call, Status};
use crate::memory::Memory;

/// Parameters. The reply is the first of the numbers; the others follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequencerParams {
    /// Address of the word, a multiple of 8.
    pub address: u64,
    /// Key of its region.
    pub key: u32,
    /// How many numbers to take, at least 1: one addition serves as many callers as wait.
    pub count: u32,
}

impl SequencerParams {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// To bytes: the fields in order, little-endian.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.key.to_le_bytes());
        bytes[12..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    /// From bytes, if they make sense.
    pub fn decode(bytes: &[u8]) -> Result<Self, Status> {
        let (word, rest) = bytes.split_first_chunk().ok_or(Status::BadParams)?;
        let (key, rest) = rest.split_first_chunk().ok_or(Status::BadParams)?;
        let count = u32::from_le_bytes(rest.try_into().map_err(|_| Status::BadParams)?);
        if count == 0 {
            return Err(Status::BadParams);
        }
        Ok(SequencerParams { address: u64::from_le_bytes(*word), key: u32::from_le_bytes(*key), count })
    }
}

pub(crate) async fn run<M: Memory>(memory: &M, call: &mut Call) -> Result<(), Status> {
    let SequencerParams { address, key, count } = SequencerParams::decode(&call.params)?;
    // Room first: numbers that nobody hears of are lost.
    call.grow_reply(8)?;
    let first = memory.fetch_add(key, address, count.into()).await?;
    call.reply.copy_from_slice(&first.to_le_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op;
    use crate::testing::{Counted, run_on};

    #[test]
    fn numbers_are_given_once() {
        let memory = Counted::new(4096);
        let params = |count| SequencerParams { address: 64, key: 7, count };
        for (count, first) in [(1, 0u64), (64, 1), (1, 65), (u32::MAX, 66)] {
            assert_eq!(SequencerParams::decode(&params(count).encode()), Ok(params(count)));
            let (status, reply) = run_on(&memory, op::SEQUENCER, &params(count).encode());
            assert_eq!((status, reply), (Status::Ok, first.to_le_bytes().to_vec()));
        }
        for (params, status) in [
            (params(0), Status::BadParams),
            (SequencerParams { address: 65, ..params(1) }, Status::BadParams),
            (SequencerParams { key: 0, ..params(1) }, Status::AccessDenied),
        ] {
            assert_eq!(run_on(&memory, op::SEQUENCER, &params.encode()).0, status, "{params:?}");
        }
        assert_eq!(run_on(&memory, op::SEQUENCER, &[0; 15]).0, Status::BadParams);
    }
}

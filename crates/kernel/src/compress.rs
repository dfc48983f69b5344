//! A pair of kernels: one compresses on the sender's NIC, the other restores on the receiver's (StRoM, section 3.5).
//!
//! Between them travels a sequence of blocks: raw length u32 and coded length u32, little-endian, then an LZ4 block.
//! Equal lengths mean that the bytes did not shrink and stand as they are.

use crate::call::{Call, Status};
use crate::memory::Memory;

/// Raw bytes of a block, at most.
pub const BLOCK: usize = 64 << 10;
/// The restored bytes need more room than the destination has. None is written behind it.
pub const DESTINATION_FULL: Status = Status::Other(14);
const HEADER: usize = 8;

/// Parameters of both kernels: where raw bytes are, or go to. 20 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressParams {
    /// Key of the region.
    pub key: u32,
    /// Address of the first byte.
    pub va: u64,
    /// Bytes to compress, or room for restored ones.
    pub len: u64,
}

impl CompressParams {
    /// Bytes of the parameters.
    pub const LEN: usize = 20;

    /// Key u32, address u64, length u64, little-endian.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.key.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.va.to_le_bytes());
        bytes[12..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, Status> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().map_err(|_| Status::BadParams)?;
        let long = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap_or(&[0; 8]));
        Ok(CompressParams { key: long(0) as u32, va: long(4), len: long(12) })
    }
}

/// Replies with the blocks of what memory holds.
pub(crate) async fn compress<M: Memory>(memory: &M, call: &mut Call) -> Result<(), Status> {
    let CompressParams { key, mut va, mut len } = CompressParams::decode(&call.params)?;
    let mut raw = vec![0; BLOCK];
    let mut coded = vec![0; lz4_flex::block::get_maximum_output_size(BLOCK)];
    while len > 0 {
        let raw = &mut raw[..len.min(BLOCK as u64) as usize];
        memory.read(key, va, raw).await?;
        // Two nanoseconds a byte.
        memory.spend(4 * raw.len() as u64);
        let size = lz4_flex::block::compress_into(raw, &mut coded).map_err(|_| Status::Trapped)?;
        let coded = if size < raw.len() { &coded[..size] } else { &*raw };
        let reply = call.grow_reply(HEADER + coded.len())?;
        reply[..4].copy_from_slice(&(raw.len() as u32).to_le_bytes());
        reply[4..HEADER].copy_from_slice(&(coded.len() as u32).to_le_bytes());
        reply[HEADER..].copy_from_slice(coded);
        (va, len) = (va.wrapping_add(raw.len() as u64), len - raw.len() as u64);
    }
    Ok(())
}

/// Restores blocks that arrive, and replies with the number of raw bytes, `u64`.
pub(crate) async fn decompress<M: Memory>(memory: &M, call: &mut Call) -> Result<(), Status> {
    let CompressParams { key, va, len } = CompressParams::decode(&call.params)?;
    let (mut raw, mut done) = (vec![0; BLOCK], 0);
    while let Some(&[r0, r1, r2, r3, c0, c1, c2, c3]) =
        call.stream().next_exact(HEADER).await?.and_then(<[u8]>::first_chunk)
    {
        let raw_len = u32::from_le_bytes([r0, r1, r2, r3]) as usize;
        let coded_len = u32::from_le_bytes([c0, c1, c2, c3]) as usize;
        if raw_len == 0 || raw_len > BLOCK || coded_len > raw_len {
            return Err(Status::BadParams);
        }
        if done + raw_len as u64 > len {
            return Err(DESTINATION_FULL);
        }
        let coded = call.stream().next_exact(coded_len).await?.ok_or(Status::BadParams)?;
        memory.earn(HEADER + coded_len);
        memory.spend(raw_len as u64);
        let raw = &mut raw[..raw_len];
        let bytes = if coded_len == raw_len {
            coded
        } else {
            let size = lz4_flex::block::decompress_into(coded, raw).map_err(|_| Status::BadParams)?;
            if size != raw_len {
                return Err(Status::BadParams);
            }
            raw
        };
        memory.write(key, va.wrapping_add(done), bytes).await?;
        done += raw_len as u64;
    }
    if call.stream().unread() > 0 {
        return Err(Status::BadParams);
    }
    call.grow_reply(8)?.copy_from_slice(&done.to_le_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Counted, run_stream};
    use crate::{Limits, op};
    use proptest::prelude::*;

    fn send(memory: &Counted, va: u64, len: usize) -> Vec<u8> {
        let params = CompressParams { key: 1, va, len: len as u64 };
        let (status, blocks) = run_stream(memory, op::COMPRESS, &params.encode(), &[], 1, Limits::default());
        assert_eq!(status, Status::Ok);
        blocks
    }

    fn receive(memory: &Counted, va: u64, len: usize, blocks: &[u8], piece: usize) -> (Status, Vec<u8>) {
        let params = CompressParams { key: 1, va, len: len as u64 };
        run_stream(memory, op::DECOMPRESS, &params.encode(), blocks, piece, Limits::default())
    }

    proptest! {
        #[test]
        fn what_was_compressed_is_restored(
            word in proptest::collection::vec(any::<u8>(), 1..40), len in 0usize..200_000, piece in 1usize..9000,
        ) {
            let data: Vec<u8> = word.iter().copied().cycle().take(len).collect();
            let (there, here) = (Counted::new(len), Counted::new(len + 8));
            there.put(0, &data);
            let blocks = send(&there, 0, len);
            prop_assert!(len < 1000 || blocks.len() < len / 10);
            let reply = (Status::Ok, (len as u64).to_le_bytes().to_vec());
            prop_assert_eq!(receive(&here, 8, len, &blocks, piece), reply);
            prop_assert_eq!(here.get(8, len), data);
        }

        #[test]
        fn any_blocks_are_restored_or_refused(blocks in proptest::collection::vec(any::<u8>(), 0..200)) {
            receive(&Counted::new(1000), 0, 1000, &blocks, 50);
        }
    }

    #[test]
    fn noise_travels_as_it_is_and_what_does_not_fit_is_not_written() {
        let noise: Vec<u8> = (0..100u64).flat_map(|i| crate::shuffle::hash(i).to_le_bytes()).collect();
        let memory = Counted::new(4096);
        memory.put(0, &noise);
        let blocks = send(&memory, 0, 800);
        assert_eq!(blocks.len(), HEADER + 800);
        assert_eq!(receive(&memory, 2000, 799, &blocks, 5000).0, DESTINATION_FULL);
        assert_eq!(memory.get(2000, 900), [0; 900]);
        assert_eq!(receive(&memory, 2000, 800, &blocks[..700], 5000).0, Status::BadParams, "cut short");
        assert_eq!(receive(&memory, 2000, 800, &blocks, 5000).0, Status::Ok);
        assert_eq!(memory.get(2000, 800), noise);
    }
}

//! The HyperLogLog kernel: how many distinct values does a payload stream hold (StRoM, section 7.2)?
//!
//! The payload is a stream of 8-byte values. The sketch lives for the call, or stays in the node's memory as one byte a
//! register (2^lg_k bytes; zeros are an empty sketch), where calls add to it side by side.

mod coupon;
mod dense;
mod image;
mod sketch;
mod tap;

use crate::call::{Call, Status};
use crate::memory::Memory;
pub use sketch::{MAX_LG_K, MIN_LG_K, Sketch};
pub use tap::Tap;

/// Why bytes are no sketch.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SketchError {
    /// lg_k is not from 4 to 18.
    #[error("a sketch has 2^4 to 2^18 registers, not 2^{0}")]
    Precision(u8),
    /// Not a power of two from 2^4 to 2^18.
    #[error("a sketch has 2^4 to 2^18 registers, not {0}")]
    Registers(usize),
    /// A register or a coupon with a value that no hash has.
    #[error("a register's value is not from 0 to 63, or a coupon's is 0")]
    Value,
    /// Registers in memory that is not there or not theirs.
    #[error("registers lie at a multiple of 8 and within their region")]
    Place,
    /// Not an image of a sketch.
    #[error("not an image of a sketch: {0}")]
    Image(&'static str),
}

/// Parameters of the HyperLogLog kernel: 16 bytes, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HllParams {
    /// Log2 of the number of registers, 4 to 18.
    pub lg_k: u8,
    /// Reply with the sketch's image after the numbers.
    pub want_image: bool,
    /// The payload is an image of another sketch, to be merged.
    pub payload_is_image: bool,
    /// Key and address (a multiple of 8) of registers that the stream adds to, if they are to stay.
    pub registers: Option<(u32, u64)>,
}

impl HllParams {
    /// Bytes of the parameters.
    pub const LEN: usize = 16;
    const WANT_IMAGE: u8 = 1;
    const PAYLOAD_IS_IMAGE: u8 = 2;
    const KEPT: u8 = 4;

    /// `lg_k` u8, flags u8, 2 zeros, key u32, address u64.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = self.lg_k;
        bytes[1] = (if self.want_image { Self::WANT_IMAGE } else { 0 })
            | (if self.payload_is_image { Self::PAYLOAD_IS_IMAGE } else { 0 })
            | (if self.registers.is_some() { Self::KEPT } else { 0 });
        let (key, va) = self.registers.unwrap_or_default();
        bytes[4..8].copy_from_slice(&key.to_le_bytes());
        bytes[8..].copy_from_slice(&va.to_le_bytes());
        bytes
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, Status> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().map_err(|_| Status::BadParams)?;
        let &[lg_k, flags, 0, 0, k0, k1, k2, k3, ..] = bytes else { return Err(Status::BadParams) };
        if flags & !(Self::WANT_IMAGE | Self::PAYLOAD_IS_IMAGE | Self::KEPT) != 0 {
            return Err(Status::BadParams);
        }
        let va = u64::from_le_bytes(bytes[8..].try_into().map_err(|_| Status::BadParams)?);
        Ok(HllParams {
            lg_k,
            want_image: flags & Self::WANT_IMAGE != 0,
            payload_is_image: flags & Self::PAYLOAD_IS_IMAGE != 0,
            registers: (flags & Self::KEPT != 0).then_some((u32::from_le_bytes([k0, k1, k2, k3]), va)),
        })
    }
}

/// Replies with the estimate `f64`, the number of values in this stream `u64`, and the image if it is wanted.
pub(crate) async fn run<M: Memory>(memory: &M, call: &mut Call) -> Result<(), Status> {
    let params = HllParams::decode(&call.params)?;
    let mut sketch = Sketch::new(params.lg_k).map_err(|_| Status::BadParams)?;
    let values = if params.payload_is_image {
        sketch.merge(&read_image(call).await?);
        0
    } else {
        count(memory, &mut sketch, call).await?
    };
    if let Some((key, va)) = params.registers {
        sketch = keep(memory, sketch, key, va).await?;
    }
    let reply = call.grow_reply(16)?;
    reply[..8].copy_from_slice(&sketch.estimate().to_le_bytes());
    reply[8..].copy_from_slice(&values.to_le_bytes());
    if params.want_image {
        let image = sketch.to_image();
        call.grow_reply(image.len())?.copy_from_slice(&image);
    }
    Ok(())
}

/// Sketches the stream. Returns how many values there were.
async fn count<M: Memory>(memory: &M, sketch: &mut Sketch, call: &mut Call) -> Result<u64, Status> {
    let mut values = 0;
    while let Some(chunk) = call.stream().next_whole(8).await? {
        sketch.insert_all(chunk);
        memory.spend(chunk.len() as u64);
        values += chunk.len() as u64 / 8;
    }
    if call.stream().unread() == 0 { Ok(values) } else { Err(Status::BadParams) }
}

async fn read_image(call: &mut Call) -> Result<Sketch, Status> {
    let mut image = Vec::new();
    while let Some(chunk) = call.stream().next_chunk().await? {
        image.extend_from_slice(chunk);
        if image.len() > (1 << MAX_LG_K) + 64 {
            return Err(Status::BadParams);
        }
    }
    Sketch::from_image(&image).map_err(|_| Status::BadParams)
}

/// Raises the registers in memory to the sketch's and returns the sketch of them all. Word by word with
/// compare-and-swap, so that calls that run side by side lose nothing.
async fn keep<M: Memory>(memory: &M, mut sketch: Sketch, key: u32, va: u64) -> Result<Sketch, Status> {
    let ours = sketch.registers();
    let mut theirs = vec![0; ours.len()];
    memory.read(key, va, &mut theirs).await?;
    for (at, (ours, theirs)) in ours.chunks_exact(8).zip(theirs.chunks_exact_mut(8)).enumerate() {
        let ours: [u8; 8] = ours.try_into().unwrap_or_default();
        let mut old: [u8; 8] = (&*theirs).try_into().unwrap_or_default();
        loop {
            let new: [u8; 8] = std::array::from_fn(|i| ours[i].max(old[i]));
            if new == old {
                break;
            }
            let address = va + 8 * at as u64;
            let (expect, new_word) = (u64::from_ne_bytes(old), u64::from_ne_bytes(new));
            let was = memory.compare_swap(key, address, expect, new_word).await?;
            old = if was == expect { new } else { was.to_ne_bytes() };
        }
        theirs.copy_from_slice(&old);
    }
    Sketch::from_registers(theirs).map_err(|_| Status::BadParams)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Counted, run_stream};
    use crate::{Limits, op};

    const KEPT: HllParams = HllParams { lg_k: 12, want_image: true, payload_is_image: false, registers: Some((1, 64)) };

    fn payload(values: std::ops::Range<u64>) -> Vec<u8> {
        values.flat_map(u64::to_le_bytes).collect()
    }

    fn numbers(reply: &[u8]) -> (f64, u64) {
        (f64::from_le_bytes(reply[..8].try_into().unwrap()), u64::from_le_bytes(reply[8..16].try_into().unwrap()))
    }

    #[test]
    fn a_stream_in_pieces_is_sketched_as_a_whole() {
        let params = HllParams { registers: None, ..KEPT };
        let mut sketch = Sketch::new(12).unwrap();
        (0..5000).for_each(|value| sketch.insert(value));
        for piece in [3, 8, 1024, 40_000] {
            let memory = Counted::new(0);
            let (status, reply) =
                run_stream(&memory, op::HYPERLOGLOG, &params.encode(), &payload(0..5000), piece, Limits::default());
            assert_eq!(status, Status::Ok);
            assert_eq!(numbers(&reply), (sketch.estimate(), 5000));
            assert_eq!(Sketch::from_image(&reply[16..]).unwrap(), sketch);
        }
    }

    #[test]
    fn kept_registers_add_up_over_calls_and_can_be_read() {
        let memory = Counted::new(64 + (1 << 12));
        let limits = Limits { steps: 10_000, ..Limits::default() };
        for part in [0..3000, 2000..6000] {
            let reply = run_stream(&memory, op::HYPERLOGLOG, &KEPT.encode(), &payload(part), 512, limits);
            assert_eq!(reply.0, Status::Ok);
        }
        let mut whole = Sketch::new(12).unwrap();
        (0..6000).for_each(|value| whole.insert(value));
        let (status, reply) = run_stream(&memory, op::HYPERLOGLOG, &KEPT.encode(), &[], 1, limits);
        assert_eq!((status, numbers(&reply)), (Status::Ok, (whole.estimate(), 0)));

        let mut other = Sketch::new(12).unwrap();
        (5000..9000).for_each(|value| other.insert(value));
        let merge = HllParams { payload_is_image: true, ..KEPT };
        let (status, reply) = run_stream(&memory, op::HYPERLOGLOG, &merge.encode(), &other.to_image(), 1000, limits);
        whole.merge(&other);
        assert_eq!((status, numbers(&reply).0), (Status::Ok, whole.estimate()));
    }

    #[test]
    fn bad_parameters_and_payloads_end_in_a_status() {
        let memory = Counted::new(64);
        let run = |params: &[u8], payload: &[u8]| {
            run_stream(&memory, op::HYPERLOGLOG, params, payload, 100, Limits::default()).0
        };
        let plain = HllParams { registers: None, ..KEPT };
        assert_eq!(run(&[], &[]), Status::BadParams);
        assert_eq!(run(&HllParams { lg_k: 19, ..plain }.encode(), &[]), Status::BadParams);
        assert_eq!(run(&plain.encode(), &[0; 9]), Status::BadParams, "a value cut short");
        assert_eq!(run(&HllParams { payload_is_image: true, ..plain }.encode(), &[0; 9]), Status::BadParams);
        assert_eq!(run(&KEPT.encode(), &[0; 8]), Status::AccessDenied, "no room for the registers");
        assert_eq!(HllParams::decode(&KEPT.encode()), Ok(KEPT));
    }
}

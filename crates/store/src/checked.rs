//! Objects that carry the CRC-64 of their payload, so that a reader notices a write under way.

use crate::Place;
use remora_kernel::{ConsistencyParams, TRIES_BYTES, crc64};

/// Bytes of the checksum after the payload.
pub const CRC_BYTES: usize = 8;

/// Makes `object` the checked object of the payload in front of its last [`CRC_BYTES`].
pub fn seal(object: &mut [u8]) {
    if let Some((payload, crc)) = object.split_last_chunk_mut() {
        *crc = crc64(payload).to_le_bytes();
    }
}

/// The payload of a checked object, if its checksum holds.
pub fn open(object: &[u8]) -> Option<&[u8]> {
    let (payload, crc) = object.split_last_chunk()?;
    (crc64(payload).to_le_bytes() == *crc).then_some(payload)
}

/// Parameters of the consistency kernel that read the object of `len` bytes (checksum included) at
/// `place`, at most `max_tries` times.
pub fn params(place: Place, len: u32, max_tries: u32) -> ConsistencyParams {
    ConsistencyParams { address: place.va, key: place.key, len, max_tries }
}

/// Payload and number of tries in a reply of the consistency kernel.
pub fn split_reply(reply: &[u8]) -> Option<(&[u8], u32)> {
    let (payload, tries) = reply.split_last_chunk::<TRIES_BYTES>()?;
    Some((payload, u32::from_le_bytes(*tries)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_noticed() {
        for len in [0, 1, 64, 1000] {
            let mut object = vec![7; len + CRC_BYTES];
            seal(&mut object);
            assert_eq!(open(&object), Some(&vec![7; len][..]));
            for at in 0..object.len() {
                object[at] ^= 1;
                assert_eq!(open(&object), None, "byte {at} of {len}");
                object[at] ^= 1;
            }
        }
        seal(&mut [0; 7]);
        assert_eq!(open(&[0; 7]), None);
        assert_eq!(split_reply(&[9, 2, 0, 0, 0]), Some((&[9][..], 2)));
        assert_eq!(split_reply(&[0; 3]), None);
    }
}

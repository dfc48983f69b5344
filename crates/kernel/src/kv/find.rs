//! GETs, and PUTs of pairs that are there, in steps: a bucket, and the pair's block. What comes in between, such as a chain
//! that moves or a pair that is being written, is for the kernel to look at again.

use super::item::{LOCKED, Whole, encode, item_len};
use super::params::{KvParams, KvValue};
use super::table::{BUCKET_BYTES, ENTRIES, MOVED, longest_block, matches, next_bucket, place, words};
use super::{KvRef, class_bytes};
use crate::call::{Call, CallFields, Status};
use crate::steps::{Held, Read, Steps, Stop};
use remora_memory::Access;

/// Bytes of a block that is read in one go.
const SHORT: u64 = 4096;

/// A GET, between two reads.
pub(crate) struct Find {
    store: KvRef,
    hash: u64,
    /// Buckets that are in front of the one it looks at.
    depth: u32,
}

impl Find {
    #[inline(always)]
    fn bucket(&self, at: u64) -> Read {
        Read { key: self.store.key, va: self.store.base.wrapping_add(at), len: BUCKET_BYTES as u32, last: false }
    }
}

impl Steps for Find {
    const ENDS: bool = true;

    #[inline(always)]
    fn begin(params: &[u8]) -> Result<(Self, Read), Stop> {
        let KvParams { store, hash, .. } = KvParams::decode(params, false)?;
        let find = Find { store, hash, depth: 0 };
        let first = find.bucket(store.table.bucket(hash));
        Ok((find, first))
    }

    #[inline(always)]
    fn next(&mut self, bucket: &[u8; BUCKET_BYTES]) -> Result<Read, Stop> {
        let words = words(bucket);
        if self.depth == 0 && words[ENTRIES] & MOVED != 0 {
            return Err(Stop::Apart);
        }
        if let Some(&entry) = words[..ENTRIES].iter().find(|&&entry| matches(entry, self.hash)) {
            let (block, class) = place(entry);
            let len = class_bytes(class);
            if len > SHORT {
                return Err(Stop::Apart);
            }
            return Ok(Read { len: len as u32, last: true, ..self.bucket(block) });
        }
        let next = next_bucket(words[ENTRIES], self.hash, self.depth).ok_or(Status::NotFound)?;
        self.depth += 1;
        Ok(self.bucket(next))
    }

    /// Leaves the value of the block that the reply is.
    #[inline(always)]
    fn end(call: &mut Call, _: &Held<'_>) -> Result<(), Stop> {
        let CallFields { params, reply, reply_limit, .. } = &mut **call;
        let KvParams { key, .. } = KvParams::decode(params, false)?;
        let Whole { value, .. } = Whole::of(reply, key).map_err(|_| Stop::Apart)?;
        if value.len() > *reply_limit as usize {
            return Err(Status::ReplyTooLong.into());
        }
        let len = value.len();
        reply.copy_within(value, 0);
        reply.truncate(len);
        Ok(())
    }
}

/// A PUT or UPDATE of a pair that is there, in a block that the new one has room in.
pub(crate) struct Rewrite(Find);

impl Steps for Rewrite {
    const ENDS: bool = true;

    #[inline(always)]
    fn begin(params: &[u8]) -> Result<(Self, Read), Stop> {
        let KvParams { store, hash, value, .. } = KvParams::decode(params, true)?;
        let KvValue::Bytes(_) = value else { return Err(Stop::Apart) };
        let find = Find { store, hash, depth: 0 };
        let first = find.bucket(store.table.bucket(hash));
        Ok((Rewrite(find), first))
    }

    #[inline(always)]
    fn next(&mut self, bucket: &[u8; BUCKET_BYTES]) -> Result<Read, Stop> {
        // To add a pair takes more than steps.
        self.0.next(bucket).map_err(|_| Stop::Apart)
    }

    /// Writes the pair in place of the block that the reply is.
    #[inline(always)]
    fn end(call: &mut Call, &Held { region, pd, va }: &Held<'_>) -> Result<(), Stop> {
        let CallFields { params, reply, .. } = &mut **call;
        let KvParams { key, value, .. } = KvParams::decode(params, true)?;
        let KvValue::Bytes(value) = value else { return Err(Stop::Apart) };
        let Whole { sum_at, sum, .. } = Whole::of(reply, key).map_err(|_| Stop::Apart)?;
        let (len, block) = (item_len(key.len(), value.len()) as u64, reply.len() as u64);
        let may = region.check(pd, va, block, Access::REMOTE_WRITE | Access::REMOTE_ATOMIC).is_ok();
        if !may || !(len..=longest_block(len)).contains(&block) {
            return Err(Stop::Apart);
        }
        if region.compare_swap(va.wrapping_add(sum_at as u64), sum, LOCKED) != Ok(sum) {
            return Err(Stop::Apart);
        }
        encode(key, value, reply);
        region.write(va, reply).map_err(|_| Status::AccessDenied)?;
        reply.clear();
        Ok(())
    }
}

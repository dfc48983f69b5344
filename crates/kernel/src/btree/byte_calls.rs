//! Parameters of the kernels for trees whose keys are bytes, and what they do.

use super::bytes::KEY_BYTES;
use super::place::Visit;
use super::{NOT_OWNER, NodeView, Put, Tree, TreeKey, TreeParams, TreeRef, key_bytes};
use crate::call::{Call, Status};
use crate::memory::Memory;
use std::ops::Range;

/// Parameters of a kernel on a tree whose keys are bytes: as [`TreeParams`](super::TreeParams), and with the same replies but
/// for a scan's, which is of [`BytePairs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteParams<'a> {
    /// The tree.
    pub tree: TreeRef,
    /// The key: at most so many bytes as [`key_bytes`] says.
    pub key: &'a [u8],
    /// The value, or the most pairs to bring.
    pub value: u64,
    /// What a put does.
    pub how: Put,
}

/// Bytes in front of the key.
pub(super) const FIXED: usize = TreeRef::LEN + 8;

impl<'a> ByteParams<'a> {
    /// Of a look-up, a delete, or a scan of `value` pairs.
    pub fn new(tree: TreeRef, key: &'a [u8], value: u64) -> Self {
        ByteParams { tree, key, value, how: Put::Upsert }
    }

    /// Appends them: the first 24 bytes are those of [`TreeParams`](super::TreeParams) but for a 1 at 21; then value (8,
    /// little-endian) and key.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut bytes = [0; FIXED];
        self.tree.encode(&mut bytes);
        bytes[20] = self.how.code();
        bytes[21] = 1;
        bytes[TreeRef::LEN..].copy_from_slice(&self.value.to_le_bytes());
        out.extend_from_slice(&bytes);
        out.extend_from_slice(self.key);
    }

    /// From bytes, if they make sense.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Status> {
        if bytes.len() < FIXED || bytes[21] != 1 {
            return Err(Status::BadParams);
        }
        let how = Put::of_code(bytes[20]).ok_or(Status::BadParams)?;
        let (tree, key) = (TreeRef::decode(bytes), &bytes[FIXED..]);
        tree.check()?;
        if key.len() > key_bytes(tree.node_bytes.into()) {
            return Err(Status::BadParams);
        }
        Ok(ByteParams { tree, key, value: super::node::word(bytes, TreeRef::LEN), how })
    }
}

/// The tree that a scan's parameters name, and how many pairs it is to bring; `None` if they make no sense.
pub fn pairs_of_scan(params: &[u8]) -> Option<(TreeRef, u64)> {
    match are_bytes(params) {
        true => ByteParams::decode(params).ok().map(|scan| (scan.tree, scan.value)),
        false => TreeParams::decode(params).ok().map(|scan| (scan.tree, scan.value)),
    }
}

/// Whether parameters are of a tree whose keys are bytes.
#[inline]
pub(crate) fn are_bytes(params: &[u8]) -> bool {
    params.get(21) == Some(&1)
}

/// The reply of a scan: of each pair the key's length (2), the key, and the value (8), little-endian.
#[derive(Clone, Copy, Debug)]
pub struct BytePairs<'a>(pub &'a [u8]);

impl<'a> Iterator for BytePairs<'a> {
    type Item = (&'a [u8], u64);

    fn next(&mut self) -> Option<Self::Item> {
        let (len, rest) = self.0.split_first_chunk()?;
        let (key, rest) = rest.split_at_checked(u16::from_le_bytes(*len).into())?;
        let (value, rest) = rest.split_first_chunk()?;
        self.0 = rest;
        Some((key, u64::from_le_bytes(*value)))
    }
}

/// What a kernel does on a tree.
#[derive(Clone, Copy)]
pub(super) enum Work {
    Get,
    Put,
    Delete,
    Scan,
}

/// Runs a kernel on a tree whose keys are bytes.
pub(super) async fn run<M: Memory>(memory: &M, call: &mut Call, work: Work) -> Result<(), Status> {
    if let Work::Scan = work {
        if super::Range::<[u8]>::begin(&call.params)?.run(memory, call).await? {
            return Ok(());
        }
        // Nodes are not at hand, or not any more: it begins anew.
        call.reply.clear();
    }
    let params = std::mem::take(&mut call.params);
    let result = on_bytes(memory, call, &params, work).await;
    call.params = params;
    result
}

async fn on_bytes<M: Memory>(memory: &M, call: &mut Call, params: &[u8], work: Work) -> Result<(), Status> {
    let ByteParams { tree, key, value, how } = ByteParams::decode(params)?;
    let owner = if memory.outlives_caller() { 0 } else { tree.owner };
    let tree = Tree::of_bytes(memory, TreeRef { owner, ..tree })?;
    let mut copy = Vec::new();
    let result = match work {
        Work::Get => Some(tree.get(key, &mut copy).await?),
        Work::Put | Work::Delete if !tree.may_write() => return Err(NOT_OWNER),
        Work::Put => tree.put(key, value, how, &mut copy).await?,
        Work::Delete => Some(tree.delete(key, &mut copy).await?),
        Work::Scan => {
            let mut room = Vec::new();
            let found = |leaf: NodeView<'_>, places: Range<usize>| {
                for at in places {
                    leaf.key_to(at, &mut room);
                    let key = &room;
                    let reply = call.grow_reply(2 + key.len() + 8)?;
                    let (len, rest) = reply.split_at_mut(2);
                    let (bytes, value) = rest.split_at_mut(key.len());
                    len.copy_from_slice(&(key.len() as u16).to_le_bytes());
                    bytes.copy_from_slice(key);
                    value.copy_from_slice(&<[u8] as TreeKey>::what(leaf, at).to_le_bytes());
                }
                Ok(())
            };
            let count = u32::try_from(value).unwrap_or(u32::MAX);
            tree.scan(key, count, &mut copy, found).await?;
            None
        }
    };
    if let Some(value) = result {
        call.grow_reply(8)?.copy_from_slice(&value.to_le_bytes());
    }
    Ok(())
}

const _: () = assert!(KEY_BYTES <= u16::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_and_pairs_come_back_as_they_went() {
        let tree = TreeRef { base: 1 << 40, key: 7, slots: 99, node_bytes: 256, owners: 4, owner: 3 };
        for key in [&b""[..], b"key", &[7; 32]] {
            let params = ByteParams { tree, key, value: 1 << 33, how: Put::Insert };
            let mut bytes = Vec::new();
            params.encode(&mut bytes);
            assert_eq!(ByteParams::decode(&bytes), Ok(params));
            assert!(are_bytes(&bytes));
        }
        let mut long = Vec::new();
        ByteParams::new(tree, &[7; 33], 0).encode(&mut long);
        assert_eq!(ByteParams::decode(&long), Err(Status::BadParams), "a key that nodes of 256 bytes do not hold");
        let reply = [&[1, 0, b'a'], &7u64.to_le_bytes()[..], &[0, 0], &9u64.to_le_bytes(), &[5, 0, 1]].concat();
        let pairs: Vec<_> = BytePairs(&reply).collect();
        assert_eq!(pairs, [(&b"a"[..], 7), (b"", 9)], "what is cut off is no pair");
    }
}

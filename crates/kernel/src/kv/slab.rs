//! Blocks of a store, by classes of length. A class takes blocks from a slab of its own, one behind the other, then those
//! that were given back, then a new slab.

use super::NO_ROOM;
use super::table::Store;
use crate::call::Status;
use crate::memory::Memory;

/// Classes of blocks.
pub const CLASSES: u8 = 30;
/// Bytes of a slab of blocks that are shorter.
const SLAB: u64 = 64 << 10;
/// Where the first byte that no slab has is noted, and behind it the store's length.
pub(super) const BUMP: u64 = 64;
/// Where the classes' words are: of each the slab (in units of 64 bytes, above bit 24) with the number of blocks taken,
/// and the first block that was given back (in units of 32 bytes, below bit 42) with the number of changes.
const WORDS: u64 = 128;
/// Bytes of a store that a class's word finds its slab in; entries could go twice as far.
const LONGEST: u64 = 1 << 46;
/// More blocks than any slab has: who finds a class's word with so many counted sets it back.
const MANY: u64 = 1 << 20;

/// Bytes of a class's blocks: 64, 96, 128, 192, and so on to 1.5 MB.
pub const fn class_bytes(class: u8) -> u64 {
    let base = 64 << (class / 2);
    if class.is_multiple_of(2) { base } else { base + base / 2 }
}

/// The class of blocks for so many bytes; `None` if none is long enough.
pub fn class_of(bytes: usize) -> Option<u8> {
    // The longest pairs are those of few classes: found from the shortest on, which most are.
    (0..CLASSES).find(|&class| bytes as u64 <= class_bytes(class))
}

/// Blocks of a slab, and bytes of it.
pub(super) fn slab(class: u8) -> (u64, u64) {
    let bytes = class_bytes(class);
    let blocks = (SLAB / bytes).max(1);
    (blocks, (blocks * bytes).next_multiple_of(64))
}

impl<M: Memory> Store<'_, M> {
    /// A block, by its offset, and whether it was one before, so that somebody may look at it still. Waits for nobody: who
    /// brings a slab that another has brought too gives his away.
    pub(super) async fn alloc(&self, class: u8) -> Result<(u64, bool), Status> {
        let (word_at, (blocks, bytes)) = (WORDS + u64::from(class) * 16, slab(class));
        let block = |word: u64| {
            let (base, taken) = (word >> 24, word & 0xff_ffff);
            (base != 0 && taken < blocks).then(|| base * 64 + taken * class_bytes(class))
        };
        loop {
            let word = self.add(word_at, 1).await?;
            if let Some(block) = block(word) {
                return Ok((block, false));
            }
            if word & 0xff_ffff > MANY {
                // All count on, whether there is a block or not, and must not count into the slab's place.
                self.swap(word_at, word.wrapping_add(1), (word & !0xff_ffff) | blocks).await?;
            }
            if let Some(block) = self.pop(class).await? {
                return Ok((block, true));
            }
            let Some(first) = self.take_slab(class).await? else {
                return self.pop(class).await?.map(|block| (block, true)).ok_or(NO_ROOM);
            };
            if self.bring(word_at, first, |word| block(word).is_some()).await? {
                return Ok((first, false));
            }
            // Another's was there already: this one goes back, if it is the last that was taken.
            if !self.swap(BUMP, first + bytes, first).await? {
                self.give_away(first, class).await?;
                return Ok((first, false));
            }
        }
    }

    /// Makes a slab, whose first block is taken, that of a class, unless that has another by now.
    async fn bring(&self, word_at: u64, slab: u64, has_blocks: impl Fn(u64) -> bool) -> Result<bool, Status> {
        loop {
            let word = self.word(word_at).await?;
            if has_blocks(word) {
                return Ok(false);
            }
            if self.swap(word_at, word, (slab / 64) << 24 | 1).await? {
                return Ok(true);
            }
        }
    }

    /// A slab, by its offset, if there is room for one.
    async fn take_slab(&self, class: u8) -> Result<Option<u64>, Status> {
        self.take(slab(class).1, 64).await
    }

    /// Bytes that nobody has had and that are zero, by their offset, a multiple of `align`: if there is room for them,
    /// or the region can be longer.
    pub(super) async fn take(&self, bytes: u64, align: u64) -> Result<Option<u64>, Status> {
        let mut len = self.word(BUMP + 8).await?;
        loop {
            let bump = self.word(BUMP).await?;
            let first = bump.checked_next_multiple_of(align).ok_or(Status::BadParams)?;
            let end = first.checked_add(bytes).ok_or(Status::BadParams)?;
            if end > len {
                let Some(longer) = self.lengthen(len, end) else { return Ok(None) };
                // Others may have made it longer still.
                while len < longer && !self.swap(BUMP + 8, len, longer).await? {
                    len = self.word(BUMP + 8).await?;
                }
                len = len.max(longer);
            }
            if self.swap(BUMP, bump, end).await? {
                return Ok(Some(first));
            }
        }
    }

    /// Has the region grow to this offset at least: by a quarter at a time, so that it is seldom, or by as much as it
    /// may.
    fn lengthen(&self, len: u64, end: u64) -> Option<u64> {
        let more = len.saturating_add(len / 4).max(end).checked_next_multiple_of(SLAB).unwrap_or(end);
        [more, end].into_iter().find(|&end| end <= LONGEST && self.grow_region(end))
    }

    /// Frees all blocks of a slab but the first.
    async fn give_away(&self, slab_at: u64, class: u8) -> Result<(), Status> {
        let ((blocks, _), bytes) = (slab(class), class_bytes(class));
        self.renew();
        let block = |at: u64| slab_at + at * bytes;
        for at in 1..blocks.saturating_sub(1) {
            self.write(block(at) + 8, &(block(at + 1) / 32).to_le_bytes()).await?;
        }
        if blocks > 1 { self.push(block(1), block(blocks - 1), class).await } else { Ok(()) }
    }

    /// Gives a block back.
    pub(super) async fn free(&self, block: u64, class: u8) -> Result<(), Status> {
        self.push(block, block, class).await
    }

    /// Gives blocks back, each of which leads to the next but the last.
    async fn push(&self, block: u64, last: u64, class: u8) -> Result<(), Status> {
        let first_at = WORDS + u64::from(class) * 16 + 8;
        loop {
            let first = self.word(first_at).await?;
            // The pair's own first word stays: who looks at it still finds no checksum that fits.
            self.write(last + 8, &(first & PLACE).to_le_bytes()).await?;
            if self.swap(first_at, first, next_change(first) | (block / 32)).await? {
                return Ok(());
            }
        }
    }

    /// A block that was given back, if there is one.
    async fn pop(&self, class: u8) -> Result<Option<u64>, Status> {
        let first_at = WORDS + u64::from(class) * 16 + 8;
        loop {
            let first = self.word(first_at).await?;
            let block = (first & PLACE) * 32;
            if block == 0 {
                return Ok(None);
            }
            let next = self.word(block + 8).await?;
            // Had it been taken and given back meanwhile, the number of changes would be another.
            if self.swap(first_at, first, next_change(first) | (next & PLACE)).await? {
                return Ok(Some(block));
            }
        }
    }
}

/// The place of the first block.
const PLACE: u64 = (1 << 42) - 1;

/// The number of changes, one later.
fn next_change(word: u64) -> u64 {
    (word & !PLACE).wrapping_add(PLACE + 1)
}

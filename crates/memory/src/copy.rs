//! Copies between private bytes and memory that others read and write at the same time.
//!
//! The shared side is touched only by atomic accesses to aligned 8-byte words. On x86-64 an `Acquire` load and a
//! `Release` store are ordinary moves, so the order that the crate promises costs nothing there; and longer copies move
//! two words at a time.

#[cfg(all(target_arch = "x86_64", not(miri)))]
use std::sync::atomic::AtomicU8;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a word.
const WORD: usize = 8;
/// Bytes copied per turn of the unrolled loop: a cache line.
pub const BLOCK: usize = 64;
/// Bytes that are set block by block; fewer are set word by word.
const LONG_FILL: usize = 512;

/// The word at `ptr`.
///
/// # Safety
/// `ptr` is aligned to 8 bytes and valid for reads (and writes, if the caller stores) for all of `'a`, and nobody
/// accesses the word other than atomically in words.
#[inline(always)]
pub unsafe fn word<'a>(ptr: *mut u8) -> &'a AtomicU64 {
    debug_assert!(ptr.cast::<u64>().is_aligned());
    // SAFETY: as the caller promises.
    unsafe { AtomicU64::from_ptr(ptr.cast()) }
}

/// Copies shared memory at `src` into `out`, in increasing address order.
///
/// # Safety
/// Every aligned word that overlaps `src..src + out.len()` meets the contract of [`word`].
#[inline]
pub unsafe fn load(src: *mut u8, out: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if out.len() >= wide::LEAST && wide::is_whole() {
        // SAFETY: as the caller promises.
        return unsafe { wide::load(src, out) };
    }
    // SAFETY: as the caller promises.
    unsafe { load_words(src, out) };
}

/// Copies out memory that nobody is to write any more, in whatever order and pieces is quickest. If somebody writes it
/// nevertheless, what comes out is any mix of old and new bytes.
///
/// # Safety
/// As for [`load`].
#[inline]
pub unsafe fn take(src: *mut u8, out: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if out.len() >= wide::LEAST_LINES && wide::has_lines() {
        // SAFETY: as the caller promises.
        return unsafe { wide::lines(src, out.as_mut_ptr(), out.len()) };
    }
    // SAFETY: as the caller promises.
    unsafe { load(src, out) };
}

/// Copies `data` to memory that others look at only later, in whatever order and pieces is quickest. Who looks at it
/// nevertheless sees any mix of old and new bytes.
///
/// # Safety
/// As for [`store`].
#[inline]
pub unsafe fn put(dst: *mut u8, data: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if data.len() >= wide::LEAST_LINES && wide::has_lines() {
        // SAFETY: as the caller promises.
        return unsafe { wide::lines(data.as_ptr(), dst, data.len()) };
    }
    // SAFETY: as the caller promises.
    unsafe { store(dst, data) };
}

/// Adds rows of `f32`, little-endian, to `sums`, in the order of `which`: numbers of rows, of which there are `rows`, each
/// as long as `sums`. While it does, it asks the second-level cache for the rows in `next`. Rows are looked at in whatever
/// pieces is quickest, as by [`take`]. False, and nothing is done, where no quick way is known.
///
/// # Safety
/// As for [`load`], of `rows` rows from `src` on.
#[inline]
pub unsafe fn add_rows(src: *mut u8, rows: u32, sums: &mut [u8], which: &[[u8; 4]], next: &[[u8; 4]]) -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if wide::has_lines() {
        // SAFETY: as the caller promises.
        unsafe {
            match sums.len() {
                64 => wide::add_rows::<1>(src, rows, sums, which, next),
                128 => wide::add_rows::<2>(src, rows, sums, which, next),
                256 => wide::add_rows::<4>(src, rows, sums, which, next),
                512 => wide::add_rows::<8>(src, rows, sums, which, next),
                1024 => wide::add_rows::<16>(src, rows, sums, which, next),
                _ => return false,
            }
        }
        return true;
    }
    let _ = (src, rows, sums, which, next);
    false
}

/// # Safety
/// As for [`load`].
#[inline(always)]
unsafe fn load_words(src: *mut u8, mut out: &mut [u8]) {
    let skew = src.addr() % WORD;
    let mut src = src.wrapping_sub(skew);
    if skew != 0 {
        let n = out.len().min(WORD - skew);
        let mut bytes = [0; WORD];
        if n > 0 {
            // SAFETY: the word overlaps the range.
            bytes = unsafe { word(src) }.load(Ordering::Acquire).to_ne_bytes();
        }
        let (head, rest) = out.split_at_mut(n);
        head.copy_from_slice(&bytes[skew..skew + n]);
        (src, out) = (src.wrapping_add(WORD), rest);
    }
    let mut blocks = out.chunks_exact_mut(BLOCK);
    for block in &mut blocks {
        // SAFETY: the block lies within the range, and `src` is aligned by now.
        unsafe { load_block(src, block) };
        src = src.wrapping_add(BLOCK);
    }
    for part in blocks.into_remainder().chunks_mut(WORD) {
        // SAFETY: this word lies within the range, or overlaps its end.
        let bytes = unsafe { word(src) }.load(Ordering::Acquire).to_ne_bytes();
        part.copy_from_slice(&bytes[..part.len()]);
        src = src.wrapping_add(WORD);
    }
}

/// Copies a block into `out`, in increasing address order.
///
/// # Safety
/// As for [`load`]; `src` is aligned to words.
#[inline(always)]
pub unsafe fn load_block(src: *mut u8, out: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if src.addr().is_multiple_of(2 * WORD)
        && wide::is_whole()
        && let Some(out) = out.first_chunk_mut()
    {
        // SAFETY: as the caller promises.
        return unsafe { wide::load_block(src, out) };
    }
    for (at, out) in out.as_chunks_mut::<WORD>().0.iter_mut().enumerate().take(BLOCK / WORD) {
        // SAFETY: this word lies within the range.
        *out = unsafe { word(src.wrapping_add(at * WORD)) }.load(Ordering::Acquire).to_ne_bytes();
    }
}

/// Copies `data` to shared memory at `dst`, in increasing address order.
///
/// # Safety
/// Every aligned word that overlaps `dst..dst + data.len()` meets the contract of [`word`], for writes too.
#[inline]
pub unsafe fn store(dst: *mut u8, data: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if data.len() >= wide::LEAST && wide::is_whole() {
        // SAFETY: as the caller promises.
        return unsafe { wide::store(dst, data) };
    }
    // SAFETY: as the caller promises.
    unsafe { store_words(dst, data) };
}

/// # Safety
/// As for [`store`].
#[inline(always)]
unsafe fn store_words(dst: *mut u8, mut data: &[u8]) {
    let skew = dst.addr() % WORD;
    let mut dst = dst.wrapping_sub(skew);
    if skew != 0 {
        let (head, rest) = data.split_at(data.len().min(WORD - skew));
        if !head.is_empty() {
            // SAFETY: the word overlaps the range.
            store_part(unsafe { word(dst) }, skew, head);
        }
        (dst, data) = (dst.wrapping_add(WORD), rest);
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if data.len() >= BLOCK && dst.addr().is_multiple_of(2 * WORD) && wide::is_whole() {
        let (blocks, rest) = data.split_at(data.len() / BLOCK * BLOCK);
        // SAFETY: whole blocks within the range, at least one.
        unsafe { wide::to_aligned(blocks.as_ptr(), dst, blocks.len()) };
        (dst, data) = (dst.wrapping_add(blocks.len()), rest);
    }
    let mut blocks = data.chunks_exact(BLOCK);
    for block in &mut blocks {
        for at in (0..BLOCK).step_by(WORD) {
            // SAFETY: this word lies within the range.
            unsafe { word(dst.wrapping_add(at)) }.store(value(&block[at..at + WORD]), Ordering::Release);
        }
        dst = dst.wrapping_add(BLOCK);
    }
    let mut words = blocks.remainder().chunks_exact(WORD);
    for bytes in &mut words {
        // SAFETY: this word lies within the range.
        unsafe { word(dst) }.store(value(bytes), Ordering::Release);
        dst = dst.wrapping_add(WORD);
    }
    if !words.remainder().is_empty() {
        // SAFETY: the word overlaps the end of the range.
        store_part(unsafe { word(dst) }, 0, words.remainder());
    }
}

/// Sets `len` bytes at `dst` to `byte`, in increasing address order.
///
/// # Safety
/// As for [`store`], of `len` bytes.
#[inline]
pub unsafe fn fill(dst: *mut u8, len: usize, byte: u8) {
    if len >= LONG_FILL || !dst.addr().is_multiple_of(WORD) || !len.is_multiple_of(WORD) {
        // SAFETY: as the caller promises.
        return unsafe { fill_blocks(dst, len, byte) };
    }
    let value = u64::from_ne_bytes([byte; WORD]);
    for at in (0..len).step_by(WORD) {
        // SAFETY: this word lies within the range.
        unsafe { word(dst.wrapping_add(at)) }.store(value, Ordering::Release);
    }
}

/// # Safety
/// As for [`fill`].
#[inline(never)]
unsafe fn fill_blocks(dst: *mut u8, len: usize, byte: u8) {
    let block = [byte; LONG_FILL];
    for at in (0..len).step_by(block.len()) {
        // SAFETY: a part of the range.
        unsafe { store(dst.wrapping_add(at), &block[..block.len().min(len - at)]) };
    }
}

/// Copies shared memory at `src` to shared memory at `dst` that others look at only later: words of `src` are read whole,
/// `dst` is written in whatever pieces is quickest.
///
/// # Safety
/// As for [`load`] and [`store`]; the two do not overlap.
#[inline]
pub unsafe fn lift(src: *mut u8, dst: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= wide::LEAST && wide::is_whole() {
        // SAFETY: as the caller promises.
        return unsafe { wide::lift(src, dst, len) };
    }
    // SAFETY: as the caller promises.
    unsafe { by_way_of_private(src, dst, len) };
}

/// Copies shared memory at `src`, which nobody is to write any more, to shared memory at `dst`, in increasing address order
/// and as whole words of `dst`. If somebody writes `src` nevertheless, what lands is any mix of old and new bytes.
///
/// # Safety
/// As for [`load`] and [`store`]; the two do not overlap.
#[inline]
pub unsafe fn land(src: *mut u8, dst: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= wide::LEAST && wide::is_whole() {
        // SAFETY: as the caller promises.
        return unsafe { wide::land(src, dst, len) };
    }
    // SAFETY: as the caller promises.
    unsafe { by_way_of_private(src, dst, len) };
}

/// Copies shared memory at `src` to shared memory at `dst`, in increasing address order: words of `src` are loaded whole, and words
/// of `dst` stored whole.
///
/// # Safety
/// As for [`load`] and [`store`]; the two do not overlap.
#[inline]
pub unsafe fn carry(src: *mut u8, dst: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= wide::LEAST && wide::is_whole() && src.addr() % (2 * WORD) == dst.addr() % (2 * WORD) {
        // SAFETY: as the caller promises.
        return unsafe { wide::carry(src, dst, len) };
    }
    // SAFETY: as the caller promises.
    unsafe { by_way_of_private(src, dst, len) };
}

/// # Safety
/// As for [`lift`].
unsafe fn by_way_of_private(src: *mut u8, dst: *mut u8, len: usize) {
    let mut private = [0; 512];
    let mut at = 0;
    while at < len {
        // Pieces end where words of `dst` do, so that none is stored in two parts.
        let most = private.len() - dst.wrapping_add(at).addr() % WORD;
        let piece = &mut private[..most.min(len - at)];
        // SAFETY: a part of either range.
        unsafe {
            load(src.wrapping_add(at), piece);
            store(dst.wrapping_add(at), piece);
        }
        at += piece.len();
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod wide;

/// Copies `data` to shared memory at `dst` past the caches, where the machine can: whole lines are then not read first.
/// Other stores may overtake these until [`stream_fence`].
///
/// # Safety
/// As for [`store`]; `dst` and the length of `data` are multiples of 64.
#[inline]
pub unsafe fn stream(dst: *mut u8, data: &[u8]) {
    debug_assert!(dst.addr().is_multiple_of(BLOCK) && data.len().is_multiple_of(BLOCK));
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as the caller promises; the processor has the instructions.
    unsafe {
        if std::is_x86_feature_detected!("avx512f") {
            wide::stream_512(dst, data);
        } else if wide::is_whole() {
            wide::stream_256(dst, data);
        } else {
            stream_words(dst, data);
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: as the caller promises.
    unsafe {
        store(dst, data)
    };
}

/// Whether [`stream`] is quick for single lines all over the place. On Intel's (Ice Lake) words that gather in buffers
/// and are streamed take 0.6 of the time of words that are stored one by one; on AMD's (Zen 5) twice as long, as a core
/// commits its stores in order and those of whole lines hold up all that follow.
pub fn streams_well() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::__cpuid;
        static INTEL: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        let named = |name: &[u8; 12]| {
            let id = __cpuid(0);
            [id.ebx, id.edx, id.ecx].map(u32::to_le_bytes).as_flattened() == name
        };
        *INTEL.get_or_init(|| named(b"GenuineIntel") && std::is_x86_feature_detected!("avx512f"))
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    false
}

/// # Safety
/// As for [`stream`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn stream_words(dst: *mut u8, data: &[u8]) {
    for (at, bytes) in data.chunks_exact(WORD).enumerate() {
        // SAFETY: the word lies within the range. The instruction stores an aligned word as a whole, like an atomic
        // one.
        unsafe { std::arch::x86_64::_mm_stream_si64(dst.wrapping_add(at * WORD).cast(), value(bytes) as i64) };
    }
}

/// Later stores of this thread follow those that [`Region::write_streamed`](crate::Region::write_streamed) made.
#[inline]
pub fn stream_fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a fence has no effect but on order.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

#[inline(always)]
fn value(bytes: &[u8]) -> u64 {
    let mut word = [0; WORD];
    word.copy_from_slice(bytes);
    u64::from_ne_bytes(word)
}

/// Replaces `bytes.len()` bytes of `word` from `skew` on. A compare-and-swap: a store of the whole word would undo what
/// others write beside these bytes, and a store of single bytes would race with word accesses at mixed size.
fn store_part(word: &AtomicU64, skew: usize, bytes: &[u8]) {
    let mut old = word.load(Ordering::Relaxed);
    loop {
        let mut new = old.to_ne_bytes();
        new[skew..skew + bytes.len()].copy_from_slice(bytes);
        match word.compare_exchange_weak(old, u64::from_ne_bytes(new), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => old = now,
        }
    }
}

/// Asks for the lines of these bytes to be written, so that no other core has them. A hint: any address is harmless.
#[inline]
pub fn claim(ptr: *const u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in 0..(ptr.addr() % BLOCK + len).div_ceil(BLOCK) {
        let line = ptr.wrapping_add(line * BLOCK);
        // SAFETY: a prefetch has no effect on memory and does not fault; processors that do not know this one ignore it.
        unsafe { std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags)) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (ptr, len);
}

/// Asks the cache for the lines of `len` bytes at `ptr`. A hint: any address is harmless.
#[inline(always)]
pub fn prefetch(ptr: *const u8, len: usize) {
    let (line, count) = lines_of(ptr, len);
    // Most often it is one.
    prefetch_lines(line, 1);
    if count > 1 {
        prefetch_lines(line.wrapping_add(BLOCK), count - 1);
    }
}

/// The line where bytes begin, and how many lines they touch.
#[inline(always)]
fn lines_of(ptr: *const u8, len: usize) -> (*const u8, usize) {
    let skew = ptr.addr() % BLOCK;
    (ptr.wrapping_sub(skew), skew.saturating_add(len).div_ceil(BLOCK))
}

/// Whether this processor compares eight words at a time.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub fn has_masks() -> bool {
    /// Asked once: it takes a dozen instructions.
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    const NO: u8 = 1;
    const YES: u8 = 2;

    #[cold]
    fn find_out() -> u8 {
        let has = std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("bmi2")
            && std::is_x86_feature_detected!("popcnt");
        let known = if has { YES } else { NO };
        KNOWN.store(known, Ordering::Relaxed);
        known
    }
    match KNOWN.load(Ordering::Relaxed) {
        0 => find_out() == YES,
        known => known == YES,
    }
}

/// How many of `count` words from `src` on are at most `most`, in whatever pieces is quickest: if somebody writes them
/// meanwhile, any number up to `count`. By a register that no code without AVX-512 knows, so that nobody's upper halves are
/// in the way, or are to be cleared.
///
/// # Safety
/// As for [`load`], of `count` aligned words; [`has_masks`] is true.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub unsafe fn count_at_most(src: *mut u8, count: usize, most: u64) -> usize {
    let found: usize;
    // SAFETY: the caller's promise; of the last, masked comparison only the words that are left are loaded.
    unsafe {
        std::arch::asm!(
            "vpbroadcastq zmm16, {most}",
            "xor {found:e}, {found:e}",
            "sub {left}, 8",
            "jb 3f",
            "2:",
            "vpcmpuq k1, zmm16, [{src}], 5",
            "kmovw {bits:e}, k1",
            "popcnt {bits:e}, {bits:e}",
            "add {found}, {bits}",
            "add {src}, 64",
            "sub {left}, 8",
            "jae 2b",
            "3:",
            "add {left}, 8",
            "jz 4f",
            "mov {bits:e}, -1",
            "bzhi {bits:e}, {bits:e}, {left:e}",
            "kmovw k2, {bits:e}",
            "vpcmpuq k1 {{k2}}, zmm16, [{src}], 5",
            "kmovw {bits:e}, k1",
            "popcnt {bits:e}, {bits:e}",
            "add {found}, {bits}",
            "4:",
            src = inout(reg) src => _,
            left = inout(reg) count => _,
            most = in(reg) most,
            found = out(reg) found,
            bits = out(reg) _,
            out("xmm16") _, out("k1") _, out("k2") _,
            options(nostack, readonly),
        );
    }
    found
}

/// Asks the cache for `count` lines from the one at `ptr` on. A hint: any address is harmless.
#[inline(always)]
pub fn prefetch_lines(ptr: *const u8, count: usize) {
    prefetch_to::<FIRST_LEVEL>(ptr, count);
}

/// Asks the second-level cache for the lines of `len` bytes at `ptr`. A hint: any address is harmless.
#[inline(always)]
pub fn prefetch_bytes_near(ptr: *const u8, len: usize) {
    let (line, count) = lines_of(ptr, len);
    prefetch_near(line, count);
}

/// Asks the second-level cache for `count` lines from the one at `ptr` on, which are to be read, but not yet. A hint:
/// any address is harmless.
#[inline(always)]
pub fn prefetch_near(ptr: *const u8, count: usize) {
    prefetch_to::<SECOND_LEVEL>(ptr, count);
}

/// The hints of x86-64 for a cache's levels.
const FIRST_LEVEL: i32 = 3;
const SECOND_LEVEL: i32 = 2;

#[inline(always)]
fn prefetch_to<const LEVEL: i32>(ptr: *const u8, count: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in 0..count {
        // SAFETY: a prefetch has no effect on memory and does not fault.
        unsafe { std::arch::x86_64::_mm_prefetch::<LEVEL>(ptr.wrapping_add(line * BLOCK).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (ptr, count);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// Every offset and length around words and blocks, against a plain copy.
    #[test]
    fn copies_equal_plain_copies() {
        let words: Vec<AtomicU64> = (0..140).map(|_| AtomicU64::new(0)).collect();
        let base = words.as_ptr().cast_mut().cast::<u8>();
        let data: Vec<u8> = (0..=255).cycle().skip(1).take(1120).collect();
        for offset in (0..17).step_by(if cfg!(miri) { 5 } else { 1 }) {
            for len in (0..30).chain([63, 64, 65, 127, 128, 200, 300, 511, 512, 513, 520, 583, 640, 700, 1000]) {
                let mut model = vec![0xAA; 1120];
                let mut seen = vec![0; 1120];
                // SAFETY: `offset + len` is within the 1120 bytes of `words`.
                unsafe {
                    store(base, &model);
                    store(base.add(offset), &data[..len]);
                    load(base, &mut seen);
                }
                model[offset..offset + len].copy_from_slice(&data[..len]);
                assert_eq!(seen, model, "store {len} bytes at {offset}");
                // SAFETY: as above.
                unsafe { load(base.add(offset), &mut seen[..len]) };
                assert_eq!(&seen[..len], &data[..len], "load {len} bytes at {offset}");
                seen.fill(0x55);
                // SAFETY: as above.
                unsafe { take(base.add(offset), &mut seen[..len]) };
                assert_eq!(&seen[..len], &data[..len], "take {len} bytes at {offset}");
                assert!(seen[len..].iter().all(|byte| *byte == 0x55), "no more than {len} bytes");
            }
        }
    }

    /// Every pair of offsets around words, from shared memory to shared memory.
    #[test]
    fn copies_between_shared_memories_equal_plain_copies() {
        type Copies = [(&'static str, unsafe fn(*mut u8, *mut u8, usize)); 3];
        const COPIES: Copies = [("lift", lift), ("land", land), ("carry", carry)];
        let shared = || (0..140).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let (from, to) = (shared(), shared());
        let (from, to) = (from.as_ptr().cast_mut().cast::<u8>(), to.as_ptr().cast_mut().cast::<u8>());
        let data: Vec<u8> = (0..=255).cycle().skip(1).take(1120).collect();
        let offsets = if cfg!(miri) { vec![0, 3] } else { (0..17).collect() };
        for (src, dst) in offsets.iter().flat_map(|src| offsets.iter().map(move |dst| (*src, *dst))) {
            for (len, (name, copy)) in [0, 1, 7, 8, 300, 511, 512, 513, 575, 600, 1000, 1024]
                .into_iter()
                .flat_map(|len| COPIES.map(|copy| (len, copy)))
            {
                let mut model = vec![0xAA; 1120];
                let mut seen = vec![0; 1120];
                // SAFETY: all lies within the 1120 bytes of either.
                unsafe {
                    store(from, &data);
                    store(to, &model);
                    copy(from.add(src), to.add(dst), len);
                    load(to, &mut seen);
                }
                model[dst..dst + len].copy_from_slice(&data[src..src + len]);
                assert_eq!(seen, model, "{name} of {len} bytes from {src} to {dst}");
            }
        }
    }

    /// Words that are aligned on both sides are carried whole while somebody writes them; and who sees the last byte sees all.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "the property is about three threads")]
    fn carried_words_are_whole_and_in_order() {
        const WORDS: usize = 160;
        let rounds = if cfg!(miri) { 5 } else { 400 };
        for (from, to, len) in [(0, 0, 1280), (8, 0, 1200), (8, 8, 1272), (4, 12, 1260), (5, 5, 300), (3, 11, 1101)] {
            let shared = || (0..WORDS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
            let (here, there) = (shared(), shared());
            let stop = AtomicBool::new(false);
            let at = |words: &[AtomicU64], offset: usize| words.as_ptr().cast_mut().cast::<u8>().wrapping_add(offset);
            // Words of the target that are whole within the range.
            let (first, last) = (usize::div_ceil(to, 8), (to + len) / 8);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut value = 0u8;
                    while !stop.load(Ordering::Relaxed) {
                        value = value.wrapping_add(1);
                        here.iter().for_each(|word| word.store(u64::from_ne_bytes([value; 8]), Ordering::Release));
                        std::thread::yield_now();
                    }
                });
                let carrier = scope.spawn(|| {
                    for _ in 0..rounds {
                        // SAFETY: within the words of either, which do not overlap.
                        unsafe { carry(at(&here, from), at(&there, to), len) };
                    }
                    stop.store(true, Ordering::Relaxed);
                });
                let mut torn = 0;
                while !stop.load(Ordering::Relaxed) {
                    for word in &there[first..last] {
                        let bytes = word.load(Ordering::Acquire).to_ne_bytes();
                        torn += u32::from(bytes != [bytes[0]; 8]);
                    }
                    std::thread::yield_now();
                }
                let _ = carrier.join();
                assert_eq!(torn, 0, "{len} bytes from {from} to {to}");
            });
            let seen = AtomicU64::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for round in 1..=rounds {
                        let value = u64::from_ne_bytes([round as u8; 8]);
                        here.iter().for_each(|word| word.store(value, Ordering::Relaxed));
                        // SAFETY: as above.
                        unsafe { carry(at(&here, from), at(&there, to), len) };
                        while seen.load(Ordering::Acquire) < round {
                            std::thread::yield_now();
                        }
                    }
                });
                let mut wrong = 0;
                for round in 1..=rounds {
                    let (mut byte, mut all) = ([!round as u8], vec![0; len]);
                    while byte[0] != round as u8 {
                        // SAFETY: as above.
                        unsafe { load(at(&there, to + len - 1), &mut byte) };
                        std::thread::yield_now();
                    }
                    // SAFETY: as above.
                    unsafe { load(at(&there, to), &mut all) };
                    wrong += u32::from(all.iter().any(|byte| *byte != round as u8));
                    seen.store(round, Ordering::Release);
                }
                assert_eq!(wrong, 0, "{len} bytes from {from} to {to}");
            });
        }
    }

    /// A poller on the last byte sees all bytes before it, and neighbours' writes to one word are never lost.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "the property is about two threads")]
    fn last_byte_publishes_the_rest() {
        const LEN: usize = 21;
        let rounds = if cfg!(miri) { 20 } else { 20_000 };
        let words: [AtomicU64; 4] = Default::default();
        let turn = AtomicBool::new(false);
        let at = |offset: usize| words.as_ptr().cast_mut().cast::<u8>().wrapping_add(offset);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=rounds {
                    // SAFETY: within the 32 bytes of `words`. The byte next to the message is this thread's own.
                    unsafe {
                        store(at(3), &[round as u8; LEN]);
                        store(at(1), &[round as u8]);
                    }
                    while !turn.swap(false, Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                }
            });
            // Judged at the end: a panic here would leave the other thread waiting.
            let mut wrong = 0;
            for round in 1..=rounds {
                let (mut last, mut all) = ([!round as u8], [0; LEN]);
                while last[0] != round as u8 {
                    // SAFETY: within the 32 bytes of `words`.
                    unsafe { load(at(3 + LEN - 1), &mut last) };
                    std::thread::yield_now();
                }
                // SAFETY: within the 32 bytes of `words`. The byte before the message is this thread's own.
                unsafe {
                    load(at(3), &mut all);
                    store(at(2), &[!round as u8]);
                    load(at(2), &mut last);
                }
                wrong += u32::from(all != [round as u8; LEN] || last != [!round as u8]);
                turn.store(true, Ordering::Release);
            }
            assert_eq!(wrong, 0, "of {rounds} rounds");
        });
    }
}

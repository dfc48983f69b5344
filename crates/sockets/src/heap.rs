//! Memory of this library's own: a handler of the program's may call functions that take some, while the program is in its
//! own `malloc`.
//!
//! Blocks of powers of two in lists, larger ones from the kernel. Threads take from different lists, as far as there are.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::null_mut;

use crate::spin::Spin;
use crate::sys;

/// The smallest block, as a power of two.
const LEAST: u32 = 4;
/// Sizes of blocks: up to 32 KB.
const SIZES: usize = 12;
/// Lists of each size.
const LISTS: usize = 8;
/// What is taken of the kernel at once, bytes.
const CHUNK: usize = 64 << 10;
/// What blocks are aligned to at most.
const PAGE: usize = 4096;

struct Free {
    next: *mut Free,
}

/// A list of free blocks of one size.
struct List(*mut Free);

// SAFETY: blocks that nobody has, behind a lock.
unsafe impl Send for List {}

/// One list beside no other.
#[repr(align(64))]
struct Apart(Spin<List>);

/// The memory.
pub struct Heap {
    lists: [[Apart; LISTS]; SIZES],
}

impl Heap {
    /// With nothing taken yet.
    pub const fn new() -> Self {
        Self { lists: [const { [const { Apart(Spin::new(List(null_mut()))) }; LISTS] }; SIZES] }
    }

    /// Before a fork.
    pub fn hold(&self) {
        self.lists.iter().flatten().for_each(|list| list.0.hold());
    }

    /// After it, in both.
    pub fn release(&self) {
        self.lists.iter().flatten().for_each(|list| list.0.release());
    }
}

/// Which size fits; none if none does.
fn size_of(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(1 << LEAST).next_power_of_two();
    let size = (bytes.trailing_zeros() - LEAST) as usize;
    (size < SIZES).then_some(size)
}

/// Which of the lists this thread takes from: its stack lies elsewhere than others'.
fn list_of_thread() -> usize {
    let here = 0u8;
    let at = std::ptr::from_ref(&here).addr() as u64;
    // Stacks are megabytes apart.
    ((at >> 20).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61) as usize % LISTS
}

fn map(bytes: usize) -> *mut u8 {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    match sys::call!(SYS_mmap, 0usize, bytes, prot, flags, -1, 0usize) {
        at if at < 0 => null_mut(),
        at => std::ptr::with_exposed_provenance_mut(at as usize),
    }
}

// SAFETY: blocks are as large as is asked for and aligned to their size, up to a page, and each is with one owner or in one
// list.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > PAGE {
            return null_mut();
        }
        let Some(size) = size_of(layout) else { return map(layout.size()) };
        let mut list = self.lists[size][list_of_thread()].0.lock();
        if list.0.is_null() {
            let (chunk, block) = (map(CHUNK), 1 << (LEAST + size as u32));
            if chunk.is_null() {
                return chunk;
            }
            for at in (0..CHUNK).step_by(block) {
                let free = chunk.wrapping_add(at).cast::<Free>();
                // SAFETY: a block of the chunk, which nobody has.
                unsafe { free.write(Free { next: list.0 }) };
                list.0 = free;
            }
        }
        let free = list.0;
        // SAFETY: a free block.
        list.0 = unsafe { (*free).next };
        free.cast()
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let Some(size) = size_of(layout) else {
            sys::call!(SYS_munmap, at, layout.size());
            return;
        };
        let mut list = self.lists[size][list_of_thread()].0.lock();
        // SAFETY: nobody has it any more.
        unsafe { at.cast::<Free>().write(Free { next: list.0 }) };
        list.0 = at.cast();
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's size is one that fits the alignment.
        let new = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        if size_of(layout).is_some() && size_of(layout) == size_of(new) {
            return at;
        }
        // SAFETY: as the caller promises.
        unsafe {
            let to = self.alloc(new);
            if !to.is_null() {
                std::ptr::copy_nonoverlapping(at, to, bytes.min(layout.size()));
                self.dealloc(at, layout);
            }
            to
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_apart_and_come_again() {
        let heap = Heap::new();
        let mut had = Vec::new();
        for (size, align) in
            [(1, 1), (16, 16), (17, 8), (100, 64), (4096, 4096), (30_000, 8), (32_769, 8), (1 << 20, 16)]
        {
            let layout = Layout::from_size_align(size, align).unwrap();
            for n in 0..20u8 {
                // SAFETY: a layout of more than nothing.
                let at = unsafe { heap.alloc(layout) };
                assert!(!at.is_null() && at.addr().is_multiple_of(align));
                // SAFETY: so many bytes.
                unsafe { at.write_bytes(n, size) };
                had.push((at, layout, n));
            }
        }
        for (at, layout, n) in &had {
            // SAFETY: as above.
            let bytes = unsafe { std::slice::from_raw_parts(*at, layout.size()) };
            assert!(bytes.iter().all(|byte| byte == n));
        }
        for (at, layout, n) in had {
            // SAFETY: it was taken with this layout.
            let at = unsafe { heap.realloc(at, layout, layout.size() + 100) };
            // SAFETY: so many bytes, and then all of them.
            assert!(unsafe { std::slice::from_raw_parts(at, layout.size()) }.iter().all(|byte| *byte == n));
            let layout = Layout::from_size_align(layout.size() + 100, layout.align()).unwrap();
            // SAFETY: as above.
            unsafe { heap.dealloc(at, layout) };
        }
        let layout = Layout::from_size_align(100, 64).unwrap();
        // SAFETY: as above.
        let (one, other) = unsafe { (heap.alloc(layout), heap.alloc(layout)) };
        assert_ne!(one, other);
        // SAFETY: one of them alone.
        unsafe { heap.dealloc(one, layout) };
        // SAFETY: as above.
        assert_eq!(unsafe { heap.alloc(layout) }, one);
    }
}

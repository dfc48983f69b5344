//! The k rows with the greatest scores of a table: only they leave the node.
//!
//! Rows are 16 bytes: id u64, score u64. Parameters: key u32, k u32 (1 to 256), address u64, rows u64. Reply: the rows
//! with the greatest scores, greatest first; of equal scores the one that stands first in the table.
//!
//! Build: remora kernel build kernels/topk.rs

#![no_std]

use core::ptr::{addr_of, addr_of_mut};

#[link(wasm_import_module = "remora")]
unsafe extern "C" {
    fn read(key: u32, va: u64, ptr: *mut u8, len: u32) -> i32;
    fn reply(ptr: *const u8, len: u32) -> i32;
}

/// Where the node puts the parameters.
#[unsafe(no_mangle)]
pub static mut params: [u8; 4096] = [0; 4096];

#[derive(Clone, Copy)]
#[repr(C)]
struct Row {
    id: u64,
    score: u64,
}

const NONE: Row = Row { id: 0, score: 0 };
const BLOCK: usize = 256;
static mut ROWS: [Row; BLOCK] = [NONE; BLOCK];
static mut BEST: [Row; 256] = [NONE; 256];

const OK: u32 = 0;
const BAD_PARAMS: u32 = 3;
const UNREADABLE: u32 = 16;
const REPLY_TOO_LONG: u32 = 17;

#[unsafe(no_mangle)]
pub extern "C" fn run(len: u32) -> u32 {
    // SAFETY: one thread runs the module, and statics are used in this function alone.
    let (input, rows, best) =
        unsafe { (&*addr_of!(params), &mut *addr_of_mut!(ROWS), &mut *addr_of_mut!(BEST)) };
    if len != 24 {
        return BAD_PARAMS;
    }
    let word = |at: usize| u32::from_le_bytes([input[at], input[at + 1], input[at + 2], input[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let (key, k, mut va, mut left) = (word(0), word(4) as usize, long(8), long(16));
    if k == 0 || k > best.len() {
        return BAD_PARAMS;
    }
    let mut have = 0;
    while left > 0 {
        let count = left.min(BLOCK as u64) as usize;
        let bytes = (16 * count) as u32;
        // SAFETY: the block has room for so many rows.
        if unsafe { read(key, va, rows.as_mut_ptr().cast(), bytes) } != 0 {
            return UNREADABLE;
        }
        for row in &rows[..count] {
            if have == k && row.score <= best[k - 1].score {
                continue;
            }
            // Insert it in order; the last one falls off.
            let mut at = have.min(k - 1);
            while at > 0 && best[at - 1].score < row.score {
                best[at] = best[at - 1];
                at -= 1;
            }
            best[at] = *row;
            have = (have + 1).min(k);
        }
        va += u64::from(bytes);
        left -= count as u64;
    }
    // SAFETY: these rows are there.
    match unsafe { reply(best.as_ptr().cast(), (16 * have) as u32) } {
        0 => OK,
        _ => REPLY_TOO_LONG,
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    core::arch::wasm32::unreachable()
}

//! A kernel: adds the words of an array in the node's memory. Parameters: key u32, count u32, address u64. Reply: u64.
//!
//! Build: remora kernel build template.rs

#![no_std]

use core::ptr::addr_of;

#[link(wasm_import_module = "remora")]
unsafe extern "C" {
    fn read(key: u32, va: u64, ptr: *mut u8, len: u32) -> i32;
    fn reply(ptr: *const u8, len: u32) -> i32;
}

/// Where the node puts the parameters.
#[unsafe(no_mangle)]
pub static mut params: [u64; 512] = [0; 512];

#[unsafe(no_mangle)]
pub extern "C" fn run(len: u32) -> u32 {
    if len != 16 {
        return 3;
    }
    // SAFETY: one thread runs the module.
    let [first, va, ..] = unsafe { *addr_of!(params) };
    let (key, count, mut sum) = (first as u32, first >> 32, 0u64);
    for i in 0..count {
        let mut word = 0u64;
        // SAFETY: the word has room for 8 bytes.
        if unsafe { read(key, va + 8 * i, (&raw mut word).cast(), 8) } != 0 {
            return 16;
        }
        sum = sum.wrapping_add(word);
    }
    // SAFETY: the sum is 8 bytes long.
    if unsafe { reply((&raw const sum).cast(), 8) } == 0 { 0 } else { 17 }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    core::arch::wasm32::unreachable()
}

//! Formatted output to a descriptor: the C library writes that past its own `write`.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use crate::calls::{self, c_functions, plain};
use crate::socket;

/// Writes what `make` makes, and allocates.
fn print(fd: c_int, make: impl FnOnce(*mut *mut c_char) -> c_int) -> c_int {
    let mut text = null_mut();
    let len = make(&raw mut text);
    if len < 0 {
        return -1;
    }
    let mut written = 0;
    while written < len as usize {
        // SAFETY: so many characters stand there.
        match unsafe { calls::write(fd, text.wrapping_add(written).cast(), len as usize - written) } {
            now @ 1.. => written += now as usize,
            _ => break,
        }
    }
    // SAFETY: made by the C library, and nobody else's.
    unsafe { libc::free(text.cast()) };
    if written == len as usize { len } else { -1 }
}

// A list of arguments is a pointer, on all processors that the rack is for.
c_functions! {
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
        if socket::find(fd).is_none() {
            return plain!(vdprintf: fn(c_int, *const c_char, *mut c_void) -> c_int, fd, format, arguments);
        }
        print(fd, |text| plain!(vasprintf:
            fn(*mut *mut c_char, *const c_char, *mut c_void) -> c_int, text, format, arguments))
    }

    fn __vdprintf_chk(fd: c_int, level: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
        if socket::find(fd).is_none() {
            return plain!(__vdprintf_chk:
                fn(c_int, c_int, *const c_char, *mut c_void) -> c_int, fd, level, format, arguments);
        }
        print(fd, |text| plain!(__vasprintf_chk:
            fn(*mut *mut c_char, c_int, *const c_char, *mut c_void) -> c_int, text, level, format, arguments))
    }
}

/// Defines functions of any number of arguments, behind so many bytes of fixed ones: each makes a list, as C's `va_start` does,
/// and goes on in one that takes it in a register.
#[cfg(target_arch = "x86_64")]
macro_rules! with_list {
    ($(fn $name:ident: $fixed:literal, $register:literal, $listed:ident;)*) => { $(
        #[doc = concat!("`", stringify!($name), "`.\n\n# Safety\n\nAs for the C library's.")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                ".cfi_startproc",
                "push rbp",
                ".cfi_def_cfa_offset 16",
                ".cfi_offset rbp, -16",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                // The list, 24 bytes, and room for the registers that arguments come in.
                "sub rsp, 208",
                "mov [rsp + 32], rdi",
                "mov [rsp + 40], rsi",
                "mov [rsp + 48], rdx",
                "mov [rsp + 56], rcx",
                "mov [rsp + 64], r8",
                "mov [rsp + 72], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 80], xmm0",
                "movaps [rsp + 96], xmm1",
                "movaps [rsp + 112], xmm2",
                "movaps [rsp + 128], xmm3",
                "movaps [rsp + 144], xmm4",
                "movaps [rsp + 160], xmm5",
                "movaps [rsp + 176], xmm6",
                "movaps [rsp + 192], xmm7",
                "2:",
                concat!("mov dword ptr [rsp], ", $fixed),
                "mov dword ptr [rsp + 4], 48",
                "lea rax, [rbp + 16]",
                "mov [rsp + 8], rax",
                "lea rax, [rsp + 32]",
                "mov [rsp + 16], rax",
                concat!("mov ", $register, ", rsp"),
                "call {listed}",
                "leave",
                ".cfi_def_cfa rsp, 8",
                "ret",
                ".cfi_endproc",
                listed = sym $listed,
            )
        }
    )* };
}

#[cfg(target_arch = "x86_64")]
with_list! {
    fn dprintf: 16, "rdx", vdprintf;
    fn __dprintf_chk: 24, "rcx", __vdprintf_chk;
}

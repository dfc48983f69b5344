//! The kernel's calls by their numbers, and programs that close descriptors so, by the C library's `syscall`.

use std::ffi::c_long;

unsafe extern "C-unwind" {
    /// A call of the kernel's: its result, a negative one an errno. A thread that is ended in it leaves its frames from there.
    #[link_name = "remora_sockets_raw"]
    pub fn raw(number: c_long, ...) -> c_long;
}

#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn remora_sockets_raw() {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "ret",
        ".cfi_endproc",
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn remora_sockets_raw() {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "mov x8, x0",
        "mov x0, x1",
        "mov x1, x2",
        "mov x2, x3",
        "mov x3, x4",
        "mov x4, x5",
        "mov x5, x6",
        "svc #0",
        "ret",
        ".cfi_endproc",
    )
}

/// The C library's `syscall`: all but these few calls go by as they come.
///
/// # Safety
///
/// As for the C library's.
#[cfg(all(not(test), target_arch = "x86_64"))]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn syscall() {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "cmp rdi, {close}",
        "je {closes}",
        "cmp rdi, {close_range}",
        "je {closes}",
        "cmp rdi, {dup2}",
        "je {closes}",
        "cmp rdi, {dup3}",
        "je {closes}",
        "cmp rdi, {uring}",
        "je {sets_up}",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 2f",
        "ret",
        "2:",
        "mov rdi, rax",
        "jmp {failed}",
        ".cfi_endproc",
        close = const libc::SYS_close,
        close_range = const libc::SYS_close_range,
        dup2 = const libc::SYS_dup2,
        dup3 = const libc::SYS_dup3,
        uring = const libc::SYS_io_uring_setup,
        closes = sym closes,
        sets_up = sym sets_up,
        failed = sym failed,
    )
}

#[cfg(all(not(test), target_arch = "x86_64"))]
extern "C" fn failed(error: c_long) -> c_long {
    remora_preload::set_errno(-error as std::ffi::c_int);
    -1
}

/// Calls after which a number is something else's. Nothing of the C library's is looked for: a program's own memory functions make
/// these calls while they are made ready.
#[cfg(all(not(test), target_arch = "x86_64"))]
unsafe extern "C-unwind" fn closes(number: c_long, one: c_long, other: c_long, flags: c_long) -> c_long {
    use crate::{calls, signals};
    use std::ffi::c_int;
    let _section = signals::Section::enter();
    let plain = |one: c_long, other: c_long| {
        // SAFETY: numbers alone.
        match unsafe { raw(number, one, other, flags) } {
            error @ ..0 => failed(error) as c_int,
            done => done as c_int,
        }
    };
    let (fd, to) = (one as c_int, other as c_int);
    let done = match number {
        libc::SYS_close => calls::close_by(fd, || plain(one, other)),
        libc::SYS_close_range => calls::close_range_by(one as u32, other as u32, flags as c_int, |one, other| {
            plain(one.into(), other.into())
        }),
        libc::SYS_dup2 => calls::dup2_by(fd, to, || plain(one, other)),
        _ => calls::dup3_by(fd, to, flags as c_int, || plain(one, other)),
    };
    done.into()
}

/// A ring of the kernel's for calls of all kinds: what goes by it, this library does not see. libuv, which has one to watch sockets
/// with, does without where there is none; connections of who else has one stay the kernel's.
#[cfg(all(not(test), target_arch = "x86_64"))]
unsafe extern "C-unwind" fn sets_up(number: c_long, entries: c_long, parameters: c_long) -> c_long {
    let _section = crate::signals::Section::enter();
    // SAFETY: a name.
    if !unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"uv_loop_init".as_ptr()) }.is_null() {
        return failed(-c_long::from(libc::ENOSYS));
    }
    // SAFETY: as the program promises.
    match unsafe { raw(number, entries, parameters) } {
        error @ ..0 => failed(error),
        ring => {
            crate::start::keep_to_kernel();
            ring
        }
    }
}

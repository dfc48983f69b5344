//! `stat` and its relatives: the kernel's answer, in which the device's nodes and channels are character devices.

use std::ffi::{c_char, c_int, c_uint};

use super::place::with_real;
use crate::{tree, ucma};

/// Everything `stat` goes here.
///
/// # Safety
///
/// As for fstatat(2).
pub(super) unsafe fn status(at: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) -> c_int {
    // SAFETY: as the caller promises; the kernel's structure is the library's on 64-bit machines.
    unsafe {
        let result = with_real(at, path, |real, _| libc::syscall(libc::SYS_newfstatat, at, real, out, flags)) as c_int;
        if result == 0 {
            let itself = flags & libc::AT_EMPTY_PATH != 0 && !path.is_null() && *path == 0;
            show(&mut *out, if itself { at } else { -1 });
        }
        result
    }
}

/// Makes a node of the tree, or a descriptor that is a channel, the character device that it stands for.
pub(super) fn show(found: &mut libc::stat, fd: c_int) {
    if let Some((major, minor)) = node(found.st_mode, found.st_size as u64, fd) {
        found.st_mode = libc::S_IFCHR | 0o666;
        found.st_rdev = libc::makedev(major, minor);
        (found.st_size, found.st_blocks) = (0, 0);
    }
}

/// The numbers of the character device that a file is shown as.
fn node(mode: u32, size: u64, fd: c_int) -> Option<(u32, u32)> {
    if ucma::is_channel(fd) { Some(tree::RDMA_CM) } else { tree::node(mode, size) }
}

/// Defines `stat` and its like, with what comes behind the structure if anything does, each also as programs from before
/// glibc 2.33 call it, with a version in front.
macro_rules! stats {
    ($($name:ident $old:ident($($from:ident: $type:ty),* $(; $more:ident: $last:ty)?) => ($at:expr, $path:expr, $flags:expr);)*) => { $(
        #[doc = concat!("`", stringify!($name), "`.\n\n# Safety\n\nAs for the C library's.")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($from: $type),*, out: *mut libc::stat $(, $more: $last)?) -> c_int {
            // SAFETY: as the caller promises.
            unsafe { status($at, $path, out, $flags) }
        }

        #[doc = concat!("`", stringify!($old), "`; the structure has one version on 64-bit machines.\n\n# Safety\n\nAs for the C library's.")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $old(_version: c_int, $($from: $type),*, out: *mut libc::stat $(, $more: $last)?) -> c_int {
            // SAFETY: as the caller promises.
            unsafe { status($at, $path, out, $flags) }
        }
    )* };
}

stats! {
    stat __xstat(path: *const c_char) => (libc::AT_FDCWD, path, 0);
    stat64 __xstat64(path: *const c_char) => (libc::AT_FDCWD, path, 0);
    lstat __lxstat(path: *const c_char) => (libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW);
    lstat64 __lxstat64(path: *const c_char) => (libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW);
    // The number that elsewhere means the working directory is no descriptor.
    fstat __fxstat(fd: c_int) => (fd.max(-1), c"".as_ptr(), libc::AT_EMPTY_PATH);
    fstat64 __fxstat64(fd: c_int) => (fd.max(-1), c"".as_ptr(), libc::AT_EMPTY_PATH);
    fstatat __fxstatat(at: c_int, path: *const c_char; flags: c_int) => (at, path, flags);
    fstatat64 __fxstatat64(at: c_int, path: *const c_char; flags: c_int) => (at, path, flags);
}

/// `statx`.
///
/// # Safety
///
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn statx(
    at: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    out: *mut libc::statx,
) -> c_int {
    // What nodes are known by.
    let mask = mask | libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_SIZE;
    // SAFETY: as the caller promises.
    unsafe {
        let result = with_real(at, path, |real, _| libc::syscall(libc::SYS_statx, at, real, flags, mask, out)) as c_int;
        if result == 0 {
            let itself = flags & libc::AT_EMPTY_PATH != 0 && !path.is_null() && *path == 0;
            let found = &mut *out;
            if let Some(numbers) = node(found.stx_mode.into(), found.stx_size, if itself { at } else { -1 }) {
                found.stx_mode = (libc::S_IFCHR | 0o666) as u16;
                (found.stx_rdev_major, found.stx_rdev_minor) = numbers;
                (found.stx_size, found.stx_blocks) = (0, 0);
            }
        }
        result
    }
}

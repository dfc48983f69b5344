//! Files that the kernel would have for the device: its node, which programs look for, and sysfs, of which they read a
//! little past the library. What is not there stays the kernel's to answer.

use std::ffi::{CStr, c_char, c_int};

use crate::port;

/// Opens one of the device's files in sysfs: a file in memory. `None` for all other paths.
pub fn open(path: &CStr) -> Option<c_int> {
    let content = port::sysfs(path.to_str().ok()?)?;
    // SAFETY: a name, then bytes of our own; the descriptor is new and becomes the program's.
    unsafe {
        let fd = libc::memfd_create(c"sysfs".as_ptr(), libc::MFD_CLOEXEC);
        if fd >= 0 {
            libc::write(fd, content.as_ptr().cast(), content.len());
            libc::write(fd, c"\n".as_ptr().cast(), 1);
            libc::lseek(fd, 0, libc::SEEK_SET);
        }
        Some(fd)
    }
}

/// The device's node.
const NODE: &CStr = c"/dev/infiniband/uverbs0";

/// `stat`: the device's node is a character device.
///
/// # Safety
///
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn stat(path: *const c_char, out: *mut libc::stat) -> c_int {
    // SAFETY: the caller passes a string or null; the rest is the kernel's to check.
    unsafe {
        let node = !path.is_null() && CStr::from_ptr(path) == NODE;
        libc::fstatat(libc::AT_FDCWD, if node { c"/dev/null".as_ptr() } else { path }, out, 0)
    }
}

/// `access`: the device's node may be read and written.
///
/// # Safety
///
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the caller passes a string or null; the rest is the kernel's to check.
    unsafe {
        if !path.is_null() && CStr::from_ptr(path) == NODE {
            return 0;
        }
        libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path, mode) as c_int
    }
}

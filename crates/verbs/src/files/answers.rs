//! Calls that answer with paths: names of the tree's places come without its root, and fit where these do.

use std::ffi::{c_char, c_int};

use remora_preload::{errno, next, set_errno};
use remora_real::presence;

use super::Callback;
use super::place::{ROOM, strip, strip_string, with_real};

/// What `readlink` and its like answer.
///
/// # Safety
///
/// As for readlinkat(2).
unsafe fn read_link(at: c_int, path: *const c_char, out: *mut c_char, size: usize) -> isize {
    // SAFETY: as the caller promises.
    unsafe {
        with_real(at, path, |path, _| {
            let len = libc::syscall(libc::SYS_readlinkat, at, path, out, size) as isize;
            let ours = len > 0 && presence::may_be_root(std::slice::from_raw_parts(out.cast(), len as usize));
            if ours { read_long_link(at, path, out, size) } else { len }
        })
    }
}

/// The same where the answer has a tree's root in front: perhaps there was no room for all of it.
///
/// # Safety
///
/// As there; `out` is good for `size` bytes.
#[cold]
#[inline(never)]
unsafe fn read_long_link(at: c_int, path: *const c_char, out: *mut c_char, size: usize) -> isize {
    let mut whole = [0; ROOM];
    // SAFETY: as the caller promises, and room of our own.
    unsafe {
        let len = libc::syscall(libc::SYS_readlinkat, at, path, whole.as_mut_ptr(), ROOM) as isize;
        let Ok(len) = usize::try_from(len) else { return len };
        let left = strip(&mut whole[..len]).min(size);
        std::ptr::copy_nonoverlapping(whole.as_ptr(), out.cast(), left);
        left as isize
    }
}

/// `readlink`.
///
/// # Safety
///
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn readlink(path: *const c_char, out: *mut c_char, size: usize) -> isize {
    // SAFETY: as the caller promises, here and below.
    unsafe { read_link(libc::AT_FDCWD, path, out, size) }
}

/// `readlinkat`.
///
/// # Safety
///
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn readlinkat(at: c_int, path: *const c_char, out: *mut c_char, size: usize) -> isize {
    // SAFETY: see above.
    unsafe { read_link(at, path, out, size) }
}

/// `__readlink_chk`; `room` is what the compiler knows of the buffer.
///
/// # Safety
///
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __readlink_chk(path: *const c_char, out: *mut c_char, size: usize, room: usize) -> isize {
    assert!(size <= room, "buffer overflow in readlink");
    // SAFETY: see above.
    unsafe { read_link(libc::AT_FDCWD, path, out, size) }
}

/// `__readlinkat_chk`.
///
/// # Safety
///
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __readlinkat_chk(
    at: c_int,
    path: *const c_char,
    out: *mut c_char,
    size: usize,
    room: usize,
) -> isize {
    assert!(size <= room, "buffer overflow in readlinkat");
    // SAFETY: see above.
    unsafe { read_link(at, path, out, size) }
}

/// `realpath`.
///
/// # Safety
///
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn realpath(path: *const c_char, out: *mut c_char) -> *mut c_char {
    // SAFETY: the caller passes a string or null, and room enough or null.
    unsafe {
        with_real(libc::AT_FDCWD, path, |path, place| {
            let answer = next!(realpath: fn(*const c_char, *mut c_char) -> *mut c_char, path, out);
            // These leave behind what it was that failed.
            let failed = answer.is_null() && place.is_some() && matches!(errno(), libc::ENOENT | libc::EACCES);
            if failed {
                strip_string(out);
            }
            strip_string(answer)
        })
    }
}

/// `__realpath_chk`; `room` is what the compiler knows of the buffer.
///
/// # Safety
///
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __realpath_chk(path: *const c_char, out: *mut c_char, room: usize) -> *mut c_char {
    assert!(room >= ROOM, "buffer overflow in realpath");
    // SAFETY: as the caller promises.
    unsafe { realpath(path, out) }
}

/// `canonicalize_file_name`.
///
/// # Safety
///
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: as the caller promises.
    unsafe { realpath(path, std::ptr::null_mut()) }
}

/// `getcwd`.
///
/// # Safety
///
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getcwd(out: *mut c_char, size: usize) -> *mut c_char {
    let answer = next!(getcwd: fn(*mut c_char, usize) -> *mut c_char, out, size);
    // SAFETY: null, or a string of the caller's or the C library's; and as the caller promises.
    unsafe {
        match strip_string(answer) {
            answer if answer.is_null() && errno() == libc::ERANGE => short_cwd(out, size),
            answer => answer,
        }
    }
}

/// The same where there was no room for the tree's root.
///
/// # Safety
///
/// As there.
#[cold]
#[inline(never)]
unsafe fn short_cwd(out: *mut c_char, size: usize) -> *mut c_char {
    let mut whole = [0; ROOM];
    // SAFETY: room of our own.
    let len = unsafe { libc::syscall(libc::SYS_getcwd, whole.as_mut_ptr(), ROOM) };
    // With a zero at its end.
    let len = usize::try_from(len).map_or(0, |len| strip(&mut whole[..len]));
    if len == 0 || len > size {
        set_errno(libc::ERANGE);
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's room is good for `size` bytes, as is the C library's.
    unsafe {
        let out = if out.is_null() { libc::malloc(size).cast() } else { out };
        if !out.is_null() {
            std::ptr::copy_nonoverlapping(whole.as_ptr(), out.cast(), len);
        }
        out
    }
}

/// `__getcwd_chk`; `room` is what the compiler knows of the buffer.
///
/// # Safety
///
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __getcwd_chk(out: *mut c_char, size: usize, room: usize) -> *mut c_char {
    assert!(size <= room, "buffer overflow in getcwd");
    // SAFETY: as the caller promises.
    unsafe { getcwd(out, size) }
}

/// `get_current_dir_name`.
///
/// # Safety
///
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn get_current_dir_name() -> *mut c_char {
    // SAFETY: null, or a string of the caller's.
    unsafe { strip_string(next!(get_current_dir_name: fn() -> *mut c_char,)) }
}

/// `glob` and `glob64`, which are one on 64-bit machines.
macro_rules! globbing {
    ($($name:ident)*) => { $(
        #[doc = concat!("`", stringify!($name), "`.\n\n# Safety\n\nAs for the C library's.")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name(
            pattern: *const c_char,
            flags: c_int,
            failed: Callback,
            out: *mut libc::glob_t,
        ) -> c_int {
            // SAFETY: the caller passes a string; the C library fills the answer: behind the places kept free, the paths.
            unsafe {
                with_real(libc::AT_FDCWD, pattern, |pattern, place| {
                    let result = next!($name: fn(*const c_char, c_int, Callback, *mut libc::glob_t) -> c_int,
                        pattern, flags, failed, out);
                    if result == 0 && place.is_some() {
                        let free = if flags & libc::GLOB_DOOFFS != 0 { (*out).gl_offs } else { 0 };
                        for index in free..free + (*out).gl_pathc {
                            strip_string(*(*out).gl_pathv.add(index));
                        }
                    }
                    result
                })
            }
        }
    )* };
}

globbing! { glob glob64 }

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    use crate::files::stat::stat;

    #[test]
    fn answers_are_named_as_they_were_asked_for() {
        let mut out = [0; ROOM];
        // SAFETY: strings, and room enough.
        unsafe {
            let answer = realpath(c"/sys/class/infiniband/remora0/../..".as_ptr(), out.as_mut_ptr());
            assert_eq!(CStr::from_ptr(answer).to_str().unwrap(), "/sys/devices/pci0052:00/0052:00:00.0");
            let len = readlink(c"/sys/class/infiniband/remora0".as_ptr(), out.as_mut_ptr(), ROOM);
            assert_eq!(len, "../../devices/pci0052:00/0052:00:00.0/infiniband/remora0".len() as isize);
            let mut found: libc::stat = std::mem::zeroed();
            assert_eq!(stat(c"/dev/infiniband/uverbs0".as_ptr(), &raw mut found), 0);
            assert_eq!((found.st_mode & libc::S_IFMT, found.st_rdev), (libc::S_IFCHR, libc::makedev(231, 192)));
        }
    }
}

//! The C library's functions that take a path, or tell of one: what belongs to the device they find in its
//! [`tree`](crate::tree).
//!
//! A call that names one of the tree's places goes on with the path of the real file there, and a path in an answer is
//! named as it was asked for. Every other call passes through, for the price of a look at the path. Programs built
//! against a C library before 2.33 call `__xstat` and its like instead of `stat`, hardened ones `__open_2` and its
//! like; functions of the C library that open files (`fopen`, `opendir`, `glob`) do so without these, and are here
//! too. Calls that programs make without the C library, as Go's do, see the kernel's files.
//!
//! | file      | what of them                                     |
//! |-----------|--------------------------------------------------|
//! | `place`   | whether a path is one of the tree's, and which   |
//! | `stat`    | what files are                                   |
//! | `answers` | paths in answers                                 |
//! | `walk`    | directories                                      |
//!
//! What may wait is a cancellation point: a thread that ends there unwinds through these functions.

use std::ffi::{CStr, c_char, c_int, c_void};

mod answers;
mod place;
mod stat;
mod walk;

use place::{Place, with_real};
pub use place::{read, untouched};
pub(crate) use remora_preload::next;
use remora_preload::set_errno;

use crate::ucma;

/// Defines functions whose path may be one of the tree's; the first form's is relative to the working directory, the
/// second's to an open directory. A program's call goes to the next function of the name.
macro_rules! with_path {
    ($($name:ident($path:ident $(, $more:ident: $type:ty)*) -> $result:ty;)*) => { $(
        #[doc = concat!("`", stringify!($name), "`.\n\n# Safety\n\nAs for the C library's.")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name($path: *const c_char $(, $more: $type)*) -> $result {
            // SAFETY: the caller passes a string or null.
            unsafe {
                with_real(libc::AT_FDCWD, $path, |$path, _| {
                    next!($name: fn(*const c_char $(, $type)*) -> $result, $path $(, $more)*)
                })
            }
        }
    )* };
    (at: $($name:ident($at:ident, $path:ident $(, $more:ident: $type:ty)*) -> $result:ty;)*) => { $(
        #[doc = concat!("`", stringify!($name), "`.\n\n# Safety\n\nAs for the C library's.")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name($at: c_int, $path: *const c_char $(, $more: $type)*) -> $result {
            // SAFETY: the caller passes a string or null.
            unsafe {
                with_real($at, $path, |$path, _| {
                    next!($name: fn(c_int, *const c_char $(, $type)*) -> $result, $at, $path $(, $more)*)
                })
            }
        }
    )* };
}

/// A compare or filter function that is passed on as it is.
type Callback = Option<unsafe extern "C" fn()>;

with_path! {
    opendir(path) -> *mut libc::DIR;
    scandir(path, list: *mut c_void, filter: Callback, compare: Callback) -> c_int;
    scandir64(path, list: *mut c_void, filter: Callback, compare: Callback) -> c_int;
    chdir(path) -> c_int;
    getxattr(path, name: *const c_char, value: *mut c_void, size: usize) -> isize;
    lgetxattr(path, name: *const c_char, value: *mut c_void, size: usize) -> isize;
    listxattr(path, list: *mut c_char, size: usize) -> isize;
    llistxattr(path, list: *mut c_char, size: usize) -> isize;
    access(path, mode: c_int) -> c_int;
    eaccess(path, mode: c_int) -> c_int;
    euidaccess(path, mode: c_int) -> c_int;
    statfs(path, out: *mut c_void) -> c_int;
    statfs64(path, out: *mut c_void) -> c_int;
    statvfs(path, out: *mut c_void) -> c_int;
    statvfs64(path, out: *mut c_void) -> c_int;
    pathconf(path, name: c_int) -> libc::c_long;
}

with_path! { at:
    faccessat(at, path, mode: c_int, flags: c_int) -> c_int;
    scandirat(at, path, list: *mut c_void, filter: Callback, compare: Callback) -> c_int;
    scandirat64(at, path, list: *mut c_void, filter: Callback, compare: Callback) -> c_int;
}

/// What becomes of a file of the tree that is opened with these flags.
enum Opening {
    /// It is opened, with these flags.
    File(c_int),
    /// It is the connection manager's node: a channel is made.
    Channel,
    /// With this errno.
    Refused(c_int),
}

/// As a kernel has it: files of sysfs are read and none is made there, and nodes have nothing to truncate.
fn opening(place: &Place, flags: c_int) -> Opening {
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & (libc::O_TRUNC | libc::O_CREAT) != 0;
    match place.as_slice() {
        _ if flags & libc::O_PATH != 0 => Opening::File(flags),
        ucma::DEVICE if flags & libc::O_DIRECTORY != 0 => Opening::Refused(libc::ENOTDIR),
        ucma::DEVICE if flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0 => Opening::Refused(libc::EEXIST),
        ucma::DEVICE => Opening::Channel,
        path if path.starts_with(b"/sys") && writes => Opening::Refused(libc::EACCES),
        _ => Opening::File(flags & !libc::O_TRUNC),
    }
}

/// Opens what a path names, by `open` if it is a file.
///
/// # Safety
///
/// `path` is a string or null.
#[inline]
unsafe fn open_by(
    at: c_int,
    path: *const c_char,
    flags: c_int,
    open: impl FnOnce(*const c_char, c_int) -> c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        with_real(at, path, |path, place| match place.map_or(Opening::File(flags), |place| opening(place, flags)) {
            Opening::File(flags) => open(path, flags),
            Opening::Channel => ucma::open(flags),
            Opening::Refused(code) => {
                set_errno(code);
                -1
            }
        })
    }
}

/// Defines `open` and its like. The connection manager's node is answered in this process. The last argument is there
/// only with some flags; it is passed on whatever it is.
macro_rules! opening {
    ($($name:ident $hardened:ident; $name_at:ident $hardened_at:ident;)*) => { $(
        #[doc = concat!("`", stringify!($name), "`.\n\n# Safety\n\nAs for the C library's.")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
            // SAFETY: as the caller promises.
            unsafe {
                open_by(libc::AT_FDCWD, path, flags, |path, flags| {
                    next!($name: fn(*const c_char, c_int, libc::mode_t) -> c_int, path, flags, mode)
                })
            }
        }

        #[doc = concat!("`", stringify!($name_at), "`.\n\n# Safety\n\nAs for the C library's.")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name_at(
            at: c_int,
            path: *const c_char,
            flags: c_int,
            mode: libc::mode_t,
        ) -> c_int {
            // SAFETY: as the caller promises.
            unsafe {
                open_by(at, path, flags, |path, flags| {
                    next!($name_at: fn(c_int, *const c_char, c_int, libc::mode_t) -> c_int, at, path, flags, mode)
                })
            }
        }

        #[doc = concat!("`", stringify!($hardened), "`, of programs built with checks: there is no mode.\n\n# Safety\n\nAs for the C library's.")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $hardened(path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: as the caller promises.
            unsafe { $name(path, flags, 0) }
        }

        #[doc = concat!("`", stringify!($hardened_at), "`.\n\n# Safety\n\nAs for the C library's.")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $hardened_at(at: c_int, path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: as the caller promises.
            unsafe { $name_at(at, path, flags, 0) }
        }
    )* };
}

opening! {
    open __open_2; openat __openat_2;
    open64 __open64_2; openat64 __openat64_2;
}

/// `openat2`, which C libraries have since 2.43; the kernel's rules for what may be named do for the tree, too, but for those
/// that keep all below an open directory.
///
/// # Safety
///
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn openat2(
    at: c_int,
    path: *const c_char,
    how: *const libc::open_how,
    size: usize,
) -> c_int {
    const BELOW: u64 = libc::RESOLVE_BENEATH | libc::RESOLVE_IN_ROOT;
    let call = |path: *const c_char, how: *const libc::open_how| {
        // SAFETY: as the caller promises.
        unsafe { libc::syscall(libc::SYS_openat2, at, path, how, size) as c_int }
    };
    // SAFETY: as the caller promises: so many bytes are there.
    unsafe {
        if how.is_null() || size != size_of::<libc::open_how>() || (*how).resolve & BELOW != 0 {
            return call(path, how);
        }
        let mut changed = *how;
        open_by(at, path, (*how).flags as c_int, |path, flags| {
            changed.flags = (*how).flags & !0xffff_ffff | u64::from(flags as u32);
            call(path, &raw const changed)
        })
    }
}

/// Defines `fopen` and its like.
macro_rules! streams {
    ($($name:ident($($stream:ident: $type:ty)?);)*) => { $(
        #[doc = concat!("`", stringify!($name), "`.\n\n# Safety\n\nAs for the C library's.")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name(
            path: *const c_char,
            mode: *const c_char,
            $($stream: $type,)?
        ) -> *mut libc::FILE {
            // SAFETY: the caller passes strings, the first one or null.
            unsafe {
                with_real(libc::AT_FDCWD, path, |path, place| {
                    let writes = place.is_some() && CStr::from_ptr(mode).to_bytes().iter().any(|b| b"wa+".contains(b));
                    let flags = if writes { libc::O_RDWR } else { libc::O_RDONLY };
                    // The connection manager's node is no stream of bytes; whoever opens it so gets the file.
                    if let Some(Opening::Refused(code)) = place.map(|place| opening(place, flags)) {
                        set_errno(code);
                        return std::ptr::null_mut();
                    }
                    next!($name: fn(*const c_char, *const c_char $(, $type)?) -> *mut libc::FILE,
                        path, mode $(, $stream)?)
                })
            }
        }
    )* };
}

streams! {
    fopen();
    fopen64();
    freopen(stream: *mut libc::FILE);
    freopen64(stream: *mut libc::FILE);
}

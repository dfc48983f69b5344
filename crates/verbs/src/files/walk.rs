//! Calls that walk through directories.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};

use remora_preload::{errno, next, set_errno};
use remora_real::presence;

use super::place::with_real;
use super::stat::{show, status};

/// What `ftw` calls for each file; the last argument is there for `nftw` alone.
type Visit = unsafe extern "C-unwind" fn(*const c_char, *const libc::stat, c_int, *mut Ftw) -> c_int;

/// `struct FTW`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ftw {
    base: c_int,
    level: c_int,
}

thread_local! {
    /// Whom this thread's walk through the tree is for.
    static VISITOR: Cell<Option<Visit>> = const { Cell::new(None) };
}

/// Calls whom the walk is for, with names and files as the program knows them.
///
/// # Safety
///
/// As for the function that `ftw` is given: strings and structures of the C library's.
unsafe extern "C-unwind" fn visit(path: *const c_char, found: *const libc::stat, kind: c_int, at: *mut Ftw) -> c_int {
    let Some(visitor) = VISITOR.get() else { return -1 };
    // SAFETY: as the caller promises; without a walk by `nftw` the last argument is not looked at.
    unsafe {
        let root = presence::root_len(CStr::from_ptr(path).to_bytes());
        let mut shown = *found;
        show(&mut shown, -1);
        let result = visitor(path.add(root), &raw const shown, kind, at);
        // What it walked through meanwhile is done.
        VISITOR.set(Some(visitor));
        result
    }
}

/// The same of a walk by `nftw`, which says where in the path the name begins.
///
/// # Safety
///
/// As above.
unsafe extern "C-unwind" fn visit_at(
    path: *const c_char,
    found: *const libc::stat,
    kind: c_int,
    at: *mut Ftw,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        let root = presence::root_len(CStr::from_ptr(path).to_bytes());
        let mut shown = Ftw { base: (*at).base - root as c_int, ..*at };
        visit(path, found, kind, &raw mut shown)
    }
}

/// Defines `ftw` and its like.
macro_rules! walks {
    ($($visit:ident: $($name:ident)* ($($more:ident: $type:ty)?);)*) => { $( walks!{@ $visit ($($more: $type)?) $($name)*} )* };
    (@ $visit:ident $more:tt $($name:ident)*) => { $( walks!{@@ $visit $name $more} )* };
    (@@ $visit:ident $name:ident ($($more:ident: $type:ty)?)) => {
        #[doc = concat!("`", stringify!($name), "`.\n\n# Safety\n\nAs for the C library's.")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name(path: *const c_char, visitor: Visit, open: c_int $(, $more: $type)?) -> c_int {
            // SAFETY: the caller passes a string.
            unsafe {
                with_real(libc::AT_FDCWD, path, |path, place| {
                    let before = VISITOR.replace(Some(visitor));
                    let visitor = if place.is_some() { $visit } else { visitor };
                    let result = next!($name: fn(*const c_char, Visit, c_int $(, $type)?) -> c_int,
                        path, visitor, open $(, $more)?);
                    VISITOR.set(before);
                    result
                })
            }
        }
    };
}

walks! {
    visit: ftw ftw64 ();
    visit_at: nftw nftw64 (flags: c_int);
}

/// `readdir` and `readdir64`, which are one on 64-bit machines: nodes are shown as such.
macro_rules! reading {
    ($($name:ident)*) => { $(
        #[doc = concat!("`", stringify!($name), "`.\n\n# Safety\n\nAs for the C library's.")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(dir: *mut libc::DIR) -> *mut libc::dirent {
            let entry = next!($name: fn(*mut libc::DIR) -> *mut libc::dirent, dir);
            // SAFETY: null, or the C library's own place for an entry of this directory.
            unsafe {
                if !entry.is_null() && (*entry).d_type == libc::DT_REG {
                    show_entry(dir, entry);
                }
            }
            entry
        }
    )* };
}

reading! { readdir readdir64 }

/// # Safety
///
/// An open directory and an entry of it.
unsafe fn show_entry(dir: *mut libc::DIR, entry: *mut libc::dirent) {
    // SAFETY: as the caller promises.
    unsafe {
        let name = (*entry).d_name.as_ptr();
        if !crate::tree::NODES.iter().any(|(node, _)| node.as_bytes() == CStr::from_ptr(name).to_bytes()) {
            return;
        }
        let before = errno();
        let mut found = std::mem::MaybeUninit::<libc::stat>::uninit();
        let there = status(libc::dirfd(dir), name, found.as_mut_ptr(), libc::AT_SYMLINK_NOFOLLOW) == 0;
        if there && found.assume_init().st_mode & libc::S_IFMT == libc::S_IFCHR {
            (*entry).d_type = libc::DT_CHR;
        }
        set_errno(before);
    }
}

/// `inotify_add_watch`.
///
/// # Safety
///
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn inotify_add_watch(fd: c_int, path: *const c_char, mask: u32) -> c_int {
    // SAFETY: the caller passes a string or null.
    unsafe {
        with_real(
            libc::AT_FDCWD,
            path,
            |path, _| next!(inotify_add_watch: fn(c_int, *const c_char, u32) -> c_int, fd, path, mask),
        )
    }
}

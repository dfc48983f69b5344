//! The C library's functions that take a path, or tell of one: what belongs to the device they find in its [`tree`].
//!
//! A call that names one of the tree's places goes on with the path of the real file there, and a path in an answer is
//! named as it was asked for. Every other call passes through, for the price of a look at the path. Programs built
//! against a C library before 2.33 call `__xstat` and its like instead of `stat`, hardened ones `__open_2` and its
//! like; functions of the C library that open files (`fopen`, `opendir`, `glob`) do so without these, and are here
//! too. Calls that programs make without the C library, as Go's do, see the kernel's files.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;

use remora_real::presence;

use crate::tree::{self, MARKS, PLACES};
use crate::{adapter, ucma};
pub(crate) use remora_preload::next;
use remora_preload::{errno, set_errno};

const ROOM: usize = libc::PATH_MAX as usize;

/// A path on the stack: functions that only open or look do not allocate.
struct Bytes {
    len: usize,
    bytes: [u8; ROOM],
}

impl Bytes {
    fn new() -> Self {
        Self { len: 0, bytes: [0; ROOM] }
    }

    /// Appends, and keeps a zero behind. False if there is no room.
    fn push(&mut self, more: &[u8]) -> bool {
        let end = self.len + more.len();
        if end >= ROOM {
            return false;
        }
        self.bytes[self.len..end].copy_from_slice(more);
        self.bytes[end] = 0;
        self.len = end;
        true
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Where a call goes that names one of the tree's places.
struct Found {
    real: Bytes,
    /// How long the path of the tree's root is: what follows is the place.
    root: usize,
}

impl Found {
    fn place(&self) -> &[u8] {
        &self.real.as_slice()[self.root..]
    }

    fn as_ptr(&self) -> *const c_char {
        self.real.bytes.as_ptr().cast()
    }

    /// Whether there is no such file, and the path goes up: perhaps out of the tree, into what the kernel has.
    fn leads_out(&self) -> bool {
        self.place().windows(3).any(|three| three == b"/..")
            // SAFETY: a string of our own.
            && unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, self.as_ptr(), libc::F_OK) } != 0
    }
}

/// The place that a path names, without the tree's root; `at` is the directory that a relative one starts from.
///
/// # Safety
///
/// `path` is null or a string.
unsafe fn place(at: c_int, path: *const c_char) -> Option<Bytes> {
    if path.is_null() {
        return None;
    }
    // SAFETY: as the caller promises.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let marked = MARKS.iter().any(|mark| path.windows(mark.len()).any(|part| part == mark.as_bytes()));
    // Names below a directory of a tree that is open the kernel knows, but not what they wait for.
    if !marked && !tree::wants_address(path) {
        return None;
    }
    let mut whole = Bytes::new();
    if path[0] != b'/' && !start(at, &mut whole) {
        return None;
    }
    for part in path.split(|&b| b == b'/') {
        match part {
            b"" | b"." => {}
            // Inside the tree the kernel follows its links.
            b".." if !inside(whole.as_slice()) => {
                whole.len = whole.as_slice().iter().rposition(|&b| b == b'/').unwrap_or(0);
            }
            part => {
                if !whole.push(b"/") || !whole.push(part) {
                    return None;
                }
            }
        }
    }
    inside(whole.as_slice()).then_some(whole)
}

/// Whether a path is one of the tree's places or lies below one.
fn inside(path: &[u8]) -> bool {
    PLACES
        .iter()
        .any(|place| path.strip_prefix(place.as_bytes()).is_some_and(|rest| rest.first().is_none_or(|&b| b == b'/')))
}

/// The path of a directory that is open, or of the one that this process is in. Empty for the root.
fn start(at: c_int, out: &mut Bytes) -> bool {
    let mut link = [0u8; 32];
    let link: &[u8] = if at == libc::AT_FDCWD {
        b"/proc/self/cwd\0"
    } else {
        use std::io::Write as _;
        let mut rest = &mut link[..];
        if write!(rest, "/proc/self/fd/{at}\0").is_err() {
            return false;
        }
        &link
    };
    let before = errno();
    // SAFETY: a string, and room of our own.
    let len =
        unsafe { libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, link.as_ptr(), out.bytes.as_mut_ptr(), ROOM - 1) };
    set_errno(before);
    let len = usize::try_from(len).unwrap_or(0);
    // In the tree of any process of this user, such as the one that started this one there.
    let skip = presence::root_len(&out.bytes[..len]);
    out.bytes.copy_within(skip..len, 0);
    out.len = len - skip;
    if out.as_slice() == b"/" {
        out.len = 0;
    }
    len > 0
}

thread_local! {
    /// This thread works on a tree: what it names are the files themselves.
    static AT_WORK: Cell<bool> = const { Cell::new(false) };
}

/// Does something whose paths are meant as they are.
pub fn untouched<R>(work: impl FnOnce() -> R) -> R {
    let before = AT_WORK.replace(true);
    let result = work();
    AT_WORK.set(before);
    result
}

/// Where in the tree a call goes. What follows from the device's address is there then.
///
/// # Safety
///
/// `path` is null or a string.
unsafe fn find(at: c_int, path: *const c_char) -> Option<Found> {
    if AT_WORK.get() {
        return None;
    }
    // SAFETY: as the caller promises.
    let place = unsafe { place(at, path) }?;
    let before = errno();
    let tree = tree::get();
    if tree.is_some() && tree::wants_address(place.as_slice()) {
        let _ = adapter::open();
    }
    if tree::is_counter(place.as_slice()) {
        tree::refresh();
    }
    let mut real = Bytes::new();
    let found = tree.filter(|tree| real.push(tree.root().as_os_str().as_bytes())).map(|_| real.len);
    let found = found.filter(|_| real.push(place.as_slice())).map(|root| Found { real, root });
    let found = found.filter(|found| !found.leads_out());
    set_errno(before);
    found
}

/// Takes the tree's root from the front of an answer of `len` bytes; returns how many are left.
///
/// # Safety
///
/// So many bytes may be read and written there.
unsafe fn strip(answer: *mut c_char, len: usize) -> usize {
    let Some(tree) = tree::built() else { return len };
    // SAFETY: as the caller promises.
    let bytes = unsafe { std::slice::from_raw_parts_mut(answer.cast::<u8>(), len) };
    let root = tree.root().as_os_str().as_bytes();
    match bytes.strip_prefix(root) {
        Some([b'/', ..]) => {
            bytes.copy_within(root.len().., 0);
            len - root.len()
        }
        _ => len,
    }
}

/// [`strip`] for a string, or null.
///
/// # Safety
///
/// As there.
unsafe fn strip_string(answer: *mut c_char) -> *mut c_char {
    if !answer.is_null() {
        // SAFETY: a string, which becomes no longer.
        unsafe {
            let len = strip(answer, CStr::from_ptr(answer).count_bytes());
            *answer.add(len) = 0;
        }
    }
    answer
}

/// The text of a file, the tree's or the kernel's.
pub fn read(path: &CStr) -> Option<String> {
    // SAFETY: a string.
    let real = unsafe { find(libc::AT_FDCWD, path.as_ptr()) };
    let path = real.as_ref().map_or(path.to_bytes(), |found| found.real.as_slice());
    std::fs::read_to_string(std::ffi::OsStr::from_bytes(path)).ok()
}

/// Defines functions whose path may be one of the tree's; the first form's is relative to the working directory, the
/// second's to an open directory. A program's call goes to the next function of the name.
macro_rules! with_path {
    ($($name:ident($path:ident $(, $more:ident: $type:ty)*) -> $result:ty;)*) => { $(
        #[doc = concat!("`", stringify!($name), "`.\n\n# Safety\n\nAs for the C library's.")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($path: *const c_char $(, $more: $type)*) -> $result {
            // SAFETY: the caller passes a string or null.
            let found = unsafe { find(libc::AT_FDCWD, $path) };
            let $path = found.as_ref().map_or($path, Found::as_ptr);
            next!($name: fn(*const c_char $(, $type)*) -> $result, $path $(, $more)*)
        }
    )* };
    (at: $($name:ident($at:ident, $path:ident $(, $more:ident: $type:ty)*) -> $result:ty;)*) => { $(
        #[doc = concat!("`", stringify!($name), "`.\n\n# Safety\n\nAs for the C library's.")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($at: c_int, $path: *const c_char $(, $more: $type)*) -> $result {
            // SAFETY: the caller passes a string or null.
            let found = unsafe { find($at, $path) };
            let $path = found.as_ref().map_or($path, Found::as_ptr);
            next!($name: fn(c_int, *const c_char $(, $type)*) -> $result, $at, $path $(, $more)*)
        }
    )* };
}

/// A compare or filter function that is passed on as it is.
type Callback = Option<unsafe extern "C" fn()>;

with_path! {
    fopen(path, mode: *const c_char) -> *mut libc::FILE;
    fopen64(path, mode: *const c_char) -> *mut libc::FILE;
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
}

with_path! { at:
    faccessat(at, path, mode: c_int, flags: c_int) -> c_int;
    scandirat(at, path, list: *mut c_void, filter: Callback, compare: Callback) -> c_int;
}

/// Defines `open` and its like. The connection manager's node is answered in this process. The last argument is there
/// only with some flags; it is passed on whatever it is.
macro_rules! opening {
    ($($name:ident $hardened:ident; $name_at:ident $hardened_at:ident;)*) => { $(
        #[doc = concat!("`", stringify!($name), "`.\n\n# Safety\n\nAs for the C library's.")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
            // SAFETY: as the caller promises.
            match unsafe { find(libc::AT_FDCWD, path) } {
                Some(found) if found.place() == ucma::DEVICE => ucma::open(flags),
                found => {
                    let path = found.as_ref().map_or(path, Found::as_ptr);
                    next!($name: fn(*const c_char, c_int, libc::mode_t) -> c_int, path, flags, mode)
                }
            }
        }

        #[doc = concat!("`", stringify!($name_at), "`.\n\n# Safety\n\nAs for the C library's.")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name_at(at: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
            // SAFETY: as the caller promises.
            match unsafe { find(at, path) } {
                Some(found) if found.place() == ucma::DEVICE => ucma::open(flags),
                found => {
                    let path = found.as_ref().map_or(path, Found::as_ptr);
                    next!($name_at: fn(c_int, *const c_char, c_int, libc::mode_t) -> c_int,
                        at, path, flags, mode)
                }
            }
        }

        #[doc = concat!("`", stringify!($hardened), "`, of programs built with checks: there is no mode.\n\n# Safety\n\nAs for the C library's.")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $hardened(path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: as the caller promises.
            unsafe { $name(path, flags, 0) }
        }

        #[doc = concat!("`", stringify!($hardened_at), "`.\n\n# Safety\n\nAs for the C library's.")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $hardened_at(at: c_int, path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: as the caller promises.
            unsafe { $name_at(at, path, flags, 0) }
        }
    )* };
}

opening! {
    open __open_2; openat __openat_2;
    open64 __open64_2; openat64 __openat64_2;
}

/// Everything `stat` goes here: the kernel's answer, in which the device's nodes and channels are character devices.
///
/// # Safety
///
/// As for fstatat(2).
unsafe fn status(at: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) -> c_int {
    // SAFETY: as the caller promises; the kernel's structure is the library's on 64-bit machines.
    unsafe {
        let found = find(at, path);
        let real = found.as_ref().map_or(path, Found::as_ptr);
        let result = libc::syscall(libc::SYS_newfstatat, at, real, out, flags) as c_int;
        if result != 0 {
            return result;
        }
        let itself = flags & libc::AT_EMPTY_PATH != 0 && !path.is_null() && *path == 0;
        if let Some((major, minor)) = node((*out).st_dev, (*out).st_ino, if itself { at } else { -1 }) {
            (*out).st_mode = libc::S_IFCHR | 0o666;
            (*out).st_rdev = libc::makedev(major, minor);
        }
        0
    }
}

/// The numbers of the character device that a file is shown as: a node of the tree, or a descriptor that is a channel.
fn node(dev: u64, inode: u64, fd: c_int) -> Option<(u32, u32)> {
    if ucma::is_channel(fd) {
        return Some(tree::RDMA_CM);
    }
    let tree = tree::built().filter(|tree| tree.dev == dev)?;
    tree.nodes.iter().find(|(node, _)| *node == inode).map(|(_, numbers)| *numbers)
}

/// Defines `stat` and its like, with what comes behind the structure if anything does, each also as programs from before glibc 2.33 call it, with a version in front.
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
    fstat __fxstat(fd: c_int) => (fd, c"".as_ptr(), libc::AT_EMPTY_PATH);
    fstat64 __fxstat64(fd: c_int) => (fd, c"".as_ptr(), libc::AT_EMPTY_PATH);
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
    // SAFETY: as the caller promises.
    unsafe {
        let found = find(at, path);
        let real = found.as_ref().map_or(path, Found::as_ptr);
        // The inode is what nodes are known by.
        let result = libc::syscall(libc::SYS_statx, at, real, flags, mask | libc::STATX_INO, out) as c_int;
        if result != 0 {
            return result;
        }
        let dev = libc::makedev((*out).stx_dev_major, (*out).stx_dev_minor);
        let itself = flags & libc::AT_EMPTY_PATH != 0 && !path.is_null() && *path == 0;
        if let Some((major, minor)) = node(dev, (*out).stx_ino, if itself { at } else { -1 }) {
            (*out).stx_mode = (libc::S_IFCHR | 0o666) as u16;
            ((*out).stx_rdev_major, (*out).stx_rdev_minor) = (major, minor);
        }
        0
    }
}

/// What `readlink` and its like answer: names of the tree's places without its root.
///
/// # Safety
///
/// As for readlinkat(2).
unsafe fn read_link(at: c_int, path: *const c_char, out: *mut c_char, size: usize) -> isize {
    // SAFETY: as the caller promises.
    unsafe {
        let found = find(at, path);
        let path = found.as_ref().map_or(path, Found::as_ptr);
        match libc::syscall(libc::SYS_readlinkat, at, path, out, size) {
            len if len > 0 => strip(out, len as usize) as isize,
            other => other as isize,
        }
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
    // SAFETY: the caller passes a string or null.
    let found = unsafe { find(libc::AT_FDCWD, path) };
    let path = found.as_ref().map_or(path, Found::as_ptr);
    let answer = next!(realpath: fn(*const c_char, *mut c_char) -> *mut c_char, path, out);
    // SAFETY: null, or a string of the caller's or the C library's.
    unsafe { strip_string(answer) }
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
    // SAFETY: null, or a string of the caller's or the C library's.
    unsafe { strip_string(answer) }
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

/// `glob` and `glob64`, which are one on 64-bit machines: paths in the answer are named as they were asked for.
macro_rules! globbing {
    ($($name:ident)*) => { $(
        #[doc = concat!("`", stringify!($name), "`.\n\n# Safety\n\nAs for the C library's.")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(
            pattern: *const c_char,
            flags: c_int,
            failed: Callback,
            out: *mut libc::glob_t,
        ) -> c_int {
            // SAFETY: the caller passes a string.
            let found = unsafe { find(libc::AT_FDCWD, pattern) };
            let path = found.as_ref().map_or(pattern, Found::as_ptr);
            let result = next!($name: fn(*const c_char, c_int, Callback, *mut libc::glob_t) -> c_int,
                path, flags, failed, out);
            if result == 0 && found.is_some() {
                // SAFETY: the C library has just filled it: behind the places kept free, the paths.
                unsafe {
                    let free = if flags & libc::GLOB_DOOFFS != 0 { (*out).gl_offs } else { 0 };
                    for index in free..free + (*out).gl_pathc {
                        strip_string(*(*out).gl_pathv.add(index));
                    }
                }
            }
            result
        }
    )* };
}

globbing! { glob glob64 }

#[cfg(test)]
mod tests {
    use super::*;

    fn place_of(path: &CStr) -> Option<String> {
        // SAFETY: a string.
        let found = unsafe { place(libc::AT_FDCWD, path.as_ptr()) };
        found.map(|found| String::from_utf8_lossy(found.as_slice()).into_owned())
    }

    #[test]
    fn paths_that_name_a_place() {
        let cases = [
            (c"/sys/class/infiniband", "/sys/class/infiniband"),
            (c"/sys/class/infiniband/", "/sys/class/infiniband"),
            (c"//sys/./class//infiniband/remora0", "/sys/class/infiniband/remora0"),
            (c"/sys/class/net/../infiniband/remora0/../..", "/sys/class/infiniband/remora0/../.."),
            (c"/dev/infiniband/rdma_cm", "/dev/infiniband/rdma_cm"),
        ];
        for (path, place) in cases {
            assert_eq!(place_of(path).as_deref(), Some(place), "{path:?}");
        }
        for path in [c"/sys/class/infiniband_mad", c"/usr/include/infiniband/verbs.h", c"infiniband", c"", c"/"] {
            assert_eq!(place_of(path), None, "{path:?}");
        }
    }

    #[test]
    fn names_relative_to_an_open_directory() {
        let root = std::fs::File::open("/").unwrap();
        let at = std::os::fd::AsRawFd::as_raw_fd(&root);
        // SAFETY: a string.
        let found = unsafe { place(at, c"sys/class/infiniband".as_ptr()) }.unwrap();
        assert_eq!(found.as_slice(), b"/sys/class/infiniband");
    }

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
        tree::get().unwrap().presence().leave();
    }
}

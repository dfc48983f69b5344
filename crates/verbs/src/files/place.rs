//! Which of a program's paths name one of the tree's places, and the path of the real file there.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use remora_preload::{errno, set_errno};
use remora_real::presence;

use crate::adapter;
use crate::cancel::Whole;
use crate::tree::{self, MARKS, PLACES};

/// The longest path, with the zero behind it.
pub(super) const ROOM: usize = libc::PATH_MAX as usize;
/// Room for the tree's root in front of a place.
const ROOT: usize = 64;

/// A place, as a path on the stack with room for the tree's root in front of it: functions that only open or look do not
/// allocate.
pub(super) struct Place {
    /// Where the path of the real file begins: the tree's root, once it is there.
    start: usize,
    end: usize,
    bytes: [u8; ROOT + ROOM],
}

impl Place {
    fn new() -> Self {
        Self { start: ROOT, end: ROOT, bytes: [0; ROOT + ROOM] }
    }

    /// Appends, and keeps a zero behind. False if there is no room.
    fn push(&mut self, more: &[u8]) -> bool {
        let end = self.end + more.len();
        if end >= self.bytes.len() {
            return false;
        }
        self.bytes[self.end..end].copy_from_slice(more);
        self.bytes[end] = 0;
        self.end = end;
        true
    }

    fn truncate(&mut self, len: usize) {
        self.end = ROOT + len;
        self.bytes[self.end] = 0;
    }

    /// Puts the tree's root in front. False if there is no room.
    fn root(&mut self, root: &[u8]) -> bool {
        if root.len() > ROOT {
            return false;
        }
        self.start = ROOT - root.len();
        self.bytes[self.start..ROOT].copy_from_slice(root);
        true
    }

    /// The path as the program knows it.
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[ROOT..self.end]
    }

    /// The path of the real file.
    fn real(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The same as a string.
    fn as_ptr(&self) -> *const c_char {
        self.bytes[self.start..].as_ptr().cast()
    }

    /// Appends a path, whose names for no directory (`.`, and `..` outside of the tree) are resolved.
    fn push_path(&mut self, path: &[u8]) -> bool {
        for part in path.split(|&b| b == b'/') {
            match part {
                b"" | b"." => {}
                // Inside the tree there are links.
                b".." if !inside(self.as_slice()) => {
                    let len = self.as_slice().iter().rposition(|&b| b == b'/').unwrap_or(0);
                    self.truncate(len);
                }
                part => {
                    if !self.push(b"/") || !self.push(part) {
                        return false;
                    }
                }
            }
        }
        // What ends so is a directory, and a link to one is followed.
        let directory = path.ends_with(b"/") || path.ends_with(b"/.");
        !(directory && inside(self.as_slice())) || self.push(b"/")
    }

    /// Resolves each `..` as the kernel does: behind a link it is the directory above the one that the link leads to. False
    /// if the path leads out of the tree.
    #[inline(never)]
    fn resolve_parents(&mut self) -> bool {
        let mut directory = [0; ROOM];
        while let Some(at) = parent(self.as_slice()) {
            let Some(len) = self.canonical(at, &mut directory) else { return true };
            // Between the root and the name at the end.
            let above = directory[..len].iter().rposition(|&b| b == b'/').unwrap_or(0);
            let rest = at + b"/..".len();
            let keep = self.as_slice().len() - rest;
            let kept = above + keep;
            if kept >= ROOM {
                return true;
            }
            self.bytes.copy_within(ROOT + rest..self.end, ROOT + above);
            self.bytes[ROOT..ROOT + above].copy_from_slice(&directory[..above]);
            self.truncate(kept);
            if !inside(&directory[..above]) {
                // Perhaps it leads back in, by names alone.
                directory[..kept].copy_from_slice(self.as_slice());
                self.truncate(0);
                if !self.push_path(&directory[..kept]) || !inside(self.as_slice()) {
                    self.start = ROOT;
                    if self.end == ROOT {
                        self.push(b"/");
                    }
                    return false;
                }
            }
        }
        true
    }

    /// The place of the directory that the first `len` bytes name, without links: its length. `None` if there is none.
    fn canonical(&mut self, len: usize, out: &mut [u8; ROOM]) -> Option<usize> {
        let end = ROOT + len;
        let next = std::mem::replace(&mut self.bytes[end], 0);
        // SAFETY: a string of our own.
        let fd = unsafe {
            let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
            libc::syscall(libc::SYS_openat, libc::AT_FDCWD, self.as_ptr(), flags) as c_int
        };
        self.bytes[end] = next;
        let len = if fd < 0 { 0 } else { path_of(fd, out) };
        // SAFETY: a descriptor of our own.
        unsafe { libc::syscall(libc::SYS_close, fd) };
        (len > 0).then_some(len)
    }
}

/// Where the first `/..` of a path stands.
fn parent(path: &[u8]) -> Option<usize> {
    let is_parent = |at: &usize| path[*at..].starts_with(b"/..") && path.get(at + 3).is_none_or(|&b| b == b'/');
    (0..path.len()).find(is_parent)
}

/// Whether a path is one of the tree's places or lies below one.
pub(super) fn inside(path: &[u8]) -> bool {
    PLACES
        .iter()
        .any(|place| path.strip_prefix(place.as_bytes()).is_some_and(|rest| rest.first().is_none_or(|&b| b == b'/')))
}

/// The path of a directory that is open, or of the one that this process is in, as the program knows it: its length, 0 if
/// there is none.
fn path_of(at: c_int, out: &mut [u8]) -> usize {
    let mut link = [0u8; 40];
    let link: &[u8] = if at == libc::AT_FDCWD {
        b"/proc/thread-self/cwd\0"
    } else {
        use std::io::Write as _;
        let mut rest = &mut link[..];
        if write!(rest, "/proc/thread-self/fd/{at}\0").is_err() {
            return 0;
        }
        &link
    };
    // SAFETY: a string, and room of our own.
    let len =
        unsafe { libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, link.as_ptr(), out.as_mut_ptr(), out.len() - 1) };
    let len = usize::try_from(len).unwrap_or(0);
    // In the tree of any process of this user, such as the one that started this one there.
    let skip = presence::root_len(&out[..len]);
    out.copy_within(skip..len, 0);
    len - skip
}

/// The place that a path names, without the tree's root; `at` is the directory that a relative one starts from.
///
/// # Safety
///
/// `path` is a string.
unsafe fn place(at: c_int, path: *const c_char, out: &mut Place) -> bool {
    // SAFETY: as the caller promises.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if path.first() != Some(&b'/') {
        let len = path_of(at, &mut out.bytes[ROOT..]);
        if len == 0 {
            return false;
        }
        // The root directory's name is the slash that comes next.
        out.truncate(if out.bytes[ROOT..ROOT + len] == *b"/" { 0 } else { len });
    }
    out.push_path(path) && inside(out.as_slice())
}

/// Whether a path may name one of the tree's places. Names below a directory of a tree that is open the kernel knows, but
/// not what they wait for.
///
/// # Safety
///
/// `path` is null or a string.
unsafe fn may_be_place(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: as the caller promises.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    tree::wants_address(path) || MARKS.iter().any(|mark| path.windows(mark.len()).any(|part| part == mark.as_bytes()))
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

/// Where a path leads.
enum Found {
    /// To a file of the tree.
    Tree,
    /// Out of the tree again.
    Outside,
    /// It has nothing to do with it.
    Other,
}

/// Where a call goes. What follows from the device's address is there then.
///
/// # Safety
///
/// `path` is a string.
unsafe fn find(at: c_int, path: *const c_char, out: &mut Place) -> Found {
    // SAFETY: as the caller promises.
    if AT_WORK.get() || !unsafe { place(at, path, out) } {
        return Found::Other;
    }
    let Some(tree) = tree::get() else { return Found::Other };
    if !out.root(tree.root().as_os_str().as_bytes()) {
        return Found::Other;
    }
    if parent(out.as_slice()).is_some() && !out.resolve_parents() {
        return Found::Outside;
    }
    if tree::wants_address(out.as_slice()) {
        let _ = adapter::open();
    }
    if tree::is_counter(out.as_slice()) {
        tree::refresh();
    }
    Found::Tree
}

/// Makes a call with the path that it goes to, and the place of the tree if it goes there. A call that has nothing to do with
/// the tree costs a look at the path, and little of the stack, which signal handlers and some threads have not much of.
///
/// # Safety
///
/// `path` is null or a string.
#[inline]
pub(super) unsafe fn with_real<R>(
    at: c_int,
    path: *const c_char,
    call: impl FnOnce(*const c_char, Option<&Place>) -> R,
) -> R {
    // SAFETY: as the caller promises.
    unsafe { if may_be_place(path) { with_place(at, path, call) } else { call(path, None) } }
}

/// # Safety
///
/// `path` is a string.
#[cold]
#[inline(never)]
unsafe fn with_place<R>(at: c_int, path: *const c_char, call: impl FnOnce(*const c_char, Option<&Place>) -> R) -> R {
    let mut place = Place::new();
    let before = errno();
    let found = {
        let _whole = Whole::new();
        // SAFETY: as the caller promises.
        unsafe { find(at, path, &mut place) }
    };
    set_errno(before);
    match found {
        Found::Tree => call(place.as_ptr(), Some(&place)),
        Found::Outside => call(place.as_ptr(), None),
        Found::Other => call(path, None),
    }
}

/// The text of a file, the tree's or the kernel's.
pub fn read(path: &CStr) -> Option<String> {
    let read = |path: &[u8]| std::fs::read_to_string(std::ffi::OsStr::from_bytes(path)).ok();
    // SAFETY: a string.
    unsafe { with_real(libc::AT_FDCWD, path.as_ptr(), |_, place| read(place.map_or(path.to_bytes(), Place::real))) }
}

/// Takes a tree's root from the front of an answer; returns how many bytes are left.
pub(super) fn strip(answer: &mut [u8]) -> usize {
    let len = answer.len();
    let root = presence::root_len(answer);
    let ours = root > 0 && [&b"/sys"[..], b"/dev"].iter().any(|top| answer[root..].starts_with(top));
    if !ours {
        return len;
    }
    answer.copy_within(root.., 0);
    len - root
}

/// [`strip`] for a string, or null.
///
/// # Safety
///
/// As it says, and nobody else has it yet.
pub(super) unsafe fn strip_string(answer: *mut c_char) -> *mut c_char {
    if !answer.is_null() {
        // SAFETY: a string, which becomes no longer.
        unsafe {
            let len = CStr::from_ptr(answer).count_bytes();
            let left = strip(std::slice::from_raw_parts_mut(answer.cast(), len));
            *answer.add(left) = 0;
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place_of(path: &CStr) -> Option<String> {
        let mut found = Place::new();
        // SAFETY: a string.
        let is_place = unsafe { may_be_place(path.as_ptr()) && place(libc::AT_FDCWD, path.as_ptr(), &mut found) };
        is_place.then(|| String::from_utf8_lossy(found.as_slice()).into_owned())
    }

    #[test]
    fn paths_that_name_a_place() {
        let cases = [
            (c"/sys/class/infiniband", "/sys/class/infiniband"),
            (c"/sys/class/infiniband/", "/sys/class/infiniband/"),
            (c"/sys/class/infiniband/remora0/.", "/sys/class/infiniband/remora0/"),
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
        let long = [&b"/dev/infiniband/"[..], &[b'x'; ROOM], b"\0"].concat();
        assert_eq!(place_of(CStr::from_bytes_with_nul(&long).unwrap()), None, "longer than a path can be");
    }

    #[test]
    fn names_relative_to_an_open_directory() {
        let root = std::fs::File::open("/").unwrap();
        let at = std::os::fd::AsRawFd::as_raw_fd(&root);
        let mut found = Place::new();
        // SAFETY: a string.
        assert!(unsafe { place(at, c"sys/class/infiniband".as_ptr(), &mut found) });
        assert_eq!(found.as_slice(), b"/sys/class/infiniband");
    }

    #[test]
    fn parents_are_those_of_what_links_lead_to() {
        let tree = tree::get().unwrap();
        let cases = [
            ("/sys/class/infiniband/remora0/../..", "/sys/devices/pci0052:00/0052:00:00.0", true),
            ("/sys/class/infiniband/../infiniband/remora0", "/sys/class/infiniband/remora0", true),
            ("/dev/infiniband/../infiniband/rdma_cm", "/dev/infiniband/rdma_cm", true),
            ("/dev/infiniband/rdma_cm/../uverbs0", "/dev/infiniband/rdma_cm/../uverbs0", true),
            ("/sys/class/infiniband/nobody/../x", "/sys/class/infiniband/nobody/../x", true),
            ("/sys/class/infiniband/..", "/sys/class", false),
            ("/sys/class/infiniband/../net/lo", "/sys/class/net/lo", false),
            ("/sys/class/infiniband/remora0/../../../../../class/net", "/sys/class/net", false),
            ("/dev/infiniband/../..", "/", false),
        ];
        for (path, expected, in_tree) in cases {
            let mut place = Place::new();
            assert!(place.push_path(path.as_bytes()) && place.root(tree.root().as_os_str().as_bytes()));
            assert_eq!(place.resolve_parents(), in_tree, "{path}");
            assert_eq!(String::from_utf8_lossy(place.as_slice()), expected, "{path}");
        }
    }
}

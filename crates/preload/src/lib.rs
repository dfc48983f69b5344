//! What libraries that stand before the C library share: the next function of a name, and errno.
//!
//! A preloaded library defines functions of the C library's names. Each decides whether a call is its business, and if
//! not passes it on with [`next!`](crate::next).

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Of functions that are there twice, such as `realpath` and `glob`, the newer one: before glibc 2.36 `dlsym` finds the older
/// one here. musl has each once, without versions.
fn versioned(name: &CStr) -> Option<*mut c_void> {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: names that end in zero.
        let find = |version: &CStr| unsafe { libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr()) };
        [c"GLIBC_2.27", c"GLIBC_2.3.3", c"GLIBC_2.3"].into_iter().map(find).find(|found| !found.is_null())
    }
    #[cfg(not(target_env = "gnu"))]
    {
        let _ = name;
        None
    }
}

/// The function that this library's stands before.
pub struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    /// The function of a name.
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address. Ends the process if the C library has no such function: a program that calls it has none either.
    #[inline]
    pub fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() { self.find() } else { found }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: a name that ends in zero.
        let plain = || unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        let found = versioned(self.name).unwrap_or_else(plain);
        assert!(!found.is_null(), "the C library has this function");
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Calls the next function of a name and type.
#[macro_export]
macro_rules! next {
    ($name:ident: fn($($type:ty),*) -> $result:ty, $($argument:expr),*) => {{
        const NAME: &std::ffi::CStr =
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            };
        static NEXT: $crate::Next = $crate::Next::new(NAME);
        // SAFETY: the C library's function of this name has this type.
        // A thread that is cancelled in it unwinds.
        let function: unsafe extern "C-unwind" fn($($type),*) -> $result = unsafe { std::mem::transmute(NEXT.get()) };
        // SAFETY: the caller's arguments, unchanged or as the library's own function has made them.
        unsafe { function($($argument),*) }
    }};
}

/// The calling thread's errno.
pub fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Sets the calling thread's errno.
pub fn set_errno(code: c_int) {
    // SAFETY: the C library's own place for this thread.
    unsafe { *libc::__errno_location() = code };
}

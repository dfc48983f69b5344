//! The C library's functions of sockets and descriptors.
//!
//! Each looks whether its descriptor is one that the rack may have, and passes the call on if not. A program's pointers are
//! what the C library's manual pages ask for; nothing here looks at more than these say.

mod bytes;
mod descriptors;
mod waits;

use std::ffi::{c_int, c_long};

use libc::ssize_t;
use remora_preload::set_errno;

pub use bytes::{recv, send, transmit, write};
pub use descriptors::{close, close_by, close_range_by, closing, dup2_by, dup3_by, shutdown};
pub use waits::poll;

/// What a function of the C library returns for a result of the kernel's.
fn result(result: isize) -> ssize_t {
    if result < 0 {
        set_errno(-result as c_int);
        return -1;
    }
    result
}

/// Defines functions of the C library's names.
macro_rules! c_names {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block)*) => { $(
        #[doc = concat!("`", stringify!($name), "`.\n\n# Safety\n\nAs for the C library's.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result $body
    )* };
}
pub(crate) use c_names;

/// Defines functions of the C library's names, amid which no handler runs but where they say so.
macro_rules! c_functions {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block)*) => {
        $crate::calls::c_names! { $(
            fn $name($($argument: $type),*) -> $result {
                let _section = $crate::signals::Section::enter();
                $body
            }
        )* }
    };
}
pub(crate) use c_functions;

/// The C library's own function, as of `next!`: what it does is not this library's work.
macro_rules! plain {
    ($($call:tt)*) => { $crate::signals::apart(|| remora_preload::next!($($call)*)) };
}
pub(crate) use plain;

const _: () = assert!(size_of::<c_long>() == 8);

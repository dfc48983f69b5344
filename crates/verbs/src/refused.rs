//! Functions that other drivers of rdma-core, which programs may be linked with, expect of the library; and those of
//! its first version, which no program of the last fifteen years calls. All of them refuse.

use std::ffi::{c_int, c_uint, c_void};

use crate::events::{fail, refuse};

/// An `ibv_cmd_*` function: there is no kernel to pass a command to. What it takes does not matter.
pub extern "C" fn command() -> c_int {
    libc::EOPNOTSUPP
}

/// A function that returns a descriptor, or -1.
pub extern "C" fn descriptor() -> c_int {
    refuse(libc::EOPNOTSUPP);
    -1
}

/// A function that returns an object.
pub extern "C" fn object() -> *mut c_void {
    fail(libc::EOPNOTSUPP)
}

/// A function of the first version that returns a number.
pub extern "C" fn old_number() -> c_int {
    libc::ENOSYS
}

/// A function of the first version that returns an object.
pub extern "C" fn old_object() -> *mut c_void {
    fail(libc::ENOSYS)
}

/// A function that tells something: a driver registers, or logs. There is no use for it.
pub extern "C" fn nothing() {}

/// `__ioctl_final_num_attrs`: of a command that is never sent.
pub extern "C" fn ioctl_attrs(count: c_uint) -> c_uint {
    count
}

/// A function with nothing to do, which succeeds: fork needs no preparation, as children leave the device alone.
pub extern "C" fn success() -> c_int {
    0
}

/// `ibv_is_fork_initialized`: `IBV_FORK_UNNEEDED`.
pub extern "C" fn fork_status() -> c_int {
    2
}

//! What a kernel's module imports and exports.
//!
//! Imports, all from module `remora`; each is optional. `ptr` is an address in the module's own memory, and one outside
//! of it ends the call with `Trapped`. What can fail returns 0 or a negative [`code`].
//!
//! ```text
//!  read(key: i32, va: i64, ptr: i32, len: i32) -> i32             copies remote memory to ptr
//!  write(key: i32, va: i64, ptr: i32, len: i32) -> i32            copies ptr to remote memory
//!  compare_swap(key: i32, va: i64, expect: i64, new: i64, ptr: i32) -> i32   what was there goes to ptr, 8 bytes
//!  fetch_add(key: i32, va: i64, n: i64, ptr: i32) -> i32          what was there goes to ptr, 8 bytes
//!  params(at: i32, ptr: i32, len: i32) -> i32                     bytes of the parameters from `at` on, at most len
//!  next_chunk(ptr: i32, len: i32) -> i32                          bytes of the payload, at most len; 0 at its end
//!  reply(ptr: i32, len: i32) -> i32                               appends to the reply
//!  log(ptr: i32, len: i32) -> i32                                 a text for `remora kernel run`; elsewhere nothing
//! ```
//!
//! Exports:
//!
//! ```text
//!  memory                      the module's memory
//!  params: global i32          where the parameters go: room for 4096 bytes, of longer ones the first
//!  run(len: i32) -> i32        the entry; returns 0, 1 (not found), 3 (bad parameters) or its own status, 16 to 254
//! ```
//!
//! A module that does not import `params` gets no call with more than 4096 bytes of parameters. `params` and `next_chunk` bring
//! 64 KB at a time at most, and each access, text, piece and reply pays 32 and an eighth of its bytes in fuel.

use remora_kernel::Fault;

/// Bytes of parameters that a module has room for at `params`. It asks for more of them by the import of that name.
pub const PARAMS_LEN: usize = 4096;
/// At most this much of a payload, of parameters or of the node's memory goes into a module or out of it at a time.
pub const CHUNK: u32 = 64 << 10;
/// The name that functions are imported from.
pub const IMPORT_MODULE: &str = "remora";
/// The reply would be longer than the caller has room for.
pub const REPLY_TOO_LONG: i32 = -6;

/// What an access that failed returns.
pub fn code(fault: Fault) -> i32 {
    match fault {
        Fault::Access => -1,
        Fault::Misaligned => -2,
        Fault::StepLimit => -3,
        Fault::ByteLimit => -4,
        Fault::Lost => -5,
    }
}

//! What librdmacm asks of the kernel: the character device `/dev/infiniband/rdma_cm`, answered in the process.
//!
//! rdma-core's own `librdmacm.so.1` runs unchanged on top. It opens the device once for each event channel, writes
//! commands to the descriptor (`rdma/rdma_user_cm.h`), and polls it for events. Here the descriptor is an eventfd, and
//! the C library's functions that librdmacm uses on it are interposed.
//!
//! | file     | what                                                              |
//! |----------|-------------------------------------------------------------------|
//! | `file`   | the device as a file: its channels, `write`, `close`              |
//! | `abi`    | commands, answers and events as bytes                             |
//! | `state`  | identifiers, and what commands do to them                         |
//! | `follow` | what the connection manager's events mean to programs             |
//!
//! The connection manager itself is the engine's, `remora_nic::cm`.

mod abi;
mod file;
mod follow;
mod state;
#[cfg(test)]
mod tests;

pub use file::{DEVICE, Still, is_channel, open, own, still};

//! The sockets library: TCP connections between two processes of a rack pass through shared memory.
//!
//! `remora rack exec` puts it before the C library of an unmodified program. Every connection begins as the kernel's, and
//! most of what programs ask of it stays so: names, options, limits, handshake, end. Busy ones whose other end is in the rack
//! too pass their bytes through rings in a buffer that only these two processes see.
//!
//! | file     | what                                                                              |
//! |----------|-----------------------------------------------------------------------------------|
//! | `start`  | loading and forking                                                               |
//! | `socket` | which descriptors are TCP sockets, and what each one's state is                   |
//! | `rack`   | the way to the daemon                                                             |
//! | `gate`, `far` | the way to another rack, and connections of the kernel's that go on there    |
//! | `link`   | the buffer: a ring each way, positions, wishes for bells                          |
//! | `stream` | sending and receiving: changing over, waiting, ends                               |
//! | `epoll`, `wait`  | `epoll`, `poll` and `select`                                              |
//! | `calls`, `files`, `print` | the C library's functions: sockets and descriptors; files to sockets; text |
//! | `handover`, `relay` | connections that go to other programs                            |
//! | `signals`, `handlers`, `jumps` | a program's handlers, and threads that are ended, amid all this   |
//! | `spin`, `heap`, `own`, `sys`, `raw` | locks and looking; memory; descriptors; the kernel's calls |
//!
//! What the rack cannot do as the kernel does stays with the kernel, silently: a peer that is not in the rack, a socket
//! with unusual options, a program that waits for its sockets by other means.

// Tests are programs of their own, without the symbols.
#![cfg_attr(test, allow(dead_code, unused_imports))]

#[cfg(not(test))]
mod calls;
mod epoll;
mod far;
#[cfg(not(test))]
mod files;
mod gate;
#[cfg(not(test))]
mod handlers;
#[cfg(not(test))]
mod handover;
mod heap;
#[cfg(not(test))]
mod jumps;
mod link;
mod messages;
mod own;
#[cfg(not(test))]
mod print;
mod rack;
mod raw;
#[cfg(not(test))]
mod relay;
mod sharers;
mod signals;
mod socket;
mod spin;
mod start;
mod stream;
mod sys;
mod wait;

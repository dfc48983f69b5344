//! `libibverbs.so.1`: unmodified RDMA programs on Remora.
//!
//! A program that was compiled against rdma-core finds here one device, `remora0`, which is the software NIC of
//! `remora-nic` with the links of `remora-real`. `remora exec` runs a program with it.
//!
//! | file       | what of the verbs interface                                        |
//! |------------|--------------------------------------------------------------------|
//! | `symbols`  | names and versions of the functions                                |
//! | `abi`      | layouts and values of the header                                   |
//! | `adapter`  | the process's device: address, links, forks                        |
//! | `cancel`   | threads that are cancelled                                         |
//! | `context`  | open devices, protection domains                                   |
//! | `device`, `port`, `strings` | queries                                           |
//! | `memory`, `maps`, `buffers` | memory regions and windows                        |
//! | `cq`, `cq_ex`, `events`, `manners` | completion queues, channels, asynchronous events  |
//! | `qp`, `srq`, `ah`           | queue pairs, shared receive queues, addresses     |
//! | `post`, `qp_ex`  | work requests                                                |
//! | `kern`, `refused`  | what librdmacm and other drivers expect                    |
//! | `files`, `tree`, `ucma`     | what programs expect of the kernel                |
//!
//! Functions are called with pointers that the program got from here: what it may pass is said in the header's manual
//! pages. Errors are those of a driver: an errno returned, or null with errno set. Nothing panics; if something did
//! all the same, the process would end there instead of going on in an unknown state.

// Tests are programs of their own, without the symbols, through which all is used.
#![cfg_attr(test, allow(dead_code))]

mod abi;
mod adapter;
mod ah;
mod buffers;
mod cancel;
mod context;
mod cq;
mod cq_ex;
mod device;
mod events;
mod files;
mod kern;
mod manners;
mod maps;
mod memory;
mod port;
mod post;
mod qp;
mod qp_ex;
mod refused;
mod settings;
mod srq;
mod strings;
#[cfg(not(test))]
mod symbols;
mod tree;
mod ucma;

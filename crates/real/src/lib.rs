//! The real world: links, threads, clocks, nodes and clients.

pub mod link;

//! The real world: links, threads, clocks, nodes and clients.

//! Kernels: small programs that run next to the data, written once and placed anywhere.

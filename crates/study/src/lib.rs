//! Workloads, measurement and reports.

pub mod records;
pub mod trace;
pub mod workload;

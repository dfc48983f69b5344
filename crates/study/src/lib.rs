//! Workloads, measurement and reports.

pub mod format;
pub mod machine;
pub mod measure;
pub mod records;
pub mod report;
pub mod trace;
pub mod verdict;
pub mod workload;

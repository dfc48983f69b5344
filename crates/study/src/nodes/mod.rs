//! Nodes and clusters of them as child processes of the `remora` command, on this machine.

mod cluster;
mod process;
mod settings;
mod single;

pub use cluster::{CLUSTER_READY, ClusterProcesses, ask};
pub use settings::{ClusterSettings, ClusterShape, lock};
pub(crate) use single::ClientMemory;
pub use single::{NODE_READY, NodeProcess};

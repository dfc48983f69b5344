//! Workloads, measurement and reports: which placement of a kernel wins, by how much, and why.
//!
//! A [`connection::Connection`] is a node reached over one link. [`store::Store`] loads records, lists and checked objects
//! into it; [`compare::compare`] runs every operation in every placement over every link and checks every result;
//! [`report::Report`] shows what came out as a table, as JSON and as an HTML page.

pub mod auto;
pub mod baseline;
pub mod bench_btree;
pub mod bench_model;
pub mod bench_neighbours;
pub mod bench_partition;
pub mod bench_wasm;
pub mod bluefield;
pub mod calling;
pub mod compare;
pub mod connection;
pub mod dfabric;
pub mod dlrm;
pub mod forge;
pub mod format;
pub mod kernel_calls;
pub mod kills;
pub mod kv;
pub mod load;
#[cfg(test)]
mod local;
pub mod machine;
pub mod measure;
pub mod minos;
pub mod modelled;
pub mod nodes;
pub mod on;
pub mod on_kernel;
pub mod operations;
pub mod peers;
pub mod probe;
pub mod rambda;
pub mod records;
pub mod report;
pub mod reproduce;
pub mod store;
pub mod strom;
pub mod trace;
pub mod validate;
pub mod verdict;
pub mod where_;
pub mod workload;
pub mod ycsb;

use std::time::Duration;

use remora_kernel::Placement;
use remora_real::LinkKind;

/// What a study measured until something ended it.
pub type MeasuredRows<R> = remora_lab::MeasuredRows<R, StudyError>;

/// Why a study ended early.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// The node or the way to it failed.
    #[error(transparent)]
    Target(#[from] remora_real::Error),
    /// A tree cannot be built.
    #[error(transparent)]
    Tree(#[from] remora_kernel::btree::BuildError),
    /// The modelled world cannot go on.
    #[error(transparent)]
    World(#[from] remora_model::world::WorldError),
    /// A file of the user is bad.
    #[error(transparent)]
    Input(#[from] records::InputError),
    /// The records make no table.
    #[error("cannot build the hash table: {0}")]
    Table(#[from] remora_store::text::RecordsError),
    /// A result was not what it had to be.
    #[error("wrong result over {link} at the {placement}: {what}")]
    Wrong {
        /// Where the kernel ran.
        placement: Placement,
        /// The way that packets took.
        link: LinkKind,
        /// What came, and what should have.
        what: String,
    },
    /// A call was not taken though few were under way.
    #[error("the {placement} takes no calls over {link}, though few are under way")]
    Refused {
        /// Where the kernel should have run.
        placement: Placement,
        /// The way that packets take.
        link: LinkKind,
    },
    /// No call brings a result.
    #[error(
        "no result over {link} at the {placement} for {} s: the node has stopped, or its writer changes values faster \
         than they can be read",
        after.as_secs()
    )]
    Stuck {
        /// Where the kernel ran.
        placement: Placement,
        /// The way that packets take.
        link: LinkKind,
        /// How long was waited.
        after: Duration,
    },
    /// Another store could not be measured.
    #[error(transparent)]
    Peer(peers::PeerError),
    /// What was asked for makes no sense.
    #[error("{0}")]
    Usage(String),
    /// It could not be done.
    #[error("{0}")]
    Failed(String),
    /// The user wants no more.
    #[error("interrupted")]
    Interrupted,
}

impl From<peers::PeerError> for StudyError {
    fn from(error: peers::PeerError) -> Self {
        match error {
            peers::PeerError::Interrupted => Self::Interrupted,
            other => Self::Peer(other),
        }
    }
}

impl From<remora_lab::bench::BenchError> for StudyError {
    fn from(error: remora_lab::bench::BenchError) -> Self {
        match error {
            remora_lab::bench::BenchError::Interrupted => Self::Interrupted,
            remora_lab::bench::BenchError::Failed(error) => Self::Target(error),
        }
    }
}

impl From<reproduce::ReproduceError> for StudyError {
    fn from(error: reproduce::ReproduceError) -> Self {
        match error {
            reproduce::ReproduceError::Interrupted
            | reproduce::ReproduceError::Model(modelled::ModelError::Interrupted) => Self::Interrupted,
            reproduce::ReproduceError::Study(error) => Self::Usage(error.to_string()),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl StudyError {
    /// What ended a loop of calls in a placement over a link.
    pub(crate) fn of(placement: Placement, link: LinkKind, trouble: load::Trouble) -> Self {
        match trouble {
            load::Trouble::Wrong(what) => Self::Wrong { placement, link, what },
            load::Trouble::Stuck(after) => Self::Stuck { placement, link, after },
            // A node's clock goes on by itself.
            load::Trouble::Still(_) => Self::Stuck { placement, link, after: Duration::ZERO },
            load::Trouble::Interrupted => Self::Interrupted,
        }
    }
}

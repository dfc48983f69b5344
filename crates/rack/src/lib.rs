//! A rack whose nodes share memory (DFabric, section 4): an engine.
//!
//! | file         | what                                                                                     |
//! |--------------|------------------------------------------------------------------------------------------|
//! | `address`    | one address space for all: sections of 2 MB, regions of 512 sections, where they lie      |
//! | `pool`       | the low-power unit's sections: who holds which, and who may see it                        |
//! | `buffers`    | a node's daemon: takes sections in advance and cuts them into buffers by size class       |
//! | `queue`      | virtual queues of descriptors                                                             |
//! | `dispatcher` | moves descriptors from transmit to receive queues; interrupts and completions, coalesced  |
//! | `rack`       | all of these together: buffers that pass from node to node by reference                   |
//! | `nics`       | the pool of NICs: flows cut into subflows, these mapped to NICs                          |
//! | `resequencer` | the other end of a flow: one stream again, within a window                             |
//! | `streams`    | connections between two racks over the NIC pool; `records`: what racks say of them        |
//! | `ranges`     | which bytes of a stream there are                                                        |
//! | `meeting`    | both ends of a connection find each other, and get a buffer that only they see            |
//! | `layout`     | how a connection's buffer is divided                                                      |
//! | `frame`      | what processes and the unit's daemon say to each other                                    |
//!
//! Like all engines it reads no clock, opens no file and starts no thread: time comes in as nanoseconds.

mod address;
mod buffers;
mod dispatcher;
pub mod frame;
pub mod layout;
mod meeting;
mod nics;
mod patience;
mod pool;
mod queue;
mod rack;
mod ranges;
mod records;
mod resequencer;
mod streams;

pub use address::{FabricAddress, Location, NodeId, REGION_BYTES, REGION_SECTIONS, SECTION_BYTES, Section};
pub use buffers::{BufferDaemon, BufferError, LARGEST_BUFFER, SMALLEST_BUFFER, class_bytes};
pub use dispatcher::{Coalescing, Dispatcher, Notice};
pub use meeting::{ConnectionEnd, Endpoint, Introduction, Key, Meeting, MeetingConfig};
pub use nics::{FlowId, FlowMutation, FlowPolicy, Mapping, NicId, NicPool, NicState, Segment};
pub use patience::Patience;
pub use pool::{Device, Pool, PoolError, Rights};
pub use queue::{Descriptor, VirtualQueue};
pub use rack::{Rack, RackError, RackMutation};
pub use ranges::Ranges;
pub use records::{NoRecord, Record, Refusal};
pub use resequencer::{BeyondWindow, Resequencer};
pub use streams::{Breach, CONTROL, StreamEvent, Streams, StreamsConfig};

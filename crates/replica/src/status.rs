//! How a node is, as it tells its clients.

macro_rules! status {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// How a node is. Counts are since its start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct NodeStatus { $($(#[$doc])* pub $name: u64),* }

        impl NodeStatus {
            /// Each figure with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }

            /// Appends its bytes.
            pub fn encode(&self, out: &mut Vec<u8>) {
                $(out.extend_from_slice(&self.$name.to_le_bytes());)*
            }

            /// Reads what [`NodeStatus::encode`] writes.
            pub fn decode(bytes: &[u8]) -> Option<Self> {
                let mut numbers = bytes.chunks_exact(8).map(|chunk| chunk.try_into().map_or(0, u64::from_le_bytes));
                let this = Self { $($name: numbers.next()?),* };
                numbers.next().is_none().then_some(this)
            }
        }
    };
}

status! {
    /// Its number.
    node,
    /// Its process.
    process,
    /// The epoch of the newest view that it knows.
    epoch,
    /// That view's members, as bits.
    members,
    /// Its learners, as bits.
    learners,
    /// 1 if it serves requests now.
    serves,
    /// Nodes, as bits, whose disks are full: as long as there are any among members and learners, no writes are taken.
    full,
    /// Nanoseconds since it started.
    uptime_ns,
    /// CPU time of its process, in nanoseconds.
    cpu_ns,
    /// Clients connected.
    clients,
    /// Clients cut off since they took no answers, or held too much memory.
    cut_off,
    /// Requests that only read, answered with a value.
    reads,
    /// Requests that wrote, answered.
    writes,
    /// Requests refused.
    refused,
    /// Requests under way.
    under_way,
    /// Time (ns) from request to answer here, over all writes whose parts were measured.
    write_ns,
    /// Of that, communication.
    write_communication_ns,
    /// Writes whose parts were measured.
    measured_writes,
    /// Bytes in its log.
    log_bytes,
    /// Syncs of its log.
    log_syncs,
    /// Of these, by the protocol's own thread, while it had nothing else to do.
    log_syncs_inline,
    /// Bytes written to its log.
    log_written,
    /// Connections to other nodes that broke, or were replaced.
    reconnects,
    /// Frames of others that made no sense.
    malformed,
    /// Messages sent again by the protocol.
    resends,
    /// Writes of dead coordinators replayed.
    replays,
    /// Catch-ups finished as a learner.
    rejoins,
    /// Recoveries after a crash of all nodes.
    full_recoveries,
    /// Packets of the NIC that were sent more than once.
    retransmits,
}

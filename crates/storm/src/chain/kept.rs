//! A node of a storm, and what it keeps: its persistent memory as it is, or as a log on a disk, as processes have it.

use remora_nic::Now;
use remora_replica::chain::{ChainConfig, ChainNode, ChainNodeOutput, ChainPacket, ChainReply, ChainRequest};
use remora_replica::chain::{LoggedChain, LoggedOutput};
use remora_replica::node::Change;
use remora_replica::types::{NodeId, Value};

use super::memory::Memory;
use crate::disk::{Disk, DiskWrite};
use crate::events::Time;
use crate::rng::Rng;

/// Bytes after which a log is compacted, beside twice what it holds: little, so that it happens.
const SLACK: usize = 16 << 10;

/// What outlives a node.
#[derive(Debug)]
pub(super) enum Kept {
    Memory(Memory),
    Disk(Disk),
}

/// A node that is up.
pub(super) enum Node {
    Bare(Box<ChainNode>),
    Logged(Box<LoggedChain>),
}

/// What a node asks for.
pub(super) enum Asks {
    Send(NodeId, ChainPacket),
    Reply(ChainReply),
    Write(u64, u64, Vec<u8>),
    Log(u64, DiskWrite),
    Data(u64, Value),
}

impl Kept {
    /// Starts a node with it.
    pub fn start(&mut self, config: ChainConfig, now: Time) -> Node {
        match self {
            Self::Memory(memory) => Node::Bare(Box::new(ChainNode::new(config, now, memory.image()))),
            Self::Disk(disk) => Node::Logged(Box::new(LoggedChain::new(config, now, &disk.read(), SLACK))),
        }
    }

    /// Begins to flush if there is something, and nothing is being flushed.
    pub fn begin_flush(&mut self) -> bool {
        match self {
            Self::Memory(memory) => memory.begin_flush(),
            Self::Disk(disk) => disk.begin_sync(),
        }
    }

    /// The flush has ended: up to which write.
    pub fn end_flush(&mut self) -> Option<u64> {
        match self {
            Self::Memory(memory) => memory.end_flush(),
            Self::Disk(disk) => disk.end_sync().pop(),
        }
    }

    /// The process ends, or the machine with it.
    pub fn end(&mut self, machine: Option<(&mut Rng, u32)>) {
        match (self, machine) {
            (Self::Memory(memory), Some((rng, keep))) => memory.crash(rng, keep),
            (Self::Memory(memory), None) => memory.kill(),
            (Self::Disk(disk), Some((rng, keep))) => disk.crash(rng, keep),
            (Self::Disk(disk), None) => disk.kill(),
        }
    }

    /// It is as new.
    pub fn wipe(&mut self) {
        match self {
            Self::Memory(memory) => memory.wipe(),
            Self::Disk(disk) => disk.wipe(),
        }
    }

    pub fn lost_lines(&self) -> u64 {
        match self {
            Self::Memory(memory) => memory.lost_lines,
            Self::Disk(_) => 0,
        }
    }
}

impl Node {
    pub fn engine(&self) -> &ChainNode {
        match self {
            Self::Bare(node) => node,
            Self::Logged(node) => node.node(),
        }
    }

    pub fn submit(&mut self, now: &Now, request: ChainRequest) {
        match self {
            Self::Bare(node) => node.submit(now, request),
            Self::Logged(node) => node.submit(now, request),
        }
    }

    pub fn handle(&mut self, now: &Now, from: NodeId, packet: ChainPacket) {
        match self {
            Self::Bare(node) => node.handle(now, from, packet),
            Self::Logged(node) => node.handle(now, from, packet),
        }
    }

    pub fn persisted(&mut self, now: &Now, token: u64) {
        match self {
            Self::Bare(node) => node.persisted(now, token),
            Self::Logged(node) => node.persisted(now, token),
        }
    }

    pub fn timeout(&mut self, now: &Now) {
        match self {
            Self::Bare(node) => node.timeout(now),
            Self::Logged(node) => node.timeout(now),
        }
    }

    pub fn set_room(&mut self, now: &Now, room: Option<usize>) {
        match self {
            // Memory does not fill up.
            Self::Bare(_) => {}
            Self::Logged(node) => node.set_room(now, room),
        }
    }

    pub fn poll(&mut self) -> Option<Asks> {
        Some(match self {
            Self::Bare(node) => match node.poll()? {
                ChainNodeOutput::Send(to, packet) => Asks::Send(to, packet),
                ChainNodeOutput::Write(token, at, bytes) => Asks::Write(token, at, bytes),
                ChainNodeOutput::Reply(reply) => Asks::Reply(reply),
            },
            Self::Logged(node) => match node.poll()? {
                LoggedOutput::Send(to, packet) => Asks::Send(to, packet),
                LoggedOutput::Log(token, Change::Append(bytes)) => Asks::Log(token, DiskWrite::Append(bytes)),
                LoggedOutput::Log(token, Change::Replace(bytes)) => Asks::Log(token, DiskWrite::Replace(bytes)),
                LoggedOutput::Log(token, Change::Compact(snapshot)) => {
                    Asks::Log(token, DiskWrite::Compact(snapshot.encode()))
                }
                LoggedOutput::Reply(reply) => Asks::Reply(reply),
                LoggedOutput::Data(offset, bytes) => Asks::Data(offset, bytes),
            },
        })
    }
}

//! The same requests at a node, from its client: where reductions run, how many there are, and what crosses the link.

use std::time::{Duration, Instant};

use remora_kernel::{Placement, Status, op};
use remora_real::{Client, LinkKind};

use super::Watched;
use super::catalogue::{Catalogue, Rows};
use super::data::Interactions;
use crate::StudyError;
use crate::nodes::{ClientMemory, NodeProcess};
use remora_store::memo::Memo;

/// Calls under way of a client.
pub const DEPTH: usize = 16;

/// A node with a table, and a client of it.
pub struct Placed {
    client: Client,
    pub catalogue: Catalogue,
    // Last: it ends after its client.
    _node: NodeProcess,
}

/// What a placement did.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlacedDone {
    /// Requests a second.
    pub requests: f64,
    /// Bytes of packets for each, both ways, headers included.
    pub wire_bytes: f64,
}

impl Placed {
    /// Starts a node, and loads the table there; `progress` hears how far that is, and says whether to go on.
    pub fn start(
        rows: Rows,
        memo: &Memo,
        data: &Interactions,
        seed: u64,
        progress: &mut dyn FnMut(f64) -> bool,
    ) -> Result<Self, StudyError> {
        let (node, mut clients) = NodeProcess::with_clients(&[LinkKind::Shm])?;
        let mut client = clients.pop().ok_or_else(|| StudyError::Failed("no client of the node".into()))?;
        let mut memory = Watched { arena: ClientMemory(&mut client), progress, wanted: 0, done: 0 };
        let catalogue = Catalogue::load(rows, memo, data, seed, &mut memory)?;
        Ok(Self { client, catalogue, _node: node })
    }

    /// Has requests reduced in a place, [`DEPTH`] under way.
    pub fn reduce(&mut self, place: Placement, with_sums: bool, time: Duration) -> Result<PlacedDone, StudyError> {
        let Self { client, catalogue, .. } = self;
        let (requests, which) = (&catalogue.requests, usize::from(with_sums));
        let (mut next, mut under_way, mut ended, mut wrong) = (0, 0, 0u64, None);
        let (before, start) = (client.counters().wire_bytes, Instant::now());
        let mut more = true;
        while more || under_way > 0 {
            while more && under_way < DEPTH {
                if client.submit(place, op::EMBED, &requests[next].params[which], next as u32).is_err() {
                    break;
                }
                (next, under_way) = (if next + 1 < requests.len() { next + 1 } else { 0 }, under_way + 1);
            }
            client.poll(&mut |tag, status, reply| {
                let request = requests.get(tag as usize);
                if status != Status::Ok || !request.is_some_and(|request| catalogue.check(request, reply)) {
                    wrong = Some(status);
                }
                (under_way, ended) = (under_way - 1, ended + 1);
            })?;
            more = more && start.elapsed() < time;
        }
        if let Some(status) = wrong {
            return Err(StudyError::Failed(format!("a reduction at the {place} is wrong: {status:?}")));
        }
        let wire_bytes = (client.counters().wire_bytes - before) as f64 / ended as f64;
        Ok(PlacedDone { requests: ended as f64 / start.elapsed().as_secs_f64(), wire_bytes })
    }
}

//! Transactions that only read, by one-sided READs of the head's window: see [`remora_replica::chain::WindowRead`].

use remora_replica::chain::{Extent, WindowEnd, WindowRead};
use remora_replica::types::NodeId;

use super::world::{CELL, KEYS, Stage, State, World, number};

/// READs under way.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Look {
    /// Which view's key the client has.
    epoch: u64,
    read: WindowRead,
}

impl World {
    /// A client begins to look at what the node shows, with the key that it was given.
    pub fn begins_to_look(&self, state: &State, node: NodeId) -> Option<Look> {
        let place = &state.places[usize::from(node.0)];
        let (chain, shown) = (place.chain.as_ref()?, place.shown.as_ref()?);
        let extents: Vec<Extent> = (0..KEYS).map(|key| Extent { offset: key * CELL, length: CELL as u32 }).collect();
        let read = WindowRead::new(shown.lines(), &extents, 2 * CELL as u32)?;
        Some(Look { epoch: chain.view().epoch, read })
    }

    /// The next READ of a client comes to the node, which answers it or does not.
    pub fn looks(&self, state: &mut State, call: usize) {
        let call = &mut state.calls[call];
        let (Some(mut look), Some(node)) = (call.look.take(), call.node) else { return };
        let place = &state.places[usize::from(node.0)];
        let Some((part, at, length)) = look.read.next_read() else { return };
        let found = match (&place.chain, &place.shown) {
            (Some(chain), Some(shown)) => shown.read(chain, 0, look.epoch, (at, length)),
            _ => None,
        };
        let ended = found.map(|bytes| look.read.found(part, bytes));
        match ended {
            Some(None) => return call.look = Some(look),
            Some(Some(WindowEnd::Read(read))) => call.stage = Stage::Done([0, 1].map(|key: usize| number(&read[key]))),
            // The client may look again, from the beginning.
            Some(Some(WindowEnd::Changed)) | None => call.stage = Stage::Idle,
        }
        call.node = None;
    }
}

//! Calls whose place the client chooses.

use remora_kernel::{Placement, Places, Status};
use remora_service::{CallKind, Full, MAX_CALLS, MAX_REQUEST, Placer, Ticket, is_result};

use super::Client;
use crate::device::Clock;

/// In a mark: the call is timed, and has a ticket.
const TIMED: u64 = 1 << 63;
/// It only spreads which calls are timed.
const SEED: u64 = 1;
/// What headers take of a packet or message at most.
const HEADERS: usize = 64;

/// Who chooses, and the tickets of timed calls under way.
#[derive(Default)]
pub(super) struct Auto {
    /// Made when first used.
    placer: Option<Box<Placer>>,
    tickets: Vec<Option<Ticket>>,
    free: Vec<u16>,
}

impl Auto {
    pub fn new() -> Self {
        Self::default()
    }

    fn placer(&mut self) -> &mut Placer {
        self.placer.get_or_insert_with(|| {
            // No more are under way than calls to the node and kernels here.
            self.tickets = vec![None; 2 * MAX_CALLS];
            self.free = (0..2 * MAX_CALLS as u16).rev().collect();
            Box::new(Placer::new(&Placement::REAL, SEED))
        })
    }

    /// The mark of a call with this tag.
    fn mark(&mut self, ticket: Option<Ticket>, tag: u32) -> u64 {
        match ticket.and_then(|ticket| Some((ticket, self.free.pop()?))) {
            Some((ticket, at)) => {
                self.tickets[usize::from(at)] = Some(ticket);
                TIMED | u64::from(at) << 32 | u64::from(tag)
            }
            None => tag.into(),
        }
    }

    /// The ticket of a mark, which it has no more.
    fn take(&mut self, mark: u64) -> Option<Ticket> {
        if mark & TIMED == 0 {
            return None;
        }
        let at = (mark >> 32) as u16 & !(1 << 15);
        let ticket = self.tickets.get_mut(usize::from(at))?.take()?;
        self.free.push(at);
        Some(ticket)
    }

    /// Takes note of calls that end, and tells `done` their tags.
    pub fn telling(
        &mut self,
        clock: Clock,
        done: &mut dyn FnMut(u32, Status, &[u8]),
    ) -> impl FnMut(u64, Status, &[u8]) {
        let mut now = None;
        move |mark, status, reply| {
            if let Some(ticket) = self.take(mark)
                && let Some(placer) = &mut self.placer
            {
                // Those that one poll ends have ended at once.
                let now = *now.get_or_insert_with(|| clock.now());
                placer.ended(ticket, now, is_result(status));
            }
            done(mark as u32, status, reply);
        }
    }
}

impl Client {
    /// Starts a kernel where it is answered quickest, as [`placer`](Self::placer) finds out by the way; `by_ring` has it
    /// take rings where there are some. Returns the place. Parameters of a kernel that may not run here and no message holds
    /// go to the host: without rings they end in [`Status::BadParams`].
    pub fn submit_auto(&mut self, kind: CallKind, params: &[u8], by_ring: bool, tag: u32) -> Result<Placement, Full> {
        let (op, under_way) = (kind.op, self.in_flight());
        let by_ring = |client: &Self, placement| by_ring && client.has_rings(placement);
        // What does not fit into a packet goes where it does, if it may run there.
        let too_long = match params.len() + HEADERS {
            len if len > MAX_REQUEST && Places::of(op).has(Placement::Client) => Some(Placement::Client),
            len if len > self.path_mtu() as usize => Some(Placement::Host),
            _ => None,
        };
        let (placement, mark) = match too_long {
            Some(placement) => (placement, tag.into()),
            None => {
                let device = &self.connection.device;
                let choice = self.auto.placer().choose(kind, under_way, || device.now());
                (choice.placement, self.auto.mark(choice.ticket, tag))
            }
        };
        let started = match by_ring(self, placement) {
            true => self.push_to_ring(placement, op, params, mark),
            false => self.start(placement, op, params, mark),
        };
        if started.is_err()
            && let Some(ticket) = self.auto.take(mark)
        {
            self.auto.placer().cancelled(ticket);
        }
        started.map(|()| placement)
    }

    /// What decides where [`submit_auto`](Self::submit_auto) runs kernels: to pin them, and to ask why.
    pub fn placer(&mut self) -> &mut Placer {
        self.auto.placer()
    }
}

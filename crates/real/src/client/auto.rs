//! Calls whose place the client chooses.

use remora_kernel::{Placement, Places, Status};
use remora_service::control::{Offer, op};
use remora_service::{CallKind, Full, MAX_CALLS, Placer, Ticket, is_result};

use remora_wire::rpc::FLAG_ANYWHERE;

use super::Client;
use crate::Error;
use crate::device::Clock;

/// In a mark: the call is timed, and has a ticket.
const TIMED: u64 = 1 << 63;
/// It only spreads which calls are timed.
const SEED: u64 = 1;

/// Who chooses, and the tickets of timed calls under way.
pub(super) struct Auto {
    /// What the node says of itself.
    offer: Offer,
    /// Made when first used.
    placer: Option<Box<Placer>>,
    tickets: Vec<Option<Ticket>>,
    free: Vec<u16>,
}

impl Auto {
    pub fn new(offer: Offer) -> Self {
        Self { offer, placer: None, tickets: Vec::new(), free: Vec::new() }
    }

    fn placer(&mut self) -> &mut Placer {
        self.placer.get_or_insert_with(|| {
            // No more are under way than calls to the node and kernels here.
            self.tickets = vec![None; 2 * MAX_CALLS];
            self.free = (0..2 * MAX_CALLS as u16).rev().collect();
            // A node that places calls takes them at its NIC, and runs them there or at its host.
            let at_node = [Placement::Client, Placement::Nic];
            Box::new(Placer::new(if self.offer.places { &at_node } else { &Placement::REAL }, SEED))
        })
    }

    /// The flags of the RPC header of such a call to a place.
    fn flags(&self, op: u64, placement: Placement) -> u32 {
        let pinned = || self.placer.as_ref().is_some_and(|placer| placer.is_pinned(op));
        if self.offer.places && placement == Placement::Nic && !pinned() { FLAG_ANYWHERE } else { 0 }
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

    /// Takes note that answers are looked for, and of calls that end, and tells `done` their tags.
    pub fn telling(
        &mut self,
        (looked, clock): (u64, Clock),
        done: &mut dyn FnMut(u32, Status, &[u8]),
    ) -> impl FnMut(u64, Status, &[u8]) {
        self.placer.iter_mut().for_each(|placer| placer.looked(looked));
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
    /// take rings where there are some. Returns the place. A node that [places calls](crate::NodeConfig::placing) by itself
    /// takes them at its NIC, but for those that are [pinned](Placer::pin), which run where they are; of the others
    /// [`node_reason`](Self::node_reason) tells. Parameters of a kernel that may not run here and no message holds go to the
    /// host: without rings they end in [`Status::BadParams`].
    pub fn submit_auto(&mut self, kind: CallKind, params: &[u8], by_ring: bool, tag: u32) -> Result<Placement, Full> {
        let (op, under_way) = (kind.op, self.in_flight());
        let by_ring = |client: &Self, placement| by_ring && client.has_rings(placement);
        // What does not fit into a packet, or a ring, goes where it does, if it may run there.
        let fits = |placement| params.len() <= self.most_params(placement, by_ring(self, placement));
        let too_long = match (fits(Placement::Nic), fits(Placement::Host)) {
            (true, true) => None,
            (true, false) => Some(Placement::Nic),
            (false, false) if Places::of(op).has(Placement::Client) => Some(Placement::Client),
            (false, _) => Some(Placement::Host),
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
            false => self.start(placement, (op, self.auto.flags(op, placement)), params, mark),
        };
        if started.is_err()
            && let Some(ticket) = self.auto.take(mark)
        {
            self.auto.placer().cancelled(ticket);
        }
        started.map(|()| placement)
    }

    /// Why the node runs calls of a kind where it does that are left to it, in a line: a [`Reason`](remora_service::Reason).
    /// Nothing else may be under way.
    pub fn node_reason(&mut self, kind: CallKind) -> Result<String, Error> {
        let reply = self.node_call("say why calls run where they do", op::PLACE, &kind.encode())?;
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }

    /// What decides where [`submit_auto`](Self::submit_auto) runs kernels: to pin them, and to ask why.
    pub fn placer(&mut self) -> &mut Placer {
        self.auto.placer()
    }
}

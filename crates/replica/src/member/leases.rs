//! Leases: who may serve reads, and whom that binds.
//!
//! A member holds a lease while a majority, itself counted, has lately answered its beats. The lease counts from when the
//! beat was sent. Whoever answers is bound from when it answers, which is later, for longer than the lease lasts: until
//! then it accepts no view without that member. That holds by readings of the clock that are made after what they are for
//! has come ([`remora_nic::Now`]): by an older one the answer would bind from before the question.

use super::{MemberOutput, Membership, Notice, Standing};
use crate::Time;
use crate::ddp::View;
use crate::types::NodeId;

impl Membership {
    pub(super) fn beat(&mut self, from: NodeId, sent: Time, theirs: u64, status: Standing) {
        let view = self.durable.view;
        // What it said before it knew the view says nothing about its place in it.
        if theirs >= view.epoch || status == Standing::Damaged {
            let peer = self.peer(from);
            (peer.said, peer.epoch) = (status, theirs);
        }
        self.answer(from, sent, status);
        if theirs < view.epoch {
            self.send(from, Notice::Decided(view));
        }
        if theirs == view.epoch && status == Standing::Serving && self.lets_serve(from) {
            self.peer(from).granted = self.now + self.timing.term;
            self.send(from, Notice::Grant(sent));
        }
    }

    /// As its own peer a node answers itself at once.
    pub(super) fn beat_itself(&mut self) {
        if self.status == Standing::Serving && self.installed == self.durable.view.epoch && self.lets_serve(self.me) {
            let (now, bound) = (self.now, self.now + self.timing.term);
            let peer = self.peer(self.me);
            (peer.answered, peer.granted) = (Some(now), bound);
        }
        self.renew();
    }

    /// May a member have a lease by this node's leave?
    fn lets_serve(&self, node: NodeId) -> bool {
        let left_out = self.durable.accepted.is_some_and(|(_, next)| !next.members.has(node));
        let barred = self.barred.0.has(node) && self.now < self.barred.1;
        // Whoever may have forgotten a view must not let those serve whom it leaves out.
        let unsure = self.status == Standing::Damaged;
        self.durable.view.members.has(node) && !left_out && !barred && !unsure
    }

    /// A member has answered the beat of that time.
    pub(super) fn granted(&mut self, from: NodeId, sent: Time) {
        let answered = &mut self.peer(from).answered;
        *answered = Some(sent).max(*answered);
        self.renew();
    }

    /// The lease lasts from the beat that the slowest of the fastest majority has answered.
    fn renew(&mut self) {
        if self.status != Standing::Serving {
            return;
        }
        let mut answered = [None; 64];
        let numbers = self.peers.len();
        answered.iter_mut().zip(&self.peers).for_each(|(slot, peer)| *slot = peer.answered);
        let (_, sent, _) = answered[..numbers].select_nth_unstable(numbers - self.majority());
        if let Some(sent) = *sent {
            self.out.push_back(MemberOutput::Lease(sent + self.timing.lease));
        }
    }

    /// Is this node bound not to accept the view yet? Then it lets those whom it leaves out serve no longer.
    pub(super) fn is_bound(&mut self, view: View) -> bool {
        let left_out = self.durable.view.members.minus(view.members);
        let bound = |node: NodeId| self.known(node).is_some_and(|peer| self.now < peer.granted);
        let since_boot = self.now.saturating_sub(self.booted);
        // After a restart nobody knows what was granted before it.
        let bound = left_out.iter().any(bound) || !left_out.is_empty() && since_boot < self.timing.term;
        if bound {
            // The view may be one that was accepted before, and leave out others than its proposer asked to let go.
            self.barred = (self.barred.0.or(left_out), self.now + 2 * self.timing.suspect);
        }
        bound
    }
}

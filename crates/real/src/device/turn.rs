//! One turn of a device: packets out, packets in, kernels, the resident, timers, events.

use std::net::IpAddr;

use remora_nic::Time;

use super::{Core, Seat};

impl Core {
    /// Sends, receives, and runs what lives here. Returns how much there was to do.
    pub(super) fn progress(&mut self, now: Time, local: IpAddr) -> usize {
        let mut work = self.transmit(now);
        let Self { nic, links, kernels, inbox, clock, .. } = self;
        work += inbox.receive((now, clock.polls), local, nic, links, kernels);
        if let Some(kernels) = kernels {
            work += kernels.progress(nic);
        }
        if let Some(mut resident) = self.resident.take() {
            // What a connection's set-up says is to be known before what came by it.
            self.dispatch_events();
            let done = resident.progress(&mut self.seat(now, local));
            self.resident = Some(resident);
            if done > 0 {
                work += done + self.transmit(now);
            }
        }
        if self.nic.poll_timeout().is_some_and(|t| t <= now) {
            self.nic.handle_timeout(now);
            work += 1;
        }
        self.dispatch_events();
        work
    }

    /// Sends first, so that an answer the user just posted shares a system call with the acknowledgements.
    pub(super) fn transmit(&mut self, now: Time) -> usize {
        self.outbox.transmit(now, &mut self.nic, &mut self.links)
    }

    pub(super) fn dispatch_events(&mut self) {
        self.events.dispatch(&mut self.nic);
    }

    pub(super) fn seat(&mut self, now: Time, local: IpAddr) -> Seat<'_> {
        Seat { now, local, nic: &mut self.nic, links: &mut self.links, events: &mut self.events.taken }
    }
}

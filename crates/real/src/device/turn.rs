//! One turn of a device: packets out, packets in, kernels, the resident, timers, events.

use std::net::IpAddr;

use remora_nic::{Now, Time};

use super::{Clock, Core, Seat};
use crate::link::LinkStats;
use crate::link::admission::{Counted, MOST};

/// How late timers may be, nanoseconds: who polls without end need not look at them at each poll.
const TIMERS: Time = 5_000;

impl Core {
    /// Sends, receives, and runs what lives here. Returns how much there was to do. `before` may be older than what is
    /// received: the transport's timers do not mind. A resident may answer under a lease, so the clock is read anew for it.
    pub(super) fn progress(&mut self, before: Time, clock: Clock, local: IpAddr) -> usize {
        let mut work = self.transmit(before);
        if let Some(mut resident) = self.resident.take() {
            let (received, now) = Now::after(|| self.receive(before, local), || clock.now());
            // What a connection's set-up says is to be known before what came by it.
            self.dispatch_events();
            let done = resident.progress(&mut self.seat(now, clock, local));
            self.resident = Some(resident);
            work += received;
            if done > 0 {
                work += done + self.transmit(before);
            }
        } else {
            work += self.receive(before, local);
        }
        if before.saturating_sub(self.timers_at) >= TIMERS {
            self.timers_at = before;
            if self.nic.poll_timeout().is_some_and(|t| t <= before) {
                self.nic.handle_timeout(before);
                work += 1;
            }
        }
        self.dispatch_events();
        work
    }

    /// Takes what came, and runs kernels.
    fn receive(&mut self, now: Time, local: IpAddr) -> usize {
        let Self { nic, links, kernels, inbox, reading, .. } = self;
        let work = inbox.receive((now, reading.polls), local, nic, links, kernels);
        work + kernels.as_mut().map_or(0, |kernels| kernels.progress(now, nic))
    }

    /// Sends first, so that an answer the user just posted shares a system call with the acknowledgements.
    #[inline]
    pub(super) fn transmit(&mut self, now: Time) -> usize {
        self.outbox.transmit(now, &mut self.nic, &mut self.links)
    }

    #[inline]
    pub(super) fn dispatch_events(&mut self) {
        self.events.dispatch(&mut self.nic);
        // Before anybody outside can hear of a new queue pair.
        let Self { nic, links, gate, reading, .. } = self;
        let numbers = |out: &mut Vec<u32>| out.extend(nic.numbers().take(MOST + 1));
        let count = || {
            let (taken, shed) = nic.messages();
            let broken = |stats: LinkStats| stats.bad_icrc + stats.malformed;
            Counted {
                taken,
                shed,
                strangers: nic.counters().dropped + links.iter().map(|link| broken(link.stats())).sum::<u64>(),
            }
        };
        if let Some(admission) = gate.follow(reading.now, nic.changes(), count, numbers) {
            links.iter_mut().for_each(|link| link.admit(&admission));
        }
    }

    #[inline]
    pub(super) fn seat(&mut self, now: Now, clock: Clock, local: IpAddr) -> Seat<'_> {
        Seat { now, clock, local, nic: &mut self.nic, links: &mut self.links, events: &mut self.events.taken }
    }
}

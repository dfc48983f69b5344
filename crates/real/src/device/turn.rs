//! One turn of a device: packets out, packets in, kernels, the resident, timers, events.

use std::net::IpAddr;

use remora_nic::{Event, Route, Time};

use super::{Core, Seat};

/// Polls without a packet after which a link is asked only at one poll in sixteen.
const QUIET_POLLS: u32 = 4096;
/// Batches handed to links in one call of `progress`.
const BATCHES: usize = 4;

/// How long a link may take none of a peer's packets before they count as lost, until it takes some again: a peer that
/// waits for a core is not to lose what nobody sends again, and one that stands still holds up the others only once.
const STUCK: u64 = 200_000_000;

impl Core {
    /// Sends, receives, and runs what lives here. Returns how much there was to do.
    pub(super) fn progress(&mut self, now: Time, local: IpAddr) -> usize {
        let mut work = self.transmit(now);
        work += self.receive(now, local);
        if let Some(kernels) = &mut self.kernels {
            work += kernels.progress(&mut self.nic);
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

    /// The links have not taken all yet.
    pub(super) fn has_unsent(&self) -> bool {
        self.sent < self.batch.len()
    }

    pub(super) fn seat(&mut self, now: Time, local: IpAddr) -> Seat<'_> {
        Seat { now, local, nic: &mut self.nic, links: &mut self.links, events: &mut self.events }
    }

    /// Sends first, so that an answer the user just posted shares a system call with the acknowledgements.
    pub(super) fn transmit(&mut self, now: Time) -> usize {
        let mut packets = 0;
        for _ in 0..BATCHES {
            if self.sent == self.batch.len() {
                self.sent = 0;
                if !self.nic.wants_transmit() || !self.nic.poll_transmit(now, &mut self.batch) {
                    self.batch.clear();
                    break;
                }
            }
            let Some(route) = self.batch.route() else { break };
            if route.remote == route.local {
                packets += self.loop_back(now, route);
                continue;
            }
            let Some(link) = self.links.get_mut(usize::from(route.link)) else {
                self.sent = self.batch.len();
                continue;
            };
            let (bytes, lens) = self.batch.parts_mut();
            let skip: usize = lens[..self.sent].iter().map(|&l| usize::from(l)).sum();
            match link.send(route.remote, &mut bytes[skip..], &lens[self.sent..]) {
                Ok(0) => {
                    let since = self.stuck.filter(|(peer, _)| *peer == route).map_or(now, |(_, since)| since);
                    self.stuck = Some((route, since));
                    if !self.still.contains(&route) {
                        if now.saturating_sub(since) < STUCK {
                            break;
                        }
                        self.still.push(route);
                    }
                    self.give_up();
                }
                Ok(n) => {
                    self.stuck = None;
                    if !self.still.is_empty() {
                        self.still.retain(|peer| *peer != route);
                    }
                    packets += n;
                    self.sent += n;
                    if self.sent < self.batch.len() {
                        break;
                    }
                }
                Err(_) => self.give_up(),
            }
        }
        packets
    }

    /// What the device sends to itself needs no link.
    fn loop_back(&mut self, now: Time, route: Route) -> usize {
        for packet in self.batch.packets().skip(self.sent) {
            self.nic.handle_packet(now, route.link, route.remote, route.local, packet);
        }
        self.batch.len() - std::mem::replace(&mut self.sent, self.batch.len())
    }

    /// The network does not take the packets: they are lost like any others, and sent again in time.
    fn give_up(&mut self) {
        self.failed_sends += 1;
        self.sent = self.batch.len();
    }

    fn receive(&mut self, now: Time, local: IpAddr) -> usize {
        let Self { nic, links, kernels, quiet, clock, joined, .. } = self;
        let mut packets = 0;
        // A link that has long been quiet is asked less often: a busy one beside it need not wait for its socket.
        let busy = quiet.iter().any(|&polls| polls <= QUIET_POLLS) && !clock.polls.is_multiple_of(16);
        for (index, link) in links.iter_mut().enumerate() {
            if busy && quiet[index] > QUIET_POLLS {
                continue;
            }
            // A broken socket shows as silence; the peer's retries and ours report it.
            let sink = &mut |src, packet: &[u8]| {
                nic.handle_packet(now, index as u8, src, local, packet);
                if nic.has_stream()
                    && let Some(kernels) = kernels
                {
                    kernels.stream(nic);
                }
            };
            let count = link.recv(sink).unwrap_or(0);
            quiet[index] = if count > 0 { 0 } else { quiet[index].saturating_add(1) };
            packets += count;
            if *joined {
                let sink = &mut |src, group, packet: &[u8]| nic.handle_packet(now, index as u8, src, group, packet);
                packets += link.recv_groups(sink).unwrap_or(0);
            }
        }
        packets
    }

    pub(super) fn dispatch_events(&mut self) {
        while let Some(event) = self.nic.poll_event() {
            let Some(event) = (self.sink)(event) else { continue };
            match event {
                Event::Completion(cq) => {
                    self.waiters.iter().filter(|(id, _)| *id == cq).for_each(|(_, thread)| thread.unpark());
                }
                other => {
                    self.events.push(other);
                    self.waiters.iter().for_each(|(_, thread)| thread.unpark());
                }
            }
        }
    }
}

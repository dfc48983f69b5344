//! One turn of a device: packets out, packets in, kernels, the resident, timers, events.

use std::net::IpAddr;

use remora_nic::{Now, Time};

use super::{Clock, Core, Seat};
use crate::link::LinkStats;
use crate::link::admission::{Counted, MOST};

/// Turns without a packet after which peers are told of what they do not wait for, and turns after which they are told whatever
/// others send meanwhile: many, as who answers at once would spend a packet on each message, and few beside any timer.
const IDLE_TURNS: u32 = 16;
const OWING_TURNS: u32 = 256;

/// How late timers may be, nanoseconds: who polls without end need not look at them at each poll.
const TIMERS: Time = 5_000;

impl Core {
    /// Sends, receives, and runs what lives here. Returns how much there was to do that more may follow soon. `before` may
    /// be older than what is received: the transport's timers do not mind. A resident may answer under a lease, so the
    /// clock is read anew for it.
    pub(super) fn progress(&mut self, before: Time, clock: Clock, local: IpAddr) -> usize {
        let known = self.messages();
        let mut work = self.transmit(before);
        if let Some(mut resident) = self.resident.take() {
            let (received, now) = Now::after(|| self.receive(before, clock, local), || clock.now());
            // What a connection's set-up says is to be known before what came by it.
            self.dispatch_events();
            let done = resident.progress(&mut self.seat(now, clock, local));
            self.resident = Some(resident);
            work += received;
            if done > 0 {
                work += done + self.transmit(before);
            }
        } else {
            work += self.receive(before, clock, local);
        }
        if before.saturating_sub(self.timers_at) >= TIMERS {
            self.timers_at = before;
            if self.nic.poll_timeout().is_some_and(|t| t <= before) {
                self.nic.handle_timeout(before);
                work += 1;
            }
        }
        self.dispatch_events();
        let messages = self.messages() - known;
        if messages > 0 {
            // Nobody waits microseconds for what follows a message of connection management, and anybody may send some.
            // So nobody stays awake for it: it is answered here.
            self.transmit(before);
            work = work.saturating_sub(messages as usize) + usize::from(self.nic.wants_transmit());
        }
        work
    }

    /// Messages of connection management that came so far.
    #[inline]
    fn messages(&self) -> u64 {
        let (taken, shed) = self.nic.messages();
        taken + shed
    }

    /// Takes what came, runs kernels, and sends what they answer.
    fn receive(&mut self, now: Time, clock: Clock, local: IpAddr) -> usize {
        let Self { nic, links, kernels, inbox, reading, .. } = self;
        let came = inbox.receive((now, reading.polls), local, nic, links, kernels);
        if nic.awaits_clock() {
            // Before anything is sent: `now` may be older than what came.
            let ((), anew) = Now::after(|| (), || clock.now());
            nic.clock_reads(&anew);
        }
        let ran = kernels.as_mut().map_or(0, |kernels| kernels.progress(now, nic));
        let mut work = came + ran;
        if ran > 0 && self.nic.wants_transmit() {
            // Somebody waits for it, and the next turn may be far.
            work += self.transmit(now);
        }
        self.idle_turns = if came > 0 { 0 } else { self.idle_turns.saturating_add(1) };
        self.owing_turns = if self.nic.owes() { self.owing_turns + 1 } else { 0 };
        if self.owing_turns > 0 && (self.idle_turns >= IDLE_TURNS || self.owing_turns >= OWING_TURNS) {
            self.owing_turns = 0;
            work += self.acknowledge(now);
        }
        work
    }

    /// Acknowledges what was left for when nothing comes.
    pub(super) fn acknowledge(&mut self, now: Time) -> usize {
        self.nic.acknowledge();
        self.transmit(now)
    }

    /// Sends first, so that an answer the user just posted shares a system call with the acknowledgements.
    #[inline]
    pub(super) fn transmit(&mut self, now: Time) -> usize {
        self.outbox.transmit(now, &mut self.nic, &mut self.links)
    }

    #[inline]
    pub(super) fn dispatch_events(&mut self) {
        if self.nic.has_events() {
            self.events.dispatch(&mut self.nic);
        }
        // Before anybody outside can hear of a new queue pair.
        if self.gate.is_due(self.reading.now, self.nic.changes()) {
            self.admit();
        }
    }

    /// Tells links whose packets to let in.
    #[inline(never)]
    fn admit(&mut self) {
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

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::time::Duration;

    use remora_wire::cm::{CmMessage, Dreq, Mad};
    use remora_wire::icrc::IcrcFlow;
    use remora_wire::packet::Packet;
    use remora_wire::{Bth, Deth, Opcode, Psn, UDP_PORT};

    use crate::device::Device;
    use crate::link::testing::in_namespace;
    use crate::link::udp::UdpLink;

    #[test]
    fn a_message_of_a_stranger_is_answered_and_keeps_nobody_awake() {
        in_namespace(|| {
            let (ip, stranger) = (Ipv4Addr::new(127, 5, 0, 1), Ipv4Addr::new(127, 5, 0, 2));
            let device = Device::new(ip.into(), vec![Box::new(UdpLink::bind(ip.into()).unwrap())], None).unwrap();
            device.keep(true);
            let socket = UdpSocket::bind((stranger, UDP_PORT)).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            // The end of a connection that nobody knows.
            let (mut mad, mut bytes) = ([0; Mad::LEN], [0; 512]);
            let message = CmMessage::Dreq(Dreq { local_comm_id: 1, remote_comm_id: 2, ..Dreq::default() });
            Mad { status: 0, transaction_id: 3, message }.emit(&mut mad);
            let deth = Deth { qkey: 0x8001_0000, reserved: 0, src_qp: 1 };
            let packet = Packet::new(Bth::new(Opcode::UdSendOnly, 1, Psn::new(0)), &mad);
            let len = Packet { deth: Some(deth), ..packet }.emit(&mut bytes);
            IcrcFlow::v4(stranger, ip, UDP_PORT, UDP_PORT).fill(0, &mut bytes[..len]);
            socket.send_to(&bytes[..len], (ip, UDP_PORT)).unwrap();
            remora_testing::eventually("the message", || {
                let mut guard = device.lock();
                assert_eq!(guard.progress_once(), 0, "nothing to stay awake for");
                (guard.nic().messages().0 == 1).then_some(())
            });
            let answered = socket.recv(&mut bytes).unwrap();
            let answer = Packet::parse(&bytes[..answered]).unwrap();
            assert!(matches!(Mad::parse(answer.payload).unwrap().message, CmMessage::Drep(_)));
        });
    }
}

//! What leaves a node: segments that TCP lets go, acknowledgements, and what is sent again.

use super::flow::Packet;
use super::{Event, Network, World};
use crate::component::tcp::AfterAck;
use crate::time::Ps;

impl World {
    /// Sends what TCP, its receiver and the queues below it allow.
    pub(super) fn pump(&mut self, now: Ps, number: usize) {
        let flow = &mut self.flows[number];
        let limit = flow.tcp.limit().min(flow.limit).min(flow.written);
        if flow.pooled {
            // Of several subflows each is a socket.
            let room = self.small_queue.map_or(u64::MAX, |queue| (queue * flow.sockets).saturating_sub(flow.queued));
            let from = flow.offered;
            let mut end = limit.min(from.saturating_add(room));
            if end < flow.written {
                end = from + (end.saturating_sub(from)) / self.segment * self.segment;
            }
            if end > from {
                flow.offered = end;
                flow.queued += end - from;
                let node = flow.from;
                if let Network::Fabric(fabric) = &mut self.network {
                    fabric.offer(number, node, end);
                }
                self.hand_out(now, node);
            }
            return;
        }
        loop {
            let flow = &mut self.flows[number];
            let next = flow.tcp.next();
            let room = limit.saturating_sub(next);
            let again = flow.boundary(next);
            let len = again.unwrap_or((flow.written - next).min(self.segment) as u32);
            let queue_full =
                self.small_queue.is_some_and(|most| flow.queued > 0 && flow.queued + u64::from(len) > most);
            if len == 0 || u64::from(len) > room || queue_full {
                return;
            }
            if again.is_none() {
                flow.sent.push_back((next, len));
            } else {
                self.figures.resent += 1;
            }
            flow.queued += u64::from(len);
            self.send(now, number, (next, len), None);
        }
    }

    /// The pool's NICs get what they have room for, of all flows of a node's rack.
    pub(super) fn hand_out(&mut self, now: Ps, node: usize) {
        loop {
            let Network::Fabric(fabric) = &mut self.network else { return };
            let Some(segment) = fabric.poll(now, node) else { return };
            let flow = segment.flow.0 as usize;
            self.flows[flow].sent.push_back((segment.offset, segment.len));
            self.send(now, flow, (segment.offset, segment.len), Some(segment));
        }
    }

    /// The kernel makes a packet of a segment.
    fn send(&mut self, now: Ps, number: usize, (offset, len): (u64, u32), by: Option<remora_rack::Segment>) {
        let flow = &mut self.flows[number];
        let end = offset + u64::from(len);
        flow.tcp.sent(now, end);
        let packet = Packet {
            flow: number,
            offset,
            len,
            order: flow.left,
            push: end == flow.written,
            content: flow.content(offset, len),
            nic: by.map_or(number % self.nics, |segment| segment.nic.0.into()),
            tag: by.map(|segment| segment.tag),
            queue: by.map_or(0, |segment| usize::from(segment.subflow) + 1),
            ..Packet::default()
        };
        flow.left += 1;
        let from = flow.from;
        self.arm(now, number);
        let work = self.costs.send;
        let (_, ready) = self.hosts[from].soft(number).serve(now, work);
        let packet = self.keep(packet);
        self.queue.push(ready, Event::Transmit(packet));
    }

    fn keep(&mut self, packet: Packet) -> u32 {
        match self.spare.pop() {
            Some(number) => {
                self.packets[number as usize] = packet;
                number
            }
            None => {
                self.packets.push(packet);
                self.packets.len() as u32 - 1
            }
        }
    }

    pub(super) fn transmit(&mut self, now: Ps, number: u32) {
        let packet = self.packets[number as usize];
        let (from, _) = self.ends(&packet);
        match &mut self.network {
            Network::Tor(tor) => {
                let left = tor.send(now, (number, &packet), from, &mut self.queue);
                self.left(left + self.costs.interrupt, &packet);
            }
            Network::Fabric(fabric) => {
                let seen = fabric.posted(now, from, packet.queue);
                self.queue.push(seen, Event::Seen(number));
            }
        }
    }

    pub(super) fn seen(&mut self, now: Ps, number: u32) {
        let packet = self.packets[number as usize];
        let ends = self.ends(&packet);
        let Network::Fabric(fabric) = &mut self.network else { return };
        let free = if ends.0 / self.in_rack == ends.1 / self.in_rack {
            fabric.pass(now, (number, &mut self.packets[number as usize]), ends, &mut self.queue);
            fabric.freed(now)
        } else {
            fabric.transmit(now, (number, &packet), ends.0, &mut self.queue)
        };
        self.left(free, &packet);
    }

    /// A packet is no longer below TCP from `at` on.
    fn left(&mut self, at: Ps, packet: &Packet) {
        if self.small_queue.is_some() && !packet.ack {
            self.queue.push(at, Event::Freed(packet.flow as u32, packet.len));
        }
    }

    /// A receiver says how far it has come and how far its sender may go.
    pub(super) fn acknowledge(&mut self, now: Ps, number: usize) {
        let work = self.costs.ack;
        let flow = &mut self.flows[number];
        (flow.unacked, flow.told) = (0, flow.allows());
        let packet = Packet {
            flow: number,
            ack: true,
            offset: flow.whole(),
            limit: flow.told,
            gap: flow.has_gap(),
            nic: number % self.nics,
            ..Packet::default()
        };
        let to = flow.to;
        let (_, ready) = self.hosts[to].soft(number).serve(now, work);
        let packet = self.keep(packet);
        self.queue.push(ready, Event::Transmit(packet));
    }

    pub(super) fn acknowledged(&mut self, now: Ps, packet: &Packet) {
        let flow = &mut self.flows[packet.flow];
        flow.limit = flow.limit.max(packet.limit);
        // Who puts subflows together again does not take what is out of order for a loss.
        let news = packet.offset > flow.tcp.acknowledged();
        if news || (flow.in_order && packet.gap) {
            let after = flow.tcp.acked(now, packet.offset);
            flow.forget(packet.offset);
            match after {
                AfterAck::GoOn => {}
                AfterAck::Retransmit => self.resend(now, packet.flow),
                AfterAck::Another => match flow.lost().filter(|_| !flow.pooled) {
                    Some(segment) => self.send_again(now, packet.flow, segment),
                    None => flow.tcp.grow(),
                },
            }
        }
        self.pump(now, packet.flow);
        self.arm(now, packet.flow);
    }

    /// Sends the first segment again that was not acknowledged.
    fn resend(&mut self, now: Ps, number: usize) {
        let flow = &mut self.flows[number];
        let Some(&(offset, len)) = flow.sent.front() else { return };
        // Once in a recovery: it is under way again.
        if flow.mended <= offset {
            flow.mended = offset + u64::from(len);
            self.send_again(now, number, (offset, len));
        } else if let Some(segment) = flow.lost() {
            self.send_again(now, number, segment);
        }
    }

    fn send_again(&mut self, now: Ps, number: usize, segment: (u64, u32)) {
        let flow = &mut self.flows[number];
        flow.queued += u64::from(segment.1);
        flow.sends_again(segment);
        self.figures.resent += 1;
        self.send(now, number, segment, None);
    }

    /// Looks at a flow's timer when it may go off, and no later.
    fn arm(&mut self, now: Ps, number: usize) {
        let flow = &mut self.flows[number];
        let Some(deadline) = flow.tcp.deadline().map(|at| at.max(now)) else { return };
        if flow.timer.is_none_or(|at| deadline < at) {
            flow.timer = Some(deadline);
            self.queue.push(deadline, Event::Timer(number as u32));
        }
    }

    pub(super) fn timer(&mut self, now: Ps, number: usize) {
        let flow = &mut self.flows[number];
        // An earlier look has come since, and later ones.
        if flow.timer.is_none_or(|at| at > now) {
            return;
        }
        flow.timer = None;
        let Some(deadline) = flow.tcp.deadline() else { return };
        if deadline > now {
            return self.arm(now, number);
        }
        if flow.tcp.lost_patience(now) {
            self.resend(now, number);
        } else {
            self.figures.timeouts += 1;
            flow.tcp.timed_out(now);
            flow.begins_anew();
            if flow.pooled {
                self.resend(now, number);
            }
        }
        if !self.flows[number].pooled {
            self.pump(now, number);
        }
        self.arm(now, number);
    }
}

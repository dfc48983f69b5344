//! The connections of a trunk: how they are made, proved and given up.

use remora_memory::Access;
use remora_nic::cm::{CmEvent, ConnId, reason, service_id};
use remora_nic::{ConnectAttr, Event, QpInit, QpType, Qpn, Sge, WcOpcode, WcStatus};
use remora_rack::NicId;

use super::greeting::{End, Greeting};
use super::memory::{HEADER, Layout, NOTES, sge};
use super::messages::Limits;
use super::{PORT, REDIAL, Trunk};
use crate::Error;
use crate::device::{DeviceGuard, entropy};

/// A connection, or a call.
pub(super) struct Line {
    pub qp: Qpn,
    pub conn: ConnId,
    pub up: bool,
    pub since: u64,
}

impl Trunk {
    /// The other end has said which life of it this is. With another than before no stream goes on. `but` is the way by which
    /// it was said.
    fn meet(&mut self, life: [u8; 8], but: usize) {
        if self.peer.replace(life).is_none_or(|before| before == life) {
            return;
        }
        for index in (0..self.ways.len()).filter(|index| *index != but) {
            self.give_up(index);
        }
        self.restart();
    }

    /// No stream goes on.
    fn restart(&mut self) {
        let now = self.now();
        self.streams.restart(now);
        let limit = self.streams.control_limit();
        self.limits = Limits { told: limit, known: limit, ..Limits::default() };
        // What was said before concerns nobody.
        self.broken = false;
    }

    /// The other end breaks the protocol, or has been away for too long: nothing that it said is worth anything. It is called anew.
    pub(super) fn breach(&mut self) {
        (0..self.ways.len()).for_each(|index| self.give_up(index));
        self.peer = None;
        self.restart();
        if let Ok(seed) = entropy() {
            // For the other end this is another life.
            self.life = std::array::from_fn(|index| seed[index]);
        }
    }

    pub(super) fn give_up(&mut self, index: usize) {
        let device = self.ways[index].device.clone();
        self.lose(&mut device.lock(), index);
    }

    /// Whether the other end of a connection has proved that it knows the secret: who is called does so when he calls.
    pub(super) fn is_proven(&self, line: &Line) -> bool {
        line.up || !self.config.calls
    }

    /// A queue pair with its receives posted.
    fn queue_pair(&self, guard: &mut DeviceGuard<'_>, index: usize) -> Result<Qpn, Error> {
        let (way, layout) = (&self.ways[index], Layout::new(&self.config.policy));
        let receives = layout.receives() as u32;
        let init = QpInit {
            max_send_wr: self.config.policy.entries + NOTES,
            max_recv_wr: receives,
            max_send_sge: 3,
            max_recv_sge: 1,
            max_rpc: 0,
            ..QpInit::new(QpType::Rc, self.region.pd(), way.cq, way.cq)
        };
        let qp = guard.nic().create_qp(init)?;
        guard.nic().to_init(qp, Access::empty(), 0)?;
        for slot in 0..receives.into() {
            guard.nic().post_recv(qp, slot, &self.sge(layout.receive(index, slot), HEADER + layout.segment))?;
        }
        Ok(qp)
    }

    pub(super) fn sge(&self, at: usize, len: usize) -> [Sge; 1] {
        [sge(&self.region, at, len)]
    }

    fn greeting<'a>(&'a self, index: usize, end: End, heard: &'a [u8]) -> Greeting<'a> {
        let way = &self.ways[index];
        let way = if self.config.calls { (way.local, way.remote) } else { (way.remote, way.local) };
        Greeting { secret: &self.config.secret, end, way, heard }
    }

    fn attr(&self, index: usize) -> ConnectAttr {
        // 67 ms, seven times. Others take over long before, when it counts as silent.
        let path_mtu = self.ways[index].mtu;
        ConnectAttr { path_mtu, retry_count: 7, rnr_retry: 7, ack_timeout: 14, ..ConnectAttr::default() }
    }

    pub(super) fn dial(&mut self, guard: &mut DeviceGuard<'_>, index: usize) -> Result<(), Error> {
        let qp = self.queue_pair(guard, index)?;
        let (now, route, attr) = (guard.now(), guard.route(self.ways[index].remote, 0), self.attr(index));
        let said = self.greeting(index, End::Caller, &[]).say(self.life);
        match guard.nic().connect(now, qp, route, service_id(PORT), attr, &said) {
            Ok(conn) => self.ways[index].line = Some(Line { qp, conn, up: false, since: self.now() }),
            Err(_) => {
                let _ = guard.nic().destroy_qp(qp);
                self.ways[index].dial_at = self.now() + REDIAL;
            }
        }
        Ok(())
    }

    pub(super) fn event(&mut self, index: usize, event: Event) -> Result<(), Error> {
        let line = self.ways[index].line.as_ref();
        let is_line = |conn: ConnId| line.is_some_and(|line| line.conn == conn);
        match event {
            Event::Cm(CmEvent::ConnectRequest { conn, listener, remote_ip, private_data, .. }) => {
                let ours = self.ways[index].listener == Some(listener) && remote_ip == self.ways[index].remote;
                self.called(index, conn, if ours { &private_data } else { &[] })?;
            }
            Event::Cm(CmEvent::Established { conn, private_data, .. }) if is_line(conn) => {
                if self.config.calls {
                    let heard = self.greeting(index, End::Caller, &[]).say(self.life);
                    match self.greeting(index, End::Answerer, &heard).hear(&private_data) {
                        Some(life) => self.meet(life, index),
                        None => {
                            self.give_up(index);
                            return Ok(());
                        }
                    }
                }
                let now = self.now();
                if let Some(line) = &mut self.ways[index].line {
                    line.up = true;
                }
                self.streams.restored(now, NicId(index as u16));
            }
            Event::Cm(
                CmEvent::Disconnected { conn } | CmEvent::Unreachable { conn } | CmEvent::Rejected { conn, .. },
            ) if is_line(conn) => self.give_up(index),
            Event::QpFatal(qp, _) if line.is_some_and(|line| line.qp == qp) => self.give_up(index),
            _ => {}
        }
        Ok(())
    }

    /// The other end calls by a way, and says this.
    fn called(&mut self, index: usize, conn: ConnId, said: &[u8]) -> Result<(), Error> {
        let device = self.ways[index].device.clone();
        let Some(life) = self.greeting(index, End::Caller, &[]).hear(said) else {
            let mut guard = device.lock();
            let now = guard.now();
            let _ = guard.nic().reject(now, conn, reason::CONSUMER, b"no trunk with that address and secret");
            return Ok(());
        };
        // The caller has given up what there was.
        self.give_up(index);
        self.meet(life, index);
        let mut guard = device.lock();
        let (now, qp, attr) = (guard.now(), self.queue_pair(&mut guard, index)?, self.attr(index));
        let heard = self.greeting(index, End::Caller, &[]).say(life);
        let said = self.greeting(index, End::Answerer, &heard).say(self.life);
        match guard.nic().accept(now, conn, qp, attr, &said) {
            Ok(()) => self.ways[index].line = Some(Line { qp, conn, up: false, since: self.now() }),
            Err(_) => drop(guard.nic().destroy_qp(qp)),
        }
        Ok(())
    }

    /// A connection is no more: what it had under way others send again.
    pub(super) fn lose(&mut self, guard: &mut DeviceGuard<'_>, index: usize) {
        // What has come is acknowledged, and not sent again.
        while let Some(wc) = guard.nic().poll_cq(self.ways[index].cq) {
            let line = self.ways[index].line.as_ref();
            let came = wc.status == WcStatus::Success && wc.opcode == WcOpcode::Recv;
            if came && line.is_some_and(|line| line.qp == wc.qpn && self.is_proven(line)) {
                self.broken |= self.hear(index, &wc).is_err();
            }
        }
        let (now, entries) = (self.now(), self.config.policy.entries);
        let way = &mut self.ways[index];
        let Some(line) = way.line.take() else { return };
        let at = guard.now();
        let _ = guard.nic().disconnect(at, line.conn);
        let _ = guard.nic().destroy_qp(line.qp);
        way.headers.clear();
        (way.free, way.notes, way.dial_at) = ((0..entries).collect(), 0, now + REDIAL);
        self.streams.failed(now, NicId(index as u16));
        // A limit may have been lost with it.
        self.limits.at = 0;
    }

    /// Ends all connections. Nothing comes or goes any more.
    pub fn hang_up(&mut self) {
        for index in 0..self.ways.len() {
            let device = self.ways[index].device.clone();
            let mut guard = device.lock();
            self.lose(&mut guard, index);
            // So the other end mostly hears of it; if not, its connection breaks.
            guard.progress();
            drop(guard);
            device.stop();
        }
    }
}

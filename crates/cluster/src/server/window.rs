//! The memory in which clients READ a chain's data for themselves: see [`remora_replica::chain::Lines`].
//!
//! It is open to whoever has its key, which a client gets with its connection. The region is under the head's lease, and is another
//! one in each view. Nothing of a node but this memory is in its protection domain.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use remora_memory::{Access, Buffer, Pd, Region};
use remora_nic::cm::{CmEvent, ConnId, ListenerId, service_id};
use remora_nic::{ConnectAttr, CqId, Event, Nic, QpInit, QpType, Qpn, Time};
use remora_real::{Error, Seat};
use remora_replica::chain::Lines;

use super::{Server, Whom};
use crate::hello::{Guard, Hello, WindowHello, Words};
use crate::service::{Service, Shown};
use crate::wire::WINDOW_PORT;

/// See the module.
pub(super) struct Window {
    lines: Lines,
    memory: Buffer,
    pd: Pd,
    cq: CqId,
    listener: ListenerId,
    /// In which view it is open, and what its key opens.
    open: Option<(u64, Arc<Region>)>,
    /// Clients' queue pairs, and from where they come.
    readers: BTreeMap<Qpn, (ConnId, IpAddr)>,
}

impl Window {
    /// Over what a service shows, if that is not to be sealed: what a READ brings nobody seals.
    pub fn over(nic: &mut Nic, guard: Guard, shown: Option<Shown<'_>>) -> Result<Option<Self>, Error> {
        let Some(Shown { lines, data, version }) = shown.filter(|_| guard != Guard::Sealed) else { return Ok(None) };
        // Not lent to peers, who would look at it when the lease may be over.
        let mapped = Buffer::anonymous(lines.bytes() as usize);
        let memory = mapped.map_err(|source| Error::System { what: "mapping memory", source })?;
        let pd = nic.registry().alloc_pd();
        // Nothing completes here: clients READ.
        let cq = nic.create_cq(1)?;
        let listener = nic.listen(service_id(WINDOW_PORT))?;
        let this = Self { lines, memory, pd, cq, listener, open: None, readers: BTreeMap::new() };
        lines.fill(version, data, |at, bytes| this.put(at, bytes));
        Ok(Some(this))
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        // The layout is as long as the memory.
        let _ = self.memory.write(at as usize, bytes);
    }

    /// The data has these bytes now.
    pub fn write(&self, version: u64, offset: u64, bytes: &[u8]) {
        self.lines.write(version, offset, bytes, |at, some| self.put(at, some));
    }

    /// What the engine says, before the NIC does anything more: in which view it is open, and until when.
    fn follow(&mut self, nic: &mut Nic, may: Option<(u64, Time)>) -> Result<bool, Error> {
        let epoch = may.map(|(epoch, _)| epoch);
        if let Some((_, region)) = self.open.take_if(|(open_in, _)| Some(*open_in) != epoch) {
            // Nothing is bound to it.
            let _ = nic.registry().deregister(region.key());
            nic.forget_gone_regions();
        }
        let Some((epoch, until)) = may else { return Ok(false) };
        if self.open.is_none() {
            let length = self.memory.len().min(self.lines.bytes() as usize);
            let region = nic.registry().register_hidden(self.pd, &self.memory, length, Access::REMOTE_READ)?;
            self.open = Some((epoch, region));
        }
        if let Some((_, region)) = &self.open {
            region.lease_until(until);
        }
        Ok(true)
    }

    /// From where clients that READ come.
    pub fn readers(&self) -> impl Iterator<Item = IpAddr> {
        self.readers.values().map(|(_, from)| *from)
    }

    fn end(&mut self, seat: &mut Seat<'_>, qpn: Qpn) {
        if let Some((conn, _)) = self.readers.remove(&qpn) {
            // It may be closing already.
            let _ = seat.nic.disconnect(seat.now.time(), conn);
            let _ = seat.nic.destroy_qp(qpn);
        }
    }
}

impl<S: Service> Server<S> {
    /// Opens and closes the window as the engine has it, before the NIC takes anything more.
    pub(super) fn follow_window(&mut self, seat: &mut Seat<'_>) {
        let Some(window) = &mut self.window else { return };
        // Without room for a region it stays closed, and clients ask.
        if !window.follow(seat.nic, self.node.window()).unwrap_or(false) {
            let readers: Vec<Qpn> = window.readers.keys().copied().collect();
            readers.into_iter().for_each(|qpn| window.end(seat, qpn));
        }
    }

    /// Whether an event was about a client that READs, or wants to.
    pub(super) fn window_event(&mut self, seat: &mut Seat<'_>, event: &Event) -> bool {
        let Some(window) = &mut self.window else { return false };
        match event {
            Event::Cm(CmEvent::ConnectRequest { conn, listener, remote_ip, private_data, .. }) => {
                if *listener != window.listener {
                    return false;
                }
                if let Err(error) = self.take_reader(seat, *conn, *remote_ip, private_data) {
                    Self::reject(seat, *conn, &error);
                }
                true
            }
            Event::Cm(
                CmEvent::Disconnected { conn } | CmEvent::Unreachable { conn } | CmEvent::Rejected { conn, .. },
            ) => {
                let reader = window.readers.iter().find(|(_, (of, _))| of == conn).map(|(&qpn, _)| qpn);
                reader.map(|qpn| window.end(seat, qpn)).is_some()
            }
            Event::QpFatal(qpn, _) if window.readers.contains_key(qpn) => {
                window.end(seat, *qpn);
                true
            }
            _ => false,
        }
    }

    fn take_reader(&mut self, seat: &mut Seat<'_>, conn: ConnId, from: IpAddr, said: &[u8]) -> Result<(), Error> {
        let caller = self.admit(from, said)?;
        let words = Words { caller: caller.encode(), answerer: Hello::new(&self.config)?.encode() };
        let secret = (self.config.guard() != Guard::Open).then(|| self.secret_of(Whom::Client(from)));
        let Some(window) = &mut self.window else { return Err(closed()) };
        let Some((_, region)) = &window.open else { return Err(closed()) };
        let hello =
            WindowHello { va: region.va(), key: region.key(), data: window.lines.data(), cell: window.lines.cell() };
        let qpn =
            seat.nic.create_qp(QpInit { max_rpc: 0, ..QpInit::new(QpType::Rc, window.pd, window.cq, window.cq) })?;
        let attr = ConnectAttr { min_rnr_timer: 1, ..ConnectAttr::default() };
        let accepted = seat.nic.to_init(qpn, Access::REMOTE_READ, 0).map_err(Error::from).and_then(|()| {
            let answer = hello.answer(&words, secret.as_ref());
            Ok(seat.nic.accept(seat.now.time(), conn, qpn, attr, &answer)?)
        });
        if accepted.is_ok() {
            window.readers.insert(qpn, (conn, from));
        } else {
            let _ = seat.nic.destroy_qp(qpn);
        }
        accepted
    }
}

fn closed() -> Error {
    Error::Argument("this node does not show its data: the chain's head does, while it serves".into())
}

//! The host thread of a node: it takes connections, runs calls to the host, and looks after clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use remora_kernel::{Call, Runner, Status};
use remora_memory::{Access, Buffer, Region};
use remora_nic::cm::{CmEvent, ConnId, reason, service_id};
use remora_nic::{CqId, Data, Event, Qpn, SendWr, SrqId, WcOpcode, WcStatus, WorkCompletion};
use remora_service::control::{Extension, PORT, op};
use remora_service::{CallTable, HostAsker, Ledger, MAX_REPLY, MAX_REQUEST, Sends, WorkId};
use remora_wasm::KernelSet;

use super::NodeConfig;
use super::control::{Answered, Control};
use super::modules::Modules;
use super::peers::Peers;
use crate::device::{Device, DeviceGuard};
use crate::kernels::ROUNDS;
use crate::sys::prepare_to_wait;
use crate::{Error, map_memory};

/// Calls to the host that may wait; more wait in the network (RNR NAK).
const RECVS: usize = 1024;
/// Calls to the host that are taken in and whose answers the clients have not all of; one client has half at most.
pub(super) const CALLS: usize = 512;
/// How long the host thread polls without work before it leaves the engine to the NIC thread.
const SPIN: u64 = 500_000;
/// How often a sleeping host thread looks up.
const LOOK_UP: Duration = Duration::from_millis(100);
/// How often each client is probed. One that has not answered by the next time is disconnected: it is gone, or it
/// takes no replies and so holds buffers that others wait for.
const PROBE: u64 = 2_000_000_000;
/// How long a stopping node waits for calls under way.
const DRAIN: u64 = 2_000_000_000;

/// The host thread's state.
pub(super) struct Host {
    device: Device,
    cq: CqId,
    srq: SrqId,
    peers: Peers,
    ingress: Sends,
    calls: CallTable<HostAsker>,
    kernels: Box<dyn Runner + Send>,
    control: Control,
    probe_at: u64,
    stop: Arc<AtomicBool>,
    stopping_since: Option<u64>,
}

impl Host {
    pub fn new(
        device: Device,
        ledger: Ledger,
        set: KernelSet,
        config: &NodeConfig,
        extensions: Vec<Box<dyn Extension>>,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, Error> {
        let (registry, pd) = (ledger.registry().clone(), ledger.pd());
        let memory = |len: usize| -> Result<(Buffer, Arc<Region>), Error> {
            let buffer = map_memory(len)?;
            let region = registry.register(pd, &buffer, 0, len, None, Access::LOCAL_WRITE)?;
            Ok((buffer, region))
        };
        let ingress = Sends::new(memory(RECVS * MAX_REQUEST)?, memory(CALLS * MAX_REPLY)?);
        let kernels = remora_wasm::host_runner(set.clone(), registry.clone(), true, CALLS, config.limits);
        let (cq, srq);
        {
            let mut guard = device.lock();
            let nic = guard.nic();
            cq = nic.create_cq((2 * RECVS + CALLS) as u32)?;
            srq = nic.create_srq(pd, RECVS as u32, 1)?;
            nic.listen(service_id(PORT))?;
        }
        let mut host = Self {
            peers: Peers::new(pd, cq, srq),
            cq,
            srq,
            ingress,
            calls: CallTable::new(CALLS),
            kernels,
            control: Control::new(ledger, Modules::new(set, config.kernels.clone()), extensions),
            probe_at: 0,
            stop,
            stopping_since: None,
            device,
        };
        host.post(&mut host.device.clone().lock());
        Ok(host)
    }

    pub fn run(mut self) {
        prepare_to_wait();
        let mut busy_at = self.device.now();
        loop {
            let work = self.turn();
            let now = self.device.now();
            if now >= self.probe_at {
                self.probe_at = now + PROBE;
                self.probe();
            }
            if work > 0 {
                busy_at = now;
            } else {
                self.device.relax(busy_at);
            }
            if self.stop.load(Ordering::Relaxed) {
                let since = *self.stopping_since.get_or_insert(now);
                if self.calls.under_way() == 0 || now - since > DRAIN {
                    return self.take_leave();
                }
            } else if now - busy_at > SPIN {
                self.device.wait(self.cq, LOOK_UP);
                busy_at = self.device.now();
            }
        }
    }

    /// One round: send replies, drive the engine, take calls, run them. Returns how much there was to do.
    fn turn(&mut self) -> usize {
        let device = self.device.clone();
        let mut guard = device.lock();
        if let Some(answered) = self.control.poll(guard.nic()) {
            self.answer(answered);
        }
        let mut work = self.post(&mut guard);
        if self.control.take_released() {
            guard.refresh_kernels();
        }
        guard.progress();
        while let Some(wc) = guard.nic().poll_cq(self.cq) {
            work += 1;
            self.complete(&mut guard, wc);
        }
        for event in guard.take_events() {
            work += 1;
            self.handle_event(&mut guard, event);
        }
        drop(guard);
        if self.stopping_since.is_none() {
            self.start_calls();
        }
        self.run_kernels();
        work + self.kernels.in_flight() + usize::from(self.control.is_busy())
    }

    /// Posts replies and receives. Returns how many replies.
    fn post(&mut self, guard: &mut DeviceGuard<'_>) -> usize {
        let mut sent = 0;
        while let Some(reply) = self.ingress.next_send() {
            let sge = [reply.sge];
            let wr = SendWr::new(reply.number.into(), reply.op, Data::List(&sge)).solicited();
            if guard.nic().post_send(reply.qpn, &wr).is_err() {
                // The client is gone.
                self.calls.release(reply.number);
            }
            sent += 1;
        }
        while let Some((id, sge)) = self.ingress.next_recv() {
            // There is room: as many receives exist as the queue holds.
            let _ = guard.nic().post_srq_recv(self.srq, id, &[sge]);
        }
        sent
    }

    fn complete(&mut self, guard: &mut DeviceGuard<'_>, wc: WorkCompletion) {
        match (wc.opcode, wc.status) {
            (WcOpcode::Recv, WcStatus::Success) => {
                if self.ingress.received(wc.wr_id, wc.qpn, wc.byte_len).is_err() {
                    self.cut_off(guard, wc.qpn);
                }
            }
            (WcOpcode::Recv | WcOpcode::RecvWriteImm, _) => self.ingress.give_back(wc.wr_id),
            _ => match WorkId::decode(wc.wr_id) {
                WorkId::Call(number) => self.calls.release(number),
                _ => self.peers.answered(wc.qpn),
            },
        }
    }

    fn handle_event(&mut self, guard: &mut DeviceGuard<'_>, event: Event) {
        match event {
            Event::Cm(CmEvent::ConnectRequest { conn, .. }) => {
                if let Err(e) = self.accept(guard, conn) {
                    // The reason goes to the peer as text, which its tools can show.
                    let now = guard.now();
                    let _ = guard.nic().reject(now, conn, reason::CONSUMER, clip(&e.to_string()));
                }
            }
            Event::Cm(
                CmEvent::Disconnected { conn } | CmEvent::Unreachable { conn } | CmEvent::Rejected { conn, .. },
            ) => {
                if let Some(qpn) = self.peers.find(conn) {
                    self.forget(guard, qpn);
                }
            }
            Event::QpFatal(qpn, _) => {
                // The NAK that tells the client why goes first.
                guard.progress();
                self.cut_off(guard, qpn);
            }
            _ => {}
        }
    }

    fn accept(&mut self, guard: &mut DeviceGuard<'_>, conn: ConnId) -> Result<(), Error> {
        if self.stopping_since.is_some() {
            return Err(Error::Argument("the node is stopping".into()));
        }
        let now = guard.now();
        let qpn = self.peers.accept(guard.nic(), now, conn)?;
        self.control.client_came(qpn);
        Ok(())
    }

    /// Ends a connection that has failed, or whose client does not behave.
    fn cut_off(&mut self, guard: &mut DeviceGuard<'_>, qpn: Qpn) {
        let now = guard.now();
        if self.peers.disconnect(guard.nic(), now, qpn) {
            self.forget(guard, qpn);
        }
    }

    /// A client is gone: its memory goes too.
    fn forget(&mut self, guard: &mut DeviceGuard<'_>, qpn: Qpn) {
        if !self.peers.remove(qpn) {
            return;
        }
        self.control.client_gone(guard.nic(), qpn);
        // Its completions in the queue only give slots and numbers back.
        let _ = guard.nic().to_error(qpn);
        while let Some(wc) = guard.nic().poll_cq(self.cq) {
            self.complete(guard, wc);
        }
        self.ingress.forget(qpn);
        let _ = guard.nic().destroy_qp(qpn);
    }

    fn probe(&mut self) {
        let device = self.device.clone();
        let mut guard = device.lock();
        for qpn in self.peers.silent() {
            self.cut_off(&mut guard, qpn);
        }
        self.peers.probe(guard.nic());
    }

    /// Starts waiting calls as long as there is room.
    fn start_calls(&mut self) {
        while let Some(call) = self.calls.take(&mut self.ingress) {
            if call.op >= op::FIRST {
                if let Some(answered) = self.control.call(&self.device, call) {
                    self.answer(answered);
                }
            } else if let Err(call) = self.kernels.start(call) {
                self.calls.finish(&mut self.ingress, call, Status::Busy);
            }
        }
    }

    fn answer(&mut self, Answered { call, outcome }: Answered) {
        match outcome {
            Ok(status) => self.calls.finish(&mut self.ingress, call, status),
            Err(why) => self.calls.refuse(&mut self.ingress, call, &why),
        }
    }

    fn run_kernels(&mut self) {
        let Self { kernels, calls, ingress, .. } = self;
        // A look-up ends within one turn, so that its reply leaves with the acknowledgement of its request.
        for _ in 0..ROUNDS {
            if kernels.in_flight() == 0 {
                break;
            }
            kernels.poll(&mut |call: Call, status| calls.finish(ingress, call, status));
        }
    }

    /// The node ends: clients are told.
    fn take_leave(&mut self) {
        self.control.stop();
        let end = self.device.now() + 50_000_000;
        let mut guard = self.device.lock();
        let now = guard.now();
        let mut left = self.peers.disconnect_all(guard.nic(), now);
        while left > 0 && guard.now() < end {
            guard.progress();
            let events = guard.take_events();
            left -= events.iter().filter(|e| matches!(e, Event::Cm(CmEvent::Disconnected { .. }))).count().min(left);
        }
    }
}

/// What of an explanation fits into a rejection.
fn clip(text: &str) -> &[u8] {
    &text.as_bytes()[..text.len().min(140)]
}

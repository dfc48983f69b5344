//! Calls that came to the NIC, and that the host runs because the node has placed them here.

use std::sync::Arc;

use remora_kernel::{Call, Status};
use remora_service::{CallKind, NodePlacer, Placing};

use super::super::control::Answered;
use super::super::watch::NodeEvent;
use super::Host;
use crate::device::DeviceGuard;

/// In a tag: the call is one of these. The host's own calls have tags below.
const PLACED: u64 = 1 << 32;
/// It only spreads which calls are timed.
const SEED: u64 = 1;

impl Host {
    /// Has the NIC place calls.
    pub(super) fn place_calls(&mut self, placing: Placing) {
        if let Some(placer) = placing.placer(SEED) {
            self.device.lock().place_by(placer, Arc::clone(&self.ingress.rings.bell));
        }
    }

    /// Answers those that have ended. Returns how many.
    pub(super) fn answer_placed(&mut self, guard: &mut DeviceGuard<'_>) -> usize {
        self.placed.drain(..).map(|(call, status)| guard.answer(call, status)).count()
    }

    /// Starts those that the NIC has placed here since, and drops those that take too long.
    pub(super) fn take_placed(&mut self, guard: &mut DeviceGuard<'_>) {
        let Some(placer) = guard.placer() else { return };
        while let Some(mut call) = placer.poll_host() {
            call.tag |= PLACED;
            // There is room: the runner takes as many as both tables have.
            if let Err(call) = self.kernels.start(call) {
                self.placed.push((unmarked(call), Status::Busy));
            }
        }
        while let Some(tag) = placer.poll_overdue() {
            if self.kernels.cancel(tag | PLACED) {
                let mut call = Call::default();
                call.tag = tag;
                self.placed.push((call, Status::Overdue));
            }
        }
        if let Some((kind, reason)) = placer.placer().poll_move() {
            self.told.tell(|| NodeEvent::Placed { op: kind.op, why: reason.to_string() });
        }
    }

    /// Says why calls of a kind run where they do.
    pub(super) fn explain(&self, mut call: Call) -> Answered {
        let explained = CallKind::decode(&call.params).ok_or("the parameters are cut short".to_owned());
        let explained = explained.and_then(|kind| {
            let mut guard = self.device.lock();
            let placer = guard.placer().ok_or("this node leaves it to its clients where calls run")?;
            let reason = NodePlacer::placer(placer).reason(kind);
            let none = || format!("no such calls of kernel {:#x} were left to this node lately", kind.op);
            Ok(reason.ok_or_else(none)?.to_string())
        });
        let outcome = explained.map(|why| {
            call.reply.extend_from_slice(why.as_bytes());
            Status::Ok
        });
        Answered { call, outcome }
    }
}

/// The call as the NIC's table knows it, if it is one of these.
pub(super) fn placed(call: Call) -> Result<Call, Call> {
    if call.tag & PLACED == 0 { Err(call) } else { Ok(unmarked(call)) }
}

fn unmarked(mut call: Call) -> Call {
    call.tag &= !PLACED;
    call
}

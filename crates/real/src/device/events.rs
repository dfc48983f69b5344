//! Who hears of a device's events, and threads that sleep until there is one.

use std::thread::Thread;
use std::time::Duration;

use remora_nic::{CqId, Event, Nic};

use super::{Device, EventSink};

/// Events on their way from the engine to users.
pub(super) struct Events {
    /// Threads parked until a completion queue has something.
    waiters: Vec<(CqId, Thread)>,
    /// Those that belong to the user.
    pub taken: Vec<Event>,
    sink: EventSink,
}

impl Events {
    pub fn new(sink: EventSink) -> Self {
        Self { waiters: Vec::new(), taken: Vec::with_capacity(64), sink }
    }

    /// Hands out what the engine has to tell.
    #[inline(never)]
    pub fn dispatch(&mut self, nic: &mut Nic) {
        while let Some(event) = nic.poll_event() {
            let Some(event) = (self.sink)(event) else { continue };
            match event {
                Event::Completion(cq) => {
                    self.waiters.iter().filter(|(id, _)| *id == cq).for_each(|(_, thread)| thread.unpark());
                }
                other => {
                    self.taken.push(other);
                    self.waiters.iter().for_each(|(_, thread)| thread.unpark());
                }
            }
        }
    }
}

impl Device {
    /// Sleeps until `cq` has a completion, there is an event, or `timeout` has passed; the NIC thread drives meanwhile.
    pub fn wait(&self, cq: CqId, timeout: Duration) {
        if self.arm(cq) {
            std::thread::park_timeout(timeout);
            self.disarm();
        }
    }

    /// Has this thread woken when there is something; false if there is already.
    fn arm(&self, cq: CqId) -> bool {
        {
            let mut guard = self.lock();
            let nothing = guard.nic().cq_len(cq) == 0 && guard.core.events.taken.is_empty();
            if !nothing || guard.nic().arm_cq(cq, false).is_err() {
                return false;
            }
            guard.core.events.waiters.push((cq, std::thread::current()));
        }
        self.release();
        true
    }

    fn disarm(&self) {
        let me = std::thread::current().id();
        self.shared.core.lock().events.waiters.retain(|(_, t)| t.id() != me);
    }
}

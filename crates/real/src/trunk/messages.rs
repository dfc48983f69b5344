//! What goes by the connections of a trunk: segments, and how far the other end may send records.

use remora_nic::{Data, SendOp, SendWr, WcOpcode, WcStatus, WorkCompletion};
use remora_rack::{Breach, CONTROL, FlowId, NicId, NicState, Segment};

use super::Trunk;
use super::memory::{HEADER, Layout, NOTES, header, sge};
use crate::Error;
use crate::device::DeviceGuard;

/// A message: a segment, or how far the other end may send records.
pub(super) const SEGMENT: u32 = 1;
const LIMIT: u32 = 2;
/// In the number of a work request: it is a limit, not a segment.
const IS_LIMIT: u64 = 1 << 63;
/// A NIC that has said nothing for so long says something, to find out whether there is still somebody, nanoseconds.
const QUIET: u64 = 500_000_000;

/// What the other end knows of how far it may send records.
#[derive(Default)]
pub(super) struct Limits {
    pub told: u64,
    pub known: u64,
    pub at: u64,
    pub turn: usize,
}

impl Trunk {
    pub(super) fn complete(
        &mut self,
        guard: &mut DeviceGuard<'_>,
        index: usize,
        wc: &WorkCompletion,
    ) -> Result<(), Error> {
        let now = self.now();
        let way = &mut self.ways[index];
        // What comes of a queue pair that was given up says nothing.
        if way.line.as_ref().is_none_or(|line| line.qp != wc.qpn) {
            return Ok(());
        }
        if wc.status != WcStatus::Success {
            self.lose(guard, index);
            return Ok(());
        }
        match wc.opcode {
            WcOpcode::Recv => {
                self.broken |= self.hear(index, wc).is_err();
                let layout = Layout::new(&self.config.policy);
                let sge = self.sge(layout.receive(index, wc.wr_id), HEADER + layout.segment);
                guard.nic().post_recv(wc.qpn, wc.wr_id, &sge)?;
            }
            // It wrote, which no rack does, nothing where it may write nothing: that is no word of what was sent here.
            WcOpcode::RecvWriteImm => self.broken = true,
            _ if wc.wr_id & IS_LIMIT != 0 => {
                way.notes -= 1;
                self.limits.known = self.limits.known.max(wc.wr_id & !IS_LIMIT);
            }
            _ => {
                way.free.extend(way.headers.remove(&wc.wr_id));
                let before = self.streams.queued(NicId(index as u16));
                self.streams.done(now, wc.wr_id);
                way.carried += before - self.streams.queued(NicId(index as u16));
            }
        }
        Ok(())
    }

    /// A message has come.
    pub(super) fn hear(&mut self, index: usize, wc: &WorkCompletion) -> Result<(), Breach> {
        let at = Layout::new(&self.config.policy).receive(index, wc.wr_id);
        let mut head = [0; HEADER];
        self.memory.read(at, &mut head).map_err(|_| Breach::Order)?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let (flow, place) = (FlowId(long(8)), long(16));
        match (word(0), word(4)) {
            (LIMIT, 0) => self.streams.allow_control(place),
            (SEGMENT, len) if len as usize + HEADER == wc.byte_len as usize => {
                let memory = &self.memory;
                // Without a window there is no such stream any more: then nothing of it is fresh.
                let window = self.windows.get_mut(&flow);
                let mut window = window.map(|window| &mut window.into);
                self.streams.accept(flow, place, len, |fresh| {
                    let Some(into) = &mut window else { return };
                    let size = into.len();
                    let mut from = fresh.start;
                    while from < fresh.end {
                        let to = (from % size as u64) as usize;
                        let piece = ((fresh.end - from) as usize).min(size - to);
                        let source = at + HEADER + (from - place) as usize;
                        let taken = memory.take(source, &mut into[to..to + piece]);
                        debug_assert!(taken.is_ok(), "a message lies in its buffer");
                        from += piece as u64;
                    }
                })?;
                if flow == CONTROL {
                    self.hear_records()?;
                }
            }
            _ => return Err(Breach::Order),
        }
        Ok(())
    }

    fn hear_records(&mut self) -> Result<(), Breach> {
        let ready = self.streams.control_ready();
        let Some(window) = self.windows.get(&CONTROL) else { return Ok(()) };
        let mut records = vec![0; (ready.end - ready.start) as usize];
        window.get(ready.start, &mut records);
        self.streams.hear(&records)
    }

    /// NICs take what there is to send. Returns how much that was.
    pub(super) fn send(&mut self) -> Result<usize, Error> {
        let mut used = 0u64;
        let mut sent = 0;
        while let Some(segment) = self.streams.poll_segment(self.now()) {
            used |= 1 << segment.nic.0;
            self.post(&segment)?;
            sent += 1;
        }
        for index in (0..self.ways.len()).filter(|index| used & 1 << index != 0) {
            self.ways[index].device.lock().transmit();
        }
        Ok(sent)
    }

    /// Posts a segment, unless it is of no use any more. Returns its NIC, which has yet to transmit it.
    pub(super) fn post(&mut self, segment: &Segment) -> Result<Option<DeviceGuard<'_>>, Error> {
        let (index, layout) = (usize::from(segment.nic.0), Layout::new(&self.config.policy));
        let Some(window) = self.windows.get(&segment.flow) else { return Ok(None) };
        let Some(slot) = self.ways[index].free.pop() else {
            return Err(Error::Argument("a NIC was given more than its queue holds".into()));
        };
        let head = layout.header(index, slot);
        let written = self.memory.write(head, &header(SEGMENT, segment.len, segment.flow, segment.offset));
        debug_assert!(written.is_ok(), "headers lie in the memory");
        let mut parts = [sge(&self.region, head, HEADER); 3];
        let mut count = 1;
        for (place, len) in window.parts(segment.offset, segment.len as usize) {
            parts[count] = sge(&window.region, place, len);
            count += 1;
        }
        let way = &mut self.ways[index];
        way.headers.insert(segment.tag, slot);
        way.spoke = self.start.elapsed().as_nanos() as u64;
        let Some(line) = &way.line else { return Ok(None) };
        let wr = SendWr::new(segment.tag, SendOp::Send, Data::List(&parts[..count]));
        let mut device = way.device.lock();
        device.nic().post_send(line.qp, &wr)?;
        Ok(Some(device))
    }

    /// Tells the other end how far it may send, if that is much further than it was told, or it may not have heard; and by
    /// every NIC now and then, as a connection breaks only when something is sent.
    pub(super) fn tell_limit(&mut self, now: u64) -> Result<(), Error> {
        for index in 0..self.ways.len() {
            if now > self.ways[index].spoke + QUIET {
                self.note(index, now)?;
            }
        }
        let (limit, policy) = (self.streams.control_limit(), self.config.policy);
        let further = limit >= self.limits.told + policy.window / 4;
        let unheard = self.limits.known < self.limits.told && now >= self.limits.at + policy.patience;
        if !further && !unheard {
            return Ok(());
        }
        let count = self.ways.len();
        let next = (0..count).map(|n| (self.limits.turn + n) % count).find(|index| {
            self.streams.nic_state(NicId(*index as u16)) == Some(NicState::Up) && self.ways[*index].notes < NOTES
        });
        let Some(index) = next else { return Ok(()) };
        if self.note(index, now)? {
            self.limits = Limits { told: limit, at: now, turn: index + 1, ..self.limits };
        }
        Ok(())
    }

    /// Tells the limit by a NIC. False if that cannot be done now.
    fn note(&mut self, index: usize, now: u64) -> Result<bool, Error> {
        let limit = self.streams.control_limit();
        let way = &mut self.ways[index];
        let line = way.line.as_ref().filter(|line| line.up && way.notes < NOTES);
        let Some(line) = line else { return Ok(false) };
        let bytes = header(LIMIT, 0, CONTROL, limit);
        let mut guard = way.device.lock();
        guard.nic().post_send(line.qp, &SendWr::new(IS_LIMIT | limit, SendOp::Send, Data::Inline(&bytes)))?;
        guard.transmit();
        drop(guard);
        (way.notes, way.spoke) = (way.notes + 1, now);
        Ok(true)
    }
}

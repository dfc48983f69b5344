//! What the owner of a trunk does with its streams.

use std::net::SocketAddr;

use remora_rack::{FlowId, Refusal, StreamEvent};

use super::Trunk;
use super::memory::Window;
use crate::Error;

impl Trunk {
    /// Asks the other rack for a connection to `to`, for a program at `from`, or that one of the kernel's between the two goes on
    /// here. None if there are too many, or no memory.
    pub fn open(&mut self, to: SocketAddr, from: SocketAddr, goes_on: bool) -> Option<FlowId> {
        let window = self.window().ok()?;
        let flow = self.streams.open(to, from, goes_on)?;
        self.windows.insert(flow, window);
        Some(flow)
    }

    fn window(&self) -> Result<Window, Error> {
        Window::new(&self.registry, &self.region, self.config.policy.window as usize)
    }

    /// Answers [`StreamEvent::Asked`].
    pub fn answer(&mut self, flow: FlowId, answer: Result<(), Refusal>) {
        let window = if answer.is_ok() { self.window().ok() } else { None };
        let answer = if window.is_some() { answer } else { answer.and(Err(Refusal::TooMany)) };
        self.windows.extend(window.map(|window| (flow, window)));
        self.streams.answer(flow, answer);
    }

    /// Takes bytes to send, as many as there is room for. Returns how many.
    pub fn write(&mut self, flow: FlowId, data: &[u8]) -> usize {
        let Some(window) = self.windows.get(&flow) else { return 0 };
        let room = self.streams.room(flow);
        let len = data.len().min((room.end - room.start) as usize);
        window.put(room.start, &data[..len]);
        self.streams.wrote(flow, len as u64);
        len
    }

    /// No more will be written to a stream.
    pub fn end(&mut self, flow: FlowId) {
        self.streams.end(flow);
    }

    /// Gives bytes that have come. Returns how many.
    pub fn read(&mut self, flow: FlowId, out: &mut [u8]) -> usize {
        let Some(window) = self.windows.get(&flow) else { return 0 };
        let ready = self.streams.ready(flow);
        let len = out.len().min((ready.end - ready.start) as usize);
        window.get(ready.start, &mut out[..len]);
        self.streams.took(flow, len as u64);
        len
    }

    /// As [`read`](Self::read), of `most` bytes at most, where they lie: `to` says how many it takes of each run. Returns how many are
    /// left that have come.
    pub fn pass(&mut self, flow: FlowId, most: usize, mut to: impl FnMut(&[u8]) -> usize) -> usize {
        let Some(window) = self.windows.get(&flow) else { return 0 };
        let ready = self.streams.ready(flow);
        let all = (ready.end - ready.start) as usize;
        let mut taken = 0;
        for (place, len) in window.parts(ready.start, all.min(most)) {
            let took = to(&window.into[place..place + len]).min(len);
            taken += took;
            if took < len {
                break;
            }
        }
        self.streams.took(flow, taken as u64);
        all - taken
    }

    /// Has what was written leave, as far as it may, beside whoever drives this, who is told of what a device refuses.
    pub fn push(&mut self) {
        self.pushed_at = self.now();
        while let Some(segment) = self.streams.poll_segment(self.now()) {
            // With nothing left behind, whoever sleeps as the driver sleeps on.
            let posted = self.post(&segment).map(|device| device.into_iter().for_each(|mut device| device.transmit()));
            if let Err(error) = posted {
                self.refused = Some(error);
            }
        }
    }

    /// Whether all has been read that ever comes.
    pub fn is_finished(&self, flow: FlowId) -> bool {
        self.streams.is_finished(flow)
    }

    /// Whether the other rack has said where a stream's bytes end.
    pub fn has_end(&self, flow: FlowId) -> bool {
        self.streams.has_end(flow)
    }

    /// Whether this rack has closed a stream, or the other one has given it up and all that came before was read.
    pub fn is_lost(&self, flow: FlowId) -> bool {
        self.streams.is_lost(flow)
    }

    /// Whether the other rack hears nothing more of a stream.
    pub fn is_deaf(&self, flow: FlowId) -> bool {
        self.streams.is_deaf(flow)
    }

    /// Lets a stream go. If it was not ended, or not read to its end, the other rack hears that it was given up.
    pub fn close(&mut self, flow: FlowId) {
        self.streams.close(flow);
    }

    /// What has happened since. [`StreamEvent::Gone`] stays here: it is about the windows.
    pub fn poll_event(&mut self) -> Option<StreamEvent> {
        loop {
            match self.streams.poll_event()? {
                StreamEvent::Gone(flow) => drop(self.windows.remove(&flow)),
                event => return Some(event),
            }
        }
    }

    /// Bytes that were written to a stream and are in the other rack's memory, without a gap.
    pub fn arrived(&self, flow: FlowId) -> u64 {
        self.streams.arrived_of(flow)
    }
}

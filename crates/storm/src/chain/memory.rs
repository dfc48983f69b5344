//! Persistent memory in a storm: what was written and not flushed is lost at a power failure, line by line.

use std::collections::VecDeque;

use crate::rng::Rng;

/// Bytes that become durable together.
const LINE: u64 = 64;

#[derive(Debug)]
pub(super) struct Memory {
    durable: Vec<u8>,
    unflushed: VecDeque<(u64, u64, Vec<u8>)>,
    /// The last write that the flush under way includes.
    flushing: Option<u64>,
    pub lost_lines: u64,
}

impl Memory {
    pub fn new(bytes: usize) -> Self {
        Self { durable: vec![0; bytes], unflushed: VecDeque::new(), flushing: None, lost_lines: 0 }
    }

    pub fn image(&self) -> &[u8] {
        &self.durable
    }

    pub fn write(&mut self, token: u64, at: u64, bytes: Vec<u8>) {
        self.unflushed.push_back((token, at, bytes));
    }

    /// Begins to flush if there is something, and nothing is being flushed.
    pub fn begin_flush(&mut self) -> bool {
        let begins = self.flushing.is_none() && !self.unflushed.is_empty();
        if begins {
            self.flushing = self.unflushed.back().map(|(token, ..)| *token);
        }
        begins
    }

    /// The flush has ended: up to which write.
    pub fn end_flush(&mut self) -> Option<u64> {
        let token = self.flushing.take()?;
        while let Some((_, at, bytes)) = self.unflushed.pop_front_if(|(number, ..)| *number <= token) {
            self.store(at, &bytes);
        }
        Some(token)
    }

    fn store(&mut self, at: u64, bytes: &[u8]) {
        self.durable[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }

    /// The process ends; the machine goes on.
    pub fn kill(&mut self) {
        self.flushing = None;
        for (_, at, bytes) in std::mem::take(&mut self.unflushed) {
            self.store(at, &bytes);
        }
    }

    /// The machine ends: of what was not flushed each line stays by chance.
    pub fn crash(&mut self, rng: &mut Rng, keep: u32) {
        self.flushing = None;
        for (_, at, bytes) in std::mem::take(&mut self.unflushed) {
            let mut from = 0;
            while from < bytes.len() {
                let line = (LINE - (at + from as u64) % LINE).min((bytes.len() - from) as u64) as usize;
                if rng.chance(keep) {
                    self.store(at + from as u64, &bytes[from..from + line]);
                } else {
                    self.lost_lines += 1;
                }
                from += line;
            }
        }
    }

    /// The machine ends, and its memory is as new.
    pub fn wipe(&mut self) {
        self.unflushed.clear();
        self.flushing = None;
        self.durable.fill(0);
    }
}

//! What waits, one client after the other.

use std::collections::VecDeque;

/// A queue for each client, and whose turn it is.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    /// By client.
    queues: Vec<VecDeque<T>>,
    /// Clients with something in their queues, each once.
    ready: VecDeque<u32>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { queues: Vec::new(), ready: VecDeque::new() }
    }
}

impl<T> Turns<T> {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Something comes for a client.
    pub fn push(&mut self, client: u32, item: T) {
        self.queue(client).push_back(item);
    }

    /// It is not done with: it is the first of its client again.
    pub fn put_back(&mut self, client: u32, item: T) {
        self.queue(client).push_front(item);
    }

    /// A client's queue, to put something in.
    fn queue(&mut self, client: u32) -> &mut VecDeque<T> {
        let index = client as usize;
        if index >= self.queues.len() {
            self.queues.resize_with(index + 1, VecDeque::new);
        }
        if self.queues[index].is_empty() {
            self.ready.push_back(client);
        }
        &mut self.queues[index]
    }

    /// How much waits of a client.
    pub fn of(&self, client: u32) -> usize {
        self.queues.get(client as usize).map_or(0, VecDeque::len)
    }

    /// The next of a client that may.
    pub fn pop(&mut self, may: impl Fn(u32) -> bool) -> Option<(u32, T)> {
        for _ in 0..self.ready.len() {
            let client = self.ready.pop_front()?;
            let queue = &mut self.queues[client as usize];
            let item = if may(client) { queue.pop_front() } else { None };
            if !queue.is_empty() {
                self.ready.push_back(client);
            }
            if let Some(item) = item {
                return Some((client, item));
            }
        }
        None
    }

    /// Drops what a client has waiting, but for what is to be kept.
    pub fn retain(&mut self, client: u32, keep: impl FnMut(&T) -> bool) {
        let Some(queue) = self.queues.get_mut(client as usize) else { return };
        queue.retain(keep);
        if queue.is_empty() {
            self.ready.retain(|&other| other != client);
        }
    }
}

//! What belongs to the process that made it.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use crate::error;

/// Something with threads and connections, until it is closed. Threads share it by turns. A forked process has a copy of its
/// memory and neither: there it is never used, and never dropped, which would end the connections of the process that forked.
pub struct Owned<T> {
    process: u32,
    what: Mutex<Option<T>>,
}

impl<T: Send> Owned<T> {
    /// Of this process.
    pub fn new(what: T) -> Self {
        Self { process: std::process::id(), what: Mutex::new(Some(what)) }
    }

    /// Does something with it, while other threads of Python go on; `None` once it is closed.
    pub fn with<R: Send>(&self, py: Python<'_>, run: impl FnOnce(&mut T) -> R + Send) -> PyResult<Option<R>> {
        // Whoever forked may have held the lock, for ever.
        if self.process != std::process::id() {
            let why = "this belongs to the process that forked this one: make one here, or start processes by spawn";
            return Err(error::exception("ConnectionFailed", why));
        }
        Ok(py.detach(|| self.what.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(run)))
    }

    /// Ends it, if it is of this process.
    pub fn close(&self, py: Python<'_>) {
        if self.process == std::process::id() {
            py.detach(|| drop(self.what.lock().unwrap_or_else(PoisonError::into_inner).take()));
        }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(self.what.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

//! Running kernels, each woken by itself: what a place polls when the memory access of one of its calls is done.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use remora_kernel::{Builtins, Call, Kernel, Limited, Limits, Memory, Status};

/// Kernels in flight at one place, by number.
pub trait Tasks {
    /// Takes a call in under a number, or gives it back if as many are in flight as there may be. It runs when polled.
    fn start(&mut self, call: Call) -> Result<u32, Call>;

    /// Lets one call run on; hands it over if it is done.
    fn poll(&mut self, task: u32) -> Option<(Call, Status)>;

    /// Calls in flight.
    fn in_flight(&self) -> usize;
}

/// Room for `capacity` calls of the built-in kernels over the memory that `memory_for` makes for each.
pub fn tasks<M: Memory + 'static>(
    mut memory_for: impl FnMut(&Call) -> M + 'static,
    capacity: usize,
    limits: Limits,
) -> Box<dyn Tasks> {
    let make = move |mut call: Call| {
        let memory = memory_for(&call);
        async move {
            let limited = Limited::new(&memory, limits);
            let status = Builtins.run(&limited, &mut call).await;
            (call, status)
        }
    };
    Box::new(Table {
        slots: (0..capacity).map(|_| Box::pin(None)).collect(),
        free: (0..capacity as u32).rev().collect(),
        make,
    })
}

/// Futures of one type in slots that are allocated once.
struct Table<F, T> {
    slots: Vec<Pin<Box<Option<F>>>>,
    free: Vec<u32>,
    make: T,
}

impl<F, T> Tasks for Table<F, T>
where
    F: Future<Output = (Call, Status)>,
    T: FnMut(Call) -> F,
{
    fn start(&mut self, call: Call) -> Result<u32, Call> {
        let Some(slot) = self.free.pop() else { return Err(call) };
        let task = (self.make)(call);
        self.slots[slot as usize].set(Some(task));
        Ok(slot)
    }

    fn poll(&mut self, task: u32) -> Option<(Call, Status)> {
        let slot = self.slots.get_mut(task as usize)?;
        let future = slot.as_mut().as_pin_mut()?;
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => None,
            Poll::Ready(done) => {
                slot.set(None);
                self.free.push(task);
                Some(done)
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

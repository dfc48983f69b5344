//! Running kernels, each woken by itself: what a place polls when the memory access of one of its calls is done.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use remora_kernel::{Call, Kernel, Limited, Limits, Memory, Status};

/// Kernels in flight at one place, by number.
pub trait Tasks {
    /// Takes a call in under a number, or gives it back if as many are in flight as there may be. It runs when polled.
    fn start(&mut self, call: Call) -> Result<u32, Call>;

    /// Lets one call run on.
    fn poll(&mut self, task: u32) -> Turn;
}

/// How far a call got.
pub enum Turn {
    /// To its end.
    Done(Call, Status),
    /// It waits for memory; or there is no such call.
    Waits,
    /// It could go on, or waits for its stream.
    GaveWay,
}

/// Room for `capacity` calls of `kernels` over the memory that `memory_for` makes for each.
pub fn tasks<K: Kernel + Clone + 'static, M: Memory + 'static>(
    kernels: K,
    mut memory_for: impl FnMut(&Call) -> M + 'static,
    capacity: usize,
    limits: Limits,
) -> Box<dyn Tasks> {
    let make = move |mut call: Call| {
        let (memory, kernels) = (memory_for(&call), kernels.clone());
        async move {
            let limited = Limited::new(&memory, limits);
            let status = kernels.run(&limited, &mut call).await;
            (call, status)
        }
    };
    let woken = Arc::new(Woken::default());
    Box::new(Table {
        slots: (0..capacity).map(|_| Box::pin(None)).collect(),
        free: (0..capacity as u32).rev().collect(),
        make,
        waker: Waker::from(woken.clone()),
        woken,
    })
}

/// Whether a call wants to go on without anything to wait for.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Futures of one type in slots that are allocated once.
struct Table<F, T> {
    slots: Vec<Pin<Box<Option<F>>>>,
    free: Vec<u32>,
    make: T,
    waker: Waker,
    woken: Arc<Woken>,
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

    fn poll(&mut self, task: u32) -> Turn {
        let Some(slot) = self.slots.get_mut(task as usize) else { return Turn::Waits };
        let Some(future) = slot.as_mut().as_pin_mut() else { return Turn::Waits };
        self.woken.0.store(false, Ordering::Relaxed);
        match future.poll(&mut Context::from_waker(&self.waker)) {
            Poll::Pending if self.woken.0.load(Ordering::Relaxed) => Turn::GaveWay,
            Poll::Pending => Turn::Waits,
            Poll::Ready((call, status)) => {
                slot.set(None);
                self.free.push(task);
                Turn::Done(call, status)
            }
        }
    }
}

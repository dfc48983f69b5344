//! Kernels that run at the client: each access of one is a one-sided verb.

use std::sync::Arc;

use remora_kernel::{Call, Kernel as _, Limited, Limits, Runner, Status, runner};
use remora_service::{Full, MAX_CALLS, MAX_REPLY, RemoteMemory, SHORT_RING_MESSAGE, Staging};
use remora_wasm::KernelSet;

use super::connection::Posting;

/// The kernels here, and the calls of them under way.
pub(super) struct LocalKernels {
    runner: Box<dyn Runner + Send>,
    spare: Vec<Call>,
    /// Which there are: the built-in ones, and what is deployed here.
    pub set: KernelSet,
}

impl LocalKernels {
    /// Over the node's memory through these verbs.
    pub fn new(staging: &Arc<Staging<Posting>>) -> Self {
        let (staging, set) = (staging.clone(), KernelSet::default());
        let kernels = set.clone();
        let task = move |mut call: Call| {
            let (memory, kernels) = (RemoteMemory::new(staging.clone(), call.op), kernels.clone());
            async move {
                let limited = Limited::new(&memory, Limits::default());
                let status = kernels.run(&limited, &mut call).await;
                (call, status)
            }
        };
        Self { runner: runner(task, MAX_CALLS), spare: Vec::with_capacity(MAX_CALLS), set }
    }

    /// Starts a call.
    pub fn start(&mut self, op: u64, params: &[u8], mark: u64) -> Result<(), Full> {
        let mut call = self.spare.pop().unwrap_or_default();
        call.recycle(op, MAX_REPLY as u32);
        call.params.extend_from_slice(params);
        call.tag = mark;
        self.runner.start(call).map_err(|call| {
            self.spare.push(call);
            Full
        })
    }

    /// Lets every call run on; `done` gets mark, status and reply of those that end. Returns how many did.
    pub fn poll(&mut self, done: &mut dyn FnMut(u64, Status, &[u8])) -> usize {
        let spare = &mut self.spare;
        self.runner.poll(&mut |mut call, status| {
            done(call.tag, status, &call.reply);
            // Few are long: what those took is not kept.
            call.shrink(SHORT_RING_MESSAGE);
            spare.push(call);
        })
    }

    /// Calls under way.
    pub fn in_flight(&self) -> usize {
        self.runner.in_flight()
    }
}

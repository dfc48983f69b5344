//! Work requests that concern this side alone: LOCAL_INV and binding a memory window.
//!
//! InfiniBand specification, volume 1, sections 10.6.7.2 and 10.7.2. They run when everything posted before is
//! complete: a retransmission then never needs a key that was taken away in between.

use crate::ctx::Ctx;
use crate::qp::QueuePair;
use crate::types::*;

impl QueuePair {
    /// Whether the next send to start is local. The caller knows that there is one.
    pub(crate) fn local_is_next(&self) -> bool {
        self.req.cursor() == self.sq.started && self.sq.get(self.sq.started).is_local()
    }

    /// Carries out the oldest send, which is local and is the next to start, and completes it if it succeeds.
    pub(crate) fn run_local(&mut self, ctx: &mut Ctx) -> Result<(), WcStatus> {
        let by = self.binder();
        match self.sq.get(self.sq.head).op {
            SendOp::LocalInvalidate(key) => {
                ctx.regions.registry().invalidate(by, key).map_err(|_| WcStatus::LocalQpOperation)?;
            }
            SendOp::Bind(binding) => {
                ctx.regions.registry().bind_window(by, &binding).map_err(|_| WcStatus::MwBind)?;
                self.has_windows = true;
            }
            _ => return Err(WcStatus::LocalQpOperation),
        }
        self.complete_send(ctx, WcStatus::Success, 0);
        self.req.skip_to(self.sq.head);
        self.after_completion(ctx);
        Ok(())
    }
}

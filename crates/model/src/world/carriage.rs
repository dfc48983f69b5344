//! How the verbs of kernels at a client are carried: each is asked for where its kernel is in time, and posted then.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use remora_nic::NicError;
use remora_service::{Carriage, StagedVerb, Staging};

use super::site::Site;
use crate::time::Ps;

/// Staging slots of a connection: more than kernels, of which few have two accesses under way.
pub(super) const SLOTS: usize = 512;

/// The staging memory of a connection.
pub(super) type ModelStaging = Arc<Staging<ModelCarriage>>;

/// What kernels at a client ask for.
pub(super) struct ModelCarriage {
    site: Rc<Site>,
    asked: RefCell<Vec<(Ps, StagedVerb)>>,
    /// Of each slot: the kernel that waits for its verb.
    tasks: RefCell<Vec<u32>>,
}

impl ModelCarriage {
    pub(super) fn new(site: Rc<Site>) -> Self {
        Self { site, asked: RefCell::default(), tasks: RefCell::new(vec![0; SLOTS]) }
    }

    /// Verbs to post since the last call, and when.
    pub(super) fn take_asked(&self, into: &mut Vec<(Ps, StagedVerb)>) {
        into.append(&mut self.asked.borrow_mut());
    }

    /// The kernel that waits for a slot's verb.
    pub(super) fn task(&self, slot: u32) -> Option<u32> {
        self.tasks.borrow().get(slot as usize).copied()
    }
}

impl Carriage for ModelCarriage {
    fn post(&self, verb: &StagedVerb) -> Result<(), NicError> {
        if let Some(task) = self.tasks.borrow_mut().get_mut(verb.slot as usize) {
            *task = self.site.task();
        }
        self.asked.borrow_mut().push((self.site.at(), *verb));
        Ok(())
    }

    fn work(&self, op: u64, bytes: usize) {
        self.site.compute(op, bytes);
    }

    fn compute(&self, instructions: u64) {
        self.site.instructions(instructions);
    }
}

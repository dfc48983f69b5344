//! A search of membership's states.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::{CheckReport, Search};
use super::chart::chart;
use super::world::{Action, State, World};
use super::{MemberMutant, MemberOptions};
use crate::search::{Space, Steps, search};

/// The nodes and what is under way. One thread at a time makes steps.
struct Membership(Mutex<World>);

impl Membership {
    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Space for Membership {
    type State = State;
    type Action = Action;
    type Steps<'a> = MutexGuard<'a, World>;

    fn first(&self) -> State {
        self.world().first()
    }

    fn steps(&self) -> MutexGuard<'_, World> {
        self.world()
    }
}

impl Steps for MutexGuard<'_, World> {
    type State = State;
    type Action = Action;

    fn advance(&mut self, last: &State, action: Action, next: &mut State) {
        *next = self.after(last, action);
    }

    fn look(&mut self, state: &mut State, actions: &mut Vec<Action>) -> bool {
        actions.clear();
        self.actions(state, actions);
        state.fault.is_none()
    }
}

/// Checks all states within the options. `progress` is called about once a second with the distinct states so far;
/// when it returns false the search ends with what there is.
pub fn check_membership(options: &MemberOptions, how: Search, progress: impl FnMut(u64) -> bool) -> CheckReport {
    let membership = Membership(Mutex::new(World::new(*options)));
    let found = search(&membership, Search { threads: 1, ..how }, progress);
    found.told(|way| chart(&mut membership.world(), &way))
}

/// Runs one seeded fault and expects that it is found.
pub fn check_member_mutant(mutant: &MemberMutant) -> CheckReport {
    check_membership(
        &mutant.options(),
        Search { limit: 5_000_000, memory: 3 << 30, shortest: true, ..Search::default() },
        |_| true,
    )
}

//! Numbers of a sequencer, on the host or on the card (figures 11 and 12).

use remora_store::Place;

use super::clients::{How, World};
use super::{Ground, Outcome};
use crate::bluefield::study::{At, Run, Setup};
use crate::modelled::ModelError;
use crate::operations::Numbers;

/// No number may come twice.
pub(super) fn run(ground: &Ground, setup: &Setup) -> Result<Outcome, ModelError> {
    let mut world = World::new(ground, setup)?;
    let machine = setup.place.unwrap_or(At::Host).machine();
    let word = world.fabric.alloc(machine, 64)?;
    let numbers = Numbers::new(Place { va: word.va(), key: word.key() });
    let how = if setup.run == Run::SequencerVerbs { How::Verbs } else { How::Call };
    world.measure((&mut numbers.takes(1), how), &|_| machine, (setup.ahead, setup.operations))
}

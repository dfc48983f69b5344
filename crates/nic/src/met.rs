//! Regions that an engine has met: what it knows of keys without asking the registry, which all engines share.
//!
//! Whoever asks the registry writes lines that every other engine reads and writes too, those of its lock and of the region's
//! count of holders. So an engine asks once for each region that it uses, and its queue pairs hold on to what the engine
//! has of it.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::sync::Arc;

use remora_memory::{Region, Registry};

/// Regions that an engine knows at once; of more it asks again.
const PLACES: usize = 1024;
/// Behind those, the place of one that had to go while a queue pair held it: its memory serves again later.
const HELD: usize = PLACES;
/// Places that are looked at, with each region that is new, for one that is gone.
const SWEPT: usize = 16;

/// What an engine has of a region, or of a memory window.
#[derive(Debug)]
pub(crate) struct Met {
    region: Arc<Region>,
    /// Which queue pair met it: a window may be open to this one alone.
    by: Option<u32>,
}

impl Deref for Met {
    type Target = Region;

    #[inline]
    fn deref(&self) -> &Region {
        &self.region
    }
}

/// What a queue pair met last.
pub(crate) type Last = Option<Arc<Met>>;

/// Whether that is what the key opens.
#[inline]
pub(crate) fn is_met(last: &Last, key: u32) -> bool {
    last.as_ref().is_some_and(|met| met.key() == key && met.is_valid())
}

/// All that an engine knows.
pub(crate) struct Regions {
    registry: Arc<Registry>,
    /// Each region has two places, by its key.
    places: RefCell<Box<[Last]>>,
    /// Where those that are gone are looked for next.
    sweep: Cell<usize>,
}

impl Regions {
    pub fn new(registry: Arc<Registry>) -> Self {
        Self { registry, places: RefCell::new((0..PLACES + 1).map(|_| None).collect()), sweep: Cell::new(0) }
    }

    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// What a key opens for all, or for one queue pair.
    #[inline(never)]
    pub fn find(&self, key: u32, qp: Option<u32>) -> Last {
        let first = (key >> 8) as usize % PLACES;
        let mut places = self.places.borrow_mut();
        for place in [first, first ^ 1] {
            if is_met(&places[place], key)
                && let Some(met) = &places[place]
                && (!met.is_window() || met.by == qp)
            {
                return Some(met.clone());
            }
        }
        let region = match qp {
            Some(qp) => self.registry.lookup_for(key, qp),
            None => self.registry.lookup(key),
        };
        let met = Met { region: region?, by: qp };
        let from = self.sweep.replace((self.sweep.get() + SWEPT) % PLACES);
        places[from..from + SWEPT].iter_mut().for_each(let_go);
        let_go(&mut places[HELD]);
        // The one that was met before makes way for it, and has the place of one longer ago, whose memory serves again.
        let before = places[first].take().filter(|met| met.is_valid());
        let mut longest_ago = before.and_then(|before| places[first ^ 1].replace(before));
        if longest_ago.as_mut().is_some_and(|met| Arc::get_mut(met).is_none()) {
            std::mem::swap(&mut longest_ago, &mut places[HELD]);
        }
        let met = match longest_ago.as_mut().and_then(Arc::get_mut) {
            Some(room) => {
                *room = met;
                longest_ago
            }
            None => Some(Arc::new(met)),
        };
        places[first] = met.clone();
        met
    }

    /// Lets go at once of what is gone, which would otherwise stay mapped until as many others have come.
    pub fn forget_gone(&self) {
        self.places.borrow_mut().iter_mut().for_each(let_go);
    }
}

/// Empties a place whose region is gone.
pub(crate) fn let_go(place: &mut Last) {
    if place.as_ref().is_some_and(|met| !met.is_valid()) {
        *place = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use remora_memory::{Access, Buffer};

    #[test]
    fn what_is_known_is_what_the_registry_has() {
        let registry = Arc::new(Registry::new([9; 32]));
        let (pd, regions) = (registry.alloc_pd(), Regions::new(registry.clone()));
        let buffer = Buffer::anonymous(64).unwrap();
        let register = || registry.register(pd, &buffer, 0, 64, None, Access::LOCAL_WRITE).unwrap().key();
        // More than there are places for: each is found however often they push each other out.
        let keys: Vec<u32> = (0..2 * PLACES).map(|_| register()).collect();
        for _ in 0..2 {
            assert!(keys.iter().all(|&key| is_met(&regions.find(key, None), key)));
        }
        let held = regions.find(keys[0], Some(3)).unwrap();
        let again = regions.find(keys[0], Some(4)).unwrap();
        assert!(Arc::ptr_eq(&held, &again), "one for all of its queue pairs");
        let holders = Arc::strong_count(&held.region);
        for key in &keys {
            registry.deregister(*key).unwrap();
        }
        assert!(keys.iter().all(|&key| regions.find(key, None).is_none()), "gone is gone");
        regions.forget_gone();
        assert!(regions.places.borrow().iter().all(Option::is_none));
        drop(again);
        assert!(Arc::strong_count(&held.region) < holders && Arc::strong_count(&held) == 1);
        // A region that comes beside another one does not push it out.
        let before = register();
        let place = |key: u32| (key >> 8) as usize % PLACES;
        let beside = std::iter::repeat_with(register).find(|&key| place(key) == (place(before) ^ 1)).unwrap();
        regions.forget_gone();
        let first = regions.find(before, None).unwrap();
        assert!(regions.find(beside, None).is_some());
        assert!(Arc::ptr_eq(&first, &regions.find(before, None).unwrap()));
        // And by and by without being told.
        for _ in 0..PLACES {
            let key = register();
            assert!(regions.find(key, None).is_some());
            registry.deregister(key).unwrap();
        }
        let kept = regions.places.borrow().iter().flatten().count();
        assert!(kept <= PLACES / SWEPT + 1, "{kept} that are gone");
    }
}

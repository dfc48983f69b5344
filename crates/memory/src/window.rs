//! Memory windows: keys of their own to a part of a region, bound and taken back by work requests.
//!
//! InfiniBand specification, volume 1, sections 9.4.1.1, 10.6.7.2 and 11.2.10.

use crate::region::{Access, Memory, Region};
use crate::registry::{Entry, Inner, Pd, RegisterError, Registry};
use std::sync::Arc;

/// Whom a window serves, and how its key comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowType {
    /// All queue pairs of the protection domain. Bound over and over, each time under a new key.
    One,
    /// The queue pair that it is bound by (type 2B: queue pair and protection domain). It is bound once, under a key
    /// whose low eight bits its owner chose, and then invalidated before it is bound again.
    Two,
}

/// A memory window. It opens memory only while it is bound.
pub(crate) struct Window {
    kind: WindowType,
    pd: Pd,
    key: u32,
    bound: Option<Bound>,
}

struct Bound {
    view: Arc<Region>,
    /// Key of the region beneath.
    region: u32,
    /// The queue pair, for type 2.
    qp: u32,
}

/// What to bind a window to: see [`Registry::bind_window`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The window's key.
    pub key: u32,
    /// The key that it gets: the low eight bits differ, the others do not.
    pub new_key: u32,
    /// The key of the region beneath.
    pub region: u32,
    /// First address, as the region has it.
    pub va: u64,
    /// Bytes; none unbinds a window of type 1.
    pub len: u64,
    /// The peers' rights; others have no meaning here.
    pub access: Access,
    /// Peers count addresses from 0, instead of as the region does.
    pub zero_based: bool,
}

/// Who binds or invalidates: a queue pair and its protection domain.
#[derive(Clone, Copy, Debug)]
pub struct Binder {
    /// Its protection domain.
    pub pd: Pd,
    /// Its number.
    pub qp: u32,
}

/// Why a window cannot be bound, or a key not be invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// The key is no window's, or no region's where one is asked for.
    #[error("no {0} has this key")]
    Unknown(&'static str),
    /// Window, region and queue pair are not all in one protection domain.
    #[error("{0} belongs to another protection domain")]
    WrongPd(&'static str),
    /// A window of type 2 is bound already, or to another queue pair.
    #[error("the window is bound; its queue pair must invalidate it first")]
    Bound,
    /// A window of type 2 is not bound, so that there is nothing to invalidate.
    #[error("the window is not bound")]
    NotBound,
    /// The new key is not the old one with other low eight bits.
    #[error("the new key must differ from the old one in its low eight bits, and only in those")]
    Key,
    /// The region does not allow windows, or not with these rights.
    #[error("the region does not allow a window with these rights")]
    Denied,
    /// The range does not lie within the region, or a window of type 2 has no byte.
    #[error("the range does not lie within the region")]
    OutOfBounds,
    /// Windows of type 1, and regions that do not allow it, cannot be invalidated.
    #[error("the key cannot be invalidated by a work request")]
    Permanent,
}

impl Window {
    /// The memory that it opens to a queue pair, or to all.
    pub fn opened_to(&self, qp: Option<u32>) -> Option<&Arc<Region>> {
        let bound = self.bound.as_ref()?;
        (self.kind == WindowType::One || Some(bound.qp) == qp).then_some(&bound.view)
    }
}

impl Registry {
    /// Allocates a window. Its key opens nothing yet.
    pub fn alloc_window(&self, pd: Pd, kind: WindowType) -> Result<u32, RegisterError> {
        let inner = &mut *self.0.write();
        let key = inner.new_key(pd)?;
        inner.entries.insert(key >> 8, Entry::Window(Window { kind, pd, key, bound: None }));
        Ok(key)
    }

    /// Deallocates a window, bound or not. Of its key the upper 24 bits suffice, which never change.
    pub fn dealloc_window(&self, key: u32) -> Result<(), WindowError> {
        let inner = &mut *self.0.write();
        let window = inner.window(key)?;
        let pd = window.pd;
        inner.unbind(key);
        inner.entries.remove(&(key >> 8));
        inner.leave(pd);
        Ok(())
    }

    /// The key that a window has now.
    pub fn window_key(&self, key: u32) -> Option<u32> {
        self.0.write().window(key).ok().map(|window| window.key)
    }

    /// Binds a window. On an error nothing has changed.
    pub fn bind_window(&self, by: Binder, binding: &Binding) -> Result<(), WindowError> {
        let inner = &mut *self.0.write();
        let window = inner.window(binding.key)?;
        let (kind, pd) = (window.kind, window.pd);
        if window.key != binding.key {
            return Err(WindowError::Unknown("memory window"));
        }
        if pd != by.pd {
            return Err(WindowError::WrongPd("the window"));
        }
        if kind == WindowType::Two && window.bound.is_some() {
            return Err(WindowError::Bound);
        }
        if binding.new_key >> 8 != binding.key >> 8 || binding.new_key == binding.key {
            return Err(WindowError::Key);
        }
        if binding.len == 0 {
            if kind == WindowType::Two {
                return Err(WindowError::OutOfBounds);
            }
            inner.unbind(binding.key);
            inner.window(binding.key)?.key = binding.new_key;
            return Ok(());
        }
        let view = inner.view(pd, binding)?;
        inner.unbind(binding.key);
        if let Some(Entry::Region { windows, .. }) = inner.entries.get_mut(&(binding.region >> 8)) {
            *windows += 1;
        }
        let window = inner.window(binding.key)?;
        window.key = binding.new_key;
        window.bound = Some(Bound { view: Arc::new(view), region: binding.region, qp: by.qp });
        Ok(())
    }

    /// Takes a key away as a work request asks: unbinds a window of type 2, which can be bound again, or deregisters a
    /// region that allows it ([`Access::INVALIDATE`]).
    pub fn invalidate(&self, by: Binder, key: u32) -> Result<(), WindowError> {
        let inner = &mut *self.0.write();
        match inner.entries.get(&(key >> 8)) {
            Some(Entry::Window(window)) if window.key == key => {
                if window.pd != by.pd {
                    return Err(WindowError::WrongPd("the window"));
                }
                match (window.kind, &window.bound) {
                    (WindowType::One, _) => return Err(WindowError::Permanent),
                    (WindowType::Two, None) => return Err(WindowError::NotBound),
                    (WindowType::Two, Some(bound)) if bound.qp != by.qp => return Err(WindowError::Bound),
                    (WindowType::Two, Some(_)) => inner.unbind(key),
                }
            }
            Some(Entry::Region { region, windows }) if region.key() == key => {
                if region.pd() != by.pd {
                    return Err(WindowError::WrongPd("the region"));
                }
                if !region.access().contains(Access::INVALIDATE) || *windows > 0 {
                    return Err(WindowError::Permanent);
                }
                region.revoke();
                inner.entries.remove(&(key >> 8));
                inner.leave(by.pd);
            }
            _ => return Err(WindowError::Unknown("memory window or region")),
        }
        Ok(())
    }

    /// Unbinds the windows of type 2 that are bound to a queue pair, because it goes away.
    pub fn unbind_windows(&self, qp: u32) {
        let inner = &mut *self.0.write();
        let of_qp = |entry: &Entry| match entry {
            Entry::Window(Window { kind: WindowType::Two, key, bound: Some(bound), .. }) if bound.qp == qp => {
                Some(*key)
            }
            _ => None,
        };
        let keys: Vec<u32> = inner.entries.values().filter_map(of_qp).collect();
        keys.into_iter().for_each(|key| inner.unbind(key));
    }
}

impl Inner {
    fn window(&mut self, key: u32) -> Result<&mut Window, WindowError> {
        match self.entries.get_mut(&(key >> 8)) {
            Some(Entry::Window(window)) => Ok(window),
            _ => Err(WindowError::Unknown("memory window")),
        }
    }

    /// What the window would open (section 10.6.7.2.4).
    fn view(&self, pd: Pd, binding: &Binding) -> Result<Region, WindowError> {
        let region = match self.entries.get(&(binding.region >> 8)) {
            Some(Entry::Region { region, .. }) if region.key() == binding.region => region,
            _ => return Err(WindowError::Unknown("memory region")),
        };
        if region.pd() != pd {
            return Err(WindowError::WrongPd("the region"));
        }
        let changes = binding.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let writable = region.access().contains(Access::LOCAL_WRITE);
        if !region.access().contains(Access::MW_BIND) || changes && !writable {
            return Err(WindowError::Denied);
        }
        region.check(pd, binding.va, binding.len, Access::empty()).map_err(|_| WindowError::OutOfBounds)?;
        let va = if binding.zero_based { 0 } else { binding.va };
        let memory = Memory::Window(region.clone(), binding.va);
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        Ok(Region::new(binding.new_key, pd, (va, binding.len), binding.access & remote, memory))
    }

    /// The window opens nothing any more.
    fn unbind(&mut self, key: u32) {
        let Some(bound) = self.window(key).ok().and_then(|window| window.bound.take()) else { return };
        bound.view.revoke();
        if let Some(Entry::Region { windows, .. }) = self.entries.get_mut(&(bound.region >> 8)) {
            *windows -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AccessError, Buffer, DeregisterError, PdBusy, Translation};

    const REMOTE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
    const BINDABLE: Access = Access::MW_BIND.union(Access::LOCAL_WRITE);

    struct Scene {
        registry: Registry,
        by: Binder,
        region: Arc<Region>,
    }

    fn scene() -> Scene {
        let registry = Registry::new([7; 32]);
        let pd = registry.alloc_pd();
        let buffer = Buffer::from_boxed((0..=255).collect());
        let region = registry.register(pd, &buffer, 0, 256, None, BINDABLE).unwrap();
        Scene { registry, by: Binder { pd, qp: 5 }, region }
    }

    impl Scene {
        fn binding(&self, key: u32, offset: u64, len: u64) -> Binding {
            let (region, va) = (self.region.key(), self.region.va() + offset);
            Binding { key, new_key: next(key), region, va, len, access: REMOTE, zero_based: false }
        }
    }

    /// Another key of the same window.
    fn next(key: u32) -> u32 {
        key & !0xff | key.wrapping_add(1) & 0xff
    }

    #[test]
    fn a_window_opens_its_part_and_no_more() {
        for (kind, zero_based) in
            [WindowType::One, WindowType::Two].into_iter().flat_map(|kind| [(kind, false), (kind, true)])
        {
            let s = scene();
            let key = s.registry.alloc_window(s.by.pd, kind).unwrap();
            assert!(s.registry.lookup_for(key, 5).is_none(), "not bound yet");
            let binding = Binding { zero_based, ..s.binding(key, 16, 100) };
            s.registry.bind_window(s.by, &binding).unwrap();
            assert!(s.registry.lookup_for(key, 5).is_none(), "the old key is gone");
            let view = s.registry.lookup_for(binding.new_key, 5).unwrap();
            let first = if zero_based { 0 } else { s.region.va() + 16 };
            assert_eq!((view.va(), view.len(), view.is_window()), (first, 100, true));
            assert_eq!(view.check(s.by.pd, first, 100, REMOTE), Ok(()));
            assert_eq!(view.check(s.by.pd, first, 101, REMOTE), Err(AccessError::OutOfBounds));
            assert_eq!(view.check(s.by.pd, first.wrapping_sub(1), 1, REMOTE), Err(AccessError::OutOfBounds));
            assert_eq!(view.check(s.by.pd, first, 8, Access::REMOTE_ATOMIC), Err(AccessError::Denied));
            let mut seen = [0; 100];
            view.read(first, &mut seen).unwrap();
            assert_eq!(seen[..], (16..116).collect::<Vec<u8>>());
            view.write(first + 1, &[9]).unwrap();
            s.region.read(s.region.va() + 17, &mut seen[..1]).unwrap();
            assert_eq!(seen[0], 9);
            assert_eq!(s.registry.lookup_for(binding.new_key, 6).is_some(), kind == WindowType::One, "another's");
            assert_eq!(s.registry.lookup(binding.new_key).is_some(), kind == WindowType::One, "nobody's");
            assert_eq!(s.registry.deregister(s.region.key()), Err(DeregisterError::Bound(1)));
            let again = s.registry.reregister(s.region.key(), None, None, Some(Access::empty()));
            assert_eq!(again.unwrap_err(), RegisterError::Bound(1));
            assert_eq!(s.registry.dealloc_pd(s.by.pd), Err(PdBusy::Regions(2)));
            s.registry.dealloc_window(key).unwrap();
            assert_eq!(view.read(first, &mut seen), Err(AccessError::Revoked));
            s.registry.deregister(s.region.key()).unwrap();
            s.registry.dealloc_pd(s.by.pd).unwrap();
        }
    }

    #[test]
    fn bindings_against_the_rules_are_refused_and_change_nothing() {
        let s = scene();
        let elsewhere = Binder { pd: s.registry.alloc_pd(), qp: 5 };
        let buffer = Buffer::from_boxed(vec![0; 64].into());
        let closed = s.registry.register(s.by.pd, &buffer, 0, 64, None, Access::LOCAL_WRITE).unwrap();
        let read_only = s.registry.register(s.by.pd, &buffer, 0, 64, None, Access::MW_BIND).unwrap();
        let foreign = s.registry.register(elsewhere.pd, &buffer, 0, 64, None, BINDABLE).unwrap();
        let of = |region: &Region, binding: Binding| Binding { region: region.key(), va: region.va(), ..binding };
        for kind in [WindowType::One, WindowType::Two] {
            let key = s.registry.alloc_window(s.by.pd, kind).unwrap();
            let good = s.binding(key, 0, 64);
            let table = [
                (s.by, Binding { key: key ^ 0x100, ..good }, WindowError::Unknown("memory window")),
                (s.by, Binding { key: key ^ 1, ..good }, WindowError::Unknown("memory window")),
                (elsewhere, good, WindowError::WrongPd("the window")),
                (s.by, of(&foreign, good), WindowError::WrongPd("the region")),
                (s.by, Binding { new_key: key, ..good }, WindowError::Key),
                (s.by, Binding { new_key: key ^ 0x100, ..good }, WindowError::Key),
                (s.by, Binding { region: key, ..good }, WindowError::Unknown("memory region")),
                (s.by, of(&closed, good), WindowError::Denied),
                (s.by, of(&read_only, good), WindowError::Denied),
                (s.by, Binding { len: 257, ..good }, WindowError::OutOfBounds),
                (s.by, Binding { va: u64::MAX, ..good }, WindowError::OutOfBounds),
            ];
            for (by, binding, refusal) in table {
                assert_eq!(s.registry.bind_window(by, &binding), Err(refusal), "{kind:?} {binding:?}");
                assert_eq!(s.registry.window_key(key), Some(key));
            }
            let access = Access::REMOTE_READ | Access::MW_BIND | Access::LOCAL_WRITE;
            let reading = Binding { access, ..of(&read_only, good) };
            s.registry.bind_window(s.by, &reading).unwrap();
            let view = s.registry.lookup_for(reading.new_key, s.by.qp).unwrap();
            assert_eq!(view.access(), Access::REMOTE_READ, "a window gives remote rights only");
            s.registry.dealloc_window(key).unwrap();
        }
        assert_eq!(s.registry.deregister(s.region.key()), Ok(()));
    }

    #[test]
    fn type_one_moves_and_type_two_is_invalidated_first() {
        let s = scene();
        let one = s.registry.alloc_window(s.by.pd, WindowType::One).unwrap();
        s.registry.bind_window(s.by, &s.binding(one, 0, 8)).unwrap();
        s.registry.bind_window(s.by, &s.binding(next(one), 8, 8)).unwrap();
        assert_eq!(s.registry.invalidate(s.by, next(next(one))), Err(WindowError::Permanent));
        assert_eq!(s.registry.deregister(s.region.key()), Err(DeregisterError::Bound(1)));
        s.registry.bind_window(s.by, &s.binding(next(next(one)), 0, 0)).unwrap();
        assert!(s.registry.lookup(next(next(next(one)))).is_none(), "unbound by a length of 0");

        let two = s.registry.alloc_window(s.by.pd, WindowType::Two).unwrap();
        assert_eq!(s.registry.bind_window(s.by, &s.binding(two, 0, 0)), Err(WindowError::OutOfBounds));
        assert_eq!(s.registry.invalidate(s.by, two), Err(WindowError::NotBound));
        s.registry.bind_window(s.by, &s.binding(two, 0, 8)).unwrap();
        let two = next(two);
        assert_eq!(s.registry.bind_window(s.by, &s.binding(two, 8, 8)), Err(WindowError::Bound));
        assert_eq!(s.registry.invalidate(Binder { qp: 6, ..s.by }, two), Err(WindowError::Bound));
        s.registry.invalidate(s.by, two).unwrap();
        assert!(s.registry.lookup_for(two, 5).is_none());
        s.registry.bind_window(s.by, &s.binding(two, 8, 8)).unwrap();
        s.registry.unbind_windows(6);
        assert!(s.registry.lookup_for(next(two), 5).is_some());
        s.registry.unbind_windows(5);
        assert!(s.registry.lookup_for(next(two), 5).is_none());
        assert_eq!(s.registry.deregister(s.region.key()), Ok(()));
    }

    #[test]
    fn only_regions_that_allow_it_are_invalidated() {
        let s = scene();
        assert_eq!(s.registry.invalidate(s.by, s.region.key()), Err(WindowError::Permanent));
        let buffer = Buffer::from_boxed(vec![0; 64].into());
        let region = s.registry.register(s.by.pd, &buffer, 0, 64, None, Access::INVALIDATE).unwrap();
        let elsewhere = Binder { pd: s.registry.alloc_pd(), qp: 5 };
        assert_eq!(s.registry.invalidate(elsewhere, region.key()), Err(WindowError::WrongPd("the region")));
        s.registry.invalidate(s.by, region.key()).unwrap();
        assert!(!region.is_valid());
        assert_eq!(s.registry.deregister(region.key()), Err(DeregisterError::Unknown));
    }

    #[test]
    fn a_region_registered_anew_keeps_its_key_and_ends_old_accesses() {
        let s = scene();
        let (key, mut byte) = (s.region.key(), [0]);
        let buffer = Buffer::from_boxed(vec![3; 64].into());
        let memory = Translation { buffer: &buffer, offset: 8, len: 16, va: Some(0x1000) };
        let moved = s.registry.reregister(key, None, Some(memory), None).unwrap();
        assert_eq!((moved.key(), moved.va(), moved.len(), moved.access()), (key, 0x1000, 16, BINDABLE));
        assert_eq!(s.region.read(s.region.va(), &mut byte), Err(AccessError::Revoked));
        moved.read(0x100f, &mut byte).unwrap();
        assert_eq!(byte, [3]);
        let elsewhere = s.registry.alloc_pd();
        let handed = s.registry.reregister(key, Some(elsewhere), None, Some(Access::REMOTE_READ)).unwrap();
        assert_eq!((handed.pd(), handed.access(), handed.va()), (elsewhere, Access::REMOTE_READ, 0x1000));
        let refused = s.registry.reregister(key, None, None, Some(Access::REMOTE_WRITE)).unwrap_err();
        assert_eq!(refused, RegisterError::NeedsLocalWrite);
        let long = Translation { len: 65, ..memory };
        assert!(s.registry.reregister(key, None, Some(long), None).is_err());
        assert!(handed.is_valid(), "on an error the old one stays");
        s.registry.dealloc_pd(s.by.pd).unwrap();
        s.registry.deregister(key).unwrap();
        assert_eq!(s.registry.reregister(key, None, None, None).unwrap_err(), RegisterError::UnknownKey);
    }

    #[test]
    fn a_zero_based_region_may_begin_anywhere() {
        let s = scene();
        let buffer = Buffer::from_boxed((0..64).collect());
        let region = s.registry.register(s.by.pd, &buffer, 3, 40, Some(0), BINDABLE).unwrap();
        let mut seen = [0; 10];
        region.read(0, &mut seen).unwrap();
        assert_eq!(seen[..], (3..13).collect::<Vec<u8>>());
        assert_eq!(region.fetch_add(0, 1), Err(AccessError::Misaligned));
        assert!(region.fetch_add(5, 1).is_ok(), "whole in memory");
    }

    /// A table of its 2 MB pages would have half a million entries, and its pages more memory than there is.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory")]
    fn a_terabyte_is_registered_at_no_cost() {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let (s, len) = (scene(), 1 << 40);
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a fresh mapping disturbs no other memory.
        let Ok(start) = (unsafe { mmap_anonymous(std::ptr::null_mut(), len, prot, flags) }) else {
            return remora_testing::skip("no room for a terabyte of addresses", "Lift the limit: ulimit -v unlimited");
        };
        let start = std::ptr::NonNull::new(start.cast()).unwrap();
        // SAFETY: the mapping is never taken back, and only this buffer knows it.
        let buffer = unsafe { Buffer::from_raw(start, len, Box::new(())) };
        let va = 1 << 46;
        let region = s.registry.register(s.by.pd, &buffer, 0, len, Some(va), BINDABLE).unwrap();
        region.write(va + len as u64 - 1, &[5]).unwrap();
        let mut byte = [0];
        buffer.read(len - 1, &mut byte).unwrap();
        assert_eq!(byte, [5]);
    }
}

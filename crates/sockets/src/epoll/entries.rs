//! What an epoll watches.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::{EPOLLOUT, epoll_event};

use super::wait::look;
use super::{
    ALARM_EVENT, ALWAYS, ET, EXCLUSIVE, Entry, Epoll, Inner, MARK, ONESHOT, OUT, Registered, WITH_EXCLUSIVE,
    kernel_ctl, kernel_events,
};
use crate::link::{Link, Word};
use crate::socket::{self, Socket};
use crate::spin::Guard;
use crate::wait::{NAP, SHARED};
use crate::{own, stream, sys};

impl Inner {
    pub(super) fn get(&self, index: usize, generation: u16) -> Option<&Entry> {
        self.entries.get(index)?.as_ref().filter(|entry| entry.generation == generation)
    }

    pub(super) fn get_mut(&mut self, index: usize, generation: u16) -> Option<&mut Entry> {
        self.entries.get_mut(index)?.as_mut().filter(|entry| entry.generation == generation)
    }

    /// Where a socket is registered by a descriptor: another one may have been before, by the same number.
    fn find(&self, fd: c_int, socket: &Socket) -> Option<usize> {
        let index = self.by_fd.get(&fd).copied()?;
        self.entries[index].is_some_and(|entry| std::ptr::eq(entry.socket, socket)).then_some(index)
    }

    pub(super) fn remove(&mut self, index: usize) {
        if let Some(entry) = self.entries.get_mut(index).and_then(Option::take) {
            if self.by_fd.get(&entry.fd) == Some(&index) {
                self.by_fd.remove(&entry.fd);
            }
            self.hot.retain(|hot| *hot != index);
            self.free.push(index);
        }
    }

    /// What a program asks of an entry from now on.
    fn change(&mut self, index: usize, event: epoll_event) -> c_int {
        let epfd = self.fd;
        let Some(Some(entry)) = self.entries.get_mut(index) else { return -libc::ENOENT };
        if (entry.events | event.events) & EXCLUSIVE != 0 {
            return -libc::EINVAL;
        }
        let before = *entry;
        *entry = Entry { events: event.events, data: event.u64, absent: false, fired: false, seen: None, ..before };
        let by_rings = |link: &Link| link.own(Word::Switched) != 0 && link.peer(Word::Drained) != 0;
        if event.events & ET != 0 && !entry.socket.link().is_some_and(by_rings) {
            // Who is told of changes only hears again of all that there is, if the kernel is asked again, for the same.
            entry.kernel = u32::MAX;
        }
        let result = entry.sync(epfd, index);
        if result != 0 {
            *entry = before;
        } else if entry.socket.link().is_some() {
            self.heat(index);
        }
        result
    }

    pub(super) fn heat(&mut self, index: usize) {
        if let Some(Some(entry)) = self.entries.get_mut(index)
            && !entry.absent
        {
            entry.heated = entry.heated.wrapping_add(1);
            if !entry.hot {
                entry.hot = true;
                self.hot.push(index);
            }
        }
    }
}

impl Epoll {
    pub(super) fn add(self: Arc<Self>, fd: c_int, socket: &'static Socket, event: epoll_event) -> c_int {
        let mut inner = self.inner.lock();
        if let Some(index) = inner.by_fd.get(&fd).copied()
            && let Some(Some(entry)) = inner.entries.get_mut(index)
            && std::ptr::eq(entry.socket, socket)
        {
            if !entry.absent {
                return -libc::EEXIST;
            }
            if event.events & EXCLUSIVE == 0 {
                return self.change_entry(inner, index, event);
            }
            kernel_ctl(inner.fd, libc::EPOLL_CTL_DEL, fd, None);
            inner.remove(index);
        }
        inner.generation = inner.generation.wrapping_add(1);
        let entry = Entry {
            fd,
            socket,
            generation: inner.generation,
            events: event.events,
            data: event.u64,
            kernel: kernel_events(socket, event.events),
            hot: false,
            heated: 0,
            absent: false,
            fired: false,
            seen: None,
        };
        if event.events & EXCLUSIVE != 0 && event.events & !WITH_EXCLUSIVE != 0 {
            return -libc::EINVAL;
        }
        let index = inner.free.pop().unwrap_or(inner.entries.len());
        let result = kernel_ctl(inner.fd, libc::EPOLL_CTL_ADD, fd, Some(entry.event(index, entry.kernel)));
        if result != 0 {
            if index < inner.entries.len() {
                inner.free.push(index);
            }
            return result;
        }
        if index == inner.entries.len() {
            inner.entries.push(None);
        }
        if let Some(old) = inner.by_fd.insert(fd, index)
            && inner.entries[old].is_none_or(|old| !socket::is_open(old.socket))
        {
            // It was closed past this library. Of one that has a copy the kernel goes on telling.
            inner.remove(old);
        }
        inner.entries[index] = Some(entry);
        if socket.link().is_some() {
            inner.heat(index);
        }
        drop(inner);
        self.changed(index);
        socket.watched.lock().push(Registered { epoll: self, index, generation: entry.generation });
        0
    }

    /// What an entry is watched for has changed, of which the kernel has heard nothing: who sleeps in its wait is woken if
    /// there is something to tell now, and hears of what comes later.
    pub(super) fn changed(&self, index: usize) {
        if self.sleeping.load(Ordering::SeqCst) == 0 && !self.inside.load(Ordering::SeqCst) {
            return;
        }
        let entry = self.inner.lock().entries.get(index).copied().flatten();
        if entry.is_some_and(|entry| {
            entry.wish();
            entry.is_ready() || entry.is_out_of_hearing()
        }) {
            self.wake();
        }
    }

    /// What wakes who sleeps in the kernel's wait; -1 if there is none.
    pub(super) fn alarm(&self) -> c_int {
        let inner = self.inner.lock();
        if self.alarm.load(Ordering::Relaxed) < 0 && !sys::is_sealed() {
            // It can be read, and told of as often as it is written.
            let alarm = sys::call!(SYS_eventfd2, 1, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) as c_int;
            if alarm >= 0 {
                let alarm = own::raise(alarm);
                kernel_ctl(inner.fd, libc::EPOLL_CTL_ADD, alarm, Some(ALARM_EVENT));
                self.alarm.store(alarm, Ordering::Relaxed);
            }
        }
        self.alarm.load(Ordering::Relaxed)
    }

    /// Wakes who sleeps in the kernel's wait, once.
    pub(super) fn wake(&self) {
        if sys::is_sealed() {
            let one = 1u64;
            sys::call!(SYS_write, self.alarm(), &raw const one, 8usize);
            return;
        }
        // Watched anew it is told of anew; another file by its number the kernel does not take for it.
        let rings = |alarm: c_int| {
            alarm >= 0 && kernel_ctl(self.inner.lock().fd, libc::EPOLL_CTL_MOD, alarm, Some(ALARM_EVENT)) == 0
        };
        let alarm = self.alarm();
        if rings(alarm) {
            return;
        }
        if alarm >= 0 {
            // The program has closed it.
            own::drop_number(alarm);
            let _ = self.alarm.compare_exchange(alarm, -1, Ordering::SeqCst, Ordering::SeqCst);
        }
        if !rings(self.alarm()) {
            self.wake_by_socket();
        }
    }

    /// The same without a descriptor, where there is none: the kernel can send on a socket with rings, and says so.
    fn wake_by_socket(&self) {
        let mut inner = self.inner.lock();
        let epfd = inner.fd;
        for (index, entry) in inner.entries.iter_mut().enumerate() {
            let Some(entry) = entry.as_mut().filter(|entry| entry.events & EXCLUSIVE == 0) else { continue };
            if socket::leads(entry.fd, entry.socket) && entry.socket.link().is_some() {
                let event = entry.event(index, kernel_events(entry.socket, entry.events) | EPOLLOUT as u32 | ET);
                if kernel_ctl(epfd, libc::EPOLL_CTL_MOD, entry.fd, Some(event)) == 0 {
                    // As it was when that is told.
                    entry.kernel = u32::MAX;
                    return;
                }
            }
        }
    }

    fn change_entry(&self, mut inner: Guard<'_, Inner>, index: usize, event: epoll_event) -> c_int {
        let result = inner.change(index, event);
        drop(inner);
        self.changed(index);
        result
    }

    pub(super) fn change(&self, fd: c_int, socket: &Socket, event: epoll_event) -> c_int {
        let inner = self.inner.lock();
        match inner.find(fd, socket) {
            Some(index) if inner.entries[index].is_some_and(|entry| entry.absent) => -libc::ENOENT,
            Some(index) => self.change_entry(inner, index, event),
            None => kernel_ctl(inner.fd, libc::EPOLL_CTL_MOD, fd, Some(event)),
        }
    }

    pub(super) fn take_out(self: &Arc<Self>, fd: c_int, socket: &Socket) -> c_int {
        let mut inner = self.inner.lock();
        let (epfd, index) = (inner.fd, inner.find(fd, socket));
        let Some((index, Some(entry))) = index.map(|index| (index, inner.entries[index].as_mut())) else {
            return kernel_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None);
        };
        if entry.absent {
            return -libc::ENOENT;
        }
        // Programs that take out what they put in a moment later need no kernel for that.
        if entry.kernel & ET != 0 && entry.kernel & EXCLUSIVE == 0 && socket.link().is_some() {
            entry.absent = true;
            entry.hot = false;
            inner.hot.retain(|hot| *hot != index);
            return 0;
        }
        let result = kernel_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None);
        if result == 0 {
            inner.remove(index);
            drop(inner);
            socket.watched.lock().retain(|at| !(Arc::ptr_eq(&at.epoll, self) && at.index == index));
        }
        result
    }

    /// The hot entries, to be looked at without the lock.
    pub(super) fn hot(&self) -> Vec<(usize, Entry)> {
        let inner = self.inner.lock();
        inner.hot.iter().filter_map(|index| Some((*index, (*inner.entries.get(*index)?)?))).collect()
    }

    /// What an entry is to be told: what its rings say, and `kernel`, what the kernel says beside. Marks it as told.
    fn tell(&self, index: usize, entry: &Entry, kernel: u32, by_kernel: bool) -> u32 {
        let Some(used) = socket::hold_on(entry.socket) else { return 0 };
        let told = match used.link() {
            Some(link) => look(&used, link, entry, kernel),
            None => Some((kernel & (entry.events | ALWAYS), 0)).filter(|(mask, _)| *mask != 0),
        };
        let Some((mask, place)) = told else { return 0 };
        let mut inner = self.inner.lock();
        let epfd = inner.fd;
        let Some(entry) = inner.get_mut(index, entry.generation) else { return 0 };
        if entry.fired || entry.absent {
            return 0;
        }
        if entry.events & ET != 0 && used.link().is_some() {
            entry.seen = Some(place);
            if mask & OUT != 0 {
                used.blocked.store(false, Ordering::Release);
            }
        }
        if entry.events & ONESHOT != 0 {
            entry.fired = true;
            // The kernel has forgotten what it watched, if the event was its own.
            entry.kernel = if by_kernel && entry.kernel & ONESHOT != 0 { 0 } else { entry.kernel };
        } else if kernel & ALWAYS != 0 && entry.events & ET == 0 {
            // The kernel tells of it again as long as it is so.
            entry.kernel = u32::MAX;
        }
        entry.sync(epfd, index);
        mask
    }

    /// Events of the hot entries.
    pub(super) fn scan(&self, hot: &[(usize, Entry)], out: &mut [epoll_event]) -> usize {
        let mut count = 0;
        // Whoever is last today is first tomorrow.
        let turn = self.served.load(Ordering::Relaxed) as usize;
        for step in 0..hot.len() {
            let (index, entry) = &hot[(turn + step) % hot.len()];
            if count == out.len() {
                break;
            }
            let mask = self.tell(*index, entry, 0, false);
            if mask != 0 {
                out[count] = epoll_event { events: mask, u64: entry.data };
                count += 1;
            }
        }
        count
    }

    /// Turns the kernel's events into the program's; those that are only bells are left out.
    pub(super) fn translate(&self, events: &mut [epoll_event]) -> usize {
        let mut count = 0;
        for index in 0..events.len() {
            let epoll_event { events: kernel, u64: data } = events[index];
            let (at, generation) = ((data & 0xffff_ffff) as usize, (data >> 32) as u16);
            let marked = data & (0xffff << 48) == MARK;
            let entry = marked.then(|| self.inner.lock().get(at, generation).copied()).flatten();
            let Some(entry) = entry else {
                if !marked {
                    events[count] = events[index];
                    count += 1;
                }
                continue;
            };
            let mask = self.heard(at, entry, kernel);
            if mask != 0 {
                events[count] = epoll_event { events: mask, u64: entry.data };
                count += 1;
            }
        }
        count
    }

    /// The kernel has an event for an entry.
    fn heard(&self, index: usize, mut entry: Entry, kernel: u32) -> u32 {
        if let Some(used) = socket::hold_on(entry.socket)
            && let Some(link) = used.link()
        {
            stream::progress(&used, link, entry.fd);
            let mut inner = self.inner.lock();
            inner.heat(index);
            // It may have changed over just now.
            entry = inner.get(index, entry.generation).copied().unwrap_or(entry);
            drop(inner);
            if stream::drained(link) {
                stream::take_bells(&used, link, entry.fd);
            }
        }
        self.tell(index, &entry, kernel, true)
    }

    /// Merges so many more events into those before them, of which they may tell as well.
    pub(super) fn merge(out: &mut [epoll_event], count: usize, more: usize) -> usize {
        let mut end = count;
        for index in count..count + more {
            let event = out[index];
            let data = event.u64;
            match (0..count).find(|known| {
                let known = out[*known].u64;
                known == data
            }) {
                Some(known) => out[known].events |= event.events,
                None => {
                    out[end] = event;
                    end += 1;
                }
            }
        }
        end
    }

    /// Nobody looks at the rings from here any more: who waits for this epoll hears of them by bells, and at once of what is
    /// there already.
    pub(super) fn leave(&self) {
        if self.inside.load(Ordering::SeqCst) && self.cool().is_none() {
            self.wake();
        }
    }

    /// Wishes for bells of all that is hot, and says how long to sleep at most, in nanoseconds; none if something is ready all
    /// the same. What is watched for may have changed since the caller looked: whoever changes it from now on sees that there
    /// is one who sleeps. What no bell may be heard of stays hot, and is looked at again soon.
    pub(super) fn cool(&self) -> Option<u64> {
        let mut hot = self.hot();
        hot.iter().for_each(|(_, entry)| entry.wish());
        if hot.iter().any(|(_, entry)| entry.is_ready()) {
            return None;
        }
        let all = hot.len();
        hot.retain(|(_, entry)| !entry.is_out_of_hearing());
        let mut most = if hot.len() < all { NAP } else { u64::MAX };
        let heard = hot.len();
        hot.retain(|(_, entry)| !entry.is_shared());
        if hot.len() < heard {
            most = most.min(SHARED);
        }
        let mut inner = self.inner.lock();
        // What was made hot since was so for a reason that this look may have missed.
        let again = |(index, entry): &(usize, Entry)| {
            inner.get(*index, entry.generation).is_some_and(|now| now.heated != entry.heated)
        };
        if inner.hot.len() > all || hot.iter().any(again) {
            return None;
        }
        for (index, entry) in &hot {
            if let Some(entry) = inner.get_mut(*index, entry.generation) {
                entry.hot = false;
            }
            inner.hot.retain(|hot| hot != index);
        }
        Some(most)
    }
}

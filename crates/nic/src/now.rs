//! Readings of the clock for what may be answered only until some time.

use crate::Time;

/// A reading of a clock that was made after input had been taken.
///
/// A node that serves under a lease must not answer by an older one: if it stands still between reading the clock and
/// taking a request, for as long as the scheduler, a debugger or a sleeping machine likes, the lease is over by then, and
/// others may have done what the request came after. Nor may it bind itself from an older one, as then its word would end
/// before it was given. So engines with leases take this in place of a [`Time`].
///
/// It can be neither copied nor made of a number; who drives an engine hands out references, and has to read anew for
/// what is taken later.
#[derive(Debug)]
pub struct Now(Time);

impl Now {
    /// Takes input, and then reads the clock. Whatever had come before is older than the reading, too.
    #[inline]
    pub fn after<T>(take: impl FnOnce() -> T, clock: impl FnOnce() -> Time) -> (T, Self) {
        let taken = take();
        (taken, Self(clock()))
    }

    /// Of a world that has its time stand still while something happens.
    pub const fn simulated(time: Time) -> Self {
        Self(time)
    }

    /// The time that was read.
    #[inline]
    pub const fn time(&self) -> Time {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn the_clock_is_read_when_the_input_is_there() {
        let clock = Cell::new(5);
        let (input, now) = Now::after(|| clock.replace(7), || clock.get());
        assert_eq!((input, now.time()), (5, 7));
    }
}

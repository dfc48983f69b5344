//! How long to look for what is about to come, before one sleeps.

/// Looks in vain after which they become shorter.
const PATIENT: u32 = 4;

/// Who looks in vain again and again looks ever shorter, and once it was not in vain as long as at first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    vain: u32,
}

impl Patience {
    /// That of who has not looked yet, or not in vain.
    pub const NEW: Self = Self { vain: 0 };

    /// How long to look, where that is so long at first.
    #[inline]
    pub fn of(self, longest: u64) -> u64 {
        longest >> (self.vain / PATIENT).min(6)
    }

    /// It did not come while one looked. If it did, one begins [anew](Self::NEW).
    #[inline]
    pub fn in_vain(&mut self) {
        self.vain = self.vain.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_in_vain_become_shorter_until_one_was_not() {
        let mut patience = Patience::NEW;
        for halved in [0, 1, 2, 3, 4, 5, 6, 6] {
            for _ in 0..PATIENT {
                assert_eq!(patience.of(6400), 6400 >> halved);
                patience.in_vain();
            }
        }
        patience = Patience::NEW;
        assert_eq!(patience.of(6400), 6400);
    }
}

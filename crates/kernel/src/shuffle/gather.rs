//! The values that partitions gather until they are written: software write-combining.

/// Values of a cache line.
const LINE: usize = 8;

/// A run of values for each partition.
pub(super) struct Gathered {
    /// Where the next value of each partition goes in the runs: within its own run. A power of two of them.
    next: Vec<u32>,
    /// The runs, from `aligned` on, where a cache line begins.
    values: Vec<[u8; 8]>,
    aligned: usize,
    /// Values of a run, a power of two.
    run: usize,
    /// The partition whose run is full: it must begin anew before anything else is gathered.
    full: Option<usize>,
}

impl Gathered {
    /// Runs of `run` values, a power of two, the first of which begin at the places that `first` gives.
    pub fn new(run: usize, first: impl ExactSizeIterator<Item = u32>) -> Gathered {
        assert!(run.is_power_of_two() && first.len().is_power_of_two(), "masks name partitions and places");
        let values = vec![[0; 8]; first.len() * run + LINE];
        let aligned = (values.as_flattened().as_ptr().align_offset(8 * LINE) / 8).min(LINE);
        let next = first.enumerate().map(|(at, skip)| (at * run) as u32 + skip % run as u32).collect();
        Gathered { next, values, aligned, run, full: None }
    }

    /// Takes values with the names of their partitions until a run is full. Returns the partition that the run belongs to,
    /// and how many values are left. Nothing is taken while there is a full run.
    #[inline(always)]
    pub fn spread<'a>(
        &mut self,
        mut named: impl ExactSizeIterator<Item = (u64, &'a [u8; 8])>,
    ) -> (Option<usize>, usize) {
        if self.full.is_some() {
            return (self.full, named.len());
        }
        let (next, runs) = (&mut self.next[..], &mut self.values[self.aligned..]);
        let (partitions, places) = (next.len() - 1, self.run - 1);
        while let Some((name, value)) = named.next() {
            let at = name as usize & partitions;
            // SAFETY: `partitions` is the last index of `next`. What is there lies within partition `at`'s run: it
            // began there, and goes back to the run's start after it has reached the run's last place.
            let index = unsafe {
                let next = next.get_unchecked_mut(at);
                let index = *next as usize;
                *runs.get_unchecked_mut(index) = *value;
                *next = index as u32 + 1;
                index
            };
            if index & places == places {
                self.full = Some(at);
                return (self.full, named.len());
            }
        }
        (None, 0)
    }

    /// What partition `at` has gathered from place `first` of its run on.
    #[inline]
    pub fn from(&self, at: usize, first: u32) -> &[[u8; 8]] {
        let (start, end) = (at * self.run + first as usize, self.next[at] as usize);
        &self.values[self.aligned..][start..end]
    }

    /// Begins the run anew that is full, if one is. Returns which.
    #[inline]
    pub fn begin_anew(&mut self) -> Option<usize> {
        let at = self.full.take()?;
        self.next[at] = (at * self.run) as u32;
        Some(at)
    }

    /// The partition whose run is full.
    #[inline]
    pub fn full(&self) -> Option<usize> {
        self.full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_fill_up_and_begin_anew() {
        let mut gathered = Gathered::new(8, [3, 0].into_iter());
        let values: Vec<[u8; 8]> = (0..40u64).map(u64::to_le_bytes).collect();
        let named = |from: usize| values[from..].iter().map(|value| (u64::from(value[0]), value));
        assert_eq!(gathered.spread(named(0)), (Some(0), 31), "the fifth even value fills a run of 8 that began at 3");
        assert_eq!(gathered.from(0, 3), [values[0], values[2], values[4], values[6], values[8]]);
        assert_eq!((gathered.full(), gathered.spread(named(9))), (Some(0), (Some(0), 31)), "nothing more before");
        assert_eq!(gathered.begin_anew(), Some(0));
        assert_eq!(gathered.spread(named(9)), (Some(1), 24));
        assert_eq!((gathered.from(1, 0).len(), gathered.begin_anew()), (8, Some(1)));
        assert_eq!(gathered.from(0, 0), [values[10], values[12], values[14]]);
    }
}

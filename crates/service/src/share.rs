//! Each client's share of a place that has room for so many calls.

/// Who has how many calls under way.
///
/// A client may start another call as long as it has fewer under way than there is room left: the dynamic thresholds
/// that switches share buffers by (Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). So one client
/// alone has half of the room at most, two a third each, and whoever comes next finds some, however long the calls of
/// the others take. Room is to be made for twice what one client may have.
#[derive(Clone, Debug)]
pub struct Shares {
    left: u32,
    /// By client: calls under way.
    under_way: Vec<u32>,
}

impl Shares {
    /// Room for `capacity` calls.
    pub fn new(capacity: usize) -> Self {
        Self { left: capacity as u32, under_way: Vec::new() }
    }

    /// What one client may have at most, of room for `capacity` calls.
    pub const fn most(capacity: usize) -> usize {
        capacity.div_ceil(2)
    }

    /// Whether this client may start another call.
    #[inline]
    pub fn may_start(&self, client: u32) -> bool {
        self.under_way(client) < self.left
    }

    /// Calls of this client under way.
    #[inline]
    pub fn under_way(&self, client: u32) -> u32 {
        self.under_way.get(client as usize).copied().unwrap_or(0)
    }

    /// A call starts that [may](Self::may_start).
    #[inline]
    pub(crate) fn begin(&mut self, client: u32) {
        let client = client as usize;
        if client >= self.under_way.len() {
            self.under_way.resize(client + 1, 0);
        }
        self.under_way[client] += 1;
        self.left -= 1;
    }

    /// A call has ended.
    #[inline]
    pub(crate) fn end(&mut self, client: u32) {
        self.under_way[client as usize] -= 1;
        self.left += 1;
    }
}

/// The number of the client behind a queue pair: a small one, the queue pair's place in the NIC's table.
#[inline]
pub(crate) fn client_of(qpn: u32) -> u32 {
    qpn & 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Each client starts all it may.
    fn fill(shares: &mut Shares, client: u32) -> u32 {
        while shares.may_start(client) {
            shares.begin(client);
        }
        shares.under_way(client)
    }

    #[test]
    fn one_has_half_and_those_who_come_next_find_room() {
        let mut shares = Shares::new(512);
        assert_eq!([1, 2, 3, 4].map(|client| fill(&mut shares, client)), [256, 128, 64, 32]);
        assert_eq!(Shares::most(512), 256);
        // As calls of the first end, the second takes over until both have as many.
        for _ in 0..400 {
            shares.end(1);
            fill(&mut shares, 1);
            fill(&mut shares, 2);
        }
        assert!(shares.under_way(1).abs_diff(shares.under_way(2)) <= 1);
        for capacity in [1, 2, 3, 100] {
            assert_eq!(fill(&mut Shares::new(capacity), 0) as usize, Shares::most(capacity), "of {capacity}");
        }
    }

    proptest! {
        /// Whatever the others do and however long it takes: who has nothing under way is served, as long as fewer
        /// clients hold calls than halve the room away.
        #[test]
        fn a_newcomer_is_never_kept_out(steps in prop::collection::vec((0..8u32, any::<bool>()), 0..600)) {
            let mut shares = Shares::new(512);
            for (client, start) in steps {
                match start {
                    true if shares.may_start(client) => shares.begin(client),
                    false if shares.under_way(client) > 0 => shares.end(client),
                    _ => {}
                }
                prop_assert!(shares.may_start(8));
                prop_assert!(shares.under_way(client) as usize <= Shares::most(512));
            }
        }
    }
}

//! Each client's share of a place that has room for so much.

use remora_nic::Qpn;

/// Who has how many calls under way.
///
/// A client may start another call as long as it has fewer under way than there is room left: the dynamic thresholds
/// that switches share buffers by (Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). So one client
/// alone has half of the room at most, two a third each, and whoever comes next finds some, however long the calls of
/// the others take. Room is to be made for twice what one client may have.
///
/// A client is a queue pair, unless the world says that several are one: a node does so for those of one address.
#[derive(Clone, Debug)]
pub struct Shares {
    /// Below 0 where the last call took [more](Self::begin_many) than there was.
    left: i64,
    /// By client: calls under way.
    under_way: Vec<u32>,
    clients: ClientNumbers,
}

impl Shares {
    /// Room for `capacity` calls.
    pub fn new(capacity: usize) -> Self {
        Self { left: capacity as i64, under_way: Vec::new(), clients: ClientNumbers::default() }
    }

    /// What one client may have at most, of room for `capacity` calls.
    pub const fn most(capacity: usize) -> usize {
        capacity.div_ceil(2)
    }

    /// Whether this client may start another call.
    #[inline]
    pub fn may_start(&self, client: u32) -> bool {
        i64::from(self.under_way(client)) < self.left
    }

    /// Calls of this client under way.
    #[inline]
    pub fn under_way(&self, client: u32) -> u32 {
        self.under_way.get(client as usize).copied().unwrap_or(0)
    }

    /// The number of the client behind a queue pair: a small one.
    #[inline]
    pub fn client_of(&self, qpn: Qpn) -> u32 {
        self.clients.of(qpn)
    }

    /// Calls by this queue pair are `client`'s from now on.
    pub(crate) fn assign(&mut self, qpn: Qpn, client: u32) {
        self.clients.assign(qpn, client);
    }

    /// A call starts that [may](Self::may_start).
    #[inline]
    pub(crate) fn begin(&mut self, client: u32) {
        self.begin_many(client, 1);
    }

    /// One starts that counts as many.
    #[inline]
    pub(crate) fn begin_many(&mut self, client: u32, calls: u32) {
        let client = client as usize;
        if client >= self.under_way.len() {
            self.under_way.resize(client + 1, 0);
        }
        self.under_way[client] += calls;
        self.left -= i64::from(calls);
    }

    /// A call has ended.
    #[inline]
    pub(crate) fn end(&mut self, client: u32) {
        self.end_many(client, 1);
    }

    /// One has ended that counts as many.
    #[inline]
    pub(crate) fn end_many(&mut self, client: u32, calls: u32) {
        self.under_way[client as usize] -= calls;
        self.left += i64::from(calls);
    }
}

/// Numbers of clients by the low 16 bits of their queue pairs' numbers, of which the NIC gives no two that live the same;
/// these bits themselves if none was assigned.
#[derive(Clone, Debug, Default)]
struct ClientNumbers(Vec<Option<u32>>);

impl ClientNumbers {
    #[inline]
    fn of(&self, qpn: Qpn) -> u32 {
        let place = qpn.0 & 0xffff;
        self.0.get(place as usize).copied().flatten().unwrap_or(place)
    }

    fn assign(&mut self, qpn: Qpn, client: u32) {
        let place = (qpn.0 & 0xffff) as usize;
        if place >= self.0.len() {
            self.0.resize(place + 1, None);
        }
        self.0[place] = Some(client);
    }
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

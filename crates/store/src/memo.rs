//! Sums of items that are often asked for together (MERCI, ASPLOS 2021): fewer rows to look up for the same result.
//!
//! Items are clustered by how often requests have them in common, few to a cluster. The sum of every part of a cluster that
//! has two items at least is a row of its own, so that whatever of a cluster a request asks for is one row. A cluster of k
//! items takes 2^k - k - 1 rows, and so clusters grow where a row of the budget spares the most look-ups: they are joined
//! two by two, each time those two that most requests ask both of, for each row that joining takes.

use std::collections::BinaryHeap;

/// Items of a cluster at most: a bit of a byte each.
const MOST: usize = 8;
/// Items that are looked at, the most popular ones: others are asked for too rarely.
const CANDIDATES: usize = 4096;
/// Requests that are looked at.
const SAMPLE: usize = 8192;
/// An item of no cluster.
const NONE: u32 = u32::MAX;

/// Which groups of items have their sums behind the table, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memo {
    /// Of each item: its cluster, and in the lowest three bits its bit there; or [`NONE`].
    places: Vec<u32>,
    /// Of each cluster: its first sum's number, counted from the first sum, and where its items begin.
    clusters: Vec<(u32, u32)>,
    /// The items of all clusters.
    members: Vec<u32>,
    rows: u32,
}

/// What a rewriting needs for a while.
#[derive(Clone, Debug, Default)]
pub struct Rewriter {
    /// Of each cluster: the bits of its items that were asked for.
    asked: Vec<u8>,
    /// Clusters that have some.
    touched: Vec<u32>,
    rows: Vec<u32>,
}

/// Sums that a cluster of so many items takes.
const fn sums(items: usize) -> u32 {
    (1u32 << items) - items as u32 - 1
}

/// The number, among a cluster's sums, of that of several of its items: parts in the order of their bits, without those of
/// one item.
#[inline]
fn sum_of(bits: u8) -> u32 {
    u32::from(bits) - 2 - bits.ilog2()
}

impl Memo {
    /// Finds clusters in requests for items below `items`, whose sums take at most `budget` rows.
    pub fn of<'a>(items: u32, requests: impl IntoIterator<Item = &'a [u32]>, budget: u32) -> Self {
        let requests: Vec<&[u32]> = requests.into_iter().take(SAMPLE).collect();
        let mut often = vec![0u32; items as usize];
        for item in requests.iter().copied().flatten() {
            if let Some(often) = often.get_mut(*item as usize) {
                *often += 1;
            }
        }
        let mut popular: Vec<u32> = (0..items).filter(|item| often[*item as usize] > 1).collect();
        popular.sort_by_key(|item| (std::cmp::Reverse(often[*item as usize]), *item));
        popular.truncate(CANDIDATES);
        let mut number = vec![NONE; items as usize];
        (0..).zip(&popular).for_each(|(n, item)| number[*item as usize] = n);
        let words = requests.len().div_ceil(64);
        let mut all: Vec<Cluster> =
            popular.iter().map(|item| Cluster { items: vec![*item], asked: vec![0; words] }).collect();
        for (n, request) in requests.iter().enumerate() {
            for item in *request {
                if let Some(cluster) = number.get(*item as usize).and_then(|n| all.get_mut(*n as usize)) {
                    cluster.asked[n / 64] |= 1 << (n % 64);
                }
            }
        }
        join(&mut all, budget);
        let mut memo = Self { places: vec![NONE; items as usize], ..Self::default() };
        for cluster in all.iter().filter(|cluster| cluster.items.len() > 1) {
            memo.push(&cluster.items);
        }
        memo
    }

    fn push(&mut self, items: &[u32]) {
        let cluster = self.clusters.len() as u32;
        self.clusters.push((self.rows, self.members.len() as u32));
        for (bit, item) in (0..).zip(items) {
            self.places[*item as usize] = cluster << 3 | bit;
        }
        self.members.extend_from_slice(items);
        self.rows += sums(items.len());
    }

    /// The memo of a catalogue that is so many times this one, one behind the other.
    pub fn repeated(&self, times: u32) -> Self {
        let mut memo = Self { places: vec![NONE; self.places.len() * times as usize], ..Self::default() };
        for copy in 0..times {
            let first = copy * self.items();
            for cluster in 0..self.clusters.len() {
                let items: Vec<u32> = self.cluster(cluster).iter().map(|item| first + item).collect();
                memo.push(&items);
            }
        }
        memo
    }

    /// Items of its table, in clusters or not.
    pub fn items(&self) -> u32 {
        self.places.len() as u32
    }

    /// Sums that stand behind the table.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Clusters that there are.
    pub fn clusters(&self) -> usize {
        self.clusters.len()
    }

    fn cluster(&self, at: usize) -> &[u32] {
        let end = self.clusters.get(at + 1).map_or(self.members.len(), |(_, next)| *next as usize);
        &self.members[self.clusters[at].1 as usize..end]
    }

    /// The items of each sum, in their order behind the table.
    pub fn sums(&self) -> impl Iterator<Item = impl Iterator<Item = u32>> {
        (0..self.clusters.len()).map(|at| self.cluster(at)).flat_map(|items| {
            let parts = (1u32..1 << items.len()).filter(|bits| bits.count_ones() > 1);
            parts.map(move |bits| items.iter().enumerate().filter(move |(n, _)| bits >> n & 1 == 1).map(|(_, i)| *i))
        })
    }

    /// The rows whose sum is that of these items, which are all of its table: items' own rows, and sums behind them.
    pub fn rewrite<'a>(&self, items: &[u32], rewriter: &'a mut Rewriter) -> &'a [u32] {
        let Rewriter { asked, touched, rows } = rewriter;
        rows.clear();
        if asked.len() < self.clusters.len() {
            asked.resize(self.clusters.len(), 0);
        }
        for &item in items {
            let place = self.places.get(item as usize).copied().unwrap_or(NONE);
            if place == NONE {
                rows.push(item);
                continue;
            }
            let (cluster, bit) = (place >> 3, 1u8 << (place & 7));
            let bits = &mut asked[cluster as usize];
            if *bits == 0 {
                touched.push(cluster);
            }
            // An item that comes once more is a row once more.
            if *bits & bit != 0 {
                rows.push(item);
            }
            *bits |= bit;
        }
        for cluster in touched.drain(..) {
            let bits = std::mem::take(&mut asked[cluster as usize]);
            let (first, members) = self.clusters[cluster as usize];
            rows.push(match bits.is_power_of_two() {
                true => self.members[(members + bits.trailing_zeros()) as usize],
                false => self.items() + first + sum_of(bits),
            });
        }
        rows
    }
}

/// Items that are looked up together.
struct Cluster {
    items: Vec<u32>,
    /// A bit for each request that asks for one of them at least.
    asked: Vec<u64>,
}

/// Two clusters to be joined, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    /// Look-ups that it spares for a row, in 2^-16.
    gain: u64,
    /// The clusters' numbers: of equals the first.
    at: std::cmp::Reverse<(u32, u32)>,
    rows: u32,
}

/// Joins clusters as long as the budget lasts. Joined ones are left without items.
fn join(all: &mut Vec<Cluster>, budget: u32) {
    let mut left = budget;
    // Of each cluster its best partner, or one that was.
    let mut pairs: BinaryHeap<Pair> = (0..all.len()).filter_map(|at| best(all, at, left)).collect();
    while let Some(Pair { at: std::cmp::Reverse((a, b)), rows, .. }) = pairs.pop() {
        let (a, b) = (a as usize, b as usize);
        if all[a].items.is_empty() {
            continue;
        }
        if all[b].items.is_empty() || rows > left {
            pairs.extend(best(all, a, left));
            continue;
        }
        left -= rows;
        let [one, other] = [a, b].map(|at| {
            let Cluster { items, asked } = &mut all[at];
            Cluster { items: std::mem::take(items), asked: std::mem::take(asked) }
        });
        let asked = one.asked.iter().zip(&other.asked).map(|(one, other)| one | other).collect();
        all.push(Cluster { items: [one.items, other.items].concat(), asked });
        pairs.extend(best(all, all.len() - 1, left));
    }
}

/// The partner with which a cluster spares the most for each row.
fn best(all: &[Cluster], at: usize, left: u32) -> Option<Pair> {
    let Cluster { items, asked } = &all[at];
    let pair = |(other, cluster): (usize, &Cluster)| {
        let size = items.len() + cluster.items.len();
        if other == at || cluster.items.is_empty() || size > MOST {
            return None;
        }
        let rows = sums(size) - sums(items.len()) - sums(cluster.items.len());
        if rows > left {
            return None;
        }
        let spared: u32 = asked.iter().zip(&cluster.asked).map(|(ours, theirs)| (ours & theirs).count_ones()).sum();
        let at = std::cmp::Reverse((at as u32, other as u32));
        (spared > 1).then(|| Pair { gain: (u64::from(spared) << 16) / u64::from(rows), at, rows })
    };
    all.iter().enumerate().filter_map(pair).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_always_comes_together_is_one_row() {
        let requests: Vec<Vec<u32>> = (0..20).map(|n| if n % 2 == 0 { vec![3, 5, 9] } else { vec![n] }).collect();
        let memo = Memo::of(20, requests.iter().map(Vec::as_slice), 4);
        assert_eq!((memo.rows(), memo.clusters()), (4, 1));
        let mut rewriter = Rewriter::default();
        assert_eq!(memo.rewrite(&[9, 1, 3, 5, 1], &mut rewriter).len(), 3);
        assert_eq!(memo.rewrite(&[5, 5, 9], &mut rewriter).len(), 2, "one comes twice");
        assert_eq!(memo.rewrite(&[5], &mut rewriter), [5]);
        assert_eq!(memo.rewrite(&[], &mut rewriter), []);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 80, failure_persistence: None, ..Default::default() })]

        /// Rows stand for just the items that were asked for, each as often as it was, and clusters keep to the budget.
        #[test]
        fn rewritten_requests_ask_for_the_same(
            requests in prop::collection::vec(prop::collection::vec(0u32..50, 0..30), 0..40),
            asked in prop::collection::vec(prop::collection::vec(0u32..150, 0..60), 1..10),
            budget in 0u32..300,
        ) {
            let one = Memo::of(50, requests.iter().map(Vec::as_slice), budget);
            prop_assert!(one.rows() <= budget);
            let memo = one.repeated(3);
            prop_assert_eq!((memo.items(), memo.rows()), (150, 3 * one.rows()));
            let sums: Vec<Vec<u32>> = memo.sums().map(Iterator::collect).collect();
            prop_assert_eq!(sums.len(), memo.rows() as usize);
            let mut rewriter = Rewriter::default();
            for request in &asked {
                let rows = memo.rewrite(request, &mut rewriter);
                prop_assert!(rows.len() <= request.len());
                let mut items: Vec<u32> = rows
                    .iter()
                    .flat_map(|row| match row.checked_sub(150) {
                        None => vec![*row],
                        Some(sum) => sums[sum as usize].clone(),
                    })
                    .collect();
                let mut expected = request.clone();
                items.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(items, expected);
            }
        }
    }
}

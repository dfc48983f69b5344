//! Sums of items that are often asked for together (MERCI, ASPLOS 2021): fewer rows to look up for the same result.
//!
//! Items are clustered by how often requests have them in common, few to a cluster, and sums of parts of a cluster are rows of
//! their own. MERCI keeps the sums of all parts, of which most are hardly ever asked for as they are; here a row of the budget
//! goes to the sum that spares the most look-ups: two rows that most requests have both of are joined, again and again. So
//! whatever of a cluster a request asks for is the fewest of its rows that make it up, which is looked up by its bits.

use std::collections::BinaryHeap;

/// Items of a cluster at most: a bit of a byte each.
const MOST: usize = 8;
/// Items that are looked at, the most popular ones: others are asked for too rarely.
const CANDIDATES: usize = 4096;
/// Requests that are looked at.
const SAMPLE: usize = 8192;
/// An item of no cluster.
const NONE: u32 = u32::MAX;
/// Behind the last row of a [`Cover`].
const END: u8 = u8::MAX;

/// The rows that make up some items of a cluster: items by their bits' numbers, and sums by theirs, counted from [`MOST`] on.
type Cover = [u8; MOST];

/// Which groups of items have their sums behind the table, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memo {
    /// Of each item: its cluster, and in the lowest three bits its bit there; or [`NONE`].
    places: Vec<u32>,
    clusters: Vec<Cluster>,
    /// The items of all clusters.
    members: Vec<u32>,
    shapes: Vec<Shape>,
    rows: u32,
}

/// Items that have sums in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cluster {
    /// Its first sum's number, counted from the first sum of all.
    first: u32,
    /// Where its items begin.
    members: u32,
    shape: u32,
}

/// Which sums clusters have that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shape {
    items: u32,
    /// The bits of each sum's items.
    sums: Vec<u8>,
    /// By the bits of what is asked for.
    covers: Vec<Cover>,
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

impl Shape {
    /// Finds the fewest rows for each part of the items.
    fn new(items: usize, sums: Vec<u8>) -> Self {
        let mut covers = vec![[END; MOST]; 1 << items];
        let mut fewest = vec![0; 1 << items];
        for asked in 1..covers.len() {
            // Some row has the first of them.
            let item = asked.trailing_zeros() as u8;
            let alone = (item, 1 << item);
            let sums = (MOST as u8..).zip(&sums).map(|(row, bits)| (row, usize::from(*bits)));
            let useful = sums.filter(|(_, bits)| bits & !asked == 0 && bits >> item & 1 == 1);
            let rest = |bits: usize| asked & !bits;
            let (row, bits) =
                std::iter::once(alone).chain(useful).min_by_key(|(_, bits)| fewest[rest(*bits)]).unwrap_or(alone);
            let mut cover = covers[rest(bits)];
            cover[fewest[rest(bits)]] = row;
            (covers[asked], fewest[asked]) = (cover, fewest[rest(bits)] + 1);
        }
        Self { items: items as u32, sums, covers }
    }
}

impl Memo {
    /// Finds sums of items below `items` that requests ask for together: at most `budget`.
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
        let mut rows =
            vec![Row { items: Vec::new(), asked: vec![0; requests.len().div_ceil(64)], often: 0 }; popular.len()];
        (0..).zip(&mut rows).for_each(|(n, row)| row.items.push(n));
        for (n, request) in requests.iter().enumerate() {
            for item in *request {
                if let Some(row) = number.get(*item as usize).and_then(|n| rows.get_mut(*n as usize)) {
                    row.asked[n / 64] |= 1 << (n % 64);
                }
            }
        }
        let clusters = join(&mut rows, budget);
        let mut memo = Self { places: vec![NONE; items as usize], ..Self::default() };
        for cluster in clusters.iter().filter(|cluster| cluster.len() > 1) {
            let bit_of = |item: &u32| cluster.iter().position(|it| it == item).map(|at| 1 << at);
            let bits = |row: &Row| row.items.iter().try_fold(0u8, |bits, item| Some(bits | bit_of(item)?));
            let sums = rows[popular.len()..].iter().filter_map(bits).collect();
            memo.shapes.push(Shape::new(cluster.len(), sums));
            let members: Vec<u32> = cluster.iter().map(|item| popular[*item as usize]).collect();
            memo.push(&members, memo.shapes.len() as u32 - 1);
        }
        memo
    }

    fn push(&mut self, items: &[u32], shape: u32) {
        let cluster = self.clusters.len() as u32;
        self.clusters.push(Cluster { first: self.rows, members: self.members.len() as u32, shape });
        for (bit, item) in (0..).zip(items) {
            self.places[*item as usize] = cluster << 3 | bit;
        }
        self.members.extend_from_slice(items);
        self.rows += self.shapes[shape as usize].sums.len() as u32;
    }

    /// The memo of a catalogue that is so many times this one, one behind the other.
    pub fn repeated(&self, times: u32) -> Self {
        let places = vec![NONE; self.places.len() * times as usize];
        let mut memo = Self { places, shapes: self.shapes.clone(), ..Self::default() };
        for copy in 0..times {
            let first = copy * self.items();
            for cluster in &self.clusters {
                let items: Vec<u32> = self.members(cluster).iter().map(|item| first + item).collect();
                memo.push(&items, cluster.shape);
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

    fn members(&self, cluster: &Cluster) -> &[u32] {
        let begin = cluster.members as usize;
        &self.members[begin..begin + self.shapes[cluster.shape as usize].items as usize]
    }

    /// The items of each sum, in their order behind the table.
    pub fn sums(&self) -> impl Iterator<Item = impl Iterator<Item = u32>> {
        self.clusters.iter().flat_map(|cluster| {
            let items = self.members(cluster);
            let of = move |bits: &u8| {
                let bits = *bits;
                items.iter().enumerate().filter(move |(n, _)| bits >> n & 1 == 1).map(|(_, item)| *item)
            };
            self.shapes[cluster.shape as usize].sums.iter().map(of)
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
            let Cluster { first, members, shape } = self.clusters[cluster as usize];
            let cover = &self.shapes[shape as usize].covers[usize::from(bits)];
            rows.extend(cover.iter().take_while(|row| **row != END).map(|row| match u32::from(*row) {
                item if item < MOST as u32 => self.members[(members + item) as usize],
                sum => self.items() + first + sum - MOST as u32,
            }));
        }
        rows
    }
}

/// An item, or a sum.
#[derive(Clone)]
struct Row {
    /// The numbers of its items.
    items: Vec<u32>,
    /// A bit for each request that this row is a part of.
    asked: Vec<u64>,
    /// How many are set.
    often: u32,
}

/// Two rows to be joined, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    /// Look-ups that it spares.
    spared: u32,
    /// The rows' numbers: of equals the first.
    at: std::cmp::Reverse<(u32, u32)>,
}

/// Joins rows, each into one more, as long as the budget lasts. Returns the clusters, of the numbers of items.
fn join(rows: &mut Vec<Row>, budget: u32) -> Vec<Vec<u32>> {
    let mut clusters: Vec<Vec<u32>> = rows.iter().map(|row| row.items.clone()).collect();
    let mut home: Vec<usize> = (0..rows.len()).collect();
    rows.iter_mut().for_each(|row| row.often = row.asked.iter().map(|word| word.count_ones()).sum());
    // Of each row its best partner, or one that was: what two spare only shrinks.
    let mut pairs: BinaryHeap<Pair> = (0..rows.len()).filter_map(|at| best(rows, at, &clusters, &home)).collect();
    let (mut left, mut sums) = (budget, vec![0usize; rows.len()]);
    while left > 0
        && let Some(pair) = pairs.pop()
    {
        let std::cmp::Reverse((a, b)) = pair.at;
        let (a, b) = (a as usize, b as usize);
        let now = gain(rows, a, b, &clusters, &home);
        if now != Some(pair.spared) {
            pairs.extend(best(rows, a, &clusters, &home));
            continue;
        }
        let (ours, theirs) = (home[rows[a].items[0] as usize], home[rows[b].items[0] as usize]);
        // A byte has numbers for so many, and one for the end.
        if sums[ours] + if ours == theirs { 0 } else { sums[theirs] } + MOST >= usize::from(END) {
            continue;
        }
        left -= 1;
        let both: Vec<u64> = rows[a].asked.iter().zip(&rows[b].asked).map(|(one, other)| one & other).collect();
        for at in [a, b] {
            rows[at].asked.iter_mut().zip(&both).for_each(|(asked, both)| *asked &= !both);
            rows[at].often -= pair.spared;
        }
        let items = [&rows[a].items[..], &rows[b].items].concat();
        rows.push(Row { items, asked: both, often: pair.spared });
        if ours != theirs {
            let moved = std::mem::take(&mut clusters[theirs]);
            moved.iter().for_each(|item| home[*item as usize] = ours);
            clusters[ours].extend(moved);
            sums[ours] += sums[theirs];
        }
        sums[ours] += 1;
        for at in [a, b, rows.len() - 1] {
            pairs.extend(best(rows, at, &clusters, &home));
        }
    }
    clusters
}

/// Look-ups that a sum of two rows spares, if there may be one: rows of a request have no item in common.
fn gain(rows: &[Row], a: usize, b: usize, clusters: &[Vec<u32>], home: &[usize]) -> Option<u32> {
    let [ours, theirs] = [a, b].map(|at| home[rows[at].items[0] as usize]);
    if a == b || ours != theirs && clusters[ours].len() + clusters[theirs].len() > MOST {
        return None;
    }
    let spared = rows[a].asked.iter().zip(&rows[b].asked).map(|(ours, theirs)| (ours & theirs).count_ones()).sum();
    (spared > 1).then_some(spared)
}

/// The partner with which a row spares the most.
fn best(rows: &[Row], at: usize, clusters: &[Vec<u32>], home: &[usize]) -> Option<Pair> {
    let mut best: Option<Pair> = None;
    for other in 0..rows.len() {
        if rows[other].often.min(rows[at].often) > best.map_or(1, |best| best.spared)
            && let Some(spared) = gain(rows, at, other, clusters, home)
        {
            best = best.max(Some(Pair { spared, at: std::cmp::Reverse((at as u32, other as u32)) }));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_always_comes_together_is_one_row() {
        let requests: Vec<Vec<u32>> = (0..20).map(|n| if n % 2 == 0 { vec![3, 5, 9] } else { vec![n] }).collect();
        let memo = Memo::of(20, requests.iter().map(Vec::as_slice), 4);
        // Two of them and all three: no request asks for other parts.
        assert_eq!((memo.rows(), memo.clusters()), (2, 1));
        let mut rewriter = Rewriter::default();
        assert_eq!(memo.rewrite(&[9, 1, 3, 5, 1], &mut rewriter).len(), 3);
        assert_eq!(memo.rewrite(&[3, 5, 3], &mut rewriter).len(), 2, "one comes twice");
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

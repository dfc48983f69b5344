//! Who was interested in what: read from a file, or drawn with the statistics of MovieLens 100k.

use std::collections::HashMap;
use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::StudyError;
use crate::records::read_text;

/// Items of a request at most: a call to a NIC carries its parameters in one packet. Longer lists are several requests.
pub const LONGEST: usize = 960;

/// What MovieLens 100k is made of (README of GroupLens): people, films, and ratings, of which each has 20 at least.
const USERS: usize = 943;
const ITEMS: u32 = 1682;
/// Ratings of one: median, spread of the logarithm so that the mean is 106, and bounds.
const ACTIVITY: (f64, f64) = (65.0, 0.99);
const ACTIVE: (f64, f64) = (20.0, 737.0);
/// Spread of the logarithm of a film's popularity, beside that which tastes give it.
const POPULARITY: f64 = 1.6;
/// Ways in which films and people's tastes differ, and the spread of the logarithm of how much that makes one like the other.
/// Fitted to how much of what rates a film or its best partner rates both (Jaccard): 0.52, 0.44 and 0.36 on average of the
/// first 100 films by popularity, the next 100 and the next 200; drawn are 0.52, 0.44 and 0.35.
const WAYS: usize = 2;
const TASTE: f64 = 2.0;

/// Lists of items, one or more for each user.
#[derive(Clone, Debug, PartialEq)]
pub struct Interactions {
    /// Where they are from.
    pub source: String,
    /// How many items there are, numbered from 0.
    pub items: u32,
    /// The items of each request.
    pub requests: Vec<Vec<u32>>,
}

impl Interactions {
    /// Those of a file: a line for each, of a user and an item and whatever else, with tabs or commas between them; a first
    /// line of columns' names, as RecBole's files have it, is left out.
    pub fn read(path: &Path) -> Result<Self, StudyError> {
        let text = read_text(path).map_err(|e| StudyError::Failed(format!("cannot read {}: {e}", path.display())))?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        Self::parse(&name, &text).map_err(|why| StudyError::Usage(format!("{}: {why}", path.display())))
    }

    fn parse(name: &str, text: &str) -> Result<Self, String> {
        let (mut users, mut items) = (HashMap::new(), HashMap::new());
        let mut lists: Vec<Vec<u32>> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let mut fields = line.split(['\t', ',']).map(str::trim);
            let (Some(user), Some(item)) = (fields.next(), fields.next()) else {
                if line.trim().is_empty() {
                    continue;
                }
                return Err(format!("line {number}: a user and an item, with a tab or a comma between them"));
            };
            if number == 1 && (user.contains(":token") || user.starts_with("user")) {
                continue;
            }
            let next = users.len();
            let user = *users.entry(user).or_insert(next);
            let next = items.len() as u32;
            let item = *items.entry(item).or_insert(next);
            lists.resize_with(users.len(), Vec::new);
            lists[user].push(item);
        }
        if items.is_empty() {
            return Err("it has no interactions".into());
        }
        Ok(Self::of(name.to_owned(), items.len() as u32, &lists))
    }

    fn of(source: String, items: u32, lists: &[Vec<u32>]) -> Self {
        let requests = lists.iter().flat_map(|list| list.chunks(LONGEST)).map(<[u32]>::to_vec).collect();
        Self { source, items, requests }
    }

    /// As many users, items and interactions as MovieLens 100k has. Popularity and activity are spread as there; what comes
    /// together follows from tastes.
    pub fn drawn(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let films: Vec<(f64, [f64; WAYS])> = (0..ITEMS)
            .map(|_| {
                let popularity = POPULARITY * normal(&mut rng);
                (popularity, [(); WAYS].map(|()| TASTE / (WAYS as f64).sqrt() * normal(&mut rng)))
            })
            .collect();
        let lists: Vec<Vec<u32>> = (0..USERS)
            .map(|_| {
                let active = (ACTIVITY.0 * (ACTIVITY.1 * normal(&mut rng)).exp()).clamp(ACTIVE.0, ACTIVE.1);
                let tastes = [(); WAYS].map(|()| normal(&mut rng));
                // Without putting back: the soonest, if each comes at a time that its weight makes short.
                let mut order: Vec<(f64, u32)> = (0..)
                    .zip(&films)
                    .map(|(film, (popularity, ways))| {
                        let liked: f64 = tastes.iter().zip(ways).map(|(taste, way)| taste * way).sum();
                        (-uniform(&mut rng).ln() / (popularity + liked).exp(), film)
                    })
                    .collect();
                let active = active as usize;
                order.select_nth_unstable_by(active, |a, b| a.0.total_cmp(&b.0));
                order.truncate(active);
                order.into_iter().map(|(_, film)| film).collect()
            })
            .collect();
        Self::of("drawn with MovieLens 100k's statistics".into(), ITEMS, &lists)
    }

    /// How many there are.
    pub fn interactions(&self) -> usize {
        self.requests.iter().map(Vec::len).sum()
    }

    /// Every other request: some to learn from, others to measure by.
    pub fn halves(&self) -> [Vec<&[u32]>; 2] {
        [0, 1].map(|half| self.requests.iter().skip(half).step_by(2).map(Vec::as_slice).collect())
    }
}

/// Between 0 and 1, neither of them.
fn uniform(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 12) as f64 / (1u64 << 52) as f64 + 1e-16
}

/// About normal, with mean 0 and variance 1: the sum of twelve.
fn normal(rng: &mut ChaCha8Rng) -> f64 {
    (0..12).map(|_| uniform(rng)).sum::<f64>() - 6.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_with_and_without_names_of_columns() {
        let inter = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n196\t242\t3\t881250949\n186\t302\t3\t8\n\
                     196\t302\t1\t9\n\n";
        let read = Interactions::parse("ml-100k.inter", inter).unwrap();
        assert_eq!((read.items, &read.requests), (2, &vec![vec![0, 1], vec![1]]));
        let csv = Interactions::parse("a.csv", "userId,movieId\n1,5\n1,6\n2,5\n").unwrap();
        assert_eq!(csv.requests, [vec![0, 1], vec![0]]);
        assert!(Interactions::parse("a", "1\t2\n3").unwrap_err().contains("line 2"));
        assert!(Interactions::parse("a", "user_id:token\titem_id:token\n").unwrap_err().contains("no interactions"));
        assert!(Interactions::read(Path::new("/nowhere/a")).unwrap_err().to_string().contains("/nowhere/a"));
        let long: String = (0..2 * LONGEST + 1).map(|item| format!("1,{item}\n")).collect();
        let lens: Vec<usize> = Interactions::parse("a", &long).unwrap().requests.iter().map(Vec::len).collect();
        assert_eq!(lens, [LONGEST, LONGEST, 1]);
    }

    #[test]
    fn what_is_drawn_is_spread_as_published() {
        let drawn = Interactions::drawn(1);
        assert_eq!(drawn, Interactions::drawn(1));
        assert_eq!(drawn.requests.len(), USERS);
        assert!((85_000..115_000).contains(&drawn.interactions()), "{}", drawn.interactions());
        let mut lens: Vec<usize> = drawn.requests.iter().map(Vec::len).collect();
        lens.sort_unstable();
        assert!(lens[0] == 20 && (55..75).contains(&lens[USERS / 2]) && lens[USERS - 1] <= 737, "{lens:?}");
        let mut often = vec![0; ITEMS as usize];
        drawn.requests.iter().flatten().for_each(|item| often[*item as usize] += 1);
        often.sort_unstable();
        let (median, most) = (often[often.len() / 2], often[often.len() - 1]);
        // Published: 27 and 583.
        assert!((18..45).contains(&median) && (400..800).contains(&most), "{median} {most}");
        // Of each of the 100 most popular, the partner that most of what asks for either asks for both.
        let mut asked = vec![vec![false; USERS]; ITEMS as usize];
        drawn
            .requests
            .iter()
            .enumerate()
            .for_each(|(user, list)| list.iter().for_each(|item| asked[*item as usize][user] = true));
        asked.sort_by_key(|asked| std::cmp::Reverse(asked.iter().filter(|it| **it).count()));
        let jaccard = |one: &[bool], other: &[bool]| {
            let count =
                |both: fn(bool, bool) -> bool| one.iter().zip(other).filter(|(a, b)| both(**a, **b)).count() as f64;
            count(|a, b| a && b) / count(|a, b| a || b)
        };
        let best = |at: usize| {
            (0..400).filter(|other| *other != at).map(|other| jaccard(&asked[at], &asked[other])).fold(0.0, f64::max)
        };
        let mean = (0..100).map(best).sum::<f64>() / 100.0;
        // Of the data set itself: 0.524.
        assert!((0.47..0.58).contains(&mean), "{mean}");
        let mut one = drawn.requests[0].clone();
        one.sort_unstable();
        one.dedup();
        assert_eq!(one.len(), drawn.requests[0].len(), "nobody rates a film twice");
    }
}

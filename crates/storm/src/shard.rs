//! A run that is split among processes: each does its own part, and knows of no other.

use std::fmt;
use std::str::FromStr;

/// One of so many parts, counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shard {
    /// Which.
    pub index: u64,
    /// Of how many; at least 1, and above `index`.
    pub of: u64,
}

impl Shard {
    /// Parts of a run at most.
    pub const MOST: u64 = 65_536;

    /// One part of so many; `None` if there is no such part.
    pub fn new(index: u64, of: u64) -> Option<Self> {
        (index < of && of <= Self::MOST).then_some(Self { index, of })
    }

    /// All of a run.
    pub const WHOLE: Self = Self { index: 0, of: 1 };

    /// Is this its business, of things that are counted up?
    pub const fn has(self, number: u64) -> bool {
        number % self.of == self.index
    }

    /// How many of the first so many things are its business.
    pub const fn share(self, count: u64) -> u64 {
        (count + self.of - 1 - self.index) / self.of
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(index, of)| Some((index.parse().ok()?, of.parse().ok()?)));
        let shard = numbers.and_then(|(index, of)| Self::new(index, of));
        shard.ok_or_else(|| "give I/N, the part and how many there are, from 0/N to N-1/N, N up to 65536".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_share_all_and_nothing_twice() {
        for of in 1..7 {
            let shards: Vec<Shard> = (0..of).map(|index| Shard { index, of }).collect();
            assert!((0..50).all(|number| shards.iter().filter(|shard| shard.has(number)).count() == 1));
            for shard in shards {
                let own = (0..50).filter(|&number| shard.has(number)).count() as u64;
                assert_eq!((shard.share(50), shard.to_string().parse()), (own, Ok(shard)));
            }
        }
        for bad in ["", "1", "2/2", "0/0", "-1/2", "a/b", "1/2/3", "0/65537"] {
            assert!(bad.parse::<Shard>().is_err(), "{bad}");
        }
    }
}

//! What was measured until something ended it.

use std::fmt::Display;

/// Rows in the order in which they were measured, and what ended the measurement early: a run that is interrupted or fails
/// shows what it has, and says what is missing.
#[derive(Clone, Debug)]
pub struct MeasuredRows<R, E> {
    /// The rows that are whole.
    pub rows: Vec<R>,
    /// How many there are if nothing ends it early.
    pub wanted: usize,
    /// What ended it early.
    pub cut: Option<E>,
}

impl<R, E> MeasuredRows<R, E> {
    /// What `measure` adds until all rows are there or something ends it.
    pub fn by(wanted: usize, measure: impl FnOnce(&mut Vec<R>) -> Result<(), E>) -> Self {
        let mut rows = Vec::new();
        let cut = measure(&mut rows).err();
        debug_assert!(cut.is_some() || rows.len() == wanted, "{} of {wanted} rows", rows.len());
        Self { rows, wanted, cut }
    }

    /// All rows, or what ended it early.
    pub fn whole(self) -> Result<Vec<R>, E> {
        match self.cut {
            None => Ok(self.rows),
            Some(error) => Err(error),
        }
    }

    /// What ended it early, if that left nothing to show.
    pub fn or_nothing(self) -> Result<Self, E> {
        match self.cut {
            Some(error) if self.rows.is_empty() => Err(error),
            cut => Ok(Self { cut, ..self }),
        }
    }

    /// Why not all is there and how much is, in words; `what` is plural. None if all is.
    pub fn missing(&self, what: &str) -> Option<String>
    where
        E: Display,
    {
        let error = self.cut.as_ref()?;
        Some(format!("{error}; {} of {} {what} were measured", self.rows.len(), self.wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_outlive_what_ends_the_measurement() {
        let of = |count: usize, end: Result<(), &'static str>| {
            MeasuredRows::by(3, |rows| {
                rows.extend(0..count);
                end
            })
        };
        let whole = of(3, Ok(()));
        assert!(whole.missing("rows").is_none() && whole.whole() == Ok(vec![0, 1, 2]));
        let cut = of(2, Err("the disk is full"));
        assert_eq!(cut.missing("rows").as_deref(), Some("the disk is full; 2 of 3 rows were measured"));
        assert_eq!(cut.clone().or_nothing().map(|some| some.rows), Ok(vec![0, 1]));
        assert_eq!(cut.whole(), Err("the disk is full"));
        assert_eq!(of(0, Err("no")).or_nothing().err(), Some("no"));
    }
}

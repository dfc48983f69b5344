//! What a result rests on: how many of a platform's values are printed, and how many are estimates.

use serde::Serialize;

use super::params::{Param, Params, SourceStatus};

/// How many values have one status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Share {
    /// The status.
    pub status: SourceStatus,
    /// Values that have it.
    pub values: usize,
}

impl Params {
    /// How many values there are of each status, from the firmest to the weakest; none with no values.
    pub fn shares(&self) -> Vec<Share> {
        let count = |status| self.iter().filter(|param| param.status == status).count();
        let all = SourceStatus::ALL.iter().map(|&(status, _)| Share { status, values: count(status) });
        all.filter(|share| share.values > 0).collect()
    }

    /// `80 values: 30 printed, 12 estimate`.
    pub fn shares_text(&self) -> String {
        let total = self.iter().count();
        let parts: Vec<_> = self.shares().iter().map(|share| format!("{} {}", share.values, share.status)).collect();
        format!("{total} values: {}", parts.join(", "))
    }

    /// Values whose range leaves room, in the file's order.
    pub fn open(&self) -> impl Iterator<Item = &Param> {
        self.iter().filter(|param| param.is_open())
    }
}

//! Why calls run where they run, in a line.

use std::fmt;

use remora_kernel::Placement;

use super::PLACES;

/// Why calls run where they run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Why {
    /// It was said so.
    Pinned,
    /// There is no other place.
    Only,
    /// The model thinks it best, and nothing measured says otherwise.
    Model,
    /// It is where calls began, and nothing measured says otherwise.
    First,
    /// It took less in trials.
    Faster {
        /// Where calls ran before.
        than: Placement,
        /// What the other took, in parts of what this one takes.
        times: f32,
    },
    /// It took less in trials, which were made as the other place had changed.
    Changed {
        /// Where calls ran before.
        than: Placement,
        /// How many times as long as before calls took there.
        times: f32,
    },
    /// Calls failed at the other place.
    Failed {
        /// The other place.
        than: Placement,
    },
    /// The other place did not answer.
    Silent {
        /// The other place.
        than: Placement,
    },
}

/// Why calls run where they run, and what they take: a line, as it is displayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reason {
    /// Where.
    pub placement: Placement,
    /// Why.
    pub why: Why,
    /// Nanoseconds of a call at each place as far as they are measured, by now and not when the place was chosen, in the order of [`Placement::ALL`].
    pub costs: [Option<f32>; PLACES],
}

impl Reason {
    pub(super) fn pinned(placement: Placement) -> Self {
        Self { placement, why: Why::Pinned, costs: [None; PLACES] }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.placement)?;
        match self.why {
            Why::Pinned => return f.write_str("pinned"),
            Why::Only => return f.write_str("the only place"),
            Why::Model => f.write_str("the model's choice")?,
            Why::First => f.write_str("no other place is better")?,
            Why::Faster { than, times } => write!(f, "{times:.2} x as fast as the {than}")?,
            Why::Changed { than, times } if times > 1.0 => write!(f, "the {than} took {times:.1} x as long as before")?,
            Why::Changed { than, .. } => write!(f, "the {than} changed")?,
            Why::Failed { than } => write!(f, "calls failed at the {than}")?,
            Why::Silent { than } => write!(f, "the {than} did not answer")?,
        }
        let known = Placement::ALL.into_iter().zip(self.costs);
        let known = known.filter_map(|(place, cost)| Some((place, cost?)));
        for (n, (place, ns)) in known.enumerate() {
            f.write_str(if n == 0 { "; by now a call takes " } else { ", " })?;
            match ns {
                ns if !ns.is_finite() => write!(f, "no end at the {place}")?,
                ns if ns < 1e4 => write!(f, "{:.2} us at the {place}", ns / 1e3)?,
                ns if ns < 1e6 => write!(f, "{:.1} us at the {place}", ns / 1e3)?,
                ns => write!(f, "{:.1} ms at the {place}", ns / 1e6)?,
            }
        }
        Ok(())
    }
}

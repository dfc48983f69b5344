//! Energy: a part takes one power while it works and another while it waits.

use crate::time::Ps;

/// PartPower of one part, in watts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PartPower {
    /// While nothing happens.
    pub idle_w: f64,
    /// While all of it works.
    pub active_w: f64,
}

impl PartPower {
    /// Joules over `span`, of which the part was busy the share `busy`, 0 to 1: power rises in proportion from idle to
    /// active.
    pub fn joules(&self, span: Ps, busy: f64) -> f64 {
        (self.idle_w + (self.active_w - self.idle_w) * busy.clamp(0.0, 1.0)) * span.as_secs()
    }
}

/// Joules that each of `operations` took; `None` if there were none.
pub fn per_operation(joules: f64, operations: u64) -> Option<f64> {
    (operations > 0).then(|| joules / operations as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joules_of_an_operation() {
        // RAMBDA's processor, 36 W idle and 90 W active, half busy for 2 ms: 63 W x 2 ms = 126 mJ, 63 uJ for each of 2000.
        let power = PartPower { idle_w: 36.0, active_w: 90.0 };
        let joules = power.joules(Ps::from_us(2000), 0.5);
        assert!((joules - 0.126).abs() < 1e-12);
        assert!(per_operation(joules, 2000).is_some_and(|each| (each - 63e-6).abs() < 1e-15));
        assert_eq!(per_operation(joules, 0), None);
        assert_eq!(power.joules(Ps::from_us(1), 2.0), power.joules(Ps::from_us(1), 1.0));
    }
}

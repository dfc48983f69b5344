//! Which mutants there are, and what becomes of platforms.

use remora_kernel::crc64;
use remora_model::platform::{Dimension, Param, Platform};

use super::super::ReproduceError;
use super::{Change, Mutant};

/// A hundredth: no value is known better. What that moves by much is chaos, such as who of many loses a packet.
const OFF: f64 = 0.01;
/// By how much rates and bandwidths of a component grow that is for nothing.
const FREE: f64 = 1000.0;

/// A platform whose values are off by up to [`OFF`], each by its own part, which it has in other platforms too.
pub(super) fn nearly(platform: &Platform, turn: u64) -> Result<Platform, ReproduceError> {
    let off = |param: &Param| {
        let drawn = crc64(format!("{turn} {}", param.path).as_bytes()) as f64 / u64::MAX as f64;
        param.value * (1.0 + OFF * (2.0 * drawn - 1.0))
    };
    let may = |param: &&Param| match param.dimension {
        Dimension::Time | Dimension::Cycles | Dimension::Bandwidth | Dimension::Rate => param.value > 0.0,
        // Parts of a whole stay below it.
        Dimension::Ratio => (0.0..0.99).contains(&param.value) && param.value > 0.0,
        Dimension::Size | Dimension::Power | Dimension::Count => false,
    };
    let values: Vec<(&str, f64)> =
        platform.params.iter().filter(may).map(|param| (param.path.as_str(), off(param))).collect();
    Ok(platform.with(&values)?)
}

/// A mutant to come: for each platform, the values that it gets.
pub(super) struct Plan {
    pub mutant: Mutant,
    values: Vec<Vec<(String, f64)>>,
}

impl Plan {
    /// The platforms, changed.
    pub fn platforms(&self, platforms: &[Platform]) -> Result<Vec<Platform>, ReproduceError> {
        if self.mutant.change == Change::Order {
            return out_of_turn(platforms, &self.mutant.what);
        }
        let with = |(platform, values): (&Platform, &Vec<(String, f64)>)| {
            let values: Vec<(&str, f64)> = values.iter().map(|(path, value)| (path.as_str(), *value)).collect();
            Ok(platform.with(&values)?)
        };
        platforms.iter().zip(&self.values).map(with).collect()
    }

    fn new(what: &str, platform: Option<&Platform>, change: Change, values: Vec<Vec<(String, f64)>>) -> Self {
        let (empty, platform) = (Vec::new, platform.map(|platform| platform.name.clone()));
        let (what, at, refused) = (what.into(), String::new(), None);
        let mutant = Mutant {
            what,
            platform,
            change,
            moved: 0.0,
            at,
            trends: empty(),
            rows: empty(),
            went_in: empty(),
            refused,
        };
        Self { mutant, values }
    }
}

/// All mutants of such changes. A value that all platforms have alike is one of one device and changes in all of them.
pub(super) fn plans(platforms: &[Platform], changes: &[Change]) -> Result<Vec<Plan>, ReproduceError> {
    let mut plans = Vec::new();
    let Some(first) = platforms.first() else { return Ok(plans) };
    for param in first.params.iter().filter(|param| param.value > 0.0) {
        let same = |other: &Platform| other.params.get(&param.path).is_some_and(|p| p.value == param.value);
        // Those that are changed together.
        let groups: Vec<Vec<usize>> = match platforms.iter().all(same) {
            true => vec![(0..platforms.len()).collect()],
            false => (0..platforms.len()).map(|n| vec![n]).collect(),
        };
        for group in &groups {
            for (change, factor) in [(Change::Half, 0.5), (Change::Double, 2.0)] {
                let of = |(n, platform): (usize, &Platform)| {
                    let param = platform.params.get(&param.path).filter(|_| group.contains(&n))?;
                    Some((param.path.clone(), settled(param, param.value * factor)))
                };
                let values: Vec<Vec<_>> =
                    platforms.iter().enumerate().map(|each| of(each).into_iter().collect()).collect();
                let alone = (groups.len() > 1).then(|| &platforms[group[0]]);
                plans.push(Plan::new(&param.path, alone, change, values));
            }
        }
    }
    let mut sections: Vec<&str> = first.params.iter().filter_map(|p| Some(p.path.rsplit_once('.')?.0)).collect();
    sections.dedup();
    for &section in &sections {
        let of = |platform: &Platform| -> Vec<(String, f64)> {
            let inside = platform.params.iter().filter(|p| p.path.rsplit_once('.').is_some_and(|(s, _)| s == section));
            inside.filter_map(|param| Some((param.path.clone(), free(param)?))).collect()
        };
        let values: Vec<Vec<_>> = platforms.iter().map(of).collect();
        if values.iter().any(|values| !values.is_empty()) {
            plans.push(Plan::new(section, None, Change::Free, values));
        }
    }
    for section in sections {
        for platform in platforms {
            if platform.out_of_turn(section)?.is_some() {
                plans.push(Plan::new(section, None, Change::Order, vec![Vec::new(); platforms.len()]));
                break;
            }
        }
    }
    plans.retain(|plan| changes.contains(&plan.mutant.change));
    Ok(plans)
}

/// Platforms with the queues of a section's component served out of turn, where they have any.
fn out_of_turn(platforms: &[Platform], section: &str) -> Result<Vec<Platform>, ReproduceError> {
    let changed = |platform: &Platform| Ok(platform.out_of_turn(section)?.unwrap_or_else(|| platform.clone()));
    platforms.iter().map(changed).collect()
}

/// The value of a component that is for nothing, if it is one that costs.
fn free(param: &Param) -> Option<f64> {
    match param.dimension {
        Dimension::Time | Dimension::Cycles => Some(0.0),
        Dimension::Bandwidth | Dimension::Rate => Some(param.value * FREE),
        Dimension::Size | Dimension::Power | Dimension::Count | Dimension::Ratio => None,
    }
}

/// Counts and sizes stay whole, and are never nothing.
fn settled(param: &Param, value: f64) -> f64 {
    if matches!(param.dimension, Dimension::Count | Dimension::Size) { value.round().max(1.0) } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_off_by_a_hundredth_at_most_and_alike_where_they_are_one_devices() {
        let [small, large] = ["strom-10g", "strom-100g"].map(|name| Platform::load(name).unwrap());
        let [near, far] = [&small, &large].map(|platform| nearly(platform, 1).unwrap());
        let factor = |was: &Platform, now: &Platform, path: &str| {
            now.params.get(path).unwrap().value / was.params.get(path).unwrap().value
        };
        let mut moved = 0;
        for param in small.params.iter().filter(|param| param.value > 0.0) {
            let off = factor(&small, &near, &param.path);
            assert!((off - 1.0).abs() <= OFF + 1e-12, "{}: {off}", param.path);
            moved += usize::from(off != 1.0);
            if large.params.get(&param.path).is_some_and(|other| other.value == param.value) {
                assert_eq!(off, factor(&large, &far, &param.path), "{}", param.path);
            }
        }
        assert!(moved > 20, "{moved} values");
        let again = nearly(&small, 2).unwrap();
        assert!(again.params.iter().zip(near.params.iter()).any(|(a, b)| a.value != b.value), "each run has its own");
    }

    #[test]
    fn components_with_queues_are_served_out_of_turn_and_others_are_not() {
        let platforms = ["strom-10g", "strom-100g"].map(|name| Platform::load(name).unwrap());
        let plans = plans(&platforms, &[Change::Order]).unwrap();
        let names: Vec<String> = plans.iter().map(|plan| plan.mutant.name()).collect();
        for section in ["host.core", "host.dram", "host.pcie", "nic.pipeline", "ethernet"] {
            assert!(names.contains(&format!("{section} out of turn")), "{section}: {names:?}");
        }
        assert!(!names.iter().any(|name| name.starts_with("host.cache") || name.starts_with("power")), "{names:?}");
        let pcie = plans.iter().find(|plan| plan.mutant.what == "host.pcie").unwrap();
        for (was, now) in platforms.iter().zip(pcie.platforms(&platforms).unwrap()) {
            assert_eq!(now.params.out_of_turn(), Some("host.pcie"));
            assert_ne!(was.nic.as_ref().unwrap().pcie, now.nic.as_ref().unwrap().pcie);
            assert_eq!(was.host, now.host, "nothing else changes");
            assert_ne!(super::super::super::values(was), super::super::super::values(&now), "kept results are others");
        }
    }

    #[test]
    fn changes_that_nobody_asks_for_are_not_planned() {
        let platforms = [Platform::load("rambda").unwrap()];
        let count = |changes: &[Change]| plans(&platforms, changes).unwrap().len();
        let all = count(&Change::ALL);
        assert_eq!(Change::ALL.map(|change| count(&[change])).iter().sum::<usize>(), all);
        assert!(Change::ALL.iter().all(|change| count(&[*change]) > 0) && count(&[]) == 0);
    }
}

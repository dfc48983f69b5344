//! Free parameters, fitted to what the paper's text says: within their ranges, and never to a figure.

use remora_model::platform::{Param, Platform};

use super::ReproduceError;
use super::point::{self, Ground, Outcomes};
use super::study::{Place, Run, Series};

/// A parameter that was free.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    /// Its paths.
    pub what: String,
    /// The value that it got, with its unit.
    pub value: String,
    /// What it may be.
    pub range: String,
    /// How firm it is without the fit, and who says so.
    pub source: String,
    /// What it was fitted to.
    pub to: String,
    /// Whether it stands at an end of its range, short of the target.
    pub at_end: bool,
}

/// Bytes of the largest object of figure 9: the one that its text speaks of.
const LARGEST: u64 = 4096;
/// Threads that the text speaks of.
const THREADS: u64 = 8;

/// The platforms of StRoM with their free parameters fitted.
pub fn strom(seed: u64) -> Result<(Vec<Platform>, Vec<Fitted>), ReproduceError> {
    let (slow, fast) = (Platform::load("strom-10g")?, Platform::load("strom-100g")?);
    let depth = ["nic.pipeline.tx_depth", "nic.pipeline.rx_depth"];
    // Section 6.2: a GET by the kernel saves around 5 us: one network round trip (ST-053).
    let saved = |platform: &Platform| -> Result<f64, ReproduceError> {
        let two_reads = median(platform, Run::Get, Place::Client, 64, seed)?;
        Ok((two_reads - median(platform, Run::Get, Place::Nic, 64, seed)?) / 1e3)
    };
    let (cycles, depth_fit) = fit(&slow, &depth, 5.0, |x| x, &saved, "5 us saved by a hash GET (6.2, ST-053)")?;
    let values = depth.map(|path| (path, cycles));
    let (slow, fast) = (slow.with(&values)?, fast.with(&values)?);
    // Section 6.3: CRC64 by software costs up to 40 % (ST-055). The time goes with the inverse of the rate.
    let crc = ["checksum.crc64"];
    let overhead = |platform: &Platform| -> Result<f64, ReproduceError> {
        let read = median(platform, Run::ReadObject, Place::Client, LARGEST, seed)?;
        Ok((median(platform, Run::Object, Place::Client, LARGEST, seed)? / read - 1.0) * 100.0)
    };
    let to = "40 % overhead of a checked READ of 4 KB (6.3, ST-055)";
    let (rate, crc_fit) = fit(&slow, &crc, 40.0, |x| 1.0 / x, &overhead, to)?;
    let values = [("checksum.crc64", rate)];
    let (slow, fast) = (slow.with(&values)?, fast.with(&values)?);
    // Section 7.2: eight threads sketch about 25 Gbit/s (ST-085).
    let sketched = |platform: &Platform| -> Result<f64, ReproduceError> {
        let Outcomes { ops_per_s, bytes, .. } = once(platform, Run::CountStreams, Place::Host, THREADS, seed)?;
        Ok(ops_per_s * bytes as f64 * 8.0 / 1e9)
    };
    let hll = ["stream.hyperloglog"];
    let to = "25 Gbit/s by HyperLogLog on eight threads (7.2, ST-085)";
    let (rate, hll_fit) = fit(&fast, &hll, 25.0, |x| x, &sketched, to)?;
    let values = [("stream.hyperloglog", rate)];
    Ok((vec![slow.with(&values)?, fast.with(&values)?], vec![depth_fit, crc_fit, hll_fit]))
}

fn median(platform: &Platform, run: Run, place: Place, x: u64, seed: u64) -> Result<f64, ReproduceError> {
    Ok(once(platform, run, place, x, seed)?.median_ns)
}

fn once(platform: &Platform, run: Run, place: Place, x: u64, seed: u64) -> Result<Outcomes, ReproduceError> {
    let (name, platform_name) = (String::new(), platform.name.clone());
    let series = Series { name, platform: platform_name, run, placement: Some(place), bytes: None, torn: None };
    Ok(point::run(&Ground::new(platform, seed)?, &series, x)?)
}

/// Finds the common value of `paths` at which `measure` comes to `target`, between the ends of the first one's range.
/// `scale` makes what is measured linear in the value.
fn fit(
    platform: &Platform,
    paths: &[&str],
    target: f64,
    scale: fn(f64) -> f64,
    measure: &dyn Fn(&Platform) -> Result<f64, ReproduceError>,
    to: &str,
) -> Result<(f64, Fitted), ReproduceError> {
    let Some(param) = paths.first().and_then(|path| platform.params.get(path)) else {
        return Ok((0.0, Fitted { what: paths.join(", "), ..nothing(to) }));
    };
    let at = |value: f64| -> Result<f64, ReproduceError> {
        let values: Vec<(&str, f64)> = paths.iter().map(|&path| (path, value)).collect();
        measure(&platform.with(&values)?)
    };
    let (low, high) = param.range;
    let (at_low, at_high) = (at(low)?, at(high)?);
    let part = ((target - at_low) / (at_high - at_low)).clamp(0.0, 1.0);
    // Between the ends on the scale on which it is linear; `scale` is its own inverse.
    let value = scale(scale(low) + part * (scale(high) - scale(low)));
    Ok((value, described(param, paths, value, to, part <= 0.0 || part >= 1.0)))
}

fn described(param: &Param, paths: &[&str], value: f64, to: &str, at_end: bool) -> Fitted {
    let (low, high) = param.range;
    Fitted {
        what: paths.join(" = "),
        value: rounded(&param.text(value)),
        range: format!("{} to {}", param.text(low), param.text(high)),
        source: format!("{}: {}", param.status, param.source),
        to: to.into(),
        at_end,
    }
}

fn nothing(to: &str) -> Fitted {
    let empty = String::new;
    Fitted { what: empty(), value: empty(), range: empty(), source: empty(), to: to.into(), at_end: true }
}

/// `127.03 cycles` of `127.0312 cycles`.
fn rounded(text: &str) -> String {
    match text.split_once(' ') {
        Some((number, unit)) => match number.parse::<f64>() {
            Ok(number) => format!("{number:.3} {unit}"),
            Err(_) => text.into(),
        },
        None => text.into(),
    }
}

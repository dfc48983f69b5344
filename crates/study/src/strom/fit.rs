//! StRoM's free parameters, and what of the text they are fitted to.

use remora_model::platform::Platform;

use super::point::{self, Ground, Outcomes};
use remora_kernel::Placement;

use super::study::{Run, StromSeries};
use crate::reproduce::{Fitted, ReproduceError, fit};

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
        let two_reads = median(platform, Run::Get, Placement::Client, 64, seed)?;
        Ok((two_reads - median(platform, Run::Get, Placement::Nic, 64, seed)?) / 1e3)
    };
    let (cycles, depth_fit) = fit(&slow, &depth, 5.0, |x| x, &saved, "5 us saved by a hash GET (6.2, ST-053)")?;
    let values = depth.map(|path| (path, cycles));
    let (slow, fast) = (slow.with(&values)?, fast.with(&values)?);
    // Section 6.3: CRC64 by software costs up to 40 % (ST-055). The time goes with the inverse of the rate.
    let crc = ["checksum.crc64"];
    let overhead = |platform: &Platform| -> Result<f64, ReproduceError> {
        let read = median(platform, Run::ReadObject, Placement::Client, LARGEST, seed)?;
        Ok((median(platform, Run::Object, Placement::Client, LARGEST, seed)? / read - 1.0) * 100.0)
    };
    let to = "40 % overhead of a checked READ of 4 KB (6.3, ST-055)";
    let (rate, crc_fit) = fit(&slow, &crc, 40.0, |x| 1.0 / x, &overhead, to)?;
    let values = [("checksum.crc64", rate)];
    let (slow, fast) = (slow.with(&values)?, fast.with(&values)?);
    // Section 7.2: eight threads sketch about 25 Gbit/s (ST-085).
    let sketched = |platform: &Platform| -> Result<f64, ReproduceError> {
        let Outcomes { ops_per_s, bytes, .. } = once(platform, Run::CountStreams, Placement::Host, THREADS, seed)?;
        Ok(ops_per_s * bytes as f64 * 8.0 / 1e9)
    };
    let hll = ["stream.hyperloglog"];
    let to = "25 Gbit/s by HyperLogLog on eight threads (7.2, ST-085)";
    let (rate, hll_fit) = fit(&fast, &hll, 25.0, |x| x, &sketched, to)?;
    let values = [("stream.hyperloglog", rate)];
    Ok((vec![slow.with(&values)?, fast.with(&values)?], vec![depth_fit, crc_fit, hll_fit]))
}

fn median(platform: &Platform, run: Run, place: Placement, x: u64, seed: u64) -> Result<f64, ReproduceError> {
    Ok(once(platform, run, place, x, seed)?.median_ns)
}

fn once(platform: &Platform, run: Run, place: Placement, x: u64, seed: u64) -> Result<Outcomes, ReproduceError> {
    let (name, platform_name) = (String::new(), platform.name.clone());
    let series = StromSeries { name, platform: platform_name, run, placement: Some(place), bytes: None, torn: None };
    Ok(point::run(&Ground::new(platform, seed)?, &series, x)?)
}

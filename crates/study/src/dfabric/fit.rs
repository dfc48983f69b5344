//! DFabric's free parameter, and what of the text it is fitted to.

use remora_model::platform::Platform;

use super::point::{Run, Setup, Without};
use crate::reproduce::{Fitted, ReproduceError, fit_rising};

/// The platform with its free parameter fitted.
pub fn dfabric(seed: u64) -> Result<(Platform, Vec<Fitted>), ReproduceError> {
    let platform = Platform::load("dfabric")?;
    // Table 4: with small queues a stream has half the throughput (DF-082). What a queue's bytes wait for is the news that
    // they have gone, so that the time for them grows with what that takes.
    let completion = "rack.completion";
    let slowdown = |platform: &Platform| -> Result<f64, ReproduceError> {
        let with = |without| Setup { run: Run::Streams, theta: 2, without, ..Setup::default() }.run(platform, seed);
        Ok(with(vec![Without::LargeQueues])?.seconds / with(Vec::new())?.seconds)
    };
    let to = "half the throughput with TCP's small queues (Table 4, DF-082)";
    let (time, fitted) = fit_rising(&platform, completion, 2.0, &slowdown, to)?;
    Ok((platform.with(&[(completion, time)])?, vec![fitted]))
}

//! The paper's free parameters, and what of the text they are fitted to.

use remora_model::platform::Platform;

use super::point::{self, Ground};
use super::study::{At, Run, Setup};
use crate::reproduce::{Fitted, ReproduceError, fit};

/// Threads of the card, as the text has them.
const THREADS: f64 = 8.0;
/// Operations, enough for a mean to one per cent.
const OPERATIONS: u64 = 4_000;

/// The paper's platforms with their free parameters fitted.
pub(super) fn bluefield(seed: u64) -> Result<(Vec<Platform>, Vec<Fitted>), ReproduceError> {
    let (mut one, mut two) = (Platform::load("bluefield1")?, Platform::load("bluefield2")?);
    let mut all = Vec::new();
    // Times are linear in the values, rates are not: what is measured is a thread's time of an operation.
    let time = |platform: &Platform, setup: &Setup| -> Result<f64, ReproduceError> {
        let outcome = point::run(&Ground::new(platform, seed)?, setup)?;
        Ok(setup.threads as f64 / (outcome.ops_per_s / 1e6))
    };
    let on_card = Setup { place: Some(At::Card), operations: OPERATIONS, ..Setup::default() };
    let local = |keys| Setup { run: Run::LocalTree, keys, clients: 8, ahead: 1, ..on_card.clone() };
    // Section 4.1.3, figure 5: look-ups on the spot, 9.9 M/s of 1 M keys and 2.5 M/s of 256 M (AD-042, AD-045).
    for (path, keys, rate, to) in [
        ("nic.cores.dram_latency", 256_000_000, 2.5, "2.5 M/s look-ups on the spot of 256 M keys (4.1.3, AD-045)"),
        (
            "nic.cores.private.compare_cycles",
            1_000_000,
            9.9,
            "9.9 M/s look-ups on the spot of 1 M keys (4.1.3, AD-042)",
        ),
    ] {
        let measure = |platform: &Platform| time(platform, &local(keys));
        let (value, fitted) = fit(&two, &[path], THREADS / rate, |x| x, &measure, to)?;
        two = two.with(&[(path, value)])?;
        all.push(fitted);
        if path.ends_with("compare_cycles") {
            one = one.with(&[(path, value)])?;
        }
    }
    // Section 4.1.3: look-ups by calls, 4.7 M/s of 1 M keys (AD-041).
    let calls = |platform: &Platform| time(platform, &on_card);
    let to = "4.7 M/s look-ups by calls of 1 M keys (4.1.3, AD-041)";
    let (value, fitted) = fit(&two, &["nic.cores.dispatch"], THREADS / 4.7, |x| x, &calls, to)?;
    two = two.with(&[("nic.cores.dispatch", value)])?;
    all.push(fitted);
    // Section 6.2: the host has about 3 times the rate (AD-071).
    let host = Setup { place: Some(At::Host), ..on_card.clone() };
    let calls = |platform: &Platform| time(platform, &host);
    let to = "3 times the rate of BlueField-2 by calls (6.2, AD-071)";
    let (value, fitted) = fit(&two, &["host.core.dispatch"], THREADS / (3.0 * 4.7), |x| x, &calls, to)?;
    (one, two) = (one.with(&[("host.core.dispatch", value)])?, two.with(&[("host.core.dispatch", value)])?);
    all.push(fitted);
    // Section 4.1.1: eight threads of a BlueField-1 answer 1.9 times as many empty calls as two (AD-036).
    let empty = |threads| Setup { run: Run::EmptyCalls, threads, ..on_card.clone() };
    let off = |platform: &Platform| -> Result<f64, ReproduceError> {
        // By how much eight threads take longer than 1.9 times the rate of two would let them.
        Ok(time(platform, &empty(8))? - THREADS * time(platform, &empty(2))? / (1.9 * 2.0))
    };
    let to = "1.9 times the empty calls from 2 to 8 threads (4.1.1, AD-036)";
    let (value, fitted) = fit(&one, &["nic.cores.machine.shared"], 0.0, |x| x, &off, to)?;
    one = one.with(&[("nic.cores.machine.shared", value)])?;
    all.push(fitted);
    Ok((vec![one, two], all))
}

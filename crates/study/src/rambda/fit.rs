//! RAMBDA's free parameters, and what of the text they are fitted to.

use remora_model::platform::Platform;

use super::point::{Run, Server, Setup};
use crate::reproduce::{Fitted, ReproduceError, fit};

/// The platform with its free parameters fitted.
pub fn rambda(seed: u64) -> Result<(Platform, Vec<Fitted>), ReproduceError> {
    let platform = Platform::load("rambda")?;
    // Section VI-A: the accelerator that polls does what eight cores do (RB-066). Its rate goes with the inverse of the
    // cycles between two of its requests.
    let issue = ["accel.issue_cycles"];
    let cores = |platform: &Platform| -> Result<f64, ReproduceError> {
        let walks = |server, threads| Setup { run: Run::List, server, threads, batch: 16, ..Setup::default() };
        let eight = walks(Server::Host, 8).run(platform, seed)?.per_s;
        Ok(8.0 * walks(Server::PollingAccelerator, 0).run(platform, seed)?.per_s / eight)
    };
    let to = "8 cores' throughput by RAMBDA-polling (VI-A, RB-066)";
    let (cycles, issue_fit) = fit(&platform, &issue, 8.0, |x| 1.0 / x, &cores, to)?;
    let platform = platform.with(&[(issue[0], cycles)])?;
    // Section VI-B: with zipfian keys the Smart NIC does 60 % of what it does where all is on the card (RB-087).
    let host = ["nic.cores.host_pipelined"];
    let part = |platform: &Platform| -> Result<f64, ReproduceError> {
        let gets = |server| Setup { server, threads: 8, zipfian: true, ..Setup::default() };
        let alone = gets(Server::CardAlone).run(platform, seed)?.per_s;
        Ok(100.0 * gets(Server::Card).run(platform, seed)?.per_s / alone)
    };
    let to = "60 % of the on-board throughput with zipfian keys (VI-B, RB-087)";
    let (time, host_fit) = fit(&platform, &host, 60.0, |x| 1.0 / x, &part, to)?;
    Ok((platform.with(&[(host[0], time)])?, vec![issue_fit, host_fit]))
}

//! MINOS's free parameters, and what of the text they are fitted to.

use remora_model::platform::Platform;
use remora_replica::ddp::Model;

use super::Minos;
use super::point::{AblationStep, PointError, Setup};
use crate::reproduce::{Fitted, fit, fit_count};

/// Requests of each node, enough for a mean to a few per cent.
const REQUESTS: u64 = 200;

/// The platform with its free parameters fitted. Clients may be given instead.
pub(super) fn minos(platform: &Platform, paper: &Minos, seed: u64) -> Result<(Platform, Vec<Fitted>), PointError> {
    let readings = paper.readings;
    let run = |setup: Setup, platform: &Platform| setup.run_on(&setup.spec(platform, readings)?, REQUESTS, seed);
    let mut fitted = Vec::new();
    // Section IV: communication is 51 to 73 % of a write, from one model to the other (MI-006).
    let shares = |platform: &Platform| -> Result<(f64, f64), PointError> {
        let mut ends = (f64::MAX, 0.0);
        for model in Model::ALL {
            let outcome = run(Setup { model: model.to_string(), ..Setup::default() }, platform)?;
            let share = outcome.communication_ns / outcome.write_ns;
            ends = (share.min(ends.0), share.max(ends.1));
        }
        Ok(ends)
    };
    let usual = platform.replication.as_ref().map_or(1, |replication| replication.workers);
    let workers = match paper.workers {
        Some(workers) => f64::from(workers),
        None if readings.five_clients => usual as f64,
        None => {
            let off = |platform: &Platform| -> Result<f64, PointError> {
                let (least, most) = shares(platform)?;
                Ok((least / 0.51 - 1.0).abs().max((most / 0.73 - 1.0).abs()))
            };
            let to = "communication as 51 to 73 % of a write (IV, MI-006)";
            let (workers, fit) = fit_count(platform, "replication.workers", &off, to)?;
            fitted.push(fit);
            workers
        }
    };
    let mut platform = platform.with(&[("replication.workers", workers)])?;
    let most = |platform: &Platform| -> Result<f64, PointError> { Ok(shares(platform)?.1) };
    let to = "communication as up to 73 % of a write (IV, MI-006)";
    let (dispatch, dispatch_fit) = fit(&platform, &["host.core.dispatch"], 0.73, |x| x, &most, to)?;
    platform = platform.with(&[("host.core.dispatch", dispatch)])?;
    fitted.push(dispatch_fit);
    if !readings.fitted_to_headline {
        return Ok((platform, fitted));
    }
    // Section VIII-A: a write takes MINOS-B 2.1 times what it takes MINOS-O (MI-046), by what a NIC's core takes.
    let ratio = |platform: &Platform| -> Result<f64, PointError> {
        let of = |deployment| run(Setup { deployment, ..Setup::default() }, platform);
        Ok(of(AblationStep::B)?.write_ns / of(AblationStep::O)?.write_ns)
    };
    let to = "MINOS-B over MINOS-O of 2.1 (VIII-A, MI-046)";
    for path in ["nic.cores.dispatch", "nic.cores.speed", "replication.coherence"] {
        let (value, fit) = fit(&platform, &[path], 2.1, |x| x, &ratio, to)?;
        platform = platform.with(&[(path, value)])?;
        fitted.push(fit);
    }
    Ok((platform, fitted))
}

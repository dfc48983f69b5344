//! A user's kernel on modelled hardware: the same calls in each placement of a platform.

use std::fmt::Write;

use remora_kernel::{Kernel, Placement};
use remora_lab::MeasuredRows;
use remora_model::platform::Platform;
use remora_model::world::PairSpec;
use serde::{Deserialize, Serialize};

use crate::format::{plural, wrap};
use crate::kernel_calls::{COMPARED, KernelCalls, KernelData, Params};
use crate::measure::IN_FLIGHT;
use crate::modelled::{Measured, ModelError, Modelled};
use crate::on::{row_head, row_text};

/// Calls of a figure with one in flight and with many.
const CALLS: [u64; 2] = [200, 2_000];

/// A kernel and what it is called with.
pub struct UserKernel<'a, K> {
    /// What runs it.
    pub kernel: K,
    /// Its op-code.
    pub op: u64,
    /// What is put into the node's memory.
    pub data: Option<&'a [u8]>,
    /// Appends the parameters of the call of this number.
    pub params: Params<'a>,
}

/// What came of one placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelRow {
    /// The platform.
    pub platform: String,
    /// Where the kernel ran: `client`, `nic`, `host` or `accel`.
    pub placement: Placement,
    /// The first call's status, as on the wire.
    pub status: u8,
    /// Whether one of the first calls failed.
    #[serde(default)]
    pub failed: bool,
    /// Of the statuses and replies of the first calls.
    pub digest: u64,
    /// One call after the other.
    pub in_flight_1: Measured,
    /// Sixty-four at once.
    pub in_flight_64: Measured,
}

/// Why a kernel cannot be modelled.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The platform does not say what computing takes.
    #[error("platform {platform} does not say what an instruction takes: add [{section}] with `instruction` in cycles")]
    Instruction {
        /// Its name.
        platform: String,
        /// The section that it lacks.
        section: &'static str,
    },
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The kernel answers differently in two places.
    #[error(
        "the kernel answers differently at the {0} and at the {1}: does it keep something between calls, or wait for others?"
    )]
    Differs(Placement, Placement),
}

/// Runs the kernel in these placements of the platform. `progress` hears what comes next, and says whether to stop.
pub fn kernel_on<K: Kernel + Clone + 'static>(
    platform: &Platform,
    placements: &[Placement],
    user: &UserKernel<'_, K>,
    seed: u64,
    progress: &dyn Fn(&str) -> bool,
) -> Result<MeasuredRows<KernelRow, KernelError>, KernelError> {
    let spec = PairSpec::new(platform, 0, seed).map_err(ModelError::from)?.disturbed(platform, seed);
    let lacks = |section| KernelError::Instruction { platform: platform.name.clone(), section };
    let modelled = MeasuredRows::by(placements.len(), |rows: &mut Vec<KernelRow>| {
        for &placement in placements {
            spec.node.instruction(placement).map_err(lacks)?;
            if progress(&format!("at the {placement} of {}", platform.name)) {
                return Err(ModelError::Interrupted.into());
            }
            let row = measure(&spec, user, placement, platform)?;
            if let Some(other) = rows.first().filter(|other| other.digest != row.digest) {
                return Err(KernelError::Differs(other.placement, row.placement));
            }
            rows.push(row);
        }
        Ok(())
    });
    modelled.or_nothing()
}

fn measure<K: Kernel + Clone + 'static>(
    spec: &PairSpec,
    user: &UserKernel<'_, K>,
    placement: Placement,
    platform: &Platform,
) -> Result<KernelRow, KernelError> {
    // Memory of its own for each: a kernel may change it.
    let mut model = Modelled::with_kernel(spec, placement, (user.kernel.clone(), user.op))?;
    let mut data = KernelData::default();
    if let Some(bytes) = user.data {
        let region = model.pair().alloc((bytes.len() as u64).max(8)).map_err(ModelError::from)?;
        // In bounds: the region was made for them.
        let _ = region.write(region.va(), bytes);
        data = KernelData { key: region.key(), va: region.va(), len: bytes.len() as u64 };
    }
    let begin = || KernelCalls::new(user.op, data, user.params);
    let mut compared = begin();
    // The same calls in each place, from the first on.
    model.run_in_order(&mut compared, COMPARED)?;
    let (digest, status, failed) = compared.seen();
    let figures = [0, 1].map(|n| model.measure(&mut begin(), IN_FLIGHT[n], CALLS[n], &|| false));
    let [in_flight_1, in_flight_64] = figures;
    Ok(KernelRow {
        platform: platform.name.clone(),
        placement,
        status: status.code(),
        failed: failed.is_some(),
        digest,
        in_flight_1: in_flight_1?,
        in_flight_64: in_flight_64?,
    })
}

/// What came, in columns.
pub fn table(platform: &Platform, rows: &[KernelRow]) -> String {
    let mut out = String::new();
    wrap(&mut out, 0, "", &format!("On {}, modelled: {}", platform.name, platform.title));
    out += &row_head();
    // Who fails wins nothing, however quickly.
    let best = rows.iter().filter(|row| !row.failed).map(|row| row.in_flight_1.p50_ns).min().unwrap_or(0);
    for KernelRow { placement, in_flight_1, in_flight_64, .. } in rows {
        out += &row_text(*placement, in_flight_1.p50_ns == best, in_flight_1, in_flight_64);
    }
    for section in ["module.core", "module.logic"] {
        if let Some(param) = platform.params.get(&format!("{section}.instruction")) {
            let (low, high) = param.range;
            let _ = writeln!(
                out,
                "an instruction takes {} [{} to {}] ({section}; {}: {})",
                plural(param.value, "cycle"),
                low,
                high,
                param.status,
                param.source
            );
        }
    }
    out
}

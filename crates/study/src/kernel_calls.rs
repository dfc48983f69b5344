//! Calls of a user's kernel, and what they take in one placement of a node.

use std::cell::Cell;
use std::time::Duration;

use remora_kernel::{Placement, Status};
use remora_lab::stats::Latencies;
use remora_real::LinkKind;

use crate::StudyError;
use crate::calling::{Calling, Calls, Checked};
use crate::connection::Connection;
use crate::load::{self, Until};
use crate::measure::IN_FLIGHT;

/// Calls whose answers must be alike in all placements.
pub(crate) const COMPARED: u64 = 32;

/// Where the kernel's data lie on the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelData {
    /// Key of their region.
    pub key: u32,
    /// Their address.
    pub va: u64,
    /// Their length.
    pub len: u64,
}

/// Appends the parameters of the call of a number to the kernel's.
pub type Params<'a> = &'a dyn Fn(KernelData, u64, &mut Vec<u8>);

/// A kernel in one placement over one link.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelFigures {
    /// The way that packets took.
    pub link: LinkKind,
    /// Where it ran.
    pub place: Placement,
    /// Calls that were measured.
    pub calls: u64,
    /// The median latency of one call after the other.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// Calls a second with many under way.
    pub per_s: f64,
    /// Round trips that a call took.
    pub trips: f64,
    /// Of statuses and replies of the same calls in each place: replies must be alike.
    pub digest: u64,
    /// The first call's status.
    pub status: Status,
    /// How the first call that failed ended, if one did.
    pub failed: Option<Status>,
}

/// Whether a kernel failed: it did not end of itself, with an answer or a status of its own.
fn is_failure(status: Status) -> bool {
    !matches!(status, Status::Ok | Status::NotFound | Status::Other(_))
}

impl KernelFigures {
    /// Of a kernel that failed.
    pub fn failed(link: LinkKind, place: Placement, status: Status) -> Self {
        let (calls, p50_ns, p99_ns, per_s, trips, digest) = (0, 0, 0, 0.0, 0.0, 0);
        Self { link, place, calls, p50_ns, p99_ns, per_s, trips, digest, status, failed: Some(status) }
    }

    /// Measures the kernel `op`, which the node has deployed and the client too if that is where it runs.
    pub fn measure(
        connection: &mut dyn Connection,
        (op, data, params): (u64, KernelData, Params<'_>),
        placement: Placement,
        time: Duration,
        stop: &dyn Fn() -> bool,
    ) -> Result<Self, StudyError> {
        let begin = || KernelCalls::new(op, data, params);
        let nothing = |_, _, _| {};
        // The same calls in each place, and what they answered.
        let mut compared = begin();
        let calling = Calling::new(&mut *connection, &mut compared, placement);
        let ran = calling.run(1, Until::Begun(COMPARED), &mut { nothing }, stop);
        let (digest, status, mut failed) = compared.seen();
        // At the client an access is a verb, and its error says more than what the kernel made of it.
        if let Some(failed) = failed.filter(|_| ran.is_ok() || placement != Placement::Client) {
            // It has no figures that mean anything, and a node ends who is denied memory again and again.
            return Ok(Self { digest, status, ..Self::failed(connection.link(), placement, failed) });
        }
        ran?;
        let (before, mut latencies, mut one) = (connection.counts(), Latencies::new(), begin());
        // As many as compare at least, however long they take.
        for until in [Until::Begun(COMPARED), Until::time(time)] {
            let mut tally = |_, since, at| latencies.record(load::duration(at - since));
            Calling::new(&mut *connection, &mut one, placement).run(IN_FLIGHT[0], until, &mut tally, stop)?;
        }
        let trips = connection.counts().since(before).round_trips as f64 / latencies.count() as f64;
        let mut many = begin();
        let calling = Calling::new(&mut *connection, &mut many, placement).untimed();
        let ran = calling.run(IN_FLIGHT[1], Until::time(time), &mut { nothing }, stop)?;
        failed = failed.or(one.seen().2).or(many.seen().2);
        Ok(Self {
            link: connection.link(),
            place: placement,
            calls: ran.ended + latencies.count(),
            p50_ns: latencies.quantile(0.5),
            p99_ns: latencies.quantile(0.99),
            per_s: ran.ended as f64 / ran.elapsed.as_secs(),
            trips,
            digest,
            status,
            failed,
        })
    }
}

/// Calls of a kernel by number. Any answer is right; what they are is remembered.
pub(crate) struct KernelCalls<'a> {
    op: u64,
    data: KernelData,
    params: Params<'a>,
    next: u64,
    digest: Cell<u64>,
    first: Cell<Option<Status>>,
    failed: Cell<Option<Status>>,
}

impl<'a> KernelCalls<'a> {
    /// From the first on.
    pub(crate) fn new(op: u64, data: KernelData, params: Params<'a>) -> Self {
        // FNV-1a's basis.
        Self {
            op,
            data,
            params,
            next: 0,
            digest: Cell::new(0xcbf2_9ce4_8422_2325),
            first: Cell::new(None),
            failed: Cell::new(None),
        }
    }

    /// A digest of statuses and replies so far, the first status, and the first that is a failure.
    pub(crate) fn seen(&self) -> (u64, Status, Option<Status>) {
        (self.digest.get(), self.first.get().unwrap_or(Status::Ok), self.failed.get())
    }
}

impl Calls for KernelCalls<'_> {
    fn op(&self) -> u64 {
        self.op
    }

    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn params(&self, id: u64, params: &mut Vec<u8>) {
        (self.params)(self.data, id, params);
    }

    fn check(&self, _: u64, status: Status, reply: &[u8]) -> Result<Checked, String> {
        self.first.set(self.first.get().or(Some(status)));
        self.failed.set(self.failed.get().or(Some(status).filter(|&status| is_failure(status))));
        let step = |digest: u64, byte: &u8| (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        self.digest.set(std::iter::once(&status.code()).chain(reply).fold(self.digest.get(), step));
        Ok(Checked::RIGHT)
    }
}

//! Readers of one node each, who ask whether it answers or not: so there is always a request that was made while it stood
//! still.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use remora_cluster::{Op, Ticket};
use remora_storm::engine::{Action, End};
use remora_storm::history::Record;

use super::check::end_of;
use super::clients::Shared;
use super::{Crowd, Random};
use crate::StudyError;

/// Between two reads.
const EVERY: Duration = Duration::from_millis(10);
/// Reads under way.
const WINDOW: usize = 200;
/// Their names begin here. Each read has its own, as several are under way.
pub(super) const FIRST: u64 = 1 << 59;

impl Shared {
    /// Reads at one node until it is to stop. What is under way then has no known outcome.
    pub(super) fn watch_at(&self, node: usize) -> Result<(), StudyError> {
        let mut client = self.client(&[node], false)?;
        let mut random = Random(self.seed ^ FIRST ^ node as u64);
        let mut open: HashMap<Ticket, (usize, u64)> = HashMap::new();
        while !self.stop.load(Ordering::Relaxed) {
            if open.len() < WINDOW {
                let (key, number) = (self.key(&mut random), self.number());
                let called = self.now();
                let ticket = client.submit(Op::Get(key));
                let (client, action, end) = (FIRST | number, Action::Get, End::Unknown);
                let record =
                    Record { client, number, key: key as u32, action, scope: number, called, returned: 0, end };
                open.insert(ticket, (self.history().call(record), key));
            }
            let until = Instant::now() + EVERY;
            while Instant::now() < until {
                let mut wrong = Ok(());
                client.poll(&mut |done| {
                    let Some((index, key)) = open.remove(&done.ticket) else { return };
                    match end_of(key, Action::Get, &done.outcome) {
                        Ok(end) => self.history().end(index, self.now(), end),
                        Err(why) => wrong = Err(StudyError::Failed(why)),
                    }
                });
                wrong?;
                client.wait(Duration::from_millis(1));
            }
        }
        Ok(())
    }
}

//! Regions that hold what is true for as long as their owner has a lease: READs of them are answered by a reading of the clock
//! that was made after they had come, and within the lease.

use crate::common::{CLEAN, Pair, Setup};
use remora_memory::Access;
use remora_nic::*;

/// A READ of `len` bytes comes to a region whose lease ends at 1,000, and then the clock says what `reading` does. What the
/// READ ends with, for as many as are made one after the other.
fn reads(len: usize, reading: impl Fn(usize) -> Option<u64>, count: usize) -> Vec<(u64, WcStatus)> {
    let mut p = Pair::new(1, CLEAN, Setup::default());
    let region = p.b.register(0, 8192, Access::REMOTE_READ);
    region.lease_until(1000);
    for index in 0..count {
        let list = [p.a.sge(1 << 19, len)];
        let op = SendOp::Read { va: region.va(), rkey: region.key() };
        p.a.send(&SendWr::new(index as u64, op, Data::List(&list)));
        assert!(!p.b.nic.awaits_clock());
        // It arrives.
        p.step();
        assert!(p.b.nic.awaits_clock());
        if let Some(now) = reading(index) {
            p.b.nic.clock_reads(&Now::simulated(now));
        }
        p.run(1000);
        if p.a.state() != QpState::Rts {
            break;
        }
    }
    p.a.statuses()
}

#[test]
fn a_read_is_answered_within_the_lease_by_the_clock_as_it_was_after_it_came() {
    for len in [8, 1024, 5000] {
        let within = reads(len, |_| Some(999), 2);
        assert_eq!(within, [(0, WcStatus::Success), (1, WcStatus::Success)], "{len} bytes");
        assert_eq!(reads(len, |_| Some(1000), 1), [(0, WcStatus::RemoteAccess)], "{len} bytes");
        assert_eq!(reads(len, |_| None, 1), [(0, WcStatus::RemoteAccess)], "{len} bytes, no reading");
        // A reading is good for what came before it.
        let first = |index| (index == 0).then_some(999);
        let ends = [(0, WcStatus::Success), (1, WcStatus::RemoteAccess)];
        assert_eq!(reads(len, first, 2), ends, "{len} bytes, a reading from before");
    }
}

#[test]
fn a_lease_can_be_made_longer_and_regions_without_one_need_no_reading() {
    let mut p = Pair::new(1, CLEAN, Setup::default());
    let region = p.b.register(0, 64, Access::REMOTE_READ);
    assert_eq!(region.lease(), None);
    for (id, lease) in [(0, None), (1, Some(1000)), (2, Some(u64::MAX))] {
        lease.into_iter().for_each(|until| region.lease_until(until));
        let list = [p.a.sge(1 << 19, 64)];
        p.a.send(&SendWr::new(id, SendOp::Read { va: region.va(), rkey: region.key() }, Data::List(&list)));
        p.step();
        assert_eq!(p.b.nic.awaits_clock(), lease.is_some());
        p.b.nic.clock_reads(&Now::simulated(999));
        p.run(1000);
    }
    assert_eq!(p.a.statuses().iter().filter(|(_, status)| *status == WcStatus::Success).count(), 3);
}

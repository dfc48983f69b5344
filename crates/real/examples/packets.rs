//! Drives two NICs over shared memory with one thread, for profilers that count instructions: nothing here waits for another core.
//!
//! `cargo run --release -p remora-real --example packets -- write|read|pong|idle [COUNT [IN_FLIGHT]]`
//!
//! `write` and `read` move 64 B, as many under way as said; `pong` sends one WRITE there and one back; `idle` only polls.

use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;

use remora_memory::{Access, Buffer, Region};
use remora_nic::{
    ALL_REMOTE, CqId, Data, Nic, NicError, QpInit, QpType, Qpn, Route, RtrAttr, RtsAttr, SendOp, SendWr, Sge,
};
use remora_real::{Device, LinkKind};
use remora_wire::Psn;

/// Bytes of a message, and messages that a region has room for.
const LEN: usize = 64;
const SLOTS: usize = 64;

struct End {
    device: Device,
    cq: CqId,
    qp: Qpn,
    region: Arc<Region>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default| args.get(at).map_or(Ok(default), |arg| arg.parse::<usize>());
    let (what, count, depth) = (args.first().map_or("write", String::as_str), number(1, 1_000_000)?, number(2, 64)?);
    let [a, b] = pair()?;
    let start = a.device.now();
    match what {
        "idle" => (0..count).for_each(|_| _ = a.device.lock().progress()),
        "pong" => {
            for _ in 0..count {
                for (from, to) in [(&a, &b), (&b, &a)] {
                    let mut guard = from.device.lock();
                    post(guard.nic(), from, to, (what, 0))?;
                    guard.progress();
                    drop(guard);
                    while to.device.lock().progress() == 0 {}
                }
            }
        }
        "read" | "write" => {
            let (mut posted, mut done) = (0, 0);
            while done < count {
                let mut guard = a.device.lock();
                while posted < count && posted - done < depth {
                    post(guard.nic(), &a, &b, (what, posted))?;
                    posted += 1;
                }
                guard.progress();
                while guard.nic().poll_cq(a.cq).is_some() {
                    done += 1;
                }
                drop(guard);
                b.device.lock().progress();
            }
        }
        other => return Err(format!("{other:?}: write, read, pong or idle").into()),
    }
    println!("{what}: {:.1} ns each", (a.device.now() - start) as f64 / count as f64);
    Ok(())
}

fn post(nic: &mut Nic, from: &End, to: &End, (what, number): (&str, usize)) -> Result<(), NicError> {
    let offset = (LEN * (number % SLOTS)) as u64;
    let (va, rkey) = (to.region.va() + offset, to.region.key());
    let op = if what == "read" { SendOp::Read { va, rkey } } else { SendOp::Write { va, rkey } };
    let sges = [Sge { va: from.region.va() + offset, len: LEN as u32, lkey: from.region.key() }];
    let wr = SendWr::new(number as u64, op, Data::List(&sges));
    nic.post_send(from.qp, &if what == "pong" { wr.unsignaled() } else { wr })
}

fn pair() -> Result<[End; 2], Box<dyn Error>> {
    let ips: [IpAddr; 2] = ["127.0.9.1".parse()?, "127.0.9.2".parse()?];
    let (mut first, second) = (LinkKind::Shm.bind(ips[0])?, LinkKind::Shm.bind(ips[1])?);
    first.reach(ips[1])?;
    let end = |ip, link| -> Result<End, Box<dyn Error>> {
        let device = Device::new(ip, vec![link], None)?;
        device.keep(true);
        let mut guard = device.lock();
        let nic = guard.nic();
        let pd = nic.registry().alloc_pd();
        let buffer = Buffer::lendable(LEN * SLOTS)?;
        let region = nic.registry().register(pd, &buffer, 0, LEN * SLOTS, None, Access::LOCAL_WRITE | ALL_REMOTE)?;
        let cq = nic.create_cq(1024)?;
        let qp = nic.create_qp(QpInit { max_send_wr: 1024, ..QpInit::new(QpType::Rc, pd, cq, cq) })?;
        nic.to_init(qp, ALL_REMOTE, 0)?;
        drop(guard);
        Ok(End { device, cq, qp, region })
    };
    let ends = [end(ips[0], first)?, end(ips[1], second)?];
    for (me, peer) in [(0, 1), (1, 0)] {
        let (route, psn) = (Route { local: ips[me], remote: ips[peer], link: 0 }, Psn::new(1));
        let (path_mtu, dest_qp) = (4096, ends[peer].qp.0);
        let rtr = RtrAttr { route, dest_qp, rq_psn: psn, path_mtu, max_dest_rd_atomic: 64, min_rnr_timer: 1 };
        let mut guard = ends[me].device.lock();
        guard.nic().to_rtr(ends[me].qp, rtr)?;
        guard
            .nic()
            .to_rts(ends[me].qp, RtsAttr { sq_psn: psn, timeout: 20, max_rd_atomic: 64, ..RtsAttr::default() })?;
    }
    Ok(ends)
}

//! Drives two NICs over shared memory, or another link, with one thread, for profilers that count instructions: nothing here waits for another core.
//!
//! `cargo run --release -p remora-real --example packets -- write|read|pong|idle [COUNT [IN_FLIGHT [shm|udp]]]`
//!
//! `write` and `read` move 64 B, as many under way as said, of READs 16 at most; `pong` sends one WRITE there and one back;
//! `idle` only polls.

#[path = "../tests/common/end.rs"]
mod end;

use std::error::Error;
use std::net::IpAddr;

use end::End;
use remora_memory::Buffer;
use remora_nic::{Data, Nic, NicError, RtsAttr, SendOp, SendWr};
use remora_real::LinkKind;

/// Bytes of a message, and messages that a region has room for.
const LEN: usize = 64;
const SLOTS: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default| args.get(at).map_or(Ok(default), |arg| arg.parse::<usize>());
    let (what, count, depth) = (args.first().map_or("write", String::as_str), number(1, 1_000_000)?, number(2, 64)?);
    let [a, b] = pair(args.get(3).map_or(Ok(LinkKind::Shm), |arg| arg.parse())?)?;
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
    let offset = LEN * (number % SLOTS);
    let (va, rkey) = (to.region.va() + offset as u64, to.region.key());
    let op = if what == "read" { SendOp::Read { va, rkey } } else { SendOp::Write { va, rkey } };
    let sges = [from.sge(offset, LEN)];
    let wr = SendWr::new(number as u64, op, Data::List(&sges));
    nic.post_send(from.qp, &if what == "pong" { wr.unsignaled() } else { wr })
}

fn pair(kind: LinkKind) -> Result<[End; 2], Box<dyn Error>> {
    let ips: [IpAddr; 2] = ["127.0.9.1".parse()?, "127.0.9.2".parse()?];
    let (mut first, second) = (kind.bind(ips[0])?, kind.bind(ips[1])?);
    first.reach(ips[1])?;
    let end = |ip, link| -> Result<End, Box<dyn Error>> {
        let end = End::new(ip, link, Buffer::lendable(LEN * SLOTS)?, None);
        end.device.keep(true);
        Ok(end)
    };
    let [a, b] = [end(ips[0], first)?, end(ips[1], second)?];
    // A profiler makes all slow: what takes long is not lost.
    let patient = RtsAttr { timeout: 20, max_rd_atomic: 16, ..RtsAttr::default() };
    a.join_as(a.qp, &b, b.qp, patient);
    b.join_as(b.qp, &a, a.qp, patient);
    Ok([a, b])
}

//! Every built-in kernel in every place of the modelled world.

#[path = "../../kernel/tests/common/examples.rs"]
mod examples;

use examples::{ROOM, example, is_right, status_at};
use remora_kernel::{BUILTINS, Input, Placement, Status};
use remora_model::platform::Platform;
use remora_model::world::{Pair, PairSpec};

#[test]
fn every_built_in_kernel_answers_in_every_place() {
    let platform = Platform::load("rambda").unwrap();
    for kernel in BUILTINS {
        for placement in Placement::ALL {
            // Where the NIC serves no calls, payload goes to the host.
            let rpc_place = if placement == Placement::Client { Placement::Nic } else { placement };
            let spec = PairSpec { rpc_place, ..PairSpec::new(&platform, 0, 7).unwrap() };
            let mut pair = Pair::new(&spec).unwrap();
            let region = pair.alloc(ROOM as u64).unwrap();
            let call = example(kernel.op, region.key(), region.va());
            region.write(region.va(), &call.memory).unwrap();
            match &call.payload {
                Some(payload) => {
                    assert_ne!(kernel.input, Input::Memory, "{}", kernel.name);
                    let from = pair.client_memory(payload.len() as u64).unwrap();
                    from.write(from.va(), payload).unwrap();
                    let payload = (&from, from.va(), payload.len() as u32);
                    pair.submit_stream(kernel.op, &call.params, payload, 0).unwrap();
                }
                None => pair.submit(placement, kernel.op, &call.params, 0).unwrap(),
            }
            let mut came = None;
            assert!(pair.poll(&mut |done| came = Some((done.status, done.reply.to_vec()))).unwrap());
            let (status, reply) = came.unwrap();
            assert_eq!(status, status_at(kernel.op, placement), "{} at the {placement}", kernel.name);
            if status != Status::Ok {
                continue;
            }
            assert!(is_right(kernel.op, &reply, &call), "{} at the {placement}: {reply:?}", kernel.name);
            let (at, written) = &call.written;
            let mut there = vec![0; written.len()];
            region.read(region.va() + *at as u64, &mut there).unwrap();
            assert!(there == *written, "{} at the {placement}", kernel.name);
        }
    }
}

#[test]
fn a_kernel_that_reads_a_stream_is_known_where_none_comes() {
    let spec = PairSpec::new(&Platform::load("rambda").unwrap(), 0, 7).unwrap();
    for kernel in BUILTINS {
        for placement in [Placement::Client, Placement::Host] {
            let mut pair = Pair::new(&spec).unwrap();
            pair.submit(placement, kernel.op, &[], 0).unwrap();
            let mut status = None;
            assert!(pair.poll(&mut |done| status = Some(done.status)).unwrap());
            assert_ne!(status, Some(Status::UnknownOp), "{} at the {placement}", kernel.name);
        }
    }
}

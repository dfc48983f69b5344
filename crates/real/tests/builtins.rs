//! Every built-in kernel in every place of the real world.

#[path = "../../kernel/tests/common/examples.rs"]
mod examples;

use std::net::{IpAddr, Ipv4Addr};

use examples::{ROOM, example, is_right, status_at};
use remora_kernel::{BUILTINS, Placement, Status};
use remora_real::{Client, ClientConfig, Node, NodeConfig};

fn address(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 15, 77, last))
}

#[test]
fn every_built_in_kernel_answers_in_every_place() {
    let _node = Node::start(NodeConfig { memory_limit: 64 << 20, ..NodeConfig::new(address(1)) }).expect("node");
    let mut client = Client::connect(ClientConfig::new(address(1), address(2))).expect("connection");
    for kernel in BUILTINS {
        for placement in Placement::REAL {
            let region = client.alloc(ROOM as u64).expect("memory");
            let call = example(kernel.op, region.key, region.va);
            client.write(&region, 0, &call.memory).expect("write");
            let (status, reply) = match &call.payload {
                // Payload goes to the NIC; elsewhere the kernel is known, and has nothing to read.
                Some(_) if placement != Placement::Nic => {
                    let (status, _) = client.call(placement, kernel.op, &call.params).expect("call");
                    assert_ne!(status, Status::UnknownOp, "{} at the {placement}", kernel.name);
                    continue;
                }
                Some(payload) => client.call_stream(kernel.op, &call.params, payload).expect("call"),
                None => client.call(placement, kernel.op, &call.params).expect("call"),
            };
            assert_eq!(status, status_at(kernel.op, placement), "{} at the {placement}", kernel.name);
            if status != Status::Ok {
                continue;
            }
            assert!(is_right(kernel.op, &reply, &call), "{} at the {placement}: {reply:?}", kernel.name);
            let (at, written) = &call.written;
            let mut there = vec![0; written.len()];
            client.read(&region, *at as u64, &mut there).expect("read");
            assert!(there == *written, "{} at the {placement}", kernel.name);
        }
    }
}

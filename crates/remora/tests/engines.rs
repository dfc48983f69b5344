//! A node of several engines, and a client of several threads at one address.

use std::thread;

use remora::{Client, Error, LinkKind, Node, UdpPort};

#[test]
fn threads_of_one_address_have_a_client_each() {
    let node = Node::builder().engines(2).cores([0, 1]).memory_limit(16 << 20).bind_local().expect("node");
    // Addresses of 127.0.0.0/8 that nobody uses; a machine on a network has one.
    let ports =
        remora_real::at_free_loopback(|local| UdpPort::bind(local, 2).map_err(Error::link(LinkKind::Udp, local)));
    let ports = ports.expect("ports");
    let address = node.address();
    let sums = thread::scope(|scope| {
        let threads: Vec<_> = ports
            .into_iter()
            .map(|port| {
                scope.spawn(move || {
                    let mut client = Client::builder().port(port).connect(address).expect("connection");
                    let region = client.alloc(4096).expect("memory");
                    client.write(&region, 0, &[3; 4096]).expect("write");
                    let mut seen = [0; 4096];
                    client.read(&region, 0, &mut seen).expect("read");
                    seen.iter().map(|&byte| u32::from(byte)).sum::<u32>()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
    });
    assert_eq!(sums, [3 * 4096; 2]);
}

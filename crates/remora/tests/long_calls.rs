//! Calls by rings whose parameters and replies are longer than a message, over both links and at both places.

use remora::{AsyncClient, Client, Error, KvGet, KvShape, KvWrite, LinkKind, Node, Placement, RingShape, TypedCall};
use remora::{KvStore, Status};

fn value(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 253 + len) as u8).collect()
}

/// Kernel 0xffff0000, which there is not, with so many bytes of parameters.
#[derive(Clone, Copy, Debug)]
struct Nothing(usize);

impl TypedCall for Nothing {
    type Reply = Status;

    fn op(&self) -> u64 {
        0xffff_0000
    }

    fn encode(&self, params: &mut Vec<u8>) {
        params.resize(self.0, 0);
    }

    fn decode(&self, status: Status, _: &[u8]) -> Option<Status> {
        Some(status)
    }
}

#[test]
fn values_of_a_megabyte_go_in_one_call_and_come_in_one_reply() {
    let node = Node::local().unwrap();
    let mut owner = Client::connect(node.address()).unwrap();
    let store = owner.create_store(&KvShape { pairs: 64, key_bytes: 8, value_bytes: 1 << 20 }).unwrap();
    let shape = RingShape::new(1024, 4096).unwrap();
    let (place, address) = (store.place(), node.address());
    std::thread::scope(|scope| {
        for (n, link) in [LinkKind::Shm, LinkKind::Udp].into_iter().enumerate() {
            for (m, at) in [Placement::Nic, Placement::Host].into_iter().enumerate() {
                scope.spawn(move || {
                    let store = KvStore::open(place);
                    let mut client = Client::builder().link(link).rings(shape).connect(address).unwrap();
                    client.open_rings(at).unwrap();
                    let lengths = [1 << 20, 70_000, 200_000, 999_999, 8, 300_000, 131_072];
                    let pairs = Vec::from_iter(lengths.map(|len| (format!("{n} {m} {len}"), value(len))));
                    for _ in 0..3 {
                        let puts = Vec::from_iter(pairs.iter().map(|(key, value)| {
                            let put = KvWrite::put(&store, key.as_str(), value).unwrap();
                            client.at(at).submit(put)
                        }));
                        puts.into_iter().for_each(|put| assert!(client.wait(put).unwrap(), "{link:?} {at}"));
                        let gets = Vec::from_iter(pairs.iter().map(|(key, _)| {
                            let get = KvGet::new(&store, key.as_str()).unwrap();
                            client.at(at).submit(get)
                        }));
                        for (get, (key, value)) in gets.into_iter().zip(&pairs) {
                            assert!(client.wait(get).unwrap().as_ref() == Some(value), "{key} {link:?} {at}");
                        }
                    }
                });
            }
        }
    });
}

#[test]
fn who_calls_with_more_than_fits_is_told_how_much_does() {
    let node = Node::local().unwrap();
    let mut client = Client::builder().rings(RingShape::new(64, 4096).unwrap()).connect(node.address()).unwrap();
    let told = |error: Error, most: usize| match error {
        Error::TooLong { op: 0xffff_0000, len, most: told, .. } => assert_eq!((len, told), (most + 1, most)),
        error => panic!("{error}"),
    };
    let message = 4096 - 32;
    told(client.at(Placement::Host).call(Nothing(message + 1)).unwrap_err(), message);
    client.open_rings(Placement::Host).unwrap();
    let ring = (256 << 10) - 25;
    told(client.at(Placement::Host).call(Nothing(ring + 1)).unwrap_err(), ring);
    // Where the place is chosen, what may run at the client may have any length.
    assert_eq!(client.auto().call(Nothing(ring + 1)).unwrap(), Status::UnknownOp);
    let store = client.create_store(&KvShape { pairs: 64, key_bytes: 8, value_bytes: 64 }).unwrap();
    let put = |value: &[u8], client: &mut Client| client.auto().call(KvWrite::put(&store, "key", value).unwrap());
    assert!(put(&value(200_000), &mut client).unwrap());
    assert!(matches!(put(&value(300_000), &mut client), Err(Error::TooLong { most, .. }) if most == ring));
    assert_eq!(client.at(Placement::Host).call(Nothing(ring)).unwrap(), Status::UnknownOp);
    assert_eq!(client.auto().call(Nothing(ring)).unwrap(), Status::UnknownOp);

    // Rings may be longer than any call.
    client.close_rings(Placement::Host).unwrap();
    let mut client = Client::builder().rings(RingShape::new(8192, 4096).unwrap()).connect(node.address()).unwrap();
    client.open_rings(Placement::Nic).unwrap();
    let error = client.at(Placement::Nic).call(Nothing(remora::MAX_RING_MESSAGE + 1)).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("16777217 bytes of parameters for kernel 0xffff0000 at the nic"), "{text}");
    told(error, remora::MAX_RING_MESSAGE);
    assert_eq!(client.at(Placement::Nic).call(Nothing(remora::MAX_RING_MESSAGE)).unwrap(), Status::UnknownOp);

    // Threads that share a client hear the same, and so do tasks.
    let shared = Client::connect(node.address()).unwrap().share(Placement::Nic).unwrap();
    let ring = (128 << 10) - 25;
    told(shared.at().call(Nothing(ring + 1)).unwrap_err(), ring);
    assert_eq!(shared.at().call(Nothing(ring)).unwrap(), Status::UnknownOp);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let client = AsyncClient::connect(node.address()).await.unwrap();
        told(client.at(Placement::Host).call(Nothing(message + 1)).await.unwrap_err(), message);
    });
}

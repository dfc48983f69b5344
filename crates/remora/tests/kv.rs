//! A key-value store and a table of embeddings as programs use them.

use remora::{
    Client, Element, EmbeddingShape, KvShape, KvStore, KvWrite, LinkKind, Node, Placement, Reduce, Reduction,
    RemoteRegion, Status,
};

/// A value that says how it goes on.
fn value(writer: u8, number: u32, len: usize) -> Vec<u8> {
    let mut out = [&[writer][..], &number.to_le_bytes(), &(len as u32).to_le_bytes()].concat();
    out.resize(len.max(9), writer ^ number as u8);
    out
}

fn is_whole(found: &[u8]) -> bool {
    let word = |at: usize| u32::from_le_bytes(*found[at..].first_chunk().unwrap());
    found == value(found[0], word(1), word(5) as usize)
}

#[test]
fn clients_that_write_the_same_pairs_of_any_length_read_whole_ones() {
    let node = Node::builder().memory_limit(256 << 20).bind_local().unwrap();
    let mut owner = Client::connect(node.address()).unwrap();
    let store = owner.create_store(&KvShape { pairs: 64, key_bytes: 8, value_bytes: 64 << 10 }).unwrap();
    let keys: Vec<String> = (0..12).map(|n| format!("key {n}")).collect();
    std::thread::scope(|scope| {
        for writer in 0..3u8 {
            let (store, keys, address) = (store.place(), &keys, node.address());
            scope.spawn(move || {
                let mut client = Client::connect(address).unwrap();
                if writer == 1 {
                    client.open_rings(Placement::Nic).unwrap();
                }
                let mut store = KvStore::open(store);
                for number in 0..120 {
                    let key = &keys[(number as usize * 5 + usize::from(writer) * 3) % keys.len()];
                    store.run_at(Placement::REAL[(number as usize + usize::from(writer)) % 3]);
                    let len = [20, 3_000, 30_000, 90_000][number as usize / 3 % 4];
                    match number % 3 {
                        0 => store.put(&mut client, key, value(writer, number, len)).unwrap(),
                        1 if number % 9 == 1 => _ = store.remove(&mut client, key).unwrap(),
                        1 => _ = store.update(&mut client, key, value(writer, number, len)).unwrap(),
                        _ => {
                            let found = store.get(&mut client, key).unwrap();
                            assert!(found.is_none_or(|found| is_whole(&found)), "{key} by {writer} in {number}");
                        }
                    }
                }
            });
        }
    });
    // Nobody writes any more: each place says the same.
    let mut store = store;
    for key in &keys {
        let found = Placement::REAL.map(|place| {
            store.run_at(place);
            store.get(&mut owner, key).unwrap()
        });
        assert!(found[0] == found[1] && found[1] == found[2] && found[0].as_ref().is_none_or(|found| is_whole(found)));
        store.put(&mut owner, key, "end").unwrap();
        assert_eq!(store.get(&mut owner, key).unwrap().as_deref(), Some(&b"end"[..]));
    }
}

#[test]
fn what_is_too_long_or_has_no_room_is_refused_with_a_reason() {
    let node = Node::builder().memory_limit(32 << 20).bind_local().unwrap();
    let mut client = Client::connect(node.address()).unwrap();
    let store = client.create_store(&KvShape { pairs: 1, key_bytes: 8, value_bytes: 8 }).unwrap();
    let refused = |e: remora::Error| e.to_string();
    assert_eq!(store.get(&mut client, [0; 5000]).map_err(refused), Err("a key of 5000 bytes: the most is 4096".into()));
    let long = store.put(&mut client, "key", vec![0; (1 << 20) + 1]).map_err(refused);
    assert_eq!(long, Err("a value of 1048577 bytes: the most is 1048576".into()));
    let full = (0..100).find_map(|n: u32| store.put(&mut client, n.to_le_bytes(), vec![1; 200_000]).err());
    assert!(full.unwrap().to_string().contains("its memory is used up"));
    // A write cannot run at the client: who says so by hand is told.
    let write = KvWrite::put(&store, "key", "value").unwrap();
    let refused = client.at(Placement::Client).call(write).unwrap_err();
    assert!(matches!(refused, remora::Error::Kernel { status: Status::Other(25), .. }), "{refused}");
    let bad = EmbeddingShape { items: 5, dim: 7, element: Element::F16 };
    let refused = client.load_embeddings(&bad, None, |_, _| ()).unwrap_err();
    assert_eq!(refused.to_string(), "rows of 7 numbers: a multiple of 8 from 16 to 256");
}

#[test]
fn keys_are_as_long_as_is_said_at_every_place() {
    let node = Node::local().unwrap();
    let mut client = Client::builder().link(LinkKind::Udp).connect(node.address()).unwrap();
    let mut store = client.create_store(&KvShape { pairs: 64, key_bytes: 4000, value_bytes: 4000 }).unwrap();
    let mut check = |client: &mut Client, key_len: usize| {
        for place in Placement::REAL {
            store.run_at(place);
            let key = vec![key_len as u8; key_len];
            for value_len in [0, 10, 3_000, 90_000] {
                let value = value(place as u8, 7, value_len);
                store.put(client, &key, &value)?;
                assert_eq!(store.get(client, &key)?, Some(value));
            }
            assert!(store.update(client, &key, "short")? && store.remove(client, &key)?);
            assert!(!store.update(client, &key, vec![1; 90_000])? && store.get(client, &key)?.is_none());
        }
        remora::Result::Ok(())
    };
    for key_len in [0, 800, 1000, 2000, 4016] {
        check(&mut client, key_len).unwrap();
    }
    let refused = check(&mut client, 4017).unwrap_err().to_string();
    assert!(refused.contains("a key of 4017 bytes without rings: the most is 4016; open rings"), "{refused}");
    client.open_rings(Placement::Host).unwrap();
    [4017, 4096].into_iter().for_each(|key_len| check(&mut client, key_len).unwrap());
}

#[test]
fn embeddings_are_reduced_alike_in_every_place_and_by_rings() {
    let node = Node::local().unwrap();
    let mut client = Client::connect(node.address()).unwrap();
    let shape = EmbeddingShape { items: 3000, dim: 64, element: Element::F32 };
    let number = |item: u32, at: usize| (item * 7 % 100) as f32 + at as f32;
    let table = client
        .load_embeddings(&shape, None, |item, row| {
            row.iter_mut().enumerate().for_each(|(at, to)| *to = number(item, at));
        })
        .unwrap();
    let items: Vec<u32> = (0..2000).map(|n| n * 13 % 3000).collect();
    client.open_rings(Placement::Host).unwrap();
    for (place, count) in [(Placement::Client, 2000), (Placement::Nic, 200), (Placement::Host, 2000)] {
        let items = &items[..count];
        let sum = client.at(place).call(Reduce::new(&table, Reduction::Sum, items).unwrap()).unwrap();
        let expected: Vec<f32> = (0..64).map(|at| items.iter().map(|item| number(*item, at)).sum()).collect();
        assert_eq!(sum, expected, "{place}");
    }
    assert!(Reduce::new(&table, Reduction::Sum, &[3000]).is_err());
}

/// Made for a few pairs, it takes many, and some long ones; a client with its first place finds them, by READs as well.
#[test]
fn a_store_takes_more_than_it_was_made_for() {
    let node = Node::builder().memory_limit(512 << 20).bind_local().unwrap();
    let mut client = Client::connect(node.address()).unwrap();
    let store = client.create_store(&KvShape { pairs: 16, key_bytes: 16, value_bytes: 64 }).unwrap();
    let first = store.place();
    let value = |n: u32| vec![n as u8; 20 + n as usize % 300];
    for n in 0..6000u32 {
        store.put(&mut client, n.to_le_bytes(), value(n)).unwrap();
    }
    let long = |n: u8| vec![n; 1 << 20];
    for n in 0..20 {
        store.put(&mut client, [n, 1, 2, 3, 4], long(n)).unwrap();
    }
    store.look(&mut client).unwrap();
    assert!(store.place().at().table.lg_buckets > 6 && first.len() < 10 << 20, "{:?}", store.place());
    let mut other = Client::connect(node.address()).unwrap();
    for (place, told) in [(Placement::Client, first), (Placement::Host, store.place())] {
        let mut theirs = KvStore::open(told);
        theirs.run_at(place);
        for n in (0..6000u32).step_by(7) {
            assert_eq!(theirs.get(&mut other, n.to_le_bytes()).unwrap(), Some(value(n)));
        }
        for n in 0..20 {
            assert!(theirs.get(&mut other, [n, 1, 2, 3, 4]).unwrap() == Some(long(n)));
        }
        assert_eq!(theirs.get(&mut other, "none").unwrap(), None);
    }
    assert!(store.remove(&mut client, 5u32.to_le_bytes()).unwrap());
    // Without any memory left it says so, and has all it had.
    let refused = (0..600u32).find_map(|n| store.put(&mut client, (n << 8 | 250).to_be_bytes(), long(3)).err());
    assert!(refused.expect("no more than its node has").to_string().contains("--memory"));
    assert_eq!(store.get(&mut client, 6u32.to_le_bytes()).unwrap(), Some(value(6)));
}

#[test]
fn a_store_whose_maker_is_gone_says_so_and_its_users_keep_their_connections() {
    let node = Node::local().unwrap();
    let mut maker = Client::connect(node.address()).unwrap();
    let store = maker.create_store(&KvShape { pairs: 16, key_bytes: 8, value_bytes: 8 }).unwrap();
    let mut client = Client::connect(node.address()).unwrap();
    let theirs = KvStore::open(store.place());
    theirs.put(&mut client, "key", "value").unwrap();
    drop(maker);
    // Once those are gone that it knows of, and for one that has not looked yet.
    for theirs in [theirs, KvStore::open(store.place())] {
        let refused =
            remora_testing::eventually("its memory is gone", || theirs.put(&mut client, "key", "value").err());
        assert!(refused.to_string().contains("its memory is gone"), "{refused}");
        client.alloc(4096).expect("the connection stands");
    }
}

/// Whoever may write to a store may spoil it, and holds up nobody by that who reads it by READs.
#[test]
fn a_store_whose_buckets_lead_in_circles_is_refused() {
    let node = Node::local().unwrap();
    let mut client = Client::connect(node.address()).unwrap();
    let mut store = client.create_store(&KvShape { pairs: 1, key_bytes: 8, value_bytes: 8 }).unwrap();
    let place = store.place().place();
    let region = RemoteRegion { va: place.va, key: place.key, len: 8192 };
    // Eight buckets, each of which leads to one of them; then one that says that its pairs are where it is.
    for word in [4096u64, 1 << 62 | 1 << 8] {
        let bucket = [[0; 56].as_slice(), &word.to_le_bytes()].concat();
        client.write(&region, 4096, &bucket.repeat(8)).unwrap();
        // Of a key that is too long for a call to the NIC without rings, and of a short one.
        for key_len in [4000, 4] {
            for at in Placement::REAL {
                store.run_at(at);
                let refused = store.get(&mut client, vec![1; key_len]).unwrap_err().to_string();
                let says = ["somebody has written over it", "others write the same pair"];
                assert!(says.iter().any(|says| refused.contains(says)), "{word:x} {at}: {refused}");
            }
        }
    }
}

//! Clusters of nodes in this process, over the links that processes use.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use remora_cluster::{
    ClusterClient, ClusterClientConfig, ClusterNode, ClusterNodeConfig, LogKind, Model, Op, Outcome, Refusal,
    client_secret,
};
use remora_kernel::Placement;
use remora_real::LinkKind;
use remora_testing::eventually;

/// How a test's nodes differ from the usual ones.
type Change = fn(&mut ClusterNodeConfig);

/// A cluster, and the directory that it lives in.
struct Cluster {
    dir: tempfile::TempDir,
    addresses: Vec<IpAddr>,
    link: LinkKind,
    nodes: Vec<Option<ClusterNode>>,
    change: Change,
}

impl Cluster {
    fn start(net: u8, count: u8, link: LinkKind, change: Change) -> Self {
        let addresses = (0..count).map(|n| Ipv4Addr::new(127, 13, net, 1 + n).into()).collect();
        let nodes = (0..count).map(|_| None).collect();
        let mut cluster = Self { dir: tempfile::tempdir().expect("directory"), addresses, link, nodes, change };
        (0..count).for_each(|id| cluster.start_node(id));
        cluster
    }

    fn start_node(&mut self, id: u8) {
        let dir = self.dir.path().join(id.to_string());
        std::fs::create_dir_all(&dir).expect("directory");
        let mut config = ClusterNodeConfig::new(id, self.addresses.clone(), dir, [9; 32]);
        config.link = self.link;
        (self.change)(&mut config);
        self.nodes[usize::from(id)] = Some(ClusterNode::start(config).expect("node"));
    }

    fn client(&self, node: usize) -> ClusterClient {
        ClusterClient::connect(ClusterClientConfig { node, ..self.clients() }).expect("connection")
    }

    /// How clients connect. On a busy machine connections break and nodes are left out for a while: requests are made again.
    fn clients(&self) -> ClusterClientConfig {
        let (secret, timeout) = (Some(client_secret(&[9; 32])), Duration::from_secs(30));
        let usual = ClusterClientConfig::new(self.addresses.clone());
        ClusterClientConfig { link: self.link, secret, timeout, retry: true, ..usual }
    }
}

fn value(bytes: &[u8]) -> Outcome {
    Outcome::Value(Some(bytes.into()))
}

#[test]
fn a_cluster_serves_at_any_node_in_every_deployment() {
    let cases: [(u8, LinkKind, Change); 4] = [
        (1, LinkKind::Shm, |config| config.placement = Placement::Nic),
        (2, LinkKind::Shm, |config| config.placement = Placement::Host),
        (3, LinkKind::Udp, |config| config.log = LogKind::Pmem),
        (4, LinkKind::Shm, |config| config.model = Model::Event),
    ];
    for (net, link, change) in cases {
        let cluster = Cluster::start(net, 3, link, change);
        let (mut a, mut b) = (cluster.client(0), cluster.client(1));
        assert_eq!(a.get(1), Outcome::Value(None));
        assert_eq!(a.put(1, b"one"), Outcome::Written);
        assert_eq!(b.get(1), value(b"one"), "case {net}");
        let long: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
        assert_eq!(b.put(1000, &long), Outcome::Written);
        assert_eq!(a.get(1000), value(&long));
        assert_eq!(a.compare_swap(1, Some(b"one"), Some(b"two")), Outcome::Swapped);
        assert_eq!(b.compare_swap(1, Some(b"one"), None), Outcome::NotSwapped(Some(b"two".as_slice().into())));
        assert_eq!((a.fetch_add(3, 5), b.fetch_add(3, 1)), (Outcome::Added(0), Outcome::Added(5)));
        assert_eq!(b.delete(1), Outcome::Written);
        assert_eq!(a.get(1), Outcome::Value(None));

        // Many at once, and each with its own answer.
        let tickets: Vec<_> = (0..500).map(|n: u64| a.submit(Op::Put(n, n.to_le_bytes().as_slice().into()))).collect();
        let mut done = Vec::new();
        while a.under_way() > 0 {
            if a.poll(&mut |it| done.push(it)) == 0 {
                a.wait(Duration::from_millis(5));
            }
        }
        done.sort_by_key(|it| it.ticket);
        assert_eq!(done.iter().map(|it| it.ticket).collect::<Vec<_>>(), tickets);
        for it in &done {
            assert_eq!(it.outcome, Outcome::Written);
            assert!(it.split.total_ns > 0 && it.split.communication_ns <= it.split.total_ns, "{it:?}");
            assert!(it.latency_ns > it.split.total_ns, "{it:?}");
        }
        assert!((0..500).all(|n: u64| b.get(n) == value(&n.to_le_bytes())));
        // A node that was slow to start has been left out first, and comes back. In event the log comes later. A client that
        // found its node left out is at another one, and one that broke off is counted until its node notices.
        eventually(format!("a status of case {net}"), || {
            let status = b.status().ok()?;
            assert!(status.node == b.node() as u64, "{status:?}");
            let clients = 1 + u64::from(a.node() == b.node());
            let whole = status.members == 0b111 && status.log_bytes > 300_000;
            (whole && status.serves == 1 && status.clients == clients).then_some(())
        });
    }
}

/// Asks until it is answered: the cluster may be between two views.
fn until(client: &mut ClusterClient, op: &Op, wanted: &Outcome) {
    let end = std::time::Instant::now() + Duration::from_secs(30);
    loop {
        let outcome = client.call(op.clone());
        if outcome == *wanted {
            return;
        }
        assert!(std::time::Instant::now() < end, "{op:?} gives {outcome:?}");
    }
}

#[test]
fn a_client_goes_on_at_another_node_and_a_request_sent_again_is_done_once() {
    let mut cluster = Cluster::start(5, 3, LinkKind::Shm, |_| {});
    let mut client = cluster.client(0);
    // A first start takes all nodes; from then on a majority is enough.
    until(&mut client, &Op::FetchAdd(1, 0), &Outcome::Added(0));
    for round in 0..3 {
        let tickets: Vec<_> = (0..50).map(|_| client.submit(Op::FetchAdd(1, 1))).collect();
        let mut answers = tickets.len();
        let mut count = |done: remora_cluster::Ended| {
            assert!(matches!(done.outcome, Outcome::Added(_)), "{done:?}");
            answers -= 1;
        };
        for _ in 0..3 {
            client.poll(&mut count);
        }
        // Whatever was under way there is asked for again elsewhere.
        let node = client.node();
        cluster.nodes[node] = None;
        while client.under_way() > 0 {
            client.poll(&mut count);
            client.wait(Duration::from_millis(2));
        }
        assert!(answers == 0 && client.node() != node, "round {round}");
        cluster.start_node(node as u8);
    }
    until(&mut client, &Op::FetchAdd(1, 0), &Outcome::Added(150));
}

#[test]
fn all_nodes_end_and_a_log_is_damaged_and_nothing_is_lost() {
    // Who was left out and came back would have another log than the first.
    let mut cluster = Cluster::start(6, 3, LinkKind::Shm, |config| config.suspect = Duration::from_secs(5));
    let mut client = cluster.client(0);
    for key in 0..50u64 {
        assert_eq!(client.put(key, &key.to_le_bytes()), Outcome::Written);
    }
    drop(client);
    cluster.nodes.clear();
    let path = cluster.dir.path().join("2").join("log");
    let mut bytes = std::fs::read(&path).expect("log");
    bytes[40] ^= 1;
    std::fs::write(&path, bytes).expect("written");
    cluster.nodes = (0..3).map(|_| None).collect();
    (0..3).for_each(|id| cluster.start_node(id));
    let damage: Vec<_> = cluster.nodes.iter().flatten().map(ClusterNode::damage).collect();
    assert_eq!(damage, [None, None, Some(0)]);
    let mut client = cluster.client(2);
    for key in 0..50u64 {
        until(&mut client, &Op::Get(key), &value(&key.to_le_bytes()));
    }
}

#[test]
fn who_does_not_know_the_secret_is_no_node() {
    // The first start needs all.
    let mut cluster = Cluster::start(7, 3, LinkKind::Shm, |_| {});
    until(&mut cluster.client(0), &Op::Put(1, b"none".as_slice().into()), &Outcome::Written);
    cluster.nodes[2] = None;
    cluster.change = |config| config.secret = [1; 32];
    cluster.start_node(2);
    // The other two are a majority and go on without it.
    let mut client = cluster.client(0);
    until(&mut client, &Op::Put(1, b"one".as_slice().into()), &Outcome::Written);
    eventually("a view of two", || client.status().ok().filter(|status| status.members == 0b011));
}

#[test]
fn a_node_whose_disk_is_empty_comes_back_as_one_that_has_lost_its_log() {
    let mut cluster = Cluster::start(25, 3, LinkKind::Shm, |_| {});
    let mut client = cluster.client(0);
    for key in 0..50u64 {
        until(&mut client, &Op::Put(key, key.to_le_bytes().as_slice().into()), &Outcome::Written);
    }
    cluster.nodes[2] = None;
    std::fs::remove_file(cluster.dir.path().join("2").join("log")).expect("its log is gone");
    cluster.start_node(2);
    // The only node that this client knows of.
    let mut config = cluster.clients();
    config.nodes = vec![cluster.addresses[2]];
    let mut reader = ClusterClient::connect(config).expect("connection");
    for key in 0..50u64 {
        let mut answer = || match reader.get(key) {
            Outcome::Refused(_) | Outcome::Unknown => None,
            answered => Some(answered),
        };
        assert_eq!(eventually("an answer", &mut answer), value(&key.to_le_bytes()), "record {key}");
    }
    eventually("a status of one that came back", || {
        let status = reader.status().ok()?;
        (status.node == 2 && status.serves == 1 && status.rejoins >= 1).then_some(())
    });
    let says_so = |node: &Option<ClusterNode>| node.as_ref().is_some_and(ClusterNode::has_lost_its_log);
    assert_eq!(cluster.nodes.iter().map(says_so).collect::<Vec<_>>(), [false, false, true]);
}

#[test]
fn clients_that_take_no_answers_do_not_keep_nodes_from_talking() {
    let cluster = Cluster::start(21, 3, LinkKind::Shm, |config| config.suspect = Duration::from_secs(5));
    let mut other = cluster.client(1);
    assert_eq!(other.put(1, &vec![7; 300_000]), Outcome::Written);
    let before = eventually("a status", || other.status().ok());
    // Each has what its receive queue holds and then as much under way as one connection may have.
    let mut lazy: Vec<ClusterClient> = (0..36).map(|_| cluster.client(0)).collect();
    for client in &mut lazy {
        for _ in 0..40 {
            client.submit(Op::Get(1));
        }
        client.poll(&mut |_| {});
    }
    for number in 0..20u64 {
        assert_eq!(other.put(2, &number.to_le_bytes()), Outcome::Written, "write {number}");
    }
    let after = eventually("a status", || other.status().ok());
    assert_eq!((after.epoch, after.members), (before.epoch, before.members), "nobody was left out");
    // Nor is a client of the same node, and those that take nothing lose their connections.
    let nodes = vec![cluster.addresses[0]];
    let mut neighbour = ClusterClient::connect(ClusterClientConfig { nodes, ..cluster.clients() }).expect("connection");
    assert_eq!(neighbour.get(1), value(&[7; 300_000]));
    eventually("all that take nothing are cut off", || {
        let status = neighbour.status().ok()?;
        assert_eq!(neighbour.get(2), value(&19u64.to_le_bytes()));
        // Some may have gone by themselves, and the other client may have come.
        (status.cut_off > 0 && status.clients <= 2).then_some(())
    });
}

/// Who is no client of this cluster, or takes it for another, is told so.
#[test]
fn who_does_not_know_the_clients_secret_is_no_client() {
    let cluster = Cluster::start(22, 3, LinkKind::Shm, |_| {});
    let open = Cluster::start(23, 3, LinkKind::Shm, |config| config.sealed = false);
    let connect = |cluster: &Cluster, secret| {
        // Who is refused tries on until then.
        let timeout = Duration::from_millis(500);
        ClusterClient::connect(ClusterClientConfig { secret, timeout, ..cluster.clients() }).map(drop)
    };
    let right = Some(client_secret(&[9; 32]));
    let cases = [
        (&cluster, right, None),
        (&cluster, None, Some("needs the clients' secret")),
        (&cluster, Some([9; 32]), Some("does not know the clients' secret")),
        (&open, None, None),
        (&open, right, Some("connect without a secret")),
    ];
    for (cluster, secret, wanted) in cases {
        eventually(format!("{wanted:?}"), || match (connect(cluster, secret), wanted) {
            (Err(error), Some(wanted)) => error.to_string().contains(wanted).then_some(()),
            (Ok(()), Some(wanted)) => panic!("connected, not told: {wanted}"),
            (connected, None) => connected.ok(),
        });
    }
}

#[test]
fn nodes_that_differ_refuse_each_other_and_say_how() {
    let different: [(u8, Change, &str); 2] = [
        (26, |config| config.model = [Model::Synch, Model::Event][usize::from(config.id)], "model"),
        (27, |config| config.suspect = Duration::from_millis(300 + u64::from(config.id)), "suspects after"),
    ];
    for (net, change, word) in different {
        let cluster = Cluster::start(net, 2, LinkKind::Shm, change);
        let differs = || cluster.nodes.iter().flatten().find_map(|node| Some(node.differs()?.to_string()));
        let said = eventually(format!("that {word} differs"), differs);
        assert!(said.contains(word) && said.contains("node 0") && said.contains("node 1"), "{said}");
    }
}

#[test]
fn a_batch_whose_answer_is_too_long_says_which_contents_are_missing() {
    let cluster = Cluster::start(24, 2, LinkKind::Shm, |_| {});
    let mut client = cluster.client(0);
    let long = vec![7; 900_000];
    (0..3).for_each(|key| assert_eq!(client.put(key, &long), Outcome::Written));
    let outcome = client.call(Op::Batch(vec![Op::Get(0), Op::Get(1), Op::Get(2), Op::FetchAdd(9, 1), Op::Get(8)]));
    let missing = Outcome::Refused(Refusal::TooLong);
    let expected = vec![value(&long), value(&long), missing, Outcome::Added(0), Outcome::Value(None)];
    assert!(outcome == Outcome::Batch(expected));
    assert_eq!(client.get(2), value(&long));
}

/// A record that waits for a node that does not answer has whoever writes it again and again wait, with what he sent.
#[test]
fn a_clients_requests_wait_as_far_as_there_is_room_for_them() {
    const MANY: usize = 40;
    let mut cluster = Cluster::start(20, 3, LinkKind::Shm, |config| config.suspect = Duration::from_secs(10));
    let config = |retry| ClusterClientConfig { retry, ..cluster.clients() };
    let [mut client, mut other] = [false, true].map(|retry| ClusterClient::connect(config(retry)).expect("connection"));
    eventually("a record", || (client.put(1, &[7; 100]) == Outcome::Written).then_some(()));
    cluster.nodes[2] = None;
    let mut busy = 0;
    for number in 0..MANY {
        client.submit(Op::Put(1, vec![8; 1 << 20].into()));
        // Reads are answered meanwhile, so that the client does not give the node up.
        client.submit(Op::Get(2));
        eventually("an answer", || {
            let mut read = false;
            client.poll(&mut |ended| match ended.outcome {
                Outcome::Refused(Refusal::Busy) => busy += 1,
                outcome => read |= outcome == Outcome::Value(None),
            });
            read.then_some(())
        });
        assert!(busy == 0 || number >= 10, "{busy} of {number} were too many");
    }
    assert!(busy >= MANY - 16, "{busy} of {MANY} were too many");
    // Others have room, and so has it when the view is one without the node.
    assert_eq!(other.put(2, b"short"), Outcome::Written);
    eventually("an end", || {
        client.poll(&mut |_| {});
        (client.under_way() == 0).then_some(())
    });
    eventually("room", || (client.put(1, &vec![9; 1 << 20]) == Outcome::Written).then_some(()));
}

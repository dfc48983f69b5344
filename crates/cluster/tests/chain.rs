//! Clusters that keep a chain, in this process, over the links that processes use.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use remora_cluster::{
    ChainClient, ChainOutcome, ChainReader, ChainRefusal, ClusterClient, ClusterClientConfig, ClusterNode,
    ClusterNodeConfig, Extent, LogKind, Transaction, Tuple, client_secret,
};
use remora_kernel::Placement;
use remora_real::LinkKind;
use remora_testing::eventually;

const DATA: usize = 1 << 20;

/// How a test's nodes differ from the usual ones.
type Change = fn(&mut ClusterNodeConfig);

struct Cluster {
    dir: tempfile::TempDir,
    addresses: Vec<IpAddr>,
    link: LinkKind,
    nodes: Vec<Option<ClusterNode>>,
    change: Change,
}

impl Cluster {
    fn start(net: u8, link: LinkKind, change: Change) -> Self {
        let addresses = (0..3).map(|n| Ipv4Addr::new(127, 14, net, 1 + n).into()).collect();
        let dir = tempfile::tempdir().expect("directory");
        let mut cluster = Self { dir, addresses, link, nodes: (0..3).map(|_| None).collect(), change };
        (0..3).for_each(|id| cluster.start_node(id));
        cluster
    }

    fn start_node(&mut self, id: u8) {
        let dir = self.dir.path().join(id.to_string());
        std::fs::create_dir_all(&dir).expect("directory");
        let mut config = ClusterNodeConfig::new(id, self.addresses.clone(), dir, [9; 32]);
        (config.link, config.chain) = (self.link, Some(DATA));
        (self.change)(&mut config);
        self.nodes[usize::from(id)] = Some(ClusterNode::start(config).expect("node"));
    }

    fn clients(&self) -> ClusterClientConfig {
        let (secret, timeout) = (Some(client_secret(&[9; 32])), Duration::from_secs(30));
        let usual = ClusterClientConfig::new(self.addresses.clone());
        ClusterClientConfig { link: self.link, secret, timeout, retry: true, ..usual }
    }

    fn client(&self, node: usize) -> ChainClient {
        ChainClient::connect(ClusterClientConfig { node, ..self.clients() }).expect("connection")
    }
}

fn put(places: &[u64], bytes: &[u8]) -> Transaction {
    let writes = places.iter().map(|&offset| Tuple { offset, data: bytes.into() }).collect();
    Transaction { writes, ..Transaction::default() }
}

fn get(places: &[u64], length: u32) -> Transaction {
    let reads = places.iter().map(|&offset| Extent { offset, length }).collect();
    Transaction { reads, ..Transaction::default() }
}

fn read(client: &mut ChainClient, places: &[u64], length: u32) -> Vec<Vec<u8>> {
    match client.transact(get(places, length)) {
        ChainOutcome::Done(read) => read.iter().map(|bytes| bytes.to_vec()).collect(),
        other => panic!("{other:?}"),
    }
}

/// One that was sent again was done too.
fn is_done(outcome: &ChainOutcome) -> bool {
    matches!(outcome, ChainOutcome::Done(_) | ChainOutcome::Before)
}

#[test]
fn transactions_are_done_whoever_is_asked_in_every_deployment() {
    let cases: [(u8, LinkKind, Change); 3] = [
        (1, LinkKind::Shm, |config| config.placement = Placement::Nic),
        (2, LinkKind::Shm, |config| config.placement = Placement::Host),
        (3, LinkKind::Udp, |config| (config.log, config.sealed) = (LogKind::Pmem, true)),
    ];
    for (net, link, change) in cases {
        let cluster = Cluster::start(net, link, change);
        // The second one does not ask the head first.
        let (mut a, mut b) = (cluster.client(0), cluster.client(2));
        assert!(is_done(&a.transact(put(&[0, 64, 5000], b"one"))), "case {net}");
        assert_eq!(read(&mut b, &[64, 5000], 3), [b"one", b"one"]);
        assert!(is_done(&b.transact(put(&[64], b"two"))));
        assert_eq!(read(&mut a, &[0, 64], 3), [b"one", b"two"]);
        let swap = |from: &[u8], to: &[u8]| Transaction {
            expects: vec![Tuple { offset: 0, data: from.into() }],
            ..put(&[0], to)
        };
        assert!(is_done(&a.transact(swap(b"one", b"six"))));
        assert_eq!(b.transact(swap(b"one", b"ten")), ChainOutcome::Unequal(Vec::new()));
        let beyond = a.transact(put(&[DATA as u64 - 1], b"ab"));
        assert_eq!(beyond, ChainOutcome::Refused(ChainRefusal::Invalid));
        // Who wants records is told.
        let strange =
            ClusterClient::connect(ClusterClientConfig { timeout: Duration::from_secs(2), ..cluster.clients() });
        let why = strange.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(why.contains("keeps a chain"), "{why}");
    }
}

#[test]
fn nodes_go_and_come_back_and_a_cluster_starts_again_with_what_it_had() {
    let mut cluster = Cluster::start(4, LinkKind::Shm, |_| ());
    let mut client = cluster.client(0);
    for round in 0..3u8 {
        assert!(is_done(&client.transact(put(&[0, 4096], &[round; 100]))));
        cluster.nodes[usize::from(round)] = None;
        assert!(is_done(&client.transact(put(&[64 * 1000, 64 * 2000], &[round + 1; 100]))), "without node {round}");
        cluster.start_node(round);
        eventually("all are members again", || {
            let status = client.status().ok()?;
            (status.members == 7 && status.serves == 1).then_some(())
        });
    }
    for node in 0..3 {
        let mut client = cluster.client(node);
        assert_eq!(read(&mut client, &[0, 64 * 1000], 1), [[2], [3]], "node {node}");
    }
    cluster.nodes.iter_mut().for_each(|node| *node = None);
    (0..3).for_each(|id| cluster.start_node(id));
    for node in 0..3 {
        let mut client = cluster.client(node);
        assert_eq!(read(&mut client, &[4096 + 99, 64 * 2000], 1), [[2], [3]], "node {node}");
    }
    assert!(cluster.nodes.iter().flatten().all(|node| node.damage().is_none() && node.failure().is_none()));
}

/// What a reader finds by READs alone.
fn look(reader: &mut ChainReader, places: &[u64], length: u32) -> Option<Vec<Vec<u8>>> {
    let read = reader.read(&get(places, length).reads)?;
    Some(read.iter().map(|bytes| bytes.to_vec()).collect())
}

#[test]
fn what_was_answered_is_read_from_the_heads_memory() {
    let cases: [(u8, LinkKind, Change); 3] = [
        (6, LinkKind::Shm, |config| config.placement = Placement::Nic),
        (7, LinkKind::Shm, |config| config.placement = Placement::Host),
        (8, LinkKind::Udp, |config| config.sealed = false),
    ];
    for (net, link, change) in cases {
        let mut cluster = Cluster::start(net, link, change);
        let secret = cluster.clients().secret.filter(|_| link == LinkKind::Shm);
        let config = ClusterClientConfig { secret, node: 1, ..cluster.clients() };
        let mut client = ChainClient::connect(config.clone()).expect("a connection");
        assert!(is_done(&client.transact(put(&[0, 70, 5000], b"one"))), "case {net}");
        // It finds the head by itself.
        let mut reader = ChainReader::connect(config).expect("a window");
        eventually("a read", || {
            reader.poll(&mut |_| {});
            (look(&mut reader, &[0], 3)? == [b"one"]).then_some(())
        });
        for round in 0..100u8 {
            assert!(is_done(&client.transact(put(&[0, 70, 5000, DATA as u64 - 3], &[round; 3]))));
            // A lease may run out on a busy machine; what is read is what was answered last.
            if let Some(read) = look(&mut reader, &[DATA as u64 - 3, 71, 5000], 2) {
                assert_eq!(read, vec![vec![round; 2]; 3], "case {net}");
            }
            let (long, asked) = (get(&[0], 3000).reads, get(&[DATA as u64 - 1], 2).reads);
            let ChainOutcome::Done(read) = reader.read_or_ask(&mut client, long) else { panic!("case {net}") };
            assert_eq!(
                (read[0].len(), &read[0][..3], &read[0][70..74]),
                (3000, &[round; 3][..], &[round, round, round, 0][..])
            );
            // What no window can show the chain answers, or refuses.
            let refused = reader.read_or_ask(&mut client, asked);
            assert_eq!(refused, ChainOutcome::Refused(ChainRefusal::Invalid));
        }
        // The head goes, and another one shows what was answered.
        assert!(is_done(&client.transact(put(&[64], b"last"))));
        cluster.nodes[0] = None;
        eventually("a read at the next head", || {
            reader.poll(&mut |_| {});
            look(&mut reader, &[64], 4).map(|read| assert_eq!(read, [b"last"]))
        });
        assert!(is_done(&client.transact(put(&[64], b"then"))));
        let outcome = reader.read_or_ask(&mut client, get(&[64], 4).reads);
        assert_eq!(outcome, ChainOutcome::Done(vec![b"then"[..].into()]), "case {net}");
    }
}

#[test]
fn what_is_sealed_is_shown_to_no_read() {
    let cluster = Cluster::start(9, LinkKind::Udp, |_| ());
    let why = |config| ChainReader::connect(config).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(why(cluster.clients()).contains("seals what it sends"));
    // Nor to one who says that nothing is sealed.
    let open = ClusterClientConfig { secret: None, timeout: Duration::from_secs(1), ..cluster.clients() };
    assert!(why(open).contains("refused"));
}

/// Each is valid and short, and has the head take and give back tens of thousands of keys.
#[test]
fn requests_that_want_many_keys_do_not_cost_the_head_its_place() {
    const MANY: usize = 300;
    // So long that a busy machine is no reason to suspect anybody.
    let suspect: Change = |config| (config.chain, config.suspect) = (Some(8 << 20), Duration::from_secs(2));
    let cluster = Cluster::start(5, LinkKind::Shm, suspect);
    let mut client = cluster.client(0);
    assert!(is_done(&client.transact(put(&[0], b"a"))));
    let epoch = |client: &mut ChainClient| client.status().expect("a status").epoch;
    let before = epoch(&mut client);
    for _ in 0..MANY {
        let reads = vec![Extent { offset: 0, length: 2 << 20 }];
        client.start(Transaction { reads, ..put(&[0], b"b") });
    }
    let mut done = 0;
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while client.under_way() > 0 && std::time::Instant::now() < end {
        // The others were too many, or the machine is so busy that the client has given the node up.
        client.poll(&mut |ended| done += usize::from(is_done(&ended.outcome)));
    }
    assert!(done > 0);
    assert_eq!(epoch(&mut client), before);
}

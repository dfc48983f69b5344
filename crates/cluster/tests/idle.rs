//! An idle cluster sleeps between beats. Alone in its process: it measures the process's CPU time.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use remora_cluster::{ClusterClient, ClusterClientConfig, ClusterNode, ClusterNodeConfig, Outcome};
use remora_kernel::Placement;
use remora_real::process_cpu_ns;
use remora_testing::until_asleep;

#[test]
fn idle_nodes_sleep_between_beats_and_still_answer() {
    for (net, placement) in [(1, Placement::Nic), (2, Placement::Host)] {
        let dir = tempfile::tempdir().expect("directory");
        let addresses: Vec<IpAddr> = (1..=3).map(|n| Ipv4Addr::new(127, 14, net, n).into()).collect();
        let start = |id: u8| {
            let home = dir.path().join(id.to_string());
            std::fs::create_dir(&home).expect("directory");
            let config =
                ClusterNodeConfig { placement, ..ClusterNodeConfig::new(id, addresses.clone(), home, [3; 32]) };
            ClusterNode::start(config).expect("node")
        };
        let _nodes: Vec<ClusterNode> = (0..3).map(start).collect();
        let mut client = {
            let secret = Some(remora_cluster::client_secret(&[3; 32]));
            // On a busy machine a node is left out for a while.
            let (retry, timeout) = (true, Duration::from_secs(30));
            let usual = ClusterClientConfig::new(addresses.clone());
            ClusterClient::connect(ClusterClientConfig { secret, retry, timeout, ..usual }).expect("connection")
        };
        assert_eq!(client.put(1, b"one"), Outcome::Written);
        // Three nodes and a client, built without optimisation, take some 15 %; with it a node takes 2.3 %. One thread that
        // does not sleep takes 100.
        until_asleep(format!("{placement} deployment"), Duration::from_secs(1), 0.8, process_cpu_ns);
        assert_eq!(client.get(1), Outcome::Value(Some(b"one".as_slice().into())));
    }
}

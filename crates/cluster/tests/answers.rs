//! Answers that are due at once take no more memory than a client may hold. Alone in its process: it measures the process's
//! memory.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use remora_cluster::{ClusterClient, ClusterClientConfig, ClusterNode, ClusterNodeConfig, Op, Outcome, client_secret};
use remora_testing::eventually;

/// Bytes of memory that the process has had at most since this was last asked, and has now.
fn memory() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    };
    std::fs::write("/proc/self/clear_refs", "5").expect("its own");
    (bytes("VmHWM:"), bytes("VmRSS:"))
}

#[test]
fn answers_that_waited_for_one_record_are_not_all_made_at_once() {
    const VALUE: usize = 1 << 20;
    const READS: usize = 1000;
    let dir = tempfile::tempdir().expect("directory");
    let addresses: Vec<IpAddr> = (1..=3).map(|n| Ipv4Addr::new(127, 13, 78, n).into()).collect();
    let start = |id: u8| {
        let home = dir.path().join(id.to_string());
        std::fs::create_dir_all(&home).expect("directory");
        let mut config = ClusterNodeConfig::new(id, addresses.clone(), home, [3; 32]);
        config.suspect = Duration::from_secs(3);
        ClusterNode::start(config).expect("node")
    };
    let mut nodes: Vec<ClusterNode> = (0..3).map(start).collect();
    let client = |retry| {
        let (secret, timeout) = (Some(client_secret(&[3; 32])), Duration::from_secs(30));
        let usual = ClusterClientConfig::new(vec![addresses[0]]);
        ClusterClient::connect(ClusterClientConfig { secret, retry, timeout, ..usual }).expect("connection")
    };
    let (mut writer, mut reader) = (client(true), client(false));
    eventually("a record", || (writer.put(1, &vec![7; VALUE]) == Outcome::Written).then_some(()));
    // Without an acknowledgement of the third node the record is locked until a view leaves it out.
    drop(nodes.pop());
    writer.submit(Op::Put(1, vec![8; VALUE].into()));
    eventually("a write under way", || {
        let status = writer.status().ok()?;
        (status.under_way == 1).then_some(())
    });
    for _ in 0..READS {
        reader.submit(Op::Get(1));
    }
    let mut ended = reader.poll(&mut |_| {});
    let waiting = eventually("all wait", || {
        writer.poll(&mut |_| {});
        ended += reader.poll(&mut |_| {});
        let status = writer.status().ok()?;
        (status.under_way as usize > READS).then_some(status)
    });
    assert_eq!((ended, waiting.cut_off), (0, 0));
    let (_, before) = memory();
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while reader.under_way() > 0 && std::time::Instant::now() < end {
        writer.poll(&mut |_| {});
        ended += reader.poll(&mut |_| {});
    }
    let (most, _) = memory();
    assert_eq!(ended, READS);
    assert!(most < before + (READS * VALUE / 4) as u64, "{most} bytes, {before} before");
    let status = eventually("an answer", || {
        writer.poll(&mut |_| {});
        writer.status().ok()
    });
    assert!(status.cut_off > 0, "whoever asks for more than a client may hold");
    let mut again = client(true);
    assert_eq!(again.get(1), Outcome::Value(Some(vec![8; VALUE].into())));
}

//! A cluster on a disk that is full.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;

use remora_cluster::{
    ClusterClient, ClusterClientConfig, ClusterNode, ClusterNodeConfig, Outcome, Refusal, client_secret,
};
use remora_testing::{eventually, skip};

/// Where the child test has its disk.
const DISK: &str = "REMORA_TEST_DISK";
const SECRET: [u8; 32] = [5; 32];
/// Bytes of a value.
const VALUE: usize = 400_000;

/// Three nodes share a file system of 400 MB. When it is full they take no more writes, and say so; reads go on, also after
/// all were started again; and when there is room, writes go on without that.
#[test]
fn a_full_disk_refuses_writes_until_there_is_room_and_reads_go_on() {
    let dir = tempfile::tempdir().expect("directory");
    let script =
        "mount -t tmpfs -o size=400m none \"$1\" || exit 77; exec \"$0\" --exact --ignored --nocapture on_a_full_disk";
    let ran = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(std::env::current_exe().expect("this test"))
        .arg(dir.path())
        .env(DISK, dir.path())
        .output();
    let remedy = "Run it as root, with util-linux";
    match ran {
        Err(error) => skip(format!("no unshare ({error})"), remedy),
        Ok(ran) if ran.status.code() != Some(0) && String::from_utf8_lossy(&ran.stderr).contains("unshare failed") => {
            skip("no mount namespace of its own", remedy);
        }
        Ok(ran) if ran.status.code() == Some(77) => skip("no file system of its own", remedy),
        Ok(ran) => assert!(ran.status.success(), "{}", String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat())),
    }
}

fn start(disk: &Path) -> Vec<ClusterNode> {
    let node = |id: u8| {
        let dir = disk.join(id.to_string());
        std::fs::create_dir_all(&dir).expect("directory");
        let mut config = ClusterNodeConfig::new(id, addresses(), dir, SECRET);
        // One that waits for a core is not left out: it would need room to come back.
        config.suspect = std::time::Duration::from_secs(3);
        ClusterNode::start(config).expect("node")
    };
    (0..3).map(node).collect()
}

fn addresses() -> Vec<IpAddr> {
    (1..4).map(|n| Ipv4Addr::new(127, 13, 77, n).into()).collect()
}

fn client(node: usize) -> ClusterClient {
    let secret = Some(client_secret(&SECRET));
    let config = ClusterClientConfig { nodes: vec![addresses()[node]], secret, ..ClusterClientConfig::new(Vec::new()) };
    ClusterClient::connect(config).expect("connection")
}

fn value(key: u64) -> Vec<u8> {
    vec![key as u8; VALUE]
}

/// Reads all that was written, at a node.
fn read_all(node: usize, keys: u64) {
    let mut client = client(node);
    for key in 0..keys {
        eventually(format!("record {key} at node {node}"), || {
            let outcome = client.get(key);
            let wanted = Outcome::Value(Some(value(key).as_slice().into()));
            assert!(outcome == wanted || !matches!(outcome, Outcome::Value(_)), "record {key} is another");
            (outcome == wanted).then_some(())
        });
    }
}

/// The test, where there is a disk for it.
#[test]
#[ignore = "run by a_full_disk_refuses_writes_until_there_is_room_and_reads_go_on"]
fn on_a_full_disk() {
    let disk = PathBuf::from(std::env::var_os(DISK).expect("a disk"));
    // Each log reserves some 48 MB beyond its end: there is room for that now, and for more when this goes.
    let ballast = disk.join("ballast");
    std::fs::write(&ballast, vec![1; 240 << 20]).expect("room for it");
    let mut nodes = start(&disk);
    let mut writer = client(0);
    // Whether others' writes were under way when they were refused is not known.
    let mut written = 0;
    eventually("the disk is full", || match writer.put(written, &value(written)) {
        Outcome::Written => {
            written += 1;
            None
        }
        Outcome::Refused(Refusal::Full) => Some(()),
        // The nodes begin. The same is written again.
        Outcome::Refused(Refusal::NotServing) | Outcome::Unknown => None,
        other => panic!("write {written} gives {other:?}"),
    });
    println!("{written} writes of {VALUE} bytes");
    assert!(written > 20);
    (0..3).for_each(|node| read_all(node, written));
    let status = eventually("a status", || writer.status().ok());
    assert!(status.full != 0 && status.serves == 1, "{status:?}");
    assert!(nodes.iter().all(|node| node.failure().is_none()));

    // All end and start again, without room for anything.
    drop(nodes);
    let rest = std::fs::File::create(disk.join("rest")).expect("a file");
    let mut size = 1 << 20;
    while size > 0 {
        use std::io::Write;
        match (&rest).write(&vec![1; size]) {
            Ok(more) if more > 0 => {}
            _ => size /= 2,
        }
    }
    nodes = start(&disk);
    (0..3).for_each(|node| read_all(node, written));
    let mut writer = client(1);
    eventually("a refusal", || match writer.put(0, &value(0)) {
        Outcome::Refused(Refusal::Full) => Some(()),
        Outcome::Refused(Refusal::NotServing) | Outcome::Unknown => None,
        other => panic!("on a full disk {other:?}"),
    });

    // There is room.
    std::fs::remove_file(disk.join("rest")).expect("removed");
    std::fs::remove_file(&ballast).expect("removed");
    eventually("writes go on", || (writer.put(written, &value(written)) == Outcome::Written).then_some(()));
    (0..3).for_each(|node| read_all(node, written + 1));
    eventually("no disk is full", || (writer.status().ok()?.full == 0).then_some(()));
    assert!(nodes.iter().all(|node| node.failure().is_none()));
}

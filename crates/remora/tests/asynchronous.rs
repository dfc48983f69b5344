//! The asynchronous client under tokio: no call is lost, none waits for another, and its thread ends with it.

use std::time::Duration;

use remora::{AsyncClient, Client, Error, Get, Node, Pending, Placement, Table};
use remora_testing::eventually;
use tokio::runtime::{Builder, Runtime};

fn runtimes() -> [Runtime; 2] {
    let one = Builder::new_current_thread().enable_time().build().expect("a runtime");
    let many = Builder::new_multi_thread().worker_threads(2).enable_time().build().expect("a runtime");
    [one, many]
}

/// The threads of this process that drive asynchronous clients.
fn drivers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads");
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.flatten().map(name).filter(|name| name.trim() == "remora-client").count()
}

/// What may move between threads does.
#[test]
fn clients_and_calls_are_send() {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    send::<Client>();
    send::<AsyncClient>();
    sync::<AsyncClient>();
    send::<Pending<Get<'static>>>();
    send::<remora::InFlight<Get<'static>>>();
    send::<Table>();
    sync::<Table>();
    send::<Node>();
    sync::<Node>();
    send::<Error>();
    sync::<Error>();
}

async fn connect(node: &Node) -> (AsyncClient, Table) {
    let client = AsyncClient::connect(node.address()).await.expect("a connection");
    let table = client.load_table((0..1000u32).map(|n| (n.to_le_bytes(), n.to_le_bytes()))).await.expect("a table");
    (client, table)
}

#[test]
fn tasks_share_a_client() {
    let node = Node::local().expect("a node");
    for runtime in runtimes() {
        runtime.block_on(async {
            let (client, table) = connect(&node).await;
            let tasks: Vec<_> = (0..8u32)
                .map(|task| {
                    let client = client.clone();
                    tokio::spawn(async move {
                        for n in (task..1000).step_by(8) {
                            let place = Placement::REAL[n as usize % 3];
                            let found = client.at(place).get(&table, &n.to_le_bytes()).await.expect("an answer");
                            assert_eq!(found.as_deref(), Some(&n.to_le_bytes()[..]));
                        }
                        let region = client.alloc(8).await.expect("memory");
                        assert_eq!(client.fetch_add(&region, 0, task.into()).await.expect("an old value"), 0);
                        let swapped = client.compare_swap(&region, 0, task.into(), 5).await.expect("an old value");
                        assert_eq!(swapped, u64::from(task));
                        client.write(&region, 0, *b"together").await.expect("a write");
                        assert_eq!(client.read(&region, 0, 8).await.expect("a read"), b"together");
                        client.free(region).await.expect("freed");
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("a task");
            }
            // A length that no memory has is told, and ends no process.
            let (region, all) = (client.alloc(8).await.expect("memory"), usize::MAX / 2);
            let beyond = client.read(&region, 0, all).await.expect_err("beyond the region");
            assert!(matches!(&beyond, Error::Argument(why) if why.ends_with("of a region of 8 bytes")), "{beyond}");
            let stream = vec![1; 100_000];
            assert_eq!(client.at(Placement::Nic).checksum(&stream).await.expect("a checksum").len, 100_000);
        });
    }
}

#[test]
fn calls_begin_at_once_and_may_be_dropped() {
    let node = Node::local().expect("a node");
    let [runtime, _] = runtimes();
    runtime.block_on(async {
        let (client, table) = connect(&node).await;
        let keys: Vec<[u8; 4]> = (0..1000u32).map(u32::to_le_bytes).collect();
        // More than may be under way at once, each second one dropped in the midst of it.
        let calls: Vec<_> = keys.iter().map(|key| client.at(Placement::Nic).get(&table, key)).collect();
        for (n, (mut call, key)) in calls.into_iter().zip(&keys).enumerate() {
            if n % 2 == 0 {
                assert_eq!(call.await.expect("an answer").as_deref(), Some(&key[..]));
            } else {
                // Polled once and cancelled, as `select!` does.
                let _ = tokio::time::timeout(Duration::ZERO, &mut call).await;
            }
        }
        assert_eq!(client.with(|client| Ok(client.in_flight())).await.expect("a number").min(256), 0);
        let (release, released) = std::sync::mpsc::channel::<()>();
        let slow = client.with(move |_| Ok(released.recv().is_ok()));
        assert!(tokio::time::timeout(Duration::from_millis(1), slow).await.is_err(), "given up");
        release.send(()).expect("it waits, though nobody waits for it");
        assert!(client.at(Placement::Host).get(&table, &[1, 0, 0, 0]).await.expect("an answer").is_some());
    });
}

#[test]
fn the_thread_ends_with_the_last_handle() {
    let node = Node::local().expect("a node");
    let [runtime, _] = runtimes();
    let before = drivers();
    let ended = runtime.block_on(async {
        let (client, table) = connect(&node).await;
        let clone = client.clone();
        drop(client);
        assert!(clone.at(Placement::Nic).get(&table, &[1, 0, 0, 0]).await.expect("an answer").is_some());
        assert!(drivers() > 0);
        let orphan = clone.at(Placement::Nic).get(&table, b"none");
        drop(clone);
        // Its answer comes before the thread ends, or never.
        orphan.await
    });
    assert!(matches!(ended, Ok(None) | Err(Error::Closed)), "{ended:?}");
    // Other tests of this process come and go meanwhile.
    eventually("the end of the thread", || (drivers() <= before).then_some(()));
}

#[test]
fn a_node_that_goes_ends_calls() {
    let node = Node::local().expect("a node");
    let [runtime, _] = runtimes();
    runtime.block_on(async {
        let (client, table) = connect(&node).await;
        node.shutdown();
        for place in Placement::REAL {
            let ended = client.at(place).get(&table, &[1, 0, 0, 0]).await;
            assert!(matches!(ended, Err(Error::Lost { .. })), "{ended:?}");
        }
        let nobody = AsyncClient::connect("127.0.0.251").await.expect_err("nobody is there");
        assert!(matches!(nobody, Error::Unreachable(_)), "{nobody}");
    });
}

#[test]
fn a_timeout_ends_the_wait_and_not_the_client() {
    let node = Node::local().expect("a node");
    let mut client = Client::builder().timeout(Duration::from_nanos(1)).connect(node.address()).expect("a connection");
    let table = client.load_table([("a", "b")]).expect("a table");
    let times: Vec<_> = (0..100).map(|_| client.at(Placement::Host).get(&table, "a")).collect();
    assert!(times.iter().any(|time| matches!(time, Err(Error::TimedOut { .. }))), "nothing takes a nanosecond");
    assert!(times.iter().all(|time| matches!(time, Ok(Some(_)) | Err(Error::TimedOut { .. }))));
    client.alloc(8).expect("memory");
}

//! A sequencer's numbers: no two callers get the same, whatever client dies.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::process::{Child, Command, Stdio};

use remora::{AsyncClient, Client, Error, Node, Numbers, Placement, Sequencer, TakeNumbers};

/// What a child is told.
const ROLE: &str = "REMORA_NUMBERS";

/// What children run, and nothing in the parent: takes numbers in batches, and writes each down, until it is killed.
#[test]
fn a_client_that_is_killed() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let [node, placement, address, key] = words[..] else { panic!("{role}") };
    let number = |word: &str| word.parse::<u64>().expect("a number");
    let mut client = Client::connect(node.parse::<IpAddr>().expect("an address")).expect("connection");
    let sequencer = Sequencer { address: number(address), key: number(key) as u32 };
    let mut numbers = Numbers::new(sequencer, placement.parse().expect("a placement"));
    let mut out = std::io::stdout().lock();
    loop {
        let callers: Vec<_> = (0..16).map(|_| numbers.ask()).collect();
        for caller in callers {
            let number = numbers.wait(&mut client, caller).expect("a number");
            writeln!(out, "number {number}").expect("the parent reads");
        }
    }
}

fn child(node: &Node, placement: Placement, sequencer: Sequencer) -> Child {
    let role = format!("{} {placement} {} {}", node.address(), sequencer.address, sequencer.key);
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "a_client_that_is_killed", "--nocapture"]).stdout(Stdio::piped());
    command.env(ROLE, role).spawn().expect("a child")
}

/// Numbers that a child has written down. It is killed after so many, amid what it does; the last line may be cut off.
fn killed_after(mut child: Child, count: usize) -> Vec<u64> {
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
    let (mut numbers, mut line) = (Vec::new(), String::new());
    loop {
        line.clear();
        if lines.read_line(&mut line).expect("a line") == 0 {
            break;
        }
        if let Some(number) = line.strip_prefix("number ").and_then(|rest| rest.strip_suffix('\n')) {
            numbers.push(number.parse().expect("a number"));
        }
        if numbers.len() == count {
            child.kill().expect("a signal");
        }
    }
    child.wait().expect("a child");
    numbers
}

#[test]
fn no_number_is_given_twice_though_clients_are_killed() {
    let node = Node::local().expect("node");
    let mut first = Client::connect(node.address()).expect("connection");
    let sequencer = first.load_sequencer(7).expect("a sequencer");
    let mut all: Vec<u64> = std::thread::scope(|scope| {
        let children: Vec<_> = Placement::REAL
            .into_iter()
            .cycle()
            .zip([70usize, 133, 200, 401, 90, 257])
            .map(|(placement, count)| {
                let child = child(&node, placement, sequencer);
                scope.spawn(move || killed_after(child, count))
            })
            .collect();
        // One goes on all the while, and one is dropped with a batch under way.
        let mut numbers = Numbers::new(sequencer, Placement::Nic);
        let mut all: Vec<u64> = (0..2000).map(|_| numbers.next(&mut first).expect("a number")).collect();
        let mut other = Client::connect(node.address()).expect("connection");
        let mut theirs = Numbers::new(sequencer, Placement::Host);
        let callers: Vec<_> = (0..50).map(|_| theirs.ask()).collect();
        theirs.poll(&mut other).expect("a poll");
        drop((other, callers));
        all.extend(children.into_iter().flat_map(|child| child.join().expect("a child's numbers")));
        all.extend((0..500).map(|_| numbers.next(&mut first).expect("a number")));
        all
    });
    let count = all.len();
    assert!(count > 2500 + 1100, "{count} numbers");
    all.sort_unstable();
    assert!(all[0] >= 7);
    let last = all[count - 1];
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>().len(), count, "a number came twice");
    let next = first.at(Placement::Client).call(TakeNumbers { sequencer, count: 1 }).expect("a number");
    assert!(next.start > last);
}

#[test]
fn a_wait_for_a_number_ends_in_time_and_the_next_caller_has_one() {
    let node = Node::local().expect("node");
    let timeout = std::time::Duration::from_nanos(1);
    let mut client = Client::builder().timeout(timeout).connect(node.address()).expect("connection");
    let sequencer = client.load_sequencer(0).expect("a sequencer");
    let mut numbers = Numbers::new(sequencer, Placement::Host);
    let given: Vec<_> = (0..200).map(|_| numbers.next(&mut client)).collect();
    assert!(given.iter().any(|given| matches!(given, Err(Error::TimedOut { .. }))), "nothing takes a nanosecond");
    assert!(given.iter().all(|given| matches!(given, Ok(_) | Err(Error::TimedOut { .. }))), "{given:?}");
    let given: Vec<u64> = given.into_iter().flatten().collect();
    assert!(given.is_sorted_by(|a, b| a < b), "{given:?}");
}

#[test]
fn a_sequencer_that_has_no_more_numbers_says_so() {
    let node = Node::local().expect("node");
    let mut client = Client::connect(node.address()).expect("connection");
    let sequencer = client.load_sequencer(u64::MAX - 3).expect("a sequencer");
    let mut take = |count| client.at(Placement::Nic).call(TakeNumbers { sequencer, count });
    assert_eq!(take(2).expect("numbers"), u64::MAX - 3..u64::MAX - 1);
    assert!(take(2).is_err(), "one of them is no number of a range");
}

#[test]
fn tasks_that_wait_at_once_share_additions() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let node = Node::local().expect("node");
    let given: Vec<u64> = runtime.block_on(async {
        let client = AsyncClient::connect(node.address()).await.expect("connection");
        let sequencer = client.with(|client| client.load_sequencer(0)).await.expect("a sequencer");
        let tasks: Vec<_> = (0..400)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move { client.number(&sequencer).await.expect("a number") })
            })
            .collect();
        let mut given = Vec::new();
        for task in tasks {
            given.push(task.await.expect("a task"));
        }
        // Where there is no sequencer all who asked are told.
        let nowhere = Sequencer { key: sequencer.key ^ 1, ..sequencer };
        assert!(client.number(&nowhere).await.is_err());
        given
    });
    assert_eq!(given.into_iter().collect::<BTreeSet<_>>(), (0..400).collect());
}

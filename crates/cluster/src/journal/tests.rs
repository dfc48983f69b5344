use super::*;
use crate::logfile::ROOM;
use remora_nic::Now;
use remora_replica::chain::{ChainConfig, ChainRequest, LoggedChain, LoggedOutput, Transaction, Tuple};
use remora_replica::log::{Known, LogEnd, Record, decode, encode, without_room};
use remora_replica::types::{NodeId, NodeSet};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

fn record(scope: u64, durable: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&Record::Scope(scope), Known::First(durable), &mut bytes);
    bytes
}

fn wait(journal: &mut Journal, token: u64) {
    let end = Instant::now() + Duration::from_secs(20);
    while journal.durable() <= token {
        journal.idle(true, false);
        assert!(Instant::now() < end && !journal.has_failed(), "{:?}", journal.failure());
        std::thread::yield_now();
    }
}

#[test]
fn what_is_durable_is_there_after_opening_again() {
    for (kind, flies) in [(LogKind::Fdatasync, true), (LogKind::Fdatasync, false), (LogKind::Pmem, false)] {
        let dir = tempfile::tempdir().unwrap();
        let (mut file, content) = LogFile::open(dir.path(), kind).unwrap();
        assert!(content.is_empty());
        if let Some(direct) = file.direct.as_mut().filter(|_| !flies) {
            direct.ground();
        }
        let mut journal = Journal::start(file, || {}).unwrap();
        assert!(Journal::open(dir.path(), kind, || {}).is_err(), "one process at a time");
        let mut all = Vec::new();
        for token in 0..50 {
            let bytes = record(token, all.len());
            all.extend_from_slice(&bytes);
            journal.submit(token, Change::Append(bytes));
        }
        wait(&mut journal, 49);
        assert_eq!(journal.stats().length, all.len() as u64);
        drop(journal);
        let (mut journal, content) = Journal::open(dir.path(), kind, || {}).unwrap();
        assert!(content == all, "{kind}, flies {flies}");
        // Appends before a replacement are nobody's; appends after it follow it.
        let snapshot = record(100, 0);
        journal.submit(0, Change::Append(record(7, 0)));
        journal.submit(1, Change::Replace(snapshot.clone()));
        journal.submit(2, Change::Append(record(101, snapshot.len())));
        wait(&mut journal, 2);
        drop(journal);
        let (_, content) = Journal::open(dir.path(), kind, || {}).unwrap();
        assert_eq!(decode(&content).records, [Record::Scope(100), Record::Scope(101)]);
        assert_eq!(decode(&content).end, LogEnd::Whole);
    }
}

#[test]
fn whoever_has_nothing_else_to_do_syncs_and_the_thread_does_it_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let (mut file, _) = LogFile::open(dir.path(), LogKind::Fdatasync).unwrap();
    if let Some(direct) = &mut file.direct {
        direct.ground();
    }
    let mut journal = Journal::start(file, || {}).unwrap();
    // No sync has taken long yet: the first is made here.
    journal.submit(0, Change::Append(record(0, 0)));
    assert!(journal.idle(true, false));
    wait(&mut journal, 0);
    // After one that took long the next is left to the thread.
    journal.shared.sync_ns.store(SHORT, Ordering::Relaxed);
    journal.submit(1, Change::Append(record(1, 0)));
    assert!(!journal.idle(true, false));
    wait(&mut journal, 1);
    assert_eq!(journal.stats().inline, 1);
    // With other work for ever, or nobody who waits, the thread does it.
    let next = journal.durable();
    journal.submit(next, Change::Append(record(1, 0)));
    let end = Instant::now() + Duration::from_secs(20);
    while journal.durable() <= next {
        journal.turn(true);
        assert!(Instant::now() < end);
    }
    journal.submit(next + 1, Change::Append(record(2, 0)));
    while journal.durable() <= next + 1 {
        assert!(!journal.idle(false, false) && Instant::now() < end);
    }
}

#[test]
fn what_is_read_is_written_again_before_it_counts() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(dir.path(), LogKind::Fdatasync, || {}).unwrap();
    journal.submit(0, Change::Append(record(1, 0)));
    wait(&mut journal, 0);
    drop(journal);
    let long_ago = std::time::SystemTime::UNIX_EPOCH;
    let file = File::options().write(true).open(dir.path().join("log")).unwrap();
    file.set_len(record(1, 0).len() as u64 + ROOM).unwrap();
    file.set_modified(long_ago).unwrap();
    drop(file);
    // There is room: nothing else is to be written.
    let (_, content) = Journal::open(dir.path(), LogKind::Fdatasync, || {}).unwrap();
    assert_eq!(content, record(1, 0));
    assert!(std::fs::metadata(dir.path().join("log")).unwrap().modified().unwrap() > long_ago);
}

#[test]
fn a_log_that_cannot_be_written_says_so_and_acknowledges_nothing_more() {
    for (inline, flies) in [(true, false), (false, false), (true, true), (false, true)] {
        let dir = tempfile::tempdir().unwrap();
        let (mut file, _) = LogFile::open(dir.path(), LogKind::Fdatasync).unwrap();
        (file.file, file.room) = (File::open(&file.path).unwrap(), 2 * ROOM);
        match &mut file.direct {
            Some(direct) if flies => direct.write_to(File::open(&file.path).unwrap()),
            _ => file.direct = None,
        }
        let mut journal = Journal::start(file, || {}).unwrap();
        assert_eq!((journal.durable(), journal.failure()), (0, None));
        (0..3).for_each(|token| journal.submit(token, Change::Append(record(token, 0))));
        let end = Instant::now() + Duration::from_secs(20);
        while !journal.has_failed() {
            assert!(Instant::now() < end);
            match inline {
                true => drop(journal.idle(true, false)),
                false => journal.turn(true),
            }
        }
        assert!(journal.failure().is_some_and(|why| why.starts_with("writing the log ")), "{inline} {flies}");
        assert_eq!(journal.durable(), 0, "{inline} {flies}");
        // Nor is it tried again.
        assert!(!journal.idle(true, false) && journal.durable() == 0);
    }
}

#[test]
fn appends_go_on_while_the_log_is_compacted() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(dir.path(), LogKind::Fdatasync, || {}).unwrap();
    journal.submit(0, Change::Append(record(1, 0)));
    let snapshot = |from: u64| Snapshot::new((from..from + 2000).map(Record::Scope).collect());
    // The second one supersedes the first.
    journal.submit(1, Change::Compact(snapshot(10)));
    journal.submit(2, Change::Append(record(2, 0)));
    journal.submit(3, Change::Compact(snapshot(20)));
    let mut token = 4;
    let mut appended = Vec::new();
    let end = Instant::now() + Duration::from_secs(20);
    // Until the new file has taken the old one's place, and on.
    while appended.len() < 10 || std::fs::metadata(dir.path().join("log.new")).is_ok() {
        assert!(Instant::now() < end);
        appended.push(Record::Scope(token << 32));
        journal.submit(token, Change::Append(record(token << 32, 0)));
        wait(&mut journal, token);
        token += 1;
    }
    drop(journal);
    let (_, content) = Journal::open(dir.path(), LogKind::Fdatasync, || {}).unwrap();
    let expected: Vec<Record> = (20..2020).map(Record::Scope).chain(appended).collect();
    assert!(decode(&content).records == expected && decode(&content).end == LogEnd::Whole);
}

/// A node that is all of its chain, with its log in a journal.
struct Alone {
    node: LoggedChain,
    journal: Journal,
    time: u64,
    replies: usize,
    compactions: usize,
}

impl Alone {
    /// Has the log compacted when it is `slack` bytes longer than twice what it holds.
    fn start(dir: &Path, data: usize, slack: usize) -> Self {
        let (journal, bytes) = Journal::open(dir, LogKind::Fdatasync, || {}).unwrap();
        let config = ChainConfig::new(NodeId(0), NodeSet::first(1), data);
        let node = LoggedChain::new(config, 0, &bytes, slack);
        let mut this = Self { node, journal, time: 0, replies: 0, compactions: 0 };
        for _ in 0..200 {
            this.time += 50_000_000;
            let now = this.now();
            this.node.timeout(&now);
            this.run();
        }
        this
    }

    fn now(&self) -> Now {
        Now::after(|| (), || self.time).1
    }

    /// Until it wants nothing more of its log.
    fn run(&mut self) {
        loop {
            let mut last = None;
            while let Some(output) = self.node.poll() {
                match output {
                    LoggedOutput::Log(token, change) => {
                        self.compactions += usize::from(matches!(change, Change::Compact(_)));
                        self.journal.submit(token, change);
                        last = Some(token);
                    }
                    LoggedOutput::Reply(_) => self.replies += 1,
                    LoggedOutput::Send(..) | LoggedOutput::Data(..) => {}
                }
            }
            let Some(last) = last else { return };
            wait(&mut self.journal, last);
            let now = self.now();
            self.node.persisted(&now, last);
        }
    }

    fn put(&mut self, offset: u64) {
        let writes = vec![Tuple { offset, data: vec![1; 100].into() }];
        let transaction = Transaction { writes, ..Transaction::default() };
        let now = self.now();
        self.node.submit(&now, ChainRequest { tag: 1, session: None, transaction });
        let replies = self.replies;
        self.run();
        assert_eq!(self.replies, replies + 1);
    }
}

/// A snapshot holds whole pages of a chain's memory, so it may be much longer than the log of a few bytes on each.
#[test]
fn a_process_that_ends_before_the_new_file_counts_finds_the_old_one_whole() {
    const PAGES: u64 = 512;
    let dir = tempfile::tempdir().unwrap();
    let mut alone = Alone::start(dir.path(), (PAGES as usize) << 16, 150_000);
    let place = |number: u64| number % PAGES * (64 << 10) + number / PAGES * 128;
    let mut number = 0;
    while alone.compactions == 0 {
        alone.put(place(number));
        number += 1;
    }
    // Everything from here on is in the old file as long as the new one has not its place: what a crash would leave.
    let path = dir.path().join("log");
    let file = || std::fs::metadata(&path).unwrap().ino();
    let (old, mut found) = (file(), 0);
    loop {
        for _ in 0..5 {
            alone.put(place(number));
            number += 1;
        }
        let bytes = std::fs::read(&path).unwrap();
        if file() != old {
            break;
        }
        let bytes = without_room(bytes);
        let decoded = decode(&bytes);
        assert_eq!((decoded.end, decoded.length), (LogEnd::Whole, bytes.len()), "after {found} times five writes");
        found += 1;
    }
    assert!(found > 0, "nothing was written while the log was compacted");
    drop(alone.journal);
    let again = Alone::start(dir.path(), (PAGES as usize) << 16, 150_000);
    assert_eq!(again.node.found(), LogEnd::Whole);
}

#[test]
fn a_torn_tail_and_damage_are_left_to_the_engine() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (record(1, 0), record(u64::MAX, record(1, 0).len()));
    let path = dir.path().join("log");
    let mut torn = [first.as_slice(), &second[..second.len() - 3], &[0; 5000]].concat();
    std::fs::write(&path, &torn).unwrap();
    let (_, content) = Journal::open(dir.path(), LogKind::Fdatasync, || {}).unwrap();
    assert_eq!((decode(&content).end, decode(&content).length), (LogEnd::Torn, first.len()));
    torn[2] ^= 1;
    torn[first.len()..first.len() + second.len()].copy_from_slice(&second);
    std::fs::write(&path, &torn).unwrap();
    let (_, content) = Journal::open(dir.path(), LogKind::Fdatasync, || {}).unwrap();
    assert_eq!(decode(&content).end, LogEnd::Damaged(0));
}

#[test]
fn a_disk_that_stands_still_keeps_nobody_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let (mut file, _) = LogFile::open(dir.path(), LogKind::Fdatasync).unwrap();
    let Some(direct) = file.direct.as_mut().filter(|direct| direct.flies()) else {
        return remora_testing::skip("no asynchronous writes here", "Allow io_uring, and O_DIRECT where TMPDIR is");
    };
    // A full pipe takes the write when somebody reads.
    let (mut reads, writes) = std::io::pipe().unwrap();
    let size = rustix::pipe::fcntl_getpipe_size(&writes).unwrap();
    (&writes).write_all(&vec![0; size]).unwrap();
    direct.write_to(File::from(OwnedFd::from(writes)));
    file.room = 4 * ROOM;
    let woken = Arc::new(AtomicBool::new(false));
    let wakes = woken.clone();
    let mut journal = Journal::start(file, move || wakes.store(true, Ordering::SeqCst)).unwrap();
    journal.submit(0, Change::Append(record(1, 0)));
    assert!(journal.idle(true, true), "begun, though there is other work");
    let end = Instant::now() + Duration::from_secs(20);
    while journal.idle(true, false) {
        assert!(Instant::now() < end, "in the end the log's thread waits in its place");
    }
    assert_eq!((journal.durable(), woken.load(Ordering::SeqCst)), (0, false));
    reads.read_exact(&mut vec![0; size]).unwrap();
    while journal.durable() == 0 || !woken.load(Ordering::SeqCst) {
        assert!(Instant::now() < end && !journal.has_failed(), "{:?}", journal.failure());
        std::thread::yield_now();
    }
}

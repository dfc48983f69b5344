//! A node of a chain whose persistent memory is a log: each write is a record, and what all of them make is in memory.
//!
//! So disks that are quick at their file's end, and syncs that many writes share, serve a chain as they serve the records of
//! [`crate::node`]; where the log is a file in persistent memory, a write is a store and a write-back of its lines.

use remora_nic::Now;

use super::node::{ChainNode, ChainNodeOutput, ChainPacket};
use super::types::{ChainConfig, ChainReply, ChainRequest};
use crate::Time;
use crate::ledger::Ledger;
use crate::log::{self, Decoded, LogEnd, Record};
use crate::node::{Change, Snapshot};
use crate::types::{NodeId, Value};

/// Bytes of a page: what a snapshot shares with the memory until it is written to.
const PAGE: usize = 64 << 10;

/// What it asks its world for, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LoggedOutput {
    /// Send this.
    Send(NodeId, ChainPacket),
    /// Change the log and make the change durable, then say [`LoggedChain::persisted`] with the token.
    Log(u64, Change),
    /// Tell the client.
    Reply(ChainReply),
    /// From here on in the data there are these bytes: for a window ([`super::Lines`]), before anybody is told what comes after.
    Data(u64, Value),
}

/// One node of a chain, with a log.
#[derive(Clone, Debug)]
pub struct LoggedChain {
    node: ChainNode,
    /// Bytes of the memory, and its pages; `None`: zeros.
    bytes: usize,
    pages: Vec<Option<Value>>,
    /// By changes of the log: up to which token the node's writes are durable with them.
    ledger: Ledger<Option<u64>>,
    /// The log says that it is damaged, and the memory does not yet.
    damaged: bool,
    /// Changes that come before what the node asks for.
    first: Option<(u64, Change)>,
    /// What was written to the data last, if that was not said yet.
    shown: Option<(u64, Value)>,
    found: LogEnd,
}

impl LoggedChain {
    /// Starts a node with its log as it was found, as [`ChainNode::new`] does with its memory. The log is compacted when it is
    /// `slack` bytes longer than twice what it holds.
    pub fn new(config: ChainConfig, now: Time, bytes: &[u8], slack: usize) -> Self {
        let Decoded { records, length, end } = log::decode(bytes);
        let layout = config.layout();
        let mut image = vec![0; layout.bytes()];
        let (mut damaged, mut told) = (matches!(end, LogEnd::Damaged(_)), false);
        for record in records {
            match record {
                Record::Bytes(at, bytes) => {
                    let place = usize::try_from(at).ok().and_then(|at| image.get_mut(at..at.checked_add(bytes.len())?));
                    // A log of another shape is no better than a damaged one.
                    place.map_or_else(|| damaged = true, |place| place.copy_from_slice(&bytes));
                    // From then on the memory says it itself.
                    told &= !layout.is_superblock(at, bytes.len());
                }
                Record::Damaged => told = true,
                Record::Write(_) | Record::Scope(_) | Record::Member(_) | Record::Reset => damaged = true,
            }
        }
        damaged |= told;
        let page = |bytes: &[u8]| bytes.iter().any(|&byte| byte != 0).then(|| Value::from(bytes));
        let pages = image.chunks(PAGE).map(page).collect();
        let node = ChainNode::with_damage(config, now, &image, damaged);
        let (bytes, ledger) = (image.len(), Ledger::new(length, slack));
        let mut this = Self { node, bytes, pages, ledger, damaged, first: None, shown: None, found: end };
        if damaged || end != LogEnd::Whole {
            // The tail is cut; damage is remembered, since without the bad record nobody could see it.
            this.first = Some(this.replaced(|snapshot| Change::Replace(snapshot.encode())));
        }
        this
    }

    /// How the log ended with which it was started.
    pub fn found(&self) -> LogEnd {
        self.found
    }

    /// The node, to look at.
    pub fn node(&self) -> &ChainNode {
        &self.node
    }

    /// Takes a client's request.
    pub fn submit(&mut self, now: &Now, request: ChainRequest) {
        self.node.submit(now, request);
    }

    /// Takes a packet.
    pub fn handle(&mut self, now: &Now, from: NodeId, packet: ChainPacket) {
        self.node.handle(now, from, packet);
    }

    /// All changes of the log up to this token are durable.
    pub fn persisted(&mut self, now: &Now, token: u64) {
        let mut durable = None;
        while let Some(token) = self.ledger.persisted(token) {
            durable = durable.max(token);
        }
        if let Some(token) = durable {
            self.node.persisted(now, token);
        }
    }

    /// The disk is full, and the log has room for so many bytes more; `None`: it is not full (any more).
    pub fn set_room(&mut self, now: &Now, room: Option<usize>) {
        self.ledger.set_room(room);
        self.node.set_full(now, room.is_some());
    }

    /// The last [`Change::Compact`] has come to nothing, for want of room: once more.
    pub fn compact(&mut self) {
        self.first = Some(self.replaced(Change::Compact));
    }

    /// When [`LoggedChain::timeout`] is due.
    pub fn next_timeout(&self) -> Time {
        self.node.next_timeout()
    }

    /// Time has passed.
    pub fn timeout(&mut self, now: &Now) {
        self.node.timeout(now);
    }

    /// The next output.
    pub fn poll(&mut self) -> Option<LoggedOutput> {
        if let Some((offset, bytes)) = self.shown.take() {
            return Some(LoggedOutput::Data(offset, bytes));
        }
        if let Some((token, change)) = self.first.take() {
            return Some(LoggedOutput::Log(token, change));
        }
        if self.ledger.is_long() {
            let (token, change) = self.replaced(Change::Compact);
            return Some(LoggedOutput::Log(token, change));
        }
        Some(match self.node.poll()? {
            ChainNodeOutput::Send(to, packet) => LoggedOutput::Send(to, packet),
            ChainNodeOutput::Reply(reply) => LoggedOutput::Reply(reply),
            ChainNodeOutput::Write(token, at, bytes) => {
                self.write(at as usize, &bytes);
                self.damaged &= !self.node.chain().layout().is_superblock(at, bytes.len());
                let bytes = Value::from(bytes);
                self.shown = self.node.chain().data_offset(at).map(|offset| (offset, bytes.clone()));
                let (number, change) = self.ledger.append(&Record::Bytes(at, bytes), Some(token));
                LoggedOutput::Log(number, change)
            }
        })
    }

    fn write(&mut self, mut at: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (page, from) = (at / PAGE, at % PAGE);
            let (now, later) = bytes.split_at(bytes.len().min(PAGE - from));
            let Some(slot) = self.pages.get_mut(page) else { return };
            let length = PAGE.min(self.bytes - page * PAGE);
            let page = slot.get_or_insert_with(|| vec![0; length].into());
            std::sync::Arc::make_mut(page)[from..from + now.len()].copy_from_slice(now);
            (at, bytes) = (at + now.len(), later);
        }
    }

    /// A log of what the memory holds.
    fn replaced(&mut self, change: impl FnOnce(Snapshot) -> Change) -> (u64, Change) {
        let mut records: Vec<Record> = self.damaged.then_some(Record::Damaged).into_iter().collect();
        let pages = (0..).zip(&self.pages).filter_map(|(number, page)| Some((number * PAGE as u64, page.clone()?)));
        records.extend(pages.map(|(at, bytes)| Record::Bytes(at, bytes)));
        self.ledger.replace(Snapshot::new(records), None, change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::{ChainOutcome, ChainRefusal, Extent, Transaction, Tuple};
    use crate::member::Standing;
    use crate::types::NodeSet;

    const DATA: usize = 100_000;

    struct Alone {
        node: LoggedChain,
        log: Vec<u8>,
        now: Time,
        replies: Vec<ChainOutcome>,
        compacted: u32,
        /// What is not durable before the test says so.
        slow: Option<Vec<u64>>,
    }

    impl Alone {
        fn start(log: Vec<u8>, now: Time) -> Self {
            let config = ChainConfig::new(NodeId(0), NodeSet::first(1), DATA);
            let node = LoggedChain::new(config, now, &log, 4000);
            let mut this = Self { node, log, now, replies: Vec::new(), compacted: 0, slow: None };
            for _ in 0..200 {
                this.pass();
            }
            this
        }

        fn pass(&mut self) {
            self.now += 50_000_000;
            self.node.timeout(&Now::simulated(self.now));
            self.run();
        }

        fn run(&mut self) {
            while let Some(output) = self.node.poll() {
                match output {
                    LoggedOutput::Log(token, change) => {
                        match change {
                            Change::Append(bytes) => self.log.extend_from_slice(&bytes),
                            Change::Replace(bytes) => self.log = bytes,
                            Change::Compact(snapshot) => {
                                self.compacted += 1;
                                self.log = snapshot.encode();
                            }
                        }
                        match &mut self.slow {
                            Some(late) => late.push(token),
                            None => self.node.persisted(&Now::simulated(self.now), token),
                        }
                    }
                    LoggedOutput::Reply(reply) => self.replies.push(reply.outcome),
                    LoggedOutput::Send(..) | LoggedOutput::Data(..) => {}
                }
            }
        }

        fn ask(&mut self, transaction: Transaction) -> ChainOutcome {
            let request = ChainRequest { tag: 1, session: None, transaction };
            self.node.submit(&Now::simulated(self.now), request);
            self.run();
            self.replies.pop().expect("an answer")
        }

        fn put(&mut self, offset: u64, bytes: &[u8]) {
            let writes = vec![Tuple { offset, data: bytes.into() }];
            assert_eq!(self.ask(Transaction { writes, ..Transaction::default() }), ChainOutcome::Done(Vec::new()));
        }

        fn get(&mut self, offset: u64) -> u8 {
            let reads = vec![Extent { offset, length: 1 }];
            match self.ask(Transaction { reads, ..Transaction::default() }) {
                ChainOutcome::Done(read) => read[0][0],
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_log_that_is_compacted_again_and_again_keeps_everything() {
        let mut alone = Alone::start(Vec::new(), 0);
        for round in 1..40u8 {
            for place in 0..20 {
                alone.put(place * 4999, &[round; 300]);
            }
        }
        assert!(alone.compacted > 1, "{}", alone.compacted);
        // Over the last whole page and behind it, and again from its log.
        alone.put(DATA as u64 - 2, &[7; 2]);
        let mut again = Alone::start(alone.log.clone(), alone.now);
        assert_eq!(again.node.found(), LogEnd::Whole);
        assert_eq!(again.node.node().standing(), Standing::Serving);
        assert!((0..20).all(|place| again.get(place * 4999 + 299) == 39));
        assert_eq!((again.get(DATA as u64 - 1), again.get(300)), (7, 0));
        // What was not written whole was never answered, and goes.
        alone.log.extend_from_slice(&[1; 30]);
        let mut torn = Alone::start(alone.log.clone(), alone.now);
        assert_eq!((torn.node.found(), torn.get(4999)), (LogEnd::Torn, 39));
        let whole = Alone::start(torn.log, torn.now);
        assert_eq!(whole.node.found(), LogEnd::Whole);
    }

    #[test]
    fn damage_is_remembered_until_the_node_has_caught_up() {
        let mut alone = Alone::start(Vec::new(), 0);
        (0..50).for_each(|place| alone.put(place * 64, &[1; 64]));
        let length = alone.log.len();
        alone.log[length - 200] ^= 1;
        let mut damaged = Alone::start(alone.log, alone.now);
        assert!(matches!(damaged.node.found(), LogEnd::Damaged(_)), "{:?}", damaged.node.found());
        assert_eq!(damaged.node.node().standing(), Standing::Damaged);
        damaged.node.compact();
        damaged.run();
        let again = Alone::start(damaged.log, damaged.now);
        assert_eq!((again.node.found(), again.node.node().standing()), (LogEnd::Whole, Standing::Damaged));
    }

    /// What is reserved of a disk is for what is under way: it is not to be filled with all that waited for a key.
    #[test]
    fn what_waits_when_a_disk_is_full_is_refused() {
        const ROOM: usize = 100_000;
        let mut alone = Alone::start(Vec::new(), 0);
        let write = |byte: u8| Transaction {
            writes: vec![Tuple { offset: 0, data: vec![byte; 10_000].into() }],
            ..Transaction::default()
        };
        alone.slow = Some(Vec::new());
        for tag in 0..100 {
            let request = ChainRequest { tag, session: None, transaction: write(tag as u8) };
            alone.node.submit(&Now::simulated(alone.now), request);
        }
        alone.run();
        let before = alone.log.len();
        alone.node.set_room(&Now::simulated(alone.now), Some(ROOM));
        // However long that takes, reads go on.
        (0..300).for_each(|_| alone.pass());
        assert_eq!(alone.get(50_000), 0);
        let late = alone.slow.take().expect("it is slow");
        late.into_iter().for_each(|token| alone.node.persisted(&Now::simulated(alone.now), token));
        alone.run();
        alone.pass();
        assert!(alone.log.len() < before + ROOM, "{} bytes", alone.log.len() - before);
        let done = ChainOutcome::Done(Vec::new());
        let full = ChainOutcome::Refused(ChainRefusal::Full);
        assert_eq!(alone.replies.iter().filter(|&it| *it == done).count(), 1);
        assert_eq!(alone.replies.iter().filter(|&it| *it == full).count(), 99);
        alone.node.set_room(&Now::simulated(alone.now), None);
        alone.replies.clear();
        assert_eq!((alone.ask(write(7)), alone.get(9_999)), (done, 7));
    }
}

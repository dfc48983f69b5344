//! Numbers that nobody else gets: a sequencer on the node, and one addition for all callers that wait.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

use remora_kernel::{Placement, SequencerParams, Status, op};
use remora_real::{Error, RemoteRegion};
use remora_service::NumberBatches;

use crate::pending::Pending;
use crate::{Client, Result, TypedCall};

/// Additions that are under way at once: who asks meanwhile shares the next.
const ADDITIONS: usize = 4;

/// A word on a node from which all clients take numbers: each gets others. [`Client::load_sequencer`] makes one; it lasts as
/// long as the client that made it is connected, and any client may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sequencer {
    /// Address of the word.
    pub address: u64,
    /// Key of its region.
    pub key: u32,
}

/// Takes so many numbers of a sequencer in one addition: a call for [`At::call`](crate::At::call). No number is given twice. Those
/// of a call whose answer does not come are nobody's.
#[derive(Clone, Copy, Debug)]
pub struct TakeNumbers {
    /// Of which.
    pub sequencer: Sequencer,
    /// How many, at least 1.
    pub count: u32,
}

impl TypedCall for TakeNumbers {
    type Reply = Range<u64>;

    fn op(&self) -> u64 {
        op::SEQUENCER
    }

    fn encode(&self, params: &mut Vec<u8>) {
        let (Sequencer { address, key }, count) = (self.sequencer, self.count);
        params.extend(SequencerParams { address, key, count }.encode());
    }

    fn decode(&self, status: Status, reply: &[u8]) -> Option<Range<u64>> {
        let first = u64::from_le_bytes(reply.try_into().ok().filter(|_| status == Status::Ok)?);
        // The word has gone round: these are no range.
        Some(first..first.checked_add(self.count.into())?)
    }
}

/// Callers of one client who want numbers of one sequencer, each one: those that wait at the same time share an addition.
///
/// ```
/// use remora::{Client, Node, Numbers, Placement};
///
/// # fn main() -> remora::Result<()> {
/// let node = Node::local()?;
/// let mut client = Client::connect(node.address())?;
/// let orders = client.load_sequencer(1000)?;
/// let mut numbers = Numbers::new(orders, Placement::Nic);
/// assert_eq!(numbers.next(&mut client)?, 1000);
/// let callers: Vec<_> = (0..100).map(|_| numbers.ask()).collect();
/// let mut given = Vec::new();
/// for caller in callers {
///     given.push(numbers.wait(&mut client, caller)?);
/// }
/// assert_eq!(given, (1001..1101).collect::<Vec<_>>());
/// assert_eq!(numbers.additions(), 2); // one for the first, and one for the hundred
/// # Ok(())
/// # }
/// ```
pub struct Numbers {
    desk: Desk<()>,
    /// Numbers that nobody has fetched yet, by caller.
    given: BTreeMap<u64, u64>,
}

/// A caller that waits for a number: see [`Numbers::ask`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the number is had by `Numbers::wait`"]
pub struct NumberCaller(u64);

impl Numbers {
    /// Of a sequencer, by additions at a place.
    pub fn new(sequencer: Sequencer, placement: Placement) -> Self {
        Self { desk: Desk::new(sequencer, placement), given: BTreeMap::new() }
    }

    /// A caller wants a number. The addition is made with the next [`wait`](Self::wait) or [`poll`](Self::poll), for all that
    /// want one then.
    pub fn ask(&mut self) -> NumberCaller {
        NumberCaller(self.desk.ask(()))
    }

    /// Makes additions that are due, and drives the client. Returns how many callers have got their numbers by that. After an
    /// error those whose addition has no answer wait for another.
    pub fn poll(&mut self, client: &mut Client) -> Result<usize> {
        let before = self.given.len();
        let (desk, given) = (&mut self.desk, &mut self.given);
        desk.post(client);
        let polled = client.poll();
        let ended = desk.end(|caller, (), number| {
            given.insert(caller, number);
        });
        polled.and(ended).map(|()| self.given.len() - before)
    }

    /// The number of a caller. After an error it gets none; it takes no longer than any call of the client's
    /// [may](crate::ClientBuilder::timeout).
    pub fn wait(&mut self, client: &mut Client, caller: NumberCaller) -> Result<u64> {
        let start = Instant::now();
        loop {
            if let Some(number) = self.given.remove(&caller.0) {
                return Ok(number);
            }
            // What failed may be an addition for others.
            if let Err(error) = self.poll(client).and_then(|_| client.in_time(start))
                && !self.given.contains_key(&caller.0)
            {
                self.desk.leave(caller.0);
                return Err(error);
            }
        }
    }

    /// A number for one caller.
    pub fn next(&mut self, client: &mut Client) -> Result<u64> {
        let caller = self.ask();
        self.wait(client, caller)
    }

    /// Additions so far.
    pub fn additions(&self) -> u64 {
        self.desk.additions
    }
}

/// Those who wait for numbers of one sequencer, and the additions for them.
pub(crate) struct Desk<T> {
    sequencer: Sequencer,
    placement: Placement,
    batches: NumberBatches<u64>,
    waiting: BTreeMap<u64, T>,
    under_way: Vec<(u64, Pending<TakeNumbers>)>,
    callers: u64,
    additions: u64,
}

impl<T> Desk<T> {
    pub fn new(sequencer: Sequencer, placement: Placement) -> Self {
        let (batches, waiting) = (NumberBatches::new(ADDITIONS), BTreeMap::new());
        Self { sequencer, placement, batches, waiting, under_way: Vec::new(), callers: 0, additions: 0 }
    }

    /// Somebody wants a number.
    pub fn ask(&mut self, who: T) -> u64 {
        let caller = self.callers;
        self.callers += 1;
        self.waiting.insert(caller, who);
        self.batches.ask(caller);
        caller
    }

    /// Who asked wants no number any more.
    fn leave(&mut self, caller: u64) {
        self.waiting.remove(&caller);
        self.batches.gone(caller);
    }

    /// Makes the additions that are due.
    pub fn post(&mut self, client: &mut Client) {
        while let Some(addition) = self.batches.next_addition() {
            let call = TakeNumbers { sequencer: self.sequencer, count: addition.count };
            self.under_way.push((addition.number, client.start(Some(self.placement), call)));
            self.additions += 1;
        }
    }

    /// Gives numbers out that have come. An error if an addition failed: its callers wait again.
    pub fn end(&mut self, mut give: impl FnMut(u64, T, u64)) -> Result<()> {
        let (batches, waiting, mut failed) = (&mut self.batches, &mut self.waiting, Ok(()));
        self.under_way.retain_mut(|(number, pending)| {
            match pending.try_finish() {
                None => return true,
                Some(Ok(numbers)) => batches.answered(*number, numbers.start, |caller, number| {
                    if let Some(who) = waiting.remove(&caller) {
                        give(caller, who, number);
                    }
                }),
                Some(Err(error)) => {
                    batches.lost(*number);
                    failed = Err(error);
                }
            }
            false
        });
        failed
    }

    /// Whether nobody waits.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_empty()
    }

    /// All who wait: they get no number any more.
    pub fn give_up(&mut self) -> impl Iterator<Item = T> {
        self.batches.all_gone();
        std::mem::take(&mut self.waiting).into_values()
    }
}

impl Client {
    /// A sequencer in memory of the node, whose first number is `first`.
    pub fn load_sequencer(&mut self, first: u64) -> Result<Sequencer> {
        let RemoteRegion { va: address, key, len } = self.alloc(64)?;
        self.write(&RemoteRegion { va: address, key, len }, 0, &first.to_le_bytes())?;
        Ok(Sequencer { address, key })
    }
}

/// Why somebody gets no number, when one error ends many.
pub(crate) fn shared(error: &Error) -> Error {
    match error {
        Error::Lost { address, status } => Error::Lost { address: *address, status: *status },
        Error::Kernel { op, placement, status } => Error::Kernel { op: *op, placement: *placement, status: *status },
        error => Error::Node { what: "give a number", why: error.to_string() },
    }
}

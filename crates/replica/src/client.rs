//! The client half of replicated services: requests under way, attempts at them, and the node that is asked.
//!
//! A [`ServiceClient`] has any number of requests under way at one node, and turns to the next node when that one fails,
//! is silent or does not serve. It dials nothing and sends nothing itself. How to drive it:
//!
//! 1. Say what happens: [`ServiceClient::start`] a request; the connection that was ordered stands
//!    ([`ServiceClient::connected`]) or is gone ([`ServiceClient::lost`]); a node's answer has come
//!    ([`ServiceClient::answered`]); at [`ServiceClient::next_timeout`], time has passed
//!    ([`ServiceClient::handle_timeout`]).
//! 2. After each, do what it asks for until it asks for nothing: [`ServiceClient::poll_order`] for the connection,
//!    [`ServiceClient::poll_transmit`] for requests to be sent on it, [`ServiceClient::poll_ended`] for what has ended.
//!
//! There is one connection at a time. What comes on one that was given up is not to be handed in: a request is sent
//! again on one only after an answer, so that its answer is always that to its last attempt.
//!
//! **Attempts.** With [`ClientConfig::retry`] a request that writes has a name and counts how often it was sent with an
//! unknown outcome ([`Session`]); the record's mark tells a later attempt that an earlier one was done. Requests under way
//! at the same time have different names, as a record remembers one request of each. A name goes on to the next request
//! with a higher number, which overtakes whatever is left of the one before.
//!
//! **Refusals.** A node that does not serve has not taken the request: another one is asked, and it is the same attempt.
//! Once an attempt may have been taken, no later refusal for want of room or service is the last word, not even of a
//! part of a batch: the earlier attempt may still do what this one refused. Other refusals are: they are the same at
//! every node, and the attempt that meets one leaves its mark, so that earlier ones come to nothing. A node that is
//! busy serves: it is asked again after a pause, on the same connection, as leaving it would cut off what keeps it busy,
//! which may be this client's own. A PERSIST that a node refuses since it does not know the scope is tried nowhere else:
//! no node knows more, and its writes would have to be made again.
//!
//! **Batches.** The next attempt at a batch has the operations that lack their last word, and no others: what is done,
//! or has left its mark, would take room from those that found none, in each attempt anew.

mod store;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;

use crate::Time;
use crate::bounds::Bounds;
use crate::ddp::Session;

pub use store::StoreExchange;

/// A client of replicated records.
pub type ReplicaClient = ServiceClient<StoreExchange>;

/// A request to one kind of service: how it is made, what is sent in each attempt, and what answers to it mean.
pub trait Exchange: Clone + Debug + Sized {
    /// What a client wants done.
    type Wish;
    /// What is sent.
    type Request: Clone + Debug;
    /// How it ends.
    type Outcome: Clone + PartialEq + Debug;
    /// It may have been done or not, or may still be.
    const UNKNOWN: Self::Outcome;
    /// No node serves: it was not done.
    const NOT_SERVING: Self::Outcome;

    /// How it ends if nodes would refuse it anyway, or end the connection.
    fn refused(wish: &Self::Wish) -> Option<Self::Outcome>;
    /// Whether it needs a name to be sent again.
    fn writes(wish: &Self::Wish) -> bool;
    /// A request, with a name if it is to be sent again.
    fn new(tag: u64, session: Option<Session>, wish: Self::Wish) -> Self;
    /// What is to be sent.
    fn request(&self) -> &Self::Request;
    /// Its name.
    fn session(&mut self) -> Option<&mut Session>;
    /// Whether it may be sent again without a name, as it changes nothing.
    fn only_reads(&self) -> bool;
    /// What an answer means for it, if an earlier attempt may have been taken or not.
    fn judge(&self, outcome: &Self::Outcome, maybe_taken: bool) -> Verdict;
    /// Whether a refusal, or all that stand in the way, is for want of room alone.
    fn is_busy(outcome: &Self::Outcome) -> bool;
    /// Keeps the last words of an answer that is not the last word on all of it.
    fn keep(&mut self, _: &Self::Outcome) {}
    /// The outcome of the whole request, of which this is that of what the last attempt had.
    fn whole(self, outcome: Self::Outcome) -> Self::Outcome {
        outcome
    }
}

/// What an answer means for its request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is the last word.
    Final,
    /// The node has not taken it: the same attempt may be made elsewhere; at the node of this number, if it says so.
    NotTaken(Option<usize>),
    /// It may have been taken: the next attempt.
    MaybeTaken,
}

/// How a client is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// How many nodes there are.
    pub nodes: usize,
    /// The number of the node to begin with.
    pub node: usize,
    /// Its requests get the names above this one: unique in the cluster with any number below 2^20 added.
    pub name: u64,
    /// After so long (ns) without an answer a request's outcome is unknown.
    pub timeout: Time,
    /// Whether a write whose outcome is unknown is sent again until `timeout`, to another node. It is done once, unless
    /// more clients than a record remembers have written it in between ([`crate::ddp::Config::stamps`]).
    pub retry: bool,
    /// How long (ns) a node may take to answer a call.
    pub dial: Time,
    /// How long (ns) a node may leave all requests unanswered before the next one is asked.
    pub silence: Time,
    /// How long (ns) to wait before the next call when all nodes have been called in vain, or one does not serve.
    pub pause: Time,
}

impl ClientConfig {
    /// Five seconds, no retries, beginning with node 0, and times as products ship with.
    pub const fn new(nodes: usize, name: u64) -> Self {
        let Bounds { dial, silence, pause, .. } = Bounds::SHIPPED;
        Self { nodes, node: 0, name, timeout: 5_000_000_000, retry: false, dial, silence, pause }
    }
}

/// Names a request that is under way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// Where a request's time went, seen from the node that answered it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// From the request's arrival to its answer, in nanoseconds. 0 if there was none.
    pub total_ns: u64,
    /// Of that, communication: from sending the write to the others until the last acknowledgement that the answer
    /// waited for, without the time for which its sender worked on it. The rest is computation: protocol, memory, log.
    pub communication_ns: u64,
}

/// How a request ended.
#[derive(Clone, PartialEq, Debug)]
pub struct Ended<O = crate::ddp::Outcome> {
    /// Which request.
    pub ticket: Ticket,
    /// How. Unknown: no answer came in time, or the connection broke before one did; it may have been done
    /// or not, or may still be. Refused: it was not done and will not be. Of a batch that was answered in
    /// part, each operation for itself.
    pub outcome: O,
    /// From [`ServiceClient::start`] to the answer, in nanoseconds.
    pub latency_ns: u64,
    /// Where a write's time went at the node.
    pub split: Split,
}

/// What is to become of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Connect to the node with this number, then say [`ServiceClient::connected`]; if that fails,
    /// [`ServiceClient::lost`].
    Call(usize),
    /// End the connection, or the call, that there is. Nothing that comes of it counts any more.
    HangUp,
}

/// A client of a cluster.
#[derive(Clone, Debug)]
pub struct ServiceClient<X: Exchange> {
    config: ClientConfig,
    line: Line,
    /// The one that it talks to, or calls next.
    node: usize,
    /// Nodes called in vain since the last connection.
    failures: usize,
    /// The node has said that it does not serve, or not all; and who does.
    refused: bool,
    sent_to: Option<usize>,
    hang_up: bool,
    names: Names,
    next: u64,
    /// Requests without an answer, by ticket.
    open: BTreeMap<u64, Open<X>>,
    /// Of those, which are still to be sent, in order.
    unsent: VecDeque<u64>,
    /// Those that the node was too busy for: to be sent again after a while.
    put_off: Vec<u64>,
    put_off_until: Time,
    ended: VecDeque<Ended<X::Outcome>>,
    /// When the node was heard last, or given something to do.
    heard: Time,
    /// Nothing is to be done by the clock before this.
    due: Time,
}

/// The connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Line {
    /// Nobody is called before this time.
    Apart(Time),
    /// A call is under way, which has until then.
    Calling(Time),
    Connected,
}

/// Names that no other request under way has.
#[derive(Clone, Debug)]
struct Names {
    base: u64,
    made: u64,
    free: Vec<u64>,
}

impl Names {
    fn take(&mut self) -> u64 {
        self.free.pop().unwrap_or_else(|| {
            self.made += 1;
            self.base + self.made
        })
    }
}

/// A request without an answer.
#[derive(Clone, Debug)]
struct Open<X> {
    exchange: X,
    since: Time,
    /// On the connection that stands.
    sent: bool,
}

impl<X: Exchange> Open<X> {
    /// May it be sent again though it may have been taken?
    fn again(&mut self) -> bool {
        self.sent = false;
        if let Some(session) = self.exchange.session() {
            session.attempt += 1;
            return true;
        }
        self.exchange.only_reads()
    }

    /// An earlier attempt may have been taken.
    fn maybe_taken(&mut self) -> bool {
        self.exchange.session().is_some_and(|session| session.attempt > 0)
    }
}

impl<X: Exchange> ServiceClient<X> {
    /// A client that knows of no node yet whether it is there.
    pub fn new(config: ClientConfig) -> Self {
        Self {
            line: Line::Apart(0),
            node: config.node % config.nodes.max(1),
            failures: 0,
            refused: false,
            sent_to: None,
            hang_up: false,
            names: Names { base: config.name, made: 0, free: Vec::new() },
            next: 0,
            open: BTreeMap::new(),
            unsent: VecDeque::new(),
            put_off: Vec::new(),
            put_off_until: Time::MAX,
            ended: VecDeque::new(),
            heard: 0,
            due: 0,
            config,
        }
    }

    /// The number of the node that it talks to, or calls.
    pub fn node(&self) -> usize {
        self.node
    }

    /// Whether a connection stands.
    pub fn is_connected(&self) -> bool {
        self.line == Line::Connected
    }

    /// Requests under way.
    pub fn under_way(&self) -> usize {
        self.open.len()
    }

    /// Requests under way, in the order of their beginning.
    pub fn requests(&self) -> impl Iterator<Item = &X::Request> {
        self.open.values().map(|open| open.exchange.request())
    }

    /// From now on a request's outcome is unknown after so long (ns).
    pub fn set_timeout(&mut self, timeout: Time) {
        self.config.timeout = timeout;
        self.due = 0;
    }

    /// Starts a request.
    pub fn start(&mut self, now: Time, wish: X::Wish) -> Ticket {
        let tag = self.next;
        self.next += 1;
        if let Some(outcome) = X::refused(&wish) {
            self.ended.push_back(Ended { ticket: Ticket(tag), outcome, latency_ns: 0, split: Split::default() });
            return Ticket(tag);
        }
        let named = self.config.retry && X::writes(&wish);
        let session = named.then(|| Session { client: self.names.take(), sequence: tag + 1, attempt: 0 });
        if self.open.is_empty() {
            self.heard = now;
            self.due = self.due.min(now.saturating_add(self.config.silence.min(self.config.timeout)));
        }
        self.open.insert(tag, Open { exchange: X::new(tag, session, wish), since: now, sent: false });
        self.unsent.push_back(tag);
        Ticket(tag)
    }

    /// The connection that was ordered stands.
    pub fn connected(&mut self, now: Time) {
        if let Line::Calling(_) = self.line {
            self.line = Line::Connected;
            self.heard = now;
            self.failures = 0;
            self.due = 0;
        }
    }

    /// The connection, or the call that was ordered, has failed.
    pub fn lost(&mut self, now: Time) {
        if !matches!(self.line, Line::Apart(_)) {
            self.leave(now);
        }
    }

    /// The node has said something on the connection, an answer or not.
    #[inline]
    pub fn heard(&mut self, now: Time) {
        self.heard = now;
    }

    /// An answer to the request with this tag has come on the connection.
    pub fn answered(&mut self, now: Time, tag: u64, outcome: X::Outcome, split: Split) {
        self.heard = now;
        let Some(open) = self.open.get_mut(&tag).filter(|open| open.sent) else { return };
        let maybe_taken = open.maybe_taken();
        let again = match open.exchange.judge(&outcome, maybe_taken) {
            Verdict::Final => false,
            Verdict::NotTaken(elsewhere) => {
                self.sent_to = elsewhere;
                true
            }
            Verdict::MaybeTaken => {
                open.exchange.keep(&outcome);
                open.again()
            }
        };
        if again && X::is_busy(&outcome) {
            open.sent = false;
            if self.put_off.is_empty() {
                self.put_off_until = now.saturating_add(self.config.pause);
                self.due = self.due.min(self.put_off_until);
            }
            self.put_off.push(tag);
        } else if again {
            open.sent = false;
            self.unsent.push_back(tag);
            self.refused = true;
        } else {
            self.end(now, tag, outcome, split);
        }
    }

    /// When [`ServiceClient::handle_timeout`] is due, or [`ServiceClient::poll_order`] has something to say.
    pub fn next_timeout(&self) -> Time {
        match self.line {
            Line::Apart(until) => until.min(self.due),
            _ => self.due,
        }
    }

    /// Time has passed.
    #[inline]
    pub fn handle_timeout(&mut self, now: Time) {
        if now >= self.due {
            self.look(now);
        }
    }

    fn look(&mut self, now: Time) {
        self.give_up(now);
        if now >= self.put_off_until {
            self.take_up();
        }
        let fails = match self.line {
            Line::Apart(_) => false,
            Line::Calling(until) => now >= until,
            Line::Connected => !self.open.is_empty() && now.saturating_sub(self.heard) > self.config.silence,
        };
        if fails {
            self.hang_up = true;
            self.leave(now);
        }
        let oldest = self.open.first_key_value().map(|(_, open)| open.since.saturating_add(self.config.timeout));
        let line = match self.line {
            Line::Calling(until) => until,
            Line::Connected if !self.open.is_empty() => self.heard.saturating_add(self.config.silence + 1),
            _ => Time::MAX,
        };
        self.due = oldest.unwrap_or(Time::MAX).min(line).min(self.put_off_until);
    }

    /// What was put off is to be sent.
    fn take_up(&mut self) {
        self.unsent.extend(self.put_off.drain(..));
        self.put_off_until = Time::MAX;
    }

    /// What is to become of the connection; `None` if it may stay as it is.
    pub fn poll_order(&mut self, now: Time) -> Option<Order> {
        if self.refused && self.line == Line::Connected {
            self.hang_up = true;
            self.leave(now);
        }
        if std::mem::take(&mut self.hang_up) {
            return Some(Order::HangUp);
        }
        match self.line {
            Line::Apart(until) if now >= until => {
                let until = now.saturating_add(self.config.dial);
                self.line = Line::Calling(until);
                self.due = self.due.min(until);
                Some(Order::Call(self.node))
            }
            _ => None,
        }
    }

    /// The next request to be sent on the connection.
    pub fn poll_transmit(&mut self) -> Option<&X::Request> {
        if self.line != Line::Connected {
            return None;
        }
        // Whoever is gone has run out of time.
        while let Some(tag) = self.unsent.pop_front() {
            if self.open.contains_key(&tag) {
                let open = self.open.get_mut(&tag)?;
                open.sent = true;
                return Some(open.exchange.request());
            }
        }
        None
    }

    /// The next request that has ended.
    pub fn poll_ended(&mut self) -> Option<Ended<X::Outcome>> {
        self.ended.pop_front()
    }

    /// To the next node; after a pause if all have been tried, or if this one does not serve: others may not know yet.
    /// What was sent is sent again there, or its outcome is unknown.
    fn leave(&mut self, now: Time) {
        let next = self.sent_to.take().unwrap_or(self.node + 1);
        self.node = next % self.config.nodes.max(1);
        self.failures += 1;
        let pause = std::mem::take(&mut self.refused) || self.failures.is_multiple_of(self.config.nodes.max(1));
        self.line = Line::Apart(now + if pause { self.config.pause } else { 0 });
        self.take_up();
        let sent: Vec<u64> = self.open.iter().filter(|(_, open)| open.sent).map(|(&tag, _)| tag).collect();
        for tag in sent {
            match self.open.get_mut(&tag).is_some_and(Open::again) {
                true => self.unsent.push_back(tag),
                false => self.end(now, tag, X::UNKNOWN, Split::default()),
            }
        }
    }

    /// Ends what has run out of time. Nobody has taken what only nodes that do not serve were asked for.
    fn give_up(&mut self, now: Time) {
        // They are in the order of their beginning.
        while let Some(mut first) = self.open.first_entry()
            && now.saturating_sub(first.get().since) >= self.config.timeout
        {
            let (tag, open) = (*first.key(), first.get_mut());
            let never = !open.sent && !open.maybe_taken();
            let outcome = if never { X::NOT_SERVING } else { X::UNKNOWN };
            self.end(now, tag, outcome, Split::default());
        }
    }

    fn end(&mut self, now: Time, tag: u64, outcome: X::Outcome, split: Split) {
        let Some(mut open) = self.open.remove(&tag) else { return };
        self.names.free.extend(open.exchange.session().map(|session| session.client));
        let latency_ns = now.saturating_sub(open.since);
        let outcome = open.exchange.whole(outcome);
        self.ended.push_back(Ended { ticket: Ticket(tag), outcome, latency_ns, split });
    }
}

#[cfg(test)]
mod tests;

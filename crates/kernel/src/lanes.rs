//! Look-ups of one client, side by side.
//!
//! Such a call is little more than where it is: a line of numbers, and no state within states. What every access of every call
//! would find out, which region a key names, is found out once a turn.

use crate::btree::{Ground, TreeRef};
use crate::builtins::op;
use crate::call::{Call, Status};
use crate::get::Get;
use crate::host::{HostMemory, METERED_BYTES, PREFETCH_BYTES};
use crate::kv::{Find, Rewrite};
use crate::memory::{Limits, PIECE};
use crate::pool::{Beside, POLL};
use crate::steps::{Held, LINE, Read, Steps, Stop};
use crate::traversal::Traversal;
use remora_memory::{Access, Pd, Region, Runs, WordsMut};
use std::collections::VecDeque;
use trees::Trees;

/// Calls that have begun, at most: enough to wait for memory side by side, and few enough that all they touch stays close to
/// the core.
const BEGUN: usize = 32;
/// So many begin as they come. Others begin together in the next turn: asked for side by side, what they read comes sooner.
const FEW: usize = 4;

/// Calls of one client, in one protection domain.
#[derive(Default)]
pub(crate) struct Lanes {
    pd: Option<Pd>,
    waiting: VecDeque<Call>,
    /// How many have begun.
    begun: usize,
    gets: Lane<Get>,
    traversals: Lane<Traversal>,
    finds: Lane<Find>,
    rewrites: Lane<Rewrite>,
    trees: Trees,
}

/// Calls of one kernel that have begun.
struct Lane<S> {
    walks: Vec<Walk<S>>,
    ending: Vec<Ending>,
}

impl<S> Default for Lane<S> {
    fn default() -> Self {
        Lane { walks: Vec::new(), ending: Vec::new() }
    }
}

/// A call on its way.
struct Walk<S> {
    /// None once it has gone to those that end.
    call: Option<Call>,
    steps: S,
    /// What it has asked for.
    at: Place,
    /// What it may still read.
    accesses: u32,
    bytes: u64,
    /// Bytes that its reply may have.
    room: u32,
}

/// A call that has asked for its reply, or fails.
struct Ending {
    call: Call,
    reply: Place,
    fails: Option<Stop>,
}

#[derive(Clone, Copy)]
struct Place {
    va: u64,
    key: u32,
    len: u32,
}

/// What a call does next.
enum Next {
    Walks,
    Ends,
    Fails(Stop),
}

impl Lanes {
    /// Whether a call belongs here: of which domain it is to be.
    #[inline(always)]
    pub fn takes(&self, call: &Call) -> Option<Pd> {
        let fits = |pd: &Pd| self.pd == Some(*pd) || self.is_empty();
        call.pd.filter(|pd| {
            let in_steps = matches!(call.op, op::GET | op::TRAVERSAL | op::KV_GET | op::KV_PUT | op::KV_UPDATE);
            (in_steps || is_trees(call.op)) && fits(pd)
        })
    }

    /// Takes in a call that belongs here, and asks for what it reads first if it is to begin. Returns what that cost.
    #[inline(always)]
    pub fn start(&mut self, call: Call, memory: &HostMemory, limits: Limits) -> i64 {
        self.pd = call.pd;
        // Those of trees ask for nothing yet.
        let most = if is_trees(call.op) { BEGUN } else { FEW };
        if self.begun >= most || !self.waiting.is_empty() {
            self.waiting.push_back(call);
            return 0;
        }
        let mut reads = Reads::new(memory);
        self.begin(call, limits, &mut reads);
        reads.work
    }

    #[inline(always)]
    fn begin(&mut self, call: Call, limits: Limits, reads: &mut Reads<'_>) {
        self.begun += 1;
        match call.op {
            op::GET => self.gets.begin(call, limits, reads),
            op::KV_GET => self.finds.begin(call, limits, reads),
            op::KV_PUT | op::KV_UPDATE => self.rewrites.begin(call, limits, reads),
            op::TREE_GET | op::TREE_PUT | op::TREE_SCAN => self.trees.begin(call),
            _ => self.traversals.begin(call, limits, reads),
        }
    }

    #[inline(never)]
    fn begin_waiting(&mut self, limits: Limits, reads: &mut Reads<'_>) {
        while self.begun < BEGUN
            && let Some(call) = self.waiting.pop_front()
        {
            self.begin(call, limits, reads);
        }
    }

    /// The domain, while there are calls.
    #[inline]
    pub fn pd(&self) -> Option<Pd> {
        self.pd.filter(|_| !self.is_empty())
    }

    /// Polls the calls, each about once, until `balance` is spent. Returns what is left of it, and what of it was not for
    /// polls.
    #[inline]
    pub fn poll(
        &mut self,
        (memory, limits): (&HostMemory, Limits),
        mut balance: i64,
        ended: &mut impl FnMut(Call, Result<(), Stop>),
    ) -> (i64, i64) {
        let mut reads = Reads::new(memory);
        // So many polls are each call's, about once.
        let last = balance - self.len() as i64 * POLL;
        loop {
            self.begun -= self.gets.poll(&mut reads, &mut balance, ended);
            self.begun -= self.traversals.poll(&mut reads, &mut balance, ended);
            self.begun -= self.finds.poll(&mut reads, &mut balance, ended);
            self.begun -= self.rewrites.poll(&mut reads, &mut balance, ended);
            self.begun -= self.trees.poll(&mut reads, &mut balance, ended);
            if !self.waiting.is_empty() {
                self.begin_waiting(limits, &mut reads);
            }
            let others_run = memory.prefetches() && (self.waiting.is_empty() || balance <= last);
            if others_run || balance <= reads.work || self.is_empty() {
                return (balance - reads.work, reads.work);
            }
        }
    }
}

/// Whether a kernel is of the lanes of trees.
#[inline(always)]
fn is_trees(op: u64) -> bool {
    matches!(op, op::TREE_GET | op::TREE_PUT | op::TREE_SCAN)
}

/// How many polls a balance is for.
#[inline]
fn polls(balance: i64) -> usize {
    usize::try_from((balance + POLL - 1) / POLL).unwrap_or(0)
}

/// Of calls of which the first `polled` were, and `stay` of these go on: who was not polled is first next time.
#[inline(always)]
fn take_turns<T>(calls: &mut Vec<T>, polled: usize, stay: usize, stays: impl Fn(&T) -> bool) {
    if stay == 0 && polled == calls.len() {
        calls.clear();
    } else if polled < calls.len() || stay < polled {
        calls.retain(stays);
        calls.rotate_left(stay);
    }
}

impl<S: Steps> Lane<S> {
    /// Begins a call.
    #[inline(always)]
    fn begin(&mut self, call: Call, limits: Limits, reads: &mut Reads<'_>) {
        let Self { walks, ending } = self;
        let Limits { steps: accesses, bytes } = limits;
        let room = if S::ENDS { u32::MAX } else { call.reply_room() as u32 };
        let reply = Place { va: 0, key: 0, len: 0 };
        let (steps, read) = match S::begin(&call.params) {
            Ok(begun) => begun,
            Err(stop) => return ending.push(Ending { call, reply, fails: Some(stop) }),
        };
        let mut walk = Walk { call: None, steps, at: reply, accesses, bytes, room };
        match walk.ask(&read, reads) {
            Next::Walks => {
                walk.call = Some(call);
                walks.push(walk);
            }
            Next::Ends => ending.push(Ending { call, reply: walk.at, fails: None }),
            Next::Fails(stop) => ending.push(Ending { call, reply, fails: Some(stop) }),
        }
    }

    /// Lets calls go on, each once, until `balance` is spent: first those that end, as they have waited longest. Returns how
    /// many have ended.
    #[inline(always)]
    fn poll(
        &mut self,
        reads: &mut Reads<'_>,
        balance: &mut i64,
        ended: &mut impl FnMut(Call, Result<(), Stop>),
    ) -> usize {
        let count = self.ending.len().min(polls(*balance));
        *balance -= count as i64 * POLL;
        for Ending { mut call, reply, fails } in self.ending.drain(..count) {
            let result = match fails {
                Some(stop) => Err(stop),
                None => reads.reply::<S>(reply, &mut call),
            };
            ended(call, result);
        }
        if !self.walks.is_empty() {
            self.walk(reads, balance);
        }
        count
    }

    #[inline(always)]
    fn walk(&mut self, reads: &mut Reads<'_>, balance: &mut i64) {
        let Self { walks, ending } = self;
        let most = walks.len().min(polls(*balance));
        let (mut polled, mut stay) = (0, 0);
        for walk in &mut walks[..most] {
            // Long reads of other lanes leave each one step.
            if polled > 0 && reads.work >= *balance {
                break;
            }
            (polled, *balance) = (polled + 1, *balance - POLL);
            let fails = match walk.go_on(reads) {
                Next::Walks => {
                    stay += 1;
                    continue;
                }
                Next::Ends => None,
                Next::Fails(stop) => Some(stop),
            };
            if let Some(call) = walk.call.take() {
                ending.push(Ending { call, reply: walk.at, fails });
            }
        }
        take_turns(walks, polled, stay, |walk| walk.call.is_some());
    }

    fn cancel(&mut self, tag: u64) -> bool {
        let walks = self.walks.iter().position(|walk| walk.call.as_ref().is_some_and(|call| call.tag == tag));
        let ending = self.ending.iter().position(|ending| ending.call.tag == tag);
        walks.map(|at| self.walks.remove(at)).is_some() || ending.map(|at| self.ending.remove(at)).is_some()
    }
}

impl<S: Steps> Walk<S> {
    /// Makes the read that was asked for, and asks for the next.
    #[inline(always)]
    fn go_on(&mut self, reads: &mut Reads<'_>) -> Next {
        let mut line = [0; LINE];
        let there = match self.at.len as usize {
            // Of a length that the compiler knows.
            LINE => reads.bring(self.at, &mut line),
            len => reads.bring(self.at, &mut line[..len]),
        };
        if !there {
            return Next::Fails(Status::AccessDenied.into());
        }
        match self.steps.next(&line) {
            Ok(read) => self.ask(&read, reads),
            Err(status) => Next::Fails(status),
        }
    }

    /// Pays for the next read, and asks for its bytes.
    #[inline(always)]
    fn ask(&mut self, &Read { va, key, len, last }: &Read, reads: &mut Reads<'_>) -> Next {
        if last && len > self.room {
            return Next::Fails(Status::ReplyTooLong.into());
        }
        if last && len as usize > PIECE {
            // It is read in pieces, between which others run.
            return Next::Fails(Stop::Apart);
        }
        // A kernel that makes more of its reads says by itself how it ends without them.
        let ends = |status| Next::Fails(if S::ENDS { Stop::Apart } else { Stop::Ends(status) });
        if self.accesses == 0 {
            return ends(Status::StepLimit);
        }
        if u64::from(len) > self.bytes {
            return ends(Status::ByteLimit);
        }
        self.accesses -= 1;
        self.bytes -= u64::from(len);
        self.at = Place { va, key, len };
        match reads.ask(self.at, last) {
            false => Next::Fails(Status::AccessDenied.into()),
            true if last => Next::Ends,
            true => Next::Walks,
        }
    }
}

impl Beside for Lanes {
    #[inline(always)]
    fn len(&self) -> usize {
        self.begun + self.waiting.len()
    }

    fn cancel(&mut self, tag: u64) -> bool {
        if let Some(at) = self.waiting.iter().position(|call| call.tag == tag) {
            return self.waiting.remove(at).is_some();
        }
        let began = self.gets.cancel(tag)
            || self.traversals.cancel(tag)
            || self.finds.cancel(tag)
            || self.rewrites.cancel(tag)
            || self.trees.cancel(tag);
        self.begun -= usize::from(began);
        began
    }
}

/// The memory as the calls of one turn read it.
struct Reads<'m> {
    memory: &'m HostMemory,
    /// The regions that were read last, on the way and for a reply.
    way: Known<'m>,
    replies: Known<'m>,
    /// The tree that was looked at last.
    tree: Option<Seen<'m>>,
    /// What long reads cost, in half nanoseconds.
    work: i64,
}

/// A region that was found.
#[derive(Clone, Copy)]
struct Known<'m> {
    key: u32,
    region: Option<&'m Region>,
}

/// A tree that was looked at, which may be read as long as its region is there.
struct Seen<'m> {
    key: u32,
    nodes: (u64, u64),
    region: &'m Region,
    slots: Runs<'m>,
}

impl<'m> Known<'m> {
    /// The region of a key that may be read, which may be another than at the last step: unless the memory has no room to
    /// remember it, or there is none.
    #[inline(always)]
    fn find(&mut self, memory: &'m HostMemory, key: u32) -> Option<&'m Region> {
        if self.region.is_none() || self.key != key {
            let may = |region: &&Region| region.access().contains(Access::REMOTE_READ);
            *self = Known { key, region: memory.remembered(key).filter(may) };
        }
        self.region
    }
}

impl<'m> Ground<'m> for Reads<'m> {
    #[inline(always)]
    fn slots(&mut self, tree: &TreeRef) -> Option<Runs<'m>> {
        if let Some(seen) = &self.tree
            && (seen.key, seen.nodes) == (tree.key, tree.nodes())
            && seen.region.is_valid()
        {
            return Some(seen.slots);
        }
        self.look_up(tree)
    }

    #[inline(always)]
    fn slot_mut(&mut self, tree: &TreeRef, slot: u32) -> Option<WordsMut<'m>> {
        let need = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let region = self.way.find(self.memory, tree.key)?;
        let (va, len) = tree.node(slot);
        region.check(self.memory.pd(), va, len, need).ok()?;
        region.view_mut(va, usize::try_from(len).ok()?)
    }
}

impl<'m> Reads<'m> {
    #[inline(always)]
    fn new(memory: &'m HostMemory) -> Self {
        let known = Known { key: 0, region: None };
        Reads { memory, way: known, replies: known, tree: None, work: 0 }
    }

    #[inline(never)]
    fn look_up(&mut self, tree: &TreeRef) -> Option<Runs<'m>> {
        let (va, len) = tree.nodes();
        let region = self.way.find(self.memory, tree.key)?;
        region.check(self.memory.pd(), va, len, Access::REMOTE_READ).ok()?;
        let slots = region.view(va, usize::try_from(len).ok()?)?.runs(usize::from(tree.node_bytes) / 8);
        self.tree = Some(Seen { key: tree.key, nodes: (va, len), region, slots });
        Some(slots)
    }

    /// Asks for bytes. False if they may not be read.
    #[inline(always)]
    fn ask(&mut self, Place { va, key, len }: Place, last: bool) -> bool {
        let len = len as usize;
        if len >= METERED_BYTES {
            self.work += len as i64 / 8;
        }
        let known = if last { &mut self.replies } else { &mut self.way };
        // A read of no bytes names no memory.
        if len > 0
            && let Some(region) = known.find(self.memory, key)
        {
            let most = if self.memory.prefetches() { PREFETCH_BYTES } else { 0 };
            return region.ask((self.memory.pd(), Access::REMOTE_READ), va, len, most).is_ok();
        }
        true
    }

    /// Brings bytes on the way that were asked for. False if they may not be read any more.
    #[inline(always)]
    fn bring(&mut self, at: Place, out: &mut [u8]) -> bool {
        read(self.memory, &mut self.way, at, out)
    }

    /// Brings what a call ends with, which was asked for.
    #[inline(always)]
    fn reply<S: Steps>(&mut self, at: Place, call: &mut Call) -> Result<(), Stop> {
        let len = at.len as usize;
        if !S::ENDS && len > call.reply_room() {
            return Err(Status::ReplyTooLong.into());
        }
        let start = call.reply.len();
        let there = match len {
            // Of a length that the compiler knows.
            LINE => {
                call.reply.resize(start + LINE, 0);
                read(self.memory, &mut self.replies, at, &mut call.reply[start..start + LINE])
            }
            _ => {
                call.reply.resize(start + len, 0);
                read(self.memory, &mut self.replies, at, &mut call.reply[start..])
            }
        };
        if !there {
            return Err(Status::AccessDenied.into());
        }
        if !S::ENDS {
            return Ok(());
        }
        if len >= METERED_BYTES {
            // It is looked through once more.
            self.work += len as i64 / 4;
        }
        match self.replies.find(self.memory, at.key) {
            Some(region) => S::end(call, &Held { region, pd: self.memory.pd(), va: at.va }),
            None => Err(Stop::Apart),
        }
    }
}

#[inline(always)]
fn read<'m>(memory: &'m HostMemory, known: &mut Known<'m>, Place { va, key, .. }: Place, out: &mut [u8]) -> bool {
    if out.is_empty() {
        return true;
    }
    match known.find(memory, key) {
        Some(region) => region.read(va, out).is_ok(),
        None => memory.read_unremembered(key, va, out).is_ok(),
    }
}

#[cfg(test)]
mod tests;
mod trees;

//! The tasks and their memory after a number of steps.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::hash::Hasher;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use remora_kernel::btree::{
    Audit, BuildError, Directory, EXISTS, Index, MoveParams, Part, Put, Shape, Tree, TreeRef, part_of,
};
use remora_kernel::{Placement, Status};

use super::memory::{NODE, Shared, TaskMemory};
use super::{TreeCase, TreeMutant, TreeOp, TreeOptions};
use crate::linear::{Effect, Invocation, Verdict, check};
use crate::search::Print;

/// The action with which the first task's client goes away.
const KILL: u8 = 16;
/// Slots, of which the last are the logs of as many owners.
const SLOTS: u32 = 8 + 4 * OWNERS as u32;
const OWNERS: u16 = 2;
const LOGS: usize = (SLOTS as usize - 4 * OWNERS as usize) * NODE;
const NODES: Shape = Shape { node_bytes: NODE, fill: 100 };

/// What stands for no value, so that who takes one out is one who swaps, and what he answers counts as well.
const GONE: u64 = u64::MAX;
/// What an insert has found that is refused: a value, and nobody says which.
const ANY: u64 = u64::MAX - 1;

/// When an operation began and ended, and what it did to which key.
type Seen = (u64, Invocation);

/// What tasks note of their operations: the time, and the history.
#[derive(Default)]
struct Notes {
    now: u64,
    history: Vec<Seen>,
    /// Operations under way, by task: since when, and what.
    open: Vec<Option<(u64, TreeOp)>>,
    /// An answer that nobody should get.
    wrong: Option<String>,
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The tasks and their memory.
pub(super) struct World {
    options: TreeOptions,
    shared: Rc<Shared>,
    memories: Vec<Rc<TaskMemory>>,
    notes: Rc<RefCell<Notes>>,
    /// By number; the last one recovers. A task that is over, or gone, is none.
    tasks: Vec<Option<Task>>,
    killed: bool,
}

/// Bytes of a tree.
const TREE: usize = SLOTS as usize * NODE;

/// A tree by number: an index has two.
fn tree(part: usize, owner: u16) -> TreeRef {
    TreeRef { base: (part * TREE) as u64, key: 1, slots: SLOTS, node_bytes: NODE as u16, owners: OWNERS, owner }
}

/// Trees of a case.
fn parts(case: &TreeCase) -> usize {
    if case.border.is_some() { 2 } else { 1 }
}

/// Polls what never waits.
fn now<T>(task: impl Future<Output = T>) -> T {
    let mut task = std::pin::pin!(task);
    loop {
        if let Poll::Ready(result) = task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return result;
        }
    }
}

/// The memory before anything begins.
fn loaded(options: &TreeOptions) -> Vec<u8> {
    let parts = parts(options.case);
    let mut bytes = vec![0; parts * TREE];
    let mut first: &[u64] = &[];
    let ascending: Vec<u64> = (1..=options.case.loaded).map(|i| 10 * i).collect();
    if options.case.bytes {
        // They come one by one, and fill the root before it is split.
        first = &ascending;
    }
    let split = options.case.border.unwrap_or(u64::MAX);
    for part in 0..parts {
        let here = match part {
            0 if split == u64::MAX => Some(0..=u64::MAX),
            0 => Some(0..=split.saturating_sub(1)),
            _ => (split != u64::MAX).then_some(split..=u64::MAX),
        };
        let pairs = (1..=options.case.loaded).map(|i| (10 * i, 10 * i));
        let pairs: Vec<_> = pairs.filter(|(key, _)| first.is_empty() && part_of(split, *key) == part).collect();
        let built = NODES.build_part(here, pairs.iter().copied(), pairs.len(), SLOTS, |at, node| {
            bytes[part * TREE + at as usize..][..node.len()].copy_from_slice(node);
            Ok::<_, BuildError>(())
        });
        assert_eq!(built, Ok(()), "a case that fits");
    }
    if parts == 2 {
        let part = |at, place| Part { tree: tree(at, 0), place };
        let directory = Directory { split, parts: [part(0, Placement::Host), part(1, Placement::Nic)] };
        bytes.extend_from_slice(&directory.encode());
    }
    let shared = Rc::new(Shared { bytes: RefCell::new(bytes), ..Shared::default() });
    let memory = TaskMemory::new(&shared, 0, true);
    if let Ok(on) = On::new(&memory, 0, &TreeCase { border: None, ..*options.case }) {
        if options.case.bytes {
            // An empty tree of numbers is none of bytes.
            let write = |at: u64, node: &[u8]| {
                shared.bytes.borrow_mut()[at as usize..][..node.len()].copy_from_slice(node);
                Ok::<_, BuildError>(())
            };
            assert_eq!(NODES.build_bytes(std::iter::empty::<(&[u8], u64)>(), SLOTS, write), Ok(()));
        }
        for key in first {
            assert_eq!(now(on.put(*key, *key, Put::Insert)), Ok(None), "a case that fits");
        }
        for key in options.case.deleted {
            assert_eq!(now(on.delete(*key)), Ok(*key), "a case that makes sense");
        }
    }
    shared.bytes.take()
}

impl World {
    /// Before the first step.
    pub fn new(options: &TreeOptions) -> Self {
        // The same for all searches of a process but for the case: built once for each thread.
        thread_local! {
            static LOADED: RefCell<Option<(&'static str, Vec<u8>)>> = const { RefCell::new(None) };
        }
        let bytes = LOADED.with_borrow_mut(|kept| match kept {
            Some((name, bytes)) if *name == options.case.name => bytes.clone(),
            _ => kept.insert((options.case.name, loaded(options))).1.clone(),
        });
        let shared = Rc::new(Shared {
            bytes: RefCell::new(bytes),
            mutant: options.mutant,
            logs: LOGS,
            tree: TREE,
            ..Shared::default()
        });
        let count = options.case.tasks.len();
        let memories: Vec<_> = (0..=count)
            .map(|task| {
                let near = task == count || options.near && task + 1 == count;
                let fine = (options.fine, options.fine || options.crash && task == 0);
                // With the fault that it comes too early, what it looks at may change.
                let recovers = (task == count && options.mutant != Some(TreeMutant::Early)).then_some(1);
                Rc::new(TaskMemory { fine, recovers, ..TaskMemory::new(&shared, task, near) })
            })
            .collect();
        let notes = Rc::new(RefCell::new(Notes { open: vec![None; count + 1], ..Notes::default() }));
        let tasks = (0..count)
            .map(|task| {
                // Two clients have logs; a third never goes away.
                let owner = if memories[task].near || task >= usize::from(OWNERS) { 0 } else { task as u16 + 1 };
                let (memory, notes) = (memories[task].clone(), notes.clone());
                Some(Box::pin(run(memory, owner, options.case, options.case.tasks[task], notes)) as Task)
            })
            .chain([None])
            .collect();
        Self { options: *options, shared, memories, notes, tasks, killed: false }
    }

    /// One step more.
    pub fn step(&mut self, action: u8) {
        self.notes.borrow_mut().now += 1;
        if action == KILL {
            self.killed = true;
            if self.options.mutant != Some(TreeMutant::Early) {
                self.tasks[0] = None;
                self.memories[0].gone();
            }
            let (memory, last) = (self.memories[self.memories.len() - 1].clone(), self.tasks.len() - 1);
            let parts = parts(self.options.case);
            self.tasks[last] = Some(Box::pin(async move {
                for part in 0..parts {
                    if let Ok(tree) = Tree::new(&*memory, tree(part, 0)) {
                        let _ = tree.recover(1, &mut Vec::new()).await;
                    }
                }
            }));
            return;
        }
        let task = &mut self.tasks[usize::from(action)];
        if let Some(running) = task
            && running.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
        {
            *task = None;
        }
    }

    /// What may happen next; nothing if all is done, or nobody can go on.
    pub fn actions(&self, actions: &mut Vec<u8>) {
        // Where the next access only reads it may as well be killed before the next that does not.
        let kills = self.options.crash && !self.killed && self.tasks[0].is_some() && self.memories[0].changes.get();
        let logs = |task: &usize| self.tasks[*task].is_some() && self.memories[*task].logs.get();
        if let Some(task) = (0..self.tasks.len()).find(logs) {
            actions.push(task as u8);
            actions.extend((kills && task == 0).then_some(KILL));
            return;
        }
        let can_go = |task: usize| self.tasks[task].is_some() && self.memories[task].can_go();
        actions.extend((0..self.tasks.len()).filter(|task| can_go(*task)).map(|task| task as u8));
        actions.extend(kills.then_some(KILL));
    }

    /// What all that comes depends on.
    pub fn print(&self) -> u64 {
        let mut print = Print::default();
        print.write(&self.shared.bytes.borrow());
        let notes = self.notes.borrow();
        for (task, memory) in self.memories.iter().enumerate() {
            print.write_u64(memory.seen.get().finish());
            print.write_u8(u8::from(self.tasks[task].is_some()) + 2 * u8::from(self.killed));
            print.write_u8(u8::from(notes.open[task].is_some()));
        }
        // Of times only the order counts.
        let mut times: Vec<(u64, bool, u64)> = Vec::new();
        for (at, (key, seen)) in (0..).zip(&notes.history) {
            times.push((seen.invoked, false, at));
            times.extend(seen.returned.map(|time| (time, true, at)));
            print.write_u64(*key);
        }
        times.extend((0..).zip(&notes.open).filter_map(|(at, open)| open.map(|(since, _)| (since, false, 100 + at))));
        times.sort_unstable();
        times.iter().for_each(|(_, end, which)| print.write_u64(u64::from(*end) << 32 | which));
        print.finish()
    }

    /// What is wrong when nothing can happen any more.
    pub fn fault(&self) -> Option<String> {
        if let Some(task) = self.tasks.iter().position(Option::is_some) {
            return Some(format!("task {task} waits for a lock that nobody gives back"));
        }
        let memory = TaskMemory::new(&self.shared, 99, true);
        let mut pairs: Vec<(u64, u64)> = Vec::new();
        for part in 0..parts(self.options.case) {
            let audit = match On::new(&memory, 0, &TreeCase { border: None, ..*self.options.case }) {
                Ok(On::Bytes(tree)) => now(tree.audit()).map(numbered),
                _ => match Tree::new(&memory, tree(part, 0)) {
                    Ok(tree) => now(tree.audit()),
                    Err(status) => return Some(format!("no tree: {status:?}")),
                },
            };
            let audit = match audit {
                Ok(audit) => audit,
                Err(error) => return Some(error.to_string()),
            };
            if !self.killed && (audit.lost, audit.orphans) != (0, 0) {
                return Some(format!("{} nodes are lost, {} unknown to their parents", audit.lost, audit.orphans));
            }
            if let Some((key, _)) = audit.pairs.iter().find(|(key, _)| pairs.iter().any(|(other, _)| other == key)) {
                return Some(format!("both parts have key {key}"));
            }
            pairs.extend(audit.pairs);
        }
        let notes = self.notes.borrow();
        if let Some(wrong) = &notes.wrong {
            return Some(wrong.clone());
        }
        let keys: BTreeSet<u64> = notes.history.iter().map(|(key, _)| *key).collect();
        let first = loaded_pairs(&self.options);
        let all: BTreeSet<u64> = pairs.iter().map(|(key, _)| *key).chain(first.iter().copied()).chain(keys).collect();
        for key in all {
            let held = pairs.iter().find(|(other, _)| *other == key).map(|(_, value)| *value);
            let mut calls = vec![call(0, Some(0), Effect::Put(if first.contains(&key) { key } else { GONE }))];
            calls.extend(notes.history.iter().filter(|(other, _)| *other == key).map(|(_, call)| *call));
            // What was under way when its client went away may have happened, or not.
            let open = notes.open.iter().flatten().filter_map(|(since, op)| match *op {
                TreeOp::Put(other, value, _) if other == key => Some(call(*since, None, Effect::Put(value))),
                TreeOp::Delete(other) if other == key => Some(call(*since, None, Effect::Put(GONE))),
                _ => None,
            });
            calls.extend(open);
            calls.push(call(notes.now + 1, Some(notes.now + 1), found(held)));
            if !is_explained(&mut calls) {
                return Some(format!("key {key}: no order explains {calls:?}"));
            }
        }
        None
    }
}

fn loaded_pairs(options: &TreeOptions) -> BTreeSet<u64> {
    (1..=options.case.loaded).map(|i| 10 * i).filter(|key| !options.case.deleted.contains(key)).collect()
}

/// The effect of who finds this.
fn found(value: Option<u64>) -> Effect {
    Effect::Get(Some(value.unwrap_or(GONE)))
}

/// The effect of who finds `old` and leaves `new`.
fn swapped(old: Option<u64>, new: Option<u64>) -> Effect {
    let old = Some(old.unwrap_or(GONE));
    Effect::CompareSwap { expected: old, new: new.unwrap_or(GONE), found: Some(old) }
}

/// Whether there is an order that explains the calls of a key; who has found any value may have found each that was written.
fn is_explained(calls: &mut Vec<Invocation>) -> bool {
    let Some(at) = calls.iter().position(|call| call.effect == Effect::Get(Some(ANY))) else {
        return check(calls) == Verdict::Linearizable;
    };
    let written = |call: &Invocation| match call.effect {
        Effect::Put(new) | Effect::CompareSwap { new, .. } => Some(new).filter(|&new| new != GONE),
        _ => None,
    };
    let values: BTreeSet<u64> = calls.iter().filter_map(written).collect();
    let any = calls[at].effect;
    let explained = values.into_iter().any(|value| {
        calls[at].effect = found(Some(value));
        is_explained(calls)
    });
    calls[at].effect = any;
    explained
}

fn call(invoked: u64, returned: Option<u64>, effect: Effect) -> Invocation {
    Invocation { invoked, returned, effect, firm_write: true, firm_read: true, attempt: None }
}

/// What an operation works on: a tree, or an index whose border the task knows from the beginning alone.
enum On<'m> {
    Tree(Tree<'m, TaskMemory>),
    Bytes(Tree<'m, TaskMemory, [u8]>),
    Index(Index<'m, TaskMemory>),
}

impl<'m> On<'m> {
    fn new(memory: &'m TaskMemory, owner: u16, case: &TreeCase) -> Result<Self, Status> {
        Ok(match case.border {
            None if case.bytes => On::Bytes(Tree::of_bytes(memory, tree(0, owner))?),
            None => On::Tree(Tree::new(memory, tree(0, owner))?),
            Some(border) => On::Index(Index::new(memory, [0, 1].map(|part| tree(part, owner)), border)),
        })
    }

    async fn get(&self, key: u64) -> Result<u64, Status> {
        match self {
            On::Tree(tree) => tree.get(&key, &mut Vec::new()).await,
            On::Bytes(tree) => tree.get(&digits(key), &mut Vec::new()).await,
            On::Index(index) => index.get(key).await,
        }
    }

    async fn put(&self, key: u64, value: u64, how: Put) -> Result<Option<u64>, Status> {
        match self {
            On::Tree(tree) => tree.put(&key, value, how, &mut Vec::new()).await,
            On::Bytes(tree) => tree.put(&digits(key), value, how, &mut Vec::new()).await,
            On::Index(index) => index.put(key, value, how).await,
        }
    }

    async fn delete(&self, key: u64) -> Result<u64, Status> {
        match self {
            On::Tree(tree) => tree.delete(&key, &mut Vec::new()).await,
            On::Bytes(tree) => tree.delete(&digits(key), &mut Vec::new()).await,
            On::Index(index) => index.delete(key).await,
        }
    }

    async fn pairs(&self, from: u64, count: u32) -> Result<Vec<(u64, u64)>, Status> {
        match self {
            On::Tree(tree) => Ok(tree.pairs(&from, count, &mut Vec::new()).await?.0),
            On::Bytes(tree) => {
                let (pairs, _) = tree.pairs(&digits(from), count, &mut Vec::new()).await?;
                Ok(pairs.into_iter().map(|(key, value)| (number(&key), value)).collect())
            }
            On::Index(index) => index.pairs(from, count).await,
        }
    }
}

/// A key as bytes: three digits.
fn digits(key: u64) -> [u8; 3] {
    [key / 100, key / 10, key].map(|digit| b'0' + (digit % 10) as u8)
}

/// The number of such a key.
fn number(key: &[u8]) -> u64 {
    key.iter().fold(0, |number, digit| 10 * number + u64::from(digit.wrapping_sub(b'0')))
}

/// What a tree of bytes holds, by their numbers.
fn numbered(audit: Audit<Vec<u8>>) -> Audit {
    let Audit { pairs, levels, nodes, free, lost, away, orphans } = audit;
    let pairs = pairs.into_iter().map(|(key, value)| (number(&key), value)).collect();
    Audit { pairs, levels, nodes, free, lost, away, orphans }
}

/// One task's operations.
async fn run(
    memory: Rc<TaskMemory>,
    owner: u16,
    case: &'static TreeCase,
    ops: &'static [TreeOp],
    notes: Rc<RefCell<Notes>>,
) {
    for op in ops {
        let since = notes.borrow().now;
        notes.borrow_mut().open[memory.task] = Some((since, *op));
        memory.begin();
        let Ok(on) = On::new(&memory, owner, case) else { return };
        let mut seen: Vec<(u64, Effect)> = Vec::new();
        let mut end = Ok(());
        match *op {
            TreeOp::Get(key) => match on.get(key).await {
                Ok(value) => seen.push((key, found(Some(value)))),
                Err(Status::NotFound) => seen.push((key, found(None))),
                Err(status) => end = Err(status),
            },
            TreeOp::Put(key, new, how) => match on.put(key, new, how).await {
                Ok(old) => seen.push((key, swapped(old, Some(new)))),
                Err(Status::NotFound) if how == Put::Update => seen.push((key, found(None))),
                Err(status) if status == EXISTS && how == Put::Insert => seen.push((key, found(Some(ANY)))),
                Err(status) => end = Err(status),
            },
            TreeOp::Delete(key) => match on.delete(key).await {
                Ok(old) => seen.push((key, swapped(Some(old), None))),
                Err(Status::NotFound) => seen.push((key, found(None))),
                Err(status) => end = Err(status),
            },
            TreeOp::Scan(from, count) => match on.pairs(from, count).await {
                Ok(pairs) => {
                    let last = if pairs.len() < count as usize { u64::MAX } else { pairs[pairs.len() - 1].0 };
                    // No case has keys between those that are looked for.
                    let wrong = !pairs.is_sorted_by(|a, b| a.0 < b.0)
                        || pairs.len() > count as usize
                        || pairs.iter().any(|(key, _)| !(from..=from + 500).contains(key) || key % 5 != 0);
                    if wrong {
                        notes.borrow_mut().wrong = Some(format!("a scan from {from} brought {pairs:?}"));
                    }
                    let held = |key: u64| pairs.iter().find(|(other, _)| *other == key).map(|(_, value)| *value);
                    let range = (from..=last.min(from + 500)).filter(|key| key % 5 == 0);
                    seen.extend(range.map(|key| (key, found(held(key)))));
                }
                Err(status) => end = Err(status),
            },
            TreeOp::Move(target, leaves) => {
                let params = MoveParams { directory: 2 * TREE as u64, key: 1, leaves, target };
                end = params.run(&*memory).await.map(drop);
            }
        }
        let notes = &mut *notes.borrow_mut();
        memory.end(&format!("{end:?} {seen:?}"));
        if let Err(status) = end {
            notes.wrong = Some(format!("{op:?} ended with {status:?}"));
        }
        notes.open[memory.task] = None;
        let returned = Some(notes.now);
        notes.history.extend(seen.into_iter().map(|(key, effect)| (key, call(since, returned, effect))));
    }
}

/// What is wrong at the end of a way, and the accesses on it.
pub(super) fn told(options: &TreeOptions, way: &[u8]) -> (String, String) {
    let mut world = World::new(options);
    *world.shared.told.borrow_mut() = Some(Vec::new());
    for action in way {
        if *action == KILL
            && let Some(told) = &mut *world.shared.told.borrow_mut()
        {
            told.push("task 0 goes away".into());
        }
        world.step(*action);
    }
    let told = world.shared.told.borrow_mut().take().unwrap_or_default();
    (world.fault().unwrap_or_default(), told.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explains(effects: &[Effect]) -> bool {
        let mut calls: Vec<Invocation> =
            (0..).zip(effects).map(|(at, effect)| call(2 * at, Some(2 * at + 1), *effect)).collect();
        is_explained(&mut calls)
    }

    #[test]
    fn what_a_delete_and_a_refused_insert_answer_counts() {
        let (there, none) = (Effect::Put(10), Effect::Put(GONE));
        assert!(explains(&[there, swapped(Some(10), None), found(None)]));
        assert!(!explains(&[there, swapped(Some(10), None), swapped(Some(10), None)]), "taken out twice");
        assert!(!explains(&[there, swapped(Some(9), None)]), "another value than what was there");
        assert!(!explains(&[none, swapped(Some(10), None)]), "nothing was there");
        assert!(explains(&[there, found(Some(ANY)), swapped(Some(10), Some(7)), found(Some(ANY)), found(Some(7))]));
        assert!(!explains(&[none, found(Some(ANY)), swapped(None, Some(7))]), "refused, and nothing was there");
        assert!(!explains(&[there, swapped(Some(10), None), found(Some(ANY))]), "refused, and it was gone");
    }
}

//! Node threads, clients with one-sided accesses and a mover of the border at once, whose accesses come in a random order: each
//! hears what a map of one moment would say. `storm::check::tree` tries every order of small cases; here trees are larger, what runs
//! on the node looks at nodes where they are, and clients go away amid their writes and are recovered.

use super::tests::{Host, image, parted};
use super::*;
use crate::{Builtins, Call, Fault, HostMemory, Kernel, Limits, Memory, op};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

const KEYS: usize = 160;
/// Each key is one writer's.
const WRITERS: usize = 4;
const SLOTS: u32 = 500;
const OWNERS: u16 = 2;

/// The others' turn.
async fn turn() {
    let mut came = false;
    poll_fn(|_| if std::mem::replace(&mut came, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

struct Random(Cell<u64>);

impl Random {
    fn below(&self, n: usize) -> usize {
        self.0.set(self.0.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
        (self.0.get() >> 33) as usize % n
    }
}

/// Nodes that a client keeps.
type Copies = Rc<RefCell<BTreeMap<u64, Vec<u8>>>>;

/// The node's memory as a client reaches it, who keeps copies: READs of nodes come piece by piece.
struct Far {
    memory: HostMemory,
    copies: Copies,
}

impl Far {
    fn now(&self) -> &dyn crate::Immediate {
        self.memory.immediate().unwrap()
    }
}

impl Memory for Far {
    fn outlives_caller(&self) -> bool {
        false
    }

    fn set_limits(&self, limits: Limits) {
        self.memory.set_limits(limits);
    }

    async fn read(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        let mut from = 0;
        for end in [8, out.len() / 2, out.len() - 8, out.len()].map(|end| end.min(out.len())) {
            if end > from {
                turn().await;
                self.now().read_now(key, va + from as u64, &mut out[from..end])?;
                from = end;
            }
        }
        Ok(())
    }

    async fn write(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        turn().await;
        self.now().write_now(key, va, data)
    }

    async fn compare_swap(&self, key: u32, va: u64, expect: u64, new: u64) -> Result<u64, Fault> {
        turn().await;
        self.now().compare_swap_now(key, va, expect, new)
    }

    async fn fetch_add(&self, key: u32, va: u64, n: u64) -> Result<u64, Fault> {
        turn().await;
        self.now().fetch_add_now(key, va, n)
    }

    fn recall(&self, _: u32, va: u64, out: &mut [u8]) -> bool {
        self.copies.borrow().get(&va).map(|copy| out.copy_from_slice(copy)).is_some()
    }

    fn keep(&self, _: u32, va: u64, bytes: &[u8]) {
        self.copies.borrow_mut().insert(va, bytes.to_vec());
    }

    fn forget(&self, _: u32, va: u64) {
        self.copies.borrow_mut().remove(&va);
    }
}

/// What happens at once.
#[derive(Clone, Copy, Debug)]
struct Case {
    bytes: bool,
    /// There are two parts, and a mover.
    parts: bool,
    /// Clients go away.
    gone: bool,
}

/// A write of a key: when it ended, if it has, and of what.
#[derive(Clone, Copy, Debug)]
struct Wrote(Option<u64>, Option<u64>);

/// What is known of a key: its writes, one after the other, and which of them somebody has seen by when.
#[derive(Debug)]
struct Known {
    writes: Vec<Wrote>,
    seen: Vec<(u64, usize)>,
}

struct World {
    case: Case,
    host: Host,
    trees: Vec<TreeRef>,
    directory: u64,
    numbers: Vec<u64>,
    names: Vec<Vec<u8>>,
    now: Cell<u64>,
    known: RefCell<Vec<Known>>,
    random: Random,
    copies: [Copies; OWNERS as usize],
}

/// Keys of which many begin alike, with the least of all and one of the longest.
fn names() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> =
        (0..KEYS).map(|n| [&[n as u8 / 8; 9][..n % 8 + 1], &[n as u8 % 8]].concat()).collect();
    (names[0], names[1]) = (Vec::new(), vec![255; 32]);
    names.sort();
    names.dedup();
    names
}

impl World {
    fn new(case: Case, seed: u64) -> World {
        let mut numbers: Vec<u64> = (0..KEYS as u64 - 1).map(|n| n * n).collect();
        numbers.push(u64::MAX);
        let names = names();
        let held: BTreeMap<u64, u64> = numbers.iter().step_by(2).map(|key| (*key, 0)).collect();
        let shape = Shape { node_bytes: 256, fill: 100 };
        let nodes = SLOTS - 4 * u32::from(OWNERS);
        let (bytes, parts) = if case.parts {
            let (bytes, directory) = parted(&held, numbers[KEYS / 2], 100, (64, 0));
            (bytes, directory.parts.map(|part| part.tree).to_vec())
        } else if case.bytes {
            let mut bytes = vec![0; SLOTS as usize * 256];
            let pairs = names.iter().step_by(2).map(|name| (name, 0));
            let built = shape.build_bytes(pairs, nodes, |at, node| {
                bytes[at as usize..][..node.len()].copy_from_slice(node);
                Ok::<_, BuildError>(())
            });
            assert_eq!(built, Ok(()));
            (bytes, Vec::new())
        } else {
            (image(shape, SLOTS, &held.into_iter().collect::<Vec<_>>()), Vec::new())
        };
        let host = Host::new(bytes, 256);
        let trees = match &parts[..] {
            [] => vec![TreeRef { slots: SLOTS, ..host.tree }],
            parts => parts.iter().map(|tree| TreeRef { key: host.tree.key, ..*tree }).collect(),
        };
        let trees: Vec<_> = trees.into_iter().map(|tree| TreeRef { owners: OWNERS, ..tree }).collect();
        let directory = 64 + 2 * u64::from(SLOTS) * 256;
        if let [low, high] = trees[..] {
            let part = |tree, place| Part { tree, place };
            let parts = [part(low, crate::Placement::Host), part(high, crate::Placement::Nic)];
            let bytes = Directory { split: numbers[KEYS / 2], parts }.encode();
            host.memory().immediate().unwrap().write_now(host.tree.key, directory, &bytes).unwrap();
        }
        let keys = if case.bytes { names.len() } else { KEYS };
        let known = (0..keys).map(|n| Known { writes: vec![Wrote(Some(0), (n % 2 == 0).then_some(0))], seen: vec![] });
        World {
            case,
            host,
            trees,
            directory,
            numbers,
            names,
            now: Cell::new(1),
            known: RefCell::new(known.collect()),
            random: Random(Cell::new(seed)),
            copies: Default::default(),
        }
    }

    fn memory(&self) -> HostMemory {
        HostMemory::new(self.host.registry.clone(), self.host.pd, true, Limits::default())
    }

    fn keys(&self) -> usize {
        self.known.borrow().len()
    }

    fn params(&self, tree: TreeRef, key: usize, value: u64, how: Put) -> Vec<u8> {
        if !self.case.bytes {
            return TreeParams { how, ..TreeParams::new(tree, self.numbers[key], value) }.encode().to_vec();
        }
        let mut params = Vec::new();
        ByteParams { how, ..ByteParams::new(tree, &self.names[key], value) }.encode(&mut params);
        params
    }

    /// Asks one part and then the other, until one of them answers.
    async fn ask(
        &self,
        owner: u16,
        op: u64,
        (key, value, how): (usize, u64, Put),
        part: &mut usize,
    ) -> (Status, Vec<u8>) {
        loop {
            let tree = TreeRef { owner, ..self.trees[*part] };
            let mut call = Call::new(op, &self.params(tree, key, value, how), 1 << 14);
            let status = match owner {
                0 => Builtins.run(&self.memory(), &mut call).await,
                _ => {
                    let copies = self.copies[usize::from(owner) - 1].clone();
                    Builtins.run(&Far { memory: self.memory(), copies }, &mut call).await
                }
            };
            turn().await;
            match status {
                MOVED => *part = 1 - *part,
                LOCKED => {}
                status => return (status, std::mem::take(&mut call.reply)),
            }
        }
    }

    fn part(&self) -> usize {
        self.random.below(self.trees.len())
    }

    /// Somebody was told, having asked then, that a key has this value.
    fn saw(&self, key: usize, since: u64, value: Option<u64>) {
        let (known, now) = (&mut self.known.borrow_mut()[key], self.now.get());
        let ended =
            (0..).zip(&known.writes).filter(|(_, Wrote(to, _))| to.is_some_and(|to| to < since)).map(|(at, _)| at);
        let seen = known.seen.iter().filter(|(by, _)| *by < since).map(|(_, at)| *at);
        let least = ended.chain(seen).max().unwrap_or(0);
        let Some(at) = (least..known.writes.len()).find(|at| known.writes[*at].1 == value) else {
            panic!("key {key} was {value:?} from {since} to {now}: {known:?}");
        };
        known.seen.push((now, at));
    }

    async fn write(&self, owner: u16, writer: usize, deletes: bool) {
        let key = self.random.below(self.keys() / WRITERS) * WRITERS + writer;
        let value = self.now.get();
        let delete = self.random.below(10) < if deletes { 8 } else { 2 };
        let how = [Put::Upsert, Put::Upsert, Put::Insert, Put::Update][self.random.below(4)];
        self.known.borrow_mut()[key].writes.push(Wrote(None, (!delete).then_some(value)));
        let op = if delete { op::TREE_DELETE } else { op::TREE_PUT };
        let (status, reply) = self.ask(owner, op, (key, value, how), &mut self.part()).await;
        let known = &mut self.known.borrow_mut()[key];
        let at = known.writes.len() - 1;
        let old = reply.first_chunk().map(|word| u64::from_le_bytes(*word));
        // A write whose client was gone may have happened.
        let mut before = Vec::new();
        for Wrote(to, value) in known.writes[..at].iter().rev() {
            before.push(*value);
            if to.is_some() {
                break;
            }
        }
        let fits = match status {
            Status::Ok if delete => old.is_some() && before.contains(&old),
            Status::Ok if how == Put::Insert => old.is_none() && before.contains(&None),
            Status::Ok if how == Put::Update => old.is_some() && before.contains(&old),
            Status::Ok => before.contains(&old),
            Status::NotFound => (delete || how == Put::Update) && before.contains(&None),
            EXISTS => how == Put::Insert && before.iter().any(Option::is_some),
            _ => false,
        };
        assert!(
            fits,
            "a write of {key} by {owner}, delete: {delete}, {how:?}, was told {status:?} and {old:?}: {known:?}"
        );
        if status == Status::Ok || delete {
            known.writes[at].0 = Some(self.now.get());
        } else {
            // It has written nothing.
            known.writes.pop();
        }
    }

    async fn read(&self, owner: u16) {
        let (key, since) = (self.random.below(self.keys()), self.now.get());
        let (status, reply) = self.ask(owner, op::TREE_GET, (key, 0, Put::Upsert), &mut self.part()).await;
        let value = match status {
            Status::Ok => Some(u64::from_le_bytes(reply[..8].try_into().unwrap())),
            Status::NotFound => None,
            status => panic!("a look-up of {key} was told {status:?}"),
        };
        self.saw(key, since, value);
    }

    async fn scan(&self, owner: u16) {
        let (first, mut left, since) = (self.random.below(self.keys()), self.random.below(60), self.now.get());
        let (mut from, mut part, mut found) = (first, self.part(), Vec::new());
        loop {
            let (status, reply) = self.ask(owner, op::TREE_SCAN, (from, left as u64, Put::Upsert), &mut part).await;
            assert_eq!(status, Status::Ok);
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
            let at = |key: u64| self.numbers.binary_search(&key).unwrap();
            let pairs: Vec<(usize, u64)> = match self.case.bytes {
                true => {
                    let at = |name: &[u8]| self.names.binary_search_by(|other| other[..].cmp(name)).unwrap();
                    BytePairs(&reply).map(|(name, value)| (at(name), value)).collect()
                }
                false => reply.chunks_exact(16).map(|pair| (at(word(&pair[..8])), word(&pair[8..]))).collect(),
            };
            left -= pairs.len();
            found.extend(pairs);
            match reply.chunks_exact(16).remainder() {
                next if next.len() == 8 && !self.case.bytes && left > 0 => {
                    // Keys between two of ours are nobody's.
                    from = self.numbers.partition_point(|key| *key < word(next));
                    part = 1 - part;
                    if from == self.keys() {
                        break;
                    }
                }
                _ => break,
            }
        }
        assert!(
            found.is_sorted_by(|a, b| a.0 < b.0) && found.first().is_none_or(|(key, _)| *key >= first),
            "{found:?}"
        );
        let end = if left > 0 { self.keys() } else { found.last().map_or(first, |(last, _)| last + 1) };
        for key in first..end {
            self.saw(key, since, found.iter().find(|(other, _)| *other == key).map(|(_, value)| *value));
        }
    }

    async fn move_border(&self) {
        let target =
            [0, u64::MAX, self.numbers[self.random.below(KEYS)], 7 + self.numbers[self.random.below(KEYS - 1)]]
                [self.random.below(4)];
        let leaves = 1 + self.random.below(4) as u32;
        let params = MoveParams { directory: self.directory, key: self.host.tree.key, leaves, target };
        let mut call = Call::new(op::TREE_MOVE, &params.encode(), 16);
        let status = Builtins.run(&self.memory(), &mut call).await;
        assert!(matches!(status, Status::Ok | LOCKED), "a move ended with {status:?}");
    }
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A task of many operations: a writer's, a reader's, or the mover's.
fn task(world: &Rc<World>, number: usize) -> Task {
    let world = world.clone();
    // The first two write as owners, the next two on the node.
    let owner = if number < usize::from(OWNERS) { number as u16 + 1 } else { 0 };
    Box::pin(async move {
        for step in 0..400 {
            match number {
                0..WRITERS => world.write(owner, number, step / 40 % 2 == 1).await,
                4 => world.read(0).await,
                5 => world.read(2).await,
                6 => world.scan(0).await,
                7 => world.scan(1).await,
                _ => world.move_border().await,
            }
            turn().await;
        }
    })
}

fn run(case: Case, seed: u64) {
    let world = Rc::new(World::new(case, seed));
    let order = Random(Cell::new(!seed));
    let mut tasks: Vec<Option<Task>> =
        (0..8 + usize::from(case.parts)).map(|number| Some(task(&world, number))).collect();
    // Of each client that writes: its recovery, if it is gone.
    let mut recoveries: [Option<Task>; OWNERS as usize] = Default::default();
    let mut gone = if case.gone { 30 } else { 0 };
    let poll = |task: &mut Option<Task>| {
        world.now.set(world.now.get() + 1);
        if let Some(running) = task
            && running.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
        {
            *task = None;
        }
    };
    while tasks.iter().chain(&recoveries).any(Option::is_some) {
        let at = order.below(tasks.len());
        if let Some(recovery @ Some(_)) = recoveries.get_mut(at) {
            poll(recovery);
            if recovery.is_none() {
                tasks[at] = Some(task(&world, at));
            }
            continue;
        }
        if gone > 0 && at < recoveries.len() && tasks[at].is_some() && order.below(100) == 0 {
            (gone, tasks[at]) = (gone - 1, None);
            let world = world.clone();
            recoveries[at] = Some(Box::pin(async move {
                for tree in &world.trees {
                    let params = TreeParams::new(*tree, at as u64 + 1, 0).encode();
                    let mut call = Call::new(op::TREE_RECOVER, &params, 64);
                    assert_eq!(Builtins.run(&world.memory(), &mut call).await, Status::Ok);
                }
            }));
            continue;
        }
        poll(&mut tasks[at]);
    }
    let memory = world.host.memory();
    let mut held: BTreeMap<usize, u64> = BTreeMap::new();
    for tree in &world.trees {
        let (pairs, lost, orphans) = match case.bytes {
            true => {
                let audit = super::tests::drive(Tree::of_bytes(&memory, *tree).unwrap().audit()).unwrap();
                let at = |name: &Vec<u8>| world.names.binary_search(name).unwrap();
                (
                    audit.pairs.iter().map(|(name, value)| (at(name), *value)).collect::<Vec<_>>(),
                    audit.lost,
                    audit.orphans,
                )
            }
            false => {
                let audit = super::tests::drive(Tree::<_, u64>::new(&memory, *tree).unwrap().audit()).unwrap();
                let at = |key: &u64| world.numbers.binary_search(key).unwrap();
                (audit.pairs.iter().map(|(key, value)| (at(key), *value)).collect(), audit.lost, audit.orphans)
            }
        };
        assert!(case.gone || (lost, orphans) == (0, 0), "{lost} lost, {orphans} orphans");
        for (key, value) in pairs {
            assert_eq!(held.insert(key, value), None, "key {key} is in both");
        }
    }
    for key in 0..world.keys() {
        world.saw(key, world.now.get(), held.get(&key).copied());
    }
}

#[test]
fn whatever_the_order_each_hears_what_a_map_would_say() {
    for seed in 0..5 {
        for (bytes, parts) in [(false, false), (true, false), (false, true)] {
            for gone in [false, true] {
                let case = Case { bytes, parts, gone };
                println!("{case:?}, seed {seed}");
                run(case, seed);
            }
        }
    }
}

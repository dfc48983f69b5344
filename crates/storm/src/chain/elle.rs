//! Strict serializability of histories of lists, by cycles of dependencies (Adya's, after Elle's manner).
//!
//! All lists of a key that were read must be begins of the longest; it tells the order of the key's writers. Then one
//! transaction comes before another if it wrote a version that the other one replaced (ww) or read (wr), if it read a version
//! that the other one replaced (rw), or if it had ended when the other one began (rt). A history is strictly
//! serializable if no transaction comes before itself. This knows nothing of how a history came about.

use std::collections::{HashMap, VecDeque};

use super::{ChainEnd, ChainOp, ChainTxn};

/// Why one comes before another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Edge {
    Ww(u64),
    Wr(u64),
    Rw(u64),
    Rt,
}

/// A transaction, or a moment: whoever ended before it comes before whoever begins after it.
type Graph = Vec<Vec<(usize, Edge)>>;

/// Looks for what no order explains: what is wrong, in words.
pub fn check(history: &[ChainTxn]) -> Result<(), String> {
    let writers = writers(history)?;
    let orders = orders(history, &writers)?;
    let mut graph: Graph = vec![Vec::new(); history.len()];
    let mut add = |from: usize, to: usize, edge: Edge| {
        if from != to {
            graph[from].push((to, edge));
        }
    };
    for (&key, order) in &orders {
        for pair in order.windows(2) {
            add(writers[&(key, pair[0])], writers[&(key, pair[1])], Edge::Ww(key));
        }
    }
    let was_read = |key: u64, value: u32| orders.get(&key).is_some_and(|order| order.contains(&value));
    // Of one whose end nobody knows a part that was read says that it was done, and so were the others.
    let happened: Vec<bool> = history
        .iter()
        .map(|txn| match txn.end {
            ChainEnd::Done => true,
            ChainEnd::Unknown => {
                txn.ops.iter().any(|op| matches!(op, ChainOp::Append(key, value) if was_read(*key, *value)))
            }
            ChainEnd::Failed => false,
        })
        .collect();
    // Appends that nobody has read are behind all that was read.
    let unread: Vec<(u64, usize)> = writers
        .iter()
        .filter(|&(&(key, value), &txn)| happened[txn] && !was_read(key, value))
        .map(|(&(key, _), &txn)| (key, txn))
        .collect();
    for (number, txn) in history.iter().enumerate().filter(|(_, txn)| txn.end == ChainEnd::Done) {
        for (key, list) in reads(txn) {
            if let Some(&last) = list.last() {
                add(writers[&(key, last)], number, Edge::Wr(key));
            }
            match orders.get(&key).and_then(|order| order.get(list.len())) {
                Some(&next) => add(number, writers[&(key, next)], Edge::Rw(key)),
                None => {
                    unread.iter().filter(|(of, _)| *of == key).for_each(|&(_, later)| add(number, later, Edge::Rw(key)))
                }
            }
        }
    }
    real_time(history, &mut graph);
    match cycle(&graph, history.len()) {
        Some(cycle) => Err(describe(history, &cycle)),
        None => Ok(()),
    }
}

fn reads(txn: &ChainTxn) -> impl Iterator<Item = (u64, &Vec<u32>)> {
    txn.ops.iter().filter_map(|op| match op {
        ChainOp::Read(key, list) => Some((*key, list)),
        ChainOp::Append(..) => None,
    })
}

/// Who appended what.
fn writers(history: &[ChainTxn]) -> Result<HashMap<(u64, u32), usize>, String> {
    let mut writers = HashMap::new();
    for (number, txn) in history.iter().enumerate() {
        for op in &txn.ops {
            if let ChainOp::Append(key, value) = op
                && writers.insert((*key, *value), number).is_some()
            {
                return Err(format!("{value} was appended to key {key} twice by clients: no history to check"));
            }
        }
    }
    Ok(writers)
}

/// The longest list of each key.
fn orders(history: &[ChainTxn], writers: &HashMap<(u64, u32), usize>) -> Result<HashMap<u64, Vec<u32>>, String> {
    let mut orders: HashMap<u64, Vec<u32>> = HashMap::new();
    let done = || history.iter().filter(|txn| txn.end == ChainEnd::Done);
    for (key, list) in done().flat_map(reads) {
        let longest = orders.entry(key).or_default();
        if list.len() > longest.len() {
            longest.clone_from(list);
        }
    }
    for txn in done() {
        for (key, list) in reads(txn) {
            let longest = &orders[&key];
            if !longest.starts_with(list) {
                return Err(format!("key {key} was read as {list:?} and as {longest:?}: neither is the other's begin"));
            }
            let own =
                txn.ops.iter().any(|op| matches!(op, ChainOp::Append(of, value) if *of == key && list.contains(value)));
            if own {
                return Err(format!("a transaction read in key {key} what it appended later: {list:?}"));
            }
        }
    }
    for (key, order) in &orders {
        for (index, value) in order.iter().enumerate() {
            if order[..index].contains(value) {
                return Err(format!("{value} is in the list of key {key} twice: {order:?}"));
            }
            match writers.get(&(*key, *value)) {
                None => return Err(format!("nobody appended {value}, which was read in key {key}")),
                Some(&txn) if history[txn].end == ChainEnd::Failed => {
                    return Err(format!("{value} was read in key {key}, and its transaction was not done (G1a)"));
                }
                Some(_) => {}
            }
        }
    }
    Ok(orders)
}

/// Adds moments to the graph, one for each end, so that it has few edges.
fn real_time(history: &[ChainTxn], graph: &mut Graph) {
    let mut ends: Vec<(u64, usize)> = (history.iter().enumerate())
        .filter(|(_, txn)| txn.end == ChainEnd::Done)
        .map(|(number, txn)| (txn.returned, number))
        .collect();
    ends.sort_unstable();
    let base = graph.len();
    graph.resize(base + ends.len(), Vec::new());
    for (moment, &(_, number)) in ends.iter().enumerate() {
        graph[number].push((base + moment, Edge::Rt));
        if moment > 0 {
            graph[base + moment - 1].push((base + moment, Edge::Rt));
        }
    }
    for (number, txn) in history.iter().enumerate().filter(|(_, txn)| txn.end != ChainEnd::Failed) {
        if let Some(before) = ends.partition_point(|&(returned, _)| returned < txn.called).checked_sub(1) {
            graph[base + before].push((number, Edge::Rt));
        }
    }
}

/// A shortest cycle from one of those that are on any.
fn cycle(graph: &Graph, real: usize) -> Option<Vec<(usize, Edge)>> {
    // Who is left when all without a predecessor are taken away, again and again, and so those without a successor.
    let mut left = vec![true; graph.len()];
    for forward in [true, false] {
        let mut towards = vec![Vec::new(); graph.len()];
        for (from, edges) in graph.iter().enumerate() {
            for &(to, _) in edges {
                let (one, other) = if forward { (from, to) } else { (to, from) };
                towards[one].push(other);
            }
        }
        let mut count = vec![0; graph.len()];
        (0..graph.len()).filter(|&node| left[node]).flat_map(|node| &towards[node]).for_each(|&to| count[to] += 1);
        let mut open: VecDeque<usize> = (0..graph.len()).filter(|&node| left[node] && count[node] == 0).collect();
        while let Some(node) = open.pop_front() {
            left[node] = false;
            for &to in &towards[node] {
                count[to] -= 1;
                if count[to] == 0 && left[to] {
                    open.push_back(to);
                }
            }
        }
    }
    // What is left may lie between two cycles.
    let mut shortest: Option<Vec<(usize, Edge)>> = None;
    for start in (0..real).filter(|&node| left[node]).take(200) {
        let found = way_back(graph, &left, start);
        if let Some(found) = found
            && shortest.as_ref().is_none_or(|shortest| found.len() < shortest.len())
        {
            shortest = Some(found);
        }
    }
    shortest.or_else(|| (0..real).filter(|&node| left[node]).find_map(|start| way_back(graph, &left, start)))
}

fn way_back(graph: &Graph, left: &[bool], start: usize) -> Option<Vec<(usize, Edge)>> {
    let mut from: HashMap<usize, (usize, Edge)> = HashMap::new();
    let mut open = VecDeque::from([start]);
    while let Some(node) = open.pop_front() {
        for &(to, edge) in graph[node].iter().filter(|(to, _)| left[*to]) {
            if let std::collections::hash_map::Entry::Vacant(slot) = from.entry(to) {
                slot.insert((node, edge));
                open.push_back(to);
            }
        }
        if from.contains_key(&start) {
            break;
        }
    }
    let (mut way, mut node) = (Vec::new(), start);
    loop {
        let &(before, edge) = from.get(&node)?;
        way.push((before, edge));
        node = before;
        if node == start {
            way.reverse();
            return Some(way);
        }
    }
}

fn describe(history: &[ChainTxn], cycle: &[(usize, Edge)]) -> String {
    let has = |wanted: fn(&Edge) -> bool| cycle.iter().filter(|(_, edge)| wanted(edge)).count();
    let name = match (has(|edge| matches!(edge, Edge::Rw(_))), has(|edge| matches!(edge, Edge::Wr(_)))) {
        (0, 0) => "G0",
        (0, _) => "G1c",
        (1, _) => "G-single",
        _ => "G2-item",
    };
    let real_time = if has(|edge| matches!(edge, Edge::Rt)) > 0 { "-realtime" } else { "" };
    let mut text = format!("not strictly serializable ({name}{real_time}):");
    for &(number, edge) in cycle {
        // Moments are passed through.
        let Some(txn) = history.get(number) else { continue };
        let why = match edge {
            Edge::Ww(key) => format!("wrote key {key} before"),
            Edge::Wr(key) => format!("wrote what was read of key {key} by"),
            Edge::Rw(key) => format!("read of key {key} what was replaced by"),
            Edge::Rt => "had ended before".into(),
        };
        text += &format!("\n  T{number} of client {} {} {why} the next", txn.client, parts(txn));
    }
    text
}

fn parts(txn: &ChainTxn) -> String {
    let part = |op: &ChainOp| match op {
        ChainOp::Read(key, list) => format!("r {key} {list:?}"),
        ChainOp::Append(key, value) => format!("append {key} {value}"),
    };
    format!("[{}]", txn.ops.iter().map(part).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn txn(called: u64, returned: u64, end: ChainEnd, ops: &[ChainOp]) -> ChainTxn {
        ChainTxn { client: 0, called, returned, end, ops: ops.to_vec() }
    }

    fn read(key: u64, list: &[u32]) -> ChainOp {
        ChainOp::Read(key, list.to_vec())
    }

    use ChainEnd::{Done, Failed, Unknown};
    use ChainOp::Append;

    #[test]
    fn what_an_order_explains_is_right() {
        let history = [
            txn(0, 10, Done, &[read(1, &[]), Append(1, 1), read(2, &[]), Append(2, 2)]),
            txn(5, 20, Unknown, &[Append(1, 3)]),
            txn(12, 15, Done, &[read(1, &[1]), read(2, &[2])]),
            txn(16, 30, Done, &[read(1, &[1, 3]), Append(1, 4)]),
            txn(17, 30, Failed, &[Append(1, 5)]),
            txn(40, 50, Done, &[read(1, &[1, 3, 4]), read(2, &[2])]),
        ];
        assert_eq!(check(&history), Ok(()));
        assert_eq!(check(&[]), Ok(()));
    }

    fn wrong(history: &[ChainTxn], what: &str) {
        let text = check(history).expect_err("it is wrong");
        assert!(text.contains(what), "{text}");
    }

    #[test]
    fn each_anomaly_is_found_and_named() {
        // Each reads one key before, and the other after, the other's write.
        wrong(
            &[txn(0, 9, Done, &[Append(1, 1), read(2, &[2])]), txn(0, 9, Done, &[Append(2, 2), read(1, &[1])])],
            "(G1c)",
        );
        // Two that overwrite each other in two orders.
        let both = [txn(0, 9, Done, &[Append(1, 1), Append(2, 2)]), txn(0, 9, Done, &[Append(1, 3), Append(2, 4)])];
        wrong(&[&both[..], &[txn(0, 9, Done, &[read(1, &[1, 3]), read(2, &[4, 2])])]].concat(), "(G0)");
        // A lost update: both read nothing.
        let lost = [txn(0, 9, Done, &[read(1, &[]), Append(1, 1)]), txn(0, 9, Done, &[read(1, &[]), Append(1, 2)])];
        wrong(&[&lost[..], &[txn(0, 9, Done, &[read(1, &[1, 2])])]].concat(), "(G-single)");
        // Write skew.
        let skew = [txn(0, 9, Done, &[read(1, &[]), Append(2, 1)]), txn(0, 9, Done, &[read(2, &[]), Append(1, 2)])];
        let after = [txn(0, 9, Done, &[read(1, &[2]), read(2, &[1])])];
        wrong(&[&skew[..], &after].concat(), "(G2-item)");
        // A read of what was before, after the write had ended.
        wrong(&[txn(0, 9, Done, &[Append(1, 1)]), txn(10, 19, Done, &[read(1, &[])])], "(G-single-realtime)");
        let seen = txn(30, 39, Done, &[read(1, &[1])]);
        wrong(&[txn(0, 9, Unknown, &[Append(1, 1)]), seen.clone(), txn(40, 49, Done, &[read(1, &[])])], "realtime");
        // One part of it was read, and so all of it is there.
        let halves = txn(10, 19, Done, &[read(1, &[1]), read(2, &[])]);
        wrong(&[txn(0, 5, Unknown, &[Append(1, 1), Append(2, 2)]), halves], "(G-single)");
        wrong(&[txn(0, 9, Failed, &[Append(1, 1)]), seen.clone()], "(G1a)");
        wrong(&[seen], "nobody appended");
        let forks = [txn(0, 9, Unknown, &[Append(1, 1)]), txn(0, 9, Unknown, &[Append(1, 2)])];
        let fork = [txn(0, 9, Done, &[read(1, &[1])]), txn(0, 9, Done, &[read(1, &[2])])];
        wrong(&[&forks[..], &fork].concat(), "neither");
    }
}

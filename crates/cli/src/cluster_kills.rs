//! `remora cluster kills`: SIGKILL under load, and a check of everything that clients saw.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use remora_cluster::{ClusterClient, ClusterClientConfig, Op, Outcome};
use remora_lab::stats::{median, range};
use remora_storm::durability::{Finding, check_history};
use remora_storm::engine::{Action, End};
use remora_storm::history::{History, Record};
use serde_json::json;

use crate::cluster::{Shape, scratch};
use crate::cluster_children::{Children, Settings};
use crate::progress::{Display, stop_flag};
use crate::{Failure, print};

pub const EXAMPLES: &str = "\
While clients read and write, a node chosen at random is killed with SIGKILL, started again after a moment, and \
waited for until it is a member; then the next one. After every tenth kill all nodes are killed at once. In the end \
every record is read at every node. All answers together must be linearizable, and nothing may be lost that the \
persistency model keeps (see docs/replication.md).

Examples:
  remora cluster kills                                      50 kills, about two minutes
  remora cluster kills --kills 5 --persistency event --nodes 5
  remora cluster kills --seed 7 --deployment host           the same victims and requests again";

/// Options of `remora cluster kills`.
#[derive(Debug, clap::Args)]
pub struct Kills {
    #[command(flatten)]
    shape: Shape,
    /// Kills of one node
    #[arg(long, value_name = "N", default_value = "50", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    kills: u32,
    /// Kills of all nodes at once come after so many kills of one
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u32).range(1..))]
    all_after: u32,
    /// Threads of clients, each with several requests under way
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u8).range(1..=64))]
    clients: u8,
    /// Seed of every random choice [default: a fresh one]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Fail if writes are answered again only after more than so many milliseconds
    #[arg(long, value_name = "MS", default_value = "1000")]
    within: u64,
    /// Also write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Requests under way of each client thread.
const WINDOW: usize = 8;
/// Records of each round; the next kill begins another round, so that no record sees more than a few kills.
const KEYS: u64 = 64;
/// How long a node may take to be a member again.
const RETURN: Duration = Duration::from_secs(60);
/// A client's pause before each request, at most: what is to be checked must not become too much.
const PAUSE: Duration = Duration::from_millis(4);

/// What all threads share.
struct Load {
    settings: Settings,
    seed: u64,
    start: Instant,
    round: AtomicU32,
    next: AtomicU64,
    stop: AtomicBool,
    history: Mutex<History>,
    wrong: Mutex<Option<String>>,
}

/// Runs the command.
pub fn run(args: &Kills) -> Result<(), Failure> {
    let stop = stop_flag();
    let display = Display::new(stop.clone());
    let seed = args.seed.unwrap_or_else(|| RandomState::new().hash_one(0) >> 24);
    let dir = scratch()?;
    let settings = Settings::open(dir.path(), &args.shape)?;
    let (model, deployment, nodes) = (settings.persistency, settings.deployment, settings.addresses.len());
    let head = format!("{nodes} nodes, {model}, {deployment} deployment; seed {seed}\n");
    print(&head, &head);
    let mut children = Children::start(dir.path(), settings.clone())?;
    children.await_service(RETURN)?;
    let load = Arc::new(Load {
        settings,
        seed,
        start: Instant::now(),
        round: AtomicU32::new(0),
        next: AtomicU64::new(1),
        stop: AtomicBool::new(false),
        history: Mutex::default(),
        wrong: Mutex::new(None),
    });
    let threads: Vec<_> = (0..args.clients)
        .map(|index| {
            let load = load.clone();
            thread::spawn(move || load.run(index))
        })
        .collect();
    let killed = kill_all_the_time(args, &mut children, &load, &display);
    load.stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().map_err(|_| Failure::Failed("a client panicked: its message is above".into()))??;
    }
    let kills = killed?;
    display.say("reading every record at every node");
    for node in 0..children.len() {
        load.read_all(node)?;
    }
    drop(children);
    display.say("checking what clients saw");
    load.check(args, &kills, &display)
}

/// A kill: when it had happened, of which node (`None`: all), and how long until the cluster was whole again.
struct Kill {
    at: u64,
    node: Option<usize>,
    whole: Duration,
}

fn kill_all_the_time(
    args: &Kills,
    children: &mut Children,
    load: &Load,
    display: &Display,
) -> Result<Vec<Kill>, Failure> {
    let mut random = Random(load.seed);
    let mut kills = Vec::new();
    for number in 1..=args.kills {
        thread::sleep(Duration::from_millis(100 + random.below(400)));
        kills.push(kill(children, load, &mut random, false)?);
        if number % args.all_after == 0 {
            thread::sleep(Duration::from_millis(100 + random.below(400)));
            kills.push(kill(children, load, &mut random, true)?);
        }
        display.advance(number.into(), args.kills.into(), "kills");
        if display.stopped() {
            return Err(Failure::Interrupted);
        }
        if load.wrong.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            break;
        }
    }
    thread::sleep(Duration::from_millis(300));
    Ok(kills)
}

fn kill(children: &mut Children, load: &Load, random: &mut Random, all: bool) -> Result<Kill, Failure> {
    let victim = random.below(children.len() as u64) as usize;
    let victims: Vec<usize> = if all { (0..children.len()).collect() } else { vec![victim] };
    victims.iter().for_each(|&node| children.kill(node));
    let (at, since) = (load.now(), Instant::now());
    if all {
        load.history().blackouts.push(at);
    }
    load.round.fetch_add(1, Ordering::Relaxed);
    thread::sleep(Duration::from_millis(if all { 0 } else { 300 + random.below(500) }));
    for &node in &victims {
        children.spawn_node(node)?;
    }
    children.await_service(RETURN)?;
    Ok(Kill { at, node: (!all).then_some(victim), whole: since.elapsed() })
}

/// A session: one request at a time.
struct Session {
    name: u64,
    scope: u64,
    scoped: u32,
    open: Option<(Option<usize>, Action, u64)>,
    pause_until: Instant,
}

impl Load {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64 + 1
    }

    fn history(&self) -> std::sync::MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(&self, nodes: &[usize], retry: bool) -> Result<ClusterClient, Failure> {
        let mut config = ClusterClientConfig::new(nodes.iter().map(|&node| self.settings.addresses[node]).collect());
        (config.link, config.retry, config.timeout) = (self.settings.link, retry, Duration::from_secs(10));
        Ok(ClusterClient::connect(config)?)
    }

    /// One client thread.
    fn run(&self, index: u8) -> Result<(), Failure> {
        let mut random = Random(self.seed ^ (u64::from(index) + 1) << 32);
        let count = self.settings.addresses.len();
        let nodes: Vec<usize> = (0..count).map(|n| (n + usize::from(index)) % count).collect();
        let mut client = self.client(&nodes, index.is_multiple_of(2))?;
        let mut sessions: Vec<Session> = (0..WINDOW as u64).map(|n| self.session(u64::from(index) << 32 | n)).collect();
        let mut tickets = HashMap::new();
        loop {
            let now = Instant::now();
            for (number, session) in sessions.iter_mut().enumerate() {
                if session.open.is_none() && now >= session.pause_until && !self.stop.load(Ordering::Relaxed) {
                    tickets.insert(self.ask(&mut client, session, &mut random), number);
                }
            }
            let mut ended = Vec::new();
            client.poll(&mut |done| ended.push(done));
            for done in ended {
                if let Some(number) = tickets.remove(&done.ticket) {
                    self.end(&mut sessions[number], &done.outcome);
                    sessions[number].pause_until = Instant::now() + PAUSE * (random.below(100) as u32) / 100;
                }
            }
            if tickets.is_empty() && self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            client.wait(Duration::from_millis(1));
        }
    }

    fn session(&self, name: u64) -> Session {
        let scope = self.next.fetch_add(1, Ordering::Relaxed);
        Session { name, scope, scoped: 0, open: None, pause_until: Instant::now() }
    }

    /// Submits a session's next request and notes the call.
    fn ask(&self, client: &mut ClusterClient, session: &mut Session, random: &mut Random) -> remora_cluster::Ticket {
        let scoped = self.settings.persistency.facts().scopes;
        let scope = scoped.then_some(session.scope);
        if scoped && session.scoped >= 5 {
            session.open = Some((None, Action::Get, 0));
            return client.submit_in(scope, Op::Persist);
        }
        let round = u64::from(self.round.load(Ordering::Relaxed));
        let mut key = round * KEYS + random.below(KEYS);
        let drawn = random.below(100);
        let unique = self.next.fetch_add(1, Ordering::Relaxed);
        let value = |number| content(key, number);
        let (action, op) = if drawn < 30 {
            if drawn < 8 {
                key = random.below(key + 1);
            }
            (Action::Get, Op::Get(key))
        } else if key.is_multiple_of(4) {
            (Action::FetchAdd(unique), Op::FetchAdd(key, unique))
        } else if drawn < 80 {
            (Action::Put(unique), Op::Put(key, value(unique)))
        } else if drawn < 88 {
            (Action::Delete, Op::Delete(key))
        } else {
            let op = Op::CompareSwap { key, expected: None, new: Some(value(unique)) };
            (Action::CompareSwap { expected: None, new: unique }, op)
        };
        session.scoped += u32::from(action != Action::Get);
        let reads = action == Action::Get;
        let ticket = client.submit_in(scope.filter(|_| !reads), op);
        let index = self.history().call(Record {
            client: session.name,
            number: unique,
            key: key as u32,
            action,
            scope: session.scope,
            called: self.now(),
            returned: 0,
            end: End::Unknown,
        });
        session.open = Some((Some(index), action, key));
        ticket
    }

    /// Notes how a session's request ended.
    fn end(&self, session: &mut Session, outcome: &Outcome) {
        let Some((index, action, key)) = session.open.take() else { return };
        let now = self.now();
        let Some(index) = index else {
            if *outcome == Outcome::Persisted {
                self.history().persisted.insert(session.scope);
            }
            (session.scope, session.scoped) = (self.next.fetch_add(1, Ordering::Relaxed), 0);
            return;
        };
        match end_of(key, action, outcome) {
            Ok(end) => self.history().end(index, now, end),
            Err(why) => *self.wrong.lock().unwrap_or_else(PoisonError::into_inner) = Some(why),
        }
    }

    /// Reads every record at one node.
    fn read_all(&self, node: usize) -> Result<(), Failure> {
        let mut client = self.client(&[node], false)?;
        let keys = u64::from(self.history().keys());
        let session = self.session(1 << 60 | node as u64);
        for key in 0..keys {
            let called = self.now();
            let outcome = client.get(key);
            let (action, returned, number) = (Action::Get, self.now(), key);
            let end = end_of(key, action, &outcome).map_err(Failure::Failed)?;
            if !matches!(end, End::Done(_)) {
                return Err(Failure::Failed(format!("record {key} cannot be read at node {node}: {outcome:?}")));
            }
            let (scope, client) = (session.scope, session.name);
            self.history().call(Record { client, number, key: key as u32, action, scope, called, returned, end });
        }
        Ok(())
    }

    fn check(&self, args: &Kills, kills: &[Kill], display: &Display) -> Result<(), Failure> {
        let history = self.history();
        display.clear();
        if let Some(why) = &*self.wrong.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(Failure::Failed(format!("{why}; seed {}", self.seed)));
        }
        let writes = |record: &&Record| record.action != Action::Get;
        let acknowledged = |record: &&Record| matches!(record.end, End::Done(_));
        let unknown = history.records.iter().filter(|record| record.end == End::Unknown).count();
        let answered = history.records.iter().filter(acknowledged).filter(writes).count();
        let resumed: Vec<Option<Duration>> = kills.iter().map(|kill| resumed(&history, kill.at)).collect();
        let single: Vec<Duration> =
            kills.iter().zip(&resumed).filter(|(kill, _)| kill.node.is_some()).filter_map(|(_, r)| *r).collect();
        let whole: Vec<Duration> = kills.iter().filter(|kill| kill.node.is_some()).map(|kill| kill.whole).collect();
        let all: Vec<Duration> =
            kills.iter().zip(&resumed).filter(|(kill, _)| kill.node.is_none()).filter_map(|(_, r)| *r).collect();
        let checked = check_history(&history, self.settings.persistency);
        let mut text = format!(
            "{} kills of one node, {} of all; {} operations, {answered} writes answered, {unknown} outcomes unknown\n",
            single.len(),
            all.len(),
            history.records.len(),
        );
        text += &spread("first write answered after the kill of one", &single);
        text += &spread("cluster whole again after it", &whole);
        text += &spread("first write answered after the kill of all", &all);
        let verdict = verdict(&checked);
        let (Ok(said) | Err(said)) = &verdict;
        text += &format!("{said}\n");
        print(&text, &text);
        if let Some(path) = &args.json {
            let ms = |times: &[Duration]| times.iter().map(|t| t.as_secs_f64() * 1e3).collect::<Vec<_>>();
            let figures = json!({
                "seed": self.seed,
                "persistency": self.settings.persistency.to_string(),
                "operations": history.records.len(),
                "acknowledged_writes": answered,
                "unknown": unknown,
                "resumed_ms": ms(&single),
                "whole_ms": ms(&whole),
                "resumed_after_all_ms": ms(&all),
                "violations": u8::from(checked.is_err()),
                "too_hard": checked.as_ref().map_or(0, Vec::len),
            });
            std::fs::write(path, format!("{figures}\n"))
                .map_err(|e| Failure::Failed(format!("writing {}: {e}", path.display())))?;
        }
        let again = format!("seed {}", self.seed);
        if let Err(finding) = &checked {
            for &index in finding.records.iter().take(20) {
                let line = format!("{:?}\n", history.records[index]);
                print(&line, &line);
            }
        }
        verdict.map_err(|why| Failure::Failed(format!("{why}; {again}")))?;
        let slow = single.iter().filter(|t| t.as_millis() as u64 > args.within).count();
        if slow > 0 || single.len() < whole.len() {
            let within = args.within;
            return Err(Failure::Failed(format!("after {slow} kills no write was answered for {within} ms; {again}")));
        }
        Ok(())
    }
}

/// What came of the check, in words; an error unless every record was found linearizable.
fn verdict(checked: &Result<Vec<u32>, Finding>) -> Result<String, String> {
    match checked {
        Ok(hard) if hard.is_empty() => Ok("every record is linearizable, and nothing is lost".into()),
        Ok(hard) => Err(format!("{} records are too hard to check; the others are linearizable", hard.len())),
        Err(finding) => Err(format!("record {} cannot be explained", finding.key)),
    }
}

/// How long after a kill the first write was answered that was asked for after it.
fn resumed(history: &History, at: u64) -> Option<Duration> {
    let done = |record: &&Record| matches!(record.end, End::Done(_)) && record.action != Action::Get;
    let after = history.records.iter().filter(|record| record.called >= at).filter(done);
    after.map(|record| Duration::from_nanos(record.returned - at)).min()
}

fn spread(what: &str, times: &[Duration]) -> String {
    if times.is_empty() {
        return String::new();
    }
    let ms = || times.iter().map(|time| time.as_secs_f64() * 1e3);
    let (least, most) = range(ms());
    format!("  {what}: median {:.0} ms, {least:.0} to {most:.0} ms\n", median(ms()))
}

/// A number as a record's content: of many lengths, and such that no other content has it. Counters are plain numbers.
fn content(key: u64, number: u64) -> std::sync::Arc<[u8]> {
    let padding = if key.is_multiple_of(4) { 0 } else { number.wrapping_mul(0x9e37_79b9) % 1000 };
    let rest = (0..padding).map(|at| (number ^ at) as u8);
    number.to_le_bytes().into_iter().chain(rest).collect()
}

/// The operation's end for the checker; an answer that no node may give is an error.
fn end_of(key: u64, action: Action, outcome: &Outcome) -> Result<End, String> {
    let number = |value: &Option<std::sync::Arc<[u8]>>| -> Result<Option<u64>, String> {
        let Some(bytes) = value else { return Ok(None) };
        let number = bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let sound = number.filter(|&number| *content(key, number) == **bytes);
        sound.map(Some).ok_or_else(|| format!("record {key} holds {} bytes that nobody wrote", bytes.len()))
    };
    Ok(match (action, outcome) {
        (_, Outcome::Unknown) => End::Unknown,
        (_, Outcome::Refused(_)) => End::Refused,
        (Action::Get, Outcome::Value(value)) => End::Done(number(value)?),
        (Action::Put(_) | Action::Delete, Outcome::Written) => End::Done(None),
        (Action::CompareSwap { expected, .. }, Outcome::Swapped) => End::Done(expected),
        (Action::CompareSwap { .. }, Outcome::NotSwapped(value)) => End::Done(number(value)?),
        (Action::FetchAdd(_), Outcome::Added(found)) => End::Done((*found != 0).then_some(*found)),
        _ => return Err(format!("{outcome:?} answers {action:?} of record {key}")),
    })
}

/// SplitMix64 (Steele et al., "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_history_that_was_checked_whole_is_good() {
        assert!(verdict(&Ok(Vec::new())).is_ok());
        assert!(verdict(&Ok(vec![3])).is_err_and(|why| why.starts_with("1 records are too hard")));
        assert!(verdict(&Err(Finding { key: 5, records: Vec::new() })).is_err());
    }
}

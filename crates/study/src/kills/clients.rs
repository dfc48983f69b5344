//! The clients of a cluster whose nodes are killed: sessions with one request each, in the closed loop.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use remora_cluster::{ClusterClient, ClusterClientConfig, Model, Op, Outcome, Ticket};
use remora_model::time::Ps;
use remora_storm::engine::{Action, End};
use remora_storm::history::{History, Record};

use super::check::{Seen, answered, content, end_of};
use super::{Crowd, Random};
use crate::StudyError;
use crate::load::{self, Begun, Trouble, Until, system_time};
use crate::nodes::ClusterSettings;

/// Requests under way of each client thread.
const WINDOW: u32 = 8;
/// Records of each round; the next kill begins another round, so that no record sees more than a few kills.
const KEYS: u64 = 64;
/// A client's pause before each request, at most: what is to be checked must not become too much.
const PAUSE: Ps = Ps::from_us(4000);

/// What all threads share.
pub struct Shared {
    pub(super) settings: ClusterSettings,
    pub(super) seed: u64,
    start: Instant,
    round: AtomicU32,
    next: AtomicU64,
    pub(super) stop: AtomicBool,
    history: Mutex<History>,
    wrong: Mutex<Option<String>>,
}

/// A session: one request at a time.
struct Session {
    name: u64,
    scope: u64,
    scoped: u32,
    open: Option<(Option<usize>, Action, u64)>,
    pause_until: Ps,
}

impl Shared {
    /// For a cluster of these settings.
    pub(super) fn new(settings: ClusterSettings, seed: u64) -> Self {
        Self {
            settings,
            seed,
            start: Instant::now(),
            round: AtomicU32::new(0),
            next: AtomicU64::new(1),
            stop: AtomicBool::new(false),
            history: Mutex::default(),
            wrong: Mutex::new(None),
        }
    }

    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on other records are read and written.
    pub(super) fn next_round(&self) {
        self.round.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that nobody has yet.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A record of this round.
    pub(super) fn key(&self, random: &mut Random) -> u64 {
        u64::from(self.round.load(Ordering::Relaxed)) * KEYS + random.below(KEYS)
    }

    pub(super) fn client(&self, nodes: &[usize], retry: bool) -> Result<ClusterClient, StudyError> {
        let nodes = nodes.iter().map(|&node| self.settings.addresses[node]).collect();
        let timeout = Duration::from_secs(10);
        Ok(ClusterClient::connect(ClusterClientConfig { nodes, retry, timeout, ..self.settings.client() })?)
    }

    fn session(&self, name: u64) -> Session {
        let scope = self.number();
        Session { name, scope, scoped: 0, open: None, pause_until: Ps::ZERO }
    }

    /// Submits a session's next request and notes the call.
    fn ask(&self, client: &mut ClusterClient, session: &mut Session, random: &mut Random) -> Ticket {
        let scoped = self.settings.persistency == Model::Scope;
        let scope = scoped.then_some(session.scope);
        if scoped && session.scoped >= 5 {
            session.open = Some((None, Action::Get, 0));
            return client.submit_in(scope, Op::Persist);
        }
        let mut key = self.key(random);
        let drawn = random.below(100);
        let unique = self.number();
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
        // Noted before it is sent: another client may see what it does at once.
        let called = self.now();
        let ticket = client.submit_in(scope.filter(|_| !reads), op);
        let index = self.history().call(Record {
            client: session.name,
            number: unique,
            key: key as u32,
            action,
            scope: session.scope,
            called,
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
            (session.scope, session.scoped) = (self.number(), 0);
            return;
        };
        match end_of(key, action, outcome) {
            Ok(end) => self.history().end(index, now, end),
            Err(why) => *self.wrong.lock().unwrap_or_else(PoisonError::into_inner) = Some(why),
        }
    }
}

impl Crowd for Shared {
    fn run(&self, index: u8) -> Result<(), StudyError> {
        let count = self.settings.addresses.len();
        let nodes: Vec<usize> = (0..count).map(|n| (n + usize::from(index)) % count).collect();
        let mut sessions = Sessions {
            shared: self,
            client: self.client(&nodes, index.is_multiple_of(2))?,
            sessions: (0..u64::from(WINDOW)).map(|n| self.session(u64::from(index) << 32 | n)).collect(),
            tickets: HashMap::new(),
            random: Random(self.seed ^ (u64::from(index) + 1) << 32),
        };
        load::closed(&mut sessions, WINDOW, Until::Over, &mut |(), _, _| {}, &|| false).map(drop)
    }

    fn watch(&self, node: usize) -> Result<(), StudyError> {
        self.watch_at(node)
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn read_all(&self, node: usize) -> Result<(), StudyError> {
        let mut client = self.client(&[node], false)?;
        let keys = u64::from(self.history().keys());
        let session = self.session(1 << 60 | node as u64);
        for key in 0..keys {
            let called = self.now();
            let outcome = client.get(key);
            let (action, returned, number) = (Action::Get, self.now(), key);
            let end = end_of(key, action, &outcome).map_err(StudyError::Failed)?;
            if !matches!(end, End::Done(_)) {
                return Err(StudyError::Failed(format!("record {key} cannot be read at node {node}: {outcome:?}")));
            }
            let (scope, client) = (session.scope, session.name);
            self.history().call(Record { client, number, key: key as u32, action, scope, called, returned, end });
        }
        Ok(())
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64 + 1
    }

    fn killed(&self, at: u64, all: bool) {
        if all {
            self.history().blackouts.push(at);
        }
        self.next_round();
    }

    fn in_turn(&self) -> bool {
        false
    }

    fn wrong(&self) -> Option<String> {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn read_late(&self, from: u64, to: u64) -> usize {
        let late = |record: &&Record| {
            let watched = record.client >= super::watchers::FIRST && record.action == Action::Get;
            let done = matches!(record.end, End::Done(_));
            watched && done && record.called > from && record.called < to && record.returned >= to
        };
        self.history().records.iter().filter(late).count()
    }

    fn seen(&self) -> (Seen, Vec<(u64, u64)>) {
        let (seen, history) = self.checked();
        let writes = answered(&history);
        (seen, writes)
    }
}

/// The sessions of a client thread, as the loop drives them: each pauses for a while before its next request.
struct Sessions<'a> {
    shared: &'a Shared,
    client: ClusterClient,
    sessions: Vec<Session>,
    tickets: HashMap<Ticket, u32>,
    random: Random,
}

impl load::Target for Sessions<'_> {
    type Told = ();
    type Error = StudyError;

    /// Clients end requests by themselves.
    fn patience(&self) -> Duration {
        Duration::MAX
    }

    fn now(&self) -> Ps {
        system_time()
    }

    fn begin(&mut self, slot: u32, now: Ps) -> Result<Begun, StudyError> {
        let Self { shared, client, sessions, tickets, random } = self;
        let session = &mut sessions[slot as usize];
        if shared.stop.load(Ordering::Relaxed) {
            return Ok(Begun::Over);
        }
        if now < session.pause_until {
            return Ok(Begun::Later);
        }
        tickets.insert(shared.ask(client, session, random), slot);
        Ok(Begun::Yes)
    }

    fn again(&mut self, _: u32) -> Result<(), StudyError> {
        // None ends so: the client makes requests again by itself.
        Ok(())
    }

    fn poll(&mut self, _: Ps, ended: &mut impl FnMut(u32, Ps, load::CallEnd<()>)) -> Result<bool, StudyError> {
        let Self { shared, client, sessions, tickets, random } = self;
        let mut any = false;
        client.poll(&mut |done| {
            let Some(slot) = tickets.remove(&done.ticket) else { return };
            let (session, now) = (&mut sessions[slot as usize], system_time());
            shared.end(session, &done.outcome);
            session.pause_until = now + Ps(PAUSE.0 * random.below(100) / 100);
            ended(slot, now, load::CallEnd::Right(()));
            any = true;
        });
        if !any {
            client.wait(Duration::from_millis(1));
        }
        Ok(true)
    }

    fn trouble(&self, trouble: Trouble) -> StudyError {
        StudyError::Failed(format!("a client of the cluster: {trouble:?}"))
    }
}

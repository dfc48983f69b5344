//! An ingress that the crate does not have: rings of requests and responses in memory. The engine in front of kernels is
//! the one that RPC verbs and SENDs have.

use std::collections::VecDeque;

use proptest::prelude::*;
use remora_kernel::{Call, Runner, Status, runner};
use remora_service::{CallTable, DEADLINE, Ingress, Release, Shares, TakenCall};

/// One client's rings.
#[derive(Default)]
struct Ring {
    /// Op-code and parameters.
    requests: VecDeque<(u64, Vec<u8>)>,
    /// Requests taken so far: the place of the next response.
    taken: u64,
    /// Place, status, reply.
    responses: Vec<(u64, Status, Vec<u8>)>,
}

/// The rings of all clients, looked at in turn.
struct Rings {
    rings: Vec<Ring>,
    turn: usize,
    /// Whether a response keeps its call's number until the client has read it.
    keeps: bool,
    kept: Vec<u32>,
}

impl Rings {
    fn new(clients: usize, keeps: bool) -> Self {
        Self { rings: (0..clients).map(|_| Ring::default()).collect(), turn: 0, keeps, kept: Vec::new() }
    }
}

impl Ingress for Rings {
    type Asker = (usize, u64);

    fn is_waiting(&self) -> bool {
        self.rings.iter().any(|ring| !ring.requests.is_empty())
    }

    fn poll(&mut self, shares: &Shares, call: &mut Call) -> Option<TakenCall<Self::Asker>> {
        for _ in 0..self.rings.len() {
            let client = self.turn;
            self.turn = (self.turn + 1) % self.rings.len();
            let ring = &mut self.rings[client];
            if shares.may_start(client as u32)
                && let Some((op, params)) = ring.requests.pop_front()
            {
                call.recycle(op, 64);
                call.params.extend_from_slice(&params);
                ring.taken += 1;
                return Some(TakenCall { client: client as u32, stream: None, asker: (client, ring.taken - 1) });
            }
        }
        None
    }

    fn reply(&mut self, number: u32, (client, place): Self::Asker, status: Status, call: &mut Call) -> Release {
        self.rings[client].responses.push((place, status, call.reply.clone()));
        if !self.keeps {
            return Release::Now;
        }
        self.kept.push(number);
        Release::Later
    }
}

/// Answers with the parameters, twice.
fn run(call: &mut Call) -> Status {
    let params = std::mem::take(&mut call.params);
    for _ in 0..2 {
        match call.grow_reply(params.len()) {
            Ok(room) => room.copy_from_slice(&params),
            Err(status) => return status,
        }
    }
    Status::Ok
}

#[test]
fn a_ring_is_an_ingress_like_any_other() {
    let (mut rings, mut table) = (Rings::new(2, false), CallTable::new(8));
    rings.rings[0].requests.extend([(1, b"ab".to_vec()), (2, b"too long for the room that there is".to_vec())]);
    rings.rings[1].requests.push_back((3, b"c".to_vec()));
    let mut ops = Vec::new();
    while let Some(mut call) = table.take(0, &mut rings) {
        ops.push(call.op);
        let status = run(&mut call);
        table.finish(&mut rings, call, status);
    }
    assert_eq!(ops, [1, 3, 2], "clients take turns");
    let expected = [(0, Status::Ok, b"abab".to_vec()), (1, Status::ReplyTooLong, Vec::new())];
    assert_eq!(rings.rings[0].responses, expected, "of a call that failed, no half reply");
    assert_eq!(rings.rings[1].responses, [(0, Status::Ok, b"cc".to_vec())]);
    assert_eq!(table.under_way(), 0);
}

#[test]
fn a_greedy_client_leaves_room_for_an_honest_one() {
    let (mut rings, mut table) = (Rings::new(2, false), CallTable::new(512));
    rings.rings[0].requests.extend((0..1000).map(|_| (7, Vec::new())));
    let held: Vec<Call> = std::iter::from_fn(|| table.take(0, &mut rings)).collect();
    assert_eq!(held.len(), 256, "half of the room, whatever is asked for");
    // None of those ever ends. The other has one call after the other answered, and many at once.
    for round in 1..100 {
        rings.rings[1].requests.extend((0..round).map(|_| (8, vec![round])));
        let calls: Vec<Call> = std::iter::from_fn(|| table.take(0, &mut rings)).collect();
        assert_eq!(calls.len(), usize::from(round));
        for mut call in calls {
            assert_eq!(call.op, 8);
            let status = run(&mut call);
            table.finish(&mut rings, call, status);
        }
    }
    assert_eq!(rings.rings[1].responses.len(), (1..100).sum::<usize>());
    assert_eq!(rings.rings[0].responses.len(), 0);
}

/// What may happen at a node, in any order.
#[derive(Clone, Debug)]
enum Step {
    Ask(usize),
    Take,
    /// The oldest or newest call under way ends.
    End {
        newest: bool,
        status: u8,
    },
    /// An answer arrives that was on its way.
    Arrive,
    /// The client has read a response.
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..3usize).prop_map(Step::Ask),
        3 => Just(Step::Take),
        2 => (any::<bool>(), 0..3u8).prop_map(|(newest, status)| Step::End { newest, status }),
        2 => Just(Step::Arrive),
        2 => Just(Step::Release),
    ]
}

/// Kernels of which one, 7, never ends.
fn kernels(capacity: usize) -> Box<dyn Runner + Send> {
    let task = |mut call: Call| async move {
        if call.op == 7 {
            std::future::pending::<()>().await;
        }
        let status = run(&mut call);
        (call, status)
    };
    runner(task, capacity)
}

#[test]
fn calls_that_take_for_ever_hold_up_nobody_and_end() {
    let (mut rings, mut table, mut kernels) = (Rings::new(2, false), CallTable::new(512), kernels(512));
    rings.rings[0].requests.extend((0..1000).map(|_| (7, Vec::new())));
    // A turn of the place, as a world drives it.
    let turn = |now: u64, rings: &mut Rings, table: &mut CallTable<(usize, u64)>, kernels: &mut dyn Runner| {
        while let Some(call) = table.take(now, rings) {
            assert!(kernels.start(call).is_ok());
        }
        kernels.poll(&mut |call, status| table.finish(rings, call, status));
        table.end_overdue(now, rings, |tag| kernels.cancel(tag));
    };
    turn(0, &mut rings, &mut table, &mut *kernels);
    assert_eq!(table.under_way(), 256, "its share");
    for n in 0..100 {
        rings.rings[1].requests.push_back((8, vec![n]));
        (0..2).for_each(|now| turn(now, &mut rings, &mut table, &mut *kernels));
        assert_eq!(rings.rings[1].responses.len(), usize::from(n) + 1, "within two turns");
    }
    assert!(rings.rings[0].responses.is_empty());
    // Each of the others ends once its time is over, one a turn, and others of its client take its place.
    for _ in 0..512 {
        turn(DEADLINE + 2, &mut rings, &mut table, &mut *kernels);
    }
    let ended = &rings.rings[0].responses;
    assert_eq!(ended.len(), 256);
    assert!(ended.iter().all(|(_, status, reply)| (*status, reply.len()) == (Status::Overdue, 0)));
    turn(DEADLINE + 2, &mut rings, &mut table, &mut *kernels);
    assert_eq!((table.under_way(), kernels.in_flight()), (256, 256));
}

proptest! {
    #[test]
    fn every_call_is_answered_once_and_to_whoever_asked(
        steps in prop::collection::vec(step(), 0..300),
        keeps in any::<bool>(),
        capacity in 1..12usize,
    ) {
        let (mut rings, mut table) = (Rings::new(3, keeps), CallTable::new(capacity));
        let (mut running, mut answers) = (VecDeque::<Call>::new(), VecDeque::new());
        let mut asked = [0u64; 3];
        for step in steps {
            match step {
                Step::Ask(client) => {
                    let params = [client as u8, asked[client] as u8].to_vec();
                    rings.rings[client].requests.push_back((asked[client], params));
                    asked[client] += 1;
                }
                Step::Take => {
                    if let Some(call) = table.take(0, &mut rings) {
                        prop_assert!(running.iter().all(|other| other.tag != call.tag), "a number is one call's");
                        running.push_back(call);
                    }
                }
                Step::End { newest, status } => {
                    if let Some(mut call) = if newest { running.pop_back() } else { running.pop_front() } {
                        let half = call.params.clone();
                        call.reply.extend_from_slice(&half);
                        answers.extend(table.end(call, Status::from_code(status)));
                    }
                }
                Step::Arrive => {
                    if let Some(answer) = answers.pop_front() {
                        table.answer(&mut rings, answer);
                    }
                }
                Step::Release => {
                    if let Some(number) = rings.kept.pop() {
                        table.release(number);
                    }
                }
            }
            prop_assert_eq!(table.under_way(), running.len() + answers.len() + rings.kept.len());
            prop_assert!(table.under_way() <= capacity);
        }
        for call in running {
            table.finish(&mut rings, call, Status::Trapped);
        }
        for answer in answers {
            table.answer(&mut rings, answer);
        }
        for (client, ring) in rings.rings.iter_mut().enumerate() {
            ring.responses.sort_by_key(|(place, ..)| *place);
            prop_assert_eq!(ring.responses.len() as u64, ring.taken);
            for (n, (place, status, reply)) in (0..).zip(&ring.responses) {
                prop_assert_eq!(*place, n);
                let whole = [client as u8, n as u8];
                prop_assert_eq!(&reply[..], if *status == Status::Ok { &whole[..] } else { &[] });
            }
        }
    }
}

//! The state machine as tables: at a time something happens; these MADs are sent and these events come of it.

use super::*;

/// What happens in a row of a script.
#[derive(Clone, Copy)]
enum On {
    /// Only timers.
    Time,
    /// The peer's message of that name, see [`peer_says`].
    Hear(&'static str),
    /// The peer's message of that name from an address that is not the peer's.
    Forged(&'static str),
    /// The peer's message of that name in all but its transaction id.
    Guessed(&'static str),
    /// The peer's message of that name by another link.
    Beside(&'static str),
    Connect,
    Accept,
    Reject,
    Delay,
    Disconnect,
    /// A first packet on the queue pair.
    Packet,
}
use On::*;

/// At a time in ms, something happens; MADs sent; events.
type Row = (u64, On, &'static [&'static str], &'static [&'static str]);

fn play(script: &[Row]) -> Cm {
    let mut cm = Cm::new(1, config());
    play_on(&mut cm, script);
    cm
}

fn play_on(cm: &mut Cm, script: &[Row]) {
    cm.listen(service_id(PORT)).unwrap();
    let mut conn = ConnId(0);
    let mut ear = Ear::default();
    for (row, (at, on, sent, events)) in script.iter().enumerate() {
        let now = at * MS;
        cm.handle_timeout(now);
        match on {
            Time => {}
            Hear(message) => cm.handle_mad(now, 0, PEER, HERE, &ear.answer(peer_says(message, conn.0))),
            Forged(message) => cm.handle_mad(now, 0, STRANGER, HERE, &ear.answer(peer_says(message, conn.0))),
            Beside(message) => cm.handle_mad(now, 1, PEER, HERE, &ear.answer(peer_says(message, conn.0))),
            Guessed(message) => {
                let mut mad = peer_says(message, conn.0);
                message::set_transaction(&mut mad, 0x1234);
                cm.handle_mad(now, 0, PEER, HERE, &mad);
            }
            Connect => conn = cm.connect(now, HERE, PEER, service_id(PORT), params(OUR_QPN), b"hi").unwrap(),
            Accept => cm.accept(now, conn, params(OUR_QPN), b"ho").unwrap(),
            Reject => cm.reject(now, conn, reason::CONSUMER, b"no").unwrap(),
            Delay => cm.delay(now, conn, 1000 * MS).unwrap(),
            Disconnect => cm.disconnect(now, conn).unwrap(),
            Packet => cm.mark_established(now, OUR_QPN),
        }
        let mut got_events = Vec::new();
        while let Some(event) = cm.poll_event() {
            if let CmEvent::ConnectRequest { conn: new, .. } = event {
                conn = new;
            }
            got_events.push(name_of_event(&event));
        }
        let mut got_sent = Vec::new();
        let mut out = [0; 256];
        while cm.wants_transmit() {
            cm.poll_transmit(&mut out).expect("something to send");
            ear.hear(&out);
            got_sent.push(name_of(&out));
        }
        assert_eq!(cm.poll_transmit(&mut out), None);
        assert_eq!((got_sent, got_events), (strings(sent), strings(events)), "row {row} at {at} ms");
    }
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}

/// Who is to be waited for says so by disconnecting too, or has had his time.
#[test]
fn a_dreq_is_answered_when_the_user_is_done_with_the_connection() {
    let polite = || Cm::new(1, CmConfig { farewell: 300 * MS, ..config() });
    let told: Row = (10, Hear("DREQ"), &[], &["Disconnected"]);
    let rest: [&[Row]; 3] = [
        &[(11, Hear("DREQ"), &[], &[]), (12, Disconnect, &["DREP"], &[]), (13, Hear("DREQ"), &["DREP"], &[])],
        &[(309, Time, &[], &[]), (310, Time, &["DREP"], &[]), (311, Hear("DREQ"), &["DREP"], &[])],
        &[(11, Hear("DREQ, wrong id"), &[], &[]), (310, Hear("DREQ"), &["DREP", "DREP"], &[])],
    ];
    for rest in rest {
        for up in [&UP[..], &UP_PASSIVE] {
            let mut cm = polite();
            play_on(&mut cm, &[up, &[told], rest].concat());
            cm.handle_timeout(5000 * MS);
            assert_eq!((cm.connections(), cm.poll_event()), (0, None));
        }
    }
    // Who has said it himself answers at once.
    let both: [Row; 2] = [(10, Disconnect, &["DREQ"], &[]), (11, Hear("DREQ"), &["DREP"], &["Disconnected"])];
    play_on(&mut polite(), &[&UP[..], &both].concat());
}

/// Plays the script, and then nothing must be left once the time wait is over.
fn play_out(script: &[Row]) {
    let mut cm = play(script);
    while let Some(at) = cm.poll_timeout() {
        cm.handle_timeout(at);
        assert_eq!(cm.poll_event(), None, "an event after the end");
    }
    assert_eq!(cm.connections(), 0, "a connection was left over");
    assert!(cm.table.is_empty(), "an index was left over");
}

/// The active side, established.
const UP: [Row; 2] = [(0, Connect, &["REQ"], &[]), (1, Hear("REP"), &["RTU"], &["Established"])];
/// The passive side, established.
const UP_PASSIVE: [Row; 3] =
    [(0, Hear("REQ"), &[], &["ConnectRequest"]), (1, Accept, &["REP"], &[]), (2, Hear("RTU"), &[], &["Established"])];

/// Each script is a test that plays it out, after a prologue or from nothing.
///
/// A row: at a time in ms, something happens; MADs sent; events.
macro_rules! scripts {
    ($($name:ident $(after $prologue:ident)? {
        $(($at:expr, $on:expr, [$($sent:expr),*], [$($event:expr),*]))*
    })*) => {$(
        #[test]
        fn $name() {
            let prologue: &[Row] = &[];
            $(let prologue = [prologue, &$prologue].concat();)?
            let rows: Vec<Row> = vec![$(($at, $on, &[$($sent),*], &[$($event),*])),*];
            play_out(&[&prologue[..], &rows].concat());
        }
    )*};
}

// Opening, from the active side.
scripts! {
    a_req_without_answer_is_repeated {
        (0, Connect, ["REQ"], [])
        (99, Time, [], [])
        (100, Time, ["REQ"], [])
        (200, Time, ["REQ"], [])
        (300, Time, ["REJ 4"], ["Unreachable"])
        (301, Hear("REP"), ["REJ 4"], [])
    }

    the_rtu_is_repeated_for_a_repeated_rep after UP {
        (50, Hear("REP"), ["RTU"], [])
        (60, Hear("REP, new id"), [], [])
        (5000, Hear("REP"), ["RTU"], [])
        (5001, Hear("DREQ"), ["DREP"], ["Disconnected"])
        (5002, Hear("REP"), [], [])
    }

    refused {
        (0, Connect, ["REQ"], [])
        (1, Hear("REJ 28"), [], ["Rejected 28"])
    }

    no_such_service {
        (0, Connect, ["REQ"], [])
        (1, Hear("REJ 8, no id"), [], ["Rejected 8"])
    }

    only_the_peer_may_refuse {
        (0, Connect, ["REQ"], [])
        (1, Forged("REJ 28"), [], [])
        (2, Forged("REP"), [], [])
        (3, Hear("REP"), ["RTU"], ["Established"])
        (4, Forged("DREQ"), [], [])
        (5, Hear("DREQ, wrong id"), [], [])
        (6, Hear("DREQ, wrong qpn"), [], [])
        (7, Hear("REJ 28"), [], [])
        (8, Hear("REJ 6 of REP"), [], ["Disconnected"])
    }

    what_was_not_asked_for_is_not_believed {
        (0, Connect, ["REQ"], [])
        (1, Guessed("REJ 28"), [], [])
        (2, Guessed("REJ 8, no id"), [], [])
        (3, Guessed("REP"), [], [])
        (4, Beside("REP"), [], [])
        (5, Guessed("MRA 2 h"), [], [])
        (6, Hear("DREP"), [], [])
        (100, Time, ["REQ"], [])
        (101, Hear("REP"), ["RTU"], ["Established"])
        (102, Guessed("REP"), [], [])
        (103, Guessed("REJ 6 of REP"), [], [])
        (104, Guessed("REJ 4"), [], [])
        (105, Guessed("DREP"), [], [])
        (106, Beside("DREQ"), [], [])
        (107, Disconnect, ["DREQ"], [])
        (108, Guessed("DREP"), [], [])
        (109, Hear("DREP"), [], ["Disconnected"])
    }

    what_was_not_asked_for_is_not_believed_by_the_passive_side {
        (0, Hear("REQ"), [], ["ConnectRequest"])
        (1, Guessed("REJ 4 of REQ, no id"), [], [])
        (2, Accept, ["REP"], [])
        (3, Guessed("RTU"), [], [])
        (4, Guessed("REJ 4"), [], [])
        (5, Guessed("MRA 2 h"), [], [])
        (6, Hear("RTU"), [], ["Established"])
        (7, Guessed("REJ 4"), [], [])
        (8, Hear("DREQ"), ["DREP"], ["Disconnected"])
    }

    an_mra_puts_the_retry_off_and_costs_one {
        (0, Connect, ["REQ"], [])
        (50, Hear("MRA 1 s"), [], [])
        (1000, Time, [], [])
        (1300, Time, ["REQ"], [])
        (1350, Hear("MRA 2 h"), [], [])
        (1400, Time, ["REJ 4"], ["Unreachable"])
    }

    an_mra_is_believed_up_to_a_limit {
        (0, Connect, ["REQ"], [])
        (0, Hear("MRA 2 h"), [], [])
        (5099, Time, [], [])
        (5100, Time, ["REQ"], [])
        (5101, Hear("REP"), ["RTU"], ["Established"])
        (5102, Hear("DREQ"), ["DREP"], ["Disconnected"])
    }

    a_rep_that_asks_for_too_much {
        (0, Connect, ["REQ"], [])
        (1, Hear("REP, greedy"), ["REJ 27"], ["Rejected 27"])
        (2, Hear("REP, greedy"), ["REJ 27"], [])
    }

    a_rep_with_an_impossible_queue_pair {
        (0, Connect, ["REQ"], [])
        (1, Hear("REP, qpn 0"), ["REJ 5"], ["Rejected 5"])
    }

    a_rep_for_nobody {
        (0, Hear("REP to nobody"), ["REJ 6"], [])
    }

    called_off {
        (0, Connect, ["REQ"], [])
        (1, Disconnect, ["REJ 4"], ["Disconnected"])
    }
}

// Opening, from the passive side.
scripts! {
    the_rep_is_repeated_for_a_repeated_req_and_on_time_outs {
        (0, Hear("REQ"), [], ["ConnectRequest"])
        (1, Hear("REQ"), [], [])
        (2, Accept, ["REP"], [])
        (3, Hear("REQ"), ["REP"], [])
        (102, Time, ["REP"], [])
        (202, Time, ["REP"], [])
        (302, Time, ["REJ 4"], ["Unreachable"])
        (303, Hear("RTU"), ["REJ 4"], [])
        (304, Hear("REQ"), ["REJ 4"], [])
    }

    a_packet_is_as_good_as_an_rtu {
        (0, Hear("REQ"), [], ["ConnectRequest"])
        (1, Accept, ["REP"], [])
        (2, Packet, [], ["Established"])
        (3, Packet, [], [])
        (4, Hear("RTU"), [], [])
        (5, Hear("REQ"), [], [])
        (6, Hear("DREQ"), ["DREP"], ["Disconnected"])
        (7, Packet, [], [])
    }

    a_refusal_is_repeated {
        (0, Hear("REQ"), [], ["ConnectRequest"])
        (1, Reject, ["REJ 28"], [])
        (2, Hear("REQ"), ["REJ 28"], [])
    }

    an_mra_is_repeated {
        (0, Hear("REQ"), [], ["ConnectRequest"])
        (1, Delay, ["MRA"], [])
        (2, Hear("REQ"), ["MRA"], [])
        (1000, Accept, ["REP"], [])
        (1001, Hear("MRA 1 s"), [], [])
        (2000, Hear("RTU"), [], ["Established"])
        (2001, Hear("DREQ"), ["DREP"], ["Disconnected"])
    }

    nobody_answers_the_request {
        (0, Hear("REQ"), [], ["ConnectRequest"])
        (300, Time, ["REJ 28"], ["Unreachable"])
    }

    the_requester_gives_up_before_the_rep_and_after {
        (0, Hear("REQ"), [], ["ConnectRequest"])
        (1, Forged("REJ 4 of REQ, no id"), [], [])
        (2, Hear("REJ 4 of REQ, no id"), [], ["Rejected 4"])
        (1003, Hear("REQ"), [], ["ConnectRequest"])
        (1004, Accept, ["REP"], [])
        (1005, Hear("REJ 4"), [], ["Rejected 4"])
    }

    called_off_before_and_after_the_rep {
        (0, Hear("REQ"), [], ["ConnectRequest"])
        (1, Disconnect, ["REJ 28"], ["Disconnected"])
        (1002, Hear("REQ"), [], ["ConnectRequest"])
        (1003, Accept, ["REP"], [])
        (1004, Disconnect, ["REJ 28"], ["Disconnected"])
    }
}

// Closing.
scripts! {
    dreq_and_drep after UP {
        (10, Disconnect, ["DREQ"], [])
        (11, Hear("DREP"), [], ["Disconnected"])
        (12, Hear("DREP"), [], [])
    }

    a_dreq_is_repeated_then_the_peer_is_taken_for_gone after UP_PASSIVE {
        (10, Disconnect, ["DREQ"], [])
        (110, Time, ["DREQ"], [])
        (210, Time, ["DREQ"], [])
        (310, Time, [], ["Disconnected"])
    }

    a_dreq_has_all_retries_whatever_the_req_used_up {
        (0, Connect, ["REQ"], [])
        (100, Time, ["REQ"], [])
        (200, Time, ["REQ"], [])
        (201, Hear("REP"), ["RTU"], ["Established"])
        (202, Disconnect, ["DREQ"], [])
        (302, Time, ["DREQ"], [])
        (402, Time, ["DREQ"], [])
        (502, Time, [], ["Disconnected"])
    }

    every_dreq_is_answered after UP {
        (10, Hear("DREQ"), ["DREP"], ["Disconnected"])
        (11, Hear("DREQ"), ["DREP"], [])
        (1010, Time, [], [])
        (2000, Hear("DREQ"), ["DREP"], [])
        (2001, Hear("DREQ to nobody"), ["DREP"], [])
    }

    both_sides_at_once after UP {
        (10, Disconnect, ["DREQ"], [])
        (11, Hear("DREQ"), ["DREP"], ["Disconnected"])
        (12, Hear("DREP"), [], [])
    }

    a_dreq_that_overtakes_the_rtu {
        (0, Hear("REQ"), [], ["ConnectRequest"])
        (1, Accept, ["REP"], [])
        (2, Hear("DREQ"), ["DREP"], ["Disconnected"])
        (3, Hear("RTU"), [], [])
    }
}

// A peer that restarted, or somebody who says so, calls with a queue pair that is in a connection here. The DREQ asks
// whether the peer knows it.
scripts! {
    stale_by_queue_pair after UP_PASSIVE {
        (10, Hear("REQ, new id"), ["DREQ", "REJ 10"], [])
        (11, Hear("REQ, new id"), ["REJ 10"], [])
        (12, Hear("DREP"), [], ["Disconnected"])
        (13, Hear("REQ, new id"), ["REJ 10"], [])
        (1012, Hear("REQ, new id"), [], ["ConnectRequest"])
        (1013, Reject, ["REJ 28"], [])
    }

    stale_by_communication_id after UP_PASSIVE {
        (10, Hear("REQ, new qpn"), ["DREQ", "REJ 10"], [])
        (12, Hear("DREP"), [], ["Disconnected"])
        (1012, Hear("REQ, new qpn"), [], ["ConnectRequest"])
        (1013, Reject, ["REJ 28"], [])
    }

    stale_by_age_when_the_peer_draws_the_very_same_numbers after UP_PASSIVE {
        (1002, Hear("REQ"), [], [])
        (1003, Hear("REQ"), ["DREQ", "REJ 10"], [])
        (1004, Hear("DREP"), [], ["Disconnected"])
        (2004, Hear("REQ"), [], ["ConnectRequest"])
        (2005, Reject, ["REJ 28"], [])
    }

    stale_on_the_active_side after UP {
        (10, Hear("REQ, new id"), ["DREQ", "REJ 10"], [])
        (11, Hear("DREP"), [], ["Disconnected"])
    }

    a_forged_call_ends_nothing after UP_PASSIVE {
        (10, Hear("REQ, new id"), ["DREQ", "REJ 10"], [])
        (11, Guessed("DREP"), [], [])
        (12, Forged("DREP"), [], [])
        (13, Beside("DREP"), [], [])
        (109, Beside("REQ, new id"), ["REJ 10"], [])
        (110, Hear("REQ, new qpn"), ["DREQ", "REJ 10"], [])
        (5000, Time, [], [])
        (5001, Hear("DREQ"), ["DREP"], ["Disconnected"])
    }

    a_question_whether_a_connection_is_known_is_answered_if_it_is_not after UP {
        (10, Hear("DREQ, wrong qpn"), [], [])
        (11, Hear("DREQ to nobody"), ["DREP"], [])
        (12, Hear("DREQ"), ["DREP"], ["Disconnected"])
    }

    half_open_is_not_torn_down {
        (0, Hear("REQ"), [], ["ConnectRequest"])
        (1, Hear("REQ, new id"), ["REJ 10"], [])
        (2, Reject, ["REJ 28"], [])
    }
}

#[test]
fn a_rep_from_a_stale_queue_pair_is_refused() {
    let mut cm = play(&UP);
    let second = cm.connect(0, HERE, PEER, service_id(PORT), params(0x12), b"").unwrap();
    let (mut out, mut ear) = ([0; 256], Ear::default());
    while cm.poll_transmit(&mut out).is_some() {
        ear.hear(&out);
    }
    cm.handle_mad(1, 0, PEER, HERE, &ear.answer(peer_says("REP, new id", second.0)));
    let rejected = CmEvent::Rejected { conn: second, reason: reason::STALE_CONNECTION, private_data: vec![] };
    assert_eq!(cm.poll_event(), Some(rejected));
    let sent: Vec<_> = std::iter::from_fn(|| cm.poll_transmit(&mut out).map(|_| name_of(&out))).collect();
    assert_eq!(sent, ["DREQ", "REJ 10"]);
}

type Edit = fn(&mut Req);

/// What is wrong with a REQ, and the reason that it is refused for.
const BAD_REQUESTS: [(&str, Edit, u16); 12] = [
    ("no such service", |req| req.service_id += 1, reason::INVALID_SERVICE_ID),
    ("UC", |req| req.transport_service = 1, reason::INVALID_TRANSPORT),
    ("MTU code 0", |req| req.path_mtu = 0, reason::INVALID_PATH_MTU),
    ("MTU code 6", |req| req.path_mtu = 6, reason::INVALID_PATH_MTU),
    ("QP 1", |req| req.local_qpn = 1, reason::UNSUPPORTED),
    ("the multicast QP", |req| req.local_qpn = 0xff_ffff, reason::UNSUPPORTED),
    ("communication id 0", |req| req.local_comm_id = 0, reason::UNSUPPORTED),
    ("another's source GID", |req| req.local_gid[15] = 9, reason::INVALID_GID),
    ("another's destination GID", |req| req.remote_gid[15] = 9, reason::INVALID_GID),
    ("header version 1", |req| req.private_data[0] = 1, reason::UNSUPPORTED),
    ("header of IPv6", |req| req.private_data[1] = 0x60, reason::UNSUPPORTED),
    ("header with another's address", |req| req.private_data[19] = 9, reason::UNSUPPORTED),
];

#[test]
fn requests_that_cannot_be_met_are_refused_with_the_reason() {
    for (name, edit, reason) in BAD_REQUESTS {
        let mut cm = Cm::new(1, config());
        cm.listen(service_id(PORT)).unwrap();
        cm.handle_mad(0, 0, PEER, HERE, &req_with(edit));
        let mut out = [0; 256];
        assert_eq!(cm.poll_transmit(&mut out), Some(CmTransmit { to: PEER, from: HERE, link: 0 }), "{name}");
        let Ok(Mad { message: CmMessage::Rej(rej), transaction_id: 9, .. }) = Mad::parse(&out) else {
            panic!("{name}: not a REJ of the same transaction")
        };
        assert_eq!((rej.reason, rej.message_rejected), (reason, 0), "{name}");
        assert_eq!((cm.poll_event(), cm.connections()), (None, 0), "{name}");
    }
}

//! Calls and their errors, limits, and any sequence of calls and bytes.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn drain(cm: &mut Cm) -> Vec<String> {
    let mut out = [0; 256];
    std::iter::from_fn(|| cm.poll_transmit(&mut out).map(|_| name_of(&out))).collect()
}

fn connect(cm: &mut Cm, params: QpParams, data: &[u8]) -> Result<ConnId, CmError> {
    cm.connect(0, HERE, PEER, service_id(PORT), params, data)
}

#[test]
fn a_service_has_one_listener() {
    let mut cm = Cm::new(1, config());
    let listener = cm.listen(service_id(PORT)).unwrap();
    assert_eq!(cm.listen(service_id(PORT)), Err(CmError::ServiceInUse(service_id(PORT))));
    assert_eq!(cm.unlisten(listener), Ok(()));
    assert_eq!(cm.unlisten(listener), Err(CmError::UnknownListener(listener)));
}

#[test]
fn parameters_out_of_range_are_refused() {
    let mut cm = Cm::new(1, config());
    let good = params(OUR_QPN);
    assert_eq!(connect(&mut cm, QpParams { qpn: 1 << 24, ..good }, b""), Err(CmError::Params("qpn")));
    assert_eq!(connect(&mut cm, QpParams { path_mtu: 0, ..good }, b""), Err(CmError::Params("path_mtu")));
    assert_eq!(connect(&mut cm, QpParams { retry_count: 8, ..good }, b""), Err(CmError::Params("retry_count")));
    assert_eq!(connect(&mut cm, QpParams { rnr_retry: 8, ..good }, b""), Err(CmError::Params("rnr_retry")));
    assert_eq!(connect(&mut cm, QpParams { ack_timeout: 32, ..good }, b""), Err(CmError::Params("ack_timeout")));
    assert_eq!(connect(&mut cm, good, &[0; 57]), Err(CmError::PrivateData { len: 57, max: 56 }));
    let v6: IpAddr = "fe80::1".parse().unwrap();
    assert_eq!(cm.connect(0, HERE, v6, 1, good, b""), Err(CmError::IpVersion(HERE, v6)));
}

#[test]
fn calls_in_the_wrong_state_are_refused() {
    let mut cm = Cm::new(1, config());
    let good = params(OUR_QPN);
    let conn = connect(&mut cm, good, &[1; 56]).unwrap();
    assert_eq!(connect(&mut cm, good, b""), Err(CmError::QpInUse(OUR_QPN)));
    assert_eq!(cm.accept(0, conn, good, b""), Err(CmError::WrongState(conn)));
    assert_eq!(cm.reject(0, conn, 28, b""), Err(CmError::WrongState(conn)));
    assert_eq!(cm.delay(0, conn, 1), Err(CmError::WrongState(conn)));
    assert_eq!(cm.disconnect(0, conn), Ok(()));
    assert_eq!(cm.disconnect(0, conn), Err(CmError::WrongState(conn)));
    assert_eq!(cm.disconnect(0, ConnId(0)), Err(CmError::UnknownConn(ConnId(0))));
}

#[test]
fn private_data_and_limits_are_agreed_upon() {
    let mut cm = [Cm::new(1, config()), Cm::new(2, config())];
    cm[1].listen(service_id(PORT)).unwrap();
    let greedy = QpParams { responder_resources: 16, initiator_depth: 2, ..params(OUR_QPN) };
    let active = connect(&mut cm[0], greedy, &[7; REQ_PRIVATE_DATA]).unwrap();
    let mut out = [0; 256];
    cm[0].poll_transmit(&mut out).unwrap();
    cm[1].handle_mad(0, 0, HERE, PEER, &out);
    let Some(CmEvent::ConnectRequest { conn, private_data, remote, .. }) = cm[1].poll_event() else {
        panic!("no request")
    };
    assert_eq!((private_data, remote), (vec![7; REQ_PRIVATE_DATA], greedy));

    let ours = QpParams { responder_resources: 8, initiator_depth: 32, ..params(THEIR_QPN) };
    let other_mtu = QpParams { path_mtu: 4, ..ours };
    assert_eq!(cm[1].accept(0, conn, other_mtu, b""), Err(CmError::PathMtu { ours: 4, theirs: 3 }));
    assert!(matches!(cm[1].accept(0, conn, ours, &[0; 197]), Err(CmError::PrivateData { max: 196, .. })));
    assert!(matches!(cm[1].reject(0, conn, 28, &[0; 149]), Err(CmError::PrivateData { max: 148, .. })));
    cm[1].accept(0, conn, ours, &[8; REP_PRIVATE_DATA]).unwrap();
    cm[1].poll_transmit(&mut out).unwrap();
    cm[0].handle_mad(0, 0, PEER, HERE, &out);
    let remote = QpParams { responder_resources: 2, initiator_depth: 16, ..ours };
    let private_data = vec![8; REP_PRIVATE_DATA];
    assert_eq!(cm[0].poll_event(), Some(CmEvent::Established { conn: active, remote, private_data }));
}

#[test]
fn ipv6_and_mapped_addresses_connect() {
    for (a, b) in [("fe80::1", "fe80::2"), ("::ffff:10.0.0.1", "::ffff:10.0.0.2")] {
        let (a, b): (IpAddr, IpAddr) = (a.parse().unwrap(), b.parse().unwrap());
        let mut cm = [Cm::new(1, config()), Cm::new(2, config())];
        cm[1].listen(service_id(PORT)).unwrap();
        cm[0].connect(0, a, b, service_id(PORT), params(OUR_QPN), b"").unwrap();
        let mut out = [0; 256];
        cm[0].poll_transmit(&mut out).unwrap();
        cm[1].handle_mad(0, 0, a, b, &out);
        assert!(matches!(cm[1].poll_event(), Some(CmEvent::ConnectRequest { .. })), "{a}");
    }
}

#[test]
fn a_node_connects_to_itself() {
    let mut cm = Cm::new(1, config());
    cm.listen(service_id(PORT)).unwrap();
    cm.connect(0, HERE, HERE, service_id(PORT), params(OUR_QPN), b"").unwrap();
    let (mut established, mut disconnected, mut out) = (0, 0, [0; 256]);
    while cm.poll_transmit(&mut out).is_some() {
        cm.handle_mad(0, 0, HERE, HERE, &out);
        while let Some(event) = cm.poll_event() {
            match event {
                CmEvent::ConnectRequest { conn, .. } => cm.accept(0, conn, params(THEIR_QPN), b"").unwrap(),
                CmEvent::Established { conn, .. } => {
                    established += 1;
                    if established == 2 {
                        cm.disconnect(0, conn).unwrap();
                    }
                }
                CmEvent::Disconnected { .. } => disconnected += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((established, disconnected), (2, 2));
}

#[test]
fn a_flood_of_requests_occupies_no_more_than_its_share() {
    let mut cm = Cm::new(1, config());
    cm.listen(service_id(PORT)).unwrap();
    for i in 0..10_000 {
        let flood = req_with(|req| (req.local_comm_id, req.local_qpn) = (i + 1, i + 2));
        cm.handle_mad(0, 0, PEER, HERE, &flood);
    }
    // One address has half of what strangers may have, which is half of four.
    assert_eq!((cm.connections(), cm.events.len(), cm.replies.len()), (1, 1, MAX_REPLIES));
    assert_eq!(cm.counters().refused, 9999);
    assert!(drain(&mut cm).iter().all(|sent| sent == "REJ 3"));
    // The own connections still have room, up to their own limit.
    for qpn in 2..9 {
        connect(&mut cm, params(qpn), b"").unwrap();
    }
    assert_eq!(connect(&mut cm, params(9), b""), Err(CmError::TableFull(8)));
    // When the flood has passed and nobody answered it, all is as before.
    while let Some(at) = cm.poll_timeout() {
        cm.handle_timeout(at);
    }
    assert!(cm.table.is_empty());
}

#[test]
fn a_cookie_is_good_for_one_call_from_one_address() {
    let mut cm = Cm::new(1, config());
    cm.listen(service_id(PORT)).unwrap();
    let call = |cm: &mut Cm, id: u32, tid: u64| {
        let bytes = message::req(&config(), (ConnId(id), tid), &call_from(PEER, HERE), &params(id + 1));
        cm.handle_mad(0, 0, PEER, HERE, &bytes);
    };
    call(&mut cm, 1, 9);
    call(&mut cm, 2, 9);
    let mut out = [0; 256];
    cm.poll_transmit(&mut out).expect("the second is asked to prove that he hears");
    let Ok(Mad { message: CmMessage::Rej(rej), transaction_id: 9, .. }) = Mad::parse(&out) else { panic!("a REJ") };
    let cookie = message::cookie_of(&rej).expect("a cookie");
    // Wrong by a bit, and another's.
    call(&mut cm, 2, cookie ^ 1);
    call(&mut cm, 3, cookie);
    assert_eq!((cm.connections(), drain(&mut cm).len()), (1, 2));
    call(&mut cm, 2, cookie);
    assert_eq!((cm.connections(), drain(&mut cm).len()), (2, 0));
    // The address is his, and he has half of all places: he waits.
    let prove = |cm: &mut Cm, id| {
        call(cm, id, 9);
        let mut out = [0; 256];
        cm.poll_transmit(&mut out).expect("a cookie");
        let Ok(Mad { message: CmMessage::Rej(rej), .. }) = Mad::parse(&out) else { panic!("a REJ") };
        call(cm, id, message::cookie_of(&rej).expect("a cookie"));
    };
    prove(&mut cm, 4);
    assert_eq!((cm.connections(), drain(&mut cm).len()), (2, 0));
}

#[test]
fn an_established_connection_is_not_half_open_and_arms_no_timer() {
    let mut cm = Cm::new(1, config());
    cm.listen(service_id(PORT)).unwrap();
    for i in 0..8 {
        let req = req_with(|req| (req.local_comm_id, req.local_qpn) = (i + 1, i + 2));
        cm.handle_mad(0, 0, PEER, HERE, &req);
        let Some(CmEvent::ConnectRequest { conn, .. }) = cm.poll_event() else { panic!("connection {i} is refused") };
        cm.accept(0, conn, params(0x100 + i), b"").unwrap();
        cm.mark_established(0, 0x100 + i);
        assert!(matches!(cm.poll_event(), Some(CmEvent::Established { .. })));
        assert_eq!(cm.poll_timeout(), None);
    }
}

#[test]
fn a_queue_pair_is_free_again_when_its_connection_has_ended() {
    let mut cm = Cm::new(1, config());
    let conn = connect(&mut cm, params(OUR_QPN), b"").unwrap();
    cm.disconnect(0, conn).unwrap();
    assert_eq!(cm.connections(), 1, "it is remembered");
    connect(&mut cm, params(OUR_QPN), b"").unwrap();
}

#[test]
fn events_that_nobody_polls_are_bounded() {
    let mut cm = Cm::new(1, config());
    cm.listen(service_id(PORT)).unwrap();
    for i in 0..1000 {
        let now = i * 10_000 * MS;
        cm.handle_timeout(now);
        cm.handle_mad(now, 0, PEER, HERE, &peer_says("REQ", 0));
    }
    assert!(cm.events.len() <= 3 * 8 + 3 * 8, "{}", cm.events.len());
}

#[test]
fn unpolled_transmits_are_bounded() {
    let mut cm = Cm::new(1, config());
    for _ in 0..1000 {
        cm.handle_mad(0, 0, PEER, HERE, &peer_says("REP to nobody", 5));
    }
    assert_eq!(drain(&mut cm).len(), MAX_REPLIES);
    assert_eq!(cm.counters().dropped, 1000 - MAX_REPLIES as u64);
}

#[test]
fn a_truncated_mad_is_counted() {
    let mut cm = Cm::new(1, config());
    let req = peer_says("REQ", 0);
    for len in 0..256 {
        cm.handle_mad(0, 0, PEER, HERE, &req[..len]);
    }
    assert_eq!(cm.counters().malformed, 256);
}

const NAMES: [&str; 25] = [
    "REQ",
    "REQ, new id",
    "REQ, new qpn",
    "REQ, new id and qpn",
    "REP",
    "REP, new id",
    "REP, greedy",
    "REP, qpn 0",
    "REP to nobody",
    "RTU",
    "DREQ",
    "DREQ, wrong id",
    "DREQ, wrong qpn",
    "DREQ to nobody",
    "DREP",
    "MRA 1 s",
    "MRA 2 h",
    "REJ 28",
    "REJ 8, no id",
    "REJ 4 of REQ, no id",
    "REJ 4",
    "REJ 6 of REP",
    "SIDR REQ",
    "SIDR REP",
    "SIDR REP, no service",
];

#[derive(Debug, Clone)]
enum Op {
    Advance(u64),
    Mad { name: usize, conn: usize, stranger: bool, damage: Option<(usize, u8)> },
    Bytes(Vec<u8>),
    Connect(u32),
    Call(u32),
    Ready(usize),
    Ask,
    Answer(usize),
    Forget(usize),
    Listen(bool),
    Accept(usize, u32),
    Reject(usize),
    Delay(usize, u64),
    Disconnect(usize),
    DisconnectAll,
    Packet(u32),
    Transmit,
}

fn op() -> impl Strategy<Value = Op> {
    let conn = 0..6_usize;
    let qpn = 0x10..0x16_u32;
    let damage = proptest::option::weighted(0.2, (0..256_usize, any::<u8>()));
    prop_oneof![
        2 => (0..400 * MS).prop_map(Op::Advance),
        1 => any::<u64>().prop_map(Op::Advance),
        8 => (0..NAMES.len(), conn.clone(), proptest::bool::weighted(0.1), damage)
            .prop_map(|(name, conn, stranger, damage)| Op::Mad { name, conn, stranger, damage }),
        1 => proptest::collection::vec(any::<u8>(), 0..300).prop_map(Op::Bytes),
        2 => qpn.clone().prop_map(Op::Connect),
        2 => qpn.clone().prop_map(Op::Call),
        2 => conn.clone().prop_map(Op::Ready),
        1 => Just(Op::Ask),
        1 => conn.clone().prop_map(Op::Answer),
        1 => conn.clone().prop_map(Op::Forget),
        1 => any::<bool>().prop_map(Op::Listen),
        4 => (conn.clone(), qpn.clone()).prop_map(|(conn, qpn)| Op::Accept(conn, qpn)),
        1 => conn.clone().prop_map(Op::Reject),
        1 => (conn.clone(), any::<u64>()).prop_map(|(conn, delay)| Op::Delay(conn, delay)),
        2 => conn.prop_map(Op::Disconnect),
        1 => Just(Op::DisconnectAll),
        1 => qpn.prop_map(Op::Packet),
        2 => Just(Op::Transmit),
    ]
}

/// What may follow what, for one connection.
fn check_order(before: &[&str], event: &str) -> bool {
    let ended = |name: &&&str| ["Rejected", "Unreachable", "Disconnected"].contains(name);
    let over = before.iter().find(ended).is_some();
    (!over || event == "TimewaitExit") && !before.contains(&event)
}

proptest! {
    #[test]
    fn any_sequence_keeps_the_books(ops in proptest::collection::vec(op(), 0..80), extras in any::<bool>()) {
        let config = match extras {
            true => CmConfig {
                request_delay: 300 * MS,
                peer_timeout: 3000 * MS,
                listen_grace: 50 * MS,
                call_grace: 50 * MS,
                timewait_events: true,
                ..config()
            },
            false => config(),
        };
        let mut cm = Cm::new(1, config);
        let mut listener = cm.listen(service_id(PORT)).ok();
        let mut now = 0_u64;
        let mut ear = Ear::default();
        let mut conns: Vec<ConnId> = Vec::new();
        let mut history: BTreeMap<ConnId, Vec<&'static str>> = BTreeMap::new();
        for op in ops {
            // The latest connections, newest first; calls on the wrong ones are refused.
            let pick = |n: usize| conns.iter().rev().nth(n).copied().unwrap_or(ConnId(5));
            match op {
                Op::Advance(by) => now = now.saturating_add(by),
                Op::Mad { name, conn, stranger, damage } => {
                    let mut mad = ear.answer(peer_says(NAMES[name], pick(conn).0));
                    if let Some((at, byte)) = damage {
                        mad[at] = byte;
                    }
                    cm.handle_mad(now, 0, if stranger { STRANGER } else { PEER }, HERE, &mad);
                }
                Op::Bytes(bytes) => cm.handle_mad(now, 0, PEER, HERE, &bytes),
                Op::Connect(qpn) => {
                    conns.extend(cm.connect(now, HERE, PEER, service_id(PORT), params(qpn), b"").ok());
                }
                Op::Call(qpn) => conns.extend(cm.call(now, call_from(HERE, PEER), params(qpn)).ok()),
                Op::Ready(n) => drop(cm.ready(now, pick(n))),
                Op::Ask => conns.extend(cm.resolve_service(now, call_from(HERE, PEER)).ok()),
                Op::Answer(n) => drop(cm.answer_service(now, pick(n), 0, (5, 6), b"")),
                Op::Forget(n) => cm.forget_service(now, pick(n)),
                Op::Listen(true) => listener = cm.listen(service_id(PORT)).ok().or(listener),
                Op::Listen(false) => drop(listener.take().map(|listener| cm.unlisten(listener))),
                Op::Accept(n, qpn) => drop(cm.accept(now, pick(n), params(qpn), b"")),
                Op::Reject(n) => drop(cm.reject(now, pick(n), 28, b"")),
                Op::Delay(n, delay) => drop(cm.delay(now, pick(n), delay)),
                Op::Disconnect(n) => drop(cm.disconnect(now, pick(n))),
                Op::DisconnectAll => cm.disconnect_all(now),
                Op::Packet(qpn) => cm.mark_established(now, qpn),
                Op::Transmit => {
                    let mut out = [0; 256];
                    while cm.poll_transmit(&mut out).is_some() {
                        ear.hear(&out);
                    }
                }
            }
            cm.handle_timeout(now);
            while let Some(event) = cm.poll_event() {
                let (conn, name) = kind_of(&event);
                if name == "ConnectRequest" || name == "ServiceRequest" {
                    conns.push(conn);
                }
                let before = history.entry(conn).or_default();
                prop_assert!(check_order(before, name), "{:?} then {}", before, name);
                before.push(name);
            }
            prop_assert!(cm.connections() <= 8 && cm.table.half_open() <= 4);
            prop_assert!(cm.ready.len() <= cm.connections() && cm.replies.len() <= MAX_REPLIES);
            prop_assert!(cm.poll_timeout().is_none_or(|at| at > now || now == u64::MAX));
        }
        for conn in conns {
            let _ = cm.disconnect(now, conn);
        }
        while let Some(at) = cm.poll_timeout() {
            cm.handle_timeout(at);
        }
        prop_assert!(cm.table.is_empty() && cm.ready.is_empty());
    }
}

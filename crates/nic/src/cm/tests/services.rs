//! Calls whose user brings its own queue pair up, datagram services, and peers that vanish.

use super::*;

const UDP: u64 = port_service_id(0x0111, 7174);

/// Carries everything between two connection managers that waits to be sent, at one time.
fn exchange(now: u64, cm: &mut [Cm; 2]) {
    let ips = [HERE, PEER];
    let mut out = [0; 256];
    while cm.iter().any(Cm::wants_transmit) {
        for from in 0..2 {
            while cm[from].poll_transmit(&mut out).is_some() {
                cm[1 - from].handle_mad(now, 0, ips[from], ips[1 - from], &out);
            }
        }
    }
}

fn pair(config: &CmConfig) -> [Cm; 2] {
    let mut cm = [Cm::new(1, config.clone()), Cm::new(2, config.clone())];
    cm[1].listen(service_id(PORT)).unwrap();
    cm[1].listen(UDP).unwrap();
    cm
}

fn event(cm: &mut Cm) -> (ConnId, &'static str) {
    kind_of(&cm.poll_event().expect("an event"))
}

/// Both ends established, by a call and `ready`.
fn connected(cm: &mut [Cm; 2], now: u64) -> [ConnId; 2] {
    let active = cm[0].call(now, call_from(HERE, PEER), params(OUR_QPN)).unwrap();
    exchange(now, cm);
    let Some(CmEvent::ConnectRequest { conn: passive, source_port: 40_000, .. }) = cm[1].poll_event() else {
        panic!("no request with the caller's port")
    };
    cm[1].accept(now, passive, params(THEIR_QPN), b"ho").unwrap();
    exchange(now, cm);
    assert_eq!(event(&mut cm[0]), (active, "Response"));
    assert_eq!(cm[1].poll_event(), None, "no RTU before the user is ready");
    cm[0].ready(now, active).unwrap();
    assert_eq!(cm[0].ready(now, active), Err(CmError::WrongState(active)));
    exchange(now, cm);
    assert_eq!(event(&mut cm[0]), (active, "Established"));
    assert_eq!(event(&mut cm[1]), (passive, "Established"));
    [active, passive]
}

#[test]
fn the_caller_sees_the_response_before_it_is_ready() {
    let mut cm = pair(&CmConfig { timewait_events: true, ..config() });
    let [active, passive] = connected(&mut cm, 0);
    cm[0].disconnect(1, active).unwrap();
    exchange(1, &mut cm);
    assert_eq!(event(&mut cm[0]), (active, "Disconnected"));
    assert_eq!(event(&mut cm[1]), (passive, "Disconnected"));
    for cm in &mut cm {
        cm.handle_timeout(1 + 1000 * MS);
        assert_eq!(event(cm).1, "TimewaitExit");
        assert!(cm.table.is_empty());
    }
}

#[test]
fn a_response_can_be_refused_or_left() {
    for refuse in [true, false] {
        let mut cm = pair(&config());
        let active = cm[0].call(0, call_from(HERE, PEER), params(OUR_QPN)).unwrap();
        exchange(0, &mut cm);
        let (passive, _) = event(&mut cm[1]);
        cm[1].accept(0, passive, params(THEIR_QPN), b"").unwrap();
        exchange(0, &mut cm);
        assert_eq!(event(&mut cm[0]), (active, "Response"));
        if refuse {
            cm[0].reject(0, active, reason::CONSUMER, b"").unwrap();
        } else {
            cm[0].handle_timeout(300 * MS);
            assert_eq!(event(&mut cm[0]), (active, "Unreachable"));
        }
        exchange(0, &mut cm);
        assert_eq!(event(&mut cm[1]), (passive, "Rejected"));
    }
}

#[test]
fn a_request_is_put_off_at_once_where_users_take_their_time() {
    let mut cm = pair(&CmConfig { request_delay: 2000 * MS, ..config() });
    cm[0].call(0, call_from(HERE, PEER), params(OUR_QPN)).unwrap();
    exchange(0, &mut cm);
    let (passive, _) = event(&mut cm[1]);
    for cm in &mut cm {
        cm.handle_timeout(2000 * MS);
        assert_eq!(cm.poll_event(), None, "2 s and no retry is used up");
    }
    cm[1].accept(2000 * MS, passive, params(THEIR_QPN), b"").unwrap();
    exchange(2000 * MS, &mut cm);
    assert_eq!(event(&mut cm[0]).1, "Response");
}

#[test]
fn a_request_waits_for_a_listener_that_comes_back() {
    for comes_back in [true, false] {
        let mut cm = pair(&CmConfig { listen_grace: 50 * MS, ..config() });
        let listener = cm[1].listen(service_id(PORT + 1)).unwrap();
        cm[1].unlisten(listener).unwrap();
        let call = ConnectCall { service_id: service_id(PORT + 1), ..call_from(HERE, PEER) };
        cm[0].call(0, call, params(OUR_QPN)).unwrap();
        exchange(0, &mut cm);
        assert_eq!((cm[0].poll_event(), cm[1].poll_event(), cm[1].poll_timeout()), (None, None, Some(50 * MS)));
        if comes_back {
            cm[1].listen(service_id(PORT + 1)).unwrap();
            assert_eq!(event(&mut cm[1]).1, "ConnectRequest");
        } else {
            cm[1].handle_timeout(50 * MS);
            exchange(50 * MS, &mut cm);
            assert!(matches!(cm[0].poll_event(), Some(CmEvent::Rejected { reason: reason::INVALID_SERVICE_ID, .. })));
        }
    }
}

#[test]
fn a_call_that_is_refused_goes_on_until_somebody_listens() {
    for (comes_back, datagrams) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut cm = pair(&CmConfig { call_grace: 50 * MS, ..config() });
        let service_id = service_id(PORT + 1);
        match datagrams {
            true => ask(&mut cm[0], 0, service_id),
            false => cm[0].call(0, ConnectCall { service_id, ..call_from(HERE, PEER) }, params(OUR_QPN)).unwrap(),
        };
        exchange(0, &mut cm);
        assert_eq!((cm[0].poll_event(), cm[0].poll_timeout()), (None, Some(20 * MS)));
        if comes_back {
            cm[1].listen(service_id).unwrap();
        }
        for now in [20, 40, 60].map(|ms| ms * MS) {
            cm[0].handle_timeout(now);
            exchange(now, &mut cm);
        }
        match (comes_back, datagrams) {
            (true, false) => assert_eq!(event(&mut cm[1]).1, "ConnectRequest"),
            (true, true) => assert_eq!(event(&mut cm[1]).1, "ServiceRequest"),
            (false, false) => assert_eq!(event(&mut cm[0]).1, "Rejected"),
            (false, true) => assert_eq!(event(&mut cm[0]).1, "ServiceResolved"),
        }
    }
}

#[test]
fn an_alternate_path_is_not_supported() {
    let mut cm = Cm::new(1, config());
    let lap = remora_wire::cm::Lap { local_comm_id: 5, remote_comm_id: 6 };
    cm.handle_mad(0, 0, PEER, HERE, &emit(CmMessage::Lap(lap)));
    let mut out = [0; 256];
    cm.poll_transmit(&mut out).unwrap();
    let Ok(Mad { message: CmMessage::Apr(apr), .. }) = Mad::parse(&out) else { panic!("no APR") };
    assert_eq!((apr.local_comm_id, apr.remote_comm_id, apr.status), (6, 5, 2));
}

fn ask(cm: &mut Cm, now: u64, service_id: u64) -> ConnId {
    let call = ConnectCall { service_id, private_data: &[7; SIDR_REQ_PRIVATE_DATA], ..call_from(HERE, PEER) };
    cm.resolve_service(now, call).unwrap()
}

#[test]
fn a_datagram_service_is_found() {
    let mut cm = pair(&config());
    let asked = ask(&mut cm[0], 0, UDP);
    exchange(0, &mut cm);
    let Some(CmEvent::ServiceRequest { conn, source_port: 40_000, private_data, .. }) = cm[1].poll_event() else {
        panic!("no request")
    };
    assert_eq!(private_data, [7; SIDR_REQ_PRIVATE_DATA]);
    cm[1].answer_service(0, conn, sidr_status::VALID, (0x77, 0x0123_4567), b"here").unwrap();
    exchange(0, &mut cm);
    let Some(CmEvent::ServiceResolved { conn, status: 0, qpn: 0x77, qkey: 0x0123_4567, private_data }) =
        cm[0].poll_event()
    else {
        panic!("not resolved")
    };
    assert_eq!((conn, &private_data[..5]), (asked, &b"here\0"[..]));
    cm[1].handle_timeout(1000 * MS);
    assert_eq!((cm[0].services.len(), cm[1].services.len()), (0, 0));
}

#[test]
fn a_question_is_repeated_and_its_answer_too() {
    let mut cm = pair(&config());
    let asked = ask(&mut cm[0], 0, UDP);
    let mut out = [0; 256];
    cm[0].poll_transmit(&mut out).unwrap();
    for repetition in 1..=2 {
        cm[0].handle_timeout(repetition * 100 * MS);
        cm[0].poll_transmit(&mut out).unwrap();
        cm[1].handle_mad(0, 0, HERE, PEER, &out);
    }
    let (conn, _) = event(&mut cm[1]);
    assert_eq!(cm[1].poll_event(), None, "one event for both");
    cm[1].answer_service(0, conn, sidr_status::REJECTED, (0, 0), b"").unwrap();
    let mut answer = [0; 256];
    cm[1].poll_transmit(&mut answer).unwrap();
    cm[1].handle_mad(1, 0, HERE, PEER, &out);
    cm[1].poll_transmit(&mut out).unwrap();
    assert_eq!(out, answer);
    cm[0].handle_timeout(300 * MS);
    assert_eq!(cm[0].poll_event(), Some(CmEvent::Unreachable { conn: asked }));
    assert_eq!(cm[0].poll_timeout(), None);
}

#[test]
fn a_service_that_nobody_has_is_refused_at_once() {
    let mut cm = pair(&config());
    ask(&mut cm[0], 0, UDP + 1);
    exchange(0, &mut cm);
    assert!(matches!(cm[0].poll_event(), Some(CmEvent::ServiceResolved { status: sidr_status::UNSUPPORTED, .. })));
}

#[test]
fn a_flood_of_questions_is_bounded_and_keeps_nobody_out() {
    let mut cm = Cm::new(1, config());
    cm.listen(UDP).unwrap();
    let ask = |cm: &mut Cm, from: IpAddr, id| {
        let call = ConnectCall { service_id: UDP, ..call_from(from, HERE) };
        cm.handle_mad(0, 0, from, HERE, &message::sidr_req((ConnId(id), 9), &call));
    };
    for id in 1..1000 {
        ask(&mut cm, PEER, id);
    }
    assert_eq!((cm.services.len(), cm.counters().refused), (2, 997), "one address has half of the places");
    while cm.poll_event().is_some() {}
    for host in 0..100 {
        ask(&mut cm, IpAddr::from([10, 1, 1, host]), 7);
        assert!(matches!(cm.poll_event(), Some(CmEvent::ServiceRequest { .. })), "{host}");
    }
    assert_eq!(cm.services.len(), 4);
    cm.handle_timeout(300 * MS);
    assert_eq!((cm.services.len(), cm.poll_timeout()), (0, None));
}

fn watching() -> CmConfig {
    CmConfig { peer_timeout: 5000 * MS, ..config() }
}

#[test]
fn a_peer_that_answers_stays() {
    let mut cm = pair(&watching());
    connected(&mut cm, 0);
    for second in 1..60 {
        for cm in &mut cm {
            cm.handle_timeout(second * 1000 * MS);
        }
        exchange(second * 1000 * MS, &mut cm);
        assert!(cm.iter_mut().all(|cm| cm.poll_event().is_none()));
    }
}

#[test]
fn a_silent_peer_is_gone_in_time() {
    let mut cm = pair(&watching());
    let [active, _] = connected(&mut cm, 0);
    let mut now = 0;
    while cm[0].poll_event().is_none() {
        now = cm[0].poll_timeout().expect("somebody is watching");
        cm[0].handle_timeout(now);
    }
    assert_eq!(now, 6000 * MS);
    assert_eq!(cm[0].disconnect(now, active), Err(CmError::WrongState(active)));
    cm[0].handle_timeout(now + 1000 * MS);
    assert!(cm[0].table.is_empty());
    cm[0].handle_timeout(now + 2000 * MS);
    assert_eq!(cm[0].poll_timeout(), None, "nobody is left to watch");
}

#[test]
fn a_peer_whose_packets_are_taken_stays_though_its_answers_are_lost() {
    let mut cm = pair(&watching());
    connected(&mut cm, 0);
    for second in 1..60 {
        cm[0].hear(second * 1000 * MS, |_| second);
        cm[0].handle_timeout(second * 1000 * MS);
        assert_eq!(cm[0].poll_event(), None);
    }
    let mut now = 0;
    while cm[0].poll_event().is_none() {
        now = cm[0].poll_timeout().expect("somebody is watching");
        cm[0].hear(now, |_| 59);
        cm[0].handle_timeout(now);
    }
    assert_eq!(now, 64_000 * MS);
}

#[test]
fn signs_of_life_that_nobody_asked_for_are_not_believed() {
    let mut cm = pair(&watching());
    connected(&mut cm, 0);
    for second in 1..6 {
        let now = second * 1000 * MS;
        cm.iter_mut().for_each(|cm| cm.handle_timeout(now));
        exchange(now, &mut cm);
        for instance in 0..100 {
            cm[0].handle_mad(now, 0, PEER, HERE, &peer_says("SIDR REP, no service", instance));
        }
        exchange(now, &mut cm);
        assert!(cm.iter_mut().all(|cm| cm.poll_event().is_none()));
    }
    // Nor do they make the dead seem to live.
    let mut now = 5000 * MS;
    while cm[0].poll_event().is_none() {
        now = cm[0].poll_timeout().expect("somebody is watching");
        cm[0].handle_timeout(now);
        cm[0].handle_mad(now, 0, PEER, HERE, &peer_says("SIDR REP, no service", 7));
        cm[0].handle_mad(now, 0, PEER, HERE, &peer_says("DREQ to nobody", 7));
    }
    assert_eq!(now, 10_000 * MS);
}

#[test]
fn an_answer_that_somebody_guesses_is_not_believed() {
    let mut cm = pair(&config());
    let asked = ask(&mut cm[0], 0, UDP);
    let guessed = message::sidr_rep(9, (asked.0, UDP), (0, 0x66, 0x66), b"");
    cm[0].handle_mad(0, 0, PEER, HERE, &guessed);
    assert_eq!((cm[0].poll_event(), cm[0].counters().unexpected), (None, 1));
}

/// An honest caller, through whatever strangers forge.
#[test]
fn forged_calls_keep_nobody_out() {
    let mut cm = pair(&config());
    for host in 0..=255 {
        for id in 1..10 {
            let call = |req: &mut Req| (req.local_comm_id, req.local_qpn) = (id, id + 100);
            let from = IpAddr::from([10, 0, 0, host]);
            let bytes = message::req(&config(), (ConnId(id), 9), &call_from(from, PEER), &params(id + 100));
            let Ok(Mad { message: CmMessage::Req(mut req), .. }) = Mad::parse(&bytes) else { panic!("a REQ") };
            call(&mut req);
            cm[1].handle_mad(0, 0, from, PEER, &emit(CmMessage::Req(req)));
        }
    }
    assert_eq!(cm[1].table.half_open(), 2, "half of the four");
    while cm[1].poll_event().is_some() {}
    let mut out = [0; 256];
    while cm[1].poll_transmit(&mut out).is_some() {}
    connected(&mut cm, 0);
}

/// The one in whose name somebody calls refuses each answer at once. That makes no room for more such calls.
#[test]
fn refused_answers_to_forged_calls_free_no_place() {
    let mut cm = pair(&config());
    let mut taken = 0;
    for n in 0..1000 {
        let now = n * MS;
        let (id, qpn) = (2 * n as u32 + 1, n as u32 + 100);
        let forged = message::req(&config(), (ConnId(id), 9), &call_from(HERE, PEER), &params(qpn));
        cm[1].handle_mad(now, 0, HERE, PEER, &forged);
        while let Some(event) = cm[1].poll_event() {
            if let CmEvent::ConnectRequest { conn, .. } = event {
                taken += 1;
                cm[1].accept(now, conn, params(0x1000 + n as u32), b"").unwrap();
            }
        }
        exchange(now, &mut cm);
        cm.iter_mut().for_each(|cm| cm.handle_timeout(now));
    }
    assert_eq!(taken, 1, "one place in a second of time wait");
    connected(&mut cm, 1000 * MS);
}

#[test]
fn another_process_in_the_peers_place_is_noticed() {
    let mut cm = pair(&watching());
    let [active, _] = connected(&mut cm, 0);
    cm[0].handle_timeout(1000 * MS);
    exchange(1000 * MS, &mut cm);
    cm[1] = Cm::new(3, watching());
    cm[0].handle_timeout(2000 * MS);
    // Its sign of life, the question whether it knows the connection, and that it does not.
    exchange(2000 * MS, &mut cm);
    assert_eq!(event(&mut cm[0]), (active, "Disconnected"));
    assert_eq!(cm[0].counters().challenges, 1);
}

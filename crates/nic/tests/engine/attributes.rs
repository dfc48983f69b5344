//! Attributes: which must and may be given on each arrow, what a query tells, what may change later, and the events
//! and limits around them.

use crate::common::bare::{Bare, PEER_QP};
use crate::common::{A, B, CLEAN, Pair, Setup, Side};
use remora_memory::Access;
use remora_nic::*;
use remora_wire::{NakCode, Opcode, Psn};

const KINDS: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];
const STATES: [QpState; 7] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];

/// Every attribute with a value that is allowed.
fn attr(state: QpState) -> QpAttr {
    let route = Route { local: A, remote: B, link: 0 };
    QpAttr {
        state,
        cur_state: state,
        notify_drained: true,
        access: Access::REMOTE_READ,
        pkey_index: 0,
        port: 1,
        qkey: 0x1111,
        av: Some(AddressVector { sgid_index: 2, hop_limit: 9, traffic_class: 3, ..AddressVector::new(route) }),
        path_mtu: 2048,
        timeout: 15,
        retry_count: 6,
        rnr_retry: 5,
        rq_psn: Psn::new(77),
        sq_psn: Psn::new(88),
        max_rd_atomic: 4,
        max_dest_rd_atomic: 3,
        min_rnr_timer: 13,
        dest_qp: 0x123,
        sq_draining: false,
    }
}

/// A side whose queue pair of this kind is in this state.
fn side_in(kind: QpType, state: QpState) -> Side {
    let mut side = Side::new(A, 1);
    let init = side.nic.qp_init(side.qp).expect("live");
    side.renew(QpInit { kind, ..init });
    let path: &[QpState] = match state {
        QpState::Reset => &[],
        QpState::Err => &[QpState::Init, QpState::Err],
        _ => &[QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd],
    };
    let sqe = state == QpState::Sqe;
    for &to in path {
        let from = side.state();
        if from == state || sqe && from == QpState::Rts {
            break;
        }
        let (required, _) = qp_masks(kind, from, to).expect("an arrow");
        side.nic.modify_qp(side.qp, &attr(to), required | QpMask::STATE).expect("what it needs");
    }
    if sqe {
        let bad = [Sge { va: 0, len: 4, lkey: 1 }];
        let dest = UdDest { route: Route { local: A, remote: B, link: 0 }, qpn: 1, qkey: 1 };
        side.send(&SendWr::new(1, SendOp::Send, Data::List(&bad)).to(dest));
        side.nic.poll_transmit(0, &mut side.batch);
    }
    assert_eq!(side.state(), state, "{kind:?}");
    side
}

#[test]
fn every_arrow_takes_its_attributes_and_no_others() {
    let mut arrows = 0;
    for kind in KINDS {
        for from in STATES.into_iter().filter(|s| kind != QpType::Rc || *s != QpState::Sqe) {
            for to in STATES {
                let Some((required, optional)) = qp_masks(kind, from, to) else {
                    let mut side = side_in(kind, from);
                    let refused = side.nic.modify_qp(side.qp, &attr(to), QpMask::STATE);
                    assert_eq!(refused, Err(NicError::Transition { from, to }), "{kind:?}");
                    continue;
                };
                arrows += 1;
                let given = attr(to);
                for bit in QpMask::all().iter() {
                    let mut side = side_in(kind, from);
                    let before = side.nic.qp_attr(side.qp).expect("live");
                    let mask = (required | QpMask::STATE) ^ bit;
                    if bit == QpMask::STATE {
                        continue;
                    }
                    let given = QpAttr { cur_state: from, ..given };
                    let done = side.nic.modify_qp(side.qp, &given, mask);
                    let what = format!("{kind:?}, {from:?} to {to:?}, {bit:?}: {done:?}");
                    let fine = optional.contains(bit) && bit != QpMask::ALT_PATH;
                    assert_eq!(done.is_ok(), fine, "{what}");
                    if !fine {
                        assert_eq!(side.nic.qp_attr(side.qp), Ok(before), "nothing changes: {what}");
                    } else {
                        assert_eq!(side.state(), to, "{what}");
                    }
                }
            }
        }
    }
    assert_eq!(arrows, 19 + 22 + 22, "a reliable connection never gets to SQE");
}

#[test]
fn a_query_gives_back_what_was_given() {
    let mut side = side_in(QpType::Rc, QpState::Rts);
    let given = attr(QpState::Rts);
    let told = side.nic.qp_attr(side.qp).expect("live");
    assert_eq!(told, QpAttr { qkey: 0, notify_drained: false, ..given });
    // While it works, and with the send queue drained.
    let next = QpAttr { access: Access::REMOTE_WRITE, min_rnr_timer: 1, ..given };
    side.nic.modify_qp(side.qp, &next, QpMask::ACCESS_FLAGS | QpMask::MIN_RNR_TIMER).expect("RTS to RTS");
    let told = side.nic.qp_attr(side.qp).expect("live");
    assert_eq!((told.access, told.min_rnr_timer), (Access::REMOTE_WRITE, 1));
    side.nic.modify_qp(side.qp, &attr(QpState::Sqd), QpMask::STATE).expect("RTS to SQD");
    assert!(side.take_events().is_empty(), "nobody asked");
    let next = QpAttr { timeout: 3, retry_count: 1, max_rd_atomic: 9, max_dest_rd_atomic: 8, ..given };
    let mask = QpMask::TIMEOUT | QpMask::RETRY_CNT | QpMask::MAX_QP_RD_ATOMIC | QpMask::MAX_DEST_RD_ATOMIC;
    side.nic.modify_qp(side.qp, &next, mask).expect("SQD to SQD");
    let told = side.nic.qp_attr(side.qp).expect("live");
    assert_eq!((told.state, told.timeout, told.retry_count), (QpState::Sqd, 3, 1));
    assert_eq!((told.max_rd_atomic, told.max_dest_rd_atomic, told.sq_draining), (9, 8, false));
    side.nic.modify_qp(side.qp, &attr(QpState::Rts), QpMask::STATE).expect("SQD to RTS");
    side.nic.modify_qp(side.qp, &attr(QpState::Reset), QpMask::STATE).expect("to RESET");
    assert_eq!(side.nic.qp_attr(side.qp).expect("live"), QpAttr { path_mtu: 1024, ..QpAttr::default() });
    // Datagrams have their queue key.
    let side = side_in(QpType::Ud, QpState::Rts);
    assert_eq!(side.nic.qp_attr(side.qp).expect("live").qkey, 0x1111);
}

#[test]
fn values_out_of_range_are_refused() {
    type Spoil = fn(&mut QpAttr);
    let table: [(QpMask, Spoil); 9] = [
        (QpMask::AV, |a| a.av = None),
        (QpMask::PATH_MTU, |a| a.path_mtu = 1500),
        (QpMask::PATH_MTU, |a| a.path_mtu = 4096),
        (QpMask::MIN_RNR_TIMER, |a| a.min_rnr_timer = 32),
        (QpMask::MAX_DEST_RD_ATOMIC, |a| a.max_dest_rd_atomic = 129),
        (QpMask::PKEY_INDEX, |a| a.pkey_index = 1),
        (QpMask::CUR_STATE, |a| a.cur_state = QpState::Rts),
        (QpMask::ALT_PATH, |_| ()),
        (QpMask::CAP, |_| ()),
    ];
    let mut side = Side::new(A, 1);
    // A port with an MTU of 2048 B.
    side.nic = Nic::new(&NicConfig { port_mtu: 2048, ..NicConfig::new([1; 32]) }, side.nic.registry().clone());
    side.cq = side.nic.create_cq(16).expect("room");
    side.qp = side.nic.create_qp(QpInit::new(QpType::Rc, side.pd, side.cq, side.cq)).expect("room");
    side.nic.to_init(side.qp, ALL_REMOTE, 0).expect("INIT");
    let (required, _) = qp_masks(QpType::Rc, QpState::Init, QpState::Rtr).expect("an arrow");
    for (bit, spoil) in table {
        let mut bad = attr(QpState::Rtr);
        spoil(&mut bad);
        let refused = side.nic.modify_qp(side.qp, &bad, required | QpMask::STATE | bit);
        assert!(refused.is_err(), "{bit:?}: {bad:?}");
        assert_eq!(side.state(), QpState::Init);
    }
    side.nic.modify_qp(side.qp, &attr(QpState::Rtr), required | QpMask::STATE).expect("all is well");
    let unknown = side.nic.modify_qp(Qpn(0xff_ffff), &attr(QpState::Err), QpMask::STATE);
    assert_eq!(unknown, Err(NicError::NoSuch("queue pair")));
    assert_eq!(side.nic.to_reset(Qpn(0xff_ffff)), Err(NicError::NoSuch("queue pair")));
}

#[test]
fn draining_is_told_to_who_asks() {
    for ask in [false, true] {
        let mut p = Pair::new(1, CLEAN, Setup::default());
        let list = [p.a.sge(0, 10_000)];
        let op = SendOp::Write { va: p.b.va(0), rkey: p.b.key() };
        p.a.send(&SendWr::new(1, op, Data::List(&list)));
        p.step();
        let mask = if ask { QpMask::STATE | QpMask::EN_SQD_ASYNC_NOTIFY } else { QpMask::STATE };
        p.a.nic.modify_qp(p.a.qp, &attr(QpState::Sqd), mask).expect("RTS to SQD");
        assert!(p.a.nic.qp_attr(p.a.qp).expect("live").sq_draining);
        p.run(1000);
        assert!(!p.a.nic.qp_attr(p.a.qp).expect("live").sq_draining);
        let told = p.a.take_events().iter().filter(|e| matches!(e, Event::SqDrained(_))).count();
        assert_eq!(told, usize::from(ask));
    }
}

#[test]
fn numbers_over_the_limits_are_refused() {
    let mut side = Side::new(A, 1);
    let limits = side.nic.limits();
    let good = QpInit::new(QpType::Rc, side.pd, side.cq, side.cq);
    let most = QpInit {
        max_send_sge: limits.sge,
        max_recv_sge: limits.sge,
        max_inline: limits.inline,
        max_send_wr: 16,
        max_rpc: 0,
        ..good
    };
    let qp = side.nic.create_qp(most).expect("at the limits");
    assert_eq!(side.nic.qp_init(qp).expect("live").max_send_sge, 32);
    for bad in [
        QpInit { max_send_sge: limits.sge + 1, ..good },
        QpInit { max_recv_sge: limits.sge + 1, ..good },
        QpInit { max_inline: limits.inline + 1, ..good },
        QpInit { max_send_wr: limits.qp_wr + 1, ..good },
        QpInit { max_recv_wr: limits.qp_wr + 1, ..good },
    ] {
        assert!(matches!(side.nic.create_qp(bad), Err(NicError::TooLarge { .. })), "{bad:?}");
    }
    assert!(matches!(side.nic.create_cq(limits.cqe + 1), Err(NicError::TooLarge { .. })));
    assert!(side.nic.create_cq(0).is_err());
    assert!(matches!(side.nic.create_srq(side.pd, limits.qp_wr + 1, 1), Err(NicError::TooLarge { .. })));
    assert!(matches!(side.nic.create_srq(side.pd, 1, limits.sge + 1), Err(NicError::TooLarge { .. })));
}

#[test]
fn thirty_two_elements_go_both_ways() {
    let mut p = Pair::unconnected(1, CLEAN);
    for side in [&mut p.a, &mut p.b] {
        let init = side.nic.qp_init(side.qp).expect("live");
        side.renew(QpInit { max_send_sge: 32, max_recv_sge: 32, ..init });
    }
    p.connect(Setup { mtu: 256, ..Setup::default() });
    let bytes: Vec<u8> = (0..64 * 1024).map(|i| (i * 7 % 253) as u8).collect();
    p.a.buffer.write(0, &bytes).expect("in bounds");
    let from: Vec<Sge> = (0..32).map(|i| p.a.sge(i * 1000, 31 + i)).collect();
    let to: Vec<Sge> = (0..32).map(|i| p.b.sge(i * 1000, 62 - i)).collect();
    p.b.nic.post_recv(p.b.qp, 1, &to).expect("room");
    p.a.send(&SendWr::new(1, SendOp::Send, Data::List(&from)));
    p.run(1000);
    let sent: Vec<u8> = (0..32).flat_map(|i| p.a.bytes(i * 1000, 31 + i)).collect();
    let arrived: Vec<u8> = (0..32).flat_map(|i| p.b.bytes(i * 1000, 62 - i)).collect();
    assert_eq!((p.b.done[0].byte_len, arrived), (sent.len() as u32, sent));
}

#[test]
fn queues_change_their_sizes() {
    let mut p = Pair::unconnected(1, CLEAN);
    let (cq, srq) = (p.b.cq, p.b.nic.create_srq(p.b.pd, 2, 1).expect("room"));
    p.b.renew(QpInit { srq: Some(srq), ..QpInit::new(QpType::Rc, p.b.pd, cq, cq) });
    p.connect(Setup::default());
    let post = |p: &mut Pair, id| {
        let list = [p.b.sge(id as usize * 64, 64)];
        p.b.nic.post_srq_recv(srq, id, &list)
    };
    assert_eq!([post(&mut p, 0), post(&mut p, 1), post(&mut p, 2)], [Ok(()), Ok(()), Err(NicError::Full)]);
    assert!(p.b.nic.modify_srq(srq, Some(1), None).is_err(), "two are posted");
    p.b.nic.modify_srq(srq, Some(4), None).expect("larger");
    assert!(p.b.nic.modify_srq(srq, None, Some(5)).is_err());
    assert!(
        p.b.nic.modify_srq(srq, Some(8), Some(9)).is_err() && p.b.nic.srq_attr(srq).unwrap().capacity == 4,
        "neither"
    );
    p.b.nic.modify_srq(srq, None, Some(4)).expect("within");
    p.b.nic.modify_srq(srq, Some(3), Some(2)).expect("both at once");
    p.b.nic.modify_srq(srq, Some(4), None).expect("larger again");
    let told = p.b.nic.srq_attr(srq).expect("live");
    assert_eq!((told.capacity, told.max_sge, told.limit, told.pd), (4, 1, 2, p.b.pd));
    assert_eq!([post(&mut p, 2), post(&mut p, 3), post(&mut p, 4)], [Ok(()), Ok(()), Err(NicError::Full)]);
    for id in 0..4u8 {
        p.a.send(&SendWr::new(id.into(), SendOp::Send, Data::Inline(&[id; 9])));
    }
    // Without the sides taking completions, they pile up.
    while p.a.nic.poll_transmit(0, &mut p.a.batch) {
        p.a.batch.packets().for_each(|packet| p.b.nic.handle_packet(0, 0, A, B, packet));
    }
    assert_eq!(p.b.nic.cq_len(cq), 4);
    assert!(p.b.nic.resize_cq(cq, 3).is_err(), "four wait");
    p.b.nic.resize_cq(cq, 4).expect("just enough");
    p.b.nic.resize_cq(cq, 9000).expect("larger");
    let order: Vec<u64> = std::iter::from_fn(|| p.b.nic.poll_cq(cq)).map(|wc| wc.wr_id).collect();
    assert_eq!(order, [0, 1, 2, 3]);
    assert!(p.b.take_events().contains(&Event::SrqLimit(srq)));
}

#[test]
fn the_last_receive_from_a_shared_queue_is_told() {
    let mut p = Pair::unconnected(1, CLEAN);
    let srq = p.b.nic.create_srq(p.b.pd, 8, 1).expect("room");
    p.b.renew(QpInit { srq: Some(srq), ..QpInit::new(QpType::Rc, p.b.pd, p.b.cq, p.b.cq) });
    p.connect(Setup::default());
    p.b.nic.to_error(p.b.qp).expect("live");
    p.b.nic.to_error(p.b.qp).expect("live");
    assert_eq!(p.b.take_events(), [Event::LastWqe(p.b.qp)], "once");
    // A queue of its own is flushed instead.
    p.a.nic.to_error(p.a.qp).expect("live");
    assert_eq!(p.a.take_events(), []);
}

#[test]
fn what_a_peer_does_wrong_is_told_by_kind() {
    let table = [(0x1234_5678, 64, Event::QpAccessError as fn(Qpn) -> Event), (0, 65, Event::QpRequestError)];
    for (rkey, len, event) in table {
        let mut bare = Bare::new(Setup::default());
        let (va, key) = (bare.side.va(0), bare.side.key());
        let data = [0; 64];
        let reth = (va, if rkey == 0 { key } else { rkey }, len);
        bare.give(&bare.with_reth(Opcode::RcWriteOnly, Setup::default().psn_a, reth, &data));
        let code = if rkey == 0 { NakCode::InvalidRequest } else { NakCode::RemoteAccess };
        assert_eq!(bare.brief(), [crate::common::bare::nak(Setup::default().psn_a, code)]);
        let events = bare.side.take_events();
        assert!(events.contains(&event(bare.side.qp)), "{events:?}");
        assert!(events.iter().any(|e| matches!(e, Event::QpFatal(..))), "{events:?}");
        assert_eq!(bare.side.nic.qp_attr(bare.side.qp).expect("live").dest_qp, PEER_QP);
    }
}

#[test]
fn a_reset_takes_its_completions_along_and_no_others() {
    let mut p = Pair::new(1, CLEAN, Setup::default());
    let other = p.b.nic.create_qp(QpInit::new(QpType::Uc, p.b.pd, p.b.cq, p.b.cq)).expect("room");
    p.b.nic.to_init(other, ALL_REMOTE, 0).expect("INIT");
    p.b.nic.post_recv(other, 7, &[]).expect("room");
    p.b.recv(1, 0, 64);
    p.b.nic.to_error(p.b.qp).expect("live");
    p.b.nic.to_error(other).expect("live");
    p.b.nic.to_reset(p.b.qp).expect("live");
    assert_eq!(p.b.take_done().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [7]);
}

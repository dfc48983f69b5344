use std::net::SocketAddr;

use remora_nic::cm::CmEvent;
use remora_nic::{ConnectAttr, Data, Event, QpInit, QpType, SendOp, SendWr, WcStatus};
use remora_rack::{Record, StreamEvent};
use remora_testing::own_address;

use super::memory::header;
use super::messages::SEGMENT;
use super::*;

/// Far longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(30);

fn config(way: (IpAddr, IpAddr), calls: bool) -> TrunkConfig {
    let policy =
        FlowPolicy { subflows: 4, segment: 1 << 10, depth: 64 << 10, window: 256 << 10, ..FlowPolicy::default() };
    TrunkConfig { policy, ..TrunkConfig::new(vec![way], calls, b"what both know") }
}

fn addresses() -> [IpAddr; 2] {
    [own_address(), own_address()].map(|at| at.parse().unwrap())
}

fn somebody() -> SocketAddr {
    SocketAddr::from(([10, 1, 2, 3], 80))
}

/// Drives both until it is so.
fn until(trunks: &mut [Trunk; 2], what: &str, mut done: impl FnMut(&mut [Trunk; 2]) -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done(trunks) {
        trunks.iter_mut().for_each(|trunk| trunk.turn(Duration::from_millis(1)).unwrap());
        assert!(Instant::now() < end, "{what}");
    }
}

fn connected() -> [Trunk; 2] {
    let [one, other] = addresses();
    let trunk = |way, calls| Trunk::new(config(way, calls)).unwrap();
    let mut trunks = [trunk((one, other), true), trunk((other, one), false)];
    until(&mut trunks, "they are connected", |trunks| trunks.iter().all(|trunk| trunk.nics_up() == 1));
    trunks
}

fn opened(trunks: &mut [Trunk; 2]) -> FlowId {
    let flow = trunks[0].open(somebody(), somebody(), false).unwrap();
    let mut open = false;
    until(trunks, "a stream", |[caller, called]| {
        while let Some(event) = called.poll_event() {
            if let StreamEvent::Asked { flow, .. } = event {
                called.answer(flow, Ok(()));
            }
        }
        while let Some(event) = caller.poll_event() {
            open |= event == StreamEvent::Answered { flow, answer: Ok(()) };
        }
        open
    });
    flow
}

#[test]
fn a_stream_that_is_gone_holds_no_memory() {
    let mut trunks = connected();
    let flow = opened(&mut trunks);
    let regions = trunks.each_ref().map(|trunk| trunk.windows[&flow].region.clone());
    assert!(regions.iter().all(|region| Arc::strong_count(region) > 1));
    trunks.iter_mut().for_each(|trunk| trunk.close(flow));
    until(&mut trunks, "it is gone", |trunks| {
        trunks.iter_mut().for_each(|trunk| while trunk.poll_event().is_some() {});
        trunks.iter().all(|trunk| trunk.windows.len() == 1)
    });
    assert_eq!(regions.map(|region| Arc::strong_count(&region)), [1, 1]);
}

/// The sender knows of what a NIC has acknowledged, and never sends it again.
#[test]
fn what_has_come_by_a_connection_that_breaks_is_heard() {
    let mut trunks = connected();
    let flow = opened(&mut trunks);
    let sent: Vec<u8> = (0..200_000u32).map(|at| (at % 251) as u8).collect();
    let mut at = trunks[0].write(flow, &sent);
    // A NIC thread takes it while the driver has no core.
    trunks[1].ways[0].device.keep(false);
    let end = Instant::now() + PATIENCE;
    while trunks[0].arrived(flow) < 90 << 10 {
        trunks[0].turn(Duration::from_millis(1)).unwrap();
        assert!(Instant::now() < end, "{} bytes have come", trunks[0].arrived(flow));
    }
    trunks[0].give_up(0);
    trunks[0].ways[0].device.lock().progress();
    // Its end has come, too.
    std::thread::sleep(Duration::from_millis(50));
    let (mut got, mut out) = (Vec::<u8>::new(), vec![0; 65_536]);
    until(&mut trunks, "all has come", |[caller, called]| {
        at += caller.write(flow, &sent[at..]);
        let len = called.read(flow, &mut out);
        got.extend(&out[..len]);
        got.len() >= sent.len()
    });
    assert!(got == sent);
}

/// Whoever has the other rack's address may answer a call, and send before the answer is looked at.
#[test]
fn nothing_is_heard_of_who_does_not_know_the_secret() {
    let [own, liar] = addresses();
    let mut trunk = Trunk::new(config((own, liar), true)).unwrap();
    let device = Device::new(liar, vec![LinkKind::Udp.bind(liar).unwrap()], None).unwrap();
    let (cq, qp) = {
        let mut guard = device.lock();
        guard.nic().listen(service_id(PORT)).unwrap();
        let cq = guard.nic().create_cq(64).unwrap();
        let pd = guard.nic().registry().alloc_pd();
        let init = QpInit { max_inline: 256, ..QpInit::new(QpType::Rc, pd, cq, cq) };
        let qp = guard.nic().create_qp(init).unwrap();
        guard.nic().to_init(qp, Access::empty(), 0).unwrap();
        (cq, qp)
    };
    trunk.drive().unwrap();
    // From here on only its NIC thread hears.
    trunk.ways[0].device.keep(false);
    let mut record = Vec::new();
    Record::Open { flow: FlowId(1), to: somebody(), from: somebody(), goes_on: false }.emit(&mut record);
    let message = [&header(SEGMENT, record.len() as u32, CONTROL, 0)[..], &record].concat();
    let end = Instant::now() + PATIENCE;
    loop {
        let mut guard = device.lock();
        guard.progress();
        for event in guard.take_events() {
            if let Event::Cm(CmEvent::ConnectRequest { conn, .. }) = event {
                let (now, attr) = (guard.now(), ConnectAttr { path_mtu: 1024, ..ConnectAttr::default() });
                guard.nic().accept(now, conn, qp, attr, b"let me in").unwrap();
                guard.nic().post_send(qp, &SendWr::new(1, SendOp::Send, Data::Inline(&message))).unwrap();
                guard.transmit();
            }
        }
        if let Some(wc) = guard.nic().poll_cq(cq) {
            assert_eq!(wc.status, WcStatus::Success, "it has come there");
            break;
        }
        drop(guard);
        assert!(Instant::now() < end, "nobody calls");
        std::thread::sleep(Duration::from_millis(1));
    }
    for _ in 0..3 {
        trunk.drive().unwrap();
    }
    let events: Vec<StreamEvent> = std::iter::from_fn(|| trunk.poll_event()).collect();
    assert_eq!((events, trunk.nics_connected()), (vec![], 0));
}

/// A WRITE of nothing needs no right, and is told of by the number of a receive, which may be a segment's too.
#[test]
fn who_writes_says_nothing_of_what_was_sent() {
    let mut trunks = connected();
    let life = trunks[0].life;
    let line = trunks[1].ways[0].line.as_ref().unwrap().qp;
    let mut guard = trunks[1].ways[0].device.lock();
    let op = SendOp::WriteImm { va: 0, rkey: 0, imm: 0 };
    guard.nic().post_send(line, &SendWr::new(u64::MAX >> 1, op, Data::List(&[]))).unwrap();
    guard.transmit();
    drop(guard);
    until(&mut trunks, "it is a breach", |trunks| trunks[0].life != life);
    until(&mut trunks, "they are connected", |trunks| trunks.iter().all(|trunk| trunk.nics_up() == 1));
    opened(&mut trunks);
}

//! Clients that lie, flood, stop or vanish: they harm themselves, and the node goes on serving others.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use remora_kernel::{ConsistencyParams, Placement, Status, op};
use remora_memory::{Access, Buffer, Region};
use remora_nic::cm::{CmEvent, ConnId, service_id};
use remora_nic::{
    ConnectAttr, CqId, Data, Event, NicError, QpInit, QpType, Qpn, SendOp, SendWr, Sge, WcOpcode, WcStatus,
    WorkCompletion,
};
use remora_real::link::Link;
use remora_real::link::shm::ShmLink;
use remora_real::link::udp::UdpLink;
use remora_real::{Client, ClientConfig, Device, Error, LinkKind, Node, NodeConfig};
use remora_service::HostCall;
use remora_service::control::PORT;
use remora_service::control::op::{ALLOC, CPU};
use remora_testing::eventually;
use remora_wire::rpc::RpcHeader;

fn ip(host: u8, last: u8) -> IpAddr {
    Ipv4Addr::new(127, 13, host, last).into()
}

fn node(host: u8, memory_limit: u64) -> Node {
    Node::start(NodeConfig { memory_limit, ..NodeConfig::new(ip(host, 1)) }).expect("node")
}

fn client(host: u8, last: u8, link: impl Into<Option<LinkKind>>) -> Client {
    Client::connect(ClientConfig { link: link.into(), ..ClientConfig::new(ip(host, 1), ip(host, last)) })
        .expect("connection")
}

/// A client that does what it wants.
struct Raw {
    device: Device,
    cq: CqId,
    region: Arc<Region>,
    node: IpAddr,
    _buffer: Buffer,
}

impl Raw {
    fn new(host: u8, last: u8) -> Self {
        Self::over(host, last, Box::new(UdpLink::bind(ip(host, last)).expect("socket")))
    }

    fn over(host: u8, last: u8, link: Box<dyn Link>) -> Self {
        let device = Device::new(ip(host, last), vec![link], None).expect("device");
        let buffer = Buffer::anonymous(1 << 20).expect("memory");
        let mut guard = device.lock();
        let nic = guard.nic();
        let pd = nic.registry().alloc_pd();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = nic.registry().register(pd, &buffer, 0, 1 << 20, None, access).expect("region");
        let cq = nic.create_cq(4096).expect("completion queue");
        drop(guard);
        Self { device, cq, region, node: ip(host, 1), _buffer: buffer }
    }

    /// A connection of its own that keeps `recvs` receives posted, once.
    fn connect(&self, recvs: u64) -> (Qpn, ConnId) {
        let mut guard = self.device.lock();
        let nic = guard.nic();
        let init = QpInit {
            max_send_wr: 2048,
            max_recv_wr: 64,
            max_send_sge: 1,
            max_inline: 128,
            ..QpInit::new(QpType::Rc, self.region.pd(), self.cq, self.cq)
        };
        let qp = nic.create_qp(init).expect("queue pair");
        nic.to_init(qp, Access::REMOTE_WRITE, 0).expect("INIT");
        (0..recvs).for_each(|n| nic.post_recv(qp, n, &[]).expect("receive"));
        let (now, route) = (guard.now(), guard.route(self.node, 0));
        let attr = ConnectAttr::default();
        let conn = guard.nic().connect(now, qp, route, service_id(PORT), attr, &[]).expect("call");
        drop(guard);
        loop {
            let mut guard = self.device.lock();
            guard.progress();
            for event in guard.take_events() {
                match event {
                    Event::Cm(CmEvent::Established { conn: c, .. }) if c == conn => return (qp, conn),
                    Event::Cm(CmEvent::Rejected { .. } | CmEvent::Unreachable { .. }) => panic!("{event:?}"),
                    _ => {}
                }
            }
            drop(guard);
            std::thread::yield_now();
        }
    }

    fn header(&self) -> RpcHeader {
        let (reply_va, reply_rkey) = (self.region.va(), self.region.key());
        RpcHeader { reply_va, reply_rkey, reply_capacity: 4096, tag: 7, flags: 0 }
    }

    fn post(&self, qp: Qpn, message: &[u8]) -> Result<(), NicError> {
        let wr = SendWr::new(0, SendOp::Send, Data::Inline(message)).solicited().unsignaled();
        self.device.lock().nic().post_send(qp, &wr)
    }

    /// Drives until there is a completion.
    fn completion(&self) -> WorkCompletion {
        loop {
            let mut guard = self.device.lock();
            guard.progress();
            if let Some(wc) = guard.nic().poll_cq(self.cq) {
                return wc;
            }
            drop(guard);
            std::thread::yield_now();
        }
    }
}

/// A call to the host as it goes into a SEND.
fn host_call(header: &RpcHeader, op: u64, params: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    HostCall { header: *header, op, params }.encode(&mut out).expect("not too long");
    out
}

#[test]
fn messages_that_are_no_calls_are_dropped_and_calls_behind_them_answered() {
    let node = node(1, 1 << 20);
    let raw = Raw::new(1, 2);
    let (qp, _) = raw.connect(4);
    let call = host_call(&raw.header(), CPU, &[]);
    for cut in [0, 1, 23, 31] {
        raw.post(qp, &call[..cut]).expect("send");
    }
    raw.post(qp, &[0xff; 128]).expect("a header with unknown flags");
    raw.post(qp, &host_call(&raw.header(), ALLOC, &[1, 2])).expect("parameters cut short");
    raw.post(qp, &call).expect("send");
    let [first, second] = [raw.completion(), raw.completion()];
    assert_eq!((first.status, first.opcode), (WcStatus::Success, WcOpcode::RecvWriteImm));
    assert_eq!(first.imm, Some(remora_wire::rpc::reply_imm(7, Status::BadParams.code())));
    assert_eq!((second.byte_len, second.imm), (8, Some(remora_wire::rpc::reply_imm(7, Status::Ok.code()))));

    // A reply that is longer than its room is refused, not written.
    let tight = RpcHeader { reply_capacity: 7, ..raw.header() };
    raw.post(qp, &host_call(&tight, CPU, &[])).expect("send");
    let third = raw.completion();
    assert_eq!(third.imm, Some(remora_wire::rpc::reply_imm(7, Status::ReplyTooLong.code())));
    assert_eq!(third.byte_len, 0);

    // A message longer than any call ends the connection.
    let sge = [Sge { va: raw.region.va(), len: 8192, lkey: raw.region.key() }];
    let wr = SendWr::new(9, SendOp::Send, Data::List(&sge));
    raw.device.lock().nic().post_send(qp, &wr).expect("send");
    assert_eq!(raw.completion().status, WcStatus::RemoteInvalidRequest);
    assert!(client(1, 3, LinkKind::Udp).alloc(4096).is_ok(), "others notice nothing");
    node.shutdown();
}

#[test]
fn a_reply_to_a_bad_address_costs_only_the_liar() {
    let node = node(2, 1 << 20);
    let raw = Raw::new(2, 2);
    let (qp, _) = raw.connect(4);
    let lie = RpcHeader { reply_va: u64::MAX - 3, ..raw.header() };
    raw.post(qp, &host_call(&lie, CPU, &[])).expect("send");
    assert_eq!(raw.completion().status, WcStatus::Flushed, "the connection ends");
    assert!(client(2, 3, LinkKind::Udp).alloc(4096).is_ok(), "others notice nothing");
    node.shutdown();
}

#[test]
fn a_flood_of_calls_whose_replies_are_never_taken_ends_with_the_flooder() {
    let node = node(3, 2 << 20);
    let raw = Raw::new(3, 2);
    // No receives: every reply is answered with "not ready", for ever, as the protocol allows.
    let (qp, _) = raw.connect(0);
    let call = host_call(&raw.header(), CPU, &[]);
    while raw.post(qp, &call).is_ok() {}
    for _ in 0..1000 {
        raw.device.lock().progress();
    }
    raw.device.release();
    let mut other = client(3, 3, LinkKind::Udp);
    for _ in 0..100 {
        other.alloc(4096).expect("others are served");
    }
    node.shutdown();
}

#[test]
fn a_client_that_stops_taking_packets_does_not_hold_up_others() {
    let node = node(13, 128 << 20);
    let mut other = client(13, 2, LinkKind::Shm);
    let region = other.alloc(32 << 20).expect("memory");
    let mut link = ShmLink::bind(ip(13, 3)).expect("link");
    assert!(link.connect(ip(13, 1)).expect("connection"));
    let raw = Raw::over(13, 3, Box::new(link));
    let (qp, _) = raw.connect(0);
    raw.device.stop();
    // Far more than the shared ring holds is on its way to a reader that stands still.
    let sge = [Sge { va: raw.region.va(), len: 1 << 20, lkey: raw.region.key() }];
    for n in 0..16 {
        let wr = SendWr::new(n, SendOp::Read { va: region.va + (n << 20), rkey: region.key }, Data::List(&sge));
        raw.device.lock().nic().post_send(qp, &wr).expect("send");
    }
    raw.device.lock().progress();
    for _ in 0..100 {
        other.node_cpu_ns().expect("others are served");
    }
    node.shutdown();
}

#[test]
fn the_memory_of_a_client_that_vanishes_comes_back() {
    let node = node(4, 128 << 20);
    for (last, link) in [(2, LinkKind::Udp), (3, LinkKind::Shm)] {
        let mut dead = client(4, last, link);
        dead.alloc(48 << 20).expect("memory");
        // Nothing of it moves any more, and it takes no leave: so a killed process looks from outside.
        dead.device().stop();
        std::mem::forget(dead);
        let mut other = client(4, last + 2, link);
        eventually(format!("the memory of the dead, over {link:?}"), || other.alloc(48 << 20).ok());
    }
    node.shutdown();
}

#[test]
fn small_allocations_count_as_the_pages_they_take() {
    let node = node(5, 1 << 20);
    let mut client = client(5, 2, LinkKind::Udp);
    let regions: Vec<_> = (0..64).map(|_| client.alloc(1).expect("a page")).collect();
    assert!(client.alloc(1).is_err(), "half of 1 MB is 128 pages: one for each, and one for its entries in tables");
    assert!(client.alloc(u64::MAX).is_err());
    regions.iter().for_each(|region| client.free(region).expect("free"));
    assert!(client.free(&regions[0]).is_err(), "only once");
    assert!(client.alloc((512 << 10) - 4096).is_ok());
    node.shutdown();
}

#[test]
fn streams_that_break_off_leave_no_kernel_behind() {
    let node = node(7, 1 << 20);
    let raw = Raw::new(7, 2);
    // More than the pool of kernels holds.
    for _ in 0..300 {
        let (qp, conn) = raw.connect(1);
        // The parameters go, the stream cannot be gathered: the kernel waits for it.
        let nowhere = [Sge { va: 0, len: 100_000, lkey: raw.region.key() ^ 1 }];
        let mut guard = raw.device.lock();
        guard.nic().post_rpc_write(qp, 1, op::CHECKSUM, &raw.header(), &[], &nowhere).expect("call");
        drop(guard);
        while raw.completion().opcode != WcOpcode::Rpc {}
        let mut guard = raw.device.lock();
        let now = guard.now();
        guard.nic().disconnect(now, conn).expect("established");
        guard.progress();
    }
    let mut other = client(7, 3, LinkKind::Udp);
    let (status, reply) = other.call_stream(op::CHECKSUM, &[], &[1; 10_000]).expect("call");
    assert_eq!((status, &reply[..8]), (Status::Ok, &10_000u64.to_le_bytes()[..]));
    node.shutdown();
}

#[test]
fn an_answer_before_the_end_of_the_stream_does_not_break_the_connection() {
    let node = node(8, 1 << 20);
    let mut client = client(8, 2, LinkKind::Udp);
    let payload = vec![1; 4 << 20];
    for _ in 0..3 {
        assert_eq!(client.call_stream(999, &[], &payload).expect("call").0, Status::UnknownOp);
        assert_eq!(client.call_stream(op::CHECKSUM, &[1], &payload).expect("call").0, Status::BadParams);
    }
    assert!(client.call_stream(op::CHECKSUM, &[0; 8000], &payload).is_err(), "parameters of more than an MTU");
    let (status, _) = client.call_stream(op::CHECKSUM, &[], &payload).expect("call");
    assert_eq!((status, client.in_flight()), (Status::Ok, 0));
    node.shutdown();
}

#[test]
fn calls_end_when_the_node_goes_away() {
    for (host, link) in [(9, LinkKind::Udp), (10, LinkKind::Shm)] {
        let node = node(host, 1 << 20);
        let mut client = client(host, 2, link);
        let region = client.alloc(4096).expect("memory");
        let params = ConsistencyParams { address: region.va, key: region.key, len: 64, max_tries: 1 }.encode();
        node.shutdown();
        let placements = [Placement::Client, Placement::Nic, Placement::Host];
        for tag in 0..90 {
            client.submit(placements[tag as usize % 3], op::CONSISTENCY, &params, tag).expect("room");
        }
        let mut ended = [false; 90];
        let error = loop {
            let mut done = |tag: u32, status, _: &[u8]| {
                assert_eq!(status, Status::LOST);
                assert!(!std::mem::replace(&mut ended[tag as usize], true), "{tag} twice");
            };
            if let Err(e) = client.poll(&mut done) {
                break e;
            }
        };
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        assert!(!ended.contains(&false), "over {link:?}: {ended:?}");
        assert_eq!(client.in_flight(), 0);
        for error in [client.alloc(1).err(), client.write(&region, 0, &[1]).err(), client.node_cpu_ns().err()] {
            assert!(matches!(error, Some(Error::Lost { .. })), "{error:?}");
        }
    }
}

#[test]
fn parameters_that_do_not_fit_are_refused_like_any_bad_ones() {
    let node = node(11, 1 << 20);
    let mut client = client(11, 2, LinkKind::Udp);
    for placement in [Placement::Nic, Placement::Host] {
        let error = client.call(placement, op::GET, &[0; 4097]).expect_err("too long");
        assert!(matches!(error, Error::TooLong { len: 4097, most: 4000..=4096, .. }), "{placement:?}: {error}");
    }
    assert!(client.alloc(4096).is_ok());
    node.shutdown();
}

#[test]
fn a_failed_connection_leaves_nothing_open() {
    let config = ClientConfig { link: Some(LinkKind::Udp), ..ClientConfig::new(ip(12, 1), ip(12, 2)) };
    let error = Client::connect(config).err().expect("nobody is there");
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
    assert!(UdpLink::bind(ip(12, 2)).is_ok(), "the address is free again");
}

//! Two processes' identifiers and connection managers, with commands as bytes, and no network between them.

use std::net::{IpAddr, Ipv4Addr};

use remora_nic::cm::{Cm, CmConfig, CmError, port_service_id};

use super::abi::{self, event, ps};
use super::state::{Host, State, Told};

const ADDRESSES: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)), IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3))];
const PORT: u16 = 7174;
const CHANNEL: i32 = 9;

struct Side {
    state: State,
    cm: Cm,
    address: IpAddr,
    told: Vec<Told>,
}

/// A command, built as librdmacm does: number, and fields at offsets of its body.
fn command(number: u32, len: usize, fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; 8 + len];
    bytes[..4].copy_from_slice(&number.to_ne_bytes());
    bytes[4..6].copy_from_slice(&(len as u16).to_ne_bytes());
    bytes[6..8].copy_from_slice(&1000u16.to_ne_bytes());
    for (at, field) in fields {
        bytes[8 + at..][..field.len()].copy_from_slice(field);
    }
    bytes
}

/// `sockaddr_in`.
fn socket_address(ip: IpAddr, port: u16) -> Vec<u8> {
    let IpAddr::V4(ip) = ip else { panic!("an IPv4 address") };
    [&(libc::AF_INET as u16).to_ne_bytes()[..], &port.to_be_bytes(), &ip.octets(), &[0; 8]].concat()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

impl Side {
    fn new(which: usize) -> Self {
        let cm = Cm::new(which as u64 + 1, CmConfig { timewait_events: true, ..CmConfig::default() });
        Self { state: State::default(), cm, address: ADDRESSES[which], told: Vec::new() }
    }

    fn run(&mut self, bytes: &[u8]) -> Result<Vec<u8>, i32> {
        let request = abi::parse(bytes)?;
        let mut host = Host {
            now: 0,
            address: self.address,
            guid: [7; 8],
            mtu: 5,
            reachable: true,
            random: 0x12_3456,
            cm: &mut self.cm,
        };
        let answer = self.state.command(&mut host, CHANNEL, request.command);
        self.told.extend(self.state.take_told());
        answer
    }

    fn create(&mut self, uid: u64, ps: u16) -> u32 {
        let uid = uid.to_ne_bytes();
        u32_at(&self.run(&command(0, 24, &[(0, &uid), (16, &ps.to_ne_bytes())])).unwrap(), 0)
    }

    fn bind(&mut self, id: u32, ip: IpAddr, port: u16) -> Result<Vec<u8>, i32> {
        let address = socket_address(ip, port);
        self.run(&command(20, 136, &[(0, &id.to_ne_bytes()), (4, &16u16.to_ne_bytes()), (8, &address)]))
    }

    fn listen(&mut self, uid: u64, ps: u16) -> u32 {
        let id = self.create(uid, ps);
        self.bind(id, Ipv4Addr::UNSPECIFIED.into(), PORT).unwrap();
        self.run(&command(7, 8, &[(0, &id.to_ne_bytes())])).unwrap();
        id
    }

    /// An identifier with address and route resolved.
    fn resolved(&mut self, uid: u64, ps: u16, to: IpAddr) -> u32 {
        let id = self.create(uid, ps);
        let (number, address) = (id.to_ne_bytes(), socket_address(to, PORT));
        self.run(&command(21, 272, &[(0, &number), (10, &16u16.to_ne_bytes()), (144, &address)])).unwrap();
        assert_eq!(self.event().0, event::ADDR_RESOLVED);
        self.run(&command(4, 8, &[(0, &number)])).unwrap();
        assert_eq!(self.event().0, event::ROUTE_RESOLVED);
        id
    }

    /// CONNECT or ACCEPT with a queue pair.
    fn with_param(&mut self, number: u32, id: u32, uid: u64, qpn: u32) -> Result<Vec<u8>, i32> {
        let (id, uid, qpn) = (id.to_ne_bytes(), uid.to_ne_bytes(), qpn.to_ne_bytes());
        let valid: [u8; 8] = [5, 0, 4, 3, 0, 7, 6, 1];
        match number {
            6 => self.run(&command(6, 288, &[(0, &qpn), (8, b"hello"), (264, &valid), (272, &id)])),
            _ => self.run(&command(8, 296, &[(0, &uid), (8, &qpn), (16, b"howdy"), (272, &valid), (280, &id)])),
        }
    }

    /// The next event: number, status and bytes.
    fn event(&mut self) -> (u32, i32, [u8; abi::EVENT]) {
        let told = self.told.remove(0);
        assert_eq!(told.channel, CHANNEL);
        self.state.took(told.id);
        (u32_at(&told.bytes, 12), u32_at(&told.bytes, 16) as i32, told.bytes)
    }

    fn init_qp_attr(&mut self, id: u32, state: u32) -> Result<Vec<u8>, i32> {
        self.run(&command(11, 16, &[(0, &1u64.to_ne_bytes()), (8, &id.to_ne_bytes()), (12, &state.to_ne_bytes())]))
    }
}

/// Carries MADs and events until there are no more.
fn settle(sides: &mut [Side; 2], now: u64) {
    let mut mad = [0; 256];
    loop {
        let mut moved = false;
        for from in 0..2 {
            while sides[from].cm.poll_transmit(&mut mad).is_some() {
                sides[1 - from].cm.handle_mad(now, 0, ADDRESSES[from], ADDRESSES[1 - from], &mad);
                moved = true;
            }
        }
        for side in &mut *sides {
            while let Some(event) = side.cm.poll_event() {
                side.state.follow(event, 0x65_4321);
                moved = true;
            }
            side.told.extend(side.state.take_told());
        }
        if !moved {
            return;
        }
    }
}

#[test]
fn a_connection_from_first_to_last_event() {
    let mut sides = [Side::new(0), Side::new(1)];
    sides[0].listen(100, ps::TCP);
    let id = sides[1].resolved(200, ps::TCP, ADDRESSES[0]);
    let init = sides[1].init_qp_attr(id, abi::QPS_INIT).unwrap();
    assert_eq!((u32_at(&init, 0), init[133]), (1 | 8 | 16 | 32, 1), "state, access, key and port");
    sides[1].with_param(6, id, 0, 0x55).unwrap();
    settle(&mut sides, 0);

    let (kind, _, bytes) = sides[0].event();
    assert_eq!((kind, u32_at(&bytes, 20), &bytes[28..33]), (event::CONNECT_REQUEST, 0x55, &b"hello"[..]));
    assert_eq!(bytes[..8], 100u64.to_ne_bytes(), "for the listener");
    assert_eq!(
        bytes[284..291],
        [56, 0, 3, 4, 0, 7, 6],
        "the caller's depths are answered and asked the other way round"
    );
    let new = u32_at(&bytes, 8);
    let rtr = sides[0].init_qp_attr(new, abi::QPS_RTR).unwrap();
    assert_eq!(
        (u32_at(&rtr, 12), u32_at(&rtr, 24), u32_at(&rtr, 32), rtr[131]),
        (5, 0x65_4321, 0x55, 3),
        "its own first PSN is expected"
    );
    assert_eq!(rtr[40..56], crate::port::gid_of(ADDRESSES[1]).raw);
    let rts = sides[0].init_qp_attr(new, abi::QPS_RTS).unwrap();
    assert_eq!(
        (u32_at(&rts, 28), &rts[134..137], rts[130]),
        (0x12_3456, &[14, 7, 6][..], 4),
        "and the caller's is sent"
    );
    sides[0].with_param(8, new, 101, 0x66).unwrap();
    settle(&mut sides, 0);

    let (kind, _, bytes) = sides[1].event();
    assert_eq!((kind, u32_at(&bytes, 20), &bytes[28..33]), (event::CONNECT_RESPONSE, 0x66, &b"howdy"[..]));
    let rtr = sides[1].init_qp_attr(id, abi::QPS_RTR).unwrap();
    assert_eq!((u32_at(&rtr, 24), u32_at(&rtr, 32)), (0x12_3456, 0x66));
    assert!(sides[0].told.is_empty(), "not established before the caller is ready");
    sides[1].run(&command(8, 296, &[(280, &id.to_ne_bytes())])).unwrap();
    settle(&mut sides, 0);
    assert_eq!(sides[0].event().0, event::ESTABLISHED);
    assert!(sides[1].told.is_empty(), "the caller knows");

    sides[1].run(&command(10, 4, &[(0, &id.to_ne_bytes())])).unwrap();
    settle(&mut sides, 0);
    assert_eq!((sides[0].event().0, sides[1].event().0), (event::DISCONNECTED, event::DISCONNECTED));
    for side in &mut sides {
        side.cm.handle_timeout(2_000_000_000);
    }
    settle(&mut sides, 0);
    assert_eq!((sides[0].event().0, sides[1].event().0), (event::TIMEWAIT_EXIT, event::TIMEWAIT_EXIT));
    let taken = sides[1].run(&command(1, 16, &[(8, &id.to_ne_bytes())])).unwrap();
    assert_eq!(u32_at(&taken, 0), 5, "all events that were taken");
    assert_eq!(sides[1].run(&command(1, 16, &[(8, &id.to_ne_bytes())])), Err(libc::ENOENT));
}

/// Two ends with `count` connections between them; the caller's identifiers.
fn connected(sides: &mut [Side; 2], count: u32) -> Vec<u32> {
    sides[0].listen(100, ps::TCP);
    let connect = |n: u32| {
        let id = sides[1].resolved(200 + u64::from(n), ps::TCP, ADDRESSES[0]);
        sides[1].with_param(6, id, 0, 0x55 + n).unwrap();
        settle(sides, 0);
        let new = u32_at(&sides[0].event().2, 8);
        sides[0].with_param(8, new, 101 + u64::from(n), 0x66 + n).unwrap();
        settle(sides, 0);
        assert_eq!(sides[1].event().0, event::CONNECT_RESPONSE);
        sides[1].run(&command(8, 296, &[(280, &id.to_ne_bytes())])).unwrap();
        settle(sides, 0);
        assert_eq!(sides[0].event().0, event::ESTABLISHED);
        id
    };
    (0..count).map(connect).collect()
}

#[test]
fn a_process_that_ends_repeats_its_last_words() {
    const MILLISECOND: u64 = 1_000_000;
    let mut sides = [Side::new(0), Side::new(1)];
    let ids = connected(&mut sides, 3);
    // One that is closed but not destroyed, one of which the program has forgotten, and one that is still open.
    sides[1].run(&command(10, 4, &[(0, &ids[0].to_ne_bytes())])).unwrap();
    sides[1].run(&command(1, 16, &[(8, &ids[1].to_ne_bytes())])).unwrap();
    super::file::end_connections(&mut sides[1].cm, 0);
    let mut mad = [0; 256];
    for round in 1..6 {
        // All of them are lost; the next come long before the answer of a peer at work would be overdue.
        let lost = std::iter::from_fn(|| sides[1].cm.poll_transmit(&mut mad)).count();
        assert_eq!(lost, 3, "round {round}");
        assert!(sides[1].cm.is_disconnecting());
        sides[1].cm.handle_timeout(round * 30 * MILLISECOND);
    }
    settle(&mut sides, 150 * MILLISECOND);
    assert_eq!([0; 3].map(|_| sides[0].event().0), [event::DISCONNECTED; 3]);
    assert!(!sides[1].cm.is_disconnecting(), "the process may end");
}

#[test]
fn refusals_reach_the_caller() {
    let mut sides = [Side::new(0), Side::new(1)];
    let id = sides[1].resolved(200, ps::TCP, ADDRESSES[0]);
    sides[1].with_param(6, id, 0, 0x55).unwrap();
    settle(&mut sides, 0);
    assert_eq!(sides[1].event().1, 8, "nobody listens");

    sides[0].listen(100, ps::TCP);
    let id = sides[1].resolved(201, ps::TCP, ADDRESSES[0]);
    sides[1].with_param(6, id, 0, 0x56).unwrap();
    settle(&mut sides, 0);
    let new = u32_at(&sides[0].event().2, 8);
    let number = new.to_ne_bytes();
    sides[0].run(&command(9, 264, &[(0, &number), (4, &[2]), (8, b"no")])).unwrap();
    settle(&mut sides, 0);
    let (kind, status, bytes) = sides[1].event();
    assert_eq!((kind, status, &bytes[28..30], bytes[284]), (event::REJECTED, 28, &b"no"[..], 148));
}

#[test]
fn datagrams_learn_where_to_go() {
    let mut sides = [Side::new(0), Side::new(1)];
    sides[0].listen(100, ps::UDP);
    let id = sides[1].resolved(200, ps::UDP, ADDRESSES[0]);
    let init = sides[1].init_qp_attr(id, abi::QPS_INIT).unwrap();
    assert_eq!((u32_at(&init, 0) & 64, u32_at(&init, 20)), (64, 0x0123_4567));
    sides[1].with_param(6, id, 0, 0x55).unwrap();
    settle(&mut sides, 0);
    let (kind, _, bytes) = sides[0].event();
    assert_eq!((kind, &bytes[60..65], bytes[316]), (event::CONNECT_REQUEST, &b"hello"[..], 180));
    sides[0].with_param(8, u32_at(&bytes, 8), 101, 0x66).unwrap();
    settle(&mut sides, 0);
    let (kind, status, bytes) = sides[1].event();
    assert_eq!((kind, status, u32_at(&bytes, 20), u32_at(&bytes, 24)), (event::ESTABLISHED, 0, 0x66, 0x0123_4567));
    assert_eq!(bytes[28..44], crate::port::gid_of(ADDRESSES[0]).raw);
    assert_eq!(bytes[60..65], b"howdy"[..]);
}

#[test]
fn ports_belong_to_one_unless_shared() {
    let mut side = Side::new(0);
    let any = Ipv4Addr::UNSPECIFIED.into();
    let [a, b, c] = [1, 2, 3].map(|uid| side.create(uid, ps::TCP));
    side.bind(a, any, PORT).unwrap();
    assert_eq!(side.bind(b, any, PORT), Err(libc::EADDRINUSE));
    assert_eq!(side.bind(b, "10.9.8.7".parse().unwrap(), PORT), Err(libc::EADDRNOTAVAIL));
    side.state.set_option(c, 0, 1, &[1, 0, 0, 0]).unwrap();
    assert_eq!(side.bind(c, any, PORT), Err(libc::EADDRINUSE), "both have to share");
    side.bind(b, any, 0).unwrap();
    let answer = side.run(&command(19, 16, &[(8, &b.to_ne_bytes())])).unwrap();
    assert!((32_768..61_000).contains(&u16::from_be_bytes([answer[18], answer[19]])));
    assert_eq!(answer[..8], [0; 8], "a wildcard has no device");
    let d = side.create(4, ps::TCP);
    side.address = Ipv4Addr::new(192, 0, 2, 1).into();
    side.bind(d, Ipv4Addr::LOCALHOST.into(), 0).unwrap();
    let answer = side.run(&command(19, 16, &[(8, &d.to_ne_bytes())])).unwrap();
    assert_eq!(answer[..8], [0; 8], "nor has a loopback address on a device that is elsewhere");
    assert_eq!(side.bind(b, any, 0), Err(libc::EINVAL), "bound already");
    assert_eq!(side.state.set_option(a, 0, 9, &[1]), Err(libc::ENOSYS));
}

#[test]
fn a_child_ends_what_it_has_of_its_parent_and_nothing_of_its_own() {
    let mut side = Side::new(0);
    let inherited = side.listen(100, ps::TCP);
    side.state.orphan();
    let Side { cm, .. } = Side::new(1);
    side.cm = cm;
    let own = side.create(101, ps::TCP);
    side.bind(own, Ipv4Addr::UNSPECIFIED.into(), PORT + 1).unwrap();
    side.run(&command(7, 8, &[(0, &own.to_ne_bytes())])).unwrap();
    let taken = side.run(&command(1, 16, &[(8, &inherited.to_ne_bytes())])).unwrap();
    assert_eq!(u32_at(&taken, 0), 0);
    let service = port_service_id(ps::TCP, PORT + 1);
    assert_eq!(side.cm.listen(service), Err(CmError::ServiceInUse(service)), "its own listener is there");
}

#[test]
fn no_bytes_make_it_panic() {
    let mut side = Side::new(0);
    let id = side.create(1, ps::TCP);
    let mut random = 1u64;
    let mut next = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as u8
    };
    for round in 0..20_000u32 {
        let len = usize::from(next()) * 2;
        let mut bytes: Vec<u8> = (0..len).map(|_| next()).collect();
        if len >= 8 {
            bytes[..4].copy_from_slice(&(round % 24).to_ne_bytes());
            bytes[4..6].copy_from_slice(&((len - 8) as u16).to_ne_bytes());
        }
        // Somewhere an identifier that exists.
        if len > 20 {
            let at = 8 + usize::from(next()) % (len - 12);
            bytes[at..at + 4].copy_from_slice(&id.to_ne_bytes());
        }
        let _ = side.run(&bytes);
    }
}

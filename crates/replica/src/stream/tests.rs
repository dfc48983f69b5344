use std::net::{IpAddr, Ipv4Addr};

use remora_memory::Registry;
use remora_nic::cm::{CmEvent, ConnId, service_id};
use remora_nic::{ConnectAttr, Event, NicConfig, Route, TxBatch};

use super::*;
use crate::seal::End;

const MS: Time = 1_000_000;
const SENDS: u32 = 16;

/// A machine: a NIC, and what it keeps of its connections.
struct Machine {
    nic: Nic,
    streams: Streams,
    batch: TxBatch,
    /// Its connections, in the order in which they came to stand.
    connections: Vec<Qpn>,
    calls: Vec<(ConnId, Qpn)>,
    /// Bytes of whole frames that have come on each connection, and connections that broke.
    came: BTreeMap<Qpn, Vec<Vec<u8>>>,
    broken: Vec<Qpn>,
    /// It posts no receives.
    takes_nothing: bool,
}

/// Changes a packet of a machine.
type Meddle = Box<dyn FnMut(usize, &mut [u8])>;

/// Machines on a network that may change packets.
struct Network {
    machines: Vec<Machine>,
    now: Time,
    meddle: Meddle,
}

fn address(machine: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, machine as u8 + 1).into()
}

fn machine(number: usize, takes_nothing: bool) -> Machine {
    let mut nic = Nic::new(&NicConfig::new([number as u8; 32]), Arc::new(Registry::new([number as u8 + 100; 32])));
    let sizes = Sizes { receives: 64, sends: SENDS, favoured: 0, frame: 1 << 20 };
    let memory = |bytes: usize| Buffer::from_boxed(vec![0; bytes].into());
    let mut streams = Streams::new(&mut nic, sizes, memory(sizes.receive_bytes()), memory(sizes.send_bytes())).unwrap();
    if takes_nothing {
        // As if all were posted already.
        streams.posted = sizes.receives;
    }
    nic.listen(service_id(1)).unwrap();
    Machine {
        nic,
        streams,
        batch: TxBatch::new(),
        connections: Vec::new(),
        calls: Vec::new(),
        came: BTreeMap::new(),
        broken: Vec::new(),
        takes_nothing,
    }
}

impl Machine {
    fn turn(&mut self, now: Time) {
        if self.nic.poll_timeout().is_some_and(|due| due <= now) {
            self.nic.handle_timeout(now);
        }
        while let Some(event) = self.nic.poll_event() {
            match event {
                Event::Cm(CmEvent::ConnectRequest { conn, .. }) => {
                    let qpn = self.streams.open(&mut self.nic).unwrap();
                    self.nic.accept(now, conn, qpn, ConnectAttr::default(), &[]).unwrap();
                    self.connections.push(qpn);
                }
                Event::Cm(CmEvent::Established { conn, .. }) => {
                    let called = self.calls.iter().find(|call| call.0 == conn);
                    self.connections.extend(called.map(|call| call.1));
                }
                _ => {}
            }
        }
        while let Some(arrival) = self.streams.poll(&mut self.nic, now) {
            match arrival {
                Arrival::Bytes(qpn) => {
                    let mut inbound = self.streams.take(qpn);
                    while let Ok(Some(frame)) = inbound.next_frame() {
                        self.came.entry(qpn).or_default().push(inbound.bytes(frame).to_vec());
                    }
                    self.streams.give_back(qpn, inbound);
                }
                Arrival::Broken(qpn) => {
                    self.broken.push(qpn);
                    self.streams.close(&mut self.nic, qpn);
                }
            }
        }
        if !self.takes_nothing {
            self.streams.flush(&mut self.nic, now);
        }
    }
}

impl Network {
    fn new(machines: Vec<Machine>) -> Self {
        Self { machines, now: 0, meddle: Box::new(|_, _| {}) }
    }

    /// Machine `from` calls machine 0. Gives both ends.
    fn connect(&mut self, from: usize) -> (Qpn, Qpn) {
        let machine = &mut self.machines[from];
        let qpn = machine.streams.open(&mut machine.nic).unwrap();
        let route = Route { local: address(from), remote: address(0), link: 0 };
        let attr = ConnectAttr { path_mtu: 4096, ..ConnectAttr::default() };
        let conn = machine.nic.connect(self.now, qpn, route, service_id(1), attr, &[]).unwrap();
        machine.calls.push((conn, qpn));
        self.run(20);
        assert_eq!(self.machines[from].connections.last(), Some(&qpn));
        (qpn, *self.machines[0].connections.last().unwrap())
    }

    /// So many rounds of 0.1 ms.
    fn run(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.now += MS / 10;
            let now = self.now;
            self.machines.iter_mut().for_each(|machine| machine.turn(now));
            for from in 0..self.machines.len() {
                let mut leaves = Vec::new();
                let Machine { nic, batch, .. } = &mut self.machines[from];
                while nic.poll_transmit(now, batch) {
                    let Some(Route { remote: IpAddr::V4(remote), .. }) = batch.route() else { continue };
                    let to = usize::from(remote.octets()[3]) - 1;
                    leaves.extend(batch.packets().map(|packet| (to, packet.to_vec())));
                }
                for (to, mut packet) in leaves {
                    (self.meddle)(from, &mut packet);
                    self.machines[to].nic.handle_packet(now, 0, address(from), address(to), &packet);
                }
            }
        }
    }
}

/// Peers that take nothing hold all the buffers that they may have; another one gets its answers all the same, and those
/// that hold them are known.
#[test]
fn who_takes_nothing_keeps_nobody_else_waiting() {
    let hogs = 6;
    let mut machines = vec![machine(0, false)];
    machines.extend((0..hogs).map(|number| machine(1 + number, true)));
    machines.push(machine(1 + hogs, false));
    let mut network = Network::new(machines);
    let lazy: Vec<Qpn> = (0..hogs).map(|hog| network.connect(1 + hog).1).collect();
    for &qpn in &lazy {
        network.machines[0].streams.frame(qpn, |out| out.resize(out.len() + 40 * SLOT, 7));
    }
    network.run(20);
    let since = network.now;
    let (there, here) = network.connect(1 + hogs);
    for number in 0..200u8 {
        network.machines[0].streams.frame(here, |out| out.extend_from_slice(&[number; 300]));
        network.run(3);
    }
    network.run(20);
    let came = &network.machines[1 + hogs].came[&there];
    assert_eq!(came.len(), 200);
    assert!((0u8..).zip(came).all(|(number, frame)| frame == &[number; 300]));
    let Machine { streams, nic, .. } = &mut network.machines[0];
    let mut found: Vec<Qpn> = streams.lazy(network.now, network.now - since).collect();
    found.sort();
    let mut expected = lazy.clone();
    expected.sort();
    assert_eq!(found, expected);
    // They hold memory too, and the one with the most goes first.
    streams.frame(lazy[3], |out| out.resize(out.len() + 10 * SLOT, 7));
    assert_eq!(streams.heaviest(SLOT), Some(lazy[3]));
    assert_eq!(streams.heaviest(usize::MAX), None);
    lazy.iter().for_each(|&qpn| streams.close(nic, qpn));
    network.run(20);
    let pool = &network.machines[0].streams.pool;
    assert_eq!((pool.extras, pool.common, pool.free.len() as u32), (0, 1, SENDS), "all came back");
}

/// Both ends of a connection between machines 1 and 0, sealed.
fn sealed() -> (Network, Qpn, Qpn) {
    let mut network = Network::new(vec![machine(0, false), machine(1, false)]);
    let (there, here) = network.connect(1);
    let seal = |end| Some(Seal::new(&[7; 32], end, b"a nonce", b"another"));
    network.machines[1].streams.seal(there, seal(End::Caller));
    network.machines[0].streams.seal(here, seal(End::Answerer));
    (network, there, here)
}

#[test]
fn sealed_frames_of_any_length_come_whole_and_the_network_sees_nothing_of_them() {
    let (mut network, there, here) = sealed();
    let seen = std::rc::Rc::new(std::cell::Cell::new((0usize, 0usize)));
    let count = seen.clone();
    network.meddle = Box::new(move |_, packet| {
        let (packets, plain) = count.get();
        let shows = packet.windows(8).any(|bytes| bytes == [0xab; 8]);
        count.set((packets + 1, plain + usize::from(shows)));
    });
    let lengths = [0, 1, 17, SLOT - TAG - 4, SLOT - TAG - 3, SLOT, 5 * SLOT + 1, 3];
    for (from, qpn) in [(1, there), (0, here)] {
        for length in lengths {
            network.machines[from].streams.frame(qpn, |out| out.resize(out.len() + length, 0xab));
        }
    }
    network.run(60);
    for (at, qpn) in [(0, here), (1, there)] {
        let came: Vec<usize> = network.machines[at].came[&qpn].iter().map(Vec::len).collect();
        assert_eq!(came, lengths);
        assert!(network.machines[at].came[&qpn].iter().flatten().all(|&byte| byte == 0xab));
    }
    let (packets, plain) = seen.get();
    assert!(packets > 20 && plain == 0, "{plain} of {packets} packets show what they carry");
}

#[test]
fn one_bit_that_the_network_changes_ends_the_connection_and_nothing_of_the_record_is_taken() {
    let (mut network, there, here) = sealed();
    network.machines[1].streams.frame(there, |out| out.extend_from_slice(b"the first"));
    network.run(5);
    let mut done = false;
    network.meddle = Box::new(move |from, packet| {
        if from == 1 && packet.len() > 200 && !std::mem::replace(&mut done, true) {
            packet[150] ^= 4;
        }
    });
    network.machines[1].streams.frame(there, |out| out.extend_from_slice(&[9; 300]));
    network.run(20);
    assert_eq!(network.machines[0].came[&here], [b"the first"]);
    assert_eq!(network.machines[0].broken, [here]);
}

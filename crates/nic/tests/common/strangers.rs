//! Two connection managers that keep honest connections, and a stranger who forges: driven by bytes. He sends any message
//! from any address by any link at any time, and knows all but what only the two ends can: he may have guessed both
//! queue pairs and one communication id, never two and never a transaction id. Whatever he says, no honest connection
//! ends, honest calls and questions succeed, he gets no more than he sends, and memory is bounded.
//!
//! The property test and the fuzz target share this file.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use remora_nic::cm::*;
use remora_wire::Psn;
use remora_wire::cm::{Apr, CmMessage, Drep, Dreq, Lap, Mad, Mra, RdmaCmHeader, Rej, Rep, Req, Rtu, SidrRep, SidrReq};

const IPS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))];
const CALLS: u64 = service_id(7411);
const QUESTIONS: u64 = port_service_id(0x0111, 7174);
const MS: u64 = 1_000_000;
/// Honest connections at most.
const MOST: usize = 6;
const PLACES: usize = 16;

/// The bytes that decide everything; zeros when they are used up.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.byte()) % all.len()]
    }
}

/// An honest connection, as its two ends name it.
struct Honest {
    ids: [ConnId; 2],
    qpns: [u32; 2],
}

struct World {
    now: u64,
    ends: [Cm; 2],
    honest: Vec<Honest>,
    /// Of each end: what became of calls and questions, other than connections that strangers began.
    established: [BTreeMap<ConnId, QpParams>; 2],
    resolved: Vec<ConnId>,
    next_qpn: u32,
    /// The other end of the connection that each end has accepted, by the caller's queue pair.
    accepted: [BTreeMap<u32, ConnId>; 2],
}

/// Runs what `bytes` say.
pub fn drive(bytes: &[u8]) {
    let mut world = World::new();
    let mut input = Input(bytes);
    for end in [0, 1] {
        world.call(end);
    }
    for _ in 0..400 {
        if input.0.is_empty() {
            break;
        }
        match input.byte() % 16 {
            0 => world.advance(u64::from(input.byte()) * 2 * MS),
            1 => world.advance(1000 * MS),
            2 if world.honest.len() < MOST => world.call(usize::from(input.byte() & 1)),
            3 if world.honest.len() > 2 => world.hang_up(usize::from(input.byte())),
            4 => world.ask(usize::from(input.byte() & 1)),
            _ => world.forge(&mut input),
        }
        world.check();
    }
    // Whatever lies there yet comes to nothing: the peers of all honest connections still answer.
    for _ in 0..12 {
        world.advance(1000 * MS);
        world.check();
    }
}

impl World {
    fn new() -> Self {
        let config = CmConfig {
            response_timeout: 100 * MS,
            max_connections: 256,
            max_half_open: PLACES,
            peer_timeout: 5000 * MS,
            listen_grace: 50 * MS,
            ..CmConfig::default()
        };
        let mut ends = [Cm::new(1, config.clone()), Cm::new(2, config)];
        for end in &mut ends {
            for service in [CALLS, QUESTIONS] {
                end.listen(service).expect("nobody listens yet");
            }
        }
        Self {
            now: 0,
            ends,
            honest: Vec::new(),
            established: Default::default(),
            resolved: Vec::new(),
            next_qpn: 0x100,
            accepted: Default::default(),
        }
    }

    fn params(&mut self) -> QpParams {
        self.next_qpn += 1;
        QpParams {
            qpn: self.next_qpn,
            starting_psn: Psn::new(self.next_qpn * 77),
            path_mtu: 3,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry: 7,
            ack_timeout: 14,
            srq: false,
        }
    }

    /// Users take what came, and the network carries what waits to be sent, until nothing is left.
    fn settle(&mut self) {
        let mut mad = [0; 256];
        loop {
            let mut idle = true;
            for end in 0..2 {
                while let Some(event) = self.ends[end].poll_event() {
                    idle = false;
                    self.event(end, event);
                }
                while let Some(to) = self.ends[end].poll_transmit(&mut mad) {
                    idle = false;
                    // What goes to a stranger's address is not answered, nor what goes by another link.
                    if (to.to, to.link) == (IPS[1 - end], 0) {
                        self.ends[1 - end].handle_mad(self.now, 0, IPS[end], IPS[1 - end], &mad);
                    }
                }
            }
            if idle {
                return;
            }
        }
    }

    fn event(&mut self, end: usize, event: CmEvent) {
        match event {
            CmEvent::ConnectRequest { conn, remote, .. } => {
                let params = QpParams { path_mtu: remote.path_mtu, ..self.params() };
                // A forged call may be over by now.
                if self.ends[end].accept(self.now, conn, params, &[]).is_ok() {
                    self.accepted[end].insert(remote.qpn, conn);
                }
            }
            CmEvent::ServiceRequest { conn, .. } => {
                let _ = self.ends[end].answer_service(self.now, conn, sidr_status::VALID, (7, 8), &[]);
            }
            CmEvent::ServiceResolved { conn, status, .. } => {
                assert_eq!(status, sidr_status::VALID, "{conn:?}");
                self.resolved.push(conn);
            }
            CmEvent::Established { conn, remote, .. } => drop(self.established[end].insert(conn, remote)),
            CmEvent::Disconnected { conn } | CmEvent::Rejected { conn, .. } | CmEvent::Unreachable { conn } => {
                let honest = self.honest.iter().any(|honest| honest.ids[end] == conn);
                assert!(!honest, "end {end} lost an honest connection: {event:?}");
                self.established[end].remove(&conn);
            }
            CmEvent::Response { .. } | CmEvent::TimewaitExit { .. } => {}
        }
    }

    fn advance(&mut self, by: u64) {
        let until = self.now + by;
        // Each round is a timer that was due.
        while let Some(at) = self.ends.iter().filter_map(Cm::poll_timeout).min().filter(|at| *at <= until) {
            self.now = at.max(self.now);
            let now = self.now;
            self.ends.iter_mut().for_each(|end| end.handle_timeout(now));
            self.settle();
        }
        self.now = until;
    }

    /// An honest call: it stands at both ends, at the latest after a few repetitions.
    fn call(&mut self, end: usize) {
        let params = self.params();
        let conn = self.ends[end].connect(self.now, IPS[end], IPS[1 - end], CALLS, params, &[]).expect("room");
        self.settle();
        for _ in 0..10 {
            if !self.established[end].contains_key(&conn) {
                self.advance(1000 * MS);
            }
        }
        let theirs = *self.established[end].get(&conn).expect("an honest call succeeds");
        let other = self.accepted[1 - end][&params.qpn];
        assert!(self.established[1 - end].contains_key(&other), "at both ends");
        let mut honest = Honest { ids: [conn, other], qpns: [params.qpn, theirs.qpn] };
        if end == 1 {
            honest.ids.reverse();
            honest.qpns.reverse();
        }
        self.honest.push(honest);
    }

    fn hang_up(&mut self, which: usize) {
        let Honest { ids, .. } = self.honest.swap_remove(which % self.honest.len());
        self.ends[which & 1].disconnect(self.now, ids[which & 1]).expect("it stands");
        self.settle();
        for (established, id) in self.established.iter().zip(ids) {
            assert!(!established.contains_key(&id), "it is over at both ends");
        }
    }

    fn ask(&mut self, end: usize) {
        let (local, remote) = (IPS[end], IPS[1 - end]);
        let call = ConnectCall { local, remote, service_id: QUESTIONS, source_port: 1, private_data: &[] };
        let conn = self.ends[end].resolve_service(self.now, call).expect("room");
        self.settle();
        assert!(self.resolved.contains(&conn), "an honest question is answered");
    }

    /// The stranger sends one message to one end. He has of one honest connection what he may have guessed.
    fn forge(&mut self, input: &mut Input<'_>) {
        let (end, count) = (usize::from(input.byte() & 1), self.honest.len());
        let honest = &self.honest[usize::from(input.byte()) % count];
        let (ours, theirs) = (honest.ids[end].0, honest.ids[1 - end].0);
        let (our_qpn, their_qpn) = (honest.qpns[end], honest.qpns[1 - end]);
        let one = u32::from(input.byte());
        // Both together are the connection's secret: whoever has them, a transaction id or a queue pair is one end.
        let (local_comm_id, remote_comm_id) =
            input.one_of(&[(theirs, one), (one, ours), (theirs ^ 1, ours), (theirs, ours ^ 1), (0, ours), (0, 0)]);
        let both = if input.byte() & 1 == 0 { (theirs, ours) } else { (local_comm_id, remote_comm_id) };
        let stranger = IpAddr::V4(Ipv4Addr::new(10, 9, input.byte() & 7, input.byte()));
        let from = input.one_of(&[IPS[1 - end], IPS[1 - end], IPS[end], stranger]);
        let link = u8::from(input.byte() & 7 == 0);
        let qpn = input.one_of(&[their_qpn, our_qpn, 0, one + 2, 0x9000 | one]);
        let reason = input.one_of(&[3, 4, 6, 8, 10, 28]);
        let message = match input.byte() % 14 {
            0..=2 => self.forged_req(input, from, end, (local_comm_id, qpn)),
            3 => CmMessage::Rep(Rep {
                local_comm_id: both.0,
                remote_comm_id: both.1,
                local_qpn: qpn,
                responder_resources: 1,
                initiator_depth: 1,
                ..Rep::default()
            }),
            4 => CmMessage::Rtu(Rtu { local_comm_id: both.0, remote_comm_id: both.1, ..Rtu::default() }),
            5 | 6 => CmMessage::Rej(Rej {
                local_comm_id: both.0,
                remote_comm_id: both.1,
                reason,
                message_rejected: input.byte() & 3,
                info_len: input.one_of(&[0, 8]),
                ..Rej::default()
            }),
            7 => CmMessage::Mra(Mra {
                local_comm_id: both.0,
                remote_comm_id: both.1,
                service_timeout: input.byte() & 31,
                ..Mra::default()
            }),
            8 => CmMessage::Dreq(Dreq { local_comm_id, remote_comm_id, remote_qpn: our_qpn, ..Dreq::default() }),
            9 => CmMessage::Drep(Drep { local_comm_id: both.0, remote_comm_id: both.1, ..Drep::default() }),
            10 => CmMessage::SidrReq(SidrReq {
                request_id: one,
                pkey: 0xffff,
                service_id: input.one_of(&[QUESTIONS, 0, CALLS]),
                private_data: addressed(from, IPS[end]),
            }),
            11 => {
                let mut private_data = [0; 136];
                private_data[..8].copy_from_slice(&u64::from(input.byte()).to_be_bytes());
                let (request_id, service_id) = (one, input.one_of(&[0, QUESTIONS]));
                CmMessage::SidrRep(SidrRep { request_id, service_id, status: 1, private_data, ..SidrRep::default() })
            }
            12 => CmMessage::Lap(Lap { local_comm_id: both.0, remote_comm_id: both.1 }),
            _ => CmMessage::Apr(Apr { local_comm_id: both.0, remote_comm_id: both.1, ..Apr::default() }),
        };
        let mut bytes = [0; 256];
        Mad { status: 0, transaction_id: u64::from(input.byte()), message }.emit(&mut bytes);
        let before = self.ends[end].counters().challenges;
        self.ends[end].handle_mad(self.now, link, from, IPS[end], &bytes);
        // One answer at most, and one question to the peer of an honest connection.
        let mut answers = 0;
        let mut mads = Vec::new();
        while let Some(to) = self.ends[end].poll_transmit(&mut bytes) {
            answers += 1;
            mads.push((to, bytes));
        }
        let challenges = (self.ends[end].counters().challenges - before) as usize;
        assert!(answers <= 1 + challenges && challenges <= 1, "{answers} answers");
        for (to, mad) in mads {
            if (to.to, to.link) == (IPS[1 - end], 0) {
                self.ends[1 - end].handle_mad(self.now, 0, IPS[end], IPS[1 - end], &mad);
            }
        }
        self.settle();
    }

    fn forged_req(&self, input: &mut Input<'_>, from: IpAddr, end: usize, (id, qpn): (u32, u32)) -> CmMessage {
        CmMessage::Req(Req {
            local_comm_id: if input.byte() & 3 == 0 { id } else { u32::from(input.byte()) << 8 | 1 },
            service_id: input.one_of(&[CALLS, CALLS, CALLS, QUESTIONS, 0]),
            local_qpn: if input.byte() & 1 == 0 { qpn } else { 0x10_0000 | u32::from(input.byte()) },
            path_mtu: 3,
            responder_resources: 1,
            initiator_depth: 1,
            max_cm_retries: 15,
            local_gid: gid(from),
            remote_gid: gid(IPS[end]),
            private_data: addressed(from, IPS[end]),
            ..Req::default()
        })
    }

    fn check(&self) {
        for end in &self.ends {
            // Honest ones, those that strangers have begun, and what is left of both for the time wait.
            assert!(end.connections() <= 256, "{}", end.connections());
        }
        for (end, established) in self.established.iter().enumerate() {
            assert!(self.honest.iter().all(|honest| established.contains_key(&honest.ids[end])));
        }
    }
}

fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn addressed<const N: usize>(src: IpAddr, dst: IpAddr) -> [u8; N] {
    let mut private_data = [0; N];
    RdmaCmHeader { src_port: 1, src, dst }.emit(&mut private_data);
    private_data
}

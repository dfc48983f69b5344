//! Two engines driven by bytes: operations, packets that are lost, doubled, swapped, bent or made up, and time.
//! Whatever the bytes say, the engines do not panic, bytes outside regions stay as they are, and work completes once,
//! in order.
//!
//! The property test and the fuzz target share this file.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use remora_memory::{Access, Binding, Buffer, DeregisterError, Pd, Region, Registry, Translation, WindowType};
use remora_nic::*;
use remora_wire::Psn;
use remora_wire::rpc::RpcHeader;

const IPS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))];
const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 0, 0, 1));
const MEMORY: usize = 16 << 10;
const AT: usize = 4 << 10;
const LEN: usize = 8 << 10;
const GUARD: u8 = 0xc5;
const KERNEL: u64 = 7;
const RIGHTS: Access = ALL_REMOTE.union(Access::LOCAL_WRITE).union(Access::MW_BIND).union(Access::INVALIDATE);
/// The queue pairs that each end has.
const KINDS: [QpType; 3] = [QpType::Rc, QpType::Ud, QpType::Uc];
/// Packets under way in one direction at most.
const WIRE: usize = 64;

/// The bytes that decide everything; zeros when they are used up.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn short(&mut self) -> usize {
        usize::from(self.byte()) << 8 | usize::from(self.byte())
    }

    fn take(&mut self, n: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        head
    }

    /// True once in `n` times.
    fn one_in(&mut self, n: u8) -> bool {
        self.byte() % n == 1
    }
}

/// A queue pair and what is posted on it.
struct Queue {
    qp: Qpn,
    kind: QpType,
    /// Sends: id, and whether a completion must come even on success.
    sends: VecDeque<(u64, bool)>,
    receives: VecDeque<u64>,
    locals: Vec<u64>,
}

struct End {
    nic: Nic,
    pd: Pd,
    cq: CqId,
    buffer: Buffer,
    region: Arc<Region>,
    /// A memory window of each type, by the keys they had at first.
    windows: [u32; 2],
    queues: Vec<Queue>,
    requests: Vec<RpcRequest>,
    batch: TxBatch,
    /// Packets under way from here.
    wire: VecDeque<Vec<u8>>,
}

impl End {
    fn new(seed: u8) -> Self {
        let registry = Arc::new(Registry::new([seed; 32]));
        let mut nic = Nic::new(&NicConfig { max_stream_chunks: 4, ..NicConfig::new([seed; 32]) }, registry.clone());
        let pd = registry.alloc_pd();
        let buffer = Buffer::anonymous(MEMORY).expect("memory");
        buffer.fill(0, MEMORY, GUARD).expect("in bounds");
        let region = registry.register(pd, &buffer, AT, LEN, None, RIGHTS).expect("region");
        let windows = [WindowType::One, WindowType::Two].map(|kind| registry.alloc_window(pd, kind).expect("room"));
        let cq = nic.create_cq(256).expect("completion queue");
        nic.deploy(KERNEL);
        let mut end = Self {
            nic,
            pd,
            cq,
            buffer,
            region,
            windows,
            queues: Vec::new(),
            requests: Vec::new(),
            batch: TxBatch::new(),
            wire: VecDeque::new(),
        };
        for kind in KINDS {
            let queue = end.create(kind);
            end.queues.push(queue);
        }
        end
    }

    fn create(&mut self, kind: QpType) -> Queue {
        let init = QpInit {
            max_send_wr: 8,
            max_recv_wr: 8,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline: 64,
            max_rpc: 3,
            ..QpInit::new(kind, self.pd, self.cq, self.cq)
        };
        let qp = self.nic.create_qp(init).expect("room");
        Queue { qp, kind, sends: VecDeque::new(), receives: VecDeque::new(), locals: Vec::new() }
    }

    /// A list element, right more often than not.
    fn sge(&self, input: &mut Input<'_>) -> Sge {
        let (at, len) = (input.short() % LEN, input.short() % 3000);
        let len = if input.one_in(8) { len } else { len.min(LEN - at) };
        let lkey = if input.one_in(16) { 5 } else { self.region.key() };
        Sge { va: self.region.va() + at as u64, len: len as u32, lkey }
    }

    fn window_keys(&self) -> [u32; 2] {
        self.windows.map(|key| self.nic.registry().window_key(key).expect("never deallocated"))
    }

    /// A binding of a window, right more often than not.
    fn binding(&self, input: &mut Input<'_>) -> SendOp {
        let part = self.sge(input);
        let key = self.window_keys()[usize::from(input.byte() & 1)];
        let new_key = key ^ u32::from(input.byte() & 3);
        let access = Access::from_bits_truncate(u32::from(input.byte()) & 0xe);
        let (region, va, len) = (part.lkey, part.va, u64::from(part.len));
        SendOp::Bind(Binding { key, new_key, region, va, len, access, zero_based: input.one_in(4) })
    }

    /// Every completion is one that is due, and in its turn.
    fn check_completions(&mut self) {
        while let Some(wc) = self.nic.poll_cq(self.cq) {
            let queue = self.queues.iter_mut().find(|q| q.qp == wc.qpn).expect("of a live queue pair");
            match wc.opcode {
                WcOpcode::Recv | WcOpcode::RecvWriteImm => {
                    assert_eq!(queue.receives.pop_front(), Some(wc.wr_id), "receives complete in order: {wc:?}");
                }
                WcOpcode::LocalRpc => {
                    let at = queue.locals.iter().position(|id| *id == wc.wr_id);
                    queue.locals.swap_remove(at.unwrap_or_else(|| panic!("a local call completes once: {wc:?}")));
                }
                _ => loop {
                    let Some((id, signaled)) = queue.sends.pop_front() else { panic!("was not posted: {wc:?}") };
                    if id == wc.wr_id {
                        assert!(signaled || wc.status != WcStatus::Success, "was not signalled: {wc:?}");
                        break;
                    }
                    assert!(!signaled, "{wc:?} overtook {id}");
                },
            }
        }
        while self.nic.poll_event().is_some() {}
    }

    fn check_guards(&self) {
        let mut bytes = [0; MEMORY];
        self.buffer.read(0, &mut bytes).expect("in bounds");
        let guards = bytes[..AT].iter().chain(&bytes[AT + LEN..]);
        assert_eq!(guards.filter(|&&b| b != GUARD).count(), 0, "bytes outside the region changed");
    }
}

/// Both ends and the time.
struct World {
    ends: [End; 2],
    now: Time,
    id: u64,
}

/// Does what `bytes` say. Panics where the engines break a promise.
pub fn drive(bytes: &[u8]) {
    let mut world = World { ends: [End::new(1), End::new(2)], now: 0, id: 0 };
    let mut input = Input(bytes);
    let setup = input.byte();
    world.connect(setup);
    while !input.0.is_empty() {
        world.act(&mut input);
        world.ends.iter_mut().for_each(End::check_completions);
    }
    world.finish();
}

impl World {
    /// Brings every queue pair that is in RESET to RTS.
    fn connect(&mut self, setup: u8) {
        let numbers = [0, 1, 2].map(|queue: usize| [0, 1].map(|side: usize| self.ends[side].queues[queue].qp));
        for pair in numbers {
            for side in 0..2 {
                let (qp, peer) = (pair[side], pair[1 - side]);
                let nic = &mut self.ends[side].nic;
                if nic.qp_state(qp) != Ok(QpState::Reset) {
                    continue;
                }
                nic.to_init(qp, ALL_REMOTE, 17).expect("INIT");
                let rtr = RtrAttr {
                    route: Route { local: IPS[side], remote: IPS[1 - side], link: 0 },
                    dest_qp: peer.0,
                    rq_psn: Psn::new(0xff_fffa),
                    path_mtu: [256, 512, 1024, 4096][usize::from(setup & 3)],
                    max_dest_rd_atomic: 2,
                    min_rnr_timer: 1,
                };
                nic.to_rtr(qp, rtr).expect("RTR");
                let rts = RtsAttr {
                    sq_psn: Psn::new(0xff_fffa),
                    timeout: setup >> 2 & 7,
                    retry_count: 3,
                    rnr_retry: 3,
                    max_rd_atomic: setup >> 5 & 3,
                };
                nic.to_rts(qp, rts).expect("RTS");
            }
        }
    }

    fn act(&mut self, input: &mut Input<'_>) {
        let what = input.byte();
        let side = usize::from(what >> 7);
        match what & 0x7f {
            0..40 => self.post_send(side, input),
            40..52 => self.post_recv(side, input),
            52..60 => {
                self.transmit(side);
            }
            60..72 => self.deliver(side, 0),
            72..76 => self.deliver(side, input.byte().into()),
            76..78 => {
                self.ends[side].wire.pop_front();
            }
            78..80 => {
                let again = self.ends[side].wire.front().cloned();
                self.ends[side].wire.extend(again);
            }
            80..86 => self.bend(side, input),
            86..90 => self.make_up(side, input),
            90..96 => self.pass_time(),
            96..102 => self.call(side, input),
            102..106 => self.run_kernel(side, input),
            106..110 => self.change_state(side, input),
            110..112 => self.replace(side, input),
            112..113 => self.renew_region(side),
            113..117 => self.modify(side, input),
            117..120 => self.join_or_leave(side, input),
            120..121 => self.resize(side, input),
            121..122 => self.reregister(side, input),
            _ => self.settle(),
        }
    }

    fn next_id(&mut self) -> u64 {
        self.id += 1;
        self.id
    }

    fn post_send(&mut self, side: usize, input: &mut Input<'_>) {
        let wr_id = self.next_id();
        let (peer_va, peer_key) = (self.ends[1 - side].region.va(), self.ends[1 - side].region.key());
        let to_qp = self.ends[1 - side].queues[1].qp.0;
        let peer_windows = self.ends[1 - side].window_keys();
        let end = &mut self.ends[side];
        let flags = input.byte();
        let queue = [0, 0, 2, 1][usize::from(flags >> 5 & 3)];
        let at = input.short() % LEN;
        let va = peer_va.wrapping_add(if flags & 7 == 7 { at as u64 } else { at as u64 & !7 });
        let rkey = match input.byte() % 32 {
            0 => 9,
            n @ (1 | 2) => peer_windows[usize::from(n) - 1],
            _ => peer_key,
        };
        let op = match input.byte() % 13 {
            0 => SendOp::Send,
            1 => SendOp::SendImm(1),
            2 => SendOp::SendInvalidate([peer_key, peer_windows[1], peer_windows[0], 3][usize::from(flags & 3)]),
            10 | 11 => end.binding(input),
            12 => SendOp::LocalInvalidate(end.window_keys()[1]),
            3 => SendOp::Write { va, rkey },
            4 => SendOp::WriteImm { va, rkey, imm: 2 },
            5 => SendOp::Read { va, rkey },
            6 => SendOp::CompareSwap { va, rkey, compare: 0, swap: 1 },
            7 => SendOp::FetchAdd { va, rkey, add: 1 },
            8 => SendOp::Rpc { op: KERNEL },
            _ => SendOp::RpcWrite { op: KERNEL },
        };
        let mut list = [end.sge(input), end.sge(input)];
        if matches!(op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }) {
            list[0].len = 8;
        }
        if matches!(op, SendOp::Read { .. }) && flags & 0x80 != 0 {
            list[1].len = 0;
        }
        let (list, inline) = (&list[..1 + usize::from(flags & 1)], [7; 64]);
        let local = matches!(op, SendOp::Bind(_) | SendOp::LocalInvalidate(_));
        let data = if local {
            Data::List(&[])
        } else if flags & 2 != 0 {
            Data::Inline(&inline[..at % 65])
        } else {
            Data::List(list)
        };
        let mut wr = SendWr::new(wr_id, op, data);
        (wr.signaled, wr.fence, wr.solicited) = (flags & 4 == 0, flags & 8 != 0, flags & 16 != 0);
        if queue == 1 {
            let (remote, qpn) = if flags & 0x18 == 0x18 { (GROUP, MULTICAST_QP) } else { (IPS[1 - side], to_qp) };
            let route = Route { local: IPS[side], remote, link: 0 };
            wr.dest = Some(UdDest { route, qpn, qkey: 17 });
        }
        if end.nic.post_send(end.queues[queue].qp, &wr).is_ok() {
            end.queues[queue].sends.push_back((wr_id, wr.signaled));
        }
    }

    fn post_recv(&mut self, side: usize, input: &mut Input<'_>) {
        let wr_id = self.next_id();
        let end = &mut self.ends[side];
        let queue = [0, 0, 1, 2][usize::from(input.byte() & 3)];
        let list = [end.sge(input), end.sge(input)];
        if end.nic.post_recv(end.queues[queue].qp, wr_id, &list).is_ok() {
            end.queues[queue].receives.push_back(wr_id);
        }
    }

    /// One batch onto the wire. What the wire has no room for is lost.
    fn transmit(&mut self, side: usize) -> bool {
        let End { nic, batch, wire, .. } = &mut self.ends[side];
        let any = nic.poll_transmit(self.now, batch);
        assert_eq!(any, !batch.is_empty());
        for packet in batch.packets() {
            assert!(packet.len() >= 16 && packet.len() % 4 == 0, "packets are whole");
            if wire.len() < WIRE {
                wire.push_back(packet.to_vec());
            }
        }
        assert!(any || !nic.wants_transmit(), "nothing was sent, though something waits");
        any
    }

    fn deliver(&mut self, side: usize, index: usize) {
        let wire = &mut self.ends[side].wire;
        if let Some(packet) = wire.len().checked_sub(1).and_then(|last| wire.remove(index.min(last))) {
            self.arrive(side, &packet);
        }
    }

    fn arrive(&mut self, from: usize, packet: &[u8]) {
        let to_group = packet.len() > 8 && packet[5..8] == MULTICAST_QP.to_be_bytes()[1..];
        let dst = if to_group { GROUP } else { IPS[1 - from] };
        self.ends[1 - from].nic.handle_packet(self.now, 0, IPS[from], dst, packet);
    }

    /// The next packet arrives with some bits changed, or cut, in a way that its ICRC does not tell.
    fn bend(&mut self, side: usize, input: &mut Input<'_>) {
        let Some(mut packet) = self.ends[side].wire.pop_front() else { return };
        for _ in 0..1 + input.byte() % 3 {
            let (at, with) = (usize::from(input.byte()) % packet.len(), input.byte());
            packet[at] ^= with;
        }
        if input.one_in(8) {
            packet.truncate(usize::from(input.byte()));
        }
        self.arrive(side, &packet);
    }

    /// A packet out of nothing, most often for a queue pair that lives and with the PSN that it expects.
    fn make_up(&mut self, side: usize, input: &mut Input<'_>) {
        let len = usize::from(input.byte());
        let mut packet = input.take(len).to_vec();
        let end = &self.ends[1 - side];
        if packet.len() >= 12 && packet[1] & 1 == 0 {
            let queue = &end.queues[usize::from(packet[1] >> 1 & 3).min(2)];
            packet[1] &= 0x30;
            packet[2..4].copy_from_slice(&[0xff, 0xff]);
            packet[5..8].copy_from_slice(&queue.qp.0.to_be_bytes()[1..]);
            if let Ok((_, expected)) = end.nic.qp_psns(queue.qp) {
                let psn = expected + u32::from(packet[9] & 3);
                packet[9..12].copy_from_slice(&psn.get().to_be_bytes()[1..]);
            }
        }
        self.arrive(side, &packet);
    }

    fn pass_time(&mut self) {
        let next = self.ends.iter().filter_map(|end| end.nic.poll_timeout()).min();
        self.now = self.now.max(next.unwrap_or(0));
        for end in &mut self.ends {
            end.nic.handle_timeout(self.now);
            assert!(end.nic.poll_timeout().is_none_or(|at| at > self.now), "a timer that is due has not run");
        }
    }

    fn call(&mut self, side: usize, input: &mut Input<'_>) {
        let id = self.next_id();
        let kind = input.byte();
        let end = &mut self.ends[side];
        let header = RpcHeader {
            reply_va: end.region.va() + (input.short() % LEN) as u64,
            reply_rkey: end.region.key(),
            reply_capacity: input.short() as u32 % 2048,
            tag: 1,
            flags: 0,
        };
        let op = if kind & 4 == 0 { KERNEL } else { 8 };
        let params = [3; 400];
        let params = &params[..input.short() % 401];
        let qp = end.queues[0].qp;
        match kind & 3 {
            0 | 1 if end.nic.post_rpc(qp, id, op, &header, params).is_ok() => {
                end.queues[0].sends.push_back((id, true));
            }
            2 => {
                let list = [end.sge(input)];
                if end.nic.post_rpc_write(qp, id, op, &header, params, &list).is_ok() {
                    end.queues[0].sends.push_back((id, true));
                }
            }
            3 => {
                // It may complete before the call returns.
                end.queues[0].locals.push(id);
                if end.nic.post_local_rpc(qp, id, op, &header, params).is_err() {
                    end.queues[0].locals.pop();
                }
            }
            _ => {}
        }
    }

    fn run_kernel(&mut self, side: usize, input: &mut Input<'_>) {
        let what = input.byte();
        let End { nic, requests, .. } = &mut self.ends[side];
        if what & 1 == 0 {
            requests.extend(nic.poll_rpc());
        }
        while let Some(chunk) = nic.poll_stream().filter(|_| what & 2 == 0) {
            nic.recycle(chunk.data);
        }
        if let Some(mut request) = requests.len().checked_sub(1).map(|last| requests.remove(input.short() % (last + 1)))
        {
            request.reply.resize(input.short() % 3000, 1);
            nic.rpc_reply(request, what >> 4);
        }
    }

    fn change_state(&mut self, side: usize, input: &mut Input<'_>) {
        let what = input.byte();
        let queue = usize::from(what >> 6).min(2);
        let End { nic, queues, cq, .. } = &mut self.ends[side];
        let qp = queues[queue].qp;
        match what % 8 {
            0 => nic.to_error(qp).expect("from every state"),
            1 | 2 => {
                // Both ends start anew.
                for end in &mut self.ends {
                    end.check_completions();
                    let lived = &mut end.queues[queue];
                    end.nic.to_reset(lived.qp).expect("from every state");
                    (lived.sends, lived.receives, lived.locals) = Default::default();
                }
                self.connect(input.byte());
            }
            3 | 4 => {
                let _ = nic.to_sqd(qp);
            }
            5 | 6 => {
                let _ = nic.to_rts(qp, RtsAttr::default());
            }
            _ => nic.arm_cq(*cq, what & 8 != 0).expect("live"),
        }
    }

    /// Destroys a queue pair and makes another: the peer's is connected to nobody then.
    fn replace(&mut self, side: usize, input: &mut Input<'_>) {
        let which = usize::from(input.byte() % 3);
        let end = &mut self.ends[side];
        end.check_completions();
        let attached = end.nic.detach(end.queues[which].qp, GROUP).is_ok();
        assert!(!attached || end.queues[which].kind == QpType::Ud);
        end.nic.destroy_qp(end.queues[which].qp).expect("in no group");
        end.queues[which] = end.create(end.queues[which].kind);
        self.connect(input.byte());
    }

    /// Any attributes, with any mask or with the one that the arrow wants.
    fn modify(&mut self, side: usize, input: &mut Input<'_>) {
        use QpState::*;
        let what = input.byte();
        let queue = usize::from(what >> 6).min(2);
        let route = Route { local: IPS[side], remote: IPS[1 - side], link: 0 };
        let peer = self.ends[1 - side].queues[queue].qp;
        let end = &mut self.ends[side];
        end.check_completions();
        let state = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err, Rts][usize::from(what & 7)];
        let (qp, kind) = (end.queues[queue].qp, end.queues[queue].kind);
        let now = end.nic.qp_attr(qp).expect("live");
        let attr = QpAttr {
            state,
            cur_state: now.state,
            notify_drained: what & 8 != 0,
            access: Access::from_bits_truncate(u32::from(input.byte())),
            port: 1,
            qkey: 17,
            av: Some(AddressVector::new(route)),
            path_mtu: [256, 1024, 4096, 1][usize::from(input.byte() & 3)],
            timeout: input.byte() & 7,
            retry_count: input.byte() & 7,
            rnr_retry: input.byte() & 3,
            max_rd_atomic: input.byte() & 3,
            max_dest_rd_atomic: input.byte() & 3,
            dest_qp: peer.0,
            ..now
        };
        let wanted = qp_masks(kind, now.state, state);
        let mask = match (what & 16 == 0, wanted) {
            (true, Some((required, optional))) => {
                required | optional & QpMask::from_bits_truncate(input.short() as u32) | QpMask::STATE
            }
            _ => QpMask::from_bits_truncate((input.short() << 6 | input.short()) as u32),
        };
        let done = end.nic.modify_qp(qp, &attr, mask);
        let reached = if mask.contains(QpMask::STATE) { state } else { now.state };
        if done.is_ok() {
            let lived = &mut end.queues[queue];
            match reached {
                Reset => (lived.sends, lived.receives, lived.locals) = Default::default(),
                _ => assert!(end.nic.qp_state(qp) == Ok(reached) || end.nic.qp_state(qp) == Ok(Err)),
            }
        } else {
            assert_eq!(end.nic.qp_attr(qp), Ok(now), "a refusal changes nothing");
        }
    }

    fn join_or_leave(&mut self, side: usize, input: &mut Input<'_>) {
        let what = input.byte();
        let End { nic, queues, .. } = &mut self.ends[side];
        let qp = queues[usize::from(what >> 1 & 3).min(2)].qp;
        let _ = if what & 1 == 0 { nic.attach(qp, GROUP) } else { nic.detach(qp, GROUP) };
    }

    fn resize(&mut self, side: usize, input: &mut Input<'_>) {
        let End { nic, cq, .. } = &mut self.ends[side];
        let (waiting, capacity) = (nic.cq_len(*cq), input.byte());
        let done = nic.resize_cq(*cq, capacity.into());
        assert_eq!(done.is_ok(), usize::from(capacity) >= waiting.max(1));
        nic.resize_cq(*cq, 256).expect("room for all there can be");
    }

    /// Registers memory again under the key that it has, now and then with other rights.
    fn reregister(&mut self, side: usize, input: &mut Input<'_>) {
        let End { nic, buffer, region, .. } = &mut self.ends[side];
        let memory = Translation { buffer, offset: AT, len: LEN, va: None };
        let rights = if input.one_in(4) { RIGHTS - Access::REMOTE_READ } else { RIGHTS };
        if let Ok(again) = nic.registry().reregister(region.key(), None, Some(memory), Some(rights)) {
            *region = again;
        }
    }

    fn renew_region(&mut self, side: usize) {
        let End { nic, pd, buffer, region, .. } = &mut self.ends[side];
        let registry = nic.registry().clone();
        // A SEND with invalidate may have been first.
        match registry.deregister(region.key()) {
            // It stays as long as windows are bound to it.
            Err(DeregisterError::Bound(_)) => {}
            _ => *region = registry.register(*pd, buffer, AT, LEN, None, RIGHTS).expect("region"),
        }
    }

    /// Lets everything that waits be sent and arrive.
    fn settle(&mut self) {
        for _ in 0..50 {
            let mut quiet = true;
            for side in 0..2 {
                while self.transmit(side) && self.ends[side].wire.len() < WIRE {}
                while !self.ends[side].wire.is_empty() {
                    self.deliver(side, 0);
                    quiet = false;
                }
            }
            self.ends.iter_mut().for_each(End::check_completions);
            if quiet {
                return;
            }
        }
    }

    /// Everything ends: what must complete has, and nothing is left over.
    fn finish(&mut self) {
        self.settle();
        for end in &mut self.ends {
            end.check_completions();
            for n in 0..KINDS.len() {
                end.nic.to_error(end.queues[n].qp).expect("from every state");
            }
            for request in std::mem::take(&mut end.requests) {
                end.nic.rpc_reply(request, 0);
            }
            while let Some(request) = end.nic.poll_rpc() {
                end.nic.rpc_reply(request, 0);
            }
            end.check_completions();
            end.check_guards();
            for queue in &end.queues {
                assert!(queue.sends.iter().all(|(_, signaled)| !signaled), "never completed: {:?}", queue.sends);
                assert!(queue.receives.is_empty(), "never completed: {:?}", queue.receives);
                assert!(queue.locals.is_empty(), "never completed: {:?}", queue.locals);
                assert_eq!(end.nic.sends_outstanding(queue.qp), Ok(0));
            }
        }
    }
}

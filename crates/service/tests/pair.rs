//! A client and a node in virtual time, over a network that loses, doubles, reorders and damages packets: both halves of
//! the engine, with kernels in every place, and no world but a loop.

#[path = "../../nic/tests/common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use common::{Faults, Pair, Setup};
use rand_core::RngCore;
use remora_kernel::{
    Builtins, Call, ConsistencyParams, Kernel, Limited, Limits, Placement, Runner, Status, crc64, host_runner, op,
    runner,
};
use remora_memory::{Access, Buffer, Pd, Region, Registry};
use remora_nic::*;
use remora_service::*;
use remora_wire::rpc::RpcHeader;

const OBJECT: usize = 256;
/// Calls that a client makes in one run, of which these may be under way at once.
const TAGS: u32 = 60;
const DEPTH: u32 = 12;

/// Keeps verbs until the loop posts them.
#[derive(Default)]
struct Asked(Mutex<Vec<StagedVerb>>);

impl Carriage for Asked {
    fn post(&self, verb: &StagedVerb) -> Result<(), NicError> {
        self.0.lock().unwrap().push(*verb);
        Ok(())
    }
}

struct ClientEnd {
    calls: CallSlots<u32>,
    staging: Arc<Staging<Asked>>,
    kernels: Box<dyn Runner + Send>,
    /// How each call ended.
    ended: BTreeMap<u32, (Status, Vec<u8>)>,
    lost: bool,
}

struct NodeEnd {
    srq: SrqId,
    nic_calls: CallTable<RpcRequest>,
    nic_kernels: Box<dyn Runner + Send>,
    sends: Sends,
    host_calls: CallTable<HostAsker>,
    host_kernels: Box<dyn Runner + Send>,
}

fn memory(registry: &Registry, pd: Pd, len: usize, access: Access) -> (Buffer, Arc<Region>) {
    let buffer = Buffer::anonymous(len).unwrap();
    let region = registry.register(pd, &buffer, 0, len, None, access).unwrap();
    (buffer, region)
}

fn world(seed: u64, faults: Faults) -> (Pair, ClientEnd, NodeEnd) {
    let mut pair = Pair::unconnected(seed, faults);
    let (a, b) = (&mut pair.a, &mut pair.b);
    a.renew(QpInit {
        max_send_wr: 512,
        max_recv_wr: RECVS as u32,
        max_inline: MAX_REQUEST as u32,
        ..QpInit::new(QpType::Rc, a.pd, a.cq, a.cq)
    });
    let srq = b.nic.create_srq(b.pd, 64, 1).unwrap();
    let max_send_wr = Shares::most(32) as u32;
    b.renew(QpInit { srq: Some(srq), max_send_wr, max_rpc: 64, ..QpInit::new(QpType::Rc, b.pd, b.cq, b.cq) });
    pair.connect(Setup::default());
    let (a, b) = (&mut pair.a, &mut pair.b);
    (0..RECVS as u64).for_each(|id| a.nic.post_recv(a.qp, id, &[]).unwrap());

    let registry = a.nic.registry().clone();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let (replies, reply_region) = memory(&registry, a.pd, CallSlots::<u32>::REPLY_BYTES, access);
    let (buffer, region) = memory(&registry, a.pd, 8 * SLOT, Access::LOCAL_WRITE);
    let staging = Staging::new(Asked::default(), buffer, region);
    let (here, calls) = (staging.clone(), CallSlots::new(replies, reply_region));
    let task = move |mut call: Call| {
        let memory = RemoteMemory::new(here.clone(), call.op);
        async move {
            let status = Builtins.run(&Limited::new(&memory, Limits::default()), &mut call).await;
            (call, status)
        }
    };
    let client = ClientEnd { calls, staging, kernels: runner(task, 64), ended: BTreeMap::new(), lost: false };

    let registry = b.nic.registry().clone();
    op::BUILTINS.into_iter().for_each(|op| b.nic.deploy(op));
    let kernels = || host_runner(registry.clone(), true, 32, Limits::default());
    let buffers = |len| memory(&registry, b.pd, len, Access::LOCAL_WRITE);
    let node = NodeEnd {
        srq,
        nic_calls: CallTable::new(32),
        nic_kernels: kernels(),
        sends: Sends::new(buffers(64 * MAX_REQUEST), buffers(32 * MAX_REPLY)),
        host_calls: CallTable::new(32),
        host_kernels: kernels(),
    };
    (pair, client, node)
}

impl ClientEnd {
    /// Starts call `tag`: a look at an object in one of three places, or a checksum of bytes of A's memory.
    fn submit(&mut self, pair: &mut Pair, tag: u32) {
        let params = params(pair, tag);
        if place(tag) == Some(Placement::Client) {
            let mut call = Call::new(op::CONSISTENCY, &params, MAX_REPLY as u32);
            call.tag = tag.into();
            return assert!(self.kernels.start(call).is_ok());
        }
        let (slot, header) = self.calls.open(tag).unwrap();
        let (id, a) = (WorkId::Call(slot).encode(), &mut pair.a);
        match place(tag) {
            Some(Placement::Nic) => a.nic.post_rpc(a.qp, id, op::CONSISTENCY, &header, &params).unwrap(),
            Some(_) => {
                let mut message = Vec::new();
                HostCall { header, op: op::CONSISTENCY, params: &params }.encode(&mut message).unwrap();
                a.nic.post_send(a.qp, &SendWr::new(id, SendOp::Send, Data::Inline(&message))).unwrap();
            }
            None => {
                let (id, payload) = (WorkId::Stream(slot).encode(), [a.sge(0, 5000 + tag as usize)]);
                a.nic.post_rpc_write(a.qp, id, op::CHECKSUM, &header, &[], &payload).unwrap();
            }
        }
    }

    fn drive(&mut self, pair: &mut Pair) {
        for wc in pair.a.take_done() {
            self.lost |= wc.status != WcStatus::Success;
            match WorkId::decode(wc.wr_id) {
                WorkId::Staging(slot) => self.staging.complete(slot, wc.status),
                _ if wc.opcode == WcOpcode::RecvWriteImm && wc.status == WcStatus::Success => {
                    let a = &mut pair.a;
                    a.nic.post_recv(a.qp, wc.wr_id, &[]).unwrap();
                    let reply = self.calls.take_reply(wc.imm, wc.byte_len).expect("only what was asked is answered");
                    let twice = self.ended.insert(reply.mark, (reply.status, reply.bytes.to_vec()));
                    assert_eq!(twice, None);
                }
                _ => {}
            }
        }
        if self.lost {
            self.staging.set_lost();
            self.ended.extend(self.calls.lose_all().map(|tag| (tag, (Status::LOST, Vec::new()))));
        }
        let ended = &mut self.ended;
        self.kernels.poll(&mut |call, status| {
            assert_eq!(ended.insert(call.tag as u32, (status, call.reply.clone())), None);
        });
        for StagedVerb { slot, op, sge } in std::mem::take(&mut *self.staging.carriage().0.lock().unwrap()) {
            let a = &mut pair.a;
            // A queue pair in the error state completes it at once.
            a.nic.post_send(a.qp, &SendWr::new(WorkId::Staging(slot).encode(), op, Data::List(&[sge]))).unwrap();
        }
    }
}

impl NodeEnd {
    fn drive(&mut self, pair: &mut Pair) {
        for wc in pair.b.take_done() {
            match (wc.opcode, wc.status) {
                (WcOpcode::Recv, WcStatus::Success) => self.sends.received(wc.wr_id, wc.qpn, 0, wc.byte_len).unwrap(),
                (WcOpcode::Recv, _) => self.sends.give_back(wc.wr_id),
                _ => self.host_calls.release(wc.wr_id as u32),
            }
        }
        while let Some(call) = self.host_calls.take(pair.now, &mut self.sends) {
            assert!(self.host_kernels.start(call).is_ok());
        }
        let Self { host_kernels, host_calls, sends, .. } = self;
        host_kernels.poll(&mut |call, status| host_calls.finish(sends, call, status));
        let nic = &mut pair.b.nic;
        while let Some(reply) = self.sends.next_send() {
            let sge = [reply.sge];
            let wr = SendWr::new(reply.number.into(), reply.op, Data::List(&sge));
            if nic.post_send(reply.qpn, &wr).is_err() {
                self.host_calls.release(reply.number);
            }
        }
        while let Some((id, sge)) = self.sends.next_recv() {
            nic.post_srq_recv(self.srq, id, &[sge]).unwrap();
        }

        while let Some(call) = self.nic_calls.take(pair.now, &mut RpcVerbs::new(nic)) {
            assert!(self.nic_kernels.start(call).is_ok());
        }
        let alive = |qp| nic.qp_state(qp).is_ok_and(|state| state != QpState::Err);
        self.nic_calls.streams_mut().break_off(alive);
        let streams = self.nic_calls.streams_mut();
        let mut take =
            |chunk: &mut StreamChunk| streams.offer(chunk.id, &mut chunk.data, chunk.last, false) != Offered::Later;
        while let Some(chunk) = nic.poll_stream_of(&mut take) {
            nic.recycle(chunk.data);
        }
        let Self { nic_kernels, nic_calls, .. } = self;
        nic_kernels.poll(&mut |call, status| nic_calls.finish(&mut RpcVerbs::new(nic), call, status));
    }

    fn is_idle(&self) -> bool {
        let tables = self.nic_calls.under_way() + self.host_calls.under_way();
        let kernels = self.nic_kernels.in_flight() + self.host_kernels.in_flight();
        tables + kernels + self.nic_calls.streams().len() == 0
    }
}

/// Where a call goes; `None` for one with a payload stream.
fn place(tag: u32) -> Option<Placement> {
    [Some(Placement::Client), Some(Placement::Nic), Some(Placement::Host), None][tag as usize % 4]
}

fn params(pair: &Pair, tag: u32) -> Vec<u8> {
    let (address, key) = (pair.b.va(tag as usize % 8 * OBJECT), pair.b.key());
    ConsistencyParams { address, key, len: OBJECT as u32, max_tries: 3 }.encode().to_vec()
}

/// Objects at B with their checksums, and any bytes at A.
fn fill(pair: &mut Pair) {
    let mut bytes = vec![0; 8192];
    pair.rng.fill_bytes(&mut bytes);
    pair.a.buffer.write(0, &bytes).unwrap();
    for (n, object) in bytes.chunks(OBJECT).take(8).enumerate() {
        let payload = &object[..OBJECT - 8];
        let whole = [payload, &crc64(payload).to_le_bytes()].concat();
        pair.b.buffer.write(n * OBJECT, &whole).unwrap();
    }
}

/// Makes all calls, until each has ended.
fn run(pair: &mut Pair, client: &mut ClientEnd, node: &mut NodeEnd, mut at_step: impl FnMut(&mut Pair, u32)) {
    fill(pair);
    let mut next = 0;
    for step in 0..200_000 {
        at_step(pair, step);
        while next < TAGS && next < client.ended.len() as u32 + DEPTH && !client.lost {
            client.submit(pair, next);
            next += 1;
        }
        client.drive(pair);
        node.drive(pair);
        if client.ended.len() as u32 == next && (next == TAGS || client.lost) && client.kernels.in_flight() == 0 {
            return;
        }
        pair.step();
    }
    panic!("{} of {next} calls have ended", client.ended.len());
}

#[test]
fn calls_in_all_places_are_answered_once_and_right_over_a_bad_network() {
    let faults = Faults { loss: 30, duplicate: 20, damage: 10, reorder: 20, latency: 1000, jitter: 500, per_byte: 0 };
    for seed in 0..10 {
        let (mut pair, mut client, mut node) = world(seed, faults);
        run(&mut pair, &mut client, &mut node, |_, _| {});
        let a = pair.a.bytes(0, 8192);
        for (tag, (status, reply)) in &client.ended {
            assert_eq!(*status, Status::Ok, "call {tag}, seed {seed}");
            let expected = match place(*tag) {
                Some(_) => pair.b.bytes(*tag as usize % 8 * OBJECT, OBJECT - 8),
                None => {
                    let payload = &a[..5000 + *tag as usize];
                    [(payload.len() as u64).to_le_bytes(), crc64(payload).to_le_bytes()].concat()
                }
            };
            assert_eq!(reply[..expected.len()], expected, "call {tag}, seed {seed}");
        }
        // The node is done once it knows that its answers have arrived.
        pair.faults = Faults::default();
        for _ in 0..10_000 {
            pair.step();
            node.drive(&mut pair);
        }
        assert!(node.is_idle() && client.calls.is_empty() && client.staging.is_idle(), "seed {seed}");
    }
}

#[test]
fn every_call_ends_when_the_connection_does_and_nothing_is_left_behind() {
    for seed in 0..10 {
        let (mut pair, mut client, mut node) = world(seed, Faults { latency: 1000, jitter: 500, ..Faults::default() });
        let end = 20 + 20 * seed as u32;
        run(&mut pair, &mut client, &mut node, |pair, step| pair.cut = [step >= end; 2]);
        assert!(client.lost, "seed {seed}");
        let lost = client.ended.values().filter(|(status, _)| *status == Status::LOST).count();
        assert!(lost > 0 && client.ended.values().all(|(status, _)| [Status::Ok, Status::LOST].contains(status)));
        assert!(client.calls.is_empty() && client.staging.is_idle(), "seed {seed}");
        // The node hears of it, at the latest by a probe that nobody answers: its kernels end, too.
        pair.b.nic.to_error(pair.b.qp).unwrap();
        for _ in 0..100 {
            pair.step();
            node.drive(&mut pair);
        }
        node.sends.forget(pair.b.qp, 0);
        assert!(node.is_idle(), "seed {seed}");
    }
}

#[test]
fn a_peer_has_room_for_the_longest_reply_at_most_whatever_it_says() {
    let (mut pair, client, _) = world(5, Faults::default());
    let header = |side: &common::Side| RpcHeader {
        reply_va: side.va(0),
        reply_rkey: side.key(),
        reply_capacity: u32::MAX,
        tag: 0,
        flags: 0,
    };
    let (a, b) = (&mut pair.a, &mut pair.b);
    a.nic.post_rpc(a.qp, 1, op::CONSISTENCY, &header(a), &[]).unwrap();
    b.nic.post_local_rpc(b.qp, 1, op::CONSISTENCY, &header(b), &[]).unwrap();
    while pair.step() {}
    let (mut ingress, mut call) = (RpcVerbs::new(&mut pair.b.nic), Call::default());
    let shares = Shares::new(8);
    let mut room = BTreeMap::new();
    while let Some(taken) = ingress.poll(&shares, &mut call) {
        room.insert(taken.asker.local, call.reply_limit);
    }
    assert_eq!(room, BTreeMap::from([(false, MAX_REPLY as u32), (true, u32::MAX)]));
    drop(client);
}

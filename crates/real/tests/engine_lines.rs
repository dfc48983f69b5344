//! What engines of one node share: not a line that either writes. Counted, by a trace of all that two pairs of client and
//! engine read and write, each in a thread of its own, one after the other.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use remora_kernel::{ConsistencyParams, Limits, Status, crc64, op};
use remora_memory::{Access, Buffer, Pd, Region, Registry};
use remora_nic::{
    ALL_REMOTE, CqId, Data, Lane, Nic, NicConfig, QpInit, QpType, Qpn, RtrAttr, RtsAttr, SendOp, SendWr, Sge, WcOpcode,
    WcStatus,
};
use remora_real::link::shm::{ShmLink, ShmPort};
use remora_real::link::udp::UdpLink;
use remora_real::link::{Link, LinkKind};
use remora_real::{Device, Kernels, RingConfig, RingMemory, RingPort, UdpPort, map_memory};
use remora_service::{CallSlots, RingCall, WorkId};

const BYTES: usize = 1 << 16;
const LINE: u64 = 64;
/// Where what calls read is.
const OBJECT: usize = 48 << 10;

/// Set before and after what is counted: of the first pair, then of the second.
static MARK: AtomicU64 = AtomicU64::new(0);

fn ip(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 21, 1, last).into()
}

/// A device with a queue pair and memory.
struct End {
    device: Device,
    pd: Pd,
    cq: CqId,
    qp: Qpn,
    buffer: Buffer,
    region: Arc<Region>,
}

impl End {
    fn new(at: IpAddr, link: Box<dyn Link>, registry: &Arc<Registry>, lane: Lane) -> Self {
        let config = NicConfig { lane, ..NicConfig::new(remora_real::entropy().expect("entropy")) };
        let kernels = Kernels::builtins(registry, Limits::default());
        let nic = Nic::new(&config, registry.clone());
        let device = Device::with_events(at, vec![link], nic, Some(kernels), Box::new(Some)).expect("device");
        // No thread but the test's own drives it.
        device.keep(true);
        let pd = registry.alloc_pd();
        let (buffer, region) = memory(registry, pd, BYTES);
        let mut guard = device.lock();
        let cq = guard.nic().create_cq(1024).expect("queue");
        let init = QpInit { max_rpc: 64, max_send_sge: 1, ..QpInit::new(QpType::Rc, pd, cq, cq) };
        let qp = guard.nic().create_qp(init).expect("queue pair");
        guard.nic().to_init(qp, ALL_REMOTE, 0).expect("init");
        drop(guard);
        Self { device, pd, cq, qp, buffer, region }
    }

    fn join(&self, peer: &End) {
        let mut guard = self.device.lock();
        let (route, psn) = (guard.route(peer.device.local(), 0), remora_wire::Psn::new(7));
        let rtr = RtrAttr {
            route,
            dest_qp: peer.qp.0,
            rq_psn: psn,
            path_mtu: 4096,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 1,
        };
        guard.nic().to_rtr(self.qp, rtr).expect("RTR");
        // A traced program takes a thousand times as long, and its answers are not late for that.
        let rts = RtsAttr { sq_psn: psn, max_rd_atomic: 16, timeout: 24, ..RtsAttr::default() };
        guard.nic().to_rts(self.qp, rts).expect("RTS");
    }

    fn registry(&self) -> Arc<Registry> {
        self.device.lock().nic().registry().clone()
    }

    fn ring_memory(&self, config: RingConfig) -> RingMemory {
        let lend = |len| memory(&self.registry(), self.pd, len);
        RingMemory { ring: lend(config.shape.memory()), copy: lend(config.shape.bytes()) }
    }
}

fn memory(registry: &Registry, pd: Pd, len: usize) -> (Buffer, Arc<Region>) {
    let buffer = map_memory(len).expect("memory");
    let region = registry.register(pd, &buffer, 0, len, None, Access::LOCAL_WRITE | ALL_REMOTE).expect("region");
    (buffer, region)
}

/// A client, an engine, and how the one calls the other.
struct Pair {
    client: End,
    engine: End,
    slots: CallSlots<u64>,
    port: RingPort,
    params: Vec<u8>,
}

impl Pair {
    fn new(client: End, engine: End) -> Self {
        client.join(&engine);
        engine.join(&client);
        let (buffer, region) = memory(&client.registry(), client.pd, CallSlots::<u64>::REPLY_BYTES);
        let config = RingConfig::default();
        let (ours, theirs) = (client.ring_memory(config), engine.ring_memory(config));
        let (responses, requests) = ((ours.ring.1.va(), ours.ring.1.key()), (theirs.ring.1.va(), theirs.ring.1.key()));
        engine.device.lock().open_rings(engine.qp, &theirs, config, responses).expect("rings");
        let mut object = [7; 72];
        let checksum = crc64(&object[..64]);
        object[64..].copy_from_slice(&checksum.to_le_bytes());
        engine.buffer.write(OBJECT, &object).expect("in bounds");
        let (address, key) = (engine.region.va() + OBJECT as u64, engine.region.key());
        let params = ConsistencyParams { address, key, len: 72, max_tries: 1 }.encode().to_vec();
        let port = RingPort::new(ours, config, requests).expect("port");
        Self { client, engine, slots: CallSlots::new(buffer, region), port, params }
    }

    /// A turn of both ends. Whatever completes at the client, but for answers to calls, is counted.
    fn turn(&mut self, completed: &mut u32, answered: &mut u32) {
        let Self { client, engine, slots, port, .. } = self;
        for _ in 0..2 {
            client.device.lock().progress();
            let mut guard = engine.device.lock();
            guard.progress();
            while guard.nic().poll_cq(engine.cq).is_some() {}
        }
        let mut guard = client.device.lock();
        while let Some(wc) = guard.nic().poll_cq(client.cq) {
            assert_eq!(wc.status, WcStatus::Success);
            match wc.opcode {
                WcOpcode::RecvWriteImm => {
                    let reply = slots.take_reply(wc.imm, wc.byte_len).expect("a call");
                    assert!(reply.status == Status::Ok && reply.bytes[..64] == [7; 64], "{:?}", reply.status);
                    *answered += 1;
                }
                _ => *completed += 1,
            }
        }
        drop(guard);
        port.poll(&mut |_, status, reply| {
            assert!(status == Status::Ok && reply[..64] == [7; 64], "{status:?}");
            *answered += 1;
        })
        .expect("rings");
    }

    /// WRITEs, READs, atomics, SENDs, calls by RPC verbs and by rings, some at once.
    fn work(&mut self, rounds: u32) {
        for round in 0..rounds {
            let (va, rkey) = (self.engine.region.va(), self.engine.region.key());
            let at = u64::from(round % 16) * 128;
            let sge = |len| [Sge { va: self.client.region.va() + at, len, lkey: self.client.region.key() }];
            let (mut completed, mut answered) = (0, 0);
            {
                let mut guard = self.engine.device.lock();
                let sge = [Sge { va: va + 8192, len: 64, lkey: rkey }];
                guard.nic().post_recv(self.engine.qp, 0, &sge).expect("receive");
            }
            {
                let mut guard = self.client.device.lock();
                let (nic, qp) = (guard.nic(), self.client.qp);
                nic.post_recv(qp, 0, &[]).expect("receive");
                let ops = [
                    (SendOp::Write { va: va + at, rkey }, 64),
                    (SendOp::Write { va: va + at, rkey }, 4096 * 2 + 100),
                    (SendOp::Read { va: va + at, rkey }, 64),
                    (SendOp::FetchAdd { va: va + 32768, rkey, add: 1 }, 8),
                    (SendOp::Send, 64),
                ];
                for (op, len) in ops {
                    let data = sge(len);
                    nic.post_send(qp, &SendWr::new(1, op, Data::List(&data))).expect("posted");
                }
                let (slot, header) = self.slots.open(1).expect("a slot");
                let id = WorkId::Call(slot).encode();
                nic.post_rpc(qp, id, op::CONSISTENCY, &header, &self.params).expect("posted");
                let call = RingCall { op: op::CONSISTENCY, tag: round, room: 128 };
                self.port.push(&call, &self.params).expect("rings").expect("room");
                self.port.post(nic, qp);
                guard.transmit();
            }
            let mut turns = 0;
            // The calls' own sends are signalled or not, as they like.
            while completed < 5 || answered < 2 {
                self.turn(&mut completed, &mut answered);
                turns += 1;
                assert!(turns < 1_000_000, "{completed} completed, {answered} answered");
            }
        }
    }
}

/// Two pairs over a link; the engines have one address and one registry, as those of a node.
fn pairs(kind: LinkKind) -> [Pair; 2] {
    let registry = Arc::new(Registry::new([3; 32]));
    let engines: Vec<Box<dyn Link>> = match kind {
        LinkKind::Shm => {
            let ports = ShmPort::bind(ip(1), 2).expect("ports").into_iter();
            ports.map(|port| Box::new(ShmLink::at(port)) as Box<dyn Link>).collect()
        }
        _ => {
            let ports = UdpPort::bind(ip(1), 2).expect("ports").into_iter();
            ports.map(|port| Box::new(UdpLink::at(port).expect("link")) as Box<dyn Link>).collect()
        }
    };
    let ends: Vec<(End, End)> = (0u8..)
        .zip(engines)
        .map(|(n, link)| {
            let (own, lane) = (Arc::new(Registry::new([n; 32])), Lane::new(n, 2).expect("one of two"));
            let client = End::new(ip(2 + n), kind.bind(ip(2 + n)).expect("link"), &own, Lane::ONLY);
            assert!(client.device.lock().reach(0, ip(1)));
            (client, End::new(ip(1), link, &registry, lane))
        })
        .collect();
    for (_, engine) in &ends {
        // Who asks to be woken sees at once who has come; otherwise it takes thousands of polls.
        let mut guard = engine.device.lock();
        let link = guard.link(0).expect("a link");
        link.arm();
        link.disarm();
    }
    let mut all = ends.into_iter().map(|(client, engine)| Pair::new(client, engine));
    [all.next().expect("one"), all.next().expect("two")]
}

/// What is traced: each pair warms up and then works, in a thread of its own, with nobody beside.
#[test]
#[ignore = "run by engines_write_no_line_that_others_read"]
fn traced() {
    let kind = if std::env::var("REMORA_LINES").as_deref() == Ok("udp") { LinkKind::Udp } else { LinkKind::Shm };
    // In one piece, as the trace goes the same way.
    let told = format!("mark {:x}\n", &raw const MARK as usize);
    std::io::stderr().write_all(told.as_bytes()).expect("stderr");
    let run = |mut pair: Pair, go: Receiver<()>, done: Sender<()>| {
        std::thread::spawn(move || {
            pair.work(8);
            done.send(()).expect("the test waits");
            go.recv().expect("the test says so");
            MARK.fetch_add(1, Ordering::SeqCst);
            pair.work(8);
            MARK.fetch_add(1, Ordering::SeqCst);
            done.send(()).expect("the test waits");
            // Nothing ends while the other one works.
            let _ = go.recv();
        })
    };
    let (threads, sides): (Vec<_>, Vec<_>) = pairs(kind)
        .into_iter()
        .map(|pair| {
            let ((go, goes), (done, is_done)) = (channel(), channel());
            (run(pair, goes, done), (go, is_done))
        })
        .unzip();
    sides.iter().for_each(|(_, warm)| warm.recv().expect("it works"));
    for (go, done) in &sides {
        go.send(()).expect("it waits");
        done.recv().expect("it works");
    }
    drop(sides);
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// Lines that one pair touched: read and written.
#[derive(Default)]
struct Touched {
    read: HashSet<u64>,
    written: HashSet<u64>,
}

/// Runs [`traced`] under valgrind, and what each pair touched.
fn touched(link: &str) -> [Touched; 2] {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes", "--fair-sched=yes", "--log-fd=2"])
        .arg(program)
        .args(["--ignored", "--exact", "traced", "--nocapture", "--test-threads", "1"])
        .env("REMORA_LINES", link)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("valgrind");
    let (mut mark, mut marks, mut pairs) = (None, 0, [Touched::default(), Touched::default()]);
    for line in BufReader::new(child.stderr.take().expect("piped")).split(b'\n') {
        let line = line.expect("a line");
        let Ok(line) = str::from_utf8(&line) else { continue };
        if let Some((_, at)) = line.split_once("mark ") {
            mark = u64::from_str_radix(at, 16).ok();
            continue;
        }
        let (kind, rest) = line.split_at(line.len().min(3));
        let Some((address, size)) = rest.split_once(',') else { continue };
        let (Ok(address), Ok(size)) = (u64::from_str_radix(address, 16), size.trim().parse::<u64>()) else { continue };
        let writes = matches!(kind, " S " | " M ");
        if !writes && kind != " L " {
            continue;
        }
        if writes && Some(address) == mark {
            marks += 1;
            continue;
        }
        let at = match marks {
            1 => 0,
            3 => 1,
            _ => continue,
        };
        for line in address / LINE..=(address + size.max(1) - 1) / LINE {
            if writes {
                pairs[at].written.insert(line)
            } else {
                pairs[at].read.insert(line)
            };
        }
    }
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(marks, 4, "both pairs worked");
    pairs
}

#[test]
#[ignore = "takes a minute under valgrind: `ci/long ignored`"]
fn engines_write_no_line_that_others_read() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return remora_testing::skip("no valgrind here", "apt-get install valgrind");
    }
    for link in ["shm", "udp"] {
        let [one, two] = touched(link);
        let shared: Vec<String> = one
            .written
            .iter()
            .filter(|line| two.read.contains(line) || two.written.contains(line))
            .chain(two.written.iter().filter(|line| one.read.contains(line)))
            .map(|line| format!("{:x}", line * LINE))
            .collect();
        let read = one.read.intersection(&two.read).count();
        println!(
            "{link}: the pairs wrote {} and {} lines; {read} both read; {} one wrote and the other touched",
            one.written.len(),
            two.written.len(),
            shared.len()
        );
        assert!(one.written.len() > 1000 && two.written.len() > 1000, "the trace has both");
        assert!(shared.is_empty(), "{link}: {shared:?}");
    }
}

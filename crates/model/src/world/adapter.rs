//! One NIC of a fabric: its protocol engine, and what its hardware takes for the engine's work.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::rc::Rc;

use remora_memory::Pd;
use remora_nic::{
    CqId, Data, Nic, NicConfig, QpInit, QpType, Qpn, RtrAttr, RtsAttr, SendOp, SendWr, Sge, SrqId, TxBatch,
    WorkCompletion,
};
use remora_wire::rpc::RpcHeader;
use remora_wire::{AtomicEth, Bth, Opcode, Psn};

use super::WorldError;
use super::board::Flow;
use super::bus::{Bus, Event};
use super::client::Ends;
use super::hardware::Hardware;
use super::machine::Machine;
use crate::time::Ps;

/// READs that may be outstanding on a queue pair: StRoM's Multi-Queue has a list for each (section 4.1).
const OUTSTANDING_READS: u8 = 128;
/// Work requests of a queue pair.
pub const MAX_WR: u32 = 1024;

/// What software tells a NIC to do.
#[derive(Clone, Copy, Debug)]
pub enum Posted {
    /// A verb over registered memory, or with the bytes in the command.
    Verb {
        /// Comes back in the completion.
        wr_id: u64,
        /// Which verb.
        op: SendOp,
        /// The local bytes; none: those in the command.
        sge: Option<Sge>,
        /// Whether the completion is wanted.
        signaled: bool,
    },
    /// Parameters of a kernel, which are the bytes in the command, with a payload stream behind them if there is one.
    Rpc {
        /// Which kernel.
        op: u64,
        /// Where the reply goes.
        header: RpcHeader,
        /// The payload stream.
        payload: Option<Sge>,
    },
}

/// The way of an answer, and its number on that.
type Answered = (Flow, Psn);

/// A NIC.
pub struct Adapter {
    /// Which one of its fabric.
    pub index: u16,
    /// The machine that it is in.
    pub machine: u16,
    /// Which one of its machine.
    pub slot: usize,
    /// Its address.
    pub ip: IpAddr,
    /// The protocol engine.
    pub nic: Nic,
    /// The connections that its queue pairs belong to.
    pub ends: Ends,
    /// The machine's hardware.
    pub hardware: Rc<RefCell<Hardware>>,
    cq: CqId,
    pd: Pd,
    batch: TxBatch,
    commands: Vec<(Posted, Qpn, Vec<u8>)>,
    free: Vec<u32>,
    /// When the next timer event comes.
    timer: Option<Ps>,
    /// Whether a transmit event comes.
    waiting: bool,
    /// Of each queue pair the peer's NIC, and its queue pair there.
    peers: BTreeMap<Qpn, Flow>,
    /// When the NIC has the old values of atomic operations that it has carried out and not answered, by the answer's way.
    atomics: HashMap<Answered, Ps>,
}

impl Adapter {
    /// The NIC of this number, the `slot`th of its machine. The seed makes its numbers.
    pub fn new(index: u16, machine: &Machine, slot: usize, seed: u64) -> Result<Self, WorldError> {
        // Hardware NICs of today go back to what was lost (Mittal et al., "Revisiting Network Support for RDMA", SIGCOMM 2018).
        let config = NicConfig { selective_repeat: false, ..NicConfig::new(super::machine::seed(index, seed)) };
        let mut nic = Nic::new(&config, machine.registry.clone());
        let cq = nic.create_cq(16 * MAX_WR)?;
        let [high, low] = index.to_be_bytes();
        Ok(Self {
            index,
            machine: machine.index,
            slot,
            ip: IpAddr::from([10, 0, high, low.wrapping_add(1)]),
            nic,
            ends: Ends::new(),
            hardware: machine.hardware.clone(),
            cq,
            pd: machine.pd,
            batch: TxBatch::new(),
            commands: Vec::new(),
            free: Vec::new(),
            timer: None,
            waiting: false,
            peers: BTreeMap::new(),
            atomics: HashMap::new(),
        })
    }

    /// A queue pair in RESET.
    pub fn create_qp(&mut self, inline: u32, max_rpc: u32, srq: Option<SrqId>) -> Result<Qpn, WorldError> {
        let init = QpInit {
            max_send_wr: MAX_WR,
            max_recv_wr: MAX_WR,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: inline.max(256),
            max_rpc,
            srq,
            ..QpInit::new(QpType::Rc, self.pd, self.cq, self.cq)
        };
        Ok(self.nic.create_qp(init)?)
    }

    /// Connects a queue pair to one of another NIC.
    pub fn connect(&mut self, qp: Qpn, remote: IpAddr, dest: Qpn, mtu: u32) -> Result<(), WorldError> {
        self.nic.to_init(qp, remora_nic::ALL_REMOTE, 0)?;
        let rtr = RtrAttr {
            route: remora_nic::Route { local: self.ip, remote, link: 0 },
            dest_qp: dest.0,
            rq_psn: Psn::new(0),
            path_mtu: mtu,
            max_dest_rd_atomic: OUTSTANDING_READS,
            min_rnr_timer: 1,
        };
        self.nic.to_rtr(qp, rtr)?;
        self.nic.to_rts(qp, RtsAttr { max_rd_atomic: OUTSTANDING_READS, ..RtsAttr::default() })?;
        self.peers.insert(qp, (nic_of(remote), dest.0));
        Ok(())
    }

    /// Software issues a command at `at`: the core's time, then the way to the NIC. Returns when the core is free.
    pub fn issue(&mut self, at: Ps, qp: Qpn, command: Posted, bytes: &[u8], bus: &mut Bus) -> Ps {
        let (core_free, arrives) = self.hardware.borrow_mut().board.issue(self.slot, at, bytes.len());
        let number = self.free.pop().unwrap_or_else(|| {
            self.commands.push((command, qp, Vec::new()));
            self.commands.len() as u32 - 1
        });
        let entry = &mut self.commands[number as usize];
        (entry.0, entry.1) = (command, qp);
        entry.2.clear();
        entry.2.extend_from_slice(bytes);
        bus.queue.push(arrives, Event::Command { nic: self.index, post: number });
        core_free
    }

    /// The NIC sees a command or its doorbell, and begins with it when it has all of it.
    pub fn see_command(&mut self, now: Ps, post: u32, bus: &mut Bus) -> Result<(), WorldError> {
        let (_, qp, inline) = &self.commands[post as usize];
        let here = self.hardware.borrow_mut().board.take(self.slot, now, inline.len(), qp.0);
        if here > now {
            bus.queue.push(here, Event::Take { nic: self.index, post });
            return Ok(());
        }
        self.take_command(now, post, bus)
    }

    /// The NIC takes a command.
    pub fn take_command(&mut self, now: Ps, post: u32, bus: &mut Bus) -> Result<(), WorldError> {
        let (command, qp, bytes) = &self.commands[post as usize];
        match *command {
            Posted::Verb { wr_id, op, sge, signaled } => {
                let list = sge.as_slice();
                let data = if sge.is_some() { Data::List(list) } else { Data::Inline(bytes) };
                let wr = SendWr { signaled, ..SendWr::new(wr_id, op, data) };
                self.nic.post_send(*qp, &wr)?;
            }
            Posted::Rpc { op, ref header, payload: None } => self.nic.post_rpc(*qp, u64::MAX, op, header, bytes)?,
            Posted::Rpc { op, ref header, payload: Some(sge) } => {
                self.nic.post_rpc_write(*qp, u64::MAX, op, header, bytes, &[sge])?;
            }
        }
        self.free.push(post);
        self.pump(now, bus);
        Ok(())
    }

    /// The last bit of a packet is here: the receive pipeline takes it.
    pub fn arrive(&mut self, now: Ps, packet: u32, bus: &mut Bus) {
        let bytes = &bus.packet(packet).bytes;
        let qp = Bth::parse(bytes).map_or(0, |bth| bth.dest_qp);
        let taken = self.hardware.borrow_mut().board.receive(self.slot, now, bytes.len(), qp);
        bus.queue.push(taken, Event::Receive { packet });
    }

    /// The engine takes a packet. Returns its op-code and queue pair, and when its payload is in host memory.
    pub fn receive(&mut self, now: Ps, number: u32, bus: &mut Bus) -> (Option<(Opcode, Qpn)>, Ps) {
        let packet = bus.take(number);
        let bth = Bth::parse(&packet.bytes).ok();
        let what = bth.map(|bth| (bth.opcode, Qpn(bth.dest_qp)));
        let landing = what.map_or(0, |(op, _)| landing_bytes(op, packet.bytes.len()));
        let atomic = bth.filter(|bth| matches!(bth.opcode, Opcode::RcCompareSwap | Opcode::RcFetchAdd));
        let before = atomic.map_or(0, |_| self.carried_out());
        if let (Some(from), Some(dst)) = (packet.from, packet.dst) {
            self.nic.handle_packet(engine_time(now), 0, from, dst, &packet.bytes);
        }
        // One that comes out of its turn is thrown away, and one that came before is answered from what the NIC remembers.
        if let Some(bth) = atomic.filter(|_| self.carried_out() > before)
            && let Some(Ok(word)) = packet.bytes.get(Bth::LEN..).map(AtomicEth::parse)
            && let Some(&back) = self.peers.get(&Qpn(bth.dest_qp))
        {
            let here = self.hardware.borrow_mut().board.atomic(self.slot, now, word.va);
            self.atomics.insert((back, bth.psn), here);
        }
        bus.land(number, packet);
        let landed = if landing > 0 { self.hardware.borrow_mut().board.store(self.slot, now, landing) } else { now };
        (what, landed)
    }

    /// Sends what the engine has, as far as the NIC looks ahead, and arms its timer.
    pub fn pump(&mut self, now: Ps, bus: &mut Bus) {
        while !self.waiting && self.nic.wants_transmit() {
            if let Some(later) = self.hardware.borrow().board.transmit_later(self.slot, now) {
                self.waiting = true;
                bus.queue.push(later, Event::Transmit { nic: self.index });
                break;
            }
            if !self.nic.poll_transmit(engine_time(now), &mut self.batch) {
                break;
            }
            let Some(route) = self.batch.route() else { break };
            let way = (self.index, nic_of(route.remote));
            for (bytes, fetched) in self.batch.packets().zip(self.batch.fetched()) {
                let mut hardware = self.hardware.borrow_mut();
                // The engine makes no others.
                let Ok(bth) = Bth::parse(bytes) else { continue };
                let flow = (way.1, bth.dest_qp);
                let old = match bth.opcode {
                    Opcode::RcAtomicAck => self.atomics.remove(&(flow, bth.psn)),
                    _ => None,
                };
                let read = is_read_response(bth.opcode);
                let sent = match old {
                    Some(here) => hardware.board.send_when(self.slot, flow, here.max(now), bytes.len()),
                    None => hardware.board.send(self.slot, flow, now, bytes.len(), (fetched, read)),
                };
                let wire = hardware.board.on_wire(self.slot, bytes.len());
                bus.launch(bytes, way, (route.local, route.remote), (wire, sent));
            }
        }
        self.arm(bus);
    }

    /// The NIC may build more packets.
    pub fn transmit(&mut self, now: Ps, bus: &mut Bus) {
        self.waiting = false;
        self.pump(now, bus);
    }

    /// A timer event has come.
    pub fn run_timers(&mut self, now: Ps, bus: &mut Bus) {
        if self.timer.is_some_and(|due| due <= now) {
            self.timer = None;
            self.nic.handle_timeout(engine_time(now));
            self.pump(now, bus);
        }
    }

    /// Timers almost never run out: an event that is too early arms the next one.
    fn arm(&mut self, bus: &mut Bus) {
        let Some(due) = self.nic.poll_timeout() else { return };
        // The engine counts whole nanoseconds.
        let due = Ps((due + 1) * 1000);
        if self.timer.is_none_or(|armed| due < armed) {
            self.timer = Some(due);
            bus.queue.push(due, Event::Timer { nic: self.index });
        }
    }

    /// Messages of peers that were carried out so far.
    fn carried_out(&self) -> u64 {
        self.nic.counters().rx_messages.iter().sum()
    }

    /// The next completion that the engine has.
    pub fn poll_cq(&mut self) -> Option<WorkCompletion> {
        self.nic.poll_cq(self.cq)
    }
}

/// The engine counts nanoseconds.
pub(super) fn engine_time(now: Ps) -> u64 {
    now.0 / 1000
}

/// NIC `n` of a fabric has the address 10.0.0.0 + n, with one more in the last byte.
fn nic_of(ip: IpAddr) -> u16 {
    match ip {
        IpAddr::V4(ip) => {
            let [.., high, low] = ip.octets();
            u16::from(high) << 8 | u16::from(low.wrapping_sub(1))
        }
        IpAddr::V6(_) => 0,
    }
}

/// Whether a packet brings bytes that a peer reads.
fn is_read_response(op: Opcode) -> bool {
    use Opcode::*;
    matches!(op, RcReadResponseFirst | RcReadResponseMiddle | RcReadResponseLast | RcReadResponseOnly)
}

/// Payload bytes that the NIC writes to host memory when this packet arrives; those for kernels stay on the NIC.
fn landing_bytes(op: Opcode, len: usize) -> usize {
    use Opcode::*;
    let payload = len.saturating_sub(op.header_len() + remora_wire::ICRC_LEN);
    match op {
        RpcParams | RpcWriteFirst | RpcWriteMiddle | RpcWriteLast | RpcWriteOnly => 0,
        RcReadRequest | RcCompareSwap | RcFetchAdd | RcAck => 0,
        RcAtomicAck => 8,
        _ => payload,
    }
}

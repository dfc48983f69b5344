//! One machine of a world: the protocol engine of its NIC, and the hardware that everything takes its time in.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use remora_memory::{Access, Buffer, Pd, Region, Registry};
use remora_nic::{
    CqId, Data, Nic, NicConfig, QpInit, QpType, Qpn, RtrAttr, RtsAttr, SendOp, SendWr, Sge, TxBatch, WorkCompletion,
};
use remora_wire::rpc::RpcHeader;
use remora_wire::{Bth, Opcode, Psn};

use super::WorldError;
use super::bus::{Bus, Event};
use super::hardware::Hardware;
use crate::time::Ps;

/// READs that may be outstanding on a queue pair: StRoM's Multi-Queue has a list for each (section 4.1).
const OUTSTANDING_READS: u8 = 128;
/// Work requests of a queue pair.
pub const MAX_WR: u32 = 1024;

/// What software tells a NIC to do.
#[derive(Clone, Copy, Debug)]
pub enum Command {
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

/// A machine.
pub struct Machine {
    /// Which one of its world.
    pub index: u16,
    /// Its address.
    pub ip: IpAddr,
    /// The protocol engine.
    pub nic: Nic,
    /// What everything takes its time in.
    pub hardware: Rc<RefCell<Hardware>>,
    /// Where all its queue pairs complete.
    pub cq: CqId,
    /// The protection domain of its queue pairs.
    pub pd: Pd,
    batch: TxBatch,
    commands: Vec<(Command, Qpn, Vec<u8>)>,
    free: Vec<u32>,
    /// When the next timer event comes.
    timer: Option<Ps>,
    /// Whether a transmit event comes.
    waiting: bool,
    /// Addresses of regions to be.
    next_va: u64,
}

impl Machine {
    /// A machine of this hardware. The seed makes its keys and numbers.
    pub fn new(index: u16, hardware: Hardware, seed: u64) -> Result<Self, WorldError> {
        let mut bytes = [index as u8 + 1; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let registry = Arc::new(Registry::new(bytes));
        let mut nic = Nic::new(&NicConfig::new(bytes), registry.clone());
        let cq = nic.create_cq(16 * MAX_WR)?;
        Ok(Self {
            index,
            ip: IpAddr::from([10, 0, (index >> 8) as u8, index as u8 + 1]),
            nic,
            hardware: Rc::new(RefCell::new(hardware)),
            cq,
            pd: registry.alloc_pd(),
            batch: TxBatch::new(),
            commands: Vec::new(),
            free: Vec::new(),
            timer: None,
            waiting: false,
            next_va: 1 << 32,
        })
    }

    /// Zeroed memory, registered with all rights, at the same address in every run.
    pub fn alloc(&mut self, len: usize) -> Result<(Buffer, Arc<Region>), WorldError> {
        let buffer = Buffer::anonymous(len.max(8))?;
        let va = self.next_va;
        self.next_va += (len as u64).next_multiple_of(remora_memory::PAGE_BYTES as u64);
        let access = Access::LOCAL_WRITE | remora_nic::ALL_REMOTE;
        let region = self.nic.registry().register(self.pd, &buffer, 0, len, Some(va), access)?;
        self.hardware.borrow_mut().register(va, len as u64);
        Ok((buffer, region))
    }

    /// A queue pair in RESET.
    pub fn create_qp(&mut self, inline: u32, max_rpc: u32) -> Result<Qpn, WorldError> {
        let init = QpInit {
            max_send_wr: MAX_WR,
            max_recv_wr: MAX_WR,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: inline.max(256),
            max_rpc,
            ..QpInit::new(QpType::Rc, self.pd, self.cq, self.cq)
        };
        Ok(self.nic.create_qp(init)?)
    }

    /// Connects a queue pair to one of another machine.
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
        Ok(())
    }

    /// Software issues a command at `at`: the core's time, then the way to the NIC. Returns when the core is free.
    pub fn issue(&mut self, at: Ps, qp: Qpn, command: Command, bytes: &[u8], bus: &mut Bus) -> Ps {
        let (core_free, arrives) = self.hardware.borrow_mut().issue(at, bytes.len());
        self.command_at(arrives, qp, command, bytes, bus);
        core_free
    }

    /// A command reaches the NIC at `at`, from whoever is beside it.
    pub fn command_at(&mut self, at: Ps, qp: Qpn, command: Command, bytes: &[u8], bus: &mut Bus) {
        let number = self.free.pop().unwrap_or_else(|| {
            self.commands.push((command, qp, Vec::new()));
            self.commands.len() as u32 - 1
        });
        let entry = &mut self.commands[number as usize];
        (entry.0, entry.1) = (command, qp);
        entry.2.clear();
        entry.2.extend_from_slice(bytes);
        bus.queue.push(at, Event::Command { machine: self.index, post: number });
    }

    /// The NIC sees a command or its doorbell, and begins with it when it has all of it.
    pub fn see_command(&mut self, now: Ps, post: u32, bus: &mut Bus) -> Result<(), WorldError> {
        let inline = self.commands[post as usize].2.len();
        let here = self.hardware.borrow_mut().take(now, inline);
        if here > now {
            bus.queue.push(here, Event::Take { machine: self.index, post });
            return Ok(());
        }
        self.take_command(now, post, bus)
    }

    /// The NIC takes a command.
    pub fn take_command(&mut self, now: Ps, post: u32, bus: &mut Bus) -> Result<(), WorldError> {
        let (command, qp, bytes) = &self.commands[post as usize];
        match *command {
            Command::Verb { wr_id, op, sge, signaled } => {
                let list = sge.as_slice();
                let data = if sge.is_some() { Data::List(list) } else { Data::Inline(bytes) };
                let wr = SendWr { signaled, ..SendWr::new(wr_id, op, data) };
                self.nic.post_send(*qp, &wr)?;
            }
            Command::Rpc { op, ref header, payload: None } => self.nic.post_rpc(*qp, u64::MAX, op, header, bytes)?,
            Command::Rpc { op, ref header, payload: Some(sge) } => {
                self.nic.post_rpc_write(*qp, u64::MAX, op, header, bytes, &[sge])?;
            }
        }
        self.free.push(post);
        self.pump(now, bus);
        Ok(())
    }

    /// The last bit of a packet is here: the receive pipeline takes it.
    pub fn arrive(&mut self, now: Ps, packet: u32, bus: &mut Bus) {
        let len = bus.packet(packet).bytes.len();
        let taken = self.hardware.borrow_mut().receive(now, len);
        bus.queue.push(taken, Event::Receive { packet });
    }

    /// The engine takes a packet. Returns its op-code and when its payload is in host memory.
    pub fn receive(&mut self, now: Ps, number: u32, bus: &mut Bus) -> (Option<Opcode>, Ps) {
        let packet = bus.take(number);
        let opcode = Bth::parse(&packet.bytes).ok().map(|bth| bth.opcode);
        let landing = opcode.map_or(0, |op| landing_bytes(op, packet.bytes.len()));
        if let (Some(from), Some(dst)) = (packet.from, packet.dst) {
            self.nic.handle_packet(engine_time(now), 0, from, dst, &packet.bytes);
        }
        bus.land(number, packet);
        let landed = if landing > 0 { self.hardware.borrow_mut().store(now, landing) } else { now };
        (opcode, landed)
    }

    /// Sends what the engine has, as far as the NIC looks ahead, and arms its timer.
    pub fn pump(&mut self, now: Ps, bus: &mut Bus) {
        while !self.waiting && self.nic.wants_transmit() {
            if let Some(later) = self.hardware.borrow().transmit_later(now) {
                self.waiting = true;
                bus.queue.push(later, Event::Transmit { machine: self.index });
                break;
            }
            if !self.nic.poll_transmit(engine_time(now), &mut self.batch) {
                break;
            }
            let Some(route) = self.batch.route() else { break };
            let to = machine_of(route.remote);
            for (bytes, fetched) in self.batch.packets().zip(self.batch.fetched()) {
                // The old value of an atomic comes over the bus, too.
                let atomic = bytes.first() == Some(&(Opcode::RcAtomicAck as u8));
                let fetched = if atomic { 8 } else { fetched };
                let arrives = self.hardware.borrow_mut().send(now, bytes.len(), fetched);
                let packet = bus.launch(bytes, to, route.local, route.remote);
                bus.queue.push(arrives, Event::Arrive { packet });
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
            bus.queue.push(due, Event::Timer { machine: self.index });
        }
    }

    /// The next completion that the engine has.
    pub fn poll_cq(&mut self) -> Option<WorkCompletion> {
        self.nic.poll_cq(self.cq)
    }
}

/// The engine counts nanoseconds.
fn engine_time(now: Ps) -> u64 {
    now.0 / 1000
}

/// Machine `n` of a world has the address 10.0.0.(n + 1).
fn machine_of(ip: IpAddr) -> u16 {
    match ip {
        IpAddr::V4(ip) => {
            let [.., high, low] = ip.octets();
            (u16::from(high) << 8 | u16::from(low)) - 1
        }
        IpAddr::V6(_) => 0,
    }
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

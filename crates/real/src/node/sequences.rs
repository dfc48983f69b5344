//! Sequences of calls to a node itself, from any bytes: for fuzzing, and in short for a property test.
//!
//! Clients at three addresses come, allocate, free, sketch, deploy, list and remove, with parameters that are right, nearly
//! so, or anything, of their own regions and of others', and leave at any time, also with calls under way. Memory goes back
//! step by step in between. The device has no links: what is tried is what the host thread does with calls.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use remora_kernel::{Call, Status};
use remora_nic::Qpn;
use remora_service::control::{SketchParams, op, u32_at, u64_at};
use remora_service::{Ledger, MAX_REPLY};
use remora_wasm::{Isolation, KernelSet, ModuleLimits};

use super::control::{Answered, Control};
use super::modules::Modules;
use super::watch::Told;
use crate::device::Device;
use crate::module_calls::{DeployParams, RemoveParams};
use crate::{Deployers, Error};

/// Bytes that are lent at most.
const LIMIT: u64 = 32 << 20;
const ADDRESSES: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1)),
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
];
/// Connections at most.
const CLIENTS: usize = 6;

/// Bytes to draw from; zeros behind their end.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// A connection, and which of the addresses it is from.
#[derive(Clone, Copy)]
struct Caller {
    qpn: Qpn,
    from: usize,
}

/// A region that a client has.
#[derive(Clone, Copy)]
struct Lent {
    owner: Qpn,
    key: u32,
    va: u64,
    len: u64,
}

struct World<'a> {
    device: &'a Device,
    control: Control,
    callers: Vec<Caller>,
    regions: Vec<Lent>,
    /// Tags of calls without an answer.
    open: BTreeSet<u64>,
    made: u32,
}

/// A device for any number of [`Calls::run`].
pub struct Calls(Device);

impl Calls {
    /// A device that nobody reaches.
    ///
    /// # Errors
    ///
    /// The system gives none.
    pub fn new() -> Result<Self, Error> {
        let device = Device::new(ADDRESSES[0], Vec::new(), None)?;
        device.stop();
        Ok(Self(device))
    }

    /// Makes the calls that these bytes say.
    ///
    /// # Panics
    ///
    /// If a call is answered twice or never, a client cannot free what is its own or can free what is not, a sketch
    /// reaches memory that nobody has, or something is left when all clients are gone.
    pub fn run(&self, bytes: &[u8]) {
        let mut source = Source(bytes);
        let registry = self.0.lock().nic().registry().clone();
        let ledger = Ledger::new(registry.clone(), registry.alloc_pd(), LIMIT);
        let deployers = [Deployers::ThisHost, Deployers::Anyone, Deployers::Addresses(vec![ADDRESSES[2]])];
        let deployers = deployers[source.below(3)].clone();
        let control = Control::new(
            vec![self.0.clone()],
            (ledger, Default::default()),
            Modules::new(KernelSet::default(), None),
            deployers,
            Vec::new(),
            Told(None),
        );
        let (callers, regions, open) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut world = World { device: &self.0, control, callers, regions, open, made: 0 };
        while !source.0.is_empty() {
            world.step(&mut source);
        }
        world.end();
    }
}

impl World<'_> {
    fn step(&mut self, source: &mut Source<'_>) {
        match source.below(12) {
            0 | 1 if self.callers.len() < CLIENTS => {
                self.come(source.below(ADDRESSES.len()));
            }
            2 if !self.callers.is_empty() => {
                let at = source.below(self.callers.len());
                self.leave(at);
            }
            3 => self.reclaim(),
            4 => self.poll(),
            _ => self.call(source),
        }
    }

    fn come(&mut self, from: usize) -> Caller {
        self.made += 1;
        let caller = Caller { qpn: Qpn(self.made), from };
        self.callers.push(caller);
        self.control.client_came(caller.qpn, from as u32);
        caller
    }

    fn leave(&mut self, at: usize) {
        let Caller { qpn, .. } = self.callers.swap_remove(at);
        self.regions.retain(|region| region.owner != qpn);
        self.control.client_gone(qpn);
    }

    fn reclaim(&mut self) {
        if let Some(Some(answered)) = self.control.reclaim() {
            self.answer(answered);
        }
    }

    fn poll(&mut self) {
        if let Some(answered) = self.control.poll() {
            self.answer(answered);
        }
    }

    /// Any client calls, or one that has gone since.
    fn call(&mut self, source: &mut Source<'_>) {
        let gone = Caller { qpn: Qpn(0), from: 0 };
        let caller = self.callers.get(source.below(CLIENTS + 1)).copied().unwrap_or(gone);
        let open = caller.qpn != gone.qpn;
        let region = self.region(source);
        let (op, mut params) = self.ask(source, region);
        match source.below(8) {
            0 => params.truncate(source.below(params.len() + 1)),
            1 if !params.is_empty() => {
                let at = source.below(params.len());
                params[at] = source.byte();
            }
            _ => {}
        }
        self.made += 1;
        let mut call = Call::new(op, &params, MAX_REPLY as u32);
        (call.qpn, call.client, call.tag) = (caller.qpn.0, caller.from as u32, self.made.into());
        self.open.insert(call.tag);
        let answered = self.control.call(ADDRESSES[caller.from], call);
        match op {
            op::FREE => {
                let is_key = |region: &Lent| Some(region.key) == u32_at(&params, 0);
                let at = self.regions.iter().position(|region| region.owner == caller.qpn && is_key(region));
                assert_eq!(answered.is_none(), at.is_some(), "{params:?} of {:?}", caller.qpn);
                if let Some(at) = at {
                    let Lent { key, .. } = self.regions.swap_remove(at);
                    assert!(self.device.lock().nic().registry().lookup(key).is_none(), "{key} was freed");
                }
            }
            op::KERNEL_DEPLOY => {}
            _ => assert!(answered.is_some(), "a call of {op:#x} waits"),
        }
        let Some(answered) = answered else { return };
        let done = answered.outcome == Ok(Status::Ok);
        let place = |at| Some((u32_at(&params, at)?, u64_at(&params, at + 4)?));
        match op {
            op::ALLOC if done => {
                let (va, key) = (u64_at(&answered.call.reply, 0), u32_at(&answered.call.reply, 8));
                let (va, key) = va.zip(key).expect("an address and a key");
                let len = u64_at(&params, 0).expect("a length");
                assert!(open && len > 0 && self.regions.iter().all(|region| region.key != key));
                self.regions.push(Lent { owner: caller.qpn, key, va, len });
                let lent: u64 = self.regions.iter().map(|region| region.len).sum();
                assert!(lent <= LIMIT, "{lent} bytes are lent");
            }
            op::SKETCH_START if done => {
                // Regions of clients that have gone stay for a while.
                let registry = self.device.lock().nic().registry().clone();
                let there = |(key, _)| registry.lookup(key).is_some();
                assert!(open && place(0).is_some_and(there) && place(12).is_some_and(there));
            }
            _ => {}
        }
        self.answer(answered);
    }

    /// A region that somebody has, or none.
    fn region(&self, source: &mut Source<'_>) -> Lent {
        let nobody = Lent { owner: Qpn(0), key: 7, va: 4096, len: 4096 };
        self.regions.get(source.below(self.regions.len() + 1)).copied().unwrap_or(nobody)
    }

    /// An op-code, with parameters as they should be, but for whose region they name and where.
    fn ask(&self, source: &mut Source<'_>, region: Lent) -> (u64, Vec<u8>) {
        let Lent { key, va, len, .. } = region;
        let va = va.wrapping_add(source.one_of(&[0, 0, 0, 1, len, u64::MAX]));
        let name = |source: &mut Source<'_>| source.one_of(&["a", "b", "", "../../a", "a b"]).to_string();
        let proof = |source: &mut Source<'_>| (source.below(4) == 0).then_some([7; _]);
        match source.below(16) {
            0..=3 => {
                let lengths = [1, 4096, 5000, 1 << 20, 3 << 20, 9 << 20, 0, LIMIT, u64::MAX, u64::MAX - 4095];
                (op::ALLOC, source.one_of(&lengths).to_le_bytes().into())
            }
            4..=6 => (op::FREE, key.to_le_bytes().into()),
            7 | 8 => {
                let deploy = DeployParams {
                    key,
                    va,
                    len: source.one_of(&[0, 1, 100, len as u32, u32::MAX]),
                    limits: ModuleLimits::default(),
                    isolation: Isolation::Fresh,
                    keep: source.below(4) == 0,
                    proof: proof(source),
                    name: name(source),
                };
                (op::KERNEL_DEPLOY, deploy.encode())
            }
            9 => (op::KERNEL_REMOVE, RemoveParams { proof: proof(source), name: name(source) }.encode()),
            10 => (op::KERNEL_LIST, Vec::new()),
            11..=13 => {
                let registers = self.region(source);
                let lg_k = source.one_of(&[4, 10, 12, 18, 0, 63, 64, 255]);
                let params = SketchParams { region: (key, va), lg_k, registers: (registers.key, registers.va) };
                (op::SKETCH_START, params.encode().into())
            }
            14 => (op::SKETCH_STOP, key.to_le_bytes().into()),
            _ => (source.one_of(&[op::CPU, 0x1004, op::SKETCH_STOP + 1, u64::MAX]), vec![source.byte(); 9]),
        }
    }

    fn answer(&mut self, Answered { call, outcome }: Answered) {
        assert!(self.open.remove(&call.tag), "call {} of {:#x} is answered twice", call.tag, call.op);
        assert!(call.reply.len() <= MAX_REPLY, "a reply of {} bytes", call.reply.len());
        assert!(outcome != Err(String::new()), "refused without a reason");
    }

    /// All leave. Nothing is left, and all memory can be lent again.
    fn end(&mut self) {
        while !self.callers.is_empty() {
            self.leave(0);
        }
        while self.control.is_busy() {
            self.poll();
            std::thread::yield_now();
        }
        // Memory goes back in a few steps for each region.
        (0..1000 + 100 * self.made).for_each(|_| self.reclaim());
        assert!(self.open.is_empty(), "{} calls have no answer", self.open.len());

        let Caller { qpn, from } = self.come(0);
        let mut call = Call::new(op::ALLOC, &(LIMIT / 2 - 4096).to_le_bytes(), MAX_REPLY as u32);
        (call.qpn, call.tag) = (qpn.0, 0);
        self.open.insert(0);
        let answered = self.control.call(ADDRESSES[from], call).expect("an answer");
        assert_eq!(answered.outcome, Ok(Status::Ok), "half of all memory for one client");
        self.leave(0);
        self.reclaim();
        let mut guard = self.device.lock();
        assert_eq!(guard.nic().tap_count(), 0, "sketches are left");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_sequence_of_calls_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..1500)) {
            thread_local!(static CALLS: super::Calls = super::Calls::new().unwrap());
            CALLS.with(|calls| calls.run(&bytes));
        }
    }
}

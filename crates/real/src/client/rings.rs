//! Calls by rings in memory: another way to the same kernels. A call and its reply are a WRITE each, and calls that are
//! made together share one.

use remora_kernel::{Placement, Status};
use remora_memory::Access;
use remora_nic::{Nic, Qpn};
use remora_ring::PushError;
use remora_service::control::{RingParams, RingPlace, op};
use remora_service::{CallSlots, Full, HostCall, MAX_REQUEST, RingCall, most_params, most_reply};

use remora_wire::rpc::RpcHeader;

use super::Client;
use crate::error::Error;
use crate::map_memory;
use crate::rings::{RingConfig, RingMemory, RingPort};

/// A client's pair of rings to a place.
pub(super) struct ClientRings {
    placement: Placement,
    port: RingPort,
    /// The key of the region with its requests.
    key: u32,
}

impl Client {
    /// Opens a pair of rings to the node's NIC or host, for [`submit_by_ring`](Self::submit_by_ring); in place of the one
    /// that there is, if there is one. Nothing may be under way. Its memory at the node counts as this client's.
    pub fn open_rings(&mut self, placement: Placement, config: RingConfig) -> Result<(), Error> {
        self.idle()?;
        if !matches!(placement, Placement::Nic | Placement::Host) {
            return Err(Error::Placement(placement));
        }
        let registry = self.connection.device.lock().nic().registry().clone();
        let region = |len, access| {
            let buffer = map_memory(len)?;
            let region = registry.register(self.connection.pd(), &buffer, 0, len, None, access)?;
            Ok::<_, Error>((buffer, region))
        };
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let ring = region(config.shape.memory(), access)?;
        let copy = region(config.shape.bytes(), Access::LOCAL_WRITE)
            .inspect_err(|_| self.connection.take_back(ring.1.key()))?;
        let keys = [ring.1.key(), copy.1.key()];
        let opened = self.open_rings_in(RingMemory { ring, copy }, placement, config);
        opened.inspect_err(|_| keys.into_iter().for_each(|key| self.connection.take_back(key)))
    }

    fn open_rings_in(&mut self, memory: RingMemory, placement: Placement, config: RingConfig) -> Result<(), Error> {
        let responses = (memory.ring.1.va(), memory.ring.1.key());
        let params = RingParams { placement, shape: Ok(config.shape), notify: config.notify, responses };
        let place = self.node_call("open rings", op::RING_OPEN, &params.encode())?;
        let RingPlace { va, key } = RingPlace::decode(&place)
            .ok_or(Error::Node { what: "open rings", why: "its answer is too short".into() })?;
        self.close_rings(placement)?;
        self.rings.push(ClientRings { placement, port: RingPort::new(memory, config, (va, key))?, key });
        Ok(())
    }

    /// Closes the pair of rings to a place, if there is one, and gives its memory back. Nothing may be under way.
    pub fn close_rings(&mut self, placement: Placement) -> Result<(), Error> {
        self.idle()?;
        let Some(at) = self.rings.iter().position(|rings| rings.placement == placement) else { return Ok(()) };
        let closed = self.rings.swap_remove(at);
        closed.port.keys().into_iter().for_each(|key| self.connection.take_back(key));
        self.node_call("close rings", op::FREE, &closed.key.to_le_bytes()).map(drop)
    }

    /// Whether there are rings to this place.
    pub fn has_rings(&self, placement: Placement) -> bool {
        self.rings.iter().any(|rings| rings.placement == placement)
    }

    /// Bytes of parameters that a call to a place has at most, by a ring if that is meant and there is one, else in a message.
    pub fn most_params(&self, placement: Placement, by_ring: bool) -> usize {
        let rings = self.rings.iter().find(|rings| by_ring && rings.placement == placement);
        match (rings, placement) {
            (Some(rings), _) => most_params(rings.port.shape()),
            (None, Placement::Nic) => self.path_mtu() as usize - RpcHeader::LEN,
            (None, Placement::Host) => MAX_REQUEST - HostCall::FRONT,
            (None, Placement::Client | Placement::Accelerator) => usize::MAX,
        }
    }

    /// An error that says so if parameters are longer.
    pub fn check_params(&self, op: u64, placement: Placement, by_ring: bool, len: usize) -> Result<(), Error> {
        let most = self.most_params(placement, by_ring);
        if len <= most { Ok(()) } else { Err(Error::TooLong { op, placement, len, most }) }
    }

    /// As [`submit`](Self::submit), by the rings that were [opened](Self::open_rings) to the place; without any it ends in
    /// [`Status::UnknownOp`]. The call leaves with the next [`poll`](Self::poll), together with others. Parameters and reply may
    /// be as [long as the ring](most_params); parameters that are longer end in [`Status::BadParams`].
    pub fn submit_by_ring(&mut self, placement: Placement, op: u64, params: &[u8], tag: u32) -> Result<(), Full> {
        self.push_to_ring(placement, op, params, tag.into())
    }

    pub(super) fn push_to_ring(&mut self, placement: Placement, op: u64, params: &[u8], mark: u64) -> Result<(), Full> {
        let (slot, _) = self.calls.open(mark)?;
        let Some(rings) = self.rings.iter_mut().find(|rings| rings.placement == placement) else {
            return self.refuse(slot, Status::UnknownOp);
        };
        let shape = rings.port.shape();
        if params.len() > most_params(shape) {
            return self.refuse(slot, Status::BadParams);
        }
        let call = RingCall { op, tag: slot, room: most_reply(shape) as u32 };
        match rings.port.push(&call, params) {
            Ok(Ok(())) => {
                self.remote_calls += 1;
                Ok(())
            }
            Ok(Err(PushError::TooLong { .. })) => self.refuse(slot, Status::BadParams),
            // A node that lies is found out when its replies are read.
            Ok(Err(PushError::Full)) | Err(_) => {
                self.calls.end(slot);
                Err(Full)
            }
        }
    }
}

impl ClientRings {
    /// Posts what there is to write, requests of one turn together.
    #[inline]
    pub fn post(&mut self, nic: &mut Nic, qp: Qpn) {
        self.port.post(nic, qp);
    }

    /// Hands replies that have landed to `done`. Returns how many, or what the node did wrong.
    #[inline]
    pub fn poll(
        &mut self,
        calls: &mut CallSlots<u64>,
        done: &mut dyn FnMut(u64, Status, &[u8]),
    ) -> Result<usize, Error> {
        let mut finished = 0;
        let polled = self.port.poll(&mut |tag, status, reply| {
            if let Some(mark) = calls.end(tag) {
                done(mark, status, reply);
                finished += 1;
            }
        });
        polled.map_err(|e| Error::Node { what: "keep to the rules of rings", why: e.to_string() })?;
        Ok(finished)
    }
}

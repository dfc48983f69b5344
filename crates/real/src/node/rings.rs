//! Pairs of rings that a node's clients opened: their memory, and when they end.

use remora_kernel::{Call, Placement};
use remora_nic::{Nic, Qpn};
use remora_service::control::{RingParams, RingPlace};
use remora_service::{Ledger, Rings};
use std::sync::Arc;

use crate::device::{Bell, Device, DeviceGuard};
use crate::rings::{self, RingConfig, RingMemory};

/// An open pair.
struct OpenPair {
    owner: Qpn,
    placement: Placement,
    /// Its number at its place.
    ring: u32,
    /// The keys of the regions with its requests and of where its responses are laid down.
    keys: [u32; 2],
}

/// The pairs of all clients, at the NIC and at the host.
pub(super) struct NodeRings {
    pairs: Vec<OpenPair>,
    /// Those at the host.
    pub host: Rings,
    /// Wakes the host's thread when something lands in those.
    pub bell: Arc<Bell>,
}

impl NodeRings {
    pub fn new() -> Self {
        Self { pairs: Vec::new(), host: Rings::default(), bell: Arc::default() }
    }

    /// Opens a pair for a client, in memory that counts as its own. The reply says where it is.
    pub fn open(&mut self, device: &Device, ledger: &mut Ledger, number: u32, call: &mut Call) -> Result<(), String> {
        let owner = Qpn(call.qpn);
        let wanted = RingParams::decode(&call.params).ok_or("the parameters are cut short")?;
        let RingParams { placement, shape, notify, responses } = wanted;
        let shape = shape.map_err(|e| e.to_string())?;
        if !matches!(placement, Placement::Nic | Placement::Host) {
            return Err(format!("rings lead to the NIC or to the host, and not to the {placement}"));
        }
        let lent = [shape.memory(), shape.bytes()].map(|len| ledger.alloc(owner, len as u64));
        let [Ok(requests), Ok(copy)] = &lent else {
            // What it got of the two goes back.
            let why = lent.iter().find_map(|lent| lent.as_ref().err()).map(ToString::to_string).unwrap_or_default();
            lent.iter().flatten().for_each(|region| drop(ledger.free(owner, region.key())));
            return Err(why);
        };
        let keys = [requests.key(), copy.key()];
        let opened =
            self.attach(device, ledger, (owner, number), placement, keys, (RingConfig { shape, notify }, responses));
        match opened {
            Ok(ring) => {
                self.pairs.push(OpenPair { owner, placement, ring, keys });
                let place = RingPlace { va: requests.va(), key: requests.key() };
                call.reply.extend_from_slice(&place.encode());
                Ok(())
            }
            Err(why) => {
                keys.into_iter().for_each(|key| drop(ledger.free(owner, key)));
                Err(why)
            }
        }
    }

    fn attach(
        &mut self,
        device: &Device,
        ledger: &Ledger,
        (owner, client): (Qpn, u32),
        placement: Placement,
        keys: [u32; 2],
        terms: (RingConfig, (u64, u32)),
    ) -> Result<u32, String> {
        let memory = |key| {
            let region = ledger.region(owner, key).map_err(|e| e.to_string())?;
            Ok::<_, String>((ledger.buffer(owner, key).map_err(|e| e.to_string())?, region))
        };
        let memory = RingMemory { ring: memory(keys[0])?, copy: memory(keys[1])? };
        let mut guard = device.lock();
        let opened = match placement {
            Placement::Nic => guard.open_rings(owner, &memory, terms.0, terms.1),
            _ => rings::open(&mut self.host, guard.nic(), (owner, client), &memory, terms, Some(self.bell.clone())),
        };
        opened.map_err(|e| e.to_string())
    }

    /// A client is gone.
    pub fn forget(&mut self, guard: &mut DeviceGuard<'_>, owner: Qpn) {
        self.end(guard, |pair| pair.owner == owner);
    }

    /// A region is gone: a pair in it would keep its memory mapped. The other region of a pair that it ended, if it did,
    /// and whose that is.
    pub fn released(&mut self, guard: &mut DeviceGuard<'_>, key: u32) -> Option<(Qpn, u32)> {
        let pair = self.pairs.iter().find(|pair| pair.keys.contains(&key))?;
        let (owner, [requests, copy]) = (pair.owner, pair.keys);
        self.end(guard, |pair| pair.keys.contains(&key));
        Some((owner, if key == requests { copy } else { requests }))
    }

    fn end(&mut self, guard: &mut DeviceGuard<'_>, ends: impl Fn(&OpenPair) -> bool) {
        let Self { pairs, host, .. } = self;
        pairs.retain(|pair| {
            let ends = ends(pair);
            if ends {
                match pair.placement {
                    Placement::Nic => guard.close_rings(pair.ring, pair.keys[0]),
                    _ => {
                        guard.nic().detach_tap(pair.keys[0]);
                        host.close(pair.ring);
                    }
                }
            }
            !ends
        });
    }
}

/// Posts what the host's rings have to write. Returns how many WRITEs.
pub(super) fn post(rings: &mut NodeRings, nic: &mut Nic) -> usize {
    if rings.host.wants_write() { rings::post(&mut rings.host, nic) } else { 0 }
}

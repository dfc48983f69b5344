//! What clients that call one node after the other until one answers have in common.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use remora_nic::cm::{ConnId, service_id};
use remora_nic::{ConnectAttr, Qpn};
use remora_real::link::Layers;
use remora_real::{Device, Error, Seat, at_free_loopback};

use super::client::ClusterClientConfig;
use super::hello::{self, ClientHello};
use super::link_at;
use super::wire::Secret;

/// Polls without anything to do after which a client sleeps.
const IDLE: u32 = 20;

/// Why a node would not have a client, and the reason's number.
pub(super) type Refusal = (String, u16);

/// Why, as a node says it when it rejects a call.
pub(super) fn refusal(reason: u16, said: &[u8]) -> Refusal {
    (String::from_utf8_lossy(said).trim_end_matches('\0').to_string(), reason)
}

/// A client with a device of its own.
pub(super) trait Caller: Sized {
    /// Its device.
    fn device(&self) -> &Device;

    /// Whom it talks to, or calls.
    fn address(&self) -> IpAddr;

    /// Whether a connection stands.
    fn is_up(&self) -> bool;

    /// Why the last node would not have it.
    fn refused(&mut self) -> Option<Refusal>;

    /// Does what there is to do: how much that was.
    fn turn(&mut self, seat: &mut Seat<'_>) -> usize;

    /// Sleeps until there may be something to do, but no longer than so.
    fn sleep(&mut self, timeout: Duration);

    /// One turn of the device and its own. Returns how much there was to do.
    fn drive(&mut self) -> usize {
        let device = self.device().clone();
        let mut guard = device.lock();
        let mut work = guard.progress();
        work += self.turn(&mut guard.seat());
        if work > 0 {
            guard.transmit();
        }
        work
    }

    /// As [`Caller::drive`]; if there is nothing to do, another thread has the core.
    fn drive_or_yield(&mut self) {
        if self.drive() == 0 {
            // There may be fewer cores than pollers: a node that shares this one has what is waited for.
            std::thread::yield_now();
        }
    }

    /// Calls nodes until one answers.
    fn up_within(mut self, timeout: Duration) -> Result<Self, Error> {
        let end = Instant::now() + timeout;
        while !self.is_up() {
            if Instant::now() > end {
                let address = self.address();
                return Err(match self.refused() {
                    Some((why, reason)) => Error::Refused { address, why, reason },
                    None => Error::Unreachable(address),
                });
            }
            self.drive_or_yield();
            self.sleep(Duration::from_millis(1));
        }
        Ok(self)
    }

    /// Polls until there is a result.
    fn finish_by<T>(&mut self, mut poll: impl FnMut(&mut Self) -> Option<T>) -> T {
        let mut idle = 0;
        loop {
            if let Some(result) = poll(self) {
                return result;
            }
            idle += 1;
            if idle > IDLE {
                self.sleep(Duration::from_millis(10));
            }
        }
    }
}

/// A device for a client; a client without nodes has none.
pub(super) fn device(config: &ClusterClientConfig) -> Result<Device, Error> {
    if config.nodes.is_empty() {
        return Err(Error::Argument("a cluster has at least one node".into()));
    }
    let (local, link) = match config.local {
        Some(local) => (local, link_at(local, config.link, &Layers::default())?),
        None => at_free_loopback(|local| Ok((local, link_at(local, config.link, &Layers::default())?)))?,
    };
    Device::new(local, vec![link], None)
}

/// Whether a node may be at this address, as far as the link can tell.
pub(super) fn is_there(seat: &mut Seat<'_>, node: IpAddr) -> bool {
    seat.links.first_mut().is_some_and(|link| link.reach(node).unwrap_or(false))
}

/// Calls a node at one of its ports as a client that says this of itself, with a queue pair in INIT.
pub(super) fn call(
    seat: &mut Seat<'_>,
    qpn: Qpn,
    (node, port): (IpAddr, u16),
    said: &ClientHello,
    secret: Option<&Secret>,
) -> Option<ConnId> {
    // A node that acknowledges nothing for some 0.1 s is gone.
    let path_mtu = seat.links.first()?.max_mtu() as u32;
    // Answers for which this client has no room are not to keep the node busy: it tries again after 0.64 ms.
    let attr = ConnectAttr { path_mtu, min_rnr_timer: 12, ack_timeout: 12, ..ConnectAttr::default() };
    let route = remora_nic::Route { local: seat.local, remote: node, link: 0 };
    let call = match secret {
        Some(secret) => hello::mark(secret, &said.encode(), node),
        None => said.encode().to_vec(),
    };
    seat.nic.connect(seat.now.time(), qpn, route, service_id(port), attr, &call).ok()
}

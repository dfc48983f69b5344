//! Calling a node: from a queue pair in INIT to a connection.

use std::net::IpAddr;
use std::time::Duration;

use remora_memory::Access;
use remora_nic::cm::{CmEvent, ConnId, reason, service_id};
use remora_nic::{ConnectAttr, Event, Qpn};
use remora_service::control::{self, Offer};

use crate::device::Device;
use crate::error::Error;

/// The smallest path MTU that there is.
pub(crate) const MIN_MTU: u32 = 256;

/// Calls the node and waits for the connection to stand, up to `timeout`. Returns it, the path MTU that it has (at
/// most `path_mtu`, and what the node's own link carries), and what the node says of itself. A node that remembers an earlier connection of this queue pair
/// number calls the new one stale for a while (IBTA volume 1, 12.9.8.3.1): then it is called again.
pub(crate) fn dial(
    device: &Device,
    qp: Qpn,
    node: IpAddr,
    mut path_mtu: u32,
    timeout: Duration,
) -> Result<(ConnId, u32, Offer), Error> {
    let end = device.now().saturating_add(timeout.as_nanos() as u64);
    loop {
        match call_once(device, qp, node, path_mtu, end) {
            Err(Error::Refused { reason: reason::STALE_CONNECTION, .. }) if device.now() < end => {
                std::thread::sleep(Duration::from_millis(100));
            }
            Err(Error::Refused { reason: reason::INVALID_PATH_MTU, .. }) if path_mtu > MIN_MTU => path_mtu /= 2,
            other => return other.map(|(conn, offer)| (conn, path_mtu, offer)),
        }
        let mut guard = device.lock();
        guard.nic().to_reset(qp)?;
        guard.nic().to_init(qp, Access::REMOTE_WRITE, 0)?;
    }
}

fn call_once(device: &Device, qp: Qpn, node: IpAddr, path_mtu: u32, end: u64) -> Result<(ConnId, Offer), Error> {
    let conn = {
        let mut guard = device.lock();
        let (now, route) = (guard.now(), guard.route(node, 0));
        let attr = ConnectAttr { path_mtu, ..ConnectAttr::default() };
        guard.nic().connect(now, qp, route, service_id(control::PORT), attr, &[])?
    };
    let start = device.now();
    while device.now() < end {
        let mut guard = device.lock();
        guard.progress();
        for event in guard.take_events() {
            match event {
                Event::Cm(CmEvent::Established { conn: c, private_data, .. }) if c == conn => {
                    return Ok((conn, Offer::decode(&private_data)));
                }
                Event::Cm(CmEvent::Rejected { conn: c, reason, private_data }) if c == conn => {
                    return Err(Error::Refused { address: node, why: refusal(reason, &private_data), reason });
                }
                Event::Cm(CmEvent::Unreachable { conn: c }) if c == conn => return Err(Error::Unreachable(node)),
                _ => {}
            }
        }
        drop(guard);
        device.relax(device.now().saturating_sub(start));
    }
    Err(Error::Unreachable(node))
}

/// Why a node refused, in its own words if it gave some (a rejection's private data is padded with zeros).
fn refusal(reason: u16, private: &[u8]) -> String {
    let text = String::from_utf8_lossy(private);
    match (text.trim_end_matches('\0'), reason) {
        ("", reason::NO_RESOURCES) => "it has as many connections as it takes".into(),
        ("", reason::INVALID_SERVICE_ID) => "something else than `remora node` listens there".into(),
        ("", _) => "it gives no explanation".into(),
        (text, _) => text.chars().filter(|c| !c.is_control()).collect(),
    }
}

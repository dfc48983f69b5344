//! One address for several engines: peers are shared out among them as they come.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use remora_memory::Buffer;
use remora_nic::Lane;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net;

use super::socket::{name_of, unix_socket};
use crate::link::lanes;

/// A peer that has said hello: its address, its socket and its rings.
pub(super) type Newcomer = (IpAddr, OwnedFd, Buffer);

/// Where the engines of one address meet: one of them welcomes peers for all.
struct ShmPorts {
    ip: IpAddr,
    listener: OwnedFd,
    places: Vec<Place>,
}

/// One engine.
struct Place {
    /// Peers that it was given.
    peers: AtomicUsize,
    /// Those that it has not taken yet.
    waiting: Mutex<Vec<Newcomer>>,
    bell: OwnedFd,
}

/// The way in of one of the engines of an address.
#[derive(Clone)]
pub struct ShmPort {
    ports: Arc<ShmPorts>,
    lane: Lane,
}

impl ShmPort {
    /// Listens for peers under the address `ip`, for so many engines.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if a process in this network namespace listens under that address, `InvalidInput` for the wildcard, and
    /// for a number that cannot be.
    pub fn bind(ip: IpAddr, count: u16) -> io::Result<Vec<ShmPort>> {
        if ip.is_unspecified() {
            let message = "shared memory needs the address that peers will ask for, not the wildcard";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let lanes = lanes(count)?;
        let listener = unix_socket()?;
        net::bind(&listener, &name_of(ip)?)
            .map_err(|e| io::Error::new(e.kind(), format!("shared memory for {ip}: {e}")))?;
        net::listen(&listener, 64)?;
        let place = || {
            let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
            Ok(Place { peers: AtomicUsize::new(0), waiting: Mutex::default(), bell })
        };
        let places = lanes.iter().map(|_| place()).collect::<io::Result<_>>()?;
        let ports = Arc::new(ShmPorts { ip, listener, places });
        Ok(lanes.into_iter().map(|lane| ShmPort { ports: ports.clone(), lane }).collect())
    }

    /// The address.
    pub(super) fn ip(&self) -> IpAddr {
        self.ports.ip
    }

    /// Where peers come, for the one that welcomes them.
    pub(super) fn listener(&self) -> Option<&OwnedFd> {
        (self.lane.index() == 0).then_some(&self.ports.listener)
    }

    /// What becomes readable when a peer has come.
    pub(super) fn wait_fd(&self) -> RawFd {
        self.listener().unwrap_or(&self.place().bell).as_raw_fd()
    }

    fn place(&self) -> &Place {
        &self.ports.places[usize::from(self.lane.index())]
    }

    /// Gives a peer to the engine that has fewest. It comes back if that is this one.
    pub(super) fn share_out(&self, newcomer: Newcomer) -> Option<Newcomer> {
        let places = &self.ports.places;
        let (index, place) = places.iter().enumerate().min_by_key(|(_, place)| place.peers.load(Ordering::Relaxed))?;
        place.peers.fetch_add(1, Ordering::Relaxed);
        if index == usize::from(self.lane.index()) {
            return Some(newcomer);
        }
        place.waiting.lock().push(newcomer);
        // A full counter means that it is being woken already.
        let _ = rustix::io::write(&place.bell, &1u64.to_ne_bytes());
        None
    }

    /// The peers that another engine has welcomed for this one.
    pub(super) fn take(&self) -> Vec<Newcomer> {
        let (place, mut rung) = (self.place(), [0; 8]);
        // Whoever rang has put the peer there before.
        match rustix::io::read(&place.bell, &mut rung) {
            Ok(_) => std::mem::take(&mut *place.waiting.lock()),
            Err(_) => Vec::new(),
        }
    }

    /// So many peers that it was given are gone.
    pub(super) fn lost(&self, peers: usize) {
        self.place().peers.fetch_sub(peers, Ordering::Relaxed);
    }
}

//! Links on top of links: what lies between a device and the links that carry its packets.
//!
//! A layer is a link that has another one inside. It writes the methods of [`Link`] that it changes and leaves the others
//! to the inner link by `forward!`. Layers stack in any order; [`Layers`] has the one that commands use. A device without
//! layers has its links as they are: nothing is asked on a packet's way.

use std::fmt;
use std::io;
use std::net::IpAddr;

use super::lossy::{Faults, Lossy};
use super::pcap::{Pcap, PcapFile};
use super::traced::{Traced, Tracer};
use super::{Link, LinkKind};

/// Which layers the links of a device have; by default none.
#[derive(Clone, Default)]
pub struct Layers {
    /// Next to the link: all that it carries goes into a file.
    pub pcap: Option<PcapFile>,
    /// Around that: hears of every packet.
    pub tracer: Option<Tracer>,
    /// Outermost, so that the others see what came before it suffered: seeded faults of packets received.
    pub faults: Option<(Faults, u64)>,
}

impl Layers {
    /// A link of this kind at `local`, with these layers.
    ///
    /// # Errors
    ///
    /// As [`LinkKind::bind`].
    pub fn bind(&self, kind: LinkKind, local: IpAddr) -> io::Result<Box<dyn Link>> {
        Ok(self.around(kind.bind(local)?, local))
    }

    /// Wraps a link whose own address is `local`.
    pub fn around(&self, mut link: Box<dyn Link>, local: IpAddr) -> Box<dyn Link> {
        if let Some(file) = &self.pcap {
            link = Box::new(Pcap::new(link, local, file.clone()));
        }
        if let Some(tracer) = &self.tracer {
            link = Box::new(Traced::new(link, tracer.clone()));
        }
        if let Some((faults, seed)) = self.faults {
            link = Box::new(Lossy::new(link, faults, seed));
        }
        link
    }
}

impl fmt::Debug for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pcap, tracer, faults } = self;
        let mut f = f.debug_struct("Layers");
        f.field("pcap", pcap).field("tracer", &tracer.is_some()).field("faults", faults).finish()
    }
}

impl<L: Link + ?Sized> Link for Box<L> {
    forward!(self => (**self); kind max_mtu reach send recv recv_in_place lend send_lent look_ahead admit join leave recv_groups
        wait_fds arm disarm stats);
}

/// Writes the named methods of [`Link`] as calls of the same of another link: `forward!(self => self.inner; arm disarm);`
macro_rules! forward {
    ($this:ident => $inner:expr; $($method:ident)*) => {
        $($crate::link::layers::forward!(@ $this, $inner, $method);)*
    };
    (@ $this:ident, $inner:expr, kind) => {
        fn kind(&$this) -> $crate::link::LinkKind {
            $inner.kind()
        }
    };
    (@ $this:ident, $inner:expr, max_mtu) => {
        fn max_mtu(&$this) -> usize {
            $inner.max_mtu()
        }
    };
    (@ $this:ident, $inner:expr, reach) => {
        fn reach(&mut $this, peer: std::net::IpAddr) -> std::io::Result<bool> {
            $inner.reach(peer)
        }
    };
    (@ $this:ident, $inner:expr, send) => {
        fn send(&mut $this, to: std::net::IpAddr, bytes: &mut [u8], lens: &[u16]) -> std::io::Result<usize> {
            $inner.send(to, bytes, lens)
        }
    };
    (@ $this:ident, $inner:expr, recv) => {
        fn recv(&mut $this, sink: &mut dyn FnMut(std::net::IpAddr, &[u8])) -> std::io::Result<usize> {
            $inner.recv(sink)
        }
    };
    (@ $this:ident, $inner:expr, recv_in_place) => {
        fn recv_in_place(
            &mut $this,
            sink: &mut dyn FnMut(std::net::IpAddr, remora_nic::Packet<'_>),
        ) -> std::io::Result<usize> {
            $inner.recv_in_place(sink)
        }
    };
    (@ $this:ident, $inner:expr, lend) => {
        fn lend(&mut $this, to: std::net::IpAddr) -> Option<remora_nic::Room> {
            $inner.lend(to)
        }
    };
    (@ $this:ident, $inner:expr, send_lent) => {
        fn send_lent(&mut $this, to: std::net::IpAddr, lens: &[u16], referred: u64) {
            $inner.send_lent(to, lens, referred);
        }
    };
    (@ $this:ident, $inner:expr, look_ahead) => {
        fn look_ahead(&mut $this, lookahead: &std::sync::Arc<remora_memory::Lookahead>) {
            $inner.look_ahead(lookahead);
        }
    };
    (@ $this:ident, $inner:expr, admit) => {
        fn admit(&mut $this, admission: &$crate::link::admission::Admission<'_>) {
            $inner.admit(admission);
        }
    };
    (@ $this:ident, $inner:expr, join) => {
        fn join(&mut $this, group: std::net::IpAddr) -> std::io::Result<()> {
            $inner.join(group)
        }
    };
    (@ $this:ident, $inner:expr, leave) => {
        fn leave(&mut $this, group: std::net::IpAddr) {
            $inner.leave(group);
        }
    };
    (@ $this:ident, $inner:expr, recv_groups) => {
        fn recv_groups(&mut $this, sink: &mut dyn FnMut(std::net::IpAddr, std::net::IpAddr, &[u8])) -> std::io::Result<usize> {
            $inner.recv_groups(sink)
        }
    };
    (@ $this:ident, $inner:expr, wait_fds) => {
        fn wait_fds(&$this, out: &mut Vec<std::os::fd::RawFd>) {
            $inner.wait_fds(out);
        }
    };
    (@ $this:ident, $inner:expr, arm) => {
        fn arm(&mut $this) -> bool {
            $inner.arm()
        }
    };
    (@ $this:ident, $inner:expr, disarm) => {
        fn disarm(&mut $this) {
            $inner.disarm();
        }
    };
    (@ $this:ident, $inner:expr, stats) => {
        fn stats(&$this) -> $crate::link::LinkStats {
            $inner.stats()
        }
    };
}
pub(super) use forward;

//! Packets on their way from the links to the engine.

use std::net::IpAddr;

use remora_nic::{Nic, Packet, Time};

use crate::kernels::Kernels;
use crate::link::Link;

/// Polls without a packet after which a link is asked only at one poll in sixteen.
const QUIET_POLLS: u32 = 4096;

/// Which links to ask.
pub(super) struct Inbox {
    /// Polls of each link since it had something.
    quiet: Vec<u32>,
    /// Some link has joined a multicast group.
    joined: bool,
}

impl Inbox {
    pub fn new(links: usize) -> Self {
        Self { quiet: vec![0; links], joined: false }
    }

    /// Links are to be asked for what comes to groups too.
    pub fn listen_to_groups(&mut self) {
        self.joined = true;
    }

    /// Any of them may have something: all slept.
    pub fn ask_all(&mut self) {
        self.quiet.fill(0);
    }

    /// Takes what came, at the device's `poll`th poll. Returns how many packets that were.
    #[inline]
    pub fn receive(
        &mut self,
        (now, poll): (Time, u32),
        local: IpAddr,
        nic: &mut Nic,
        links: &mut [Box<dyn Link>],
        kernels: &mut Option<Kernels>,
    ) -> usize {
        let Self { quiet, joined } = self;
        let mut packets = 0;
        // A link that has long been quiet is asked less often: a busy one beside it need not wait for its socket.
        let busy = quiet.iter().any(|&polls| polls <= QUIET_POLLS) && !poll.is_multiple_of(16);
        for (index, link) in links.iter_mut().enumerate() {
            if busy && quiet[index] > QUIET_POLLS {
                continue;
            }
            // A broken socket shows as silence; the peer's retries and ours report it.
            let sink = &mut |src, packet: Packet<'_>| {
                nic.handle(now, index as u8, (src, local), packet);
                if nic.has_stream()
                    && let Some(kernels) = kernels
                {
                    kernels.stream(now, nic);
                }
            };
            let count = link.recv_in_place(sink).unwrap_or(0);
            quiet[index] = if count > 0 { 0 } else { quiet[index].saturating_add(1) };
            packets += count;
            if *joined {
                let sink = &mut |src, group, packet: &[u8]| nic.handle_packet(now, index as u8, src, group, packet);
                packets += link.recv_groups(sink).unwrap_or(0);
            }
        }
        packets
    }
}

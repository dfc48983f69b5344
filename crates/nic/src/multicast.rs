//! Multicast: a datagram to a group goes to every queue pair that is attached to it.
//!
//! InfiniBand specification, volume 1, section 10.5. RoCE v2 groups are IP multicast groups (annex A17.9.4).

use std::collections::BTreeMap;
use std::net::IpAddr;

use remora_wire::{Bth, ICRC_LEN, Service};

use crate::nic::Nic;
use crate::types::*;

/// The queue pair number that stands for all members of a group.
pub const MULTICAST_QP: u32 = 0xff_ffff;

/// The members of each group, in the order in which they came.
pub(crate) type Groups = BTreeMap<IpAddr, Vec<Qpn>>;

impl Nic {
    /// Attaches a datagram queue pair to a multicast group. Doing it again changes nothing.
    ///
    /// The world sees to it that packets to the group arrive, and gives them with the group as their destination.
    pub fn attach(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), NicError> {
        if self.qp(qpn)?.init.kind != QpType::Ud {
            return Err(NicError::Unsupported("only datagram queue pairs join multicast groups"));
        }
        if !group.is_multicast() {
            return Err(NicError::Unsupported("the group's address is not a multicast address"));
        }
        let limits = self.limits();
        let full = self.groups.len() >= limits.groups as usize;
        if full && !self.groups.contains_key(&group) {
            return Err(NicError::Exhausted("multicast group"));
        }
        let members = self.groups.entry(group).or_default();
        if members.len() >= limits.group_members as usize {
            return Err(NicError::Exhausted("queue pair in the multicast group"));
        }
        if !members.contains(&qpn) {
            members.push(qpn);
        }
        Ok(())
    }

    /// Takes a queue pair out of a multicast group.
    pub fn detach(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), NicError> {
        let missing = NicError::NoSuch("member of the multicast group");
        let members = self.groups.get_mut(&group).ok_or(missing)?;
        let at = members.iter().position(|member| *member == qpn).ok_or(missing)?;
        members.remove(at);
        if members.is_empty() {
            self.groups.remove(&group);
        }
        Ok(())
    }

    /// Queue pairs attached to a multicast group.
    pub fn group_members(&self, group: IpAddr) -> usize {
        self.groups.get(&group).map_or(0, Vec::len)
    }

    /// Whether a queue pair is in a multicast group.
    pub(crate) fn is_attached(&self, qpn: Qpn) -> bool {
        self.groups.values().any(|members| members.contains(&qpn))
    }

    /// Gives a datagram to the members of the group that it was sent to. False if none took it.
    pub(crate) fn deliver_multicast(
        &mut self,
        bth: &Bth,
        rest: &[u8],
        (src, group): (IpAddr, IpAddr),
        except: Option<Qpn>,
    ) -> bool {
        let mut taken = false;
        for at in 0..self.group_members(group) {
            let Some(&member) = self.groups.get(&group).and_then(|members| members.get(at)) else { break };
            if bth.opcode.service() == Service::Ud && Some(member) != except {
                let took =
                    self.with_qp(member, |qp, ctx| qp.receives() && qp.handle_datagram(ctx, bth, rest, src, group));
                taken |= took == Ok(true);
            }
        }
        taken
    }

    /// Gives what was just sent to groups to the other members on this side.
    pub(crate) fn loop_multicast(&mut self) {
        while let Some(sent) = self.ctx.multicast.pop_front() {
            if let Ok(bth) = Bth::parse(&sent.packet) {
                let end = sent.packet.len() - ICRC_LEN - usize::from(bth.pad);
                let ends = (sent.route.local, sent.route.remote);
                self.deliver_multicast(&bth, &sent.packet[Bth::LEN..end], ends, Some(sent.from));
            }
            self.ctx.rpc.recycle(sent.packet);
        }
    }
}

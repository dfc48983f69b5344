//! What the kernel lets into a UDP socket, so that packets for nobody cost this process nothing: a classic BPF program
//! looks at the number of the queue pair that a packet is for.
//!
//! Numbers are random, so that forged packets are for none that lives but once in millions. Messages of connection
//! management are for queue pair 1, whoever sends them; when more come than anybody has reason to send, chance decides
//! which are let in. The program costs each packet that comes some 70 ns, so it stands only where and as long as packets
//! for nobody come in numbers. Runs of packets that the kernel holds as one are let in: each is not looked at.

use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGT, BPF_JMP, BPF_K, BPF_LD, BPF_LEN, BPF_RET, BPF_W, sock_filter};

use super::MAX_PACKET;

/// Queue pairs that a program looks for, one after the other; if there are more, all are let in.
pub const MOST: usize = 200;

/// Whom packets may be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission<'a> {
    /// Numbers of queue pairs; packets for others are dropped. `None` lets all in.
    pub queue_pairs: Option<&'a [u32]>,
    /// Of 2^32 messages to queue pair 1, so many are let in.
    pub share: u32,
}

pub(super) const fn op(code: u32, yes: u8, no: u8, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: yes, jf: no, k }
}

/// Bytes of the UDP header, with which a program's view of a datagram begins.
const UDP: u32 = 8;
/// `SKF_AD_OFF + SKF_AD_RANDOM`: a load from there is a random number.
const RANDOM: u32 = (-0x1000 + 56) as u32;
const ACCEPT: sock_filter = op(BPF_RET | BPF_K, 0, 0, u32::MAX);
const DROP: sock_filter = op(BPF_RET | BPF_K, 0, 0, 0);

impl Admission<'_> {
    /// All are let in: no program is needed.
    pub fn is_all(&self) -> bool {
        self.queue_pairs.is_none() && self.share == u32::MAX
    }

    /// The program.
    pub fn program(&self) -> Vec<sock_filter> {
        let numbers = self.queue_pairs.filter(|numbers| numbers.len() <= MOST);
        let listed = numbers.unwrap_or(&[]);
        let equal = |to: usize, at: usize, k: u32| op(BPF_JMP | BPF_JEQ | BPF_K, (to - at - 1) as u8, 0, k);
        // 0-5, the list, what becomes of the others, then the two ends.
        let (others, accept) = (6 + listed.len(), 7 + listed.len());
        let managed = accept + 1;
        let mut out = vec![
            op(BPF_LD | BPF_W | BPF_LEN, 0, 0, 0),
            op(BPF_JMP | BPF_JGT | BPF_K, (accept - 2) as u8, 0, UDP + MAX_PACKET as u32),
            op(BPF_LD | BPF_W | BPF_ABS, 0, 0, UDP + 4),
            op(BPF_ALU | BPF_AND | BPF_K, 0, 0, 0xff_ffff),
            equal(managed, 4, 1),
            equal(accept, 5, 0xff_ffff),
        ];
        out.extend(listed.iter().zip(6..).map(|(&number, at)| equal(accept, at, number)));
        debug_assert_eq!(out.len(), others);
        out.push(if numbers.is_some() { DROP } else { ACCEPT });
        out.push(ACCEPT);
        match self.share {
            u32::MAX => out.push(ACCEPT),
            share => out.extend([
                op(BPF_LD | BPF_W | BPF_ABS, 0, 0, RANDOM),
                op(BPF_JMP | BPF_JGT | BPF_K, 0, 1, share),
                DROP,
                ACCEPT,
            ]),
        }
        out
    }
}

/// How long messages of connection management are counted for, nanoseconds.
const WINDOW: u64 = 10_000_000;
/// What is let in at least.
const LEAST: u32 = u32::MAX / 128;

/// Packets for nobody, or broken ones, that come in a window before the list of queue pairs is asked for.
const STRANGERS: u64 = 100;
/// How long the list stands at first, and at most: while it does nobody sees whether it is still needed, so that it is
/// lifted now and then, later each time.
const REST: std::ops::Range<u64> = 1_000_000_000..64_000_000_000;

/// What a device's engine and links have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Messages of connection management that the engine has taken.
    pub taken: u64,
    /// Those that it has shed.
    pub shed: u64,
    /// Packets for nobody, and broken ones.
    pub strangers: u64,
}

/// Follows what a device's engine has and what comes for nobody, and says when links are to admit something else.
pub struct Gate {
    version: u64,
    numbers: Vec<u32>,
    /// The list of queue pairs stands.
    listed: bool,
    share: u32,
    /// The window, and what was counted before it.
    since: u64,
    counted: Counted,
    /// When the list is lifted, or was; and how long it stands the next time.
    lifted_at: u64,
    rest: u64,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            version: u64::MAX,
            numbers: Vec::new(),
            listed: false,
            share: u32::MAX,
            since: 0,
            counted: Counted::default(),
            lifted_at: 0,
            rest: REST.start,
        }
    }
}

impl Gate {
    /// Whether [`follow`](Self::follow) may have something to say.
    #[inline]
    pub fn is_due(&self, now: u64, version: u64) -> bool {
        version != self.version || self.is_over(now)
    }

    /// Whether the window is.
    #[inline]
    fn is_over(&self, now: u64) -> bool {
        now.saturating_sub(self.since) >= WINDOW
    }

    /// Whether something has changed: queue pairs, whose `version` that is and whose numbers `numbers` fills in, or what
    /// was counted.
    #[inline]
    pub fn follow(
        &mut self,
        now: u64,
        version: u64,
        count: impl FnOnce() -> Counted,
        numbers: impl FnOnce(&mut Vec<u32>),
    ) -> Option<Admission<'_>> {
        if !self.is_due(now, version) {
            return None;
        }
        let window_over = self.is_over(now);
        let before = (self.listed, self.share);
        if window_over {
            self.next_window(now, count());
        }
        let changed = version != self.version;
        if changed {
            self.version = version;
            self.numbers.clear();
            numbers(&mut self.numbers);
        }
        let queue_pairs = self.listed.then_some(&self.numbers[..]);
        let stays = before == (self.listed, self.share) && !(changed && self.listed);
        (!stays).then_some(Admission { queue_pairs, share: self.share })
    }

    #[cold]
    fn next_window(&mut self, now: u64, counted: Counted) {
        let before = std::mem::replace(&mut self.counted, counted);
        let (taken, shed) = (counted.taken - before.taken, counted.shed - before.shed);
        self.share = match shed {
            0 => self.share.saturating_mul(2),
            _ => ((u64::from(self.share) * taken / (taken + shed)) as u32).max(LEAST),
        };
        let windows = (now - std::mem::replace(&mut self.since, now)) / WINDOW;
        let strangers = counted.strangers.saturating_sub(before.strangers);
        if !self.listed && strangers >= STRANGERS.saturating_mul(windows) {
            if now.saturating_sub(self.lifted_at) > REST.end {
                self.rest = REST.start;
            }
            (self.listed, self.lifted_at) = (true, now + self.rest);
            self.rest = (2 * self.rest).min(REST.end);
        } else if self.listed && now >= self.lifted_at {
            self.listed = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Link;
    use crate::link::testing::{collect, in_namespace};
    use crate::link::udp::UdpLink;
    use remora_wire::UDP_PORT;
    use remora_wire::icrc::IcrcFlow;
    use std::net::{Ipv4Addr, UdpSocket};

    fn packet(flow: &IcrcFlow, qpn: u32, len: usize) -> Vec<u8> {
        let mut bytes = vec![1; len];
        bytes[4..8].copy_from_slice(&(0xab << 24 | qpn).to_be_bytes());
        flow.fill(0, &mut bytes);
        bytes
    }

    #[test]
    fn the_kernel_lets_in_what_is_for_somebody() {
        in_namespace(|| {
            let (ip, peer_ip) = (Ipv4Addr::new(127, 5, 0, 1), Ipv4Addr::new(127, 5, 0, 2));
            let mut link = UdpLink::bind(ip.into()).unwrap();
            let peer = UdpSocket::bind((peer_ip, 0)).unwrap();
            let flow = IcrcFlow::v4(peer_ip, ip, peer.local_addr().unwrap().port(), UDP_PORT);
            let many: Vec<u32> = (1000..1000 + MOST as u32).collect();
            for (numbers, let_in) in [(Some(&many[..]), 5), (Some(&[][..]), 2), (None, 6)] {
                link.admit(&Admission { queue_pairs: numbers, share: u32::MAX });
                // The first and the last of the list, one beside it, connection management and multicast.
                for qpn in [1000, 1000 + MOST as u32 - 1, 999, 1, 0xff_ffff] {
                    peer.send_to(&packet(&flow, qpn, 64), (ip, UDP_PORT)).unwrap();
                }
                peer.send_to(&packet(&flow, 1000, MAX_PACKET), (ip, UDP_PORT)).unwrap();
                assert_eq!(collect(&mut link, let_in).len(), let_in);
                assert_eq!(link.recv(&mut |_, _| panic!("nothing more")).unwrap(), 0);
            }
        });
    }

    #[test]
    fn in_a_flood_chance_decides() {
        in_namespace(|| {
            let (ip, peer_ip) = (Ipv4Addr::new(127, 5, 0, 1), Ipv4Addr::new(127, 5, 0, 2));
            let mut link = UdpLink::bind(ip.into()).unwrap();
            let peer = UdpSocket::bind((peer_ip, 0)).unwrap();
            let flow = IcrcFlow::v4(peer_ip, ip, peer.local_addr().unwrap().port(), UDP_PORT);
            link.admit(&Admission { queue_pairs: Some(&[7]), share: u32::MAX / 4 });
            let mut came = [0, 0];
            let mut take = |link: &mut UdpLink| {
                link.recv(&mut |_, packet| came[usize::from(packet[7] == 7)] += 1).unwrap();
                came
            };
            for _ in 0..400 {
                for qpn in [1, 7] {
                    peer.send_to(&packet(&flow, qpn, 64), (ip, UDP_PORT)).unwrap();
                    take(&mut link);
                }
            }
            // The kernel may hand one over late; they come in order.
            let came =
                remora_testing::eventually("all of the one", || Some(take(&mut link)).filter(|came| came[1] == 400));
            // A hundred of 400, give or take seven standard deviations.
            assert!((40..160).contains(&came[0]) && came[1] == 400, "{came:?}");
        });
    }

    #[test]
    fn the_share_falls_with_a_flood_and_comes_back() {
        let mut gate = Gate::default();
        let mut follow = |now, (taken, shed)| {
            let count = || Counted { taken, shed, strangers: 0 };
            gate.follow(now, 0, count, |out| out.push(5))
                .map(|admission| (admission.queue_pairs.is_some(), admission.share))
        };
        assert_eq!(follow(0, (0, 0)), None, "who is not flooded needs no program");
        assert_eq!(follow(WINDOW - 1, (100, 300)), None);
        assert_eq!(follow(WINDOW, (100, 300)), Some((false, u32::MAX / 4)));
        let mut messages = (100, 300);
        for n in 2..10 {
            messages = (messages.0 + 50, messages.1 + 50_000);
            assert_eq!(follow(n * WINDOW, messages), (n == 2).then_some((false, LEAST)));
        }
        let back: Vec<_> = (10..20).filter_map(|n| follow(n * WINDOW, messages)).collect();
        assert_eq!(back.last(), Some(&(false, u32::MAX)));
    }

    #[test]
    fn the_list_stands_while_strangers_come_and_is_lifted_ever_later() {
        let (mut gate, mut strangers, mut stood) = (Gate::default(), 0, Vec::new());
        let mut since = None;
        // A flood of 50,000 a second, of which nothing is seen while the list stands, and that ends after half the time.
        for n in 1..20_000 {
            strangers += if since.is_none() && n < 10_000 { 500 } else { 1 };
            let count = || Counted { strangers, ..Counted::default() };
            // Queue pairs come and go.
            let Some(admission) = gate.follow(n * WINDOW, n / 1000, count, |out| out.push(5)) else { continue };
            match (admission.queue_pairs, since) {
                (Some(list), None) => {
                    assert_eq!(list, [5]);
                    since = Some(n);
                }
                (None, Some(from)) => {
                    stood.push((n - from) * WINDOW / 1_000_000_000);
                    since = None;
                }
                (list, _) => assert!(list.is_some_and(|list| list == [5]), "of new queue pairs"),
            }
        }
        assert_eq!(stood, [1, 2, 4, 8, 16, 32, 64], "seconds");
        assert_eq!(since, None, "nobody comes any more");
    }
}

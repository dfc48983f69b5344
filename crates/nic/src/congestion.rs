//! Congestion control: a queue pair slows down when packets to its peer are marked by switches, or many of them lost.
//!
//! After DCQCN (Zhu et al., *Congestion Control for Large-Scale RDMA Deployments*, SIGCOMM 2015):
//!
//! - **Notification point**: who receives packets that met congestion (a link shows that in the BTH's FECN) sends a
//!   congestion notification packet (annex A17.9.3), one in 50 us. Between two engines of this kind more than one packet in
//!   [sixteen](HEAVY) lost counts as a mark does, as few switches mark; and the notification says at which rate packets arrive.
//! - **Reaction point**: a notification sets the rate of all that the queue pair sends, at most once a [period](PERIOD), to
//!   what arrives, less half of `alpha`, the smoothed part of packets that met congestion. Each period without brings back half
//!   of what that took, and a little more; many in a row more and more. Who sends less than what arrives at the other end has
//!   packets in a queue that becomes shorter, and is left alone.
//!
//! One packet in a hundred that is lost by chance slows nobody down: selective repeat makes up for it. A queue pair without
//! news of congestion has no rate, and nothing of this to pay for.

use remora_wire::{Bth, Opcode, Psn};

use crate::arrival::Body;
use crate::ctx::Ctx;
use crate::packet::Writer;
use crate::qp::QueuePair;
use crate::queue::TxBatch;
use crate::reorder::WINDOW;
use crate::selective::SELECTIVE;
use crate::types::*;

/// One packet lost in so many is chance, and [`CHANCE`] beside; more are congestion.
const HEAVY: u32 = 16;
const CHANCE: u32 = 3;
/// Of fewer packets nobody can tell.
const WEIGHED: u32 = 32;
/// Packets whose arrivals make a rate.
const MEASURED: u32 = 8;
/// A notification point sends one notification in so long at most (section 5.2 there), nanoseconds.
const QUIET: Time = 50_000;
/// A reaction point's period: that of deployed NICs. It is the same for all, so that all grow alike.
const PERIOD: Time = 300_000;
/// A rate grows by so many bytes a second in a period without news, and from so many such periods in a row on faster.
const GROWTH: u64 = 400_000;
const CALM: u32 = 64;
/// The lowest rate, bytes a second.
const LEAST: u64 = 1_000_000;
/// After so long without news there is nothing to know any more, nanoseconds.
const OVER: Time = 100_000_000;
/// What may leave at once, as the time that it takes at the rate.
const BURST: Time = 50_000;
/// `alpha` is of this; a period with or without news moves it by a part of the way.
const ONE: u64 = 1024;
const GAIN: u64 = 16;
/// Bytes behind the BTH of a notification. Between two engines of this kind: the rate at which packets arrive, bytes
/// a second, and the part of them that was marked, of [`ONE`]; 8 bytes each.
const CNP_LEN: usize = 16;
/// The highest rate that a peer may tell, bytes a second.
const FASTEST: u64 = 1 << 40;
/// No rate, yet.
const UNLIMITED: u64 = u64::MAX;

/// What a queue pair knows of congestion on its path, since there was any.
#[derive(Debug)]
pub(crate) struct Congestion {
    last_news: Time,
    arrivals: Arrivals,
    /// A notification is to be sent, with this rate.
    tell: Option<News>,
    pace: Pace,
}

/// What a notification says between two engines of this kind.
#[derive(Clone, Copy, Debug)]
struct News {
    /// Bytes a second that arrive.
    rate: u64,
    /// The part of packets, of [`ONE`], that were marked; all of it if many were lost.
    part: u64,
}

/// Packets of the peer since the last notification.
#[derive(Debug, Default)]
struct Arrivals {
    since: Time,
    packets: u32,
    bytes: u64,
    missing: u32,
    marked: u32,
}

/// The rate of what is sent.
#[derive(Debug)]
struct Pace {
    /// Bytes a second: now, and where it is to go.
    rate: u64,
    target: u64,
    alpha: u64,
    /// The last cut, the periods since, and the end of the present one.
    cut: Time,
    periods: u32,
    period_ends: Time,
    /// Bytes sent since the last cut.
    sent: u64,
    /// When all that was sent has left, at the rate.
    free_at: Time,
    /// Something waits for that.
    held: bool,
}

impl Arrivals {
    fn start(&mut self, now: Time) {
        *self = Self { since: now, ..Self::default() };
    }

    /// The part of packets, of [`ONE`], that tell of congestion.
    fn congested(&self) -> u64 {
        let all = self.packets + self.missing;
        match all >= WEIGHED && self.missing > CHANCE + all / HEAVY {
            true => ONE,
            false => u64::from(self.marked) * ONE / u64::from(self.packets.max(1)),
        }
    }
}

impl Pace {
    /// The path is congested, and lets `arrives` through, if the peer says that. What comes within a period is one notice.
    fn cut(&mut self, now: Time, news: Option<News>) {
        let since = now - self.cut;
        if since < PERIOD {
            return;
        }
        let sent = match self.rate {
            UNLIMITED if news.is_none() => per_second(self.sent, since),
            rate => rate,
        };
        if self.rate == UNLIMITED {
            self.free_at = now;
        }
        let part = news.map_or(ONE, |news| news.part);
        self.alpha = (self.alpha * (GAIN - 1) + part) / GAIN;
        let arrives = news.map_or(sent, |news| news.rate);
        if arrives <= sent {
            self.target = arrives;
            self.rate = (arrives - arrives / 2 * self.alpha / ONE).max(LEAST);
        }
        // Else it sends less than what arrives: the queue becomes shorter already.
        (self.cut, self.periods, self.period_ends, self.sent) = (now, 0, now + PERIOD, 0);
    }

    /// Time has passed without a notice.
    fn advance(&mut self, now: Time) {
        if now.saturating_sub(self.cut) > OVER {
            (self.rate, self.period_ends) = (UNLIMITED, Time::MAX);
        }
        while now >= self.period_ends {
            self.periods = self.periods.saturating_add(1);
            self.alpha -= self.alpha / GAIN;
            let step = u64::from(self.periods / CALM).pow(2).max(1);
            self.target = self.target.saturating_add(step * GROWTH);
            self.rate = self.rate / 2 + self.target / 2;
            self.period_ends += PERIOD;
        }
    }

    fn charge(&mut self, now: Time, bytes: usize) {
        self.sent += bytes as u64;
        if self.rate != UNLIMITED {
            let takes = bytes as u64 * 1_000_000_000 / self.rate.max(1);
            self.free_at = self.free_at.max(now.saturating_sub(BURST)) + takes;
        }
    }
}

impl Congestion {
    fn new(now: Time) -> Self {
        Self {
            last_news: now,
            arrivals: Arrivals { since: now, ..Arrivals::default() },
            tell: None,
            pace: Pace {
                rate: UNLIMITED,
                target: UNLIMITED,
                alpha: ONE,
                cut: now,
                periods: 0,
                period_ends: Time::MAX,
                sent: 0,
                free_at: 0,
                held: false,
            },
        }
    }

    /// Whether there was no news for so long that there is nothing to know.
    fn is_over(&self, now: Time) -> bool {
        now.saturating_sub(self.last_news) > OVER
    }

    /// A notification is to be sent.
    pub fn has_news(&self) -> bool {
        self.tell.is_some()
    }

    /// What is to be sent waits for its time.
    pub fn is_held(&self) -> bool {
        self.pace.held
    }

    /// When what is held may go on.
    pub fn wakes_at(&self) -> Option<Time> {
        self.pace.held.then_some(self.pace.free_at)
    }
}

fn per_second(bytes: u64, time: Time) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / u128::from(time.max(1))) as u64
}

impl QueuePair {
    fn congestion(&mut self, now: Time) -> &mut Congestion {
        self.congestion.get_or_insert_with(|| Box::new(Congestion::new(now)))
    }

    /// Whether another packet with data may leave.
    #[inline]
    pub(crate) fn may_send(&mut self, now: Time) -> bool {
        if self.congestion.is_none() {
            return true;
        }
        let congestion = self.congestion(now);
        if congestion.is_over(now) {
            self.congestion = None;
            return true;
        }
        let pace = &mut congestion.pace;
        pace.advance(now);
        pace.held = pace.free_at > now;
        !pace.held
    }

    /// What waited for its time may go on.
    pub(crate) fn release(&mut self, now: Time) {
        if let Some(congestion) = &mut self.congestion {
            congestion.pace.held &= congestion.pace.free_at > now;
        }
    }

    /// A packet of so many bytes was sent.
    #[inline]
    pub(crate) fn charge(&mut self, now: Time, bytes: usize) {
        if let Some(congestion) = &mut self.congestion {
            congestion.pace.charge(now, bytes);
        }
    }

    /// Nothing comes back from the peer.
    pub(crate) fn notice_silence(&mut self, now: Time) {
        if let Some(congestion) = &mut self.congestion {
            congestion.pace.cut(now, None);
        }
    }

    /// Packets of the peer are missing.
    pub(crate) fn note_missing(&mut self, now: Time, packets: u32) {
        if packets > 0 {
            self.congestion(now).arrivals.missing += packets;
        }
    }

    /// A packet came from the peer. One that only the peer can have sent is believed.
    #[inline]
    pub(crate) fn note_arrival(&mut self, now: Time, bth: &Bth, is_response: bool, rest: &Body<'_>) {
        let ahead = match is_response {
            true => bth.psn.distance(self.req.unacked),
            false => bth.psn.distance(self.resp.expected),
        };
        // Nobody loses for want of room what comes by memory.
        if ahead > 0 && !is_response && self.peer_selective && !rest.is_referred() {
            let missing = self.resp.missing_before(bth, rest, self.mtu);
            self.note_missing(now, missing);
        }
        if self.congestion.is_none() && !bth.fecn || ahead.unsigned_abs() > WINDOW || bth.opcode == Opcode::RcAck {
            return;
        }
        let congestion = self.congestion(now);
        let arrivals = &mut congestion.arrivals;
        arrivals.packets += 1;
        arrivals.bytes += rest.len() as u64;
        arrivals.marked += u32::from(bth.fecn);
        if now < arrivals.since + QUIET || arrivals.packets < MEASURED {
            return;
        }
        let part = arrivals.congested();
        if part > 0 {
            congestion.tell = Some(News { rate: per_second(arrivals.bytes, now - arrivals.since), part });
            congestion.last_news = now;
            arrivals.start(now);
        } else if arrivals.packets >= 4 * WEIGHED {
            arrivals.start(now);
        }
    }

    /// The peer says that packets to it meet congestion. One of our kind says by a PSN that it is the peer.
    pub(crate) fn handle_notification(&mut self, now: Time, bth: &Bth, rest: &[u8]) -> bool {
        if !self.sends() {
            return false;
        }
        let (mut news, behind) = (None, self.req.sent_psn.distance(bth.psn));
        if self.peer_selective || bth.reserved7 & SELECTIVE != 0 {
            let word = |at: usize| rest.get(at..)?.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
            let (Some(rate), Some(part)) = (word(0), word(8)) else { return false };
            if !(0..=WINDOW as i32).contains(&behind) {
                return false;
            }
            news = Some(News { rate: rate.min(FASTEST), part: part.min(ONE) });
        }
        let congestion = self.congestion(now);
        congestion.last_news = now;
        congestion.pace.cut(now, news);
        true
    }

    /// Builds the notification that is due into `batch`.
    pub(crate) fn emit_notification(&mut self, ctx: &mut Ctx, batch: &mut TxBatch) {
        let (Some(congestion), Some(route)) = (&mut self.congestion, self.route) else { return };
        let Some(News { rate, part }) = congestion.tell.take() else { return };
        let (psn, reserved7) = if self.peer_selective { (self.resp.expected, SELECTIVE) } else { (Psn::new(0), 0) };
        let bth = Bth { mig_req: false, becn: true, reserved7, ..Bth::new(Opcode::Cnp, self.attr.dest_qp, psn) };
        let mut writer = Writer::new(batch.space(), &bth);
        let payload = writer.payload(CNP_LEN);
        payload.fill(0);
        if self.peer_selective {
            payload[..8].copy_from_slice(&rate.to_be_bytes());
            payload[8..].copy_from_slice(&part.to_be_bytes());
        }
        let total = writer.finish(CNP_LEN);
        batch.commit(route, total);
        ctx.counters.tx_packets += 1;
        ctx.counters.tx_bytes += total as u64;
        ctx.counters.cnps_sent += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that somebody has forged too.
    #[test]
    fn whatever_a_notification_says_it_holds_for_a_tenth_of_a_second() {
        for rate in [0, 1, LEAST, FASTEST] {
            let mut pace = Congestion::new(0).pace;
            pace.sent = 1_250_000;
            pace.cut(1_000_000, Some(News { rate, part: ONE }));
            for tenths in 0..1000 {
                pace.advance(1_000_000 + tenths * 100_000);
                assert!(pace.rate >= LEAST / 2, "{rate} after {tenths} tenths of a millisecond");
            }
            pace.advance(1_000_000 + OVER + 1);
            assert_eq!(pace.rate, UNLIMITED, "{rate}");
        }
    }
}

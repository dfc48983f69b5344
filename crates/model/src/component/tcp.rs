//! A TCP sender's congestion control: slow start, congestion avoidance, fast retransmit and recovery (RFC 5681, RFC 6582)
//! and the retransmission timer (RFC 6298), with the patience of RACK (RFC 8985) where too few later segments arrive.
//!
//! It counts bytes and knows no packets. Like all components it has no clock and no events: its owner asks it.

use crate::time::Ps;

/// What a sender is like.
#[derive(Clone, Debug, PartialEq)]
pub struct TcpParams {
    /// Bytes of a full segment.
    pub segment_bytes: u64,
    /// Segments to begin with.
    pub initial_window: u64,
    /// The shortest retransmission timeout.
    pub min_rto_ps: u64,
    /// Bytes that the receiver has room for.
    pub window_bytes: u64,
}

/// The longest retransmission timeout: two minutes, as in Linux.
const MAX_RTO: Ps = Ps(120_000_000_000_000);
/// Acknowledgements of the same that say that a segment is lost.
const DUPLICATES: u32 = 3;

/// What an acknowledgement asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterAck {
    /// Nothing beyond what the window allows.
    GoOn,
    /// To send again what follows what was acknowledged.
    Retransmit,
    /// Two segments have left the network while others are lost: one of these may be sent again, if the receiver has said which
    /// they are (RFC 2018). If none is known, [`Tcp::grow`] lets new data go instead.
    Another,
}

/// A sender.
#[derive(Clone, Debug)]
pub struct Tcp {
    params: TcpParams,
    /// The first byte that is not acknowledged, and the first that was never sent.
    una: u64,
    next: u64,
    /// The end of all that ever was.
    high: u64,
    cwnd: f64,
    ssthresh: f64,
    duplicates: u32,
    /// The end of what was sent when recovery began.
    recover: Option<u64>,
    /// Smoothed round trip and its deviation, and the shortest.
    srtt: Option<(f64, f64)>,
    least: f64,
    backoff: u32,
    /// What is timed: the end of a segment, and when it left.
    timed: Option<(u64, Ps)>,
    /// When the timer was started, and when the last acknowledgement of the same came.
    since: Ps,
    repeated: Ps,
}

impl Tcp {
    /// At its beginning.
    pub fn new(params: &TcpParams) -> Self {
        Self {
            params: params.clone(),
            una: 0,
            next: 0,
            high: 0,
            cwnd: (params.initial_window * params.segment_bytes) as f64,
            ssthresh: f64::MAX,
            duplicates: 0,
            recover: None,
            srtt: None,
            least: f64::INFINITY,
            backoff: 0,
            timed: None,
            since: Ps::ZERO,
            repeated: Ps::ZERO,
        }
    }

    /// The first byte that is not acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.una
    }

    /// The first byte that was not sent, or is to be sent again after a timeout.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Up to this byte may be sent.
    pub fn limit(&self) -> u64 {
        self.una + (self.cwnd as u64).min(self.params.window_bytes)
    }

    /// Bytes of the congestion window.
    pub fn window(&self) -> u64 {
        self.cwnd as u64
    }

    /// Bytes up to `end` are sent.
    pub fn sent(&mut self, now: Ps, end: u64) {
        if self.una == self.next {
            self.since = now;
        }
        // What is sent again tells nothing: nobody knows which of them was acknowledged.
        if self.timed.is_none() && self.recover.is_none() && end > self.high {
            self.timed = Some((end, now));
        }
        (self.next, self.high) = (self.next.max(end), self.high.max(end));
    }

    /// Everything up to `ack` has arrived, says an acknowledgement.
    pub fn acked(&mut self, now: Ps, ack: u64) -> AfterAck {
        if ack <= self.una {
            return self.duplicate(now);
        }
        let newly = (ack - self.una) as f64;
        let segment = self.params.segment_bytes as f64;
        (self.una, self.since, self.backoff, self.duplicates) = (ack, now, 0, 0);
        self.next = self.next.max(ack);
        self.measure(now, ack);
        match self.recover {
            Some(end) if ack < end => {
                // A part: the next hole is lost, too.
                self.cwnd = (self.cwnd - newly + segment).max(segment);
                return AfterAck::Retransmit;
            }
            Some(_) => {
                self.recover = None;
                self.cwnd = self.ssthresh;
            }
            None if self.cwnd < self.ssthresh => self.cwnd += newly,
            None => self.cwnd += segment * newly / self.cwnd,
        }
        self.cwnd = self.cwnd.min(self.params.window_bytes as f64);
        AfterAck::GoOn
    }

    fn duplicate(&mut self, now: Ps) -> AfterAck {
        if self.una == self.next {
            return AfterAck::GoOn;
        }
        (self.duplicates, self.repeated) = (self.duplicates + 1, now);
        if self.recover.is_some() {
            // Half as many go as before, from the beginning of recovery to its end (RFC 6937).
            return if self.duplicates.is_multiple_of(2) { AfterAck::Another } else { AfterAck::GoOn };
        }
        if self.duplicates < DUPLICATES {
            return AfterAck::GoOn;
        }
        self.begin_recovery();
        AfterAck::Retransmit
    }

    fn begin_recovery(&mut self) {
        self.slow_down();
        self.recover = Some(self.next);
        self.cwnd = self.ssthresh + self.params.segment_bytes as f64 * f64::from(self.duplicates);
        self.timed = None;
    }

    /// Until when fewer acknowledgements of the same than say that a segment is lost may mean that others have overtaken it: a quarter
    /// of the shortest round trip (RFC 8985).
    fn patience(&self) -> Option<Ps> {
        let waits = self.recover.is_none() && self.duplicates > 0 && self.least.is_finite();
        waits.then(|| self.repeated + Ps((self.least / 4.0) as u64))
    }

    /// The timer went off. Whether what follows what was acknowledged is lost and to be sent again, without a timeout.
    pub fn lost_patience(&mut self, now: Ps) -> bool {
        let lost = self.patience().is_some_and(|until| until <= now);
        if lost {
            self.begin_recovery();
        }
        lost
    }

    /// One segment more may be under way until recovery ends.
    pub fn grow(&mut self) {
        self.cwnd += self.params.segment_bytes as f64;
    }

    fn slow_down(&mut self) {
        self.ssthresh = ((self.next - self.una) as f64 / 2.0).max(2.0 * self.params.segment_bytes as f64);
    }

    fn measure(&mut self, now: Ps, ack: u64) {
        let Some((_, left)) = self.timed.take_if(|(end, _)| ack >= *end) else { return };
        let sample = (now - left).0 as f64;
        self.least = self.least.min(sample);
        self.srtt = Some(match self.srtt {
            None => (sample, sample / 2.0),
            Some((mean, deviation)) => {
                (mean + (sample - mean) / 8.0, deviation + ((sample - mean).abs() - deviation) / 4.0)
            }
        });
    }

    /// When the timer goes off, if anything is under way.
    pub fn deadline(&self) -> Option<Ps> {
        let timeout = (self.una < self.next).then(|| self.since + self.rto())?;
        Some(self.patience().map_or(timeout, |until| until.min(timeout)))
    }

    fn rto(&self) -> Ps {
        // A second as long as nothing was measured.
        let measured = self.srtt.map_or(1e12, |(mean, deviation)| mean + 4.0 * deviation);
        let least = Ps((measured as u64).max(self.params.min_rto_ps));
        Ps(least.0.saturating_mul(1 << self.backoff.min(16))).min(MAX_RTO)
    }

    /// The timer went off: what is not acknowledged is to be sent again, from the beginning.
    pub fn timed_out(&mut self, now: Ps) {
        self.slow_down();
        self.cwnd = self.params.segment_bytes as f64;
        (self.recover, self.timed, self.duplicates) = (None, None, 0);
        self.next = self.una;
        self.backoff += 1;
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 1000;

    fn tcp() -> Tcp {
        Tcp::new(&TcpParams {
            segment_bytes: SEGMENT,
            initial_window: 10,
            min_rto_ps: 200_000_000_000,
            window_bytes: 1 << 20,
        })
    }

    /// Sends all that the window allows: how many segments.
    fn round(tcp: &mut Tcp, now: Ps) -> u64 {
        let from = tcp.next();
        while tcp.next() + SEGMENT <= tcp.limit() {
            tcp.sent(now, tcp.next() + SEGMENT);
        }
        (tcp.next() - from) / SEGMENT
    }

    fn ack_all(tcp: &mut Tcp, now: Ps) {
        while tcp.acknowledged() < tcp.next() {
            let ack = tcp.acknowledged() + SEGMENT;
            assert_eq!(tcp.acked(now, ack), AfterAck::GoOn);
        }
    }

    #[test]
    fn the_window_doubles_a_round_and_then_grows_by_a_segment() {
        let mut tcp = tcp();
        let ms = |n: u64| Ps(n * 1_000_000_000);
        assert_eq!(round(&mut tcp, ms(0)), 10);
        ack_all(&mut tcp, ms(1));
        assert_eq!(round(&mut tcp, ms(1)), 20);
        // Three acknowledgements of the same: half of what was under way remains, once all is acknowledged.
        let ack = tcp.acknowledged();
        let told: Vec<_> = (0..3).map(|_| tcp.acked(ms(2), ack)).collect();
        assert_eq!(told, [AfterAck::GoOn, AfterAck::GoOn, AfterAck::Retransmit]);
        assert_eq!(tcp.acked(ms(2), ack), AfterAck::Another);
        assert_eq!(tcp.acked(ms(3), ack + 5 * SEGMENT), AfterAck::Retransmit, "a part: the next hole");
        let end = tcp.next();
        assert_eq!(tcp.acked(ms(3), end), AfterAck::GoOn);
        assert_eq!(tcp.window(), 10 * SEGMENT);
        assert_eq!(round(&mut tcp, ms(4)), 10);
        ack_all(&mut tcp, ms(5));
        assert!((10_900..=11_000).contains(&tcp.window()), "{}", tcp.window());
    }

    #[test]
    fn silence_sends_again_after_the_timeout_and_then_after_twice_that() {
        let mut tcp = tcp();
        let ms = |n: u64| Ps(n * 1_000_000_000);
        assert_eq!(tcp.deadline(), None);
        round(&mut tcp, ms(0));
        ack_all(&mut tcp, ms(1));
        round(&mut tcp, ms(1));
        assert_eq!(tcp.deadline(), Some(ms(201)));
        tcp.timed_out(ms(201));
        assert_eq!((tcp.next(), tcp.window()), (tcp.acknowledged(), SEGMENT));
        assert_eq!(round(&mut tcp, ms(201)), 1);
        assert_eq!(tcp.deadline(), Some(ms(601)));
        let ack = tcp.next();
        assert_eq!(tcp.acked(ms(602), ack), AfterAck::GoOn);
        assert_eq!(round(&mut tcp, ms(602)), 2);
        assert_eq!(tcp.deadline(), Some(ms(802)));
    }

    #[test]
    fn few_that_are_missed_are_sent_again_when_none_can_have_overtaken_them() {
        let mut tcp = tcp();
        let us = |n: u64| Ps(n * 1_000_000);
        round(&mut tcp, us(0));
        ack_all(&mut tcp, us(100));
        round(&mut tcp, us(100));
        let ack = tcp.acknowledged();
        assert_eq!(tcp.acked(us(200), ack), AfterAck::GoOn);
        assert_eq!(tcp.deadline(), Some(us(225)), "a quarter of a round trip");
        assert!(!tcp.lost_patience(us(224)) && tcp.lost_patience(us(225)));
        assert_eq!(tcp.deadline(), Some(us(200_100)), "it is being mended");
        assert!(!tcp.lost_patience(us(300)));
    }

    #[test]
    fn the_receiver_bounds_what_is_under_way() {
        let mut tcp = Tcp::new(&TcpParams { window_bytes: 5 * SEGMENT, ..tcp().params });
        assert_eq!(round(&mut tcp, Ps::ZERO), 5);
    }
}

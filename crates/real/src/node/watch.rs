//! What a node tells of itself: events as they happen, and figures for whoever asks.

use std::fmt::{self, Write};
use std::net::IpAddr;
use std::sync::mpsc::SyncSender;

use remora_kernel::Placement;
use remora_nic::Counters;
use remora_service::{CLASSES, CallStats, PlacerCounts};

use crate::device::DeviceGuard;
use crate::link::{LinkKind, LinkStats};

/// Something that an operator may want to know. Each is a line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeEvent {
    /// A client has connected.
    Connected {
        /// Its address.
        client: IpAddr,
        /// The node's queue pair.
        qpn: u32,
        /// The way that packets take.
        link: LinkKind,
        /// The path MTU in bytes.
        mtu: u32,
    },
    /// A client is gone.
    Gone {
        /// Its address.
        client: IpAddr,
        /// The node's queue pair.
        qpn: u32,
    },
    /// A client was not taken.
    Turned {
        /// Its address.
        client: IpAddr,
        /// Why.
        why: String,
    },
    /// A kernel was deployed.
    Deployed {
        /// By the client at this address.
        client: IpAddr,
        /// The kernel's name.
        name: String,
        /// Its op-code.
        op: u64,
        /// How often the name was deployed.
        version: u32,
    },
    /// A kernel was removed.
    Removed {
        /// By the client at this address.
        client: IpAddr,
        /// The kernel's name.
        name: String,
    },
    /// Calls of a kernel that were left to the node run elsewhere from now on.
    Placed {
        /// The kernel's op-code.
        op: u64,
        /// Where, and why: a [`Reason`](remora_service::Reason).
        why: String,
    },
    /// One of the node's own calls was refused.
    Refused {
        /// The client at this address asked.
        client: IpAddr,
        /// For what: "deploy a kernel", for example.
        what: &'static str,
        /// Why not.
        why: String,
    },
}

impl fmt::Display for NodeEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected { client, qpn, link, mtu } => {
                write!(f, "{client} connected over {link}, queue pair {qpn:#x}, path MTU {mtu}")
            }
            Self::Gone { client, qpn } => write!(f, "{client} is gone, queue pair {qpn:#x}"),
            Self::Turned { client, why } => write!(f, "{client} was not let in: {}", in_a_line(why)),
            Self::Deployed { client, name, op, version } => {
                write!(f, "{client} deployed kernel {name}, op-code {op:#x}, version {version}")
            }
            Self::Removed { client, name } => write!(f, "{client} removed kernel {name}"),
            Self::Placed { op, why } => write!(f, "calls of kernel {op:#x} moved to the {why}"),
            Self::Refused { client, what, why } => write!(f, "{client} may not {what}: {}", in_a_line(why)),
        }
    }
}

/// Characters of a reason in a line of a log.
const REASON: usize = 300;

/// What may have parts of a client's own, for a line of a log: no other line is made of it, and no terminal does anything.
pub(super) fn in_a_line(why: &str) -> String {
    let words = why.split(|c: char| c.is_control() || c.is_whitespace()).filter(|word| !word.is_empty());
    let mut line = words.take(REASON).collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(REASON) {
        line.truncate(end);
        line.push_str(" ...");
    }
    line
}

/// Where events go. Whoever takes them slowly misses some: a node waits for nobody.
pub(super) struct Told(pub Option<SyncSender<NodeEvent>>);

impl Told {
    pub fn tell(&self, event: impl FnOnce() -> NodeEvent) {
        if let Some(to) = &self.0 {
            let _ = to.try_send(event());
        }
    }
}

/// What the host thread knows, for those who ask.
#[derive(Clone, Debug, Default)]
pub(super) struct HostFigures {
    pub calls: CallStats,
    /// By address: connections, bytes lent.
    pub clients: Vec<(IpAddr, u32, u64)>,
    pub lent: u64,
}

/// A node's figures at one moment; counts are since its start.
#[derive(Clone, Debug)]
pub struct NodeFigures {
    /// Its address.
    pub address: IpAddr,
    /// Queue pairs that there are.
    pub queue_pairs: u32,
    /// What its NIC has counted.
    pub nic: Counters,
    /// What each link carried.
    pub links: Vec<(LinkKind, LinkStats)>,
    /// Calls to the NIC, by op-code, those that it gave to the host among them. How long they took is known to a turn of the NIC.
    pub nic_calls: CallStats,
    /// Calls to the host, by op-code, the node's own among them.
    pub host_calls: CallStats,
    /// Calls that were left to the node: where they ran, how many of them to learn, how often their place changed.
    pub placed: PlacerCounts,
    /// By address: connections, and bytes that are lent to it.
    pub clients: Vec<(IpAddr, u32, u64)>,
    /// Bytes that may be lent.
    pub memory_limit: u64,
    /// Bytes that are lent, or on their way back to the system.
    pub memory_lent: u64,
    /// Processor time that the process has used, in nanoseconds.
    pub cpu_ns: u64,
}

impl NodeFigures {
    /// Adds those of an engine.
    pub(super) fn add(&mut self, guard: &mut DeviceGuard<'_>, host: &HostFigures) {
        self.queue_pairs += guard.nic().qp_count();
        self.nic.add(&guard.nic().counters());
        LinkStats::add_by_kind(&mut self.links, guard.link_stats());
        for (sum, calls) in [(&mut self.nic_calls, &guard.call_stats()), (&mut self.host_calls, &host.calls)] {
            calls.iter().for_each(|(op, stats)| sum.entry(*op).or_default().add(stats));
        }
        if let Some(placer) = guard.placer() {
            self.placed.add(placer.placer().counts());
        }
        for (address, connections, lent) in &host.clients {
            match self.clients.iter_mut().find(|(other, ..)| other == address) {
                // The account is one for all engines.
                Some((_, sum, last)) => (*sum, *last) = (*sum + connections, *lent),
                None => self.clients.push((*address, *connections, *lent)),
            }
        }
        self.clients.sort_unstable();
        self.memory_lent = self.memory_lent.max(host.lent);
    }

    /// As Prometheus reads it: its text format, version 0.0.4.
    pub fn prometheus(&self) -> String {
        let mut out = String::new();
        let head = |out: &mut String, name: &str, kind: &str, help: &str| {
            // Writing to a string does not fail.
            let _ = writeln!(out, "# HELP remora_{name} {help}\n# TYPE remora_{name} {kind}");
        };
        let mut one = |name: &str, kind: &str, help: &str, value: u64| {
            head(&mut out, name, kind, help);
            let _ = writeln!(out, "remora_{name} {value}");
        };
        let nic = &self.nic;
        one("queue_pairs", "gauge", "Queue pairs that there are.", self.queue_pairs.into());
        for (name, help, value) in [
            ("nic_packets_sent_total", "Packets handed to links.", nic.tx_packets),
            ("nic_packets_received_total", "Packets taken from links.", nic.rx_packets),
            ("nic_bytes_sent_total", "Bytes of packets sent, BTH to ICRC.", nic.tx_bytes),
            ("nic_bytes_received_total", "Bytes of packets received, BTH to ICRC.", nic.rx_bytes),
            ("nic_retransmissions_total", "Request packets sent again.", nic.retransmits),
            ("nic_timeouts_total", "Retransmission timers that ran out.", nic.timeouts),
            ("nic_sequence_naks_total", "NAKs sent for a gap in the PSNs.", nic.sequence_naks),
            ("nic_rnr_naks_total", "NAKs sent because no receive was posted.", nic.rnr_naks),
            ("nic_duplicates_total", "Duplicate requests answered again.", nic.duplicates),
            ("nic_dropped_total", "Packets that no queue pair wants.", nic.dropped),
            ("nic_cnps_received_total", "Congestion notifications received.", nic.cnps),
            ("nic_cnps_sent_total", "Congestion notifications sent.", nic.cnps_sent),
            ("nic_writes_total", "WRITEs of peers that came to their ends.", nic.writes),
        ] {
            one(name, "counter", help, value);
        }
        one("places_changed_total", "counter", "How often the node moved calls of a kind.", self.placed.moves);
        one("memory_limit_bytes", "gauge", "Memory that clients may have, all together.", self.memory_limit);
        one("memory_lent_bytes", "gauge", "Memory that clients have.", self.memory_lent);
        head(&mut out, "cpu_seconds_total", "counter", "Processor time of the process.");
        let _ = writeln!(out, "remora_cpu_seconds_total {}", self.cpu_ns as f64 / 1e9);
        head(&mut out, "link_bytes_total", "counter", "Bytes of IP packets on a link.");
        for (link, stats) in &self.links {
            for (way, bytes) in [("sent", stats.tx_bytes), ("received", stats.rx_bytes)] {
                let _ = writeln!(out, "remora_link_bytes_total{{link=\"{link}\",way=\"{way}\"}} {bytes}");
            }
        }
        head(&mut out, "client_connections", "gauge", "Connections of a client, by its address.");
        for (address, connections, _) in &self.clients {
            let _ = writeln!(out, "remora_client_connections{{client=\"{address}\"}} {connections}");
        }
        head(&mut out, "client_memory_bytes", "gauge", "Memory that a client has, by its address.");
        for (address, _, bytes) in &self.clients {
            let _ = writeln!(out, "remora_client_memory_bytes{{client=\"{address}\"}} {bytes}");
        }
        let places = || [("nic", &self.nic_calls), ("host", &self.host_calls)];
        head(
            &mut out,
            "calls_placed_total",
            "counter",
            "Calls that were left to the node, by the place that it chose.",
        );
        for place in [Placement::Nic, Placement::Host] {
            let calls = self.placed.calls[place as usize];
            let _ = writeln!(out, "remora_calls_placed_total{{place=\"{place}\"}} {calls}");
        }
        head(&mut out, "calls_failed_total", "counter", "Calls that failed, by place and op-code.");
        for (place, op, stats) in places().into_iter().flat_map(|(p, calls)| calls.iter().map(move |(o, s)| (p, o, s)))
        {
            let _ = writeln!(out, "remora_calls_failed_total{{place=\"{place}\",op=\"{op:#x}\"}} {}", stats.failed);
        }
        head(
            &mut out,
            "call_seconds",
            "histogram",
            "How long calls took, by place and op-code, to a turn of the place.",
        );
        for (place, op, stats) in places().into_iter().flat_map(|(p, calls)| calls.iter().map(move |(o, s)| (p, o, s)))
        {
            let labels = format!("place=\"{place}\",op=\"{op:#x}\"");
            let mut sum = 0;
            for (n, bound) in stats.classes.iter().zip(CLASSES) {
                sum += n;
                let bound = bound as f64 / 1e9;
                let _ = writeln!(out, "remora_call_seconds_bucket{{{labels},le=\"{bound}\"}} {sum}");
            }
            let _ = writeln!(out, "remora_call_seconds_bucket{{{labels},le=\"+Inf\"}} {}", stats.calls);
            let _ = writeln!(out, "remora_call_seconds_sum{{{labels}}} {}", stats.ns as f64 / 1e9);
            let _ = writeln!(out, "remora_call_seconds_count{{{labels}}} {}", stats.calls);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_a_line_whatever_is_in_it() {
        assert_eq!(in_a_line("no: \n18:00:00 remora: pay\t\u{1b}[31m  x"), "no: 18:00:00 remora: pay [31m x");
        let long = in_a_line(&"\u{fc}bel ".repeat(1000));
        assert_eq!((long.chars().count(), long.ends_with(" ...")), (REASON + 4, true));
        assert_eq!(in_a_line(&"x".repeat(1 << 20)).len(), REASON + 4);
        let refused = NodeEvent::Refused { client: [10, 0, 0, 7].into(), what: "deploy a kernel", why: "a\nb".into() };
        assert_eq!(refused.to_string(), "10.0.0.7 may not deploy a kernel: a b");
    }
}

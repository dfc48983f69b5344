//! What joins the NICs of a fabric: cables, switches whose ports have a buffer each, trunks between switches.

use std::collections::VecDeque;

use super::WorldError;
use crate::component::ethernet::EthernetParams;
use crate::component::switch::{Forward, Port, SwitchParams, WhenFull};
use crate::resource::{Order, Usage};
use crate::time::Ps;

/// A switch.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchSpec {
    /// First bit in to first bit out of an idle port.
    pub latency: Ps,
    /// Bytes that may wait at each port, the packet being sent included.
    pub buffer: u64,
    /// What becomes of packets beyond.
    pub when_full: WhenFull,
    /// How the queues of its ports are served.
    pub order: Order,
    /// Bytes that wait at a port from which on packets are marked as having met congestion (ECN, RFC 3168); 0: none are.
    pub mark: u64,
}

/// What is plugged in where. NICs and switches are counted over the whole fabric.
#[derive(Clone, Debug, PartialEq)]
pub enum Cable {
    /// Two NICs, back to back.
    Direct(u16, u16),
    /// A NIC at a switch.
    Uplink {
        /// The NIC.
        nic: u16,
        /// The switch.
        switch: u16,
    },
    /// Two switches.
    Trunk {
        /// One.
        a: u16,
        /// The other.
        b: u16,
        /// The link, each way.
        link: EthernetParams,
    },
}

/// Switches and cables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetworkSpec {
    /// Switches.
    pub switches: Vec<SwitchSpec>,
    /// Cables. A NIC has one.
    pub cables: Vec<Cable>,
}

impl SwitchSpec {
    /// A switch of a data centre, where a platform has none of its own: 300 ns from port to port, and of 16 MB that 32 ports
    /// share half a megabyte each (Mellanox SN2700). Lossless, as RoCE has it.
    pub fn usual() -> Self {
        Self { latency: Ps(300_000), buffer: 512 << 10, when_full: WhenFull::Pause, order: Order::InTurn, mark: 0 }
    }
}

impl NetworkSpec {
    /// One switch, and so many NICs at it.
    pub fn star(switch: SwitchSpec, nics: u16) -> Self {
        let cables = (0..nics).map(|nic| Cable::Uplink { nic, switch: 0 }).collect();
        Self { switches: vec![switch], cables }
    }
}

/// An output port of a switch.
struct Output {
    port: Port,
    /// What the link takes for as much as waits when packets are marked, if they ever are.
    mark: Option<Ps>,
    /// The link behind it, if that is a trunk; a NIC's own is counted where it sends.
    latency: Ps,
    /// The one NIC that packets come from, if they all come from one link. It may ask at once: its packets come in the
    /// order in which it sends them. Who shares a port asks when the first bit is there.
    feeder: Feeder,
    /// The NIC that it leads to, if it leads to one.
    to: Option<u16>,
}

/// Whose packets come to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feeder {
    /// One NIC's.
    Nic(u16),
    /// One trunk's.
    Trunk,
    /// Several links'.
    Shared,
}

/// What a packet's next step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Its last bit arrives at this time.
    Arrives(Ps),
    /// It asks for the port of this number on its way when its first bit is there.
    Asks {
        /// Ports that it has behind it.
        hop: u16,
        /// When its first and its last bit are at the port.
        at: (Ps, Ps),
    },
    /// It is dropped.
    Dropped,
}

/// Ports, and the ways between all NICs.
pub struct Network {
    outputs: Vec<Output>,
    /// By sender and receiver: the ports on the way.
    ways: Vec<Option<Box<[u32]>>>,
    nics: usize,
}

impl Network {
    /// An idle network between NICs of these links.
    pub fn new(spec: &NetworkSpec, links: &[EthernetParams]) -> Self {
        let (nics, mut outputs) = (links.len(), Vec::new());
        // Of each switch, where its ports lead: to NICs and to other switches.
        let mut to_nics = vec![Vec::new(); spec.switches.len()];
        let mut to_switches: Vec<Vec<(usize, u32)>> = vec![Vec::new(); spec.switches.len()];
        let mut switch_of = vec![None; nics];
        let mut add = |switch: usize, link: &EthernetParams, latency| {
            let SwitchSpec { latency: through, buffer, when_full, order, mark } = spec.switches[switch];
            let port = Port::new(&SwitchParams {
                latency_ps: through.0,
                rate_bytes_per_s: link.rate_bytes_per_s,
                buffer_bytes: buffer,
                when_full,
                order,
            });
            let mark = (mark > 0).then(|| Ps::transfer(mark, link.rate_bytes_per_s));
            outputs.push(Output { port, mark, latency, feeder: Feeder::Shared, to: None });
            outputs.len() as u32 - 1
        };
        for cable in &spec.cables {
            match cable {
                Cable::Direct(..) => {}
                &Cable::Uplink { nic, switch } => {
                    let (nic, switch) = (usize::from(nic), usize::from(switch));
                    if nic < nics && switch < spec.switches.len() {
                        to_nics[switch].push((nic, add(switch, &links[nic], Ps::ZERO)));
                        switch_of[nic] = Some(switch);
                    }
                }
                Cable::Trunk { a, b, link } => {
                    let (a, b) = (usize::from(*a), usize::from(*b));
                    if a.max(b) < spec.switches.len() {
                        to_switches[a].push((b, add(a, link, Ps(link.latency_ps))));
                        to_switches[b].push((a, add(b, link, Ps(link.latency_ps))));
                    }
                }
            }
        }
        for &(nic, output) in to_nics.iter().flatten() {
            outputs[output as usize].to = Some(nic as u16);
        }
        for (nics, switches) in to_nics.iter().zip(&to_switches) {
            for &(_, output) in nics.iter().chain(switches) {
                // All links of the switch but the port's own feed it.
                outputs[output as usize].feeder = match (nics.len(), switches.len()) {
                    (2, 0) => {
                        nics.iter().find(|nic| nic.1 != output).map_or(Feeder::Shared, |nic| Feeder::Nic(nic.0 as u16))
                    }
                    (1, 1) if nics[0].1 == output => Feeder::Trunk,
                    (1, 1) => Feeder::Nic(nics[0].0 as u16),
                    (0, 2) => Feeder::Trunk,
                    _ => Feeder::Shared,
                };
            }
        }
        let mut ways = vec![None; nics * nics];
        for (from, switch) in switch_of.iter().enumerate() {
            let Some(switch) = *switch else { continue };
            for (there, ports) in trunks(&to_switches, switch) {
                for &(to, port) in to_nics[there].iter().filter(|(to, _)| *to != from) {
                    ways[from * nics + to] = Some(ports.iter().copied().chain([port]).collect());
                }
            }
        }
        for cable in &spec.cables {
            if let Cable::Direct(a, b) = *cable {
                let (a, b) = (usize::from(a), usize::from(b));
                if a.max(b) < nics {
                    (ways[a * nics + b], ways[b * nics + a]) = (Some([].into()), Some([].into()));
                }
            }
        }
        Self { outputs, ways, nics }
    }

    /// Whether packets can go from one NIC to another.
    pub fn check(&self, from: u16, to: u16) -> Result<(), WorldError> {
        let way = self.ways.get(usize::from(from) * self.nics + usize::from(to));
        if way.is_some_and(Option::is_some) { Ok(()) } else { Err(WorldError::NoWay { from, to }) }
    }

    /// A packet of so many bytes on the wire goes on behind `hop` ports, where its first and its last bit are at these
    /// times. `asks` says that the first of them is there now. Beside its next step: whether it was marked.
    #[inline]
    pub fn forward(
        &mut self,
        (from, to): (u16, u16),
        bytes: u64,
        hop: u16,
        at: (Ps, Ps),
        mut asks: bool,
    ) -> (Step, bool) {
        let (mut at, mut marked) = (at, false);
        let way = self.ways[usize::from(from) * self.nics + usize::from(to)].as_deref().unwrap_or_default();
        for (hop, port) in (hop..).zip(&way[usize::from(hop)..]) {
            let output = &mut self.outputs[*port as usize];
            if output.feeder == Feeder::Shared && !asks {
                return (Step::Asks { hop, at }, marked);
            }
            asks = false;
            if let Some(mark) = output.mark {
                marked |= output.port.backlog(at.0) > mark;
            }
            match output.port.forward(at, bytes) {
                Forward::Sent(first, last) => at = (first + output.latency, last + output.latency),
                Forward::Dropped => return (Step::Dropped, marked),
            }
        }
        (Step::Arrives(at.1), marked)
    }

    /// How busy the ports are over `span` that a NIC has for itself, and the one that leads to it from several.
    pub fn usage_of(&self, nic: u16, span: Ps) -> impl Iterator<Item = Usage> {
        let of = move |output: &Output| match output.feeder {
            Feeder::Nic(feeder) if feeder == nic => Some(output.port.usage(span)),
            Feeder::Shared if output.to == Some(nic) => {
                Some(Usage { name: "switch port to it", ..output.port.usage(span) })
            }
            _ => None,
        };
        self.outputs.iter().filter_map(of)
    }

    /// How busy all ports were over `span`, in the order of the cables.
    pub fn usage(&self, span: Ps) -> Vec<Usage> {
        self.outputs.iter().map(|output| output.port.usage(span)).collect()
    }

    /// Time for which packets were held back since the last reset.
    pub fn paused(&self) -> Ps {
        self.outputs.iter().map(|output| output.port.paused()).fold(Ps::ZERO, |sum, paused| sum + paused)
    }

    /// Packets dropped since the last reset.
    pub fn dropped(&self) -> u64 {
        self.outputs.iter().map(|output| output.port.dropped()).sum()
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        self.outputs.iter_mut().for_each(|output| output.port.reset());
    }
}

/// The switches that can be reached from one, each by the ports of a shortest way.
fn trunks(to_switches: &[Vec<(usize, u32)>], from: usize) -> Vec<(usize, Vec<u32>)> {
    let (mut found, mut next) = (vec![(from, Vec::new())], VecDeque::from([0]));
    while let Some(at) = next.pop_front() {
        let (switch, ports): (usize, Vec<u32>) = found[at].clone();
        for &(to, port) in &to_switches[switch] {
            if found.iter().all(|(known, _)| *known != to) {
                next.push_back(found.len());
                found.push((to, ports.iter().copied().chain([port]).collect()));
            }
        }
    }
    found
}

//! The way of an operation through the hardware: which shared things it visits, for how long, and what else it waits
//! for. The screen adds it up, the simulation walks it.
//!
//! All times are nanoseconds.

/// Something that operations share, and how many of them it serves at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Station {
    /// The client's cores.
    ClientCores,
    /// PCIe at the client, towards its memory.
    ClientPcieUp,
    /// PCIe at the client, towards its NIC.
    ClientPcieDown,
    /// PCIe at the client: reads that may be under way.
    ClientTags,
    /// Commands that the client's NIC takes.
    ClientCommands,
    /// The sending half of the client's NIC.
    ClientNicOut,
    /// The receiving half of the client's NIC.
    ClientNicIn,
    /// The wire from client to node.
    WireOut,
    /// The wire from node to client.
    WireBack,
    /// Commands that the node's NIC takes.
    NodeCommands,
    /// The sending half of the node's NIC.
    NodeNicOut,
    /// The receiving half of the node's NIC.
    NodeNicIn,
    /// PCIe at the node: what comes down to the NIC, data of its reads and commands.
    PcieReads,
    /// PCIe at the node: reads that may be under way.
    PcieTags,
    /// PCIe at the node: what goes up to memory, writes and the requests of reads.
    PcieWrites,
    /// The bus of the kernels in the NIC's data path.
    NicKernels,
    /// The cores of the node's NIC.
    NicCores,
    /// The memory of the node's NIC.
    NicDram,
    /// The node's cores.
    HostCores,
    /// Misses that the node's cores have under way.
    HostMisses,
    /// The node's memory.
    HostDram,
    /// The link between the node's sockets.
    Sockets,
    /// The accelerator's requests to memory.
    AccelIssue,
    /// The accelerator's requests that may be under way.
    AccelInFlight,
    /// The accelerator's link.
    AccelLink,
    /// The accelerator's logic.
    AccelLogic,
    /// The most popular item, which writers hold.
    HotItem,
    /// The software NIC: the cores of this machine.
    Software,
}

impl Station {
    /// All, in the order of the enumeration: a station's number is its place here.
    pub const COUNT: usize = Self::Software as usize + 1;

    /// As tables name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ClientCores => "client cores",
            Self::ClientPcieUp => "client PCIe to host",
            Self::ClientPcieDown => "client PCIe to NIC",
            Self::ClientTags => "client PCIe reads under way",
            Self::ClientCommands => "client NIC, commands",
            Self::ClientNicOut => "client NIC, sending",
            Self::ClientNicIn => "client NIC, receiving",
            Self::WireOut => "wire to the node",
            Self::WireBack => "wire to the client",
            Self::NodeCommands => "node NIC, commands",
            Self::NodeNicOut => "node NIC, sending",
            Self::NodeNicIn => "node NIC, receiving",
            Self::PcieReads => "PCIe read bandwidth",
            Self::PcieTags => "PCIe reads under way",
            Self::PcieWrites => "PCIe write bandwidth",
            Self::NicKernels => "NIC kernels",
            Self::NicCores => "NIC cores",
            Self::NicDram => "NIC memory",
            Self::HostCores => "host cores",
            Self::HostMisses => "host misses under way",
            Self::HostDram => "host memory",
            Self::Sockets => "link between the sockets",
            Self::AccelIssue => "accelerator's request rate",
            Self::AccelInFlight => "accelerator's requests under way",
            Self::AccelLink => "accelerator's link",
            Self::AccelLogic => "accelerator's logic",
            Self::HotItem => "most popular item",
            Self::Software => "software NIC",
        }
    }
}

/// How long an operation waits at a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Until it has been served.
    Served,
    /// Until its turn has come: it goes on while it is served, as what is pipelined does.
    Turn,
    /// Not at all: something else of it is served meanwhile.
    Nothing,
    /// Not at all, as an acknowledgement: where messages wait at their NIC because it has sent far ahead, one is for all of a
    /// queue pair that wait.
    Merged,
}

/// One stop on the way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Visit {
    /// Where; `None` for time that passes without holding anything shared.
    pub station: Option<Station>,
    /// How long one of its servers is held.
    pub service: f64,
    /// How many servers are held.
    pub servers: f64,
    /// How far the operation waits for that.
    pub waits: Until,
    /// How long the operation goes on waiting after that: what is pipelined behind the station.
    pub after: f64,
    /// The part of service and wait that a hit in a cache saves, and how probable a hit is.
    pub saved: f64,
    /// See `saved`.
    pub hit: f64,
    /// How probable the whole visit is.
    pub chance: f64,
    /// It follows another of its kind closely, beside all that do.
    pub wake: bool,
    /// What its core does for all that follow so while the first of them is waited for.
    pub hidden: f64,
    /// What it is, for the list of parts.
    pub what: &'static str,
}

/// Mean time in nanoseconds that an operation holds a station.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    /// What it needs.
    pub needed: f64,
    /// What its acknowledgements take on top of that: see [`Until::Merged`].
    pub merged: f64,
}

impl Demand {
    /// With this part of the acknowledgements.
    pub fn with(self, part: f64) -> f64 {
        self.needed + self.merged * part
    }
}

/// What acknowledgements that go with others depend on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Merging {
    /// How far ahead a NIC sends, in nanoseconds: what waits for its wire for longer waits in the NIC.
    pub ahead: f64,
    /// Queue pairs, each of which acknowledges for itself.
    pub queue_pairs: f64,
}

impl Merging {
    /// The part of acknowledgements that are sent, of messages that wait so long for the wire on average, so many a nanosecond:
    /// where `n` of a queue pair wait in the NIC, one is for all of these. Messages come in bursts, of which the first waits for
    /// nothing and the last for twice as long as the middle one.
    pub fn part(self, wait: f64, per_ns: f64) -> f64 {
        let longest = (2.0 * wait - self.ahead).max(0.0);
        let in_nic = longest * longest / (4.0 * wait).max(1e-9);
        self.queue_pairs / (self.queue_pairs + per_ns * in_nic).max(1e-9)
    }
}

/// The way of one operation.
#[derive(Clone, Debug)]
pub struct Path {
    /// Stops, in order.
    pub visits: Vec<Visit>,
    /// How many each station serves at once.
    pub servers: [f64; Station::COUNT],
    /// How acknowledgements go with others.
    pub merging: Merging,
}

impl Default for Path {
    fn default() -> Self {
        Self { visits: Vec::with_capacity(64), servers: [1.0; Station::COUNT], merging: Merging::default() }
    }
}

impl Path {
    /// Waits.
    pub fn wait(&mut self, what: &'static str, ns: f64) {
        self.push(what, None, 0.0, ns);
    }

    /// Holds several servers of a station at once, for the same time.
    pub fn tags(&mut self, what: &'static str, station: Station, service: f64, servers: f64) {
        self.push(what, Some(station), service, 0.0);
        if let Some(visit) = self.visits.last_mut() {
            visit.servers = servers;
        }
    }

    /// Holds a station, then waits on.
    pub fn hold(&mut self, what: &'static str, station: Station, service: f64, after: f64) {
        self.push(what, Some(station), service, after);
    }

    /// Holds a station and waits for its turn only, then for something else.
    pub fn pass(&mut self, what: &'static str, station: Station, service: f64, after: f64) {
        self.waiting(what, station, (service, after), Until::Turn);
    }

    /// Holds a station while the operation goes on.
    pub fn aside(&mut self, what: &'static str, station: Station, service: f64) {
        self.waiting(what, station, (service, 0.0), Until::Nothing);
    }

    /// As [`Path::aside`], of an acknowledgement.
    pub fn merged(&mut self, what: &'static str, station: Station, service: f64) {
        self.waiting(what, station, (service, 0.0), Until::Merged);
    }

    fn waiting(&mut self, what: &'static str, station: Station, (service, after): (f64, f64), waits: Until) {
        let before = self.visits.len();
        self.push(what, Some(station), service, after);
        if let Some(visit) = self.visits.get_mut(before) {
            visit.waits = waits;
        }
    }

    /// As [`Path::hold`]; a hit, with probability `hit`, saves `saved`, of the wait first and then of the service.
    pub fn load(&mut self, what: &'static str, station: Station, service: f64, after: f64, (hit, saved): (f64, f64)) {
        self.push(what, Some(station), service, after);
        if let Some(visit) = self.visits.last_mut() {
            (visit.hit, visit.saved) = (hit, saved);
        }
    }

    /// Makes what came since `from` only so probable.
    pub fn sometimes(&mut self, from: usize, chance: f64) {
        for visit in &mut self.visits[from..] {
            visit.chance *= chance;
        }
    }

    fn push(&mut self, what: &'static str, station: Option<Station>, service: f64, after: f64) {
        if service > 0.0 || after > 0.0 {
            let (servers, waits) = (1.0, Until::Served);
            self.visits.push(Visit {
                station,
                service,
                servers,
                waits,
                after,
                saved: 0.0,
                hit: 0.0,
                chance: 1.0,
                wake: false,
                hidden: 0.0,
                what,
            });
        }
    }

    /// Of what came since `from`, a client's accesses of which all but the first are in its wake: while the first is on its way
    /// the core issues others, and takes their answers as they come, which takes no longer than that way.
    pub fn overlaps(&mut self, from: usize) {
        let visits = &mut self.visits[from..];
        let Some(at) = visits.iter().position(|visit| visit.wake) else { return };
        let (first, wake) = visits.split_at_mut(at);
        let is_core = |visit: &&Visit| visit.station == Some(Station::ClientCores);
        let held = |visit: &Visit| visit.chance * visit.held();
        let all: f64 = first.iter().filter(is_core).map(held).sum();
        let issue: f64 = first.iter().take_while(is_core).map(held).sum();
        let way: f64 = first.iter().map(Visit::mean).sum::<f64>() - all;
        let later = wake.iter().filter(is_core).map(held).sum::<f64>() * (1.0 - issue / all.max(1e-9));
        wake[0].hidden = later.min(way);
    }

    /// Mean time that one operation holds each station, of each of its servers, acknowledgements apart.
    pub fn demands(&self) -> [Demand; Station::COUNT] {
        let mut demands = [Demand::default(); Station::COUNT];
        for visit in &self.visits {
            if let Some(station) = visit.station {
                let Demand { needed, merged } = &mut demands[station as usize];
                let sum = if visit.waits == Until::Merged { merged } else { needed };
                *sum += visit.chance * visit.held() * visit.servers / self.servers[station as usize];
            }
        }
        demands
    }

    /// Mean time of an operation that has everything for itself.
    pub fn alone(&self) -> f64 {
        self.time(0)
    }

    /// The part of [`Path::alone`] of what came since `from`.
    pub fn time(&self, from: usize) -> f64 {
        self.times(from, Visit::mean).map(|(_, ns)| ns).sum()
    }

    /// Mean time of an operation that has everything for itself when no cache hits.
    pub fn alone_missing(&self) -> f64 {
        self.times(0, |visit| visit.chance * visit.missing()).map(|(_, ns)| ns).sum()
    }

    /// Times that follow each other, and of what they are: a visit's own; of those in the wake of others, which go on beside each
    /// other, that of the station that has most to do.
    fn times(&self, from: usize, own: fn(&Visit) -> f64) -> impl Iterator<Item = (&'static str, f64)> {
        let together = self.visits[from..].chunk_by(|one, other| one.wake && other.wake);
        together.map(move |visits| match visits {
            [first, ..] if first.wake => {
                let mut all: [(&'static str, f64); Station::COUNT] = [("", 0.0); _];
                for visit in visits {
                    if let (Some(station), Until::Served | Until::Turn) = (visit.station, visit.waits) {
                        let (what, sum) = &mut all[station as usize];
                        *what = visit.what;
                        // A call is one core's at a time.
                        let servers = match station {
                            Station::ClientCores | Station::NicCores | Station::HostCores => 1.0,
                            Station::HostMisses => {
                                self.servers[station as usize] / self.servers[Station::HostCores as usize]
                            }
                            _ => self.servers[station as usize],
                        };
                        *sum += visit.chance * visit.held() * visit.servers / servers;
                    }
                }
                all[Station::ClientCores as usize].1 -= first.hidden;
                all.into_iter().max_by(|one, other| one.1.total_cmp(&other.1)).unwrap_or_default()
            }
            [visit, ..] => (visit.what, own(visit)),
            [] => Default::default(),
        })
    }

    /// The parts of [`Path::alone`] by name, in the order of their first stop.
    pub fn parts(&self) -> Vec<(&'static str, f64)> {
        let mut parts: Vec<(&'static str, f64)> = Vec::new();
        for (what, ns) in self.times(0, Visit::mean) {
            match parts.iter_mut().find(|(known, _)| *known == what) {
                Some((_, sum)) => *sum += ns,
                None => parts.push((what, ns)),
            }
        }
        parts
    }
}

impl Visit {
    /// Makes it one that follows another of its kind closely: it holds its station, but a latency passes with the first.
    pub fn in_wake(&mut self) {
        self.wake = true;
        // What is held for a whole round trip has its latency in that.
        let whole =
            matches!(self.station, Some(Station::ClientTags | Station::PcieTags | Station::AccelInFlight) | None);
        if whole || self.waits != Until::Served {
            self.saved = 0.0;
        }
        self.after = 0.0;
    }

    /// Mean time that each server is held.
    pub fn held(&self) -> f64 {
        self.service - self.hit * (self.saved - self.after).max(0.0)
    }

    fn missing(&self) -> f64 {
        if self.waits == Until::Served { self.service + self.after } else { self.after }
    }

    fn mean(&self) -> f64 {
        let saved = if self.waits == Until::Served { self.saved } else { self.saved.min(self.after) };
        self.chance * (self.missing() - self.hit * saved).max(0.0)
    }
}

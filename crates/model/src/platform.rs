//! Descriptions of hardware: TOML files in which every value has a unit, a source, a status and a range.
//!
//! A file is read in two steps. [`Params`] holds its values as they stand there, each with where it comes from, so that
//! a run can say what its result rests on and try what else a value might be. [`Platform`] is their typed form; a key
//! that no section asks for is an error, and so is a value in the wrong unit or outside what hardware can be.

mod error;
mod params;
mod parts;
mod provenance;
mod typed;
mod unit;

use std::io::Read;
use std::path::Path;

pub use error::{PlatformError, Problem};
pub use params::{Param, Params, Section, SourceStatus};
pub use provenance::Share;
pub use typed::*;
pub use unit::{Dimension, quantity};

use typed::{needed, optional};

/// The platforms that come with the program: name and file.
const BUILT_IN: [(&str, &str); 7] = [
    ("strom-10g", include_str!("../../../platforms/strom-10g.toml")),
    ("strom-100g", include_str!("../../../platforms/strom-100g.toml")),
    ("rambda", include_str!("../../../platforms/rambda.toml")),
    ("bluefield1", include_str!("../../../platforms/bluefield1.toml")),
    ("bluefield2", include_str!("../../../platforms/bluefield2.toml")),
    ("minos", include_str!("../../../platforms/minos.toml")),
    ("dfabric", include_str!("../../../platforms/dfabric.toml")),
];

/// The largest file that is read: ten times the largest that one would write.
const MAX_FILE: u64 = 1 << 20;

/// A client, a node and what joins them.
#[derive(Clone, Debug)]
pub struct Platform {
    /// Its name.
    pub name: String,
    /// What it is, in a line.
    pub title: String,
    /// When it was measured, if it was and the file says so: a date and time of day in UTC, as `2026-11-21 12:00`.
    pub probed: Option<String>,
    /// Which placements exist, and on what device.
    pub placements: Placements,
    /// The client's cores.
    pub client: Core,
    /// The node's cores.
    pub host: Core,
    /// The node's last-level cache.
    pub cache: Cache,
    /// The node's memory.
    pub dram: Dram,
    /// What joins the node's two sockets, if it has two.
    pub sockets: Option<Sockets>,
    /// Work on bytes, if it is known.
    pub checksum: Option<Checksum>,
    /// Work on streams of values, if it is known.
    pub stream: Option<Stream>,
    /// Users' kernels on cores, if it is known.
    pub module_core: Option<Module>,
    /// Users' kernels in logic, if it is known.
    pub module_logic: Option<Module>,
    /// Remote procedure calls over TCP, if they are a baseline.
    pub tcp: Option<Tcp>,
    /// What joins NICs and hosts, if they are hardware.
    pub nic: Option<HardwareNic>,
    /// What the NICs keep of queue pairs and regions, if that is known.
    pub nic_state: Option<NicState>,
    /// What takes cores away from who polls on them, if that is known.
    pub jitter: Option<Jitter>,
    /// Cores on the node's NIC, if it has any.
    pub nic_cores: Option<NicCores>,
    /// What each of the node's cores has in front of the last level, if that is known.
    pub private: Option<PrivateCaches>,
    /// The cores on the NIC as a machine of their own, if they can be one.
    pub card: Option<Card>,
    /// The node's accelerator, if it has one.
    pub accel: Option<Accel>,
    /// The accelerator's coherence controller, if it is known.
    pub coherence_controller: Option<CoherenceController>,
    /// DDR of the accelerator, if that may have any.
    pub accel_ddr: Option<LocalMemory>,
    /// HBM of the accelerator, if that may have any.
    pub accel_hbm: Option<LocalMemory>,
    /// CXL instead of the accelerator's link, if that may have it.
    pub accel_cxl: Option<CxlLink>,
    /// Persistent memory of the host, if it may have any.
    pub nvm: Option<Nvm>,
    /// What servers of rings need beyond.
    pub ring_server: Option<RingServer>,
    /// What racks that share memory and NICs need beyond.
    pub rack: Option<RackCosts>,
    /// A switch between the NICs, if there is one.
    pub switch: Option<Switch>,
    /// Power, if it is known.
    pub power: Option<Power>,
    /// What replicated records need beyond.
    pub replication: Option<Replication>,
    /// Remora's software NIC, if that is the NIC.
    pub software: Option<Software>,
    /// The values that all this was made of.
    pub params: Params,
}

/// A hardware NIC: the client's and the node's are alike.
#[derive(Clone, Debug, PartialEq)]
pub struct HardwareNic {
    /// Between it and the host.
    pub pcie: Pcie,
    /// Its data path.
    pub pipeline: Pipeline,
    /// The wire between two of them.
    pub ethernet: Ethernet,
}

/// The cores of a NIC's card as a machine of their own on the network, beside the node.
#[derive(Clone, Debug, PartialEq)]
pub struct Card {
    /// What they have beside what `nic.cores` says.
    pub machine: CardMachine,
    /// What each core has in front of the last level.
    pub private: PrivateCaches,
    /// Between the NIC's data path and them.
    pub pcie: Pcie,
}

/// Remora's software NIC, and what it stands on.
#[derive(Clone, Debug, PartialEq)]
pub struct Software {
    /// What the system takes.
    pub system: System,
    /// Time of a dependent load by the bytes that loads are spread over: bytes and picoseconds, in rising order.
    pub curve: Vec<(u64, u64)>,
    /// Over UDP.
    pub udp: SoftwareLink,
    /// Over shared memory.
    pub shm: SoftwareLink,
}

/// The software NIC over one link.
#[derive(Clone, Debug, PartialEq)]
pub struct SoftwareLink {
    /// Kernels at the client.
    pub client: SoftwarePlace,
    /// Kernels on the NIC.
    pub nic: SoftwarePlace,
    /// Kernels on the host.
    pub host: SoftwarePlace,
}

impl Platform {
    /// The names of the platforms that come with the program.
    pub fn built_in() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// The file of a built-in platform, its parts put in: it stands by itself.
    pub fn built_in_text(name: &str) -> Option<String> {
        let (name, text) = BUILT_IN.iter().find(|(known, _)| *known == name)?;
        Some(parts::whole(name, text).ok()?.text)
    }

    /// A built-in platform by its name, or any other by the path of its file.
    pub fn load(name_or_path: &str) -> Result<Self, PlatformError> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| *name == name_or_path) {
            return Self::parse(&format!("platforms/{name}.toml"), text);
        }
        let path = Path::new(name_or_path);
        if !path.exists() {
            let known = Self::built_in().collect::<Vec<_>>().join(", ");
            return Err(PlatformError::NotFound { name: name_or_path.into(), known });
        }
        let failed = |source| PlatformError::Read { file: name_or_path.into(), source };
        let text = read(path).map_err(failed)?;
        Self::parse(name_or_path, &text).map_err(|error| match text.lines().any(|line| line.trim() == "[[access]]") {
            true => PlatformError::Operation { file: name_or_path.into() },
            false => error,
        })
    }

    /// Parses a file's text; `file` is what messages call it.
    pub fn parse(file: &str, text: &str) -> Result<Self, PlatformError> {
        let platform = Self::build(Params::parse(file, text)?)?;
        platform.params.all_used()?;
        Ok(platform)
    }

    /// The typed form of values. Fails on values that make no platform, not on ones that nothing reads.
    pub fn build(params: Params) -> Result<Self, PlatformError> {
        let top = params.section("");
        let (name, title, probed) = (top.text("name")?, top.text("title")?, top.text_or_none("probed"));
        let placements = Placements::read(&params)?;
        let core = |name: &'static str| needed(&params, ("placements", name), Core::read);
        let software = placements.nic == Some(NicDevice::Software);
        let nic_cores = match placements.nic {
            Some(NicDevice::Cores) => Some(needed(&params, ("placements.nic", "nic.cores"), NicCores::read)?),
            _ => None,
        };
        let accel = match placements.accel {
            Some(_) => Some(needed(&params, ("placements.accel", "accel"), Accel::read)?),
            None => None,
        };
        let platform = Self {
            client: needed(&params, ("placements", "client.core"), ClientCore::read)?.into(),
            host: core("host.core")?,
            cache: needed(&params, ("placements", "host.cache"), Cache::read)?,
            dram: needed(&params, ("placements", "host.dram"), Dram::read)?,
            sockets: optional(&params, "host.sockets", Sockets::read)?,
            checksum: optional(&params, "checksum", Checksum::read)?,
            stream: optional(&params, "stream", Stream::read)?,
            module_core: optional(&params, "module.core", Module::read)?,
            module_logic: optional(&params, "module.logic", Module::read)?,
            tcp: optional(&params, "tcp", Tcp::read)?,
            nic: (!software).then(|| HardwareNic::read(&params)).transpose()?,
            nic_state: optional(&params, "nic.state", NicState::read)?,
            jitter: optional(&params, "host.jitter", Jitter::read)?,
            nic_cores,
            private: optional(&params, "host.private", PrivateCaches::read)?,
            card: params.has("nic.cores.machine").then(|| Card::read(&params)).transpose()?,
            accel,
            coherence_controller: optional(&params, "accel.controller", CoherenceController::read)?,
            accel_ddr: optional(&params, "accel.ddr", LocalMemory::read)?,
            accel_hbm: optional(&params, "accel.hbm", LocalMemory::read)?,
            accel_cxl: optional(&params, "accel.cxl", CxlLink::read)?,
            nvm: optional(&params, "nvm", Nvm::read)?,
            ring_server: optional(&params, "ring_server", RingServer::read)?,
            rack: optional(&params, "rack", RackCosts::read)?,
            switch: optional(&params, "switch", Switch::read)?,
            power: optional(&params, "power", Power::read)?,
            replication: optional(&params, "replication", Replication::read)?,
            software: software.then(|| Software::read(&params)).transpose()?,
            name,
            title,
            probed,
            placements,
            params,
        };
        platform.nothing_idle()?;
        Ok(platform)
    }

    /// Fails on values that this platform's placements leave without a use, and on one that they need.
    fn nothing_idle(&self) -> Result<(), PlatformError> {
        let Self { placements, params, .. } = self;
        let logic = placements.nic == Some(NicDevice::Pipeline);
        match logic {
            true => _ = params.section("nic.pipeline").cycles("kernel_cycles")?,
            false => params.nothing_at("nic.pipeline.kernel_cycles", "no kernel runs on the NIC's data path")?,
        }
        if placements.accel.is_none() {
            params.nothing_at("accel", "no placement is an accelerator")?;
        }
        if !logic && placements.accel.is_none() {
            params.nothing_at("module.logic", "no kernel runs in logic")?;
        }
        if placements.nic != Some(NicDevice::Cores) {
            params.nothing_at("nic.cores", "no kernel runs on cores of the NIC")?;
        }
        if placements.nic == Some(NicDevice::Software) {
            let why = "a software NIC is measured with all that";
            ["host.jitter", "host.sockets", "nic.state"].into_iter().try_for_each(|at| params.nothing_at(at, why))?;
        }
        Ok(())
    }

    /// This platform with other values, given by path in base units. They may lie outside their ranges: that is how one asks
    /// what would be beyond. Fails if they make no platform.
    pub fn with(&self, values: &[(&str, f64)]) -> Result<Self, PlatformError> {
        let mut params = self.params.clone();
        for &(path, value) in values {
            params.set(path, value);
        }
        Self::build(params)
    }

    /// This platform with the queues of what a section describes served out of turn (see [`crate::resource::Order`]). `None` if
    /// nothing that the section describes has a queue in the model.
    pub fn out_of_turn(&self, section: &str) -> Result<Option<Self>, PlatformError> {
        let mut params = self.params.clone();
        params.set_out_of_turn(section);
        let platform = Self::build(params)?;
        Ok(platform.params.out_of_turn().is_some().then_some(platform))
    }
}

/// A file's text, if it is no longer than one may be. Some that have no end say that they are empty.
fn read(path: &Path) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MAX_FILE {
        true => Err(std::io::Error::other("it has more than a megabyte: that is no platform file")),
        false => String::from_utf8(bytes).map_err(|_| std::io::Error::other("it is no text in UTF-8")),
    }
}

impl HardwareNic {
    fn read(params: &Params) -> Result<Self, PlatformError> {
        Ok(Self {
            pcie: needed(params, ("placements", "host.pcie"), Pcie::read)?,
            pipeline: needed(params, ("placements", "nic.pipeline"), Pipeline::read)?,
            ethernet: needed(params, ("placements", "ethernet"), Ethernet::read)?,
        })
    }
}

impl Card {
    fn read(params: &Params) -> Result<Self, PlatformError> {
        let device = "placements.nic";
        Ok(Self {
            machine: needed(params, (device, "nic.cores.machine"), CardMachine::read)?,
            private: needed(params, (device, "nic.cores.private"), PrivateCaches::read)?,
            pcie: needed(params, (device, "nic.cores.pcie"), Pcie::read)?,
        })
    }
}

impl Software {
    fn read(params: &Params) -> Result<Self, PlatformError> {
        let device = "placements.nic";
        let place = |name| needed(params, (device, name), SoftwarePlace::read);
        Ok(Self {
            system: needed(params, (device, "system"), System::read)?,
            curve: needed(params, (device, "host.curve"), |section| section.curve())?,
            udp: SoftwareLink {
                client: place("software.udp.client")?,
                nic: place("software.udp.nic")?,
                host: place("software.udp.host")?,
            },
            shm: SoftwareLink {
                client: place("software.shm.client")?,
                nic: place("software.shm.nic")?,
                host: place("software.shm.host")?,
            },
        })
    }
}

/// Reads a curve of sizes and times at a size: between points along the logarithm of the size if `logarithmic`, along
/// the size itself if not; beyond the ends as at the ends. In picoseconds.
pub fn on_curve(curve: &[(u64, u64)], bytes: f64, logarithmic: bool) -> f64 {
    let above = curve.partition_point(|&(size, _)| (size as f64) < bytes);
    match (above.checked_sub(1).and_then(|below| curve.get(below)), curve.get(above)) {
        (Some(&(s0, t0)), Some(&(s1, t1))) => {
            let scale = |size: f64| if logarithmic { size.max(1.0).ln() } else { size };
            let part = (scale(bytes) - scale(s0 as f64)) / (scale(s1 as f64) - scale(s0 as f64));
            t0 as f64 + part * (t1 as f64 - t0 as f64)
        }
        (Some(&(_, time)), None) | (None, Some(&(_, time))) => time as f64,
        (None, None) => 0.0,
    }
}

#[cfg(test)]
mod tests;

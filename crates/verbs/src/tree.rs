//! The files that a kernel with this device would show: `/sys/class/infiniband` and what belongs to it, and
//! `/dev/infiniband`.
//!
//! They are real files and real symbolic links, in this process's directory of `remora_real::presence`, laid out as
//! below the root directory. [`files`](crate::files) sends there the calls that name them; all else (directories
//! that are open, names relative to them, links) the kernel does by itself.
//!
//! The device is on a bus of its own, as hardware is: programs go from `/sys/class/infiniband/remora0` up to the
//! adapter, and look there for its NUMA node. GUIDs and GIDs follow from the device's address, which a process may not
//! have yet: they stand empty until it has.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use remora_real::presence::Presence;

use crate::adapter::{self, Adapter};
use crate::device::{self, FIRMWARE, NAME};
use crate::files::untouched;
use crate::port::{GIDS, gids};
use crate::settings::say;

/// The bus address; its domain is one that no machine has.
pub const BUS: &str = "0052:00:00.0";
/// The device numbers of the device's node, as kernels give them to the first.
const UVERBS: (u32, u32) = (231, 192);
/// Those of the connection manager's node, which kernels choose as they boot.
pub const RDMA_CM: (u32, u32) = (10, 122);

/// The files that are shown as character devices, and their numbers.
pub const NODES: [(&str, (u32, u32)); 2] = [("uverbs0", UVERBS), ("rdma_cm", RDMA_CM)];
/// What marks them, in the tree of any process: these rights, and a size that is the device's number.
const NODE_MODE: u32 = 0o1666;

/// What belongs to the device. Below these, and nowhere else, this process sees the tree.
pub const PLACES: [&str; 10] = [
    "/sys/class/infiniband",
    "/sys/class/infiniband_verbs",
    "/sys/class/infiniband_cm",
    "/sys/class/misc/rdma_cm",
    "/sys/devices/virtual/misc/rdma_cm",
    "/sys/devices/pci0052:00",
    "/sys/bus/pci/devices/0052:00:00.0",
    "/sys/dev/char/231:192",
    "/sys/dev/char/10:122",
    "/dev/infiniband",
];

/// One of these stands in every path that leads there.
pub const MARKS: [&str; 5] = ["infiniband", "rdma_cm", "0052:00", "231:192", "10:122"];

/// The tree of this process.
pub struct Tree {
    presence: Presence,
    /// Who built it; a child of that process builds its own.
    owner: u32,
}

static TREE: AtomicPtr<Tree> = AtomicPtr::new(std::ptr::null_mut());

/// The tree, if this process or its parent has built one.
pub fn built() -> Option<&'static Tree> {
    // SAFETY: null, or leaked by `get`.
    unsafe { TREE.load(Ordering::Acquire).as_ref() }
}

/// The tree, built now if it was not before. `None` where there is no place for it.
pub fn get() -> Option<&'static Tree> {
    let before = TREE.load(Ordering::Acquire);
    // SAFETY: null, or leaked below.
    if let Some(tree) = unsafe { before.as_ref() }
        && tree.owner == std::process::id()
    {
        return Some(tree);
    }
    let tree = match untouched(Tree::build) {
        Ok(tree) => Box::into_raw(Box::new(tree)),
        Err(e) => {
            static SAID: std::sync::Once = std::sync::Once::new();
            SAID.call_once(|| say(format_args!("/sys/class/infiniband cannot be shown: {e}")));
            return None;
        }
    };
    match TREE.compare_exchange(before, tree, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            extern "C" fn remove() {
                if let Some(tree) = built()
                    && tree.owner == std::process::id()
                {
                    untouched(|| tree.presence.leave());
                }
            }
            static ONCE: std::sync::Once = std::sync::Once::new();
            // SAFETY: the handler lives as long as the process, as this library is never unloaded.
            ONCE.call_once(|| unsafe {
                libc::atexit(remove);
            });
            if let Some(adapter) = adapter::current() {
                fill(adapter);
            }
        }
        Err(_) => {
            // SAFETY: nobody else has seen it.
            let tree = unsafe { Box::from_raw(tree) };
            untouched(|| tree.presence.leave());
        }
    }
    built()
}

/// Writes what follows from the device's address. Without a tree there is nothing to do.
pub fn fill(adapter: &Adapter) {
    let Some(tree) = built().filter(|tree| tree.owner == std::process::id()) else { return };
    for (name, text) in of_address(adapter.address) {
        // What cannot be written stays empty, and is refused by who reads it.
        replace(tree, &tree.root().join(device_dir()).join(name), &text);
    }
}

/// Whether the file with this name, at the end of a path, has to wait for the device's address.
pub fn wants_address(path: &[u8]) -> bool {
    let mut parts = path.rsplit(|&b| b == b'/');
    match parts.next() {
        Some(b"node_guid" | b"sys_image_guid") => true,
        Some(b"0" | b"1") => parts.next().is_none_or(|parent| parent == b"gids" || parent == b"ndevs"),
        _ => false,
    }
}

impl Tree {
    /// What stands for the root directory.
    pub fn root(&self) -> &Path {
        self.presence.dir()
    }

    /// Of this process.
    pub fn presence(&self) -> &Presence {
        &self.presence
    }

    fn build() -> io::Result<Self> {
        let presence = Presence::enter()?;
        let root = presence.dir();
        for (path, text) in files() {
            let path = root.join(path);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            write(&path, &text)?;
        }
        for (path, target) in links() {
            let path = root.join(path);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            symlink(target, &path)?;
        }
        let dir = root.join("dev/infiniband");
        fs::create_dir_all(&dir)?;
        for (name, (major, minor)) in NODES {
            let node = fs::File::create(dir.join(name))?;
            node.set_len(libc::makedev(major, minor))?;
            node.set_permissions(fs::Permissions::from_mode(NODE_MODE))?;
        }
        Ok(Self { owner: std::process::id(), presence })
    }
}

/// The device numbers of a file that is shown as a node, by its mode and size.
pub fn node(mode: u32, size: u64) -> Option<(u32, u32)> {
    if mode != libc::S_IFREG | NODE_MODE {
        return None;
    }
    NODES.iter().map(|&(_, numbers)| numbers).find(|&(major, minor)| libc::makedev(major, minor) == size)
}

/// Puts a file of sysfs in the place of another in one step: a reader sees the old one or the new one. What cannot be
/// written stays as it is. Others may do the same meanwhile.
fn replace(tree: &Tree, path: &Path, text: &str) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let new = tree.root().join(format!("new-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
    let _ = untouched(|| write(&new, text).and_then(|()| fs::rename(&new, path)));
}

/// A file of sysfs: a line, read only.
fn write(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o444))
}

fn adapter_dir() -> String {
    format!("sys/devices/pci0052:00/{BUS}")
}

fn device_dir() -> String {
    format!("{}/infiniband/{NAME}", adapter_dir())
}

/// Paths below the root, and what stands there.
fn files() -> Vec<(String, String)> {
    let (adapter, device) = (adapter_dir(), device_dir());
    let uverbs = format!("{adapter}/infiniband_verbs/uverbs0");
    let mut files = Vec::new();
    let mut add = |dir: &str, entries: &[(&str, &str)]| {
        files.extend(entries.iter().map(|(name, text)| (format!("{dir}/{name}"), format!("{text}\n"))));
    };
    // A network controller without a vendor, as `ibv_query_device` has it.
    add(
        &adapter,
        &[
            ("class", "0x020000"),
            ("vendor", "0xffff"),
            ("device", "0x0000"),
            ("subsystem_vendor", "0xffff"),
            ("subsystem_device", "0x0000"),
            ("revision", "0x00"),
            ("irq", "0"),
            ("enable", "1"),
            ("numa_node", "-1"),
            ("local_cpus", online("cpumap").as_str()),
            ("local_cpulist", online("cpulist").as_str()),
            ("current_link_speed", "32.0 GT/s PCIe"),
            ("current_link_width", "16"),
            ("max_link_speed", "32.0 GT/s PCIe"),
            ("max_link_width", "16"),
            ("modalias", "pci:v0000FFFFd00000000sv0000FFFFsd00000000bc02sc00i00"),
            ("uevent", "PCI_CLASS=20000\nPCI_ID=FFFF:0000\nPCI_SUBSYS_ID=FFFF:0000\nPCI_SLOT_NAME=0052:00:00.0"),
        ],
    );
    let named = format!("NAME={NAME}");
    add(
        &device,
        &[
            ("node_type", "1: CA"),
            ("node_desc", "Remora"),
            ("fw_ver", FIRMWARE),
            ("hca_type", "Remora"),
            ("hw_rev", "0x0"),
            ("board_id", "REMORA"),
            ("uevent", &named),
        ],
    );
    let port = format!("{device}/ports/1");
    add(
        &port,
        &[
            ("state", "4: ACTIVE"),
            ("phys_state", "5: LinkUp"),
            ("link_layer", "Ethernet"),
            ("rate", "25 Gb/sec (1X EDR)"),
            ("lid", "0x0"),
            ("lid_mask_count", "0"),
            ("sm_lid", "0x0"),
            ("sm_sl", "0"),
            ("cap_mask", "0x04010000"),
            ("pkeys/0", "0xffff"),
        ],
    );
    for index in 0..GIDS {
        add(&port, &[(&format!("gid_attrs/types/{index}"), "RoCE v2")]);
    }
    for name in COUNTERS {
        add(&port, &[(&format!("counters/{name}"), "0")]);
    }
    for name in HARDWARE_COUNTERS {
        add(&port, &[(&format!("hw_counters/{name}"), "0")]);
    }
    let (major, minor) = UVERBS;
    let numbers = format!("{major}:{minor}");
    let event = format!("MAJOR={major}\nMINOR={minor}\nDEVNAME=infiniband/uverbs0");
    add(&uverbs, &[("abi_version", "1"), ("ibdev", NAME), ("dev", &numbers), ("uevent", &event)]);
    add("sys/class/infiniband_verbs", &[("abi_version", "6")]);
    // The version of the interface that librdmacm talks (`rdma_user_cm.h`).
    let (major, minor) = RDMA_CM;
    let numbers = format!("{major}:{minor}");
    let event = format!("MAJOR={major}\nMINOR={minor}\nDEVNAME=infiniband/rdma_cm");
    add("sys/devices/virtual/misc/rdma_cm", &[("abi_version", "4"), ("dev", &numbers), ("uevent", &event)]);
    add("sys/class/infiniband_cm", &[("abi_version", "4")]);
    let empty = of_address(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));
    files.extend(empty.into_iter().map(|(name, _)| (format!("{device}/{name}"), String::new())));
    files
}

/// The network interface that has the device's address.
pub fn interface(address: IpAddr) -> String {
    remora_real::link::interface_of(address).ok().flatten().unwrap_or_else(|| "lo".into())
}

/// Files of the device that follow from its address.
fn of_address(address: IpAddr) -> Vec<(String, String)> {
    let groups = |bytes: &[u8]| {
        let words: Vec<String> = bytes.chunks(2).map(|b| format!("{:02x}{:02x}", b[0], b[1])).collect();
        words.join(":") + "\n"
    };
    let guid = groups(&device::guid(address));
    let mut files = vec![("node_guid".into(), guid.clone()), ("sys_image_guid".into(), guid)];
    let interface = interface(address);
    for (index, gid) in gids(address).iter().enumerate() {
        files.push((format!("ports/1/gids/{index}"), groups(&gid.raw)));
        files.push((format!("ports/1/gid_attrs/ndevs/{index}"), format!("{interface}\n")));
    }
    files
}

/// Symbolic links below the root, and where they lead.
fn links() -> Vec<(String, String)> {
    let (adapter, device) = (adapter_dir(), device_dir());
    let below = &adapter["sys/".len()..];
    let uverbs = format!("{adapter}/infiniband_verbs/uverbs0");
    let mut links = Vec::new();
    let mut add = |at: String, to: String| links.push((at, to));
    add(format!("sys/class/infiniband/{NAME}"), format!("../../{below}/infiniband/{NAME}"));
    add("sys/class/infiniband_verbs/uverbs0".into(), format!("../../{below}/infiniband_verbs/uverbs0"));
    add("sys/class/misc/rdma_cm".into(), "../../devices/virtual/misc/rdma_cm".into());
    add(format!("sys/bus/pci/devices/{BUS}"), format!("../../../{below}"));
    add(format!("sys/dev/char/{}:{}", UVERBS.0, UVERBS.1), format!("../../{below}/infiniband_verbs/uverbs0"));
    add(format!("sys/dev/char/{}:{}", RDMA_CM.0, RDMA_CM.1), "../../devices/virtual/misc/rdma_cm".into());
    add(format!("{device}/device"), format!("../../../{BUS}"));
    add(format!("{device}/subsystem"), "../../../../../class/infiniband".into());
    add(format!("{uverbs}/device"), format!("../../../{BUS}"));
    add(format!("{uverbs}/subsystem"), "../../../../../class/infiniband_verbs".into());
    add("sys/devices/virtual/misc/rdma_cm/subsystem".into(), "/sys/class/misc".into());
    add(format!("{adapter}/subsystem"), "/sys/bus/pci".into());
    links
}

/// The processors of this machine, all of which are as near.
fn online(kind: &str) -> String {
    let path = format!("/sys/devices/system/node/node0/{kind}");
    let text = fs::read_to_string(path).or_else(|_| fs::read_to_string("/sys/devices/system/cpu/online"));
    text.unwrap_or_default().trim_end().into()
}

/// `counters`: of these [`refresh`] knows the first four.
const COUNTERS: [&str; 16] = [
    "port_xmit_data",
    "port_rcv_data",
    "port_xmit_packets",
    "port_rcv_packets",
    "unicast_xmit_packets",
    "unicast_rcv_packets",
    "port_xmit_discards",
    "port_xmit_wait",
    "port_rcv_errors",
    "port_rcv_constraint_errors",
    "port_xmit_constraint_errors",
    "symbol_error",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
];

/// `hw_counters`, by the names that RoCE drivers give them.
const HARDWARE_COUNTERS: [&str; 6] = [
    "duplicate_request",
    "out_of_sequence",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "packet_seq_err",
    "np_cnp_sent",
];

/// Whether this is the path of a counter.
pub fn is_counter(path: &[u8]) -> bool {
    let mut parts = path.rsplit(|&b| b == b'/');
    parts.next().is_some() && matches!(parts.next(), Some(b"counters" | b"hw_counters"))
}

/// Writes what the counters are now, if there is a device. They count as hardware does: data in words of four bytes.
pub fn refresh() {
    let Some(tree) = built().filter(|tree| tree.owner == std::process::id()) else { return };
    let Some(mut guard) = adapter::current().and_then(Adapter::lock) else { return };
    let counters = guard.nic().counters();
    drop(guard);
    let port = tree.root().join(device_dir()).join("ports/1");
    let values = [
        ("counters/port_xmit_data", counters.tx_bytes / 4),
        ("counters/port_rcv_data", counters.rx_bytes / 4),
        ("counters/port_xmit_packets", counters.tx_packets),
        ("counters/port_rcv_packets", counters.rx_packets),
        ("counters/unicast_xmit_packets", counters.tx_packets),
        ("counters/unicast_rcv_packets", counters.rx_packets),
        ("hw_counters/duplicate_request", counters.duplicates),
        ("hw_counters/out_of_sequence", counters.sequence_naks),
        ("hw_counters/local_ack_timeout_err", counters.timeouts),
    ];
    let mut text = String::new();
    for (name, value) in values {
        text.clear();
        let _ = writeln!(text, "{value}");
        replace(tree, &port.join(name), &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_shown_lies_in_the_places() {
        let paths = files().into_iter().chain(links()).map(|(path, _)| format!("/{path}"));
        for path in paths {
            assert!(PLACES.iter().any(|place| path.starts_with(place)), "{path}");
            assert!(MARKS.iter().any(|mark| path.contains(mark)), "{path}");
        }
    }

    #[test]
    fn links_lead_somewhere() {
        let tree = Tree::build().unwrap();
        for (path, target) in links() {
            if !target.starts_with('/') {
                assert!(tree.root().join(&path).exists(), "{path} -> {target}");
            }
        }
        tree.presence().leave();
    }

    #[test]
    fn files_that_wait_for_the_address() {
        for path in ["a/node_guid", "sys_image_guid", "ports/1/gids/0", "gids/1", "0"] {
            assert!(wants_address(path.as_bytes()), "{path}");
        }
        for path in ["ports/1", "gid_attrs/types/0", "node_type", "pkeys/0"] {
            assert!(!wants_address(path.as_bytes()), "{path}");
        }
    }
}

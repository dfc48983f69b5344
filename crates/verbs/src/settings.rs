//! What the process's device is like, as the environment says; `remora exec` sets it.
//!
//! | variable                | meaning                                              | default                                 |
//! |-------------------------|------------------------------------------------------|-----------------------------------------|
//! | `REMORA_DEVICE_ADDRESS` | IP address of the device                             | the first of 127.0.0.2, .3, … to be had |
//! | `REMORA_MTU`            | active MTU of the port                               | what the links carry                    |
//! | `REMORA_LINK`           | `auto`, `udp` or `shm`                               | `auto`: shared memory where possible    |
//! | `REMORA_LOSS`           | `percent:seed` of received packets to lose           | none                                    |
//! | `REMORA_PCAP`           | file for all packets; `%p` in it is the process's ID | none                                    |
//! | `REMORA_TRACE`          | `1`: a line on standard error for each packet        | none                                    |
//! | `REMORA_SUMMARY`        | a process's ID: a line there at the end, what the links carried, if anything or in that process | none |

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

use remora_real::LinkKind;
use remora_real::link::Layers;
use remora_real::link::lossy::Faults;
use remora_real::link::pcap::PcapFile;
use remora_real::link::traced::{Passed, Tracer};

/// An errno, and the reason in words.
pub type Failure = (i32, String);

/// The environment's values, each checked.
pub struct Settings {
    /// The device's address, if one is given.
    pub address: Option<IpAddr>,
    /// The port's MTU, if one is given.
    pub mtu: Option<u32>,
    /// Which links it has, the one to prefer first.
    pub links: Vec<LinkKind>,
    /// A loss makes it go back N with every peer.
    pub go_back_n: bool,
    /// What lies between these and the device.
    pub layers: Layers,
    /// Whether to say at the end what the links carried: a process that says so even if they carried nothing.
    pub summary: Option<u32>,
}

impl Settings {
    /// Reads them. Makes the capture's file.
    pub fn read() -> Result<Self, Failure> {
        let links = match setting("REMORA_LINK")?.as_deref() {
            None | Some("auto") => vec![LinkKind::Shm, LinkKind::Udp],
            Some(text) => match text.parse() {
                Ok(kind @ (LinkKind::Udp | LinkKind::Shm)) => vec![kind],
                _ => return Err(wrong("REMORA_LINK", text, "auto, udp or shm")),
            },
        };
        let address = setting("REMORA_DEVICE_ADDRESS")?.map(|text| {
            text.parse().map_err(|_| wrong("REMORA_DEVICE_ADDRESS", &text, "an IP address, such as 127.0.0.2"))
        });
        let mtu = setting("REMORA_MTU")?.map(|text| match text.parse() {
            Ok(mtu @ (256 | 512 | 1024 | 2048 | 4096)) => Ok(mtu),
            _ => Err(wrong("REMORA_MTU", &text, "256, 512, 1024, 2048 or 4096")),
        });
        let (address, mtu, faults, tracer) = (address.transpose()?, mtu.transpose()?, loss()?, trace()?);
        let summary = setting("REMORA_SUMMARY")?
            .map(|text| text.parse().map_err(|_| wrong("REMORA_SUMMARY", &text, "a process ID")))
            .transpose()?;
        let go_back_n = flag("REMORA_GO_BACK_N")?;
        Ok(Self { address, mtu, links, go_back_n, layers: Layers { pcap: pcap()?, tracer, faults }, summary })
    }
}

/// `REMORA_LOSS=percent:seed`.
fn loss() -> Result<Option<(Faults, u64)>, Failure> {
    let Some(text) = setting("REMORA_LOSS")? else { return Ok(None) };
    let (percent, seed) = text.split_once(':').unwrap_or((&text, "1"));
    match (percent.parse::<f64>(), seed.parse()) {
        (Ok(percent), Ok(seed)) if (0.0..=100.0).contains(&percent) => {
            Ok((percent > 0.0).then_some((Faults { drop: percent / 100.0, ..Faults::default() }, seed)))
        }
        _ => Err(wrong("REMORA_LOSS", &text, "percent:seed, such as 5:42")),
    }
}

/// `REMORA_TRACE=1`.
fn trace() -> Result<Option<Tracer>, Failure> {
    Ok(flag("REMORA_TRACE")?.then(|| Arc::new(|passed: &Passed<'_>| say(passed)) as Tracer))
}

/// A variable that is 1, or 0 or not there.
fn flag(name: &str) -> Result<bool, Failure> {
    match setting(name)?.as_deref() {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(text) => Err(wrong(name, text, "1")),
    }
}

/// `REMORA_PCAP=file`.
fn pcap() -> Result<Option<PcapFile>, Failure> {
    let Some(name) = std::env::var_os("REMORA_PCAP").filter(|name| !name.is_empty()) else { return Ok(None) };
    let path = own_path(&name, std::process::id());
    PcapFile::create(&path).map(Some).map_err(|e| {
        let hint = match e.kind() {
            std::io::ErrorKind::ResourceBusy => ": put %p in its name, which becomes the process's ID",
            _ => "",
        };
        (e.raw_os_error().unwrap_or(libc::EBUSY), format!("cannot write {}: {e}{hint}", path.display()))
    })
}

/// `name` with the process's ID in place of each `%p`.
fn own_path(name: &OsStr, process: u32) -> PathBuf {
    let (mut own, mut rest) = (Vec::new(), name.as_bytes());
    while let Some(at) = rest.windows(2).position(|two| two == b"%p") {
        own.extend_from_slice(&rest[..at]);
        own.extend_from_slice(process.to_string().as_bytes());
        rest = &rest[at + 2..];
    }
    own.extend_from_slice(rest);
    OsString::from_vec(own).into()
}

/// A variable that is not empty; one that is no text is wrong, as if it were another word.
fn setting(name: &str) -> Result<Option<String>, Failure> {
    let Some(value) = std::env::var_os(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    value.into_string().map(Some).map_err(|value| wrong(name, &value.to_string_lossy(), "plain text"))
}

/// Says a line on standard error, at once, as programs may share it; where nobody hears it, it is not said.
pub fn say(line: impl Display) {
    let _ = std::io::stderr().write_all(format!("remora: {line}\n").as_bytes());
}

/// The failure of a variable's value.
pub fn wrong(name: &str, value: &str, allowed: &str) -> Failure {
    (libc::EINVAL, format!("{name} is {value:?}: use {allowed}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_may_have_its_own_file() {
        let own = |name: &str| own_path(name.as_ref(), 12);
        assert_eq!(own("/tmp/a.pcap"), PathBuf::from("/tmp/a.pcap"));
        assert_eq!(own("%p-%p.pcap%"), PathBuf::from("12-12.pcap%"));
    }
}

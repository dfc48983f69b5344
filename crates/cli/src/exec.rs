//! `remora exec`: an RDMA program of the system on Remora's verbs library.

use std::env;
use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use remora_real::LinkKind;

use crate::{Failure, args};

/// Options of `remora exec`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Exec {
    /// The device's IP address [default: the first of 127.0.0.2, .3, ... that is free]
    #[arg(long, value_name = "ADDR", value_parser = args::address)]
    pub device_address: Option<IpAddr>,
    /// Active MTU of the port: 256, 512, 1024, 2048 or 4096 [default: what the links carry, on loopback 4096]
    #[arg(long, value_name = "BYTES", value_parser = mtu)]
    pub mtu: Option<u32>,
    /// How packets travel: auto is shared memory between processes of this user here, and UDP to all others
    #[arg(long, value_name = "LINK", default_value = "auto", value_parser = ["auto", LinkKind::Udp.name(), LinkKind::Shm.name()])]
    pub link: String,
    /// Lose some of the packets that arrive, to try what a program makes of it: percent, or percent:seed
    #[arg(long, value_name = "LOSS", value_parser = loss)]
    pub loss: Option<String>,
    /// Write all packets into this file, for Wireshark or tshark; %p in its name becomes the process's ID
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Say each packet in a line on standard error
    #[arg(long)]
    pub trace: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  remora exec -- ibv_devinfo                     the one device, remora0
  remora exec -- ib_write_lat                    in one terminal, and in another
  remora exec -- ib_write_lat localhost          a latency test over shared memory
  remora exec --link udp -- ib_write_bw localhost
  remora exec --pcap /tmp/client.pcap -- ib_write_bw localhost    for tshark
  remora exec --device-address 10.0.0.1 -- ib_send_bw    reached from other machines, also from RDMA hardware";

/// Name of the library as it is built, and as programs ask for it.
const NAMES: [&str; 2] = ["libibverbs.so.1", "libibverbs.so"];

/// Becomes the program.
pub fn run(exec: &Exec) -> Result<(), Failure> {
    let library = library()?;
    let (name, rest) = exec.command.split_first().ok_or_else(|| Failure::Usage("no command is given".into()))?;
    let mut command = Command::new(name);
    command.args(rest);
    // Loaded first under the name in its header, it is what every later wish for `libibverbs.so.1` finds, and its
    // functions stand before those of the C library.
    command.env("LD_PRELOAD", list(library.as_os_str(), env::var_os("LD_PRELOAD")));
    // For programs that ask for `libibverbs.so` while they run.
    if let Some(dir) = library.parent() {
        command.env("LD_LIBRARY_PATH", list(dir.as_os_str(), env::var_os("LD_LIBRARY_PATH")));
    }
    command.env("REMORA_LINK", &exec.link);
    if let Some(address) = exec.device_address {
        command.env("REMORA_DEVICE_ADDRESS", address.to_string());
    }
    if let Some(mtu) = exec.mtu {
        command.env("REMORA_MTU", mtu.to_string());
    }
    if let Some(loss) = &exec.loss {
        command.env("REMORA_LOSS", loss);
    }
    if let Some(pcap) = &exec.pcap {
        command.env("REMORA_PCAP", pcap);
    }
    if exec.trace {
        command.env("REMORA_TRACE", "1");
    }
    let error = command.exec();
    Err(Failure::Failed(format!("cannot run {}: {error}", name.to_string_lossy())))
}

/// The verbs library that belongs to this executable: beside it as cargo builds it, or installed in `../lib/remora`.
fn library() -> Result<PathBuf, Failure> {
    let exe = env::current_exe().map_err(|e| Failure::Failed(format!("where this command lies is unknown: {e}")))?;
    let dir = exe.parent().unwrap_or(Path::new("/"));
    let places = [dir.join("../lib/remora"), dir.into(), dir.join("deps")];
    let found = places.iter().flat_map(|place| NAMES.map(|name| place.join(name))).find(|path| path.is_file());
    let Some(path) = found.and_then(|path| path.canonicalize().ok()) else {
        let why = format!(
            "the verbs library is neither beside {} nor in ../lib/remora: build it with \
             `cargo build -p remora-verbs`, with --release if this command was built so",
            exe.display()
        );
        return Err(Failure::Failed(why));
    };
    if path.as_os_str().as_bytes().iter().any(|byte| b" :;".contains(byte)) {
        let why =
            format!("the dynamic linker cannot load {}: its path has a blank, colon or semicolon", path.display());
        return Err(Failure::Failed(why));
    }
    Ok(path)
}

/// `first`, and behind it what was there before.
fn list(first: &OsStr, rest: Option<OsString>) -> OsString {
    let mut list = first.to_owned();
    if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
        list.push(":");
        list.push(rest);
    }
    list
}

fn mtu(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(mtu @ (256 | 512 | 1024 | 2048 | 4096)) => Ok(mtu),
        _ => Err("use 256, 512, 1024, 2048 or 4096".into()),
    }
}

fn loss(text: &str) -> Result<String, String> {
    let (percent, seed) = text.split_once(':').unwrap_or((text, "1"));
    match (percent.parse::<f64>(), seed.parse::<u64>()) {
        (Ok(percent), Ok(seed)) if (0.0..=100.0).contains(&percent) => Ok(format!("{percent}:{seed}")),
        _ => Err("give percent or percent:seed, such as 5 or 5:42".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        assert_eq!(mtu("1024"), Ok(1024));
        assert_eq!(loss("5"), Ok("5:1".into()));
        assert_eq!(loss("0.5:42"), Ok("0.5:42".into()));
        assert!(["", "1500", "x"].iter().all(|bad| mtu(bad).is_err()));
        assert!(["", "101", "-1", "5:x", "nan"].iter().all(|bad| loss(bad).is_err()));
    }

    #[test]
    fn lists_keep_what_was_there() {
        assert_eq!(list(OsStr::new("a"), None), "a");
        assert_eq!(list(OsStr::new("a"), Some("b:c".into())), "a:b:c");
    }
}

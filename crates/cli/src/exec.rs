//! `remora exec`: an RDMA program of the system on Remora's verbs library.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use remora_real::{LinkKind, presence};

use crate::progress::is_quiet;
use crate::{Failure, args, output, preload};

pub mod program;

/// Options of `remora exec`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Exec {
    /// The device's IP address [default: the first of 127.0.0.2, .3, ... that is free]
    #[arg(long, value_name = "ADDR", value_parser = args::address)]
    pub device_address: Option<IpAddr>,
    /// Active MTU of the port: 256, 512, 1024, 2048 or 4096 [default: what the links carry, on loopback 4096]
    #[arg(long, value_name = "BYTES", value_parser = args::mtu)]
    pub mtu: Option<u32>,
    /// How packets travel: auto is shared memory between processes of this user here, and UDP to all others
    #[arg(long, value_name = "LINK", default_value = "auto", value_parser = ["auto", LinkKind::Udp.name(), LinkKind::Shm.name()])]
    pub link: String,
    /// Lose some of the packets that arrive, to try what a program makes of it: percent, or percent:seed
    #[arg(long, value_name = "LOSS", value_parser = loss)]
    pub loss: Option<String>,
    /// After a loss send all again that followed, as standard NICs do, also to peers that keep what comes early
    #[arg(long)]
    pub go_back_n: bool,
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

/// Becomes the program.
pub fn run(exec: &Exec) -> Result<(), Failure> {
    let (name, rest) = exec.command.split_first().ok_or_else(|| Failure::Usage("no command is given".into()))?;
    let library = preload::VERBS.find(program::check(&exec.command).map_err(Failure::Failed)?)?;
    check_device(exec)?;
    let mut command = Command::new(name);
    command.args(rest);
    // Loaded first under the name in its header, it is what every later wish for `libibverbs.so.1` finds, and its
    // functions stand before those of the C library.
    command.env("LD_PRELOAD", preload::list(library.as_os_str(), env::var_os("LD_PRELOAD")));
    // For programs that ask for `libibverbs.so` while they run.
    if let Some(dir) = library.parent() {
        command.env("LD_LIBRARY_PATH", preload::list(dir.as_os_str(), env::var_os("LD_LIBRARY_PATH")));
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
    if exec.go_back_n {
        command.env("REMORA_GO_BACK_N", "1");
    }
    if let Some(pcap) = &exec.pcap {
        command.env("REMORA_PCAP", pcap);
    }
    if exec.trace {
        command.env("REMORA_TRACE", "1");
    }
    if !is_quiet() {
        // The program has this process's ID.
        command.env("REMORA_SUMMARY", std::process::id().to_string());
    }
    let error = command.exec();
    Err(Failure::Failed(format!("cannot run {}: {error}", name.to_string_lossy())))
}

/// Whether there can be such a device: links are bound at its address and closed again, the capture's file is opened.
fn check_device(exec: &Exec) -> Result<(), Failure> {
    if let Some(address) = exec.device_address {
        for kind in
            [LinkKind::Shm, LinkKind::Udp].into_iter().filter(|kind| ["auto", kind.name()].contains(&&*exec.link))
        {
            let link = kind.bind(address).map_err(|e| Failure::Failed(presence::refusal(address, &e)))?;
            let carried = link.max_mtu();
            if let Some(mtu) = exec.mtu.filter(|&mtu| mtu as usize > carried) {
                let why = format!("no MTU of {mtu}: {kind} at {address} carries up to {carried}");
                return Err(Failure::Failed(why));
            }
        }
    }
    // Not for a name that each process makes its own of, nor for a pipe, whose reader would see an end.
    let is_plain = |path: &&PathBuf| {
        !path.as_os_str().as_bytes().contains(&b'%') && path.metadata().map_or(true, |found| found.is_file())
    };
    if let Some(path) = exec.pcap.as_ref().filter(is_plain) {
        let opened = File::options().append(true).create(true).open(path);
        opened.map_err(|e| output::cannot_write(path, &e))?;
    }
    Ok(())
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
        assert_eq!(loss("5"), Ok("5:1".into()));
        assert_eq!(loss("0.5:42"), Ok("0.5:42".into()));
        assert!(["", "101", "-1", "5:x", "nan"].iter().all(|bad| loss(bad).is_err()));
    }
}

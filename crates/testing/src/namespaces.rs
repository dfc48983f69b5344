//! Two machines, or what comes closest: network namespaces joined by links.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::skip;

/// Two network namespaces joined by veth pairs, gone with the value.
///
/// Link `n` is `v<n>` on both sides, with the addresses `10.214.<n>.1` on the first and `10.214.<n>.2` on the second.
pub struct Namespaces {
    names: [String; 2],
    links: usize,
}

/// Runs `ip` with these words.
///
/// # Errors
///
/// What it says.
pub fn ip(command: &str) -> Result<(), String> {
    match Command::new("ip").args(command.split(' ')).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("`ip {command}` says {}", String::from_utf8_lossy(&output.stderr))),
        Err(e) => Err(format!("`ip {command}`: {e}")),
    }
}

impl Namespaces {
    /// So many links, of this MTU. `None`, with the reason printed, where the system does not allow it; a failure where
    /// `CI=true`.
    #[track_caller]
    pub fn new(links: usize, mtu: u32) -> Option<Self> {
        // Tests of one process run beside each other.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let id = format!("{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let this = Self { names: ["a", "b"].map(|side| format!("remora-{side}-{id}")), links };
        let [a, b] = &this.names;
        let mut commands: Vec<String> = this.names.iter().map(|name| format!("netns add {name}")).collect();
        commands.extend(this.names.iter().map(|name| format!("-n {name} link set lo up")));
        for link in 0..links {
            commands.push(format!("link add v{link} netns {a} type veth peer name v{link} netns {b}"));
            for (side, name) in this.names.iter().enumerate() {
                commands.push(format!("-n {name} addr add {}/24 dev v{link}", Self::address(side, link)));
                commands.push(format!("-n {name} link set v{link} mtu {mtu} up"));
            }
        }
        for command in commands {
            if let Err(why) = ip(&command) {
                skip(why, "Install the package iproute2, and run as root");
                return None;
            }
        }
        Some(this)
    }

    /// The address of a side, 0 or 1, on a link.
    pub fn address(side: usize, link: usize) -> String {
        format!("10.214.{link}.{}", side + 1)
    }

    /// Runs `ip` in a side's namespace.
    ///
    /// # Errors
    ///
    /// What it says.
    pub fn ip(&self, side: usize, command: &str) -> Result<(), String> {
        ip(&format!("-n {} {command}", self.names[side]))
    }

    /// Makes every link as slow as this, both ways, where the system can.
    pub fn shape(&self, mbit: u32) {
        for (name, link) in self.names.iter().flat_map(|name| (0..self.links).map(move |link| (name, link))) {
            let shape = format!("qdisc add dev v{link} root tbf rate {mbit}mbit burst 256kb limit 4mb");
            if let Err(why) = ip(&format!("netns exec {name} tc {shape}")) {
                println!("links are as fast as they are: {why}");
            }
        }
    }

    /// A program on a side. `ip` becomes the program, so that its process is that one's.
    pub fn command(&self, side: usize, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[side]]).arg(program);
        command
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| drop(ip(&format!("netns del {name}"))));
    }
}

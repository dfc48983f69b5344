//! A node as a child process.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use remora_real::{Client, ClientConfig, LinkKind, RemoteRegion, at_free_loopback, at_local};
use remora_store::{Arena, Place};

use super::process::{Process, beside};
use crate::StudyError;

/// What a node's first line says when it can be reached; its address follows.
pub const NODE_READY: &str = "remora node ready at ";
/// How long a node may take to be up.
const START: Duration = Duration::from_secs(20);

/// A node that ends with this value.
pub struct NodeProcess {
    process: Process,
}

impl NodeProcess {
    /// Starts a node at `address` and waits until it can be reached.
    pub fn start(address: IpAddr) -> Result<Self, StudyError> {
        Self::start_captured(address, None)
    }

    /// Starts one that writes its packets into a file beside `pcap`, if there is that.
    pub fn start_captured(address: IpAddr, pcap: Option<&Path>) -> Result<Self, StudyError> {
        let (listen, pcap) = (address.to_string(), pcap.map(|pcap| beside(pcap, "node")));
        // It serves this user's own data: only the machine limits it.
        let mut args = ["node", "--listen", &listen, "--memory", "64T", "--stop-with-stdin"].map(OsStr::new).to_vec();
        if let Some(pcap) = &pcap {
            args.extend([OsStr::new("--pcap"), pcap.as_os_str()]);
        }
        let process = Process::start(format!("the node at {address}"), &args, NODE_READY)?;
        process.await_up(START, &|| false)?;
        Ok(Self { process })
    }

    /// The process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Starts a node, and connects a client over each of the links.
    pub fn with_clients(links: &[LinkKind]) -> Result<(Self, Vec<Client>), StudyError> {
        let node = at_free_loopback(Ok)?;
        let process = Self::start(node)?;
        let connect = |&link: &LinkKind| {
            let config = |local| ClientConfig { link: Some(link), ..ClientConfig::new(node, local) };
            Ok(at_local(node, |local| Client::connect(config(local)))?)
        };
        let clients = links.iter().map(connect).collect::<Result<_, StudyError>>()?;
        Ok((process, clients))
    }
}

/// A client's memory at its node, to lay structures out in.
pub(crate) struct ClientMemory<'a>(pub &'a mut Client);

impl Arena for ClientMemory<'_> {
    type Error = StudyError;

    fn alloc(&mut self, len: u64) -> Result<Place, StudyError> {
        let RemoteRegion { va, key, .. } = self.0.alloc(len)?;
        Ok(Place { va, key })
    }

    fn alloc_growing(&mut self, len: u64) -> Result<Place, StudyError> {
        let RemoteRegion { va, key, .. } = self.0.alloc_growing(len)?;
        Ok(Place { va, key })
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), StudyError> {
        let region = RemoteRegion { va: at.va, key: at.key, len: bytes.len() as u64 };
        Ok(self.0.write(&region, 0, bytes)?)
    }
}

//! memcached with one thread: GETs of a batch as one multiget, PUTs pipelined, by its text protocol.
//!
//! Source: memcached's doc/protocol.txt.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::Duration;

use remora_lab::installed;

use super::{BESIDE, KEY, KvAsk, KvPlan, KvTarget, VALUE};
use crate::StudyError;
use crate::peers::PeerError;
use crate::peers::process::{Process, free_ports, until_up};

pub(super) const NAME: &str = "memcached";
/// How long it may take to serve.
const START: Duration = Duration::from_secs(20);

/// A server, and a connection to it.
pub(super) struct Memcached {
    stream: TcpStream,
    out: Vec<u8>,
    input: Vec<u8>,
    filled: usize,
    _process: Process,
}

impl Memcached {
    /// Starts it with room for the plan's pairs; `None` if it is not installed.
    pub fn start(directory: &Path, plan: &KvPlan) -> Result<Option<Self>, StudyError> {
        let Some(program) = installed(NAME) else { return Ok(None) };
        let failed = |error| PeerError::Connection { what: NAME, error };
        let [port] = free_ports().map_err(failed)?;
        let megabytes = ((plan.pairs * (KEY + VALUE + BESIDE) as u64) >> 20) + 64;
        let (port_text, megabytes) = (port.to_string(), megabytes.to_string());
        let arguments = ["-l", "127.0.0.1", "-p", &port_text, "-U", "0", "-t", "1", "-m", &megabytes, "-u", "nobody"]
            .map(String::from);
        let mut processes = vec![Process::start(&program, &arguments, &directory.join(NAME))?];
        let stream = until_up(NAME, &mut processes, START, || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok())?;
        stream.set_nodelay(true).map_err(failed)?;
        let Some(process) = processes.pop() else { return Ok(None) };
        Ok(Some(Self { stream, out: Vec::new(), input: vec![0; 64 << 10], filled: 0, _process: process }))
    }

    /// Takes what has come, at least a byte.
    fn receive(&mut self) -> Result<(), PeerError> {
        let received = match self.stream.read(&mut self.input[self.filled..]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            other => other,
        };
        self.filled += received.map_err(|error| PeerError::Connection { what: NAME, error })?;
        Ok(())
    }
}

impl KvTarget for Memcached {
    fn name(&self) -> &'static str {
        NAME
    }

    fn batch(&mut self, asks: &[KvAsk], done: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<(), StudyError> {
        self.out.clear();
        let gets = || (0..).zip(asks).filter(|(_, ask)| ask.version.is_none());
        let puts = || (0..).zip(asks).filter(|(_, ask)| ask.version.is_some());
        if gets().next().is_some() {
            self.out.extend_from_slice(b"get");
            for (_, ask) in gets() {
                self.out.push(b' ');
                self.out.extend_from_slice(&ask.key());
            }
            self.out.extend_from_slice(b"\r\n");
        }
        for (_, ask) in puts() {
            self.out.extend_from_slice(b"set ");
            self.out.extend_from_slice(&ask.key());
            self.out.extend_from_slice(format!(" 0 0 {VALUE}\r\n").as_bytes());
            self.out.extend_from_slice(&ask.value());
            self.out.extend_from_slice(b"\r\n");
        }
        self.stream.write_all(&self.out).map_err(|error| PeerError::Connection { what: NAME, error })?;
        // Values come in the order of their keys, and those that are not there are left out.
        let (mut waiting, mut stored) = (gets(), puts());
        let (mut at, mut to_store, mut getting) = (0, puts().count(), gets().next().is_some());
        while getting || to_store > 0 {
            let input = &self.input[at..self.filled];
            let Some(end) = input.windows(2).position(|pair| pair == b"\r\n") else {
                self.input.copy_within(at..self.filled, 0);
                (self.filled, at) = (self.filled - at, 0);
                self.receive()?;
                continue;
            };
            let line = &input[..end];
            if let Some(rest) = line.strip_prefix(b"VALUE ") {
                let data = end + 2;
                if input.len() < data + VALUE + 2 {
                    self.input.copy_within(at..self.filled, 0);
                    (self.filled, at) = (self.filled - at, 0);
                    self.receive()?;
                    continue;
                }
                let value = &input[data..data + VALUE];
                for (place, ask) in waiting.by_ref() {
                    let found = rest.starts_with(&ask.key());
                    done(place, found.then_some(value));
                    if found {
                        break;
                    }
                }
                at += data + VALUE + 2;
                continue;
            }
            match line {
                b"END" => {
                    getting = false;
                    waiting.by_ref().for_each(|(place, _)| done(place, None));
                }
                b"STORED" => {
                    to_store -= 1;
                    if let Some((place, _)) = stored.next() {
                        done(place, None);
                    }
                }
                other => {
                    let why = String::from_utf8_lossy(other).into_owned();
                    return Err(PeerError::Answer { what: NAME, why }.into());
                }
            }
            at += end + 2;
        }
        self.filled = 0;
        Ok(())
    }
}

//! Redis, which has one thread that serves: GETs and SETs of a batch pipelined.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::Duration;

use remora_lab::installed;

use super::{KvAsk, KvTarget};
use crate::StudyError;
use crate::peers::PeerError;
use crate::peers::process::{Process, free_ports, until_up};
use crate::peers::resp::{self, RespReply};

const WHAT: &str = "redis";
pub(super) const PROGRAM: &str = "redis-server";
/// How long it may take to serve.
const START: Duration = Duration::from_secs(20);

/// A server without a log, and a connection to it.
pub(super) struct RedisKv {
    stream: TcpStream,
    out: Vec<u8>,
    input: Vec<u8>,
    filled: usize,
    _process: Process,
}

impl RedisKv {
    /// Starts it; `None` if it is not installed.
    pub fn start(directory: &Path) -> Result<Option<Self>, StudyError> {
        let Some(program) = installed(PROGRAM) else { return Ok(None) };
        let failed = |error| PeerError::Connection { what: WHAT, error };
        let [port] = free_ports().map_err(failed)?;
        let port_text = port.to_string();
        let arguments = ["--bind", "127.0.0.1", "--port", &port_text, "--save", "", "--appendonly", "no"];
        let mut processes = vec![Process::start(&program, &arguments.map(String::from), &directory.join("redis-kv"))?];
        let stream = until_up(WHAT, &mut processes, START, || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok())?;
        stream.set_nodelay(true).map_err(failed)?;
        let Some(process) = processes.pop() else { return Ok(None) };
        Ok(Some(Self { stream, out: Vec::new(), input: vec![0; 64 << 10], filled: 0, _process: process }))
    }
}

impl KvTarget for RedisKv {
    fn name(&self) -> &'static str {
        WHAT
    }

    fn batch(&mut self, asks: &[KvAsk], done: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<(), StudyError> {
        let failed = |error| PeerError::Connection { what: WHAT, error };
        self.out.clear();
        for ask in asks {
            match ask.version {
                None => resp::command(&mut self.out, &[b"GET".as_slice(), &ask.key()]),
                Some(_) => resp::command(&mut self.out, &[b"SET".as_slice(), &ask.key(), &ask.value()]),
            }
        }
        self.stream.write_all(&self.out).map_err(failed)?;
        let (mut at, mut place) = (0, 0);
        while place < asks.len() {
            let wrong = |why: String| PeerError::Answer { what: WHAT, why };
            match resp::reply(&self.input[at..self.filled]).map_err(|_| wrong("what came is no reply".into()))? {
                Some((reply, len)) => {
                    match reply {
                        RespReply::Bulk(value) => done(place, value),
                        RespReply::Simple(b"OK") => done(place, None),
                        other => return Err(wrong(format!("it answers {other:?}")).into()),
                    }
                    (at, place) = (at + len, place + 1);
                }
                None => {
                    self.input.copy_within(at..self.filled, 0);
                    (self.filled, at) = (self.filled - at, 0);
                    let received = match self.stream.read(&mut self.input[self.filled..]) {
                        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                        other => other,
                    };
                    self.filled += received.map_err(failed)?;
                }
            }
        }
        self.filled = 0;
        Ok(())
    }
}

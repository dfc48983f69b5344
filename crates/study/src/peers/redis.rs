//! Redis with two replicas: SET and `WAIT 2` for each write, GET at the primary.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::Duration;

use remora_lab::installed;
use rustix::event::{Timespec, epoll};

use super::process::{Process, free_ports, until_up};
use super::resp::{self, RespReply};
use super::{Answer, Ask, Done, PeerError, PeerStore, key};

/// Debian's package.
pub const PACKAGE: &str = "redis-server";
const WHAT: &str = "redis";
/// How long it may take to serve.
const START: Duration = Duration::from_secs(20);
/// How long one [`PeerStore::wait`] waits.
const SHORT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Replicas that a write waits for, and for how long (milliseconds) at most.
const WAIT: [&[u8]; 3] = [b"WAIT", b"2", b"5000"];

/// How it writes its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendOnly {
    /// None.
    No,
    /// Written at once, made durable every second.
    EverySecond,
    /// Made durable before it answers. WAIT counts replicas that have the write in memory all the same.
    Always,
}

impl AppendOnly {
    /// As its options spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::EverySecond => "everysec",
            Self::Always => "always",
        }
    }
}

/// A primary and two replicas, and a connection for each client.
pub struct Redis {
    connections: Vec<Connection>,
    epoll: rustix::fd::OwnedFd,
    events: Vec<epoll::Event>,
    _processes: Vec<Process>,
}

struct Connection {
    stream: TcpStream,
    out: Vec<u8>,
    input: Vec<u8>,
    /// Bytes of `input` that have come.
    filled: usize,
    asked: Asked,
}

/// What is under way; of a transaction, how much it reads and writes.
#[derive(Clone, Copy, PartialEq)]
enum Asked {
    Get,
    Put,
    Transact(usize, usize),
}

impl Redis {
    /// Is it installed?
    pub fn installed() -> bool {
        installed("redis-server").is_some()
    }

    /// Starts it in `directory` for so many clients.
    pub fn start(directory: &Path, clients: usize, log: AppendOnly) -> Result<Self, PeerError> {
        let program = installed("redis-server").unwrap_or_else(|| "redis-server".into());
        let failed = |error| PeerError::Connection { what: WHAT, error };
        let ports: [u16; 3] = free_ports().map_err(failed)?;
        let mut processes = Vec::new();
        for (number, port) in ports.into_iter().enumerate() {
            let mut arguments = options(port, log);
            if number > 0 {
                arguments.extend(["--replicaof".into(), "127.0.0.1".into(), ports[0].to_string()]);
            }
            processes.push(Process::start(&program, &arguments, &directory.join(format!("redis-{number}")))?);
        }
        let connections = until_up(WHAT, &mut processes, START, || {
            let mut first = Connection::open(ports[0]).ok()?;
            first.replicas().ok().filter(|&replicas| replicas == 2)?;
            Some((0..clients).map(|_| Connection::open(ports[0])).collect::<io::Result<Vec<_>>>())
        })?
        .map_err(failed)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        for (slot, connection) in (0..).zip(&connections) {
            epoll::add(&epoll, &connection.stream, epoll::EventData::new_u64(slot), epoll::EventFlags::IN)
                .map_err(|error| failed(error.into()))?;
        }
        Ok(Self { connections, epoll, events: Vec::with_capacity(clients), _processes: processes })
    }
}

/// Nothing but the log on disk, and replicas that are there at once.
fn options(port: u16, log: AppendOnly) -> Vec<String> {
    let append = if log == AppendOnly::No { "no" } else { "yes" };
    let sync = if log == AppendOnly::Always { "always" } else { "everysec" };
    let port = port.to_string();
    let options = [
        ("--bind", "127.0.0.1"),
        ("--port", port.as_str()),
        ("--save", ""),
        ("--appendonly", append),
        ("--appendfsync", sync),
        ("--repl-diskless-sync", "yes"),
        ("--repl-diskless-sync-delay", "0"),
        ("--daemonize", "no"),
    ];
    options.into_iter().flat_map(|(name, value)| [name.to_string(), value.to_string()]).collect()
}

impl Connection {
    fn open(port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, out: Vec::new(), input: vec![0; 16 << 10], filled: 0, asked: Asked::Get })
    }

    /// How many replicas have all that was written.
    fn replicas(&mut self) -> Result<i64, PeerError> {
        self.out.clear();
        resp::command(&mut self.out, &[b"SET", b"ready", b"1"]);
        resp::command(&mut self.out, &[b"WAIT", b"2", b"50"]);
        self.send()?;
        loop {
            if let Some((RespReply::Simple(_), first)) = self.reply(0)?
                && let Some((RespReply::Integer(replicas), _)) = self.reply(first)?
            {
                return Ok(replicas);
            }
            self.receive()?;
        }
    }

    fn send(&mut self) -> Result<(), PeerError> {
        self.stream.write_all(&self.out).map_err(|error| PeerError::Connection { what: WHAT, error })
    }

    /// Takes what has come, at least a byte.
    fn receive(&mut self) -> Result<(), PeerError> {
        if self.filled == self.input.len() {
            self.input.resize(2 * self.filled, 0);
        }
        let received = match self.stream.read(&mut self.input[self.filled..]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            other => other,
        };
        self.filled += received.map_err(|error| PeerError::Connection { what: WHAT, error })?;
        Ok(())
    }

    /// The reply at this place of the input, and where the next one begins.
    fn reply(&self, at: usize) -> Result<Option<(RespReply<'_>, usize)>, PeerError> {
        let wrong = |why: String| PeerError::Answer { what: WHAT, why };
        match resp::reply(&self.input[at..self.filled]) {
            Ok(Some((RespReply::Error(text), _))) => Err(wrong(String::from_utf8_lossy(text).into())),
            Ok(Some((reply, length))) => Ok(Some((reply, at + length))),
            Ok(None) => Ok(None),
            Err(resp::Bad) => Err(wrong("what came is no reply".into())),
        }
    }

    /// Replicas that have what was written, as the reply at this place says.
    fn waited(&self, at: usize) -> Result<Option<()>, PeerError> {
        match self.reply(at)? {
            None => Ok(None),
            Some((RespReply::Integer(2..), _)) => Ok(Some(())),
            Some((RespReply::Integer(replicas), _)) => {
                let why = format!("after 5 s only {replicas} replicas have a write");
                Err(PeerError::Answer { what: WHAT, why })
            }
            Some((other, _)) => Err(PeerError::Answer { what: WHAT, why: format!("it answers {other:?}") }),
        }
    }

    /// What a transaction has read, once its commands were queued and done, and written where it writes.
    fn transacted(&self, reads: usize, writes: usize) -> Result<Option<Vec<Option<&[u8]>>>, PeerError> {
        let mut at = 0;
        let mut read = Vec::new();
        // MULTI, what is queued, the array of EXEC, and what is in it.
        for number in 0..2 + 2 * (reads + writes) {
            let Some((reply, next)) = self.reply(at)? else { return Ok(None) };
            let queued = 1 + reads + writes;
            match reply {
                RespReply::Simple(b"OK") if number == 0 || number > queued + reads => {}
                RespReply::Simple(b"QUEUED") if (1..queued).contains(&number) => {}
                RespReply::Array(Some(count)) if number == queued && count == reads + writes => {}
                RespReply::Bulk(value) if number > queued && number <= queued + reads => read.push(value),
                other => return Err(PeerError::Answer { what: WHAT, why: format!("it answers {other:?}") }),
            }
            at = next;
        }
        Ok(if writes == 0 { Some(()) } else { self.waited(at)? }.map(|()| read))
    }

    /// The answer to what is under way, if all of it has come; `read` gets what a transaction has read.
    fn answer<'a>(&'a self, read: &'a mut Vec<Option<&'a [u8]>>) -> Result<Option<Answer<'a>>, PeerError> {
        if let Asked::Transact(reads, writes) = self.asked {
            let Some(all) = self.transacted(reads, writes)? else { return Ok(None) };
            *read = all;
            return Ok(Some(Answer::Transacted(read)));
        }
        let unexpected = |reply: RespReply<'_>| PeerError::Answer { what: WHAT, why: format!("it answers {reply:?}") };
        let Some((reply, next)) = self.reply(0)? else { return Ok(None) };
        match reply {
            RespReply::Bulk(value) if self.asked == Asked::Get => Ok(Some(Answer::Value(value))),
            RespReply::Simple(b"OK") if self.asked == Asked::Put => Ok(self.waited(next)?.map(|()| Answer::Written)),
            other => Err(unexpected(other)),
        }
    }
}

impl PeerStore for Redis {
    fn submit(&mut self, slot: usize, ask: Ask<'_>) -> Result<(), PeerError> {
        let connection = &mut self.connections[slot];
        connection.out.clear();
        connection.asked = match ask {
            Ask::Get(_) => Asked::Get,
            Ask::Put(..) => Asked::Put,
            Ask::Transact(reads, writes) => Asked::Transact(reads.len(), writes.len()),
        };
        match ask {
            Ask::Get(record) => resp::command(&mut connection.out, &[b"GET", &key(record)]),
            // Both at once, so that a write is one round trip.
            Ask::Put(record, value) => {
                resp::command(&mut connection.out, &[b"SET", &key(record), value]);
                resp::command(&mut connection.out, &WAIT);
            }
            Ask::Transact(reads, writes) => {
                let out = &mut connection.out;
                resp::command(out, &[b"MULTI"]);
                reads.iter().for_each(|&record| resp::command(out, &[b"GET", &key(record)]));
                writes.iter().for_each(|(record, value)| resp::command(out, &[b"SET", &key(*record), value]));
                resp::command(out, &[b"EXEC"]);
                if !writes.is_empty() {
                    resp::command(out, &WAIT);
                }
            }
        }
        connection.send()
    }

    fn wait(&mut self, done: Done<'_>) -> Result<(), PeerError> {
        self.events.clear();
        let spare = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, spare, Some(&SHORT)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(PeerError::Connection { what: WHAT, error: error.into() }),
        }
        for event in &self.events {
            let slot = event.data.u64() as usize;
            let connection = &mut self.connections[slot];
            connection.receive()?;
            let mut read = Vec::new();
            let ended = match connection.answer(&mut read)? {
                Some(answer) => {
                    done(slot, answer, None);
                    true
                }
                None => false,
            };
            if ended {
                connection.filled = 0;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_wait_for_both_replicas_and_reads_find_them() {
        if !Redis::installed() {
            return remora_testing::skip("Redis is not installed", &format!("Install the package {PACKAGE}"));
        }
        let directory = tempfile::tempdir().unwrap();
        let mut redis = Redis::start(directory.path(), 2, AppendOnly::EverySecond).unwrap();
        let mut round = |ask: Ask<'_>| {
            redis.submit(1, ask).unwrap();
            let mut got = None;
            while got.is_none() {
                let take = &mut |slot, answer: Answer<'_>, _| {
                    assert_eq!(slot, 1);
                    got = Some(match answer {
                        Answer::Value(value) => value.map(<[u8]>::to_vec),
                        Answer::Written => Some(b"written".to_vec()),
                        Answer::Transacted(read) => {
                            Some(read.iter().flat_map(|value| value.unwrap_or(b"-").to_vec()).collect())
                        }
                        Answer::Unknown => panic!("it never says so"),
                    });
                };
                redis.wait(take).unwrap();
            }
            got.unwrap()
        };
        let long = vec![b'x'; 100_000];
        assert_eq!(round(Ask::Get(7)), None);
        assert_eq!(round(Ask::Put(7, &long)), Some(b"written".to_vec()));
        assert_eq!(round(Ask::Get(7)), Some(long));
        let writes = [(8, b"new".to_vec()), (9, b"two".to_vec())];
        assert_eq!(round(Ask::Transact(&[8, 9], &writes)), Some(b"--".to_vec()), "as it was before");
        assert_eq!(round(Ask::Transact(&[9, 8], &[])), Some(b"twonew".to_vec()));
    }
}

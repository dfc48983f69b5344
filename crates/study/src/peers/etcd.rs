//! etcd with three members: put and linearizable get over gRPC, at the member that leads.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use http::Uri;
use remora_lab::installed;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::task::LocalSet;

use super::grpc::Channel;
use super::process::{Process, free_ports, until_up};
use super::{Answer, Ask, Done, PeerError, PeerStore, key, proto};

/// Debian's package.
pub const PACKAGE: &str = "etcd-server";
const WHAT: &str = "etcd";
/// How long it may take to serve.
const START: Duration = Duration::from_secs(30);
/// How long one [`PeerStore::wait`] waits.
const SHORT: Duration = Duration::from_millis(100);
/// Clients that share a connection.
const SHARED: usize = 8;

/// What has ended: the client, what it asked for, and the answer.
type Ended = (usize, Kind, Result<Vec<u8>, String>);

/// What was asked for; of a transaction, how much it reads and writes.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Get,
    Put,
    Transact(usize, usize),
}

/// Three members, and connections to the leader.
pub struct Etcd {
    runtime: Runtime,
    /// Where calls and connections run.
    tasks: LocalSet,
    channels: Vec<Channel>,
    methods: Methods,
    ended: Rc<RefCell<Vec<Ended>>>,
    news: Rc<Notify>,
    _processes: Vec<Process>,
}

#[derive(Clone)]
struct Methods {
    put: Uri,
    range: Uri,
    txn: Uri,
    status: Uri,
}

impl Methods {
    fn at(port: u16) -> Self {
        let method = |name: &str| {
            let authority = format!("127.0.0.1:{port}");
            let uri = Uri::builder().scheme("http").authority(authority).path_and_query(name).build();
            uri.expect("a constant path and a number make a URI")
        };
        Self {
            put: method("/etcdserverpb.KV/Put"),
            range: method("/etcdserverpb.KV/Range"),
            txn: method("/etcdserverpb.KV/Txn"),
            status: method("/etcdserverpb.Maintenance/Status"),
        }
    }
}

impl Etcd {
    /// Is it installed?
    pub fn installed() -> bool {
        installed("etcd").is_some()
    }

    /// Starts it in `directory` for so many clients, with the durability that it has by default: every write is on the
    /// disks of two members, by fdatasync, before it is answered.
    pub fn start(directory: &Path, clients: usize) -> Result<Self, PeerError> {
        let program = installed("etcd").unwrap_or_else(|| "etcd".into());
        let failed = |error| PeerError::Connection { what: WHAT, error };
        let ports: [u16; 6] = free_ports().map_err(failed)?;
        let members: Vec<(u16, u16)> = ports.chunks(2).map(|pair| (pair[0], pair[1])).collect();
        let mut processes = Vec::new();
        for number in 0..members.len() {
            let arguments = options(number, &members);
            processes.push(Process::start(&program, &arguments, &directory.join(format!("etcd-{number}")))?);
        }
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let tasks = LocalSet::new();
        let leader = until_up(WHAT, &mut processes, START, || {
            members.iter().map(|member| member.0).find(|&port| tasks.block_on(&runtime, serves(port)).is_ok())
        })?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, leader));
        let connections = tasks.block_on(&runtime, async {
            let mut channels = Vec::new();
            for _ in 0..clients.div_ceil(SHARED) {
                channels.push(Channel::connect(address).await?);
            }
            Ok(channels)
        });
        let channels = connections.map_err(|why| PeerError::Answer { what: WHAT, why })?;
        let (ended, news) = (Rc::default(), Rc::new(Notify::new()));
        Ok(Self { runtime, tasks, channels, methods: Methods::at(leader), ended, news, _processes: processes })
    }
}

/// A member that leads and takes writes.
async fn serves(port: u16) -> Result<(), String> {
    let attempt = async {
        let (channel, methods) = (Channel::connect((Ipv4Addr::LOCALHOST, port).into()).await?, Methods::at(port));
        let answer = channel.call(&methods.status, proto::status_request()).await?;
        let leads = proto::unframed(&answer).and_then(proto::leads).unwrap_or(false);
        if !leads {
            return Err("it does not lead".into());
        }
        channel.call(&methods.put, proto::put_request(b"ready", b"1")).await.map(|_| ())
    };
    tokio::time::timeout(Duration::from_secs(1), attempt).await.unwrap_or_else(|_| Err("no answer".into()))
}

/// Options of a member: ports for clients and for members, and room for its data, how loudly.
fn options(number: usize, members: &[(u16, u16)]) -> Vec<String> {
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let (client, peer) = (url(members[number].0), url(members[number].1));
    let all: Vec<String> = members.iter().enumerate().map(|(n, member)| format!("m{n}={}", url(member.1))).collect();
    let options = [
        ("--name", format!("m{number}")),
        ("--data-dir", "data".into()),
        ("--listen-client-urls", client.clone()),
        ("--advertise-client-urls", client),
        ("--listen-peer-urls", peer.clone()),
        ("--initial-advertise-peer-urls", peer),
        ("--initial-cluster", all.join(",")),
        ("--initial-cluster-state", "new".into()),
        // It keeps every version; its default of 2 GB is too little for a long run.
        ("--quota-backend-bytes", (4u64 << 30).to_string()),
        ("--logger", "zap".into()),
        ("--log-level", "error".into()),
    ];
    options.into_iter().flat_map(|(name, value)| [name.to_string(), value]).collect()
}

impl PeerStore for Etcd {
    fn submit(&mut self, slot: usize, ask: Ask<'_>) -> Result<(), PeerError> {
        let (kind, method, message) = match ask {
            Ask::Get(record) => (Kind::Get, &self.methods.range, proto::range_request(&key(record))),
            Ask::Put(record, value) => (Kind::Put, &self.methods.put, proto::put_request(&key(record), value)),
            Ask::Transact(reads, writes) => {
                let kind = Kind::Transact(reads.len(), writes.len());
                let writes = writes.iter().map(|(record, value)| (key(*record), &value[..]));
                (kind, &self.methods.txn, proto::txn_request(reads.iter().map(|&record| key(record)), writes))
            }
        };
        let (channel, method) = (self.channels[slot % self.channels.len()].clone(), method.clone());
        let (ended, news) = (self.ended.clone(), self.news.clone());
        self.tasks.spawn_local(async move {
            let answer = channel.call(&method, message).await;
            ended.borrow_mut().push((slot, kind, answer));
            news.notify_one();
        });
        Ok(())
    }

    fn wait(&mut self, done: Done<'_>) -> Result<(), PeerError> {
        // Whether anything has ended shows below.
        let _ = self.tasks.block_on(&self.runtime, async { tokio::time::timeout(SHORT, self.news.notified()).await });
        for (slot, kind, answer) in self.ended.borrow_mut().drain(..) {
            let wrong = |why: String| PeerError::Answer { what: WHAT, why };
            let answer = answer.map_err(wrong)?;
            let mut read = Vec::new();
            let answer = proto::unframed(&answer).and_then(|message| match kind {
                Kind::Put => proto::put_response(message)?.then_some(Answer::Written).ok_or(proto::Bad),
                Kind::Get => proto::range_response(message).map(Answer::Value),
                Kind::Transact(reads, writes) => {
                    let puts;
                    (read, puts) = proto::txn_response(message)?.ok_or(proto::Bad)?;
                    let whole = (read.len(), puts) == (reads, writes);
                    whole.then_some(Answer::Transacted(&read)).ok_or(proto::Bad)
                }
            });
            done(slot, answer.map_err(|proto::Bad| wrong("an answer that is none".into()))?, None);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_members_take_writes_and_give_them_back() {
        if !Etcd::installed() {
            return remora_testing::skip("etcd is not installed", &format!("Install the package {PACKAGE}"));
        }
        let directory = tempfile::tempdir().unwrap();
        let mut etcd = Etcd::start(directory.path(), 9).unwrap();
        let mut round = |ask: Ask<'_>| {
            etcd.submit(8, ask).unwrap();
            let mut got = None;
            while got.is_none() {
                let take = &mut |slot, answer: Answer<'_>, _| {
                    assert_eq!(slot, 8);
                    got = Some(match answer {
                        Answer::Value(value) => value.map(<[u8]>::to_vec),
                        Answer::Written => Some(b"written".to_vec()),
                        Answer::Transacted(read) => {
                            Some(read.iter().flat_map(|value| value.unwrap_or(b"-").to_vec()).collect())
                        }
                        Answer::Unknown => panic!("it never says so"),
                    });
                };
                etcd.wait(take).unwrap();
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

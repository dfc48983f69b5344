//! How nodes know each other from strangers, that they agree, and how a client and a node know each other.
//!
//! Both ends of a connection show that they know a secret without showing it: each proves it by a keyed hash
//! (HMAC-SHA256, RFC 2104) of what both have said of themselves, which ends with 16 random bytes. So a proof is good for
//! one connection and one end of it. From the same words and the secret come the keys by which a connection that leaves the
//! host is sealed ([`remora_replica::seal`]), the caller's proof first: see [`Guard`].
//!
//! Nodes have the cluster's secret. Clients have one that follows from it, and from which it does not follow: who has that is
//! no node.

use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;
use std::time::Duration;

use remora_replica::ddp::Model;
use remora_replica::seal::{self, End, Seal};
use remora_replica::types::NodeId;
use ring::hmac;

use super::node::ClusterNodeConfig;
use super::wire::Secret;
use remora_real::{Error, LinkKind, entropy};

const MAGIC: [u8; 4] = *b"rmc\x08";
const CLIENT_MAGIC: [u8; 4] = *b"rmk\x07";
const WINDOW_MAGIC: [u8; 4] = *b"rmw\x01";
/// Instead of a model: a chain.
const CHAIN: u8 = 0x40;
/// Bytes of a [`Hello`].
const BYTES: usize = 39;
/// Bytes of a [`ClientHello`].
const CLIENT_BYTES: usize = 22;
/// Bytes of a [`WindowHello`].
const WINDOW_BYTES: usize = 32;
/// Bytes of a proof.
pub(super) const PROOF: usize = 32;
/// Bytes of the mark of a call.
const MARK: usize = 16;

/// The secret of a cluster's clients, which follows from the cluster's own.
pub fn client_secret(secret: &Secret) -> Secret {
    seal::derive(secret, "clients")
}

/// What keeps strangers out of a connection, and from what goes over it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guard {
    /// Clients prove nothing, and all goes in the clear.
    Open,
    /// Both ends prove themselves, and all is sealed.
    Sealed,
    /// Both ends prove themselves; the clear is good enough, for what goes over this link nobody can see or change but the
    /// processes at its ends.
    Proven,
}

impl Guard {
    /// `sealed` is what was asked for. Shared memory is a memory file that is handed from process to process: who can look into
    /// it can look into the process too, where the keys are, and nobody else has a way to it.
    pub fn of(sealed: bool, link: LinkKind) -> Self {
        match (sealed, link) {
            (false, _) => Self::Open,
            (true, LinkKind::Shm) => Self::Proven,
            (true, _) => Self::Sealed,
        }
    }

    /// The keys of a connection, if it is sealed.
    pub(super) fn seal(self, words: &Words, secret: &Secret, end: End) -> Option<Seal> {
        (self == Self::Sealed).then(|| Seal::new(secret, end, &words.caller, &words.answerer))
    }

    fn read(byte: u8) -> Option<Self> {
        [Self::Open, Self::Sealed, Self::Proven].into_iter().find(|guard| *guard as u8 == byte)
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "in the clear",
            Self::Sealed => "sealed",
            Self::Proven => "within this host",
        })
    }
}

/// What a node keeps: a model's number, or [`CHAIN`] and the bytes of data.
fn kept(config: &ClusterNodeConfig) -> (u8, u64) {
    config.chain.map_or((config.model.facts().byte, 0), |data| (CHAIN, data as u64))
}

/// What one end says of itself, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Said {
    bytes: [u8; BYTES],
    length: u8,
}

impl Said {
    fn of(parts: &[&[u8]]) -> Self {
        let (mut bytes, mut length) = ([0; BYTES], 0);
        for part in parts {
            bytes[length..length + part.len()].copy_from_slice(part);
            length += part.len();
        }
        Self { bytes, length: length as u8 }
    }
}

impl Deref for Said {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// What a node says of itself when it calls another, and when it answers: the protocol's version, and this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    /// Its number.
    pub node: NodeId,
    /// Its persistency model, or that it keeps a chain.
    model: u8,
    /// Bytes of a chain's data.
    data: u64,
    /// What guards its connections.
    guard: Guard,
    /// After how many nanoseconds of silence it suspects another.
    suspect: u64,
    nonce: [u8; 16],
}

impl Hello {
    /// With 16 bytes that nobody has seen.
    pub fn new(config: &ClusterNodeConfig) -> Result<Self, Error> {
        let suspect = config.suspect.as_nanos() as u64;
        let (node, (model, data)) = (NodeId(config.id), kept(config));
        Ok(Self { node, model, data, guard: config.guard(), suspect, nonce: nonce()? })
    }

    pub fn encode(&self) -> Said {
        let (suspect, data) = (self.suspect.to_le_bytes(), self.data.to_le_bytes());
        Said::of(&[&MAGIC, &[self.node.0, self.model, self.guard as u8], &suspect, &self.nonce, &data])
    }

    /// Reads what a node says; padding may follow.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..BYTES)?.strip_prefix(&MAGIC)?;
        let (node, model, guard) = (NodeId(bytes[0]), bytes[1], Guard::read(bytes[2])?);
        let (suspect, nonce) = (u64::from_le_bytes(*bytes[3..].first_chunk()?), *bytes[11..].first_chunk()?);
        let data = u64::from_le_bytes(*bytes[27..].first_chunk()?);
        Some(Self { node, model, data, guard, suspect, nonce })
    }

    /// What the two nodes need the same and do not have, in words.
    pub fn differs(&self, config: &ClusterNodeConfig) -> Option<String> {
        let node = self.node.0;
        let ours = kept(config);
        if (self.model, self.data) != ours {
            let say = |(model, data)| match Model::from_byte(model) {
                Some(model) => format!("model {}", model.facts().name),
                None if model == CHAIN => format!("a chain of {data} bytes"),
                None => "another model".into(),
            };
            return Some(format!(
                "node {node} keeps {}, node {} {}",
                say((self.model, self.data)),
                config.id,
                say(ours)
            ));
        }
        if self.guard != config.guard() {
            return Some(format!("node {node} talks {}, node {} {}", self.guard, config.id, config.guard()));
        }
        let (theirs, ours) = (Duration::from_nanos(self.suspect), config.suspect);
        (theirs != ours).then(|| format!("node {node} suspects after {theirs:?}, node {} after {ours:?}", config.id))
    }
}

/// What a client says of itself when it calls: the protocol's version, and this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ClientHello {
    /// What guards its connections.
    pub guard: Guard,
    /// Whether it wants transactions, or records.
    pub chain: bool,
    nonce: [u8; 16],
}

impl ClientHello {
    /// With 16 bytes that nobody has seen.
    pub fn new(guard: Guard, chain: bool) -> Result<Self, Error> {
        Ok(Self { guard, chain, nonce: nonce()? })
    }

    pub fn encode(&self) -> Said {
        Said::of(&[&CLIENT_MAGIC, &[self.guard as u8, self.chain.into()], &self.nonce])
    }

    /// Reads what a client says; padding may follow.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..CLIENT_BYTES)?.strip_prefix(&CLIENT_MAGIC)?;
        Some(Self { guard: Guard::read(bytes[0])?, chain: flag(bytes[1])?, nonce: *bytes[2..].first_chunk()? })
    }
}

/// Where a head's window is, for clients that READ: what opens it. It follows what the node says of itself and its proof, which is
/// zeros where connections are open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WindowHello {
    /// Its address and key.
    pub va: u64,
    pub key: u32,
    /// Bytes of data, and of a key of it.
    pub data: u64,
    pub cell: u64,
}

impl WindowHello {
    pub fn encode(&self) -> [u8; WINDOW_BYTES] {
        let mut bytes = [0; WINDOW_BYTES];
        bytes[..4].copy_from_slice(&WINDOW_MAGIC);
        bytes[4..8].copy_from_slice(&self.key.to_le_bytes());
        for (place, number) in bytes[8..].chunks_exact_mut(8).zip([self.va, self.data, self.cell]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Reads one; padding may follow.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..WINDOW_BYTES)?.strip_prefix(&WINDOW_MAGIC)?;
        let number = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let key = u32::from_le_bytes(*bytes.first_chunk()?);
        Some(Self { key, va: number(4)?, data: number(12)?, cell: number(20)? })
    }

    /// What a node answers a client with that is to READ, in these words.
    pub fn answer(&self, words: &Words, secret: Option<&Secret>) -> Vec<u8> {
        let proof = secret.map_or([0; PROOF], |secret| words.prove(secret, End::Answerer));
        [&*words.answerer, &proof, &self.encode()].concat()
    }

    /// Reads such an answer to what the client has said, and looks whether it is of a node that knows the secret.
    pub fn answered(secret: Option<&Secret>, caller: Said, said: &[u8]) -> Option<Self> {
        if let Some(secret) = secret {
            Words::answered(secret, caller, said)?;
        }
        Self::decode(said.get(BYTES + PROOF..)?)
    }
}

/// A call of the node at the address `to`, with a mark that nobody makes without the secret: one that was forged is refused before
/// anything is held for it, so that it takes nobody's place. Whoever has seen a call can repeat it, which the proofs that
/// follow find out.
pub(super) fn mark(secret: &Secret, said: &Said, to: IpAddr) -> Vec<u8> {
    let mark = hmac::sign(&key(secret), &marked_text(said, to));
    [&**said, &mark.as_ref()[..MARK]].concat()
}

/// Whether a call of the node at the address `to` is marked; padding may follow.
pub(super) fn is_marked(secret: &Secret, said: &Said, to: IpAddr, call: &[u8]) -> bool {
    let right = mark(secret, said, to);
    // All of it, so that the time tells nothing.
    let wrong = right.iter().zip(call).fold(0, |wrong, (right, said)| wrong | right ^ said);
    call.len() >= right.len() && wrong == 0
}

/// A caller need not know which number the node has that it calls.
fn marked_text(said: &Said, to: IpAddr) -> Vec<u8> {
    let to = match to {
        IpAddr::V4(to) => to.to_ipv6_mapped(),
        IpAddr::V6(to) => to,
    };
    [&[3], &to.octets()[..], said].concat()
}

/// What both ends of a connection have said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Words {
    pub caller: Said,
    pub answerer: Said,
}

impl Words {
    /// What was said, if the answer to a call, but for padding, ends with the answerer's proof. And who answered.
    pub fn answered(secret: &Secret, caller: Said, said: &[u8]) -> Option<(Self, NodeId)> {
        let answerer = Hello::decode(said)?;
        let words = Self { caller, answerer: answerer.encode() };
        words.check(secret, End::Answerer, &said[words.answerer.len()..]).then_some((words, answerer.node))
    }

    /// What shows that this end of their connection knows the secret.
    pub fn prove(&self, secret: &Secret, end: End) -> [u8; PROOF] {
        let mut proof = [0; PROOF];
        proof.copy_from_slice(hmac::sign(&key(secret), &self.signed_text(end)).as_ref());
        proof
    }

    /// Whether `bytes`, but for padding, shows it. How long that takes tells nothing.
    pub fn check(&self, secret: &Secret, end: End, bytes: &[u8]) -> bool {
        let said = self.signed_text(end);
        bytes.get(..PROOF).is_some_and(|proof| hmac::verify(&key(secret), &said, proof).is_ok())
    }

    fn signed_text(&self, end: End) -> Vec<u8> {
        let end = match end {
            End::Caller => 1,
            End::Answerer => 2,
        };
        [&[end, self.caller.length], &*self.caller, &*self.answerer].concat()
    }
}

fn key(secret: &Secret) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, secret)
}

fn nonce() -> Result<[u8; 16], Error> {
    let mut nonce = [0; 16];
    nonce.copy_from_slice(&entropy()?[..16]);
    Ok(nonce)
}

fn flag(byte: u8) -> Option<bool> {
    match byte {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(id: u8) -> ClusterNodeConfig {
        ClusterNodeConfig::new(id, Vec::new(), "".into(), [7; 32])
    }

    #[test]
    fn only_who_has_the_secret_proves_it_and_only_for_this_connection_and_end() {
        let [caller, answerer, again] = [3, 0, 3].map(|id| Hello::new(&config(id)).unwrap().encode());
        let words = Words { caller, answerer };
        let proof = words.prove(&[7; 32], End::Caller);
        let padded = [proof.as_slice(), &[0; 19]].concat();
        assert!(words.check(&[7; 32], End::Caller, &padded));
        assert!(!words.check(&[8; 32], End::Caller, &padded));
        assert!(!words.check(&client_secret(&[7; 32]), End::Caller, &padded));
        assert!(!words.check(&[7; 32], End::Answerer, &padded));
        assert!(!Words { caller: again, ..words }.check(&[7; 32], End::Caller, &padded));
        assert!(!words.check(&[7; 32], End::Caller, &padded[..31]));
        assert!(!caller.windows(8).any(|part| part == [7; 8]), "the secret is not said");
    }

    #[test]
    fn what_leaves_the_host_is_sealed_and_what_does_not_is_proven() {
        let [caller, answerer] = [3, 0].map(|id| Hello::new(&config(id)).unwrap().encode());
        let words = Words { caller, answerer };
        for (sealed, link, guard) in [
            (true, LinkKind::Udp, Guard::Sealed),
            (true, LinkKind::Shm, Guard::Proven),
            (false, LinkKind::Udp, Guard::Open),
            (false, LinkKind::Shm, Guard::Open),
        ] {
            assert_eq!(Guard::of(sealed, link), guard);
            assert_eq!(guard.seal(&words, &[7; 32], End::Caller).is_some(), guard == Guard::Sealed);
            assert_eq!(Guard::read(guard as u8), Some(guard));
        }
        assert_eq!(Guard::read(3), None);
    }

    #[test]
    fn a_call_is_marked_for_one_node_by_who_has_the_secret() {
        let to = |last: u8| IpAddr::from([127, 0, 0, last]);
        let said = Hello::new(&config(3)).unwrap().encode();
        let call = mark(&[7; 32], &said, to(1));
        assert!(call.len() <= remora_nic::cm::REQ_PRIVATE_DATA);
        assert!(is_marked(&[7; 32], &said, to(1), &[&call[..], &[0; 9]].concat()));
        assert!(!is_marked(&[8; 32], &said, to(1), &call));
        assert!(!is_marked(&[7; 32], &said, to(2), &call));
        assert!(!is_marked(&[7; 32], &Hello::new(&config(3)).unwrap().encode(), to(1), &call));
        assert!(!is_marked(&[7; 32], &said, to(1), &call[..call.len() - 1]));
        assert!(!is_marked(&[7; 32], &said, to(1), &[&*said, &[0; 25]].concat()));
    }

    #[test]
    fn a_hello_comes_back_and_tells_how_nodes_differ() {
        let hello = Hello::new(&config(3)).unwrap();
        assert_eq!(Hello::decode(&[&*hello.encode(), &[0; 9]].concat()), Some(hello));
        assert_eq!(Hello::decode(&hello.encode()[..38]), None);
        assert_eq!(hello.differs(&config(1)), None);
        let event = ClusterNodeConfig { model: Model::Event, ..config(1) };
        assert_eq!(hello.differs(&event).unwrap(), "node 3 keeps model synch, node 1 model event");
        let chain = ClusterNodeConfig { chain: Some(9), ..config(1) };
        assert_eq!(hello.differs(&chain).unwrap(), "node 3 keeps model synch, node 1 a chain of 9 bytes");
        let open = ClusterNodeConfig { sealed: false, ..config(1) };
        assert_eq!(hello.differs(&open).unwrap(), "node 3 talks within this host, node 1 in the clear");
        let far = ClusterNodeConfig { link: LinkKind::Udp, ..config(1) };
        assert_eq!(hello.differs(&far).unwrap(), "node 3 talks within this host, node 1 sealed");
        let client = ClientHello::new(Guard::Sealed, true).unwrap();
        assert_eq!(ClientHello::decode(&[&*client.encode(), &[0; 9]].concat()), Some(client));
        let window = WindowHello { va: 1 << 40, key: 7, data: 4096, cell: 64 };
        assert_eq!(WindowHello::decode(&[&window.encode()[..], &[0; 9]].concat()), Some(window));
        assert_eq!(WindowHello::decode(&window.encode()[..31]), None);
        let words = Words { caller: client.encode(), answerer: hello.encode() };
        let answer = window.answer(&words, Some(&[7; 32]));
        assert!(answer.len() <= remora_nic::cm::REP_PRIVATE_DATA);
        assert_eq!(WindowHello::answered(Some(&[7; 32]), client.encode(), &answer), Some(window));
        assert_eq!(WindowHello::answered(Some(&[8; 32]), client.encode(), &answer), None);
        assert_eq!(WindowHello::answered(None, client.encode(), &window.answer(&words, None)), Some(window));
        assert_eq!((ClientHello::decode(&hello.encode()), Hello::decode(&client.encode())), (None, None));
        let slow = ClusterNodeConfig { suspect: Duration::from_secs(2), ..config(1) };
        assert_eq!(hello.differs(&slow).unwrap(), "node 3 suspects after 200ms, node 1 after 2s");
    }
}

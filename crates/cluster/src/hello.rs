//! How nodes know each other from strangers, and that they agree.
//!
//! Both ends of a connection show that they know the cluster's secret without showing it: each proves it by a keyed hash
//! (HMAC-SHA256, RFC 2104) of what both have said of themselves, which ends with 16 random bytes. So a proof is good for
//! one connection and one end of it.

use std::time::Duration;

use hmac::{Hmac, Mac};
use remora_replica::ddp::Model;
use remora_replica::types::NodeId;
use sha2::Sha256;

use super::node::ClusterNodeConfig;
use super::wire::Secret;
use remora_real::{Error, entropy};

const MAGIC: [u8; 4] = *b"rmc\x03";
/// Bytes of a [`Hello`].
const BYTES: usize = 30;
/// Bytes of a proof.
pub(super) const PROOF: usize = 32;

/// What a node says of itself when it calls another, and when it answers: the protocol's version, and this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    /// Its number.
    pub node: NodeId,
    /// Its persistency model.
    model: u8,
    /// After how many nanoseconds of silence it suspects another.
    suspect: u64,
    nonce: [u8; 16],
}

/// The end of a connection that proves something.
#[derive(Clone, Copy)]
pub(super) enum End {
    /// Who called.
    Caller = 1,
    /// Who answered.
    Answerer = 2,
}

impl Hello {
    /// With 16 bytes that nobody has seen.
    pub fn new(config: &ClusterNodeConfig) -> Result<Self, Error> {
        let mut nonce = [0; 16];
        nonce.copy_from_slice(&entropy()?[..16]);
        let suspect = config.suspect.as_nanos() as u64;
        Ok(Self { node: NodeId(config.id), model: config.model.facts().byte, suspect, nonce })
    }

    pub fn encode(&self) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        out[..4].copy_from_slice(&MAGIC);
        (out[4], out[5]) = (self.node.0, self.model);
        out[6..14].copy_from_slice(&self.suspect.to_le_bytes());
        out[14..].copy_from_slice(&self.nonce);
        out
    }

    /// Reads what a node says; padding may follow.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..BYTES)?.strip_prefix(&MAGIC)?;
        let (node, model) = (NodeId(bytes[0]), bytes[1]);
        Some(Self {
            node,
            model,
            suspect: u64::from_le_bytes(*bytes[2..].first_chunk()?),
            nonce: *bytes[10..].first_chunk()?,
        })
    }

    /// What the two nodes need the same and do not have, in words.
    pub fn differs(&self, config: &ClusterNodeConfig) -> Option<String> {
        let node = self.node.0;
        if self.model != config.model.facts().byte {
            let theirs = Model::from_byte(self.model).map_or("another", |model| model.facts().name);
            return Some(format!("node {node} keeps model {theirs}, node {} {}", config.id, config.model));
        }
        let (theirs, ours) = (Duration::from_nanos(self.suspect), config.suspect);
        (theirs != ours).then(|| format!("node {node} suspects after {theirs:?}, node {} after {ours:?}", config.id))
    }
}

/// What shows that this end of the connection between these two knows the secret.
pub(super) fn prove(secret: &Secret, end: End, caller: &Hello, answerer: &Hello) -> [u8; PROOF] {
    mac(secret, end, caller, answerer).finalize().into_bytes().into()
}

/// Whether `bytes`, but for padding, shows it. How long that takes tells nothing.
pub(super) fn check(secret: &Secret, end: End, caller: &Hello, answerer: &Hello, bytes: &[u8]) -> bool {
    bytes.get(..PROOF).is_some_and(|proof| mac(secret, end, caller, answerer).verify_slice(proof).is_ok())
}

fn mac(secret: &Secret, end: End, caller: &Hello, answerer: &Hello) -> Hmac<Sha256> {
    // A key may have any length.
    let mut mac = Hmac::new_from_slice(secret).unwrap_or_else(|_| unreachable!("a key of {} bytes", secret.len()));
    mac.update(&[end as u8]);
    mac.update(&caller.encode());
    mac.update(&answerer.encode());
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(id: u8) -> ClusterNodeConfig {
        ClusterNodeConfig::new(id, Vec::new(), "".into(), [7; 32])
    }

    #[test]
    fn only_who_has_the_secret_proves_it_and_only_for_this_connection_and_end() {
        let [caller, answerer, again] = [3, 0, 3].map(|id| Hello::new(&config(id)).unwrap());
        let proof = prove(&[7; 32], End::Caller, &caller, &answerer);
        let padded = [proof.as_slice(), &[0; 19]].concat();
        let check = |secret, end, caller, bytes: &[u8]| check(secret, end, caller, &answerer, bytes);
        assert!(check(&[7; 32], End::Caller, &caller, &padded));
        assert!(!check(&[8; 32], End::Caller, &caller, &padded));
        assert!(!check(&[7; 32], End::Answerer, &caller, &padded));
        assert!(!check(&[7; 32], End::Caller, &again, &padded));
        assert!(!check(&[7; 32], End::Caller, &caller, &padded[..31]));
        assert!(!caller.encode().windows(8).any(|part| part == [7; 8]), "the secret is not said");
    }

    #[test]
    fn a_hello_comes_back_and_tells_how_nodes_differ() {
        let hello = Hello::new(&config(3)).unwrap();
        assert_eq!(Hello::decode(&[hello.encode().as_slice(), &[0; 9]].concat()), Some(hello));
        assert_eq!(Hello::decode(&hello.encode()[..29]), None);
        assert_eq!(hello.differs(&config(1)), None);
        let event = ClusterNodeConfig { model: Model::Event, ..config(1) };
        assert_eq!(hello.differs(&event).unwrap(), "node 3 keeps model synch, node 1 event");
        let slow = ClusterNodeConfig { suspect: Duration::from_secs(2), ..config(1) };
        assert_eq!(hello.differs(&slow).unwrap(), "node 3 suspects after 200ms, node 1 after 2s");
    }
}

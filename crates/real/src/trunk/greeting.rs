//! How the ends of a trunk prove to each other that they know its secret, and say which life of theirs it is.

use std::net::IpAddr;

use ring::hmac;

/// The first bytes that an end says of itself: the protocol and its version.
const HELLO: [u8; 8] = *b"trunk\0\0\x04";

/// Which end says so, to the other one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Caller,
    Answerer,
}

/// What an end says of itself: which life of it this is, and that it knows the secret.
pub(super) struct Greeting<'a> {
    pub secret: &'a [u8; 32],
    pub end: End,
    /// Addresses, first the caller's.
    pub way: (IpAddr, IpAddr),
    /// What the other one said before.
    pub heard: &'a [u8],
}

impl Greeting<'_> {
    fn proven(&self, life: [u8; 8]) -> Vec<u8> {
        let end: &[u8] = if self.end == End::Caller { b"caller" } else { b"answerer" };
        let way = format!("{} to {}", self.way.0, self.way.1);
        [&HELLO[..], end, &life, way.as_bytes(), self.heard].concat()
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.secret)
    }

    /// What it says, in this life of its.
    pub fn say(&self, life: [u8; 8]) -> Vec<u8> {
        let proof = hmac::sign(&self.key(), &self.proven(life));
        [&HELLO[..], &life, proof.as_ref()].concat()
    }

    /// The life of who says so, if it is what such an end says.
    pub fn hear(&self, bytes: &[u8]) -> Option<[u8; 8]> {
        let (hello, rest) = bytes.split_first_chunk::<8>()?;
        let (life, rest) = rest.split_first_chunk::<8>()?;
        let proof = rest.get(..32)?;
        let proven = hmac::verify(&self.key(), &self.proven(*life), proof).is_ok();
        (*hello == HELLO && proven).then_some(*life)
    }
}

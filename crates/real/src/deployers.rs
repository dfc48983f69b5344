//! Who may deploy modules at a node, and take them away.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;

use ring::hmac;

use crate::Error;
use crate::address::local_towards;

/// Bytes of a proof.
pub(crate) const PROOF_LEN: usize = 32;

/// Who may deploy modules at a node, and take them away. Everybody who reaches a node may call what is deployed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Deployers {
    /// Clients on the node's own host.
    #[default]
    ThisHost,
    /// Clients at these addresses. A connection takes answers to come through, so that nobody who does not read the
    /// network can pretend to be at one.
    Addresses(Vec<IpAddr>),
    /// Clients that know this, wherever they are.
    Token(DeployToken),
    /// All clients.
    Anyone,
}

impl Deployers {
    /// Whether the client at this address may do what `request` says.
    pub(crate) fn check(&self, client: IpAddr, request: &[&[u8]], proof: Option<&[u8]>) -> Result<(), String> {
        let (may, who) = match self {
            Self::Anyone => (true, String::new()),
            Self::ThisHost => (is_local(client), "clients on its own host".into()),
            Self::Addresses(addresses) => {
                let list: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
                (addresses.contains(&client), format!("clients at {}", list.join(", ")))
            }
            Self::Token(token) if proof.is_some_and(|proof| !token.verify(request, proof)) => {
                return Err(
                    "the token that was given (--token FILE) is not the node's (its --deployers token:FILE)".into()
                );
            }
            Self::Token(_) => (proof.is_some(), "clients with its token (--token FILE)".into()),
        };
        match may {
            true => Ok(()),
            false => {
                Err(format!("only {who} may deploy kernels here, and this one is at {client}: see its --deployers"))
            }
        }
    }
}

/// Whether an address is one of this host's. Only from those does it reach itself by the same one; a socket may be bound to
/// any where the system is told so (`net.ipv4.ip_nonlocal_bind`).
fn is_local(address: IpAddr) -> bool {
    address.is_loopback() || local_towards(address).is_ok_and(|local| local == address)
}

/// What clients that may deploy modules share with the node. It is not sent: each request carries a proof of it.
#[derive(Clone, PartialEq, Eq)]
pub struct DeployToken(Vec<u8>);

impl DeployToken {
    /// Bytes that a token has at least.
    pub const MIN: usize = 16;
    /// Bytes that its file has at most.
    const MOST: u64 = 64 << 10;

    /// A token of these bytes, without white space at their ends.
    pub fn new(bytes: &[u8]) -> Result<Self, Error> {
        let bytes = bytes.trim_ascii();
        if bytes.len() < Self::MIN {
            let why = format!("a token of {} bytes: at least {}, drawn at random", bytes.len(), Self::MIN);
            return Err(Error::Argument(why));
        }
        Ok(Self(bytes.into()))
    }

    /// The token in a file.
    pub fn read(file: &Path) -> Result<Self, Error> {
        let fail = |e: &dyn fmt::Display| Error::Argument(format!("{}: {e}", file.display()));
        let mut bytes = Vec::new();
        File::open(file).and_then(|file| file.take(Self::MOST + 1).read_to_end(&mut bytes)).map_err(|e| fail(&e))?;
        match bytes.len() as u64 > Self::MOST {
            true => Err(fail(&format!("more than {} bytes are no token", Self::MOST))),
            false => Self::new(&bytes).map_err(|e| fail(&e)),
        }
    }

    /// A proof that who makes the request knows the token. It holds for this request alone, which may be repeated.
    pub(crate) fn prove(&self, request: &[&[u8]]) -> [u8; PROOF_LEN] {
        let mut proof = [0; PROOF_LEN];
        proof.copy_from_slice(hmac::sign(&self.key(), &message(request)).as_ref());
        proof
    }

    fn verify(&self, request: &[&[u8]], proof: &[u8]) -> bool {
        hmac::verify(&self.key(), &message(request), proof).is_ok()
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }
}

/// The parts with their lengths, so that no two requests look alike.
fn message(request: &[&[u8]]) -> Vec<u8> {
    request.iter().flat_map(|part| [&(part.len() as u64).to_le_bytes()[..], part].concat()).collect()
}

impl fmt::Debug for DeployToken {
    /// Nothing of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeployToken")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::testing::{in_namespace, ip_command};

    #[test]
    fn only_who_may_may() {
        let (here, there) = (IpAddr::from([127, 0, 0, 9]), IpAddr::from([192, 0, 2, 1]));
        let may = |who: &Deployers, client| who.check(client, &[b"x"], None).is_ok();
        let list = Deployers::Addresses(vec![there]);
        assert_eq!([may(&Deployers::ThisHost, here), may(&Deployers::ThisHost, there)], [true, false]);
        assert_eq!([may(&list, here), may(&list, there)], [false, true]);
        assert_eq!([may(&Deployers::Anyone, here), may(&Deployers::Anyone, there)], [true, true]);
        let refused = list.check(here, &[], None).unwrap_err();
        assert!(refused.contains("only clients at 192.0.2.1") && refused.contains("127.0.0.9"), "{refused}");
    }

    #[test]
    fn another_hosts_address_is_not_this_hosts_where_any_may_be_bound() {
        in_namespace(|| {
            if std::fs::write("/proc/sys/net/ipv4/ip_nonlocal_bind", "1").is_err() {
                return remora_testing::skip("net.ipv4.ip_nonlocal_bind cannot be set", "Run it as root");
            }
            ip_command("address add 10.214.0.1/32 dev lo").unwrap();
            ip_command("route add 192.0.2.0/24 dev lo").unwrap();
            let here = |address: [u8; 4]| Deployers::ThisHost.check(address.into(), &[b"x"], None).is_ok();
            assert_eq!([here([127, 0, 0, 9]), here([10, 214, 0, 1])], [true, true]);
            assert!(std::net::UdpSocket::bind("192.0.2.1:0").is_ok() && !here([192, 0, 2, 1]), "it is elsewhere");
        });
    }

    #[test]
    fn a_token_is_proven_for_one_request() {
        let token = DeployToken::new(b"0123456789abcdef\n").unwrap();
        assert!(token == DeployToken::new(b" 0123456789abcdef").unwrap(), "white space does not count");
        let who = Deployers::Token(token.clone());
        let proof = token.prove(&[b"deploy", b"a", b"bc"]);
        let check = |request: &[&[u8]], proof| who.check([127, 0, 0, 1].into(), request, proof).is_ok();
        assert!(check(&[b"deploy", b"a", b"bc"], Some(&proof)));
        assert!(!check(&[b"deploy", b"ab", b"c"], Some(&proof)));
        assert!(!check(&[b"deploy", b"a", b"bc"], None));
        let other = DeployToken::new(b"0123456789abcdeX").unwrap().prove(&[b"deploy", b"a", b"bc"]);
        assert!(!check(&[b"deploy", b"a", b"bc"], Some(&other)));
        let why = |proof| who.check([127, 0, 0, 1].into(), &[b"deploy", b"a", b"bc"], proof).unwrap_err();
        assert!(why(Some(&other)).contains("is not the node's") && why(None).contains("only clients with its token"));
        assert!(DeployToken::new(b"short").is_err());
        assert_eq!(format!("{token:?}"), "DeployToken");
    }
}

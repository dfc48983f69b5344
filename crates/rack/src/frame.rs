//! What processes say to the low-power unit's daemon and to the gate to another rack, and what these say to them, over
//! sockets that keep messages whole.
//!
//! All integers are little-endian. A message begins with a word that says which it is; longer ones than expected are
//! wrong, too.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::meeting::{ConnectionEnd, Endpoint, Key};
use crate::records::Refusal;

/// The first message of a process: the protocol's name and version.
pub const HELLO: [u8; 8] = *b"rack\0\0\0\x02";
/// The name that a user's daemon listens under, in the network namespace's abstract ones.
pub fn name(user: u32) -> String {
    format!("remora/rack/{user}")
}

/// The name that a user's gate to another rack listens under.
pub fn gate_name(user: u32) -> String {
    format!("remora/rack/{user}/gate")
}
/// Where the gate's connections to programs of its own rack come from, if these are not IPv6's alone: such a program asks the
/// gate who is behind it. (An address of this host's own network, RFC 1122, 3.2.1.3.)
pub const GATE_SOURCE: Ipv4Addr = Ipv4Addr::new(127, 82, 67, 75);

/// Bytes of the longest message.
pub const LONGEST: usize = 96;

/// Bytes of an end: which one, the socket's number, network namespace, two addresses with ports.
const ENDPOINT_BYTES: usize = 4 + 8 + 8 + 2 * 18;

/// What a process says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first message: the process's number.
    Hello {
        /// As the process sees it; for people only.
        process: u32,
    },
    /// It has this end of a connection, which is worth a buffer.
    Attach(Endpoint),
    /// The end is closed. `reusable` if no other process can have the buffer any more.
    Detach(Endpoint, bool),
}

/// What the daemon says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Both ends are here. The connection's buffer lies at `offset` of the section's file, which comes with the message.
    Matched {
        /// Which end the process has.
        endpoint: Endpoint,
        /// Number of the section.
        section: u32,
        /// Where in the section the buffer begins.
        offset: u32,
    },
}

/// What a process says to the gate. One question for each connection to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// It is about to connect.
    Reach {
        /// To whom.
        to: SocketAddr,
        /// What its socket is bound to: a port at least.
        own: SocketAddr,
    },
    /// Does it lead there?
    Whither {
        /// To whom a program is about to connect.
        to: IpAddr,
    },
    /// A connection came from the gate.
    Whence {
        /// From this address of the gate's.
        peer: SocketAddr,
    },
    /// A connection of the kernel's, which comes with the message, has much to carry.
    Much,
    /// After [`GateAnswer::Yours`]: nothing but the gate sends or takes bytes by the kernel's connection from now on.
    Moved {
        /// Bytes that the program has sent by it.
        sent: u64,
        /// Bytes that it has taken from it.
        taken: u64,
    },
}

/// What the gate says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateAnswer {
    /// It leads nowhere near, or knows nothing of it: the kernel does.
    No,
    /// It does, and is to be asked for a connection.
    Leads,
    /// It does, and so does the kernel, whose way is as good as long as there is not much to carry.
    Direct,
    /// Not yet: nobody has said the same of the other end. To be asked again.
    Later,
    /// The connection that comes with this is to take the place of the kernel's one.
    Yours,
    /// The connection stands. To be connected to `at`, within seconds.
    Way {
        /// An address of the gate's.
        at: SocketAddr,
        /// What the program's own address is to the other end.
        own: SocketAddr,
    },
    /// There is none to be had.
    Refused(Refusal),
    /// Who it is that the gate brought.
    Origin {
        /// Its address in its own rack.
        from: SocketAddr,
    },
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no message of this protocol, or of another version")]
pub struct Malformed;

const ATTACH: u32 = 1;
const DETACH: u32 = 2;
const MATCHED: u32 = 3;
const REACH: u32 = 4;
const WHENCE: u32 = 5;
const NO: u32 = 6;
const WAY: u32 = 7;
const REFUSED: u32 = 8;
const ORIGIN: u32 = 9;
const MUCH: u32 = 10;
const MOVED: u32 = 11;
const DIRECT: u32 = 12;
const LATER: u32 = 13;
const YOURS: u32 = 14;
const WHITHER: u32 = 15;
const LEADS: u32 = 16;

/// A message as it is sent.
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Bytes {
    fn new(kind: u32) -> Self {
        let mut bytes = Self { bytes: [0; LONGEST], len: 0 };
        bytes.push(&kind.to_le_bytes());
        bytes
    }

    fn push(&mut self, more: &[u8]) {
        self.bytes[self.len..self.len + more.len()].copy_from_slice(more);
        self.len += more.len();
    }

    fn push_endpoint(&mut self, endpoint: &Endpoint) {
        let Endpoint { key, end, cookie } = endpoint;
        self.push(&[*end as u8, 0, 0, 0]);
        self.push(&cookie.to_le_bytes());
        self.push(&key.namespace().to_le_bytes());
        key.addresses().into_iter().for_each(|address| self.push_address(address));
    }

    fn push_ip(&mut self, ip: IpAddr) {
        let ip = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        self.push(&ip);
    }

    fn push_address(&mut self, address: SocketAddr) {
        self.push_ip(address.ip());
        self.push(&address.port().to_le_bytes());
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Request {
    /// The message's bytes.
    pub fn emit(&self) -> Bytes {
        match self {
            Self::Hello { process } => {
                let mut bytes = Bytes { bytes: [0; LONGEST], len: 0 };
                bytes.push(&HELLO);
                bytes.push(&process.to_le_bytes());
                bytes
            }
            Self::Attach(endpoint) => {
                let mut bytes = Bytes::new(ATTACH);
                bytes.push_endpoint(endpoint);
                bytes
            }
            Self::Detach(endpoint, reusable) => {
                let mut bytes = Bytes::new(DETACH);
                bytes.push_endpoint(endpoint);
                bytes.push(&[u8::from(*reusable)]);
                bytes
            }
        }
    }

    /// Reads a message.
    ///
    /// # Errors
    ///
    /// [`Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        if let Some(rest) = bytes.strip_prefix(&HELLO) {
            return Ok(Self::Hello { process: u32::from_le_bytes(rest.try_into().map_err(|_| Malformed)?) });
        }
        let mut reader = Reader(bytes);
        let request = match reader.word()? {
            ATTACH => Self::Attach(reader.endpoint()?),
            DETACH => {
                let endpoint = reader.endpoint()?;
                let [reusable @ (0 | 1)] = reader.take()? else { return Err(Malformed) };
                Self::Detach(endpoint, reusable == 1)
            }
            _ => return Err(Malformed),
        };
        reader.end(request)
    }
}

impl Reply {
    /// The message's bytes.
    pub fn emit(&self) -> Bytes {
        let Self::Matched { endpoint, section, offset } = self;
        let mut bytes = Bytes::new(MATCHED);
        bytes.push_endpoint(endpoint);
        bytes.push(&section.to_le_bytes());
        bytes.push(&offset.to_le_bytes());
        bytes
    }

    /// Reads a message.
    ///
    /// # Errors
    ///
    /// [`Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        if reader.word()? != MATCHED {
            return Err(Malformed);
        }
        let endpoint = reader.endpoint()?;
        let (section, offset) = (reader.word()?, reader.word()?);
        reader.end(Self::Matched { endpoint, section, offset })
    }
}

impl Question {
    /// The message's bytes.
    pub fn emit(&self) -> Bytes {
        match *self {
            Self::Reach { to, own } => {
                let mut bytes = Bytes::new(REACH);
                bytes.push_address(to);
                bytes.push_address(own);
                bytes
            }
            Self::Whither { to } => {
                let mut bytes = Bytes::new(WHITHER);
                bytes.push_ip(to);
                bytes
            }
            Self::Whence { peer } => {
                let mut bytes = Bytes::new(WHENCE);
                bytes.push_address(peer);
                bytes
            }
            Self::Much => Bytes::new(MUCH),
            Self::Moved { sent, taken } => {
                let mut bytes = Bytes::new(MOVED);
                [sent, taken].into_iter().for_each(|count| bytes.push(&count.to_le_bytes()));
                bytes
            }
        }
    }

    /// Reads a message.
    ///
    /// # Errors
    ///
    /// [`Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let question = match reader.word()? {
            REACH => Self::Reach { to: reader.address()?, own: reader.address()? },
            WHENCE => Self::Whence { peer: reader.address()? },
            WHITHER => Self::Whither { to: reader.ip()? },
            MUCH => Self::Much,
            MOVED => Self::Moved { sent: reader.long()?, taken: reader.long()? },
            _ => return Err(Malformed),
        };
        reader.end(question)
    }
}

impl GateAnswer {
    /// The message's bytes.
    pub fn emit(&self) -> Bytes {
        match *self {
            Self::No => Bytes::new(NO),
            Self::Leads => Bytes::new(LEADS),
            Self::Direct => Bytes::new(DIRECT),
            Self::Later => Bytes::new(LATER),
            Self::Yours => Bytes::new(YOURS),
            Self::Way { at, own } => {
                let mut bytes = Bytes::new(WAY);
                bytes.push_address(at);
                bytes.push_address(own);
                bytes
            }
            Self::Refused(why) => {
                let mut bytes = Bytes::new(REFUSED);
                bytes.push(&[why as u8]);
                bytes
            }
            Self::Origin { from } => {
                let mut bytes = Bytes::new(ORIGIN);
                bytes.push_address(from);
                bytes
            }
        }
    }

    /// Reads a message.
    ///
    /// # Errors
    ///
    /// [`Malformed`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let answer = match reader.word()? {
            NO => Self::No,
            LEADS => Self::Leads,
            DIRECT => Self::Direct,
            LATER => Self::Later,
            YOURS => Self::Yours,
            WAY => Self::Way { at: reader.address()?, own: reader.address()? },
            REFUSED => {
                let [why] = reader.take()?;
                Self::Refused(Refusal::ALL.into_iter().find(|other| *other as u8 == why).ok_or(Malformed)?)
            }
            ORIGIN => Self::Origin { from: reader.address()? },
            _ => return Err(Malformed),
        };
        reader.end(answer)
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*first)
    }

    fn word(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_le_bytes)
    }

    fn endpoint(&mut self) -> Result<Endpoint, Malformed> {
        let end = match self.take()? {
            [0, 0, 0, 0] => ConnectionEnd::Low,
            [1, 0, 0, 0] => ConnectionEnd::High,
            _ => return Err(Malformed),
        };
        let (cookie, namespace) = (self.long()?, self.long()?);
        let (low, high) = (self.address()?, self.address()?);
        let (key, which) = Key::new(namespace, low, high);
        // Only one order of the addresses is a key.
        if which != ConnectionEnd::Low { Err(Malformed) } else { Ok(Endpoint { key, end, cookie }) }
    }

    fn ip(&mut self) -> Result<IpAddr, Malformed> {
        Ok(Ipv6Addr::from(self.take::<16>()?).to_canonical())
    }

    fn address(&mut self) -> Result<SocketAddr, Malformed> {
        Ok(SocketAddr::new(self.ip()?, u16::from_le_bytes(self.take()?)))
    }

    fn end<T>(self, message: T) -> Result<T, Malformed> {
        if self.0.is_empty() { Ok(message) } else { Err(Malformed) }
    }
}

const _: () = assert!(4 + ENDPOINT_BYTES + 8 <= LONGEST);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = (Key, ConnectionEnd)> {
        let address = || {
            (any::<[u16; 8]>(), any::<bool>(), any::<u16>()).prop_map(|(ip, four, port)| {
                let ip = Ipv6Addr::from(ip);
                let ip = if four { IpAddr::from([127, 0, 0, ip.octets()[3]]) } else { ip.to_canonical() };
                SocketAddr::new(ip, port)
            })
        };
        (any::<u64>(), address(), address()).prop_map(|(namespace, one, other)| Key::new(namespace, one, other))
    }

    proptest! {
        #[test]
        fn what_is_said_is_heard((key, end) in key(), cookie: u64, flag: bool, section: u32, offset: u32, process: u32) {
            let endpoint = Endpoint { key, end, cookie };
            for request in [Request::Hello { process }, Request::Attach(endpoint), Request::Detach(endpoint, flag)] {
                prop_assert_eq!(Request::parse(request.emit().as_slice()), Ok(request));
            }
            let reply = Reply::Matched { endpoint, section, offset };
            prop_assert_eq!(Reply::parse(reply.emit().as_slice()), Ok(reply));
        }

        #[test]
        fn a_gate_hears_and_is_heard((key, _) in key(), sent: u64, taken: u64) {
            let [one, other] = key.addresses();
            let (reach, moved) = (Question::Reach { to: one, own: other }, Question::Moved { sent, taken });
            for question in [reach, Question::Whence { peer: one }, Question::Whither { to: one.ip() }, Question::Much, moved] {
                prop_assert_eq!(Question::parse(question.emit().as_slice()), Ok(question));
            }
            let refused = Refusal::ALL.map(GateAnswer::Refused);
            let said = [GateAnswer::Way { at: one, own: other }, GateAnswer::Origin { from: other }];
            let short = [GateAnswer::No, GateAnswer::Leads, GateAnswer::Direct, GateAnswer::Later, GateAnswer::Yours];
            for answer in said.into_iter().chain(short).chain(refused) {
                prop_assert_eq!(GateAnswer::parse(answer.emit().as_slice()), Ok(answer));
            }
        }

        #[test]
        fn anything_else_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..LONGEST + 1), kind in 0..18u32) {
            let mut framed = kind.to_le_bytes().to_vec();
            framed.extend(&bytes);
            for bytes in [&bytes, &framed] {
                if let Ok(request) = Request::parse(bytes) {
                    let emitted = request.emit();
                    prop_assert_eq!(emitted.as_slice(), &bytes[..]);
                }
                if let Ok(question) = Question::parse(bytes) {
                    let emitted = question.emit();
                    prop_assert_eq!(emitted.as_slice(), &bytes[..]);
                }
                if let Ok(answer) = GateAnswer::parse(bytes) {
                    let emitted = answer.emit();
                    prop_assert_eq!(emitted.as_slice(), &bytes[..]);
                }
                if let Ok(reply) = Reply::parse(bytes) {
                    let emitted = reply.emit();
                    prop_assert_eq!(emitted.as_slice(), &bytes[..]);
                }
            }
        }
    }
}

//! What two racks say to each other about the connections between them, in a stream of its own beside theirs.
//!
//! A record is a byte that says which it is, and fields of a length that follows from it. All integers are little-endian.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::nics::FlowId;

/// Why a connection was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// Nobody listens there.
    #[error("nobody listens there")]
    Refused = 1,
    /// The rack does not lead there.
    #[error("the other rack does not lead there")]
    NoWay = 2,
    /// It took too long.
    #[error("it took too long")]
    TimedOut = 3,
    /// There are too many.
    #[error("there are too many connections")]
    TooMany = 4,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Refused, Self::NoWay, Self::TimedOut, Self::TooMany];
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A program at `from` wants a connection to `to`, which is in the rack that hears this.
    Open {
        /// Its number, from now on.
        flow: FlowId,
        /// Whom it wants to talk to.
        to: SocketAddr,
        /// Who it is.
        from: SocketAddr,
        /// The two have a connection of the kernel's, which is to go on as this one.
        goes_on: bool,
    },
    /// What became of an `Open`.
    Answer {
        /// Its number.
        flow: FlowId,
        /// Why not, if not.
        answer: Result<(), Refusal>,
    },
    /// There is room for bytes up to this one.
    Limit {
        /// Of which connection.
        flow: FlowId,
        /// The first byte that there is no room for.
        limit: u64,
    },
    /// There are so many bytes, and no more will come.
    End {
        /// Of which connection.
        flow: FlowId,
        /// How many.
        at: u64,
    },
    /// It is given up: nothing is heard any more, and there are so many bytes.
    Reset {
        /// Which connection.
        flow: FlowId,
        /// How many.
        at: u64,
    },
}

/// These bytes begin no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other rack said what no rack says")]
pub struct NoRecord;

const OPEN: u8 = 1;
const ANSWER: u8 = 2;
const LIMIT: u8 = 3;
const END: u8 = 4;
const RESET: u8 = 5;

fn len_of(kind: u8) -> Result<usize, NoRecord> {
    match kind {
        OPEN => Ok(1 + 8 + 2 * 18 + 1),
        ANSWER => Ok(1 + 8 + 1),
        LIMIT | END | RESET => Ok(1 + 8 + 8),
        _ => Err(NoRecord),
    }
}

fn push_address(out: &mut Vec<u8>, address: SocketAddr) {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    out.extend(ip.octets());
    out.extend(address.port().to_le_bytes());
}

impl Record {
    /// Adds its bytes.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let mut head = |kind: u8, flow: FlowId| {
            out.push(kind);
            out.extend(flow.0.to_le_bytes());
        };
        match *self {
            Self::Open { flow, to, from, goes_on } => {
                head(OPEN, flow);
                push_address(out, to);
                push_address(out, from);
                out.push(goes_on.into());
            }
            Self::Answer { flow, answer } => {
                head(ANSWER, flow);
                out.push(answer.err().map_or(0, |why| why as u8));
            }
            Self::Limit { flow, limit: number } => {
                head(LIMIT, flow);
                out.extend(number.to_le_bytes());
            }
            Self::End { flow, at: number } => {
                head(END, flow);
                out.extend(number.to_le_bytes());
            }
            Self::Reset { flow, at: number } => {
                head(RESET, flow);
                out.extend(number.to_le_bytes());
            }
        }
    }

    /// The first record of these bytes, and its length; none as long as it is not whole.
    ///
    /// # Errors
    ///
    /// [`NoRecord`].
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, NoRecord> {
        let Some(&kind) = bytes.first() else { return Ok(None) };
        let len = len_of(kind)?;
        let Some(bytes) = bytes.get(1..len) else { return Ok(None) };
        let number = |at: usize| {
            let field = bytes.get(at..at + 8).and_then(|field| field.try_into().ok());
            field.map(u64::from_le_bytes).ok_or(NoRecord)
        };
        let address = |at: usize| {
            let field = bytes.get(at..at + 18).and_then(|field| field.split_first_chunk::<16>());
            let (ip, port) = field.ok_or(NoRecord)?;
            let port = u16::from_le_bytes(port.try_into().map_err(|_| NoRecord)?);
            Ok(SocketAddr::new(Ipv6Addr::from(*ip).to_canonical(), port))
        };
        let flow = FlowId(number(0)?);
        let record = match kind {
            OPEN => {
                let goes_on = if bytes[44] < 2 { bytes[44] == 1 } else { return Err(NoRecord) };
                Self::Open { flow, to: address(8)?, from: address(26)?, goes_on }
            }
            ANSWER => {
                let why = Refusal::ALL.into_iter().find(|why| *why as u8 == bytes[8]);
                let answer = if bytes[8] == 0 { Ok(()) } else { Err(why.ok_or(NoRecord)?) };
                Self::Answer { flow, answer }
            }
            LIMIT => Self::Limit { flow, limit: number(8)? },
            END => Self::End { flow, at: number(8)? },
            _ => Self::Reset { flow, at: number(8)? },
        };
        Ok(Some((record, len)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record() -> impl Strategy<Value = Record> {
        let flow = || any::<u64>().prop_map(FlowId);
        let address = || {
            (any::<[u8; 16]>(), any::<bool>(), any::<u16>()).prop_map(|(ip, four, port)| {
                let six = IpAddr::from(ip).to_canonical();
                let ip = if four { IpAddr::from([ip[0], ip[1], ip[2], ip[3]]) } else { six };
                SocketAddr::new(ip, port)
            })
        };
        let answer = prop_oneof![Just(Ok(())), prop::sample::select(&Refusal::ALL[..]).prop_map(Err)];
        prop_oneof![
            (flow(), address(), address(), any::<bool>()).prop_map(|(flow, to, from, goes_on)| Record::Open {
                flow,
                to,
                from,
                goes_on
            }),
            (flow(), answer).prop_map(|(flow, answer)| Record::Answer { flow, answer }),
            (flow(), any::<u64>()).prop_map(|(flow, limit)| Record::Limit { flow, limit }),
            (flow(), any::<u64>()).prop_map(|(flow, at)| Record::End { flow, at }),
            (flow(), any::<u64>()).prop_map(|(flow, at)| Record::Reset { flow, at }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_said_is_heard(records in prop::collection::vec(record(), 1..10), cut in 0..64usize) {
            let mut bytes = Vec::new();
            records.iter().for_each(|record| record.emit(&mut bytes));
            let mut rest = &bytes[..];
            for record in &records {
                let (heard, len) = Record::parse(rest).unwrap().unwrap();
                prop_assert_eq!(&heard, record);
                prop_assert_eq!(Record::parse(&rest[..cut.min(len - 1)]), Ok(None));
                rest = &rest[len..];
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn anything_else_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..64), kind in 0..7u8) {
            let framed: Vec<u8> = std::iter::once(kind).chain(bytes.iter().copied()).collect();
            for bytes in [&bytes, &framed] {
                if let Ok(Some((record, len))) = Record::parse(bytes) {
                    let mut emitted = Vec::new();
                    record.emit(&mut emitted);
                    prop_assert_eq!(emitted.len(), len);
                    prop_assert_eq!(Record::parse(&emitted), Ok(Some((record, len))));
                }
            }
        }
    }
}

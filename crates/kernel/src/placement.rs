//! Where a kernel runs: the one word for it in every world, option and report.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where a kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// At the client: each access of the kernel is a one-sided verb.
    Client,
    /// On the node's NIC: one RPC verb.
    Nic,
    /// On the node's host cores: one SEND, answered by one WRITE.
    Host,
    /// On the node's cache-coherent accelerator. Only the modelled world has one.
    #[serde(rename = "accel")]
    Accelerator,
}

/// No placement has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no placement {0:?}: use client, nic, host or accel")]
pub struct UnknownPlacement(pub String);

impl Placement {
    /// All, in the order of reports.
    pub const ALL: [Self; 4] = [Self::Client, Self::Nic, Self::Host, Self::Accelerator];

    /// Those that the real world has.
    pub const REAL: [Self; 3] = [Self::Client, Self::Nic, Self::Host];

    /// As options and reports spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Nic => "nic",
            Self::Host => "host",
            Self::Accelerator => "accel",
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Placement {
    type Err = UnknownPlacement;

    fn from_str(text: &str) -> Result<Self, UnknownPlacement> {
        match text {
            "accelerator" => Ok(Self::Accelerator),
            _ => {
                let found = Self::ALL.into_iter().find(|placement| placement.name() == text);
                found.ok_or_else(|| UnknownPlacement(text.into()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_as_written() {
        for placement in Placement::ALL {
            assert_eq!(placement.to_string().parse(), Ok(placement));
        }
        assert_eq!("accelerator".parse(), Ok(Placement::Accelerator));
        assert!("gpu".parse::<Placement>().unwrap_err().to_string().contains("client, nic, host or accel"));
    }
}

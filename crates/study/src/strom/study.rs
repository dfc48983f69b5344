//! What a figure is made of: a file of `studies/`.

use remora_kernel::Placement;
use serde::{Deserialize, Serialize};

use crate::reproduce::{self, FigureError};

/// The figures of StRoM, in the paper's order.
const STROM: [&str; 15] = [
    include_str!("../../../../studies/strom/fig5a.toml"),
    include_str!("../../../../studies/strom/fig5b.toml"),
    include_str!("../../../../studies/strom/fig5c.toml"),
    include_str!("../../../../studies/strom/fig7.toml"),
    include_str!("../../../../studies/strom/fig8.toml"),
    include_str!("../../../../studies/strom/fig9.toml"),
    include_str!("../../../../studies/strom/fig9f.toml"),
    include_str!("../../../../studies/strom/fig10.toml"),
    include_str!("../../../../studies/strom/fig11.toml"),
    include_str!("../../../../studies/strom/fig11w.toml"),
    include_str!("../../../../studies/strom/fig12a.toml"),
    include_str!("../../../../studies/strom/fig12b.toml"),
    include_str!("../../../../studies/strom/fig12c.toml"),
    include_str!("../../../../studies/strom/fig13a.toml"),
    include_str!("../../../../studies/strom/fig13b.toml"),
];

/// A figure of StRoM.
pub type Study = reproduce::Study<StromSeries, Metric>;

/// A figure of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Median latency in microseconds.
    Median,
    /// Mean latency in microseconds.
    Mean,
    /// Payload in Gbit/s.
    Throughput,
    /// Messages in millions a second.
    Rate,
    /// Time of the whole in milliseconds.
    Time,
}

/// A line of a figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StromSeries {
    /// As the paper calls it.
    pub name: String,
    /// On which platform.
    pub platform: String,
    /// What is run.
    pub run: Run,
    /// Where kernels run.
    #[serde(default)]
    pub placement: Option<Placement>,
    /// Bytes of the object, where x is something else.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// Percentage of looks that find an object half-written, where x is something else.
    #[serde(default)]
    pub torn: Option<u64>,
}

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Run {
    /// WRITEs there and back, half of the time; x is bytes.
    PingPong,
    /// READs, one at a time; x is bytes.
    Read,
    /// WRITEs, many at a time; x is bytes.
    WriteStream,
    /// READs, many at a time; x is bytes.
    ReadStream,
    /// The traversal kernel; x is elements.
    List,
    /// The GET kernel; x is bytes of the value.
    Get,
    /// READs of whole objects, unchecked; x is bytes of the payload.
    ReadObject,
    /// The consistency kernel; x is bytes of the payload, `torn` the percentage of looks that find it half-written.
    Object,
    /// The consistency kernel on one object; x is the percentage of looks that find it half-written.
    TornObject,
    /// One WRITE of x MiB of values, as they are.
    WriteValues,
    /// The client partitions x MiB of values and WRITEs each partition.
    PartitionAndWrite,
    /// The shuffling kernel; x is MiB of values.
    Shuffle,
    /// The shuffling kernel on some MiB of values; x is bytes that a partition gathers for each of its writes.
    ShuffleRuns,
    /// The HyperLogLog kernel over payload streams; x is threads, of a place that has any.
    CountStreams,
    /// HyperLogLog by a kernel that reads values which lie in the node's memory; x is threads, of a place that has any.
    CountResident,
    /// WRITEs, many at a time, of which the NIC keeps a sketch as they pass; x is bytes.
    CountWrites,
    /// A call over TCP that walks a list; x is elements.
    TcpList,
    /// A call over TCP that answers with a value; x is bytes.
    TcpGet,
}

/// The studies of StRoM's figures, or one.
pub fn studies(number: Option<&str>) -> Result<Vec<Study>, FigureError> {
    Study::choose(&STROM, number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_by_number() {
        let figures = |number| studies(number).unwrap().into_iter().map(|s| s.figure).collect::<Vec<_>>();
        assert_eq!(
            figures(None),
            ["5a", "5b", "5c", "7", "8", "9", "9f", "10", "11", "11w", "12a", "12b", "12c", "13a", "13b"]
        );
        assert_eq!(figures(Some("5")), ["5a", "5b", "5c"]);
        assert_eq!(figures(Some("12b")), ["12b"]);
    }
}

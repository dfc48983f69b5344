//! What the nodes of two racks do, as its user describes it: a TOML file of a few lines.

use std::path::Path;

use remora_model::platform::{Dimension, Platform, PlatformError};
use remora_model::rack_world::RackStep;
use remora_model::time::Ps;
use serde::Deserialize;
use toml::Spanned;

use super::super::operation::{OperationError, Reader, text_of};
use crate::dfabric::loads::{self, Programs};

/// Workloads that come with the program, by their names.
pub const RACK_TEMPLATES: [(&str, &str); 5] = [
    ("all-reduce", include_str!("../../../../../studies/rack/all-reduce.toml")),
    ("all-to-all", include_str!("../../../../../studies/rack/all-to-all.toml")),
    ("incast", include_str!("../../../../../studies/rack/incast.toml")),
    ("page-rank", include_str!("../../../../../studies/rack/page-rank.toml")),
    ("stream", include_str!("../../../../../studies/rack/stream.toml")),
];

/// Who sends to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// A ring all-reduce over the nodes of both racks.
    AllReduce,
    /// Each node to each other one.
    AllToAll,
    /// Nodes of a rack to one node of the other, which takes a little from each in turn.
    Incast,
    /// A superstep of PageRank: nodes go through the edges of their parts of a drawn graph, then tell each other of vertices.
    PageRank,
    /// Nodes of a rack, each to the one that stands for it in the other, all at once.
    Stream,
}

/// What the nodes of two racks do.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// What it is, in a line.
    pub title: String,
    /// Who sends to whom.
    pub pattern: Pattern,
    /// Bytes that a node has to reduce, or that a sender has for each receiver; none of PageRank.
    pub size: Option<u64>,
    /// Bytes that programs send and receive at once; all if nothing is said.
    pub message: Option<u64>,
    /// How often it is done.
    pub rounds: u32,
    /// What each node computes before each round.
    pub compute: Ps,
    /// Nodes that send, of an incast or of streams; all of a rack if nothing is said.
    pub senders: Option<u32>,
    /// Nodes of each rack; as many as the platform says if nothing is said.
    pub nodes: Option<u32>,
    /// The bandwidth within a rack over that of a NIC; what the platform says if nothing is said.
    pub ratio: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RackFile {
    /// What it is, in a line.
    title: String,
    /// Who sends to whom.
    pattern: Spanned<Pattern>,
    /// What each node has to reduce, or each sender has for each receiver. PageRank has none: its graph says it.
    #[serde(default)]
    size: Option<Spanned<String>>,
    /// What programs send and receive at once; all of it if left out.
    #[serde(default)]
    message: Option<Spanned<String>>,
    /// How often it is done; once if left out.
    #[serde(default)]
    rounds: Option<Spanned<u32>>,
    /// The time that each node computes before each round; none if left out.
    #[serde(default)]
    compute: Option<Spanned<String>>,
    /// Nodes that send, of an incast or of streams; all of a rack if left out.
    #[serde(default)]
    senders: Option<Spanned<u32>>,
    /// Nodes of each of the two racks; as many as the platform says if left out.
    #[serde(default)]
    nodes: Option<Spanned<u32>>,
    /// How many times a NIC's bandwidth the interconnect within a rack has; what the platform says if left out.
    #[serde(default)]
    ratio: Option<Spanned<f64>>,
}

/// The most bytes between two nodes, and the fewest of a message.
const MOST_BYTES: u64 = 1 << 30;
const LEAST_MESSAGE: u64 = 64;
const MOST_ROUNDS: u32 = 1000;
/// The longest time that a node computes before a round.
const MOST_COMPUTE: Ps = Ps(10_000_000_000_000);
/// The most nodes of a rack.
const MOST_NODES: u32 = 32;
const RATIOS: std::ops::RangeInclusive<f64> = 0.1..=1000.0;
/// The most packets and messages of a run: a second or so. What NICs bring hardly hangs on how long it goes on.
const MOST_PACKETS: u64 = 1 << 16;
/// What who receives from several takes from each in turn.
const TURN: u64 = 64 << 10;

impl Workload {
    /// Reads a file, or takes one that comes with the program.
    pub fn load(path: &Path) -> Result<Self, OperationError> {
        let (file, text) = text_of(path, "workload of racks", "studies/rack", &RACK_TEMPLATES)?;
        Self::parse(&file, &text)
    }

    /// Parses a file's text; `file` is what messages call it.
    pub fn parse(file: &str, text: &str) -> Result<Self, OperationError> {
        let reader = Reader { file, text };
        let parsed: RackFile = reader.parse()?;
        let size = |text| Ok(reader.optional(text, Dimension::Size)?.map(|bytes| bytes as u64));
        let workload = Self {
            pattern: *parsed.pattern.get_ref(),
            size: size(&parsed.size)?,
            message: size(&parsed.message)?,
            rounds: parsed.rounds.as_ref().map_or(1, |rounds| *rounds.get_ref()),
            compute: Ps(reader.optional(&parsed.compute, Dimension::Time)?.unwrap_or(0.0) as u64),
            senders: parsed.senders.as_ref().map(|senders| *senders.get_ref()),
            nodes: parsed.nodes.as_ref().map(|nodes| *nodes.get_ref()),
            ratio: parsed.ratio.as_ref().map(|ratio| *ratio.get_ref()),
            title: parsed.title,
        };
        workload.check().map_err(|(key, what)| {
            let span = match key {
                "size" => parsed.size.as_ref().map(Spanned::span),
                "message" => parsed.message.as_ref().map(Spanned::span),
                "rounds" => parsed.rounds.as_ref().map(Spanned::span),
                "compute" => parsed.compute.as_ref().map(Spanned::span),
                "senders" => parsed.senders.as_ref().map(Spanned::span),
                "nodes" => parsed.nodes.as_ref().map(Spanned::span),
                _ => parsed.ratio.as_ref().map(Spanned::span),
            };
            reader.error(span.unwrap_or(parsed.pattern.span()).start, format!("{key} {what}"))
        })?;
        Ok(workload)
    }

    /// What is wrong with it: the key of its file and what it has to be.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let of_few = matches!(self.pattern, Pattern::Incast | Pattern::Stream);
        let wrong = match (self.pattern, self.size) {
            (Pattern::PageRank, Some(_)) => Some(("size", "is what the graph says: page-rank has none".to_string())),
            (Pattern::PageRank, None) => None,
            (_, None) => Some(("size", "is missing: what each sender has for each receiver, such as \"4 MiB\"".into())),
            (_, Some(bytes)) => {
                let fits = (1..=MOST_BYTES).contains(&bytes);
                (!fits).then(|| ("size", "is from 1 B to 1 GiB".to_string()))
            }
        };
        let ratio = self.ratio.unwrap_or(1.0);
        let wrong = if wrong.is_some() {
            wrong
        } else if self.message.is_some_and(|bytes| !(LEAST_MESSAGE..=MOST_BYTES).contains(&bytes)) {
            Some(("message", format!("is from {LEAST_MESSAGE} B to 1 GiB")))
        } else if !(1..=MOST_ROUNDS).contains(&self.rounds) {
            Some(("rounds", format!("are from 1 to {MOST_ROUNDS}")))
        } else if self.compute > MOST_COMPUTE {
            Some(("compute", "is 10 s at most".into()))
        } else if self.nodes.is_some_and(|nodes| !(1..=MOST_NODES).contains(&nodes)) {
            Some(("nodes", format!("are those of each rack, from 1 to {MOST_NODES}")))
        } else if self.senders == Some(0) || self.senders.is_some() && !of_few {
            Some(("senders", "are the nodes that send of an incast or of streams, 1 or more".into()))
        } else if !RATIOS.contains(&ratio) {
            let (least, most) = (RATIOS.start(), RATIOS.end());
            Some(("ratio", format!("is the bandwidth within a rack over a NIC's, from {least} to {most}")))
        } else {
            None
        };
        wrong.map_or(Ok(()), Err)
    }

    /// The platform with what the workload says of it.
    pub(super) fn on(&self, platform: &Platform) -> Result<Platform, PlatformError> {
        let mut values = Vec::new();
        values.extend(self.nodes.map(|nodes| ("rack.nodes", f64::from(nodes))));
        let within = platform.accel.as_ref().map(|accel| accel.bandwidth);
        values.extend(within.zip(self.ratio).map(|(within, ratio)| ("ethernet.rate", within / ratio)));
        if values.is_empty() { Ok(platform.clone()) } else { platform.with(&values) }
    }

    /// What a platform says too little for, or what would go on for too long, if there is such a thing.
    pub(super) fn missing(&self, platform: &Platform, seed: u64) -> Option<String> {
        let (name, title) = (&platform.name, &self.title);
        let lacks = |section: &str, what: &str| {
            Some(format!(
                "{name} has no section [{section}]: {what} is not known; dfabric is a platform with all of it"
            ))
        };
        let Some(costs) = &platform.rack else {
            return lacks("rack", "what nodes of a rack share");
        };
        let Some(ethernet) = platform.nic.as_ref().map(|nic| &nic.ethernet) else {
            return lacks("ethernet", "what joins the racks");
        };
        if platform.accel.is_none() {
            return lacks("accel", "how nodes reach the memory of the pool");
        }
        if platform.switch.is_none() {
            return lacks("switch", "what there is without a pool");
        }
        if let Some(senders) = self.senders.filter(|senders| u64::from(*senders) > costs.nodes) {
            return Some(format!(
                "{title}: {senders} senders are more than the {} nodes of a rack on {name}",
                costs.nodes
            ));
        }
        let packets = self.packets(&self.round(platform, seed), ethernet.mtu);
        (packets > MOST_PACKETS).then(|| {
            format!(
                "{title} is {packets} packets or messages, and a run has {MOST_PACKETS} at most: make size, rounds or \
                 nodes smaller, or message larger; what NICs bring hardly hangs on how long it goes on"
            )
        })
    }

    /// Packets and messages of all rounds.
    fn packets(&self, round: &Programs, mtu: u64) -> u64 {
        let cut = self.message.unwrap_or(mtu).min(mtu).max(1);
        let of = |step: &RackStep| if let RackStep::Send { bytes, .. } = step { bytes.div_ceil(cut) } else { 0 };
        round.iter().flatten().map(of).sum::<u64>() * u64::from(self.rounds)
    }

    /// What each node's program does.
    pub(super) fn programs(&self, platform: &Platform, seed: u64) -> Programs {
        let message = self.message.unwrap_or(u64::MAX);
        let all = |program: Vec<RackStep>| {
            let compute = (self.compute > Ps::ZERO).then_some(RackStep::Compute(self.compute));
            let steps = program.into_iter().flat_map(|step| parts(step, message));
            compute.into_iter().chain(steps).collect::<Vec<_>>().repeat(self.rounds as usize)
        };
        self.round(platform, seed).into_iter().map(all).collect()
    }

    /// One round, without what is computed before it and whatever the messages.
    fn round(&self, platform: &Platform, seed: u64) -> Programs {
        let (nodes, bytes) = (loads::nodes(platform), self.size.unwrap_or(0));
        let senders = self.senders.map_or(nodes / 2, |senders| senders as usize);
        match (self.pattern, &platform.rack) {
            (Pattern::AllReduce, _) => loads::all_reduce(nodes, bytes),
            (Pattern::AllToAll, _) => loads::all_to_all(nodes, bytes),
            (Pattern::Incast, _) => loads::incast(nodes, senders, (bytes, TURN)),
            (Pattern::Stream, _) => loads::streams(nodes, senders, false, bytes),
            (Pattern::PageRank, Some(costs)) => loads::rank_once(nodes, costs, seed),
            (Pattern::PageRank, None) => Programs::new(),
        }
    }
}

/// A step in messages of so many bytes at most.
fn parts(step: RackStep, message: u64) -> Vec<RackStep> {
    let cut = |bytes: u64, part: &dyn Fn(u64) -> RackStep| {
        let sizes = (0..bytes).step_by(usize::try_from(message).unwrap_or(usize::MAX));
        sizes.map(|done| part(message.min(bytes - done))).collect()
    };
    match step {
        RackStep::Send { to, bytes } => cut(bytes, &|bytes| RackStep::Send { to, bytes }),
        RackStep::Receive { from, bytes } => cut(bytes, &|bytes| RackStep::Receive { from, bytes }),
        step => vec![step],
    }
}

//! An operation as its user describes it: a TOML file of a few lines.

use std::path::Path;

use remora_model::platform::{Dimension, quantity};
use serde::Deserialize;
use toml::Spanned;

use crate::records::read_text;

/// Operations that come with the program, by their names.
pub const TEMPLATES: [(&str, &str); 6] = [
    ("btree", include_str!("../../../../studies/where/btree.toml")),
    ("counter", include_str!("../../../../studies/where/counter.toml")),
    ("embedding", include_str!("../../../../studies/where/embedding.toml")),
    ("get", include_str!("../../../../studies/where/get.toml")),
    ("list", include_str!("../../../../studies/where/list.toml")),
    ("scan", include_str!("../../../../studies/where/scan.toml")),
];

/// What is done to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A fetch-and-add or compare-and-swap of 8 bytes.
    Atomic,
}

/// Some accesses of the same kind and size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Access {
    /// How many.
    pub count: f64,
    /// Bytes of each.
    pub bytes: f64,
    /// What they do.
    pub kind: Kind,
    /// Whether each needs the result of the one before. If not, all can be under way at once.
    pub dependent: bool,
}

/// Where the state lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Memory {
    /// In the node's host memory, whoever runs the kernel.
    #[default]
    Host,
    /// In the memory of the device that runs the kernel, if it has any and the state fits.
    Near,
    /// In that of the node's other socket, which neither its NIC, its accelerator nor the cores that serve belong to.
    Far,
}

/// How many operations there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// So many under way at once: the next starts when one ends.
    Closed(u32),
    /// So many a second, whenever they come.
    Open(f64),
}

/// Who asks for operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clients {
    /// Machines.
    pub machines: u32,
    /// Threads of each.
    pub threads: u32,
    /// The exponent of the zipfian by which they ask for more or less than each other; 0 is all alike.
    pub skew: f64,
    /// Queue pairs that the node's NIC serves; one for each thread if nothing is said.
    pub connections: Option<u64>,
    /// The part of packets that are lost on their way.
    pub loss: f64,
}

impl Default for Clients {
    /// One client of one thread, as a comparison has it.
    fn default() -> Self {
        Self { machines: 1, threads: 1, skew: 0.0, connections: None, loss: 0.0 }
    }
}

impl Clients {
    /// Queue pairs that the node's NIC serves.
    pub fn queue_pairs(&self) -> u64 {
        self.connections.unwrap_or(u64::from(self.machines) * u64::from(self.threads))
    }

    /// The part of the load of each, the largest first.
    pub fn shares(&self) -> Vec<f64> {
        remora_model::world::shares(u16::try_from(self.machines).unwrap_or(u16::MAX), self.skew)
    }

    /// What is wrong with them: the key of the operation's file and what it has to be.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let (machines, threads) = (self.machines, self.threads);
        let each = u64::from(machines) * u64::from(threads);
        let wrong = if !(1..=MOST_CLIENTS).contains(&machines) {
            ("clients", format!("are from 1 to {MOST_CLIENTS}"))
        } else if !(1..=MOST_CLIENTS).contains(&threads) {
            ("threads", format!("are from 1 to {MOST_CLIENTS}"))
        } else if !(0.0..=MOST_SKEW).contains(&self.skew) {
            ("client_skew", format!("is the exponent of a zipfian, from 0 to {MOST_SKEW}"))
        } else if !(0.0..=MOST_LOSS).contains(&self.loss) {
            ("loss", format!("is the part of packets that are lost, from 0 to {MOST_LOSS}"))
        } else if !(each..=MOST_CONNECTIONS).contains(&self.queue_pairs()) {
            ("connections", format!("are from {each}, one for each thread, to {MOST_CONNECTIONS}"))
        } else {
            return Ok(());
        };
        Err(wrong)
    }
}

/// An operation on remote memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// What it is, in a line.
    pub title: String,
    /// The accesses, in their order.
    pub accesses: Vec<Access>,
    /// Bytes that a call brings in.
    pub request: f64,
    /// Bytes that it gives back.
    pub reply: f64,
    /// Whether replies differ in length. Matters to software that sends packets of equal length together.
    pub uneven: bool,
    /// Cycles that it computes, on a core of the client or the host.
    pub cycles: f64,
    /// Cycles that the same takes on a NIC's data path.
    pub pipeline_cycles: f64,
    /// Bytes of state that accesses are spread over.
    pub state: f64,
    /// Bytes that are asked for together: a record.
    pub item: f64,
    /// The exponent of the zipfian by which items are asked for; 0 is all alike.
    pub skew: f64,
    /// The part of operations that also write the item they read last, and hold it from that read on.
    pub writes: f64,
    /// Where the state lies.
    pub memory: Memory,
    /// How many there are.
    pub load: Load,
    /// Who asks for them.
    pub clients: Clients,
}

/// Why there is no operation.
#[derive(Debug, thiserror::Error)]
pub enum OperationError {
    /// The file cannot be read.
    #[error("cannot read {file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// Why.
        source: std::io::Error,
    },
    /// No template has the name, and there is no such file.
    #[error("there is no {what} {name:?}: give one of {known}, or a file's path")]
    NotFound {
        /// What it is that there is none of.
        what: &'static str,
        /// The name.
        name: String,
        /// The templates.
        known: String,
    },
    /// A line is bad.
    #[error("{file}, line {line}: {problem}")]
    At {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// What it is, in a line.
    title: String,
    /// The accesses, in order.
    access: Vec<Spanned<FileAccess>>,
    /// Bytes that a call brings in.
    request: Spanned<String>,
    /// Bytes that it gives back.
    reply: Spanned<String>,
    /// Whether replies differ in length.
    #[serde(default)]
    uneven: bool,
    /// What it computes on a core: cycles, or a time; none if left out.
    #[serde(default)]
    compute: Option<Spanned<String>>,
    /// The clock by which a compute that is given as a time is cycles; 3 GHz if left out.
    #[serde(default)]
    reference: Option<Spanned<String>>,
    /// The same on a NIC's data path, in cycles; what it is on a core if left out.
    #[serde(default)]
    pipeline: Option<Spanned<String>>,
    /// What accesses are spread over.
    state: Spanned<String>,
    /// What is asked for together; the largest access if left out.
    #[serde(default)]
    item: Option<Spanned<String>>,
    /// The exponent of the zipfian by which items are asked for, from 0 (all alike) to 3.
    #[serde(default)]
    skew: Option<Spanned<f64>>,
    /// The part of operations, from 0 to 1, that write the item they read last, and hold it from that read on.
    #[serde(default)]
    writes: Option<Spanned<f64>>,
    /// Where the state lies; `host` if left out.
    #[serde(default)]
    memory: Memory,
    /// So many under way at once.
    #[serde(default)]
    concurrency: Option<Spanned<u32>>,
    /// Or so many a second, such as `"2 M/s"`, whenever they come.
    #[serde(default)]
    offered: Option<Spanned<String>>,
    /// Client machines; 1 if left out.
    #[serde(default)]
    clients: Option<Spanned<u32>>,
    /// Threads of each; 1 if left out, and never more than it has cores.
    #[serde(default)]
    threads: Option<Spanned<u32>>,
    /// The exponent of the zipfian by which clients ask for more or less than each other, from 0 (all alike) to 3.
    #[serde(default)]
    client_skew: Option<Spanned<f64>>,
    /// Queue pairs that the node's NIC serves; one for each thread if left out.
    #[serde(default)]
    connections: Option<Spanned<u64>>,
    /// The part of packets that are lost, from 0 to 0.1.
    #[serde(default)]
    loss: Option<Spanned<f64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileAccess {
    /// How many.
    count: Spanned<f64>,
    /// Bytes of each.
    size: Spanned<String>,
    /// What they do; reads if left out.
    #[serde(default)]
    kind: Option<Kind>,
    /// Whether each needs the one before; if not, all can be under way at once.
    #[serde(default)]
    dependent: Option<bool>,
}

/// The most accesses of one operation: as many as a call of a built-in kernel may make ([`remora_kernel::Limits`]). With more,
/// each of some thousand answers of the screen would take as long as all of them should.
const MOST_ACCESSES: f64 = 4096.0;
/// The most bytes of an access, a request or a reply: a message of RoCE has no more.
const MOST_BYTES: f64 = (1u64 << 31) as f64;
/// The most operations under way.
const MOST_CONCURRENCY: u32 = 1 << 16;
/// The most clients, the most threads of each, and the most queue pairs of a NIC.
const MOST_CLIENTS: u32 = 1024;
const MOST_CONNECTIONS: u64 = 10_000_000;
/// The largest exponent of the zipfian of clients.
const MOST_SKEW: f64 = 3.0;
/// The largest part of packets that may be lost: with more, nothing much arrives.
const MOST_LOSS: f64 = 0.1;

impl Operation {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self, OperationError> {
        let (file, text) = text_of(path, "operation", "studies/where", &TEMPLATES)?;
        Self::parse(&file, &text)
    }

    /// Parses a file's text; `file` is what messages call it.
    pub fn parse(file: &str, text: &str) -> Result<Self, OperationError> {
        let reader = Reader { file, text };
        let parsed: File = reader.parse()?;
        let reference = reader.optional(&parsed.reference, Dimension::Rate)?.unwrap_or(3e9);
        let cycles = match &parsed.compute {
            None => 0.0,
            Some(text) => match quantity(text.get_ref()) {
                Some((Dimension::Cycles, cycles)) => cycles,
                Some((Dimension::Time, picoseconds)) => picoseconds * 1e-12 * reference,
                _ => return Err(reader.at(text, "compute is cycles or a time, such as \"200 cycles\" or \"50 ns\"")),
            },
        };
        let accesses: Result<Vec<_>, _> = parsed.access.iter().map(|access| reader.access(access)).collect();
        let accesses = accesses?;
        let state = reader.value(&parsed.state, Dimension::Size)?;
        if let Some((text, _)) = parsed.access.iter().zip(&accesses).find(|(_, access)| access.bytes > state) {
            return Err(reader.at(&text.get_ref().size, "an access is larger than the state that it is to"));
        }
        let item = reader.optional(&parsed.item, Dimension::Size)?;
        let item = item.unwrap_or_else(|| accesses.iter().map(|access| access.bytes).fold(64.0, f64::max));
        let skew = parsed.skew.as_ref().map_or(0.0, |skew| *skew.get_ref());
        if let Some(text) = parsed.skew.as_ref().filter(|_| !(0.0..=3.0).contains(&skew)) {
            return Err(reader.at(text, "skew is the exponent of a zipfian, from 0 to 3"));
        }
        let writes = parsed.writes.as_ref().map_or(0.0, |writes| *writes.get_ref());
        if let Some(text) = parsed.writes.as_ref().filter(|_| !(0.0..=1.0).contains(&writes)) {
            return Err(reader.at(text, "writes is the part of operations that write, from 0 to 1"));
        }
        Ok(Self {
            clients: reader.clients(&parsed)?,
            title: parsed.title,
            accesses,
            request: reader.message(&parsed.request, "request")?,
            reply: reader.message(&parsed.reply, "reply")?,
            uneven: parsed.uneven,
            cycles,
            pipeline_cycles: reader.optional(&parsed.pipeline, Dimension::Cycles)?.unwrap_or(cycles),
            item: item.clamp(1.0, state.max(1.0)),
            state: state.max(1.0),
            skew,
            writes,
            memory: parsed.memory,
            load: reader.load(&parsed.concurrency, &parsed.offered)?,
        })
    }

    /// All accesses together.
    pub fn count(&self) -> f64 {
        self.accesses.iter().map(|access| access.count).sum()
    }

    /// The part of accesses that find their line in a cache of so many bytes that keeps the most popular items.
    pub fn hit_ratio(&self, cache: f64) -> f64 {
        let (items, cached) = ((self.state / self.item).max(1.0), (cache / self.item).max(0.0));
        if cached >= items {
            return 1.0;
        }
        // The zipfian's distribution function, with sums as integrals.
        let mass = |n: f64| match 1.0 - self.skew {
            power if power.abs() < 1e-6 => (n + 1.0).ln(),
            power => ((n + 1.0).powf(power) - 1.0) / power,
        };
        (mass(cached) / mass(items)).clamp(0.0, 1.0)
    }

    /// How often the most popular item is asked for.
    pub fn hottest(&self) -> f64 {
        self.hit_ratio(self.item)
    }
}

/// The text of a file or of a template, and what messages call it.
pub(super) fn text_of(
    path: &Path,
    what: &'static str,
    directory: &str,
    templates: &[(&str, &str)],
) -> Result<(String, String), OperationError> {
    let template = templates.iter().find(|(name, _)| path.as_os_str() == *name);
    if let Some((name, text)) = template.filter(|_| !path.exists()) {
        return Ok((format!("{directory}/{name}.toml"), text.to_string()));
    }
    let name = path.display().to_string();
    if !path.exists() {
        let known = templates.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        return Err(OperationError::NotFound { what, name, known });
    }
    match read_text(path) {
        Ok(text) => Ok((name, text)),
        Err(source) => Err(OperationError::Read { file: name, source }),
    }
}

/// Reads values of a file, and says in which line one is wrong.
pub(super) struct Reader<'a> {
    pub file: &'a str,
    pub text: &'a str,
}

impl Reader<'_> {
    /// What TOML of the right keys says.
    pub fn parse<T: serde::de::DeserializeOwned>(&self) -> Result<T, OperationError> {
        let at = |e: &toml::de::Error| e.span().map_or(0, |span| span.start);
        let is_platform = |table: &toml::Table| table.contains_key("placements");
        if self.text.parse().is_ok_and(|table| is_platform(&table)) {
            return Err(self.error(0, "this is a platform, no operation: name it by --on"));
        }
        toml::from_str(self.text).map_err(|e| self.error(at(&e), e.message().trim().replace('\n', " ")))
    }

    pub fn error(&self, offset: usize, problem: impl Into<String>) -> OperationError {
        let before = self.text.get(..offset).unwrap_or(self.text);
        OperationError::At { file: self.file.into(), line: before.matches('\n').count() + 1, problem: problem.into() }
    }

    fn at<T>(&self, what: &Spanned<T>, problem: impl Into<String>) -> OperationError {
        self.error(what.span().start, problem)
    }

    pub fn value(&self, text: &Spanned<String>, wanted: Dimension) -> Result<f64, OperationError> {
        match quantity(text.get_ref()) {
            Some((dimension, value)) if dimension == wanted => Ok(value),
            _ => {
                let units: Vec<_> = wanted.units().collect();
                let problem =
                    format!("{:?} is not {wanted}: write a number and one of {}", text.get_ref(), units.join(", "));
                Err(self.at(text, problem))
            }
        }
    }

    fn message(&self, text: &Spanned<String>, key: &str) -> Result<f64, OperationError> {
        let bytes = self.value(text, Dimension::Size)?;
        match bytes <= MOST_BYTES {
            true => Ok(bytes),
            false => Err(self.at(text, format!("{key} is at most 2 GiB, the longest message"))),
        }
    }

    pub fn optional(&self, text: &Option<Spanned<String>>, wanted: Dimension) -> Result<Option<f64>, OperationError> {
        text.as_ref().map(|text| self.value(text, wanted)).transpose()
    }

    fn access(&self, access: &Spanned<FileAccess>) -> Result<Access, OperationError> {
        let FileAccess { count, size, kind, dependent } = access.get_ref();
        let (bytes, count) = (self.value(size, Dimension::Size)?, (count, *count.get_ref()));
        if !(0.0..=MOST_ACCESSES).contains(&count.1) {
            return Err(self
                .at(count.0, format!("count is from 0 to {MOST_ACCESSES}; it need not be whole: an average is fine")));
        }
        if !(1.0..=MOST_BYTES).contains(&bytes) {
            return Err(self.at(size, "size is from 1 B to 2 GiB, the longest message: an access is one READ or WRITE"));
        }
        let kind = kind.unwrap_or(Kind::Read);
        Ok(Access { count: count.1, bytes, kind, dependent: dependent.unwrap_or(true) })
    }

    fn clients(&self, file: &File) -> Result<Clients, OperationError> {
        let usual = Clients::default();
        let clients = Clients {
            machines: file.clients.as_ref().map_or(usual.machines, |text| *text.get_ref()),
            threads: file.threads.as_ref().map_or(usual.threads, |text| *text.get_ref()),
            skew: file.client_skew.as_ref().map_or(usual.skew, |text| *text.get_ref()),
            connections: file.connections.as_ref().map(|text| *text.get_ref()),
            loss: file.loss.as_ref().map_or(usual.loss, |text| *text.get_ref()),
        };
        clients.check().map_err(|(key, what)| {
            let span = match key {
                "clients" => file.clients.as_ref().map(Spanned::span),
                "threads" => file.threads.as_ref().map(Spanned::span),
                "client_skew" => file.client_skew.as_ref().map(Spanned::span),
                "loss" => file.loss.as_ref().map(Spanned::span),
                _ => file.connections.as_ref().map(Spanned::span),
            };
            self.error(span.unwrap_or_default().start, format!("{key} {what}"))
        })?;
        Ok(clients)
    }

    fn load(&self, closed: &Option<Spanned<u32>>, open: &Option<Spanned<String>>) -> Result<Load, OperationError> {
        match (closed, open) {
            (Some(closed), None) if (1..=MOST_CONCURRENCY).contains(closed.get_ref()) => {
                Ok(Load::Closed(*closed.get_ref()))
            }
            (Some(closed), None) => Err(self.at(closed, format!("concurrency is from 1 to {MOST_CONCURRENCY}"))),
            (None, Some(open)) => Ok(Load::Open(self.value(open, Dimension::Rate)?)),
            (Some(closed), Some(_)) => Err(self.at(closed, "give concurrency or offered, not both")),
            (None, None) => Ok(Load::Closed(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: &str = "title = \"a GET\"\nrequest = \"28 B\"\nreply = \"64 B\"\nstate = \"1 GiB\"\nskew = 0.99\n\
                       compute = \"100 ns\"\nreference = \"2 GHz\"\nconcurrency = 16\n\
                       [[access]]\ncount = 1\nsize = \"64 B\"\n[[access]]\ncount = 1\nsize = \"128 B\"\n";

    #[test]
    fn a_file_becomes_an_operation() {
        let get = Operation::parse("get.toml", GET).unwrap();
        assert_eq!((get.count(), get.request, get.cycles), (2.0, 28.0, 200.0));
        assert_eq!((get.item, get.load), (128.0, Load::Closed(16)));
        assert!(get.accesses.iter().all(|access| access.dependent && access.kind == Kind::Read));
    }

    #[test]
    fn mistakes_name_the_line() {
        for (from, to, expected) in [
            (
                "reply = \"64 B\"",
                "reply = \"64\"",
                "x.toml, line 3: \"64\" is not a size: write a number and one of B, ",
            ),
            ("reply = \"64 B\"", "reply = \"64 ns\"", "line 3: \"64 ns\" is not a size"),
            ("skew = 0.99", "skew = 9", "line 5: skew is"),
            ("size = \"128 B\"", "size = \"3 GiB\"", "line 14: size is from 1 B to 2 GiB"),
            ("size = \"128 B\"", "size = \"0 B\"", "line 14: size is from 1 B to 2 GiB"),
            ("size = \"128 B\"", "size = \"2 GiB\"", "line 14: an access is larger than the state"),
            ("reply = \"64 B\"", "reply = \"999 TB\"", "line 3: reply is at most 2 GiB"),
            ("skew = 0.99", "writes = 2", "line 5: writes is the part"),
            ("skew = 0.99", "screw = 1", "line 5: unknown field `screw`"),
            ("count = 1\nsize = \"128 B\"", "count = -1\nsize = \"128 B\"", "line 13: count is from 0"),
            ("concurrency = 16", "concurrency = 0", "line 8: concurrency is from 1"),
            ("concurrency = 16", "offered = \"2\"", "line 8: \"2\" is not a frequency"),
            ("concurrency = 16", "concurrency = 16\noffered = \"2 M/s\"", "line 8: give concurrency or offered"),
            ("compute = \"100 ns\"", "compute = \"100 B\"", "line 6: compute is cycles or a time"),
            ("skew = 0.99", "clients = 0", "line 5: clients are from 1"),
            ("skew = 0.99", "loss = 0.5", "line 5: loss is the part"),
            ("skew = 0.99", "clients = 4\nthreads = 2\nconnections = 7", "line 7: connections are from 8"),
            ("request = \"28 B\"\n", "", "missing field `request`"),
        ] {
            let message = Operation::parse("x.toml", &GET.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}\nshould say: {expected}");
        }
        let platform = Operation::parse("p.toml", "name = \"p\"\n[placements]\nclient = \"core\"\n").unwrap_err();
        assert!(platform.to_string().contains("this is a platform, no operation: name it by --on"), "{platform}");
    }

    #[test]
    fn clients_share_the_load_by_their_skew() {
        let get = |more: &str| Operation::parse("get.toml", &GET.replacen("skew = 0.99", more, 1)).unwrap().clients;
        assert_eq!(get(""), Clients::default());
        let many = get("clients = 4\nthreads = 2\nclient_skew = 1.0\nloss = 0.001");
        assert_eq!((many.queue_pairs(), many.loss), (8, 0.001));
        // 1, 1/2, 1/3 and 1/4 of 25/12.
        assert!((many.shares()[0] - 12.0 / 25.0).abs() < 1e-9, "{:?}", many.shares());
        assert_eq!(get("connections = 100000").queue_pairs(), 100_000);
    }

    #[test]
    fn hit_ratios_follow_the_zipfian() {
        let mut get = Operation::parse("get.toml", GET).unwrap();
        get.skew = 0.0;
        assert!((get.hit_ratio(get.state / 4.0) - 0.25).abs() < 1e-3, "a quarter of uniform accesses");
        assert_eq!((get.hit_ratio(get.state), get.hit_ratio(2.0 * get.state)), (1.0, 1.0));
        get.skew = 0.99;
        let skewed = get.hit_ratio(get.state / 100.0);
        assert!((0.6..0.9).contains(&skewed), "a hundredth of the items gets most of a zipfian: {skewed}");
        assert!(get.hottest() > 0.02 && get.hottest() < 0.1, "{}", get.hottest());
    }
}

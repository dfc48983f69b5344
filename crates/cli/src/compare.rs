//! `remora compare`.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use clap::ArgMatches;
use clap::parser::ValueSource;
use remora_kernel::Placement;
use remora_lab::probe::Probe;
use remora_model::platform::Platform;
use remora_model::world;
use remora_real::{Client, ClientConfig, LinkKind, at_free_loopback, at_local};
use remora_study::auto::{self, AutoRow, AutoTrace, Neighbour};
use remora_study::baseline::{Baseline, Since};
use remora_study::compare::{Plan, Watch as _, compare_auto, timed};
use remora_study::connection::{Connection, open_rings};
use remora_study::machine::Machine;
use remora_study::measure::{Keep, Row};
use remora_study::nodes::NodeProcess;
use remora_study::on::{OnCut, OnError, OnPlatform, compare_on};
use remora_study::operations::Operation;
use remora_study::records::{InputError, Records};
use remora_study::report::{Report, Setup, html, table};
use remora_study::store::Store;
use remora_study::trace::Trace;
use remora_study::validate::{Data, predict};
use remora_study::{MeasuredRows, StudyError, workload};

use crate::Failure;
use crate::args;
use crate::capture::Capture;
use crate::output::{cannot_write, now_unix_s, write};
use crate::progress::{Display, detail, stop_flag};
use crate::quantity::in_memory;

/// How long each probe of the machine runs.
const PROBE: Duration = Duration::from_millis(120);

/// What a run on modelled hardware alone has no use for, by the names of options.
const REAL: [&str; 8] = ["links", "mtu", "rings", "node", "local", "pcap", "histograms", "samples"];
/// What a kernel gets.
const OF_KERNELS: [&str; 7] = ["args", "data", "fuel", "module_memory", "accesses", "traffic", "fresh"];

/// Refuses options that would do nothing beside the others: `matches` are those of the command line.
pub fn refuse_idle(matches: &ArgMatches) -> Result<(), Failure> {
    let given = |name: &&str| matches.value_source(name) == Some(ValueSource::CommandLine);
    let on = given(&"on") && !given(&"both");
    let rules = [
        (on, &REAL[..], "is for a run on this machine: add --both, or leave out --on or"),
        (!given(&"kernel"), &OF_KERNELS, "is for a kernel of your own: add --kernel, or leave out"),
        (!given(&"baseline"), &["tolerance"], "is for changes since an earlier run: add --baseline, or leave out"),
    ];
    for (holds, names, why) in rules {
        if let Some(name) = names.iter().find(|name| holds && given(name)) {
            let flag = format!("--{}", name.replace('_', "-"));
            return Err(Failure::Usage(format!("{flag} {why} {flag}")));
        }
    }
    Ok(())
}

/// The places that were named, of those that the platform has, or all of these.
pub fn places_on(args: &args::Compare, platform: &Platform) -> Result<Vec<Placement>, Failure> {
    let all = world::placements(platform);
    match args.strange(&all) {
        // For the run on this machine, which is asked for too.
        Some(place) if !args.both || !Placement::REAL.contains(&place) => {
            let names: Vec<_> = all.iter().map(|place| place.name()).collect();
            let (name, names) = (&platform.name, names.join(", "));
            Err(Failure::Usage(format!("{name} has no place {place}: --placements takes {names} there")))
        }
        _ => Ok(args.places(&all)),
    }
}

/// Bytes of a generated record beside its value, at most: its key, and where it lies.
pub const RECORD: u64 = 56;

/// Compares, prints the table, writes the reports.
pub fn run(args: &args::Compare) -> Result<(), Failure> {
    if let Some(place) = args.strange(&Placement::REAL) {
        let hint = match (&args.on, args.both) {
            (None, _) => "name a platform that has by --on",
            (_, true) if !args.names_one_of(&Placement::REAL) => "leave out --both, or name client, nic or host too",
            _ => "",
        };
        if !hint.is_empty() {
            return Err(Failure::Usage(format!("this machine has no place {place}: {hint}")));
        }
    }
    if args.auto() && args.kernel.is_some() {
        return Err(Failure::Usage(
            "auto chooses no place for a kernel of your own: leave out --kernel, or auto of --placements".into(),
        ));
    }
    if args.prior.is_some() && !args.auto() {
        return Err(Failure::Usage("--prior is for auto: add --placements auto".into()));
    }
    if let Some(file) = &args.kernel {
        page_can_be_written(args)?;
        if let Some(name) = &args.on {
            crate::compare_kernel_on::run(args, file, name)?;
            if !args.both {
                return Ok(());
            }
        }
        return crate::compare_kernel::run(args, file);
    }
    let stop = stop_flag();
    let display = Display::new(stop);
    let by_trace = |operation: &&Operation| operation.is_measured(true) && !operation.is_measured(false);
    if let Some(operation) = args.operations.iter().flatten().find(by_trace).filter(|_| args.trace.is_none()) {
        return Err(Failure::Usage(format!("{} needs --trace, the file with its keys", operation.name())));
    }
    // What can be wrong with files shows before anything is started.
    args.json.file().map_or(Ok(()), writable)?;
    page_can_be_written(args)?;
    let baseline = match &args.baseline[..] {
        [] => None,
        files => Some(Baseline::load(files, args.tolerance / 100.0).map_err(bad_file)?),
    };
    let prior = args.prior.as_deref().map(crate::validate::probed).transpose()?;
    let capture = Capture::open(args.pcap.as_deref())?;
    let platform = args.on.as_deref().map(|name| platform(args, name)).transpose()?;
    if let Some(path) = &args.trace {
        // Its keys are looked up in records, which take a while to make.
        File::open(path).map_err(|source| bad_file(InputError::Read { path: path.clone(), source }))?;
    }
    let records = match &args.load {
        Some(path) => Records::load(path).map_err(bad_file)?,
        None => {
            in_memory("--records", u64::from(args.records) * (u64::from(args.value_bytes) + RECORD))?;
            Records::generate(args.records.into(), args.value_bytes as usize, args.seed)
        }
    };
    let trace = args.trace.as_ref().map(|path| Trace::load(path, &records.index())).transpose().map_err(bad_file)?;
    let (modelled, cut) = match &platform {
        Some(platform) => on_platform(args, platform, &records, trace.clone(), &display)?,
        None => (None, None),
    };
    if modelled.is_some() && (!args.both || cut.is_some()) {
        display.clear();
        let setup = setup(args, &records, trace.as_ref());
        let report = Report::new(command(), now_unix_s(), setup, Machine::describe(), Vec::new());
        let incomplete = cut.as_ref().map(|(_, missing)| missing.clone());
        publish(args, &Report { modelled, incomplete, ..report })?;
        return cut.map_or(Ok(()), |(error, _)| Err(error.into()));
    }

    display.say("probing the machine");
    let mut machine = probe();
    let Connected { node, mut clients, child } = connect(args, &capture, &display)?;
    let report = measure(args, (&records, prior.as_ref()), trace, (node, child.is_some()), &mut clients, &display);
    display.clear();
    // Clients take leave before the node goes.
    drop(clients);
    drop(child);
    drop(capture);
    let (setup, measured, Chosen { auto, traces: auto_traces }) = report?;
    machine.core_to_core_after_ns = Probe { time: PROBE }.cache_line_ns();
    let rest = "those that are there may be of less time than was asked for";
    let incomplete = measured.missing("figures").map(|missing| format!("{missing}, and {rest}"));
    let MeasuredRows { rows, cut, .. } = measured.or_nothing()?;
    let report = Report {
        incomplete,
        modelled,
        auto,
        auto_traces,
        ..Report::new(command(), now_unix_s(), setup, machine, rows)
    };
    let since = baseline.map(|baseline| baseline.compare(&report)).transpose().map_err(bad_file)?;
    let report = Report { since, ..report };
    publish(args, &report)?;
    match (cut, report.since.as_ref().and_then(Since::worse)) {
        (Some(error), _) => Err(error.into()),
        (None, Some(worse)) => Err(Failure::Failed(worse)),
        (None, None) => Ok(()),
    }
}

/// The platform of that name, or of that file, if operations can run on it.
fn platform(args: &args::Compare, name: &str) -> Result<Platform, Failure> {
    let platform = Platform::load(name).map_err(|e| Failure::Usage(e.to_string()))?;
    if platform.software.is_some() && platform.nic.is_none() {
        let what = format!("{name} is what `remora probe` has written, whose NIC is software and not modelled: ask");
        return Err(Failure::Usage(format!(
            "{what} `remora where OPERATION --on {name}` or `remora validate --probe {name}`"
        )));
    }
    places_on(args, &platform).map(|_| platform)
}

/// The operations on modelled hardware.
fn on_platform(
    args: &args::Compare,
    platform: &Platform,
    records: &Records,
    trace: Option<Trace>,
    display: &Display,
) -> Result<(Option<OnPlatform>, Option<OnCut>), Failure> {
    let plan = Plan { placements: places_on(args, platform)?, ..plan(args) };
    let (on, cut) = compare_on(platform, &plan, records, trace, display)?;
    Ok((Some(on), cut))
}

impl From<OnError> for Failure {
    fn from(error: OnError) -> Self {
        match error {
            OnError::Study(error) => error.into(),
            OnError::Model(error) => Self::Failed(error.to_string()),
        }
    }
}

fn bad_file(error: InputError) -> Failure {
    match error {
        InputError::Read { .. } => Failure::Failed(error.to_string()),
        _ => Failure::Usage(error.to_string()),
    }
}

/// Whether the page can be written, if one is wanted.
fn page_can_be_written(args: &args::Compare) -> Result<(), Failure> {
    if args.no_html {
        return Ok(());
    }
    writable(&args.html).map_err(|failure| match failure {
        Failure::Failed(why) => Failure::Failed(format!("{why}; --html FILE names another place, --no-html none")),
        other => other,
    })
}

/// Whether a file can be written. Leaves everything as it is.
fn writable(path: &Path) -> Result<(), Failure> {
    let result = match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(_) => std::fs::remove_file(path),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => OpenOptions::new().append(true).open(path).map(drop),
        Err(e) => Err(e),
    };
    result.map_err(|e| cannot_write(path, &e))
}

fn probe() -> Machine {
    let probe = Probe { time: PROBE };
    // What ran before is described before the probes run themselves.
    let machine = Machine::describe();
    let core_to_core_before_ns = probe.cache_line_ns();
    Machine { core_to_core_before_ns, raw_udp_ns: probe.udp_ns(64).ok(), ..machine }
}

/// A node and a client for each link.
struct Connected {
    clients: Vec<Client>,
    node: IpAddr,
    child: Option<NodeProcess>,
}

fn connect(args: &args::Compare, capture: &Capture, display: &Display) -> Result<Connected, Failure> {
    let wanted = if args.links.is_empty() { vec![LinkKind::Udp, LinkKind::Shm] } else { args.links.clone() };
    let (node, child) = match args.node {
        Some(node) => (node, None),
        None if args.links.contains(&LinkKind::Packet) => {
            return Err(Failure::Usage("the packet link is for two machines: give --node".into()));
        }
        None => {
            let node = at_free_loopback(Ok)?;
            (node, Some(NodeProcess::start_captured(node, args.pcap.as_deref())?))
        }
    };
    let mut clients = Vec::new();
    for (n, &link) in wanted.iter().enumerate() {
        if wanted[..n].contains(&link) {
            return Err(Failure::Usage("name each link once in --links".into()));
        }
        let local = args.local.map_or_else(|| at_local(node, Ok), Ok)?;
        let layers = capture.layers();
        let config = ClientConfig { link: Some(link), layers, mtu: args.mtu, ..ClientConfig::new(node, local) };
        match Client::connect(config) {
            Ok(client) => {
                let mtu = client.path_mtu();
                detail(|| format!("{local} to {node} over {link}, path MTU {mtu}"));
                clients.push(client);
            }
            Err(e) if args.links.is_empty() && link == LinkKind::Shm => {
                display.say(&format!("without shared memory: {e}"))
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(Connected { clients, node, child })
}

fn measure(
    args: &args::Compare,
    (records, prior): (&Records, Option<&Platform>),
    trace: Option<Trace>,
    (node, node_is_child): (IpAddr, bool),
    clients: &mut [Client],
    display: &Display,
) -> Result<(Setup, MeasuredRows<Row>, Chosen), Failure> {
    let (plan, set_up) = (plan(args), setup(args, records, trace.as_ref()));
    if plan.rings {
        open_rings(clients)?;
    }
    let path_mtu = clients.iter().map(|client| (client.link().to_string(), client.path_mtu())).collect();
    let mut targets: Vec<&mut dyn Connection> =
        clients.iter_mut().map(|client| client as &mut dyn Connection).collect();
    // The last one is shared memory if there is any: the fastest way in.
    let Some(last) = targets.last_mut() else { return Err(Failure::Usage("give at least one link".into())) };
    let (store, load_s) = timed(|| Store::load(*last, &plan, records, trace, display));
    let store = store?;
    let on_the_node = if plan.auto { auto::on_the_node(&store) } else { Vec::new() };
    if !on_the_node.is_empty() {
        let names: Vec<&str> = on_the_node.iter().map(|operation| operation.name()).collect();
        let why = "auto writes on the node, as a client writes only a tree that it owns";
        args.json.print(&format!("{}: {why}\n\n", names.join(", ")))?;
    }
    if let Some(platform) = prior {
        let links: Vec<_> = targets.iter().map(|target| target.link()).collect();
        let predicted =
            predict(platform, &Data::new(records, &plan), &store.operations(), &links, (&plan.placements, false));
        let predicted = predicted.unwrap_or_default();
        targets.iter_mut().for_each(|target| auto::set_priors(&mut **target, &store, &predicted));
    }
    let ((compared, auto), measure_s) = timed(|| compare_auto(&mut targets, &plan, &store, display));
    let mut chosen = Chosen { auto, traces: Vec::new() };
    if plan.auto && compared.cut.is_none() {
        // The store's owner alone may have its values changed.
        display.say("a trace that changes");
        let each = plan.time * auto::STRETCH;
        if let Some(target) = targets.last_mut() {
            let (link, places) = (target.link().to_string(), (&plan.placements[..], each));
            // Nobody else's node is kept busy.
            let neighbour = node_is_child.then(|| -> Result<_, StudyError> {
                Neighbour::start(at_local(node, |local| Client::connect(ClientConfig::new(node, local)))?)
            });
            let neighbour = neighbour.transpose()?;
            let trace =
                auto::trace::<_, StudyError>(&mut **target, link, places, &plan, &store, neighbour.as_ref(), &|| {
                    display.stop()
                })?;
            chosen.traces.extend(trace);
        }
    }
    let set_up = Setup { node: node.to_string(), node_is_child, path_mtu, load_s, measure_s, ..set_up };
    Ok((set_up, compared, chosen))
}

/// What a client did that chooses places.
struct Chosen {
    auto: Vec<AutoRow>,
    traces: Vec<AutoTrace>,
}

/// What was asked for.
fn setup(args: &args::Compare, records: &Records, trace: Option<&Trace>) -> Setup {
    let plan = plan(args);
    let (trace_gets, misses) = trace.map_or((0, 0), |trace| (trace.len(), trace.expected_misses()));
    Setup {
        seed: args.seed,
        records: records.len() as u64,
        load: args.load.as_ref().map(|path| path.display().to_string()),
        longest_value_bytes: records.longest_value() as u64,
        distribution: if args.trace.is_some() { "trace" } else { plan.distribution.name() }.into(),
        trace: args.trace.as_ref().map(|path| path.display().to_string()),
        trace_gets: trace_gets as u64,
        trace_expected_misses: misses as u64,
        cell_s: plan.time.as_secs_f64(),
        writer_updates_per_s: plan.writer_updates_per_s,
        ..Setup::default()
    }
}

fn plan(args: &args::Compare) -> Plan {
    Plan {
        seed: args.seed,
        distribution: match args.distribution {
            args::Distribution::Zipfian => workload::Distribution::Zipfian,
            args::Distribution::Uniform => workload::Distribution::Uniform,
        },
        time: args.seconds,
        operations: args.operations.iter().flatten().copied().collect(),
        placements: args.places(&Placement::REAL),
        auto: args.auto(),
        writer_updates_per_s: args.writer_rate,
        rings: args.rings,
        keep: Keep { histogram: args.histograms, samples: args.samples },
    }
}

/// The command line, to run it again.
pub fn command() -> String {
    std::iter::once("remora".into()).chain(crate::words().into_iter().map(quoted)).collect::<Vec<_>>().join(" ")
}

/// A word as a shell takes it.
fn quoted(word: String) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:,=+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word,
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

fn publish(args: &args::Compare, report: &Report) -> Result<(), Failure> {
    // What was measured is on the screen before anything can go wrong with a file.
    args.json.show(&table(report), || report.to_json())?;
    if let Some(path) = args.json.file() {
        args.json.print(&format!("All figures: {}\n", path.display()))?;
    }
    if !args.no_html {
        write(&args.html, html(report).as_bytes())?;
        args.json.print(&format!("Report with plots: {}\n", args.html.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_shell_takes_words_as_they_were() {
        for word in ["", "a b", "it's", "$HOME", "a;b", "*", "a\"b", "plain-1.tsv", "key,u32:10,va+8", "größe"] {
            let line = format!("printf %s {}", quoted(word.into()));
            let said = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(String::from_utf8(said.stdout).unwrap(), word);
        }
        assert_eq!(quoted("--load=a.tsv".into()), "--load=a.tsv");
    }
}

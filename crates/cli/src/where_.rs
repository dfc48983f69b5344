//! `remora where`.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use clap::builder::TypedValueParser;
use remora_kernel::Placement;
use remora_model::platform::{NicDevice, Platform};
use remora_real::LinkKind;
use remora_study::format::{rate, time, wrap};

use remora_study::where_::rack::RACK_TEMPLATES;
use remora_study::where_::{
    self, Answer, Candidate, Clients, Goal, Operation, OperationError, WhereOptions, curves, decide_until, draw, notes,
    rank,
};

use crate::args::one_of;
use crate::output::{self, Json};
use crate::progress::{Display, stop_flag};
use crate::quantity::{self, up_to};
use crate::{Failure, where_rack};

const EXAMPLES: &str = "\
Examples:
  remora where list --on strom-10g
  remora where btree --on bluefield2 --explain
  remora where get --on rambda --load --clients 20 --connections 10k
  remora where --audit 1000                      how far answers go, beside the engine
  remora where get --on rambda --on bluefield2 --by rate --csv get.csv
  remora probe --out here.toml && remora where my.toml --on here.toml --link shm
  remora where get --on here.toml --engines 16 --by rate
      what a node of 16 engines would serve
  remora where rack all-reduce --on dfabric --ratio 8
      how many NICs two racks should pool";

/// WhereOptions of `remora where`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Where {
    #[command(subcommand)]
    what: Option<WhereCommand>,
    /// The operation: btree, counter, embedding, get, list, scan, or a TOML file (docs/formats.md)
    #[arg(value_name = "OP", required_unless_present = "audit")]
    pub operation: Option<PathBuf>,
    /// A built-in platform (see `remora platform list`) or a platform file; may be given more than once
    #[arg(long, value_name = "PLATFORM", required_unless_present = "audit")]
    pub on: Vec<String>,
    /// Hold answers against the engine over so many random operations on the built-in platforms: how far they go
    #[arg(long, value_name = "N", conflicts_with_all = ["operation", "on", "csv", "explain", "load", "clients", "threads", "client_skew", "connections", "loss"], value_parser = up_to::<u32>(1..=1_000_000))]
    pub audit: Option<u32>,
    /// Client machines, instead of what the operation says
    #[arg(long, value_name = "N", value_parser = up_to::<u32>(0..=i64::from(u32::MAX)))]
    pub clients: Option<u32>,
    /// Threads of each client
    #[arg(long, value_name = "N", value_parser = up_to::<u32>(0..=i64::from(u32::MAX)))]
    pub threads: Option<u32>,
    /// The exponent of the zipfian by which clients ask for more or less than each other, from 0 to 3
    #[arg(long, value_name = "S")]
    pub client_skew: Option<f64>,
    /// Queue pairs that the node's NIC serves [default: one for each thread]
    #[arg(long, value_name = "N", value_parser = quantity::count)]
    pub connections: Option<u64>,
    /// The part of packets that are lost, from 0 to 0.1
    #[arg(long, value_name = "PART")]
    pub loss: Option<f64>,
    /// Draw each place's latency against load, and say what is full first
    #[arg(long)]
    pub load: bool,
    /// What decides
    #[arg(long, value_enum, default_value = "latency")]
    pub by: By,
    /// The link, on a platform that `remora probe` wrote [default: udp]
    #[arg(long, value_parser = link())]
    pub link: Option<LinkKind>,
    /// Engines of the node, on a platform that `remora probe` wrote: each on a core of its own, and as many clients
    #[arg(long, value_name = "N", default_value = "1", value_parser = up_to::<u16>(1..=256))]
    pub engines: u16,
    /// Points at which the open values are tried together
    #[arg(long, value_name = "N", default_value = "256", value_parser = up_to::<u32>(1..=100_000))]
    pub points: u32,
    /// Operations to simulate for each placement that lies close by the screen, which is formulas; 0 is the screen alone
    #[arg(long, value_name = "N", default_value = "20000", value_parser = up_to::<u32>(0..=10_000_000))]
    pub simulate: u32,
    /// Flip points to print
    #[arg(long, value_name = "N", default_value = "6", value_parser = up_to::<usize>(0..=1000))]
    pub flips: usize,
    /// Tell what each place's latency is made of, and which values it follows from
    #[arg(long)]
    pub explain: bool,
    /// Seed of every random choice
    #[arg(long, value_name = "N", default_value = "42", value_parser = quantity::count)]
    pub seed: u64,
    /// Figures for programs.
    #[command(flatten)]
    pub json: Json,
    /// Also write a line for each platform and placement as CSV
    #[arg(long, value_name = "FILE", value_parser = crate::output::file())]
    pub csv: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum WhereCommand {
    /// How many NICs two racks should pool for what their nodes do, and when the pool's memory binds
    #[command(after_help = where_rack::EXAMPLES)]
    Rack(where_rack::WhereRack),
}

/// What decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// The median latency under the operation's load.
    Latency,
    /// Operations a second at saturation.
    Rate,
    /// Operations per joule.
    Energy,
}

/// A link of the software NIC, by its name.
fn link() -> impl TypedValueParser<Value = LinkKind> {
    one_of([(LinkKind::Udp.name(), "RoCE v2 over UDP"), (LinkKind::Shm.name(), "Shared memory")])
}

impl From<OperationError> for Failure {
    fn from(error: OperationError) -> Self {
        match error {
            OperationError::Read { .. } | OperationError::NotFound { .. } => Self::Failed(error.to_string()),
            OperationError::At { .. } => Self::Usage(error.to_string()),
        }
    }
}

/// Holds answers against the engine.
fn audit(args: &Where, operations: u64) -> Result<(), Failure> {
    let display = Display::new(stop_flag());
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let found = where_::audit(operations, args.seed, jobs, &mut |done, all| {
        display.part(&format!("{done} of {all} operations"), done as f64 / all as f64);
        !display.stopped()
    });
    display.clear();
    let found = found.map_err(crate::reproduce::failure)?;
    let incomplete =
        found.cut.then(|| format!("interrupted; {} of {operations} operations are here", found.operations));
    let text = output::not_complete(incomplete.as_deref()) + &found.table();
    args.json.show(&text, || {
        serde_json::json!({
            "format": "remora-where-audit/1",
            "version": env!("REMORA_VERSION"),
            "seed": args.seed,
            "audit": found,
            "incomplete": incomplete,
        })
    })?;
    if found.cut { Err(Failure::Interrupted) } else { Ok(()) }
}

/// Who asks: as the operation says, but for what is given.
fn clients(args: &Where, of: Clients) -> Result<Clients, Failure> {
    let clients = Clients {
        machines: args.clients.unwrap_or(of.machines),
        threads: args.threads.unwrap_or(of.threads),
        skew: args.client_skew.unwrap_or(of.skew),
        connections: args.connections.or(of.connections),
        loss: args.loss.unwrap_or(of.loss),
    };
    let wrong = |(key, what): (&str, String)| Failure::Usage(format!("--{} {what}", key.replace('_', "-")));
    clients.check().map(|()| clients).map_err(wrong)
}

/// Decides for each platform, prints the answers.
pub fn run(args: &Where) -> Result<(), Failure> {
    if let Some(WhereCommand::Rack(args)) = &args.what {
        return where_rack::run(args);
    }
    if let Some(operations) = args.audit {
        return audit(args, operations.into());
    }
    let operation = args.operation.as_deref().unwrap_or(Path::new(""));
    if let Some((name, _)) =
        RACK_TEMPLATES.iter().find(|(name, _)| operation.as_os_str() == *name && !operation.exists())
    {
        return Err(Failure::Usage(format!("{name} is a workload of racks: `remora where rack {name}`")));
    }
    let mut operation = Operation::load(operation)?;
    operation.clients = clients(args, operation.clients)?;
    let platforms: Result<Vec<_>, _> = args.on.iter().map(|name| Platform::load(name)).collect();
    let options = WhereOptions {
        goal: match args.by {
            By::Latency => Goal::Latency,
            By::Rate => Goal::Rate,
            By::Energy => Goal::Energy,
        },
        link: args.link.unwrap_or(LinkKind::Udp),
        engines: args.engines,
        points: args.points as usize,
        simulated: args.simulate,
        flips: args.flips,
        seed: args.seed,
        ..WhereOptions::default()
    };
    let display = Display::new(stop_flag());
    let (mut text, mut answers, mut csv) = (String::new(), Vec::new(), CSV_HEAD.to_string());
    let platforms = platforms?;
    let software = |platform: &Platform| platform.placements.nic == Some(NicDevice::Software);
    let given = match (args.engines > 1, args.link.is_some()) {
        (true, _) => Some("--engines"),
        (_, true) => Some("--link"),
        _ => None,
    };
    if let Some((what, other)) = given.zip(platforms.iter().find(|platform| !software(platform))) {
        let why = format!("{what} is for a platform that `remora probe` wrote; {} has hardware", other.name);
        return Err(Failure::Usage(why));
    }
    let begun = Instant::now();
    for (n, platform) in platforms.iter().enumerate() {
        let watch = |part: f64| {
            // What is over sooner needs no bar.
            if begun.elapsed() > SOON {
                display.part_since(begun, &platform.name, (n as f64 + part) / platforms.len() as f64);
            }
            display.stopped()
        };
        if watch(0.0) {
            break;
        }
        if let Some(missing) = where_::missing(platform, &operation, options.goal) {
            return Err(Failure::Usage(missing));
        }
        let start = Instant::now();
        let Some(answer) = decide_until(platform, &operation, &options, &watch) else {
            return Err(Failure::Usage(format!("{} has no placement", platform.name)));
        };
        let _ = writeln!(
            text,
            "{}",
            show(args, (platform, &operation), (&answer, &options), start.elapsed().as_secs_f64())
        );
        let curves = if args.load { curves(platform, &operation, &answer.ranking, &options) } else { Vec::new() };
        if args.load {
            text += &draw(&curves);
            text.push('\n');
        }
        if args.explain {
            text += &explain(platform, &operation, &answer, &options);
        }
        csv += &csv_lines(&operation.title, &platform.name, &answer);
        answers.push(serde_json::json!({
            "platform": platform.name,
            "values": platform.params.shares(),
            "answer": answer,
            "curves": curves,
        }));
    }
    display.clear();
    let incomplete = display.stopped().then(|| {
        let (told, all) = (answers.len(), platforms.len());
        format!("interrupted; {told} of {all} platforms are here, and the last one may lack simulations")
    });
    if answers.is_empty() {
        return Err(Failure::Interrupted);
    }
    text.insert_str(0, &output::not_complete(incomplete.as_deref()));
    args.json.show(&text, || {
        serde_json::json!({
            "format": "remora-where/1",
            "version": env!("REMORA_VERSION"),
            "operation": operation.title,
            "seed": args.seed,
            "answers": answers,
            "incomplete": incomplete,
        })
    })?;
    if let Some(path) = &args.csv {
        output::write(path, csv.as_bytes())?;
    }
    match incomplete {
        Some(_) => Err(Failure::Interrupted),
        None => Ok(()),
    }
}

/// An answer that takes longer says how far it is.
const SOON: Duration = Duration::from_secs(2);

const CSV_HEAD: &str = "operation,platform,place,alone_ns,p50_ns,p99_ns,p50_low_ns,p50_high_ns,ops_per_s,\
    saturation_per_s,ops_per_joule,binding,utilisation,simulated_p50_ns,simulated_p99_ns,simulated_ops_per_s\n";

/// A line for each placement, the best first. What is not known or was not simulated is empty.
fn csv_lines(operation: &str, platform: &str, answer: &Answer) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let mut out = String::new();
    for (candidate, interval) in answer.ranking.iter().zip(&answer.intervals) {
        let Candidate { place, alone_ns, p50_ns, p99_ns, ops_per_s, saturation_per_s, utilisation, .. } = candidate;
        let (low, high) = interval.p50_ns;
        let joule = candidate.ops_per_joule.map_or(String::new(), |ops| ops.to_string());
        let simulated = answer.simulated.iter().find(|run| run.place == *place);
        let simulated = simulated.map_or(",,".into(), |run| format!("{},{},{}", run.p50_ns, run.p99_ns, run.ops_per_s));
        let _ = writeln!(
            out,
            "{},{},{place},{alone_ns},{p50_ns},{p99_ns},{low},{high},{ops_per_s},{saturation_per_s},{joule},{},\
             {utilisation},{simulated}",
            quoted(operation),
            quoted(platform),
            quoted(candidate.binding)
        );
    }
    out
}

fn show(
    args: &Where,
    (platform, operation): (&Platform, &Operation),
    (answer, options): (&Answer, &WhereOptions),
    seconds: f64,
) -> String {
    let mut out = String::new();
    wrap(&mut out, 0, "", &format!("{} on {} ({})", operation.title, platform.name, platform.title));
    wrap(&mut out, 0, "", &answer.line);
    out.push('\n');
    candidates(&mut out, answer);
    simulations(&mut out, answer);
    for note in notes(operation, options.goal, answer) {
        wrap(&mut out, 0, "", &note);
    }
    if let [best, ..] = &answer.ranking[..] {
        let parts: Vec<_> = best.parts.iter().map(|(what, ns)| format!("{what} {}", time(*ns))).collect();
        out.push('\n');
        wrap(&mut out, 0, "", &format!("{} alone: {}", best.place, parts.join(", ")));
        if !answer.flips.is_empty() && args.flips > 0 {
            out += "\nWhat would have to change:\n";
        }
        for flip in answer.flips.iter().take(args.flips) {
            wrap(&mut out, 2, "", &flip.line(best.place));
        }
    }
    if !answer.contributions.is_empty() {
        let certainty = answer.certainty * 100.0;
        out.push_str("\nOpen values that matter:\n");
        let points =
            format!("(best at {certainty:.0} % of {} points of a Latin hypercube, seed {})", args.points, args.seed);
        wrap(&mut out, 2, "", &points);
        for value in answer.contributions.iter().take(4) {
            let ((low, high), swing) = (&value.range, value.swing * 100.0);
            let (path, status) = (&value.path, value.status);
            let text = format!("{path} from {low} to {high} ({status}) moves the first two by {swing:.0} %");
            wrap(&mut out, 2, "", &text);
        }
    }
    out.push('\n');
    wrap(
        &mut out,
        0,
        "",
        &format!(
            "{}; {seconds:.2} s. {}",
            platform.params.shares_text(),
            left_out(platform, &operation.clients, args.engines)
        ),
    );
    out
}

/// How many values a place's explanation names.
const EXPLAINED: usize = 8;

/// Place by place: the parts of the latency alone, and the values that it follows, by how much a tenth more of each moves
/// it.
fn explain(platform: &Platform, operation: &Operation, answer: &Answer, options: &WhereOptions) -> String {
    let mut out = String::from("Explained, place by place, for an operation that has everything for itself\n");
    let moved = moves(platform, operation, options);
    for candidate in &answer.ranking {
        let _ = writeln!(out, "\n{}: {}", candidate.place, time(candidate.alone_ns));
        for (what, ns) in &candidate.parts {
            let share = 100.0 * ns / candidate.alone_ns;
            let _ = writeln!(out, "  {:>9} {share:>4.0} %  {what}", time(*ns));
        }
        let _ = writeln!(out, "  A tenth more of these values moves it most:");
        let mut values: Vec<_> = moved
            .iter()
            .filter_map(|(path, places)| Some((path, *places.iter().find(|(place, _)| *place == candidate.place)?)))
            .filter(|(_, (_, ns))| (ns / candidate.alone_ns - 1.0).abs() > 5e-4)
            .collect();
        values.sort_by(|(_, (_, a)), (_, (_, b))| {
            (b - candidate.alone_ns).abs().total_cmp(&(a - candidate.alone_ns).abs())
        });
        for (path, (_, ns)) in values.into_iter().take(EXPLAINED) {
            let Some(param) = platform.params.get(path) else { continue };
            let change = 100.0 * (ns / candidate.alone_ns - 1.0);
            let now = param.text(param.value);
            let _ = writeln!(out, "  {change:>+6.1} %  {path:<34} {now:>12}  {}", param.status);
        }
    }
    out.push('\n');
    out
}

/// For each value of the platform the latency alone of each place if there were a tenth more of it.
fn moves(platform: &Platform, operation: &Operation, options: &WhereOptions) -> Vec<(String, Vec<(Placement, f64)>)> {
    let with_more = |path: &str, value: f64| {
        let other = platform.with(&[(path, value * 1.1)]).ok()?;
        let places = rank(&other, operation, options);
        Some((path.to_string(), places.iter().map(|candidate| (candidate.place, candidate.alone_ns)).collect()))
    };
    platform.params.iter().filter_map(|param| with_more(&param.path, param.value)).collect()
}

/// What the answer leaves out; of what was asked for, too.
fn left_out(platform: &Platform, clients: &Clients, engines: u16) -> String {
    let software = platform.placements.nic == Some(NicDevice::Software);
    let mut all = match software {
        true if engines > 1 => {
            "Left out: the scheduler, and what cores take from each other but for memory: power, shared units"
                .to_string()
        }
        true => "Left out: the scheduler, and what else runs on the cores".to_string(),
        false => "Left out: cache pollution by DMA; in the screen alone: interrupts, loss".to_string(),
    };
    if software && *clients != Clients::default() {
        all += "; that clients, their threads, queue pairs or losses are others than one client's of one thread";
    } else if platform.nic_state.is_none() && clients.connections.is_some() {
        all += "; queue pairs, as the platform says nothing of what its NIC keeps of them (nic.state)";
    }
    all + "."
}

fn candidates(out: &mut String, answer: &Answer) {
    let _ = writeln!(
        out,
        "{:<8}{:>9}{:>10}{:>10}  {:<22}{:>9}{:>10}",
        "place", "alone", "p50", "p99", "p50 over open values", "ops/s", "at most"
    );
    for (candidate, interval) in answer.ranking.iter().zip(&answer.intervals) {
        let Candidate { place, alone_ns, p50_ns, p99_ns, ops_per_s, saturation_per_s, .. } = candidate;
        let (low, high) = interval.p50_ns;
        let _ = writeln!(
            out,
            "{place:<8}{:>9}{:>10}{:>10}  {:<22}{:>9}{:>10}",
            time(*alone_ns),
            time(*p50_ns),
            time(*p99_ns),
            format!("{} to {}", time(low), time(high)),
            rate(*ops_per_s),
            rate(*saturation_per_s),
        );
    }
    for candidate in &answer.ranking {
        let joule = candidate.ops_per_joule.map_or(String::new(), |ops| format!(", {} ops/J", rate(ops)));
        let Candidate { place, binding, utilisation, .. } = candidate;
        let _ = writeln!(out, "{place:<8}limited by {binding} ({:.0} % used){joule}", utilisation * 100.0);
    }
}

fn simulations(out: &mut String, answer: &Answer) {
    for run in &answer.simulated {
        let text = format!(
            "simulated way: {} p50 {}, p99 {}, {} ops/s ({} events)",
            run.place,
            time(run.p50_ns),
            time(run.p99_ns),
            rate(run.ops_per_s),
            run.events
        );
        wrap(out, 0, "", &text);
    }
    for run in &answer.world {
        let joule = run.joules_per_op.map_or(String::new(), |joules| format!(", {} ops/J", rate(1.0 / joules)));
        if run.fell_behind {
            let text = format!(
                "engine in modelled time: {} does not carry the load: it does {} ops/s, and what comes waits ever longer",
                run.place,
                rate(run.ops_per_s)
            );
            wrap(out, 0, "", &text);
            continue;
        }
        let text = format!(
            "engine in modelled time: {} p50 {}{}{}, {} ops/s{joule}, busiest {}",
            run.place,
            time(run.p50_ns as f64),
            run.p99_ns.map_or(String::new(), |ns| format!(", p99 {}", time(ns as f64))),
            run.p999_ns.map_or(String::new(), |ns| format!(", p99.9 {}", time(ns as f64))),
            rate(run.ops_per_s),
            run.binding
        );
        wrap(out, 0, "", &text);
    }
}

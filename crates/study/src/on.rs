//! The comparison on modelled hardware: the same operations over the same store, in every placement of a platform.

use std::fmt::Write;
use std::time::Duration;

use remora_kernel::Placement;
use remora_lab::MeasuredRows;
use remora_lab::stats::is_level;
use remora_model::platform::Platform;
use remora_model::world::{self, PairSpec};
use serde::{Deserialize, Serialize};

use crate::auto::{self, AutoLoad, AutoRow, AutoTrace, Decided};
use crate::compare::{Plan, Progress, Watch};
use crate::connection::{Caller, Storage};
use crate::format::{per_op, plural, rate, time, wrap};
use crate::measure::IN_FLIGHT;
use crate::modelled::{Measured, ModelError, Modelled};
use crate::operations::Operation;
use crate::records::Records;
use crate::report::plot::{self, PlotSeries, Point};
use crate::report::{self, escape};
use crate::store::Store;
use crate::trace::Trace;
use crate::verdict::sum_up;

/// Calls of a figure with one in flight and with many, for the time that a real comparison takes by default.
const CALLS: [u64; 2] = [300, 4_000];
/// Modelled seconds of a stretch of the trace, for that time.
const STRETCH: f64 = 0.02;
/// That time in seconds.
const USUAL_TIME: f64 = 0.12;
/// Calls at least.
const LEAST_CALLS: [u64; 2] = [20, 128];

/// What a platform makes of the operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OnPlatform {
    /// The platform's name.
    pub platform: String,
    /// What it is.
    pub title: String,
    /// What its values rest on.
    pub provenance: String,
    /// What was modelled.
    pub rows: Vec<ModelRow>,
    /// Who wins, and why.
    pub verdicts: Vec<ModelVerdict>,
    /// What a client does that chooses the place of each call, if that was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub auto: Vec<AutoRow>,
    /// A trace that changes under way, at each place and at chosen ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub auto_traces: Vec<AutoTrace>,
    /// Events that it took.
    pub events: u64,
    /// Seconds that it took, loading apart.
    pub seconds: f64,
}

/// One operation in one placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelRow {
    /// What was done.
    pub operation: Operation,
    /// List elements, or bytes of the value.
    pub parameter: Option<u64>,
    /// Where the kernel ran: `client`, `nic`, `host` or `accel`.
    pub placement: Placement,
    /// One operation after the other.
    pub in_flight_1: Measured,
    /// Sixty-four at once.
    pub in_flight_64: Measured,
}

/// The outcome for one operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelVerdict {
    /// What was done.
    pub operation: Operation,
    /// List elements, or bytes of the value.
    pub parameter: Option<u64>,
    /// The placement with the lowest median latency.
    pub winner: Placement,
    /// Whether the second is within 5 %.
    pub level: bool,
    /// The outcome as a sentence.
    pub line: String,
}

/// Why there is no such comparison.
#[derive(Debug, thiserror::Error)]
pub enum OnError {
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The store, or the user wants no more.
    #[error(transparent)]
    Study(#[from] crate::StudyError),
}

/// What ended a comparison early, and what is missing.
pub type OnCut = (OnError, String);

/// Runs every operation of the plan in every placement of it that the platform has; in all if it names none. What ends it early leaves what was modelled
/// until then.
pub fn compare_on(
    platform: &Platform,
    plan: &Plan,
    records: &Records,
    trace: Option<Trace>,
    watch: &dyn Watch,
) -> Result<(OnPlatform, Option<OnCut>), OnError> {
    let spec = PairSpec::new(platform, 0, plan.seed).map_err(ModelError::from)?.disturbed(platform, plan.seed);
    let mut model = Modelled::new(&spec, Placement::Nic)?;
    let store = Store::load(&mut model, plan, records, trace, watch)?;
    let (cells, all) = (store.cells(), world::placements(platform));
    let named = |place: &Placement| plan.placements.is_empty() || plan.placements.contains(place);
    let placements: Vec<Placement> = all.iter().copied().filter(named).collect();
    // Those that a node serves at once: calls come to its NIC or to its accelerator.
    let served = |place: &Placement| *place != Placement::Accelerator || !all.contains(&Placement::Nic);
    let choice: Vec<Placement> = placements.iter().copied().filter(served).collect();
    if plan.auto && choice.is_empty() {
        let why = "auto chooses no accelerator where calls come to a NIC: name client, nic or host in --placements too";
        return Err(crate::StudyError::Usage(why.into()).into());
    }
    let mut auto = Vec::new();
    let start = std::time::Instant::now();
    let modelled = MeasuredRows::by(cells.len() * placements.len(), |rows| {
        for (number, &(operation, parameter)) in cells.iter().enumerate() {
            let next = match parameter.zip(operation.unit()) {
                Some((n, unit)) => format!("{operation} of {n} {unit} on {}", platform.name),
                None => format!("{operation} on {}", platform.name),
            };
            watch.progress(Progress::Measuring { done: number, total: cells.len(), next: &next });
            // All places or none: of one alone cannot be said whether it is quicker.
            let row = |&placement: &Placement| match watch.stop() {
                true => Err(crate::StudyError::Interrupted.into()),
                false => measure(&mut model, &store, (operation, parameter), placement, plan, watch),
            };
            rows.extend(placements.iter().map(row).collect::<Result<Vec<_>, OnError>>()?);
            if plan.auto {
                auto.push(measure_auto(&mut model, &store, (operation, parameter), &choice, plan, (watch, rows))?);
            }
        }
        Ok(())
    });
    let missing = modelled.missing("figures");
    let stop = || watch.stop();
    let traced = plan.auto && modelled.cut.is_none();
    let each = (&choice[..], Duration::from_secs_f64(plan.time.as_secs_f64() / USUAL_TIME * STRETCH));
    let auto_traces = match traced {
        true => auto::trace::<_, OnError>(&mut model, platform.name.clone(), each, plan, &store, None, &stop)?,
        false => None,
    };
    let MeasuredRows { rows, cut, .. } = modelled.or_nothing()?;
    if cut.is_none() {
        watch.progress(Progress::Measuring { done: cells.len(), total: cells.len(), next: "done" });
    }
    let on = OnPlatform {
        platform: platform.name.clone(),
        title: platform.title.clone(),
        provenance: platform.params.shares_text(),
        verdicts: judge(&rows),
        auto,
        auto_traces: auto_traces.into_iter().collect(),
        events: rows.iter().map(|row| row.in_flight_1.events + row.in_flight_64.events).sum(),
        rows,
        seconds: start.elapsed().as_secs_f64(),
    };
    Ok((on, cut.zip(missing)))
}

fn measure(
    model: &mut Modelled,
    store: &Store<'_>,
    (operation, parameter): (Operation, Option<u64>),
    placement: Placement,
    plan: &Plan,
    watch: &dyn Watch,
) -> Result<ModelRow, OnError> {
    if let Some((region, config)) = store.writer(operation, parameter, plan.writer_updates_per_s) {
        model.start_writer(region, &config)?;
    }
    model.place(placement)?;
    let mut figures = [Measured::default(), Measured::default()];
    for ((figure, in_flight), count) in figures.iter_mut().zip(IN_FLIGHT).zip(call_counts(plan)) {
        let Some(mut calls) = store.calls(operation, parameter, plan.seed) else { continue };
        *figure = match model.measure(&mut *calls, in_flight, count, &|| watch.stop()) {
            Err(ModelError::Interrupted) => return Err(crate::StudyError::Interrupted.into()),
            other => other?,
        };
    }
    model.stop_writer()?;
    let [in_flight_1, in_flight_64] = figures;
    Ok(ModelRow { operation, parameter, placement, in_flight_1, in_flight_64 })
}

/// An operation at chosen places, beside its rows.
fn measure_auto(
    model: &mut Modelled,
    store: &Store<'_>,
    (operation, parameter): (Operation, Option<u64>),
    choice: &[Placement],
    plan: &Plan,
    (watch, rows): (&dyn Watch, &[ModelRow]),
) -> Result<AutoRow, OnError> {
    if let Some((region, config)) = store.writer(operation, parameter, plan.writer_updates_per_s) {
        model.start_writer(region, &config)?;
    }
    let class = auto::class(operation, parameter);
    model.choose(choice, class)?;
    let mut loads = [AutoLoad::default(), AutoLoad::default()];
    for (n, count) in call_counts(plan).into_iter().enumerate() {
        let Some(mut calls) = store.calls(operation, parameter, plan.seed) else { continue };
        let kinds = auto::kinds(&*calls, class);
        let before = model.placer().map(|placer| placer.counts()).unwrap_or_default();
        let measured = match model.measure(&mut *calls, IN_FLIGHT[n], count, &|| watch.stop()) {
            Err(ModelError::Interrupted) => return Err(crate::StudyError::Interrupted.into()),
            other => other?,
        };
        let mut decided = Decided::default();
        if let Some(placer) = model.placer() {
            decided.add(placer, before, &kinds);
        }
        let Measured { verified, ops_per_s, p50_ns, p99_ns, .. } = measured;
        let load = AutoLoad { verified, ops_per_s, p50_ns, p99_ns, ..decided.load() };
        let alike = rows.iter().filter(|row| (row.operation, row.parameter) == (operation, parameter));
        let alike = alike.filter(|row| choice.contains(&row.placement) && calls.may_run(row.placement));
        loads[n] = load.beside(alike.map(|row| (row.placement, [&row.in_flight_1, &row.in_flight_64][n].ops_per_s)));
    }
    model.stop_writer()?;
    let [in_flight_1, in_flight_64] = loads;
    Ok(AutoRow { operation, parameter, on: "modelled".into(), in_flight_1, in_flight_64 })
}

/// Calls of a figure, in proportion to the time that a real comparison would measure it.
fn call_counts(plan: &Plan) -> [u64; 2] {
    let scale = plan.time.as_secs_f64() / USUAL_TIME;
    [0, 1].map(|n| ((CALLS[n] as f64 * scale) as u64).max(LEAST_CALLS[n]))
}

/// Rows of the same operation and parameter, in the rows' order.
fn groups(rows: &[ModelRow]) -> impl Iterator<Item = &[ModelRow]> {
    rows.chunk_by(|a, b| (a.operation, a.parameter) == (b.operation, b.parameter))
}

fn judge(rows: &[ModelRow]) -> Vec<ModelVerdict> {
    groups(rows).filter_map(verdict).collect()
}

fn median(row: &ModelRow) -> f64 {
    row.in_flight_1.p50_ns as f64
}

/// The quickest first.
fn ranked(rows: &[ModelRow]) -> Vec<&ModelRow> {
    let mut ranked: Vec<&ModelRow> = rows.iter().collect();
    ranked.sort_by_key(|row| row.in_flight_1.p50_ns);
    ranked
}

/// The second, if it is about as quick as the first.
fn level_with<'a>(ranked: &[&'a ModelRow]) -> Option<&'a ModelRow> {
    let [best, second, ..] = ranked else { return None };
    is_level(median(best), median(second)).then_some(*second)
}

fn verdict(rows: &[ModelRow]) -> Option<ModelVerdict> {
    let ranked = ranked(rows);
    let (best, second) = (*ranked.first()?, level_with(&ranked));
    let outcome = second.map_or("wins".into(), |second| format!("and {} are level", second.placement));
    let line = format!("{} {outcome}: {}", best.placement, reason(&ranked));
    let (operation, parameter) = (best.operation, best.parameter);
    Some(ModelVerdict { operation, parameter, winner: best.placement, level: second.is_some(), line })
}

/// Why, with the figures.
fn reason(ranked: &[&ModelRow]) -> String {
    let most = ranked.iter().max_by(|a, b| a.in_flight_64.ops_per_s.total_cmp(&b.in_flight_64.ops_per_s));
    let ([best, rest @ ..], Some(most)) = (ranked, most) else { return String::new() };
    let others: Vec<String> = rest.iter().map(|row| format!("{} {}", row.placement, time(median(row)))).collect();
    let others = if others.is_empty() { String::new() } else { format!("; {}", others.join(", ")) };
    format!(
        "{} in {}{others}; most with 64 in flight: {} with {} ops/s, limited by {} ({:.0} % busy)",
        time(median(best)),
        plural(best.in_flight_1.round_trips_per_op, "round trip"),
        most.placement,
        rate(most.in_flight_64.ops_per_s),
        most.in_flight_64.binding,
        most.in_flight_64.binding_busy * 100.0,
    )
}

/// Who wins an operation, by its parameter, and why at the largest.
fn summary(rows: &[ModelRow]) -> String {
    let winner = |group: &[ModelRow]| {
        let ranked = ranked(group);
        let mut names: Vec<Placement> =
            ranked.iter().take(1).chain(level_with(&ranked).iter()).map(|r| r.placement).collect();
        names.sort_unstable();
        names.iter().map(Placement::to_string).collect::<Vec<_>>().join(" and ")
    };
    let winners = groups(rows).map(|group| (group[0].parameter, winner(group))).collect();
    let last = groups(rows).last().map_or_else(String::new, |group| reason(&ranked(group)));
    sum_up(winners, rows.first().and_then(|row| row.operation.unit()), &last)
}

fn title(operation: Operation, parameter: Option<u64>) -> String {
    match parameter.zip(operation.unit()) {
        Some((n, unit)) => format!("{operation}, {n} {unit}"),
        None => operation.to_string(),
    }
}

/// The heads of [`row_text`].
pub(crate) fn row_head() -> String {
    let [p50, p99, trips, rate, joules] = ["p50", "p99", "trips", "64: /s", "uJ/op"];
    format!("  {:<7} {p50:>8} {p99:>8} {trips:>5} {rate:>7} {joules:>7}  limited by\n", "place")
}

/// A row of a place: one at a time, and 64 at once.
pub(crate) fn row_text(place: Placement, is_best: bool, one: &Measured, many: &Measured) -> String {
    let joules = many.joules_per_op.map_or("-".into(), |joules| format!("{:.1}", joules * 1e6));
    format!(
        "  {:<7} {:>8} {:>8} {:>5} {:>7} {joules:>7}  {} {:.0} %\n",
        format!("{place}{}", if is_best { "*" } else { "" }),
        time(one.p50_ns as f64),
        time(one.p99_ns as f64),
        per_op(one.round_trips_per_op),
        rate(many.ops_per_s),
        many.binding,
        many.binding_busy * 100.0,
    )
}

/// What came, in columns.
pub fn table(on: &OnPlatform) -> String {
    let mut out = String::new();
    wrap(&mut out, 0, "", &format!("On {}, modelled: {}", on.platform, on.title));
    out += &row_head();
    for group in groups(&on.rows) {
        let best = group.iter().map(|row| row.in_flight_1.p50_ns).min().unwrap_or(0);
        let _ = writeln!(out, "{}", title(group[0].operation, group[0].parameter));
        for ModelRow { placement, in_flight_1, in_flight_64, .. } in group {
            out += &row_text(*placement, in_flight_1.p50_ns == best, in_flight_1, in_flight_64);
        }
    }
    out.push('\n');
    for verdict in &on.verdicts {
        let name = format!("{}: ", title(verdict.operation, verdict.parameter));
        wrap(&mut out, 0, &name, &verdict.line);
    }
    out += &auto::table(&on.auto, &on.auto_traces);
    let per_s = on.events as f64 / on.seconds.max(1e-9) / 1e6;
    let _ = writeln!(
        out,
        "\n{}: {}.\n{} events, {per_s:.1} M a second. Every result was checked.",
        on.platform,
        on.provenance,
        crate::format::count(on.events)
    );
    out
}

/// As the real comparison draws them: latency by what varies, and else latency and rate as bars.
fn plots(on: &OnPlatform) -> String {
    let mut out = String::new();
    for rows in on.rows.chunk_by(|a, b| a.operation == b.operation) {
        let operation = rows[0].operation;
        let mut places: Vec<Placement> = rows.iter().map(|row| row.placement).collect();
        places.sort_unstable();
        places.dedup();
        let _ = write!(out, "<h2>{}</h2>\n<figure><div class=\"panels\">\n", escape(operation.title()));
        let mut card = |heading: &str, svg: String| {
            let _ = writeln!(out, "<div class=\"card\"><h3>{heading}</h3>{svg}</div>");
        };
        let caption = match operation.parameters() {
            Some(parameters) => {
                let point = |row: &ModelRow| Point {
                    x: row.parameter.unwrap_or(1),
                    median: row.in_flight_1.p50_ns as f64,
                    low: row.in_flight_1.p1_ns as f64,
                    high: row.in_flight_1.p99_ns as f64,
                };
                let line = |&placement: &Placement| PlotSeries {
                    placement,
                    points: rows.iter().filter(|row| row.placement == placement).map(point).collect(),
                };
                let lines: Vec<PlotSeries> = places.iter().map(line).collect();
                let about = format!("{}: modelled median latency by {}", operation.title(), parameters.axis);
                card("Latency", plot::latency(&lines, plot::range(lines.iter()), parameters.axis, &about));
                "Median latency with one operation in flight. Bars run from the 1st to the 99th percentile, some out of the \
                 plot; both axes are logarithmic."
            }
            None => {
                let bars = |figure: fn(&ModelRow) -> f64| -> Vec<_> {
                    rows.iter().map(|row| (row.placement, figure(row))).collect()
                };
                let about = format!("{}: modelled median latency", operation.title());
                card("Latency", plot::times(&bars(|row| row.in_flight_1.p50_ns as f64), &about));
                let about = format!("{}: modelled operations a second with 64 in flight", operation.title());
                card("Throughput", plot::rates(&bars(|row| row.in_flight_64.ops_per_s), &about));
                "Median latency with one operation in flight; operations a second with 64."
            }
        };
        let _ = writeln!(out, "</div><figcaption>{caption}</figcaption></figure>");
    }
    out
}

/// The section of the HTML report.
pub(crate) fn section(on: &OnPlatform) -> String {
    let mut out = format!(
        "<h2>On {}, modelled</h2>\n<p class=\"soft\">{}. The same engine, kernels and checks in modelled time. {}.</p>\n",
        escape(&on.platform),
        escape(&on.title),
        escape(&on.provenance),
    );
    let mut places: Vec<Placement> = on.rows.iter().map(|row| row.placement).collect();
    places.sort_unstable();
    places.dedup();
    let outcomes: Vec<_> = on.verdicts.iter().map(|verdict| (verdict.winner, verdict.level)).collect();
    report::tiles(&mut out, &places, &outcomes);
    let _ = writeln!(out, "<h2>In short</h2>\n{}<table class=\"short\"><tbody>", report::scroll("In short"));
    for rows in on.rows.chunk_by(|a, b| a.operation == b.operation) {
        let (what, line) = (escape(rows[0].operation.title()), report::with_names(&escape(&summary(rows))));
        let _ = writeln!(out, "<tr><td>{what}</td><td>{line}</td></tr>");
    }
    out.push_str("</tbody></table></div>\n");
    out += &plots(on);
    let _ = writeln!(
        out,
        "<h2>All figures</h2>\n<details><summary>Each operation in each place</summary>\n\
         {}<table><thead><tr><th class=\"t\">operation</th><th class=\"t\">place</th>\
         <th>median</th><th>99 %</th><th>round trips</th><th>64 in flight, ops/s</th><th class=\"t\">limited by</th>\
         <th>µJ each</th></tr></thead><tbody>",
        report::scroll("Each operation in each place")
    );
    for group in groups(&on.rows) {
        let best = group.iter().map(|row| row.in_flight_1.p50_ns).min().unwrap_or(0);
        let most = group.iter().map(|row| row.in_flight_64.ops_per_s).fold(0.0, f64::max);
        for (number, row) in group.iter().enumerate() {
            let (one, many) = (&row.in_flight_1, &row.in_flight_64);
            let name = if number == 0 { escape(&title(row.operation, row.parameter)) } else { String::new() };
            let class = [if one.p50_ns == best { "best" } else { "" }, if number == 0 { " new" } else { "" }].concat();
            let joules = many.joules_per_op.map_or("-".into(), |joules| format!("{:.1}", joules * 1e6));
            let rates = if many.ops_per_s >= most { " class=\"most\"" } else { "" };
            let _ = writeln!(
                out,
                "<tr class=\"{class}\"><td class=\"t\">{name}</td><td class=\"t place {place}\">{place}</td>\
                 <td class=\"p50\">{}</td><td>{}</td><td>{:.2}</td><td{rates}>{}</td><td class=\"t\">{}, {:.0} %</td>\
                 <td>{joules}</td></tr>",
                time(one.p50_ns as f64),
                time(one.p99_ns as f64),
                one.round_trips_per_op,
                rate(many.ops_per_s),
                escape(&many.binding),
                many.binding_busy * 100.0,
                place = row.placement,
            );
        }
    }
    out.push_str(
        "</tbody></table><p class=\"soft\">★ lowest median latency with 1 in flight; ▲ most operations a second with \
         64.</p></div></details>\n<details><summary>Who wins, one by one</summary>\n<ul>\n",
    );
    for verdict in &on.verdicts {
        let what = escape(&title(verdict.operation, verdict.parameter));
        let _ = writeln!(out, "<li>{what}: {}</li>", report::with_names(&escape(&verdict.line)));
    }
    out + "</ul></details>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::LIST;
    use crate::workload::Distribution;
    use std::cell::Cell;

    struct Quiet(Cell<usize>, usize);

    impl Watch for Quiet {
        fn progress(&self, progress: Progress<'_>) {
            self.0.set(self.0.get() + usize::from(matches!(progress, Progress::Measuring { .. })));
        }

        fn stop(&self) -> bool {
            self.0.get() > self.1
        }
    }

    fn plan() -> Plan {
        Plan {
            seed: 1,
            distribution: Distribution::Zipfian,
            time: Duration::from_millis(1),
            operations: Vec::new(),
            placements: Vec::new(),
            rings: false,
            auto: false,
            keep: Default::default(),
            writer_updates_per_s: 50_000,
        }
    }

    #[test]
    fn every_operation_runs_in_every_place_of_the_platform() {
        let (platform, records) = (Platform::load("rambda").unwrap(), Records::generate(300, 64, 1));
        let (on, cut) = compare_on(&platform, &plan(), &records, None, &Quiet(Cell::new(0), usize::MAX)).unwrap();
        assert!(cut.is_none());
        assert_eq!((on.rows.len(), on.verdicts.len()), (22 * 4, 22));
        for row in &on.rows {
            let (one, many) = (&row.in_flight_1, &row.in_flight_64);
            assert_eq!([one.verified, many.verified], LEAST_CALLS, "{row:?}");
            assert!(one.p1_ns <= one.p50_ns && one.p50_ns <= one.p99_ns && one.p50_ns > 1000, "{row:?}");
            assert!(many.ops_per_s > one.ops_per_s && many.binding_busy > 0.2, "{row:?}");
            assert!(one.joules_per_op.is_some_and(|joules| joules > 0.0));
            // As many are under way from the first call that is measured to the last (Little's law), and nothing is more than busy.
            for (measured, under_way) in [(one, 1.0), (many, 64.0)] {
                let little = measured.ops_per_s * measured.mean_ns / 1e9 / under_way;
                assert!((little - 1.0).abs() < 0.15, "{little} of {under_way}: {row:?}");
                assert!(measured.usage.iter().all(|usage| usage.busy <= 1.0), "{row:?}");
            }
            let calls = if row.placement == Placement::Client { 1.0..40.0 } else { 1.0..1.01 };
            assert!(calls.contains(&one.round_trips_per_op), "{row:?}");
        }
        // A list of 32 elements: the client makes 33 round trips, the accelerator next to the memory one.
        let list = on.verdicts.iter().find(|v| (v.operation, v.parameter) == (LIST, Some(32))).unwrap();
        assert!(list.winner != Placement::Client && list.line.contains("1 round trip"), "{}", list.line);
        assert!(table(&on).contains("accel") && section(&on).contains("accel"));
        let json = serde_json::to_string(&on).unwrap();
        assert!(serde_json::from_str::<OnPlatform>(&json).is_ok());
    }

    #[test]
    fn it_stops_when_told_to_and_has_what_was_modelled() {
        let (platform, records) = (Platform::load("strom-10g").unwrap(), Records::generate(300, 64, 1));
        let (on, cut) = compare_on(&platform, &plan(), &records, None, &Quiet(Cell::new(0), 5)).unwrap();
        let Some((OnError::Study(crate::StudyError::Interrupted), missing)) = cut else { panic!("{cut:?}") };
        assert_eq!((on.rows.len(), &*missing), (5 * 3, "interrupted; 15 of 66 figures were measured"));
        let early = compare_on(&platform, &plan(), &records, None, &Quiet(Cell::new(0), 0));
        assert!(matches!(early, Err(OnError::Study(crate::StudyError::Interrupted))));
    }
}

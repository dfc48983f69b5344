//! Measuring and deciding: comparisons, where an operation should run, papers' figures, platforms.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use pyo3::prelude::*;
use remora::{LinkKind, Placement};
use remora_lab::writer::Writers;
use remora_model::platform::Platform;
use remora_real::{Client, ClientConfig, Node, NodeConfig, at_free_loopback, at_local};
use remora_study::StudyError;
use remora_study::bluefield::BlueField;
use remora_study::compare::{Plan, Progress, WRITER_RATE, Watch};
use remora_study::connection::Connection;
use remora_study::dfabric::DFabric;
use remora_study::machine::Machine;
use remora_study::minos::Minos;
use remora_study::operations::Operation;
use remora_study::rambda::Rambda;
use remora_study::records::Records;
use remora_study::report::{Report, Setup, table};
use remora_study::reproduce::{self as papers, ReproduceError, ReproduceOptions};
use remora_study::store;
use remora_study::strom::Strom;
use remora_study::where_::{Goal, WhereOptions, decide_until};
use remora_study::workload::Distribution;
use serde_json::{Value, json};

use crate::arrow::ArrowTable;
use crate::error;

/// Asks Python whether the user wants no more.
#[derive(Default)]
struct Signals(RefCell<Option<PyErr>>);

impl Signals {
    fn stop(&self) -> bool {
        if self.0.borrow().is_none() {
            *self.0.borrow_mut() = Python::attach(|py| py.check_signals()).err();
        }
        self.0.borrow().is_some()
    }
}

impl Watch for Signals {
    fn progress(&self, _: Progress<'_>) {}

    fn stop(&self) -> bool {
        self.stop()
    }
}

/// What a comparison found.
#[pyclass(frozen, module = "remora")]
pub struct Comparison {
    json: Value,
    text: String,
}

#[pymethods]
impl Comparison {
    /// A row for each operation, parameter, link and place.
    #[getter]
    fn rows(&self) -> PyResult<ArrowTable> {
        // The rounds are in the JSON: a table has one figure a cell.
        let rows = self.json["rows"].as_array().cloned().unwrap_or_default().into_iter().map(|mut row| {
            for load in ["in_flight_1", "in_flight_64"] {
                if let Some(load) = row[load].as_object_mut() {
                    load.remove("rounds");
                    // Node and client are one process here.
                    load.retain(|name, _| !name.ends_with("cpu_ns_per_op"));
                }
            }
            row
        });
        ArrowTable::of(rows)
    }

    /// Who wins, and why.
    #[getter]
    fn verdicts(&self) -> PyResult<ArrowTable> {
        ArrowTable::of(self.json["verdicts"].as_array().cloned().unwrap_or_default())
    }

    /// All of it, as `remora compare --json` has it.
    fn to_json(&self) -> String {
        self.json.to_string()
    }

    fn __str__(&self) -> &str {
        &self.text
    }
}

fn of_study(signals: &Signals, error: StudyError) -> PyErr {
    match (signals.0.take(), error) {
        (Some(signal), _) => signal,
        (None, StudyError::Usage(why)) => error::invalid(why),
        (None, other) => error::failed(other),
    }
}

/// Compares places over records of a node in this process.
#[pyfunction]
#[pyo3(signature = (*, records=10_000, value_bytes=64, seconds=0.02, operations=None, links=None, seed=42))]
pub fn compare(
    py: Python<'_>,
    records: u64,
    value_bytes: usize,
    seconds: f64,
    operations: Option<Vec<String>>,
    links: Option<Vec<String>>,
    seed: u64,
) -> PyResult<Comparison> {
    let named =
        |name: &String| Operation::all_named(name).ok_or_else(|| error::invalid(format!("no operation {name:?}")));
    let operations = operations.iter().flatten().map(named).collect::<PyResult<Vec<_>>>()?.concat();
    let parse = |link: &String| link.parse::<LinkKind>().map_err(error::invalid);
    let links: Vec<LinkKind> = match &links {
        Some(links) => links.iter().map(parse).collect::<PyResult<_>>()?,
        None => vec![LinkKind::Udp, LinkKind::Shm],
    };
    if links.is_empty() || records == 0 || value_bytes > 61_440 {
        return Err(error::invalid("give at least one link and one record, and values of at most 61440 bytes"));
    }
    if !(0.001..=60.0).contains(&seconds) {
        return Err(error::invalid("give from 0.001 to 60 seconds"));
    }
    let (memory, machine) = (records.saturating_mul(value_bytes as u64 + 56), Machine::describe().memory_bytes);
    if memory > machine && machine > 0 {
        return Err(error::invalid(format!(
            "{memory} bytes of records, and this machine has {machine} bytes of memory"
        )));
    }
    let time = Duration::from_secs_f64(seconds);
    let plan = Plan {
        seed,
        distribution: Distribution::Zipfian,
        time,
        operations,
        placements: Placement::REAL.to_vec(),
        writer_updates_per_s: WRITER_RATE,
        rings: false,
        auto: false,
        keep: Default::default(),
    };
    py.detach(|| {
        let signals = Signals::default();
        let node =
            at_free_loopback(|address| Node::start_with(NodeConfig::new(address), vec![Box::new(Writers::default())]));
        let node = node.map_err(error::of)?;
        let address = node.address();
        let connect = |&link: &LinkKind| {
            let connected = at_local(address, |local| {
                Client::connect(ClientConfig { link: Some(link), ..ClientConfig::new(address, local) })
            });
            connected.map_err(error::of)
        };
        let mut clients: Vec<Client> = links.iter().map(connect).collect::<PyResult<_>>()?;
        let records = Records::generate(records, value_bytes, seed);
        let mut targets: Vec<&mut dyn Connection> =
            clients.iter_mut().map(|client| client as &mut dyn Connection).collect();
        let last = targets.len() - 1;
        let store = store::Store::load(&mut *targets[last], &plan, &records, None, &signals);
        let store = store.map_err(|e| of_study(&signals, e))?;
        let rows = remora_study::compare::compare(&mut targets, &plan, &store, &signals).whole();
        let rows = rows.map_err(|e| of_study(&signals, e))?;
        let setup = Setup {
            node: address.to_string(),
            seed,
            records: records.len() as u64,
            longest_value_bytes: records.longest_value() as u64,
            distribution: plan.distribution.name().into(),
            cell_s: seconds,
            writer_updates_per_s: plan.writer_updates_per_s,
            ..Setup::default()
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let report = Report::new("remora.compare".into(), now, setup, Machine::describe(), rows);
        Ok(Comparison { json: report.to_json(), text: table(&report) })
    })
}

/// Where an operation should run: a row for each platform and place, the best first.
#[pyfunction]
#[pyo3(signature = (operation, on, *, by="latency", link="udp", points=256, simulate=20_000, seed=42))]
#[expect(clippy::too_many_arguments, reason = "they are named in Python")]
pub fn r#where(
    py: Python<'_>,
    operation: PathBuf,
    on: Vec<String>,
    by: &str,
    link: &str,
    points: usize,
    simulate: u32,
    seed: u64,
) -> PyResult<ArrowTable> {
    let goal = match by {
        "latency" => Goal::Latency,
        "rate" => Goal::Rate,
        "energy" => Goal::Energy,
        other => return Err(error::invalid(format!("by {other:?}: use latency, rate or energy"))),
    };
    if !(1..=100_000).contains(&points) || simulate > 10_000_000 {
        return Err(error::invalid("give from 1 to 100000 points, and at most 10000000 operations to simulate"));
    }
    let link = link.parse().map_err(error::invalid)?;
    let loaded = remora_study::where_::Operation::load(&operation).map_err(error::invalid)?;
    let options = WhereOptions { goal, link, points, simulated: simulate, seed, ..WhereOptions::default() };
    py.detach(|| {
        let (signals, mut rows) = (Signals::default(), Vec::new());
        for name in &on {
            let platform = Platform::load(name).map_err(error::invalid)?;
            if let Some(missing) = remora_study::where_::missing(&platform, &loaded, goal) {
                return Err(error::invalid(missing));
            }
            let answer = decide_until(&platform, &loaded, &options, &|_| signals.stop());
            if let Some(signal) = signals.0.take() {
                return Err(signal);
            }
            let answer = answer.ok_or_else(|| error::invalid(format!("{name} has no placement")))?;
            for (rank, (candidate, interval)) in answer.ranking.iter().zip(&answer.intervals).enumerate() {
                let simulated = answer.simulated.iter().find(|run| run.place == candidate.place);
                rows.push(json!({
                    "operation": loaded.title, "platform": platform.name, "place": candidate.place, "rank": rank + 1,
                    "alone_ns": candidate.alone_ns, "p50_ns": candidate.p50_ns, "p99_ns": candidate.p99_ns,
                    "p50_low_ns": interval.p50_ns.0, "p50_high_ns": interval.p50_ns.1, "ops_per_s": candidate.ops_per_s,
                    "saturation_per_s": candidate.saturation_per_s, "ops_per_joule": candidate.ops_per_joule,
                    "binding": candidate.binding, "utilisation": candidate.utilisation,
                    "simulated_p50_ns": simulated.map(|run| run.p50_ns),
                    "simulated_p99_ns": simulated.map(|run| run.p99_ns),
                    "decided": answer.decided, "certainty": answer.certainty, "answer": answer.line,
                }));
            }
        }
        ArrowTable::of(rows)
    })
}

/// A paper's figures from the model.
#[pyclass(frozen, module = "remora")]
pub struct Reproduction {
    json: Value,
    text: String,
}

#[pymethods]
impl Reproduction {
    /// A row for each point of each line of each figure.
    #[getter]
    fn figures(&self) -> PyResult<ArrowTable> {
        let mut rows = Vec::new();
        for figure in self.json["figures"].as_array().into_iter().flatten() {
            for line in figure["lines"].as_array().into_iter().flatten() {
                for dot in line["dots"].as_array().into_iter().flatten() {
                    rows.push(json!({
                        "figure": figure["number"], "series": line["name"], "x": dot["x"], "x_unit": figure["x"][1],
                        "y": dot["y"], "y_unit": figure["y"][1], "y_low": dot["spread"][0], "y_high": dot["spread"][1],
                    }));
                }
            }
        }
        ArrowTable::of(rows)
    }

    /// What the paper's text says, beside the model.
    #[getter]
    fn claims(&self) -> PyResult<ArrowTable> {
        ArrowTable::of(self.json["claims"].as_array().cloned().unwrap_or_default())
    }

    /// What it says about shapes.
    #[getter]
    fn trends(&self) -> PyResult<ArrowTable> {
        ArrowTable::of(self.json["trends"].as_array().cloned().unwrap_or_default())
    }

    /// All of it, as `remora reproduce --json` has it.
    fn to_json(&self) -> String {
        self.json.to_string()
    }

    fn __str__(&self) -> &str {
        &self.text
    }
}

/// Runs a paper's experiments on the hardware that it describes: `strom`, `minos`, `bluefield`, `rambda` or `dfabric`.
#[pyfunction]
#[pyo3(signature = (paper, figure=None, *, jobs=1, seed=42, requests=1000))]
pub fn reproduce(
    py: Python<'_>,
    paper: &str,
    figure: Option<String>,
    jobs: usize,
    seed: u64,
    requests: u64,
) -> PyResult<Reproduction> {
    if !(1..=1_000_000).contains(&requests) {
        return Err(error::invalid("give from 1 to 1000000 requests"));
    }
    let options = ReproduceOptions { figure, jobs, cache: None, seed };
    py.detach(|| {
        let signals = Signals::default();
        let progress = &mut |_| !signals.stop();
        let result = match paper {
            "strom" => papers::reproduce(&Strom, &options, progress),
            "minos" => {
                let minos = Minos { requests, workers: None, readings: Default::default() };
                papers::reproduce(&minos, &options, progress)
            }
            "bluefield" => papers::reproduce(&BlueField::default(), &options, progress),
            "rambda" => papers::reproduce(&Rambda, &options, progress),
            "dfabric" => papers::reproduce(&DFabric, &options, progress),
            other => {
                let papers = "strom, minos, bluefield, rambda or dfabric";
                return Err(error::invalid(format!("no paper {other:?}: {papers}")));
            }
        };
        if let Some(signal) = signals.0.take() {
            return Err(signal);
        }
        let all = result.map_err(|e| match e {
            ReproduceError::Study(e) => error::invalid(e),
            other => error::failed(other),
        })?;
        Ok(Reproduction { json: all.to_json(env!("CARGO_PKG_VERSION")), text: remora_study::reproduce::table(&all) })
    })
}

/// The values of platforms: those that come with Remora, or the ones of these names and files.
#[pyfunction]
#[pyo3(signature = (names=None))]
pub fn platforms(names: Option<Vec<String>>) -> PyResult<ArrowTable> {
    let names = names.unwrap_or_else(|| Platform::built_in().map(String::from).collect());
    let mut rows = Vec::new();
    for name in names {
        let platform = Platform::load(&name).map_err(error::invalid)?;
        for param in platform.params.iter() {
            rows.push(json!({
                "platform": platform.name, "path": param.path, "value": param.value, "low": param.range.0,
                "high": param.range.1, "text": param.text(param.value), "status": param.status.to_string(),
                "source": param.source,
            }));
        }
    }
    ArrowTable::of(rows)
}

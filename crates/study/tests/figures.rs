//! Figures of modelled hardware to the last digit, beside those that were written down: `figures.txt`.
//!
//! A change that is meant to move none of them moves none here. One that is meant to is made known by the difference
//! that `REMORA_FIGURES=write cargo test -p remora-study --test figures` leaves in that file.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use remora_model::platform::Platform;
use remora_study::bluefield::BlueField;
use remora_study::compare::{Plan, Progress, Watch};
use remora_study::dfabric::DFabric;
use remora_study::minos::{AblationStep, Setup};
use remora_study::on::compare_on;
use remora_study::records::Records;
use remora_study::reproduce::{self, ReproduceOptions};
use remora_study::where_::{self, Operation, WhereOptions};
use remora_study::workload::Distribution;

/// FNV-1a: a digest that every run and machine agrees on.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

struct Quiet;

impl Watch for Quiet {
    fn progress(&self, _: Progress<'_>) {}

    fn stop(&self) -> bool {
        false
    }
}

/// Every operation of the comparison in every place of every platform: median latency, rate, and a digest of all that was
/// measured.
#[test]
fn the_comparison_on_platforms_is_what_it_was() {
    let plan = Plan {
        operations: Vec::new(),
        seed: 1,
        distribution: Distribution::Zipfian,
        time: Duration::from_millis(1),
        placements: Vec::new(),
        writer_updates_per_s: 50_000,
        rings: false,
        auto: false,
        keep: Default::default(),
    };
    let (mut out, records) = (String::new(), Records::generate(300, 64, 1));
    for name in Platform::built_in() {
        let (on, _) = compare_on(&Platform::load(name).unwrap(), &plan, &records, None, &Quiet).unwrap();
        for row in &on.rows {
            let (one, many) = (&row.in_flight_1, &row.in_flight_64);
            let digest = digest(&serde_json::to_string(&(one, many)).unwrap());
            let parameter = row.parameter.unwrap_or_default();
            let (p50, rate) = (one.p50_ns, many.ops_per_s as u64);
            let _ = writeln!(out, "{name} {} {parameter} {} {p50} {rate} {digest:016x}", row.operation, row.placement);
        }
    }
    compare("figures-on.txt", &out);
}

/// MINOS: means in nanoseconds, rates, events.
#[test]
fn modelled_clusters_are_what_they_were() {
    let (mut out, platform) = (String::new(), Platform::load("minos").unwrap());
    for model in ["synch", "strict", "renf", "event", "scope"] {
        for deployment in AblationStep::ALL {
            for (nodes, writes) in [(2, 100), (5, 50), (9, 80)] {
                let setup = Setup { model: model.into(), deployment, nodes, writes, records: 200, ..Setup::default() };
                let came = setup.run(&platform, 30, 1).unwrap();
                let _ = writeln!(out, "{model} {deployment:?} {nodes} {writes}: {came:?}");
            }
        }
    }
    compare("figures-minos.txt", &out);
}

/// Where operations should run: the screen's latency alone, median and rate in each place, and a digest of the answer with
/// its simulations, intervals and flip points.
#[test]
fn where_operations_run_is_what_it_was() {
    let mut out = String::new();
    let studies = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../studies/where"));
    for study in ["btree", "counter", "embedding", "get", "list", "scan"] {
        let operation = Operation::load(&studies.join(study).with_extension("toml")).unwrap();
        for name in Platform::built_in() {
            let options = WhereOptions { points: 16, simulated: 200, ..WhereOptions::default() };
            let answer = where_::decide(&Platform::load(name).unwrap(), &operation, &options).unwrap();
            let digest = digest(&serde_json::to_string(&answer).unwrap());
            let _ = writeln!(out, "{study} {name}: {digest:016x}");
            for candidate in &answer.ranking {
                let (place, alone, p50) = (candidate.place.name(), candidate.alone_ns, candidate.p50_ns);
                let _ = writeln!(out, "  {place} {alone} {p50} {} {}", candidate.ops_per_s, candidate.binding);
            }
        }
    }
    compare("figures-where.txt", &out);
}

/// The sequencers of the BlueField paper, and what its platforms are fitted to: calls on trees, on the spot and on nothing.
#[test]
fn sequencers_and_trees_on_cards_are_what_they_were() {
    let options = ReproduceOptions { figure: Some("11".into()), jobs: 2, cache: None, seed: 42 };
    let all = reproduce::reproduce(&BlueField::default(), &options, &mut |_| true).unwrap();
    let mut out = reproduce::csv(&all.figures[0]);
    for fitted in &all.fitted {
        let _ = writeln!(out, "{} = {}", fitted.what, fitted.value);
    }
    compare("figures-bluefield.txt", &out);
}

/// The racks of the DFabric paper: an all-reduce, a round trip and streams by every mechanism, and what the platform is fitted
/// to.
#[test]
fn racks_are_what_they_were() {
    let (mut out, mut fitted) = (String::new(), String::new());
    for figure in ["2", "9f", "11", "IV"] {
        let options = ReproduceOptions { figure: Some(figure.into()), jobs: 2, cache: None, seed: 42 };
        let all = reproduce::reproduce(&DFabric, &options, &mut |_| true).unwrap();
        all.figures.iter().for_each(|figure| out += &reproduce::csv(figure));
        fitted = all.fitted.iter().map(|fitted| format!("{} = {}\n", fitted.what, fitted.value)).collect();
    }
    compare("figures-dfabric.txt", &(out + &fitted));
}

fn compare(file: &str, now: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
    if std::env::var("REMORA_FIGURES").is_ok_and(|how| how == "write") {
        std::fs::write(&file, now).unwrap();
    }
    let then = std::fs::read_to_string(&file).unwrap();
    for (now, then) in now.lines().zip(then.lines()) {
        assert_eq!(now, then, "{}", file.display());
    }
    assert_eq!(now.lines().count(), then.lines().count());
}

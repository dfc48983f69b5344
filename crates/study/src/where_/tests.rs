//! Metamorphic tests: what must move a result, in which direction and by how much.

use std::cell::RefCell;

use super::*;

fn operation(accesses: f64, reply: f64) -> Operation {
    Operation {
        title: "test".into(),
        accesses: vec![Access { count: accesses, bytes: 64.0, kind: Kind::Read, dependent: true }],
        request: 28.0,
        reply,
        uneven: false,
        cycles: 0.0,
        pipeline_cycles: 0.0,
        state: 1e9,
        item: 64.0,
        skew: 0.0,
        writes: 0.0,
        memory: Memory::Host,
        load: Load::Closed(1),
        clients: Clients::default(),
    }
}

fn alone(platform: &Platform, operation: &Operation, place: Placement) -> f64 {
    path_of(platform, operation, place, (LinkKind::Udp, 1)).expect("the platform has the place").alone()
}

fn strom() -> Platform {
    Platform::load("strom-10g").unwrap()
}

const READ: &str = "host.pcie.read_latency";

#[test]
fn a_read_takes_what_the_paper_says() {
    // StRoM 6.2: a network round trip of about 5 us, and 1.5 us of PCIe. Nothing is fitted: the depth of the data path,
    // an estimate, stands in the middle of its range.
    let read = alone(&strom(), &operation(1.0, 64.0), Placement::Client);
    assert!((read / 6_500.0 - 1.0).abs() < 0.15, "{read} ns");
}

#[test]
fn doubling_the_pcie_latency_adds_one_for_each_access() {
    let (strom, accesses) = (strom(), 8.0);
    let slow = strom.with(&[(READ, 3e6)]).unwrap();
    for place in [Placement::Client, Placement::Nic] {
        let operation = operation(accesses, 64.0);
        let added = alone(&slow, &operation, place) - alone(&strom, &operation, place);
        // The parameters of a call of the NIC come in the command.
        assert!((added - accesses * 1500.0).abs() < 1e-6, "{place}: {added} ns for {accesses} reads of 1500 ns");
    }
    let operation = operation(accesses, 64.0);
    let added = alone(&slow, &operation, Placement::Host) - alone(&strom, &operation, Placement::Host);
    // The host's cores read their own memory; only parameters and reply are fetched over PCIe.
    assert!((added - 2.0 * 1500.0).abs() < 1e-6, "host: {added} ns");
}

#[test]
fn more_dependent_accesses_favour_the_node() {
    let strom = strom();
    let gain = |accesses| {
        let operation = operation(accesses, 64.0);
        alone(&strom, &operation, Placement::Client) / alone(&strom, &operation, Placement::Nic)
    };
    let gains: Vec<f64> = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0].map(gain).to_vec();
    assert!(gains.is_sorted_by(|a, b| a < b), "{gains:?}");
    assert!(gains[0] < 1.1 && gains[5] > 3.0, "{gains:?}");
}

#[test]
fn each_client_access_is_a_round_trip() {
    let strom = strom();
    let times: Vec<f64> = (1..=4).map(|n| alone(&strom, &operation(f64::from(n), 64.0), Placement::Client)).collect();
    // And a turn of the core to the kernel, 11 ns, before the first.
    for pair in times.windows(2) {
        assert!((pair[1] - pair[0] - (times[0] - 11.0)).abs() < 1e-6, "{times:?}");
    }
}

#[test]
fn halving_the_wire_doubles_the_time_on_it() {
    let strom = strom();
    let slow = strom.with(&[("ethernet.rate", 0.625e9)]).unwrap();
    let operation = operation(1.0, 1024.0);
    let added = alone(&slow, &operation, Placement::Nic) - alone(&strom, &operation, Placement::Nic);
    // 28 + 24 + 82 + 16 bytes out and 1024 + 82 + 20 back, at 0.8 ns a byte.
    assert!((added - (150.0 + 1126.0) * 0.8).abs() < 1e-6, "{added} ns");
}

#[test]
fn halving_the_clock_doubles_the_pipeline() {
    let strom = strom();
    let slow = strom.with(&[("nic.pipeline.clock", 78.125e6)]).unwrap();
    let operation = operation(1.0, 64.0);
    let added = alone(&slow, &operation, Placement::Nic) - alone(&strom, &operation, Placement::Nic);
    // Two messages pass two data paths each, 125 cycles deep, and are held until they are whole, in words of 8 bytes, at both
    // ends: 28 + 24 + 32 and 64 + 36 bytes. The kernel has its parameters in one cycle, takes two steps of 10, and one cycle
    // for the bytes of its access.
    let cycles = 4.0 * 125.0 + 2.0 * (11.0 + 13.0) + 1.0 + 20.0 + 1.0;
    assert!((added - cycles * 6.4).abs() < 1e-6, "{added} ns for {cycles} cycles of 6.4 ns");
}

#[test]
fn a_bigger_reply_costs_all_places_alike_on_the_wire() {
    let strom = strom();
    let added = |place| alone(&strom, &operation(2.0, 1024.0), place) - alone(&strom, &operation(2.0, 64.0), place);
    // The nic's reply is 960 bytes longer: 0.8 ns a byte on the wire, 120 words twice in the data path's memory, and
    // the store into the client's memory, with three more headers of 24 bytes.
    let expected = 960.0 * 0.8 + 2.0 * 120.0 * 6.4 + (960.0 + 72.0) / 7.87;
    assert!((added(Placement::Nic) - expected).abs() < 1.0, "{} against {expected}", added(Placement::Nic));
    assert!(added(Placement::Host) > added(Placement::Nic), "the host's NIC also fetches the reply over PCIe");
    assert_eq!(added(Placement::Client), 0.0, "what the client reads is what its accesses say");
}

#[test]
fn the_closed_loop_keeps_its_bounds() {
    for name in Platform::built_in() {
        let platform = Platform::load(name).unwrap();
        for under_way in [1, 4, 64, 1024] {
            let operation = Operation { load: Load::Closed(under_way), ..operation(3.0, 256.0) };
            for candidate in rank(&platform, &operation, &WhereOptions::default()) {
                let n = f64::from(under_way);
                let most = candidate.saturation_per_s.min(n * 1e9 / candidate.alone_ns) * 1.0001;
                assert!(candidate.ops_per_s <= most, "{name}, {under_way} under way: {candidate:?}");
                assert!(
                    candidate.p50_ns >= candidate.alone_ns && candidate.p99_ns >= candidate.p50_ns,
                    "{candidate:?}"
                );
            }
        }
    }
}

#[test]
fn the_simulation_agrees_with_the_screen_where_both_are_exact() {
    for name in ["strom-10g", "rambda", "bluefield2"] {
        let platform = Platform::load(name).unwrap();
        let one = operation(4.0, 64.0);
        for candidate in rank(&platform, &one, &WhereOptions::default()) {
            let path = path_of(&platform, &one, candidate.place, (LinkKind::Udp, 1)).unwrap();
            let alone = simulate::run(candidate.place, &path, Load::Closed(1), 2000, 1).unwrap();
            let mean = 1e9 / alone.ops_per_s;
            assert!((mean / candidate.alone_ns - 1.0).abs() < 0.02, "{name}: {alone:?} against {candidate:?}");
            let full = simulate::run(candidate.place, &path, Load::Closed(512), 6000, 1).unwrap();
            let part = full.ops_per_s / candidate.saturation_per_s;
            assert!((0.93..1.03).contains(&part), "{name}, saturated: {full:?} against {candidate:?}");
        }
    }
}

/// However much an operation moves, and however many servers it holds on its way, its simulation ends.
#[test]
fn operations_of_gigabytes_and_of_thousands_of_accesses_end() {
    let platform = Platform::load("rambda").unwrap();
    for large in [Operation { state: 1e12, ..operation(1.0, 2e9) }, operation(4096.0, 64.0)] {
        for candidate in rank(&platform, &large, &WhereOptions { points: 1, ..WhereOptions::default() }) {
            let path = path_of(&platform, &large, candidate.place, (LinkKind::Udp, 1)).unwrap();
            let run = simulate::run(candidate.place, &path, Load::Closed(4), 20_000, 1);
            let run = run.unwrap_or_else(|| panic!("none ended: {candidate:?}"));
            let part = 4e9 / run.ops_per_s / candidate.alone_ns;
            assert!((0.5..4.5).contains(&part), "{run:?} against {candidate:?}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_answer() {
    let options = WhereOptions { simulated: 500, points: 16, ..WhereOptions::default() };
    let answer = || serde_json::to_string(&decide(&strom(), &operation(4.0, 64.0), &options).unwrap()).unwrap();
    assert_eq!(answer(), answer());
}

#[test]
fn an_answer_says_how_far_it_is() {
    let options = WhereOptions { simulated: 500, points: 16, ..WhereOptions::default() };
    let parts = RefCell::new(Vec::new());
    let watch = |part| {
        parts.borrow_mut().push(part);
        false
    };
    decide_until(&strom(), &operation(4.0, 64.0), &options, &watch).unwrap();
    let parts = parts.into_inner();
    assert!(parts.is_sorted() && parts[0] == 0.0 && (DRAWN..1.0).contains(&parts[parts.len() - 1]), "{parts:?}");
}

#[test]
fn flips_are_where_the_best_changes() {
    let (strom, operation) = (strom(), operation(4.0, 64.0));
    let options = WhereOptions { simulated: 0, points: 16, ..WhereOptions::default() };
    let answer = decide(&strom, &operation, &options).unwrap();
    let best = answer.ranking[0].place;
    let flip = answer.flips.iter().find(|flip| flip.what == READ).expect("PCIe decides between nic and host");
    let at = |factor: f64| {
        rank(&strom.with(&[(READ, 1.5e6 * flip.factor * factor)]).unwrap(), &operation, &options)[0].place
    };
    let (under, over) = (at(0.999), at(1.001));
    assert_ne!(under, over);
    assert_eq!(if flip.while_under { under } else { over }, best, "{}", flip.line(best));
    assert_eq!(if flip.while_under { over } else { under }, flip.then);
}

#[test]
fn what_open_values_leave_undecided_is_named() {
    let (strom, operation) = (strom(), operation(4.0, 64.0));
    let options = WhereOptions { simulated: 0, points: 64, ..WhereOptions::default() };
    let answer = decide(&strom, &operation, &options).unwrap();
    for (candidate, interval) in answer.ranking.iter().zip(&answer.intervals) {
        let (low, high) = interval.p50_ns;
        assert!(low <= candidate.p50_ns && candidate.p50_ns <= high, "{candidate:?} {interval:?}");
    }
    assert!(answer.contributions.is_sorted_by(|a, b| a.swing >= b.swing));
    // The same platform with a PCIe latency at which nic and host are as good as each other.
    let flip = answer.flips.iter().find(|flip| flip.what == READ).unwrap();
    let even = strom.with(&[(READ, 1.5e6 * flip.factor)]).unwrap();
    let answer = decide(&even, &operation, &options).unwrap();
    assert!(!answer.decided || answer.line.contains("level"), "{}", answer.line);
}

/// A lead that is smaller than the screen is known to be off is not a sure one.
#[test]
fn what_the_screen_is_off_by_elsewhere_counts_in_its_certainty() {
    let (strom, operation) = (strom(), operation(4.0, 64.0));
    let options = WhereOptions { points: 16, ..WhereOptions::default() };
    let (ranking, points) = (rank(&strom, &operation, &options), uncertain::points(&strom, &operation, &options));
    let best = ranking[0].place;
    let sure = |off: &[f64]| {
        let drawn = |off: &f64| options.corrected(&ranking, &[(best, off * ranking[0].p50_ns)]).unwrap();
        uncertain::weigh(&points, &ranking, &off.iter().map(drawn).collect::<Vec<_>>())
    };
    let exact = sure(&[1.0]).certainty;
    assert!(exact > 0.5 && sure(&[0.1]).certainty == 1.0 && sure(&[100.0]).certainty == 0.0, "{exact}");
    assert_eq!(sure(&[1.0, 1.0, 1.0, 100.0]).certainty, exact * 0.75);
    // Who never comes near it need not be asked.
    assert_eq!(sure(&[1e-3]).near, [best]);
    assert!(sure(&[1.0]).near.len() > 1);
}

/// Two that one run has alike and the next one a tenth apart are not called level.
#[test]
fn level_needs_runs_that_agree() {
    let (strom, operation) = (strom(), operation(4.0, 64.0));
    let options = WhereOptions { simulated: 0, points: 1, ..WhereOptions::default() };
    let mut answer = decide(&strom, &operation, &options).unwrap();
    let [best, second] = [0, 1].map(|at| answer.ranking[at].place);
    let says = |runs: &[f64], answer: &mut Answer| {
        let runs: Vec<Costs> = runs.iter().map(|of| vec![(best, 1000.0), (second, 1000.0 * of)]).collect();
        let corrected = options.corrected(&answer.ranking, &means(&runs)).unwrap();
        (answer.decided, answer.by) = (true, DecidedBy::Engine);
        line(&strom, answer, &corrected, &runs)
    };
    let agree = says(&[1.02, 1.04, 0.99], &mut answer);
    assert!(agree.contains("are level"), "{agree}");
    for runs in [[1.02, 1.11, 0.99], [0.9, 1.1, 1.1]] {
        let differ = says(&runs, &mut answer);
        assert!(differ.contains("as good as any") && differ.contains("run by run"), "{differ}");
    }
    let ahead = says(&[1.2, 1.1, 1.0], &mut answer);
    assert!(ahead.contains("1.10 x faster"), "{ahead}");
}

#[test]
fn skew_and_writers_serialise_on_the_popular_item() {
    let strom = strom();
    let rate = |writes, skew| {
        let operation = Operation { writes, skew, load: Load::Closed(256), ..operation(2.0, 64.0) };
        rank(&strom, &operation, &WhereOptions::default()).into_iter().find(|c| c.place == Placement::Client).unwrap()
    };
    assert!(rate(0.5, 1.2).saturation_per_s < rate(0.0, 1.2).saturation_per_s);
    assert_eq!(rate(1.0, 2.0).binding, "most popular item");
}

#[test]
fn the_modelled_world_agrees_with_the_screen() {
    // Two models that share nothing but the platform's values.
    let (strom, operation) = (strom(), operation(5.0, 64.0));
    for candidate in rank(&strom, &operation, &WhereOptions::default()) {
        let run = world::run(&strom, &operation, candidate.place, (50, 1)).expect("it runs").unwrap();
        let ratio = run.p50_ns as f64 / candidate.p50_ns;
        assert!((0.75..1.3).contains(&ratio), "{run:?} against {candidate:?}");
    }
    // With many under way as well, where the client's commands are the limit if it has but one core.
    for name in ["bluefield2", "dfabric"] {
        let platform = Platform::load(name).unwrap();
        let operation = Operation { load: Load::Closed(64), ..operation.clone() };
        let ranking = rank(&platform, &operation, &WhereOptions::default());
        let best = &ranking[0];
        let run = world::run(&platform, &operation, best.place, (500, 1)).expect("it runs").unwrap();
        let ratio = run.p50_ns as f64 / best.p50_ns;
        assert!((0.75..1.3).contains(&ratio), "{name}: {run:?} against {best:?}");
    }
}

struct Quiet;

impl crate::compare::Watch for Quiet {
    fn progress(&self, _: crate::compare::Progress<'_>) {}

    fn stop(&self) -> bool {
        false
    }
}

fn plan() -> crate::compare::Plan {
    crate::compare::Plan {
        operations: vec![crate::operations::LIST],
        seed: 1,
        distribution: crate::workload::Distribution::Uniform,
        time: std::time::Duration::from_millis(60),
        placements: Vec::new(),
        writer_updates_per_s: 0,
        rings: false,
        auto: false,
        keep: Default::default(),
    }
}

#[test]
fn a_comparison_on_a_platform_gives_the_same_answer() {
    // One question, one answer: a client of one thread, with as many under way. Of places that no cache of cores lies before,
    // as the two lay their lists out differently.
    let plan = plan();
    let records = crate::records::Records::generate(300, 64, 1);
    for name in ["strom-10g", "bluefield2"] {
        let platform = Platform::load(name).unwrap();
        let (on, _) = crate::on::compare_on(&platform, &plan, &records, None, &Quiet).unwrap();
        for row in on.rows.iter().filter(|row| matches!(row.placement, Placement::Client | Placement::Nic)) {
            let elements = row.parameter.expect("lists have a length") as f64;
            let answer = |under_way| {
                let operation = Operation { load: Load::Closed(under_way), ..operation(elements + 1.0, 64.0) };
                world::run(&platform, &operation, row.placement, (2_000, 1)).expect("it runs").unwrap()
            };
            let (one, many) = (answer(1), answer(64));
            let off = [
                one.p50_ns as f64 / row.in_flight_1.p50_ns as f64 - 1.0,
                many.ops_per_s / row.in_flight_64.ops_per_s - 1.0,
            ];
            assert!(off.iter().all(|off| off.abs() < 0.05), "{name} {} {elements}: {off:?}", row.placement);
        }
    }
}

/// What machines take at an open load, in watts.
fn watts(platform: &Platform, operation: &Operation, place: Placement) -> f64 {
    let ranking = rank(platform, operation, &WhereOptions::default());
    let found = ranking.iter().find(|candidate| candidate.place == place).expect("the place");
    found.ops_per_s / found.ops_per_joule.expect("power")
}

#[test]
fn a_thread_takes_the_power_of_a_core_and_a_client_that_of_a_machine() {
    let platform = Platform::load("bluefield2").unwrap();
    let (power, cores) = (platform.power.clone().unwrap(), platform.client.cores as f64);
    let at = |machines, threads| {
        let clients = Clients { machines, threads, ..Clients::default() };
        let operation = Operation { clients, load: Load::Open(1e5), ..operation(4.0, 64.0) };
        watts(&platform, &operation, Placement::Nic)
    };
    let (one, two) = (at(1, 1), at(1, 2));
    let core = (power.host_active - power.host_idle) / cores;
    assert!((two - one - core).abs() < 0.05 * core, "{} W more for a thread, {core} of a core", two - one);
    let more = at(2, 1) - one;
    let machine = power.host_idle + core + power.nic_idle..power.host_idle + 2.0 * core + power.nic_active;
    assert!(machine.contains(&more), "{more} W more for a client, of {machine:?}");
}

#[test]
fn the_screen_and_the_engine_count_the_same_joules() {
    let platform = Platform::load("bluefield2").unwrap();
    for (place, under_way) in [(Placement::Host, 1), (Placement::Nic, 8), (Placement::Client, 8)] {
        let operation = Operation { load: Load::Closed(under_way), ..operation(5.0, 64.0) };
        let ranking = rank(&platform, &operation, &WhereOptions::default());
        let screen = ranking.iter().find(|candidate| candidate.place == place).unwrap().ops_per_joule.unwrap();
        let run = world::run(&platform, &operation, place, (2_000, 1)).expect("it runs").unwrap();
        let ratio = run.joules_per_op.unwrap() * screen;
        assert!((ratio - 1.0).abs() < 0.1, "{place}, {under_way} under way: {ratio} of the screen's");
    }
}

/// A wire that is full carries an acknowledgement for each message, but for those that wait at a NIC together.
#[test]
fn what_wires_carry_is_what_the_engine_has_them_carry() {
    for (name, place) in [
        ("strom-10g", Placement::Nic),
        ("strom-10g", Placement::Host),
        ("rambda", Placement::Host),
        ("rambda", Placement::Accelerator),
    ] {
        let platform = Platform::load(name).unwrap();
        for (machines, threads, under_way) in [(1, 1, 64), (1, 1, 128), (1, 8, 128), (2, 8, 128), (2, 8, 256)] {
            let clients = Clients { machines, threads, ..Clients::default() };
            // The parameters of a walk of a list.
            let list = Operation { request: 36.0, state: 1e9, ..operation(2.0, 64.0) };
            let operation = Operation { clients, load: Load::Closed(under_way), ..list };
            let ranking = rank(&platform, &operation, &WhereOptions::default());
            let screen = ranking.iter().find(|candidate| candidate.place == place).unwrap();
            let count = 30 * u64::from(under_way);
            let run = world::run(&platform, &operation, place, (count, 1)).expect("it runs").unwrap();
            let what = format!("{name} {place}, {machines} x {threads}, {under_way} under way");
            let off = [screen.p50_ns / run.p50_ns as f64 - 1.0, screen.ops_per_s / run.ops_per_s - 1.0];
            assert!(off.iter().all(|off| off.abs() < 0.15), "{what}: {off:?} of {run:?}");
            let most = screen.saturation_per_s / run.ops_per_s;
            assert!(most > 0.93 && (under_way < 256 || most < 1.15), "{what}: {most} of {run:?}");
        }
    }
}

/// What the screen does not know is the engine's to say, and where it says nothing, that is told.
#[test]
fn an_answer_says_what_its_figures_leave_out() {
    let platform = Platform::load("rambda").unwrap();
    let options = WhereOptions { simulated: 200, points: 1, flips: 1, ..WhereOptions::default() };
    let said = |operation: &Operation| {
        let answer = decide(&platform, operation, &options).unwrap();
        let notes = notes(operation, Goal::Latency, &answer).join("\n");
        (answer, notes)
    };
    let whole = operation(2.0, 64.0);
    let clients = Clients { machines: 8, loss: 0.1, ..Clients::default() };
    let (answer, lossy) = said(&Operation { clients, load: Load::Closed(8), ..whole.clone() });
    assert_eq!((answer.by, answer.world.len()), (DecidedBy::Engine, answer.ranking.len()));
    assert!(lossy.contains("the table is without lost packets"), "{lossy}");
    let (_, long) = said(&Operation { clients, ..operation(600.0, 64.0) });
    assert!(long.contains("warning: lost packets are left out"), "{long}");
    let (_, many) = said(&Operation { load: Load::Closed(512), ..whole.clone() });
    assert!(many.contains("with 128 of 512 under way") && !many.contains("lost"), "{many}");
    let (flooded, _) = said(&Operation { load: Load::Open(1e9), ..whole.clone() });
    assert!(flooded.line.contains("no place") && flooded.flips.is_empty(), "{flooded:?}");
    let (_, plain) = said(&whole);
    assert_eq!(plain, "");
}

#[test]
fn engines_serve_as_many_times_as_much_until_memory_is_full() {
    let machine = crate::validate::round_machine();
    let most = |operation: &Operation, engines| {
        let ranking = rank(&machine, operation, &WhereOptions { engines, ..WhereOptions::default() });
        let nic = ranking.into_iter().find(|candidate| candidate.place == Placement::Nic).unwrap();
        (nic.saturation_per_s, nic.alone_ns, nic.binding)
    };
    // All in cache: nothing is shared, and one alone is as quick as before.
    let small = Operation { state: 16384.0, ..operation(3.0, 64.0) };
    let (one, alone, _) = most(&small, 1);
    for engines in [2, 16] {
        let (all, alone_too, binding) = most(&small, engines);
        assert!((all / one / f64::from(engines) - 1.0).abs() < 1e-9, "{engines}: {all} of {one}");
        assert_eq!((alone_too, binding), (alone, "software NIC"));
    }
    // From memory: eight lines of 64 B each of 8 accesses make 4096 B, of which 20 GB/s bring 4.88 M/s.
    let mut large = Operation { state: 1e12, ..operation(8.0, 64.0) };
    large.accesses[0].bytes = 512.0;
    let (all, _, binding) = most(&large, 256);
    assert!((all / (20e9 / 4096.0) - 1.0).abs() < 0.01 && binding == "host memory", "{all}, {binding}");
    assert!(most(&large, 2).0 > 1.99 * most(&large, 1).0);
}

/// Templates are what the comparison does, without what its kernels do not compute: its table and lists are more than an
/// accelerator's cache holds and less than a host's, its tree is small, and a client keeps the inner nodes of that.
#[test]
fn templates_and_the_comparison_on_a_platform_give_the_same_figures() {
    use crate::operations::{GET_HIT, LIST, SEQUENCER, TREE_GET};
    let (operations, time) = (vec![LIST, GET_HIT, TREE_GET, SEQUENCER], std::time::Duration::from_millis(30));
    let plan = crate::compare::Plan { operations, time, ..plan() };
    let records = crate::records::Records::generate(300, 64, 1);
    for name in ["strom-10g", "rambda", "bluefield2"] {
        let platform = Platform::load(name).unwrap();
        let (on, _) = crate::on::compare_on(&platform, &plan, &records, None, &Quiet).unwrap();
        for row in &on.rows {
            let (template, counts, bytes, state) = match (row.operation.name(), row.parameter) {
                ("list", Some(elements @ ..=8)) => ("list", [elements as f64, 1.0], 64.0, 1e6),
                ("get-hit", _) => ("get", [1.0, 1.0], 91.0, 1e6),
                ("tree-get", _) if row.placement == Placement::Client => ("btree", [1.0, 0.0], 512.0, 8e3),
                ("tree-get", _) => ("btree", [2.0, 0.0], 512.0, 8e3),
                ("sequencer", Some(1)) => ("counter", [1.0, 0.0], 8.0, 64.0),
                _ => continue,
            };
            let mut operation = Operation::load(std::path::Path::new(template)).unwrap();
            (operation.skew, operation.cycles, operation.pipeline_cycles) = (0.0, 0.0, 0.0);
            operation.accesses.iter_mut().zip(counts).for_each(|(access, count)| access.count = count);
            operation.accesses.last_mut().unwrap().bytes = bytes;
            operation.state = state;
            if template == "get" {
                operation.reply = bytes;
            }
            for (under_way, engine) in [(1, &row.in_flight_1), (64, &row.in_flight_64)] {
                let operation = Operation { load: Load::Closed(under_way), ..operation.clone() };
                let options = WhereOptions { simulated: 0, points: 1, flips: 0, ..WhereOptions::default() };
                let answer = decide(&platform, &operation, &options).unwrap();
                let screen = answer.ranking.iter().find(|candidate| candidate.place == row.placement).unwrap();
                let off = [screen.p50_ns / engine.p50_ns as f64 - 1.0, screen.ops_per_s / engine.ops_per_s - 1.0];
                let what = format!("{name} {template} {counts:?} {}, {under_way} under way", row.placement);
                assert!(off[0].abs() < 0.12 && off[1].abs() < 0.15, "{what}: {off:?} of {engine:?}");
            }
        }
    }
}

//! The short form; the long one is `remora storm chain`.

use super::*;

#[test]
fn storms_pass_and_repeat() {
    let (mut blackouts, mut looks) = (0, [0; LOOKS.len()]);
    for seed in 1..6 {
        let case = ChainCase { seed, nodes: 3, mutation: None };
        let report = run(&case);
        assert_eq!(report.failure, None, "{}\n{}", case.command(), report.states.join("\n"));
        assert!(report.history.iter().filter(|txn| txn.end == ChainEnd::Done).count() > 50, "seed {seed}");
        blackouts += report.blackouts;
        looks.iter_mut().zip(report.looks).for_each(|(sum, count)| *sum += count);
        if seed == 1 {
            assert_eq!(run(&case).history, report.history, "storms repeat");
        }
    }
    assert!(blackouts > 0 && looks[0] > 50 && looks[2] > 0, "{looks:?}");
}

/// What processes keep is a log on a disk: syncs fail, sectors go bad, and disks are full.
#[test]
fn storms_of_logs_pass() {
    let (mut failed, mut bad, mut full) = (0, 0, 0);
    for seed in 1..40 {
        let case = ChainCase { seed, nodes: 3, mutation: None };
        let report = run(&case);
        assert_eq!(report.failure, None, "{}\n{}", case.command(), report.states.join("\n"));
        (failed, bad, full) = (failed + report.faults[10], bad + report.faults[11], full + report.faults[15]);
    }
    assert!(failed > 0 && bad > 0 && full > 0, "{failed} {bad} {full}");
}

#[test]
fn storms_that_failed_once_pass() {
    // A view's log was sent to all of the chain at once: its end showed readers what one before it had yet to be sent, and the
    // next view began with that one's log.
    // A learner went on to ask for data when its disk was full.
    for seed in [1186, 152] {
        let case = ChainCase { seed, nodes: 3, mutation: None };
        let report = run(&case);
        assert_eq!(report.failure, None, "{}\n{}", case.command(), report.states.join("\n"));
    }
}

#[test]
fn storms_of_fewer_and_more_nodes_pass() {
    for (nodes, seed) in [(1, 1), (2, 1), (2, 2), (2, 3), (4, 1), (5, 1)] {
        let case = ChainCase { seed, nodes, mutation: None };
        let report = run(&case);
        assert_eq!(report.failure, None, "{}\n{}", case.command(), report.states.join("\n"));
    }
}

/// Each is found among the first storms; `remora storm chain --mutant all` shows how.
#[test]
fn each_seeded_fault_is_found() {
    for (name, mutation) in CHAIN_STORM_MUTANTS {
        let failure = |seed| run(&ChainCase { seed, nodes: 3, mutation: Some(mutation) }).failure;
        let found = (1..200).filter_map(failure).next();
        // One has all wait for ever; with the others something is wrong. Who has lost what it had acknowledged says so where others
        // know more, and then nobody may be left.
        let waits = mutation == ChainMutation::KeepsEarly;
        let as_it_must = match &found {
            Some(ChainFailure::Wrong(_)) => !waits,
            Some(ChainFailure::Stuck(_)) => waits || mutation == ChainMutation::EarlyAck,
            _ => false,
        };
        assert!(as_it_must, "{name}: {found:?}");
    }
}

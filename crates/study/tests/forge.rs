//! A short form of `remora bench forge`: no connection ends, no byte changes. How fast it goes is for the command to say.

use remora_study::forge::{ForgeStudy, Target};

fn run(target: Target) {
    let (targets, remora, stop) = (vec![target], "remora".into(), Default::default());
    let study = ForgeStudy { packets: 12_000, rate: 0, targets, remora, seed: 42, stop };
    // A machine that stands still for two seconds ends connections too, and whatever forged packets end they end each time.
    let mut unsound = vec![true; 6];
    for _ in 0..5 {
        let rows = study.run(&mut |_, _| true).0.whole().expect("it runs");
        assert_eq!(rows.len(), 6);
        for (row, unsound) in rows.iter().zip(&mut unsound) {
            println!("{row:?}");
            assert_eq!((row.flood.packets, row.wrong), (12_000, 0), "{}", row.forgery.name());
            *unsound &= !row.is_sound();
        }
        if !unsound.contains(&true) {
            return;
        }
    }
    panic!("connections end under forged packets: {unsound:?}");
}

#[test]
fn a_node_takes_no_harm() {
    run(Target::Node);
}

#[test]
fn a_cluster_takes_no_harm() {
    run(Target::Cluster);
}

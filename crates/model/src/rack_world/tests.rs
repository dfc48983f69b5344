use super::*;

const NIC: f64 = 125e6;

fn spec(system: RackSystem, programs: Vec<Vec<RackStep>>) -> RackWorldSpec {
    let small_queues = matches!(system, RackSystem::Baseline { .. });
    RackWorldSpec {
        system,
        nic_bytes_per_s: NIC,
        programs,
        receive_copied: true,
        small_queues,
        slice: Ps(100_000_000_000),
    }
}

fn one_way(from: usize, to: usize, bytes: u64) -> Vec<Vec<RackStep>> {
    let mut programs = vec![Vec::new(); 4];
    programs[from].push(RackStep::Send { to, bytes });
    programs[to].push(RackStep::Receive { from, bytes });
    programs
}

fn mbps(spec: &RackWorldSpec) -> f64 {
    let figures = run(&Platform::load("dfabric").unwrap(), spec).unwrap();
    figures.delivered as f64 * 8.0 / figures.end.as_secs() / 1e6
}

fn baseline() -> RackSystem {
    RackSystem::Baseline { nics: 1 }
}

fn fabric(nics: usize) -> RackSystem {
    RackSystem::Fabric(FabricSpec::whole(nics))
}

#[test]
fn a_stream_gets_its_link_and_the_pool_gives_it_two() {
    for to in [1, 2] {
        let mut spec = spec(baseline(), one_way(0, to, 8 << 20));
        let got = mbps(&spec);
        assert!((900.0..1000.0).contains(&got), "{got} Mb/s");
        spec.nic_bytes_per_s = NIC / 8.0;
        let got = mbps(&spec);
        assert!((110.0..125.0).contains(&got), "{got} Mb/s");
    }
    let mut spec = spec(fabric(2), one_way(0, 2, 8 << 20));
    spec.nic_bytes_per_s = NIC / 8.0;
    let got = mbps(&spec);
    assert!((230.0..250.0).contains(&got), "{got} Mb/s");
}

#[test]
fn incast_drops_and_recovers_and_the_pool_drops_nothing() {
    let bytes = 4 << 20;
    let mut programs = vec![Vec::new(); 4];
    for from in 1..4 {
        programs[from].push(RackStep::Send { to: 0, bytes });
        programs[0].push(RackStep::Receive { from, bytes });
    }
    let platform = Platform::load("dfabric").unwrap();
    let ours = run(&platform, &spec(fabric(2), programs.clone())).unwrap();
    let base = run(&platform, &spec(baseline(), programs)).unwrap();
    assert!(base.dropped > 0 && base.resent >= base.dropped, "{base:?}");
    assert_eq!((ours.dropped, ours.resent, ours.timeouts), (0, 0, 0));
    assert_eq!((ours.delivered, base.delivered), (3 * bytes, 3 * bytes));
}

/// A port that is full drops what is sent again, too: what leaves later says so, and nobody waits for a timer of 200 ms.
#[test]
fn streams_that_share_a_link_fill_it_though_its_port_drops() {
    let platform = Platform::load("dfabric").unwrap();
    for bytes in [8 << 20, 64 << 20] {
        let mut programs = one_way(0, 2, bytes);
        programs[1].push(RackStep::Send { to: 3, bytes });
        programs[3].push(RackStep::Receive { from: 1, bytes });
        let figures = run(&platform, &spec(baseline(), programs)).unwrap();
        let part = figures.delivered as f64 / figures.end.as_secs() / NIC;
        assert!(figures.dropped > 0 && figures.timeouts == 0 && part > 0.8, "{part} of the link: {figures:?}");
    }
}

#[test]
fn each_mechanism_costs_something_when_it_is_off() {
    let with = |change: &dyn Fn(&mut FabricSpec)| {
        let mut fabric = FabricSpec::whole(4);
        change(&mut fabric);
        let mut spec = spec(RackSystem::Fabric(fabric), one_way(0, 2, 8 << 20));
        spec.nic_bytes_per_s = NIC / 4.0;
        mbps(&spec)
    };
    let all = with(&|_| ());
    type Change<'a> = &'a dyn Fn(&mut FabricSpec);
    let slower: [(&str, Change<'_>, f64); 4] = [
        ("cache", &|fabric| fabric.cached = false, 0.5),
        ("subflows", &|fabric| fabric.subflows = 1, 0.4),
        ("NICs", &|fabric| fabric.nics = 2, 0.6),
        ("memory", &|fabric| (fabric.device_share, fabric.devices) = (0.05, 1), 0.6),
    ];
    for (what, change, most) in slower {
        let got = with(change);
        assert!(got < all * most, "{what}: {got} of {all} Mb/s");
    }
}

#[test]
fn cores_that_stand_still_for_slow_memory_are_not_what_binds() {
    let bytes = 8 << 20;
    let busiest = |device_share| {
        let mut programs = one_way(0, 2, bytes);
        programs[1].push(RackStep::Send { to: 3, bytes });
        programs[3].push(RackStep::Receive { from: 1, bytes });
        let mut spec = spec(RackSystem::Fabric(FabricSpec { device_share, ..FabricSpec::whole(6) }), programs);
        spec.nic_bytes_per_s = NIC / 8.0;
        let figures = run(&Platform::load("dfabric").unwrap(), &spec).unwrap();
        let most = figures.busy.values().copied().fold(0.0, f64::max);
        assert_eq!((figures.binding.1, figures.busy[figures.binding.0.as_str()]), (most, most), "{figures:?}");
        (figures.binding.0, figures.end)
    };
    let (fast, slow) = (busiest(1.0), busiest(0.03));
    assert_eq!((fast.0.as_str(), slow.0.as_str()), ("a NIC of the pool", MEMORY_DEVICE));
    assert!(slow.1 > fast.1);
}

#[test]
fn subflows_that_nobody_puts_together_look_like_losses() {
    let bytes = 16 << 20;
    let with = |resequenced| {
        let mut programs = one_way(0, 2, bytes);
        programs[1].push(RackStep::Send { to: 3, bytes });
        programs[3].push(RackStep::Receive { from: 1, bytes });
        let fabric = FabricSpec { resequenced, ..FabricSpec::whole(5) };
        let mut spec = spec(RackSystem::Fabric(fabric), programs);
        spec.nic_bytes_per_s = NIC / 4.0;
        run(&Platform::load("dfabric").unwrap(), &spec).unwrap()
    };
    let (together, apart) = (with(true), with(false));
    assert!(together.resent == 0 && apart.resent > 0, "{together:?} {apart:?}");
    assert!(apart.end > together.end);
}

#[test]
fn the_same_world_comes_out_the_same() {
    let spec = spec(fabric(3), one_way(1, 3, 1 << 20));
    let platform = Platform::load("dfabric").unwrap();
    assert_eq!(run(&platform, &spec).unwrap(), run(&platform, &spec).unwrap());
}

#[test]
fn what_makes_no_sense_says_so() {
    let platform = Platform::load("dfabric").unwrap();
    let error = |spec| run(&platform, &spec).unwrap_err().to_string();
    assert!(error(spec(baseline(), vec![Vec::new(); 3])).contains("3 programs"));
    assert!(error(spec(baseline(), one_way(0, 0, 1))).contains("node 0 talks to node 0"));
    let waits = vec![vec![RackStep::Receive { from: 1, bytes: 1 }], Vec::new()];
    assert!(error(spec(baseline(), waits)).contains("1 programs never end"));
    let sends = vec![vec![RackStep::Send { to: 1, bytes: 9000 }], Vec::new()];
    assert!(error(spec(baseline(), sends)).contains("0 B received"));
    let other = Platform::load("minos").unwrap();
    assert!(run(&other, &spec(baseline(), one_way(0, 1, 1))).unwrap_err().to_string().contains("minos describes no"));
}

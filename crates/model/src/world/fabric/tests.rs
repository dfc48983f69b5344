//! Fabrics of several machines against sums by hand.

use remora_kernel::{Call, ConsistencyParams, Memory, SequencerParams, Status};
use remora_service::Placing;
use remora_store::{Place as Stored, list};

use super::*;
use crate::component::memory::MemoryParams;
use crate::component::switch::WhenFull;
use crate::resource::Order;
use crate::world::ConnectionId;
use crate::world::RawVerb;
use crate::world::network::{Cable, SwitchSpec};

/// StRoM's 10 Gbit/s: 0.8 ns a byte; packets of 1408 B with 82 B more.
fn strom(values: &[(&str, f64)]) -> Platform {
    let polls = [("client.core.poll", 0.0), ("host.core.poll", 0.0)];
    Platform::load("strom-10g").unwrap().with(&polls).unwrap().with(values).unwrap()
}

/// What payload gets of the wire in bytes a nanosecond.
const WIRE: f64 = 1.25 * 1408.0 / 1490.0;

fn star(machines: u16, when_full: WhenFull, buffer: u64) -> NetworkSpec {
    let switch = SwitchSpec { latency: Ps::from_ns(300), buffer, when_full, order: Order::InTurn, mark: 0 };
    NetworkSpec::star(switch, machines)
}

fn near(value: f64, by_hand: f64) {
    assert!((value / by_hand - 1.0).abs() < 0.02, "{value}, by hand {by_hand}");
}

/// Bytes a nanosecond that each connection gets which all WRITE at once, messages of 64 KB, eight under way.
fn write_rates(fabric: &mut Fabric, connections: &[ConnectionId], nodes: &[u16]) -> Vec<f64> {
    write_rates_of(60, fabric, connections, nodes)
}

/// The same of so many messages of each.
fn write_rates_of(each: u64, fabric: &mut Fabric, connections: &[ConnectionId], nodes: &[u16]) -> Vec<f64> {
    const LEN: u64 = 1 << 16;
    let regions: Vec<_> = nodes.iter().map(|node| fabric.alloc(*node, LEN).unwrap()).collect();
    let write = |fabric: &mut Fabric, at: usize| {
        fabric.submit_raw(connections[at], RawVerb::Write, &regions[at], LEN as u32, at as u32).unwrap();
    };
    for at in 0..connections.len() {
        (0..8).for_each(|_| write(fabric, at));
    }
    let (mut ended, mut first) = (vec![0u64; connections.len()], Ps::ZERO);
    while ended.iter().sum::<u64>() < each * connections.len() as u64 {
        let mut again = None;
        assert!(fabric.poll(&mut |done| again = Some(done.tag as usize)).unwrap());
        let at = again.unwrap();
        // Those of the first eight stand in each other's way from the start on.
        if ended.iter().all(|ended| *ended == 0) {
            (first, ended) = (fabric.now(), vec![0; connections.len()]);
        }
        ended[at] += 1;
        write(fabric, at);
    }
    let span = (fabric.now() - first).as_ns();
    ended.into_iter().map(|ended| ended as f64 * LEN as f64 / span).collect()
}

#[test]
fn two_clients_of_a_node_share_its_port_and_those_of_two_nodes_do_not() {
    for (nodes, each) in [(1, WIRE / 2.0), (2, WIRE)] {
        let network = star(2 + nodes, WhenFull::Pause, 1 << 20);
        let spec = FabricSpec::new(&strom(&[]), (2, nodes), network, (0, 7)).unwrap();
        let mut fabric = Fabric::new(&spec).unwrap();
        let of = [2, 1 + nodes];
        let connections = [0, 1].map(|client| fabric.connect(client, of[usize::from(client)]).unwrap());
        write_rates(&mut fabric, &connections, &of).into_iter().for_each(|rate| near(rate, each));
        let busiest = fabric.ports().into_iter().map(|port| port.busy).fold(0.0, f64::max);
        assert!(busiest > 0.95, "{busiest}");
        // What limits two clients of one node is the port to it.
        let usage = fabric.usage(2);
        let binding = crate::resource::binding(&usage).unwrap();
        assert!(nodes == 2 || binding.name == "switch port to it" && binding.busy > 0.95, "{usage:?}");
    }
}

#[test]
fn a_trunk_is_shared_by_all_that_cross_it() {
    let switch = SwitchSpec { buffer: 1 << 20, ..SwitchSpec::usual() };
    let link =
        EthernetParams { rate_bytes_per_s: 1.25e9, latency_ps: 500_000, overhead_bytes: 0, order: Order::InTurn };
    let uplink = |nic| Cable::Uplink { nic, switch: nic / 2 };
    let cables = (0..4).map(uplink).chain([Cable::Trunk { a: 0, b: 1, link }]).collect();
    let network = NetworkSpec { switches: vec![switch; 2], cables };
    let spec = FabricSpec::new(&strom(&[]), (2, 2), network, (0, 7)).unwrap();
    let mut fabric = Fabric::new(&spec).unwrap();
    let connections = [(0, 2), (1, 3)].map(|(client, node)| fabric.connect(client, node).unwrap());
    write_rates(&mut fabric, &connections, &[2, 3]).into_iter().for_each(|rate| near(rate, WIRE / 2.0));
}

#[test]
fn a_second_nic_doubles_the_rate_until_pcie_binds() {
    // TLPs of 256 B with 24 B more: a packet of 1408 B takes 1408 + 6 x 24 B. Commands come by a store of their own.
    let pcie = 1.6 * 1408.0 / (1408.0 + 6.0 * 24.0);
    for (one_slot, bandwidth, all) in [(false, 7.87, 2.0 * WIRE), (true, 7.87, 2.0 * WIRE), (true, 1.6, pcie)] {
        let cables = vec![Cable::Direct(0, 2), Cable::Direct(1, 3)];
        let network = NetworkSpec { switches: Vec::new(), cables };
        let platform = strom(&[("host.pcie.bandwidth", bandwidth * 1e9)]);
        let mut spec = FabricSpec::new(&platform, (1, 1), network, (0, 7)).unwrap();
        for machine in &mut spec.machines {
            (machine.nics, machine.one_slot) = (2, one_slot);
        }
        let mut fabric = Fabric::new(&spec).unwrap();
        let at = |machine, nic| NicAt { machine, nic };
        let connections = [0, 1].map(|nic| fabric.connect(at(0, nic), at(1, nic)).unwrap());
        near(write_rates(&mut fabric, &connections, &[1, 1]).into_iter().sum(), all);
    }
}

/// Eight senders to one port: what is marked has them slow down (DCQCN), so that the port's queue is short and nobody is held
/// back once rates are found.
#[test]
fn marks_keep_a_port_that_many_send_to_from_filling_up() {
    let run = |mark| {
        let mut network = star(9, WhenFull::Pause, 400_000);
        network.switches[0].mark = mark;
        let spec = FabricSpec::new(&strom(&[]), (8, 1), network, (0, 7)).unwrap();
        let mut fabric = Fabric::new(&spec).unwrap();
        let connections: Vec<_> = (0..8).map(|client| fabric.connect(client, 8).unwrap()).collect();
        // Rates take some milliseconds to be found.
        let rates = write_rates_of(600, &mut fabric, &connections, &[8; 8]);
        (rates.iter().sum::<f64>(), fabric.counts(), fabric.paused())
    };
    let ((plain, unmarked, held), (slowed, counts, hardly)) = (run(0), run(60_000));
    near(plain, WIRE);
    assert_eq!(unmarked.marked, 0);
    assert!(counts.marked > 1_000 && slowed > 0.8 * WIRE, "{slowed} of {WIRE}: {counts:?}");
    assert!(hardly < Ps(held.0 / 50), "held back for {hardly:?}, without marks for {held:?}");
}

#[test]
fn what_a_full_port_drops_comes_again_and_every_byte_is_right() {
    const LEN: usize = 200_000;
    // Room for ten packets; two senders fill it at once, and eight messages come from each.
    for (when_full, drops) in [(WhenFull::Drop, true), (WhenFull::Pause, false)] {
        let spec = FabricSpec::new(&strom(&[]), (2, 1), star(3, when_full, 15_000), (0, 7)).unwrap();
        let mut fabric = Fabric::new(&spec).unwrap();
        let mut expected = Vec::new();
        for client in 0..2 {
            let connection = fabric.connect(client, 2).unwrap();
            let (from, to) = (fabric.alloc(client, LEN as u64).unwrap(), fabric.alloc(2, LEN as u64).unwrap());
            let bytes: Vec<u8> = (0..LEN).map(|n| ((n * (3 + usize::from(client))) >> 5) as u8).collect();
            from.write(from.va(), &bytes).unwrap();
            for piece in 0..8 {
                let (at, len) = (piece * 25_000, 25_000);
                fabric.submit_write(connection, (&from, from.va() + at, len), (&to, to.va() + at), 0).unwrap();
            }
            expected.push((to, bytes));
        }
        let mut done = 0;
        while done < 16 {
            assert!(fabric.poll(&mut |end| done += u32::from(end.status == Status::Ok)).unwrap());
        }
        let counts = fabric.counts();
        assert_eq!((counts.dropped > 0, counts.retransmits > 0), (drops, drops), "{counts:?}");
        for (to, bytes) in expected {
            let mut there = vec![0; LEN];
            to.read(to.va(), &mut there).unwrap();
            assert!(there == bytes);
        }
    }
}

/// Reads 32 KB from where its parameters say, and answers their sum.
#[derive(Clone)]
struct Sum;

impl Kernel for Sum {
    async fn run<M: Memory>(&self, memory: &M, call: &mut Call) -> Status {
        let Some((key, va)) = call.params.split_first_chunk::<8>() else { return Status::BadParams };
        let mut bytes = vec![0; 1 << 15];
        let va = va.first_chunk().map_or(0, |va| u64::from_le_bytes(*va));
        if memory.read(u64::from_le_bytes(*key) as u32, va, &mut bytes).await.is_err() {
            return Status::AccessDenied;
        }
        let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
        call.reply.extend_from_slice(&sum.to_le_bytes());
        Status::Ok
    }
}

#[test]
fn machines_share_the_bandwidth_of_a_memory_device() {
    // Each node reaches 1 GB/s of memory over a link of its own of 4 GB/s; caches hold nothing.
    let rate = |readers: u16, placement: Placement| {
        let cables = vec![Cable::Direct(0, 2), Cable::Direct(1, 3)];
        let network = NetworkSpec { switches: Vec::new(), cables };
        let mut spec = FabricSpec::new(&strom(&[]), (2, 2), network, (1 << 40, 7)).unwrap();
        let memory = MemoryParams::dram(100_000, 1e9, 1);
        let params = MemoryDeviceParams { link_ps: 300_000, link_bytes_per_s: 4e9, memory, links: 2 };
        spec.devices.push(DeviceSpec { params, machines: vec![2, 3] });
        let mut fabric = Fabric::with_kernels(&spec, Sum, &[0x100]).unwrap();
        let regions = fabric.alloc_on_device(0, 1 << 15).unwrap();
        // What one machine writes the other reads.
        regions[0].write(regions[0].va(), &[3; 1 << 15]).unwrap();
        let (mut begun, mut ended) = (0, 0u32);
        let connections: Vec<_> = (0..readers).map(|n| fabric.connect(n, 2 + n).unwrap()).collect();
        while ended < 60 {
            while begun < 60 && begun - ended < 4 {
                let at = begun as usize % connections.len();
                let params = [u64::from(regions[at].key()), regions[at].va()].map(u64::to_le_bytes).concat();
                fabric.submit(connections[at], placement, 0x100, &params, 0).unwrap();
                begun += 1;
            }
            let went_on = fabric.poll(&mut |done| {
                assert_eq!((done.status, done.reply), (Status::Ok, &(3u64 << 15).to_le_bytes()[..]));
                ended += 1;
            });
            assert!(went_on.unwrap());
        }
        assert!(fabric.device_usage(0)[0].busy > 0.9, "{:?}", fabric.device_usage(0));
        60.0 * f64::from(1 << 15) / fabric.now().as_ns()
    };
    for placement in [Placement::Host, Placement::Nic] {
        let (one, two) = (rate(1, placement), rate(2, placement));
        assert!((0.9..1.001).contains(&one) && (0.9..1.001).contains(&two), "{placement}: {one}, {two} B/ns in all");
    }
}

#[test]
fn clients_call_kernels_on_many_nodes_and_get_each_ones_answer() {
    let run = || {
        let platform = Platform::load("rambda").unwrap();
        let spec = FabricSpec::new(&platform, (3, 3), star(6, WhenFull::Pause, 1 << 20), (0, 7)).unwrap();
        let mut fabric = Fabric::new(&spec).unwrap();
        let (mut connections, mut lists) = (Vec::new(), Vec::new());
        for node in 3..6u16 {
            let (elements, store) = (fabric.alloc(node, 64 * 4).unwrap(), fabric.alloc(node, 64 * 4).unwrap());
            let place = |region: &Region| Stored { va: region.va(), key: region.key() };
            let value = [node as u8; 64];
            let records = (0..4).map(|n| (n, &value[..]));
            let (list, image) = list::build(records, 64, place(&elements), place(&store));
            elements.write(elements.va(), &image.elements).unwrap();
            store.write(store.va(), &image.values).unwrap();
            lists.push(list.traversal_params(3).encode());
            connections.extend((0..3).map(|client| (fabric.connect(client, node).unwrap(), node)));
        }
        let mut came = Vec::new();
        for placement in Placement::ALL {
            if placement != Placement::Host && placement != Placement::Client {
                (3..6).for_each(|node| fabric.serve(node, placement).unwrap());
            }
            for (number, (connection, node)) in connections.iter().enumerate() {
                let params = &lists[usize::from(node - 3)];
                fabric.submit(*connection, placement, op::TRAVERSAL, params, number as u32).unwrap();
            }
            for _ in 0..connections.len() {
                let went_on = fabric.poll(&mut |done| {
                    let (connection, node) = connections[done.tag as usize];
                    assert_eq!((done.connection, done.status), (connection, Status::Ok), "{placement}");
                    assert_eq!(done.reply, &[node as u8; 64], "{placement}");
                    came.push((done.tag, done.latency));
                });
                assert!(went_on.unwrap());
            }
        }
        came
    };
    assert_eq!(run(), run());
}

/// Two clients leave their calls to a node, whose host a third keeps busy for a while: both are moved, and back.
#[test]
fn a_node_moves_the_calls_of_all_its_clients_when_another_keeps_its_host_busy() {
    const MS: u64 = 1_000_000_000;
    let platform = Platform::load("bluefield2").unwrap();
    let spec = FabricSpec::new(&platform, (3, 1), star(4, WhenFull::Pause, 1 << 20), (0, 7)).unwrap();
    let mut fabric = Fabric::new(&spec).unwrap();
    let connections = [0, 1, 2].map(|client| fabric.connect(client, 3).unwrap());
    fabric.place_calls(3, Placing::Auto);
    let (elements, store) = (fabric.alloc(3, 64 * 64).unwrap(), fabric.alloc(3, 8192).unwrap());
    let place = |region: &Region| Stored { va: region.va(), key: region.key() };
    let (list, image) = list::build((0..8).map(|n| (n, &[7; 64][..])), 64, place(&elements), place(&store));
    elements.write(elements.va(), &image.elements).unwrap();
    store.write(store.va(), &image.values).unwrap();
    let left = list.traversal_params(7).encode();
    // No checksum is right there.
    let wrong = ConsistencyParams { address: store.va(), key: store.key(), len: 8192, max_tries: 64 }.encode();
    let (mut under_way, mut neighbours, mut at, mut moves) = ([0u32; 2], 0, Vec::new(), Vec::new());
    for (stretch, busy) in [false, true, false].into_iter().enumerate() {
        let end = Ps((stretch as u64 + 1) * 10 * MS);
        let mut half = None;
        while fabric.now() < end {
            for client in 0..2 {
                while under_way[client] < 4 + 8 * client as u32 {
                    fabric.submit_anywhere(connections[client], op::TRAVERSAL, &left, 0).unwrap();
                    under_way[client] += 1;
                }
            }
            while busy && neighbours < 64 {
                fabric.submit(connections[2], Placement::Host, op::CONSISTENCY, &wrong, 0).unwrap();
                neighbours += 1;
            }
            let went_on =
                fabric.poll(&mut |done| match connections[..2].iter().position(|at| *at == done.connection) {
                    Some(client) => {
                        assert_eq!((done.status, done.reply), (Status::Ok, &[7; 64][..]));
                        under_way[client] -= 1;
                    }
                    None => neighbours -= 1,
                });
            assert!(went_on.unwrap());
            let now = fabric.now();
            let placer = fabric.placer(3).unwrap();
            moves.extend(placer.poll_move().map(|(_, reason)| (now, reason.to_string())));
            if half.is_none() && now + Ps(5 * MS) >= end {
                half = Some(placer.counts());
            }
        }
        let (now, half) = (fabric.placer(3).unwrap().counts(), half.unwrap());
        let [nic, host] =
            [Placement::Nic, Placement::Host].map(|place| now.calls[place as usize] - half.calls[place as usize]);
        at.push(host as f64 / (nic + host) as f64);
    }
    let counts = fabric.placer(3).unwrap().counts();
    let story = format!("{at:?} {counts:?}: {moves:?}");
    assert!(at[0] > 0.95 && at[1] < 0.05 && at[2] > 0.95, "{story}");
    assert!(counts.explored < counts.calls.iter().sum::<u64>() * 2 / 100, "{story}");
    assert!(moves.len() <= 5, "{story}");
}

#[test]
fn what_a_fabric_has_not_is_an_error_that_says_so() {
    let spec = FabricSpec::new(
        &strom(&[]),
        (1, 2),
        NetworkSpec { switches: Vec::new(), cables: vec![Cable::Direct(0, 1)] },
        (0, 7),
    );
    let mut fabric = Fabric::new(&spec.unwrap()).unwrap();
    fabric.connect(0, 1).unwrap();
    let error = |result: Result<ConnectionId, WorldError>| result.unwrap_err().to_string();
    assert_eq!(error(fabric.connect(0, 2)), "no cables lead from NIC 0 to NIC 2: join them by a switch or directly");
    assert_eq!(error(fabric.connect(7, 1)), "there is no machine 7 in the fabric");
    assert_eq!(
        error(fabric.connect(0, NicAt { machine: 1, nic: 1 })),
        "there is no NIC of the machine 1 in the fabric"
    );
    let refused = |result: Result<(), WorldError>| result.unwrap_err().to_string();
    let accelerator = refused(fabric.serve(1, Placement::Accelerator));
    assert_eq!(accelerator, "machine 1 has no accelerator: choose another placement or platform");
    assert!(refused(fabric.serve(1, Placement::Client)).contains("not at the client"));
    assert!(refused(fabric.serve(0, Placement::Nic)).contains("no node 0"));
}

#[test]
fn atomic_operations_on_one_word_take_turns_over_pcie_and_those_on_several_do_not() {
    // Of 16 at once each holds the word for a read over PCIe of 1.5 us, and the write behind it.
    const TURNS: f64 = 16.0 * 1500.0;
    let spec = FabricSpec::new(&strom(&[]), (1, 1), star(2, WhenFull::Pause, 1 << 20), (0, 7)).unwrap();
    let end = |words: u64| {
        let mut fabric = Fabric::new(&spec).unwrap();
        let connection = fabric.connect(0, 1).unwrap();
        let region = fabric.alloc(1, 4096).unwrap();
        for n in 0..16 {
            let params = SequencerParams { address: region.va() + n % words * 64, key: region.key(), count: 1 };
            fabric.submit(connection, Placement::Client, op::SEQUENCER, &params.encode(), n as u32).unwrap();
        }
        (0..16).for_each(|_| assert!(fabric.poll(&mut |_| {}).unwrap()));
        fabric.now().as_ns()
    };
    let (one, several) = (end(1), end(16));
    assert!(one > TURNS && several < TURNS / 1.5, "{one} ns on one word, {several} ns on sixteen");
}

#[test]
fn lost_packets_let_no_atomic_operation_end_before_its_word_was_read() {
    // Four at a time on words of their own: each takes a read over PCIe, whatever came before and was lost.
    let least = |loss| {
        let spec = FabricSpec::new(&strom(&[]), (1, 1), star(2, WhenFull::Pause, 1 << 20), (0, 7)).unwrap();
        let mut fabric = Fabric::new(&FabricSpec { loss, ..spec }).unwrap();
        let connection = fabric.connect(0, 1).unwrap();
        let region = fabric.alloc(1, 4096).unwrap();
        let mut least = Ps::MAX;
        for _ in 0..1_000 {
            for n in 0..4 {
                let params = SequencerParams { address: region.va() + n * 64, key: region.key(), count: 1 };
                fabric.submit(connection, Placement::Client, op::SEQUENCER, &params.encode(), n as u32).unwrap();
            }
            (0..4).for_each(|_| assert!(fabric.poll(&mut |done| least = least.min(done.latency)).unwrap()));
        }
        least
    };
    assert_eq!(least(0.01), least(0.0));
}

#[test]
fn who_reads_does_not_wait_for_atomic_operations_of_others() {
    // A client has 16 atomic operations on one word under way, which take turns of 1.5 us and more; another one reads 64 B.
    let read = |others: u32| {
        let spec = FabricSpec::new(&strom(&[]), (2, 1), star(3, WhenFull::Pause, 1 << 20), (0, 7)).unwrap();
        let mut fabric = Fabric::new(&spec).unwrap();
        let [changes, reads] = [0, 1].map(|client| fabric.connect(client, 2).unwrap());
        let region = fabric.alloc(2, 64).unwrap();
        let params = SequencerParams { address: region.va(), key: region.key(), count: 1 }.encode();
        for _ in 0..others {
            fabric.submit(changes, Placement::Client, op::SEQUENCER, &params, 0).unwrap();
        }
        fabric.submit_raw(reads, RawVerb::Read, &region, 64, 0).unwrap();
        let mut latencies = Vec::new();
        while latencies.len() < 200 {
            let mut ended = None;
            assert!(fabric.poll(&mut |done| ended = Some((done.connection, done.latency))).unwrap());
            let (connection, latency) = ended.unwrap();
            if connection == reads {
                latencies.push(latency);
                fabric.submit_raw(reads, RawVerb::Read, &region, 64, 0).unwrap();
            } else {
                fabric.submit(changes, Placement::Client, op::SEQUENCER, &params, 0).unwrap();
            }
        }
        latencies.sort_unstable();
        latencies[latencies.len() / 2].as_ns()
    };
    let (alone, beside) = (read(0), read(16));
    assert!(beside < 1.1 * alone, "{beside} ns, alone {alone} ns");
}

#[test]
fn which_packets_are_lost_hangs_on_the_seed() {
    let latencies = |seed| {
        let spec = FabricSpec::new(&strom(&[]), (1, 1), star(2, WhenFull::Pause, 1 << 20), (0, seed)).unwrap();
        let mut fabric = Fabric::new(&FabricSpec { loss: 0.01, ..spec }).unwrap();
        let connection = fabric.connect(0, 1).unwrap();
        let region = fabric.alloc(1, 64).unwrap();
        let read = |_| {
            let mut latency = Ps::ZERO;
            fabric.submit_raw(connection, RawVerb::Read, &region, 64, 0).unwrap();
            assert!(fabric.poll(&mut |done| latency = done.latency).unwrap());
            latency
        };
        let all: Vec<Ps> = (0..1_000).map(read).collect();
        assert!((5..50).contains(&fabric.counts().dropped), "{:?}", fabric.counts());
        all
    };
    assert_eq!(latencies(1), latencies(1));
    assert_ne!(latencies(1), latencies(2));
}

#[test]
fn machines_and_devices_that_nobody_uses_change_nothing() {
    let latencies = |idle: u16, device: bool| {
        let spec = FabricSpec::new(&strom(&[]), (1, 1 + idle), star(2 + idle, WhenFull::Pause, 1 << 20), (0, 7));
        let mut spec = spec.unwrap();
        if device {
            let memory = MemoryParams::dram(100_000, 1e9, 1);
            let params = MemoryDeviceParams { link_ps: 300_000, link_bytes_per_s: 4e9, memory, links: 2 };
            spec.devices.push(DeviceSpec { params, machines: vec![0, 1] });
        }
        let mut fabric = Fabric::new(&spec).unwrap();
        let connection = fabric.connect(0, 1).unwrap();
        let region = fabric.alloc(1, 1 << 14).unwrap();
        let mut all = Vec::new();
        for (n, verb) in [RawVerb::Read, RawVerb::Write, RawVerb::Read].into_iter().cycle().take(60).enumerate() {
            fabric.submit_raw(connection, verb, &region, 64 << (n % 8), 0).unwrap();
            if n % 3 == 2 {
                (0..3).for_each(|_| assert!(fabric.poll(&mut |done| all.push(done.latency)).unwrap()));
            }
        }
        all
    };
    let alone = latencies(0, false);
    assert_eq!((alone.len(), &alone), (60, &latencies(1, false)));
    assert_eq!((&alone, &alone), (&latencies(0, true), &latencies(3, true)));
}

#[test]
fn each_verb_puts_its_payload_and_headers_on_the_wire() {
    // Beside BTH and ICRC, 16 B, a packet has 66 B of preamble, gap, Ethernet, IP and UDP. A RETH has 16 B, an AETH 4, and an
    // atomic operation's header 28 B, its old value 8.
    const EACH: u64 = 16 + 66;
    let spec = FabricSpec::new(&strom(&[]), (1, 1), star(2, WhenFull::Pause, 1 << 20), (0, 7)).unwrap();
    for len in [1u64, 4, 63, 64, 1408, 1409, 4096, 60_000] {
        // Payload of up to 1408 B a packet, in whole words of 4 B.
        let (packets, payload) = (len.div_ceil(1408), len.next_multiple_of(4));
        // The first of a READ's answers and the last one acknowledge.
        let read = EACH + 16 + packets * EACH + payload + 4 * packets.min(2);
        let write = packets * EACH + payload + 16 + EACH + 4;
        for (verb, bytes) in [(RawVerb::Read, read), (RawVerb::Write, write)] {
            let mut fabric = Fabric::new(&spec).unwrap();
            let connection = fabric.connect(0, 1).unwrap();
            let region = fabric.alloc(1, 1 << 16).unwrap();
            fabric.submit_raw(connection, verb, &region, len as u32, 0).unwrap();
            assert!(fabric.poll(&mut |_| {}).unwrap());
            assert_eq!(fabric.counts().wire_bytes, bytes, "{verb:?} of {len} B");
        }
    }
    let mut fabric = Fabric::new(&spec).unwrap();
    let connection = fabric.connect(0, 1).unwrap();
    let region = fabric.alloc(1, 64).unwrap();
    let params = SequencerParams { address: region.va(), key: region.key(), count: 1 }.encode();
    fabric.submit(connection, Placement::Client, op::SEQUENCER, &params, 0).unwrap();
    assert!(fabric.poll(&mut |_| {}).unwrap());
    assert_eq!(fabric.counts().wire_bytes, EACH + 28 + EACH + 4 + 8);
}

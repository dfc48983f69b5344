//! A stream between two racks by several NICs: on loopback addresses, and between two network namespaces joined by four links.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use remora_rack::{FlowId, FlowPolicy, Mapping, Refusal, StreamEvent};
use remora_real::{Trunk, TrunkConfig};
use remora_testing::{Namespaces, Running, own_address};

/// How long to sleep where there is nothing to do.
const NAP: Duration = Duration::from_millis(20);
/// Far longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The byte at a place of the stream.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn until(trunk: &mut Trunk, what: &str, mut done: impl FnMut(&mut Trunk) -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done(trunk) {
        trunk.turn(NAP).expect("a turn");
        assert!(Instant::now() < end, "{what}: {} NICs", trunk.nics_up());
    }
}

/// Whom a test wants to talk to.
fn somebody(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 1, 2, 3], port))
}

/// Opens a stream, and waits for the answer.
fn open(trunk: &mut Trunk, port: u16) -> Result<FlowId, Refusal> {
    let flow = trunk.open(somebody(port), somebody(1), false).expect("a stream");
    let mut answered = None;
    until(trunk, "an answer", |trunk| {
        while let Some(event) = trunk.poll_event() {
            match event {
                StreamEvent::Answered { flow: of, answer } if of == flow => answered = Some(answer),
                _ => {}
            }
        }
        answered.is_some()
    });
    answered.expect("an answer").map(|()| flow)
}

/// Waits until the other rack asks for a stream, and answers.
fn asked(trunk: &mut Trunk, answer: Result<(), Refusal>) -> FlowId {
    let mut asked = None;
    until(trunk, "somebody asks", |trunk| {
        while let Some(event) = trunk.poll_event() {
            if let StreamEvent::Asked { flow, .. } = event {
                asked = Some(flow);
            }
        }
        asked.is_some()
    });
    let flow = asked.expect("a stream");
    trunk.answer(flow, answer);
    flow
}

/// Sends the bytes of the stream from one place to another, until all have arrived.
fn send(trunk: &mut Trunk, flow: FlowId, from: u64, to: u64, mut half: impl FnMut()) {
    let (mut at, mut data, mut told) = (from, Vec::new(), false);
    until(trunk, "all is sent", |trunk| {
        while at < to {
            data.clear();
            data.extend((at..to.min(at + 65_536)).map(byte));
            let taken = trunk.write(flow, &data) as u64;
            if taken == 0 {
                break;
            }
            at += taken;
        }
        if !told && trunk.arrived(flow) > from.midpoint(to) {
            told = true;
            half();
        }
        trunk.arrived(flow) == to
    });
}

/// Takes so many bytes, and compares each.
fn receive(trunk: &mut Trunk, flow: FlowId, from: u64, to: u64) {
    let (mut at, mut out) = (from, vec![0; 65_536]);
    until(trunk, "all has come", |trunk| {
        loop {
            let got = trunk.read(flow, &mut out);
            if got == 0 {
                return at == to;
            }
            for (place, got) in (at..).zip(&out[..got]) {
                assert_eq!(*got, byte(place), "byte {place}");
            }
            at += got as u64;
        }
    });
}

fn config(ways: Vec<(IpAddr, IpAddr)>, calls: bool, policy: FlowPolicy) -> TrunkConfig {
    TrunkConfig { ways, calls, policy, secret: [7; 32], most: 16, away: Duration::from_secs(60) }
}

fn policy(mapping: Mapping) -> FlowPolicy {
    FlowPolicy { mapping, subflows: 8, segment: 8 << 10, depth: 64 << 10, window: 256 << 10, ..FlowPolicy::default() }
}

/// Ways on loopback, as either end sees them.
fn ways(count: usize) -> [Vec<(IpAddr, IpAddr)>; 2] {
    let there: Vec<(IpAddr, IpAddr)> =
        (0..count).map(|_| [own_address(), own_address()].map(|at| at.parse().expect("an address")).into()).collect();
    let back = there.iter().map(|(one, other)| (*other, *one)).collect();
    [there, back]
}

#[test]
fn a_stream_goes_by_every_nic_both_ways() {
    const BYTES: u64 = 3_000_001;
    for mapping in Mapping::ALL {
        let [there, back] = ways(3);
        let mut caller = Trunk::new(config(there, true, policy(mapping))).expect("a trunk");
        let mut called = Trunk::new(config(back, false, policy(mapping))).expect("a trunk");
        let answering = std::thread::spawn(move || {
            let flow = asked(&mut called, Ok(()));
            receive(&mut called, flow, 0, BYTES);
            send(&mut called, flow, 0, BYTES, || ());
            called
        });
        until(&mut caller, "all are connected", |trunk| trunk.nics_up() == 3);
        let flow = open(&mut caller, 80).expect("a stream");
        send(&mut caller, flow, 0, BYTES, || ());
        receive(&mut caller, flow, 0, BYTES);
        let carried = caller.carried();
        assert!(carried.iter().all(|bytes| *bytes > 0), "{mapping:?}: {carried:?}");
        // The other end is to hear that its last bytes have come.
        until(&mut caller, "the other end", |_| answering.is_finished());
        drop(answering.join().expect("the other end"));
    }
}

#[test]
fn streams_end_are_refused_and_do_not_disturb_each_other() {
    const BYTES: u64 = 400_001;
    let [there, back] = ways(2);
    let mut caller = Trunk::new(config(there, true, policy(Mapping::Rate))).expect("a trunk");
    let mut called = Trunk::new(config(back, false, policy(Mapping::Rate))).expect("a trunk");
    let answering = std::thread::spawn(move || {
        asked(&mut called, Err(Refusal::Refused));
        // One of which nobody reads, and one beside it.
        let idle = asked(&mut called, Ok(()));
        let flow = asked(&mut called, Ok(()));
        receive(&mut called, flow, 0, BYTES);
        until(&mut called, "its end", |trunk| trunk.is_finished(flow));
        called.end(flow);
        called.close(flow);
        // Given up without an end: the other one hears of it.
        called.close(idle);
        until(&mut called, "the caller is gone", |trunk| trunk.nics_up() == 0);
    });
    assert_eq!(open(&mut caller, 81), Err(Refusal::Refused));
    let idle = open(&mut caller, 82).expect("a stream");
    let data = vec![1; 1 << 20];
    while caller.write(idle, &data) > 0 {
        caller.turn(Duration::ZERO).expect("a turn");
    }
    let flow = open(&mut caller, 83).expect("a stream");
    send(&mut caller, flow, 0, BYTES, || ());
    caller.end(flow);
    until(&mut caller, "the other end", |trunk| trunk.is_finished(flow));
    caller.close(flow);
    until(&mut caller, "the other is given up", |trunk| {
        while trunk.poll_event().is_some() {}
        trunk.is_lost(idle)
    });
    drop(caller);
    answering.join().expect("the other end");
}

#[test]
fn who_does_not_know_the_secret_gets_no_connection() {
    let [there, back] = ways(1);
    let mut called = Trunk::new(config(back, false, policy(Mapping::Rate))).expect("a trunk");
    let wrong = TrunkConfig { secret: [8; 32], ..config(there.clone(), true, policy(Mapping::Rate)) };
    let mut caller = Trunk::new(wrong).expect("a trunk");
    let end = Instant::now() + Duration::from_millis(400);
    while Instant::now() < end {
        caller.turn(Duration::from_millis(1)).expect("a turn");
        called.turn(Duration::from_millis(1)).expect("a turn");
        assert_eq!((caller.nics_up(), called.nics_up()), (0, 0));
    }
    drop(caller);
    // Who knows it, and comes again in another life, finds no stream of the one before.
    for life in 0..2 {
        let mut caller = Trunk::new(config(there.clone(), true, policy(Mapping::Rate))).expect("a trunk");
        until(&mut caller, "it is connected", |trunk| {
            called.turn(Duration::ZERO).expect("a turn");
            trunk.nics_up() == 1
        });
        let flow = caller.open(somebody(80), somebody(life), false).expect("a stream");
        let mut seen = Vec::new();
        until(&mut caller, "an answer", |trunk| {
            called.turn(Duration::ZERO).expect("a turn");
            while let Some(event) = called.poll_event() {
                if let StreamEvent::Asked { flow, .. } = event {
                    called.answer(flow, Ok(()));
                }
                seen.push(event);
            }
            trunk.write(flow, &[1]) == 1
        });
        let resets = seen.iter().filter(|event| matches!(event, StreamEvent::Reset(_))).count();
        assert_eq!(resets, usize::from(life), "{seen:?}");
    }
}

/// Whoever waits for a rack that is away waits no longer than was said; streams of the life before are nobody's.
#[test]
fn streams_to_a_rack_that_stays_away_are_lost() {
    let [there, back] = ways(2);
    let away = Duration::from_millis(300);
    let mut called = Trunk::new(config(back, false, policy(Mapping::Rate))).expect("a trunk");
    let mut caller = Trunk::new(TrunkConfig { away, ..config(there, true, policy(Mapping::Rate)) }).expect("a trunk");
    until(&mut caller, "it is connected", |trunk| {
        called.turn(Duration::ZERO).expect("a turn");
        trunk.nics_up() == 2
    });
    let flow = caller.open(somebody(80), somebody(1), false).expect("a stream");
    until(&mut caller, "an answer", |trunk| {
        called.turn(Duration::ZERO).expect("a turn");
        if let Some(StreamEvent::Asked { flow, .. }) = called.poll_event() {
            called.answer(flow, Ok(()));
        }
        trunk.write(flow, &[1]) == 1
    });
    drop(called);
    let gone = Instant::now();
    until(&mut caller, "it is lost", |trunk| trunk.is_lost(flow));
    assert!(gone.elapsed() >= away);
}

/// Links between the two namespaces.
const LINKS: usize = 4;

/// This very program as one of the ends.
fn end(racks: &Namespaces, rack: usize, bytes: u64) -> (Running, BufReader<ChildStdout>) {
    let mut command = racks.command(rack, std::env::current_exe().expect("this program"));
    command.args(["--exact", "an_end", "--ignored", "--nocapture"]);
    command.env("TRUNK_END", rack.to_string()).env("TRUNK_BYTES", bytes.to_string());
    let mut child: Child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().expect("it starts");
    let said = BufReader::new(child.stdout.take().expect("its output"));
    (Running(child), said)
}

/// Waits until it says so. What it says else stands in the test's output.
fn hear(said: &mut BufReader<ChildStdout>, what: &str) {
    loop {
        let mut line = String::new();
        assert!(said.read_line(&mut line).expect("its output") > 0, "it ended before it said {what}");
        print!("{line}");
        if line.contains(what) {
            return;
        }
    }
}

/// One end, in a process and a namespace of its own: see the test below.
#[test]
#[ignore = "a part of the test that follows"]
fn an_end() {
    let get = |name| std::env::var(name).ok().and_then(|text: String| text.parse::<u64>().ok());
    let (Some(rack), Some(bytes)) = (get("TRUNK_END"), get("TRUNK_BYTES")) else { return };
    let address = |side: u64, link| -> IpAddr { Namespaces::address(side as usize, link).parse().expect("an address") };
    let ways = (0..LINKS).map(|link| (address(rack, link), address(1 - rack, link))).collect();
    let mut trunk = Trunk::new(config(ways, rack == 0, FlowPolicy::default())).expect("a trunk");
    if rack == 1 {
        let flow = asked(&mut trunk, Ok(()));
        receive(&mut trunk, flow, 0, 2 * bytes);
        println!("all has come");
        // The other end is to hear that; the test then ends this process.
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            trunk.turn(NAP).expect("a turn");
        }
        return;
    }
    let flow = open(&mut trunk, 80).expect("a stream");
    for round in [0, 1] {
        until(&mut trunk, "all NICs", |trunk| trunk.nics_up() == LINKS);
        println!("all NICs are up");
        let start = Instant::now();
        send(&mut trunk, flow, round * bytes, (round + 1) * bytes, || println!("half has arrived"));
        let mbit = 8e-6 * bytes as f64 / start.elapsed().as_secs_f64();
        println!("{mbit:.0} Mbit/s, NICs brought {:?}", trunk.carried());
    }
}

/// A link is cut amid the stream, and comes back.
fn cut_amid(mbit: u32, bytes: u64) {
    let Some(racks) = Namespaces::new(LINKS, 9000) else { return };
    racks.shape(mbit);
    let (_receiver, mut received) = end(&racks, 1, bytes);
    let (mut sender, mut sent) = end(&racks, 0, bytes);
    hear(&mut sent, "half has arrived");
    racks.ip(0, "link set v2 down").expect("cut");
    hear(&mut sent, "Mbit/s");
    racks.ip(0, "link set v2 up").expect("joined");
    hear(&mut sent, "all NICs are up");
    hear(&mut sent, "Mbit/s");
    hear(&mut received, "all has come");
    assert!(sender.0.wait().expect("its end").success());
}

#[test]
fn a_stream_between_racks_survives_the_cut_of_a_link() {
    cut_amid(100, 4_000_000);
}

#[test]
#[ignore = "a measurement: a release build on a quiet machine"]
fn four_links_of_a_gigabit() {
    cut_amid(1000, 400_000_000);
}

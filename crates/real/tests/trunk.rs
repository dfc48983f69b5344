//! A stream between two racks by several NICs: on loopback addresses, and between two network namespaces joined by four links.

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use remora_rack::{FlowPolicy, Mapping};
use remora_real::{Trunk, TrunkConfig};
use remora_testing::{Running, own_address, skip};

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
        assert!(Instant::now() < end, "{what}: {} NICs, {} bytes arrived", trunk.nics_up(), trunk.arrived());
    }
}

/// Sends the bytes of the stream from one place to another, until all have arrived.
fn send(trunk: &mut Trunk, from: u64, to: u64, mut half: impl FnMut()) {
    let (mut at, mut data, mut told) = (from, Vec::new(), false);
    until(trunk, "all is sent", |trunk| {
        while at < to {
            data.clear();
            data.extend((at..to.min(at + 65_536)).map(byte));
            let taken = trunk.write(&data) as u64;
            if taken == 0 {
                break;
            }
            at += taken;
        }
        if !told && trunk.arrived() > from.midpoint(to) {
            told = true;
            half();
        }
        trunk.arrived() == to
    });
}

/// Takes so many bytes, and compares each.
fn receive(trunk: &mut Trunk, from: u64, to: u64) {
    let (mut at, mut out) = (from, vec![0; 65_536]);
    until(trunk, "all has come", |trunk| {
        loop {
            let got = trunk.read(&mut out);
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

fn policy(mapping: Mapping) -> FlowPolicy {
    FlowPolicy { mapping, subflows: 8, segment: 8 << 10, depth: 64 << 10, window: 256 << 10, ..FlowPolicy::default() }
}

#[test]
fn a_stream_goes_by_every_nic_both_ways() {
    const BYTES: u64 = 3_000_001;
    for mapping in Mapping::ALL {
        let ways: Vec<(IpAddr, IpAddr)> =
            (0..3).map(|_| [own_address(), own_address()].map(|at| at.parse().expect("an address")).into()).collect();
        let back = ways.iter().map(|(one, other)| (*other, *one)).collect();
        let new = |ways, calls| Trunk::new(TrunkConfig { ways, calls, policy: policy(mapping) }).expect("a trunk");
        let (mut caller, mut called) = (new(ways, true), new(back, false));
        let answering = std::thread::spawn(move || {
            receive(&mut called, 0, BYTES);
            send(&mut called, 0, BYTES, || ());
            called
        });
        until(&mut caller, "all are connected", |trunk| trunk.nics_up() == 3);
        send(&mut caller, 0, BYTES, || ());
        receive(&mut caller, 0, BYTES);
        let carried = caller.carried();
        assert!(carried.iter().all(|bytes| *bytes > 0), "{mapping:?}: {carried:?}");
        // The other end is to hear that its last bytes have come.
        until(&mut caller, "the other end", |_| answering.is_finished());
        drop(answering.join().expect("the other end"));
    }
}

/// Links between the two namespaces.
const LINKS: usize = 4;

/// Two racks, gone with the value.
struct Racks {
    names: [String; 2],
}

fn ip(command: &str) -> Result<(), String> {
    match Command::new("ip").args(command.split(' ')).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("`ip {command}` says {}", String::from_utf8_lossy(&output.stderr))),
        Err(e) => Err(format!("`ip {command}`: {e}")),
    }
}

impl Racks {
    /// `None`, with the reason printed, where the system does not allow it; a failure where `CI=true`.
    fn new(mbit: u32) -> Option<Self> {
        let racks = Self { names: ["a", "b"].map(|rack| format!("remora-rack-{rack}-{}", std::process::id())) };
        let [a, b] = &racks.names;
        let mut commands = vec![format!("netns add {a}"), format!("netns add {b}")];
        for link in 0..LINKS {
            commands.push(format!("link add v{link} netns {a} type veth peer name v{link} netns {b}"));
            for (name, host) in [(a, 1), (b, 2)] {
                commands.push(format!("-n {name} addr add 10.214.{link}.{host}/24 dev v{link}"));
                commands.push(format!("-n {name} link set v{link} mtu 9000 up"));
            }
        }
        for command in commands {
            if let Err(why) = ip(&command) {
                skip(why, "Install the package iproute2, and run as root");
                return None;
            }
        }
        for (name, link) in racks.names.iter().flat_map(|name| (0..LINKS).map(move |link| (name, link))) {
            let shape = format!("qdisc add dev v{link} root tbf rate {mbit}mbit burst 256kb limit 4mb");
            if let Err(why) = ip(&format!("netns exec {name} tc {shape}")) {
                println!("links are as fast as they are: {why}");
            }
        }
        Some(racks)
    }

    /// This very program as one of the ends.
    fn end(&self, rack: usize, bytes: u64) -> (Running, BufReader<ChildStdout>) {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[rack]]).arg(std::env::current_exe().expect("this program"));
        command.args(["--exact", "an_end", "--ignored", "--nocapture"]);
        command.env("TRUNK_END", rack.to_string()).env("TRUNK_BYTES", bytes.to_string());
        let mut child: Child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().expect("it starts");
        let said = BufReader::new(child.stdout.take().expect("its output"));
        (Running(child), said)
    }
}

impl Drop for Racks {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| drop(ip(&format!("netns del {name}"))));
    }
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
    let address = |link: usize, host: u64| -> IpAddr { format!("10.214.{link}.{host}").parse().expect("an address") };
    let ways = (0..LINKS).map(|link| (address(link, 1 + rack), address(link, 2 - rack))).collect();
    let config = TrunkConfig { ways, calls: rack == 0, policy: FlowPolicy::default() };
    let mut trunk = Trunk::new(config).expect("a trunk");
    if rack == 1 {
        receive(&mut trunk, 0, 2 * bytes);
        println!("all has come");
        // The other end is to hear that; the test then ends this process.
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            trunk.turn(NAP).expect("a turn");
        }
        return;
    }
    for round in [0, 1] {
        until(&mut trunk, "all NICs", |trunk| trunk.nics_up() == LINKS);
        println!("all NICs are up");
        let start = Instant::now();
        send(&mut trunk, round * bytes, (round + 1) * bytes, || println!("half has arrived"));
        let mbit = 8e-6 * bytes as f64 / start.elapsed().as_secs_f64();
        println!("{mbit:.0} Mbit/s, NICs brought {:?}", trunk.carried());
    }
}

/// A link is cut amid the stream, and comes back.
fn cut_amid(mbit: u32, bytes: u64) {
    let Some(racks) = Racks::new(mbit) else { return };
    let (_receiver, mut received) = racks.end(1, bytes);
    let (mut sender, mut sent) = racks.end(0, bytes);
    hear(&mut sent, "half has arrived");
    ip(&format!("-n {} link set v2 down", racks.names[0])).expect("cut");
    hear(&mut sent, "Mbit/s");
    ip(&format!("-n {} link set v2 up", racks.names[0])).expect("joined");
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

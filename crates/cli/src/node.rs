//! `remora node`.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use remora_lab::writer::Writers;
use remora_real::presence::{DeviceState, Presence};
use remora_real::{Node, NodeConfig, NodeEvent};
use remora_study::machine::Machine;
use remora_study::nodes::NODE_READY;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::capture::Capture;
use crate::metrics::Metrics;
use crate::output::print;
use crate::progress::is_quiet;
use crate::{Failure, args, quantity};

/// Serves until a signal, or until standard input ends if asked to.
pub fn run(args: &args::NodeArgs) -> Result<(), Failure> {
    // Signals from here on wait for the node to be up, and then end it in order.
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|e| Failure::Failed(format!("handling signals: {e}")))?;
    let capture = Capture::open(args.pcap.as_deref())?;
    let memory = memory(args)?;
    if let Some(cores) = remora_real::cores()
        && let Some(core) = args.cores.iter().find(|core| **core >= cores)
    {
        let why = format!("--cores {core}: this process may use {cores}, which are numbered from 0");
        return Err(Failure::Usage(why));
    }
    let config = NodeConfig {
        layers: capture.layers(),
        memory_limit: memory,
        engines: args.engines,
        cores: args.cores.clone(),
        mtu: args.mtu,
        deadline: args.deadline,
        connections: args.connections,
        weights: args.weights.clone(),
        packet: args.packet,
        kernels: args.kernels.clone(),
        deployers: args.deployers.clone(),
        placing: args.place,
        events: (!is_quiet() && !args.stop_with_stdin).then(tell),
        count_calls: args.metrics.is_some(),
        ..NodeConfig::new(args.listen)
    };
    let metrics = args.metrics.map(Metrics::bind).transpose()?;
    // So that studies can have memory changed while it is read.
    let node = Node::start_with(config, vec![Box::new(Writers::default())])?;
    // For `remora ps`; a node is as good without.
    let presence = Presence::enter().ok();
    let devices = node.devices().to_vec();
    if let Some(presence) = &presence {
        let _ = presence.announce(node.address(), move || Some(DeviceState::of_all(&devices)));
    }
    greet(args, memory, &node)?;
    let node = Arc::new(node);
    if let Some(metrics) = metrics {
        let figures = Arc::downgrade(&node);
        metrics.serve(move || figures.upgrade().map(|node| node.figures().prometheus()))?;
    }
    node.left_out().iter().for_each(|line| drop(writeln!(io::stderr(), "remora: a kernel was left out: {line}")));

    let (end, ended) = mpsc::channel();
    let by_signal = end.clone();
    thread::spawn(move || {
        let mut signals = signals.forever();
        let _ = signals.next().map(|_| by_signal.send(()));
        // The second one does not wait.
        if signals.next().is_some() {
            std::process::exit(130);
        }
    });
    if args.stop_with_stdin {
        thread::spawn(move || {
            let _ = io::copy(&mut io::stdin().lock().by_ref(), &mut io::sink());
            end.send(())
        });
    }
    // An error means that both threads are gone: then nothing could end the node any more.
    let _ = ended.recv();
    if let Some(presence) = presence {
        presence.leave();
    }
    // Whoever is reading figures has them in a moment; the node ends with the last who has it.
    if let Some(node) = Arc::into_inner(node) {
        node.shutdown();
    }
    Ok(())
}

/// Events that may wait for their line.
const WAITING: usize = 1024;
/// Lines that there are in a second, at most: nobody who reaches the node may fill a disk.
const LINES: u32 = 20;

/// Where events become lines on standard error. Nobody need read them.
fn tell() -> SyncSender<NodeEvent> {
    let (to, events) = mpsc::sync_channel::<NodeEvent>(WAITING);
    thread::spawn(move || {
        let (mut second, mut lines, mut left_out) = (Instant::now(), 0, 0u64);
        loop {
            let event = events.recv_timeout(Duration::from_secs(1));
            if second.elapsed() >= Duration::from_secs(1) {
                if left_out > 0 {
                    let events = if left_out == 1 { "event" } else { "events" };
                    let _ = writeln!(io::stderr(), "{} remora: {left_out} more {events}", now());
                }
                (second, lines, left_out) = (Instant::now(), 0, 0);
            }
            let event = match event {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            match lines < LINES {
                true => drop(writeln!(io::stderr(), "{} remora: {event}", now())),
                false => left_out += 1,
            }
            lines += 1;
        }
    });
    to
}

/// The time of day, UTC: `12:34:56`.
fn now() -> String {
    let s = crate::output::now_unix_s();
    format!("{:02}:{:02}:{:02}", s / 3600 % 24, s / 60 % 60, s % 60)
}

/// Bytes that clients may have if nobody says how much.
const MEMORY: u64 = 16 << 30;

/// Bytes that clients may have. More than there is would be refused them one by one, or cost others theirs.
fn memory(args: &args::NodeArgs) -> Result<u64, Failure> {
    let all = Machine::describe().memory_bytes;
    match args.memory {
        None => Ok(MEMORY.min(all.max(1 << 20))),
        // A child process serves its parent alone.
        Some(wanted) if args.stop_with_stdin => Ok(wanted),
        Some(wanted) => quantity::in_memory("--memory", wanted).map(|()| wanted),
    }
}

/// How to reach the node.
fn greet(args: &args::NodeArgs, memory: u64, node: &Node) -> Result<(), Failure> {
    let address = node.address();
    let way = if args.packet { "packet and raw sockets" } else { "UDP port 4791" };
    let megabytes = memory >> 20;
    let engines = match args.engines {
        1 => String::new(),
        n => format!("{n} engines, among which connections are shared out. "),
    };
    let next = match address {
        // A client needs an address of its own.
        IpAddr::V6(v6) if v6.is_loopback() => {
            "No client on this machine reaches it, as IPv6 has one loopback address: use --listen 127.0.0.2".into()
        }
        _ => format!("Compare placements against it:  remora compare --node {address}"),
    };
    print(&format!(
        "{NODE_READY}{address}\n\
         RoCE v2 over {way}; shared memory for processes of this user on this host; {megabytes} MB for clients.\n\
         {engines}{next}\n\
         SIGINT (Ctrl-C) or SIGTERM ends it.\n"
    ))
}

//! `remora node`.

use std::io::{self, Read, Write};
use std::sync::mpsc;
use std::thread;

use remora_lab::writer::Writers;
use remora_real::{Node, NodeConfig};
use remora_study::nodes::NODE_READY;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::capture::Capture;
use crate::{Failure, args};

/// Serves until a signal, or until standard input ends if asked to.
pub fn run(args: &args::NodeArgs) -> Result<(), Failure> {
    // Signals from here on wait for the node to be up, and then end it in order.
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|e| Failure::Failed(format!("handling signals: {e}")))?;
    let capture = Capture::open(args.pcap.as_deref())?;
    let config = NodeConfig {
        layers: capture.layers(),
        memory_limit: args.memory,
        packet: args.packet,
        kernels: args.kernels.clone(),
        ..NodeConfig::new(args.listen)
    };
    // So that studies can have memory changed while it is read.
    let node = Node::start_with(config, vec![Box::new(Writers::default())])?;
    greet(args, &node);

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
    node.shutdown();
    Ok(())
}

/// How to reach the node. Whoever reads may have gone away.
fn greet(args: &args::NodeArgs, node: &Node) {
    let address = node.address();
    let way = if args.packet { "packet and raw sockets" } else { "UDP port 4791" };
    let megabytes = args.memory >> 20;
    let _ = write!(
        io::stdout(),
        "{NODE_READY}{address}\n\
         RoCE v2 over {way}; shared memory for processes of this user on this host; {megabytes} MB for clients.\n\
         Compare placements against it:  remora compare --node {address}\n\
         SIGINT (Ctrl-C) or SIGTERM ends it.\n"
    );
    let _ = io::stdout().flush();
}

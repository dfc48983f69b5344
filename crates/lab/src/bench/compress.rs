//! WRITEs that travel compressed beside plain ones, over UDP, through a client and a node.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use remora_real::{Client, ClientConfig, Error, LinkKind, Node, NodeConfig};

use super::stream::{Part, figures};
use super::{BenchError, BenchRow};

/// Bytes of one message.
const MESSAGE: usize = 16 << 20;

/// What one message took.
#[derive(Clone, Copy)]
struct Cost {
    seconds: f64,
    /// Bytes of all packets, headers included, both ways.
    wire_bytes: f64,
}

/// How many rows there are.
pub(super) const ROWS: usize = 2;

/// Rows for data that shrinks well.
pub(super) fn rows(rounds: usize, rows: &mut Vec<BenchRow>, part: &mut Part<'_>) -> Result<(), BenchError> {
    let at = |last| IpAddr::V4(Ipv4Addr::new(127, 0, 2, last));
    let node = Node::start(NodeConfig::new(at(1)))?;
    let mut client = Client::connect(ClientConfig { link: Some(LinkKind::Udp), ..ClientConfig::new(at(1), at(2)) })?;
    let region = client.alloc(MESSAGE as u64)?;
    let data = log_lines();
    let mut seen = vec![0; MESSAGE];
    let mut costs = Vec::new();
    // The first round pays for page faults.
    for round in 0..=rounds {
        part(round as f64 / (rounds + 1) as f64)?;
        let mut pair = [Cost { seconds: 0.0, wire_bytes: 0.0 }; 2];
        for (compressed, cost) in [true, false].into_iter().zip(&mut pair) {
            client.write(&region, 0, &vec![0; MESSAGE])?;
            let (start, before) = (Instant::now(), client.counters().wire_bytes);
            match compressed {
                true => client.write_compressed(&region, 0, &data)?,
                false => client.write(&region, 0, &data)?,
            }
            let seconds = start.elapsed().as_secs_f64();
            *cost = Cost { seconds, wire_bytes: (client.counters().wire_bytes - before) as f64 };
            client.read(&region, 0, &mut seen)?;
            if seen != data {
                return Err(Error::Argument("what was written compressed came out wrong".into()).into());
            }
        }
        costs.push(pair);
    }
    let of = |figure: &dyn Fn(&Cost) -> f64| -> Vec<(f64, f64)> {
        costs[1..].iter().map(|[compressed, plain]| (figure(compressed), figure(plain))).collect()
    };
    let peer = "plain WRITE of 16 MB of log lines";
    let wire = figures(&of(&|cost| cost.wire_bytes / 1e6));
    rows.push(BenchRow::new("udp: WRITE compressed, on the wire", "MB", peer, wire, None));
    let rate = figures(&of(&|cost| MESSAGE as f64 / cost.seconds / 1e9));
    rows.push(BenchRow::new("udp: WRITE compressed", "GB/s", peer, rate, None));
    drop(client);
    node.shutdown();
    Ok(())
}

/// Text as servers log it.
fn log_lines() -> Vec<u8> {
    let mut text = Vec::with_capacity(MESSAGE + 128);
    let mut state = 1u64;
    while text.len() < MESSAGE {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let (ms, user, item) = (state >> 52, state >> 40 & 0xfff, state >> 20 & 0xffff);
        let line = format!("level=info service=orders request=GET user=u{user:04} item={item:05} status=200 ms={ms}\n");
        text.extend_from_slice(line.as_bytes());
    }
    text.truncate(MESSAGE);
    text
}

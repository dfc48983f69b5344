//! Remora's own cluster, reached over a connection to each node.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use remora_cluster::{ClusterClient, ClusterClientConfig, Model, NodeStatus, Op, Outcome, Refusal, ScopeId};

use super::{Answer, Ask, AtNode, Done, PeerError, PeerStore};

const WHAT: &str = "cluster";
/// How long one [`PeerStore::wait`] sleeps at most.
const SHORT: Duration = Duration::from_millis(100);
/// How long it polls, letting others have the core, before it sleeps: longer than a durable write takes.
const POLLED: Duration = Duration::from_micros(400);
/// Writes of a scope, in the scope model: the last one's answer waits until all of them are durable.
pub const SCOPE: u32 = 10;

/// Clients of a cluster.
pub struct ClusterPeer {
    /// One at each node.
    clients: Vec<ClusterClient>,
    slots: Vec<Slot>,
    /// Whose a request is, by node and ticket.
    whose: HashMap<(usize, u64), usize>,
    scoped: bool,
    /// Requests that a node had no room for.
    again: Vec<usize>,
}

#[derive(Default)]
struct Slot {
    /// What is under way.
    op: Option<Op>,
    scope: ScopeId,
    /// Writes in it so far.
    scoped: u32,
    /// What the writes before PERSIST took at the node.
    before: AtNode,
}

impl ClusterPeer {
    /// Connects for so many clients, which are spread over the nodes.
    pub fn connect(config: &ClusterClientConfig, model: Model, clients: usize) -> Result<Self, PeerError> {
        let connect = |node| ClusterClient::connect(ClusterClientConfig { node, ..config.clone() });
        let connected = (0..config.nodes.len().min(clients)).map(connect).collect::<Result<Vec<_>, _>>();
        let failed = |error: remora_real::Error| PeerError::Answer { what: WHAT, why: error.to_string() };
        let name = remora_real::entropy().map_err(failed)?;
        let first = u64::from_le_bytes(name.first_chunk().copied().unwrap_or_default()) << 32;
        let slots = (0..clients as u64).map(|slot| Slot { scope: first + (slot << 20), ..Slot::default() }).collect();
        let (clients, scoped) = (connected.map_err(failed)?, model.facts().scopes);
        Ok(Self { clients, slots, whose: HashMap::new(), scoped, again: Vec::new() })
    }

    /// How the nodes are.
    pub fn status(&mut self) -> Result<Vec<NodeStatus>, PeerError> {
        let status = self.clients.iter_mut().map(ClusterClient::status).collect::<Result<Vec<_>, _>>();
        status.map_err(|error| PeerError::Answer { what: WHAT, why: error.to_string() })
    }

    /// Sends what a client has under way.
    fn send(&mut self, slot: usize) {
        let Some(op) = self.slots[slot].op.clone() else { return };
        let node = slot % self.clients.len();
        let scope = (self.scoped && !matches!(op, Op::Get(_))).then_some(self.slots[slot].scope);
        let ticket = self.clients[node].submit_in(scope, op);
        self.whose.insert((node, ticket.0), slot);
    }

    /// A write of a scope is done: is it the last?
    fn last_of_scope(&mut self, slot: usize, at_node: AtNode) -> bool {
        let slot = &mut self.slots[slot];
        slot.scoped += 1;
        if !self.scoped || slot.scoped < SCOPE {
            return false;
        }
        (slot.op, slot.before) = (Some(Op::Persist), at_node);
        true
    }
}

impl PeerStore for ClusterPeer {
    fn submit(&mut self, slot: usize, ask: Ask<'_>) -> Result<(), PeerError> {
        self.slots[slot].op = Some(match ask {
            Ask::Get(record) => Op::Get(record),
            Ask::Put(record, value) => Op::Put(record, value.into()),
            Ask::Transact(..) => {
                return Err(PeerError::Answer { what: WHAT, why: "records have no transactions".into() });
            }
        });
        self.send(slot);
        Ok(())
    }

    fn wait(&mut self, done: Done<'_>) -> Result<(), PeerError> {
        let mut ended = Vec::new();
        let begin = Instant::now();
        while ended.is_empty() && begin.elapsed() < SHORT {
            ClusterClient::poll_any(&mut self.clients, &mut |node, done| ended.push((node, done)));
            if ended.is_empty() && begin.elapsed() > POLLED {
                ClusterClient::wait_any(&mut self.clients, SHORT);
            }
        }
        for slot in std::mem::take(&mut self.again) {
            self.send(slot);
        }
        for (node, ended) in ended {
            let Some(slot) = self.whose.remove(&(node, ended.ticket.0)) else { continue };
            let split = ended.split;
            let at_node = AtNode { total_ns: split.total_ns, communication_ns: split.communication_ns };
            let told = (split.total_ns > 0).then_some(at_node);
            match ended.outcome {
                Outcome::Value(value) => done(slot, Answer::Value(value.as_deref()), told),
                Outcome::Written if self.last_of_scope(slot, at_node) => self.send(slot),
                Outcome::Written => done(slot, Answer::Written, told),
                Outcome::Persisted => {
                    let slots = &mut self.slots[slot];
                    (slots.scope, slots.scoped) = (slots.scope + 1, 0);
                    let before = slots.before;
                    let both = AtNode {
                        total_ns: before.total_ns + split.total_ns,
                        communication_ns: before.communication_ns + split.communication_ns,
                    };
                    done(slot, Answer::Written, Some(both));
                }
                Outcome::Refused(Refusal::Busy) => self.again.push(slot),
                Outcome::Unknown => {
                    // What is left of its scope is not known either.
                    let slots = &mut self.slots[slot];
                    (slots.scope, slots.scoped) = (slots.scope + 1, 0);
                    done(slot, Answer::Unknown, None);
                }
                other => return Err(PeerError::Answer { what: WHAT, why: format!("node {node} answers {other:?}") }),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use remora_cluster::{ClusterNode, ClusterNodeConfig};
    use remora_kernel::Placement;

    use super::*;

    #[test]
    fn every_model_takes_writes_at_all_nodes() {
        let directory = tempfile::tempdir().unwrap();
        let [_, _, a, b] = std::process::id().to_be_bytes();
        for (number, model) in (0..).zip(Model::ALL) {
            let nodes: Vec<IpAddr> = (0..3).map(|node| [127, a | 128, b, 10 * number + node + 1].into()).collect();
            let mut running = Vec::new();
            for id in 0..3 {
                let place = directory.path().join(format!("{model:?}-{id}"));
                std::fs::create_dir(&place).unwrap();
                let config = ClusterNodeConfig {
                    model,
                    placement: if number % 2 == 0 { Placement::Host } else { Placement::Nic },
                    // Other tests may hold up a node for long.
                    suspect: Duration::from_secs(10),
                    ..ClusterNodeConfig::new(id, nodes.clone(), place, [7; 32])
                };
                running.push(ClusterNode::start(config).unwrap());
            }
            let secret = Some(remora_cluster::client_secret(&[7; 32]));
            let clients = ClusterClientConfig { secret, ..ClusterClientConfig::new(nodes.clone()) };
            for node in &nodes {
                let one = ClusterClientConfig { nodes: vec![*node], ..clients.clone() };
                remora_testing::eventually("a node that serves", || {
                    let status = ClusterClient::connect(one.clone()).and_then(|mut client| client.status());
                    status.ok().filter(|status| status.serves == 1).map(drop)
                });
            }
            let mut cluster = ClusterPeer::connect(&clients, model, 4).unwrap();
            let mut ended = 0;
            for round in 0..2 * u64::from(SCOPE) {
                for slot in 0..4 {
                    cluster.submit(slot, Ask::Put(slot as u64, &round.to_le_bytes())).unwrap();
                }
                while ended < 4 * (round + 1) {
                    let take = &mut |_, answer: Answer<'_>, _| {
                        assert_eq!(answer, Answer::Written, "{model:?}");
                        ended += 1;
                    };
                    cluster.wait(take).unwrap();
                }
            }
            // What one node has answered any other one shows.
            cluster.submit(0, Ask::Get(1)).unwrap();
            let (last, mut read) = ((2 * u64::from(SCOPE) - 1).to_le_bytes(), false);
            while !read {
                let take = &mut |_, answer: Answer<'_>, _| {
                    assert_eq!(answer, Answer::Value(Some(&last)), "{model:?}");
                    read = true;
                };
                cluster.wait(take).unwrap();
            }
        }
    }
}

//! Remora's store, in a node's memory: kernels at its NIC, called by rings in shared memory.

use remora_kernel::{Placement, Status, op};
use remora_real::{Client, LinkKind, RingConfig};
use remora_store::Arena;
use remora_store::kv::{Kv, KvError};

use super::{KvAsk, KvPlan, KvTarget, shape};
use crate::StudyError;
use crate::nodes::{ClientMemory, NodeProcess};

/// Requests that are made before they leave.
const LEAVE: usize = 8;

/// A node with a store, and a client of it.
pub(super) struct Ring {
    client: Client,
    kv: Kv,
    params: Vec<u8>,
    // Last: it ends after its client.
    _node: NodeProcess,
}

impl Ring {
    /// Starts a node, and makes a store with room for the plan's pairs.
    pub fn start(plan: &KvPlan) -> Result<Self, StudyError> {
        let (node, mut clients) = NodeProcess::with_clients(&[LinkKind::Shm])?;
        let mut client = clients.pop().ok_or_else(|| StudyError::Failed("no client of the node".into()))?;
        client.open_rings(Placement::Nic, RingConfig::default())?;
        let kv = make(&mut ClientMemory(&mut client), plan.pairs, plan.seed)?;
        Ok(Self { client, kv, params: Vec::new(), _node: node })
    }
}

/// A store with room for so many pairs.
pub(super) fn make<A: Arena<Error = StudyError>>(memory: &mut A, pairs: u64, seed: u64) -> Result<Kv, StudyError> {
    let shape = shape(pairs);
    Kv::create(&shape, seed, memory)?.map_err(|e| StudyError::Usage(e.to_string()))
}

/// Writes a request's parameters; its op-code.
#[inline]
pub(super) fn encode(kv: &mut Kv, ask: KvAsk, params: &mut Vec<u8>) -> Result<u64, StudyError> {
    params.clear();
    let usage = |e: KvError| StudyError::Usage(e.to_string());
    match ask.version {
        None => kv.key(&ask.key()).map_err(usage)?.encode(params),
        Some(_) => kv.pair(&ask.key(), &ask.value()).map_err(usage)?.encode(params),
    }
    Ok(if ask.version.is_some() { op::KV_PUT } else { op::KV_GET })
}

impl KvTarget for Ring {
    fn name(&self) -> &'static str {
        "remora"
    }

    fn batch(&mut self, asks: &[KvAsk], done: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<(), StudyError> {
        let (mut made, mut answered) = (0, 0);
        let mut again = Vec::new();
        while answered < asks.len() {
            // A few leave at a time: the node serves them while others are made.
            for _ in 0..LEAVE {
                let Some(at) = again.pop().or_else(|| (made < asks.len()).then_some(made)) else { break };
                let op = encode(&mut self.kv, asks[at], &mut self.params)?;
                if self.client.submit_by_ring(Placement::Nic, op, &self.params, at as u32).is_err() {
                    if at < made {
                        again.push(at);
                    }
                    break;
                }
                made = made.max(at + 1);
            }
            let mut failed = None;
            self.client.poll(&mut |tag, status, reply| {
                let at = tag as usize;
                match status {
                    Status::Ok if asks.get(at).is_some_and(|ask| ask.version.is_none()) => done(at, Some(reply)),
                    Status::Ok | Status::NotFound => done(at, None),
                    // Others wrote the same pair each time that it was looked at.
                    Status::Inconsistent => return again.push(at),
                    other => failed = Some(other),
                }
                answered += 1;
            })?;
            if let Some(status) = failed {
                return Err(StudyError::Failed(format!("a request by rings ends with {status:?}")));
            }
        }
        Ok(())
    }
}

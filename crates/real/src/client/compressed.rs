//! WRITEs that travel compressed: a send kernel on the client's NIC, a receive kernel on the node's (StRoM, section 3.5).

use std::sync::Arc;

use remora_kernel::compress::{BLOCK, CompressParams};
use remora_kernel::{Limits, Status, host_runner, op};
use remora_memory::{Access, Buffer, Pd, Region, Registry};
use remora_nic::{ALL_REMOTE, CqId, Nic, QpInit, QpType, Qpn, Sge, WcOpcode, WcStatus};
use remora_wire::rpc::{RpcHeader, parse_reply_imm};

use crate::client::{Client, RemoteRegion};
use crate::error::Error;
use crate::kernels::Kernels;
use crate::map_memory;

/// Bytes that one pair of calls compresses and restores.
const PIECE: usize = 4 * BLOCK;
/// The blocks of a piece take at most so many bytes: eight in front of each.
const CODED: usize = PIECE + 8 * (PIECE / BLOCK);
/// Bytes between the places of two pieces.
const STRIDE: usize = PIECE + CODED.next_multiple_of(64);
/// Pieces that are under way at once: while one is compressed, others travel.
const PIECES: usize = 4;

/// The kernels that a client's own NIC runs.
pub(crate) fn client_kernels(registry: &Arc<Registry>) -> Kernels {
    // One client, the queue pair of its own, has half of the pool.
    Kernels::new(host_runner(registry.clone(), false, 2 * PIECES, Limits::default()), vec![op::COMPRESS])
}

/// What a client's NIC compresses with: memory that only its own kernels reach, and a queue pair without a peer, which
/// their calls are posted to.
pub(crate) struct Compressor {
    qp: Qpn,
    cq: CqId,
    buffer: Buffer,
    region: Arc<Region>,
    /// The payload region of the queue pair that sends: the same bytes in its protection domain.
    sent_from: Arc<Region>,
}

impl Compressor {
    fn new(nic: &mut Nic, sender: Pd) -> Result<Self, Error> {
        let registry = nic.registry().clone();
        let pd = registry.alloc_pd();
        let buffer = map_memory(PIECES * STRIDE)?;
        let region = registry.register(pd, &buffer, 0, buffer.len(), None, Access::LOCAL_WRITE | ALL_REMOTE)?;
        let sent_from = registry.register(sender, &buffer, 0, buffer.len(), None, Access::empty())?;
        let cq = nic.create_cq(2 * PIECES as u32)?;
        let init = QpInit { max_rpc: PIECES as u32, ..QpInit::new(QpType::Rc, pd, cq, cq) };
        let qp = nic.create_qp(init)?;
        nic.to_init(qp, Access::empty(), 0)?;
        Ok(Self { qp, cq, buffer, region, sent_from })
    }

    /// Lays a piece down and calls the kernel that compresses it.
    fn compress(&self, nic: &mut Nic, slot: usize, raw: &[u8]) -> Result<(), Error> {
        let at = slot * STRIDE;
        self.buffer.write(at, raw).map_err(|e| Error::Argument(e.to_string()))?;
        let va = self.region.va() + at as u64;
        let params = CompressParams { key: self.region.key(), va, len: raw.len() as u64 };
        let header = RpcHeader {
            reply_va: va + PIECE as u64,
            reply_rkey: self.region.key(),
            reply_capacity: CODED as u32,
            tag: slot as u32,
            flags: 0,
        };
        Ok(nic.post_local_rpc(self.qp, slot as u64, op::COMPRESS, &header, &params.encode())?)
    }

    /// A piece that is compressed: its slot, and its blocks as payload.
    fn poll(&self, nic: &mut Nic) -> Option<Result<(usize, Sge), Error>> {
        let wc = nic.poll_cq(self.cq)?;
        let slot = wc.wr_id as usize;
        let va = self.sent_from.va() + (slot * STRIDE + PIECE) as u64;
        let status = Status::from_code(parse_reply_imm(wc.imm.unwrap_or(0)).1);
        Some(match (wc.opcode, wc.status, status) {
            (WcOpcode::LocalRpc, WcStatus::Success, Status::Ok) => {
                Ok((slot, Sge { va, len: wc.byte_len, lkey: self.sent_from.key() }))
            }
            (.., status) => Err(Error::Node { what: "compress", why: format!("{status:?} at this client's NIC") }),
        })
    }
}

impl Client {
    /// Copies `data` into a region like [`write`](Client::write), but compressed on its way: the NIC here runs
    /// [`op::COMPRESS`] on each piece and streams its blocks to [`op::DECOMPRESS`] on the node's NIC.
    pub fn write_compressed(&mut self, region: &RemoteRegion, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.check_range(region, offset, data.len())?;
        self.idle()?;
        let compressor = match self.compressor.take() {
            Some(compressor) => compressor,
            None => Compressor::new(self.device().clone().lock().nic(), self.pd())?,
        };
        let outcome = self.send_compressed(&compressor, region, offset, data);
        // After a failure a kernel or the NIC may still use the memory: it stays with the connection, which ends.
        self.compressor = Some(compressor);
        outcome
    }

    fn send_compressed(
        &mut self,
        compressor: &Compressor,
        region: &RemoteRegion,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Error> {
        let device = self.device().clone();
        let mut pieces = data.chunks(PIECE).enumerate();
        let mut free: Vec<usize> = (0..PIECES).collect();
        let mut places = [(0, 0); PIECES];
        let mut ended = Ok(());
        while pieces.len() > 0 && ended.is_ok() || free.len() < PIECES {
            while ended.is_ok()
                && let Some(slot) = free.pop()
            {
                let Some((n, piece)) = pieces.next() else {
                    free.push(slot);
                    break;
                };
                places[slot] = (region.va + offset + (n * PIECE) as u64, piece.len() as u64);
                compressor.compress(device.lock().nic(), slot, piece)?;
            }
            let mut statuses = [None; PIECES];
            self.poll(&mut |slot, status, _| statuses[slot as usize % PIECES] = Some(status))?;
            for (slot, status) in statuses.into_iter().enumerate().filter_map(|(slot, status)| Some((slot, status?))) {
                if status != Status::Ok {
                    ended = Err(Error::Node { what: "restore compressed data", why: format!("{status:?}") });
                }
                free.push(slot);
            }
            loop {
                // The lock is for this statement alone: what follows takes it too.
                let done = compressor.poll(device.lock().nic());
                let Some((slot, blocks)) = done.transpose()? else { break };
                let (va, len) = places[slot];
                let params = CompressParams { key: region.key, va, len };
                self.post_stream(op::DECOMPRESS, &params.encode(), blocks, slot as u32)?;
            }
        }
        self.await_streams()?;
        ended
    }
}

//! The filter kernel: a predicate on fixed-width rows, and what to make of those that it lets through.
//!
//! Rows come from memory, so that only what matters leaves the node (a *send kernel* of StRoM's section 3.5), or from
//! the payload, so that only what matters reaches memory (a *receive kernel*).

mod params;
mod rows;

use crate::call::{Call, Status};
use crate::memory::Memory;
pub use params::{Column, ColumnType, FilterOutput, FilterParams, Group, RowPredicate, Source};
use rows::{Aggregates, Gather};

/// The matching rows need more room than the destination has. None is written behind it.
pub const DESTINATION_FULL: Status = Status::Other(12);
/// The rows fall into more groups than the kernel keeps.
pub const TOO_MANY_GROUPS: Status = Status::Other(13);
/// Groups that a call may make.
pub const MAX_GROUPS: usize = 1024;
/// Bytes of rows that are read from memory at a time.
const BLOCK: usize = 16 << 10;

/// Replies as [`FilterParams`] says.
pub(crate) async fn run<M: Memory>(memory: &M, call: &mut Call) -> Result<(), Status> {
    let params = FilterParams::decode(&call.params)?;
    let mut filter = Filter {
        range: params.range(),
        params,
        seen: 0,
        matched: 0,
        gather: Gather::default(),
        aggregates: Aggregates::default(),
    };
    match params.source {
        Source::Memory { key, va, rows } => filter.scan(memory, call, key, va, rows).await?,
        Source::Payload => filter.receive(memory, call).await?,
    }
    filter.finish(memory, call).await
}

/// One call.
struct Filter {
    params: FilterParams,
    /// Values of the column that match, in their order as unsigned numbers.
    range: std::ops::RangeInclusive<u64>,
    seen: u64,
    matched: u64,
    gather: Gather,
    aggregates: Aggregates,
}

impl Filter {
    async fn scan<M: Memory>(
        &mut self,
        memory: &M,
        call: &mut Call,
        key: u32,
        mut va: u64,
        mut rows: u64,
    ) -> Result<(), Status> {
        let row_len = usize::from(self.params.row_len);
        let mut block = vec![0; (BLOCK / row_len).max(1) * row_len];
        while rows > 0 {
            let count = rows.min((block.len() / row_len) as u64);
            let bytes = &mut block[..count as usize * row_len];
            memory.read(key, va, bytes).await?;
            self.take(memory, call, bytes).await?;
            (va, rows) = (va.wrapping_add(bytes.len() as u64), rows - count);
        }
        Ok(())
    }

    async fn receive<M: Memory>(&mut self, memory: &M, call: &mut Call) -> Result<(), Status> {
        // The stream's chunk and the reply are both parts of the call.
        let mut stream = std::mem::take(call.stream());
        while let Some(rows) = stream.next_whole(self.params.row_len.into()).await? {
            memory.earn(rows.len());
            self.take(memory, call, rows).await?;
        }
        let unread = stream.unread();
        *call.stream() = stream;
        if unread == 0 { Ok(()) } else { Err(Status::BadParams) }
    }

    /// Whole rows.
    async fn take<M: Memory>(&mut self, memory: &M, call: &mut Call, rows: &[u8]) -> Result<(), Status> {
        let params = self.params;
        memory.spend(rows.len() as u64);
        for row in rows.chunks_exact(params.row_len.into()) {
            if !self.range.contains(&params.column.ordered(row)) {
                continue;
            }
            self.matched += 1;
            match params.output {
                FilterOutput::Reply => call.grow_reply(row.len())?.copy_from_slice(row),
                FilterOutput::Memory { .. } => {
                    if self.gather.push(row) {
                        self.write_out(memory).await?;
                    }
                }
                FilterOutput::Aggregate { column, group } => self.aggregates.add(row, column, group)?,
            }
        }
        self.seen += (rows.len() / usize::from(params.row_len)) as u64;
        Ok(())
    }

    async fn write_out<M: Memory>(&mut self, memory: &M) -> Result<(), Status> {
        if let FilterOutput::Memory { key, va, len } = self.params.output {
            let (at, bytes) = self.gather.take();
            if at + bytes.len() as u64 > len {
                return Err(DESTINATION_FULL);
            }
            memory.write(key, va.wrapping_add(at), bytes).await?;
            self.gather.clear();
        }
        Ok(())
    }

    async fn finish<M: Memory>(&mut self, memory: &M, call: &mut Call) -> Result<(), Status> {
        match self.params.output {
            FilterOutput::Reply => Ok(()),
            FilterOutput::Memory { .. } => {
                self.write_out(memory).await?;
                let reply = call.grow_reply(16)?;
                reply[..8].copy_from_slice(&self.matched.to_le_bytes());
                reply[8..].copy_from_slice(&self.seen.to_le_bytes());
                Ok(())
            }
            FilterOutput::Aggregate { column, group } => {
                for result in self.aggregates.groups(column, group) {
                    call.grow_reply(Group::LEN)?.copy_from_slice(&result.encode());
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! Embedding reduction: rows of a table of numbers become one row (RAMBDA, HPCA 2023, section IV-C), or a number each.
//!
//! A recommender looks up what it knows of each item of a request, a row of some sixty numbers, and adds the rows up. They
//! lie anywhere in a table that is larger than every cache, so what counts is how many are asked for at once: a core has
//! [`AHEAD`] lines of each call under way while it works on others, a client asks for [`AT_ONCE`] rows in one round trip.
//!
//! Sums of rows that often come together may stand behind the table as rows of their own (MERCI, ASPLOS 2021); which those
//! are only who asks needs to know, and so the kernel knows nothing of it.

mod params;
mod reduce;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::task::Poll;

pub use params::{DIMS, Element, EmbedParams, EmbedRequest, EmbedTable, MOST_ROWS, Reduction, UnknownElement};
pub use reduce::f16_to_f32;

use crate::call::{Call, CallFields, Status};
use crate::memory::{Fault, Memory};
use reduce::How;

/// Cache lines of a call that a core has asked for: as many as RAMBDA's accelerator has under way for a request.
/// Of more a core cannot keep all in mind, and waits where it asks.
pub const AHEAD: usize = 64;
/// Rows that are read together where each access is a wait.
pub const AT_ONCE: usize = 16;
/// Rows that a core works on at a time.
const NEAR: usize = 8;
/// Bytes of a cache line.
const LINE: usize = 64;

/// The reply is the reduced row, or the inner products, as `f32`.
pub(crate) async fn run<M: Memory>(memory: &M, call: &mut Call) -> Result<(), Status> {
    let CallFields { params, reply, reply_limit, .. } = &mut **call;
    let params = EmbedParams::decode(params)?;
    let len = params.reply_len();
    if len > *reply_limit as usize {
        return Err(Status::ReplyTooLong);
    }
    reply.clear();
    reply.resize(len, 0);
    reduce::begin(reply, &params);
    match near(memory, &params, reply).await? {
        true => {}
        false => Box::pin(far(memory, &params, reply)).await?,
    }
    reply.truncate(len);
    reduce::end(reply, &params);
    Ok(())
}

/// The reply, and behind it room for so many rows: calls keep that memory, so that nothing is allocated.
fn with_room<'r>(reply: &'r mut Vec<u8>, params: &EmbedParams<'_>, rows: usize) -> (&'r mut [u8], &'r mut [u8]) {
    let len = params.reply_len();
    reply.resize(len + rows * params.table.row_bytes(), 0);
    reply.split_at_mut(len)
}

/// How far a call is.
#[derive(Default)]
struct Way {
    /// Rows that were asked for.
    asked: usize,
    /// Rows that are reduced.
    done: usize,
}

/// Reduces where the table can be looked at where it is; false if it cannot.
async fn near<M: Memory>(memory: &M, params: &EmbedParams<'_>, reply: &mut Vec<u8>) -> Result<bool, Status> {
    let (mut way, table) = (Way::default(), params.table);
    if table.rows == 0 {
        // It names no memory, so that its key is not looked at.
        return Ok(true);
    }
    loop {
        // The first rows are asked for, and others run while they come.
        if !step(memory, params, reply, &mut way)? {
            return Ok(false);
        }
        if way.done == params.count() {
            return Ok(true);
        }
        let next = u64::from(params.row(way.done)) * table.row_bytes() as u64;
        memory.touch(table.key, table.base + next, 1).await;
    }
}

/// Asks for the first rows; then reduces rows, and asks for as many that come after them; false if the table is not at hand.
///
/// A function of its own: what is borrowed from the memory here goes to no other thread.
fn step<M: Memory>(memory: &M, params: &EmbedParams<'_>, reply: &mut Vec<u8>, way: &mut Way) -> Result<bool, Status> {
    let (table, count, how) = (params.table, params.count(), How::new(params));
    let row_bytes = table.row_bytes();
    let Some(now) = memory.immediate() else { return Ok(false) };
    let Some(words) = now.view_now(table.key, table.base, table.bytes()) else {
        // A table that ends outside its region is denied, whichever of its rows are asked for.
        now.read_now(table.key, table.base.wrapping_add(table.bytes()).wrapping_sub(1), &mut [0])?;
        return Ok(false);
    };
    let place = |row: usize| params.row(row) as usize * row_bytes;
    let ask = |rows: Range<usize>| rows.for_each(|row| words.prefetch(place(row), row_bytes));
    let (begin, end) = (way.done, way.asked);
    way.asked = count.min(end + (AHEAD * LINE / row_bytes).max(NEAR));
    if begin == end {
        ask(end..way.asked);
    } else if params.adds_up() && words.add_rows(reply, params.rows(begin..end), params.rows(end..way.asked)) {
        way.done = end;
    }
    // Each row that is reduced makes room to ask for one more.
    let mut next = end;
    while way.done < end {
        let rows = NEAR.min(end - way.done);
        let more = way.asked.min(next + rows);
        ask(next..more);
        let (into, batch) = with_room(reply, params, NEAR);
        for (out, row) in batch.chunks_exact_mut(row_bytes).take(rows).zip(way.done..) {
            words.take(place(row), out);
        }
        reduce::reduce(into, &batch[..rows * row_bytes], way.done, &how);
        (way.done, next) = (way.done + rows, more);
    }
    memory.spend(((end - begin) * row_bytes) as u64 / 8);
    Ok(true)
}

/// Reduces where each access is a wait: several rows come at once.
async fn far<M: Memory>(memory: &M, params: &EmbedParams<'_>, reply: &mut Vec<u8>) -> Result<(), Status> {
    let (into, batch) = with_room(reply, params, AT_ONCE);
    let (table, how) = (params.table, How::new(params));
    let row_bytes = table.row_bytes();
    for first in (0..params.count()).step_by(AT_ONCE) {
        let rows = first..params.count().min(first + AT_ONCE);
        let len = rows.len() * row_bytes;
        {
            let mut places = rows.zip(batch.chunks_exact_mut(row_bytes));
            let mut read = || {
                let place = places.next();
                async move {
                    let Some((row, out)) = place else { return Ok(()) };
                    let at = u64::from(params.row(row)) * row_bytes as u64;
                    memory.read(table.key, table.base + at, out).await
                }
            };
            together(&mut [
                pin!(read()),
                pin!(read()),
                pin!(read()),
                pin!(read()),
                pin!(read()),
                pin!(read()),
                pin!(read()),
                pin!(read()),
                pin!(read()),
                pin!(read()),
                pin!(read()),
                pin!(read()),
                pin!(read()),
                pin!(read()),
                pin!(read()),
                pin!(read()),
            ])
            .await?;
        }
        reduce::reduce(into, &batch[..len], first, &how);
    }
    Ok(())
}

/// Waits for all, also after one has failed: none is left half done.
async fn together<F: Future<Output = Result<(), Fault>>>(reads: &mut [Pin<&mut F>; AT_ONCE]) -> Result<(), Fault> {
    let (mut ended, mut result) = ([false; AT_ONCE], Ok(()));
    poll_fn(move |cx| {
        for (read, ended) in reads.iter_mut().zip(&mut ended) {
            if !*ended && let Poll::Ready(outcome) = read.as_mut().poll(cx) {
                *ended = true;
                result = result.and(outcome);
            }
        }
        if ended == [true; AT_ONCE] { Poll::Ready(result) } else { Poll::Pending }
    })
    .await
}

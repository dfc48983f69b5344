//! Memory that counts its accesses, and a way to run one call on it.

use crate::{Builtins, Call, Fault, Kernel, Limited, Limits, Memory, Status};
use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, Waker};

/// Bytes at addresses from 0 on, under any key but 0.
pub struct Counted {
    bytes: RefCell<Vec<u8>>,
    pub reads: Cell<u32>,
    /// After so many reads, these bytes appear at this address.
    later: RefCell<Option<(u32, u64, Vec<u8>)>>,
}

impl Counted {
    pub fn new(len: usize) -> Self {
        Counted { bytes: RefCell::new(vec![0; len]), reads: Cell::new(0), later: RefCell::new(None) }
    }

    pub fn put(&self, at: u64, data: &[u8]) {
        self.bytes.borrow_mut()[at as usize..][..data.len()].copy_from_slice(data);
    }

    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        self.bytes.borrow()[at as usize..][..len].to_vec()
    }

    pub fn after(&self, reads: u32, at: u64, data: Vec<u8>) {
        *self.later.borrow_mut() = Some((reads, at, data));
    }

    fn range(&self, key: u32, va: u64, len: usize) -> Result<std::ops::Range<usize>, Fault> {
        let end = va.checked_add(len as u64).ok_or(Fault::Access)?;
        let inside = key != 0 && end <= self.bytes.borrow().len() as u64;
        if inside { Ok(va as usize..end as usize) } else { Err(Fault::Access) }
    }
}

impl Memory for Counted {
    async fn read(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        let range = self.range(key, va, out.len())?;
        let due = self.later.borrow_mut().take_if(|(reads, ..)| *reads <= self.reads.get());
        if let Some((_, at, data)) = due {
            self.put(at, &data);
        }
        self.reads.set(self.reads.get() + 1);
        out.copy_from_slice(&self.bytes.borrow()[range]);
        Ok(())
    }

    async fn write(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        let range = self.range(key, va, data.len())?;
        self.bytes.borrow_mut()[range].copy_from_slice(data);
        Ok(())
    }

    async fn compare_swap(&self, key: u32, va: u64, expect: u64, new: u64) -> Result<u64, Fault> {
        let old = self.fetch_add(key, va, 0).await?;
        if old == expect {
            self.write(key, va, &new.to_ne_bytes()).await?;
        }
        Ok(old)
    }

    async fn fetch_add(&self, key: u32, va: u64, n: u64) -> Result<u64, Fault> {
        if !va.is_multiple_of(8) {
            return Err(Fault::Misaligned);
        }
        let range = self.range(key, va, 8)?;
        let word = &mut self.bytes.borrow_mut()[range];
        let old = u64::from_ne_bytes(word.try_into().unwrap());
        word.copy_from_slice(&old.wrapping_add(n).to_ne_bytes());
        Ok(old)
    }
}

/// Runs a built-in kernel with room for a reply of 64 KB.
pub fn run_on<M: Memory>(memory: &M, op: u64, params: &[u8]) -> (Status, Vec<u8>) {
    run_limited(memory, op, params, Limits::default())
}

pub fn run_limited<M: Memory>(memory: &M, op: u64, params: &[u8], limits: Limits) -> (Status, Vec<u8>) {
    let mut call = Call::new(op, params, 1 << 16);
    let limited = Limited::new(memory, limits);
    let mut run = Box::pin(Builtins.run(&limited, &mut call));
    let mut cx = Context::from_waker(Waker::noop());
    let status = loop {
        if let Poll::Ready(status) = run.as_mut().poll(&mut cx) {
            break status;
        }
    };
    drop(run);
    (status, std::mem::take(&mut call.reply))
}

/// Runs a built-in kernel over a payload that comes in pieces of `piece` bytes.
pub fn run_stream<M: Memory>(
    memory: &M,
    op: u64,
    params: &[u8],
    payload: &[u8],
    piece: usize,
    limits: Limits,
) -> (Status, Vec<u8>) {
    let mut call = Call::new(op, params, 1 << 20);
    let mut feed = (!payload.is_empty()).then(|| call.open_stream(piece));
    let limited = Limited::new(memory, limits);
    let mut pieces = payload.chunks(piece).peekable();
    let mut run = Box::pin(Builtins.run(&limited, &mut call));
    let mut cx = Context::from_waker(Waker::noop());
    let status = loop {
        if let (Some(feed), Some(&bytes)) = (&mut feed, pieces.peek())
            && feed.push(bytes, pieces.len() == 1)
        {
            pieces.next();
        }
        if let Poll::Ready(status) = run.as_mut().poll(&mut cx) {
            break status;
        }
    };
    drop(run);
    (status, std::mem::take(&mut call.reply))
}

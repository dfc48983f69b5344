//! The checksum kernel: CRC-64 of a payload stream, without storing it.

use crate::call::{Call, Status};
use crate::memory::Memory;

/// Replies with the number of bytes and their CRC-64/XZ.
pub(crate) async fn run<M: Memory>(memory: &M, call: &mut Call) -> Result<(), Status> {
    if !call.params.is_empty() {
        return Err(Status::BadParams);
    }
    let mut digest = crc64fast::Digest::new();
    let mut len = 0;
    while let Some(chunk) = call.stream().next_chunk().await? {
        digest.write(chunk);
        memory.spend(chunk.len() as u64 / 4);
        len += chunk.len() as u64;
    }
    let reply = call.grow_reply(16)?;
    reply[..8].copy_from_slice(&len.to_le_bytes());
    reply[8..].copy_from_slice(&digest.sum64().to_le_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fault, HostMemory, Limits, Runner, op, runner};
    use std::sync::Arc;

    fn checksums() -> Box<dyn Runner> {
        let registry = Arc::new(remora_memory::Registry::new([1; 32]));
        let task = move |mut call: Call| {
            let memory = HostMemory::new(registry.clone(), registry.alloc_pd(), false, Limits::default());
            async move {
                let status = run(&memory, &mut call).await.err().unwrap_or(Status::Ok);
                (call, status)
            }
        };
        runner(task, 4)
    }

    fn start(capacity: usize) -> (Box<dyn Runner>, crate::Feed) {
        let mut runner = checksums();
        let mut call = Call::new(op::CHECKSUM, &[], 16);
        let feed = call.open_stream(capacity);
        runner.start(call).unwrap();
        (runner, feed)
    }

    fn finish(runner: &mut dyn Runner) -> Option<(Vec<u8>, Status)> {
        let mut result = None;
        runner.poll(&mut |mut call, status| result = Some((std::mem::take(&mut call.reply), status)));
        result
    }

    #[test]
    fn a_stream_in_pieces_has_the_checksum_of_the_whole() {
        let data: Vec<u8> = (0..1000u32).map(|i| (i * i) as u8).collect();
        for piece in [1, 7, 64, 1000] {
            let (mut runner, mut feed) = start(64);
            let mut pieces = data.chunks(piece).peekable();
            while let Some(bytes) = pieces.next() {
                while !feed.push(bytes, pieces.peek().is_none()) {
                    assert_eq!(finish(&mut *runner), None, "room comes from reading");
                }
            }
            let (reply, status) = finish(&mut *runner).unwrap();
            assert_eq!(status, Status::Ok);
            assert_eq!(reply[..8], 1000u64.to_le_bytes());
            assert_eq!(reply[8..], crate::crc64(&data).to_le_bytes());
        }
    }

    #[test]
    fn a_full_queue_pushes_back() {
        let (mut runner, mut feed) = start(10);
        assert!(feed.push(&[0; 8], false));
        assert!(!feed.push(&[0; 3], false));
        assert!(feed.push(&[0; 2], false));
        assert_eq!(finish(&mut *runner), None);
        assert!(feed.push(&[0; 99], true), "empty: takes anything");
        assert_eq!(finish(&mut *runner).unwrap().0[..8], 109u64.to_le_bytes());
    }

    #[test]
    fn broken_streams_and_stray_parameters_end_in_an_error() {
        let (mut runner, mut feed) = start(10);
        assert!(feed.push(&[1], false));
        assert_eq!(finish(&mut *runner), None);
        drop(feed);
        assert_eq!(finish(&mut *runner).unwrap().1, Status::from(Fault::Lost));

        let call = Call::new(op::CHECKSUM, &[1], 16);
        let mut runner = checksums();
        runner.start(call).unwrap();
        assert_eq!(finish(&mut *runner).unwrap().1, Status::BadParams);
    }

    #[test]
    fn a_feed_of_the_last_call_does_not_reach_the_next() {
        let mut call = Call::new(op::CHECKSUM, &[], 16);
        let mut stale = call.open_stream(10);
        call.recycle(op::CHECKSUM, 16);
        let mut feed = call.open_stream(10);
        assert!(stale.push(b"stale", true));
        assert!(feed.push(b"new", true));
        let chunk = std::pin::pin!(call.stream().next_chunk());
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let std::task::Poll::Ready(chunk) = chunk.poll(&mut cx) else { panic!("ready") };
        assert_eq!(chunk, Ok(Some(&b"new"[..])));
    }
}

//! A ring all-reduce over TCP connections: what each process of `remora bench rack`'s ring does.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::rack::wrong;

/// Processes of the ring that reduces, and floats that each has.
pub(super) const RANKS: usize = 4;
const FLOATS: usize = 16 << 20;
/// How long one waits for another.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes that are added at once, while they are in the cache.
const PIECE: usize = 256 << 10;

/// One of the ring that reduces, at an address: says where it listens, is told where the next one does, and adds up numbers with
/// all others as often as fits the time. Every sum is compared. Returns the milliseconds of one.
///
/// # Errors
///
/// What the kernel says, or that another sum came.
pub fn reduce(rank: usize, at: IpAddr, time: Duration) -> io::Result<f64> {
    let listener = TcpListener::bind((at, 0))?;
    println!("{}", listener.local_addr()?);
    let mut next = String::new();
    io::stdin().read_line(&mut next)?;
    let next: SocketAddr = next.trim().parse().map_err(|_| io::Error::other("no address of the next one"))?;
    let mut to = TcpStream::connect(next)?;
    let mut from = accept(&listener, PATIENCE)?;
    to.set_nodelay(true)?;
    reduce_with(rank, FLOATS, time, &mut to, &mut from)
}

/// The one before in the ring, and no longer wait than this for it or for what it sends: it may have died.
fn accept(listener: &TcpListener, patience: Duration) -> io::Result<TcpStream> {
    let late = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::other("the process before this one in the ring does not come"),
        _ => error,
    };
    sockopt::set_socket_timeout(listener, sockopt::Timeout::Recv, Some(patience))?;
    let from = listener.accept().map_err(late)?.0;
    from.set_read_timeout(Some(patience))?;
    Ok(from)
}

fn reduce_with(
    rank: usize,
    floats: usize,
    time: Duration,
    to: &mut TcpStream,
    from: &mut TcpStream,
) -> io::Result<f64> {
    let chunk = floats / RANKS;
    let value = |at: usize| (at % 1000) as f32;
    // Floats as they cross, little-endian.
    let own = |at: usize| (value(at) + rank as f32).to_le_bytes();
    let original: Vec<Vec<u8>> = (0..RANKS).map(|n| (n * chunk..(n + 1) * chunk).flat_map(own).collect()).collect();
    let (mut chunks, mut came) = (original.clone(), vec![0u8; PIECE]);
    let (mut took, mut turns, start) = (Duration::ZERO, 0u32, Instant::now());
    loop {
        chunks.clone_from(&original);
        // All begin together, and all hear from the first whether there is another turn.
        let more = rank > 0 || turns < 2 || start.elapsed() < time;
        if !pass_on(rank, more, to, from)? {
            return Ok(took.as_secs_f64() * 1e3 / f64::from(turns - 1));
        }
        let begin = Instant::now();
        for step in 0..2 * (RANKS - 1) {
            let sent = (rank + 2 * RANKS - step) % RANKS;
            let bytes = std::mem::take(&mut chunks[sent]);
            let own = &mut chunks[(sent + RANKS - 1) % RANKS];
            std::thread::scope(|scope| {
                let sender = scope.spawn(|| to.write_all(&bytes));
                for own in own.chunks_mut(PIECE) {
                    if step >= RANKS - 1 {
                        from.read_exact(own)?;
                        continue;
                    }
                    // Added while the next ones are on their way.
                    let came = &mut came[..own.len()];
                    from.read_exact(came)?;
                    for (own, came) in own.as_chunks_mut().0.iter_mut().zip(came.as_chunks().0) {
                        *own = (f32::from_le_bytes(*own) + f32::from_le_bytes(*came)).to_le_bytes();
                    }
                }
                sender.join().map_err(|_| io::Error::other("the sender panicked"))?
            })?;
            chunks[sent] = bytes;
        }
        // Connections change over in the first one.
        took = if turns == 0 { Duration::ZERO } else { took + begin.elapsed() };
        turns += 1;
        let others = (0..RANKS).sum::<usize>() as f32;
        let right = |(at, sum): (usize, &[u8; 4])| f32::from_le_bytes(*sum) == value(at) * RANKS as f32 + others;
        if !chunks.iter().flat_map(|chunk| chunk.as_chunks().0).enumerate().all(right) {
            return Err(wrong());
        }
    }
}

/// One byte once around: what the first one wants.
fn pass_on(rank: usize, more: bool, to: &mut TcpStream, from: &mut TcpStream) -> io::Result<bool> {
    let mut word = [u8::from(more)];
    if rank == 0 {
        to.write_all(&word)?;
        from.read_exact(&mut word)?;
    } else {
        from.read_exact(&mut word)?;
        to.write_all(&word)?;
    }
    Ok(word[0] == 1)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn four_reduce_what_each_of_them_has() {
        let listeners: Vec<_> =
            (0..RANKS).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port")).collect();
        let to: Vec<_> = (0..RANKS)
            .map(|rank| listeners[(rank + 1) % RANKS].local_addr().expect("its number"))
            .map(|next| TcpStream::connect(next).expect("connects"))
            .collect();
        std::thread::scope(|scope| {
            for (rank, (mut to, listener)) in to.into_iter().zip(&listeners).enumerate() {
                scope.spawn(move || {
                    let mut from = listener.accept().expect("one comes").0;
                    let took = reduce_with(rank, 64, Duration::from_millis(2), &mut to, &mut from).expect("sums");
                    assert!(took > 0.0);
                });
            }
        });
    }

    #[test]
    fn a_process_that_does_not_come_or_says_nothing_is_an_error() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let why = accept(&listener, Duration::from_millis(5)).expect_err("nobody comes");
        assert!(why.to_string().contains("does not come"), "{why}");
        let mut silent = TcpStream::connect(listener.local_addr().expect("its number")).expect("connects");
        let mut from = accept(&listener, Duration::from_millis(5)).expect("one comes");
        assert!(reduce_with(1, 64, Duration::ZERO, &mut silent, &mut from).is_err(), "it says nothing");
    }
}

//! Figures over HTTP: what a node serves, and how `remora top` reads it. One page, one request a connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::Failure;

/// How long a peer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two attempts to take a connection that could not be taken.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes of a request, and of an answer, at most.
const REQUEST: usize = 16 << 10;
const ANSWER: usize = 4 << 20;

/// Where figures are served.
pub struct Metrics(TcpListener);

impl Metrics {
    /// Listens.
    pub fn bind(at: SocketAddr) -> Result<Self, Failure> {
        TcpListener::bind(at).map(Self).map_err(|e| Failure::Failed(format!("--metrics {at}: {e}")))
    }

    /// Answers requests, one after the other, for as long as there is a `page`.
    pub fn serve(self, page: impl Fn() -> Option<String> + Send + 'static) -> Result<(), Failure> {
        let serve = move || {
            for stream in self.0.incoming() {
                let Some(page) = page() else { return };
                match stream {
                    // Whoever asks may go away.
                    Ok(stream) => drop(answer(stream, &page)),
                    // There are no descriptors left, for a while: who asks waits.
                    Err(_) => thread::sleep(PAUSE),
                }
            }
        };
        let started = thread::Builder::new().name("metrics".into()).spawn(serve);
        started.map(drop).map_err(|e| Failure::Failed(format!("a thread for --metrics: {e}")))
    }
}

fn answer(mut stream: TcpStream, page: &str) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    // The first line says all; the rest is read up to its end, so that the answer is not lost by a reset.
    let request = read(&mut stream, REQUEST, |said| said.windows(4).any(|end| end == b"\r\n\r\n"))?;
    let (status, kind, body) = match request.split(|&byte| byte == b' ').nth(1) {
        Some(b"/metrics" | b"/") => ("200 OK", "text/plain; version=0.0.4", page),
        _ => ("404 Not Found", "text/plain", "see /metrics\n"),
    };
    let len = body.len();
    let head = "Connection: close\r\n\r\n";
    write!(stream, "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n{head}{body}")
}

/// What a peer says until it is `whole`, or ends, or is so long. One byte now and then is not to hold anybody up for ever.
fn read(stream: &mut TcpStream, most: usize, whole: impl Fn(&[u8]) -> bool) -> io::Result<Vec<u8>> {
    let (mut said, mut piece, end) = (Vec::new(), [0; 4096], Instant::now() + PATIENCE);
    while !whole(&said) && said.len() < most {
        let left = end.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(&mut piece)? {
            0 => break,
            _ if left.is_zero() => return Err(io::ErrorKind::TimedOut.into()),
            n => said.extend_from_slice(&piece[..n]),
        }
    }
    Ok(said)
}

/// The figures at an address: name with labels, and value.
pub fn ask(at: SocketAddr) -> Result<Vec<(String, f64)>, String> {
    let asked = || -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n")?;
        let said = read(&mut stream, ANSWER, |_| false)?;
        String::from_utf8(said).map_err(|_| io::ErrorKind::InvalidData.into())
    };
    let text = asked().map_err(|e| e.to_string())?;
    let (head, page) = text.split_once("\r\n\r\n").ok_or("its answer is no HTTP")?;
    let figures = parse(page);
    match head.split_ascii_whitespace().nth(1) == Some("200") && !figures.is_empty() {
        true => Ok(figures),
        false => Err("it serves no figures: give the address of `remora node --metrics ADDR`".into()),
    }
}

fn parse(page: &str) -> Vec<(String, f64)> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.rsplit_once(' '))
        .filter_map(|(name, value)| Some((name.into(), value.parse().ok()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_served_is_what_is_read() {
        let metrics = Metrics::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let at = metrics.0.local_addr().unwrap();
        metrics.serve(|| Some("# HELP a b\na 1\nb{c=\"d e\"} 2.5\n".into())).unwrap();
        let figures = ask(at).unwrap();
        assert_eq!(figures, [("a".to_string(), 1.0), ("b{c=\"d e\"}".to_string(), 2.5)]);
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(b"GET /etc HTTP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 404"), "{text}");
        let other = Metrics::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let at = other.0.local_addr().unwrap();
        other.serve(|| Some("<html>\nno figures\n".into())).unwrap();
        assert!(ask(at).unwrap_err().contains("--metrics"));
        assert!(ask("127.0.0.1:1".parse().unwrap()).is_err());
    }

    #[test]
    fn who_asks_one_byte_at_a_time_keeps_nobody_from_the_figures() {
        let metrics = Metrics::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let at = metrics.0.local_addr().unwrap();
        metrics.serve(|| Some("a 1\n".into())).unwrap();
        let mut slow = TcpStream::connect(at).unwrap();
        slow.write_all(b"G").unwrap();
        // Until it is hung up on, or the test is over.
        thread::spawn(move || {
            while slow.write_all(b"G").is_ok() {
                thread::sleep(Duration::from_millis(100));
            }
        });
        remora_testing::eventually("the figures", || ask(at).ok());
    }
}

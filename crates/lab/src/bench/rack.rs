//! The measurements behind `remora bench rack`: TCP connections of unmodified programs in a rack beside the kernel's own, on
//! loopback.
//!
//! The programs are this command's own: [`serve`] takes connections one after the other, [`call`] is the other end of one.
//! They use the standard library's blocking sockets and know of no rack. Each figure is one run of the two; what arrives is
//! what was sent, or the run fails.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use remora_real::Error;

use super::rack_reduce::RANKS;
use super::rack_stock as stock;
use super::{BenchError, BenchGoal, BenchProgress, BenchRow, LARGE, SMALL, beside, next};
use crate::MeasuredRows;
use crate::probe::Probe;

/// Bytes of a send of the stream: as iperf3 does.
const SEND: usize = 2 * LARGE;
/// Calls of a connection that lives long enough to be brought into the rack, and then ends.
const SOME: u32 = 32;
/// Part of the time that goes by before anything counts: connections change over meanwhile.
const WARM_UP: u32 = 5;
/// Messages between two looks at the clock.
const BATCH: u32 = 64;

/// What a caller does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RackDeed {
    /// Sends 64 bytes and waits for them to come back: nanoseconds for both.
    RoundTrip,
    /// Sends messages of so many bytes, a call each, which the other end takes with a call each: messages a second.
    OneWay(usize),
    /// Connects, has so many round trips and closes: connections a second.
    Connections(u32),
}

impl RackDeed {
    /// The first word on a connection: how long a message is, and whether it comes back.
    fn head(self) -> u64 {
        match self {
            Self::RoundTrip | Self::Connections(_) => (SMALL as u64) << 1 | 1,
            Self::OneWay(len) => (len as u64) << 1,
        }
    }
}

impl std::fmt::Display for RackDeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::RoundTrip => write!(f, "round-trip"),
            Self::OneWay(len) => write!(f, "one-way:{len}"),
            Self::Connections(calls) => write!(f, "connections:{calls}"),
        }
    }
}

impl FromStr for RackDeed {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, number) = text.split_once(':').unwrap_or((text, ""));
        let number = number.parse().ok().filter(|number| (1..=1 << 20).contains(number));
        match (name, number) {
            ("round-trip", None) => Ok(Self::RoundTrip),
            ("one-way", Some(len)) if len >= 8 => Ok(Self::OneWay(len as usize)),
            ("connections", Some(calls)) => Ok(Self::Connections(calls)),
            _ => Err("round-trip, one-way:BYTES or connections:CALLS"),
        }
    }
}

pub(super) fn wrong() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "another message came than was sent")
}

/// A message's bytes: its number in the first and the last 8.
fn mark(message: &mut [u8], number: u64) {
    let last = message.len() - 8;
    message[..8].copy_from_slice(&number.to_le_bytes());
    message[last..].copy_from_slice(&number.to_le_bytes());
}

fn check(message: &[u8], number: u64) -> io::Result<()> {
    let is = |bytes: &[u8]| bytes == number.to_le_bytes();
    if is(&message[..8]) && is(&message[message.len() - 8..]) { Ok(()) } else { Err(wrong()) }
}

/// Takes connections one after the other, for ever; says its port first.
///
/// # Errors
///
/// What the kernel says.
pub fn serve() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    loop {
        serve_one(listener.accept()?.0)?;
    }
}

fn serve_one(mut stream: TcpStream) -> io::Result<()> {
    let mut head = [0; 8];
    stream.read_exact(&mut head)?;
    let head = u64::from_le_bytes(head);
    let (len, comes_back) = ((head >> 1) as usize, head & 1 == 1);
    if !(8..=SEND).contains(&len) {
        return Err(wrong());
    }
    stream.set_nodelay(comes_back)?;
    let mut message = vec![0; len];
    for number in 0.. {
        let first = stream.read(&mut message)?;
        if first == 0 {
            // The caller waits for the count: only then has all arrived.
            return if comes_back { Ok(()) } else { stream.write_all(&u64::to_le_bytes(number)) };
        }
        stream.read_exact(&mut message[first..])?;
        check(&message, number)?;
        if comes_back {
            stream.write_all(&message)?;
        }
    }
    Ok(())
}

/// Does a deed with who serves at a port, for so long. Returns its figure.
///
/// # Errors
///
/// What the kernel says, or that other bytes came than were sent.
pub fn call(deed: RackDeed, port: u16, time: Duration) -> io::Result<f64> {
    match deed {
        RackDeed::RoundTrip => {
            let (mut stream, mut number) = (connect(deed, port)?, 0);
            rate(time, || round_trip(&mut stream, &mut number)).map(|per_s| 1e9 / per_s)
        }
        RackDeed::Connections(calls) => rate(time, || {
            let (mut stream, mut number) = (connect(deed, port)?, 0);
            (0..calls).try_for_each(|_| round_trip(&mut stream, &mut number))
        }),
        RackDeed::OneWay(len) => {
            let (mut stream, mut message, mut number) = (connect(deed, port)?, vec![0; len], 0u64);
            let per_s = rate(time, || {
                mark(&mut message, number);
                number += 1;
                stream.write_all(&message)
            })?;
            stream.shutdown(std::net::Shutdown::Write)?;
            let mut arrived = [0; 8];
            stream.read_exact(&mut arrived)?;
            if u64::from_le_bytes(arrived) == number { Ok(per_s) } else { Err(wrong()) }
        }
    }
}

fn connect(deed: RackDeed, port: u16) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(!matches!(deed, RackDeed::OneWay(_)))?;
    stream.write_all(&deed.head().to_le_bytes())?;
    Ok(stream)
}

fn round_trip(stream: &mut TcpStream, number: &mut u64) -> io::Result<()> {
    let mut message = [0; SMALL];
    mark(&mut message, *number);
    stream.write_all(&message)?;
    let mut answer = [0; SMALL];
    stream.read_exact(&mut answer)?;
    *number += 1;
    if answer == message { Ok(()) } else { Err(wrong()) }
}

/// How often a second something is done, after a while of doing it.
fn rate(time: Duration, mut work: impl FnMut() -> io::Result<()>) -> io::Result<f64> {
    let mut last = 0.0;
    for time in [time / WARM_UP, time] {
        let (start, mut done) = (Instant::now(), 0u64);
        while start.elapsed() < time {
            (0..BATCH).try_for_each(|_| work())?;
            done += u64::from(BATCH);
        }
        last = done as f64 / start.elapsed().as_secs_f64();
    }
    Ok(last)
}

/// How the bench runs.
#[derive(Clone, Debug)]
pub struct RackPlan {
    /// The command that is `remora`.
    pub remora: PathBuf,
    /// How long each figure is measured, of which there are three.
    pub time: Duration,
}

impl RackPlan {
    /// The figure of a deed: over the kernel's TCP, or in the rack with threads that wait so.
    ///
    /// # Errors
    ///
    /// What the system or the two programs say.
    pub fn figure(&self, deed: RackDeed, rack: Option<RackSpin>) -> Result<f64, Error> {
        let run = || {
            let mut server = self.program(rack, &["--serve".into()])?;
            let port = server.line()?;
            let seconds = self.time.as_secs_f64();
            let words = [format!("--call={deed}"), format!("--port={port}"), format!("--seconds={seconds}")];
            let figure = self.program(rack, &words.map(OsString::from))?.line()?;
            figure.parse().map_err(|_| io::Error::other(format!("{figure:?} is no figure")))
        };
        run().map_err(|source| Error::System { what: "running the bench's two programs", source })
    }

    /// Milliseconds of a ring all-reduce.
    fn reduce(&self, rack: Option<RackSpin>) -> Result<f64, Error> {
        let run = || {
            let seconds = format!("--seconds={}", self.time.as_secs_f64());
            let words = |rank: usize| [format!("--reduce={rank}"), seconds.clone()].map(OsString::from);
            let ranks = (0..RANKS).map(|rank| self.program(rack, &words(rank)));
            let mut ranks = ranks.collect::<io::Result<Vec<_>>>()?;
            let places = ranks.iter_mut().map(Program::line).collect::<io::Result<Vec<_>>>()?;
            ranks.iter_mut().enumerate().try_for_each(|(rank, program)| program.tell(&places[(rank + 1) % RANKS]))?;
            let figures = ranks.iter_mut().map(Program::line).collect::<io::Result<Vec<_>>>()?;
            figures[0].parse().map_err(|_| io::Error::other(format!("{:?} is no figure", figures[0])))
        };
        run().map_err(|source| Error::System { what: "running the bench's ring", source })
    }

    fn program(&self, rack: Option<RackSpin>, words: &[OsString]) -> io::Result<Program> {
        let mut command = self.command(rack, &self.remora, |program| Command::new(program));
        command.args(["bench", "rack"]).args(words);
        Program::start(command)
    }

    /// A program in the rack, with threads that wait so, or with the kernel's TCP; `new` makes the command.
    pub(super) fn command(&self, rack: Option<RackSpin>, program: &Path, new: fn(&Path) -> Command) -> Command {
        let Some(spin) = rack else { return new(program) };
        let mut command = new(&self.remora);
        command.args(["rack", "exec"]);
        match spin {
            RackSpin::Always => command.args(["--spin", "1000000"]),
            RackSpin::Never => command.args(["--spin", "0"]),
            RackSpin::AsItIs => &mut command,
        };
        command.arg("--").arg(program);
        command
    }
}

/// How threads in the rack wait.
#[derive(Clone, Copy, Debug)]
pub enum RackSpin {
    /// They look until something comes.
    Always,
    /// They sleep at once.
    Never,
    /// They look for as long as it pays.
    AsItIs,
}

/// A program, ended with this value.
pub(super) struct Program(Child);

impl Program {
    pub(super) fn start(mut command: Command) -> io::Result<Self> {
        // Ctrl-C is for this process, which ends them.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command.spawn().map(Self)
    }

    /// One that is [`bound`](crate::bound), and says nothing that is read here.
    pub(super) fn start_silent(mut command: Command) -> io::Result<Self> {
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Self)
    }

    /// Tells it a line.
    fn tell(&mut self, line: &str) -> io::Result<()> {
        self.0.stdin.as_mut().map_or(Ok(()), |input| writeln!(input, "{line}"))
    }

    /// The next line that it says; if it ends without one, what it says of that.
    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if let Some(out) = &mut self.0.stdout {
            BufReader::with_capacity(1 << 10, out).read_line(&mut line)?;
        }
        if line.ends_with('\n') {
            return Ok(line.trim_end().into());
        }
        let mut why = String::new();
        if let Some(error) = &mut self.0.stderr {
            error.read_to_string(&mut why)?;
        }
        Err(io::Error::other(why.trim_end().to_string()))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // In order first: it may have children of its own.
        if let Some(id) = rustix::process::Pid::from_raw(self.0.id() as i32) {
            let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        }
        let end = Instant::now() + END;
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How long a program may take to end in order.
const END: Duration = Duration::from_secs(2);

/// What is measured, how threads of the rack wait, the unit, what a figure is divided by for it, and the goal.
type Row = (&'static str, RackDeed, RackSpin, &'static str, f64, BenchGoal);

/// SocksDirect (SIGCOMM 2019) is the mark for the first three; nothing may be slower than 0.95 x.
const ROWS: [Row; 9] = [
    ("64 B round trip, spinning", RackDeed::RoundTrip, RackSpin::Always, "ns", 1.0, BenchGoal::RatioAtMost(0.077)),
    ("64 B round trip, sleeping", RackDeed::RoundTrip, RackSpin::Never, "ns", 1.0, BenchGoal::RatioAtMost(0.5)),
    ("64 B one way, a call each", RackDeed::OneWay(SMALL), RackSpin::AsItIs, "M/s", 1e6, BenchGoal::RatioAtLeast(17.0)),
    (
        "one stream, sends of 128 KB",
        RackDeed::OneWay(SEND),
        RackSpin::AsItIs,
        "GB/s",
        1e9 / SEND as f64,
        BenchGoal::RatioAtLeast(2.5),
    ),
    ("64 B round trip, as it is", RackDeed::RoundTrip, RackSpin::AsItIs, "ns", 1.0, SLOWER),
    ("64 B one way, sleeping", RackDeed::OneWay(SMALL), RackSpin::Never, "M/s", 1e6, FASTER),
    ("one stream, sleeping", RackDeed::OneWay(SEND), RackSpin::Never, "GB/s", 1e9 / SEND as f64, FASTER),
    ("connections of one round trip", RackDeed::Connections(1), RackSpin::AsItIs, "k/s", 1e3, FASTER),
    ("connections of 32 round trips", RackDeed::Connections(SOME), RackSpin::AsItIs, "k/s", 1e3, FASTER),
];
const TCP: &str = "TCP on loopback";
const FASTER: BenchGoal = BenchGoal::RatioAtLeast(0.95);
const SLOWER: BenchGoal = BenchGoal::RatioAtMost(1.05);

/// Measures everything; stock programs where they are installed.
pub fn rack(plan: &RackPlan, progress: &mut BenchProgress<'_>) -> MeasuredRows<BenchRow, BenchError> {
    let stock: Vec<_> = stock::ROWS.iter().filter(|row| row.missing().is_none()).collect();
    let wanted = ROWS.len() + 4 + stock.len();
    MeasuredRows::by(wanted, |rows| {
        let mut part = 0.0;
        let mut begin = |what: &str| {
            part += 1.0;
            next(progress, what, (part - 1.0) / wanted as f64)
        };
        for (what, deed, spin, unit, per, goal) in ROWS {
            begin(what)?;
            let figures = beside(
                || plan.figure(deed, Some(spin)).map(|figure| figure / per),
                || plan.figure(deed, None).map(|figure| figure / per),
            )?;
            rows.push(BenchRow::new(what, unit, "TCP on loopback, blocking", figures, Some(goal)));
        }
        let (what, probe) = ("64 B round trip, spinning", Probe::default());
        begin("raw ring")?;
        let figures = beside(|| plan.figure(RackDeed::RoundTrip, Some(RackSpin::Always)), || Ok(probe.ring_ns()))?;
        let goal = Some(BenchGoal::RatioAtMost(2.5));
        rows.push(BenchRow::new(what, "ns", "raw ring ping-pong of a 64 B line", figures, goal));
        let what = "64 B round trip, sleeping";
        begin("two threads that wake each other")?;
        let figures = beside(|| plan.figure(RackDeed::RoundTrip, Some(RackSpin::Never)), || Ok(probe.wake_ns()))?;
        rows.push(BenchRow::new(what, "ns", "two threads that wake each other", figures, None));
        let what = "64 B one way, a call each";
        begin("raw ring, one way")?;
        let figures = beside(
            || plan.figure(RackDeed::OneWay(SMALL), Some(RackSpin::AsItIs)).map(|figure| figure / 1e6),
            || Ok(probe.ring_per_s() / 1e6),
        )?;
        rows.push(BenchRow::new(what, "M/s", "raw ring one way, 64 B lines", figures, None));
        let what = "ring all-reduce of 64 MB, 4 processes";
        begin(what)?;
        let figures = beside(|| plan.reduce(Some(RackSpin::AsItIs)), || plan.reduce(None))?;
        rows.push(BenchRow::new(what, "ms", TCP, figures, Some(BenchGoal::RatioAtMost(0.5))));
        for row in stock {
            begin(row.what)?;
            let figures = beside(|| row.figure(plan, Some(RackSpin::AsItIs)), || row.figure(plan, None))?;
            rows.push(BenchRow::new(row.what, row.unit, TCP, figures, Some(row.goal)));
        }
        progress("done", 1.0);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deeds_are_read_as_they_are_written() {
        for deed in [RackDeed::RoundTrip, RackDeed::OneWay(64), RackDeed::Connections(3)] {
            assert_eq!(deed.to_string().parse(), Ok(deed));
        }
        for text in ["", "one-way", "one-way:7", "round-trip:1", "connections:0", "connections:x"] {
            assert!(text.parse::<RackDeed>().is_err(), "{text}");
        }
    }

    #[test]
    fn both_programs_do_every_deed_together() {
        for deed in [RackDeed::RoundTrip, RackDeed::OneWay(64), RackDeed::OneWay(SEND), RackDeed::Connections(2)] {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            let port = listener.local_addr().expect("its number").port();
            let server = std::thread::spawn(move || {
                while let Ok((stream, _)) = listener.accept() {
                    // The last one of the test says nothing.
                    if serve_one(stream).is_err() {
                        break;
                    }
                }
            });
            let figure = call(deed, port, Duration::from_millis(5)).expect("a figure");
            assert!(figure > 0.0, "{deed}: {figure}");
            drop(TcpStream::connect((Ipv4Addr::LOCALHOST, port)));
            server.join().expect("the server");
        }
    }

    #[test]
    fn other_bytes_than_were_sent_are_noticed() {
        let mut message = [0; SMALL];
        mark(&mut message, 7);
        assert!(check(&message, 7).is_ok() && check(&message, 8).is_err());
        message[SMALL - 1] ^= 1;
        assert!(check(&message, 7).is_err());
    }
}

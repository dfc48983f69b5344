//! The event core beside its peers: the hold model beside a binary heap, messages beside a SimGrid program that
//! exchanges the same ones, and events of a whole reproduction beside the bare queue. All by processor time.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use remora_lab::bench::{BenchGoal, BenchProgress, BenchRow};
use remora_model::bench::{Hold, PingPong};
use remora_model::time::Ps;

use crate::reproduce::{ReproduceOptions, reproduce};
use crate::strom::Strom;
use crate::{MeasuredRows, StudyError};

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct ModelBench {
    /// Rounds, of which the best counts: other work on the machine only ever slows one down.
    pub rounds: u32,
    /// Seed of all random choices.
    pub seed: u64,
}

/// What came.
#[derive(Debug)]
pub struct ModelReport {
    /// The figures.
    pub measured: MeasuredRows<BenchRow>,
    /// Why there are none of SimGrid, if there are none.
    pub no_simgrid: Option<String>,
}

/// Events waiting in the hold model, and the goal in millions of holds a second.
const HOLDS: [(usize, Option<f64>); 3] = [(100, None), (10_000, Some(20.0)), (1_000_000, None)];
/// Steps of the hold model in one round.
const STEPS: u64 = 3_000_000;
/// The exchange: MINOS's network (Table III), 150 ns and 7 GB/s, with records of 1 KB.
const PLAY: PingPong = PingPong { pairs: 32, rounds: 0, bytes: 1024, bytes_per_s: 7e9, latency: Ps::from_ns(150) };
/// Rounds of ping-pong of each pair: here, and in SimGrid, each for a few tenths of a second.
const PLAYS: (u32, u32) = (50_000, 3_000);
/// The SimGrid program.
const SIMGRID: &str = include_str!("../peers/simgrid.cpp");

impl ModelBench {
    /// Measures everything.
    pub fn run(&self, progress: &mut BenchProgress<'_>) -> ModelReport {
        let mut no_simgrid = None;
        let parts = (HOLDS.len() as f64 + 2.0) * f64::from(self.rounds);
        let mut done = -1.0;
        let mut next = |what: &str, ended: f64| {
            done += ended;
            if progress(what, done / parts) { Ok(()) } else { Err(StudyError::Interrupted) }
        };
        let measured = MeasuredRows::by(HOLDS.len() + 2, |rows| {
            self.holds(rows, &mut next)?;
            self.events(rows, &mut next)?;
            self.messages(rows, &mut no_simgrid, &mut next)
        });
        ModelReport { measured, no_simgrid }
    }

    fn holds(&self, rows: &mut Vec<BenchRow>, next: &mut Next<'_>) -> Result<(), StudyError> {
        let mut clock = remora_real::process_cpu_ns;
        for (pending, goal) in HOLDS {
            let hold = Hold { pending, steps: STEPS, seed: self.seed };
            let (mut wheel, mut heap) = (0f64, 0f64);
            for _ in 0..self.rounds {
                next("hold model", 1.0)?;
                wheel = wheel.max(hold.wheel(&mut clock));
                heap = heap.max(hold.heap(&mut clock));
            }
            let goal = goal.map(BenchGoal::ValueAtLeast);
            rows.push(row(format!("holds, {pending} pending"), "M/s", "binary heap", (wheel / 1e6, heap / 1e6), goal));
        }
        Ok(())
    }

    fn events(&self, rows: &mut Vec<BenchRow>, next: &mut Next<'_>) -> Result<(), StudyError> {
        let (bare, mut best) = (rows.first().map_or(f64::NAN, |row| row.value), 0f64);
        for _ in 0..self.rounds {
            next("StRoM's figures", 1.0)?;
            let options = ReproduceOptions { figure: None, jobs: 1, cache: None, seed: self.seed };
            let run = reproduce(&Strom, &options, &mut |_| next("StRoM's figures", 0.0).is_ok())?;
            // What was cut short is no figure.
            next("StRoM's figures", 0.0)?;
            best = best.max(run.sums.events as f64 / run.sums.thread_seconds / 1e6);
        }
        let goal = Some(BenchGoal::ValueAtLeast(3.0));
        rows.push(row("events of StRoM's figures".into(), "M/s", "holds, 100 pending", (best, bare), goal));
        Ok(())
    }

    fn messages(
        &self,
        rows: &mut Vec<BenchRow>,
        no_simgrid: &mut Option<String>,
        next: &mut Next<'_>,
    ) -> Result<(), StudyError> {
        let mut clock = remora_real::process_cpu_ns;
        let play = PingPong { rounds: PLAYS.0, ..PLAY };
        let mut best = 0f64;
        for _ in 0..self.rounds {
            next("messages", 1.0)?;
            best = best.max(play.run(&mut clock).0);
        }
        let peer = self.simgrid(&mut || next("messages", 0.0).is_ok());
        // What was cut short is no figure.
        next("messages", 0.0)?;
        let (name, theirs, goal) = match &peer {
            Ok(theirs) => ("SimGrid actors", *theirs, Some(BenchGoal::RatioAtLeast(10.0))),
            Err(_) => ("no SimGrid here", f64::NAN, None),
        };
        *no_simgrid = peer.err();
        rows.push(row("messages".into(), "M/s", name, (best / 1e6, theirs / 1e6), goal));
        Ok(())
    }

    /// Messages a second of SimGrid, or why there are none; `going` says whether to go on.
    fn simgrid(&self, going: &mut dyn FnMut() -> bool) -> Result<f64, String> {
        let peer = SimGrid::compile()?;
        // The same exchange must end at the same time in both, or it is not the same.
        let play = PingPong { rounds: PLAYS.1, ..PLAY };
        let (_, end) = play.run(&mut remora_real::process_cpu_ns);
        let mut theirs = 0f64;
        for _ in 0..self.rounds {
            if !going() {
                return Err("interrupted".into());
            }
            let (rate, ended) = peer.run(&play)?;
            if (ended - end.as_secs()).abs() > 1e-6 * end.as_secs() {
                return Err(format!("SimGrid's exchange ends after {ended} s, Remora's after {} s", end.as_secs()));
            }
            theirs = theirs.max(rate);
        }
        Ok(theirs)
    }
}

/// Says what is under way and how many rounds have ended since, of as many as all have together; hears whether to go on.
type Next<'a> = dyn FnMut(&str, f64) -> Result<(), StudyError> + 'a;

fn row(
    what: String,
    unit: &'static str,
    peer: &str,
    (value, peer_value): (f64, f64),
    goal: Option<BenchGoal>,
) -> BenchRow {
    BenchRow { what, value, unit, peer: peer.into(), peer_value, ratio: value / peer_value, goal }
}

/// The SimGrid program, compiled.
struct SimGrid {
    directory: tempfile::TempDir,
}

/// How long its compiler or one run may take.
const PATIENCE: Duration = Duration::from_secs(60);

impl SimGrid {
    /// Compiles it, if there are a compiler and the library.
    fn compile() -> Result<Self, String> {
        let failed = |e: std::io::Error| format!("cannot write the SimGrid program: {e}");
        let directory = tempfile::tempdir().map_err(failed)?;
        let source = directory.path().join("simgrid.cpp");
        std::fs::write(&source, SIMGRID).map_err(failed)?;
        let compilers = ["c++", "g++", "clang++"];
        let Some(compiler) = compilers.into_iter().find(|name| output(Command::new(name).arg("--version")).is_ok())
        else {
            return Err("no C++ compiler is installed (Debian: g++)".into());
        };
        let mut command = Command::new(compiler);
        command.arg("-O2").arg("-o").arg(directory.path().join("simgrid")).arg(&source).arg("-lsimgrid");
        output(&mut command).map_err(|_| "SimGrid is not installed (Debian: libsimgrid-dev)".to_string())?;
        Ok(Self { directory })
    }

    /// One exchange: messages a second, and the modelled time at its end in seconds.
    fn run(&self, play: &PingPong) -> Result<(f64, f64), String> {
        let mut command = Command::new(self.directory.path().join("simgrid"));
        let (rate, latency) = (play.bytes_per_s.to_string(), play.latency.0.to_string());
        command.args([play.pairs.to_string(), play.rounds.to_string(), play.bytes.to_string(), rate, latency]);
        let text = output(&mut command)?;
        let figures: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        match figures[..] {
            [messages, seconds, end] if messages == play.messages() as f64 => Ok((messages / seconds, end)),
            _ => Err(format!("the SimGrid program says {text:?}")),
        }
    }
}

/// What a program prints. Fails if it fails, or runs for too long.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |e: std::io::Error| format!("{name}: {e}");
    // Ctrl-C is for this process, which waits for it.
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut child = quiet.spawn().map_err(failed)?;
    let start = Instant::now();
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break status,
            None if start.elapsed() > PATIENCE => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{name} runs for more than {} s", PATIENCE.as_secs()));
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    if !status.success() {
        return Err(format!("{name}: {status}"));
    }
    let mut text = String::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_string(&mut text).map_err(failed)?;
    }
    Ok(text)
}

//! How far it is: a bar with an estimate on a terminal, a line now and then elsewhere.

use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use remora_study::compare::{Progress, Watch};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// How much is said on standard error.
static LOUDNESS: AtomicU8 = AtomicU8::new(NORMAL);
const QUIET: u8 = 0;
const NORMAL: u8 = 1;
const VERBOSE: u8 = 2;

/// Says how much is said.
pub fn set_loudness(quiet: bool, verbose: bool) {
    let loudness = if quiet {
        QUIET
    } else if verbose {
        VERBOSE
    } else {
        NORMAL
    };
    LOUDNESS.store(loudness, Ordering::Relaxed);
}

/// Whether nothing is said that is no failure.
pub fn is_quiet() -> bool {
    LOUDNESS.load(Ordering::Relaxed) == QUIET
}

/// A line for those who want to know more.
pub fn detail(what: impl FnOnce() -> String) {
    if LOUDNESS.load(Ordering::Relaxed) >= VERBOSE {
        line(&what());
    }
}

/// A flag that SIGINT and SIGTERM raise, and a terminal that goes away, unless that is ignored (`nohup`). A second signal of the first
/// two ends the process at once.
pub fn stop_flag() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    if !is_ignored(SIGHUP) {
        let _ = signal_hook::flag::register(SIGHUP, stop.clone());
    }
    for signal in [SIGINT, SIGTERM] {
        // Refused only for signals that nobody may catch. The order matters: the flag is up before it is raised.
        let _ = signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone());
        let _ = signal_hook::flag::register(signal, stop.clone());
    }
    stop
}

/// Whether a signal is ignored, as whoever started this process may have it.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set >> (signal - 1) & 1 == 1)
}

/// Fine steps: of a run through the night one in a hundred would take minutes, and tell nothing until then.
const STEPS: u64 = 10_000;
/// How the way of a benchmark looks.
const PART: &str = "{bar:30} {percent:>3} %, {eta} left  {msg}";

/// Shows progress on stderr.
pub struct Display {
    bar: ProgressBar,
    terminal: bool,
    /// The tenth of the way that was last told in a line.
    told: Cell<u64>,
    /// When this phase began: what the estimate without a bar goes by.
    began: Cell<Instant>,
    phase: Cell<Phase>,
    stop: Arc<AtomicBool>,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Idle,
    Loading,
    Measuring,
}

impl Display {
    /// Nothing shown yet. `stop` is what [`Watch::stop`] says.
    pub fn new(stop: Arc<AtomicBool>) -> Self {
        let target = if is_quiet() { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr_with_hz(8) };
        let bar = ProgressBar::with_draw_target(None, target);
        let terminal = io::stderr().is_terminal();
        bar.set_style(style("{spinner} {msg}"));
        let (told, began) = (Cell::new(0), Cell::new(Instant::now()));
        Self { bar, terminal, told, began, phase: Cell::new(Phase::Idle), stop }
    }

    /// Whether the user wants no more.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Says what is being done.
    pub fn say(&self, what: &str) {
        if self.terminal {
            self.bar.set_message(what.to_string());
            self.bar.tick();
        } else {
            line(what);
        }
    }

    /// Shows the way from 0 to `total`.
    fn enter(&self, phase: Phase, total: u64, what: &str, template: &str) {
        if self.phase.replace(phase) == phase {
            return;
        }
        self.told.set(0);
        self.began.set(Instant::now());
        self.bar.reset();
        self.bar.set_length(total);
        self.bar.set_message(what.to_string());
        self.bar.set_style(style(template));
    }

    /// On a terminal moves the bar, elsewhere writes a line at each tenth.
    pub fn advance(&self, done: u64, total: u64, what: &str) {
        if self.terminal {
            self.bar.set_length(total);
            self.bar.set_position(done);
            self.bar.set_message(what.to_string());
            return;
        }
        let tenth = done * 10 / total.max(1);
        if tenth > self.told.get() || done == 0 {
            self.told.set(tenth);
            let left = match done {
                0 => String::new(),
                _ => {
                    let left =
                        self.began.get().elapsed().as_secs_f64() * total.saturating_sub(done) as f64 / done as f64;
                    format!("{left:.0} s left  ")
                }
            };
            line(&format!("{:>3} %  {left}{what}", done * 100 / total.max(1)));
        }
    }

    /// Shows the way of a benchmark, from 0 to 1.
    pub fn part(&self, what: &str, part: f64) {
        self.enter(Phase::Measuring, STEPS, what, PART);
        self.advance((part * STEPS as f64) as u64, STEPS, what);
    }

    /// The same of what began before anything was shown of it, which is what the estimate goes by.
    pub fn part_since(&self, began: Instant, what: &str, part: f64) {
        self.enter(Phase::Measuring, STEPS, what, PART);
        self.began.set(began);
        self.part(what, part);
    }

    /// Shows the way of a benchmark, and says whether to go on.
    pub fn going(&self) -> impl FnMut(&str, f64) -> bool + '_ {
        |what, part| {
            self.part(what, part);
            !self.stopped()
        }
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Watch for Display {
    fn progress(&self, progress: Progress<'_>) {
        match progress {
            Progress::Loading { done, total } => {
                self.enter(Phase::Loading, total, "loading", "{bar:30} {bytes} of {total_bytes}  {msg}");
                self.advance(done, total, "loading");
            }
            Progress::Measuring { done, total, next } => {
                let (done, total) = (done as u64, total as u64);
                self.enter(Phase::Measuring, total, next, "{bar:30} {pos}/{len}, {eta} left  {msg}");
                self.advance(done, total, next);
            }
            Progress::Part { what, part } => self.part(what, part),
            Progress::Said(what) => self.say(what),
        }
    }

    fn stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// How the bar looks. The templates are constant and valid.
fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.progress_chars("=> ")
}

/// A line on stderr; nobody need read it.
fn line(text: &str) {
    if is_quiet() {
        return;
    }
    let _ = writeln!(io::stderr(), "{text}");
}

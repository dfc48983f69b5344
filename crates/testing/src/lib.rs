//! What the tests of several crates share: waiting for something, and saying that a test could not run.
//!
//! No test asserts how long anything took: a machine that others use takes as long as it likes. What happens by itself
//! is waited for with [`eventually`], whose deadline only ends a test that would hang.

mod namespaces;
pub mod schema;

use std::fmt::Display;
use std::net::TcpStream;
use std::process::Child;
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub use namespaces::{Namespaces, ip};

/// How long [`eventually`] waits: far longer than anything takes on a machine that is merely busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// An address of this host that no other test has. It follows from the process's number, and is not tried by binding there for
/// the reason that [`free_port`] gives.
pub fn own_address() -> String {
    static NEXT: AtomicU8 = AtomicU8::new(10);
    let [.., a, b] = std::process::id().to_be_bytes();
    format!("127.{a}.{b}.{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A TCP port of 127.0.0.1 at which nobody listens: another one each time, and below those that the kernel gives out by itself,
/// so that nobody gets it before it is used. It is not tried by listening there: another test may just start a child
/// process, which would go on listening until it has become another program.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let number = std::process::id().wrapping_mul(61) + u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 10_000 + (number % 20_000) as u16;
        if TcpStream::connect(("127.0.0.1", port)).is_err() {
            return port;
        }
    }
}

/// Asks until there is an answer, and gives it. Panics with `what` if none comes within [`PATIENCE`].
#[track_caller]
pub fn eventually<T>(what: impl Display, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    for asked in 0.. {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "{what}: not within {} s", PATIENCE.as_secs());
        match asked {
            // What is about to come is not slept through.
            0..1000 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    unreachable!("the numbers do not end before the deadline")
}

/// A process that ends with the test, however that ends: one left behind would keep its address from the next. It is asked
/// to, as it may have processes of its own to end, and killed if it does not within some seconds.
#[derive(Debug)]
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        for _ in 0..1000 {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until this process used less than `share` of a core throughout `window`. `cpu_ns` gives its CPU time so far, to
/// which other processes add nothing, however busy they keep the machine.
#[track_caller]
pub fn until_asleep(what: impl Display, window: Duration, share: f64, cpu_ns: impl Fn() -> u64) {
    eventually(format!("{what}: {window:?} at under {} % of a core", 100.0 * share), || {
        let before = cpu_ns();
        std::thread::sleep(window);
        let used = (cpu_ns() - before) as f64 / window.as_nanos() as f64;
        println!("{what}: {:.2} % of a core", 100.0 * used);
        (used < share).then_some(())
    });
}

/// Says that a test cannot run here, because of `why`, and what would let it run. The caller returns.
///
/// Where `CI=true` it panics instead: what did not run has shown nothing, and nobody reads what a passing test says.
#[track_caller]
pub fn skip(why: impl Display, remedy: &str) {
    skip_unless(std::env::var("CI").is_ok_and(|ci| ci == "true"), why, remedy);
}

#[track_caller]
fn skip_unless(ci: bool, why: impl Display, remedy: &str) {
    assert!(!ci, "this test must run where CI=true, and cannot: {why}. {remedy}");
    println!("skipped: {why}. {remedy}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_late_is_waited_for() {
        let mut asked = 0;
        let answer = eventually("the third answer", || {
            asked += 1;
            (asked == 3).then_some("here")
        });
        assert_eq!((answer, asked), ("here", 3));
    }

    #[test]
    fn a_skip_is_a_failure_in_ci() {
        skip_unless(false, "no compiler", "Install one");
        let failure = std::panic::catch_unwind(|| skip_unless(true, "no compiler", "Install one"));
        let said = *failure.expect_err("it panics").downcast::<String>().expect("a message");
        assert!(said.contains("no compiler. Install one"), "{said}");
    }
}

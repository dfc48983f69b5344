//! What the tests of several crates share: waiting for something, and saying that a test could not run.
//!
//! No test asserts how long anything took: a machine that others use takes as long as it likes. What happens by itself
//! is waited for with [`eventually`], whose deadline only ends a test that would hang.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// How long [`eventually`] waits: far longer than anything takes on a machine that is merely busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

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

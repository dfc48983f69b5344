//! A child process that says when it is up, and ends when its input does.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::StudyError;

/// How long a process may take to end.
const END: Duration = Duration::from_secs(4);

/// Between two questions whether to stop.
const LOOK: Duration = Duration::from_millis(50);

/// Runs this program once more with other arguments. It ends with this value.
pub struct Process {
    /// What it is called in messages.
    what: String,
    child: Child,
    up: mpsc::Receiver<()>,
}

impl Process {
    /// Starts it. It is up when it says a line that begins with `ready`.
    pub fn start(what: String, args: &[&OsStr], ready: &'static str) -> Result<Self, StudyError> {
        let failed = |e| StudyError::Failed(format!("cannot start {what} as a child process: {e}"));
        let program = std::env::current_exe().map_err(failed)?;
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for the parent, which ends its children in order.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let output = child.stdout.take();
        let (is_up, up) = mpsc::channel();
        thread::spawn(move || {
            let lines = output.map(|output| BufReader::new(output).lines()).into_iter().flatten();
            // Reads on to the end, so that the process never waits for its reader.
            for line in lines.map_while(Result::ok) {
                let _ = line.starts_with(ready).then(|| is_up.send(()));
            }
        });
        Ok(Self { what, child, up })
    }

    /// Waits until it is up, as long as nobody says to stop.
    pub fn await_up(&self, patience: Duration, stop: &dyn Fn() -> bool) -> Result<(), StudyError> {
        let (what, end) = (&self.what, Instant::now() + patience);
        loop {
            match self.up.recv_timeout(LOOK) {
                Ok(()) => return Ok(()),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(StudyError::Failed(format!("{what} did not start: its message is above")));
                }
                Err(mpsc::RecvTimeoutError::Timeout) if stop() => return Err(StudyError::Interrupted),
                Err(mpsc::RecvTimeoutError::Timeout) if Instant::now() > end => {
                    return Err(StudyError::Failed(format!("{what} is not up after {} s", patience.as_secs())));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it by SIGKILL.
    pub fn kill(&mut self) {
        // If it is gone by now, all the better.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Has it stand still, at whatever instant it is.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Has it go on, as if nothing had happened.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        // One that has ended is no better.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Whether it has ended, and how if by a signal. One that ended by itself is an error: it has said why.
    pub fn ended(&mut self) -> Result<Option<String>, StudyError> {
        let Some(status) = self.child.try_wait().ok().flatten() else { return Ok(None) };
        match status.signal() {
            Some(signal) => Ok(Some(format!("was ended by signal {signal}"))),
            None => Err(StudyError::Failed(format!("{} ended: its message is above", self.what))),
        }
    }

    /// Ends its input, which ends it soon.
    pub fn hang_up(&mut self) {
        // It has to move to see that.
        self.go_on();
        drop(self.child.stdin.take());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.hang_up();
        let end = Instant::now() + END;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > end {
                return self.kill();
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The file of another process of the same command: `what` stands before the extension.
pub(super) fn beside(path: &Path, what: &str) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push("-");
    name.push(what);
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_a_file_of_its_own() {
        assert_eq!(beside("/tmp/a.b.pcap".as_ref(), "node"), Path::new("/tmp/a.b-node.pcap"));
        assert_eq!(beside("a".as_ref(), "0-2"), Path::new("a-0-2"));
    }
}
